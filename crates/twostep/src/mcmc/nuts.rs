//! Maps a log density and a start to a chain of draws by the no-U-turn sampler of `nuts-rs` [Hoffman 2014].

use std::collections::HashMap;

use nuts_rs::{
    CpuLogpFunc, CpuMath, CpuMathError, FlowNutsSettings, HasDims, KineticEnergyKind, LogpError, LowRankNutsSettings,
    Math, Settings as _,
};
use rand::{Rng, RngExt};
use rand_distr::StandardNormal;

use super::LogDensity;
use crate::error::{Error, Result};
use crate::monitor::Proceed;

/// How long to sample, and how carefully.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Draws that are thrown away while step size and metric are adapted.
    pub warmup: usize,
    /// Draws that are kept, at least 1.
    pub draws: usize,
    /// Acceptance that the step size is adapted to, between 0 and 1. Higher is slower and survives sharper bends.
    pub target_accept: f64,
    /// A trajectory ends after 2^max_depth - 1 steps at the latest.
    pub max_depth: u64,
}

impl Default for Settings {
    /// 1000 + 1000 draws. The cost of an effective draw is flat for acceptances between 0.6 and 0.9 [Betancourt 2014];
    /// 0.9 is its careful end, with room for densities that bend more than a normal one. Depth 10: a chain that needs more than
    /// 1023 steps for a draw wants another parametrisation.
    fn default() -> Self {
        Self { warmup: 1000, draws: 1000, target_accept: 0.9, max_depth: 10 }
    }
}

/// One chain after warm-up.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// Positions: draws x dim.
    pub draws: Vec<Vec<f64>>,
    /// How each draw was made.
    pub transitions: Vec<Transition>,
    /// Number of draws whose trajectory was cut at `max_depth`: slow, not wrong.
    pub max_depth_hits: usize,
    /// Density evaluations of the sampler, warm-up included.
    pub gradients: u64,
    /// Adapted step size, before the 10 % jitter that each draw adds.
    pub step_size: f64,
    /// [`Metric::from_draws`] of this chain, to be handed to a neighbouring density.
    pub scale: Metric,
}

/// How one draw was made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transition {
    /// Log density at the draw.
    pub log_density: f64,
    /// Hamiltonian at the draw.
    pub energy: f64,
    /// Whether the trajectory left the support or the integrator's stability: a region that was not explored.
    pub diverging: bool,
    /// Doublings of the trajectory.
    pub tree_depth: u64,
    /// Steps of the trajectory.
    pub n_steps: u64,
    /// Mean acceptance over the trajectory.
    pub acceptance: f64,
    /// Step size that the draw was made with.
    pub step_size: f64,
}

/// The draws of each chain.
pub fn draws_of(chains: &[Chain]) -> Vec<&[Vec<f64>]> {
    chains.iter().map(|chain| chain.draws.as_slice()).collect()
}

impl Chain {
    /// Hamiltonian at each draw, for [`e_bfmi`](super::diagnostics::e_bfmi).
    pub fn energy(&self) -> Vec<f64> {
        self.transitions.iter().map(|t| t.energy).collect()
    }

    /// Number of divergent draws.
    pub fn divergences(&self) -> usize {
        self.transitions.iter().filter(|t| t.diverging).count()
    }

    /// The draws of one coordinate, as the diagnostics take them. Panics if `index` is not below dim.
    pub fn coordinate(&self, index: usize) -> Vec<f64> {
        self.draws.iter().map(|z| z[index]).collect()
    }
}

/// Location and scale of a density, `z = mean + factor w` with w of about unit covariance.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Centre, of length dim. The sampler does not depend on it, apart from rounding.
    pub mean: Vec<f64>,
    /// Lower triangular factor of the covariance, dim x dim by rows, with a positive diagonal.
    pub factor: Vec<f64>,
}

impl Metric {
    /// Zero mean and unit covariance.
    pub fn identity(dim: usize) -> Self {
        let mut factor = vec![0.0; dim * dim];
        factor.iter_mut().step_by(dim + 1).for_each(|f| *f = 1.0);
        Self { mean: vec![0.0; dim], factor }
    }

