//! Posterior variances to where they come from, by the law of total variance: measurement noise, the surrogate's approximation
//! error, and what the T-step left unknown of it.

use super::likelihoods::{Likelihoods, OutputTerm, Workspace};
use super::propagation::Method;
use super::{IPosterior, InferSpec, Prepared, Target};
use crate::draws::pick_weighted;
use crate::error::Result;
use crate::kernels::log_mean_exp_weights;
use crate::likelihood::{Class, ErrorSharing, Row, RowKind, Side};
use crate::matrix::{Matrix, bits};
use crate::mcmc::Posterior;
use crate::mcmc::nuts::{self, Metric};
use crate::mcmc::smc::systematic;
use crate::special::{normal_cdf, normal_quantile};
use crate::stream::Stream;
use crate::surrogate::Scratch;
use crate::train::error_sds;
use rand::{Rng, RngExt};
use rand_distr::StandardNormal;
use rayon::prelude::*;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Most I-draws that moments are taken over, and fewest where each is dear.
const POOL: usize = 2000;
const SMALLEST_POOL: usize = 400;

/// Multiplications that the likelihoods of all T-draws at all I-draws of the pool may take: half a second, or less.
const WORK: f64 = 2e9;

/// Most T-draws; of more, these stand for all.
const MOST_T_DRAWS: usize = 2000;

/// Realised approximation errors to condition on.
const ERRORS: usize = 200;

/// Blocks of I-draws, T-draws and realised errors that the jackknife leaves out one after the other.
const BLOCKS: usize = 20;

/// Effective draws from which a variance can be had: with fewer, mean and draw are nearly the same.
const FEWEST: f64 = 2.0;

/// Rounds in which the evidences of E-Post's posteriors are made consistent, and the largest change of a logarithm, weighted
/// by the T-draws, that is left to do nothing: less than the chance of the pool.
const ROUNDS: usize = 20;
const CONSISTENT: f64 = 0.01;

/// Shares with a larger standard error are not worth showing. Rare parts of a posterior far from the others, which hold much of
/// its variance and few of its draws, make them so.
const MOST_ERROR: f64 = 0.15;

/// What the variance of an I-posterior is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// The method.
    pub method: Method,
    /// Unknowns, unknown sds and derived quantities that vary and have finite values everywhere.
    pub quantities: Vec<VarianceShares>,
    /// Posterior weight of each T-draw (of some, where there are more than 2000): how much the data favour it. They sum to one.
    pub weights: Vec<f64>,
}

/// One quantity's variance, `Var(omega | y)`, by the law of total variance over the joint posterior of omega, the T-draw s and
/// the errors e that the surrogate made at the measured points. Unknown sds of the measurements are part of omega: none of the
/// three conditions on them.
///
/// The shares sum to one. Each is an estimate that may lie below zero, where it is too small to be seen.
#[derive(Clone, Debug, PartialEq)]
pub struct VarianceShares {
    /// Its name.
    pub name: String,
    /// The variance.
    pub variance: f64,
    /// `E Var(omega | y, s, e)`: what would be left with a perfect simulator in the surrogate's place; measurement noise and prior.
    pub noise: VarianceShare,
    /// `E Var(E(omega | y, s, e) | y, s)`: the surrogate's approximation error; zero where it is not propagated.
    pub approximation: VarianceShare,
    /// `Var E(omega | y, s)`: what the T-step left unknown of the surrogate's coefficients.
    pub epistemic: VarianceShare,
}

impl VarianceShares {
    fn new(answer: &IPosterior, name: &str, shares: [f64; 3], squared_errors: [f64; 3]) -> Self {
        let [noise, approximation, epistemic] =
            std::array::from_fn(|i| VarianceShare { share: shares[i], error: squared_errors[i].sqrt() });
        let variance = answer.unknowns.iter().find(|u| u.name == *name).map_or(f64::NAN, |u| u.sd * u.sd);
        Self { name: name.to_owned(), variance, noise, approximation, epistemic }
    }

    /// Whether the shares are known well enough to speak of.
    pub fn are_known(&self) -> bool {
        [self.noise, self.approximation, self.epistemic].iter().all(|part| part.error <= MOST_ERROR)
    }
}

/// Part of a variance.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VarianceShare {
    /// As part of the whole.
    pub share: f64,
    /// Its Monte Carlo standard error, by I-draws, T-draws and realised errors: a jackknife over blocks of each.
    pub error: f64,
}

impl fmt::Display for VarianceShare {
    /// `41 % ± 3`, the error rounded up.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} % ± {:.0}", 100.0 * self.share.clamp(0.0, 1.0), (100.0 * self.error).ceil())
    }
}

