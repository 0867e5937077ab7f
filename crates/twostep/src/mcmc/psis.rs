//! Maps raw log importance ratios to smoothed, normalised log weights and the tail shape that tells whether to trust them.

/// Smoothed importance weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Smoothed {
    /// Log weights in the order of the ratios, whose exponentials sum to one.
    pub log_weights: Vec<f64>,
    /// Shape of the generalised Pareto distribution fitted to the largest weights. With S ratios, estimates are reliable
    /// below `min(1 - 1 / log10(S), 0.7)` and mislead above; +inf where fewer than 5 weights make up the tail (always
    /// for S <= 20) or the fit fails, and the weights are then only normalised; -inf where all ratios agree.
    pub k_hat: f64,
}

/// Pareto-smoothed importance sampling [Vehtari 2024]: the largest `min(S / 5, 3 sqrt(S))` of the S weights are replaced by
/// the expected order statistics of a generalised Pareto distribution fitted to them, and cut off at the largest raw weight.
///
/// A ratio of -inf is a weight of zero. If there is no finite ratio, or one is NaN or +inf, all results are NaN.
pub fn smooth(log_ratios: &[f64]) -> Smoothed {
    let largest = log_ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if !largest.is_finite() || log_ratios.iter().any(|r| r.is_nan()) {
        return Smoothed { log_weights: vec![f64::NAN; log_ratios.len()], k_hat: f64::NAN };
    }
    let mut log_weights: Vec<f64> = log_ratios.iter().map(|r| r - largest).collect();
    let k_hat = smooth_tail(&mut log_weights);
    let log_sum = log_weights.iter().map(|w| w.exp()).sum::<f64>().ln();
    log_weights.iter_mut().for_each(|w| *w -= log_sum);
    Smoothed { log_weights, k_hat }
}

/// Smooths the tail of log weights whose largest is zero, and returns its shape.
fn smooth_tail(log_weights: &mut [f64]) -> f64 {
    let count = log_weights.len();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| log_weights[a].total_cmp(&log_weights[b]));
    // Ratios of log densities that agree still differ by rounding, whose tail means nothing; weights closer than this
    // average to the same 8 digits with or without smoothing.
    if log_weights[order[0]] > -f64::EPSILON.sqrt() {
        return f64::NEG_INFINITY;
    }
    let longest = (count as f64 / 5.0).min(3.0 * (count as f64).sqrt()).ceil() as usize;
    if longest < SHORTEST_TAIL {
        return f64::INFINITY;
    }
    // Weights below the smallest normal number would all be the same to the fit.
    let cutoff = log_weights[order[count - longest - 1]].max(f64::MIN_POSITIVE.ln());
    let tail = &order[order.partition_point(|&i| log_weights[i] <= cutoff)..];
    if tail.len() < SHORTEST_TAIL {
        return f64::INFINITY;
    }
    let excesses: Vec<f64> = tail.iter().map(|&i| log_weights[i].exp() - cutoff.exp()).collect();
    let Pareto { shape, scale } = fit(&excesses);
    if !(shape.is_finite() && scale > 0.0) {
        return f64::INFINITY;
    }
    for (rank, &place) in tail.iter().enumerate() {
        let log_survival = (-(rank as f64 + 0.5) / tail.len() as f64).ln_1p();
        let excess =
            if shape.abs() < f64::EPSILON { -log_survival } else { (-shape * log_survival).exp_m1() / shape } * scale;
        log_weights[place] = (excess + cutoff.exp()).ln().min(0.0);
    }
    shape
}

/// Two parameters and three points to judge them by.
const SHORTEST_TAIL: usize = 5;

/// Survival function `(1 + shape x / scale)^(-1 / shape)`.
struct Pareto {
    shape: f64,
    scale: f64,
}

/// Generalised Pareto distribution of ascending positive values [Zhang 2009]: the posterior mean of `b = -shape / scale`
/// over a grid of its profile likelihood times an empirical prior; then the shape is drawn towards 1/2 with the weight of
/// ten values, which tames short tails [Vehtari 2024].
fn fit(ascending: &[f64]) -> Pareto {
    let n = ascending.len() as f64;
    let quartile = ascending[(n / 4.0 + 0.5) as usize - 1];
    let largest = ascending[ascending.len() - 1];
    let shape_at = |b: f64| ascending.iter().map(|x| (-b * x).ln_1p()).sum::<f64>() / n;

    let grid = 30 + n.sqrt() as usize;
    let (points, log_likelihoods): (Vec<f64>, Vec<f64>) = (0..grid)
        .map(|j| {
            let b = (1.0 - (grid as f64 / (j as f64 + 0.5)).sqrt()) / (3.0 * quartile) + 1.0 / largest;
            let shape = shape_at(b);
            (b, n * ((-b / shape).ln() - shape - 1.0))
        })
        .unzip();
    let highest = log_likelihoods.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = log_likelihoods.iter().map(|l| (l - highest).exp()).sum();
    // Far grid points reach so large |b| that weights of rounding size would still pull the mean.
    let kept = points.iter().zip(log_likelihoods.iter().map(|l| (l - highest).exp() / total));
    let (sum, weight) = kept
        .filter(|(_, weight)| *weight >= 10.0 * f64::EPSILON)
        .fold((0.0, 0.0), |(sum, total), (b, weight)| (sum + b * weight, total + weight));
    let b = sum / weight;
    let shape = shape_at(b);
    Pareto { shape: (n * shape + 10.0 * 0.5) / (n + 10.0), scale: -shape / b }
}

