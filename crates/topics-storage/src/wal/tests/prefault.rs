//! Pages ahead of a log that is written fast.

use super::*;
use crate::wal::prefault::{CHUNK, FAST_BYTES, MAX_DISTANCE, SKIP};
use crate::wal::state::State;

const MIB: u64 = 1 << 20;

fn state(env: &Env, offset: u64, unsynced: u64, capacity: u64) -> State {
    let start = first_file(env, &Paths::new(Path::new("/db")), 4096);
    let file = start.files.into_iter().next().map(Arc::new);
    let start =
        ShardStart { files: vec![], offset, capacity, next_lsn: 1, health: None, begin: None };
    let mut st = State::new(start, file, &small());
    st.current.sync_offset = offset - unsynced;
    st
}

fn chunks(st: &mut State) -> Vec<u64> {
    std::iter::from_fn(|| st.next_chunk().map(|s| s.at)).collect()
}

#[test]
fn a_log_that_is_written_fast_wants_the_next_pages_in_order() {
    let (env, ..) = sim_env(1);
    let mut st = state(&env, 3 * MIB, FAST_BYTES - 1, 64 * MIB);
    assert!(!st.needs_prefault(MAX_DISTANCE), "not for what a timer syncs");
    st.current.sync_offset -= 1;
    let found = chunks(&mut st);
    assert_eq!(found.first(), Some(&(3 * MIB + SKIP)), "nearer ones are written by then");
    assert!(found.windows(2).all(|w| w[1] == w[0] + CHUNK as u64));
    assert_eq!(st.current.prefaulted_to, 3 * MIB + MAX_DISTANCE);
    st.current.offset += CHUNK as u64;
    assert_eq!(chunks(&mut st), [3 * MIB + MAX_DISTANCE], "as much as was written");
    st.closed = true;
    st.current.offset += MIB;
    assert!(chunks(&mut st).is_empty());
}

#[test]
fn no_page_is_wanted_beyond_a_file_or_of_one_that_was_filled() {
    let (env, ..) = sim_env(1);
    let mut st = state(&env, 3 * MIB, FAST_BYTES, 4 * MIB);
    assert_eq!(chunks(&mut st).last(), Some(&(4 * MIB - CHUNK as u64)));
    assert!(!st.needs_prefault(MAX_DISTANCE), "there is no next file yet");
    let mut filled = state(&sim_env(1).0, 3 * MIB, FAST_BYTES, 4 * MIB);
    filled.current.prefaulted_to = filled.current.capacity;
    assert!(chunks(&mut filled).is_empty());
}

#[test]
fn the_thread_reads_ahead_into_the_next_file_and_changes_nothing() {
    let dir = std::env::temp_dir().join(format!("topics-wal-ahead-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let env = topics_env::real::real_env(topics_env::real::Backend::Auto).unwrap();
    let (size, sync_interval) = (4 * MIB, Duration::from_secs(3600));
    let options =
        WalOptions { file_initial: size, file_max: size, sync_interval, ..WalOptions::default() };
    let paths = Paths::new(&dir);
    let start = first_file(&env, &paths, size);
    let wal = Wal::start(env.clone(), paths, options, vec![start], vec![]).unwrap();
    let log = Arc::new(Log::default());
    let write = |batches: std::ops::Range<u64>| {
        for i in batches {
            let ticket = put(&wal, batch(&log, i * 1000 + 1, 1000, Level::Written)).unwrap();
            wal.wait(ticket, Level::Written).unwrap();
        }
    };
    write(0..50);
    let there = || {
        let st = wal.shards[0].state.lock();
        assert!(st.current.offset > 2 * MIB && st.current.sync_offset < MIB, "{st:?}");
        st.current.prefaulted_to == size
            && st.next.prepared.as_ref().is_some_and(|p| p.prefaulted_to == size)
    };
    while !there() {
        std::thread::yield_now();
    }
    write(50..200);
    assert!(wal.counters().rotations >= 2);
    assert_eq!(seqs(&read_back(&env, &wal)), (1..=200_000).collect::<Vec<_>>());
    wal.close(true).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}
