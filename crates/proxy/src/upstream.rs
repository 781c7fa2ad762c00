//! docs/kube-proxy.md has a row for each name of kube-proxy's interface, and the rows are true as far as a unit test can
//! tell.
//!
//! The names are in `upstream/*.txt`, one per line, with the releases of kube-proxy that have them. A name marked "same"
//! or "better" exists here, and one marked "missing" does not. Flags and fields are always accepted.

use crate::config::{Config, ProxyFlags, merge, table};
use crate::health::{MetricsPages, healthz_router, metrics_router};
use crate::metrics::{Metrics, SyncKind};
use clap::{CommandFactory, Parser};
use portway_dataplane::CounterSource;
use portway_model::Family;
use portway_serve::{DualStack, Health, HealthState, Limits, Server, get, listen};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::sync::watch;

/// The sections of the page, with the names that each has to have.
const SECTIONS: [(&str, &str); 5] = [
    ("Flags", include_str!("upstream/flags.txt")),
    ("Configuration file", include_str!("upstream/fields.txt")),
    ("Metrics", include_str!("upstream/metrics.txt")),
    ("HTTP endpoints", include_str!("upstream/endpoints.txt")),
    ("Events", include_str!("upstream/events.txt")),
];

/// How a name of kube-proxy compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Same,
    Better,
    Different,
    Missing,
}

impl Verdict {
    /// Reads the last cell of a row: one of the four words, then, except for "same", a colon and an explanation.
    fn of(cell: &str) -> Result<Verdict, String> {
        let (word, explained) = match cell.split_once([':', ';', ',']) {
            Some((word, text)) => (word, text.trim().len() > 3),
            None => (cell, false),
        };
        let verdict = match word.trim() {
            "same" => return Ok(Verdict::Same),
            "better" => Verdict::Better,
            "different" => Verdict::Different,
            "missing" => Verdict::Missing,
            other => return Err(format!("{other:?} is none of same, better, different, missing")),
        };
        if explained { Ok(verdict) } else { Err(format!("{word:?} without an explanation")) }
    }

    /// Whether Portway has the name; unknown where it differs.
    fn exists(self) -> Option<bool> {
        match self {
            Verdict::Same | Verdict::Better => Some(true),
            Verdict::Missing => Some(false),
            Verdict::Different => None,
        }
    }
}

/// A row of the page.
#[derive(Debug)]
struct PageRow {
    releases: String,
    verdict: Verdict,
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of a list, with their releases.
fn names(list: &str) -> BTreeMap<&str, &str> {
    list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' ')).collect()
}

/// The rows of a section of a page, by name, and the errors in them.
fn rows(page: &str, section: &str) -> (BTreeMap<String, PageRow>, Vec<String>) {
    let text = page.split("\n## ").find(|text| text.lines().next() == Some(section)).unwrap_or_default();
    let (mut rows, mut errors) = (BTreeMap::new(), Vec::new());
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, releases, cell] = cells[..] else {
            errors.push(format!("not three cells: {line}"));
            continue;
        };
        let name = name.trim_matches('`').trim_start_matches("--").to_owned();
        match Verdict::of(cell) {
            Err(error) => errors.push(format!("{section}: {name}: {error}")),
            Ok(verdict) => {
                let row = PageRow { releases: releases.replace(',', ""), verdict };
                if rows.insert(name.clone(), row).is_some() {
                    errors.push(format!("{section}: {name} has two rows"));
                }
            }
        }
    }
    (rows, errors)
}

/// The differences between a section of a page and its list.
fn differences(page: &str, section: &str, list: &str) -> Vec<String> {
    let (rows, mut errors) = rows(page, section);
    let names = names(list);
    for (name, releases) in &names {
        match rows.get(*name) {
            None => errors.push(format!("{section}: {name} has no row")),
            Some(row) if row.releases != *releases => {
                errors
                    .push(format!("{section}: {name} is in {releases}, and the page says {}", row.releases));
            }
            Some(_) => {}
        }
    }
    let surplus = rows.keys().filter(|name| !names.contains_key(name.as_str()));
    errors.extend(surplus.map(|name| format!("{section}: {name} is not a name of kube-proxy")));
    errors
}

/// The rows of a section of docs/kube-proxy.md.
fn documented(section: &str) -> BTreeMap<String, PageRow> {
    let (rows, errors) = rows(&read("docs/kube-proxy.md"), section);
    assert!(errors.is_empty(), "{errors:#?}");
    assert!(rows.len() > 5, "{section}: {} rows", rows.len());
    rows
}

/// Compares the verdicts of a section with what exists.
fn check(section: &str, exists: impl Fn(&str) -> bool) {
    let wrong: Vec<String> = documented(section)
        .iter()
        .filter(|(name, row)| row.verdict.exists().is_some_and(|expected| expected != exists(name)))
        .map(|(name, row)| format!("{name} is not {:?}", row.verdict))
        .collect();
    assert!(wrong.is_empty(), "docs/kube-proxy.md, {section}: {wrong:#?}");
}

fn default_config() -> Config {
    let flags = ProxyFlags::try_parse_from(["kube-proxy"]).expect("no flags");
    merge(&flags, None).expect("the defaults").0
}

#[test]
fn the_page_has_a_row_for_each_name_of_kube_proxy() {
    let page = read("docs/kube-proxy.md");
    let errors: Vec<String> =
        SECTIONS.iter().flat_map(|(section, list)| differences(&page, section, list)).collect();
    assert!(errors.is_empty(), "docs/kube-proxy.md: {errors:#?}");
}

