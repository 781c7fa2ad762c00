//! A fake Kubernetes API server, for faults and for numbers of objects that would take a real one minutes to create.
//!
//! It serves lists, streamed lists and watches of the resources that agents and controllers read, in protobuf and JSON,
//! with paging and bookmarks, accepts Events, and stores the objects that controllers write; of a Pod or a Deployment only
//! the fields that controllers read. It fails on demand
//! as a real server does: an outage, an expired resource version (410), a forbidden resource (403), no streamed lists
//! (422), refused writes, writes whose answer is lost. It has no storage on disk and no authentication: these
//! have to be tested with a real server.

mod http;
mod object;
mod store;
mod wire;
mod write;

pub use write::WriteFault;

use crate::{LabError, Namespace};
use http::{Connection, Request};
use object::AnyObject;
use portway_model::api::{Object, Resource, ResourceType};
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use store::{Change, Store};

/// The number of objects of a streamed list in one chunk.
const PER_CHUNK: usize = 100;

/// A running fake API server; it stops when dropped.
#[derive(Debug)]
pub struct ApiServer {
    shared: Arc<Shared>,
    address: SocketAddr,
}

/// The ways to list that the server supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lists {
    /// Pages only.
    Paged,
    /// Also lists from the watch cache.
    Cached,
    /// Also streams of initial events, as servers since 1.34 have by default.
    Streamed,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    down: AtomicBool,
    stopped: AtomicBool,
    forbidden: Mutex<Option<ResourceType>>,
    lists: Mutex<Lists>,
    connections: Mutex<HashMap<SocketAddr, TcpStream>>,
    requests: Mutex<Vec<String>>,
    events: Mutex<Vec<serde_json::Value>>,
    writes: Mutex<Vec<String>>,
    faults: Mutex<Option<(WriteFault, usize)>>,
    /// The name of the objects that cannot be written.
    unwritable: Mutex<Option<String>>,
}

impl ApiServer {
    /// Serves in `namespace` at `address`; port 0 picks a free one.
    pub fn start(namespace: impl AsRef<Namespace>, address: SocketAddr) -> Result<ApiServer, LabError> {
        let failed = |e: io::Error| LabError::system(format!("serve an API at {address}"), e);
        let listener = namespace.as_ref().run(|| TcpListener::bind(address)).map_err(failed)?;
        ApiServer::serve(listener).map_err(failed)
    }

