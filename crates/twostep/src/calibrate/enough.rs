//! Posteriors by number of training runs to whether there were enough: the surrogate's share of the posterior variance, how it
//! falls with the runs, and how many would bring it down.

use crate::special::normal_quantile;
use serde::{Deserialize, Serialize};

/// Share of the posterior variance below which, unless told otherwise, the runs were enough: even a surrogate without any
/// uncertainty would narrow the intervals by no more than a quarter, `1 - sqrt(1 - 0.44)`; better measurements buy more.
pub const THRESHOLD: f64 = 0.44;

/// Probability of each tail that verdicts and intervals leave out.
const TAIL: f64 = 0.05;

/// sd of the slope around -1, which is what parametric theory says: weak, since an sd that few runs must teach as well falls
/// faster.
const SLOPE_SD: f64 = 0.5;

/// Largest ratio between the ends of an interval of runs that still helps to plan.
const WIDEST: f64 = 4.0;

/// Sizes that a curve needs.
const FEWEST_SIZES: usize = 3;

/// The posterior variance of one quantity by the law of total variance over the T-draws,
/// `Var(omega) = E_s Var(omega | theta_s) + Var_s E(omega | theta_s)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct VarianceParts {
    /// The whole variance.
    pub total: f64,
    /// `Var_s E(omega | theta_s)` as part of the whole: what the surrogate has not learned. Below zero where it is too small
    /// for the draws to show.
    pub surrogate_share: f64,
    /// Standard error of that share: jackknife over the T-draws, which are what was drawn independently.
    pub error: f64,
}

impl VarianceParts {
    /// From equally weighted I-draws of a mixture over T-draws, and the T-draw of each.
    ///
    /// The variance within a T-draw is the unbiased one of its own I-draws, averaged over the T-draws that have two or more
    /// with the number of I-draws as weights (a one-way random-effects estimate whose groups may differ in variance); the
    /// variance of T-draw means would count the scatter of few I-draws as uncertainty of the surrogate. Equal I-draws of one
    /// T-draw are one draw, which a sampler picked twice. Where fewer than three T-draws have I-draws, none has two, or nothing
    /// varies, nothing is known: a share of 0 with an error of 1.
    pub fn new(values: &[f64], t_draws: &[usize]) -> Self {
        let centre = values.iter().sum::<f64>() / values.len() as f64;
        let mut drawn: Vec<(usize, f64)> = t_draws.iter().copied().zip(values.iter().map(|v| v - centre)).collect();
        drawn.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let groups: Vec<Sums> = drawn.chunk_by(|a, b| a.0 == b.0).map(Sums::of_group).collect();
        let all = groups.iter().fold(Sums::default(), |all, group| all.plus(group, 1.0));
        let left_out: Vec<f64> = groups.iter().filter_map(|group| all.plus(group, -1.0).share()).collect();
        let unknown = Self { total: all.variance(), surrogate_share: 0.0, error: 1.0 };
        match all.share() {
            Some(surrogate_share) if left_out.len() > 2 => {
                let n = left_out.len() as f64;
                let error = (n - 1.0) / n.sqrt() * mean_and_variance(&left_out).1.sqrt();
                Self { surrogate_share, error: error.min(1.0), ..unknown }
            }
            _ => unknown,
        }
    }

    /// The surrogate's part.
    pub fn surrogate(&self) -> f64 {
        self.surrogate_share * self.total
    }
}

/// Sums over I-draws from which the parts follow.
#[derive(Clone, Copy, Default)]
struct Sums {
    n: f64,
    values: f64,
    squares: f64,
    /// I-draws of T-draws that have two or more, and their number times the variance within.
    repeated: f64,
    within: f64,
}

