//! A tracked flow as the kernel lists it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portway_netlink::conntrack::decode;
use portway_netlink::message::attrs;

fuzz_target!(|body: &[u8]| {
    let _ = decode(attrs(body));
});
