//! Crashes during recovery, and repeated recoveries.

use std::time::Instant;

use topics_sim::{CrashOptions, DiskImage};

use super::enumerate::verdict;
use super::points::{Point, PointCursor, points};
use super::probe::{Mounted, Plan, probe, shape};
use super::report::{Failure, Report};
use crate::oracle::{Keep, Observation, World, observe};
use crate::run::{HookSpec, Recording};

/// Crashes some recoveries at every call; with `first`, until the first failure.
pub fn second(rec: &Recording, limit: usize, hook: &HookSpec, first: bool) -> Report {
    let options = CrashOptions { random: 1, torn_bytes: 1, names: 2, single: false };
    visit(rec, (limit, first), hook, |world, plan, point, image, report| {
        let mut disk = Mounted::new(image, plan);
        if disk.open().is_err() {
            return;
        }
        let mut cursor = disk.fs.crash_cursor();
        let plan = Plan { thorough: false, ..plan.clone() };
        loop {
            let mut states = Vec::new();
            cursor.states(rec.seed, &options, &mut |s| states.push(s));
            for s in states {
                report.judged += 1;
                if !report.hashes.insert(s.image.hash()) {
                    continue;
                }
                if s.image.lost_something() {
                    report.lost.insert(s.image.hash());
                }
                let messages = verdict(world, &probe(&s.image, &plan), Keep::Power);
                note(report, point, s.survival, &disk, s.after_ops, messages, &s.image);
            }
            if first && report.failed > 0 || !cursor.advance() {
                break;
            }
        }
    })
}

fn note(
    report: &mut Report,
    point: Point,
    survival: topics_sim::Survival,
    disk: &Mounted,
    after_ops: usize,
    messages: Vec<String>,
    image: &DiskImage,
) {
    if messages.is_empty() {
        return;
    }
    let last = after_ops.checked_sub(1).map(|i| disk.fs.describe_op(i));
    let call = format!("in recovery {}", last.unwrap_or_default());
    let image = image.clone();
    let plan = disk.plan().clone();
    report.fail(Failure { point, survival, killed: false, call, messages, image, plan });
}

/// Recovers some states up to three times, with kills and power cuts in between: the state must not
/// change.
pub fn again(rec: &Recording, limit: usize, hook: &HookSpec, first: bool) -> Report {
    visit(rec, (limit, first), hook, |_, plan, point, image, report| {
        report.judged += 1;
        report.hashes.insert(image.hash());
        if image.lost_something() {
            report.lost.insert(image.hash());
        }
        let mut disk = Mounted::new(image, plan);
        let mut first: Option<Observation> = None;
        for n in 0..3 {
            let seen = match disk.open() {
                Ok(engine) => observe(&engine, plan.wall, 20).0,
                Err(e) => {
                    let text = vec![format!("open {n} is refused: {e}")];
                    let all = topics_sim::Survival::KeepAll;
                    note(report, point, all, &disk, disk.fs.ops_len(), text, image);
                    return;
                }
            };
            let messages = match &first {
                Some(f) => differences(f, &seen),
                None => Vec::new(),
            };
            let all = topics_sim::Survival::KeepAll;
            note(report, point, all, &disk, disk.fs.ops_len(), messages, image);
            first.get_or_insert(seen);
            let left = if n == 0 {
                disk.fs.kill_image()
            } else {
                let mut cursor = disk.fs.crash_cursor();
                while cursor.advance() {}
                cursor.image(topics_sim::Survival::DropAll)
            };
            disk = Mounted::new(&left, plan);
        }
    })
}

fn differences(a: &Observation, b: &Observation) -> Vec<String> {
    let mut out = Vec::new();
    if a.topics.len() != b.topics.len() {
        out.push("another number of topics".into());
    }
    for (x, y) in a.topics.iter().zip(&b.topics) {
        if shape(x) != shape(y) || x.records != y.records || x.tombstones != y.tombstones {
            out.push(format!("recovering again changed {:?} to {:?}", shape(x), shape(y)));
        }
    }
    out
}

/// Visits states from the whole recording, some of each `each`th point, until the report has
/// `limit` states; with `first`, until the first failure.
fn visit(
    rec: &Recording,
    (limit, first): (usize, bool),
    hook: &HookSpec,
    mut each: impl FnMut(&World, &Plan, Point, &DiskImage, &mut Report),
) -> Report {
    let started = Instant::now();
    let mut report =
        Report { workload: rec.workload.to_owned(), seed: rec.seed, ..Report::default() };
    let mut met = std::collections::HashSet::new();
    let options = CrashOptions { random: 1, torn_bytes: 1, names: 2, single: false };
    let points = points(rec);
    // Later rounds use the points in between, and other survivals.
    for round in 0..STRIDE * 4 {
        let mut position = PointCursor::new(rec);
        for p in points.iter().skip(round * 7 % STRIDE).step_by(STRIDE) {
            position.seek(*p);
            let plan = position.plan(*p, hook);
            let survivals = position.cursor.survivals(rec.seed, &options);
            let pick = (p.at * 31 + round * 17) % survivals.len();
            let image = position.cursor.image(survivals[pick]);
            if !met.insert(image.hash()) {
                continue;
            }
            each(&position.world, &plan, *p, &image, &mut report);
            report.points += 1;
            report.took = started.elapsed();
            if first && report.failed > 0 || report.states() >= limit {
                return report;
            }
        }
    }
    report
}

/// A round visits one point of this many.
const STRIDE: usize = 23;
