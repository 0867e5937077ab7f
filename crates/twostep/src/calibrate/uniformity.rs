//! Whether probability integral transforms are uniform: ECDF, envelopes, log-gamma, and a test that respects T-trials.

use std::collections::BTreeMap;
use std::f64::consts::LN_2;

use rand::RngExt;
use serde::{Deserialize, Serialize};

use crate::special::{beta_logit_quantile, ln_beta, ln_gamma, normal_quantile};
use crate::stream::Stream;

/// Bins of the PITs: the ECDF is looked at where z = j / 100.
pub const BINS: usize = 100;

/// Probability with which a uniform sample stays within an envelope, and an interval holds the true coverage.
pub const CONFIDENCE: f64 = 0.95;

/// Levels of the central intervals whose coverage is counted.
pub const LEVELS: [f64; 4] = [0.5, 0.8, 0.9, 0.95];

/// Sign patterns of the T-trials: the p-value near 0.05 then has a standard error of 0.0034.
const SIGN_PATTERNS: usize = 3999;

/// Up to this many T-trials all sign patterns are tried, half of them being mirror images.
const FEW_T_TRIALS: usize = 12;

/// Groups whose signs are drawn: T-trials beyond this number are taken together, which costs no validity, as such groups
/// are independent too.
const MOST_SIGNS: usize = 1000;

/// Where a truth lies in its posterior, with what it counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pit {
    /// The T-trial.
    pub t_trial: usize,
    /// Posterior probability below the truth.
    pub value: f64,
    /// What it counts, up to a factor.
    pub weight: f64,
}

/// The bin of a PIT: `floor(100 u)`, at most 99.
pub fn bin(pit: f64) -> usize {
    ((BINS as f64 * pit) as usize).min(BINS - 1)
}

/// `ln P(B <= r)` of `B ~ Binomial(n, j / k)` with 0 < j < k; the error is a few ulp of `ln n!`, in any tail.
fn log_lower_tail(n: usize, j: usize, k: usize, r: usize) -> f64 {
    if r >= n {
        return 0.0;
    }
    let (p, q) = (j as f64 / k as f64, (k - j) as f64 / k as f64);
    if r as f64 > n as f64 * p {
        return (-log_lower_tail(n, k - j, k, n - 1 - r).exp()).ln_1p();
    }
    let log = |x: f64, complement: f64| if x < 0.5 { x.ln() } else { (-complement).ln_1p() };
    let (above, odds) = ((n - r) as f64, (k - j) as f64 / j as f64);
    let log_term =
        r as f64 * log(p, q) + above * log(q, p) - ln_beta(r as f64 + 1.0, above + 1.0) - (n as f64 + 1.0).ln();
    // P(B = i - 1) / P(B = i) = i / (n - i + 1) q / p, below one up to the mean.
    let (mut term, mut sum) = (1.0, 1.0);
    for i in (1..=r).rev() {
        term *= i as f64 / (n - i + 1) as f64 * odds;
        sum += term;
        if term < f64::EPSILON * sum {
            break;
        }
    }
    log_term + f64::ln(sum)
}

/// `ln gamma` of `ranks` in 0..k, k at least 2: `gamma = 2 min_j min(P(B_j <= R_j), P(B_j >= R_j))` over j = 1..k-1, where
/// `R_j` is the number of ranks below j and `B_j ~ Binomial(N, j / k)` [Säilynoja 2022]. The lower, the less uniform.
pub fn log_gamma(ranks: &[usize], k: usize) -> f64 {
    let n = ranks.len();
    let mut counts = vec![0; k];
    for &rank in ranks {
        counts[rank] += 1;
    }
    let (mut below, mut smallest) = (0, 0.0_f64);
    for j in 1..k {
        below += counts[j - 1];
        // P(B_j >= R) = P(B_(k-j) <= N - R): one function for both tails, so that mirrored ranks have the same value.
        smallest = smallest.min(log_lower_tail(n, j, k, below)).min(log_lower_tail(n, k - j, k, n - below));
    }
    LN_2 + smallest
}

/// What independent uniform ranks do with probability [`CONFIDENCE`] or a little more.
#[derive(Clone, Debug, PartialEq)]
pub struct UniformBand {
    /// Largest attainable log-gamma that uniform ranks undercut with probability of at most 5 %: reject strictly below.
    pub log_gamma_threshold: f64,
    /// Probability that uniform ranks do not undercut it.
    pub confidence: f64,
    n: usize,
    /// Smallest number of ranks below j that is not rejected, for j = 0..k; the largest is `n` minus that of k - j.
    least: Vec<usize>,
}

