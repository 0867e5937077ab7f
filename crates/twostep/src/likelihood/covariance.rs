//! Normal measurements whose noise has a covariance, brought to independent sums of their means.
//!
//! Values `z = Z eta + e + noise`, `noise ~ N(0, s^2 C)`, where the rows of Z say which of the distinct inputs each is at, and every input has an
//! error e of its own. With `A = Z' C^-1 Z` the means `m = A^-1 Z' C^-1 z` have the covariance `s^2 A^-1`, and what is left,
//! `Q = z' C^-1 z - m' A m`, informs s alone. Turned to the eigenvectors of `A^-1`, the means are independent: one class for each eigenvalue.

use super::{Class, ErrorSharing, Group, Likelihood, Observed, Reduced, Values};
use crate::matrix::{Matrix, bits, cholesky, in_triangle};
use faer::linalg::solvers::Solve;
use faer::{Mat, Side};
use std::collections::HashMap;

/// Standard normal numbers with a correlation, from independent ones.
pub(crate) fn correlate(correlation: &Matrix, independent: &[f64]) -> Vec<f64> {
    let n = independent.len();
    let mut root: Vec<f64> = (0..n).flat_map(|i| correlation.row(i)[..=i].to_vec()).collect();
    // A correlation that was read is positive definite.
    let is_definite = cholesky(&mut root, n);
    debug_assert!(is_definite);
    (0..n).map(|i| (0..=i).map(|j| root[in_triangle(i, j)] * independent[j]).sum()).collect()
}

/// Means at distinct inputs, with their covariance.
#[derive(Clone, Debug)]
pub(crate) struct Correlated {
    /// Distinct known inputs, in rows.
    pub(crate) points: Matrix,
    means: Vec<f64>,
    /// That of the means, in units of what is unknown of it.
    covariance: Mat<f64>,
    /// Number of values beside the means, and Q.
    rest: (f64, f64),
    /// What of the log-likelihood depends on nothing.
    constant: f64,
    n: usize,
}

impl Correlated {
    /// `values.scales` are standard deviations, and `correlation` is that of the noise.
    ///
    /// # Errors
    /// Number of the measurement and why the family cannot produce it, or that the matrix is not positive definite.
    pub(crate) fn new(
        family: &dyn Likelihood,
        values: &Values<'_>,
        correlation: &Matrix,
        error: ErrorSharing,
    ) -> Result<Self, (usize, String)> {
        let n = values.y.len();
        let (mut z, mut constant, mut rows) = (Vec::new(), 0.0, Vec::new());
        let (mut of_row, mut points) = (Vec::new(), HashMap::new());
        for (i, &y) in values.y.iter().enumerate() {
            let Observed::Gaussian(value) =
                family.observe(y).map_err(|why| (i, why)).map(|(observed, log_jacobian)| {
                    constant += log_jacobian;
                    observed
                })?
            else {
                return Err((i, "has no normal density, which a covariance needs".to_owned()));
            };
            if values.sides.get(i).copied().flatten().is_some() {
                return Err((i, "is a bound, which has no place in a covariance".to_owned()));
            }
            z.push(value);
            let key = match error {
                ErrorSharing::Shared => bits(values.known.row(i)),
                ErrorSharing::Independent => vec![i as u64],
            };
            of_row.push(*points.entry(key).or_insert_with(|| {
                rows.push(i);
                rows.len() - 1
            }));
        }
        let sd = |i: usize| values.scales.map_or(1.0, |own| own[i]);
        let covariance = Mat::from_fn(n, n, |i, j| sd(i) * correlation[(i, j)] * sd(j));
        let indefinite = || (0, "is of a covariance that is not positive definite".to_owned());
        let factor = covariance.llt(Side::Lower).map_err(|_| indefinite())?;
        let which = Mat::from_fn(n, rows.len(), |i, g| f64::from(of_row[i] == g));
        let values_of = Mat::from_fn(n, 1, |i, _| z[i]);
        let solved = factor.solve(&which);
        let precision = which.transpose() * &solved;
        let of_means = precision.llt(Side::Lower).map_err(|_| indefinite())?;
        let means = of_means.solve(solved.transpose() * &values_of);
        let rest = &values_of - &which * &means;
        let squares = (rest.transpose() * factor.solve(&rest))[(0, 0)];
        let log_det = |l: &faer::linalg::solvers::Llt<f64>| {
            let l = l.L();
            (0..l.nrows()).map(|i| 2.0 * l[(i, i)].ln()).sum::<f64>()
        };
        let beside = (n - rows.len()) as f64;
        constant -= 0.5 * (beside * (2.0 * std::f64::consts::PI).ln() + log_det(&factor) + log_det(&of_means));
        let inverse = of_means.solve(Mat::<f64>::identity(rows.len(), rows.len()));
        Ok(Self {
            points: values.known.select_rows(&rows),
            means: (0..rows.len()).map(|g| means[(g, 0)]).collect(),
            covariance: Mat::from_fn(rows.len(), rows.len(), |i, j| 0.5 * (inverse[(i, j)] + inverse[(j, i)])),
            rest: (beside, squares),
            constant,
            n,
        })
    }

