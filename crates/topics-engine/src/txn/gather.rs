//! The rows of a commit by topic: from the request, or from the files that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use topics_storage::StorageError;
use topics_storage::format::frame;
use topics_storage::format::record::TxnFile;
use topics_storage::txn::{self, StageHeader, StageRows};

use super::Transactions;
use super::api::{TxnRows, TxnStage};
use super::participant::PartRows;
use crate::topic::events::Base;
use crate::topic::write::prepare;
use crate::types::api::Append;
use crate::types::error::{Error, Result};

/// The longest file that is read.
const MAX_FILE: u64 = 3 << 30;
/// Maximum number of files of a commit, whose names must fit into one frame.
const MAX_FILES: usize = 100_000;

/// Encoded rows by topic.
pub(crate) type ByTopic = BTreeMap<String, PartRows>;

/// The rows that a commit publishes, and their files.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub files: Vec<TxnFile>,
    pub rows: ByTopic,
    /// Whether the files were staged before, and can be committed again if this fails.
    pub staged: bool,
}

/// Checks and encodes the rows of a request, for a stage file.
pub(crate) fn rows_of(
    base: &Base,
    writer: &str,
    stage: &str,
    rows: &[TxnRows<'_>],
) -> Result<StageRows> {
    let mut out = StageRows::new(writer, stage);
    let now = base.time.steady();
    for r in rows {
        let req = Append { records: r.records, node: r.node, ..Append::default() };
        prepare::check(&base.options, r.topic, &req)?;
        let (count, len) = (r.records.len() as u64, prepare::frames_len(&req));
        out.add(r.topic, count, len, |frames| _ = prepare::encode(&req, now, frames));
    }
    Ok(out)
}

/// Appends rows to those of their topics.
pub(crate) fn add(all: &mut ByTopic, rows: &StageRows) {
    for (topic, frames, _) in rows.topics() {
        let to = all.entry(topic.to_owned()).or_insert_with(|| PartRows::expecting(frames.len()));
        for (_, _, bytes) in prepare::Frames(frames) {
            if let Ok((f, _)) = frame::parse(bytes) {
                to.add(&f, bytes, frame::inner_hash(bytes));
            }
        }
    }
}

/// Appends the rows of a file to those of their topics, so that memory has the rows once, beside one
/// file. This file and the next ones have `left` bytes: capacity is reserved if one topic may get all.
fn add_file(
    txns: &Transactions,
    all: &mut ByTopic,
    number: u64,
    left: u64,
    buffer: &mut Vec<u8>,
) -> topics_storage::Result<(StageHeader, u64)> {
    txns.staging.files.read_with(number, MAX_FILE, buffer, |r| match all.get_mut(r.topic) {
        Some(rows) => rows.add(&r.frame, r.bytes, r.inner),
        None => {
            let expected = if all.is_empty() { usize::try_from(left).unwrap_or(0) } else { 0 };
            let rows =
                all.entry(r.topic.to_owned()).or_insert_with(|| PartRows::expecting(expected));
            rows.add(&r.frame, r.bytes, r.inner);
        }
    })
}

/// Checks all stages that a commit lists, then reads and verifies them.
pub(crate) fn stages(
    txns: &Arc<Transactions>,
    writer: &str,
    list: &[TxnStage<'_>],
) -> Result<Gathered> {
    let mut out = Gathered { staged: true, ..Gathered::default() };
    let files = check_stages(txns, writer, list)?;
    let mut left: u64 = files.iter().map(|f| f.len).sum();
    let mut buffer = Vec::new();
    for StagedPart { stage, n, number, len } in files {
        let found = add_file(txns, &mut out.rows, number, left, &mut buffer);
        left -= len;
        let (head, checksum) = found.map_err(|e| match e {
            StorageError::Missing { .. } | StorageError::Corrupt { .. } => {
                log::error!("staged rows of writer {writer:?} are lost: {e}");
                incomplete(writer, stage, format!("part {n} is lost: {e}"))
            }
            e => e.into(),
        })?;
        out.files.push(TxnFile { name: txn::name(number), len: head.len, checksum });
    }
    Ok(out)
}

fn incomplete(writer: &str, stage: &str, detail: String) -> Error {
    Error::TxnIncomplete { writer: writer.to_owned(), stage: stage.to_owned(), detail }
}

/// A part that a commit lists: its stage, its number there, its file's number and length.
struct StagedPart<'a> {
    stage: &'a str,
    n: u32,
    number: u64,
    len: u64,
}

/// The parts of all stages that a commit lists, in order. Refuses missing parts, other numbers of rows
/// than the commit says, and too many files or bytes.
fn check_stages<'a>(
    txns: &Transactions,
    writer: &str,
    list: &[TxnStage<'a>],
) -> Result<Vec<StagedPart<'a>>> {
    let mut files = Vec::new();
    let mut seen = BTreeSet::new();
    for s in list {
        if !seen.insert(s.stage) {
            return Err(Error::InvalidRequest(format!("stage {:?} is listed twice", s.stage)));
        }
        let parts = txns.staging.parts(writer, s.stage);
        if let Some(n) = (0..s.parts).find(|n| !parts.iter().any(|p| p.0 == *n)) {
            let text = format!("part {n} of {} is not staged, or was swept", s.parts);
            return Err(incomplete(writer, s.stage, text));
        }
        let mine = parts.iter().filter(|p| p.0 < s.parts);
        let rows: u64 = mine.clone().map(|p| p.1).sum();
        if let Some(want) = s.records.filter(|want| *want != rows) {
            return Err(incomplete(writer, s.stage, format!("it has {rows} rows, not {want}")));
        }
        files.extend(mine.map(|p| StagedPart { stage: s.stage, n: p.0, number: p.2, len: p.3 }));
        if files.len() > MAX_FILES {
            let (got, max) = (files.len() as u64, MAX_FILES as u64);
            return Err(Error::BatchTooLarge { got, max, unit: "parts" });
        }
    }
    Ok(files)
}