/// Where the variance of `answer` comes from.
///
/// All moments are importance-weighted sums over the I-draws. They are draws of `prior * sum_s w_s L_s / Z_s`, so that the
/// posterior of T-draw s has their responsibilities as weights, and its posterior given errors e has `L_s,e` over the mixture. A
/// variance of weighted draws is multiplied by `n / (n - 1)` with their effective number n. The evidences `Z_s`, which E-Post
/// needs, are those under which every T-draw has its own weight among the I-draws. Errors are drawn given omega, s and y, which
/// for normal noise is a normal distribution.
///
/// Where too few I-draws have weight, as with many unknowns, short chains give a second, conditionally independent omega' for some
/// of them, and `Var(omega | .) = E (omega - omega')^2 / 2`.
///
/// `enough` has the epistemic share by the same law, as its `surrogate_share`: it retrains on subsets of the runs, and takes each
/// I-draw for its own T-draw only, where this one is of the answer as it is and weighs every I-draw for all T-draws. Its
/// `approximation_share` is another thing than the share here: by how much the variance falls where sigma_a is not propagated.
///
/// # Errors
/// Why there is none: E-Log-Lik, student-t noise with an approximation error, draws too few for it, or chains that cannot start.
pub fn budget(
    prepared: &Prepared,
    spec: &InferSpec,
    answer: &IPosterior,
    stream: Stream,
) -> std::result::Result<Budget, String> {
    let method = Method::named(&answer.method).ok_or_else(|| format!("`{}` is no method", answer.method))?;
    if matches!(method, Method::Own(_)) {
        return Err(format!("how {} weighs T-draws is its own business", method.name()));
    }
    if method == Method::ELogLik {
        return Err("E-Log-Lik averages the T-draws before it infers, so that no part of its variance is theirs".into());
    }
    // Shares of T-draws, also where the answer integrates over them.
    let (mut likelihoods, mut log_alpha) = match prepared.is_marginal(method) {
        true => (prepared.likelihoods.clone(), prepared.log_alpha().to_vec()),
        false => prepared.reduced(method, &*method.propagation(spec.point)),
    };
    if log_alpha.len() > MOST_T_DRAWS {
        let weights: Vec<f64> = log_alpha.iter().map(|a| a.exp()).collect();
        let kept: Vec<usize> = systematic(&weights, MOST_T_DRAWS, &mut stream.named("t-draws").rng()).collect();
        likelihoods = likelihoods.select(&kept);
        log_alpha = vec![-(MOST_T_DRAWS as f64).ln(); MOST_T_DRAWS];
    }
    let has_errors = likelihoods.has_errors();
    if has_errors {
        refuse(&likelihoods)?;
    }
    let pool = Pool::new(prepared, &likelihoods, answer)?;
    let mut log_likelihoods: Vec<Vec<f64>> = pool
        .draws
        .par_iter()
        .map_init(Workspace::default, |workspace, x| {
            let (mut l, n) = (vec![0.0; likelihoods.n_draws()], likelihoods.n_unknowns());
            likelihoods.set_unknowns(&x[..n], workspace);
            likelihoods.log_likelihoods(&x[n..], workspace, &mut l);
            l
        })
        .collect();
    let offsets =
        if method == Method::EPost { pool.consistent(&log_alpha, &log_likelihoods) } else { log_alpha.clone() };
    // The logarithm of the pool's density over the prior's; what is left in place of the likelihoods are responsibilities.
    let log_pooled: Vec<f64> = log_likelihoods.par_iter_mut().map(|l| log_mean_exp_weights(&offsets, l)).collect();
    let responsibilities = log_likelihoods;
    let by_draw = pool.sums(log_alpha.len(), |j, s| responsibilities[j][s]);
    let errors = has_errors.then(|| {
        let realised = Realised::draw(&likelihoods, &pool, &responsibilities, stream.named("errors"));
        let weights = realised.weights(&likelihoods, &pool, &log_pooled);
        (pool.sums(realised.of.len(), |j, k| weights[j][k]), realised.of)
    });
    let parts = Parts { pool: &pool, by_draw, errors, log_alpha };
    let quantities = match parts.is_known() {
        true => parts.shares(answer),
        false => Pairs { prepared, spec, likelihoods: &likelihoods, pool: &pool }
            .shares(answer, &responsibilities, stream.named("pairs"))
            .map_err(|error| error.to_string())?,
    };
    Ok(Budget { method, quantities, weights: parts.weights() })
}

/// Noise whose errors have no normal distribution given the measurements.
fn refuse(likelihoods: &Likelihoods) -> std::result::Result<(), String> {
    for term in likelihoods.terms() {
        let is_known = |row: &Row| row.kind == RowKind::Side(Side::Below) && term.family.adds_errors();
        if !term.data.rows.iter().all(is_known) {
            return Err(format!("errors of the surrogate cannot be told from {} noise", term.family.name()));
        }
        let sds = term.data.classes.iter().map(|class| class.sd).chain(term.data.rows.iter().map(|row| row.sd));
        if sds.flatten().any(|sd| sd == 0.0) {
            return Err("a measurement without noise leaves nothing but the surrogate's error".into());
        }
    }
    Ok(())
}

