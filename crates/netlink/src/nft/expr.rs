//! The expressions rules are made of: a small register machine.
//!
//! `Display` writes them as `nft --debug=netlink` does, which is how golden tests and logs show a rule; `encode`
//! and `decode` are each other's inverse.

use super::object::Verdict;
use super::wire::{DATA_VALUE, LIST_ELEM};
use crate::Malformed;
use crate::message::{Attr, Attrs, Buffer, attrs};
use std::fmt;
use std::sync::Arc;

/// One of the sixteen 4-byte words a rule computes in.
///
/// Four of them, aligned, also go by an older name as one 16-byte register; the kernel reports that name where it
/// can, so both spellings are one value here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Register(u8);

impl Register {
    /// The word with this index, 0 to 15.
    pub const fn word(index: u8) -> Register {
        assert!(index < 16, "a rule has sixteen words");
        Register(index)
    }

    /// The word `bytes` further on, rounded up to whole words: where the next part of a concatenation goes.
    pub const fn after(self, bytes: u32) -> Register {
        Register::word(self.0 + bytes.div_ceil(4) as u8)
    }

    /// Its index, 0 to 15.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    const fn number(self) -> u32 {
        if self.0.is_multiple_of(4) { 1 + self.0 as u32 / 4 } else { 8 + self.0 as u32 }
    }

    fn from_number(number: u32) -> Result<Register, Malformed> {
        match number {
            1..=4 => Ok(Register((number as u8 - 1) * 4)),
            8..=23 => Ok(Register(number as u8 - 8)),
            _ => Err(Malformed::Unknown { what: "register", value: number.into() }),
        }
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reg {}", self.number())
    }
}

/// Which header a payload expression reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// IP.
    Network,
    /// TCP, UDP, SCTP.
    Transport,
}

/// What `meta` reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaKey {
    /// The packet's mark.
    Mark,
    /// Name of the interface it came in on.
    InputName,
    /// Transport protocol.
    Protocol,
}

impl MetaKey {
    const ALL: [(MetaKey, u32, &'static str); 3] =
        [(MetaKey::Mark, 3, "mark"), (MetaKey::InputName, 6, "iifname"), (MetaKey::Protocol, 16, "l4proto")];

    fn entry(self) -> (MetaKey, u32, &'static str) {
        Self::ALL[self as usize]
    }
}

/// What `ct` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtKey {
    /// New, established, related, invalid.
    State,
    /// Status bits.
    Status,
}

/// Whose route `fib` looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibOf {
    /// The source address.
    Source,
    /// The destination address.
    Destination,
}

/// How a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// ICMP or ICMPv6 unreachable with this code.
    Unreachable(u8),
    /// A TCP reset.
    TcpReset,
}

/// `bit` of conntrack's state for a packet that belongs to nothing known.
pub const CT_STATE_INVALID: u32 = 1;
/// `bit` of conntrack's state for a new connection.
pub const CT_STATE_NEW: u32 = 8;
/// `bit` of conntrack's status for a connection whose destination was translated.
pub const CT_STATUS_DNAT: u32 = 0x20;
/// `fib … type`: an address of this machine.
pub const FIB_LOCAL: u32 = 2;
/// Masquerade with a fully random source port.
pub const NAT_RANDOM_FULLY: u32 = 0x10;

