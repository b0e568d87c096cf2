//! The state after a recovery, probed by calls: plain data for the oracle.

pub mod txns;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use topics_engine::{
    Claim, ConsumerInfo, ConsumerMode, ConsumerRead, ConsumerStart, DeleteRequest, Discard, Engine,
    LeasedJobs, Options, PeekedJob, RouterInfo, TopicType,
};
use topics_sim::{DiskImage, SimClock, SimFs, env_on};
use xxhash_rust::xxh3::xxh3_64;

pub use self::txns::TxnsSeen;
use super::note::{Leased, Note, StagePart, Unit, Written};
use super::script::Script;
use crate::crash::{panic_text, reopened};
use crate::oracle::{Observation, observe};
use crate::run::{DIR, HookSpec, meta_value};

/// A job that the probe claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedJob {
    pub name: String,
    pub seq: u64,
    pub deliveries: u32,
}

/// The queue `q`.
#[derive(Clone, Debug, Default)]
pub struct QueueSeen {
    pub peeked: Vec<PeekedJob>,
    /// Ids of earlier leases that are valid.
    pub valid: BTreeSet<u64>,
    /// The jobs that a claim by another node returns.
    pub claimed: Vec<ClaimedJob>,
    /// Ids of earlier leases that are valid afterwards.
    pub valid_after: BTreeSet<u64>,
    /// All jobs that claims returned when every lease and delay was over.
    pub drained: Vec<ClaimedJob>,
    /// Payloads that remain in the queue, and those in the dead-letter topic.
    pub left: Vec<String>,
    pub letters: Vec<String>,
    /// The seqs of the jobs that are dead letters, and their errors there.
    pub letter_errors: Vec<(u64, Option<String>)>,
    /// The numbers of dead-lettered and expired jobs: by the queue's counters, and by the dead
    /// letters, which include expired jobs.
    pub counted: (u64, u64),
    pub lettered: (u64, u64),
}

/// A consumer, and the records that a new handle reads.
#[derive(Clone, Debug)]
pub struct ConsumerSeen {
    pub info: ConsumerInfo,
    pub topic_id: u64,
    pub read: Vec<u64>,
    /// The records in the topic.
    pub live: Vec<u64>,
}

/// The complete state.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Problems that do not depend on earlier acks.
    pub problems: Vec<String>,
    pub first: Observation,
    pub routers: Vec<RouterInfo>,
    /// Observations with idle routers: first as recovered, then each time after deletes freed
    /// capacity in full destinations.
    pub rests: Vec<Observation>,
    pub rested: Vec<RouterInfo>,
    pub queue: Option<QueueSeen>,
    pub consumers: Vec<ConsumerSeen>,
    pub txns: Option<TxnsSeen>,
}

impl Seen {
    /// A digest of the state that readers, workers and consumers see after this recovery.
    pub fn outcome(&self) -> u64 {
        let topics: String =
            [&self.first].into_iter().chain(&self.rests).map(Observation::line).collect();
        let consumers: Vec<&Vec<u64>> = self.consumers.iter().map(|c| &c.read).collect();
        let queue = self.queue.as_ref().map(|q| (&q.drained, &q.left, &q.letters));
        xxh3_64(format!("{topics} {consumers:?} {queue:?}").as_bytes())
    }
}

/// The objects of a script to probe.
#[derive(Clone, Debug)]
pub struct Probes {
    pub options: Options,
    pub seed: u64,
    /// Every lease of the script.
    leases: Vec<Leased>,
    routers: bool,
    /// Every transaction, by number, and every part of a stage.
    pub units: Vec<Arc<Unit>>,
    parts: Vec<Arc<StagePart>>,
    hook: HookSpec,
}

impl Probes {
    pub fn of(script: &Script) -> Self {
        let mut leases: Vec<Leased> = Vec::new();
        let mut parts = Vec::new();
        for (_, note) in &script.notes {
            match note {
                Note::Claimed(jobs) => leases.extend(jobs.iter().cloned()),
                Note::Staged(part) | Note::Tried(part) => parts.push(part.clone()),
                _ => {}
            }
        }
        let routers = script.notes.iter().any(|(_, n)| matches!(n, Note::Routed { .. }));
        let (options, seed, units) = (script.options(), script.seed, script.units.clone());
        Self { options, seed, leases, routers, units, parts, hook: script.hook.clone() }
    }
}

