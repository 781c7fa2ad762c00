//! Following a packet through the rules, as the kernel would.
//!
//! In goes a [`Ruleset`], which need not be in any kernel, and the first packet of a connection; out comes a [`Trace`]:
//! the verdict, and the rules that matched, and why. Random choices are enumerated: that a rule
//! with a probability is taken is one path, and that it is not is another.
//!
//! Rules of other programs that the types of this crate cannot hold are passed over, and the trace says so. Nothing is
//! changed: a rule that would remember a client gives a step.

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

/// The objects in the kernel that rules refer to, or that take packets from them: sets, and virtual servers.
pub trait KernelObjects {
    /// The mark that a set has for the packet, 0 if it has none; `None` if the packet is not in it.
    fn lookup(&self, lookup: &Lookup, packet: &PacketState) -> Option<u32>;

    /// The virtual server that accepts a packet for this machine, in words, and its endpoints; `None` if no server does.
    fn balance(&self, packet: &PacketState) -> Option<(String, Vec<Target>)>;
}

/// No sets and no servers.
impl KernelObjects for () {
    fn lookup(&self, _: &Lookup, _: &PacketState) -> Option<u32> {
        None
    }

    fn balance(&self, _: &PacketState) -> Option<(String, Vec<Target>)> {
        None
    }
}

/// Follows `packet` through `rules`, which are of `family`.
pub fn eval(rules: &Ruleset, family: Family, packet: &Packet, host: &Host) -> Trace {
    eval_with(rules, family, packet, host, &())
}

/// The same for rules that refer to sets, and packets that virtual servers accept.
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
    /// Runs all hooks on the packet's path; an error is a verdict that ended it early.
    fn run(&mut self) -> Result<(), Verdict> {
        use Table::{Filter, Mangle, Nat};
        if self.machine.packet.input.is_some() {
            self.hook("PREROUTING", &[Mangle, Nat])?;
            if self.here() {
                return self.arrive();
            }
            self.hook("FORWARD", &[Mangle, Filter])?;
            self.machine.packet.input = None;
            return self.hook("POSTROUTING", &[Mangle, Nat]);
        }
        self.hook("OUTPUT", &[Mangle, Nat])?;
        if self.here() && self.is_accepted()? && !self.here() {
            return self.leave();
        }
        self.hook("OUTPUT", &[Filter])?;
        self.hook("POSTROUTING", &[Mangle, Nat])?;
        if self.here() {
            // Through the loopback interface it comes in again.
            self.machine.packet.loop_back();
            self.hook("PREROUTING", &[Mangle, Nat])?;
            self.arrive()?;
        }
        Ok(())
    }

    /// The packet is for this machine, or for a virtual server.
    fn arrive(&mut self) -> Result<(), Verdict> {
        self.hook("INPUT", &[Table::Mangle, Table::Filter])?;
        if self.is_accepted()? && !self.here() {
            self.machine.packet.input = None;
            return self.leave();
        }
        self.hook("INPUT", &[Table::Nat])
    }

    /// A packet that a server sends on leaves as a packet of this machine does; its destination is not translated again.
    fn leave(&mut self) -> Result<(), Verdict> {
        self.hook("OUTPUT", &[Table::Mangle, Table::Filter])?;
        self.hook("POSTROUTING", &[Table::Mangle, Table::Nat])
    }

    /// Whether a virtual server accepts the packet; one without endpoints refuses it.
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

    fn here(&self) -> bool {
        self.host.owns(self.machine.packet.destination)
    }

    /// Runs one built-in chain of each table. A connection is translated once, on its first pass.
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
