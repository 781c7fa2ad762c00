//! Makes a client from flags, a kubeconfig or a pod's service account.
//!
//! In: [`Access`]. Out: a [`Client`], or a [`ConnectError`] whose message explains how to fix it. No request is sent
//! yet: a server that cannot be reached, or a resource that may not be read, is reported by the watches as an outage.

use super::credential::{Credential, TokenFile, basic, bearer};
use super::exec::Exec;
use super::kubeconfig::{self, Cluster, Data, Selected, User};
use super::proxy::Proxy;
use super::statistics::RequestStatistics;
use super::tls::{Identity, Pem, Trust};
use super::transport::{Destination, Transport};
use http::Uri;
use http::header::{HeaderName, HeaderValue};
use rustls::client::ResolvesClientCert;
use rustls::pki_types::ServerName;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How to reach the API server.
#[derive(Clone, Debug)]
pub struct Access {
    /// Path of a kubeconfig. Without it, and without `master`, the pod's service account is used.
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server; overrides the kubeconfig's.
    pub master: Option<String>,
    /// Requests per second on average; zero or less for no limit.
    pub qps: f32,
    /// Requests that may be sent at once.
    pub burst: i32,
    /// The wire format to request.
    pub encoding: Encoding,
}

impl Default for Access {
    fn default() -> Self {
        Access { kubeconfig: None, master: None, qps: 5.0, burst: 10, encoding: Encoding::Protobuf }
    }
}

/// The wire format to request. A JSON response is accepted in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// `application/vnd.kubernetes.protobuf`: a quarter of the size of JSON.
    #[default]
    Protobuf,
    /// `application/json`.
    Json,
}

/// A client for one API server. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub(super) transport: Arc<Transport>,
    pub(super) encoding: Encoding,
    pub(super) origin: Arc<Origin>,
    /// Whether the server has refused or ignored a request to stream a list.
    pub(super) no_streaming: Arc<AtomicBool>,
}

impl Client {
    /// Whether to request streamed initial lists: true until the server refuses or ignores such a request.
    pub(super) fn can_stream(&self) -> bool {
        !self.no_streaming.load(Ordering::Relaxed)
    }

    /// Records that the server does not stream initial lists.
    pub(super) fn disable_streaming(&self) {
        self.no_streaming.store(true, Ordering::Relaxed);
    }

    /// The requests so far, for metrics.
    pub fn statistics(&self) -> Arc<RequestStatistics> {
        Arc::clone(&self.transport.statistics)
    }

    /// The address of the API server.
    pub fn server(&self) -> &str {
        &self.origin.server
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// The address and the credential, and where they are configured. Used in messages.
#[derive(Debug)]
pub(super) struct Origin {
    /// The API server's address.
    pub(super) server: String,
    /// The flag, file or variable that sets the address.
    pub(super) address_from: String,
    /// Description of the credential.
    pub(super) credential: String,
    /// The proxy's address, if connections go through one.
    pub(super) proxy: Option<String>,
}

/// Why a client could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No kubeconfig, no master, and not in a pod.
    #[error(
        "no API server is configured: give --kubeconfig or --master, or run in a pod with a service account \
         (automountServiceAccountToken: true): {0}"
    )]
    NotInPod(String),
    /// The kubeconfig cannot be opened.
    #[error("kubeconfig {}: {source}: check the path and that this user may read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The kubeconfig has no current context.
    #[error(
        "kubeconfig {}: no current-context: set one with `kubectl config use-context NAME --kubeconfig {}`",
        path.display(), path.display()
    )]
    NoContext {
        /// The file.
        path: PathBuf,
    },
    /// The kubeconfig is invalid in another way.
    #[error("kubeconfig {}: {reason}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// The proxy variables of the environment are invalid.
    #[error("{0}: check the environment of this process")]
    Proxy(String),
    /// `master` is not a URL.
    #[error("--master {master:?} is not a URL such as https://10.0.0.1:6443: {reason}")]
    Master {
        /// The value of `--master`.
        master: String,
        /// The cause.
        reason: String,
    },
    /// The token file cannot be read.
    #[error("token file {}: {source}: check tokenFile in the kubeconfig, or the service account's mount", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The certificates, the key or the credential plugin cannot be used.
    #[error(
        "{origin}: {reason}: check its certificate-authority, client-certificate and client-key, or its exec command"
    )]
    Credential {
        /// The file or flag that configures them.
        origin: String,
        /// The cause.
        reason: String,
    },
}

