//! The part of HTTP/1.1 that API clients use: requests one after the other, replies in one piece or in chunks.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// A request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    accept: String,
    pub(super) content_type: String,
    pub(super) body: Vec<u8>,
}

impl Request {
    pub(super) fn path(&self) -> String {
        self.target.split('?').next().unwrap_or_default().to_owned()
    }

    /// A parameter of the query, decoded.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        let query = self.target.split_once('?')?.1;
        let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
        Some(decode(value))
    }

    /// The body as JSON; null if it is none.
    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub(super) fn accepts_protobuf(&self) -> bool {
        self.accept.contains("application/vnd.kubernetes.protobuf")
    }
}

/// Undoes percent encoding.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail
            .get(..2)
            .and_then(|h| std::str::from_utf8(h).ok())
            .and_then(|h| u8::from_str_radix(h, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = tail;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Connection {
        Connection { stream: BufReader::new(stream) }
    }

    /// Reads the next request; none if the client has closed the connection.
    pub(super) fn read(&mut self) -> io::Result<Option<Request>> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (mut accept, mut content_type, mut length) = (String::new(), String::new(), 0);
        loop {
            let mut header = String::new();
            if self.stream.read_line(&mut header)? == 0 {
                return Ok(None);
            }
            let Some((name, value)) = header.trim_end().split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "accept" => accept = value.trim().to_owned(),
                "content-type" => content_type = value.trim().to_owned(),
                "content-length" => length = value.trim().parse().unwrap_or(0),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(Some(Request { method, target, accept, content_type, body }))
    }

    /// Closes the connection.
    pub(super) fn close(&self) {
        self.stream.get_ref().shutdown(std::net::Shutdown::Both).ok();
    }

    /// Sends a reply in one piece.
    pub(super) fn reply(&mut self, status: u16, kind: &str, body: &[u8]) -> io::Result<()> {
        let head = format!(
            "HTTP/1.1 {status} Lab\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let stream = self.stream.get_mut();
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)
    }

    /// Begins a reply in chunks.
    pub(super) fn stream(&mut self, kind: &str) -> io::Result<Chunks<'_>> {
        let head = format!("HTTP/1.1 200 Lab\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n");
        let stream = self.stream.get_mut();
        stream.write_all(head.as_bytes())?;
        Ok(Chunks { stream })
    }
}

/// A reply that is sent in chunks.
#[derive(Debug)]
pub(super) struct Chunks<'a> {
    stream: &'a mut TcpStream,
}

impl Chunks<'_> {
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        self.stream.write_all(&chunk)
    }

    pub(super) fn finish(self) -> io::Result<()> {
        self.stream.write_all(b"0\r\n\r\n")
    }
}
