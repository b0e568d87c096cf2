//! A backup: a consistent copy of a running engine in another directory.
//!
//! ```text
//! sync → checkpoint → pin the newest snapshot, take the cut (lock of the rounds) → staged rows
//! → log up to the cut → segments → snapshot → identity → syncs
//! ```
//!
//! Writers never wait for it. Checkpoints wait while the cut is taken; segment files that they supersede
//! stay until the copy has them. What lies above the cut in the log is not part of the copy, whose
//! first open is a recovery like that after a power cut at the cut. The source goes on and gives away
//! seqs above the cut, so the first writing open of the copy makes each topic skip seqs, see [`Lineage`].

use std::path::Path;
use std::sync::Arc;

use topics_env::Env;
use topics_storage::StorageError;
use topics_storage::backup::{CopyReport, CopyTarget, clone_closed, consistent_cut, log_upto};
use topics_storage::checkpoint::Pinned;
use topics_storage::dir::{Lineage, Paths, Store};
use topics_storage::segment::{ColdFiles, DataFrames, FileKind, SegmentMeta, TopicKey};

use super::open::{absolute, at};
use super::open_engine::OpenEngine;
use crate::checkpoint::round;
use crate::ship::LogView;
use crate::tier;
use crate::tier::cold::ColdReader;
use crate::types::error::{Error, Result};

/// Bytes of a cold segment that are asked for in one call.
const BLOCK: usize = 1 << 20;

/// What a backup or a clone has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupSummary {
    /// Files that it shares with the source, by hard links; 0 in an object store.
    pub linked: u64,
    /// Files that were copied or fetched; objects that were put.
    pub copied: u64,
    /// The bytes of these.
    pub copied_bytes: u64,
    /// Segments that were fetched from the object store.
    pub fetched: u64,
}

impl BackupSummary {
    fn of(report: CopyReport, fetched: u64) -> Self {
        let CopyReport { linked, copied, copied_bytes } = report;
        Self { linked, copied, copied_bytes, fetched }
    }
}

/// Whether a section of the snapshot stays behind: the packs are those of the source's prefix, to which a
/// copy never writes.
fn stays_behind(section: u16) -> bool {
    section == tier::SECTION
}

/// Copies the engine to `dir`, which must be missing or empty. The caller has synced.
pub(crate) fn backup(engine: &Arc<OpenEngine>, dir: &Path) -> Result<BackupSummary> {
    prepare(engine)?;
    let source = Paths::new(&engine.base().dir);
    let store = Store::read(&engine.base().env, &source)?.ok_or(Error::Closed)?;
    let mut copy = CopyTarget::create(&engine.base().env, &source, &store, &absolute(dir)?)?;
    copy.set_lineage(Lineage::ORIGIN_WENT_ON)?;
    let kept = engine.transactions.staging.keep_files();
    let round = engine.store().disk.round.lock();
    let Cut { pinned, lsns, log } = cut(engine)?;
    drop(round);
    copy.add_stages()?;
    drop(kept);
    for ((files, lsn), shard) in log.files.iter().zip(&lsns).zip(&pinned.snapshot.body.shards) {
        let files = log_upto(&engine.base().env, files, shard.replay_lsn, *lsn)?;
        copy.add_log(shard.shard, &files)?;
    }
    let mut fetched = 0;
    let topics = &pinned.snapshot.topics;
    for i in 0..topics.len() {
        engine.ctx().check_open()?;
        let topic = topics.topic_header(i)?;
        let key = TopicKey { topic_id: topic.topic_id, epoch: topic.epoch };
        for meta in &topic.segments {
            copy.add_segment(key.topic_id, meta)?;
            if meta.cold && !copy.add_local_data(key.topic_id, meta)? {
                copy.add_data(key.topic_id, meta, &fetch_data(engine, key, meta)?)?;
                fetched += 1;
            }
        }
    }
    let report = copy.finish(Some((pinned.n, &pinned.snapshot)), stays_behind)?;
    Ok(BackupSummary::of(report, fetched))
}

/// Copies a directory that no engine has open; nothing in it changes.
pub(crate) fn clone_directory(env: &Env, source: &Path, target: &Path) -> Result<BackupSummary> {
    let source = absolute(source)?;
    let report = clone_closed(env, &source, &absolute(target)?, stays_behind);
    report.map(|report| BackupSummary::of(report, 0)).map_err(|e| at(&source, e))
}

/// Checks that an engine can be backed up, and writes a snapshot, so that the log above it is short.
pub(super) fn prepare(engine: &OpenEngine) -> Result<()> {
    engine.ctx().check_open()?;
    engine.ctx().check_writable()?;
    engine.ctx().check_lock()?;
    match round::checkpoint(engine.store()) {
        // Without space for a new snapshot the backup has an older one, and more of the log.
        Err(e) if e.is_shortage() && engine.store().disk.checkpoints.newest() > 0 => {
            log::warn!("a backup begins without a checkpoint: {e}");
            Ok(())
        }
        done => done.map(drop),
    }
}

/// The newest snapshot, and a cut of the log.
pub(super) struct Cut<'a> {
    pub pinned: Pinned<'a>,
    /// The durable lsn of each shard at one instant.
    pub lsns: Vec<u64>,
    pub log: LogView,
}

/// Pins the newest snapshot and takes the cut. The caller holds the lock of the rounds: one would trim the log above
/// the snapshot.
pub(super) fn cut(engine: &OpenEngine) -> Result<Cut<'_>> {
    let none = || Error::Internal("a backup finds no snapshot".into());
    let pinned = engine.store().disk.checkpoints.pin_newest()?.ok_or_else(none)?;
    let lsns = consistent_cut(&engine.ctx().wal);
    let log = LogView::now(engine.ctx());
    let body = &pinned.snapshot.body;
    if body.layout != engine.ctx().layout || body.retired.iter().any(|s| s.replay_lsn < s.last_lsn)
    {
        let detail = "the change of the number of shards is not finished".into();
        return Err(Error::StorageUnavailable { reason: "io", detail });
    }
    Ok(Cut { pinned, lsns, log })
}

/// Fetches the records of a cold segment from the object store, and verifies each.
pub(crate) fn fetch_data(
    engine: &OpenEngine,
    topic: TopicKey,
    meta: &SegmentMeta,
) -> Result<Vec<u8>> {
    let name = meta.data_name(topic.topic_id).file(FileKind::Data);
    let Some(tier) = &engine.base().cold else {
        let detail = format!("{name} is in an object store: open the directory with its remote");
        return Err(Error::ColdUnavailable { detail });
    };
    let cold = ColdReader(tier.clone());
    let mut data = vec![0; meta.data_len as usize];
    loop {
        for (at, part) in (0u64..).step_by(BLOCK).zip(data.chunks_mut(BLOCK)) {
            loop {
                match cold.read(meta.file_no, FileKind::Data, at, part) {
                    Err(StorageError::Fetching(fetch)) => engine.base().wait_fetch(&fetch)?,
                    read => break read?,
                }
            }
        }
        let frames = DataFrames::new(
            &engine.base().env,
            &name,
            engine.store().disk.store_id,
            topic,
            meta,
            &data,
        );
        match frames.and_then(|mut frames| frames.try_for_each(|f| f.map(drop))) {
            Err(e @ StorageError::Corrupt { .. })
                if !cold.distrust(meta.file_no, FileKind::Data, 0, meta.data_len) =>
            {
                return Err(e.into());
            }
            Err(StorageError::Corrupt { .. }) => {}
            verified => return verified.map(|()| data).map_err(Error::from),
        }
    }
}
