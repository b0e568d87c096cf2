//! Removing any check makes a test fail.

use std::panic::{AssertUnwindSafe, catch_unwind};

use topics_env::{Hook, Site};
use topics_sim::{FaultKind, Mutant, PageFate, SiteLog};

use super::*;
use crate::StorageError;

type Outcome = std::result::Result<(), String>;

/// A disk with a sealed and an active segment of one topic, both with deletes, and a segment of
/// the same shape of another topic.
struct Disk {
    image: DiskImage,
    metas: [SegmentMeta; 2],
    recs: [Vec<Rec>; 2],
    theirs: SegmentMeta,
}

fn disk() -> Disk {
    let world = World::new(SegmentOptions::default());
    let recs = [sample(12), sample(12)];
    let mut metas = [
        world.append(None, 1, &recs[0], true).unwrap(),
        world.append(None, 13, &recs[1], false).unwrap(),
    ];
    let other = TopicKey { topic_id: 8, epoch: 4 };
    let mut writer = SegmentWriter::create(&world.segs, other, 1).unwrap();
    let strange = sample(12).into_iter().map(|r| if r.hole { r } else { r.tag("strange") });
    fill(&mut writer, &strange.collect::<Vec<_>>()).unwrap();
    writer.seal().unwrap();
    let mut round = Round::new(&world.segs);
    let mut theirs = round.add(writer).unwrap();
    theirs.del_no =
        round.write_del(&world.segs.segment(other, theirs), &[0, 7].into_iter().collect()).unwrap();
    for meta in &mut metas {
        let dead = [1, 2].into_iter().collect();
        meta.del_no = round.write_del(&world.segment(meta), &dead).unwrap();
    }
    round.sync().unwrap();
    Disk { image: world.fs.kill_image(), metas, recs, theirs }
}

fn path(topic: u64, meta: &SegmentMeta, part: FileKind) -> Option<String> {
    let files = meta.files(topic);
    let (name, _) = files.iter().find(|(_, p)| *p == part)?;
    Some(format!("/d/topics/{topic}/{}", name.file(part)))
}

fn mount(hook: &Option<Arc<dyn Hook>>, image: &DiskImage) -> World {
    let fs = Arc::new(SimFs::from_image(image));
    let mut env = env_on(&fs, &Arc::new(SimClock::new(1)), 2);
    if let Some(hook) = hook {
        env = env.with_hook(hook.clone());
    }
    World::with_env(fs, env, SegmentOptions::default(), 2)
}

/// Checks that every answer is correct or reports damage; at most `damaged` records may be damaged.
fn honest(
    hook: &Option<Arc<dyn Hook>>,
    disk: &Disk,
    image: &DiskImage,
    damaged: usize,
    what: &str,
) -> Outcome {
    let world = mount(hook, image);
    for (meta, recs) in disk.metas.iter().zip(&disk.recs) {
        let segment = world.segment(meta);
        let named = world.segs.check_named(TOPIC, &[*meta], true);
        match read_all(&segment) {
            Err(StorageError::Corrupt { .. } | StorageError::Version { .. }) => {}
            Err(e) if named.is_ok() => return Err(format!("{what}: {e}")),
            Err(_) => {}
            Ok(found) => {
                let want = want(meta.first_seq, recs);
                let wrong = found.iter().any(|g| matches!(g, Got::Rec(..)) && !want.contains(g));
                let reported = found.iter().filter(|g| matches!(g, Got::Corrupt(_))).count();
                if wrong || found.len() < want.len() || reported > damaged {
                    return Err(format!("{what}: {found:?}"));
                }
            }
        }
        match segment.deleted() {
            Ok(dead) if dead.iter().collect::<Vec<_>>() != [1, 2] => {
                return Err(format!("{what}: {dead:?}"));
            }
            _ => {}
        }
        let late = segment.tag_seqs(TagMatch::Eq(b"late"), u64::MAX);
        let rows = segment.attrs().map(|t| t.rows().iter().map(|r| r.expires_at).collect());
        let seqs = [4, 10].map(|o| meta.first_seq + o).to_vec();
        let times = [5004, 5010].to_vec();
        let wrong = |r: &std::result::Result<Vec<u64>, StorageError>, want: &Vec<u64>| {
            r.as_ref().is_ok_and(|found| found != want)
        };
        if meta.sealed && (wrong(&late, &seqs) || wrong(&rows, &times)) {
            return Err(format!("{what}: {late:?} {rows:?}"));
        }
    }
    Ok(())
}

