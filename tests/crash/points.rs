//! The crash points of a recording, and the oracle's state at each of them.

use std::sync::Arc;

use topics_sim::{CrashCursor, DiskImage, Survival};

use super::probe::{Plan, Retry};
use crate::oracle::{Body, Op, World};
use crate::run::{HookSpec, Recording};

/// A number of calls of one process of the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    pub life: usize,
    pub at: usize,
}

/// Every point of a recording: before the first call and after each.
pub fn points(rec: &Recording) -> Vec<Point> {
    let lives = rec.lives.iter().enumerate();
    lives.flat_map(|(life, l)| (0..=l.fs.ops_len()).map(move |at| Point { life, at })).collect()
}

/// Visits the points in order and keeps disk and oracle state in step.
pub struct PointCursor<'r> {
    rec: &'r Recording,
    next_event: usize,
    life: usize,
    pub world: World,
    pub cursor: CrashCursor,
    retries: Arc<Vec<Retry>>,
}

impl<'r> PointCursor<'r> {
    pub fn new(rec: &'r Recording) -> Self {
        let world = World { shards: 1, ..World::default() };
        let cursor = rec.lives[0].fs.crash_cursor();
        Self { rec, next_event: 0, life: 0, world, cursor, retries: Arc::new(retries(rec)) }
    }

    /// Moves forward to a point: applies the calls and acks up to it.
    pub fn seek(&mut self, p: Point) {
        if p.life != self.life {
            self.life = p.life;
            self.cursor = self.rec.lives[p.life].fs.crash_cursor();
        }
        self.cursor.seek(p.at);
        while let Some(e) = self.rec.events.get(self.next_event) {
            if (e.life, e.at) > (p.life, p.at) {
                break;
            }
            self.world.apply(e);
            self.world.problems.clear();
            self.next_event += 1;
        }
    }

    /// How to recover at this point.
    pub fn plan(&self, p: Point, hook: &HookSpec) -> Plan {
        Plan {
            tuning: self.rec.tuning(p.life, p.at),
            wall: if self.world.wall == 0 { 1_700_000_000_000 } else { self.world.wall },
            seed: self.rec.seed ^ 0x5eed,
            hook: hook.clone(),
            retries: self.retries.clone(),
            thorough: true,
            journal: false,
            sound: true,
        }
    }

    /// The disk that a process killed at this point leaves to the next one.
    pub fn killed(&self) -> DiskImage {
        let boot = self.rec.lives[self.life].boot;
        self.cursor.image(Survival::KeepAll).with_boot(boot).with_mount(boot)
    }
}

fn retries(rec: &Recording) -> Vec<Retry> {
    let mut out: Vec<Retry> = Vec::new();
    for e in &rec.events {
        if let Body::Begin(_, op) = &e.body
            && let Op::Append { topic, attempt, recs, key: Some(key), .. } = &**op
            && out.iter().all(|r| r.attempt != *attempt)
        {
            out.push(Retry {
                topic: topic.clone(),
                attempt: *attempt,
                recs: recs.clone(),
                key: key.clone(),
            });
        }
    }
    out
}
