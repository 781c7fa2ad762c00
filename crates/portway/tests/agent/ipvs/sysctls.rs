//! The kernel's settings that the mode needs, and how they were before.

use super::{again, becomes, start};
use crate::agent_lab::AgentLab;
use crate::mode_change::HEADER;
use crate::tool::Legacy;
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;

pub(crate) const TESTS: &[Test] = &[
    ("sysctls_are_set_and_cleanup_restores_them", |world| put_back(world, After::Stop)),
    ("sysctls_are_restored_after_the_agent_was_killed", |world| put_back(world, After::Kill)),
    ("sysctls_are_restored_after_the_device_was_removed", |world| put_back(world, After::Removal)),
    ("sysctls_no_longer_needed_are_restored_at_once", no_longer),
];

/// Where each is, how it was before, and how the mode needs it.
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

fn read(world: &AgentLab, name: &str) -> Result<String, Failed> {
    Ok(world.node().run(|| std::fs::read_to_string(path(name)))?.trim().to_owned())
}

fn are(world: &AgentLab, when: &str, value: impl Fn(&(&str, &str, &str)) -> String) -> Outcome {
    for sysctl in SYSCTLS {
        let (now, wanted) = (read(world, sysctl.0)?, value(sysctl));
        ensure(now == wanted, || format!("{when}: {} is {now} and not {wanted}", sysctl.0))?;
    }
    Ok(())
}

fn timeouts(world: &AgentLab) -> Result<String, Failed> {
    world.ipvsadm("-L --timeout")
}

/// How they are before anybody comes.
fn begin(world: &AgentLab) -> Outcome {
    // Asking brings it into this namespace.
    world.servers()?;
    for (name, before, _) in SYSCTLS {
        world.node().run(|| std::fs::write(path(name), before))?;
    }
    world.ipvsadm("--set 901 121 301")?;
    Ok(())
}

const FLAGS: &[&str] =
    &["--ipvs-strict-arp", "--ipvs-tcp-timeout=10m", "--ipvs-tcpfin-timeout=30s", "--ipvs-udp-timeout=1m"];

/// What happens before everything is cleaned up.
#[derive(Clone, Copy)]
enum After {
    Stop,
    Kill,
    Removal,
}

/// Everything that cleaning up is about.
fn everything(world: &AgentLab) -> Result<String, Failed> {
    let sysctls = SYSCTLS.iter().map(|(name, ..)| read(world, name)).collect::<Result<Vec<_>, _>>()?;
    let sets = world.on_node("ipset save")?;
    let device = world.on_node("ip address")?;
    let (servers, rules, timeouts) = (world.servers()?, world.rules()?, timeouts(world)?);
    Ok(format!("{sysctls:?}{timeouts}{servers:#?}{rules}{sets}{device}"))
}

fn put_back(world: &mut AgentLab, after: After) -> Outcome {
    begin(world)?;
    // Something in every set that is ours alone: nobody serves, and nobody here.
    world.apply("nobody.yaml", &objects::service("nobody", "10.96.0.80", ""));
    let local = objects::service("local", "10.96.0.81", "type: NodePort\nexternalTrafficPolicy: Local");
    world.apply("local.yaml", &local.replace("protocol: TCP", "protocol: TCP\n    nodePort: 30003"));
    let elsewhere = objects::slice("local", "local", &["10.244.2.10".parse()?]);
    world.apply("local-slice.yaml", &elsewhere.replace("nodeName: node1", "nodeName: node2"));
    start(world, FLAGS)?;
    world.web_works()?;
    are(world, "in the mode", |(_, _, wanted)| (*wanted).to_owned())?;
    let set = timeouts(world)?;
    ensure(set.trim() == "Timeout (tcp tcpfin udp): 600 30 60", || set.clone())?;
    for (sets, member) in
        [("KUBE-NO-ENDPOINTS", "10.96.0.80,tcp:80"), ("KUBE-NO-LOCAL-ENDPOINTS", ",tcp:30003")]
    {
        let members = world.members(sets)?;
        ensure(members.iter().any(|m| m.contains(member)), || format!("{sets}: {members:?}"))?;
    }
    match after {
        After::Stop => drop(world.stop()?),
        After::Kill => {
            // A second run finds them as it needs them, and still knows how they were.
            world.kill()?;
            again(world, FLAGS)?;
            world.logged(&["synced", "family=IPv4"])?;
            world.kill()?;
        }
        After::Removal => {
            // How they were is written on it.
            world.on_node("ip link delete kube-ipvs0")?;
            world.logged(&[
                "repaired rules that another process had changed",
                "device kube-ipvs0 is missing",
            ])?;
            world.stop()?;
        }
    }
    are(world, "after its end", |(_, _, wanted)| (*wanted).to_owned())?;
    clean_up(world)?;
    are(world, "after cleanup", |(_, before, _)| (*before).to_owned())?;
    let set = timeouts(world)?;
    ensure(set.trim() == "Timeout (tcp tcpfin udp): 901 121 301", || set.clone())
}

