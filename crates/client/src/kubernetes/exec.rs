//! Credential plugins: the `exec` entry of a kubeconfig's user (KEP-541).
//!
//! In: a [`Plugin`]. Out: a token, a client certificate or both, kept until they expire or the server refuses them.

use super::kubeconfig::{Cluster, Plugin, or_default};
use super::tls::Identity;
use data_encoding::BASE64;
use http::HeaderValue;
use portway_api::time::parse_rfc3339;
use serde::Deserialize;
use serde_json::{Value, json};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::process::Command;
use tokio::sync::Mutex;

/// Supported versions of the plugin protocol.
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// How long a plugin may run. A plugin that requests a token from a cloud provider takes seconds.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How much of a plugin's standard error is reported, in bytes.
const MAX_STDERR: usize = 300;

/// Name of the cluster extension with configuration for the plugin.
const EXTENSION: &str = "client.authentication.k8s.io/exec";

/// A plugin and the credential that it issued last.
pub(super) struct Exec {
    plugin: Plugin,
    /// Value of `KUBERNETES_EXEC_INFO`.
    info: String,
    identity: Arc<Identity>,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    issued: Option<Issued>,
    /// Number of runs of the plugin that succeeded.
    runs: u64,
}

#[derive(Clone)]
struct Issued {
    token: Option<HeaderValue>,
    /// `None`: it is valid until the server refuses it.
    expires: Option<SystemTime>,
    /// Whether the client certificate differs from the previous one.
    renewed: bool,
}

/// The credential for one request.
pub(super) struct Granted {
    /// The token, if the plugin issues tokens.
    pub(super) token: Option<HeaderValue>,
    /// Number of the plugin's run that issued the credential.
    pub(super) run: u64,
    /// Whether the client certificate has changed since the previous request.
    pub(super) renewed: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Credential {
    #[serde(deserialize_with = "or_default")]
    api_version: String,
    #[serde(deserialize_with = "or_default")]
    kind: String,
    #[serde(deserialize_with = "or_default")]
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(deserialize_with = "or_default")]
    token: String,
    #[serde(deserialize_with = "or_default")]
    client_certificate_data: String,
    #[serde(deserialize_with = "or_default")]
    client_key_data: String,
    expiration_timestamp: Option<String>,
}

impl Exec {
    /// Does not run the plugin yet. Fails if the `exec` entry is invalid. `server` is the API server's address, and
    /// `authorities` are the trusted certificate authorities in PEM.
    pub(super) fn new(
        plugin: Plugin,
        cluster: &Cluster,
        server: &str,
        authorities: &[u8],
        identity: Arc<Identity>,
    ) -> Result<Exec, String> {
        if plugin.command.as_os_str().is_empty() {
            return Err("exec.command is empty".into());
        }
        if !VERSIONS.contains(&plugin.api_version.as_str()) {
            return Err(format!("exec.apiVersion: {:?} is none of {VERSIONS:?}", plugin.api_version));
        }
        if plugin.interactive_mode == "Always" {
            return Err("exec.interactiveMode: Always is not supported: there is no terminal".into());
        }
        let mut spec = json!({ "interactive": false });
        if plugin.provide_cluster_info {
            let config = cluster.extensions.iter().find(|e| e.name == EXTENSION).map(|e| &e.extension);
            spec["cluster"] = json!({
                "server": server,
                "tls-server-name": cluster.tls_server_name,
                "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
                "certificate-authority-data": BASE64.encode(authorities),
                "config": config,
            });
        }
        let info: Value = json!({ "apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec });
        Ok(Exec { plugin, info: info.to_string(), identity, last: Mutex::default() })
    }

    /// The credential for a request. Runs the plugin if the last credential has expired or was refused.
    pub(super) async fn grant(&self) -> Result<Granted, String> {
        let mut last = self.last.lock().await;
        let valid = |issued: &&Issued| issued.expires.is_none_or(|expires| SystemTime::now() < expires);
        if let Some(issued) = last.issued.as_ref().filter(valid) {
            return Ok(Granted { token: issued.token.clone(), run: last.runs, renewed: false });
        }
        let issued = self.run().await?;
        last.runs += 1;
        let granted = Granted { token: issued.token.clone(), run: last.runs, renewed: issued.renewed };
        last.issued = Some(issued);
        Ok(granted)
    }

    /// Discards the credential that the server refused, unless a later run of the plugin has already replaced it.
    pub(super) async fn refused(&self, run: u64) {
        let mut last = self.last.lock().await;
        if last.runs == run {
            last.issued = None;
        }
    }

    async fn run(&self) -> Result<Issued, String> {
        let name = self.plugin.command.display();
        let failed = |why: String| match self.plugin.install_hint.trim() {
            "" => format!("credential plugin {name}: {why}"),
            hint => format!("credential plugin {name}: {why}; {hint}"),
        };
        let mut command = Command::new(&self.plugin.command);
        command.args(&self.plugin.args).env("KUBERNETES_EXEC_INFO", &self.info);
        command.envs(self.plugin.env.iter().map(|v| (&v.name, &v.value)));
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = match tokio::time::timeout(TIMEOUT, command.output()).await {
            Ok(Ok(output)) => output,
            Ok(Err(e)) => return Err(failed(e.to_string())),
            Err(_) => return Err(failed(format!("it did not finish within {TIMEOUT:?}"))),
        };
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let stderr = stderr.trim();
            return Err(failed(format!(
                "{}: {}",
                output.status,
                &stderr[..stderr.floor_char_boundary(MAX_STDERR)]
            )));
        }
        self.read(&output.stdout).map_err(failed)
    }

    fn read(&self, output: &[u8]) -> Result<Issued, String> {
        let credential: Credential = serde_json::from_slice(output)
            .map_err(|e| format!("its output is not an ExecCredential: {e}"))?;
        if credential.kind != "ExecCredential" || credential.api_version != self.plugin.api_version {
            return Err(format!(
                "its output is {} {:?}, but ExecCredential {:?} is expected",
                credential.kind, credential.api_version, self.plugin.api_version
            ));
        }
        let Status { token, client_certificate_data, client_key_data, expiration_timestamp } =
            credential.status;
        if token.is_empty() && client_certificate_data.is_empty() {
            return Err("its output has neither a token nor a client certificate".into());
        }
        let token = match token.as_str() {
            "" => None,
            token => Some(super::credential::bearer(token)?),
        };
        let expires = expiration_timestamp.as_deref().map(expiry).transpose()?;
        // Last, so that a certificate is not replaced by a response that is refused.
        let pem = (client_certificate_data.into_bytes(), client_key_data.into_bytes());
        let renewed = self.identity.replace((!pem.0.is_empty()).then_some(pem))?;
        Ok(Issued { token, expires, renewed })
    }
}

fn expiry(text: &str) -> Result<SystemTime, String> {
    let (seconds, nanoseconds) =
        parse_rfc3339(text).ok_or_else(|| format!("status.expirationTimestamp: {text:?} is not a time"))?;
    let since = Duration::new(u64::try_from(seconds).unwrap_or(0), nanoseconds);
    Ok(SystemTime::UNIX_EPOCH + since)
}
