//! Executes steps on the engine and on the model.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use topics_engine::{
    Append, ConfigPatch, Consumer, DeleteRequest, Durability, Engine, Guarantee, NewRecord,
    Options, RouterRequest, TopicMatch, TopicType, Watch, Work,
};
use topics_env::Clock;
use topics_model::topic::{Matching, Topic};
use topics_sim::{SimClock, SimFs, env_on};

use super::flaw::Flaw;
use super::model::{Model, written};
use super::step::Step;
use super::txns::{Keyed, STAGE_MS};
use crate::run::{DIR, Dice};

/// The logs' names, in the order of the model.
pub const LOGS: [&str; 4] = ["s", "d", "e", "dead"];
pub const TAGS: [&str; 3] = ["", "keep", "other"];
pub const DEAD: usize = 3;

/// `Err`: the problem.
pub type Outcome = Result<(), String>;

/// The engine and the model.
pub struct Driver {
    pub fs: Arc<SimFs>,
    pub clock: Arc<SimClock>,
    pub engine: Option<Engine>,
    pub model: Model,
    pub handles: BTreeMap<usize, Consumer>,
    pub watch: Option<Watch>,
    pub class: Durability,
    pub guarantee: Guarantee,
    pub filters: [Option<&'static str>; 2],
    pub queue_id: u64,
    /// The transactions of each key.
    pub keyed: [Option<Keyed>; 2],
    /// A stream of jobs: its node, its maximum of jobs, and the leases that it received.
    pub work: Option<(Work, usize, usize, Vec<u64>)>,
    shards: u32,
    pub seed: u64,
    pub opens: u64,
    names: usize,
    flaw: Option<Flaw>,
    /// The highest value of the engine's time.
    pub latest: u64,
    /// The engine's time at its last check in this process, and the monotonic clock then.
    timed: Option<(u64, u64)>,
    /// The last step of the wall clock, or open of the engine.
    stepped_at: u64,
    /// How often the flaw took effect.
    pub hits: usize,
    /// Stale leases: node, seq, id.
    pub stale: Vec<(usize, u64, u64)>,
}

/// Fails with a text unless the condition holds.
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

impl Driver {
    pub fn new(seed: u64, flaw: Option<Flaw>) -> Self {
        let mut dice = Dice::new(seed ^ 0x9a17);
        let filter = |d: &mut Dice| (d.below(2) == 0).then_some("keep");
        let mut driver = Self {
            fs: Arc::new(SimFs::new()),
            clock: Arc::new(SimClock::new(1_700_000_000_000)),
            engine: None,
            model: Model::default(),
            handles: BTreeMap::new(),
            watch: None,
            class: *dice.pick(&[Durability::Disk, Durability::Fsync]),
            guarantee: *dice.pick(&[Guarantee::AtLeastOnce, Guarantee::ExactlyOnce]),
            filters: [filter(&mut dice), filter(&mut dice)],
            queue_id: 0,
            keyed: [None, None],
            work: None,
            shards: 1 + dice.below(2) as u32,
            seed,
            opens: 0,
            names: 0,
            flaw,
            latest: 0,
            timed: None,
            stepped_at: 0,
            hits: 0,
            stale: Vec::new(),
        };
        driver.begin();
        let q = &mut driver.model.queue;
        (q.durable, q.letters) = (dice.below(2) == 0, dice.below(2) == 0);
        (q.lease_ms, q.max_deliveries) = (10_000, dice.below(4));
        let patch = ConfigPatch {
            kind: Some(TopicType::Queue),
            durability: Some(driver.class),
            leases_durable: Some(q.durable),
            dead_letter: q.letters.then(|| Some("dead".into())),
            lease_ms: Some(q.lease_ms),
            max_deliveries: Some(q.max_deliveries),
            retry_backoff_ms: Some(1_000),
            ..ConfigPatch::default()
        };
        driver.queue_id = driver.engine().create_topic("q", &patch).unwrap().topic_id;
        driver.ensure(DEAD);
        driver
    }

    /// Opens the engine in a new process.
    pub fn begin(&mut self) {
        self.engine = None;
        self.opens += 1;
        let env = env_on(&self.fs, &self.clock, self.seed ^ (self.opens << 32));
        let options = Options {
            background: false,
            wal_shards: self.shards,
            wal_file_min: 16 << 10,
            wal_file_max: 16 << 10,
            segment_max_events: 8,
            txn_ttl: Duration::from_millis(STAGE_MS),
            ..Options::default()
        };
        self.engine = Some(Engine::open(env, Path::new(DIR), options).unwrap());
        (self.timed, self.stepped_at) = (None, self.mono());
    }

    /// Whether the engine shall show this flaw now.
    pub fn flawed(&mut self, flaw: Flaw) -> bool {
        let wrong = self.flaw == Some(flaw);
        self.hits += usize::from(wrong);
        wrong
    }

