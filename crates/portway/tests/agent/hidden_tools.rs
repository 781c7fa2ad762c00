//! A node on which iptables is not installed, and is installed later.

use crate::agent_lab::{AgentLab, PORTWAY};
use crate::tool::{FAMILIES, Variant};
use libtest_mimic::Failed;
use std::os::unix::fs::symlink;
use std::process::Command;

/// The directories in which Portway looks for tools besides `PATH`; `/sbin` is a link to one of them.
const DIRECTORIES: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// The agent in a mount namespace in which these directories are empty. The directory `tools` comes first in its
/// `PATH`.
pub(crate) fn agent_without_tools(lab: &AgentLab, flags: &[&str]) -> Result<Command, Failed> {
    let tools = lab.path("tools");
    std::fs::create_dir_all(&tools)?;
    let hide: String =
        DIRECTORIES.iter().map(|directory| format!("mount -t tmpfs none {directory} && ")).collect();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{hide}exec \"$@\""), "sh", PORTWAY, "proxy"]);
    command.args(lab.flags()).args(flags);
    command.env("PATH", format!("{}:/usr/bin:/bin", tools.display()));
    Ok(command)
}

/// Installs a variant in the directory `tools`.
pub(crate) fn install_tools(lab: &AgentLab, variant: Variant) -> Result<(), Failed> {
    FAMILIES.iter().try_for_each(|family| install_family(lab, variant, family))
}

/// Installs a variant for one family.
pub(crate) fn install_family(lab: &AgentLab, variant: Variant, family: &str) -> Result<(), Failed> {
    let tools = lab.path("tools");
    // iptables is one program, which acts by the name that it is called by.
    let program = tools.join("multi");
    if !program.exists() {
        std::fs::copy(std::fs::canonicalize(format!("/usr/sbin/{}", variant.program()))?, &program)?;
    }
    for action in ["save", "restore"] {
        symlink(&program, tools.join(format!("{}-{action}", variant.of(family))))?;
    }
    Ok(())
}
