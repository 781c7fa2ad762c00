//! Valid and invalid manifest files.

use super::ParseError;
use portway_api::{EndpointSlice, Event, Node, ObjectMeta, Resource, Service, ServiceCidr};
use proptest::prelude::*;

const SERVICE: &str = "apiVersion: v1
kind: Service
metadata:
  name: web
  labels: {app: web}
spec:
  selector: {app: web}
  clusterIP: 10.96.0.10
  ports:
  - port: 80
    targetPort: http
";

type Set = (Service, EndpointSlice, Node, ServiceCidr);

/// An object of any resource of the set, by its name and first port.
#[derive(Debug)]
struct Named(String, Option<i32>);

macro_rules! named {
    ($($resource:ident $port:expr;)*) => {$(
        impl From<Event<$resource>> for Named {
            fn from(event: Event<$resource>) -> Named {
                let Event::Apply(object) = event else { panic!("{event:?}") };
                let ObjectMeta { namespace, name, .. } = object.metadata().unwrap();
                Named(format!("{} {namespace}/{name}", $resource::TYPE), $port(&object))
            }
        }
    )*};
}

named! {
    Service |o: &Service| Some(o.spec.as_ref()?.ports.first()?.port);
    EndpointSlice |_: &EndpointSlice| None;
    Node |_: &Node| None;
    ServiceCidr |_: &ServiceCidr| None;
}

fn parse(file: &str, bytes: &[u8]) -> Result<Vec<Named>, ParseError> {
    super::parse::<Set, Named>(file, bytes)
}

fn names(file: &str, text: &str) -> Vec<String> {
    parse(file, text.as_bytes()).unwrap().into_iter().map(|named| named.0).collect()
}

fn parse_error(file: &str, text: &str) -> (u64, String) {
    let ParseError { line, reason } = parse(file, text.as_bytes()).unwrap_err();
    (line.unwrap_or_default(), reason)
}

#[test]
fn resources_of_the_set_are_parsed_and_others_skipped() {
    let text = format!(
        "{SERVICE}---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: Web_1}}
spec: {{ports: nonsense, items: 5}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: shop}}
addressType: IPv4
endpoints: [{{addresses: [10.1.0.1], conditions: {{ready: true}}}}]
ports: [{{port: 8080}}]
---
apiVersion: v1
kind: Node
metadata: {{name: n1, namespace: ignored}}
---
apiVersion: networking.k8s.io/v1beta1
kind: ServiceCIDR
metadata: {{name: kubernetes}}
spec: {{cidrs: [10.96.0.0/12]}}
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {{name: other}}
spec: {{ports: 7}}
"
    );
    let expected = ["Service default/web", "EndpointSlice shop/web-1", "Node /n1", "ServiceCIDR /kubernetes"];
    assert_eq!(names("a.yaml", &text), expected);
    assert_eq!(parse("a.yaml", SERVICE.as_bytes()).unwrap()[0].1, Some(80));
}

#[test]
fn items_of_lists_are_parsed_wherever_the_kind_is() {
    let text = "apiVersion: v1
items:
- {apiVersion: v1, kind: Service, metadata: {name: a}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: b}, data: {x: y}}
- metadata: {name: c, namespace: d}
  kind: EndpointSlice
  apiVersion: discovery.k8s.io/v1
-
kind: List
";
    assert_eq!(names("a.yaml", text), ["Service default/a", "EndpointSlice d/c"]);
    let json = r#"{"apiVersion":"v1","items":[{"kind":"Node","apiVersion":"v1","metadata":{"name":"n"}}],"kind":"List"}"#;
    assert_eq!(names("a.json", json), ["Node /n"]);
    assert_eq!(names("a.yaml", json), ["Node /n"]);
    let typed = "kind: ServiceList\napiVersion: v1\nitems: [{metadata: {name: a}}]";
    assert_eq!(names("a.yaml", typed), ["Service default/a"]);
    for items in ["", "items:", "items: []", "items: null"] {
        assert!(names("a.yaml", &format!("apiVersion: v1\nkind: List\n{items}\n")).is_empty());
    }
}

#[test]
fn a_file_without_objects_is_valid() {
    for text in ["", "\n\n", "# only a comment\n", "---\n---\n", "null\n"] {
        assert!(parse("a.yaml", text.as_bytes()).unwrap().is_empty(), "{text:?}");
    }
    assert!(parse("a.json", b" \n").unwrap().is_empty());
}

