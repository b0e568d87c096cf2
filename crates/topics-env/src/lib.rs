//! File system, clock and randomness behind traits.
//!
//! Everything above this crate reaches files, time and entropy through an [`Env`], so that every
//! run is deterministic given an env and a schedule, and every crash point can be tested: `topics-sim`
//! has a simulated disk, clock and object store.
//!
//! * [`real`]: the operating system, through rustix.
//! * `uring`: the same files, a write linked to its datasync in one submission.
//! * [`objects`]: an object store.
//! * [`Overlay`]: a read-only view of any of them; writes stay in memory.
//! * [`Guards`]: unwind guards of background loops.
//! * [`FdReclaimer`]: closes cached files when no descriptor is left.
//! * [`sync`]: locks, atomics and threads, which a concurrency model checker can replace.

use std::fmt::Debug;
use std::io;
use std::num::NonZero;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

mod descriptors;
mod guard;
mod hook;
pub mod objects;
mod overlay;
mod pages;
pub mod real;
pub mod sync;
#[cfg(target_os = "linux")]
pub mod uring;
mod waiters;

pub use descriptors::{FdReclaimer, is_fd_exhausted};
pub use guard::{Guards, LoopPanics, Panicked};
pub use hook::{Hook, Site, Verdict};
pub use overlay::Overlay;
pub use pages::Pages;
pub use waiters::{Callback, Waiters};

use descriptors::FdRetryFs;

/// The number of threads that this process can run in parallel. Computed once: reading the limit of
/// the control group takes longer than opening an empty directory.
#[must_use]
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZero::get))
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, for reading.
    Read,
    /// An existing file, for reading and writing.
    Write,
    /// A file that must not exist yet, for reading and writing, mode 0600.
    CreateNew,
    /// A new or emptied file, for reading and writing, mode 0600.
    Truncate,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The name, without its directory.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// The part of [`File::write_sync_at`] that failed.
#[derive(Debug)]
pub enum WriteSyncError {
    /// The bytes were not all written.
    Write(io::Error),
    /// The bytes were written and the sync failed: whether they are durable is unknown.
    Sync(io::Error),
}

/// An open file. All offsets and lengths are bytes.
///
/// Methods take `&self`: a file is shared by readers and one writer.
pub trait File: Send + Sync + Debug {
    /// Reads at most `buf.len()` bytes at `offset`; 0 is the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes at most `buf.len()` bytes at `offset` and returns how many were written.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;

    /// Makes every write that completed before this call durable (`fdatasync`).
    ///
    /// Call it through [`Env::sync`] so that the simulation sees which sync it is.
    fn sync_data(&self) -> io::Result<()>;

    /// The length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Truncates the file, or extends it with zeros, to `len` bytes.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves disk space for the first `len` bytes and extends the file to `len` when it is
    /// shorter; the new bytes read as zero.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Like [`Self::allocate`], but writes the new bytes as zeros. A later write to them changes no
    /// metadata, so its sync is cheaper.
    fn allocate_written(&self, len: u64) -> io::Result<()> {
        self.allocate(len)
    }

    /// The number of hard links (names) of this file.
    fn links(&self) -> io::Result<u64>;

    /// Reads exactly `buf.len()` bytes at `offset`; `UnexpectedEof` when the file is shorter.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Writes all of `buf` at `offset`: continues after short writes, retries `EINTR`, and fails
    /// with `WriteZero` when a write makes no progress.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.write_at(&buf[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Writes all of `buf` at `offset`, then makes the file durable. A backend may link the two in one
    /// submission.
    fn write_sync_at(&self, buf: &[u8], offset: u64) -> Result<(), WriteSyncError> {
        self.write_all_at(buf, offset).map_err(WriteSyncError::Write)?;
        self.sync_data().map_err(WriteSyncError::Sync)
    }
}

/// Why [`Fs::lock`] failed.
#[derive(Debug)]
pub enum LockError {
    /// Another process, or another open in this one, holds the lock; the content that it wrote into
    /// the file.
    Held(Vec<u8>),
    /// The lock file could not be opened, locked or written.
    Io(io::Error),
}

