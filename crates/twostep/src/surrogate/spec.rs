//! What the study file says about a surrogate, and the surrogate it describes.

use super::{
    Candidate, Choice, Formula, Function, GaussianProcess, GpSpec, InputScale, Normalisation, PolynomialChaos,
    SharedSurrogate, Surrogate, VaryingError,
};
use crate::error::{Error, Result};
use crate::prior::Marginal;
use std::sync::Arc;

/// The approximation error's scale: known, or with a prior.
#[derive(Clone, Debug, PartialEq)]
pub enum SigmaA {
    /// A known value, as in case study 1.
    Fixed(f64),
    /// Learned in the T-step.
    Prior(Marginal),
}

/// Which surrogate, with its own settings.
#[derive(Clone, Debug, PartialEq)]
pub enum SurrogateKind {
    /// Legendre polynomial chaos of total degree `degree`.
    Pce {
        /// Total degree.
        degree: usize,
        /// Scaling of the basis polynomials, which gives the coefficients' prior its meaning.
        normalisation: Normalisation,
        /// Prior of every coefficient.
        coefficients: Marginal,
        /// Terms are those whose degrees have `(sum_d j_d^q)^(1/q)` of at most `degree`: all of that total degree for one, few of
        /// many inputs below.
        q_norm: f64,
    },
    /// The same with a horseshoe prior of all coefficients together: few of many terms matter. Always orthonormal.
    SparsePce {
        /// Total degree.
        degree: usize,
        /// As above.
        q_norm: f64,
    },
    /// A Gaussian process on a polynomial trend.
    Gp {
        /// Total degree of the trend.
        degree: usize,
        /// Scaling of the trend's polynomials.
        normalisation: Normalisation,
        /// Mean and sd of the normal prior of the trend's coefficients.
        coefficients: (f64, f64),
        /// The process.
        gp: GpSpec,
    },
    /// A formula in the inputs' and parameters' names.
    Formula {
        /// The text.
        formula: String,
        /// Parameters with their priors, in file order.
        parameters: Vec<(String, Marginal)>,
    },
    /// A function of the calling program.
    Function(SharedSurrogate),
    /// A surrogate whose approximation error depends on the inputs, see [`VaryingError`].
    VaryingError {
        /// The surrogate.
        of: Box<SurrogateKind>,
        /// Total degree of the polynomial that `log sigma_A` is.
        degree: usize,
        /// Prior of every coefficient of this polynomial but the constant, which `sigma_a` gives.
        coefficients: Marginal,
    },
    /// The one of several that predicts runs best which it has not seen.
    Auto(Choice),
    /// Principal components of a series, whose scores have this surrogate each, of all inputs but the coordinate.
    Components(Box<SurrogateKind>),
}

/// A surrogate as the study file describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct SurrogateSpec {
    /// Which surrogate.
    pub kind: SurrogateKind,
    /// The approximation error.
    pub sigma_a: SigmaA,
    /// Whether outputs are shifted and scaled to mean 0 and sd 1 before training.
    pub standardise: bool,
}

impl SurrogateSpec {
    /// The function that it is, where it is one.
    pub fn function(&self) -> Option<&SharedSurrogate> {
        match &self.kind {
            SurrogateKind::Function(function) => Some(function),
            SurrogateKind::Pce { .. } | SurrogateKind::SparsePce { .. } | SurrogateKind::Gp { .. } => None,
            SurrogateKind::Formula { .. } | SurrogateKind::VaryingError { .. } => None,
            SurrogateKind::Auto(_) | SurrogateKind::Components(_) => None,
        }
    }

    /// Whether it is that of a series by principal components.
    pub fn has_components(&self) -> bool {
        matches!(self.kind, SurrogateKind::Components(_))
    }

    /// The surrogate of the scores, where it is that of a series by principal components.
    pub fn components(&self) -> Option<Self> {
        match &self.kind {
            SurrogateKind::Components(kind) => Some(Self { kind: (**kind).clone(), ..self.clone() }),
            _ => None,
        }
    }

