//! Runs a case of the battery: builds the lab, starts the agents with its objects, and takes the steps.

use crate::SOURCE_IS_THE_NODE;
use crate::input::{Input, InputKind};
use crate::mode::Mode;
use portway_lab::guest;
use portway_lab::{
    Agent, Conversation, Failure, Lab, Layout, Load, Namespace, Outcome, Port, Probe, Protocol, eventually,
};
use portway_model::{self as model, Family};
use portway_testkit::battery::{Case, Expect, LabNetwork, OTHER_PORT, PORT, Script, Sender, Source, Step};
use portway_testkit::objects::node;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The time limit for a condition; in a guest everything takes several times as long.
fn wait_timeout() -> Duration {
    Duration::from_secs(if guest::is_inside() { 60 } else { 30 })
}
/// The time after which a packet counts as dropped.
fn drop_timeout() -> Duration {
    Duration::from_millis(if guest::is_inside() { 1000 } else { 250 })
}
/// The time limit for an answer, on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const NODES: usize = 2;
/// New connections per second of a steady load.
fn rate() -> f64 {
    if guest::is_inside() { 60.0 } else { 200.0 }
}

pub(crate) struct RunningCase {
    mode: Mode,
    script: Script,
    net: LabNetwork,
    agents: Vec<Agent>,
    conversations: HashMap<&'static str, Conversation>,
    input: Input,
    lab: Lab,
}

impl RunningCase {
    pub(crate) fn build(
        mode: Mode,
        input: InputKind,
        family: Family,
        case: Case,
    ) -> Result<RunningCase, String> {
        let layout = Layout { nodes: NODES, pods_per_node: 2, clients: 1 };
        let lab = layout.build().map_err(|e| e.to_string())?;
        for pod in lab.pods() {
            let ports = [PORT, OTHER_PORT].map(|p| [Port::Tcp(p), Port::Udp(p)]).concat();
            pod.serve(&ports).map_err(|e| e.to_string())?;
        }
        let index = usize::from(family == Family::V6);
        let net = LabNetwork {
            family,
            pods: lab.pods().iter().map(|p| (p.name().to_owned(), p.ips()[index])).collect(),
            nodes: lab.nodes().iter().map(|n| n.ips()[index]).collect(),
        };
        let name = format!("{}-{input:?}-{family}-{}", mode.name(), case.name);
        let mut input = Input::new(input, &name, &lab)?;
        for (n, zone) in [(1, "zone-a"), (2, "zone-b")] {
            let cidrs = [format!("10.244.{n}.0/24"), format!("fd10:244:{n}::/64")];
            input.apply(&node(&format!("node{n}"), zone, &lab.node(n).ips(), &cidrs))?;
        }
        input.apply(&net.service_cidr())?;
        lab.nodes().iter().for_each(|node| mode.prepare(node.namespace()));
        let script = (case.script)(&net);
        let mut running =
            RunningCase { mode, script, net, agents: Vec::new(), conversations: HashMap::new(), input, lab };
        running.start_agents()?;
        Ok(running)
    }

    pub(crate) fn run(&mut self) -> Result<(), String> {
        let steps = std::mem::take(&mut self.script.steps);
        self.run_all(&steps)
    }

    fn run_all(&mut self, steps: &[Step]) -> Result<(), String> {
        for (i, step) in steps.iter().enumerate() {
            self.step(step).map_err(|e| format!("step {i}: {step:?}\n{e}"))?;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Apply(object) => return self.input.apply(object),
            Step::DeleteService(name) => return self.input.delete("Service", name),
            Step::DeleteSlice(name) => return self.input.delete("EndpointSlice", name),
            Step::Probe { from, to, protocol, expect } => return self.probe(*from, *to, *protocol, expect),
            Step::ProbeAfterPauses { pause, from, to, expect } => {
                let probe = Probe::tcp(self.namespace(*from), *to).count(8).timeout(ANSWER_TIMEOUT);
                let attempt = || {
                    std::thread::sleep(*pause);
                    self.check_outcome(*from, expect, &probe.run(), false)
                };
                return eventually(4 * wait_timeout(), attempt).map_err(|e| e.to_string());
            }
            Step::Open { id, from, to, protocol } => {
                let timeout = if *protocol == model::Protocol::Udp { drop_timeout() } else { ANSWER_TIMEOUT };
                let begin =
                    || Conversation::begin(self.namespace(*from), lab_protocol(*protocol), *to, timeout);
                let conversation = eventually(wait_timeout(), || begin().map_err(|f| format!("{f:?}")));
                self.conversations.insert(id, conversation.map_err(|e| e.to_string())?);
            }
            Step::Ask { id, expect } => return self.ask(id, expect),
            Step::Health { node, port, status, local_endpoints } => {
                return self.health(*node, *port, *status, *local_endpoints);
            }
            Step::UnderLoad { from, to, steps } => {
                let load = Load::start(self.namespace(*from), *to, rate());
                self.run_all(steps)?;
                let report = load.stop();
                if !report.is_clean() {
                    return Err(report.to_string());
                }
            }
            Step::KillAgents => self.agents.drain(..).for_each(|agent| drop(agent.kill())),
            Step::StopAgents => {
                for agent in self.agents.drain(..) {
                    let (status, log) = agent.terminate().map_err(|e| e.to_string())?;
                    if !status.success() {
                        return Err(format!("the agent exited with {status} after SIGTERM:\n{log}"));
                    }
                }
            }
            Step::StartAgents => return self.start_agents(),
            Step::Tamper(node, how) => {
                self.mode.tamper(self.lab.node(*node).namespace(), self.net.family, *how);
            }
            Step::Wait(time) => std::thread::sleep(*time),
        }
        Ok(())
    }

