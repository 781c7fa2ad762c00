//! Certificate authorities, client certificates, tokens, credential plugins and proxies, with real TLS handshakes, and
//! their rotation.

use portway_api::{Event, Service};
use portway_client::{Access, Notice, OutageReason, Selection, Source, connect};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A certificate authority.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
    root: tokio_rustls::rustls::pki_types::CertificateDer<'static>,
}

impl Authority {
    fn new() -> Authority {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        let (pem, root) = (certificate.pem(), certificate.der().clone());
        Authority { pem, root, issuer: Issuer::new(parameters, key) }
    }

    /// Certificate and key for a name, in PEM, and the certificate in DER.
    fn issue(&self, name: &str) -> (String, String, Vec<u8>) {
        let mut parameters = CertificateParams::new(vec![name.to_owned()]).unwrap();
        parameters.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem(), certificate.der().to_vec())
    }
}

/// The end of a streamed list, which is empty.
const INITIAL_END: &str = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;

/// A watch of Services.
type Services = Source<Event<Service>>;

/// The client certificate and the `Authorization` header of a request.
#[derive(Debug, PartialEq, Eq)]
struct ClientAuth {
    certificate: Option<Vec<u8>>,
    authorization: Option<String>,
}

/// An API server without objects. It accepts client certificates of its authority but does not require one.
struct Server {
    port: u16,
    requests: Receiver<ClientAuth>,
    authority: Authority,
    files: tempfile::TempDir,
}

impl Server {
    /// `name` is the name in the server's certificate. A request whose `Authorization` is in `refused` gets a 401.
    async fn start(name: &str, refused: &'static [&'static str]) -> Server {
        let authority = Authority::new();
        let (_, key, certificate) = authority.issue(name);
        let mut roots = RootCertStore::empty();
        roots.add(authority.root.clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.allow_unauthenticated().build().unwrap())
            .with_single_cert(vec![certificate.into()], pem_key(&key))
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, requests) = channel(64);
        tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(config)), sender, refused));
        Server { port, requests, authority, files: tempfile::tempdir().unwrap() }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.files.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Starts a watch with a kubeconfig of these fields, in YAML. `{dir}` is replaced by the directory of the files.
    async fn watch(&self, cluster: &str, user: &str) -> Services {
        let (cluster, user) = (self.fill(cluster), self.fill(user));
        let kubeconfig = self.file(
            "kubeconfig",
            &format!(
                "clusters: [{{name: c, cluster: {{server: \"https://127.0.0.1:{}\", {cluster}}}}}, \
                 {{name: other, cluster: {{server: nonsense, proxy-url: \"http://p:1\"}}}}]\n\
                 users: [{{name: u, user: {{{user}}}}}]\n\
                 contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n",
                self.port
            ),
        );
        let access = Access { kubeconfig: Some(kubeconfig), qps: 0.0, ..Access::default() };
        let client = connect(&access).await.unwrap();
        Source::kubernetes(&client).watch::<Service>(Selection::all()).start()
    }

    fn fill(&self, text: &str) -> String {
        text.replace("{dir}", &self.files.path().display().to_string())
    }

    /// The authentication of the next request.
    async fn next(&mut self) -> ClientAuth {
        timeout(TIMEOUT, self.requests.recv()).await.expect("no request received").unwrap()
    }
}

fn pem_key(pem: &str) -> PrivateKeyDer<'static> {
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap()
}

async fn serve(
    listener: TcpListener,
    tls: TlsAcceptor,
    requests: Sender<ClientAuth>,
    refused: &'static [&'static str],
) {
    while let Ok((stream, _)) = listener.accept().await {
        let Ok(stream) = tls.accept(stream).await else { continue };
        tokio::spawn(respond(stream, requests.clone(), refused));
    }
}

