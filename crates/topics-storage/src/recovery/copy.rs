//! The first file of a new generation, with a copy of the kept frames that are not proven durable.
//!
//! After a failed or missing sync, pages may be readable and not be on the disk. Recovery therefore
//! copies the groups above the proven lsn, each frame under its lsn, into a file that it syncs before
//! it serves anything of them.
//!
//! A full disk has no space for the copy. Then recovery makes the groups durable in place
//! ([`rewrite`]), and the new file begins behind them.

use std::path::PathBuf;
use std::sync::Arc;

use topics_env::{Env, File, OpenMode};

use super::folder::Folder;
use super::shard_plan::{Extent, ShardPlan};
use crate::dir::{Paths, create_temp, reserve};
use crate::format::frame;
use crate::format::health::{HEALTH, HealthFile};
use crate::format::record::{Group, Start};
use crate::format::wal_file::{self, WAL_HEADER, WalFileHeader};
use crate::wal::WalOptions;
use crate::wal::scan::Scan;
use crate::{Result, StorageError};

const CHUNK: usize = 1 << 20;
/// The size of a file on a full disk, and its minimum: about a hundred deletes.
const SMALL: u64 = 64 << 10;
const SMALLEST: u64 = 16 << 10;

/// Makes the frames of `extent` durable in place: writes the same bytes to the same offsets and syncs
/// them, so that pages that a failed sync left clean in memory are written too. On file systems that
/// never overwrite in place this takes space, which comes from the reserve.
pub(super) fn rewrite(env: &Env, paths: &Paths, folder: &Folder, extent: Extent) -> Result<()> {
    match rewrite_once(env, paths, folder, extent) {
        Err(StorageError::Full { .. }) => {
            let len = folder.files[extent.file].file.len().unwrap_or(0);
            reserve::release_part(env, paths, len.saturating_sub(extent.offset))?;
            rewrite_once(env, paths, folder, extent)
        }
        outcome => outcome,
    }
}

fn rewrite_once(env: &Env, paths: &Paths, folder: &Folder, extent: Extent) -> Result<()> {
    let log = &folder.files[extent.file];
    let shown = folder.shown(log);
    let io = |e| StorageError::io(format!("rewrite {shown}"), e);
    let path = paths.shard(folder.shard).join(&log.name);
    let file = env.fs.open(&path, OpenMode::Write).map_err(io)?;
    let mut scan = Scan::new(env, log.file.clone(), &log.header, &shown, extent.first_lsn)?;
    scan.seek(extent.offset, extent.first_lsn);
    let (mut at, mut bytes) = (extent.offset, Vec::new());
    while scan.next_lsn() <= extent.last_lsn {
        let Some(f) = scan.next_frame()? else { return Err(changed(&scan, shown)) };
        bytes.extend_from_slice(f.raw);
        if bytes.len() >= CHUNK {
            file.write_all_at(&bytes, at).map_err(io)?;
            at += bytes.len() as u64;
            bytes.clear();
        }
    }
    file.write_all_at(&bytes, at).map_err(io)?;
    env.sync("recovery.wal.sync", &*file).map_err(io)
}

/// The error of a frame that was valid when the plan was made, and is not now.
fn changed(scan: &Scan, file: String) -> StorageError {
    let stop = scan.stop();
    StorageError::Corrupt {
        file,
        offset: stop.offset,
        detail: format!("lsn {} no longer reads as it did ({})", stop.lsn, stop.why),
    }
}

/// The temporary name of a file. Dropped before the rename, it removes the file, so that a failed open
/// takes no space.
struct Temp {
    env: Env,
    path: PathBuf,
    used: bool,
}

impl Drop for Temp {
    fn drop(&mut self) {
        if !self.used {
            let _ = self.env.fs.remove_file(&self.path);
        }
    }
}

