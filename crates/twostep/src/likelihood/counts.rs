//! Counts: Poisson and negative binomial with mean `mu` and variance `mu + k mu^2`, where `k = 1 / phi`.

use super::{Batch, Likelihood, Link, Members, Observed, RowKind, Scored, Side};
use crate::kernels::latent::{Cells, Curve, Integrals};
use crate::kernels::{self, latent};
use crate::special::ln_gamma;

/// A mean that is not positive counts as this: it makes zeros certain and every other count next to impossible.
pub(super) const LEAST_MEAN: f64 = 1e-12;

/// What the scale of a count is.
pub(super) enum Counts {
    /// Nothing: `k = 0`.
    Poisson,
    /// `k`.
    InversePhi,
    /// `1 / k`.
    Phi,
}

impl Counts {
    /// `k` and its derivative by the scale.
    fn dispersion(&self, scale: f64) -> (f64, f64) {
        match self {
            Self::Poisson => (0.0, 0.0),
            Self::InversePhi => (scale, 1.0),
            Self::Phi => (scale.recip(), -scale.powi(-2)),
        }
    }
}

/// `log(1 + k mu) / k`, which is mu for `k = 0`, and its derivative by k.
#[inline(always)]
fn log_ratio(k: f64, mu: f64) -> (f64, f64) {
    let x = k * mu;
    // Below, the first terms of the series in k mu have more digits than the logarithm.
    let (few, fewer) = (x < 1e-5, x < 1e-3);
    let log = kernels::ln(1.0 + x) / k;
    let series = mu * (-x).mul_add((-x).mul_add(1.0 / 3.0, 0.5), 1.0);
    let value = if few { series } else { log };
    let by_k = (mu / (1.0 + x) - value) / k;
    let by_k_series = -mu * mu * (-x).mul_add((-x).mul_add((-x).mul_add(0.8, 0.75), 2.0 / 3.0), 0.5);
    (value, if fewer { by_k_series } else { by_k })
}

/// The log-likelihood of `n` counts that sum to `total`, but for their constants, by their mean; `least` bounds the mean at which
/// the information is taken.
#[inline(always)]
fn curve(total: f64, n: f64, (k, by_scale): (f64, f64), mu: f64, log_mu: f64, least: f64) -> Curve {
    let (ratio, ratio_by_k) = log_ratio(k, mu);
    let inverse = (k.mul_add(mu, 1.0)).recip();
    let both = k.mul_add(total, n);
    Curve {
        log: total * log_mu - both * ratio,
        by_eta: (-n).mul_add(mu, total) * inverse / mu,
        information: n * inverse / if mu > least { mu } else { least },
        by_scale: -(total * ratio + both * ratio_by_k) * by_scale,
    }
}

/// `sum_{j < y} log(1 + j k)` and its derivative by k.
fn rising(y: f64, k: f64) -> (f64, f64) {
    // Terms that are summed one by one; the rest by Euler and Maclaurin, whose next term is at most 24 / 64^5 / 30240 < 1e-12.
    const FIRST: f64 = 64.0;
    const LANES: usize = 8;
    let mut sum = kernels::dispatch(
        #[inline(always)]
        || {
            // Logarithms of products of eight terms.
            let (mut product, mut by_k) = ([1.0; LANES], [0.0; LANES]);
            for chunk in 0..FIRST as usize / LANES {
                for lane in 0..LANES {
                    let j = (LANES * chunk + lane) as f64;
                    let j = if j < y { j } else { 0.0 };
                    let term = j.mul_add(k, 1.0);
                    product[lane] *= term;
                    by_k[lane] += j / term;
                }
            }
            let mut log = [0.0; LANES];
            for lane in 0..LANES {
                log[lane] = kernels::ln(product[lane]);
            }
            (log.iter().sum::<f64>(), by_k.iter().sum::<f64>())
        },
    );
    if y > FIRST {
        // Integral of log(1 + j k) and of j / (1 + j k) over j, then the corrections at the ends.
        let at = |j: f64| {
            let (x, log) = (j * k, (j * k).ln_1p());
            let integral = if x < 1e-3 {
                (
                    0.5 * j * x * (1.0 - x / 3.0 + x * x / 6.0 - x.powi(3) / 10.0),
                    0.5 * j * j * (1.0 - 2.0 * x / 3.0 + x * x / 2.0 - 0.4 * x.powi(3)),
                )
            } else {
                (((1.0 + x) * log - x) / k, (x - log) / (k * k))
            };
            let (f, slope, by_k) = (log, k / (1.0 + x), j / (1.0 + x));
            // First and third derivative by j, and by k in turn.
            let (third, third_by_k) = (2.0 * slope.powi(3), 6.0 * (k / (1.0 + x).powi(2)).powi(2));
            (
                integral.0 - 0.5 * f + slope / 12.0 - third / 720.0,
                integral.1 - 0.5 * by_k + (1.0 + x).powi(-2) / 12.0 - third_by_k / 720.0,
            )
        };
        let (from, to) = (at(FIRST), at(y));
        sum = (sum.0 + to.0 - from.0, sum.1 + to.1 - from.1);
    }
    sum
}

/// A count as it stands in a file.
pub(super) fn count(y: f64) -> Result<f64, String> {
    if y < 0.0 {
        Err("is negative, which no count is".into())
    } else if y.fract() != 0.0 {
        Err("is no whole number, as counts are".into())
    } else {
        Ok(y)
    }
}

