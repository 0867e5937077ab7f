//! A verdict in words: whether intervals can be trusted, by how much they cannot, and which of the paper's six causes fits.

use std::f64::consts::SQRT_2;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::spec::Truth;
use super::summary::{Context, MethodSummary, NINETY, UnknownSummary};
use super::trial::{Evidence, Trial};
use super::uniformity::{CONFIDENCE, Coverage, wilson};
use crate::infer::propagation::Method;
use crate::likelihood::ErrorSharing;
use crate::special::normal_quantile;

/// 90 % intervals count as calibrated only where coverage below this is excluded: they would then be 1.4 times as wide.
const LEAST_COVERAGE: f64 = 0.75;

/// Share of failed trials from which on they could hide a miscalibration: as many as 90 % intervals leave out.
const MANY_FAILED: f64 = 0.1;

/// Share of troubled trials from which on a sampler is named, for the same reason.
const MANY_TROUBLED: f64 = 0.1;

/// Share of misses on one side from which on posteriors are shifted rather than too narrow.
const ONE_SIDE: f64 = 0.8;

/// An sd counts from this share of the noise on: left out, it makes 90 % intervals hold 86 %.
const MATTERS: f64 = 0.5;

/// Share of the T-draws that the data favour below which they argue with the surrogate.
const LOW_AGREEMENT: f64 = 0.1;

/// R-hat from which on chains or runs disagree.
const R_HAT: f64 = 1.05;

/// Quadrature error in sds from which on the grid warns.
const QUADRATURE_ERROR: f64 = 0.01;

/// Fewer ranked draws than this leave the ends of 90 % intervals to one of them.
const FEWEST_DRAWS: f64 = 20.0;

/// How intervals behave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// They hold the truth as often as they say.
    Calibrated,
    /// They hold it less often: too narrow.
    Overconfident,
    /// They hold it more often: wider than need be.
    Underconfident,
    /// They lie too low or too high.
    Shifted,
    /// Too few trials or draws to tell, or ranks that are not uniform without a sign of how.
    #[default]
    Undecided,
}

impl Kind {
    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Calibrated => "calibrated",
            Self::Overconfident => "overconfident",
            Self::Underconfident => "underconfident",
            Self::Shifted => "shifted",
            Self::Undecided => "undecided",
        }
    }

    /// Whether intervals promise more than they hold.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Overconfident | Self::Shifted)
    }
}

/// What a failure can come from (the paper's Section "Evaluation of the Two-Step Procedure").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// (i) The simulator does not do what it should.
    Simulator,
    /// (ii) The surrogate's probabilistic program does not.
    Program,
    /// (iii) The sampler has not found the posterior.
    Sampler,
    /// (iv) The surrogate is too stiff to follow the simulator.
    StiffSurrogate,
    /// (v) Too few runs to train it with.
    FewRuns,
    /// (vi) The method carries too little, or too much, of the surrogate's uncertainty.
    Propagation,
}

impl Cause {
    /// All, in the paper's order.
    pub const ALL: [Self; 6] =
        [Self::Simulator, Self::Program, Self::Sampler, Self::StiffSurrogate, Self::FewRuns, Self::Propagation];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Simulator => "the simulator may be wrong",
            Self::Program => "the surrogate's program may be wrong",
            Self::Sampler => "the sampler has trouble",
            Self::StiffSurrogate => "the surrogate is too stiff",
            Self::FewRuns => "too few training runs",
            Self::Propagation => "the propagation is too simple",
        }
    }
}

/// A cause that fits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The cause.
    pub cause: Cause,
    /// What speaks for it, with numbers.
    pub evidence: String,
    /// What to do.
    pub advice: String,
}

/// The verdict on one method.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The worst over its unknowns; the sds of the noise are named in the sentences but do not count.
    pub kind: Kind,
    /// Whole sentences: the unknowns, the sds, failed trials, what the truths were.
    pub sentences: Vec<String>,
    /// Causes that fit, the likeliest first; none for what is calibrated or undecided, nor where other noise in the trials is
    /// the only sign.
    pub causes: Vec<Explanation>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentences.join(" "))?;
        for cause in &self.causes {
            write!(f, "\nPossible cause: {}. {} {}", cause.cause.name(), cause.evidence, cause.advice)?;
        }
        Ok(())
    }
}

/// Whether this is the sd of the noise, as [`crate::infer::sigma_names`] calls it.
pub(super) fn is_sd(unknown: &str) -> bool {
    unknown == "sigma_i" || unknown.starts_with("sigma_i[")
}

fn ninety(unknown: &UnknownSummary) -> Option<&Coverage> {
    unknown.coverage.iter().find(|coverage| coverage.level == NINETY)
}

/// The factor by which 90 % intervals of normal posteriors would have to be wider to hold 90 %; `None` where all or none do.
pub(super) fn width_factor(coverage: &Coverage) -> Option<f64> {
    let factor = normal_quantile(0.5 * (1.0 + coverage.level)) / normal_quantile(0.5 * (1.0 + coverage.share));
    (factor.is_finite() && factor > 0.0).then_some(factor)
}

/// False alarms of each of test and coverage: they share 5 %, and so do the unknowns.
fn alpha(unknowns: usize) -> f64 {
    (1.0 - CONFIDENCE) / (2 * unknowns.max(1)) as f64
}

fn has_few_draws(unknown: &UnknownSummary) -> bool {
    unknown.draws.is_some_and(|draws| draws < FEWEST_DRAWS)
}

/// Independent trials below which nothing is said: errors estimated from fewer are not to be trusted themselves.
const FEWEST_TRIALS: f64 = 10.0;