/// A held lock; dropping it releases it.
pub trait LockGuard: Send + Sync + Debug {
    /// Replaces the holder's description in the lock file.
    fn describe(&self, content: &[u8]) -> io::Result<()>;
    /// Whether the locked path still names the locked file. The lock of a removed or replaced file
    /// excludes no other process.
    fn is_named(&self) -> io::Result<bool>;
}

/// A file system.
pub trait Fs: Send + Sync + Debug {
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;
    /// Creates one directory, mode 0700; `AlreadyExists` when there is one.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Renames a file and replaces an existing `to`. Call it through [`Env::rename`].
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file a second name, which must not exist. Fails where the file system has no hard links,
    /// with `CrossesDevices` where `to` is on another one.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file's name.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;
    /// Makes the names in a directory durable. Call it through [`Env::sync_dir`].
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Makes every earlier write to the file system that holds `dir` durable (`syncfs`).
    /// `Unsupported` where the system does not report errors of earlier writes. The real
    /// implementation reports every write error since the first [`Fs::mount_id`] or `sync_fs` of
    /// that file system, each error once: call `mount_id` before the first write.
    fn sync_fs(&self, dir: &Path) -> io::Result<()>;
    /// Whether a name exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Takes the exclusive lock of a file, creating it when missing, and writes `content`.
    fn lock(&self, path: &Path, content: &[u8]) -> Result<Box<dyn LockGuard>, LockError>;
    /// Takes the exclusive lock of an existing file and does not write it.
    fn lock_file(&self, path: &Path) -> Result<Box<dyn LockGuard>, LockError>;
    /// Takes a shared lock: other shared locks are possible, an exclusive one ([`Fs::lock`]) is not. The
    /// file must exist; it is not written.
    fn lock_shared(&self, path: &Path) -> Result<Box<dyn LockGuard>, LockError>;
    /// Free bytes for this user on the file system of `dir`.
    fn free_space(&self, dir: &Path) -> io::Result<u64>;
    /// An id that changes when the machine boots.
    fn boot_id(&self) -> io::Result<[u8; 16]>;
    /// An id that changes when the file system of `dir` is mounted again.
    fn mount_id(&self, dir: &Path) -> io::Result<u64>;
    /// When a file was last written, in milliseconds since the Unix epoch; 0: unknown.
    fn modified_ms(&self, path: &Path) -> io::Result<u64>;
    /// The maximum of open files of this process; `None`: unlimited.
    fn fd_limit(&self) -> Option<u64>;
    /// Closes descriptors that belong to no open file, so that the file system can be unmounted. Called
    /// by a closed engine that does not share this value. Drops errors that `sync_fs` has not reported.
    fn release(&self) {}
    /// The name of the I/O backend: `posix`, `uring` or `sim`.
    fn backend(&self) -> &'static str;
}

/// Time.
pub trait Clock: Send + Sync + Debug {
    /// Milliseconds since the Unix epoch. May step in both directions.
    fn wall_ms(&self) -> u64;
    /// Nanoseconds since some fixed instant. Never goes back.
    fn mono_ns(&self) -> u64;
}

/// Randomness.
pub trait Rng: Send + Sync + Debug {
    /// Fills `buf` with random bytes.
    fn fill(&self, buf: &mut [u8]);

    /// A random 64-bit number.
    fn next_u64(&self) -> u64 {
        let mut b = [0; 8];
        self.fill(&mut b);
        u64::from_le_bytes(b)
    }
}

/// File system, clock and randomness as one value, cheap to clone.
#[derive(Clone, Debug)]
pub struct Env {
    /// Files.
    pub fs: Arc<dyn Fs>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub rng: Arc<dyn Rng>,
    /// Unwind guards of background loops.
    pub guards: Arc<Guards>,
    hook: Option<Arc<dyn Hook>>,
    process_id: u32,
    read_only: bool,
    fd_retry: Arc<FdRetryFs>,
}

