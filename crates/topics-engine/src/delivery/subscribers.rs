//! The subscribers of a topic, and its place in the ready set.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use topics_storage::wal::{Level, Ticket};

use super::frame::{Frame, WatchOptions};
use super::ready::Schedule;
use super::stream::{Outcome, Stream};
use super::workers::Shared;
use crate::router::Router;
use crate::topic::events::Ctx;
use crate::topic::{Life, Topic, TopicObserver};
use crate::types::batch::ReadBatch;
use crate::types::config::TopicConfig;
use crate::types::metrics::Metrics;
use crate::types::priority;

const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const SERVING: u8 = 2;
/// Being served, and marked again meanwhile.
const AGAIN: u8 = 3;

/// Live watchers with equal options. Each of them has every record up to `at`.
struct Group {
    options: Arc<WatchOptions>,
    at: u64,
    /// By stream id.
    members: BTreeMap<u64, Member>,
}

struct Member {
    stream: Arc<Stream>,
    slot: u32,
    /// The watcher has read every record up to this seq by itself.
    from: u64,
}

#[derive(Default)]
struct Subscriptions {
    groups: Vec<Group>,
    routers: Vec<Arc<Router>>,
    /// The last batch whose sync marks the topic.
    notified: Option<Ticket>,
}

/// The subscribers of one topic. Created with the first subscriber; the topic's gate marks it dirty
/// only while there is one.
pub(crate) struct Subscribers {
    topic: Weak<Topic>,
    shared: Weak<Shared>,
    /// `IDLE`, `QUEUED`, `SERVING` or `AGAIN`: the topic is queued at most once.
    state: AtomicU8,
    /// Whether the topic was not yet offered to streams with patterns.
    pub is_new: AtomicBool,
    pub served_at: AtomicU64,
    /// The topic's manual priority, [`AUTO`] or [`NONE`].
    manual: AtomicI64,
    /// Whether only routers subscribe to the topic.
    routed: AtomicBool,
    /// Whether the watchers were notified that the topic waits under strain.
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

/// The result of [`Subscribers::join`].
pub(super) enum Join {
    /// The watcher is live.
    Live,
    /// The watcher has to read more of its backlog first.
    Behind,
    /// The topic was deleted.
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

    /// The subscribers of a topic, if it ever had one.
    pub(super) fn of(topic: &Topic) -> Option<Arc<Self>> {
        let observer: Arc<dyn Any + Send + Sync> = topic.subscribers.get()?.clone();
        observer.downcast().ok()
    }

    /// Sets the priority from the topic's config.
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

    /// Queues the topic for a worker. The caller may hold the topic's append lock.
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

    /// A worker begins to serve the topic.
    pub(super) fn begin(&self, now: u64) {
        self.state.store(SERVING, Ordering::SeqCst);
        self.served_at.store(now, Ordering::Relaxed);
        self.is_throttled.store(false, Ordering::Relaxed);
    }

    /// Marks the topic as throttled; returns whether it was not marked before, so that its watchers
    /// are notified once.
    pub(super) fn mark_throttled(&self) -> bool {
        !self.is_throttled.swap(true, Ordering::Relaxed)
    }

    /// Notifies the live watchers that asked for it that the topic waits, for at most this time.
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

    /// The worker has served the topic. Returns true if the topic must be queued again.
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

    /// Makes a watcher live that has every record up to `cursor`.
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
        // A publish or a deletion before the gate had this observer marked nothing.
        if topic.gate.head() > cursor || topic.life() == Life::Dead {
            self.mark();
        }
        Join::Live
    }

    /// Removes a watcher, which is no longer live.
    pub(super) fn leave(&self, stream: &Stream) {
        let mut subscriptions = self.subscriptions.lock();
        for group in &mut subscriptions.groups {
            group.members.remove(&stream.id());
        }
        self.remove_empty_groups(&mut subscriptions);
    }

    /// Removes empty groups. Without subscribers the gate has no observer, so writers pay nothing.
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

    /// Sets the routers that copy from the topic.
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

    /// Queues the topic if it is idle: its scheduled time has come. The worker puts it into its set.
    pub(super) fn queue_if_idle(&self) -> bool {
        self.state.compare_exchange(IDLE, QUEUED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The options of each group, with its cursor.
    pub(super) fn views(&self) -> Vec<(Arc<WatchOptions>, u64)> {
        self.subscriptions.lock().groups.iter().map(|g| (g.options.clone(), g.at)).collect()
    }

    /// Pushes a batch that was read from `at` on to the group with these options. Returns false if the
    /// group is at another cursor now.
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
            let frame = (!batch.is_empty())
                .then(|| Frame::new(topic.name.clone(), options.clone(), at, batch));
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

    /// Removes every live watcher, because the topic was deleted or cannot be read. `notify` is called
    /// for each of them.
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

    /// Marks the topic when its newest batch is synced: records that are visible and not synced are
    /// delivered then.
    pub(crate) fn mark_when_synced(self: &Arc<Self>, ctx: &Ctx, topic: &Topic) {
        let last = topic.append.lock().last;
        let Some((ticket, _)) = last.filter(|(t, _)| self.is_first_notice(*t)) else { return };
        let subscribers = Arc::downgrade(self);
        let done = move |outcome: topics_storage::Result<()>| {
            if let Some(subscribers) = subscribers.upgrade().filter(|_| outcome.is_ok()) {
                subscribers.mark();
            }
        };
        ctx.wal.on_level(ticket, Level::Synced, Box::new(done));
    }

    /// Whether the sync of this batch does not mark the topic yet; it does from now on.
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
