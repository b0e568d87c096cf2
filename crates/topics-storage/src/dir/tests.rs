use std::sync::Arc;

use topics_env::{Fs, Hook, Site};
use topics_sim::{
    CallKind, CrashOptions, FaultKind, Mutant, PageFate, SimClock, SimFs, SiteLog, Survival,
    env_on, sim_env,
};

use xxhash_rust::xxh3::xxh3_64;

use super::*;

fn paths() -> Paths {
    Paths::new("/data/topics")
}

/// A root whose parent exists durably.
fn world(hook: Option<Arc<dyn Hook>>) -> (Env, Arc<SimFs>) {
    let (mut env, fs, _) = sim_env(1);
    env.fs.create_dir("/data".as_ref()).unwrap();
    env.fs.sync_dir("/".as_ref()).unwrap();
    if let Some(hook) = hook {
        env = env.with_hook(hook);
    }
    (env, fs)
}

fn remount(image: &topics_sim::DiskImage) -> (Env, Arc<SimFs>) {
    let fs = Arc::new(SimFs::from_image(image));
    (env_on(&fs, &Arc::new(SimClock::new(1)), 2), fs)
}

#[test]
fn a_second_open_fails_and_names_the_holder() {
    let (env, _fs) = world(None);
    let lock = DirLock::acquire(&env, &paths(), 41).unwrap();
    let refused = |env: &Env| match DirLock::acquire(env, &paths(), 42) {
        Err(StorageError::Locked { pid, url }) => (pid, url),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&env), (41, None));
    lock.set_url("http://127.0.0.1:1").unwrap();
    assert_eq!(refused(&env), (41, Some("http://127.0.0.1:1".into())));
    drop(lock);
    DirLock::acquire(&env, &paths(), 42).unwrap();
}

#[test]
fn a_root_without_a_parent_is_an_error_with_advice() {
    let (env, _fs) = world(None);
    let paths = Paths::new("/none/topics");
    for refused in [DirLock::acquire(&env, &paths, 1).map(|_| ()), make_root(&env, &paths)] {
        let Err(StorageError::Directory { dir, detail }) = refused else { panic!("{refused:?}") };
        assert_eq!(dir, "/none/topics");
        assert!(detail.starts_with("there is no folder /none: create it"), "{detail}");
    }
    assert!(!env.fs.exists("/none".as_ref()).unwrap(), "no directory was created");
    make_root(&env, &self::paths()).unwrap();
    make_root(&env, &self::paths()).unwrap();
}

#[test]
fn a_store_is_created_once() {
    let (env, _fs) = world(None);
    let (store, created) = Store::open_or_create(&env, &paths()).unwrap();
    assert!(created);
    assert_eq!(Store::open_or_create(&env, &paths()).unwrap(), (store, false));
    assert_eq!(Store::read(&env, &paths()).unwrap(), Some(store));
}

#[test]
fn data_without_a_store_is_refused() {
    for dir in ["wal", "topics", "txn", "meta"] {
        let (env, fs) = world(None);
        create_dir(&env, "t", paths().root()).unwrap();
        let dir = paths().root().join(dir);
        create_dir(&env, "t", &dir).unwrap();
        env.fs.open(&dir.join("STORE.tmp"), OpenMode::CreateNew).unwrap();
        if dir.ends_with("meta") {
            Store::open_or_create(&env, &paths()).unwrap();
            fs.remove_file(&dir.join("STORE")).unwrap();
            env.fs.open(&dir.join("snapshot.3.bin"), OpenMode::CreateNew).unwrap();
        }
        let refused = Store::open_or_create(&env, &paths());
        assert!(matches!(refused, Err(StorageError::Missing { .. })), "{dir:?}: {refused:?}");
        assert!(!env.fs.exists(&paths().meta().join("STORE")).unwrap());
    }
}

