//! The objects of a case as Services and Pods at an API server, from which the controllers make EndpointSlices.
//!
//! A Service gets a selector and target ports by name; each endpoint of a slice becomes a Pod with named ports, whose
//! readiness and deletion give the endpoint's conditions. The API server is the lab's, or the program that the variable
//! `PORTWAY_API_SERVER` names.

use crate::api::{Api, FakeApi, RealApi};
use portway_lab::{Agent, Lab, Namespace};
use portway_testkit::objects::Manifest;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;

/// The variable with the program that starts an API server.
const PROGRAM: &str = "PORTWAY_API_SERVER";
/// The address of the API server on its node, and under which agents on other nodes reach it.
pub(crate) const API: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 6443);

/// Objects at an API server, and the controllers.
pub(crate) struct PodInput {
    controllers: Agent,
    api: Box<dyn Api>,
    kubeconfig: PathBuf,
    /// Slices of the case by name.
    slices: BTreeMap<String, Value>,
    /// Pods at the API server by name.
    pods: BTreeMap<String, Value>,
}

impl PodInput {
    pub(crate) fn new(name: &str, lab: &Lab) -> Result<PodInput, String> {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).map_err(|e| e.to_string())?;
        let kubeconfig = directory.join("admin.conf");
        let api: Box<dyn Api> = match std::env::var_os(PROGRAM) {
            Some(program) => Box::new(RealApi::start(Path::new(&program), lab.node(1), &directory)?),
            None => Box::new(FakeApi::start(lab.node(1), &kubeconfig)?),
        };
        for node in &lab.nodes()[1..] {
            forward(lab.node(1).namespace(), node.namespace()).map_err(|e| e.to_string())?;
        }
        let flags = [
            "controller".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--controllers=*,garbagecollector".to_owned(),
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1:0".to_owned(),
            "--v=4".to_owned(),
        ];
        let binary = Path::new(env!("CARGO_BIN_EXE_portway"));
        let controllers = Agent::start(lab.node(1), binary, &flags).map_err(|e| e.to_string())?;
        Ok(PodInput { controllers, api, kubeconfig, slices: BTreeMap::new(), pods: BTreeMap::new() })
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub(crate) fn diagnostics(&self) -> String {
        format!("── controllers ──\n{}\n", self.controllers.log().tail(40))
    }

    pub(crate) fn apply(&mut self, object: &Manifest) -> Result<(), String> {
        let mut value = object.json().clone();
        match object.kind() {
            "EndpointSlice" => {
                self.slices.insert(object.name().to_owned(), value);
                self.update_pods()
            }
            "Service" => {
                select_pods(&mut value);
                self.api.put(&value)
            }
            _ => self.api.put(&value),
        }
    }

    pub(crate) fn delete(&mut self, kind: &str, name: &str) -> Result<(), String> {
        if kind != "EndpointSlice" {
            return self.api.delete(kind, name);
        }
        self.slices.remove(name);
        self.update_pods()
    }

    /// Creates, changes and deletes Pods, so that they are those of the slices.
    fn update_pods(&mut self) -> Result<(), String> {
        let mut wanted: BTreeMap<String, Value> = BTreeMap::new();
        for slice in self.slices.values() {
            for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
                let pod = pod(slice, endpoint);
                let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                match wanted.get_mut(&name) {
                    Some(known) => add_ports(known, &pod),
                    None => _ = wanted.insert(name, pod),
                }
            }
        }
        for name in self.pods.keys().filter(|name| !wanted.contains_key(*name)) {
            self.api.delete("Pod", name)?;
        }
        for (name, pod) in &wanted {
            if self.pods.get(name) != Some(pod) {
                self.api.put(pod)?;
            }
        }
        self.pods = wanted;
        Ok(())
    }
}

impl Drop for PodInput {
    fn drop(&mut self) {
        if let Some(directory) = self.kubeconfig.parent() {
            std::fs::remove_dir_all(directory).ok();
        }
    }
}

/// Gives a Service a selector, and target ports by name.
fn select_pods(service: &mut Value) {
    service["spec"]["selector"] = json!({ "app": service["metadata"]["name"] });
    for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
        port["targetPort"] = port_name(port).into();
    }
}

/// The name of the container port for a port of a Service or a slice.
fn port_name(port: &Value) -> String {
    let text = |field: &str| port[field].as_str().unwrap_or_default().to_lowercase();
    let protocol = if text("protocol").is_empty() { "tcp".to_owned() } else { text("protocol") };
    format!("{protocol}-{}", text("name")).trim_end_matches('-').to_owned()
}

/// The Pod of an endpoint.
fn pod(slice: &Value, endpoint: &Value) -> Value {
    let service = slice["metadata"]["labels"]["kubernetes.io/service-name"].as_str().unwrap_or_default();
    let address = endpoint["addresses"][0].as_str().unwrap_or_default();
    let ports: Vec<Value> = slice["ports"].as_array().into_iter().flatten().map(container_port).collect();
    let is = |condition: &str| endpoint["conditions"][condition] == true;
    let status = if is("serving") { "True" } else { "False" };
    let name = format!("{service}-{}", address.replace(['.', ':'], "-"));
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "default", "name": name.trim_end_matches('-'), "labels": {"app": service}},
        "spec": {
            "nodeName": endpoint["nodeName"],
            "containers": [{"name": "main", "image": "lab", "ports": ports}],
        },
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        },
    });
    if is("terminating") {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    pod
}

fn container_port(port: &Value) -> Value {
    json!({"name": port_name(port), "containerPort": port["port"], "protocol": port["protocol"]})
}

/// Adds the ports of a Pod to another one, which is the same in another slice.
fn add_ports(pod: &mut Value, other: &Value) {
    let ports = |pod: &Value| pod["spec"]["containers"][0]["ports"].as_array().cloned().unwrap_or_default();
    let mut all = ports(pod);
    all.extend(ports(other).into_iter().filter(|port| !ports(pod).contains(port)));
    pod["spec"]["containers"][0]["ports"] = all.into();
}

/// Forwards connections to the API server's address on one node to the API server on another.
fn forward(server: &Namespace, node: &Namespace) -> io::Result<()> {
    let listener = node.run(|| TcpListener::bind(SocketAddr::from(API)))?;
    // A thread that is started in a namespace stays there.
    server.run(move || {
        thread::Builder::new().name("forward".into()).spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(upstream) = TcpStream::connect(SocketAddr::from(API)) else { continue };
                copy(&client, &upstream);
                copy(&upstream, &client);
            }
        })
    })?;
    Ok(())
}

/// Copies bytes from one connection to another, in a thread of its own, until the first ends.
fn copy(from: &TcpStream, to: &TcpStream) {
    let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { return };
    let copying = thread::Builder::new().name("copy".into()).spawn(move || {
        io::copy(&mut from, &mut to).ok();
        from.shutdown(std::net::Shutdown::Both).ok();
        to.shutdown(std::net::Shutdown::Both).ok();
    });
    drop(copying);
}
