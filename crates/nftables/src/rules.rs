//! The names of the constant chains and sets, and functions that build rules as sequences of expressions.
//!
//! Keys have nft's layout: each field of a concatenation starts at a multiple of four bytes.

mod sets;

pub use sets::{
    address_pairs, address_ranges, addresses, choice_map, client_set, endpoint_map, frontend_set,
    source_range_set, verdict_map,
};

use ipnet::IpNet;
use portway_model::{Protocol, Target};
use portway_netlink::nft::expr::{
    Base, CT_STATE_NEW, CT_STATUS_DNAT, CtKey, FIB_LOCAL, FibOf, MetaKey, NAT_RANDOM_FULLY, Reject,
};
use portway_netlink::nft::{Expr, Family, Key, Register, Rule, Value, Verdict};
use std::net::IpAddr;
use std::sync::Arc;

use crate::table::Name;

/// The first register, where every key begins.
const KEY: Register = Register::word(0);
/// The fifth register, after an IPv6 address in the first four: the port for `dnat`.
const SECOND: Register = Register::word(4);

/// The names of the constant chains, sets and maps.
#[derive(Clone, Debug)]
pub struct TableNames {
    /// Map: VIP, protocol, port, index → endpoint.
    pub endpoints: Name,
    /// Map for policy Local: VIP, protocol, port, index → endpoint on any node.
    pub short_cut_endpoints: Name,
    /// Map: protocol, port, index → endpoint.
    pub nodeport_endpoints: Name,
    /// Map for policy Local: protocol, port, index → endpoint on any node.
    pub nodeport_short_cut_endpoints: Name,
    /// Map for session affinity: VIP, protocol, port → chain of the Service port.
    pub sticky_services: Name,
    /// The same for policy Local and connections from this node and its pods.
    pub sticky_short_cuts: Name,
    /// Map for session affinity: protocol, port → chain of the Service port.
    pub sticky_nodeports: Name,
    /// The same for policy Local and connections from this node and its pods.
    pub sticky_nodeport_short_cuts: Name,
    /// Set of VIP, protocol, port without endpoints: rejected.
    pub refused: Name,
    /// Set of VIP, protocol, port with policy Local and endpoints on other nodes only: dropped.
    pub dropped: Name,
    /// Set of protocol, port without endpoints: rejected.
    pub refused_nodeports: Name,
    /// Set of protocol, port with policy Local and endpoints on other nodes only: dropped.
    pub dropped_nodeports: Name,
    /// Set of VIP, protocol, port with source ranges.
    pub guarded: Name,
    /// Set of allowed sources: source range, VIP, protocol, port.
    pub source_ranges: Name,
    /// Set of endpoint, the same endpoint: connections from an endpoint to itself.
    pub hairpin: Name,
    /// Set of all cluster IPs.
    pub cluster_ips: Name,
    /// Set of the ranges of cluster IPs (ServiceCIDRs).
    pub service_cidrs: Name,
    /// Chain that sends VIPs to their policy chains.
    pub services: Name,
    /// Chain that sends node ports to their policy chains.
    pub nodeports: Name,
    /// Chain that sends VIPs with policy Local to any endpoint, for connections from this node and its pods.
    pub short_cuts: Name,
    /// Chain that sends node ports with policy Local to any endpoint, for connections from this node and its pods.
    pub nodeport_short_cuts: Name,
    /// Chain that rejects.
    pub reject: Name,
    /// Chain that marks packets for masquerading.
    pub mark: Name,
    /// Chain that marks packets for masquerading unless they come from a pod.
    pub mark_unless_pod: Name,
    /// Chain for VIPs with policy Local: goes to `short_cuts` if the packet comes from this node or its pods.
    pub short_cut: Name,
    /// Chain for node ports with policy Local: goes to `nodeport_short_cuts` if the packet comes from this node or its
    /// pods.
    pub nodeport_short_cut: Name,
    /// Chain that drops packets whose source is not in `source_ranges`.
    pub check_source: Name,
}

