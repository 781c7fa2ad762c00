//! Evaluates the rules for a packet, as the kernel would.
//!
//! The input is a [`Ruleset`], which no kernel needs to have, and the first packet of a connection. The result is a
//! [`Trace`]: the verdict, and the rules that matched, with the reasons. Random choices are enumerated: a rule with a
//! probability matches on one path, and does not match on another.
//!
//! Rules of other programs that the types of this crate cannot represent are skipped, with a step in the trace. Nothing
//! is changed: a rule that would add a client to a list only adds a step to the trace.

mod machine;
mod packet;
mod ruleset;

#[cfg(test)]
mod tests;

pub use ruleset::Ruleset;

use crate::chains::Table;
use crate::rules::Lookup;
use machine::{End, Machine, RandomChoices};
use portway_dataplane::trace::{Host, Packet, PacketState, Path, Step, Trace, Verdict};
use portway_model::{Family, Target};

/// The kernel's objects that rules refer to (ipsets), and those that translate packets between hooks (virtual servers).
pub trait KernelObjects {
    /// The mark that a set has for the packet, 0 if the element has none; `None` if the set does not contain the
    /// packet.
    fn lookup(&self, lookup: &Lookup, packet: &PacketState) -> Option<u32>;

    /// The description and the endpoints of the virtual server that accepts the packet; `None` if no server does.
    fn balance(&self, packet: &PacketState) -> Option<(String, Vec<Target>)>;
}

/// No sets and no virtual servers.
impl KernelObjects for () {
    fn lookup(&self, _: &Lookup, _: &PacketState) -> Option<u32> {
        None
    }

    fn balance(&self, _: &PacketState) -> Option<(String, Vec<Target>)> {
        None
    }
}

/// Evaluates `rules`, which are of `family`, for `packet`.
pub fn eval(rules: &Ruleset, family: Family, packet: &Packet, host: &Host) -> Trace {
    eval_with(rules, family, packet, host, &())
}

/// The same with ipsets and virtual servers.
pub fn eval_with(
    rules: &Ruleset,
    family: Family,
    packet: &Packet,
    host: &Host,
    objects: &dyn KernelObjects,
) -> Trace {
    if [packet.source, packet.destination].iter().any(|ip| Family::of(*ip) != family) {
        return Trace::untouched();
    }
    let mut paths = Vec::new();
    let mut choices = Some(RandomChoices::default());
    while let Some(these) = choices {
        let machine = Machine::new(rules, host, objects, PacketState::new(packet), these);
        let mut traversal = Traversal { host, objects, machine };
        let verdict = match traversal.run() {
            Ok(()) => traversal.machine.packet.verdict(),
            Err(verdict) => verdict,
        };
        let Machine { steps, choices: made, .. } = traversal.machine;
        if !made.abandoned {
            paths.push(Path { steps, verdict });
        }
        choices = made.next();
    }
    Trace::new(paths)
}

struct Traversal<'r> {
    host: &'r Host,
    objects: &'r dyn KernelObjects,
    machine: Machine<'r>,
}

impl Traversal<'_> {
    /// Runs the hooks on the packet's path. `Err` is the verdict of a rule that dropped or rejected the packet.
    fn run(&mut self) -> Result<(), Verdict> {
        use Table::{Filter, Mangle, Nat};
        if self.machine.packet.input.is_some() {
            self.hook("PREROUTING", &[Mangle, Nat])?;
            if self.destination_is_local() {
                return self.arrive();
            }
            self.hook("FORWARD", &[Mangle, Filter])?;
            self.machine.packet.input = None;
            return self.hook("POSTROUTING", &[Mangle, Nat]);
        }
        self.hook("OUTPUT", &[Mangle, Nat])?;
        if self.destination_is_local() && self.is_accepted()? && !self.destination_is_local() {
            return self.leave();
        }
        self.hook("OUTPUT", &[Filter])?;
        self.hook("POSTROUTING", &[Mangle, Nat])?;
        if self.destination_is_local() {
            // The packet arrives again through the loopback interface.
            self.machine.packet.loop_back();
            self.hook("PREROUTING", &[Mangle, Nat])?;
            self.arrive()?;
        }
        Ok(())
    }

    /// The packet is for this host, or for a virtual server on it.
    fn arrive(&mut self) -> Result<(), Verdict> {
        self.hook("INPUT", &[Table::Mangle, Table::Filter])?;
        if self.is_accepted()? && !self.destination_is_local() {
            self.machine.packet.input = None;
            return self.leave();
        }
        self.hook("INPUT", &[Table::Nat])
    }

    /// A packet that a virtual server translated leaves through the OUTPUT hooks. Table nat does not translate it
    /// again.
    fn leave(&mut self) -> Result<(), Verdict> {
        self.hook("OUTPUT", &[Table::Mangle, Table::Filter])?;
        self.hook("POSTROUTING", &[Table::Mangle, Table::Nat])
    }

    /// Whether a virtual server accepts the packet. A server without endpoints rejects it.
    fn is_accepted(&mut self) -> Result<bool, Verdict> {
        if self.machine.packet.translated {
            return Ok(false);
        }
        let Some((server, targets)) = self.objects.balance(&self.machine.packet) else { return Ok(false) };
        self.machine.steps.push(Step::Accepted { by: server });
        let target = self.machine.one_of(&targets).ok_or(Verdict::Rejected)?;
        self.machine.packet.translate(target);
        self.machine.steps.push(Step::Translated(target));
        Ok(true)
    }

    fn destination_is_local(&self) -> bool {
        self.host.owns(self.machine.packet.destination)
    }

    /// Runs one built-in chain of each table. Table nat is skipped when the packet arrives again through loopback,
    /// because the kernel sets up NAT for a connection once.
    fn hook(&mut self, chain: &'static str, tables: &[Table]) -> Result<(), Verdict> {
        for table in tables {
            if *table == Table::Nat && self.machine.packet.looped {
                continue;
            }
            let before = self.machine.steps.len();
            self.machine.steps.push(Step::Hook {
                point: chain,
                table: table.to_string(),
                chain: chain.to_owned(),
            });
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