#[test]
fn every_removed_check_is_detected() {
    let (env, fs) = world(None);
    Store::open_or_create(&env, &paths()).unwrap();
    create_dir(&env, "t", &paths().wal().join("shard-00")).unwrap_err();
    create_dir(&env, "t", &paths().wal()).unwrap();
    create_dir(&env, "t", &paths().wal().join("shard-00")).unwrap();
    let good = fs.kill_image().read("/data/topics/meta/STORE").unwrap();
    for name in ["store.no-data", "store.checksum"] {
        let mutant = Arc::new(Mutant::remove(Site::Check(name), None));
        let mut image = fs.kill_image();
        if name == "store.no-data" {
            image.remove("/data/topics/meta/STORE");
        } else {
            let mut bytes = good.clone();
            bytes[9] ^= 1;
            image.put("/data/topics/meta/STORE", &bytes);
        }
        assert!(Store::open_or_create(&remount(&image).0, &paths()).is_err());
        let env = remount(&image).0.with_hook(mutant);
        assert!(Store::open_or_create(&env, &paths()).is_ok(), "only {name} refuses it");
    }
}

#[test]
fn a_damaged_store_is_refused() {
    let (env, fs) = world(None);
    Store::open_or_create(&env, &paths()).unwrap();
    let image = fs.kill_image();
    let good = image.read("/data/topics/meta/STORE").unwrap();
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mut image = image.clone();
        image.put("/data/topics/meta/STORE", &bytes);
        match Store::open_or_create(&remount(&image).0, &paths()) {
            Err(StorageError::Corrupt { file, .. }) => assert!(file.ends_with("meta/STORE")),
            other => panic!("bit {bit}: {other:?}"),
        }
    }
    let mut newer = good[..24].to_vec();
    newer[4] = 2;
    let sum = xxh3_64(&newer);
    newer.extend_from_slice(&sum.to_le_bytes());
    let mut image = image;
    image.put("/data/topics/meta/STORE", &newer);
    let refused = Store::read(&remount(&image).0, &paths());
    assert!(matches!(refused, Err(StorageError::Version { found: 2, supported: 1, .. })));
}

/// Creates a store in two processes: the first is killed at a call, the second ends with a power cut.
/// Every disk that the power cut can leave must contain the store that the second process used.
fn store_survives(hook: &dyn Fn() -> Option<Arc<dyn Hook>>) -> std::result::Result<usize, String> {
    let mut states = 0;
    let kinds = [
        CallKind::Create,
        CallKind::CreateDir,
        CallKind::Write,
        CallKind::SyncData,
        CallKind::Rename,
        CallKind::SyncDir,
    ];
    for dies_at in kinds.into_iter().flat_map(|k| (1..6).map(move |n| (k, n))) {
        let (env, fs) = world(hook());
        fs.fail_from(dies_at.0, dies_at.1, FaultKind::EIO);
        let _ = Store::open_or_create(&env, &paths());
        let fs2 = Arc::new(SimFs::from_image(&fs.kill_image()));
        let mut env = env_on(&fs2, &Arc::new(SimClock::new(1)), 2);
        if let Some(hook) = hook() {
            env = env.with_hook(hook);
        }
        let (store, _) = Store::open_or_create(&env, &paths()).map_err(|e| e.to_string())?;
        // Makes the directory one in use.
        create_dir(&env, "test", &paths().wal()).map_err(|e| e.to_string())?;
        let mut cursor = fs2.crash_cursor();
        cursor.seek(usize::MAX);
        let mut broken = None;
        cursor.states(1, &CrashOptions::default(), &mut |state| {
            states += 1;
            let found = Store::read(&remount(&state.image).0, &paths());
            if !matches!(found, Ok(Some(s)) if s == store) {
                broken = Some(format!("{dies_at:?}, {:?}: {found:?}", state.survival));
            }
        });
        if let Some(broken) = broken {
            return Err(broken);
        }
    }
    Ok(states)
}