/// Directory of the pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Makes a client. Must be called inside a tokio runtime.
pub async fn connect(access: &Access) -> Result<Client, ConnectError> {
    let (mut destination, mut origin) = match (&access.kubeconfig, &access.master) {
        (Some(path), master) => from_kubeconfig(path, master.as_deref())?,
        (None, Some(master)) => from_master(master)?,
        (None, None) => in_pod()?,
    };
    // proxy-url takes precedence over the environment, as in client-go.
    if destination.proxy.is_none() {
        let variable = |name: &str| std::env::var(name).ok();
        destination.proxy =
            Proxy::from_environment(&destination.server, variable).map_err(ConnectError::Proxy)?;
    }
    if let Some(proxy) = &destination.proxy {
        tracing::info!(proxy = %proxy.uri, "connecting to the API server through a proxy");
        origin.proxy = Some(proxy.uri.to_string().trim_end_matches('/').to_owned());
    }
    let transport = Transport::new(destination, access.qps, access.burst)
        .map_err(|reason| ConnectError::Credential { origin: origin.address_from.clone(), reason })?;
    Ok(Client {
        transport: Arc::new(transport),
        encoding: access.encoding,
        origin: Arc::new(origin),
        no_streaming: Arc::default(),
    })
}

impl Origin {
    fn new(server: &Uri, address_from: String, credential: String) -> Self {
        let server = server.to_string().trim_end_matches('/').to_owned();
        Origin { server, address_from, credential, proxy: None }
    }
}

fn from_master(master: &str) -> Result<(Destination, Origin), ConnectError> {
    let server = master_uri(master)?;
    let origin = Origin::new(&server, "--master".into(), "no credential".into());
    let destination = Destination {
        server,
        trust: Trust::System,
        server_name: None,
        identity: Arc::default(),
        credential: Credential::None,
        headers: Vec::new(),
        proxy: None,
    };
    Ok((destination, origin))
}

fn in_pod() -> Result<(Destination, Origin), ConnectError> {
    let variable = |name: &str| {
        std::env::var(name).map_err(|_| ConnectError::NotInPod(format!("{name} is not in the environment")))
    };
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let server: Uri = format!("https://{host}:{port}")
        .parse()
        .map_err(|e| ConnectError::NotInPod(format!("KUBERNETES_SERVICE_HOST {host:?}: {e}")))?;
    let directory = Path::new(SERVICE_ACCOUNT);
    let ca = directory.join("ca.crt");
    let trust = match Trust::file(&ca, ca.display().to_string()) {
        Ok(trust) => trust,
        Err(error) => {
            let file = ca.display();
            tracing::warn!(%file, %error, "cannot read the cluster's certificate authority; using the certificate authorities of the system");
            Trust::System
        }
    };
    let token = directory.join("token");
    let mut origin = Origin::new(&server, "KUBERNETES_SERVICE_HOST".into(), String::new());
    let destination = Destination {
        server,
        trust,
        server_name: None,
        identity: Arc::default(),
        credential: Credential::File(open_token(&token, None, &mut origin)?),
        headers: Vec::new(),
        proxy: None,
    };
    Ok((destination, origin))
}

fn open_token(
    path: &Path,
    fallback: Option<HeaderValue>,
    origin: &mut Origin,
) -> Result<TokenFile, ConnectError> {
    origin.credential = format!("the token in {}", path.display());
    TokenFile::open(path, fallback).map_err(|source| ConnectError::Token { path: path.to_owned(), source })
}

fn from_kubeconfig(path: &Path, master: Option<&str>) -> Result<(Destination, Origin), ConnectError> {
    let Selected { mut cluster, user, user_name } = kubeconfig::read(path)?;
    let wrong = |reason: String| ConnectError::Kubeconfig { path: path.to_owned(), reason };
    let file = format!("kubeconfig {}", path.display());
    let (server, address_from) = match master {
        Some(master) => {
            // tls-server-name belongs to the kubeconfig's server, which --master replaces.
            cluster.tls_server_name.clear();
            (master_uri(master)?, "--master".to_owned())
        }
        None => (uri(&cluster.server).map_err(|e| wrong(format!("server: {e}")))?, file.clone()),
    };
    let credential = format!("the credential of user {user_name:?} in {file}");
    let mut origin = Origin::new(&server, address_from, credential);
    let refused = |reason: String| ConnectError::Credential { origin: file.clone(), reason };
    let trust = trust(&cluster).map_err(&refused)?;
    let mut destination = Destination {
        server,
        trust,
        server_name: server_name(&cluster).map_err(&wrong)?,
        headers: impersonation(&user).map_err(&wrong)?,
        identity: Arc::default(),
        credential: Credential::None,
        proxy: proxy(&cluster).map_err(&wrong)?,
    };
    if destination.server.scheme_str() == Some("http") {
        // As in client-go: a credential is not sent in clear text.
        tracing::warn!(
            server = origin.server,
            "the address of the API server is not https; requests are sent without TLS and without a credential"
        );
        origin.credential = "no credential, since the address is not https".into();
        return Ok((destination, origin));
    }
    destination.identity = Arc::new(identity(&user).map_err(&refused)?);
    destination.credential = if user.token_file.as_os_str().is_empty() {
        credential_of(user, &cluster, &destination, &origin.server).map_err(&refused)?
    } else {
        let fallback = bearer(&user.token).ok().filter(|_| !user.token.is_empty());
        Credential::File(open_token(&user.token_file, fallback, &mut origin)?)
    };
    Ok((destination, origin))
}

