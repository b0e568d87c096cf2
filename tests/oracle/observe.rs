//! An observation of an engine: the state of every topic and a full read of each, following the
//! cursor.

use topics_engine::{Engine, GapReason, ReadBatch, ReadFrom, ReadRequest, Tombstone, TopicState};

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub seq: u64,
    pub ts: u64,
    pub node: Vec<u8>,
    pub tag: Vec<u8>,
    pub meta: Vec<u8>,
    pub data: Vec<u8>,
    pub binary: bool,
}

/// One topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicObs {
    pub state: TopicState,
    pub records: Vec<Seen>,
    pub tombstones: Vec<Tombstone>,
}

impl TopicObs {
    pub fn get(&self, seq: u64) -> Option<&Seen> {
        self.records.binary_search_by_key(&seq, |r| r.seq).ok().map(|i| &self.records[i])
    }

    pub fn tombstone(&self, seq: u64) -> Option<&Tombstone> {
        self.tombstones.iter().find(|t| (t.gap_from..=t.gap_to).contains(&seq))
    }

    /// Tombstones that neither a gap nor the floor explains.
    pub fn unexplained(&self) -> impl Iterator<Item = &Tombstone> {
        let s = &self.state;
        self.tombstones.iter().filter(|t| {
            let gap = s.gaps.iter().any(|g| g.from <= t.gap_from && t.gap_to <= g.to);
            let floor = t.gap_from < s.evict_floor && t.gap_to < s.earliest_seq;
            !gap && !floor
        })
    }

    /// Ranges up to the head that are neither delivered nor announced.
    pub fn silent(&self) -> Vec<(u64, u64)> {
        let mut spans: Vec<(u64, u64)> = self.records.iter().map(|r| (r.seq, r.seq)).collect();
        spans.extend(self.tombstones.iter().map(|t| (t.gap_from, t.gap_to)));
        spans.sort_unstable();
        let (mut out, mut next) = (Vec::new(), 1);
        for (from, to) in spans {
            if from > next {
                out.push((next, from - 1));
            }
            next = next.max(to + 1);
        }
        if next <= self.state.head_seq {
            out.push((next, self.state.head_seq));
        }
        out
    }
}

/// The complete state of an engine at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    pub wall: u64,
    pub topics: Vec<TopicObs>,
}

impl Observation {
    /// A readable form.
    pub fn line(&self) -> String {
        let mut out = String::new();
        for t in &self.topics {
            let s = &t.state;
            let seqs = t.records.iter().map(|r| r.seq.to_string()).collect::<Vec<_>>().join(" ");
            out += &format!(
                "; {} id {} {:?} earliest {} floor {} head {} next {} gaps {:?} seqs {seqs}",
                s.topic,
                s.topic_id,
                s.config.durability,
                s.earliest_seq,
                s.evict_floor,
                s.head_seq,
                s.next_seq,
                s.gaps.iter().map(|g| (g.from, g.to, g.reason)).collect::<Vec<_>>()
            );
        }
        out
    }

    pub fn topic(&self, name: &str) -> Option<&TopicObs> {
        self.topics.iter().find(|t| t.state.topic == name)
    }
}

/// Reads everything in pages of `limit` records. The problems do not depend on the written records:
/// I4, I11, a state that does not fit the records.
pub fn observe(engine: &Engine, wall: u64, limit: usize) -> (Observation, Vec<String>) {
    let mut look = Look { engine, limit, damaged: false, unread: Vec::new() };
    look.all(wall)
}

/// The same over damaged files: damaged records may be announced in band, and topics that cannot be
/// read to the end are named, for the caller to judge.
pub fn observe_damaged(
    engine: &Engine,
    wall: u64,
    limit: usize,
) -> (Observation, Vec<String>, Vec<String>) {
    let mut look = Look { engine, limit, damaged: true, unread: Vec::new() };
    let (seen, problems) = look.all(wall);
    (seen, problems, look.unread)
}

struct Look<'a> {
    engine: &'a Engine,
    limit: usize,
    damaged: bool,
    unread: Vec<String>,
}

impl Look<'_> {
    fn all(&mut self, wall: u64) -> (Observation, Vec<String>) {
        let mut problems = Vec::new();
        let mut topics = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.engine.list("", after.as_deref(), 64);
            let Some(last) = page.last() else { break };
            if after.as_deref().is_some_and(|a| last.topic.as_str() <= a) {
                problems.push(format!("list does not advance behind {after:?}"));
                break;
            }
            after = Some(last.topic.clone());
            for line in &page {
                match self.topic(&line.topic) {
                    Ok((obs, found)) => {
                        problems.extend(found.into_iter().map(|p| format!("{}: {p}", line.topic)));
                        let s = &obs.state;
                        let listed = (line.head_seq, line.count, line.bytes);
                        let shown = (s.head_seq, s.count, s.bytes);
                        // A list reads no file: deletes in segments may not be loaded yet.
                        if line.earliest_seq > s.earliest_seq {
                            problems.push(format!("{}: list begins behind the state", s.topic));
                        }
                        // A list does not sweep expired records.
                        if listed != shown && s.config.ttl_ms == 0 {
                            problems.push(format!("{}: list {listed:?} differs", s.topic));
                        }
                        topics.push(obs);
                    }
                    Err(_) if self.damaged => self.unread.push(line.topic.clone()),
                    Err(e) => problems.push(format!("{}: {e}", line.topic)),
                }
            }
        }
        (Observation { wall, topics }, problems)
    }

    fn topic(&self, name: &str) -> Result<(TopicObs, Vec<String>), String> {
        let mut problems = Vec::new();
        let (mut records, mut tombstones, head) =
            follow(self.engine, name, self.limit, &mut problems)?;
        let state = self.engine.state(name, false).map_err(|e| format!("state fails: {e}"))?;
        if state.head_seq != head {
            // A state sweeps what has expired. In an engine without threads the frames of the sweep
            // carry staged writes along, which the read before has missed.
            (records, tombstones, _) = follow(self.engine, name, self.limit, &mut problems)?;
        }
        let obs = TopicObs { state, records, tombstones };
        consistent(&obs, &mut problems);
        let in_band = |t: &&Tombstone| self.damaged && t.reason == GapReason::Corrupt;
        for t in obs.unexplained().filter(|t| !in_band(t)) {
            problems.push(format!("I4: tombstone {t:?} has no gap and no floor"));
        }
        // Damaged records are announced before the first undamaged one.
        if obs.unexplained().next().is_none() {
            earliest(self.engine, name, &obs, &mut problems)?;
        }
        Ok((obs, problems))
    }
}

