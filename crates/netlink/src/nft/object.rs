//! Chains, rules, sets and elements as values, each encoded to attributes and decoded from them.

use super::expr::Expr;
use super::wire::*;
use crate::DecodeError;
use crate::message::{Attr, Attrs, Buffer, attrs};
use std::fmt;
use std::sync::Arc;

/// Up to `N` bytes without a heap allocation: there are hundreds of thousands of keys and values.
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
    /// No bytes.
    pub const fn new() -> Self {
        Bytes { len: 0, bytes: [0; N] }
    }

    /// Appends `field`, padded to a multiple of four bytes as the fields of a concatenation are.
    ///
    /// # Panics
    /// If the result is longer than `N`. The layouts of keys and values are fixed in the code, so this is a bug in the
    /// caller.
    pub fn field(mut self, field: &[u8]) -> Self {
        let start = self.len as usize;
        self.bytes[start..start + field.len()].copy_from_slice(field);
        self.len += field.len().next_multiple_of(4) as u8;
        self
    }

    /// A copy of `bytes`, without padding.
    pub fn copy(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > N {
            return Err(DecodeError::Unknown { field: "element length", value: bytes.len() as u64 });
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

/// The verdict of a rule or of a map's element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Drops the packet.
    Drop,
    /// Accepts the packet.
    Accept,
    /// Returns to the calling chain.
    Return,
    /// Continues in a chain, and returns to the rule after this one.
    Jump(Arc<str>),
    /// Continues in a chain, and does not return.
    Goto(Arc<str>),
}

impl Verdict {
    pub(super) fn encode(&self, b: &mut Buffer) {
        let (code, chain) = match self {
            Verdict::Drop => (NF_DROP, None),
            Verdict::Accept => (NF_ACCEPT, None),
            Verdict::Jump(chain) => (NFT_JUMP, Some(chain)),
            Verdict::Goto(chain) => (NFT_GOTO, Some(chain)),
            Verdict::Return => (NFT_RETURN, None),
        };
        b.nest(NFTA_DATA_VERDICT, |b| {
            b.attr_be32(NFTA_VERDICT_CODE, code as u32);
            if let Some(chain) = chain {
                b.attr_str(NFTA_VERDICT_CHAIN, chain);
            }
        });
    }

    pub(super) fn decode(data: Attr<'_>) -> Result<Verdict, DecodeError> {
        let verdict = data.nested().need(NFTA_DATA_VERDICT, "verdict")?.nested();
        let chain = || -> Result<Arc<str>, DecodeError> {
            Ok(verdict.clone().need(NFTA_VERDICT_CHAIN, "verdict's chain")?.str("verdict's chain")?.into())
        };
        match verdict.clone().need(NFTA_VERDICT_CODE, "verdict's code")?.be32("verdict's code")? as i32 {
            NF_DROP => Ok(Verdict::Drop),
            NF_ACCEPT => Ok(Verdict::Accept),
            NFT_JUMP => Ok(Verdict::Jump(chain()?)),
            NFT_GOTO => Ok(Verdict::Goto(chain()?)),
            NFT_RETURN => Ok(Verdict::Return),
            other => Err(DecodeError::Unknown { field: "verdict", value: other as u32 as u64 }),
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

/// The type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainKind {
    /// Accepts and drops packets.
    Filter,
    /// Translates addresses; sees only the first packet of a connection.
    Nat,
}

/// The netfilter hook of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPoint {
    /// Before routing.
    Prerouting,
    /// Packets to this host.
    Input,
    /// Forwarded packets.
    Forward,
    /// Packets from this host.
    Output,
    /// After routing.
    Postrouting,
}

impl HookPoint {
    const fn number(self) -> u32 {
        match self {
            HookPoint::Prerouting => NF_INET_PRE_ROUTING,
            HookPoint::Input => NF_INET_LOCAL_IN,
            HookPoint::Forward => NF_INET_FORWARD,
            HookPoint::Output => NF_INET_LOCAL_OUT,
            HookPoint::Postrouting => NF_INET_POST_ROUTING,
        }
    }

    fn from_number(number: u32) -> Result<HookPoint, DecodeError> {
        match number {
            NF_INET_PRE_ROUTING => Ok(HookPoint::Prerouting),
            NF_INET_LOCAL_IN => Ok(HookPoint::Input),
            NF_INET_FORWARD => Ok(HookPoint::Forward),
            NF_INET_LOCAL_OUT => Ok(HookPoint::Output),
            NF_INET_POST_ROUTING => Ok(HookPoint::Postrouting),
            other => Err(DecodeError::Unknown { field: "hook number", value: other.into() }),
        }
    }
}

/// The hook of a base chain, and its order and policy there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Type of the chain.
    pub kind: ChainKind,
    /// The netfilter hook.
    pub point: HookPoint,
    /// Order among the chains of the hook; lower comes first.
    pub priority: i32,
    /// The policy: whether a packet that reaches the chain's end is accepted or dropped.
    pub accept: bool,
}

/// A chain, without its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: Arc<str>,
    /// Its hook, if it is a base chain.
    pub hook: Option<Hook>,
}

