//! Topics over the simulated env: every rule, live and after reopening.

// A table of cases is clearer than a type for its rows.
#![allow(clippy::type_complexity)]

mod append;
mod broken;
mod classes;
mod clock;
mod closing;
mod delete;
mod descriptors;
mod layout;
mod lifecycle;
mod lock;
mod lost_batches;
mod lost_files;
mod model;
mod opening;
mod panics;
mod poison;
mod read;
mod reclaim;
mod retention;
mod salvage;
mod same_boot;
mod shared_fate;
mod space;
mod unloaded;
mod verify;

use std::path::Path;
use std::sync::Arc;

use topics_env::real::SystemClock;
use topics_env::{Env, Hook};
use topics_sim::{Bucket, SimClock, SimFs, env_on};

use crate::engine::Engine;
use crate::topic::events::Ctx;
use crate::types::api::{
    Append, Appended, DeleteRequest, Durability, NewRecord, ReadFrom, ReadRequest, TopicMatch,
    TopicState,
};
use crate::types::batch::ReadBatch;
use crate::types::config::ConfigPatch;
use crate::types::error::Result;
use crate::types::options::{Options, RemoteLimits, RemoteOptions};

pub(crate) const DIR: &str = "/data";

/// An engine over a simulated disk, and the means to end its life in several ways.
pub(crate) struct World {
    pub fs: Arc<SimFs>,
    pub clock: Arc<SimClock>,
    pub options: Options,
    pub seed: u64,
    /// Sees, and may remove, what promises rest on.
    pub hook: Option<Arc<dyn Hook>>,
    /// Whether the engine has the clock of the system, not the one that a test advances: what its
    /// threads put off for a while is then done without the test.
    pub real_time: bool,
    engine: Option<Engine>,
}

pub(crate) fn small() -> Options {
    Options {
        background: false,
        wal_file_min: 64 << 10,
        wal_file_max: 256 << 10,
        segment_max_events: 5,
        ..Options::default()
    }
}

impl World {
    pub fn new() -> Self {
        Self::with(small())
    }

    pub fn with(options: Options) -> Self {
        let mut w = Self::unopened(options);
        w.open();
        w
    }

    pub fn unopened(options: Options) -> Self {
        let fs = Arc::new(SimFs::new());
        let clock = Arc::new(SimClock::new(1_700_000_000_000));
        Self { fs, clock, options, seed: 1, hook: None, real_time: false, engine: None }
    }

    /// A world whose engine, client 1 of the bucket, archives to it.
    pub fn over_bucket(limits: RemoteLimits) -> (Self, Arc<Bucket>) {
        // The probe has tests of its own.
        let limits = RemoteLimits { single_writer: true, ..limits };
        let mut w = Self::unopened(small());
        let bucket = Bucket::new(&w.clock);
        bucket.set_mutable(&["HEAD"]);
        w.options.remote = Some(RemoteOptions { store: Arc::new(bucket.client(1)), limits });
        w.open();
        (w, bucket)
    }

    pub fn clock_wall(&self) -> u64 {
        use topics_env::Clock;
        self.clock.wall_ms()
    }

    pub fn env(&self) -> Env {
        let mut env = env_on(&self.fs, &self.clock, self.seed);
        if self.real_time {
            env.clock = Arc::new(SystemClock);
        }
        match &self.hook {
            Some(hook) => env.with_hook(hook.clone()),
            None => env,
        }
    }

    pub fn open(&mut self) {
        self.try_open().unwrap();
    }

    pub fn try_open(&mut self) -> Result<()> {
        self.seed += 1;
        self.engine = Some(Engine::open(self.env(), Path::new(DIR), self.options.clone())?);
        Ok(())
    }

    /// Closes cleanly and opens again.
    pub fn reopen(&mut self) {
        self.close();
        self.open();
    }

    pub fn close(&mut self) {
        if let Some(e) = self.engine.take() {
            e.close().unwrap();
        }
    }

    /// The process is killed: what was written stays.
    pub fn kill(&mut self) {
        self.drop_engine();
        self.fs = Arc::new(SimFs::from_image(&self.fs.kill_image()));
        self.open();
    }

    /// Drops the engine without a close. Nothing of it may stay, unless the test holds it too.
    fn drop_engine(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        let ctx: &Arc<Ctx> = engine.open_engine().ctx();
        let (open, log) = (Arc::downgrade(engine.open_engine()), Arc::downgrade(ctx));
        // A thread of the engine may hold it for as long as a pass takes.
        let held = Arc::strong_count(engine.open_engine()) > 1 || self.options.background;
        drop(engine);
        assert!(held || open.strong_count() == 0, "an engine that is dropped stays in memory");
        assert!(held || log.strong_count() == 0, "the log of an engine that is dropped stays open");
    }

