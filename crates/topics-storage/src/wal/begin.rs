//! The begin of a log whose open found no space for its first file.
//!
//! Such a log serves reads. It refuses every batch until the file can be created: the attempt is
//! repeated like that for a next file. No lsn is assigned before, so another open finds the directory
//! as this one did.

use std::fmt;
use std::sync::Arc;

use super::shard::{Guard, Shard};
use super::{FileKey, WalFile};
use crate::format::health::HealthFile;
use crate::format::wal_file::WalFileHeader;
use crate::{Result, StorageError};

/// Creates the first file of a log.
pub struct BeginLog(pub Box<dyn Fn() -> Result<FirstFile> + Send>);

impl fmt::Debug for BeginLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BeginLog").finish_non_exhaustive()
    }
}

/// The first file of a log. `CURRENT` names it, and what is in it is durable.
#[derive(Debug)]
pub struct FirstFile {
    /// Its name in the shard's folder.
    pub name: String,
    pub header: WalFileHeader,
    /// Lsn of its first frame.
    pub first_lsn: u64,
    /// The open file.
    pub file: Arc<dyn topics_env::File>,
    /// Where the next byte goes.
    pub offset: u64,
    /// How long it is.
    pub capacity: u64,
    /// Lsn of the next frame.
    pub next_lsn: u64,
    /// See [`super::ShardStart::health`].
    pub health: Option<Arc<HealthFile>>,
}

/// The error of a log that has not begun.
pub(super) fn not_begun() -> StorageError {
    StorageError::Full {
        detail: "the disk had no space for a log file when the directory was opened, so reads are \
                 served and nothing can be written or deleted; free some space on the disk (1 MiB is \
                 enough for writes), and writes are accepted again without a restart"
            .into(),
    }
}

impl Shard {
    /// Creates the first file of a log that has none. The caller has checked that nothing else prepares
    /// a file.
    pub fn begin_log<'a>(&'a self, mut st: Guard<'a>) -> Guard<'a> {
        let Some(begin) = st.next.begin.take() else { return st };
        st.flags.preparing = true;
        let made = self.unlocked(&mut st, || (begin.0)());
        st.flags.preparing = false;
        match made {
            Ok(first) => {
                let FirstFile { name, header, first_lsn, file, offset, capacity, .. } = first;
                let key = FileKey(self.new_key());
                st.next.last_ordinal = header.ordinal;
                let file = Arc::new(WalFile { key, name, header, first_lsn, file });
                self.add_bytes(capacity);
                self.files.write().insert(key, file.clone());
                st.current.file = Some(file);
                (st.current.offset, st.current.sync_offset, st.current.capacity) =
                    (offset, offset, capacity);
                (st.progress.next_lsn, st.progress.synced_lsn) =
                    (first.next_lsn, first.next_lsn - 1);
                st.health = first.health;
                st.next.no_space = false;
                st.next.error = None;
                log::info!("shard {} accepts writes: its log has begun", self.id);
            }
            Err(e) => {
                st.next.begin = Some(begin);
                st.next.no_space = matches!(e, StorageError::Full { .. });
                st.next.error = Some(if st.next.no_space { not_begun() } else { e });
            }
        }
        self.drain_effects(st)
    }
}
