//! What a base names beside sealed segments that are archived: the `.data` of other segments, and bitmaps of
//! deleted records.
//!
//! These packs are in no snapshot. Of a segment that has grown, the next base names one more part.

use std::collections::{BTreeSet, HashMap};

use topics_remote::format::base::Place;
use topics_remote::format::keys::Serial;
use topics_remote::format::pack::{PackDirectory, PackEntry, PackWriter};
use topics_storage::StorageError;
use topics_storage::dir::{Paths, read_file};
use topics_storage::segment::{FileKind, SegmentMeta, TopicKey};

use super::plan::PendingSegment;
use super::{Archived, Archiver};
use crate::ship::owner::remote_error;
use crate::tier::ArchivedPack;
use crate::topic::events::Base;
use crate::types::error::Result;

/// The most parts of a segment: with more it is put as a whole again.
const MAX_PARTS: usize = 16;
/// A pack is put again when less than this part of it is needed.
const NEEDED_PART: u64 = 4;

/// What this process knows to be in packs.
#[derive(Debug, Default)]
pub(crate) struct PutFiles {
    /// By file number and number of the `.data`: its parts, without space between them.
    tails: HashMap<(u64, u64), Vec<Place>>,
    /// By file number.
    deletes: HashMap<u64, Place>,
    /// Files that were gone when they were to be packed.
    missing: BTreeSet<u64>,
}

/// The files of a snapshot that are to be in packs, beside archived segments.
#[derive(Debug, Default)]
pub(crate) struct OtherFiles {
    /// Active segments, and sealed ones that are not archived.
    pub tails: Vec<PendingSegment>,
    /// Segments with a `.del`.
    pub deletes: Vec<(TopicKey, SegmentMeta)>,
}

/// A file to put.
#[derive(Clone, Copy)]
pub(crate) enum Wanted {
    Tail(PendingSegment, u64),
    Deletes(TopicKey, SegmentMeta),
}

impl PutFiles {
    /// Knows the bitmaps of an earlier base.
    pub fn know_deletes(&mut self, deletes: HashMap<u64, Place>) {
        self.deletes.extend(deletes);
    }

    /// The parts of a segment.
    pub fn tail(&self, meta: &SegmentMeta) -> &[Place] {
        self.tails.get(&(meta.file_no, meta.data_no)).map_or(&[], |parts| parts)
    }

    pub fn deletes(&self, del_no: u64) -> Option<Place> {
        self.deletes.get(&del_no).copied()
    }

    fn len_of(&self, meta: &SegmentMeta) -> u64 {
        self.tail(meta).iter().map(|p| u64::from(p.len)).sum()
    }

    /// Forgets what a snapshot does not need, and packs of which little is needed.
    fn forget_unneeded(&mut self, files: &OtherFiles) {
        let tails: BTreeSet<_> =
            files.tails.iter().map(|p| (p.meta.file_no, p.meta.data_no)).collect();
        let deletes: BTreeSet<_> = files.deletes.iter().map(|(_, meta)| meta.del_no).collect();
        self.tails.retain(|key, parts| tails.contains(key) && parts.len() < MAX_PARTS);
        self.deletes.retain(|no, _| deletes.contains(no));
        self.missing.retain(|no| deletes.contains(no) || tails.iter().any(|t| t.0 == *no));
        let mut needed: HashMap<Serial, (u64, u64)> = HashMap::new();
        for place in self.tails.values().flatten().chain(self.deletes.values()) {
            let (bytes, _) = needed.entry(place.pack.serial).or_insert((0, place.pack.len));
            *bytes += u64::from(place.len);
        }
        let is_little = |place: &Place| {
            needed.get(&place.pack.serial).is_some_and(|(bytes, len)| bytes * NEEDED_PART < *len)
        };
        self.tails.retain(|_, parts| !parts.iter().any(is_little));
        self.deletes.retain(|_, place| !is_little(place));
    }

    /// Notes where the files of a pack are.
    pub fn add(&mut self, pack: &ArchivedPack, directory: &PackDirectory, tried: &[Wanted]) {
        for entry in &directory.entries {
            match entry {
                PackEntry::Tail { file_no, part, .. } => {
                    let of = tried.iter().find_map(|w| match w {
                        Wanted::Tail(p, _) if p.meta.file_no == *file_no => Some(p.meta.data_no),
                        _ => None,
                    });
                    let key = (*file_no, of.unwrap_or(*file_no));
                    self.tails.entry(key).or_default().push(pack.place(part));
                }
                PackEntry::Deletes { del_no, part } => {
                    _ = self.deletes.insert(*del_no, pack.place(part))
                }
                PackEntry::Segment(_) | PackEntry::Rows { .. } => {}
            }
        }
    }
}

