//! The files of one shard, in lsn order, and how each begins.

use std::sync::Arc;

use topics_env::{Env, File, OpenMode};

use super::Mode;
use crate::dir::Paths;
use crate::format::wal_file::{self, WalFileHeader};
use crate::wal::scan::{self, FileStart, FoundGroup};
use crate::{Result, StorageError};

/// A WAL file at or below `CURRENT`.
#[derive(Debug)]
pub(crate) struct LogFile {
    pub name: String,
    pub header: WalFileHeader,
    pub file: Arc<dyn File>,
    /// The first lsn, from its Start frame. `None`: it has no Start, and holds no frames unless its
    /// groups are proven durable.
    pub first_lsn: Option<u64>,
    /// Without a Start: the first valid group, and the highest lsn that the groups prove durable.
    pub found: Option<FoundGroup>,
}

/// A file with an invalid header, so that its frames cannot be checked.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub name: String,
    /// How many of [`Folder::files`] precede it.
    pub at: usize,
    pub error: StorageError,
}

/// The contents of a shard's folder, as read.
#[derive(Debug)]
pub(crate) struct Folder {
    pub shard: u32,
    /// Files in order, the last one named by `CURRENT`.
    pub files: Vec<LogFile>,
    pub unreadable: Vec<Unreadable>,
    /// Names that no later open needs: above `CURRENT`, temporary.
    pub orphans: Vec<String>,
    /// The highest generation in any name of the folder, orphans included: the name of a file that is
    /// to be removed must never be used again.
    pub generation: u64,
    /// `CURRENT` is damaged or wrong (`salvage` only).
    pub bad_current: bool,
    /// Why the newest part of the log is known to be missing (`salvage` only).
    pub lost_end: Option<StorageError>,
}

/// The parts of a file's name, and the name.
type Named = (u64, u64, String);

impl Folder {
    /// Reads the names, `CURRENT`, the headers and Start frames. `known` says that a snapshot
    /// knows the shard, so that an empty folder would be damage.
    pub fn read(
        env: &Env,
        paths: &Paths,
        shard: u32,
        store_id: &[u8; 16],
        known: bool,
        mode: Mode,
    ) -> Result<Option<Self>> {
        let dir = paths.shard(shard);
        let mut folder = Self::empty(shard);
        let shown = |name: &str| folder_name(shard, name);
        if !env.fs.exists(&dir).map_err(|e| StorageError::io(shown(""), e))? {
            return match (known, mode) {
                (false, _) => Ok(None),
                (true, Mode::Strict) => Err(StorageError::Missing { what: shown("") }),
                (true, Mode::Salvage) => Ok(Some(Self::lost(shard, ""))),
            };
        }
        // `CURRENT` first: beside a running log, the file that it names is then in the list.
        let current = match wal_file::read_current(env, &dir) {
            Err(e @ StorageError::Corrupt { .. }) if mode == Mode::Salvage => {
                log::error!("{e}; the newest file by name is used instead");
                None
            }
            other => Some(other?),
        };
        folder.bad_current = current.is_none();
        let names = env.fs.list(&dir).map_err(|e| StorageError::io(shown(""), e))?;
        let mut logs: Vec<Named> = names
            .iter()
            .filter_map(|e| wal_file::parse_name(&e.name).map(|(g, o)| (g, o, e.name.clone())))
            .collect();
        logs.sort();
        let temporary = names.iter().filter(|e| e.name.ends_with(".tmp"));
        folder.orphans = temporary.map(|e| e.name.clone()).collect();
        folder.generation = names.iter().filter_map(|e| generation(&e.name)).max().unwrap_or(0);
        let logs = match current {
            Some(current) => folder.named(env, paths, store_id, (logs, current), known, mode)?,
            None => logs,
        };
        if logs.is_empty() && (folder.bad_current || known && mode == Mode::Salvage) {
            folder.lost_end.get_or_insert(StorageError::Missing { what: shown("CURRENT") });
        }
        for log in logs {
            folder.add(env, paths, store_id, log)?;
        }
        match folder.check_prior(env) {
            Err(e @ StorageError::Missing { .. }) if mode == Mode::Salvage => {
                folder.lost_end = Some(e);
            }
            checked => checked?,
        }
        Ok(Some(folder))
    }

    /// The files that are part of the log according to `CURRENT`; the others are orphans.
    fn named(
        &mut self,
        env: &Env,
        paths: &Paths,
        store_id: &[u8; 16],
        (mut logs, current): (Vec<Named>, Option<String>),
        known: bool,
        mode: Mode,
    ) -> Result<Vec<Named>> {
        let shard = self.shard;
        let Some(current) = current else {
            let used = self.holds_groups(env, paths, &logs)?;
            if env.check("recovery.current.missing", !known && !used) {
                self.orphans.extend(logs.drain(..).map(|(_, _, n)| n));
            } else if mode == Mode::Strict {
                return Err(StorageError::Missing { what: folder_name(shard, "CURRENT") });
            }
            return Ok(logs);
        };
        let Some(last) = logs.iter().position(|(_, _, n)| *n == current) else {
            let missing = StorageError::Missing { what: folder_name(shard, &current) };
            if mode == Mode::Strict {
                return Err(missing);
            }
            (self.bad_current, self.lost_end) = (true, Some(missing));
            return Ok(logs);
        };
        let above = logs.split_off(last + 1);
        let stale = self.is_stale(env, paths, store_id, &logs[last], &above)?;
        if env.check("recovery.current.stale", !stale) {
            self.orphans.extend(above.into_iter().map(|(_, _, n)| n));
        } else if mode == Mode::Strict {
            let detail = "a file above the one that it names was in use".into();
            let file = folder_name(shard, "CURRENT");
            return Err(StorageError::Corrupt { file, offset: 0, detail });
        } else {
            self.bad_current = true;
            logs.extend(above);
        }
        Ok(logs)
    }