impl Chain {
    pub(super) fn encode(&self, table: &str, b: &mut Buffer) {
        b.attr_str(NFTA_CHAIN_TABLE, table);
        b.attr_str(NFTA_CHAIN_NAME, &self.name);
        if let Some(hook) = self.hook {
            b.nest(NFTA_CHAIN_HOOK, |b| {
                b.attr_be32(NFTA_HOOK_HOOKNUM, hook.point.number());
                b.attr_be32(NFTA_HOOK_PRIORITY, hook.priority as u32);
            });
            b.attr_be32(NFTA_CHAIN_POLICY, if hook.accept { NF_ACCEPT } else { NF_DROP } as u32);
            b.attr_str(NFTA_CHAIN_TYPE, if hook.kind == ChainKind::Nat { "nat" } else { "filter" });
        }
    }

    pub(super) fn decode(body: Attrs<'_>) -> Result<Chain, DecodeError> {
        let name = body.clone().need(NFTA_CHAIN_NAME, "chain name")?.str("chain name")?.into();
        let Some(hook) = body.clone().find(NFTA_CHAIN_HOOK) else { return Ok(Chain { name, hook: None }) };
        let hook = hook.nested();
        let point = hook.clone().need(NFTA_HOOK_HOOKNUM, "hook number")?.be32("hook number")?;
        let priority = hook.need(NFTA_HOOK_PRIORITY, "hook priority")?.be32("hook priority")?;
        let kind = match body.clone().need(NFTA_CHAIN_TYPE, "chain type")?.str("chain type")? {
            "nat" => ChainKind::Nat,
            _ => ChainKind::Filter,
        };
        let policy = body.find(NFTA_CHAIN_POLICY).map(|a| a.be32("chain policy")).transpose()?;
        let hook = Hook {
            kind,
            point: HookPoint::from_number(point)?,
            priority: priority as i32,
            accept: policy.is_none_or(|policy| policy == NF_ACCEPT as u32),
        };
        Ok(Chain { name, hook: Some(hook) })
    }
}

/// A rule of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its expressions, in order.
    pub exprs: Vec<Expr>,
}

impl Rule {
    pub(super) fn encode(&self, table: &str, chain: &str, b: &mut Buffer) {
        b.attr_str(NFTA_RULE_TABLE, table);
        b.attr_str(NFTA_RULE_CHAIN, chain);
        b.nest(NFTA_RULE_EXPRESSIONS, |b| self.exprs.iter().for_each(|e| e.encode(b)));
    }