impl UniformBand {
    /// The band of `n` ranks in 0..k, k at least 2, by the exact probability that the ECDF stays within.
    ///
    /// Costs `k` times the width of the band (some `sqrt(n)`) times that of one increment, about 15 times: a
    /// millisecond for 200 ranks in 100 bins, 0.1 s for 20,000.
    pub fn new(n: usize, k: usize) -> Self {
        // By Bonferroni the threshold is no lower than this; above, each j alone must leave at least 95 %.
        let floor = (1.0 - CONFIDENCE).ln() - ((k - 1) as f64).ln();
        let ceiling = LN_2 + (1.0 - CONFIDENCE).ln();
        let tails: Vec<(usize, Vec<f64>)> = (1..k).map(|j| attainable(n, j, k, floor, ceiling)).collect();
        let mut candidates: Vec<f64> = tails.iter().flat_map(|(_, values)| values).copied().collect();
        candidates.sort_unstable_by(f64::total_cmp);
        candidates.dedup();
        let least = |gamma: f64| -> Vec<usize> {
            let inner = tails.iter().map(|(first, values)| first + values.partition_point(|value| *value < gamma));
            std::iter::once(0).chain(inner).chain([n]).collect()
        };
        let increments = Increments::new(n, k);
        let holds = |gamma: f64| increments.probability_within(&least(gamma));
        let first_rejected = candidates.partition_point(|gamma| holds(*gamma) >= CONFIDENCE);
        let log_gamma_threshold = candidates[first_rejected.saturating_sub(1)];
        let least = least(log_gamma_threshold);
        Self { log_gamma_threshold, confidence: increments.probability_within(&least), n, least }
    }

    /// Lowest and highest ECDF minus z at z = j / k, for j = 0..=k.
    pub fn envelope(&self) -> Vec<[f64; 2]> {
        let k = self.least.len() - 1;
        let n = self.n.max(1) as f64;
        (0..=k)
            .map(|j| {
                let z = j as f64 / k as f64;
                let most = self.n - self.least[k - j];
                [self.least[j] as f64 / n - z, most as f64 / n - z]
            })
            .collect()
    }
}

/// The values of `ln 2 P(B_j <= r)` from the first that reaches `floor` to the first beyond `ceiling`, and the r of the first.
fn attainable(n: usize, j: usize, k: usize, floor: f64, ceiling: f64) -> (usize, Vec<f64>) {
    let value = |r: usize| LN_2 + log_lower_tail(n, j, k, r);
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = usize::midpoint(low, high);
        if value(middle) < floor { low = middle + 1 } else { high = middle }
    }
    let mut values = Vec::new();
    for r in low..=n {
        values.push(value(r));
        if values.last().is_some_and(|last| *last > ceiling) {
            break;
        }
    }
    (low, values)
}

/// The counts of `n` uniform ranks in `k` bins, as independent Poisson variables given their sum.
struct Increments {
    n: usize,
    /// First increment whose probability counts, and the Poisson probabilities from there.
    first: usize,
    probabilities: Vec<f64>,
    /// Probability of the sum, by which is conditioned.
    of_sum: f64,
}

impl Increments {
    fn new(n: usize, k: usize) -> Self {
        let poisson = |mean: f64, count: usize| {
            if mean > 0.0 { (count as f64 * mean.ln() - mean - ln_gamma(count as f64 + 1.0)).exp() } else { 1.0 }
        };
        let (mean, of_sum) = (n as f64 / k as f64, poisson(n as f64, n));
        // What is left out adds up to less than rounding, over the k increments and after the division by `of_sum`.
        let least = f64::EPSILON.powi(2) * of_sum / k as f64;
        let mode = mean as usize;
        let first = (0..mode).rev().find(|count| poisson(mean, *count) < least).unwrap_or(0);
        let probabilities =
            (first..=n).map(|count| (count, poisson(mean, count))).take_while(|(i, p)| *i <= mode || *p >= least);
        Self { n, first, probabilities: probabilities.map(|(_, p)| p).collect(), of_sum }
    }

    /// Probability that `least[j] <= R_j <= n - least[k - j]` for all j [Säilynoja 2022].
    fn probability_within(&self, least: &[usize]) -> f64 {
        let k = least.len() - 1;
        let (mut start, mut mass) = (0, vec![1.0]);
        for j in 1..=k {
            let most = self.n - least[k - j];
            if least[j] > most {
                return 0.0;
            }
            let mut next = vec![0.0; most - least[j] + 1];
            for (i, share) in mass.iter().enumerate() {
                let from = start + i + self.first;
                let (skip, place) = if from < least[j] { (least[j] - from, 0) } else { (0, from - least[j]) };
                let targets = next.iter_mut().skip(place);
                for (target, probability) in targets.zip(self.probabilities.iter().skip(skip)) {
                    *target += share * probability;
                }
            }
            (start, mass) = (least[j], next);
        }
        mass.iter().sum::<f64>() / self.of_sum
    }
}

