//! A schedule of the requests of several clients, each on a thread of its own.

use std::sync::{Arc, Condvar, Mutex};

use topics_sim::RequestGate;

#[derive(Debug, Default)]
struct State {
    /// The client of each request, in order. After the last, the lowest client that is not done.
    schedule: Vec<u32>,
    at: usize,
    running: Option<u32>,
    done: Vec<u32>,
}

impl State {
    fn next(&mut self, clients: u32) -> Option<u32> {
        while self.schedule.get(self.at).is_some_and(|c| self.done.contains(c)) {
            self.at += 1;
        }
        match self.schedule.get(self.at) {
            Some(client) => Some(*client),
            None => (0..clients).find(|c| !self.done.contains(c)),
        }
    }
}

/// Exactly one client runs at any time, from one of its requests to the next.
#[derive(Debug)]
pub struct Turns {
    state: Mutex<State>,
    changed: Condvar,
    clients: u32,
}

impl Turns {
    pub fn new(clients: u32, schedule: Vec<u32>) -> Arc<Self> {
        let state = Mutex::new(State { schedule, ..State::default() });
        Arc::new(Self { state, changed: Condvar::new(), clients })
    }

    pub fn gate(self: &Arc<Self>) -> RequestGate {
        let turns = self.clone();
        Arc::new(move |client, _| turns.wait(client))
    }

    fn wait(&self, client: u32) {
        let mut state = self.state.lock().unwrap();
        if state.running == Some(client) {
            state.running = None;
            self.changed.notify_all();
        }
        while state.running.is_some() || state.next(self.clients) != Some(client) {
            state = self.changed.wait(state).unwrap();
        }
        state.running = Some(client);
        state.at += 1;
    }

    /// The client makes no more requests.
    pub fn finish(&self, client: u32) {
        let mut state = self.state.lock().unwrap();
        state.done.push(client);
        if state.running == Some(client) {
            state.running = None;
        }
        self.changed.notify_all();
    }
}