/// An expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Reads packet metadata.
    Meta(MetaKey, Register),
    /// Sets packet metadata.
    MetaSet(MetaKey, Register),
    /// Reads bytes of a header.
    Payload {
        /// Which header.
        base: Base,
        /// Where in it.
        offset: u32,
        /// How many bytes.
        len: u32,
        /// Where to.
        to: Register,
    },
    /// Goes on only if the register equals the value, or does not.
    Compare {
        /// Equal or not.
        equal: bool,
        /// What is compared.
        register: Register,
        /// With what.
        value: Vec<u8>,
    },
    /// `register = (register & mask) ^ xor`.
    Bitwise {
        /// In place.
        register: Register,
        /// And.
        mask: Vec<u8>,
        /// Then exclusive or.
        xor: Vec<u8>,
    },
    /// Looks a key up in a set; goes on if it is in there.
    Lookup {
        /// The set.
        set: Arc<str>,
        /// Where the key begins.
        key: Register,
    },
    /// Looks a key up in a map and puts the value into a register.
    Map {
        /// The map.
        set: Arc<str>,
        /// Where the key begins.
        key: Register,
        /// Where the value goes.
        to: Register,
    },
    /// Looks a key up in a verdict map and does what it says.
    VerdictMap {
        /// The map.
        set: Arc<str>,
        /// Where the key begins.
        key: Register,
    },
    /// Puts a constant into a register.
    Immediate(Register, Vec<u8>),
    /// Ends the rule.
    Verdict(Verdict),
    /// Translates the destination.
    Dnat {
        /// Family of the address.
        family: u8,
        /// Where the address is.
        address: Register,
        /// Where the port is.
        port: Register,
    },
    /// Translates the source to the outgoing interface's address.
    Masquerade {
        /// `NF_NAT_RANGE_*`.
        flags: u32,
    },
    /// Refuses.
    Reject(Reject),
    /// Reads connection tracking.
    Ct(CtKey, Register),
    /// Looks up the type of an address.
    FibType(FibOf, Register),
    /// A random number below `modulus`.
    Random {
        /// How many numbers.
        modulus: u32,
        /// Where to.
        to: Register,
    },
    /// Adds to a dynamic set, or renews what is there.
    Update {
        /// The set.
        set: Arc<str>,
        /// Where the key begins.
        key: Register,
    },
    /// Something we never write: a rule with it is not ours.
    Foreign(String),
}

impl Expr {
    /// Appends it as a list element.
    pub(super) fn encode(&self, out: &mut Buffer) {
        out.nest(LIST_ELEM, |b| {
            b.attr_str(1, self.name());
            b.nest(2, |b| self.encode_body(b));
        });
    }

    fn name(&self) -> &str {
        match self {
            Expr::Meta(..) | Expr::MetaSet(..) => "meta",
            Expr::Payload { .. } => "payload",
            Expr::Compare { .. } => "cmp",
            Expr::Bitwise { .. } => "bitwise",
            Expr::Lookup { .. } | Expr::Map { .. } | Expr::VerdictMap { .. } => "lookup",
            Expr::Immediate(..) | Expr::Verdict(_) => "immediate",
            Expr::Dnat { .. } => "nat",
            Expr::Masquerade { .. } => "masq",
            Expr::Reject(_) => "reject",
            Expr::Ct(..) => "ct",
            Expr::FibType(..) => "fib",
            Expr::Random { .. } => "numgen",
            Expr::Update { .. } => "dynset",
            Expr::Foreign(name) => name,
        }
    }

