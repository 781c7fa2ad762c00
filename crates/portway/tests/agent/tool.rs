//! `iptables` on the node, in either variant, as administrators and other programs use it.

use crate::agent_lab::AgentLab;
use crate::{Outcome, ensure};
use libtest_mimic::Failed;
use std::io::Write;
use std::process::{Command, Stdio};

/// A variant of the tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Nft,
    Legacy,
}

pub(crate) use Variant::{Legacy, Nft};

/// Both.
pub(crate) const VARIANTS: [Variant; 2] = [Nft, Legacy];
/// Both families, as the tool's name begins.
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

    /// The other one.
    pub(crate) fn other(self) -> Variant {
        if self == Nft { Legacy } else { Nft }
    }
}

impl AgentLab {
    /// Makes the node one on which the kubelet uses this variant.
    pub(crate) fn kubelet(&self, variant: Variant) -> Outcome {
        for family in FAMILIES {
            self.load(variant, family, &kubelet(family))?;
        }
        Ok(())
    }

    /// Runs the tool for IPv4, and returns what it says.
    pub(crate) fn iptables(&self, variant: Variant, arguments: &[&str]) -> Result<String, Failed> {
        self.tool(variant.program(), &[&["-w"], arguments].concat(), "")
    }

    /// What a variant holds for a family, without counters.
    pub(crate) fn save(&self, variant: Variant, family: &str) -> Result<String, Failed> {
        let text = self.tool(&format!("{}-save", variant.of(family)), &[], "")?;
        Ok(text.lines().filter(|l| !l.starts_with('#')).map(|l| format!("{}\n", bare(l))).collect())
    }

    /// Adds to what a variant holds for a family.
    pub(crate) fn load(&self, variant: Variant, family: &str, script: &str) -> Outcome {
        self.tool(&format!("{}-restore", variant.of(family)), &["--noflush", "-w"], script).map(drop)
    }

    /// Lines of KUBE- that a variant holds in either family, besides what the kubelet made; if that is not as it was,
    /// that too.
    pub(crate) fn kube_lines(&self, variant: Variant) -> Result<Vec<String>, Failed> {
        let mut lines = Vec::new();
        for family in FAMILIES {
            let text = self.save(variant, family)?;
            let mut found: Vec<&str> = text.lines().filter(|l| l.contains("KUBE-")).collect();
            let kubelet = kubelet(family);
            if text.contains("KUBE-IPTABLES-HINT") {
                for line in kubelet.lines().filter(|l| l.contains("KUBE-")) {
                    match found.iter().position(|l| *l == bare(line)) {
                        Some(at) => drop(found.swap_remove(at)),
                        None => lines.push(format!("{family}: no longer there: {line}")),
                    }
                }
            }
            lines.extend(found.into_iter().map(|line| format!("{family}: {line}")));
        }
        Ok(lines)
    }

    /// Runs a program on the node with this as its input, and returns what it says; it must succeed.
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
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure(output.status.success(), || format!("{program} {arguments:?}: {complaint}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// What the kubelet makes (pkg/kubelet/kubelet_network_linux.go), as `iptables-save` prints it.
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
fn bare(line: &str) -> &str {
    line.strip_prefix(':').and_then(|l| l.rfind(" [")).map_or(line, |at| &line[..=at])
}
