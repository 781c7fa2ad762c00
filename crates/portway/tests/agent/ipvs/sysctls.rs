//! The sysctls and ipvs timeouts that the mode sets, and their restoration.

use super::{start, start_again, wait_until};
use crate::agent_lab::AgentLab;
use crate::mode_change::HEADER;
use crate::tool::Legacy;
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::line_has_level;

pub(crate) const TESTS: &[Test] = &[
    ("sysctls_are_set_and_cleanup_restores_them", |lab| restored(lab, Event::Stop)),
    ("sysctls_are_restored_after_the_agent_was_killed", |lab| restored(lab, Event::Kill)),
    ("sysctls_are_restored_after_the_device_was_removed", |lab| restored(lab, Event::Removal)),
    ("init_only_sets_the_sysctls_and_cleanup_restores_them", init_only),
    ("sysctls_no_longer_needed_are_restored_at_once", no_longer_needed),
];

/// The name of each sysctl, its value before the agent starts, and the value that the mode sets.
const SYSCTLS: &[(&str, &str, &str)] = &[
    ("ip_forward", "0", "1"),
    ("vs/conntrack", "0", "1"),
    ("vs/conn_reuse_mode", "0", "1"),
    ("vs/expire_nodest_conn", "0", "1"),
    ("vs/expire_quiescent_template", "0", "1"),
    ("conf/all/arp_ignore", "2", "1"),
    ("conf/all/arp_announce", "1", "2"),
];

fn path(name: &str) -> String {
    format!("/proc/sys/net/ipv4/{name}")
}

fn read(lab: &AgentLab, name: &str) -> Result<String, Failed> {
    Ok(lab.node().run(|| std::fs::read_to_string(path(name)))?.trim().to_owned())
}

/// Checks the value of every sysctl.
fn have_values(lab: &AgentLab, when: &str, value: impl Fn(&(&str, &str, &str)) -> String) -> Outcome {
    for sysctl in SYSCTLS {
        let (now, wanted) = (read(lab, sysctl.0)?, value(sysctl));
        ensure(now == wanted, || format!("{when}: {} is {now} instead of {wanted}", sysctl.0))?;
    }
    Ok(())
}

fn timeouts(lab: &AgentLab) -> Result<String, Failed> {
    lab.ipvsadm("-L --timeout")
}

/// Sets the values before the agent starts.
fn set_initial_values(lab: &AgentLab) -> Outcome {
    // `ipvsadm -Ln` loads ip_vs, which creates its sysctls in this namespace.
    lab.servers()?;
    for (name, before, _) in SYSCTLS {
        lab.node().run(|| std::fs::write(path(name), before))?;
    }
    lab.ipvsadm("--set 901 121 301")?;
    Ok(())
}

const FLAGS: &[&str] =
    &["--ipvs-strict-arp", "--ipvs-tcp-timeout=10m", "--ipvs-tcpfin-timeout=30s", "--ipvs-udp-timeout=1m"];

/// The event before `portway cleanup` runs.
#[derive(Clone, Copy)]
enum Event {
    Stop,
    Kill,
    Removal,
}

/// All objects and settings that `portway cleanup` may change.
fn everything(lab: &AgentLab) -> Result<String, Failed> {
    let sysctls = SYSCTLS.iter().map(|(name, ..)| read(lab, name)).collect::<Result<Vec<_>, _>>()?;
    let sets = lab.on_node("ipset save")?;
    let device = lab.on_node("ip address")?;
    let (servers, rules, timeouts) = (lab.servers()?, lab.rules()?, timeouts(lab)?);
    Ok(format!("{sysctls:?}{timeouts}{servers:#?}{rules}{sets}{device}"))
}

fn restored(lab: &mut AgentLab, event: Event) -> Outcome {
    set_initial_values(lab)?;
    // A Service without endpoints and one without local endpoints: members for the sets that kube-proxy does not have.
    lab.apply("no-endpoints.yaml", &objects::service("no-endpoints", "10.96.0.80", ""));
    let local = objects::service("local", "10.96.0.81", "type: NodePort\nexternalTrafficPolicy: Local");
    lab.apply("local.yaml", &local.replace("protocol: TCP", "protocol: TCP\n    nodePort: 30003"));
    let remote = objects::slice("local", "local", &["10.244.2.10".parse()?]);
    lab.apply("local-slice.yaml", &remote.replace("nodeName: node1", "nodeName: node2"));
    start(lab, FLAGS)?;
    lab.web_works()?;
    have_values(lab, "in the mode", |(_, _, wanted)| (*wanted).to_owned())?;
    let current = timeouts(lab)?;
    ensure(current.trim() == "Timeout (tcp tcpfin udp): 600 30 60", || current.clone())?;
    for (set, member) in
        [("KUBE-NO-ENDPOINTS", "10.96.0.80,tcp:80"), ("KUBE-NO-LOCAL-ENDPOINTS", ",tcp:30003")]
    {
        let members = lab.members(set)?;
        ensure(members.iter().any(|m| m.contains(member)), || format!("{set}: {members:?}"))?;
    }
    match event {
        Event::Stop => drop(lab.stop()?),
        Event::Kill => {
            // A second run finds the values set, and still has the values from before the first run.
            lab.kill()?;
            start_again(lab, FLAGS)?;
            lab.logged(&["synced", "family=\"IPv4\""])?;
            lab.kill()?;
        }
        Event::Removal => {
            // The previous values are stored in the alias of this device.
            lab.on_node("ip link delete kube-ipvs0")?;
            lab.logged(&["repaired rules that another process had changed", "device kube-ipvs0 is missing"])?;
            lab.stop()?;
        }
    }
    have_values(lab, "after the agent ended", |(_, _, wanted)| (*wanted).to_owned())?;
    clean_up(lab)?;
    have_values(lab, "after cleanup", |(_, before, _)| (*before).to_owned())?;
    let current = timeouts(lab)?;
    ensure(current.trim() == "Timeout (tcp tcpfin udp): 901 121 301", || current.clone())
}

