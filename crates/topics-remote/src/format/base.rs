//! Bases: a snapshot, and where everything is that it names.
//!
//! A base is complete: with the rounds from its first one on, whatever its snapshot names is in the
//! prefix. It also says which objects of the prefix are needed no more.

use std::collections::HashMap;

use super::fields::{Fields, PutFields};
use super::keys::{self, Serial};
use super::pack::PARTS;
use super::sealed::{self, HEADER, ObjectHeader, ObjectKind, ObjectRef, SealedObject};
use crate::{RemoteError, Result};

const SPAN: usize = 4 * 3;
const PACK: usize = 8 * 3 + 16;
const SEGMENT: usize = 8 + 4 * 2 + 4 * PARTS.len();
const TAIL: usize = 8 + 4 + SPAN;
const DELETES: usize = 8 + SPAN;
const ROWS: usize = 4 + SPAN;
const EARLIER: usize = 8 * 6 + 16;
const DEAD: usize = 4 + 8 * 5;

/// The most earlier bases that a base lists: 28 days with one every 10 minutes.
pub const MAX_KEPT: usize = 4096;

/// A pack that a base names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BasePack {
    pub serial: Serial,
    pub len: u64,
    pub hash: u128,
}

impl BasePack {
    #[must_use]
    pub fn object(&self) -> ObjectRef {
        ObjectRef { key: keys::pack(self.serial), len: self.len, hash: self.hash }
    }
}

/// The bytes of an encoded [`Place`].
pub(super) const PLACE: usize = PACK + 4 * 2;

/// A part of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub pack: BasePack,
    /// The offset in the pack.
    pub offset: u32,
    pub len: u32,
}

/// Where the bytes of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The index of the pack in [`Base::packs`].
    pub pack: u32,
    /// The offset in the pack.
    pub offset: u32,
    pub len: u32,
}

/// Where the files of a sealed segment are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseSegment {
    pub file_no: u64,
    /// The index of the pack in [`Base::packs`].
    pub pack: u32,
    /// The offset of the first file in the pack.
    pub offset: u32,
    /// The lengths of the files, which lie in the order of [`PARTS`] without space between them.
    pub lens: [u32; PARTS.len()],
}

/// Where a part of the `.data` of an active segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseTail {
    pub file_no: u64,
    /// The offset of the bytes in the file.
    pub from: u32,
    pub at: Span,
}

/// Where a `.del` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseDeletes {
    /// Its file number.
    pub del_no: u64,
    pub at: Span,
}

/// Where a file of staged rows is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseRows {
    pub name: String,
    pub at: Span,
}

/// An earlier base that is kept, with all that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlierBase {
    pub serial: Serial,
    /// Its [`Base::made_ms`].
    pub made_ms: u64,
    /// When the store got it, by the clock of the store, in milliseconds since the Unix epoch; 0: unknown.
    pub stored_ms: u64,
    /// Its [`Base::first_round`].
    pub first_round: u64,
    pub len: u64,
    pub hash: u128,
}

impl EarlierBase {
    #[must_use]
    pub fn object(&self) -> ObjectRef {
        ObjectRef { key: keys::base(self.serial), len: self.len, hash: self.hash }
    }
}

/// Objects that no base names from `since` on. A later base never names them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadObjects {
    pub kind: ObjectKind,
    /// The epoch of their writer.
    pub epoch: u64,
    /// The numbers of the first and of the last.
    pub first: u64,
    pub last: u64,
    /// The first base that did not name them.
    pub since: Serial,
}

impl DeadObjects {
    /// One object.
    #[must_use]
    pub fn one(kind: ObjectKind, Serial { epoch, number }: Serial, since: Serial) -> Self {
        Self { kind, epoch, first: number, last: number, since }
    }

    /// Their keys.
    pub fn keys(self) -> impl Iterator<Item = String> {
        let key = move |number| keys::object(self.kind, Serial { epoch: self.epoch, number });
        (self.first..=self.last).map(key)
    }
}

/// The content of a base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// Who wrote it.
    pub header: ObjectHeader,
    /// From this time on its state can be restored: the wall time of the cut that its rounds complete,
    /// in milliseconds since the Unix epoch.
    pub made_ms: u64,
    /// The first round to replay over the snapshot, in the writer's epoch.
    pub first_round: u64,
    /// Each pack of the writer's epoch up to this number is named here, is dead, or was never put.
    pub packs_settled: u64,
    /// The packs, ascending.
    pub packs: Vec<BasePack>,
    /// The sealed segments, by file number.
    pub segments: Vec<BaseSegment>,
    /// The parts of active segments, by file number and offset, without space between them.
    pub tails: Vec<BaseTail>,
    /// The `.del` files, by file number.
    pub deletes: Vec<BaseDeletes>,
    pub rows: Vec<BaseRows>,
    /// Earlier bases that are kept, ascending.
    pub kept: Vec<EarlierBase>,
    /// What can be deleted when no kept base is older than its entry.
    pub dead: Vec<DeadObjects>,
    /// The local snapshot, as it is in its file.
    pub snapshot: Vec<u8>,
}

