//! Checking bytes on demand.

use std::path::Path;

use topics_env::Env;
use topics_storage::StorageError;
use topics_storage::dir::Paths;
use topics_storage::recovery;
pub use topics_storage::recovery::{Problem, Report};

use crate::api::{ReadFrom, ReadRequest};
use crate::engine::Engine;
use crate::error::{Error, Result};

/// Checks every byte of a directory that nobody has open.
pub fn verify(env: &Env, dir: &Path) -> Result<Report> {
    recovery::verify(env, &Paths::new(dir), std::process::id()).map_err(|e| match e {
        StorageError::Locked { pid, url } => {
            Error::Locked { dir: dir.display().to_string(), pid, url }
        }
        StorageError::Missing { what } => Error::InvalidRequest(format!(
            "{} is no data directory: {what} is missing",
            dir.display()
        )),
        e => e.into(),
    })
}

impl Engine {
    /// Reads every live record of every topic and checks it. What only a next open would need is
    /// checked by [`verify`], on a closed directory.
    pub fn verify(&self) -> Result<Report> {
        let mut report = Report::default();
        let mut after: Option<String> = None;
        loop {
            let page = self.list("", after.as_deref(), 1000);
            for topic in &page {
                self.verify_topic(&topic.topic, &mut report)?;
            }
            match page.into_iter().last() {
                Some(last) => after = Some(last.topic),
                None => return Ok(report),
            }
        }
    }

    fn verify_topic(&self, topic: &str, report: &mut Report) -> Result<()> {
        let mut request = ReadRequest {
            from: ReadFrom::Earliest,
            limit: 10_000,
            max_bytes: 8 << 20,
            touch: false,
            ..ReadRequest::default()
        };
        loop {
            match self.read(topic, &request) {
                Ok(page) => {
                    report.records += page.len() as u64;
                    report.bytes += page.iter().map(|r| r.data.len() as u64).sum::<u64>();
                    let next = ReadFrom::After(page.next_from_seq);
                    if page.caught_up || next == request.from {
                        return Ok(());
                    }
                    request.from = next;
                }
                Err(Error::Corrupt { file, offset, detail }) => {
                    report.problems.push(Problem { file, offset, detail });
                    return Ok(());
                }
                Err(Error::TopicNotFound(_)) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }
}