impl Sums {
    fn of_group(drawn: &[(usize, f64)]) -> Self {
        let mut distinct: Vec<f64> = drawn.iter().map(|d| d.1).collect();
        distinct.dedup();
        let (n, k) = (drawn.len() as f64, distinct.len() as f64);
        let mean = distinct.iter().sum::<f64>() / k;
        let scatter: f64 = distinct.iter().map(|v| (v - mean).powi(2)).sum();
        let is_repeated = distinct.len() > 1;
        Self {
            n,
            values: drawn.iter().map(|d| d.1).sum(),
            squares: drawn.iter().map(|d| d.1 * d.1).sum(),
            repeated: if is_repeated { n } else { 0.0 },
            within: if is_repeated { n * scatter / (k - 1.0) } else { 0.0 },
        }
    }

    fn plus(self, other: &Self, times: f64) -> Self {
        Self {
            n: self.n + times * other.n,
            values: self.values + times * other.values,
            squares: self.squares + times * other.squares,
            repeated: self.repeated + times * other.repeated,
            within: self.within + times * other.within,
        }
    }

    /// The whole variance.
    fn variance(&self) -> f64 {
        if self.n > 1.0 { (self.squares - self.values * self.values / self.n) / (self.n - 1.0) } else { 0.0 }
    }

    /// What is not within T-draws as part of the whole variance.
    fn share(&self) -> Option<f64> {
        let share = 1.0 - self.within / self.repeated / self.variance();
        share.is_finite().then_some(share)
    }
}

/// The share of one unknown with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Mean over the repetitions, within [0, 1].
    pub mean: f64,
    /// Its standard error.
    pub error: f64,
    /// Lower end of the 90 % interval, at least 0.
    pub lower: f64,
    /// Upper end, at most 1.
    pub upper: f64,
}

impl Share {
    /// From independent repetitions of the same training: the larger of what they say of themselves and what their scatter says.
    ///
    /// # Panics
    /// Without repetitions.
    pub fn new(parts: &[VarianceParts]) -> Self {
        let n = parts.len() as f64;
        let shares: Vec<f64> = parts.iter().map(|p| p.surrogate_share).collect();
        let (mean, scatter) = mean_and_variance(&shares);
        let own = parts.iter().map(|p| p.error.powi(2)).sum::<f64>() / n;
        let error = (own.max(scatter) / n).sqrt();
        let reach = normal_quantile(1.0 - TAIL) * error;
        let bounded = |share: f64| share.clamp(0.0, 1.0);
        Self { mean: bounded(mean), error, lower: bounded(mean - reach), upper: bounded(mean + reach) }
    }

    /// What the share alone says, if it should be below `threshold`.
    pub fn verdict(&self, threshold: f64) -> Verdict {
        match self {
            Self { upper, .. } if *upper < threshold => Verdict::Enough,
            Self { lower, .. } if *lower > threshold => Verdict::More,
            _ => Verdict::CannotTell,
        }
    }
}

/// Whether there were enough runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The surrogate's uncertainty hardly matters.
    Enough,
    /// The curve does not say.
    CannotTell,
    /// More runs would narrow the answer.
    More,
}

impl Verdict {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Enough => "enough",
            Self::CannotTell => "cannot tell",
            Self::More => "more",
        }
    }
}

/// The surrogate's part of one unknown's variance at one number of runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Number of runs.
    pub runs: usize,
    /// The part by each nested sequence of subsets.
    pub surrogate: Vec<f64>,
}

/// How many runs bring the share down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suggestion {
    /// Median.
    pub runs: f64,
    /// 90 % interval.
    pub interval: [f64; 2],
}

