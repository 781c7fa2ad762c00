//! The process that carries connections.
//!
//! It is not the agent's own, so that connections outlive the agent: one that is killed or replaced leaves this process
//! with what it was told last, as it leaves rules in the kernel. The next agent finds it at its [place](crate::place), and
//! tells it everything anew.

use crate::engine::Engine;
use crate::place::Place;
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

/// The carrier, before it has its place.
#[derive(Debug)]
pub struct Carrier {
    engine: Arc<Engine>,
    /// Agents that are connected.
    agents: Arc<AtomicUsize>,
    /// All who are.
    sessions: Arc<Mutex<Slab<UnixStream>>>,
}

/// For whoever hears signals.
#[derive(Clone, Debug)]
pub struct Handle {
    engine: Arc<Engine>,
    agents: Arc<AtomicUsize>,
}

impl Handle {
    /// Somebody wants it to end. That is for an agent to say if there is one, once nothing leads here any more.
    pub fn end(&self) {
        if self.agents.load(Relaxed) == 0 {
            self.engine.stop(None, Duration::ZERO);
            free_place();
        }
    }
}

impl Carrier {
    /// Starts the engine.
    pub fn start() -> io::Result<Carrier> {
        Ok(Carrier { engine: Engine::start()?, agents: Arc::default(), sessions: Arc::default() })
    }

    /// For whoever hears signals.
    pub fn handle(&self) -> Handle {
        Handle { engine: self.engine.clone(), agents: self.agents.clone() }
    }

    /// Listens to agents until told to leave, and then until the last connection has ended. Fails if another carrier has
    /// the place.
    pub fn run(self) -> io::Result<()> {
        let taken = Place::here()?.take()?;
        let (engine, agents, sessions) = (self.engine.clone(), self.agents.clone(), self.sessions.clone());
        let accept = move || {
            for agent in taken.listener().incoming() {
                // The place is free for another one.
                if engine.is_stopping() {
                    return;
                }
                if let Ok(agent) = agent
                    && let Err(error) = Session::start(agent, &engine, &agents, &sessions)
                {
                    tracing::warn!(%error, "an agent cannot be heard");
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

/// Has the thread that listens look up: it sees that we leave, and gives up the place.
fn free_place() {
    _ = Place::here().and_then(|place| place.reach());
}

/// An agent that is connected, or somebody who asks.
struct Session {
    stream: UnixStream,
    engine: Arc<Engine>,
    agents: Arc<AtomicUsize>,
    sessions: Arc<Mutex<Slab<UnixStream>>>,
    /// Its place among them.
    place: usize,
    /// It has begun to tell everything, so it is an agent.
    is_agent: bool,
    /// While it does: the Services of each family that it has told of.
    told: [Option<HashSet<ServiceName>>; 2],
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_agent {
            self.agents.fetch_sub(1, Relaxed);
        }
        lock(&self.sessions).remove(self.place);
    }
}

impl Session {
    fn start(
        stream: UnixStream,
        engine: &Arc<Engine>,
        agents: &Arc<AtomicUsize>,
        sessions: &Arc<Mutex<Slab<UnixStream>>>,
    ) -> io::Result<()> {
        let place = lock(sessions).insert(stream.try_clone()?);
        let (engine, agents, sessions) = (engine.clone(), agents.clone(), sessions.clone());
        let session =
            Session { stream, engine, agents, sessions, place, is_agent: false, told: [None, None] };
        std::thread::Builder::new().name("agent".into()).spawn(move || session.serve()).map(drop)
    }

    /// Everybody else has to look for another carrier.
    fn dismiss_others(&self) {
        for (_, stream) in lock(&self.sessions).iter().filter(|(place, _)| *place != self.place) {
            _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Does what an agent says until it goes.
    fn serve(mut self) {
        loop {
            let request = match wire::read(&mut self.stream) {
                Ok(Some(request)) => request,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "an agent was not understood");
                    _ = wire::write(&mut self.stream, &Answer::Failed(error.to_string()));
                    return;
                }
            };
            let answer = self.answer(request);
            if wire::write(&mut self.stream, &answer).is_err() {
                return;
            }
            if self.engine.is_stopping() {
                free_place();
                // An agent that waits for our end hears of it.
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
                self.told = [Some(HashSet::new()), Some(HashSet::new())];
            }
            Request::Configure(settings) => engine.configure(&settings),
            Request::Doors { family, addresses, before } => {
                return match engine.doors(family, &addresses, before) {
                    Ok(doors) => Answer::Doors(doors),
                    Err(error) => Answer::Failed(error.to_string()),
                };
            }
            Request::Change { family, services } => {
                for (name, plan) in services {
                    engine.change(&name, family, plan.as_ref());
                    if let Some(told) = &mut self.told[family as usize] {
                        told.insert(name);
                    }
                }
            }
            Request::Settle(family) => self.settle(family),
            Request::Count => {
                let ports = engine.ports();
                return Answer::Counts(ports.iter().map(|p| (p.id.clone(), p.stats.counts())).collect());
            }
            Request::Agents => return Answer::Agents(self.agents.load(Relaxed)),
            Request::Leave { limit, quiet } => {
                tracing::info!(
                    open = engine.open(),
                    "nothing is led here any more; connections that are open may finish"
                );
                engine.stop(limit, quiet);
                self.dismiss_others();
            }
        }
        Answer::Done
    }

    /// The rules of a family are in place. What an agent that told everything did not tell of is gone.
    fn settle(&mut self, family: Family) {
        if let Some(told) = self.told[family as usize].take() {
            self.engine.keep(family, &told);
        }
        self.engine.settle(family);
    }
}
