//! Evaluates the rules for a packet, as the kernel would.
//!
//! The input is a [`Table`], which no kernel needs to have, and the first packet of a connection. The result is a
//! [`Trace`]: the verdict, and the chains and rules that the packet passed. Random numbers are enumerated: each number
//! that a rule may draw is a path of its own.
//!
//! The table is normalized, and is not changed: a rule that would add a client to a set only adds a step to the trace.
//! Dynamic sets have the elements that are in the table, which a listed table does not have.

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

/// Evaluates `table`, which is of `family`, for `packet`.
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
    /// Runs the hooks on the packet's path. `Err` is the verdict of a rule that dropped or rejected the packet.
    fn run(&mut self) -> Result<(), Verdict> {
        if self.machine.packet.input.is_some() {
            self.hook(HookPoint::Prerouting)?;
            if self.destination_is_local() {
                return self.hook(HookPoint::Input);
            }
            self.hook(HookPoint::Forward)?;
            return self.hook(HookPoint::Postrouting);
        }
        self.hook(HookPoint::Output)?;
        self.hook(HookPoint::Postrouting)?;
        if self.destination_is_local() {
            // The packet arrives again through the loopback interface.
            self.machine.packet.loop_back();
            self.hook(HookPoint::Prerouting)?;
            self.hook(HookPoint::Input)?;
        }
        Ok(())
    }

    fn destination_is_local(&self) -> bool {
        self.host.owns(self.machine.packet.destination)
    }

    /// Runs the base chains of one hook. The kernel sets up NAT for a connection once: it skips the NAT chains after
    /// the one that translated, and all NAT chains when the packet arrives again through loopback.
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
        let mut chains: Vec<(Hook, Name)> = all
            .filter_map(|(name, body)| Some((body.hook.filter(|h| h.point == point)?, name.clone())))
            .collect();
        chains.sort_by_key(|(hook, _)| hook.priority);
        chains
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
