//! ARCHITECTURE.md lists every crate of the workspace, and crates depend on one another only as it states.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Crates that only tests, benchmarks and examples may depend on.
const TEST_ONLY: [&str; 3] = ["lab", "noop", "testkit"];
/// The crates of the proxy modes.
const MODES: [&str; 5] = ["nftables", "iptables", "ipvs", "userspace", "noop"];
/// Dependencies of a mode on another mode that are still to be removed. The test also fails when a listed one no longer
/// exists.
const MODES_STILL_COUPLED: &[(&str, &str)] = &[];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The crates of the workspace, and the crates in the `[dependencies]` of each; dev-dependencies are left out.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let crates = std::fs::read_dir(root().join("crates")).expect("crates/").flatten();
    let read = |path: &Path| std::fs::read_to_string(path.join("Cargo.toml")).ok();
    let named = crates.filter_map(|entry| {
        let manifest = read(&entry.path())?;
        Some((entry.file_name().to_string_lossy().into_owned(), normal_dependencies(&manifest)))
    });
    named.collect()
}

/// The crates of the workspace that a manifest names in `[dependencies]`, also for one target.
fn normal_dependencies(manifest: &str) -> BTreeSet<String> {
    let mut normal = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if let Some(section) = line.strip_prefix('[') {
            normal = section == "dependencies]" || section.ends_with(".dependencies]");
        } else if let Some(name) = line.strip_prefix("portway-").filter(|_| normal) {
            found.extend(name.split(['.', ' ', '=']).next().map(str::to_owned));
        }
    }
    found
}

#[test]
fn architecture_lists_every_crate() {
    let crates: BTreeSet<String> = dependencies().into_keys().collect();
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let table =
        text.split("## Crates").nth(1).and_then(|t| t.split("\n## ").next()).expect("a table of crates");
    let listed: BTreeSet<String> =
        table.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next()).map(str::to_owned).collect();
    assert_eq!(listed, crates);
}

#[test]
fn only_tests_depend_on_test_crates() {
    let dependencies = dependencies();
    assert!(
        dependencies["portway"].contains("proxy"),
        "the Cargo.toml files were not read: {dependencies:?}"
    );
    for (name, of) in dependencies.iter().filter(|(name, _)| !TEST_ONLY.contains(&name.as_str())) {
        for test_only in TEST_ONLY {
            assert!(
                !of.contains(test_only),
                "{name} depends on {test_only}, which only tests may use: make it a dev-dependency"
            );
        }
    }
}

#[test]
fn no_mode_depends_on_another() {
    let dependencies = dependencies();
    let mut coupled = Vec::new();
    for mode in MODES {
        let others = MODES.iter().filter(|other| dependencies[mode].contains(**other));
        coupled.extend(others.map(|other| (mode, *other)));
    }
    assert_eq!(coupled, MODES_STILL_COUPLED);
}

#[test]
fn dev_dependencies_are_not_normal_ones() {
    let manifest = "[dependencies]\nportway-model.workspace = true\nportway-flows = { path = \"x\" }\nserde = \"1\"\n\
                    [dev-dependencies]\nportway-lab.workspace = true\n\
                    [target.'cfg(unix)'.dependencies]\nportway-netlink.workspace = true\n";
    assert_eq!(normal_dependencies(manifest), ["flows", "model", "netlink"].map(str::to_owned).into());
}
