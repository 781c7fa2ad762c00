//! Valid and invalid manifest files.

use crate::Rejected;
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

fn parse(file: &str, bytes: &[u8]) -> (Vec<Named>, Vec<Rejected>) {
    super::parse::<Set, Named>(file, bytes)
}

/// The objects of a file without errors.
fn objects(file: &str, text: &str) -> Vec<Named> {
    let (objects, rejected) = parse(file, text.as_bytes());
    assert_eq!(rejected, [], "{text}");
    objects
}

fn names(file: &str, text: &str) -> Vec<String> {
    objects(file, text).into_iter().map(|named| named.0).collect()
}

/// The only error of a file, and its line.
fn rejected(file: &str, text: &str) -> (u64, String) {
    let (_, rejected) = parse(file, text.as_bytes());
    let [only] = &rejected[..] else { panic!("{rejected:?}") };
    (only.line.unwrap_or_default(), only.to_string())
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
    assert_eq!(objects("a.yaml", SERVICE)[0].1, Some(80));
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
        assert!(objects("a.yaml", text).is_empty(), "{text:?}");
    }
    assert!(objects("a.json", " \n").is_empty());
}

#[test]
fn an_invalid_value_is_rejected_with_object_line_and_field() {
    let quoted = SERVICE.replace("port: 80", "port: \"80\"");
    let message = "Service default/web: spec.ports[0].port: invalid type: string \"80\", expected i32";
    assert_eq!(rejected("a.yaml", &quoted), (10, message.to_owned()));
    let json = "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\n\"metadata\":{\"name\":\"web\"},\n\"spec\":{\"ports\":[{\"port\":\"80\"}]}}";
    assert_eq!(rejected("a.json", json), (3, message.to_owned()));
    let (line, label) = rejected("a.yaml", &SERVICE.replace("labels: {app: web}", "labels: {app: 1}"));
    assert_eq!(line, 5);
    assert!(label.starts_with("Service default/web: metadata.labels.app: "), "{label}");
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: n1, namespace: x}\nspec:\n  podCIDRs: 5\n";
    let (line, message) = rejected("a.yaml", node);
    assert_eq!(line, 5);
    assert!(message.starts_with("Node n1: spec.podCIDRs: "), "{message}");
}

#[test]
fn one_invalid_object_does_not_affect_others() {
    let service = |name: &str| SERVICE.replace("name: web", &format!("name: {name}"));
    let bad = service("bad").replace("port: 80", "port: \"80\"");
    for (bad, line) in [(bad.as_str(), 22), ("kind: [\n", 13), ("a: 1\n", 13)] {
        let (objects, rejected) =
            parse("a.yaml", format!("{}---\n{bad}---\n{}", service("a"), service("c")).as_bytes());
        let names: Vec<_> = objects.iter().map(|named| &named.0).collect();
        assert_eq!(names, ["Service default/a", "Service default/c"], "{bad}");
        assert_eq!(rejected.len(), 1, "{bad}");
        assert!(rejected[0].line.is_some_and(|found| (line..line + 2).contains(&found)), "{rejected:?}");
    }
    let json = |port: &str| {
        format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{{\"name\":\"a{port}\"}},\"spec\":{{\"ports\":[{{\"port\":{port}}}]}}}}"
        )
    };
    let (objects, rejected) =
        parse("a.json", format!("{}\n{}\n{}\n{{", json("1"), json("true"), json("3")).as_bytes());
    assert_eq!(objects.len(), 2);
    assert_eq!(rejected.iter().map(|r| r.line).collect::<Vec<_>>(), [Some(2), Some(4)]);
}

#[test]
fn one_invalid_item_of_a_list_does_not_affect_others() {
    let yaml = "apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: a}}
- apiVersion: v1
  kind: Service
  metadata: {name: b}
  spec:
    ports: [{port: true}]
- {apiVersion: v1, kind: List, items: []}
- {apiVersion: v1, kind: Service, metadata: {name: c}}
- 5
";
    let json = r#"{"kind":"List","apiVersion":"v1","items":[
{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"}},

{"apiVersion":"v1","kind":"Service","metadata":{"name":"b"},
 "spec":{"ports":[{"port":true}]}},
{"apiVersion":"v1","kind":"List","items":[]}, {"apiVersion":"v1","kind":"Service","metadata":{"name":"c"}}, 5]}"#;
    for (file, text, lines) in [("a.yaml", yaml, [5, 10, 12]), ("a.json", json, [4, 6, 6])] {
        let (objects, rejected) = parse(file, text.as_bytes());
        let names: Vec<_> = objects.iter().map(|named| &named.0).collect();
        assert_eq!(names, ["Service default/a", "Service default/c"], "{file}");
        let messages: Vec<_> = rejected.iter().map(ToString::to_string).collect();
        assert_eq!(rejected.iter().filter_map(|r| r.line).collect::<Vec<_>>(), lines, "{messages:?}");
        assert_eq!(
            messages[0],
            "Service default/b: spec.ports[0].port: invalid type: boolean `true`, expected i32"
        );
        assert_eq!(messages[1], "a List must not contain a List");
        assert!(messages[2].starts_with("invalid type: "), "{messages:?}");
    }
    // Of a list that is not even YAML, no item is used.
    let (objects, rejected) = parse("a.yaml", yaml.replace("name: c", "name: [").as_bytes());
    assert_eq!((objects.len(), rejected.len(), rejected[0].name.as_str()), (0, 1, ""));
}

