//! Faults: the nth call of a kind fails in a given way.

use std::collections::BTreeMap;
use std::io;

use rustix::io::Errno;

use super::journal::PageFate;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallKind {
    /// An open of an existing file.
    Open,
    /// An open that creates its file.
    Create,
    Read,
    Write,
    SetLen,
    Allocate,
    SyncData,
    /// `len`, `links` or `exists`.
    Stat,
    CreateDir,
    Rename,
    Link,
    RemoveFile,
    RemoveDir,
    List,
    SyncDir,
    SyncFs,
    Lock,
    FreeSpace,
}

impl CallKind {
    /// Every kind.
    pub const ALL: [Self; 18] = [
        Self::Open,
        Self::Create,
        Self::Read,
        Self::Write,
        Self::SetLen,
        Self::Allocate,
        Self::SyncData,
        Self::Stat,
        Self::CreateDir,
        Self::Rename,
        Self::Link,
        Self::RemoveFile,
        Self::RemoveDir,
        Self::List,
        Self::SyncDir,
        Self::SyncFs,
        Self::Lock,
        Self::FreeSpace,
    ];

    /// The calls that need a descriptor. A sync of the file system does not: it opens its
    /// descriptor before.
    pub const NEEDS_FD: [Self; 5] =
        [Self::Open, Self::Create, Self::List, Self::SyncDir, Self::Lock];

    /// Whether it is a sync.
    pub fn is_sync(self) -> bool {
        matches!(self, Self::SyncData | Self::SyncDir | Self::SyncFs)
    }
}

/// Selects the calls that a fault counts.
#[derive(Clone, Debug)]
pub struct CallFilter {
    kinds: Vec<CallKind>,
    path: Option<String>,
}

impl CallFilter {
    /// Only calls on paths that contain this text. A file keeps the path by which it was opened.
    pub fn on_path(kind: CallKind, contains: &str) -> Self {
        Self { kinds: vec![kind], path: Some(contains.to_owned()) }
    }

    fn matches(&self, kind: CallKind, path: &str) -> bool {
        self.kinds.contains(&kind) && self.path.as_ref().is_none_or(|part| path.contains(part))
    }
}

impl From<CallKind> for CallFilter {
    fn from(kind: CallKind) -> Self {
        [kind].as_slice().into()
    }
}

impl From<&[CallKind]> for CallFilter {
    fn from(kinds: &[CallKind]) -> Self {
        Self { kinds: kinds.to_vec(), path: None }
    }
}

/// How a call fails. A kind that does not apply to a call becomes `EIO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Fails with this error and has no effect.
    Errno(i32),
    /// A write, or a read, of half the bytes, but at least one.
    ShortWrite,
    /// A write of zero bytes.
    ZeroProgress,
    /// A sync that fails with `EIO`; the pages are clean afterwards.
    SyncFails {
        /// What the pages contain afterwards.
        then: PageFate,
    },
}

impl FaultKind {
    /// An I/O error.
    pub const EIO: Self = Self::Errno(Errno::IO.raw_os_error());
    /// A full disk.
    pub const ENOSPC: Self = Self::Errno(Errno::NOSPC.raw_os_error());
    /// An exhausted quota.
    pub const EDQUOT: Self = Self::Errno(Errno::DQUOT.raw_os_error());
    /// A file may not grow to this size.
    pub const EFBIG: Self = Self::Errno(Errno::FBIG.raw_os_error());
    /// No descriptor is left for this process.
    pub const EMFILE: Self = Self::Errno(Errno::MFILE.raw_os_error());
    /// No descriptor is left in the system.
    pub const ENFILE: Self = Self::Errno(Errno::NFILE.raw_os_error());
    /// An interrupted call.
    pub const EINTR: Self = Self::Errno(Errno::INTR.raw_os_error());

    pub(super) fn error(self) -> io::Error {
        match self {
            Self::Errno(code) => io::Error::from_raw_os_error(code),
            _ => Errno::IO.into(),
        }
    }
}

#[derive(Debug)]
struct PlannedFault {
    filter: CallFilter,
    /// The number of matching calls that still pass.
    pass: usize,
    forever: bool,
    kind: FaultKind,
}

/// Counts calls and decides which of them fail.
#[derive(Debug, Default)]
pub(super) struct Faults {
    plans: Vec<PlannedFault>,
    counts: BTreeMap<CallKind, usize>,
    fired: usize,
}

impl Faults {
    pub(super) fn plan(&mut self, filter: CallFilter, nth: usize, forever: bool, kind: FaultKind) {
        self.plans.push(PlannedFault { filter, pass: nth.saturating_sub(1), forever, kind });
    }

    pub(super) fn clear(&mut self) {
        self.plans.clear();
    }

    pub(super) fn counts(&self) -> BTreeMap<CallKind, usize> {
        self.counts.clone()
    }

    pub(super) fn fired(&self) -> usize {
        self.fired
    }

    /// Counts a call. If several faults are due, the first takes effect and the others wait for the
    /// next call.
    pub(super) fn call(&mut self, kind: CallKind, path: &str) -> Option<FaultKind> {
        *self.counts.entry(kind).or_insert(0) += 1;
        let mut hit = None;
        self.plans.retain_mut(|plan| {
            if !plan.filter.matches(kind, path) {
                return true;
            }
            if plan.pass > 0 {
                plan.pass -= 1;
                return true;
            }
            if hit.is_some() {
                return true;
            }
            hit = Some(plan.kind);
            plan.forever
        });
        self.fired += usize::from(hit.is_some());
        hit
    }
}
