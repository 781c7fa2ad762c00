//! Which Pods of a ReplicaSet are deleted first: those that serve the least.

use crate::key::Key;
use crate::workloads::pod::PodState;
use crate::workloads::{Workloads, controller};
use portway_api::ObjectMeta;
use std::cmp::Reverse;
use std::collections::HashMap;

/// The Pods to delete, in the order of kube-controller-manager: not scheduled, pending, not ready, of the least cost, on
/// a node with the most Pods of the same controller, ready for the shortest time, restarted most, newest.
pub(super) fn first_to_delete<'a>(
    workloads: &Workloads,
    set: &ObjectMeta,
    active: &[(&'a Key, &'a PodState)],
    count: usize,
) -> Vec<(&'a Key, &'a PodState)> {
    let on_node = pods_by_node(workloads, set, active);
    let mut pods = active.to_vec();
    pods.sort_by_cached_key(|(key, pod)| {
        let neighbours = on_node.get(&*pod.node).copied().unwrap_or_default();
        (
            (!pod.node.is_empty(), pod.phase, pod.ready, pod.deletion_cost),
            (Reverse(neighbours), Reverse(ready_since(pod))),
            (Reverse(pod.restarts), Reverse(pod.created)),
            (*key).clone(),
        )
    });
    pods.truncate(count);
    pods
}

/// Since when a Pod is ready. That of which it is not known goes first; for those that are not ready it does not count.
fn ready_since(pod: &PodState) -> i64 {
    if pod.ready { pod.ready_since.unwrap_or(i64::MAX) } else { 0 }
}

/// The number of active Pods on each node, of all ReplicaSets with the same controller.
fn pods_by_node<'a>(
    workloads: &'a Workloads,
    set: &ObjectMeta,
    active: &[(&'a Key, &'a PodState)],
) -> HashMap<&'a str, usize> {
    let mut on_node: HashMap<&str, usize> = HashMap::new();
    let related = controller(&set.owner_references).map(|owner| workloads.sets_of(&owner.uid));
    let others = related.into_iter().flatten().filter_map(|set| set.metadata.as_ref());
    let others = others.filter(|meta| meta.uid != set.uid).flat_map(|meta| workloads.pods_of(&meta.uid));
    for (_, pod) in others.chain(active.iter().copied()).filter(|(_, pod)| pod.is_active()) {
        *on_node.entry(&*pod.node).or_default() += 1;
    }
    on_node
}
