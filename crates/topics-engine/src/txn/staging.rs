//! Rows that wait for a commit: files, bounded in bytes and in time.

use std::collections::BTreeMap;
use std::sync::Arc;

use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicU64, Ordering};
use topics_storage::StorageError;
use topics_storage::format::record::TxnFile;
use topics_storage::txn::{self, Rows, StageHeader, Stages};

use super::Transactions;
use super::api::{StageRequest, Staged, StagedState};
use super::gather;
use super::table::Txns;
use crate::types::error::{Error, Result};
use crate::types::name;
use crate::types::options::Options;
use crate::types::quota::{Charge, Quota};

/// The longest name of a stage.
const MAX_STAGE: usize = 128;
/// The stage of a transaction in one call; no name that somebody gives is empty.
pub(crate) const OWN: &str = "";
/// What a file takes of the quota at least.
const PAGE: u64 = 4096;

/// A file that nobody has committed.
#[derive(Debug)]
pub(crate) struct StagedFile {
    pub number: u64,
    pub rows: u64,
    pub len: u64,
    at: u64,
    /// A decision that names it failed, and may be in the log all the same until the shard has
    /// gone on up to this lsn. 0: none.
    doubt: u64,
    _charge: Charge,
}

/// Parts by (writer, stage) and number.
type Table = BTreeMap<(String, String), BTreeMap<u32, StagedFile>>;

/// The staged files of an engine.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) files: Stages,
    quota: Arc<Quota>,
    /// The last file number.
    number: AtomicU64,
    table: Mutex<Table>,
}

impl Staging {
    /// An empty table; [`Self::load`] finds what is there.
    pub(crate) fn new(files: Stages, options: &Options, generation: u64) -> Self {
        Self {
            files,
            quota: Quota::new("txn_bytes", options.txn_bytes),
            number: AtomicU64::new(generation << 32),
            table: Mutex::default(),
        }
    }

    /// Takes in what was staged before the open. What is spent goes; so does what cannot be read,
    /// and what belongs to a call that did not live to decide.
    pub(crate) fn load(&self, txns: &Txns) -> Result<()> {
        let named = txns.named();
        let spent = txns.spent(u64::MAX);
        for (number, head) in self.files.list()? {
            let file = txn::name(number);
            let head = match head {
                _ if named.contains(&file) => continue,
                Ok(head) => head,
                Err(e @ (StorageError::Version { .. } | StorageError::NoDescriptor { .. })) => {
                    return Err(e.into());
                }
                Err(e @ StorageError::Corrupt { .. }) => {
                    log::error!("staged rows are lost, their commit will say so: {e}");
                    txns.spend(file, 0);
                    continue;
                }
                Err(e) => {
                    log::error!("staged rows cannot be read until the next open: {e}");
                    continue;
                }
            };
            if head.stage == OWN || spent.contains(&file) {
                txns.spend(file, 0);
                continue;
            }
            let charge = self.quota.force(head.len.max(PAGE));
            self.keep(&head, head.len, head.staged_at, charge);
        }
        Ok(())
    }

    fn keep(&self, head: &StageHeader, len: u64, at: u64, charge: Charge) {
        let (number, rows) = (head.number, head.rows);
        let part = StagedFile { number, rows, len, at, doubt: 0, _charge: charge };
        let key = (head.writer.clone(), head.stage.clone());
        self.table.lock().entry(key).or_default().insert(head.part, part);
    }

    /// Writes rows down; nobody knows of the file yet.
    pub(crate) fn write(
        &self,
        writer: &str,
        stage: &str,
        part: u32,
        rows: &[Rows],
        now: u64,
    ) -> Result<(StageHeader, TxnFile, Charge)> {
        let size = rows.iter().map(|r| r.frames.len() as u64 + 128).sum::<u64>() + PAGE;
        let charge = self.quota.take(size)?;
        let mut head = StageHeader {
            number: self.number.fetch_add(1, Ordering::Relaxed) + 1,
            writer: writer.to_owned(),
            stage: stage.to_owned(),
            part,
            staged_at: now,
            rows: rows.iter().map(|r| r.count).sum(),
            len: 0,
        };
        let (len, checksum) = self.files.write(&head, rows)?;
        head.len = len;
        let file = TxnFile { name: txn::name(head.number), len, checksum };
        Ok((head, file, charge))
    }

    /// The parts of a stage: number, rows, file number and length of each, ascending.
    pub(crate) fn parts(&self, writer: &str, stage: &str) -> Vec<(u32, u64, u64, u64)> {
        let table = self.table.lock();
        let parts = table.get(&(writer.to_owned(), stage.to_owned()));
        parts.into_iter().flatten().map(|(n, p)| (*n, p.rows, p.number, p.len)).collect()
    }

    /// Whether a writer has staged anything.
    pub(crate) fn has_rows(&self, writer: &str) -> bool {
        let table = self.table.lock();
        let mut from = table.range((writer.to_owned(), String::new())..);
        from.next().is_some_and(|((w, _), _)| w == writer)
    }

    /// Gives up all that a writer has staged; whether there was anything.
    pub(crate) fn abort_all(&self, txns: &Txns, writer: &str) -> bool {
        let stages = self.state(writer);
        stages.iter().filter(|s| self.abort(txns, writer, &s.stage)).count() > 0
    }