fn proxy(cluster: &Cluster) -> Result<Option<Proxy>, String> {
    match cluster.proxy_url.as_str() {
        "" => Ok(None),
        url => Proxy::parse(url).map(Some).map_err(|reason| format!("proxy-url: {reason}")),
    }
}

fn server_name(cluster: &Cluster) -> Result<Option<ServerName<'static>>, String> {
    let name = &cluster.tls_server_name;
    if name.is_empty() {
        return Ok(None);
    }
    ServerName::try_from(name.clone()).map(Some).map_err(|e| format!("tls-server-name: {name:?}: {e}"))
}

fn trust(cluster: &Cluster) -> Result<Trust, String> {
    let path = &cluster.certificate_authority;
    if cluster.insecure_skip_tls_verify {
        return Ok(Trust::Insecure);
    }
    if !cluster.certificate_authority_data.is_empty() {
        let pem = cluster.certificate_authority_data.bytes();
        return Ok(Trust::Authorities { pem, from: "certificate-authority-data".into(), file: None });
    }
    if path.as_os_str().is_empty() {
        return Ok(Trust::System);
    }
    let from = format!("certificate-authority {}", path.display());
    Trust::file(path, from.clone()).map_err(|e| format!("{from}: {e}"))
}

fn identity(user: &User) -> Result<Identity, String> {
    let pem = |data: &Data, path: &PathBuf| match (data.is_empty(), path.as_os_str().is_empty()) {
        (false, _) => Some(Pem::Bytes(data.bytes())),
        (true, false) => Some(Pem::File(path.clone())),
        (true, true) => None,
    };
    let certificate = pem(&user.client_certificate_data, &user.client_certificate);
    match (certificate, pem(&user.client_key_data, &user.client_key)) {
        (Some(certificate), Some(key)) => Identity::new(certificate, key),
        (None, None) => Ok(Identity::default()),
        (Some(_), None) => Err("client-certificate without client-key".into()),
        (None, Some(_)) => Err("client-key without client-certificate".into()),
    }
}

/// The credential of a user without a token file. A plugin is used only if the user has no other credential, as in
/// client-go.
fn credential_of(
    user: User,
    cluster: &Cluster,
    destination: &Destination,
    server: &str,
) -> Result<Credential, String> {
    if !user.token.is_empty() {
        return bearer(&user.token).map(Credential::Fixed).map_err(|e| format!("token: {e}"));
    }
    if !user.username.is_empty() {
        return basic(&user.username, &user.password).map(Credential::Fixed);
    }
    if destination.identity.has_certs() {
        return Ok(Credential::None);
    }
    if let Some(plugin) = user.exec {
        let authorities: &[u8] = match &destination.trust {
            Trust::Authorities { pem, .. } => pem,
            Trust::System | Trust::Insecure => &[],
        };
        let exec = Exec::new(plugin, cluster, server, authorities, Arc::clone(&destination.identity))?;
        return Ok(Credential::Exec(Box::new(exec)));
    }
    match user.auth_provider {
        Some(provider) => Err(format!("auth-provider {:?} is no longer supported; use exec", provider.name)),
        None => Ok(Credential::None),
    }
}

/// The headers for impersonation of another user.
fn impersonation(user: &User) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let mut headers = Vec::new();
    let mut add = |name: &str, value: &str| -> Result<(), String> {
        let invalid = || format!("as: {name}: {value:?} is not a valid header value");
        let name = HeaderName::try_from(name.to_owned()).map_err(|_| invalid())?;
        headers.push((name, HeaderValue::from_str(value).map_err(|_| invalid())?));
        Ok(())
    };
    if !user.impersonate.is_empty() {
        add("Impersonate-User", &user.impersonate)?;
    }
    if !user.as_uid.is_empty() {
        add("Impersonate-Uid", &user.as_uid)?;
    }
    for group in &user.as_groups {
        add("Impersonate-Group", group)?;
    }
    for (key, values) in &user.as_user_extra {
        let name = format!("Impersonate-Extra-{}", escaped(key));
        values.iter().try_for_each(|value| add(&name, value))?;
    }
    Ok(headers)
}

/// A key as part of a header name: bytes that are not allowed there are percent-encoded.
fn escaped(key: &str) -> String {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&b);
    key.bytes().map(|b| if allowed(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn master_uri(master: &str) -> Result<Uri, ConnectError> {
    uri(master).map_err(|reason| ConnectError::Master { master: master.to_owned(), reason })
}

/// A bare `host:port` means http, as in client-go.
fn uri(address: &str) -> Result<Uri, String> {
    let full = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let uri: Uri = full.parse().map_err(|e| format!("{address:?} is not a URL: {e}"))?;
    match uri.scheme_str() {
        Some("http" | "https") => Ok(uri),
        other => Err(format!("{address:?}: scheme {other:?} is neither http nor https")),
    }
}

#[cfg(test)]
mod tests;
