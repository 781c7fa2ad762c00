//! The threads that carry connections, and what they share.

use crate::balance::Port;
use crate::clock::Moment;
use crate::doors::{self, Door};
use crate::limits::{self, Limits};
use crate::redirect::Doors;
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
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// More threads than this were not seen to help: the kernel does most of the work.
const THREADS: usize = 8;
/// What a thread needs; it keeps no bytes of anybody's.
const STACK: usize = 128 * 1024;
/// How long doors stay open after nothing leads to them, for those who are already on their way.
const QUIET: Duration = Duration::from_millis(300);

/// What all threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    routes: RwLock<Routes>,
    settings: RwLock<UserspaceSettings>,
    doors: RwLock<Vec<Arc<Door>>>,
    stop: RwLock<Option<Stop>>,
    pub(crate) limits: Arc<Limits>,
    /// Bytes that wait in pipes.
    pub(crate) waiting: Arc<AtomicUsize>,
    /// Threads that are at work.
    at_work: Mutex<usize>,
    /// One of them has ended.
    ended: Condvar,
}

/// How the engine is to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    /// Not before, though nothing is open.
    pub(crate) quiet: Moment,
    /// Then, whatever is open.
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

    pub(crate) fn doors(&self, protocol: Protocol) -> Vec<Arc<Door>> {
        read(&self.doors).iter().filter(|door| door.protocol == protocol).cloned().collect()
    }

    pub(crate) fn stop(&self) -> Option<Stop> {
        *read(&self.stop)
    }
}

/// The engine. It works as long as somebody holds it, and then until its connections have ended.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    wakers: Vec<Arc<OwnedFd>>,
    /// Where the doors of each family are, and those that nothing leads to once the rules are in place.
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    doors: [Option<Doors>; 2],
    obsolete: Vec<Arc<Door>>,
}

impl Engine {
    /// Starts the threads, in this thread's network namespace, with all file descriptors the process may have.
    pub fn start() -> io::Result<Arc<Engine>> {
        Engine::start_with(limits::raise())
    }