impl Default for TableNames {
    fn default() -> Self {
        let n = |text: &str| -> Name { text.into() };
        TableNames {
            endpoints: n("endpoints"),
            short_cut_endpoints: n("short-cut-endpoints"),
            nodeport_endpoints: n("nodeport-endpoints"),
            nodeport_short_cut_endpoints: n("nodeport-short-cut-endpoints"),
            sticky_services: n("sticky-services"),
            sticky_short_cuts: n("sticky-short-cuts"),
            sticky_nodeports: n("sticky-nodeports"),
            sticky_nodeport_short_cuts: n("sticky-nodeport-short-cuts"),
            refused: n("refused"),
            dropped: n("dropped"),
            refused_nodeports: n("refused-nodeports"),
            dropped_nodeports: n("dropped-nodeports"),
            guarded: n("guarded"),
            source_ranges: n("source-ranges"),
            hairpin: n("hairpin"),
            cluster_ips: n("cluster-ips"),
            service_cidrs: n("service-cidrs"),
            services: n("services"),
            nodeports: n("nodeports"),
            short_cuts: n("short-cuts"),
            nodeport_short_cuts: n("nodeport-short-cuts"),
            reject: n("send-reject"),
            mark: n("mark-masquerade"),
            mark_unless_pod: n("mark-unless-pod"),
            short_cut: n("short-cut"),
            nodeport_short_cut: n("nodeport-short-cut"),
            check_source: n("check-source"),
        }
    }
}

/// Builds expressions for one family.
#[derive(Clone, Copy, Debug)]
pub struct ExprBuilder {
    /// The family.
    pub family: Family,
}

impl ExprBuilder {
    fn address(self, source: bool, to: Register) -> Expr {
        let offset = match (self.family, source) {
            (Family::Ipv4, true) => 12,
            (Family::Ipv4, false) => 16,
            (Family::Ipv6, true) => 8,
            (Family::Ipv6, false) => 24,
        };
        Expr::Payload { base: Base::Network, offset, len: self.family.address_len(), to }
    }

    /// Loads the source address into `to`.
    pub fn source(self, to: Register) -> Expr {
        self.address(true, to)
    }

    /// Loads the destination address into `to`.
    pub fn destination(self, to: Register) -> Expr {
        self.address(false, to)
    }

    /// Loads protocol and destination port into the registers from `at` on. Returns the next free register.
    fn service(self, at: Register) -> ([Expr; 2], Register) {
        let port = at.after(1);
        let dport = Expr::Payload { base: Base::Transport, offset: 2, len: 2, to: port };
        ([Expr::Meta(MetaKey::Protocol, at), dport], port.after(2))
    }

    /// `ip daddr . meta l4proto . th dport`, or without the address. Returns the next free register too.
    fn frontend(self, with_address: bool) -> (Vec<Expr>, Register) {
        let mut exprs = Vec::with_capacity(4);
        let mut at = KEY;
        if with_address {
            exprs.push(self.destination(at));
            at = at.after(self.family.address_len());
        }
        let (service, next) = self.service(at);
        exprs.extend(service);
        (exprs, next)
    }

    /// `… vmap @map`, by VIP or by node port.
    pub fn frontend_verdict(self, before: &[Expr], with_address: bool, map: &Name) -> Rule {
        let mut exprs = before.to_vec();
        exprs.extend(self.frontend(with_address).0);
        exprs.push(Expr::VerdictMap { set: map.clone(), key: KEY });
        Rule { exprs }
    }

    /// `… @set verdict`, by VIP or by node port.
    pub fn frontend_in(self, before: &[Expr], with_address: bool, set: &Name, verdict: Verdict) -> Rule {
        let mut exprs = before.to_vec();
        exprs.extend(self.frontend(with_address).0);
        exprs.push(Expr::Lookup { set: set.clone(), key: KEY });
        rule(exprs, verdict)
    }

    /// Sends to one of up to [`capacity`] endpoints, by VIP or by node port.
    ///
    /// `dnat to … . numgen random mod C map @map`: an index without an endpoint does not match, and the next rule
    /// draws again. More than half of the indices have an endpoint. The last rule draws among the first C/2 + 1
    /// indices, which always have one; the share of an endpoint deviates from an equal share by less than 1/64. The
    /// rules are the same for all numbers of endpoints within a power of two, so Services of similar size share one
    /// chain, and scaling within a power of two changes no rule.
    pub fn balance(self, with_address: bool, map: &Name, endpoints: usize) -> Vec<Rule> {
        const TRIES: usize = 6;
        let try_among = |modulus: usize| {
            let (mut exprs, index) = self.frontend(with_address);
            exprs.push(Expr::Random { modulus: modulus as u32, to: index });
            exprs.push(Expr::Map { set: map.clone(), key: KEY, to: KEY });
            exprs.push(self.dnat(KEY, KEY.after(self.family.address_len())));
            Rule { exprs }
        };
        match capacity(endpoints) {
            // The number of endpoints is exactly the capacity, so every index has one.
            exact @ (1 | 2) => vec![try_among(exact)],
            capacity => {
                let mut rules = vec![try_among(capacity); TRIES];
                rules.push(try_among(capacity / 2 + 1));
                rules
            }
        }
    }

