//! The files of the segments that the snapshot of a base names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use topics_env::OpenMode;
use topics_env::objects::ObjectStore;
use topics_env::sync::Mutex;
use topics_remote::format::base::{BaseSegment, Span};
use topics_remote::format::pack::{PARTS, PackPart};
use topics_remote::{Retry, read};
use topics_storage::StorageError;
use topics_storage::dir::{create_dir, write_file};
use topics_storage::segment::{
    ColdFiles, FileKind, Round, SegmentMeta, SegmentOptions, SegmentWriter, Segments, TopicKey,
    check_deletes,
};
use topics_storage::snapshot::{GapSnap, ReplayPos, SnapshotBody, TopicSnap};

use super::{Form, Restore, Restored};
use crate::ship::owner::remote_error;
use crate::tier::{ArchivedPack, PackTable};
use crate::types::api::GapReason;
use crate::types::config::{TopicConfig, TopicType};
use crate::types::error::Result;

fn has_records(meta: &SegmentMeta) -> bool {
    meta.span() > 0 && meta.live_count > 0
}

/// Segments whose records are all deleted, by topic. No pack has them, but without them their seqs would be
/// lost, or given again.
type DeadSegments = BTreeMap<u64, Vec<SegmentMeta>>;

/// Removes the segments without records from a topic. Returns those whose seqs are above its floor.
fn take_dead(topic: &mut TopicSnap) -> Vec<SegmentMeta> {
    let (live, mut dead): (Vec<_>, Vec<_>) = topic.segments.drain(..).partition(has_records);
    topic.segments = live;
    dead.retain(|meta| meta.span() > 0 && meta.last_seq >= topic.delete_below);
    dead
}

/// How often a file is fetched again whose bytes were damaged on the way.
const FETCHES: u32 = 3;

/// The files of segments in packs, fetched by the thread that reads them.
#[derive(Debug)]
struct PackFiles {
    store: Arc<dyn ObjectStore>,
    retry: Retry,
    packs: PackTable,
    /// How often a file was damaged.
    damaged: Mutex<HashMap<(u64, FileKind), u32>>,
}

impl PackFiles {
    /// The pack of a segment; offset and length of one of its files in it.
    fn locate(
        &self,
        file_no: u64,
        kind: FileKind,
    ) -> topics_storage::Result<(Arc<ArchivedPack>, (u64, u64))> {
        let (pack, segment) = self.packs.find(file_no).ok_or_else(|| {
            let what = format!("the pack of the segment with file number {file_no}");
            StorageError::Missing { what }
        })?;
        Ok((pack, segment.part(kind)))
    }
}

impl ColdFiles for PackFiles {
    fn read(
        &self,
        file_no: u64,
        kind: FileKind,
        at: u64,
        buf: &mut [u8],
    ) -> topics_storage::Result<()> {
        let (pack, (offset, len)) = self.locate(file_no, kind)?;
        let len = (buf.len() as u64).min(len.saturating_sub(at));
        buf.fill(0);
        if len == 0 {
            return Ok(());
        }
        let part = PackPart { offset: offset + at, len, ..PackPart::default() };
        let found = read::place(&*self.store, &self.retry, &pack.place(&part))
            .map_err(|e| StorageError::Unreachable { detail: e.to_string() })?;
        let n = found.len().min(len as usize);
        buf[..n].copy_from_slice(&found[..n]);
        Ok(())
    }

    fn len(&self, file_no: u64, kind: FileKind) -> topics_storage::Result<u64> {
        self.locate(file_no, kind).map(|(_, (_, len))| len)
    }

    fn is_seen(&self, _file_no: u64) -> bool {
        false
    }

    fn distrust(&self, file_no: u64, kind: FileKind, _at: u64, _len: u64) -> bool {
        let mut damaged = self.damaged.lock();
        let times = damaged.entry((file_no, kind)).or_insert(0);
        *times += 1;
        *times < FETCHES
    }
}

/// A file that a pack has, or a part of one.
enum Wanted<'a> {
    Segment(u64, SegmentMeta, &'a BaseSegment),
    /// The offset in the file.
    Tail(u64, SegmentMeta, u32, Span),
    Deletes(u64, SegmentMeta, Span),
}

/// Where the `.del` of a sealed segment is.
struct SealedDeletes {
    at: Span,
    topic: u64,
    meta: SegmentMeta,
}

