//! Which files no kept snapshot names.

use std::collections::{BTreeMap, BTreeSet};

use crate::Result;
use crate::segment::{FileKind, SegmentName};
use crate::snapshot::Table;

/// The `.data` of cold segments that are still in the directory, with the file numbers of the segments.
pub(super) type LocalData = BTreeMap<SegmentName, u64>;

/// Takes those out whose segment no kept snapshot calls cold any more: they are orphans, unless a snapshot calls
/// the segment hot again.
pub(super) fn no_longer_cold(kept: &[&Table], local: &mut LocalData) -> Result<Vec<Orphan>> {
    let (mut cold, mut hot) = (BTreeSet::new(), BTreeSet::new());
    let ids: BTreeSet<u64> = local.keys().map(|name| name.topic_id).collect();
    for topics in kept {
        for i in ids.iter().filter_map(|id| topics.by_id(*id)) {
            let t = topics.topic_header(i)?;
            for s in t.segments.iter() {
                let names = if s.cold { &mut cold } else { &mut hot };
                names.insert(s.data_name(t.topic_id));
            }
        }
    }
    let mut out = Vec::new();
    local.retain(|name, _| {
        if hot.contains(name) {
            return false;
        }
        let stays = cold.contains(name);
        out.extend((!stays).then(|| Orphan::Files(vec![(*name, FileKind::Data)])));
        stays
    });
    Ok(out)
}

/// The files of a topic.
pub(super) fn named(topics: &Table, i: usize) -> Result<Vec<(SegmentName, FileKind)>> {
    let t = topics.topic_header(i)?;
    Ok(t.segments.iter().flat_map(|s| s.files(t.topic_id)).collect())
}

/// The `.data` files of the cold segments of a topic, each with the file number of its segment.
pub(super) fn cold_data(topics: &Table, i: usize) -> Result<Vec<(SegmentName, u64)>> {
    let t = topics.topic_header(i)?;
    let cold = t.segments.iter().filter(|s| s.cold);
    Ok(cold.map(|s| (s.data_name(t.topic_id), s.file_no)).collect())
}

/// Files or a topic that no kept snapshot names.
#[derive(Debug)]
pub(super) enum Orphan {
    Files(Vec<(SegmentName, FileKind)>),
    Topic(u64),
}

/// The files of a topic that no kept snapshot names; the whole topic, if none knows it. The `.data` of
/// segments that a kept snapshot calls cold go to `local` instead.
pub(super) fn find_orphan(
    kept: &[&Table],
    id: u64,
    mut files: Vec<(SegmentName, FileKind)>,
    local: &mut LocalData,
) -> Result<Option<Orphan>> {
    let mut known = false;
    let mut cold = Vec::new();
    for topics in kept {
        let Some(i) = topics.by_id(id) else { continue };
        let still = named(topics, i)?;
        files.retain(|f| !still.contains(f));
        cold.extend(cold_data(topics, i)?);
        known = true;
    }
    files.retain(|(name, kind)| {
        let found = cold.iter().find(|(n, _)| *kind == FileKind::Data && n == name);
        local.extend(found.copied());
        found.is_none()
    });
    Ok(match known {
        false => Some(Orphan::Topic(id)),
        true => (!files.is_empty()).then_some(Orphan::Files(files)),
    })
}

/// The files of `gone` that no kept snapshot names.
pub(super) fn find_orphans(
    kept: &[&Table],
    gone: &Table,
    out: &mut Vec<Orphan>,
    local: &mut LocalData,
) -> Result<()> {
    for i in 0..gone.len() {
        let id = gone.id(i);
        let as_before = |t: &&Table| t.by_id(id).is_some_and(|k| t.entry(k) == gone.entry(i));
        if !kept.iter().any(as_before) {
            out.extend(find_orphan(kept, id, named(gone, i)?, local)?);
        }
    }
    Ok(())
}
