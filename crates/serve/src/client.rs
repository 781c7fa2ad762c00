//! A minimal HTTP client, for commands that read a page of a running process.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A response.
#[derive(Debug)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    headers: String,
    /// The body; invalid UTF-8 is replaced.
    pub body: String,
}

impl Reply {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    fn parse(text: &str) -> Option<Reply> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let (status, headers) = head.split_once("\r\n")?;
        let status = status.split(' ').nth(1)?.parse().ok()?;
        Some(Reply { status, headers: headers.replace("\r\n", "\n"), body: body.to_owned() })
    }
}

/// Requests a page, with a timeout.
pub async fn get(address: SocketAddr, path: &str) -> io::Result<Reply> {
    timeout(TIMEOUT, get_without_timeout(address, path))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Requests a page, without a timeout.
pub(crate) async fn get_without_timeout(address: SocketAddr, path: &str) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Reply::parse(&String::from_utf8_lossy(&answer))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an HTTP response"))
}
