//! Which packs of the remote hold which sealed segments, and reads of those that are only there.
//!
//! A file number is never given twice, so that the file number of a sealed segment names its content.

mod admission;
mod blocks;
pub(crate) mod cold;
#[cfg(test)]
mod cold_tests;
mod fetch;
#[cfg(test)]
mod hang_tests;
#[cfg(test)]
mod repair_tests;
pub(crate) mod requests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

use topics_env::objects::{ObjectError, ObjectStore};
use topics_env::sync::Mutex;
use topics_remote::format::base::{Base, BasePack, BaseSegment, Place};
use topics_remote::format::keys::Serial;
use topics_remote::format::pack::{PARTS, PackDirectory, PackPart};
use topics_remote::format::sealed::ObjectRef;
use topics_remote::{RemoteError, Retry, read};
use topics_storage::segment::{FileKind, TopicKey};
use topics_storage::snapshot::{Section, TopicSnap};

use self::blocks::BLOCK;
use crate::types::error::{Error, Result};
use crate::types::section::is_of;

/// The section of a snapshot that lists the packs.
pub(crate) const SECTION: u16 = 4;
const VERSION: u16 = 1;
/// The bytes of a pack before its segments, and of a segment.
const PACK: usize = 8 + 8 + 8 + 16 + 4;
const SEGMENT: usize = (6 + PARTS.len()) * 8;

/// A segment in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArchivedSegment {
    pub topic: TopicKey,
    pub first_seq: u64,
    pub last_seq: u64,
    pub file_no: u64,
    /// The offset of its first file in the pack.
    pub offset: u64,
    /// The lengths of its files, which lie in the order of [`PARTS`] without space between them.
    pub lens: [u64; PARTS.len()],
}

impl ArchivedSegment {
    /// Offset and length of a file in the pack.
    pub(crate) fn part(&self, kind: FileKind) -> (u64, u64) {
        let mut offset = self.offset;
        for (part, len) in PARTS.into_iter().zip(self.lens) {
            if part == kind {
                return (offset, len);
            }
            offset += len;
        }
        (offset, 0)
    }

    /// The blocks of the pack that have bytes of a file, which is not empty.
    fn blocks(&self, kind: FileKind) -> RangeInclusive<u64> {
        let (offset, len) = self.part(kind);
        offset / BLOCK..=(offset + len.max(1) - 1) / BLOCK
    }
}

/// A pack that was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArchivedPack {
    pub serial: Serial,
    pub len: u64,
    pub hash: u128,
    /// By topic and seq.
    pub segments: Vec<ArchivedSegment>,
}

impl ArchivedPack {
    /// The finished pack.
    pub(crate) fn of(object: &ObjectRef, directory: &PackDirectory) -> Self {
        let segments = directory.segments().map(|e| ArchivedSegment {
            topic: e.topic,
            first_seq: e.first_seq,
            last_seq: e.last_seq,
            file_no: e.file_no,
            offset: e.parts[0].offset,
            lens: e.parts.map(|p| p.len),
        });
        let (serial, segments) = (directory.header.serial(), segments.collect());
        Self { serial, len: object.len, hash: object.hash, segments }
    }

    /// Its entry in a base.
    pub(crate) fn for_base(&self) -> BasePack {
        BasePack { serial: self.serial, len: self.len, hash: self.hash }
    }

    pub(crate) fn object(&self) -> ObjectRef {
        self.for_base().object()
    }

    /// A part of it.
    pub(crate) fn place(&self, part: &PackPart) -> Place {
        let (offset, len) = (part.offset as u32, part.len as u32);
        Place { pack: self.for_base(), offset, len }
    }

    /// Whether a directory that was read from the store has these segments.
    pub(crate) fn is_in(&self, directory: &PackDirectory) -> bool {
        let object = ObjectRef { len: self.len, hash: self.hash, key: String::new() };
        let found = Self::of(&object, directory).segments;
        self.segments.iter().all(|s| found.contains(s))
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let words = [self.serial.epoch, self.serial.number, self.len];
        words.into_iter().for_each(|w| out.extend(w.to_le_bytes()));
        out.extend(self.hash.to_le_bytes());
        out.extend((self.segments.len() as u32).to_le_bytes());
        for s in &self.segments {
            let words =
                [s.topic.topic_id, s.topic.epoch, s.first_seq, s.last_seq, s.file_no, s.offset];
            words.into_iter().chain(s.lens).for_each(|w| out.extend(w.to_le_bytes()));
        }
    }

