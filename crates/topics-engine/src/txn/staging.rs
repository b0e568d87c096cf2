//! Rows that wait for a commit: files, bounded in bytes and in time.

use std::collections::BTreeMap;
use std::sync::Arc;

use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicU64, Ordering};
use topics_storage::StorageError;
use topics_storage::format::record::TxnFile;
use topics_storage::txn::{self, StageHeader, StageRows, Stages};

use super::Transactions;
use super::api::{StageRequest, Staged, StagedState};
use super::gather;
use super::table::TxnTable;
use crate::types::error::{Error, Result};
use crate::types::name;
use crate::types::options::Options;
use crate::types::quota::{Charge, Quota};

/// The longest name of a stage.
const MAX_STAGE: usize = 128;
/// The stage of a transaction in one call; a caller's stage has no empty name.
pub(crate) const OWN: &str = "";
/// The minimum charge of a file on the quota, bytes.
const PAGE: u64 = 4096;

/// A file that no transaction has committed.
#[derive(Debug)]
pub(crate) struct StagedFile {
    pub number: u64,
    pub rows: u64,
    pub len: u64,
    at: u64,
    /// The lsn up to which the shard must be written before a failed decision that names the file is
    /// certainly not in the log. 0: there is none.
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
    stages: Mutex<Table>,
    /// The number of backups that take the files over.
    keepers: Mutex<usize>,
}

/// While it exists no file is removed.
#[derive(Debug)]
pub(crate) struct KeptFiles<'a>(&'a Staging);

impl Drop for KeptFiles<'_> {
    fn drop(&mut self) {
        *self.0.keepers.lock() -= 1;
    }
}

impl Staging {
    /// An empty table; [`Self::load`] adds the existing files.
    pub(crate) fn new(files: Stages, options: &Options, generation: u64) -> Self {
        Self {
            files,
            quota: Quota::new("txn_bytes", options.txn_bytes),
            number: AtomicU64::new(generation << 32),
            stages: Mutex::default(),
            keepers: Mutex::default(),
        }
    }

