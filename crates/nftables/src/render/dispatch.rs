//! The dispatch chains, which send a packet to the policy chain of its frontend.
//!
//! Each policy chain in use has a set of frontends, and each set has one rule. A new connection is looked up in about
//! ten sets, independently of the number of Services. A verdict map would need one lookup, but the kernel validates
//! every element of every verdict map, and the chains that they point to, at each change: at 50,000 Services that took
//! a fifth of a second. A change of a set costs only the changed elements.

use crate::rules::{ExprBuilder, TableNames};
use crate::table::Name;
use portway_netlink::nft::{Family, Rule, Verdict};

/// The dispatch chain of a set, and the policy and capacity by which its rules are sorted; none for any other set.
fn dispatch_chain(set: &str) -> Option<(DispatchChain, &'static str, usize)> {
    const POLICIES: [(&str, DispatchChain); 6] = [
        ("cluster-ip-", DispatchChain::Services),
        ("external-", DispatchChain::Services),
        ("local-", DispatchChain::Services),
        ("nodeport-external-", DispatchChain::Nodeports),
        ("nodeport-local-", DispatchChain::Nodeports),
        ("nodeport-short-cut-", DispatchChain::NodeportShortCuts),
    ];
    let (chain, policy, capacity) = POLICIES
        .iter()
        .chain(&[("short-cut-", DispatchChain::ShortCuts)])
        .find_map(|(prefix, chain)| Some((*chain, *prefix, set.strip_prefix(prefix)?)))?;
    Some((chain, policy, capacity.parse().ok()?))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DispatchChain {
    Services,
    Nodeports,
    ShortCuts,
    NodeportShortCuts,
}

/// Whether a dispatch chain has a rule for this set.
pub(crate) fn is_dispatch_set(set: &str) -> bool {
    dispatch_chain(set).is_some()
}

/// The four dispatch chains for the given sets.
pub(crate) fn dispatch<'n>(
    names: &TableNames,
    family: Family,
    sets: impl IntoIterator<Item = &'n Name>,
) -> [(Name, Vec<Rule>); 4] {
    let exprs = ExprBuilder { family };
    let mut dispatch_sets: Vec<(DispatchChain, &'static str, usize, &Name)> = sets
        .into_iter()
        .filter_map(|s| dispatch_chain(s).map(|(chain, policy, n)| (chain, policy, n, s)))
        .collect();
    dispatch_sets.sort_by_key(|(_, policy, capacity, _)| (*policy, *capacity));
    let chain = |at: DispatchChain, chain: &Name, sticky: &Name| {
        let with_address = matches!(at, DispatchChain::Services | DispatchChain::ShortCuts);
        let mut rules: Vec<Rule> = dispatch_sets
            .iter()
            .filter(|(of, ..)| *of == at)
            .map(|(.., set)| exprs.frontend_in(&[], with_address, set, Verdict::Goto((*set).clone())))
            .collect();
        rules.push(exprs.frontend_verdict(&[], with_address, sticky));
        (chain.clone(), rules)
    };
    [
        chain(DispatchChain::Services, &names.services, &names.sticky_services),
        chain(DispatchChain::Nodeports, &names.nodeports, &names.sticky_nodeports),
        chain(DispatchChain::ShortCuts, &names.short_cuts, &names.sticky_short_cuts),
        chain(
            DispatchChain::NodeportShortCuts,
            &names.nodeport_short_cuts,
            &names.sticky_nodeport_short_cuts,
        ),
    ]
}
