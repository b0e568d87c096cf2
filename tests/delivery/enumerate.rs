//! Every call of a script, every survival; and crashes during recovery.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use topics_sim::{CrashCursor, CrashOptions, DiskImage, Survival};
use xxhash_rust::xxh3::xxh3_64;

use super::judge::judge;
use super::note::Past;
use super::script::Script;
use super::see::{Mount, Probes, Seen, see};
use crate::crash::{Sampling, batches};

/// The result of an enumeration.
#[derive(Debug, Default)]
pub struct Report {
    pub calls: usize,
    /// Visited calls.
    pub points: usize,
    /// Distinct disks.
    pub states: HashSet<u64>,
    /// Distinct disks without a random choice: a kill, or an enumerated survival.
    pub systematic: HashSet<u64>,
    /// Distinct disks that lost something un-synced.
    pub lost: HashSet<u64>,
    /// Distinct outcomes of recovery, by digest.
    pub outcomes: HashSet<u64>,
    /// A disk is judged again at a point with more acks.
    pub judged: usize,
    pub failed: usize,
    /// The first failures.
    pub failures: Vec<String>,
    /// A digest of every state and verdict, in order.
    pub digest: u64,
    pub took: Duration,
}

impl Report {
    fn count(&mut self, image: &DiskImage) -> bool {
        self.judged += 1;
        if image.lost_something() {
            self.lost.insert(image.hash());
        }
        self.states.insert(image.hash())
    }

    fn fail(&mut self, head: &str, problems: &[String]) {
        let line = format!("{head} {problems:?}");
        self.digest = self.digest.rotate_left(5) ^ xxh3_64(line.as_bytes());
        if problems.is_empty() {
            return;
        }
        self.failed += 1;
        if self.failures.len() < 4 {
            let mut text = head.to_owned();
            problems.iter().take(6).for_each(|p| text += &format!("\n    {p}"));
            self.failures.push(text);
        }
    }

    /// Adds the result of another enumeration.
    pub fn absorb(&mut self, other: Self) {
        self.states.extend(other.states);
        self.systematic.extend(other.systematic);
        self.outcomes.extend(other.outcomes);
        self.lost.extend(other.lost);
        self.judged += other.judged;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.failures.truncate(6);
        self.digest = self.digest.rotate_left(7) ^ other.digest;
        self.took += other.took;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.judged as f64 / self.took.as_secs_f64().max(1e-9);
        write!(
            f,
            "outcomes {:>5}  calls {:>4}  points {:>4}  states {:>6}  systematic {:>6}  lost {:>6}  \
             judged {:>6}  {rate:>6.0}/s  digest {:016x}",
            self.outcomes.len(),
            self.calls,
            self.points,
            self.states.len(),
            self.systematic.len(),
            self.lost.len(),
            self.judged,
            self.digest,
        )
    }
}

/// Judges the crash states of every nth call, (n, first); then samples random survivals in rounds,
/// until the sampling is over.
#[must_use]
pub fn enumerate(
    script: &Script,
    mut sampling: Sampling,
    rounds: u64,
    (step, first): (usize, usize),
) -> Report {
    let points: Vec<Point> = points(script).into_iter().skip(first).step_by(step).collect();
    let mut options = CrashOptions::default();
    let mut report = Report { calls: script.calls(), points: points.len(), ..Report::default() };
    report.absorb(judged(script, script.seed, &options, &points));
    for n in 1..rounds {
        options = CrashOptions {
            random: options.random * 2,
            torn_bytes: options.torn_bytes * 2,
            ..options
        };
        for batch in batches(&points) {
            if report.failed > 0 || sampling.is_over(report.states.len()) {
                return report;
            }
            let (outcomes, judged_before) = (report.outcomes.len(), report.judged);
            report.absorb(judged(script, script.seed ^ (n << 48), &options, &batch));
            sampling.count(report.judged - judged_before, report.outcomes.len() > outcomes);
        }
    }
    report
}

/// The first problem of a crash state of a script.
#[must_use]
pub fn first_failure(script: &Script, options: &CrashOptions) -> Option<String> {
    let probes = Probes::of(script);
    let mut worker = Worker::new(script, &probes);
    points(script)
        .into_iter()
        .find_map(|point| worker.points(&[point], script.seed, options).failures.into_iter().next())
}

/// The number of calls in one unit of work of a thread.
const CHUNK: usize = 8;

/// Judges these points, on two threads; the result does not depend on their speed.
fn judged(script: &Script, seed: u64, options: &CrashOptions, points: &[Point]) -> Report {
    let started = Instant::now();
    let probes = Probes::of(script);
    let chunks: Vec<&[Point]> = points.chunks(CHUNK).collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                let mut worker = Worker::new(script, &probes);
                loop {
                    let i = next.fetch_add(1, Ordering::SeqCst);
                    let Some(chunk) = chunks.get(i) else { break };
                    let part = worker.points(chunk, seed, options);
                    done.lock().unwrap().push((i, part));
                }
            });
        }
    });
    let mut parts = done.into_inner().unwrap();
    parts.sort_by_key(|p| p.0);
    let mut report = Report::default();
    parts.into_iter().for_each(|(_, part)| report.absorb(part));
    report.took = started.elapsed();
    report
}

/// A process of the script, and the number of calls of its disk.
type Point = (usize, usize);

fn points(script: &Script) -> Vec<Point> {
    let lives = script.lives.iter().enumerate();
    lives.flat_map(|(i, (fs, _))| (0..=fs.ops_len()).map(move |at| (i, at))).collect()
}

