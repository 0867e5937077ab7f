//! Conditioning: with conditions and T-draws fixed, a class's residual sum of squares is one polynomial in the unknowns
//! per draw, of twice the surrogate's degree.

use crate::kernels;
use crate::kernels::panels::{Lanes, Panels, PullSums};
use crate::likelihood::{Group, Reduced};
use crate::matrix::Matrix;
use crate::special::gauss_legendre;
use crate::surrogate::{Basis, InputScale, Normalisation, Separated, Surrogate};
use faer::Mat;
use rayon::prelude::*;
use std::ops::Range;

/// Above this many interpolation points the general path is used: the product of unknowns is too large to tabulate.
const MAX_POINTS: usize = 20_000;

/// `R_c,s(omega) = sum_k coefficients[c][k, s] psi_k(omega)`: for each class the polynomial of every draw.
#[derive(Clone, Debug)]
pub(crate) struct Conditioned {
    basis: Basis,
    /// Places of its unknowns among all.
    places: Vec<usize>,
    /// K coefficients of S draws for each class.
    classes: Vec<Panels>,
}

/// Values and derivatives of the basis at the current unknowns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Features {
    x: Matrix,
    value: Matrix,
    table: Vec<f64>,
    bar: Matrix,
    by_own: Vec<f64>,
    sums: PullSums,
}

/// The triangle R of `root (factor phi, y - factor offset) = Q R` over these points, values `y` and roots of weights: the sum of squares of
/// `root (y - factor (offset + phi w))` is that of `R (-w, 1)`, with no more rows than there are weights and one, however many points there are.
fn reduce(separated: &Separated<'_>, values: &[(usize, f64, f64)], factor: f64) -> Matrix {
    let n = separated.width();
    let entry = |i: usize, b: usize| {
        let (point, y, root) = values[i];
        let (offset, known) = separated.at(point);
        root * if b < n { factor * known[b] } else { y - factor * offset }
    };
    let qr = Mat::from_fn(values.len(), n + 1, entry).qr();
    let r = qr.thin_R();
    Matrix::from_fn(r.nrows(), n + 1, |i, b| if i <= b { r[(i, b)] } else { 0.0 })
}

/// `out[s] += |R (-w_s, 1)|^2`.
fn add_residuals(r: &Matrix, weights: &Matrix, out: &mut [f64]) {
    let n = weights.rows();
    let mut row = vec![0.0; out.len()];
    for i in 0..r.rows() {
        row.fill(-r[(i, n)]);
        for b in i..n {
            kernels::add_affine(0.0, r[(i, b)], weights.row(b), &mut row);
        }
        kernels::add_squares(&row, out);
    }
}