    fn dnat(self, address: Register, port: Register) -> Expr {
        Expr::Dnat { family: self.family.number(), address, port }
    }

    /// `saddr @clients goto chain`: a client that has affinity to the chain's endpoint.
    pub fn known_client(self, clients: &Name, chain: &Name) -> Rule {
        let known = Expr::Lookup { set: clients.clone(), key: KEY };
        rule([self.source(KEY), known], Verdict::Goto(chain.clone()))
    }

    /// `update @clients { saddr }`: adds the client, or renews its timeout.
    pub fn remember(self, clients: &Name) -> Rule {
        Rule { exprs: vec![self.source(KEY), Expr::Update { set: clients.clone(), key: KEY }] }
    }

    /// `meta l4proto X dnat to <target>`
    pub fn dnat_to(self, protocol: Protocol, target: Target) -> Rule {
        let mut exprs = protocol_is(protocol).to_vec();
        exprs.extend([
            Expr::Immediate(KEY, octets(target.ip)),
            Expr::Immediate(SECOND, target.port.to_be_bytes().to_vec()),
            self.dnat(KEY, SECOND),
        ]);
        Rule { exprs }
    }

    /// `ct status dnat saddr . daddr @hairpin`: only translated connections, not those of a pod to its own address
    /// without a Service.
    pub fn is_hairpin(self, hairpin: &Name) -> Vec<Expr> {
        let second = KEY.after(self.family.address_len());
        let key = Expr::Lookup { set: hairpin.clone(), key: KEY };
        let mut exprs = connection(CtKey::Status, CT_STATUS_DNAT).to_vec();
        exprs.extend([self.source(KEY), self.destination(second), key]);
        exprs
    }

    /// `saddr . daddr . l4proto . dport @source-ranges`
    pub fn source_allowed(self, ranges: &Name) -> Vec<Expr> {
        let second = KEY.after(self.family.address_len());
        let (service, _) = self.service(second.after(self.family.address_len()));
        let mut exprs = vec![self.source(KEY), self.destination(second)];
        exprs.extend(service);
        exprs.push(Expr::Lookup { set: ranges.clone(), key: KEY });
        exprs
    }

    /// `daddr @set`
    pub fn destination_in(self, set: &Name) -> [Expr; 2] {
        [self.destination(KEY), Expr::Lookup { set: set.clone(), key: KEY }]
    }

    /// `saddr range`
    pub fn source_within(self, range: IpNet) -> Vec<Expr> {
        self.within(self.source(KEY), range, true)
    }

    /// `daddr != range`
    pub fn destination_outside(self, range: IpNet) -> Vec<Expr> {
        self.within(self.destination(KEY), range, false)
    }

    /// `daddr range`
    pub fn destination_within(self, range: IpNet) -> Vec<Expr> {
        self.within(self.destination(KEY), range, true)
    }

    fn within(self, load: Expr, range: IpNet, equal: bool) -> Vec<Expr> {
        let mut exprs = vec![load];
        if range.prefix_len() < range.max_prefix_len() {
            let mask = octets(range.netmask());
            let xor = vec![0; mask.len()];
            exprs.push(Expr::Bitwise { register: KEY, mask, xor });
        }
        exprs.push(Expr::Compare { equal, register: KEY, value: octets(range.network()) });
        exprs
    }

    /// `reject`, with ICMP port unreachable.
    pub fn unreachable(self) -> Expr {
        Expr::Reject(Reject::Unreachable(match self.family {
            Family::Ipv4 => 3,
            Family::Ipv6 => 4,
        }))
    }
}

/// The capacity of the balancing chain for this number of endpoints: the next power of two.
pub fn capacity(endpoints: usize) -> usize {
    endpoints.next_power_of_two()
}

/// A rule that ends with a verdict.
pub fn rule(exprs: impl IntoIterator<Item = Expr>, verdict: Verdict) -> Rule {
    let mut exprs: Vec<Expr> = exprs.into_iter().collect();
    exprs.push(Expr::Verdict(verdict));
    Rule { exprs }
}

/// `jump chain`
pub fn jump(chain: &Name) -> Rule {
    rule([], Verdict::Jump(chain.clone()))
}

/// `goto chain`
pub fn goto(chain: &Name) -> Rule {
    rule([], Verdict::Goto(chain.clone()))
}

