//! What can go wrong with bytes on disk.

use std::io;

/// An error of the storage layer. Cloneable, because one failed group fails many writers.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The operating system reported an error.
    #[error("{what}: {detail}")]
    Io {
        /// What was being done, with the file's name.
        what: String,
        /// The kind of error.
        kind: io::ErrorKind,
        /// The operating system's error number, if it had one.
        raw: Option<i32>,
        /// The error's own text.
        detail: String,
    },
    /// Bytes are not what was written. Never used for an I/O error.
    #[error("{file} is damaged at offset {offset}: {detail}")]
    Corrupt {
        /// The damaged file.
        file: String,
        /// Where the damage begins.
        offset: u64,
        /// What does not hold.
        detail: String,
    },
    /// The disk, or the quota, is full.
    #[error("no space left: {detail}")]
    Full {
        /// What needed the space.
        detail: String,
    },
    /// No file descriptor is left. Nothing was done; the same may succeed later.
    #[error("no file descriptor is left ({detail}): raise `ulimit -n` or lower `max_open_files`")]
    NoDescriptor {
        /// What needed one.
        detail: String,
    },
    /// A sync or a write of the shard failed before: nothing more is acked until restart.
    #[error("shard is poisoned until restart: {detail}")]
    Poisoned {
        /// The error that poisoned it.
        detail: String,
    },
    /// The bounded staging room is exhausted.
    #[error("staging room is exhausted")]
    Staging,
    /// Another process has the data directory open.
    #[error("data directory is locked by process {pid}{}", url.as_deref().map(|u| format!(" serving at {u}")).unwrap_or_default())]
    Locked {
        /// The process that holds the lock; 0 where its lock file was removed or replaced, so that
        /// it is not known.
        pid: u32,
        /// Where it serves, if it does.
        url: Option<String>,
    },
    /// The lock file of the open directory was removed or replaced: nothing more is acked.
    #[error(
        "the lock file of the data directory was removed or replaced while it was open: end this \
         process, make sure that the directory is the right one, and open it again"
    )]
    LockLost,
    /// The data directory cannot be made, or cannot be one.
    #[error("the data directory {dir} cannot be used: {detail}")]
    Directory {
        /// The data directory.
        dir: String,
        /// What stands in the way, and what to do about it.
        detail: String,
    },
    /// A format version or frame type of a newer program.
    #[error("{what} has version {found}; this program reads up to {supported}")]
    Version {
        /// What carries the version.
        what: String,
        /// The version that was found.
        found: u32,
        /// The newest version that is understood.
        supported: u32,
    },
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
    /// Something that must be there is not.
    #[error("{what} is missing")]
    Missing {
        /// What is missing.
        what: String,
    },
}

impl StorageError {
    /// An I/O error while doing `what`; a full disk or quota, and a limit on the size of files,
    /// become [`StorageError::Full`], too many open files [`StorageError::NoDescriptor`].
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

    /// Whether something was not there to be had, so that nothing was begun: it says nothing about
    /// what was written before, nor about the next attempt.
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