#[cfg(test)]
mod tests {
    use super::super::diagnostics::tests::{Uniforms, normal_bound};
    use super::*;

    fn pareto_ratios(shape: f64, count: usize, seed: u64) -> Vec<f64> {
        let mut uniforms = Uniforms(seed);
        (0..count).map(|_| -shape * uniforms.next().ln()).collect()
    }

    /// ArviZ 0.23.4 `psislw` by scripts/diagnostics_golden.py: k_hat, log weights 0, 1 and largest, sum of squared weights.
    /// The fit is a chain of sums over 100 values and 40 grid points, whose rounding is far below 1e-9.
    #[test]
    fn agrees_with_arviz() {
        let mut uniforms = Uniforms(8);
        let bounded = (0..30).map(|_| -0.5 * uniforms.bell().powi(2)).collect();
        let golden = [
            (
                pareto_ratios(0.3, 500, 5),
                [0.3684077141513385, -6.514261189193784, -5.990687089360861, -4.642728469335994, 0.0024138139682473156],
            ),
            (
                pareto_ratios(0.7, 500, 6),
                [1.040785094916403, -5.822826913003451, -6.7384066572960615, -3.6032556886914144, 0.006047413673294616],
            ),
            (
                pareto_ratios(1.5, 500, 7),
                [1.1625589995041046, -8.788264251881877, -9.780457364874856, -0.9348851706684327, 0.17483694057116397],
            ),
            (
                bounded,
                [0.06460952561078892, -3.0022738846480848, -4.04121511116294, -2.99273043458599, 0.04059015731323832],
            ),
        ];
        for (ratios, expected) in golden {
            let Smoothed { log_weights, k_hat } = smooth(&ratios);
            let largest = log_weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let squares = log_weights.iter().map(|w| (2.0 * w).exp()).sum();
            for (found, expected) in [k_hat, log_weights[0], log_weights[1], largest, squares].iter().zip(expected) {
                assert!((found / expected - 1.0).abs() < 1e-9, "{found} for {expected}");
            }
        }
    }

    /// Exact Pareto tails of known shape. The likelihood's standard error is (1 + k) / sqrt(tail); the prior moves the
    /// estimate by at most 10 |k - 1/2| / (tail + 10).
    #[test]
    fn finds_the_shape_of_pareto_tails() {
        let count = 40_000;
        let tail = 3.0 * (count as f64).sqrt();
        for (seed, shape) in [(21, 0.2), (22, 0.5), (23, 0.9)] {
            let found = smooth(&pareto_ratios(shape, count, seed)).k_hat;
            let bound = normal_bound(3) * (1.0 + shape) / tail.sqrt() + 10.0 * (shape - 0.5_f64).abs() / (tail + 10.0);
            assert!((found - shape).abs() < bound, "{found} for {shape}, {bound}");
        }
    }

    #[test]
    fn weights_sum_to_one_and_keep_their_order() {
        let mut ratios = pareto_ratios(0.8, 300, 31);
        ratios.extend([f64::NEG_INFINITY; 20]);
        ratios.iter_mut().for_each(|r| *r += 5000.0);
        let Smoothed { log_weights, .. } = smooth(&ratios);
        // Each of 320 terms rounds relatively by a few ulps.
        assert!((log_weights.iter().map(|w| w.exp()).sum::<f64>() - 1.0).abs() < 320.0 * 4.0 * f64::EPSILON);
        assert!(log_weights[300..].iter().all(|w| *w == f64::NEG_INFINITY));
        let mut order: Vec<usize> = (0..320).collect();
        order.sort_by(|&a, &b| ratios[a].total_cmp(&ratios[b]));
        assert!(order.windows(2).all(|pair| log_weights[pair[0]] <= log_weights[pair[1]]));
    }

    #[test]
    fn edges() {
        let nothing = smooth(&[]);
        assert!(nothing.log_weights.is_empty() && nothing.k_hat.is_nan());
        for unusable in [f64::NAN, f64::INFINITY] {
            let smoothed = smooth(&[0.0, unusable]);
            assert!(smoothed.k_hat.is_nan() && smoothed.log_weights.iter().all(|w| w.is_nan()));
        }
        assert!(smooth(&[f64::NEG_INFINITY; 3]).k_hat.is_nan());
        assert_eq!(smooth(&[3.0; 4]), Smoothed { log_weights: vec![-(4.0_f64.ln()); 4], k_hat: f64::NEG_INFINITY });
        assert_eq!(smooth(&pareto_ratios(0.5, 20, 41)).k_hat, f64::INFINITY);
        let mut one_large = vec![0.0; 100];
        one_large[7] = 50.0;
        assert_eq!(smooth(&one_large).k_hat, f64::INFINITY);
    }
}
