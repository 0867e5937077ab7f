//! Maps chains of one quantity to R-hat, effective sample sizes and Monte Carlo standard errors [Vehtari 2021].

use statrs::function::beta::inv_beta_reg;
use statrs::function::erf::erfc_inv;

/// Rank-normalised split R-hat: the larger of the value for location (ranks) and for scale (ranks of the distance from
/// the median). Below 1.01 is the usual demand. Works for one chain, whose halves are then compared; unbounded or +inf
/// where every half chain stands still, at different values.
///
/// This and every function over `chains` takes one slice per chain, all of the same length, without warm-up, and returns
/// NaN if there is no chain, the lengths differ, a chain has fewer than 4 draws, a value is not finite, or all values are
/// equal: a constant may be a chain that never moved as well as a quantity that is constant, and the draws cannot tell
/// which. Values agree with ArviZ, except that ArviZ calls constants perfectly sampled and wants two chains for R-hat.
pub fn r_hat(chains: &[impl AsRef<[f64]>]) -> f64 {
    if !usable(chains) {
        return f64::NAN;
    }
    let halves = split(chains);
    let median = quantile(&sorted(&halves), 0.5);
    let folded: Vec<Vec<f64>> = halves.iter().map(|c| c.iter().map(|x| (x - median).abs()).collect()).collect();
    // A two-valued quantity folds to a constant, whose NaN says nothing: `max` then keeps the other value.
    variance_ratio(&rank_normalise(&halves)).max(variance_ratio(&rank_normalise(&folded)))
}

/// Effective sample size of the rank-normalised draws: how well the centre of the distribution is explored.
/// Here and below, NaN as for [`r_hat`].
pub fn ess_bulk(chains: &[impl AsRef<[f64]>]) -> f64 {
    if usable(chains) { ess(&rank_normalise(&split(chains))) } else { f64::NAN }
}

/// The smaller of [`ess_quantile`] at 5 % and at 95 %; NaN where one of them is.
pub fn ess_tail(chains: &[impl AsRef<[f64]>]) -> f64 {
    let (low, high) = (ess_quantile(chains, 0.05), ess_quantile(chains, 0.95));
    // A NaN on either side loses the comparison and is returned.
    if low < high || low.is_nan() { low } else { high }
}

/// Effective sample size for the mean. Needs a finite variance; [`ess_bulk`] does not.
pub fn ess_mean(chains: &[impl AsRef<[f64]>]) -> f64 {
    if usable(chains) { ess(&split(chains)) } else { f64::NAN }
}

/// Effective sample size for the standard deviation: that of the squared distance from the mean of all draws.
pub fn ess_sd(chains: &[impl AsRef<[f64]>]) -> f64 {
    if usable(chains) { ess(&split(&squared_distances(chains))) } else { f64::NAN }
}

/// Effective sample size for the quantile at `p`: that of the indicator of lying at or below it. NaN also where the
/// indicator is constant, as for p = 1 or where the largest values tie, and for `p` outside [0, 1].
pub fn ess_quantile(chains: &[impl AsRef<[f64]>], p: f64) -> f64 {
    if !usable(chains) {
        return f64::NAN;
    }
    let threshold = quantile(&sorted(chains), p);
    let below: Vec<Vec<f64>> =
        chains.iter().map(|c| c.as_ref().iter().map(|&x| f64::from(u8::from(x <= threshold))).collect()).collect();
    ess(&split(&below))
}

/// Monte Carlo standard error of the mean of all draws: `sd / sqrt(ess_mean)`.
pub fn mcse_mean(chains: &[impl AsRef<[f64]>]) -> f64 {
    let all: Vec<f64> = chains.iter().flat_map(|c| c.as_ref()).copied().collect();
    (variance(&all) / ess_mean(chains)).sqrt()
}

