//! Tempered sequential Monte Carlo: particles go from the prior to the posterior, visiting every mode the prior covers, and
//! leave the evidence behind.

use super::{Bayes, Point};
use crate::error::{Error, Result};
use crate::kernels;
use crate::monitor::Proceed;
use crate::stream::Stream;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt};
use rand_distr::StandardNormal;

/// How hard to try.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Points of one run.
    pub particles: usize,
    /// Sweeps of Hamiltonian moves over all particles at each temperature (eight times as many at the last).
    pub sweeps: usize,
    /// Most leapfrog steps of a move.
    pub max_leapfrogs: usize,
    /// Effective share of particles that a step in temperature must leave. Many small steps, with a sweep after each, follow
    /// modes whose weights change on the way; few large ones lose those that gain late.
    pub keep: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { particles: 256, sweeps: 1, max_leapfrogs: 4, keep: 0.9 }
    }
}

/// Points at temperature one, equally weighted, and the evidence.
#[derive(Clone, Debug)]
pub struct Population {
    /// Points x dimension, on the real line.
    pub draws: Vec<Vec<f64>>,
    /// Estimate of `log int p(y | z) p(z) dz`.
    pub log_evidence: f64,
    /// Number of temperatures.
    pub temperatures: usize,
    /// Share of accepted moves at the last temperature.
    pub acceptance: f64,
    /// Gradients evaluated; where there are none, densities.
    pub gradients: usize,
}

/// Steps of a random walk in place of one Hamiltonian move.
const WALK: usize = 4;

impl Point {
    /// Of the prior times the likelihood to the power `temperature`.
    fn log_density(&self, temperature: f64) -> f64 {
        // 0 * -inf is NaN, but a point that the data exclude stays excluded at every positive temperature.
        if temperature == 0.0 { self.log_prior } else { self.log_prior + temperature * self.log_likelihood }
    }

    fn copy_from(&mut self, other: &Self) {
        self.z.copy_from_slice(&other.z);
        self.prior_gradient.copy_from_slice(&other.prior_gradient);
        self.likelihood_gradient.copy_from_slice(&other.likelihood_gradient);
        (self.log_prior, self.log_likelihood) = (other.log_prior, other.log_likelihood);
    }
}

/// Evaluates points together; a likelihood that is no number excludes its point.
fn evaluate(target: &mut impl Bayes, points: &mut [&mut Point]) {
    target.evaluate(points);
    points.iter_mut().filter(|p| p.log_likelihood.is_nan()).for_each(|p| p.log_likelihood = f64::NEG_INFINITY);
}

/// One run from the prior to the posterior. Independent runs that agree are the check on it.
///
/// # Errors
/// The likelihood is zero at every particle drawn from the prior, or `proceed`, asked at every temperature, says no.
pub fn sample(
    target: &mut impl Bayes,
    settings: &Settings,
    stream: Stream,
    proceed: Proceed<'_>,
) -> Result<Population> {
    let dim = target.dim();
    let n = settings.particles;
    let mut rng = stream.rng();
    let mut particles = vec![Point::new(dim); n];
    particles.iter_mut().for_each(|particle| target.sample_prior(&mut rng, &mut particle.z));
    evaluate(target, &mut particles.iter_mut().collect::<Vec<_>>());
    let mut gradients = n;
    if particles.iter().all(|p| p.log_likelihood == f64::NEG_INFINITY) {
        return Err(Error::failed(
            "I-step",
            format!("the likelihood is zero at all {n} points drawn from the prior"),
            "check the measurements' units and the noise, or narrow the prior",
        ));
    }
    let mut temperature = 0.0;
    let mut log_evidence = 0.0;
    let mut temperatures = 0;
    let mut mover = Mover::new(dim, n);
    let mut acceptance = 0.0;
    while temperature < 1.0 {
        if !proceed() {
            return Err(Error::Interrupted);
        }
        let next = next_temperature(&particles, temperature, settings.keep * n as f64);
        let (weights, log_mean) = weights(&particles, next - temperature);
        log_evidence += log_mean;
        mover.fit(&particles, &weights);
        particles = resample(&particles, &weights, &mut rng);
        temperature = next;
        temperatures += 1;
        let steps = if target.has_gradient() { settings.sweeps } else { WALK * settings.sweeps };
        let sweeps = if temperature == 1.0 { 8 * steps } else { steps };
        for _ in 0..sweeps {
            let (accepted, steps) = mover.sweep(&mut particles, temperature, settings.max_leapfrogs, target, &mut rng);
            acceptance = accepted;
            gradients += steps;
        }
    }
    let draws = particles.into_iter().map(|p| p.z).collect();
    Ok(Population { draws, log_evidence, temperatures, acceptance, gradients })
}