/// The PITs of each T-trial, in the order of their numbers.
fn by_t_trial(pits: &[Pit]) -> Vec<Vec<Pit>> {
    let mut groups: BTreeMap<usize, Vec<Pit>> = BTreeMap::new();
    for pit in pits {
        groups.entry(pit.t_trial).or_default().push(*pit);
    }
    groups.into_values().collect()
}

/// How many independent trials of equal weight the trials are worth: fewest, if the I-trials of each T-trial repeat each
/// other, and most, if they are independent.
fn worth(groups: &[Vec<Pit>]) -> (f64, f64) {
    let kish = |weights: &mut dyn Iterator<Item = f64>| {
        let (sum, squares) = weights.fold((0.0, 0.0), |(sum, squares), w| (sum + w, squares + w * w));
        if squares > 0.0 { sum * sum / squares } else { 0.0 }
    };
    let most = kish(&mut groups.iter().flatten().map(|pit| pit.weight));
    let fewest = kish(&mut groups.iter().map(|group| group.iter().map(|pit| pit.weight).sum()));
    (fewest.min(most), most)
}

/// Whether PITs are uniform, where those of one T-trial depend on each other.
#[derive(Clone, Debug, PartialEq)]
pub struct TTrialTest {
    /// Probability under uniformity of an ECDF at least as far off.
    pub p_value: f64,
    /// Smallest p-value that this number of T-trials can yield.
    pub smallest_p_value: f64,
    /// Variance of the ECDF over what it would be if all trials were independent; `None` below two T-trials.
    pub design_effect: Option<f64>,
    /// Number of independent trials of equal weight that are worth as much.
    pub effective_trials: f64,
    /// ECDF minus z at z = j / 100, for j = 0..=100.
    pub difference: Vec<f64>,
    /// Largest absolute difference at each of them that is not rejected, simultaneously.
    pub envelope: Vec<f64>,
}

impl TTrialTest {
    /// The test of `D(z) = sum_t D_t(z)`, where `D_t(z) = sum_i w_ti (1[u_ti < z] - z)` over the I-trials of T-trial t: under
    /// uniformity the `D_t` are independent with mean zero, so that the largest `|D(z)| / sqrt(z (1 - z))` is compared with
    /// its values after flipping the signs of whole T-trials [Cameron 2008]: all patterns of signs if there are few.
    ///
    /// The scale is that of independent trials and not estimated at each z: where no PIT lies below z all `D_t` are equal,
    /// and their own spread would call that a certainty.
    pub fn new(pits: &[Pit], stream: Stream) -> Self {
        Self::with_patterns(pits, stream, SIGN_PATTERNS)
    }

    fn with_patterns(pits: &[Pit], stream: Stream, n_patterns: usize) -> Self {
        let groups = by_t_trial(pits);
        let total: f64 = pits.iter().map(|pit| pit.weight).sum();
        let deviations: Vec<Vec<f64>> = groups.iter().map(|group| deviation(group, total)).collect();
        let mut difference = vec![0.0; BINS + 1];
        deviations.iter().for_each(|d| add(&mut difference, d, 1.0));

        let root: Vec<f64> = (0..=BINS).map(|j| ((j * (BINS - j)) as f64).sqrt() / BINS as f64).collect();
        let scaled = |row: &[f64]| -> Vec<f64> { (1..BINS).map(|j| row[j] / root[j]).collect() };
        let mut rows = vec![vec![0.0; BINS - 1]; groups.len().min(MOST_SIGNS)];
        for (t, row) in deviations.iter().enumerate() {
            let sign = t * rows.len() / groups.len();
            add(&mut rows[sign], &scaled(row), 1.0);
        }
        let mut maxima = flipped_maxima(&rows, stream, n_patterns);
        let observed = maxima[0];
        maxima.sort_unstable_by(|a, b| b.total_cmp(a));
        // Patterns that agree but for T-trials without influence differ by the rounding of their sums.
        let rounding = observed * rows.len() as f64 * f64::EPSILON;
        let reached = maxima.partition_point(|value| *value >= observed - rounding);
        let patterns = maxima.len() as f64;
        let critical = maxima[((1.0 - CONFIDENCE) * patterns) as usize];

        let design_effect = design_effect(&groups, &deviations, &difference, total);
        let (fewest, most) = worth(&groups);
        Self {
            p_value: reached as f64 / patterns,
            smallest_p_value: 1.0 / patterns,
            design_effect,
            effective_trials: design_effect.map_or(fewest, |effect| (most / effect).clamp(fewest, most)),
            difference,
            envelope: root.iter().map(|root| critical * root).collect(),
        }
    }
}

