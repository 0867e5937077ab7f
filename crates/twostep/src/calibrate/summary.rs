//! What the trials of one setting say, by method and unknown: uniformity, coverage, width, and where in the prior they fail.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::spec::Truth;
use super::trial::{Ranked, Trial};
use super::uniformity::{BINS, Coverage, LEVELS, Pit, TTrialTest, UniformBand, bin, coverage, log_gamma};
use super::verdict::{self, Kind, Verdict};
use crate::likelihood::ErrorSharing;
use crate::prior::Marginal;
use crate::stream::Stream;

/// Parts of equal prior probability in which coverage is counted.
const REGIONS: usize = 3;

/// The coverage that widths and regions belong to: that of [q05, q95].
pub(super) const NINETY: f64 = 0.9;

/// What the trials of one setting have in common.
#[derive(Clone, Debug)]
pub struct Context {
    /// Priors of the ranked quantities, by name; those without one have no relative width and no regions.
    pub priors: Vec<(String, Marginal)>,
    /// Where truths and data come from.
    pub truth: Truth,
    /// Whether sigma_A is carried into the I-step.
    pub propagates_sigma_a: bool,
    /// Whether sigma_A is a number of the study rather than learned from the runs.
    pub sigma_a_is_given: bool,
    /// How measurements share the surrogate's error.
    pub error: ErrorSharing,
    /// Whether several measurements share their inputs.
    pub replicated: bool,
    /// N_T: runs that a surrogate is trained with.
    pub n_t: usize,
    /// Whether measurements are made with other noise than the one that infers.
    pub other_noise: bool,
    /// T-draws that stand for the T-posterior.
    pub t_draws: usize,
    /// Whether they are clusters.
    pub clustered: bool,
    /// Signs of the T-trials come from here.
    pub stream: Stream,
}

/// What the trials say about one method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MethodSummary {
    /// The method.
    pub method: String,
    /// All I-trials, failed ones included.
    pub trials: usize,
    /// T-trials among them.
    pub t_trials: usize,
    /// I-trials that failed.
    pub failed: usize,
    /// The most frequent reason of failure.
    pub failure: Option<String>,
    /// Each ranked quantity, in the order of the trials.
    pub unknowns: Vec<UnknownSummary>,
    /// The verdict in words.
    pub verdict: Verdict,
}

/// What the trials of a method say about one unknown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnknownSummary {
    /// The unknown.
    pub unknown: String,
    /// Trials that were ranked and count.
    pub trials: usize,
    /// Trials that could not be ranked.
    pub failed: usize,
    /// Log-gamma of the PITs in 100 bins; `None` where trials have weights, which it cannot take.
    pub log_gamma: Option<f64>,
    /// Its 5 % point if all trials were independent: reject strictly below.
    pub log_gamma_threshold: Option<f64>,
    /// p-value of the test that respects T-trials; `None` below two T-trials, which cannot tell.
    pub t_trial_p_value: Option<f64>,
    /// Variance of the ECDF over that of independent trials; `None` below two T-trials.
    pub design_effect: Option<f64>,
    /// Number of independent trials of equal weight that are worth as much.
    pub effective_trials: f64,
    /// How often central intervals hold the truth, by level.
    pub coverage: Vec<Coverage>,
    /// Mean width of [q05, q95].
    pub width_90: Option<f64>,
    /// Its Monte Carlo standard error, by T-trial; `None` below two.
    pub width_90_standard_error: Option<f64>,
    /// Mean width over that of the prior's own [q05, q95].
    pub width_90_relative: Option<f64>,
    /// Mean of the PITs: above 1/2 where truths lie high in their posteriors.
    pub mean_pit: Option<f64>,
    /// Its standard error, by T-trial; `None` below two.
    pub mean_pit_standard_error: Option<f64>,
    /// Median number of draws that were ranked, where there are draws.
    pub draws: Option<f64>,
    /// Share of the truths below their 90 % interval, and above it.
    pub misses_90: Option<[f64; 2]>,
    /// The ECDF of the PITs with its envelopes; `None` without trials.
    pub ecdf: Option<Ecdf>,
    /// Coverage where the truth of each unknown is low, medium or high; not nominal by itself, see [`Region`].
    pub regions: Vec<Region>,
    /// How its intervals behave.
    pub verdict: Kind,
    /// Factor by which 90 % intervals would have to be wider; `None` where all or none of them hold the truth.
    pub width_factor: Option<f64>,
}

