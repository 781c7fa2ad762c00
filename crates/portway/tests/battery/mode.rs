//! The modes as the battery sees them: how a node is made ready for one, and how somebody tampers with its rules.

use portway_dataplane::battery::Tamper;
use portway_lab::Namespace;
use portway_model::Family;
use std::io::Write;
use std::process::{Command, Stdio};

/// A mode, and for iptables its variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Nftables,
    IptablesNft,
    IptablesLegacy,
}

impl Mode {
    /// What its tests are called by.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::IptablesNft => "iptables-nft",
            Mode::IptablesLegacy => "iptables-legacy",
        }
    }

    /// As `--proxy-mode` has it.
    pub(crate) fn flag(self) -> &'static str {
        if self == Mode::Nftables { "nftables" } else { "iptables" }
    }

    /// Makes a node one on which the kubelet uses this variant.
    pub(crate) fn prepare(self, node: &Namespace) {
        if self != Mode::Nftables {
            run(node, self.name(), &["-w", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]);
        }
    }

    /// Somebody interferes with its rules.
    pub(crate) fn tamper(self, node: &Namespace, family: Family, how: Tamper) {
        let v6 = family == Family::V6;
        if self == Mode::Nftables {
            let family = if v6 { "ip6" } else { "ip" };
            let arguments: &[&str] = match how {
                Tamper::FlushEverything => &["flush", "ruleset"],
                Tamper::FlushRules => &["flush", "table", family, "portway"],
                Tamper::AddRule => &["insert", "rule", family, "portway", "filter-prerouting", "drop"],
                Tamper::RemovePart => &["flush", "map", family, "portway", "endpoints"],
            };
            return run(node, "nft", arguments);
        }
        let tool = if v6 { self.name().replacen("iptables", "ip6tables", 1) } else { self.name().to_owned() };
        match how {
            // As `firewall-cmd --reload` would: what is not in the script is gone.
            Tamper::FlushEverything => load(node, &tool, "*nat\nCOMMIT\n*filter\nCOMMIT\n*mangle\nCOMMIT\n"),
            Tamper::FlushRules => run(node, &tool, &["-w", "-t", "nat", "-F"]),
            Tamper::AddRule => run(node, &tool, &["-w", "-t", "nat", "-I", "KUBE-SERVICES", "-j", "RETURN"]),
            Tamper::RemovePart => run(node, &tool, &["-w", "-t", "nat", "-D", "KUBE-SERVICES", "1"]),
        }
    }
}

fn load(node: &Namespace, tool: &str, script: &str) {
    let mut command = Command::new(format!("{tool}-restore"));
    command.arg("-w").stdin(Stdio::piped());
    let status = node.run(|| {
        let mut child = command.spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(script.as_bytes())?;
        }
        child.wait()
    });
    assert!(status.is_ok_and(|s| s.success()), "{command:?}");
}

fn run(node: &Namespace, program: &str, arguments: &[&str]) {
    let mut command = Command::new(program);
    command.args(arguments);
    let status = node.run(|| command.status());
    assert!(status.is_ok_and(|s| s.success()), "{command:?}");
}