#[test]
fn the_error_for_invalid_syntax_has_the_line() {
    let (line, reason) = rejected("a.yaml", &format!("{SERVICE}---\nkind: [\n"));
    assert!((13..=14).contains(&line), "{line}: {reason}");
    assert!(!reason.contains("line"), "the reason must not repeat the line: {reason}");
    assert_eq!(rejected("a.json", "{\n\"kind\":\n").0, 3);
    let tabs = "apiVersion: v1\nkind: Service\nmetadata:\n\tname: a\n";
    assert_eq!(rejected("a.yaml", tabs).0, 4);
}

#[test]
fn the_api_version_must_match_the_kind() {
    let wrong = rejected("a.yaml", &SERVICE.replace("apiVersion: v1", "apiVersion: v2"));
    let message = "Service default/web: apiVersion: \"v2\" is not an apiVersion of Service; use v1";
    assert_eq!(wrong, (1, message.to_owned()));
    let (_, reason) = rejected("a.yaml", "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\n");
    assert!(reason.ends_with("use discovery.k8s.io/v1"), "{reason}");
    assert!(rejected("a.yaml", "kind: Service\nmetadata: {name: a}\n").1.contains("apiVersion"));
    assert!(rejected("a.yaml", "a: 1\n").1.contains("no kind"));
}

#[test]
fn a_misspelled_kind_is_rejected() {
    let text = format!("{SERVICE}---\n{}", SERVICE.replace("kind: Service", "kind: Servcie"));
    let message = "Service default/web: kind: \"Servcie\" is not known; did you mean Service?";
    assert_eq!(rejected("a.yaml", &text), (13, message.to_owned()));
}

#[test]
fn names_are_checked_and_unique() {
    let unnamed = rejected("a.yaml", "apiVersion: v1\nkind: Service\n");
    assert_eq!(unnamed, (1, "Service: metadata.name: is missing".to_owned()));
    for name in ["Web", "a_b", "-a", "a/b", "\"a b\""] {
        let (_, reason) = rejected("a.yaml", &SERVICE.replace("name: web", &format!("name: {name}")));
        assert!(reason.contains("DNS name"), "{reason}");
    }
    let twice = rejected("a.yaml", &format!("{SERVICE}---\n{SERVICE}"));
    let message =
        "Service default/web: it is ignored, because it is in the file twice, first in line 1".to_owned();
    assert_eq!(twice, (13, message));
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
    assert!(rejected("a.yaml", &text).1.contains("budget"));
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let deep = "[".repeat(100_000);
    rejected("a.yaml", &deep);
    rejected("a.json", &deep);
    let deep = format!("kind: Service\napiVersion: v1\nmetadata: {}", "{a: ".repeat(10_000));
    rejected("a.yaml", &deep);
}

#[test]
fn a_large_list_is_within_the_limits() {
    let items: Vec<String> =
        (0..5000).map(|i| format!("- {{apiVersion: v1, kind: Service, metadata: {{name: s{i}}}, spec: {{ports: [{{port: 80}}, {{port: 81}}]}}}}\n")).collect();
    let text = format!("apiVersion: v1\nkind: List\nitems:\n{}", items.concat());
    assert_eq!(objects("a.yaml", &text).len(), 5000);
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
