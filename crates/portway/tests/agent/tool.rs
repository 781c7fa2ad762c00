//! Runs `iptables` on the node, in either variant, as administrators and other programs do.

use crate::agent_lab::AgentLab;
use crate::{Outcome, ensure};
use libtest_mimic::Failed;
use std::io::Write;
use std::process::{Command, Stdio};

/// A variant of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Nft,
    Legacy,
}

pub(crate) use Variant::{Legacy, Nft};

/// Both variants.
pub(crate) const VARIANTS: [Variant; 2] = [Nft, Legacy];
/// The beginning of the tool's name for each family.
pub(crate) const FAMILIES: [&str; 2] = ["iptables", "ip6tables"];

impl Variant {
    /// The tool for IPv4.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Nft => "iptables-nft",
            Legacy => "iptables-legacy",
        }
    }

    /// The tool for a family.
    pub(crate) fn of(self, family: &str) -> String {
        self.program().replacen("iptables", family, 1)
    }

    /// The other variant.
    pub(crate) fn other(self) -> Variant {
        if self == Nft { Legacy } else { Nft }
    }
}

impl AgentLab {
    /// Creates the rules of a kubelet that uses this variant.
    pub(crate) fn kubelet(&self, variant: Variant) -> Outcome {
        for family in FAMILIES {
            self.load(variant, family, &kubelet(family))?;
        }
        Ok(())
    }

    /// Runs the tool for IPv4, and returns its output.
    pub(crate) fn iptables(&self, variant: Variant, arguments: &[&str]) -> Result<String, Failed> {
        self.tool(variant.program(), &[&["-w"], arguments].concat(), "")
    }

    /// The rules of a variant and a family, without counters.
    pub(crate) fn save(&self, variant: Variant, family: &str) -> Result<String, Failed> {
        let text = self.tool(&format!("{}-save", variant.of(family)), &[], "")?;
        Ok(text
            .lines()
            .filter(|l| !l.starts_with('#'))
            .map(|l| format!("{}\n", without_counters(l)))
            .collect())
    }

    /// Adds rules to a variant and a family.
    pub(crate) fn load(&self, variant: Variant, family: &str, script: &str) -> Outcome {
        self.tool(&format!("{}-restore", variant.of(family)), &["--noflush", "-w"], script).map(drop)
    }

    /// The lines with KUBE- in both families of a variant, except for those of the kubelet. If a line of the kubelet is
    /// missing, the result has a line about that.
    pub(crate) fn kube_lines(&self, variant: Variant) -> Result<Vec<String>, Failed> {
        let mut lines = Vec::new();
        for family in FAMILIES {
            let text = self.save(variant, family)?;
            let mut found: Vec<&str> = text.lines().filter(|l| l.contains("KUBE-")).collect();
            let kubelet = kubelet(family);
            if text.contains("KUBE-IPTABLES-HINT") {
                for line in kubelet.lines().filter(|l| l.contains("KUBE-")) {
                    match found.iter().position(|l| *l == without_counters(line)) {
                        Some(at) => drop(found.swap_remove(at)),
                        None => lines.push(format!("{family}: missing line of the kubelet: {line}")),
                    }
                }
            }
            lines.extend(found.into_iter().map(|line| format!("{family}: {line}")));
        }
        Ok(lines)
    }

    /// Runs a program on the node with this input, and returns its output; it must succeed.
    pub(crate) fn tool(&self, program: &str, arguments: &[&str], input: &str) -> Result<String, Failed> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = self.node().run(|| {
            let mut child = command.spawn()?;
            if let Some(mut pipe) = child.stdin.take() {
                pipe.write_all(input.as_bytes())?;
            }
            child.wait_with_output()
        });
        let output = output.map_err(|e| format!("{program} {arguments:?}: {e}"))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure(output.status.success(), || format!("{program} {arguments:?}: {stderr}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The rules of the kubelet (pkg/kubelet/kubelet_network_linux.go), as `iptables-save` prints them.
fn kubelet(family: &str) -> String {
    let martian = "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" \
                   -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\n";
    let martian = if family == "iptables" { martian } else { "" };
    format!(
        "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n\
         *nat\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n\
         *filter\n:KUBE-FIREWALL - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\n-A INPUT -j KUBE-FIREWALL\n\
         -A OUTPUT -j KUBE-FIREWALL\n{martian}COMMIT\n"
    )
}

/// A line of `iptables-save` without the counters of a chain.
fn without_counters(line: &str) -> &str {
    line.strip_prefix(':').and_then(|l| l.rfind(" [")).map_or(line, |at| &line[..=at])
}
