//! Takes steps on the engine and on the model.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use topics_engine::{
    Append, ConfigPatch, Consumer, DeleteRequest, Durability, Engine, Guarantee, NewRecord,
    Options, RouterRequest, TopicMatch, TopicType, Watch,
};
use topics_env::Clock;
use topics_env::sim::{CrashOptions, SimClock, SimFs, env_on};

use super::model::{Log, Model, Rec};
use super::queue::{Job, Phase};
use super::step::Step;
use crate::run::{DIR, Dice};

/// The logs' names, in the order of the model.
pub const LOGS: [&str; 4] = ["s", "d", "e", "dead"];
pub const TAGS: [&str; 3] = ["", "keep", "other"];
pub const DEAD: usize = 3;

/// What is wrong.
pub type Outcome = Result<(), String>;

/// The engine and the model, side by side.
pub struct Hand {
    fs: Arc<SimFs>,
    pub clock: Arc<SimClock>,
    engine: Option<Engine>,
    pub model: Model,
    pub handles: BTreeMap<usize, Consumer>,
    pub watch: Option<Watch>,
    pub class: Durability,
    pub guarantee: Guarantee,
    pub filters: [Option<&'static str>; 2],
    shards: u32,
    seed: u64,
    opens: u64,
    names: usize,
    /// Leases that are over: node, seq, id.
    pub stale: Vec<(usize, u64, u64)>,
}

/// Fails with a text unless it holds.
macro_rules! must {
    ($cond:expr, $($text:tt)*) => {
        if !$cond {
            return Err(format!($($text)*));
        }
    };
}
pub(super) use must;

/// A call that must not fail.
pub fn ok<T>(result: topics_engine::Result<T>) -> Result<T, String> {
    result.map_err(|e| format!("{}: {e}", e.code()))
}

impl Hand {
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ 0x9a17);
        let filter = |d: &mut Dice| (d.below(2) == 0).then_some("keep");
        let mut hand = Self {
            fs: Arc::new(SimFs::new()),
            clock: Arc::new(SimClock::new(1_700_000_000_000)),
            engine: None,
            model: Model::default(),
            handles: BTreeMap::new(),
            watch: None,
            class: *dice.pick(&[Durability::Disk, Durability::Fsync]),
            guarantee: *dice.pick(&[Guarantee::AtLeastOnce, Guarantee::ExactlyOnce]),
            filters: [filter(&mut dice), filter(&mut dice)],
            shards: 1 + dice.below(2) as u32,
            seed,
            opens: 0,
            names: 0,
            stale: Vec::new(),
        };
        hand.open();
        let q = &mut hand.model.queue;
        (q.durable, q.letters) = (dice.below(2) == 0, dice.below(2) == 0);
        (q.lease_ms, q.max_deliveries) = (10_000, dice.below(4));
        let patch = ConfigPatch {
            kind: Some(TopicType::Queue),
            durability: Some(hand.class),
            leases_durable: Some(q.durable),
            dead_letter: q.letters.then(|| Some("dead".into())),
            lease_ms: Some(q.lease_ms),
            max_deliveries: Some(q.max_deliveries),
            retry_backoff_ms: Some(1_000),
            ..ConfigPatch::default()
        };
        hand.engine().create_topic("q", &patch).unwrap();
        hand.ensure(DEAD);
        hand
    }

    fn open(&mut self) {
        self.opens += 1;
        let env = env_on(&self.fs, &self.clock, self.seed ^ (self.opens << 32));
        let options = Options {
            background: false,
            wal_shards: self.shards,
            wal_file_min: 16 << 10,
            wal_file_max: 16 << 10,
            segment_max_events: 8,
            ..Options::default()
        };
        self.engine = Some(Engine::open(env, Path::new(DIR), options).unwrap());
    }

    pub fn engine(&self) -> Engine {
        self.engine.clone().unwrap()
    }

    pub fn mono(&self) -> u64 {
        self.clock.mono_ns() / 1_000_000
    }

    pub fn wall(&self) -> u64 {
        self.clock.wall_ms()
    }

    /// The payload of a new record.
    pub fn name(&mut self) -> String {
        self.names += 1;
        format!("\"n{}\"", self.names)
    }

    /// A log of this name is there.
    pub fn ensure(&mut self, topic: usize) {
        if self.model.logs[topic].is_none() {
            let patch = ConfigPatch { durability: Some(self.class), ..ConfigPatch::default() };
            let id = self.engine().create_topic(LOGS[topic], &patch).unwrap().topic_id;
            self.model.logs[topic] = Some(Log { id, ..Log::default() });
        }
    }

    pub fn request(&self, router: usize) -> RouterRequest {
        RouterRequest {
            source: LOGS[router].into(),
            dest: LOGS[router + 1].into(),
            filter: self.filters[router].map(|f| TopicMatch::Eq(f.as_bytes().to_vec())),
            guarantee: self.guarantee,
            ..RouterRequest::default()
        }
    }

    pub fn take(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Append { topic, n, tag } => self.append(*topic, *n, TAGS[*tag])?,
            Step::DeleteRecords { topic, back } => self.delete_records(*topic, *back)?,
            Step::DropTopic { topic } => self.drop_topic(*topic)?,
            Step::Sync => ok(self.engine().sync())?,
            Step::Checkpoint => ok(self.engine().checkpoint())?,
            Step::Pass { ms } => {
                self.clock.advance_ms(*ms);
                // What has run out and nobody has looked at still counts.
                return Ok(());
            }
            Step::Reopen => {
                self.close_handles()?;
                self.watch = None;
                self.model.watch = None;
                ok(self.engine().close())?;
                self.engine = None;
                self.open();
                self.restarted()?;
            }
            Step::Kill => {
                let image = self.fs.kill_image();
                self.another_life(&image)?;
            }
            Step::Power { pick } => self.power(*pick)?,
            job if self.job(job)? => {}
            reader => self.reader(reader)?,
        }
        self.check()
    }

    pub fn finish(&mut self) -> Outcome {
        self.take(&Step::RouterProgress)?;
        self.take(&Step::Reopen)?;
        self.take(&Step::RouterProgress)
    }

    fn append(&mut self, topic: usize, n: usize, tag: &'static str) -> Outcome {
        self.ensure(topic);
        let names: Vec<String> = (0..n).map(|_| self.name()).collect();
        fn record<'a>(name: &'a String, tag: &'a str) -> NewRecord<'a> {
            NewRecord { data: name.as_bytes(), tag: tag.as_bytes(), ..NewRecord::default() }
        }
        let records: Vec<NewRecord<'_>> = names.iter().map(|n| record(n, tag)).collect();
        let req = Append { records: &records, ..Append::default() };
        let a = ok(self.engine().append(LOGS[topic], &req))?;
        let log = self.model.logs[topic].as_mut().unwrap();
        let first = names.iter().map(|n| log.push(Rec { name: n.clone(), tag })).min();
        must!(Some(a.first_seq) == first, "first_seq {} is not {first:?}", a.first_seq);
        Ok(())
    }

    fn delete_records(&mut self, topic: usize, back: u64) -> Outcome {
        let Some(log) = &mut self.model.logs[topic] else { return Ok(()) };
        let before = (log.head + 1).saturating_sub(back);
        let rest = log.records.split_off(&before);
        let gone = std::mem::replace(&mut log.records, rest).len() as u64;
        let req = DeleteRequest { before_seq: Some(before), matching: None };
        let deleted = ok(self.engine().delete(LOGS[topic], &req))?.deleted;
        must!(deleted == gone, "{deleted} were deleted, not {gone}");
        Ok(())
    }

    fn drop_topic(&mut self, topic: usize) -> Outcome {
        if self.model.logs[topic].is_none() {
            return Ok(());
        }
        let routers = [topic.checked_sub(1), Some(topic)].into_iter().flatten();
        let routers = routers.filter(|r| *r < 2 && self.model.routers[*r].is_some()).count();
        let d = ok(self.engine().delete_topic(LOGS[topic], false))?;
        must!(d.deleted && d.routers_removed.len() == routers, "{d:?}, not {routers} routers");
        self.model.drop_log(topic);
        self.handles.retain(|which, _| self.model.handles.contains_key(which));
        Ok(())
    }

    fn power(&mut self, pick: u64) -> Outcome {
        if self.class == Durability::Disk {
            ok(self.engine().sync())?;
        }
        let mut cursor = self.fs.crash_cursor();
        while cursor.advance() {}
        let survivals = cursor.survivals(self.seed, &CrashOptions::default());
        let survival = survivals[(pick % survivals.len() as u64) as usize];
        let image = cursor.image(survival);
        self.another_life(&image)
    }

    fn another_life(&mut self, image: &topics_env::sim::DiskImage) -> Outcome {
        let old = self.engine.take();
        self.fs = Arc::new(SimFs::from_image(image));
        (self.watch, self.model.watch) = (None, None);
        self.handles.clear();
        self.model.handles.clear();
        // On its own disk, which nobody sees again.
        old.map_or(Ok(()), |e| ok(e.close()))?;
        self.open();
        self.restarted()
    }

    /// Adopts what a restart may change: seqs that were skipped, clocks that begin anew.
    fn restarted(&mut self) -> Outcome {
        let engine = self.engine();
        let logs = LOGS.iter().zip(&mut self.model.logs);
        for (name, log) in logs.filter_map(|(n, l)| l.as_mut().map(|l| (n, l))) {
            let s = ok(engine.state(name, false))?;
            must!(s.topic_id == log.id, "{name} is topic {}, not {}", s.topic_id, log.id);
            must!(s.next_seq > log.head, "I2: {name}: next {} at {}", s.next_seq, log.head);
            log.head = s.next_seq - 1;
            log.gaps = s.gaps.iter().map(|g| (g.from, g.to)).collect();
            // A loss in front of everything is a floor.
            log.gaps.extend((s.evict_floor > 1).then(|| (1, s.evict_floor - 1)));
        }
        let s = ok(engine.state("q", false))?;
        must!(s.next_seq > self.model.queue.head, "I2: q: next {}", s.next_seq);
        self.model.queue.head = s.next_seq - 1;
        let before = self.model.queue.jobs.clone();
        self.model.queue.restarted();
        self.leases_again(&before)
    }

    fn leases_again(&mut self, before: &BTreeMap<u64, Job>) -> Outcome {
        let (mono, wall) = (self.mono(), self.wall());
        let peeked = ok(self.engine().peek("q", None, 10_000))?;
        let peeked: BTreeMap<u64, _> = peeked.iter().map(|(j, _)| (j.seq, j.clone())).collect();
        for (seq, job) in &mut self.model.queue.jobs {
            let shown = peeked.get(seq);
            let alive = job.phase.clone();
            let logged = if alive == Phase::Waiting { job.lapsed.take() } else { Some(alive) };
            // What had run out may begin anew, what had not must.
            match logged {
                Some(Phase::Leased { id, node, lease_ms, deadline }) => {
                    let held = shown.is_some_and(|j| j.lease_id == Some(id));
                    must!(held || deadline <= mono, "I6: the lease {id} of {seq} is gone");
                    let deadline = mono + lease_ms;
                    job.phase = Phase::Waiting;
                    if held {
                        job.phase = Phase::Leased { id, node, lease_ms, deadline };
                    }
                }
                Some(Phase::Delayed(until)) => {
                    let at = shown.and_then(|j| j.visible_at);
                    must!(at.is_some() || until <= mono, "the delay of {seq} is gone");
                    job.phase = at.map_or(Phase::Waiting, |at| Phase::Delayed(mono + at - wall));
                }
                _ => {}
            }
            // Fences of leases that are over are stale.
            if let Some(Phase::Leased { id, node, .. }) = before.get(seq).map(|j| &j.phase)
                && !matches!(job.phase, Phase::Leased { .. })
            {
                self.stale.push((*node, *seq, *id));
            }
        }
        Ok(())
    }
}
