//! Continuous backup: the log of every shard is shipped in rounds.
//!
//! | module | purpose |
//! |---|---|
//! | `owner` | the owner of the prefix, shared with the archive |
//! | `chain` | where the next round begins, and what it holds |
//! | `base` | what a base needs of the rounds |
//! | `limits` | when a chain is broken so that its log files can be removed |
//! | `thread` | the thread that ships |
//!
//! A round takes a consistent cut, syncs what it contains, reads it from the log files and puts it in
//! one object. No other work waits for it: what the store's silence would cost is bounded by `limits`,
//! which take no lock that is held during a request.

mod base;
mod chain;
mod limits;
pub(crate) mod owner;
#[cfg(test)]
pub(crate) mod tests;
mod thread;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use topics_remote::RemoteError;
use topics_remote::format::base::Place;
use topics_remote::format::pack::{PackEntry, PackWriter};
use topics_remote::format::round::{RoundRows, RoundWriter};
use topics_remote::format::sealed::ObjectKind;
use topics_remote::writer::RemoteWriter;
use topics_storage::dir::{Paths, read_file};

pub use self::base::ShipStatus;
pub(crate) use self::base::{Cover, Decisions, replay};
pub(crate) use self::chain::LogView;
use self::chain::{Built, Chain, Target};
use self::owner::{PrefixOwner, User, remote_error};
use self::thread::ShipThread;
use crate::checkpoint::Store;
use crate::tier::ArchivedPack;
use crate::types::error::{Error, Result};

/// The outcome of a call that ships.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shipped {
    /// Rounds that count.
    pub rounds: u64,
    /// Bytes of the log in them.
    pub bytes: u64,
}

/// A round that was sent, and whose outcome may be unknown.
struct Sent {
    built: Built,
    target: Target,
    /// The chain that it continues.
    chain: u64,
    number: u64,
}

/// A file of staged rows in a pack.
#[derive(Clone, Copy, Debug)]
struct PutRows {
    place: Place,
    /// The last round whose decisions name it, 0: none.
    last_round: u64,
}

#[derive(Default)]
struct ShipState {
    chain: Option<Chain>,
    sent: Option<Sent>,
    /// Files of staged rows in packs, by name.
    rows: BTreeMap<String, PutRows>,
    last_chain: u64,
}

/// What other threads read while a request is in progress.
#[derive(Debug, Default)]
struct Progress {
    /// Whether log files are held for a chain.
    is_holding: AtomicBool,
    /// The next base is the last one: log files are held from it on.
    is_closing: AtomicBool,
    /// The chain was broken: the next round begins another one.
    is_broken: AtomicBool,
    /// Another writer has the prefix.
    is_fenced: AtomicBool,
    /// The last round failed.
    has_failed: AtomicBool,
    /// Bytes logged before the last cut that counts.
    logged: AtomicU64,
    /// The chain that a published base belongs to, 0: none.
    base: AtomicU64,
    /// The chain of the last round, 0: none.
    chain: AtomicU64,
    /// The wall time of the last cut that can be restored, 0: none.
    restorable_ms: AtomicU64,
    /// When the engine was opened, wall time.
    opened_ms: AtomicU64,
}

/// Ships a log up to a cut, as the first rounds of a prefix. `replay` are the replay positions of the snapshot
/// that they are to complete, `rows` the staged rows that decisions may name. Returns how many rounds, and
/// their bytes of the log.
pub(crate) fn ship_cut(
    writer: &mut RemoteWriter,
    log: &LogView,
    (cut, at_ms): (Vec<u64>, u64),
    replay: &BTreeMap<u32, u64>,
    rows: &BTreeMap<String, Place>,
) -> Result<Shipped> {
    let mut chain = Chain::begin(log, replay, 1)?;
    let target = Target { cut, at_ms, logged: 0 };
    let mut out = Shipped::default();
    loop {
        let header = writer.header(ObjectKind::Round);
        let mut built = chain.build(log, header, &target)?;
        let named = built.stages.iter().filter_map(|name| Some((name.clone(), *rows.get(name)?)));
        named.for_each(|(name, place)| built.round.push_rows(RoundRows { name, place }));
        if built.complete {
            built.round.complete(at_ms);
        }
        let round = std::mem::replace(&mut built.round, RoundWriter::new(header, 0));
        let number = writer.ship(round.finish()).map_err(remote_error)?;
        chain.advance(&built, number);
        (out.rounds, out.bytes) = (out.rounds + 1, out.bytes + built.bytes);
        if built.complete {
            return Ok(out);
        }
    }
}

/// Ships the log of a store.
pub(crate) struct Shipper {
    store: Arc<Store>,
    owner: Arc<PrefixOwner>,
    state: Mutex<ShipState>,
    progress: Progress,
    thread: ShipThread,
}

