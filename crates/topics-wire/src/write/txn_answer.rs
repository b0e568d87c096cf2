//! Answers to transactions.

use topics_engine::{Committed, Staged, WriterState, WriterSummary};

use crate::object::{Object, push_array};

/// The answer to a stage.
#[must_use]
pub fn staged(s: &Staged) -> Vec<u8> {
    let mut o = Object::new(64);
    o.int("staged", s.records).int("bytes", s.bytes).flag("deduped", s.repeated);
    o.finish()
}

/// The answer to a commit.
#[must_use]
pub fn committed(c: &Committed) -> Vec<u8> {
    let mut topics = Object::new(64 * c.topics.len() + 2);
    for t in &c.topics {
        let mut one = Object::new(64);
        one.int("topic_id", t.topic_id).int("first_seq", t.first_seq).int("last_seq", t.last_seq);
        // A topic's name needs no escapes.
        topics.raw(&t.topic, &one.finish());
    }
    let mut o = Object::new(128);
    o.flag("committed", true).flag("deduped", c.deduped).raw("topics", &topics.finish());
    if c.epoch > 0 {
        o.int("epoch", c.epoch);
    }
    o.finish()
}

#[must_use]
pub fn writer(name: &str, s: &WriterState) -> Vec<u8> {
    let mut o = Object::new(64 + 64 * s.staged.len());
    o.name("writer", name).maybe("last_epoch", s.last_epoch);
    let staged = s.staged.iter().map(|stage| {
        let mut o = Object::new(64);
        o.name("id", &stage.stage).int("parts", u64::from(stage.parts));
        o.int("records", stage.records).int("bytes", stage.bytes);
        o.finish()
    });
    push_array(o.key("staged"), staged);
    o.finish()
}

/// A page of writers.
#[must_use]
pub fn writers(found: &[WriterSummary], next: Option<&str>) -> Vec<u8> {
    let mut o = Object::new(64 + 96 * found.len());
    let writers = found.iter().map(|w| {
        let mut o = Object::new(96);
        o.name("writer", &w.writer).maybe("last_epoch", w.last_epoch);
        o.int("records", w.records).int("bytes", w.bytes);
        o.finish()
    });
    push_array(o.key("writers"), writers);
    if let Some(next) = next {
        o.name("next_cursor", next);
    }
    o.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let topics = vec![topics_engine::CommittedTopic {
            topic: "a.b".into(),
            topic_id: 3,
            first_seq: 1,
            last_seq: 2,
        }];
        let c = Committed { epoch: 9, deduped: true, topics };
        assert_eq!(
            committed(&c),
            br#"{"committed":true,"deduped":true,"topics":{"a.b":{"topic_id":3,"first_seq":1,"last_seq":2}},"epoch":9}"#
        );
        assert_eq!(
            writer("w", &WriterState::default()),
            br#"{"writer":"w","last_epoch":null,"staged":[]}"#
        );
        let s = Staged { records: 2, bytes: 300, repeated: false };
        assert_eq!(staged(&s), br#"{"staged":2,"bytes":300,"deduped":false}"#);
    }
}
