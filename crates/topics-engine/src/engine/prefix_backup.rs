//! A backup: a base and its rounds in a prefix of their own.
//!
//! ```text
//! checkpoint → claim of the new prefix → pin the newest snapshot, take the cut (lock of the checkpoints)
//! → packs of all that it names → rounds up to the cut → base → HEAD
//! ```
//!
//! Writers never wait for it. Checkpoints wait while the cut is taken; segment files that they supersede
//! stay until the pin is dropped, files of the log and staged rows until they are read. A prefix whose
//! backup did not end names no base, so that nothing can be read from it. `HEAD` does not say that the prefix
//! is closed: the engine goes on, and gives away seqs that a directory of the backup must not give again.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use topics_env::objects::ObjectStore;
use topics_env::sync::Mutex;
use topics_remote::Retry;
use topics_remote::claim::{Claimant, KeepRecord};
use topics_remote::format::base::Place;
use topics_remote::format::pack::{PackEntry, PackWriter};
use topics_remote::format::sealed::ObjectKind;
use topics_remote::writer::RemoteWriter;
use topics_storage::StorageError;
use topics_storage::dir::{Paths, RemoteRecord, list_dir, read_file};
use topics_storage::segment::{FileKind, SegmentMeta, TopicKey};
use topics_storage::txn;

use super::backup::{BackupSummary, Cut, cut, fetch_data, prepare};
use super::open_engine::OpenEngine;
use crate::archive::{
    NamedFiles, OtherFiles, PendingSegment, PutFiles, Wanted, add_file, assemble, push_segment,
};
use crate::ship::owner::{holder, remote_error};
use crate::ship::{Cover, replay, ship_cut};
use crate::tier::ArchivedPack;
use crate::types::error::{Error, Result};

/// Bytes of a pack, about.
const PACK_BYTES: u64 = 32 << 20;

/// The record of a prefix that is written to once.
#[derive(Debug, Default)]
struct NoDirectory(Mutex<Option<RemoteRecord>>);

impl KeepRecord for NoDirectory {
    fn load(&self) -> topics_remote::Result<Option<RemoteRecord>> {
        Ok(self.0.lock().clone())
    }

    fn save(&self, record: &RemoteRecord) -> topics_remote::Result<()> {
        *self.0.lock() = Some(record.clone());
        Ok(())
    }
}

/// A backup in progress.
struct Backup<'a> {
    engine: &'a OpenEngine,
    writer: RemoteWriter,
    /// The next pack, and what was added to it.
    pack: PackWriter,
    added: Vec<Wanted>,
    put: PutFiles,
    packs: Vec<ArchivedPack>,
    rows: BTreeMap<String, Place>,
    out: BackupSummary,
}

/// The state that a backup has.
struct CutState<'a> {
    cut: Cut<'a>,
    /// The file of the snapshot.
    snapshot: Vec<u8>,
    /// A wall time after the cut, ms.
    at_ms: u64,
}

fn cut_state(engine: &OpenEngine) -> Result<CutState<'_>> {
    // Later checkpoints remove the file of the snapshot.
    let _round = engine.store().disk.round.lock();
    let cut = cut(engine)?;
    let path = Paths::new(&engine.base().dir).snapshot(cut.pinned.n);
    let snapshot = read_file(&engine.base().env, &path, u64::MAX)?
        .ok_or_else(|| StorageError::Missing { what: path.display().to_string() })?;
    Ok(CutState { cut, snapshot, at_ms: engine.base().time.steady() })
}

/// Puts a backup into a prefix that has no `HEAD`. The caller has synced.
pub(crate) fn backup(
    engine: &OpenEngine,
    store: &Arc<dyn ObjectStore>,
    retry: &Retry,
) -> Result<BackupSummary> {
    prepare(engine)?;
    let base = engine.base();
    let claimant = Claimant {
        store_id: engine.store().disk.store_id,
        holder: format!("a backup by {}", holder(&base.env, &base.dir)),
        has_packs: false,
        record: Arc::new(NoDirectory::default()),
    };
    // Nobody else writes to the prefix of a backup: what a server must have for that is not asked for.
    let writer = RemoteWriter::open(store.clone(), retry.clone(), &claimant, &|| Ok(()));
    let mut writer = writer.map_err(remote_error)?;
    let mut run = Backup {
        engine,
        pack: next_pack(&mut writer)?,
        added: Vec::new(),
        writer,
        put: PutFiles::default(),
        packs: Vec::new(),
        rows: BTreeMap::new(),
        out: BackupSummary::default(),
    };
    let kept = engine.transactions.staging.keep_files();
    let state = cut_state(engine)?;
    let (files, sealed) = run.put_segments(&state)?;
    run.put_rows()?;
    drop(kept);
    run.publish(&state, files, sealed)?;
    Ok(run.out)
}

fn next_pack(writer: &mut RemoteWriter) -> Result<PackWriter> {
    Ok(PackWriter::new(writer.next_pack().map_err(remote_error)?, 0))
}

