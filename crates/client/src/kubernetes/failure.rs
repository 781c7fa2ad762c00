//! Failures of requests, with a message for people.
//!
//! In: an error or a refusal, and the request it belongs to. Out: a [`Failure`] whose message says what failed and what
//! to do next. Every message names the address, the credential or the RBAC rule it is about.

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
    /// For people.
    pub(super) message: String,
    /// When the server wants to be asked again.
    pub(super) retry_after: Option<Duration>,
}

/// Classes of failures that differ in the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// The version or the page asked for is gone: list anew.
    Expired,
    /// A response that had begun broke off. Happens whenever a server restarts.
    Dropped,
    /// The request itself is not valid for this server (400, 422).
    Invalid,
    /// Anything else, which is reported.
    Outage(OutageReason),
}

/// The request that failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) origin: &'a Origin,
    pub(super) resource: ResourceType,
    pub(super) verb: &'static str,
}

impl Failure {
    fn new(kind: FailureKind, message: String) -> Self {
        Failure { kind, message, retry_after: None }
    }

    /// The response broke off after it had begun.
    pub(super) fn dropped(asked: Asked<'_>, error: &dyn Error) -> Self {
        let message = format!("the connection to {} broke: {}", asked.origin.server, root(error));
        Failure::new(FailureKind::Dropped, message)
    }

    /// The response could not be decoded.
    pub(super) fn garbled(asked: Asked<'_>, error: &dyn Error) -> Self {
        let Origin { server, address_from, .. } = asked.origin;
        let message =
            format!("{server}: {error}; check that the address in {address_from} is an API server's");
        Failure::new(FailureKind::Outage(OutageReason::Refused), message)
    }

    /// There is no credential, so nothing was sent.
    pub(super) fn no_credential(asked: Asked<'_>, reason: &str) -> Self {
        let Origin { server, credential, .. } = asked.origin;
        let message = format!("cannot log in to {server} with {credential}: {reason}");
        Failure::new(FailureKind::Outage(OutageReason::Unauthorized), message)
    }

    /// There was no response.
    pub(super) fn unreachable(asked: Asked<'_>, error: &dyn Error) -> Self {
        let Origin { server, address_from, .. } = asked.origin;
        let error = root(error);
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

    /// The server refused it.
    pub(super) fn refused(asked: Asked<'_>, status: &Status) -> Self {
        let resource = asked.resource;
        let Origin { server, credential, .. } = asked.origin;
        let text = &status.message;
        let (kind, message) = match status.code {
            _ if status.is_expired() => (FailureKind::Expired, text.clone()),
            401 => (
                FailureKind::Outage(OutageReason::Unauthorized),
                format!(
                    "{server} does not accept {credential} ({text}): renew it, and check that it is for this cluster"
                ),
            ),
            403 => (FailureKind::Outage(OutageReason::Forbidden), forbidden(asked, status)),
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
            400 | 422 => (FailureKind::Invalid, refusal(asked, status)),
            _ => (FailureKind::Outage(OutageReason::Refused), refusal(asked, status)),
        };
        Failure { kind, message, retry_after: status.retry_after() }
    }
}

fn refusal(asked: Asked<'_>, status: &Status) -> String {
    let (server, resource) = (&asked.origin.server, asked.resource.qualified());
    format!("{server} refuses to {} {resource}: {} {}", asked.verb, status.code, status.message)
}

fn forbidden(asked: Asked<'_>, status: &Status) -> String {
    let resource = asked.resource;
    let user = status.user().unwrap_or(&asked.origin.credential);
    format!(
        "{user} may not {} {}: grant verbs [list watch] by adding to its ClusterRole's rules: \
         - {{apiGroups: [\"{}\"], resources: [\"{}\"], verbs: [\"list\", \"watch\"]}}",
        asked.verb,
        resource.qualified(),
        resource.group(),
        resource.plural(),
    )
}

/// The innermost error is the most concrete one: `Connection refused (os error 111)`.
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
        }
    }

    fn refused(resource: ResourceType, code: i32, message: &str) -> Failure {
        let asked = Asked { origin: &origin(), resource, verb: "list" };
        Failure::refused(asked, &Status { code, message: message.into(), ..Status::default() })
    }

    #[test]
    fn a_403_names_the_missing_rule() {
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
    fn a_401_names_the_credential() {
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
    fn a_connection_error_names_the_address_and_where_it_is_from() {
        let asked = Asked { origin: &origin(), resource: Node::TYPE, verb: "list" };
        let refused = std::io::Error::from_raw_os_error(111);
        let failure = Failure::unreachable(asked, &refused);
        assert_eq!(
            failure.message,
            "cannot reach the API server at https://10.0.0.1:6443: Connection refused (os error 111); \
             check that it runs, and the address in kubeconfig /etc/kc"
        );
        let tls = std::io::Error::other("invalid peer certificate: UnknownIssuer");
        assert!(
            Failure::unreachable(asked, &tls).message.contains("certificate-authority in kubeconfig /etc/kc")
        );
    }
}
