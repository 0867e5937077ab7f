//! Normal approximations of a posterior, around its modes (Laplace) or along paths to them (Pathfinder), and draws of the posterior by
//! importance weights of theirs.

use super::optimise::{self, Change, Mode, Visited, dot};
use super::{Bayes, LogDensity, Posterior, chains, psis, smc};
use crate::error::{Error, Result};
use crate::matrix::{cholesky, in_triangle, solve_lower, solve_lower_transposed};
use crate::monitor::Proceed;
use crate::special::{HALF_LN_TAU, ln_gamma, log_sum_exp};
use crate::stream::Stream;
use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;
use rand_distr::StandardNormal;
use rayon::prelude::*;

/// Draws of the prior from which paths go uphill.
pub const STARTS: usize = 16;
/// Draws of the prior that tell how wide it is in each coordinate.
const WIDTHS: usize = 100;
/// Modes closer than this, in sds of one of them, are one.
const SAME: f64 = 0.1;
/// Share of the evidence below which a mode is left out.
const LEAST_SHARE: f64 = 1e-6;
/// Draws by which the evidence lower bound of each point of a path is estimated.
const ELBO_DRAWS: usize = 10;
/// Share of the proposals with the tails of a Student-t, and its degrees of freedom.
const TAILS: f64 = 0.5;
const DEGREES: usize = 3;
/// Proposals for each draw: more than the largest ratio of a weight to the mean one that repeats no draw.
const PROPOSALS: usize = 8;
/// Fewest proposals: the shape of the tail is then fitted to some hundred of them.
const FEWEST: usize = 1000;

/// A normal distribution, a part of whose draws are those of a Student-t of the same centre and scale.
///
/// Next to every T-posterior has wider tails than a normal. Where no proposal reaches them, weights neither correct nor notice what is missing; a
/// few from further out do both [Hesterberg 1995], and cost a normal posterior next to nothing: its weights stay below `1 / (1 - TAILS)`
/// times the mean.
#[derive(Clone, Debug)]
struct Normal {
    mean: Vec<f64>,
    /// Lower triangle of the Cholesky factor L of the precision, L L'.
    factor: Vec<f64>,
    /// `log det L`.
    log_det: f64,
}

impl Normal {
    fn new(mean: Vec<f64>, factor: Vec<f64>) -> Self {
        let log_det = (0..mean.len()).map(|j| factor[in_triangle(j, j)].ln()).sum();
        Self { mean, factor, log_det }
    }

    fn draw(&self, rng: &mut ChaCha8Rng) -> Vec<f64> {
        self.stretched(1.0, rng)
    }

    /// A draw with the tails of the Student-t.
    fn propose(&self, rng: &mut ChaCha8Rng) -> Vec<f64> {
        if rng.random::<f64>() >= TAILS {
            return self.draw(rng);
        }
        let chi_square: f64 = (0..DEGREES).map(|_| rng.sample::<f64, _>(StandardNormal).powi(2)).sum();
        self.stretched((DEGREES as f64 / chi_square).sqrt(), rng)
    }

    fn stretched(&self, stretch: f64, rng: &mut ChaCha8Rng) -> Vec<f64> {
        let mut z: Vec<f64> = self.mean.iter().map(|_| stretch * rng.sample::<f64, _>(StandardNormal)).collect();
        solve_lower_transposed(&self.factor, &mut z);
        z.iter_mut().zip(&self.mean).for_each(|(z, mean)| *z += mean);
        z
    }

    /// `|L'(z - mean)|^2`.
    fn distance(&self, z: &[f64]) -> f64 {
        let mut along = vec![0.0; z.len()];
        for (i, (z, mean)) in z.iter().zip(&self.mean).enumerate() {
            let row = &self.factor[in_triangle(i, 0)..=in_triangle(i, i)];
            along.iter_mut().zip(row).for_each(|(along, l)| *along += l * (z - mean));
        }
        dot(&along, &along)
    }

    fn log_density(&self, z: &[f64]) -> f64 {
        self.log_det - 0.5 * self.distance(z) - HALF_LN_TAU * z.len() as f64
    }

