//! The tables say what the rest of the program relies on.

use super::*;

#[test]
fn names_and_numbers_of_a_type_are_unique() {
    for ty in all().map(TypeId::get) {
        for (index, field) in ty.fields.iter().enumerate() {
            let rest = &ty.fields[index + 1..];
            assert!(!rest.iter().any(|other| other.tag == field.tag), "{}.{}", ty.name, field.name);
            assert!(!rest.iter().any(|other| other.name == field.name), "{}.{}", ty.name, field.name);
        }
    }
}

#[test]
fn every_kind_begins_with_its_metadata() {
    let kinds: Vec<&Type> = all().map(TypeId::get).filter(|ty| ty.is_kind).collect();
    assert!(kinds.len() > 15, "{}", kinds.len());
    for ty in kinds.into_iter().filter(|ty| ty.field("metadata").is_some()) {
        assert_eq!((ty.fields[0].name, ty.fields[0].tag), ("metadata", 1), "{}", ty.name);
    }
}

#[test]
fn keys_of_lists_are_fields_of_their_items() {
    for ty in all().map(TypeId::get) {
        for field in &ty.fields {
            let Scalar::Message(item) = field.scalar else { continue };
            let keys: Vec<&str> = match &field.list {
                List::Map(keys) => keys.iter().copied().chain(field.patch.key).collect(),
                _ => field.patch.key.into_iter().collect(),
            };
            for key in keys {
                assert!(item.get().field(key).is_some(), "{}.{}: {key}", ty.name, field.name);
            }
        }
    }
}

#[test]
fn fields_of_inline_messages_are_found() {
    let volume = find("core", "Volume").expect("a type").get();
    assert!(volume.field("configMap").is_some());
    assert_eq!(volume.field("volumeSource").map(|field| field.tag), None);
}