    fn decode(rest: &mut &[u8]) -> Option<Self> {
        let head = take::<PACK>(rest)?;
        let word = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
        let hash = u128::from_le_bytes(head.get(24..40)?.try_into().ok()?);
        let n = u32::from_le_bytes(head.get(40..)?.try_into().ok()?) as usize;
        let mut segments = Vec::with_capacity(n.min(rest.len() / SEGMENT));
        for _ in 0..n {
            let row = take::<SEGMENT>(rest)?;
            let word = |i: usize| Some(u64::from_le_bytes(row.get(i..i + 8)?.try_into().ok()?));
            segments.push(ArchivedSegment {
                topic: TopicKey { topic_id: word(0)?, epoch: word(8)? },
                first_seq: word(16)?,
                last_seq: word(24)?,
                file_no: word(32)?,
                offset: word(40)?,
                lens: [word(48)?, word(56)?, word(64)?, word(72)?],
            });
        }
        let serial = Serial { epoch: word(0)?, number: word(8)? };
        Some(Self { serial, len: word(16)?, hash, segments })
    }
}

/// Takes the first bytes.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

#[derive(Debug, Default)]
struct Packs {
    by_serial: BTreeMap<Serial, Arc<ArchivedPack>>,
    /// File number of a segment → its pack, and its place in the pack's list.
    of_segment: HashMap<u64, (Serial, usize)>,
    /// Topic and first seq of a segment → its file number.
    of_topic: BTreeMap<(TopicKey, u64), u64>,
    /// The packs that were looked at in the store since the prefix was opened.
    seen: BTreeSet<Serial>,
    /// Those that were not there then, or were other ones.
    missed: BTreeSet<Serial>,
}

/// The packs that hold segments of this directory.
#[derive(Debug, Default)]
pub(crate) struct PackTable {
    packs: Mutex<Packs>,
}

impl PackTable {
    pub(crate) fn add(&self, pack: ArchivedPack) {
        let mut packs = self.packs.lock();
        for (at, s) in pack.segments.iter().enumerate() {
            packs.of_segment.insert(s.file_no, (pack.serial, at));
            packs.of_topic.insert((s.topic, s.first_seq), s.file_no);
        }
        packs.by_serial.insert(pack.serial, Arc::new(pack));
    }

    /// Whether a pack holds the segment with this file number.
    pub(crate) fn has_segment(&self, file_no: u64) -> bool {
        self.packs.lock().of_segment.contains_key(&file_no)
    }

    /// The segment with this file number, and its pack.
    pub(crate) fn find(&self, file_no: u64) -> Option<(Arc<ArchivedPack>, ArchivedSegment)> {
        let packs = self.packs.lock();
        let (serial, at) = packs.of_segment.get(&file_no)?;
        let pack = packs.by_serial.get(serial)?;
        let segment = pack.segments.get(*at).filter(|s| s.file_no == file_no)?;
        Some((pack.clone(), *segment))
    }

    /// The segment of the same topic that follows the one with this file number, and its pack.
    fn after(&self, file_no: u64) -> Option<(Arc<ArchivedPack>, ArchivedSegment)> {
        let (_, segment) = self.find(file_no)?;
        let next = {
            let packs = self.packs.lock();
            let mut later = packs.of_topic.range((segment.topic, segment.last_seq + 1)..);
            later.next().map(|((topic, _), next)| (*topic, *next))
        };
        next.filter(|(topic, _)| *topic == segment.topic).and_then(|(_, next)| self.find(next))
    }

    /// Whether the pack that holds this segment was looked at since the prefix was opened.
    pub(crate) fn is_segment_seen(&self, file_no: u64) -> bool {
        let packs = self.packs.lock();
        packs.of_segment.get(&file_no).is_some_and(|(serial, _)| packs.seen.contains(serial))
    }

    /// Notes that this pack is in the store with its length, footer and directory.
    pub(crate) fn saw(&self, serial: Serial) {
        let mut packs = self.packs.lock();
        packs.missed.remove(&serial);
        packs.seen.insert(serial);
    }

