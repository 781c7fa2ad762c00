//! Counts Service ports with a `Local` traffic policy and without an endpoint on this node.

use portway_model::{Family, FrontendKind, ServiceChange, ServiceName};
use std::collections::HashMap;

/// Service ports without a local endpoint although a policy needs one.
#[derive(Debug, Default)]
pub(crate) struct LocalCounts {
    /// The number of ports of a Service, by family, then by internal and external policy.
    lacking: HashMap<ServiceName, [[usize; 2]; 2]>,
}

impl LocalCounts {
    /// Applies changed plans.
    pub(crate) fn update(&mut self, changes: &[ServiceChange]) {
        for change in changes {
            let mut lacks = [[0; 2]; 2];
            for (family, plan) in lacks.iter_mut().zip(&change.plans) {
                for port in plan.iter().flat_map(|p| &p.ports) {
                    family[0] += usize::from(port.lacks_local(FrontendKind::ClusterIp));
                    family[1] += usize::from(port.lacks_local(FrontendKind::NodePort));
                }
            }
            if lacks == [[0; 2]; 2] {
                self.lacking.remove(&change.name);
            } else {
                self.lacking.insert(change.name.clone(), lacks);
            }
        }
    }

    /// The number of Service ports that lack a local endpoint under the policy that governs this kind of frontend.
    pub(crate) fn lacking(&self, family: Family, kind: FrontendKind) -> usize {
        let (f, k) = (usize::from(family == Family::V6), usize::from(kind != FrontendKind::ClusterIp));
        self.lacking.values().map(|l| l[f][k]).sum()
    }
}