impl Archiver {
    /// Puts what no pack has of these files. Returns false if a checkpoint replaced one of them meanwhile:
    /// then a newer snapshot names others. A damaged file is left out.
    pub(super) fn put_files(
        &self,
        put: &mut PutFiles,
        files: &OtherFiles,
        out: &mut Archived,
    ) -> Result<bool> {
        put.forget_unneeded(files);
        let tails = files.tails.iter().filter_map(|p| {
            let from = put.len_of(&p.meta);
            (from < p.meta.data_len).then_some(Wanted::Tail(*p, from))
        });
        let deletes =
            files.deletes.iter().filter(|(_, meta)| !put.deletes.contains_key(&meta.del_no));
        let deletes = deletes.map(|(topic, meta)| Wanted::Deletes(*topic, *meta));
        let wanted: Vec<Wanted> = tails.chain(deletes).collect();
        let mut rest = &wanted[..];
        while !rest.is_empty() {
            self.check_usable()?;
            let Some(tried) = self.put_some(put, rest, out)? else { return Ok(false) };
            rest = &rest[tried..];
        }
        Ok(true)
    }

    /// Puts the first of these files in one pack. Returns how many were processed; `None`: one is gone.
    fn put_some(
        &self,
        put: &mut PutFiles,
        wanted: &[Wanted],
        out: &mut Archived,
    ) -> Result<Option<usize>> {
        let header = self.prefix.next_pack()?;
        let mut pack = PackWriter::new(header, 0);
        let mut tried = 0;
        for file in wanted {
            let len = match file {
                Wanted::Tail(p, from) => p.meta.data_len - from,
                Wanted::Deletes(..) => 0,
            };
            let is_full = pack.len() as u64 + len > self.remote.limits.pack_bytes;
            if !pack.is_empty() && (is_full || pack.is_full()) {
                break;
            }
            tried += 1;
            match self.add_file(put, &mut pack, *file) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(e) if e.is_shortage() => return Err(e),
                Err(e) => {
                    log::error!("a file is missing in the backup: {e}");
                    out.damaged += 1;
                }
            }
        }
        if !pack.is_empty() {
            let (pack, directory) = self.put_pack(pack, out)?;
            put.add(&pack, &directory, &wanted[..tried]);
        }
        Ok(Some(tried))
    }

    fn add_file(&self, put: &mut PutFiles, pack: &mut PackWriter, file: Wanted) -> Result<bool> {
        add_file(self.store.base(), put, pack, file)
    }
}

/// Adds a file to a pack. Returns false if a checkpoint has replaced it.
pub(crate) fn add_file(
    base: &Base,
    put: &mut PutFiles,
    pack: &mut PackWriter,
    file: Wanted,
) -> Result<bool> {
    let paths = Paths::new(&base.dir);
    let (no, path, topic, meta) = match file {
        Wanted::Tail(PendingSegment { topic, meta }, _) => {
            let name = meta.data_name(topic.topic_id);
            (meta.file_no, paths.segment(&name, FileKind::Data), topic, meta)
        }
        Wanted::Deletes(topic, meta) => match meta.del_name(topic.topic_id) {
            Some(name) => (meta.del_no, paths.segment(&name, FileKind::Del), topic, meta),
            None => return Ok(true),
        },
    };
    let Some(mut bytes) = read_file(&base.env, &path, u64::MAX)? else {
        // Twice in a row: it is lost, and not replaced.
        return match put.missing.insert(no) {
            true => Ok(false),
            false => Err(StorageError::Missing { what: path.display().to_string() }.into()),
        };
    };
    match file {
        Wanted::Tail(_, from) => {
            // The file of an active segment may be longer than the snapshot says.
            bytes.truncate(meta.data_len as usize);
            pack.push_tail(&base.env, topic, &meta, (&bytes, from as usize))
        }
        Wanted::Deletes(..) => {
            base.segments.segment(topic, meta).check_deletes(&bytes)?;
            pack.push_deletes(no, &bytes)
        }
    }
    .map(|()| true)
    .map_err(remote_error)
}
