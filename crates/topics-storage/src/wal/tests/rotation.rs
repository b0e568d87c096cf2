//! What the files of a log are to each other, and how the next one is prepared.

use topics_env::{Fs, Hook, Rng, Site};
use topics_sim::{CallKind, CrashOptions, Mutant};

use super::*;
use crate::wal::rotation::FIRST_GROUP;

/// Fills files until there were this many rotations.
fn rotate(wal: &Wal, log: &Arc<Log>, rotations: u64) {
    let mut seq = 1 + log.told.lock().len() as u64;
    while wal.counters().rotations < rotations {
        let t = put(wal, batch(log, seq, 1, Level::Written)).unwrap();
        wal.wait(t, Level::Written).unwrap();
        seq += 1;
    }
}

#[test]
fn i12_a_file_names_the_one_before_it_and_has_a_salt_of_its_own() {
    let (env, ..) = sim_env(1);
    let wal = wal(&env, small());
    rotate(&wal, &Arc::default(), 4);
    let files: Vec<_> = wal.shards[0].files.read().values().cloned().collect();
    let places =
        |of: fn(&WalFileHeader) -> u64| files.iter().map(|f| of(&f.header)).collect::<Vec<_>>();
    assert_eq!(places(|h| h.ordinal), [1, 2, 3, 4, 5]);
    assert_eq!(places(|h| h.prior), [0, 1, 2, 3, 4]);
    let mut salts = places(|h| h.salt);
    salts.sort_unstable();
    salts.dedup();
    assert_eq!(salts.len(), 5);
}

/// Randomness that repeats itself.
#[derive(Debug)]
struct Stuck(u64);

impl Rng for Stuck {
    fn fill(&self, buf: &mut [u8]) {
        let word = self.0.to_le_bytes();
        buf.iter_mut().zip(word.iter().cycle()).for_each(|(to, from)| *to = *from);
    }
}

#[test]
fn i12_two_files_in_a_row_have_other_salts_whatever_the_randomness_is() {
    for (salt, second) in [(77, !77), (5, 5)] {
        let (mut env, ..) = sim_env(1);
        // The first file has salt 77.
        env.rng = Arc::new(Stuck(salt));
        let wal = wal(&env, small());
        rotate(&wal, &Arc::default(), 1);
        let salts: Vec<u64> = wal.shards[0].files.read().values().map(|f| f.header.salt).collect();
        assert_eq!(salts, [77, second]);
    }
}

#[test]
fn the_space_ahead_is_written_where_this_file_or_the_one_before_was_synced() {
    for used in [(false, false), (true, false), (false, true), (true, true)] {
        let (env, ..) = sim_env(1);
        let wal = wal(&env, small());
        let shard = &wal.shards[0];
        let mut st = shard.state.lock();
        st.current.sync_used = used;
        let st = shard.prepare(st);
        let next = st.next.prepared.as_ref().unwrap();
        let written = if used.0 || used.1 { next.capacity } else { 0 };
        assert_eq!(next.prefaulted_to, written, "{used:?}");
    }
}

#[test]
fn asking_whether_the_disk_is_full_prepares_only_where_it_was() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    let prepared = || wal.shards[0].state.lock().next.prepared.is_some();
    assert!(!wal.full(0) && !prepared());
    fs.set_free_space(Some(0));
    drop(wal.shards[0].prepare(wal.shards[0].state.lock()));
    assert!(wal.full(0) && !prepared());
    // While another thread prepares, the answer is the last one.
    fs.set_free_space(None);
    wal.shards[0].state.lock().flags.preparing = true;
    assert!(wal.full(0) && !prepared());
    wal.shards[0].state.lock().flags.preparing = false;
    assert!(!wal.full(0) && prepared());
    fs.set_free_space(Some(0));
    assert!(!wal.full(0), "the next file is there");
}

#[test]
fn while_allocation_is_paused_no_file_is_prepared() {
    let (env, ..) = sim_env(1);
    let wal = wal(&env, small());
    let prepared = || wal.shards[0].state.lock().next.prepared.is_some();
    let pause = [wal.pause_allocation(), wal.pause_allocation()];
    let log = Arc::new(Log::default());
    let t = put(&wal, batch(&log, 1, 1, Level::Written)).unwrap();
    wal.wait(t, Level::Written).unwrap();
    assert!(wal.full(0) && !prepared());
    let [first, second] = pause;
    drop(first);
    assert!(wal.full(0) && !prepared());
    drop(second);
    assert!(!wal.full(0) && prepared());
}

/// The bytes that a group may take in a new file of this size.
fn place(capacity: u64) -> u64 {
    capacity - FIRST_GROUP
}