    /// Mean and covariance of n draws of equal length, the correlations times n / (n + 5): Stan's weight, but drawn to
    /// the draws' own variances rather than to a fixed one, so that units do not matter. Positive definite also for n
    /// below dim. A coordinate that did not move gets a scale of one; no draws give dimension zero.
    pub fn from_draws(draws: &[Vec<f64>]) -> Self {
        let Some(first) = draws.first() else { return Self::identity(0) };
        let (dim, count) = (first.len(), draws.len() as f64);
        let mean: Vec<f64> = (0..dim).map(|i| draws.iter().map(|z| z[i]).sum::<f64>() / count).collect();
        let mut factor = vec![0.0; dim * dim];
        for z in draws {
            for i in 0..dim {
                for j in 0..=i {
                    factor[i * dim + j] += (z[i] - mean[i]) * (z[j] - mean[j]) / (count - 1.0).max(1.0);
                }
            }
        }
        for i in 0..dim {
            for j in 0..i {
                factor[i * dim + j] *= count / (count + 5.0);
            }
            // A coordinate that did not move varies by the rounding of its mean.
            if factor[i * dim + i] <= (count * f64::EPSILON * mean[i]).powi(2) {
                factor[i * dim + i] = 1.0;
            }
        }
        factorise(&mut factor, dim);
        Self { mean, factor }
    }

    fn dim(&self) -> usize {
        self.mean.len()
    }

    fn row(&self, i: usize) -> &[f64] {
        &self.factor[i * self.dim()..][..=i]
    }

    /// z = mean + factor w.
    fn colour(&self, w: &[f64], z: &mut [f64]) {
        for (i, z_i) in z.iter_mut().enumerate() {
            *z_i = self.mean[i] + self.row(i).iter().zip(w).map(|(f, w)| f * w).sum::<f64>();
        }
    }

    /// Solves z = mean + factor w for w.
    fn whiten(&self, z: &[f64], w: &mut [f64]) {
        for i in 0..self.dim() {
            let known: f64 = self.row(i)[..i].iter().zip(&*w).map(|(f, w)| f * w).sum();
            w[i] = (z[i] - self.mean[i] - known) / self.row(i)[i];
        }
    }

    /// Gradient in w = factor' gradient in z.
    fn pull(&self, gradient_z: &[f64], gradient_w: &mut [f64]) {
        gradient_w.fill(0.0);
        for (i, g) in gradient_z.iter().enumerate() {
            gradient_w.iter_mut().zip(self.row(i)).for_each(|(w, f)| *w += f * g);
        }
    }
}

/// Overwrites the lower triangle of a positive definite matrix, by rows, by its Cholesky factor.
fn factorise(matrix: &mut [f64], dim: usize) {
    for i in 0..dim {
        for j in 0..=i {
            let known: f64 = (0..j).map(|k| matrix[i * dim + k] * matrix[j * dim + k]).sum();
            let rest = matrix[i * dim + j] - known;
            // The shrinkage keeps the rest above 5 / (n + 5) of the variance, far above rounding.
            matrix[i * dim + j] = if i == j { rest.sqrt() } else { rest / matrix[j * dim + j] };
        }
    }
}

/// [`Report`] of a draw's statistics: their type differs between adaptations and has no public name, so no function can.
macro_rules! report {
    ($stats:ident) => {
        Report {
            log_density: $stats.point.logp,
            kinetic: $stats.point.kinetic_energy,
            tree_depth: $stats.depth,
            max_depth_hit: $stats.maxdepth_reached,
            acceptance: $stats.adapt.step_size.mean_tree_accept,
            step_size: $stats.adapt.step_size.step_size_bar,
        }
    };
}

