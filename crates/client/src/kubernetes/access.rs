//! From what the administrator gave us to a client.
//!
//! In: [`Access`]. Out: a [`Client`], or a [`ConnectError`] that says what to do next. Nothing is sent yet: whether the
//! server is there, and what it lets us read, is found out (and reported as trouble) by the watches.

use super::credential::TokenFile;
use super::transport;
use http::Uri;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How to reach the API server.
#[derive(Clone, Debug)]
pub struct Access {
    /// A kubeconfig. Without it, and without `master`, the pod's service account is used.
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server; overrides the kubeconfig's.
    pub master: Option<String>,
    /// Requests per second on average; zero or less for no limit.
    pub qps: f32,
    /// Requests at once.
    pub burst: i32,
    /// What to ask the server to answer in.
    pub encoding: Encoding,
}

impl Default for Access {
    fn default() -> Self {
        Access { kubeconfig: None, master: None, qps: 5.0, burst: 10, encoding: Encoding::Protobuf }
    }
}

/// The wire format to ask for. JSON is understood either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// `application/vnd.kubernetes.protobuf`: a quarter of the bytes.
    #[default]
    Protobuf,
    /// `application/json`.
    Json,
}

/// A client for one API server, cheap to clone. It knows where it goes and as whom, for messages.
#[derive(Clone)]
pub struct Client {
    pub(super) kube: kube::Client,
    pub(super) encoding: Encoding,
    pub(super) origin: Arc<Origin>,
}

impl Client {
    /// The kube-rs client underneath, for writes.
    pub fn kube(&self) -> &kube::Client {
        &self.kube
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

/// Where address and credential come from.
#[derive(Debug)]
pub(super) struct Origin {
    /// The API server's address.
    pub(super) server: String,
    /// What set it.
    pub(super) address_from: String,
    /// What we log in with.
    pub(super) credential: String,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No kubeconfig, no master, and not in a pod.
    #[error(
        "no API server is configured: give --kubeconfig or --master, or run in a pod with a service account \
         (automountServiceAccountToken: true): {0}"
    )]
    NotInPod(#[source] InClusterError),
    /// The kubeconfig cannot be opened.
    #[error("kubeconfig {}: {source}: check the path and that this user may read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The kubeconfig does not say which context to use.
    #[error(
        "kubeconfig {}: no current-context: set one with `kubectl config use-context NAME --kubeconfig {}`",
        path.display(), path.display()
    )]
    NoContext {
        /// The file.
        path: PathBuf,
    },
    /// The kubeconfig is wrong in some other way.
    #[error("kubeconfig {}: {source}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: KubeconfigError,
    },
    /// The kubeconfig asks for a proxy.
    #[error("kubeconfig {}: proxy-url is not supported: reach the API server directly, or remove it", path.display())]
    Proxy {
        /// The file.
        path: PathBuf,
    },
    /// `master` is not a URL.
    #[error("--master {master:?} is not a URL such as https://10.0.0.1:6443: {reason}")]
    Master {
        /// As given.
        master: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The token file cannot be used.
    #[error("token file {}: {source}: check tokenFile in the kubeconfig, or the service account's mount", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Certificates, keys or the credential plug-in.
    #[error(
        "{origin}: {source}: check its certificate-authority, client-certificate and client-key, or its exec command"
    )]
    Credential {
        /// What holds them.
        origin: String,
        /// What is wrong.
        source: Box<kube::Error>,
    },
}

/// Makes a client. Must be called inside a tokio runtime.
pub async fn connect(access: &Access) -> Result<Client, ConnectError> {
    let (mut config, mut origin) = configure(access).await?;
    if config.proxy_url.is_some() {
        tracing::warn!("HTTPS_PROXY is set in the environment but is not used for the API server");
    }
    let token_file = match (&config.auth_info.token, config.auth_info.token_file.take()) {
        (None, Some(path)) => Some(open_token(Path::new(&path), &mut origin)?),
        _ => None,
    };
    let kube = transport::client(config, token_file, access.qps, access.burst).map_err(|source| {
        ConnectError::Credential { origin: origin.address_from.clone(), source: Box::new(source) }
    })?;
    Ok(Client { kube, encoding: access.encoding, origin: Arc::new(origin) })
}

fn open_token(path: &Path, origin: &mut Origin) -> Result<TokenFile, ConnectError> {
    origin.credential = format!("the token in {}", path.display());
    TokenFile::open(path).map_err(|source| ConnectError::Token { path: path.to_owned(), source })
}

async fn configure(access: &Access) -> Result<(kube::Config, Origin), ConnectError> {
    let (mut config, mut origin) = match (&access.kubeconfig, &access.master) {
        (Some(path), _) => from_kubeconfig(path).await?,
        (None, Some(master)) => {
            let config = kube::Config::new(master_uri(master)?);
            (config, Origin::new("--master".into(), "no credential".into()))
        }
        (None, None) => {
            let config = kube::Config::incluster().map_err(ConnectError::NotInPod)?;
            (config, Origin::new("KUBERNETES_SERVICE_HOST".into(), "the pod's service account".into()))
        }
    };
    if let Some(master) = &access.master {
        config.cluster_url = master_uri(master)?;
        origin.address_from = "--master".into();
    }
    origin.server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    Ok((config, origin))
}

impl Origin {
    fn new(address_from: String, credential: String) -> Self {
        Origin { server: String::new(), address_from, credential }
    }
}

async fn from_kubeconfig(path: &Path) -> Result<(kube::Config, Origin), ConnectError> {
    let wrong = |source| match source {
        KubeconfigError::ReadConfig(source, path) => ConnectError::Read { path, source },
        KubeconfigError::CurrentContextNotSet => ConnectError::NoContext { path: path.to_owned() },
        source => ConnectError::Kubeconfig { path: path.to_owned(), source },
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(wrong)?;
    if kubeconfig.current_context.as_deref().unwrap_or_default().is_empty() {
        return Err(ConnectError::NoContext { path: path.to_owned() });
    }
    let proxied = |c: &kube::config::Cluster| c.proxy_url.as_deref().is_some_and(|url| !url.is_empty());
    if kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref()).any(proxied) {
        return Err(ConnectError::Proxy { path: path.to_owned() });
    }
    let user = user_of(&kubeconfig);
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(wrong)?;
    let file = format!("kubeconfig {}", path.display());
    let credential = format!("the credential of user {user:?} in {file}");
    Ok((config, Origin::new(file, credential)))
}

fn user_of(kubeconfig: &Kubeconfig) -> String {
    let named = kubeconfig.contexts.iter().find(|c| Some(&c.name) == kubeconfig.current_context.as_ref());
    named.and_then(|c| c.context.as_ref()).and_then(|c| c.user.clone()).unwrap_or_default()
}

/// A bare `host:port` means http, as in client-go.
fn master_uri(master: &str) -> Result<Uri, ConnectError> {
    let wrong = |reason: String| ConnectError::Master { master: master.to_owned(), reason };
    let full = if master.contains("://") { master.to_owned() } else { format!("http://{master}") };
    let uri: Uri = full.parse().map_err(|e: http::uri::InvalidUri| wrong(e.to_string()))?;
    match uri.scheme_str() {
        Some("http" | "https") => Ok(uri),
        other => Err(wrong(format!("scheme {other:?} is neither http nor https"))),
    }
}

#[cfg(test)]
mod tests;
