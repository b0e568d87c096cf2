//! Checking every byte of a directory without changing one of them: closed, or beside a running
//! engine.
//!
//! What counts is what a next open would need: the identity, both kept snapshots, every segment file
//! that they name, and the logs. Damage that an open heals by itself (an older snapshot, an index
//! that is made again) is a problem here all the same: it is one fault away from loss.
//!
//! No lock is taken. Beside a running engine files come and go while they are looked at, so what a
//! first look finds is a problem only if a second one finds the same.

mod logs;
mod segments;

use std::path::Path;

use topics_env::{Env, OpenMode};

use super::identity::{self, Identity};
use crate::dir::{Paths, STORE_NAME, show};
use crate::snapshot::{self, Snapshot, SnapshotBody, TopicSnap};
use crate::{Result, StorageError};

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, relative to the data directory where that is known.
    pub file: String,
    /// Where in it.
    pub offset: u64,
    /// What does not hold.
    pub detail: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Files read.
    pub files: u64,
    pub bytes: u64,
    /// Records and log frames whose checksum holds.
    pub records: u64,
    /// Live records of cold segments, which were not looked at: they are in an object store.
    pub cold_records: u64,
    /// Everything that does not.
    pub problems: Vec<Problem>,
}

/// How far a check is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Files read.
    pub files: u64,
    pub bytes: u64,
    /// The bytes of all files that are known so far.
    pub total_bytes: u64,
    /// Problems found.
    pub problems: u64,
}

/// Checks a directory.
pub fn verify(env: &Env, paths: &Paths, progress: &mut dyn FnMut(&Progress)) -> Result<Report> {
    let first = check_once(env, paths, progress)?;
    if first.problems.is_empty() {
        return Ok(first);
    }
    let mut second = check_once(env, paths, progress)?;
    let same = |a: &Problem, b: &Problem| a.file == b.file && a.offset == b.offset;
    second.problems.retain(|p| first.problems.iter().any(|f| same(f, p)));
    Ok(second)
}

fn check_once(env: &Env, paths: &Paths, progress: &mut dyn FnMut(&Progress)) -> Result<Report> {
    let io = |e| StorageError::io(format!("read {}", paths.root().display()), e);
    if !env.fs.exists(&paths.meta()).map_err(io)? {
        return Err(StorageError::Missing { what: show(&paths.meta()) });
    }
    let path = paths.meta().join(STORE_NAME);
    let Some(Identity { store, damage }) = identity::find(env, paths)? else {
        return Err(StorageError::Missing { what: show(&path) });
    };
    let report = Report::default();
    let mut check = Check { env, paths, id: store.id, report, known: 0, progress };
    check.count(&path)?;
    check.record(&path, damage.map_or(Ok(()), Err))?;
    let kept = check.snapshots()?;
    let sizes = kept.iter().flat_map(|(_, b)| &b.topics).flat_map(|t| &t.segments);
    check.known += sizes.map(|m| m.data_len).sum::<u64>() / kept.len().max(1) as u64;
    check.segments(&kept)?;
    check.logs(&kept)?;
    Ok(check.report)
}

struct Check<'a> {
    env: &'a Env,
    paths: &'a Paths,
    id: [u8; 16],
    report: Report,
    /// Bytes of files that will be read, as far as that is known.
    known: u64,
    progress: &'a mut dyn FnMut(&Progress),
}

impl Check<'_> {
    fn add_problem(&mut self, file: String, offset: u64, detail: String) {
        self.report.problems.push(Problem { file, offset, detail });
    }

    /// Damage is a finding; that the disk cannot be read, or is of another version, is an error.
    fn record(&mut self, file: &Path, outcome: Result<()>) -> Result<()> {
        match outcome {
            Err(StorageError::Corrupt { file, offset, detail }) => {
                self.add_problem(file, offset, detail)
            }
            Err(StorageError::Missing { what }) => {
                self.add_problem(show(file), 0, format!("{what} is missing"));
            }
            other => return other,
        }
        Ok(())
    }

    /// Counts a file, if it is there.
    fn count(&mut self, file: &Path) -> Result<()> {
        let io = |e| StorageError::io(format!("read {}", show(file)), e);
        let opened = match self.env.fs.open(file, OpenMode::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(io)?,
        };
        self.report.bytes += opened.len().map_err(io)?;
        self.report.files += 1;
        (self.progress)(&Progress {
            files: self.report.files,
            bytes: self.report.bytes,
            total_bytes: self.known.max(self.report.bytes),
            problems: self.report.problems.len() as u64,
        });
        Ok(())
    }

    /// Reads the two newest snapshots; the valid ones with their numbers, newest first.
    fn snapshots(&mut self) -> Result<Vec<(u64, SnapshotBody)>> {
        let mut kept = Vec::new();
        for n in snapshot::list(self.env, self.paths)?.into_iter().take(2) {
            let path = self.paths.snapshot(n);
            self.count(&path)?;
            let read = snapshot::load(self.env, self.paths, n, self.id).and_then(Snapshot::whole);
            let outcome = read.map(|body| kept.push((n, body)));
            self.record(&path, outcome)?;
        }
        for (n, body) in &kept {
            for topic in &body.topics {
                if let Some(detail) = contradiction(topic) {
                    let detail = format!("topic {:?}: {detail}", topic.name);
                    self.add_problem(
                        show(&self.paths.snapshot(*n)),
                        snapshot::HEADER as u64,
                        detail,
                    );
                }
            }
        }
        Ok(kept)
    }
}

/// What in a topic's entry cannot be (I11).
fn contradiction(t: &TopicSnap) -> Option<String> {
    if t.evict_floor > t.earliest_seq.max(1) || t.earliest_seq > t.head + 1 {
        let (floor, first, head) = (t.evict_floor, t.earliest_seq, t.head);
        return Some(format!("floor {floor}, earliest {first} and head {head} are out of order"));
    }
    if t.gaps.iter().any(|g| g.from > g.to) || t.gaps.windows(2).any(|w| w[0].to >= w[1].from) {
        return Some("gaps are out of order".into());
    }
    let overlap = t.segments.windows(2).find(|w| w[0].last_seq >= w[1].first_seq);
    if let Some(w) = overlap {
        return Some(format!("two segments hold seq {}", w[1].first_seq));
    }
    if let Some(m) = t.segments.iter().find(|m| m.last_seq > t.head) {
        return Some(format!("a segment ends at {}, above the head {}", m.last_seq, t.head));
    }
    None
}
