//! HTTP requests from a host of the lab.

use portway_lab::Namespace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Long enough for a guest.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An HTTP response.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) status: u16,
    headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Page {
    /// Requests `path` from `to`.
    pub(crate) fn get(from: impl AsRef<Namespace>, to: SocketAddr, path: &str) -> Result<Page, String> {
        let text = from.as_ref().run(|| request(to, path)).map_err(|e| format!("GET {to}{path}: {e}"))?;
        Page::parse(&text).ok_or_else(|| format!("GET {to}{path}: not HTTP: {text}"))
    }

    /// The value of a header by its name in lower case; empty if the response has none.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Result<Value, String> {
        serde_json::from_str(&self.body).map_err(|e| format!("{e}: {}", self.body))
    }

    fn parse(text: &str) -> Option<Page> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let mut lines = head.lines();
        let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        let header = |line: &str| line.split_once(": ").map(|(k, v)| (k.to_lowercase(), v.to_owned()));
        Some(Page { status, headers: lines.filter_map(header).collect(), body: body.to_owned() })
    }
}

fn request(to: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: node\r\n\r\n").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text.replacen("HTTP/1.0", "HTTP/1.1", 1))
}
