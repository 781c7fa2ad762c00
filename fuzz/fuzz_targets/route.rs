//! Links, addresses, routes and neighbours as the kernel lists them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portway_netlink::route::{Address, Link, Neighbour, Route};

fuzz_target!(|body: &[u8]| {
    let _ = Link::decode(body);
    let _ = Address::decode(body);
    let _ = Route::decode(body);
    let _ = Neighbour::decode(body);
});