    /// Serves on a listener that is already open.
    pub fn serve(listener: TcpListener) -> io::Result<ApiServer> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            store: Store::default(),
            down: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            forbidden: Mutex::default(),
            lists: Mutex::new(Lists::Streamed),
            connections: Mutex::default(),
            requests: Mutex::default(),
            events: Mutex::default(),
            writes: Mutex::default(),
            faults: Mutex::default(),
            unwritable: Mutex::default(),
        });
        let accepting = shared.clone();
        thread::Builder::new().name("api".into()).spawn(move || accepting.accept(&listener))?;
        Ok(ApiServer { shared, address })
    }

    /// Its address and port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A kubeconfig with its address.
    pub fn kubeconfig(&self) -> String {
        serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "lab", "user": {}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        })
        .to_string()
    }

    /// Creates or changes an object.
    pub fn apply(&self, object: Object) {
        self.shared.store.apply(object::any(object));
    }

    /// Creates or changes an object of any resource.
    pub fn put<R: Resource + std::fmt::Debug>(&self, object: R) {
        self.shared.store.apply(Arc::new(object));
    }

    /// The objects of a resource, in the order of their names.
    pub fn objects<R: Resource>(&self) -> Vec<R> {
        let page = self.shared.store.page(R::TYPE, "", usize::MAX, None);
        page.objects.iter().filter_map(|object| R::from_protobuf(&*object.protobuf()).ok()).collect()
    }

    /// The writes so far, as `PUT endpointslices namespace/name`; the name is missing for a creation.
    pub fn writes(&self) -> Vec<String> {
        lock(&self.shared.writes).clone()
    }

    /// The number of writes so far.
    pub fn write_count(&self) -> usize {
        lock(&self.shared.writes).len()
    }

    /// The next writes fail in this way; those of Leases do not.
    pub fn fail_writes(&self, fault: WriteFault, count: usize) {
        *lock(&self.shared.faults) = (count > 0).then_some((fault, count));
    }

    /// Writes of objects of this name are refused from now on.
    pub fn refuse_writes_of(&self, name: &str) {
        *lock(&self.shared.unwritable) = Some(name.to_owned());
    }

    /// Deletes an object.
    pub fn delete(&self, resource: ResourceType, namespace: &str, name: &str) {
        self.shared.store.delete(resource, namespace, name);
    }

    /// Begins or ends an outage, during which connections are closed, new ones at once.
    pub fn outage(&self, down: bool) {
        self.shared.down.store(down, Ordering::SeqCst);
        if down {
            self.shared.disconnect();
        }
    }

    /// Discards its history, as etcd does when it is compacted: watches have to begin with a new list.
    pub fn compact(&self) {
        self.shared.store.compact();
        self.shared.disconnect();
    }

    /// Forbids a resource from now on, or none.
    pub fn forbid(&self, resource: Option<ResourceType>) {
        *lock(&self.shared.forbidden) = resource;
        self.shared.disconnect();
    }

    /// Supports only these ways to list from now on.
    pub fn only(&self, lists: Lists) {
        *lock(&self.shared.lists) = lists;
    }

    /// The requests so far, as `GET /path?query`.
    pub fn requests(&self) -> Vec<String> {
        lock(&self.shared.requests).clone()
    }

    /// The Events that agents wrote.
    pub fn events(&self) -> Vec<serde_json::Value> {
        lock(&self.shared.events).clone()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.shared.disconnect();
        // Wakes the accepting thread, which then ends.
        TcpStream::connect_timeout(&self.address, std::time::Duration::from_millis(100)).ok();
    }
}

