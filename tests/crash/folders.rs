//! The folders of topics and their files: after a clean close every folder is one of an existing topic, and
//! a snapshot names every file.

use std::collections::BTreeSet;
use std::path::Path;

use topics_env::Env;
use topics_sim::{DiskImage, env_on};
use topics_storage::dir::{Paths, Store, list_dir};
use topics_storage::snapshot;

use super::probe::{Mounted, Plan};
use crate::run::DIR;

/// One of this many disks is recovered once more, to delete its topics before the first snapshot.
const SHARE: u64 = 8;

/// The folders under `topics/` whose topic the newest snapshot does not have, and the files that no snapshot
/// names.
pub fn unnamed(disk: &Mounted, when: &str) -> Vec<String> {
    let env = env_on(&disk.fs, &disk.clock, 0);
    match find_unnamed(&env, &Paths::new(Path::new(DIR))) {
        Ok(left) => left.iter().map(|p| format!("{when}: no snapshot names {p}")).collect(),
        Err(e) => vec![format!("{when}: the folders of topics cannot be checked: {e}")],
    }
}

fn find_unnamed(env: &Env, paths: &Paths) -> topics_storage::Result<Vec<String>> {
    let Some(store) = Store::read(env, paths)? else { return Ok(Vec::new()) };
    let mut named = BTreeSet::new();
    let snapshots = snapshot::list(env, paths)?;
    let newest = snapshots.first();
    for n in &snapshots {
        let topics = snapshot::load(env, paths, *n, store.id)?.topics;
        for i in 0..topics.len() {
            let topic = topics.topic_header(i)?;
            named.extend((Some(n) == newest).then(|| paths.topic(topic.topic_id)));
            let files = topic.segments.iter().flat_map(|s| s.files(topic.topic_id));
            named.extend(files.map(|(name, kind)| paths.segment(&name, kind)));
        }
    }
    let mut found = BTreeSet::new();
    for folder in list_dir(env, &paths.topics())? {
        let folder = paths.topics().join(folder.name);
        let files = list_dir(env, &folder)?;
        found.extend(files.into_iter().map(|f| folder.join(f.name)));
        found.insert(folder);
    }
    Ok(found.difference(&named).map(|p| p.display().to_string()).collect())
}

/// Recovers some disks, deletes every topic and writes two snapshots: then no snapshot names a topic, and
/// no folder is left, nor is there one after a clean close and an open.
pub fn after_deletes(image: &DiskImage, plan: &Plan) -> Vec<String> {
    if !image.hash().is_multiple_of(SHARE) {
        return Vec::new();
    }
    let mut disk = Mounted::new(image, plan);
    let deleted = delete_all(&mut disk, image.failed_write_back());
    deleted.unwrap_or_else(|e| vec![format!("every topic is deleted: {e}")])
}

fn delete_all(disk: &mut Mounted, failed_write_back: bool) -> topics_engine::Result<Vec<String>> {
    let engine = disk.open()?;
    if failed_write_back {
        // Its round is abandoned if a file that it appends to reports the error.
        let _ = engine.checkpoint();
    }
    while let Some(topic) = engine.list("", None, 1).pop() {
        engine.delete_topic(&topic.topic, false)?;
    }
    for _ in 0..2 {
        engine.checkpoint()?;
    }
    let mut out = unnamed(disk, "every topic is deleted, two snapshots");
    engine.close()?;
    drop(engine);
    let engine = disk.open()?;
    out.extend(unnamed(disk, "every topic is deleted, a clean close and an open"));
    drop(engine);
    Ok(out)
}