fn add(sum: &mut [f64], row: &[f64], sign: f64) {
    for (sum, value) in sum.iter_mut().zip(row) {
        *sum += sign * value;
    }
}

/// `D_t(z) / total` at z = j / 100, for j = 0..=100; exactly zero at both ends.
fn deviation(group: &[Pit], total: f64) -> Vec<f64> {
    let mut within = [0.0; BINS];
    for pit in group {
        within[bin(pit.value)] += pit.weight / total;
    }
    let weight: f64 = within.iter().sum();
    let mut below = 0.0;
    let mut deviation: Vec<f64> = vec![0.0; BINS + 1];
    for j in 1..BINS {
        below += within[j - 1];
        deviation[j] = below - weight * j as f64 / BINS as f64;
    }
    deviation
}

/// Largest absolute value of the sum of all rows, first as it is and then with signs flipped.
fn flipped_maxima(rows: &[Vec<f64>], stream: Stream, n_patterns: usize) -> Vec<f64> {
    let mut rng = stream.rng();
    let few = rows.len() <= FEW_T_TRIALS;
    // The mirror image of a pattern has the same maximum: the first sign stays.
    let patterns = if few { 1 << rows.len().saturating_sub(1) } else { n_patterns + 1 };
    let mut sum = vec![0.0; BINS - 1];
    let mut bits = 0_u64;
    (0..patterns)
        .map(|pattern: usize| {
            sum.fill(0.0);
            for (t, row) in rows.iter().enumerate() {
                let flip = if few {
                    ((pattern << 1) >> t) & 1 == 1
                } else {
                    if t % 64 == 0 {
                        bits = rng.random();
                    }
                    pattern > 0 && (bits >> (t % 64)) & 1 == 1
                };
                add(&mut sum, row, if flip { -1.0 } else { 1.0 });
            }
            sum.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()))
        })
        .collect()
}

/// Variance of the ECDF between T-trials, about the ECDF itself, over that of independent trials, both summed over z: about
/// the ECDF and not about z, so that dependence is not confused with PITs that are not uniform. 1 with one I-trial per
/// T-trial.
fn design_effect(groups: &[Vec<Pit>], deviations: &[Vec<f64>], difference: &[f64], total: f64) -> Option<f64> {
    let (t_trials, trials) = (groups.len() as f64, groups.iter().map(Vec::len).sum::<usize>() as f64);
    let mut between = 0.0;
    let mut squares = [0.0; BINS];
    for (group, deviation) in groups.iter().zip(deviations) {
        let weight = group.iter().map(|pit| pit.weight).sum::<f64>() / total;
        between += deviation.iter().zip(difference).map(|(d, all)| (d - weight * all).powi(2)).sum::<f64>();
        for pit in group {
            squares[bin(pit.value)] += (pit.weight / total).powi(2);
        }
    }
    let all: f64 = squares.iter().sum();
    let (mut below, mut independent) = (0.0, 0.0);
    for j in 1..BINS {
        below += squares[j - 1];
        let ecdf = difference[j] + j as f64 / BINS as f64;
        independent += below * (1.0 - ecdf).powi(2) + (all - below) * ecdf.powi(2);
    }
    let effect = (between * t_trials / (t_trials - 1.0)) / (independent * trials / (trials - 1.0));
    effect.is_finite().then_some(effect)
}

/// How often central intervals hold the truth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    /// Nominal probability of the intervals.
    pub level: f64,
    /// Share of the trials whose interval holds the truth, by weight.
    pub share: f64,
    /// Lower end of the 95 % interval of the share.
    pub lower: f64,
    /// Upper end.
    pub upper: f64,
    /// Number of independent trials that this interval is worth.
    pub effective_trials: f64,
}

impl Coverage {
    /// The interval of the share with another probability than 95 %.
    pub fn interval(&self, confidence: f64) -> [f64; 2] {
        wilson(self.share, self.effective_trials, confidence)
    }
}

