//! Repairs of directories whose objects, or lists of deleted records, are gone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use topics_env::objects::{
    ByteRange, ETag, ObjectBytes, ObjectError, ObjectInfo, ObjectResult, ObjectStore,
};
use topics_sim::{Bucket, ObjectFault, SimStore};
use topics_storage::segment::FileKind;

use super::cold_tests::{
    Rows, all, cold_segments, cool, fill, first_file, flip, limits, records_and_gaps, remote,
    tiered,
};
use crate::engine::verify::{Progress, Repair, plan_repair, repair, verify};
use crate::topic::tests::{DIR, World, eq};
use crate::types::api::GapReason;
use crate::types::options::{RemoteLimits, RemoteOptions};

fn plan(w: &World) -> Repair {
    plan_repair(&w.env(), Path::new(DIR), w.options.clone()).unwrap()
}

/// The packs of a bucket in the order of their numbers.
fn packs(bucket: &Bucket) -> Vec<String> {
    bucket.objects().into_keys().filter(|k| k.contains("/p")).collect()
}

/// Seqs of records that are in one list and not in the other, which is part of it.
fn lacking(whole: &[(u64, Vec<u8>)], part: &[(u64, Vec<u8>)]) -> Vec<u64> {
    assert!(part.iter().all(|r| whole.contains(r)));
    whole.iter().filter(|r| !part.contains(r)).map(|r| r.0).collect()
}

/// Objects that are missing, cut, or other ones: their seqs become gaps, and no others.
#[test]
fn a_repair_gives_up_the_records_of_objects_that_are_gone() {
    for damage in 0..3 {
        let (mut w, bucket) = tiered();
        for topic in ["a", "b"] {
            fill(&w, topic, 33);
        }
        w.delete("a", None, eq("red"));
        w.checkpoint();
        let before = [all(&w, "a"), all(&w, "b")];
        assert!(cool(&w) > 4);
        w.close();
        let keys = packs(&bucket);
        assert!(keys.len() > 2, "{keys:?}");
        let bytes = bucket.objects()[&keys[1]].clone();
        bucket.tamper(
            &keys[1],
            match damage {
                0 => None,
                1 => Some(bytes.slice(..bytes.len() - 1)),
                _ => Some(bucket.objects()[&keys[0]].clone()),
            },
        );
        let files = w.fs.kill_image().files();
        let planned = plan(&w);
        assert!(planned.unlooked.is_none() && planned.losses.is_empty(), "{planned:?}");
        assert!(
            !planned.gaps.is_empty() && planned.files.iter().all(|f| keys[1].ends_with(&f.file))
        );
        let unlocked = |f: &&(String, Vec<u8>)| !f.0.ends_with(".topics.lock");
        let now = w.fs.kill_image().files();
        assert!(files.iter().filter(unlocked).eq(now.iter().filter(unlocked)), "it only looks");
        let done = repair(w.env(), Path::new(DIR), w.options.clone()).unwrap();
        assert_eq!(done.gaps, planned.gaps);
        w.open();
        let mut lost = 0;
        for (topic, before) in ["a", "b"].into_iter().zip(&before) {
            let (after, mut gaps) = records_and_gaps(&w, topic);
            gaps.retain(|gap| gap.2 == GapReason::Corrupt);
            for seq in lacking(before, &after) {
                lost += 1;
                assert!(gaps.iter().any(|g| (g.0..=g.1).contains(&seq)), "{topic} {seq}: {gaps:?}");
            }
            for gap in &gaps {
                assert!(!after.iter().any(|r| (gap.0..=gap.1).contains(&r.0)), "{topic}: {gap:?}");
            }
            let stated: Vec<_> = planned.gaps.iter().filter(|g| g.0 == topic).collect();
            assert_eq!(gaps.is_empty(), stated.is_empty(), "{stated:?}");
        }
        assert!(lost > 0 && lost < before[0].len() + before[1].len());
        assert_eq!(w.engine().verify().unwrap().problems, []);
        // The prefix goes on, and a second repair finds nothing.
        fill(&w, "a", 33);
        cool(&w);
        w.close();
        let again = plan(&w);
        assert!(again.gaps.is_empty() && again.files.is_empty(), "{again:?}");
        assert_eq!(bucket.violations(), []);
    }
}

