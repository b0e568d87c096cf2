//! The answers to the publishes of a socket, in the order of its messages: publishes end on any thread. Only
//! what is refused without being tried is told at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Outbox;

/// Places of answers, in order.
#[derive(Clone, Default)]
pub(super) struct AckOrder(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The next place to give.
    given: u64,
    /// The place whose answer is to be sent next.
    next: u64,
    /// Answers behind it; `None`: there is none.
    waiting: BTreeMap<u64, Option<Vec<u8>>>,
}

/// The place of one answer. Dropped without one it holds up no other.
pub(super) struct AckPlace {
    order: AckOrder,
    outbox: Outbox,
    place: u64,
    answer: Option<Vec<u8>>,
}

impl AckOrder {
    pub fn place(&self, outbox: &Outbox) -> AckPlace {
        let mut state = self.0.lock();
        state.given += 1;
        let place = state.given - 1;
        AckPlace { order: self.clone(), outbox: outbox.clone(), place, answer: None }
    }
}

impl AckPlace {
    /// Sends an answer when those before it were sent.
    pub fn answer(mut self, answer: Vec<u8>) {
        self.answer = Some(answer);
    }

    /// Sends an answer before those that are not there yet.
    pub fn answer_now(self, answer: Vec<u8>) {
        self.outbox.lock().push(answer);
    }
}

impl Drop for AckPlace {
    fn drop(&mut self) {
        let mut state = self.order.0.lock();
        state.waiting.insert(self.place, self.answer.take());
        let mut outbox = self.outbox.lock();
        loop {
            let next = state.next;
            let Some(answer) = state.waiting.remove(&next) else { return };
            outbox.extend(answer);
            state.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_in_the_order_of_their_places() {
        let (order, outbox) = (AckOrder::default(), Outbox::default());
        let places: Vec<AckPlace> = (0..5).map(|_| order.place(&outbox)).collect();
        let [a, b, c, d, e] = <[AckPlace; 5]>::try_from(places).ok().unwrap();
        b.answer(vec![1]);
        d.answer(vec![3]);
        assert!(outbox.lock().is_empty());
        a.answer(vec![0]);
        assert_eq!(*outbox.lock(), [[0], [1]]);
        e.answer_now(vec![4]);
        assert_eq!(outbox.lock().pop(), Some(vec![4]));
        drop(c);
        assert_eq!(*outbox.lock(), [[0], [1], [3]], "a place without an answer");
    }
}
