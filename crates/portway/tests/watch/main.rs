//! The agent fed by an API server's watch: what it does on good days, and on the bad days of the server.

use portway_lab::api::{ApiServer, Lists};
use portway_lab::{Agent, Lab, Layout, Outcome, Port, Probe, eventually};
use portway_model::Family;
use portway_model::api::{EndpointSlice, Resource, Service};
use portway_testkit::battery::{LabNetwork, PORT};
use portway_testkit::harness::{self, Failed, Test};
use portway_testkit::objects::{Endpoint, Manifest, node};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

type Run = fn(&mut Field) -> Result<(), String>;

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let table: [(&'static str, Run); 8] = [
        ("a_streamed_list_is_programmed_and_changes_follow", |f| changes_follow(f, Lists::Streamed)),
        ("a_cached_list_is_programmed_and_changes_follow", |f| changes_follow(f, Lists::Cached)),
        ("a_paged_list_is_programmed_and_changes_follow", |f| changes_follow(f, Lists::Paged)),
        ("an_outage_changes_nothing_and_is_made_up_for", outage),
        ("a_compacted_history_means_a_new_list", compaction),
        ("json_will_do", json),
        ("a_refusal_names_the_rule_that_is_missing", refusal),
        ("a_rejected_object_gets_an_event", event),
    ];
    let test = |(name, run): (&'static str, Run)| {
        Test::new(name, move || {
            let mut field = Field::new(name)?;
            run(&mut field).map_err(|e| Failed::from(format!("{e}\n{}", field.log())))
        })
    };
    harness::run_in(portway_lab::enter, table.map(test).into())
}

struct Field {
    agent: Option<Agent>,
    api: ApiServer,
    net: LabNetwork,
    kubeconfig: PathBuf,
    lab: Lab,
}

impl Field {
    fn new(name: &str) -> Result<Field, String> {
        let lab = Layout { nodes: 1, pods_per_node: 3, clients: 1 }.build().map_err(|e| e.to_string())?;
        for pod in lab.pods() {
            pod.serve(&[Port::Tcp(PORT)]).map_err(|e| e.to_string())?;
        }
        let address = SocketAddr::from(([127, 0, 0, 1], 6443));
        let api = ApiServer::start(lab.node(1), address).map_err(|e| e.to_string())?;
        let kubeconfig =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::write(&kubeconfig, api.kubeconfig()).map_err(|e| e.to_string())?;
        let net = LabNetwork {
            family: Family::V4,
            pods: lab.pods().iter().map(|p| (p.name().to_owned(), p.ipv4().into())).collect(),
            nodes: lab.nodes().iter().map(|n| n.ipv4().into()).collect(),
        };
        api.apply(node("node1", "zone-a", &lab.node(1).ips(), &[]).object());
        Ok(Field { agent: None, api, net, kubeconfig, lab })
    }

    fn start(&mut self, flags: &[&str]) -> Result<(), String> {
        let mut all = vec!["proxy".to_owned(), format!("--kubeconfig={}", self.kubeconfig.display())];
        all.extend(["--hostname-override=node1", "--cluster-cidr=10.244.0.0/16", "--v=4"].map(str::to_owned));
        all.extend(flags.iter().map(|f| (*f).to_owned()));
        let binary = Path::new(env!("CARGO_BIN_EXE_portway"));
        self.agent = Some(Agent::start(self.lab.node(1), binary, &all).map_err(|e| e.to_string())?);
        Ok(())
    }

    fn apply(&self, object: impl Into<Manifest>) {
        self.api.apply(object.into().object());
    }

    fn service(&self, name: &str, number: u8, pods: &[&str]) {
        self.apply(self.net.service(name, number));
        self.apply(self.net.slice(name, &Endpoint::all(pods)));
    }

    /// Waits until exactly these pods answer at a Service; none means that nothing does.
    fn expect(&self, number: u8, pods: &[&str]) -> Result<(), String> {
        let probe = Probe::tcp(self.lab.client(1), self.net.at_cluster_ip(number))
            .timeout(Duration::from_millis(300));
        let right = |o: &Outcome| {
            if pods.is_empty() {
                o.answered() == 0
            } else {
                o.all_answered() && o.answers.keys().eq(pods.iter())
            }
        };
        let attempt = || {
            let outcome = probe.count(if pods.is_empty() { 2 } else { 48 }).run();
            if right(&outcome) { Ok(()) } else { Err(outcome.to_string()) }
        };
        eventually(PATIENCE, attempt).map_err(|e| format!("Service {number} should lead to {pods:?}: {e}"))
    }

    fn wait_for(&mut self, text: &str) -> Result<String, String> {
        let agent = self.agent.as_mut().ok_or("no agent")?;
        agent.wait_for(text, PATIENCE).map_err(|e| e.to_string())
    }

    fn log(&self) -> String {
        self.agent.as_ref().map_or(String::new(), |a| a.log().tail(60))
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        std::fs::remove_file(&self.kubeconfig).ok();
    }
}

