//! Watchers over the simulated env, driven by hand; then with threads.

mod live;
mod many;
mod order;
mod pressure;
mod sessions;
mod slow;

use std::time::Duration;

use super::{Event, Watch, WatchRequest, WatchStart};
use crate::topic::tests::World;
use crate::types::api::ReadFrom;

/// What a watcher was told, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Record(String, u64, String),
    Gap(String, u64, u64, &'static str),
    Caught(String, u64),
    Deleted(String),
    Failed(String, &'static str),
    Paced(String, u64),
    Beat,
}
use Seen::*;

fn from(from: ReadFrom) -> WatchStart {
    WatchStart { from, topic_id: None }
}

fn start() -> WatchStart {
    from(ReadFrom::After(0))
}

fn tail() -> WatchStart {
    WatchStart::default()
}

fn on(topics: &[(&str, WatchStart)]) -> WatchRequest {
    let topics = topics.iter().map(|(t, s)| ((*t).to_string(), *s)).collect();
    WatchRequest { topics, ..WatchRequest::default() }
}

fn seen_in(event: &Event) -> Vec<Seen> {
    match event {
        Event::Records(f) => {
            let one = |r: crate::types::batch::RecordView<'_>| {
                Record(f.topic().to_string(), r.seq, String::from_utf8_lossy(r.data).into_owned())
            };
            f.batch().iter().map(one).collect()
        }
        Event::Tombstone { topic, tombstone: t, reason, .. } => {
            vec![Gap(topic.to_string(), t.gap_from, t.gap_to, reason)]
        }
        Event::CaughtUp { topic, seq, .. } => vec![Caught(topic.to_string(), *seq)],
        Event::TopicDeleted { topic, .. } => vec![Deleted(topic.to_string())],
        Event::Failed { topic, error, .. } => vec![Failed(topic.to_string(), error.code())],
        Event::Paced { topic, retry_after_ms, .. } => {
            vec![Paced(topic.to_string(), *retry_after_ms)]
        }
        Event::Heartbeat => vec![Beat],
    }
}

/// Everything that there is now.
fn drain(watch: &mut Watch) -> Vec<Seen> {
    let mut out = Vec::new();
    while let Some(event) = watch.try_next().unwrap() {
        out.extend(seen_in(&event));
    }
    out
}

fn record(topic: &str, seq: u64, data: &str) -> Seen {
    Record(topic.into(), seq, data.into())
}

fn caught(topic: &str, seq: u64) -> Seen {
    Caught(topic.into(), seq)
}

impl World {
    /// Appends one record and lets the workers run.
    fn say(&self, topic: &str, data: &str) {
        self.put(topic, &[data]);
        self.engine().tick().unwrap();
    }

    fn watch(&self, req: &WatchRequest) -> Watch {
        self.engine().watch(req).unwrap()
    }
}

const LONG: Duration = Duration::from_secs(300);
