//! Firewall marks, which select a virtual server where the destination alone does not.
//!
//! ipvs finds a virtual server by mark or by address, and the mark takes precedence. With policy Local, connections of
//! this node and its pods may use all endpoints, not only local ones: their packets get the mark of a virtual server
//! with all endpoints. The set `KUBE-SHORT-CUT` maps each address and port to its mark, so the number of rules stays
//! constant.
//!
//! A released mark is reused only after all other free marks, because while a transaction is written, the set could
//! still map an old frontend to a mark whose virtual server is new.

use portway_model::{PortName, Protocol, ServiceName};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

/// The lowest mark; smaller numbers are common in other programs.
const FIRST: u32 = 1 << 12;
/// Marks are below this: kube-proxy uses the bits 14 and 15, and other programs use higher ones.
const LIMIT: u32 = 1 << 14;

/// A frontend that `KUBE-SHORT-CUT` maps to a mark.
pub type MarkedFrontend = (IpAddr, u16, Protocol);

/// A Service port that needs a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRequest {
    /// The port's name.
    pub port: PortName,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its frontends, by which a mark of a previous process is found.
    pub frontends: Vec<MarkedFrontend>,
}

#[derive(Clone, Debug)]
struct Assigned {
    port: PortName,
    protocol: Protocol,
    mark: u32,
}

/// The marks of Services and of other programs.
#[derive(Debug, Default)]
pub struct Marks {
    assigned: HashMap<ServiceName, Vec<Assigned>>,
    used: HashSet<u32>,
    last: u32,
    /// Marks that a previous process assigned, as listed from the kernel.
    adopted: HashMap<MarkedFrontend, u32>,
    /// Marks of other programs' virtual servers.
    foreign: HashSet<u32>,
}

impl Marks {
    /// Adopts a mark that a previous process assigned, so that the same Service gets it again.
    pub fn adopt(&mut self, frontend: MarkedFrontend, mark: u32) {
        if (FIRST..LIMIT).contains(&mark) {
            self.adopted.insert(frontend, mark);
            self.last = self.last.max(mark);
        }
    }

    /// Takes the marks of all virtual servers in the kernel; those that were not adopted belong to other programs.
    pub fn set_foreign(&mut self, marks: impl Iterator<Item = u32>) {
        let adopted: HashSet<u32> = self.adopted.values().copied().collect();
        self.foreign = marks.filter(|mark| *mark != 0 && !adopted.contains(mark)).collect();
    }

    /// Adds a mark of another program.
    pub fn add_foreign(&mut self, mark: u32) {
        self.foreign.insert(mark);
    }

    /// Whether a mark was adopted.
    pub fn is_adopted(&self, mark: u32) -> bool {
        self.adopted.values().any(|adopted| *adopted == mark)
    }

    /// Marks of other programs' virtual servers.
    pub fn foreign(&self) -> &HashSet<u32> {
        &self.foreign
    }

    /// Releases the adopted marks that were not assigned again.
    pub fn clear_adopted(&mut self) {
        self.adopted.clear();
    }

    /// The mark of a Service port, if it has one.
    pub fn get(&self, service: &ServiceName, port: &PortName, protocol: Protocol) -> Option<u32> {
        let assigned = self.assigned.get(service)?;
        assigned.iter().find(|a| (&a.port, a.protocol) == (port, protocol)).map(|a| a.mark)
    }

    /// Assigns a Service the marks it needs, and releases those it no longer needs unless they are `in_use`. Marks do
    /// not contain the `reserved` bits. If no mark is free, the port gets none.
    pub fn assign(
        &mut self,
        service: &ServiceName,
        requests: &[MarkRequest],
        reserved: u32,
        in_use: impl Fn(u32) -> bool,
    ) {
        let previous = self.assigned.remove(service).unwrap_or_default();
        let mut now: Vec<Assigned> = Vec::with_capacity(requests.len());
        for MarkRequest { port, protocol, frontends } in requests {
            let kept = previous.iter().find(|a| (&a.port, a.protocol) == (port, *protocol)).map(|a| a.mark);
            let kept = kept.filter(|mark| mark & reserved == 0 && !self.foreign.contains(mark));
            let mark = kept.or_else(|| self.find(frontends, reserved)).or_else(|| self.next(reserved));
            self.used.extend(mark);
            now.extend(mark.map(|mark| Assigned { port: port.clone(), protocol: *protocol, mark }));
        }
        for assigned in previous {
            let wanted = |n: &Assigned| (&n.port, n.protocol) == (&assigned.port, assigned.protocol);
            if now.iter().any(|n| n.mark == assigned.mark) {
                continue;
            }
            if !now.iter().any(wanted) && in_use(assigned.mark) {
                now.push(assigned);
            } else {
                self.used.remove(&assigned.mark);
            }
        }
        if !now.is_empty() {
            self.assigned.insert(service.clone(), now);
        }
    }

