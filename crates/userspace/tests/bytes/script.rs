//! The script of one connection: drawn from a seed and the connection's number, so that both sides know it and a
//! failing one can be repeated.
//!
//! A script requires nothing that TCP does not guarantee: a side resets while at least one direction has not ended, and
//! the other side does not end its own direction if it would not see the reset otherwise.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// The length of the client's header: the seed and the number. It is a part of the client's direction.
pub(crate) const HEADER: usize = 16;
/// The maximum number of bytes of one direction after the header.
pub(crate) const LONGEST: usize = 6 << 20;
/// More bytes than the kernel's buffers along the path hold, as a rule.
const LONG: usize = 3 << 20;

/// One side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// One direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direction {
    /// The number of bytes.
    pub(crate) length: usize,
    /// The size of a write.
    pub(crate) writes: usize,
    /// The largest size of a read.
    pub(crate) reads: usize,
    /// The sender pauses after so many bytes.
    pub(crate) sender_pauses: Option<usize>,
    /// The receiver pauses after so many bytes.
    pub(crate) receiver_pauses: Option<usize>,
}

/// Which side sends first; the client's header is sent in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The client sends everything and ends its direction; only then the server begins.
    Client,
    /// The server sends everything and ends its direction; only then the client continues.
    Server,
    /// Both at once.
    Both,
}

/// A reset in the middle of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reset {
    pub(crate) by: Role,
    /// After so many bytes were sent,
    pub(crate) sent: usize,
    /// and so many were received;
    pub(crate) received: usize,
    /// and, if true, after this side has ended its direction. The other side then never ends its direction.
    pub(crate) after_end: bool,
}

impl Reset {
    /// The header may not reach the server before the reset.
    fn is_abrupt(&self) -> bool {
        self.by == Role::Client && self.received == 0
    }
}

/// The script of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    pub(crate) seed: u64,
    pub(crate) number: u64,
    pub(crate) up: Direction,
    pub(crate) down: Direction,
    pub(crate) order: Order,
    pub(crate) reset: Option<Reset>,
    pub(crate) pause: Duration,
}

impl Script {
    pub(crate) fn draw(seed: u64, number: u64) -> Script {
        let rng = &mut StdRng::seed_from_u64(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let (up, down) = (direction(rng, HEADER), direction(rng, 0));
        let order = [Order::Client, Order::Server, Order::Both, Order::Both][rng.random_range(0..4)];
        let mut script = Script { seed, number, up, down, order, reset: None, pause: Duration::ZERO };
        script.pause = if script.is_long() {
            // Long enough for all buffers along the path to fill.
            Duration::from_millis(30)
        } else {
            Duration::from_micros(rng.random_range(1..1000))
        };
        if rng.random_ratio(1, 5) {
            script.add_reset(rng);
        }
        script
    }

    fn add_reset(&mut self, rng: &mut StdRng) {
        let by = if rng.random() { Role::Client } else { Role::Server };
        let (own, other) = (self.sent_by(by).length, self.received_by(by).length);
        // The server needs the header to know the script; the client has sent it in any case.
        let (least_sent, least_received, first) =
            if by == Role::Client { (HEADER, 0, Order::Client) } else { (0, HEADER, Order::Server) };
        let received =
            if rng.random_ratio(1, 8) { least_received } else { rng.random_range(least_received..=other) };
        let after_end = rng.random();
        let sent = if after_end { own } else { rng.random_range(least_sent..=own) };
        // Neither side may wait for the end of a direction that never ends.
        self.order = if after_end && rng.random() { first } else { Order::Both };
        self.reset = Some(Reset { by, sent, received, after_end });
    }

    /// Whether one direction is longer than the buffers along its path.
    pub(crate) fn is_long(&self) -> bool {
        self.up.length.max(self.down.length) > LONG
    }

    /// The direction that a side sends.
    pub(crate) fn sent_by(&self, role: Role) -> Direction {
        if role == Role::Client { self.up } else { self.down }
    }

    /// The direction that a side receives.
    pub(crate) fn received_by(&self, role: Role) -> Direction {
        if role == Role::Client { self.down } else { self.up }
    }

    /// How many directions are checked even if the header does not arrive before a reset.
    pub(crate) fn guaranteed_checks(&self) -> u64 {
        if self.reset.is_some_and(|reset| reset.is_abrupt()) { 1 } else { 2 }
    }

    pub(crate) fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&self.seed.to_be_bytes());
        header[8..].copy_from_slice(&self.number.to_be_bytes());
        header
    }

    /// The script that a header names.
    pub(crate) fn of_header(header: &[u8; HEADER]) -> Script {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        Script::draw(number(&header[..8]), number(&header[8..]))
    }
}

fn direction(rng: &mut StdRng, header: usize) -> Direction {
    let length = header + size(rng);
    // Small pieces of a long direction would take too long.
    let least = (length / 128).max(1);
    let writes = least.max([1, 7, 512, 1460, 4096, 16 << 10, 64 << 10, 1 << 20][rng.random_range(0..8)]);
    let reads = least.max([1, 100, 4096, 64 << 10, 256 << 10][rng.random_range(0..5)]).min(256 << 10);
    if length > LONG && rng.random_ratio(3, 4) {
        // The receiver pauses until the sender's writes block.
        let pauses = Some(rng.random_range(0..64 << 10));
        return Direction { length, writes, reads, sender_pauses: None, receiver_pauses: pauses };
    }
    let mut pauses = || rng.random_ratio(1, 50).then(|| rng.random_range(0..=length));
    Direction { length, writes, reads, sender_pauses: pauses(), receiver_pauses: pauses() }
}

/// Most are small, some are close to the size of a buffer of the kernel or the engine, a few are long.
fn size(rng: &mut StdRng) -> usize {
    let near = |rng: &mut StdRng, limit: usize| limit - 3 + rng.random_range(0..7);
    match rng.random_range(0..1000) {
        0..150 => 0,
        150..250 => 1,
        250..735 => rng.random_range(2..2048),
        735..885 => near(rng, 4 << 10),
        885..935 => near(rng, 16 << 10),
        935..985 => near(rng, 64 << 10),
        985..992 => near(rng, 512 << 10),
        992..999 => rng.random_range(64 << 10..1 << 20),
        _ => rng.random_range(LONG..LONGEST),
    }
}
