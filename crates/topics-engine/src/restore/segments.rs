//! The files of the segments that the snapshot of a catalog names.

use std::collections::{BTreeSet, HashMap};

use topics_remote::format::catalog::CatalogDeletes;
use topics_remote::format::pack::{PARTS, PackEntry};
use topics_remote::read;
use topics_storage::StorageError;
use topics_storage::dir::{create_dir, write_file};
use topics_storage::segment::{FileKind, SegmentMeta};
use topics_storage::snapshot::{GapSnap, SnapshotBody, TopicSnap};

use super::{Restore, Restored};
use crate::ship::owner::remote_error;
use crate::types::api::GapReason;
use crate::types::error::Result;

/// Whether a segment has records to restore. One without leaves the snapshot.
fn has_records(meta: &SegmentMeta) -> bool {
    meta.span() > 0 && meta.live_count > 0
}

/// Whether an entry of a pack is this segment, as the snapshot names it: another pack may have an
/// earlier state of an active one.
fn is_of(entry: &PackEntry, meta: &SegmentMeta) -> bool {
    entry.parts[0].len == meta.data_len && entry.last_seq == meta.last_seq
}

impl Restore<'_> {
    /// Writes the files of every segment, and makes the snapshot name exactly these.
    pub(super) fn segments(&self, body: &mut SnapshotBody, out: &mut Restored) -> Result<()> {
        let catalog = &self.base.catalog;
        let mut wanted: HashMap<u64, (u64, SegmentMeta)> = HashMap::new();
        for topic in &mut body.topics {
            topic.segments.retain(has_records);
            for meta in &mut topic.segments {
                meta.cold = false;
                wanted.insert(meta.file_no, (topic.topic_id, *meta));
            }
        }
        let mut topics = BTreeSet::new();
        for pack in &catalog.packs {
            if wanted.is_empty() {
                break;
            }
            let found = read::pack(&*self.store, &self.retry, &pack.object());
            let (directory, object) = found.map_err(remote_error)?;
            for entry in &directory.entries {
                let Some((topic, meta)) = wanted.get(&entry.file_no) else { continue };
                if !is_of(entry, meta) {
                    continue;
                }
                if topics.insert(*topic) {
                    create_dir(self.env, "dir.names", &self.paths.topic(*topic))?;
                }
                out.segment_bytes += self.segment(*topic, meta, entry, &object.bytes)?;
                wanted.remove(&entry.file_no);
            }
        }
        self.deletes(body, &wanted)?;
        for topic in topics {
            let dir = self.paths.topic(topic);
            let synced = self.env.sync_dir("restore.dir", &dir);
            synced.map_err(|e| StorageError::io(dir.display().to_string(), e))?;
        }
        for topic in &mut body.topics {
            out.missing_segments += declare_lost(topic, &wanted);
        }
        Ok(())
    }

    fn segment(
        &self,
        topic: u64,
        meta: &SegmentMeta,
        entry: &PackEntry,
        pack: &[u8],
    ) -> Result<u64> {
        let mut written = 0;
        for (part, kind) in entry.parts.iter().zip(PARTS).filter(|(p, _)| p.len > 0) {
            let name = match kind {
                FileKind::Data => meta.data_name(topic),
                _ => meta.name(topic),
            };
            let bytes = &pack[part.offset as usize..(part.offset + part.len) as usize];
            write_file(self.env, "restore.file", &self.paths.segment(&name, kind), bytes)?;
            written += part.len;
        }
        Ok(written)
    }

    /// Writes the bitmaps of deleted records of the segments that are there.
    fn deletes(
        &self,
        body: &SnapshotBody,
        missing: &HashMap<u64, (u64, SegmentMeta)>,
    ) -> Result<()> {
        let of = |d: &CatalogDeletes| ((d.file_no, d.del_no), *d);
        let known: HashMap<_, _> = self.base.catalog.deletes.iter().map(of).collect();
        for topic in &body.topics {
            let present = topic.segments.iter().filter(|m| !missing.contains_key(&m.file_no));
            for meta in present {
                let Some(name) = meta.del_name(topic.topic_id) else { continue };
                let deletes = known.get(&(meta.file_no, meta.del_no));
                let found = read::deletes(&*self.store, &self.retry, deletes);
                let path = self.paths.segment(&name, FileKind::Del);
                write_file(self.env, "restore.file", &path, &found.map_err(remote_error)?)?;
            }
        }
        Ok(())
    }
}

/// Removes the segments of a topic that are missing; their seqs are gaps. Returns how many.
fn declare_lost(topic: &mut TopicSnap, missing: &HashMap<u64, (u64, SegmentMeta)>) -> u64 {
    let (gone, kept): (Vec<_>, Vec<_>) =
        topic.segments.drain(..).partition(|m| missing.contains_key(&m.file_no));
    topic.segments = kept;
    let reason = GapReason::Corrupt.code();
    for meta in &gone {
        topic.gaps.push(GapSnap { from: meta.first_seq, to: meta.last_seq, reason });
        topic.live_count = topic.live_count.saturating_sub(meta.live_count);
        topic.live_bytes = topic.live_bytes.saturating_sub(meta.live_bytes);
    }
    topic.gaps.sort_unstable_by_key(|g| g.from);
    gone.len() as u64
}
