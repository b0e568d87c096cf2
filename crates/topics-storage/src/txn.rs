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

use std::ops::Range;
use std::path::PathBuf;

use topics_env::Env;
use xxhash_rust::xxh3::xxh3_64;

use crate::dir::{
    Paths, SHARED_ID, atomic_replace, le_u16, le_u32, le_u64, list_dir, read_file, read_into, show,
};
use crate::format::frame::{self, Frame, FrameType};
use crate::format::record::{Body, TopicCreate};
use crate::{Result, StorageError};

const MAGIC: [u8; 4] = *b"TTXN";
const VERSION: u32 = 1;
const FIXED: usize = 72;
/// The largest header: both names are at most 65 535 bytes.
const HEADER_MAX: u64 = (FIXED + 2 * 0xFFFF + 8) as u64;

/// The rows of one stage file, encoded where the file's content is built: they are not copied again.
#[derive(Debug)]
pub struct StageRows {
    /// Space for the header, then TopicCreate frames, each before the Append frames of its topic. These
    /// are not sealed; topic, seq and ts are 0.
    bytes: Vec<u8>,
    topics: Vec<TopicRows>,
}

/// Where the rows of a topic are in the content of a file.
#[derive(Debug)]
struct TopicRows {
    topic: String,
    frames: Range<usize>,
    count: u64,
}

impl StageRows {
    /// No rows, for a file of this writer and stage.
    #[must_use]
    pub fn new(writer: &str, stage: &str) -> Self {
        Self { bytes: vec![0; header_len(writer, stage)], topics: Vec::new() }
    }

    /// Adds rows of a topic: `encode` appends `count` frames, of `len` bytes in all.
    pub fn add(&mut self, topic: &str, count: u64, len: usize, encode: impl FnOnce(&mut Vec<u8>)) {
        let name = topic_frame(topic);
        self.bytes.reserve(name.len() + len);
        self.bytes.extend_from_slice(&name);
        let start = self.bytes.len();
        encode(&mut self.bytes);
        let frames = start..self.bytes.len();
        self.topics.push(TopicRows { topic: topic.to_owned(), frames, count });
    }

    /// The topics, each with its frames, not sealed, and their number.
    pub fn topics(&self) -> impl Iterator<Item = (&str, &[u8], u64)> {
        let frames = |t: &TopicRows| self.bytes.get(t.frames.clone()).unwrap_or_default();
        self.topics.iter().map(move |t| (t.topic.as_str(), frames(t), t.count))
    }

    /// The number of rows.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.topics.iter().map(|t| t.count).sum()
    }

    /// The length of the file.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        self.bytes.len() as u64
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }
}

