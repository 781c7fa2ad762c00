//! Changes from the iptables mode to the ipvs mode and back, under load.

use super::wait_until;
use crate::agent_lab::{AgentLab, answer_timeout, wait_timeout};
use crate::mode_change::{HEADER, follows_changes};
use crate::tool::Legacy;
use crate::traffic::Traffic;
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Conversation, Protocol, eventually};
use std::time::Duration;

// In separate sections, since each test has much traffic.
pub(crate) const TESTS: &[Test] = &[("mode_changes_while_running_and_back", while_running)];
pub(crate) const RESTART: &[Test] = &[("mode_changes_by_restart_and_back", by_restart)];
pub(crate) const MODE_END: &[Test] =
    &[("entries_that_are_not_connections_do_not_delay_cleanup", entries_without_connections)];

/// The time limit for the removal of the objects that open connections needed: Portway checks them periodically, and
/// the kernel drops the entry of an unanswered connection after a minute.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(120);

/// Applies a UDP Service.
fn serve_udp(lab: &AgentLab) {
    let udp = objects::service("udp", "10.96.0.53", "").replace("port: 80", "name: udp\n    port: 53");
    lab.apply("udp.yaml", &udp.replace("TCP", "UDP"));
    let pods = ["pod1a", "pod1b"].map(|pod| lab.pod_ips(pod)[0]);
    lab.apply("udp-slice.yaml", &objects::slice("udp", "udp", &pods));
}

/// A TCP connection and a UDP flow of the client that began in one mode.
struct OpenConnections {
    mode: &'static str,
    tcp: Conversation,
    udp: Conversation,
}

impl OpenConnections {
    fn begin(lab: &AgentLab, mode: &'static str) -> Result<OpenConnections, Failed> {
        let begin = |protocol, to: &str| -> Result<Conversation, Failed> {
            let to = to.parse()?;
            let attempt = || {
                let mut conversation = Conversation::begin(lab.client(), protocol, to, answer_timeout())?;
                conversation.ask("hello").map(|_| conversation)
            };
            Ok(eventually(wait_timeout(), attempt)?)
        };
        Ok(OpenConnections {
            mode,
            tcp: begin(Protocol::Tcp, "10.96.0.1:80")?,
            udp: begin(Protocol::Udp, "10.96.0.53:53")?,
        })
    }

    fn is_alive(&mut self, when: &str) -> Outcome {
        let mode = self.mode;
        for (protocol, conversation) in [("TCP", &mut self.tcp), ("UDP", &mut self.udp)] {
            let answer = conversation.ask("still there?");
            ensure(answer.is_ok(), || format!("{when}: {protocol} opened in mode {mode}: {answer:?}"))?;
        }
        Ok(())
    }
}

/// Waits until a mode is in force and the rules of the other one are removed. ipvs objects that open connections need
/// may stay.
fn is_in_force(lab: &AgentLab, mode: &str) -> Outcome {
    wait_until(|| lab.rules(), |rules| rules.contains("-j KUBE-SVC-") == (mode == "iptables"))?;
    wait_until(|| lab.rules(), |rules| rules.contains("--match-set KUBE-") == (mode == "ipvs"))?;
    lab.is_in_mode(mode)
}

fn while_running(lab: &mut AgentLab) -> Outcome {
    lab.kubelet(Legacy)?;
    serve_udp(lab);
    let config = |mode: &str| format!("{HEADER}mode: {mode}\niptables:\n  syncPeriod: 1h\n");
    lab.write("config.yaml", &config("iptables"));
    lab.start(&[&format!("--config={}", lab.path("config.yaml").display())])?;
    let traffic = Traffic::begin(lab)?;
    change_mode(lab, traffic, |lab, from, mode| {
        lab.write("config.yaml", &config(mode));
        lab.logged(&["the mode was switched", &format!("from=\"{from}\""), &format!("to=\"{mode}\"")])?;
        let page = lab.status("/configz")?.json()?;
        let shown = &page["kubeproxy.config.k8s.io"]["mode"];
        ensure(*shown == mode, || format!("/configz shows {shown}"))
    })
}

