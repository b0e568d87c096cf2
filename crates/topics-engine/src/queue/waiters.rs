//! Long-polling claims: one wait queue per job queue.
//!
//! A wait queue is served when its topic changes (`notify`: a record, a released lease, a delete) or
//! when its earliest deadline passes (a lease, a delay, a jitter window or a claim's timeout ends). The
//! thread of the claim waiters serves it; an engine without background threads serves it in its
//! `tick`. There is one timer per wait queue, none per job.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::atomic::{AtomicUsize, Ordering};
use topics_env::sync::thread::{self, JoinHandle};
use topics_env::sync::{Condvar, Mutex};

use super::Queues;
use super::cancel::{self, ClaimState};
use super::claim::{self, ClaimRequest, ExhaustedJobs};
use super::cohort;
use super::config_of;
use super::deadlines::{self, Deadlines};
use crate::topic::events::Base;
use crate::topic::{Life, Topic};
use crate::types::api::Completion;
use crate::types::error::{Error, Result};
use crate::types::queue::Claimed;

/// A claim that waits.
pub(crate) struct Waiter {
    request: ClaimRequest,
    /// When it came, and until when it waits, monotonic ms.
    since: u64,
    until: u64,
    done: Completion<Claimed>,
}

impl Waiter {
    pub(crate) fn new(
        base: &Base,
        request: ClaimRequest,
        wait: Duration,
        done: Completion<Claimed>,
    ) -> Self {
        let since = base.time.mono_ms();
        Self { request, since, until: since.saturating_add(wait.as_millis() as u64), done }
    }
}

/// The claims that wait on one queue, oldest first.
struct WaitQueue {
    topic: Arc<Topic>,
    waiting: Vec<(u64, Waiter)>,
    notified: bool,
    /// The earliest deadline of this queue, monotonic ms: it is served then without a notification
    /// too.
    next_deadline: Option<u64>,
    /// The entry at the topic's gate that notifies of new records.
    watch: Option<u64>,
}

#[derive(Default)]
struct Inner {
    next_id: u64,
    queues: HashMap<u64, WaitQueue>,
    /// Every claim that was not answered, in its wait queue or being served.
    claims: HashMap<u64, ClaimState>,
    notified: Vec<u64>,
    timers: BTreeSet<(u64, u64)>,
    deadlines: Deadlines,
    closed: bool,
    thread: Option<JoinHandle<()>>,
}

/// The wait queues of all job queues.
#[derive(Default)]
pub(crate) struct ClaimWaiters {
    /// How many claims wait: without any a notification costs one load.
    waiting: AtomicUsize,
    inner: Arc<(Mutex<Inner>, Condvar)>,
}

impl fmt::Debug for ClaimWaiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimWaiters").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl Inner {
    fn notify(&mut self, id: u64) -> bool {
        let Some(queue) = self.queues.get_mut(&id).filter(|l| !l.notified) else { return false };
        queue.notified = true;
        self.notified.push(id);
        true
    }

    fn set_timer(&mut self, id: u64, at: Option<u64>) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if let Some(old) = std::mem::replace(&mut queue.next_deadline, at) {
            self.timers.remove(&(old, id));
        }
        if let Some(at) = at {
            self.timers.insert((at, id));
        }
    }

    /// When a wait queue or a deadline is due without a notification, monotonic ms.
    fn next_time(&self) -> Option<u64> {
        self.timers.first().map(|t| t.0).into_iter().chain(self.deadlines.next()).min()
    }

    /// Takes out a wait queue that is due.
    fn due(&mut self, now: u64) -> Option<u64> {
        let id = self.notified.pop().or_else(|| {
            let (_, id) = self.timers.first().copied().filter(|t| t.0 <= now)?;
            Some(id)
        })?;
        self.set_timer(id, None);
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.notified = false;
        }
        Some(id)
    }
}

