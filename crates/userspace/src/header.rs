//! The header of the PROXY protocol, version 2: the client's address, which the pod receives before any other byte.
//!
//! <https://www.haproxy.org/download/1.8/doc/proxy-protocol.txt>, section 2.2.

use std::net::{IpAddr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const VERSION_AND_COMMAND: u8 = 0x21;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

/// The header for a TCP connection. Both addresses are of one family.
pub(crate) fn header(client: SocketAddr, original: SocketAddr) -> Vec<u8> {
    let mut addresses = Vec::with_capacity(36);
    for ip in [client.ip(), original.ip()] {
        match ip {
            IpAddr::V4(ip) => addresses.extend(ip.octets()),
            IpAddr::V6(ip) => addresses.extend(ip.octets()),
        }
    }
    for port in [client.port(), original.port()] {
        addresses.extend(port.to_be_bytes());
    }
    let family = if client.is_ipv4() { TCP_OVER_IPV4 } else { TCP_OVER_IPV6 };
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend([VERSION_AND_COMMAND, family]);
    bytes.extend((addresses.len() as u16).to_be_bytes());
    bytes.extend(addresses);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_header_has_the_bytes_of_the_specification() {
        let bytes =
            header("10.1.2.3:4660".parse().expect("address"), "10.96.0.1:80".parse().expect("address"));
        let wanted = [
            &b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a"[..],
            &[0x21, 0x11, 0, 12, 10, 1, 2, 3, 10, 96, 0, 1, 0x12, 0x34, 0, 80],
        ]
        .concat();
        assert_eq!(bytes, wanted);
    }

    #[test]
    fn an_ipv6_header_has_36_bytes_of_addresses() {
        let bytes =
            header("[fd00::1]:1".parse().expect("address"), "[fd96::1]:443".parse().expect("address"));
        assert_eq!(&bytes[12..16], &[0x21, 0x21, 0, 36]);
        assert_eq!(bytes.len(), 16 + 36);
        assert_eq!(&bytes[48..], &[0, 1, 1, 187]);
    }
}
