//! The kernel's names for the numbers of the nf_tables netlink interface that Portway uses.
//!
//! They come from `linux/netfilter/nf_tables.h` (`NFT_*`, `NFTA_*`), `linux/netfilter/nfnetlink.h` (`NFNL_*`,
//! `NFNLGRP_*`), `linux/netfilter.h` (`NF_*`, `NFPROTO_*`), `linux/netfilter/nf_nat.h` (`NF_NAT_*`) and libnftnl's
//! `udata.h` (`NFTNL_*`). A message type includes the subsystem in its upper byte, as in the netlink header.

pub(super) const NFNL_SUBSYS_NFTABLES: u16 = 10;
pub(super) const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
pub(super) const NFNL_MSG_BATCH_END: u16 = 0x11;
pub(super) const NFNLGRP_NFTABLES: u32 = 7;

pub(super) const NFT_MSG_NEWTABLE: u16 = message_type(0);
pub(super) const NFT_MSG_GETTABLE: u16 = message_type(1);
pub(super) const NFT_MSG_DELTABLE: u16 = message_type(2);
pub(super) const NFT_MSG_NEWCHAIN: u16 = message_type(3);
pub(super) const NFT_MSG_GETCHAIN: u16 = message_type(4);
pub(super) const NFT_MSG_DELCHAIN: u16 = message_type(5);
pub(super) const NFT_MSG_NEWRULE: u16 = message_type(6);
pub(super) const NFT_MSG_GETRULE: u16 = message_type(7);
pub(super) const NFT_MSG_DELRULE: u16 = message_type(8);
pub(super) const NFT_MSG_NEWSET: u16 = message_type(9);
pub(super) const NFT_MSG_GETSET: u16 = message_type(10);
pub(super) const NFT_MSG_DELSET: u16 = message_type(11);
pub(super) const NFT_MSG_NEWSETELEM: u16 = message_type(12);
pub(super) const NFT_MSG_GETSETELEM: u16 = message_type(13);
pub(super) const NFT_MSG_DELSETELEM: u16 = message_type(14);
pub(super) const NFT_MSG_NEWGEN: u16 = message_type(15);
pub(super) const NFT_MSG_GETGEN: u16 = message_type(16);

pub(super) const NFPROTO_UNSPEC: u8 = 0;
pub(super) const NFPROTO_IPV4: u8 = 2;
pub(super) const NFPROTO_IPV6: u8 = 10;

pub(super) const NF_INET_PRE_ROUTING: u32 = 0;
pub(super) const NF_INET_LOCAL_IN: u32 = 1;
pub(super) const NF_INET_FORWARD: u32 = 2;
pub(super) const NF_INET_LOCAL_OUT: u32 = 3;
pub(super) const NF_INET_POST_ROUTING: u32 = 4;

pub(super) const NF_DROP: i32 = 0;
pub(super) const NF_ACCEPT: i32 = 1;
#[cfg(test)]
pub(super) const NFT_CONTINUE: i32 = -1;
pub(super) const NFT_JUMP: i32 = -3;
pub(super) const NFT_GOTO: i32 = -4;
pub(super) const NFT_RETURN: i32 = -5;

pub(super) const NFTA_GEN_ID: u16 = 1;
pub(super) const NFTA_GEN_PROC_PID: u16 = 2;
pub(super) const NFTA_GEN_PROC_NAME: u16 = 3;

pub(super) const NFTA_TABLE_NAME: u16 = 1;
pub(super) const NFTA_TABLE_FLAGS: u16 = 2;
pub(super) const NFTA_TABLE_USE: u16 = 3;

pub(super) const NFTA_CHAIN_TABLE: u16 = 1;
pub(super) const NFTA_CHAIN_NAME: u16 = 3;
pub(super) const NFTA_CHAIN_HOOK: u16 = 4;
pub(super) const NFTA_CHAIN_POLICY: u16 = 5;
pub(super) const NFTA_CHAIN_TYPE: u16 = 7;
pub(super) const NFTA_HOOK_HOOKNUM: u16 = 1;
pub(super) const NFTA_HOOK_PRIORITY: u16 = 2;

