//! The expressions of a rule: instructions of a small register machine.
//!
//! `Display` prints an expression in the format of `nft --debug=netlink`, for golden tests and logs; `decode` is the
//! inverse of `encode`. Bits for `ct`, `fib` and `nat` come from
//! `linux/netfilter/nf_conntrack_common.h`, `linux/rtnetlink.h` and `linux/netfilter/nf_nat.h`.

use super::object::Verdict;
use super::wire::*;
use crate::DecodeError;
use crate::message::{Attr, Attrs, Buffer, attrs};
use std::fmt;
use std::sync::Arc;

/// One of the sixteen 4-byte registers of a rule.
///
/// Four aligned registers are also one 16-byte register, which has a number of its own (`NFT_REG_1` to `NFT_REG_4`).
/// The kernel reports the 16-byte register if the index is a multiple of four, so both numbers decode to the same
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Register(u8);

impl Register {
    /// The register with this index, 0 to 15.
    pub const fn word(index: u8) -> Register {
        assert!(index < 16, "a rule has sixteen registers");
        Register(index)
    }

    /// The register after a field of `bytes` bytes that begins in this one: that of the next field of a concatenation.
    pub const fn after(self, bytes: u32) -> Register {
        Register::word(self.0 + bytes.div_ceil(4) as u8)
    }

    /// Its index, 0 to 15.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    const fn number(self) -> u32 {
        if self.0.is_multiple_of(4) { NFT_REG_1 + self.0 as u32 / 4 } else { NFT_REG32_00 + self.0 as u32 }
    }

    fn from_number(number: u32) -> Result<Register, DecodeError> {
        match number {
            NFT_REG_1..=NFT_REG_4 => Ok(Register((number - NFT_REG_1) as u8 * 4)),
            NFT_REG32_00..=NFT_REG32_15 => Ok(Register((number - NFT_REG32_00) as u8)),
            _ => Err(DecodeError::Unknown { field: "register", value: number.into() }),
        }
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reg {}", self.number())
    }
}

/// The header that a payload expression reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// IP.
    Network,
    /// TCP, UDP, SCTP.
    Transport,
}

impl Base {
    const fn number(self) -> u32 {
        match self {
            Base::Network => NFT_PAYLOAD_NETWORK_HEADER,
            Base::Transport => NFT_PAYLOAD_TRANSPORT_HEADER,
        }
    }
}

/// The packet metadata that `meta` reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaKey {
    /// The packet's mark.
    Mark,
    /// Name of the interface that received the packet.
    InputName,
    /// Transport protocol.
    Protocol,
}

impl MetaKey {
    const ALL: [(MetaKey, u32, &'static str); 3] = [
        (MetaKey::Mark, NFT_META_MARK, "mark"),
        (MetaKey::InputName, NFT_META_IIFNAME, "iifname"),
        (MetaKey::Protocol, NFT_META_L4PROTO, "l4proto"),
    ];

    fn entry(self) -> (MetaKey, u32, &'static str) {
        Self::ALL[self as usize]
    }
}

/// The conntrack field that `ct` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtKey {
    /// New, established, related, invalid.
    State,
    /// Status bits.
    Status,
}

/// The address that `fib` looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibOf {
    /// The source address.
    Source,
    /// The destination address.
    Destination,
}

/// How a packet is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// ICMP or ICMPv6 unreachable with this code.
    Unreachable(u8),
    /// A TCP reset.
    TcpReset,
}