impl Shared {
    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.stopped.load(Ordering::SeqCst) {
                return;
            }
            let Ok(stream) = stream else { continue };
            if self.down.load(Ordering::SeqCst) {
                continue;
            }
            let Ok(client) = stream.peer_addr() else { continue };
            if let Ok(copy) = stream.try_clone() {
                lock(&self.connections).insert(client, copy);
            }
            let shared = self.clone();
            let serve = move || {
                shared.serve_connection(stream);
                lock(&shared.connections).remove(&client);
            };
            thread::Builder::new().name("api-conn".into()).spawn(serve).ok();
        }
    }

    fn disconnect(&self) {
        for (_, stream) in lock(&self.connections).drain() {
            stream.shutdown(std::net::Shutdown::Both).ok();
        }
        self.store.wake();
    }

    fn serve_connection(&self, stream: TcpStream) {
        stream.set_nodelay(true).ok();
        let mut connection = Connection::new(stream);
        while let Ok(Some(request)) = connection.read() {
            lock(&self.requests).push(format!("{} {}", request.method, request.target));
            if self.answer(&mut connection, &request).is_err() {
                // Other handles of the connection are open.
                return connection.close();
            }
        }
    }

    fn answer(&self, connection: &mut Connection, request: &Request) -> io::Result<()> {
        if request.method == "GET" && matches!(&*request.path(), "/healthz" | "/livez" | "/readyz") {
            return connection.reply(200, "text/plain", b"ok");
        }
        if let Some(page) = wire::discovery(&request.path()).filter(|_| request.method == "GET") {
            return connection.reply(200, "application/json", page.to_string().as_bytes());
        }
        if let Some(single) = write::single(&request.path())
            && (request.method != "GET" || !single.name.is_empty())
        {
            return self.answer_single(connection, request, single);
        }
        if request.method == "POST" {
            if let Ok(event) = serde_json::from_slice(&request.body) {
                lock(&self.events).push(event);
            }
            // kube-proxy writes its Events in protobuf, and expects the answer in the same format.
            return connection.reply(201, &request.content_type, &request.body);
        }
        let Some(resource) = wire::listed_at(&request.path()) else {
            return self.refuse(
                connection,
                404,
                "NotFound",
                "the server could not find the requested resource",
            );
        };
        if *lock(&self.forbidden) == Some(resource) {
            return self.refuse(connection, 403, "Forbidden", "this test forbids the resource");
        }
        let lists = *lock(&self.lists);
        let watch = request.parameter("watch").is_some_and(|w| w == "true" || w == "1");
        if request.parameter("sendInitialEvents").is_some() && lists < Lists::Streamed {
            let message =
                "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
            return self.refuse(connection, 422, "Invalid", message);
        }
        if !watch && request.parameter("resourceVersion").is_some() && lists < Lists::Cached {
            return self.refuse(connection, 410, "Expired", "the watch cache is not ready");
        }
        if watch {
            self.watch(connection, request, resource)
        } else {
            self.list(connection, request, resource)
        }
    }

    fn refuse(&self, connection: &mut Connection, code: u16, reason: &str, message: &str) -> io::Result<()> {
        let body = wire::status(code, reason, message);
        connection.reply(code, "application/json", body.to_string().as_bytes())
    }

    fn list(&self, connection: &mut Connection, request: &Request, resource: ResourceType) -> io::Result<()> {
        let limit = request.parameter("limit").and_then(|l| l.parse().ok()).unwrap_or(usize::MAX);
        let after = request.parameter("continue").unwrap_or_default();
        let page = self.store.page(resource, &after, limit, request.parameter("fieldSelector").as_deref());
        if request.accepts_protobuf() {
            connection.reply(200, wire::PROTOBUF, &wire::list_protobuf(resource, &page))
        } else {
            connection.reply(200, "application/json", wire::list_json(resource, &page).to_string().as_bytes())
        }
    }

    fn watch(
        &self,
        connection: &mut Connection,
        request: &Request,
        resource: ResourceType,
    ) -> io::Result<()> {
        let from: u64 = request.parameter("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
        let selector = request.parameter("fieldSelector");
        let protobuf = request.accepts_protobuf();
        let mut stream =
            connection.stream(if protobuf { wire::PROTOBUF_WATCH } else { "application/json" })?;
        let frame = |change: &Change| {
            if protobuf { wire::frame_protobuf(resource, change) } else { wire::frame_json(resource, change) }
        };
        let mut position = from;
        if request.parameter("sendInitialEvents").as_deref() == Some("true") {
            let page = self.store.page(resource, "", usize::MAX, selector.as_deref());
            for objects in page.objects.chunks(PER_CHUNK) {
                let added =
                    |object: &Arc<dyn AnyObject>| Change::Applied { new: true, object: object.clone() };
                let frames: Vec<u8> = objects.iter().flat_map(|object| frame(&added(object))).collect();
                stream.write(&frames)?;
            }
            stream.write(&frame(&Change::Bookmark { revision: page.revision, initial_end: true }))?;
            position = page.revision;
        }
        loop {
            let is_over = || self.stopped.load(Ordering::SeqCst) || self.down.load(Ordering::SeqCst);
            match self.store.after(resource, position, selector.as_deref(), is_over) {
                Ok((changes, next)) => {
                    position = next;
                    let frames: Vec<u8> = changes.iter().flat_map(&frame).collect();
                    stream.write(&frames)?;
                }
                Err(store::Gone) => {
                    stream.write(&frame(&Change::Error(wire::status(
                        410,
                        "Expired",
                        "too old resource version",
                    ))))?;
                    return stream.finish();
                }
            }
            if is_over() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
