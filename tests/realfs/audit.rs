//! Reads everything while no other work runs.

use super::client::Client;
use super::event::{Event, UNKNOWN};

/// Journals every topic and every record. Topics are read in name order, because records are moved
/// and copied to later ones.
pub fn audit(client: &Client, name: &str, settled: bool) {
    let journal = &client.journal;
    client.wait_calls();
    journal.write(&Event::Audit(name.to_owned()));
    for topic in client.engine.list("", None, usize::MAX) {
        if let Err(e) = audit_topic(client, &topic.topic) {
            journal.problem(format!("audit {name}: {}: {e}", topic.topic));
        }
    }
    journal.write(&Event::Audited { settled });
}

fn audit_topic(client: &Client, topic: &str) -> topics_engine::Result<()> {
    let name = || topic.to_owned();
    let state = client.engine.state(topic, false)?;
    let (id, head) = (state.topic_id, state.head_seq);
    for gap in state.gaps {
        let reason = gap.reason.as_str().to_owned();
        client.journal.write(&Event::Gap { topic: name(), from: gap.from, to: gap.to, reason });
    }
    let mut after = 0;
    while after < head {
        let next = client.view(topic, after, Some(head))?;
        if next <= after {
            client.journal.problem(format!("{topic}: a read after {after} of {head} goes nowhere"));
            break;
        }
        after = next;
    }
    // A router or a timer may have run in the meantime: then the count includes other records.
    let later = client.engine.state(topic, false)?;
    let same = (later.head_seq, later.count) == (head, state.count);
    let count = if same { state.count } else { UNKNOWN };
    client.journal.write(&Event::Topic { topic: name(), id, head, count });
    Ok(())
}