/// ECDF minus z with envelopes of 95 %, simultaneous over z.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ecdf {
    /// 0, 0.01, ..., 1.
    pub z: Vec<f64>,
    /// ECDF minus z.
    pub difference: Vec<f64>,
    /// Envelope if all trials were independent; `None` where they have weights.
    pub independent: Option<Vec<[f64; 2]>>,
    /// Envelope that respects T-trials.
    pub t_trials: Vec<[f64; 2]>,
}

/// The trials whose truth lies in one third of the prior of one unknown.
///
/// Given where the truth lies, coverage is not nominal even for the right posterior, which holds it on average over the prior
/// only: regions are to be compared between methods, and with their widths, not with the nominal level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// The unknown whose prior is cut.
    pub of: String,
    /// Which third, from zero.
    pub third: usize,
    /// Its lower end; `None` where the prior has none.
    pub lower: Option<f64>,
    /// Its upper end.
    pub upper: Option<f64>,
    /// Trials with a truth inside.
    pub trials: usize,
    /// Coverage of 90 % intervals there.
    pub coverage_90: Option<Coverage>,
    /// Mean width of [q05, q95] there.
    pub width_90: Option<f64>,
}

/// Everything by method, in the order in which the trials name them.
pub fn summarise(trials: &[Trial], context: &Context) -> Vec<MethodSummary> {
    let methods = distinct(trials.iter().map(|trial| trial.method.as_str()));
    let mut summaries: Vec<MethodSummary> = methods.into_par_iter().map(|name| method(trials, name, context)).collect();
    // A verdict looks at the other methods, too.
    let verdicts: Vec<Verdict> =
        summaries.iter().map(|method| verdict::judge(method, &summaries, trials, context)).collect();
    summaries.iter_mut().zip(verdicts).for_each(|(summary, verdict)| summary.verdict = verdict);
    summaries
}

/// All about one method but its verdict.
fn method(trials: &[Trial], method: &str, context: &Context) -> MethodSummary {
    let own: Vec<&Trial> = trials.iter().filter(|trial| trial.method == method).collect();
    let names = distinct(own.iter().flat_map(|trial| &trial.ranked).map(|ranked| ranked.unknown.as_str()));
    let mut unknowns: Vec<UnknownSummary> = names.iter().map(|name| unknown(&own, method, name, context)).collect();
    let sds = names.iter().filter(|name| verdict::is_sd(name)).count();
    for unknown in &mut unknowns {
        let judged_together = if verdict::is_sd(&unknown.unknown) { sds } else { names.len() - sds };
        unknown.verdict = verdict::kind(unknown, judged_together);
    }
    MethodSummary {
        method: method.to_owned(),
        trials: own.len(),
        t_trials: own.iter().map(|trial| trial.t_trial).collect::<BTreeSet<_>>().len(),
        failed: own.iter().filter(|trial| trial.failed.is_some()).count(),
        failure: most_frequent(own.iter().filter_map(|trial| trial.failed.as_deref())),
        unknowns,
        verdict: Verdict::default(),
    }
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut out: Vec<&str> = Vec::new();
    for name in names {
        if !out.contains(&name) {
            out.push(name);
        }
    }
    out
}

fn most_frequent<'a>(reasons: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    let count = |reason: &str| reasons.clone().filter(|other| *other == reason).count();
    // The first of equally frequent ones: `max_by_key` alone would take the last.
    distinct(reasons.clone()).into_iter().rev().max_by_key(|reason| count(reason)).map(str::to_owned)
}

