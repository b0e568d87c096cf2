//! Which shards must be there, and what the snapshot says about each.

use topics_env::Env;

use super::plan::Reflected;
use crate::dir::{Paths, list_dir};
use crate::snapshot::{ShardSnap, SnapshotBody};
use crate::Result;

/// A shard to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub shard: u32,
    /// The snapshot needs the shard: that nothing is there would be damage.
    pub known: bool,
    pub reflected: Reflected,
}

/// What a snapshot says about a shard.
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
        reflected: snap_of(snapshot, shard).map_or(Reflected::default(), |s| Reflected {
            known: true,
            replay_lsn: s.replay_lsn,
            durable_lsn: s.synced_lsn.max(s.replay_lsn),
        }),
    };
    Ok(ids.into_iter().map(wanted).collect())
}

/// The shard that a folder's name means.
pub(crate) fn shard_id(name: &str) -> Option<u32> {
    let id = name.strip_prefix("shard-")?.parse().ok()?;
    (format!("shard-{id:02}") == name).then_some(id)
}
