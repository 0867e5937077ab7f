//! What a run outside this process is asked for, and what it gives.

use std::path::PathBuf;

/// An output that a run is to give.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Its name in the study.
    pub name: String,
    /// The coordinate of a series; none for a single number.
    pub over: Option<Over>,
}

/// The coordinate of a series.
#[derive(Clone, Debug, PartialEq)]
pub struct Over {
    /// Its name.
    pub name: String,
    /// Its values, where the study says them; else the simulator's results must hold them.
    pub at: Option<Vec<f64>>,
}

/// Values of one output of one run. What is missing in a series is NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Coordinates of a series; empty for a single number.
    pub at: Vec<f64>,
    /// As many values as coordinates, or one.
    pub values: Vec<f64>,
}

impl Reading {
    /// The number, or the series' value at a coordinate, linear between the two next to it; `None` where there is none.
    pub fn value(&self, coordinate: Option<f64>) -> Option<f64> {
        let Some(t) = coordinate.filter(|_| !self.at.is_empty()) else {
            return self.values.first().copied().filter(|y| y.is_finite());
        };
        let known = || self.at.iter().copied().zip(self.values.iter().copied()).filter(|(_, y)| y.is_finite());
        let below = known().filter(|(at, _)| *at <= t).max_by(|a, b| a.0.total_cmp(&b.0))?;
        let above = known().filter(|(at, _)| *at >= t).min_by(|a, b| a.0.total_cmp(&b.0))?;
        let width = above.0 - below.0;
        Some(if width > 0.0 { below.1 + (above.1 - below.1) * (t - below.0) / width } else { below.1 })
    }
}

/// Whether two runs gave the same; what is missing in both is the same.
pub(crate) fn alike(a: &[Reading], b: &[Reading]) -> bool {
    let equal = |(x, y): (&f64, &f64)| x == y || (x.is_nan() && y.is_nan());
    let same = |a: &Reading, b: &Reading| {
        a.at == b.at && a.values.len() == b.values.len() && a.values.iter().zip(&b.values).all(equal)
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
}

/// One run to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its number in the ledger.
    pub id: i64,
    /// Every input by name: unknowns, conditions and constants, in the order of the study file.
    pub inputs: Vec<(String, f64)>,
    /// A folder of its own, which need not exist yet.
    pub folder: PathBuf,
    /// Text that no other run of any ledger has, so that its processes can be recognised.
    pub marker: String,
    /// Number of this attempt, from one.
    pub attempt: usize,
}

/// Why a run gave nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The run failed, for a reason in words.
    Failed(String),
    /// The simulator cannot be reached; the run counts as never made, and others would fare no better.
    Unreachable {
        /// Why, in words.
        reason: String,
        /// What to do.
        repair: String,
    },
    /// The user asked to stop; the run counts as never made.
    Interrupted,
}
