//! The operations and their random choice. All parameters of a step are chosen when it is
//! generated, so that any subset of a run's steps is a run.

use super::shortage::Work;
use crate::run::Dice;

/// Ten years, ms.
const YEARS: i64 = 10 * 365 * 86_400_000;

/// One operation. `pick` selects among the objects that exist at that time. `Shards` applies to the
/// next open, whatever comes before it.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Append {
        topic: usize,
        n: usize,
        tag: usize,
    },
    Put {
        n: usize,
        lane: Option<u8>,
        group: usize,
        delay: u64,
        ttl: u64,
    },
    DeleteRecords {
        topic: usize,
        back: u64,
    },
    DropTopic {
        topic: usize,
    },
    Sync,
    Checkpoint,
    Pass {
        ms: u64,
    },
    Configure {
        lease_ms: u64,
        paused: bool,
        max_deliveries: u64,
    },
    Claim {
        node: usize,
        max: usize,
        lease_ms: Option<u64>,
    },
    Ack {
        pick: u64,
        n: usize,
        fenced: bool,
    },
    Nack {
        pick: u64,
        delay: Option<u64>,
    },
    Release {
        pick: u64,
    },
    Extend {
        pick: u64,
        ms: u64,
    },
    Stale {
        pick: u64,
    },
    UseUp {
        node: usize,
    },
    Redrive {
        letters: bool,
        limit: Option<usize>,
    },
    Remove {
        pick: u64,
        n: usize,
        force: bool,
    },
    Promote {
        pick: u64,
        n: usize,
    },
    Peek {
        state: usize,
        max: usize,
    },
    WorkOpen {
        node: usize,
        max: usize,
    },
    WorkNext,
    /// `release`: jobs that were not taken are given back.
    WorkClose {
        release: bool,
    },
    CreateRouter {
        router: usize,
    },
    DeleteRouter {
        router: usize,
    },
    Ticks,
    WatchOpen {
        from: usize,
    },
    WatchNext,
    WatchClose,
    WatchResume,
    ConsumerOpen {
        which: usize,
        end: bool,
    },
    ConsumerRead {
        which: usize,
        max: usize,
    },
    ConsumerPeek {
        which: usize,
        max: usize,
    },
    ConsumerCommit {
        which: usize,
        back: u64,
    },
    ConsumerSeek {
        which: usize,
        to: u64,
    },
    ConsumerSeekTime {
        which: usize,
        back: u64,
    },
    ConsumerClose {
        which: usize,
    },
    ConsumerDelete {
        which: usize,
    },
    Stage {
        writer: usize,
        stage: usize,
        part: u32,
        to: usize,
        n: usize,
        delay: u64,
    },
    Commit {
        writer: usize,
        stages: usize,
        epoch: Epoch,
        query: usize,
        with: With,
    },
    Abort {
        writer: usize,
        stage: usize,
    },
    Transact {
        id: Id,
        to: usize,
        n: usize,
        delay: u64,
        with: With,
    },
    StepWall {
        ms: i64,
    },
    Shards {
        n: u32,
    },
    /// A resource is exhausted during this work.
    Shortage {
        of: Shortage,
        work: Work,
    },
    Reopen,
    Kill,
    Power {
        pick: u64,
    },
}

/// The exhausted resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shortage {
    /// Space for a log file, or for more of one.
    NextFile,
    /// A descriptor for a new file.
    Descriptors,
    /// Space for the nth write to the log.
    Group(usize),
    /// Any space beyond this number of bytes.
    Space(u64),
}

/// The epoch that a commit names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Epoch {
    Next,
    Same,
    Older,
    Jump,
}

/// The identity of a transaction in one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Id {
    Nobody,
    /// `None`: the epoch after the last.
    Writer(usize, Option<Epoch>),
    /// Under an idempotency key: the same request again, or another.
    Key(usize, bool),
}

/// The other effects of a transaction, and its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct With {
    pub head: bool,
    pub acks: Option<u64>,
    pub cursor: Option<(usize, u64)>,
    pub wrong: Wrong,
}

