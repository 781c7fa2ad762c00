//! How many Services want an endpoint on this node and have none.

use portway_model::{Family, FrontendKind, ServiceChange, ServiceName};
use std::collections::HashMap;

/// Services that lack a local endpoint: for each family, by internal and by external policy.
#[derive(Debug, Default)]
pub(crate) struct LocalCounts {
    lacking: HashMap<ServiceName, [[bool; 2]; 2]>,
}

impl LocalCounts {
    /// Takes in changed plans.
    pub(crate) fn update(&mut self, changes: &[ServiceChange]) {
        for change in changes {
            let mut lacks = [[false; 2]; 2];
            for (family, plan) in lacks.iter_mut().zip(&change.plans) {
                for port in plan.iter().flat_map(|p| &p.ports) {
                    family[0] |= port.lacks_local(FrontendKind::ClusterIp);
                    family[1] |= port.lacks_local(FrontendKind::NodePort);
                }
            }
            if lacks == [[false; 2]; 2] {
                self.lacking.remove(&change.name);
            } else {
                self.lacking.insert(change.name.clone(), lacks);
            }
        }
    }

    /// How many there are, for cluster IPs or for everything else.
    pub(crate) fn lacking(&self, family: Family, kind: FrontendKind) -> usize {
        let (f, k) = (usize::from(family == Family::V6), usize::from(kind != FrontendKind::ClusterIp));
        self.lacking.values().filter(|l| l[f][k]).count()
    }
}
