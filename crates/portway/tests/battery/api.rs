//! API servers for the battery: the lab's, and a real one that a program starts.

use crate::pods::API;
use portway_client::{Access, Client, DeleteOptions, ObjectName, Patch, RequestError, Subresource, connect};
use portway_lab::api::ApiServer;
use portway_lab::{LabHost, eventually};
use portway_model::api::{self, Pod, Resource, ResourceType, ServiceCidr};
use serde_json::{Value, json};
use std::future::pending;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use tokio::runtime::{Builder, Handle};

/// The time limit for an object to be accepted: a ServiceCIDR has to be ready before its addresses can be used.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(20);

/// An API server.
pub(crate) trait Api {
    /// Creates or changes an object, with its status. A Pod with a `deletionTimestamp` is being deleted.
    fn put(&mut self, object: &Value) -> Result<(), String>;
    /// Deletes an object at once.
    fn delete(&mut self, kind: &str, name: &str) -> Result<(), String>;
}

fn resource_of(kind: &str) -> ResourceType {
    match kind {
        "Pod" => Pod::TYPE,
        "Node" => api::Node::TYPE,
        "ServiceCIDR" => ServiceCidr::TYPE,
        _ => api::Service::TYPE,
    }
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// The lab's API server.
pub(crate) struct FakeApi(ApiServer);

impl FakeApi {
    pub(crate) fn start(node: &LabHost, kubeconfig: &Path) -> Result<FakeApi, String> {
        let api = ApiServer::start(node, SocketAddr::from(API)).map_err(|e| e.to_string())?;
        std::fs::write(kubeconfig, api.kubeconfig()).map_err(|e| e.to_string())?;
        Ok(FakeApi(api))
    }

    fn put_as<R: Resource + std::fmt::Debug>(&self, object: Value) -> Result<(), String> {
        let object: R = serde_json::from_value(object).map_err(|e| e.to_string())?;
        self.0.put(object);
        Ok(())
    }
}

impl Api for FakeApi {
    fn put(&mut self, object: &Value) -> Result<(), String> {
        let mut object = object.clone();
        object["metadata"]["uid"] = format!("uid-of-{}", name_of(&object)).into();
        match object["kind"].as_str() {
            Some("Pod") => self.put_as::<Pod>(object),
            Some("Node") => self.put_as::<api::Node>(object),
            Some("ServiceCIDR") => self.put_as::<ServiceCidr>(object),
            _ => self.put_as::<api::Service>(object),
        }
    }

    fn delete(&mut self, kind: &str, name: &str) -> Result<(), String> {
        self.0.delete(resource_of(kind), "default", name);
        Ok(())
    }
}

/// A real API server. The program gets a directory as its argument, writes `admin.conf` there, prints `ready` when
/// requests are answered at 127.0.0.1:6443, and ends when its standard input is closed. Further flags for the API server
/// are in the variable `APISERVER_ARGS`.
pub(crate) struct RealApi {
    process: Child,
    /// Its thread is in the namespace of the API server.
    requests: Handle,
    client: Client,
}

impl RealApi {
    pub(crate) fn start(program: &Path, node: &LabHost, directory: &Path) -> Result<RealApi, String> {
        let namespace = node.namespace();
        let mut command = Command::new(program);
        // The ranges of the cases are added as a ServiceCIDR, because the first address of these is taken.
        command.env("APISERVER_ARGS", "--service-cluster-ip-range=10.97.0.0/24,fd97::/112");
        command.arg(directory).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let failed = |e: std::io::Error| format!("{}: {e}", program.display());
        let mut process = namespace.run(|| command.spawn()).map_err(failed)?;
        let lines = process.stdout.take().map(BufReader::new).into_iter().flat_map(BufReader::lines);
        if !lines.map_while(Result::ok).any(|line| line == "ready") {
            return Err(format!("{} did not print \"ready\"", program.display()));
        }
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let requests = runtime.handle().clone();
        namespace.run(|| thread::spawn(move || runtime.block_on(pending::<()>())));
        let access = Access { kubeconfig: Some(directory.join("admin.conf")), qps: 0.0, ..Access::default() };
        let client = run_on(&requests, async move { connect(&access).await }).map_err(|e| e.to_string())?;
        Ok(RealApi { process, requests, client })
    }

    fn send<T: Send + 'static, F>(&self, request: impl FnOnce(Client) -> F) -> Result<T, RequestError>
    where
        F: Future<Output = Result<T, RequestError>> + Send + 'static,
    {
        run_on(&self.requests, request(self.client.clone()))
    }

    fn apply(&self, resource: ResourceType, object: &Value, subresource: Subresource) -> Result<(), String> {
        let attempt = || {
            let object = object.clone();
            let sent = self.send(async move |client: Client| {
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
                let name = name_of(&object).to_owned();
                let name = ObjectName::new(&namespace, &name);
                // By apply, the addresses of a Node would have to be of different types.
                let patch = match subresource {
                    Subresource::Status => Patch::Merge(object),
                    _ => Patch::Apply { object, manager: "battery", force: true },
                };
                client.patch_json(resource, name, subresource, &patch).await
            });
            sent.map(drop).map_err(|e| e.to_string())
        };
        eventually(ACCEPT_TIMEOUT, attempt).map_err(|e| e.to_string())
    }

    fn remove(&self, resource: ResourceType, name: &str, grace_seconds: Option<u32>) -> Result<(), String> {
        let name = name.to_owned();
        let sent = self.send(async move |client: Client| {
            let options = DeleteOptions { grace_seconds, ..DeleteOptions::default() };
            client.delete_any(resource, ObjectName::new("default", &name), &options).await
        });
        match sent {
            Err(error) if !error.is_not_found() => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    fn get(&self, resource: ResourceType, name: &str) -> Option<Value> {
        let name = name.to_owned();
        let get =
            async move |client: Client| client.get_json(resource, ObjectName::new("default", &name)).await;
        self.send(get).ok()
    }

    /// A Service whose cluster IP changes is created anew.
    fn put_service(&self, service: &Value) -> Result<(), String> {
        let address = |service: &Value| service["spec"]["clusterIP"].clone();
        let known = self.get(api::Service::TYPE, name_of(service));
        if known.is_some_and(|known| address(&known) != address(service)) {
            self.remove(api::Service::TYPE, name_of(service), None)?;
        }
        self.put_with_status(api::Service::TYPE, service)
    }

    fn put_with_status(&self, resource: ResourceType, object: &Value) -> Result<(), String> {
        self.apply(resource, &without(object, "status"), Subresource::None)?;
        match object.get("status") {
            Some(_) => self.apply(resource, &without(object, "spec"), Subresource::Status),
            None => Ok(()),
        }
    }

    /// A Pod whose ports change, or that is not to be deleted any more, is created anew.
    fn put_pod(&self, mut pod: Value) -> Result<(), String> {
        let name = name_of(&pod).to_owned();
        let is_terminating = !pod["metadata"]["deletionTimestamp"].is_null();
        pod["metadata"].as_object_mut().map(|meta| meta.remove("deletionTimestamp"));
        let known = self.get(Pod::TYPE, &name);
        let ports = |pod: &Value| {
            let ports = pod["spec"]["containers"][0]["ports"].as_array().cloned().unwrap_or_default();
            ports.into_iter().map(|port| json!([port["name"], port["containerPort"]])).collect::<Vec<_>>()
        };
        let fits = known.as_ref().is_some_and(|known| {
            ports(known) == ports(&pod) && known["metadata"]["deletionTimestamp"].is_null()
        });
        if !fits {
            self.remove(Pod::TYPE, &name, Some(0))?;
            self.apply(Pod::TYPE, &without(&pod, "status"), Subresource::None)?;
        }
        self.apply(Pod::TYPE, &without(&pod, "spec"), Subresource::Status)?;
        if is_terminating { self.remove(Pod::TYPE, &name, Some(300)) } else { Ok(()) }
    }
}

/// Runs a task on the thread of a runtime, and waits for its end.
fn run_on<T: Send + 'static>(runtime: &Handle, task: impl Future<Output = T> + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    runtime.spawn(async move { sender.send(task.await) });
    receiver.recv().expect("a request does not panic")
}

/// An object without a field.
fn without(object: &Value, field: &str) -> Value {
    let mut object = object.clone();
    object.as_object_mut().map(|fields| fields.remove(field));
    object
}

impl Api for RealApi {
    fn put(&mut self, object: &Value) -> Result<(), String> {
        let mut object = object.clone();
        match object["kind"].as_str() {
            Some("Pod") => return self.put_pod(object),
            Some("Service") => return self.put_service(&object),
            Some("ServiceCIDR") => object["metadata"]["name"] = "battery".into(),
            _ => {}
        }
        self.put_with_status(resource_of(object["kind"].as_str().unwrap_or_default()), &object)
    }

    fn delete(&mut self, kind: &str, name: &str) -> Result<(), String> {
        self.remove(resource_of(kind), name, Some(0))
    }
}

impl Drop for RealApi {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        self.process.wait().ok();
    }
}
