//! A power cut at every call of a backup or a clone: the source is as before, and the copy is refused
//! or whole. Once the call has returned, the copy is whole.

use std::path::Path;
use std::sync::Arc;

use topics_engine::{
    Append, ConfigPatch, DeleteRequest, Durability, Engine, NewRecord, StageRequest,
};
use topics_engine::{Options, RecoveryMode, TopicMatch, TxnRows};
use topics_env::Env;
use topics_sim::{
    CallFilter, CallKind, CrashOptions, DiskImage, FaultKind, SimClock, SimFs, env_on,
};

use crate::delivery::options;
use crate::oracle::{Seen, observe};
use crate::run::{DIR, HookSpec};

const COPY: &str = "/copy";
const WALL: u64 = 1_700_000_000_000;
const SHARDS: u32 = 2;

/// A topic without what differs from open to open: its reservations and its announced gaps.
#[derive(PartialEq)]
struct Topic {
    name: String,
    id: (u64, u64),
    floors: (u64, u64),
    live: (u64, u64),
    records: Vec<Seen>,
}

impl std::fmt::Debug for Topic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seqs: Vec<u64> = self.records.iter().map(|r| r.seq).collect();
        write!(f, "{} {:?} {:?} {:?} {seqs:?}", self.name, self.id, self.floors, self.live)
    }
}

/// What a directory serves.
#[derive(Debug, PartialEq)]
struct Content {
    topics: Vec<Topic>,
    staged: String,
}

struct Source {
    fs: Arc<SimFs>,
    engine: Engine,
    seed: u64,
    hook: HookSpec,
}

fn env(fs: &Arc<SimFs>, seed: u64, hook: &HookSpec) -> Env {
    hook.on(env_on(fs, &Arc::new(SimClock::new(WALL)), seed), fs)
}

fn content(engine: &Engine) -> Result<Content, String> {
    let (seen, problems) = observe(engine, WALL, 50);
    if let Some(problem) = problems.into_iter().next() {
        return Err(problem);
    }
    let topics = seen.topics.into_iter().map(|t| Topic {
        name: t.state.topic,
        id: (t.state.topic_id, t.state.epoch),
        floors: (t.state.earliest_seq, t.state.evict_floor),
        live: (t.state.count, t.state.bytes),
        records: t.records,
    });
    // No state: the writer has staged nothing.
    let staged = engine.writer_state("w").map(|w| format!("{:?}", w.staged)).unwrap_or_default();
    Ok(Content { topics: topics.collect(), staged })
}

impl Source {
    fn open(seed: u64, hook: &HookSpec) -> Result<Self, String> {
        let fs = Arc::new(SimFs::new());
        let opened = Engine::open(env(&fs, seed, hook), Path::new(DIR), options(SHARDS));
        let engine = opened.map_err(|e| e.to_string())?;
        Ok(Self { fs, engine, seed, hook: hook.clone() })
    }

    fn append(&self, topic: &str, data: &str) -> topics_engine::Result<()> {
        let class = ConfigPatch { durability: Some(Durability::Disk), ..ConfigPatch::default() };
        let data = format!("\"{data}{}\"", "x".repeat(60));
        let record = NewRecord { data: data.as_bytes(), tag: b"t", ..NewRecord::default() };
        let append = Append { records: &[record], config: Some(&class), ..Append::default() };
        self.engine.append(topic, &append).map(drop)
    }

    fn checkpoint(&self) -> topics_engine::Result<()> {
        // Only synced records are copied to segments.
        self.engine.sync()?;
        self.engine.checkpoint()
    }

    /// Sealed and active segments, deletes, tags, staged rows, and a log above the snapshot.
    fn fill(&self) -> topics_engine::Result<()> {
        for i in 0..11 {
            self.append("a", &format!("a{i}"))?;
            self.append("b", &format!("b{i}"))?;
        }
        self.checkpoint()?;
        self.engine.delete_seqs("a", &[3, 10])?;
        let tagged =
            DeleteRequest { before_seq: Some(3), matching: Some(TopicMatch::Eq(b"t".to_vec())) };
        self.engine.delete("b", &tagged)?;
        self.checkpoint()?;
        let record = NewRecord { data: b"\"staged\"", ..NewRecord::default() };
        let rows = [TxnRows { topic: "a", records: &[record], ..TxnRows::default() }];
        self.engine.stage("w", &StageRequest { stage: "s", part: 0, rows: &rows })?;
        for i in 0..3 {
            self.append("a", &format!("tail{i}"))?;
            self.append("c", &format!("new{i}"))?;
        }
        Ok(())
    }

    /// What a disk serves at `dir`. `salvage`: opened so that damage would be declared lost.
    fn found(&self, image: &DiskImage, dir: &str, salvage: bool) -> Result<Content, String> {
        let fs = Arc::new(SimFs::from_image(image));
        let recovery = if salvage { RecoveryMode::Salvage } else { RecoveryMode::Strict };
        let options = Options { recovery, ..options(SHARDS) };
        let opened = Engine::open(env(&fs, self.seed ^ 7, &self.hook), Path::new(dir), options);
        content(&opened.map_err(|e| format!("refused: {e}"))?)
    }

