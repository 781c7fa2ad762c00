//! The agent fed by an API server's watch: what it does on good days, and on the bad days of the server.

use libtest_mimic::{Arguments, Failed, Trial};
use portway_dataplane::battery::{Ep, Net, PORT, Svc, node_object};
use portway_lab::api::ApiServer;
use portway_lab::{Agent, Lab, Layout, Outcome, Port, Probe, eventually};
use portway_model::Family;
use portway_model::api::Kind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

type Test = fn(&mut Field) -> Result<(), String>;

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if !arguments.list
        && let Err(e) = portway_lab::enter()
    {
        eprintln!("{e}");
        return ExitCode::FAILURE;
    }
    let table: [(&'static str, Test); 6] = [
        ("what_is_listed_is_programmed_and_changes_follow", changes_follow),
        ("an_outage_changes_nothing_and_is_made_up_for", outage),
        ("a_compacted_history_means_a_new_list", compaction),
        ("json_will_do", json),
        ("a_refusal_names_the_rule_that_is_missing", refusal),
        ("a_rejected_object_gets_an_event", event),
    ];
    let trial = |(name, test): (&'static str, Test)| {
        Trial::test(name, move || {
            let mut field = Field::new(name)?;
            test(&mut field).map_err(|e| Failed::from(format!("{e}\n{}", field.log())))
        })
    };
    libtest_mimic::run(&arguments, table.map(trial).into()).exit_code()
}

struct Field {
    agent: Option<Agent>,
    api: ApiServer,
    net: Net,
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
        let net = Net {
            family: Family::V4,
            pods: lab.pods().iter().map(|p| (p.name().to_owned(), p.ipv4().into())).collect(),
            nodes: lab.nodes().iter().map(|n| n.ipv4().into()).collect(),
        };
        api.apply(node_object(1, "zone-a", &lab.node(1).ips(), &[]));
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

    fn service(&self, name: &str, number: u8, pods: &[&'static str]) {
        self.api.apply(Svc::new(&self.net, name, number).into());
        self.api.apply(self.net.slice(name, &Ep::all(pods)));
    }

    /// Waits until exactly these pods answer at a Service; none means that nothing does.
    fn expect(&self, number: u8, pods: &[&str]) -> Result<(), String> {
        let probe =
            Probe::tcp(self.lab.client(1), self.net.service(number)).timeout(Duration::from_millis(300));
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

fn changes_follow(field: &mut Field) -> Result<(), String> {
    // More than a page of them.
    for n in 0..700u32 {
        let ip = std::net::Ipv4Addr::from(0x0a61_0000 + n);
        let service = Svc::new(&field.net, &format!("filler-{n}"), 1).spec(|s| {
            s.cluster_ip = ip.to_string();
            s.cluster_ips = vec![ip.to_string()];
        });
        field.api.apply(service.into());
    }
    field.service("web", 1, &["pod1a", "pod1b"]);
    field.start(&[])?;
    field.expect(1, &["pod1a", "pod1b"])?;
    let pages =
        field.api.requests().iter().filter(|r| r.contains("/services") && r.contains("continue=")).count();
    if pages == 0 {
        return Err("the list was not read in pages".into());
    }
    field.api.apply(field.net.slice("web", &Ep::all(&["pod1c"])));
    field.expect(1, &["pod1c"])?;
    field.service("late", 2, &["pod1a"]);
    field.expect(2, &["pod1a"])?;
    field.api.delete(Kind::Service, "default", "web");
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
    field.api.delete(Kind::Service, "default", "doomed");
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
        f.api.requests().iter().filter(|r| r.contains("/services?") && !r.contains("watch=")).count()
    };
    let before = lists(field);
    field.api.outage(true);
    field.api.delete(Kind::Service, "default", "doomed");
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
    field.api.apply(field.net.slice("web", &Ep::all(&["pod1b"])));
    field.expect(1, &["pod1b"])
}

fn refusal(field: &mut Field) -> Result<(), String> {
    field.service("web", 1, &["pod1a"]);
    field.api.forbid(Some(Kind::EndpointSlice));
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
    // Somebody else's address, and a port that is none.
    field.api.apply(Svc::new(&field.net, "thief", 1).into());
    field.api.apply(Svc::new(&field.net, "zero", 3).spec(|s| s.ports[0].port = 0).into());
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
    field.api.delete(Kind::Service, "default", "web");
    field.api.apply(field.net.slice("thief", &Ep::all(&["pod1b"])));
    field.expect(1, &["pod1b"])
}
