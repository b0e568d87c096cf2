//! What an open says of itself while it runs.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use topics_env::Clock;
use topics_env::sync::Mutex;

use super::*;
use crate::RecoveryProgress;
use crate::types::config::TopicType;
use crate::types::queue::Claim;

/// A clock that stops its reader once, in the middle of a replay.
#[derive(Debug)]
struct Stopped {
    clock: Arc<SimClock>,
    progress: Arc<RecoveryProgress>,
    stop: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Clock for Stopped {
    fn wall_ms(&self) -> u64 {
        self.clock.wall_ms()
    }

    fn mono_ns(&self) -> u64 {
        if self.progress.replayed() > 0
            && let Some((arrived, go_on)) = self.stop.lock().take()
        {
            arrived.send(()).unwrap();
            go_on.recv().unwrap();
        }
        self.clock.mono_ns()
    }
}

#[test]
fn an_open_says_how_far_its_recovery_has_come_while_it_runs() {
    let w = World::new();
    let (kind, leases_durable) = (Some(TopicType::Queue), Some(true));
    w.create("t", ConfigPatch { kind, leases_durable, ..ConfigPatch::default() });
    for job in ["a", "b", "c", "d"] {
        w.put("t", &[job]);
        // A replayed lease begins on the clock.
        let req = Claim { node: b"n", max: 1, lease_ms: None, wait: Duration::ZERO };
        assert_eq!(w.engine().claim("t", &req).unwrap().len(), 1);
    }
    let progress = Arc::new(RecoveryProgress::default());
    let (arrived, at_stop) = channel();
    let (go_on, released) = channel();
    let fs = Arc::new(SimFs::from_image(&w.fs.kill_image()));
    let clock = Stopped {
        clock: w.clock.clone(),
        progress: progress.clone(),
        stop: Mutex::new(Some((arrived, released))),
    };
    let mut env = env_on(&fs, &w.clock, 7);
    env.clock = Arc::new(clock);
    let engine = std::thread::scope(|s| {
        let (options, progress) = (w.options.clone(), &progress);
        assert_eq!(progress.ppm(), 0);
        let open = s.spawn(|| Engine::open_reporting(env, DIR.as_ref(), options, progress.clone()));
        at_stop.recv().unwrap();
        let held = progress.ppm();
        assert!(0 < held && held < 1_000_000, "{held}");
        go_on.send(()).unwrap();
        open.join().unwrap().unwrap()
    });
    assert_eq!(progress.ppm(), 1_000_000);
    let m = engine.metrics();
    assert_eq!((m.recovery_ppm, m.recovery_frames), (1_000_000, progress.replayed()));
    assert_eq!(engine.state("t", false).unwrap().head_seq, 4);
    engine.close().unwrap();
}
