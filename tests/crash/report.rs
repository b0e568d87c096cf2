//! The result of an enumeration, for a reader and for comparison with another run.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::time::Duration;

use topics_sim::{DiskImage, Survival};

use super::points::Point;
use super::probe::{Plan, probe};

/// A crash state that violates a guarantee.
#[derive(Clone, Debug)]
pub struct Failure {
    pub point: Point,
    pub survival: Survival,
    pub killed: bool,
    pub call: String,
    pub messages: Vec<String>,
    pub image: DiskImage,
    pub plan: Plan,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Point { life, at } = self.point;
        let how = if self.killed { "killed".into() } else { format!("{:?}", self.survival) };
        writeln!(f, "  life {life} after {at} calls, {how}; last {}", self.call)?;
        for m in self.messages.iter().take(6) {
            writeln!(f, "    {m}")?;
        }
        if std::env::var("TOPICS_JOURNAL").is_ok() {
            self.image
                .files()
                .iter()
                .try_for_each(|(p, b)| writeln!(f, "      {p} {}", b.len()))?;
            let plan = Plan { journal: true, ..self.plan.clone() };
            let journal = probe(&self.image, &plan).journal;
            journal.iter().try_for_each(|line| writeln!(f, "      {line}"))?;
        }
        Ok(())
    }
}

/// The outcome for one workload.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub workload: String,
    pub seed: u64,
    pub points: usize,
    /// States judged: a disk is judged again at a point with more acks.
    pub judged: usize,
    /// Judged states after a kill with a failed write-back.
    pub write_backs: usize,
    /// Distinct disks.
    pub hashes: HashSet<u64>,
    /// Distinct disks without a random choice: a kill, or an enumerated survival.
    pub systematic: HashSet<u64>,
    /// Distinct disks that lost something un-synced.
    pub lost: HashSet<u64>,
    /// Distinct outcomes of recovery, by digest.
    pub outcomes: HashSet<u64>,
    /// The first failure of each kind.
    pub failures: Vec<Failure>,
    /// The number of failures of each kind.
    pub kinds: BTreeMap<String, usize>,
    pub failed: usize,
    /// A digest of every state and verdict, in order.
    pub digest: u64,
    pub took: Duration,
}

impl Failure {
    /// Its first message without the parts that differ from case to case.
    pub fn kind(&self) -> String {
        let text = self.messages.first().map_or("", String::as_str);
        text.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).take(60).collect()
    }
}

impl Report {
    /// Records a failure; keeps the first of each kind in full.
    pub fn fail(&mut self, failure: Failure) {
        self.failed += 1;
        let n = self.kinds.entry(failure.kind()).or_default();
        *n += 1;
        if *n == 1 {
            self.failures.push(failure);
        }
    }

    pub fn states(&self) -> usize {
        self.hashes.len()
    }

    /// Adds the result of a later round.
    pub fn absorb(&mut self, other: Self) {
        self.judged += other.judged;
        self.write_backs += other.write_backs;
        self.hashes.extend(other.hashes);
        self.systematic.extend(other.systematic);
        self.outcomes.extend(other.outcomes);
        self.lost.extend(other.lost);
        for f in other.failures {
            if self.failures.iter().all(|g| g.kind() != f.kind()) {
                self.failures.push(f);
            }
        }
        for (kind, n) in other.kinds {
            *self.kinds.entry(kind).or_default() += n;
        }
        self.failed += other.failed;
        self.digest = self.digest.rotate_left(7) ^ other.digest;
        self.took += other.took;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.judged as f64 / self.took.as_secs_f64().max(1e-9);
        write!(
            f,
            "{:<14} outcomes {:>6}  points {:>5}  states {:>7}  systematic {:>7}  lost {:>7}  \
             failed write-backs {:>6}  judged {:>7}  {:>6.0}/s  seed {:#x}  digest {:016x}  {}",
            self.workload,
            self.outcomes.len(),
            self.points,
            self.states(),
            self.systematic.len(),
            self.lost.len(),
            self.write_backs,
            self.judged,
            rate,
            self.seed,
            self.digest,
            if self.failed == 0 { "ok".into() } else { format!("{} FAILED", self.failed) }
        )
    }
}