/// Responds to the requests of one connection.
async fn respond(mut stream: TlsStream<TcpStream>, requests: Sender<ClientAuth>, refused: &[&str]) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let head = String::from_utf8(head).unwrap();
        let header = |line: &str| {
            Some(line.split_once(": ")?)
                .filter(|(n, _)| n.eq_ignore_ascii_case("authorization"))
                .map(|(_, v)| v.to_owned())
        };
        let authorization = head.lines().find_map(header);
        let certificates = stream.get_ref().1.peer_certificates();
        let certificate = certificates.and_then(|c| c.first()).map(|c| c.to_vec());
        let status = if authorization.as_deref().is_some_and(|a| refused.contains(&a)) { 401 } else { 200 };
        // A watch ends at once, so that the next request follows soon.
        let body = match (status, head.contains("sendInitialEvents=")) {
            (200, true) => INITIAL_END,
            (200, false) => "",
            _ => "{\"code\":401,\"message\":\"Unauthorized\"}",
        };
        let response = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(response.as_bytes()).await.ok();
        if requests.send(ClientAuth { certificate, authorization }).await.is_err() {
            return;
        }
    }
}

/// Waits for a complete list.
async fn wait_listed(notices: &mut Services) {
    let listed = async {
        loop {
            match notices.next().await.unwrap() {
                Notice::Event(Event::InitDone) => return,
                Notice::Outage(outage) => panic!("{}", outage.message),
                _ => {}
            }
        }
    };
    timeout(TIMEOUT, listed).await.expect("no list received");
}

/// The first outage.
async fn outage(mut notices: Services) -> (OutageReason, String) {
    let found = async {
        loop {
            if let Notice::Outage(outage) = notices.next().await.unwrap() {
                return (outage.reason, outage.message);
            }
        }
    };
    timeout(TIMEOUT, found).await.expect("no outage received")
}

fn encoded(pem: &str) -> String {
    data_encoding::BASE64.encode(pem.as_bytes())
}

#[tokio::test]
async fn only_the_configured_certificate_authority_is_trusted() {
    let server = Server::start("127.0.0.1", &[]).await;
    server.file("ca.pem", &server.authority.pem);
    server.file("other.pem", &Authority::new().pem);
    wait_listed(&mut server.watch("certificate-authority: \"{dir}/ca.pem\"", "").await).await;
    // Relative to the kubeconfig.
    wait_listed(&mut server.watch("certificate-authority: ca.pem", "").await).await;
    let data = format!("certificate-authority-data: {}", encoded(&server.authority.pem));
    wait_listed(&mut server.watch(&data, "").await).await;
    for cluster in ["certificate-authority: other.pem", ""] {
        let (reason, message) = outage(server.watch(cluster, "").await).await;
        assert_eq!(reason, OutageReason::Unreachable);
        assert!(message.contains("check certificate-authority in kubeconfig"), "{message}");
    }
    wait_listed(&mut server.watch("insecure-skip-tls-verify: true", "").await).await;
}

/// A server that accepts connections and never answers the handshake, as behind a firewall that drops large packets.
#[tokio::test]
async fn a_handshake_that_stalls_is_an_outage() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let handshake = Arc::new(tokio::sync::Notify::new());
    let begun = handshake.clone();
    let stalls = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            // The handshake has begun.
            let mut byte = [0];
            if stream.read_exact(&mut byte).await.is_ok() {
                begun.notify_one();
            }
            open.push(stream);
        }
    });
    let mut server = Server::start("127.0.0.1", &[]).await;
    server.port = port;
    let notices = server.watch("insecure-skip-tls-verify: true", "").await;
    timeout(TIMEOUT, handshake.notified()).await.expect("no handshake");
    // All time-outs end at once from here on: nothing else is left to wait for.
    tokio::time::pause();
    let found = async {
        let mut notices = notices;
        loop {
            if let Notice::Outage(outage) = notices.next().await.unwrap() {
                return (outage.reason, outage.message);
            }
        }
    };
    let (reason, message) = found.await;
    assert_eq!(reason, OutageReason::Unreachable);
    assert!(message.contains("no response within 60s"), "{message}");
    stalls.abort();
}

#[tokio::test]
async fn tls_server_name_is_expected_in_the_certificate_instead_of_the_host() {
    let server = Server::start("kubernetes.default.svc", &[]).await;
    server.file("ca.pem", &server.authority.pem);
    let (_, message) = outage(server.watch("certificate-authority: ca.pem", "").await).await;
    assert!(message.contains("certificate"), "{message}");
    let cluster = "certificate-authority: ca.pem, tls-server-name: kubernetes.default.svc";
    wait_listed(&mut server.watch(cluster, "").await).await;
}

