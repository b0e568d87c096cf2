//! A chain of rounds: where the next one begins, and what it holds.
//!
//! A chain ships each log file from its first byte on. A base whose snapshot needs the files of a
//! chain is restored from it and from the rounds since the first one with the start of such a file.

use std::collections::BTreeMap;
use std::sync::Arc;

use topics_env::Env;
use topics_remote::format::round::{RoundPart, RoundWriter, WAL_HEADER};
use topics_remote::format::sealed::ObjectHeader;
use topics_storage::StorageError;
use topics_storage::format::frame::FrameType;
use topics_storage::format::record::{Body, TxnCommit};
use topics_storage::wal::scan::Scan;
use topics_storage::wal::{FIRST_FRAME, FileKey, WalFile};

use crate::topic::events::Ctx;
use crate::types::error::{Error, Result};

/// Bytes of the log in a round, about.
const ROUND_BYTES: usize = 8 << 20;

/// The next byte of a shard's log to ship.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    file: FileKey,
    offset: u64,
    next_lsn: u64,
}

/// The round with the start of a log file.
#[derive(Clone, Copy, Debug)]
struct FileStart {
    shard: usize,
    first_lsn: u64,
    round: u64,
}

/// A consistent cut that rounds are to complete.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// The last lsn of each shard.
    pub cut: Vec<u64>,
    /// A wall time after the cut, ms.
    pub at_ms: u64,
    /// Bytes logged before the cut.
    pub logged: u64,
}

impl Target {
    /// The cut at this moment.
    pub fn now(ctx: &Ctx) -> Self {
        // Before the cut: what is logged meanwhile counts as not shipped.
        let logged = ctx.wal.counters().bytes;
        let cut = ctx.wal.cut();
        Self { cut, at_ms: ctx.base().time.steady(), logged }
    }
}

/// The log at a moment. Its files stay readable when the log removes their names.
#[derive(Debug)]
pub(crate) struct LogView {
    env: Env,
    /// The files of each shard.
    pub files: Vec<Vec<Arc<WalFile>>>,
    /// The durable lsn of each shard.
    synced: Vec<u64>,
}

impl LogView {
    pub fn now(ctx: &Ctx) -> Self {
        let shards = 0..ctx.wal.shards();
        Self {
            env: ctx.base().env.clone(),
            synced: shards.clone().map(|shard| ctx.wal.positions(shard).synced).collect(),
            files: shards.map(|shard| ctx.wal.files(shard)).collect(),
        }
    }
}

/// Rounds that follow each other without a gap in any shard.
#[derive(Debug)]
pub(super) struct Chain {
    cursors: Vec<Cursor>,
    starts: Vec<FileStart>,
    /// The cut that the next round continues.
    pub target: Option<Target>,
    /// Whether the last round that counts completes a cut. One that does not is followed by another
    /// round, also if nothing is logged meanwhile: otherwise its records could not be restored.
    pub is_whole: bool,
    /// Distinguishes the chains of a process.
    pub id: u64,
}

/// A round and the state of its chain after it.
pub(super) struct Built {
    pub round: RoundWriter,
    pub bytes: u64,
    /// Whether it reaches the target.
    pub complete: bool,
    /// Files of staged rows that decisions in it name.
    pub stages: Vec<String>,
    cursors: Vec<Cursor>,
    /// Shard and first lsn of the files that begin in it.
    starts: Vec<(usize, u64)>,
}

impl Chain {
    /// A chain that begins with the files that a snapshot with these replay positions needs. Either they are
    /// held, or the chain is built from this view only.
    pub fn begin(log: &LogView, replay: &BTreeMap<u32, u64>, id: u64) -> Result<Self> {
        let mut cursors = Vec::new();
        for (shard, files) in log.files.iter().enumerate() {
            let needed = replay.get(&(shard as u32)).copied().unwrap_or(0) + 1;
            let first = files.iter().rfind(|f| f.first_lsn <= needed);
            let Some(f) = first else { return Err(gone(shard)) };
            cursors.push(Cursor { file: f.key, offset: 0, next_lsn: f.first_lsn });
        }
        Ok(Self { cursors, starts: Vec::new(), target: None, is_whole: false, id })
    }

    /// Whether everything up to a cut is shipped.
    pub fn covers(&self, cut: &[u64]) -> bool {
        let is_covered = |(c, lsn): (&Cursor, &u64)| c.offset > 0 && c.next_lsn > *lsn;
        self.cursors.iter().zip(cut).all(is_covered)
    }

    /// The next round up to the target, or as much of it as a round holds.
    pub fn build(&self, log: &LogView, header: ObjectHeader, target: &Target) -> Result<Built> {
        let mut built = Built {
            round: RoundWriter::new(header, 0),
            bytes: 0,
            complete: true,
            stages: Vec::new(),
            cursors: self.cursors.clone(),
            starts: Vec::new(),
        };
        for (shard, last) in target.cut.iter().enumerate() {
            while !built.add(log, shard, *last)? {}
        }
        built.bytes = built.round.len() as u64;
        Ok(built)
    }