    fn find(&self, frontends: &[MarkedFrontend], reserved: u32) -> Option<u32> {
        let found = frontends.iter().find_map(|frontend| self.adopted.get(frontend)).copied()?;
        (found & reserved == 0 && !self.used.contains(&found)).then_some(found)
    }

    fn next(&mut self, reserved: u32) -> Option<u32> {
        let adopted: HashSet<u32> = self.adopted.values().copied().collect();
        let taken =
            |mark: &u32| [&self.used, &adopted, &self.foreign].iter().any(|marks| marks.contains(mark));
        let after = (self.last + 1).max(FIRST);
        let mark = (after..LIMIT).chain(FIRST..after.min(LIMIT)).find(|m| m & reserved == 0 && !taken(m));
        self.last = mark.unwrap_or(self.last);
        mark
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: usize) -> ServiceName {
        ServiceName::new("default", &format!("s{n}"))
    }

    fn request(n: u8) -> MarkRequest {
        MarkRequest { port: "http".into(), protocol: Protocol::Tcp, frontends: vec![frontend(n)] }
    }

    fn frontend(n: u8) -> MarkedFrontend {
        ([10, 96, 0, n].into(), 80, Protocol::Tcp)
    }

    fn get(marks: &Marks, n: usize) -> Option<u32> {
        marks.get(&name(n), &"http".into(), Protocol::Tcp)
    }

    #[test]
    fn a_mark_is_stable_and_not_reused_at_once() {
        let mut marks = Marks::default();
        marks.assign(&name(1), &[request(1)], 0, |_| false);
        let first = get(&marks, 1);
        assert!(first.is_some());
        marks.assign(&name(1), &[request(1)], 0, |_| false);
        assert_eq!(get(&marks, 1), first);
        marks.assign(&name(1), &[], 0, |_| false);
        assert_eq!(get(&marks, 1), None);
        marks.assign(&name(2), &[request(2)], 0, |_| false);
        assert!(get(&marks, 2).is_some() && get(&marks, 2) != first, "a released mark is not assigned next");
    }

    #[test]
    fn adopted_marks_are_assigned_again() {
        let mut marks = Marks::default();
        marks.adopt(frontend(2), FIRST + 7);
        marks.set_foreign([FIRST + 7, FIRST + 8, 1].into_iter());
        marks.assign(&name(1), &[request(1)], 0, |_| false);
        marks.assign(&name(2), &[request(2)], 0, |_| false);
        assert_eq!(get(&marks, 2), Some(FIRST + 7));
        assert_eq!(get(&marks, 1), Some(FIRST + 9), "neither the adopted mark nor one of another program");
    }

    #[test]
    fn a_mark_stays_assigned_while_in_use() {
        let mut marks = Marks::default();
        marks.assign(&name(1), &[request(1)], 0, |_| false);
        let first = get(&marks, 1);
        marks.assign(&name(1), &[], 0, |mark| Some(mark) == first);
        assert_eq!(get(&marks, 1), first, "it is in use");
        marks.assign(&name(1), &[], 0, |_| false);
        assert_eq!(get(&marks, 1), None);
    }

    #[test]
    fn a_mark_of_another_program_is_replaced() {
        let mut marks = Marks::default();
        marks.assign(&name(1), &[request(1)], 0, |_| false);
        let first = get(&marks, 1).expect("a mark");
        marks.add_foreign(first);
        marks.assign(&name(1), &[request(1)], 0, |_| true);
        assert!(get(&marks, 1).is_some_and(|mark| mark != first));
    }

    #[test]
    fn marks_exclude_the_masquerade_bit_and_can_run_out() {
        let mut marks = Marks::default();
        let reserved = 0x2000;
        let given = (0..10_000).filter(|n| {
            marks.assign(&name(*n), &[request(1)], reserved, |_| false);
            get(&marks, *n).is_some_and(|m| m & reserved == 0)
        });
        assert_eq!(given.count(), 0x1000, "every number without the reserved bit");
        assert_eq!(get(&marks, 9_999), None);
    }
}