/// How the intervals of one of `unknowns` behave, by the test that respects T-trials and by coverage.
pub(super) fn kind(summary: &UnknownSummary, unknowns: usize) -> Kind {
    let (Some(ninety), Some(p_value)) = (ninety(summary), summary.t_trial_p_value) else { return Kind::Undecided };
    if summary.effective_trials < FEWEST_TRIALS {
        return Kind::Undecided;
    }
    let alpha = alpha(unknowns);
    let [lower, upper] = ninety.interval(1.0 - alpha);
    if p_value > alpha && lower <= NINETY && NINETY <= upper {
        let failed = summary.failed as f64 > MANY_FAILED * (summary.trials + summary.failed) as f64;
        let sure = ninety.lower >= LEAST_COVERAGE && !failed && !has_few_draws(summary);
        return if sure { Kind::Calibrated } else { Kind::Undecided };
    }
    let low = summary.coverage.iter().any(|coverage| coverage.upper < coverage.level);
    let high = summary.coverage.iter().any(|coverage| coverage.lower > coverage.level);
    let off = summary
        .mean_pit
        .zip(summary.mean_pit_standard_error)
        .is_some_and(|(mean, error)| (mean - 0.5).abs() > -normal_quantile(0.5 * (1.0 - CONFIDENCE)) * error);
    let one_sided = summary.misses_90.is_some_and(|[below, above]| below.max(above) >= ONE_SIDE * (below + above));
    match (low, high) {
        (false, false) if off => Kind::Shifted,
        // Not uniform, but neither coverage nor the mean says how.
        (false, false) => Kind::Undecided,
        _ if off && one_sided && !high => Kind::Shifted,
        (true, false) => Kind::Overconfident,
        (false, true) => Kind::Underconfident,
        (true, true) if ninety.share < NINETY => Kind::Overconfident,
        (true, true) => Kind::Underconfident,
    }
}

/// The verdict on `method`, which is one of `all`.
pub(super) fn judge(method: &MethodSummary, all: &[MethodSummary], trials: &[Trial], context: &Context) -> Verdict {
    let kind = method_kind(method);
    let mut sentences = Vec::new();
    let (sds, main): (Vec<&UnknownSummary>, Vec<_>) = method.unknowns.iter().partition(|u| is_sd(&u.unknown));
    let described: Vec<String> = main.iter().filter(|u| u.verdict == kind).map(|u| describe(u, main.len())).collect();
    let what = match kind {
        Kind::Undecided => "cannot be judged".to_owned(),
        Kind::Shifted => "is off to one side".to_owned(),
        _ => format!("is {}", kind.name()),
    };
    let reason = method.failure.as_deref().unwrap_or("unknown").trim_end_matches('.');
    let all_failed = method.failed > 0 && method.failed == method.trials;
    if all_failed {
        let trials = if method.trials == 1 { "the only trial".into() } else { format!("all {} trials", method.trials) };
        sentences.push(format!("{} {what}: {trials} failed, most often because: {reason}.", method.method));
    } else if described.is_empty() {
        sentences.push(format!("{} {what}: no trial could be ranked.", method.method));
    } else {
        sentences.push(format!("{} {what}: {}.", method.method, described.join("; ")));
    }
    for unknown in main.iter().filter(|u| u.verdict != kind && u.verdict != Kind::Calibrated).chain(&sds) {
        let (whose, together) = if is_sd(&unknown.unknown) { ("The noise sd ", sds.len()) } else { ("", main.len()) };
        let clause = describe(unknown, together);
        sentences.push(format!("{whose}{} is {}: {clause}.", unknown.unknown, unknown.verdict.name()));
    }
    if kind.is_failure() {
        sentences.extend(worst_region(&main));
    }
    let few = method.unknowns.iter().filter(|u| has_few_draws(u)).filter_map(|u| u.draws).reduce(f64::min);
    if let Some(draws) = few {
        sentences.push(format!(
            "The chains are worth too few draws: {} in a typical trial where {FEWEST_DRAWS} are needed.",
            draws.floor()
        ));
    }
    if kind == Kind::Underconfident && context.truth != Truth::SurrogatePrior {
        sentences.push(
            "Intervals that are somewhat too wide are no failure: few runs leave more open than this one simulator needs."
                .into(),
        );
    }
    if context.other_noise && kind != Kind::Calibrated {
        sentences.push(
            "The measurements of the trials have other noise than the likelihood assumes, which alone can spoil intervals: \
             make the noise of [measurements] match, or calibrate.noise."
                .into(),
        );
    }
    if method.failed > 0 && !all_failed {
        sentences.push(format!(
            "{} of {} trials failed and are not counted, most often because: {reason}.",
            method.failed, method.trials
        ));
    }
    match context.truth {
        Truth::Simulator => {}
        Truth::SurrogatePrior => sentences.push(
            "Truths and data come from the surrogate itself: how well it follows the simulator is not tested.".into(),
        ),
        Truth::HeldOutRuns => sentences.push(
            "The truths are inputs of held-out runs, weighted from the design to the prior; the surrogates of different T-trials \
             share most of their runs, so that the stated ranges are rather too narrow."
                .into(),
        ),
    }
    Verdict { kind, sentences, causes: causes(method, kind, all, trials, context) }
}

/// The worst kind over the unknowns that are no sds.
fn method_kind(method: &MethodSummary) -> Kind {
    let order = [Kind::Overconfident, Kind::Shifted, Kind::Underconfident, Kind::Undecided, Kind::Calibrated];
    let has = |kind: &Kind| method.unknowns.iter().any(|u| !is_sd(&u.unknown) && u.verdict == *kind);
    order.into_iter().find(has).unwrap_or_default()
}

fn percent(share: f64) -> String {
    format!("{:.0}", 100.0 * share)
}

/// The region where the intervals of a failing unknown hold the truth least often, if clearly less often than in all.
fn worst_region(unknowns: &[&UnknownSummary]) -> Option<String> {
    let failing = unknowns.iter().filter(|u| u.verdict.is_failure());
    let regions =
        failing.flat_map(|u| u.regions.iter().filter_map(move |region| Some((u, region, region.coverage_90?))));
    let worse = regions.filter(|(u, _, coverage)| ninety(u).is_some_and(|whole| coverage.upper < whole.lower));
    let (unknown, region, coverage) = worse.min_by(|a, b| a.2.share.total_cmp(&b.2.share))?;
    let bound = |end: f64| significant(end, 3);
    let place = match (region.lower, region.upper) {
        (None, Some(upper)) => format!("below {}", bound(upper)),
        (Some(lower), None) => format!("above {}", bound(lower)),
        (Some(lower), Some(upper)) => format!("between {} and {}", bound(lower), bound(upper)),
        (None, None) => "anywhere".into(),
    };
    Some(format!(
        "It is worst where the true {} is {place}: there the 90 % intervals of {} hold the truth in {} % of trials ({} to {}).",
        region.of,
        unknown.unknown,
        percent(coverage.share),
        percent(coverage.lower),
        percent(coverage.upper)
    ))
}

