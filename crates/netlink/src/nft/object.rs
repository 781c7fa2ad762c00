//! Chains, rules, sets and elements: values, and their two directions on the wire.

use super::expr::Expr;
use super::wire::{DATA_VALUE, DATA_VERDICT, LIST_ELEM, TABLE, VERDICT_CHAIN, VERDICT_CODE};
use crate::Malformed;
use crate::message::{Attr, Attrs, Buffer};
use std::fmt;
use std::sync::Arc;

/// Up to `N` bytes in place: keys and values come by the hundred thousand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bytes<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

/// An element's key: at the longest two IPv6 addresses, a protocol and a port.
pub type Key = Bytes<40>;
/// An element's value: at the longest an IPv6 address and a port.
pub type Value = Bytes<20>;

impl<const N: usize> Bytes<N> {
    /// None yet.
    pub const fn new() -> Self {
        Bytes { len: 0, bytes: [0; N] }
    }

    /// Appends `field`, padded to a multiple of four, as the parts of a concatenation are.
    ///
    /// # Panics
    /// If it grows past `N`: which keys there are is fixed when this program is written.
    pub fn field(mut self, field: &[u8]) -> Self {
        let start = self.len as usize;
        self.bytes[start..start + field.len()].copy_from_slice(field);
        self.len += field.len().next_multiple_of(4) as u8;
        self
    }

    /// `bytes` as they are.
    pub fn copy(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() > N {
            return Err(Malformed::Unknown { what: "element length", value: bytes.len() as u64 });
        }
        let mut all = Bytes { len: bytes.len() as u8, bytes: [0; N] };
        all.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(all)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

impl<const N: usize> Default for Bytes<N> {
    fn default() -> Self {
        Bytes::new()
    }
}

impl<const N: usize> fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Thrown away.
    Drop,
    /// Let through.
    Accept,
    /// Back to the calling chain.
    Return,
    /// Into a chain, and back behind this rule.
    Jump(Arc<str>),
    /// Into a chain, and not back.
    Goto(Arc<str>),
}

impl Verdict {
    pub(super) fn encode(&self, b: &mut Buffer) {
        let (code, chain) = match self {
            Verdict::Drop => (0, None),
            Verdict::Accept => (1, None),
            Verdict::Jump(chain) => (-3, Some(chain)),
            Verdict::Goto(chain) => (-4, Some(chain)),
            Verdict::Return => (-5, None),
        };
        b.nest(DATA_VERDICT, |b| {
            b.attr_be32(VERDICT_CODE, code as u32);
            if let Some(chain) = chain {
                b.attr_str(VERDICT_CHAIN, chain);
            }
        });
    }

    pub(super) fn decode(data: Attr<'_>) -> Result<Verdict, Malformed> {
        let verdict = data.nested().need(DATA_VERDICT, "verdict")?.nested();
        let chain = || -> Result<Arc<str>, Malformed> {
            Ok(verdict.clone().need(VERDICT_CHAIN, "verdict's chain")?.str("verdict's chain")?.into())
        };
        match verdict.clone().need(VERDICT_CODE, "verdict's code")?.be32("verdict's code")? as i32 {
            0 => Ok(Verdict::Drop),
            1 => Ok(Verdict::Accept),
            -3 => Ok(Verdict::Jump(chain()?)),
            -4 => Ok(Verdict::Goto(chain()?)),
            -5 => Ok(Verdict::Return),
            other => Err(Malformed::Unknown { what: "verdict", value: other as u32 as u64 }),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Drop => f.write_str("drop"),
            Verdict::Accept => f.write_str("accept"),
            Verdict::Return => f.write_str("return"),
            Verdict::Jump(chain) => write!(f, "jump -> {chain}"),
            Verdict::Goto(chain) => write!(f, "goto -> {chain}"),
        }
    }
}

/// What a base chain may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainKind {
    /// Accept and drop.
    Filter,
    /// Translate addresses; sees only the first packet of a connection.
    Nat,
}

/// Where in a packet's path a base chain hooks in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPoint {
    /// Before routing.
    Prerouting,
    /// To this machine.
    Input,
    /// Through this machine.
    Forward,
    /// From this machine.
    Output,
    /// After routing.
    Postrouting,
}

/// A base chain's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// What it may do.
    pub kind: ChainKind,
    /// Where it hooks in.
    pub point: HookPoint,
    /// Lower comes first.
    pub priority: i32,
    /// What becomes of a packet that no rule decides about: it is let through, or dropped.
    pub accept: bool,
}

/// A chain, without its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: Arc<str>,
    /// Where it hooks in, if it is a base chain.
    pub hook: Option<Hook>,
}

