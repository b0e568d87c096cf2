//! The process that works on the disk and may be killed at any time.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use topics_engine::{ConfigPatch, Engine, Error, Options, TopicSummary};
use topics_env::real::{Backend, real_env};

use super::audit::audit;
use super::client::{Client, Journal};
use super::scenario::{Scale, Scenario, free};
use crate::run::Dice;

/// The purpose of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Work until the shortage, then end cleanly.
    Load,
    /// Open, read everything, free space, continue, end cleanly.
    Reopen,
    /// Open on a disk without free space, read everything, work, wait until the parent has freed
    /// space, continue.
    Full,
    /// Open on a disk without a free byte, read everything, be refused, wait until the parent has freed
    /// space, continue.
    NoByte,
    /// Open and read everything.
    Look,
    /// Write until the power fails.
    Power,
}

/// A child's task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub mode: Mode,
    pub scenario: Scenario,
    pub dir: PathBuf,
    pub seed: u64,
    /// The number of this process within its run, from 1.
    pub life: u64,
    /// Whether the engine is dropped instead of closed.
    pub dropped: bool,
    pub scale: Scale,
}

/// The first argument of a child.
pub const WORD: &str = "--child";

impl Task {
    /// The arguments of the child's process.
    #[must_use]
    pub fn args(&self) -> Vec<String> {
        let mode = format!("{:?}", self.mode).to_lowercase();
        let numbers =
            [self.seed, self.life, u64::from(self.dropped), self.scale.refusals, self.scale.rounds];
        let words = [WORD.to_owned(), mode, self.scenario.name().to_owned()];
        let dir = self.dir.to_string_lossy().into_owned();
        words.into_iter().chain([dir]).chain(numbers.map(|n| n.to_string())).collect()
    }

    /// The task that the arguments of this process name.
    #[must_use]
    pub fn from_args() -> Option<Self> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let [word, mode, scenario, dir, numbers @ ..] = &args[..] else { return None };
        let modes = [Mode::Load, Mode::Reopen, Mode::Full, Mode::NoByte, Mode::Look, Mode::Power];
        let mode = modes.into_iter().find(|m| format!("{m:?}").to_lowercase() == *mode)?;
        let numbers: Vec<u64> = numbers.iter().map(|n| n.parse().ok()).collect::<Option<_>>()?;
        let &[seed, life, dropped, refusals, rounds] = &numbers[..] else { return None };
        (word == WORD).then_some(Self {
            mode,
            scenario: Scenario::named(scenario)?,
            dir: Path::new(dir).to_owned(),
            seed,
            life,
            dropped: dropped == 1,
            scale: Scale { refusals, rounds },
        })
    }

    /// The random numbers of this process.
    #[must_use]
    pub fn dice(&self) -> Dice {
        Dice::new(self.seed ^ self.life.wrapping_mul(0x9e37_79b9))
    }
}

/// Opens the engine of a task.
pub fn open(task: &Task, journal: &Arc<Journal>, options: Options) -> Option<Client> {
    journal.note(format!("life {} opens", task.life));
    let opened = real_env(Backend::Auto)
        .map_err(|e| e.to_string())
        .and_then(|env| Engine::open(env, &task.dir, options).map_err(|e| e.to_string()));
    match opened {
        Ok(engine) => Some(Client { engine, journal: journal.clone() }),
        Err(e) => {
            journal.problem(format!("open: {e}; {}", sizes(&task.dir)));
            None
        }
    }
}

/// The free space, and the sizes of the log and the meta directory: the state that a failed open
/// saw.
fn sizes(dir: &Path) -> String {
    let free = rustix::fs::statvfs(dir).map(|s| s.f_bavail * s.f_frsize);
    let mut text = format!("free: {free:?}");
    for folder in ["meta", "wal/shard-00"] {
        for entry in std::fs::read_dir(dir.join(folder)).into_iter().flatten().flatten() {
            let len = entry.metadata().map_or(0, |m| m.len());
            text += &format!(", {} {len}", entry.file_name().to_string_lossy());
        }
    }
    text
}

