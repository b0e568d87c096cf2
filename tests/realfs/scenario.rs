//! The work of a child until its disk, descriptors or file size are exhausted.

use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use topics_engine::{
    ConfigPatch, Durability, Guarantee, Options, RouterRequest, TopicSummary, TopicType,
};

use super::audit::audit;
use super::client::{Client, LIMIT, until};
use super::judge::Route;
use crate::run::Dice;

/// The kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Six threads append batches of 1 000 × 5 kB and single records to one topic.
    Appends,
    /// A large append, a delete staged after it, small appends after both.
    DeleteBehind,
    /// A large append and two small ones in one tick, to topics that do not exist yet.
    Creation,
    /// One worker whose jobs become dead letters.
    DeadLetters,
    /// A router, with direct writers to its destination.
    Router,
    /// Transactions, with direct writers to their topics.
    Transactions,
    /// No descriptor for the next log file.
    Descriptors,
    /// Files cannot grow beyond a limit (EFBIG).
    FileSize,
}

use Scenario::{
    Appends, Creation, DeadLetters, DeleteBehind, Descriptors, FileSize, Router, Transactions,
};

/// The amount of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Refusals after which a round ends.
    pub refusals: u64,
    /// How often space is freed and used again.
    pub rounds: u64,
}

const BATCH: [usize; 1000] = [5000; 1000];

/// A batch of 1 000 × 5 kB with a probability of 30 %, else a single record.
fn mixed(dice: &mut Dice) -> Vec<usize> {
    if dice.below(10) < 3 { BATCH.to_vec() } else { vec![20 + dice.below(5000) as usize] }
}

impl Scenario {
    pub const ALL: [Self; 8] =
        [Appends, DeleteBehind, Creation, DeadLetters, Router, Transactions, Descriptors, FileSize];