    /// Moves the chain behind a round that counts. Returns the last shipped lsn of each shard.
    pub fn advance(&mut self, built: &Built, round: u64) -> Vec<u64> {
        let start = |(shard, first_lsn): &(usize, u64)| FileStart {
            shard: *shard,
            first_lsn: *first_lsn,
            round,
        };
        self.starts.extend(built.starts.iter().map(start));
        self.cursors.clone_from(&built.cursors);
        self.is_whole = built.complete;
        self.cursors.iter().map(|c| c.next_lsn - 1).collect()
    }

    /// The first round that a restore of a snapshot with these replay positions needs.
    pub fn first_round(&self, replay: &BTreeMap<u32, u64>) -> Option<u64> {
        let of_shard = |shard: usize| {
            let needed = replay.get(&(shard as u32)).copied().unwrap_or(0) + 1;
            let starts = self.starts.iter().filter(|s| s.shard == shard);
            starts.filter(|s| s.first_lsn <= needed).map(|s| s.round).next_back()
        };
        (0..self.cursors.len()).map(of_shard).collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// Forgets starts that no later snapshot needs: its replay positions are at or above these.
    pub fn forget_below(&mut self, replay: &BTreeMap<u32, u64>) {
        let starts = std::mem::take(&mut self.starts);
        let needed = |s: &FileStart| replay.get(&(s.shard as u32)).copied().unwrap_or(0) + 1;
        let is_last = |s: &FileStart| {
            let later = |o: &&FileStart| o.shard == s.shard && o.first_lsn > s.first_lsn;
            !starts.iter().filter(later).any(|o| o.first_lsn <= needed(o))
        };
        self.starts = starts.iter().filter(|s| is_last(s)).copied().collect();
    }
}

/// The error of a log file that was trimmed before it was shipped.
fn gone(shard: usize) -> Error {
    StorageError::Missing { what: format!("a log file of shard {shard} that is to be shipped") }
        .into()
}

impl Built {
    /// Adds frames of one file, up to the lsn `last`. Returns whether the shard needs no further call.
    fn add(&mut self, log: &LogView, shard: usize, last: u64) -> Result<bool> {
        let cursor = self.cursors[shard];
        let files = &log.files[shard];
        let at = files.iter().position(|f| f.key == cursor.file).ok_or_else(|| gone(shard))?;
        let (file, next) = (&files[at], files.get(at + 1));
        // Frames at or above the first lsn of the next file are void.
        let end = next.map_or(last + 1, |n| n.first_lsn.min(last + 1));
        let moved = self.add_frames(log, shard, (file, cursor), end)?;
        self.cursors[shard] = moved;
        if moved.next_lsn < end {
            self.complete = false;
            return Ok(true);
        }
        match next.filter(|n| n.first_lsn <= last) {
            Some(n) => {
                self.cursors[shard] = Cursor { file: n.key, offset: 0, next_lsn: n.first_lsn };
                Ok(false)
            }
            None => Ok(true),
        }
    }

    /// Adds verified frames of a file below the lsn `end`, as many as the round has space for. Returns
    /// the position after them.
    fn add_frames(
        &mut self,
        log: &LogView,
        shard: usize,
        (file, cursor): (&WalFile, Cursor),
        end: u64,
    ) -> Result<Cursor> {
        let shown = format!("wal/shard-{shard:02}/{}", file.name);
        let mut bytes = Vec::new();
        let mut offset = cursor.offset;
        if offset == 0 {
            bytes.resize(FIRST_FRAME as usize, 0);
            let read = file.file.read_exact_at(&mut bytes, 0);
            read.map_err(|e| StorageError::io(format!("read {shown}"), e))?;
            offset = FIRST_FRAME;
            self.starts.push((shard, file.first_lsn));
        }
        let mut scan =
            Scan::new(&log.env, file.file.clone(), &file.header, &shown, cursor.next_lsn)?;
        scan.seek(offset, cursor.next_lsn);
        while scan.next_lsn() < end && self.round.len() + bytes.len() < ROUND_BYTES {
            let Some(f) = scan.next_frame()? else {
                let stop = scan.stop();
                let detail = format!("lsn {} is damaged: {}", stop.lsn, stop.why);
                return Err(StorageError::corrupt(shown, stop.offset, detail).into());
            };
            if f.frame.kind == FrameType::TxnCommit {
                let decision = TxnCommit::decode(&f.frame)?;
                self.stages.extend(decision.files.into_iter().map(|f| f.name));
            }
            bytes.extend_from_slice(f.raw);
        }
        let next_lsn = scan.next_lsn();
        if !bytes.is_empty() {
            let mut wal_header = [0; WAL_HEADER];
            wal_header.copy_from_slice(&file.header.encode());
            let part = RoundPart {
                wal_header,
                file_offset: cursor.offset,
                first_lsn: cursor.next_lsn,
                end_lsn: next_lsn,
                synced_lsn: log.synced[shard],
                offset: 0,
                len: 0,
                hash: 0,
            };
            self.round.push(part, &bytes);
        }
        Ok(Cursor { file: cursor.file, offset: cursor.offset + bytes.len() as u64, next_lsn })
    }
}