/// Follows `next_from_seq` from 0 to the head (I4). Returns the head, too.
fn follow(
    engine: &Engine,
    name: &str,
    limit: usize,
    problems: &mut Vec<String>,
) -> Result<(Vec<Seen>, Vec<Tombstone>, u64), String> {
    let (mut records, mut tombstones) = (Vec::<Seen>::new(), Vec::<Tombstone>::new());
    let mut cursor = 0;
    for _ in 0..1_000_000 {
        let batch = read(engine, name, ReadFrom::After(cursor), limit)?;
        if let Some(t) = batch.tombstone {
            if t.gap_from != cursor + 1 || t.gap_to < t.gap_from || t.gap_to > batch.head_seq {
                problems.push(format!("I4: tombstone {t:?} at cursor {cursor}"));
            }
            let overlaps = tombstones.last().is_some_and(|p| p.gap_to >= t.gap_from);
            if overlaps || records.last().is_some_and(|r| r.seq >= t.gap_from) {
                problems.push(format!("I4: tombstone {t:?} goes back"));
            }
            cursor = t.gap_to;
            tombstones.push(t);
        }
        for r in batch.iter() {
            if r.seq <= cursor {
                problems.push(format!("I4: seq {} is not above the cursor {cursor}", r.seq));
            }
            cursor = r.seq;
            records.push(Seen {
                seq: r.seq,
                ts: r.ts,
                node: r.node.to_vec(),
                tag: r.tag.to_vec(),
                meta: r.meta.to_vec(),
                data: r.data.to_vec(),
                binary: r.binary,
            });
        }
        if batch.next_from_seq < cursor || batch.next_from_seq > batch.head_seq {
            let (next, head) = (batch.next_from_seq, batch.head_seq);
            problems.push(format!("I4: next_from_seq {next} behind {cursor}, head {head}"));
        }
        if batch.caught_up != (batch.next_from_seq == batch.head_seq) {
            problems.push(format!("caught_up is wrong at {}", batch.next_from_seq));
        }
        let stuck = batch.next_from_seq <= cursor && batch.is_empty() && batch.tombstone.is_none();
        if batch.next_from_seq >= batch.head_seq {
            return Ok((records, tombstones, batch.head_seq));
        }
        if stuck {
            return Err(format!("I4: the reader is stuck at {cursor}, head {}", batch.head_seq));
        }
        cursor = batch.next_from_seq;
    }
    Err("I4: the reader never reaches the head".into())
}

fn read(engine: &Engine, name: &str, from: ReadFrom, limit: usize) -> Result<ReadBatch, String> {
    let req = ReadRequest { from, limit, touch: false, ..ReadRequest::default() };
    engine.read(name, &req).map_err(|e| format!("read from {from:?} fails: {e}"))
}

/// Compares the state with the full read, except for parts that depend on the TTL of single
/// records.
fn consistent(obs: &TopicObs, problems: &mut Vec<String>) {
    let s = &obs.state;
    if !(s.evict_floor <= s.earliest_seq && s.earliest_seq <= s.head_seq + 1) {
        let (floor, first, head) = (s.evict_floor, s.earliest_seq, s.head_seq);
        problems.push(format!("I11: evict_floor {floor} earliest {first} head {head}"));
    }
    if s.next_seq <= s.head_seq {
        problems.push(format!("I2: next_seq {} head {}", s.next_seq, s.head_seq));
    }
    let rising = obs.records.windows(2).all(|w| w[0].ts <= w[1].ts);
    if !rising {
        problems.push("ts goes back".into());
    }
    let gaps_rise = s.gaps.windows(2).all(|w| w[0].to < w[1].from);
    if !gaps_rise || s.gaps.iter().any(|g| g.from > g.to || g.to >= s.next_seq) {
        problems.push(format!("gaps are not in order: {:?}", s.gaps));
    }
    for g in s.gaps.iter().filter(|g| g.to >= s.earliest_seq && g.to <= s.head_seq) {
        if let Some(r) = obs.records.iter().find(|r| (g.from..=g.to).contains(&r.seq)) {
            problems.push(format!("seq {} is readable inside {g:?}", r.seq));
        } else if obs.tombstone(g.to).is_none() {
            problems.push(format!("I4: {g:?} is not announced"));
        }
    }
}

/// A reader that starts at the earliest record sees the same records.
fn earliest(
    engine: &Engine,
    name: &str,
    obs: &TopicObs,
    problems: &mut Vec<String>,
) -> Result<(), String> {
    let batch = read(engine, name, ReadFrom::Earliest, 1)?;
    let first = batch.get(0).map(|r| r.seq);
    let expected = obs.records.first().map(|r| r.seq);
    let gap_first = obs.state.gaps.iter().any(|g| Some(g.to) < expected && first.is_none());
    if first != expected && !gap_first {
        problems.push(format!("reading from earliest begins at {first:?}, not {expected:?}"));
    }
    Ok(())
}
