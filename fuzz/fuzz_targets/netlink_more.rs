//! Sets, virtual servers, counters and the shapes of legacy tables as the kernel tells them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portway_netlink::ipset::{SetInfo, decode_members};
use portway_netlink::ipvs::{RealServer, Timeouts, VirtualServer};
use portway_netlink::message::attrs;
use portway_netlink::xtables::TableInfo;
use portway_netlink::{genl, nfacct};

fuzz_target!(|body: &[u8]| {
    let _ = SetInfo::decode(attrs(body));
    let mut members = Vec::new();
    let _ = decode_members(attrs(body), &mut members);
    // Every member takes at least its header.
    assert!(members.len() <= body.len() / 4);
    let _ = VirtualServer::decode(attrs(body));
    for family in [2, 10] {
        let _ = RealServer::decode(attrs(body), family);
    }
    let _ = Timeouts::decode(attrs(body));
    let _ = nfacct::decode(attrs(body));
    let _ = genl::decode_family(attrs(body));
    let _ = TableInfo::decode(body);
});
