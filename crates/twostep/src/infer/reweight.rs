//! Importance sampling of the posteriors that mix all T-draws, from points of one common proposal.
//!
//! Points `x_m` with `log v_m = log prior - log proposal` make, with the likelihoods `L_s`, the evidence of every T-draw,
//! `Z_s = sum_m v_m L_s(x_m)`, and the weights `v_m sum_s alpha_s L_s(x_m)` of E-Lik and `v_m sum_s alpha_s L_s(x_m) / Z_s` of E-Post.
//! The largest weights are Pareto-smoothed [Vehtari 2024].
//!
//! Standard errors follow from influences, the first-order change of an estimate by one point. With normalised weights w, that of a
//! mean of f by E-Lik is `w_m (f_m - mean)`. E-Post has a normalised posterior of each T-draw, whose shares are
//! `rho_sm = v_m L_s(x_m) / Z_s` and whose means are `f_s`: its influence is `sum_s alpha_s rho_sm (f_m - f_s)`, so that the errors of
//! the evidences are part of it. Points of one run depend on each other: the variance of an estimate is that of independent points,
//! inflated by the largest ratio of the spread between runs to it over all statistics of a quantity.

use super::summary::{self, QuantitySummary};
use super::{Likelihoods, Prepared, Quantity, Workspace};
use crate::draws::Sorted;
use crate::kernels;
use crate::mcmc::{psis, smc};
use crate::special::log_sum_exp;
use crate::stream::Stream;
use crate::train::PROBABILITIES;
use rayon::prelude::*;

/// Rows of the table of log-likelihoods that one task computes.
const BLOCK: usize = 128;
/// Most log-likelihoods that are kept between passes, in single precision: 512 MiB. Beyond that they are computed again.
const MAX_KEPT: usize = 1 << 27;
/// Standard errors in a stated error: normal errors are larger once in 16,000 comparisons.
pub(super) const STATED: f64 = 4.0;

/// Points of a proposal.
pub(super) struct Points {
    /// Unknowns, then sds. Consecutive points may share their unknowns, which saves work.
    pub(super) x: Vec<Vec<f64>>,
    /// Log prior minus log density of the proposal; where the latter is known up to a constant, so are the evidences.
    pub(super) log_v: Vec<f64>,
    /// Numbers of points of independent runs, or of stretches of chains, one after the other; in groups of runs of the same density.
    pub(super) runs: Vec<Vec<usize>>,
}

/// The log-likelihoods of all T-draws at all points.
pub(super) struct Table<'a> {
    likelihoods: &'a Likelihoods,
    points: &'a Points,
    /// Largest value of each row, and rows relative to it, where there is room.
    kept: Option<(Vec<f64>, Vec<f32>)>,
    /// Points with unknowns of their own: each is one evaluation of all T-draws.
    pub(super) evaluations: usize,
}

impl<'a> Table<'a> {
    /// `keep` where several passes are to come.
    pub(super) fn new(likelihoods: &'a Likelihoods, points: &'a Points, keep: bool) -> Self {
        let (n, n_draws) = (likelihoods.n_unknowns(), likelihoods.n_draws());
        let evaluations = 1 + points.x.windows(2).filter(|pair| pair[0][..n] != pair[1][..n]).count();
        let mut out = Self { likelihoods, points, kept: None, evaluations };
        if keep && points.x.len() * n_draws <= MAX_KEPT {
            let mut values = vec![0.0_f32; points.x.len() * n_draws];
            let tops: Vec<Vec<f64>> = values
                .par_chunks_mut(BLOCK * n_draws)
                .enumerate()
                .map_init(Buffers::default, |buffers, (b, values)| {
                    out.fill(b, buffers);
                    let rows = buffers.rows.chunks_exact(n_draws).zip(values.chunks_exact_mut(n_draws));
                    rows.map(|(row, values)| {
                        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        let base = if top.is_finite() { top } else { 0.0 };
                        values.iter_mut().zip(row).for_each(|(value, l)| *value = (l - base) as f32);
                        base
                    })
                    .collect()
                })
                .collect();
            out.kept = Some((tops.concat(), values));
        }
        out
    }

    /// Evaluations of all T-draws in one more pass.
    pub(super) fn pass(&self) -> usize {
        if self.kept.is_some() { 0 } else { self.evaluations }
    }

