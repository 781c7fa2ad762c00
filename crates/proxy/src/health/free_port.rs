//! A free port for tests.

/// A TCP port of 127.0.0.1 that is free at the moment.
pub(super) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
