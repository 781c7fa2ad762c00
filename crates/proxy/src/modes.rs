//! The registry of modes. No other part of the agent refers to a mode's crate.

use portway_dataplane::Mode;
pub use portway_userspace::LocalhostNodePorts;

/// All modes. The first is the default, and a mode that uses the rules of another one prefers the first that fits.
pub static MODES: &[&dyn Mode] =
    &[portway_nftables::MODE, portway_iptables::MODE, portway_ipvs::MODE, portway_userspace::MODE];

/// The mode with this name.
pub fn find(name: &str) -> Option<&'static dyn Mode> {
    MODES.iter().copied().find(|mode| mode.name() == name)
}

/// The names of all modes, for messages: `nftables, iptables, ipvs and userspace`.
pub fn names(conjunction: &str) -> String {
    let mut names: Vec<&str> = MODES.iter().map(|mode| mode.name()).collect();
    let last = names.pop().unwrap_or_default();
    format!("{} {conjunction} {last}", names.join(", "))
}
