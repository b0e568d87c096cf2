//! Checking every byte of a directory that nobody has open, without changing one of them but the
//! lock file.
//!
//! What counts is what a next open would need: the identity, both kept snapshots, every segment file
//! that they name, and the logs. Damage that an open heals by itself (an older snapshot, an index
//! that is made again) is a problem here all the same: it is one fault away from loss.

use std::collections::BTreeSet;
use std::path::Path;

use topics_env::Env;

use super::chain::Folder;
use super::decide::decide;
use super::plan::NoWatch;
use super::survey::{self, Wanted};
use super::{Loss, Mode};
use crate::dir::{DirLock, Paths, Store, show};
use crate::format::wal_file::WAL_HEADER;
use crate::segment::{Block, Item, Part, SegmentMeta, SegmentOptions, Segments, TopicKey};
use crate::snapshot::{self, SnapshotBody};
use crate::{Result, StorageError};

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, relative to the data directory where that is known.
    pub file: String,
    /// Where in it.
    pub offset: u64,
    /// What does not hold.
    pub detail: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Files read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Records and log frames whose checksum holds.
    pub records: u64,
    /// Everything that does not.
    pub problems: Vec<Problem>,
}

impl Report {
    fn found(&mut self, file: String, offset: u64, detail: String) {
        self.problems.push(Problem { file, offset, detail });
    }

    /// Damage is a finding; that the disk cannot be read, or is of another version, is an error.
    fn take(&mut self, file: &Path, outcome: Result<()>) -> Result<()> {
        match outcome {
            Err(StorageError::Corrupt { file, offset, detail }) => self.found(file, offset, detail),
            Err(StorageError::Missing { what }) => {
                self.found(show(file), 0, format!("{what} is missing"))
            }
            other => return other,
        }
        Ok(())
    }

    fn count(&mut self, env: &Env, file: &Path) -> Result<()> {
        let io = |e| StorageError::io(format!("read {}", show(file)), e);
        if !env.fs.exists(file).map_err(io)? {
            return Ok(());
        }
        let opened = env.fs.open(file, topics_env::OpenMode::Read).map_err(io)?;
        self.bytes += opened.len().map_err(io)?;
        self.files += 1;
        Ok(())
    }
}

/// Checks a directory. It is locked meanwhile; one that is open is [`StorageError::Locked`].
pub fn verify(env: &Env, paths: &Paths, pid: u32) -> Result<Report> {
    let io = |e| StorageError::io(format!("read {}", paths.root().display()), e);
    if !env.fs.exists(&paths.meta()).map_err(io)? {
        return Err(StorageError::Missing { what: format!("{}", paths.meta().display()) });
    }
    let _lock = DirLock::acquire(env, paths, pid)?;
    let Some(store) = Store::read(env, paths)? else {
        return Err(StorageError::Missing { what: show(&paths.meta().join("STORE")) });
    };
    let mut report = Report::default();
    report.count(env, &paths.meta().join("STORE"))?;
    let kept = snapshots(env, paths, store.id, &mut report)?;
    let segments = Segments::new(
        env.clone(),
        paths.clone(),
        store.id,
        kept.first().map_or(0, |b| b.generation) + 1,
        SegmentOptions::default(),
        None,
    );
    let mut seen = BTreeSet::new();
    for body in &kept {
        for topic in &body.topics {
            let key = TopicKey { topic_id: topic.topic_id, epoch: topic.epoch };
            for meta in &topic.segments {
                // An active segment grows from snapshot to snapshot: the same files, more of them.
                if seen.insert((key, meta.file_no, meta.data_no, meta.del_no, meta.data_len)) {
                    segment(env, paths, &segments, key, *meta, &mut report)?;
                }
            }
        }
    }
    logs(env, paths, store.id, kept.first(), &mut report)?;
    Ok(report)
}

/// Reads the two newest snapshots; the valid ones, newest first.
fn snapshots(
    env: &Env,
    paths: &Paths,
    id: [u8; 16],
    report: &mut Report,
) -> Result<Vec<SnapshotBody>> {
    let mut kept = Vec::new();
    for n in snapshot::list(env, paths)?.into_iter().take(2) {
        let path = paths.snapshot(n);
        report.count(env, &path)?;
        let outcome = snapshot::load(env, paths, n, id).map(|body| kept.push(body));
        report.take(&path, outcome)?;
    }
    Ok(kept)
}