    /// Independent sums of the means, and their weights (a row each); `is_unknown` says whether the noise has an unknown factor. None where
    /// the covariance has no eigenvectors.
    pub(crate) fn decorrelated(&self, is_unknown: bool) -> Option<(Reduced, Matrix)> {
        // Equal eigenvalues are so up to rounding.
        const ALIKE: f64 = 1e-12;
        let eigen = self.covariance.self_adjoint_eigen(Side::Lower).ok()?;
        let (vectors, variances) = (eigen.U(), eigen.S().column_vector());
        let n = self.means.len();
        let weights = Matrix::from_fn(n, n, |j, i| vectors[(i, j)]);
        let mut out = self.empty();
        for j in 0..n {
            let sd = variances[j].max(0.0).sqrt();
            let last = out.classes.last_mut().filter(|class| {
                let own = class.sd.unwrap_or(1.0) * class.times;
                (sd - own).abs() <= ALIKE * sd
            });
            match last {
                Some(class) => class.groups += 1.0,
                None => out.classes.push(Class {
                    n: 1.0,
                    groups: 1.0,
                    scatter: 0.0,
                    within: 0.0,
                    sd: (!is_unknown).then_some(sd),
                    times: if is_unknown { sd } else { 1.0 },
                    extra: 0.0,
                }),
            }
            let mean = (0..n).map(|i| vectors[(i, j)] * self.means[i]).sum();
            out.groups.push(Group { class: out.classes.len() - 1, mean, scatter: 0.0, weight: 1.0, point: j });
        }
        out.points = Matrix::from_fn(n, 1, |j, _| j as f64);
        self.add_rest(&mut out);
        Some((out, weights))
    }

    /// The means as they are, as one class of noise with variance one, and their covariance.
    pub(crate) fn together(&self, is_unknown: bool) -> (Reduced, &Mat<f64>) {
        let n = self.means.len() as f64;
        let sd = (!is_unknown).then_some(1.0);
        let class = Class { n: 1.0, groups: n, scatter: 0.0, within: 0.0, sd, times: 1.0, extra: 0.0 };
        let groups = self.means.iter().enumerate();
        let mut out = Reduced {
            groups: groups.map(|(point, &mean)| Group { class: 0, mean, scatter: 0.0, weight: 1.0, point }).collect(),
            classes: vec![class],
            points: self.points.clone(),
            ..self.empty()
        };
        self.add_rest(&mut out);
        (out, &self.covariance)
    }

    fn empty(&self) -> Reduced {
        Reduced { constant: self.constant, n: self.n, ..Reduced::default() }
    }

    /// Adds what lies beside the means.
    fn add_rest(&self, out: &mut Reduced) {
        let (beside, squares) = self.rest;
        let class = &mut out.classes[0];
        match class.sd {
            Some(_) => out.constant -= 0.5 * squares,
            None => {
                class.within = beside;
                class.scatter = squares * class.times * class.times;
                out.constant += beside * class.times.ln();
            }
        }
    }
}
