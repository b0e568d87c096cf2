//! A state machine of random operations, including restarts, crashes, clock steps and shortages,
//! judged after every observation; failing runs are shrunk.

use topics_engine::{ConfigPatch, Discard, TopicMatch};
use topics_sim::{CallFilter, CallKind, CrashOptions, FaultKind};

use crate::crash::panic_text;
use crate::oracle::Event;
use crate::run::{Batch, Dice, Driver, Expect, HookSpec, Setup, batch};
use crate::workloads::{CLASSES, class};

/// One operation; all of its parameters are chosen when it is generated.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Append {
        topic: usize,
        batch: Shape,
        wait: bool,
    },
    Drive,
    Class {
        topic: usize,
        class: usize,
    },
    Cap {
        topic: usize,
        records: u64,
        bytes: u64,
        reject: bool,
    },
    Ttl {
        topic: usize,
        ms: u64,
    },
    Drop {
        topic: usize,
    },
    DeleteBefore {
        topic: usize,
        back: u64,
    },
    DeleteTag {
        topic: usize,
        tag: usize,
        all: bool,
    },
    Sync,
    SyncTopic {
        topic: usize,
    },
    Checkpoint,
    Tick,
    Pass {
        ms: u64,
    },
    Wall {
        ms: i64,
    },
    /// The next open uses this number of shards, whatever comes before it.
    Shards {
        n: u32,
    },
    Reopen,
    Kill,
    Power {
        pick: u64,
    },
    Look,
    /// A resource is exhausted from now on.
    Shortage {
        of: Shortage,
    },
    /// The shortage ends.
    Heal,
    /// Several writes are staged: for each a topic, a shape, and whether the log runs afterwards;
    /// then, without waiting for them, a delete up to this distance below the first topic's head.
    Burst {
        writes: Vec<(usize, Shape, bool)>,
        delete: Option<u64>,
    },
}

/// The exhausted resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shortage {
    /// Space for a log file, or for a larger one.
    NextFile,
    /// Files cannot grow.
    FileSize,
    /// A descriptor for a new file.
    Descriptors,
    /// Space for the nth write of a group.
    Group { nth: usize },
    /// Any space beyond this number of bytes.
    Space { free: u64 },
}

/// The shape of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    n: usize,
    size: usize,
    tagged: bool,
    meta: bool,
    ttl: u64,
    key: Option<u64>,
    right: Option<bool>,
    sync: bool,
    class: Option<usize>,
}

const TOPICS: [&str; 4] = ["a", "b", "c", "d"];
const TAGS: [&str; 4] = ["x1", "x2", "y", "z"];

/// The steps of a run.
pub fn steps(seed: u64, most: usize) -> Vec<Step> {
    let mut dice = Dice::new(seed);
    let n = 2 + dice.below(most as u64 - 1) as usize;
    let wild = dice.below(8) == 0;
    let short = dice.below(2) == 0;
    let one = |d: &mut Dice| match d.below(4) {
        0 if short => shortage(d),
        _ => step(d, wild),
    };
    (0..n).map(|_| one(&mut dice)).collect()
}

fn shortage(d: &mut Dice) -> Step {
    match d.below(10) {
        0..3 => Step::Heal,
        3..5 => Step::Shortage {
            of: match d.below(6) {
                0..2 => Shortage::NextFile,
                2 => Shortage::FileSize,
                3 => Shortage::Descriptors,
                4 => Shortage::Group { nth: 1 + d.below(3) as usize },
                _ => Shortage::Space { free: d.below(5) * 4096 },
            },
        },
        _ => {
            // Most writes go to one topic.
            let first = d.below(TOPICS.len() as u64) as usize;
            let topic = |d: &mut Dice| if d.below(4) > 0 { first } else { (first + 1) % 4 };
            let writes = (0..2 + d.below(4)).map(|_| {
                let size = *d.pick(&[12, 80, 400, 3_000, 9_000]);
                let n = 1 + d.below(3) as usize;
                (topic(d), Shape { n, size, right: None, ..shape(d, true) }, d.below(4) == 0)
            });
            let writes = writes.collect();
            Step::Burst { writes, delete: (d.below(4) == 0).then(|| d.below(6)) }
        }
    }
}