/// `numgen random mod N vmap @map`
pub fn choose(map: &Name, endpoints: usize) -> Rule {
    let verdict = Expr::VerdictMap { set: map.clone(), key: KEY };
    Rule { exprs: vec![Expr::Random { modulus: endpoints as u32, to: KEY }, verdict] }
}

/// `meta l4proto X`
pub fn protocol_is(protocol: Protocol) -> [Expr; 2] {
    let value = vec![protocol.number()];
    [Expr::Meta(MetaKey::Protocol, KEY), Expr::Compare { equal: true, register: KEY, value }]
}

/// `ct state <bit>`
pub fn state(bit: u32) -> [Expr; 3] {
    connection(CtKey::State, bit)
}

/// `ct state|status <bit>`
fn connection(key: CtKey, bit: u32) -> [Expr; 3] {
    let (mask, zero) = (bit.to_ne_bytes().to_vec(), vec![0; 4]);
    [
        Expr::Ct(key, KEY),
        Expr::Bitwise { register: KEY, mask, xor: zero.clone() },
        Expr::Compare { equal: false, register: KEY, value: zero },
    ]
}

/// `ct state new`
pub fn is_new() -> [Expr; 3] {
    state(CT_STATE_NEW)
}

/// `fib saddr|daddr type local`
pub fn is_local(of: FibOf) -> [Expr; 2] {
    let value = FIB_LOCAL.to_ne_bytes().to_vec();
    [Expr::FibType(of, KEY), Expr::Compare { equal: true, register: KEY, value }]
}

/// `iifname "name"`, or `iifname "name*"`.
pub fn input_is(name: &str, prefix: bool) -> [Expr; 2] {
    let mut value = name.as_bytes().to_vec();
    if !prefix {
        value.resize(16, 0);
    }
    [Expr::Meta(MetaKey::InputName, KEY), Expr::Compare { equal: true, register: KEY, value }]
}

/// `meta mark set meta mark | bit`
pub fn set_mark(bit: u32) -> [Expr; 3] {
    change_mark(!bit, bit)
}

/// `meta mark set meta mark ^ bit`
pub fn flip_mark(bit: u32) -> [Expr; 3] {
    change_mark(u32::MAX, bit)
}

fn change_mark(mask: u32, xor: u32) -> [Expr; 3] {
    let (mask, xor) = (mask.to_ne_bytes().to_vec(), xor.to_ne_bytes().to_vec());
    let bitwise = Expr::Bitwise { register: KEY, mask, xor };
    [Expr::Meta(MetaKey::Mark, KEY), bitwise, Expr::MetaSet(MetaKey::Mark, KEY)]
}

/// `meta mark & bit == 0`
pub fn is_unmarked(bit: u32) -> [Expr; 3] {
    test_mark(bit, true)
}

/// `meta mark & bit != 0`
pub fn is_marked(bit: u32) -> [Expr; 3] {
    test_mark(bit, false)
}

fn test_mark(bit: u32, unset: bool) -> [Expr; 3] {
    let (mask, zero) = (bit.to_ne_bytes().to_vec(), vec![0; 4]);
    [
        Expr::Meta(MetaKey::Mark, KEY),
        Expr::Bitwise { register: KEY, mask, xor: zero.clone() },
        Expr::Compare { equal: unset, register: KEY, value: zero },
    ]
}

/// `masquerade fully-random`
pub fn masquerade() -> Expr {
    Expr::Masquerade { flags: NAT_RANDOM_FULLY }
}

/// The bytes of an address.
pub fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

/// The key of a frontend: address (if it is a VIP), protocol, port.
pub fn frontend_key(address: Option<IpAddr>, protocol: Protocol, port: u16) -> Key {
    let key = match address {
        Some(IpAddr::V4(a)) => Key::new().field(&a.octets()),
        Some(IpAddr::V6(a)) => Key::new().field(&a.octets()),
        None => Key::new(),
    };
    key.field(&[protocol.number()]).field(&port.to_be_bytes())
}

/// The map value of an endpoint: address and port.
pub fn target_value(target: Target) -> Value {
    let value = match target.ip {
        IpAddr::V4(a) => Value::new().field(&a.octets()),
        IpAddr::V6(a) => Value::new().field(&a.octets()),
    };
    value.field(&target.port.to_be_bytes())
}

/// The name of a chain, set or map for session affinity: `prefix-id`.
pub fn affinity_name(prefix: &str, id: &str) -> Name {
    Arc::from(format!("{prefix}-{id}"))
}