/// A row of a stage file.
#[derive(Debug)]
pub struct StagedRow<'a> {
    pub topic: &'a str,
    pub frame: Frame<'a>,
    /// The sealed frame.
    pub bytes: &'a [u8],
    /// The frame's inner hash, which replaces the seal in an unsealed copy.
    pub inner: u64,
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

    /// Writes a file and makes it durable; returns its length and the checksum of the whole. `rows`
    /// are those of the header's writer and stage; `head.len` is ignored. After an error the file does
    /// not exist.
    pub fn write(&self, head: &StageHeader, rows: StageRows) -> Result<(u64, u64)> {
        let salt = self.env.rng.next_u64();
        let mut bytes = rows.bytes;
        let broken = |detail: &str| StorageError::corrupt("staged rows", 0, detail);
        let header = self.header(head, salt, bytes.len() as u64);
        let (space, mut rest) = bytes
            .split_at_mut_checked(header.len())
            .ok_or_else(|| broken("no space for the header"))?;
        space.copy_from_slice(&header);
        let mut ordinal = 1;
        while !rest.is_empty() {
            let whole =
                frame::whole_size(rest).ok_or_else(|| broken("not a sequence of whole frames"))?;
            let (one, after) = rest.split_at_mut(whole);
            frame::seal(one, salt, ordinal);
            (rest, ordinal) = (after, ordinal + 1);
        }
        let (dir, name) = (self.paths.txn(), name(head.number));
        let made = atomic_replace(&self.env, "txn.stage", &dir, &name, &bytes);
        made.inspect_err(|_| _ = self.env.fs.remove_file(&dir.join(&name)))?;
        Ok((bytes.len() as u64, xxh3_64(&bytes)))
    }

    /// The header of a file of `len` bytes.
    fn header(&self, head: &StageHeader, salt: u64, len: u64) -> Vec<u8> {
        let names = [head.writer.as_bytes(), head.stage.as_bytes()];
        let mut out = Vec::with_capacity(header_len(&head.writer, &head.stage));
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.store_id);
        for v in [head.number, salt, head.staged_at, head.rows, len] {
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
    /// the whole, which is returned. Calls `row` with each row in the order in which they were staged; the
    /// caller discards the rows if this fails.
    /// The content is read into `buffer`, which a caller with many files passes again: its memory is
    /// mapped once. A missing file is [`StorageError::Missing`].
    pub fn read_with(
        &self,
        number: u64,
        cap: u64,
        buffer: &mut Vec<u8>,
        row: impl FnMut(StagedRow<'_>),
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

/// The length of a header with its checksum.
fn header_len(writer: &str, stage: &str) -> usize {
    FIXED + writer.len() + stage.len() + 8
}

/// The frame that names the topic of the frames behind it.
fn topic_frame(topic: &str) -> Vec<u8> {
    let (mut out, name) = (Vec::new(), topic.to_owned());
    let topic = TopicCreate { name, epoch: 0, config: Vec::new(), reserved_to: 0 };
    topic.encode_frame(&mut out, 0, 0, 0);
    out
}

/// Verifies the frames from `start` on and passes the rows to the caller; returns their number.
fn split(
    env: &Env,
    file: &str,
    bytes: &[u8],
    (start, salt): (usize, u64),
    mut row: impl FnMut(StagedRow<'_>),
) -> Result<u64> {
    let (mut topic, mut rows): (Option<String>, u64) = (None, 0);
    let (mut at, mut ordinal) = (start, 1);
    while at < bytes.len() {
        let corrupt = |why: String| StorageError::corrupt(file, at as u64, why);
        let found = match frame::verify_inner(&bytes[at..], salt, ordinal) {
            Err(_) if env.check("txn.frame", false) => frame::parse(&bytes[at..])
                .map(|(f, size)| (f, size, frame::inner_hash(&bytes[at..at + size]))),
            other => other,
        };
        let (f, size, inner) = found.map_err(|e| corrupt(e.to_string()))?;
        match f.kind {
            FrameType::TopicCreate => {
                topic = Some(TopicCreate::decode(&f)?.name);
            }
            FrameType::Append => {
                let topic = topic.as_deref().ok_or_else(|| corrupt("rows of no topic".into()))?;
                row(StagedRow { topic, frame: f, bytes: &bytes[at..at + size], inner });
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

    fn rows(topics: &[(&str, &[&str])]) -> StageRows {
        let mut rows = StageRows::new("w", "attempt 1");
        for (topic, data) in topics {
            rows.add(topic, data.len() as u64, 0, |out| {
                for d in *data {
                    let f = Frame::control(FrameType::Append, 0, 0, 0, d.as_bytes());
                    frame::encode(out, &Frame { tag: b"t", ..f });
                }
            });
        }
        rows
    }

    /// Topic and unsealed frame of each row.
    type Read = Vec<(String, Vec<u8>)>;

    /// A file's header, its checksum and its rows.
    fn read(stages: &Stages, number: u64) -> Result<(StageHeader, u64, Read)> {
        let mut rows = Vec::new();
        let (head, sum) = stages.read_with(number, u64::MAX, &mut Vec::new(), |row| {
            let mut frame = row.bytes.to_vec();
            let at = frame.len() - frame::FRAME_TRAILER;
            frame[at..].copy_from_slice(&row.inner.to_le_bytes());
            assert_eq!(frame::parse(&frame).unwrap().0.data, row.frame.data);
            rows.push((row.topic.to_owned(), frame));
        })?;
        Ok((head, sum, rows))
    }

    const ONE_TWO: &[(&str, &[&str])] = &[("a", &["one", "two"]), ("b", &["3"])];

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
        let given = rows(&[("a", &["1", "2"]), ("b", &["3"]), ("a", &["4"])]);
        let encoded: Vec<_> = given
            .topics()
            .flat_map(|(topic, frames, count)| {
                let size = frames.len() / count as usize;
                frames.chunks(size).map(|f| (topic.to_owned(), f.to_vec())).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!((given.count(), encoded.len()), (4, 4));
        let expected = given.file_len();
        let head = |number| StageHeader { rows: 4, ..head(number) };
        let (len, sum) = stages.write(&head(9), given).unwrap();
        assert_eq!(len, expected);
        let (found, checksum, back) = read(&stages, 9).unwrap();
        assert_eq!((found.len, checksum), (len, sum));
        assert_eq!(found, StageHeader { len, ..head(9) });
        assert_eq!(back, encoded, "the frames come back as they were encoded");
        assert!(fs.is_durable(&stages.path(&name(9)), 0, len), "a stage is acked when durable");
        let listed = stages.list().unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].1.as_ref().unwrap(), &found);
        stages.unlink(&name(9)).unwrap();
        stages.unlink(&name(9)).unwrap();
        assert!(matches!(read(&stages, 9), Err(StorageError::Missing { .. })));
        assert!(stages.list().unwrap().is_empty());
    }

    #[test]
    fn i12_every_flipped_bit_and_every_cut_is_noticed() {
        let (stages, _) = open();
        stages.write(&head(1), rows(ONE_TWO)).unwrap();
        let path = stages.path(&name(1));
        let file = stages.env.fs.open(&path, OpenMode::Write).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        for (at, &byte) in bytes.iter().enumerate() {
            file.write_all_at(&[byte ^ (1 << (at % 8))], at as u64).unwrap();
            assert!(read(&stages, 1).is_err(), "a change of byte {at} is not detected");
            file.write_all_at(&[byte], at as u64).unwrap();
        }
        assert!(read(&stages, 1).is_ok());
        for len in (0..bytes.len() as u64).rev() {
            file.set_len(len).unwrap();
            assert!(read(&stages, 1).is_err(), "truncated to {len}");
        }
        let other = Stages { store_id: [8; 16], ..stages.clone() };
        stages.write(&head(1), rows(ONE_TWO)).unwrap();
        assert!(read(&other, 1).is_err(), "another store's file");
    }

    #[test]
    fn a_failed_stage_leaves_no_file() {
        use topics_sim::{CallKind, FaultKind};
        for kind in [CallKind::Write, CallKind::SyncData, CallKind::Rename, CallKind::SyncDir] {
            let (stages, fs) = open();
            fs.fail_nth(kind, 1, FaultKind::EIO);
            assert!(stages.write(&head(1), rows(&[("a", &["1", "2", "3"])])).is_err(), "{kind:?}");
            assert_eq!(fs.faults_fired(), 1);
            fs.clear_faults();
            assert!(stages.list().unwrap().is_empty(), "{kind:?}");
            stages.write(&head(1), rows(&[("a", &["1", "2", "3"])])).unwrap();
        }
    }
}
