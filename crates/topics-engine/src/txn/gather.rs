//! The rows of a commit by topic: from the request, or from the files that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use topics_storage::StorageError;
use topics_storage::format::record::TxnFile;
use topics_storage::txn::{self, Rows};

use super::api::{TxnRows, TxnStage};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::topic;

/// The longest file that is read.
const MAX_FILE: u64 = 3 << 30;
/// Most files of a commit: their names must fit into one frame.
const MAX_FILES: usize = 100_000;

/// Encoded rows and their number, by topic.
pub(super) type ByTopic = BTreeMap<String, (Vec<u8>, u64)>;

/// What a commit publishes.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub files: Vec<TxnFile>,
    pub rows: ByTopic,
    /// Whether the files were staged before, and can be committed again if this fails.
    pub staged: bool,
}

/// Checks and encodes the rows of a request, those of a topic together.
pub(super) fn rows_of(core: &Core, rows: &[TxnRows<'_>]) -> Result<Vec<Rows>> {
    let mut out: Vec<Rows> = Vec::new();
    for r in rows {
        let (frames, count) = topic::encode_rows(core, r.topic, r.records, r.node)?;
        match out.iter_mut().find(|o| o.topic == r.topic) {
            Some(o) => {
                o.frames.extend_from_slice(&frames);
                o.count += count;
            }
            None => out.push(Rows { topic: r.topic.to_owned(), frames, count }),
        }
    }
    Ok(out)
}

/// Rows after those that are there.
pub(super) fn add(all: &mut ByTopic, rows: Vec<Rows>) {
    for r in rows {
        let (frames, count) = all.entry(r.topic).or_default();
        if frames.is_empty() {
            *frames = r.frames;
        } else {
            frames.extend_from_slice(&r.frames);
        }
        *count += r.count;
    }
}

/// Reads and verifies the stages that a commit lists.
pub(super) fn stages(core: &Arc<Core>, writer: &str, list: &[TxnStage<'_>]) -> Result<Gathered> {
    let incomplete = |stage: &str, detail: String| Error::TxnIncomplete {
        writer: writer.to_owned(),
        stage: stage.to_owned(),
        detail,
    };
    let mut out = Gathered { staged: true, ..Gathered::default() };
    let mut seen = BTreeSet::new();
    for s in list {
        if !seen.insert(s.stage) {
            return Err(Error::InvalidRequest(format!("stage {:?} is listed twice", s.stage)));
        }
        let parts = core.staging.parts(writer, s.stage);
        if let Some(n) = (0..s.parts).find(|n| !parts.iter().any(|p| p.0 == *n)) {
            let text = format!("part {n} of {} is not staged, or was swept", s.parts);
            return Err(incomplete(s.stage, text));
        }
        let mine = parts.iter().filter(|p| p.0 < s.parts);
        let rows: u64 = mine.clone().map(|p| p.1).sum();
        if let Some(want) = s.records.filter(|want| *want != rows) {
            return Err(incomplete(s.stage, format!("it has {rows} rows, not {want}")));
        }
        for (n, _, number) in mine {
            let read = core.staging.files.read(*number, MAX_FILE);
            let (head, rows, checksum) = read.map_err(|e| match e {
                StorageError::Missing { .. } | StorageError::Corrupt { .. } => {
                    log::error!("staged rows of writer {writer:?} are lost: {e}");
                    incomplete(s.stage, format!("part {n} is lost: {e}"))
                }
                e => e.into(),
            })?;
            out.files.push(TxnFile { name: txn::name(*number), len: head.len, checksum });
            add(&mut out.rows, rows);
        }
        if out.files.len() > MAX_FILES {
            let (got, max) = (out.files.len() as u64, MAX_FILES as u64);
            return Err(Error::BatchTooLarge { got, max, unit: "parts" });
        }
    }
    Ok(out)
}

/// The topics of what is staged. What is missing or lost is for the commit to say.
pub(super) fn topics(core: &Core, writer: &str, list: &[TxnStage<'_>]) -> Result<BTreeSet<String>> {
    let mut out = BTreeSet::new();
    for s in list {
        for (_, _, number) in core.staging.parts(writer, s.stage) {
            match core.staging.files.read(number, MAX_FILE) {
                Ok((_, rows, _)) => out.extend(rows.into_iter().map(|r| r.topic)),
                Err(StorageError::Missing { .. } | StorageError::Corrupt { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(out)
}

/// Reads the files that a decision names. Anything that is not as it was decided is damage.
pub(super) fn decided(core: &Core, files: &[TxnFile]) -> Result<ByTopic> {
    let mut out = ByTopic::new();
    for f in files {
        let damage = |detail: &str| Error::Corrupt {
            file: format!("txn/{}", f.name),
            offset: 0,
            detail: format!("{detail}, and a transaction is decided on it: run verify"),
        };
        let number = txn::number(&f.name).ok_or_else(|| damage("it is no name of staged rows"))?;
        let (head, rows, sum) = match core.staging.files.read(number, MAX_FILE) {
            Err(StorageError::Missing { .. }) => return Err(damage("it is missing")),
            other => other?,
        };
        if !core.env.check("txn.checksum", head.len == f.len && sum == f.checksum) {
            return Err(damage("it is not what was staged"));
        }
        add(&mut out, rows);
    }
    Ok(out)
}
