//! A simulated world: clock, store, retries that advance the clock, and real segments.

use std::sync::{Arc, Mutex, OnceLock};

use topics_env::Env;
use topics_remote::Retry;
use topics_remote::claim::{Claimant, KeepRecord};
use topics_remote::format::base::Base;
use topics_remote::format::pack::{PARTS, SegmentFiles};
use topics_remote::format::round::{RoundPart, RoundWriter, WAL_HEADER};
use topics_remote::format::sealed::{ObjectHeader, ObjectKind, SealedObject};
use topics_remote::writer::RemoteWriter;
use topics_sim::{Bucket, SimClock, SimFs, env_on};
use topics_storage::StorageError;
use topics_storage::dir::{Paths, RemoteRecord, create_dir};
use topics_storage::format::frame::{Flags, Frame, FrameType};
use topics_storage::segment::{
    Round, SegmentMeta, SegmentOptions, SegmentWriter, Segments, TopicKey,
};
use xxhash_rust::xxh3::xxh3_64;

pub const STORE_ID: [u8; 16] = *b"0123456789abcdef";
pub const PREFIX_ID: [u8; 16] = *b"fedcba9876543210";

fn gate() -> String {
    std::env::var("TOPICS_GATE").unwrap_or_default()
}

/// The size for the gate of this run; `explore` has that of `full`.
pub fn sized(quick: u64, full: u64, release: u64) -> u64 {
    match gate().as_str() {
        "release" => release,
        "full" | "explore" => full,
        _ => quick,
    }
}

/// The second seed of a run: `TOPICS_RANDOM_SEED`, or a random one where the gate explores, else a
/// fixed one.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let text = std::env::var("TOPICS_RANDOM_SEED").unwrap_or_default();
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| match gate().as_str() {
        "explore" | "release" => RandomState::new().hash_one(7), // random: if the gate explores
        _ => 0x2bad_5eed_0c0d_e002,
    })
}

/// Reports that the running test is skipped; at the release gate it fails. Not with `println!`, which a test's
/// runner captures.
pub fn skipped(reason: &str) {
    use std::io::Write;
    assert_ne!(gate(), "release", "{reason}");
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let line = format!("\nskipped: {name}: {reason}\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// What a simulated data directory knows of its prefix. Only the process that opened it last has the
/// lock.
#[derive(Debug, Default)]
pub struct Directory {
    state: Mutex<(u32, Option<RemoteRecord>)>,
}

impl Directory {
    /// A directory with the same content.
    pub fn copy(&self) -> Arc<Self> {
        let record = self.state.lock().unwrap().1.clone();
        Arc::new(Self { state: Mutex::new((0, record)) })
    }

    /// A process that opens the directory with its first request.
    pub fn claimant(self: &Arc<Self>, holder: &str) -> Claimant {
        Claimant {
            store_id: STORE_ID,
            holder: holder.to_owned(),
            has_packs: false,
            record: Arc::new(Process { directory: self.clone(), opened: OnceLock::new() }),
        }
    }
}

#[derive(Debug)]
struct Process {
    directory: Arc<Directory>,
    opened: OnceLock<u32>,
}

impl KeepRecord for Process {
    fn load(&self) -> topics_remote::Result<Option<RemoteRecord>> {
        let mut state = self.directory.state.lock().unwrap();
        self.opened.get_or_init(|| {
            state.0 += 1;
            state.0
        });
        Ok(state.1.clone())
    }

    fn save(&self, record: &RemoteRecord) -> topics_remote::Result<()> {
        let mut state = self.directory.state.lock().unwrap();
        if self.opened.get() != Some(&state.0) {
            return Err(StorageError::LockLost.into());
        }
        state.1 = Some(record.clone());
        Ok(())
    }
}

pub struct World {
    pub bucket: Arc<Bucket>,
    pub clock: Arc<SimClock>,
    pub env: Env,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let clock = Arc::new(SimClock::new(1_700_000_000_000));
        let env = env_on(&Arc::new(SimFs::new()), &clock, seed);
        let bucket = Bucket::new(&clock);
        bucket.set_mutable(&["HEAD"]);
        Self { bucket, clock, env }
    }

    /// Retries for a minute of simulated time.
    pub fn retry(&self) -> Retry {
        self.retry_on(self.env.clone())
    }

    /// The same in this environment.
    pub fn retry_on(&self, env: Env) -> Retry {
        let clock = self.clock.clone();
        Retry::new(env, move |d| clock.advance_ns(d.as_nanos() as u64))
    }
}

pub fn header(kind: ObjectKind, epoch: u64, number: u64) -> ObjectHeader {
    ObjectHeader { kind, store_id: STORE_ID, prefix_id: PREFIX_ID, epoch, number }
}

/// A segment's entry in the snapshot and its files.
pub struct BuiltSegment {
    pub topic: TopicKey,
    pub meta: SegmentMeta,
    pub files: [Vec<u8>; PARTS.len()],
}

impl BuiltSegment {
    pub fn files(&self) -> SegmentFiles<'_> {
        let files = std::array::from_fn(|i| &self.files[i][..]);
        SegmentFiles { topic: self.topic, meta: &self.meta, files }
    }
}

