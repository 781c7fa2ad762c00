//! Lists and watches in both formats, in chunks of every size.

use super::*;
use proptest::prelude::*;
use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(bytes = "bytes", tag = "1")]
    type_meta: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
    #[prost(string, tag = "4")]
    content_type: String,
}

#[derive(Clone, PartialEq, Message)]
struct RawList {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    items: Vec<Bytes>,
    #[prost(uint64, tag = "9")]
    unknown_field: u64,
}

fn protobuf(items: &[&[u8]]) -> Vec<u8> {
    let raw = RawList {
        metadata: Some(ListMeta { resource_version: "7".into(), continue_token: "next".into() }),
        items: items.iter().map(|item| Bytes::copy_from_slice(item)).collect(),
        unknown_field: 300,
    };
    let unknown = Unknown {
        type_meta: Bytes::from_static(b"\x0a\x02v1"),
        raw: raw.encode_to_vec().into(),
        content_type: "x".into(),
    };
    [b"k8s\0".to_vec(), unknown.encode_to_vec()].concat()
}

/// Feeds `bytes` in chunks of `size` and collects items and metadata.
fn read(format: Format, bytes: &[u8], size: usize) -> Result<(Vec<Bytes>, ListMeta), Malformed> {
    let mut list = List::new(format);
    let mut items = Vec::new();
    for chunk in bytes.chunks(size) {
        list.push(chunk);
        while let Some(item) = list.next()? {
            items.push(item);
        }
    }
    Ok((items, list.finish()?))
}

fn frames(format: Format, bytes: &[u8], size: usize) -> Result<Vec<Bytes>, Malformed> {
    let mut stream = Frames::new(format);
    let mut all = Vec::new();
    for chunk in bytes.chunks(size) {
        stream.push(chunk);
        while let Some(frame) = stream.next()? {
            all.push(frame);
        }
    }
    Ok(all)
}

#[test]
fn a_protobuf_list_is_split_for_every_chunk_size() {
    let bytes = protobuf(&[b"one", b"", &[b'x'; 300]]);
    for size in 1..=bytes.len() {
        let (items, meta) = read(Format::Protobuf, &bytes, size).unwrap();
        assert_eq!(items, [&b"one"[..], b"", &[b'x'; 300]], "in chunks of {size}");
        assert_eq!((meta.resource_version.as_str(), meta.continue_token.as_str()), ("7", "next"));
    }
}

#[test]
fn a_json_list_is_split_for_every_chunk_size() {
    let text =
        br#" {"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"n\"]}"},
        "items":[ {"a":"}\\\"]"} , {"b":[1,{}]},{} ],"more":12 } "#;
    for size in 1..=text.len() {
        let (items, meta) = read(Format::Json, text, size).unwrap();
        assert_eq!(items, [&br#"{"a":"}\\\"]"}"#[..], br#"{"b":[1,{}]}"#, b"{}"], "in chunks of {size}");
        assert_eq!((meta.resource_version.as_str(), meta.continue_token.as_str()), ("7", "n\"]}"));
    }
}

#[test]
fn the_items_of_an_empty_json_list_may_be_null() {
    for items in ["null", "[]", "[ ]"] {
        let text = format!(r#"{{"metadata":{{"resourceVersion":"3"}},"items":{items}}}"#);
        let (items, meta) = read(Format::Json, text.as_bytes(), 5).unwrap();
        assert!(items.is_empty());
        assert_eq!(meta.resource_version, "3");
    }
}

#[test]
fn an_incomplete_list_is_an_error() {
    let bytes = protobuf(&[b"one", b"two"]);
    // Only the last field, a content type, may be missing without an error.
    for cut in 0..bytes.len() - 3 {
        assert!(read(Format::Protobuf, &bytes[..cut], 7).is_err(), "cut at {cut}");
    }
    let text = br#"{"metadata":{"resourceVersion":"7"},"items":[{"a":1}]}"#;
    for cut in 0..text.len() {
        assert!(read(Format::Json, &text[..cut], 7).is_err(), "cut at {cut}");
    }
}

#[test]
fn bytes_that_are_not_a_list_are_an_error() {
    assert!(read(Format::Protobuf, b"<html></html>", 5).is_err());
    assert!(read(Format::Json, b"<html></html>", 5).is_err());
    assert!(read(Format::Json, br#"{"items":[{} {}]}"#, 50).is_err());
    let longer_than_its_list = b"k8s\0\x12\x03\x12\x7f\x00";
    assert!(read(Format::Protobuf, longer_than_its_list, 50).is_err());
}

#[test]
fn an_excessive_length_is_refused_before_it_is_buffered() {
    let giant = [&b"k8s\0\x12"[..], b"\xff\xff\xff\xff\x0f", b"\x12\xff\xff\xff\x7f"].concat();
    assert!(read(Format::Protobuf, &giant, 50).is_err());
    assert!(frames(Format::Protobuf, &[0xff; 8], 8).is_err());
}

#[test]
fn a_watch_is_split_for_every_chunk_size() {
    let bytes = b"\0\0\0\x03one\0\0\0\0\0\0\0\x01x\0\0";
    for size in 1..=bytes.len() {
        assert_eq!(frames(Format::Protobuf, bytes, size).unwrap(), [&b"one"[..], b"", b"x"]);
    }
    let text = b"{\"a\":1}\n{\"b\":\"}\"}{\"c\":{}}\n{\"cut";
    for size in 1..=text.len() {
        let all = frames(Format::Json, text, size).unwrap();
        assert_eq!(all, [&b"{\"a\":1}"[..], b"{\"b\":\"}\"}", b"{\"c\":{}}"]);
    }
}

#[test]
fn the_content_type_determines_the_format() {
    assert_eq!(Format::of("application/vnd.kubernetes.protobuf;stream=watch"), Format::Protobuf);
    assert_eq!(Format::of("application/vnd.kubernetes.protobuf"), Format::Protobuf);
    assert_eq!(Format::of("application/json"), Format::Json);
    assert_eq!(Format::of(""), Format::Json);
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), size in 1usize..50) {
        let with_magic = [b"k8s\0", &bytes[..]].concat();
        let _ = read(Format::Protobuf, &bytes, size);
        let _ = read(Format::Protobuf, &with_magic, size);
        let _ = read(Format::Json, &bytes, size);
        let _ = frames(Format::Protobuf, &bytes, size);
        let _ = frames(Format::Json, &bytes, size);
    }

    #[test]
    fn arbitrary_brackets_do_not_panic(text in r#"[\[\]{}",:\\ a1]{0,40}"#, size in 1usize..10) {
        let _ = read(Format::Json, text.as_bytes(), size);
        let _ = frames(Format::Json, text.as_bytes(), size);
    }
}
