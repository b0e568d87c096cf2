//! The threads that serve dirty topics: one for each ready set, parked when it is empty.

mod pressure;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use topics_env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use topics_env::sync::thread::{self, JoinHandle};
use topics_env::sync::{Condvar, Mutex};
use topics_env::{Clock, Guards};
use topics_storage::StorageError;

use super::Deliverer;
use super::governor::{Governor, SAMPLE_NS};
use super::ready::{Ready, Waiting};
use super::service;
use super::session::Sessions;
use super::stream::Stream;
use super::subscribers::Subscribers;
use crate::ctx::Pressure;
use crate::topic::Topic;
use crate::types::error::{Error, Result};

/// A ready set and its worker.
#[derive(Default)]
struct Shard {
    inner: Mutex<Inner>,
    wake: Condvar,
}

/// A topic that is coalescing, and since when, monotonic ns.
type Coalescing = (Waiting<Arc<Subscribers>>, u64);

#[derive(Default)]
struct Inner {
    ready: Ready<Arc<Subscribers>>,
    /// Topics that coalesce so that their next frame has more records, by (end, key).
    coalescing: BTreeMap<(u64, u64), Coalescing>,
    last_key: u64,
    /// Topics to be served at a later time, by (time, key).
    reminders: BTreeMap<(u64, u64), Arc<Subscribers>>,
    parked: bool,
}

/// The next action of a worker.
enum NextAction {
    Serve(Waiting<Arc<Subscribers>>),
    Park(Option<Duration>),
}

/// State that all workers share.
pub(crate) struct Shared {
    pub clock: Arc<dyn Clock>,
    shards: Vec<Shard>,
    stop: AtomicBool,
    governor: Mutex<(Governor, u64, u64)>,
    sampled: AtomicU64,
    pressure: Arc<Pressure>,
    coalesce_ns: AtomicU64,
    strained: AtomicBool,
    /// Scheduling latency since the last sample, without coalescing: sum in ns, and number.
    latency: (AtomicU64, AtomicU64),
    pub streams: Mutex<HashMap<u64, Weak<Stream>>>,
    next_stream: AtomicU64,
    /// Streams that new topics may join.
    expecting: Mutex<HashMap<u64, Weak<Stream>>>,
    expects: AtomicUsize,
    /// Streams that lag and may stall.
    pub lagging: Mutex<Vec<Arc<Stream>>>,
    pub sessions: Sessions,
}

/// [`Shared`] and its threads.
pub(crate) struct DeliveryWorkers {
    shared: Arc<Shared>,
    guards: Arc<Guards>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for DeliveryWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeliveryWorkers").finish_non_exhaustive()
    }
}

impl Shared {
    fn now(&self) -> u64 {
        self.clock.mono_ns()
    }

    /// Queues a topic that has become dirty.
    pub(super) fn enqueue(&self, subscribers: Arc<Subscribers>) {
        let now = self.now();
        self.queue(subscribers, now, now);
    }

    fn shard(&self, subscribers: &Subscribers) -> &Shard {
        let n = subscribers.topic().map_or(0, |t| t.id()) as usize;
        &self.shards[n % self.shards.len()]
    }

    fn queue(&self, subscribers: Arc<Subscribers>, since: u64, now: u64) {
        let shard = self.shard(&subscribers);
        let mut inner = shard.inner.lock();
        inner.ready.push(subscribers, since, now, self.strained.load(Ordering::Relaxed));
        let parked = std::mem::take(&mut inner.parked);
        drop(inner);
        if parked {
            shard.wake.notify_one();
        }
    }

    fn next_action(&self, inner: &mut Inner, now: u64) -> NextAction {
        let strained = self.strained.load(Ordering::Relaxed);
        let window = self.coalesce_ns.load(Ordering::Relaxed);
        let over = |until: u64| until <= now || window == 0;
        while let Some(entry) = inner.coalescing.first_entry().filter(|e| over(e.key().0)) {
            let ((until, _), (mut w, from)) = entry.remove_entry();
            w.coalesced_ns += until.min(now).saturating_sub(from);
            inner.ready.put(w, now, strained);
        }
        while let Some(due) = inner.reminders.first_entry().filter(|e| e.key().0 <= now) {
            let subscribers = due.remove();
            if subscribers.queue_if_idle() {
                inner.ready.push(subscribers, now, now, strained);
            }
        }
        while let Some(w) = inner.ready.pop(now, strained) {
            let until = w.item.served_at.load(Ordering::Relaxed) + window;
            if over(until) {
                return NextAction::Serve(w);
            }
            inner.last_key += 1;
            let n = inner.last_key;
            inner.coalescing.insert((until, n), (w, now));
        }
        let coalesced = inner.coalescing.first_key_value().map(|(at, _)| at.0.saturating_sub(now));
        let reminder = inner.reminders.first_key_value().map(|(at, _)| at.0.saturating_sub(now));
        // The lowest band pauses; its topics age into a higher band.
        let paused = (inner.ready.len() > 0).then_some(50_000_000);
        // Samples go on until the pressure is zero.
        let sample = (self.pressure.ppm() > 0).then_some(SAMPLE_NS);
        NextAction::Park(
            [coalesced, reminder, paused, sample]
                .into_iter()
                .flatten()
                .min()
                .map(Duration::from_nanos),
        )
    }

