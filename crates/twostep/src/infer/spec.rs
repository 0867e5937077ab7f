//! What the study file says about the I-step.

use super::propagation::{Method, PointEstimate};
use crate::likelihood::ErrorSharing;
use crate::train::cluster::Representative;

/// How I-posteriors are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Exact where that is possible, else grid for up to three unknowns, else SMC.
    #[default]
    Auto,
    /// Mixtures of normals in closed form, for linear-Gaussian problems.
    Exact,
    /// Adaptive quadrature.
    Grid,
    /// Tempered sequential Monte Carlo.
    Smc,
    /// The paper's sampler.
    Nuts,
}

impl Engine {
    /// All, in the order in which they are preferred.
    pub const ALL: [Self; 5] = [Self::Auto, Self::Exact, Self::Grid, Self::Smc, Self::Nuts];

    /// Name in the study file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Exact => "exact",
            Self::Grid => "grid",
            Self::Smc => "smc",
            Self::Nuts => "nuts",
        }
    }
}

/// What stands for the T-draws in the I-step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clusters {
    /// All of them.
    #[default]
    None,
    /// So many k-means clusters, uncorrected as in the paper.
    Count(usize),
    /// As many clusters as it takes to propose an answer that importance sampling corrects to that of all T-draws, with its error
    /// stated; all T-draws where that does not pay.
    Auto,
}

impl Clusters {
    /// Clusters that replace the T-draws: what is corrected to all of them replaces none.
    pub fn count(self) -> Option<usize> {
        match self {
            Self::Count(n) => Some(n),
            Self::None | Self::Auto => None,
        }
    }
}

/// T-draws whose posteriors E-Post by NUTS samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fits {
    /// As many as make those of all others known by reliable importance weights.
    #[default]
    Needed,
    /// All, as the paper does.
    All,
}

impl Fits {
    /// All, with their names in the study file.
    pub const NAMED: [(&'static str, Self); 2] = [("needed", Self::Needed), ("all", Self::All)];
}

/// Chains of NUTS in the I-step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NutsSpec {
    /// Chains of a pooled density; E-Post runs `chains` for each T-draw that it fits.
    pub chains: usize,
    /// Warm-up iterations of each chain.
    pub warmup: usize,
    /// Draws of each chain.
    pub draws: usize,
    /// T-draws that E-Post fits.
    pub fits: Fits,
}

/// Runs of SMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmcSpec {
    /// Independent runs, whose agreement is the check.
    pub runs: usize,
    /// Particles of a run; `None`: see [`SmcSpec::particles`].
    pub particles: Option<usize>,
}

impl SmcSpec {
    /// Particles for a density pooled over so many T-draws: unless given, 256, and up to 2048 where few T-draws make them
    /// cheaper, since more particles lose fewer small modes.
    pub fn particles(&self, n_draws: usize) -> usize {
        self.particles.unwrap_or_else(|| (256_000 / n_draws.max(1)).clamp(256, 2048))
    }
}

/// The grid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GridSpec {
    /// Stated error that it is refined to, in sds of each unknown. Unknown sds of measurements are summed out by a rule of their own, which states its error.
    pub accuracy: f64,
}

impl GridSpec {
    /// From where rounding would count to where a grid no longer knows its own error.
    pub const ACCURACIES: [f64; 2] = [1e-4, 0.02];
}

impl Default for GridSpec {
    fn default() -> Self {
        Self { accuracy: 1e-3 }
    }
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
    /// Whether the errors of series by principal components are, which without them would be taken as exact where the components leave
    /// something out.
    pub series_errors: bool,
    /// How the approximation error enters replicates.
    pub error: ErrorSharing,
    /// How posteriors are computed.
    pub engine: Engine,
    /// All T-draws, or clusters of them.
    pub clusters: Clusters,
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
    /// Settings of the grid.
    pub grid: GridSpec,
}

impl Default for InferSpec {
    fn default() -> Self {
        Self {
            methods: Method::ALL.to_vec(),
            answer: Method::ELik,
            sigma_a: false,
            series_errors: true,
            error: ErrorSharing::Shared,
            engine: Engine::Auto,
            clusters: Clusters::None,
            representative: Representative::Centroid,
            point: PointEstimate::Mean,
            draws: 4000,
            nuts: NutsSpec { chains: 4, warmup: 1000, draws: 1000, fits: Fits::Needed },
            smc: SmcSpec { runs: 16, particles: None },
            grid: GridSpec::default(),
        }
    }
}