impl fmt::Debug for Shipper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shipper").field("progress", &self.progress).finish_non_exhaustive()
    }
}

impl Shipper {
    /// The shipper of a store with a remote.
    pub(crate) fn new(store: &Arc<Store>, owner: Option<&Arc<PrefixOwner>>) -> Option<Arc<Self>> {
        let owner = owner?.clone();
        let progress = Progress::default();
        progress.opened_ms.store(store.base().time.steady(), Ordering::Relaxed);
        let (state, thread) = (Mutex::default(), ShipThread::default());
        Some(Arc::new(Self { store: store.clone(), owner, state, progress, thread }))
    }

    /// Whether rounds are shipped between bases.
    pub(crate) fn ships(&self) -> bool {
        !self.owner.remote.limits.interval.is_zero()
    }

    /// Whether the prefix refuses the directory, which is logged already.
    pub(crate) fn is_refused(&self) -> bool {
        self.owner.is_refused()
    }

    /// How many rounds were shipped since the open.
    pub(crate) fn shipped_rounds(&self) -> u64 {
        self.store.base().metrics.ship_rounds.get()
    }

    /// Ships everything that was logged before the call.
    pub(crate) fn ship(&self) -> Result<Shipped> {
        self.owner.check_usable()?;
        self.ship_now(&mut self.state.lock())
    }

    fn ship_now(&self, state: &mut ShipState) -> Result<Shipped> {
        let shipped = self.rounds(state);
        let shipped = self.owner.noted(User::Ship, shipped);
        let progress = &self.progress;
        progress.has_failed.store(shipped.is_err(), Ordering::Relaxed);
        if shipped.is_err() && progress.is_fenced.load(Ordering::Relaxed) {
            state.chain = None;
            self.release_hold();
        }
        shipped
    }

    fn rounds(&self, state: &mut ShipState) -> Result<Shipped> {
        let mut out = Shipped::default();
        self.resolve_sent(state, &mut out)?;
        let wanted = self.store.ctx().wal.cut();
        loop {
            if self.progress.is_broken.swap(false, Ordering::AcqRel) {
                state.chain = None;
            }
            if state.chain.is_none() {
                self.begin(state)?;
            }
            let Some(chain) = &mut state.chain else { return Ok(out) };
            if chain.covers(&wanted) && chain.target.is_none() && chain.is_whole {
                return Ok(out);
            }
            let target = chain.target.get_or_insert_with(|| Target::now(self.store.ctx())).clone();
            self.sync(&target)?;
            if let Err(e) = self.round(state, target) {
                self.forget_unreadable(state, &e);
                return Err(e);
            }
            self.resolve_sent(state, &mut out)?;
        }
    }