/// A new file. It gets its final name in [`NewFile::publish`].
pub(super) struct NewFile {
    dir: PathBuf,
    temp: Temp,
    pub name: String,
    pub shown: String,
    pub file: Arc<dyn File>,
    pub header: WalFileHeader,
    pub start_lsn: u64,
    /// The lsn of the next frame.
    pub next_lsn: u64,
    /// Where the next byte goes.
    pub offset: u64,
    /// Where the copied groups begin.
    pub copied_at: u64,
    /// Bytes not written yet.
    buf: Vec<u8>,
    /// How many bytes the file has been given.
    pub capacity: u64,
    /// Of this generation, once the file has its name.
    pub health: Option<Arc<HealthFile>>,
}

impl NewFile {
    /// Creates the file: header, Start, the copied groups.
    pub fn begin(
        env: &Env,
        paths: &Paths,
        options: &WalOptions,
        header: WalFileHeader,
        folder: &Folder,
        plan: &ShardPlan,
    ) -> Result<Self> {
        Self::attempt(env, paths, options.file_initial, header, folder, plan)
    }

    /// Like [`Self::begin`], without a copy. On a full disk it creates a small file, if need be out of
    /// the reserve: operations that free space must be logged. The rest of the reserve is for
    /// checkpoints, without which no space is freed.
    pub fn begin_from_reserve(
        env: &Env,
        paths: &Paths,
        options: &WalOptions,
        header: WalFileHeader,
        folder: &Folder,
        plan: &ShardPlan,
    ) -> Result<Self> {
        let least = options.file_initial;
        let attempt = |least| Self::attempt(env, paths, least, header.clone(), folder, plan);
        let full = |made: &Result<Self>| matches!(made, Err(StorageError::Full { .. }));
        let mut made = attempt(least);
        let mut size = SMALL.min(least);
        if full(&made) {
            reserve::release_part(env, paths, size)?;
            made = attempt(size);
        }
        while full(&made) && size / 2 >= SMALLEST {
            size /= 2;
            made = attempt(size);
        }
        made
    }

    fn attempt(
        env: &Env,
        paths: &Paths,
        least: u64,
        header: WalFileHeader,
        folder: &Folder,
        plan: &ShardPlan,
    ) -> Result<Self> {
        let dir = paths.shard(header.shard);
        let name = wal_file::name(header.generation, header.ordinal);
        let shown = format!("wal/shard-{:02}/{name}", header.shard);
        let temp = dir.join(format!("{name}.tmp"));
        let file =
            create_temp(env, &temp).map_err(|e| StorageError::io(format!("create {shown}"), e))?;
        let temp = Temp { env: env.clone(), path: temp, used: false };
        let (head, salt) = (header.encode(), header.salt);
        let mut new = Self {
            dir,
            temp,
            name,
            shown,
            file,
            start_lsn: plan.start_lsn,
            next_lsn: plan.start_lsn,
            offset: 0,
            copied_at: 0,
            buf: head,
            capacity: 0,
            health: None,
            header,
        };
        let start = Start { first_lsn: plan.start_lsn };
        let at = new.buf.len();
        start.encode_frame(&mut new.buf);
        frame::seal(&mut new.buf[at..], salt, plan.start_lsn);
        new.copied_at = new.buf.len() as u64;
        if let Some(extent) = plan.copied {
            new.copy(env, folder, extent)?;
        }
        new.flush()?;
        new.reserve(least.max(new.offset + least / 2))?;
        Ok(new)
    }

    /// Copies groups. Each gets a new Group frame for the frames kept of it.
    fn copy(&mut self, env: &Env, folder: &Folder, extent: Extent) -> Result<()> {
        let log = &folder.files[extent.file];
        let shown = folder.shown(log);
        let mut scan = Scan::new(env, log.file.clone(), &log.header, &shown, extent.first_lsn)?;
        scan.seek(extent.offset, extent.first_lsn);
        let mut open: Option<(usize, Group)> = None;
        while scan.next_lsn() <= extent.last_lsn {
            let Some(f) = scan.next_frame()? else { return Err(changed(&scan, shown)) };
            self.next_lsn = f.lsn + 1;
            if let Some(group) = Group::of(&f.frame) {
                self.close_group(open.take());
                if self.buf.len() >= CHUNK {
                    self.flush()?;
                }
                // The file gets its name only when all of it is durable.
                let group = Group { frames: 0, bytes: 0, synced_lsn: extent.last_lsn, ..group };
                open = Some((self.buf.len(), group));
                group.encode_frame(&mut self.buf);
                continue;
            }
            let at = self.buf.len();
            self.buf.extend_from_slice(f.raw);
            frame::unseal(&mut self.buf[at..]);
            frame::seal(&mut self.buf[at..], self.header.salt, f.lsn);
            if let Some((_, group)) = &mut open {
                group.frames += 1;
                group.bytes += (self.buf.len() - at) as u64;
            }
        }
        self.close_group(open);
        Ok(())
    }

