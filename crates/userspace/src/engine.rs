//! The worker threads of the relay, and the state that they share.

use crate::balance::Port;
use crate::clock::Moment;
use crate::limits::{self, Limits};
use crate::listeners::{self, Listener};
use crate::loopback::{self, Loopback, LoopbackCounts};
use crate::redirect::ListenerPorts;
use crate::routes::Routes;
use crate::tcp::Worker;
use crate::udp;
use portway_dataplane::UserspaceSettings;
use portway_model::{Family, Protocol, ServiceName, ServicePlan};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// More threads showed no benefit in measurements: the kernel does most of the work.
const THREADS: usize = 8;
/// The stack size of a worker thread; the bytes of connections are not on the stack.
const STACK: usize = 128 * 1024;
/// How long listeners stay open at least after no rule points to them, for packets that are on their way.
const MIN_QUIET: Duration = Duration::from_millis(300);
/// How long the agent waits at most until the kernel has taken over the UDP flows.
const HAND_OVER: Duration = Duration::from_secs(3);

/// The state that all threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    routes: RwLock<Routes>,
    settings: RwLock<UserspaceSettings>,
    listeners: RwLock<Vec<Arc<Listener>>>,
    stop: RwLock<Option<Stop>>,
    /// Asks the UDP worker to hand its flows over to the kernel; it drops the sender afterwards.
    hand_over: Mutex<Option<Sender<()>>>,
    pub(crate) limits: Arc<Limits>,
    /// The number of bytes in pipes.
    pub(crate) waiting: Arc<AtomicUsize>,
    /// The number of connections accepted at loopback addresses so far.
    pub(crate) accepted_at_loopback: AtomicU64,
    /// The number of running worker threads.
    running: Mutex<usize>,
    /// Notified when a worker thread has ended.
    ended: Condvar,
}

/// When the engine stops.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    /// Listeners stay open until then, even if no connection is open.
    pub(crate) quiet: Moment,
    /// Connections that are still open are reset then.
    pub(crate) deadline: Moment,
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn routes(&self) -> RwLockReadGuard<'_, Routes> {
        read(&self.routes)
    }

    pub(crate) fn settings(&self) -> RwLockReadGuard<'_, UserspaceSettings> {
        read(&self.settings)
    }

    pub(crate) fn listeners(&self, protocol: Protocol) -> Vec<Arc<Listener>> {
        read(&self.listeners).iter().filter(|listener| listener.protocol == protocol).cloned().collect()
    }

    pub(crate) fn stop(&self) -> Option<Stop> {
        *read(&self.stop)
    }

    pub(crate) fn take_hand_over(&self) -> Option<Sender<()>> {
        lock(&self.hand_over).take()
    }
}

/// The engine. It stops when the last reference is dropped, as after [`Engine::stop`].
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    wakers: Vec<Arc<OwnedFd>>,
    listeners: Mutex<ListenerState>,
    loopback: Mutex<Loopback>,
}

#[derive(Debug, Default)]
struct ListenerState {
    /// The listeners of each family.
    ports: [Option<ListenerPorts>; 2],
    /// Listeners that no rule points to after the next commit of their family; they are closed then.
    obsolete: Vec<Arc<Listener>>,
}

impl Engine {
    /// Starts the threads in this thread's network namespace, with all file descriptors that the process may have.
    pub fn start() -> io::Result<Arc<Engine>> {
        Engine::start_with(limits::raise())
    }

