//! The two formats, where recorded answers do not show it.

use super::*;
use crate::schema::{self, TypeId};
use proptest::prelude::*;
use serde_json::{Value, json};

fn ty(table: &str, name: &str) -> TypeId {
    schema::find(table, name).expect("a type")
}

fn printed(ty: TypeId, bytes: &[u8]) -> String {
    let mut out = Vec::new();
    let what = Printed { kind: Some(("Service", "v1")), revision: Some("7") };
    print(ty, bytes, what, &mut out).expect("a message");
    String::from_utf8(out).expect("text")
}

#[test]
fn fields_are_printed_in_the_order_of_the_schema_with_the_revision() {
    let service = ty("core", "Service");
    let object = json!({
        "metadata": {"name": "web", "labels": {"b": "<2>", "a": "1\u{2028}"}, "resourceVersion": "3"},
        "spec": {"type": "ClusterIP", "ports": [{"port": 80, "targetPort": "http", "name": "x"}]},
    });
    let bytes = encode(service, &object).expect("a Service");
    assert_eq!(
        printed(service, &bytes),
        concat!(
            r#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","resourceVersion":"7","#,
            r#""labels":{"a":"1\u2028","b":"\u003c2\u003e"}},"spec":{"ports":[{"name":"x","port":80,"#,
            r#""targetPort":"http"}],"type":"ClusterIP"},"status":{"loadBalancer":{}}}"#,
        )
    );
}

#[test]
fn only_the_metadata_of_the_object_has_its_revision() {
    let template =
        json!({"spec": {"template": {"metadata": {"resourceVersion": "2"}, "spec": {}}, "selector": {}}});
    let deployment = ty("apps", "Deployment");
    let bytes = encode(deployment, &template).expect("a Deployment");
    let printed = Printed { kind: None, revision: Some("7") };
    let object = decode(deployment, &bytes, printed).expect("a message");
    assert_eq!(object["metadata"]["resourceVersion"], "7");
    assert_eq!(object["spec"]["template"]["metadata"]["resourceVersion"], "2");
}

#[test]
fn an_envelope_can_be_opened() {
    let envelope = Envelope { version: "apps/v1", kind: "Deployment", message: b"\x0a\x00" };
    let mut bytes = Vec::new();
    wrap(envelope, &mut bytes);
    assert_eq!(unwrap(&bytes), Ok(envelope));
    assert_eq!(unwrap(b"k8s"), Err(DecodeError::Malformed));
}

#[test]
fn packed_numbers_and_repeated_messages_are_read() {
    // supplementalGroups of a PodSecurityContext, packed and not.
    let context = ty("core", "PodSecurityContext");
    let tag = context.get().field("supplementalGroups").expect("a field").tag;
    let mut bytes = Vec::new();
    wire::put_bytes(tag, &[1, 2], &mut bytes);
    wire::put_number(tag, 3, &mut bytes);
    let object = decode(context, &bytes, Printed::default()).expect("a message");
    assert_eq!(object, json!({"supplementalGroups": [1, 2, 3]}));
}

#[test]
fn messages_without_an_end_are_refused() {
    let schema = ty("meta", "LabelSelector");
    assert_eq!(decode(schema, b"\x0a\xff", Printed::default()), Err(DecodeError::Malformed));
    assert_eq!(decode(schema, b"\x08\x01", Printed::default()), Err(DecodeError::Malformed));
}

#[test]
fn numbers_out_of_range_are_of_another_type() {
    let service = ty("core", "Service");
    for port in [json!(80.5), json!(3_000_000_000u32), json!(-3_000_000_000i64), json!(true)] {
        let object = json!({"spec": {"ports": [{"port": port}]}});
        let error = encode(service, &object).expect_err("no port");
        assert!(error.to_string().ends_with("ServicePort.spec.ports.port of type int32"), "{error}");
    }
}

#[test]
fn a_message_that_is_there_twice_is_merged() {
    let service = ty("core", "Service");
    let part = |object: Value| encode(ty("core", "ServiceSpec"), &object).expect("a part");
    let mut bytes = Vec::new();
    wire::put_bytes(2, &part(json!({"type": "NodePort", "ports": [{"port": 1}]})), &mut bytes);
    let mut second = Vec::new();
    wire::put_bytes(1, &encode(ty("core", "ServicePort"), &json!({"port": 2})).expect("a port"), &mut second);
    wire::put_bytes(2, &second, &mut bytes);
    let object = decode(service, &bytes, Printed::default()).expect("a message");
    assert_eq!(object["spec"]["type"], "NodePort");
    assert_eq!(object["spec"]["ports"].as_array().map(Vec::len), Some(2));
}