    /// Its command line name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Appends => "appends",
            DeleteBehind => "delete_behind",
            Creation => "creation",
            DeadLetters => "dead_letters",
            Router => "router",
            Transactions => "transactions",
            Descriptors => "descriptors",
            FileSize => "file_size",
        }
    }

    /// The scenario with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    /// The paths of records from topic to topic.
    #[must_use]
    pub fn routes(self, seed: u64) -> Vec<Route> {
        match self {
            DeadLetters => {
                vec![Route::DeadLetters { queue: "queue".into(), dest: "zdead".into() }]
            }
            Router => {
                let (source, dest) = ("source".into(), "zdest".into());
                vec![Route::Copy { source, dest, once: once(seed) }]
            }
            _ => Vec::new(),
        }
    }

    /// The engine's settings.
    #[must_use]
    pub fn options(self, seed: u64) -> Options {
        let defaults = Options::default();
        match self {
            Descriptors => Options { wal_file_min: 1 << 20, wal_file_max: 1 << 20, ..defaults },
            // With small files and frequent checkpoints, more writes meet the end of a file.
            _ if seed & 2 != 0 => Options {
                wal_file_max: 4 << 20,
                checkpoint_bytes: 8 << 20,
                checkpoint_interval: Duration::from_millis(200),
                ..defaults
            },
            _ => defaults,
        }
    }

    /// The topics that exist before the disk is full.
    fn topics(self) -> &'static [&'static str] {
        match self {
            Appends | DeleteBehind | Descriptors | FileSize => &["t"],
            Creation => &[],
            DeadLetters => &["queue"],
            Router => &["source", "zdest"],
            Transactions => &["t", "u"],
        }
    }

    /// Creates the topics of the scenario.
    pub fn set_up(self, client: &Client, seed: u64) -> topics_engine::Result<()> {
        let durability = Some(if seed & 4 == 0 { Durability::Disk } else { Durability::Fsync });
        let config = ConfigPatch { durability, ..ConfigPatch::default() };
        client.create("fill", &ConfigPatch::default())?;
        for topic in self.topics() {
            let config = match self {
                DeadLetters => ConfigPatch {
                    kind: Some(TopicType::Queue),
                    max_deliveries: Some(1),
                    dead_letter: Some(Some("zdead".into())),
                    ..config.clone()
                },
                _ => config.clone(),
            };
            client.create(topic, &config)?;
        }
        if self == Router {
            let guarantee =
                if once(seed) { Guarantee::ExactlyOnce } else { Guarantee::AtLeastOnce };
            let (source, dest) = ("source".to_owned(), "zdest".to_owned());
            let request = RouterRequest { source, dest, guarantee, ..RouterRequest::default() };
            client.engine.create_router("copies", &request)?;
        }
        Ok(())
    }

    /// Works until `scale.refusals` calls failed, `scale.rounds` times.
    pub fn run(self, client: &Client, dice: &mut Dice, scale: Scale) {
        for round in 0..scale.rounds {
            if round > 0 {
                // Deletes only audited records: transactions may still be completed in the
                // meantime.
                let topics = client.topics();
                audit(client, "between-rounds", false);
                free(client, &topics, 2);
                self.goes_on(client);
            }
            client.journal.note(format!("round {round}"));
            self.round(client, dice, scale.refusals);
        }
    }

    fn round(self, client: &Client, dice: &mut Dice, refusals: u64) {
        match self {
            Appends => {
                let writer: &Work<'_> = &|dice| drop(client.append("t", &mixed(dice), false));
                together(client, dice, refusals, &[writer; 6]);
            }
            DeleteBehind => delete_behind(client, dice, refusals),
            Creation => creation(client, dice, refusals),
            DeadLetters => dead_letters(client, dice, refusals),
            Router => {
                let source = |dice: &mut Dice| drop(client.append("source", &mixed(dice), false));
                let dest = |dice: &mut Dice| drop(client.append("zdest", &mixed(dice), false));
                together(client, dice, refusals, &[&source, &source, &dest, &dest, &dest]);
            }
            Transactions => {
                let rows = |dice: &mut Dice| {
                    let rows =
                        |dice: &mut Dice| mixed(dice)[..].iter().take(200).copied().collect();
                    drop(client.transact(&[("t", rows(dice)), ("u", rows(dice))]));
                };
                let t = |dice: &mut Dice| drop(client.append("t", &mixed(dice), false));
                let u = |dice: &mut Dice| drop(client.append("u", &mixed(dice), false));
                together(client, dice, refusals, &[&rows, &rows, &t, &t, &u]);
            }
            Descriptors | FileSize => {
                let some: &Work<'_> = &|dice| {
                    let sizes = if dice.below(10) < 3 { vec![1000; 600] } else { vec![300] };
                    drop(client.append("t", &sizes, false));
                };
                // Some records exist before the limit applies.
                (0..50).for_each(|_| some(dice));
                self.limit(true);
                together(client, dice, refusals, &[some; 6]);
                self.limit(false);
            }
        }
    }

    /// Sets or removes the process limit of the scenario.
    pub fn limit(self, on: bool) {
        let (what, to) = match self {
            Descriptors => (Resource::Nofile, 3),
            FileSize => (Resource::Fsize, 1 << 20),
            _ => return,
        };
        let maximum = getrlimit(what).maximum;
        let current = if on { Some(to) } else { maximum };
        // A limit that cannot be set is detected later: no call is refused.
        let _ = setrlimit(what, Rlimit { current, maximum });
    }

    /// After space was freed: every topic accepts a write.
    pub fn goes_on(self, client: &Client) {
        for topic in ["fill"].iter().chain(self.topics()) {
            let mut last = None;
            let taken = || match client.append(topic, &[200], false) {
                Ok(_) => true,
                Err(e) => {
                    last = Some(e.to_string());
                    false
                }
            };
            if !until(taken) {
                let text = format!("{topic} takes no write {LIMIT:?} after space came back");
                // A checkpoint reports the cause.
                let round = client.engine.checkpoint();
                client.journal.problem(format!("{text}: {last:?}; a checkpoint: {round:?}"));
            }
        }
    }

    /// Waits until routers, dead letters and transactions have no work left.
    pub fn wait_background_work(self, client: &Client) {
        let settled = match self {
            Router => until(|| {
                let info = client.engine.router("copies");
                info.is_ok_and(|r| r.lag == 0 && r.stopped_by.is_none())
            }),
            DeadLetters => until(|| {
                let jobs = client.claim("queue", 100).unwrap_or_default();
                let acked = jobs.iter().filter(|job| client.ack("queue", **job).is_ok()).count();
                let state = client.engine.queue_state("queue").unwrap_or_default();
                jobs.len() == acked && state.ready + state.in_flight + state.delayed == 0
            }),
            // A transaction whose part found no space is completed later.
            Transactions => until(|| client.engine.metrics().txns_open == 0),
            _ => true,
        };
        if !settled {
            client.journal.problem(format!("{}: not settled within {LIMIT:?}", self.name()));
        }
    }
}

