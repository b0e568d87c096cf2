//! Replay of the kept frames, and the end of an open.

use std::sync::Arc;

use topics_env::{Env, File};

use super::copy::NewFile;
use super::folder::Folder;
use super::shard_plan::{Extent, ShardPlan};
use super::{Opening, RecoveryProgress, Shard};
use crate::dir::{DirLock, Paths, Store};
use crate::format::frame::FrameType;
use crate::format::wal_file::WalFileHeader;
use crate::snapshot::{LoadedSnapshots, ShardSnap};
use crate::wal::scan::Scan;
use crate::wal::{BeginLog, FileKey, FirstFile, PlacedBatch, ShardStart, Wal, WalFile, WalOptions};
use crate::{Result, StorageError};

/// An open directory: what the engine needs to run.
#[derive(Debug)]
pub struct Opened {
    /// Held while open.
    pub lock: DirLock,
    pub wal: Wal,
    /// The directory's identity.
    pub store: Store,
    /// The generation of this open.
    pub generation: u64,
    /// The layout in force.
    pub layout: u64,
    /// Shards outside the layout whose folders are still there, with their last lsn.
    pub outside: Vec<ShardSnap>,
    /// The snapshots that the open found.
    pub snapshots: LoadedSnapshots,
}

/// Kept frames of one file.
struct ReplaySpan {
    shard: usize,
    key: FileKey,
    extent: Extent,
    first_lsn: u64,
    header: WalFileHeader,
    file: Arc<dyn File>,
    shown: String,
    /// The generation that wrote the frames: a copied tail keeps its place in the order.
    generation: u64,
    layout: u64,
}

impl Shard {
    /// The lsn with which a file begins.
    fn first_lsn(&self, file: usize) -> u64 {
        self.plan.file_ranges.iter().find(|l| l.file == file).map_or(0, |l| l.first)
    }

    fn replay_spans(&self) -> Vec<ReplaySpan> {
        let mut spans = Vec::new();
        for extent in &self.plan.extents {
            let log = &self.folder.files[extent.file];
            spans.push(ReplaySpan {
                shard: self.folder.shard as usize,
                key: self.keys[extent.file],
                extent: *extent,
                first_lsn: self.first_lsn(extent.file),
                header: log.header.clone(),
                file: log.file.clone(),
                shown: self.folder.shown(log),
                generation: log.header.generation,
                layout: log.header.layout,
            });
        }
        if let Some(from) = self.plan.copied {
            let log = &self.folder.files[from.file];
            let (key, header, file, shown, first_lsn, offset) = match &self.new {
                Some((key, new)) => {
                    let shown = new.shown.clone();
                    (
                        *key,
                        new.header.clone(),
                        new.file.clone(),
                        shown,
                        new.start_lsn,
                        new.copied_at,
                    )
                }
                // A shard outside the layout is only read.
                None => {
                    let shown = self.folder.shown(log);
                    let first = self.first_lsn(from.file);
                    (
                        self.keys[from.file],
                        log.header.clone(),
                        log.file.clone(),
                        shown,
                        first,
                        from.offset,
                    )
                }
            };
            spans.push(ReplaySpan {
                shard: self.folder.shard as usize,
                key,
                extent: Extent { offset, ..from },
                first_lsn,
                header,
                file,
                shown,
                generation: log.header.generation,
                layout: log.header.layout,
            });
        }
        spans
    }
}

