//! A surrogate among the unknowns of an I-step that has more of them: those of other experiments, and an offset.

use super::{Scratch, Separated, Surrogate};
use crate::matrix::Matrix;
use crate::prior::Marginal;
use std::sync::Arc;

/// An unknown that is added to a surrogate.
#[derive(Clone, Debug, PartialEq)]
pub struct Added {
    /// Its place among the unknowns.
    pub place: usize,
    /// Where most of its prior lies; it may go beyond.
    pub range: (f64, f64),
    /// What it is multiplied by before it is added: the same everywhere, or for each number that the last known input may be.
    pub amounts: Vec<f64>,
}

/// `M~(x[own], c) + amount x[added]`, whose first inputs are all unknowns of an I-step, and the others the known ones.
#[derive(Clone)]
pub struct Placed {
    of: Arc<dyn Surrogate>,
    own: Vec<usize>,
    n_unknowns: usize,
    added: Option<Added>,
}

impl Placed {
    /// Of `n_unknowns` unknowns those in the places `own` are the surrogate's, in its order.
    pub fn new(of: Arc<dyn Surrogate>, own: Vec<usize>, n_unknowns: usize, added: Option<Added>) -> Self {
        Self { of, own, n_unknowns, added }
    }

    /// What the added unknown is multiplied by at inputs `x`.
    fn amount(&self, added: &Added, x: &[f64]) -> f64 {
        match added.amounts[..] {
            [same] => same,
            ref each => each[x[x.len() - 1] as usize],
        }
    }

    /// The inputs of the surrogate within.
    fn inner(&self, x: &Matrix, out: &mut Matrix) {
        out.reshape(x.rows(), self.own.len() + x.cols() - self.n_unknowns);
        for i in 0..x.rows() {
            let (unknowns, known) = x.row(i).split_at(self.n_unknowns);
            let (own, rest) = out.row_mut(i).split_at_mut(self.own.len());
            own.iter_mut().zip(&self.own).for_each(|(out, &place)| *out = unknowns[place]);
            rest.copy_from_slice(known);
        }
    }
}

impl Surrogate for Placed {
    fn names(&self) -> &[String] {
        self.of.names()
    }

    fn priors(&self) -> &[Marginal] {
        self.of.priors()
    }

    fn predict(&self, x: &Matrix, c: &Matrix, eta: &mut Matrix, scratch: &mut Scratch) {
        self.inner(x, &mut scratch.matrices[0]);
        let (matrices, within) = scratch.within();
        self.of.predict(&matrices[0], c, eta, within);
        if let Some(added) = &self.added {
            for i in 0..x.rows() {
                let shift = self.amount(added, x.row(i)) * x[(i, added.place)];
                eta.row_mut(i).iter_mut().for_each(|eta| *eta += shift);
            }
        }
    }

    fn pull_to_inputs(&self, x: &Matrix, c: &Matrix, eta_bar: &Matrix, x_bar: &mut Matrix, scratch: &mut Scratch) {
        self.inner(x, &mut scratch.matrices[0]);
        let ([inner, bar], within) = scratch.within();
        bar.reshape(inner.rows(), inner.cols());
        bar.data_mut().fill(0.0);
        self.of.pull_to_inputs(inner, c, eta_bar, bar, within);
        for i in 0..x.rows() {
            let (own, rest) = bar.row(i).split_at(self.own.len());
            let out = x_bar.row_mut(i);
            self.own.iter().zip(own).for_each(|(&place, bar)| out[place] += bar);
            out[self.n_unknowns..].iter_mut().zip(rest).for_each(|(out, bar)| *out += bar);
            if let Some(added) = &self.added {
                out[added.place] += self.amount(added, x.row(i)) * eta_bar.row(i).iter().sum::<f64>();
            }
        }
    }

    fn pull_to_coefficients(
        &self,
        x: &Matrix,
        c: &Matrix,
        eta_bar: &Matrix,
        c_bar: &mut Matrix,
        scratch: &mut Scratch,
    ) {
        self.inner(x, &mut scratch.matrices[0]);
        let (matrices, within) = scratch.within();
        self.of.pull_to_coefficients(&matrices[0], c, eta_bar, c_bar, within);
    }

    fn has_gradient(&self) -> bool {
        self.of.has_gradient()
    }

    fn reads_draws_once(&self) -> bool {
        self.of.reads_draws_once()
    }

    fn for_draws(&self, c: &Matrix) -> Option<Arc<dyn Surrogate>> {
        Some(Arc::new(Self { of: self.of.for_draws(c)?, ..self.clone() }))
    }

    fn linear(&self, x: &Matrix) -> Option<(Vec<f64>, Matrix)> {
        let mut inner = Matrix::default();
        self.inner(x, &mut inner);
        let (mut offset, features) = self.of.linear(&inner)?;
        if let Some(added) = &self.added {
            (offset.iter_mut().enumerate())
                .for_each(|(i, offset)| *offset += self.amount(added, x.row(i)) * x[(i, added.place)]);
        }
        Some((offset, features))
    }

    fn is_affine_in(&self, n_inputs: usize) -> bool {
        n_inputs <= self.n_unknowns && self.of.is_affine_in(self.own.len())
    }

    fn separated(&self, n_unknowns: usize, points: &Matrix) -> Option<Separated<'_>> {
        debug_assert_eq!(n_unknowns, self.n_unknowns, "placed among the unknowns of one I-step");
        let separated = self.of.separated(self.own.len(), points)?.placed(self.own.clone());
        Some(match &self.added {
            None => separated,
            Some(added) => {
                let amounts = (0..points.rows()).map(|i| self.amount(added, points.row(i))).collect();
                separated.adding(added.place, added.range, amounts)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{InputScale, Normalisation, PolynomialChaos, conformance};
    use super::*;

    #[test]
    fn conforms() {
        let scales = vec![InputScale { lower: -1.0, upper: 2.0, log: false }; 2];
        let prior = "normal(0, 1)".parse().expect("a prior");
        let of: Arc<dyn Surrogate> = Arc::new(PolynomialChaos::new(2, Normalisation::Orthonormal, prior, scales));
        // Its unknown is the third of four, and the last is added, at two known points.
        let added = Added { place: 3, range: (-1.0, 1.0), amounts: vec![0.7] };
        let placed = Placed::new(of.clone(), vec![2], 4, Some(added));
        conformance::check(&placed, &[(-1.0, 2.0); 5]).expect("conforms");
        let alone = Placed::new(of, vec![0], 2, None);
        conformance::check(&alone, &[(-1.0, 2.0); 3]).expect("conforms");
    }
}
