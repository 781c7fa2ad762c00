//! Changes of the proxy mode, and back, under load.

use crate::agent_lab::{AgentLab, wait_timeout};
use crate::faulty_tools::wrap;
use crate::hidden_tools::{agent_without_tools, install_tools};
use crate::tool::{FAMILIES, Legacy, Nft, Variant};
use crate::traffic::Traffic;
use crate::{Outcome, Test, ensure, objects};
use portway_lab::eventually;

pub(crate) const TESTS: &[Test] = &[
    ("mode_changes_by_restart_and_back_with_nf_tables", |lab| by_restart(lab, Nft)),
    ("mode_changes_by_restart_and_back_with_legacy", |lab| by_restart(lab, Legacy)),
    ("mode_changes_while_running_and_back_with_nf_tables", |lab| while_running(lab, Nft)),
    ("mode_changes_while_running_and_back_with_legacy", |lab| while_running(lab, Legacy)),
    ("rules_of_the_other_variant_are_removed", other_variant),
    ("an_unusable_mode_is_retried", unusable_mode),
    ("a_failed_mode_change_leaves_no_rules", |lab| failed_change(lab, Nft)),
    ("a_failed_mode_change_leaves_no_rules_legacy", |lab| failed_change(lab, Legacy)),
];

/// The first lines of every configuration file.
pub(crate) const HEADER: &str =
    "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn by_restart(lab: &mut AgentLab, variant: Variant) -> Outcome {
    lab.kubelet(variant)?;
    lab.start(&["--proxy-mode=nftables"])?;
    let mut traffic = Traffic::begin(lab)?;
    for mode in ["iptables", "nftables"] {
        lab.stop()?;
        lab.start(&[&format!("--proxy-mode={mode}")])?;
        only_mode_in_force(lab, mode, variant)?;
        traffic.is_alive(mode)?;
        follows_changes(lab)?;
    }
    traffic.end()
}

fn while_running(lab: &mut AgentLab, variant: Variant) -> Outcome {
    lab.kubelet(variant)?;
    lab.write("config.yaml", &format!("{HEADER}mode: nftables\n"));
    lab.start(&[&format!("--config={}", lab.path("config.yaml").display())])?;
    let mut traffic = Traffic::begin(lab)?;
    for (from, mode) in [("nftables", "iptables"), ("iptables", "nftables")] {
        lab.write("config.yaml", &format!("{HEADER}mode: {mode}\n"));
        let words = [&format!("from=\"{from}\""), &format!("to=\"{mode}\"")];
        lab.logged(&["the mode was switched", words[0], words[1]])?;
        only_mode_in_force(lab, mode, variant)?;
        traffic.is_alive(mode)?;
        follows_changes(lab)?;
        let page = lab.status("/configz")?.json()?;
        let shown = &page["kubeproxy.config.k8s.io"]["mode"];
        ensure(*shown == mode, || format!("/configz shows {shown}"))?;
    }
    traffic.end()
}

/// Waits until a mode is in force and no rules of other modes are left.
pub(crate) fn only_mode_in_force(lab: &AgentLab, mode: &str, variant: Variant) -> Outcome {
    let attempt = || {
        let page = lab.status("/proxyMode")?;
        let message = |e: libtest_mimic::Failed| e.message().unwrap_or_default().to_owned();
        let tables = lab.nft(&["list", "tables"]).map_err(message)?;
        let has_table = ["ip", "ip6"].map(|f| tables.contains(&format!("table {f} portway\n")));
        let lines = lab.kube_lines(variant).map_err(message)?;
        let other_lines = lab.kube_lines(variant.other()).map_err(message)?;
        let right = match mode {
            "iptables" => has_table == [false; 2] && lines.iter().any(|l| l.contains("-j KUBE-SVC-")),
            _ => has_table == [true; 2] && lines.is_empty(),
        };
        let right = right && page.body == mode && other_lines.is_empty() && !tables.contains("kube-proxy");
        if right {
            return Ok(());
        }
        Err(format!("/proxyMode is {}; {tables}{}{}", page.body, lines.join("\n"), other_lines.join("\n")))
    };
    eventually(wait_timeout(), attempt)?;
    Ok(())
}