    pub fn engine(&self) -> Engine {
        self.engine.clone().unwrap()
    }

    pub fn mono(&self) -> u64 {
        self.clock.mono_ns() / 1_000_000
    }

    /// The engine's time, used for everything except leases and backoffs.
    pub fn wall(&self) -> u64 {
        self.engine().time_ms()
    }

    /// The engine's time never goes back or stands still while the engine runs, and follows a large
    /// step forward only after the step has persisted.
    pub fn check_time(&mut self) -> Outcome {
        const STEP: u64 = 3_600_000;
        let (time, mono, wall) = (self.wall(), self.mono(), self.clock.wall_ms());
        let persisted = mono - self.stepped_at >= 600_000;
        if let Some((before, at)) = self.timed {
            let (expected, least) = (before + (mono - at), before + (mono - at) * 7 / 8);
            must!(time >= least.saturating_sub(1), "time is {time}, at least {least} was due");
            must!(time <= expected.max(wall), "time is {time}, {expected} and {wall} were due");
            let far = time > expected + STEP;
            must!(!far || persisted, "time went from {before} to {time} by a step of the clock");
        }
        self.timed = Some((time, mono));
        Ok(())
    }

    /// The payload of a new record.
    pub fn name(&mut self) -> String {
        self.names += 1;
        format!("\"n{}\"", self.names)
    }

    /// Makes sure that a log of this name exists.
    pub fn ensure(&mut self, topic: usize) {
        if self.model.logs[topic].is_none() {
            let patch = self.log_config();
            let id = self.engine().create_topic(LOGS[topic], &patch).unwrap().topic_id;
            self.model.logs[topic] = Some(Topic { id, ..Topic::default() });
        }
    }

    pub fn log_config(&self) -> ConfigPatch {
        ConfigPatch { durability: Some(self.class), ..ConfigPatch::default() }
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
            Step::Sync => self.sync()?,
            Step::Checkpoint => ok(self.engine().checkpoint())?,
            Step::Pass { ms } => {
                self.clock.advance_ms(*ms);
                // Something that ran out and was not noticed yet still counts.
                return Ok(());
            }
            Step::StepWall { ms } => {
                self.latest = self.latest.max(self.wall());
                self.clock.step_wall_ms(*ms);
                self.stepped_at = self.mono();
            }
            Step::Shards { n } => self.shards = *n,
            Step::Shortage { of, work } => self.shortage(*of, *work)?,
            Step::Reopen => self.reopen()?,
            Step::Kill => self.kill()?,
            Step::Power { pick } => self.power(*pick)?,
            job if self.job(job)? => {}
            txn if self.txn(txn)? => {}
            consumer if self.consumer(consumer)? => {}
            reader => self.reader(reader)?,
        }
        self.check_time()?;
        self.check()
    }

    pub fn finish(&mut self) -> Outcome {
        self.take(&Step::Ticks)?;
        self.take(&Step::Reopen)?;
        self.take(&Step::Ticks)
    }

    /// Runs the engine's periodic work, which examines everything every 5 s.
    pub fn tick(&mut self) -> Outcome {
        ok(self.engine().tick())?;
        self.exhaust();
        let now = self.mono();
        if self.model.swept_at.is_none_or(|at| now - at >= 5_000) {
            self.model.swept_at = Some(now);
            self.expire();
            let before = self.wall() - STAGE_MS;
            let wall = self.wall();
            for k in self.keyed.iter_mut().flatten().filter(|k| k.until <= wall) {
                k.forgotten_in = Some(self.opens);
            }
            let writers = &mut self.model.writers;
            writers.iter_mut().for_each(|w| w.stages.retain(|_, s| s.at >= before));
        }
        Ok(())
    }

    fn append(&mut self, topic: usize, n: usize, tag: &'static str) -> Outcome {
        self.ensure(topic);
        let names: Vec<String> = (0..n).map(|_| self.name()).collect();
        let tagged = NewRecord { tag: tag.as_bytes(), ..NewRecord::default() };
        let records: Vec<NewRecord<'_>> =
            names.iter().map(|name| NewRecord { data: name.as_bytes(), ..tagged }).collect();
        let req = Append { records: &records, ..Append::default() };
        let a = ok(self.engine().append(LOGS[topic], &req))?;
        let wall = self.wall();
        let log = self.model.logs[topic].as_mut().unwrap();
        let first = names.iter().map(|name| log.push(written(name, tag, wall))).min();
        must!(Some(a.first_seq) == first, "first_seq {} is not {first:?}", a.first_seq);
        Ok(())
    }

    fn delete_records(&mut self, topic: usize, back: u64) -> Outcome {
        let Some(log) = &mut self.model.logs[topic] else { return Ok(()) };
        let before = (log.head + 1).saturating_sub(back);
        let gone = log.delete(Some(before), &Matching::All);
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
}