/// `NF_CT_STATE_INVALID_BIT`: conntrack cannot assign the packet to a connection.
pub const CT_STATE_INVALID: u32 = 1;
/// `NF_CT_STATE_BIT(IP_CT_NEW)`: the packet opens a connection.
pub const CT_STATE_NEW: u32 = 8;
/// `IPS_DST_NAT`: the connection's destination was translated.
pub const CT_STATUS_DNAT: u32 = 0x20;
/// `RTN_LOCAL`, a result of `fib … type`: an address of this host.
pub const FIB_LOCAL: u32 = libc::RTN_LOCAL as u32;
/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`: masquerade with a fully random source port.
pub const NAT_RANDOM_FULLY: u32 = 0x10;
/// A translation to one address and one port.
const DNAT_FLAGS: u32 = NF_NAT_RANGE_MAP_IPS | NF_NAT_RANGE_PROTO_SPECIFIED;

/// An expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Reads packet metadata.
    Meta(MetaKey, Register),
    /// Sets packet metadata.
    MetaSet(MetaKey, Register),
    /// Reads bytes of a header.
    Payload {
        /// The header.
        base: Base,
        /// Offset in the header.
        offset: u32,
        /// Number of bytes.
        len: u32,
        /// Register that receives the bytes.
        to: Register,
    },
    /// Continues the rule only if the comparison holds.
    Compare {
        /// Whether the register must equal the value, or must differ from it.
        equal: bool,
        /// The register compared.
        register: Register,
        /// The value compared with.
        value: Vec<u8>,
    },
    /// `register = (register & mask) ^ xor`.
    Bitwise {
        /// Operand and result.
        register: Register,
        /// Bits to keep.
        mask: Vec<u8>,
        /// Bits to flip afterwards.
        xor: Vec<u8>,
    },
    /// Looks a key up in a set; continues the rule if the set has it.
    Lookup {
        /// The set.
        set: Arc<str>,
        /// First register of the key.
        key: Register,
    },
    /// Looks a key up in a map and puts the value into a register.
    Map {
        /// The map.
        set: Arc<str>,
        /// First register of the key.
        key: Register,
        /// First register of the value.
        to: Register,
    },
    /// Looks a key up in a verdict map and applies the verdict.
    VerdictMap {
        /// The map.
        set: Arc<str>,
        /// First register of the key.
        key: Register,
    },
    /// Puts a constant into a register.
    Immediate(Register, Vec<u8>),
    /// Ends the rule with a verdict.
    Verdict(Verdict),
    /// Translates the destination.
    Dnat {
        /// Family of the address (`NFPROTO_*`).
        family: u8,
        /// Register that holds the address.
        address: Register,
        /// Register that holds the port.
        port: Register,
    },
    /// Translates the source to the outgoing interface's address.
    Masquerade {
        /// `NF_NAT_RANGE_*`.
        flags: u32,
    },
    /// Rejects the packet.
    Reject(Reject),
    /// Reads the connection's conntrack entry.
    Ct(CtKey, Register),
    /// Looks up the type of an address.
    FibType(FibOf, Register),
    /// A random number below `modulus`.
    Random {
        /// The bound.
        modulus: u32,
        /// Register that receives the number.
        to: Register,
    },
    /// Adds an element to a dynamic set, or restarts its timeout.
    Update {
        /// The set.
        set: Arc<str>,
        /// First register of the key.
        key: Register,
    },
    /// An expression that Portway never writes, by its name: the rule belongs to another program.
    Foreign(String),
}

impl Expr {
    /// Appends the expression as an `NFTA_LIST_ELEM`.
    pub(super) fn encode(&self, out: &mut Buffer) {
        out.nest(NFTA_LIST_ELEM, |b| {
            b.attr_str(NFTA_EXPR_NAME, self.name());
            b.nest(NFTA_EXPR_DATA, |b| self.encode_body(b));
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
        let value = |b: &mut Buffer, kind: u16, v: &[u8]| b.nest(kind, |b| b.attr(NFTA_DATA_VALUE, v));
        let lookup = |b: &mut Buffer, set: &str, key: Register| {
            b.attr_str(NFTA_LOOKUP_SET, set);
            b.attr_be32(NFTA_LOOKUP_SREG, key.number());
        };
        match self {
            Expr::Meta(key, to) => {
                b.attr_be32(NFTA_META_KEY, key.entry().1);
                b.attr_be32(NFTA_META_DREG, to.number());
            }
            Expr::MetaSet(key, from) => {
                b.attr_be32(NFTA_META_KEY, key.entry().1);
                b.attr_be32(NFTA_META_SREG, from.number());
            }
            Expr::Payload { base, offset, len, to } => {
                b.attr_be32(NFTA_PAYLOAD_DREG, to.number());
                b.attr_be32(NFTA_PAYLOAD_BASE, base.number());
                b.attr_be32(NFTA_PAYLOAD_OFFSET, *offset);
                b.attr_be32(NFTA_PAYLOAD_LEN, *len);
            }
            Expr::Compare { equal, register, value: v } => {
                b.attr_be32(NFTA_CMP_SREG, register.number());
                b.attr_be32(NFTA_CMP_OP, if *equal { NFT_CMP_EQ } else { NFT_CMP_NEQ });
                value(b, NFTA_CMP_DATA, v);
            }
            Expr::Bitwise { register, mask, xor } => {
                b.attr_be32(NFTA_BITWISE_SREG, register.number());
                b.attr_be32(NFTA_BITWISE_DREG, register.number());
                b.attr_be32(NFTA_BITWISE_LEN, mask.len() as u32);
                value(b, NFTA_BITWISE_MASK, mask);
                value(b, NFTA_BITWISE_XOR, xor);
            }
            Expr::Lookup { set, key } => lookup(b, set, *key),
            Expr::Map { set, key, to } => {
                lookup(b, set, *key);
                b.attr_be32(NFTA_LOOKUP_DREG, to.number());
            }
            Expr::VerdictMap { set, key } => {
                lookup(b, set, *key);
                b.attr_be32(NFTA_LOOKUP_DREG, NFT_REG_VERDICT);
            }
            Expr::Immediate(to, v) => {
                b.attr_be32(NFTA_IMMEDIATE_DREG, to.number());
                value(b, NFTA_IMMEDIATE_DATA, v);
            }
            Expr::Verdict(verdict) => {
                b.attr_be32(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
                b.nest(NFTA_IMMEDIATE_DATA, |b| verdict.encode(b));
            }
            Expr::Dnat { family, address, port } => {
                b.attr_be32(NFTA_NAT_TYPE, NFT_NAT_DNAT);
                b.attr_be32(NFTA_NAT_FAMILY, (*family).into());
                b.attr_be32(NFTA_NAT_REG_ADDR_MIN, address.number());
                b.attr_be32(NFTA_NAT_REG_PROTO_MIN, port.number());
                b.attr_be32(NFTA_NAT_FLAGS, DNAT_FLAGS);
            }
            Expr::Masquerade { flags } => b.attr_be32(NFTA_MASQ_FLAGS, *flags),
            Expr::Reject(how) => {
                let (kind, code) = match how {
                    Reject::Unreachable(code) => (NFT_REJECT_ICMP_UNREACH, *code),
                    Reject::TcpReset => (NFT_REJECT_TCP_RST, 0),
                };
                b.attr_be32(NFTA_REJECT_TYPE, kind);
                b.attr_u8(NFTA_REJECT_ICMP_CODE, code);
            }
            Expr::Ct(key, to) => {
                b.attr_be32(NFTA_CT_KEY, if *key == CtKey::State { NFT_CT_STATE } else { NFT_CT_STATUS });
                b.attr_be32(NFTA_CT_DREG, to.number());
            }
            Expr::FibType(of, to) => {
                let address = if *of == FibOf::Source { NFTA_FIB_F_SADDR } else { NFTA_FIB_F_DADDR };
                b.attr_be32(NFTA_FIB_DREG, to.number());
                b.attr_be32(NFTA_FIB_RESULT, NFT_FIB_RESULT_ADDRTYPE);
                b.attr_be32(NFTA_FIB_FLAGS, address);
            }
            Expr::Random { modulus, to } => {
                b.attr_be32(NFTA_NG_DREG, to.number());
                b.attr_be32(NFTA_NG_MODULUS, *modulus);
                b.attr_be32(NFTA_NG_TYPE, NFT_NG_RANDOM);
                b.attr_be32(NFTA_NG_OFFSET, 0);
            }
            Expr::Update { set, key } => {
                b.attr_str(NFTA_DYNSET_SET_NAME, set);
                b.attr_be32(NFTA_DYNSET_OP, NFT_DYNSET_OP_UPDATE);
                b.attr_be32(NFTA_DYNSET_SREG_KEY, key.number());
            }
            Expr::Foreign(_) => {}
        }
    }

    /// Decodes one `NFTA_LIST_ELEM`. An expression that Portway never writes becomes [`Expr::Foreign`].
    pub(super) fn decode(element: Attr<'_>) -> Result<Expr, DecodeError> {
        let name = element.nested().need(NFTA_EXPR_NAME, "expression name")?.str("expression name")?;
        let body = element.nested().find(NFTA_EXPR_DATA).map_or(attrs(&[]), |a| a.nested());
        let known = match name {
            "meta" => meta(body)?,
            "payload" => payload(body)?,
            "cmp" => compare(body)?,
            "bitwise" => bitwise(body)?,
            "lookup" => lookup(body)?,
            "immediate" => immediate(body)?,
            "nat" => nat(body)?,
            "masq" => Some(Expr::Masquerade { flags: number_or(&body, NFTA_MASQ_FLAGS, 0)? }),
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

fn number(body: &Attrs<'_>, kind: u16, field: &'static str) -> Result<u32, DecodeError> {
    body.clone().need(kind, field)?.be32(field)
}

fn number_or(body: &Attrs<'_>, kind: u16, default: u32) -> Result<u32, DecodeError> {
    body.clone().find(kind).map_or(Ok(default), |a| a.be32("number"))
}

fn register(body: &Attrs<'_>, kind: u16, field: &'static str) -> Result<Register, DecodeError> {
    Register::from_number(number(body, kind, field)?)
}

fn value(body: &Attrs<'_>, kind: u16, field: &'static str) -> Result<Vec<u8>, DecodeError> {
    Ok(body.clone().need(kind, field)?.nested().need(NFTA_DATA_VALUE, field)?.value.to_vec())
}

fn meta(body: Attrs<'_>) -> Result<Option<Expr>, DecodeError> {
    let key = number(&body, NFTA_META_KEY, "meta key")?;
    let Some(&(key, ..)) = MetaKey::ALL.iter().find(|k| k.1 == key) else { return Ok(None) };
    Ok(Some(if body.clone().find(NFTA_META_DREG).is_some() {
        Expr::Meta(key, register(&body, NFTA_META_DREG, "meta register")?)
    } else {
        Expr::MetaSet(key, register(&body, NFTA_META_SREG, "meta register")?)
    }))
}

fn payload(body: Attrs<'_>) -> Result<Option<Expr>, DecodeError> {
    let base = match number(&body, NFTA_PAYLOAD_BASE, "payload base")? {
        NFT_PAYLOAD_NETWORK_HEADER => Base::Network,
        NFT_PAYLOAD_TRANSPORT_HEADER => Base::Transport,
        _ => return Ok(None),
    };
    if body.clone().find(NFTA_PAYLOAD_DREG).is_none() {
        return Ok(None);
    }
    Ok(Some(Expr::Payload {
        base,
        offset: number(&body, NFTA_PAYLOAD_OFFSET, "payload offset")?,
        len: number(&body, NFTA_PAYLOAD_LEN, "payload length")?,
        to: register(&body, NFTA_PAYLOAD_DREG, "payload register")?,
    }))
}

fn compare(body: Attrs<'_>) -> Result<Option<Expr>, DecodeError> {
    let equal = match number(&body, NFTA_CMP_OP, "comparison")? {
        NFT_CMP_EQ => true,
        NFT_CMP_NEQ => false,
        _ => return Ok(None),
    };
    let register = register(&body, NFTA_CMP_SREG, "comparison register")?;
    Ok(Some(Expr::Compare { equal, register, value: value(&body, NFTA_CMP_DATA, "comparison value")? }))
}

fn bitwise(body: Attrs<'_>) -> Result<Option<Expr>, DecodeError> {
    let from = register(&body, NFTA_BITWISE_SREG, "bitwise source")?;
    let operation = number_or(&body, NFTA_BITWISE_OP, NFT_BITWISE_MASK_XOR)?;
    if operation != NFT_BITWISE_MASK_XOR || register(&body, NFTA_BITWISE_DREG, "bitwise destination")? != from
    {
        return Ok(None);
    }
    let (mask, xor) = (value(&body, NFTA_BITWISE_MASK, "mask")?, value(&body, NFTA_BITWISE_XOR, "xor")?);
    Ok(Some(Expr::Bitwise { register: from, mask, xor }))
}

fn lookup(body: Attrs<'_>) -> Result<Option<Expr>, DecodeError> {
    if number_or(&body, NFTA_LOOKUP_FLAGS, 0)? != 0 {
        return Ok(None);
    }
    let set: Arc<str> = body.clone().need(NFTA_LOOKUP_SET, "set name")?.str("set name")?.into();
    let key = register(&body, NFTA_LOOKUP_SREG, "lookup register")?;
    let result = body.clone().find(NFTA_LOOKUP_DREG).map(|a| a.be32("lookup result")).transpose()?;
    Ok(Some(match result {
        None => Expr::Lookup { set, key },
        Some(NFT_REG_VERDICT) => Expr::VerdictMap { set, key },
        Some(to) => Expr::Map { set, key, to: Register::from_number(to)? },
    }))
}

fn immediate(body: Attrs<'_>) -> Result<Option<Expr>, DecodeError> {
    Ok(Some(match number(&body, NFTA_IMMEDIATE_DREG, "immediate register")? {
        NFT_REG_VERDICT => match Verdict::decode(body.need(NFTA_IMMEDIATE_DATA, "verdict")?) {
            // A verdict that Portway never writes, such as `continue`.
            Err(DecodeError::Unknown { .. }) => return Ok(None),
            verdict => Expr::Verdict(verdict?),
        },
        to => {
            Expr::Immediate(Register::from_number(to)?, value(&body, NFTA_IMMEDIATE_DATA, "immediate value")?)
        }
    }))
}

fn nat(body: Attrs<'_>) -> Result<Option<Expr>, DecodeError> {
    let plain = number(&body, NFTA_NAT_TYPE, "nat type")? == NFT_NAT_DNAT
        && number_or(&body, NFTA_NAT_FLAGS, DNAT_FLAGS)? == DNAT_FLAGS;
    let has = |kind| body.clone().find(kind).is_some();
    if !plain || !has(NFTA_NAT_REG_ADDR_MIN) || !has(NFTA_NAT_REG_PROTO_MIN) {
        return Ok(None);
    }
    let address = register(&body, NFTA_NAT_REG_ADDR_MIN, "nat address")?;
    let port = register(&body, NFTA_NAT_REG_PROTO_MIN, "nat port")?;
    let single = |kind, min: Register| number_or(&body, kind, min.number()).map(|max| max == min.number());
    if !single(NFTA_NAT_REG_ADDR_MAX, address)? || !single(NFTA_NAT_REG_PROTO_MAX, port)? {
        return Ok(None);
    }
    Ok(Some(Expr::Dnat { family: number(&body, NFTA_NAT_FAMILY, "nat family")? as u8, address, port }))
}

fn reject(body: Attrs<'_>) -> Result<Option<Expr>, DecodeError> {
    let code = body.clone().find(NFTA_REJECT_ICMP_CODE).map_or(Ok(0), |a| a.u8("reject code"))?;
    Ok(match number(&body, NFTA_REJECT_TYPE, "reject type")? {
        NFT_REJECT_ICMP_UNREACH => Some(Expr::Reject(Reject::Unreachable(code))),
        NFT_REJECT_TCP_RST => Some(Expr::Reject(Reject::TcpReset)),
        _ => None,
    })
}

fn ct(body: Attrs<'_>) -> Result<Option<Expr>, DecodeError> {
    let key = match number(&body, NFTA_CT_KEY, "ct key")? {
        NFT_CT_STATE => CtKey::State,
        NFT_CT_STATUS => CtKey::Status,
        _ => return Ok(None),
    };
    if body.clone().find(NFTA_CT_DREG).is_none() {
        return Ok(None);
    }
    Ok(Some(Expr::Ct(key, register(&body, NFTA_CT_DREG, "ct register")?)))
}

fn fib(body: Attrs<'_>) -> Result<Option<Expr>, DecodeError> {
    let result = number(&body, NFTA_FIB_RESULT, "fib result")?;
    let of = match (result, number(&body, NFTA_FIB_FLAGS, "fib flags")?) {
        (NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_SADDR) => FibOf::Source,
        (NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_DADDR) => FibOf::Destination,
        _ => return Ok(None),
    };
    Ok(Some(Expr::FibType(of, register(&body, NFTA_FIB_DREG, "fib register")?)))
}

fn numgen(body: Attrs<'_>) -> Result<Option<Expr>, DecodeError> {
    let random = number(&body, NFTA_NG_TYPE, "numgen type")? == NFT_NG_RANDOM;
    if !random || number_or(&body, NFTA_NG_OFFSET, 0)? != 0 {
        return Ok(None);
    }
    let to = register(&body, NFTA_NG_DREG, "numgen register")?;
    Ok(Some(Expr::Random { modulus: number(&body, NFTA_NG_MODULUS, "modulus")?, to }))
}

fn dynset(body: Attrs<'_>) -> Result<Option<Expr>, DecodeError> {
    let plain = number(&body, NFTA_DYNSET_OP, "dynset operation")? == NFT_DYNSET_OP_UPDATE
        && body.clone().find(NFTA_DYNSET_TIMEOUT).map_or(Ok(0), |a| a.be64("dynset timeout"))? == 0
        && body.clone().find(NFTA_DYNSET_SREG_DATA).is_none();
    if !plain {
        return Ok(None);
    }
    Ok(Some(Expr::Update {
        set: body.clone().need(NFTA_DYNSET_SET_NAME, "set name")?.str("set name")?.into(),
        key: register(&body, NFTA_DYNSET_SREG_KEY, "dynset key")?,
    }))
}

/// Prints bytes as nft prints values: words of four bytes in hexadecimal.
struct HexWords<'a>(&'a [u8]);

impl fmt::Display for HexWords<'_> {
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
                write!(f, "[ cmp {} {register}{} ]", if *equal { "eq" } else { "neq" }, HexWords(value))
            }
            Expr::Bitwise { register, mask, xor } => {
                write!(f, "[ bitwise {register} = ( {register} &{} ) ^{} ]", HexWords(mask), HexWords(xor))
            }
            Expr::Lookup { set, key } => write!(f, "[ lookup {key} set {set} ]"),
            Expr::Map { set, key, to } => write!(f, "[ lookup {key} set {set} d{to} ]"),
            Expr::VerdictMap { set, key } => write!(f, "[ lookup {key} set {set} dreg 0 ]"),
            Expr::Immediate(to, value) => write!(f, "[ immediate {to}{} ]", HexWords(value)),
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
