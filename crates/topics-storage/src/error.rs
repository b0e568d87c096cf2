//! Errors of the storage layer.

use std::io;
use std::sync::Arc;

use crate::segment::Fetch;

/// An error of the storage layer. Cloneable, because one failed commit group fails many writers.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The operating system reported an error.
    #[error("{what}: {detail}")]
    Io {
        /// The failed operation, with the file's name.
        what: String,
        kind: io::ErrorKind,
        /// The operating system's error number, if known.
        raw: Option<i32>,
        /// The error's own text.
        detail: String,
    },
    /// Bytes on disk differ from those written. Never used for an I/O error.
    #[error("{file} is damaged at offset {offset}: {detail}")]
    Corrupt {
        /// The damaged file.
        file: String,
        /// The offset of the damage.
        offset: u64,
        /// Which check failed.
        detail: String,
    },
    /// The disk, or the quota, is full.
    #[error("no space left: {detail}")]
    Full {
        /// What needed the space.
        detail: String,
    },
    /// No file descriptor is left. The call did nothing and may succeed later.
    #[error("no file descriptor is left ({detail}): raise `ulimit -n` or lower `max_open_files`")]
    NoDescriptor {
        /// What needed one.
        detail: String,
    },
    /// A sync or a write of the shard failed: the shard acks no more writes until the next open.
    #[error("shard is poisoned until restart: {detail}")]
    Poisoned {
        /// The error that poisoned it.
        detail: String,
    },
    /// The limit of staged bytes or batches is reached.
    #[error("the staging buffer of the log is full: retry later, or raise its size")]
    Staging,
    /// Another process has the data directory open.
    #[error("data directory is locked by process {pid}{}", url.as_deref().map(|u| format!(" serving at {u}")).unwrap_or_default())]
    Locked {
        /// The process that holds the lock; 0 if the lock file was removed or replaced, so the
        /// process is unknown.
        pid: u32,
        /// The URL of its server, if it has one.
        url: Option<String>,
    },
    /// The lock file of the open directory was removed or replaced: the engine acks no more writes.
    #[error(
        "the lock file of the data directory was removed or replaced while it was open: end this \
         process, make sure that the directory is the right one, and open it again"
    )]
    LockLost,
    /// The data directory cannot be created or used.
    #[error("the data directory {dir} cannot be used: {detail}")]
    Directory {
        /// The data directory.
        dir: String,
        /// The reason, and what to do about it.
        detail: String,
    },
    /// A format version or frame type from a newer program.
    #[error("{what} has version {found}; this program reads up to {supported}")]
    Version {
        /// The object that carries the version.
        what: String,
        found: u32,
        /// The newest version that this program reads.
        supported: u32,
    },
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
    /// Bytes of a cold segment are not here yet. Read again when the fetch has ended.
    #[error("a segment is being fetched from the object store: read again when it has arrived")]
    Fetching(Arc<Fetch>),
    /// Bytes of a cold segment cannot be fetched.
    #[error("{detail}")]
    Unreachable {
        /// What cannot be fetched, why, and what to do.
        detail: String,
    },
    /// A file or directory that must exist does not.
    #[error("{what} is missing")]
    Missing {
        /// What is missing.
        what: String,
    },
}

impl StorageError {
    /// An I/O error during `what`. A full disk or quota and a file size limit become
    /// [`StorageError::Full`], too many open files [`StorageError::NoDescriptor`].
    pub fn io(what: impl Into<String>, e: io::Error) -> Self {
        let what = what.into();
        match e.kind() {
            _ if topics_env::is_fd_exhausted(&e) => Self::NoDescriptor { detail: what },
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Self::Full { detail: format!("{what}: {e}") },
            kind => Self::Io { what, kind, raw: e.raw_os_error(), detail: e.to_string() },
        }
    }

    /// Whether the call failed for lack of space or descriptors before it changed anything. Earlier
    /// writes are unaffected, and a later attempt may succeed.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::NoDescriptor { .. })
    }

    /// Damage in `file` at `offset`.
    pub fn corrupt(file: impl Into<String>, offset: u64, detail: impl Into<String>) -> Self {
        Self::Corrupt { file: file.into(), offset, detail: detail.into() }
    }
}

/// A result of the storage layer.
pub type Result<T> = std::result::Result<T, StorageError>;
