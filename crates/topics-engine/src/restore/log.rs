//! The rounds after a base, as the log files that they are from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use topics_env::{File, OpenMode};
use topics_remote::format::base::Place;
use topics_remote::format::round::RoundPart;
use topics_remote::history::{self, RestoreBase, Round};
use topics_storage::StorageError;
use topics_storage::format::frame::{self, FrameType};
use topics_storage::format::record::{Body, CheckpointMark, TxnCommit, TxnDone};
use topics_storage::format::wal_file::{self, WAL_HEADER, WalFileHeader};
use topics_storage::snapshot::SnapshotBody;
use topics_storage::wal::FIRST_FRAME;

use super::Restore;
use crate::ship::Decisions;
use crate::ship::owner::remote_error;
use crate::types::error::{Error, Result};

/// A log file that is being restored.
struct LogFile {
    header: WalFileHeader,
    file: Arc<dyn File>,
    len: u64,
    /// One above its last lsn.
    end_lsn: u64,
    /// Its length at the last cut, 0: it began later.
    cut_len: u64,
}

/// The log of every shard up to the last cut.
pub(super) struct LogFiles {
    shards: BTreeMap<u32, Vec<LogFile>>,
    /// The last lsns that the snapshot reflects.
    needed: BTreeMap<u32, u64>,
    /// What the frames since the last cut say.
    pending: Vec<Change>,
    decisions: Decisions,
    /// The ids of the topics.
    topics: BTreeSet<u64>,
    /// The highest snapshot that took effect, 0: the log names none.
    pub last_snapshot: u64,
    /// The time of the last cut, 0: none.
    pub cut_ms: u64,
    pub newest_ms: u64,
    pub has_later: bool,
    pub rounds: u64,
    pub bytes: u64,
    /// Where the staged rows of decisions in the rounds are, by the names of their files.
    pub rows: BTreeMap<String, Place>,
    last_round: u64,
}

/// What a frame says of the state to restore.
enum Change {
    Decided(TxnCommit),
    Ended(String, u64),
    Created(u64),
    Deleted(u64),
    Snapshot(u64),
}

impl LogFiles {
    /// Writes the files and makes them durable.
    pub fn restore(run: &Restore<'_>, body: &SnapshotBody, at_ms: Option<u64>) -> Result<Self> {
        let mut log = Self {
            shards: BTreeMap::new(),
            needed: body.shards.iter().map(|s| (s.shard, s.last_lsn)).collect(),
            pending: Vec::new(),
            decisions: Decisions::of(&body.sections)?,
            topics: body.topics.iter().map(|t| t.topic_id).collect(),
            last_snapshot: 0,
            cut_ms: 0,
            newest_ms: 0,
            has_later: false,
            rounds: 0,
            bytes: 0,
            rows: BTreeMap::new(),
            last_round: 0,
        };
        let mut failed = None;
        let walked = history::rounds(&*run.store, &run.retry, &run.base, |round| {
            let added = log.add(run, round, at_ms);
            Ok(added.unwrap_or_else(|e| {
                failed = Some(e);
                false
            }))
        });
        if let Some(e) = failed {
            return Err(e);
        }
        walked.map_err(remote_error)?;
        if log.cut_ms == 0 {
            let detail = "nothing to restore: the rounds of the log do not complete the state of the \
                          base: objects are missing";
            return Err(Error::StorageUnavailable { reason: "remote", detail: detail.into() });
        }
        log.finish(run)?;
        Ok(log)
    }

    /// Adds a round. Returns false if it is not part of the state to restore.
    fn add(&mut self, run: &Restore<'_>, round: &Round, at_ms: Option<u64>) -> Result<bool> {
        let cut_ms = round.directory.cut_ms;
        self.newest_ms = self.newest_ms.max(cut_ms);
        if at_ms.is_some_and(|at| cut_ms > at) {
            self.has_later = true;
            return Ok(false);
        }
        let rows = round.directory.rows.iter().map(|r| (r.name.clone(), r.place));
        self.rows.extend(rows);
        for part in &round.directory.parts {
            if !self.part(run, part, round.part(part))? {
                // The chain was broken here; a later base is that of what follows.
                self.has_later = true;
                return Ok(false);
            }
        }
        if cut_ms > 0 && self.is_whole() {
            self.cut_ms = cut_ms;
            self.last_round = round.number;
            self.shards.values_mut().flatten().for_each(|f| f.cut_len = f.len);
            for change in self.pending.drain(..) {
                match change {
                    Change::Decided(body) => self.decisions.open(body),
                    Change::Ended(writer, epoch) => self.decisions.ended(&writer, epoch),
                    Change::Created(id) => _ = self.topics.insert(id),
                    Change::Deleted(id) => _ = self.topics.remove(&id),
                    Change::Snapshot(n) => self.last_snapshot = self.last_snapshot.max(n),
                }
            }
        }
        self.rounds += 1;
        Ok(true)
    }