/// Samples with a metric and step size of its own, adapted during warm-up: scales of all coordinates, and of the
/// directions whose scale differs by more than a factor of about 1.4.
///
/// `proceed` is asked between draws. Fails if it says no, and if the log density or its gradient is not finite at `start`; non-finite densities later on are divergences. A
/// start where a component of the gradient is exactly zero, such as a mode or a centre of symmetry, is moved by about a
/// thousandth, since the first scales are taken from the gradient. The same arguments and generator give the same bits
/// on the same kind of processor.
pub fn sample(
    density: &mut (impl LogDensity + ?Sized),
    start: &[f64],
    settings: &Settings,
    rng: &mut impl Rng,
    proceed: Proceed<'_>,
) -> Result<Chain> {
    let start = prepare(density, start, settings, rng)?;
    let mut options =
        LowRankNutsSettings { num_tune: settings.warmup as u64, maxdepth: settings.max_depth, ..Default::default() };
    options.adapt_options.step_size_settings.target_accept = settings.target_accept;
    // Clipped gradients would hide what should be counted as a divergence.
    options.gradient_clipping = None;

    let metric = Metric::identity(start.len());
    let mut gradients = 0;
    let target = Target { density, metric: &metric, gradients: &mut gradients };
    let mut chain = options.new_chain(0, CpuMath::new(target), rng).map_err(broken)?;
    let sampled = run(&mut chain, &start, settings, |stats| report!(stats), proceed)?;
    drop(chain);
    Ok(Chain { gradients, ..sampled })
}

/// Samples with the metric of a neighbouring density; warm-up, of 50 draws say, adapts the step size only.
///
/// Starts, failures and `proceed` as in [`sample`].
pub fn sample_with(
    density: &mut (impl LogDensity + ?Sized),
    start: &[f64],
    metric: &Metric,
    settings: &Settings,
    rng: &mut impl Rng,
    proceed: Proceed<'_>,
) -> Result<Chain> {
    let start = prepare(density, start, settings, rng)?;
    let dim = start.len();
    let usable = metric.mean.len() == dim
        && metric.factor.len() == dim * dim
        && metric.mean.iter().chain(&metric.factor).all(|x| x.is_finite())
        && (0..dim).all(|i| metric.factor[i * dim + i] > 0.0);
    if !usable {
        return Err(Error::invalid(
            "metric",
            format!("not a mean and a lower triangular factor with a positive diagonal of dimension {dim}"),
            "take the metric of a chain over the same coordinates",
        ));
    }
    let mut options = FlowNutsSettings {
        num_tune: settings.warmup as u64,
        maxdepth: settings.max_depth,
        trajectory_kind: KineticEnergyKind::Euclidean,
        ..Default::default()
    };
    // All of warm-up is the step-size window, so that the transformation is never asked to learn.
    options.adapt_options.step_size_window = 1.0;
    options.adapt_options.step_size_settings.target_accept = settings.target_accept;
    // The bound of `sample`; the smaller default of this preset is meant for another integrator.
    options.adapt_options.step_size_settings.adapt_options.dual_average.max_step_size = std::f64::consts::PI;

    let mut gradients = 0;
    let target = Target { density, metric, gradients: &mut gradients };
    let mut chain = options.new_chain(0, CpuMath::new(target), rng).map_err(broken)?;
    let sampled = run(&mut chain, &start, settings, |stats| report!(stats), proceed)?;
    drop(chain);
    Ok(Chain { gradients, ..sampled })
}

