//! The part of the table that does not depend on Services: base chains, policy chains, and empty sets and maps.

use super::dispatch::dispatch;
use crate::rules::{
    ExprBuilder, TableNames, address_pairs, address_ranges, addresses, endpoint_map, flip_mark, frontend_set,
    goto, input_is, is_local, is_marked, is_new, is_unmarked, jump, masquerade, octets, protocol_is, rule,
    set_mark, source_range_set, verdict_map,
};
use crate::table::{ChainBody, Table};
use ipnet::IpNet;
use portway_dataplane::{LocalTraffic, Settings};
use portway_model::Protocol;
use portway_netlink::nft::expr::{FibOf, Reject};
use portway_netlink::nft::{ChainKind, Element, Expr, Family, Hook, HookPoint, Key, Rule, Set, Verdict};
use std::net::IpAddr;

/// The priority of destination NAT (`NF_IP_PRI_NAT_DST`). Chains that match the VIP have a lower priority number, and
/// chains that run after translation a higher one.
const DNAT: i32 = -100;
/// The priority of source NAT (`NF_IP_PRI_NAT_SRC`).
const SNAT: i32 = 100;

/// The constant part of the table.
pub fn base(names: &TableNames, family: Family, settings: &Settings) -> Table {
    let exprs = ExprBuilder { family };
    let mut table = Table::default();
    sets(&mut table, names, family);
    hooks(&mut table, names, exprs, settings);
    policy(&mut table, names, exprs, settings);
    for (chain, rules) in dispatch(names, family, []) {
        table.chain(&chain, rules);
    }
    ranges(&mut table, &names.service_cidrs, &settings.service_cidrs(model_family(family)));
    table
}

fn model_family(family: Family) -> portway_model::Family {
    match family {
        Family::Ipv4 => portway_model::Family::V4,
        Family::Ipv6 => portway_model::Family::V6,
    }
}

fn sets(table: &mut Table, n: &TableNames, family: Family) {
    let all: [Set; 17] = [
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
    ];
    table.sets.extend(all.into_iter().map(|set| (set.name.clone(), set)));
}

/// The base chains, and the chain `refuse` that two of them jump to.
fn hooks(table: &mut Table, n: &TableNames, exprs: ExprBuilder, settings: &Settings) {
    let mut hook = |name: &str, kind, point, priority, rules| {
        let hook = Some(Hook { kind, point, priority, accept: true });
        table.chains.insert(name.into(), ChainBody { hook, rules });
    };
    let check =
        || vec![exprs.frontend_in(&is_new(), true, &n.guarded, Verdict::Goto(n.check_source.clone()))];
    let unless_bypassing = |rules: Vec<Rule>| -> Vec<Rule> {
        let bypass = settings.bypass_mark.map(|mark| rule(is_marked(mark), Verdict::Return));
        bypass.into_iter().chain(rules).collect()
    };
    // A packet that this node sends to itself has passed filter-output, with its exception for bypassing packets.
    let from_itself = settings.bypass_mark.map(|_| rule(input_is("lo", false), Verdict::Return));
    let unless_from_itself = from_itself.into_iter().chain(check()).collect();
    hook("filter-prerouting", ChainKind::Filter, HookPoint::Prerouting, DNAT - 10, unless_from_itself);
    hook("filter-output", ChainKind::Filter, HookPoint::Output, DNAT - 10, unless_bypassing(check()));

    let at_node = at_node_addresses(exprs, settings);
    let dispatch = || -> Vec<Rule> {
        let to_nodeports = |at: &Vec<Expr>| {
            let local = [at.clone(), is_local(FibOf::Destination).to_vec()].concat();
            rule(local, Verdict::Goto(n.nodeports.clone()))
        };
        [jump(&n.services)].into_iter().chain(at_node.iter().map(to_nodeports)).collect()
    };
    // The kernel evaluates a chain with the rules of one generation, but each set lookup with the current generation. A
    // packet between two lookups, while a frontend moves from one set to another, matches neither set. The kernel runs
    // the second chain only for connections that the first one did not translate, and with the rules of the new
    // generation.
    for (suffix, priority) in [("", DNAT), ("-retry", DNAT + 1)] {
        let (prerouting, output) = (format!("nat-prerouting{suffix}"), format!("nat-output{suffix}"));
        hook(&prerouting, ChainKind::Nat, HookPoint::Prerouting, priority, dispatch());
        hook(&output, ChainKind::Nat, HookPoint::Output, priority, unless_bypassing(dispatch()));
    }

    // A packet to a frontend that is not translated by now has no endpoint. Packets of the node itself are checked
    // after translation, so that policy Local without a local endpoint does not stop connections that use the
    // shortcut.
    let refuse = "refuse".into();
    let new_to_refuse = || rule(is_new(), Verdict::Jump("refuse".into()));
    let reject = || Verdict::Goto(n.reject.clone());
    let mut input = vec![
        exprs.frontend_in(&is_new(), true, &n.refused, reject()),
        exprs.frontend_in(&is_new(), true, &n.dropped, Verdict::Drop),
    ];
    for at in &at_node {
        let nodeport = [is_new().to_vec(), at.clone()].concat();
        input.push(exprs.frontend_in(&nodeport, false, &n.refused_nodeports, reject()));
        input.push(exprs.frontend_in(&nodeport, false, &n.dropped_nodeports, Verdict::Drop));
    }
    hook("filter-input", ChainKind::Filter, HookPoint::Input, DNAT - 10, input);
    hook("filter-forward", ChainKind::Filter, HookPoint::Forward, DNAT - 10, vec![new_to_refuse()]);
    hook("filter-output-post-dnat", ChainKind::Filter, HookPoint::Output, DNAT + 10, vec![new_to_refuse()]);

    hook("nat-postrouting", ChainKind::Nat, HookPoint::Postrouting, SNAT, postrouting(n, exprs, settings));

    table.chain(
        &refuse,
        vec![
            exprs.frontend_in(&[], true, &n.refused, reject()),
            exprs.frontend_in(&[], true, &n.dropped, Verdict::Drop),
            rule(exprs.destination_in(&n.cluster_ips), reject()),
            rule(exprs.destination_in(&n.service_cidrs), Verdict::Drop),
        ],
    );
}

