//! The env of the operating system: which backend, its clocks and its entropy.

use std::io;
use std::sync::Arc;

use super::RealFs;
use crate::{Clock, Env, Fs, Rng};

/// Which I/O backend to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// `Posix`, the faster backend in measurements (docs/decisions/0002).
    #[default]
    Auto,
    /// `pwrite` and `fdatasync`.
    Posix,
    /// io_uring; fails if the kernel does not offer it.
    Uring,
}

impl Backend {
    /// Every backend by its name in settings.
    pub const NAMES: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("posix", Self::Posix), ("uring", Self::Uring)];
}

/// The env of the operating system.
pub fn real_env(backend: Backend) -> io::Result<Env> {
    Ok(Env::new(real_fs(backend)?, Arc::new(SystemClock), Arc::new(OsRng::new()?)))
}

#[cfg(target_os = "linux")]
fn real_fs(backend: Backend) -> io::Result<Arc<dyn Fs>> {
    Ok(match backend {
        Backend::Uring => Arc::new(crate::uring::UringFs::new()?),
        Backend::Auto | Backend::Posix => Arc::new(RealFs::new()),
    })
}

#[cfg(not(target_os = "linux"))]
fn real_fs(backend: Backend) -> io::Result<Arc<dyn Fs>> {
    match backend {
        Backend::Uring => Err(io::ErrorKind::Unsupported.into()),
        Backend::Auto | Backend::Posix => Ok(Arc::new(RealFs::new())),
    }
}

#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall_ms(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |d| d.as_millis() as u64)
    }

    fn mono_ns(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
    }
}

/// The entropy of the system. Keeps no open descriptor.
#[derive(Debug)]
pub struct OsRng(());

impl OsRng {
    /// Opens the source and reads from it once.
    pub fn new() -> io::Result<Self> {
        let rng = Self(());
        rng.try_fill(&mut [0; 16])?;
        Ok(rng)
    }

    #[cfg(target_os = "linux")]
    fn try_fill(&self, mut buf: &mut [u8]) -> io::Result<()> {
        while !buf.is_empty() {
            match rustix::rand::getrandom(&mut *buf, rustix::rand::GetRandomFlags::empty()) {
                Ok(n) => buf = &mut buf[n..],
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    fn try_fill(&self, buf: &mut [u8]) -> io::Result<()> {
        io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, buf)
    }
}

impl Rng for OsRng {
    /// A source that worked once does not fail later. If it does, the process ends, because
    /// predictable numbers would break guarantees.
    fn fill(&self, buf: &mut [u8]) {
        if self.try_fill(buf).is_err() {
            log::error!("the system's entropy cannot be read");
            std::process::abort();
        }
    }
}