    /// Decodes the name of the rule's chain, and the rule.
    pub(super) fn decode(body: Attrs<'_>) -> Result<(Arc<str>, Rule), DecodeError> {
        let chain = body.clone().need(NFTA_RULE_CHAIN, "rule's chain")?.str("rule's chain")?.into();
        let list = nested(body.find(NFTA_RULE_EXPRESSIONS));
        let exprs = list.filter(|a| a.kind == NFTA_LIST_ELEM).map(Expr::decode).collect::<Result<_, _>>()?;
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
    /// nft's type ids of the key's fields, six bits each.
    pub key_type: u32,
    /// Length of the key.
    pub key_len: u32,
    /// Type id and length of the value, if it is a map.
    pub value: Option<(u32, u32)>,
    /// Lifetime of an element in milliseconds; 0 means that elements do not expire.
    pub timeout: u64,
    /// Largest number of elements; 0 means no limit.
    pub size: u32,
    /// Lengths of the key's fields, for sets of ranges of concatenations.
    pub fields: Vec<u32>,
    /// Data that nft stores in the set, and needs to print the set.
    pub userdata: Vec<u8>,
}

/// `NFT_SET_ANONYMOUS`: the set belongs to one rule and is deleted with it.
pub const SET_ANONYMOUS: u32 = 0x1;
/// `NFT_SET_INTERVAL`: elements are ranges.
pub const SET_INTERVAL: u32 = 0x4;
/// `NFT_SET_MAP`: the set is a map.
pub const SET_MAP: u32 = 0x8;
/// `NFT_SET_TIMEOUT`: elements may expire.
pub const SET_TIMEOUT: u32 = 0x10;
/// `NFT_SET_EVAL`: rules may add elements.
pub const SET_DYNAMIC: u32 = 0x20;
/// `NFT_SET_CONCAT`: keys are concatenations.
pub const SET_CONCAT: u32 = 0x80;
/// Type and length of the values of a verdict map; the length is that of the kernel's `struct nft_verdict`.
pub const VALUE_VERDICT: (u32, u32) = (NFT_DATA_VERDICT, 16);

impl Set {
    pub(super) fn encode(&self, table: &str, id: u32, b: &mut Buffer) {
        b.attr_str(NFTA_SET_TABLE, table);
        b.attr_str(NFTA_SET_NAME, &self.name);
        b.attr_be32(NFTA_SET_FLAGS, self.flags);
        b.attr_be32(NFTA_SET_KEY_TYPE, self.key_type);
        b.attr_be32(NFTA_SET_KEY_LEN, self.key_len);
        if let Some((kind, len)) = self.value {
            b.attr_be32(NFTA_SET_DATA_TYPE, kind);
            b.attr_be32(NFTA_SET_DATA_LEN, len);
        }
        b.attr_be32(NFTA_SET_ID, id);
        if self.timeout != 0 {
            b.attr_be64(NFTA_SET_TIMEOUT, self.timeout);
        }
        if self.size != 0 || !self.fields.is_empty() {
            b.nest(NFTA_SET_DESC, |b| self.encode_description(b));
        }
        if !self.userdata.is_empty() {
            b.attr(NFTA_SET_USERDATA, &self.userdata);
        }
    }

    fn encode_description(&self, b: &mut Buffer) {
        if self.size != 0 {
            b.attr_be32(NFTA_SET_DESC_SIZE, self.size);
        }
        if !self.fields.is_empty() {
            b.nest(NFTA_SET_DESC_CONCAT, |b| {
                for len in &self.fields {
                    b.nest(NFTA_LIST_ELEM, |b| b.attr_be32(NFTA_SET_FIELD_LEN, *len));
                }
            });
        }
    }

