//! The control interface of the simulated file system for tests: images, crash points, faults, the
//! order monitor.

use std::path::Path;
use std::sync::Arc;

use super::crash::{CrashCursor, CrashOptions, CrashState};
use super::disk::{DiskImage, ROOT};
use super::fault::{CallFilter, CallKind, FaultKind};
use super::fs::normal;
use super::journal::{Op, PageFate, Scope};
use super::state::State;
use topics_env::sync::Mutex;

/// A violation of an ordering rule, detected by the monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A rename of a file with bytes that no sync covered.
    RenameUnsynced {
        /// The index of the rename in the journal.
        op: usize,
        /// The new name.
        path: String,
    },
}

/// The call after which a deferred sync or rename takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeferUntil {
    /// The next mutating call.
    Call,
    /// This number of mutating calls.
    Calls(usize),
    /// The next rename to a path that contains this text.
    Rename(&'static str),
    /// The next removal of a path that contains this text.
    Remove(&'static str),
}

/// A file system in memory, with a journal of mutating calls.
#[derive(Debug)]
pub struct SimFs {
    pub(super) state: Arc<Mutex<State>>,
}

impl Default for SimFs {
    fn default() -> Self {
        Self::new()
    }
}

impl SimFs {
    /// An empty file system; the root directory exists.
    pub fn new() -> Self {
        Self::from_image(&DiskImage::empty())
    }

    /// Mounts an image, unlocked and with an empty journal. The bytes of a crash image are durable;
    /// the bytes of a kill image keep their state: durable or still un-synced.
    pub fn from_image(image: &DiskImage) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(image))) }
    }

    /// The disk as the next process sees it after this process is killed: every write, durable or
    /// not, on the same boot and mount. A later power cut can still lose un-synced bytes.
    pub fn kill_image(&self) -> DiskImage {
        let state = self.state.lock();
        DiskImage {
            tree: state.visible.clone(),
            cache: Some(Arc::new(state.disk.clone())),
            boot: state.boot,
            mount: state.mount,
            lost: false,
            unreported: Arc::new(state.unreported.clone()),
            unreported_fs: state.unreported_fs,
        }
    }

    /// [`Self::kill_image`], but the write-back of un-synced pages fails before the next process
    /// reads them: of all pages if `seed` is 0, otherwise of about half. Reads return the durable
    /// bytes, and the next sync of each affected file reports the error once. `None` if no page was
    /// un-synced.
    pub fn failed_write_back_image(&self, seed: u64) -> Option<DiskImage> {
        let state = self.state.lock();
        DiskImage::with_failed_write_back(&state.disk, seed, (state.boot, state.mount))
    }

    /// The number of mutating calls so far.
    pub fn ops_len(&self) -> usize {
        self.state.lock().journal.len()
    }

    /// A readable description of the mutating call with this index.
    pub fn describe_op(&self, index: usize) -> String {
        let state = self.state.lock();
        let Some(entry) = state.journal.get(index) else { return "none".to_owned() };
        let what = match &entry.op {
            Op::Write { offset, data, .. } => format!("write {} at {offset}", data.len()),
            Op::SetLen { len, .. } => format!("set_len {len}"),
            Op::Allocate { len, .. } => format!("allocate {len}"),
            Op::Create { is_dir: true, .. } => "create_dir".to_owned(),
            Op::Create { .. } => "create".to_owned(),
            Op::Link { .. } => "link".to_owned(),
            Op::Rename { .. } => "rename".to_owned(),
            Op::Remove { .. } => "remove".to_owned(),
            Op::Sync(Scope::File(_)) => "sync_data".to_owned(),
            Op::Sync(Scope::Dir(_)) => "sync_dir".to_owned(),
            Op::Sync(Scope::All) => "sync_fs".to_owned(),
            Op::SyncFailed(_, fate) => format!("failed sync ({fate:?})"),
        };
        format!("#{index} {what} {}", entry.path)
    }

    /// A cursor over the crash points of the journal so far.
    pub fn crash_cursor(&self) -> CrashCursor {
        let state = self.state.lock();
        let journal = state.journal.iter().map(|e| e.op.clone()).collect();
        CrashCursor::new(state.base.clone(), journal, state.boot, state.mount)
    }

    /// Every distinct disk that a power cut can leave immediately after the first `after_ops`
    /// mutating calls or during the last of them.
    pub fn crash_states(
        &self,
        after_ops: usize,
        seed: u64,
        options: &CrashOptions,
        visit: &mut dyn FnMut(CrashState),
    ) {
        let mut cursor = self.crash_cursor();
        cursor.seek(after_ops);
        cursor.states(seed, options, visit);
    }

    /// [`Self::crash_states`] of every crash point, from before the first call to after the last.
    pub fn all_crash_states(
        &self,
        seed: u64,
        options: &CrashOptions,
        visit: &mut dyn FnMut(CrashState),
    ) {
        let mut cursor = self.crash_cursor();
        loop {
            cursor.states(seed, options, visit);
            if !cursor.advance() {
                return;
            }
        }
    }

    /// Makes the `nth` matching call from now (the first is 1) fail, once.
    pub fn fail_nth(&self, calls: impl Into<CallFilter>, nth: usize, kind: FaultKind) {
        self.state.lock().faults.plan(calls.into(), nth, false, kind);
    }

    /// Makes every matching call fail, starting with the `nth` from now.
    pub fn fail_from(&self, calls: impl Into<CallFilter>, nth: usize, kind: FaultKind) {
        self.state.lock().faults.plan(calls.into(), nth, true, kind);
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.state.lock().faults.clear();
    }

    /// The number of faults that took effect.
    pub fn faults_fired(&self) -> usize {
        self.state.lock().faults.fired()
    }

    /// The number of calls of this kind, including failed ones.
    pub fn calls(&self, kind: CallKind) -> usize {
        self.state.lock().faults.counts().get(&kind).copied().unwrap_or(0)
    }

    /// Limits the bytes that can still be written, in pages of 4 KiB; `None` removes the limit.
    /// Removing and truncating files frees space; a removed file frees its space when its last
    /// handle is closed.
    pub fn set_free_space(&self, bytes: Option<u64>) {
        self.state.lock().set_free(bytes);
    }

    /// Limits the number of open files; `None` removes the limit. Files that are already open stay
    /// open.
    pub fn set_fd_limit(&self, most: Option<usize>) {
        self.state.lock().fd_limit = most;
    }

    /// The number of open files.
    pub fn open_files(&self) -> usize {
        self.state.lock().open_files()
    }

    /// Whether a failed sync dropped pages of files whose path contains this text: reads of them
    /// return the earlier durable bytes.
    pub fn pages_reverted(&self, contains: &str) -> bool {
        let state = self.state.lock();
        state.journal.iter().any(|e| match e.op {
            Op::SyncFailed(Scope::File(_), PageFate::Reverted) => e.path.contains(contains),
            Op::SyncFailed(Scope::All, PageFate::Reverted) => true,
            _ => false,
        })
    }

    /// The violations that the monitor detected.
    pub fn violations(&self) -> Vec<Violation> {
        self.state.lock().violations.clone()
    }

    /// Whether these bytes survive every power cut: the bytes and every name on their path are
    /// durable, and no pending call changes them.
    pub fn is_durable(&self, path: &Path, offset: u64, len: u64) -> bool {
        let Ok(path) = normal(path) else { return false };
        let state = self.state.lock();
        let mut at = ROOT;
        for name in path.split('/').filter(|n| !n.is_empty()) {
            let (seen, kept) =
                (state.visible.lookup(at, name), state.disk.durable.lookup(at, name));
            let pending = state.disk.pending.iter().any(|p| p.op.touches_name(at, name));
            match seen {
                Some(ino) if kept == seen && !pending => at = ino,
                _ => return false,
            }
        }
        let end = offset + len;
        let changed = state.disk.pending.iter().any(|p| match &p.op {
            Op::Write { ino, offset: o, data } => {
                *ino == at && *o < end && *o + data.len() as u64 > offset
            }
            Op::SetLen { ino, len } => *ino == at && *len < end,
            _ => false,
        });
        let files = (state.visible.file(at), state.disk.durable.file(at));
        matches!(files, (Some(s), Some(d)) if !changed && s.same_range(d, offset, len))
    }

    /// Defers the next sync or rename of this thread until a later call of the given kind. The
    /// deferred call returns success immediately.
    pub fn defer_next(&self, until: DeferUntil) {
        self.state.lock().arm(until);
    }

    /// Applies a deferred sync or rename now.
    pub fn flush_deferred(&self) {
        self.state.lock().flush();
    }
}
