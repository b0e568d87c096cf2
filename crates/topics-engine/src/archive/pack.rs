//! One pack: build → put → read back → name.

use topics_env::sync::atomic::Ordering;
use topics_remote::format::pack::{MAX_ENTRIES, PARTS, PackDirectory, PackWriter, SegmentFiles};
use topics_remote::format::sealed::SealedObject;
use topics_remote::read;
use topics_remote::writer::{ObjectWriter, Put};
use topics_storage::dir::{Paths, read_file};
use topics_storage::segment::{FileKind, SegmentMeta};

use super::plan::PendingSegment;
use super::{Archived, Archiver, PassState, remote_error};
use crate::tier::ArchivedPack;
use crate::types::error::{Error, Result};

/// The first packs of a process are read back as a whole, and every 256th of the later ones. Of the
/// others only directory and footer are.
pub(super) const READ_BACK_FIRST: u64 = 16;
const READ_BACK_EACH: u64 = 256;
/// How long a segment whose files cannot be read is left out, ms.
const UNREADABLE_MS: u64 = 600_000;

/// The length of a file of an active segment that a snapshot names.
fn named_len(meta: &SegmentMeta, kind: FileKind) -> usize {
    match kind {
        FileKind::Data => meta.data_len as usize,
        _ => meta.active_idx_len() as usize,
    }
}

impl Archiver {
    /// Archives the first of these segments in one pack. Returns how many were processed.
    pub(super) fn pack(
        &self,
        state: &mut PassState,
        pending: &[PendingSegment],
        out: &mut Archived,
    ) -> Result<usize> {
        let number = self.store.base().segments.next_file_no();
        let writer = self.prefix.objects()?;
        let header = writer.header(number);
        let first_len = pending.first().map_or(0, |p| p.meta.data_len);
        let capacity = self.remote.limits.pack_bytes.max(first_len) as usize;
        let mut pack = PackWriter::new(header, capacity);
        let (mut tried, mut segments) = (0, 0);
        for segment in pending {
            let is_full = pack.len() as u64 + segment.meta.data_len > self.remote.limits.pack_bytes;
            if segments > 0 && (is_full || segments == MAX_ENTRIES) {
                break;
            }
            tried += 1;
            match self.add(&mut pack, segment) {
                Ok(true) => segments += 1,
                // Reclaim or retention removed it since the plan.
                Ok(false) => {}
                Err(e) if e.is_shortage() => return Err(e),
                Err(e) => {
                    log::error!("a segment is not archived: {e}");
                    self.skip_segment(state, segment, &e);
                    out.damaged += 1;
                }
            }
        }
        if pack.is_empty() {
            return Ok(tried);
        }
        let (object, directory) = self.put_pack(&writer, pack, state.read_back)?;
        state.read_back += 1;
        let pack = ArchivedPack::of(&object.object, &directory);
        let number = pack.number;
        self.store.base().packs.add(pack);
        self.store.base().packs.saw(number);
        // The next snapshot names it.
        self.store.replaced.store(true, Ordering::Relaxed);
        out.packs += 1;
        out.segments += segments as u64;
        out.bytes += object.object.len;
        Ok(tried)
    }

    /// Leaves a segment out: a damaged one until the next open, one that cannot be read for a while.
    fn skip_segment(&self, state: &mut PassState, segment: &PendingSegment, e: &Error) {
        let until = match e {
            Error::Corrupt { .. } => u64::MAX,
            _ => self.store.base().time.mono_ms() + UNREADABLE_MS,
        };
        state.skipped.insert(segment.meta.file_no, until);
    }

    /// Adds a segment after verifying each of its frames. Returns false if a file of it is gone.
    pub(super) fn add(&self, pack: &mut PackWriter, segment: &PendingSegment) -> Result<bool> {
        let PendingSegment { topic, meta } = segment;
        let paths = Paths::new(&self.store.base().dir);
        let named = meta.files(topic.topic_id);
        let mut files: [Vec<u8>; PARTS.len()] = Default::default();
        for (file, kind) in files.iter_mut().zip(PARTS) {
            let Some((name, _)) = named.iter().find(|(_, k)| *k == kind) else { continue };
            let path = paths.segment(name, kind);
            let is_side = meta.sealed && kind != FileKind::Data;
            if is_side && !self.store.base().env.check("archive.side-file", false) {
                // Checked, and made again from `.data` if it fails.
                let side = self.store.base().segments.segment(*topic, *meta).side_file(kind)?;
                *file = side.unwrap_or_default();
                continue;
            }
            match read_file(&self.store.base().env, &path, u64::MAX)? {
                Some(found) => *file = found,
                None => return Ok(false),
            }
            if !meta.sealed {
                // The files of an active segment may be longer than the snapshot says.
                file.truncate(named_len(meta, kind));
            }
        }
        let files = files.each_ref().map(Vec::as_slice);
        let added = pack.push(&self.store.base().env, &SegmentFiles { topic: *topic, meta, files });
        added.map(|()| true).map_err(remote_error)
    }

    /// Puts a pack and reads it back, as a whole if `n` says so.
    pub(super) fn put_pack(
        &self,
        writer: &ObjectWriter,
        pack: PackWriter,
        n: u64,
    ) -> Result<(SealedObject, PackDirectory)> {
        let (object, directory) = pack.finish().map_err(remote_error)?;
        if writer.put(&object).map_err(remote_error)? == Put::Taken {
            let detail = format!("object {} exists with other bytes", object.object.key);
            return Err(Error::StorageUnavailable { reason: "remote", detail });
        }
        self.read_back(n, &object, &directory)?;
        Ok((object, directory))
    }

    /// Compares the pack in the store with the one that was written.
    fn read_back(&self, n: u64, object: &SealedObject, written: &PackDirectory) -> Result<()> {
        let (store, retry, whole) = (&*self.remote.store, &self.retry, &object.object);
        let found = if n < READ_BACK_FIRST || n.is_multiple_of(READ_BACK_EACH) {
            // Checks the hash of everything.
            read::pack(store, retry, whole).map(|(directory, _)| directory)
        } else {
            read::pack_directory(store, retry, whole, read::FIRST_FETCH)
        };
        let is_same = found.as_ref().is_ok_and(|found| found == written);
        if self.store.base().env.check("archive.read-back", is_same) {
            return Ok(());
        }
        found.map_err(remote_error)?;
        let detail = format!("object {} is not the one that was written", whole.key);
        Err(Error::StorageUnavailable { reason: "remote", detail })
    }
}