/// The outcome of one unknown in a trial, if it can be used.
fn ranked<'a>(trial: &'a Trial, unknown: &str) -> Option<&'a Ranked> {
    let usable = |r: &&Ranked| [r.truth, r.pit, r.below, r.q05, r.q95, trial.weight].iter().all(|x| x.is_finite());
    let outcomes = if trial.failed.is_none() { trial.ranked.as_slice() } else { &[] };
    outcomes.iter().find(|ranked| ranked.unknown == unknown).filter(usable)
}

fn located(used: &[(&Trial, &Ranked)], value: impl Fn(&Ranked) -> f64) -> Vec<Pit> {
    let pit = |(trial, ranked): &(&Trial, &Ranked)| (trial.t_trial, value(ranked), trial.weight);
    used.iter().map(pit).map(|(t_trial, value, weight)| Pit { t_trial, value, weight }).collect()
}

/// Where truths lie for their intervals, which go by all draws and not only by those that are ranked.
fn intervals(used: &[(&Trial, &Ranked)]) -> Vec<Pit> {
    located(used, |ranked| ranked.below)
}

fn unknown(own: &[&Trial], method: &str, name: &str, context: &Context) -> UnknownSummary {
    let mut used: Vec<(&Trial, &Ranked)> = own.iter().filter_map(|t| ranked(t, name).map(|r| (*t, r))).collect();
    let failed = own.len() - used.len();
    // A held-out truth that the prior excludes counts nothing, but did not fail.
    used.retain(|(trial, _)| trial.weight > 0.0);
    let (pits, intervals) = (located(&used, |ranked| ranked.pit), intervals(&used));
    let weighted = context.truth == Truth::HeldOutRuns || pits.windows(2).any(|pair| pair[0].weight != pair[1].weight);
    let band = (!weighted && !pits.is_empty()).then(|| UniformBand::new(pits.len(), BINS));
    let ranks: Vec<usize> = pits.iter().map(|pit| bin(pit.value)).collect();
    let test = TTrialTest::new(&pits, context.stream.named(method).named(name));
    let widths = mean_of(&used, |_, ranked| ranked.q95 - ranked.q05);
    let pit_mean = mean_of(&used, |_, ranked| ranked.pit);
    let misses = |above: bool| {
        let tail = 0.5 * (1.0 - NINETY);
        let missed = |below: f64| if above { below > 1.0 - tail } else { below < tail };
        mean_of(&used, |_, ranked| f64::from(u8::from(missed(ranked.below)))).map(|mean| mean.value)
    };
    let prior =
        context.priors.iter().find(|(of, _)| of == name).map(|(_, prior)| prior.quantile(0.95) - prior.quantile(0.05));
    let coverage: Vec<Coverage> = LEVELS.iter().filter_map(|level| coverage(&intervals, *level)).collect();
    UnknownSummary {
        unknown: name.to_owned(),
        trials: used.len(),
        failed,
        log_gamma: band.as_ref().map(|_| log_gamma(&ranks, BINS)),
        log_gamma_threshold: band.as_ref().map(|band| band.log_gamma_threshold),
        // All signs of a single T-trial are alike, so that every outcome has p = 1.
        t_trial_p_value: (!pits.is_empty() && test.smallest_p_value < 1.0).then_some(test.p_value),
        design_effect: test.design_effect,
        effective_trials: test.effective_trials,
        width_factor: coverage.iter().find(|c| c.level == NINETY).and_then(verdict::width_factor),
        coverage,
        width_90: widths.map(|width| width.value),
        width_90_standard_error: widths.and_then(|width| width.standard_error),
        width_90_relative: widths.and_then(|width| prior.and_then(|prior| finite(width.value / prior))),
        mean_pit: pit_mean.map(|pit| pit.value),
        mean_pit_standard_error: pit_mean.and_then(|pit| pit.standard_error),
        draws: verdict::median(used.iter().filter_map(|(_, ranked)| ranked.draws).map(|draws| draws as f64)),
        misses_90: misses(false).zip(misses(true)).map(<[f64; 2]>::from),
        ecdf: (!pits.is_empty()).then(|| ecdf(test, band.as_ref())),
        regions: context.priors.iter().flat_map(|(of, prior)| regions(&used, of, prior)).collect(),
        verdict: Kind::default(),
    }
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

fn ecdf(test: TTrialTest, band: Option<&UniformBand>) -> Ecdf {
    let z: Vec<f64> = (0..=BINS).map(|j| j as f64 / BINS as f64).collect();
    // No ECDF leaves [0, 1].
    let t_trials = z.iter().zip(&test.envelope).map(|(z, half)| [(-half).max(-z), half.min(1.0 - z)]).collect();
    Ecdf { z, difference: test.difference, independent: band.map(UniformBand::envelope), t_trials }
}

/// A weighted mean with its standard error.
#[derive(Clone, Copy)]
struct Mean {
    value: f64,
    standard_error: Option<f64>,
}

/// The mean over trials, with the spread between T-trials; `None` without trials.
fn mean_of(used: &[(&Trial, &Ranked)], value: impl Fn(&Trial, &Ranked) -> f64) -> Option<Mean> {
    let total: f64 = used.iter().map(|(trial, _)| trial.weight).sum();
    let mean = used.iter().map(|(trial, ranked)| trial.weight * value(trial, ranked)).sum::<f64>() / total;
    let mut by_t_trial = BTreeMap::<usize, f64>::new();
    for (trial, ranked) in used {
        *by_t_trial.entry(trial.t_trial).or_default() += trial.weight / total * (value(trial, ranked) - mean);
    }
    let n = by_t_trial.len() as f64;
    let variance = by_t_trial.values().map(|sum| sum * sum).sum::<f64>() * n / (n - 1.0);
    finite(mean).map(|value| Mean { value, standard_error: finite(variance.sqrt()) })
}

/// The thirds of one unknown's prior, with the trials whose truth lies there; see [`Region`] for what they can tell.
fn regions(used: &[(&Trial, &Ranked)], of: &str, prior: &Marginal) -> Vec<Region> {
    let third = |trial: &Trial| {
        ranked(trial, of).map(|ranked| ((REGIONS as f64 * prior.cdf(ranked.truth)) as usize).min(REGIONS - 1))
    };
    let edge = |i: usize| match i {
        0 => prior.support().0,
        REGIONS => prior.support().1,
        _ => prior.quantile(i as f64 / REGIONS as f64),
    };
    (0..REGIONS)
        .map(|i| {
            let inside: Vec<(&Trial, &Ranked)> =
                used.iter().filter(|(trial, _)| third(trial) == Some(i)).copied().collect();
            Region {
                of: of.to_owned(),
                third: i,
                lower: finite(edge(i)),
                upper: finite(edge(i + 1)),
                trials: inside.len(),
                coverage_90: coverage(&intervals(&inside), NINETY),
                width_90: mean_of(&inside, |_, ranked| ranked.q95 - ranked.q05).map(|mean| mean.value),
            }
        })
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::calibrate::Evidence;
    use crate::special::{normal_cdf, normal_quantile};
    use rand_distr::{Distribution, StandardNormal};

    const ULP: f64 = f64::EPSILON;

    pub(in crate::calibrate) fn context(truth: Truth) -> Context {
        Context {
            priors: vec![("omega".to_owned(), "normal(0, 1)".parse().unwrap())],
            truth,
            propagates_sigma_a: false,
            error: ErrorSharing::Shared,
            replicated: true,
            n_t: 10,
            other_noise: false,
            t_draws: 1000,
            clustered: false,
            sigma_a_is_given: false,
            stream: Stream::root(4),
        }
    }

    /// Trials of a normal posterior of a normal prior with one measurement, whose sd is too small by `factor` and whose mean
    /// is off by `shift` of its sds.
    pub(in crate::calibrate) fn normal_trials(
        method: &str,
        [t_trials, i_trials]: [usize; 2],
        [factor, shift]: [f64; 2],
        evidence: &Evidence,
    ) -> Vec<Trial> {
        let mut rng = Stream::root(7).named(method).rng();
        (0..t_trials * i_trials)
            .map(|trial| {
                let [truth, noise]: [f64; 2] = std::array::from_fn(|_| StandardNormal.sample(&mut rng));
                let sd = 0.5_f64.sqrt() / factor;
                let mean = 0.5 * (truth + noise) + shift * sd;
                let half = sd * normal_quantile(0.95);
                let ranked = Ranked {
                    unknown: "omega".into(),
                    truth,
                    pit: normal_cdf((truth - mean) / sd),
                    below: normal_cdf((truth - mean) / sd),
                    rank: None,
                    draws: None,
                    q05: mean - half,
                    q95: mean + half,
                };
                Trial {
                    t_trial: trial / i_trials,
                    i_trial: trial % i_trials,
                    method: method.into(),
                    version: None,
                    weight: 1.0,
                    ranked: vec![ranked],
                    evidence: evidence.clone(),
                    failed: None,
                }
            })
            .collect()
    }

    fn failed(trial: &Trial, why: &str) -> Trial {
        Trial { ranked: Vec::new(), failed: Some(why.into()), ..trial.clone() }
    }

    #[test]
    fn counts_widths_and_regions_are_those_of_the_trials() {
        let mut trials = normal_trials("e-lik", [50, 2], [1.0, 0.0], &Evidence::default());
        let good = trials.len();
        trials.push(failed(&trials[0], "one"));
        trials.push(failed(&trials[1], "two"));
        trials.push(failed(&trials[1], "two"));
        trials.extend(normal_trials("point", [50, 2], [2.0, 0.0], &Evidence::default()));
        let found = summarise(&trials, &context(Truth::Simulator));
        assert_eq!(found.iter().map(|m| m.method.as_str()).collect::<Vec<_>>(), ["e-lik", "point"]);
        let lik = &found[0];
        assert_eq!((lik.trials, lik.failed, lik.t_trials), (good + 3, 3, 50));
        assert_eq!(lik.failure.as_deref(), Some("two"));
        let omega = &lik.unknowns[0];
        assert_eq!((omega.trials, omega.failed), (good, 3));
        // All posteriors have the sd sqrt(1/2), the prior has 1.
        let exact = 0.5_f64.sqrt();
        assert!((omega.width_90_relative.unwrap() - exact).abs() <= 64.0 * ULP);
        assert!(omega.width_90_standard_error.unwrap() <= 64.0 * ULP);
        let held = trials[..good].iter().filter(|trial| (trial.ranked[0].pit - 0.5).abs() <= 0.45).count();
        let ninety = omega.coverage.iter().find(|coverage| coverage.level == NINETY).unwrap();
        assert!((ninety.share - held as f64 / good as f64).abs() <= good as f64 * ULP);
        let [below, above] = omega.misses_90.unwrap();
        assert!((below + above + ninety.share - 1.0).abs() <= good as f64 * ULP);

        assert_eq!(omega.regions.len(), 3);
        assert_eq!(omega.regions.iter().map(|region| region.trials).sum::<usize>(), good);
        let low = &omega.regions[0];
        let edge = normal_quantile(1.0 / 3.0);
        assert_eq!(low.lower, None);
        assert!((low.upper.unwrap() - edge).abs() <= 8.0 * ULP);
        assert_eq!(low.trials, trials[..good].iter().filter(|trial| trial.ranked[0].truth < edge).count());

        assert!(omega.log_gamma.unwrap() >= omega.log_gamma_threshold.unwrap());
        assert!(found[1].unknowns[0].log_gamma.unwrap() < found[1].unknowns[0].log_gamma_threshold.unwrap());
    }

    #[test]
    fn coverage_is_that_of_all_draws_and_uniformity_that_of_the_ranks() {
        let mut trials = normal_trials("e-lik", [50, 2], [1.0, 0.0], &Evidence::default());
        for (trial, draws) in trials.iter_mut().zip([40, 50, 60, 70].into_iter().cycle()) {
            let ranked = &mut trial.ranked[0];
            // The intervals of half the sd.
            ranked.below = normal_cdf(2.0 * normal_quantile(ranked.pit));
            ranked.draws = Some(draws);
        }
        let found = summarise(&trials, &context(Truth::Simulator)).remove(0);
        let omega = &found.unknowns[0];
        let n = trials.len() as f64;
        let share = |is: &dyn Fn(&Ranked) -> bool| trials.iter().filter(|t| is(&t.ranked[0])).count() as f64 / n;
        for coverage in &omega.coverage {
            let held = share(&|ranked| (ranked.below - 0.5).abs() <= 0.5 * coverage.level);
            assert!((coverage.share - held).abs() <= n * ULP, "{coverage:?}");
        }
        let [below, above] = omega.misses_90.unwrap();
        assert!((below - share(&|ranked| ranked.below < 0.05)).abs() <= n * ULP);
        assert!((above - share(&|ranked| ranked.below > 0.95)).abs() <= n * ULP);
        let inside = omega.regions.iter().map(|r| r.trials as f64 * r.coverage_90.unwrap().share).sum::<f64>() / n;
        assert!((inside + below + above - 1.0).abs() <= n * ULP);
        assert!(omega.width_factor.unwrap() > 1.0);
        assert_eq!((omega.verdict, omega.draws), (Kind::Overconfident, Some(55.0)));

        let mean = trials.iter().map(|trial| trial.ranked[0].pit).sum::<f64>() / n;
        assert!((omega.mean_pit.unwrap() - mean).abs() <= n * ULP);
        assert!(omega.log_gamma.unwrap() >= omega.log_gamma_threshold.unwrap());
        assert!(omega.t_trial_p_value.unwrap() > 0.05);
    }

    #[test]
    fn weighted_trials_have_no_log_gamma() {
        let mut trials = normal_trials("e-lik", [50, 2], [1.0, 0.0], &Evidence::default());
        let held_out = summarise(&trials, &context(Truth::HeldOutRuns));
        trials[3].weight = 0.5;
        for found in [held_out, summarise(&trials, &context(Truth::Simulator))] {
            let omega = &found[0].unknowns[0];
            assert_eq!((omega.log_gamma, omega.log_gamma_threshold), (None, None));
            assert!(omega.t_trial_p_value.is_some() && omega.ecdf.as_ref().unwrap().independent.is_none());
        }
    }

    #[test]
    fn json_holds_no_nan_and_comes_back() {
        let good = normal_trials("e-lik", [1, 1], [1.0, 0.0], &Evidence::default());
        let mut broken = good.clone();
        broken[0].ranked[0].pit = f64::NAN;
        let mut unplaced = good.clone();
        unplaced[0].ranked[0].below = f64::NAN;
        let mut weightless = good.clone();
        weightless[0].weight = 0.0;
        for trials in [vec![failed(&good[0], "why")], good, broken, unplaced, weightless] {
            let found = summarise(&trials, &context(Truth::Simulator));
            let text = serde_json::to_string(&found).unwrap();
            // serde_json writes null for NaN, which a plain number then refuses to read.
            assert_eq!(serde_json::from_str::<Vec<MethodSummary>>(&text).unwrap(), found, "{text}");
        }
        assert_eq!(summarise(&[], &context(Truth::Simulator)), []);
    }
}
