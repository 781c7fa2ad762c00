//! Addresses of links (`struct ifaddrmsg`, `linux/if_addr.h`).

use super::{Scope, attr_ip, decode_ip, family, fixed};
use crate::Malformed;
use crate::message::{Buffer, attrs};
use ipnet::IpNet;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_CACHEINFO: u16 = 6;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u32 = 0x02;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;

/// An address of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The link's number.
    pub link: u32,
    /// The address with the length of its network.
    pub net: IpNet,
    /// How far it reaches.
    pub scope: Scope,
    /// Whether it is used without first asking the link if somebody else has it (IPv6 only).
    pub no_dad: bool,
    /// Whether the kernel is still asking, or has not got round to hearing neighbours ask for it (IPv6 only). It
    /// says so itself; of an address to be added it is ignored.
    pub tentative: bool,
    /// Whether packets of this host leave with another one, if there is one (IPv6 only).
    pub deprecated: bool,
}

impl Address {
    /// An address that reaches as far as addresses of its kind do, and is used without asking.
    ///
    /// Without asking is not at once: the kernel joins the address's multicast group a little later, and neighbours
    /// who ask before that wait a second for their next attempt. Who has switched detection off for the whole
    /// namespace can do without `no_dad`, and see by `tentative` when it is done.
    pub fn new(link: u32, net: IpNet) -> Address {
        let scope = match net {
            IpNet::V4(net) if net.addr().is_link_local() => Scope::Link,
            IpNet::V6(net) if net.addr().is_unicast_link_local() => Scope::Link,
            _ => Scope::Universe,
        };
        Address { link, net, scope, no_dad: matches!(net, IpNet::V6(_)), tentative: false, deprecated: false }
    }

    /// The same address, but one that packets of this host do not leave with if there is another. IPv4 knows no such
    /// thing.
    pub fn deprecated(self) -> Address {
        Address { deprecated: self.net.addr().is_ipv6(), ..self }
    }

    /// Reads the body of an `RTM_NEWADDR` message.
    pub fn decode(body: &[u8]) -> Result<Address, Malformed> {
        let [family, length, flags, scope, l0, l1, l2, l3]: [u8; 8] = fixed(body, "address header")?;
        let all = attrs(&body[8..]);
        // On a point-to-point link ADDRESS is the far end and LOCAL is ours; IPv6 gives only ADDRESS.
        let own = all.clone().find(IFA_LOCAL).or_else(|| all.clone().find(IFA_ADDRESS));
        let own = own.ok_or(Malformed::Missing("address"))?;
        let ip = decode_ip(family, own.value, "address")?;
        let net = IpNet::new(ip, length)
            .map_err(|_| Malformed::Unknown { what: "address prefix length", value: length.into() })?;
        let flags = match all.find(IFA_FLAGS) {
            Some(wide) => wide.u32("address flags")?,
            None => flags.into(),
        };
        Ok(Address {
            link: u32::from_ne_bytes([l0, l1, l2, l3]),
            net,
            scope: Scope::from_code(scope),
            no_dad: flags & IFA_F_NODAD != 0,
            tentative: flags & IFA_F_TENTATIVE != 0,
            deprecated: flags & IFA_F_DEPRECATED != 0,
        })
    }

    pub(super) fn fill(&self, b: &mut Buffer) {
        let flags = if self.no_dad { IFA_F_NODAD } else { 0 };
        let flags = if self.tentative { flags | IFA_F_TENTATIVE } else { flags };
        let flags = if self.deprecated { flags | IFA_F_DEPRECATED } else { flags };
        let ip = self.net.addr();
        b.raw(&[family(ip), self.net.prefix_len(), flags as u8, self.scope.code()]);
        b.raw(&self.link.to_ne_bytes());
        attr_ip(b, IFA_LOCAL, ip);
        attr_ip(b, IFA_ADDRESS, ip);
        b.attr_u32(IFA_FLAGS, flags);
        if self.deprecated {
            // `struct ifa_cacheinfo`: preferred for no time, valid for ever; the kernel makes the flag of that.
            let times = [0, u32::MAX, 0, 0].map(u32::to_ne_bytes);
            b.attr(IFA_CACHEINFO, &times.concat());
        }
    }
}
