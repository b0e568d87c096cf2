//! The io_uring write path: a write linked to its datasync in one submission.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use io_uring::squeue::Flags;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, Probe, opcode};
use rustix::io::Errno;

use crate::real::{RealFile, RealFs};
use crate::sync::Mutex;
use crate::sync::thread;
use crate::{DirEntry, File, Fs, LockError, LockGuard, OpenMode, WriteSyncError};

const WRITE: u64 = 1;
const SYNC: u64 = 2;
/// The kernel writes less than 2 GiB in one call; longer writes use plain calls.
const MAX_LINKED: usize = 1 << 30;
/// The maximum of idle rings kept: as many as shards write at the same time.
const MAX_IDLE: usize = 16;

/// Checks that this kernel and its policy offer the calls that [`UringFs`] needs: runs a linked
/// write and datasync against an anonymous file.
pub fn probe() -> io::Result<()> {
    let ring = Ring::new()?;
    let mut probe = Probe::new();
    ring.0.submitter().register_probe(&mut probe)?;
    if !probe.is_supported(opcode::Write::CODE) || !probe.is_supported(opcode::Fsync::CODE) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let fd: OwnedFd = rustix::fs::memfd_create("topics-probe", rustix::fs::MemfdFlags::CLOEXEC)?;
    let pool = Arc::new(Pool { idle: Mutex::new(vec![ring]) });
    let file = UringFile { file: RealFile { fd }, pool: pool.clone() };
    let text = b"linked";
    let (result, ring) = file.linked(pool.take()?, text, 0);
    let ok = matches!(result, Ok(done) if done.write == text.len() as i32 && done.sync == 0);
    let mut back = [0; 6];
    file.read_exact_at(&mut back, 0)?;
    drop(ring);
    if ok && &back == text { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// A ring of two entries, used by one thread at a time.
struct Ring(IoUring);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

impl Ring {
    fn new() -> io::Result<Self> {
        Ok(Self(IoUring::new(2)?))
    }
}

#[derive(Debug)]
struct Pool {
    idle: Mutex<Vec<Ring>>,
}

impl Pool {
    fn take(&self) -> io::Result<Ring> {
        match self.idle.lock().pop() {
            Some(ring) => Ok(ring),
            None => Ring::new(),
        }
    }

    fn put(&self, ring: Ring) {
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push(ring);
        }
    }
}

/// [`RealFs`], except that files open for writing link a write to its datasync.
#[derive(Debug)]
pub struct UringFs {
    real: RealFs,
    pool: Arc<Pool>,
}

impl UringFs {
    /// Fails if [`probe`] fails.
    pub fn new() -> io::Result<Self> {
        probe()?;
        Ok(Self { real: RealFs::new(), pool: Arc::new(Pool { idle: Mutex::default() }) })
    }
}

impl Fs for UringFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = self.real.open_real(path, mode)?;
        Ok(match mode {
            OpenMode::Read => Arc::new(file),
            _ => Arc::new(UringFile { file, pool: self.pool.clone() }),
        })
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.real.create_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real.hard_link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.real.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.real.remove_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.real.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.real.sync_dir(dir)
    }

    fn sync_fs(&self, dir: &Path) -> io::Result<()> {
        self.real.sync_fs(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.real.exists(path)
    }

    fn lock(&self, path: &Path, content: &[u8]) -> Result<Box<dyn LockGuard>, LockError> {
        self.real.lock(path, content)
    }

    fn lock_file(&self, path: &Path) -> Result<Box<dyn LockGuard>, LockError> {
        self.real.lock_file(path)
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn LockGuard>, LockError> {
        self.real.lock_shared(path)
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.real.free_space(dir)
    }

    fn release(&self) {
        self.real.release();
        self.pool.idle.lock().clear();
    }

    fn boot_id(&self) -> io::Result<[u8; 16]> {
        self.real.boot_id()
    }

    fn mount_id(&self, dir: &Path) -> io::Result<u64> {
        self.real.mount_id(dir)
    }

    fn modified_ms(&self, path: &Path) -> io::Result<u64> {
        self.real.modified_ms(path)
    }

    fn fd_limit(&self) -> Option<u64> {
        self.real.fd_limit()
    }

    fn backend(&self) -> &'static str {
        "uring"
    }
}

#[derive(Debug)]
struct UringFile {
    file: RealFile,
    pool: Arc<Pool>,
}

/// The results of the two linked entries: a byte count or a negative errno.
#[derive(Clone, Copy, Debug)]
struct Completions {
    write: i32,
    sync: i32,
}

const CANCELED: i32 = -Errno::CANCELED.raw_os_error();

/// The remaining step after a linked write and sync.
#[derive(Debug)]
enum Next {
    Done,
    /// Write the rest from this offset with plain calls (none, if all is written), then sync.
    WriteFrom(usize),
    Fail(WriteSyncError),
}