impl Restore<'_> {
    /// Whether the records of a topic with this config must be in the directory. A claim of jobs does not wait
    /// for the store.
    fn is_local(&self, config: &[u8]) -> Result<bool> {
        Ok(match self.form {
            Form::Copy => true,
            Form::Adopt => TopicConfig::decode(config)?.kind == TopicType::Queue,
            Form::View | Form::Sealed => false,
        })
    }

    /// Writes the files of every segment that does not stay in the prefix, and makes the snapshot name
    /// exactly these, and those that do as cold.
    pub(super) fn segments(&self, body: &mut SnapshotBody, out: &mut Restored) -> Result<()> {
        let base = &self.base.base;
        let places: HashMap<u64, &BaseSegment> =
            base.segments.iter().map(|s| (s.file_no, s)).collect();
        let mut tails: HashMap<u64, Vec<(u32, Span)>> = HashMap::new();
        for t in &base.tails {
            tails.entry(t.file_no).or_default().push((t.from, t.at));
        }
        let deletes: HashMap<u64, Span> = base.deletes.iter().map(|d| (d.del_no, d.at)).collect();
        let mut wanted: BTreeMap<u32, Vec<Wanted<'_>>> = BTreeMap::new();
        let (mut missing, mut cold) = (BTreeSet::new(), BTreeSet::new());
        let mut dead = DeadSegments::new();
        for topic in &mut body.topics {
            dead.insert(topic.topic_id, take_dead(topic));
            let is_local = self.is_local(&topic.config)?;
            for meta in &mut topic.segments {
                let place = places.get(&meta.file_no);
                meta.cold = !is_local && place.is_some();
                let (id, meta) = (topic.topic_id, *meta);
                let parts = tails.get(&meta.file_no).map_or(&[][..], |parts| parts);
                let end = parts.last().map_or(0, |(from, at)| u64::from(*from) + u64::from(at.len));
                let del = deletes.get(&meta.del_no);
                // Without its bitmap the records that were deleted would come back.
                let is_whole = place.is_some() || end >= meta.data_len;
                if !is_whole || (meta.del_no != 0 && del.is_none()) {
                    missing.insert(meta.file_no);
                    continue;
                }
                match place {
                    Some(p) if meta.cold => {
                        // Files of it will be kept there.
                        cold.insert(id);
                        out.remote_bytes += p.lens.iter().map(|len| u64::from(*len)).sum::<u64>();
                    }
                    Some(p) => wanted.entry(p.pack).or_default().push(Wanted::Segment(id, meta, p)),
                    None => {
                        for (from, at) in parts {
                            let tail = Wanted::Tail(id, meta, *from, *at);
                            wanted.entry(at.pack).or_default().push(tail);
                        }
                    }
                }
                if let Some(at) = del {
                    wanted.entry(at.pack).or_default().push(Wanted::Deletes(id, meta, *at));
                }
            }
        }
        let mut topics = BTreeSet::new();
        for topic in cold {
            topics.insert(topic);
            create_dir(self.env, "dir.names", &self.paths.topic(topic))?;
        }
        for (pack, files) in wanted {
            let Some(pack) = base.pack(pack) else { continue };
            let found = read::pack(&*self.store, &self.retry, &pack.object());
            let (_, object) = found.map_err(remote_error)?;
            for file in files {
                let (Wanted::Segment(topic, ..)
                | Wanted::Tail(topic, ..)
                | Wanted::Deletes(topic, ..)) = &file;
                if topics.insert(*topic) {
                    create_dir(self.env, "dir.names", &self.paths.topic(*topic))?;
                }
                out.segment_bytes += self.write(&file, &object.bytes)?;
            }
        }
        self.side_files(body, &tails, &missing)?;
        for topic in topics {
            let dir = self.paths.topic(topic);
            let synced = self.env.sync_dir("restore.dir", &dir);
            synced.map_err(|e| StorageError::io(dir.display().to_string(), e))?;
        }
        for topic in &mut body.topics {
            out.missing_segments += declare_lost(topic, &missing);
        }
        self.dead_segments(body, dead)
    }

    /// Writes segments without records, and names them in the snapshot.
    fn dead_segments(&self, body: &mut SnapshotBody, mut dead: DeadSegments) -> Result<()> {
        let (env, paths, id) = (self.env, &self.paths, self.base.base.header.store_id);
        let segments = Segments::new(env.clone(), paths.clone(), id, 0, SegmentOptions::default());
        let mut round = Round::new(&segments);
        for topic in &mut body.topics {
            let key = TopicKey { topic_id: topic.topic_id, epoch: topic.epoch };
            for meta in dead.remove(&topic.topic_id).unwrap_or_default() {
                let writer = SegmentWriter::without_records(&segments, key, &meta)?;
                topic.segments.push(round.add(writer)?);
            }
            topic.segments.sort_unstable_by_key(|meta| meta.first_seq);
        }
        round.sync()?;
        segments.close();
        Ok(())
    }

    /// Reduces a snapshot to the sealed segments that packs have, and fetches their `.del`. It is then the first
    /// one of a log that is empty.
    pub(super) fn sealed_only(&self, body: &mut SnapshotBody) -> Result<()> {
        let base = &self.base.base;
        let sealed: BTreeSet<u64> = base.segments.iter().map(|s| s.file_no).collect();
        let deletes: HashMap<u64, Span> = base.deletes.iter().map(|d| (d.del_no, d.at)).collect();
        let mut wanted = Vec::new();
        for topic in &mut body.topics {
            // Without its bitmap the records that were deleted would come back.
            let has_deletes = |m: &SegmentMeta| m.del_no == 0 || deletes.contains_key(&m.del_no);
            let is_read = |m: &SegmentMeta| has_records(m) && sealed.contains(&m.file_no);
            topic.segments.retain(|m| is_read(m) && has_deletes(m));
            for meta in &mut topic.segments {
                meta.cold = true;
                if let Some(at) = deletes.get(&meta.del_no) {
                    wanted.push(SealedDeletes { at: *at, topic: topic.topic_id, meta: *meta });
                }
            }
            end_with_segments(topic)?;
        }
        body.topics.retain(|topic| !topic.segments.is_empty());
        for topic in &body.topics {
            create_dir(self.env, "dir.names", &self.paths.topic(topic.topic_id))?;
        }
        self.fetch_deletes(&mut wanted)?;
        body.sections.clear();
        body.shards.clear();
        body.retired.clear();
        // The layout that an open without a log begins.
        body.layout = body.generation + 1;
        Ok(())
    }

    /// Writes `.del` files, one request for those that lie side by side. Nothing beside them is fetched.
    fn fetch_deletes(&self, wanted: &mut [SealedDeletes]) -> Result<()> {
        wanted.sort_unstable_by_key(|d| (d.at.pack, d.at.offset));
        for run in
            wanted.chunk_by(|a, b| a.at.pack == b.at.pack && a.at.offset + a.at.len == b.at.offset)
        {
            let mut fetches = 0;
            while let Err(e) = self.fetch_run(run) {
                fetches += 1;
                if fetches == FETCHES {
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    fn fetch_run(&self, run: &[SealedDeletes]) -> Result<()> {
        let Some(first) = run.first() else { return Ok(()) };
        let len = run.iter().map(|d| d.at.len).sum();
        let Some(place) = self.base.base.place(&Span { len, ..first.at }) else { return Ok(()) };
        let found = read::place(&*self.store, &self.retry, &place).map_err(remote_error)?;
        for SealedDeletes { at, topic, meta } in run {
            let Some(name) = meta.del_name(*topic) else { continue };
            let path = self.paths.segment(&name, FileKind::Del);
            let from = (at.offset - first.at.offset) as usize;
            let bytes = found.get(from..from + at.len as usize).unwrap_or_default();
            let shown = path.display().to_string();
            check_deletes(self.env, &shown, bytes, meta.first_seq, meta.del_no)?;
            write_file(self.env, "restore.file", &path, bytes)?;
        }
        Ok(())
    }

    /// Makes the `.idx`, `.tags` and `.attrs` of segments of which packs have only the `.data`.
    fn side_files(
        &self,
        body: &SnapshotBody,
        tails: &HashMap<u64, Vec<(u32, Span)>>,
        missing: &BTreeSet<u64>,
    ) -> Result<()> {
        let (env, paths, id) = (self.env, &self.paths, self.base.base.header.store_id);
        let options = SegmentOptions::default();
        let segments = Segments::new(env.clone(), paths.clone(), id, 0, options);
        for topic in &body.topics {
            let key = TopicKey { topic_id: topic.topic_id, epoch: topic.epoch };
            let is_tail =
                |m: &&SegmentMeta| tails.contains_key(&m.file_no) && !missing.contains(&m.file_no);
            for meta in topic.segments.iter().filter(is_tail) {
                let segment = segments.segment(key, *meta);
                let files = meta.files(key.topic_id).into_iter();
                let sides = files.filter(|(_, kind)| PARTS[1..].contains(kind));
                for (name, kind) in sides {
                    let path = paths.segment(&name, kind);
                    write_file(env, "restore.file", &path, &segment.make_side(kind)?)?;
                }
            }
        }
        segments.close();
        Ok(())
    }

    /// Fetches the `.idx`, `.tags` and `.attrs` of cold segments: no write, no retention and no delivery of the
    /// new directory waits for the store.
    pub(super) fn fetch_sides(&self, body: &SnapshotBody, packs: PackTable) -> Result<()> {
        let (env, paths, id) = (self.env, &self.paths, self.base.base.header.store_id);
        let segments = Segments::new(env.clone(), paths.clone(), id, 0, SegmentOptions::default());
        let (store, retry, damaged) = (self.store.clone(), self.retry.clone(), Mutex::default());
        segments.set_cold(Arc::new(PackFiles { store, retry, packs, damaged }));
        for topic in &body.topics {
            let key = TopicKey { topic_id: topic.topic_id, epoch: topic.epoch };
            for meta in topic.segments.iter().filter(|m| m.cold) {
                segments.segment(key, *meta).fetch_sides()?;
            }
        }
        segments.close();
        Ok(())
    }

    /// Writes files of a pack. Returns their length.
    fn write(&self, file: &Wanted<'_>, pack: &[u8]) -> Result<u64> {
        let of = |offset: u32, len: u32| &pack[offset as usize..(offset + len) as usize];
        match file {
            Wanted::Segment(topic, meta, place) => {
                let (mut at, mut written) = (place.offset, 0);
                for (kind, len) in PARTS.into_iter().zip(place.lens).filter(|(_, len)| *len > 0) {
                    let name = match kind {
                        FileKind::Data => meta.data_name(*topic),
                        _ => meta.name(*topic),
                    };
                    let path = self.paths.segment(&name, kind);
                    write_file(self.env, "restore.file", &path, of(at, len))?;
                    at += len;
                    written += u64::from(len);
                }
                Ok(written)
            }
            Wanted::Tail(topic, meta, from, at) => {
                let path = self.paths.segment(&meta.data_name(*topic), FileKind::Data);
                let io = |e| StorageError::io(path.display().to_string(), e);
                let mode = if *from == 0 { OpenMode::CreateNew } else { OpenMode::Write };
                let file = self.env.fs.open(&path, mode).map_err(io)?;
                // The snapshot may name less of the file than was put.
                let len = u64::from(at.len).min(meta.data_len.saturating_sub(u64::from(*from)));
                file.write_all_at(of(at.offset, len as u32), u64::from(*from)).map_err(io)?;
                self.env.sync("restore.file", &*file).map_err(io)?;
                Ok(len)
            }
            Wanted::Deletes(topic, meta, at) => {
                if let Some(name) = meta.del_name(*topic) {
                    let path = self.paths.segment(&name, FileKind::Del);
                    write_file(self.env, "restore.file", &path, of(at.offset, at.len))?;
                }
                Ok(0)
            }
        }
    }
}

/// Reduces a topic to its segments. Their records do not expire by the topic's TTL, which may have changed since:
/// whoever plans a read knows what the topic still has.
fn end_with_segments(topic: &mut TopicSnap) -> Result<()> {
    let head = topic.segments.last().map_or(0, |m| m.last_seq);
    topic.head = head;
    topic.reserved_to = head;
    topic.earliest_seq = topic.earliest_seq.min(head + 1);
    topic.evict_floor = topic.evict_floor.min(head + 1);
    topic.delete_below = topic.delete_below.min(head + 1);
    topic.gaps.retain(|gap| gap.to <= head);
    topic.live_count = topic.segments.iter().map(|m| m.live_count).sum();
    topic.live_bytes = topic.segments.iter().map(|m| m.live_bytes).sum();
    topic.replay = ReplayPos::default();
    topic.idempotency.clear();
    topic.sections.clear();
    let config = TopicConfig::decode(&topic.config)?;
    topic.config = TopicConfig { ttl_ms: 0, kind: TopicType::Log, ..config }.encode();
    Ok(())
}

/// Removes the segments of a topic that are missing; their seqs are gaps. Returns how many.
fn declare_lost(topic: &mut TopicSnap, missing: &BTreeSet<u64>) -> u64 {
    let (gone, kept): (Vec<_>, Vec<_>) =
        topic.segments.drain(..).partition(|m| missing.contains(&m.file_no));
    topic.segments = kept;
    let reason = GapReason::Corrupt.code();
    for meta in &gone {
        topic.gaps.push(GapSnap { from: meta.first_seq, to: meta.last_seq, reason });
        topic.live_count = topic.live_count.saturating_sub(meta.live_count);
        topic.live_bytes = topic.live_bytes.saturating_sub(meta.live_bytes);
    }
    topic.gaps.sort_unstable_by_key(|g| g.from);
    gone.len() as u64
}