/// A cold segment whose `.data` is still here loses nothing with its object, and is archived again.
#[test]
fn a_repair_uses_the_records_that_are_here() {
    let (mut w, bucket) = tiered();
    fill(&w, "a", 33);
    let before = all(&w, "a");
    assert!(w.engine().archive().unwrap().cooled > 0);
    w.put("other", &["a change"]);
    w.checkpoint();
    let cold = cold_segments(&w, "a");
    for key in packs(&bucket) {
        bucket.tamper(&key, None);
    }
    w.kill();
    w.close();
    let planned = plan(&w);
    assert!(planned.gaps.is_empty() && planned.files.len() == cold, "{planned:?}");
    repair(w.env(), Path::new(DIR), w.options.clone()).unwrap();
    w.open();
    assert!(!packs(&bucket).is_empty(), "the repair has archived them again");
    assert_eq!(all(&w, "a"), before);
    cool(&w);
    assert!(cold_segments(&w, "a") >= cold && !packs(&bucket).is_empty());
    assert_eq!(all(&w, "a"), before);
}

/// A prefix that is empty, another one's, or does not answer says nothing of the directory's objects.
#[test]
fn a_repair_does_not_believe_another_prefix() {
    let (mut w, bucket) = tiered();
    fill(&w, "a", 33);
    let before = all(&w, "a");
    cool(&w);
    let ours = w.options.remote.clone();
    w.close();
    let empty = Bucket::new(&w.clock);
    empty.set_mutable(&["HEAD"]);
    let silent = bucket.client(7);
    for case in 0..4 {
        let store: Option<Arc<dyn ObjectStore>> = match case {
            0 => None,
            1 => Some(Arc::new(empty.client(1))),
            2 => {
                let mut other = World::over_bucket(limits());
                // The ids of worlds depend on how often they were opened.
                other.0.reopen();
                fill(&other.0, "a", 33);
                cool(&other.0);
                Some(Arc::new(other.1.client(2)))
            }
            _ => {
                bucket.fail_all(None, None, ObjectFault::Refused);
                Some(Arc::new(silent.clone()))
            }
        };
        let limits = RemoteLimits { cold_timeout: std::time::Duration::ZERO, ..limits() };
        w.options.remote = store.map(|store| RemoteOptions { store, limits });
        let planned = plan(&w);
        assert!(planned.unlooked.is_some(), "{case}");
        assert!(planned.gaps.is_empty() && planned.files.is_empty(), "{case}: {planned:?}");
        repair(w.env(), Path::new(DIR), w.options.clone()).unwrap();
        bucket.clear_faults();
        w.options.remote.clone_from(&ours);
        w.open();
        assert_eq!(all(&w, "a"), before, "{case}");
        w.close();
    }
}

/// A closed directory with records of `a` that were archived, some of them deleted before; its store, the records
/// and the path of their list of deleted records.
fn with_deletes(hot_segments: u64) -> (World, Arc<Bucket>, Rows, PathBuf) {
    let (mut w, bucket) = tiered();
    let limits = RemoteLimits { hot_segments, ..limits() };
    w.options.remote = Some(RemoteOptions { limits, ..remote(bucket.client(1)) });
    w.reopen();
    fill(&w, "a", 33);
    w.delete("a", None, eq("red"));
    w.checkpoint();
    let before = all(&w, "a");
    cool(&w);
    cool(&w);
    assert_eq!(cold_segments(&w, "a") > 0, hot_segments == 1);
    let path = first_file(&w, "a", FileKind::Del);
    w.close();
    (w, bucket, before, path)
}

