//! The models over an engine with one site broken. Each break runs in a process of its own: it may
//! hang, abort, or leave threads behind that never end. The numbers of schedules and of steps in each
//! bound a process: a break that no schedule notices is not noticed, however long that takes.

use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use topics_env::sync::model::{self, Site, SyncOp};

use crate::runner::{Model, each, explore, release, setting};
use crate::world;

/// A process that takes this long hangs outside the scheduler, which fails the suite. Far above what
/// all schedules take on a slow machine.
const WATCHDOG: Duration = Duration::from_secs(1800);

/// Sites whose break no model notices, by file and what the line says, and why that is so.
const EXEMPT: &[(&str, &str, &str)] = &[
    // Figures, and what only says who comes first or when something is looked at again.
    ("delivery/subscribers.rs", "self.manual.store", "a priority: who comes first"),
    ("delivery/subscribers.rs", "self.routed.store", "a priority: who comes first"),
    ("delivery/subscribers.rs", "self.served_at.store", "when, not whether"),
    ("delivery/session.rs", "self.collected.store", "when, not whether"),
    ("delivery/workers.rs", "self.latency", "figures of the governor"),
    ("delivery/workers.rs", "self.sampled.store", "figures of the governor"),
    ("src/ctx.rs", "self.0.store(ppm", "figures of the governor"),
    ("delivery/workers.rs", "self.coalesce_ns.store", "figures of the governor"),
    ("delivery/workers.rs", "self.strained.store", "figures of the governor"),
    ("src/checkpoint/round.rs", "logged_at_round.store", "when the next checkpoint is due"),
    ("src/checkpoint/round.rs", "settled.store", "when the next checkpoint is due"),
    ("src/checkpoint/round.rs", "core.replaced.store", "when the next checkpoint is due"),
    ("engine/background.rs", "core.last_sweep", "when, not whether"),
    ("checkpoint/schedule.rs", "self.last_round.store", "when, not whether"),
    ("topic/read/mod.rs", "last_read.store", "a priority: who comes first"),
    ("topic/view.rs", "last_read.store", "a priority: who comes first"),
    // What costs a look where it is too high.
    ("delivery/workers.rs", "self.expects.store", "a stream that is gone is looked for once more"),
    ("topic/gate.rs", "self.waiters.store(l.len()", "too high a count costs a publisher a look"),
    // Equal to what is not broken.
    ("delivery/subscribers.rs", "self.state.store(QUEUED", "a mark of a queued topic adds nothing"),
    ("delivery/service.rs", "is_new.swap", "a stream takes a topic that it has only once"),
    ("topic/apply.rs", "live.removed.fetch_add", "one thread applies a batch"),
    ("segment/shared.rs", "self.next_no.fetch_add", "one round writes segments at a time"),
    ("queue/waiters.rs", "self.waiting.fetch_sub", "the claim waiters are closed"),
    // Not modelled: a full disk, an unloaded topic, routers, several shards.
    ("checkpoint/full_disk.rs", "self.short_of_space.store", "no disk is full"),
    ("checkpoint/schedule.rs", "self.wal_full.store", "no disk is full"),
    (
        "topic/write/pending_batch.rs",
        "pending.topic.pending_batches.fetch_sub",
        "nobody waits for a refused batch",
    ),
    ("catalog/unloaded.rs", "unloaded.served.store", "every topic is loaded"),
    ("router/registry.rs", "self.len.store", "there is no router"),
    ("router/registry.rs", "self.running.store", "there is no router"),
    ("wal/rotation.rs", "next_key.fetch_add", "one shard begins its files one by one"),
];

/// Syncs that a model must miss when they are left out: acks rest on them.
const SYNCS: &[(&str, &str)] = &[("commit", "wal.group")];