fn step(d: &mut Dice, wild: bool) -> Step {
    let topic = d.below(TOPICS.len() as u64) as usize;
    match d.below(64) {
        0..23 => {
            let batch = shape(d, wild);
            Step::Append { topic, wait: d.below(3) > 0, batch }
        }
        24..27 => Step::Drive,
        27..29 => Step::Class { topic, class: d.below(4) as usize },
        29..31 => Step::Cap {
            topic,
            records: d.below(3) * (1 + d.below(8)),
            bytes: d.below(2) * (200 + d.below(800)),
            reject: d.below(4) == 0,
        },
        31 if !wild => Step::Ttl { topic, ms: d.below(2) * (500 + d.below(8_000)) },
        31..34 => Step::Drop { topic },
        34..37 => Step::DeleteBefore { topic, back: d.below(12) },
        37..40 => Step::DeleteTag { topic, tag: d.below(4) as usize, all: d.below(2) == 0 },
        40..42 => Step::Sync,
        42 => Step::SyncTopic { topic },
        43..48 => Step::Checkpoint,
        48..51 => Step::Tick,
        51..53 => Step::Pass { ms: d.below(2_000) },
        53 if wild => Step::Wall { ms: d.below(1 << 39) as i64 - (1 << 38) },
        53 => Step::Wall { ms: d.below(4_000) as i64 - 2_000 },
        23 | 54 => Step::Shards { n: 1 + d.below(3) as u32 },
        55..57 => Step::Reopen,
        57..59 => Step::Kill,
        59..61 => Step::Power { pick: d.roll() },
        _ => Step::Look,
    }
}

fn shape(d: &mut Dice, wild: bool) -> Shape {
    let most = if d.below(10) == 0 { 40 } else { 4 };
    Shape {
        n: 1 + d.below(most) as usize,
        size: *d.pick(&[12, 24, 24, 80, 400, 3_000]),
        tagged: d.below(2) == 0,
        meta: d.below(5) == 0,
        ttl: if !wild && d.below(8) == 0 { 200 + d.below(3_000) } else { 0 },
        key: (!wild && d.below(4) == 0).then(|| d.below(4)),
        right: (d.below(8) == 0).then(|| d.below(3) > 0),
        sync: d.below(8) == 0,
        class: (d.below(2) == 0).then(|| d.below(4) as usize),
    }
}

impl Shape {
    fn batch(&self, known: bool) -> Batch {
        let mut b = batch(self.n).size(self.size).ttl(self.ttl);
        if self.tagged {
            b = b.tags(&TAGS);
        }
        if self.meta {
            b = b.meta().node("n");
        }
        b.sync = self.sync;
        // A key belongs to one body: its shape depends only on the key.
        if let Some(k) = self.key {
            b = batch(1 + k as usize).key(format!("k{k}"));
        }
        b.expect = self.right.map(|r| if r { Expect::Right } else { Expect::Wrong });
        if self.key.is_some() {
            b.expect = None;
        }
        if let (false, Some(c)) = (known, self.class) {
            b = b.config(class(CLASSES[c]));
        }
        b
    }
}

/// Runs steps on an empty disk; returns the problems and, if there are any, the log of the run.
pub fn run(steps: &[Step], seed: u64) -> (Vec<String>, Vec<Event>) {
    let mut d = Driver::new(Setup { workload: "model", seed, hook: HookSpec::None, faults: false });
    d.open();
    for step in steps {
        take(&mut d, step, seed);
        if !d.problems().is_empty() {
            return (d.problems(), d.finish().events);
        }
    }
    heal(&mut d);
    d.wait_idle();
    d.look();
    d.reopen();
    d.look();
    match d.problems() {
        none if none.is_empty() => (none, Vec::new()),
        found => (found, d.finish().events),
    }
}

/// The same; a panic counts as a problem.
pub fn try_run(steps: &[Step], seed: u64) -> (Vec<String>, Vec<Event>) {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(steps, seed)))
        .unwrap_or_else(|p| (vec![format!("panic: {}", panic_text(&*p))], Vec::new()))
}