fn postrouting(n: &TableNames, exprs: ExprBuilder, settings: &Settings) -> Vec<Rule> {
    let mark = settings.masquerade_mark;
    let mut hairpin = exprs.is_hairpin(&n.hairpin);
    hairpin.push(masquerade());
    vec![
        Rule { exprs: hairpin },
        rule(is_unmarked(mark), Verdict::Return),
        Rule { exprs: flip_mark(mark).to_vec() },
        Rule { exprs: vec![masquerade()] },
    ]
}

/// Matches destinations in the ranges of `nodePortAddresses`, without loopback: one list of expressions per range. The
/// caller checks that the address is local. The ranges are in rules, not in a set, because the kernel (6.18) makes the
/// elements of interval sets visible some time after the rules of the same transaction: new connections to node ports
/// were refused in between.
fn at_node_addresses(exprs: ExprBuilder, settings: &Settings) -> Vec<Vec<Expr>> {
    let outside_loopback = exprs.destination_outside(loopback(exprs.family));
    match settings.node_ports.ranges(model_family(exprs.family)) {
        None => vec![outside_loopback],
        Some(ranges) => {
            let within = |range| [outside_loopback.clone(), exprs.destination_within(range)].concat();
            ranges.into_iter().map(within).collect()
        }
    }
}

fn loopback(family: Family) -> IpNet {
    match family {
        Family::Ipv4 => IpNet::new_assert([127, 0, 0, 0].into(), 8),
        Family::Ipv6 => IpNet::new_assert(std::net::Ipv6Addr::LOCALHOST.into(), 128),
    }
}

