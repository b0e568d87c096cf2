//! Faults, sync errors, space, the monitor, mutants.

use std::io::ErrorKind;

use super::*;
use crate::DeferUntil;
use topics_env::{Env, Hook, LockError, Site, Verdict, WriteSyncError};

#[test]
fn the_nth_call_fails_once_and_changes_nothing() {
    let (_, fs, _) = sim_env(1);
    let file = create(&fs, "/f", b"1");
    let writes = fs.calls(CallKind::Write);
    fs.fail_nth(CallKind::Write, 2, FaultKind::ENOSPC);
    file.write_all_at(b"2", 1).unwrap();
    let ops = fs.ops_len();
    assert_eq!(file.write_all_at(b"3", 2).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!((fs.ops_len(), fs.faults_fired()), (ops, 1));
    file.write_all_at(b"4", 2).unwrap();
    assert_eq!(contents(&fs, "/f"), b"124");
    assert_eq!(fs.calls(CallKind::Write), writes + 3);
}

#[test]
fn every_kind_of_call_can_fail() {
    let run = |fs: &SimFs| -> Vec<(CallKind, bool)> {
        let file = fs.open(p("/f"), OpenMode::Write).unwrap();
        let mut out = Vec::new();
        let mut note = |kind, failed| out.push((kind, failed));
        note(CallKind::Open, fs.open(p("/f"), OpenMode::Read).is_err());
        note(CallKind::Create, fs.open(p("/new"), OpenMode::CreateNew).is_err());
        note(CallKind::Read, file.read_at(&mut [0], 0).is_err());
        note(CallKind::Write, file.write_at(b"x", 0).is_err());
        note(CallKind::SetLen, file.set_len(3).is_err());
        note(CallKind::Allocate, file.allocate(3).is_err());
        note(CallKind::SyncData, file.sync_data().is_err());
        note(CallKind::Stat, file.len().is_err());
        note(CallKind::CreateDir, fs.create_dir(p("/d")).is_err());
        note(CallKind::Rename, fs.rename(p("/f"), p("/g")).is_err());
        note(CallKind::Link, fs.hard_link(p("/base"), p("/linked")).is_err());
        note(CallKind::RemoveFile, fs.remove_file(p("/spare")).is_err());
        note(CallKind::RemoveDir, fs.remove_dir(p("/old")).is_err());
        note(CallKind::List, fs.list(p("/")).is_err());
        note(CallKind::SyncDir, fs.sync_dir(p("/")).is_err());
        note(CallKind::SyncFs, fs.sync_fs(p("/")).is_err());
        note(CallKind::Lock, fs.lock(p("/l"), b"").is_err());
        note(CallKind::FreeSpace, fs.free_space(p("/")).is_err());
        out
    };
    for failing in CallKind::ALL {
        let (_, fs, _) = sim_env(1);
        create(&fs, "/f", b"abc");
        create(&fs, "/spare", b"");
        create(&fs, "/base", b"");
        fs.create_dir(p("/old")).unwrap();
        let skip = if failing == CallKind::Open { 2 } else { 1 };
        fs.fail_nth(failing, skip, FaultKind::EIO);
        let results = run(&fs);
        assert_eq!(results.len(), CallKind::ALL.len());
        for (kind, failed) in results {
            assert_eq!(failed, kind == failing, "{kind:?} with {failing:?} to fail");
        }
    }
}

#[test]
fn short_interrupted_and_stuck_writes() {
    let (_, fs, _) = sim_env(1);
    let file = create(&fs, "/f", b"");
    fs.fail_nth(CallKind::Write, 1, FaultKind::ShortWrite);
    assert_eq!(file.write_at(b"12345", 0).unwrap(), 3);
    fs.fail_nth(CallKind::Write, 1, FaultKind::ShortWrite);
    fs.fail_nth(CallKind::Write, 2, FaultKind::EINTR);
    file.write_all_at(b"abcdef", 0).unwrap();
    assert_eq!((contents(&fs, "/f"), fs.faults_fired()), (b"abcdef".to_vec(), 3));
    fs.fail_from(CallKind::Write, 1, FaultKind::ZeroProgress);
    assert_eq!(file.write_all_at(b"z", 0).unwrap_err().kind(), ErrorKind::WriteZero);
    fs.clear_faults();
    file.write_all_at(b"z", 0).unwrap();
    fs.fail_nth(CallKind::Read, 1, FaultKind::ShortWrite);
    assert_eq!(contents(&fs, "/f"), b"zbcdef", "a short read goes on");
}

#[test]
fn faults_by_path() {
    let (_, fs, _) = sim_env(1);
    let (a, b) = (create(&fs, "/a.log", b""), create(&fs, "/b.idx", b""));
    fs.fail_from(CallFilter::on_path(CallKind::SyncData, ".idx"), 1, FaultKind::EIO);
    a.sync_data().unwrap();
    assert!(b.sync_data().is_err() && b.sync_data().is_err());
    assert!(matches!(b.write_sync_at(b"x", 0), Err(WriteSyncError::Sync(_))));
}

/// After a failed sync the page is clean: the next sync succeeds without writing it.
#[test]
fn failed_syncs() {
    for then in [PageFate::Kept, PageFate::Lost, PageFate::Reverted] {
        let (_, fs, _) = sim_env(1);
        let file = durable(&fs, "/f", b"old");
        file.write_all_at(b"newer", 0).unwrap();
        fs.fail_nth(CallKind::SyncData, 1, FaultKind::SyncFails { then });
        assert!(file.sync_data().is_err());
        let seen = contents(&fs, "/f");
        assert_eq!(seen, if then == PageFate::Reverted { b"old\0\0" } else { b"newer" });
        let durable_early = end_image(&fs, Survival::DropAll).read("/f").unwrap();
        file.sync_data().unwrap();
        let states = end_states(&fs, &CrashOptions::default());
        assert_eq!(states.len(), 1, "nothing is pending");
        let late = states[0].image.read("/f").unwrap();
        match then {
            PageFate::Kept => {
                assert_eq!((&durable_early[..], &late[..]), (&b"newer"[..], &b"newer"[..]))
            }
            _ => assert_eq!((&durable_early[..], &late[..]), (&b"old"[..], &b"old\0\0"[..])),
        }
        assert_eq!(fs.is_durable(p("/f"), 0, 5), then != PageFate::Lost);
        file.write_all_at(b"again", 0).unwrap();
        file.sync_data().unwrap();
        assert_eq!(end_image(&fs, Survival::DropAll).read("/f").unwrap(), b"again");
        assert!(fs.is_durable(p("/f"), 0, 5));
    }
}

#[test]
fn a_failed_directory_sync_may_lose_names_for_good() {
    let (_, fs, _) = sim_env(1);
    create(&fs, "/a", b"1").sync_data().unwrap();
    fs.fail_nth(CallKind::SyncDir, 1, FaultKind::SyncFails { then: PageFate::Lost });
    assert!(fs.sync_dir(p("/")).is_err());
    fs.sync_dir(p("/")).unwrap();
    assert!(fs.exists(p("/a")).unwrap() && !fs.is_durable(p("/a"), 0, 1));
    assert!(names(&end_image(&fs, Survival::KeepAll)).is_empty());
    durable(&fs, "/other", b"");
    fs.rename(p("/a"), p("/b")).unwrap();
    fs.sync_dir(p("/")).unwrap();
    assert_eq!(end_image(&fs, Survival::DropAll).read("/b").unwrap(), b"1");
}

#[test]
fn space_runs_out_and_comes_back() {
    let (_, fs, _) = sim_env(1);
    let file = create(&fs, "/f", &[1; 100]);
    fs.set_free_space(Some(3 * 4096));
    file.write_all_at(&[2; 4000], 0).unwrap();
    assert_eq!(fs.free_space(p("/")).unwrap(), 3 * 4096, "within the page it has");
    assert_eq!(file.write_at(&[3; 5 * 4096], 4096).unwrap(), 3 * 4096, "as much as fits");
    let full = |r: std::io::Result<()>| r.unwrap_err().kind() == ErrorKind::StorageFull;
    assert!(full(file.write_all_at(b"x", 4 * 4096)));
    assert!(full(file.allocate(5 * 4096)));
    assert!(full(fs.create_dir(p("/d"))));
    assert!(full(fs.open(p("/g"), OpenMode::CreateNew).map(drop)));
    file.write_all_at(&[4; 100], 5000).unwrap();
    file.set_len(2 * 4096).unwrap();
    assert_eq!(fs.free_space(p("/")).unwrap(), 2 * 4096);
    file.allocate(3 * 4096).unwrap();
    assert_eq!(fs.free_space(p("/")).unwrap(), 4096);
    fs.remove_file(p("/f")).unwrap();
    assert_eq!(fs.free_space(p("/")).unwrap(), 4096, "still open");
    drop(file);
    assert_eq!(fs.free_space(p("/")).unwrap(), 4 * 4096);
    fs.set_free_space(None);
    create(&fs, "/g", &[0; 1 << 20]);
}

#[test]
fn locks_belong_to_one_mount() {
    let (_, fs, _) = sim_env(1);
    let guard = fs.lock(p("/l"), b"one").unwrap();
    assert!(matches!(fs.lock(p("/l"), b"two"), Err(LockError::Held(c)) if c == b"one"));
    let next = SimFs::from_image(&fs.kill_image());
    let _taken = next.lock(p("/l"), b"three").unwrap();
    drop(guard);
    let _again = fs.lock(p("/l"), b"two").unwrap();
}

#[test]
fn the_monitor_sees_a_rename_before_its_sync() {
    let (_, fs, _) = sim_env(1);
    create(&fs, "/a", b"1").sync_data().unwrap();
    fs.rename(p("/a"), p("/b")).unwrap();
    assert_eq!(fs.violations(), []);
    create(&fs, "/a", b"2");
    fs.rename(p("/a"), p("/b")).unwrap();
    let op = fs.ops_len() - 1;
    assert_eq!(fs.describe_op(op), format!("#{op} rename /a to /b"));
    assert_eq!(fs.violations(), [Violation::RenameUnsynced { op, path: "/b".to_owned() }]);
}

#[test]
fn durable_means_bytes_and_every_name() {
    let (_, fs, _) = sim_env(1);
    let file = create(&fs, "/f", b"12345678");
    assert!(!fs.is_durable(p("/f"), 0, 8));
    fs.sync_dir(p("/")).unwrap();
    assert!(!fs.is_durable(p("/f"), 0, 8), "a name without bytes");
    file.sync_data().unwrap();
    assert!(fs.is_durable(p("/f"), 0, 8) && !fs.is_durable(p("/f"), 0, 9));
    file.write_all_at(b"x", 4).unwrap();
    assert!(fs.is_durable(p("/f"), 0, 4) && !fs.is_durable(p("/f"), 4, 1));
    assert!(fs.is_durable(p("/f"), 5, 3));
    file.set_len(6).unwrap();
    assert!(fs.is_durable(p("/f"), 0, 4) && !fs.is_durable(p("/f"), 5, 2));
    file.sync_data().unwrap();
    assert!(fs.is_durable(p("/f"), 0, 6));
    fs.rename(p("/f"), p("/g")).unwrap();
    assert!(!fs.is_durable(p("/g"), 0, 6) && !fs.is_durable(p("/f"), 0, 6));
    fs.sync_fs(p("/")).unwrap();
    assert!(fs.is_durable(p("/g"), 0, 6));
}

/// temp → sync → rename → folder sync, each at a named site.
fn replace(env: &Env) {
    let tmp = env.fs.open(p("/tmp"), OpenMode::Truncate).unwrap();
    tmp.write_all_at(b"new", 0).unwrap();
    env.sync("replace.temp", &*tmp).unwrap();
    env.rename("replace.rename", p("/tmp"), p("/f")).unwrap();
    env.sync_dir("replace.dir", p("/")).unwrap();
}

/// Whether every crash leaves `/f` complete, and the replacement is durable at the end.
fn replace_is_safe(hook: impl FnOnce(&Arc<SimFs>) -> Arc<dyn Hook>) -> bool {
    let (env, fs, _) = sim_env(1);
    durable(&fs, "/f", b"old");
    let start = fs.ops_len();
    let env = env.with_hook(hook(&fs));
    replace(&env);
    let mut safe = fs.is_durable(p("/f"), 0, 3);
    fs.all_crash_states(1, &CrashOptions::default(), &mut |state| {
        let bytes = state.image.read("/f");
        let whole = [b"old".to_vec(), b"new".to_vec()].contains(&bytes.unwrap_or_default());
        safe &= whole || state.after_ops < start;
    });
    safe
}

#[test]
fn mutants_of_an_atomic_replacement_are_caught() {
    let log = Arc::new(SiteLog::default());
    assert!(replace_is_safe(|_| log.clone()));
    let sites = log.sites();
    assert_eq!(sites.len(), 3);
    for (&site, &visits) in &sites {
        assert_eq!(visits, 1);
        let mutant = Arc::new(Mutant::remove(site, None));
        assert!(!replace_is_safe(|_| mutant.clone()), "removed {site:?}");
        assert_eq!(mutant.hits(), 1);
        let other_visit = Arc::new(Mutant::remove(site, Some(2)));
        assert!(replace_is_safe(|_| other_visit.clone()));
        assert_eq!(other_visit.hits(), 0);
    }
    // No call follows the directory sync here: a deferred one never takes effect.
    for site in sites.into_keys() {
        assert!(
            !replace_is_safe(|fs| Arc::new(Mutant::reorder(site, Some(1), fs.clone()))),
            "{site:?}"
        );
    }
}

#[test]
fn a_deferred_sync_follows_the_next_mutating_call() {
    let (env, fs, _) = sim_env(1);
    let file = durable(&fs, "/f", b"");
    let env = env.with_hook(Arc::new(Mutant::reorder(Site::Sync("s"), Some(1), fs.clone())));
    env.write_sync("s", &*file, b"1", 0).unwrap();
    assert!(!fs.is_durable(p("/f"), 0, 1));
    let ops = fs.ops_len();
    create(&fs, "/g", b"");
    assert_eq!(fs.describe_op(ops), format!("#{ops} create /g"));
    assert_eq!(fs.describe_op(ops + 1), format!("#{} sync_data /f", ops + 1));
    assert!(fs.is_durable(p("/f"), 0, 1));
    env.write_sync("s", &*file, b"2", 0).unwrap();
    assert!(fs.is_durable(p("/f"), 0, 1), "only the first visit");
    fs.defer_next(DeferUntil::Call);
    file.write_sync_at(b"3", 0).unwrap();
    fs.flush_deferred();
    assert!(fs.is_durable(p("/f"), 0, 1));
}

#[test]
fn a_deferred_sync_follows_the_call_that_relies_on_it() {
    let (env, fs, _) = sim_env(1);
    let file = durable(&fs, "/f", b"");
    for until in [DeferUntil::Calls(2), DeferUntil::Rename("x"), DeferUntil::Remove("x")] {
        fs.defer_next(until);
        env.write_sync("s", &*file, b"1", 0).unwrap();
        create(&fs, "/x", b"");
        assert!(!fs.is_durable(p("/f"), 0, 1), "{until:?}");
        fs.rename(p("/x"), p("/y")).unwrap();
        assert_eq!(fs.is_durable(p("/f"), 0, 1), until == DeferUntil::Calls(2), "{until:?}");
        fs.rename(p("/y"), p("/x")).unwrap();
        fs.remove_file(p("/x")).unwrap();
        assert!(fs.is_durable(p("/f"), 0, 1), "{until:?}");
        file.write_all_at(b"0", 0).unwrap();
    }
}

#[test]
fn a_check_can_be_removed_and_is_seen_when_it_passes() {
    let (env, _, _) = sim_env(1);
    assert!(env.check("c", true) && !env.check("c", false));
    let log = Arc::new(SiteLog::default());
    let logged = env.clone().with_hook(log.clone());
    assert!(logged.check("c", true) && !logged.check("c", false));
    assert_eq!(log.sites().into_iter().collect::<Vec<_>>(), [(Site::Check("c"), 2)]);
    let mutant = Mutant::remove(Site::Check("c"), Some(2));
    assert_eq!(mutant.visit(Site::Check("other")), Verdict::Run);
    let mutated = env.with_hook(Arc::new(mutant));
    assert!(!mutated.check("c", false) && mutated.check("c", false) && !mutated.check("c", false));
}

#[test]
fn descriptors_run_out_and_come_back() {
    let (_, fs, _) = sim_env(1);
    let file = create(&fs, "/f", b"1");
    let second = create(&fs, "/g", b"2");
    assert_eq!((fs.open_files(), fs.fd_limit()), (2, None));
    fs.set_fd_limit(Some(2));
    assert_eq!(fs.fd_limit(), Some(2));
    let ops = fs.ops_len();
    let none = |e: &std::io::Error| topics_env::is_fd_exhausted(e);
    assert!(none(&fs.open(p("/f"), OpenMode::Read).unwrap_err()));
    assert!(none(&fs.open(p("/new"), OpenMode::CreateNew).unwrap_err()));
    assert!(none(&fs.open(p("/f"), OpenMode::Truncate).unwrap_err()));
    assert!(none(&fs.list(p("/")).unwrap_err()));
    assert!(none(&fs.sync_dir(p("/")).unwrap_err()));
    assert!(matches!(fs.lock(p("/l"), b""), Err(LockError::Io(e)) if none(&e)));
    assert_eq!((fs.ops_len(), contents_of(&*file)), (ops, b"1".to_vec()), "nothing happened");
    fs.sync_fs(p("/")).unwrap();
    fs.exists(p("/f")).unwrap();
    file.sync_data().unwrap();
    drop(second);
    drop(fs.lock(p("/l"), b"").unwrap());
    fs.sync_dir(p("/")).unwrap();
    fs.set_fd_limit(None);
    let _more = [create(&fs, "/h", b""), create(&fs, "/i", b"")];
}

/// Closes one file on each call.
#[derive(Debug, Default)]
struct Holder(topics_env::sync::Mutex<Vec<Arc<dyn File>>>, std::sync::atomic::AtomicUsize);

impl topics_env::FdReclaimer for Holder {
    fn reclaim_fds(&self) {
        self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.0.lock().pop();
    }
}

#[test]
fn a_call_without_a_descriptor_runs_once_more() {
    let (env, fs, _) = sim_env(1);
    let holder = Arc::new(Holder::default());
    let asked = || holder.1.load(std::sync::atomic::Ordering::Relaxed);
    let weak = Arc::downgrade(&holder);
    env.clone().on_fd_exhaustion(weak);
    let read = || env.fs.open(p("/f"), OpenMode::Read);
    create(&fs, "/f", b"1");
    holder.0.lock().extend([read().unwrap(), read().unwrap()]);
    fs.set_fd_limit(Some(2));
    let held = read().unwrap();
    assert_eq!((asked(), fs.open_files()), (1, 2));
    env.fs.list(p("/")).unwrap();
    assert_eq!((asked(), fs.open_files()), (2, 1));
    env.fs.sync_dir(p("/")).unwrap();
    let more = read().unwrap();
    assert_eq!(asked(), 2, "no reclaim while a descriptor is free");
    assert!(topics_env::is_fd_exhausted(&read().unwrap_err()));
    assert_eq!(asked(), 3);
    drop((held, more));
    // Another error is returned immediately, and so is the second of two fd errors.
    fs.fail_nth(CallKind::Open, 1, FaultKind::EIO);
    assert!(!topics_env::is_fd_exhausted(&read().unwrap_err()));
    fs.fail_from(CallKind::NEEDS_FD.as_slice(), 1, FaultKind::ENFILE);
    assert!(topics_env::is_fd_exhausted(&read().unwrap_err()));
    assert_eq!(asked(), 4);
    fs.clear_faults();
    drop(holder);
    fs.fail_nth(CallKind::Open, 1, FaultKind::EMFILE);
    read().unwrap();
}