/// Checks the arguments and returns a start where the density is finite and its gradient has no zero component.
fn prepare(
    density: &mut (impl LogDensity + ?Sized),
    start: &[f64],
    settings: &Settings,
    rng: &mut impl Rng,
) -> Result<Vec<f64>> {
    if settings.draws == 0 || settings.max_depth == 0 {
        return Err(Error::invalid("NUTS", "no draws, or a depth of 0", "set both to at least 1"));
    }
    if !(settings.target_accept > 0.0 && settings.target_accept < 1.0) {
        return Err(Error::invalid(
            "target_accept",
            format!("{} is not between 0 and 1", settings.target_accept),
            "0.8 is the usual choice",
        ));
    }
    let dim = density.dim();
    if start.len() != dim {
        return Err(Error::invalid("start", format!("{} coordinates", start.len()), format!("give {dim}")));
    }
    let mut gradient = vec![0.0; dim];
    let mut evaluate = |z: &[f64], gradient: &mut [f64]| {
        let value = density.log_density(z, gradient);
        (value, value.is_finite() && gradient.iter().all(|g| g.is_finite()))
    };
    let (value, mut finite) = evaluate(start, &mut gradient);
    if !finite {
        return Err(Error::failed(
            "NUTS",
            format!("the log density is {value} at the start, or its gradient is not finite"),
            "start inside the support",
        ));
    }
    let level: Vec<usize> = (0..dim).filter(|&i| gradient[i] == 0.0).collect();
    let mut moved = start.to_vec();
    // Several tries, because a start may lie at the edge of the support.
    for _ in 0..20 {
        if finite && gradient.iter().all(|g| *g != 0.0) {
            return Ok(moved);
        }
        for &i in &level {
            moved[i] = start[i] + 1e-3 * start[i].abs().max(1.0) * rng.sample::<f64, _>(StandardNormal);
        }
        finite = evaluate(&moved, &mut gradient).1;
    }
    Err(Error::failed(
        "NUTS",
        "the log density does not depend on every coordinate near the start",
        "give every unknown a proper prior, or start elsewhere",
    ))
}

/// What is kept of the statistics of a draw.
struct Report {
    log_density: f64,
    kinetic: f64,
    tree_depth: u64,
    max_depth_hit: bool,
    acceptance: f64,
    step_size: f64,
}

/// Warm-up and draws; `gradients` is left to the caller, who owns the counter.
fn run<M: Math, C: nuts_rs::Chain<M>>(
    chain: &mut C,
    start: &[f64],
    settings: &Settings,
    read: impl Fn(C::Stats) -> Report,
    proceed: Proceed<'_>,
) -> Result<Chain> {
    let ask = || if proceed() { Ok(()) } else { Err(Error::Interrupted) };
    chain.set_position(start).map_err(broken)?;
    for _ in 0..settings.warmup {
        ask()?;
        chain.draw().map_err(broken)?;
    }
    let mut sampled = Chain {
        draws: Vec::with_capacity(settings.draws),
        transitions: Vec::with_capacity(settings.draws),
        max_depth_hits: 0,
        gradients: 0,
        step_size: f64::NAN,
        scale: Metric::identity(0),
    };
    for _ in 0..settings.draws {
        ask()?;
        let (position, _, stats, progress) = chain.expanded_draw().map_err(broken)?;
        let report = read(stats);
        sampled.draws.push(position.into_vec());
        sampled.transitions.push(Transition {
            log_density: report.log_density,
            energy: report.kinetic - report.log_density,
            diverging: progress.diverging,
            tree_depth: report.tree_depth,
            n_steps: progress.num_steps,
            acceptance: report.acceptance,
            step_size: progress.step_size,
        });
        sampled.max_depth_hits += usize::from(report.max_depth_hit);
        sampled.step_size = report.step_size;
    }
    sampled.scale = Metric::from_draws(&sampled.draws);
    Ok(sampled)
}

fn broken(problem: impl std::fmt::Display) -> Error {
    Error::failed("NUTS", format!("{problem:#}"), "start elsewhere, or check the gradient of the density")
}

/// The density as `nuts-rs` calls it, in the coordinates of a fixed metric where it asks for a transformation.
struct Target<'a, D: ?Sized> {
    density: &'a mut D,
    metric: &'a Metric,
    gradients: &'a mut u64,
}

/// Counted by the sampler as a divergence.
#[derive(Debug, thiserror::Error)]
#[error("the log density is not finite")]
struct NonFinite;

impl LogpError for NonFinite {
    fn is_recoverable(&self) -> bool {
        true
    }
}

impl<D: LogDensity + ?Sized> HasDims for Target<'_, D> {
    fn dim_sizes(&self) -> HashMap<String, u64> {
        HashMap::from([("unconstrained_parameter".to_string(), self.density.dim() as u64)])
    }
}

