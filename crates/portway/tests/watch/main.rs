//! The agent with an API server: lists and watches, and outages, compaction and refusals of the server.

use portway_lab::api::{ApiServer, Lists};
use portway_lab::{Agent, Lab, Layout, Namespace, Outcome, Port, Probe, eventually};
use portway_model::Family;
use portway_model::api::{EndpointSlice, Node, Resource, Service};
use portway_testkit::battery::{LabNetwork, PORT};
use portway_testkit::harness::{self, Failed, Test};
use portway_testkit::objects::{Endpoint, Manifest, node};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

type Run = fn(&mut WatchLab) -> Result<(), String>;

/// The time limit for a condition.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let table: [(&'static str, Run); 12] = [
        ("a_streamed_list_and_its_changes_are_programmed", |lab| list_and_changes(lab, Lists::Streamed)),
        ("a_cached_list_and_its_changes_are_programmed", |lab| list_and_changes(lab, Lists::Cached)),
        ("a_paged_list_and_its_changes_are_programmed", |lab| list_and_changes(lab, Lists::Paged)),
        ("rules_stay_during_an_outage_and_are_updated_afterwards", outage),
        ("a_compacted_history_causes_a_new_list", compaction),
        ("objects_can_be_requested_as_json", json),
        ("a_forbidden_list_is_logged_with_the_missing_rbac_rule", forbidden),
        ("an_event_is_written_for_a_rejected_object", event),
        ("a_field_that_changes_often_is_reported_once_in_a_while", often),
        ("events_about_the_node_have_kube_proxys_names", node_events),
        ("taking_over_from_another_agent_during_an_outage_removes_no_rule", take_over_in_an_outage),
        ("healthz_fails_while_the_node_object_is_missing", missing_node),
    ];
    let test = |(name, run): (&'static str, Run)| {
        Test::new(name, move || {
            let mut lab = WatchLab::new(name)?;
            run(&mut lab).map_err(|e| Failed::from(format!("{e}\n{}", lab.log())))
        })
    };
    harness::run_in(portway_lab::enter, table.map(test).into())
}

/// A node with pods, an API server on it, and at most one agent.
struct WatchLab {
    agent: Option<Agent>,
    api: ApiServer,
    net: LabNetwork,
    kubeconfig: PathBuf,
    lab: Lab,
}

impl WatchLab {
    fn new(name: &str) -> Result<WatchLab, String> {
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
        Ok(WatchLab { agent: None, api, net, kubeconfig, lab })
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

    /// Waits until exactly these pods answer at a Service. Without pods, no connection may be answered.
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
        eventually(WAIT_TIMEOUT, attempt)
            .map_err(|e| format!("Service {number} should be answered by {pods:?}: {e}"))
    }

    /// Waits until `/healthz` answers with this status.
    fn expect_healthz(&self, status: u16) -> Result<(), String> {
        let ask = || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, 10256))?;
            stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
            std::io::read_to_string(stream)
        };
        let attempt = || {
            let page = AsRef::<Namespace>::as_ref(self.lab.node(1)).run(ask).map_err(|e| e.to_string())?;
            let answered = page.lines().next().and_then(|line| line.split(' ').nth(1));
            if answered == Some(status.to_string().as_str()) { Ok(()) } else { Err(page) }
        };
        eventually(WAIT_TIMEOUT, attempt).map_err(|e| format!("/healthz should answer {status}: {e}"))
    }

    fn wait_for(&mut self, text: &str) -> Result<String, String> {
        let agent = self.agent.as_mut().ok_or("no agent")?;
        agent.wait_for(text, WAIT_TIMEOUT).map_err(|e| e.to_string())
    }

    fn log(&self) -> String {
        self.agent.as_ref().map_or(String::new(), |a| a.log().tail(60))
    }
}

impl Drop for WatchLab {
    fn drop(&mut self) {
        std::fs::remove_file(&self.kubeconfig).ok();
    }
}

fn list_and_changes(lab: &mut WatchLab, lists: Lists) -> Result<(), String> {
    lab.api.only(lists);
    // More Services than one page of a list holds.
    for n in 0..700u32 {
        let ip = std::net::Ipv4Addr::from(0x0a61_0000 + n);
        lab.apply(lab.net.service(&format!("filler-{n}"), 1).cluster_ips(&[ip.into()]));
    }
    lab.service("web", 1, &["pod1a", "pod1b"]);
    lab.start(&[])?;
    lab.expect(1, &["pod1a", "pod1b"])?;
    let requests = lab.api.requests();
    let list = |text: &str| {
        requests.iter().any(|r| r.contains("/services?") && !r.contains("watch=") && r.contains(text))
    };
    let seen = (list("resourceVersion=0"), list("continue="));
    let expected = (lists < Lists::Streamed, lists == Lists::Paged);
    if seen != expected {
        return Err(format!("cached list and pages: {seen:?} instead of {expected:?}: {requests:#?}"));
    }
    lab.apply(lab.net.slice("web", &Endpoint::all(&["pod1c"])));
    lab.expect(1, &["pod1c"])?;
    lab.service("late", 2, &["pod1a"]);
    lab.expect(2, &["pod1a"])?;
    lab.api.delete(Service::TYPE, "default", "web");
    lab.expect(1, &[])
}