/// Distinct I-draws with how often each occurs, and what is asked of them.
struct Pool<'a> {
    draws: Vec<&'a [f64]>,
    counts: Vec<f64>,
    /// Place of each I-draw among the distinct ones.
    places: Vec<usize>,
    names: Vec<String>,
    /// Quantities in rows, with mean 0 and variance 1.
    values: Matrix,
}

impl<'a> Pool<'a> {
    fn new(
        prepared: &Prepared,
        likelihoods: &Likelihoods,
        answer: &'a IPosterior,
    ) -> std::result::Result<Self, String> {
        let available = answer.draws.len();
        let dearest = likelihoods.n_draws() as f64 * likelihoods.cost();
        let n = ((WORK / dearest) as usize).clamp(SMALLEST_POOL, POOL).min(available);
        let mut seen: HashMap<Vec<u64>, usize> = HashMap::new();
        let (mut draws, mut counts, mut places): (Vec<&[f64]>, Vec<f64>, Vec<usize>) = Default::default();
        for i in 0..n {
            let x = &answer.draws[i * available / n];
            let place = *seen.entry(bits(x)).or_insert(draws.len());
            if place == draws.len() {
                draws.push(x);
                counts.push(0.0);
            }
            counts[place] += 1.0;
            places.push(place);
        }
        if draws.len() < 2 * BLOCKS {
            return Err(format!("{} different I-draws are too few for it", draws.len()));
        }
        let (mut names, mut rows) = (Vec::new(), Vec::new());
        for (name, f) in prepared.quantities() {
            let row: Vec<f64> = draws.iter().map(|x| f(x)).collect();
            let mean = row.iter().zip(&counts).map(|(v, c)| v * c).sum::<f64>() / n as f64;
            let variance = row.iter().zip(&counts).map(|(v, c)| c * (v - mean).powi(2)).sum::<f64>() / n as f64;
            // Rounding of the mean makes a constant vary.
            if variance.is_finite() && variance.sqrt() > 64.0 * f64::EPSILON * mean.abs() {
                names.push(name);
                rows.extend(row.iter().map(|v| (v - mean) / variance.sqrt()));
            }
        }
        Ok(Self { values: Matrix::from_rows(names.len(), draws.len(), rows), draws, counts, places, names })
    }

    fn block(&self, b: usize) -> std::ops::Range<usize> {
        let n = self.draws.len();
        b * n / BLOCKS..(b + 1) * n / BLOCKS
    }

    /// What makes the variance of the pool, without a block of it, unbiased: draws that occur twice are one.
    fn unbiased(&self, without: Option<usize>) -> f64 {
        let kept = (0..BLOCKS).filter(|b| Some(*b) != without).flat_map(|b| self.block(b));
        let (n, squares) = kept.map(|j| self.counts[j]).fold((0.0, 0.0), |(n, sq), c| (n + c, sq + c * c));
        n * n / (n * n - squares)
    }

    /// Sums over each block of the pool, of so many components.
    fn sums(&self, components: usize, weight: impl Fn(usize, usize) -> f64 + Sync) -> Vec<Sums> {
        let of_block = |b: usize| {
            let mut sums = Sums::new(self.names.len(), components);
            for j in self.block(b) {
                let count = self.counts[j];
                for s in 0..components {
                    let w = count * weight(j, s);
                    sums.weight[s] += w;
                    sums.square[s] += w * w;
                }
                for q in 0..self.names.len() {
                    let value = self.values[(q, j)];
                    let (first, second) = (sums.first.row_mut(q), sums.second.row_mut(q));
                    for s in 0..components {
                        let w = count * weight(j, s) * value;
                        first[s] += w;
                        second[s] += w * value;
                    }
                }
            }
            sums
        };
        (0..BLOCKS).into_par_iter().map(of_block).collect()
    }

