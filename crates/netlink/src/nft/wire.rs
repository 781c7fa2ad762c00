//! Numbers of the nf_tables netlink interface (`linux/netfilter/nf_tables.h`, `nfnetlink.h`).

pub(super) const SUBSYSTEM: u16 = 10 << 8;
pub(super) const BATCH_BEGIN: u16 = 0x10;
pub(super) const BATCH_END: u16 = 0x11;
pub(super) const GROUP: u32 = 7;

pub(super) const NEWTABLE: u16 = SUBSYSTEM;
pub(super) const GETTABLE: u16 = SUBSYSTEM | 1;
pub(super) const DELTABLE: u16 = SUBSYSTEM | 2;
pub(super) const NEWCHAIN: u16 = SUBSYSTEM | 3;
pub(super) const GETCHAIN: u16 = SUBSYSTEM | 4;
pub(super) const DELCHAIN: u16 = SUBSYSTEM | 5;
pub(super) const NEWRULE: u16 = SUBSYSTEM | 6;
pub(super) const GETRULE: u16 = SUBSYSTEM | 7;
pub(super) const DELRULE: u16 = SUBSYSTEM | 8;
pub(super) const NEWSET: u16 = SUBSYSTEM | 9;
pub(super) const GETSET: u16 = SUBSYSTEM | 10;
pub(super) const DELSET: u16 = SUBSYSTEM | 11;
pub(super) const NEWSETELEM: u16 = SUBSYSTEM | 12;
pub(super) const GETSETELEM: u16 = SUBSYSTEM | 13;
pub(super) const DELSETELEM: u16 = SUBSYSTEM | 14;
pub(super) const NEWGEN: u16 = SUBSYSTEM | 15;
pub(super) const GETGEN: u16 = SUBSYSTEM | 16;

/// Every object names its table in this attribute.
pub(super) const TABLE: u16 = 1;

pub(super) const LIST_ELEM: u16 = 1;
pub(super) const DATA_VALUE: u16 = 1;
pub(super) const DATA_VERDICT: u16 = 2;
pub(super) const VERDICT_CODE: u16 = 1;
pub(super) const VERDICT_CHAIN: u16 = 2;

/// `struct nfgenmsg`: family, version, and a resource id in network order.
pub(super) fn header(family: u8, resource: u16) -> [u8; 4] {
    let id = resource.to_be_bytes();
    [family, 0, id[0], id[1]]
}
