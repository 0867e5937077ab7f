//! Which inputs an output depends on: Sobol' indices of its polynomial over the T-draws, with intervals that may reach zero.

use super::TPosterior;
use crate::draws::Sorted;
use crate::surrogate::Sobol;

/// Which share of the variance an index is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// What the input does by itself.
    First,
    /// That, and what it does together with others.
    Total,
}

/// Sobol' indices of one output.
///
/// An index is a sum of squares. Where a shrinkage prior keeps hundreds of terms that may as well be noise, no draw of such a sum is near zero, though
/// the exact index may be. So the lower half of each interval counts only terms that matter (see [`super::TermsReport::matter`]) as parts of the
/// input, and the upper half all; without such terms to tell apart both are the same.
pub struct Sensitivity {
    all: Sobol,
    certain: Option<Sobol>,
    weights: Vec<f64>,
}

impl Sensitivity {
    /// Number of inputs that have indices.
    pub fn n_inputs(&self) -> usize {
        self.all.first.rows()
    }

    /// Mean of an input's index over the T-draws, all terms counted.
    pub fn mean(&self, order: Order, d: usize) -> f64 {
        of(&self.all, order, d).iter().zip(&self.weights).map(|(value, weight)| value * weight).sum()
    }

    /// Quantiles of an input's index: those below one half count the terms that matter, the others all.
    pub fn quantiles<const N: usize>(&self, order: Order, d: usize, probabilities: [f64; N]) -> [f64; N] {
        let all = Sorted::new(of(&self.all, order, d), &self.weights);
        let certain = self.certain.as_ref().map(|certain| Sorted::new(of(certain, order, d), &self.weights));
        let lower = certain.as_ref().unwrap_or(&all);
        probabilities.map(|p| if p < 0.5 { lower.quantile(p) } else { all.quantile(p) })
    }
}

fn of(indices: &Sobol, order: Order, d: usize) -> &[f64] {
    match order {
        Order::First => indices.first.row(d),
        Order::Total => indices.total.row(d),
    }
}

impl TPosterior {
    /// Sobol' indices of an output, if its surrogate is a polynomial.
    pub fn sensitivity(&self, output: usize) -> Option<Sensitivity> {
        let (surrogate, report) = (&*self.outputs[output].surrogate, &self.outputs[output].report);
        let coefficients = self.output_draws(output).0;
        let all = Sobol::of(surrogate, &coefficients)?;
        let certain = report.terms.as_ref().and_then(|terms| {
            let matters = |name: &str| terms.matter.iter().any(|(term, _)| term == name);
            Sobol::of_certain(surrogate, &coefficients, &matters)
        });
        Some(Sensitivity { all, certain, weights: self.draws.weights() })
    }
}