/// Coverage of the central intervals of probability `level`; `None` without trials.
///
/// The interval is Wilson's, with as many trials as would have the variance that the T-trials show: reduced for its few
/// degrees of freedom [Korn 1998], at least the number of T-trials (their shares vary no more than single outcomes would) and
/// at most that of all trials. Where all intervals hold the truth, or none, the T-trials are counted.
pub fn coverage(pits: &[Pit], level: f64) -> Option<Coverage> {
    let groups = by_t_trial(pits);
    let (share, own) = held(&groups, level);
    if !share.is_finite() {
        return None;
    }
    let (fewest, most) = worth(&groups);
    // The variance of few T-trials is uncertain, and small where the share happens to be large: the least that any of the levels
    // leaves is the safer number.
    let least = LEVELS.iter().filter_map(|level| held(&groups, *level).1).chain(own).fold(f64::INFINITY, f64::min);
    let trials = if own.is_some() {
        let freedom = t_quantile(pits.len() as f64 - 1.0) / t_quantile(groups.len() as f64 - 1.0);
        (least * freedom.powi(2)).clamp(fewest, most)
    } else {
        fewest
    };
    let [lower, upper] = wilson(share, trials, CONFIDENCE);
    Some(Coverage { level, share, lower, upper, effective_trials: trials })
}

/// Share of the central intervals of probability `level` that hold the truth, by weight, and how many independent trials
/// would have its variance: `None` where there is none or below two T-trials.
fn held(groups: &[Vec<Pit>], level: f64) -> (f64, Option<f64>) {
    let total: f64 = groups.iter().flatten().map(|pit| pit.weight).sum();
    let is_held = |pit: &Pit| f64::from(u8::from((pit.value - 0.5).abs() <= 0.5 * level));
    let share = groups.iter().flatten().map(|pit| pit.weight * is_held(pit)).sum::<f64>() / total;
    let of_group = |group: &Vec<Pit>| group.iter().map(|pit| pit.weight / total * (is_held(pit) - share)).sum::<f64>();
    let spread: f64 = groups.iter().map(|group| of_group(group).powi(2)).sum();
    let t_trials = groups.len() as f64;
    let trials = share * (1.0 - share) / (spread * t_trials / (t_trials - 1.0));
    (share, (trials.is_finite() && trials > 0.0).then_some(trials))
}

/// The t with `P(|T| <= t) = ` [`CONFIDENCE`] of Student's distribution.
fn t_quantile(df: f64) -> f64 {
    // df / (df + T^2) is a beta variable with df / 2 and 1 / 2.
    (df * (-beta_logit_quantile(0.5 * df, 0.5, 1.0 - CONFIDENCE)).exp()).sqrt()
}