/// Writes one segment of a topic with the storage layer, and reads its files.
pub fn segment(
    topic_id: u64,
    first_seq: u64,
    records: u64,
    bytes: usize,
    is_sealed: bool,
) -> BuiltSegment {
    let topic = TopicKey { topic_id, epoch: 1 };
    let fs = Arc::new(SimFs::new());
    let env = env_on(&fs, &Arc::new(SimClock::new(1000)), topic_id * 1000 + first_seq);
    let paths = Paths::new("/d");
    create_dir(&env, "test.root", paths.root()).unwrap();
    create_dir(&env, "test.topics", &paths.topics()).unwrap();
    let generation = first_seq;
    let segments =
        Segments::new(env.clone(), paths.clone(), STORE_ID, generation, SegmentOptions::default());
    let mut round = Round::new(&segments);
    let mut writer = SegmentWriter::create(&segments, topic, first_seq).unwrap();
    for i in 0..records {
        let tag: &[u8] = if i % 3 == 1 { b"red" } else { b"" };
        let data = vec![b'a' + (i % 26) as u8; bytes];
        let frame = Frame {
            kind: FrameType::Append,
            flags: Flags(if tag.is_empty() { 0 } else { Flags::HAS_TAG }),
            topic_id,
            seq: writer.next_seq(),
            ts: 5000 + i,
            node: b"",
            tag,
            attrs: b"",
            meta: b"",
            data: &data,
        };
        writer.append(&frame, xxh3_64(&[tag, &data].concat())).unwrap();
    }
    if is_sealed {
        writer.seal().unwrap();
    }
    let meta = round.add(writer).unwrap();
    round.sync().unwrap();
    let files = PARTS.map(|kind| {
        let named = meta.files(topic_id).into_iter().find(|(_, k)| *k == kind);
        let Some((name, kind)) = named else { return Vec::new() };
        let path = paths.segment(&name, kind);
        let file = env.fs.open(&path, topics_env::OpenMode::Read).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    });
    BuiltSegment { topic, meta, files }
}

/// The next round of a writer: a cut, and one part with this text.
pub fn round(writer: &RemoteWriter, cut_ms: u64, text: &str) -> SealedObject {
    let mut out = RoundWriter::new(writer.header(ObjectKind::Round), cut_ms);
    let part = RoundPart {
        wal_header: [0; WAL_HEADER],
        file_offset: 0,
        first_lsn: 1,
        end_lsn: 2,
        synced_lsn: 1,
        offset: 0,
        len: 0,
        hash: 0,
    };
    out.push(part, text.as_bytes());
    out.finish()
}

/// The next base of a writer, which names nothing. Its snapshot is this text.
pub fn empty_base(writer: &RemoteWriter, snapshot: &str) -> Base {
    Base {
        header: writer.header(ObjectKind::Base),
        made_ms: 1,
        first_round: 1,
        packs_settled: 0,
        packs: Vec::new(),
        segments: Vec::new(),
        tails: Vec::new(),
        deletes: Vec::new(),
        rows: Vec::new(),
        kept: Vec::new(),
        dead: Vec::new(),
        snapshot: snapshot.as_bytes().to_vec(),
    }
}