impl Chain {
    pub(super) fn encode(&self, table: &str, b: &mut Buffer) {
        b.attr_str(TABLE, table);
        b.attr_str(3, &self.name);
        if let Some(hook) = self.hook {
            b.nest(4, |b| {
                b.attr_be32(1, hook.point as u32);
                b.attr_be32(2, hook.priority as u32);
            });
            b.attr_be32(5, hook.accept.into());
            b.attr_str(7, if hook.kind == ChainKind::Nat { "nat" } else { "filter" });
        }
    }

    pub(super) fn decode(body: Attrs<'_>) -> Result<Chain, Malformed> {
        let name = body.clone().need(3, "chain name")?.str("chain name")?.into();
        let Some(hook) = body.clone().find(4) else { return Ok(Chain { name, hook: None }) };
        let point = match hook.nested().need(1, "hook number")?.be32("hook number")? {
            0 => HookPoint::Prerouting,
            1 => HookPoint::Input,
            2 => HookPoint::Forward,
            3 => HookPoint::Output,
            4 => HookPoint::Postrouting,
            other => return Err(Malformed::Unknown { what: "hook number", value: other.into() }),
        };
        let kind = match body.clone().need(7, "chain type")?.str("chain type")? {
            "nat" => ChainKind::Nat,
            _ => ChainKind::Filter,
        };
        let priority = hook.nested().need(2, "hook priority")?.be32("hook priority")? as i32;
        let accept = body.find(5).map_or(Ok(1), |a| a.be32("chain policy"))? == 1;
        Ok(Chain { name, hook: Some(Hook { kind, point, priority, accept }) })
    }
}

/// A rule of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it does.
    pub exprs: Vec<Expr>,
}

impl Rule {
    pub(super) fn encode(&self, table: &str, chain: &str, b: &mut Buffer) {
        b.attr_str(TABLE, table);
        b.attr_str(2, chain);
        b.nest(4, |b| self.exprs.iter().for_each(|e| e.encode(b)));
    }

    /// The chain it is in, and the rule.
    pub(super) fn decode(body: Attrs<'_>) -> Result<(Arc<str>, Rule), Malformed> {
        let chain = body.clone().need(2, "rule's chain")?.str("rule's chain")?.into();
        let list = body.find(4).map_or(crate::message::attrs(&[]), |a| a.nested());
        let exprs = list.filter(|a| a.kind == LIST_ELEM).map(Expr::decode).collect::<Result<_, _>>()?;
        Ok((chain, Rule { exprs }))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, e) in self.exprs.iter().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{e}")?;
        }
        Ok(())
    }
}

/// A set or map, without its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: Arc<str>,
    /// `NFT_SET_*` flags.
    pub flags: u32,
    /// nft's type ids of the key's parts, six bits each.
    pub key_type: u32,
    /// Length of the key.
    pub key_len: u32,
    /// Type id and length of the value, if it is a map.
    pub value: Option<(u32, u32)>,
    /// How long elements live, in milliseconds; 0 for ever.
    pub timeout: u64,
    /// How many elements it takes; 0 for any number.
    pub size: u32,
    /// Lengths of the key's parts, for sets of ranges of concatenations.
    pub fields: Vec<u32>,
    /// What nft needs to know to print it.
    pub userdata: Vec<u8>,
}

/// Set flag: it has no name of its own, and goes with the rule it is written in.
pub const SET_ANONYMOUS: u32 = 0x1;
/// Set flag: elements are ranges.
pub const SET_INTERVAL: u32 = 0x4;
/// Set flag: it is a map.
pub const SET_MAP: u32 = 0x8;
/// Set flag: elements may expire.
pub const SET_TIMEOUT: u32 = 0x10;
/// Set flag: rules may add elements.
pub const SET_DYNAMIC: u32 = 0x20;
/// Set flag: ranges of concatenations.
pub const SET_CONCAT: u32 = 0x80;
/// The value type of verdict maps.
pub const VALUE_VERDICT: (u32, u32) = (0xffff_ff00, 16);

impl Set {
    pub(super) fn encode(&self, table: &str, id: u32, b: &mut Buffer) {
        b.attr_str(TABLE, table);
        b.attr_str(2, &self.name);
        b.attr_be32(3, self.flags);
        b.attr_be32(4, self.key_type);
        b.attr_be32(5, self.key_len);
        if let Some((kind, len)) = self.value {
            b.attr_be32(6, kind);
            b.attr_be32(7, len);
        }
        b.attr_be32(10, id);
        if self.timeout != 0 {
            b.attr_be64(11, self.timeout);
        }
        if self.size != 0 || !self.fields.is_empty() {
            b.nest(9, |b| {
                if self.size != 0 {
                    b.attr_be32(1, self.size);
                }
                if !self.fields.is_empty() {
                    let field = |b: &mut Buffer, len: &u32| b.nest(LIST_ELEM, |b| b.attr_be32(1, *len));
                    b.nest(2, |b| self.fields.iter().for_each(|len| field(b, len)));
                }
            });
        }
        if !self.userdata.is_empty() {
            b.attr(13, &self.userdata);
        }
    }

