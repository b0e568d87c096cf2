//! Outcomes that arrive during a call or after it.

use std::sync::Arc;

use parking_lot::Mutex;

/// The state of a call, as its outcome finds it.
enum Call<T> {
    /// The call has not returned.
    Open,
    /// The outcome arrived before the call returned.
    Done(T),
    /// The call has returned.
    Left,
}

/// The two ends of a call. Any thread passes the outcome to the first. The caller calls the second
/// when the call returns; it returns the outcome if that has arrived. A later outcome goes to `later`.
pub fn completion_pair<T: Send + 'static>(
    later: impl FnOnce(T) + Send + 'static,
) -> (impl FnOnce(T) + Send + 'static, impl FnOnce() -> Option<T> + Send) {
    let call = Arc::new(Mutex::new(Call::Open));
    let here = call.clone();
    let done = move |outcome| {
        let mut call = call.lock();
        if matches!(*call, Call::Open) {
            *call = Call::Done(outcome);
            return;
        }
        drop(call);
        later(outcome);
    };
    let left = move || match std::mem::replace(&mut *here.lock(), Call::Left) {
        Call::Done(outcome) => Some(outcome),
        _ => None,
    };
    (done, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_comes_once_inside_or_later() {
        let (done, left) = completion_pair(|_: u8| panic!("it was there"));
        done(1);
        assert_eq!(left(), Some(1));
        let (send, receive) = std::sync::mpsc::channel();
        let (done, left) = completion_pair(move |n: u8| send.send(n).unwrap());
        assert_eq!(left(), None);
        done(2);
        assert_eq!(receive.recv(), Ok(2));
    }
}
