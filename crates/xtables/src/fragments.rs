//! Rules that several modes have.

use crate::INVALID_COUNTER;
use crate::desired::Abilities;
use crate::rules::{Action, Match, Refusal, Rule, States, is, is_not};
use ipnet::IpNet;
use portway_dataplane::Settings;
use portway_model::{Family, Protocol};

/// Rejects a packet; `protocol` is `None` if the rule matches all protocols. TCP over IPv6 is rejected with a reset,
/// because a client was seen to ignore the ICMP message.
pub fn refusal(family: Family, protocol: Option<Protocol>) -> Action {
    Action::Reject(match (family, protocol) {
        (Family::V4, _) => Refusal::Icmp,
        (Family::V6, Some(Protocol::Tcp)) => Refusal::TcpReset,
        (Family::V6, _) => Refusal::Icmp6,
    })
}

/// The loopback addresses of a family.
pub fn loopback(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::new_assert([127, 0, 0, 0].into(), 8),
        Family::V6 => IpNet::new_assert(std::net::Ipv6Addr::LOCALHOST.into(), 128),
    }
}

/// The rules of `KUBE-FORWARD`: drop invalid packets, if configured, and accept marked packets and those of established
/// and related connections. Dropped packets are counted if the kernel can.
pub fn forward(settings: &Settings, abilities: Abilities) -> Vec<Rule> {
    let mark = settings.masquerade_mark;
    let mut rules = Vec::new();
    if settings.drop_invalid {
        let rule = Rule::to(Action::Drop).when(Match::State(is(States::INVALID)));
        rules.push(match abilities.counting {
            true => rule.when(Match::Count(INVALID_COUNTER.into())),
            false => rule,
        });
    }
    rules.push(Rule::to(Action::Accept).comment("kubernetes forwarding rules").when(Match::Mark {
        value: mark,
        mask: mark,
        not: false,
    }));
    rules.push(
        Rule::to(Action::Accept)
            .comment("kubernetes forwarding conntrack rule")
            .when(Match::State(is(States::RELATED.or(States::ESTABLISHED)))),
    );
    rules
}

/// Restricts a rule to the addresses at which node ports answer, without loopback addresses: one rule per range.
pub fn at_node_addresses(settings: &Settings, family: Family, rule: &Rule) -> Vec<Rule> {
    let local = |rule: Rule| rule.when(Match::DestinationIsLocal);
    let loopback = loopback(family);
    // A range of all addresses is handled like no ranges: split around the loopback addresses it would be up to 128
    // ranges.
    let ranges = settings.node_ports.ranges(family).filter(|r| r.iter().all(|r| r.prefix_len() > 0));
    let Some(ranges) = ranges else {
        let mut rule = local(rule.clone());
        rule.destination = Some(is_not(loopback));
        return vec![rule];
    };
    let at = |range: IpNet| Rule { destination: Some(is(range)), ..local(rule.clone()) };
    let outside = |range: &IpNet| !loopback.contains(range);
    let mut rules: Vec<Rule> = ranges.iter().filter(|r| outside(r)).map(|r| at(*r)).collect();
    // A wider range that contains the loopback addresses is split around them.
    if let Some(wide) = ranges.iter().find(|r| r.contains(&loopback)) {
        let pieces = without(*wide, loopback);
        rules.retain(|r| r.destination != Some(is(*wide)));
        rules.extend(pieces.into_iter().map(at));
    }
    rules
}

/// The ranges that `wide` consists of without `hole`.
fn without(wide: IpNet, hole: IpNet) -> Vec<IpNet> {
    let mut left = Vec::new();
    let mut rest = wide;
    while rest != hole {
        let Ok(mut halves) = rest.subnets(rest.prefix_len() + 1) else { break };
        let (Some(a), Some(b)) = (halves.next(), halves.next()) else { break };
        let (inside, outside) = if a.contains(&hole) { (a, b) } else { (b, a) };
        left.push(outside);
        rest = inside;
    }
    left
}
