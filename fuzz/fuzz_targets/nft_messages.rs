//! A datagram from nf_tables: whatever is in it is a value or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portway_netlink::message::messages;
use portway_netlink::nft::{Change, list};

fuzz_target!(|datagram: &[u8]| {
    // The walk ends: every message takes at least its header.
    let most = datagram.len() / 16 + 1;
    assert!(messages(datagram).count() <= most);
    for message in messages(datagram).flatten() {
        let _ = list::decode_any(&message);
        let _ = Change::decode(&message);
    }
});