pub(super) const NFTA_RULE_TABLE: u16 = 1;
pub(super) const NFTA_RULE_CHAIN: u16 = 2;
pub(super) const NFTA_RULE_HANDLE: u16 = 3;
pub(super) const NFTA_RULE_EXPRESSIONS: u16 = 4;

pub(super) const NFTA_SET_TABLE: u16 = 1;
pub(super) const NFTA_SET_NAME: u16 = 2;
pub(super) const NFTA_SET_FLAGS: u16 = 3;
pub(super) const NFTA_SET_KEY_TYPE: u16 = 4;
pub(super) const NFTA_SET_KEY_LEN: u16 = 5;
pub(super) const NFTA_SET_DATA_TYPE: u16 = 6;
pub(super) const NFTA_SET_DATA_LEN: u16 = 7;
pub(super) const NFTA_SET_DESC: u16 = 9;
pub(super) const NFTA_SET_ID: u16 = 10;
pub(super) const NFTA_SET_TIMEOUT: u16 = 11;
pub(super) const NFTA_SET_USERDATA: u16 = 13;
pub(super) const NFTA_SET_DESC_SIZE: u16 = 1;
pub(super) const NFTA_SET_DESC_CONCAT: u16 = 2;
pub(super) const NFTA_SET_FIELD_LEN: u16 = 1;
/// The value type of a verdict map.
pub(super) const NFT_DATA_VERDICT: u32 = 0xffff_ff00;

pub(super) const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
pub(super) const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub(super) const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
pub(super) const NFTA_SET_ELEM_KEY: u16 = 1;
pub(super) const NFTA_SET_ELEM_DATA: u16 = 2;
pub(super) const NFTA_SET_ELEM_FLAGS: u16 = 3;
pub(super) const NFTA_SET_ELEM_USERDATA: u16 = 6;
pub(super) const NFTA_SET_ELEM_KEY_END: u16 = 10;
pub(super) const NFT_SET_ELEM_INTERVAL_END: u32 = 1;
/// In the userdata of an element: type, length, and the comment with its terminating NUL.
pub(super) const NFTNL_UDATA_SET_ELEM_COMMENT: u8 = 0;
/// Largest length of a comment, with its terminating NUL.
pub(super) const NFTNL_UDATA_COMMENT_MAXLEN: usize = 128;

pub(super) const NFTA_LIST_ELEM: u16 = 1;
pub(super) const NFTA_DATA_VALUE: u16 = 1;
pub(super) const NFTA_DATA_VERDICT: u16 = 2;
pub(super) const NFTA_VERDICT_CODE: u16 = 1;
pub(super) const NFTA_VERDICT_CHAIN: u16 = 2;

pub(super) const NFTA_EXPR_NAME: u16 = 1;
pub(super) const NFTA_EXPR_DATA: u16 = 2;

/// The register that holds the verdict.
pub(super) const NFT_REG_VERDICT: u32 = 0;
/// The first of four 16-byte registers.
pub(super) const NFT_REG_1: u32 = 1;
pub(super) const NFT_REG_4: u32 = 4;
/// The first of sixteen 4-byte registers.
pub(super) const NFT_REG32_00: u32 = 8;
pub(super) const NFT_REG32_15: u32 = 23;

pub(super) const NFTA_META_DREG: u16 = 1;
pub(super) const NFTA_META_KEY: u16 = 2;
pub(super) const NFTA_META_SREG: u16 = 3;
pub(super) const NFT_META_MARK: u32 = 3;
pub(super) const NFT_META_IIFNAME: u32 = 6;
pub(super) const NFT_META_L4PROTO: u32 = 16;

pub(super) const NFTA_PAYLOAD_DREG: u16 = 1;
pub(super) const NFTA_PAYLOAD_BASE: u16 = 2;
pub(super) const NFTA_PAYLOAD_OFFSET: u16 = 3;
pub(super) const NFTA_PAYLOAD_LEN: u16 = 4;
pub(super) const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
pub(super) const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;

pub(super) const NFTA_CMP_SREG: u16 = 1;
pub(super) const NFTA_CMP_OP: u16 = 2;
pub(super) const NFTA_CMP_DATA: u16 = 3;
pub(super) const NFT_CMP_EQ: u32 = 0;
pub(super) const NFT_CMP_NEQ: u32 = 1;