    /// Writes the Group frame of a copied group.
    fn close_group(&mut self, open: Option<(usize, Group)>) {
        let Some((at, group)) = open else { return };
        let mut bytes = Vec::with_capacity(Group::FRAME_LEN);
        group.encode_frame(&mut bytes);
        frame::seal(&mut bytes, self.header.salt, group.lsn);
        self.buf[at..at + bytes.len()].copy_from_slice(&bytes);
    }

    /// Appends control frames as one group.
    pub fn append_group(&mut self, frames: &[&[u8]]) -> Result<()> {
        if frames.is_empty() {
            return Ok(());
        }
        let lsn = self.next_lsn;
        let group = Group {
            lsn,
            frames: u32::try_from(frames.len()).unwrap_or(u32::MAX),
            bytes: frames.iter().map(|f| f.len() as u64).sum(),
            synced_lsn: lsn + frames.len() as u64,
        };
        let at = self.buf.len();
        group.encode_frame(&mut self.buf);
        frame::seal(&mut self.buf[at..], self.header.salt, lsn);
        for (i, f) in frames.iter().enumerate() {
            let at = self.buf.len();
            self.buf.extend_from_slice(f);
            frame::seal(&mut self.buf[at..], self.header.salt, lsn + 1 + i as u64);
        }
        self.next_lsn = lsn + 1 + frames.len() as u64;
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        self.file
            .write_all_at(&self.buf, self.offset)
            .map_err(|e| StorageError::io(format!("write {}", self.shown), e))?;
        self.offset += self.buf.len() as u64;
        self.buf.clear();
        Ok(())
    }

    fn reserve(&mut self, len: u64) -> Result<()> {
        self.file
            .allocate_written(len)
            .map_err(|e| StorageError::io(format!("allocate {}", self.shown), e))?;
        self.capacity = len;
        Ok(())
    }

    /// Gives the space of a file up that could not be published. If it has its name it is truncated to
    /// its header and keeps the name, because `CURRENT` may name it: it then holds no frames.
    pub fn abandon(&self) {
        if self.temp.used {
            let _ = self.file.set_len(WAL_HEADER as u64);
        }
    }

    /// Syncs the file, renames it and points `CURRENT` to it. `before` is the generation that `CURRENT`
    /// names until then. On a full disk, takes space from the reserve.
    pub fn publish(&mut self, env: &Env, paths: &Paths, before: u64) -> Result<()> {
        let io = |e| StorageError::io(format!("publish {}", self.shown), e);
        env.sync("recovery.wal.sync", &*self.file).map_err(io)?;
        let (temp, path) = (&self.temp.path, self.dir.join(&self.name));
        env.rename("recovery.wal.rename", temp, &path).map_err(io)?;
        self.temp.used = true;
        env.sync_dir("recovery.wal.dir", &self.dir).map_err(io)?;
        // Before anything of this generation is logged. Without `HEALTH` (on a full disk) the next
        // open does not trust the tail of this generation after a kill.
        match HealthFile::begin(env, &self.dir, &self.header, before) {
            Ok(health) => self.health = Some(Arc::new(health)),
            Err(e) => log::warn!("{} cannot be written: {e}", self.dir.join(HEALTH).display()),
        }
        match wal_file::write_current(env, &self.dir, &self.name) {
            Err(StorageError::Full { .. }) => {
                reserve::release_part(env, paths, 0)?;
                wal_file::write_current(env, &self.dir, &self.name)
            }
            written => written,
        }
    }
}
