//! The bytes of log files that a copy needs.

use std::sync::Arc;

use topics_env::{Env, File};

use crate::format::frame::FrameError;
use crate::format::record::Start;
use crate::format::wal_file::{WAL_HEADER, WalFileHeader};
use crate::recovery::folder::folder_name;
use crate::wal::scan::{self, FileStart, Scan};
use crate::wal::{Wal, WalFile};
use crate::{Result, StorageError};

/// A log file, and how much of it belongs to a copy.
#[derive(Clone, Debug)]
pub struct LogCopy {
    pub name: String,
    pub header: WalFileHeader,
    /// The open file, which stays readable when the log removes its name.
    pub file: Arc<dyn File>,
    /// The bytes from its start that are copied.
    pub end: u64,
    /// The length of the copy, at least that: the rest is zeros.
    pub len: u64,
}

/// The durable lsn of every shard at one instant. A log that ends there in every shard is one that a
/// power cut at that instant could have left, so recovery completes what spans shards.
pub fn consistent_cut(wal: &Wal) -> Vec<u64> {
    let synced = || (0..wal.shards()).map(|s| wal.positions(s).synced).collect::<Vec<_>>();
    let mut cut = synced();
    loop {
        // Positions only grow: values that are equal twice were valid together in between.
        let again = synced();
        if again == cut {
            return cut;
        }
        cut = again;
    }
}

/// The files of a shard that hold the lsns above `replayed`, and how far each holds lsns up to `cut`, which
/// is durable. Verifies every frame of them.
pub fn log_upto(
    env: &Env,
    files: &[Arc<WalFile>],
    replayed: u64,
    cut: u64,
) -> Result<Vec<LogCopy>> {
    let mut out = Vec::new();
    for (i, log) in files.iter().enumerate() {
        let next = files.get(i + 1).map(|n| n.first_lsn);
        let unneeded = next.is_some_and(|n| n <= replayed + 1 && n <= cut + 1);
        if unneeded || (log.first_lsn > cut + 1 && !out.is_empty()) {
            continue;
        }
        let last = cut.min(next.map_or(cut, |n| n - 1));
        let end = end_of(env, log, last)?;
        let (name, header, file) = (log.name.clone(), log.header.clone(), log.file.clone());
        out.push(LogCopy { name, header, file, end, len: end });
    }
    Ok(out)
}

/// The offset behind the frame `last`, or behind the Start if no frame is at or below it.
fn end_of(env: &Env, log: &WalFile, last: u64) -> Result<u64> {
    let shown = folder_name(log.header.shard, &log.name);
    match scan::read_start(env, &log.file, &log.header, &shown)? {
        FileStart::At(first) if first == log.first_lsn => {}
        // Nothing was written to the first file of a log.
        FileStart::Empty(None) if last < log.first_lsn => return Ok(WAL_HEADER as u64),
        _ => return Err(StorageError::corrupt(shown, WAL_HEADER as u64, "it has no Start")),
    }
    let mut end = (WAL_HEADER + Start::FRAME_LEN) as u64;
    let mut frames = Scan::new(env, log.file.clone(), &log.header, &shown, log.first_lsn)?;
    while frames.next_lsn() <= last {
        let Some(frame) = frames.next_frame()? else {
            let stop = frames.stop();
            let why: FrameError = stop.why;
            let detail = format!("lsn {} of {last} is expected: {why}", stop.lsn);
            return Err(StorageError::corrupt(shown, stop.offset, detail));
        };
        end = frame.offset + frame.raw.len() as u64;
    }
    Ok(end)
}