fn segment(
    env: &Env,
    paths: &Paths,
    segments: &std::sync::Arc<Segments>,
    key: TopicKey,
    meta: SegmentMeta,
    report: &mut Report,
) -> Result<()> {
    let data = paths.segment(&meta.data_name(key.topic_id), Part::Data);
    if meta.cold {
        return Ok(());
    }
    for (name, part) in meta.files(key.topic_id) {
        report.count(env, &paths.segment(&name, part))?;
    }
    let before = report.problems.len();
    report.take(&data, segments.check_named(key, &[meta], true))?;
    if report.problems.len() > before {
        return Ok(());
    }
    report.take(&data, segments.segment(key, meta).check_header())?;
    let (_, rebuilt) = segments.damage_counts();
    let outcome = read_segment(segments, key, meta, report);
    report.take(&data, outcome)?;
    if segments.damage_counts().1 > rebuilt {
        let index = paths.segment(&meta.name(key.topic_id), Part::Idx);
        let detail = "this file, or .tags or .attrs beside it, is damaged or missing; opening \
                      makes it again";
        report.found(show(&index), 0, detail.into());
    }
    Ok(())
}

/// Every record, dead ones too, and what lies beside them.
fn read_segment(
    segments: &std::sync::Arc<Segments>,
    key: TopicKey,
    meta: SegmentMeta,
    report: &mut Report,
) -> Result<()> {
    let segment = segments.segment(key, meta);
    let data = show(
        &Path::new("topics")
            .join(key.topic_id.to_string())
            .join(meta.data_name(key.topic_id).file(Part::Data)),
    );
    let mut block = Block::new();
    let mut at = meta.first_seq;
    while at <= meta.last_seq {
        block.clear();
        let next = segment.read(at, meta.last_seq, 8 << 20, &|_| false, &mut block)?;
        for item in block.items() {
            match item {
                Item::Record(_) => report.records += 1,
                Item::Corrupt(seq) => {
                    let place = segment.entries(seq, seq)?.first().map_or(0, |e| e.offset);
                    let detail = format!("record {seq} fails its checksum");
                    report.found(data.clone(), u64::from(place), detail);
                }
            }
        }
        if next <= at {
            break;
        }
        at = next;
    }
    segment.deleted()?;
    if meta.has_tags {
        let every = crate::segment::TagMatch::Prefix(b"");
        segment.tag_seqs(every, meta.last_seq)?;
    }
    segment.attrs().map(drop)
}

/// The logs, by the rules that an open goes by: damage or torn tail, which shards must be there.
fn logs(
    env: &Env,
    paths: &Paths,
    id: [u8; 16],
    newest: Option<&SnapshotBody>,
    report: &mut Report,
) -> Result<()> {
    let mut folders = Vec::new();
    for wanted in survey::shards(env, paths, newest)? {
        let dir = paths.shard(wanted.shard);
        let outcome = log(env, paths, wanted, id, report).map(|f| folders.extend(f));
        report.take(&dir, outcome)?;
    }
    let folders: Vec<&Folder> = folders.iter().collect();
    report.take(&paths.wal(), survey::check_layout(env, &folders))
}

fn log(
    env: &Env,
    paths: &Paths,
    wanted: Wanted,
    id: [u8; 16],
    report: &mut Report,
) -> Result<Option<Folder>> {
    let read = |mode| Folder::read(env, paths, wanted.shard, &id, wanted.known, mode);
    let folder = match read(Mode::Strict) {
        // `salvage` finds its way without it.
        Err(e @ StorageError::Corrupt { .. }) => {
            report.take(&paths.shard(wanted.shard), Err(e))?;
            read(Mode::Salvage)?
        }
        other => other?,
    };
    let Some(folder) = folder else { return Ok(None) };
    for file in &folder.files {
        report.count(env, &paths.shard(wanted.shard).join(&file.name))?;
    }
    for file in &folder.unreadable {
        report.count(env, &paths.shard(wanted.shard).join(&file.name))?;
        report.take(&paths.shard(wanted.shard), Err(file.error.clone()))?;
    }
    let plan = decide(env, &folder, wanted.reflected, Mode::Salvage, &mut NoWatch)?;
    for link in plan.links.iter().filter(|l| l.lost_start) {
        let file = folder.shown(&folder.files[link.file]);
        report.found(file, WAL_HEADER as u64, "the Start frame is damaged".into());
    }
    let whole = plan.extents.iter().map(|e| e.last_lsn - e.first_lsn + 1).sum::<u64>();
    report.records += whole;
    report.records += plan.copied.map_or(0, |e| (e.last_lsn + 1).saturating_sub(e.first_lsn));
    // One whose file cannot be read is reported above.
    let named = |l: &&Loss| folder.unreadable.iter().all(|u| !l.file.ends_with(&u.name));
    for loss in plan.fresh().filter(named) {
        let Loss { file, offset, from_lsn, to_lsn, .. } = loss;
        let detail =
            format!("invalid frames, lsn {from_lsn} to {to_lsn}, though what follows was durable");
        report.found(file.clone(), *offset, detail);
    }
    for Loss { file, offset, .. } in &plan.passed {
        let detail = "invalid frames; the snapshot has what they say".into();
        report.found(file.clone(), *offset, detail);
    }
    Ok(Some(folder))
}