impl ClaimWaiters {
    /// Wakes the claims that wait on this queue. One load when none waits.
    pub(crate) fn notify(&self, topic_id: u64) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.wake(topic_id);
        }
    }

    /// Whether claims of this queue wait.
    pub(crate) fn serves(&self, topic_id: u64) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
            && self.inner.0.lock().queues.contains_key(&topic_id)
    }

    fn wake(&self, topic_id: u64) {
        if self.inner.0.lock().notify(topic_id) {
            self.inner.1.notify_one();
        }
    }

    /// Adds a claim to the wait queue of its topic.
    pub(crate) fn enqueue(&self, queues: &Arc<Queues>, topic: &Arc<Topic>, waiter: Waiter) -> u64 {
        let mut inner = self.inner.0.lock();
        if inner.closed {
            drop(inner);
            (waiter.done)(Err(Error::Closed));
            return 0;
        }
        inner.next_id += 1;
        let id = inner.next_id;
        inner.claims.insert(id, waiter.request.state.clone());
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let queue = inner.queues.entry(topic.id()).or_insert_with(|| WaitQueue {
            topic: topic.clone(),
            waiting: Vec::new(),
            notified: false,
            next_deadline: None,
            watch: None,
        });
        queue.waiting.push((id, waiter));
        inner.notify(topic.id());
        if inner.thread.is_none() && queues.base().options.background {
            inner.thread = self.start(queues);
        }
        drop(inner);
        self.inner.1.notify_one();
        if !queues.base().options.background {
            self.pass(queues);
        }
        id
    }

    /// Cancels a claim: it will not be answered, and holds no job. False when it was answered.
    pub(crate) fn cancel(&self, topic_id: u64, id: u64) -> bool {
        let mut inner = self.inner.0.lock();
        let Some(state) = inner.claims.remove(&id) else { return false };
        let mut gone = None;
        if let Some(queue) = inner.queues.get_mut(&topic_id)
            && let Some(at) = queue.waiting.iter().position(|w| w.0 == id)
        {
            gone = Some(queue.waiting.remove(at));
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        drop(inner);
        let cancelled = state.cancel();
        // A pass may be serving it, or has just put it back: the next one lets go of it.
        self.wake(topic_id);
        drop(gone);
        cancelled
    }

    /// Sets the timer of a queue: at this time `deadlines::sweep` is due.
    pub(crate) fn set_deadline(&self, queues: &Arc<Queues>, topic: &Arc<Topic>, at: u64) {
        let mut inner = self.inner.0.lock();
        if inner.closed {
            return;
        }
        let earliest = inner.deadlines.set(topic, at);
        if inner.thread.is_none() && queues.base().options.background {
            inner.thread = self.start(queues);
        }
        drop(inner);
        if earliest {
            self.inner.1.notify_one();
        }
    }

    fn start(&self, queues: &Arc<Queues>) -> Option<JoinHandle<()>> {
        let guards = queues.base().env.guards.clone();
        let (queues, inner) = (Arc::downgrade(queues), self.inner.clone());
        let serve = move || {
            loop {
                let Some(queues) = queues.upgrade() else { return };
                queues.claim_waiters.pass(&queues);
                let now = queues.base().time.mono_ms();
                // Before the lock: the end of the engine takes it.
                drop(queues);
                let mut guard = inner.0.lock();
                if guard.closed {
                    return;
                }
                if guard.notified.is_empty() {
                    match guard.next_time().map(|at| at.saturating_sub(now)) {
                        Some(0) => {}
                        Some(ms) => drop(inner.1.wait_for(&mut guard, Duration::from_millis(ms))),
                        None => inner.1.wait(&mut guard),
                    }
                }
            }
        };
        let run = move || guards.run_loop("claim-worker", serve);
        let spawned = thread::Builder::new().name("topics-queues".into()).spawn(run);
        spawned.inspect_err(|e| log::error!("start the queues' thread: {e}")).ok()
    }

    /// Serves every wait queue that is due, then every queue whose deadline has passed: a step of one,
    /// and the wait queues again.
    pub(crate) fn pass(&self, queues: &Arc<Queues>) {
        let now = queues.base().time.mono_ms();
        loop {
            self.serve_queues(queues, now);
            let due = self.inner.0.lock().deadlines.take_due(now);
            let Some(topic) = due else { return };
            deadlines::sweep(queues, &topic);
        }
    }

    fn serve_queues(&self, queues: &Arc<Queues>, now: u64) {
        loop {
            let (id, topic, waiting) = {
                let mut inner = self.inner.0.lock();
                let Some(id) = inner.due(now) else { return };
                let Some(queue) = inner.queues.get_mut(&id) else { continue };
                (id, queue.topic.clone(), std::mem::take(&mut queue.waiting))
            };
            let head = topic.gate.head();
            let (left, at) = serve(queues, &topic, waiting);
            self.put_back(queues, id, &topic, left, (at, head));
        }
    }

    /// Those that were not answered wait on, before those that came meanwhile.
    fn put_back(
        &self,
        queues: &Arc<Queues>,
        id: u64,
        topic: &Arc<Topic>,
        mut left: Vec<(u64, Waiter)>,
        (at, head): (Option<u64>, u64),
    ) {
        let mut inner = self.inner.0.lock();
        let Some(queue) = inner.queues.get_mut(&id) else {
            drop(inner);
            left.into_iter().for_each(|w| drop(finish(queues, w, Err(Error::Closed))));
            return;
        };
        left.append(&mut queue.waiting);
        queue.waiting = left;
        if queue.waiting.is_empty() {
            let watch = queue.watch.take();
            inner.set_timer(id, None);
            inner.queues.remove(&id);
            drop(inner);
            if let Some(watch) = watch {
                topic.gate.cancel(watch);
            }
            return;
        }
        let watched = queue.watch.is_some();
        inner.set_timer(id, at);
        drop(inner);
        if !watched {
            self.watch(queues, topic, head);
        }
    }

    /// Notifies when there is a record above `head`, or the topic goes.
    fn watch(&self, queues: &Arc<Queues>, topic: &Arc<Topic>, head: u64) {
        let (weak, id) = (Arc::downgrade(queues), topic.id());
        // Noted first: the entry may fire before it is known by its number.
        if let Some(queue) = self.inner.0.lock().queues.get_mut(&id) {
            queue.watch = Some(0);
        }
        let wake = move || {
            if let Some(queues) = weak.upgrade() {
                let mut inner = queues.claim_waiters.inner.0.lock();
                if let Some(queue) = inner.queues.get_mut(&id) {
                    queue.watch = None;
                }
                let notified = inner.notify(id);
                drop(inner);
                if notified {
                    queues.claim_waiters.inner.1.notify_one();
                }
            }
        };
        let entry = topic.gate.on_head(head, Box::new(wake));
        if let Some(queue) = self.inner.0.lock().queues.get_mut(&id)
            && let Some(watch) = &mut queue.watch
        {
            *watch = entry;
        }
    }

    /// Answers every claim with `Closed`: the engine closes.
    pub(crate) fn close(&self) {
        if let Some(thread) = self.shut()
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            log::error!("the queues' thread panicked");
        }
    }

    fn shut(&self) -> Option<JoinHandle<()>> {
        let (queues, thread) = {
            let mut inner = self.inner.0.lock();
            inner.closed = true;
            inner.timers.clear();
            inner.deadlines.clear();
            inner.claims.clear();
            (std::mem::take(&mut inner.queues), inner.thread.take())
        };
        self.inner.1.notify_all();
        for (_, w) in queues.into_values().flat_map(|l| l.waiting) {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            if w.request.state.answer() {
                (w.done)(Err(Error::Closed));
            }
        }
        thread
    }
}