// The log determinant of the fixed metric is a constant and returned as zero. Its parameters are held by the target itself.
impl<D: LogDensity + ?Sized> CpuLogpFunc for Target<'_, D> {
    type LogpError = NonFinite;
    type FlowParameters = ();
    type ExpandedVector = ();

    fn dim(&self) -> usize {
        self.density.dim()
    }

    fn logp(&mut self, z: &[f64], gradient: &mut [f64]) -> Result<f64, NonFinite> {
        *self.gradients += 1;
        let value = self.density.log_density(z, gradient);
        if value.is_finite() { Ok(value) } else { Err(NonFinite) }
    }

    fn expand_vector<R: Rng + ?Sized>(&mut self, _: &mut R, _: &[f64]) -> Result<(), CpuMathError> {
        Ok(())
    }

    fn new_transformation<R: Rng + ?Sized>(&mut self, _: &mut R, _: usize, _: u64) -> Result<(), NonFinite> {
        Ok(())
    }

    fn init_transformation<R: Rng + ?Sized>(
        &mut self,
        _: &mut R,
        _: &[f64],
        _: &[f64],
        _: u64,
    ) -> Result<(), NonFinite> {
        Ok(())
    }

    fn transformation_id(&self, (): &()) -> Result<i64, NonFinite> {
        Ok(0)
    }

    fn inv_transform_normalize(
        &mut self,
        (): &(),
        z: &[f64],
        gradient_z: &[f64],
        w: &mut [f64],
        gradient_w: &mut [f64],
    ) -> Result<f64, NonFinite> {
        self.metric.whiten(z, w);
        self.metric.pull(gradient_z, gradient_w);
        Ok(0.0)
    }

    fn init_from_untransformed_position(
        &mut self,
        (): &(),
        z: &[f64],
        gradient_z: &mut [f64],
        w: &mut [f64],
        gradient_w: &mut [f64],
        _: Option<f64>,
    ) -> Result<(f64, f64), NonFinite> {
        let value = self.logp(z, gradient_z)?;
        self.metric.whiten(z, w);
        self.metric.pull(gradient_z, gradient_w);
        Ok((value, 0.0))
    }

    fn init_from_transformed_position(
        &mut self,
        (): &(),
        z: &mut [f64],
        gradient_z: &mut [f64],
        w: &[f64],
        gradient_w: &mut [f64],
        _: Option<f64>,
    ) -> Result<(f64, f64), NonFinite> {
        self.metric.colour(w, z);
        let value = self.logp(z, gradient_z)?;
        self.metric.pull(gradient_z, gradient_w);
        Ok((value, 0.0))
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::{FRAC_PI_2, PI};

    use super::super::diagnostics::tests::normal_bound;
    use super::super::diagnostics::{ess_bulk, mcse_mean, r_hat};
    use super::*;
    use crate::stream::Stream;

    struct Counted<F> {
        dim: usize,
        function: F,
        calls: u64,
    }

    fn density<F: FnMut(&[f64], &mut [f64]) -> f64>(dim: usize, function: F) -> Counted<F> {
        Counted { dim, function, calls: 0 }
    }

    impl<F: FnMut(&[f64], &mut [f64]) -> f64> LogDensity for Counted<F> {
        fn dim(&self) -> usize {
            self.dim
        }

        fn log_density(&mut self, z: &[f64], gradient: &mut [f64]) -> f64 {
            self.calls += 1;
            (self.function)(z, gradient)
        }
    }

    /// Two normals with means (1, -2), standard deviations (1, 10) and correlation 0.9.
    fn correlated(z: &[f64], gradient: &mut [f64]) -> f64 {
        let (a, b, rho) = (z[0] - 1.0, (z[1] + 2.0) / 10.0, 0.9);
        let rest = 1.0 - rho * rho;
        gradient[0] = -(a - rho * b) / rest;
        gradient[1] = -(b - rho * a) / rest / 10.0;
        -0.5 * (a * a - 2.0 * rho * a * b + b * b) / rest
    }

    /// The logarithm of a Gamma(3, 1) variable.
    fn log_gamma(z: &[f64], gradient: &mut [f64]) -> f64 {
        gradient[0] = 3.0 - z[0].exp();
        3.0 * z[0] - z[0].exp()
    }

    /// A standard normal cut at zero.
    fn half_normal(z: &[f64], gradient: &mut [f64]) -> f64 {
        gradient[0] = -z[0];
        if z[0] < 0.0 { f64::NEG_INFINITY } else { -0.5 * z[0] * z[0] }
    }

    type Moment = (fn(&[f64]) -> f64, f64);

    /// |estimate - truth| <= z MCSE for every moment, over chains pooled.
    fn assert_moments(chains: &[Chain], moments: &[Moment]) {
        for (index, (function, truth)) in moments.iter().enumerate() {
            let values: Vec<Vec<f64>> = chains.iter().map(|c| c.draws.iter().map(|z| function(z)).collect()).collect();
            let count: usize = values.iter().map(Vec::len).sum();
            let estimate = values.iter().flatten().sum::<f64>() / count as f64;
            let bound = normal_bound(moments.len()) * mcse_mean(&values);
            assert!((estimate - truth).abs() <= bound, "moment {index}: {estimate} for {truth} within {bound}");
        }
    }

    const CORRELATED_MOMENTS: [Moment; 5] = [
        (|z| z[0], 1.0),
        (|z| z[1], -2.0),
        (|z| (z[0] - 1.0).powi(2), 1.0),
        (|z| (z[1] + 2.0).powi(2), 100.0),
        (|z| (z[0] - 1.0) * (z[1] + 2.0), 9.0),
    ];

    fn four_chains(mut chain: impl FnMut(Stream) -> Result<Chain>) -> Vec<Chain> {
        (0..4).map(|index| chain(Stream::root(7).at(index)).unwrap()).collect()
    }

    /// Starts at the mode, where the gradient is exactly zero.
    #[test]
    fn correlated_normal() {
        let chains = four_chains(|s| {
            sample(&mut density(2, correlated), &[1.0, -2.0], &Settings::default(), &mut s.rng(), &|| true)
        });
        assert_moments(&chains, &CORRELATED_MOMENTS);
    }

    #[test]
    fn transferred_metric_gives_the_same_moments() {
        // A neighbour: shifted, 1.5 times as wide, correlation 0.6.
        let factor = vec![1.5, 0.0, 9.0, 12.0];
        let metric = Metric { mean: vec![2.0, 0.0], factor };
        let settings = Settings { warmup: 50, ..Settings::default() };
        let chains = four_chains(|s| {
            sample_with(&mut density(2, correlated), &[0.0, 0.0], &metric, &settings, &mut s.rng(), &|| true)
        });
        assert_moments(&chains, &CORRELATED_MOMENTS);
    }

    /// Moments of log G, G ~ Gamma(3): polygamma functions at 3. The third tells a density from its mirror image.
    #[test]
    fn skewed_density() {
        const EULER: f64 = 0.577_215_664_901_532_9;
        const ZETA_3: f64 = 1.202_056_903_159_594_2;
        const MEAN: f64 = 1.5 - EULER;
        let moments: [Moment; 3] = [
            (|z| z[0], MEAN),
            (|z| (z[0] - MEAN).powi(2), PI * PI / 6.0 - 1.25),
            (|z| (z[0] - MEAN).powi(3), -2.0 * (ZETA_3 - 1.125)),
        ];
        let own =
            four_chains(|s| sample(&mut density(1, log_gamma), &[0.0], &Settings::default(), &mut s.rng(), &|| true));
        assert_moments(&own, &moments);
        let settings = Settings { warmup: 50, ..Settings::default() };
        let transferred = four_chains(|s| {
            sample_with(&mut density(1, log_gamma), &[0.0], &own[0].scale, &settings, &mut s.rng(), &|| true)
        });
        assert_moments(&transferred, &moments);
    }

    #[test]
    fn leaving_the_support_is_a_divergence() {
        let chains =
            four_chains(|s| sample(&mut density(1, half_normal), &[0.5], &Settings::default(), &mut s.rng(), &|| true));
        assert!(chains.iter().all(|c| c.divergences() > 0 && c.draws.iter().all(|z| z[0] >= 0.0)));
        assert_moments(&chains, &[(|z| z[0], FRAC_PI_2.sqrt().recip()), (|z| z[0] * z[0], 1.0)]);
    }

    /// Modes 20 standard deviations apart: each chain stays in its own, which the diagnostics must tell.
    #[test]
    fn separate_modes_are_diagnosed() {
        let two_modes = |z: &[f64], gradient: &mut [f64]| {
            let centre = 10.0_f64.copysign(z[0]);
            gradient[0] = centre - z[0];
            -0.5 * gradient[0] * gradient[0]
        };
        let settings = Settings { warmup: 200, draws: 200, ..Settings::default() };
        let chains: Vec<Vec<f64>> = [-9.0, -11.0, 9.0, 11.0]
            .iter()
            .map(|&start| {
                sample(&mut density(1, two_modes), &[start], &settings, &mut Stream::root(8).rng(), &|| true).unwrap()
            })
            .map(|chain| chain.coordinate(0))
            .collect();
        // Half of the rank scores lie on either side of zero with mean +-sqrt(2 / pi) and variance 1 - 2 / pi within:
        // total over within variance is 1 / (1 - 2 / pi) = 2.75, R-hat 1.66; unmixed modes count as a handful of draws.
        assert!(r_hat(&chains) > 1.5 && ess_bulk(&chains) < 10.0, "{} {}", r_hat(&chains), ess_bulk(&chains));
    }

    #[test]
    fn reports_belong_to_the_draws() {
        let mut target = density(2, correlated);
        let settings = Settings { warmup: 100, draws: 100, max_depth: 1, ..Settings::default() };
        let chain = sample(&mut target, &[0.0, 0.0], &settings, &mut Stream::root(9).rng(), &|| true).unwrap();
        // One evaluation checks the start.
        assert_eq!(chain.gradients + 1, target.calls);
        assert_eq!((chain.draws.len(), chain.transitions.len(), chain.coordinate(1).len()), (100, 100, 100));
        assert!(chain.max_depth_hits > 50 && chain.step_size > 0.0);
        for (z, t) in chain.draws.iter().zip(&chain.transitions) {
            assert_eq!(correlated(z, &mut [0.0; 2]), t.log_density);
            assert!(t.energy + t.log_density > 0.0, "kinetic energy is positive");
            assert!(t.acceptance > 0.0 && t.acceptance <= 1.0 && t.step_size > 0.0, "{t:?}");
            assert!(t.tree_depth <= 1 && t.n_steps <= 1, "{t:?}");
        }
    }

    #[test]
    fn same_seed_same_bits() {
        let settings = Settings { warmup: 100, draws: 50, ..Settings::default() };
        let run = |seed| {
            // Through a trait object, as callers with several kinds of density will.
            let target: &mut dyn LogDensity = &mut density(2, correlated);
            let mut rng = Stream::root(seed).rng();
            let own = sample(target, &[0.5, 0.5], &settings, &mut rng, &|| true).unwrap();
            let transferred = sample_with(target, &[0.5, 0.5], &own.scale, &settings, &mut rng, &|| true).unwrap();
            (own, transferred)
        };
        assert_eq!(run(1), run(1));
        assert!(run(1).0 != run(2).0 && run(1).1 != run(2).1);
    }

    #[test]
    fn bad_arguments_are_errors() {
        let settings = Settings { warmup: 10, draws: 10, ..Settings::default() };
        let mut rng = Stream::root(1).rng();
        let mut with = |start: &[f64], settings: &Settings| {
            sample(&mut density(1, half_normal), start, settings, &mut rng, &|| true).map(|chain| chain.draws.len())
        };
        assert_eq!(with(&[1.0], &settings).unwrap(), 10);
        for start in [-1.0, f64::NAN] {
            assert!(matches!(with(&[start], &settings), Err(Error::Failed { .. })));
        }
        assert!(matches!(with(&[1.0, 1.0], &settings), Err(Error::Invalid { .. })));
        for wrong in [
            Settings { draws: 0, ..settings.clone() },
            Settings { max_depth: 0, ..settings.clone() },
            Settings { target_accept: 1.0, ..settings.clone() },
            Settings { target_accept: f64::NAN, ..settings.clone() },
        ] {
            assert!(matches!(with(&[1.0], &wrong), Err(Error::Invalid { .. })));
        }
        let flat = |z: &[f64], gradient: &mut [f64]| {
            gradient.copy_from_slice(&[-z[0], 0.0]);
            -0.5 * z[0] * z[0]
        };
        assert!(matches!(
            sample(&mut density(2, flat), &[1.0, 1.0], &settings, &mut rng, &|| true),
            Err(Error::Failed { .. })
        ));
        for factor in [vec![1.0, 0.0, 0.0], vec![1.0, 0.0, 0.0, 0.0], vec![f64::NAN, 0.0, 0.0, 1.0]] {
            let metric = Metric { mean: vec![0.0; 2], factor };
            let found = sample_with(&mut density(2, correlated), &[0.0, 0.0], &metric, &settings, &mut rng, &|| true);
            assert!(matches!(found, Err(Error::Invalid { .. })));
        }
    }

    #[test]
    fn metric_of_three_draws() {
        // Variances 4 and 16; covariance -4, times 3 / 8.
        let metric = Metric::from_draws(&[vec![-1.0, 1.0], vec![1.0, 5.0], vec![3.0, -3.0]]);
        assert_eq!(metric.mean, [1.0, 1.0]);
        for (found, expected) in metric.factor.iter().zip([2.0, 0.0, -0.75, f64::sqrt(16.0 - 0.75 * 0.75)]) {
            // A handful of operations on values below 16.
            assert!((found - expected).abs() <= 16.0 * 4.0 * f64::EPSILON, "{found} for {expected}");
        }
        assert_eq!(Metric::from_draws(&[]), Metric::identity(0));
        assert_eq!(Metric::from_draws(&vec![vec![0.0, 0.0]; 9]), Metric::identity(2));
        assert_eq!(Metric::from_draws(&vec![vec![0.1]; 1000]).factor, [1.0]);
    }

    /// Fewer draws than coordinates; white coordinates and back; the gradient as the transpose of the map.
    #[test]
    fn metric_maps_back_and_forth() {
        let mut rng = Stream::root(3).rng();
        let mut normal = |n: usize| (0..n).map(|_| rng.sample(StandardNormal)).collect::<Vec<f64>>();
        let dim = 40;
        let metric = Metric::from_draws(&(0..10).map(|_| normal(dim)).collect::<Vec<_>>());
        let (w, g) = (normal(dim), normal(dim));
        let (mut z, mut back, mut pulled) = (vec![0.0; dim], vec![0.0; dim], vec![0.0; dim]);
        metric.colour(&w, &mut z);
        metric.whiten(&z, &mut back);
        metric.pull(&g, &mut pulled);
        // Substitution amplifies rounding by at most the condition of the factor: variances near 1, rest above 5 / 15.
        let rounding = dim as f64 * f64::EPSILON;
        assert!(w.iter().zip(&back).all(|(a, b)| (a - b).abs() < 100.0 * rounding));
        let forward: f64 = g.iter().zip(&z).zip(&metric.mean).map(|((g, z), m)| g * (z - m)).sum();
        let reverse: f64 = pulled.iter().zip(&w).map(|(p, w)| p * w).sum();
        let size: f64 = g.iter().zip(&z).map(|(g, z)| (g * z).abs()).sum::<f64>() + dim as f64;
        assert!((forward - reverse).abs() < size * rounding);
    }
}