    /// Whether the log contains all that the snapshot reflects.
    fn is_whole(&self) -> bool {
        self.needed.iter().all(|(shard, lsn)| {
            let last = self.shards.get(shard).and_then(|files| files.last());
            last.is_some_and(|f| f.end_lsn > *lsn)
        })
    }

    /// Adds bytes of a log file. Returns false if bytes are missing before them.
    fn part(&mut self, run: &Restore<'_>, part: &RoundPart, bytes: &[u8]) -> Result<bool> {
        let header = WalFileHeader::decode(run.env, &part.wal_header, "a round")?;
        let files = self.shards.entry(header.shard).or_default();
        let is_known = files.iter().any(|f| f.header == header);
        let last = files.last_mut();
        let file = match last {
            Some(f) if f.header == header => f,
            _ if is_known => return Ok(false),
            None if part.file_offset > 0 => return Ok(true),
            Some(f) if part.file_offset > 0 || f.end_lsn != part.first_lsn => return Ok(false),
            _ => {
                files.push(create(run, header, part.first_lsn)?);
                let last = files.last_mut();
                last.ok_or_else(|| Error::Internal("a log file was not added".into()))?
            }
        };
        if part.file_offset != file.len || part.first_lsn != file.end_lsn {
            return Ok(false);
        }
        let written = file.file.write_all_at(bytes, file.len);
        written.map_err(|e| StorageError::io("restore a log file", e))?;
        let frames = if file.len == 0 { bytes.get(FIRST_FRAME as usize..) } else { Some(bytes) };
        file.len += bytes.len() as u64;
        file.end_lsn = part.end_lsn;
        self.scan(frames.unwrap_or_default())
    }

    /// Notes the decisions of transactions and their ends, topics and snapshots.
    fn scan(&mut self, mut frames: &[u8]) -> Result<bool> {
        while let Ok((f, len)) = frame::parse(frames) {
            match f.kind {
                FrameType::TxnCommit => {
                    self.pending.push(Change::Decided(TxnCommit::decode(&f)?));
                }
                FrameType::TxnDone => {
                    let done = TxnDone::decode(&f)?;
                    self.pending.push(Change::Ended(done.writer, done.epoch));
                }
                FrameType::TopicCreate => self.pending.push(Change::Created(f.topic_id)),
                FrameType::TopicDelete => self.pending.push(Change::Deleted(f.topic_id)),
                FrameType::CheckpointMark => {
                    self.pending.push(Change::Snapshot(CheckpointMark::decode(&f)?.snapshot));
                }
                _ => {}
            }
            frames = &frames[len..];
        }
        Ok(true)
    }

    /// Cuts the files to the last cut and makes them durable.
    fn finish(&mut self, run: &Restore<'_>) -> Result<()> {
        let env = run.env;
        for (shard, files) in &mut self.shards {
            let dir = run.paths.shard(*shard);
            let io = |e| StorageError::io(format!("restore wal/shard-{shard:02}"), e);
            for f in files.iter() {
                let path = dir.join(super::name_of(&f.header));
                if f.cut_len == 0 {
                    env.fs.remove_file(&path).map_err(io)?;
                    continue;
                }
                f.file.set_len(f.cut_len).map_err(io)?;
                env.sync("restore.file", &*f.file).map_err(io)?;
                self.bytes += f.cut_len;
            }
            files.retain(|f| f.cut_len > 0);
            env.sync_dir("restore.dir", &dir).map_err(io)?;
            if let Some(last) = files.last() {
                wal_file::write_current(env, &dir, &super::name_of(&last.header))?;
            }
        }
        Ok(())
    }

    /// The number of topics.
    pub fn topic_count(&self) -> u64 {
        self.topics.len() as u64
    }

    /// The files of staged rows that open decisions need.
    pub fn open_stages(&self) -> Vec<String> {
        self.decisions.files()
    }

    /// Whether the writer may have shipped, or may still ship, rounds after the last one.
    pub fn is_open_ended(&self, base: &RestoreBase) -> bool {
        let head = &base.head;
        let is_of_epoch = head.epoch == base.base.header.epoch;
        !(is_of_epoch && head.closed == Some(self.last_round))
    }
}

fn create(run: &Restore<'_>, header: WalFileHeader, first_lsn: u64) -> Result<LogFile> {
    let dir = run.paths.shard(header.shard);
    topics_storage::dir::create_dir(run.env, "dir.names", &dir)?;
    let path = dir.join(super::name_of(&header));
    let file = run.env.fs.open(&path, OpenMode::CreateNew);
    let file = file.map_err(|e| StorageError::io(path.display().to_string(), e))?;
    debug_assert_eq!(header.encode().len(), WAL_HEADER);
    Ok(LogFile { header, file, len: 0, end_lsn: first_lsn, cut_len: 0 })
}