/// A dry run lists the objects and changes nothing; the run after it removes the listed objects.
fn clean_up(lab: &AgentLab) -> Outcome {
    let stdout_lines = |arguments: &[&str]| -> Result<Vec<String>, Failed> {
        let output = lab.portway(arguments)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure(output.status.success() && !stderr.lines().any(|line| line_has_level(line, "WARN")), || {
            format!("{arguments:?}: {}: {stderr}", output.status)
        })?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    };
    let before = everything(lab)?;
    let listed = stdout_lines(&["cleanup", "--dry-run"])?;
    let after = everything(lab)?;
    ensure(before == after, || format!("a dry run changed\n{before}\nto\n{after}"))?;
    for text in [
        "ipvs: ",
        "virtual servers",
        "device kube-ipvs0 with ",
        "KUBE-CLUSTER-IP",
        "KUBE-NO-ENDPOINTS",
        "KUBE-6-NO-LOCAL-ENDPOINTS",
        "KUBE-SHORT-CUT",
        "KUBE-IPVS-FILTER",
        "ip_forward=0",
        "timeouts=901,121,301",
    ] {
        ensure(listed.iter().any(|l| l.contains(text)), || format!("no {text:?} in {listed:#?}"))?;
    }
    let removed = stdout_lines(&["cleanup"])?;
    let would: Vec<String> = listed.iter().map(|l| l.replacen("would remove", "removed", 1)).collect();
    ensure(would == removed, || format!("it listed\n{listed:#?}\nand removed\n{removed:#?}"))?;
    lab.without_ipvs(crate::agent_lab::wait_timeout())?;
    let sets = lab.on_node("ipset list -name")?;
    ensure(sets.trim().is_empty(), || format!("left: {sets}"))?;
    let left = lab.kube_lines(Legacy)?;
    ensure(left.is_empty(), || left.join("\n"))?;
    let printed = stdout_lines(&["cleanup"])?;
    ensure(printed == ["there was nothing to remove"], || format!("{printed:?}"))
}

fn init_only(lab: &mut AgentLab) -> Outcome {
    set_initial_values(lab)?;
    let flags = [&["proxy", "--init-only", "--proxy-mode=ipvs"], FLAGS].concat();
    let output = lab.portway(&flags)?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.success(), || message.clone())?;
    have_values(lab, "after --init-only", |(_, _, wanted)| (*wanted).to_owned())?;
    let servers = lab.servers()?;
    ensure(servers.is_empty(), || format!("virtual servers were added: {servers:?}"))?;
    let output = lab.portway(&["cleanup"])?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    have_values(lab, "after cleanup", |(_, before, _)| (*before).to_owned())
}

fn no_longer_needed(lab: &mut AgentLab) -> Outcome {
    set_initial_values(lab)?;
    lab.kubelet(Legacy)?;
    let strict = "ipvs:\n  strictARP: true\n  tcpTimeout: 10m\n  udpTimeout: 1m\n";
    lab.write("config.yaml", &format!("{HEADER}mode: ipvs\n{strict}"));
    lab.start(&[&format!("--config={}", lab.path("config.yaml").display())])?;
    lab.web_works()?;
    have_values(lab, "in the mode", |(_, _, wanted)| (*wanted).to_owned())?;
    let right = |wanted: &'static str| {
        move |now: &String| now.trim() == format!("Timeout (tcp tcpfin udp): {wanted}")
    };
    wait_until(|| timeouts(lab), right("600 121 60"))?;
    lab.write("config.yaml", &format!("{HEADER}mode: ipvs\nipvs:\n  udpTimeout: 2m\n"));
    wait_until(|| timeouts(lab), right("901 121 120"))?;
    let arp = |name: &str| read(lab, &format!("conf/all/{name}"));
    wait_until(|| Ok([arp("arp_ignore")?, arp("arp_announce")?]), |now| now.iter().eq(["2", "1"]))?;
    lab.web_works()?;
    // The end of the mode restores all of them.
    lab.write("config.yaml", &format!("{HEADER}mode: iptables\n"));
    lab.logged(&["the mode was switched", "to=\"iptables\""])?;
    lab.without_ipvs(crate::agent_lab::wait_timeout())?;
    wait_until(|| timeouts(lab), right("901 121 301"))?;
    let vs = |(name, ..): &&(&str, &str, &str)| name.starts_with("vs/");
    for (name, before, _) in SYSCTLS.iter().filter(vs) {
        let now = read(lab, name)?;
        ensure(now == *before, || format!("in another mode: {name} is {now} instead of {before}"))?;
    }
    // ip_forward may be 0 again, and without forwarding no packet reaches a pod.
    lab.node().run(|| std::fs::write(path("ip_forward"), "1"))?;
    lab.web_works()
}