    /// Log-offsets under which the responsibilities of every T-draw have its own weight as mean.
    fn consistent(&self, log_alpha: &[f64], log_likelihoods: &[Vec<f64>]) -> Vec<f64> {
        let n: f64 = self.counts.iter().sum();
        let largest = |s: usize| log_likelihoods.iter().map(|l| l[s]).fold(f64::NEG_INFINITY, f64::max);
        let mut offsets: Vec<f64> = log_alpha
            .iter()
            .enumerate()
            .map(|(s, a)| Some(a - largest(s)).filter(|o| o.is_finite()).unwrap_or(f64::NEG_INFINITY))
            .collect();
        for _ in 0..ROUNDS {
            let of_block = |b: usize| {
                let (mut sum, mut r) = (vec![0.0; offsets.len()], vec![0.0; offsets.len()]);
                for j in self.block(b) {
                    r.copy_from_slice(&log_likelihoods[j]);
                    log_mean_exp_weights(&offsets, &mut r);
                    sum.iter_mut().zip(&r).for_each(|(sum, r)| *sum += self.counts[j] * r);
                }
                sum
            };
            let blocks: Vec<Vec<f64>> = (0..BLOCKS).into_par_iter().map(of_block).collect();
            let mut change = 0.0;
            for (s, offset) in offsets.iter_mut().enumerate() {
                let mean = blocks.iter().map(|block| block[s]).sum::<f64>() / n;
                // No I-draw knows this T-draw.
                if mean > 0.0 {
                    let step = log_alpha[s] - mean.ln();
                    *offset += step;
                    change += log_alpha[s].exp() * step.abs();
                }
            }
            if change < CONSISTENT {
                break;
            }
        }
        offsets
    }
}

/// Weighted sums of several components: weights, their squares, and for each quantity (row) weighted values and squares.
#[derive(Clone)]
struct Sums {
    weight: Vec<f64>,
    square: Vec<f64>,
    first: Matrix,
    second: Matrix,
}

impl Sums {
    fn new(quantities: usize, components: usize) -> Self {
        Self {
            weight: vec![0.0; components],
            square: vec![0.0; components],
            first: Matrix::zeros(quantities, components),
            second: Matrix::zeros(quantities, components),
        }
    }

    fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.weight[..], &other.weight[..]),
            (&mut self.square[..], &other.square[..]),
            (self.first.data_mut(), other.first.data()),
            (self.second.data_mut(), other.second.data()),
        ];
        for (own, other) in pairs {
            own.iter_mut().zip(other).for_each(|(own, other)| *own += other);
        }
    }

    /// All blocks but one.
    fn without(blocks: &[Self], left_out: Option<usize>) -> Self {
        let mut kept = (0..blocks.len()).filter(|b| Some(*b) != left_out);
        let mut out = kept.next().map(|b| blocks[b].clone()).unwrap_or_else(|| Self::new(0, 0));
        kept.for_each(|b| out.add(&blocks[b]));
        out
    }

    /// The unbiased variance of quantity `q` in component `s`, where enough draws make it up.
    fn variance(&self, q: usize, s: usize) -> Option<f64> {
        let (w, square) = (self.weight[s], self.square[s]);
        (w * w >= FEWEST * square && square > 0.0)
            .then(|| (w * self.second[(q, s)] - self.first[(q, s)].powi(2)) / (w * w - square))
    }
}

/// Everything the shares are made of.
struct Parts<'a> {
    pool: &'a Pool<'a>,
    /// By T-draw, in blocks of I-draws.
    by_draw: Vec<Sums>,
    /// By realised errors, in blocks of I-draws, with the T-draw of each.
    errors: Option<(Vec<Sums>, Vec<usize>)>,
    log_alpha: Vec<f64>,
}

/// Share of the posterior, or of the realised errors, that must have a variance of its own.
const KNOWN_DRAWS: f64 = 0.5;
const KNOWN_ERRORS: f64 = 0.9;

