//! A kubeconfig whose server is reached through a relay.

use serde_json::Value;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

/// The fields of clusters and users that name files, relative to the kubeconfig.
const FILES: [&str; 4] = ["certificate-authority", "client-certificate", "client-key", "tokenFile"];

/// A kubeconfig, and the address of the server of its current context.
pub(super) struct Kubeconfig {
    content: Value,
    /// The position of the current cluster.
    cluster: usize,
    /// `http` or `https`.
    scheme: String,
    /// The server's name in its certificate.
    name: String,
    pub(super) server: SocketAddr,
}

impl Kubeconfig {
    pub(super) fn read(path: &Path) -> Result<Kubeconfig, String> {
        let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
        let mut content: Value = serde_saphyr::from_str(&text).map_err(|e| e.to_string())?;
        let directory = path.canonicalize().map_err(|e| e.to_string())?;
        make_absolute(&mut content, directory.parent().unwrap_or(Path::new("/")));
        let context = entry(&content, "contexts", &content["current-context"])
            .ok_or("the current context does not exist")?;
        let cluster = &content["contexts"][context]["context"]["cluster"];
        let cluster = entry(&content, "clusters", cluster).ok_or("the context's cluster does not exist")?;
        let url = content["clusters"][cluster]["cluster"]["server"].as_str().unwrap_or_default();
        let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("server: {url:?} is not a URL"))?;
        let authority = rest.split('/').next().unwrap_or_default();
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let port = match scheme {
            _ if has_port => "",
            "http" => ":80",
            _ => ":443",
        };
        let with_port = format!("{authority}{port}");
        let mut addresses = with_port.to_socket_addrs().map_err(|e| format!("{with_port}: {e}"))?;
        let server = addresses.next().ok_or_else(|| format!("{with_port} has no address"))?;
        let name = with_port.rsplit_once(':').map_or("", |(host, _)| host);
        let (scheme, name) = (scheme.to_owned(), name.trim_matches(['[', ']']).to_owned());
        Ok(Kubeconfig { content, cluster, scheme, name, server })
    }

    /// The same with another address of the server; its certificate is checked for the name that it has.
    pub(super) fn with_address(&self, address: SocketAddr) -> String {
        let mut content = self.content.clone();
        let cluster = &mut content["clusters"][self.cluster]["cluster"];
        cluster["server"] = format!("{}://{address}", self.scheme).into();
        if self.scheme == "https" && cluster["tls-server-name"].is_null() {
            cluster["tls-server-name"] = self.name.clone().into();
        }
        // JSON is valid YAML.
        content.to_string()
    }
}

/// The position of the entry with a name.
fn entry(content: &Value, list: &str, name: &Value) -> Option<usize> {
    content[list].as_array()?.iter().position(|entry| entry["name"] == *name)
}

fn make_absolute(content: &mut Value, directory: &Path) {
    for (list, field) in [("clusters", "cluster"), ("users", "user")] {
        for entry in content[list].as_array_mut().into_iter().flatten() {
            for name in FILES {
                if let Some(file) = entry[field][name].as_str() {
                    // An absolute path replaces the directory.
                    entry[field][name] = directory.join(file).display().to_string().into();
                }
            }
        }
    }
}
