//! Whether the T-draws are enough: what E-Lik and E-Post would be with either half of them.

use super::propagation::Method;
use super::{IPosterior, Prepared, Workspace};
use crate::draws::Sorted;
use crate::kernels::{self, log_mean_exp_weights};
use crate::stream::Stream;
use rand::seq::SliceRandom;
use rayon::prelude::*;

/// Ways in which the T-draws are halved. The mean square over so many has a standard error of a quarter at most.
const SPLITS: usize = 32;
/// I-draws by which halves are compared, and log-likelihoods that this may take.
const MOST: usize = 1000;
const LEAST: usize = 100;
const VALUES: usize = 1 << 22;
/// Probabilities on both sides of one by which the slope of a quantile is known.
const NEAR: f64 = 0.02;
/// Rounds of the evidences of E-Post, and the mean change of their logarithms at which they agree with the I-draws well enough to
/// tell halves from each other.
const ROUNDS: usize = 30;
const CONSISTENT: f64 = 1e-2;
/// I-draws that one task sums over.
const BLOCK: usize = 64;

/// Error above which more T-draws are advised, and the one that they are to reach, in sds.
pub const T_DRAW_ERROR: f64 = 0.1;
const ENOUGH: f64 = 0.05;

/// The error of means, 5 % and 95 % quantiles that comes from a finite number of T-draws, in sds: the largest over the unknowns and
/// sds. None for methods that do not mix the posteriors of T-draws, and for weighted T-draws, which were not drawn.
///
/// Posteriors by half of the T-draws weigh the I-draws x by the share of that half in their responsibilities. Estimates by two
/// halves differ by twice what is wrong with one by all: the answer is half of their root mean square difference over some
/// random halvings. The I-draws are a sample, too: a difference `D = sum_m c_m f_m` of two weighted means has the variance
/// `sum_m c_m^2 (f_m - mean)^2` for that reason alone, which is taken off its square. A quantile is the mean of an indicator,
/// times its slope by the probability.
pub(super) fn t_draw_error(prepared: &Prepared, method: Method, answer: &IPosterior) -> Option<f64> {
    let log_alpha = prepared.log_alpha();
    let n_draws = log_alpha.len();
    let is_equal = log_alpha.iter().all(|a| (a - log_alpha[0]).abs() < 1e-9);
    if ![Method::ELik, Method::EPost].contains(&method) || n_draws < 4 || !is_equal || answer.draws.is_empty() {
        return None;
    }
    let n = (VALUES / n_draws).clamp(LEAST, MOST).min(answer.draws.len());
    let draws: Vec<&Vec<f64>> = (0..n).map(|i| &answer.draws[i * answer.draws.len() / n]).collect();
    let shares = shares(prepared, &draws, method == Method::EPost);
    let mut order: Vec<usize> = (0..n_draws).collect();
    let mut rng = Stream::root(0).named("halves").rng();
    let first_halves: Vec<Vec<f64>> = (0..SPLITS)
        .map(|_| {
            order.shuffle(&mut rng);
            let mut inside = vec![0.0; n_draws];
            order[..n_draws / 2].iter().for_each(|&s| inside[s] = 1.0);
            inside
        })
        .collect();
    // `weights[split][draw]`: the share of the first half.
    let weights: Vec<Vec<f64>> = first_halves
        .par_iter()
        .map(|inside| shares.iter().map(|shares| kernels::dot(shares, inside)).collect())
        .collect();
    let of_parameter = |d: usize| {
        let values: Vec<f64> = draws.iter().map(|x| x[d]).collect();
        let sorted = Sorted::new(&values, &vec![1.0; n]);
        let below = |p: f64| -> (Vec<f64>, f64) {
            let quantile = sorted.quantile(p);
            let slope = (sorted.quantile(p + NEAR) - sorted.quantile(p - NEAR)) / (2.0 * NEAR);
            (values.iter().map(|x| f64::from(*x <= quantile)).collect(), slope)
        };
        let functions = [(values.clone(), 1.0), below(0.05), below(0.95)];
        let square = |f: &[f64]| {
            let mean = f.iter().sum::<f64>() / n as f64;
            let of_split = |first: &Vec<f64>| {
                let total: f64 = first.iter().sum();
                let terms = first.iter().zip(f).map(|(w, f)| (w / total - (1.0 - w) / (n as f64 - total)) * (f - mean));
                let (difference, noise) = terms.fold((0.0, 0.0), |(sum, squares), t| (sum + t, squares + t * t));
                difference * difference - noise
            };
            weights.iter().map(of_split).sum::<f64>() / SPLITS as f64
        };
        let errors = functions.iter().map(|(f, slope)| 0.5 * slope * square(f).max(0.0).sqrt());
        errors.fold(0.0, f64::max) / answer.unknowns[d].sd
    };
    let error = (0..prepared.prior.len()).into_par_iter().map(of_parameter).collect::<Vec<_>>();
    let error = error.into_iter().fold(0.0, f64::max);
    error.is_finite().then_some(error)
}

