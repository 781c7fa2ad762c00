//! The modes for the battery: how a node is prepared for each, and how another process changes its rules.

use portway_lab::Namespace;
use portway_model::Family;
use portway_testkit::battery::Tamper;
use std::io::Write;
use std::process::{Command, Stdio};

/// A mode, and for iptables its variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Nftables,
    IptablesNft,
    IptablesLegacy,
    Ipvs,
    Userspace,
}

impl Mode {
    /// The mode in the names of tests.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::IptablesNft => "iptables-nft",
            Mode::IptablesLegacy => "iptables-legacy",
            Mode::Ipvs => "ipvs",
            Mode::Userspace => "userspace",
        }
    }

    /// The command that lists and changes the rules of the mode.
    fn tool(self, family: Family) -> &'static str {
        match (self, family) {
            (Mode::Nftables | Mode::Userspace, _) => "nft",
            (Mode::IptablesNft, Family::V4) => "iptables-nft",
            (Mode::IptablesNft, Family::V6) => "ip6tables-nft",
            // The legacy variant works in user-mode Linux and on hosts with both variants.
            (Mode::IptablesLegacy | Mode::Ipvs, Family::V4) => "iptables-legacy",
            (Mode::IptablesLegacy | Mode::Ipvs, Family::V6) => "ip6tables-legacy",
        }
    }

    /// The commands that list the objects of the mode.
    pub(crate) fn list_commands(self, family: Family) -> Vec<(&'static str, &'static [&'static str])> {
        let save = match (self, family) {
            (Mode::Nftables | Mode::Userspace, _) => return vec![("nft", &["list", "ruleset"])],
            (Mode::IptablesNft, Family::V4) => "iptables-nft-save",
            (Mode::IptablesNft, Family::V6) => "ip6tables-nft-save",
            (_, Family::V4) => "iptables-legacy-save",
            (_, Family::V6) => "ip6tables-legacy-save",
        };
        let mut commands: Vec<(&str, &[&str])> = vec![(save, &[])];
        if self == Mode::Ipvs {
            commands.extend([
                ("ipvsadm", &["-Ln"][..]),
                ("ipset", &["save"]),
                ("ip", &["address"]),
                ("ipvsadm", &["-Lnc"]),
            ]);
        }
        commands
    }

    /// Whether the rules of the mode are in a table of nftables.
    fn uses_nftables(self) -> bool {
        matches!(self, Mode::Nftables | Mode::Userspace)
    }

    /// The value of `--proxy-mode`.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::IptablesNft | Mode::IptablesLegacy => "iptables",
            Mode::Ipvs => "ipvs",
            Mode::Userspace => "userspace",
        }
    }

    /// Creates the chain by which Portway detects the iptables variant of the kubelet.
    pub(crate) fn prepare(self, node: &Namespace) {
        if !self.uses_nftables() {
            run(node, self.tool(Family::V4), &["-w", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]);
        }
    }

    /// Changes the rules of the mode as another process would.
    pub(crate) fn tamper(self, node: &Namespace, family: Family, how: Tamper) {
        let v6 = family == Family::V6;
        if self.uses_nftables() {
            let family = if v6 { "ip6" } else { "ip" };
            let arguments: &[&str] = match how {
                Tamper::FlushEverything => &["flush", "ruleset"],
                Tamper::FlushRules => &["flush", "table", family, "portway"],
                Tamper::AddRule => &["insert", "rule", family, "portway", "filter-prerouting", "drop"],
                Tamper::RemoveObjects => &["flush", "map", family, "portway", "endpoints"],
            };
            return run(node, "nft", arguments);
        }
        let tool = self.tool(family);
        if self == Mode::Ipvs && tamper_with_servers(node, how) {
            return;
        }
        match how {
            // As `firewall-cmd --reload` does: rules that are not in the script are removed.
            Tamper::FlushEverything => load(node, tool, "*nat\nCOMMIT\n*filter\nCOMMIT\n*mangle\nCOMMIT\n"),
            Tamper::FlushRules => run(node, tool, &["-w", "-t", "nat", "-F"]),
            Tamper::AddRule => run(node, tool, &["-w", "-t", "nat", "-I", "KUBE-SERVICES", "-j", "RETURN"]),
            Tamper::RemoveObjects => run(node, tool, &["-w", "-t", "nat", "-D", "KUBE-SERVICES", "1"]),
        }
    }
}

/// Changes ipvs objects other than rules; false if the rules have to be changed as well.
fn tamper_with_servers(node: &Namespace, how: Tamper) -> bool {
    match how {
        Tamper::FlushEverything => {
            run(node, "ipvsadm", &["-C"]);
            run(node, "ip", &["address", "flush", "dev", "kube-ipvs0"]);
            false
        }
        Tamper::FlushRules => false,
        Tamper::AddRule => {
            // Besides the rule, the members of a set are removed.
            run(node, "ipset", &["flush", "KUBE-CLUSTER-IP"]);
            run(node, "ipset", &["flush", "KUBE-6-CLUSTER-IP"]);
            false
        }
        Tamper::RemoveObjects => {
            run(node, "ip", &["link", "delete", "kube-ipvs0"]);
            true
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
