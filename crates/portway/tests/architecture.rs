//! ARCHITECTURE.md lists the crates that exist, and no others.

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn the_list_of_crates_is_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let crates: BTreeSet<String> = std::fs::read_dir(root.join("crates"))
        .expect("crates/")
        .flatten()
        .filter(|e| e.path().join("Cargo.toml").exists())
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let rooms =
        text.split("## The rooms").nth(1).and_then(|t| t.split("\n## ").next()).expect("a table of rooms");
    let listed: BTreeSet<String> =
        rooms.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next()).map(str::to_owned).collect();
    assert_eq!(listed, crates);
}