pub(super) const NFTA_BITWISE_SREG: u16 = 1;
pub(super) const NFTA_BITWISE_DREG: u16 = 2;
pub(super) const NFTA_BITWISE_LEN: u16 = 3;
pub(super) const NFTA_BITWISE_MASK: u16 = 4;
pub(super) const NFTA_BITWISE_XOR: u16 = 5;
pub(super) const NFTA_BITWISE_OP: u16 = 6;
/// `NFT_BITWISE_BOOL` in headers before Linux 6.12.
pub(super) const NFT_BITWISE_MASK_XOR: u32 = 0;

pub(super) const NFTA_LOOKUP_SET: u16 = 1;
pub(super) const NFTA_LOOKUP_SREG: u16 = 2;
pub(super) const NFTA_LOOKUP_DREG: u16 = 3;
pub(super) const NFTA_LOOKUP_FLAGS: u16 = 5;

pub(super) const NFTA_IMMEDIATE_DREG: u16 = 1;
pub(super) const NFTA_IMMEDIATE_DATA: u16 = 2;

pub(super) const NFTA_NAT_TYPE: u16 = 1;
pub(super) const NFTA_NAT_FAMILY: u16 = 2;
pub(super) const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
pub(super) const NFTA_NAT_REG_ADDR_MAX: u16 = 4;
pub(super) const NFTA_NAT_REG_PROTO_MIN: u16 = 5;
pub(super) const NFTA_NAT_REG_PROTO_MAX: u16 = 6;
pub(super) const NFTA_NAT_FLAGS: u16 = 7;
pub(super) const NFT_NAT_DNAT: u32 = 1;
pub(super) const NF_NAT_RANGE_MAP_IPS: u32 = 1;
pub(super) const NF_NAT_RANGE_PROTO_SPECIFIED: u32 = 2;

pub(super) const NFTA_MASQ_FLAGS: u16 = 1;

pub(super) const NFTA_REJECT_TYPE: u16 = 1;
pub(super) const NFTA_REJECT_ICMP_CODE: u16 = 2;
pub(super) const NFT_REJECT_ICMP_UNREACH: u32 = 0;
pub(super) const NFT_REJECT_TCP_RST: u32 = 1;

pub(super) const NFTA_CT_DREG: u16 = 1;
pub(super) const NFTA_CT_KEY: u16 = 2;
pub(super) const NFT_CT_STATE: u32 = 0;
pub(super) const NFT_CT_STATUS: u32 = 2;

pub(super) const NFTA_FIB_DREG: u16 = 1;
pub(super) const NFTA_FIB_RESULT: u16 = 2;
pub(super) const NFTA_FIB_FLAGS: u16 = 3;
pub(super) const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
pub(super) const NFTA_FIB_F_SADDR: u32 = 1;
pub(super) const NFTA_FIB_F_DADDR: u32 = 2;

pub(super) const NFTA_NG_DREG: u16 = 1;
pub(super) const NFTA_NG_MODULUS: u16 = 2;
pub(super) const NFTA_NG_TYPE: u16 = 3;
pub(super) const NFTA_NG_OFFSET: u16 = 4;
pub(super) const NFT_NG_RANDOM: u32 = 1;

pub(super) const NFTA_DYNSET_SET_NAME: u16 = 1;
pub(super) const NFTA_DYNSET_OP: u16 = 3;
pub(super) const NFTA_DYNSET_SREG_KEY: u16 = 4;
pub(super) const NFTA_DYNSET_SREG_DATA: u16 = 5;
pub(super) const NFTA_DYNSET_TIMEOUT: u16 = 6;
pub(super) const NFT_DYNSET_OP_UPDATE: u32 = 1;

/// Size of `struct nfgenmsg`.
pub(super) const NFGENMSG_LEN: usize = 4;

/// `struct nfgenmsg`: family, version, and a resource id in network order.
pub(super) fn nfgenmsg(family: u8, resource: u16) -> [u8; NFGENMSG_LEN] {
    let id = resource.to_be_bytes();
    [family, 0, id[0], id[1]]
}

const fn message_type(message: u16) -> u16 {
    NFNL_SUBSYS_NFTABLES << 8 | message
}