/// Monte Carlo standard error of the standard deviation of all draws, by the delta method from that of the variance:
/// with `q = (x - mean)^2`, `sqrt((mean(q^2) - mean(q)^2) / ess_sd / mean(q)) / 2`.
pub fn mcse_sd(chains: &[impl AsRef<[f64]>]) -> f64 {
    let squares: Vec<f64> = squared_distances(chains).into_iter().flatten().collect();
    let second = mean(&squares);
    let fourth = squares.iter().map(|q| q * q).sum::<f64>() / squares.len() as f64;
    ((fourth - second * second) / ess_sd(chains) / second).sqrt() / 2.0
}

/// Monte Carlo standard error of the quantile at `p`: half the distance between the draws whose ranks enclose the
/// central 68 % of a Beta(ess p + 1, ess (1 - p) + 1) variable, with ess from [`ess_quantile`].
pub fn mcse_quantile(chains: &[impl AsRef<[f64]>], p: f64) -> f64 {
    let ess = ess_quantile(chains, p);
    if ess.is_nan() {
        return f64::NAN;
    }
    let all = sorted(chains);
    // Standard normal probabilities of -1 and 1, to the digits `posterior` and ArviZ use: more would pick other draws.
    let rank = |probability| inv_beta_reg(ess * p + 1.0, ess * (1.0 - p) + 1.0, probability) * all.len() as f64 - 1.0;
    let low = all[rank(0.158_655_3).floor().max(0.0) as usize];
    let high = all[(rank(0.841_344_7).ceil() as usize).min(all.len() - 1)];
    (high - low) / 2.0
}

/// Estimated Bayesian fraction of missing information of one chain's energies [Betancourt 2016]:
/// `mean((E_t - E_{t-1})^2) / var(E)`. Below 0.3 the momentum draws are too small for the energies to be explored.
/// NaN for fewer than 4 draws, non-finite or constant energies.
pub fn e_bfmi(energy: &[f64]) -> f64 {
    if !usable(&[energy]) {
        return f64::NAN;
    }
    let steps: Vec<f64> = energy.windows(2).map(|pair| (pair[1] - pair[0]).powi(2)).collect();
    mean(&steps) / variance(energy)
}

/// The quantile at `p` of ascending values, linear between order statistics (type 7 of [Hyndman 1996]).
/// NaN for no values and for `p` outside [0, 1].
pub fn quantile(sorted: &[f64], p: f64) -> f64 {
    if sorted.is_empty() || !(0.0..=1.0).contains(&p) {
        return f64::NAN;
    }
    let position = p * (sorted.len() - 1) as f64;
    let below = position as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (position - below as f64) * (sorted[above] - sorted[below])
}

fn usable(chains: &[impl AsRef<[f64]>]) -> bool {
    let Some(first) = chains.first().map(AsRef::as_ref) else { return false };
    first.len() >= 4
        && chains.iter().all(|c| c.as_ref().len() == first.len() && c.as_ref().iter().all(|x| x.is_finite()))
        && !is_constant(chains.iter().flat_map(|c| c.as_ref()))
}

fn is_constant<'a>(mut values: impl Iterator<Item = &'a f64>) -> bool {
    let first = values.next();
    values.all(|x| Some(x) == first)
}

/// Both halves of each chain; the middle draw of an odd number is left out.
fn split(chains: &[impl AsRef<[f64]>]) -> Vec<Vec<f64>> {
    let halves = |chain: &[f64]| {
        let half = chain.len() / 2;
        [chain[..half].to_vec(), chain[chain.len() - half..].to_vec()]
    };
    chains.iter().flat_map(|c| halves(c.as_ref())).collect()
}