/// The topics of staged rows. Missing or lost files are skipped: the commit reports them.
pub(crate) fn topics(
    txns: &Transactions,
    writer: &str,
    list: &[TxnStage<'_>],
) -> Result<BTreeSet<String>> {
    let (mut out, mut buffer) = (BTreeSet::new(), Vec::new());
    for s in list {
        for (_, _, number, _) in txns.staging.parts(writer, s.stage) {
            let read = txns.staging.files.read_with(number, MAX_FILE, &mut buffer, |r| {
                if !out.contains(r.topic) {
                    out.insert(r.topic.to_owned());
                }
            });
            match read {
                Ok(_) => {}
                Err(StorageError::Missing { .. } | StorageError::Corrupt { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(out)
}

/// Reads the files that a decision names. Any difference to the decision is damage.
pub(crate) fn decided(txns: &Transactions, files: &[TxnFile]) -> Result<ByTopic> {
    let mut out = ByTopic::new();
    let mut left: u64 = files.iter().map(|f| f.len).sum();
    let mut buffer = Vec::new();
    for f in files {
        let damage = |detail: &str| Error::Corrupt {
            file: format!("txn/{}", f.name),
            offset: 0,
            detail: format!("{detail}, and a transaction is decided on it: run verify"),
        };
        let number = txn::number(&f.name).ok_or_else(|| damage("it is no name of staged rows"))?;
        let (head, sum) = match add_file(txns, &mut out, number, left, &mut buffer) {
            Err(StorageError::Missing { .. }) => return Err(damage("it is missing")),
            other => other?,
        };
        if !txns.base().env.check("txn.checksum", head.len == f.len && sum == f.checksum) {
            return Err(damage("it is not what was staged"));
        }
        left -= f.len;
    }
    Ok(out)
}
