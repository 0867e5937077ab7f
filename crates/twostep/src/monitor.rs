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

    /// Something happened that is worth a line while the work goes on.
    fn notice(&self, text: &str) {
        let _ = text;
    }
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Monitor for Silent {}

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
