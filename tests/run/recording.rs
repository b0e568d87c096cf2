//! The result of a run, for the enumerator.

use std::sync::Arc;

use topics_engine::{Options, RecoveryMode};
use topics_sim::SimFs;

use crate::oracle::Event;

/// The sizes of an engine: small, so that files rotate often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    pub shards: u32,
    pub wal_bytes: u64,
    pub segment_records: u64,
    pub segment_bytes: u64,
    /// Recover with `salvage` instead of `strict`.
    pub salvage: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            shards: 1,
            wal_bytes: 8 << 10,
            segment_records: 16,
            segment_bytes: 8 << 10,
            salvage: false,
        }
    }
}

impl Tuning {
    pub fn options(&self) -> Options {
        Options {
            background: false,
            recovery: if self.salvage { RecoveryMode::Salvage } else { RecoveryMode::Strict },
            wal_shards: self.shards,
            wal_file_min: self.wal_bytes,
            wal_file_max: self.wal_bytes,
            segment_max_events: self.segment_records,
            segment_max_bytes: self.segment_bytes,
            ..Options::default()
        }
    }
}

/// One mount of the disk: from an empty disk or a crash image to the end of the process.
#[derive(Clone, Debug)]
pub struct Life {
    pub fs: Arc<SimFs>,
    pub boot: u64,
}

/// A finished run.
#[derive(Clone, Debug)]
pub struct Recording {
    pub workload: &'static str,
    pub seed: u64,
    pub lives: Vec<Life>,
    pub events: Vec<Event>,
    /// The tuning from this (life, call) on.
    pub tunings: Vec<((usize, usize), Tuning)>,
    /// Problems during the run.
    pub problems: Vec<String>,
    /// Every keyed write: topic, attempt.
    pub keyed: Vec<(String, usize)>,
}

impl Recording {
    /// Prints the calls of the disk and the events in order.
    pub fn trace(&self) {
        let mut events = self.events.iter().peekable();
        for (life, l) in self.lives.iter().enumerate() {
            for at in 0..=l.fs.ops_len() {
                while let Some(e) = events.next_if(|e| (e.life, e.at) <= (life, at)) {
                    let text: String = format!("{:?}", e.body).chars().take(300).collect();
                    println!("    @{} {text}", e.wall);
                }
                if at < l.fs.ops_len() {
                    println!("{life} {}", l.fs.describe_op(at));
                }
            }
        }
    }

    /// The tuning in force after this number of calls of a life.
    pub fn tuning(&self, life: usize, at: usize) -> Tuning {
        let before = self.tunings.iter().rev().find(|(from, _)| *from <= (life, at));
        before.or(self.tunings.first()).map_or_else(Tuning::default, |t| t.1)
    }
}