/// Standard error of the log evidence that independent runs have together, from how their logarithms differ; none of a single run.
pub fn log_evidence_error(of_runs: &[f64]) -> Option<f64> {
    let n = of_runs.len() as f64;
    let mean = of_runs.iter().sum::<f64>() / n;
    let squares: f64 = of_runs.iter().map(|z| (z - mean).powi(2)).sum();
    (of_runs.len() > 1).then(|| (squares / (n - 1.0) / n).sqrt())
}

/// Normalised weights of raising the temperature by `step`, and the log of their mean before that.
fn weights(particles: &[Point], step: f64) -> (Vec<f64>, f64) {
    let max = particles.iter().fold(f64::NEG_INFINITY, |m, p| m.max(p.log_likelihood));
    let raw: Vec<f64> = particles.iter().map(|p| (step * (p.log_likelihood - max)).exp()).collect();
    let sum: f64 = raw.iter().sum();
    (raw.iter().map(|w| w / sum).collect(), step * max + (sum / particles.len() as f64).ln())
}

/// Effective number of particles, `(sum w)^2 / sum w^2`, after the temperature rises by `step`.
fn effective(below_max: &[f64], step: f64) -> f64 {
    let (sum, squares) = kernels::sums_of_powers(step, below_max);
    sum * sum / squares
}

/// The largest temperature at which the effective number of particles is still `keep`, to a thousandth of the step.
fn next_temperature(particles: &[Point], now: f64, keep: f64) -> f64 {
    let max = particles.iter().fold(f64::NEG_INFINITY, |m, p| m.max(p.log_likelihood));
    let below_max: Vec<f64> = particles.iter().map(|p| p.log_likelihood - max).collect();
    if effective(&below_max, 1.0 - now) >= keep {
        return 1.0;
    }
    // In logarithms: likelihoods of far points differ by thousands of log units, so the first steps are tiny.
    let (mut low, mut high) = (-60.0_f64, (1.0 - now).ln());
    while high - low > 1e-3 {
        let middle = 0.5 * (low + high);
        if effective(&below_max, middle.exp()) >= keep { low = middle } else { high = middle }
    }
    (now + low.exp()).min(1.0)
}

/// Systematic resampling: of n indices, i comes `n w_i` times, rounded up or down, for normalised weights.
pub fn systematic(weights: &[f64], n: usize, rng: &mut impl Rng) -> impl Iterator<Item = usize> {
    evenly(weights, n, rng.random())
}

/// The indices at which the cumulated normalised weights reach `(k + offset) / n`.
pub fn evenly(weights: &[f64], n: usize, offset: f64) -> impl Iterator<Item = usize> {
    let (mut sum, mut i) = (weights[0], 0);
    (0..n).map(move |k| {
        let u = (k as f64 + offset) / n as f64;
        while sum < u && i + 1 < weights.len() {
            i += 1;
            sum += weights[i];
        }
        i
    })
}

fn resample(particles: &[Point], weights: &[f64], rng: &mut impl Rng) -> Vec<Point> {
    let copy = |i: usize| {
        let mut copy = Point::new(particles[i].z.len());
        copy.copy_from(&particles[i]);
        copy
    };
    systematic(weights, particles.len(), rng).map(copy).collect()
}

/// Hamiltonian moves in coordinates whitened by the particles' covariance, of all particles in step; the step size follows the
/// acceptance. Without gradients nothing pushes, and a move of one step is that of a random walk.
struct Mover {
    dim: usize,
    /// Whether there are gradients.
    pushes: bool,
    /// Lower Cholesky factor of the covariance, row-major.
    factor: Vec<f64>,
    log_step: f64,
    /// One for each particle.
    moves: Vec<Move>,
}

/// A particle on its way.
#[derive(Clone)]
struct Move {
    proposal: Point,
    momentum: Vec<f64>,
    step: f64,
    leapfrogs: usize,
    /// Log density with the energy of the momentum, where it started.
    before: f64,
    /// Decides whether it stays where it arrives.
    chance: f64,
}

impl Move {
    fn new(dim: usize) -> Self {
        let proposal = Point::new(dim);
        Self { proposal, momentum: vec![0.0; dim], step: 0.0, leapfrogs: 0, before: 0.0, chance: 0.0 }
    }

    fn log_density(&self, temperature: f64) -> f64 {
        self.proposal.log_density(temperature) - 0.5 * self.momentum.iter().map(|p| p * p).sum::<f64>()
    }