fn changes_follow(field: &mut Field, lists: Lists) -> Result<(), String> {
    field.api.only(lists);
    // More than a page of them.
    for n in 0..700u32 {
        let ip = std::net::Ipv4Addr::from(0x0a61_0000 + n);
        field.apply(field.net.service(&format!("filler-{n}"), 1).cluster_ips(&[ip.into()]));
    }
    field.service("web", 1, &["pod1a", "pod1b"]);
    field.start(&[])?;
    field.expect(1, &["pod1a", "pod1b"])?;
    let requests = field.api.requests();
    let list = |text: &str| {
        requests.iter().any(|r| r.contains("/services?") && !r.contains("watch=") && r.contains(text))
    };
    let seen = (list("resourceVersion=0"), list("continue="));
    let expected = (lists < Lists::Streamed, lists == Lists::Paged);
    if seen != expected {
        return Err(format!("cached list and pages: {seen:?} instead of {expected:?}: {requests:#?}"));
    }
    field.apply(field.net.slice("web", &Endpoint::all(&["pod1c"])));
    field.expect(1, &["pod1c"])?;
    field.service("late", 2, &["pod1a"]);
    field.expect(2, &["pod1a"])?;
    field.api.delete(Service::TYPE, "default", "web");
    field.expect(1, &[])
}

fn outage(field: &mut Field) -> Result<(), String> {
    field.service("web", 1, &["pod1a", "pod1b"]);
    field.service("doomed", 2, &["pod1a"]);
    field.start(&[])?;
    field.expect(1, &["pod1a", "pod1b"])?;
    field.expect(2, &["pod1a"])?;
    field.api.outage(true);
    field.wait_for("WARN")?;
    field.expect(1, &["pod1a", "pod1b"])?;
    field.service("web", 1, &["pod1c"]);
    field.api.delete(Service::TYPE, "default", "doomed");
    // An agent that starts in the middle of it programs nothing and takes nothing away.
    field.agent.take().map(Agent::kill);
    field.start(&[])?;
    field.wait_for("WARN")?;
    field.expect(1, &["pod1a", "pod1b"])?;
    field.expect(2, &["pod1a"])?;
    field.api.outage(false);
    field.expect(1, &["pod1c"])?;
    field.expect(2, &[])
}

fn compaction(field: &mut Field) -> Result<(), String> {
    field.service("web", 1, &["pod1a"]);
    field.service("doomed", 2, &["pod1a"]);
    field.start(&[])?;
    field.expect(2, &["pod1a"])?;
    let lists = |f: &Field| {
        f.api
            .requests()
            .iter()
            .filter(|r| r.contains("/services?") && r.contains("sendInitialEvents="))
            .count()
    };
    let before = lists(field);
    field.api.outage(true);
    field.api.delete(Service::TYPE, "default", "doomed");
    field.service("web", 1, &["pod1b"]);
    field.api.compact();
    field.api.outage(false);
    field.expect(1, &["pod1b"])?;
    field.expect(2, &[])?;
    if lists(field) > before { Ok(()) } else { Err("there was no new list".into()) }
}

fn json(field: &mut Field) -> Result<(), String> {
    field.service("web", 1, &["pod1a"]);
    field.start(&["--kube-api-content-type=application/json"])?;
    field.expect(1, &["pod1a"])?;
    field.apply(field.net.slice("web", &Endpoint::all(&["pod1b"])));
    field.expect(1, &["pod1b"])
}

fn refusal(field: &mut Field) -> Result<(), String> {
    field.service("web", 1, &["pod1a"]);
    field.api.forbid(Some(EndpointSlice::TYPE));
    field.start(&[])?;
    let line = field.wait_for("endpointslices")?;
    for word in ["discovery.k8s.io", "list", "watch"] {
        if !line.contains(word) {
            return Err(format!("{word} is not in {line}"));
        }
    }
    field.api.forbid(None);
    field.expect(1, &["pod1a"])
}

fn event(field: &mut Field) -> Result<(), String> {
    field.service("web", 1, &["pod1a"]);
    field.start(&[])?;
    field.expect(1, &["pod1a"])?;
    // The cluster IP of another Service, and an invalid port.
    field.apply(field.net.service("thief", 1));
    field.apply(field.net.service("zero", 3).port(0));
    let told = |name: &'static str, field_name: &'static str| {
        move |e: &serde_json::Value| {
            e["regarding"]["name"] == name && e["note"].as_str().is_some_and(|n| n.contains(field_name))
        }
    };
    let wanted = [told("thief", "spec.clusterIPs[0]"), told("zero", "spec.ports[0].port")];
    let attempt = || {
        let events = field.api.events();
        if wanted.iter().all(|w| events.iter().any(w)) { Ok(()) } else { Err(format!("{events:?}")) }
    };
    eventually(PATIENCE, attempt).map_err(|e| e.to_string())?;
    field.expect(1, &["pod1a"])?;
    // The holder goes: its address is free for the other.
    field.api.delete(Service::TYPE, "default", "web");
    field.apply(field.net.slice("thief", &Endpoint::all(&["pod1b"])));
    field.expect(1, &["pod1b"])
}