#[test]
fn a_missing_a_surplus_and_a_wrong_row_are_found() {
    let list = "# Names\na-b 1.36 1.37\nc 1.37\nd 1.36\n";
    let page =
        |rows: &str| format!("# Title\n\n## Flags\n\n| flag | releases | Portway |\n{rows}\n## Other\n");
    let differences = |rows: &str| differences(&page(rows), "Flags", list);
    let (a, c, d) = (
        "| `--a-b` | 1.36, 1.37 | same |\n",
        "| `--c` | 1.37 | better: more |\n",
        "| `--d` | 1.36 | same |\n",
    );
    assert_eq!(differences(&format!("{a}{c}{d}")), [""; 0]);
    assert_eq!(differences(&format!("{a}{c}")), ["Flags: d has no row"]);
    assert_eq!(differences(&format!("{a}{c}{d}{d}")), ["Flags: d has two rows"]);
    assert_eq!(
        differences(&format!("{a}{c}{d}| `--e` | 1.36 | same |\n")),
        ["Flags: e is not a name of kube-proxy"]
    );
    assert_eq!(
        differences(&format!("{a}{c}| `--d` | 1.37 | same |\n")),
        ["Flags: d is in 1.36, and the page says 1.37"]
    );
    for cell in ["", "missing", "better:", "equal", "different: x"] {
        assert_eq!(differences(&format!("{a}{c}| `--d` | 1.36 | {cell} |\n")).len(), 2, "{cell:?}");
    }
}

#[test]
fn every_flag_of_kube_proxy_is_accepted() {
    let mut command = ProxyFlags::command();
    command.build();
    let flags: BTreeSet<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
    let unknown: Vec<&str> = names(SECTIONS[0].1).into_keys().filter(|name| !flags.contains(name)).collect();
    assert!(unknown.is_empty(), "not accepted: {unknown:?}");
}

#[test]
fn every_field_of_kube_proxy_is_accepted() {
    let paths: BTreeSet<&str> = table().settings().iter().map(|setting| setting.path).collect();
    let known = |name: &str| ["apiVersion", "kind"].contains(&name) || paths.contains(name);
    let unknown: Vec<&str> = names(SECTIONS[1].1).into_keys().filter(|name| !known(name)).collect();
    assert!(unknown.is_empty(), "not accepted: {unknown:?}");
}

#[test]
fn flags_and_fields_without_effect_are_not_called_the_same() {
    // No effect in kube-proxy on Linux either.
    let unused_upstream = |name: &str| {
        name == "portRange" || name.starts_with("win") || ["boot-id-file", "machine-id-file"].contains(&name)
    };
    let has_effect = |name: &str, setting: &portway_config::Setting<Config>| {
        setting.effect != portway_config::Effect::Unused
            // Deprecated flags: they have the effect of another setting.
            || setting.field() != setting.path
            || unused_upstream(name)
    };
    for section in ["Flags", "Configuration file"] {
        for (name, row) in documented(section) {
            let flag = format!("--{name}");
            let named = |path: &str, of_flag: Option<&str>| path == name || of_flag == Some(flag.as_str());
            let setting = table().settings().iter().find(|s| named(s.path, s.flag_name()));
            let Some(setting) = setting else { continue };
            let claims_effect = matches!(row.verdict, Verdict::Same | Verdict::Better);
            assert!(!claims_effect || has_effect(&name, setting), "{section}: {name} has no effect: {row:?}");
        }
    }
}

#[test]
fn metrics_are_exposed_as_the_page_says() {
    let metrics = Metrics::new("test");
    // Timestamps are exposed after the first sync.
    metrics.sync_queued(Family::V4, UNIX_EPOCH);
    metrics.sync_done(Family::V4, SyncKind::Full, Duration::ZERO, UNIX_EPOCH);
    let text = metrics.encode() + &portway_xtables::InvalidCounter.exposition();
    let exposed: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    // The relay and the client of the API server have further counters; neither runs in a unit test.
    let others =
        read("crates/userspace/src/exposition.rs") + &read("crates/client/src/kubernetes/statistics.rs");
    check("Metrics", |name| exposed.contains(name) || others.contains(&format!("\"{name}\"")));
}

fn start(router: axum::Router) -> Server {
    let listener = listen("127.0.0.1:0".parse().expect("an address"), DualStack::Yes).expect("a port");
    Server::start(listener, router, Limits::default()).expect("a server")
}

#[tokio::test]
async fn pages_are_served_as_the_page_says() {
    let (metrics, health) = (Metrics::new("test"), Health::new(HealthState::new(Duration::from_secs(60))));
    let config = watch::channel(Arc::new(Config { profiling: true, ..default_config() })).1;
    let rejections = watch::channel(Vec::new()).1;
    let health_server = start(healthz_router(health.clone(), metrics.clone()));
    let pages = MetricsPages { metrics, config, health, rejections, version: "test" };
    let metrics_server = start(metrics_router(pages));
    let mut served = BTreeSet::new();
    for (name, _) in names(SECTIONS[3].1) {
        let (server, path) = name.split_once(':').expect("a server and a path");
        let address = match server {
            "health" => health_server.address(),
            "metrics" => metrics_server.address(),
            // It depends on a Service; `health/service/tests.rs` checks it.
            _ => {
                served.insert(name);
                continue;
            }
        };
        // The page answers without taking a profile.
        let path = if path.ends_with("/profile") { format!("{path}?seconds=0") } else { path.to_owned() };
        if get(address, &path).await.expect("an answer").status != 404 {
            served.insert(name);
        }
    }
    check("HTTP endpoints", |name| served.contains(name));
}

#[test]
fn events_are_written_as_the_page_says() {
    let source = read("crates/proxy/src/agent/report.rs");
    check("Events", |reason| source.contains(&format!("\"{reason}\"")));
}
