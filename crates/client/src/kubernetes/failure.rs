//! Failures of the requests of a list and watch, with a message for the log.
//!
//! In: an error or a refusal, and its request. Out: a [`Failure`] whose message has the cause and how to fix it, with
//! the address, the credential or the RBAC rule concerned.

use super::access::Origin;
use super::status::Status;
use crate::OutageReason;
use portway_api::ResourceType;
use std::error::Error;
use std::time::Duration;

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) kind: FailureKind,
    /// Message for the log.
    pub(super) message: String,
    /// The wait before a retry that the server requests.
    pub(super) retry_after: Option<Duration>,
}

/// Classes of failures, by how the list and watch continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// The requested version or page is not available any more: list again.
    Expired,
    /// The connection broke within a response. Happens whenever a server restarts.
    Dropped,
    /// The server was reached but did not answer in time.
    Unanswered,
    /// The request itself is not valid for this server (400, 422).
    Invalid,
    /// Any other failure. It is reported as an outage.
    Outage(OutageReason),
}

/// The request that a failure belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestContext<'a> {
    pub(super) origin: &'a Origin,
    pub(super) resource: ResourceType,
    pub(super) verb: &'static str,
}

impl Failure {
    fn new(kind: FailureKind, message: String) -> Self {
        Failure { kind, message, retry_after: None }
    }

    /// The connection broke within the response.
    pub(super) fn dropped(context: RequestContext<'_>, error: &dyn Error) -> Self {
        let message = format!("connection to {} lost: {}", context.origin.server, root(error));
        Failure::new(FailureKind::Dropped, message)
    }

    /// The response could not be decoded.
    pub(super) fn malformed(context: RequestContext<'_>, error: &dyn Error) -> Self {
        let Origin { server, address_from, .. } = context.origin;
        let message =
            format!("{server}: {error}; check that the address in {address_from} is that of an API server");
        Failure::new(FailureKind::Outage(OutageReason::Refused), message)
    }

    /// There is no credential, so the request was not sent.
    pub(super) fn no_credential(context: RequestContext<'_>, reason: &str) -> Self {
        let Origin { server, credential, .. } = context.origin;
        let message = format!("cannot authenticate at {server} with {credential}: {reason}");
        Failure::new(FailureKind::Outage(OutageReason::Unauthorized), message)
    }

    /// The server was reached but did not answer in time.
    pub(super) fn unanswered(context: RequestContext<'_>, error: &dyn Error) -> Self {
        let (Origin { server, .. }, resource) = (context.origin, context.resource.qualified());
        let message = format!("{server} does not answer a request to {} {resource}: {error}", context.verb);
        Failure::new(FailureKind::Unanswered, message)
    }

    /// There was no response.
    pub(super) fn unreachable(context: RequestContext<'_>, error: &dyn Error) -> Self {
        let Origin { server, address_from, proxy, .. } = context.origin;
        let error = root(error);
        if let Some(proxy) = proxy {
            let message = format!(
                "cannot reach the API server at {server} through the proxy {proxy}: {error}; check that the proxy \
                 runs and allows connections to the server, or except the server with NO_PROXY"
            );
            return Failure::new(FailureKind::Outage(OutageReason::Unreachable), message);
        }
        let next = if error.contains("certificate") {
            format!(
                "check certificate-authority in {address_from}, and the names in the server's certificate"
            )
        } else {
            format!("check that it runs, and the address in {address_from}")
        };
        let message = format!("cannot reach the API server at {server}: {error}; {next}");
        Failure::new(FailureKind::Outage(OutageReason::Unreachable), message)
    }

    /// The server refused the request.
    pub(super) fn refused(context: RequestContext<'_>, status: &Status) -> Self {
        let resource = context.resource;
        let Origin { server, credential, .. } = context.origin;
        let text = &status.message;
        let (kind, message) = match status.code {
            _ if status.is_expired() => (FailureKind::Expired, text.clone()),
            401 => (
                FailureKind::Outage(OutageReason::Unauthorized),
                format!(
                    "{server} does not accept {credential} ({text}): renew it, and check that it is for this cluster"
                ),
            ),
            403 => (FailureKind::Outage(OutageReason::Forbidden), forbidden(context, status)),
            404 => (
                FailureKind::Outage(OutageReason::NotServed),
                format!(
                    "{server} does not serve {} in version {}: {text}",
                    resource.qualified(),
                    resource.version()
                ),
            ),
            429 | 503 => (
                FailureKind::Outage(OutageReason::Overloaded),
                format!("{server} is overloaded or starting: {text}"),
            ),
            400 | 422 => (FailureKind::Invalid, refusal(context, status)),
            _ => (FailureKind::Outage(OutageReason::Refused), refusal(context, status)),
        };
        Failure { kind, message, retry_after: status.retry_after() }
    }
}