/// The only reason for refusing a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Wrong {
    #[default]
    Nothing,
    Head,
    Lease,
    Consumer,
    /// The number of staged rows.
    Count,
}

impl Step {
    /// The kind of operation.
    #[must_use]
    pub fn kind(&self) -> String {
        let text = format!("{self:?}");
        text.split([' ', '{']).next().unwrap_or_default().to_owned()
    }
}

/// The steps of a run.
#[must_use]
pub fn steps(seed: u64, most: usize) -> Vec<Step> {
    let mut d = Dice::new(seed);
    let n = 4 + d.below(most as u64 - 3) as usize;
    // A run exercises jobs, or copies and readers, or transactions, or all of them.
    let (jobs, readers, txns) =
        [(25, 25, 22), (72, 0, 0), (0, 72, 0), (15, 12, 45), (36, 0, 36)][d.below(5) as usize];
    (0..n)
        .map(|_| match d.below(jobs + readers + txns + 16) {
            x if x < jobs => job(&mut d),
            x if x < jobs + readers => reader(&mut d),
            x if x < jobs + readers + txns => txn(&mut d),
            _ => common(&mut d),
        })
        .collect()
}

fn common(d: &mut Dice) -> Step {
    match d.below(18) {
        14..16 => Step::Shards { n: 1 + d.below(3) as u32 },
        16.. => shortage(d),
        0..2 => Step::Sync,
        2..5 => Step::Checkpoint,
        5..7 => Step::Reopen,
        7..9 => Step::Kill,
        9..11 => Step::Power { pick: d.roll() },
        11 => Step::Ticks,
        12 => Step::StepWall {
            ms: match d.below(4) {
                0 => YEARS,
                1 => -YEARS,
                2 => [3_600_000, -3_600_000, 7_200_000, -7_200_000][d.below(4) as usize],
                _ => d.below(40_000) as i64 - 20_000,
            },
        },
        _ => Step::Pass { ms: d.below(15_000) },
    }
}

fn shortage(d: &mut Dice) -> Step {
    let of = match d.below(5) {
        0..2 => Shortage::NextFile,
        2 => Shortage::Descriptors,
        3 => Shortage::Group(1 + d.below(4) as usize),
        _ => Shortage::Space(d.below(5) * 4096),
    };
    let (topic, writes, to) = (d.below(2) as usize, d.below(4) as usize, d.below(8) as usize);
    Step::Shortage { of, work: Work { topic, writes, size: *d.pick(&[10, 400, 3_000, 9_000]), to } }
}

fn job(d: &mut Dice) -> Step {
    let some = |d: &mut Dice, n: u64| (d.below(3) == 0).then(|| d.below(n));
    match d.below(52) {
        48..50 => {
            Step::Remove { pick: d.roll(), n: 1 + d.below(3) as usize, force: d.below(2) == 0 }
        }
        50..52 => Step::Promote { pick: d.roll(), n: 1 + d.below(3) as usize },
        44..47 => Step::UseUp { node: d.below(3) as usize },
        47 => Step::Redrive { letters: true, limit: None },
        40..42 => Step::WorkNext,
        42 => Step::WorkOpen { node: d.below(3) as usize, max: 1 + d.below(3) as usize },
        43 => Step::WorkClose { release: d.below(2) == 0 },
        0..9 => Step::Put {
            n: 1 + d.below(4) as usize,
            lane: some(d, 10).map(|l| l as u8),
            group: [0, 0, 1, 2][d.below(4) as usize],
            delay: [0, 0, 0, 700, 5_000][d.below(5) as usize],
            ttl: [0, 0, 0, 0, 2_000, 9_000][d.below(6) as usize],
        },
        9..18 => Step::Claim {
            node: d.below(3) as usize,
            max: 1 + d.below(5) as usize,
            lease_ms: some(d, 20_000),
        },
        18..23 => Step::Ack { pick: d.roll(), n: 1 + d.below(3) as usize, fenced: d.below(2) == 0 },
        23..26 => Step::Nack { pick: d.roll(), delay: some(d, 4_000) },
        26 => Step::Release { pick: d.roll() },
        27..29 => Step::Extend { pick: d.roll(), ms: 100 + d.below(30_000) },
        29..31 => Step::Stale { pick: d.roll() },
        31..33 => Step::Redrive { letters: d.below(3) > 0, limit: some(d, 4).map(|n| n as usize) },
        33 => Step::Peek { state: d.below(4) as usize, max: d.below(5) as usize },
        34..36 => Step::Configure {
            lease_ms: 500 + d.below(30_000),
            paused: d.below(4) == 0,
            max_deliveries: d.below(4),
        },
        _ => Step::Pass { ms: [20, 800, 3_000, 12_000][d.below(4) as usize] },
    }
}