impl Backup<'_> {
    /// Puts the log, then the base.
    fn publish(
        &mut self,
        state: &CutState<'_>,
        files: OtherFiles,
        live: HashSet<u64>,
    ) -> Result<()> {
        let replay = replay(&state.cut.pinned.snapshot.body);
        let rounds = ship_cut(
            &mut self.writer,
            &state.cut.log,
            (state.cut.lsns.clone(), state.at_ms),
            &replay,
            &self.rows,
        )?;
        let cover = Cover::of_all_rounds(state.at_ms, self.rows.clone());
        let named = NamedFiles { needed: std::mem::take(&mut self.packs), live, others: files };
        let mut base = assemble(self.writer.header(ObjectKind::Base), &named, &self.put, &cover)?;
        base.snapshot.clone_from(&state.snapshot);
        base.packs_settled = self.writer.last_pack();
        self.engine.ctx().check_open()?;
        let object = self.writer.publish(&base).map_err(remote_error)?;
        self.out.copied += 1 + rounds.rounds;
        self.out.copied_bytes += rounds.bytes + object.len;
        Ok(())
    }

    /// Puts the files of staged rows. Those of a transaction that ends meanwhile are not needed.
    fn put_rows(&mut self) -> Result<()> {
        let (env, paths) = (&self.engine.base().env, Paths::new(&self.engine.base().dir));
        for entry in list_dir(env, &paths.txn())? {
            if txn::number(&entry.name).is_none() {
                continue;
            }
            let Some(rows) = read_file(env, &paths.txn().join(&entry.name), u64::MAX)? else {
                continue;
            };
            self.make_space(rows.len() as u64)?;
            self.pack.push_rows(&entry.name, &rows).map_err(remote_error)?;
        }
        self.flush()
    }

    /// Puts the files of segments. Returns what is beside sealed segments, and the file numbers of these.
    fn put_segments(&mut self, state: &CutState<'_>) -> Result<(OtherFiles, HashSet<u64>)> {
        let (mut sealed, mut files) = (Vec::new(), OtherFiles::default());
        let topics = &state.cut.pinned.snapshot.topics;
        for i in 0..topics.len() {
            let header = topics.topic_header(i)?;
            let topic = TopicKey { topic_id: header.topic_id, epoch: header.epoch };
            for meta in header.segments.iter().filter(|m| m.span() > 0 && m.live_count > 0) {
                let segment = PendingSegment { topic, meta: *meta };
                if meta.sealed { &mut sealed } else { &mut files.tails }.push(segment);
                if meta.del_no != 0 {
                    files.deletes.push((topic, *meta));
                }
            }
        }
        // A pack has its sealed segments first, by topic and seq.
        sealed.sort_unstable_by_key(|p| (p.topic, p.meta.first_seq));
        for segment in &sealed {
            self.engine.ctx().check_open()?;
            self.make_space(segment.meta.data_len)?;
            require(self.push_sealed(segment), &segment.meta, segment.topic)?;
        }
        for tail in &files.tails {
            self.make_space(tail.meta.data_len)?;
            require(self.push_other(Wanted::Tail(*tail, 0)), &tail.meta, tail.topic)?;
        }
        for (topic, meta) in &files.deletes {
            self.make_space(0)?;
            require(self.push_other(Wanted::Deletes(*topic, *meta)), meta, *topic)?;
        }
        Ok((files, sealed.iter().map(|p| p.meta.file_no).collect()))
    }

    fn push_other(&mut self, file: Wanted) -> Result<bool> {
        self.added.push(file);
        add_file(self.engine.base(), &mut self.put, &mut self.pack, file)
    }

    /// Adds a sealed segment, which the remote of the engine may have.
    fn push_sealed(&mut self, segment: &PendingSegment) -> Result<bool> {
        let (base, meta) = (self.engine.base(), &segment.meta);
        let name = meta.data_name(segment.topic.topic_id);
        let path = Paths::new(&base.dir).segment(&name, FileKind::Data);
        let data = match read_file(&base.env, &path, u64::MAX)? {
            None if meta.cold => {
                self.out.fetched += 1;
                Some(fetch_data(self.engine, segment.topic, meta)?)
            }
            found => found,
        };
        let Some(data) = data else { return Ok(false) };
        loop {
            // A file beside it may have to be fetched too.
            match push_segment(base, &mut self.pack, segment, &data) {
                Err(Error::ColdPending(fetch)) => base.wait_fetch(&fetch)?,
                done => return done,
            }
        }
    }

    /// Puts the pack if it has no space for `len` bytes more.
    fn make_space(&mut self, len: u64) -> Result<()> {
        match self.pack.len() as u64 + len > PACK_BYTES || self.pack.is_full() {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Puts the pack and reads it back.
    fn flush(&mut self) -> Result<()> {
        if self.pack.is_empty() {
            return Ok(());
        }
        let next = next_pack(&mut self.writer)?;
        let (pack, added) =
            (std::mem::replace(&mut self.pack, next), std::mem::take(&mut self.added));
        let put = self.writer.packs().and_then(|packs| packs.put_verified(pack));
        let (object, directory) = put.map_err(remote_error)?;
        let archived = ArchivedPack::of(&object, &directory);
        for entry in &directory.entries {
            if let PackEntry::Rows { name, part } = entry {
                self.rows.insert(name.clone(), archived.place(part));
            }
        }
        self.put.add(&archived, &directory, &added);
        self.packs.push(archived);
        self.out.copied += 1;
        self.out.copied_bytes += object.len;
        Ok(())
    }
}

/// An error if a file was not added: the snapshot is pinned, so that none of its files is gone. A damaged one is
/// an error too: without it the backup would lack what the engine may still have.
fn require(added: Result<bool>, meta: &SegmentMeta, topic: TopicKey) -> Result<()> {
    let what = || meta.name(topic.topic_id).file(FileKind::Data);
    match added {
        Ok(true) => Ok(()),
        Ok(false) => Err(StorageError::Missing { what: what() }.into()),
        Err(e) => Err(e),
    }
}
