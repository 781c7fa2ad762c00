//! Marks: how a packet finds a server that its destination alone does not name.
//!
//! ipvs knows a server by an address or by a mark, and the mark wins. What begins on this node and goes to an address with
//! policy Local may go to any endpoint, not only to those here: it is marked for a server of all of them. A set has the
//! mark for each address, so the rules stay as few as they are.
//!
//! A mark that was given back is not reused before all others were: for a moment the kernel would have
//! the old meaning here and the new one there.

use portway_model::{PortName, Protocol, ServiceName};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

/// Marks are from here: other programs take small numbers first.
const FIRST: u32 = 1 << 12;
/// And below this: other programs like the higher bits, and kube-proxy has used the two above for ages.
const LIMIT: u32 = 1 << 14;

/// An address and port that the set has a mark for.
pub type Marked = (IpAddr, u16, Protocol);

/// A mark that a port of a Service needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The port's name.
    pub port: PortName,
    /// Its protocol.
    pub protocol: Protocol,
    /// Where it would be found, had an earlier run given it.
    pub at: Vec<Marked>,
}

#[derive(Clone, Debug)]
struct Given {
    port: PortName,
    protocol: Protocol,
    mark: u32,
}

/// All marks that are in use.
#[derive(Debug, Default)]
pub struct Marks {
    given: HashMap<ServiceName, Vec<Given>>,
    used: HashSet<u32>,
    last: u32,
    /// What an earlier run gave, found in the kernel and not claimed yet.
    found: HashMap<Marked, u32>,
    /// Those of others.
    others: HashSet<u32>,
}

impl Marks {
    /// Notes what an earlier run gave, so that the same Service gets it again.
    pub fn adopt(&mut self, at: Marked, mark: u32) {
        if (FIRST..LIMIT).contains(&mark) {
            self.found.insert(at, mark);
            self.last = self.last.max(mark);
        }
    }

    /// Notes the marks of all servers that there are: those that were not adopted belong to other programs.
    pub fn avoid(&mut self, marks: impl Iterator<Item = u32>) {
        let ours: HashSet<u32> = self.found.values().copied().collect();
        self.others = marks.filter(|mark| *mark != 0 && !ours.contains(mark)).collect();
    }

    /// Notes that a mark belongs to another program.
    pub fn avoid_foreign(&mut self, mark: u32) {
        self.others.insert(mark);
    }

    /// Whether an earlier run gave it.
    pub fn is_found(&self, mark: u32) -> bool {
        self.found.values().any(|found| *found == mark)
    }

    /// Those of others.
    pub fn others(&self) -> &HashSet<u32> {
        &self.others
    }

    /// Marks that were found and not claimed are free.
    pub fn forget_found(&mut self) {
        self.found.clear();
    }

    /// The mark of a port; none if it has none.
    pub fn get(&self, service: &ServiceName, port: &PortName, protocol: Protocol) -> Option<u32> {
        let given = self.given.get(service)?;
        given.iter().find(|g| (&g.port, g.protocol) == (port, protocol)).map(|g| g.mark)
    }

    /// Gives a Service the marks it needs, and takes back those it had and needs no more, but for those that are `in_use`
    /// all the same. No mark has `avoid`'s bits. When there are no more marks, a Service goes without.
    pub fn assign(
        &mut self,
        service: &ServiceName,
        wants: &[Want],
        avoid: u32,
        in_use: impl Fn(u32) -> bool,
    ) {
        let before = self.given.remove(service).unwrap_or_default();
        let mut now: Vec<Given> = Vec::with_capacity(wants.len());
        for Want { port, protocol, at } in wants {
            let had = before.iter().find(|g| (&g.port, g.protocol) == (port, *protocol)).map(|g| g.mark);
            let had = had.filter(|mark| mark & avoid == 0 && !self.others.contains(mark));
            let mark = had.or_else(|| self.find(at, avoid)).or_else(|| self.next(avoid));
            self.used.extend(mark);
            now.extend(mark.map(|mark| Given { port: port.clone(), protocol: *protocol, mark }));
        }
        for given in before {
            let wanted = |n: &Given| (&n.port, n.protocol) == (&given.port, given.protocol);
            if now.iter().any(|n| n.mark == given.mark) {
                continue;
            }
            if !now.iter().any(wanted) && in_use(given.mark) {
                now.push(given);
            } else {
                self.used.remove(&given.mark);
            }
        }
        if !now.is_empty() {
            self.given.insert(service.clone(), now);
        }
    }