    /// Starts them with so many file descriptors, whatever the process may have.
    pub fn start_with(descriptors: u64) -> io::Result<Arc<Engine>> {
        let workers = std::thread::available_parallelism().map_or(1, |n| n.get()).min(THREADS);
        let settings = UserspaceSettings::default();
        let limits = Arc::new(Limits::new(descriptors, workers));
        tracing::debug!(descriptors, connections = limits.connections(), workers, "limits");
        let shared = Arc::new(Shared {
            routes: RwLock::default(),
            settings: RwLock::new(settings),
            doors: RwLock::default(),
            stop: RwLock::default(),
            limits,
            waiting: Arc::default(),
            at_work: Mutex::new(0),
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
        Ok(Arc::new(Engine { shared, wakers, places: Mutex::default() }))
    }

    fn wake(&self) {
        for waker in &self.wakers {
            _ = rustix::io::write(waker, &1u64.to_ne_bytes());
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        lock(&self.places)
    }

    /// The doors of a family: those there are, if they are at one of `addresses`, or new ones at the first of them that
    /// can be listened at, if possible where they were `before`. None if there is no such address.
    pub fn doors(
        &self,
        family: Family,
        addresses: &[IpAddr],
        before: Option<Doors>,
    ) -> io::Result<Option<Doors>> {
        let mut own = addresses.iter().filter(|ip| Family::of(**ip) == family).peekable();
        let mut places = self.places();
        let place = family as usize;
        if let Some(doors) = places.doors[place].filter(|doors| addresses.contains(&doors.address)) {
            return Ok(Some(doors));
        }
        if own.peek().is_none() {
            return Ok(None);
        }
        let mut last = None;
        for ip in own {
            match doors::open(*ip, before) {
                Ok((doors, opened)) => {
                    places.doors[place] = Some(doors);
                    let mut all = self.write(&self.shared.doors);
                    let old = all.iter().filter(|door| Family::of(door.address.ip()) == family);
                    places.obsolete.extend(old.cloned());
                    all.extend(opened);
                    drop(all);
                    self.wake();
                    return Ok(Some(doors));
                }
                Err(error) => last = Some(error),
            }
        }
        last.map_or(Ok(None), Err)
    }

    fn write<'l, T>(&self, lock: &'l RwLock<T>) -> std::sync::RwLockWriteGuard<'l, T> {
        lock.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes on settings.
    pub fn configure(&self, settings: &UserspaceSettings) {
        if *self.shared.settings() != *settings {
            *self.write(&self.shared.settings) = settings.clone();
        }
    }

    /// Takes on a Service's plan in one family.
    pub fn change(&self, name: &ServiceName, family: Family, plan: Option<&ServicePlan>) {
        let settings = self.shared.settings().clone();
        let mut routes = self.write(&self.shared.routes);
        let udp = routes.has_udp(name, family);
        let drains = routes.change(name, family, plan, &settings, Moment::now());
        let udp = udp || routes.has_udp(name, family);
        drop(routes);
        // Sessions know whose they are, and may have to learn it anew.
        if drains || udp {
            self.wake();
        }
    }

    /// Forgets the Services of a family that are not among these.
    pub fn keep(&self, family: Family, these: &HashSet<ServiceName>) {
        let others = self.shared.routes().others(family, these);
        others.iter().for_each(|name| self.change(name, family, None));
    }

    /// The rules of a family are in place: what nothing leads to any more is forgotten.
    pub fn settle(&self, family: Family) {
        self.write(&self.shared.routes).settle(family);
        let of_family = |door: &mut Arc<Door>| Family::of(door.address.ip()) == family;
        let obsolete: Vec<Arc<Door>> = self.places().obsolete.extract_if(.., of_family).collect();
        if !obsolete.is_empty() {
            let gone = |door: &Arc<Door>| obsolete.iter().any(|o| Arc::ptr_eq(o, door));
            self.write(&self.shared.doors).retain(|door| !gone(door));
            self.wake();
        }
    }

    /// All ports of Services.
    pub fn ports(&self) -> Vec<Arc<Port>> {
        self.shared.routes().ports().cloned().collect()
    }

    /// Connections that are open.
    pub fn open(&self) -> usize {
        self.shared.limits.open()
    }

    /// Bytes that were taken from somebody, and wait for the other side to take them.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Relaxed)
    }

    /// Nothing is led here any more, at the latest after `quiet`: stops when all connections have ended, or may go on no
    /// longer, which settings say if nobody else does.
    pub fn stop(&self, limit: Option<Duration>, quiet: Duration) {
        let now = Moment::now();
        let limit = limit.unwrap_or(self.shared.settings().drain_timeout);
        let quiet = now.after(quiet.max(QUIET));
        let mut stop = self.write(&self.shared.stop);
        *stop = Some(Stop { quiet, deadline: now.after(limit).max(quiet) });
        drop(stop);
        self.wake();
    }

    /// Whether it was told to stop.
    pub fn is_stopping(&self) -> bool {
        self.shared.stop().is_some()
    }

    /// Waits until it has stopped.
    pub fn wait(&self) {
        let at_work = lock(&self.shared.at_work);
        let all_ended = self.shared.ended.wait_while(at_work, |at_work| *at_work > 0);
        drop(all_ended.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.shared.stop().is_none() {
            self.stop(None, QUIET);
        }
    }
}

/// Starts a thread that counts as being at work until it ends, however it does.
fn spawn(shared: &Arc<Shared>, name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    struct AtWork(Arc<Shared>);
    impl Drop for AtWork {
        fn drop(&mut self) {
            *lock(&self.0.at_work) -= 1;
            self.0.ended.notify_all();
        }
    }
    *lock(&shared.at_work) += 1;
    let at_work = AtWork(shared.clone());
    let work = move || {
        let _at_work = at_work;
        work();
    };
    std::thread::Builder::new().name(name).stack_size(STACK).spawn(work).map(drop)
}
