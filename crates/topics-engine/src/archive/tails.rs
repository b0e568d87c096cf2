//! Packs of the segments that are not archived: active ones, and sealed ones that reclaim rewrites soon.
//!
//! A catalog that is the base of a restore names all that its snapshot names. These packs are in no
//! snapshot: the next catalog names others for the segments that have grown.

use std::collections::{BTreeMap, HashMap, HashSet};

use topics_remote::format::catalog::CatalogPack;
use topics_remote::format::pack::{MAX_ENTRIES, PackWriter};

use super::Archiver;
use super::pack::READ_BACK_FIRST;
use super::plan::PendingSegment;
use crate::types::error::{Error, Result};

/// The packs that this process has put, for segments that have not changed since.
#[derive(Debug, Default)]
pub(super) struct Tails {
    /// File number of a segment → the length of its `.data` in a pack, and the number of the pack.
    segments: HashMap<u64, (u64, u64)>,
    packs: BTreeMap<u64, CatalogPack>,
    /// Segments whose files were gone when they were to be packed.
    missing: HashSet<u64>,
}

impl Archiver {
    /// Puts what no pack has of these segments, which are sorted. Returns the packs that hold them. A
    /// damaged segment is left out.
    pub(super) fn put_tails(
        &self,
        tails: &mut Tails,
        needed: Vec<PendingSegment>,
    ) -> Result<Vec<CatalogPack>> {
        let has = |tails: &Tails, p: &PendingSegment| {
            tails.segments.get(&p.meta.file_no).is_some_and(|t| t.0 == p.meta.data_len)
        };
        let new: Vec<_> = needed.iter().filter(|p| !has(tails, p)).copied().collect();
        let mut rest = &new[..];
        while !rest.is_empty() {
            self.check_usable()?;
            let tried = self.put_tail(tails, rest)?;
            rest = &rest[tried..];
        }
        let live: HashMap<u64, (u64, u64)> = needed
            .iter()
            .filter_map(|p| Some((p.meta.file_no, *tails.segments.get(&p.meta.file_no)?)))
            .collect();
        tails.packs.retain(|number, _| live.values().any(|t| t.1 == *number));
        tails.segments = live;
        tails.missing.retain(|no| needed.iter().any(|p| p.meta.file_no == *no));
        Ok(tails.packs.values().cloned().collect())
    }

    /// Puts the first of these segments in one pack. Returns how many were processed.
    fn put_tail(&self, tails: &mut Tails, pending: &[PendingSegment]) -> Result<usize> {
        let number = self.store.base().segments.next_file_no();
        let writer = self.prefix.objects()?;
        let mut pack = PackWriter::new(writer.header(number), 0);
        let (mut tried, mut added) = (0, Vec::new());
        for segment in pending {
            let is_full = pack.len() as u64 + segment.meta.data_len > self.remote.limits.pack_bytes;
            if !added.is_empty() && (is_full || added.len() == MAX_ENTRIES) {
                break;
            }
            tried += 1;
            match self.add(&mut pack, segment) {
                Ok(true) => added.push((segment.meta.file_no, segment.meta.data_len)),
                // Twice in a row: it is lost, and not replaced.
                Ok(false) if tails.missing.contains(&segment.meta.file_no) => {
                    let no = segment.meta.file_no;
                    log::error!("a file of segment {no:016x} is missing, also in the backup");
                }
                Ok(false) => {
                    tails.missing.insert(segment.meta.file_no);
                    let detail =
                        "a checkpoint replaced a segment meanwhile: the next pass repeats it";
                    return Err(Error::StorageUnavailable {
                        reason: "remote",
                        detail: detail.into(),
                    });
                }
                Err(e) if e.is_shortage() => return Err(e),
                Err(e) => log::error!("a segment is missing in the backup: {e}"),
            }
        }
        if pack.is_empty() {
            return Ok(tried);
        }
        // Only directory and footer are read back.
        let (object, directory) = self.put_pack(&writer, pack, 1 + READ_BACK_FIRST)?;
        for (file_no, data_len) in added {
            tails.segments.insert(file_no, (data_len, number));
        }
        tails.packs.insert(number, CatalogPack::of(&object.object, &directory));
        Ok(tried)
    }
}
