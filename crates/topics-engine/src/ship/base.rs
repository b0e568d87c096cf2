//! What a base needs of the rounds, and what is known of the last one.

use std::collections::BTreeMap;

use topics_env::sync::atomic::Ordering;
use topics_remote::format::base::Place;
use topics_storage::format::frame;
use topics_storage::format::record::{Body, TxnCommit};
use topics_storage::snapshot::{Section, SnapshotBody};

use super::{Shipped, Shipper};
use crate::types::error::{Error, Result};

/// The rounds that complete the state of a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Cover {
    /// The first round to replay.
    pub first_round: u64,
    /// The wall time of the cut that makes the state whole.
    pub made_ms: u64,
    /// The staged rows that the snapshot and these rounds need, by the names of their files.
    pub rows: BTreeMap<String, Place>,
    chain: u64,
}

impl Cover {
    /// That of a prefix whose rounds all belong to its base.
    pub(crate) fn of_all_rounds(made_ms: u64, rows: BTreeMap<String, Place>) -> Self {
        Self { first_round: 1, made_ms, rows, chain: 0 }
    }
}

/// The state of continuous backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShipStatus {
    /// Bytes that were logged and are not in a round that counts.
    pub lag_bytes: u64,
    /// Age of the newest state that can be restored, if anything was logged since, ms.
    pub lag_ms: u64,
    /// The time of that state, 0: none since the open.
    pub restorable_ms: u64,
    /// Whether a published base belongs to the rounds.
    pub has_base: bool,
    /// Whether another writer has the prefix, so that nothing is shipped any more.
    pub is_fenced: bool,
    /// Whether the last attempt failed.
    pub has_failed: bool,
}

impl Shipper {
    /// Bytes that are not in a round that counts.
    pub(super) fn lag_bytes(&self) -> u64 {
        let shipped = self.progress.logged.load(Ordering::Relaxed);
        self.store.ctx().wal.counters().bytes.saturating_sub(shipped)
    }

    /// Whether the rounds since the open have a base.
    fn has_base(&self) -> bool {
        let (base, chain) = (&self.progress.base, &self.progress.chain);
        let base = base.load(Ordering::Relaxed);
        base != 0
            && base == chain.load(Ordering::Relaxed)
            && !self.progress.is_broken.load(Ordering::Relaxed)
    }

    /// The state of the backup.
    pub(crate) fn status(&self) -> ShipStatus {
        let progress = &self.progress;
        let (lag_bytes, has_base) = (self.lag_bytes(), self.has_base());
        let restorable_ms = progress.restorable_ms.load(Ordering::Relaxed);
        let since = restorable_ms.max(progress.opened_ms.load(Ordering::Relaxed));
        let lag_ms = match has_base && lag_bytes == 0 {
            true => 0,
            false => self.store.base().time.steady().saturating_sub(since),
        };
        ShipStatus {
            lag_bytes,
            lag_ms,
            restorable_ms,
            has_base,
            is_fenced: progress.is_fenced.load(Ordering::Relaxed),
            has_failed: progress.has_failed.load(Ordering::Relaxed),
        }
    }

    /// Whether a base is due because the rounds have none.
    pub(crate) fn is_base_due(&self) -> bool {
        let progress = &self.progress;
        let is_fenced = progress.is_fenced.load(Ordering::Relaxed);
        progress.chain.load(Ordering::Relaxed) != 0 && !is_fenced && !self.has_base()
    }

    /// Ships until a cut contains all that a snapshot reflects, and the staged rows that its open
    /// decisions need.
    pub(crate) fn cover(&self, snapshot: &SnapshotBody) -> Result<Cover> {
        self.owner.check_usable()?;
        let state = &mut *self.state.lock();
        if !self.ships() {
            // Log files are not held between bases: each begins a chain. That of the last one goes on
            // with the last round.
            self.resolve_sent(state, &mut Shipped::default())?;
            state.chain = None;
        }
        let names = Decisions::of(&snapshot.sections)?.files();
        // What is gone belongs to a transaction whose end is logged: the cut has it.
        self.put_rows(state, &names)?;
        let shipped = self.ship_now(state);
        if !self.ships() && !self.progress.is_closing.load(Ordering::Relaxed) {
            self.release_hold();
        }
        shipped?;
        let replay = replay(snapshot);
        let made_ms = self.store.base().time.steady();
        let chain = state.chain.as_mut().filter(|c| c.covers(&last_lsns(snapshot)));
        let first = chain.and_then(|chain| Some((chain.first_round(&replay)?, chain)));
        let Some((first_round, chain)) = first else {
            let detail = "the rounds do not contain the snapshot yet: the next pass repeats it";
            return Err(Error::StorageUnavailable { reason: "remote", detail: detail.into() });
        };
        chain.forget_below(&replay);
        state.rows.retain(|name, rows| rows.last_round >= first_round || names.contains(name));
        let rows = state.rows.iter().map(|(name, rows)| (name.clone(), rows.place)).collect();
        Ok(Cover { first_round, made_ms, rows, chain: chain.id })
    }

    /// Notes that a base with this cover was published.
    pub(crate) fn base_published(&self, cover: &Cover) {
        let progress = &self.progress;
        progress.base.store(cover.chain, Ordering::Relaxed);
        progress.restorable_ms.fetch_max(cover.made_ms, Ordering::Relaxed);
        if self.has_base() {
            self.owner.chain_whole();
        }
    }
}

/// The replay position of each shard.
pub(crate) fn replay(snapshot: &SnapshotBody) -> BTreeMap<u32, u64> {
    snapshot.shards.iter().map(|s| (s.shard, s.replay_lsn)).collect()
}

/// The last lsn of each shard that the snapshot reflects.
fn last_lsns(snapshot: &SnapshotBody) -> Vec<u64> {
    snapshot.shards.iter().map(|s| s.last_lsn).collect()
}

/// Decisions of transactions that have not ended, and their files of staged rows.
#[derive(Debug, Default)]
pub(crate) struct Decisions {
    open: BTreeMap<(String, u64), Vec<String>>,
}

impl Decisions {
    /// Those of a snapshot.
    pub(crate) fn of(sections: &[Section]) -> Result<Self> {
        let mut out = Self::default();
        for section in sections.iter().filter(|s| s.kind == TXN_SECTION) {
            let mut rest = &section.bytes[..];
            while let Ok((f, len)) = frame::parse(rest) {
                if f.kind == TxnCommit::KIND {
                    out.open(TxnCommit::decode(&f)?);
                }
                rest = &rest[len..];
            }
        }
        // Files that no transaction needs any more are listed without a writer.
        out.open.retain(|(writer, _), _| !writer.is_empty());
        Ok(out)
    }

    /// Adds a decision.
    pub(crate) fn open(&mut self, decision: TxnCommit) {
        let files = decision.files.into_iter().map(|f| f.name).collect();
        self.open.insert((decision.writer, decision.epoch), files);
    }

    /// Removes one that has ended.
    pub(crate) fn ended(&mut self, writer: &str, epoch: u64) {
        self.open.remove(&(writer.to_owned(), epoch));
    }

    /// The names of the files.
    pub(crate) fn files(&self) -> Vec<String> {
        self.open.values().flatten().cloned().collect()
    }
}

/// The section of a snapshot with the transactions, as `txn` writes it.
pub(crate) const TXN_SECTION: u16 = 2;