    fn find(&self, at: &[Marked], avoid: u32) -> Option<u32> {
        let found = at.iter().find_map(|at| self.found.get(at)).copied()?;
        (found & avoid == 0 && !self.used.contains(&found)).then_some(found)
    }

    fn next(&mut self, avoid: u32) -> Option<u32> {
        let found: HashSet<u32> = self.found.values().copied().collect();
        let taken = |mark: &u32| [&self.used, &found, &self.others].iter().any(|marks| marks.contains(mark));
        let after = (self.last + 1).max(FIRST);
        let mark = (after..LIMIT).chain(FIRST..after.min(LIMIT)).find(|m| m & avoid == 0 && !taken(m));
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

    fn want(n: u8) -> Want {
        Want { port: "http".into(), protocol: Protocol::Tcp, at: vec![at(n)] }
    }

    fn at(n: u8) -> Marked {
        ([10, 96, 0, n].into(), 80, Protocol::Tcp)
    }

    fn get(marks: &Marks, n: usize) -> Option<u32> {
        marks.get(&name(n), &"http".into(), Protocol::Tcp)
    }

    #[test]
    fn a_mark_stays_and_is_not_soon_another_ones() {
        let mut marks = Marks::default();
        marks.assign(&name(1), &[want(1)], 0, |_| false);
        let first = get(&marks, 1);
        assert!(first.is_some());
        marks.assign(&name(1), &[want(1)], 0, |_| false);
        assert_eq!(get(&marks, 1), first);
        marks.assign(&name(1), &[], 0, |_| false);
        assert_eq!(get(&marks, 1), None);
        marks.assign(&name(2), &[want(2)], 0, |_| false);
        assert!(get(&marks, 2).is_some() && get(&marks, 2) != first, "given back, but not to the next one");
    }

    #[test]
    fn what_an_earlier_run_gave_is_given_again() {
        let mut marks = Marks::default();
        marks.adopt(at(2), FIRST + 7);
        marks.avoid([FIRST + 7, FIRST + 8, 1].into_iter());
        marks.assign(&name(1), &[want(1)], 0, |_| false);
        marks.assign(&name(2), &[want(2)], 0, |_| false);
        assert_eq!(get(&marks, 2), Some(FIRST + 7));
        assert_eq!(get(&marks, 1), Some(FIRST + 9), "neither that, nor one of another program");
    }

    #[test]
    fn a_mark_that_is_in_use_stays_until_it_is_not() {
        let mut marks = Marks::default();
        marks.assign(&name(1), &[want(1)], 0, |_| false);
        let first = get(&marks, 1);
        marks.assign(&name(1), &[], 0, |mark| Some(mark) == first);
        assert_eq!(get(&marks, 1), first, "connections need it");
        marks.assign(&name(1), &[], 0, |_| false);
        assert_eq!(get(&marks, 1), None);
    }

    #[test]
    fn a_mark_that_is_somebody_elses_is_given_up() {
        let mut marks = Marks::default();
        marks.assign(&name(1), &[want(1)], 0, |_| false);
        let first = get(&marks, 1).expect("a mark");
        marks.avoid_foreign(first);
        marks.assign(&name(1), &[want(1)], 0, |_| true);
        assert!(get(&marks, 1).is_some_and(|mark| mark != first));
    }

    #[test]
    fn no_mark_asks_for_masquerading_and_they_may_run_out() {
        let mut marks = Marks::default();
        let avoid = 0x2000;
        let given = (0..10_000).filter(|n| {
            marks.assign(&name(*n), &[want(1)], avoid, |_| false);
            get(&marks, *n).is_some_and(|m| m & avoid == 0)
        });
        assert_eq!(given.count(), 0x1000, "every number without the bit");
        assert_eq!(get(&marks, 9_999), None);
    }
}