impl Env {
    /// An env of these components.
    pub fn new(fs: Arc<dyn Fs>, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        let fd_retry = Arc::new(FdRetryFs::new(fs));
        let guards = Arc::default();
        let process_id = std::process::id();
        Self {
            fs: fd_retry.clone(),
            clock,
            rng,
            guards,
            hook: None,
            process_id,
            read_only: false,
            fd_retry,
        }
    }

    /// The process that made this env, as lock files name it.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.process_id
    }

    /// The same env as if another process had made it.
    #[must_use]
    pub fn with_process_id(self, process_id: u32) -> Self {
        Self { process_id, ..self }
    }

    /// Registers the cache that closes files when a call finds no descriptor; the call then runs once
    /// more. Replaces an earlier one; ignored once it is dropped.
    pub fn on_fd_exhaustion(&self, reclaimer: Weak<dyn FdReclaimer>) {
        self.fd_retry.set_reclaimer(reclaimer);
    }

    /// The same env with a hook that sees, and may remove, every sync, rename and check. Only
    /// tests set one.
    pub fn with_hook(mut self, hook: Arc<dyn Hook>) -> Self {
        self.hook = Some(hook);
        self
    }

    /// The same env over a read-only view of the files: writes stay in memory and are visible only
    /// through this env.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.fs = Arc::new(Overlay::new(self.fs));
        self.read_only = true;
        self
    }

    /// Whether writes stay in memory.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn verdict(&self, site: Site) -> Verdict {
        self.hook.as_ref().map_or(Verdict::Run, |h| h.visit(site))
    }

    /// [`File::sync_data`], at a named site.
    pub fn sync(&self, site: &'static str, file: &dyn File) -> io::Result<()> {
        match self.verdict(Site::Sync(site)) {
            Verdict::Run => file.sync_data(),
            Verdict::Skip => Ok(()),
        }
    }

    /// [`File::write_sync_at`], at a named site.
    pub fn write_sync(
        &self,
        site: &'static str,
        file: &dyn File,
        buf: &[u8],
        offset: u64,
    ) -> Result<(), WriteSyncError> {
        match self.verdict(Site::Sync(site)) {
            Verdict::Run => file.write_sync_at(buf, offset),
            Verdict::Skip => file.write_all_at(buf, offset).map_err(WriteSyncError::Write),
        }
    }

    /// [`Fs::sync_dir`], at a named site.
    pub fn sync_dir(&self, site: &'static str, dir: &Path) -> io::Result<()> {
        match self.verdict(Site::SyncDir(site)) {
            Verdict::Run => self.fs.sync_dir(dir),
            Verdict::Skip => Ok(()),
        }
    }

    /// [`Fs::sync_fs`], at a named site.
    pub fn sync_fs(&self, site: &'static str, dir: &Path) -> io::Result<()> {
        match self.verdict(Site::Sync(site)) {
            Verdict::Run => self.fs.sync_fs(dir),
            Verdict::Skip => Ok(()),
        }
    }

    /// [`Fs::rename`], at a named site. If the hook skips the rename of a finished temporary file,
    /// the call rewrites the target in place, without atomicity.
    pub fn rename(&self, site: &'static str, from: &Path, to: &Path) -> io::Result<()> {
        match self.verdict(Site::Rename(site)) {
            Verdict::Run => self.fs.rename(from, to),
            Verdict::Skip => {
                let src = self.fs.open(from, OpenMode::Read)?;
                let mut bytes = vec![0; usize::try_from(src.len()?).unwrap_or(usize::MAX)];
                src.read_exact_at(&mut bytes, 0)?;
                self.fs.open(to, OpenMode::Truncate)?.write_all_at(&bytes, 0)?;
                self.fs.remove_file(from)
            }
        }
    }

    /// The result of a check that a guarantee depends on, at a named site. Returns `ok`, or always
    /// `true` if a test's hook removed the check. The hook also sees checks that pass.
    #[inline]
    pub fn check(&self, site: &'static str, ok: bool) -> bool {
        match &self.hook {
            None => ok,
            Some(hook) => hook.visit(Site::Check(site)) == Verdict::Skip || ok,
        }
    }
}
