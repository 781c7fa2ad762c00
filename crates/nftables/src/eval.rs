//! Following a packet through the rules, as the kernel would.
//!
//! In goes a [`Table`], which need not be in any kernel, and the first packet of a connection; out comes a [`Trace`]:
//! the verdict, and the chains and rules that the packet passed. Every number that a rule may draw is a path of its
//! own.
//!
//! Dynamic sets are empty unless their elements are in the table. The table is normalized. Nothing is
//! changed: a rule that would remember a client gives a step.

mod headers;
mod machine;
mod sets;

#[cfg(test)]
mod tests;

use crate::TABLE;
use crate::table::{Name, Table};
use machine::{End, Machine, RandomChoices};
use portway_dataplane::trace::{Host, Packet, PacketState, Path, Step, Trace, Verdict};
use portway_model::Family;
use portway_netlink::nft::{ChainKind, Hook, HookPoint};

/// Follows `packet` through `table`, which is of `family`.
pub fn eval(table: &Table, family: Family, packet: &Packet, host: &Host) -> Trace {
    if [packet.source, packet.destination].iter().any(|ip| Family::of(*ip) != family) {
        return Trace::untouched();
    }
    let mut paths = Vec::new();
    let mut choices = Some(RandomChoices::default());
    while let Some(these) = choices {
        let mut traversal =
            Traversal { host, machine: Machine::new(table, host, PacketState::new(packet), these) };
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

struct Traversal<'t> {
    host: &'t Host,
    machine: Machine<'t>,
}

impl Traversal<'_> {
    /// Runs all hooks on the packet's path; an error is a verdict that ended it early.
    fn run(&mut self) -> Result<(), Verdict> {
        if self.machine.packet.input.is_some() {
            self.hook(HookPoint::Prerouting)?;
            if self.here() {
                return self.hook(HookPoint::Input);
            }
            self.hook(HookPoint::Forward)?;
            return self.hook(HookPoint::Postrouting);
        }
        self.hook(HookPoint::Output)?;
        self.hook(HookPoint::Postrouting)?;
        if self.here() {
            // Through the loopback interface it comes in again.
            self.machine.packet.loop_back();
            self.hook(HookPoint::Prerouting)?;
            self.hook(HookPoint::Input)?;
        }
        Ok(())
    }

    fn here(&self) -> bool {
        self.host.owns(self.machine.packet.destination)
    }

    /// Runs the base chains of one hook. A connection is translated once: on its first pass, by the first chain that does.
    fn hook(&mut self, point: HookPoint) -> Result<(), Verdict> {
        let before = self.machine.packet.translated;
        for (hook, name) in self.base_chains(point) {
            let translated = self.machine.packet.translated != before;
            if hook.kind == ChainKind::Nat && (self.machine.packet.looped || translated) {
                continue;
            }
            self.machine.steps.push(Step::Hook {
                point: hook_name(point),
                table: TABLE.to_owned(),
                chain: name.to_string(),
            });
            match self.machine.run(&name) {
                End::Accept => {}
                End::Drop => return Err(Verdict::Dropped),
                End::Reject => return Err(Verdict::Rejected),
            }
        }
        Ok(())
    }

    fn base_chains(&self, point: HookPoint) -> Vec<(Hook, Name)> {
        let all = self.machine.table.chains.iter();
        let mut here: Vec<(Hook, Name)> = all
            .filter_map(|(name, body)| Some((body.hook.filter(|h| h.point == point)?, name.clone())))
            .collect();
        here.sort_by_key(|(hook, _)| hook.priority);
        here
    }
}

fn hook_name(point: HookPoint) -> &'static str {
    match point {
        HookPoint::Prerouting => "prerouting",
        HookPoint::Input => "input",
        HookPoint::Forward => "forward",
        HookPoint::Output => "output",
        HookPoint::Postrouting => "postrouting",
    }
}