    fn encode_body(&self, b: &mut Buffer) {
        let value = |b: &mut Buffer, kind: u16, v: &[u8]| b.nest(kind, |b| b.attr(DATA_VALUE, v));
        let lookup = |b: &mut Buffer, set: &str, key: Register| {
            b.attr_str(1, set);
            b.attr_be32(2, key.number());
        };
        match self {
            Expr::Meta(key, to) => {
                b.attr_be32(2, key.entry().1);
                b.attr_be32(1, to.number());
            }
            Expr::MetaSet(key, from) => {
                b.attr_be32(2, key.entry().1);
                b.attr_be32(3, from.number());
            }
            Expr::Payload { base, offset, len, to } => {
                b.attr_be32(1, to.number());
                b.attr_be32(2, if *base == Base::Network { 1 } else { 2 });
                b.attr_be32(3, *offset);
                b.attr_be32(4, *len);
            }
            Expr::Compare { equal, register, value: v } => {
                b.attr_be32(1, register.number());
                b.attr_be32(2, u32::from(!equal));
                value(b, 3, v);
            }
            Expr::Bitwise { register, mask, xor } => {
                b.attr_be32(1, register.number());
                b.attr_be32(2, register.number());
                b.attr_be32(3, mask.len() as u32);
                value(b, 4, mask);
                value(b, 5, xor);
            }
            Expr::Lookup { set, key } => lookup(b, set, *key),
            Expr::Map { set, key, to } => {
                lookup(b, set, *key);
                b.attr_be32(3, to.number());
            }
            Expr::VerdictMap { set, key } => {
                lookup(b, set, *key);
                b.attr_be32(3, 0);
            }
            Expr::Immediate(to, v) => {
                b.attr_be32(1, to.number());
                value(b, 2, v);
            }
            Expr::Verdict(verdict) => {
                b.attr_be32(1, 0);
                b.nest(2, |b| verdict.encode(b));
            }
            Expr::Dnat { family, address, port } => {
                b.attr_be32(1, 1);
                b.attr_be32(2, (*family).into());
                b.attr_be32(3, address.number());
                b.attr_be32(5, port.number());
                b.attr_be32(7, 3);
            }
            Expr::Masquerade { flags } => b.attr_be32(1, *flags),
            Expr::Reject(how) => {
                b.attr_be32(1, u32::from(*how == Reject::TcpReset));
                b.attr_u8(2, if let Reject::Unreachable(code) = how { *code } else { 0 });
            }
            Expr::Ct(key, to) => {
                b.attr_be32(2, if *key == CtKey::State { 0 } else { 2 });
                b.attr_be32(1, to.number());
            }
            Expr::FibType(of, to) => {
                b.attr_be32(1, to.number());
                b.attr_be32(2, 3);
                b.attr_be32(3, if *of == FibOf::Source { 1 } else { 2 });
            }
            Expr::Random { modulus, to } => {
                b.attr_be32(1, to.number());
                b.attr_be32(2, *modulus);
                b.attr_be32(3, 1);
                b.attr_be32(4, 0);
            }
            Expr::Update { set, key } => {
                b.attr_str(1, set);
                b.attr_be32(3, 1);
                b.attr_be32(4, key.number());
            }
            Expr::Foreign(_) => {}
        }
    }

    /// Reads the content of one list element. What we never write comes back as [`Expr::Foreign`].
    pub(super) fn decode(element: Attr<'_>) -> Result<Expr, Malformed> {
        let name = element.nested().need(1, "expression name")?.str("expression name")?;
        let body = element.nested().find(2).map_or(attrs(&[]), |a| a.nested());
        let known = match name {
            "meta" => meta(body)?,
            "payload" => payload(body)?,
            "cmp" => compare(body)?,
            "bitwise" => bitwise(body)?,
            "lookup" => lookup(body)?,
            "immediate" => immediate(body)?,
            "nat" => nat(body)?,
            "masq" => Some(Expr::Masquerade { flags: number_or(&body, 1, 0)? }),
            "reject" => reject(body)?,
            "ct" => ct(body)?,
            "fib" => fib(body)?,
            "numgen" => numgen(body)?,
            "dynset" => dynset(body)?,
            _ => None,
        };
        Ok(known.unwrap_or_else(|| Expr::Foreign(name.to_owned())))
    }
}

fn number(body: &Attrs<'_>, kind: u16, what: &'static str) -> Result<u32, Malformed> {
    body.clone().need(kind, what)?.be32(what)
}

fn number_or(body: &Attrs<'_>, kind: u16, default: u32) -> Result<u32, Malformed> {
    body.clone().find(kind).map_or(Ok(default), |a| a.be32("number"))
}

fn register(body: &Attrs<'_>, kind: u16, what: &'static str) -> Result<Register, Malformed> {
    Register::from_number(number(body, kind, what)?)
}

fn value(body: &Attrs<'_>, kind: u16, what: &'static str) -> Result<Vec<u8>, Malformed> {
    Ok(body.clone().need(kind, what)?.nested().need(DATA_VALUE, what)?.value.to_vec())
}

fn meta(body: Attrs<'_>) -> Result<Option<Expr>, Malformed> {
    let key = number(&body, 2, "meta key")?;
    let Some(&(key, ..)) = MetaKey::ALL.iter().find(|k| k.1 == key) else { return Ok(None) };
    Ok(Some(if body.clone().find(1).is_some() {
        Expr::Meta(key, register(&body, 1, "meta register")?)
    } else {
        Expr::MetaSet(key, register(&body, 3, "meta register")?)
    }))
}

