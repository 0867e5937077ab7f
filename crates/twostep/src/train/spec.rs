//! What the study file says about the T-step.

use crate::mcmc::nuts;
use std::path::PathBuf;

/// How the T-posterior is had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrainMethod {
    /// Exact where it can be, else NUTS.
    #[default]
    Auto,
    /// Exact, or an error.
    Exact,
    /// NUTS.
    Nuts,
    /// Normals around the modes, corrected by importance weights.
    Laplace,
    /// Normals along paths to the modes, corrected by importance weights.
    Pathfinder,
    /// Weighted quadrature nodes of the exact T-posterior.
    Nodes,
}

/// The simulation noise that the T-likelihood knows of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum KnownSigmaS {
    /// What the simulator was told to add.
    #[default]
    Simulator,
    /// This number; 0 leaves the noise to sigma_A, as the paper does.
    Fixed(f64),
    /// Column `sigma_s` of the training set.
    Column,
}

/// Chains and their lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NutsSpec {
    /// Number of chains.
    pub chains: usize,
    /// Warm-up iterations of each.
    pub warmup: usize,
}

impl NutsSpec {
    /// The sampler's settings for chains of this length.
    pub fn settings(&self, draws: usize) -> nuts::Settings {
        nuts::Settings { warmup: self.warmup, draws, ..nuts::Settings::default() }
    }
}

/// The T-step of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainSpec {
    /// How.
    pub method: TrainMethod,
    /// Number S of T-draws.
    pub draws: usize,
    /// Draws from a file instead of training.
    pub import: Option<PathBuf>,
    /// Known simulation noise.
    pub sigma_s: KnownSigmaS,
    /// Settings of NUTS.
    pub nuts: NutsSpec,
}

impl Default for TrainSpec {
    fn default() -> Self {
        Self {
            method: TrainMethod::Auto,
            draws: 1000,
            import: None,
            sigma_s: KnownSigmaS::Simulator,
            nuts: NutsSpec { chains: 4, warmup: 1000 },
        }
    }
}