impl Parts<'_> {
    fn weights(&self) -> Vec<f64> {
        let all = Sums::without(&self.by_draw, None);
        let total: f64 = all.weight.iter().sum();
        all.weight.iter().map(|w| w / total).collect()
    }

    fn sums(&self, left_out: Option<usize>) -> (Sums, Option<Sums>) {
        let errors = self.errors.as_ref().map(|(blocks, _)| Sums::without(blocks, left_out));
        (Sums::without(&self.by_draw, left_out), errors)
    }

    fn shares(&self, answer: &IPosterior) -> Vec<VarianceShares> {
        let n_errors = self.errors.as_ref().map_or(0, |(_, of)| of.len());
        let all = self.sums(None);
        let left_out: Vec<(Sums, Option<Sums>)> = (0..BLOCKS).map(|b| self.sums(Some(b))).collect();
        let names = self.pool.names.iter().enumerate();
        names
            .map(|(q, name)| {
                let everything = self.one(q, &all, None, |_| true, |_| true);
                let without =
                    left_out.iter().enumerate().map(|(b, kept)| self.one(q, kept, Some(b), |_| true, |_| true));
                let mut squares = spread(without.collect());
                let n_draws = self.log_alpha.len();
                if n_draws > 1 {
                    // Draws of chains stand next to their like, and nodes of a rule, which have weights, do not.
                    let equal = self.log_alpha.iter().all(|a| *a == self.log_alpha[0]);
                    let blocks = BLOCKS.min(n_draws);
                    let block = |s: usize| if equal { s * blocks / n_draws } else { s % blocks };
                    let without = (0..blocks).map(|b| self.one(q, &all, None, |s| block(s) != b, |_| true));
                    squares = sum(squares, spread(without.collect()));
                }
                if n_errors > 0 {
                    let without =
                        (0..BLOCKS).map(|b| self.one(q, &all, None, |_| true, |k| k * BLOCKS / n_errors != b));
                    squares = sum(squares, spread(without.collect()));
                }
                VarianceShares::new(answer, name, everything, squares)
            })
            .collect()
    }

    /// Whether enough of the posterior, and of the realised errors, have variances of their own.
    fn is_known(&self) -> bool {
        let (all, errors) = self.sums(None);
        let known = |sums: &Sums, s: usize| sums.weight[s].powi(2) >= FEWEST * sums.square[s] && sums.square[s] > 0.0;
        let total: f64 = all.weight.iter().sum();
        let of_draws: f64 = (0..all.weight.len()).filter(|&s| known(&all, s)).map(|s| all.weight[s]).sum();
        let of_errors = errors.is_none_or(|errors| {
            let n = errors.weight.len();
            (0..n).filter(|&k| known(&errors, k)).count() as f64 >= KNOWN_ERRORS * n as f64
        });
        of_draws >= KNOWN_DRAWS * total && of_errors
    }

    /// Shares of noise, approximation error and epistemic uncertainty, by some of the T-draws and some of the errors, without a
    /// block of the pool.
    fn one(
        &self,
        q: usize,
        (all, errors): &(Sums, Option<Sums>),
        without: Option<usize>,
        has_draw: impl Fn(usize) -> bool,
        has_error: impl Fn(usize) -> bool,
    ) -> [f64; 3] {
        let n_draws = all.weight.len();
        let mut within = Mean::default();
        let (mut first, mut second) = (Mean::default(), Mean::default());
        for s in (0..n_draws).filter(|&s| has_draw(s)) {
            let weight = all.weight[s];
            if let Some(variance) = all.variance(q, s) {
                within.add(weight, variance);
            }
            if weight > 0.0 {
                first.add(weight, all.first[(q, s)] / weight);
                second.add(weight, all.second[(q, s)] / weight);
            }
        }
        let total = (second.value() - first.value().powi(2)) * self.pool.unbiased(without);
        let within = if n_draws == 1 { 1.0 } else { within.value() / total };
        let ratio = errors.as_ref().zip(self.errors.as_ref()).map_or(1.0, |(sums, (_, of))| {
            let (mut given, mut plain) = (0.0, 0.0);
            for (k, &s) in of.iter().enumerate().filter(|(k, _)| has_error(*k)) {
                if let (Some(v), Some(w)) = (sums.variance(q, k), all.variance(q, s)) {
                    given += v;
                    plain += w;
                }
            }
            given / plain
        });
        [within * ratio, within * (1.0 - ratio), 1.0 - within]
    }
}

/// A weighted mean.
#[derive(Default)]
struct Mean {
    weight: f64,
    sum: f64,
}

impl Mean {
    fn add(&mut self, weight: f64, value: f64) {
        self.weight += weight;
        self.sum += weight * value;
    }

    fn value(&self) -> f64 {
        self.sum / self.weight
    }
}

/// Squared standard errors from estimates that leave out a block each.
fn spread(left_out: Vec<[f64; 3]>) -> [f64; 3] {
    let n = left_out.len() as f64;
    std::array::from_fn(|i| {
        let mean = left_out.iter().map(|v| v[i]).sum::<f64>() / n;
        (n - 1.0) / n * left_out.iter().map(|v| (v[i] - mean).powi(2)).sum::<f64>()
    })
}

fn sum(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    std::array::from_fn(|i| a[i] + b[i])
}

/// Measurements from which realised errors of the surrogate are taken off, and the T-draw and I-draw that these are of.
struct Realised {
    of: Vec<usize>,
    drawn: Vec<usize>,
    terms: Vec<Shifted>,
}

/// One output's measurements without the errors: realisations in columns.
struct Shifted {
    coefficients: Matrix,
    /// Means of groups.
    means: Matrix,
    /// Bounds.
    bounds: Matrix,
    /// What the scatter within groups of a class has become larger by, where every measurement has an error of its own.
    scatter: Matrix,
}

