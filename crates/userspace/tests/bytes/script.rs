//! What happens on one connection: drawn from a seed and the connection's number, so that both ends know it and a
//! failing one can be played again.
//!
//! A script only contains what can be demanded of the other side: whoever resets does so while at least one direction
//! has not ended, and the other side keeps its own direction open where nothing else would tell it of the reset.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Duration;

/// What the client says first: the seed and the number. It is a part of the client's direction.
pub(crate) const HEADER: usize = 16;
/// The most that is said in one direction after that.
pub(crate) const LONGEST: usize = 6 << 20;
/// What does not fit into the buffers of the kernel on this way, as a rule.
const LONG: usize = 3 << 20;

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// One direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// All bytes of it.
    pub(crate) length: usize,
    /// What is written at a time, about.
    pub(crate) writes: usize,
    /// What is read at a time, at most.
    pub(crate) reads: usize,
    /// The sender pauses when it has said so much,
    pub(crate) sender_pauses: Option<usize>,
    /// and the receiver when it has heard so much.
    pub(crate) receiver_pauses: Option<usize>,
}

/// Who says something first; the client's header is said anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The client says all and ends its direction; only then the server begins.
    Client,
    /// The server does, and only then the client goes on.
    Server,
    /// Both at once.
    Both,
}

/// A reset in the middle of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reset {
    pub(crate) by: Role,
    /// When this much was said,
    pub(crate) sent: usize,
    /// and this much was heard, of which no more is read;
    pub(crate) heard: usize,
    /// after one's own direction was ended. The other one never ends its own then.
    pub(crate) after_end: bool,
}

impl Reset {
    /// The server may not even hear who it was.
    fn is_abrupt(&self) -> bool {
        self.by == Role::Client && self.heard == 0
    }
}

/// All of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    pub(crate) seed: u64,
    pub(crate) number: u64,
    pub(crate) up: Part,
    pub(crate) down: Part,
    pub(crate) order: Order,
    pub(crate) reset: Option<Reset>,
    pub(crate) pause: Duration,
}

impl Script {
    pub(crate) fn draw(seed: u64, number: u64) -> Script {
        let rng = &mut StdRng::seed_from_u64(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let (up, down) = (part(rng, HEADER), part(rng, 0));
        let order = [Order::Client, Order::Server, Order::Both, Order::Both][rng.random_range(0..4)];
        let mut script = Script { seed, number, up, down, order, reset: None, pause: Duration::ZERO };
        script.pause = if script.is_long() {
            // Everything on the way fills up meanwhile.
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
        let (own, other) = (self.sent_by(by).length, self.heard_by(by).length);
        // The server has to hear who it is; the client has said so in any case.
        let (said, known, first) =
            if by == Role::Client { (HEADER, 0, Order::Client) } else { (0, HEADER, Order::Server) };
        let heard = if rng.random_ratio(1, 8) { known } else { rng.random_range(known..=other) };
        let after_end = rng.random();
        let sent = if after_end { own } else { rng.random_range(said..=own) };
        // Nobody waits for an end that does not come.
        self.order = if after_end && rng.random() { first } else { Order::Both };
        self.reset = Some(Reset { by, sent, heard, after_end });
    }

    /// Whether one direction is longer than the buffers on its way.
    pub(crate) fn is_long(&self) -> bool {
        self.up.length.max(self.down.length) > LONG
    }

    /// The direction that an end speaks in.
    pub(crate) fn sent_by(&self, role: Role) -> Part {
        if role == Role::Client { self.up } else { self.down }
    }

    /// The one that it listens to.
    pub(crate) fn heard_by(&self, role: Role) -> Part {
        if role == Role::Client { self.down } else { self.up }
    }

    /// The directions that are judged in any case.
    pub(crate) fn certain(&self) -> u64 {
        if self.reset.is_some_and(|reset| reset.is_abrupt()) { 1 } else { 2 }
    }

    pub(crate) fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&self.seed.to_be_bytes());
        header[8..].copy_from_slice(&self.number.to_be_bytes());
        header
    }

    /// The other way round.
    pub(crate) fn of_header(header: &[u8; HEADER]) -> Script {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        Script::draw(number(&header[..8]), number(&header[8..]))
    }
}

fn part(rng: &mut StdRng, header: usize) -> Part {
    let length = header + size(rng);
    // Small pieces of what is long would take long, too.
    let least = (length / 128).max(1);
    let writes = least.max([1, 7, 512, 1460, 4096, 16 << 10, 64 << 10, 1 << 20][rng.random_range(0..8)]);
    let reads = least.max([1, 100, 4096, 64 << 10, 256 << 10][rng.random_range(0..5)]).min(256 << 10);
    if length > LONG && rng.random_ratio(3, 4) {
        // The receiver lets the sender get ahead, so that there is a place where no more can be written.
        let pauses = Some(rng.random_range(0..64 << 10));
        return Part { length, writes, reads, sender_pauses: None, receiver_pauses: pauses };
    }
    let mut pauses = || rng.random_ratio(1, 50).then(|| rng.random_range(0..=length));
    Part { length, writes, reads, sender_pauses: pauses(), receiver_pauses: pauses() }
}

/// Most are small, some are about as long as something in the kernel or the engine can hold, a few are long.
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
