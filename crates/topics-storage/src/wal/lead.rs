//! What a leader does: takes what is staged, writes one group, applies it.

use std::sync::Arc;

use parking_lot::MutexGuard;
use topics_env::WriteSyncError;

use super::shard::{Queued, Shard, State, Unsynced};
use super::{Level, Placed, WalFile};
use crate::StorageError;
use crate::format::frame;
use crate::format::record::Group;

/// Bytes of batches that one group takes, unless one batch is larger.
const GROUP_BYTES: usize = 4 << 20;

/// A group ready to be written.
struct Built {
    bytes: Vec<u8>,
    /// Per batch: range in `bytes`, first and last lsn.
    batches: Vec<(usize, usize, u64, u64)>,
    frames: u64,
    next_lsn: u64,
}

impl Shard {
    /// Leads one group. `own` is what the caller itself waits for: if that is a sync and none is in
    /// flight, the write is linked to it.
    pub fn lead<'a>(
        &'a self,
        mut st: MutexGuard<'a, State>,
        own: Option<(u64, Level)>,
    ) -> MutexGuard<'a, State> {
        st.leading = true;
        let taken = take(&mut st);
        if taken.is_empty() {
            st.leading = false;
            self.changed.notify_all();
            return st;
        }
        let bytes: usize = taken.iter().map(|q| q.batch.bytes()).sum();
        if st.broken || st.offset + (bytes + Group::FRAME_LEN) as u64 > st.capacity {
            let (guard, moved) = self.succeed(st, (bytes + Group::FRAME_LEN) as u64);
            st = guard;
            if let Err(e) = moved {
                return self.refuse(st, taken, &e);
            }
        }
        let Some(file) = st.file.clone() else {
            return self.refuse(st, taken, &StorageError::Closed);
        };
        let (offset, lsn, synced) = (st.offset, st.next_lsn, st.synced_lsn);
        let linked = matches!(own, Some((n, Level::Synced)) if taken.last().is_some_and(|q| n <= q.n))
            && !st.syncing
            && st.unsynced.is_empty();
        st.syncing |= linked;
        drop(st);
        let built = build(&taken, file.header.salt, lsn, synced);
        let started = self.shared.env.clock.mono_ns();
        let outcome = if linked {
            self.shared.env.write_sync("wal.group", &*file.file, &built.bytes, offset)
        } else {
            file.file.write_all_at(&built.bytes, offset).map_err(WriteSyncError::Write)
        };
        match outcome {
            Ok(()) => self.written(taken, built, &file, offset, linked.then_some(started)),
            Err(WriteSyncError::Write(e)) => {
                let error = StorageError::io(format!("write {}", file.name), e);
                let mut st = self.state.lock();
                st.syncing &= !linked;
                self.refuse(st, taken, &error)
            }
            Err(WriteSyncError::Sync(e)) => {
                let error = StorageError::io(format!("sync {}", file.name), e);
                let mut st = self.state.lock();
                st.syncing = false;
                self.refuse(st, taken, &StorageError::Poisoned { detail: error.to_string() })
            }
        }
    }

    /// The group's write has returned: apply, publish positions, wake.
    fn written(
        &self,
        taken: Vec<Queued>,
        built: Built,
        file: &Arc<WalFile>,
        offset: u64,
        synced_since: Option<u64>,
    ) -> MutexGuard<'_, State> {
        let group = Arc::new(built.bytes);
        let offset32 = offset as u32;
        self.cache.write().push(file.key, offset32, group.clone());
        let last_ticket = taken.last().map_or(0, |q| q.n);
        let mut waiting = Vec::new();
        for (q, &(from, to, first_lsn, last_lsn)) in taken.iter().zip(&built.batches) {
            if q.batch.level == Level::Synced && synced_since.is_none() {
                waiting.push(Unsynced {
                    file: file.key,
                    file_first_lsn: file.first_lsn,
                    offset: offset32 + from as u32,
                    first_lsn,
                    last_lsn,
                    group: group.clone(),
                    range: (from, to),
                    commit: q.batch.commit.clone(),
                });
                continue;
            }
            q.batch.commit.apply(&Placed {
                shard: self.id,
                file: file.key,
                offset: offset32 + from as u32,
                first_lsn,
                file_first_lsn: file.first_lsn,
                bytes: &group[from..to],
            });
        }
        let mut st = self.state.lock();
        st.unsynced.extend(waiting);
        st.offset = offset + group.len() as u64;
        st.next_lsn = built.next_lsn;
        st.applied_lsn = built.next_lsn - 1;
        st.written_ticket = last_ticket;
        st.counters.groups += 1;
        st.counters.batches += taken.len() as u64;
        st.counters.frames += built.frames;
        st.counters.bytes += group.len() as u64;
        st.leading = false;
        st.give_back(&taken);
        if let Some(started) = synced_since {
            st.syncing = false;
            st.synced_lsn = st.written_lsn();
            st.synced_ticket = last_ticket;
            st.counters.syncs += 1;
            st.counters.sync_ns += self.shared.env.clock.mono_ns().saturating_sub(started);
        }
        self.release(st)
    }

    /// The group was not written: every staged batch fails, in order. For want of space the shard
    /// goes on in the next file; after any other error it is poisoned.
    fn refuse<'a>(
        &'a self,
        mut st: MutexGuard<'a, State>,
        mut taken: Vec<Queued>,
        error: &StorageError,
    ) -> MutexGuard<'a, State> {
        let error = match error {
            StorageError::Io { .. } => StorageError::Poisoned { detail: error.to_string() },
            e => e.clone(),
        };
        st.give_back(&taken);
        taken.extend(st.drain());
        st.broken = true;
        let from = st.written_ticket + 1;
        st.written_ticket = st.last_ticket;
        let to = st.last_ticket;
        st.fail(from, to, &error);
        // Seqs are handed out again only after every failed batch has given its own back.
        drop(st);
        for q in &taken {
            q.batch.commit.failed(&error);
        }
        let mut st = self.state.lock();
        st.leading = false;
        if let StorageError::Poisoned { .. } = error {
            st = self.poison(st, error);
        }
        self.release(st)
    }

    /// Wakes waiters, calls callbacks; returns with the lock.
    fn release<'a>(&'a self, mut st: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let due = st.due();
        let tail = st.written_lsn() > st.synced_lsn;
        let kick = self.shared.options.background
            && ((st.idle && tail) || !st.on_synced.is_empty() || self.wants_file(&st));
        drop(st);
        if kick {
            self.wake.notify_one();
        }
        self.changed.notify_all();
        for (done, outcome) in due {
            done(outcome);
        }
        self.state.lock()
    }

    /// Whether the next group cannot go into the file in use.
    pub fn must_succeed(&self, st: &State) -> bool {
        let mut bytes = Group::FRAME_LEN;
        for q in &st.queue {
            if bytes > Group::FRAME_LEN && bytes + q.batch.bytes() > GROUP_BYTES {
                break;
            }
            bytes += q.batch.bytes();
        }
        st.broken || st.offset + bytes as u64 > st.capacity
    }
}

