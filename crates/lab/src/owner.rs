//! The process that made a namespace or started another process. Its start time tells it from a later process with the same
//! number (`proc_pid_stat(5)`, field 22).

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
            // Without /proc there is no lab; zero then only means that this process counts as dead.
            Owner { pid, start: running_since(pid).unwrap_or(0) }
        })
    }

    /// The process that has this number now.
    pub(crate) fn of(pid: u32) -> Option<Owner> {
        running_since(pid).map(|start| Owner { pid, start })
    }

    /// Kills it and the processes of its group, of which it is the first.
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

/// When a process started, in ticks since boot; `None` if there is none or it is only waiting to be buried.
fn running_since(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&stat)
}

fn parse_stat(stat: &str) -> Option<u64> {
    // The second field is the program's name in brackets, and may itself hold brackets and spaces.
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
    fn start_time_is_field_22_whatever_the_name() {
        let tail = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        assert_eq!(parse_stat(&format!("7 (a) S ) b) S {tail}")), Some(4711));
        assert_eq!(parse_stat(&format!("7 (a) Z {tail}")), None);
        assert_eq!(parse_stat("7 (a"), None);
    }

    #[test]
    fn this_process_lives_and_its_namesake_does_not() {
        let me = Owner::current();
        assert!(me.is_alive());
        assert_eq!(me.to_string().parse(), Ok(me));
        assert!(!Owner { start: me.start + 1, ..me }.is_alive());
    }
}