    fn serve(&self, delivery: &Arc<Deliverer>, w: Waiting<Arc<Subscribers>>) {
        let now = self.now();
        let late = now.saturating_sub(w.since).saturating_sub(w.coalesced_ns);
        delivery.base().metrics.scheduling.record(late);
        self.latency.0.fetch_add(late, Ordering::Relaxed);
        self.latency.1.fetch_add(1, Ordering::Relaxed);
        w.item.begin(now);
        let at = || w.item.topic().map_or_else(String::new, |t| format!("topic {:?}", t.name));
        let served =
            delivery.base().env.guards.run("delivery", at, || service::serve(delivery, &w.item));
        let more = served.unwrap_or_else(|panicked| {
            service::fail(&w.item, &panicked);
            false
        });
        let now = self.now();
        delivery.base().metrics.delivery.record(now.saturating_sub(w.since));
        if w.item.end(more) {
            self.queue(w.item, now, now);
        }
    }

    /// Number of topics that wait for a worker.
    pub(super) fn depth(&self) -> usize {
        self.shards.iter().map(|s| s.inner.lock().ready.len()).sum()
    }

    /// Has new topics offered to this stream.
    pub(super) fn expect(&self, stream: &Arc<Stream>) {
        let mut expecting = self.expecting.lock();
        expecting.insert(stream.id(), Arc::downgrade(stream));
        self.expects.store(expecting.len(), Ordering::SeqCst);
    }

    /// Stops offering new topics to this stream if none can join it.
    pub(super) fn expect_no_more(&self, stream: &Stream) {
        let mut expecting = self.expecting.lock();
        // The deletion of a topic adds its name to the missing ones before it calls `expect`.
        if stream.complete() {
            expecting.remove(&stream.id());
            self.expects.store(expecting.len(), Ordering::SeqCst);
        }
    }

    /// Offers a new topic to the streams that expect one; it joins from its start.
    pub(super) fn offer(&self, topic: &Arc<Topic>) {
        let streams: Vec<_> = {
            let expecting = self.expecting.lock();
            expecting.values().filter_map(Weak::upgrade).collect()
        };
        for stream in streams {
            if stream.wants(&topic.name) && stream.add(topic, 0, None) {
                stream.wake();
            }
        }
    }

    pub(super) fn stream_id(&self) -> u64 {
        self.next_stream.fetch_add(1, Ordering::Relaxed)
    }

    /// Removes a closed stream.
    pub(super) fn forget(&self, stream: &Stream) {
        self.streams.lock().remove(&stream.id());
        let mut expecting = self.expecting.lock();
        expecting.remove(&stream.id());
        self.expects.store(expecting.len(), Ordering::SeqCst);
    }
}

