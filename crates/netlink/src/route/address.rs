//! Addresses of links: `struct ifaddrmsg` and the attributes of `linux/if_addr.h`.

use super::{Scope, attr_ip, decode_ip, family, fixed};
use crate::DecodeError;
use crate::message::{Buffer, attrs};
use ipnet::IpNet;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_CACHEINFO: u16 = 6;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u32 = 0x02;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;

/// Size of `struct ifaddrmsg`.
pub(super) const IFADDRMSG_LEN: usize = 8;

/// An address of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Index of the link.
    pub link: u32,
    /// The address with its prefix length.
    pub net: IpNet,
    /// Its scope.
    pub scope: Scope,
    /// Whether the kernel skips duplicate address detection (IPv6 only).
    pub no_dad: bool,
    /// Whether duplicate address detection is not finished, or the address's multicast group is not joined yet (IPv6
    /// only). The kernel reports it, and ignores it in an address to be added.
    pub tentative: bool,
    /// Whether the host prefers other addresses as source addresses (IPv6 only).
    pub deprecated: bool,
}

impl Address {
    /// An address with scope link if it is a link-local address, else universe, and without duplicate address
    /// detection.
    ///
    /// Such an IPv6 address is not reachable immediately: the kernel joins its multicast group a little later, and a
    /// neighbour that sends a solicitation before that retries only after a second. A caller that has disabled
    /// detection for the whole namespace can clear `no_dad`; then `tentative` shows when the address is reachable.
    pub fn new(link: u32, net: IpNet) -> Address {
        let scope = match net {
            IpNet::V4(net) if net.addr().is_link_local() => Scope::Link,
            IpNet::V6(net) if net.addr().is_unicast_link_local() => Scope::Link,
            _ => Scope::Universe,
        };
        Address { link, net, scope, no_dad: matches!(net, IpNet::V6(_)), tentative: false, deprecated: false }
    }

    /// The same address, deprecated: the host prefers other addresses as source addresses. Has no effect on IPv4.
    pub fn deprecated(self) -> Address {
        Address { deprecated: self.net.addr().is_ipv6(), ..self }
    }

    /// Decodes the body of an `RTM_NEWADDR` message.
    pub fn decode(body: &[u8]) -> Result<Address, DecodeError> {
        let [family, length, flags, scope, l0, l1, l2, l3]: [u8; IFADDRMSG_LEN] =
            fixed(body, "address header")?;
        let all = attrs(&body[IFADDRMSG_LEN..]);
        // If the address has a peer, IFA_ADDRESS is the address of the peer, and IFA_LOCAL that of the link. An IPv6
        // address without a peer has only IFA_ADDRESS.
        let own = all.clone().find(IFA_LOCAL).or_else(|| all.clone().find(IFA_ADDRESS));
        let own = own.ok_or(DecodeError::Missing("address"))?;
        let ip = decode_ip(family, own.value, "address")?;
        let net = IpNet::new(ip, length)
            .map_err(|_| DecodeError::Unknown { field: "address prefix length", value: length.into() })?;
        let flags = match all.find(IFA_FLAGS) {
            Some(attribute) => attribute.u32("address flags")?,
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
            // `struct ifa_cacheinfo`: a preferred lifetime of 0, from which the kernel derives the flag, and an
            // infinite valid lifetime.
            let times = [0, u32::MAX, 0, 0].map(u32::to_ne_bytes);
            b.attr(IFA_CACHEINFO, &times.concat());
        }
    }
}
