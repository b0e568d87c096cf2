//! Real power cuts: an ext4 on a loop device loses un-synced data, including its journal, while a
//! process writes.

use std::io::Read;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use topics_engine::{ConfigPatch, Durability, Options};

use super::audit::audit;
use super::child::{Mode, Task, open};
use super::client::{Client, Journal};
use super::event::Event;
use super::judge::{Figures, Judge};
use super::mount::Mounted;
use super::process::{Action, Child};
use super::scenario::{Scale, Scenario};
use crate::run::Dice;

/// The size of the image, a sparse file.
const IMAGE: u64 = 512 << 20;

/// Cuts of one file system: each open recovers from the state after all earlier cuts.
pub const CUTS_OF_A_DISK: u64 = 20;

/// Topics of class `fsync` must survive; those of class `disk` are the control group.
const TOPICS: [(&str, Durability); 4] = [
    ("fsync-a", Durability::Fsync),
    ("disk-a", Durability::Disk),
    ("fsync-b", Durability::Fsync),
    ("disk-b", Durability::Disk),
];

/// Several shards, so that a sync of one topic does not cover all; small files and frequent
/// checkpoints, so that cuts meet every step of them.
fn options() -> Options {
    Options {
        wal_shards: 4,
        wal_file_min: 64 << 10,
        wal_file_max: 1 << 20,
        checkpoint_bytes: 1 << 20,
        checkpoint_interval: Duration::from_millis(300),
        segment_max_events: 2000,
        sync_interval: Duration::from_secs(1),
        ..Options::default()
    }
}

/// Whether this machine supports the suite; if not, the reason.
pub fn possible() -> Result<(), String> {
    let disk = Mounted::ext4(32 << 20)?;
    disk.shut_down()?;
    disk.mount_again()
}

/// The child: opens, audits, then writes until it is killed. Without rounds it only audits.
#[must_use]
pub fn child(task: &Task) -> ExitCode {
    let journal = Arc::new(Journal::new(task.life));
    let Some(client) = open(task, &journal, options()) else { return ExitCode::FAILURE };
    audit(&client, &format!("of-life-{}", task.life), false);
    if task.scale.rounds > 0 {
        if let Err(e) = write(task, &client) {
            journal.problem(format!("set-up: {e}"));
        }
        // The parent ends this process; it also ends when the parent has died.
        let _ = std::io::stdin().read(&mut [0]);
    }
    if let Err(e) = client.engine.close() {
        journal.problem(format!("close: {e}"));
    }
    ExitCode::SUCCESS
}

fn write(task: &Task, client: &Client) -> topics_engine::Result<()> {
    if task.life == 1 {
        for (topic, class) in TOPICS {
            let config = ConfigPatch { durability: Some(class), ..ConfigPatch::default() };
            client.create(topic, &config)?;
        }
        client.engine.sync()?;
    }
    client.journal.note(WORKS);
    let mut dice = task.dice();
    thread::scope(|scope| {
        for (topic, class) in TOPICS {
            let mut dice = Dice::new(dice.roll());
            scope.spawn(move || {
                let writes = || {
                    let sizes: Vec<usize> =
                        (0..1 + dice.below(12)).map(|_| 20 + dice.below(400) as usize).collect();
                    let sync = class == Durability::Disk && dice.below(40) == 0;
                    client.append(topic, &sizes, sync).is_ok()
                };
                // The file system fails every write after the cut.
                std::iter::repeat_with(writes).take_while(|ok| *ok).for_each(drop);
            });
        }
    });
    Ok(())
}

const WORKS: &str = "works";

/// Cuts the power `cuts` times, at most [`CUTS_OF_A_DISK`], over one file system.
pub fn run(seed: u64, cuts: u64) -> Judge {
    let mut judge = Judge::default();
    if let Err(e) = lives(seed, cuts, &mut judge) {
        judge.problem(e);
    }
    judge
}

fn lives(seed: u64, cuts: u64, judge: &mut Judge) -> Result<(), String> {
    let disk = Mounted::ext4(IMAGE)?;
    let mut dice = Dice::new(seed);
    let task = |life: u64, rounds: u64| Task {
        mode: Mode::Power,
        scenario: Scenario::Appends,
        dir: disk.disk().join("data"),
        seed,
        life,
        dropped: false,
        scale: Scale { refusals: 0, rounds },
    };
    for life in 1..=cuts {
        let mut acks = 20 + dice.below(600);
        let mut works = false;
        let mut cut = None;
        Child::start(&task(life, 1))?.follow(judge, |event| {
            works |= *event == Event::Note(WORKS.into());
            if !works || !matches!(event, Event::Acked { .. }) {
                return Action::Follow;
            }
            acks = acks.saturating_sub(1);
            if acks > 0 || cut.is_some() {
                return Action::Follow;
            }
            let done = disk.shut_down();
            let at = done.as_ref().map_or(0, |at| *at);
            cut = Some(done);
            Action::Cut(at)
        });
        match cut {
            None => return Err(format!("life {life} wrote too little to be cut")),
            Some(done) => drop(done?),
        }
        disk.mount_again()?;
    }
    Child::start(&task(cuts + 1, 0))?.follow(judge, |_| Action::Follow);
    Ok(())
}

/// Adds the figures of several file systems.
#[must_use]
pub fn sum(a: Figures, b: Figures) -> Figures {
    Figures {
        acked: a.acked + b.acked,
        synced: a.synced + b.synced,
        refused: a.refused + b.refused,
        read: a.read + b.read,
        lost: a.lost + b.lost,
        tails: a.tails + b.tails,
    }
}