fn once(seed: u64) -> bool {
    seed & 8 == 0
}

/// Deletes the first 1/`parts` of the records of each topic; 1: all of them.
pub fn free(client: &Client, topics: &[TopicSummary], parts: u64) {
    for topic in topics {
        let records = topic.head_seq + 1 - topic.earliest_seq;
        let before = topic.earliest_seq + records / parts;
        // Small topics keep their records, so that more can be checked.
        if records == 0 || topic.bytes <= 1 << 20 {
            continue;
        }
        let Err(e) = client.delete(&topic.topic, before) else { continue };
        // A delete that frees space must succeed on a full disk.
        client.journal.problem(format!("delete below {before} of {}: {e}", topic.topic));
        if !until(|| client.delete(&topic.topic, before).is_ok()) {
            client.journal.problem(format!("{}: no delete within {LIMIT:?}", topic.topic));
            return;
        }
    }
}

type Work<'a> = dyn Fn(&mut Dice) + Sync + 'a;

/// Runs each piece of work repeatedly in its own thread until enough calls were refused; a
/// concurrent reader journals the records that it receives.
fn together(client: &Client, dice: &mut Dice, refusals: u64, work: &[&Work<'_>]) {
    let refused = || client.journal.counts().1;
    let enough = refused() + refusals;
    thread::scope(|scope| {
        let writers = work.iter().map(|work| {
            let mut dice = Dice::new(dice.roll());
            scope.spawn(move || {
                while refused() < enough {
                    let before = refused();
                    work(&mut dice);
                    if refused() > before {
                        // Checkpoints free space in the meantime, so that the disk fills up again.
                        thread::sleep(Duration::from_millis(2));
                    }
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        scope.spawn(move || {
            let mut cursor = 0;
            while !writers.iter().all(thread::ScopedJoinHandle::is_finished) {
                match client.view("t", cursor, None) {
                    Ok(next) => cursor = next,
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
                thread::yield_now();
            }
        });
    });
}

/// The number of calls of a loop that reaches the end of the disk at most once.
const MOST: usize = 400;

fn delete_behind(client: &Client, dice: &mut Dice, refusals: u64) {
    let enough = client.journal.counts().1 + refusals / 4;
    for _ in 0..MOST {
        if client.journal.counts().1 >= enough {
            return;
        }
        let _ = client.append("fill", &mixed(dice), false);
        let _ = client.append("t", &[100; 50], false);
        let Ok(state) = client.engine.state("t", false) else { return };
        // Staged writes are written only when a verb waits, so these keep their order.
        client.append_async("t", &BATCH[..1 + dice.below(1000) as usize]);
        if dice.below(2) == 0 {
            client.append_async("t", &[50]);
        }
        let _ = client.delete("t", state.head_seq + 1 + dice.below(500));
        for _ in 0..3 {
            let _ = client.append("t", &[100], false);
        }
        client.wait_calls();
    }
}

/// Each tick of an event loop writes to eight topics that do not exist yet.
fn creation(client: &Client, dice: &mut Dice, refusals: u64) {
    let enough = client.journal.counts().1 + refusals;
    for tick in 0..MOST {
        if client.journal.counts().1 >= enough {
            return;
        }
        let name = dice.roll() % 1_000_000;
        for i in 0..8 {
            let topic = format!("new-{name}-{tick}-{i}");
            client.append_async(&topic, &BATCH[..400 + dice.below(200) as usize]);
            client.append_async(&topic, &[22]);
            client.append_async(&topic, &[22]);
        }
        client.engine.drive();
        client.wait_calls();
    }
}

/// One worker, whose claims move jobs, with producers and writers that fill the disk.
fn dead_letters(client: &Client, dice: &mut Dice, refusals: u64) {
    let size = |dice: &mut Dice| match dice.below(4) {
        0 => 100_000 + dice.below(400_000) as usize,
        _ => 20 + dice.below(2000) as usize,
    };
    let produce = |dice: &mut Dice| {
        let sizes: Vec<usize> = (0..10).map(|_| size(dice)).collect();
        drop(client.append("queue", &sizes, false));
    };
    let fill = |dice: &mut Dice| drop(client.append("fill", &mixed(dice), false));
    let work = |_: &mut Dice| {
        for job in client.claim("queue", 10).unwrap_or_default() {
            let _ = client.nack("queue", job);
        }
    };
    together(client, dice, refusals, &[&work, &produce, &fill]);
}
