//! The files of one shard in the order of their lsns, and what each of them holds.

use std::sync::Arc;

use topics_env::{Env, File, OpenMode};

use crate::dir::Paths;
use crate::format::frame::FrameType;
use crate::format::record::Gap;
use crate::format::wal_file::{self, WalFileHeader};
use crate::wal::scan::{self, Begin, Scan};
use crate::{Result, StorageError};

/// A WAL file at or below `CURRENT`.
#[derive(Debug)]
pub(super) struct LogFile {
    pub name: String,
    pub header: WalFileHeader,
    pub file: Arc<dyn File>,
    /// The first lsn, from its Start frame; `None`: it holds nothing.
    pub first_lsn: Option<u64>,
    /// Without a Start: what its groups prove to have been durable.
    pub synced_lsn: u64,
}

/// What a shard's folder holds before anything is decided.
#[derive(Debug)]
pub(super) struct Folder {
    pub shard: u32,
    /// Files in order, the last one named by `CURRENT`.
    pub files: Vec<LogFile>,
    /// Names that no later open needs: above `CURRENT`, temporary.
    pub stray: Vec<String>,
    /// A failed sync or write left its mark.
    pub poisoned: bool,
    /// The highest generation in any name of the folder, stray ones included: a name that is to
    /// be removed must never be given again.
    pub generation: u64,
}

impl Folder {
    /// Reads the names, `CURRENT`, the headers and Start frames. `known` says that a snapshot
    /// knows the shard, so that an empty folder would be damage.
    pub fn read(
        env: &Env,
        paths: &Paths,
        shard: u32,
        store_id: &[u8; 16],
        known: bool,
    ) -> Result<Option<Self>> {
        let dir = paths.shard(shard);
        let shown = |name: &str| format!("wal/shard-{shard:02}/{name}");
        if !env.fs.exists(&dir).map_err(|e| StorageError::io(shown(""), e))? {
            return match known {
                true => Err(StorageError::Missing { what: shown("") }),
                false => Ok(None),
            };
        }
        let names = env.fs.list(&dir).map_err(|e| StorageError::io(shown(""), e))?;
        let mut logs: Vec<(u64, u64, String)> = names
            .iter()
            .filter_map(|e| wal_file::parse_name(&e.name).map(|(g, o)| (g, o, e.name.clone())))
            .collect();
        logs.sort();
        let mut folder = Self {
            shard,
            files: Vec::new(),
            stray: names
                .iter()
                .filter(|e| e.name.ends_with(".tmp"))
                .map(|e| e.name.clone())
                .collect(),
            poisoned: names.iter().any(|e| e.name == wal_file::POISON_MARK),
            generation: names.iter().filter_map(|e| generation(&e.name)).max().unwrap_or(0),
        };
        let Some(current) = wal_file::read_current(env, &dir)? else {
            return folder.without_current(env, paths, known, logs);
        };
        let Some(last) = logs.iter().position(|(_, _, n)| *n == current) else {
            return Err(StorageError::Missing { what: shown(&current) });
        };
        folder.stray.extend(logs.drain(last + 1..).map(|(_, _, n)| n));
        for (generation, ordinal, name) in logs {
            let file = env
                .fs
                .open(&dir.join(&name), OpenMode::Read)
                .map_err(|e| StorageError::io(shown(&name), e))?;
            let header = WalFileHeader::read(env, &*file, &shown(&name))?;
            let right = header.store_id == *store_id
                && header.shard == shard
                && (header.generation, header.ordinal) == (generation, ordinal);
            if !env.check("recovery.wal.identity", right) {
                return Err(StorageError::Corrupt {
                    file: shown(&name),
                    offset: 0,
                    detail: "the header belongs to another file".into(),
                });
            }
            let (first_lsn, synced_lsn) =
                match scan::read_start(env, &file, &header, &shown(&name))? {
                    Begin::At(lsn) => (Some(lsn), 0),
                    Begin::Nothing { synced_lsn } => (None, synced_lsn),
                };
            folder.files.push(LogFile { name, header, file, first_lsn, synced_lsn });
        }
        folder.check_prior(env)?;
        Ok(Some(folder))
    }

    /// While the newest file holds nothing, the one that was in use when it was made ready must be
    /// there: its loss would look like the end of the log.
    fn check_prior(&self, env: &Env) -> Result<()> {
        let Some(last) = self.files.last().filter(|f| f.first_lsn.is_none()) else { return Ok(()) };
        let h = &last.header;
        let there = h.prior == 0
            || self
                .files
                .iter()
                .any(|f| (f.header.generation, f.header.ordinal) == (h.generation, h.prior));
        if env.check("recovery.prior", there) {
            return Ok(());
        }
        let name = wal_file::name(h.generation, h.prior);
        Err(StorageError::Missing { what: format!("wal/shard-{:02}/{name}", self.shard) })
    }

    /// A folder without `CURRENT` is new if no snapshot knows the shard and no file in it holds a
    /// frame; otherwise it is damage.
    fn without_current(
        mut self,
        env: &Env,
        paths: &Paths,
        known: bool,
        logs: Vec<(u64, u64, String)>,
    ) -> Result<Option<Self>> {
        let dir = paths.shard(self.shard);
        let missing =
            || StorageError::Missing { what: format!("wal/shard-{:02}/CURRENT", self.shard) };
        if !env.check("recovery.current.missing", !known) {
            return Err(missing());
        }
        for (_, _, name) in logs {
            let shown = format!("wal/shard-{:02}/{name}", self.shard);
            let file = env
                .fs
                .open(&dir.join(&name), OpenMode::Read)
                .map_err(|e| StorageError::io(&shown, e))?;
            let Ok(header) = WalFileHeader::read(env, &*file, &shown) else {
                self.stray.push(name);
                continue;
            };
            let begin = wal_file::WAL_HEADER as u64;
            if scan::find_group(&file, &header, &shown, begin, 0)?.is_some() {
                return Err(missing());
            }
            self.stray.push(name);
        }
        Ok(Some(self))
    }

    /// A shard that the layout gains.
    pub fn empty(shard: u32) -> Self {
        Self { shard, files: Vec::new(), stray: Vec::new(), poisoned: false, generation: 0 }
    }

    /// Whether a later file says that an earlier recovery gave these lsns up.
    pub fn given_up(&self, env: &Env, after: usize, range: (u64, u64)) -> Result<bool> {
        for log in &self.files[after..] {
            let Some(first) = log.first_lsn else { continue };
            let shown = self.shown(log);
            let mut scan = Scan::new(env, log.file.clone(), &log.header, &shown, first)?;
            loop {
                while let Some(f) = scan.next_frame()? {
                    if f.frame.kind == FrameType::Gap
                        && Gap::of_lsns(&f.frame).is_some_and(|g| (g.from, g.to) == range)
                    {
                        return Ok(true);
                    }
                }
                let stop = scan.stop();
                match scan::find_group(&log.file, &log.header, &shown, stop.offset, stop.lsn)? {
                    Some(g) => scan.seek(g.offset, g.lsn),
                    None => break,
                }
            }
        }
        Ok(false)
    }

    pub fn shown(&self, log: &LogFile) -> String {
        format!("wal/shard-{:02}/{}", self.shard, log.name)
    }
}

/// The generation in the name of a WAL file, finished or not.
fn generation(name: &str) -> Option<u64> {
    wal_file::parse_name(name.strip_suffix(".tmp").unwrap_or(name))
        .map(|(generation, _)| generation)
}
