//! Leases, dead letters, redrive, delays, lanes, groups, expiry.

use topics_engine::{ConfigPatch, Durability, JobState, TopicType};

use super::super::note::Leased;
use super::super::script::Script;

/// The config of the queue `q`.
fn queue(max_deliveries: u64, dead: bool, durability: Durability) -> ConfigPatch {
    ConfigPatch {
        kind: Some(TopicType::Queue),
        durability: Some(durability),
        leases_durable: Some(true),
        max_deliveries: Some(max_deliveries),
        dead_letter: dead.then(|| Some("dead".into())),
        lease_ms: Some(86_400_000),
        retry_backoff_ms: Some(0),
        ..ConfigPatch::default()
    }
}

fn first(jobs: &[Leased]) -> &[Leased] {
    &jobs[..jobs.len().min(1)]
}

/// Claims, acks, releases and extensions around checkpoints and restarts.
pub fn leases(s: &mut Script) {
    s.make("q", &queue(0, false, Durability::Fsync));
    for round in 0..4 {
        s.put("q", 5);
        let a = s.claim("a", 3, None);
        let b = s.claim("b", 2, None);
        s.ack(first(&a));
        s.nack(first(&b), 0);
        s.stale(first(&b));
        s.extend(a.get(1..2).unwrap_or_default(), 80_000_000);
        if round % 2 == 1 {
            s.checkpoint();
        }
        let c = s.claim("c", 1, None);
        s.ack(&c);
        match round {
            1 => s.kill(),
            2 => s.reopen(),
            _ => {}
        }
        if round == 2 {
            s.ack(a.get(1..2).unwrap_or_default());
        }
    }
}

/// Leases that run out and go to others.
pub fn expiring_leases(s: &mut Script) {
    s.make("q", &queue(0, false, Durability::Fsync));
    s.put("q", 6);
    for round in 0..5 {
        let a = s.claim("a", 2, Some(1_000));
        let b = s.claim("b", 1, Some(60_000));
        s.pass(1_500);
        let c = s.claim("c", 2, None);
        let taken = |a: &&Leased| c.iter().any(|c| c.seq == a.seq);
        let taken: Vec<Leased> = a.iter().filter(taken).cloned().collect();
        assert_ne!(taken, [], "what ran out goes first");
        s.stale(&taken);
        s.ack(first(&c));
        if round == 2 {
            s.checkpoint();
        }
        s.extend(&b, 2_000);
        s.ack(first(&b));
        s.nack(c.get(1..).unwrap_or_default(), 0);
        s.put("q", 2);
    }
}

/// Jobs that fail too often go to another topic.
pub fn dead_letters(s: &mut Script) {
    s.make("q", &queue(2, true, Durability::Fsync));
    for round in 0..3 {
        s.put("q", 4);
        for _ in 0..2 {
            let jobs = s.claim("a", 9, None);
            s.nack(&jobs, 0);
        }
        let rest = s.claim("a", 2, None);
        s.ack(&rest);
        s.sync();
        if round == 1 {
            s.checkpoint();
            s.kill();
        }
    }
}

/// They come back.
pub fn redrive(s: &mut Script) {
    s.make("q", &queue(1, true, Durability::Fsync));
    for round in 0..3 {
        s.put("q", 3);
        let jobs = s.claim("a", 9, None);
        s.nack(&jobs, 0);
        s.claim("a", 1, None);
        s.redrive("dead");
        let again = s.claim("b", 9, None);
        s.ack(&again[..again.len().min(2)]);
        s.sync();
        if round == 1 {
            s.reopen();
        }
    }
    s.checkpoint();
}

/// Without a dead-letter topic, dead jobs are revived where they are.
pub fn dead_in_place(s: &mut Script) {
    s.make("q", &queue(1, false, Durability::Fsync));
    for _ in 0..3 {
        s.put("q", 4);
        let jobs = s.claim("a", 9, None);
        s.nack(&jobs, 0);
        s.claim("a", 9, None);
        s.checkpoint();
        s.redrive("q");
        let jobs = s.claim("b", 3, None);
        s.ack(first(&jobs));
    }
}

