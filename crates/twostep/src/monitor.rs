//! How long work talks to whoever started it: progress out, a request to stop in.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Whether to go on, asked between pieces of work.
pub type Proceed<'a> = &'a (dyn Fn() -> bool + Sync);

/// Watches a computation.
pub trait Monitor: Sync {
    /// Whether to go on; asked often. False ends the work with [`crate::Error::Interrupted`].
    fn proceed(&self) -> bool {
        true
    }

    /// `done` of `total` pieces of `what` are finished.
    fn progress(&self, what: &str, done: usize, total: usize) {
        let _ = (what, done, total);
    }

    /// Something happened that is worth a line while the work goes on.
    fn notice(&self, text: &str) {
        let _ = text;
    }
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Monitor for Silent {}

/// How often, in questions, [`counting`] tells how far the work is: a report costs more than a question.
const EVERY: usize = 32;

/// Asks `monitor` whether to go on, for work that asks `total` times, and tells it how far that is.
pub fn counting<'a>(monitor: &'a dyn Monitor, what: &'a str, total: usize) -> impl Fn() -> bool + Sync + 'a {
    let asked = AtomicUsize::new(0);
    move || {
        let done = asked.fetch_add(1, Ordering::Relaxed);
        if done.is_multiple_of(EVERY) {
            monitor.progress(what, done.min(total), total);
        }
        monitor.proceed()
    }
}

/// Passes on the request to stop, and hears nothing of the pieces of what is itself counted as one.
pub struct Quiet<'a>(pub &'a dyn Monitor);

impl Monitor for Quiet<'_> {
    fn proceed(&self) -> bool {
        self.0.proceed()
    }

    fn notice(&self, text: &str) {
        self.0.notice(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn questions_are_counted() {
        #[derive(Default)]
        struct Heard(Mutex<Vec<(String, usize, usize)>>);
        impl Monitor for Heard {
            fn progress(&self, what: &str, done: usize, total: usize) {
                self.0.lock().unwrap().push((what.into(), done, total));
            }
        }
        let heard = Heard::default();
        let proceed = counting(&heard, "draws", 2 * EVERY - 1);
        assert!((0..=2 * EVERY).all(|_| proceed()));
        let expected = [0, EVERY, 2 * EVERY - 1].map(|done| ("draws".to_owned(), done, 2 * EVERY - 1));
        assert_eq!(*heard.0.lock().unwrap(), expected);
    }
}
