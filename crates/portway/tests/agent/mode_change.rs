//! From one mode to another, and back, under load.

use crate::agent_lab::{AgentLab, patience};
use crate::faulty_tools::wrap;
use crate::hidden_tools::{hide, unhide};
use crate::tool::{FAMILIES, Legacy, Nft, Variant};
use crate::traffic::Traffic;
use crate::{Outcome, Test, ensure, objects};
use portway_lab::eventually;

pub(crate) const TESTS: &[Test] = &[
    ("mode_changes_by_restart_and_back_with_nf_tables", |world| by_restart(world, Nft)),
    ("mode_changes_by_restart_and_back_with_legacy", |world| by_restart(world, Legacy)),
    ("mode_changes_while_running_and_back_with_nf_tables", |world| while_running(world, Nft)),
    ("mode_changes_while_running_and_back_with_legacy", |world| while_running(world, Legacy)),
    ("rules_of_the_other_variant_are_removed", other_variant),
    ("an_unusable_mode_is_retried", unusable),
    ("a_failed_mode_change_leaves_no_rules", |world| half_way(world, Nft)),
    ("a_failed_mode_change_leaves_no_rules_legacy", |world| half_way(world, Legacy)),
];

/// How every configuration file begins.
pub(crate) const HEADER: &str =
    "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn by_restart(world: &mut AgentLab, variant: Variant) -> Outcome {
    world.kubelet(variant)?;
    world.start(&["--proxy-mode=nftables"])?;
    let mut traffic = Traffic::begin(world)?;
    for mode in ["iptables", "nftables"] {
        world.stop()?;
        world.start(&[&format!("--proxy-mode={mode}")])?;
        only(world, mode, variant)?;
        traffic.is_alive(mode)?;
        follows_changes(world)?;
    }
    traffic.end()
}

fn while_running(world: &mut AgentLab, variant: Variant) -> Outcome {
    world.kubelet(variant)?;
    world.write("config.yaml", &format!("{HEADER}mode: nftables\n"));
    world.start(&[&format!("--config={}", world.path("config.yaml").display())])?;
    let mut traffic = Traffic::begin(world)?;
    for (from, mode) in [("nftables", "iptables"), ("iptables", "nftables")] {
        world.write("config.yaml", &format!("{HEADER}mode: {mode}\n"));
        let words = [&format!("from=\"{from}\""), &format!("to=\"{mode}\"")];
        world.logged(&["the mode was switched", words[0], words[1]])?;
        only(world, mode, variant)?;
        traffic.is_alive(mode)?;
        follows_changes(world)?;
        let page = world.status("/configz")?.json()?;
        let shown = &page["kubeproxy.config.k8s.io"]["mode"];
        ensure(*shown == mode, || format!("/configz says {shown}"))?;
    }
    traffic.end()
}

/// Waits until a mode is in force, and nothing of the others is left.
pub(crate) fn only(world: &AgentLab, mode: &str, variant: Variant) -> Outcome {
    let attempt = || {
        let page = world.status("/proxyMode")?;
        let words = |e: libtest_mimic::Failed| e.message().unwrap_or_default().to_owned();
        let tables = world.nft(&["list", "tables"]).map_err(words)?;
        let own = ["ip", "ip6"].map(|f| tables.contains(&format!("table {f} portway\n")));
        let ours = world.kube_lines(variant).map_err(words)?;
        let others = world.kube_lines(variant.other()).map_err(words)?;
        let right = match mode {
            "iptables" => own == [false; 2] && ours.iter().any(|l| l.contains("-j KUBE-SVC-")),
            _ => own == [true; 2] && ours.is_empty(),
        };
        let right = right && page.body == mode && others.is_empty() && !tables.contains("kube-proxy");
        if right {
            return Ok(());
        }
        Err(format!("/proxyMode says {}; {tables}{}{}", page.body, ours.join("\n"), others.join("\n")))
    };
    eventually(patience(), attempt)?;
    Ok(())
}

/// What comes after a switch is programmed too: a Service comes and goes.
pub(crate) fn follows_changes(world: &AgentLab) -> Outcome {
    world.apply("late.yaml", &objects::service("late", "10.96.0.80", ""));
    world.apply("late-slice.yaml", &objects::slice("late", "late", &world.pod_ips("pod1b")[..1]));
    world.reaches("10.96.0.80:80".parse()?, &["pod1b"])?;
    world.delete("late.yaml");
    world.reaches_nobody("10.96.0.80:80".parse()?)
}

/// The host went over to the other variant of the tool.
fn other_variant(world: &mut AgentLab) -> Outcome {
    world.kubelet(Legacy)?;
    world.start(&["--proxy-mode=iptables"])?;
    let traffic = Traffic::begin(world)?;
    world.stop()?;
    for family in FAMILIES {
        world.load(Legacy, family, "*mangle\n-X KUBE-IPTABLES-HINT\n-X KUBE-KUBELET-CANARY\nCOMMIT\n")?;
        world.load(
            Legacy,
            family,
            "*nat\n-X KUBE-KUBELET-CANARY\nCOMMIT\n*filter\n-X KUBE-KUBELET-CANARY\nCOMMIT\n",
        )?;
    }
    world.kubelet(Nft)?;
    world.start(&["--proxy-mode=iptables"])?;
    only(world, "iptables", Nft)?;
    traffic.end()
}

fn unusable(world: &mut AgentLab) -> Outcome {
    world.write("config.yaml", &format!("{HEADER}mode: nftables\n"));
    let config = format!("--config={}", world.path("config.yaml").display());
    world.start_as(hide(world, &[&config])?)?;
    let traffic = Traffic::begin(world)?;
    world.write("config.yaml", &format!("{HEADER}mode: iptables\n"));
    world.logged(&[
        "ERROR",
        "stays in mode nftables",
        "mode iptables cannot be used",
        "install the package",
    ])?;
    // It goes on, and says in which mode it is.
    follows_changes(world)?;
    let page = world.status("/proxyMode")?;
    ensure(page.body == "nftables", || format!("/proxyMode says {}", page.body))?;
    unhide(world, Nft)?;
    world.logged(&["the mode was switched", "to=\"iptables\""])?;
    only(world, "iptables", Nft)?;
    traffic.end()
}

/// The tool is killed after the first table: the running mode stays, the new rules are removed, and the change is retried.
fn half_way(world: &mut AgentLab, variant: Variant) -> Outcome {
    world.kubelet(variant)?;
    world.write("config.yaml", &format!("{HEADER}mode: nftables\n"));
    let mut command = wrap(world, variant)?;
    command.arg(format!("--config={}", world.path("config.yaml").display()));
    world.start_as(command)?;
    let mut traffic = Traffic::begin(world)?;
    std::fs::write(world.path("tools/die"), "")?;
    world.write("config.yaml", &format!("{HEADER}mode: iptables\n"));
    world.logged(&["ERROR", "stays in mode nftables", "not all rules of mode iptables could be written"])?;
    world.logged(&[
        "removed leftovers of a previous proxy mode",
        "location=iptables",
        "IPv4",
        "table nat: KUBE-",
    ])?;
    traffic.is_alive("half-way")?;
    world.logged(&["the mode was switched", "to=\"iptables\""])?;
    only(world, "iptables", variant)?;
    traffic.end()
}
