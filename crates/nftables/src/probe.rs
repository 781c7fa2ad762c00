//! Finds the nf_tables feature that a kernel lacks.
//!
//! Each feature is tried separately, in a scratch table that is created and deleted in one transaction, so that no
//! packet passes through it.

use crate::rules::{self, ExprBuilder, TableNames};
use portway_model::Protocol;
use portway_netlink::nft::expr::FibOf;
use portway_netlink::nft::{Batch, Chain, ChainKind, Family, Hook, HookPoint, Rule};
use portway_netlink::{Protocol as Bus, Socket};

const SCRATCH: &str = "portway-probe";

/// The first missing feature, and the kernel option or version that provides it.
pub(crate) fn missing_feature(family: Family) -> Option<(&'static str, &'static str)> {
    let Ok(mut socket) = Socket::open(Bus::Netfilter) else {
        return Some(("netfilter's netlink interface", "CONFIG_NETFILTER_NETLINK (nfnetlink)"));
    };
    let mut works = |fill: &dyn Fn(&mut Batch)| {
        let mut batch = Batch::new(family, SCRATCH);
        batch.add_table();
        fill(&mut batch);
        batch.delete_table();
        batch.commit(&mut socket).is_ok()
    };
    let names = TableNames::default();
    let exprs = ExprBuilder { family };
    let base = match family {
        Family::Ipv4 => ("nf_tables for IPv4", "CONFIG_NF_TABLES and CONFIG_NF_TABLES_IPV4 (nf_tables)"),
        Family::Ipv6 => ("nf_tables for IPv6", "CONFIG_NF_TABLES and CONFIG_NF_TABLES_IPV6 (nf_tables)"),
    };
    if !works(&|_| {}) {
        return Some(base);
    }
    let nat = Hook { kind: ChainKind::Nat, point: HookPoint::Postrouting, priority: 100, accept: true };
    let chain = |hook| Chain { name: "probe".into(), hook };
    if !works(&|b| b.add_chain(&chain(Some(nat)))) {
        return Some(("NAT chains in nf_tables", "CONFIG_NFT_NAT (nft_chain_nat)"));
    }
    let tries: [(&str, &str, Rule); 5] = [
        ("random numbers in nf_tables", "CONFIG_NFT_NUMGEN (nft_numgen)", rules::choose(&names.endpoints, 2)),
        (
            "fib lookups in nf_tables",
            "CONFIG_NFT_FIB_INET (nft_fib)",
            Rule { exprs: rules::is_local(FibOf::Source).into() },
        ),
        (
            "masquerading in nf_tables",
            "CONFIG_NFT_MASQ (nft_masq)",
            Rule { exprs: vec![rules::masquerade()] },
        ),
        (
            "connection tracking in nf_tables",
            "CONFIG_NFT_CT (nft_ct)",
            Rule { exprs: rules::is_new().into() },
        ),
        (
            "rejecting in nf_tables",
            "CONFIG_NFT_REJECT (nft_reject)",
            Rule { exprs: [rules::protocol_is(Protocol::Tcp).to_vec(), vec![exprs.unreachable()]].concat() },
        ),
    ];
    for (feature, option, rule) in tries {
        let filter = Hook { kind: ChainKind::Filter, point: HookPoint::Input, priority: 0, accept: true };
        let hook = if option.contains("MASQ") { nat } else { filter };
        let fill = |b: &mut Batch| {
            b.add_set(&rules::choice_map(&names.endpoints, family));
            b.add_chain(&chain(Some(hook)));
            b.add_rule("probe", &rule);
        };
        if !works(&fill) {
            return Some((feature, option));
        }
    }
    if !works(&|b| b.add_set(&rules::endpoint_map(&names.endpoints, family, true))) {
        return Some(("maps of concatenations in nf_tables", "a kernel of 4.19 or later"));
    }
    if !works(&|b| b.add_set(&rules::source_range_set(&names.source_ranges, family))) {
        return Some(("ranges in concatenations (pipapo) in nf_tables", "a kernel of 5.6 or later"));
    }
    None
}
