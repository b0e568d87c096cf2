//! Cold segments: their `.data` is in an object store, the other files are in the directory.
//!
//! A read never waits for the store. It takes bytes that were fetched before, or asks for them and
//! returns [`StorageError::Fetching`]; the caller reads again when the fetch has ended. So no lock is
//! held during a request, and only a caller that waits is delayed.

use std::fmt;
use std::io;
use std::time::Duration;

use topics_env::File;
use topics_env::sync::{Condvar, Instant, Mutex};

use super::FileKind;
use crate::{Result, StorageError};

/// How long a wait for a fetch without a deadline sleeps at a time.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Called once with the outcome of a fetch.
pub type OnFetched = Box<dyn FnOnce(Result<()>) + Send>;

#[derive(Default)]
struct FetchState {
    outcome: Option<Result<()>>,
    callbacks: Vec<OnFetched>,
}

/// A request for bytes of a cold segment, shared by all who need them.
#[derive(Default)]
pub struct Fetch {
    state: Mutex<FetchState>,
    ended: Condvar,
    /// When those who wait end it, and with which error.
    due: Option<(Instant, StorageError)>,
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetch").field("outcome", &self.outcome()).finish_non_exhaustive()
    }
}

impl Fetch {
    /// A fetch that ends after this time with an error, whoever waits for it: no other thread is needed.
    #[must_use]
    pub fn within(wait: Duration, late: StorageError) -> Self {
        Self { due: Some((Instant::now() + wait, late)), ..Self::default() }
    }

    fn end_if_due(&self) {
        if let Some((due, late)) = &self.due
            && Instant::now() >= *due
        {
            self.end(Err(late.clone()));
        }
    }

    /// Its outcome; `None`: it has not ended.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<()>> {
        self.state.lock().outcome.clone()
    }

    /// Ends it, unless it has ended: wakes the threads and calls the callbacks that wait.
    pub fn end(&self, outcome: Result<()>) {
        let callbacks = {
            let mut state = self.state.lock();
            if state.outcome.is_some() {
                return;
            }
            state.outcome = Some(outcome.clone());
            std::mem::take(&mut state.callbacks)
        };
        self.ended.notify_all();
        callbacks.into_iter().for_each(|call| call(outcome.clone()));
    }

    /// Has `call` called with the outcome: in this call if it has ended.
    pub fn on_end(&self, call: OnFetched) {
        let outcome = {
            let mut state = self.state.lock();
            match state.outcome.clone() {
                Some(outcome) => outcome,
                None => return state.callbacks.push(call),
            }
        };
        call(outcome);
    }

    /// Waits for the outcome.
    pub fn wait(&self) -> Result<()> {
        loop {
            if let Some(outcome) = self.wait_for(LONGEST_WAIT) {
                return outcome;
            }
        }
    }

    /// Waits at most this long. Returns the outcome; `None`: it has not ended.
    #[must_use]
    pub fn wait_for(&self, wait: Duration) -> Option<Result<()>> {
        let until = Instant::now() + wait;
        let wake = self.due.as_ref().map_or(until, |(due, _)| until.min(*due));
        let mut state = self.state.lock();
        while state.outcome.is_none() && !self.ended.wait_until(&mut state, wake).timed_out() {}
        drop(state);
        self.end_if_due();
        self.outcome()
    }
}

/// The files of cold segments. Segments are named by their file numbers. No call waits for the store.
pub trait ColdFiles: Send + Sync + fmt::Debug {
    /// Fills `buf` from the offset `at` of a file; [`StorageError::Fetching`] if it is not all here.
    fn read(&self, file_no: u64, kind: FileKind, at: u64, buf: &mut [u8]) -> Result<()>;

    /// The length of a file; 0 if the segment has none of this kind.
    fn len(&self, file_no: u64, kind: FileKind) -> Result<u64>;

    /// Whether the object that holds the segment was looked at since the prefix was opened, so that the
    /// local `.data` is not the only copy.
    fn is_seen(&self, file_no: u64) -> bool;

    /// Says that these bytes fail their checksum. Returns true if they are fetched again, because the
    /// damage may be of the connection; false if they were before.
    fn distrust(&self, file_no: u64, kind: FileKind, at: u64, len: u64) -> bool;
}

/// A whole file of a cold segment, in memory.
pub struct ColdFile(pub(super) Vec<u8>);

impl fmt::Debug for ColdFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ColdFile({} bytes)", self.0.len())
    }
}

impl ColdFile {
    /// Reads a file that is used only as a whole.
    pub fn read(cold: &dyn ColdFiles, file_no: u64, kind: FileKind) -> Result<Self> {
        let mut bytes = vec![0; cold.len(file_no, kind)? as usize];
        cold.read(file_no, kind, 0, &mut bytes)?;
        Ok(Self(bytes))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn read_only<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

impl File for ColdFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = self.0.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        let n = buf.len().min(self.0.len() - from);
        buf[..n].copy_from_slice(&self.0[from..from + n]);
        Ok(n)
    }

    fn write_at(&self, _buf: &[u8], _offset: u64) -> io::Result<usize> {
        read_only()
    }

    fn sync_data(&self) -> io::Result<()> {
        read_only()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        read_only()
    }

    fn allocate(&self, _len: u64) -> io::Result<()> {
        read_only()
    }

    fn links(&self) -> io::Result<u64> {
        Ok(1)
    }
}

/// The error of a cold segment whose store is not known.
pub fn no_store(file: &str) -> StorageError {
    StorageError::Unreachable {
        detail: format!(
            "{file} is in an object store, and no remote is set: open the directory with the remote \
             that it was archived to"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_ends_once_for_all_who_wait() {
        let (fetch, (send, receive)) = (Fetch::default(), std::sync::mpsc::channel());
        let call = |n: u8| -> OnFetched {
            let send = send.clone();
            Box::new(move |outcome| send.send((n, outcome.is_ok())).unwrap())
        };
        fetch.on_end(call(1));
        assert!(fetch.outcome().is_none() && receive.try_recv().is_err());
        fetch.end(Ok(()));
        fetch.end(Err(StorageError::Closed));
        fetch.on_end(call(2));
        assert!(fetch.wait().is_ok());
        assert_eq!(receive.try_iter().collect::<Vec<_>>(), [(1, true), (2, true)]);
    }
}