fn by_restart(lab: &mut AgentLab) -> Outcome {
    lab.kubelet(Legacy)?;
    serve_udp(lab);
    let begin = |lab: &mut AgentLab, mode: &str| {
        lab.start(&[&format!("--proxy-mode={mode}"), "--iptables-sync-period=1h"]).map(drop)
    };
    begin(lab, "iptables")?;
    let traffic = Traffic::begin(lab)?;
    change_mode(lab, traffic, |lab, _, mode| {
        lab.stop()?;
        begin(lab, mode)
    })
}

/// Neither an affinity entry nor a connection through another program's virtual server to the same pod delays the
/// removal of Portway's virtual servers.
fn entries_without_connections(lab: &mut AgentLab) -> Outcome {
    lab.ipvsadm("-A -t 192.168.50.11:8888 -s rr")?;
    lab.ipvsadm(&format!("-a -t 192.168.50.11:8888 -r {}:8080 -m", lab.pod_ips("pod1a")[0]))?;
    let sticky = objects::service("sticky", "10.96.0.70", "sessionAffinity: ClientIP");
    lab.apply("sticky.yaml", &sticky);
    lab.apply("sticky-slice.yaml", &objects::slice("sticky", "sticky", &lab.pod_ips("pod1a")[..1]));
    super::start(lab, &[])?;
    // A connection before the address exists would leave an entry that the kernel keeps for a minute.
    wait_until(|| lab.bound(), |bound| bound.contains("10.96.0.70/32"))?;
    lab.reaches("10.96.0.70:80".parse()?, &["pod1a"])?;
    let foreign = "192.168.50.11:8888".parse()?;
    let mut open = Conversation::begin(lab.client(), Protocol::Tcp, foreign, answer_timeout())?;
    let entries = lab.ipvsadm("-Lnc")?;
    ensure(entries.contains("ASSURED") && entries.contains("ESTABLISHED"), || entries.clone())?;
    lab.stop()?;
    lab.start(&["--proxy-mode=iptables", "--iptables-sync-period=1h"])?;
    wait_until(|| lab.ipvs_leftovers(), |left| left.is_empty())?;
    let answer = open.ask("still there?");
    ensure(answer.is_ok(), || format!("the connection through the foreign server: {answer:?}"))?;
    let servers = lab.servers()?;
    ensure(servers.len() == 1, || format!("{servers:#?}"))
}

/// Changes the mode to ipvs and back with `switch`; all connections must stay open.
fn change_mode(
    lab: &mut AgentLab,
    mut traffic: Traffic,
    switch: impl Fn(&mut AgentLab, &str, &str) -> Outcome,
) -> Outcome {
    let mut open = vec![OpenConnections::begin(lab, "iptables")?];
    for (from, mode) in [("iptables", "ipvs"), ("ipvs", "iptables")] {
        switch(lab, from, mode)?;
        is_in_force(lab, mode)?;
        traffic.is_alive(mode)?;
        open.iter_mut().try_for_each(|open| open.is_alive(mode))?;
        follows_changes(lab)?;
        open.push(OpenConnections::begin(lab, mode)?);
    }
    // An open connection needs its virtual server, which stays until the connection ends.
    lab.logged(&["WARN", "stay for now", "the ipvs mode stay until their last connection ends"])?;
    open.iter_mut().try_for_each(|open| open.is_alive("at the end"))?;
    traffic.end()?;
    // The TCP connection that was opened in the ipvs mode ends; all others stay open.
    let mut open = open.into_iter();
    let (mut first, ipvs, mut last) = match (open.next(), open.next(), open.next()) {
        (Some(a), Some(b), Some(c)) => (a, b, c),
        _ => return Err("connections of three modes are expected".into()),
    };
    drop(ipvs.tcp);
    lab.without_ipvs(REMOVAL_TIMEOUT)?;
    first.is_alive("after the end of the ipvs mode")?;
    last.is_alive("after the end of the ipvs mode")?;
    let mut udp = ipvs.udp;
    let answer = udp.ask("still there?");
    ensure(answer.is_ok(), || format!("UDP opened in mode ipvs: {answer:?}"))?;
    lab.web_works()
}
