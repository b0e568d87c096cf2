//! Recovers an image, observes it, repeats writes, writes, closes, and opens again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use topics_engine::{Append, Durability, Engine, NewRecord};
use topics_sim::{DiskImage, SimClock, SimFs, env_on};
use xxhash_rust::xxh3::xxh3_64;

use super::folders;
use crate::oracle::{Observation, Rec, Retried, TopicObs, observe};
use crate::run::{DIR, HookSpec, Tuning};

/// A keyed write that is repeated after recovery.
#[derive(Clone, Debug)]
pub struct Retry {
    pub topic: String,
    pub attempt: usize,
    pub recs: Arc<[Rec]>,
    pub key: Vec<u8>,
}

/// How to recover.
#[derive(Clone, Debug)]
pub struct Plan {
    pub tuning: Tuning,
    pub wall: u64,
    pub seed: u64,
    pub hook: HookSpec,
    pub retries: Arc<Vec<Retry>>,
    /// Also write, close and open again.
    pub thorough: bool,
    /// Keep a journal for a report.
    pub journal: bool,
    /// No sync failed before: then a crash causes no damage. A failed sync of a directory can bring
    /// back a snapshot whose files are gone; an open ignores it, `verify` reports it.
    pub sound: bool,
}

/// The result of a recovery.
#[derive(Clone, Debug, Default)]
pub struct Probe {
    /// The error of a refused open.
    pub refused: Option<String>,
    pub seen: Observation,
    pub retried: Vec<(usize, Retried)>,
    /// Problems that do not depend on earlier acks.
    pub problems: Vec<String>,
    /// Mutating calls of the first open.
    pub open_ops: usize,
    /// All mutating calls, if requested.
    pub journal: Vec<String>,
    /// A digest of the state that readers see after this recovery: topics, records, floors, gaps,
    /// errors.
    pub outcome: u64,
}

/// An engine over an image, with its disk.
pub struct Mounted {
    pub fs: Arc<SimFs>,
    pub clock: Arc<SimClock>,
    plan: Plan,
    /// Differs for each process, so that salts do not repeat.
    seed: u64,
    opens: u64,
}

impl Mounted {
    pub fn new(image: &DiskImage, plan: &Plan) -> Self {
        let seed = plan.seed ^ image.hash().rotate_left(17);
        let fs = Arc::new(SimFs::from_image(image));
        let clock = Arc::new(SimClock::new(plan.wall));
        Self { fs, clock, plan: plan.clone(), seed, opens: 0 }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn open(&mut self) -> topics_engine::Result<Engine> {
        self.opens += 1;
        let env = env_on(&self.fs, &self.clock, self.seed ^ (self.opens << 32));
        let env = self.plan.hook.on(env, &self.fs);
        Engine::open(env, Path::new(DIR), self.plan.tuning.options())
    }
}

/// Recovers an image; a panic counts as a problem.
pub fn probe(image: &DiskImage, plan: &Plan) -> Probe {
    let mut out = Probe::default();
    let mut disk = Mounted::new(image, plan);
    let fs = disk.fs.clone();
    let run = AssertUnwindSafe(|| steps(&mut disk, image, plan, &mut out));
    if let Err(panic) = catch_unwind(run) {
        out.problems.push(format!("panic: {}", panic_text(&*panic)));
    }
    let text = format!("{:?} {}", out.refused, out.seen.line());
    out.outcome = xxh3_64(text.as_bytes());
    if plan.journal {
        out.journal = (0..fs.ops_len()).map(|i| fs.describe_op(i)).collect();
    }
    out
}

/// The message of a panic.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?").to_owned()
}