/// Every record that was ever written.
pub fn written<'a>(notes: impl Iterator<Item = &'a Note>) -> Vec<(&'a str, &'a Written)> {
    let mut out = Vec::new();
    for note in notes {
        match note {
            Note::Put { topic, records, .. } => {
                out.extend(records.iter().map(|r| (topic.as_str(), r)));
            }
            Note::Txn { unit, .. } => {
                let rows = unit.rows.iter();
                out.extend(rows.flat_map(|(t, rows)| rows.iter().map(|r| (t.as_str(), r))));
            }
            _ => {}
        }
    }
    out
}

/// Opens an image; the engine's clock starts at `wall`.
pub struct Mount {
    pub fs: Arc<SimFs>,
    pub clock: Arc<SimClock>,
    seed: u64,
    opens: u64,
    hook: HookSpec,
}

impl Mount {
    pub fn new(image: &DiskImage, probes: &Probes, wall: u64) -> Self {
        let seed = probes.seed ^ image.hash().rotate_left(17);
        let fs = Arc::new(SimFs::from_image(image));
        let (clock, hook) = (Arc::new(SimClock::new(wall)), probes.hook.clone());
        Self { fs, clock, seed, opens: 0, hook }
    }

    pub fn open(&mut self, options: &Options) -> topics_engine::Result<Engine> {
        self.opens += 1;
        let env = env_on(&self.fs, &self.clock, self.seed ^ (self.opens << 32));
        let env = self.hook.on(env, &self.fs);
        Engine::open(env, Path::new(DIR), options.clone())
    }
}

/// Recovers and probes an image; a panic counts as a problem.
pub fn see(image: &DiskImage, probes: &Probes, wall: u64) -> Seen {
    let mut seen = Seen::default();
    let mut mount = Mount::new(image, probes, wall);
    let thorough = image.hash().is_multiple_of(4);
    // One image of eight is probed with repeated calls, one of these with waiting parts.
    let once_more = (image.hash() % 32).checked_sub(28);
    let run = std::panic::AssertUnwindSafe(|| {
        all(&mut mount, probes, wall, thorough, &mut seen);
        if let Some(how) = once_more.filter(|_| seen.txns.is_some()) {
            txns::again(image, probes, wall, how == 0, &mut seen);
        }
    });
    if let Err(panic) = std::panic::catch_unwind(run) {
        seen.problems.push(format!("panic: {}", panic_text(&*panic)));
    }
    seen
}

fn all(mount: &mut Mount, probes: &Probes, wall: u64, thorough: bool, seen: &mut Seen) {
    let engine = match mount.open(&probes.options) {
        Ok(engine) => engine,
        Err(e) => return seen.problems.push(format!("the open is refused: {e}")),
    };
    let (first, problems) = observe(&engine, wall, 7);
    seen.problems.extend(problems);
    seen.first = first;
    seen.routers = engine.routers("");
    if !probes.units.is_empty() || !probes.parts.is_empty() {
        txns::look(&engine, probes, seen);
    }
    if probes.routers {
        rest(mount, &engine, wall, seen);
    }
    if engine.state("q", false).is_ok_and(|s| s.config.kind == TopicType::Queue) {
        let mut q = QueueSeen::default();
        if let Err(e) = queue(mount, &engine, probes, &mut q, &mut seen.problems) {
            seen.problems.push(format!("a call of the queue fails: {e}"));
        }
        seen.queue = Some(q);
    }
    consumers(&engine, wall, seen);
    if engine.damage_counts() != (0, 0) {
        seen.problems.push(format!("I9: damage {:?}", engine.damage_counts()));
    }
    if thorough {
        again(mount, engine, probes, wall, seen);
    }
}

