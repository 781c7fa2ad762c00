//! Parsing and printing of rules.

use super::*;
use crate::chains::{Fixed, PortChain, Role};
use proptest::prelude::*;

/// The lines were printed by both variants of the tool.
#[test]
fn rules_that_the_tool_printed_are_parsed_and_printed_unchanged() {
    let lines = [
        r#" -m comment --comment "kubernetes service portals" -j KUBE-SERVICES"#,
        r#" -s 172.17.0.3/32 -m comment --comment "default/nginx" -j KUBE-MARK-MASQ"#,
        r#" -p tcp -m comment --comment "default/nginx" -m tcp -j DNAT --to-destination 172.17.0.3:80"#,
        r#" -p tcp -m comment --comment "a/b" -m recent --set --name KUBE-SEP-C2Y64IBVPH4YIBGX --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 172.17.0.3:80"#,
        r#" -m comment --comment "a/b" -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-C2Y64IBVPH4YIBGX --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -j KUBE-SEP-C2Y64IBVPH4YIBGX"#,
        r#" ! -s 10.244.0.0/16 -d 10.109.134.113/32 -p tcp -m comment --comment "default/nginx cluster IP" -m tcp --dport 8080 -j KUBE-MARK-MASQ"#,
        r#" -d 10.109.134.113/32 ! -i veth+ -p udp -m comment --comment "default/nginx cluster IP" -m udp --dport 8080 -j KUBE-MARK-MASQ"#,
        r#" -m comment --comment "default/nginx" -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-C2Y64IBVPH4YIBGX"#,
        r#" -m mark ! --mark 0x4000/0x4000 -j RETURN"#,
        r#" ! -s 10.244.0.0/16 -m comment --comment "cluster ip + port" -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ"#,
        r#" -d 10.96.0.0/12 -m addrtype ! --dst-type LOCAL -j DROP"#,
        r#" -m set ! --match-set KUBE-IPVS-IPS dst -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT"#,
        r#" -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE --random-fully"#,
        r#" -m connmark --mark 0x4000/0x4000 -j MASQUERADE --random-fully"#,
        r#" -m mark --mark 0x4000/0x4000 -j CONNMARK --set-xmark 0x4000/0x4000"#,
        r#" -m addrtype --src-type LOCAL -j SET --map-set KUBE-SHORT-CUT dst,dst --map-mark"#,
        r#" -j MARK --set-xmark 0x4000/0x0"#,
        r#" -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully"#,
        r#" ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"#,
        r#" -m comment --comment "x" -m conntrack --ctorigdst 127.0.0.0/8 -m nfacct --nfacct-name localhost_nps_accepted_pkts"#.replace("\"x\"", "x").leak(),
        r#" -d fd00::1/128 -p tcp -m comment --comment "a/b has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp6-port-unreachable"#,
        r#" -p sctp -m comment --comment "a/b" -m sctp -j DNAT --to-destination [fd00::1]:80"#,
        r#" -d 10.96.0.0/16 -m comment --comment "Service addresses without a Service\'s port" -j KUBE-CLUSTER-IPS"#,
        r#" -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"#,
    ];
    for line in lines {
        let rule = Rule::parse(line).unwrap_or_else(|| panic!("{line}"));
        assert_eq!(rule.to_string(), line);
    }
}

#[test]
fn other_spellings_are_parsed_as_the_same_rule() {
    let same = [
        (" -d 10.0.0.1 -j ACCEPT", " -d 10.0.0.1/32 -j ACCEPT"),
        (" -m comment --comment default/nginx -j DROP", r#" -m comment --comment "default/nginx" -j DROP"#),
        (
            " -m recent --name KUBE-SEP-C2Y64IBVPH4YIBGX --set --rsource -j RETURN",
            " -m recent --set --name KUBE-SEP-C2Y64IBVPH4YIBGX --mask 255.255.255.255 --rsource -j RETURN",
        ),
        (" -m mark --mark 16384/0x4000 -j RETURN", " -m mark --mark 0x4000/0x4000 -j RETURN"),
        (" -m comment --comment \"a \\\"b\\\\\"", " -m comment --comment \"a \\\"b\\\\\""),
    ];
    for (spelled, printed) in same {
        assert_eq!(Rule::parse(spelled).map(|r| r.to_string()).as_deref(), Some(printed), "{spelled}");
    }
}

#[test]
fn rules_that_no_mode_renders_are_not_parsed() {
    for line in [
        " -o eth0 -j ACCEPT",
        " ! -p tcp -j DROP",
        " -m tcp --sport 80 -j DROP",
        " -p icmp -j ACCEPT",
        " -m limit --limit 5/sec -j LOG --log-prefix \"x \"",
        " -m recent --update --seconds 5 --name x --rsource",
        " -j DNAT --to-destination 1.2.3.4",
        " -g KUBE-SERVICES",
        " -m comment --comment \"open",
        " -j TPROXY --on-port 1",
        " -m conntrack --ctstate NEW --ctdir ORIGINAL",
        r#" -j "two words""#,
        r#" -i "" -j ACCEPT"#,
        r#" -m nfacct --nfacct-name "a b""#,
        r#" -m recent --set --name "a b" --rsource"#,
    ] {
        assert_eq!(Rule::parse(line), None, "{line}");
    }
}

#[test]
fn probabilities_are_rounded_as_in_the_kernel() {
    let printed = |n| Probability::one_in(n).to_string();
    assert_eq!(printed(2), "0.50000000000");
    assert_eq!(printed(3), "0.33333333349");
    assert_eq!(printed(10), "0.10000000009");
    assert_eq!(printed(1), "1.00000000000");
}

fn family() -> impl Strategy<Value = bool> {
    any::<bool>()
}

fn chain() -> impl Strategy<Value = Chain> {
    prop_oneof![
        Just(Chain::from(Fixed::MarkMasq)),
        "[a-z]{1,8}".prop_map(|name| PortChain::of_port(Role::Cluster, &name, Protocol::Tcp).into()),
        "[a-z][a-z-]{0,20}".prop_map(|name| Chain::Other(name.into())),
    ]
}

fn net(v6: bool) -> impl Strategy<Value = IpNet> {
    (any::<u128>(), 0u8..=32).prop_map(move |(bits, length)| {
        let ip: std::net::IpAddr =
            if v6 { bits.to_be_bytes().into() } else { (bits as u32).to_be_bytes().into() };
        IpNet::new_assert(ip, length).trunc()
    })
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)]
}