impl Drop for ClaimWaiters {
    fn drop(&mut self) {
        self.shut();
    }
}

/// One pass over a wait queue: the claims that still wait, and when it is due again.
fn serve(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    mut waiting: Vec<(u64, Waiter)>,
) -> (Vec<(u64, Waiter)>, Option<u64>) {
    let at = queues.base().time.mono_ms();
    let cancelled = waiting.extract_if(.., |w| w.1.request.state.is_cancelled());
    queues.claim_waiters.waiting.fetch_sub(cancelled.count(), Ordering::SeqCst);
    let config = match config_of(topic) {
        Ok(config) if topic.life() == Life::Live => config,
        _ => {
            let gone = Error::TopicNotFound(topic.name.to_string());
            waiting.into_iter().for_each(|w| drop(finish(queues, w, Err(gone.clone()))));
            return (Vec::new(), None);
        }
    };
    let first = waiting.iter().map(|w| w.1.since).min().unwrap_or(at);
    let window = first.saturating_add(config.claim_jitter_ms);
    if window > at {
        return (waiting, Some(window));
    }
    let order = claim_order(topic, &waiting, config.claim_jitter_ms > 0);
    let requests: Vec<ClaimRequest> = waiting.iter().map(|w| w.1.request.clone()).collect();
    let run = || claim::claim_pass(queues, topic, &requests, &order, ExhaustedJobs::Move);
    let given = match queues.base().guarded("claims", topic, run) {
        Ok(given) => given,
        Err(e) => {
            waiting.into_iter().for_each(|w| drop(finish(queues, w, Err(e.clone()))));
            return (Vec::new(), None);
        }
    };
    let (mut answered, mut left) = (Vec::new(), Vec::new());
    for (w, c) in waiting.into_iter().zip(given) {
        if c.is_empty() && w.1.until > at {
            left.push(w);
        } else {
            answered.push((w, c));
        }
    }
    for (w, claimed) in answered {
        let node = w.1.request.node.clone();
        if let Some(unwanted) = finish(queues, w, Ok(claimed)) {
            cancel::release(queues, topic, &node, &unwanted);
            // Jobs for those that wait on.
            queues.claim_waiters.notify(topic.id());
        }
    }
    let timeout = left.iter().map(|w| w.1.until).min();
    let at = timeout.into_iter().chain(next_due(queues.base(), topic)).min();
    (left, at)
}

/// Answers a claim, unless it was cancelled: then what it would have got is returned.
fn finish(queues: &Queues, (id, w): (u64, Waiter), outcome: Result<Claimed>) -> Option<Claimed> {
    queues.claim_waiters.waiting.fetch_sub(1, Ordering::SeqCst);
    queues.claim_waiters.inner.0.lock().claims.remove(&id);
    if w.request.state.answer() {
        (w.done)(outcome);
        return None;
    }
    outcome.ok().filter(|c| !c.is_empty())
}

/// The index of the claim that each job goes to, in the order of the jobs.
fn claim_order(topic: &Topic, waiting: &[(u64, Waiter)], together: bool) -> Vec<usize> {
    let capacities: Vec<usize> = waiting.iter().map(|w| w.1.request.capacity(topic)).collect();
    if together {
        return cohort::divide(capacities.iter().sum(), &capacities);
    }
    capacities.iter().enumerate().flat_map(|(i, n)| std::iter::repeat_n(i, *n)).collect()
}

/// When a job of the queue becomes claimable by itself, monotonic ms.
fn next_due(base: &Base, topic: &Topic) -> Option<u64> {
    let now = base.time.now();
    let state = topic.state.read();
    let (mono, wall) = state.queue.as_ref()?.next_due();
    let wall = wall.map(|at| now.mono.saturating_add(at.saturating_sub(now.wall)));
    mono.into_iter().chain(wall).min()
}
