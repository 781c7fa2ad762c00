//! The index of each endpoint in the maps of a Service port.
//!
//! A random number picks an index, so the indices have no gaps. If the endpoints after a removed one moved down, one
//! change would rewrite all of them. Instead a new endpoint, or else the last one, gets the free index, so that the
//! number of changed elements does not depend on the number of endpoints.

use portway_model::{ServicePlan, Target};
use std::collections::HashSet;

/// Gives the endpoints of `new` the indices that they had in `old`, as far as possible.
pub(crate) fn keep_indices(old: &ServicePlan, new: &mut ServicePlan) {
    for port in &mut new.ports {
        let same = |o: &&portway_model::PortPlan| o.name == port.name && o.protocol == port.protocol;
        if let Some(before) = old.ports.iter().find(same) {
            port.cluster = assign(&before.cluster, &port.cluster);
            port.local = assign(&before.local, &port.local);
        }
    }
}

fn assign(old: &[Target], new: &[Target]) -> Box<[Target]> {
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
    use super::assign;
    use portway_model::Target;
    use proptest::prelude::*;

    fn targets(numbers: &[u8]) -> Vec<Target> {
        numbers.iter().map(|n| Target { ip: [10, 0, 0, *n].into(), port: 80 }).collect()
    }

    #[test]
    fn the_last_endpoint_gets_the_index_of_a_removed_one() {
        let assigned = assign(&targets(&[1, 2, 3, 4]), &targets(&[1, 3, 4]));
        assert_eq!(*assigned, targets(&[1, 4, 3]));
    }

    #[test]
    fn a_new_endpoint_gets_the_index_of_a_removed_one() {
        let assigned = assign(&targets(&[1, 2, 3]), &targets(&[1, 3, 9]));
        assert_eq!(*assigned, targets(&[1, 9, 3]));
    }

    proptest! {
        #[test]
        fn all_endpoints_have_an_index_and_few_indices_change(
            old in proptest::collection::hash_set(0u8..40, 0..20),
            new in proptest::collection::hash_set(0u8..40, 0..20),
        ) {
            let (old, new) = (targets(&old.into_iter().collect::<Vec<_>>()), targets(&new.into_iter().collect::<Vec<_>>()));
            let assigned = assign(&old, &new);
            let mut sorted = [assigned.to_vec(), new.clone()];
            sorted.iter_mut().for_each(|s| s.sort());
            prop_assert_eq!(&sorted[0], &sorted[1]);
            let changed = old.iter().filter(|t| !new.contains(t)).count() + new.iter().filter(|t| !old.contains(t)).count();
            let moved = (0..old.len().max(assigned.len())).filter(|i| old.get(*i) != assigned.get(*i)).count();
            prop_assert!(moved <= 2 * changed, "{moved} indices changed for {changed} changed endpoints");
        }
    }
}
