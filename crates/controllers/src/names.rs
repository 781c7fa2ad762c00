//! Labels, annotations and values that the controllers share with Kubernetes.

/// Label of a slice: the Service whose endpoints it has.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of a slice: the controller that maintains it.
pub const SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// The EndpointSlice controller, in [`SLICE_MANAGED_BY`].
pub const SLICE_CONTROLLER: &str = "endpointslice-controller.k8s.io";
/// The mirroring controller, in [`SLICE_MANAGED_BY`].
pub const MIRRORING_CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";
/// Label of an Endpoints object: the controller that maintains it.
pub const ENDPOINTS_MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
/// The Endpoints controller, in [`ENDPOINTS_MANAGED_BY`].
pub const ENDPOINTS_CONTROLLER: &str = "endpoint-controller";
/// Label of the endpoints of a headless Service.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
/// Label of an Endpoints object that is not to be mirrored, with the value `true`.
pub const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Label of a Node: its zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// Annotation: the time of the change that led to this version.
pub const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Annotation of an Endpoints object that does not have all addresses.
pub const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// Annotation of a Service that asks for topology-aware hints.
pub const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
/// The older name of [`TOPOLOGY_MODE`], which has precedence.
pub const TOPOLOGY_AWARE_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
/// Annotation of an Endpoints object that is the lock of a leader election.
pub const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// Annotation that `kubectl apply` writes.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Labels of Nodes that are left out of the shares of zones.
pub const CONTROL_PLANE: [&str; 2] =
    ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