    pub(super) fn decode(body: Attrs<'_>) -> Result<Set, Malformed> {
        let number = |kind, what| body.clone().find(kind).map_or(Ok(0), |a| a.be32(what));
        let value = match body.clone().find(6) {
            Some(kind) => Some((kind.be32("value type")?, number(7, "value length")?)),
            None => None,
        };
        let desc = body.clone().find(9).map_or(crate::message::attrs(&[]), |a| a.nested());
        let fields = desc.clone().find(2).map_or(crate::message::attrs(&[]), |a| a.nested());
        Ok(Set {
            name: body.clone().need(2, "set name")?.str("set name")?.into(),
            flags: number(3, "set flags")?,
            key_type: number(4, "key type")?,
            key_len: number(5, "key length")?,
            // The kernel reports every verdict's length as the size of its own struct.
            value: value.map(|v| if v.0 == VALUE_VERDICT.0 { VALUE_VERDICT } else { v }),
            timeout: body.clone().find(11).map_or(Ok(0), |a| a.be64("set time-out"))?,
            size: desc.find(1).map_or(Ok(0), |a| a.be32("set size"))?,
            fields: fields
                .map(|f| f.nested().need(1, "field length")?.be32("field length"))
                .collect::<Result<_, _>>()?,
            userdata: body.clone().find(13).map_or(Vec::new(), |a| a.value.to_vec()),
        })
    }
}

/// A map element's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Plain bytes.
    Value(Value),
    /// A verdict.
    Verdict(Verdict),
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// Its key, or where its range begins.
    pub key: Key,
    /// Where its range ends, inclusive (sets with [`SET_CONCAT`]).
    pub key_end: Option<Box<Key>>,
    /// It marks the end of a range, exclusive (sets with [`SET_INTERVAL`] only).
    pub interval_end: bool,
    /// Its value, if it is in a map.
    pub data: Option<Data>,
    /// Comment and flags for nft.
    pub userdata: Option<Arc<[u8]>>,
}

impl Element {
    /// A plain element of a set.
    pub fn key(key: Key) -> Element {
        Element { key, key_end: None, interval_end: false, data: None, userdata: None }
    }

    /// An element of a map.
    pub fn map(key: Key, data: Data) -> Element {
        Element { data: Some(data), ..Element::key(key) }
    }

    /// With a comment that `nft list` shows. Longer ones than nft reads back are cut.
    pub fn comment(mut self, text: &str) -> Element {
        let text = &text[..text.floor_char_boundary(127)];
        let mut bytes = vec![0, text.len() as u8 + 1];
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(0);
        self.userdata = Some(bytes.into());
        self
    }

    pub(super) fn encode(&self, b: &mut Buffer, with_data: bool) {
        b.nest(LIST_ELEM, |b| {
            if self.interval_end {
                b.attr_be32(3, 1);
            }
            b.nest(1, |b| b.attr(DATA_VALUE, self.key.as_slice()));
            if let Some(end) = &self.key_end {
                b.nest(10, |b| b.attr(DATA_VALUE, end.as_slice()));
            }
            if !with_data {
                return;
            }
            match &self.data {
                Some(Data::Value(value)) => b.nest(2, |b| b.attr(DATA_VALUE, value.as_slice())),
                Some(Data::Verdict(verdict)) => b.nest(2, |b| verdict.encode(b)),
                None => {}
            }
            if let Some(userdata) = &self.userdata {
                b.attr(6, userdata);
            }
        });
    }

    pub(super) fn decode(attr: Attr<'_>) -> Result<Element, Malformed> {
        let key_of = |a: Attr<'_>| Key::copy(a.nested().need(DATA_VALUE, "element key")?.value);
        let body = attr.nested();
        let data = match body.clone().find(2) {
            Some(a) if a.nested().find(DATA_VERDICT).is_some() => match Verdict::decode(a) {
                // A verdict we never give: the element is somebody else's, and is told from ours by having none.
                Err(Malformed::Unknown { .. }) => None,
                verdict => Some(Data::Verdict(verdict?)),
            },
            Some(a) => Some(Data::Value(Value::copy(a.nested().need(DATA_VALUE, "element value")?.value)?)),
            None => None,
        };
        Ok(Element {
            key: key_of(body.clone().need(1, "element key")?)?,
            key_end: body.clone().find(10).map(key_of).transpose()?.map(Box::new),
            interval_end: body.clone().find(3).map_or(Ok(0), |a| a.be32("element flags"))? & 1 != 0,
            data,
            userdata: body.find(6).map(|a| a.value.into()),
        })
    }
}