fn lookup() -> impl Strategy<Value = Lookup> {
    let sides = prop_oneof![
        Just(Sides::Destination),
        Just(Sides::Source),
        Just(Sides::DestinationTwice),
        Just(Sides::DestinationTwiceSource),
    ];
    ("KUBE-[A-Z]{1,20}", sides).prop_map(|(set, sides)| Lookup { set: set.into(), sides })
}

fn condition(v6: bool) -> impl Strategy<Value = Match> {
    prop_oneof![
        "[ -~]{1,40}".prop_map(|text| Match::Comment(text.into())),
        (protocol(), proptest::option::of(any::<u16>()))
            .prop_map(|(protocol, destination)| Match::Port { protocol, destination }),
        (1u8..32, any::<bool>()).prop_map(|(s, not)| Match::State(Is { value: States(s), not })),
        net(v6).prop_map(Match::OriginalDestination),
        (any::<u32>(), any::<u32>(), any::<bool>()).prop_map(|(value, mask, not)| Match::Mark {
            value,
            mask,
            not
        }),
        Just(Match::SourceIsLocal),
        Just(Match::DestinationIsLocal),
        Just(Match::DestinationIsNotLocal),
        (0u32..=1 << 31).prop_map(|p| Match::Random(Probability(p))),
        (chain(), proptest::option::of(any::<u32>())).prop_map(move |(list, within)| Match::Recent(Recent {
            list,
            within,
            v6
        })),
        "[a-z_]{1,20}".prop_map(|name| Match::Count(name.into())),
        (lookup(), any::<bool>()).prop_map(|(value, not)| Match::Set(Is { value, not })),
        (any::<u32>(), any::<u32>()).prop_map(|(value, mask)| Match::ConnectionMark { value, mask }),
    ]
}

fn action(v6: bool) -> impl Strategy<Value = Action> {
    prop_oneof![
        chain().prop_map(Action::Jump),
        Just(Action::Accept),
        Just(Action::Return),
        Just(Action::Masquerade),
        Just(Action::Reject(if v6 { Refusal::Icmp6 } else { Refusal::Icmp })),
        (net(v6), any::<u16>()).prop_map(|(net, port)| Action::Dnat(Target { ip: net.addr(), port })),
        (any::<u32>(), any::<u32>()).prop_map(|(value, mask)| Action::Mark { value, mask }),
        (any::<u32>(), any::<u32>()).prop_map(|(value, mask)| Action::ConnectionMark { value, mask }),
        lookup().prop_map(Action::MapMark),
    ]
}

fn maybe<T: std::fmt::Debug>(value: impl Strategy<Value = T>) -> impl Strategy<Value = Option<Is<T>>> {
    proptest::option::of((value, any::<bool>()).prop_map(|(value, not)| Is { value, not }))
}

fn rule() -> impl Strategy<Value = Rule> {
    family().prop_flat_map(|v6| {
        let input = maybe("[a-z][a-z0-9]{0,10}\\+?".prop_map(Arc::from));
        let matches = proptest::collection::vec(condition(v6), 0..5);
        let protocol = proptest::option::of(protocol());
        let action = proptest::option::of(action(v6));
        (maybe(net(v6)), maybe(net(v6)), input, protocol, matches, action).prop_map(
            |(source, destination, input, protocol, matches, action)| Rule {
                source,
                destination,
                input,
                protocol,
                matches,
                action,
            },
        )
    })
}

proptest! {
    #[test]
    fn a_printed_rule_is_parsed_as_the_same_rule(rule in rule()) {
        prop_assert_eq!(Rule::parse(&rule.to_string()), Some(rule));
    }

    #[test]
    fn any_text_is_parsed_without_a_panic(text in "[ -~]{0,200}") {
        if let Some(rule) = Rule::parse(&text) {
            prop_assert_eq!(Rule::parse(&rule.to_string()), Some(rule));
        }
    }
}
