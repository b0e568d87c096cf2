//! The leader of a group commit: takes staged batches, writes one group, publishes the outcome.

use std::sync::Arc;

use topics_env::WriteSyncError;

use super::effects::{Effect, QueuedBatch, Unsynced, WrittenBatch};
use super::group::{BuiltGroup, build};
use super::shard::{Guard, Shard};
use super::state::State;
use super::{Level, WalFile};
use crate::StorageError;

/// Maximum bytes of batches in one group, unless a single batch is larger.
const GROUP_BYTES: usize = 4 << 20;

/// Unsynced bytes from which a sync is requested before the timer fires: a rotation has to sync the
/// rest of its file, which must stay small.
const SYNC_AHEAD: u64 = 4 << 20;

/// A group on its way to the file.
struct GroupWrite {
    taken: Vec<QueuedBatch>,
    file: Arc<WalFile>,
    offset: u64,
    /// Whether the sync is linked to the write; the syncing flag is set then.
    linked: bool,
}

/// A group that is in the file.
struct WrittenGroup {
    group: Arc<Vec<u8>>,
    built: BuiltGroup,
    /// Where it begins in the file.
    offset: u32,
    /// How long a linked write took.
    took: u64,
}

/// Why a group was not committed.
enum GroupError {
    /// It could not be built.
    Build(StorageError),
    /// It was not written, or only in part.
    Write(StorageError),
    /// It was written, the linked sync failed.
    Sync(StorageError),
}

impl Shard {
    /// Leads one group. `own` is the ticket and level that the caller itself waits for: if it needs a
    /// sync and none is in flight, the write may be linked to one.
    pub fn lead_group<'a>(&'a self, mut st: Guard<'a>, own: Option<(u64, Level)>) -> Guard<'a> {
        st.flags.leading = true;
        st.worker.lead_wanted = false;
        if st.progress.failure_waits() {
            st = self.finish_file(st);
        }
        while st.needs_rotation() {
            let need = st.needed();
            let (guard, moved) = self.rotate(st, need);
            st = guard;
            match moved {
                Ok(()) => break,
                Err(e) => st = self.fail_unwritable(st, &e),
            }
        }
        let taken = st.take(GROUP_BYTES);
        let (Some(file), false) = (st.current.file.clone(), taken.is_empty()) else {
            st.flags.leading = false;
            return self.drain_effects(st);
        };
        let linked = self.should_link_sync(&st, &taken, own);
        st.flags.syncing |= linked;
        let mut write = GroupWrite { taken, file, offset: st.current.offset, linked };
        st = self.write(st, &mut write);
        if !self.background() && st.wants_file() {
            st = self.prepare(st);
        }
        st
    }

    /// Whether to link the group's write to a sync: the backend is faster with it, no sync is in flight,
    /// the leader needs one, and no other caller waits. A linked pair saves a single caller one system call; with
    /// several callers it would delay the next group, which is written while a separate sync runs.
    pub(super) fn should_link_sync(
        &self,
        st: &State,
        taken: &[QueuedBatch],
        own: Option<(u64, Level)>,
    ) -> bool {
        let Some((n, Level::Synced)) = own else { return false };
        let alone = !st.flags.syncing
            && st.progress.outcomes.waiters.is_empty()
            && st.staged.batches.is_empty();
        self.shared.linked && alone && taken.len() == 1 && taken.last().is_some_and(|q| n <= q.n)
    }