#[test]
fn base64_is_read_as_clients_write_it() {
    let secret = ty("core", "Secret");
    for (text, expected) in [("aGVs\nbG8=", "aGVsbG8="), ("aGVsbG9=", "aGVsbG8="), ("", "")] {
        let bytes = encode(secret, &json!({"data": {"a": text}})).expect("a Secret");
        assert_eq!(decode(secret, &bytes, Printed::default()).expect("a message")["data"]["a"], expected);
    }
    assert!(encode(secret, &json!({"data": {"a": "?"}})).is_err());
}

#[test]
fn what_could_not_be_read_again_is_not_written() {
    let config_map = ty("core", "ConfigMap");
    let mut deep = json!({});
    for _ in 0..200 {
        deep = json!({ "f:a": deep });
    }
    let fields = json!({"metadata": {"managedFields": [{"fieldsV1": deep}]}});
    assert!(encode(config_map, &fields).is_err());
    for time in ["0000-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-01-01T00:00:00+99:99"] {
        assert!(encode(config_map, &json!({"metadata": {"creationTimestamp": time}})).is_err(), "{time}");
    }
    let pod = ty("core", "Pod");
    let limits = json!({"spec": {"containers": [{"resources": {"limits": {"cpu": "abc"}}}]}});
    assert!(encode(pod, &limits).is_err());
}

#[test]
fn a_long_key_with_many_mistakes_is_reported_a_few_times() {
    let key = "k".repeat(1000);
    let twice = format!("{{\"{key}\":{{{}\"a\":0}}}}", "\"a\":0,".repeat(5000));
    let found = check(ty("core", "Service"), twice.as_bytes());
    assert_eq!(found.len(), 20);
    assert_eq!(found[1].to_string(), format!("duplicate field \"{key}.a\""));
}

/// Any JSON.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z<&\"\\\\\u{2028}ü0-9:-]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let name = prop::sample::select(vec![
            "metadata",
            "name",
            "labels",
            "spec",
            "ports",
            "port",
            "targetPort",
            "x",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::hash_map(name, inner, 0..4).prop_map(|fields| {
                Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
            }),
        ]
    })
}

proptest! {
    /// An object that can be encoded is the same after one more round.
    #[test]
    fn what_is_printed_is_encoded_to_the_same_bytes(object in any_json()) {
        let service = ty("core", "Service");
        if let Ok(bytes) = encode(service, &object) {
            let once = decode(service, &bytes, Printed::default()).expect("a message");
            prop_assert_eq!(encode(service, &once), Ok(bytes));
        }
    }

    /// Bytes that are no message are refused, and never lead to a panic.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        for id in [ty("core", "Pod"), ty("apps", "Deployment"), ty("meta", "ObjectMeta")] {
            if let Ok(object) = decode(id, &bytes, Printed::default()) {
                encode(id, &object).expect("what was printed");
            }
        }
        _ = unwrap(&bytes);
    }

    /// A message that was damaged is refused, or printed as an object that is the same after one more round.
    #[test]
    fn a_damaged_message_is_refused_or_means_something(
        object in any_json(), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        for id in [ty("core", "Service"), ty("core", "Pod"), ty("meta", "ObjectMeta"), ty("core", "Event")] {
            let Ok(mut bytes) = encode(id, &object) else { continue };
            for (index, byte) in &damage {
                if !bytes.is_empty() {
                    let index = index.index(bytes.len());
                    bytes[index] = *byte;
                }
            }
            if let Ok(printed) = decode(id, &bytes, Printed::default()) {
                let again = encode(id, &printed).expect("what was printed");
                prop_assert_eq!(decode(id, &again, Printed::default()), Ok(printed));
            }
        }
    }

    #[test]
    fn any_text_can_be_checked_for_fields(text in "[{}\\[\\]\",:a-z0-9 ]{0,60}") {
        check(ty("core", "Service"), text.as_bytes());
    }
}