#[test]
fn while_allocation_is_paused_no_file_grows() {
    for (more, paused, rotates) in [(0, true, true), (1, true, false), (1, false, true)] {
        let (env, ..) = sim_env(1);
        let wal = wal(&env, small());
        let shard = &wal.shards[0];
        let mut st = shard.prepare(shard.state.lock());
        let capacity = st.next.prepared.as_ref().unwrap().capacity;
        st.next.allocation_pauses = u32::from(paused);
        let (st, moved) = shard.rotate(st, place(capacity) + more);
        assert_eq!(moved.is_ok(), rotates, "{more} more, paused: {paused}: {moved:?}");
        // A file that did not begin stays the next one.
        assert_eq!(
            (st.counters.rotations, st.next.prepared.is_none()),
            (u64::from(rotates), rotates)
        );
        let grown = if rotates { more } else { 0 };
        let next = st.next.prepared.as_ref().map_or(st.current.capacity, |p| p.capacity);
        assert_eq!(next, capacity + grown);
    }
}

#[test]
fn no_group_ends_above_what_a_position_in_a_file_can_say() {
    let (env, ..) = sim_env(1);
    let wal = wal(&env, small());
    let shard = &wal.shards[0];
    let mut st = shard.prepare(shard.state.lock());
    // As a process with larger files left it.
    st.current.capacity = 6 << 30;
    for (offset, least, most) in
        [(1 << 20, 4095 << 20, 4096 << 20), (4 << 30, 0, 0), (5 << 30, 0, 0)]
    {
        st.current.offset = offset;
        let free = st.current.free_bytes() as u64;
        assert!((least..=most).contains(&(free.next_multiple_of(1 << 20))), "{offset}: {free}");
        assert!(free == 0 || offset + free <= u64::from(u32::MAX));
    }
}

#[test]
fn i10_a_poisoned_shard_begins_no_file() {
    let (env, ..) = sim_env(1);
    let wal = wal(&env, small());
    let shard = &wal.shards[0];
    let mut st = shard.prepare(shard.state.lock());
    let poison = StorageError::Poisoned { detail: "test".into() };
    st.poisoned = Some(poison);
    let (st, moved) = shard.rotate(st, 0);
    assert!(matches!(moved, Err(StorageError::Poisoned { .. })), "{moved:?}");
    assert_eq!(st.counters.rotations, 0);
}

#[test]
fn a_file_ends_when_no_sync_and_no_preparation_is_under_way() {
    for (syncing, preparing) in [(true, false), (false, true), (true, true)] {
        let (env, ..) = sim_env(1);
        let wal = wal(&env, small());
        let shard = wal.shards[0].clone();
        let (begun, begins) = std::sync::mpsc::channel();
        let ended = Arc::new(AtomicU64::new(0));
        let (other, end) = (shard.clone(), ended.clone());
        let caller = std::thread::spawn(move || {
            let mut st = other.state.lock();
            (st.flags.syncing, st.flags.preparing) = (syncing, preparing);
            begun.send(()).unwrap();
            let st = other.finish_file(st);
            end.store(1, Ordering::SeqCst);
            drop(st);
        });
        begins.recv().unwrap();
        // The caller has the lock until it waits, or has returned.
        let mut st = shard.state.lock();
        assert_eq!(ended.load(Ordering::SeqCst), 0, "syncing {syncing}, preparing {preparing}");
        (st.flags.syncing, st.flags.preparing) = (false, false);
        drop(shard.drain_effects(st));
        shard.flags.notify_all();
        caller.join().unwrap();
    }
}

#[test]
fn a_file_that_cannot_be_removed_stays_and_one_that_is_gone_does_not() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    rotate(&wal, &Arc::default(), 2);
    let written = wal.positions(0).written;
    let files = || wal.shards[0].files.read().len();
    fs.fail_nth(topics_sim::CallKind::RemoveFile, 1, FaultKind::Errno(5));
    assert!(matches!(wal.trim(0, written), Err(StorageError::Io { .. })));
    assert_eq!(files(), 3);
    let first = wal.shards[0].files.read().values().next().unwrap().name.clone();
    env.fs.remove_file(&Path::new("/db/wal/shard-00").join(first)).unwrap();
    assert_eq!(wal.trim(0, written).unwrap().len(), 2);
    assert_eq!(files(), 1);
}

#[test]
fn a_rotation_syncs_what_nobody_waits_for() {
    let (env, ..) = sim_env(1);
    let wal = wal(&env, small());
    rotate(&wal, &Arc::default(), 1);
    let first = wal.shards[0].files.read().values().nth(1).unwrap().first_lsn;
    assert!(first > 1);
    assert!(wal.positions(0).synced >= first - 1, "{:?}, {first}", wal.positions(0));
}