#[tokio::test]
async fn a_rotated_client_certificate_is_used_although_connections_are_kept() {
    let mut server = Server::start("127.0.0.1", &[]).await;
    server.file("ca.pem", &server.authority.pem);
    let rotate = |server: &Server| {
        let (certificate, key, wire) = server.authority.issue("system:node:n1");
        server.file("client.key", &key);
        server.file("client.pem", &certificate);
        wire
    };
    let first = rotate(&server);
    let user = "client-certificate: client.pem, client-key: client.key";
    let mut notices = server.watch("certificate-authority: ca.pem", user).await;
    wait_listed(&mut notices).await;
    assert_eq!(server.next().await.certificate, Some(first));
    let second = rotate(&server);
    timeout(TIMEOUT, async { while server.next().await.certificate.as_ref() != Some(&second) {} })
        .await
        .expect("the new certificate is not used");
    // After an incomplete rotation the previous certificate stays in use.
    server.file("client.pem", "");
    for _ in 0..4 {
        assert_eq!(server.next().await.certificate.as_ref(), Some(&second));
    }
}

#[tokio::test]
async fn a_token_in_a_file_is_read_for_every_request() {
    let mut server = Server::start("127.0.0.1", &[]).await;
    server.file("ca.pem", &server.authority.pem);
    server.file("token", "one\n");
    let _notices = server.watch("certificate-authority: ca.pem", "tokenFile: token, token: other").await;
    assert_eq!(server.next().await.authorization.as_deref(), Some("Bearer one"));
    server.file("token", "two");
    timeout(TIMEOUT, async { while server.next().await.authorization.as_deref() != Some("Bearer two") {} })
        .await
        .expect("the new token is not sent");
}

#[tokio::test]
async fn a_plugin_is_used_only_without_another_credential() {
    let mut server = Server::start("127.0.0.1", &[]).await;
    server.file("ca.pem", &server.authority.pem);
    let plugin = plugin(&server, "{\"token\":\"from-the-plugin\"}");
    for (user, sent) in [("token: t", "Bearer t"), ("username: a, password: b", "Basic YTpi")] {
        let notices = server.watch("certificate-authority: ca.pem", &format!("{user}, {plugin}")).await;
        timeout(TIMEOUT, async { while server.next().await.authorization.as_deref() != Some(sent) {} })
            .await
            .expect(sent);
        drop(notices);
    }
    assert_eq!(runs(server.files.path()), 0);
}

/// A plugin that counts its runs in a file and prints `status`, in which the shell replaces `'$n'` by the count.
fn plugin(server: &Server, status: &str) -> String {
    let path = server.file(
        "plugin",
        &format!(
            "#!/bin/sh\ncd {}\necho run >> runs\nn=$(($(wc -l < runs)))\n\
             echo \"$KUBERNETES_EXEC_INFO\" > info\n\
             printf '%s\\n' '{{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{status}}}'\n",
            server.files.path().display()
        ),
    );
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, provideClusterInfo: true, \
     interactiveMode: Never}"
        .to_owned()
}

fn runs(directory: &Path) -> usize {
    std::fs::read_to_string(directory.join("runs")).unwrap_or_default().lines().count()
}