impl Likelihood for Counts {
    fn name(&self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::InversePhi | Self::Phi => "negative-binomial",
        }
    }

    fn scale_name(&self) -> &'static str {
        match self {
            Self::Phi => "phi",
            Self::Poisson | Self::InversePhi => "inverse_phi",
        }
    }

    fn adds_errors(&self) -> bool {
        false
    }

    fn observe(&self, y: f64) -> Result<(Observed, f64), String> {
        Ok((Observed::Direct(count(y)?), 0.0))
    }

    fn constant(&self, z: f64, scale: f64) -> (f64, f64) {
        let (k, by_scale) = self.dispersion(scale);
        let (rising, by_k) = rising(z, k);
        (rising - ln_gamma(z + 1.0), by_k * by_scale)
    }

    fn score(&self, z: f64, mu: f64, scale: f64) -> Scored {
        let mu = mu.max(LEAST_MEAN);
        let Curve { log, by_eta, by_scale, .. } = curve(z, 1.0, self.dispersion(scale), mu, mu.ln(), 0.0);
        Scored { log_lik: log, by_mu: by_eta, by_scale }
    }

    fn location(&self, z: f64, _scale: f64) -> f64 {
        z + 0.5
    }

    fn information(&self, mu: f64, scale: f64) -> f64 {
        let mu = mu.max(LEAST_MEAN);
        (mu * (1.0 + self.dispersion(scale).0 * mu)).recip()
    }

    fn score_side(&self, side: Side, z: f64, mu: f64, scale: f64) -> Scored {
        let ((k, by_scale), mu) = (self.dispersion(scale), mu.max(LEAST_MEAN));
        // Probabilities of counts from `first` on, one from the other, until they are nothing or `end` is reached.
        let sum = |first: f64, end: f64| {
            let at_first = self.score(first, mu, scale).log_lik + self.constant(first, scale).0;
            let (mut log, mut total) = (at_first, [0.0; 3]);
            let mut j = first;
            while j < end {
                let p = log.exp();
                let own = curve(j, 1.0, (k, by_scale), mu, mu.ln(), 0.0);
                let of_scale = own.by_scale + rising(j, k).1 * by_scale;
                total = [total[0] + p, total[1] + p * own.by_eta, total[2] + p * of_scale];
                log += ((1.0 + j * k) / (j + 1.0) * mu / (1.0 + k * mu)).ln();
                j += 1.0;
                if j > mu && p <= f64::EPSILON * total[0] {
                    break;
                }
            }
            total
        };
        let complement = |[p, by_mu, by_scale]: [f64; 3]| [(1.0 - p).max(f64::MIN_POSITIVE), -by_mu, -by_scale];
        let [p, by_mu, by_scale] = match side {
            Side::Below => sum(0.0, z),
            // The smaller tail is summed, which keeps its digits.
            Side::Above if z > mu => sum(z + 1.0, f64::INFINITY),
            Side::Above => complement(sum(0.0, z + 1.0)),
        };
        let p = p.max(f64::MIN_POSITIVE);
        Scored { log_lik: p.ln(), by_mu: by_mu / p, by_scale: by_scale / p }
    }

    fn add_log_likelihoods(&self, batch: &Batch<'_>, out: &mut [f64]) {
        let k = self.dispersion(batch.measured).0;
        for (z, mu) in batch.rows() {
            kernels::dispatch(
                #[inline(always)]
                || {
                    let constant = self.constant(z, batch.measured).0;
                    for (out, &mu) in out.iter_mut().zip(mu) {
                        let mu = if mu > LEAST_MEAN { mu } else { LEAST_MEAN };
                        *out += curve(z, 1.0, (k, 0.0), mu, kernels::ln(mu), 0.0).log + constant;
                    }
                },
            );
        }
    }

    fn integrate(&self, groups: &[Members], link: Link, cells: &Cells<'_>, out: &mut Integrals) {
        let Some(&(_, _, scale, by_unknown)) = groups.first().and_then(|group| group.first()) else { return };
        let mut members = groups.iter().flatten();
        if link == Link::Log || members.any(|member| member.0 != RowKind::Value || member.2 != scale) {
            return super::integrate_any(self, groups, link, cells, out);
        }
        // All that a group's values say: how many there are, and their sum.
        let mut sums = std::mem::take(&mut out.sums);
        sums.clear();
        sums.extend(groups.iter().map(|group| [group.len() as f64, group.iter().map(|member| member.1).sum()]));
        let (k, by_scale) = self.dispersion(scale);
        let dispersion = (k, by_scale * by_unknown);
        let of = |group: usize| sums[group];
        match link {
            Link::Exp => latent::integrate(
                of,
                #[inline(always)]
                |_, [n, total]: [f64; 2], eta: f64| {
                    let mu = kernels::exp(eta);
                    let at = curve(total, n, dispersion, mu, eta, 0.0);
                    Curve { by_eta: at.by_eta * mu, information: at.information * mu * mu, ..at }
                },
                #[inline(always)]
                |_, [n, total]| kernels::ln((total + 0.5) / n),
                cells,
                out,
            ),
            // The information of a mean near zero is without bounds, and far from what the curve bends.
            _ => latent::integrate(
                of,
                #[inline(always)]
                |_, [n, total]: [f64; 2], eta: f64| {
                    let mu = if eta > LEAST_MEAN { eta } else { LEAST_MEAN };
                    curve(total, n, dispersion, mu, kernels::ln(mu), 0.25 * (total + 0.5) / n)
                },
                #[inline(always)]
                |_, [n, total]| (total + 0.5) / n,
                cells,
                out,
            ),
        }
        out.sums = sums;
    }
}
