//! A fake API server: the test receives each request, checks it, and writes the response.
//!
//! There is one connection per request, so that a test can break a response at any byte.

use bytes::Bytes;
use portway_api::{Event, ObjectMeta, Resource, Service};
use portway_client::{Access, Client, Encoding, Notice, Selection, Source, connect};
use prost::Message;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// No step of these tests takes so long unless it fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
pub(crate) const STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";
pub(crate) const JSON: &str = "application/json";

/// A listening server.
pub(crate) struct Api {
    listener: TcpListener,
    _kubeconfig: tempfile::NamedTempFile,
    pub(crate) access: Access,
}

impl Api {
    pub(crate) async fn start() -> Self {
        Api::with_user("{token: secret}").await
    }

    /// `user` is the kubeconfig's entry, in YAML.
    pub(crate) async fn with_user(user: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let kubeconfig = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "clusters: [{{name: c, cluster: {{server: \"http://{address}\"}}}}]\n\
             users: [{{name: tester, user: {user}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: tester}}}}]\ncurrent-context: x\n"
        );
        std::fs::write(kubeconfig.path(), text).unwrap();
        let access = Access {
            kubeconfig: Some(kubeconfig.path().to_owned()),
            master: None,
            qps: 0.0,
            burst: 0,
            encoding: Encoding::Protobuf,
        };
        Api { listener, _kubeconfig: kubeconfig, access }
    }

    pub(crate) async fn client(&self) -> Client {
        connect(&self.access).await.unwrap()
    }

    /// Waits for the next request and reads its head and body.
    pub(crate) async fn next(&self) -> Exchange {
        timeout(TIMEOUT, async {
            let (stream, _) = self.listener.accept().await.unwrap();
            Exchange::read(stream).await
        })
        .await
        .expect("no request received")
    }

    /// Fails if there is a request within `time`.
    pub(crate) async fn expect_no_request(&self, time: Duration) {
        if let Ok(Ok((stream, _))) = timeout(time, self.listener.accept()).await {
            panic!("unexpected request: {}", Exchange::read(stream).await.target());
        }
    }
}

/// A request that has no response yet.
pub(crate) struct Exchange {
    stream: TcpStream,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Exchange {
    async fn read(mut stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        let head_end = loop {
            if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
                break end + 4;
            }
            assert_ne!(
                stream.read_buf(&mut bytes).await.unwrap(),
                0,
                "the connection closed before a request"
            );
        };
        let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
        let mut lines = head.lines();
        let mut first = lines.next().unwrap().split(' ');
        let (method, target) = (first.next().unwrap().to_owned(), first.next().unwrap());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query =
            query.split('&').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.into(), v.into()));
        let headers: BTreeMap<String, String> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect();
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = bytes.split_off(head_end);
        while body.len() < length {
            assert_ne!(
                stream.read_buf(&mut body).await.unwrap(),
                0,
                "the connection closed within the body of a request"
            );
        }
        Exchange { stream, method, path: path.to_owned(), query: query.collect(), headers, body }
    }

    /// Method, path and query, for messages.
    pub(crate) fn target(&self) -> String {
        format!("{} {} {:?}", self.method, self.path, self.query)
    }

    /// A parameter of the query.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    /// Sends a complete response.
    pub(crate) async fn reply(self, status: u16, content_type: &str, body: impl AsRef<[u8]>) {
        self.reply_with(status, content_type, "", body).await;
    }

    /// The same with additional headers, each ending with `\r\n`.
    pub(crate) async fn reply_with(
        mut self,
        status: u16,
        content_type: &str,
        headers: &str,
        body: impl AsRef<[u8]>,
    ) {
        let body = body.as_ref();
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
             Connection: close\r\n{headers}\r\n",
            body.len()
        );
        self.stream.write_all(head.as_bytes()).await.unwrap();
        self.stream.write_all(body).await.unwrap();
        self.stream.shutdown().await.unwrap();
    }

    /// Begins a chunked response.
    pub(crate) async fn stream(mut self, content_type: &str) -> Chunks {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\
             Connection: close\r\n\r\n"
        );
        self.stream.write_all(head.as_bytes()).await.unwrap();
        Chunks(self.stream)
    }
}

/// A chunked response that has begun. Dropping it breaks the connection.
pub(crate) struct Chunks(TcpStream);

impl Chunks {
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.0.write_all(format!("{:x}\r\n", bytes.len()).as_bytes()).await.unwrap();
        self.0.write_all(bytes).await.unwrap();
        self.0.write_all(b"\r\n").await.unwrap();
    }

    /// Ends the response regularly.
    pub(crate) async fn end(mut self) {
        self.0.write_all(b"0\r\n\r\n").await.unwrap();
        self.0.shutdown().await.unwrap();
    }

    /// Waits until the client has closed the connection.
    pub(crate) async fn wait_closed(mut self) {
        let mut byte = [0];
        assert_eq!(
            timeout(TIMEOUT, self.0.read(&mut byte))
                .await
                .expect("the client does not close the connection")
                .unwrap_or(0),
            0
        );
    }
}

#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(bytes = "bytes", tag = "1")]
    type_meta: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(message, repeated, tag = "2")]
    items: Vec<Service>,
}