impl Base {
    /// Its entry in a later base, without the time of the store.
    #[must_use]
    pub fn as_earlier(&self, object: &ObjectRef) -> EarlierBase {
        EarlierBase {
            serial: self.header.serial(),
            made_ms: self.made_ms,
            stored_ms: 0,
            first_round: self.first_round,
            len: object.len,
            hash: object.hash,
        }
    }

    /// The bytes of a span, with their pack.
    #[must_use]
    pub fn place(&self, at: &Span) -> Option<Place> {
        let pack = *self.pack(at.pack)?;
        Some(Place { pack, offset: at.offset, len: at.len })
    }

    /// Where the `.del` files are, by their file numbers.
    #[must_use]
    pub fn deletes_by_number(&self) -> HashMap<u64, Place> {
        let of = |d: &BaseDeletes| Some((d.del_no, self.place(&d.at)?));
        self.deletes.iter().filter_map(of).collect()
    }

    /// The pack of a span or a segment.
    #[must_use]
    pub fn pack(&self, index: u32) -> Option<&BasePack> {
        self.packs.get(index as usize)
    }

    /// The finished object.
    #[must_use]
    pub fn seal(&self) -> SealedObject {
        let mut bytes = self.header.encode().to_vec();
        bytes.extend_from_slice(&self.snapshot);
        let mut out = self.header.encode().to_vec();
        [self.made_ms, self.first_round, self.packs_settled]
            .into_iter()
            .for_each(|w| out.put_u64(w));
        table(&mut out, &self.packs, put_pack);
        table(&mut out, &self.segments, |out, s| {
            out.put_u64(s.file_no);
            [s.pack, s.offset].into_iter().chain(s.lens).for_each(|w| out.put_u32(w));
        });
        table(&mut out, &self.tails, |out, t| {
            out.put_u64(t.file_no);
            out.put_u32(t.from);
            put_span(out, &t.at);
        });
        table(&mut out, &self.deletes, |out, d| {
            out.put_u64(d.del_no);
            put_span(out, &d.at);
        });
        table(&mut out, &self.rows, |out, r| {
            out.put_u32(r.name.len() as u32);
            out.extend_from_slice(r.name.as_bytes());
            put_span(out, &r.at);
        });
        table(&mut out, &self.kept, |out, e| {
            let Serial { epoch, number } = e.serial;
            let words = [epoch, number, e.made_ms, e.stored_ms, e.first_round, e.len];
            words.into_iter().for_each(|w| out.put_u64(w));
            out.put_u128(e.hash);
        });
        table(&mut out, &self.dead, |out, d| {
            out.put_u32(kind_code(d.kind));
            let words = [d.epoch, d.first, d.last, d.since.epoch, d.since.number];
            words.into_iter().for_each(|w| out.put_u64(w));
        });
        sealed::seal(self.header.key(), bytes, &out)
    }

    /// Checks a whole base, and its identity if `hash` names one.
    pub fn verify(key: &str, hash: Option<u128>, bytes: &[u8]) -> Result<Self> {
        let (header, footer, directory) = sealed::open(key, ObjectKind::Base, hash, bytes)?;
        let mut f = Fields::new(key, directory);
        let repeated = ObjectHeader::decode(key, ObjectKind::Base, f.bytes(HEADER)?)?;
        if repeated != header || header.key() != key {
            return Err(RemoteError::damaged(key, "it is the base of another key"));
        }
        let (made_ms, first_round, packs_settled) = (f.u64()?, f.u64()?, f.u64()?);
        let packs = rows(&mut f, PACK, pack)?;
        let segments = rows(&mut f, SEGMENT, |f| {
            let (file_no, pack, offset) = (f.u64()?, f.u32()?, f.u32()?);
            let lens = [f.u32()?, f.u32()?, f.u32()?, f.u32()?];
            Ok(BaseSegment { file_no, pack, offset, lens })
        })?;
        let tails = rows(&mut f, TAIL, |f| {
            Ok(BaseTail { file_no: f.u64()?, from: f.u32()?, at: span(f)? })
        })?;
        let deletes =
            rows(&mut f, DELETES, |f| Ok(BaseDeletes { del_no: f.u64()?, at: span(f)? }))?;
        let staged = rows(&mut f, ROWS, |f| Ok(BaseRows { name: f.text()?, at: span(f)? }))?;
        let kept = rows(&mut f, EARLIER, |f| {
            Ok(EarlierBase {
                serial: serial(f)?,
                made_ms: f.u64()?,
                stored_ms: f.u64()?,
                first_round: f.u64()?,
                len: f.u64()?,
                hash: f.u128()?,
            })
        })?;
        let dead = rows(&mut f, DEAD, |f| {
            let code = f.u32()?;
            let kind = kind_of(code).ok_or_else(|| f.damaged("an object is of an unknown kind"))?;
            let (epoch, first, last) = (f.u64()?, f.u64()?, f.u64()?);
            Ok(DeadObjects { kind, epoch, first, last, since: serial(f)? })
        })?;
        f.finish()?;
        let snapshot = bytes[HEADER..footer.dir_at as usize].to_vec();
        let out = Self {
            header,
            made_ms,
            first_round,
            packs_settled,
            packs,
            segments,
            tails,
            deletes,
            rows: staged,
            kept,
            dead,
            snapshot,
        };
        match out.contradiction() {
            None => Ok(out),
            Some(detail) => Err(RemoteError::damaged(key, detail)),
        }
    }