/// Creates and deletes a Service, and checks that both are programmed.
pub(crate) fn follows_changes(lab: &AgentLab) -> Outcome {
    lab.apply("late.yaml", &objects::service("late", "10.96.0.80", ""));
    lab.apply("late-slice.yaml", &objects::slice("late", "late", &lab.pod_ips("pod1b")[..1]));
    lab.reaches("10.96.0.80:80".parse()?, &["pod1b"])?;
    lab.delete("late.yaml");
    lab.reaches_no_pod("10.96.0.80:80".parse()?)
}

/// The kubelet changes to the other variant of iptables while the agent is stopped.
fn other_variant(lab: &mut AgentLab) -> Outcome {
    lab.kubelet(Legacy)?;
    lab.start(&["--proxy-mode=iptables"])?;
    let traffic = Traffic::begin(lab)?;
    lab.stop()?;
    for family in FAMILIES {
        lab.load(Legacy, family, "*mangle\n-X KUBE-IPTABLES-HINT\n-X KUBE-KUBELET-CANARY\nCOMMIT\n")?;
        lab.load(
            Legacy,
            family,
            "*nat\n-X KUBE-KUBELET-CANARY\nCOMMIT\n*filter\n-X KUBE-KUBELET-CANARY\nCOMMIT\n",
        )?;
    }
    lab.kubelet(Nft)?;
    lab.start(&["--proxy-mode=iptables"])?;
    only_mode_in_force(lab, "iptables", Nft)?;
    traffic.end()
}

fn unusable_mode(lab: &mut AgentLab) -> Outcome {
    lab.write("config.yaml", &format!("{HEADER}mode: nftables\n"));
    let config = format!("--config={}", lab.path("config.yaml").display());
    lab.start_as(agent_without_tools(lab, &[&config])?)?;
    let traffic = Traffic::begin(lab)?;
    lab.write("config.yaml", &format!("{HEADER}mode: iptables\n"));
    lab.logged(&["ERROR", "stays in mode nftables", "mode iptables cannot be used", "install the package"])?;
    // The agent still works, and reports the mode that is in force.
    follows_changes(lab)?;
    lab.metric("portway_mode_active", |active| active == 0.0)?;
    let lines = lab.agent()?.log().lines();
    let applied =
        lines.iter().find(|l| l.text.contains("configuration applied") && l.text.contains("\"mode\""));
    ensure(applied.is_none(), || format!("{applied:?}"))?;
    // The failure is retried, and logged once.
    lab.metric("kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}", |n| n >= 4.0)?;
    let errors = lab.agent()?.log().count("it is tried again");
    ensure(errors == 1, || format!("{errors} lines about one failure"))?;
    let page = lab.status("/proxyMode")?;
    ensure(page.body == "nftables", || format!("/proxyMode is {}", page.body))?;
    install_tools(lab, Nft)?;
    lab.logged(&["the mode was switched", "to=\"iptables\""])?;
    lab.metric("portway_mode_active", |active| active == 1.0)?;
    only_mode_in_force(lab, "iptables", Nft)?;
    traffic.end()
}

/// The tool is killed after the first table: the running mode stays, the new rules are removed, and the change is
/// retried.
fn failed_change(lab: &mut AgentLab, variant: Variant) -> Outcome {
    lab.kubelet(variant)?;
    lab.write("config.yaml", &format!("{HEADER}mode: nftables\n"));
    let mut command = wrap(lab, variant)?;
    command.arg(format!("--config={}", lab.path("config.yaml").display()));
    lab.start_as(command)?;
    let mut traffic = Traffic::begin(lab)?;
    std::fs::write(lab.path("tools/die"), "")?;
    lab.write("config.yaml", &format!("{HEADER}mode: iptables\n"));
    lab.logged(&["ERROR", "stays in mode nftables", "not all rules of mode iptables could be written"])?;
    lab.logged(&[
        "removed leftovers of a previous proxy mode",
        "location=\"iptables",
        "IPv4",
        "table nat: KUBE-",
    ])?;
    traffic.is_alive("after the failed change")?;
    lab.logged(&["the mode was switched", "to=\"iptables\""])?;
    only_mode_in_force(lab, "iptables", variant)?;
    traffic.end()
}