impl Realised {
    /// Errors given I-draws, evenly taken from the pool, and a T-draw of each.
    fn draw(likelihoods: &Likelihoods, pool: &Pool<'_>, responsibilities: &[Vec<f64>], stream: Stream) -> Self {
        let n = ERRORS.min(pool.places.len());
        let drawn: Vec<usize> = (0..n).map(|k| pool.places[k * pool.places.len() / n]).collect();
        let of: Vec<usize> = drawn
            .iter()
            .enumerate()
            .map(|(k, &j)| pick_weighted(&responsibilities[j], &mut stream.named("t-draws").at(k as u64).rng()))
            .collect();
        let n_unknowns = likelihoods.n_unknowns();
        let terms = likelihoods.terms().enumerate().map(|(o, term)| {
            let mut out = Shifted::new(term, &of);
            for k in 0..n {
                let x = pool.draws[drawn[k]];
                let sigma_a = term.sigma_a.as_ref().map_or(0.0, |sigma_a| sigma_a[of[k]]);
                let mut rng = stream.named("outputs").at(o as u64).at(k as u64).rng();
                out.take_off(k, term, x, n_unknowns, sigma_a, &mut rng);
            }
            out
        });
        Self { terms: terms.collect(), of, drawn }
    }

    /// Importance weights of the pool for the posterior given each realisation. An I-draw that errors were drawn from knows
    /// them, and has none.
    fn weights(&self, likelihoods: &Likelihoods, pool: &Pool<'_>, log_pooled: &[f64]) -> Vec<Vec<f64>> {
        let n_unknowns = likelihoods.n_unknowns();
        let mut rows: Vec<Vec<f64>> = pool
            .draws
            .par_iter()
            .zip(log_pooled)
            .map_init(Default::default, |scratch: &mut (Matrix, Scratch), (x, pooled)| {
                let mut row = vec![-pooled; self.of.len()];
                for (term, shifted) in likelihoods.terms().zip(&self.terms) {
                    shifted.add_log_likelihoods(term, x, n_unknowns, scratch, &mut row);
                }
                row
            })
            .collect();
        for (k, &j) in self.drawn.iter().enumerate() {
            rows[j][k] = f64::NEG_INFINITY;
        }
        let largest: Vec<f64> =
            (0..self.of.len()).map(|k| rows.iter().map(|row| row[k]).fold(f64::NEG_INFINITY, f64::max)).collect();
        let to_weight = |(w, most): (&mut f64, &f64)| *w = if w.is_finite() { (*w - most).exp() } else { 0.0 };
        rows.par_iter_mut().for_each(|row| row.iter_mut().zip(&largest).for_each(to_weight));
        rows
    }
}

/// Inputs of an output's surrogate at its measured points.
fn inputs(term: &OutputTerm, x: &[f64], n_unknowns: usize) -> Matrix {
    let points = &term.data.points;
    Matrix::from_fn(points.rows(), n_unknowns + points.cols(), |i, d| {
        if d < n_unknowns { x[d] } else { points[(i, d - n_unknowns)] }
    })
}

impl Shifted {
    /// Room for a realisation of each of these T-draws.
    fn new(term: &OutputTerm, of: &[usize]) -> Self {
        let (data, n) = (&term.data, of.len());
        Self {
            coefficients: term.coefficients.select_cols(of),
            means: Matrix::zeros(data.groups.len(), n),
            bounds: Matrix::zeros(data.rows.len(), n),
            scatter: Matrix::zeros(data.classes.len(), n),
        }
    }

    /// Realisation `k`: errors given parameters `x`.
    fn take_off(
        &mut self,
        k: usize,
        term: &OutputTerm,
        x: &[f64],
        n_unknowns: usize,
        sigma_a: f64,
        rng: &mut impl Rng,
    ) {
        let mut eta = Matrix::default();
        let (inputs, coefficients) = (inputs(term, x, n_unknowns), self.coefficients.select_cols(&[k]));
        term.surrogate.predict(&inputs, &coefficients, &mut eta, &mut Scratch::default());
        let errors = error_sds(&*term.surrogate, &inputs, &coefficients, &[sigma_a]);
        let error_variance = |point: usize| errors[(point, 0)].powi(2);
        let (shift, factor) = term.affine;
        let eta = |point: usize| shift + factor * eta[(point, 0)];
        let sigma = term.sigma.map_or(f64::NAN, |j| x[n_unknowns + j]);
        let sd = |known: Option<f64>, times: f64| known.unwrap_or(sigma) * times;
        let mut bell = || rng.sample::<f64, _>(StandardNormal);
        for (i, group) in term.data.groups.iter().enumerate() {
            let class = &term.data.classes[group.class];
            let own = if term.error == ErrorSharing::Independent { class.n } else { 1.0 };
            let (error, noise) =
                (error_variance(group.point) / own + class.extra, sd(class.sd, class.times).powi(2) / class.n);
            let both = error + noise;
            let e = (group.mean - eta(group.point)) * error / both + (error * noise / both).sqrt() * bell();
            self.means[(i, k)] = group.mean - e;
        }
        if term.error == ErrorSharing::Independent {
            for group in &term.data.groups {
                let class = &term.data.classes[group.class];
                // What is noise of deviations from group means: those times `noise / both`, and normal with this variance.
                let (error, noise) = (error_variance(group.point), sd(class.sd, class.times).powi(2));
                let (kept, spread) = (noise / (error + noise), (error * noise / (error + noise)).sqrt());
                let degrees = (class.n - 1.0).round() as usize;
                let along =
                    (0..degrees.min(1)).map(|_| (kept * group.scatter.sqrt() + spread * bell()).powi(2)).sum::<f64>();
                let across: f64 = (1..degrees).map(|_| (spread * bell()).powi(2)).sum();
                self.scatter[(group.class, k)] += along + across - group.scatter;
            }
        }
        for (i, row) in term.data.rows.iter().enumerate() {
            let (error, noise) = (error_variance(row.point) + term.data.rows_extra, sd(row.sd, row.times).powi(2));
            let both = error + noise;
            // Error and noise together stay below the bound.
            let bound = row.z - eta(row.point);
            let below = normal_cdf(bound / both.sqrt());
            let together = (both.sqrt() * normal_quantile(rng.random::<f64>() * below)).clamp(-f64::MAX, bound);
            let e = together * error / both + (error * noise / both).sqrt() * rng.sample::<f64, _>(StandardNormal);
            self.bounds[(i, k)] = row.z - e;
        }
    }