/// Jobs that wait for their time: when written, and when given back.
pub fn delays(s: &mut Script) {
    s.make("q", &queue(0, false, Durability::Fsync));
    for round in 0..5 {
        let now = s.now();
        s.put_with("q", 4, |i, w| {
            if i % 2 == 0 {
                w.deliver_at = now + 500 * (i as u64 % 8);
            }
        });
        let a = s.claim("a", 3, None);
        s.nack(first(&a), 700);
        s.ack(a.get(1..2).unwrap_or_default());
        s.pass(600);
        let b = s.claim("b", 2, None);
        s.ack(first(&b));
        match round {
            1 => s.checkpoint(),
            2 => s.kill(),
            3 => s.reopen(),
            _ => {}
        }
        s.pass(400);
    }
}

/// Jobs that are promoted and removed, whatever they are in, and nacks with errors.
pub fn managed(s: &mut Script) {
    manage(s, true);
}

/// The same without durable leases: a promotion is kept all the same.
pub fn managed_lightly(s: &mut Script) {
    manage(s, false);
}

fn manage(s: &mut Script, leases_durable: bool) {
    let patch = queue(0, false, Durability::Fsync);
    s.make("q", &ConfigPatch { leases_durable: Some(leases_durable), ..patch });
    for round in 0..5 {
        let now = s.now();
        s.put_with("q", 5, |i, w| {
            w.deliver_at = if i % 3 == 0 { now + 60_000 } else { 0 };
            w.group = ["", "", "g"][i % 3];
        });
        let a = s.claim("a", 2, None);
        s.nack(first(&a), 900);
        s.promote(2);
        match round {
            1 => s.checkpoint(),
            2 => s.kill(),
            3 => s.reopen(),
            _ => {}
        }
        let b = s.claim("b", 2, None);
        s.nack(first(&b), 0);
        s.ack(b.get(1..).unwrap_or_default());
        let states = [JobState::Delayed, JobState::Ready, JobState::Leased];
        s.remove(states[round % 3], 1);
        s.pass(400);
    }
}

/// Lanes and groups.
pub fn lanes_groups(s: &mut Script) {
    s.make("q", &queue(0, false, Durability::Fsync));
    for round in 0..5 {
        s.put_with("q", 6, |i, w| {
            w.lane = (i % 3 == 1).then_some((i % 10) as u8);
            w.group = ["", "g", "h"][i % 3];
        });
        let a = s.claim("a", 4, None);
        s.nack(first(&a), 0);
        s.ack(a.get(1..3).unwrap_or_default());
        let b = s.claim("b", 2, None);
        s.ack(&b);
        match round {
            1 => s.checkpoint(),
            2 => s.kill(),
            _ => {}
        }
    }
    s.put_with("q", 4, |i, w| w.lane = Some((9 - i % 4) as u8));
}

/// Jobs that expire are dead letters too.
pub fn expired_jobs(s: &mut Script) {
    s.make("q", &queue(3, true, Durability::Fsync));
    for round in 0..4 {
        s.put_with("q", 4, |i, w| w.ttl_ms = if i % 2 == 0 { 6_000 } else { 0 });
        let a = s.claim("a", 2, None);
        s.ack(first(&a));
        s.pass(7_000);
        s.work();
        s.put("q", 1);
        let b = s.claim("b", 1, None);
        s.ack(&b);
        if round == 1 {
            s.checkpoint();
        }
    }
}

/// A queue whose writes are not synced, and whose leases are not logged: what a machine loses is
/// lost whole.
pub fn disk_queue(s: &mut Script) {
    let patch = ConfigPatch { leases_durable: Some(false), ..queue(2, true, Durability::Disk) };
    s.make("q", &patch);
    for round in 0..4 {
        s.put_with("q", 4, |i, w| w.lane = (i % 4 == 3).then_some(1));
        for _ in 0..2 {
            let jobs = s.claim("a", 3, None);
            s.nack(&jobs, 0);
        }
        let jobs = s.claim("b", 2, None);
        s.ack(&jobs);
        match round {
            1 => {
                s.sync();
                s.redrive("dead");
                s.checkpoint();
            }
            2 => s.kill(),
            _ => {}
        }
    }
}
