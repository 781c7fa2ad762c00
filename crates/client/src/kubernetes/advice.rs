//! What to tell people when the API server cannot be read.
//!
//! In: what went wrong, and with which request. Out: a [`Failure`] whose message says what happened and what to do
//! next. Every message names the address, the credential or the RBAC rule it is about.

use super::access::Origin;
use super::resource::Resource;
use super::status::Status;
use crate::Cause;
use portway_model::api::Kind;
use std::error::Error;
use std::time::Duration;

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) what: What,
    /// For people.
    pub(super) message: String,
    /// When the server wants to be asked again.
    pub(super) retry_after: Option<Duration>,
}

/// What the next step depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The version or the page asked for is gone: list anew.
    Expired,
    /// A response that had begun broke off. Happens whenever a server restarts.
    Dropped,
    /// Anything that people should hear of.
    Trouble(Cause),
}

/// Who asks for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) origin: &'a Origin,
    pub(super) kind: Kind,
    pub(super) verb: &'static str,
}

impl Failure {
    fn new(what: What, message: String) -> Self {
        Failure { what, message, retry_after: None }
    }

    /// The response broke off after it had begun.
    pub(super) fn dropped(asked: Asked<'_>, error: &dyn Error) -> Self {
        let message = format!("the connection to {} broke: {}", asked.origin.server, root(error));
        Failure::new(What::Dropped, message)
    }

    /// The response was not what it should be.
    pub(super) fn garbled(asked: Asked<'_>, error: &dyn Error) -> Self {
        let Origin { server, address_from, .. } = asked.origin;
        let message =
            format!("{server}: {error}; check that the address in {address_from} is an API server's");
        Failure::new(What::Trouble(Cause::Refused), message)
    }

    /// There was nothing to log in with, so nothing was sent.
    pub(super) fn no_credential(asked: Asked<'_>, reason: &str) -> Self {
        let Origin { server, credential, .. } = asked.origin;
        let message = format!("cannot log in to {server} with {credential}: {reason}");
        Failure::new(What::Trouble(Cause::Unauthorized), message)
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
        Failure::new(What::Trouble(Cause::Unreachable), message)
    }

    /// The server said no.
    pub(super) fn refused(asked: Asked<'_>, status: &Status) -> Self {
        let resource = Resource::of(asked.kind);
        let Origin { server, credential, .. } = asked.origin;
        let text = &status.message;
        let (what, message) = match status.code {
            _ if status.is_expired() => (What::Expired, text.clone()),
            401 => (
                What::Trouble(Cause::Unauthorized),
                format!(
                    "{server} does not accept {credential} ({text}): renew it, and check that it is for this cluster"
                ),
            ),
            403 => (What::Trouble(Cause::Forbidden), forbidden(asked, status)),
            404 => (
                What::Trouble(Cause::NotServed),
                format!(
                    "{server} does not serve {} in version {}: {text}",
                    resource.qualified(),
                    resource.version
                ),
            ),
            429 | 503 => {
                (What::Trouble(Cause::Overloaded), format!("{server} is overloaded or starting: {text}"))
            }
            code => (
                What::Trouble(Cause::Refused),
                format!("{server} refuses to {} {}: {code} {text}", asked.verb, resource.qualified()),
            ),
        };
        Failure { what, message, retry_after: status.retry_after() }
    }
}

fn forbidden(asked: Asked<'_>, status: &Status) -> String {
    let resource = Resource::of(asked.kind);
    let who = status.user().unwrap_or(&asked.origin.credential);
    format!(
        "{who} may not {} {}: grant verbs [list watch] by adding to its ClusterRole's rules: \
         - {{apiGroups: [\"{}\"], resources: [\"{}\"], verbs: [\"list\", \"watch\"]}}",
        asked.verb,
        resource.qualified(),
        resource.group,
        resource.plural,
    )
}

/// The innermost error says it plainest: `Connection refused (os error 111)`.
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

    fn origin() -> Origin {
        Origin {
            server: "https://10.0.0.1:6443".into(),
            address_from: "kubeconfig /etc/kc".into(),
            credential: "the token in /etc/token".into(),
        }
    }

    fn refused(kind: Kind, code: i32, message: &str) -> Failure {
        let asked = Asked { origin: &origin(), kind, verb: "list" };
        Failure::refused(asked, &Status { code, message: message.into(), ..Status::default() })
    }

    #[test]
    fn a_403_names_the_missing_rule() {
        let failure = refused(
            Kind::EndpointSlice,
            403,
            "endpointslices.discovery.k8s.io is forbidden: User \"system:node-proxier\" cannot list resource",
        );
        assert_eq!(failure.what, What::Trouble(Cause::Forbidden));
        assert_eq!(
            failure.message,
            "system:node-proxier may not list endpointslices.discovery.k8s.io: grant verbs [list watch] by adding to \
             its ClusterRole's rules: - {apiGroups: [\"discovery.k8s.io\"], resources: [\"endpointslices\"], verbs: \
             [\"list\", \"watch\"]}"
        );
    }

    #[test]
    fn a_401_names_the_credential() {
        let failure = refused(Kind::Service, 401, "Unauthorized");
        assert_eq!(failure.what, What::Trouble(Cause::Unauthorized));
        assert!(failure.message.contains("the token in /etc/token"), "{}", failure.message);
    }

    #[test]
    fn each_status_has_its_cause() {
        let what = |code| refused(Kind::Node, code, "x").what;
        assert_eq!(what(410), What::Expired);
        assert_eq!(what(404), What::Trouble(Cause::NotServed));
        assert_eq!(what(429), What::Trouble(Cause::Overloaded));
        assert_eq!(what(503), What::Trouble(Cause::Overloaded));
        assert_eq!(what(500), What::Trouble(Cause::Refused));
    }

    #[test]
    fn a_connection_error_names_the_address_and_where_it_is_from() {
        let asked = Asked { origin: &origin(), kind: Kind::Node, verb: "list" };
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
