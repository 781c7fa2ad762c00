//! A kubeconfig: the cluster and the user of its current context.
//!
//! In: a file. Out: [`Selected`], with every path absolute and every `-data` field decoded. Other contexts, clusters and
//! users of the file are never looked at, and fields that only kubectl uses are skipped.

use super::access::ConnectError;
use data_encoding::BASE64;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the current context selects.
#[derive(Debug)]
pub(super) struct Selected {
    pub(super) cluster: Cluster,
    pub(super) user: User,
    /// The user's name in the file.
    pub(super) user_name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct File {
    #[serde(deserialize_with = "or_default")]
    current_context: String,
    #[serde(deserialize_with = "or_default")]
    contexts: Vec<NamedContext>,
    #[serde(deserialize_with = "or_default")]
    clusters: Vec<NamedCluster>,
    #[serde(deserialize_with = "or_default")]
    users: Vec<NamedUser>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedContext {
    name: String,
    #[serde(deserialize_with = "or_default")]
    context: Context,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Context {
    #[serde(deserialize_with = "or_default")]
    cluster: String,
    #[serde(deserialize_with = "or_default")]
    user: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedCluster {
    name: String,
    #[serde(deserialize_with = "or_default")]
    cluster: Cluster,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedUser {
    name: String,
    #[serde(deserialize_with = "or_default")]
    user: User,
}

/// How to reach an API server. Empty means not given, in every field.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Cluster {
    #[serde(deserialize_with = "or_default")]
    pub(super) server: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) tls_server_name: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) insecure_skip_tls_verify: bool,
    #[serde(deserialize_with = "or_default")]
    pub(super) certificate_authority: PathBuf,
    #[serde(deserialize_with = "base64")]
    pub(super) certificate_authority_data: Vec<u8>,
    #[serde(deserialize_with = "or_default")]
    pub(super) proxy_url: String,
}

/// As whom.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct User {
    #[serde(deserialize_with = "or_default")]
    pub(super) client_certificate: PathBuf,
    #[serde(deserialize_with = "base64")]
    pub(super) client_certificate_data: Vec<u8>,
    #[serde(deserialize_with = "or_default")]
    pub(super) client_key: PathBuf,
    #[serde(deserialize_with = "base64")]
    pub(super) client_key_data: Vec<u8>,
    #[serde(deserialize_with = "or_default")]
    pub(super) token: String,
    #[serde(rename = "tokenFile", deserialize_with = "or_default")]
    pub(super) token_file: PathBuf,
    #[serde(deserialize_with = "or_default")]
    pub(super) username: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) password: String,
    #[serde(rename = "as", deserialize_with = "or_default")]
    pub(super) impersonate: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) as_uid: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) as_groups: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) as_user_extra: BTreeMap<String, Vec<String>>,
    pub(super) exec: Option<Plugin>,
    pub(super) auth_provider: Option<AuthProvider>,
}

/// A program that hands out credentials.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Plugin {
    pub(super) api_version: String,
    pub(super) command: PathBuf,
    #[serde(deserialize_with = "or_default")]
    pub(super) args: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) env: Vec<Variable>,
    #[serde(deserialize_with = "or_default")]
    pub(super) install_hint: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) interactive_mode: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) provide_cluster_info: bool,
}

/// A variable in the environment of a plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: String,
}

/// The predecessor of plugins, which kubectl dropped in 1.26.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AuthProvider {
    pub(super) name: String,
}

/// Reads a file and follows its current context.
pub(super) fn read(path: &Path) -> Result<Selected, ConnectError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConnectError::Read { path: path.to_owned(), source })?;
    let wrong = |reason: String| ConnectError::Kubeconfig { path: path.to_owned(), reason };
    let file: File = serde_saphyr::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    let name = file.current_context;
    if name.is_empty() {
        return Err(ConnectError::NoContext { path: path.to_owned() });
    }
    let context = file.contexts.into_iter().find(|c| c.name == name);
    let context =
        context.ok_or_else(|| wrong(format!("current-context: {name:?} is not in contexts")))?.context;
    let missing =
        |field: &str, value: &str| wrong(format!("context {name:?}: {field}: {value:?} is not in {field}s"));
    let cluster = file.clusters.into_iter().find(|c| c.name == context.cluster);
    let mut cluster = cluster.ok_or_else(|| missing("cluster", &context.cluster))?.cluster;
    let mut user = match context.user.as_str() {
        "" => User::default(),
        wanted => {
            let user = file.users.into_iter().find(|u| u.name == wanted);
            user.ok_or_else(|| missing("user", wanted))?.user
        }
    };
    let directory = path.parent().unwrap_or(Path::new(""));
    make_absolute(directory, &mut cluster, &mut user);
    Ok(Selected { cluster, user, user_name: context.user })
}

/// Paths in a kubeconfig are relative to it.
fn make_absolute(directory: &Path, cluster: &mut Cluster, user: &mut User) {
    let files = [
        &mut cluster.certificate_authority,
        &mut user.client_certificate,
        &mut user.client_key,
        &mut user.token_file,
    ];
    for file in files.into_iter().filter(|file| !file.as_os_str().is_empty()) {
        *file = directory.join(&*file);
    }
    // A bare name is looked for in PATH.
    if let Some(plugin) = &mut user.exec
        && plugin.command.components().count() > 1
    {
        plugin.command = directory.join(&plugin.command);
    }
}

/// `null` is what kubectl writes for an empty list.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text: String = or_default(deserializer)?;
    let compact: String = text.split_whitespace().collect();
    BASE64.decode(compact.as_bytes()).map_err(|e| serde::de::Error::custom(format!("not base64: {e}")))
}
