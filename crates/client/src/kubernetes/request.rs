//! The requests of a list and watch, as values.
//!
//! In: a [`ResourceType`] and a [`Selection`]. Out: URIs. No I/O.

use portway_api::ResourceType;
use std::fmt::Write;

/// Objects per page of a list. With 10 endpoints per slice, a page of EndpointSlices is less than a megabyte, so it is
/// transferred long before the server's request time-out, even if the consumer is slow.
const PAGE_SIZE: u32 = 500;

/// The objects of a resource to list and watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Namespace; all namespaces if there is none.
    pub namespace: Option<String>,
    /// Label selector, as in `kubectl -l`.
    pub label_selector: Option<String>,
    /// Field selector, as in `metadata.name=node-1`.
    pub field_selector: Option<String>,
    /// If the server does not support a field of the field selector, the objects are requested without the selector;
    /// the consumer ignores the additional ones.
    pub fields_are_optional: bool,
    /// A resource that the server does not serve, or that may not be read, is treated as an empty list.
    pub optional: bool,
}

impl Selection {
    /// Every object of a resource.
    pub fn all() -> Self {
        Selection::default()
    }

    /// Objects with these labels, as in `kubectl -l`.
    pub fn labels(selector: &str) -> Self {
        Selection { label_selector: Some(selector.to_owned()), ..Selection::default() }
    }

    /// Objects with these fields, as in `kubectl --field-selector`.
    pub fn fields(selector: &str) -> Self {
        Selection { field_selector: Some(selector.to_owned()), ..Selection::default() }
    }
}

/// A request of a list and watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Every object and then every change (KEP-3157). The server streams the objects from its watch cache as soon as
    /// the cache is not older than `version`, or, if that is empty, as new as etcd.
    Stream { version: String },
    /// Every object in one response, from the watch cache, not older than `version`; `0` accepts any age.
    CachedList { version: String },
    /// A page of a list that is read from etcd: the first, or the one that the token identifies.
    Page { continue_token: Option<String> },
    /// Every change since a version.
    Watch { version: String },
}

impl Request {
    /// The RBAC verb that the request needs.
    pub(super) fn verb(&self) -> &'static str {
        if self.is_watch() { "watch" } else { "list" }
    }

    /// Whether the response is a stream of events.
    pub(super) fn is_watch(&self) -> bool {
        matches!(self, Request::Stream { .. } | Request::Watch { .. })
    }

    /// Path and query.
    pub(super) fn uri(&self, resource: ResourceType, selection: &Selection, timeout_seconds: u32) -> String {
        let mut uri = resource.path(selection.namespace.as_deref());
        match self {
            Request::Stream { version } => {
                let _ = write!(uri, "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
                let _ = write!(uri, "&allowWatchBookmarks=true&timeoutSeconds={timeout_seconds}");
                parameter(&mut uri, "resourceVersion", Some(version));
            }
            Request::CachedList { version } => {
                let _ = write!(uri, "?resourceVersion={version}");
            }
            Request::Page { continue_token } => {
                let _ = write!(uri, "?limit={PAGE_SIZE}");
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

/// Adds a query parameter, unless its value is missing or empty.
pub(super) fn parameter(uri: &mut String, name: &str, value: Option<&str>) {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return };
    let _ = write!(uri, "{}{name}=", if uri.contains('?') { '&' } else { '?' });
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
    use portway_api::{EndpointSlice, Node, Resource, Service};

    #[test]
    fn pages_have_the_selectors() {
        let selection = Selection::labels("!service.kubernetes.io/headless,a=b c");
        assert_eq!(
            Request::Page { continue_token: None }.uri(EndpointSlice::TYPE, &selection, 300),
            "/apis/discovery.k8s.io/v1/endpointslices?limit=500\
             &labelSelector=%21service.kubernetes.io%2Fheadless%2Ca%3Db%20c"
        );
        let second = Request::Page { continue_token: Some("a+b=".into()) };
        assert_eq!(
            second.uri(Service::TYPE, &Selection::all(), 300),
            "/api/v1/services?limit=500&continue=a%2Bb%3D"
        );
    }

    #[test]
    fn a_watch_requests_bookmarks_and_has_its_version() {
        assert_eq!(
            Request::Watch { version: "42".into() }.uri(
                Node::TYPE,
                &Selection::fields("metadata.name=n1"),
                300
            ),
            "/api/v1/nodes?watch=true&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=42\
             &fieldSelector=metadata.name%3Dn1"
        );
    }

    #[test]
    fn a_stream_requests_initial_events_and_a_cached_list_is_not_paged() {
        let uri = |request: Request| request.uri(Service::TYPE, &Selection::all(), 300);
        let stream = "/api/v1/services?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                      &allowWatchBookmarks=true&timeoutSeconds=300";
        assert_eq!(uri(Request::Stream { version: String::new() }), stream);
        assert_eq!(uri(Request::Stream { version: "7".into() }), format!("{stream}&resourceVersion=7"));
        assert_eq!(uri(Request::CachedList { version: "0".into() }), "/api/v1/services?resourceVersion=0");
    }

    #[test]
    fn a_namespace_is_in_the_path() {
        let selection = Selection { namespace: Some("shop".into()), ..Selection::all() };
        assert_eq!(
            Request::CachedList { version: "9".into() }.uri(Service::TYPE, &selection, 300),
            "/api/v1/namespaces/shop/services?resourceVersion=9"
        );
    }
}
