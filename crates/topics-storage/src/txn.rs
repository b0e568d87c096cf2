//! Files of staged rows, `txn/stage-<number>.rows`.
//!
//! ```text
//! off size  field
//!   0   4  magic "TTXN"
//!   4   4  version u32
//!   8  16  store id
//!  24   8  number u64      the one in the name
//!  32   8  salt u64
//!  40   8  staged at u64   ms
//!  48   8  rows u64
//!  56   8  length u64      of the whole file
//!  64   4  part u32
//!  68   2  writer_len u16
//!  70   2  stage_len u16
//!  72   .  writer, stage
//!   .   8  H(everything before)
//!   .   .  frames, sealed with the salt and an ordinal from 1
//! ```
//!
//! A TopicCreate frame names the topic of the Append frames that follow it. A file gets its name
//! when it is complete and durable.

use std::path::PathBuf;

use topics_env::Env;
use xxhash_rust::xxh3::xxh3_64;

use crate::dir::{
    Paths, SHARED_ID, atomic_replace, le_u16, le_u32, le_u64, list_dir, read_file, read_into, show,
};
use crate::format::frame::{self, FrameType};
use crate::format::record::{Body, TopicCreate};
use crate::{Result, StorageError};

const MAGIC: [u8; 4] = *b"TTXN";
const VERSION: u32 = 1;
const FIXED: usize = 72;
/// The largest header: both names are at most 65 535 bytes.
const HEADER_MAX: u64 = (FIXED + 2 * 0xFFFF + 8) as u64;

/// Rows of one topic: encoded Append frames, not sealed; topic, seq and ts are 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// The topic's name.
    pub topic: String,
    pub frames: Vec<u8>,
    /// The number of frames.
    pub count: u64,
}

/// The header of a stage file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageHeader {
    /// The number in its name.
    pub number: u64,
    /// The writer that staged it.
    pub writer: String,
    pub stage: String,
    /// The part of the stage.
    pub part: u32,
    /// Staging time, wall clock, ms.
    pub staged_at: u64,
    /// The number of rows.
    pub rows: u64,
    /// The length of the file.
    pub len: u64,
}

/// The name of a file in `txn/`.
#[must_use]
pub fn name(number: u64) -> String {
    format!("stage-{number:016x}.rows")
}

/// The number in a stage file name; `None` for another name.
#[must_use]
pub fn number(name: &str) -> Option<u64> {
    let hex = name.strip_prefix("stage-")?.strip_suffix(".rows")?;
    u64::from_str_radix(hex, 16).ok().filter(|n| self::name(*n) == name)
}

/// The directory of staged rows.
#[derive(Clone, Debug)]
pub struct Stages {
    env: Env,
    paths: Paths,
    store_id: [u8; 16],
}

impl Stages {
    /// The `txn/` directory of a data directory.
    #[must_use]
    pub fn new(env: Env, paths: Paths, store_id: [u8; 16]) -> Self {
        Self { env, paths, store_id }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.paths.txn().join(name)
    }

    /// Free bytes of the file system that the files are on.
    pub fn free_space(&self) -> std::io::Result<u64> {
        self.env.fs.free_space(&self.paths.txn())
    }

    /// Writes a file and makes it durable; returns its length and the checksum of the whole.
    /// Ignores `head.len`. After an error the file does not exist.
    pub fn write(&self, head: &StageHeader, rows: &[Rows]) -> Result<(u64, u64)> {
        let salt = self.env.rng.next_u64();
        let topics: Vec<Vec<u8>> = rows.iter().map(topic_frame).collect();
        let len: usize = topics.iter().zip(rows).map(|(t, r)| t.len() + r.frames.len()).sum();
        let mut bytes = self.header(head, salt, len);
        let start = bytes.len();
        for (topic, r) in topics.iter().zip(rows) {
            bytes.extend_from_slice(topic);
            bytes.extend_from_slice(&r.frames);
        }
        let (mut rest, mut ordinal) = (&mut bytes[start..], 1);
        while !rest.is_empty() {
            let whole = frame::whole_size(rest).ok_or_else(|| StorageError::Corrupt {
                file: "staged rows".into(),
                offset: 0,
                detail: "not a sequence of whole frames".into(),
            })?;
            let (one, after) = rest.split_at_mut(whole);
            frame::seal(one, salt, ordinal);
            (rest, ordinal) = (after, ordinal + 1);
        }
        let (dir, name) = (self.paths.txn(), name(head.number));
        let made = atomic_replace(&self.env, "txn.stage", &dir, &name, &bytes);
        made.inspect_err(|_| _ = self.env.fs.remove_file(&dir.join(&name)))?;
        Ok((bytes.len() as u64, xxh3_64(&bytes)))
    }

