//! The kinds as API resources, and the requests for them as values.
//!
//! In: a [`Selection`]. Out: URIs. No I/O.

use portway_model::api::Kind;
use std::fmt::Write;

/// Objects per page of a list. At 10 endpoints a page of EndpointSlices is less than a megabyte, so it is through
/// long before the server's request time-out, however slowly the consumer takes it.
const PAGE: u32 = 500;

/// What to list and watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Which kind, in all namespaces.
    pub kind: Kind,
    /// Label selector, as in `kubectl -l`.
    pub label_selector: Option<String>,
    /// Field selector, as in `metadata.name=node-1`.
    pub field_selector: Option<String>,
}

impl Selection {
    /// Every object of a kind.
    pub fn all(kind: Kind) -> Self {
        Selection { kind, label_selector: None, field_selector: None }
    }
}

/// A kind as the API server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resource {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) plural: &'static str,
}

impl Resource {
    pub(super) fn of(kind: Kind) -> Self {
        let (group, plural) = match kind {
            Kind::Service => ("", "services"),
            Kind::Node => ("", "nodes"),
            Kind::EndpointSlice => ("discovery.k8s.io", "endpointslices"),
            Kind::ServiceCidr => ("networking.k8s.io", "servicecidrs"),
        };
        Resource { group, version: "v1", plural }
    }

    /// `services`, `endpointslices.discovery.k8s.io`: as RBAC's messages and `kubectl auth can-i` write it.
    pub(super) fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    fn path(&self) -> String {
        let Resource { group, version, plural } = self;
        if group.is_empty() {
            format!("/api/{version}/{plural}")
        } else {
            format!("/apis/{group}/{version}/{plural}")
        }
    }
}

/// The next thing to ask the API server for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// A page of the list: the first, or the one the token leads to.
    List { continue_token: Option<String> },
    /// Everything that happened since a version.
    Watch { version: String },
}

impl Request {
    /// The RBAC verb it takes.
    pub(super) fn verb(&self) -> &'static str {
        match self {
            Request::List { .. } => "list",
            Request::Watch { .. } => "watch",
        }
    }

    /// Path and query.
    ///
    /// Lists leave `resourceVersion` out. client-go's reflector first asks for `resourceVersion=0`, whatever the
    /// watch cache holds; but servers ignore `limit` there and answer with everything at once, and what the
    /// cache of a server that has just started holds may be older than what this node has already
    /// programmed. Without it the list is consistent and is paged; servers since 1.31 read it from the cache all
    /// the same. A watch then goes on from the version of the list.
    pub(super) fn uri(&self, selection: &Selection, timeout_seconds: u32) -> String {
        let mut uri = Resource::of(selection.kind).path();
        match self {
            Request::List { continue_token } => {
                let _ = write!(uri, "?limit={PAGE}");
                parameter(&mut uri, "continue", continue_token.as_deref());
            }
            Request::Watch { version } => {
                let _ = write!(uri, "?watch=true&allowWatchBookmarks=true&timeoutSeconds={timeout_seconds}");
                parameter(&mut uri, "resourceVersion", Some(version));
            }
        }
        parameter(&mut uri, "labelSelector", selection.label_selector.as_deref());
        parameter(&mut uri, "fieldSelector", selection.field_selector.as_deref());
        uri
    }
}

fn parameter(uri: &mut String, name: &str, value: Option<&str>) {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return };
    let _ = write!(uri, "&{name}=");
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => uri.push(char::from(byte)),
            _ => {
                let _ = write!(uri, "%{byte:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_paged_and_carries_the_selectors() {
        let selection = Selection {
            label_selector: Some("!service.kubernetes.io/headless,a=b c".into()),
            ..Selection::all(Kind::EndpointSlice)
        };
        assert_eq!(
            Request::List { continue_token: None }.uri(&selection, 300),
            "/apis/discovery.k8s.io/v1/endpointslices?limit=500\
             &labelSelector=%21service.kubernetes.io%2Fheadless%2Ca%3Db%20c"
        );
        assert_eq!(
            Request::List { continue_token: Some("a+b=".into()) }.uri(&Selection::all(Kind::Service), 300),
            "/api/v1/services?limit=500&continue=a%2Bb%3D"
        );
    }

    #[test]
    fn a_watch_asks_for_bookmarks_and_names_its_version() {
        let selection =
            Selection { field_selector: Some("metadata.name=n1".into()), ..Selection::all(Kind::Node) };
        assert_eq!(
            Request::Watch { version: "42".into() }.uri(&selection, 300),
            "/api/v1/nodes?watch=true&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=42\
             &fieldSelector=metadata.name%3Dn1"
        );
    }

    #[test]
    fn names_are_qualified_by_their_group() {
        assert_eq!(Resource::of(Kind::Service).qualified(), "services");
        assert_eq!(Resource::of(Kind::ServiceCidr).qualified(), "servicecidrs.networking.k8s.io");
    }
}
