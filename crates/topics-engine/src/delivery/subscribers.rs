//! Who wants a topic, and whether it waits for a worker.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use topics_storage::wal::{Level, Ticket};

use super::Deliverer;
use super::frame::{Frame, WatchOptions};
use super::ready::Schedule;
use super::stream::{Outcome, Stream};
use super::workers::Shared;
use crate::router::Router;
use crate::topic::{Life, Topic, TopicObserver};
use crate::types::batch::ReadBatch;
use crate::types::config::TopicConfig;
use crate::types::metrics::Metrics;
use crate::types::priority;

const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const SERVING: u8 = 2;
/// Being served, and dirty again.
const AGAIN: u8 = 3;

/// Live watchers with equal options: all of them have everything up to `at`.
struct Group {
    options: Arc<WatchOptions>,
    at: u64,
    /// By stream.
    members: BTreeMap<u64, Member>,
}

struct Member {
    stream: Arc<Stream>,
    slot: u32,
    /// It has everything up to here by itself.
    from: u64,
}

#[derive(Default)]
struct Subscriptions {
    groups: Vec<Group>,
    routers: Vec<Arc<Router>>,
    /// The batch whose sync the topic was last to be told of.
    notified: Option<Ticket>,
}

/// What a topic is to the delivery. It is made when somebody first wants the topic; the topic's
/// gate marks it dirty only while somebody does.
pub(crate) struct Subscribers {
    topic: Weak<Topic>,
    shared: Weak<Shared>,
    /// Where it is between idle, queued and being served: it is queued at most once.
    state: AtomicU8,
    /// Patterns have not seen the topic yet.
    pub is_new: AtomicBool,
    pub served_at: AtomicU64,
    /// The topic's manual priority, [`AUTO`] or [`NONE`].
    manual: AtomicI64,
    /// Only routers want the topic.
    routed: AtomicBool,
    /// Its watchers were told that it waits under strain.
    is_throttled: AtomicBool,
    subscriptions: Mutex<Subscriptions>,
}

const AUTO: i64 = i64::MAX;
const NONE: i64 = i64::MIN;

impl fmt::Debug for Subscribers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscribers").field("state", &self.state).finish_non_exhaustive()
    }
}

/// What a join came to.
pub(super) enum Join {
    /// The watcher is live.
    Live,
    /// It has to read on first.
    Behind,
    /// The topic is gone.
    Dead,
}

impl Subscribers {
    pub(super) fn new(topic: &Arc<Topic>, shared: &Arc<Shared>) -> Arc<Self> {
        let subscribers = Self {
            topic: Arc::downgrade(topic),
            shared: Arc::downgrade(shared),
            state: AtomicU8::new(IDLE),
            is_new: AtomicBool::new(false),
            served_at: AtomicU64::new(0),
            manual: AtomicI64::new(NONE),
            routed: AtomicBool::new(false),
            is_throttled: AtomicBool::new(false),
            subscriptions: Mutex::new(Subscriptions::default()),
        };
        subscribers.set_priority(&topic.state.read().config.clone());
        Arc::new(subscribers)
    }

    /// That of a topic, if the delivery has met it.
    pub(super) fn of(topic: &Topic) -> Option<Arc<Self>> {
        let observer: Arc<dyn Any + Send + Sync> = topic.subscribers.get()?.clone();
        observer.downcast().ok()
    }

    /// Takes the topic's priority over.
    pub(super) fn set_priority(&self, config: &TopicConfig) {
        let manual = match (config.priority, config.auto_priority) {
            (Some(p), _) => i64::from(p.clamp(-1000, 1000)),
            (None, true) => AUTO,
            (None, false) => NONE,
        };
        self.manual.store(manual, Ordering::Relaxed);
    }

    pub(super) fn topic(&self) -> Option<Arc<Topic>> {
        self.topic.upgrade()
    }

