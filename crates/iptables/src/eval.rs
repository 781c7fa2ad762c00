//! Following a packet through the rules, as the kernel would.
//!
//! In goes a [`Ruleset`], which need not be in any kernel, and the first packet of a connection; out comes a [`Trace`]:
//! what becomes of the packet, and which rules concerned it, and why. Chance is not drawn but enumerated: that a rule
//! with a probability is taken is one path, and that it is not another, so the verdict names all endpoints a packet
//! may reach.
//!
//! Rules of other programs that have no place in our types are passed over, and the trace says so. Nothing is changed: a
//! rule that would remember a client says so in the trace.

mod machine;
mod packet;
mod ruleset;
mod trace;

#[cfg(test)]
mod tests;

pub use packet::Walker;
pub use ruleset::Ruleset;
pub use trace::{Path, Step, Trace};

use crate::chains::Table;
use crate::rules::Lookup;
use machine::{Draws, End, Machine};
use portway_dataplane::packet::{Packet, Verdict};
use portway_model::{Family, Target};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// What the rules can ask of the machine they run on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Its addresses; loopback is always among them.
    pub addresses: BTreeSet<IpAddr>,
    /// Clients on lists of recent ones (`/proc/net/xt_recent`), by the list's name.
    pub recent: BTreeSet<(String, IpAddr)>,
}

impl Host {
    /// Whether packets to `address` end here.
    pub fn owns(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }
}

/// What the kernel keeps beside the rules, where a mode has it there: sets that rules ask, and servers that take
/// packets for this machine, and send them on.
pub trait Beside {
    /// The mark that a set has for the packet, 0 if it has none; nothing if the packet is not in it.
    fn find(&self, lookup: &Lookup, packet: &Walker) -> Option<u32>;

    /// Where a packet for this machine is sent on to: nothing if no server takes it, and nowhere if one does that has
    /// nobody behind it. The server comes back too, in words.
    fn balance(&self, packet: &Walker) -> Option<(String, Vec<Target>)>;
}

/// Nothing is there.
impl Beside for () {
    fn find(&self, _: &Lookup, _: &Walker) -> Option<u32> {
        None
    }

    fn balance(&self, _: &Walker) -> Option<(String, Vec<Target>)> {
        None
    }
}

/// Follows `packet` through `rules`, which are of `family`.
pub fn eval(rules: &Ruleset, family: Family, packet: &Packet, host: &Host) -> Trace {
    eval_beside(rules, family, packet, host, &())
}

/// The same where there is something beside the rules.
pub fn eval_beside(
    rules: &Ruleset,
    family: Family,
    packet: &Packet,
    host: &Host,
    beside: &dyn Beside,
) -> Trace {
    if [packet.source, packet.destination].iter().any(|ip| Family::of(*ip) != family) {
        return Trace::new(vec![Path { steps: Vec::new(), verdict: Verdict::Untouched }]);
    }
    let mut paths = Vec::new();
    let mut draws = Some(Draws::default());
    while let Some(these) = draws {
        let machine = Machine::new(rules, host, beside, Walker::new(packet), these);
        let mut journey = Journey { host, beside, machine };
        let verdict = match journey.travel() {
            Ok(()) => journey.machine.walker.verdict(),
            Err(verdict) => verdict,
        };
        let Machine { steps, draws: made, .. } = journey.machine;
        if !made.abandoned {
            paths.push(Path { steps, verdict });
        }
        draws = made.next();
    }
    Trace::new(paths)
}

struct Journey<'r> {
    host: &'r Host,
    beside: &'r dyn Beside,
    machine: Machine<'r>,
}

impl Journey<'_> {
    /// Through all hooks on the packet's way; an error is where it ended early.
    fn travel(&mut self) -> Result<(), Verdict> {
        use Table::{Filter, Mangle, Nat};
        if self.machine.walker.input.is_some() {
            self.hook("PREROUTING", &[Mangle, Nat])?;
            if self.here() {
                return self.arrive();
            }
            self.hook("FORWARD", &[Mangle, Filter])?;
            self.machine.walker.input = None;
            return self.hook("POSTROUTING", &[Mangle, Nat]);
        }
        self.hook("OUTPUT", &[Mangle, Nat])?;
        if self.here() && self.is_taken()? && !self.here() {
            return self.leave();
        }
        self.hook("OUTPUT", &[Filter])?;
        self.hook("POSTROUTING", &[Mangle, Nat])?;
        if self.here() {
            // Through the loopback interface it comes in again.
            self.machine.walker.come_back();
            self.hook("PREROUTING", &[Mangle, Nat])?;
            self.arrive()?;
        }
        Ok(())
    }

    /// At this machine, or at a server that sends it on.
    fn arrive(&mut self) -> Result<(), Verdict> {
        self.hook("INPUT", &[Table::Mangle, Table::Filter])?;
        if self.is_taken()? && !self.here() {
            self.machine.walker.input = None;
            return self.leave();
        }
        self.hook("INPUT", &[Table::Nat])
    }

    /// A packet that a server sends on leaves as one of this machine's own does; its destination is decided already.
    fn leave(&mut self) -> Result<(), Verdict> {
        self.hook("OUTPUT", &[Table::Mangle, Table::Filter])?;
        self.hook("POSTROUTING", &[Table::Mangle, Table::Nat])
    }

    /// Whether a server takes the packet; one with nobody behind it refuses it.
    fn is_taken(&mut self) -> Result<bool, Verdict> {
        if self.machine.walker.translated {
            return Ok(false);
        }
        let Some((server, targets)) = self.beside.balance(&self.machine.walker) else { return Ok(false) };
        self.machine.steps.push(Step::Taken(server));
        let target = self.machine.one_of(&targets).ok_or(Verdict::Rejected)?;
        self.machine.walker.translate(target);
        self.machine.steps.push(Step::Translated(target));
        Ok(true)
    }

    fn here(&self) -> bool {
        self.host.owns(self.machine.walker.destination)
    }

    /// Through one built-in chain of each table. Translation is decided once for a connection, on its first way through.
    fn hook(&mut self, chain: &'static str, tables: &[Table]) -> Result<(), Verdict> {
        for table in tables {
            if *table == Table::Nat && self.machine.walker.came_back {
                continue;
            }
            let before = self.machine.steps.len();
            self.machine.steps.push(Step::Hook { table: *table, chain });
            let end = self.machine.run(*table, chain);
            if self.machine.steps.len() == before + 1 {
                self.machine.steps.pop();
            }
            match end {
                End::Accept => {}
                End::Drop => return Err(Verdict::Dropped),
                End::Reject => return Err(Verdict::Rejected),
            }
        }
        Ok(())
    }
}
