//! From a frontend to its policy chain.
//!
//! One set of frontends for each policy chain in use, and one rule for each set: a new connection looks into some
//! ten sets, however many Services there are. A verdict map would be one look, but the kernel re-checks every
//! element of every verdict map, and all that is behind it, whenever one of them changes: at 50,000 Services that
//! took a fifth of a second per change. Elements of sets cost only themselves.

use crate::rules::{ExprBuilder, TableNames};
use crate::table::Name;
use portway_netlink::nft::{Family, Rule, Verdict};

/// Which chain a set belongs into, and how its rules are sorted there.
fn dispatch_chain(set: &str) -> Option<(DispatchChain, &'static str, usize)> {
    const POLICIES: [(&str, DispatchChain); 6] = [
        ("cluster-ip-", DispatchChain::Services),
        ("external-", DispatchChain::Services),
        ("local-", DispatchChain::Services),
        ("nodeport-external-", DispatchChain::Nodeports),
        ("nodeport-local-", DispatchChain::Nodeports),
        ("nodeport-short-cut-", DispatchChain::NodeportShortCuts),
    ];
    let (place, policy, capacity) = POLICIES
        .iter()
        .chain(&[("short-cut-", DispatchChain::ShortCuts)])
        .find_map(|(prefix, place)| Some((*place, *prefix, set.strip_prefix(prefix)?)))?;
    Some((place, policy, capacity.parse().ok()?))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DispatchChain {
    Services,
    Nodeports,
    ShortCuts,
    NodeportShortCuts,
}

/// Whether a set decides which policy chain a frontend leads to.
pub(crate) fn is_dispatch_set(set: &str) -> bool {
    dispatch_chain(set).is_some()
}

/// The four chains that look frontends up, given the sets that exist.
pub(crate) fn dispatch<'n>(
    names: &TableNames,
    family: Family,
    sets: impl IntoIterator<Item = &'n Name>,
) -> [(Name, Vec<Rule>); 4] {
    let exprs = ExprBuilder { family };
    let mut switches: Vec<(DispatchChain, &'static str, usize, &Name)> = sets
        .into_iter()
        .filter_map(|s| dispatch_chain(s).map(|(place, policy, n)| (place, policy, n, s)))
        .collect();
    switches.sort_by_key(|(_, policy, capacity, _)| (*policy, *capacity));
    let chain = |at: DispatchChain, chain: &Name, sticky: &Name| {
        let with_address = matches!(at, DispatchChain::Services | DispatchChain::ShortCuts);
        let mut rules: Vec<Rule> = switches
            .iter()
            .filter(|(place, ..)| *place == at)
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