    /// The topic has something to deliver. Whoever calls may hold the topic's append lock.
    pub(crate) fn mark(self: &Arc<Self>) {
        let mut state = self.state.load(Ordering::SeqCst);
        loop {
            let next = match state {
                IDLE => QUEUED,
                SERVING => AGAIN,
                _ => return,
            };
            match self.state.compare_exchange(state, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) if next == QUEUED => break,
                Ok(_) => return,
                Err(now) => state = now,
            }
        }
        if let Some(shared) = self.shared.upgrade() {
            shared.enqueue(self.clone());
        }
    }

    /// A worker takes it.
    pub(super) fn begin(&self, now: u64) {
        self.state.store(SERVING, Ordering::SeqCst);
        self.served_at.store(now, Ordering::Relaxed);
        self.is_throttled.store(false, Ordering::Relaxed);
    }

    /// Whether its watchers are yet to be told that it waits; they are after this.
    pub(super) fn mark_throttled(&self) -> bool {
        !self.is_throttled.swap(true, Ordering::Relaxed)
    }

    /// Tells the live watchers that want to know that the topic waits, this long at most.
    pub(super) fn notify_throttled(&self, retry_after_ms: u64) {
        let Some(topic) = self.topic() else { return };
        let woken: Vec<_> = {
            let subscriptions = self.subscriptions.lock();
            let members = subscriptions.groups.iter().flat_map(|g| g.members.values());
            let pushed =
                members.filter(|m| m.stream.push_throttled(m.slot, &topic, retry_after_ms));
            pushed.map(|m| m.stream.clone()).collect()
        };
        woken.iter().for_each(|s| s.wake());
    }

    /// The worker is done; true: it must be queued again.
    pub(super) fn end(&self, more: bool) -> bool {
        let idle = !more
            && self
                .state
                .compare_exchange(SERVING, IDLE, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok();
        if !idle {
            self.state.store(QUEUED, Ordering::SeqCst);
        }
        !idle
    }

    /// Makes a watcher live that has everything up to `cursor`.
    pub(super) fn join(
        self: &Arc<Self>,
        stream: &Arc<Stream>,
        slot: u32,
        topic: &Topic,
        cursor: u64,
    ) -> Join {
        {
            let mut subscriptions = self.subscriptions.lock();
            if topic.life() == Life::Dead {
                return Join::Dead;
            }
            let options = stream.options();
            let found = subscriptions.groups.iter().position(|g| g.options == *options);
            let group = match found {
                Some(i) => &mut subscriptions.groups[i],
                None => {
                    let (options, members) = (options.clone(), BTreeMap::new());
                    subscriptions.groups.push(Group { options, at: cursor, members });
                    let last = subscriptions.groups.len() - 1;
                    &mut subscriptions.groups[last]
                }
            };
            if cursor < group.at {
                return Join::Behind;
            }
            group
                .members
                .insert(stream.id(), Member { stream: stream.clone(), slot, from: cursor });
            self.routed.store(false, Ordering::Relaxed);
            stream.live(slot, topic, cursor);
            topic.gate.set_observer(Some(self.clone()));
        }
        // Whoever published, or ended the topic, before the gate knew of us marked nothing.
        if topic.gate.head() > cursor || topic.life() == Life::Dead {
            self.mark();
        }
        Join::Live
    }

    /// A watcher is no longer live.
    pub(super) fn leave(&self, stream: &Stream) {
        let mut subscriptions = self.subscriptions.lock();
        for group in &mut subscriptions.groups {
            group.members.remove(&stream.id());
        }
        self.remove_empty_groups(&mut subscriptions);
    }

    /// Lets go of empty groups; a topic that nobody wants costs its writers nothing.
    fn remove_empty_groups(&self, subscriptions: &mut Subscriptions) {
        subscriptions.groups.retain(|g| !g.members.is_empty());
        self.routed.store(subscriptions.groups.is_empty(), Ordering::Relaxed);
        if subscriptions.groups.is_empty()
            && subscriptions.routers.is_empty()
            && let Some(topic) = self.topic.upgrade()
        {
            topic.gate.set_observer(None);
        }
    }

    /// These routers, and no others, copy from the topic.
    pub(crate) fn set_routers(self: &Arc<Self>, routers: Vec<Arc<Router>>) {
        {
            let mut subscriptions = self.subscriptions.lock();
            subscriptions.routers = routers;
            if !subscriptions.routers.is_empty()
                && let Some(topic) = self.topic.upgrade()
            {
                topic.gate.set_observer(Some(self.clone()));
            }
            self.remove_empty_groups(&mut subscriptions);
        }
        self.mark();
    }

    /// The routers that copy from the topic.
    pub(super) fn routers(&self) -> Vec<Arc<Router>> {
        self.subscriptions.lock().routers.clone()
    }

    /// A worker takes it in, if it is idle: its time has come.
    pub(super) fn queue_if_idle(&self) -> bool {
        self.state.compare_exchange(IDLE, QUEUED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The option sets that are wanted, with their cursors.
    pub(super) fn views(&self) -> Vec<(Arc<WatchOptions>, u64)> {
        self.subscriptions.lock().groups.iter().map(|g| (g.options.clone(), g.at)).collect()
    }

    /// Hands what was read at `at` to the watchers with these options. False: they stand
    /// elsewhere now.
    pub(super) fn fan_out(
        &self,
        topic: &Topic,
        options: &Arc<WatchOptions>,
        at: u64,
        batch: ReadBatch,
        now: u64,
        metrics: &Metrics,
    ) -> bool {
        let (mut woken, mut lagging) = (Vec::new(), Vec::new());
        {
            let mut subscriptions = self.subscriptions.lock();
            let group = subscriptions.groups.iter_mut().find(|g| Arc::ptr_eq(&g.options, options));
            let Some(group) = group.filter(|g| g.at == at) else { return false };
            group.at = batch.next_from_seq;
            let (next, tombstone, id) = (batch.next_from_seq, batch.tombstone, batch.topic_id);
            let frame =
                (!batch.is_empty()).then(|| Frame::new(topic.name.clone(), options.clone(), batch));
            group.members.retain(|_, m| {
                if m.from >= next {
                    return true;
                }
                let own = frame.as_ref().filter(|_| m.from > at).map(|f| f.after(m.from));
                let frame = own.unwrap_or_else(|| frame.clone());
                let tombstone = tombstone.filter(|t| t.gap_to > m.from);
                let (outcome, wake) = m.stream.push(m.slot, id, tombstone, frame, next, now);
                woken.extend(wake.then(|| m.stream.clone()));
                lagging.extend((outcome == Outcome::Lags).then(|| m.stream.clone()));
                outcome == Outcome::Taken
            });
            self.remove_empty_groups(&mut subscriptions);
        }
        woken.iter().for_each(|s| s.wake());
        metrics.watch_lags.add(lagging.len() as u64);
        lagging.retain(|s| s.stalls());
        if let Some(shared) = self.shared.upgrade().filter(|_| !lagging.is_empty()) {
            shared.lagging.lock().append(&mut lagging);
        }
        true
    }

    /// The topic is gone, or cannot be read: every live watcher is told, and is live no more.
    pub(super) fn remove_members(&self, notify: impl Fn(&Stream, u32)) -> Vec<Arc<Stream>> {
        let streams: Vec<_> = {
            let mut subscriptions = self.subscriptions.lock();
            let groups = std::mem::take(&mut subscriptions.groups);
            let members = groups.into_iter().flat_map(|g| g.members.into_values());
            let streams = members.map(|m| {
                notify(&m.stream, m.slot);
                m.stream
            });
            let streams = streams.collect();
            self.remove_empty_groups(&mut subscriptions);
            streams
        };
        streams.iter().for_each(|s| s.wake());
        streams
    }

    /// What is visible and not synced is delivered when it is.
    pub(crate) fn mark_when_synced(self: &Arc<Self>, core: &Deliverer, topic: &Topic) {
        let last = topic.append.lock().last;
        let Some((ticket, _)) = last.filter(|(t, _)| self.is_first_notice(*t)) else { return };
        let subscribers = Arc::downgrade(self);
        let done = move |outcome: topics_storage::Result<()>| {
            if let Some(subscribers) = subscribers.upgrade().filter(|_| outcome.is_ok()) {
                subscribers.mark();
            }
        };
        core.wal.notify(ticket, Level::Synced, Box::new(done));
    }

    /// Whether the topic is yet to be told of the sync of this batch.
    fn is_first_notice(&self, ticket: Ticket) -> bool {
        let mut subscriptions = self.subscriptions.lock();
        subscriptions.notified.replace(ticket) != Some(ticket)
    }
}

impl TopicObserver for Subscribers {
    fn head_raised(self: Arc<Self>) {
        self.mark();
    }
}

impl Schedule for Arc<Subscribers> {
    fn yields(&self) -> bool {
        self.routed.load(Ordering::Relaxed)
    }

    fn base(&self, _now_ns: u64) -> i32 {
        match self.manual.load(Ordering::Relaxed) {
            NONE => 0,
            AUTO => {
                let (Some(topic), Some(shared)) = (self.topic.upgrade(), self.shared.upgrade())
                else {
                    return 0;
                };
                match topic.last_read.load(Ordering::Relaxed) {
                    0 => 0,
                    read => priority::recency(shared.clock.wall_ms().saturating_sub(read)),
                }
            }
            p => p as i32,
        }
    }
}
