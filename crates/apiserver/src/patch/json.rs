//! JSON patches (RFC 6902), with the liberties that kube-apiserver takes: a field that is replaced need not exist, one
//! that is copied neither, and negative positions count from the end of a list.

use super::PatchError;
use serde_json::Value;

/// Operations of one patch at most.
const MAX_OPERATIONS: usize = 10_000;
/// Bytes that one patch copies at most: each copy may double what the next one copies.
const MAX_COPIED: usize = 3 << 20;
/// Values within values at most.
const MAX_DEPTH: usize = 100;

/// Applies a patch: all of its operations, or none.
pub fn apply(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    if patch.is_null() {
        return Ok(());
    }
    let Value::Array(operations) = patch else {
        return Err(PatchError::Malformed("a JSON patch has to be a list of operations".to_owned()));
    };
    if operations.len() > MAX_OPERATIONS {
        let text = format!("the patch has {} operations, and {MAX_OPERATIONS} are allowed", operations.len());
        return Err(PatchError::Malformed(text));
    }
    let mut changed = target.clone();
    let mut copied = 0;
    for operation in operations {
        step(&mut changed, operation, &mut copied)?;
    }
    *target = changed;
    Ok(())
}

/// Takes one step. `copied` are the bytes that were copied so far.
fn step(target: &mut Value, operation: &Value, copied: &mut usize) -> Result<(), PatchError> {
    let text = |name: &str| operation.get(name).and_then(Value::as_str);
    let kind = text("op").unwrap_or_default();
    let path = text("path").ok_or_else(|| refused(kind, "", "it has no path"))?;
    if path.is_empty() && kind != "test" {
        return Err(refused(kind, path, "the whole object cannot be changed"));
    }
    let value = || operation.get("value").cloned().unwrap_or_default();
    let from = || text("from").ok_or_else(|| refused(kind, path, "it has no from"));
    match kind {
        "add" => add(target, path, value()),
        "remove" => remove(target, path).map(drop),
        // A field need not be there; an item of a list has to be.
        "replace" if is_field(target, path) => add(target, path, value()),
        "replace" => {
            let found = find(target, path).ok_or_else(|| refused(kind, path, "there is no value"))?;
            *found = value();
            Ok(())
        }
        "move" => {
            let from = from()?;
            if path.strip_prefix(from).is_some_and(|rest| rest.starts_with('/')) {
                return Err(refused(kind, path, "a value cannot be moved into itself"));
            }
            let value = remove(target, from)?;
            add(target, path, value)
        }
        "copy" => {
            let from = from()?;
            let value = find(target, from).cloned();
            if value.is_none() && !is_field(target, from) {
                return Err(refused(kind, from, "there is no value"));
            }
            let value = value.unwrap_or_default();
            *copied += value.to_string().len();
            if *copied > MAX_COPIED {
                let text = format!("the copy operations of the patch copy more than {MAX_COPIED} bytes");
                return Err(PatchError::Malformed(text));
            }
            add(target, path, value)
        }
        "test" => {
            let found = find(target, path).map(|found| found.clone()).unwrap_or_default();
            if found == value() { Ok(()) } else { Err(refused(kind, path, "the value is another one")) }
        }
        other => Err(refused(other, path, "there is no such operation")),
    }
}

fn refused(kind: &str, path: &str, why: &str) -> PatchError {
    PatchError::Inapplicable(format!("operation {kind:?} at {path:?}: {why}"))
}

/// The parts of a path.
fn parts(path: &str) -> Option<Vec<String>> {
    let rest = match path {
        "" => return Some(Vec::new()),
        path => path.strip_prefix('/')?,
    };
    Some(rest.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect())
}

/// A position in a list of this length.
fn index(part: &str, length: usize) -> Option<usize> {
    let (digits, from_end) = match part.strip_prefix('-') {
        Some(digits) => (digits, true),
        None => (part, false),
    };
    let is_number = digits == "0" || !digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit());
    let number: usize = digits.parse().ok().filter(|_| is_number)?;
    let at = if from_end { length.checked_sub(number)? } else { number };
    Some(at).filter(|at| *at < length)
}

/// Whether a path names a field of an object that is there, whether or not the field is.
fn is_field(target: &mut Value, path: &str) -> bool {
    let parts = parts(path).unwrap_or_default();
    let before = parts.split_last().map(|(_, before)| before);
    before.and_then(|before| descend(target, before)).is_some_and(|parent| parent.is_object())
}

fn descend<'a>(target: &'a mut Value, parts: &[String]) -> Option<&'a mut Value> {
    parts.iter().try_fold(target, |value, part| match value {
        Value::Object(fields) => fields.get_mut(part),
        Value::Array(items) => {
            let at = index(part, items.len())?;
            items.get_mut(at)
        }
        _ => None,
    })
}

fn find<'a>(target: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    descend(target, &parts(path)?)
}

fn add(target: &mut Value, path: &str, value: Value) -> Result<(), PatchError> {
    let missing = || refused("add", path, "there is nothing that could have this value");
    let parts = parts(path).ok_or_else(missing)?;
    let (last, before) = parts.split_last().ok_or_else(missing)?;
    if parts.len() + depth(&value) > MAX_DEPTH {
        return Err(refused("add", path, "values would be nested too deeply"));
    }
    match descend(target, before) {
        Some(Value::Object(fields)) => {
            fields.insert(last.clone(), value);
            Ok(())
        }
        Some(Value::Array(items)) => {
            let at = if last == "-" { Some(items.len()) } else { index(last, items.len() + 1) };
            let at = at.ok_or_else(missing)?;
            items.insert(at, value);
            Ok(())
        }
        _ => Err(missing()),
    }
}

/// How deep values are nested in a value, which is limited where values come in.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn remove(target: &mut Value, path: &str) -> Result<Value, PatchError> {
    let missing = || refused("remove", path, "there is no value");
    let parts = parts(path).ok_or_else(missing)?;
    let (last, before) = parts.split_last().ok_or_else(missing)?;
    match descend(target, before) {
        Some(Value::Object(fields)) => fields.remove(last).ok_or_else(missing),
        Some(Value::Array(items)) => match index(last, items.len()) {
            Some(at) => Ok(items.remove(at)),
            None => Err(missing()),
        },
        _ => Err(missing()),
    }
}
