//! The controllers by name.

/// The controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// EndpointSlices of Services with a selector.
    Slices,
    /// Endpoints objects of Services with a selector.
    Endpoints,
    /// EndpointSlices of Endpoints objects that others write.
    Mirroring,
    /// Pods of ReplicaSets.
    ReplicaSets,
    /// ReplicaSets of Deployments.
    Deployments,
    /// Nodes whose Lease has expired, and their Pods.
    NodeLifecycle,
    /// Objects whose owners are gone.
    Garbage,
}

/// The names of a controller.
struct Names {
    name: &'static str,
    old_name: &'static str,
    queue: &'static str,
    reporter: &'static str,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 7] = [
        Kind::Slices,
        Kind::Endpoints,
        Kind::Mirroring,
        Kind::ReplicaSets,
        Kind::Deployments,
        Kind::NodeLifecycle,
        Kind::Garbage,
    ];

    fn names(self) -> Names {
        let (name, old_name, queue, reporter) = match self {
            Kind::Slices => {
                ("endpointslice-controller", "endpointslice", "endpoint_slice", "endpoint-slice-controller")
            }
            Kind::Endpoints => ("endpoints-controller", "endpoint", "endpoint", "endpoint-controller"),
            Kind::Mirroring => (
                "endpointslice-mirroring-controller",
                "endpointslicemirroring",
                "endpoint_slice_mirroring",
                "endpoint-slice-mirroring-controller",
            ),
            Kind::ReplicaSets => {
                ("replicaset-controller", "replicaset", "replicaset", "replicaset-controller")
            }
            Kind::Deployments => {
                ("deployment-controller", "deployment", "deployment", "deployment-controller")
            }
            Kind::NodeLifecycle => {
                ("node-lifecycle-controller", "nodelifecycle", "node_lifecycle_controller", "node-controller")
            }
            Kind::Garbage => (
                "garbage-collector-controller",
                "garbagecollector",
                "garbage_collector_attempt_to_delete",
                "garbage-collector-controller",
            ),
        };
        Names { name, old_name, queue, reporter }
    }

    /// The name in `--controllers`.
    pub fn name(self) -> &'static str {
        self.names().name
    }

    /// The name that kube-controller-manager had before 1.28, which it still understands.
    pub fn old_name(self) -> &'static str {
        self.names().old_name
    }

    /// The name of its queue in metrics.
    pub fn queue_name(self) -> &'static str {
        self.names().queue
    }

    /// The name under which it reports Events.
    pub fn reporter(self) -> &'static str {
        self.names().reporter
    }

    /// Whether it writes endpoints. These controllers run by default; the others only where no other process does their
    /// work.
    pub fn is_of_endpoints(self) -> bool {
        matches!(self, Kind::Slices | Kind::Endpoints | Kind::Mirroring)
    }

    /// Whether it reads Deployments, ReplicaSets, Pods or Nodes other than for endpoints.
    pub fn is_of_workloads(self) -> bool {
        matches!(self, Kind::ReplicaSets | Kind::Deployments | Kind::NodeLifecycle)
    }
}
