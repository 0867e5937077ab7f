//! Polynomial chaos: Legendre polynomials of total degree d over inputs scaled to [-1, 1], linear in the coefficients.

use super::{Scratch, Surrogate};
use crate::kernels;
use crate::kernels::panels::{Aligned, Lanes, POINTS};
use crate::matrix::Matrix;
use crate::prior::Marginal;
use std::ops::Range;

/// How one input is brought to [-1, 1], linearly or after taking logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InputScale {
    /// The value that becomes -1.
    pub lower: f64,
    /// The value that becomes 1.
    pub upper: f64,
    /// Whether logarithms are taken first.
    pub log: bool,
}

impl InputScale {
    /// The scaled input and its derivative by the natural one.
    pub fn scaled(&self, x: f64) -> (f64, f64) {
        self.scaled_by(x, self.width())
    }

    /// What is brought to [-1, 1] is so wide.
    fn width(&self) -> f64 {
        if self.log { (self.upper / self.lower).ln() } else { self.upper - self.lower }
    }

    /// [`InputScale::scaled`] with the width, which does not change.
    fn scaled_by(&self, x: f64, width: f64) -> (f64, f64) {
        match self.log {
            true => (2.0 * (x / self.lower).ln() / width - 1.0, 2.0 / (width * x)),
            false => (2.0 * (x - self.lower) / width - 1.0, 2.0 / width),
        }
    }

    /// Where in [0, 1] between the bounds the natural input `x` lies: the inverse of [`InputScale::at_fraction`].
    pub fn fraction(&self, x: f64) -> f64 {
        0.5 * (self.scaled(x).0 + 1.0)
    }

    /// The natural input at `u` in [0, 1] between the bounds.
    pub fn at_fraction(&self, u: f64) -> f64 {
        if self.log {
            self.lower * (u * (self.upper / self.lower).ln()).exp()
        } else {
            self.lower + u * (self.upper - self.lower)
        }
    }
}

/// The factor in front of the Legendre polynomial `P_j` of one input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Normalisation {
    /// `sqrt(2j + 1)`: orthonormal under the uniform distribution.
    #[default]
    Orthonormal,
    /// 1.
    None,
    /// `sqrt((2j + 1) / 2)`, but 1 for the constant: the authors' code.
    Lebesgue,
}

impl Normalisation {
    fn factor(self, degree: usize) -> f64 {
        let j = degree as f64;
        match self {
            Self::Orthonormal => (2.0 * j + 1.0).sqrt(),
            Self::None => 1.0,
            Self::Lebesgue if degree == 0 => 1.0,
            Self::Lebesgue => ((2.0 * j + 1.0) / 2.0).sqrt(),
        }
    }
}

/// `(n - 1) / n` of the recurrence of Legendre polynomials.
#[inline(always)]
fn ratio(n: usize) -> f64 {
    if n < RATIOS.len() { RATIOS[n] } else { (n as f64 - 1.0) / n as f64 }
}

/// That of the first degrees, which are all that most studies ask for.
const RATIOS: [f64; 32] = {
    let (mut ratios, mut n) = ([0.0; 32], 1);
    while n < 32 {
        ratios[n] = (n as f64 - 1.0) / n as f64;
        n += 1;
    }
    ratios
};

/// `P_0..P_d` at `u`, by the three-term recurrence.
pub(crate) fn legendre(u: f64, value: &mut [f64]) {
    value[0] = 1.0;
    if value.len() > 1 {
        value[1] = u;
    }
    for n in 2..value.len() {
        // P_n = u P_{n-1} + (n - 1)/n (u P_{n-1} - P_{n-2}).
        let product = u * value[n - 1];
        value[n] = product + ratio(n) * (product - value[n - 2]);
    }
}

/// Their derivatives.
fn legendre_slopes(value: &[f64], slope: &mut [f64]) {
    slope[0] = 0.0;
    if value.len() > 1 {
        slope[1] = 1.0;
    }
    for n in 2..value.len() {
        slope[n] = slope[n - 2] + (2.0 * n as f64 - 1.0) * value[n - 1];
    }
}