/// Visits the points in order.
struct PointCursor<'s> {
    script: &'s Script,
    life: usize,
    cursor: CrashCursor,
}

impl<'s> PointCursor<'s> {
    fn new(script: &'s Script) -> Self {
        Self { script, life: 0, cursor: script.lives[0].0.crash_cursor() }
    }

    /// Moves to a point; returns the number of calls of all processes up to it.
    fn seek(&mut self, (life, at): Point) -> usize {
        let (fs, before) = &self.script.lives[life];
        if life != self.life {
            (self.life, self.cursor) = (life, fs.crash_cursor());
        }
        self.cursor.seek(at);
        before + at
    }
}

struct Worker<'s> {
    script: &'s Script,
    probes: &'s Probes,
    position: PointCursor<'s>,
    /// Recoveries of recent disks, by bytes, clock and boot.
    met: HashMap<(u64, u64, (u64, u64)), Arc<Seen>>,
}

impl<'s> Worker<'s> {
    fn new(script: &'s Script, probes: &'s Probes) -> Self {
        Self { script, probes, position: PointCursor::new(script), met: HashMap::new() }
    }

    fn points(&mut self, points: &[Point], seed: u64, options: &CrashOptions) -> Report {
        let mut report = Report::default();
        for p in points {
            let at = self.position.seek(*p);
            let mut states: Vec<(Survival, DiskImage)> = Vec::new();
            self.position.cursor.states(seed, options, &mut |s| {
                if !s.sampled {
                    report.systematic.insert(s.image.hash());
                }
                states.push((s.survival, s.image));
            });
            let killed = killed(&self.position.cursor);
            self.judge(at, Survival::KeepAll, &killed, true, &mut report);
            for (survival, image) in &states {
                self.judge(at, *survival, image, false, &mut report);
            }
        }
        report
    }

    fn judge(
        &mut self,
        at: usize,
        survival: Survival,
        image: &DiskImage,
        killed: bool,
        report: &mut Report,
    ) {
        report.count(image);
        if killed {
            report.systematic.insert(image.hash());
        }
        if self.met.len() > 500 {
            self.met.clear();
        }
        let wall = self.script.wall(at);
        let key = (image.hash(), wall, image.boot());
        let probes = self.probes;
        let seen = self.met.entry(key).or_insert_with(|| Arc::new(see(image, probes, wall)));
        report.outcomes.insert(seen.outcome());
        let past = past(self.script, at, killed);
        let call = at.checked_sub(1).map(|i| self.script.describe(i));
        let head = format!("after call {at} ({call:?}), {survival:?}, killed {killed}:");
        report.fail(&head, &judge(&past, seen));
    }
}

/// The disk that a killed process leaves to the next one.
fn killed(cursor: &CrashCursor) -> DiskImage {
    cursor.image(Survival::KeepAll).with_boot(1).with_mount(1)
}

/// The notes that count after this number of calls.
#[must_use]
pub fn past(script: &Script, at: usize, killed: bool) -> Past<'_> {
    Past::new(&script.notes, &script.facts, at, killed, script.wall(at))
}

/// The maximum number of disks of one recovery.
const PER_POINT: usize = 48;

/// Crashes recoveries from the whole script, at every call, until `wanted` disks were judged.
#[must_use]
pub fn second(script: &Script, wanted: usize) -> Report {
    let started = Instant::now();
    let options = CrashOptions { random: 1, torn_bytes: 1, names: 2, single: false };
    let probes = Probes::of(script);
    let mut report = Report { calls: script.calls(), ..Report::default() };
    let points = points(script);
    // A round uses as many points as give the wanted number of disks.
    let stride = (points.len() * PER_POINT / wanted.max(1)).max(1);
    'all: for round in 0..stride * 4 {
        let mut position = PointCursor::new(script);
        for p in points.iter().skip(round * 7 % stride).step_by(stride) {
            let at = position.seek(*p);
            let survivals = position.cursor.survivals(script.seed, &options);
            let image = position.cursor.image(survivals[(at * 31 + round * 17) % survivals.len()]);
            recover(script, &probes, at, &image, &options, &mut report);
            if report.states.len() >= wanted || report.failed > 0 {
                break 'all;
            }
        }
    }
    report.took = started.elapsed();
    report
}

fn recover(
    script: &Script,
    probes: &Probes,
    at: usize,
    image: &DiskImage,
    options: &CrashOptions,
    report: &mut Report,
) {
    let wall = script.wall(at);
    let mut mount = Mount::new(image, probes, wall);
    if let Err(e) = mount.open(&probes.options) {
        return report.fail(&format!("after call {at}:"), &[format!("the open is refused: {e}")]);
    }
    let past = past(script, at, false);
    let (mut cursor, before) = (mount.fs.crash_cursor(), report.states.len());
    // Start the crash points of each recovery at another position.
    cursor.seek(at * 13 % (mount.fs.ops_len() + 1));
    while report.states.len() < before + PER_POINT {
        let mut states = Vec::new();
        cursor.states(script.seed, options, &mut |s| states.push(s));
        for s in states {
            if !report.count(&s.image) {
                continue;
            }
            let call = s.after_ops.checked_sub(1).map(|i| mount.fs.describe_op(i));
            let head = format!("after call {at}, in recovery after {call:?}, {:?}:", s.survival);
            report.fail(&head, &judge(&past, &see(&s.image, probes, wall)));
        }
        if !cursor.advance() {
            break;
        }
    }
}
