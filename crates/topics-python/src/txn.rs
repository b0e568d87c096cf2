//! Transactions of an embedded engine.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PySequence, PyTuple};
use topics_engine::{
    CommitRequest, Committed, NewRecord, StageRequest, TxnAck, TxnCursor, TxnRequest, TxnRows,
    TxnStage, TxnWork,
};
use topics_wire::Failure;

use crate::args::{PyRecord, check};
use crate::engine::Engine;
use crate::shared::Shared;

/// `(epoch, deduped, [(topic, topic_id, first_seq, last_seq)])`.
type Outcome = (u64, bool, Vec<(String, u64, u64, u64)>);
/// `(queue, node, seqs, lease_ids)`.
type Ack = (String, String, Vec<u64>, Option<Vec<u64>>);
/// `(topic, consumer, seq, reader)`.
type Cursor = (String, String, u64, Option<u64>);
/// `(stage, parts, records, bytes)`.
type Stage = (String, u32, u64, u64);

/// The transactions of an engine.
#[pyclass(frozen)]
pub(crate) struct Transactions {
    shared: Arc<Shared>,
}

/// The rows of one topic, as Python objects.
struct PyTopicRows<'py> {
    topic: String,
    node: Option<String>,
    held: Vec<PyRecord<'py>>,
}

/// Reads rows from `[(topic, records, node)]`.
fn groups<'py>(rows: &Bound<'py, PySequence>) -> PyResult<Vec<PyTopicRows<'py>>> {
    let group = |item: PyResult<Bound<'py, PyAny>>| {
        let t = item?.cast_into::<PyTuple>()?;
        let (topic, records, node): (String, Bound<'py, PySequence>, Option<String>) =
            t.extract()?;
        let held = records.try_iter()?.map(|r| PyRecord::of(&r?)).collect::<PyResult<_>>()?;
        Ok(PyTopicRows { topic, node, held })
    };
    rows.try_iter()?.map(group).collect()
}

/// The expected heads, cursors and acks of a commit.
struct CommitParts {
    heads: Vec<(String, u64)>,
    commits: Vec<Cursor>,
    acks: Vec<Ack>,
}

impl CommitParts {
    fn with<R>(&self, run: impl FnOnce(TxnWork<'_>) -> R) -> R {
        let heads: Vec<_> = self.heads.iter().map(|(t, h)| (t.as_str(), *h)).collect();
        let commits = self.commits.iter();
        let commits: Vec<_> = commits
            .map(|(topic, consumer, seq, fence)| TxnCursor {
                topic,
                consumer,
                seq: *seq,
                fence: *fence,
            })
            .collect();
        let acks = self.acks.iter().map(|(queue, node, seqs, ids)| TxnAck {
            queue,
            jobs: topics_engine::LeasedJobs {
                node: node.as_bytes(),
                seqs,
                lease_ids: ids.as_deref(),
            },
        });
        let acks: Vec<_> = acks.collect();
        run(TxnWork { expect_heads: &heads, commits: &commits, acks: &acks })
    }
}

/// Topic, node and records of each group; JSON is not validated.
type UncheckedRows<'a> = Vec<(&'a str, &'a str, Vec<NewRecord<'a>>)>;