#[test]
fn a_file_is_removed_from_its_last_lsn_on() {
    let (env, ..) = sim_env(1);
    let wal = wal(&env, small());
    rotate(&wal, &Arc::default(), 2);
    let last = wal.shards[0].files.read().values().nth(1).unwrap().first_lsn - 1;
    assert_eq!(wal.trim(0, last - 1).unwrap(), [""; 0]);
    assert_eq!(wal.trim(0, last).unwrap().len(), 1);
}

/// The files of shard 0.
fn files(wal: &Wal) -> Vec<Arc<WalFile>> {
    wal.shards[0].files.read().values().cloned().collect()
}

/// A log whose file in use holds a Start alone, as a close leaves it, after a file with `n` batches.
fn only_start(env: &Env, n: u64) -> Wal {
    let wal = wal(env, small());
    let log = Arc::new(Log::default());
    for seq in 1..=n {
        let t = put(&wal, batch(&log, seq, 1, Level::Written)).unwrap();
        wal.wait(t, Level::Written).unwrap();
    }
    let shard = &wal.shards[0];
    let (st, moved) = shard.rotate(shard.state.lock(), 0);
    moved.unwrap();
    drop(st);
    wal
}

/// Crashes after the trim of a file whose successor holds a Start alone: how many states have the successor, in
/// how many of these it has no Start, and in how many of those its prior file is gone.
fn crashes_after_a_trim(hook: Option<Arc<dyn Hook>>) -> [usize; 3] {
    let (env, fs, _) = sim_env(1);
    let env = match hook {
        Some(hook) => env.with_hook(hook),
        None => env,
    };
    let wal = only_start(&env, 3);
    let [prior, next] = files(&wal).try_into().unwrap();
    let gone = wal.trim(0, wal.positions(0).written).unwrap();
    assert_eq!(gone.as_slice(), std::slice::from_ref(&prior.name));
    let mut counts = [0; 3];
    fs.all_crash_states(1, &CrashOptions::default(), &mut |s| {
        let fs = SimFs::from_image(&s.image);
        let path = |f: &WalFile| Path::new("/db/wal/shard-00").join(&f.name);
        if !fs.exists(&path(&next)).unwrap() {
            return;
        }
        let file = fs.open(&path(&next), OpenMode::Read).unwrap();
        counts[0] += 1;
        let start = scan::read_start(&env, &file, &next.header, &next.name);
        if !matches!(start, Ok(scan::FileStart::At(_))) {
            counts[1] += 1;
            counts[2] += usize::from(!fs.exists(&path(&prior)).unwrap());
        }
    });
    counts
}

#[test]
fn a_file_is_removed_when_the_start_of_the_next_one_is_durable() {
    let [n, without_start, lost] = crashes_after_a_trim(None);
    assert!(n > 20 && without_start > 5, "{n} {without_start}");
    assert_eq!(lost, 0);
}

#[test]
fn a_mutant_that_trims_before_the_start_is_durable_is_caught() {
    let mutant = Arc::new(Mutant::remove(Site::Check("wal.trim"), None));
    let [n, _, lost] = crashes_after_a_trim(Some(mutant));
    assert!(lost > 0, "{lost} of {n}");
}

#[test]
fn a_file_stays_when_the_start_of_the_next_one_cannot_be_synced() {
    let (env, fs, _) = sim_env(1);
    let wal = only_start(&env, 3);
    let written = wal.positions(0).written;
    fs.fail_nth(CallKind::SyncData, 1, FaultKind::Errno(5));
    assert_eq!(wal.trim(0, written).unwrap(), [""; 0]);
    assert!(wal.shards[0].state.lock().poisoned.is_some());
    assert_eq!(wal.trim(0, written).unwrap(), [""; 0]);
}

#[test]
fn a_file_without_groups_is_synced_before_the_log_leaves_it() {
    let (env, ..) = sim_env(1);
    let wal = only_start(&env, 3);
    let shard = &wal.shards[0];
    let syncs = || shard.state.lock().counters.syncs.count;
    let before = syncs();
    let (st, moved) = shard.rotate(shard.state.lock(), 0);
    moved.unwrap();
    drop(st);
    assert_eq!(syncs(), before + 1);
}

#[test]
fn what_a_trim_frees_is_for_the_next_file() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    rotate(&wal, &Arc::default(), 1);
    let prepared = || wal.shards[0].state.lock().next.prepared.is_some();
    wal.shards[0].state.lock().next.prepared = None;
    fs.set_free_space(Some(0));
    drop(wal.shards[0].prepare(wal.shards[0].state.lock()));
    assert!(!prepared());
    fs.set_free_space(None);
    assert_eq!(wal.trim(0, 0).unwrap(), [""; 0]);
    assert!(!prepared(), "nothing was freed");
    assert_eq!(wal.trim(0, wal.positions(0).written).unwrap().len(), 1);
    assert!(prepared());
}
