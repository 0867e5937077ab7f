//! How long work talks to whoever started it: progress out, a request to stop in.

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
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Monitor for Silent {}