#[tokio::test]
async fn a_plugin_is_run_once_and_again_when_its_token_is_refused() {
    let mut server = Server::start("127.0.0.1", &["Bearer number-1"]).await;
    server.file("ca.pem", &server.authority.pem);
    let user = plugin(&server, "{\"token\":\"number-'$n'\",\"clientCertificateData\":null}");
    let extension = "{name: client.authentication.k8s.io/exec, extension: {audience: portway}}";
    let cluster = format!("certificate-authority: ca.pem, extensions: [{extension}]");
    let _notices = server.watch(&cluster, &user).await;
    assert_eq!(server.next().await.authorization.as_deref(), Some("Bearer number-1"));
    for _ in 0..4 {
        assert_eq!(server.next().await.authorization.as_deref(), Some("Bearer number-2"));
    }
    assert_eq!(runs(server.files.path()), 2);
    let info: serde_json::Value =
        serde_json::from_slice(&std::fs::read(server.files.path().join("info")).unwrap()).unwrap();
    assert_eq!(info["spec"]["interactive"], false);
    assert_eq!(info["spec"]["cluster"]["server"], format!("https://127.0.0.1:{}", server.port));
    assert_eq!(info["spec"]["cluster"]["certificate-authority-data"], encoded(&server.authority.pem));
    assert_eq!(info["spec"]["cluster"]["config"]["audience"], "portway");
}

#[tokio::test]
async fn the_certificate_of_a_plugin_is_used_and_replaced_when_it_expires() {
    let mut server = Server::start("127.0.0.1", &[]).await;
    server.file("ca.pem", &server.authority.pem);
    let (certificate, key, wire) = server.authority.issue("dev");
    let json = |pem: &str| serde_json::to_string(pem).unwrap();
    // Expired when it is issued, so that every request runs the plugin.
    let status = format!(
        "{{\"clientCertificateData\":{},\"clientKeyData\":{},\"expirationTimestamp\":\"2020-01-01T00:00:00Z\"}}",
        json(&certificate),
        json(&key)
    );
    let user = plugin(&server, &status);
    let mut notices = server.watch("certificate-authority: ca.pem", &user).await;
    wait_listed(&mut notices).await;
    for _ in 0..2 {
        assert_eq!(server.next().await, ClientAuth { certificate: Some(wire.clone()), authorization: None });
    }
    assert!(runs(server.files.path()) >= 2);
}

#[tokio::test]
async fn the_outage_of_a_failed_plugin_has_its_name_and_standard_error() {
    let server = Server::start("127.0.0.1", &[]).await;
    server.file("ca.pem", &server.authority.pem);
    let user = plugin(&server, "{}");
    let (reason, message) = outage(server.watch("certificate-authority: ca.pem", &user).await).await;
    assert_eq!(reason, OutageReason::Unauthorized);
    assert!(message.contains("user \"u\"") && !message.contains("check that it runs"), "{message}");
    assert!(message.contains("plugin: its output has neither a token nor a client certificate"), "{message}");
    server.file("plugin", "#!/bin/sh\necho log in first >&2\nexit 3\n");
    let (_, message) = outage(server.watch("certificate-authority: ca.pem", &user).await).await;
    assert!(message.contains("exit status: 3: log in first"), "{message}");
    let user = user.replace("./plugin", "./absent, installHint: get it from example.com");
    let (_, message) = outage(server.watch("certificate-authority: ca.pem", &user).await).await;
    assert!(message.contains("No such file") && message.contains("get it from example.com"), "{message}");
}

#[tokio::test]
async fn changed_certificate_authorities_are_trusted_without_a_restart() {
    let server = Server::start("127.0.0.1", &[]).await;
    server.file("ca.pem", &Authority::new().pem);
    let mut notices = server.watch("certificate-authority: ca.pem", "").await;
    assert!(matches!(notices.next().await, Some(Notice::Outage(_))));
    // An incomplete file, as while it is being written, is ignored.
    server.file("ca.pem", "-----BEGIN CERTIFICATE-----\n");
    server.file("ca.pem", &server.authority.pem);
    let recovered = async { while !matches!(notices.next().await, Some(Notice::Recovered(_))) {} };
    timeout(TIMEOUT, recovered).await.expect("the new authority is not trusted");
    wait_listed(&mut notices).await;
}