/// A dry run says what there is and changes nothing; the other one does what that said.
fn clean_up(world: &AgentLab) -> Outcome {
    let say = |arguments: &[&str]| -> Result<Vec<String>, Failed> {
        let output = world.portway(arguments)?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure(output.status.success() && !complaint.contains("WARN"), || {
            format!("{arguments:?}: {}: {complaint}", output.status)
        })?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    };
    let before = everything(world)?;
    let listed = say(&["cleanup", "--dry-run"])?;
    let after = everything(world)?;
    ensure(before == after, || format!("a dry run changed\n{before}\nto\n{after}"))?;
    for words in [
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
        ensure(listed.iter().any(|l| l.contains(words)), || format!("not {words}: {listed:#?}"))?;
    }
    let removed = say(&["cleanup"])?;
    let would: Vec<String> = listed.iter().map(|l| l.replacen("would remove", "removed", 1)).collect();
    ensure(would == removed, || format!("it listed\n{listed:#?}\nand did\n{removed:#?}"))?;
    world.without_ipvs(crate::agent_lab::patience())?;
    let sets = world.on_node("ipset list -name")?;
    ensure(sets.trim().is_empty(), || format!("left: {sets}"))?;
    let left = world.kube_lines(Legacy)?;
    ensure(left.is_empty(), || left.join("\n"))?;
    let said = say(&["cleanup"])?;
    ensure(said == ["there was nothing to remove"], || format!("{said:?}"))
}

fn no_longer(world: &mut AgentLab) -> Outcome {
    begin(world)?;
    world.kubelet(Legacy)?;
    let strict = "ipvs:\n  strictARP: true\n  tcpTimeout: 10m\n  udpTimeout: 1m\n";
    world.write("config.yaml", &format!("{HEADER}mode: ipvs\n{strict}"));
    world.start(&[&format!("--config={}", world.path("config.yaml").display())])?;
    world.web_works()?;
    are(world, "in the mode", |(_, _, wanted)| (*wanted).to_owned())?;
    let right = |wanted: &'static str| {
        move |now: &String| now.trim() == format!("Timeout (tcp tcpfin udp): {wanted}")
    };
    becomes(|| timeouts(world), right("600 121 60"))?;
    world.write("config.yaml", &format!("{HEADER}mode: ipvs\nipvs:\n  udpTimeout: 2m\n"));
    becomes(|| timeouts(world), right("901 121 120"))?;
    let arp = |name: &str| read(world, &format!("conf/all/{name}"));
    becomes(|| Ok([arp("arp_ignore")?, arp("arp_announce")?]), |now| now.iter().eq(["2", "1"]))?;
    world.web_works()?;
    // And all of them with the mode.
    world.write("config.yaml", &format!("{HEADER}mode: iptables\n"));
    world.logged(&["the mode was switched", "to=\"iptables\""])?;
    world.without_ipvs(crate::agent_lab::patience())?;
    becomes(|| timeouts(world), right("901 121 301"))?;
    let vs = |(name, ..): &&(&str, &str, &str)| name.starts_with("vs/");
    for (name, before, _) in SYSCTLS.iter().filter(vs) {
        let now = read(world, name)?;
        ensure(now == *before, || format!("in another mode: {name} is {now} and not {before}"))?;
    }
    // This one the other mode would want as well; and without it nothing gets through.
    world.node().run(|| std::fs::write(path("ip_forward"), "1"))?;
    world.web_works()
}