    /// Of what [`Normal::propose`] gives.
    fn log_proposal(&self, z: &[f64]) -> f64 {
        let (n, degrees, distance) = (z.len() as f64, DEGREES as f64, self.distance(z));
        let half = 0.5 * (degrees + n);
        let scale = ln_gamma(half) - ln_gamma(0.5 * degrees) - 0.5 * n * (degrees * std::f64::consts::PI).ln();
        let student = scale - half * (distance / degrees).ln_1p();
        let normal = -0.5 * distance - HALF_LN_TAU * n;
        self.log_det + log_sum_exp(&[(1.0 - TAILS).ln() + normal, TAILS.ln() + student])
    }
}

/// A posterior in units of its prior's width, so that coordinates of all sizes are alike to the search for a mode. What is no number is
/// excluded.
#[derive(Clone)]
struct Scaled<T> {
    posterior: Posterior<T>,
    widths: Vec<f64>,
    z: Vec<f64>,
}

impl<T: Bayes> Scaled<T> {
    fn new(target: T, stream: Stream) -> Self {
        let mut posterior = Posterior::new(target);
        let n = posterior.dim();
        let mut rng = stream.rng();
        let draws: Vec<Vec<f64>> = (0..WIDTHS)
            .map(|_| {
                let mut z = vec![0.0; n];
                posterior.sample_prior(&mut rng, &mut z);
                z
            })
            .collect();
        let width = |d: usize| {
            let mut values: Vec<f64> = draws.iter().map(|z| z[d]).collect();
            values.sort_by(f64::total_cmp);
            let width = values[3 * WIDTHS / 4] - values[WIDTHS / 4];
            if width > 0.0 && width.is_finite() { width } else { 1.0 }
        };
        Self { widths: (0..n).map(width).collect(), z: vec![0.0; n], posterior }
    }

    fn natural(&self, u: &[f64]) -> Vec<f64> {
        u.iter().zip(&self.widths).map(|(u, width)| u * width).collect()
    }
}

impl<T: Bayes> LogDensity for Scaled<T> {
    fn dim(&self) -> usize {
        self.widths.len()
    }

    fn log_density(&mut self, u: &[f64], gradient: &mut [f64]) -> f64 {
        self.z.iter_mut().zip(u).zip(&self.widths).for_each(|((z, u), width)| *z = u * width);
        let value = self.posterior.log_density(&self.z, gradient);
        gradient.iter_mut().zip(&self.widths).for_each(|(g, width)| *g *= width);
        if value.is_finite() { value } else { f64::NEG_INFINITY }
    }
}

/// A mixture of normals that approximates a posterior.
pub struct Approximation<T> {
    target: Scaled<T>,
    /// With their shares.
    normals: Vec<(f64, Normal)>,
}

/// Draws of a posterior by importance weights of an approximation.
#[derive(Clone, Debug, PartialEq)]
pub struct Resampled {
    /// Equally weighted, in random order; those of large weight more than once.
    pub draws: Vec<Vec<f64>>,
    /// Shape of the tail of the weights, see [`psis::Smoothed::k_hat`].
    pub k_hat: f64,
    /// How many draws without repetition they are worth: `S^2 / sum n_i^2` for the numbers n_i of repetitions.
    pub effective: f64,
}