/// The coverage that shows that intervals are too narrow or too wide: that of 90 % where it does, else the first that does.
fn violated(unknown: &UnknownSummary) -> Option<&Coverage> {
    let is_violated = |coverage: &&Coverage| match unknown.verdict {
        Kind::Overconfident => coverage.upper < coverage.level,
        Kind::Underconfident => coverage.lower > coverage.level,
        _ => false,
    };
    ninety(unknown).filter(is_violated).or_else(|| unknown.coverage.iter().find(is_violated))
}

/// One clause on one unknown, which was judged together with others: `unknowns` in all.
fn describe(unknown: &UnknownSummary, unknowns: usize) -> String {
    let name = &unknown.unknown;
    let Some(coverage) = ninety(unknown) else { return format!("no trial ranks {name}") };
    let mut text = format!(
        "the 90 % intervals of {name} hold the truth in {} % of trials ({} to {})",
        percent(coverage.share),
        percent(coverage.lower),
        percent(coverage.upper)
    );
    match unknown.verdict {
        Kind::Overconfident | Kind::Underconfident => {
            let Some(violated) = violated(unknown) else { return text };
            if violated.level != NINETY {
                text += &format!(
                    ", those of {} % in {} % ({} to {})",
                    percent(violated.level),
                    percent(violated.share),
                    percent(violated.lower),
                    percent(violated.upper)
                );
            }
            if let Some(factor) = width_factor(violated) {
                let verb = if unknown.verdict == Kind::Overconfident { "would have to" } else { "could" };
                let which = if violated.level == NINETY { "" } else { " these" };
                let places = if (factor - 1.0).abs() < 0.1 { 2 } else { 1 };
                text += &format!(" and{which} {verb} be {factor:.places$} times as wide");
            }
        }
        Kind::Shifted => {
            if let Some(mean) = unknown.mean_pit {
                // A normal posterior that is off by d sds has a mean PIT of Phi(-d / sqrt(2)).
                let off = SQRT_2 * normal_quantile(mean);
                let side = if off > 0.0 { "low" } else { "high" };
                text += &format!(", and lie {:.1} posterior sds too {side} on average", off.abs());
            }
        }
        Kind::Undecided if unknown.t_trial_p_value.is_some_and(|p| p <= alpha(unknowns)) => {
            text += ", but its ranks are not uniform, and neither coverage nor their mean says how";
        }
        Kind::Undecided if unknown.t_trial_p_value.is_none() => {
            text += ", of a single T-trial, which cannot tell: all of them share one surrogate";
        }
        Kind::Undecided => {
            let enough = (1..).find(|n| wilson(NINETY, f64::from(*n), CONFIDENCE)[0] >= LEAST_COVERAGE).unwrap_or(1);
            if coverage.effective_trials < f64::from(enough) {
                text += &format!(
                    ", too few to tell: worth {:.0} independent trials where {enough} are needed",
                    coverage.effective_trials
                );
            } else {
                text += ", which leaves open whether they are right";
            }
        }
        Kind::Calibrated => {}
    }
    text
}

/// What the trials of a method know about causes.
struct Signs {
    engine: String,
    /// Share of trials with a troubled I-step, and the largest R-hat and quadrature error.
    i_trouble: f64,
    r_hat: Option<f64>,
    /// Smallest number of draws that were ranked.
    draws: Option<usize>,
    divergences: usize,
    quadrature_error: Option<f64>,
    /// Share of trials with a troubled T-step.
    t_trouble: f64,
    t_r_hat: Option<f64>,
    sigma_a: Option<f64>,
    epistemic_sd: Option<f64>,
    noise_sd: Option<f64>,
    /// Share of the T-draws that the data favour, by E-Lik on the same surrogates.
    agreement: Option<f64>,
}

impl Signs {
    fn new(method: &str, trials: &[Trial]) -> Self {
        let counted: Vec<&Trial> = trials.iter().filter(|t| t.method == method && t.failed.is_none()).collect();
        let own: Vec<&Evidence> = counted.iter().map(|trial| &trial.evidence).collect();
        let share = |bad: &dyn Fn(&Trial) -> bool| {
            counted.iter().filter(|trial| bad(trial)).count() as f64 / counted.len().max(1) as f64
        };
        let draws = |trial: &Trial| trial.ranked.iter().filter_map(|ranked| ranked.draws).min();
        let above = |value: Option<f64>, limit: f64| value.is_some_and(|value| value > limit);
        let largest = |value: &dyn Fn(&Evidence) -> Option<f64>| {
            own.iter().filter_map(|evidence| value(evidence)).filter(|v| !v.is_nan()).reduce(f64::max)
        };
        let typical = |value: &dyn Fn(&Evidence) -> Option<f64>| median(own.iter().filter_map(|e| value(e)));
        Self {
            engine: own.first().map(|evidence| evidence.engine.clone()).unwrap_or_default(),
            i_trouble: share(&|trial| {
                let e = &trial.evidence;
                above(e.r_hat, R_HAT)
                    || e.divergences.is_some_and(|count| count > 0)
                    || above(e.quadrature_error, QUADRATURE_ERROR)
                    || draws(trial).is_some_and(|draws| (draws as f64) < FEWEST_DRAWS)
            }),
            draws: counted.iter().filter_map(|trial| draws(trial)).min(),
            r_hat: largest(&|e| e.r_hat),
            divergences: own.iter().filter_map(|e| e.divergences).sum(),
            quadrature_error: largest(&|e| e.quadrature_error),
            t_trouble: share(&|trial| trial.evidence.t_warned || above(trial.evidence.t_r_hat, R_HAT)),
            t_r_hat: largest(&|e| e.t_r_hat),
            sigma_a: typical(&|e| e.sigma_a),
            epistemic_sd: typical(&|e| e.epistemic_sd),
            noise_sd: typical(&|e| e.noise_sd),
            agreement: median(trials.iter().filter_map(|trial| trial.evidence.agreement)),
        }
    }

    /// Whether the approximation error leads: without a noise to weigh it against, this cannot be told.
    fn is_stiff(&self) -> bool {
        self.noise_sd.is_some() && self.matters(self.sigma_a, self.epistemic_sd)
    }

    /// Whether an sd is no less than another one and large enough to matter beside the noise.
    fn matters(&self, sd: Option<f64>, other: Option<f64>) -> bool {
        sd.is_some_and(|sd| {
            sd > 0.0 && sd >= other.unwrap_or(0.0) && self.noise_sd.is_none_or(|noise| sd >= MATTERS * noise)
        })
    }

