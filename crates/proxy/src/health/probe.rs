//! A probe for tests: one HTTP request over a socket, without a client library.

use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What came back.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    headers: String,
    pub(super) body: String,
}

impl Reply {
    /// A header's value.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// Asks once; `None` if nobody listens.
pub(super) async fn get(address: SocketAddr, path: &str) -> Option<Reply> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.ok()?;
    let (head, body) = reply.split_once("\r\n\r\n")?;
    let (status, headers) = head.split_once("\r\n")?;
    let status = status.split(' ').nth(1)?.parse().ok()?;
    Some(Reply { status, headers: headers.replace("\r\n", "\n"), body: body.to_owned() })
}

/// A port of 127.0.0.1 that nobody has at the moment.
pub(super) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