impl Opening {
    /// Calls `apply` with every kept batch and its layout, in log order, and updates `progress`.
    ///
    /// Frames that the snapshot already reflects are passed too: the caller knows the replay positions
    /// of the topics.
    pub fn replay(
        &self,
        progress: &RecoveryProgress,
        mut apply: impl FnMut(u64, &PlacedBatch<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut spans: Vec<ReplaySpan> = self.shards.iter().flat_map(Shard::replay_spans).collect();
        spans.sort_by_key(|p| (p.generation, p.shard, p.extent.first_lsn));
        progress.plan(spans.iter().map(|p| p.extent.frames()).sum());
        let mut before = 0;
        for span in &spans {
            replay_span(&self.env, span, |frames, placed| {
                apply(span.layout, placed)?;
                progress.reached(before + frames);
                Ok(())
            })?;
            before += span.extent.frames();
            progress.reached(before);
        }
        Ok(())
    }

    /// Ends the open and returns the live log. `lost` holds, per shard, the control frames (encoded, not
    /// sealed) that record the losses.
    pub fn finish(mut self, lost: &[(u32, Vec<u8>)]) -> Result<Opened> {
        if self.read_only {
            return Err(StorageError::Closed);
        }
        // Shard 0 last: its file marks the layout as complete.
        for i in (0..self.shards.len()).rev() {
            self.publish_first(i, lost)?;
        }
        let shards = self.options.shards;
        if self.layout.1 != shards {
            self.generation += 1;
            self.layout = (self.generation, shards);
            self.begin_layout()?;
        }
        self.remove_orphans()?;
        let outside = self.outside();
        let mut starts = Vec::new();
        let mut outside_files = Vec::new();
        for shard in self.shards {
            let inside = shard.folder.shard < shards;
            let start = shard.start();
            if inside {
                starts.push(start);
            } else {
                outside_files.extend(start.files);
            }
        }
        let wal = Wal::start(
            self.env.clone(),
            self.paths.clone(),
            self.options.clone(),
            starts,
            outside_files,
        )?;
        wal.watch_lock(self.lock.watch());
        Ok(Opened {
            lock: self.lock,
            wal,
            store: self.store,
            generation: self.generation,
            layout: self.layout.0,
            outside,
            snapshots: self.loaded,
        })
    }

    /// Publishes the first file of a shard with the frames that record its losses. On a disk without
    /// any space the live log does it later.
    fn publish_first(&mut self, i: usize, lost: &[(u32, Vec<u8>)]) -> Result<()> {
        let can_begin_later = self.can_begin_later(i);
        let shard = &mut self.shards[i];
        let (id, before) = (shard.folder.shard, shard.log_generation());
        let frames = lost.iter().filter(|(s, _)| *s == id).map(|(_, f)| f.clone()).collect();
        let begin = FirstFiles {
            env: self.env.clone(),
            paths: self.paths.clone(),
            options: self.options.clone(),
            plan: ShardPlan::first(shard.plan.start_lsn - 1),
            frames,
            before,
        };
        if let Some((_, new)) = &mut shard.new {
            match begin.publish(new) {
                Err(StorageError::Full { detail }) if can_begin_later => {
                    log::warn!("shard {id} is opened for reads: {detail}");
                    new.abandon();
                    let header = new.header.clone();
                    shard.new = None;
                    shard.begin_later = Some(header);
                }
                published => return published,
            }
        }
        if let Some(header) = shard.begin_later.take() {
            shard.begin = Some(BeginLog(Box::new(move || begin.create(&header))));
        }
        Ok(())
    }

    /// The first files of a new layout, each following the last lsn of its shard.
    fn begin_layout(&mut self) -> Result<()> {
        let (layout, shards) = self.layout;
        self.add_shards(shards)?;
        for i in (0..shards as usize).rev() {
            let key = self.key();
            let shard = &self.shards[i];
            let header = self.header(shard.folder.shard, shards, layout);
            let plan = ShardPlan::first(shard.last_lsn());
            let mut file = NewFile::begin_from_reserve(
                &self.env,
                &self.paths,
                &self.options,
                header,
                &shard.folder,
                &plan,
            )?;
            let before = shard.new.as_ref().map(|(_, f)| f.header.generation);
            let before = before.unwrap_or_else(|| shard.log_generation());
            file.publish(&self.env, &self.paths, before)?;
            self.shards[i].next = Some((key, file));
        }
        Ok(())
    }

    /// The entries of later snapshots for shards outside the layout. A shard without a folder keeps its
    /// entry: its removal is not synced, and a later layout with the shard continues above its lsn.
    fn outside(&self) -> Vec<ShardSnap> {
        let known = self.snapshot().map_or(&[][..], |b| &b.retired);
        let gone = known.iter().filter(|r| {
            r.shard >= self.options.shards && self.shards.iter().all(|s| s.folder.shard != r.shard)
        });
        let out = self.shards.iter().filter(|s| s.folder.shard >= self.options.shards);
        out.map(|s| ShardSnap {
            shard: s.folder.shard,
            layout: s.folder.files.iter().map(|f| f.header.layout).max().unwrap_or(0),
            replay_lsn: s.last_lsn(),
            last_lsn: s.last_lsn(),
            synced_lsn: s.last_lsn(),
        })
        .chain(gone.cloned())
        .collect()
    }

    /// Removes orphans: files above the old `CURRENT`, temporary files, files without frames, and
    /// unreadable files that `salvage` has copied to `damaged/`.
    fn remove_orphans(&self) -> Result<()> {
        for shard in &self.shards {
            let dir = self.paths.shard(shard.folder.shard);
            let mut names: Vec<&str> = shard.folder.orphans.iter().map(String::as_str).collect();
            // `CURRENT` of a shard that got no new file names one of these.
            if shard.new.is_some() {
                let holds = |i: usize| shard.plan.file_ranges.iter().any(|l| l.file == i);
                let files = shard.folder.files.iter().enumerate();
                names.extend(files.filter(|(i, _)| !holds(*i)).map(|(_, f)| f.name.as_str()));
                names.extend(shard.quarantined.iter().map(String::as_str));
            }
            for name in names {
                let path = dir.join(name);
                match self.env.fs.remove_file(&path) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                        return Err(StorageError::io(format!("remove {}", path.display()), e));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl Shard {
    /// The state with which the live log starts on this shard.
    fn start(self) -> ShardStart {
        let next_lsn = self.last_lsn() + 1;
        let mut files: Vec<WalFile> = Vec::new();
        let file_ranges = self.plan.file_ranges;
        for (i, (log, key)) in self.folder.files.into_iter().zip(self.keys).enumerate() {
            let (name, header, file) = (log.name, log.header, log.file);
            if let Some(first_lsn) = file_ranges.iter().find(|l| l.file == i).map(|l| l.first) {
                files.push(WalFile { key, name, header, first_lsn, file });
            }
        }
        let (mut offset, mut capacity, mut health) = (0, 0, None);
        for (key, new) in self.new.into_iter().chain(self.next) {
            (offset, capacity, health) = (new.offset, new.capacity, new.health);
            let (name, header, file) = (new.name, new.header, new.file);
            files.push(WalFile { key, name, header, first_lsn: new.start_lsn, file });
        }
        ShardStart { files, offset, capacity, next_lsn, health, begin: self.begin }
    }
}

/// Creates and publishes the first file of a shard whose log is kept in place.
struct FirstFiles {
    env: Env,
    paths: Paths,
    options: WalOptions,
    /// Of a log that continues behind the kept frames.
    plan: ShardPlan,
    /// The control frames that record the shard's losses.
    frames: Vec<Vec<u8>>,
    /// The generation that `CURRENT` names until then.
    before: u64,
}

impl FirstFiles {
    fn publish(&self, new: &mut NewFile) -> Result<()> {
        let frames: Vec<&[u8]> = self.frames.iter().map(Vec::as_slice).collect();
        new.append_group(&frames)?;
        new.publish(&self.env, &self.paths, self.before)
    }

    fn create(&self, header: &WalFileHeader) -> Result<FirstFile> {
        let folder = Folder::empty(header.shard);
        let header = WalFileHeader { salt: self.env.rng.next_u64(), ..header.clone() };
        let (env, paths, options) = (&self.env, &self.paths, &self.options);
        let mut new =
            NewFile::begin_from_reserve(env, paths, options, header, &folder, &self.plan)?;
        self.publish(&mut new).inspect_err(|e| {
            // After another error the file stays: a name that may be durable has its Start frame.
            if matches!(e, StorageError::Full { .. }) {
                new.abandon();
            }
        })?;
        let NewFile { name, header, file, start_lsn, next_lsn, offset, capacity, health, .. } = new;
        Ok(FirstFile {
            name,
            header,
            first_lsn: start_lsn,
            file,
            offset,
            capacity,
            next_lsn,
            health,
        })
    }
}

/// Calls `apply` with every batch and the number of frames of the span up to its end.
fn replay_span(
    env: &Env,
    span: &ReplaySpan,
    mut apply: impl FnMut(u64, &PlacedBatch<'_>) -> Result<()>,
) -> Result<()> {
    let first = span.extent.first_lsn;
    let mut scan = Scan::new(env, span.file.clone(), &span.header, &span.shown, first)?;
    scan.seek(span.extent.offset, first);
    let mut batch = Vec::new();
    let (mut offset, mut first_lsn) = (0, 0);
    while scan.next_lsn() <= span.extent.last_lsn {
        let Some(f) = scan.next_frame()? else {
            let stop = scan.stop();
            return Err(StorageError::Corrupt {
                file: span.shown.clone(),
                offset: stop.offset,
                detail: format!("lsn {} no longer reads as it did ({})", stop.lsn, stop.why),
            });
        };
        if f.frame.kind == FrameType::Group {
            continue;
        }
        if batch.is_empty() {
            (offset, first_lsn) = (f.offset, f.lsn);
        }
        batch.extend_from_slice(f.raw);
        if f.frame.flags.batch_more() {
            continue;
        }
        let placed = PlacedBatch {
            shard: span.shard,
            file: span.key,
            offset: u32::try_from(offset).unwrap_or(u32::MAX),
            first_lsn,
            file_first_lsn: span.first_lsn,
            bytes: &batch,
        };
        apply(scan.next_lsn() - first, &placed)?;
        batch.clear();
    }
    debug_assert!(batch.is_empty(), "I5: what is kept ends with a whole batch");
    Ok(())
}
