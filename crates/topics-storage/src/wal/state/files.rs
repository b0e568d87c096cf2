//! The log file in use, and the one after it.

use std::sync::Arc;

use crate::StorageError;
use crate::format::record::Group;
use crate::wal::rotation::PreparedFile;
use crate::wal::{BeginLog, WalFile};

/// The file that groups are appended to.
#[derive(Default)]
pub(in crate::wal) struct CurrentFile {
    /// `None` in a log that has no file yet.
    pub file: Option<Arc<WalFile>>,
    /// Where the next group begins.
    pub offset: u64,
    /// The size to which the file is allocated.
    pub capacity: u64,
    /// End of the range whose pages are in memory.
    pub prefaulted_to: u64,
    /// Offset at which the last sync began.
    pub sync_offset: u64,
    /// Whether a caller waited for a sync of this file, and of the one before it.
    pub sync_used: (bool, bool),
    /// No sync that began after the Start of this file was written has returned.
    pub start_unsynced: bool,
    /// A group failed for want of space: the file ends before it.
    pub broken: bool,
}

impl CurrentFile {
    /// Bytes of batches that still fit into the file in use.
    pub fn free_bytes(&self) -> usize {
        // A position in a file has 32 bits, whatever the settings of an earlier process were.
        let end = self.capacity.min(u64::from(u32::MAX));
        let free = end.saturating_sub(self.offset + Group::FRAME_LEN as u64);
        usize::try_from(free).unwrap_or(usize::MAX)
    }
}

/// The preparation of the next file.
#[derive(Default)]
pub(in crate::wal) struct NextFile {
    /// Creates the first file of a log that has none.
    pub begin: Option<BeginLog>,
    pub prepared: Option<PreparedFile>,
    /// The error of the last attempt to prepare it.
    pub error: Option<StorageError>,
    /// The last attempt found the disk full.
    pub no_space: bool,
    /// Whether to prepare again although the last attempt failed.
    pub retry: bool,
    /// Number of live [`crate::wal::AllocationPause`]s: while there is one, no file is prepared or
    /// grown.
    pub allocation_pauses: u32,
    /// The last ordinal used for a file.
    pub last_ordinal: u64,
    /// Names of abandoned prepared files, to be removed.
    pub orphans: Vec<String>,
    /// A close has begun: no further file is prepared unless it is needed.
    pub shrinking: bool,
}