    /// No next log file is available. Fails the first batch, every other batch that fits into no
    /// existing file, and every later batch of the same topics, because their seqs follow from the
    /// failed ones. Batches of other topics continue: they may free space.
    pub(super) fn fail_unwritable<'a>(
        &'a self,
        mut st: Guard<'a>,
        error: &StorageError,
    ) -> Guard<'a> {
        if st.poisoned.is_some() {
            st.flags.leading = false;
            st = self.poison(st, Vec::new(), error);
            st.flags.leading = true;
            return st;
        }
        let first: Vec<QueuedBatch> = st.staged.batches.pop_front().into_iter().collect();
        let [ordinary, freeing] = [false, true].map(|frees| st.largest_writable(frees));
        let largest = |q: &QueuedBatch| if q.batch.frees_space { freeing } else { ordinary };
        st.fail(first, |q| q.bytes > largest(q), error);
        st
    }

    fn write<'a>(&'a self, mut st: Guard<'a>, w: &mut GroupWrite) -> Guard<'a> {
        let (lsn, synced) = (st.progress.next_lsn, st.progress.synced_lsn);
        let outcome = self.unlocked(&mut st, || self.write_group(w, lsn, synced));
        if w.linked {
            st.flags.syncing = false;
        }
        st.flags.leading = false;
        if let Some(error) = st.poisoned.clone() {
            // A sync failed meanwhile: nothing of this group is acked, and this leader fails the
            // queue.
            return self.poison(st, std::mem::take(&mut w.taken), &error);
        }
        match outcome {
            Ok(written) => {
                publish(&mut st, w, written);
                self.request_prefault(&st);
                self.drain_effects(st)
            }
            Err(GroupError::Build(e)) => {
                log::error!("shard {}: {e}", self.id);
                st.fail(std::mem::take(&mut w.taken), |_| false, &e);
                self.drain_effects(st)
            }
            Err(GroupError::Write(e @ StorageError::Full { .. })) => {
                // The file may hold a part of the group: the next group goes to the next file.
                st.current.broken = true;
                st.fail(std::mem::take(&mut w.taken), |_| false, &e);
                self.drain_effects(st)
            }
            Err(GroupError::Write(e) | GroupError::Sync(e)) => {
                self.poison(st, std::mem::take(&mut w.taken), &e)
            }
        }
    }

    fn write_group(
        &self,
        w: &mut GroupWrite,
        lsn: u64,
        synced: u64,
    ) -> std::result::Result<WrittenGroup, GroupError> {
        let env = &self.shared.env;
        let mut built =
            build(&mut w.taken, w.file.header.salt, lsn, synced).map_err(GroupError::Build)?;
        let offset = position(w, built.bytes.len())?;
        let mut took = 0;
        if w.linked {
            let started = env.clock.mono_ns();
            env.write_sync("wal.group", &*w.file.file, &built.bytes, w.offset).map_err(
                |e| match e {
                    WriteSyncError::Write(e) => GroupError::Write(io("write", &w.file, e)),
                    WriteSyncError::Sync(e) => GroupError::Sync(io("sync", &w.file, e)),
                },
            )?;
            took = env.clock.mono_ns().saturating_sub(started);
            self.shared.check_lock().map_err(GroupError::Sync)?;
        } else {
            let done = w.file.file.write_all_at(&built.bytes, w.offset);
            done.map_err(|e| GroupError::Write(io("write", &w.file, e)))?;
        }
        let group = Arc::new(std::mem::take(&mut built.bytes));
        self.cache.write().push(w.file.key, offset, group.clone());
        Ok(WrittenGroup { group, built, offset, took })
    }
}

/// Where a group of `len` bytes begins. Fails if it would end beyond what a position in a file can say.
fn position(w: &GroupWrite, len: usize) -> std::result::Result<u32, GroupError> {
    match (u32::try_from(w.offset), u32::try_from(w.offset + len as u64)) {
        (Ok(offset), Ok(_)) => Ok(offset),
        _ => {
            let detail = format!("{} has no space: its positions have 32 bits", w.file.name);
            Err(GroupError::Build(StorageError::Full { detail }))
        }
    }
}

/// Publishes a written group: moves the positions and queues the commits in order.
fn publish(st: &mut State, w: &mut GroupWrite, written: WrittenGroup) {
    let WrittenGroup { group, built, offset, took } = written;
    st.counters.batches += w.taken.len() as u64;
    for (q, span) in w.taken.drain(..).zip(&built.spans) {
        let p = WrittenBatch {
            commit: q.batch.commit,
            file: w.file.key,
            file_first_lsn: w.file.first_lsn,
            // It is before the end of the group, which has 32 bits.
            offset: offset + span.from as u32,
            first_lsn: span.first_lsn,
            last_lsn: span.last_lsn,
            group: group.clone(),
            range: (span.from, span.to),
            reserved: (q.batch.level == Level::Synced).then_some(q.reserved),
        };
        st.staged.bytes -= q.bytes;
        if p.reserved.is_none() {
            st.staged.release_reserved(q.reserved);
        }
        match q.batch.level {
            Level::Synced => st.progress.unsynced.push_back(Unsynced::Batch(p)),
            Level::Staged | Level::Written => st.progress.effects.push_back(Effect::Apply(p)),
        }
    }
    st.current.sync_used.0 |= !st.progress.unsynced.is_empty() || w.linked;
    st.current.offset = w.offset + group.len() as u64;
    // A batch that waits for a sync has a caller who runs it; without one the thread must.
    st.worker.sync_wanted |=
        st.progress.unsynced.is_empty() && st.current.offset - st.current.sync_offset >= SYNC_AHEAD;
    st.progress.next_lsn = built.next_lsn;
    st.progress.written_ticket = st.staged.before_queue();
    st.progress.effects.push_back(Effect::Written(st.progress.written_ticket));
    st.counters.groups += 1;
    st.counters.frames += built.frames;
    st.counters.bytes += group.len() as u64;
    if w.linked {
        st.counters.syncs.record(took);
        st.current.sync_offset = st.current.offset;
        st.current.start_unsynced = false;
        let (ticket, lsn) = (st.progress.written_ticket, st.progress.written_lsn());
        st.on_synced(ticket, lsn);
    }
}

/// An I/O error of the file that the group is written to.
fn io(what: &str, file: &WalFile, e: std::io::Error) -> StorageError {
    StorageError::io(format!("{what} {}", file.name), e)
}