/// Runs until the routers are idle, frees capacity in full destinations, and repeats.
fn rest(mount: &Mount, engine: &Engine, wall: u64, seen: &mut Seen) {
    for round in 0..9 {
        for _ in 0..3 {
            if let Err(e) = engine.tick().and_then(|()| engine.sync()) {
                return seen.problems.push(format!("a tick or a sync fails: {e}"));
            }
            if engine.routers("").iter().any(|r| r.stopped_by.is_some()) {
                mount.clock.advance_ms(1_100);
            }
        }
        let (now, problems) = observe(engine, wall, 50);
        seen.problems.extend(problems);
        let full = |r: &RouterInfo| {
            let dest = now.topic(&r.request.dest);
            let reject = dest.filter(|d| d.state.config.discard == Discard::Reject);
            reject.filter(|_| r.lag > 0).map(|d| (r.request.dest.clone(), d.state.head_seq + 1))
        };
        let full: Vec<_> = engine.routers("").iter().filter_map(full).collect();
        seen.rests.push(now);
        if full.is_empty() {
            break;
        }
        if round == 8 {
            seen.problems.push(format!("{full:?} stay full"));
        }
        for (topic, before) in full {
            let req = DeleteRequest { before_seq: Some(before), matching: None };
            if let Err(e) = engine.delete(&topic, &req) {
                seen.problems.push(format!("{topic}: a delete fails: {e}"));
            }
        }
        mount.clock.advance_ms(1_100);
    }
    seen.rested = engine.routers("");
}

fn is_lease_valid(engine: &Engine, l: &Leased) -> topics_engine::Result<bool> {
    let held = LeasedJobs { node: l.node.as_bytes(), seqs: &[l.seq], lease_ids: Some(&[l.id]) };
    engine.extend("q", &held, None).map(|s| s.done == [l.seq])
}

fn claim(engine: &Engine, max: usize) -> topics_engine::Result<Vec<(ClaimedJob, u64)>> {
    let req = Claim { node: b"judge", max, lease_ms: None, wait: Duration::ZERO };
    let text = |d: &[u8]| String::from_utf8_lossy(d).into_owned();
    let got = engine.claim("q", &req)?;
    let given = got.iter().map(|(l, r)| {
        (ClaimedJob { name: text(r.data), seq: l.seq, deliveries: l.deliveries }, l.lease_id)
    });
    Ok(given.collect())
}