fn steps(disk: &mut Mounted, image: &DiskImage, plan: &Plan, out: &mut Probe) {
    // A crash is not damage. Before STORE exists there is nothing to verify.
    if plan.sound && verifies(disk) && image.read(&format!("{DIR}/meta/STORE")).is_some() {
        verified(disk, out);
    }
    let engine = match disk.open() {
        Ok(engine) => engine,
        Err(e) => {
            out.refused = Some(e.to_string());
            return;
        }
    };
    out.open_ops = disk.fs.ops_len();
    let limit = 3 + (image.hash() % 11) as usize;
    let (seen, problems) = observe(&engine, plan.wall, limit);
    out.problems.extend(problems);
    out.seen = seen;
    retry(&engine, plan, out);
    whole(&engine, out);
    if plan.thorough {
        thorough(disk, image, engine, out);
        out.problems.extend(folders::after_deletes(image, plan));
    }
}

/// A crash damages no named file: no checksum fails, and no file is rebuilt.
fn whole(engine: &Engine, out: &mut Probe) {
    let counts = engine.damage_counts();
    if counts != (0, 0) {
        out.problems.push(format!("I9: (corrupt, rebuilt) is {counts:?}, nothing was damaged"));
    }
}

fn retry(engine: &Engine, plan: &Plan, out: &mut Probe) {
    for r in plan.retries.iter() {
        let records: Vec<NewRecord<'_>> = r.recs.iter().map(new_record).collect();
        let req =
            Append { records: &records, key: &r.key, create: Some(false), ..Append::default() };
        let answer = match engine.append(&r.topic, &req) {
            Ok(a) => Ok((a.topic_id, a.first_seq, a.deduped)),
            Err(e) => Err(e.code()),
        };
        out.retried.push((r.attempt, answer));
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

/// The engine accepts writes, and closes and reopens with the same state.
fn thorough(disk: &mut Mounted, image: &DiskImage, engine: Engine, out: &mut Probe) {
    let plan = disk.plan.clone();
    let wall = plan.wall;
    let retried = !plan.retries.is_empty();
    let mut expected = Vec::new();
    for topic in &out.seen.topics {
        let name = &topic.state.topic;
        let next = engine.state(name, false).map_or(0, |s| s.next_seq);
        let full = matches!(topic.state.config.discard, topics_engine::Discard::Reject);
        match append_one(&engine, name) {
            Ok(first) if first != next => {
                out.problems.push(format!("{name}: wrote {first}, next_seq said {next}"));
            }
            Ok(first) => expected.push((name.clone(), first)),
            Err(e) if full && e.contains("full") => {}
            Err(e) => out.problems.push(format!("{name}: a write after recovery fails: {e}")),
        }
    }
    match append_one(&engine, "zz-probe") {
        Ok(1) => expected.push(("zz-probe".into(), 1)),
        other => out.problems.push(format!("a new topic's first write: {other:?}")),
    }
    // A file that is appended to reports its write-back error once, and its round is abandoned.
    let failing = image.failed_write_back();
    if failing {
        let _ = engine.checkpoint();
    }
    if (failing || (plan.seed ^ out.open_ops as u64) & 1 == 0)
        && let Err(e) = engine.checkpoint()
    {
        out.problems.push(format!("a checkpoint after recovery fails: {e}"));
    }
    let (second, problems) = observe(&engine, wall, 50);
    out.problems.extend(problems);
    for (name, seq) in &expected {
        if second.topic(name).is_none_or(|t| t.get(*seq).is_none()) {
            out.problems.push(format!("{name}: seq {seq} written after recovery is not there"));
        }
    }
    for before in &out.seen.topics {
        let after = second.topic(&before.state.topic);
        if !after.is_some_and(|a| extends(before, a, retried)) {
            out.problems.push(format!("{}: a write changed what was there", before.state.topic));
        }
    }
    whole(&engine, out);
    if let Err(e) = engine.close() {
        out.problems.push(format!("close after recovery fails: {e}"));
    }
    drop(engine);
    out.problems.extend(folders::unnamed(disk, "after a clean close"));
    if verifies(disk) {
        verified(disk, out);
    }
    match disk.open() {
        Ok(engine) => {
            let (third, problems) = observe(&engine, wall, 50);
            out.problems.extend(problems.into_iter().map(|p| format!("after reopen: {p}")));
            out.problems.extend(reopened(&second, &third));
            whole(&engine, out);
            if let Some(t) = third.topics.first()
                && let Err(e) = append_one(&engine, &t.state.topic)
                && !e.contains("full")
            {
                out.problems.push(format!("a write after reopen fails: {e}"));
            }
        }
        Err(e) => out.problems.push(format!("open after a clean close fails: {e}")),
    }
}

/// Selects a sample of the disks without a mutant.
fn verifies(disk: &Mounted) -> bool {
    disk.seed.is_multiple_of(8) || !matches!(disk.plan.hook, HookSpec::None)
}

/// Every named byte is valid, including bytes that no reader has requested.
fn verified(disk: &Mounted, out: &mut Probe) {
    let env = env_on(&disk.fs, &disk.clock, disk.seed);
    match topics_engine::verify(&env, Path::new(DIR), &mut |_| ()) {
        Ok(report) => {
            let told = report.problems.iter().map(|p| format!("I9: verify finds {p:?}"));
            out.problems.extend(told);
        }
        Err(e) => out.problems.push(format!("verify fails: {e}")),
    }
}

fn append_one(engine: &Engine, topic: &str) -> Result<u64, String> {
    let records = [NewRecord { data: b"\"probe\"", ..NewRecord::default() }];
    let req = Append { records: &records, ..Append::default() };
    engine.append(topic, &req).map(|a| a.first_seq).map_err(|e| e.to_string())
}

/// Whether a later observation of a running engine extends an earlier one.
fn extends(before: &TopicObs, after: &TopicObs, _retried: bool) -> bool {
    let config = &before.state.config;
    let evicts = config.cap_records > 0 || config.cap_bytes > 0 || config.ttl_ms > 0;
    let same_id = before.state.topic_id == after.state.topic_id;
    same_id && before.records.iter().all(|r| after.get(r.seq).map_or(evicts, |a| a == r))
}

/// The differences after a clean close and an open: only unlogged state may change.
pub fn reopened(before: &Observation, after: &Observation) -> Vec<String> {
    let mut out = Vec::new();
    for b in &before.topics {
        let name = &b.state.topic;
        let Some(a) = after.topic(name) else {
            out.push(format!("{name}: gone after a clean close"));
            continue;
        };
        let volatile = b.state.config.durability < Durability::Disk;
        let same = shape(a) == shape(b) && a.records == b.records && a.tombstones == b.tombstones;
        if !volatile && !same {
            out.push(format!("{name}: a reopen changed {} to {}", brief(b), brief(a)));
        }
        if a.state.next_seq <= b.state.head_seq || a.state.topic_id != b.state.topic_id {
            out.push(format!("I2: {name}: {} became {}", brief(b), brief(a)));
        }
    }
    if after.topics.len() > before.topics.len() {
        out.push("a reopen invented a topic".into());
    }
    out
}

type Shape<'a> =
    (u64, u64, u64, u64, u64, u64, &'a [topics_engine::Gap], &'a topics_engine::TopicConfig);

/// The state without the parts that depend on the time of the observation.
pub fn shape(t: &TopicObs) -> Shape<'_> {
    let s = &t.state;
    (s.topic_id, s.epoch, s.head_seq, s.earliest_seq, s.evict_floor, s.count, &s.gaps, &s.config)
}

fn brief(t: &TopicObs) -> String {
    let seqs: Vec<u64> = t.records.iter().map(|r| r.seq).collect();
    let s = &t.state;
    format!(
        "(head {} next {} earliest {} floor {} count {} gaps {:?} {:?} seqs {seqs:?})",
        s.head_seq, s.next_seq, s.earliest_seq, s.evict_floor, s.count, s.gaps, t.tombstones
    )
}
