//! Generates docs/configuration.md from the table of settings.

use super::*;
use std::path::Path;

const HEAD: &str = "\
# Configuration

<!-- Generated from the table of settings in crates/proxy/src/config/settings.rs. After a change there:
     PORTWAY_WRITE_DOCS=1 cargo test -p portway-proxy the_reference_page_is_true -->

`portway proxy` reads kube-proxy's configuration file (`--config`, a `KubeProxyConfiguration` in YAML or JSON) or kube-proxy's flags.
Together with a file only the flags for the host name, the API server's address and logging take effect; the log names the flags that are ignored.
An unknown field does not keep the agent from starting: it is ignored, and the log and an Event name file, line and the nearest valid
name. Of a field that is set twice the last value applies. `--check-config` is strict: it prints every mistake, and exits with 1 if there is one.
A changed file is applied while the agent runs: settings marked *live* take effect at once, the others after a restart. `--write-config-to`
writes the effective configuration to a file, and `/configz` on the metrics address shows it.

Durations are written as in Go: `30s`, `1m30s`, `250ms`.

## Without a mode

kubeadm writes `mode: \"\"`, which in kube-proxy means iptables. Portway then runs in mode nftables, with the settings and defaults of
kube-proxy's mode iptables: values of the section `iptables` apply where the section `nftables` has none, and node ports
answer on every address of the node and, unless `iptables.localhostNodePorts` is false, on loopback addresses. The log says so, and so does
an Event of the Node (`KubeProxyDefaultMode`). With `mode: nftables` the defaults are those of kube-proxy's mode nftables.
";

#[test]
fn the_reference_page_is_true() {
    let page = format!("{HEAD}{}", table().markdown(&Config::defaults()));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    if std::env::var_os("PORTWAY_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("docs/configuration.md can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, page, "docs/configuration.md: run the command in its first lines");
}

#[test]
fn every_setting_has_a_help_text_and_is_defined_once() {
    let mut paths = std::collections::BTreeSet::new();
    for setting in table().settings() {
        assert!(paths.insert(setting.path), "{} is defined twice", setting.path);
    }
    let page = table().markdown(&Config::defaults());
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let help = line.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        assert!(help.len() > 10 && help.ends_with('.'), "{line}");
    }
}
