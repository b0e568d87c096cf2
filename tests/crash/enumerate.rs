//! Enumerates the crash states of a recording: every call, every survival.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use topics_sim::{CrashOptions, DiskImage, Survival};
use xxhash_rust::xxh3::xxh3_64;

use super::points::{Point, PointCursor, points};
use super::probe::{Plan, Probe, probe};
use super::report::{Failure, Report};
use crate::harness::sized;
use crate::oracle::{Keep, World};
use crate::run::{Dice, HookSpec, Recording};

/// The limits of an enumeration.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The wanted number of distinct disks; more random survivals are added until it is reached.
    pub states: usize,
    /// Stop sampling when this number of further judged states brought no new outcome of recovery.
    pub quiet: usize,
    /// Stop at the first failure (mutants).
    pub first: bool,
    pub threads: usize,
    pub hook: HookSpec,
    pub options: CrashOptions,
    pub rounds: usize,
    /// Visit only every nth point, starting with this one: (n, first). The smaller gates sample
    /// this way.
    pub every: (usize, usize),
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            states: 0,
            quiet: usize::MAX,
            first: false,
            threads: 2,
            hook: HookSpec::None,
            options: CrashOptions::default(),
            rounds: 6,
            every: (1, 0),
        }
    }
}

/// Judges a recording's crash states: every visited point once, then further samples in rounds,
/// until the wanted number of states is reached or samples bring no new outcome of recovery.
pub fn enumerate(rec: &Recording, limits: &Limits) -> Report {
    let (step, first) = limits.every;
    let points: Vec<Point> =
        points(rec).into_iter().skip(first % step.max(1)).step_by(step.max(1)).collect();
    let mut limits = limits.clone();
    let mut report = judged(rec, &limits, 0, &points);
    report.points = points.len();
    let mut sampling = Sampling::new(limits.states, limits.quiet);
    for n in 1..limits.rounds {
        limits.options = CrashOptions {
            random: limits.options.random * 2,
            torn_bytes: limits.options.torn_bytes * 2,
            ..limits.options
        };
        for batch in batches(&points) {
            if report.failed > 0 || sampling.is_over(report.states()) {
                return report;
            }
            let (outcomes, judged_before) = (report.outcomes.len(), report.judged);
            report.absorb(judged(rec, &limits, n as u64, &batch));
            sampling.count(report.judged - judged_before, report.outcomes.len() > outcomes);
        }
    }
    report
}

/// The points that are sampled between two looks at the outcomes.
const BATCH: usize = 32;

/// Splits points into batches; each has points of the whole recording, in order.
pub fn batches<T: Copy>(points: &[T]) -> impl Iterator<Item = Vec<T>> {
    let n = points.len().div_ceil(BATCH);
    (0..n).map(move |first| points.iter().skip(first).step_by(n).copied().collect())
}

/// Decides when a workload has been sampled enough. Outcomes of recovery count, not states: without
/// new ones, more states show nothing.
#[derive(Debug)]
pub struct Sampling {
    wanted: usize,
    max_quiet: usize,
    /// The judged states since the last new outcome.
    quiet: usize,
}

impl Sampling {
    /// Stops at `wanted` states, or after `max_quiet` judged states without a new outcome.
    pub fn new(wanted: usize, max_quiet: usize) -> Self {
        Self { wanted, max_quiet, quiet: 0 }
    }

    /// Notes further judged states, and whether one of them brought a new outcome.
    pub fn count(&mut self, judged: usize, has_new: bool) {
        self.quiet = if has_new { 0 } else { self.quiet + judged };
    }

    /// Whether no more samples are needed, given the number of distinct states so far.
    pub fn is_over(&self, states: usize) -> bool {
        states >= self.wanted || self.quiet >= self.max_quiet
    }
}

/// Judges these points, on several threads; the result does not depend on their speed.
fn judged(rec: &Recording, limits: &Limits, n: u64, points: &[Point]) -> Report {
    let started = Instant::now();
    let chunks: Vec<&[Point]> = points.chunks(if limits.first { 1 } else { 8 }).collect();
    let spread = spread(chunks.len());
    let (next, stop) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let done = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for _ in 0..limits.threads.max(1) {
            s.spawn(|| {
                let mut worker = Worker::new(rec, limits, n);
                loop {
                    let i = next.fetch_add(1, Ordering::SeqCst);
                    // A search that stops at the first failure samples points from the whole
                    // recording first.
                    let i = if limits.first { spread.get(i).copied() } else { Some(i) };
                    let Some((i, chunk)) = i.and_then(|i| Some((i, chunks.get(i)?))) else { break };
                    if limits.first && stop.load(Ordering::SeqCst) > 0 {
                        break;
                    }
                    let part = worker.chunk(chunk);
                    stop.fetch_add(part.failed, Ordering::SeqCst);
                    done.lock().unwrap().push((i, part));
                }
            });
        }
    });
    let mut parts = done.into_inner().unwrap();
    parts.sort_by_key(|p| p.0);
    let mut report =
        Report { workload: rec.workload.to_owned(), seed: rec.seed, ..Report::default() };
    parts.into_iter().for_each(|(_, part)| report.absorb(part));
    report.took = started.elapsed();
    report
}

