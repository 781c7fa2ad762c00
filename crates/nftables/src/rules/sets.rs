//! The definitions of sets and maps. Their user data has the type information that nft expects, so that
//! `nft list ruleset` prints them and `nft -f` loads the output again.

use crate::table::Name;
use portway_netlink::nft::object::{
    SET_CONCAT, SET_DYNAMIC, SET_INTERVAL, SET_MAP, SET_TIMEOUT, VALUE_VERDICT,
};
use portway_netlink::nft::{Family, Set};

/// The fields of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyField {
    Address,
    Protocol,
    Port,
    Index,
}

impl KeyField {
    /// nft's number of the type (`enum datatypes`).
    fn number(self, family: Family) -> u32 {
        match (self, family) {
            (KeyField::Index, _) => 4,
            (KeyField::Address, Family::Ipv4) => 7,
            (KeyField::Address, Family::Ipv6) => 8,
            (KeyField::Protocol, _) => 12,
            (KeyField::Port, _) => 13,
        }
    }

    fn len(self, family: Family) -> u32 {
        match self {
            KeyField::Address => family.address_len(),
            KeyField::Protocol => 1,
            KeyField::Port => 2,
            KeyField::Index => 4,
        }
    }

    /// nft's encoding of the expression of a field (`expr_ops::build_udata`).
    fn typeof_data(self, family: Family) -> Vec<u8> {
        let payload = |header: u32, field: u32| [tlv_u32(0, header), tlv_u32(1, field)].concat();
        let (kind, data): (u32, Vec<u8>) = match (self, family) {
            (KeyField::Address, Family::Ipv4) => (7, payload(12, 12)),
            (KeyField::Address, Family::Ipv6) => (7, payload(13, 9)),
            (KeyField::Protocol, _) => (9, tlv_u32(0, 16)),
            (KeyField::Port, _) => (7, payload(11, 2)),
            (KeyField::Index, _) => (23, [tlv_u32(0, 1), tlv_u32(1, 65_536), tlv_u32(2, 0)].concat()),
        };
        [tlv_u32(0, kind), tlv(1, &data)].concat()
    }
}

fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, value.len() as u8];
    bytes.extend_from_slice(value);
    bytes
}

fn tlv_u32(kind: u8, value: u32) -> Vec<u8> {
    tlv(kind, &value.to_ne_bytes())
}

/// nft's encoding of the expressions of a key or value.
fn typeof_userdata(parts: &[KeyField], family: Family) -> Vec<u8> {
    const CONCAT: u32 = 13;
    if let [part] = parts {
        return part.typeof_data(family);
    }
    let list: Vec<u8> =
        parts.iter().enumerate().flat_map(|(i, p)| tlv(i as u8, &p.typeof_data(family))).collect();
    [tlv_u32(0, CONCAT), tlv(1, &list)].concat()
}

/// nft's number of the byte order of a key or value: 0 for a concatenation, 1 for host order, 2 for network order.
fn byte_order(parts: &[KeyField]) -> u32 {
    match parts {
        [KeyField::Index] => 1,
        [_] => 2,
        _ => 0,
    }
}

/// The definition of a set or map, before it has a name and a family.
struct Shape<'a> {
    key: &'a [KeyField],
    value: Option<&'a [KeyField]>,
    verdict: bool,
    flags: u32,
}

impl Shape<'_> {
    fn build(&self, name: &Name, family: Family) -> Set {
        let kind = |parts: &[KeyField]| parts.iter().fold(0, |t, p| t << 6 | p.number(family));
        let len = |parts: &[KeyField]| match parts {
            [part] => part.len(family),
            _ => parts.iter().map(|p| p.len(family).next_multiple_of(4)).sum(),
        };
        let mut userdata = tlv_u32(0, byte_order(self.key));
        if self.verdict || self.value.is_some() {
            userdata.extend(tlv_u32(1, self.value.map_or(0, byte_order)));
        }
        if self.key.contains(&KeyField::Index) {
            userdata.extend(tlv(3, &typeof_userdata(self.key, family)));
            let value = self
                .value
                .map_or_else(|| [tlv_u32(0, 1), tlv(1, &[])].concat(), |v| typeof_userdata(v, family));
            userdata.extend(tlv(4, &value));
        }
        let map = if self.verdict || self.value.is_some() { SET_MAP } else { 0 };
        Set {
            name: name.clone(),
            flags: self.flags | map,
            key_type: kind(self.key),
            key_len: len(self.key),
            value: if self.verdict { Some(VALUE_VERDICT) } else { self.value.map(|v| (kind(v), len(v))) },
            timeout: 0,
            size: 0,
            fields: if self.flags & SET_CONCAT != 0 {
                self.key.iter().map(|p| p.len(family)).collect()
            } else {
                Vec::new()
            },
            userdata,
        }
    }
}

const VIP: &[KeyField] = &[KeyField::Address, KeyField::Protocol, KeyField::Port];
const NODEPORT: &[KeyField] = &[KeyField::Protocol, KeyField::Port];
const TARGET: &[KeyField] = &[KeyField::Address, KeyField::Port];

fn frontend_parts(with_address: bool) -> &'static [KeyField] {
    if with_address { VIP } else { NODEPORT }
}

/// A map from frontends to verdicts.
pub fn verdict_map(name: &Name, family: Family, with_address: bool) -> Set {
    Shape { key: frontend_parts(with_address), value: None, verdict: true, flags: 0 }.build(name, family)
}

/// A set of frontends.
pub fn frontend_set(name: &Name, family: Family, with_address: bool) -> Set {
    Shape { key: frontend_parts(with_address), value: None, verdict: false, flags: 0 }.build(name, family)
}

/// A map from frontends and an index to endpoints.
pub fn endpoint_map(name: &Name, family: Family, with_address: bool) -> Set {
    let key = [frontend_parts(with_address), &[KeyField::Index]].concat();
    Shape { key: &key, value: Some(TARGET), verdict: false, flags: 0 }.build(name, family)
}

/// A map from an index to verdicts.
pub fn choice_map(name: &Name, family: Family) -> Set {
    Shape { key: &[KeyField::Index], value: None, verdict: true, flags: 0 }.build(name, family)
}

/// The number of clients that can have affinity to one endpoint. Further clients are balanced without affinity.
const CLIENTS: u32 = 1 << 18;

/// A set of clients with affinity, each for this number of seconds.
pub fn client_set(name: &Name, family: Family, seconds: u32) -> Set {
    let flags = SET_DYNAMIC | SET_TIMEOUT;
    let shape = Shape { key: &[KeyField::Address], value: None, verdict: false, flags };
    Set { timeout: u64::from(seconds) * 1000, size: CLIENTS, ..shape.build(name, family) }
}

/// A set of `saddr . daddr`.
pub fn address_pairs(name: &Name, family: Family) -> Set {
    Shape { key: &[KeyField::Address, KeyField::Address], value: None, verdict: false, flags: 0 }
        .build(name, family)
}

/// A set of addresses.
pub fn addresses(name: &Name, family: Family) -> Set {
    Shape { key: &[KeyField::Address], value: None, verdict: false, flags: 0 }.build(name, family)
}

/// A set of address ranges.
pub fn address_ranges(name: &Name, family: Family) -> Set {
    Shape { key: &[KeyField::Address], value: None, verdict: false, flags: SET_INTERVAL }.build(name, family)
}

/// A set of source ranges by frontend.
pub fn source_range_set(name: &Name, family: Family) -> Set {
    let key = [&[KeyField::Address], VIP].concat();
    Shape { key: &key, value: None, verdict: false, flags: SET_INTERVAL | SET_CONCAT }.build(name, family)
}
