//! The process that carries connections.
//!
//! It is not the agent's own, so that connections outlive the agent: one that is killed or replaced leaves this process
//! with what it was told last, as it leaves rules in the kernel. The next agent finds it by its name, which is one of the
//! network namespace, and tells it everything anew.

use crate::engine::Engine;
use crate::wire::{self, Answer, Request};
use rustix::net::sockopt::socket_peercred;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// The name that agents find it by.
pub(crate) fn name() -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name("portway-carrier")
}

/// The carrier, before it has a name.
#[derive(Debug)]
pub struct Carrier {
    engine: Arc<Engine>,
    /// Agents that are connected.
    agents: Arc<AtomicUsize>,
}

/// For whoever hears signals.
#[derive(Clone, Debug)]
pub struct Handle {
    engine: Arc<Engine>,
    agents: Arc<AtomicUsize>,
}

impl Handle {
    /// Somebody wants it to end. That is for an agent to say if there is one, once nothing leads here any more.
    pub fn end(&self, limit: Duration) {
        if self.agents.load(Relaxed) == 0 {
            self.engine.stop(limit);
        }
    }
}

impl Carrier {
    /// Starts the engine.
    pub fn start() -> io::Result<Carrier> {
        Ok(Carrier { engine: Engine::start()?, agents: Arc::default() })
    }

    /// For whoever hears signals.
    pub fn handle(&self) -> Handle {
        Handle { engine: self.engine.clone(), agents: self.agents.clone() }
    }

    /// Listens to agents until told to leave, and then until the last connection has ended. Fails if another carrier has
    /// the name.
    pub fn run(self) -> io::Result<()> {
        let listener = UnixListener::bind_addr(&name()?)?;
        let (engine, agents) = (self.engine.clone(), self.agents.clone());
        std::thread::Builder::new()
            .name("agents".into())
            .spawn(move || accept(listener, &engine, &agents))?;
        self.engine.wait();
        Ok(())
    }
}

/// Takes on agents, until one says that it is time to leave: then the name is free for another carrier.
fn accept(listener: UnixListener, engine: &Arc<Engine>, agents: &Arc<AtomicUsize>) {
    let listener = Arc::new(listener);
    for agent in listener.incoming() {
        if engine.is_stopping() {
            return;
        }
        let Ok(agent) = agent else { continue };
        if !may_command(&agent) {
            tracing::warn!("somebody who is neither root nor our own user wants to command; refused");
            continue;
        }
        let (engine, agents) = (engine.clone(), agents.clone());
        agents.fetch_add(1, Relaxed);
        let counted = agents.clone();
        let spawned = std::thread::Builder::new().name("agent".into()).spawn(move || {
            serve(agent, &engine);
            agents.fetch_sub(1, Relaxed);
        });
        if spawned.is_err() {
            counted.fetch_sub(1, Relaxed);
        }
    }
}

fn may_command(agent: &UnixStream) -> bool {
    socket_peercred(agent).is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

/// Does what an agent says until it goes.
fn serve(mut agent: UnixStream, engine: &Engine) {
    loop {
        let request = match wire::read(&mut agent) {
            Ok(Some(request)) => request,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "an agent was not understood");
                _ = wire::write(&mut agent, &Answer::Failed(error.to_string()));
                return;
            }
        };
        let answer = answer(engine, request);
        if wire::write(&mut agent, &answer).is_err() {
            return;
        }
        if engine.is_stopping() {
            free_name();
            // The agent that waits for our end hears of it.
            return engine.wait();
        }
    }
}

/// Has the thread that listens look up: it sees that we leave, and closes the door behind it.
fn free_name() {
    _ = name().and_then(|name| UnixStream::connect_addr(&name));
}

fn answer(engine: &Engine, request: Request) -> Answer {
    match request {
        Request::Hello => {
            return Answer::Welcome { version: wire::VERSION.to_owned(), process: std::process::id() };
        }
        Request::Begin => engine.begin(),
        Request::Configure(settings) => engine.configure(&settings),
        Request::Doors { family, addresses } => {
            return match engine.doors(family, &addresses) {
                Ok(doors) => Answer::Doors(doors),
                Err(error) => Answer::Failed(error.to_string()),
            };
        }
        Request::Change { family, services } => {
            for (name, plan) in services {
                engine.change(&name, family, plan.as_ref());
            }
        }
        Request::Settle(family) => engine.settle(family),
        Request::Count => {
            let ports = engine.ports();
            return Answer::Counts(ports.iter().map(|p| (p.id.clone(), p.stats.counts())).collect());
        }
        Request::Leave { limit } => {
            let open = engine.open();
            tracing::info!(open, "nothing is led here any more; connections that are open may finish");
            engine.stop(limit);
        }
    }
    Answer::Done
}