fn refusal(context: RequestContext<'_>, status: &Status) -> String {
    let (server, resource) = (&context.origin.server, context.resource.qualified());
    format!("{server} refuses to {} {resource}: {} {}", context.verb, status.code, status.message)
}

fn forbidden(context: RequestContext<'_>, status: &Status) -> String {
    let resource = context.resource;
    let user = status.user().unwrap_or(&context.origin.credential);
    format!(
        "{user} may not {} {}: grant verbs [list watch] by adding to its ClusterRole's rules: \
         - {{apiGroups: [\"{}\"], resources: [\"{}\"], verbs: [\"list\", \"watch\"]}}",
        context.verb,
        resource.qualified(),
        resource.group(),
        resource.plural(),
    )
}

/// The innermost error, which is the most specific one: `Connection refused (os error 111)`.
pub(super) fn root(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use portway_api::{EndpointSlice, Node, Resource, Service};

    fn origin() -> Origin {
        Origin {
            server: "https://10.0.0.1:6443".into(),
            address_from: "kubeconfig /etc/kc".into(),
            credential: "the token in /etc/token".into(),
            proxy: None,
        }
    }

    fn refused(resource: ResourceType, code: i32, message: &str) -> Failure {
        let context = RequestContext { origin: &origin(), resource, verb: "list" };
        Failure::refused(context, &Status { code, message: message.into(), ..Status::default() })
    }

    #[test]
    fn the_message_for_a_403_has_the_missing_rbac_rule() {
        let failure = refused(
            EndpointSlice::TYPE,
            403,
            "endpointslices.discovery.k8s.io is forbidden: User \"system:node-proxier\" cannot list resource",
        );
        assert_eq!(failure.kind, FailureKind::Outage(OutageReason::Forbidden));
        assert_eq!(
            failure.message,
            "system:node-proxier may not list endpointslices.discovery.k8s.io: grant verbs [list watch] by adding to \
             its ClusterRole's rules: - {apiGroups: [\"discovery.k8s.io\"], resources: [\"endpointslices\"], verbs: \
             [\"list\", \"watch\"]}"
        );
    }

    #[test]
    fn the_message_for_a_401_has_the_credential() {
        let failure = refused(Service::TYPE, 401, "Unauthorized");
        assert_eq!(failure.kind, FailureKind::Outage(OutageReason::Unauthorized));
        assert!(failure.message.contains("the token in /etc/token"), "{}", failure.message);
    }

    #[test]
    fn each_status_has_its_class() {
        let kind = |code| refused(Node::TYPE, code, "x").kind;
        assert_eq!(kind(410), FailureKind::Expired);
        assert_eq!(kind(404), FailureKind::Outage(OutageReason::NotServed));
        assert_eq!(kind(429), FailureKind::Outage(OutageReason::Overloaded));
        assert_eq!(kind(503), FailureKind::Outage(OutageReason::Overloaded));
        assert_eq!(kind(400), FailureKind::Invalid);
        assert_eq!(kind(422), FailureKind::Invalid);
        assert_eq!(kind(500), FailureKind::Outage(OutageReason::Refused));
    }

    #[test]
    fn the_message_for_a_connection_error_has_the_address_and_where_it_is_configured() {
        let context = RequestContext { origin: &origin(), resource: Node::TYPE, verb: "list" };
        let refused = std::io::Error::from_raw_os_error(111);
        let failure = Failure::unreachable(context, &refused);
        assert_eq!(
            failure.message,
            "cannot reach the API server at https://10.0.0.1:6443: Connection refused (os error 111); \
             check that it runs, and the address in kubeconfig /etc/kc"
        );
        let tls = std::io::Error::other("invalid peer certificate: UnknownIssuer");
        assert!(
            Failure::unreachable(context, &tls)
                .message
                .contains("certificate-authority in kubeconfig /etc/kc")
        );
    }
}