fn outage(lab: &mut WatchLab) -> Result<(), String> {
    lab.service("web", 1, &["pod1a", "pod1b"]);
    lab.service("deleted", 2, &["pod1a"]);
    lab.start(&[])?;
    lab.expect(1, &["pod1a", "pod1b"])?;
    lab.expect(2, &["pod1a"])?;
    lab.api.outage(true);
    lab.wait_for("reason=\"")?;
    lab.expect(1, &["pod1a", "pod1b"])?;
    lab.service("web", 1, &["pod1c"]);
    lab.api.delete(Service::TYPE, "default", "deleted");
    // An agent that starts during the outage neither adds nor removes rules.
    lab.agent.take().map(Agent::kill);
    lab.start(&[])?;
    lab.wait_for("reason=\"")?;
    lab.expect(1, &["pod1a", "pod1b"])?;
    lab.expect(2, &["pod1a"])?;
    lab.api.outage(false);
    lab.expect(1, &["pod1c"])?;
    lab.expect(2, &[])
}

fn compaction(lab: &mut WatchLab) -> Result<(), String> {
    lab.service("web", 1, &["pod1a"]);
    lab.service("deleted", 2, &["pod1a"]);
    lab.start(&[])?;
    lab.expect(2, &["pod1a"])?;
    let lists = |f: &WatchLab| {
        f.api
            .requests()
            .iter()
            .filter(|r| r.contains("/services?") && r.contains("sendInitialEvents="))
            .count()
    };
    let before = lists(lab);
    lab.api.outage(true);
    lab.api.delete(Service::TYPE, "default", "deleted");
    lab.service("web", 1, &["pod1b"]);
    lab.api.compact();
    lab.api.outage(false);
    lab.expect(1, &["pod1b"])?;
    lab.expect(2, &[])?;
    if lists(lab) > before { Ok(()) } else { Err("Services were not listed again".into()) }
}

fn json(lab: &mut WatchLab) -> Result<(), String> {
    lab.service("web", 1, &["pod1a"]);
    lab.start(&["--kube-api-content-type=application/json"])?;
    lab.expect(1, &["pod1a"])?;
    lab.apply(lab.net.slice("web", &Endpoint::all(&["pod1b"])));
    lab.expect(1, &["pod1b"])
}

fn forbidden(lab: &mut WatchLab) -> Result<(), String> {
    lab.service("web", 1, &["pod1a"]);
    lab.api.forbid(Some(EndpointSlice::TYPE));
    lab.start(&[])?;
    let line = lab.wait_for("endpointslices")?;
    for word in ["discovery.k8s.io", "list", "watch"] {
        if !line.contains(word) {
            return Err(format!("the log line does not contain {word:?}: {line}"));
        }
    }
    lab.api.forbid(None);
    lab.expect(1, &["pod1a"])
}

fn event(lab: &mut WatchLab) -> Result<(), String> {
    lab.service("web", 1, &["pod1a"]);
    lab.start(&[])?;
    lab.expect(1, &["pod1a"])?;
    // The cluster IP of another Service, and an invalid port.
    lab.apply(lab.net.service("duplicate", 1));
    lab.apply(lab.net.service("zero", 3).port(0));
    let event_for = |name: &'static str, field_name: &'static str| {
        move |e: &serde_json::Value| {
            e["regarding"]["name"] == name && e["note"].as_str().is_some_and(|n| n.contains(field_name))
        }
    };
    let wanted = [event_for("duplicate", "spec.clusterIPs[0]"), event_for("zero", "spec.ports[0].port")];
    let attempt = || {
        let events = lab.api.events();
        if wanted.iter().all(|w| events.iter().any(w)) { Ok(()) } else { Err(format!("{events:?}")) }
    };
    eventually(WAIT_TIMEOUT, attempt).map_err(|e| e.to_string())?;
    lab.expect(1, &["pod1a"])?;
    // The Service that holds the address is deleted: the other Service gets it.
    lab.api.delete(Service::TYPE, "default", "web");
    lab.apply(lab.net.slice("duplicate", &Endpoint::all(&["pod1b"])));
    lab.expect(1, &["pod1b"])
}

