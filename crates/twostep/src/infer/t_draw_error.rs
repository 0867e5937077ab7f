//! Whether the T-draws are enough: how far E-Lik and E-Post depend on which were drawn.

use super::propagation::Method;
use super::{IPosterior, Prepared, QuantitySummary};
use crate::draws::Sorted;

/// Error above which more T-draws are advised, and the one that they are to reach, in sds.
pub const T_DRAW_ERROR: f64 = 0.1;
const ENOUGH: f64 = 0.05;

/// The error of means, 5 % and 95 % quantiles that comes from a finite number of T-draws, in sds: the largest over the unknowns and
/// sds. None for methods that do not mix the posteriors of T-draws, and for weighted T-draws, which were not drawn.
///
/// With shares `pi_s` of the T-draws in the posterior, the mean of f has the variance `sum_s pi_s^2 (E[f | s] - E[f])^2`: what the
/// squared difference of answers by two halves of the T-draws is on average, over four. Two I-draws have T-draw s in common with
/// probability `pi_s^2`, so that this is the mean over pairs of I-draws of the product of their f, less its mean, where their T-draw is
/// the same, and of zero elsewhere. Pairs are of different chains, where there are several. An error of the probability below a quantile
/// moves it to those of the probabilities that are off by as much.
fn t_draw_error(prepared: &Prepared, method: Method, answer: &IPosterior) -> Option<f64> {
    let (log_alpha, draws) = (prepared.log_alpha(), &answer.draws);
    if ![Method::ELik, Method::EPost].contains(&method) || !prepared.has_sampled_draws() || draws.len() < 2 {
        return None;
    }
    let t_draws = answer.t_draws.as_ref()?;
    let n = draws.len();
    // What a draw may not be paired with: the rest of its chain, or nothing but itself.
    let together = if answer.chains > 1 { n.div_ceil(answer.chains) } else { 1 };
    let variance = |f: &[f64]| {
        let mean = f.iter().sum::<f64>() / n as f64;
        let mut sums = vec![0.0; log_alpha.len()];
        let mut own = 0.0;
        let mut of_chain = vec![0.0; log_alpha.len()];
        for (f, s) in f.chunks(together).zip(t_draws.chunks(together)) {
            f.iter().zip(s).for_each(|(f, &s)| of_chain[s] += f - mean);
            for &s in s {
                sums[s] += of_chain[s];
                own += of_chain[s] * of_chain[s];
                of_chain[s] = 0.0;
            }
        }
        let pairs = n * n - f.chunks(together).map(|f| f.len() * f.len()).sum::<usize>();
        ((sums.iter().map(|sum| sum * sum).sum::<f64>() - own) / pairs as f64).max(0.0)
    };
    let of_parameter = |d: usize| {
        let values: Vec<f64> = draws.iter().map(|x| x[d]).collect();
        let sorted = Sorted::new(&values, &vec![1.0; n]);
        let of_quantile = |quantile: f64| {
            let below: Vec<f64> = values.iter().map(|x| f64::from(*x <= quantile)).collect();
            // That of the I-draws, which may be off a little: the quantile is known better than by them.
            let (p, off) = (below.iter().sum::<f64>() / n as f64, variance(&below).sqrt());
            let [low, high] = [p - off, p + off].map(|p| sorted.quantile(p.clamp(0.0, 1.0)));
            0.5 * (high - low)
        };
        let QuantitySummary { sd, q05, q95, .. } = answer.unknowns[d];
        let errors = [variance(&values).sqrt(), of_quantile(q05), of_quantile(q95)];
        errors.into_iter().fold(0.0, f64::max) / sd
    };
    let error = (0..prepared.prior.len()).map(of_parameter).fold(0.0, f64::max);
    error.is_finite().then_some(error)
}

impl IPosterior {
    /// Advice on the number of T-draws.
    pub(super) fn advise_on_t_draws(&mut self, prepared: &Prepared, method: Method) {
        if prepared.is_marginal(method) {
            return;
        }
        let n_draws = prepared.draws.n_draws();
        self.diagnostics.t_draw_error = t_draw_error(prepared, method, self);
        if let Some(error) = self.diagnostics.t_draw_error.filter(|error| *error > T_DRAW_ERROR) {
            let wanted = n_draws as f64 * (error / ENOUGH).powi(2);
            // One digit, rounded up: the error is not known better.
            let unit = 10f64.powf(wanted.log10().floor());
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
