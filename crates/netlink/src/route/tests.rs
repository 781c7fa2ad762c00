//! Encoded values decode to equal values, malformed bytes are errors and never a panic, and changes have the expected
//! descriptions. The tests of the lab and `tests/kernel` use a real kernel.

use super::*;
use ipnet::IpNet;
use proptest::prelude::*;

fn body(change: &Change<'_>) -> Vec<u8> {
    let mut buffer = Buffer::default();
    change.fill(&mut buffer);
    buffer.bytes().to_vec()
}

fn any_net() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        (any::<[u8; 4]>(), 0..=32u8).prop_map(|(ip, len)| IpNet::new(IpAddr::from(ip), len).unwrap()),
        (any::<[u8; 16]>(), 0..=128u8).prop_map(|(ip, len)| IpNet::new(IpAddr::from(ip), len).unwrap()),
    ]
}

fn any_scope() -> impl Strategy<Value = Scope> {
    any::<u8>().prop_map(Scope::from_code)
}

prop_compose! {
    fn any_address()(link: u32, net in any_net(), scope in any_scope(), no_dad: bool, tentative: bool, deprecated: bool) -> Address {
        Address { link, net, scope, no_dad, tentative, deprecated }
    }
}

prop_compose! {
    fn any_route()(
        to in any_net(),
        kind in any::<u8>().prop_map(RouteKind::from_code),
        has_gateway: bool,
        has_source: bool,
        link: Option<u32>,
        scope in any_scope(),
        onlink: bool,
        metric: Option<u32>,
        table: u32,
        protocol: u8,
    ) -> Route {
        let to = to.trunc();
        let address = to.addr();
        Route {
            to, kind, gateway: has_gateway.then_some(address), link, source: has_source.then_some(address),
            scope, onlink, metric, table, protocol,
        }
    }
}

proptest! {
    #[test]
    fn addresses_decode_to_equal_values(address in any_address()) {
        prop_assert_eq!(Address::decode(&body(&Change::AddAddress(address))), Ok(address));
    }

    #[test]
    fn routes_decode_to_equal_values(route in any_route()) {
        prop_assert_eq!(Route::decode(&body(&Change::AddRoute(route))), Ok(route));
    }

    #[test]
    fn neighbours_decode_to_equal_values(link: u32, net in any_net(), mac: Option<[u8; 6]>, permanent: bool) {
        let neighbour = Neighbour { link, ip: net.addr(), mac, permanent };
        prop_assert_eq!(Neighbour::decode(&body(&Change::SetNeighbour(neighbour))), Ok(neighbour));
    }

    #[test]
    fn random_bytes_cause_no_panic(bytes: Vec<u8>) {
        let _ = Link::decode(&bytes);
        let _ = Address::decode(&bytes);
        let _ = Route::decode(&bytes);
        let _ = Neighbour::decode(&bytes);
        for kind in [libc::RTM_NEWLINK, libc::RTM_DELLINK, libc::RTM_NEWADDR, libc::RTM_DELADDR, 99] {
            let _ = Event::decode(&Message { kind, flags: 0, seq: 0, port: 0, body: &bytes });
        }
    }

    #[test]
    fn aliases_decode_to_equal_values(alias in "[^\0]{0,50}") {
        let mut bytes = body(&Change::SetAlias { link: 7, alias: alias.clone() });
        let mut name = Buffer::default();
        name.attr_str(link::IFLA_IFNAME, "kube-ipvs0");
        bytes.extend_from_slice(name.bytes());
        let link = Link::decode(&bytes).unwrap();
        prop_assert_eq!((link.index, link.alias), (7, Some(alias)));
    }

    #[test]
    fn events_about_addresses_decode_to_equal_values(address in any_address()) {
        let bytes = body(&Change::AddAddress(address));
        for (kind, added) in [(libc::RTM_NEWADDR, true), (libc::RTM_DELADDR, false)] {
            let event = Event::decode(&Message { kind, flags: 0, seq: 0, port: 0, body: &bytes });
            prop_assert_eq!(event, Ok(Some(Event::Address { added, address })));
        }
    }

    #[test]
    fn truncated_routes_cause_no_panic(route in any_route(), cut in 0..80usize) {
        let whole = body(&Change::AddRoute(route));
        let _ = Route::decode(&whole[..cut.min(whole.len())]);
    }
}

#[test]
fn a_new_link_decodes_as_a_link() {
    let new = NewLink { name: "br0".into(), kind: LinkKind::Bridge, up: true, master: Some(7) };
    let link = Link::decode(&body(&Change::AddLink(new))).unwrap();
    assert_eq!((link.name.as_str(), link.kind.as_deref()), ("br0", Some("bridge")));
    assert_eq!((link.up, link.master), (true, Some(7)));
}

#[test]
fn a_bridge_port_event_is_not_a_link_event() {
    let new = NewLink { name: "eth0".into(), kind: LinkKind::Dummy, up: true, master: None };
    let mut bytes = body(&Change::AddLink(new));
    let decode =
        |body: &[u8]| Event::decode(&Message { kind: libc::RTM_DELLINK, flags: 0, seq: 0, port: 0, body });
    let deleted = Event::Link { added: false, index: 0, name: "eth0".into() };
    assert_eq!(decode(&bytes), Ok(Some(deleted)));
    bytes[0] = libc::AF_BRIDGE as u8;
    assert_eq!(decode(&bytes), Ok(None));
}

#[test]
fn changes_have_a_description() {
    let names = BTreeMap::from([(2, "eth0".to_owned()), (3, "br0".to_owned())]);
    let net = |text: &str| text.parse::<IpNet>().unwrap();
    let described = |change: Change<'_>| change.describe(&names);
    assert_eq!(
        described(Change::AddAddress(Address::new(2, net("10.0.0.1/32")))),
        "add address 10.0.0.1/32 to eth0"
    );
    assert_eq!(
        described(Change::AddRoute(Route::via(net("0.0.0.0/0"), "10.0.0.9".parse().unwrap(), 2))),
        "add route 0.0.0.0/0 via 10.0.0.9 on eth0"
    );
    assert_eq!(described(Change::AddRoute(Route::blackhole(net("::/0")))), "add route blackhole ::/0");
    assert_eq!(described(Change::SetMaster { link: 2, master: Some(3) }), "add eth0 to bridge br0");
    assert_eq!(described(Change::DeleteLink { link: 9 }), "delete link 9");
    assert_eq!(
        described(Change::SetAlias { link: 2, alias: "x y".into() }),
        "set the alias of eth0 to \"x y\""
    );
}