#[test]
fn a_store_that_was_used_survives() {
    store_survives(&|| None).unwrap();
    let log = Arc::new(SiteLog::default());
    store_survives(&|| Some(log.clone())).unwrap();
    for (site, _) in log.sites() {
        if matches!(site, Site::Check(_)) || matches!(site, Site::SyncDir("test")) {
            continue;
        }
        let mutant = || -> Option<Arc<dyn Hook>> { Some(Arc::new(Mutant::remove(site, None))) };
        // The parent of the data directory: only directories below it could detect a missing sync.
        let caught = store_survives(&mutant).is_err();
        let covered = matches!(site, Site::SyncDir("dir.names"));
        assert!(caught || covered, "no test detects that {site:?} is missing");
    }
}

#[test]
fn the_reserve_grows_and_is_released() {
    let (env, fs) = world(None);
    create_dir(&env, "t", paths().root()).unwrap();
    create_dir(&env, "t", &paths().meta()).unwrap();
    let len = || env.fs.open(&paths().reserve(), OpenMode::Read).unwrap().len().unwrap();
    assert!(reserve::ensure(&env, &paths(), reserve::MIN).unwrap());
    assert_eq!(len(), 1 << 20);
    assert!(reserve::ensure(&env, &paths(), 2 << 20).unwrap());
    assert_eq!(len(), 2 << 20);
    assert!(reserve::ensure(&env, &paths(), 5).unwrap());
    assert_eq!(len(), 2 << 20);
    fs.set_free_space(Some(0));
    assert!(!reserve::ensure(&env, &paths(), 16 << 20).unwrap());
    reserve::release_all(&env, &paths()).unwrap();
    reserve::release_all(&env, &paths()).unwrap();
    assert!(!env.fs.exists(&paths().reserve()).unwrap());
    let file = env.fs.open(&paths().meta().join("x"), OpenMode::CreateNew).unwrap();
    file.write_all_at(&[1; 1 << 20], 0).unwrap();
}

/// Creates the files that an open creates before it serves.
fn make_all(env: &Env) -> Result<()> {
    DirLock::acquire(env, &paths(), 1)?;
    Store::open_or_create(env, &paths())?;
    for dir in [paths().wal(), paths().topics(), paths().shard(0)] {
        create_dir(env, "t", &dir)?;
    }
    Ok(())
}

#[test]
fn i1_a_name_that_a_failed_sync_lost_is_created_again() {
    let mut failed = 0;
    // An earlier process may have been killed after this number of calls.
    for killed_at in 0..20 {
        for nth in 1.. {
            let (env, fs) = world(None);
            if killed_at > 0 {
                for (call, nth) in [
                    (CallKind::SyncDir, killed_at),
                    (CallKind::RemoveDir, 1),
                    (CallKind::RemoveFile, 1),
                ] {
                    fs.fail_from(call, nth, FaultKind::EIO);
                }
                let _ = make_all(&env);
            }
            let (env, fs) = remount(&fs.kill_image());
            let fault = FaultKind::SyncFails { then: PageFate::Lost };
            fs.fail_nth(CallKind::SyncDir, nth, fault);
            if make_all(&env).is_ok() {
                break;
            }
            failed += 1;
            let (env, fs) = remount(&fs.kill_image());
            make_all(&env).unwrap();
            let mut end = fs.crash_cursor();
            while end.advance() {}
            let left = end.image(Survival::DropAll);
            let names: Vec<String> = left.files().into_iter().map(|f| f.0).collect();
            assert!(names.iter().any(|n| n.ends_with("meta/STORE")), "{nth}: {names:?}");
            let (env, _) = remount(&left);
            for dir in [paths().wal(), paths().topics(), paths().shard(0)] {
                assert!(env.fs.exists(&dir).unwrap(), "{killed_at} {nth}: {dir:?}");
            }
        }
    }
    assert!(failed > 50, "{failed}");
}