    /// Computes the rows of block `b`.
    fn fill(&self, b: usize, buffers: &mut Buffers) {
        let (n, n_draws) = (self.likelihoods.n_unknowns(), self.likelihoods.n_draws());
        let points = &self.points.x[b * BLOCK..((b + 1) * BLOCK).min(self.points.x.len())];
        buffers.rows.resize(points.len() * n_draws, 0.0);
        let mut last: Option<&[f64]> = None;
        for (x, row) in points.iter().zip(buffers.rows.chunks_exact_mut(n_draws)) {
            if last != Some(&x[..n]) {
                self.likelihoods.set_unknowns(&x[..n], &mut buffers.workspace);
                last = Some(&x[..n]);
            }
            self.likelihoods.log_likelihoods(&x[n..], &buffers.workspace, row);
        }
    }

    /// `f(first point, rows)` of every block of log-likelihoods, in order; it may change the rows.
    fn blocks<R: Send>(&self, f: impl Fn(usize, &mut [f64]) -> R + Sync) -> Vec<R> {
        let n_draws = self.likelihoods.n_draws();
        (0..self.points.x.len().div_ceil(BLOCK))
            .into_par_iter()
            .map_init(Buffers::default, |buffers, b| {
                match &self.kept {
                    None => self.fill(b, buffers),
                    Some((tops, values)) => {
                        let tops = &tops[b * BLOCK..((b + 1) * BLOCK).min(tops.len())];
                        let values = &values[b * BLOCK * n_draws..][..tops.len() * n_draws];
                        buffers.rows.resize(values.len(), 0.0);
                        let rows = buffers.rows.chunks_exact_mut(n_draws).zip(values.chunks_exact(n_draws)).zip(tops);
                        for ((row, values), top) in rows {
                            row.iter_mut().zip(values).for_each(|(l, value)| *l = f64::from(*value) + top);
                        }
                    }
                }
                f(b * BLOCK, &mut buffers.rows)
            })
            .collect()
    }

    /// Log evidence of every T-draw, and its effective number of points.
    pub(super) fn evidences(&self) -> (Vec<f64>, Vec<f64>) {
        let n_draws = self.likelihoods.n_draws();
        let parts = self.blocks(|first, rows| {
            for (row, v) in rows.chunks_exact_mut(n_draws).zip(&self.points.log_v[first..]) {
                row.iter_mut().for_each(|l| *l += v);
            }
            let (mut sum, mut squares) = (vec![0.0; n_draws], vec![0.0; n_draws]);
            kernels::add_log_sum_exp_columns(rows, &mut sum);
            rows.iter_mut().for_each(|l| *l *= 2.0);
            kernels::add_log_sum_exp_columns(rows, &mut squares);
            (sum, squares)
        });
        let mut totals = [vec![f64::NEG_INFINITY; n_draws], vec![f64::NEG_INFINITY; n_draws]];
        for (sum, squares) in parts {
            for (total, part) in totals.iter_mut().zip([sum, squares]) {
                total.iter_mut().zip(part).for_each(|(total, part)| *total = log_sum_exp(&[*total, part]));
            }
        }
        let [sum, squares] = totals;
        let effective = sum.iter().zip(&squares).map(|(z, q)| if z.is_finite() { (2.0 * z - q).exp() } else { 0.0 });
        let effective = effective.collect();
        // The mean over the points.
        let n = (self.points.x.len() as f64).ln();
        (sum.into_iter().map(|z| z - n).collect(), effective)
    }

    /// Log weight of every point in `sum_s exp(offsets[s]) L_s`.
    fn log_ratios(&self, offsets: &[f64]) -> Vec<f64> {
        let parts = self.blocks(|first, rows| {
            let rows = rows.chunks_exact_mut(offsets.len()).zip(&self.points.log_v[first..]);
            rows.map(|(row, v)| v + kernels::log_mean_exp_weights(offsets, row)).collect::<Vec<f64>>()
        });
        parts.concat()
    }