/// [`legendre_slopes`] of several points, times `du_dx`.
#[inline(always)]
fn slopes_of_points(value: &[Lanes], du_dx: &Lanes, slope: &mut [Lanes]) {
    slope[0] = Lanes::default();
    if value.len() > 1 {
        slope[1] = Aligned([1.0; POINTS]);
    }
    for n in 2..value.len() {
        for lane in 0..POINTS {
            slope[n][lane] = slope[n - 2][lane] + (2.0 * n as f64 - 1.0) * value[n - 1][lane];
        }
    }
    for slope in slope {
        for lane in 0..POINTS {
            slope[lane] *= du_dx[lane];
        }
    }
}

/// `C(dim + degree, dim)`, as a float, since it may be beyond any integer.
pub(crate) fn n_terms(dim: usize, degree: usize) -> f64 {
    let (small, large) = (dim.min(degree), dim.max(degree));
    (1..=small).fold(1.0, |terms, k| (terms * (large + k) as f64 / k as f64).round())
}

/// All exponent vectors of `dim` inputs with total degree at most `degree`: by total degree, then lexicographically.
/// There are `C(degree + dim, dim)` of them.
pub(crate) fn total_degree(dim: usize, degree: usize) -> Vec<Vec<usize>> {
    fn extend(rest: usize, sum: usize, prefix: &mut Vec<usize>, out: &mut Vec<Vec<usize>>) {
        if rest == 0 {
            if sum == 0 {
                out.push(prefix.clone());
            }
            return;
        }
        for degree in 0..=sum {
            prefix.push(degree);
            extend(rest - 1, sum - degree, prefix, out);
            prefix.pop();
        }
    }
    let mut out = Vec::new();
    for sum in 0..=degree {
        extend(dim, sum, &mut Vec::new(), &mut out);
    }
    out
}