    /// `momentum += scale * factor' gradient`.
    fn kick(&mut self, factor: &[f64], scale: f64, temperature: f64) {
        let (d, Point { prior_gradient, likelihood_gradient, .. }) = (self.momentum.len(), &self.proposal);
        let by_z = |i: usize| prior_gradient[i] + temperature * likelihood_gradient[i];
        for (j, momentum) in self.momentum.iter_mut().enumerate() {
            *momentum += scale * (j..d).map(|i| factor[i * d + j] * by_z(i)).sum::<f64>();
        }
    }

    /// `z += step * factor momentum`.
    fn drift(&mut self, factor: &[f64]) {
        let d = self.momentum.len();
        for (i, z) in self.proposal.z.iter_mut().enumerate() {
            *z += self.step * (0..=i).map(|j| factor[i * d + j] * self.momentum[j]).sum::<f64>();
        }
    }
}

impl Mover {
    fn new(dim: usize, particles: usize) -> Self {
        let moves = vec![Move::new(dim); particles];
        Self { dim, pushes: true, factor: vec![0.0; dim * dim], log_step: 0.0, moves }
    }

    fn fit(&mut self, particles: &[Point], weights: &[f64]) {
        let d = self.dim;
        let mean: Vec<f64> =
            (0..d).map(|i| particles.iter().zip(weights).map(|(p, w)| w * p.z[i]).sum::<f64>()).collect();
        let mut covariance = vec![0.0; d * d];
        for (p, w) in particles.iter().zip(weights) {
            for i in 0..d {
                for j in 0..=i {
                    covariance[i * d + j] += w * (p.z[i] - mean[i]) * (p.z[j] - mean[j]);
                }
            }
        }
        // Correlations are shrunk a little so that few effective particles cannot make the matrix singular.
        for i in 0..d {
            for j in 0..i {
                covariance[i * d + j] *= 0.95;
            }
            covariance[i * d + i] += 1e-12;
        }
        for i in 0..d {
            for j in 0..=i {
                let sum: f64 = (0..j).map(|k| self.factor[i * d + k] * self.factor[j * d + k]).sum();
                let rest = covariance[i * d + j] - sum;
                self.factor[i * d + j] =
                    if i == j { rest.max(1e-12 * covariance[i * d + i]).sqrt() } else { rest / self.factor[j * d + j] };
            }
        }
    }

