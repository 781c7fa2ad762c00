//! Strategic merge patches: lists are merged by a key of their items, as the schema says, and directives in the patch
//! replace, delete or order.

use super::{PatchError, in_go};
use crate::schema::{Field, Scalar, Shape, Type, TypeId};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

/// The directive of an object or of an item of a list.
const PATCH: &str = "$patch";
/// The directive with the fields that are kept.
const RETAIN_KEYS: &str = "$retainKeys";
/// The directive with values to remove from a list, before the name of the list.
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
/// The directive with the order of a list, before its name.
const ORDER: &str = "$setElementOrder/";

type Object = Map<String, Value>;

/// Applies a patch to an object of a type.
pub fn apply(ty: TypeId, target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    if patch.is_null() {
        return Ok(());
    }
    let (Value::Object(object), Value::Object(patch)) = (target, patch) else {
        return Err(PatchError::Malformed("a strategic merge patch has to be an object".to_owned()));
    };
    merge_object(Some(ty.get()), object, patch)
}

/// The type of the items or values of a field.
fn inner(field: Option<&Field>) -> Option<&'static Type> {
    match field?.scalar {
        Scalar::Message(ty) => Some(ty.get()),
        _ => None,
    }
}

fn merge_object(ty: Option<&'static Type>, target: &mut Object, patch: &Object) -> Result<(), PatchError> {
    match patch.get(PATCH).map(|directive| (directive.as_str(), directive)) {
        None | Some((Some("merge"), _)) => {}
        Some((Some("replace"), _)) => {
            *target = patch.iter().filter(|(name, _)| *name != PATCH).map(owned).collect();
            return Ok(());
        }
        Some((Some("delete"), _)) => {
            target.clear();
            return Ok(());
        }
        Some((_, directive)) => return Err(unknown_directive(directive, patch)),
    }
    retain_keys(target, patch)?;
    for (name, list) in patch {
        if let Some(list_name) = name.strip_prefix(DELETE_FROM) {
            delete_values(target.get_mut(list_name), list);
        } else if let Some(list_name) = name.strip_prefix(ORDER)
            && let Some(ty) = ty
            && ty.field(list_name).is_none()
        {
            let text =
                format!("unable to find api field in struct {} for the json field {list_name:?}", ty.name);
            return Err(PatchError::Unsuitable(text));
        }
    }
    let lists = patch.keys().filter_map(|name| name.strip_prefix(ORDER));
    let before: HashMap<&str, Vec<Value>> =
        lists.filter_map(|name| Some((name, target.get(name)?.as_array()?.clone()))).collect();
    for (name, value) in patch.iter().filter(|(name, _)| !name.starts_with('$')) {
        let field = ty.and_then(|ty| ty.field(name));
        merge_field(field, target, name, value)?;
    }
    for (name, order) in patch {
        if let Some(list_name) = name.strip_prefix(ORDER) {
            let key = ty.and_then(|ty| ty.field(list_name)).and_then(|field| field.patch.key);
            if let (Some(Value::Array(list)), Value::Array(order)) = (target.get_mut(list_name), order) {
                arrange(list, order, before.get(list_name).map_or(&[], Vec::as_slice), key);
            }
        }
    }
    Ok(())
}

fn owned((name, value): (&String, &Value)) -> (String, Value) {
    (name.clone(), value.clone())
}

fn unknown_directive(directive: &Value, patch: &Object) -> PatchError {
    let patch = in_go(&Value::Object(patch.clone()));
    PatchError::Unsuitable(format!("unknown patch type: {} in map: {patch}", in_go(directive)))
}

/// Removes the fields that the patch does not list.
fn retain_keys(target: &mut Object, patch: &Object) -> Result<(), PatchError> {
    let Some(listed) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let malformed = || PatchError::Malformed("invalid patch format of retainKeys".to_owned());
    let listed = listed.as_array().ok_or_else(malformed)?;
    let is_listed = |name: &String| listed.iter().any(|listed| listed.as_str() == Some(name));
    if patch.iter().any(|(name, value)| !value.is_null() && !name.starts_with('$') && !is_listed(name)) {
        return Err(malformed());
    }
    target.retain(|name, _| is_listed(name));
    Ok(())
}

fn delete_values(list: Option<&mut Value>, values: &Value) {
    if let (Some(Value::Array(list)), Value::Array(values)) = (list, values) {
        list.retain(|item| !values.contains(item));
    }
}

fn merge_field(
    field: Option<&Field>,
    target: &mut Object,
    name: &str,
    value: &Value,
) -> Result<(), PatchError> {
    if value.is_null() {
        target.remove(name);
        return Ok(());
    }
    let ty = inner(field);
    // Below a map of objects, each value is one.
    let is_map = field.is_some_and(|field| field.shape == Shape::Map);
    match (target.get_mut(name), value) {
        (Some(Value::Object(object)), Value::Object(patch)) => match is_map {
            true => merge_map(ty, object, patch),
            false => merge_object(ty, object, patch),
        },
        (Some(Value::Array(list)), Value::Array(patch)) if field.is_some_and(|field| field.patch.merge) => {
            merge_list(field, list, patch)
        }
        // Such a list is replaced as it is.
        (Some(list @ Value::Array(_)), Value::Array(_)) => {
            *list = value.clone();
            Ok(())
        }
        _ => {
            match new_value(value) {
                Some(value) => _ = target.insert(name.to_owned(), value),
                None => _ = target.remove(name),
            }
            Ok(())
        }
    }
}

