//! Routers over the simulated env.

mod crash;
mod rules;

use super::RouterRequest;
use crate::topic::tests::World;
use crate::types::api::TopicState;

fn route(source: &str, dest: &str) -> RouterRequest {
    RouterRequest { source: source.into(), dest: dest.into(), ..RouterRequest::default() }
}

impl World {
    fn router(&self, name: &str, req: &RouterRequest) {
        assert!(self.engine().create_router(name, req).unwrap());
    }

    /// Lets the workers run.
    fn work(&self) {
        for _ in 0..4 {
            self.engine().tick().unwrap();
        }
    }

    /// The same, with the syncs that a first write after an open, or a class, waits for.
    fn settle(&self) {
        for _ in 0..2 {
            self.work();
            self.engine().sync().unwrap();
        }
        self.work();
    }

    /// Seq and data of everything that is there.
    fn all(&self, topic: &str) -> Vec<(u64, String)> {
        let (mut out, mut at) = (Vec::new(), 0);
        loop {
            let b = self.read(topic, at);
            let text = |d: &[u8]| String::from_utf8(d.to_vec()).unwrap();
            out.extend(b.iter().map(|r| (r.seq, text(r.data))));
            at = b.next_from_seq;
            if b.caught_up {
                return out;
            }
        }
    }

    fn datas(&self, topic: &str) -> Vec<String> {
        self.all(topic).into_iter().map(|(_, d)| d).collect()
    }

    fn gaps(&self, topic: &str) -> Vec<(u64, u64, &'static str)> {
        let TopicState { gaps, .. } = self.state(topic);
        gaps.iter().map(|g| (g.from, g.to, g.reason.as_str())).collect()
    }
}
