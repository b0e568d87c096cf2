//! Drives an engine: logs every call before and after, and checks every answer.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use topics_engine::{
    Append, Appended, ConfigPatch, DeleteRequest, Engine, Error, NewRecord, TopicMatch,
};
use topics_env::Clock;
use topics_sim::{DiskImage, SimClock, SimFs, env_on};

use super::batch::{Batch, Expect};
use super::{DIR, HookSpec, Life, Recording, Tuning};
use crate::oracle::{Body, CallId, Event, Keep, Observation, Op, Rec, Reply, World, observe};

/// The start of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    pub workload: &'static str,
    pub seed: u64,
    pub hook: HookSpec,
    /// Whether a failed call is expected (faults are planned).
    pub faults: bool,
}

/// The log and the resulting model; completions of async calls also write to it.
#[derive(Debug)]
struct Log {
    events: Vec<Event>,
    world: World,
    life: usize,
    fs: Arc<SimFs>,
    clock: Arc<SimClock>,
    calls: usize,
    problems: Vec<String>,
    faults: bool,
    /// The open whose engine is alive; 0: none.
    process: u64,
    /// Whether a call may be refused for lack of space or descriptors.
    shortages: bool,
}

impl Log {
    fn push(&mut self, body: Body) {
        let (life, at, wall) = (self.life, self.fs.ops_len(), self.clock.wall_ms());
        let event = Event { life, at, wall, body };
        self.world.apply(&event);
        self.events.push(event);
        for p in self.world.problems.drain(..) {
            self.problems.push(format!("event {}: {p}", self.events.len()));
        }
    }

    fn begin(&mut self, op: Op) -> CallId {
        self.calls += 1;
        let id = self.calls;
        self.push(Body::Begin(id, Box::new(op)));
        id
    }

    fn end<T>(&mut self, id: CallId, result: Result<T, Error>, reply: impl Fn(&T) -> Reply) {
        let reply = match &result {
            Ok(t) => reply(t),
            Err(Error::StorageUnavailable { reason: "no_space" | "no_descriptors", detail })
                if self.shortages =>
            {
                Reply::Failed(detail.clone())
            }
            Err(Error::Closed | Error::StorageUnavailable { .. } | Error::Corrupt { .. })
            | Err(Error::Internal(_)) => {
                let text = result.as_ref().err().map_or_else(String::new, ToString::to_string);
                if !self.faults || text.starts_with("internal") {
                    self.problems.push(format!("call {id} fails: {text}"));
                }
                Reply::Failed(text)
            }
            Err(e) => Reply::Refused(e.code()),
        };
        self.push(Body::End(id, reply));
    }
}

/// Drives the engines of successive processes on one disk.
#[derive(Debug)]
pub struct Driver {
    setup: Setup,
    log: Arc<Mutex<Log>>,
    pub engine: Option<Engine>,
    pub tuning: Tuning,
    lives: Vec<Life>,
    clock: Arc<SimClock>,
    keys: HashMap<(String, String), usize>,
    tunings: Vec<((usize, usize), Tuning)>,
    keyed: Vec<(String, usize)>,
    opens: u64,
    /// Faults of the current process that the log contains.
    fired: usize,
}

fn appended(a: &Appended) -> Reply {
    Reply::Appended {
        topic_id: a.topic_id,
        first_seq: a.first_seq,
        created: a.created,
        deduped: a.deduped,
        class: a.durability,
    }
}