    /// What the normalised posteriors of the T-draws add to the influences of their mixture: `sum_s alpha_s rho_sm f_s` for each
    /// column f of `values` (functions by points), points by functions.
    fn centred(&self, offsets: &[f64], values: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (n_draws, n_functions) = (offsets.len(), values.len());
        // `exp(offset_s) v_m L_s(x_m) / M` is `alpha_s rho_sm`.
        let level = -(self.points.x.len() as f64).ln();
        let shares = |first: usize, rows: &mut [f64]| {
            kernels::dispatch(
                #[inline(always)]
                || {
                    for (row, v) in rows.chunks_exact_mut(n_draws).zip(&self.points.log_v[first..]) {
                        for (l, offset) in row.iter_mut().zip(offsets) {
                            *l = kernels::exp(*l + offset + v + level);
                        }
                    }
                },
            );
        };
        let parts = self.blocks(|first, rows| {
            shares(first, rows);
            let (mut sums, mut weight) = (vec![0.0; n_functions * n_draws], vec![0.0; n_draws]);
            for (m, row) in rows.chunks_exact(n_draws).enumerate() {
                kernels::add_affine(0.0, 1.0, row, &mut weight);
                for (sums, values) in sums.chunks_exact_mut(n_draws).zip(values) {
                    if values[first + m] != 0.0 {
                        kernels::add_affine(0.0, values[first + m], row, sums);
                    }
                }
            }
            (sums, weight)
        });
        let (mut means, mut weights) = (vec![0.0; n_functions * n_draws], vec![0.0; n_draws]);
        for (sums, weight) in parts {
            means.iter_mut().zip(sums).for_each(|(mean, sum)| *mean += sum);
            weights.iter_mut().zip(weight).for_each(|(total, weight)| *total += weight);
        }
        for of_function in means.chunks_exact_mut(n_draws) {
            of_function.iter_mut().zip(&weights).for_each(|(mean, w)| *mean = if *w > 0.0 { *mean / w } else { 0.0 });
        }
        let parts = self.blocks(|first, rows| {
            shares(first, rows);
            let rows = rows.chunks_exact(n_draws);
            rows.map(|row| means.chunks_exact(n_draws).map(|mean| kernels::dot(row, mean)).collect())
                .collect::<Vec<_>>()
        });
        parts.concat()
    }
}

/// k-hat and effective number of points of the posterior of every T-draw by itself.
pub(super) fn coverage(likelihoods: &Likelihoods, points: &Points) -> Vec<(f64, f64)> {
    // T-draws whose table is made at once.
    const DRAWS: usize = 512;
    let draws: Vec<usize> = (0..likelihoods.n_draws()).collect();
    let of_some = |draws: &[usize]| -> Vec<(f64, f64)> {
        let own = likelihoods.select(draws);
        let rows: Vec<f64> = Table::new(&own, points, false).blocks(|_, rows| rows.to_vec()).concat();
        let of_draw = |k: usize| {
            let ratios = points.log_v.iter().enumerate().map(|(m, v)| v + rows[m * draws.len() + k]);
            let psis::Smoothed { log_weights, k_hat } = psis::smooth(&ratios.collect::<Vec<_>>());
            let squares: f64 = log_weights.iter().map(|w| (2.0 * w).exp()).sum();
            if k_hat.is_nan() { (f64::INFINITY, 0.0) } else { (k_hat, squares.recip()) }
        };
        (0..draws.len()).into_par_iter().map(of_draw).collect()
    };
    draws.chunks(DRAWS).flat_map(of_some).collect()
}

/// `log (1 / sum_k n_k / N L_k(x) / Z_k)` at the points x, of which `counts[k] = n_k` come from the posterior of likelihood k, with
/// relative evidences that make the points agree with that: `Z_k = sum_m L_k(x_m) / sum_j n_j L_j(x_m) / Z_j` [Shirts 2008].
pub(super) fn pooled(likelihoods: &Likelihoods, x: &[Vec<f64>], counts: &[usize]) -> Vec<f64> {
    const ROUNDS: usize = 100;
    const CONSISTENT: f64 = 1e-3;
    let n = x.len() as f64;
    let points = Points { x: x.to_vec(), log_v: Vec::new(), runs: Vec::new() };
    let rows: Vec<f64> = Table::new(likelihoods, &points, false).blocks(|_, rows| rows.to_vec()).concat();
    let mut log_evidence = vec![0.0; counts.len()];
    let log_mixture = |log_evidence: &[f64]| -> Vec<f64> {
        let shares = counts.iter().zip(log_evidence).map(|(count, z)| (*count as f64 / n).ln() - z);
        let shares: Vec<f64> = shares.collect();
        let of_row = |row: &[f64]| kernels::log_mean_exp_weights(&shares, &mut row.to_vec());
        rows.par_chunks_exact(counts.len()).map(of_row).collect()
    };
    for _ in 0..ROUNDS {
        let mixture = log_mixture(&log_evidence);
        let mut shifted = rows.clone();
        for (row, q) in shifted.chunks_exact_mut(counts.len()).zip(&mixture) {
            row.iter_mut().for_each(|l| *l -= q);
        }
        let mut found = vec![0.0; counts.len()];
        kernels::add_log_sum_exp_columns(&shifted, &mut found);
        let level = found[0];
        let change = found.iter().zip(&log_evidence).map(|(new, old)| (new - level - old).abs()).fold(0.0, f64::max);
        log_evidence = found.iter().map(|z| z - level).collect();
        if change < CONSISTENT {
            break;
        }
    }
    log_mixture(&log_evidence).into_iter().map(|q| -q).collect()
}