/// Wilson's interval of a share of n trials.
pub(super) fn wilson(share: f64, n: f64, confidence: f64) -> [f64; 2] {
    let z = -normal_quantile(0.5 * (1.0 - confidence));
    let shrink = 1.0 / (1.0 + z * z / n);
    let centre = (share + 0.5 * z * z / n) * shrink;
    let half = z * (share * (1.0 - share) / n + 0.25 * (z / n).powi(2)).sqrt() * shrink;
    [(centre - half).clamp(0.0, share), (centre + half).clamp(share, 1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::special::normal_cdf;
    use rand::Rng;
    use rand_distr::{Distribution, StandardNormal};
    use serde_json::Value;

    const ULP: f64 = f64::EPSILON;

    /// False alarms of one test, shared by its comparisons.
    const ALPHA: f64 = 1e-4;

    /// Half-width that the share of `n` events of probability `p` leaves with probability `ALPHA / comparisons`.
    fn binomial_error(p: f64, n: usize, comparisons: f64) -> f64 {
        -normal_quantile(0.5 * ALPHA / comparisons) * (p * (1.0 - p) / n as f64).sqrt()
    }

    fn reference() -> Value {
        serde_json::from_str(include_str!("../../tests/data/log_gamma/reference.json")).unwrap()
    }

    /// A handful of roundings of terms as large as `ln n!`, in ours and in theirs.
    fn rounding(n: usize) -> f64 {
        8.0 * ULP * (1.0 + ln_gamma(n as f64 + 1.0))
    }

    /// The reference bisects, and states a value just below the attainable one that it found: the next one above is meant.
    fn next_attainable(n: usize, k: usize, value: f64) -> f64 {
        (1..k).map(|j| attainable(n, j, k, value, value).1[0]).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn thresholds_are_those_of_the_reference() {
        for case in reference()["thresholds"].as_array().unwrap() {
            let (n, k) = (case["N"].as_u64().unwrap() as usize, case["K"].as_u64().unwrap() as usize);
            let band = UniformBand::new(n, k);
            let expected = next_attainable(n, k, case["log_gamma_threshold_95"].as_f64().unwrap());
            assert_eq!(band.log_gamma_threshold, expected, "{case}");
            let expected = case["coverage_at_threshold"].as_f64().unwrap();
            // Each of the k steps adds positive terms and rounds them; the last is divided by exp of terms like ln n!.
            let tolerance = (k as f64 + 8.0) * rounding(n);
            assert!((band.confidence - expected).abs() <= tolerance, "{} {case}", band.confidence);
        }
    }

    #[test]
    fn log_gamma_is_that_of_the_reference() {
        for case in reference()["vectors"].as_array().unwrap() {
            let k = case["K"].as_u64().unwrap() as usize;
            let ranks: Vec<usize> =
                case["ranks"].as_array().unwrap().iter().map(|r| r.as_u64().unwrap() as usize).collect();
            let found = log_gamma(&ranks, k);
            let tolerance = rounding(ranks.len());
            assert!((found - case["log_gamma"].as_f64().unwrap()).abs() <= tolerance, "{found} {}", case["name"]);
            let stated = case["threshold_95"].as_f64().unwrap();
            let expected = case["log_gamma_minus_threshold"].as_f64().unwrap();
            assert!((found - stated - expected).abs() <= 2.0 * tolerance, "{found} {}", case["name"]);
            let threshold = UniformBand::new(ranks.len(), k).log_gamma_threshold;
            assert_eq!(threshold, next_attainable(ranks.len(), k, stated));
            assert_eq!(found < threshold, case["uniform_rejected"].as_bool().unwrap());
        }
    }

    #[test]
    fn far_tails_are_exact() {
        // All ranks zero: P(B_1 >= N) = k^-N is the smallest of all.
        for (n, k) in [(1, 2), (200, 101), (1000, 100), (20_000, 100)] {
            let exact = LN_2 - n as f64 * (k as f64).ln();
            for ranks in [vec![0; n], vec![k - 1; n]] {
                let found = log_gamma(&ranks, k);
                assert!((found - exact).abs() <= rounding(n), "{n} {k}: {found} is not {exact}");
            }
        }
        // One rank aside: P(B_1 >= N - 1) = k^-N (1 + N (k - 1)).
        let (n, k) = (500, 100);
        let mut ranks = vec![0; n];
        ranks[7] = 60;
        let exact = LN_2 - n as f64 * (k as f64).ln() + (1.0 + (n * (k - 1)) as f64).ln();
        assert!((log_gamma(&ranks, k) - exact).abs() <= rounding(n));
    }

    #[test]
    fn both_tails_of_a_binomial_are_one() {
        for (n, k) in [(1, 3), (7, 5), (60, 100), (400, 7)] {
            for j in 1..k {
                for r in 0..n {
                    let sum = log_lower_tail(n, j, k, r).exp() + log_lower_tail(n, k - j, k, n - 1 - r).exp();
                    assert!((sum - 1.0).abs() <= rounding(n), "{n} {j}/{k} {r}: {sum}");
                }
            }
        }
    }

    #[test]
    fn the_band_holds_95_of_100_uniform_samples() {
        let samples = 10_000;
        for (n, k) in [(50, 21), (200, BINS)] {
            let band = UniformBand::new(n, k);
            let envelope = band.envelope();
            assert_eq!((envelope[0], envelope[k]), ([0.0, 0.0], [0.0, 0.0]));
            let (mut within, mut kept) = (0, 0);
            for sample in 0..samples {
                let mut rng = Stream::root(1).at(n as u64).at(sample).rng();
                let ranks: Vec<usize> = (0..n).map(|_| rng.random_range(0..k)).collect();
                // Counts over n minus z: the same expression as that of the envelope, so that equality is exact.
                let inside = (0..=k).all(|j| {
                    let ecdf = ranks.iter().filter(|rank| **rank < j).count() as f64 / n as f64 - j as f64 / k as f64;
                    envelope[j][0] <= ecdf && ecdf <= envelope[j][1]
                });
                within += usize::from(inside);
                kept += usize::from(log_gamma(&ranks, k) >= band.log_gamma_threshold);
            }
            assert_eq!(within, kept, "envelope and threshold are one test");
            let share = within as f64 / samples as f64;
            let tolerance = binomial_error(band.confidence, samples as usize, 2.0);
            assert!((share - band.confidence).abs() <= tolerance, "{share} is not {}", band.confidence);
            assert!(band.confidence >= CONFIDENCE);
        }
    }

    #[test]
    fn bands_of_any_size_exist() {
        for (n, k) in [(0, 100), (1, 2), (1, 100), (2, 2), (3, 4001), (40, 2), (20_000, 100)] {
            let band = UniformBand::new(n, k);
            assert!(
                band.confidence >= CONFIDENCE && band.confidence <= 1.0 + rounding(n) * k as f64,
                "{n} {k} {band:?}"
            );
            assert!(band.envelope().iter().all(|[low, high]| low <= high));
        }
    }

    /// PITs of normal truths whose T-trials share a component of variance `shared`, seen by posteriors whose sds are too small
    /// by `factor`.
    fn dependent(t_trials: usize, i_trials: usize, shared: f64, factor: f64, rng: &mut impl Rng) -> Vec<Pit> {
        let mut pits = Vec::new();
        for t_trial in 0..t_trials {
            let common: f64 = StandardNormal.sample(rng);
            for _ in 0..i_trials {
                let own: f64 = StandardNormal.sample(rng);
                let error = shared.sqrt() * common + (1.0 - shared).sqrt() * own;
                pits.push(Pit { t_trial, value: normal_cdf(factor * error), weight: 1.0 });
            }
        }
        pits
    }

    /// Share of samples that the test rejects.
    fn rejected(samples: u64, seed: u64, make: impl Fn(&mut rand::rngs::ChaCha8Rng) -> Vec<Pit>) -> f64 {
        let count = (0..samples)
            .filter(|sample| {
                let stream = Stream::root(seed).at(*sample);
                let test = TTrialTest::with_patterns(&make(&mut stream.at(0).rng()), stream.at(1), 199);
                let outside = test.difference.iter().zip(&test.envelope).any(|(d, e)| d.abs() > *e * (1.0 + 1e-9));
                assert_eq!(outside, test.p_value <= 1.0 - CONFIDENCE, "{test:?}");
                outside
            })
            .count();
        count as f64 / samples as f64
    }

    #[test]
    fn the_test_by_t_trial_has_its_size() {
        let samples = 400;
        for (seed, (t_trials, i_trials, shared)) in
            [(100, 2, 0.5), (40, 20, 0.5), (40, 20, 0.9), (10, 20, 0.5), (200, 1, 0.0)].into_iter().enumerate()
        {
            let share = rejected(samples, seed as u64, |rng| dependent(t_trials, i_trials, shared, 1.0, rng));
            let most = 0.05 + binomial_error(0.05, samples as usize, 5.0);
            assert!(share <= most, "{t_trials} x {i_trials}: rejects {share} of uniform samples");
        }
    }

    #[test]
    fn the_test_by_t_trial_sees_overconfidence() {
        let samples = 100;
        for (t_trials, i_trials) in [(100, 2), (40, 20), (10, 20)] {
            let share = rejected(samples, 11, |rng| dependent(t_trials, i_trials, 0.3, 2.0, rng));
            let least = 0.5 + binomial_error(0.5, samples as usize, 3.0);
            assert!(share >= least, "{t_trials} x {i_trials}: rejects {share} only");
        }
    }

    #[test]
    fn log_gamma_alone_rejects_dependent_trials_too_often() {
        let (samples, t_trials, i_trials) = (1000, 10, 20);
        let threshold = UniformBand::new(t_trials * i_trials, BINS).log_gamma_threshold;
        let below = (0..samples).filter(|sample| {
            let pits = dependent(t_trials, i_trials, 0.5, 1.0, &mut Stream::root(3).at(*sample).rng());
            let ranks: Vec<usize> = pits.iter().map(|pit| bin(pit.value)).collect();
            log_gamma(&ranks, BINS) < threshold
        });
        let share = below.count() as f64 / samples as f64;
        assert!(
            share >= 0.25 + binomial_error(0.25, samples as usize, 1.0),
            "{share} is not five times the 5 % it says"
        );
    }

    /// A normal posterior of a normal prior; truths from a wider design, and their weights.
    fn weighted(t_trials: usize, factor: f64, rng: &mut impl Rng) -> Vec<Pit> {
        let design = 1.5;
        (0..2 * t_trials)
            .map(|trial| {
                let [truth, noise]: [f64; 2] = std::array::from_fn(|_| StandardNormal.sample(rng));
                let truth = design * truth;
                let [mean, sd] = [0.5 * (truth + noise), 0.5_f64.sqrt()];
                let weight = (-0.5 * truth * truth * (1.0 - 1.0 / (design * design))).exp();
                Pit { t_trial: trial / 2, value: normal_cdf(factor * (truth - mean) / sd), weight }
            })
            .collect()
    }

    #[test]
    fn weights_turn_the_design_into_the_prior() {
        let samples = 400;
        let share = rejected(samples, 21, |rng| weighted(100, 1.0, rng));
        let most = 0.05 + binomial_error(0.05, samples as usize, 2.0);
        assert!(share <= most, "rejects {share} of weighted trials");
        let unweighted = |rng: &mut _| -> Vec<Pit> {
            weighted(100, 1.0, rng).into_iter().map(|pit| Pit { weight: 1.0, ..pit }).collect()
        };
        let share = rejected(samples, 22, unweighted);
        assert!(share > most, "rejects {share} of trials whose weights are left out");
    }

    #[test]
    fn the_design_effect_is_that_of_the_dependence() {
        let rng = |seed| Stream::root(seed).rng();
        // One I-trial per T-trial: nothing can depend.
        let single = TTrialTest::new(&dependent(150, 1, 0.0, 1.3, &mut rng(1)), Stream::root(0));
        assert!((single.design_effect.unwrap() - 1.0).abs() <= 150.0 * ULP, "{single:?}");
        // I-trials that repeat each other: 4 at a time are worth one.
        let repeated: Vec<Pit> = dependent(150, 1, 0.0, 1.0, &mut rng(2)).iter().flat_map(|pit| [*pit; 4]).collect();
        let test = TTrialTest::new(&repeated, Stream::root(0));
        let exact = 4.0 * (150.0 / 149.0) / (600.0 / 599.0);
        assert!((test.design_effect.unwrap() - exact).abs() <= 600.0 * ULP * exact);
        assert_eq!(test.effective_trials, 150.0);
        // The scale of weights is free.
        let heavy: Vec<Pit> = repeated.iter().map(|pit| Pit { weight: 8.0, ..*pit }).collect();
        assert_eq!(TTrialTest::new(&heavy, Stream::root(0)), test);
        // A single T-trial tells nothing about others.
        let alone = TTrialTest::new(&dependent(1, 30, 0.5, 3.0, &mut rng(3)), Stream::root(0));
        assert_eq!((alone.p_value, alone.design_effect, alone.effective_trials), (1.0, None, 1.0));
        assert!(!TTrialTest::new(&[], Stream::root(0)).difference.iter().any(|d| d.is_nan()));
    }

    #[test]
    fn intervals_of_coverage_hold_it() {
        let samples = 2000;
        let factor = 1.5;
        let mut failures = Vec::new();
        for (t_trials, i_trials, shared) in [(100, 2, 0.5), (40, 5, 0.5), (10, 20, 0.5), (10, 20, 0.9), (200, 1, 0.0)] {
            for level in LEVELS {
                let edge = -normal_quantile(0.5 * (1.0 - level)) / factor;
                let truth = normal_cdf(edge) - normal_cdf(-edge);
                let held = (0..samples).filter(|sample| {
                    let pits = dependent(t_trials, i_trials, shared, factor, &mut Stream::root(5).at(*sample).rng());
                    let found = coverage(&pits, level).unwrap();
                    assert!(found.lower <= found.share && found.share <= found.upper);
                    found.lower <= truth && truth <= found.upper
                });
                let share = held.count() as f64 / samples as f64;
                if share < CONFIDENCE - binomial_error(CONFIDENCE, samples as usize, 20.0) {
                    failures.push((t_trials, i_trials, shared, level, share));
                }
            }
        }
        assert!(failures.is_empty(), "{failures:?}");
    }

    #[test]
    fn coverage_without_variance_counts_t_trials() {
        let pits: Vec<Pit> = (0..40).map(|i| Pit { t_trial: i / 4, value: 0.5, weight: 1.0 }).collect();
        let found = coverage(&pits, 0.9).unwrap();
        let z = -normal_quantile(0.025);
        // Wilson's lower end of 10 out of 10.
        let exact = 10.0 / (10.0 + z * z);
        assert!((found.lower - exact).abs() <= 8.0 * ULP && found.upper == 1.0 && found.share == 1.0, "{found:?}");
        assert_eq!(coverage(&[], 0.9), None);
        let one = coverage(&pits[..1], 0.9).unwrap();
        assert!(one.lower < 0.5 && one.upper == 1.0);
    }

    #[test]
    fn quantiles_of_student() {
        // R 4.3: qt(0.975, c(1, 4, 30)).
        for (df, exact) in [(1.0, 12.706204736174705), (4.0, 2.7764451051977934), (30.0, 2.0422724563012378)] {
            assert!((t_quantile(df) - exact).abs() <= 64.0 * ULP * exact, "{} is not {exact}", t_quantile(df));
        }
    }
}
