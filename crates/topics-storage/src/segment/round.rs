//! A round: the files that one checkpoint, seal, rewrite or merge makes durable together.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use roaring::RoaringBitmap;

use super::copy::{Copier, CopySource};
use super::files::{UnsyncedFile, create_file};
use super::open::io_error;
use super::{FileKind, Segment, SegmentMeta, SegmentName, SegmentWriter, Segments, deleted};
use crate::dir::show;
use crate::{Result, StorageError};

/// The segment files that a checkpoint writes. If a round is dropped before [`Round::sync`]
/// returned `Ok`, every file in it is suspect: its next writer creates it again under a new number.
#[derive(Debug)]
pub struct Round {
    segs: Arc<Segments>,
    /// Files to sync, each through the descriptor that wrote it.
    files: Vec<UnsyncedFile>,
    /// Topics in whose directory files were created.
    topics: BTreeSet<u64>,
    /// Whether one sync of the file system replaces the file syncs, and no file stays open. Set
    /// from [`super::SegmentOptions::max_unsynced`] files on.
    wide: bool,
    fs_sync_mark: u64,
    file_nos: Vec<u64>,
    created: Vec<(SegmentName, FileKind)>,
    /// The error after which the round can no longer succeed.
    broken: Option<StorageError>,
    /// Whether no sync of the round has failed, so that its files contain every written byte.
    sound: bool,
    done: bool,
}

impl Round {
    /// Starts a round. Call it before the first byte of the round is written.
    pub fn new(segs: &Arc<Segments>) -> Self {
        Self {
            segs: segs.clone(),
            files: Vec::new(),
            topics: BTreeSet::new(),
            wide: false,
            fs_sync_mark: segs.fs_sync_mark(),
            file_nos: Vec::new(),
            created: Vec::new(),
            broken: None,
            sound: false,
            done: false,
        }
    }

    /// Adds a writer: flushes it and keeps its files for the sync. Returns the entry for the
    /// snapshot, which is valid once [`Self::sync`] has succeeded.
    pub fn add(&mut self, mut writer: SegmentWriter) -> Result<SegmentMeta> {
        debug_assert!(writer.belongs_to(&self.segs));
        let (meta, files) = writer.finish()?;
        self.file_nos.push(meta.file_no);
        files.into_iter().try_for_each(|f| self.keep(f))?;
        Ok(meta)
    }

    fn keep(&mut self, written: UnsyncedFile) -> Result<()> {
        if written.created {
            self.created.push((written.name, written.kind));
            self.topics.insert(written.name.topic_id);
        }
        if self.wide {
            return Ok(());
        }
        self.files.push(written);
        if self.files.len() > self.segs.options.max_unsynced {
            if self.segs.can_sync_fs() {
                self.wide = true;
                self.files.clear();
            } else {
                self.sync_files()?;
            }
        }
        Ok(())
    }

    /// Abandons the round for lack of space or descriptors. If no sync of it has failed, its files
    /// are not suspect: the next writer truncates them to their named lengths.
    pub fn refused(mut self) {
        self.sound = self.broken.is_none();
    }

    fn sync_files(&mut self) -> Result<()> {
        for written in std::mem::take(&mut self.files) {
            if let Err(e) = self.segs.env.sync(written.kind.sync_site(), &*written.file) {
                let path = self.segs.paths.segment(&written.name, written.kind);
                let e = StorageError::io(show(&path), e);
                self.broken = Some(e.clone());
                return Err(e);
            }
        }
        Ok(())
    }

    /// Makes all added files durable, with their names. After an error no snapshot may name a file
    /// of the round; its new files are removed.
    pub fn sync(mut self) -> Result<()> {
        if let Some(e) = self.broken.take() {
            return Err(e);
        }
        let synced = match self.wide {
            true => self.segs.sync_fs(self.fs_sync_mark),
            false => self.sync_files().and_then(|()| self.sync_names()),
        };
        self.done = synced.is_ok();
        if self.done {
            self.segs.add_new_files(&self.created);
        }
        // Without a descriptor no sync was attempted, so none failed.
        self.sound = matches!(synced, Err(StorageError::NoDescriptor { .. }));
        synced
    }

    /// Makes the names of new files durable, and the names of the topics' directories: the process
    /// that created a directory may have died before it synced the name.
    fn sync_names(&self) -> Result<()> {
        let sync = |site, dir: &Path| {
            self.segs.env.sync_dir(site, dir).map_err(|e| StorageError::io(show(dir), e))
        };
        for id in &self.topics {
            sync("segment.dir", &self.segs.paths.topic(*id))?;
        }
        if !self.topics.is_empty() {
            sync("segment.topics", &self.segs.paths.topics())?;
        }
        Ok(())
    }

    /// Writes the `.del` of a segment under a new file number, which it returns. `dead` contains
    /// the offset from the segment's first seq of every deleted record, not only of the new ones.
    pub fn write_del(&mut self, segment: &Segment, dead: &RoaringBitmap) -> Result<u64> {
        let salt = segment.salt()?;
        let (topic_id, first_seq) = (segment.topic().topic_id, segment.meta().first_seq);
        let del_no = self.segs.next_file_no();
        let name = SegmentName { topic_id, first_seq, file_no: del_no };
        let path = self.segs.paths.segment(&name, FileKind::Del);
        let bytes = deleted::encode(dead, first_seq, salt, del_no)?;
        let io = |e| io_error(&path, e);
        let file = create_file(&self.segs, &name, FileKind::Del)?.file;
        // Added to the round even if the write failed, so that the round removes a partial file.
        let written = file.write_all_at(&bytes, 0).map_err(io);
        self.keep(UnsyncedFile { file, name, kind: FileKind::Del, created: true })?;
        written.map(|()| del_no)
    }

    /// Copies a sealed segment under a new file number. Its dead records (offsets from the first
    /// seq) become holes. The caller adds later deletes.
    pub fn rewrite(&mut self, segment: &Segment, dead: &RoaringBitmap) -> Result<SegmentMeta> {
        self.merge(&[(segment.clone(), Arc::new(dead.clone()))])
    }

    /// Copies sealed neighbours into one segment, each without its dead records.
    pub fn merge(&mut self, parts: &[(Segment, Arc<RoaringBitmap>)]) -> Result<SegmentMeta> {
        let Some((first, _)) = parts.first() else {
            return Err(StorageError::Missing { what: "segments to merge".into() });
        };
        let mut writer = SegmentWriter::create(&self.segs, first.topic(), first.meta().first_seq)?;
        for (segment, dead) in parts {
            if segment.meta().first_seq != writer.next_seq() || !segment.meta().sealed {
                return Err(StorageError::Missing {
                    what: format!("a sealed segment that begins at {}", writer.next_seq()),
                });
            }
            Copier::new(&mut writer).copy(&CopySource { segment, dead: Some(dead) })?;
        }
        writer.seal()?;
        self.add(writer)
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        if !self.sound {
            self.segs.suspect(&self.file_nos);
        }
        for (name, kind) in &self.created {
            self.segs.discard_file(name, *kind);
        }
        // A directory whose name was lost in a failed sync is visible but never becomes durable.
        // Removing it, if it is empty, lets the next writer create it again.
        self.topics.iter().for_each(|id| self.segs.remove_if_empty(*id));
        self.file_nos.iter().for_each(|no| self.segs.forget(*no));
    }
}