    /// What is compared before one is taken for so many inputs and runs; none where it is chosen already.
    pub fn candidates(&self, dim: usize, runs: usize) -> Option<Vec<Candidate>> {
        match &self.kind {
            SurrogateKind::Auto(choice) => Some(choice.candidates(self, dim, runs)),
            // The coordinate is no input of the scores.
            SurrogateKind::Components(kind) => {
                let score = Self { kind: (**kind).clone(), ..self.clone() };
                let of_series = |(name, spec): Candidate| {
                    let kind = SurrogateKind::Components(Box::new(spec.kind));
                    (name, Self { kind, ..spec })
                };
                Some(score.candidates(dim - 1, runs)?.into_iter().map(of_series).collect())
            }
            _ => None,
        }
    }

    /// Whether one of several is to be chosen.
    pub fn is_open(&self) -> bool {
        match &self.kind {
            SurrogateKind::Auto(_) => true,
            SurrogateKind::Components(kind) => matches!(**kind, SurrogateKind::Auto(_)),
            _ => false,
        }
    }

    /// Whether its parameters are known once it is trained only: those of a function of the calling program, and the terms of a polynomial
    /// of which few matter.
    pub(crate) fn finds_parameters(&self) -> bool {
        matches!(self.kind, SurrogateKind::Function(_) | SurrogateKind::SparsePce { .. })
    }

    /// The surrogate over inputs with these names and scales; a function of the calling program without its parameters, which are
    /// known once it is trained, a sparse polynomial with all terms; of a series by principal components that of a score, since the
    /// components are found in the runs.
    pub fn build(&self, names: &[String], scales: &[InputScale]) -> Result<Box<dyn Surrogate>> {
        self.build_with(names, scales, &[])
    }

    /// As [`SurrogateSpec::build`]; a function of the calling program or a sparse polynomial has these parameters.
    pub fn build_with(
        &self,
        names: &[String],
        scales: &[InputScale],
        parameters: &[String],
    ) -> Result<Box<dyn Surrogate>> {
        Ok(match &self.kind {
            SurrogateKind::Pce { degree, normalisation, coefficients, q_norm } => {
                let coefficients = coefficients.clone();
                Box::new(PolynomialChaos::within(*degree, *q_norm, *normalisation, coefficients, scales.to_vec()))
            }
            SurrogateKind::SparsePce { degree, q_norm } => {
                let built = PolynomialChaos::sparse(*degree, *q_norm, scales.to_vec(), parameters);
                Box::new(built.map_err(|name| {
                    let found = format!("no term of the polynomial is called `{name}`");
                    Error::invalid("T-draws", found, "name coefficients by their degrees, c[0,1] for two inputs")
                })?)
            }
            SurrogateKind::Auto(_) => {
                return Err(Error::invalid(
                    "surrogate",
                    "which it is, the runs decide",
                    "name one, for example kind = \"pce\" with a degree",
                ));
            }
            SurrogateKind::Gp { degree, normalisation, coefficients, gp } => {
                Box::new(GaussianProcess::new(*degree, *normalisation, *coefficients, gp, names, scales))
            }
            SurrogateKind::Formula { formula, parameters } => {
                Box::new(Formula::new(formula, names, parameters.clone())?)
            }
            SurrogateKind::Function(function) => Box::new(Function::new(function.clone(), parameters, scales)),
            SurrogateKind::VaryingError { of, degree, coefficients } => {
                let inner = Self { kind: (**of).clone(), ..self.clone() }.build_with(names, scales, parameters)?;
                Box::new(VaryingError::new(Arc::from(inner), *degree, coefficients, scales))
            }
            SurrogateKind::Components(kind) => {
                let (score, n) = (Self { kind: (**kind).clone(), ..self.clone() }, names.len() - 1);
                score.build_with(&names[..n], &scales[..n], &[])?
            }
        })
    }
}