/// Whether opening refuses the files that the snapshot names.
fn refused(
    hook: &Option<Arc<dyn Hook>>,
    image: &DiskImage,
    meta: &SegmentMeta,
    expected: bool,
) -> Outcome {
    let world = mount(hook, image);
    match world.segs.check_named(TOPIC, &[*meta], true) {
        Ok(()) if expected => Err(format!("{meta:?} is not refused")),
        Err(e) if !expected => Err(e.to_string()),
        _ => Ok(()),
    }
}

/// Flipped bits, truncations, missing files, files of another topic, a failed sync.
fn programme(hook: &Option<Arc<dyn Hook>>, disk: &Disk) -> Outcome {
    for (meta, part) in disk.metas.iter().flat_map(|m| FileKind::ALL.map(|p| (m, p))) {
        let Some(file) = path(7, meta, part) else { continue };
        let good = disk.image.read(&file).unwrap();
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << (at % 8);
            let mut image = disk.image.clone();
            image.put(&file, &bytes);
            let damaged = usize::from(part == FileKind::Data);
            honest(hook, disk, &image, damaged, &format!("{part:?} byte {at}"))?;
            // A word of zeros, as if it was never written.
            bytes[at & !3..good.len().min((at & !3) + 4)].fill(0);
            image.put(&file, &bytes);
            let damaged = 2 * damaged;
            honest(hook, disk, &image, damaged, &format!("{part:?} zeros at {at}"))?;
        }
        let mut image = disk.image.clone();
        image.put(&file, &good[..good.len() - 1]);
        honest(hook, disk, &image, 1, &format!("{part:?} cut"))?;
        refused(hook, &image, meta, part == FileKind::Data)?;
        image.remove(&file);
        honest(hook, disk, &image, 0, &format!("{part:?} missing"))?;
        refused(hook, &image, meta, matches!(part, FileKind::Data | FileKind::Del))?;
        if let Some(other) = path(8, &disk.theirs, part).filter(|_| meta.sealed) {
            image.put(&file, &disk.image.read(&other).unwrap());
            honest(hook, disk, &image, 12, &format!("{part:?} of another topic"))?;
        }
    }
    let mut image = disk.image.clone();
    for part in FileKind::ALL {
        let other = disk.image.read(&path(8, &disk.theirs, part).unwrap()).unwrap();
        image.put(&path(7, &disk.metas[0], part).unwrap(), &other);
    }
    honest(hook, disk, &image, 12, "all of another topic")?;
    named_after_failure(hook)
}

/// I9: after a failed sync no snapshot names bytes of the failed round.
fn named_after_failure(hook: &Option<Arc<dyn Hook>>) -> Outcome {
    let world = mount(hook, &DiskImage::empty());
    let recs = sample(20);
    let text = |e: StorageError| e.to_string();
    let meta = world.append(None, 1, &recs[..10], false).map_err(text)?;
    world.fs.fail_nth(
        topics_sim::CallKind::SyncData,
        1,
        FaultKind::SyncFails { then: PageFate::Lost },
    );
    if world.append(Some(&meta), 0, &recs[10..], false).is_ok() {
        return Err("a failed sync was not reported".into());
    }
    let again = world.append(Some(&meta), 0, &recs[10..], false).map_err(text)?;
    if again.file_no == meta.file_no {
        return Err("bytes of a failed round are named".into());
    }
    Ok(())
}

#[test]
fn every_removed_check_is_detected() {
    let disk = disk();
    let log = Arc::new(SiteLog::default());
    programme(&Some(log.clone()), &disk).unwrap();
    let sites: Vec<Site> = log.sites().into_keys().collect();
    let checks: Vec<Site> = sites.into_iter().filter(|s| matches!(s, Site::Check(_))).collect();
    let missed: Vec<_> = checks
        .iter()
        .filter(|site| {
            let mutant: Arc<dyn Hook> = Arc::new(Mutant::remove(**site, None));
            let run = catch_unwind(AssertUnwindSafe(|| programme(&Some(mutant), &disk)));
            matches!(run, Ok(Ok(())))
        })
        .collect();
    assert!(missed.is_empty(), "no test detects that these checks are missing: {missed:?}");
    assert!(checks.len() >= 5, "{checks:?}");
}
