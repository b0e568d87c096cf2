//! One pack: build → put → read back → name.

use topics_env::sync::atomic::Ordering;
use topics_remote::format::pack::{PARTS, PackDirectory, PackWriter, SegmentFiles};
use topics_remote::format::sealed::SealedObject;
use topics_remote::read;
use topics_storage::dir::{Paths, read_file};
use topics_storage::segment::FileKind;

use super::plan::PendingSegment;
use super::{Archived, Archiver, PassState};
use crate::ship::owner::remote_error;
use crate::tier::ArchivedPack;
use crate::topic::events::Base;
use crate::types::error::{Error, Result};

/// The first packs of a process are read back as a whole, and every 256th of the later ones. Of the
/// others only directory and footer are.
const READ_BACK_FIRST: u64 = 16;
const READ_BACK_EACH: u64 = 256;
/// How long a segment whose files cannot be read is left out, ms.
const UNREADABLE_MS: u64 = 600_000;

/// Adds a sealed segment with this `.data` after verifying each of its frames. Returns false if another file of
/// it is gone.
pub(crate) fn push_segment(
    base: &Base,
    pack: &mut PackWriter,
    segment: &PendingSegment,
    data: &[u8],
) -> Result<bool> {
    let PendingSegment { topic, meta } = segment;
    let paths = Paths::new(&base.dir);
    let named = meta.files(topic.topic_id);
    let mut sides: [Vec<u8>; PARTS.len()] = Default::default();
    for (file, kind) in sides.iter_mut().zip(PARTS).skip(1) {
        let Some((name, _)) = named.iter().find(|(_, k)| *k == kind) else { continue };
        if !base.env.check("archive.side-file", false) {
            // Checked, and made again from `.data` if it fails.
            *file = base.segments.segment(*topic, *meta).side_file(kind)?.unwrap_or_default();
            continue;
        }
        match read_file(&base.env, &paths.segment(name, kind), u64::MAX)? {
            Some(found) => *file = found,
            None => return Ok(false),
        }
    }
    let mut files = sides.each_ref().map(Vec::as_slice);
    files[0] = data;
    let added = pack.push_segment(&base.env, &SegmentFiles { topic: *topic, meta, files });
    added.map(|()| true).map_err(remote_error)
}

impl Archiver {
    /// Archives the first of these segments in one pack. Returns how many were processed.
    pub(super) fn pack(
        &self,
        state: &mut PassState,
        pending: &[PendingSegment],
        out: &mut Archived,
    ) -> Result<usize> {
        let first_len = pending.first().map_or(0, |p| p.meta.data_len);
        let capacity = self.remote.limits.pack_bytes.max(first_len) as usize;
        let mut pack = PackWriter::new(self.prefix.next_pack()?, capacity);
        let (mut tried, mut segments) = (0, 0);
        for segment in pending {
            let is_long = pack.len() as u64 + segment.meta.data_len > self.remote.limits.pack_bytes;
            if segments > 0 && (is_long || pack.is_full()) {
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
        let (pack, _) = self.put_pack(pack, out)?;
        let serial = pack.serial;
        self.store.base().packs.add(pack);
        self.store.base().packs.saw(serial);
        // The next snapshot names it.
        self.store.replaced.store(true, Ordering::Relaxed);
        out.packs += 1;
        out.segments += segments;
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

    /// Adds a sealed segment after verifying each of its frames. Returns false if a file of it is gone.
    fn add(&self, pack: &mut PackWriter, segment: &PendingSegment) -> Result<bool> {
        let base = self.store.base();
        let name = segment.meta.data_name(segment.topic.topic_id);
        let path = Paths::new(&base.dir).segment(&name, FileKind::Data);
        match read_file(&base.env, &path, u64::MAX)? {
            Some(data) => push_segment(base, pack, segment, &data),
            None => Ok(false),
        }
    }

    /// Puts a pack and reads it back.
    pub(super) fn put_pack(
        &self,
        pack: PackWriter,
        out: &mut Archived,
    ) -> Result<(ArchivedPack, PackDirectory)> {
        let (object, directory) = pack.finish().map_err(remote_error)?;
        self.prefix.packs()?.put(&object).map_err(remote_error)?;
        let n = self.read_back.fetch_add(1, Ordering::Relaxed);
        self.read_back(n, &object, &directory)?;
        out.bytes += object.object.len;
        Ok((ArchivedPack::of(&object.object, &directory), directory))
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