fn merge_map(ty: Option<&'static Type>, target: &mut Object, patch: &Object) -> Result<(), PatchError> {
    if ty.is_none() || patch.contains_key(PATCH) {
        return merge_object(None, target, patch);
    }
    for (name, value) in patch {
        match (target.get_mut(name), value) {
            (_, Value::Null) => _ = target.remove(name),
            (Some(Value::Object(object)), Value::Object(patch)) => merge_object(ty, object, patch)?,
            (_, value) => _ = target.insert(name.clone(), value.clone()),
        }
    }
    Ok(())
}

/// A value of the patch that the object does not have yet: it is taken as it is, without nulls, and without what a
/// directive is about. `None` if that is all of it.
fn new_value(value: &Value) -> Option<Value> {
    match value {
        Value::Object(patch) if patch.contains_key(PATCH) => None,
        Value::Object(patch) => {
            let fields = patch.iter().filter(|(name, value)| !value.is_null() && !name.starts_with('$'));
            let fields = fields.filter_map(|(name, value)| Some((name.clone(), new_value(value)?)));
            Some(Value::Object(fields.collect()))
        }
        Value::Array(items) => Some(Value::Array(items.iter().filter_map(new_value).collect())),
        value => Some(value.clone()),
    }
}

fn merge_list(field: Option<&Field>, target: &mut Vec<Value>, patch: &[Value]) -> Result<(), PatchError> {
    let before = target.clone();
    let Some(key) = field.and_then(|field| field.patch.key) else {
        let mut known: HashSet<String> = target.iter().map(Value::to_string).collect();
        target.extend(patch.iter().filter(|value| known.insert(value.to_string())).cloned());
        arrange(target, patch, &before, None);
        return Ok(());
    };
    let is_object = |value: &Value| value.is_object();
    if !patch.iter().all(is_object) {
        let lists =
            format!("[{} {}]", in_go(&Value::Array(target.clone())), in_go(&Value::Array(patch.to_vec())));
        return Err(PatchError::Unsuitable(format!("list element types are not identical: {lists}")));
    }
    let items = || patch.iter().filter_map(Value::as_object);
    if items().any(|item| item.get(PATCH).and_then(Value::as_str) == Some("replace")) {
        let kept = items().filter(|item| !item.contains_key(PATCH));
        *target = kept.map(|item| Value::Object(item.clone())).collect();
        return Ok(());
    }
    // Deletions come first, so that an item can be deleted and created anew.
    for item in items() {
        match item.get(PATCH).map(|directive| (directive.as_str(), directive)) {
            None => {}
            Some((Some("merge"), _)) => {
                let why = "merging lists cannot yet be specified in the patch";
                return Err(PatchError::Unsuitable(why.to_owned()));
            }
            Some((Some("delete"), _)) => {
                let wanted = item.get(key).ok_or_else(|| missing_key(item, key))?;
                target.retain(|known| known.get(key) != Some(wanted));
            }
            Some((_, directive)) => return Err(unknown_directive(directive, item)),
        }
    }
    for item in items().filter(|item| !item.contains_key(PATCH)) {
        let wanted = item.get(key).ok_or_else(|| missing_key(item, key))?;
        let known = target.iter_mut().find(|known| known.get(key) == Some(wanted));
        match known.and_then(Value::as_object_mut) {
            Some(known) => merge_object(inner(field), known, item)?,
            None => target.extend(new_value(&Value::Object(item.clone()))),
        }
    }
    arrange(target, patch, &before, Some(key));
    Ok(())
}

fn missing_key(item: &Object, key: &str) -> PatchError {
    let item = in_go(&Value::Object(item.clone()));
    PatchError::Unsuitable(format!("map: {item} does not contain declared merge key: {key}"))
}

/// Orders a list: items that `order` names are in that order; the others come before the first of these that followed
/// them in the list `before` the patch.
fn arrange(list: &mut Vec<Value>, order: &[Value], before: &[Value], key: Option<&str>) {
    let identity = |item: &Value| match key {
        Some(key) => item.get(key).map(Value::to_string).unwrap_or_default(),
        None => item.to_string(),
    };
    let places = |items: &[Value]| -> HashMap<String, usize> {
        // Of equal ones the first counts.
        items.iter().enumerate().rev().map(|(place, item)| (identity(item), place)).collect()
    };
    let (wanted, before) = (places(order), places(before));
    let items = std::mem::take(list).into_iter().map(|item| (identity(&item), item));
    let (mut named, others): (Vec<_>, Vec<_>) =
        items.partition(|(identity, _)| wanted.contains_key(identity));
    named.sort_by_key(|(identity, _)| wanted.get(identity));
    let mut others = others.into_iter().peekable();
    for (identity, item) in named {
        let follows = |(other, _): &(String, Value)| match (before.get(other), before.get(&identity)) {
            (Some(other), Some(item)) => other < item,
            _ => false,
        };
        while let Some((_, other)) = others.next_if(follows) {
            list.push(other);
        }
        list.push(item);
    }
    list.extend(others.map(|(_, other)| other));
}
