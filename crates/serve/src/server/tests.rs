//! Tests of `server`.

use super::*;
use crate::client::get;
use crate::listen::{DualStack, listen};
use axum::routing::any;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Longer than the header timeout, and shorter than the lifetime of a connection.
const LONG: Duration = Duration::from_secs(3600);
/// The time limit of tests with the real clock, which end long before.
const PATIENCE: Duration = Duration::from_secs(60);

fn start(limits: Limits) -> Server {
    let listener = listen("127.0.0.1:0".parse().expect("an address"), DualStack::Yes).expect("a port");
    let router = Router::new().route("/", any(|| std::future::ready("here")));
    Server::start(listener, router, limits).expect("a server")
}

fn limits() -> Limits {
    Limits { headers: Duration::from_secs(10), lifetime: LONG * 24, connections: 8 }
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.address()).await.expect("connects")
}

/// Whether the server closes a connection within a time.
async fn is_closed(stream: &mut TcpStream, within: Duration) -> bool {
    let mut rest = Vec::new();
    // A reset closes the connection too.
    timeout(within, stream.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_sends_its_headers_is_disconnected() {
    let server = start(limits());
    let mut silent = connect(&server).await;
    let mut slow = connect(&server).await;
    slow.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ").await.expect("writes");
    assert!(is_closed(&mut silent, LONG).await, "a silent client is still connected");
    assert!(is_closed(&mut slow, LONG).await, "a client that does not finish its headers is still connected");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_idle_after_an_answer_is_closed() {
    let server = start(limits());
    let mut idle = connect(&server).await;
    idle.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("writes");
    assert!(is_closed(&mut idle, LONG).await, "an idle client is still connected");
}

#[tokio::test]
async fn a_new_connection_above_the_limit_is_answered() {
    let server = start(Limits { headers: LONG, ..limits() });
    let mut silent = Vec::new();
    for _ in 0..3 * limits().connections {
        silent.push(connect(&server).await);
        // Lets the server accept it before the next one is opened.
        tokio::task::yield_now().await;
    }
    assert_eq!(get(server.address(), "/").await.expect("an answer").body, "here");
    // Only as many of the oldest connections were closed as necessary.
    assert!(is_closed(&mut silent[0], PATIENCE).await, "the oldest connection is still open");
    let newest = silent.last_mut().expect("a connection");
    newest.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.expect("writes");
    let mut reply = String::new();
    newest.read_to_string(&mut reply).await.expect("an answer");
    assert!(reply.ends_with("here"), "{reply}");
}

#[tokio::test]
async fn the_port_is_free_after_close_and_open_connections_end() {
    let server = start(limits());
    let address = server.address();
    let mut kept = connect(&server).await;
    kept.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("writes");
    kept.readable().await.expect("an answer");
    server.close().await;
    assert!(is_closed(&mut kept, PATIENCE).await);
    listen(address, DualStack::Yes).expect("the port is free");
}

#[tokio::test]
async fn servers_that_share_descriptors_answer_when_these_are_used_up() {
    let listen = || listen("127.0.0.1:0".parse().expect("an address"), DualStack::Yes).expect("a port");
    let router = || Router::new().route("/", any(|| std::future::ready("here")));
    let shared = Arc::new(Semaphore::new(4));
    let limits = Limits { headers: LONG, ..limits() };
    let start = || Server::start_with(listen(), router(), limits, shared.clone()).expect("a server");
    let (server, other) = (start(), start());
    let mut silent = Vec::new();
    for _ in 0..6 {
        silent.push(connect(&server).await);
        tokio::task::yield_now().await;
    }
    assert_eq!(get(server.address(), "/").await.expect("an answer").body, "here");
    assert!(is_closed(&mut silent[0], PATIENCE).await, "the oldest connection is still open");
    // The other server has no connection to close, so the new one is closed.
    silent.push(connect(&server).await);
    let used_up = async || {
        while shared.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, used_up()).await.expect("the connection is accepted");
    let mut refused = connect(&other).await;
    assert!(is_closed(&mut refused, PATIENCE).await);
    drop((silent, server));
    let attempt = async || while get(other.address(), "/").await.is_err() {};
    timeout(PATIENCE, attempt()).await.expect("an answer");
}
