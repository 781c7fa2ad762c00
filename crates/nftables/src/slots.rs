//! Which index an endpoint has.
//!
//! A random number picks an index, so indices must be without gaps; but an endpoint that goes should not move all
//! behind it. The last one takes its place: one endpoint changed is a few elements changed, however many there are.

use portway_model::{ServicePlan, Target};
use std::collections::HashSet;

/// Gives the endpoints of `new` the indices they had in `old`, as far as possible.
pub(crate) fn keep(old: &ServicePlan, new: &mut ServicePlan) {
    for port in &mut new.ports {
        let same = |o: &&portway_model::PortPlan| o.name == port.name && o.protocol == port.protocol;
        if let Some(before) = old.ports.iter().find(same) {
            port.cluster = place(&before.cluster, &port.cluster);
            port.local = place(&before.local, &port.local);
        }
    }
}

fn place(old: &[Target], new: &[Target]) -> Box<[Target]> {
    let (before, now): (HashSet<_>, HashSet<_>) = (old.iter().collect(), new.iter().collect());
    let mut added = new.iter().filter(|t| !before.contains(t));
    let mut slots: Vec<Option<Target>> =
        old.iter().map(|t| if now.contains(t) { Some(*t) } else { added.next().copied() }).collect();
    slots.extend(added.map(|t| Some(*t)));
    let mut i = 0;
    while i < slots.len() {
        if slots[i].is_none() {
            slots.swap_remove(i);
        } else {
            i += 1;
        }
    }
    slots.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::place;
    use portway_model::Target;
    use proptest::prelude::*;

    fn targets(numbers: &[u8]) -> Vec<Target> {
        numbers.iter().map(|n| Target { ip: [10, 0, 0, *n].into(), port: 80 }).collect()
    }

    #[test]
    fn the_last_takes_the_place_of_the_one_that_goes() {
        let placed = place(&targets(&[1, 2, 3, 4]), &targets(&[1, 3, 4]));
        assert_eq!(*placed, targets(&[1, 4, 3]));
    }

    #[test]
    fn one_that_comes_takes_the_place_of_one_that_goes() {
        let placed = place(&targets(&[1, 2, 3]), &targets(&[1, 3, 9]));
        assert_eq!(*placed, targets(&[1, 9, 3]));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_little_moves(
            old in proptest::collection::hash_set(0u8..40, 0..20),
            new in proptest::collection::hash_set(0u8..40, 0..20),
        ) {
            let (old, new) = (targets(&old.into_iter().collect::<Vec<_>>()), targets(&new.into_iter().collect::<Vec<_>>()));
            let placed = place(&old, &new);
            let mut sorted = [placed.to_vec(), new.clone()];
            sorted.iter_mut().for_each(|s| s.sort());
            prop_assert_eq!(&sorted[0], &sorted[1]);
            let changed = old.iter().filter(|t| !new.contains(t)).count() + new.iter().filter(|t| !old.contains(t)).count();
            let moved = (0..old.len().max(placed.len())).filter(|i| old.get(*i) != placed.get(*i)).count();
            prop_assert!(moved <= 2 * changed, "{moved} moved for {changed} changed");
        }
    }
}