#[test]
fn the_error_for_an_invalid_value_has_the_line() {
    let quoted = SERVICE.replace("port: 80", "port: \"80\"");
    let (line, reason) = parse_error("a.yaml", &quoted);
    assert_eq!(line, 10, "{reason}");
    let second = format!("{SERVICE}---\n{quoted}");
    let (line, reason) = parse_error("a.yaml", &second);
    assert_eq!(line, 22, "{reason}");
    assert!(!reason.contains("line"), "the reason must not repeat the line: {reason}");
    let json = "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\n\"metadata\":{\"name\":\"a\"},\n\"spec\":{\"ports\":[{\"port\":\"80\"}]}}";
    let (line, reason) = parse_error("a.json", json);
    assert_eq!(line, 3);
    assert_eq!(reason, "invalid type: string \"80\", expected i32");
    let in_list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata: {name: n}\n  spec:\n    podCIDRs: 5\n";
    assert_eq!(parse_error("a.yaml", in_list).0, 8);
}

#[test]
fn the_error_for_invalid_syntax_has_the_line() {
    let (line, reason) = parse_error("a.yaml", &format!("{SERVICE}---\nkind: [\n"));
    assert!((13..=14).contains(&line), "{line}: {reason}");
    assert_eq!(parse_error("a.json", "{\n\"kind\":\n").0, 3);
    let tabs = "apiVersion: v1\nkind: Service\nmetadata:\n\tname: a\n";
    assert_eq!(parse_error("a.yaml", tabs).0, 4);
}

#[test]
fn the_api_version_must_match_the_kind() {
    let (line, reason) = parse_error("a.yaml", &SERVICE.replace("apiVersion: v1", "apiVersion: v2"));
    assert_eq!((line, reason.as_str()), (1, "Service has apiVersion \"v2\"; it must be v1"));
    let (_, reason) = parse_error("a.yaml", "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\n");
    assert!(reason.contains("it must be discovery.k8s.io/v1"), "{reason}");
    assert!(parse_error("a.yaml", "kind: Service\nmetadata: {name: a}\n").1.contains("apiVersion"));
    assert!(parse_error("a.yaml", "a: 1\n").1.contains("no kind"));
}

#[test]
fn names_are_checked_and_unique() {
    assert!(parse_error("a.yaml", "apiVersion: v1\nkind: Service\n").1.contains("no metadata.name"));
    for name in ["Web", "a_b", "-a", "a/b", "\"a b\""] {
        let (_, reason) = parse_error("a.yaml", &SERVICE.replace("name: web", &format!("name: {name}")));
        assert!(reason.contains("DNS name"), "{reason}");
    }
    let (line, reason) = parse_error("a.yaml", &format!("{SERVICE}---\n{SERVICE}"));
    assert_eq!((line, reason.as_str()), (13, "Service default/web is in the file twice, first in line 1"));
}

#[test]
fn the_expansion_of_aliases_is_limited() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let below = format!("*a{}", level - 1);
        text.push_str(&format!("a{level}: &a{level} [{}]\n", vec![below; 10].join(", ")));
    }
    text.push_str("apiVersion: v1\nkind: Service\nmetadata: {name: a}\n");
    // Expanded, these are 10^12 items: only a limit ends the parsing.
    assert!(parse("a.yaml", text.as_bytes()).is_err());
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let deep = "[".repeat(100_000);
    assert!(parse("a.yaml", deep.as_bytes()).is_err());
    assert!(parse("a.json", deep.as_bytes()).is_err());
    let deep = format!("kind: Service\napiVersion: v1\nmetadata: {}", "{a: ".repeat(10_000));
    assert!(parse("a.yaml", deep.as_bytes()).is_err());
}

#[test]
fn a_large_list_is_within_the_limits() {
    let items: Vec<String> =
        (0..5000).map(|i| format!("- {{apiVersion: v1, kind: Service, metadata: {{name: s{i}}}, spec: {{ports: [{{port: 80}}, {{port: 81}}]}}}}\n")).collect();
    let text = format!("apiVersion: v1\nkind: List\nitems:\n{}", items.concat());
    assert_eq!(parse("a.yaml", text.as_bytes()).unwrap().len(), 5000);
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in "(\\PC|[\n\t:{}\\[\\]&*!|>-]){0,80}") {
        let _ = parse("a.yaml", text.as_bytes());
        let _ = parse("a.json", text.as_bytes());
    }

    #[test]
    fn a_corrupted_byte_does_not_panic(at in 0usize..SERVICE.len(), with in any::<u8>()) {
        let mut bytes = SERVICE.as_bytes().to_vec();
        bytes[at] = with;
        let _ = parse("a.yaml", &bytes);
    }
}