    /// The three sds in words.
    fn sds(&self) -> String {
        let of = [
            ("sigma_A", self.sigma_a),
            ("the surrogate's epistemic sd", self.epistemic_sd),
            ("the noise of a measured point", self.noise_sd),
        ];
        let known = of.iter().filter_map(|(name, sd)| sd.map(|sd| format!("{name} {}", digits(sd))));
        known.collect::<Vec<_>>().join(", ")
    }
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_unstable_by(f64::total_cmp);
    let half = values.len() / 2;
    Some(if values.len() % 2 == 1 { values[half] } else { 0.5 * (values.get(half.wrapping_sub(1))? + values[half]) })
}

/// A number with two significant digits.
fn digits(value: f64) -> String {
    significant(value, 2)
}

/// A number with that many significant digits, at least one.
fn significant(value: f64, digits: usize) -> String {
    let magnitude = value.abs().log10().floor();
    let decimals = digits - 1;
    if value != 0.0 && !(-4.0..=5.0).contains(&magnitude) {
        return format!("{value:.decimals$e}");
    }
    let places = if value == 0.0 { 0 } else { (decimals as f64 - magnitude).max(0.0) as usize };
    format!("{value:.places$}")
}

fn causes(
    method: &MethodSummary,
    kind: Kind,
    all: &[MethodSummary],
    trials: &[Trial],
    context: &Context,
) -> Vec<Explanation> {
    if matches!(kind, Kind::Calibrated | Kind::Undecided) {
        return Vec::new();
    }
    let signs = Signs::new(&method.method, trials);
    let e_lik = all.iter().find(|other| other.method == Method::ELik.name());
    let is_e_lik = method.method == Method::ELik.name();
    let mut found: Vec<Explanation> = sampler(&signs).into_iter().collect();
    if context.truth == Truth::SurrogatePrior {
        // The data follow the model that E-Lik inverts, whatever the simulator does.
        if is_e_lik {
            found.push(few_t_draws(context));
            // Clusters and other noise are approximations of their own: nothing is left to suspect the program by.
            if !context.clustered && !context.other_noise {
                found.push(program());
            }
        } else {
            found.push(simpler_than_e_lik(method, context));
        }
        return found;
    }
    let better = e_lik.filter(|other| !is_e_lik && suits(method_kind(other), kind));
    if let Some(better) = better {
        found.push(propagation(method, kind, better, &signs));
        return found;
    }
    let is_stiff = signs.is_stiff();
    if is_stiff {
        found.push(stiff(kind, &signs, context));
    }
    let argues = !is_stiff && signs.agreement.is_some_and(|share| share < LOW_AGREEMENT);
    if signs.matters(signs.epistemic_sd, signs.sigma_a) && !is_stiff || argues {
        found.push(few_runs(kind, &signs, context));
    }
    let drops_epistemic = [Method::Point, Method::ELogLik].iter().any(|simple| simple.name() == method.method);
    if kind.is_failure() && drops_epistemic && signs.matters(signs.epistemic_sd, None) {
        found.push(too_simple(method, e_lik.is_some(), &signs));
    }
    // Other noise in the trials is named already, and explains as much.
    if found.is_empty() && kind.is_failure() && !context.other_noise {
        found.push(simulator(&signs, context));
    }
    found
}

/// Whether another method's verdict shows that this one's comes from the method.
fn suits(other: Kind, own: Kind) -> bool {
    other == Kind::Calibrated || own.is_failure() && other == Kind::Underconfident
}

fn sampler(signs: &Signs) -> Option<Explanation> {
    let of_trials = |share: f64| format!("{} % of trials", percent(share));
    let i_step = signs.i_trouble >= MANY_TROUBLED;
    if signs.t_trouble >= MANY_TROUBLED && signs.t_trouble >= signs.i_trouble {
        let r_hat = signs.t_r_hat.map_or_else(String::new, |r| format!(" (R-hat up to {r:.2})"));
        return Some(Explanation {
            cause: Cause::Sampler,
            evidence: format!("The T-step warns of its own sampling in {}{r_hat}.", of_trials(signs.t_trouble)),
            advice: "Use train.method = \"auto\", which is exact where it can be, or more warm-up.".into(),
        });
    }
    i_step.then(|| {
        let r_hat = signs.r_hat.filter(|r| *r > R_HAT).map(|r| format!("R-hat up to {r:.2}"));
        let divergent = (signs.divergences > 0).then(|| format!("{} divergent transitions", signs.divergences));
        let error = signs.quadrature_error.filter(|error| *error > QUADRATURE_ERROR);
        let error = error.map(|error| format!("quadrature errors up to {} sd", digits(error)));
        let few = signs.draws.filter(|draws| (*draws as f64) < FEWEST_DRAWS);
        let few = few.map(|draws| format!("chains worth as few as {draws} draws"));
        let reasons: Vec<String> = [r_hat, divergent, error, few].into_iter().flatten().collect();
        let advice = match signs.engine.as_str() {
            "grid" => "Use infer.clusters or fewer T-draws, or infer.engine = \"smc\".",
            "smc" => {
                "Raise infer.smc.particles, or use infer.engine = \"grid\" where there are at most three unknowns."
            }
            _ => "Use infer.engine = \"grid\" where there are at most three unknowns, else \"smc\".",
        };
        Explanation {
            cause: Cause::Sampler,
            evidence: format!(
                "The I-step ({}) is not to be trusted in {}: {}.",
                signs.engine,
                of_trials(signs.i_trouble),
                reasons.join(", ")
            ),
            advice: advice.into(),
        }
    })
}

/// E-Lik is exact with the whole T-posterior only.
fn few_t_draws(context: &Context) -> Explanation {
    let n = context.t_draws;
    let (evidence, advice) = if context.clustered {
        (format!("{n} clusters stand for the T-posterior."), "Leave out infer.clusters for this check.")
    } else {
        (
            format!("E-Lik rests on {n} T-draws, which approximate the T-posterior."),
            "Raise train.draws and calibrate again, before suspecting the program.",
        )
    };
    Explanation { cause: Cause::Propagation, evidence, advice: advice.into() }
}

