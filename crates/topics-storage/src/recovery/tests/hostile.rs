//! What a hostile disk does to an open.

use super::*;

/// Opens, checks what is kept, appends and closes uncleanly; `n` times.
fn live(env: &Env, shards: u32, times: u64) {
    let mut want: Option<Vec<u64>> = None;
    for run in 0..times {
        let (kept, opened) = open(env, shards);
        let seqs: Vec<u64> = kept.iter().filter(|k| k.0 == 0).map(|k| k.1).collect();
        if let Some(want) = &want {
            assert_eq!(&seqs, want, "run {run}");
        }
        let head = seqs.last().copied().unwrap_or(0);
        put(&opened.wal, 0, head + 1, 2, Level::Synced);
        want = Some([seqs, vec![head + 1, head + 2]].concat());
    }
}

#[test]
fn i1_a_crash_anywhere_in_an_open_does_not_hurt_the_opens_after_it() {
    let empty = |env: &Env| drop(open(env, 2));
    let (env, fs, _) = sim_env(7);
    empty(&env);
    let mut images = vec![fs];
    let (env, fs, _) = sim_env(7);
    workload(&env, &fs);
    let (env, fs) = mount(&fs.kill_image());
    empty(&env);
    images.push(fs);
    let mut n = 0;
    for fs in images {
        fs.all_crash_states(5, &CrashOptions::default(), &mut |s| {
            let (env, _) = mount(&s.image);
            live(&env, 2, 3);
            n += 1;
        });
    }
    assert!(n > 100, "{n}");
}