impl Driver {
    /// An empty disk without an open engine.
    pub fn new(setup: Setup) -> Self {
        let fs = Arc::new(SimFs::new());
        let clock = Arc::new(SimClock::new(1_700_000_000_000));
        let log = Log {
            events: Vec::new(),
            world: World { shards: 1, ..World::default() },
            life: 0,
            fs: fs.clone(),
            clock: clock.clone(),
            calls: 0,
            problems: Vec::new(),
            faults: setup.faults,
            process: 0,
            shortages: false,
        };
        Self {
            setup,
            log: Arc::new(Mutex::new(log)),
            engine: None,
            tuning: Tuning::default(),
            lives: vec![Life { fs, boot: 1 }],
            clock,
            keys: HashMap::new(),
            tunings: Vec::new(),
            keyed: Vec::new(),
            opens: 0,
            fired: 0,
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap()
    }

    pub fn fs(&self) -> Arc<SimFs> {
        self.log().fs.clone()
    }

    pub fn world(&self) -> World {
        self.log().world.clone()
    }

    /// Adds a problem.
    pub fn problem(&self, text: String) {
        let mut log = self.log();
        let at = log.events.len();
        log.problems.push(format!("event {at}: {text}"));
    }

    pub fn problems(&self) -> Vec<String> {
        self.log().problems.clone()
    }

    /// From now on a call may be refused for lack of space or descriptors, and an acked but
    /// unwritten change may be discarded.
    pub fn short(&mut self) {
        let mut log = self.log();
        log.shortages = true;
        log.push(Body::Trouble);
    }

    /// From now on a failed call is a problem.
    pub fn strict(&mut self) {
        self.setup.faults = false;
        self.log().faults = false;
    }

    /// Opens an engine on the directory, whether or not another one has it open.
    pub fn another(&mut self) -> Result<Engine, Error> {
        let fs = self.fs();
        self.opens += 1;
        let seed = self.setup.seed ^ (self.opens << 32);
        let env = self.setup.hook.on(env_on(&fs, &self.clock, seed), &fs);
        Engine::open(env, Path::new(DIR), self.tuning.options())
    }

    /// Opens with the current tuning; false if the open fails.
    pub fn open(&mut self) -> bool {
        let at = (self.lives.len() - 1, self.fs().ops_len());
        self.tunings.push((at, self.tuning));
        if self.log().events.is_empty() {
            let shards = self.tuning.shards;
            self.log().push(Body::Shards(shards));
        }
        match self.another() {
            Ok(engine) => {
                self.engine = Some(engine);
                self.log().process = self.opens;
                self.opened();
                true
            }
            Err(e) => {
                if !self.setup.faults {
                    self.problem(format!("open fails: {e}"));
                }
                self.log().push(Body::OpenFailed(e.to_string()));
                false
            }
        }
    }

    /// Observes the engine; repeats the observation if the state changed during it.
    fn see(&self, limit: usize) -> Option<(Observation, Vec<String>)> {
        let engine = self.engine.as_ref()?;
        let events = || self.log().events.len();
        let before = events();
        let first = observe(engine, self.clock.wall_ms(), limit);
        // Expiry during the observation is logged and completes calls in flight; a planned fault
        // may have hit a read: observe again.
        let again = !first.1.is_empty() || events() != before;
        Some(if again { observe(engine, self.clock.wall_ms(), limit) } else { first })
    }

    /// Checks and adopts the state that a new open serves.
    fn opened(&mut self) {
        let Some((seen, mut found)) = self.see(7) else { return };
        let mut log = self.log.lock().unwrap();
        let at = log.events.len();
        found.extend(log.world.check(&seen, Keep::Live));
        log.problems.extend(found.into_iter().map(|p| format!("event {at}, after open: {p}")));
        log.push(Body::Opened { seen: Arc::new(seen), shards: self.tuning.shards });
    }

    /// Closes, drops and opens again.
    pub fn reopen(&mut self) -> bool {
        self.close();
        self.open()
    }

    pub fn close(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        let id = self.log().begin(Op::Close);
        let result = engine.close();
        self.log().end(id, result, |()| Reply::Done);
        self.drop_engine(engine);
        let kept = self.kept();
        self.log().push(Body::Died(kept));
    }

    /// Ends the process of an engine, which must leave nothing in memory.
    fn drop_engine(&mut self, engine: Engine) {
        self.log().process = 0;
        drop(engine);
        // The references of the current life, of the log, and this one.
        let disk = self.fs();
        if Arc::strong_count(&disk) > 3 {
            self.problem("an engine that is dropped stays in memory".into());
        }
    }

    /// What survives the end of the process: an ack of class `disk`, unless a sync failed and
    /// dropped the pages.
    fn kept(&self) -> Keep {
        if self.fs().pages_reverted("/wal/") { Keep::Power } else { Keep::Kill }
    }

    /// Kills the process; its writes are still visible.
    pub fn kill(&mut self) {
        let image = self.fs().kill_image();
        let boot = self.lives[self.lives.len() - 1].boot;
        let kept = self.kept();
        self.next_life(&image, boot, kept);
    }

    /// Cuts the power; this image remains.
    pub fn power(&mut self, image: &DiskImage) {
        let boot = self.lives[self.lives.len() - 1].boot + 1;
        self.next_life(image, boot, Keep::Power);
    }

    fn next_life(&mut self, image: &DiskImage, boot: u64, kind: Keep) {
        if let Some(engine) = self.engine.take() {
            self.drop_engine(engine);
        }
        self.fired = 0;
        let fs = Arc::new(SimFs::from_image(image));
        self.lives.push(Life { fs: fs.clone(), boot });
        let mut log = self.log();
        log.push(Body::Died(kind));
        log.life += 1;
        log.fs = fs;
    }

    /// A write; `None` if it was not acked.
    pub fn append(&mut self, topic: &str, batch: &Batch) -> Option<Appended> {
        let engine = self.engine.clone()?;
        let (id, recs, expect) = self.begin_append(topic, batch);
        let new: Vec<NewRecord<'_>> = recs.iter().map(new_record).collect();
        let result = engine.append(topic, &request(batch, &new, expect));
        self.judge_condition(topic, batch, result.as_ref().err());
        self.log().end(id, result.clone(), appended);
        result.ok()
    }

    /// A write with a callback, which is called in [`Self::drive`] or later.
    pub fn append_async(&mut self, topic: &str, batch: &Batch) {
        let Some(engine) = self.engine.clone() else { return };
        let (id, recs, expect) = self.begin_append(topic, batch);
        let new: Vec<NewRecord<'_>> = recs.iter().map(new_record).collect();
        let (log, process) = (self.log.clone(), self.log().process);
        let done = Box::new(move |result| {
            let mut log = log.lock().unwrap();
            // What a process that is dead is answered says nothing.
            if log.process == process {
                log.end(id, result, appended);
            }
        });
        engine.append_async(topic, &request(batch, &new, expect), done);
    }

    fn begin_append(&mut self, topic: &str, batch: &Batch) -> (CallId, Arc<[Rec]>, Option<u64>) {
        let mut log = self.log.lock().unwrap();
        let key = batch.key.as_ref().map(|k| (topic.to_owned(), k.clone()));
        let known = key.as_ref().and_then(|k| self.keys.get(k)).copied();
        let attempt = known.unwrap_or(log.world.attempts.len());
        if let (None, Some(key)) = (known, key) {
            self.keys.insert(key, attempt);
            self.keyed.push((topic.to_owned(), attempt));
        }
        let recs: Arc<[Rec]> = match known {
            Some(a) => log.world.attempts[a].recs.clone(),
            None => batch.records(attempt).into(),
        };
        let head = log.world.living(topic).map_or(0, |i| i.head);
        let expect_head = batch.expect.map(|e| if e == Expect::Right { head } else { head + 3 });
        let op = Op::Append {
            topic: topic.to_owned(),
            attempt,
            recs: recs.clone(),
            key: batch.key.clone().map(String::into_bytes),
            expect_head,
            sync: batch.sync,
            config: batch.config.clone(),
        };
        (log.begin(op), recs, expect_head)
    }

    /// A condition must be answered as the model expects, unless something is undetermined.
    fn judge_condition(&self, topic: &str, batch: &Batch, error: Option<&Error>) {
        let refused = matches!(error, Some(Error::HeadMismatch { .. }));
        let log = self.log();
        let short = matches!(error, Some(Error::StorageUnavailable { .. })) && log.shortages;
        let unclear = log.world.troubled
            || short
            || log.world.undetermined.iter().any(|(_, o)| o.topic() == Some(topic));
        let wrong = batch.expect == Some(Expect::Wrong);
        if !unclear && refused != wrong {
            drop(log);
            self.problem(format!("{topic}: expect_head {:?} was answered {error:?}", batch.expect));
        }
    }

    pub fn drive(&mut self) {
        if let Some(engine) = &self.engine {
            engine.drive();
        }
    }

    /// Waits for the calls in flight. A write that waited for a topic id is staged by the sync that
    /// reserves the id, so one round may not suffice.
    pub fn wait_idle(&mut self) {
        for _ in 0..4 {
            self.drive();
            if self.log().world.open.is_empty() || !self.sync() {
                return;
            }
        }
    }

    fn call<T>(
        &mut self,
        op: Op,
        run: impl FnOnce(&Engine) -> Result<T, Error>,
        reply: impl Fn(&T) -> Reply,
    ) -> bool {
        let Some(engine) = self.engine.clone() else { return false };
        let id = self.log().begin(op);
        let result = run(&engine);
        let ok = result.is_ok();
        self.log().end(id, result, reply);
        ok
    }

    pub fn create(&mut self, topic: &str, patch: &ConfigPatch) -> bool {
        let op = Op::Create { topic: topic.to_owned(), patch: patch.clone() };
        self.call(op, |e| e.create_topic(topic, patch), |c| Reply::Created(Box::new(c.clone())))
    }

    pub fn drop_topic(&mut self, topic: &str) -> bool {
        self.keys.retain(|(t, _), _| t != topic);
        let op = Op::Drop { topic: topic.to_owned() };
        self.call(op, |e| e.delete_topic(topic, false), |d| Reply::Dropped { existed: d.deleted })
    }

    pub fn delete(&mut self, topic: &str, before: Option<u64>, tag: Option<TopicMatch>) -> bool {
        let req = DeleteRequest { before_seq: before, matching: tag };
        let op = Op::Delete { topic: topic.to_owned(), req: req.clone() };
        self.call(op, |e| e.delete(topic, &req), |d| Reply::Deleted(Box::new(d.clone())))
    }

    pub fn sync(&mut self) -> bool {
        self.call(Op::Sync, Engine::sync, |()| Reply::Done)
    }

    pub fn sync_topic(&mut self, topic: &str) -> bool {
        let op = Op::SyncTopic { topic: topic.to_owned() };
        self.call(op, |e| e.sync_topic(topic), |()| Reply::Done)
    }

    pub fn checkpoint(&mut self) -> bool {
        self.call(Op::Checkpoint, Engine::checkpoint, |()| Reply::Done)
    }

    pub fn tick(&mut self) -> bool {
        self.call(Op::Tick, Engine::tick, |()| Reply::Done)
    }

    /// Advances the clock.
    pub fn pass(&mut self, ms: u64) {
        self.clock.advance_ms(ms);
        self.log().push(Body::Clock { passed: ms });
    }

    /// Sets the wall clock without advancing time.
    pub fn step_wall(&mut self, ms: i64) {
        self.clock.step_wall_ms(ms);
        self.log().push(Body::Clock { passed: 0 });
    }

    /// Reads everything, checks it and updates the model.
    pub fn look(&mut self) {
        let Some((seen, mut found)) = self.see(5) else { return };
        let fired = self.fs().faults_fired();
        if fired > std::mem::replace(&mut self.fired, fired) {
            self.log().push(Body::Trouble);
        }
        let mut log = self.log.lock().unwrap();
        let at = log.events.len();
        found.extend(log.world.check(&seen, Keep::Live));
        log.problems.extend(found.into_iter().map(|p| format!("event {at}, live: {p}")));
        log.push(Body::Seen(Arc::new(seen)));
    }

    /// The last seq of a topic's latest write.
    pub fn head(&self, topic: &str) -> u64 {
        self.log().world.living(topic).map_or(0, |i| i.head)
    }

    /// Whether a topic of this name exists, or may exist.
    pub fn knows(&self, topic: &str) -> bool {
        let log = self.log();
        log.world.living(topic).is_some()
            || log.world.possible().any(|(_, o)| o.may_create() && o.topic() == Some(topic))
    }

    /// Ends the run.
    pub fn finish(mut self) -> Recording {
        self.log().process = 0;
        self.engine = None;
        let disks = self.lives.iter().flat_map(|l| l.fs.violations());
        for v in disks.filter(|_| !self.setup.faults) {
            self.problem(format!("the disk's monitor saw {v:?}"));
        }
        let log = self.log();
        Recording {
            workload: self.setup.workload,
            seed: self.setup.seed,
            lives: self.lives.clone(),
            events: log.events.clone(),
            tunings: self.tunings.clone(),
            problems: log.problems.clone(),
            keyed: self.keyed.clone(),
        }
    }
}

fn new_record(r: &Rec) -> NewRecord<'_> {
    NewRecord {
        data: &r.data,
        binary: r.binary,
        tag: &r.tag,
        node: &r.node,
        meta: &r.meta,
        ttl_ms: r.ttl_ms,
        ..NewRecord::default()
    }
}

fn request<'a>(batch: &'a Batch, records: &'a [NewRecord<'a>], expect: Option<u64>) -> Append<'a> {
    Append {
        records,
        key: batch.key.as_deref().unwrap_or("").as_bytes(),
        expect_head: expect,
        sync: batch.sync,
        config: batch.config.as_ref(),
        ..Append::default()
    }
}
