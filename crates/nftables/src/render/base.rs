//! What is there whatever the Services are: hooks, policy, and empty maps.

use super::dispatch::dispatch;
use crate::rules::{
    Names, Words, address_pairs, address_ranges, addresses, endpoint_map, flip_mark, frontend_set, goto,
    input_is, is_local, is_marked, is_new, is_unmarked, jump, masquerade, octets, protocol_is, rule,
    set_mark, source_range_set, state, verdict_map,
};
use crate::table::{ChainBody, Table};
use ipnet::IpNet;
use portway_dataplane::{LocalTraffic, Settings};
use portway_model::Protocol;
use portway_netlink::nft::expr::{CT_STATE_INVALID, FibOf, Reject};
use portway_netlink::nft::{ChainKind, Element, Expr, Family, Hook, HookPoint, Key, Rule, Set, Verdict};
use std::net::IpAddr;

/// Where destinations are translated (`NF_IP_PRI_NAT_DST`); what must see the VIP hooks in before, what must see
/// the endpoint hooks in after.
const DNAT: i32 = -100;
const SNAT: i32 = 100;

/// The constant part of the table.
pub fn base(names: &Names, family: Family, settings: &Settings) -> Table {
    let words = Words { family };
    let mut table = Table::default();
    sets(&mut table, names, family);
    hooks(&mut table, names, words, settings);
    policy(&mut table, names, words, settings);
    for (chain, rules) in dispatch(names, family, []) {
        table.chain(&chain, rules);
    }
    ranges(&mut table, &names.service_cidrs, &settings.service_cidrs(model_family(family)));
    ranges(
        &mut table,
        &names.nodeport_addresses,
        &settings.node_ports.ranges(model_family(family)).unwrap_or_default(),
    );
    table
}

fn model_family(family: Family) -> portway_model::Family {
    match family {
        Family::Ipv4 => portway_model::Family::V4,
        Family::Ipv6 => portway_model::Family::V6,
    }
}

fn sets(table: &mut Table, n: &Names, family: Family) {
    let all: [Set; 18] = [
        endpoint_map(&n.endpoints, family, true),
        endpoint_map(&n.short_cut_endpoints, family, true),
        endpoint_map(&n.nodeport_endpoints, family, false),
        endpoint_map(&n.nodeport_short_cut_endpoints, family, false),
        verdict_map(&n.sticky_services, family, true),
        verdict_map(&n.sticky_short_cuts, family, true),
        verdict_map(&n.sticky_nodeports, family, false),
        verdict_map(&n.sticky_nodeport_short_cuts, family, false),
        frontend_set(&n.refused, family, true),
        frontend_set(&n.dropped, family, true),
        frontend_set(&n.refused_nodeports, family, false),
        frontend_set(&n.dropped_nodeports, family, false),
        frontend_set(&n.guarded, family, true),
        source_range_set(&n.source_ranges, family),
        address_pairs(&n.hairpin, family),
        addresses(&n.cluster_ips, family),
        address_ranges(&n.service_cidrs, family),
        address_ranges(&n.nodeport_addresses, family),
    ];
    table.sets.extend(all.into_iter().map(|set| (set.name.clone(), set)));
}

/// The base chains, each of which hooks into a packet's path and sends it on.
fn hooks(table: &mut Table, n: &Names, words: Words, settings: &Settings) {
    let mut hook = |name: &str, kind, point, priority, rules| {
        let hook = Some(Hook { kind, point, priority, accept: true });
        table.chains.insert(name.into(), ChainBody { hook, rules });
    };
    let check =
        || vec![words.frontend_in(&is_new(), true, &n.guarded, Verdict::Goto(n.check_source.clone()))];
    let unless_bypassing = |rules: Vec<Rule>| -> Vec<Rule> {
        let bypass = settings.bypass_mark.map(|mark| rule(is_marked(mark), Verdict::Return));
        bypass.into_iter().chain(rules).collect()
    };
    // What this node sends itself was looked at when it left.
    let from_itself = settings.bypass_mark.map(|_| rule(input_is("lo", false), Verdict::Return));
    let unless_from_itself = from_itself.into_iter().chain(check()).collect();
    hook("filter-prerouting", ChainKind::Filter, HookPoint::Prerouting, DNAT - 10, unless_from_itself);
    hook("filter-output", ChainKind::Filter, HookPoint::Output, DNAT - 10, unless_bypassing(check()));

    let at_node = at_node_address(n, words, settings);
    let local = [at_node.clone(), is_local(FibOf::Destination).to_vec()].concat();
    let dispatch = || vec![jump(&n.services), rule(local.clone(), Verdict::Goto(n.nodeports.clone()))];
    hook("nat-prerouting", ChainKind::Nat, HookPoint::Prerouting, DNAT, dispatch());
    hook("nat-output", ChainKind::Nat, HookPoint::Output, DNAT, unless_bypassing(dispatch()));

    // What was not translated by now has no endpoint here. The node's own packets are looked at after
    // translation, so that policy Local without a local endpoint does not stop those that take the short cut.
    let refuse = "refuse".into();
    let new_to_refuse = || rule(is_new(), Verdict::Jump("refuse".into()));
    let reject = || Verdict::Goto(n.reject.clone());
    let nodeport = [is_new().to_vec(), at_node].concat();
    let input = vec![
        words.frontend_in(&is_new(), true, &n.refused, reject()),
        words.frontend_in(&is_new(), true, &n.dropped, Verdict::Drop),
        words.frontend_in(&nodeport, false, &n.refused_nodeports, reject()),
        words.frontend_in(&nodeport, false, &n.dropped_nodeports, Verdict::Drop),
    ];
    hook("filter-input", ChainKind::Filter, HookPoint::Input, DNAT - 10, input);
    let mut forward = Vec::new();
    if settings.drop_invalid {
        forward.push(rule(state(CT_STATE_INVALID), Verdict::Drop));
    }
    forward.push(new_to_refuse());
    hook("filter-forward", ChainKind::Filter, HookPoint::Forward, DNAT - 10, forward);
    hook("filter-output-post-dnat", ChainKind::Filter, HookPoint::Output, DNAT + 10, vec![new_to_refuse()]);

    hook("nat-postrouting", ChainKind::Nat, HookPoint::Postrouting, SNAT, postrouting(n, words, settings));

    table.chain(
        &refuse,
        vec![
            words.frontend_in(&[], true, &n.refused, reject()),
            words.frontend_in(&[], true, &n.dropped, Verdict::Drop),
            rule(words.destination_in(&n.cluster_ips), reject()),
            rule(words.destination_in(&n.service_cidrs), Verdict::Drop),
        ],
    );
}