fn program() -> Explanation {
    Explanation {
        cause: Cause::Program,
        evidence:
            "If more T-draws change nothing and the sampling is sound, only the program is left: with data from the \
                   surrogate itself and the whole T-posterior E-Lik is exact."
                .into(),
        advice:
            "Check that priors and noise are those that the study means; if they are, report the study as a defect of \
                 twostep."
                .into(),
    }
}

fn simpler_than_e_lik(method: &MethodSummary, context: &Context) -> Explanation {
    let stand_ins = if context.clustered { "clusters" } else { "T-draws" };
    Explanation {
        cause: Cause::Propagation,
        evidence: format!(
            "With data from the surrogate itself E-Lik alone is exact, up to its {} {stand_ins}; {} replaces it by something \
             simpler.",
            context.t_draws, method.method
        ),
        advice: "Answer with e-lik.".into(),
    }
}

fn propagation(method: &MethodSummary, kind: Kind, better: &MethodSummary, signs: &Signs) -> Explanation {
    let held = better.unknowns.iter().filter(|u| !is_sd(&u.unknown)).filter_map(ninety).map(|c| c.share);
    let held = held.reduce(f64::min).map_or_else(String::new, |share| {
        format!(": its 90 % intervals hold the truth in {:.0} % of trials or more", 100.0 * share)
    });
    let agreement = signs.agreement.map_or_else(String::new, |share| {
        format!(" Data favour {:.0} % of the T-draws (100 % where all methods agree).", 100.0 * share)
    });
    let carries = if kind.is_failure() { "too little" } else { "too much" };
    Explanation {
        cause: Cause::Propagation,
        evidence: format!(
            "{} carries {carries} of the surrogate's uncertainty: with the same surrogates e-lik is {}{held}.{agreement}",
            method.method,
            method_kind(better).name()
        ),
        advice: "Answer with e-lik.".into(),
    }
}

fn too_simple(method: &MethodSummary, e_lik_too: bool, signs: &Signs) -> Explanation {
    let advice = if e_lik_too {
        "E-Lik carries it, and is not found calibrated either: settle the other causes first."
    } else {
        "Add \"e-lik\" to infer.methods, and calibrate again."
    };
    Explanation {
        cause: Cause::Propagation,
        evidence: format!("{} does not carry the epistemic uncertainty that there is: {}.", method.method, signs.sds()),
        advice: advice.into(),
    }
}

fn stiff(kind: Kind, signs: &Signs, context: &Context) -> Explanation {
    // No degree makes a number smaller that the study gives.
    let flexible = if context.sigma_a_is_given {
        "give surrogate.sigma_a a prior, such as \"exponential(1)\", so that the runs decide how large it is"
    } else {
        "raise surrogate.degree or choose a more flexible surrogate"
    };
    let independent = context.replicated && context.error == ErrorSharing::Independent;
    let advice = if kind == Kind::Underconfident {
        format!("For narrower intervals {flexible}.")
    } else if !context.propagates_sigma_a {
        "It is not carried into the I-step: add \"sigma-a\" to infer.propagate.".to_owned()
    } else if independent {
        "Replicates at one point share one error, but are treated as if each had its own: set infer.error = \"shared\"."
            .to_owned()
    } else {
        format!("It is carried, but as if it were equally large everywhere: {flexible}.")
    };
    Explanation {
        cause: Cause::StiffSurrogate,
        evidence: format!("The approximation error leads: {}.", signs.sds()),
        advice,
    }
}

fn few_runs(kind: Kind, signs: &Signs, context: &Context) -> Explanation {
    let agreement = signs
        .agreement
        .map_or_else(String::new, |share| format!(" Data favour {} % of the T-draws.", digits(100.0 * share)));
    let purpose = if kind == Kind::Underconfident { "For narrower intervals train" } else { "Train" };
    let sds = signs.sds();
    let sds = if sds.is_empty() { String::new() } else { format!(": {sds}") };
    Explanation {
        cause: Cause::FewRuns,
        evidence: format!("{} training runs leave the surrogate uncertain{sds}.{agreement}", context.n_t),
        advice: format!("{purpose} with more runs than {}, and calibrate again.", context.n_t),
    }
}

