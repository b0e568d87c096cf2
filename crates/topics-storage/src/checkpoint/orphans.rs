//! Which files no kept snapshot names.

use crate::Result;
use crate::segment::{FileKind, SegmentName};
use crate::snapshot::Table;

/// The files of a topic.
pub(super) fn named(topics: &Table, i: usize) -> Result<Vec<(SegmentName, FileKind)>> {
    let t = topics.topic_header(i)?;
    Ok(t.segments.iter().flat_map(|s| s.files(t.topic_id)).collect())
}

/// Files or a topic that no kept snapshot names.
#[derive(Debug)]
pub(super) enum Orphan {
    Files(Vec<(SegmentName, FileKind)>),
    Topic(u64),
}

/// The files of a topic that no kept snapshot names; the whole topic, if none knows it.
pub(super) fn find_orphan(
    kept: &[&Table],
    id: u64,
    mut files: Vec<(SegmentName, FileKind)>,
) -> Result<Option<Orphan>> {
    let mut known = false;
    for topics in kept {
        let Some(i) = topics.by_id(id) else { continue };
        let still = named(topics, i)?;
        files.retain(|f| !still.contains(f));
        known = true;
    }
    Ok(match known {
        false => Some(Orphan::Topic(id)),
        true => (!files.is_empty()).then_some(Orphan::Files(files)),
    })
}

/// The files of `gone` that no kept snapshot names.
pub(super) fn find_orphans(kept: &[&Table], gone: &Table, out: &mut Vec<Orphan>) -> Result<()> {
    for i in 0..gone.len() {
        let id = gone.id(i);
        let as_before = |t: &&Table| t.by_id(id).is_some_and(|k| t.entry(k) == gone.entry(i));
        if !kept.iter().any(as_before) {
            out.extend(find_orphan(kept, id, named(gone, i)?)?);
        }
    }
    Ok(())
}