fn sorted(chains: &[impl AsRef<[f64]>]) -> Vec<f64> {
    let mut all: Vec<f64> = chains.iter().flat_map(|c| c.as_ref()).copied().collect();
    all.sort_unstable_by(f64::total_cmp);
    all
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn variance(values: &[f64]) -> f64 {
    let centre = mean(values);
    values.iter().map(|x| (x - centre).powi(2)).sum::<f64>() / (values.len() as f64 - 1.0)
}

fn squared_distances(chains: &[impl AsRef<[f64]>]) -> Vec<Vec<f64>> {
    let count: usize = chains.iter().map(|c| c.as_ref().len()).sum();
    let centre = chains.iter().flat_map(|c| c.as_ref()).sum::<f64>() / count as f64;
    chains.iter().map(|c| c.as_ref().iter().map(|x| (x - centre).powi(2)).collect()).collect()
}

/// Each value replaced by the normal quantile of its rank among all S values, `(rank - 3/8) / (S + 1/4)` [Blom 1958];
/// ties share their mean rank.
fn rank_normalise(chains: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut order: Vec<(f64, usize)> = chains.iter().flatten().copied().zip(0..).collect();
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let count = order.len() as f64;
    let mut scores = vec![0.0; order.len()];
    let mut before = 0;
    // In ascending order no smaller is equal; -0.0 and 0.0 are one value.
    for ties in order.chunk_by(|a, b| a.0 >= b.0) {
        let rank = before as f64 + (ties.len() + 1) as f64 / 2.0;
        let probability = (rank - 0.375) / (count + 0.25);
        let score = -std::f64::consts::SQRT_2 * erfc_inv(2.0 * probability);
        ties.iter().for_each(|&(_, place)| scores[place] = score);
        before += ties.len();
    }
    scores.chunks(chains[0].len()).map(<[f64]>::to_vec).collect()
}

/// The square root of pooled over within-chain variance: R-hat of [Gelman 1992].
fn variance_ratio(chains: &[Vec<f64>]) -> f64 {
    let length = chains[0].len() as f64;
    let within = mean(&chains.iter().map(|c| variance(c)).collect::<Vec<_>>());
    let between = variance(&chains.iter().map(|c| mean(c)).collect::<Vec<_>>());
    ((length - 1.0) / length + between / within).sqrt()
}

/// Effective sample size of the mean of at least two chains of at least two draws: the number of draws over the
/// autocorrelation time, which is summed by Geyer's initial monotone positive sequence [Geyer 1992].
fn ess(chains: &[Vec<f64>]) -> f64 {
    if is_constant(chains.iter().flatten()) {
        return f64::NAN;
    }
    let length = chains[0].len();
    let means: Vec<f64> = chains.iter().map(|c| mean(c)).collect();
    let centred: Vec<Vec<f64>> =
        chains.iter().zip(&means).map(|(c, centre)| c.iter().map(|x| x - centre).collect()).collect();
    // Lags are computed one by one, as the sum usually ends long before the last.
    let autocovariance = |lag: usize| {
        let products = |c: &Vec<f64>| c.iter().zip(&c[lag..]).map(|(a, b)| a * b).sum::<f64>();
        centred.iter().map(products).sum::<f64>() / (length * chains.len()) as f64
    };
    let biased = autocovariance(0);
    let within = biased * length as f64 / (length as f64 - 1.0);
    let pooled = biased + variance(&means);
    let correlation = |lag| 1.0 - (within - autocovariance(lag)) / pooled;

    // Sums of two neighbouring correlations of a reversible chain are positive and fall with the lag: a pair below zero
    // is noise and ends the sum, one above its predecessor is noise and is lowered to it.
    let (mut even, mut lag) = (1.0, 1);
    let mut pair = even + correlation(lag);
    let (mut time, mut ceiling) = (-1.0, f64::INFINITY);
    while lag + 3 < length && pair > 0.0 {
        ceiling = pair.min(ceiling);
        time += 2.0 * ceiling;
        even = correlation(lag + 1);
        pair = even + correlation(lag + 2);
        lag += 2;
    }
    // Half of the first correlation left out, which antithetic chains need.
    time += f64::max(even, 0.0);
    let draws = (length * chains.len()) as f64;
    // An estimate near or below zero is noise: antithetic chains are credited with at most a factor log10 of the draws.
    draws / f64::max(time, draws.log10().recip())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// 53 high bits of the 64-bit linear congruential generator with Knuth's MMIX constants, as in
    /// scripts/diagnostics_golden.py.
    pub(crate) struct Uniforms(pub(crate) u64);

    impl Uniforms {
        pub(crate) fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 11) as f64 / (1_u64 << 53) as f64
        }

        /// Irwin-Hall: mean 0, variance 1.
        pub(crate) fn bell(&mut self) -> f64 {
            (0..12).map(|_| self.next()).sum::<f64>() - 6.0
        }
    }

    /// Two-sided normal quantile at alpha = 1e-4, shared by a test's comparisons.
    pub(crate) fn normal_bound(n_comparisons: usize) -> f64 {
        std::f64::consts::SQRT_2 * erfc_inv(1e-4 / n_comparisons as f64)
    }

    fn autoregressive(phi: f64, n_chains: usize, length: usize, seed: u64) -> Vec<Vec<f64>> {
        let mut uniforms = Uniforms(seed);
        let mut chain = || {
            let mut x = uniforms.bell();
            let mut next = || {
                x = phi * x + uniforms.bell();
                x
            };
            (0..length).map(|_| next()).collect()
        };
        (0..n_chains).map(|_| chain()).collect()
    }

    fn heavy(n_chains: usize, length: usize, seed: u64) -> Vec<Vec<f64>> {
        let mut uniforms = Uniforms(seed);
        let mut ratio = || (2.0 * uniforms.next() - 1.0) / uniforms.next();
        (0..n_chains).map(|_| (0..length).map(|_| ratio()).collect()).collect()
    }

    fn stuck() -> Vec<Vec<f64>> {
        let mut chains = autoregressive(0.5, 4, 250, 4);
        chains[3][50..].fill(1.5);
        chains
    }

    type Functions = [fn(&[Vec<f64>]) -> f64; 10];
    const FUNCTIONS: Functions = [
        r_hat,
        ess_bulk,
        ess_tail,
        ess_mean,
        ess_sd,
        |chains| ess_quantile(chains, 0.3),
        mcse_mean,
        mcse_sd,
        |chains| mcse_quantile(chains, 0.3),
        |chains| e_bfmi(&chains[0]),
    ];

    /// ArviZ 0.23.4 by scripts/diagnostics_golden.py. ArviZ sums autocovariances by Fourier transform, this module directly;
    /// both round in proportion to the number of draws, 1000 eps = 2e-13, enlarged by the heavy tail's fourth moments.
    #[test]
    fn agrees_with_arviz() {
        let golden = [
            (
                autoregressive(0.9, 4, 250, 1),
                [
                    1.0616911929286017,
                    67.00756433869792,
                    59.24846624823779,
                    66.49967607331455,
                    85.93850001031791,
                    77.21787426541167,
                    0.2797019233437084,
                    0.1733662772175903,
                    0.37498257586294437,
                    0.30122092665161254,
                ],
            ),
            (
                autoregressive(-0.5, 4, 250, 2),
                [
                    1.0001973910423507,
                    2779.5561303268473,
                    1012.8788013458332,
                    2846.2952919861873,
                    701.2611714649521,
                    1568.5112563119358,
                    0.02092176844917913,
                    0.02992870797417516,
                    0.03659093398902047,
                    2.912877596184389,
                ],
            ),
            (
                heavy(4, 251, 3),
                [
                    0.9991655113203305,
                    1070.9917930774732,
                    991.2916180034165,
                    1014.4505907186378,
                    1018.9957576836193,
                    992.5523974613492,
                    0.583162184659971,
                    5.916731710443305,
                    0.05346135708744765,
                    1.9954915577972292,
                ],
            ),
            (
                stuck(),
                [
                    1.1173857073017541,
                    25.12841831239871,
                    435.1511391376707,
                    22.06460220261039,
                    395.89846532837333,
                    55.08921543607359,
                    0.2665403043180676,
                    0.04150898062237606,
                    0.2432491604864977,
                    0.7653181175140924,
                ],
            ),
        ];
        for (case, (chains, expected)) in golden.iter().enumerate() {
            for (index, (function, expected)) in FUNCTIONS.iter().zip(expected).enumerate() {
                let found = function(chains);
                assert!((found / expected - 1.0).abs() < 1e-9, "case {case}, {index}: {found} for {expected}");
            }
        }
    }

    /// A chain with correlation phi^t has an effective share of (1 - phi) / (1 + phi).
    #[test]
    fn effective_size_of_autoregression() {
        let (n_repeats, n_chains, length) = (32_u64, 4, 2000);
        for phi in [-0.4, 0.0, 0.6] {
            let truth = (n_chains * length) as f64 * (1.0 - phi) / (1.0 + phi);
            let ratios: Vec<f64> = (0..n_repeats)
                .map(|seed| ess_mean(&autoregressive(phi, n_chains, length, 100 + seed)) / truth)
                .collect();
            let monte_carlo = normal_bound(3) * (variance(&ratios) / n_repeats as f64).sqrt();
            // Far correlations have the standard error sqrt((1 + phi^2) / (1 - phi^2) / S) [Bartlett 1946]. Where the sum
            // ends is decided by that noise, which misplaces about one pair, counted twice in the time.
            let far = ((1.0 + phi * phi) / (1.0 - phi * phi) / (n_chains * length) as f64).sqrt();
            let truncation = 2.0 * 2.0_f64.sqrt() * far * (1.0 - phi) / (1.0 + phi);
            let error = mean(&ratios) - 1.0;
            assert!(error.abs() < monte_carlo + truncation, "phi {phi}: {error}, {monte_carlo}, {truncation}");
        }
    }

    #[test]
    fn what_cannot_be_judged_is_nan() {
        let unusable: [&[Vec<f64>]; 6] = [
            &[],
            &[vec![], vec![]],
            &[vec![1.0, 2.0, 3.0]],
            &[vec![1.0, 2.0, 3.0, f64::INFINITY], vec![1.0, 2.0, 3.0, 4.0]],
            &[vec![1.0, 2.0, 3.0, f64::NAN], vec![1.0, 2.0, 3.0, 4.0]],
            &[vec![2.0; 10], vec![2.0; 10]],
        ];
        for chains in unusable {
            assert!(FUNCTIONS[..9].iter().all(|function| function(chains).is_nan()), "{chains:?}");
        }
        let unequal = [vec![1.0, 2.0, 3.0, 4.0], vec![1.0, 2.0, 3.0, 4.0, 5.0]];
        assert!(FUNCTIONS[..9].iter().all(|function| function(&unequal).is_nan()));
        for energy in [vec![], vec![1.0, 2.0, 3.0], vec![1.0, 2.0, 3.0, f64::NAN], vec![2.0; 10]] {
            assert!(e_bfmi(&energy).is_nan(), "{energy:?}");
        }
        assert!(ess_quantile(&stuck(), 1.0).is_nan() && ess_quantile(&stuck(), 1.5).is_nan());
    }

    /// Chains that stand still at different values: no within-chain variance, one effective draw for each at most.
    #[test]
    fn frozen_chains_are_diagnosed() {
        let frozen: Vec<Vec<f64>> = (0..4).map(|chain| vec![f64::from(chain); 100]).collect();
        // Rounding of a mean of 50 equal values is all the variance there is.
        assert!(r_hat(&frozen) > 1.0 / (50.0 * f64::EPSILON));
        assert!(ess_bulk(&frozen) < 8.0);
    }

    #[test]
    fn quantiles_interpolate() {
        let values = [1.0, 2.0, 4.0, 8.0, 16.0];
        assert_eq!([0.0, 0.25, 0.375, 1.0].map(|p| quantile(&values, p)), [1.0, 2.0, 3.0, 16.0]);
        assert_eq!(quantile(&[7.0], 0.3), 7.0);
        assert!(
            quantile(&[], 0.5).is_nan() && quantile(&values, -0.1).is_nan() && quantile(&values, f64::NAN).is_nan()
        );
    }
}
