//! The files of one shard in the order of their lsns, and what each of them holds.

use std::sync::Arc;

use topics_env::{Env, File, OpenMode};

use super::Mode;
use crate::dir::Paths;
use crate::format::record::Gap;
use crate::format::wal_file::{self, WalFileHeader};
use crate::wal::scan::{self, Scan, Stop};
use crate::{Result, StorageError};

/// A WAL file at or below `CURRENT`.
#[derive(Debug)]
pub(super) struct LogFile {
    pub name: String,
    pub header: WalFileHeader,
    pub file: Arc<dyn File>,
    /// The first lsn, from its Start frame; `None`: it holds nothing.
    pub first_lsn: Option<u64>,
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
    /// Damage that an earlier recovery was told to give up: lsn ranges, inclusive.
    pub given_up: Vec<(u64, u64)>,
}

impl Folder {
    /// Reads the names, `CURRENT`, the headers and Start frames. `known` says that a snapshot
    /// knows the shard, so that an empty folder would be damage; files whose successor begins at
    /// or below `replay_lsn + 1` are not read.
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
            stray: names.iter().filter(|e| e.name.ends_with(".tmp")).map(|e| e.name.clone()).collect(),
            poisoned: names.iter().any(|e| e.name == wal_file::POISON_MARK),
            given_up: Vec::new(),
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
            let first_lsn = scan::read_start(env, &*file, &header, &shown(&name))?;
            folder.files.push(LogFile { name, header, file, first_lsn });
        }
        folder.read_given_up(env)?;
        Ok(Some(folder))
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
        let missing = || StorageError::Missing { what: format!("wal/shard-{:02}/CURRENT", self.shard) };
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
            if scan::read_start(env, &*file, &header, &shown)?.is_some() {
                return Err(missing());
            }
            self.stray.push(name);
        }
        Ok(Some(self))
    }

    /// The ranges that an earlier salvage gave up are the first frames of the file that it began.
    fn read_given_up(&mut self, env: &Env) -> Result<()> {
        let mut ranges = Vec::new();
        for log in &self.files {
            let Some(first) = log.first_lsn else { continue };
            let mut scan = Scan::new(env, log.file.clone(), &log.header, &self.shown(log), first)?;
            while let Some(f) = scan.next_frame()? {
                match Gap::of_lsns(&f.frame) {
                    Some(gap) => ranges.push((gap.from, gap.to)),
                    None if f.is_group() => {}
                    None => break,
                }
            }
        }
        self.given_up = ranges;
        Ok(())
    }

    pub fn shown(&self, log: &LogFile) -> String {
        format!("wal/shard-{:02}/{}", self.shard, log.name)
    }
}