/// Explores one model with one site broken, when that is what the arguments ask for. The exit code
/// says whether it was noticed.
pub fn child(models: &[Model], args: &[String]) -> Option<ExitCode> {
    let [flag, name, file, line, op] = args else { return None };
    if flag != "--broken" {
        return None;
    }
    std::panic::set_hook(Box::new(|_| {}));
    let model = *models.iter().find(|m| m.name == name)?;
    if op == "Sync" {
        world::without(file.clone().leak());
    }
    let ops = [SyncOp::Notify, SyncOp::Store, SyncOp::Change, SyncOp::Step];
    let op = ops.into_iter().find(|d| format!("{d:?}") == *op);
    let line = line.parse().ok()?;
    model::break_site(op.map(|op| Site { file: file.clone().leak(), line, op }));
    let outcome = explore(model, setting("TOPICS_BROKEN_SCHEDULES", 2000) as usize, true);
    match outcome {
        Ok(_) => Some(ExitCode::SUCCESS),
        Err(e) => {
            print!("{}", e.lines().next().unwrap_or_default());
            Some(ExitCode::from(3))
        }
    }
}

/// What a process noticed, if anything; an error if it hangs.
fn noticed(model: &Model, file: &str, line: u32, op: &str) -> Result<Option<String>, String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--broken", model.name, file, &line.to_string(), op])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if started.elapsed() > WATCHDOG {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    match status {
        None => Err(format!("{}: hangs", model.name)),
        Some(s) if s.success() => Ok(None),
        Some(s) if s.code() == Some(3) => Ok(Some(said)),
        Some(s) => Ok(Some(format!("it ends with {s}"))),
    }
}

/// What a line of the sources says.
fn source(site: &Site) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let text = std::fs::read_to_string(format!("{root}/{}", site.file)).unwrap_or_default();
    text.lines().nth(site.line as usize - 1).unwrap_or_default().trim().to_owned()
}

fn exempt(site: &Site, line: &str) -> Option<&'static str> {
    let found = EXEMPT.iter().find(|e| site.file.ends_with(e.0) && line.contains(e.1));
    found.map(|e| e.2)
}

/// What every break of must be noticed: what wakes, and what comes before a wait.
fn must_be_noticed(op: SyncOp) -> bool {
    matches!(op, SyncOp::Notify | SyncOp::Step)
}

/// Breaks every site that the models have passed; how many breaks nothing noticed.
pub fn all(seen: &[(Model, Option<Vec<Site>>)]) -> usize {
    let started = Instant::now();
    let mut sites: Vec<Site> = seen.iter().flat_map(|s| s.1.iter().flatten()).copied().collect();
    sites.sort();
    sites.dedup();
    sites.retain(|s| s.file.contains("crates/topics-") && !s.file.contains("/tests/"));
    if !release() {
        // On a commit: what is found within a few schedules.
        sites.retain(|s| must_be_noticed(s.op));
    }
    let outcomes = each(&sites, |site| {
        let line = source(site);
        if let Some(why) = exempt(site, &line) {
            return (format!("not asked: {why}"), false);
        }
        let passing = seen.iter().filter(|s| s.1.iter().flatten().any(|x| x == site));
        let op = format!("{:?}", site.op);
        for (model, _) in passing {
            match noticed(model, site.file, site.line, &op) {
                Ok(Some(what)) => return (format!("{}: {what}", model.name), false),
                Ok(None) => {}
                Err(e) => return (e, true),
            }
        }
        // A store or a change that nothing here depends on is only reported.
        ("NOT NOTICED".into(), must_be_noticed(site.op))
    });
    for (site, (outcome, _)) in sites.iter().zip(&outcomes) {
        let at = format!("{}:{}", site.file.trim_start_matches("crates/"), site.line);
        println!("  {:<7} {at:<52} {outcome}", format!("{:?}", site.op));
    }
    let mut unnoticed = outcomes.iter().filter(|o| o.1).count();
    for (name, sync) in SYNCS.iter().filter(|s| seen.iter().any(|m| m.0.name == s.0)) {
        let model = seen.iter().map(|s| &s.0).find(|m| m.name == *name);
        let found = model.map_or(Ok(None), |m| noticed(m, sync, 0, "Sync"));
        unnoticed += usize::from(!matches!(found, Ok(Some(_))));
        let outcome = found.map_or_else(|e| e, |f| f.unwrap_or("NOT NOTICED".into()));
        println!("  Sync    {sync:<52} {name}: {outcome}");
    }
    let took = started.elapsed().as_secs_f64();
    println!("{} sites broken, {unnoticed} not noticed ({took:.1} s)", sites.len());
    unnoticed
}
