//! Probes: many independent attempts to reach an address, and the servers that answered.
//!
//! Each attempt has a socket, and so a source port, of its own. Up to [`AT_ONCE`] run at the same time, so that
//! time-outs do not add up.

use crate::answer::{Protocol, Reply};
use crate::conversation::{Conversation, Failure};
use crate::namespace::Namespace;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The number of attempts at the same time. A thread costs more than an attempt that is answered, above all in a guest.
const AT_ONCE: usize = 4;
/// The stack size of a thread that makes attempts.
const STACK: usize = 128 * 1024;

/// The attempts to make.
#[derive(Clone, Copy, Debug)]
pub struct Probe<'a> {
    /// The sender.
    pub from: &'a Namespace,
    /// The destination.
    pub to: SocketAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The number of attempts.
    pub count: usize,
    /// How long each attempt may take.
    pub timeout: Duration,
}

impl<'a> Probe<'a> {
    /// One attempt, with half a second to succeed.
    pub fn new(from: &'a impl AsRef<Namespace>, protocol: Protocol, to: SocketAddr) -> Probe<'a> {
        Probe { from: from.as_ref(), to, protocol, count: 1, timeout: Duration::from_millis(500) }
    }

    /// One attempt by TCP.
    pub fn tcp(from: &'a impl AsRef<Namespace>, to: SocketAddr) -> Probe<'a> {
        Probe::new(from, Protocol::Tcp, to)
    }

    /// One attempt by UDP.
    pub fn udp(from: &'a impl AsRef<Namespace>, to: SocketAddr) -> Probe<'a> {
        Probe::new(from, Protocol::Udp, to)
    }

    /// The same with this number of attempts.
    pub fn count(self, count: usize) -> Probe<'a> {
        Probe { count, ..self }
    }

    /// The same with this time-out for each attempt.
    pub fn timeout(self, timeout: Duration) -> Probe<'a> {
        Probe { timeout, ..self }
    }

    /// Makes the attempts, and waits for their results.
    pub fn run(&self) -> Outcome {
        let next = AtomicUsize::new(0);
        let outcome = Mutex::new(Outcome::default());
        let work = || {
            let mut of_thread = Outcome::default();
            while next.fetch_add(1, Ordering::Relaxed) < self.count {
                of_thread.add(self.attempt());
            }
            if let Ok(mut all) = outcome.lock() {
                all.merge(of_thread);
            }
        };
        self.from.run(|| {
            thread::scope(|scope| {
                for _ in 1..self.count.min(AT_ONCE) {
                    // If a thread cannot be started, the probe is only slower.
                    thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work).ok();
                }
                work();
            });
        });
        outcome.into_inner().unwrap_or_default()
    }

    fn attempt(&self) -> Result<Reply, Failure> {
        let mut conversation = Conversation::begin_here(self.protocol, self.to, self.timeout)?;
        match conversation.greeting() {
            Some(greeting) => Ok(greeting.clone()),
            None => conversation.ask("probe"),
        }
    }
}

/// The answers of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// The number of answers.
    pub count: usize,
    /// The source addresses that it saw.
    pub sources: BTreeSet<IpAddr>,
}

/// The results of the attempts of a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The answers, by the name of the server.
    pub answers: BTreeMap<String, Answers>,
    /// Attempts that were refused.
    pub refused: usize,
    /// Attempts without an answer.
    pub timed_out: usize,
    /// Attempts that failed because there is no route.
    pub unreachable: usize,
    /// The number of attempts that failed otherwise, by failure.
    pub other: BTreeMap<String, usize>,
}

impl Outcome {
    /// How many attempts were answered.
    pub fn answered(&self) -> usize {
        self.answers.values().map(|a| a.count).sum()
    }

    /// How many attempts there were.
    pub fn attempts(&self) -> usize {
        self.answered()
            + self.refused
            + self.timed_out
            + self.unreachable
            + self.other.values().sum::<usize>()
    }

    /// Whether every attempt was answered, and there was one.
    pub fn all_answered(&self) -> bool {
        self.answered() > 0 && self.answered() == self.attempts()
    }

    /// Whether every attempt was refused, and there was one.
    pub fn all_refused(&self) -> bool {
        self.refused > 0 && self.refused == self.attempts()
    }

    /// Whether every attempt timed out, and there was one.
    pub fn all_timed_out(&self) -> bool {
        self.timed_out > 0 && self.timed_out == self.attempts()
    }

    /// The names of the servers that answered.
    pub fn servers(&self) -> BTreeSet<&str> {
        self.answers.keys().map(String::as_str).collect()
    }

    /// The addresses that the servers saw.
    pub fn sources(&self) -> BTreeSet<IpAddr> {
        self.answers.values().flat_map(|a| a.sources.iter().copied()).collect()
    }

    fn add(&mut self, result: Result<Reply, Failure>) {
        match result {
            Ok(reply) => {
                let answers = self.answers.entry(reply.server).or_default();
                answers.count += 1;
                answers.sources.insert(reply.source.ip());
            }
            Err(Failure::Refused) => self.refused += 1,
            Err(Failure::TimedOut) => self.timed_out += 1,
            Err(Failure::Unreachable) => self.unreachable += 1,
            Err(other) => *self.other.entry(other.to_string()).or_default() += 1,
        }
    }

    fn merge(&mut self, part: Outcome) {
        for (server, answers) in part.answers {
            let all = self.answers.entry(server).or_default();
            all.count += answers.count;
            all.sources.extend(answers.sources);
        }
        self.refused += part.refused;
        self.timed_out += part.timed_out;
        self.unreachable += part.unreachable;
        for (failure, count) in part.other {
            *self.other.entry(failure).or_default() += count;
        }
    }
}

impl fmt::Display for Outcome {
    /// As in `pod1a 12, pod2a 8 (from 10.244.1.1); refused 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.answers.is_empty() {
            let servers: Vec<_> =
                self.answers.iter().map(|(name, a)| format!("{name} {}", a.count)).collect();
            let sources: Vec<_> = self.sources().iter().map(IpAddr::to_string).collect();
            parts.push(format!("{} (from {})", servers.join(", "), sources.join(", ")));
        }
        let failures =
            [("refused", self.refused), ("timed out", self.timed_out), ("unreachable", self.unreachable)];
        let other = self.other.iter().map(|(failure, count)| (failure.as_str(), *count));
        for (failure, count) in failures.into_iter().chain(other).filter(|(_, count)| *count > 0) {
            parts.push(format!("{failure} {count}"));
        }
        f.write_str(&if parts.is_empty() { "no attempts".into() } else { parts.join("; ") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_merged_and_printed() {
        let reply = |server: &str, source: &str| {
            Ok(Reply { server: server.into(), source: source.parse().unwrap(), text: String::new() })
        };
        let mut outcome = Outcome::default();
        assert_eq!(outcome.to_string(), "no attempts");
        outcome.add(reply("pod1a", "10.0.0.1:1"));
        outcome.add(reply("pod1a", "10.0.0.2:1"));
        outcome.add(reply("pod2a", "10.0.0.1:2"));
        outcome.add(Err(Failure::Refused));
        outcome.add(Err(Failure::Reset));
        assert_eq!(outcome.to_string(), "pod1a 2, pod2a 1 (from 10.0.0.1, 10.0.0.2); refused 1; reset 1");
        let mut twice = outcome.clone();
        twice.merge(outcome.clone());
        assert_eq!((twice.answered(), twice.attempts()), (6, 10));
        assert!(!outcome.all_answered() && !outcome.all_refused() && !outcome.all_timed_out());
        assert!(!Outcome::default().all_answered());
    }
}
