//! Every crash point of a script with routers: copies keep their seqs, values and order among
//! direct writes, deletes and evictions of the destination, and none is there twice (I7).

use std::collections::BTreeMap;
use std::sync::Arc;

use topics_sim::{CrashOptions, CrashState, SimFs};

use super::*;
use crate::router::Guarantee;
use crate::topic::tests::{class, eq, small};
use crate::types::api::Durability;
use crate::types::config::ConfigPatch;
use crate::types::options::Options;

/// What was seen of the destination: seq → data, never to change (I2).
type Seen = BTreeMap<u64, String>;

struct Script {
    /// Mutating calls of the disk so far → what had been seen, and what must not be lost.
    at: Vec<(usize, Seen, u64)>,
    seen: Seen,
    /// Everything written to the source, in order.
    written: Vec<String>,
}

fn look(w: &World, s: &mut Script, dest: &str) {
    for (seq, data) in w.all(dest) {
        let old = s.seen.insert(seq, data.clone());
        assert!(old.is_none_or(|old| old == data), "I2: {dest} {seq}");
    }
    s.at.push((w.fs.ops_len(), s.seen.clone(), 0));
}

/// Waits for everything to be durable: what is there now must be there after any later crash.
fn settle(w: &World, s: &mut Script, dest: &str) {
    w.engine().sync().unwrap();
    w.work();
    w.engine().sync().unwrap();
    w.work();
    look(w, s, dest);
    if let Some(last) = s.at.last_mut() {
        last.2 = s.seen.keys().next_back().copied().unwrap_or(0);
    }
}

fn say(w: &World, s: &mut Script, data: &str) {
    w.tagged("s", &[data]);
    s.written.push(data.to_owned());
}

fn script(w: &World, dest_class: Durability, filter: bool) -> Script {
    let mut s = Script { at: Vec::new(), seen: Seen::new(), written: Vec::new() };
    w.create("s", class(Durability::Disk));
    w.create("d", class(dest_class));
    w.put("s", &["zero"]);
    let req = RouterRequest { guarantee: Guarantee::ExactlyOnce, ..route("s", "d") };
    w.router("r", &RouterRequest { filter: filter.then(|| eq("keep").unwrap()), ..req });
    w.engine().sync().unwrap();
    let name =
        |i: usize| if filter && i.is_multiple_of(2) { "keep".to_owned() } else { format!("v{i}") };
    for i in 0..3 {
        say(w, &mut s, &name(i));
    }
    w.work();
    look(w, &mut s, "d");
    w.put("d", &["direct"]);
    say(w, &mut s, &name(3));
    w.work();
    settle(w, &mut s, "d");
    w.delete("d", Some(2), None);
    w.engine().checkpoint().unwrap();
    say(w, &mut s, &name(4));
    w.work();
    look(w, &mut s, "d");
    w.create("d", ConfigPatch { cap_records: Some(4), ..ConfigPatch::default() });
    say(w, &mut s, &name(5));
    say(w, &mut s, &name(6));
    w.work();
    w.put("d", &["direct"]);
    settle(w, &mut s, "d");
    w.engine().checkpoint().unwrap();
    say(w, &mut s, &name(7));
    w.work();
    look(w, &mut s, "d");
    s
}

/// Opens a disk that a crash left, lets the router finish, and judges the destination.
fn judge(w: &World, s: &Script, state: &CrashState, filter: bool, class_: Durability) {
    let what = format!("{class_:?} after {} calls, {:?}", state.after_ops, state.survival);
    let mut after = World::unopened(w.options.clone());
    after.fs = Arc::new(SimFs::from_image(&state.image));
    after.open();
    if after.engine().router("r").is_err() {
        let made = s.at.first().is_some_and(|(ops, ..)| *ops <= state.after_ops);
        assert!(!made, "{what}: the router is gone");
        return;
    }
    let before = s.at.iter().rev().find(|(ops, ..)| *ops <= state.after_ops);
    check(&after, s, before, filter, &what);
    after.work();
    after.engine().sync().unwrap();
    after.work();
    after.engine().sync().unwrap();
    after.work();
    assert_eq!(after.engine().router("r").unwrap().lag, 0, "{what}");
    check(&after, s, before, filter, &what);
    complete(&after, filter, &what);
}

/// Copies by the source seq that they name.
fn origins(w: &World) -> Vec<(u64, u64, String)> {
    let (mut out, mut at) = (Vec::new(), 0);
    loop {
        let b = w.read("d", at);
        for r in b.iter() {
            let meta = String::from_utf8(r.meta.to_vec()).unwrap();
            if let Some((_, rest)) = meta.split_once("_topics_router\":\"") {
                let seq = rest.split('"').next().unwrap().rsplit(':').next().unwrap();
                let data = String::from_utf8(r.data.to_vec()).unwrap();
                out.push((r.seq, seq.parse().unwrap(), data));
            }
        }
        at = b.next_from_seq;
        if b.caught_up {
            return out;
        }
    }
}

fn check(w: &World, s: &Script, before: Option<&(usize, Seen, u64)>, filter: bool, what: &str) {
    let all: Seen = w.all("d").into_iter().collect();
    // What was seen keeps its seq: it is there as it was, or it is gone.
    for (seq, data) in &all {
        if let Some(old) = before.and_then(|(_, seen, _)| seen.get(seq)) {
            assert_eq!(old, data, "I2: {what}: seq {seq}");
        }
    }
    // What was durable is there, deleted, or announced.
    if let Some((_, seen, durable)) = before {
        let st = w.state("d");
        for seq in seen.keys().filter(|q| **q <= *durable && **q >= st.earliest_seq) {
            assert!(all.contains_key(seq), "I1: {what}: seq {seq} of {st:?}");
        }
    }
    // Each copy is of a record that was written, in the order of the source, and once (I7).
    let copies = origins(w);
    for pair in copies.windows(2) {
        assert!(pair[0].1 < pair[1].1, "I7: {what}: {copies:?}");
    }
    for (_, source, data) in &copies {
        assert_eq!(*data, s.written[(*source - 2) as usize], "{what}");
        assert!(!filter || data == "keep", "{what}");
    }
}

/// When the router is done, everything that the source still has, from the first copy that is
/// there on, has been copied.
fn complete(w: &World, filter: bool, what: &str) {
    let copies = origins(w);
    let Some(first) = copies.first().map(|c| c.1) else { return };
    let want: Vec<u64> = w
        .all("s")
        .into_iter()
        .filter(|(seq, data)| *seq >= first && (!filter || data == "keep"))
        .map(|(seq, _)| seq)
        .collect();
    let have: Vec<u64> = copies.iter().map(|c| c.1).filter(|c| want.contains(c)).collect();
    assert_eq!(have, want, "I7: {what}");
}

fn enumerate(shards: u32, class_: Durability, filter: bool) -> usize {
    let w = World::with(Options { wal_shards: shards, ..small() });
    let s = script(&w, class_, filter);
    let options = CrashOptions { random: 1, torn_bytes: 1, names: 2, single: true };
    let mut n = 0;
    w.fs.all_crash_states(7, &options, &mut |state| {
        // Every state of every third point keeps the suite short.
        if state.after_ops % 3 == n % 3 {
            judge(&w, &s, &state, filter, class_);
        }
        n += 1;
    });
    n
}

#[test]
fn i7_every_crash_leaves_each_copy_once_at_its_seq() {
    let mut n = 0;
    for class_ in [Durability::Disk, Durability::Fsync] {
        for (shards, filter) in [(1, false), (3, false), (3, true)] {
            n += enumerate(shards, class_, filter);
        }
    }
    assert!(n > 500, "only {n} states");
}
