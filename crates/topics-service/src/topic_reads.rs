//! Reads of topics, which may wait for records.

use std::sync::Arc;
use std::time::Duration;

use topics_engine::{ReadBatch, ReadRequest};
use topics_wire::arrow::{self, ScanRequest};
use topics_wire::read::{self, DiffRequest};

use super::completion::completion_pair;
use super::dispatch::Answer;
use super::waiting_calls::Wait;
use super::{Reply, Request, Service};

/// A read without an answer yet.
struct LongPoll {
    token: u64,
    topic: String,
    diff: DiffRequest,
    /// The scan that answers this read, unless a JSON page does.
    columns: Option<ScanRequest>,
    start_ns: u64,
}

impl Service {
    pub(super) fn diff(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let mut diff = read::parse(r.body, &self.limits, r.arrow)?;
        let columns = r.arrow.then(|| arrow::parse_diff(r.body, &diff)).transpose()?;
        let (token, topic) = (r.token, r.name.to_owned());
        match columns {
            // Without a wait the scan itself reports an empty range.
            Some(columns) if diff.wait_ms == 0 => return self.begin_scan(token, &topic, columns),
            // This read only checks whether a record exists; the scan reads them.
            Some(_) => diff.request.limit = 1,
            None => {}
        }
        let wait =
            if self.is_ready() { Duration::from_millis(diff.wait_ms) } else { Duration::ZERO };
        let request = diff.request.clone();
        let poll = LongPoll { token, topic, diff, columns, start_ns };
        self.begin_wait(token);
        let sink = self.sink.clone();
        let (done, left) = completion_pair(move |reply| sink.reply(token, reply));
        let service = self.clone();
        let answered = Box::new(move |outcome| {
            if let Some(reply) = service.on_read_topic(poll, outcome) {
                done(reply);
            }
        });
        let id = self.engine.read_async(r.name, request, wait, answered);
        self.set_wait(token, Wait::Read(id));
        Ok(left())
    }

    /// The reply to a read: a JSON page, or the begin of a scan at the cursor that the read has reached.
    /// `None`: its client has gone, or the scan replies.
    fn on_read_topic(
        self: &Arc<Self>,
        poll: LongPoll,
        outcome: topics_engine::Result<(ReadRequest, ReadBatch)>,
    ) -> Option<Reply> {
        if !self.finish_wait(poll.token) {
            return None;
        }
        self.answer_read(poll, outcome).unwrap_or_else(|failure| Some(failure.into()))
    }

    fn answer_read(
        self: &Arc<Self>,
        poll: LongPoll,
        outcome: topics_engine::Result<(ReadRequest, ReadBatch)>,
    ) -> Answer {
        let (request, page) = outcome?;
        let LongPoll { token, topic, diff, columns, start_ns } = poll;
        if let Some(columns) = columns {
            let ReadRequest { from, topic_id, .. } = request;
            return self.begin_scan(token, &topic, ScanRequest { from, topic_id, ..columns });
        }
        self.unsent.check(page.payload_bytes() as u64)?;
        let ns = self.elapsed(start_ns);
        Ok(Some(Reply::ok(read::answer(&topic, &page, &diff, ns))))
    }
}