    /// Notes that this pack is not in the store as it was archived. Returns whether that is new.
    pub(crate) fn missed(&self, serial: Serial) -> bool {
        self.packs.lock().missed.insert(serial)
    }

    /// Forgets which packs were looked at.
    pub(crate) fn forget_seen(&self) {
        self.packs.lock().seen.clear();
    }

    /// The number of packs.
    pub(crate) fn len(&self) -> usize {
        self.packs.lock().by_serial.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.packs.lock().by_serial.values().map(|p| p.len).sum()
    }

    /// Every pack.
    pub(crate) fn all(&self) -> Vec<ArchivedPack> {
        self.packs.lock().by_serial.values().map(|p| (**p).clone()).collect()
    }

    pub(crate) fn serials(&self) -> BTreeSet<Serial> {
        self.packs.lock().by_serial.keys().copied().collect()
    }

    /// The packs, each with its hash.
    pub(crate) fn identities(&self) -> PackIdentities {
        self.packs.lock().by_serial.values().map(|p| (p.serial, p.hash)).collect()
    }

    /// Removes packs.
    pub(crate) fn remove(&self, gone: &BTreeSet<Serial>) {
        let mut packs = self.packs.lock();
        packs.by_serial.retain(|serial, _| !gone.contains(serial));
        packs.of_segment.retain(|_, (serial, _)| !gone.contains(serial));
        let Packs { of_segment, of_topic, .. } = &mut *packs;
        of_topic.retain(|_, file_no| of_segment.contains_key(file_no));
        packs.seen.retain(|serial| !gone.contains(serial));
        packs.missed.retain(|serial| !gone.contains(serial));
    }

    /// The section of a snapshot; none without packs.
    pub(crate) fn capture(&self) -> Option<Section> {
        let packs = self.packs.lock();
        let mut bytes = Vec::new();
        packs.by_serial.values().for_each(|p| p.encode(&mut bytes));
        (!bytes.is_empty()).then_some(Section { kind: SECTION, version: VERSION, bytes })
    }

    /// Restores the section of a snapshot. Returns false if it is of another kind.
    pub(crate) fn restore(&self, section: &Section) -> Result<bool> {
        let Some(packs) = decode(section)? else { return Ok(false) };
        packs.into_iter().for_each(|p| self.add(p));
        Ok(true)
    }
}

/// Looks at the length, the footer and the directory of a pack in the store. Returns why its records are lost, if
/// it is not there as it was archived.
pub(crate) fn lost(
    store: &dyn ObjectStore,
    retry: &Retry,
    pack: &ArchivedPack,
) -> Result<Option<String>> {
    let object = pack.object();
    match read::pack_directory(store, retry, &object, read::FIRST_FETCH) {
        Ok(directory) if pack.is_in(&directory) => Ok(None),
        Ok(_) => Ok(Some(format!("object {} is another one than was archived", object.key))),
        Err(e) if is_loss(&e) => Ok(Some(e.to_string())),
        Err(e) => Err(e.into()),
    }
}

/// Whether an object is not there as it was written; other errors say nothing about it.
pub(crate) fn is_loss(e: &RemoteError) -> bool {
    matches!(e, RemoteError::Damaged { .. } | RemoteError::Object(ObjectError::NotFound { .. }))
}

/// Packs, each with its hash: a directory that was put back to an older state may give a serial again.
pub(crate) type PackIdentities = BTreeMap<Serial, u128>;

/// The packs of sealed segments that a base names, as a table of packs has them. `topics` are those of its
/// snapshot.
pub(crate) fn of_base(base: &Base, topics: &[TopicSnap]) -> Result<Vec<ArchivedPack>> {
    let damaged = |detail: &str| Error::Corrupt {
        file: base.header.key(),
        offset: 0,
        detail: detail.to_owned(),
    };
    let places: HashMap<u64, &BaseSegment> = base.segments.iter().map(|s| (s.file_no, s)).collect();
    let mut packs: BTreeMap<Serial, ArchivedPack> = BTreeMap::new();
    for topic in topics {
        let key = TopicKey { topic_id: topic.topic_id, epoch: topic.epoch };
        // No read needs the pack of a segment whose records are all deleted.
        for meta in topic.segments.iter().filter(|meta| meta.live_count > 0) {
            let Some(place) = places.get(&meta.file_no) else { continue };
            let pack = base.pack(place.pack).ok_or_else(|| damaged("a segment is in no pack"))?;
            let BasePack { serial, len, hash } = *pack;
            let new = || ArchivedPack { serial, len, hash, segments: Vec::new() };
            packs.entry(serial).or_insert_with(new).segments.push(ArchivedSegment {
                topic: key,
                first_seq: meta.first_seq,
                last_seq: meta.last_seq,
                file_no: meta.file_no,
                offset: u64::from(place.offset),
                lens: place.lens.map(u64::from),
            });
        }
    }
    for pack in packs.values_mut() {
        pack.segments.sort_unstable_by_key(|s| (s.topic, s.first_seq));
    }
    Ok(packs.into_values().collect())
}

