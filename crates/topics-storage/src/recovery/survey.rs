//! Determines which shards must exist, and what the snapshot reflects of each.

use topics_env::Env;

use super::folder::{Folder, folder_name};
use super::shard_plan::Reflected;
use crate::dir::{Paths, list_dir, show};
use crate::format::wal_file;
use crate::segment::parse_file_name;
use crate::snapshot::{ShardSnap, SnapshotBody};
use crate::wal::scan;
use crate::{Result, StorageError};

/// A shard to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub shard: u32,
    /// The snapshot needs the shard, so a missing folder is damage.
    pub known: bool,
    pub reflected: Reflected,
}

/// The entry of a snapshot for a shard.
pub(crate) fn snap_of(snapshot: Option<&SnapshotBody>, shard: u32) -> Option<&ShardSnap> {
    let body = snapshot?;
    body.shards.iter().chain(&body.retired).find(|s| s.shard == shard)
}

/// The shards that have a folder, and those that the snapshot needs.
pub(crate) fn shards(
    env: &Env,
    paths: &Paths,
    snapshot: Option<&SnapshotBody>,
) -> Result<Vec<Wanted>> {
    let listed = list_dir(env, &paths.wal())?;
    let mut ids: Vec<u32> = listed.iter().filter_map(|e| shard_id(&e.name)).collect();
    let mut needed: Vec<u32> = Vec::new();
    if let Some(body) = snapshot {
        let unfinished = body.retired.iter().filter(|s| s.replay_lsn < s.last_lsn);
        needed.extend(body.shards.iter().chain(unfinished).map(|s| s.shard));
    }
    ids.extend(&needed);
    ids.sort_unstable();
    ids.dedup();
    let wanted = |shard: u32| Wanted {
        shard,
        known: needed.contains(&shard),
        reflected: reflected(snapshot, shard),
    };
    Ok(ids.into_iter().map(wanted).collect())
}

/// How much of a shard's log a snapshot reflects.
pub(crate) fn reflected(snapshot: Option<&SnapshotBody>, shard: u32) -> Reflected {
    snap_of(snapshot, shard).map_or(Reflected::default(), |s| Reflected {
        known: true,
        replay_lsn: s.replay_lsn,
        durable_lsn: s.synced_lsn.max(s.replay_lsn),
    })
}

/// Whether a snapshot needs nothing of a shard outside its layout.
pub(crate) fn is_done(body: &SnapshotBody, shard: u32) -> bool {
    body.retired.iter().any(|s| s.shard == shard && s.replay_lsn >= s.last_lsn)
}

/// Whether the folder of a shard may be removed, judged by the two kept snapshots, newest first. A
/// part of it may have been removed already.
pub(crate) fn may_go(
    env: &Env,
    paths: &Paths,
    kept: [&SnapshotBody; 2],
    shard: u32,
) -> Result<bool> {
    if !kept.iter().all(|b| is_done(b, shard)) {
        return Ok(false);
    }
    let dir = paths.shard(shard);
    if !env.fs.exists(&dir).map_err(|e| StorageError::io(show(&dir), e))? {
        return Ok(true);
    }
    let names = list_dir(env, &dir)?;
    let newest = names.iter().filter_map(|e| wal_file::parse_name(&e.name)).max();
    // A newer file belongs to a layout, unknown to both snapshots, that has the shard again.
    Ok(newest.map(|(g, _)| g) <= Some(kept[0].generation))
}

/// The shard of a folder name.
pub(crate) fn shard_id(name: &str) -> Option<u32> {
    let id = name.strip_prefix("shard-")?.parse().ok()?;
    (format!("shard-{id:02}") == name).then_some(id)
}

/// The shards of the newest layout that have no file of it, though each must have one.
///
/// A layout's first files get their names from the last shard to the first. So where shard 0 has a
/// file of a layout every shard of it has one, and where any shard was written to shard 0 has one.
pub(crate) fn missing_shards(env: &Env, folders: &[&Folder]) -> Result<Vec<u32>> {
    let newest = |f: &Folder| f.files.iter().map(|l| (l.header.layout, l.header.shards)).max();
    let zero = folders.iter().find(|f| f.shard == 0).and_then(|f| newest(f));
    let mut layout = zero;
    if zero.is_none() {
        for log in folders.iter().flat_map(|f| &f.files) {
            let shown = folder_name(log.header.shard, &log.name);
            let used = scan::holds_live_group(&log.file, &log.header, &shown)?;
            if !env.check("recovery.layout.first", !used) {
                layout = folders.iter().filter_map(|f| newest(f)).max();
                break;
            }
        }
    }
    let Some((layout, shards)) = layout else { return Ok(Vec::new()) };
    let there = |f: &Folder, shard| f.shard == shard && newest(f).is_some_and(|l| l.0 >= layout);
    let missing =
        |shard: &u32| !env.check("recovery.layout", folders.iter().any(|f| there(f, *shard)));
    let mut missing: Vec<u32> = (0..shards).filter(missing).collect();
    if zero.is_none() && missing.first() != Some(&0) {
        missing.insert(0, 0);
    }
    Ok(missing)
}

/// The error that a shard has no file of the newest layout.
pub(crate) fn no_current(shard: u32) -> StorageError {
    StorageError::Missing { what: folder_name(shard, "CURRENT") }
}

/// The newest generation in the file numbers of the segments. No number may be used twice, even if the
/// logs that tell the generations are lost.
pub(crate) fn newest_file_generation(env: &Env, paths: &Paths) -> Result<u64> {
    let mut newest = 0;
    for topic in list_dir(env, &paths.topics())? {
        let Ok(id) = topic.name.parse() else { continue };
        for entry in list_dir(env, &paths.topic(id))? {
            let file = parse_file_name(id, &entry.name);
            newest = newest.max(file.map_or(0, |(name, _)| name.file_no >> 32));
        }
    }
    Ok(newest)
}