/// The Laplace approximation: a normal around each mode that paths from draws of the prior lead to, with minus the second derivatives there as
/// its precision; of several modes a mixture by their evidences [Tierney 1986], half of it shared equally so that none is left to chance.
///
/// # Errors
/// No start with positive density, no mode, or `proceed` says no.
pub fn laplace<T: Bayes + Clone + Send + Sync>(
    target: &T,
    stream: Stream,
    proceed: Proceed<'_>,
) -> Result<Approximation<T>> {
    let target = Scaled::new(target.clone(), stream.named("widths"));
    let found: Vec<Option<Mode>> = (0..STARTS)
        .into_par_iter()
        .map(|start| {
            let mut density = target.clone();
            let path = climb(&mut density, stream.named("starts").at(start as u64), proceed)?;
            optimise::mode(&mut density, &path[path.len() - 1], proceed)
        })
        .collect::<Result<_>>()?;
    // The same mode is found from many starts, in each time with its own rounding: the first counts.
    let mut modes: Vec<(f64, Normal)> = Vec::new();
    for Mode { z, value, factor } in found.into_iter().flatten() {
        if !modes.iter().any(|(_, other)| other.distance(&z) < SAME * SAME) {
            let normal = Normal::new(z, factor);
            modes.push((value - normal.log_det, normal));
        }
    }
    if modes.is_empty() {
        return Err(Error::failed(
            "sampling",
            format!("none of the paths uphill from {STARTS} draws of the prior ends at a mode"),
            "sample the density, which needs no mode",
        ));
    }
    let total = log_sum_exp(&modes.iter().map(|(evidence, _)| *evidence).collect::<Vec<_>>());
    modes.iter_mut().for_each(|(evidence, _)| *evidence = (*evidence - total).exp());
    modes.retain(|(share, _)| *share >= LEAST_SHARE);
    let kept = modes.len() as f64;
    let sum: f64 = modes.iter().map(|(share, _)| share).sum();
    modes.iter_mut().for_each(|(share, _)| *share = 0.5 * *share / sum + 0.5 / kept);
    Ok(Approximation { target, normals: modes })
}

/// Multi-path Pathfinder [Zhang 2022]: on each of several paths uphill the normal, among those that the steps up to a point tell of, with the
/// highest evidence lower bound. Unlike there the weights of draws are by the density of all paths' normals together: that of a draw's own path
/// alone makes the weights of draws that another path explains better too large.
///
/// # Errors
/// No start with positive density, no path with a normal of positive density, or `proceed` says no.
pub fn pathfinder<T: Bayes + Clone + Send + Sync>(
    target: &T,
    stream: Stream,
    proceed: Proceed<'_>,
) -> Result<Approximation<T>> {
    let target = Scaled::new(target.clone(), stream.named("widths"));
    let found: Vec<Option<Normal>> = (0..STARTS)
        .into_par_iter()
        .map(|start| {
            let mut density = target.clone();
            let path = climb(&mut density, stream.named("starts").at(start as u64), proceed)?;
            best_on_path(&mut density, &path, stream.named("elbo").at(start as u64), proceed)
        })
        .collect::<Result<_>>()?;
    let normals: Vec<Normal> = found.into_iter().flatten().collect();
    if normals.is_empty() {
        return Err(Error::failed(
            "sampling",
            format!("none of the paths uphill from {STARTS} draws of the prior has a normal approximation"),
            "sample the density, which needs none",
        ));
    }
    let share = 1.0 / normals.len() as f64;
    Ok(Approximation { target, normals: normals.into_iter().map(|normal| (share, normal)).collect() })
}

/// The path uphill from a draw of the prior.
fn climb<T: Bayes>(density: &mut Scaled<T>, stream: Stream, proceed: Proceed<'_>) -> Result<Vec<Visited>> {
    let start = chains::start(&mut density.posterior, stream)?;
    let start = start.iter().zip(&density.widths).map(|(z, width)| z / width).collect();
    optimise::path(density, start, proceed)
}

/// Of the normals at the points of a path, whose precisions the steps before tell, the one with the highest evidence lower bound.
fn best_on_path(
    density: &mut impl LogDensity,
    path: &[Visited],
    stream: Stream,
    proceed: Proceed<'_>,
) -> Result<Option<Normal>> {
    let n = path[0].z.len();
    let mut best: Option<(f64, Normal)> = None;
    let mut diagonal = vec![1.0; n];
    let mut changes: Vec<Change> = Vec::new();
    let mut gradient = vec![0.0; n];
    for (l, pair) in path.windows(2).enumerate() {
        if !proceed() {
            return Err(Error::Interrupted);
        }
        let Some(change) = Change::between(&pair[0], &pair[1]) else { continue };
        learn(&mut diagonal, &change);
        if changes.len() == optimise::HISTORY {
            changes.remove(0);
        }
        changes.push(change);
        let mut factor = precision(&diagonal, &changes);
        if !cholesky(&mut factor, n) {
            continue;
        }
        let mut normal = Normal::new(pair[1].z.clone(), factor);
        // A step of Newton's method leads to the mean.
        let mut step = pair[1].gradient.clone();
        solve_lower(&normal.factor, &mut step);
        solve_lower_transposed(&normal.factor, &mut step);
        normal.mean.iter_mut().zip(step).for_each(|(mean, step)| *mean += step);
        let mut rng = stream.at(l as u64).rng();
        let elbo = (0..ELBO_DRAWS)
            .map(|_| {
                let z = normal.draw(&mut rng);
                density.log_density(&z, &mut gradient) - normal.log_density(&z)
            })
            .sum::<f64>();
        if elbo.is_finite() && best.as_ref().is_none_or(|(highest, _)| elbo > *highest) {
            best = Some((elbo, normal));
        }
    }
    Ok(best.map(|(_, normal)| normal))
}