fn unchecked<'a>(groups: &'a [PyTopicRows<'_>]) -> PyResult<UncheckedRows<'a>> {
    let one = |g: &'a PyTopicRows<'_>| {
        let records = g.held.iter().map(PyRecord::record).collect::<PyResult<_>>()?;
        Ok((g.topic.as_str(), g.node.as_deref().unwrap_or(""), records))
    };
    groups.iter().map(one).collect()
}

/// Validates the rows and passes them to `run`.
fn with_checked_rows<R>(
    unchecked: &UncheckedRows<'_>,
    run: impl FnOnce(&[TxnRows<'_>]) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let records: Vec<Vec<NewRecord<'_>>> = unchecked
        .iter()
        .map(|(_, _, records)| records.iter().enumerate().map(|(i, r)| check(i, r)).collect())
        .collect::<Result<_, _>>()?;
    let rows = unchecked.iter().zip(&records);
    let rows: Vec<_> = rows
        .map(|((topic, node, _), records)| TxnRows { topic, records, node: node.as_bytes() })
        .collect();
    run(&rows)
}

fn outcome(c: Committed) -> Outcome {
    let topics = c.topics.into_iter();
    let topics = topics.map(|t| (t.topic, t.topic_id, t.first_seq, t.last_seq)).collect();
    (c.epoch, c.deduped, topics)
}

#[pymethods]
impl Transactions {
    #[new]
    fn new(engine: &Engine) -> Self {
        Self { shared: engine.shared.clone() }
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (rows, *, writer=None, epoch=None, key=None, heads=vec![], commits=vec![],
        acks=vec![]))]
    fn transact(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PySequence>,
        writer: Option<&str>,
        epoch: Option<u64>,
        key: Option<&str>,
        heads: Vec<(String, u64)>,
        commits: Vec<Cursor>,
        acks: Vec<Ack>,
    ) -> PyResult<Outcome> {
        let groups = groups(rows)?;
        let unchecked = unchecked(&groups)?;
        let work = CommitParts { heads, commits, acks };
        let key = key.unwrap_or("").as_bytes();
        self.shared.run(py, |e| {
            with_checked_rows(&unchecked, |rows| {
                work.with(|work| {
                    let req = TxnRequest { writer, epoch, key, owner: "", rows, work };
                    Ok(outcome(e.transact(&req)?))
                })
            })
        })
    }

    fn stage(
        &self,
        py: Python<'_>,
        writer: &str,
        stage: &str,
        part: u32,
        rows: &Bound<'_, PySequence>,
    ) -> PyResult<(u64, u64, bool)> {
        let groups = groups(rows)?;
        let unchecked = unchecked(&groups)?;
        self.shared.run(py, |e| {
            with_checked_rows(&unchecked, |rows| {
                let s = e.stage(writer, &StageRequest { stage, part, rows })?;
                Ok((s.records, s.bytes, s.repeated))
            })
        })
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (writer, epoch, stages, *, heads=vec![], commits=vec![], acks=vec![]))]
    fn commit(
        &self,
        py: Python<'_>,
        writer: &str,
        epoch: u64,
        stages: Vec<(String, u32, Option<u64>)>,
        heads: Vec<(String, u64)>,
        commits: Vec<Cursor>,
        acks: Vec<Ack>,
    ) -> PyResult<Outcome> {
        let work = CommitParts { heads, commits, acks };
        self.shared.run(py, |e| {
            let stages = stages.iter();
            let stages: Vec<_> = stages
                .map(|(stage, parts, records)| TxnStage { stage, parts: *parts, records: *records })
                .collect();
            work.with(|work| {
                let req =
                    CommitRequest { epoch, stages: &stages, work, ..CommitRequest::default() };
                Ok(outcome(e.commit(writer, &req)?))
            })
        })
    }

    fn abort(&self, py: Python<'_>, writer: &str, stage: &str) -> PyResult<bool> {
        self.shared.run(py, |e| Ok(e.abort_stage(writer, stage)?))
    }

    fn forget(&self, py: Python<'_>, writer: &str) -> PyResult<bool> {
        self.shared.run(py, |e| Ok(e.forget_writer(writer)?))
    }

    fn state(&self, py: Python<'_>, writer: &str) -> PyResult<(Option<u64>, Vec<Stage>)> {
        self.shared.run(py, |e| {
            let s = e.writer_state(writer)?;
            let staged = s.staged.into_iter().map(|s| (s.stage, s.parts, s.records, s.bytes));
            Ok((s.last_epoch, staged.collect()))
        })
    }
}
