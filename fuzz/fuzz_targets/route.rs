//! Links, addresses, routes and neighbours as the kernel lists them, and what it tells of their changes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portway_netlink::message::messages;
use portway_netlink::route::{Address, Event, Link, Neighbour, Route};

fuzz_target!(|body: &[u8]| {
    let _ = Link::decode(body);
    let _ = Address::decode(body);
    let _ = Route::decode(body);
    let _ = Neighbour::decode(body);
    for message in messages(body).flatten() {
        let _ = Event::decode(&message);
    }
});