fn simulator(signs: &Signs, context: &Context) -> Explanation {
    let sds = signs.sds();
    let sds = if sds.is_empty() { String::new() } else { format!(" ({sds})") };
    let advice = if context.truth == Truth::HeldOutRuns {
        "Look at the runs: outputs of another version or unit, a run that failed unseen, noise other than that of the \
         measurements. If e-lik is calibrated with calibrate.truth = \"surrogate-prior\", nothing speaks against twostep itself."
    } else {
        "Calibrate with calibrate.truth = \"surrogate-prior\": if e-lik is calibrated there, program and sampler are sound, and \
         the simulator is left: its noise, jumps, or runs that fail unseen."
    };
    let excluded = if signs.noise_sd.is_some() || sds.is_empty() {
        "Neither the sampler nor the surrogate's uncertainty explains it"
    } else {
        "The sampler does not explain it, and how large the surrogate's error is beside the noise is not known"
    };
    Explanation {
        cause: Cause::Simulator,
        evidence: format!("{excluded}{sds}: what the simulator returns may not be what surrogate and noise assume."),
        advice: advice.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary::summarise;
    use super::super::summary::tests::{context, normal_trials};
    use super::super::trial::Ranked;
    use super::*;
    use crate::special::normal_cdf;

    const LAYOUT: [usize; 2] = [100, 2];
    const RIGHT: [f64; 2] = [1.0, 0.0];
    const NARROW: [f64; 2] = [2.0, 0.0];
    const WIDE: [f64; 2] = [0.5, 0.0];
    const OFF: [f64; 2] = [1.0, 1.5];

    /// A surrogate that is neither stiff nor uncertain, and a sampler without trouble.
    fn clean() -> Evidence {
        Evidence {
            engine: "grid".into(),
            quadrature_error: Some(1e-4),
            sigma_a: Some(0.001),
            epistemic_sd: Some(0.002),
            noise_sd: Some(0.05),
            ..Evidence::default()
        }
    }

    fn judged(trials: &[Trial], context: &Context) -> Vec<Verdict> {
        summarise(trials, context).into_iter().map(|summary| summary.verdict).collect()
    }

    /// The causes named for an overconfident E-Lik.
    fn named(evidence: &Evidence, context: &Context) -> Vec<Explanation> {
        let verdict = judged(&normal_trials("e-lik", LAYOUT, NARROW, evidence), context).remove(0);
        assert_eq!(verdict.kind, Kind::Overconfident, "{verdict}");
        verdict.causes
    }

    #[track_caller]
    fn only(causes: &[Explanation], cause: Cause, words: &[&str]) {
        assert_eq!(causes.iter().map(|c| c.cause).collect::<Vec<_>>(), [cause], "{causes:?}");
        let text = format!("{} {}", causes[0].evidence, causes[0].advice);
        words.iter().for_each(|word| assert!(text.contains(word), "`{word}` is not in: {text}"));
    }

    #[test]
    fn kinds_are_those_of_the_posteriors() {
        let cases = [
            (RIGHT, LAYOUT, Kind::Calibrated),
            (NARROW, LAYOUT, Kind::Overconfident),
            (WIDE, LAYOUT, Kind::Underconfident),
            (OFF, LAYOUT, Kind::Shifted),
            (RIGHT, [8, 2], Kind::Undecided),
            (RIGHT, [1, 1], Kind::Undecided),
            (NARROW, [2, 2], Kind::Undecided),
        ];
        for (posterior, layout, kind) in cases {
            let trials = normal_trials("e-lik", layout, posterior, &clean());
            let verdict = judged(&trials, &context(Truth::Simulator)).remove(0);
            assert_eq!(verdict.kind, kind, "{verdict}");
            assert_eq!(
                verdict.causes.is_empty(),
                matches!(kind, Kind::Calibrated | Kind::Undecided | Kind::Underconfident)
            );
        }
    }

    #[test]
    fn a_single_t_trial_cannot_tell() {
        let trials = normal_trials("e-lik", [1, 100], RIGHT, &clean());
        let summary = summarise(&trials, &context(Truth::Simulator)).remove(0);
        assert_eq!((summary.verdict.kind, summary.unknowns[0].t_trial_p_value), (Kind::Undecided, None));
        assert!(summary.verdict.sentences[0].contains("of a single T-trial, which cannot tell"), "{}", summary.verdict);
    }

    #[test]
    fn no_degree_helps_against_a_given_sigma_a() {
        let signs = Signs::new("e-lik", &normal_trials("e-lik", LAYOUT, RIGHT, &clean()));
        let context = Context { propagates_sigma_a: true, ..context(Truth::Simulator) };
        let advice = |sigma_a_is_given: bool| {
            stiff(Kind::Underconfident, &signs, &Context { sigma_a_is_given, ..context.clone() }).advice
        };
        assert!(advice(false).contains("surrogate.degree") && !advice(true).contains("surrogate.degree"));
    }

    /// Trials of one E-Lik whose truths lie at the given places of their posteriors, in an order without pattern.
    fn placed(place: impl Fn(usize) -> f64) -> Vec<Trial> {
        let mut trials = normal_trials("e-lik", LAYOUT, RIGHT, &clean());
        let n = trials.len();
        for (i, trial) in trials.iter_mut().enumerate() {
            // 77 and 200 have no common divisor.
            let value = place(i * 77 % n);
            (trial.ranked[0].pit, trial.ranked[0].below) = (value, value);
        }
        trials
    }

    #[test]
    fn ranks_that_are_not_uniform_are_shifted_only_if_their_mean_is() {
        let n = LAYOUT[0] * LAYOUT[1];
        // Distances from the middle that hold every level exactly.
        let distance = |i: usize| (i as f64 + 0.5) / (2 * n) as f64;
        let above = placed(|i| 0.5 + distance(i));
        assert_eq!(judged(&above, &context(Truth::Simulator))[0].kind, Kind::Shifted);
        // Near ones above, far ones below: the mean stays where half of the squares is reached.
        let balanced = placed(|i| 0.5 + distance(i) * if distance(i) < 0.125_f64.sqrt() { 1.0 } else { -1.0 });
        let verdict = judged(&balanced, &context(Truth::Simulator)).remove(0);
        assert_eq!(verdict.kind, Kind::Undecided, "{verdict}");
        assert!(verdict.sentences[0].contains("its ranks are not uniform"), "{verdict}");
        assert!(verdict.causes.is_empty());
    }

    #[test]
    fn factors_are_those_of_the_level_that_is_violated() {
        // Of 200: 40 within 50 %, 120 more within 80 %, 26 more within 90 %, 8 more within 95 %.
        let edges = [(0, 0.0), (40, 0.25), (160, 0.4), (186, 0.45), (194, 0.475), (200, 0.5)];
        let distance = |i: usize| {
            let [(start, low), (end, high)] = edges.windows(2).find(|pair| i < pair[1].0).unwrap() else { panic!() };
            low + (high - low) * ((i - start) as f64 + 0.5) / (end - start) as f64
        };
        let trials = placed(|i| 0.5 + distance(i) * if i % 2 == 0 { 1.0 } else { -1.0 });
        let found = summarise(&trials, &context(Truth::Simulator)).remove(0);
        assert_eq!(found.verdict.kind, Kind::Overconfident, "{}", found.verdict);
        assert!(found.unknowns[0].width_factor.unwrap() < 1.0);
        let factor = normal_quantile(0.75) / normal_quantile(0.6);
        let text = &found.verdict.sentences[0];
        assert!(text.contains("those of 50 % in 20 %"), "{text}");
        assert!(text.ends_with(&format!("and these would have to be {factor:.1} times as wide.")), "{text}");
    }

    #[test]
    fn few_draws_leave_it_open() {
        let mut trials = normal_trials("e-lik", LAYOUT, RIGHT, &clean());
        for (draws, kind) in [(19, Kind::Undecided), (20, Kind::Calibrated)] {
            trials.iter_mut().for_each(|trial| trial.ranked[0].draws = Some(draws));
            let verdict = judged(&trials, &context(Truth::Simulator)).remove(0);
            assert_eq!(verdict.kind, kind, "{verdict}");
            let sentence = "The chains are worth too few draws: 19 in a typical trial where 20 are needed.";
            assert_eq!(verdict.sentences.iter().any(|s| s == sentence), kind == Kind::Undecided, "{verdict}");
        }
        // A median of 19.5 is not called 20.
        trials.iter_mut().step_by(2).for_each(|trial| trial.ranked[0].draws = Some(19));
        let verdict = judged(&trials, &context(Truth::Simulator)).remove(0);
        assert!(verdict.sentences.iter().any(|s| s.contains("too few draws: 19 in")), "{verdict}");
        let mut narrow = normal_trials("e-lik", LAYOUT, NARROW, &clean());
        narrow.iter_mut().for_each(|trial| trial.ranked[0].draws = Some(7));
        let verdict = judged(&narrow, &context(Truth::Simulator)).remove(0);
        only(&verdict.causes, Cause::Sampler, &["as few as 7 draws", "100 % of trials"]);
    }

    #[test]
    fn other_noise_is_named_before_anything_is_blamed() {
        let other = Context { other_noise: true, ..context(Truth::Simulator) };
        for (posterior, layout) in [(RIGHT, LAYOUT), (NARROW, LAYOUT), (WIDE, LAYOUT), (OFF, LAYOUT), (RIGHT, [8, 2])] {
            let trials = normal_trials("e-lik", layout, posterior, &clean());
            let is_named = |context: &Context| {
                let verdict = judged(&trials, context).remove(0);
                assert!(!context.other_noise || verdict.causes.is_empty(), "{verdict}");
                verdict.sentences.iter().any(|s| s.contains("other noise than the likelihood assumes"))
            };
            assert_eq!(is_named(&other), (posterior, layout) != (RIGHT, LAYOUT));
            assert!(!is_named(&context(Truth::Simulator)));
        }
    }

    #[test]
    fn the_worst_region_is_named_where_it_is_clearly_worse() {
        let mut trials = normal_trials("e-lik", LAYOUT, RIGHT, &clean());
        let edge = normal_quantile(2.0 / 3.0);
        for (i, trial) in trials.iter_mut().enumerate().filter(|(_, trial)| trial.ranked[0].truth > edge) {
            let value = if i % 2 == 0 { 0.999 } else { 0.001 };
            (trial.ranked[0].pit, trial.ranked[0].below) = (value, value);
        }
        let verdict = judged(&trials, &context(Truth::Simulator)).remove(0);
        assert_eq!(verdict.kind, Kind::Overconfident, "{verdict}");
        let start = "It is worst where the true omega is above 0.431: there the 90 % intervals of omega hold the truth in 0 % of \
                     trials (0 to ";
        assert!(verdict.sentences.iter().any(|s| s.starts_with(start)), "{verdict}");
        // The same misses wherever the truth lies.
        let mut even = normal_trials("e-lik", LAYOUT, RIGHT, &clean());
        for (i, trial) in even.iter_mut().enumerate().step_by(3) {
            let value = if i % 2 == 0 { 0.999 } else { 0.001 };
            (trial.ranked[0].pit, trial.ranked[0].below) = (value, value);
        }
        let verdict = judged(&even, &context(Truth::Simulator)).remove(0);
        assert_eq!(verdict.kind, Kind::Overconfident, "{verdict}");
        assert!(!verdict.sentences.iter().any(|s| s.starts_with("It is worst")), "{verdict}");
    }

    #[test]
    fn false_alarms_are_rare() {
        let samples = 200;
        let alarms = (0..samples).filter(|sample| {
            let trials = normal_trials(&format!("method {sample}"), LAYOUT, RIGHT, &clean());
            judged(&trials, &context(Truth::Simulator))[0].kind != Kind::Calibrated
        });
        let alarms = alarms.count() as f64 / f64::from(samples);
        let most = 0.05 - normal_quantile(1e-4) * (0.05_f64 * 0.95 / f64::from(samples)).sqrt();
        assert!(alarms <= most, "{alarms} of calibrated samples are called otherwise");
    }

    #[test]
    fn the_sentence_says_by_how_much() {
        let trials = normal_trials("e-lik", LAYOUT, NARROW, &clean());
        let found = summarise(&trials, &context(Truth::Simulator)).remove(0);
        let coverage = ninety(&found.unknowns[0]).unwrap();
        let text = found.verdict.to_string();
        let percents = [coverage.share, coverage.lower, coverage.upper].map(|share| format!("{:.0}", 100.0 * share));
        let expected = format!(
            "e-lik is overconfident: the 90 % intervals of omega hold the truth in {} % of trials ({} to {}) and would have to be",
            percents[0], percents[1], percents[2]
        );
        assert!(text.starts_with(&expected), "{text}");
        // Intervals of half the width hold what lies within half the quantile.
        let exact = Coverage { share: 1.0 - 2.0 * normal_cdf(-0.5 * normal_quantile(0.95)), ..*coverage };
        assert!((width_factor(&exact).unwrap() - 2.0).abs() <= 16.0 * f64::EPSILON);
        for share in [0.0, 1.0] {
            assert_eq!(width_factor(&Coverage { share, ..*coverage }), None);
        }
    }

    #[test]
    fn sampler_trouble_is_named() {
        let context = context(Truth::Simulator);
        let disagree = Evidence { engine: "nuts".into(), r_hat: Some(1.4), divergences: Some(3), ..clean() };
        only(&named(&disagree, &context), Cause::Sampler, &["R-hat up to 1.40", "600 divergent", "engine"]);
        let coarse = Evidence { quadrature_error: Some(0.2), ..clean() };
        only(&named(&coarse, &context), Cause::Sampler, &["quadrature errors up to 0.20 sd", "100 % of trials"]);
        let t_step = Evidence { t_warned: true, t_r_hat: Some(1.2), ..clean() };
        only(&named(&t_step, &context), Cause::Sampler, &["T-step", "R-hat up to 1.20", "train.method"]);
    }

    #[test]
    fn a_stiff_surrogate_is_named_with_what_is_missing() {
        let evidence = Evidence { sigma_a: Some(0.2), ..clean() };
        let plain = context(Truth::Simulator);
        only(&named(&evidence, &plain), Cause::StiffSurrogate, &["sigma_A 0.20", "infer.propagate"]);
        let carried = Context { propagates_sigma_a: true, ..plain };
        let independent = Context { error: ErrorSharing::Independent, ..carried.clone() };
        only(&named(&evidence, &independent), Cause::StiffSurrogate, &["infer.error = \"shared\""]);
        let single = Context { replicated: false, ..independent };
        only(&named(&evidence, &single), Cause::StiffSurrogate, &["surrogate.degree"]);
        only(&named(&evidence, &carried), Cause::StiffSurrogate, &["surrogate.degree"]);
        // Without a noise to weigh it against, sigma_A leads nothing.
        let unweighed = Evidence { noise_sd: None, ..evidence };
        only(&named(&unweighed, &carried), Cause::Simulator, &["is not known", "sigma_A 0.20"]);
    }

    #[test]
    fn too_few_runs_are_named() {
        let uncertain = Evidence { epistemic_sd: Some(0.3), ..clean() };
        only(&named(&uncertain, &context(Truth::Simulator)), Cause::FewRuns, &["10 training runs", "sd 0.30"]);
        let argued = Evidence { agreement: Some(0.02), ..clean() };
        only(&named(&argued, &context(Truth::HeldOutRuns)), Cause::FewRuns, &["favour 2.0 % of the T-draws"]);
    }

    #[test]
    fn a_method_that_fails_where_e_lik_does_not_is_too_simple() {
        let lik = Evidence { epistemic_sd: Some(0.3), agreement: Some(0.4), ..clean() };
        let mut trials = normal_trials("e-lik", LAYOUT, RIGHT, &lik);
        let other = Evidence { agreement: None, ..lik };
        trials.extend(normal_trials("point", LAYOUT, NARROW, &other));
        trials.extend(normal_trials("e-post", LAYOUT, WIDE, &other));
        let found = judged(&trials, &context(Truth::Simulator));
        assert_eq!(found[0].kind, Kind::Calibrated);
        only(&found[1].causes, Cause::Propagation, &["too little", "e-lik is calibrated", "40 % of the T-draws"]);
        only(&found[2].causes, Cause::Propagation, &["too much"]);
        // Without E-Lik both remain possible.
        let alone = judged(&normal_trials("point", LAYOUT, NARROW, &other), &context(Truth::Simulator)).remove(0);
        let causes: Vec<Cause> = alone.causes.iter().map(|c| c.cause).collect();
        assert_eq!(causes, [Cause::FewRuns, Cause::Propagation]);
    }

    #[test]
    fn data_from_the_surrogate_leave_program_and_sampler() {
        let context = context(Truth::SurrogatePrior);
        // Whatever the surrogate is worth: the data follow it.
        let stiff = Evidence { sigma_a: Some(5.0), ..clean() };
        let found = named(&stiff, &context);
        only(&found[..1], Cause::Propagation, &["E-Lik rests on 1000 T-draws", "train.draws", "before suspecting"]);
        only(&found[1..], Cause::Program, &["If more T-draws change nothing"]);
        let troubled = Evidence { r_hat: Some(2.0), ..stiff.clone() };
        let causes: Vec<Cause> = named(&troubled, &context).iter().map(|c| c.cause).collect();
        assert_eq!(causes, [Cause::Sampler, Cause::Propagation, Cause::Program]);
        // Neither clusters nor other noise leave E-Lik exact.
        let clustered = Context { clustered: true, t_draws: 25, ..context.clone() };
        let words = ["25 clusters stand for the T-posterior", "Leave out infer.clusters"];
        only(&named(&stiff, &clustered), Cause::Propagation, &words);
        let other_noise = Context { other_noise: true, ..context.clone() };
        only(&named(&stiff, &other_noise), Cause::Propagation, &["1000 T-draws"]);
        let point = judged(&normal_trials("point", LAYOUT, NARROW, &stiff), &context).remove(0);
        only(&point.causes, Cause::Propagation, &["E-Lik alone is exact, up to its 1000 T-draws"]);
        assert!(point.sentences.iter().any(|sentence| sentence.contains("from the surrogate itself")));
    }

    #[test]
    fn what_nothing_else_explains_is_the_simulator() {
        only(&named(&clean(), &context(Truth::Simulator)), Cause::Simulator, &["surrogate-prior"]);
        let held_out = context(Truth::HeldOutRuns);
        only(&named(&clean(), &held_out), Cause::Simulator, &["Look at the runs"]);
        let verdict = judged(&normal_trials("e-lik", LAYOUT, RIGHT, &clean()), &held_out).remove(0);
        assert!(verdict.sentences.iter().any(|sentence| sentence.contains("held-out runs")), "{verdict}");
    }

    #[test]
    fn sds_are_named_but_do_not_count() {
        let mut trials = normal_trials("e-lik", LAYOUT, RIGHT, &clean());
        for trial in &mut trials {
            let sd = Ranked { unknown: "sigma_i".into(), pit: 0.999, below: 0.999, ..trial.ranked[0].clone() };
            trial.ranked.push(sd);
        }
        let verdict = judged(&trials, &context(Truth::Simulator)).remove(0);
        assert_eq!(verdict.kind, Kind::Calibrated);
        assert!(verdict.sentences.iter().any(|s| s.starts_with("The noise sd sigma_i is shifted")), "{verdict}");
    }

    #[test]
    fn many_failures_leave_it_open() {
        let mut trials = normal_trials("e-lik", LAYOUT, RIGHT, &clean());
        for trial in trials.iter_mut().step_by(5) {
            trial.ranked.clear();
            trial.failed = Some("no start has a finite density.".into());
        }
        let verdict = judged(&trials, &context(Truth::Simulator)).remove(0);
        assert_eq!(verdict.kind, Kind::Undecided, "{verdict}");
        let sentence =
            "40 of 200 trials failed and are not counted, most often because: no start has a finite density.";
        assert!(verdict.sentences.iter().any(|s| s == sentence), "{verdict}");
        for trial in &mut trials {
            trial.ranked.clear();
            trial.failed = Some("a frequent reason.".into());
        }
        trials[0].failed = Some("a rare one".into());
        let summary = summarise(&trials, &context(Truth::Simulator)).remove(0);
        assert!(summary.unknowns.is_empty());
        assert_eq!(summary.verdict.kind, Kind::Undecided);
        let sentence = "e-lik cannot be judged: all 200 trials failed, most often because: a frequent reason.";
        assert_eq!(summary.verdict.sentences, [sentence]);
    }

    #[test]
    fn names_are_those_of_the_json() {
        for kind in [Kind::Calibrated, Kind::Overconfident, Kind::Underconfident, Kind::Shifted, Kind::Undecided] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        let mut names: Vec<&str> = Cause::ALL.iter().map(|cause| cause.name()).collect();
        names.dedup();
        assert_eq!(names.len(), 6);
        for (value, text) in [(0.0, "0"), (0.064, "0.064"), (12.34, "12"), (3.14159e-7, "3.1e-7"), (99.96, "100")] {
            assert_eq!(digits(value), text);
        }
    }
}