/// The diagonal of the inverse of the second derivatives after another step [Gilbert 1989].
fn learn(diagonal: &mut [f64], Change { s, y }: &Change) {
    let sum = |f: &dyn Fn(usize) -> f64| (0..s.len()).map(f).sum::<f64>();
    let (a, b, c) = (sum(&|j| y[j] * y[j] * diagonal[j]), dot(s, y), sum(&|j| s[j] * s[j] / diagonal[j]));
    for (j, own) in diagonal.iter_mut().enumerate() {
        *own = (a / (b * *own) + y[j] * y[j] / b - a * s[j] * s[j] / (b * c * *own * *own)).recip();
    }
}

/// The second derivatives that the steps tell of, beginning with a diagonal inverse: a lower triangle.
fn precision(diagonal: &[f64], changes: &[Change]) -> Vec<f64> {
    let n = diagonal.len();
    let mut triangle = vec![0.0; in_triangle(n, 0)];
    (0..n).for_each(|j| triangle[in_triangle(j, j)] = diagonal[j].recip());
    for Change { s, y } in changes {
        let mut bs = vec![0.0; n];
        for i in 0..n {
            for j in 0..=i {
                let b = triangle[in_triangle(i, j)];
                bs[i] += b * s[j];
                if j < i {
                    bs[j] += b * s[i];
                }
            }
        }
        let (sbs, sy) = (dot(s, &bs), dot(s, y));
        for i in 0..n {
            for j in 0..=i {
                triangle[in_triangle(i, j)] += y[i] * y[j] / sy - bs[i] * bs[j] / sbs;
            }
        }
    }
    triangle
}

impl<T: Bayes + Clone + Send + Sync> Approximation<T> {
    /// Number of normals.
    pub fn normals(&self) -> usize {
        self.normals.len()
    }

    /// Number of questions that [`Approximation::draws`] asks `proceed` for so many draws.
    pub fn proposals(n: usize) -> usize {
        (PROPOSALS * n).max(FEWEST)
    }

