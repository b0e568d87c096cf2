//! Checking bytes on demand, and giving damaged ranges up.

use std::path::Path;

use topics_env::Env;
use topics_storage::StorageError;
use topics_storage::dir::Paths;
pub use topics_storage::recovery::{Loss, Problem, Progress, Report};

use super::Engine;
use crate::types::api::{Gap, GapReason, ReadFrom, ReadRequest};
use crate::types::error::{Error, Result};
use crate::types::options::{Options, RecoveryMode};

/// Checks every byte of a directory, closed or beside the engine that has it open. Nothing is
/// changed, no lock is taken.
pub fn verify(env: &Env, dir: &Path, progress: &mut dyn FnMut(&Progress)) -> Result<Report> {
    let report = topics_storage::recovery::verify(env, &Paths::new(dir), progress);
    report.map_err(|e| no_directory(dir, e))
}

fn no_directory(dir: &Path, e: StorageError) -> Error {
    match e {
        StorageError::Missing { what } => Error::InvalidRequest(format!(
            "{} is no data directory: {what} is missing",
            dir.display()
        )),
        e => e.into(),
    }
}

/// What a repair gives up, or gave up.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Repair {
    /// Ranges of the logs.
    pub losses: Vec<Loss>,
    /// The gaps that topics get for it, by topic; upper bounds where no later record settles what
    /// was lost. Those that any open would state after a crash are among them.
    pub gaps: Vec<(String, Gap)>,
    /// Files that are made again, from others or from what is left of them; lists of deleted records also from
    /// the object store.
    pub files: Vec<Problem>,
    /// Why the objects of cold segments were not looked at, if there are any.
    pub unlooked: Option<String>,
    /// It was done.
    pub done: bool,
    /// The files that hold the damaged bytes now.
    pub kept: Vec<String>,
}

/// Says what `salvage` would give up, without changing anything.
pub fn plan_repair(env: &Env, dir: &Path, options: Options) -> Result<Repair> {
    let plan = super::open::plan(env, dir, options).map_err(|e| match e {
        Error::Corrupt { file, .. } if file.ends_with("meta/STORE") && !exists(env, dir) => {
            Error::InvalidRequest(format!("{} is no data directory", dir.display()))
        }
        e => e,
    })?;
    let super::open::Plan { losses, gaps, files, unlooked } = plan;
    Ok(Repair { losses, gaps, files, unlooked, ..Repair::default() })
}

fn exists(env: &Env, dir: &Path) -> bool {
    env.fs.exists(&Paths::new(dir).meta()).unwrap_or(false)
}

/// Opens the directory once with `salvage`, reading every record, and closes it: what the plan names is given up, and a
/// copy of the damaged bytes is kept.
pub fn repair(env: Env, dir: &Path, options: Options) -> Result<Repair> {
    let mut repair = plan_repair(&env, dir, options.clone())?;
    let before = kept(&env, dir)?;
    let salvage = Options { recovery: RecoveryMode::Repair, background: false, ..options };
    Engine::open(env.clone(), dir, salvage)?.close()?;
    repair.kept = kept(&env, dir)?.into_iter().filter(|n| !before.contains(n)).collect();
    repair.done = true;
    Ok(repair)
}

/// The names of the files that keep damaged bytes.
fn kept(env: &Env, dir: &Path) -> Result<Vec<String>> {
    let folder = Paths::new(dir).damaged();
    let io = |e| Error::from(StorageError::io(folder.display().to_string(), e));
    if !env.fs.exists(&folder).map_err(io)? {
        return Ok(Vec::new());
    }
    let names = env.fs.list(&folder).map_err(io)?;
    Ok(names.into_iter().map(|e| format!("damaged/{}", e.name)).collect())
}

impl Engine {
    /// Checks every byte of its directory like [`verify`], and that every live record can be read.
    pub fn verify(&self) -> Result<Report> {
        let engine = &self.open;
        let mut report = verify(&engine.base().env, &engine.base().dir, &mut |_| {})?;
        let mut after: Option<String> = None;
        loop {
            let page = self.list("", after.as_deref(), 1000);
            for topic in &page {
                self.verify_topic(&topic.topic, &mut report)?;
            }
            match page.into_iter().last() {
                Some(last) => after = Some(last.topic),
                None => {
                    // Reads of the topics had them.
                    report.cold_records = 0;
                    return Ok(report);
                }
            }
        }
    }

    /// A record that the files do not give, though none of them seems wrong.
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
                    let lost = page.tombstone.filter(|t| t.reason == GapReason::Corrupt);
                    if let Some(t) = lost.filter(|_| report.problems.is_empty())
                        && !self.is_gap(topic, t.gap_from)
                    {
                        let detail = format!("seq {} to {} cannot be read", t.gap_from, t.gap_to);
                        let file = format!("topic {topic:?}");
                        report.problems.push(Problem { file, offset: 0, detail });
                    }
                    let next = ReadFrom::After(page.next_from_seq);
                    if page.caught_up || next == request.from {
                        return Ok(());
                    }
                    request.from = next;
                }
                Err(Error::Corrupt { file, offset, detail }) => {
                    let known = report.problems.iter().any(|p| file.ends_with(&p.file));
                    if !known {
                        report.problems.push(Problem { file, offset, detail });
                    }
                    return Ok(());
                }
                Err(Error::TopicNotFound(_)) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }

    /// Whether a loss is known: stated once, it is no finding.
    fn is_gap(&self, topic: &str, seq: u64) -> bool {
        let state = self.state(topic, false);
        state.is_ok_and(|s| s.gaps.iter().any(|g| (g.from..=g.to).contains(&seq)))
    }
}
