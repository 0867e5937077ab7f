//! What the study file says about the I-step.

use super::propagation::{Method, PointEstimate};
use crate::likelihood::ErrorSharing;
use crate::train::cluster::Representative;

/// How I-posteriors are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Grid for up to three unknowns, else SMC.
    #[default]
    Auto,
    /// Adaptive quadrature.
    Grid,
    /// Tempered sequential Monte Carlo.
    Smc,
    /// The paper's sampler.
    Nuts,
}

impl Engine {
    /// Name in the study file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Grid => "grid",
            Self::Smc => "smc",
            Self::Nuts => "nuts",
        }
    }
}

/// Chains of NUTS in the I-step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NutsSpec {
    /// Chains of a pooled density; E-Post runs `chains` for each T-draw.
    pub chains: usize,
    /// Warm-up iterations of each chain.
    pub warmup: usize,
    /// Draws of each chain.
    pub draws: usize,
}

/// Runs of SMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmcSpec {
    /// Independent runs of a pooled density, whose agreement is the check; E-Post makes four for each T-draw.
    pub runs: usize,
    /// Particles of a run.
    pub particles: usize,
}

/// The I-step of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct InferSpec {
    /// Methods to run.
    pub methods: Vec<Method>,
    /// The one that leads tables.
    pub answer: Method,
    /// Whether sigma_A is propagated beside the coefficients.
    pub sigma_a: bool,
    /// How the approximation error enters replicates.
    pub error: ErrorSharing,
    /// How posteriors are computed.
    pub engine: Engine,
    /// k-means clusters instead of all T-draws.
    pub clusters: Option<usize>,
    /// What stands for a cluster.
    pub representative: Representative,
    /// What Point takes for the T-posterior.
    pub point: PointEstimate,
    /// I-draws to write for each method.
    pub draws: usize,
    /// Settings of NUTS.
    pub nuts: NutsSpec,
    /// Settings of SMC.
    pub smc: SmcSpec,
}

impl Default for InferSpec {
    fn default() -> Self {
        Self {
            methods: Method::ALL.to_vec(),
            answer: Method::ELik,
            sigma_a: false,
            error: ErrorSharing::Shared,
            engine: Engine::Auto,
            clusters: None,
            representative: Representative::Centroid,
            point: PointEstimate::Mean,
            draws: 4000,
            nuts: NutsSpec { chains: 4, warmup: 1000, draws: 1000 },
            smc: SmcSpec { runs: 16, particles: 256 },
        }
    }
}
