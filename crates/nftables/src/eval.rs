//! Following a packet through the rules, as the kernel would.
//!
//! In goes a [`Table`], which need not be in any kernel, and the first packet of a connection; out comes a [`Trace`]:
//! what becomes of the packet, and which chains and rules it passed. Random choices are not drawn but enumerated:
//! every number that could come up is a path of its own, so the verdict names all endpoints a packet may reach.
//!
//! What a dynamic map remembers is empty unless its elements are in the table. The table is normalized. Nothing is
//! changed: a rule that would remember a client says so in the trace.

mod machine;
mod packet;
mod sets;
mod trace;

#[cfg(test)]
mod tests;

pub use trace::{Path, Step, Trace};

use crate::table::{Name, Table};
use machine::{Draws, End, Machine};
use packet::Walker;
use portway_dataplane::packet::{Packet, Verdict};
use portway_model::Family;
use portway_netlink::nft::{ChainKind, Hook, HookPoint};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// What the rules can ask of the machine they run on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Its addresses; loopback is always among them.
    pub addresses: BTreeSet<IpAddr>,
}

impl Host {
    /// Whether packets to `address` end here.
    pub fn owns(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }
}

/// Follows `packet` through `table`, which is of `family`.
pub fn eval(table: &Table, family: Family, packet: &Packet, host: &Host) -> Trace {
    if [packet.source, packet.destination].iter().any(|ip| Family::of(*ip) != family) {
        return Trace::new(vec![Path { steps: Vec::new(), verdict: Verdict::Untouched }]);
    }
    let mut paths = Vec::new();
    let mut draws = Some(Draws::default());
    while let Some(these) = draws {
        let mut journey = Journey { host, machine: Machine::new(table, host, Walker::new(packet), these) };
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

struct Journey<'t> {
    host: &'t Host,
    machine: Machine<'t>,
}

impl Journey<'_> {
    /// Through all hooks on the packet's way; an error is where it ended early.
    fn travel(&mut self) -> Result<(), Verdict> {
        if self.machine.walker.input.is_some() {
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
            self.machine.walker.come_back();
            self.hook(HookPoint::Prerouting)?;
            self.hook(HookPoint::Input)?;
        }
        Ok(())
    }

    fn here(&self) -> bool {
        self.host.owns(self.machine.walker.destination)
    }

    /// Through the base chains of one hook. Translation is decided once for a connection, on its first way through.
    fn hook(&mut self, point: HookPoint) -> Result<(), Verdict> {
        for (hook, name) in self.base_chains(point) {
            if hook.kind == ChainKind::Nat && self.machine.walker.came_back {
                continue;
            }
            self.machine.steps.push(Step::Hook { point, chain: name.clone() });
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