fn queue(
    mount: &Mount,
    engine: &Engine,
    probes: &Probes,
    q: &mut QueueSeen,
    problems: &mut Vec<String>,
) -> topics_engine::Result<()> {
    let peek = || -> topics_engine::Result<Vec<PeekedJob>> {
        Ok(engine.peek("q", None, 1000)?.iter().map(|(j, _)| j.clone()).collect())
    };
    q.peeked = peek()?;
    let fences = |j: &PeekedJob| (j.seq, j.state, j.deliveries, j.lease_id);
    for l in &probes.leases {
        if is_lease_valid(engine, l)? {
            q.valid.insert(l.id);
            continue;
        }
        let held = LeasedJobs { node: l.node.as_bytes(), seqs: &[l.seq], lease_ids: Some(&[l.id]) };
        for s in [engine.ack("q", &held)?, engine.nack("q", &held, Some(5))?] {
            if !s.done.is_empty() {
                problems.push(format!("I6: the stale lease {} of {} counts", l.id, l.seq));
            }
        }
    }
    let after = peek()?;
    if !q.peeked.iter().map(fences).eq(after.iter().map(fences)) {
        problems.push(format!("I6: stale fences changed {:?} to {after:?}", q.peeked));
    }
    q.claimed = claim(engine, 1000)?.into_iter().map(|c| c.0).collect();
    for l in &probes.leases {
        if is_lease_valid(engine, l)? {
            q.valid_after.insert(l.id);
        }
    }
    // All leases and delays run out; expired jobs become dead letters.
    mount.clock.advance_ms(3 * 86_400_000);
    engine.tick()?;
    for _ in 0..200 {
        let jobs = claim(engine, 100)?;
        let seqs: Vec<u64> = jobs.iter().map(|j| j.0.seq).collect();
        let ids: Vec<u64> = jobs.iter().map(|j| j.1).collect();
        q.drained.extend(jobs.into_iter().map(|j| j.0));
        if seqs.is_empty() {
            break;
        }
        let held = LeasedJobs { node: b"judge", seqs: &seqs, lease_ids: Some(&ids) };
        let s = engine.ack("q", &held)?;
        if !s.skipped.is_empty() {
            problems.push(format!("I6: an ack of the holder is skipped: {:?}", s.skipped));
        }
    }
    let (end, found) = observe(engine, topics_env::Clock::wall_ms(&*mount.clock), 50);
    problems.extend(found);
    let names = |topic: &str| -> Vec<String> {
        let records = end.topic(topic).map(|t| t.records.clone()).unwrap_or_default();
        records.iter().map(|r| String::from_utf8_lossy(&r.data).into_owned()).collect()
    };
    (q.left, q.letters) = (names("q"), names("dead"));
    let s = engine.queue_state("q")?;
    q.counted = (s.dead_lettered, s.expired);
    let letters = end.topic("dead").map(|t| t.records.as_slice()).unwrap_or_default();
    let of = |meta| meta_value(meta, "$dead_letter_src_seq")?.parse().ok();
    q.letter_errors = letters
        .iter()
        .filter_map(|r| Some((of(&r.meta)?, meta_value(&r.meta, "$dead_letter_error"))))
        .collect();
    let reason = |r: &[u8]| String::from_utf8_lossy(r).contains(r#"_reason":"expired""#);
    let expired = letters.iter().filter(|r| reason(&r.meta));
    q.lettered = (letters.len() as u64, expired.count() as u64);
    Ok(())
}

fn consumers(engine: &Engine, wall: u64, seen: &mut Seen) {
    let mut found = Vec::new();
    let topics: Vec<String> = seen.first.topics.iter().map(|t| t.state.topic.clone()).collect();
    for topic in &topics {
        match engine.consumers(topic) {
            Ok(all) => found.extend(all.into_iter().map(|c| (topic.clone(), c))),
            Err(e) => seen.problems.push(format!("{topic}: its consumers: {e}")),
        }
    }
    if found.is_empty() {
        return;
    }
    let (now, _) = observe(engine, wall, 50);
    for (topic, info) in found {
        let Some(t) = now.topic(&topic) else { continue };
        let live = t.records.iter().map(|r| r.seq).collect();
        let topic_id = t.state.topic_id;
        match read_all(engine, &topic, &info) {
            Ok(read) => seen.consumers.push(ConsumerSeen { info, topic_id, read, live }),
            Err(e) => seen.problems.push(format!("{topic}: a consumer cannot read: {e}")),
        }
    }
}

/// Reads to the end with a new handle, in small batches.
fn read_all(engine: &Engine, topic: &str, info: &ConsumerInfo) -> topics_engine::Result<Vec<u64>> {
    let mode: Option<ConsumerMode> = Some(info.mode);
    let handle = engine.consumer(topic, &info.name, mode, ConsumerStart::End, false)?;
    let (mut out, mut before) = (Vec::new(), None);
    for _ in 0..500 {
        let batch = handle.read(&ConsumerRead { max_records: 4, ..ConsumerRead::default() })?;
        out.extend(batch.iter().map(|r| r.seq));
        if batch.caught_up && batch.tombstone.is_none() || before == Some(batch.next_from_seq) {
            break;
        }
        before = Some(batch.next_from_seq);
    }
    Ok(out)
}

/// A clean close and an open change nothing.
fn again(mount: &mut Mount, engine: Engine, probes: &Probes, wall: u64, seen: &mut Seen) {
    let (before, _) = observe(&engine, wall, 50);
    let cursors = |e: &Engine| -> Vec<ConsumerInfo> {
        let topics = before.topics.iter();
        topics.flat_map(|t| e.consumers(&t.state.topic).unwrap_or_default()).collect()
    };
    let positions = |all: &[ConsumerInfo]| -> Vec<(String, String, u64)> {
        all.iter().map(|c| (c.topic.clone(), c.name.clone(), c.cursor)).collect()
    };
    let stored = cursors(&engine);
    if let Err(e) = engine.close() {
        seen.problems.push(format!("close after recovery fails: {e}"));
    }
    drop(engine);
    match mount.open(&probes.options) {
        Ok(engine) => {
            let (after, problems) = observe(&engine, wall, 50);
            seen.problems.extend(problems.into_iter().map(|p| format!("after reopen: {p}")));
            seen.problems.extend(reopened(&before, &after));
            if positions(&stored) != positions(&cursors(&engine)) {
                seen.problems.push("I8: a reopen changed a cursor".into());
            }
            if engine.routers("").len() != seen.routers.len() {
                seen.problems.push("a reopen changed the routers".into());
            }
        }
        Err(e) => seen.problems.push(format!("open after a clean close fails: {e}")),
    }
}