impl Conditioned {
    /// The conditioned form, where the surrogate is a polynomial and this form is cheaper than the general one.
    ///
    /// `eta = shift + factor M~`; the first `n_unknowns` inputs of the surrogate are the unknowns, the others are
    /// `data.points`.
    pub(crate) fn new(
        surrogate: &dyn Surrogate,
        coefficients: &Matrix,
        (shift, factor): (f64, f64),
        n_unknowns: usize,
        data: &Reduced,
    ) -> Option<Self> {
        let separated = surrogate.separated(n_unknowns, &data.points)?;
        let (surrogate_basis, n_own) = (separated.basis(), separated.places().len());
        let degree = 2 * surrogate_basis.degree();
        let mut scales: Vec<InputScale> = surrogate_basis.scales()[..n_own].to_vec();
        let mut places = separated.places().to_vec();
        let mut n_nodes = vec![degree + 1; n_own];
        let basis = match separated.added() {
            None => Basis::new(scales.clone(), degree, Normalisation::Orthonormal),
            Some((place, (lower, upper))) => {
                scales.push(InputScale { lower, upper, log: false });
                places.push(place);
                n_nodes.push(3);
                Basis::with_added(scales.clone(), surrogate_basis.degree(), Normalisation::Orthonormal)
            }
        };
        let n_points = n_nodes.iter().try_fold(1_usize, |n, &own| n.checked_mul(own).filter(|n| *n <= MAX_POINTS))?;
        let general = separated.direct_cost();
        // Up to this factor the conditioned form still wins: it needs no matrix product and opens the closed form of E-Log-Lik.
        const WORTH: usize = 4;
        if data.groups.is_empty() || basis.len() * data.classes.len() > WORTH * general {
            return None;
        }
        // The residual polynomial has degree 2d in each unknown; its product with a basis function has degree 4d, which
        // 2d + 1 Gauss-Legendre nodes integrate exactly: projection loses nothing but rounding. In an added unknown d is one.
        let rules: Vec<_> = n_nodes.iter().map(|&n| gauss_legendre(n)).collect();
        let strides: Vec<usize> = (0..n_nodes.len()).map(|d| n_nodes[..d].iter().product()).collect();
        let digit = |q: usize, d: usize| (q / strides[d]) % n_nodes[d];
        let omega = Matrix::from_fn(n_points, scales.len(), |q, d| {
            scales[d].at_fraction(0.5 * (rules[d].0[digit(q, d)] + 1.0))
        });
        let mut psi = Matrix::default();
        basis.features(&omega, &mut psi, &mut Vec::new());
        let node_weight = |q: usize| (0..scales.len()).map(|d| 0.5 * rules[d].1[digit(q, d)]).product::<f64>();
        let projection = Matrix::from_fn(basis.len(), n_points, |k, q| psi[(q, k)] * node_weight(q));

        let of_unknowns = surrogate_basis.products(0..n_own, &omega);
        let of_unknowns =
            Matrix::from_fn(n_points, surrogate_basis.len(), |q, p| surrogate_basis.factor(p) * of_unknowns[(q, p)]);
        let added = |q: usize| separated.added().map_or(0.0, |_| omega[(q, n_own)]);
        let mut values = vec![Vec::new(); data.classes.len()];
        let value = |group: &Group| (group.point, group.mean - shift, group.weight.sqrt());
        data.groups.iter().for_each(|group| values[group.class].push(value(group)));
        let reduced: Vec<Matrix> = values.iter().map(|values| reduce(&separated, values, factor)).collect();
        let n_draws = coefficients.cols();
        let residuals: Vec<Matrix> = (0..n_points)
            .into_par_iter()
            .map(|q| {
                let weights = separated.weights(of_unknowns.row(q), added(q), coefficients);
                let mut out = Matrix::zeros(reduced.len(), n_draws);
                for (c, reduced) in reduced.iter().enumerate() {
                    add_residuals(reduced, &weights, out.row_mut(c));
                }
                out
            })
            .collect();
        let polynomials = |class: usize| {
            let residual = Matrix::from_fn(n_points, n_draws, |q, s| residuals[q][(class, s)]);
            let mut coefficients = Matrix::default();
            coefficients.set_product(&projection, &residual);
            Panels::new(&coefficients)
        };
        Some(Self { basis, places, classes: (0..data.classes.len()).map(polynomials).collect() })
    }

    /// Multiplications for the residuals of one draw.
    pub(crate) fn cost(&self) -> usize {
        self.basis.len() * self.classes.len()
    }

    /// The same for some of the draws.
    pub(crate) fn select(&self, draws: &[usize]) -> Self {
        let classes = self.classes.iter().map(|m| m.select(draws)).collect();
        Self { basis: self.basis.clone(), places: self.places.clone(), classes }
    }

    /// The polynomials averaged over draws with weights that sum to one, as a single draw.
    pub(crate) fn averaged(&self, weights: &[f64]) -> Self {
        let averaged = |class: &Panels| {
            let mut mean = Matrix::zeros(class.rows(), 1);
            class.pull(weights, &mut Vec::new(), mean.data_mut());
            Panels::new(&mean)
        };
        let classes = self.classes.iter().map(averaged).collect();
        Self { basis: self.basis.clone(), places: self.places.clone(), classes }
    }