impl Completions {
    /// A sync counts only if it ran after all bytes were written. After a short write its result is
    /// used only for an error, which the kernel reports once.
    fn next(self, len: usize) -> Next {
        let errno = |code: i32| io::Error::from_raw_os_error(-code);
        let written = usize::try_from(self.write).ok();
        match (written, self.sync) {
            (Some(n), 0) if n == len => Next::Done,
            (_, s) if s < 0 && s != CANCELED => Next::Fail(WriteSyncError::Sync(errno(s))),
            (Some(n), _) => Next::WriteFrom(n),
            (None, _) => match Errno::from_raw_os_error(-self.write) {
                // Refused or interrupted without effect: the plain calls report the cause.
                Errno::INTR | Errno::AGAIN | Errno::CANCELED | Errno::INVAL | Errno::OPNOTSUPP => {
                    Next::WriteFrom(0)
                }
                _ => Next::Fail(WriteSyncError::Write(errno(self.write))),
            },
        }
    }
}

impl UringFile {
    /// Submits write and datasync together. Returns only when the kernel no longer uses `buf`;
    /// drops a ring that failed. An error means that nothing was submitted.
    fn linked(
        &self,
        mut ring: Ring,
        buf: &[u8],
        offset: u64,
    ) -> (io::Result<Completions>, Option<Ring>) {
        if let Err(e) = queue(&mut ring.0, self.file.fd.as_raw_fd(), buf, offset) {
            return (Err(e), None);
        }
        let mut done = Completions { write: CANCELED, sync: CANCELED };
        let (mut submitted, mut completed, mut split) = (0, 0, false);
        while completed < 2 {
            match ring.0.submit_and_wait(2 - completed) {
                Ok(n) => {
                    // Entries that the kernel takes one at a time are not linked: the sync may have
                    // run first.
                    split |= submitted + n == 1;
                    submitted += n;
                }
                Err(e) if submitted == 0 && e.kind() != io::ErrorKind::Interrupted => {
                    // The kernel took no entry; dropping the ring discards them.
                    if ring.0.completion().is_empty() && ring.0.submission().len() == 2 {
                        return (Err(e), None);
                    }
                }
                // The kernel uses `buf` until both entries are complete: wait despite the error.
                Err(_) => thread::yield_now(),
            }
            for entry in ring.0.completion() {
                match entry.user_data() {
                    WRITE => done.write = entry.result(),
                    _ => done.sync = entry.result(),
                }
                completed += 1;
            }
        }
        if split && done.sync == 0 {
            done.sync = CANCELED;
        }
        (Ok(done), Some(ring))
    }
}

// The only code that passes a pointer to the kernel.
#[allow(unsafe_code)]
fn queue(ring: &mut IoUring, fd: RawFd, buf: &[u8], offset: u64) -> io::Result<()> {
    let write = opcode::Write::new(Fd(fd), buf.as_ptr(), buf.len() as u32)
        .offset(offset)
        .build()
        .flags(Flags::IO_LINK)
        .user_data(WRITE);
    let sync = opcode::Fsync::new(Fd(fd)).flags(FsyncFlags::DATASYNC).build().user_data(SYNC);
    // SAFETY: `linked`, the only caller, borrows `buf` and the descriptor, and returns only after
    // both entries completed or if none was submitted.
    unsafe { ring.submission().push_multiple(&[write, sync]) }
        .map_err(|_| io::Error::from(Errno::BUSY))
}

impl File for UringFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }

    fn allocate_written(&self, len: u64) -> io::Result<()> {
        self.file.allocate_written(len)
    }

    fn links(&self) -> io::Result<u64> {
        self.file.links()
    }

    fn write_sync_at(&self, buf: &[u8], offset: u64) -> Result<(), WriteSyncError> {
        if buf.is_empty() || buf.len() > MAX_LINKED {
            return self.file.write_sync_at(buf, offset);
        }
        let done = match self.pool.take() {
            Ok(ring) => {
                let (done, ring) = self.linked(ring, buf, offset);
                ring.into_iter().for_each(|ring| self.pool.put(ring));
                done
            }
            Err(e) => Err(e),
        };
        match done.map_or(Next::WriteFrom(0), |done| done.next(buf.len())) {
            Next::Done => Ok(()),
            Next::Fail(e) => Err(e),
            Next::WriteFrom(n) => self.file.write_sync_at(&buf[n..], offset + n as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(write: i32, sync: i32) -> Next {
        Completions { write, sync }.next(10)
    }

    #[test]
    fn only_a_sync_after_all_bytes_counts() {
        let eio = -Errno::IO.raw_os_error();
        let nospc = -Errno::NOSPC.raw_os_error();
        let intr = -Errno::INTR.raw_os_error();
        assert!(matches!(next(10, 0), Next::Done));
        assert!(matches!(next(10, eio), Next::Fail(WriteSyncError::Sync(_))));
        assert!(matches!(next(10, CANCELED), Next::WriteFrom(10)));
        assert!(matches!(next(4, CANCELED), Next::WriteFrom(4)));
        assert!(matches!(next(4, 0), Next::WriteFrom(4)));
        assert!(matches!(next(4, eio), Next::Fail(WriteSyncError::Sync(_))));
        assert!(matches!(next(0, CANCELED), Next::WriteFrom(0)));
        assert!(matches!(next(intr, CANCELED), Next::WriteFrom(0)));
        assert!(matches!(next(nospc, CANCELED), Next::Fail(WriteSyncError::Write(_))));
        assert!(matches!(next(eio, CANCELED), Next::Fail(WriteSyncError::Write(_))));
    }
}