/// Serves one connection as a SOCKS5 proxy (RFC 1928, RFC 1929) and returns user, password and destination.
async fn socks(mut client: TcpStream) -> (String, String, SocketAddr) {
    let version_and_methods = client.read_u16().await.unwrap();
    assert_eq!(version_and_methods >> 8, 5);
    let mut methods = vec![0; usize::from(version_and_methods & 0xff)];
    client.read_exact(&mut methods).await.unwrap();
    assert!(methods.contains(&2), "username and password are not offered: {methods:?}");
    client.write_all(&[5, 2]).await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), 1);
    let mut texts = Vec::new();
    for _ in 0..2 {
        let mut text = vec![0; client.read_u8().await.unwrap().into()];
        client.read_exact(&mut text).await.unwrap();
        texts.push(String::from_utf8(text).unwrap());
    }
    client.write_all(&[1, 0]).await.unwrap();
    let mut request = [0; 10];
    client.read_exact(&mut request).await.unwrap();
    let [5, 1, 0, 1, a, b, c, d, high, low] = request else { panic!("not a CONNECT to IPv4: {request:?}") };
    let destination = SocketAddr::from(([a, b, c, d], u16::from_be_bytes([high, low])));
    let mut server = TcpStream::connect(destination).await.unwrap();
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
    tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
    let password = texts.pop().unwrap();
    (texts.pop().unwrap(), password, destination)
}

#[tokio::test]
async fn connections_go_through_a_socks5_proxy() {
    let server = Server::start("127.0.0.1", &[]).await;
    server.file("ca.pem", &server.authority.pem);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let cluster =
        format!("certificate-authority: ca.pem, proxy-url: \"socks5://me:s%40cret@127.0.0.1:{port}\"");
    let mut notices = server.watch(&cluster, "").await;
    let accepted = async { socks(listener.accept().await.unwrap().0).await };
    let seen = timeout(TIMEOUT, accepted).await.expect("the proxy is not used");
    assert_eq!(seen, ("me".into(), "s@cret".into(), SocketAddr::from(([127, 0, 0, 1], server.port))));
    wait_listed(&mut notices).await;
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named() {
    let server = Server::start("127.0.0.1", &[]).await;
    server.file("ca.pem", &server.authority.pem);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let cluster = format!("certificate-authority: ca.pem, proxy-url: \"http://127.0.0.1:{port}\"");
    let mut notices = server.watch(&cluster, "").await;
    let refused = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_buf(&mut Vec::new()).await.unwrap();
        stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    };
    timeout(TIMEOUT, refused).await.expect("the proxy is not used");
    let Some(Notice::Outage(outage)) = notices.next().await else { panic!("no outage") };
    assert!(outage.message.contains(&format!("through the proxy http://127.0.0.1:{port}:")), "{outage}");
}

/// Serves one connection as a proxy and returns its CONNECT request.
async fn tunnel<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(mut client: S) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        assert_ne!(client.read_buf(&mut head).await.unwrap(), 0, "the client closed the connection");
    }
    let head = String::from_utf8(head).unwrap();
    let target = head.split(' ').nth(1).unwrap();
    let mut server = TcpStream::connect(target).await.unwrap();
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
    head
}

#[tokio::test]
async fn connections_go_through_the_proxy_of_the_kubeconfig() {
    let server = Server::start("127.0.0.1", &[]).await;
    server.file("ca.pem", &server.authority.pem);
    let (_, key, certificate) = server.authority.issue("127.0.0.1");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.into()], pem_key(&key))
        .unwrap();
    let tls = TlsAcceptor::from(Arc::new(config));
    for scheme in ["http", "https"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy =
            format!("certificate-authority: ca.pem, proxy-url: \"{scheme}://me:s%40cret@127.0.0.1:{port}\"");
        let mut notices = server.watch(&proxy, "").await;
        let accepted = async {
            let (stream, _) = listener.accept().await.unwrap();
            match scheme {
                "http" => tunnel(stream).await,
                _ => tunnel(tls.accept(stream).await.unwrap()).await,
            }
        };
        let head = timeout(TIMEOUT, accepted).await.expect("the proxy is not used");
        assert!(head.starts_with(&format!("CONNECT 127.0.0.1:{} HTTP/1.1", server.port)), "{head}");
        let authorization = format!("basic {}", data_encoding::BASE64.encode(b"me:s@cret"));
        assert!(
            head.to_lowercase().contains(&format!("proxy-authorization: {}", authorization.to_lowercase())),
            "{head}"
        );
        wait_listed(&mut notices).await;
    }
}