/// The name of a term's coefficient, `c[0,1]` by its degrees.
fn term_name(degrees: &[usize]) -> String {
    format!("c[{}]", degrees.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
}

/// The degrees in the name of a term's coefficient.
fn degrees_of(name: &str) -> Option<Vec<usize>> {
    let inner = name.strip_prefix("c[")?.strip_suffix(']')?;
    inner.split(',').map(|degree| degree.parse().ok()).collect()
}

/// The terms of this total degree by the quasi-norm `(sum_d j_d^q)^(1/q)`: all for one, few of many inputs below.
fn terms_within(dim: usize, degree: usize, q_norm: f64) -> Vec<Vec<usize>> {
    let mut terms = total_degree(dim, degree);
    if q_norm != 1.0 {
        // A term of one input alone has exactly the degree, but for rounding.
        let most = (degree as f64).powf(q_norm) * (1.0 + 1e-9);
        let sum = |term: &[usize]| term.iter().map(|&j| (j as f64).powf(q_norm)).sum::<f64>();
        terms.retain(|term| sum(term) <= most);
    }
    terms
}

/// Tensor Legendre polynomials `psi_p(x) = factor_p prod_d P_{degrees[p][d]}(u_d(x_d))`.
#[derive(Clone, Debug)]
pub struct Basis {
    scales: Vec<InputScale>,
    /// What [`InputScale::width`] says of each.
    widths: Vec<f64>,
    degrees: Vec<Vec<usize>>,
    /// P x D: where a term finds its one-dimensional polynomial in the table of all.
    places: Vec<usize>,
    /// The same of those that are not constant, term after term: few of many inputs.
    active: Vec<usize>,
    /// Where the terms' begin in it, and where the last ends.
    ends: Vec<usize>,
    factors: Vec<f64>,
    max_degree: usize,
}

impl Basis {
    /// The basis of total degree `degree` over the inputs.
    pub fn new(scales: Vec<InputScale>, degree: usize, normalisation: Normalisation) -> Self {
        let degrees = total_degree(scales.len(), degree);
        Self::of_terms(scales, degrees, normalisation)
    }

    /// What squares of a polynomial of total degree `degree` plus the last input have: it times the polynomial, its square, and the
    /// polynomial's.
    pub(crate) fn with_added(scales: Vec<InputScale>, degree: usize, normalisation: Normalisation) -> Self {
        let n = scales.len() - 1;
        let with = |j: usize| {
            move |mut row: Vec<usize>| {
                row.push(j);
                row
            }
        };
        let squares = total_degree(n, 2 * degree).into_iter().map(with(0));
        let products = total_degree(n, degree).into_iter().map(with(1));
        let degrees = squares.chain(products).chain([with(2)(vec![0; n])]).collect();
        Self::of_terms(scales, degrees, normalisation)
    }

    /// The basis of these terms, given by their degrees in each input.
    fn of_terms(scales: Vec<InputScale>, degrees: Vec<Vec<usize>>, normalisation: Normalisation) -> Self {
        let degree = degrees.iter().map(|row| row.iter().sum()).max().unwrap_or(0);
        let factors = degrees.iter().map(|row| row.iter().map(|&j| normalisation.factor(j)).product()).collect();
        let place = |(d, j): (usize, &usize)| 2 * (degree + 1) * d + j;
        let places = degrees.iter().flat_map(|row| row.iter().enumerate().map(place)).collect();
        let is_active = |(_, j): &(usize, &usize)| **j > 0;
        let of_row = |row: &Vec<usize>| row.iter().enumerate().filter(is_active).map(place).collect::<Vec<_>>();
        let mut ends = vec![0];
        ends.extend(degrees.iter().scan(0, |end, row| {
            *end += row.iter().filter(|j| **j > 0).count();
            Some(*end)
        }));
        let active = degrees.iter().flat_map(of_row).collect();
        let widths = scales.iter().map(InputScale::width).collect();
        Self { scales, widths, degrees, places, active, ends, factors, max_degree: degree }
    }

    /// Number of basis functions P.
    pub fn len(&self) -> usize {
        self.degrees.len()
    }

    /// Never: the constant is always there.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Degrees of each basis function by input (P rows).
    pub fn degrees(&self) -> &[Vec<usize>] {
        &self.degrees
    }

    /// Places of the polynomials of basis function `p` that are not constant.
    fn active_in(&self, p: usize) -> &[usize] {
        &self.active[self.ends[p]..self.ends[p + 1]]
    }

    /// Names of the terms' coefficients, `c[0,1]` by their degrees.
    pub(crate) fn names(&self) -> Vec<String> {
        self.degrees.iter().map(|row| term_name(row)).collect()
    }

    /// Scales of the inputs.
    pub fn scales(&self) -> &[InputScale] {
        &self.scales
    }

    /// The factor of basis function `p` in front of its product of Legendre polynomials.
    pub fn factor(&self, p: usize) -> f64 {
        self.factors[p]
    }

    /// Whether all its functions are affine in the first `n_inputs` inputs together.
    pub(crate) fn is_affine_in(&self, n_inputs: usize) -> bool {
        let natural = self.scales[..n_inputs].iter().all(|scale| !scale.log);
        natural && self.degrees.iter().all(|degrees| degrees[..n_inputs].iter().sum::<usize>() <= 1)
    }

    /// Root mean square of basis function `p` over the inputs: that of P_j is `1 / sqrt(2j + 1)`.
    pub(crate) fn size(&self, p: usize) -> f64 {
        self.degrees[p].iter().fold(self.factors[p].abs(), |size, &j| size / ((2 * j + 1) as f64).sqrt())
    }

    /// Largest total degree.
    pub fn degree(&self) -> usize {
        self.max_degree
    }

    /// Fills `table[d]` with values of the one-dimensional polynomials at `x`, and leaves room for their derivatives.
    fn tabulate(&self, x: &[f64], table: &mut Vec<f64>) {
        let width = self.max_degree + 1;
        table.resize(2 * width * self.scales.len(), 0.0);
        let inputs = self.scales.iter().zip(&self.widths).zip(x);
        for (((scale, &of_scale), &x), chunk) in inputs.zip(table.chunks_exact_mut(2 * width)) {
            legendre(scale.scaled_by(x, of_scale).0, &mut chunk[..width]);
        }
    }

    /// Adds their derivatives by the natural inputs.
    fn tabulate_slopes(&self, x: &[f64], table: &mut [f64]) {
        let width = self.max_degree + 1;
        let inputs = self.scales.iter().zip(&self.widths).zip(x);
        for (((scale, &of_scale), &x), chunk) in inputs.zip(table.chunks_exact_mut(2 * width)) {
            let du_dx = scale.scaled_by(x, of_scale).1;
            let (value, slope) = chunk.split_at_mut(width);
            legendre_slopes(value, slope);
            slope.iter_mut().for_each(|d| *d *= du_dx);
        }
    }

    /// `out[i, p] = psi_p(x_i)`.
    pub fn features(&self, x: &Matrix, out: &mut Matrix, table: &mut Vec<f64>) {
        out.reshape(x.rows(), self.len());
        for i in 0..x.rows() {
            self.tabulate(x.row(i), table);
            let out = out.row_mut(i);
            match self.scales.len() {
                1 => self.terms::<1>(table, out),
                2 => self.terms::<2>(table, out),
                3 => self.terms::<3>(table, out),
                _ => {
                    for (p, (psi, factor)) in out.iter_mut().zip(&self.factors).enumerate() {
                        *psi = self.active_in(p).iter().fold(*factor, |f, &at| f * table[at]);
                    }
                }
            }
        }
    }

    /// `out[0, p] = psi_p(x)` and `out[d + 1, p] = dpsi_p(x)/dx_d` at one point.
    pub(crate) fn features_and_slopes(&self, x: &[f64], out: &mut Matrix, table: &mut Vec<f64>) {
        self.tabulate(x, table);
        self.tabulate_slopes(x, table);
        out.reshape(self.scales.len() + 1, self.len());
        let (psi, slopes) = out.data_mut().split_at_mut(self.len());
        match self.scales.len() {
            1 => self.terms_and_slopes::<1>(table, psi, slopes),
            2 => self.terms_and_slopes::<2>(table, psi, slopes),
            3 => self.terms_and_slopes::<3>(table, psi, slopes),
            _ => {
                slopes.fill(0.0);
                for (p, (psi, factor)) in psi.iter_mut().zip(&self.factors).enumerate() {
                    let active = self.active_in(p);
                    *psi = active.iter().fold(*factor, |f, &at| f * table[at]);
                    for &own in active {
                        slopes[self.input_of(own) * self.len() + p] = self.slope(*factor, own, active, table);
                    }
                }
            }
        }
    }

    /// The input whose one-dimensional polynomial stands at this place of a table.
    fn input_of(&self, place: usize) -> usize {
        place / (2 * (self.max_degree + 1))
    }

    /// `factor` times the derivative of a product of polynomials by the input of one of them.
    fn slope(&self, factor: f64, own: usize, active: &[usize], table: &[f64]) -> f64 {
        let others = active.iter().filter(|at| **at != own);
        others.fold(factor * table[own + self.max_degree + 1], |f, &at| f * table[at])
    }

    /// `out[p][lane] = psi_p` at the point in row `lane` of some rows of `x`, at most [`POINTS`]; lanes after these repeat the first. The same
    /// bits as [`Basis::features`]. With `SLOPES` the table is ready for [`Basis::pull_points`].
    pub(crate) fn features_of_points<const SLOPES: bool>(
        &self,
        x: &Matrix,
        rows: Range<usize>,
        out: &mut Vec<Lanes>,
        table: &mut Vec<Lanes>,
    ) {
        let (dim, width) = (self.scales.len(), self.max_degree + 1);
        out.resize(self.len(), Lanes::default());
        table.resize(2 * width * dim, Lanes::default());
        for (d, chunk) in table.chunks_exact_mut(2 * width).enumerate() {
            for lane in 0..POINTS {
                let row = rows.start + if lane < rows.len() { lane } else { 0 };
                // Where the derivative of the constant is to stand is room for that of the scaled input.
                (chunk[0][lane], chunk[width][lane]) = self.scales[d].scaled_by(x[(row, d)], self.widths[d]);
            }
        }
        kernels::dispatch(
            #[inline(always)]
            || {
                for chunk in table.chunks_exact_mut(2 * width) {
                    let (value, slope) = chunk.split_at_mut(width);
                    let (u, du_dx) = (value[0], slope[0]);
                    value[0] = Aligned([1.0; POINTS]);
                    if width > 1 {
                        value[1] = u;
                    }
                    for n in 2..width {
                        let ratio = ratio(n);
                        for lane in 0..POINTS {
                            let product = u[lane] * value[n - 1][lane];
                            value[n][lane] = product + ratio * (product - value[n - 2][lane]);
                        }
                    }
                    if SLOPES {
                        slopes_of_points(value, &du_dx, slope);
                    }
                }
                for (p, out) in out.iter_mut().enumerate() {
                    let mut psi = [self.factors[p]; POINTS];
                    for &at in &self.places[p * dim..(p + 1) * dim] {
                        for lane in 0..POINTS {
                            psi[lane] *= table[at][lane];
                        }
                    }
                    out.0 = psi;
                }
            },
        );
    }

    /// `x_bar[d][lane] += sum_p g[p][lane] dpsi_p/dx_d` at the points that [`Basis::features_of_points`] filled `table` for; the same bits as
    /// [`Basis::pull_row`].
    pub(crate) fn pull_points(&self, g: &[Lanes], table: &[Lanes], x_bar: &mut [Lanes]) {
        let width = self.max_degree + 1;
        kernels::dispatch(
            #[inline(always)]
            || {
                for (p, g) in g.iter().enumerate() {
                    let (factor, active) = (self.factors[p], self.active_in(p));
                    for &own in active {
                        let (slope, mut term) = (&table[own + width], Lanes::default());
                        for lane in 0..POINTS {
                            term[lane] = factor * g[lane] * slope[lane];
                        }
                        for &at in active {
                            if at != own {
                                for lane in 0..POINTS {
                                    term[lane] *= table[at][lane];
                                }
                            }
                        }
                        let x_bar = &mut x_bar[own / (2 * width)];
                        for lane in 0..POINTS {
                            x_bar[lane] += term[lane];
                        }
                    }
                }
            },
        );
    }

    /// The part of every basis function that some of the inputs have, without its factor: `out[i, p] = prod_d P_{degrees[p][d]}(u_d)`
    /// over those inputs alone, which the columns of `x` are.
    pub(crate) fn products(&self, inputs: std::ops::Range<usize>, x: &Matrix) -> Matrix {
        let width = self.max_degree + 1;
        let mut out = Matrix::from_fn(x.rows(), self.len(), |_, _| 1.0);
        let mut value = vec![0.0; width];
        for i in 0..x.rows() {
            for (d, &x) in inputs.clone().zip(x.row(i)) {
                legendre(self.scales[d].scaled(x).0, &mut value);
                for (out, degrees) in out.row_mut(i).iter_mut().zip(&self.degrees) {
                    *out *= value[degrees[d]];
                }
            }
        }
        out
    }

    /// `x_bar[d] += sum_p g[p] dpsi_p(x)/dx_d` at one point.
    pub(crate) fn pull_row(&self, x: &[f64], g: &[f64], x_bar: &mut [f64], table: &mut Vec<f64>) {
        self.tabulate(x, table);
        self.pull_last(x, g, x_bar, table);
    }

    /// [`Basis::pull_row`] at the point whose values [`Basis::features`] has left in `table`.
    pub(crate) fn pull_last(&self, x: &[f64], g: &[f64], x_bar: &mut [f64], table: &mut [f64]) {
        self.tabulate_slopes(x, table);
        match self.scales.len() {
            1 => return self.pull_terms::<1>(g, x_bar, table),
            2 => return self.pull_terms::<2>(g, x_bar, table),
            3 => return self.pull_terms::<3>(g, x_bar, table),
            _ => {}
        }
        for (p, (factor, weight)) in self.factors.iter().zip(g).enumerate() {
            let active = self.active_in(p);
            for &own in active {
                x_bar[self.input_of(own)] += self.slope(factor * weight, own, active, table);
            }
        }
    }

    /// The basis functions of `D` inputs, for which the loop over inputs has a known length.
    fn terms<const D: usize>(&self, table: &[f64], out: &mut [f64]) {
        for (psi, (places, factor)) in out.iter_mut().zip(self.places.as_chunks::<D>().0.iter().zip(&self.factors)) {
            *psi = places.iter().fold(*factor, |f, &at| f * table[at]);
        }
    }

    /// The same with their derivatives, input after input.
    fn terms_and_slopes<const D: usize>(&self, table: &[f64], psi: &mut [f64], slopes: &mut [f64]) {
        let (width, n) = (self.max_degree + 1, self.len());
        for (p, (places, factor)) in self.places.as_chunks::<D>().0.iter().zip(&self.factors).enumerate() {
            let values = places.map(|at| table[at]);
            psi[p] = values.iter().fold(*factor, |f, value| f * value);
            for d in 0..D {
                let others = values.iter().enumerate().filter(|(e, _)| *e != d);
                slopes[d * n + p] = others.fold(factor * table[places[d] + width], |f, (_, value)| f * value);
            }
        }
    }

    /// [`Self::pull_row`] of `D` inputs, at the point that `table` was filled for.
    fn pull_terms<const D: usize>(&self, g: &[f64], x_bar: &mut [f64], table: &[f64]) {
        let width = self.max_degree + 1;
        let mut sums = [0.0; D];
        for ((places, factor), weight) in self.places.as_chunks::<D>().0.iter().zip(&self.factors).zip(g) {
            let values = places.map(|at| table[at]);
            for d in 0..D {
                let mut term = factor * weight * table[places[d] + width];
                for (_, value) in values.iter().enumerate().filter(|(e, _)| *e != d) {
                    term *= value;
                }
                sums[d] += term;
            }
        }
        x_bar.iter_mut().zip(sums).for_each(|(bar, sum)| *bar += sum);
    }
}

/// `M~(x, c) = sum_p c_p psi_p(x)`.
#[derive(Clone, Debug)]
pub struct PolynomialChaos {
    basis: Basis,
    names: Vec<String>,
    priors: Vec<Marginal>,
    has_horseshoe: bool,
}

impl PolynomialChaos {
    /// The expansion of total degree `degree`, every coefficient with the same prior.
    pub fn new(degree: usize, normalisation: Normalisation, prior: Marginal, scales: Vec<InputScale>) -> Self {
        Self::within(degree, 1.0, normalisation, prior, scales)
    }

    /// The same with those terms only whose degrees have a quasi-norm of at most `degree`, see
    /// [`SurrogateKind::Pce`](super::SurrogateKind).
    pub fn within(
        degree: usize,
        q_norm: f64,
        normalisation: Normalisation,
        prior: Marginal,
        scales: Vec<InputScale>,
    ) -> Self {
        let degrees = terms_within(scales.len(), degree, q_norm);
        let basis = Basis::of_terms(scales, degrees, normalisation);
        Self { names: basis.names(), priors: vec![prior; basis.len()], basis, has_horseshoe: false }
    }

    /// An orthonormal expansion whose coefficients have a horseshoe prior together: all terms within this degree and quasi-norm, or those
    /// with these names.
    ///
    /// # Errors
    /// The first name that no term has.
    pub fn sparse(
        degree: usize,
        q_norm: f64,
        scales: Vec<InputScale>,
        terms: &[String],
    ) -> std::result::Result<Self, String> {
        let dim = scales.len();
        let of_term =
            |name: &String| degrees_of(name).filter(|degrees| degrees.len() == dim).ok_or_else(|| name.clone());
        let degrees = match terms {
            [] => terms_within(dim, degree, q_norm),
            terms => terms.iter().map(of_term).collect::<std::result::Result<_, _>>()?,
        };
        let basis = Basis::of_terms(scales, degrees, Normalisation::Orthonormal);
        Ok(Self { names: basis.names(), basis, priors: Vec::new(), has_horseshoe: true })
    }
}

impl Surrogate for PolynomialChaos {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn priors(&self) -> &[Marginal] {
        &self.priors
    }

    fn predict(&self, x: &Matrix, c: &Matrix, eta: &mut Matrix, scratch: &mut Scratch) {
        let [psi, _] = &mut scratch.matrices;
        self.basis.features(x, psi, &mut scratch.values);
        eta.set_product(psi, c);
    }

    fn pull_to_inputs(&self, x: &Matrix, c: &Matrix, eta_bar: &Matrix, x_bar: &mut Matrix, scratch: &mut Scratch) {
        let [_, g] = &mut scratch.matrices;
        g.set_product_transposed(eta_bar, c);
        for i in 0..x.rows() {
            self.basis.pull_row(x.row(i), g.row(i), x_bar.row_mut(i), &mut scratch.values);
        }
    }

    fn pull_to_coefficients(
        &self,
        x: &Matrix,
        _: &Matrix,
        eta_bar: &Matrix,
        c_bar: &mut Matrix,
        scratch: &mut Scratch,
    ) {
        let [psi, _] = &mut scratch.matrices;
        self.basis.features(x, psi, &mut scratch.values);
        c_bar.add_transposed_product(psi, eta_bar);
    }

    fn linear(&self, x: &Matrix) -> Option<(Vec<f64>, Matrix)> {
        let mut psi = Matrix::default();
        self.basis.features(x, &mut psi, &mut Vec::new());
        Some((vec![0.0; x.rows()], psi))
    }

    fn is_affine_in(&self, n_inputs: usize) -> bool {
        self.basis.is_affine_in(n_inputs)
    }

    fn basis(&self) -> Option<&Basis> {
        Some(&self.basis)
    }

    fn has_horseshoe(&self) -> bool {
        self.has_horseshoe
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance;
    use super::*;
    use crate::special::gauss_legendre;

    fn unit() -> InputScale {
        InputScale { lower: -1.0, upper: 1.0, log: false }
    }

    #[test]
    fn legendre_at_the_ends_and_the_middle() {
        let (mut p, mut d) = ([0.0; 6], [0.0; 6]);
        legendre(1.0, &mut p);
        legendre_slopes(&p, &mut d);
        assert_eq!(p, [1.0; 6]);
        // P_n'(1) = n (n + 1) / 2.
        assert_eq!(d, [0.0, 1.0, 3.0, 6.0, 10.0, 15.0]);
        legendre(-1.0, &mut p);
        assert_eq!(p, [1.0, -1.0, 1.0, -1.0, 1.0, -1.0]);
        legendre(0.0, &mut p);
        assert_eq!(p, [1.0, 0.0, -0.5, 0.0, 0.375, 0.0]);
    }

    #[test]
    fn number_of_terms_is_binomial() {
        assert_eq!(total_degree(3, 4).len(), 35);
        assert_eq!(total_degree(1, 5).len(), 6);
        assert_eq!(total_degree(8, 3).len(), 165);
        assert_eq!(total_degree(2, 1), [vec![0, 0], vec![0, 1], vec![1, 0]]);
    }

    /// With `(sqrt(a) + sqrt(b))^2 <= 4` there are the terms of one input alone, and the product of both.
    #[test]
    fn a_quasi_norm_keeps_few_terms_of_many_inputs() {
        assert_eq!(terms_within(2, 4, 1.0), total_degree(2, 4));
        let few = terms_within(2, 4, 0.5);
        assert!(few.len() == 10 && few.contains(&vec![1, 1]) && few.contains(&vec![0, 4]), "{few:?}");
    }

    #[test]
    fn sparse_terms_are_known_by_their_names() {
        let some = ["c[0,0]", "c[0,3]", "c[2,1]"].map(String::from);
        let pce = PolynomialChaos::sparse(0, 1.0, vec![unit(), unit()], &some).expect("terms of two inputs");
        assert_eq!((pce.names(), pce.basis.degrees()), (&some[..], &[vec![0, 0], vec![0, 3], vec![2, 1]][..]));
        for wrong in ["c[1]", "c[1,x]", "alpha"] {
            let refused = PolynomialChaos::sparse(0, 1.0, vec![unit(), unit()], &[wrong.to_owned()]);
            assert_eq!(refused.err().as_deref(), Some(wrong));
        }
    }

    #[test]
    fn orthonormal_under_the_uniform_distribution() {
        let basis = Basis::new(vec![unit(), unit()], 4, Normalisation::Orthonormal);
        // Degree 8 in each input: exact with 5 nodes.
        let (nodes, weights) = gauss_legendre(5);
        let x = Matrix::from_fn(25, 2, |i, d| nodes[if d == 0 { i / 5 } else { i % 5 }]);
        let mut psi = Matrix::default();
        basis.features(&x, &mut psi, &mut Vec::new());
        for a in 0..basis.len() {
            for b in 0..basis.len() {
                let inner: f64 =
                    (0..25).map(|i| 0.25 * weights[i / 5] * weights[i % 5] * psi[(i, a)] * psi[(i, b)]).sum();
                // 25 terms, each at most 9 * 9 in size.
                let bound = 25.0 * 81.0 * f64::EPSILON;
                assert!((inner - f64::from(u8::from(a == b))).abs() < bound);
            }
        }
    }

    #[test]
    fn points_together_have_the_bits_of_each_alone() {
        let scales = vec![InputScale { lower: 0.1, upper: 10.0, log: true }, unit()];
        for degree in [0, 1, 2, 9, 40] {
            let basis = Basis::new(scales.clone(), degree, Normalisation::Orthonormal);
            let x = Matrix::from_fn(
                20,
                2,
                |i, d| if d == 0 { 0.2 * 1.2_f64.powi(i as i32) } else { 0.1 * i as f64 - 0.97 },
            );
            let (mut alone, mut together) = (Matrix::default(), Vec::new());
            basis.features(&x, &mut alone, &mut Vec::new());
            let (mut table, mut bars) = (Vec::new(), vec![Lanes::default(); 2]);
            basis.features_of_points::<true>(&x, 3..16, &mut together, &mut table);
            let g: Vec<Lanes> = (0..basis.len())
                .map(|p| Aligned(std::array::from_fn(|lane| ((3 * p + 5 * lane) as f64).sin())))
                .collect();
            basis.pull_points(&g, &table, &mut bars);
            for lane in 0..13 {
                let (mut bar, own): (_, Vec<f64>) = ([0.0; 2], g.iter().map(|g| g[lane]).collect());
                basis.pull_row(x.row(3 + lane), &own, &mut bar, &mut Vec::new());
                assert!((0..2).all(|d| bar[d].to_bits() == bars[d][lane].to_bits()), "degree {degree}, lane {lane}");
            }
            for (p, lanes) in together.iter().enumerate() {
                let rows = (0..POINTS).map(|lane| if lane < 13 { 3 + lane } else { 3 });
                assert!(rows.zip(lanes.iter()).all(|(row, value)| alone[(row, p)].to_bits() == value.to_bits()));
            }
        }
    }

    #[test]
    fn slopes_are_those_that_are_pulled_back() {
        for dim in 1..=5 {
            let scales = [InputScale { lower: 0.1, upper: 10.0, log: true }, unit(), unit(), unit(), unit()];
            let basis = Basis::new(scales[..dim].to_vec(), 4, Normalisation::Orthonormal);
            let x: Vec<f64> = (0..dim).map(|d| 0.2 + 0.15 * d as f64).collect();
            let (mut alone, mut both, table) = (Matrix::default(), Matrix::default(), &mut Vec::new());
            basis.features(&Matrix::from_rows(1, dim, x.clone()), &mut alone, table);
            basis.features_and_slopes(&x, &mut both, table);
            assert_eq!(both.row(0), alone.row(0));
            let g: Vec<f64> = (0..basis.len()).map(|p| (3.0 * p as f64).sin()).collect();
            let mut bar = vec![0.0; dim];
            basis.pull_row(&x, &g, &mut bar, table);
            for (d, bar) in bar.iter().enumerate() {
                let terms = both.row(d + 1).iter().zip(&g).map(|(slope, g)| slope * g);
                let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                // Each term is rounded as often as there are factors, and summed with all before it.
                let bound = (basis.len() + 2 * dim + 4) as f64 * f64::EPSILON * size;
                assert!((sum - bar).abs() <= bound, "{dim} inputs, slope by {d}: {sum} {bar}");
            }
        }
    }

    #[test]
    fn conforms() {
        let prior: Marginal = "normal(0, 5)".parse().expect("a valid prior");
        let scales = vec![
            InputScale { lower: 1.0, upper: 3.0, log: false },
            InputScale { lower: 0.1, upper: 10.0, log: true },
            InputScale { lower: 1.0, upper: 14.0, log: false },
        ];
        let bounds: Vec<_> = scales.iter().map(|s| (s.lower, s.upper)).collect();
        let pce = PolynomialChaos::new(4, Normalisation::Lebesgue, prior, scales);
        conformance::check(&pce, &bounds).expect("conforms");
        assert_eq!(pce.names()[1], "c[0,0,1]");
    }
}
