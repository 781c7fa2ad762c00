//! Valid and invalid items and frames, in both formats.

use super::*;
use portway_api::{Node, Service};

fn service() -> Service {
    Service {
        metadata: Some(ObjectMeta {
            name: "web".into(),
            namespace: "default".into(),
            uid: "u1".into(),
            resource_version: "9".into(),
            ..ObjectMeta::default()
        }),
        ..Service::default()
    }
}

/// An object in an envelope that begins with the type, as the server sends it.
fn enveloped(raw: Vec<u8>) -> Bytes {
    let unknown = Unknown { raw: raw.into() };
    [MAGIC, b"\x0a\x04\x0a\x02v1", &unknown.encode_to_vec()].concat().into()
}

fn event(kind: &str, raw: Vec<u8>) -> Vec<u8> {
    WatchEvent { kind: kind.into(), object: Some(RawExtension { raw: enveloped(raw) }) }.encode_to_vec()
}

fn read(bytes: Vec<u8>) -> Frame<Service> {
    frame(Format::Protobuf, bytes.into()).unwrap()
}

#[test]
fn a_change_is_decoded_with_and_without_an_outer_envelope() {
    let apply = Event::Apply(service());
    let expected = Frame::Change { version: "9".into(), change: Ok(apply) };
    let plain = event("ADDED", service().encode_to_vec());
    assert_eq!(read(enveloped(plain.clone()).to_vec()), expected);
    assert_eq!(read(plain), expected);
    assert_eq!(read(event("MODIFIED", service().encode_to_vec())), expected);
}

#[test]
fn only_the_metadata_of_a_deleted_object_is_decoded() {
    let change = Ok(Event::Delete { namespace: "default".into(), name: "web".into() });
    let expected = Frame::Change { version: "9".into(), change };
    assert_eq!(read(event("DELETED", service().encode_to_vec())), expected);
    let json = br#"{"type":"DELETED","object":{"metadata":{"name":"web","namespace":"default","resourceVersion":"9"},"spec":5}}"#;
    assert_eq!(frame::<Service>(Format::Json, Bytes::from_static(json)), Ok(expected));
}

#[test]
fn bookmarks_errors_and_unknown_event_types() {
    let bookmark = |initial_end| Frame::Bookmark { version: "9".into(), initial_end };
    assert_eq!(read(event("BOOKMARK", service().encode_to_vec())), bookmark(false));
    let mut last = service();
    last.metadata.as_mut().unwrap().annotations.insert(INITIAL_EVENTS_END.into(), "true".into());
    assert_eq!(read(event("BOOKMARK", last.encode_to_vec())), bookmark(true));
    let status = Status { code: 410, reason: "Expired".into(), ..Status::default() };
    assert_eq!(read(event("ERROR", status.encode_to_vec())), Frame::Error(status));
    assert_eq!(read(event("PAUSED", Vec::new())), Frame::Unknown("PAUSED".into()));
}

#[test]
fn an_undecodable_object_is_rejected_by_name_and_its_version_is_kept() {
    // A string field that is not UTF-8: spec.clusterIP.
    let mut bytes = service().encode_to_vec();
    bytes.extend_from_slice(b"\x12\x03\x1a\x01\xff");
    let Frame::Change { version, change: Err(rejected) } = read(event("MODIFIED", bytes)) else { panic!() };
    assert_eq!(version, "9");
    assert_eq!(
        (rejected.namespace.as_str(), rejected.name.as_str(), rejected.uid.as_str()),
        ("default", "web", "u1")
    );
    assert!(rejected.reason.contains("UTF-8"), "{}", rejected.reason);
}

#[test]
fn a_json_item_of_the_wrong_type_is_rejected_by_name() {
    let json = Bytes::from_static(br#"{"metadata":{"name":"web"},"spec":{"ports":[{"port":"80"}]}}"#);
    let rejected = item::<Service>(Format::Json, &json).unwrap_err();
    assert_eq!(rejected.name, "web");
    assert!(rejected.reason.contains("expected i32"), "{}", rejected.reason);
}

#[test]
fn an_object_without_a_name_is_rejected() {
    assert!(item::<Node>(Format::Protobuf, &Bytes::new()).is_err());
}

#[test]
fn a_frame_that_is_not_an_event_is_malformed() {
    assert!(frame::<Node>(Format::Protobuf, Bytes::from_static(b"\xff\xff")).is_err());
    assert!(frame::<Node>(Format::Protobuf, Bytes::from_static(b"k8s\0")).is_err());
    assert!(frame::<Node>(Format::Json, Bytes::from_static(b"{}")).is_err());
}