/// How much each T-draw accounts for each I-draw, where those of E-Post have the same share of all I-draws each.
fn shares(prepared: &Prepared, draws: &[&Vec<f64>], equal: bool) -> Vec<Vec<f64>> {
    let (log_alpha, n) = (prepared.log_alpha(), prepared.likelihoods.n_unknowns());
    let all: Vec<Vec<f64>> = draws
        .par_iter()
        .map_init(Workspace::default, |workspace, x| {
            let mut l = vec![0.0; log_alpha.len()];
            prepared.likelihoods.set_unknowns(&x[..n], workspace);
            prepared.likelihoods.log_likelihoods(&x[n..], workspace, &mut l);
            l
        })
        .collect();
    let mut shares = all;
    shares.par_iter_mut().for_each(|l| {
        log_mean_exp_weights(log_alpha, l);
    });
    if !equal {
        return shares;
    }
    // By what the weight of each T-draw is multiplied.
    let mut factors = vec![1.0; log_alpha.len()];
    for _ in 0..ROUNDS {
        let blocks: Vec<Vec<f64>> = shares
            .par_chunks(BLOCK)
            .map(|block| {
                let mut sums = vec![0.0; factors.len()];
                for own in block {
                    let total = kernels::dot(own, &factors);
                    if total > 0.0 {
                        kernels::add_affine(0.0, (total * draws.len() as f64).recip(), own, &mut sums);
                    }
                }
                sums
            })
            .collect();
        let mut change = 0.0;
        for (s, (factor, a)) in factors.iter_mut().zip(log_alpha).enumerate() {
            let mean = *factor * blocks.iter().map(|sums| sums[s]).sum::<f64>();
            if mean > 0.0 {
                *factor *= a.exp() / mean;
                change += a.exp() * (a - mean.ln()).abs();
            }
        }
        if change < CONSISTENT {
            break;
        }
    }
    shares.par_iter_mut().for_each(|own| {
        let total = kernels::dot(own, &factors);
        own.iter_mut().zip(&factors).for_each(|(share, factor)| *share *= factor / total);
    });
    shares
}

impl IPosterior {
    /// Advice on the number of T-draws.
    pub(super) fn advise_on_t_draws(&mut self, prepared: &Prepared, method: Method) {
        let n_draws = prepared.draws.n_draws();
        self.diagnostics.t_draw_error = t_draw_error(prepared, method, self);
        if let Some(error) = self.diagnostics.t_draw_error.filter(|error| *error > T_DRAW_ERROR) {
            let wanted = n_draws as f64 * (error / ENOUGH).powi(2);
            // Two digits, rounded up.
            let unit = 10f64.powf(wanted.log10().floor() - 1.0);
            self.warnings.push(format!(
                "{}: {n_draws} T-draws are not enough: two halves of them differ by {:.2} sd, so that the answer is uncertain by {error:.2} \
                 sd; set train.draws = {:.0}",
                self.method,
                2.0 * error,
                (wanted / unit).ceil() * unit
            ));
        }
    }
}