#[derive(Default)]
struct Buffers {
    workspace: Workspace,
    rows: Vec<f64>,
}

/// A mixture over all T-draws by weighted points.
pub(super) struct Corrected {
    /// Normalised.
    pub(super) weights: Vec<f64>,
    pub(super) k_hat: f64,
    pub(super) unknowns: Vec<QuantitySummary>,
    /// `log (weight_s / Z_s)` of every T-draw: what makes its responsibilities.
    pub(super) offsets: Vec<f64>,
    /// [`STATED`] standard errors of any statistic of any quantity at most, in sds.
    pub(super) error: f64,
    /// Of E-Lik the log evidence, its standard error, and log-shares of the T-draws.
    pub(super) evidence: Option<(f64, f64, Vec<f64>)>,
}

/// Largest k-hat that weights of so many points are reliable with [Vehtari 2024].
pub(super) fn largest_k_hat(n: usize) -> f64 {
    (1.0 - (n as f64).log10().recip()).min(0.7)
}

/// E-Lik or E-Post (`normalised`) by the points of a table, whose evidences are given.
pub(super) fn correct(prepared: &Prepared, table: &Table<'_>, log_evidence: &[f64], normalised: bool) -> Corrected {
    let log_alpha = prepared.log_alpha();
    let offsets: Vec<f64> = match normalised {
        false => log_alpha.to_vec(),
        // A T-draw that the measurements exclude has no posterior.
        true => {
            let pairs = log_alpha.iter().zip(log_evidence);
            pairs.map(|(a, z)| if z.is_finite() { a - z } else { f64::NEG_INFINITY }).collect()
        }
    };
    let psis::Smoothed { log_weights, k_hat } = psis::smooth(&table.log_ratios(&offsets));
    let weights: Vec<f64> = log_weights.iter().map(|w| w.exp()).collect();
    let quantities = prepared.quantities();
    let mut unknowns: Vec<QuantitySummary> = quantities
        .par_iter()
        .map(|(name, f)| {
            let values: Vec<f64> = table.points.x.iter().map(|x| f(x)).collect();
            summary::weighted(name, &values, &weights)
        })
        .collect();
    state_errors(&mut unknowns, &quantities, table, &weights, normalised.then_some(&offsets));
    let error = unknowns.iter().map(stated_error).fold(0.0, f64::max);
    let evidence = (!normalised).then(|| {
        let joint: Vec<f64> = log_alpha.iter().zip(log_evidence).map(|(a, z)| a + z).collect();
        let total = log_sum_exp(&joint);
        // The mean weight is the evidence: normalised weights are its relative influences.
        let [between, independent] = table.points.variance(&|m| weights[m]);
        (total, between.max(independent).sqrt(), joint.iter().map(|w| w - total).collect())
    });
    Corrected { weights, k_hat, unknowns, offsets, error, evidence }
}

/// [`STATED`] standard errors of the worst statistic of a quantity, in its sds; infinite where one is not known.
pub(super) fn stated_error(quantity: &QuantitySummary) -> f64 {
    let moments = [quantity.mcse_mean, quantity.mcse_sd].map(|e| e.unwrap_or(f64::INFINITY));
    let quantiles = quantity.mcse_quantiles.unwrap_or([f64::INFINITY; 5]);
    let worst =
        moments.into_iter().chain(quantiles).fold(0.0, |m: f64, e| if e.is_nan() { f64::INFINITY } else { m.max(e) });
    if worst == 0.0 { 0.0 } else { STATED * worst / quantity.sd }
}

