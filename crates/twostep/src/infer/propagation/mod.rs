//! The four ways `u` to carry the T-posterior into the I-step, one file each, and those of the calling program.

mod e_lik;
mod e_log_lik;
mod e_post;
mod own;
mod point;

pub use own::{OwnKind, OwnPropagation, Registered, register};
pub use point::PointEstimate;

use crate::draws::Draws;

/// Which densities a method samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets {
    /// One density, pooled over all T-draws.
    Pooled,
    /// One density per T-draw, each of which counts by the draw's weight.
    PerDraw,
}

/// A propagation method.
pub trait Propagation: Sync {
    /// The T-draws it works with.
    fn reduce(&self, draws: &Draws) -> Draws {
        draws.clone()
    }

    /// Which densities to sample.
    fn targets(&self) -> Targets;

    /// The pooled log-likelihood of `l_s`; replaces `l` by its derivative by each `l_s`.
    fn pool(&self, log_alpha: &[f64], l: &mut [f64]) -> f64;

    /// Whether `pool` is `log sum_s exp(log_alpha[s] + l_s)`, which has kernels of its own.
    fn is_log_mean_exp(&self) -> bool {
        false
    }

    /// Whether `pool` gives derivatives.
    fn has_gradient(&self) -> bool {
        true
    }

    /// Where the pooled log-likelihood is `sum_s weight_s l_s`: the weights.
    fn linear_weights(&self, log_alpha: &[f64]) -> Option<Vec<f64>> {
        let _ = log_alpha;
        None
    }

    /// Log-weights of the posteriors `p_s = p(y | omega, theta_s) p(omega) / Z_s` whose mixture the I-posterior is, given
    /// the evidences `Z_s`; `None` where it is no such mixture.
    fn mix(&self, log_alpha: &[f64], log_evidence: &[f64]) -> Option<Vec<f64>>;
}

/// The methods of the paper and those of the calling program, by their names in the study file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// The T-posterior reduced to one point.
    Point,
    /// Mean of the I-posteriors.
    EPost,
    /// Mean of the likelihoods.
    ELik,
    /// Mean of the log-likelihoods.
    ELogLik,
    /// One of the calling program; see [`register`].
    Own(Registered),
}

impl Method {
    /// Those of the paper, in the order in which tables show them.
    pub const ALL: [Self; 4] = [Self::ELik, Self::EPost, Self::Point, Self::ELogLik];

    /// All: those of the paper, then those of the calling program.
    pub fn known() -> Vec<Self> {
        Self::ALL.into_iter().chain(own::registered()).collect()
    }

    /// Name in the study file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own(own) => own.name(),
            Self::Point => "point",
            Self::EPost => "e-post",
            Self::ELik => "e-lik",
            Self::ELogLik => "e-log-lik",
        }
    }

    /// Name in text: the paper's.
    pub fn title(self) -> &'static str {
        match self {
            Self::Own(own) => own.name(),
            Self::Point => "Point",
            Self::EPost => "E-Post",
            Self::ELik => "E-Lik",
            Self::ELogLik => "E-Log-Lik",
        }
    }

    /// The method of this name in the study file.
    pub fn named(name: &str) -> Option<Self> {
        Self::known().into_iter().find(|method| method.name() == name)
    }

    /// What a result of it depends on besides the study, for those of the calling program.
    pub fn version(self) -> Option<String> {
        match self {
            Self::Own(own) => Some(own.fingerprint().to_owned()),
            _ => None,
        }
    }

    /// Whether it has no closed form even where the problem is linear-Gaussian.
    pub fn is_own_pool(self) -> bool {
        matches!(self, Self::Own(own) if own.kind() != OwnKind::Weights)
    }

    /// Whether the posteriors of all T-draws are made first, and weighted then.
    pub fn is_weighted(self) -> bool {
        self == Self::EPost || matches!(self, Self::Own(own) if own.kind() == OwnKind::Weights)
    }

    /// Whether the I-posterior is a mixture of the posteriors of the T-draws.
    pub fn is_mixture(self) -> bool {
        self == Self::ELik || self.is_weighted()
    }

    /// The method; `estimate` is what Point takes for the T-posterior.
    pub fn propagation(self, estimate: PointEstimate) -> Box<dyn Propagation> {
        match self {
            Self::Point => Box::new(point::Point(estimate)),
            Self::EPost => Box::new(e_post::EPost),
            Self::ELik => Box::new(e_lik::ELik),
            Self::ELogLik => Box::new(e_log_lik::ELogLik),
            Self::Own(registered) => Box::new(own::Own::new(registered)),
        }
    }
}
