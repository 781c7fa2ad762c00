//! `--peer FILE`: Portway and a kube-proxy binary serve the same cluster in turns, in one run on the same machine.
//!
//! Both read the same configuration file, except for the mode otherwise with the defaults of each, and each turn has a
//! new lab, so that no rules are left over from the turn before. A turn measures one proxy in one mode:
//! [`turn::run`]. A switch between modes has turns of its own: [`switch::run`]. The order of the two changes with every
//! turn. The result is a [`Comparison`]: a table, a plot and a JSON file with the versions and the date.

mod binary;
mod comparison;
mod disruption;
mod load;
mod process_tree;
mod ratio_plot;
mod real;
mod source;
mod switch;
mod testbed;
mod turn;

use crate::Options;
use crate::cluster::Mode;
use binary::Peer;
use comparison::{Comparison, Conditions};
use source::Origin;
use std::path::Path;
use testbed::Testbed;

/// The modes that are compared, if both have them.
const MODES: [Mode; 4] = [Mode::Nftables, Mode::IptablesNft, Mode::IptablesLegacy, Mode::Ipvs];

/// A proxy under measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Portway,
    KubeProxy,
}

impl Contender {
    const BOTH: [Contender; 2] = [Contender::Portway, Contender::KubeProxy];

    fn name(self) -> &'static str {
        match self {
            Contender::Portway => "Portway",
            Contender::KubeProxy => "kube-proxy",
        }
    }

    /// Both, in another order with every turn.
    fn in_order(turn: usize) -> [Contender; 2] {
        let [first, second] = Contender::BOTH;
        if turn.is_multiple_of(2) { [first, second] } else { [second, first] }
    }
}

/// Compares Portway with the kube-proxy at `path`, and writes the results.
pub(crate) fn run(options: &Options, path: &Path) -> Result<(), String> {
    check(options)?;
    let peer = Peer::open(path)?;
    let (modes, notes) = usable_modes(options, &peer)?;
    let origin = Origin::new(options.kubeconfig.as_deref())?;
    let conditions = Conditions::of_this_machine(options, &peer, &origin);
    let mut comparison = Comparison::new(conditions, notes);
    let switched = switched_modes(&modes, &mut comparison);
    let steps = 2 * options.turns * (modes.len() + usize::from(switched.is_some()));
    let bar = crate::progress(steps as u64);
    for mode in modes {
        for turn in 0..options.turns {
            for contender in Contender::in_order(turn) {
                bar.set_message(format!("{}, {}, turn {}", mode.name(), contender.name(), turn + 1));
                let testbed = Testbed::build(options, &peer, &origin, mode)?;
                turn::run(options, &testbed, contender, &bar, &mut comparison)?;
                bar.inc(1);
            }
        }
    }
    if let Some(modes) = switched {
        for turn in 0..options.turns {
            for contender in Contender::in_order(turn) {
                bar.set_message(format!("switch of the mode, {}, turn {}", contender.name(), turn + 1));
                switch::run(options, (&peer, &origin), modes, contender, &mut comparison)?;
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    write(options, &comparison)
}

fn check(options: &Options) -> Result<(), String> {
    // Service 0 has the pods that exist; changes at a steady rate are to others.
    if options.peer_services < 2 {
        return Err("--peer-services: at least 2 Services are needed".into());
    }
    if options.turns == 0 || options.churn_rate == 0 || options.rounds == 0 {
        return Err("--turns, --churn-rate and --rounds have to be at least 1".into());
    }
    Ok(())
}

/// The requested modes that both proxies and this machine have; the others as notes.
fn usable_modes(options: &Options, peer: &Peer) -> Result<(Vec<Mode>, Vec<String>), String> {
    let requested = if options.peer_modes.is_empty() { &MODES } else { options.peer_modes.as_slice() };
    let (mut modes, mut notes) = (Vec::new(), Vec::new());
    for mode in requested {
        let reason = match peer.has(*mode) {
            true => testbed::missing_for(*mode),
            false => Some(format!("kube-proxy {} has no such mode", peer.version)),
        };
        match reason {
            Some(reason) => notes.push(format!("{}: not compared: {reason}", mode.name())),
            None => modes.push(*mode),
        }
    }
    if modes.is_empty() {
        return Err(format!("no mode can be compared:\n{}", notes.join("\n")));
    }
    Ok((modes, notes))
}

/// The modes between which a switch is measured: nftables and the first variant of iptables.
fn switched_modes(modes: &[Mode], comparison: &mut Comparison) -> Option<[Mode; 2]> {
    let iptables = [Mode::IptablesNft, Mode::IptablesLegacy].into_iter().find(|m| modes.contains(m));
    match iptables {
        Some(iptables) if modes.contains(&Mode::Nftables) => Some([Mode::Nftables, iptables]),
        _ => {
            comparison.note("switch of the mode: not compared: it needs nftables and a variant of iptables");
            None
        }
    }
}

fn write(options: &Options, comparison: &Comparison) -> Result<(), String> {
    println!("{comparison}");
    let json = options.json_or("target/peer.json");
    let plot = options.plots.join("peer.svg");
    let text = serde_json::to_string_pretty(&comparison.json()).map_err(|e| e.to_string())?;
    for (path, text) in [(&json, text), (&plot, ratio_plot::svg(comparison))] {
        let written = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        written.and_then(|()| std::fs::write(path, text)).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    println!("\nas JSON: {}; the plot: {}", json.display(), plot.display());
    Ok(())
}