    /// What a writer has staged.
    pub(crate) fn state(&self, writer: &str) -> Vec<StagedState> {
        let table = self.table.lock();
        let mine = table.iter().filter(|((w, _), _)| w == writer);
        mine.map(|((_, stage), parts)| StagedState {
            stage: stage.clone(),
            parts: parts.len() as u32,
            records: parts.values().map(|p| p.rows).sum(),
            bytes: parts.values().map(|p| p.len).sum(),
        })
        .collect()
    }

    /// Rows and bytes of each stage, with its writer.
    pub(crate) fn sizes(&self) -> Vec<(String, u64, u64)> {
        let table = self.table.lock();
        let sizes = table.iter().map(|((writer, _), parts)| {
            let parts = parts.values();
            let (rows, bytes) = parts.fold((0, 0), |(n, b), p| (n + p.rows, b + p.len));
            (writer.clone(), rows, bytes)
        });
        sizes.collect()
    }

    /// A decision names these files: they are its own.
    pub(crate) fn decided(&self, writer: &str, files: &[TxnFile]) {
        self.each(writer, |p| !files.iter().any(|f| f.name == txn::name(p.number)));
    }

    /// A decision about these files failed, and may come back until the log has gone on.
    pub(crate) fn doubt(&self, writer: &str, files: &[TxnFile], lsn: u64) {
        self.each(writer, |p| {
            if files.iter().any(|f| f.name == txn::name(p.number)) {
                p.doubt = p.doubt.max(lsn);
            }
            true
        });
    }

    fn each(&self, writer: &str, mut keep: impl FnMut(&mut StagedFile) -> bool) {
        self.table.lock().retain(|(w, _), parts| {
            if w == writer {
                parts.retain(|_, p| keep(p));
            }
            !parts.is_empty()
        });
    }

    /// Gives up a stage; its files are spent. False when there is none.
    fn abort(&self, txns: &Txns, writer: &str, stage: &str) -> bool {
        let key = (writer.to_owned(), stage.to_owned());
        let Some(parts) = self.table.lock().remove(&key) else { return false };
        for p in parts.values() {
            txns.spend(txn::name(p.number), p.doubt);
        }
        true
    }

    /// Gives up the stages to which nothing was added since `before`, but for those of a writer
    /// that is busy; how many.
    pub(crate) fn expire(&self, txns: &Txns, before: u64) -> u64 {
        let mut given_up = 0;
        let old: Vec<_> = {
            let table = self.table.lock();
            let old = table.iter().filter(|(_, parts)| parts.values().all(|p| p.at < before));
            old.map(|(key, _)| key.clone()).collect()
        };
        for (writer, stage) in old {
            if let Some(_lock) = txns.try_lock_writer(&writer) {
                log::info!("stage {stage:?} of writer {writer:?} was not committed in time");
                given_up += u64::from(self.abort(txns, &writer, &stage));
            }
        }
        given_up
    }

    /// Parts that wait for a commit, and their bytes on disk.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let table = self.table.lock();
        let parts = table.values().flat_map(BTreeMap::values);
        parts.fold((0, 0), |(n, bytes), p| (n + 1, bytes + p.len))
    }

    /// Removes spent files; `lsn` is how far shard 0 is synced.
    pub(crate) fn sweep(&self, txns: &Txns, lsn: u64) -> Result<()> {
        let mut spent = txns.spent(lsn);
        let named = txns.named();
        spent.retain(|f| !named.contains(f));
        if spent.is_empty() {
            return Ok(());
        }
        for file in &spent {
            self.files.unlink(file)?;
        }
        self.files.sync()?;
        txns.forget(&spent);
        Ok(())
    }
}

fn check_stage(stage: &str) -> Result<()> {
    if stage.is_empty() || stage.len() > MAX_STAGE {
        let text = format!("the name of a stage has 1 to {MAX_STAGE} bytes");
        return Err(Error::InvalidRequest(text));
    }
    Ok(())
}

/// Stages a part; when this returns it is durable.
pub(crate) fn stage(
    core: &Arc<Transactions>,
    writer: &str,
    req: &StageRequest<'_>,
) -> Result<Staged> {
    name::check(writer)?;
    check_stage(req.stage)?;
    core.check_open()?;
    core.check_writable()?;
    let staging = &core.staging;
    // A part is staged by one caller at a time; no writer's name has a slash.
    let _lock = core.txns.lock_writer(&format!("{writer}/{}/{}", req.part, req.stage));
    let key = (writer.to_owned(), req.stage.to_owned());
    if let Some(p) = staging.table.lock().get(&key).and_then(|parts| parts.get(&req.part)) {
        return Ok(Staged { records: p.rows, bytes: p.len, repeated: true });
    }
    let rows = gather::rows_of(core, req.rows)?;
    if rows.is_empty() {
        return Err(Error::InvalidRequest("a stage needs at least one row".into()));
    }
    let now = core.time.steady();
    let (head, _, charge) = staging.write(writer, req.stage, req.part, &rows, now)?;
    staging.keep(&head, head.len, now, charge);
    core.metrics.txn_stages.add(1);
    Ok(Staged { records: head.rows, bytes: head.len, repeated: false })
}

/// Gives a stage up. False when there is none.
pub(crate) fn abort(core: &Arc<Transactions>, writer: &str, stage: &str) -> Result<bool> {
    name::check(writer)?;
    check_stage(stage)?;
    core.check_open()?;
    let _lock = core.txns.lock_writer(writer);
    let found = core.staging.abort(&core.txns, writer, stage);
    core.metrics.txn_aborts.add(u64::from(found));
    if found && core.wal.poisoned(0).is_none() {
        core.staging.sweep(&core.txns, core.wal.positions(0).synced)?;
    }
    Ok(found)
}