    /// The output of a single T-draw whose measurements have no errors of the surrogate: drawn given parameters `x`, and taken off.
    fn one(term: &OutputTerm, x: &[f64], n_unknowns: usize, rng: &mut impl Rng) -> OutputTerm {
        let mut shifted = Self::new(term, &[0]);
        let sigma_a = term.sigma_a.as_ref().map_or(0.0, |sigma_a| sigma_a[0]);
        shifted.take_off(0, term, x, n_unknowns, sigma_a, rng);
        let mut data = (*term.data).clone();
        // Without errors only the scatter of a class counts.
        data.groups.iter_mut().enumerate().for_each(|(i, group)| group.mean = shifted.means[(i, 0)]);
        data.rows.iter_mut().enumerate().for_each(|(i, row)| row.z = shifted.bounds[(i, 0)]);
        for (c, class) in data.classes.iter_mut().enumerate() {
            class.scatter += shifted.scatter[(c, 0)];
            class.extra = 0.0;
        }
        data.rows_extra = 0.0;
        OutputTerm { data: Arc::new(data), sigma_a: None, field: None, ..term.clone() }
    }

    /// Adds the log-likelihood of the measurements without errors, at parameters `x`, of every realisation.
    fn add_log_likelihoods(
        &self,
        term: &OutputTerm,
        x: &[f64],
        n_unknowns: usize,
        (eta, scratch): &mut (Matrix, Scratch),
        out: &mut [f64],
    ) {
        term.surrogate.predict(&inputs(term, x, n_unknowns), &self.coefficients, eta, scratch);
        let (shift, factor) = term.affine;
        let sigma = term.sigma.map_or(f64::NAN, |j| x[n_unknowns + j]);
        for (c, class) in term.data.classes.iter().enumerate() {
            let sd = class.sd.unwrap_or(sigma);
            let terms = Class { extra: 0.0, ..class.clone() }.terms(sd, 0.0, term.error);
            let by_scatter = -0.5 / (sd * class.times).powi(2);
            out.iter_mut().zip(self.scatter.row(c)).for_each(|(out, more)| *out += terms.a + by_scatter * more);
            for (i, group) in term.data.groups.iter().enumerate().filter(|(_, group)| group.class == c) {
                for ((out, mean), eta) in out.iter_mut().zip(self.means.row(i)).zip(eta.row(group.point)) {
                    *out += terms.b * group.weight * (mean - shift - factor * eta).powi(2);
                }
            }
        }
        for (i, row) in term.data.rows.iter().enumerate() {
            let sd = row.sd.unwrap_or(sigma) * row.times;
            for ((out, bound), eta) in out.iter_mut().zip(self.bounds.row(i)).zip(eta.row(row.point)) {
                *out += row.kind.score(&*term.family, *bound, shift + factor * eta, sd).log_lik;
            }
        }
    }
}

/// I-draws with a second one of the same T-draw, and of the same errors, by a short chain that starts at the first.
struct Pairs<'a> {
    prepared: &'a Prepared,
    spec: &'a InferSpec,
    likelihoods: &'a Likelihoods,
    pool: &'a Pool<'a>,
}

/// I-draws that get another; draws of a chain that adapt its step, that forget the start, and that are compared with it.
const PAIRED: usize = 48;
const ADAPTING: usize = 20;
const FORGETTING: usize = 5;
const COMPARED: usize = 10;