/// All numbers below `n`, ordered so that the first ones are far apart: by reversed bits.
pub fn spread(n: usize) -> Vec<usize> {
    let bits = usize::BITS - n.leading_zeros();
    let reversed = |i: usize| i.reverse_bits() >> (usize::BITS - bits.max(1));
    (0..1usize << bits).map(reversed).filter(|i| *i < n).collect()
}

/// The number of survivals of a point above which a search samples them.
const MANY: usize = 256;
const SOME: usize = 12;

/// The hash of a disk's bytes, the clock, and the boot by which recovery distinguishes a restart
/// from a power cut.
type Disk = (u64, u64, (u64, u64));

struct Worker<'r> {
    rec: &'r Recording,
    limits: &'r Limits,
    seed: u64,
    position: PointCursor<'r>,
    /// The point that the cursor has reached.
    reached: Point,
    /// Recoveries of recent disks: a disk is judged again at a point with more acks, without
    /// another recovery.
    met: HashMap<Disk, Arc<Probe>>,
}

impl<'r> Worker<'r> {
    fn new(rec: &'r Recording, limits: &'r Limits, n: u64) -> Self {
        let seed = rec.seed ^ (n << 48);
        let reached = Point { life: 0, at: 0 };
        Self { rec, limits, seed, position: PointCursor::new(rec), reached, met: HashMap::new() }
    }

    fn chunk(&mut self, points: &[Point]) -> Report {
        let mut report = Report::default();
        if points.first().is_some_and(|p| *p < self.reached) {
            self.position = PointCursor::new(self.rec);
        }
        for &p in points {
            self.reached = p;
            self.position.seek(p);
            let plan = self.position.plan(p, &self.limits.hook);
            let mut states = Vec::new();
            let all = self.position.cursor.survivals(self.seed, &self.limits.options);
            if self.limits.first && all.len() > MANY {
                // With this many pending calls, other points cover the remaining survivals.
                let some = spread(all.len()).into_iter().take(SOME).map(|i| all[i]);
                states.extend(some.map(|s| (s, false, self.position.cursor.image(s))));
            } else {
                self.position.cursor.states(self.seed, &self.limits.options, &mut |state| {
                    states.push((state.survival, state.sampled, state.image));
                });
            }
            let killed = self.position.killed();
            self.judge(p, &plan, Survival::KeepAll, killed, true, &mut report);
            self.failed_write_back(p, &plan, &mut report);
            for (survival, sampled, image) in states {
                if self.limits.first && report.failed > 0 {
                    return report;
                }
                if !sampled {
                    report.systematic.insert(image.hash());
                }
                self.judge(p, &plan, survival, image, false, &mut report);
            }
        }
        report
    }

    /// Judges kills after which the write-back of all pages, or of some, fails: at some of the
    /// points, and not in a search for a mutant. The verdict expects what a power cut must keep.
    fn failed_write_back(&mut self, p: Point, plan: &Plan, report: &mut Report) {
        let every = if self.limits.first { 1 } else { sized(4, 4, 1) };
        if Dice::new(self.seed ^ p.at as u64).below(every) != 0 {
            return;
        }
        for seed in [0, self.seed ^ (p.at as u64 + 1)] {
            let Some(image) = self.position.cursor.failed_write_back(seed) else { return };
            if seed == 0 {
                report.systematic.insert(image.hash());
            }
            report.write_backs += 1;
            self.judge(p, plan, Survival::FailedWriteBack { seed }, image, false, report);
        }
    }

    fn judge(
        &mut self,
        point: Point,
        plan: &Plan,
        survival: Survival,
        image: DiskImage,
        killed: bool,
        report: &mut Report,
    ) {
        let hash = image.hash();
        report.judged += 1;
        report.hashes.insert(hash);
        if killed {
            report.systematic.insert(hash);
        }
        if image.lost_something() {
            report.lost.insert(hash);
        }
        if self.met.len() > 2_000 {
            self.met.clear();
        }
        let key = (hash, plan.wall, image.boot());
        // Equal bytes can be the result of another file's failed write-back, which only a sync
        // reports.
        let known = self.met.get(&key).filter(|_| !image.failed_write_back());
        let probe = match known {
            Some(p) => p.clone(),
            None if image.failed_write_back() => Arc::new(probe(&image, plan)),
            None => {
                let p = Arc::new(probe(&image, plan));
                self.met.insert(key, p.clone());
                p
            }
        };
        let kind = if killed { Keep::Kill } else { Keep::Power };
        report.outcomes.insert(probe.outcome);
        let messages = verdict(&self.position.world, &probe, kind);
        let line = format!("{point:?} {survival:?} {killed} {hash:x} {messages:?}");
        report.digest = report.digest.rotate_left(5) ^ xxh3_64(line.as_bytes());
        if !messages.is_empty() {
            let fs = &self.rec.lives[point.life].fs;
            let call = point.at.checked_sub(1).map(|i| fs.describe_op(i)).unwrap_or_default();
            let plan = plan.clone();
            report.fail(Failure { point, survival, killed, call, messages, image, plan });
        }
    }
}

/// All problems of a recovery, given the earlier acks.
pub fn verdict(world: &World, probe: &Probe, kind: Keep) -> Vec<String> {
    let mut out = probe.problems.clone();
    if let Some(why) = &probe.refused {
        out.push(format!("the open is refused: {why}"));
        return out;
    }
    out.extend(world.check(&probe.seen, kind));
    out.extend(world.check_retries(&probe.seen, &probe.retried, kind));
    out
}