    fn sweep(
        &mut self,
        particles: &mut [Point],
        temperature: f64,
        max_leapfrogs: usize,
        target: &mut impl Bayes,
        rng: &mut ChaCha8Rng,
    ) -> (f64, usize) {
        let Self { factor, moves, log_step, .. } = self;
        self.pushes = target.has_gradient();
        let (pushes, max_leapfrogs) = (self.pushes, if self.pushes { max_leapfrogs } else { 1 });
        for (own, particle) in moves.iter_mut().zip(&*particles) {
            // Modes of very different widths need steps of different sizes; a decade below the adapted one is covered.
            own.step = (*log_step - std::f64::consts::LN_10 * rng.random::<f64>().powi(2)).exp();
            own.leapfrogs = 1 + (rng.random::<f64>() * max_leapfrogs as f64) as usize;
            own.momentum.iter_mut().for_each(|p| *p = rng.sample(StandardNormal));
            own.chance = rng.random();
            own.proposal.copy_from(particle);
            own.before = own.log_density(temperature);
            if pushes {
                own.kick(factor, 0.5 * own.step, temperature);
            }
        }
        let (mut accepted, mut steps) = (0.0, 0);
        for leap in 0..max_leapfrogs {
            let is_on_its_way =
                |own: &&mut Move| leap < own.leapfrogs && own.proposal.log_density(temperature).is_finite();
            let mut on_their_way: Vec<&mut Move> = moves.iter_mut().filter(is_on_its_way).collect();
            on_their_way.iter_mut().for_each(|own| own.drift(factor));
            evaluate(target, &mut on_their_way.iter_mut().map(|own| &mut own.proposal).collect::<Vec<_>>());
            steps += on_their_way.len();
            for own in on_their_way {
                if pushes && own.proposal.log_density(temperature).is_finite() {
                    own.kick(factor, if leap + 1 == own.leapfrogs { 0.5 } else { 1.0 } * own.step, temperature);
                }
            }
        }
        for (own, particle) in moves.iter_mut().zip(&mut *particles) {
            let log_ratio = own.log_density(temperature) - own.before;
            let probability = if log_ratio.is_nan() { 0.0 } else { log_ratio.exp().min(1.0) };
            accepted += probability;
            if own.chance < probability {
                std::mem::swap(particle, &mut own.proposal);
            }
        }
        let rate = accepted / particles.len() as f64;
        // Halves or doubles at worst; 0.7 is where short Hamiltonian moves travel furthest per gradient, and 0.35 where a random
        // walk in few dimensions does, many of whose steps are shorter than the adapted one.
        let best = if self.pushes { 0.7 } else { 0.35 };
        self.log_step = (self.log_step + 2.0 * (rate - best)).clamp(-12.0, 1.0);
        (rate, steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Standard normal prior, one normal measurement `y` of `z` with sd `s`: everything is known.
    struct Conjugate {
        y: f64,
        s: f64,
        gradient: bool,
    }

    impl Bayes for Conjugate {
        fn dim(&self) -> usize {
            1
        }

        fn parts(&mut self, z: &[f64], prior: &mut [f64], likelihood: &mut [f64]) -> (f64, f64) {
            let log_root_two_pi = 0.5 * (2.0 * std::f64::consts::PI).ln();
            let r = (self.y - z[0]) / self.s;
            prior[0] = -z[0];
            likelihood[0] = if self.gradient { r / self.s } else { f64::NAN };
            (-0.5 * z[0] * z[0] - log_root_two_pi, -0.5 * r * r - self.s.ln() - log_root_two_pi)
        }

        fn sample_prior(&mut self, rng: &mut ChaCha8Rng, z: &mut [f64]) {
            z[0] = rng.sample(StandardNormal);
        }

        fn has_gradient(&self) -> bool {
            self.gradient
        }
    }

    #[test]
    fn conjugate_posterior_and_evidence() {
        for gradient in [true, false] {
            conjugate(gradient);
        }
    }

    fn conjugate(gradient: bool) {
        let (y, s) = (1.5, 0.1);
        let runs: Vec<Population> = (0..32)
            .map(|run| {
                sample(&mut Conjugate { y, s, gradient }, &Settings::default(), Stream::root(5).at(run), &|| true)
                    .expect("samples")
            })
            .collect();
        let variance = 1.0 / (1.0 + 1.0 / (s * s));
        let log_evidence = -0.5 * (y * y / (1.0 + s * s) + (2.0 * std::f64::consts::PI * (1.0 + s * s)).ln());
        let per_run = |f: &dyn Fn(&Population) -> f64| -> (f64, f64) {
            let values: Vec<f64> = runs.iter().map(f).collect();
            let mean = values.iter().sum::<f64>() / 32.0;
            let spread = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 31.0;
            (mean, (spread / 32.0).sqrt())
        };
        // Six comparisons at alpha = 1e-4 with 31 degrees of freedom: t = 5.0.
        let (mean, se) = per_run(&|p| p.draws.iter().map(|z| z[0]).sum::<f64>() / p.draws.len() as f64);
        assert!((mean - y * variance / (s * s)).abs() < 5.0 * se, "{mean} {se}");
        let exact_mean = y * variance / (s * s);
        let (var, se) =
            per_run(&|p| p.draws.iter().map(|z| (z[0] - exact_mean).powi(2)).sum::<f64>() / p.draws.len() as f64);
        assert!((var - variance).abs() < 5.0 * se, "{var} {variance} {se}");
        // exp(log Z) is unbiased.
        let (ratio, se) = per_run(&|p| (p.log_evidence - log_evidence).exp());
        assert!((ratio - 1.0).abs() < 5.0 * se, "{ratio} {se}");
        let of_runs: Vec<f64> = runs.iter().map(|p| p.log_evidence).collect();
        let pooled = crate::special::log_sum_exp(&of_runs) - 32_f64.ln();
        // The mean of runs exceeds what their logarithms average to by half of their variance, 32 squared errors.
        let error = log_evidence_error(&of_runs).expect("runs");
        assert!((pooled - log_evidence).abs() < 5.0 * error + 16.0 * error * error, "{pooled} {log_evidence} {error}");
    }

    #[test]
    fn impossible_data_are_an_error() {
        struct Never;
        impl Bayes for Never {
            fn dim(&self) -> usize {
                1
            }
            fn parts(&mut self, _: &[f64], _: &mut [f64], _: &mut [f64]) -> (f64, f64) {
                (0.0, f64::NEG_INFINITY)
            }
            fn sample_prior(&mut self, rng: &mut ChaCha8Rng, z: &mut [f64]) {
                z[0] = rng.random();
            }
        }
        assert!(sample(&mut Never, &Settings::default(), Stream::root(1), &|| true).is_err());
    }
}