fn payload(body: Attrs<'_>) -> Result<Option<Expr>, Malformed> {
    let base = match number(&body, 2, "payload base")? {
        1 => Base::Network,
        2 => Base::Transport,
        _ => return Ok(None),
    };
    if body.clone().find(1).is_none() {
        return Ok(None);
    }
    Ok(Some(Expr::Payload {
        base,
        offset: number(&body, 3, "payload offset")?,
        len: number(&body, 4, "payload length")?,
        to: register(&body, 1, "payload register")?,
    }))
}

fn compare(body: Attrs<'_>) -> Result<Option<Expr>, Malformed> {
    let equal = match number(&body, 2, "comparison")? {
        0 => true,
        1 => false,
        _ => return Ok(None),
    };
    let register = register(&body, 1, "comparison register")?;
    Ok(Some(Expr::Compare { equal, register, value: value(&body, 3, "comparison value")? }))
}

fn bitwise(body: Attrs<'_>) -> Result<Option<Expr>, Malformed> {
    let from = register(&body, 1, "bitwise source")?;
    if number_or(&body, 6, 0)? != 0 || register(&body, 2, "bitwise destination")? != from {
        return Ok(None);
    }
    let (mask, xor) = (value(&body, 4, "mask")?, value(&body, 5, "xor")?);
    Ok(Some(Expr::Bitwise { register: from, mask, xor }))
}

fn lookup(body: Attrs<'_>) -> Result<Option<Expr>, Malformed> {
    if number_or(&body, 5, 0)? != 0 {
        return Ok(None);
    }
    let set: Arc<str> = body.clone().need(1, "set name")?.str("set name")?.into();
    let key = register(&body, 2, "lookup register")?;
    Ok(Some(match body.clone().find(3).map(|a| a.be32("lookup result")).transpose()? {
        None => Expr::Lookup { set, key },
        Some(0) => Expr::VerdictMap { set, key },
        Some(to) => Expr::Map { set, key, to: Register::from_number(to)? },
    }))
}

fn immediate(body: Attrs<'_>) -> Result<Option<Expr>, Malformed> {
    Ok(Some(match number(&body, 1, "immediate register")? {
        0 => match Verdict::decode(body.need(2, "verdict")?) {
            // A verdict we never give, such as `continue`.
            Err(Malformed::Unknown { .. }) => return Ok(None),
            verdict => Expr::Verdict(verdict?),
        },
        to => Expr::Immediate(Register::from_number(to)?, value(&body, 2, "immediate value")?),
    }))
}

fn nat(body: Attrs<'_>) -> Result<Option<Expr>, Malformed> {
    let plain = number(&body, 1, "nat type")? == 1 && number_or(&body, 7, 3)? == 3;
    if !plain || body.clone().find(3).is_none() || body.clone().find(5).is_none() {
        return Ok(None);
    }
    let (address, port) = (register(&body, 3, "nat address")?, register(&body, 5, "nat port")?);
    let single = |kind, min: Register| number_or(&body, kind, min.number()).map(|max| max == min.number());
    if !single(4, address)? || !single(6, port)? {
        return Ok(None);
    }
    Ok(Some(Expr::Dnat { family: number(&body, 2, "nat family")? as u8, address, port }))
}

fn reject(body: Attrs<'_>) -> Result<Option<Expr>, Malformed> {
    let code = body.clone().find(2).map_or(Ok(0), |a| a.u8("reject code"))?;
    Ok(match number(&body, 1, "reject type")? {
        0 => Some(Expr::Reject(Reject::Unreachable(code))),
        1 => Some(Expr::Reject(Reject::TcpReset)),
        _ => None,
    })
}

fn ct(body: Attrs<'_>) -> Result<Option<Expr>, Malformed> {
    let key = match number(&body, 2, "ct key")? {
        0 => CtKey::State,
        2 => CtKey::Status,
        _ => return Ok(None),
    };
    if body.clone().find(1).is_none() {
        return Ok(None);
    }
    Ok(Some(Expr::Ct(key, register(&body, 1, "ct register")?)))
}