    pub(super) fn decode(body: Attrs<'_>) -> Result<Set, DecodeError> {
        let number = |kind, field| body.clone().find(kind).map_or(Ok(0), |a| a.be32(field));
        let value = match body.clone().find(NFTA_SET_DATA_TYPE) {
            Some(kind) => Some((kind.be32("value type")?, number(NFTA_SET_DATA_LEN, "value length")?)),
            None => None,
        };
        let description = nested(body.clone().find(NFTA_SET_DESC));
        let fields = nested(description.clone().find(NFTA_SET_DESC_CONCAT));
        Ok(Set {
            name: body.clone().need(NFTA_SET_NAME, "set name")?.str("set name")?.into(),
            flags: number(NFTA_SET_FLAGS, "set flags")?,
            key_type: number(NFTA_SET_KEY_TYPE, "key type")?,
            key_len: number(NFTA_SET_KEY_LEN, "key length")?,
            // For a verdict, the kernel reports the size of its own struct, whatever length was sent.
            value: value.map(|v| if v.0 == NFT_DATA_VERDICT { VALUE_VERDICT } else { v }),
            timeout: body.clone().find(NFTA_SET_TIMEOUT).map_or(Ok(0), |a| a.be64("set timeout"))?,
            size: description.find(NFTA_SET_DESC_SIZE).map_or(Ok(0), |a| a.be32("set size"))?,
            fields: fields
                .map(|f| f.nested().need(NFTA_SET_FIELD_LEN, "field length")?.be32("field length"))
                .collect::<Result<_, _>>()?,
            userdata: body.clone().find(NFTA_SET_USERDATA).map_or(Vec::new(), |a| a.value.to_vec()),
        })
    }
}

/// The attributes in `attr`; none if it is missing.
fn nested(attr: Option<Attr<'_>>) -> Attrs<'_> {
    attr.map_or(attrs(&[]), |a| a.nested())
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
    /// Its key, or the start of its range.
    pub key: Key,
    /// The end of its range, inclusive (sets with [`SET_CONCAT`]).
    pub key_end: Option<Box<Key>>,
    /// Whether it is the exclusive end of a range (sets with [`SET_INTERVAL`] only).
    pub interval_end: bool,
    /// Its value, if it is in a map.
    pub data: Option<Data>,
    /// Data that nft stores in the element, such as a comment.
    pub userdata: Option<Arc<[u8]>>,
}

impl Element {
    /// An element of a set, without a value.
    pub fn key(key: Key) -> Element {
        Element { key, key_end: None, interval_end: false, data: None, userdata: None }
    }

    /// An element of a map.
    pub fn map(key: Key, data: Data) -> Element {
        Element { data: Some(data), ..Element::key(key) }
    }

    /// The same element with a comment, which `nft list` shows. A longer one than nft can read is truncated.
    pub fn comment(mut self, text: &str) -> Element {
        let text = &text[..text.floor_char_boundary(NFTNL_UDATA_COMMENT_MAXLEN - 1)];
        let mut bytes = vec![NFTNL_UDATA_SET_ELEM_COMMENT, text.len() as u8 + 1];
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(0);
        self.userdata = Some(bytes.into());
        self
    }

    /// The comment of the element.
    pub fn comment_text(&self) -> Option<&str> {
        let [NFTNL_UDATA_SET_ELEM_COMMENT, _, text @ .., 0] = &**self.userdata.as_ref()? else { return None };
        std::str::from_utf8(text).ok()
    }

    pub(super) fn encode(&self, b: &mut Buffer, with_data: bool) {
        b.nest(NFTA_LIST_ELEM, |b| {
            if self.interval_end {
                b.attr_be32(NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_INTERVAL_END);
            }
            b.nest(NFTA_SET_ELEM_KEY, |b| b.attr(NFTA_DATA_VALUE, self.key.as_slice()));
            if let Some(end) = &self.key_end {
                b.nest(NFTA_SET_ELEM_KEY_END, |b| b.attr(NFTA_DATA_VALUE, end.as_slice()));
            }
            if !with_data {
                return;
            }
            match &self.data {
                Some(Data::Value(value)) => {
                    b.nest(NFTA_SET_ELEM_DATA, |b| b.attr(NFTA_DATA_VALUE, value.as_slice()));
                }
                Some(Data::Verdict(verdict)) => b.nest(NFTA_SET_ELEM_DATA, |b| verdict.encode(b)),
                None => {}
            }
            if let Some(userdata) = &self.userdata {
                b.attr(NFTA_SET_ELEM_USERDATA, userdata);
            }
        });
    }

    pub(super) fn decode(attr: Attr<'_>) -> Result<Element, DecodeError> {
        let key_of = |a: Attr<'_>| Key::copy(a.nested().need(NFTA_DATA_VALUE, "element key")?.value);
        let body = attr.nested();
        let data = match body.clone().find(NFTA_SET_ELEM_DATA) {
            Some(a) if a.nested().find(NFTA_DATA_VERDICT).is_some() => match Verdict::decode(a) {
                // Portway never writes this verdict, so the element belongs to another program. It is decoded without
                // data, and so differs from every map element of Portway.
                Err(DecodeError::Unknown { .. }) => None,
                verdict => Some(Data::Verdict(verdict?)),
            },
            Some(a) => {
                Some(Data::Value(Value::copy(a.nested().need(NFTA_DATA_VALUE, "element value")?.value)?))
            }
            None => None,
        };
        let flags = body.clone().find(NFTA_SET_ELEM_FLAGS).map_or(Ok(0), |a| a.be32("element flags"))?;
        Ok(Element {
            key: key_of(body.clone().need(NFTA_SET_ELEM_KEY, "element key")?)?,
            key_end: body.clone().find(NFTA_SET_ELEM_KEY_END).map(key_of).transpose()?.map(Box::new),
            interval_end: flags & NFT_SET_ELEM_INTERVAL_END != 0,
            data,
            userdata: body.find(NFTA_SET_ELEM_USERDATA).map(|a| a.value.into()),
        })
    }
}