    /// Starts the threads with a given number of file descriptors.
    pub fn start_with(descriptors: u64) -> io::Result<Arc<Engine>> {
        let workers = std::thread::available_parallelism().map_or(1, |n| n.get()).min(THREADS);
        let settings = UserspaceSettings::default();
        let limits = Arc::new(Limits::new(descriptors, workers));
        tracing::debug!(descriptors, connections = limits.connections(), workers, "limits");
        let shared = Arc::new(Shared {
            routes: RwLock::default(),
            settings: RwLock::new(settings),
            listeners: RwLock::default(),
            stop: RwLock::default(),
            hand_over: Mutex::default(),
            limits,
            waiting: Arc::default(),
            accepted_at_loopback: AtomicU64::new(0),
            running: Mutex::new(0),
            ended: Condvar::new(),
        });
        let mut wakers = Vec::new();
        for number in 0..workers {
            let waker = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
            let worker = Worker::new(shared.clone(), waker.clone())?;
            spawn(&shared, format!("tcp-{number}"), move || worker.run())?;
            wakers.push(waker);
        }
        let waker = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let worker = udp::Worker::new(shared.clone(), waker.clone())?;
        spawn(&shared, "udp".to_owned(), move || worker.run())?;
        wakers.push(waker);
        Ok(Arc::new(Engine { shared, wakers, listeners: Mutex::default(), loopback: Mutex::default() }))
    }

    fn wake(&self) {
        for waker in &self.wakers {
            _ = rustix::io::write(waker, &1u64.to_ne_bytes());
        }
    }

    /// The listeners of a family: the present ones if they are at one of `addresses`, else new ones at the first of
    /// these addresses that can be bound, if possible at the `previous` ports. None if no address is of that family.
    pub fn open_listeners(
        &self,
        family: Family,
        addresses: &[IpAddr],
        previous: Option<ListenerPorts>,
    ) -> io::Result<Option<ListenerPorts>> {
        let mut state = lock(&self.listeners);
        if let Some(ports) = state.ports[family as usize].filter(|ports| addresses.contains(&ports.address)) {
            return Ok(Some(ports));
        }
        let mut last_error = None;
        for ip in addresses.iter().filter(|ip| Family::of(**ip) == family) {
            match listeners::open(*ip, previous) {
                Ok((ports, opened)) => {
                    state.ports[family as usize] = Some(ports);
                    let mut all = self.write(&self.shared.listeners);
                    let is_old = |l: &&Arc<Listener>| {
                        let ip = l.address.ip();
                        Family::of(ip) == family && !ip.is_loopback()
                    };
                    state.obsolete.extend(all.iter().filter(is_old).cloned());
                    all.extend(opened);
                    drop(all);
                    self.wake();
                    return Ok(Some(ports));
                }
                Err(error) => last_error = Some(error),
            }
        }
        last_error.map_or(Ok(None), Err)
    }

