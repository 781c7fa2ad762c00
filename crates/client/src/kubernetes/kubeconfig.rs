//! A kubeconfig: the cluster and the user of its current context.
//!
//! In: a file. Out: [`Selected`], with every path absolute and every `-data` field checked, or an error that has the
//! entry and the field but quotes no line of the file, because it contains secrets. Entries that the context does not
//! select only have to be valid YAML; fields that only kubectl uses are skipped.

use super::access::ConnectError;
use data_encoding::BASE64;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_saphyr::options;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The cluster and the user of the current context.
pub(super) struct Selected {
    pub(super) cluster: Cluster,
    pub(super) user: User,
    /// The user's name in the file.
    pub(super) user_name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct File {
    #[serde(deserialize_with = "or_default")]
    current_context: String,
    /// Entries are decoded when they are selected: mistakes in other entries are ignored.
    #[serde(deserialize_with = "or_default")]
    contexts: Vec<Value>,
    #[serde(deserialize_with = "or_default")]
    clusters: Vec<Value>,
    #[serde(deserialize_with = "or_default")]
    users: Vec<Value>,
}

/// The content of the entry with this name, if there is one.
fn entry<T: DeserializeOwned + Default>(
    list: &[Value],
    name: &str,
    field: &str,
) -> Option<Result<T, String>> {
    let entry =
        list.iter().find(|entry| entry["name"].as_str().unwrap_or_default() == name && entry.is_object())?;
    Some(match &entry[field] {
        Value::Null => Ok(T::default()),
        // The error may quote a secret; only the expected type is reported.
        content => T::deserialize(content).map_err(|error| {
            let text = error.to_string();
            let expected = text.rsplit_once("expected ").map_or("another type", |(_, expected)| expected);
            format!("{field} {name:?}: a field has the wrong type: {expected} is expected")
        }),
    })
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    #[serde(deserialize_with = "or_default")]
    cluster: String,
    #[serde(deserialize_with = "or_default")]
    user: String,
}

/// How to connect to an API server. An empty field is not set.
#[derive(Default, Deserialize)]
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
    pub(super) certificate_authority_data: Data,
    #[serde(deserialize_with = "or_default")]
    pub(super) proxy_url: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) extensions: Vec<Extension>,
}

/// A base64 field, decoded when its entry is selected.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Data(Option<String>);

impl Data {
    pub(super) fn is_empty(&self) -> bool {
        self.0.as_deref().unwrap_or_default().is_empty()
    }

    fn text(&self) -> String {
        self.0.as_deref().unwrap_or_default().split_whitespace().collect()
    }

    /// The decoded bytes. The encoding was checked when the entry was selected.
    pub(super) fn bytes(&self) -> Vec<u8> {
        BASE64.decode(self.text().as_bytes()).unwrap_or_default()
    }

    fn check(&self, field: &str) -> Result<(), String> {
        BASE64.decode(self.text().as_bytes()).map(drop).map_err(|e| format!("{field}: not base64: {e}"))
    }
}

/// A named extension of a cluster entry; one of them is configuration for the credential plugin.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Extension {
    #[serde(deserialize_with = "or_default")]
    pub(super) name: String,
    pub(super) extension: Value,
}

/// The credential of a user.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct User {
    #[serde(deserialize_with = "or_default")]
    pub(super) client_certificate: PathBuf,
    pub(super) client_certificate_data: Data,
    #[serde(deserialize_with = "or_default")]
    pub(super) client_key: PathBuf,
    pub(super) client_key_data: Data,
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

/// A credential plugin.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Plugin {
    #[serde(deserialize_with = "or_default")]
    pub(super) api_version: String,
    #[serde(deserialize_with = "or_default")]
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
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: String,
}

/// The predecessor of plugins, removed from kubectl in 1.26.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct AuthProvider {
    pub(super) name: String,
}

/// Reads a file and selects the entries of its current context.
pub(super) fn read(path: &Path) -> Result<Selected, ConnectError> {
    let unreadable = |source| ConnectError::Read { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let wrong = |reason: String| ConnectError::Kubeconfig { path: path.to_owned(), reason };
    // Without a snippet of the file: the lines around a mistake may be secrets.
    let options = options! { emit_comments: false, with_snippet: false };
    let file: File = serde_saphyr::from_str_with_options(&text, options).map_err(|e| wrong(e.to_string()))?;
    let name = file.current_context;
    if name.is_empty() {
        return Err(ConnectError::NoContext { path: path.to_owned() });
    }
    let context: Context = entry(&file.contexts, &name, "context")
        .ok_or_else(|| wrong(format!("current-context: {name:?} is not in contexts")))?
        .map_err(wrong)?;
    let missing =
        |field: &str, value: &str| wrong(format!("context {name:?}: {field}: {value:?} is not in {field}s"));
    let mut cluster: Cluster = entry(&file.clusters, &context.cluster, "cluster")
        .ok_or_else(|| missing("cluster", &context.cluster))?
        .map_err(wrong)?;
    let mut user: User = match context.user.as_str() {
        "" => User::default(),
        selected => {
            entry(&file.users, selected, "user").ok_or_else(|| missing("user", selected))?.map_err(wrong)?
        }
    };
    check_cluster(&cluster).map_err(|e| wrong(format!("cluster {:?}: {e}", context.cluster)))?;
    check_user(&user).map_err(|e| wrong(format!("user {:?}: {e}", context.user)))?;
    let path = std::path::absolute(path).map_err(unreadable)?;
    make_absolute(path.parent().unwrap_or(Path::new("/")), &mut cluster, &mut user);
    Ok(Selected { cluster, user, user_name: context.user })
}

/// Rejects combinations of fields that client-go rejects, because one field would override the other.
fn check_cluster(cluster: &Cluster) -> Result<(), String> {
    let file = !cluster.certificate_authority.as_os_str().is_empty();
    let data = !cluster.certificate_authority_data.is_empty();
    cluster.certificate_authority_data.check("certificate-authority-data")?;
    match (file, data, cluster.insecure_skip_tls_verify) {
        (true, true, _) => Err("certificate-authority and certificate-authority-data are both given".into()),
        (true, _, true) | (_, true, true) => {
            Err("insecure-skip-tls-verify and a certificate-authority are both given".into())
        }
        _ => Ok(()),
    }
}

fn check_user(user: &User) -> Result<(), String> {
    let fields = [
        ("client-certificate", &user.client_certificate, &user.client_certificate_data),
        ("client-key", &user.client_key, &user.client_key_data),
    ];
    for (field, file, data) in fields {
        data.check(&format!("{field}-data"))?;
        if !file.as_os_str().is_empty() && !data.is_empty() {
            return Err(format!("{field} and {field}-data are both given"));
        }
    }
    if !user.token.is_empty() && !user.username.is_empty() {
        return Err("token and username are both given".into());
    }
    let needs_user = !user.as_uid.is_empty() || !user.as_groups.is_empty() || !user.as_user_extra.is_empty();
    if user.impersonate.is_empty() && needs_user {
        return Err("as-uid, as-groups and as-user-extra need as".into());
    }
    Ok(())
}

/// Paths in a kubeconfig are relative to its directory.
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
    // A command without a slash is searched for in PATH.
    if let Some(plugin) = &mut user.exec
        && plugin.command.components().count() > 1
    {
        plugin.command = directory.join(&plugin.command);
    }
}

/// Reads `null`, which kubectl writes for an empty list, as the default value.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