    /// Adds the files that were staged before the open. Removes spent files, unreadable files, and files
    /// of calls that ended without a decision.
    pub(crate) fn load(&self, table: &TxnTable) -> Result<()> {
        let named = table.named();
        let spent = table.spent(u64::MAX);
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
                    table.spend(file, 0);
                    continue;
                }
                Err(e) => {
                    log::error!("staged rows cannot be read until the next open: {e}");
                    continue;
                }
            };
            if head.stage == OWN || spent.contains(&file) {
                table.spend(file, 0);
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
        self.stages.lock().entry(key).or_default().insert(head.part, part);
    }

    /// Writes rows of a writer and stage to a file that no table has yet.
    pub(crate) fn write(
        &self,
        writer: &str,
        stage: &str,
        part: u32,
        rows: StageRows,
        now: u64,
    ) -> Result<(StageHeader, TxnFile, Charge)> {
        let size = rows.file_len() + PAGE;
        let charge = self.quota.take(size)?;
        self.check_space(size)?;
        let mut head = StageHeader {
            number: self.number.fetch_add(1, Ordering::Relaxed) + 1,
            writer: writer.to_owned(),
            stage: stage.to_owned(),
            part,
            staged_at: now,
            rows: rows.count(),
            len: 0,
        };
        let (len, checksum) = self.files.write(&head, rows)?;
        head.len = len;
        let file = TxnFile { name: txn::name(head.number), len, checksum };
        Ok((head, file, charge))
    }

    /// Refuses a part, already charged, if the disk would then have less free space than all staged
    /// rows take: their commits write them once more, to the log, and a decided commit cannot be aborted
    /// to free its space.
    fn check_space(&self, part: u64) -> Result<()> {
        let needed = self.quota.used().saturating_add(part);
        match self.files.free_space() {
            Ok(free) if free < needed => Err(Error::StorageUnavailable {
                reason: "no_space",
                detail: format!(
                    "the rows of this part, and the log that the commit of all staged rows writes, \
                     need {needed} bytes of disk; {free} are free"
                ),
            }),
            // The write itself meets what is wrong with the disk.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Number, rows, file number and length of each part of a stage, ascending.
    pub(crate) fn parts(&self, writer: &str, stage: &str) -> Vec<(u32, u64, u64, u64)> {
        let stages = self.stages.lock();
        let parts = stages.get(&(writer.to_owned(), stage.to_owned()));
        parts.into_iter().flatten().map(|(n, p)| (*n, p.rows, p.number, p.len)).collect()
    }

    /// Whether a writer has staged anything.
    pub(crate) fn has_rows(&self, writer: &str) -> bool {
        let stages = self.stages.lock();
        let mut from = stages.range((writer.to_owned(), String::new())..);
        from.next().is_some_and(|((w, _), _)| w == writer)
    }

    /// Aborts all stages of a writer; returns whether there were any.
    pub(crate) fn abort_all(&self, table: &TxnTable, writer: &str) -> bool {
        let stages = self.state(writer);
        stages.iter().filter(|s| self.abort(table, writer, &s.stage)).count() > 0
    }

    /// The stages of a writer.
    pub(crate) fn state(&self, writer: &str) -> Vec<StagedState> {
        let stages = self.stages.lock();
        let mine = stages.iter().filter(|((w, _), _)| w == writer);
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
        let stages = self.stages.lock();
        let sizes = stages.iter().map(|((writer, _), parts)| {
            let parts = parts.values();
            let (rows, bytes) = parts.fold((0, 0), |(n, b), p| (n + p.rows, b + p.len));
            (writer.clone(), rows, bytes)
        });
        sizes.collect()
    }

    /// Removes files that a decision names from the table.
    pub(crate) fn decided(&self, writer: &str, files: &[TxnFile]) {
        self.each(writer, |p| !files.iter().any(|f| f.name == txn::name(p.number)));
    }

    /// Marks files of a failed decision, which the log may have until it is written up to `lsn`.
    pub(crate) fn doubt(&self, writer: &str, files: &[TxnFile], lsn: u64) {
        self.each(writer, |p| {
            if files.iter().any(|f| f.name == txn::name(p.number)) {
                p.doubt = p.doubt.max(lsn);
            }
            true
        });
    }

    fn each(&self, writer: &str, mut keep: impl FnMut(&mut StagedFile) -> bool) {
        self.stages.lock().retain(|(w, _), parts| {
            if w == writer {
                parts.retain(|_, p| keep(p));
            }
            !parts.is_empty()
        });
    }

    /// Aborts a stage; its files are spent. Returns false if there is none.
    fn abort(&self, table: &TxnTable, writer: &str, stage: &str) -> bool {
        let key = (writer.to_owned(), stage.to_owned());
        let Some(parts) = self.stages.lock().remove(&key) else { return false };
        for p in parts.values() {
            table.spend(txn::name(p.number), p.doubt);
        }
        true
    }

    /// Aborts the stages without a new part since `before`, except those of writers whose lock is taken.
    /// Returns how many.
    pub(crate) fn expire(&self, table: &TxnTable, before: u64) -> u64 {
        let mut given_up = 0;
        let old: Vec<_> = {
            let stages = self.stages.lock();
            let old = stages.iter().filter(|(_, parts)| parts.values().all(|p| p.at < before));
            old.map(|(key, _)| key.clone()).collect()
        };
        for (writer, stage) in old {
            if let Some(_lock) = table.try_lock_writer(&writer) {
                log::info!("stage {stage:?} of writer {writer:?} was not committed in time");
                given_up += u64::from(self.abort(table, &writer, &stage));
            }
        }
        given_up
    }

    /// Number of parts that wait for a commit, and their bytes on disk.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let stages = self.stages.lock();
        let parts = stages.values().flat_map(BTreeMap::values);
        parts.fold((0, 0), |(n, bytes), p| (n + 1, bytes + p.len))
    }

    /// Keeps every file that exists, or is made, until the result is dropped.
    pub(crate) fn keep_files(&self) -> KeptFiles<'_> {
        *self.keepers.lock() += 1;
        KeptFiles(self)
    }

    /// Removes spent files; shard 0 is synced up to `lsn`. A later pass does what a backup prevents.
    pub(crate) fn sweep(&self, table: &TxnTable, lsn: u64) -> Result<()> {
        let keepers = self.keepers.lock();
        if *keepers > 0 {
            return Ok(());
        }
        let mut spent = table.spent(lsn);
        let named = table.named();
        spent.retain(|f| !named.contains(f));
        if spent.is_empty() {
            return Ok(());
        }
        for file in &spent {
            self.files.unlink(file)?;
        }
        self.files.sync()?;
        table.forget(&spent);
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

/// Stages a part, durably.
pub(crate) fn stage(
    txns: &Arc<Transactions>,
    writer: &str,
    req: &StageRequest<'_>,
) -> Result<Staged> {
    name::check(writer)?;
    check_stage(req.stage)?;
    txns.ctx().check_open()?;
    txns.ctx().check_writable()?;
    let staging = &txns.staging;
    // A part is staged by one caller at a time; no writer's name has a slash.
    let _lock = txns.table.lock_writer(&format!("{writer}/{}/{}", req.part, req.stage));
    let key = (writer.to_owned(), req.stage.to_owned());
    if let Some(p) = staging.stages.lock().get(&key).and_then(|parts| parts.get(&req.part)) {
        return Ok(Staged { records: p.rows, bytes: p.len, repeated: true });
    }
    let rows = gather::rows_of(txns.base(), writer, req.stage, req.rows)?;
    if rows.is_empty() {
        return Err(Error::InvalidRequest("a stage needs at least one row".into()));
    }
    let now = txns.base().time.steady();
    let (head, _, charge) = staging.write(writer, req.stage, req.part, rows, now)?;
    staging.keep(&head, head.len, now, charge);
    txns.base().metrics.txn_stages.add(1);
    Ok(Staged { records: head.rows, bytes: head.len, repeated: false })
}

/// Aborts a stage. Returns false if there is none.
pub(crate) fn abort(txns: &Arc<Transactions>, writer: &str, stage: &str) -> Result<bool> {
    name::check(writer)?;
    check_stage(stage)?;
    txns.ctx().check_open()?;
    let _lock = txns.table.lock_writer(writer);
    let found = txns.staging.abort(&txns.table, writer, stage);
    txns.base().metrics.txn_aborts.add(u64::from(found));
    if found && txns.ctx().wal.poisoned(0).is_none() {
        txns.staging.sweep(&txns.table, txns.ctx().wal.positions(0).synced)?;
    }
    Ok(found)
}