    fn contradiction(&self) -> Option<&'static str> {
        let fits = |pack: u32, offset: u32, len: u64| {
            self.pack(pack).is_some_and(|p| u64::from(offset) + len <= p.len)
        };
        let is_in = |s: &Span| s.len > 0 && fits(s.pack, s.offset, u64::from(s.len));
        let segment = |s: &BaseSegment| {
            s.lens[0] > 0 && fits(s.pack, s.offset, s.lens.into_iter().map(u64::from).sum())
        };
        let is_placed = self.segments.iter().all(segment)
            && self.tails.iter().all(|t| is_in(&t.at))
            && self.deletes.iter().all(|d| is_in(&d.at))
            && self.rows.iter().all(|r| is_in(&r.at));
        let mut ends = (0, 0);
        let is_whole = |t: &BaseTail| {
            let (file_no, end) = ends;
            let begins = if t.file_no == file_no { end } else { 0 };
            let is_next = t.file_no >= file_no && u64::from(t.from) == begins;
            ends = (t.file_no, u64::from(t.from) + u64::from(t.at.len));
            is_next
        };
        let sorted = |keys: &[u64]| keys.is_sorted_by(|a, b| a < b);
        let of = |n: usize, key: &dyn Fn(usize) -> u64| (0..n).map(key).collect::<Vec<_>>();
        if !is_placed {
            Some("a file is not in its pack")
        } else if !self.tails.iter().all(is_whole) {
            Some("a part of a segment is missing")
        } else if !self.packs.is_sorted_by(|a, b| a.serial < b.serial)
            || !self.kept.is_sorted_by(|a, b| a.serial < b.serial)
            || !sorted(&of(self.segments.len(), &|i| self.segments[i].file_no))
            || !sorted(&of(self.deletes.len(), &|i| self.deletes[i].del_no))
        {
            Some("a table is not sorted")
        } else if self.kept.last().is_some_and(|e| e.serial >= self.header.serial()) {
            Some("an earlier base is not an earlier one")
        } else if self.dead.iter().any(|d| d.first > d.last) {
            Some("a range of objects ends before it begins")
        } else {
            None
        }
    }
}

fn kind_code(kind: ObjectKind) -> u32 {
    match kind {
        ObjectKind::Pack => 1,
        ObjectKind::Base => 2,
        ObjectKind::Round => 3,
    }
}

fn kind_of(code: u32) -> Option<ObjectKind> {
    [ObjectKind::Pack, ObjectKind::Base, ObjectKind::Round]
        .into_iter()
        .find(|k| kind_code(*k) == code)
}

fn put_pack(out: &mut Vec<u8>, p: &BasePack) {
    [p.serial.epoch, p.serial.number, p.len].into_iter().for_each(|w| out.put_u64(w));
    out.put_u128(p.hash);
}

fn pack(f: &mut Fields<'_>) -> Result<BasePack> {
    let serial = serial(f)?;
    Ok(BasePack { serial, len: f.u64()?, hash: f.u128()? })
}

pub(super) fn put_place(out: &mut Vec<u8>, p: &Place) {
    put_pack(out, &p.pack);
    out.put_u32(p.offset);
    out.put_u32(p.len);
}

pub(super) fn read_place(f: &mut Fields<'_>) -> Result<Place> {
    Ok(Place { pack: pack(f)?, offset: f.u32()?, len: f.u32()? })
}

fn put_span(out: &mut Vec<u8>, s: &Span) {
    [s.pack, s.offset, s.len].into_iter().for_each(|w| out.put_u32(w));
}

fn span(f: &mut Fields<'_>) -> Result<Span> {
    Ok(Span { pack: f.u32()?, offset: f.u32()?, len: f.u32()? })
}

fn serial(f: &mut Fields<'_>) -> Result<Serial> {
    Ok(Serial { epoch: f.u64()?, number: f.u64()? })
}