    fn write<'l, T>(&self, lock: &'l RwLock<T>) -> std::sync::RwLockWriteGuard<'l, T> {
        lock.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the settings.
    pub fn configure(&self, settings: &UserspaceSettings) {
        if *self.shared.settings() != *settings {
            *self.write(&self.shared.settings) = settings.clone();
            self.update_loopback(|loopback, changed| {
                if !settings.localhost_node_ports {
                    return loopback.close(changed);
                }
                let routes = self.shared.routes();
                for (name, family) in routes.services() {
                    loopback.change(name, *family, routes.node_ports(name, *family), changed);
                }
            });
        }
    }

    /// Changes the listeners at loopback addresses.
    fn update_loopback(&self, update: impl FnOnce(&mut Loopback, &mut loopback::Changed)) {
        let mut changed = loopback::Changed::default();
        update(&mut lock(&self.loopback), &mut changed);
        if changed.is_empty() {
            return;
        }
        let closed: HashSet<*const Listener> = changed.closed.iter().map(Arc::as_ptr).collect();
        let mut listeners = self.write(&self.shared.listeners);
        listeners.retain(|listener| !closed.contains(&Arc::as_ptr(listener)));
        listeners.extend(changed.opened);
        drop(listeners);
        self.wake();
    }

    /// The numbers of listeners at loopback addresses.
    pub fn loopback_counts(&self) -> LoopbackCounts {
        let accepted = self.shared.accepted_at_loopback.load(Relaxed);
        LoopbackCounts { accepted, ..lock(&self.loopback).counts() }
    }

    /// Applies a Service's plan in one family; none removes the Service.
    pub fn change(&self, name: &ServiceName, family: Family, plan: Option<&ServicePlan>) {
        let settings = self.shared.settings().clone();
        let mut routes = self.write(&self.shared.routes);
        let udp = routes.has_udp(name, family);
        let drains = routes.change(name, family, plan, &settings, Moment::now());
        let udp = udp || routes.has_udp(name, family);
        drop(routes);
        // UDP sessions hold their Service port, so the worker has to check them against the new routes.
        if drains || udp {
            self.wake();
        }
        if settings.localhost_node_ports {
            let wanted = self.shared.routes().node_ports(name, family).to_vec();
            self.update_loopback(|loopback, changed| loopback.change(name, family, &wanted, changed));
        }
    }

    /// Removes the Services of a family that are not in `names`.
    pub fn keep_only(&self, family: Family, names: &HashSet<ServiceName>) {
        let others = self.shared.routes().services_except(family, names);
        others.iter().for_each(|name| self.change(name, family, None));
    }

    /// The rules of a family are committed: removes the routes and listeners that no rule points to.
    pub fn commit_routes(&self, family: Family) {
        self.write(&self.shared.routes).commit_routes(family);
        let of_family = |listener: &mut Arc<Listener>| Family::of(listener.address.ip()) == family;
        let obsolete: Vec<Arc<Listener>> = lock(&self.listeners).obsolete.extract_if(.., of_family).collect();
        if !obsolete.is_empty() {
            let is_obsolete = |listener: &Arc<Listener>| obsolete.iter().any(|o| Arc::ptr_eq(o, listener));
            self.write(&self.shared.listeners).retain(|listener| !is_obsolete(listener));
            self.wake();
        }
    }

    /// Tries again to listen at node ports of loopback addresses that could not be bound: another Service may have had
    /// the port, or another process.
    pub fn retry_loopback(&self) {
        if lock(&self.loopback).lacks_listeners() {
            self.update_loopback(Loopback::retry);
        }
        lock(&self.loopback).changes_end();
    }

    /// All Service ports.
    pub fn ports(&self) -> Vec<Arc<Port>> {
        self.shared.routes().ports().cloned().collect()
    }

    /// The number of open TCP connections.
    pub fn open(&self) -> usize {
        self.shared.limits.open()
    }

    /// Bytes that were received from one peer and not yet sent to the other.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Relaxed)
    }

    /// Stops after the last connection has ended, or after `limit`; without one, after the drain time-out of the
    /// settings. Listeners stay open at least for `quiet`, because rules may point to them for so long.
    pub fn stop(&self, limit: Option<Duration>, quiet: Duration) {
        let now = Moment::now();
        let limit = limit.unwrap_or(self.shared.settings().drain_timeout);
        let quiet = now.after(quiet.max(MIN_QUIET));
        let mut stop = self.write(&self.shared.stop);
        *stop = Some(Stop { quiet, deadline: now.after(limit).max(quiet) });
        drop(stop);
        // The next relay needs these ports.
        self.update_loopback(Loopback::close);
        self.wake();
    }

    /// Has the kernel translate the flows of UDP sessions to the endpoints that they have, so that the clients keep
    /// their pods. The rules must point to endpoints already.
    pub fn hand_over_udp(&self) {
        let (pending, ended) = mpsc::channel();
        *lock(&self.shared.hand_over) = Some(pending);
        self.wake();
        // The sender is dropped when all flows are handed over.
        _ = ended.recv_timeout(HAND_OVER);
    }

    /// Whether [`Engine::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.shared.stop().is_some()
    }

    /// Waits until it has stopped.
    pub fn wait(&self) {
        let running = lock(&self.shared.running);
        let all_ended = self.shared.ended.wait_while(running, |running| *running > 0);
        drop(all_ended.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.shared.stop().is_none() {
            self.stop(None, MIN_QUIET);
        }
    }
}

/// Starts a thread that is counted as running until it ends, also by a panic.
fn spawn(shared: &Arc<Shared>, name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    struct Running(Arc<Shared>);
    impl Drop for Running {
        fn drop(&mut self) {
            *lock(&self.0.running) -= 1;
            self.0.ended.notify_all();
        }
    }
    *lock(&shared.running) += 1;
    let running = Running(shared.clone());
    let work = move || {
        let _running = running;
        work();
    };
    std::thread::Builder::new().name(name).stack_size(STACK).spawn(work).map(drop)
}