fn fib(body: Attrs<'_>) -> Result<Option<Expr>, Malformed> {
    let of = match (number(&body, 2, "fib result")?, number(&body, 3, "fib flags")?) {
        (3, 1) => FibOf::Source,
        (3, 2) => FibOf::Destination,
        _ => return Ok(None),
    };
    Ok(Some(Expr::FibType(of, register(&body, 1, "fib register")?)))
}

fn numgen(body: Attrs<'_>) -> Result<Option<Expr>, Malformed> {
    if number(&body, 3, "numgen type")? != 1 || number_or(&body, 4, 0)? != 0 {
        return Ok(None);
    }
    let to = register(&body, 1, "numgen register")?;
    Ok(Some(Expr::Random { modulus: number(&body, 2, "modulus")?, to }))
}

fn dynset(body: Attrs<'_>) -> Result<Option<Expr>, Malformed> {
    let plain = number(&body, 3, "dynset operation")? == 1
        && body.clone().find(6).map_or(Ok(0), |a| a.be64("dynset time-out"))? == 0
        && body.clone().find(5).is_none();
    if !plain {
        return Ok(None);
    }
    Ok(Some(Expr::Update {
        set: body.clone().need(1, "set name")?.str("set name")?.into(),
        key: register(&body, 4, "dynset key")?,
    }))
}

struct Words<'a>(&'a [u8]);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for word in self.0.chunks(4) {
            let mut padded = [0; 4];
            padded[..word.len()].copy_from_slice(word);
            write!(f, " 0x{:08x}", u32::from_le_bytes(padded))?;
        }
        Ok(())
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Meta(key, to) => write!(f, "[ meta load {} => {to} ]", key.entry().2),
            Expr::MetaSet(key, from) => write!(f, "[ meta set {} with {from} ]", key.entry().2),
            Expr::Payload { base, offset, len, to } => {
                let base = if *base == Base::Network { "network" } else { "transport" };
                write!(f, "[ payload load {len}b @ {base} header + {offset} => {to} ]")
            }
            Expr::Compare { equal, register, value } => {
                write!(f, "[ cmp {} {register}{} ]", if *equal { "eq" } else { "neq" }, Words(value))
            }
            Expr::Bitwise { register, mask, xor } => {
                write!(f, "[ bitwise {register} = ( {register} &{} ) ^{} ]", Words(mask), Words(xor))
            }
            Expr::Lookup { set, key } => write!(f, "[ lookup {key} set {set} ]"),
            Expr::Map { set, key, to } => write!(f, "[ lookup {key} set {set} d{to} ]"),
            Expr::VerdictMap { set, key } => write!(f, "[ lookup {key} set {set} dreg 0 ]"),
            Expr::Immediate(to, value) => write!(f, "[ immediate {to}{} ]", Words(value)),
            Expr::Verdict(verdict) => write!(f, "[ immediate reg 0 {verdict} ]"),
            Expr::Dnat { address, port, .. } => write!(f, "[ nat dnat addr {address} proto {port} ]"),
            Expr::Masquerade { flags } => write!(f, "[ masq flags 0x{flags:x} ]"),
            Expr::Reject(Reject::TcpReset) => write!(f, "[ reject with tcp reset ]"),
            Expr::Reject(Reject::Unreachable(code)) => write!(f, "[ reject unreachable code {code} ]"),
            Expr::Ct(CtKey::State, to) => write!(f, "[ ct load state => {to} ]"),
            Expr::Ct(CtKey::Status, to) => write!(f, "[ ct load status => {to} ]"),
            Expr::FibType(FibOf::Source, to) => write!(f, "[ fib saddr type => {to} ]"),
            Expr::FibType(FibOf::Destination, to) => write!(f, "[ fib daddr type => {to} ]"),
            Expr::Random { modulus, to } => write!(f, "[ numgen {to} = random mod {modulus} ]"),
            Expr::Update { set, key } => write!(f, "[ dynset update {key} set {set} ]"),
            Expr::Foreign(name) => write!(f, "[ {name} … ]"),
        }
    }
}