/// Appends a table: its number of rows, then the rows.
fn table<T>(out: &mut Vec<u8>, rows: &[T], mut row: impl FnMut(&mut Vec<u8>, &T)) {
    out.put_u32(rows.len() as u32);
    rows.iter().for_each(|r| row(out, r));
}

/// Reads a table whose rows have at least `size` bytes.
fn rows<T>(
    f: &mut Fields<'_>,
    size: usize,
    mut row: impl FnMut(&mut Fields<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let n = f.count(size)?;
    let mut out = Vec::with_capacity(n);
    for _ in 0..n {
        out.push(row(f)?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serial(epoch: u64, number: u64) -> Serial {
        Serial { epoch, number }
    }

    fn base() -> Base {
        let (store_id, prefix_id) = ([1; 16], [2; 16]);
        let header =
            ObjectHeader { kind: ObjectKind::Base, store_id, prefix_id, epoch: 3, number: 4 };
        let span = |pack, offset, len| Span { pack, offset, len };
        let earlier = |serial| EarlierBase {
            serial,
            made_ms: 5,
            stored_ms: 6,
            first_round: 7,
            len: 800,
            hash: 9 << 80,
        };
        Base {
            header,
            made_ms: 11,
            first_round: 12,
            packs_settled: 13,
            packs: vec![
                BasePack { serial: serial(2, 9), len: 1000, hash: 1 << 90 },
                BasePack { serial: serial(3, 1), len: 500, hash: 2 << 90 },
            ],
            segments: vec![
                BaseSegment { file_no: 20, pack: 0, offset: 64, lens: [100, 20, 0, 5] },
                BaseSegment { file_no: 21, pack: 0, offset: 189, lens: [100, 20, 7, 0] },
            ],
            tails: vec![
                BaseTail { file_no: 30, from: 0, at: span(0, 400, 50) },
                BaseTail { file_no: 30, from: 50, at: span(1, 64, 10) },
                BaseTail { file_no: 31, from: 0, at: span(1, 74, 10) },
            ],
            deletes: vec![BaseDeletes { del_no: 22, at: span(1, 90, 30) }],
            rows: vec![BaseRows { name: "7.stage".to_owned(), at: span(1, 120, 300) }],
            kept: vec![earlier(serial(2, 8)), earlier(serial(3, 3))],
            dead: vec![DeadObjects::one(ObjectKind::Pack, serial(1, 7), serial(3, 2))],
            snapshot: b"a snapshot".to_vec(),
        }
    }

    #[test]
    fn a_base_is_read_as_it_was_written() {
        let sealed = base().seal();
        let object = &sealed.object;
        assert_eq!(Base::verify(&object.key, Some(object.hash), &sealed.bytes).unwrap(), base());
    }

    #[test]
    fn a_segment_has_at_most_forty_bytes() {
        let whole = base();
        let mut less = base();
        less.segments.pop();
        assert!(whole.seal().object.len - less.seal().object.len <= 40);
    }

    #[test]
    fn no_damage_is_believed() {
        let sealed = base().seal();
        for at in 0..sealed.bytes.len() {
            let mut wrong = sealed.bytes.to_vec();
            wrong[at] ^= 1 << (at % 8);
            assert!(Base::verify(&sealed.object.key, None, &wrong).is_err(), "{at}");
        }
    }

    /// What a wrong writer could make: every checksum is right and the content is not.
    #[test]
    fn contradictions_behind_right_checksums_are_refused() {
        type Forge = fn(&mut Base);
        let forgeries: [(&str, Forge); 14] = [
            ("another number", |b| b.header.number = 5),
            ("a segment in no pack", |b| b.segments[0].pack = 2),
            ("a segment beyond its pack", |b| b.segments[0].lens[0] = 1000),
            ("a segment without data", |b| b.segments[0].lens[0] = 0),
            ("segments exchanged", |b| b.segments.swap(0, 1)),
            ("the first part of a segment missing", |b| _ = b.tails.remove(0)),
            ("parts with space between them", |b| b.tails[1].from = 51),
            ("parts exchanged", |b| b.tails.swap(0, 1)),
            ("an empty bitmap", |b| b.deletes[0].at.len = 0),
            ("rows beyond their pack", |b| b.rows[0].at.offset = 400),
            ("packs exchanged", |b| b.packs.swap(0, 1)),
            ("earlier bases exchanged", |b| b.kept.swap(0, 1)),
            ("itself as an earlier base", |b| b.kept[1].serial = b.header.serial()),
            ("a range that ends before it begins", |b| b.dead[0].last = 6),
        ];
        let key = base().header.key();
        for (what, forge) in forgeries {
            let mut bad = base();
            forge(&mut bad);
            let found = Base::verify(&key, None, &bad.seal().bytes);
            assert!(matches!(found, Err(RemoteError::Damaged { .. })), "{what}: {found:?}");
        }
    }
}
