//! The relay process: it has the listeners and all connections, and carries out the requests of agents.
//!
//! It is a process of its own so that connections survive the agent: after an agent was killed or replaced, the relay
//! goes on with the last plans that it was sent, as the kernel keeps its rules. The next agent connects through the
//! [control socket](crate::control_socket) and sends all plans again.

use crate::control_socket::ControlSocket;
use crate::engine::Engine;
use crate::wire::{self, Answer, Request};
use portway_model::{Family, ServiceName};
use slab::Slab;
use std::collections::HashSet;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A relay that does not listen for agents yet.
#[derive(Debug)]
pub struct Relay {
    engine: Arc<Engine>,
    /// The number of agents that are connected.
    agents: Arc<AtomicUsize>,
    /// All control connections; not all of them are of agents.
    sessions: Arc<Mutex<Slab<UnixStream>>>,
}

/// Shuts a running relay down, for signal handlers.
#[derive(Clone, Debug)]
pub struct Handle {
    engine: Arc<Engine>,
    agents: Arc<AtomicUsize>,
}

impl Handle {
    /// Ends the relay after its last connection, unless an agent is connected: the agent has to change the rules first,
    /// and then asks the relay to shut down.
    pub fn shut_down(&self) {
        if self.agents.load(Relaxed) == 0 {
            self.engine.stop(None, Duration::ZERO);
            release_control_socket();
        }
    }
}

impl Relay {
    /// Starts the worker threads.
    pub fn start() -> io::Result<Relay> {
        Ok(Relay { engine: Engine::start()?, agents: Arc::default(), sessions: Arc::default() })
    }

    /// A handle for signal handlers.
    pub fn handle(&self) -> Handle {
        Handle { engine: self.engine.clone(), agents: self.agents.clone() }
    }

    /// Serves agents until the relay is asked to shut down, then waits for the last connection to end. Fails if another
    /// relay has the control socket.
    pub fn run(self) -> io::Result<()> {
        let bound = ControlSocket::of_this_namespace()?.bind()?;
        let (engine, agents, sessions) = (self.engine.clone(), self.agents.clone(), self.sessions.clone());
        let accept = move || {
            for agent in bound.listener().incoming() {
                // Dropping `bound` frees the control socket for another relay.
                if engine.is_stopping() {
                    return;
                }
                if let Ok(agent) = agent
                    && let Err(error) = Session::start(agent, &engine, &agents, &sessions)
                {
                    tracing::warn!(%error, "cannot start a thread for an agent's connection");
                }
            }
        };
        std::thread::Builder::new().name("agents".into()).spawn(accept)?;
        self.engine.wait();
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes the accepting thread by connecting to it: it sees that the relay stops, and frees the control socket.
fn release_control_socket() {
    _ = ControlSocket::of_this_namespace().and_then(|socket| socket.connect());
}

/// A control connection: of an agent, or of a process that only reads counters or asks the relay to shut down.
struct Session {
    stream: UnixStream,
    engine: Arc<Engine>,
    agents: Arc<AtomicUsize>,
    sessions: Arc<Mutex<Slab<UnixStream>>>,
    /// Its index in `sessions`.
    slot: usize,
    /// It has sent [`Request::Begin`], so it is an agent.
    is_agent: bool,
    /// The Services of each family that it has sent since [`Request::Begin`]; `None` after the first commit of the
    /// family.
    sent: [Option<HashSet<ServiceName>>; 2],
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_agent {
            self.agents.fetch_sub(1, Relaxed);
        }
        lock(&self.sessions).remove(self.slot);
    }
}

impl Session {
    fn start(
        stream: UnixStream,
        engine: &Arc<Engine>,
        agents: &Arc<AtomicUsize>,
        sessions: &Arc<Mutex<Slab<UnixStream>>>,
    ) -> io::Result<()> {
        let slot = lock(sessions).insert(stream.try_clone()?);
        let (engine, agents, sessions) = (engine.clone(), agents.clone(), sessions.clone());
        let session = Session { stream, engine, agents, sessions, slot, is_agent: false, sent: [None, None] };
        std::thread::Builder::new().name("agent".into()).spawn(move || session.serve()).map(drop)
    }

    /// Closes all other control connections; their agents connect to another relay, or start one.
    fn disconnect_other_sessions(&self) {
        for (_, stream) in lock(&self.sessions).iter().filter(|(slot, _)| *slot != self.slot) {
            _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Answers requests until the connection ends.
    fn serve(mut self) {
        loop {
            let request = match wire::read(&mut self.stream) {
                Ok(Some(request)) => request,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot read a request of an agent; closing its connection");
                    _ = wire::write(&mut self.stream, &Answer::Failed(error.to_string()));
                    return;
                }
            };
            let answer = self.answer(request);
            if wire::write(&mut self.stream, &answer).is_err() {
                return;
            }
            if self.engine.is_stopping() {
                release_control_socket();
                // The connection stays open until the relay ends, so that an agent can wait for that.
                return self.engine.wait();
            }
        }
    }

    fn answer(&mut self, request: Request) -> Answer {
        let engine = self.engine.clone();
        match request {
            Request::Hello => {
                return Answer::Welcome {
                    version: wire::VERSION.to_owned(),
                    process: std::process::id(),
                    agents: self.agents.load(Relaxed),
                };
            }
            Request::Begin => {
                if !std::mem::replace(&mut self.is_agent, true) {
                    self.agents.fetch_add(1, Relaxed);
                }
                self.sent = [Some(HashSet::new()), Some(HashSet::new())];
            }
            Request::Configure(settings) => engine.configure(&settings),
            Request::Listeners { family, addresses, previous } => {
                return match engine.open_listeners(family, &addresses, previous) {
                    Ok(ports) => Answer::Listeners(ports),
                    Err(error) => Answer::Failed(error.to_string()),
                };
            }
            Request::Change { family, services } => {
                for (name, plan) in services {
                    engine.change(&name, family, plan.as_ref());
                    if let Some(sent) = &mut self.sent[family as usize] {
                        sent.insert(name);
                    }
                }
                engine.retry_loopback();
            }
            Request::CommitRoutes(family) => self.commit_routes(family),
            Request::Count => {
                let ports = engine.ports();
                return Answer::Counts(ports.iter().map(|p| (p.id.clone(), p.stats.counts())).collect());
            }
            Request::CountLoopback => return Answer::LoopbackCounts(engine.loopback_counts()),
            Request::Agents => return Answer::Agents(self.agents.load(Relaxed)),
            Request::HandOverUdp => engine.hand_over_udp(),
            Request::Leave { limit, quiet } => {
                tracing::info!(open = engine.open(), "shutting down on request; open connections may finish");
                engine.stop(limit, quiet);
                self.disconnect_other_sessions();
            }
        }
        Answer::Done
    }

    /// The rules of a family are committed. After a full resend, Services that were not sent are removed.
    fn commit_routes(&mut self, family: Family) {
        if let Some(sent) = self.sent[family as usize].take() {
            self.engine.keep_only(family, &sent);
        }
        self.engine.commit_routes(family);
    }
}
