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
    obsolete: Vec<IpAddr>,
    /// Everything is being told anew.
    anew: [bool; 2],
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
    /// can be listened at. None if there is no such address.
    pub fn doors(&self, family: Family, addresses: &[IpAddr]) -> io::Result<Option<Doors>> {
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
            match doors::open(*ip) {
                Ok((doors, opened)) => {
                    let old = places.doors[place].replace(doors);
                    places.obsolete.extend(old.map(|old| old.address));
                    self.write(&self.shared.doors).extend(opened);
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
        self.write(&self.shared.routes).own(&settings.addresses);
    }

    /// Takes on a Service's plan in one family.
    pub fn change(&self, name: &ServiceName, family: Family, plan: Option<&ServicePlan>) {
        let settings = self.shared.settings().clone();
        let drains = self.write(&self.shared.routes).change(name, family, plan, &settings, Moment::now());
        if drains {
            self.wake();
        }
    }

    /// From now on everything is told anew: what is not told again before a family is settled is gone.
    pub fn begin(&self) {
        self.write(&self.shared.routes).begin();
        self.places().anew = [true; 2];
    }

    /// The rules of a family are in place: what nothing leads to any more is forgotten.
    pub fn settle(&self, family: Family) {
        if std::mem::take(&mut self.places().anew[family as usize]) {
            let untold = self.shared.routes().untold(family);
            untold.iter().for_each(|name| self.change(name, family, None));
        }
        self.write(&self.shared.routes).settle(family);
        let obsolete: Vec<IpAddr> =
            self.places().obsolete.extract_if(.., |address| Family::of(*address) == family).collect();
        if !obsolete.is_empty() {
            self.write(&self.shared.doors).retain(|door| !obsolete.contains(&door.address.ip()));
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

    /// Nothing is led here any more: stops when all connections have ended, or may go on no longer.
    pub fn stop(&self, limit: Duration) {
        let now = Moment::now();
        let quiet = now.after(QUIET);
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
            let limit = self.shared.settings().drain_timeout;
            self.stop(limit);
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
