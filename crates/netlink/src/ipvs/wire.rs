//! The kernel's names for the numbers of the IPVS protocol, from `linux/ip_vs.h`.

/// Name and version of the generic netlink family.
pub(super) const IPVS_GENL_NAME: &str = "IPVS";
pub(super) const IPVS_GENL_VERSION: u8 = 1;

pub(super) const IPVS_CMD_NEW_SERVICE: u8 = 1;
pub(super) const IPVS_CMD_SET_SERVICE: u8 = 2;
pub(super) const IPVS_CMD_DEL_SERVICE: u8 = 3;
pub(super) const IPVS_CMD_GET_SERVICE: u8 = 4;
pub(super) const IPVS_CMD_NEW_DEST: u8 = 5;
pub(super) const IPVS_CMD_SET_DEST: u8 = 6;
pub(super) const IPVS_CMD_DEL_DEST: u8 = 7;
pub(super) const IPVS_CMD_GET_DEST: u8 = 8;
pub(super) const IPVS_CMD_SET_CONFIG: u8 = 12;
pub(super) const IPVS_CMD_GET_CONFIG: u8 = 13;

/// A virtual server.
pub(super) const IPVS_CMD_ATTR_SERVICE: u16 = 1;
/// A real server.
pub(super) const IPVS_CMD_ATTR_DEST: u16 = 2;
pub(super) const IPVS_CMD_ATTR_TIMEOUT_TCP: u16 = 4;
pub(super) const IPVS_CMD_ATTR_TIMEOUT_TCP_FIN: u16 = 5;
pub(super) const IPVS_CMD_ATTR_TIMEOUT_UDP: u16 = 6;

pub(super) const IPVS_SVC_ATTR_AF: u16 = 1;
pub(super) const IPVS_SVC_ATTR_PROTOCOL: u16 = 2;
pub(super) const IPVS_SVC_ATTR_ADDR: u16 = 3;
pub(super) const IPVS_SVC_ATTR_PORT: u16 = 4;
pub(super) const IPVS_SVC_ATTR_FWMARK: u16 = 5;
pub(super) const IPVS_SVC_ATTR_SCHED_NAME: u16 = 6;
pub(super) const IPVS_SVC_ATTR_FLAGS: u16 = 7;
pub(super) const IPVS_SVC_ATTR_TIMEOUT: u16 = 8;
pub(super) const IPVS_SVC_ATTR_NETMASK: u16 = 9;

pub(super) const IPVS_DEST_ATTR_ADDR: u16 = 1;
pub(super) const IPVS_DEST_ATTR_PORT: u16 = 2;
pub(super) const IPVS_DEST_ATTR_FWD_METHOD: u16 = 3;
pub(super) const IPVS_DEST_ATTR_WEIGHT: u16 = 4;
pub(super) const IPVS_DEST_ATTR_U_THRESH: u16 = 5;
pub(super) const IPVS_DEST_ATTR_L_THRESH: u16 = 6;
pub(super) const IPVS_DEST_ATTR_ACTIVE_CONNS: u16 = 7;
pub(super) const IPVS_DEST_ATTR_INACT_CONNS: u16 = 8;
pub(super) const IPVS_DEST_ATTR_PERSIST_CONNS: u16 = 9;
pub(super) const IPVS_DEST_ATTR_ADDR_FAMILY: u16 = 11;

pub(super) const IP_VS_CONN_F_MASQ: u32 = 0;
pub(super) const IP_VS_CONN_F_LOCALNODE: u32 = 1;
pub(super) const IP_VS_CONN_F_TUNNEL: u32 = 2;
pub(super) const IP_VS_CONN_F_DROUTE: u32 = 3;
pub(super) const IP_VS_CONN_F_BYPASS: u32 = 4;

pub(super) const AF_INET: u8 = libc::AF_INET as u8;
pub(super) const AF_INET6: u8 = libc::AF_INET6 as u8;
