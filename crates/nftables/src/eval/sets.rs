//! Looks up a key in a set: exact, interval, or interval of a concatenation.

use crate::table::Table;
use portway_netlink::nft::object::{SET_CONCAT, SET_INTERVAL};
use portway_netlink::nft::{Element, Set};

/// The element that has `key`, or whose range contains it.
pub(super) fn find<'t>(table: &'t Table, set: &Set, key: &[u8]) -> Option<&'t Element> {
    let elements = table.elements.get(&set.name)?;
    if set.flags & SET_CONCAT != 0 {
        return elements.iter().find(|e| covers(e, &set.fields, key));
    }
    // Elements are sorted by key: the number of elements whose key is not greater.
    let count = elements.partition_point(|e| e.key.as_slice() <= key);
    let nearest = elements[..count].last()?;
    if set.flags & SET_INTERVAL == 0 {
        return (nearest.key.as_slice() == key).then_some(nearest);
    }
    // Where a range begins at the end of another, the address belongs to the range that begins.
    elements[..count].iter().rev().take_while(|e| e.key == nearest.key).find(|e| !e.interval_end)
}

/// Whether every field of `key` is within the element's range for that field.
fn covers(element: &Element, fields: &[u32], key: &[u8]) -> bool {
    let first = element.key.as_slice();
    let last = element.key_end.as_deref().map_or(first, |end| end.as_slice());
    let mut at = 0;
    fields.iter().all(|len| {
        let part = at..at + *len as usize;
        at = part.end.next_multiple_of(4);
        match (first.get(part.clone()), last.get(part.clone()), key.get(part)) {
            (Some(first), Some(last), Some(key)) => first <= key && key <= last,
            _ => false,
        }
    })
}
