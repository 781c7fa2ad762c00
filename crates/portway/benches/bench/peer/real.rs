//! A real API server.
//!
//! The lab's node has no route to it. A relay listens at a loopback address of the node and forwards bytes from there,
//! for both proxies alike; they get a copy of the kubeconfig with the relay's address and the server's name for TLS.
//! The benchmark writes its objects, whose names begin with `portway-bench`, to the namespace `default`, and deletes
//! them at the end.

mod kubeconfig;

use kubeconfig::Kubeconfig;
use portway_client::{Access, Client, DeleteOptions, ObjectName, Patch, Subresource, connect};
use portway_lab::Namespace;
use portway_model::api::{EndpointSlice, Node, Object, Resource, Service};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use tokio::runtime::Runtime;

/// The owner of the fields that the benchmark writes.
const MANAGER: &str = "portway-bench";

/// A client of the API server, and the objects to delete at the end.
pub(super) struct RealServer {
    kubeconfig: Kubeconfig,
    client: Client,
    runtime: Runtime,
    written: Mutex<BTreeSet<(Kind, String)>>,
}

/// The kinds of objects that are written; deleted in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    EndpointSlice,
    Service,
    Node,
}

impl RealServer {
    /// Reads a kubeconfig. Nothing is requested from the server yet.
    pub(super) fn connect(path: &Path) -> Result<RealServer, String> {
        let shown = |e: &dyn std::fmt::Display| format!("--kubeconfig {}: {e}", path.display());
        let kubeconfig = Kubeconfig::read(path).map_err(|e| shown(&e))?;
        let access = Access { kubeconfig: Some(path.to_owned()), qps: 0.0, ..Access::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| shown(&e))?;
        let client = runtime.block_on(connect(&access)).map_err(|e| shown(&e))?;
        Ok(RealServer { kubeconfig, client, runtime, written: Mutex::default() })
    }

    pub(super) fn address(&self) -> &str {
        self.client.server()
    }

    /// Creates or changes an object.
    pub(super) fn put(&self, object: &Object) -> Result<(), String> {
        match object {
            Object::EndpointSlice(_) => self.apply::<EndpointSlice>(Kind::EndpointSlice, object).map(drop),
            Object::Node(node) => {
                self.apply::<Node>(Kind::Node, object)?;
                let name = ObjectName::of(node);
                let status = Patch::Merge(json!({"status": node.status}));
                let patched = self.client.patch::<Node>(name, Subresource::Status, &status);
                self.runtime.block_on(patched).map(drop).map_err(|e| e.to_string())
            }
            _ => Err(format!("the benchmark writes no {}", object.resource_type())),
        }
    }

    /// Creates or changes a Service; returns it as it is stored.
    pub(super) fn put_service(&self, object: &Object) -> Result<Service, String> {
        self.apply(Kind::Service, object)
    }

    fn apply<R: Resource>(&self, kind: Kind, object: &Object) -> Result<R, String> {
        let meta = object.metadata().ok_or("an object without metadata")?;
        let patch = Patch::Apply { object: applied(object), manager: MANAGER, force: true };
        let name = ObjectName::new(&meta.namespace, &meta.name);
        let stored = self.runtime.block_on(self.client.patch::<R>(name, Subresource::None, &patch));
        let stored = stored.map_err(|e| e.to_string())?;
        self.written.lock().unwrap_or_else(PoisonError::into_inner).insert((kind, meta.name.clone()));
        Ok(stored)
    }

    /// Listens in a namespace for connections to the server; returns a kubeconfig with that address. The relay ends
    /// with this program.
    pub(super) fn forward_from(&self, namespace: &Namespace) -> Result<String, String> {
        let failed = |e: io::Error| format!("cannot relay to the API server: {e}");
        let listener = namespace.run(|| TcpListener::bind(("127.0.0.1", 0))).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let upstream = self.kubeconfig.server;
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                thread::spawn(move || relay(client, upstream));
            }
        });
        Ok(self.kubeconfig.with_address(address))
    }

    async fn delete(&self, kind: Kind, name: &str) -> Result<(), String> {
        let (namespaced, options) = (ObjectName::new("default", name), DeleteOptions::default());
        let deleted = match kind {
            Kind::EndpointSlice => self.client.delete::<EndpointSlice>(namespaced, &options).await,
            Kind::Service => self.client.delete::<Service>(namespaced, &options).await,
            Kind::Node => self.client.delete::<Node>(ObjectName::new("", name), &options).await,
        };
        deleted.map_err(|e| e.to_string())
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        let written = std::mem::take(self.written.get_mut().unwrap_or_else(PoisonError::into_inner));
        let failed: Vec<String> = written
            .into_iter()
            .filter_map(|(kind, name)| self.runtime.block_on(self.delete(kind, &name)).err())
            .collect();
        if let Some(first) = failed.first() {
            eprintln!("{} objects of the benchmark could not be deleted, the first: {first}", failed.len());
        }
    }
}

/// An object for server-side apply: without the fields that are empty, which the server is to set, and without a UID.
fn applied(object: &Object) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    value["apiVersion"] = object.resource_type().api_version().into();
    value["kind"] = object.resource_type().kind().into();
    if let Some(fields) = value.as_object_mut() {
        // A subresource of a Node, and not written for the others.
        fields.remove("status");
    }
    value["metadata"]["uid"] = Value::Null;
    without_empty(value)
}

fn without_empty(value: Value) -> Value {
    let is_empty = |v: &Value| match v {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(_, v)| !is_empty(v));
            Value::Object(kept.map(|(name, v)| (name, without_empty(v))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_empty).collect()),
        other => other,
    }
}

/// Forwards bytes in both directions until both ends have closed.
fn relay(client: TcpStream, upstream: SocketAddr) {
    let Ok(server) = TcpStream::connect_timeout(&upstream, Duration::from_secs(10)) else { return };
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    let (Ok(from_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else { return };
    thread::spawn(move || copy(from_client, to_server));
    copy(server, client);
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    // Either end may close or reset; the other end is told in any case.
    io::copy(&mut from, &mut to).ok();
    to.shutdown(Shutdown::Write).ok();
}