    /// The header of a file, with capacity for `frames` bytes of frames behind it.
    fn header(&self, head: &StageHeader, salt: u64, frames: usize) -> Vec<u8> {
        let names = [head.writer.as_bytes(), head.stage.as_bytes()];
        let size = FIXED + names[0].len() + names[1].len() + 8;
        let mut out = Vec::with_capacity(size + frames);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.store_id);
        for v in [head.number, salt, head.staged_at, head.rows, (size + frames) as u64] {
            out.extend_from_slice(&v.to_le_bytes());
        }
        out.extend_from_slice(&head.part.to_le_bytes());
        for name in names {
            out.extend_from_slice(&(name.len() as u16).to_le_bytes());
        }
        out.extend_from_slice(names[0]);
        out.extend_from_slice(names[1]);
        let sum = xxh3_64(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// The existing files, by number, each with its header; `Err` for an invalid header. Makes
    /// their names durable and removes unfinished files.
    #[allow(clippy::type_complexity)]
    pub fn list(&self) -> Result<Vec<(u64, Result<StageHeader>)>> {
        let dir = self.paths.txn();
        let mut found = Vec::new();
        for e in list_dir(&self.env, &dir)? {
            if e.name.ends_with(".tmp") {
                self.unlink(&e.name)?;
            } else if let Some(number) = self::number(&e.name) {
                found.push((number, self.head(number)));
            }
        }
        if !found.is_empty() {
            self.sync_as("txn.names")?;
        }
        found.sort_by_key(|f| f.0);
        Ok(found)
    }

    fn head(&self, number: u64) -> Result<StageHeader> {
        let path = self.path(&name(number));
        let missing = || StorageError::Missing { what: show(&path) };
        let bytes = read_file(&self.env, &path, HEADER_MAX)?.ok_or_else(missing)?;
        Ok(self.parse(number, &bytes)?.0)
    }

    /// The header at the start of a file, with the salt and the header's length.
    fn parse(&self, number: u64, bytes: &[u8]) -> Result<(StageHeader, u64, usize)> {
        let file = show(&self.path(&name(number)));
        let corrupt = |offset, detail: &str| StorageError::corrupt(&file, offset, detail);
        if bytes.len() < FIXED || bytes[..4] != MAGIC {
            return Err(corrupt(0, "it has no header"));
        }
        let version = le_u32(bytes, 4);
        if version != VERSION {
            return Err(StorageError::Version { what: file, found: version, supported: VERSION });
        }
        let writer = usize::from(le_u16(bytes, 68));
        let names = writer + usize::from(le_u16(bytes, 70));
        let end = FIXED + names;
        let sum = bytes.get(end..end + 8).ok_or_else(|| corrupt(0, "its header is cut off"))?;
        let sound = xxh3_64(&bytes[..end]).to_le_bytes() == *sum;
        if !self.env.check("txn.header", sound) {
            return Err(corrupt(0, "the header's checksum differs"));
        }
        // A copy of a directory takes its staged rows over, see `crate::backup`.
        if bytes[8..8 + SHARED_ID] != self.store_id[..SHARED_ID] || le_u64(bytes, 24) != number {
            return Err(corrupt(8, "it is another file"));
        }
        let text = |b: &[u8]| {
            String::from_utf8(b.to_vec()).map_err(|_| corrupt(FIXED as u64, "a name is no text"))
        };
        let head = StageHeader {
            number,
            writer: text(&bytes[FIXED..FIXED + writer])?,
            stage: text(&bytes[FIXED + writer..end])?,
            part: le_u32(bytes, 64),
            staged_at: le_u64(bytes, 40),
            rows: le_u64(bytes, 48),
            len: le_u64(bytes, 56),
        };
        Ok((head, le_u64(bytes, 32), end + 8))
    }

    /// Reads a file of at most `cap` bytes and verifies its header, every frame and the checksum of
    /// the whole. Returns the rows in the order in which they were staged. A missing file is
    /// [`StorageError::Missing`].
    pub fn read(&self, number: u64, cap: u64) -> Result<(StageHeader, Vec<Rows>, u64)> {
        let mut rows: Vec<Rows> = Vec::new();
        let (head, sum) = self.read_with(number, cap, &mut Vec::new(), |topic, frame| {
            if rows.last().is_none_or(|r| r.topic != topic) {
                rows.push(Rows { topic: topic.to_owned(), ..Rows::default() });
            }
            if let Some(last) = rows.last_mut() {
                last.frames.extend_from_slice(frame);
                last.count += 1;
            }
        })?;
        Ok((head, rows, sum))
    }

    /// The same; calls `row` with each row's topic and frame. The caller discards the rows if this
    /// fails. The content is read into `buffer`, which a caller with many files passes again: its
    /// memory is mapped once.
    pub fn read_with(
        &self,
        number: u64,
        cap: u64,
        buffer: &mut Vec<u8>,
        row: impl FnMut(&str, &[u8]),
    ) -> Result<(StageHeader, u64)> {
        let path = self.path(&name(number));
        let file = show(&path);
        let missing = || StorageError::Missing { what: file.clone() };
        if !read_into(&self.env, &path, cap, buffer)? {
            return Err(missing());
        }
        let bytes = buffer;
        let (head, salt, start) = self.parse(number, bytes)?;
        if head.len != bytes.len() as u64 {
            return Err(StorageError::corrupt(file, bytes.len() as u64, "its length differs"));
        }
        let sum = xxh3_64(bytes);
        if split(&self.env, &file, bytes, (start, salt), row)? != head.rows {
            return Err(StorageError::corrupt(file, 48, "the number of rows differs"));
        }
        Ok((head, sum))
    }

    /// Removes a file; the removal is durable after [`Self::sync`]. A missing file is not an error.
    pub fn unlink(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        match self.env.fs.remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(StorageError::io(format!("remove {}", show(&path)), e))
            }
            _ => Ok(()),
        }
    }

    /// Makes all created and removed names durable.
    pub fn sync(&self) -> Result<()> {
        self.sync_as("txn.dir")
    }

    fn sync_as(&self, site: &'static str) -> Result<()> {
        let dir = self.paths.txn();
        self.env.sync_dir(site, &dir).map_err(|e| StorageError::io(show(&dir), e))
    }
}

