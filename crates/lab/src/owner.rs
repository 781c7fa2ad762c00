//! The process that created a namespace or started another process. Its start time distinguishes it from a later
//! process with the same number (`proc_pid_stat(5)`, field 22).

use rustix::process::{Pid, Signal, kill_process_group};
use std::fmt;
use std::fs;
use std::io;
use std::str::FromStr;
use std::sync::OnceLock;

/// The process that owns a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pid: u32,
    start: u64,
}

impl Owner {
    /// This process.
    pub(crate) fn current() -> Owner {
        static CURRENT: OnceLock<Owner> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let pid = std::process::id();
            // Without /proc no lab can be built; with zero this process counts as ended.
            Owner { pid, start: running_since(pid).unwrap_or(0) }
        })
    }

    /// The process that has this number now.
    pub(crate) fn of(pid: u32) -> Option<Owner> {
        running_since(pid).map(|start| Owner { pid, start })
    }

    /// Kills it and all processes of the group that it leads.
    pub(crate) fn kill(self) -> io::Result<()> {
        match Pid::from_raw(self.pid as i32).filter(|_| self.is_alive()) {
            Some(pid) => Ok(kill_process_group(pid, Signal::KILL)?),
            None => Ok(()),
        }
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(self) -> bool {
        running_since(self.pid) == Some(self.start)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.pid, self.start)
    }
}

impl FromStr for Owner {
    type Err = ();

    fn from_str(text: &str) -> Result<Owner, ()> {
        let (pid, start) = text.split_once('.').ok_or(())?;
        Ok(Owner { pid: pid.parse().map_err(drop)?, start: start.parse().map_err(drop)? })
    }
}

/// When a process started, in ticks since boot; `None` if it does not exist or is a zombie.
fn running_since(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&stat)
}

fn parse_stat(stat: &str) -> Option<u64> {
    // The second field is the program's name in brackets, which may contain brackets and spaces.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_field_22_for_any_program_name() {
        let tail = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        assert_eq!(parse_stat(&format!("7 (a) S ) b) S {tail}")), Some(4711));
        assert_eq!(parse_stat(&format!("7 (a) Z {tail}")), None);
        assert_eq!(parse_stat("7 (a"), None);
    }

    #[test]
    fn a_process_with_another_start_time_is_not_the_owner() {
        let current = Owner::current();
        assert!(current.is_alive());
        assert_eq!(current.to_string().parse(), Ok(current));
        assert!(!Owner { start: current.start + 1, ..current }.is_alive());
    }
}