fn postrouting(n: &Names, words: Words, settings: &Settings) -> Vec<Rule> {
    let mark = settings.masquerade_mark;
    let mut hairpin = words.is_hairpin(&n.hairpin);
    hairpin.push(masquerade());
    vec![
        Rule { exprs: hairpin },
        rule(is_unmarked(mark), Verdict::Return),
        Rule { exprs: flip_mark(mark).to_vec() },
        Rule { exprs: vec![masquerade()] },
    ]
}

/// The destination is an address at which node ports answer, if it is one of this node's.
fn at_node_address(n: &Names, words: Words, settings: &Settings) -> Vec<Expr> {
    let mut exprs = words.destination_outside(loopback(words.family));
    if settings.node_ports.ranges(model_family(words.family)).is_some() {
        exprs.extend(words.destination_in(&n.nodeport_addresses));
    }
    exprs
}

fn loopback(family: Family) -> IpNet {
    match family {
        Family::Ipv4 => IpNet::new_assert([127, 0, 0, 0].into(), 8),
        Family::Ipv6 => IpNet::new_assert(std::net::Ipv6Addr::LOCALHOST.into(), 128),
    }
}

/// The chains that policy is made of.
fn policy(table: &mut Table, n: &Names, words: Words, settings: &Settings) {
    let mark = settings.masquerade_mark;
    table.chain(&n.mark, vec![Rule { exprs: set_mark(mark).to_vec() }]);

    let pods = from_pods(words, &settings.local);
    let mut unless_pod = Vec::new();
    if settings.masquerade_all {
        unless_pod.push(goto(&n.mark));
    } else if !pods.is_empty() {
        unless_pod.extend(pods.iter().map(|pod| rule(pod.clone(), Verdict::Return)));
        unless_pod.push(goto(&n.mark));
    }
    table.chain(&n.mark_unless_pod, unless_pod);

    for (chain, elsewhere) in [(&n.short_cut, &n.short_cuts), (&n.nodeport_short_cut, &n.nodeport_short_cuts)]
    {
        let mut rules: Vec<Rule> =
            pods.iter().map(|pod| rule(pod.clone(), Verdict::Goto(elsewhere.clone()))).collect();
        let own = is_local(FibOf::Source);
        rules.push(rule(own.clone(), Verdict::Jump(n.mark.clone())));
        rules.push(rule(own, Verdict::Goto(elsewhere.clone())));
        table.chain(chain, rules);
    }

    let reset = [protocol_is(Protocol::Tcp).to_vec(), vec![Expr::Reject(Reject::TcpReset)]].concat();
    table.chain(&n.reject, vec![Rule { exprs: reset }, Rule { exprs: vec![words.unreachable()] }]);
    let allowed = words.source_allowed(&n.source_ranges);
    table.chain(&n.check_source, vec![rule(allowed, Verdict::Return), rule([], Verdict::Drop)]);
}

/// How a pod's traffic is told, once for each range.
fn from_pods(words: Words, local: &LocalTraffic) -> Vec<Vec<Expr>> {
    match local {
        LocalTraffic::Unknown => Vec::new(),
        LocalTraffic::Cidrs(ranges) => {
            let own = ranges.iter().filter(|r| r.addr().is_ipv4() == (words.family == Family::Ipv4));
            own.map(|r| words.source_within(*r)).collect()
        }
        LocalTraffic::Interface(name) => vec![input_is(name, false).to_vec()],
        LocalTraffic::InterfacePrefix(name) => vec![input_is(name, true).to_vec()],
    }
}

/// Ranges as a kernel's interval set wants them: where one begins, and behind where it ends.
fn ranges(table: &mut Table, set: &crate::table::Name, ranges: &[IpNet]) {
    // nft's mark of a range that has no end because it reaches the last address (`SET_ELEM_F_INTERVAL_OPEN`).
    let open = || -> std::sync::Arc<[u8]> { [&[1u8, 4][..], &1u32.to_ne_bytes()].concat().into() };
    for range in ranges {
        let first = Element::key(Key::new().field(&octets(range.network())));
        match next(range.broadcast()) {
            Some(end) => {
                table.element(set, first);
                let end = Element::key(Key::new().field(&octets(end)));
                table.element(set, Element { interval_end: true, ..end });
            }
            None => table.element(set, Element { userdata: Some(open()), ..first }),
        }
    }
}

fn next(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(a) => u32::from(a).checked_add(1).map(|n| IpAddr::V4(n.into())),
        IpAddr::V6(a) => u128::from(a).checked_add(1).map(|n| IpAddr::V6(n.into())),
    }
}