    fn namespace(&self, sender: Sender) -> &Namespace {
        match sender {
            Sender::Pod(name) => self.lab.pod(name).namespace(),
            Sender::Node(n) => self.lab.node(n).namespace(),
            Sender::Client => self.lab.client(1).namespace(),
        }
    }

    fn start_agents(&mut self) -> Result<(), String> {
        for n in 1..=NODES {
            let mut flags: Vec<String> = vec![
                "proxy".into(),
                self.input.flag(),
                format!("--hostname-override=node{n}"),
                format!("--proxy-mode={}", self.mode.flag()),
                "--v=4".into(),
            ];
            flags.extend(self.script.flags.iter().cloned());
            if !flags.iter().any(|f| f.starts_with("--cluster-cidr")) {
                flags.push("--cluster-cidr=10.244.0.0/16,fd10:244::/32".into());
            }
            let binary = Path::new(env!("CARGO_BIN_EXE_portway"));
            self.agents.push(Agent::start(self.lab.node(n), binary, &flags).map_err(|e| e.to_string())?);
        }
        // After the first sync, packets to cluster IPs that are not programmed yet are dropped. A packet that is forwarded
        // instead leaves a conntrack entry without NAT for two minutes, which a later connection from the same source port
        // would match.
        for agent in &mut self.agents {
            agent.wait_for(FIRST_SYNC, wait_timeout()).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn probe(
        &self,
        from: Sender,
        to: SocketAddr,
        protocol: model::Protocol,
        expect: &Expect,
    ) -> Result<(), String> {
        let (count, timeout) = match expect {
            // Enough connections to reach every pod, else the probe is repeated, and to find a pod that should not
            // answer.
            Expect::Spread(pods, _) => (8 + 8 * pods.len(), ANSWER_TIMEOUT),
            Expect::Sticks(_) => (16, ANSWER_TIMEOUT),
            Expect::Refused => (4, ANSWER_TIMEOUT),
            Expect::TimedOut => (4, drop_timeout()),
        };
        let probe = Probe::new(self.namespace(from), lab_protocol(protocol), to).timeout(timeout);
        let attempt = || {
            // One connection first: an attempt that fails because the Service is not programmed yet takes less time.
            let first = probe.timeout(drop_timeout().min(timeout)).run();
            self.check_outcome(from, expect, &first, true)?;
            let outcome = probe.count(count).run();
            self.check_outcome(from, expect, &outcome, false)
        };
        eventually(wait_timeout(), attempt).map_err(|e| e.to_string())
    }

    /// Checks an outcome against the expected one; a single connection need not reach every pod.
    fn check_outcome(
        &self,
        from: Sender,
        expect: &Expect,
        outcome: &Outcome,
        single: bool,
    ) -> Result<(), String> {
        let unexpected = |why: &str| Err(format!("{why}: {outcome}"));
        let servers: Vec<&str> = outcome.answers.keys().map(String::as_str).collect();
        match expect {
            Expect::Refused if outcome.all_refused() => Ok(()),
            Expect::TimedOut if outcome.all_timed_out() => Ok(()),
            Expect::Refused => unexpected("should be refused"),
            Expect::TimedOut => unexpected("should time out"),
            Expect::Sticks(pods) => {
                if !outcome.all_answered() || servers.len() != 1 || !pods.contains(&servers[0]) {
                    return unexpected(&format!("should always be answered by the same one of {pods:?}"));
                }
                Ok(())
            }
            Expect::Spread(pods, source) => {
                let right =
                    servers.iter().all(|s| pods.contains(s)) && (single || servers.len() == pods.len());
                if !outcome.all_answered() || !right {
                    return unexpected(&format!("should be answered by {pods:?}"));
                }
                let allowed = self.sources(from, *source);
                let seen = || outcome.answers.values().flat_map(|a| &a.sources);
                if let Some(allowed) = allowed
                    && !seen().all(|ip| allowed.contains(ip))
                {
                    return unexpected(&format!("the source should be one of {allowed:?}"));
                }
                Ok(())
            }
        }
    }

    /// The source addresses that a pod may see; `None` allows any.
    fn sources(&self, from: Sender, source: Source) -> Option<Vec<IpAddr>> {
        match source {
            Source::Any => None,
            _ if SOURCE_IS_THE_NODE.contains(&self.mode) => {
                let gateways = (1..=NODES as u8).flat_map(|n| [IpAddr::from([10, 244, n, 1]), gateway6(n)]);
                Some(self.lab.nodes().iter().flat_map(|node| node.ips()).chain(gateways).collect())
            }
            Source::Own => Some(match from {
                Sender::Pod(name) => self.lab.pod(name).ips().to_vec(),
                Sender::Node(n) => self.lab.node(n).ips().to_vec(),
                Sender::Client => self.lab.client(1).ips().to_vec(),
            }),
            // In packets to its own pods, a node has its gateway address.
            Source::Node(n) => {
                let mut ips = self.lab.node(n).ips().to_vec();
                ips.push(IpAddr::from([10, 244, n as u8, 1]));
                Some(ips)
            }
        }
    }

    fn ask(&mut self, id: &str, expect: &Expect) -> Result<(), String> {
        let Some(conversation) = self.conversations.get_mut(id) else {
            return Err(format!("no conversation {id}"));
        };
        let attempt = || {
            let answer = conversation.ask("hello");
            let right = match (&answer, expect) {
                (Ok(reply), Expect::Spread(pods, _)) => pods.contains(&reply.server.as_str()),
                (Err(Failure::Refused), Expect::Refused) | (Err(Failure::TimedOut), Expect::TimedOut) => true,
                _ => false,
            };
            if right { Ok(()) } else { Err(format!("{answer:?}")) }
        };
        eventually(wait_timeout(), attempt).map_err(|e| e.to_string())
    }

    fn health(&self, node: usize, port: u16, status: u16, endpoints: usize) -> Result<(), String> {
        let to = SocketAddr::new(self.net.nodes[node - 1], port);
        let attempt = || {
            let (head, body) = self.namespace(Sender::Client).run(|| get(to)).map_err(|e| e.to_string())?;
            let answer: Value = serde_json::from_str(&body).map_err(|e| format!("{e}: {head}{body}"))?;
            let expected = json!({
                "service": {"namespace": "default", "name": "web"},
                "localEndpoints": endpoints,
                "serviceProxyHealthy": true,
            });
            let weight = format!("x-load-balancing-endpoint-weight: {endpoints}\r\n");
            let right = head.starts_with(&format!("HTTP/1.1 {status} "))
                && head.to_lowercase().contains(&weight)
                && head.to_lowercase().contains("x-content-type-options: nosniff\r\n")
                && answer == expected;
            if right { Ok(()) } else { Err(format!("{head}{body}")) }
        };
        eventually(wait_timeout(), attempt).map_err(|e| e.to_string())
    }

    /// For a case that fails: the end of the logs, and with PORTWAY_EVIDENCE the rules.
    pub(crate) fn diagnostics(&self) -> String {
        let mut text = self.input.diagnostics();
        for (agent, node) in self.agents.iter().zip(self.lab.nodes()) {
            text += &format!("── {} ──\n{}\n", node.name(), agent.log().tail(40));
            if std::env::var("PORTWAY_EVIDENCE").is_ok() {
                for (program, arguments) in self.mode.list_commands(self.net.family) {
                    let shown = node.namespace().run(|| Command::new(program).args(arguments).output());
                    text +=
                        &shown.map_or_else(|e| e.to_string(), |s| String::from_utf8_lossy(&s.stdout).into());
                }
            }
        }
        text
    }
}

/// A part of the line that the agent logs after its first sync.
const FIRST_SYNC: &str = " endpoints in ";

/// The IPv6 gateway address of a node's pods.
fn gateway6(n: u8) -> IpAddr {
    IpAddr::from([0xfd10, 0x244, n.into(), 0, 0, 0, 0, 1])
}

fn lab_protocol(protocol: model::Protocol) -> Protocol {
    match protocol {
        model::Protocol::Udp => Protocol::Udp,
        _ => Protocol::Tcp,
    }
}

/// The head and the body of an HTTP response.
fn get(to: SocketAddr) -> std::io::Result<(String, String)> {
    let mut stream = TcpStream::connect_timeout(&to, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(b"GET /any/path HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    Ok((format!("{head}\r\n"), body.to_owned()))
}