fn reader(d: &mut Dice) -> Step {
    let (topic, router) = (d.below(2) as usize, d.below(2) as usize);
    let which = d.below(4) as usize;
    match d.below(52) {
        50..52 => Step::ConsumerSeekTime { which, back: d.below(20_000) },
        0..10 => Step::Append { topic, n: 1 + d.below(4) as usize, tag: d.below(3) as usize },
        10..12 => Step::DeleteRecords { topic, back: d.below(6) },
        12 => Step::DropTopic { topic },
        13..17 => Step::CreateRouter { router },
        17 => Step::DeleteRouter { router },
        18..24 => Step::Ticks,
        24..26 => Step::WatchOpen { from: d.below(3) as usize },
        26..30 => Step::WatchNext,
        30 => Step::WatchClose,
        31..33 => Step::WatchResume,
        33..36 => Step::ConsumerOpen { which, end: d.below(3) == 0 },
        36..41 => Step::ConsumerRead { which, max: 1 + d.below(5) as usize },
        41 => Step::ConsumerPeek { which, max: 1 + d.below(5) as usize },
        42..44 => Step::ConsumerCommit { which, back: d.below(5) },
        44..46 => Step::ConsumerSeek { which, to: d.below(8) },
        46 => Step::ConsumerClose { which },
        47 => Step::ConsumerDelete { which },
        _ => Step::Pass { ms: [20, 1_500][d.below(2) as usize] },
    }
}

fn txn(d: &mut Dice) -> Step {
    let (writer, stage) = (d.below(2) as usize, d.below(2) as usize);
    let delay = [0, 0, 700][d.below(3) as usize];
    match d.below(32) {
        0..9 => Step::Stage {
            writer,
            stage,
            part: [0, 0, 1, 1, 2][d.below(5) as usize],
            to: 1 + d.below(7) as usize,
            n: 1 + d.below(2) as usize,
            delay,
        },
        9..15 => {
            let (stages, epoch) = (d.below(4) as usize, epoch(d));
            let query = [0, 1, 1, 1, 1, 2][d.below(6) as usize];
            Step::Commit { writer, stages, epoch, query, with: with(d) }
        }
        15 => Step::Abort { writer, stage },
        16..28 => Step::Transact {
            id: match d.below(6) {
                0..2 => Id::Nobody,
                2..4 => Id::Writer(writer, (d.below(3) > 0).then(|| epoch(d))),
                _ => Id::Key(writer, d.below(3) > 0),
            },
            to: d.below(8) as usize,
            n: 1 + d.below(3) as usize,
            delay,
            with: with(d),
        },
        28 => Step::Append { topic: 0, n: 1, tag: d.below(3) as usize },
        29 => Step::Ticks,
        _ => Step::Pass { ms: [800, 70_000, 130_000][d.below(3) as usize] },
    }
}

fn epoch(d: &mut Dice) -> Epoch {
    [Epoch::Next, Epoch::Next, Epoch::Next, Epoch::Same, Epoch::Same, Epoch::Older, Epoch::Jump]
        [d.below(7) as usize]
}

fn with(d: &mut Dice) -> With {
    let some = |d: &mut Dice| d.below(2) == 0;
    With {
        head: d.below(3) == 0,
        acks: some(d).then(|| d.roll()),
        cursor: some(d).then(|| (d.below(4) as usize, d.below(4))),
        wrong: match d.below(16) {
            0 => Wrong::Head,
            1 => Wrong::Lease,
            2 => Wrong::Consumer,
            3 => Wrong::Count,
            _ => Wrong::Nothing,
        },
    }
}