    /// Opens a file and reads how it begins.
    fn add(&mut self, env: &Env, paths: &Paths, store_id: &[u8; 16], log: Named) -> Result<()> {
        let shown = folder_name(self.shard, &log.2);
        let file = open(env, paths, self.shard, &log.2)?;
        let header = match header(env, &file, self.shard, store_id, &log) {
            Ok(header) => header,
            Err(error @ StorageError::Corrupt { .. }) => {
                let (name, at) = (log.2, self.files.len());
                self.unreadable.push(Unreadable { name, at, error });
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        let (first_lsn, found) = match scan::read_start(env, &file, &header, &shown)? {
            FileStart::At(lsn) => (Some(lsn), None),
            FileStart::Empty(found) => (None, found),
        };
        self.files.push(LogFile { name: log.2, header, file, first_lsn, found });
        Ok(())
    }

    /// Fails if the newest file has no frames and the file that was in use when it was prepared is
    /// missing: its loss would look like the end of the log.
    fn check_prior(&self, env: &Env) -> Result<()> {
        let Some(last) = self.files.last().filter(|f| f.first_lsn.is_none()) else { return Ok(()) };
        let name = wal_file::name(last.header.generation, last.header.prior);
        let there = last.header.prior == 0
            || self.files.iter().any(|f| f.name == name)
            || self.unreadable.iter().any(|f| f.name == name);
        if env.check("recovery.prior", there) {
            return Ok(());
        }
        Err(StorageError::Missing { what: folder_name(self.shard, &name) })
    }

    /// Whether `CURRENT` is an old one, because a file above the one that it names was in use. A log
    /// never rotates to a file before `CURRENT` names it, and prepares the next one only after that;
    /// only the file of an unfinished recovery may hold frames above `CURRENT`.
    fn is_stale(
        &self,
        env: &Env,
        paths: &Paths,
        store_id: &[u8; 16],
        current: &Named,
        above: &[Named],
    ) -> Result<bool> {
        for log in above {
            let shown = folder_name(self.shard, &log.2);
            let file = open(env, paths, self.shard, &log.2)?;
            let Ok(header) = header(env, &file, self.shard, store_id, log) else { continue };
            if header.prior != 0 {
                let begun = matches!(
                    scan::read_start(env, &file, &header, &shown)?,
                    FileStart::At(_) | FileStart::Empty(Some(_))
                );
                if begun || (header.generation, header.prior) > (current.0, current.1) {
                    return Ok(true);
                }
            } else if scan::holds_live_group(&file, &header, &shown)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a file holds a group. A folder without `CURRENT` is new if none does.
    fn holds_groups(&self, env: &Env, paths: &Paths, logs: &[Named]) -> Result<bool> {
        for (_, _, name) in logs {
            let shown = folder_name(self.shard, name);
            let file = open(env, paths, self.shard, name)?;
            let Ok(header) = WalFileHeader::read(env, &*file, &shown) else { continue };
            let begin = wal_file::WAL_HEADER as u64;
            if scan::find_group(&file, &header, &shown, begin, 0)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A shard that a new layout adds.
    pub fn empty(shard: u32) -> Self {
        Self {
            shard,
            files: Vec::new(),
            unreadable: Vec::new(),
            orphans: Vec::new(),
            generation: 0,
            bad_current: false,
            lost_end: None,
        }
    }

    /// A shard without any file left.
    pub fn lost(shard: u32, name: &str) -> Self {
        let missing = StorageError::Missing { what: folder_name(shard, name) };
        Self { lost_end: Some(missing), ..Self::empty(shard) }
    }

    pub fn shown(&self, log: &LogFile) -> String {
        folder_name(self.shard, &log.name)
    }
}

/// The name of a shard's file in error messages.
pub(crate) fn folder_name(shard: u32, name: &str) -> String {
    format!("wal/shard-{shard:02}/{name}")
}

fn open(env: &Env, paths: &Paths, shard: u32, name: &str) -> Result<Arc<dyn File>> {
    let path = paths.shard(shard).join(name);
    env.fs.open(&path, OpenMode::Read).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => StorageError::Missing { what: folder_name(shard, name) },
        _ => StorageError::io(folder_name(shard, name), e),
    })
}

/// The header of a file, checked to be that of the file with this name.
fn header(
    env: &Env,
    file: &Arc<dyn File>,
    shard: u32,
    store_id: &[u8; 16],
    log: &Named,
) -> Result<WalFileHeader> {
    let shown = folder_name(shard, &log.2);
    let header = WalFileHeader::read(env, &**file, &shown)?;
    let right = header.store_id == *store_id
        && header.shard == shard
        && (header.generation, header.ordinal) == (log.0, log.1);
    if !env.check("recovery.wal.identity", right) {
        let detail = "the header belongs to another file".into();
        return Err(StorageError::Corrupt { file: shown, offset: 0, detail });
    }
    Ok(header)
}

/// The generation in the name of a WAL file, finished or not.
fn generation(name: &str) -> Option<u64> {
    wal_file::parse_name(name.strip_suffix(".tmp").unwrap_or(name))
        .map(|(generation, _)| generation)
}