    /// The process is killed, and then the write-back of every page that no sync had covered fails.
    /// False: there was no such page.
    pub fn kill_with_failed_write_back(&mut self) -> bool {
        self.drop_engine();
        let Some(image) = self.fs.failed_write_back_image(0) else { return false };
        self.fs = Arc::new(SimFs::from_image(&image));
        self.open();
        true
    }

    /// Power fails and nothing that was not synced survives.
    pub fn power_cut(&mut self) {
        self.drop_engine();
        let image = self.fs.crash_cursor();
        let mut cursor = image;
        while cursor.advance() {}
        let image = cursor.image(topics_sim::Survival::DropAll).with_boot(self.seed);
        self.fs = Arc::new(SimFs::from_image(&image));
        self.open();
    }

    pub fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    pub fn checkpoint(&self) {
        self.engine().sync().unwrap();
        self.engine().checkpoint().unwrap();
    }

    pub fn create(&self, topic: &str, patch: ConfigPatch) {
        self.engine().create_topic(topic, &patch).unwrap();
    }

    pub fn put(&self, topic: &str, data: &[&str]) -> Appended {
        self.try_put(topic, data).unwrap()
    }

    pub fn try_put(&self, topic: &str, data: &[&str]) -> Result<Appended> {
        let records: Vec<_> = data.iter().map(|d| rec(d)).collect();
        self.engine().append(topic, &Append { records: &records, ..Append::default() })
    }

    /// Appends one record per tag; its data is the tag.
    pub fn tagged(&self, topic: &str, tags: &[&str]) -> Appended {
        let records: Vec<_> =
            tags.iter().map(|t| NewRecord { tag: t.as_bytes(), ..rec(t) }).collect();
        self.engine().append(topic, &Append { records: &records, ..Append::default() }).unwrap()
    }

    pub fn state(&self, topic: &str) -> TopicState {
        self.engine().state(topic, false).unwrap()
    }

    pub fn read(&self, topic: &str, from: u64) -> ReadBatch {
        self.engine().read(topic, &after(from)).unwrap()
    }

    /// Seqs of the live records, read to the head; each read's tombstone is noted.
    pub fn scan(&self, topic: &str, from: u64) -> (Vec<u64>, Vec<(u64, u64, &'static str)>) {
        let (mut seqs, mut lost, mut at) = (Vec::new(), Vec::new(), from);
        for _ in 0..10_000 {
            let b = self.read(topic, at);
            if let Some(t) = b.tombstone {
                lost.push((t.gap_from, t.gap_to, t.reason.as_str()));
            }
            seqs.extend(b.iter().map(|r| r.seq));
            at = b.next_from_seq;
            if b.caught_up {
                return (seqs, lost);
            }
        }
        panic!("a reader makes no progress at {at}");
    }

    pub fn seqs(&self, topic: &str) -> Vec<u64> {
        self.scan(topic, 0).0
    }

    pub fn delete(&self, topic: &str, before: Option<u64>, matching: Option<TopicMatch>) -> u64 {
        let req = DeleteRequest { before_seq: before, matching };
        self.engine().delete(topic, &req).unwrap().deleted
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // A test that did not end in a panic leaves no illegal order of writes behind.
        if !std::thread::panicking() {
            assert_eq!(self.fs.violations(), []);
        }
    }
}

pub(crate) fn rec(data: &str) -> NewRecord<'_> {
    NewRecord { data: data.as_bytes(), ..NewRecord::default() }
}

pub(crate) fn after(seq: u64) -> ReadRequest {
    ReadRequest { from: ReadFrom::After(seq), ..ReadRequest::default() }
}

pub(crate) fn eq(tag: &str) -> Option<TopicMatch> {
    Some(TopicMatch::Eq(tag.as_bytes().to_vec()))
}

pub(crate) fn glob(prefix: &str) -> Option<TopicMatch> {
    Some(TopicMatch::Glob(prefix.as_bytes().to_vec()))
}

pub(crate) fn class(durability: Durability) -> ConfigPatch {
    ConfigPatch { durability: Some(durability), ..ConfigPatch::default() }
}

pub(crate) const CLASSES: [Durability; 4] =
    [Durability::Ephemeral, Durability::Memory, Durability::Disk, Durability::Fsync];
