//! What the models share: a simulated world, choices that the schedule makes, time.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use topics_engine::{
    Append, Appended, ConfigPatch, Durability, Engine, NewRecord, Options, Result,
};

use topics_env::sync::atomic::{AtomicBool, Ordering};
use topics_env::sync::model::shuttle::rand::{Rng, thread_rng};
use topics_env::sync::model::time_passes;
use topics_env::sync::thread;
use topics_env::{Env, Site};
use topics_sim::{Mutant, SimClock, SimFs, env_on};

/// A number below `n`; part of the schedule.
pub fn choose(n: u64) -> u64 {
    thread_rng().gen_range(0..n)
}

/// Yes or no; part of the schedule.
pub fn flip() -> bool {
    choose(2) == 0
}

thread_local! {
    /// A sync that is left out.
    static WITHOUT: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Leaves out the syncs with this name in the runs that follow on this thread.
pub fn without(sync: &'static str) {
    WITHOUT.set(Some(sync));
}

/// An empty disk and a clock that stands still.
pub fn empty() -> (Env, Arc<SimFs>, Arc<SimClock>) {
    let fs = Arc::new(SimFs::new());
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let env = env_on(&fs, &clock, 1);
    let env = match WITHOUT.get() {
        Some(name) => env.with_hook(Arc::new(Mutant::remove(Site::Sync(name), None))),
        None => env,
    };
    (env, fs, clock)
}

/// How long a wait lasts that something must end.
pub const LONG: Duration = Duration::from_secs(3600);

fn options(background: bool) -> Options {
    Options {
        background,
        delivery_workers: 1,
        wal_file_min: 64 << 10,
        staging_wait: LONG,
        ..Options::default()
    }
}

/// An engine on a disk of its own.
pub struct World {
    pub engine: Engine,
    pub fs: Arc<SimFs>,
    pub clock: Arc<SimClock>,
}

impl World {
    pub fn open(background: bool) -> Arc<Self> {
        let (env, fs, clock) = empty();
        Self::over(env, fs, clock, options(background))
    }

    /// The same with so little staging that most batches are staged alone.
    pub fn crowded(background: bool) -> Arc<Self> {
        let (env, fs, clock) = empty();
        Self::over(env, fs, clock, Options { staging_bytes: 600, ..options(background) })
    }

    fn over(env: Env, fs: Arc<SimFs>, clock: Arc<SimClock>, options: Options) -> Arc<Self> {
        let engine = Engine::open(env, Path::new("/data"), options).unwrap();
        Arc::new(Self { engine, fs, clock })
    }

    /// What the next process finds if this one is killed now.
    pub fn killed(&self) -> Arc<Self> {
        let fs = Arc::new(SimFs::from_image(&self.fs.kill_image()));
        let env = env_on(&fs, &self.clock, 2);
        Self::over(env, fs, self.clock.clone(), options(false))
    }

    pub fn create(&self, topic: &str, durability: Durability) {
        let config = ConfigPatch { durability: Some(durability), ..ConfigPatch::default() };
        self.engine.create_topic(topic, &config).unwrap();
    }

    /// Appends a batch of so many records with the same data.
    pub fn append(&self, topic: &str, data: &str, n: usize) -> Result<Appended> {
        self.append_if(topic, data, n, None)
    }

    /// A write that must not fail.
    pub fn put(&self, topic: &str, data: &str, n: usize) {
        self.append(topic, data, n).unwrap();
    }

    pub fn append_if(
        &self,
        topic: &str,
        data: &str,
        n: usize,
        expect_head: Option<u64>,
    ) -> Result<Appended> {
        let record = NewRecord { data: data.as_bytes(), ..NewRecord::default() };
        let records = vec![record; n];
        let req = Append { records: &records, expect_head, ..Append::default() };
        let done = self.engine.append(topic, &req);
        if !self.engine.options().background {
            // Nobody else writes what nobody waits for.
            self.engine.drive();
        }
        done
    }

    pub fn head(&self, topic: &str) -> u64 {
        self.engine.state(topic, false).unwrap().head_seq
    }
}

/// Any class; part of the schedule.
pub fn class() -> Durability {
    let all = [Durability::Ephemeral, Durability::Memory, Durability::Disk, Durability::Fsync];
    all[choose(4) as usize]
}

/// Runs a thread of the model.
pub fn spawn<T: Send + 'static>(
    world: &Arc<World>,
    body: impl FnOnce(&World) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let world = world.clone();
    thread::spawn(move || body(&world))
}

/// Waits for threads of the model.
pub fn join<T>(threads: impl IntoIterator<Item = thread::JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

/// A thread that lets time pass until it is told that all is done.
pub struct Time {
    done: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Time {
    pub fn run(clock: &Arc<SimClock>, step: Duration) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let (clock, stop) = (clock.clone(), done.clone());
        let thread = thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                clock.advance_ms(step.as_millis() as u64);
                time_passes(step);
                thread::yield_now();
            }
        });
        Self { done, thread }
    }

    pub fn stop(self) {
        self.done.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
    }
}