    /// Begins a chain with the log that the newest snapshot needs.
    fn begin(&self, state: &mut ShipState) -> Result<()> {
        let (store, progress) = (&self.store, &self.progress);
        if !store.ctx().wal.has_begun() {
            return Err(store.ctx().wal.not_begun().into());
        }
        // The prefix answers before anything is held for it.
        self.send(|writer| writer.confirm().map(|()| 0))?;
        (0..store.ctx().wal.shards()).for_each(|s| store.ctx().wal.hold(s, 0));
        let replay = store.disk.checkpoints.newest_replay();
        for shard in 0..store.ctx().wal.shards() {
            store.ctx().wal.hold(shard, replay.get(&(shard as u32)).copied().unwrap_or(0));
        }
        state.last_chain += 1;
        match Chain::begin(&LogView::now(store.ctx()), &replay, state.last_chain) {
            Ok(chain) => state.chain = Some(chain),
            Err(e) => {
                store.ctx().wal.release_holds();
                return Err(e);
            }
        }
        progress.logged.store(store.ctx().wal.counters().bytes, Ordering::Relaxed);
        progress.chain.store(state.last_chain, Ordering::Relaxed);
        progress.is_holding.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits until the cut is durable: what is not could be missing after a power cut, and then the
    /// rounds would hold records that the directory lost.
    fn sync(&self, target: &Target) -> Result<()> {
        for (shard, last) in target.cut.iter().enumerate() {
            let is_synced = self.store.ctx().wal.positions(shard).synced >= *last;
            if !self.store.base().env.check("ship.synced", is_synced) {
                self.store.ctx().wal.sync(shard)?;
            }
        }
        Ok(())
    }

    /// Builds the next round and sends it.
    fn round(&self, state: &mut ShipState, target: Target) -> Result<()> {
        let store = &self.store;
        let Some(chain) = &state.chain else { return Ok(()) };
        let id = chain.id;
        let header = self.owner.with(|w| Ok(w.header(ObjectKind::Round)))?;
        let mut built = chain.build(&LogView::now(store.ctx()), header, &target)?;
        if !self.put_rows(state, &built.stages)? {
            // The end of the decision is logged, maybe above this cut: the next cut has it.
            built.complete = false;
            state.chain.iter_mut().for_each(|chain| chain.target = None);
        }
        for name in &built.stages {
            if let Some(rows) = state.rows.get_mut(name) {
                rows.last_round = header.number;
                built.round.push_rows(RoundRows { name: name.clone(), place: rows.place });
            }
        }
        if built.complete {
            built.round.complete(target.at_ms);
        }
        let round = std::mem::replace(&mut built.round, RoundWriter::new(header, 0));
        state.sent = Some(Sent { built, target, chain: id, number: header.number });
        self.send(|writer| writer.ship(round.finish()))
    }

    fn send(
        &self,
        request: impl FnOnce(&mut RemoteWriter) -> topics_remote::Result<u64>,
    ) -> Result<()> {
        self.owner.with(|writer| {
            request(writer).map(drop).map_err(|e| {
                if matches!(e, RemoteError::Fenced { .. }) {
                    self.progress.is_fenced.store(true, Ordering::Relaxed);
                }
                remote_error(e)
            })
        })
    }

    /// Finds out whether the round that was sent counts; repeats it if need be.
    fn resolve_sent(&self, state: &mut ShipState, out: &mut Shipped) -> Result<()> {
        let Some(sent) = &state.sent else { return Ok(()) };
        self.send(RemoteWriter::ship_pending)?;
        let number = self.owner.with(|w| Ok(w.shipped()))?;
        if number != sent.number {
            return Err(Error::Internal(format!("round {} was not sent", sent.number)));
        }
        out.rounds += 1;
        out.bytes += sent.built.bytes;
        let progress = &self.progress;
        self.store.base().metrics.ship_rounds.add(1);
        self.store.base().metrics.ship_bytes.add(sent.built.bytes);
        if let Some(chain) = state.chain.as_mut().filter(|c| c.id == sent.chain) {
            let shipped = chain.advance(&sent.built, number);
            for (shard, lsn) in shipped.into_iter().enumerate() {
                self.raise_hold(shard, lsn);
            }
            if sent.built.complete {
                chain.target = None;
                progress.logged.store(sent.target.logged, Ordering::Relaxed);
                if progress.base.load(Ordering::Relaxed) == chain.id {
                    progress.restorable_ms.store(sent.target.at_ms, Ordering::Relaxed);
                }
            }
        }
        state.sent = None;
        Ok(())
    }

    /// Puts files of staged rows that no pack has, as few packs as hold them. Returns false if one is
    /// gone, because its transaction has ended.
    fn put_rows(&self, state: &mut ShipState, names: &[String]) -> Result<bool> {
        let (paths, mut all) = (Paths::new(&self.store.base().dir), true);
        let missing: BTreeSet<&String> =
            names.iter().filter(|name| !state.rows.contains_key(*name)).collect();
        let mut pack: Option<PackWriter> = None;
        for name in missing {
            let Some(rows) = read_file(&self.store.base().env, &paths.txn().join(name), u64::MAX)?
            else {
                all = false;
                continue;
            };
            let bytes = rows.len() as u64;
            let is_full = |pack: &mut PackWriter| {
                pack.is_full() || pack.len() as u64 + bytes > self.owner.remote.limits.pack_bytes
            };
            if let Some(full) = pack.take_if(is_full) {
                self.put_pack_of_rows(state, full)?;
            }
            let to = match &mut pack {
                Some(pack) => pack,
                None => pack.insert(PackWriter::new(self.owner.next_pack()?, rows.len())),
            };
            to.push_rows(name, &rows).map_err(remote_error)?;
        }
        pack.map_or(Ok(()), |pack| self.put_pack_of_rows(state, pack))?;
        Ok(all)
    }

    fn put_pack_of_rows(&self, state: &mut ShipState, pack: PackWriter) -> Result<()> {
        let put = self.owner.packs()?.put_verified(pack);
        let (object, directory) = put.map_err(remote_error)?;
        let archived = ArchivedPack::of(&object, &directory);
        for entry in &directory.entries {
            if let PackEntry::Rows { name, part } = entry {
                let rows = PutRows { place: archived.place(part), last_round: 0 };
                state.rows.insert(name.clone(), rows);
            }
        }
        Ok(())
    }

    /// Ends a chain whose log cannot be read.
    fn forget_unreadable(&self, state: &mut ShipState, e: &Error) {
        if matches!(e, Error::Corrupt { .. }) {
            self.break_chain(&format!("the log cannot be read: {e}"));
            state.chain = None;
        }
    }
}