impl DeliveryWorkers {
    /// A delivery without threads; they start with the first watcher.
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        guards: Arc<Guards>,
        pressure: Arc<Pressure>,
        workers: usize,
    ) -> Self {
        let shared = Shared {
            clock,
            shards: (0..workers.max(1)).map(|_| Shard::default()).collect(),
            stop: AtomicBool::new(false),
            governor: Mutex::default(),
            sampled: AtomicU64::new(0),
            pressure,
            coalesce_ns: AtomicU64::new(0),
            strained: AtomicBool::new(false),
            latency: Default::default(),
            streams: Mutex::default(),
            next_stream: AtomicU64::new(1),
            expecting: Mutex::default(),
            expects: AtomicUsize::new(0),
            lagging: Mutex::default(),
            sessions: Sessions::default(),
        };
        Self { shared: Arc::new(shared), guards, threads: Mutex::default() }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The subscribers of a topic, created when it has none.
    pub(crate) fn subscribers(&self, topic: &Arc<Topic>) -> Arc<Subscribers> {
        topic.subscribers.get_or_init(|| Subscribers::new(topic, &self.shared));
        // Only the line above sets the field, so the downcast succeeds.
        Subscribers::of(topic).unwrap_or_else(|| Subscribers::new(topic, &self.shared))
    }

    /// Marks a new topic, so that streams that expect it get it. Costs one load when no stream expects
    /// a topic.
    pub(crate) fn topic_created(&self, topic: &Arc<Topic>) {
        if self.shared.expects.load(Ordering::SeqCst) > 0 {
            let subscribers = self.subscribers(topic);
            subscribers.is_new.store(true, Ordering::SeqCst);
            subscribers.mark();
        }
    }

    /// Has a topic served again at a monotonic time, ns.
    pub(crate) fn schedule(&self, subscribers: &Arc<Subscribers>, at: u64) {
        let shard = self.shared.shard(subscribers);
        let mut inner = shard.inner.lock();
        inner.last_key += 1;
        let n = inner.last_key;
        inner.reminders.insert((at, n), subscribers.clone());
        let parked = std::mem::take(&mut inner.parked);
        drop(inner);
        if parked {
            shard.wake.notify_one();
        }
    }

    /// Starts the workers if recovery has marked topics.
    pub(crate) fn resume(&self, delivery: &Arc<Deliverer>) -> Result<()> {
        if self.shared.depth() > 0 { self.start(delivery) } else { Ok(()) }
    }

    /// Starts the workers, once.
    pub(crate) fn start(&self, delivery: &Arc<Deliverer>) -> Result<()> {
        let mut threads = self.threads.lock();
        if !delivery.base().options.background || !threads.is_empty() || self.stopped() {
            return Ok(());
        }
        for i in 0..self.shared.shards.len() {
            let (shared, delivery) = (self.shared.clone(), Arc::downgrade(delivery));
            let name = format!("topics-deliver-{i}");
            let run = move |guards: Arc<Guards>| {
                guards.run_loop("delivery-worker", || run(&shared, i, &delivery));
            };
            let guards = self.guards.clone();
            let thread = thread::Builder::new().name(name).spawn(move || run(guards));
            threads.push(
                thread.map_err(|e| Error::from(StorageError::io("start a delivery thread", e)))?,
            );
        }
        Ok(())
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::SeqCst)
    }

    /// Serves every waiting topic on the caller's thread: for engines without threads.
    pub(crate) fn serve_all(&self, delivery: &Arc<Deliverer>) {
        if !delivery.base().options.background {
            self.serve_some(delivery, usize::MAX);
        }
    }

    /// Serves at most `n` topics.
    pub(super) fn serve_some(&self, delivery: &Arc<Deliverer>, mut n: usize) {
        let shared = &self.shared;
        for shard in &shared.shards {
            while n > 0 && !self.stopped() {
                let next = shared.next_action(&mut shard.inner.lock(), shared.now());
                let NextAction::Serve(w) = next else { break };
                shared.serve(delivery, w);
                n -= 1;
            }
        }
    }

    /// Ends stalled streams and removes expired sessions.
    pub(crate) fn tick(&self, delivery: &Arc<Deliverer>) {
        self.serve_all(delivery);
        if delivery.base().options.background {
            self.shared.sample(delivery.ctx());
        }
        let now = self.shared.now();
        self.shared.lagging.lock().retain(|s| s.end_if_stalled(now));
        self.shared.sessions.collect(now);
    }

    /// Stops the workers and ends every stream.
    pub(crate) fn close(&self) {
        self.halt();
        let streams: Vec<_> =
            self.shared.streams.lock().values().filter_map(Weak::upgrade).collect();
        streams.iter().for_each(|s| s.end(Error::Closed));
    }

    fn halt(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for shard in &self.shared.shards {
            shard.inner.lock().parked = false;
            shard.wake.notify_all();
        }
        for thread in self.threads.lock().drain(..) {
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                log::error!("a delivery thread panicked");
            }
        }
    }

    /// Numbers of streams, sessions and waiting topics, and the pressure in millionths.
    pub(crate) fn gauges(&self) -> (u64, u64, u64, u64) {
        let s = &self.shared;
        let streams = s.streams.lock().len() as u64;
        let pressure = s.pressure.ppm();
        (streams, s.sessions.len() as u64, s.depth() as u64, pressure)
    }
}

impl Drop for DeliveryWorkers {
    fn drop(&mut self) {
        self.halt();
    }
}

fn run(shared: &Arc<Shared>, i: usize, delivery: &Weak<Deliverer>) {
    let shard = &shared.shards[i];
    loop {
        let w = {
            let mut inner = shard.inner.lock();
            if shared.stop.load(Ordering::SeqCst) {
                return;
            }
            match shared.next_action(&mut inner, shared.now()) {
                NextAction::Serve(w) => Some(w),
                NextAction::Park(time) => {
                    inner.parked = true;
                    match time {
                        Some(time) => {
                            shard.wake.wait_for(&mut inner, time);
                        }
                        None => shard.wake.wait(&mut inner),
                    }
                    inner.parked = false;
                    None
                }
            }
        };
        let Some(delivery) = delivery.upgrade() else { return };
        if let Some(w) = w {
            shared.serve(&delivery, w);
        }
        shared.sample(delivery.ctx());
    }
}
