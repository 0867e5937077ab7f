//! Surrogates `M~(x, c)`: cheap stand-ins for the simulator, evaluated for all T-draws at once.

mod auto;
pub mod conformance;
mod formula;
mod function;
mod gp;
mod pce;
mod placed;
mod separated;
mod series;
mod sobol;
mod spec;
mod sums;
mod varying;

pub use auto::{Candidate, Choice};
pub use formula::Formula;
pub use function::{BoundSurrogate, Function, FunctionDraws, SharedSurrogate, SurrogateFunction};
pub(crate) use gp::{Conditioned, GpRows, Hyper, NodeScratch, Nodes, factorise, shared_nodes};
pub use gp::{GaussianProcess, GpSpec, Kernel};
pub use pce::{Basis, InputScale, Normalisation, PolynomialChaos};
pub(crate) use pce::{legendre, n_terms};
pub use placed::{Added, Placed};
pub use separated::Separated;
pub use series::{Components, Series};
pub use sobol::Sobol;
pub use spec::{SigmaA, SurrogateKind, SurrogateSpec};
pub use sums::Sums;
pub use varying::{ErrorField, VaryingError};

use crate::matrix::Matrix;
use crate::prior::Marginal;
use std::sync::Arc;

/// A cheap stand-in `M~(x, c)` for the simulator, evaluated for all draws at once.
///
/// `x` holds N points in rows, in the natural units of the inputs; `c` holds P coefficients in rows and S draws in
/// columns, and may hold rows after these that are not its own. Derivatives are products with a vector, never Jacobians.
pub trait Surrogate: Send + Sync {
    /// Names of the P coefficients, for example `c[0,1]` or `alpha`.
    fn names(&self) -> &[String];

    /// Prior of each coefficient; none of one that is trained elsewhere.
    fn priors(&self) -> &[Marginal];

    /// `eta[i, s] = M~(x_i, c_s)`. Overwrites `eta`, reshaped to N x S.
    fn predict(&self, x: &Matrix, c: &Matrix, eta: &mut Matrix, scratch: &mut Scratch);

    /// `x_bar[i, d] += sum_s eta_bar[i, s] dM~(x_i, c_s) / dx_id`.
    fn pull_to_inputs(&self, x: &Matrix, c: &Matrix, eta_bar: &Matrix, x_bar: &mut Matrix, scratch: &mut Scratch);

    /// `c_bar[p, s] += sum_i eta_bar[i, s] dM~(x_i, c_s) / dc_ps`. Asked only of one that has priors.
    fn pull_to_coefficients(&self, x: &Matrix, c: &Matrix, eta_bar: &Matrix, c_bar: &mut Matrix, scratch: &mut Scratch);

    /// Whether [`Surrogate::pull_to_inputs`] is a derivative, rather than differences that cost many evaluations.
    fn has_gradient(&self) -> bool {
        true
    }

    /// Whether [`Surrogate::predict`] and its pull-back read the draws once for points that differ in their first inputs, so that these cost
    /// less together than one by one.
    fn reads_draws_once(&self) -> bool {
        false
    }

    /// The same surrogate for the draws `c` alone, which it is to be evaluated at many times, where knowing them saves time.
    fn for_draws(&self, c: &Matrix) -> Option<Arc<dyn Surrogate>> {
        let _ = c;
        None
    }

    /// Where `M~(x, c) = offset(x) + features(x) c`: offset (N) and features (N x P). Opens the exact T-step.
    fn linear(&self, x: &Matrix) -> Option<(Vec<f64>, Matrix)> {
        let _ = x;
        None
    }

    /// Whether `M~` is affine in its first `n_inputs` inputs together, for every c and whatever the other inputs are. Opens exact
    /// I-steps.
    fn is_affine_in(&self, n_inputs: usize) -> bool {
        let _ = n_inputs;
        false
    }

    /// The polynomial basis, where `M~` is a polynomial in its inputs.
    fn basis(&self) -> Option<&Basis> {
        None
    }

    /// `M~` at points of its inputs after the first `n_unknowns`, where it is a polynomial in these. Opens conditioning in the I-step.
    fn separated(&self, n_unknowns: usize, points: &Matrix) -> Option<Separated<'_>> {
        self.basis().map(|basis| Separated::new(basis, n_unknowns, points))
    }

    /// The series that it is, where it is one by principal components: its errors have a covariance over the coordinate.
    fn series(&self) -> Option<&Series> {
        None
    }

    /// How the size of its approximation error depends on the inputs, where it does.
    fn error_field(&self) -> Option<&ErrorField> {
        None
    }

    /// Whether its coefficients have a horseshoe prior together, and none one by one: trained in a way of its own.
    fn has_horseshoe(&self) -> bool {
        false
    }

    /// The Gaussian process that it is, where it is one: trained in a way of its own, and integrated out of E-Lik exactly.
    fn gaussian_process(&self) -> Option<&GaussianProcess> {
        None
    }
}

/// Reusable buffers: nothing is allocated after the first call with a given shape.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    /// Matrices, used by a surrogate in an order of its own.
    pub matrices: [Matrix; 2],
    /// Plain values.
    pub values: Vec<f64>,
    /// Those of a surrogate within this one.
    within: Option<Box<Scratch>>,
}

impl Scratch {
    /// The matrices, and the buffers of a surrogate within this one.
    fn within(&mut self) -> (&mut [Matrix; 2], &mut Self) {
        (&mut self.matrices, self.within.get_or_insert_default())
    }
}