/// The frame that names the topic of the frames behind it.
fn topic_frame(rows: &Rows) -> Vec<u8> {
    let (mut out, name) = (Vec::new(), rows.topic.clone());
    let topic = TopicCreate { name, epoch: 0, config: Vec::new(), reserved_to: 0 };
    topic.encode_frame(&mut out, 0, 0, 0);
    out
}

/// Verifies the frames from `start` on, unseals them and passes them to the caller; returns the
/// number of rows.
fn split(
    env: &Env,
    file: &str,
    bytes: &mut [u8],
    (start, salt): (usize, u64),
    mut row: impl FnMut(&str, &[u8]),
) -> Result<u64> {
    let (mut topic, mut rows): (Option<String>, u64) = (None, 0);
    let (mut at, mut ordinal) = (start, 1);
    while at < bytes.len() {
        let corrupt = |why: String| StorageError::corrupt(file, at as u64, why);
        let found = match frame::verify(&bytes[at..], salt, ordinal) {
            Err(_) if env.check("txn.frame", false) => frame::parse(&bytes[at..]),
            other => other,
        };
        let (f, size) = found.map_err(|e| corrupt(e.to_string()))?;
        match f.kind {
            FrameType::TopicCreate => {
                topic = Some(TopicCreate::decode(&f)?.name);
            }
            FrameType::Append => {
                let topic = topic.as_deref().ok_or_else(|| corrupt("rows of no topic".into()))?;
                let one = &mut bytes[at..at + size];
                frame::unseal(one);
                row(topic, one);
                rows += 1;
            }
            kind => return Err(corrupt(format!("a {kind:?} frame"))),
        }
        (at, ordinal) = (at + size, ordinal + 1);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use topics_env::OpenMode;
    use topics_sim::sim_env;

    use super::*;
    use crate::dir::create_dir;
    use crate::format::frame::Frame;

    fn rows(topic: &str, data: &[&str]) -> Rows {
        let mut frames = Vec::new();
        for d in data {
            let f = Frame::control(FrameType::Append, 0, 0, 0, d.as_bytes());
            frame::encode(&mut frames, &Frame { tag: b"t", ..f });
        }
        Rows { topic: topic.into(), frames, count: data.len() as u64 }
    }

    fn head(number: u64) -> StageHeader {
        StageHeader {
            number,
            writer: "w".into(),
            stage: "attempt 1".into(),
            part: 3,
            staged_at: 77,
            rows: 3,
            len: 0,
        }
    }

    fn open() -> (Stages, std::sync::Arc<topics_sim::SimFs>) {
        let (env, fs, _) = sim_env(1);
        for dir in ["/d", "/d/txn"] {
            create_dir(&env, "dir.names", Path::new(dir)).unwrap();
        }
        (Stages::new(env, Paths::new("/d"), [7; 16]), fs)
    }

    #[test]
    fn round_trip_and_listing() {
        let (stages, fs) = open();
        let given = [rows("a", &["1", "2"]), rows("b", &["3"])];
        let (len, sum) = stages.write(&head(9), &given).unwrap();
        let (found, back, checksum) = stages.read(9, u64::MAX).unwrap();
        assert_eq!((found.len, checksum), (len, sum));
        assert_eq!(found, StageHeader { len, ..head(9) });
        assert_eq!(back, given, "the frames come back as they were encoded");
        assert!(fs.is_durable(&stages.path(&name(9)), 0, len), "a stage is acked when durable");
        let listed = stages.list().unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].1.as_ref().unwrap(), &found);
        stages.unlink(&name(9)).unwrap();
        stages.unlink(&name(9)).unwrap();
        assert!(matches!(stages.read(9, u64::MAX), Err(StorageError::Missing { .. })));
        assert!(stages.list().unwrap().is_empty());
    }

    #[test]
    fn i12_every_flipped_bit_and_every_cut_is_noticed() {
        let (stages, _) = open();
        stages.write(&head(1), &[rows("a", &["one", "two"]), rows("b", &["3"])]).unwrap();
        let path = stages.path(&name(1));
        let file = stages.env.fs.open(&path, OpenMode::Write).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        for (at, &byte) in bytes.iter().enumerate() {
            file.write_all_at(&[byte ^ (1 << (at % 8))], at as u64).unwrap();
            let read = stages.read(1, u64::MAX);
            assert!(read.is_err(), "a change of byte {at} is not detected");
            file.write_all_at(&[byte], at as u64).unwrap();
        }
        assert!(stages.read(1, u64::MAX).is_ok());
        for len in (0..bytes.len() as u64).rev() {
            file.set_len(len).unwrap();
            assert!(stages.read(1, u64::MAX).is_err(), "truncated to {len}");
        }
        let other = Stages { store_id: [8; 16], ..stages.clone() };
        stages.write(&head(1), &[rows("a", &["one", "two"]), rows("b", &["3"])]).unwrap();
        assert!(other.read(1, u64::MAX).is_err(), "another store's file");
    }

    #[test]
    fn a_failed_stage_leaves_no_file() {
        use topics_sim::{CallKind, FaultKind};
        for kind in [CallKind::Write, CallKind::SyncData, CallKind::Rename, CallKind::SyncDir] {
            let (stages, fs) = open();
            fs.fail_nth(kind, 1, FaultKind::EIO);
            assert!(stages.write(&head(1), &[rows("a", &["1", "2", "3"])]).is_err(), "{kind:?}");
            assert_eq!(fs.faults_fired(), 1);
            fs.clear_faults();
            assert!(stages.list().unwrap().is_empty(), "{kind:?}");
            stages.write(&head(1), &[rows("a", &["1", "2", "3"])]).unwrap();
        }
    }
}
