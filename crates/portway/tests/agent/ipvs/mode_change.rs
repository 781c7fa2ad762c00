//! From the iptables mode to this one and back, while requests go on.

use super::becomes;
use crate::agent_lab::{AgentLab, answer, patience};
use crate::mode_change::{HEADER, follows_changes};
use crate::tool::Legacy;
use crate::traffic::Traffic;
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Conversation, Protocol, eventually};
use std::time::Duration;

// Each in a room of its own: there is much traffic.
pub(crate) const TESTS: &[Test] = &[("mode_changes_while_running_and_back", while_running)];
pub(crate) const RESTART: &[Test] = &[("mode_changes_by_restart_and_back", by_restart)];
pub(crate) const LEAVE: &[Test] = &[("entries_that_are_not_connections_do_not_delay_cleanup", leave)];

/// How long what an open connection needs stays after its end: until it is looked at again. One that was never answered is
/// given up by the kernel after a minute.
const TIDIED: Duration = Duration::from_secs(120);

/// A Service of UDP.
fn serve_udp(world: &AgentLab) {
    let udp = objects::service("udp", "10.96.0.53", "").replace("port: 80", "name: udp\n    port: 53");
    world.apply("udp.yaml", &udp.replace("TCP", "UDP"));
    let pods = ["pod1a", "pod1b"].map(|pod| world.pod_ips(pod)[0]);
    world.apply("udp-slice.yaml", &objects::slice("udp", "udp", &pods));
}

/// Conversations from the client that began in one mode.
struct Open {
    mode: &'static str,
    tcp: Conversation,
    udp: Conversation,
}

impl Open {
    fn begin(world: &AgentLab, mode: &'static str) -> Result<Open, Failed> {
        let begin = |protocol, to: &str| -> Result<Conversation, Failed> {
            let to = to.parse()?;
            let attempt = || {
                let mut conversation = Conversation::begin(world.client(), protocol, to, answer())?;
                conversation.ask("hello").map(|_| conversation)
            };
            Ok(eventually(patience(), attempt)?)
        };
        Ok(Open {
            mode,
            tcp: begin(Protocol::Tcp, "10.96.0.1:80")?,
            udp: begin(Protocol::Udp, "10.96.0.53:53")?,
        })
    }

    fn is_alive(&mut self, when: &str) -> Outcome {
        let mode = self.mode;
        for (what, conversation) in [("TCP", &mut self.tcp), ("UDP", &mut self.udp)] {
            let answer = conversation.ask("still there?");
            ensure(answer.is_ok(), || format!("{when}: {what} from when it was {mode}: {answer:?}"))?;
        }
        Ok(())
    }
}

/// Waits until a mode is in force. Of the rules, only its own are left; of ipvs, what open connections need.
fn is_in_force(world: &AgentLab, mode: &str) -> Outcome {
    becomes(|| world.rules(), |rules| rules.contains("-j KUBE-SVC-") == (mode == "iptables"))?;
    becomes(|| world.rules(), |rules| rules.contains("--match-set KUBE-") == (mode == "ipvs"))?;
    world.is_in_mode(mode)
}

fn while_running(world: &mut AgentLab) -> Outcome {
    world.kubelet(Legacy)?;
    serve_udp(world);
    let config = |mode: &str| format!("{HEADER}mode: {mode}\niptables:\n  syncPeriod: 1h\n");
    world.write("config.yaml", &config("iptables"));
    world.start(&[&format!("--config={}", world.path("config.yaml").display())])?;
    let traffic = Traffic::begin(world)?;
    go_over(world, traffic, |world, from, mode| {
        world.write("config.yaml", &config(mode));
        world.logged(&["the mode was switched", &format!("from=\"{from}\""), &format!("to=\"{mode}\"")])?;
        let page = world.status("/configz")?.json()?;
        let shown = &page["kubeproxy.config.k8s.io"]["mode"];
        ensure(*shown == mode, || format!("/configz says {shown}"))
    })
}

