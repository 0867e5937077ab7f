//! One error type: which input is wrong, what was found there, and what to do about it.

use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, in words a user can act on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value that cannot be used.
    #[error("{place}: {found}; {repair}")]
    Invalid {
        /// Where: a key of the study file, a column of a table, an argument.
        place: String,
        /// What was found there and why it cannot be used.
        found: String,
        /// What to do instead.
        repair: String,
    },
    /// A file that could not be read or written.
    #[error("{}: {source}; {repair}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
        /// What to do.
        repair: String,
    },
    /// A computation that ran but whose result cannot be used.
    #[error("{stage}: {problem}; {repair}")]
    Failed {
        /// T-step, I-step, simulation.
        stage: String,
        /// What happened.
        problem: String,
        /// What to do.
        repair: String,
    },
    /// Stopped by the user; finished stages are kept.
    #[error("interrupted; finished stages are kept")]
    Interrupted,
}

impl Error {
    /// A value at `place` that cannot be used, as `found`, and the `repair`.
    pub fn invalid(place: impl Into<String>, found: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::Invalid { place: place.into(), found: found.into(), repair: repair.into() }
    }

    /// A file that could not be used.
    pub fn file(path: &Path, source: std::io::Error, repair: impl Into<String>) -> Self {
        Self::File { path: path.to_path_buf(), source, repair: repair.into() }
    }

    /// A computation without a usable result.
    pub fn failed(stage: impl Into<String>, problem: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::Failed { stage: stage.into(), problem: problem.into(), repair: repair.into() }
    }
}