    /// The polynomials of a class.
    pub(crate) fn class(&self, c: usize) -> &Panels {
        &self.classes[c]
    }

    /// Its own unknowns among all.
    fn set_own(&self, omega: &[f64], x: &mut Matrix) {
        x.reshape(1, self.places.len());
        x.row_mut(0).iter_mut().zip(&self.places).for_each(|(x, &place)| *x = omega[place]);
    }

    /// Values of the basis in the first row of `out`, and derivatives by each of its own unknowns in the others.
    pub(crate) fn values_and_slopes(&self, omega: &[f64], features: &mut Features, out: &mut Matrix) {
        self.set_own(omega, &mut features.x);
        self.basis.features_and_slopes(features.x.row(0), out, &mut features.table);
    }

    /// `by_omega += by_own`, each at its place.
    pub(crate) fn add_own(&self, by_own: &[f64], by_omega: &mut [f64]) {
        self.places.iter().zip(by_own).for_each(|(&place, by)| by_omega[place] += by);
    }

    /// Values of the basis at some rows of unknowns together; with `SLOPES` ready for [`Self::pull_points`].
    pub(crate) fn set_points<const SLOPES: bool>(
        &self,
        omega: &Matrix,
        rows: Range<usize>,
        out: &mut Vec<Lanes>,
        table: &mut Vec<Lanes>,
    ) {
        if self.has_all(omega.cols()) {
            return self.basis.features_of_points::<SLOPES>(omega, rows, out, table);
        }
        let own = Matrix::from_fn(rows.len(), self.places.len(), |p, d| omega[(rows.start + p, self.places[d])]);
        self.basis.features_of_points::<SLOPES>(&own, 0..rows.len(), out, table);
    }

    /// `by_omega[p, d] += sum_k bar[k][p] dpsi_k/domega_d` at the points that `table` was filled for, of which there are `n`.
    pub(crate) fn pull_points(
        &self,
        bar: &[Lanes],
        table: &[Lanes],
        n: usize,
        by_own: &mut Vec<Lanes>,
        by_omega: &mut Matrix,
    ) {
        by_own.clear();
        by_own.resize(self.places.len(), Lanes::default());
        self.basis.pull_points(bar, table, by_own);
        for (&place, by) in self.places.iter().zip(by_own) {
            (0..n).for_each(|p| by_omega[(p, place)] += by[p]);
        }
    }

    /// `residuals[c, s] = R_c,s(omega)`.
    pub(crate) fn residuals(&self, omega: &[f64], features: &mut Features, residuals: &mut Matrix) {
        self.set_own(omega, &mut features.x);
        self.basis.features(&features.x, &mut features.value, &mut features.table);
        for (c, class) in self.classes.iter().enumerate() {
            class.combine(features.value.row(0), residuals.row_mut(c));
        }
    }

    /// `by_omega[d] += sum_s bar[s] dR_c,s/domega_d` for class `c`, at the unknowns of the last [`Self::residuals`].
    pub(crate) fn pull(&self, c: usize, bar: &[f64], features: &mut Features, by_omega: &mut [f64]) {
        features.bar.reshape(1, self.basis.len());
        self.classes[c].pull(bar, &mut features.sums, features.bar.row_mut(0));
        let Features { x, table, bar, by_own, .. } = features;
        by_own.clear();
        by_own.resize(self.places.len(), 0.0);
        self.basis.pull_last(x.row(0), bar.row(0), by_own, table);
        self.add_own(by_own, by_omega);
    }

    /// Whether its unknowns are all of so many, in their order.
    fn has_all(&self, n_unknowns: usize) -> bool {
        self.places.len() == n_unknowns && self.places.iter().enumerate().all(|(d, place)| d == *place)
    }
}