fn by_restart(world: &mut AgentLab) -> Outcome {
    world.kubelet(Legacy)?;
    serve_udp(world);
    let begin = |world: &mut AgentLab, mode: &str| {
        world.start(&[&format!("--proxy-mode={mode}"), "--iptables-sync-period=1h"]).map(drop)
    };
    begin(world, "iptables")?;
    let traffic = Traffic::begin(world)?;
    go_over(world, traffic, |world, _, mode| {
        world.stop()?;
        begin(world, mode)
    })
}

/// Neither an affinity entry, nor another program's connection to the same pod, needs our virtual servers.
fn leave(world: &mut AgentLab) -> Outcome {
    world.ipvsadm("-A -t 192.168.50.11:8888 -s rr")?;
    world.ipvsadm(&format!("-a -t 192.168.50.11:8888 -r {}:8080 -m", world.pod_ips("pod1a")[0]))?;
    let sticky = objects::service("sticky", "10.96.0.70", "sessionAffinity: ClientIP");
    world.apply("sticky.yaml", &sticky);
    world.apply("sticky-slice.yaml", &objects::slice("sticky", "sticky", &world.pod_ips("pod1a")[..1]));
    super::start(world, &[])?;
    // Who asks too early leaves something behind that the kernel waits for, for a minute.
    becomes(|| world.bound(), |bound| bound.contains("10.96.0.70/32"))?;
    world.reaches("10.96.0.70:80".parse()?, &["pod1a"])?;
    let theirs = "192.168.50.11:8888".parse()?;
    let mut open = Conversation::begin(world.client(), Protocol::Tcp, theirs, answer())?;
    let remembered = world.ipvsadm("-Lnc")?;
    ensure(remembered.contains("ASSURED") && remembered.contains("ESTABLISHED"), || remembered.clone())?;
    world.stop()?;
    world.start(&["--proxy-mode=iptables", "--iptables-sync-period=1h"])?;
    becomes(|| world.ipvs_left(), |left| left.is_empty())?;
    let answer = open.ask("still there?");
    ensure(answer.is_ok(), || format!("their connection: {answer:?}"))?;
    let servers = world.servers()?;
    ensure(servers.len() == 1, || format!("{servers:#?}"))
}

fn go_over(
    world: &mut AgentLab,
    mut traffic: Traffic,
    switch: impl Fn(&mut AgentLab, &str, &str) -> Outcome,
) -> Outcome {
    let mut open = vec![Open::begin(world, "iptables")?];
    for (from, mode) in [("iptables", "ipvs"), ("ipvs", "iptables")] {
        switch(world, from, mode)?;
        is_in_force(world, mode)?;
        traffic.is_alive(mode)?;
        open.iter_mut().try_for_each(|open| open.is_alive(mode))?;
        follows_changes(world)?;
        open.push(Open::begin(world, mode)?);
    }
    // An open connection needs its virtual server, which stays until the connection ends.
    world.logged(&["WARN", "stay for now", "the ipvs mode stay until their last connection ends"])?;
    open.iter_mut().try_for_each(|open| open.is_alive("at the end"))?;
    traffic.end()?;
    // Of those through ipvs the TCP one ends; the others live on.
    let mut open = open.into_iter();
    let (mut first, ipvs, mut last) = match (open.next(), open.next(), open.next()) {
        (Some(a), Some(b), Some(c)) => (a, b, c),
        _ => return Err("three modes".into()),
    };
    drop(ipvs.tcp);
    world.without_ipvs(TIDIED)?;
    first.is_alive("ipvs is gone")?;
    last.is_alive("ipvs is gone")?;
    let mut udp = ipvs.udp;
    let answer = udp.ask("and you?");
    ensure(answer.is_ok(), || format!("UDP from when it was ipvs: {answer:?}"))?;
    world.web_works()
}