    /// Judges every disk that a power cut can leave, between the calls `from` and the last one. `done`
    /// is the number of calls when the copy was reported. `single`: also disks that lack one change alone.
    fn judge(&self, from: usize, done: usize, whole: &Content, single: bool) -> Vec<String> {
        let mut out = Vec::new();
        let options = CrashOptions { random: 1, torn_bytes: 0, names: 2, single };
        let mut cursor = self.fs.crash_cursor();
        cursor.seek(from);
        let (mut n, mut whole_copies) = (0, 0);
        loop {
            cursor.states(self.seed, &options, &mut |state| {
                n += 1;
                let at = self.fs.describe_op(state.after_ops.saturating_sub(1));
                let is_done = state.after_ops >= done;
                match self.found(&state.image, COPY, !is_done) {
                    Ok(copy) if copy == *whole => whole_copies += 1,
                    // Not begun: nothing but an empty directory.
                    Ok(copy) if !is_done && copy.topics.is_empty() && is_bare(&state.image) => {}
                    Ok(copy) => out.push(format!("after {at}: another copy opens: {copy:?}")),
                    Err(e) if is_done => out.push(format!("after {at}: the finished copy: {e}")),
                    Err(_) => {}
                }
                if n % 5 == 0 {
                    match self.found(&state.image, DIR, false) {
                        Ok(source) if contains(&source, whole) => {}
                        found => out.push(format!("after {at}: the source: {found:?}")),
                    }
                }
            });
            if !out.is_empty() || !cursor.advance() {
                break;
            }
        }
        if out.is_empty() && whole_copies == 0 {
            out.push("no copy was ever whole".into());
        }
        out
    }
}

/// Whether a disk has no file of a copy.
fn is_bare(image: &DiskImage) -> bool {
    image.files().iter().all(|(path, _)| !path.starts_with("/copy/") || path.ends_with(".lock"))
}

/// Whether a directory serves at least the records of `whole`.
fn contains(found: &Content, whole: &Content) -> bool {
    whole.topics.iter().all(|was| {
        let is = found.topics.iter().find(|t| t.name == was.name);
        is.is_some_and(|is| was.records.iter().all(|r| is.records.contains(r)))
    })
}

fn problems(run: Result<Vec<String>, String>) -> Vec<String> {
    run.unwrap_or_else(|e| vec![e])
}

/// A backup of an open engine whose checkpoint finds no space, so that the copy needs the log.
pub(super) fn backup(seed: u64, hook: &HookSpec) -> Vec<String> {
    problems((|| {
        let source = Source::open(seed, hook)?;
        source.fill().map_err(|e| e.to_string())?;
        source.engine.sync().map_err(|e| e.to_string())?;
        let whole = content(&source.engine)?;
        let snapshots = CallFilter::on_path(CallKind::Create, "/db/meta/snapshot.");
        source.fs.fail_from(snapshots, 1, FaultKind::ENOSPC);
        let from = source.fs.ops_len();
        let copied = source.engine.backup(Path::new(COPY)).map_err(|e| e.to_string())?;
        if copied.linked < 4 || copied.copied < 4 {
            return Err(format!("the scenario is too small: {copied:?}"));
        }
        let done = source.fs.ops_len();
        source.append("a", "later").map_err(|e| e.to_string())?;
        Ok(source.judge(from, done, &whole, true))
    })())
}

/// A clone of a directory whose process was killed.
pub(super) fn clone(seed: u64, hook: &HookSpec) -> Vec<String> {
    problems((|| {
        let mut source = Source::open(seed, hook)?;
        source.fill().map_err(|e| e.to_string())?;
        source.engine.sync().map_err(|e| e.to_string())?;
        let whole = content(&source.engine)?;
        let image = source.fs.kill_image();
        source.fs = Arc::new(SimFs::from_image(&image));
        let from = source.fs.ops_len();
        let env = env(&source.fs, seed ^ 1, hook);
        Engine::clone_directory(&env, Path::new(DIR), Path::new(COPY))
            .map_err(|e| e.to_string())?;
        let done = source.fs.ops_len();
        Ok(source.judge(from, done, &whole, true))
    })())
}

/// A copy with more files than are synced one by one: a sync of the file system replaces theirs.
pub(super) fn wide(seed: u64, hook: &HookSpec) -> Vec<String> {
    problems((|| {
        let source = Source::open(seed, hook)?;
        for i in 0..300 {
            source.append(&format!("t{i}"), "one").map_err(|e| e.to_string())?;
        }
        let whole = content(&source.engine)?;
        let backup = source.engine.backup(Path::new(COPY)).map_err(|e| e.to_string())?;
        if backup.copied < 600 {
            return Err(format!("the scenario is too small: {backup:?}"));
        }
        let done = source.fs.ops_len();
        // From the removal of the marker on: each earlier disk has the marker.
        Ok(source.judge(done - 3, done, &whole, false))
    })())
}
