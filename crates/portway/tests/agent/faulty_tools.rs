//! A faulty `iptables-restore`: a wrapper of the real program, first in the agent's `PATH`.

use crate::agent_lab::{AgentLab, PORTWAY};
use crate::tool::{FAMILIES, Variant};
use libtest_mimic::Failed;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Files in its directory select its faults:
/// - `refuse`: it fails at the first line that contains one of the texts in this file.
/// - `die`: it kills itself once, after the first table.
/// - `hurry`: it waits for the lock for one second, whatever `-w` requests.
const SCRIPT: &str = r#"#!/bin/sh
here=$(dirname "$0")
script="$here/script.$$"
trap 'rm -f "$script"' EXIT
cat > "$script"
if [ -e "$here/refuse" ] && line=$(grep -n -m 1 -F -f "$here/refuse" "$script"); then
    echo "$(basename "$0"): line ${line%%:*} failed" >&2
    exit 1
fi
if [ -e "$here/die" ]; then
    rm "$here/die"
    sed '/^COMMIT$/q' "$script" | REAL "$@"
    rm -f "$script"
    kill -KILL $$
fi
[ -e "$here/hurry" ] && set -- --noflush -w 1
REAL "$@" < "$script"
"#;

/// The agent in the iptables mode with the faulty tool.
pub(crate) fn wrap(lab: &AgentLab, variant: Variant) -> Result<Command, Failed> {
    let tools = lab.path("tools");
    std::fs::create_dir_all(&tools)?;
    for family in FAMILIES {
        let name = format!("{}-restore", variant.of(family));
        let path = tools.join(&name);
        std::fs::write(&path, SCRIPT.replace("REAL", &format!("/usr/sbin/{name}")))?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    }
    let mut command = Command::new(PORTWAY);
    command.args(["proxy", "--proxy-mode=iptables"]).args(lab.flags());
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", tools.display()));
    Ok(command)
}