/// Extrapolates `log variance = level + slope log N` to where the surrogate's part is `threshold` of the whole, if the rest
/// stays `within`.
///
/// The slope is a normal's around -1 before the curve is seen. The scatter is the larger of that between sequences, not divided
/// by their number since they share runs, and that around the line; the level carries it once more, since the runs to come
/// scatter too.
///
/// # Errors
/// Why there is no number: a part of a sentence.
pub fn suggest(points: &[Point], within: f64, threshold: f64) -> Result<Suggestion, String> {
    let usable: Vec<&Point> = points.iter().filter(|p| p.surrogate.iter().all(|v| *v > 0.0)).collect();
    if usable.len() < FEWEST_SIZES {
        let n = usable.len();
        return Err(format!("only {n} numbers of runs can be used for a curve, which needs {FEWEST_SIZES}"));
    }
    let x: Vec<f64> = usable.iter().map(|p| (p.runs as f64).ln()).collect();
    let by_sequence = usable.iter().map(|p| p.surrogate.iter().map(|v| v.ln()).collect::<Vec<_>>());
    let (y, scatters): (Vec<f64>, Vec<f64>) = by_sequence.map(|logs| mean_and_variance(&logs)).unzip();
    let n = x.len() as f64;
    let (middle, mean) = (x.iter().sum::<f64>() / n, y.iter().sum::<f64>() / n);
    let sxx: f64 = x.iter().map(|x| (x - middle).powi(2)).sum();
    let sxy: f64 = x.iter().zip(&y).map(|(x, y)| (x - middle) * (y - mean)).sum();
    let least_squares = sxy / sxx;
    let around: f64 = x.iter().zip(&y).map(|(x, y)| (y - mean - least_squares * (x - middle)).powi(2)).sum();
    let scatter = (around / (n - 2.0)).max(scatters.iter().sum::<f64>() / n);
    let (precision, prior) = (sxx / scatter, SLOPE_SD.powi(-2));
    // Points on a line without scatter.
    let (slope, slope_sd) = if precision.is_finite() {
        ((precision * least_squares - prior) / (precision + prior), (precision + prior).sqrt().recip())
    } else {
        (least_squares, 0.0)
    };
    let z = normal_quantile(1.0 - TAIL);
    if slope + z * slope_sd >= 0.0 {
        return Err("the surrogate's part of the variance does not fall clearly with the number of runs".into());
    }
    let target = (within * threshold / (1.0 - threshold)).ln();
    let level_sd = (scatter * (1.0 + 1.0 / n)).sqrt();
    // Level in the middle of the sizes and slope are independent: a product of equally likely values holds their distribution.
    const VALUES: usize = 201;
    let values: Vec<f64> = (0..VALUES).map(|i| normal_quantile((i as f64 + 0.5) / VALUES as f64)).collect();
    let mut reached: Vec<f64> = Vec::with_capacity(VALUES * VALUES);
    for a in &values {
        for b in &values {
            let (level, slope) = (mean + level_sd * a, slope + slope_sd * b);
            reached.push(match (target - level) / slope {
                _ if slope >= 0.0 => f64::INFINITY,
                further => middle + further,
            });
        }
    }
    reached.sort_by(f64::total_cmp);
    let quantile = |p: f64| reached[(p * reached.len() as f64) as usize].exp();
    let suggestion = Suggestion { runs: quantile(0.5), interval: [quantile(TAIL), quantile(1.0 - TAIL)] };
    let [low, high] = suggestion.interval;
    if high > WIDEST * low {
        let last = usable.iter().map(|p| p.runs).max().unwrap_or(0);
        let least = if low > last as f64 { format!("more than {low:.0} are likely") } else { "few may do".to_owned() };
        return Err(format!("the curve cannot be extrapolated so far: {least}, but how many more is open"));
    }
    Ok(suggestion)
}

/// Mean and unbiased variance; the variance of one value is zero.
fn mean_and_variance(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let scatter: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    (mean, if values.len() > 1 { scatter / (n - 1.0) } else { 0.0 })
}

/// Numbers of runs to retrain with, ascending: up to `count`, equally spaced in their logarithm between a quarter of `n` (at
/// least 3) and `n`.
pub fn sizes(n: usize, count: usize) -> Vec<usize> {
    let least = (n as f64 / 4.0).max(3.0).min(n as f64);
    let step = |i: usize| (i as f64 / (count - 1) as f64 * (n as f64 / least).ln()).exp();
    let mut out: Vec<usize> = (0..count).map(|i| (least * step(i)).round() as usize).collect();
    out.dedup();
    out
}