/// The packs that a snapshot with these sections names.
pub(crate) fn named(sections: &[Section]) -> Result<Vec<ArchivedPack>> {
    let mut out = Vec::new();
    for section in sections {
        out.extend(decode(section)?.into_iter().flatten());
    }
    Ok(out)
}

fn decode(section: &Section) -> Result<Option<Vec<ArchivedPack>>> {
    if !is_of(section, SECTION, VERSION, "the packs")? {
        return Ok(None);
    }
    let (mut rest, mut packs) = (&section.bytes[..], Vec::new());
    while !rest.is_empty() {
        let pack = ArchivedPack::decode(&mut rest).ok_or_else(|| Error::Corrupt {
            file: "snapshot".into(),
            offset: 0,
            detail: "the list of packs is cut off".into(),
        })?;
        packs.push(pack);
    }
    Ok(Some(packs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(number: u64, file_nos: &[u64]) -> ArchivedPack {
        let segment = |file_no: &u64| ArchivedSegment {
            topic: TopicKey { topic_id: 7, epoch: 3 },
            first_seq: file_no * 10,
            last_seq: file_no * 10 + 9,
            file_no: *file_no,
            offset: 64 + file_no * 100,
            lens: [50, 30, 0, 20],
        };
        let segments = file_nos.iter().map(segment).collect();
        let serial = Serial { epoch: 2, number };
        ArchivedPack { serial, len: 1000 + number, hash: 5 << 90, segments }
    }

    #[test]
    fn a_section_restores_what_was_captured() {
        let table = PackTable::default();
        assert_eq!(table.capture(), None, "a directory without packs has no section");
        table.add(pack(20, &[4, 5]));
        table.add(pack(10, &[1]));
        let section = table.capture().unwrap();
        let restored = PackTable::default();
        assert!(restored.restore(&section).unwrap());
        assert_eq!(restored.capture(), Some(section.clone()));
        assert_eq!(named(std::slice::from_ref(&section)).unwrap()[1], pack(20, &[4, 5]));
        assert!(restored.has_segment(5) && !restored.has_segment(6));
        let serial = |number| Serial { epoch: 2, number };
        restored.remove(&BTreeSet::from([serial(20)]));
        assert!(restored.has_segment(1) && !restored.has_segment(5));
        assert_eq!(restored.serials(), BTreeSet::from([serial(10)]));
    }

    #[test]
    fn a_pack_that_is_replaced_has_its_new_segments_only() {
        let table = PackTable::default();
        table.add(pack(10, &[1, 2]));
        table.add(pack(10, &[2]));
        assert_eq!(table.find(1), None);
        assert_eq!(table.find(2).unwrap().1.file_no, 2);
        assert_eq!(table.after(2), None);
    }

    #[test]
    fn a_section_that_is_cut_off_or_newer_is_an_error() {
        let table = PackTable::default();
        table.add(pack(1, &[1, 2]));
        let whole = table.capture().unwrap();
        for len in 1..whole.bytes.len() {
            let cut = Section { bytes: whole.bytes[..len].to_vec(), ..whole.clone() };
            let e = PackTable::default().restore(&cut).unwrap_err();
            assert_eq!(e.code(), "corrupt", "{len} bytes");
        }
        let newer = Section { version: VERSION + 1, ..whole.clone() };
        assert_eq!(PackTable::default().restore(&newer).unwrap_err().code(), "version");
        let other = Section { kind: SECTION + 1, ..whole };
        assert!(!PackTable::default().restore(&other).unwrap());
    }
}