/// The chains that mark, apply the shortcut of policy Local, reject, and check source ranges.
fn policy(table: &mut Table, n: &TableNames, exprs: ExprBuilder, settings: &Settings) {
    let mark = settings.masquerade_mark;
    table.chain(&n.mark, vec![Rule { exprs: set_mark(mark).to_vec() }]);

    let pods = from_pods(exprs, &settings.local);
    let mut unless_pod = Vec::new();
    if settings.masquerade_all {
        unless_pod.push(goto(&n.mark));
    } else if !pods.is_empty() {
        unless_pod.extend(pods.iter().map(|pod| rule(pod.clone(), Verdict::Return)));
        unless_pod.push(goto(&n.mark));
    }
    table.chain(&n.mark_unless_pod, unless_pod);

    for (chain, shortcuts) in [(&n.short_cut, &n.short_cuts), (&n.nodeport_short_cut, &n.nodeport_short_cuts)]
    {
        let mut rules: Vec<Rule> =
            pods.iter().map(|pod| rule(pod.clone(), Verdict::Goto(shortcuts.clone()))).collect();
        let own = is_local(FibOf::Source);
        rules.push(rule(own.clone(), Verdict::Jump(n.mark.clone())));
        rules.push(rule(own, Verdict::Goto(shortcuts.clone())));
        table.chain(chain, rules);
    }

    let reset = [protocol_is(Protocol::Tcp).to_vec(), vec![Expr::Reject(Reject::TcpReset)]].concat();
    table.chain(&n.reject, vec![Rule { exprs: reset }, Rule { exprs: vec![exprs.unreachable()] }]);
    let allowed = exprs.source_allowed(&n.source_ranges);
    table.chain(&n.check_source, vec![rule(allowed, Verdict::Return), rule([], Verdict::Drop)]);
}

/// Matches packets from pods: one list of expressions per range; none if pod traffic cannot be recognised.
fn from_pods(exprs: ExprBuilder, local: &LocalTraffic) -> Vec<Vec<Expr>> {
    match local {
        LocalTraffic::Unknown => Vec::new(),
        LocalTraffic::Cidrs(ranges) => {
            let own = ranges.iter().filter(|r| r.addr().is_ipv4() == (exprs.family == Family::Ipv4));
            own.map(|r| exprs.source_within(*r)).collect()
        }
        LocalTraffic::Interface(name) => vec![input_is(name, false).to_vec()],
        LocalTraffic::InterfacePrefix(name) => vec![input_is(name, true).to_vec()],
    }
}

/// Adds ranges to an interval set: an element for the first address, and an end element for the address after the last.
fn ranges(table: &mut Table, set: &crate::table::Name, ranges: &[IpNet]) {
    // nft's flag for a range without an end element, which reaches the last address (`SET_ELEM_F_INTERVAL_OPEN`).
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

#[cfg(test)]
mod tests {
    use super::*;
    use portway_dataplane::NodePortAddresses;
    use portway_netlink::nft::object::SET_INTERVAL;

    /// The NAT chains at one hook, in the order in which packets pass them.
    fn nat_chains(table: &Table, point: HookPoint) -> Vec<&ChainBody> {
        let of_hook = |body: &&ChainBody| {
            body.hook.is_some_and(|hook| hook.kind == ChainKind::Nat && hook.point == point)
        };
        let mut chains: Vec<&ChainBody> = table.chains.values().filter(of_hook).collect();
        chains.sort_by_key(|body| body.hook.map(|hook| hook.priority));
        chains
    }

    #[test]
    fn a_second_nat_chain_repeats_the_lookup() {
        let table = base(&TableNames::default(), Family::Ipv4, &Settings::default());
        for point in [HookPoint::Prerouting, HookPoint::Output] {
            let [first, second] = nat_chains(&table, point)[..] else { panic!("{point:?}") };
            assert_eq!(first.rules, second.rules);
        }
    }

    #[test]
    fn no_translation_depends_on_an_interval_set() {
        let ranges = ["192.168.50.0/24", "10.0.0.1/32"].map(|net| net.parse().expect("a network"));
        let settings =
            Settings { node_ports: NodePortAddresses::Within(ranges.into()), ..Settings::default() };
        let table = base(&TableNames::default(), Family::Ipv4, &settings);
        let is_interval = |name: &_| table.sets.get(name).is_some_and(|set| set.flags & SET_INTERVAL != 0);
        assert!(
            table.sets.keys().any(is_interval),
            "no interval set in the table: this test would check nothing"
        );
        for point in [HookPoint::Prerouting, HookPoint::Output] {
            for rule in nat_chains(&table, point).iter().flat_map(|body| &body.rules) {
                let looks_up = |expr: &Expr| matches!(expr, Expr::Lookup { set, .. } if is_interval(set));
                assert!(!rule.exprs.iter().any(looks_up), "{rule:?}");
            }
        }
        assert_eq!(nat_chains(&table, HookPoint::Output)[0].rules.len(), 1 + 2, "one rule per range");
    }
}
