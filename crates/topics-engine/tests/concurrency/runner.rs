//! Runs models under schedules.

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use topics_env::sync::model::shuttle::scheduler::{
    PctScheduler, RandomScheduler, ReplayScheduler, Scheduler,
};
use topics_env::sync::model::shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use topics_env::sync::model::{self, Site};

use crate::breaking;

/// A model: one run of it, under whatever schedule.
#[derive(Clone, Copy)]
pub struct Model {
    pub name: &'static str,
    pub body: fn(),
}

impl Model {
    pub const fn new(name: &'static str, body: fn()) -> Self {
        Self { name, body }
    }
}

/// A number from the environment, or this one.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.replace('_', "").parse().ok()).unwrap_or(default)
}

fn seed() -> u64 {
    setting("TOPICS_SEED", 0x7091_c5ee_d001)
}

/// The gate of this run (`TOPICS_GATE`), as in `tests/harness.rs`.
fn gate() -> String {
    std::env::var("TOPICS_GATE").unwrap_or_default()
}

/// Whether runs of the same tree differ: seeds are random.
fn explores() -> bool {
    ["explore", "release"].contains(&gate().as_str())
}

/// The second seed of a run: `TOPICS_RANDOM_SEED`, or a random one where the gate explores, else a
/// fixed one.
fn random_seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let random = RandomState::new().hash_one(std::process::id()); // random: if the gate explores
        setting("TOPICS_RANDOM_SEED", if explores() { random } else { 0x2bad_5eed_0c0d_e002 })
    })
}

/// Whether this is the release gate, which breaks every site.
pub fn release() -> bool {
    gate() == "release"
}

/// How many schedules of each kind.
fn schedules() -> usize {
    let default = match gate().as_str() {
        "release" => 20_000,
        "full" | "explore" => 2_000,
        _ => 200,
    };
    setting("TOPICS_SCHEDULES", default) as usize
}

/// The seeds of the models, and the seeds with which broken models are explored: what these notice
/// must not depend on a random choice.
fn seeds(broken: bool) -> [u64; 2] {
    match (broken, gate().as_str()) {
        (true, _) => [seed(), !seed()],
        (false, "explore") => [random_seed(), !random_seed()],
        (false, _) => [seed(), random_seed()],
    }
}

fn config(quiet: bool) -> Config {
    let mut config = Config::new();
    config.stack_size = 256 << 10;
    config.silence_warnings = true;
    config.max_steps = MaxSteps::FailAfter(200_000);
    config.ungraceful_shutdown_config.immediately_return_on_panic = true;
    if quiet {
        config.failure_persistence = FailurePersistence::None;
    }
    config
}

fn run(scheduler: impl Scheduler + 'static, model: Model, quiet: bool) -> Result<usize, String> {
    let once = move || {
        model::begin();
        (model.body)();
    };
    catch_unwind(AssertUnwindSafe(|| Runner::new(scheduler, config(quiet)).run(once)))
        .map_err(|p| text(&*p))
}

fn text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

/// Explores a model, or a broken one: how many schedules there were, or what went wrong in one.
pub fn explore(model: Model, schedules: usize, broken: bool) -> Result<usize, String> {
    let (quiet, [first, second]) = (broken, seeds(broken));
    if let Ok(schedule) = std::env::var("TOPICS_REPLAY") {
        return run(ReplayScheduler::new_from_encoded(&schedule), model, quiet);
    }
    let random = RandomScheduler::new_from_seed(first, schedules);
    let pct = PctScheduler::new_from_seed(first, 3, schedules);
    let more = RandomScheduler::new_from_seed(second, schedules.div_ceil(10));
    Ok(run(random, model, quiet)? + run(pct, model, quiet)? + run(more, model, quiet)?)
}

/// Calls `f` for each item, two at a time. Each call has a thread of its own: one on which a model
/// has panicked counts as panicking for ever, and would fail the next model too.
pub fn each<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while let (i, Some(item)) = {
                    let i = next.fetch_add(1, Ordering::SeqCst);
                    (i, items.get(i))
                } {
                    let r = std::thread::scope(|own| own.spawn(|| f(item)).join().unwrap());
                    done.lock().unwrap().push((i, r));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|d| d.0);
    done.into_iter().map(|d| d.1).collect()
}

pub fn main(models: &[Model]) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = breaking::child(models, &args) {
        return code;
    }
    let filters: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let chosen: Vec<Model> = models
        .iter()
        .filter(|m| filters.is_empty() || filters.iter().any(|f| *f == m.name))
        .copied()
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = models.iter().map(|m| m.name).collect();
        println!("concurrency: no model is named {filters:?}; expected one of {names:?}");
        return ExitCode::FAILURE;
    }
    println!("concurrency: seeds {:#x?}", seeds(false));
    let seen: Vec<(Model, Option<Vec<Site>>)> = each(&chosen, |m| {
        let started = Instant::now();
        let outcome = explore(*m, schedules(), false);
        let took = started.elapsed().as_secs_f64();
        match outcome {
            Ok(n) => {
                println!("test concurrency::{} ... ok ({n} schedules, {took:.1} s)", m.name);
                // Those of this thread, which ran only this model.
                (*m, Some(model::visited_sites().into_iter().collect()))
            }
            Err(e) => {
                println!("test concurrency::{} ... FAILED ({took:.1} s)\n{e}", m.name);
                (*m, None)
            }
        }
    });
    let failed = seen.iter().filter(|s| s.1.is_none()).count();
    let unnoticed = if failed == 0 { breaking::all(&seen) } else { 0 };
    println!("concurrency: {} passed, {failed} failed", seen.len() - failed);
    if failed + unnoticed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
