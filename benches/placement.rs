//! Which cores a server and its client use: a lone request costs what waking the other core costs.

use std::fs;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::Process;

/// Where the two sides of a row of latencies run, as `taskset` would say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The engine is in the process that measures, and the scheduler chooses its cores.
    Embedded,
    /// Server and client on the first core.
    OneCore,
    /// The client on the first core, the server on the second.
    CoreEach,
    /// The scheduler chooses.
    Free,
}

impl Placement {
    /// Those of a client and a server.
    pub const REMOTE: [Self; 3] = [Self::OneCore, Self::CoreEach, Self::Free];

    /// What a row says.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::OneCore => "on one core",
            Self::CoreEach => "a core each",
            Self::Free => "any core",
        }
    }

    /// The cores of the client and of the server.
    fn cores(self) -> Option<[usize; 2]> {
        match self {
            Self::OneCore => Some([0, 0]),
            Self::CoreEach => Some([0, 1]),
            Self::Embedded | Self::Free => None,
        }
    }

    /// Runs `work`, whose calls the calling thread makes, with the server's threads and this one on
    /// their cores.
    pub fn run<T>(self, server: Process, work: impl FnOnce() -> T) -> T {
        let Some([client, at]) = self.cores() else { return work() };
        let before = sched_getaffinity(None).unwrap();
        sched_setaffinity(None, &only(client)).unwrap();
        server.pin(&only(at));
        let out = work();
        server.pin(&before);
        sched_setaffinity(None, &before).unwrap();
        out
    }
}

fn only(core: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(core);
    set
}

impl Process {
    /// Moves all threads of the process to these cores.
    fn pin(self, cores: &CpuSet) {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0)).expect("the process runs");
        let ids = tasks.map(|task| task.unwrap().file_name().to_string_lossy().parse().unwrap());
        for id in ids {
            // A thread may have ended meanwhile.
            let _ = sched_setaffinity(Pid::from_raw(id), cores);
        }
    }
}