/// All points in an order whose beginnings fill space: from `start`, each next one farthest from those before it; of equally
/// far ones that which `rank` puts first.
pub fn farthest_first(points: &[Vec<f64>], start: usize, rank: &[usize]) -> Vec<usize> {
    let mut nearest = vec![f64::INFINITY; points.len()];
    let (mut order, mut next) = (Vec::with_capacity(points.len()), start);
    let mut left: Vec<usize> = (0..points.len()).collect();
    left.sort_by_key(|&i| rank[i]);
    while !left.is_empty() {
        left.retain(|&i| i != next);
        order.push(next);
        let mut best = f64::NEG_INFINITY;
        for &i in &left {
            let squares = points[i].iter().zip(&points[order[order.len() - 1]]).map(|(a, b)| (a - b).powi(2));
            nearest[i] = nearest[i].min(squares.sum());
            if nearest[i] > best {
                (best, next) = (nearest[i], i);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A threshold for made-up shares.
    const TENTH: f64 = 0.1;
    use crate::stream::Stream;
    use rand::RngExt;
    use rand_distr::StandardNormal;

    /// I-draws of `groups` T-draws whose means have variance `between` and whose own variances differ and average to one.
    fn drawn(groups: usize, per_group: usize, between: f64, stream: Stream) -> (Vec<f64>, Vec<usize>) {
        let mut rng = stream.rng();
        let mut normal = || rng.sample::<f64, _>(StandardNormal);
        let (mut values, mut t_draws) = (Vec::new(), Vec::new());
        for s in 0..groups {
            let mean = 5.0 + between.sqrt() * normal();
            let sd = if s % 2 == 0 { 0.5_f64.sqrt() } else { 1.5_f64.sqrt() };
            for _ in 0..per_group {
                values.push(mean + sd * normal());
                t_draws.push(s);
            }
        }
        (values, t_draws)
    }

    #[test]
    fn shares_are_unbiased_with_few_draws_and_know_their_error() {
        // Comparisons of this test at a false alarm in ten thousand.
        let z = normal_quantile(1.0 - 0.5e-4 / 6.0);
        let trials = 200;
        for (k, between) in [0.0, 0.1, 1.0].into_iter().enumerate() {
            let truth = between / (1.0 + between);
            let parts: Vec<VarianceParts> = (0..trials)
                .map(|trial| {
                    let (values, t_draws) = drawn(300, 3, between, Stream::root(7).at(k as u64).at(trial));
                    VarianceParts::new(&values, &t_draws)
                })
                .collect();
            let (mean, variance) = mean_and_variance(&parts.iter().map(|p| p.surrogate_share).collect::<Vec<_>>());
            let error = (variance / trials as f64).sqrt();
            // A ratio of means over n groups is biased by its variance over the mean, of order share / n.
            let bias = truth / 300.0;
            assert!((mean - truth).abs() < z * error + bias, "{mean} against {truth}, error {error}");
            // The variance of a variance of normals has relative sd sqrt(2 / trials).
            let stated = parts.iter().map(|p| p.error.powi(2)).sum::<f64>() / trials as f64;
            let allowed = z * (2.0 / trials as f64).sqrt();
            assert!((stated / variance - 1.0).abs() < allowed, "{stated} against {variance} within {allowed}");
        }
    }

    #[test]
    fn the_same_draw_picked_twice_is_no_repetition() {
        let (values, t_draws) = drawn(50, 4, 1.0, Stream::root(1));
        let once = VarianceParts::new(&values, &t_draws);
        let twice = VarianceParts::new(&[&values[..], &values].concat(), &[&t_draws[..], &t_draws].concat());
        // The whole variance is divided by n - 1.
        assert!((twice.surrogate_share - once.surrogate_share).abs() < 1.0 / 199.0);
        // One draw each, one T-draw, two T-draws, nothing that varies: no share is known.
        for (values, t_draws) in [
            ([1.0, 2.0, 3.0, 4.0], [0, 1, 2, 3]),
            ([1.0, 2.0, 3.0, 4.0], [0; 4]),
            ([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1]),
            ([1.0; 4], [0, 1, 2, 2]),
        ] {
            let parts = VarianceParts::new(&values, &t_draws);
            assert_eq!((parts.surrogate_share, parts.error), (0.0, 1.0));
            assert_eq!(Share::new(&[parts]).verdict(TENTH), Verdict::CannotTell);
        }
    }

    #[test]
    fn verdicts_leave_room_for_doubt() {
        let verdict = |share: f64, error: f64| {
            Share::new(&[VarianceParts { total: 2.0, surrogate_share: share, error }]).verdict(TENTH).name()
        };
        assert_eq!(verdict(0.05, 0.01), "enough");
        assert_eq!(verdict(0.05, 0.05), "cannot tell");
        assert_eq!(verdict(0.15, 0.05), "cannot tell");
        assert_eq!(verdict(0.15, 0.01), "more");
        // Repetitions that disagree are less sure than each says of itself.
        let one = |share| VarianceParts { total: 1.0, surrogate_share: share, error: 1e-3 };
        assert_eq!(Share::new(&[one(0.05), one(0.25)]).verdict(TENTH), Verdict::CannotTell);
    }

    /// `variance = 8 / runs` by each of three sequences, times their factors.
    fn curve(sizes: &[usize], factors: [f64; 3]) -> Vec<Point> {
        let surrogate = |runs: usize| factors.iter().map(|f| 8.0 * f / runs as f64).collect();
        sizes.iter().map(|&runs| Point { runs, surrogate: surrogate(runs) }).collect()
    }

    #[test]
    fn a_curve_of_slope_minus_one_is_extrapolated() {
        // 8 / N = 0.9 / 9 at N = 80.
        let exact = suggest(&curve(&[5, 10, 20, 40], [1.0; 3]), 0.9, TENTH).unwrap();
        // Logarithms below 8, sums of four of them, and a division: tens of roundings.
        assert!((exact.runs / 80.0).ln().abs() < 100.0 * 8.0 * f64::EPSILON, "{exact:?}");
        let scattered = suggest(&curve(&[5, 10, 20, 40], [0.8, 1.0, 1.25]), 0.9, TENTH).unwrap();
        let [low, high] = scattered.interval;
        assert!(low < scattered.runs.min(80.0) && scattered.runs.max(80.0) < high, "{scattered:?}");
        // The level alone scatters by the sequences' sd, ln 1.25, in both directions.
        assert!((high / low).ln() > 2.0 * normal_quantile(1.0 - TAIL) * 1.25_f64.ln(), "{scattered:?}");
    }

    #[test]
    fn what_the_curve_does_not_allow_is_not_said() {
        let refused = |points: &[Point], within: f64| suggest(points, within, TENTH).unwrap_err();
        assert!(refused(&curve(&[10, 20], [1.0; 3]), 0.9).contains("only 2"));
        let mut flat = curve(&[10, 14, 20, 28], [0.8, 1.0, 1.25]);
        flat.iter_mut().for_each(|p| p.surrogate.iter_mut().for_each(|v| *v *= p.runs as f64));
        assert!(refused(&flat, 0.9).contains("does not fall"));
        let far = refused(&curve(&[10, 14, 20, 28], [0.5, 1.0, 2.0]), 1e-3);
        assert!(far.contains("so far") && far.contains("more than"), "{far}");
    }

    #[test]
    fn sizes_are_spread_between_a_quarter_and_all() {
        assert_eq!(sizes(40, 4), [10, 16, 25, 40]);
        assert_eq!(sizes(6, 4), [3, 4, 5, 6]);
        assert_eq!(sizes(4, 4), [3, 4]);
        assert_eq!(sizes(2, 4), [2]);
    }

    #[test]
    fn beginnings_of_an_order_fill_space() {
        let line: Vec<Vec<f64>> = (0..9).map(|i| vec![f64::from(i)]).collect();
        let rank: Vec<usize> = (0..9).collect();
        assert_eq!(farthest_first(&line, 0, &rank)[..5], [0, 8, 4, 2, 6]);
        let reversed: Vec<usize> = (0..9).rev().collect();
        assert_eq!(farthest_first(&line, 4, &reversed)[..5], [4, 8, 0, 6, 2]);
        // Points in one place come last.
        assert_eq!(farthest_first(&[vec![0.0], vec![0.0], vec![1.0]], 0, &[0, 1, 2]), [0, 2, 1]);
    }
}