/// Runs a task of the full-disk suite.
#[must_use]
pub fn main(task: &Task) -> ExitCode {
    let journal = Arc::new(Journal::new(task.life));
    let options = task.scenario.options(task.seed);
    let Some(client) = open(task, &journal, options) else { return ExitCode::FAILURE };
    match task.mode {
        Mode::Load => load(task, &client),
        Mode::Reopen => reopen(task, &client),
        Mode::Look | Mode::Power => audit(&client, "at-the-end", true),
        Mode::Full => full(task, &client),
        Mode::NoByte => no_byte(task, &client),
    }
    end(task, client);
    ExitCode::SUCCESS
}

fn load(task: &Task, client: &Client) {
    if let Err(e) = task.scenario.set_up(client, task.seed) {
        return client.journal.problem(format!("set-up: {e}"));
    }
    client.journal.note("works");
    task.scenario.run(client, &mut task.dice(), task.scale);
    audit(client, "live", false);
    if task.seed & 16 == 0 {
        task.scenario.limit(true);
    }
}

/// Opens the disk as the previous process left it; freed space can be used again.
fn reopen(task: &Task, client: &Client) {
    // Deletes only audited records: transactions may still be completed in the meantime.
    let topics = client.topics();
    audit(client, "reopened", false);
    free_and_continue(task, client, &topics);
}

/// The disk is full: every record exists, and refused ones do not.
fn full(task: &Task, client: &Client) {
    let topics = client.topics();
    audit(client, "full-disk", false);
    for i in 0..20 {
        let _ = client.append("fill", &[if i % 4 == 0 { 400_000 } else { 100 }], false);
    }
    audit(client, "full-disk-written", false);
    wait_for_space(client);
    free_and_continue(task, client, &topics);
}

/// There is no byte for a log file: every record is read, whatever writes or deletes is refused, until
/// there is space.
fn no_byte(task: &Task, client: &Client) {
    let topics = client.topics();
    audit(client, "no-byte", false);
    for i in 0..20 {
        let sizes = [if i % 4 == 0 { 400_000 } else { 100 }];
        refused(client, "append", client.append("fill", &sizes, i % 2 == 0).map(drop));
    }
    for topic in topics.iter().filter(|t| t.head_seq >= t.earliest_seq) {
        refused(client, "delete", client.delete(&topic.topic, topic.head_seq + 1));
    }
    let created = client.create("no-space-for-it", &ConfigPatch::default());
    refused(client, "creation", created);
    audit(client, "no-byte-refused", false);
    wait_for_space(client);
    // Nothing is deleted first: the space alone suffices.
    task.scenario.goes_on(client);
    free_and_continue(task, client, &topics);
}

/// Deletes some of what there is, and works on.
fn free_and_continue(task: &Task, client: &Client, topics: &[TopicSummary]) {
    free(client, topics, 1);
    task.scenario.goes_on(client);
    task.scenario.wait_background_work(client);
    audit(client, "settled", true);
}

fn refused(client: &Client, what: &str, outcome: topics_engine::Result<()>) {
    match outcome {
        Err(Error::StorageUnavailable { reason: "no_space", .. }) => {}
        other => client.journal.problem(format!("{what} without a free byte: {other:?}")),
    }
}

/// Waits until the parent has removed what fills the disk.
fn wait_for_space(client: &Client) {
    client.journal.note(MAKE_ROOM);
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).is_err() {
        client.journal.problem("the parent is gone");
    }
}

/// The note of a child that waits until its parent has freed space.
pub const MAKE_ROOM: &str = "make room";

fn end(task: &Task, client: Client) {
    let journal = client.journal.clone();
    if task.dropped {
        journal.note("drops");
        drop(client);
    } else {
        journal.note("closes");
        let limited = task.mode == Mode::Load && task.seed & 16 == 0;
        match client.engine.close() {
            // A limit of the process may still refuse the close, with an error.
            Err(e) if limited && shortage(task.scenario) => journal.note(format!("close: {e}")),
            Err(e) => journal.problem(format!("close: {e}")),
            Ok(()) => {}
        }
    }
    journal.note("ended");
}

fn shortage(scenario: Scenario) -> bool {
    matches!(scenario, Scenario::Descriptors | Scenario::FileSize)
}