impl Pairs<'_> {
    fn shares(
        &self,
        answer: &IPosterior,
        responsibilities: &[Vec<f64>],
        stream: Stream,
    ) -> Result<Vec<VarianceShares>> {
        let n = PAIRED.min(self.pool.places.len());
        let paired: Vec<usize> = (0..n).map(|k| self.pool.places[k * self.pool.places.len() / n]).collect();
        let prior = self.prepared.prior();
        let real = |x: &[f64]| -> Vec<f64> { prior.marginals().iter().zip(x).map(|(p, &x)| p.to_real(x)).collect() };
        let metric = Metric::from_draws(&self.pool.draws.iter().map(|x| real(x)).collect::<Vec<_>>());
        let quantities: Vec<_> = self.prepared.quantities();
        let quantities: Vec<_> = quantities.iter().filter(|(name, _)| self.pool.names.contains(name)).collect();
        // For each I-draw and quantity: half the squared distance given T-draw and errors, and given the T-draw.
        let of_draw = |(k, &j): (usize, &usize)| -> Result<Vec<[f64; 2]>> {
            let (x, stream) = (self.pool.draws[j], stream.at(k as u64));
            let s = pick_weighted(&responsibilities[j], &mut stream.named("t-draw").rng());
            let own = self.likelihoods.select(&[s]);
            let given_draw = self.chain(&own, &real(x), &metric, stream.named("t-draw"))?;
            let given_errors = match own.has_errors() {
                true => {
                    let terms = own.terms().zip(0..).map(|(term, o): (_, u64)| {
                        Shifted::one(term, x, own.n_unknowns(), &mut stream.named("errors").at(o).rng())
                    });
                    let shifted = Likelihoods::new(own.n_unknowns(), own.n_sigmas(), terms.collect(), false);
                    self.chain(&shifted, &real(x), &metric, stream.named("given errors"))?
                }
                false => given_draw.clone(),
            };
            let distance = |chain: &[Vec<f64>], f: &dyn Fn(&[f64]) -> f64| {
                let squares = chain.iter().map(|other| 0.5 * (f(other) - f(x)).powi(2));
                squares.sum::<f64>() / chain.len() as f64
            };
            Ok(quantities
                .iter()
                .map(|(_, f)| [&given_errors, &given_draw].map(|chain| distance(chain, &**f)))
                .collect())
        };
        let found: Vec<Vec<[f64; 2]>> = paired.par_iter().enumerate().map(of_draw).collect::<Result<_>>()?;
        let is_single = self.likelihoods.n_draws() == 1;
        // Variance and its relative standard error.
        let total = |q: usize| {
            let of = answer.unknowns.iter().find(|u| u.name == self.pool.names[q]);
            of.map_or((f64::NAN, f64::NAN), |u| (u.sd * u.sd, 2.0 * u.mcse_sd.unwrap_or(0.0) / u.sd))
        };
        let shares = |q: usize, without: Option<usize>| {
            let kept = (0..n).filter(|k| Some(k * BLOCKS / n) != without);
            let (mut noise, mut within) = (Mean::default(), Mean::default());
            for k in kept {
                noise.add(1.0, found[k][q][0]);
                within.add(1.0, found[k][q][1]);
            }
            let within_share = if is_single { 1.0 } else { within.value() / total(q).0 };
            let ratio = noise.value() / within.value();
            [within_share * ratio, within_share * (1.0 - ratio), 1.0 - within_share]
        };
        let of_quantity = |q: usize| {
            let all = shares(q, None);
            let squares = spread((0..BLOCKS).map(|b| shares(q, Some(b))).collect());
            // The whole variance has an error of its own, which moves what lies within T-draws against what does not.
            let relative = if is_single { 0.0 } else { total(q).1.powi(2) };
            let of_total = [all[0], all[1], all[0] + all[1]].map(|share| share * share * relative);
            VarianceShares::new(answer, &quantities[q].0, all, sum(squares, of_total))
        };
        Ok((0..quantities.len()).map(of_quantity).collect())
    }

    /// Draws of the posterior under a single likelihood, some way from the start.
    fn chain(
        &self,
        likelihoods: &Likelihoods,
        start: &[f64],
        metric: &Metric,
        stream: Stream,
    ) -> Result<Vec<Vec<f64>>> {
        let propagation = Method::Point.propagation(self.spec.point);
        let mut density = Posterior::new(Target::new(likelihoods, self.prepared.prior(), &*propagation, &[0.0]));
        let settings = nuts::Settings {
            warmup: ADAPTING,
            draws: FORGETTING + COMPARED,
            // Trajectories of some fifteen steps: with the metric of the whole posterior more go around in circles.
            max_depth: 4,
            ..nuts::Settings::default()
        };
        let chain = nuts::sample_with(&mut density, start, metric, &settings, &mut stream.rng(), &|| true)?;
        Ok(chain.draws[FORGETTING..].iter().map(|z| self.prepared.natural(z)).collect())
    }
}
