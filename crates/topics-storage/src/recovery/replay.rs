//! Replaying what is kept, and the end of an open.

use std::sync::Arc;

use topics_env::{Env, File};

use super::copy::NewFile;
use super::plan::{Extent, ShardPlan};
use super::{Opening, RecoveryProgress, Shard};
use crate::dir::{DirLock, Store};
use crate::format::frame::FrameType;
use crate::format::wal_file::WalFileHeader;
use crate::snapshot::{LoadedSnapshots, ShardSnap};
use crate::wal::scan::Scan;
use crate::wal::{FileKey, PlacedBatch, ShardStart, Wal, WalFile};
use crate::{Result, StorageError};

/// What an open leaves to run on.
#[derive(Debug)]
pub struct Opened {
    /// Held while open.
    pub lock: DirLock,
    /// The log.
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
    /// Where the frames stood in time: a copied tail belongs to the generation that wrote it.
    generation: u64,
    layout: u64,
}

impl Shard {
    /// The lsn with which a file begins.
    fn first_lsn(&self, file: usize) -> u64 {
        self.plan.links.iter().find(|l| l.file == file).map_or(0, |l| l.first)
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
    /// Gives every kept batch to `apply` with its layout, in the order in which it was logged, and
    /// says how far it has come.
    ///
    /// Frames that the snapshot reflects for their topic are given too: the caller knows the
    /// topics' positions.
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

    /// Ends the open: `lost` are the control frames (encoded, not sealed) that say, per shard, what
    /// was lost. Returns the live log.
    pub fn finish(mut self, lost: &[(u32, Vec<u8>)]) -> Result<Opened> {
        if self.read_only {
            return Err(StorageError::Closed);
        }
        // Shard 0 last: its file says that the layout is complete.
        for shard in self.shards.iter_mut().rev() {
            let (id, before) = (shard.folder.shard, shard.log_generation());
            let Some((_, new)) = &mut shard.new else { continue };
            let frames: Vec<&[u8]> =
                lost.iter().filter(|(s, _)| *s == id).map(|(_, f)| f.as_slice()).collect();
            new.append_group(&frames)?;
            new.publish(&self.env, &self.paths, before)?;
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

    /// What later snapshots say of the shards outside the layout. One whose folder is gone stays:
    /// the removal is not synced, and a layout that has the shard again goes on above its last lsn.
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

    /// Removes what nothing names any more: files above the old `CURRENT`, temporary ones, files that
    /// hold nothing. What `salvage` cannot read goes once a copy is set aside.
    fn remove_orphans(&self) -> Result<()> {
        for shard in &self.shards {
            let dir = self.paths.shard(shard.folder.shard);
            let mut names: Vec<&str> = shard.folder.orphans.iter().map(String::as_str).collect();
            // `CURRENT` of a shard that got no new file names one of these.
            if shard.new.is_some() {
                let holds = |i: usize| shard.plan.links.iter().any(|l| l.file == i);
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
    /// What the live log needs of this shard.
    fn start(self) -> ShardStart {
        let next_lsn = self.last_lsn() + 1;
        let mut files: Vec<WalFile> = Vec::new();
        let links = self.plan.links;
        for (i, (log, key)) in self.folder.files.into_iter().zip(self.keys).enumerate() {
            let (name, header, file) = (log.name, log.header, log.file);
            if let Some(first_lsn) = links.iter().find(|l| l.file == i).map(|l| l.first) {
                files.push(WalFile { key, name, header, first_lsn, file });
            }
        }
        let (mut offset, mut capacity, mut health) = (0, 0, None);
        for (key, new) in self.new.into_iter().chain(self.next) {
            (offset, capacity, health) = (new.offset, new.capacity, new.health);
            let (name, header, file) = (new.name, new.header, new.file);
            files.push(WalFile { key, name, header, first_lsn: new.start_lsn, file });
        }
        ShardStart { files, offset, capacity, next_lsn, health }
    }
}

/// Gives every batch to `apply`, with how many frames of the part it ends.
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
