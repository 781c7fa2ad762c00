//! The registry of modes: the only place in the agent that names one.

use portway_dataplane::Mode;

/// All modes, in the order of preference for a mode that uses the rules of another one.
pub static MODES: [&dyn Mode; 4] =
    [portway_nftables::MODE, portway_iptables::MODE, portway_ipvs::MODE, portway_userspace::MODE];

/// The mode of a name.
pub fn find(name: &str) -> Option<&'static dyn Mode> {
    MODES.into_iter().find(|mode| mode.name() == name)
}

/// The names of all modes, for messages: `nftables, iptables, ipvs and userspace`.
pub fn names(conjunction: &str) -> String {
    let [others @ .., last] = MODES.map(|mode| mode.name());
    format!("{} {conjunction} {last}", others.join(", "))
}