/// Standard errors of mean, sd and quantiles by the influences of the points; `offsets` are those of normalised posteriors.
fn state_errors(
    unknowns: &mut [QuantitySummary],
    quantities: &[(String, Quantity<'_>)],
    table: &Table<'_>,
    weights: &[f64],
    offsets: Option<&Vec<f64>>,
) {
    // Mean, squares about it, and the indicators of the quantiles.
    let functions: Vec<Vec<f64>> = unknowns
        .iter()
        .zip(quantities)
        .flat_map(|(unknown, (_, f))| {
            let values: Vec<f64> = table.points.x.iter().map(|x| f(x) - unknown.mean).collect();
            let squares = values.iter().map(|v| v * v).collect();
            let below = unknown
                .quantiles()
                .map(|q| values.iter().map(|v| f64::from(u8::from(*v <= q - unknown.mean))).collect::<Vec<f64>>());
            [values, squares].into_iter().chain(below)
        })
        .collect();
    let means: Vec<f64> = functions.par_iter().map(|f| kernels::dot(weights, f)).collect();
    let centres = offsets.map(|offsets| table.centred(offsets, &functions));
    let variances: Vec<[f64; 2]> = functions
        .par_iter()
        .enumerate()
        .map(|(j, f)| {
            let influence = |m: usize| match &centres {
                None => weights[m] * (f[m] - means[j]),
                Some(centres) => weights[m] * f[m] - centres[m][j],
            };
            table.points.variance(&influence)
        })
        .collect();
    for (((_, f), unknown), variances) in quantities.iter().zip(unknowns).zip(variances.chunks_exact(7)) {
        let inflation = variances.iter().filter(|v| v[1] > 0.0).map(|v| v[0] / v[1]).fold(1.0, f64::max);
        let errors: Vec<f64> = variances.iter().map(|v| (v[1] * inflation).sqrt()).collect();
        let values: Vec<f64> = table.points.x.iter().map(|x| f(x)).collect();
        let sorted = Sorted::new(&values, weights);
        // As for other draws: near a gap between modes several standard errors may move a quantile farther than one by one.
        let back = |k: usize| {
            let (p, error) = (PROBABILITIES[k], errors[k + 2]);
            let moved = |by: f64| (sorted.quantile(p + by * error) - sorted.quantile(p)).abs() / by.abs();
            [1.0, 2.0, STATED].into_iter().flat_map(|by| [moved(by), moved(-by)]).fold(0.0, f64::max)
        };
        unknown.mcse_mean = Some(errors[0]);
        unknown.mcse_sd = Some(errors[1] / (2.0 * unknown.sd));
        unknown.mcse_quantiles = Some([0, 1, 2, 3, 4].map(back));
        let tail = |k: usize| PROBABILITIES[k] * (1.0 - PROBABILITIES[k]) / errors[k + 2].powi(2);
        unknown.ess_bulk = Some((unknown.sd / errors[0]).powi(2));
        unknown.ess_tail = Some(tail(0).min(tail(4)));
    }
}

impl Points {
    /// Variance of the sum of all influences by the spread between runs, and with independent points.
    fn variance(&self, influence: &dyn Fn(usize) -> f64) -> [f64; 2] {
        let (mut start, mut out) = (0, [0.0; 2]);
        for group in &self.runs {
            let (n, first) = (group.iter().sum::<usize>(), start);
            let of_run = |length: &usize| {
                start += length;
                (*length as f64, (start - length..start).map(influence).sum::<f64>())
            };
            let sums: Vec<(f64, f64)> = group.iter().map(of_run).collect();
            // Points of a group vary about their own mean, which is that of its density and not zero.
            let mean = sums.iter().map(|s| s.1).sum::<f64>() / n as f64;
            let runs = sums.len() as f64;
            let between = sums.iter().map(|(length, sum)| (sum - length * mean).powi(2)).sum::<f64>();
            out[0] += between * runs / (runs - 1.0).max(1.0);
            out[1] += (first..first + n).map(|m| (influence(m) - mean).powi(2)).sum::<f64>();
        }
        out
    }
}

impl Corrected {
    /// `n` equally weighted draws by systematic resampling.
    pub(super) fn draws(&self, points: &Points, n: usize, stream: Stream) -> Vec<Vec<f64>> {
        smc::systematic(&self.weights, n, &mut stream.rng()).map(|m| points.x[m].clone()).collect()
    }
}