    /// `n` draws of the posterior, by resampling eight times as many of the approximation with Pareto-smoothed weights.
    ///
    /// Weights become repetitions rather than weights of the draws: draws of several outputs stand side by side in one joint posterior and
    /// must have equal weights, as must those that a calibration keeps; k-means, halves of the T-draws whose answers are compared, and a point
    /// estimate then need to know nothing of them. With so many proposals a draw is repeated only where its weight is eight times the mean, so that
    /// little is lost; what is, `effective` tells.
    ///
    /// # Errors
    /// The posterior has no density at any proposal, or `proceed`, asked at each, says no.
    pub fn draws(&self, n: usize, stream: Stream, proceed: Proceed<'_>) -> Result<Resampled> {
        let shares: Vec<f64> = self.normals.iter().map(|(share, _)| *share).collect();
        let log_shares: Vec<f64> = shares.iter().map(|share| share.ln()).collect();
        let of_normal: Vec<usize> = smc::evenly(&shares, Self::proposals(n), 0.5).collect();
        // Made anew where they are wanted, instead of kept.
        let proposal =
            |i: usize| self.normals[of_normal[i]].1.propose(&mut stream.named("proposals").at(i as u64).rng());
        let ratios: Vec<f64> = (0..of_normal.len())
            .into_par_iter()
            .map_init(
                || (self.target.clone(), vec![0.0; self.target.dim()], vec![0.0; shares.len()]),
                |(density, gradient, parts), i| {
                    let z = proposal(i);
                    for ((part, (_, normal)), share) in parts.iter_mut().zip(&self.normals).zip(&log_shares) {
                        *part = share + normal.log_proposal(&z);
                    }
                    proceed().then(|| density.log_density(&z, gradient) - log_sum_exp(parts))
                },
            )
            .collect::<Option<_>>()
            .ok_or(Error::Interrupted)?;
        let psis::Smoothed { log_weights, k_hat } = psis::smooth(&ratios);
        if k_hat.is_nan() {
            return Err(Error::failed(
                "sampling",
                format!("the density is zero at all {} draws of its normal approximation", ratios.len()),
                "sample the density, which needs none",
            ));
        }
        let weights: Vec<f64> = log_weights.iter().map(|w| w.exp()).collect();
        let mut rng = stream.named("resample").rng();
        let mut chosen: Vec<usize> = smc::systematic(&weights, n, &mut rng).collect();
        let squares: usize = chosen.chunk_by(|a, b| a == b).map(|same| same.len() * same.len()).sum();
        // Draws of another posterior may be put beside these, and parts of them stand for all.
        chosen.shuffle(&mut rng);
        Ok(Resampled {
            draws: chosen.iter().map(|&i| self.target.natural(&proposal(i))).collect(),
            k_hat,
            effective: (n * n) as f64 / squares as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// A posterior whose density is `f`, with a normal prior of this sd in each coordinate to start from.
    #[derive(Clone)]
    struct Of<F> {
        dim: usize,
        sd: f64,
        f: F,
    }

    impl<F: Fn(&[f64], &mut [f64]) -> f64> Bayes for Of<F> {
        fn dim(&self) -> usize {
            self.dim
        }

        fn parts(&mut self, z: &[f64], prior: &mut [f64], likelihood: &mut [f64]) -> (f64, f64) {
            let value = (self.f)(z, likelihood);
            let mut log_prior = 0.0;
            for ((z, prior), likelihood) in z.iter().zip(&mut *prior).zip(&mut *likelihood) {
                log_prior -= 0.5 * (z / self.sd).powi(2) + self.sd.ln() + HALF_LN_TAU;
                *prior = -z / self.sd.powi(2);
                *likelihood -= *prior;
            }
            (log_prior, value - log_prior)
        }

        fn sample_prior(&mut self, rng: &mut ChaCha8Rng, z: &mut [f64]) {
            z.iter_mut().for_each(|z| *z = self.sd * rng.sample::<f64, _>(StandardNormal));
        }
    }

    const DRAWS: usize = 4000;

    /// Sds a thousandfold apart, correlations of 0.9: `z = mean + sd (0.9^(1/2) a + 0.1^(1/2) b_j)`.
    const SDS: [f64; 4] = [0.01, 0.3, 2.0, 10.0];
    const MEANS: [f64; 4] = [1.0, -2.0, 0.0, 5.0];

    fn correlated(z: &[f64], gradient: &mut [f64]) -> f64 {
        // (0.1 I + 0.9 11')^-1 = 10 I - 90 / (1 + 36) 11'.
        let r: Vec<f64> = z.iter().zip(MEANS).zip(SDS).map(|((z, mean), sd)| (z - mean) / sd).collect();
        let sum: f64 = r.iter().sum();
        for ((g, r), sd) in gradient.iter_mut().zip(&r).zip(SDS) {
            *g = -(10.0 * r - 90.0 / 37.0 * sum) / sd;
        }
        -0.5 * (10.0 * dot(&r, &r) - 90.0 / 37.0 * sum * sum)
    }

    type Correlated = Of<fn(&[f64], &mut [f64]) -> f64>;

    fn normal() -> Correlated {
        Of { dim: 4, sd: 20.0, f: correlated }
    }

    /// Mean and sd of every coordinate, by so many standard errors.
    fn check_normal(found: &Resampled, z: f64) {
        for d in 0..4 {
            let mean = found.draws.iter().map(|z| z[d]).sum::<f64>() / DRAWS as f64;
            let sd = (found.draws.iter().map(|z| (z[d] - MEANS[d]).powi(2)).sum::<f64>() / DRAWS as f64).sqrt();
            let n = found.effective;
            assert!((mean - MEANS[d]).abs() <= z * SDS[d] / n.sqrt(), "{d}: {mean}");
            assert!((sd / SDS[d] - 1.0).abs() <= z / (2.0 * n).sqrt(), "{d}: {sd}");
        }
    }

    /// Eight comparisons at alpha = 1e-4.
    const Z: f64 = 4.37;

    #[test]
    fn laplace_is_exact_for_a_normal() {
        let target = normal();
        let found = laplace(&target, Stream::root(1), &|| true).unwrap();
        assert_eq!(found.normals(), 1);
        let draws = found.draws(DRAWS, Stream::root(2), &|| true).unwrap();
        // No weight is far from the mean one, and none repeats a draw.
        assert_eq!(draws.effective, DRAWS as f64);
        assert!(draws.k_hat < 0.7, "{}", draws.k_hat);
        check_normal(&draws, Z);
        let (share, own) = &found.normals[0];
        assert_eq!(*share, 1.0);
        let mut density = found.target.clone();
        let mut ratio = |z: &[f64]| density.log_density(z, &mut [0.0; 4]) - own.log_density(z);
        let at_mean = ratio(&own.mean);
        // Second derivatives are differences of gradients whose terms are up to 37 + 10 times the conditional sd's inverse at the mode, over twice
        // the step; relative to the least eigenvalue 1/3.7 of the precision in these units, and with a draw four sds away in four coordinates.
        let relative = 50.0 * 4.0 * f64::EPSILON / f64::EPSILON.cbrt() * 10.0 * 3.7;
        let bound = 0.5 * relative * 4.0 * 16.0;
        for i in 0..100 {
            let away = ratio(&own.draw(&mut Stream::root(3).at(i).rng())) - at_mean;
            assert!(away.abs() <= bound && bound < 1e-3, "{away:e} {bound:e}");
        }
    }

    #[test]
    fn pathfinder_finds_a_normal() {
        let found = pathfinder(&normal(), Stream::root(1), &|| true).unwrap();
        assert_eq!(found.normals(), STARTS);
        let draws = found.draws(DRAWS, Stream::root(2), &|| true).unwrap();
        assert!(draws.k_hat < 0.7 && draws.effective > 0.5 * DRAWS as f64, "{} {}", draws.k_hat, draws.effective);
        check_normal(&draws, Z);
    }

    /// `0.3 N(-5, 1) + 0.7 N(8, 0.5^2)`.
    fn two_modes(z: &[f64], gradient: &mut [f64]) -> f64 {
        let part = |share: f64, mean: f64, sd: f64| {
            let r = (z[0] - mean) / sd;
            (share.ln() - sd.ln() - 0.5 * r * r, -r / sd)
        };
        let parts = [part(0.3, -5.0, 1.0), part(0.7, 8.0, 0.5)];
        let total = log_sum_exp(&[parts[0].0, parts[1].0]);
        gradient[0] = parts.iter().map(|(log, slope)| (log - total).exp() * slope).sum();
        total
    }

    #[test]
    fn both_modes_have_their_share() {
        let target = Of { dim: 1, sd: 6.0, f: two_modes };
        for method in [laplace, pathfinder] {
            let found = method(&target, Stream::root(4), &|| true).unwrap();
            let draws = found.draws(DRAWS, Stream::root(5), &|| true).unwrap();
            assert!(draws.k_hat < 0.7, "{}", draws.k_hat);
            let right = draws.draws.iter().filter(|z| z[0] > 0.0).count() as f64 / DRAWS as f64;
            // One comparison each at alpha = 1e-4.
            assert!((right - 0.7).abs() <= 3.9 * (0.21 / draws.effective).sqrt(), "{right}");
            // In random order: the share in the first half is that of a part without replacement.
            let first = draws.draws[..DRAWS / 2].iter().filter(|z| z[0] > 0.0).count() as f64 / (DRAWS / 2) as f64;
            assert!((first - right).abs() <= 3.9 * (0.21 / DRAWS as f64).sqrt(), "{first} {right}");
        }
        assert_eq!(laplace(&target, Stream::root(4), &|| true).unwrap().normals(), 2);
    }

    /// Neal's funnel, whose neck and mouth no mixture of a few normals follows.
    #[test]
    fn a_shape_that_no_normal_has_is_noticed() {
        let funnel = |z: &[f64], gradient: &mut [f64]| {
            let (others, precision) = ((z.len() - 1) as f64, (-z[0]).exp());
            let squares = dot(&z[1..], &z[1..]);
            gradient[0] = -z[0] / 9.0 - 0.5 * others + 0.5 * squares * precision;
            gradient[1..].iter_mut().zip(&z[1..]).for_each(|(g, z)| *g = -z * precision);
            -z[0] * z[0] / 18.0 - 0.5 * others * z[0] - 0.5 * squares * precision
        };
        let target = Of { dim: 6, sd: 3.0, f: funnel };
        for method in [laplace, pathfinder] {
            let found = method(&target, Stream::root(6), &|| true).unwrap();
            let draws = found.draws(1000, Stream::root(7), &|| true).unwrap();
            assert!(draws.k_hat > 0.7, "{}", draws.k_hat);
        }
    }

    /// A Student-t of two degrees of freedom in five dimensions, where `u = r^2 / (2 + r^2)` has the probability `u^(5/2)` below it: the proposals
    /// from further out correct the normals' tails.
    #[test]
    fn heavy_tails_are_corrected() {
        let student = |z: &[f64], gradient: &mut [f64]| {
            let squares = 1.0 + dot(z, z) / 2.0;
            gradient.iter_mut().zip(z).for_each(|(g, z)| *g = -3.5 * z / squares);
            -3.5 * squares.ln()
        };
        let target = Of { dim: 5, sd: 3.0, f: student };
        for method in [laplace, pathfinder] {
            let found = method(&target, Stream::root(6), &|| true).unwrap();
            let draws = found.draws(DRAWS, Stream::root(7), &|| true).unwrap();
            assert!(draws.k_hat < 0.7, "{}", draws.k_hat);
            for u in [0.5_f64, 0.8, 0.95] {
                let exact = u.powf(2.5);
                let below =
                    draws.draws.iter().filter(|z| dot(z, z) < 2.0 * u / (1.0 - u)).count() as f64 / DRAWS as f64;
                // Six comparisons at alpha = 1e-4; the draws of the outer part are those that repeat, so that the number they are all worth is
                // halved for it.
                let error = (exact * (1.0 - exact) / (0.5 * draws.effective)).sqrt();
                assert!((below - exact).abs() <= 4.3 * error, "{u}: {below} {exact}");
            }
        }
    }

    #[test]
    fn draws_do_not_depend_on_threads() {
        let target = Of { dim: 1, sd: 6.0, f: two_modes };
        for method in [laplace, pathfinder] {
            let draws = |threads: usize, seed: u64| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| {
                    let found = method(&target, Stream::root(seed), &|| true).unwrap();
                    found.draws(100, Stream::root(seed), &|| true).unwrap()
                })
            };
            let one = draws(1, 8);
            assert!(one == draws(2, 8) && one == draws(5, 8) && one != draws(2, 9));
        }
    }

    #[test]
    fn what_cannot_be_approximated_is_an_error() {
        let flat = Of {
            dim: 2,
            sd: 1.0,
            f: |_: &[f64], gradient: &mut [f64]| {
                gradient.fill(0.0);
                0.0
            },
        };
        let refused = laplace(&flat, Stream::root(1), &|| true).err().unwrap().to_string();
        assert!(refused.contains("none of the paths uphill from 16 draws of the prior ends at a mode"), "{refused}");
        let refused = pathfinder(&flat, Stream::root(1), &|| true).err().unwrap().to_string();
        assert!(refused.contains("has a normal approximation"), "{refused}");
        for method in [laplace, pathfinder] {
            assert!(matches!(method(&normal(), Stream::root(1), &|| false), Err(Error::Interrupted)));
            let found = method(&normal(), Stream::root(1), &|| true).unwrap();
            assert!(matches!(found.draws(10, Stream::root(1), &|| false), Err(Error::Interrupted)));
        }
    }
}