fn take(d: &mut Driver, step: &Step, seed: u64) {
    match step {
        Step::Append { topic, batch, wait } => {
            let name = TOPICS[*topic];
            let known = d.knows(name);
            let batch = batch.batch(known);
            // A condition is judged when no write of the topic is in flight.
            if *wait || batch.expect.is_some() {
                d.wait_idle();
                d.append(name, &batch);
            } else {
                d.append_async(name, &batch);
            }
        }
        Step::Drive => d.drive(),
        Step::Class { topic, class: c } => {
            d.wait_idle();
            d.create(TOPICS[*topic], &class(CLASSES[*c]));
        }
        Step::Cap { topic, records, bytes, reject } => {
            d.wait_idle();
            let patch = ConfigPatch {
                cap_records: Some(*records),
                cap_bytes: Some(*bytes),
                discard: Some(if *reject { Discard::Reject } else { Discard::Old }),
                ..ConfigPatch::default()
            };
            d.create(TOPICS[*topic], &patch);
        }
        Step::Ttl { topic, ms } => {
            d.wait_idle();
            let patch = ConfigPatch { ttl_ms: Some(*ms), ..ConfigPatch::default() };
            d.create(TOPICS[*topic], &patch);
        }
        Step::Drop { topic } => {
            d.wait_idle();
            d.drop_topic(TOPICS[*topic]);
        }
        Step::DeleteBefore { topic, back } => {
            d.wait_idle();
            let before = (d.head(TOPICS[*topic]) + 2).saturating_sub(*back);
            d.delete(TOPICS[*topic], Some(before), None);
        }
        Step::DeleteTag { topic, tag, all } => {
            d.wait_idle();
            let matching = if *all {
                TopicMatch::Glob(TAGS[*tag].as_bytes()[..1].to_vec())
            } else {
                TopicMatch::Eq(TAGS[*tag].as_bytes().to_vec())
            };
            d.delete(TOPICS[*topic], None, Some(matching));
        }
        Step::Sync => drop(d.sync()),
        Step::SyncTopic { topic } => drop(d.sync_topic(TOPICS[*topic])),
        Step::Checkpoint => drop(d.checkpoint()),
        Step::Tick => drop(d.tick()),
        Step::Pass { ms } => d.pass(*ms),
        Step::Wall { ms } => d.step_wall(*ms),
        Step::Shards { n } => d.tuning.shards = *n,
        Step::Reopen => {
            d.wait_idle();
            d.close();
            heal(d);
            d.open();
        }
        Step::Kill => {
            d.kill();
            d.open();
        }
        Step::Power { pick } => {
            let mut cursor = d.fs().crash_cursor();
            while cursor.advance() {}
            let survivals = cursor.survivals(seed, &CrashOptions::default());
            let survival = survivals[(*pick % survivals.len() as u64) as usize];
            d.power(&cursor.image(survival));
            d.open();
        }
        Step::Look => d.look(),
        Step::Shortage { of } => short(d, *of),
        Step::Heal => heal(d),
        Step::Burst { writes, delete } => burst(d, writes, *delete),
    }
}

fn burst(d: &mut Driver, writes: &[(usize, Shape, bool)], delete: Option<u64>) {
    for (topic, shape, drive) in writes {
        let name = TOPICS[*topic];
        let batch = shape.batch(d.knows(name));
        d.append_async(name, &batch);
        if *drive {
            d.drive();
        }
    }
    match (delete, writes.first()) {
        // The model can predict a delete only in a topic that exists.
        (Some(back), Some((topic, ..))) if d.head(TOPICS[*topic]) > 0 => {
            let before = (d.head(TOPICS[*topic]) + 6).saturating_sub(back);
            d.delete(TOPICS[*topic], Some(before), None);
        }
        _ => d.drive(),
    }
}

fn short(d: &mut Driver, of: Shortage) {
    d.short();
    let log = |call| CallFilter::on_path(call, "wal-");
    let fs = d.fs();
    match of {
        Shortage::NextFile => fs.fail_from(log(CallKind::Allocate), 1, FaultKind::ENOSPC),
        Shortage::FileSize => fs.fail_from(log(CallKind::Allocate), 1, FaultKind::EFBIG),
        Shortage::Descriptors => fs.fail_from(CallKind::Create, 1, FaultKind::EMFILE),
        Shortage::Group { nth } => fs.fail_nth(log(CallKind::Write), nth, FaultKind::ENOSPC),
        Shortage::Space { free } => fs.set_free_space(Some(free)),
    }
}

fn heal(d: &mut Driver) {
    d.fs().clear_faults();
    d.fs().set_free_space(None);
}

/// The subject of a problem: its text without positions and numbers.
pub fn kind(problem: &str) -> String {
    let mut text = problem;
    for end in [", live: ", ", after open: ", "event "] {
        text = text.split_once(end).map_or(text, |t| t.1);
    }
    let text = text.split_once(": ").filter(|t| t.0.len() < 4).map_or(text, |t| t.1);
    let mut out = String::new();
    for c in text.chars().take(90) {
        match c {
            '0'..='9' if out.ends_with('#') => {}
            '0'..='9' => out.push('#'),
            c => out.push(c),
        }
    }
    out.chars().take(60).collect()
}

/// The smallest subset of failing steps that still fails in the same way, according to `fault`.
pub fn shrink<S: Clone>(steps: &[S], fault: impl Fn(&[S]) -> Vec<String>) -> Vec<S> {
    let wanted = fault(steps).first().map(|p| kind(p));
    let fails = |s: &[S]| fault(s).iter().any(|p| Some(kind(p)) == wanted);
    let mut best = steps.to_vec();
    let mut size = best.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < best.len() {
            let mut shorter = best.clone();
            shorter.drain(at..(at + size).min(best.len()));
            if fails(&shorter) { best = shorter } else { at += size }
        }
        size /= 2;
    }
    best
}
