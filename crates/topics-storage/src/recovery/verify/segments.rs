//! Every record of every segment that a kept snapshot names, and what lies beside them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::Check;
use crate::Result;
use crate::dir::show;
use crate::segment::{
    Block, FileKind, Item, SegmentMeta, SegmentOptions, Segments, TagMatch, TopicKey,
};
use crate::snapshot::SnapshotBody;

/// Bytes of frames that are read at a time.
const READ: usize = 8 << 20;

impl Check<'_> {
    pub(super) fn segments(&mut self, kept: &[(u64, SnapshotBody)]) -> Result<()> {
        let generation = kept.first().map_or(0, |(_, b)| b.generation) + 1;
        let (env, paths) = (self.env.clone(), self.paths.clone());
        let options = SegmentOptions::default();
        let segments = Segments::new(env, paths, self.id, generation, options);
        let (mut seen, mut cold) = (BTreeSet::new(), BTreeSet::new());
        for (_, body) in kept {
            for topic in &body.topics {
                let key = TopicKey { topic_id: topic.topic_id, epoch: topic.epoch };
                for meta in &topic.segments {
                    if meta.cold && cold.insert((key, meta.file_no)) {
                        self.report.cold_records += meta.live_count;
                    }
                    // An active segment grows from snapshot to snapshot: the same files, more of
                    // them.
                    if seen.insert((key, meta.file_no, meta.data_no, meta.del_no, meta.data_len)) {
                        self.segment(&segments, key, *meta)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn segment(
        &mut self,
        segments: &Arc<Segments>,
        key: TopicKey,
        meta: SegmentMeta,
    ) -> Result<()> {
        if meta.cold {
            return self.cold_segment(segments, key, meta);
        }
        let data = self.paths.segment(&meta.data_name(key.topic_id), FileKind::Data);
        for (name, kind) in meta.files(key.topic_id) {
            self.count(&self.paths.segment(&name, kind))?;
        }
        let before = self.report.problems.len();
        self.record(&data, segments.check_named(key, &[meta], true))?;
        if self.report.problems.len() > before {
            return Ok(());
        }
        self.record(&data, segments.segment(key, meta).check_header())?;
        let (_, rebuilt) = segments.damage_counts();
        let outcome = self.records(segments, key, meta);
        self.record(&data, outcome)?;
        if segments.damage_counts().1 > rebuilt {
            let index = self.paths.segment(&meta.name(key.topic_id), FileKind::Idx);
            let detail = "this file, or .tags or .attrs beside it, is damaged or missing; opening \
                          makes it again";
            self.add_problem(show(&index), 0, detail.into());
        }
        Ok(())
    }

    /// What is here of a segment whose records are in an object store: which of them are deleted. The other
    /// files are there too, and are made again from the store if they are not.
    fn cold_segment(
        &mut self,
        segments: &Arc<Segments>,
        key: TopicKey,
        meta: SegmentMeta,
    ) -> Result<()> {
        let Some(name) = meta.del_name(key.topic_id) else { return Ok(()) };
        let deleted = self.paths.segment(&name, FileKind::Del);
        self.count(&deleted)?;
        let outcome = segments.segment(key, meta).deleted().map(drop);
        self.record(&deleted, outcome)
    }

    /// Every record, dead ones too, and what the other files say of them.
    fn records(
        &mut self,
        segments: &Arc<Segments>,
        key: TopicKey,
        meta: SegmentMeta,
    ) -> Result<()> {
        let segment = segments.segment(key, meta);
        let name = meta.data_name(key.topic_id).file(FileKind::Data);
        let data = show(&Path::new("topics").join(key.topic_id.to_string()).join(name));
        let (mut block, mut at) = (Block::new(), meta.first_seq);
        // Holes may be named as deleted too.
        let deleted = segment.deleted()?;
        let (mut whole, mut live, mut tagged, mut damaged) = (0, 0, 0, 0);
        while at <= meta.last_seq {
            block.clear();
            let next = segment.read(at, meta.last_seq, READ, &|_| false, &mut block)?;
            for item in block.items() {
                match item {
                    Item::Record(f) => {
                        whole += 1;
                        let offset = u32::try_from(f.seq - meta.first_seq).unwrap_or(u32::MAX);
                        live += u64::from(!deleted.contains(offset));
                        tagged += u64::from(!f.tag.is_empty());
                    }
                    Item::Corrupt(seq) => {
                        damaged += 1;
                        let place = segment.entries(seq, seq)?.first().map_or(0, |e| e.offset);
                        let detail = format!("record {seq} fails its checksum");
                        self.add_problem(data.clone(), u64::from(place), detail);
                    }
                }
            }
            if next <= at {
                break;
            }
            at = next;
        }
        self.report.records += whole;
        if damaged == 0 && meta.live_count > live {
            let named = meta.live_count;
            let detail = format!("the snapshot names {named} live records, {live} are there");
            self.add_problem(data.clone(), 0, detail);
        }
        if meta.has_tags {
            let seqs = segment.tag_seqs(TagMatch::Prefix(b""), meta.last_seq)?;
            if damaged == 0 && seqs.len() as u64 != tagged {
                let name = meta.name(key.topic_id).file(FileKind::Tags);
                let file = show(&Path::new("topics").join(key.topic_id.to_string()).join(name));
                let detail = format!("{tagged} records have a tag, it names {}", seqs.len());
                self.add_problem(file, 0, detail);
            }
        }
        segment.attrs().map(drop)
    }
}
