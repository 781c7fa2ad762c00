//! A host on which iptables is not installed, and is installed later.

use crate::agent_lab::{AgentLab, PORTWAY};
use crate::tool::{FAMILIES, Variant};
use libtest_mimic::Failed;
use std::os::unix::fs::symlink;
use std::process::Command;

/// The directories of administrators' programs, besides `PATH`; `/sbin` is a link to one of them.
const DIRECTORIES: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// The agent in a mount namespace in which those directories are empty. A directory `tools` comes first in its `PATH`.
pub(crate) fn hide(world: &AgentLab, flags: &[&str]) -> Result<Command, Failed> {
    let tools = world.path("tools");
    std::fs::create_dir_all(&tools)?;
    let hide: String = DIRECTORIES.iter().map(|place| format!("mount -t tmpfs none {place} && ")).collect();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{hide}exec \"$@\""), "sh", PORTWAY, "proxy"]);
    command.args(world.flags()).args(flags);
    command.env("PATH", format!("{}:/usr/bin:/bin", tools.display()));
    Ok(command)
}

/// Installs a variant there.
pub(crate) fn unhide(world: &AgentLab, variant: Variant) -> Result<(), Failed> {
    FAMILIES.iter().try_for_each(|family| unhide_family(world, variant, family))
}

/// Installs a variant there, for one family.
pub(crate) fn unhide_family(world: &AgentLab, variant: Variant, family: &str) -> Result<(), Failed> {
    let tools = world.path("tools");
    // One program that goes by the name it is called by.
    let program = tools.join("multi");
    if !program.exists() {
        std::fs::copy(std::fs::canonicalize(format!("/usr/sbin/{}", variant.program()))?, &program)?;
    }
    for what in ["save", "restore"] {
        symlink(&program, tools.join(format!("{}-{what}", variant.of(family))))?;
    }
    Ok(())
}