fn take(st: &mut State) -> Vec<Queued> {
    let mut taken = Vec::new();
    let mut bytes = 0;
    while let Some(q) = st.queue.front() {
        let size = q.batch.bytes();
        if !taken.is_empty() && bytes + size > GROUP_BYTES {
            break;
        }
        bytes += size;
        st.queued_bytes -= size;
        taken.extend(st.queue.pop_front());
    }
    taken
}

/// Copies the batches into one buffer, setting seq, ts, `batch_more` and the checksums.
fn build(taken: &[Queued], salt: u64, lsn: u64, synced_lsn: u64) -> Built {
    let total: usize = taken.iter().map(|q| q.batch.bytes()).sum();
    let mut bytes = Vec::with_capacity(total + Group::FRAME_LEN);
    bytes.resize(Group::FRAME_LEN, 0);
    let mut batches = Vec::with_capacity(taken.len());
    let mut next_lsn = lsn + 1;
    for q in taken {
        let b = &q.batch;
        let (from, first_lsn) = (bytes.len(), next_lsn);
        for part in [&b.head, &b.records, &b.tail] {
            bytes.extend_from_slice(part);
        }
        let to = bytes.len();
        let records = from + b.head.len()..to - b.tail.len();
        let mut seq = b.first_seq;
        let mut at = from;
        while at < to {
            let end = at + frame::frame_size(&bytes[at..]);
            let is_record = records.contains(&at);
            let f = &mut bytes[at..end];
            if is_record {
                frame::patch(f, b.topic_id, seq, b.ts);
                seq += 1;
            } else if frame::u64_at(f, 22) == 0 {
                f[22..30].copy_from_slice(&b.ts.to_le_bytes());
            }
            frame::set_batch_more(f, end < to);
            frame::seal(f, salt, next_lsn);
            next_lsn += 1;
            at = end;
        }
        batches.push((from, to, first_lsn, next_lsn - 1));
    }
    let frames = next_lsn - lsn - 1;
    let body = (bytes.len() - Group::FRAME_LEN) as u64;
    let group = Group { lsn, frames: frames as u32, bytes: body, synced_lsn };
    let mut head = Vec::with_capacity(Group::FRAME_LEN);
    group.encode_frame(&mut head);
    frame::seal(&mut head, salt, lsn);
    bytes[..Group::FRAME_LEN].copy_from_slice(&head);
    Built { bytes, batches, frames, next_lsn }
}