/// A list of deleted records that is lost is fetched, for hot and for cold segments, and nothing is lost.
#[test]
fn a_repair_fetches_lists_of_deleted_records() {
    for hot_segments in [1, 100] {
        for is_damaged in [false, true] {
            let (mut w, _, before, path) = with_deletes(hot_segments);
            match is_damaged {
                true => flip(&w, &path),
                false => w.env().fs.remove_file(&path).unwrap(),
            }
            let found = verify(&w.env(), Path::new(DIR), &mut |_: &Progress| {}).unwrap();
            assert!(!found.problems.is_empty());
            let planned = plan(&w);
            assert!(planned.gaps.is_empty(), "{planned:?}");
            assert!(planned.files.iter().any(|f| path.ends_with(&f.file)), "{planned:?}");
            let env = w.env();
            if !is_damaged {
                assert!(!env.fs.exists(&path).unwrap(), "a plan changes nothing");
            }
            repair(env, Path::new(DIR), w.options.clone()).unwrap();
            let found = verify(&w.env(), Path::new(DIR), &mut |_: &Progress| {}).unwrap();
            assert_eq!(found.problems, []);
            w.open();
            assert_eq!(all(&w, "a"), before);
        }
    }
}

/// A store that ends after some reads: it is unmounted, or does not answer.
#[derive(Debug)]
struct Ending {
    store: SimStore,
    left: AtomicI64,
    is_unmounted: bool,
}

impl Ending {
    fn check(&self, key: &str) -> ObjectResult<()> {
        match (self.left.fetch_sub(1, Ordering::Relaxed) > 0, self.is_unmounted) {
            (true, _) => Ok(()),
            (_, true) => Err(ObjectError::NotFound { key: key.to_owned() }),
            _ => Err(ObjectError::Unavailable { detail: "it does not answer".into() }),
        }
    }
}

impl ObjectStore for Ending {
    fn create(&self, key: &str, body: &Bytes) -> ObjectResult<ETag> {
        self.store.create(key, body)
    }

    fn replace(&self, key: &str, body: &Bytes, etag: &ETag) -> ObjectResult<ETag> {
        self.store.replace(key, body, etag)
    }

    fn get(&self, key: &str, range: ByteRange, etag: Option<&ETag>) -> ObjectResult<ObjectBytes> {
        self.check(key)?;
        self.store.get(key, range, etag)
    }

    fn get_if_changed(&self, key: &str, etag: &ETag) -> ObjectResult<Option<ObjectBytes>> {
        self.check(key)?;
        self.store.get_if_changed(key, etag)
    }

    fn head(&self, key: &str) -> ObjectResult<ObjectInfo> {
        self.check(key)?;
        self.store.head(key)
    }

    fn delete(&self, key: &str) -> ObjectResult<()> {
        self.store.delete(key)
    }
}

/// A store that ends at each of the reads of a repair: nothing is given up for it, and the next repair goes on.
#[test]
fn a_store_that_ends_during_a_repair_costs_nothing() {
    for hot_segments in [1, 100] {
        for is_unmounted in [false, true] {
            let mut refused = 0;
            for reads in 0..12 {
                let (mut w, bucket, before, path) = with_deletes(hot_segments);
                let ours = w.options.remote.clone().unwrap();
                w.env().fs.remove_file(&path).unwrap();
                let left = AtomicI64::new(reads);
                let store = Arc::new(Ending { store: bucket.client(2), left, is_unmounted });
                let limits =
                    RemoteLimits { cold_timeout: std::time::Duration::ZERO, ..ours.limits.clone() };
                w.options.remote = Some(RemoteOptions { store: store.clone(), limits });
                let planned = plan_repair(&w.env(), Path::new(DIR), w.options.clone());
                let has_ended = store.left.load(Ordering::Relaxed) < 0;
                match planned {
                    Ok(plan) if plan.unlooked.is_none() => {
                        assert!(plan.gaps.is_empty() && !has_ended, "{reads}: {plan:?}");
                    }
                    Ok(_) => {}
                    Err(_) => refused += 1,
                }
                w.options.remote = Some(ours);
                repair(w.env(), Path::new(DIR), w.options.clone()).unwrap();
                w.open();
                assert_eq!(all(&w, "a"), before, "{reads}, {is_unmounted}, {hot_segments}");
            }
            println!("{hot_segments} hot, unmounted {is_unmounted}: {refused} were refused");
            assert!(refused > 0);
        }
    }
}
