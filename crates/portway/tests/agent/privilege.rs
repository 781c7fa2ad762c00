//! Starting without the privilege to change rules.

use crate::agent_lab::{AgentLab, PORTWAY};
use crate::{Outcome, Test, ensure};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::Command;

pub(crate) const TESTS: &[Test] = &[("without_privileges_the_error_names_the_capability", ordinary_user)];

/// The user and group `nobody`.
const NOBODY: u32 = 65534;

fn ordinary_user(lab: &mut AgentLab) -> Outcome {
    let proxy =
        |mode: &str| [&["proxy".to_owned(), format!("--proxy-mode={mode}")], &lab.flags()[..]].concat();
    let cleanup = [vec!["proxy".into(), "--cleanup".into()], vec!["cleanup".into()]];
    let dry_run = vec!["cleanup".into(), "--dry-run".into()];
    let all = [("nftables", proxy("nftables")), ("iptables", proxy("iptables")), ("nftables", dry_run)];
    for (mode, arguments) in all.into_iter().chain(cleanup.map(|arguments| ("nftables", arguments))) {
        let change = format!("no permission to change {mode} rules");
        let texts = [change.as_str(), "run as root, or with CAP_NET_ADMIN"];
        let output = lab.run(unprivileged(&arguments)?)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure(output.status.code() == Some(1), || format!("{arguments:?}: {}: {stderr}", output.status))?;
        ensure(texts.iter().all(|text| stderr.contains(text)), || format!("{arguments:?}: {stderr}"))?;
        // Further lines, if any, name other missing permissions.
        let errors = stderr.lines().skip_while(|l| !l.starts_with("portway: "));
        let (lines, permissions) =
            (errors.clone().count(), errors.filter(|l| l.contains("no permission")).count());
        ensure(lines > 0 && lines == permissions, || format!("an error of another kind: {stderr}"))?;
    }
    Ok(())
}

/// `portway` as a user without privileges. If the test runs as root of a user namespace with a single user, it cannot
/// change to another one; a nested user namespace has no rights over the node's network either.
fn unprivileged(arguments: &[String]) -> std::io::Result<Command> {
    let map = std::fs::read_to_string("/proc/self/uid_map")?;
    let mapped =
        map.split_whitespace().nth(2).and_then(|n| n.parse::<u32>().ok()).is_some_and(|n| n > NOBODY);
    if !mapped {
        let mut command = Command::new("unshare");
        command.args(["--user", PORTWAY]).args(arguments);
        return Ok(command);
    }
    // By its descriptor: the path of the binary may have directories that only root may enter.
    let mut command = Command::new("/proc/self/fd/0");
    command.arg0("portway").args(arguments).stdin(File::open(PORTWAY)?).uid(NOBODY).gid(NOBODY);
    Ok(command)
}