fn often(lab: &mut WatchLab) -> Result<(), String> {
    lab.service("web", 1, &["pod1a"]);
    lab.start(&[])?;
    lab.expect(1, &["pod1a"])?;
    for n in 0..100 {
        lab.apply(lab.net.service("odd", 2).spec(serde_json::json!({"externalIPs": [format!("bad-{n}")]})));
    }
    lab.wait_for("bad-0")?;
    let line = lab.wait_for("bad-99")?;
    let lines = lab.agent.as_ref().map_or(0, |agent| agent.log().count("partially programmed"));
    if lines > 20 || !line.contains("count=") {
        return Err(format!("{lines} lines, and the last is {line}"));
    }
    let of_odd = |e: &&serde_json::Value| e["regarding"]["name"] == "odd";
    let attempt = || {
        let events: Vec<_> = lab.api.events().iter().filter(of_odd).map(|e| e["note"].to_string()).collect();
        let last = events.iter().any(|note| note.contains("bad-99"));
        if last && events.len() <= 20 { Ok(()) } else { Err(format!("{events:?}")) }
    };
    eventually(WAIT_TIMEOUT, attempt).map_err(|e| e.to_string())
}

fn node_events(lab: &mut WatchLab) -> Result<(), String> {
    let config = lab.kubeconfig.with_extension("yaml");
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: \"\"\n\
         hostnameOverride: node1\nmetricsPort: 1\nclientConnection: {{kubeconfig: {}}}\n",
        lab.kubeconfig.display()
    );
    std::fs::write(&config, text).map_err(|e| e.to_string())?;
    lab.service("web", 1, &["pod1a"]);
    // A load balancer's health-check port that another process has.
    let health = lab
        .net
        .service("lb", 2)
        .load_balancer_ips(&[lab.net.external_ip(1)], None)
        .external_local()
        .health_check_node_port(32000);
    let taken =
        AsRef::<Namespace>::as_ref(lab.lab.node(1)).run(|| std::net::TcpListener::bind("0.0.0.0:32000"));
    let _taken = taken.map_err(|e| e.to_string())?;
    lab.apply(health);
    let binary = Path::new(env!("CARGO_BIN_EXE_portway"));
    let flags = ["proxy".to_owned(), format!("--config={}", config.display())];
    lab.agent = Some(Agent::start(lab.lab.node(1), binary, &flags).map_err(|e| e.to_string())?);
    lab.expect(1, &["pod1a"])?;
    let attempt = || {
        let events = lab.api.events();
        let is_ours = |e: &serde_json::Value| {
            e["reportingController"] == "kube-proxy" && e["reportingInstance"] == "kube-proxy-node1"
        };
        let wanted = [
            ("Node", "Normal", "Starting"),
            ("Node", "Warning", "KubeProxyDefaultMode"),
            ("Node", "Warning", "ConfigurationMistake"),
            ("Node", "Warning", "NoLocalDetection"),
            ("Service", "Warning", "FailedToStartServiceHealthcheck"),
        ];
        for (kind, level, reason) in wanted {
            let found = events.iter().any(|e| {
                e["regarding"]["kind"] == kind && e["type"] == level && e["reason"] == reason && is_ours(e)
            });
            if !found {
                return Err(format!("no {level} Event {reason} of a {kind}: {events:?}"));
            }
        }
        Ok(())
    };
    let seen = eventually(WAIT_TIMEOUT, attempt).map_err(|e| e.to_string());
    std::fs::remove_file(&config).map_err(|e| e.to_string())?;
    seen
}

fn take_over_in_an_outage(lab: &mut WatchLab) -> Result<(), String> {
    lab.service("web", 1, &["pod1a"]);
    lab.start(&[])?;
    lab.expect(1, &["pod1a"])?;
    let first = lab.agent.take();
    lab.api.outage(true);
    lab.start(&["--metrics-bind-address=127.0.0.1:10349", "--healthz-bind-address="])?;
    lab.wait_for("this agent stands back")?;
    first.map(Agent::kill);
    lab.wait_for("has ended: this agent programs the Services of this node")?;
    lab.wait_for("reason=\"")?;
    lab.expect(1, &["pod1a"])?;
    lab.service("web", 1, &["pod1b"]);
    lab.api.outage(false);
    lab.expect(1, &["pod1b"])
}

fn missing_node(lab: &mut WatchLab) -> Result<(), String> {
    lab.service("web", 1, &["pod1a"]);
    lab.start(&[])?;
    lab.expect_healthz(200)?;
    lab.api.delete(Node::TYPE, "", "node1");
    lab.expect_healthz(503)?;
    lab.apply(node("node1", "zone-a", &lab.lab.node(1).ips(), &[]));
    lab.expect_healthz(200)
}