#[derive(Clone, PartialEq, Message)]
struct ListMeta {
    #[prost(string, tag = "2")]
    resource_version: String,
    #[prost(string, tag = "3")]
    continue_token: String,
}

#[derive(Clone, PartialEq, Message)]
struct WatchEvent {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(message, optional, tag = "2")]
    object: Option<RawExtension>,
}

#[derive(Clone, PartialEq, Message)]
struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(int32, tag = "6")]
    code: i32,
}

pub(crate) fn service(name: &str, version: &str) -> Service {
    Service {
        metadata: Some(ObjectMeta {
            name: name.into(),
            namespace: "default".into(),
            resource_version: version.into(),
            ..ObjectMeta::default()
        }),
        ..Service::default()
    }
}

fn enveloped(message: &impl Message) -> Vec<u8> {
    let type_meta = Bytes::from_static(b"\x0a\x02v1\x12\x07Service");
    [b"k8s\0".to_vec(), Unknown { type_meta, raw: message.encode_to_vec().into() }.encode_to_vec()].concat()
}

/// A page of a list of Services.
pub(crate) fn page(names: &[&str], version: &str, continue_token: &str) -> Vec<u8> {
    let metadata = ListMeta { resource_version: version.into(), continue_token: continue_token.into() };
    let items = names.iter().map(|name| service(name, "1")).collect();
    enveloped(&List { metadata: Some(metadata), items })
}

fn frame(kind: &str, message: &impl Message) -> Vec<u8> {
    let event =
        WatchEvent { kind: kind.into(), object: Some(RawExtension { raw: enveloped(message).into() }) };
    let bytes = event.encode_to_vec();
    [(bytes.len() as u32).to_be_bytes().to_vec(), bytes].concat()
}

/// A frame of a watch.
pub(crate) fn event(kind: &str, name: &str, version: &str) -> Vec<u8> {
    frame(kind, &service(name, version))
}

/// The bookmark that ends the initial objects of a stream.
pub(crate) fn initial_end(version: &str) -> Vec<u8> {
    let mut bookmark = service("", version);
    let annotations = &mut bookmark.metadata.as_mut().unwrap().annotations;
    annotations.insert("k8s.io/initial-events-end".into(), "true".into());
    frame("BOOKMARK", &bookmark)
}

/// A frame of a watch that ends it with an error.
pub(crate) fn error(code: i32, reason: &str) -> Vec<u8> {
    frame("ERROR", &Status { message: "too old".into(), reason: reason.into(), code })
}

/// The body of a refusal.
pub(crate) fn status(code: i32, reason: &str, message: &str) -> Vec<u8> {
    enveloped(&Status { message: message.into(), reason: reason.into(), code })
}

/// An event as text: `+name`, `-name`, `init`, `done`.
#[derive(Debug)]
pub(crate) struct Summary(String);

impl<R: Resource> From<Event<R>> for Summary {
    fn from(event: Event<R>) -> Summary {
        Summary(match event {
            Event::Init => "init".into(),
            Event::InitDone => "done".into(),
            Event::Apply(object) => format!("+{}", object.metadata().unwrap().name),
            Event::Delete { name, .. } => format!("-{name}"),
        })
    }
}

/// A running watch.
pub(crate) type Notices = Source<Summary>;

/// Starts a watch.
pub(crate) async fn start<R: Resource>(api: &Api, selection: Selection) -> Notices {
    Source::kubernetes(&api.client().await).watch::<R>(selection).start()
}

/// Starts a watch of Services, and refuses to stream the list.
pub(crate) async fn start_lists(api: &Api) -> Notices {
    let notices = start::<Service>(api, Selection::all()).await;
    refuse_stream(api).await;
    notices
}

/// The same, and also refuses a list from the cache, so that pages follow.
pub(crate) async fn start_pages(api: &Api) -> Notices {
    let notices = start_lists(api).await;
    let list = api.next().await;
    assert_eq!((list.parameter("resourceVersion"), list.parameter("limit")), (Some("0"), None));
    list.reply(504, PROTOBUF, status(410, "Expired", "the cache is not ready")).await;
    notices
}

/// Refuses a stream, as a server without the feature does.
pub(crate) async fn refuse_stream(api: &Api) {
    let request = api.next().await;
    assert_eq!(request.parameter("sendInitialEvents"), Some("true"), "{}", request.target());
    let message = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
    request.reply(422, PROTOBUF, status(422, "Invalid", message)).await;
}

/// The next notice as text.
pub(crate) async fn next(notices: &mut Notices) -> String {
    let notice =
        timeout(TIMEOUT, notices.next()).await.expect("no notice received").expect("the watch ended");
    match notice {
        Notice::Event(summary) => summary.0,
        Notice::Rejected(rejected) => format!("rejected {rejected}"),
        Notice::Outage(outage) => format!("outage {outage}"),
        Notice::Recovered(resource) => format!("recovered {}", resource.unwrap()),
    }
}

/// The next notices.
pub(crate) async fn take(notices: &mut Notices, count: usize) -> Vec<String> {
    let mut all = Vec::new();
    while all.len() < count {
        all.push(next(notices).await);
    }
    all
}
