//! Numbers and sentences as the terminal and the report show them: one source, so that they agree.

use crate::calibrate::enough::THRESHOLD;
use crate::calibrate::{Kind, MethodSummary};
use crate::infer::propagation::Method;
use crate::infer::{IPosterior, QuantitySummary, T_DRAW_ERROR};
use crate::run::{Enough, Findings};
use crate::special::normal_cdf;
use crate::study::{Inferred, Study};
use crate::table::counted;
use crate::train::{CandidateReport, ChoiceReport, TReport};
use std::fmt;

/// Most significant digits of a number in a table; the files of results have all of them.
const MAX_DIGITS: f64 = 7.0;

/// Share of truths that 90 % intervals leave out.
const OUTSIDE: f64 = 0.1;

/// An interval misleads, and two answers disagree, where one of them puts more than this outside the other's 90 % interval: it
/// errs more than twice as often as it says. Normal posteriors of equal width reach it at means 0.77 sd apart, those of equal
/// mean where one is 1.28 times as wide.
const MOST_OUTSIDE: f64 = 2.0 * OUTSIDE;

/// Widths whose ratio is closer to one are called equal: a 90 % interval that is so much too narrow holds 86.5 %, one standard
/// error of a hundred trials less.
const EQUAL_WIDTHS: f64 = 1.1;

/// Means closer than this, in sds, are not what makes intervals differ: shifted by so much, one of 90 % holds 86 %.
const NEAR: f64 = 0.5;

/// Share of the T-draws that the data favour below which they argue with the surrogate, as in the verdicts of calibrations.
const LOW_AGREEMENT: f64 = 0.1;

/// Quadrature error in sds above which the grid warns.
const QUADRATURE_ERROR: f64 = 0.01;

/// Fewer runs than this say little of an interval that holds nine of ten.
const FEW_RUNS: usize = 10;

/// R-hat up to which chains agree, and runs of SMC, which are short.
const CHAINS_AGREE: f64 = 1.01;
const RUNS_AGREE: f64 = 1.05;

/// Effective draws from which on the ends of 90 % intervals are known to a tenth of an sd [Vehtari 2021].
const FEWEST_EFFECTIVE: f64 = 400.0;

/// `design.runs = 10, seed = 2`: what is swept, with its values; empty without a sweep.
pub fn setting(label: &[(String, String)]) -> String {
    label.iter().map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>().join(", ")
}

/// What a sentence means to whoever must decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Says something, for or against nothing.
    Plain,
    /// A reason to trust.
    Good,
    /// A reason to look closer.
    Caution,
    /// A reason not to use the answer as it is.
    Bad,
}

/// A whole sentence, or several that belong together, without markup. Names in it are the user's, and not escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    /// The text.
    pub text: String,
    /// What it means.
    pub tone: Tone,
}

impl Sentence {
    fn new(tone: Tone, text: impl Into<String>) -> Self {
        Self { text: text.into(), tone }
    }
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What is known besides the findings themselves; leave out what is not.
#[derive(Clone, Copy, Default)]
pub struct Evidence<'a> {
    /// The surrogate's share of each quantity's posterior variance, by name.
    pub surrogate_shares: &'a [(String, f64)],
    /// Measurements that lie inside the 90 % intervals in which the answer expects them, and how many there are.
    pub inside: Option<[usize; 2]>,
    /// Whether the runs were enough, as long as it is true of the study as it is ([`crate::run::Project::kept_enough`]).
    pub enough: Option<&'a Enough>,
    /// What a calibration says of each method; empty without one.
    pub calibration: &'a [MethodSummary],
}

/// `values` with so many decimals that the last one is between 0.3 % and 3 % of `scale`, the width of an interval, but
/// with no more than seven significant digits.
pub fn rounded<const N: usize>(values: [f64; N], scale: f64) -> [String; N] {
    let largest = values.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    // Without a width, four significant digits of the value itself.
    let resolution = if scale.is_finite() && scale > 0.0 { scale.log10() - 2.0 } else { largest.log10().floor() - 3.0 };
    let decimals = if resolution.is_finite() { (-resolution).round() } else { 0.0 };
    let magnitude = if largest > 0.0 { largest.log10().floor() } else { 0.0 };
    let decimals = decimals.min(MAX_DIGITS - 1.0 - magnitude);
    // Seven digits before the point, or zeros after it, are more than an eye can count.
    if magnitude > 6.0 || decimals > 8.0 {
        let digits = (magnitude + decimals).max(1.0) as usize;
        return values.map(|value| format!("{value:.digits$e}"));
    }
    let decimals = decimals.max(0.0) as usize;
    values.map(|value| {
        let text = format!("{value:.decimals$}");
        // What is rounded to nothing has no sign.
        match text.strip_prefix('-') {
            Some(rest) if rest.chars().all(|c| "0.".contains(c)) => rest.to_owned(),
            _ => text,
        }
    })
}

/// Mean, and the ends of the interval that holds 90 %; none where part of the posterior has no finite value.
fn mean_and_interval(summary: &QuantitySummary) -> Option<[String; 3]> {
    let values = [summary.mean, summary.q05, summary.q95];
    values.iter().all(|value| value.is_finite()).then(|| rounded(values, summary.q95 - summary.q05))
}

/// `93 %` of runs or trials that hold something. Percentages round towards doubt: 99.6 % of the runs is not all of them.
pub fn held(share: f64) -> String {
    if share.is_nan() {
        return "an unknown share".to_owned();
    }
    format!("{:.0} %", (100.0 * share).floor())
}

/// `1.577 [1.538, 1.622]`: mean, and the interval that holds 90 %; `n/a` where part of the posterior has no finite value.
pub fn quantity(summary: &QuantitySummary) -> String {
    mean_and_interval(summary).map_or("n/a".to_owned(), |[mean, low, high]| format!("{mean} [{low}, {high}]"))
}

/// `beta (1/day)`: the name of a quantity with its unit, for tables and axes.
pub fn with_unit(name: &str, study: &Study) -> String {
    unit(name, study).map_or_else(|| name.to_owned(), |unit| format!("{name} ({unit})"))
}

/// The unit of an unknown, condition or unknown sd, where the study says one.
fn unit<'a>(name: &str, study: &'a Study) -> Option<&'a str> {
    let inputs = study.unknowns.iter().map(|unknown| (&unknown.name, &unknown.unit));
    let mut inputs = inputs.chain(study.conditions.iter().map(|condition| (&condition.name, &condition.unit)));
    if let Some((_, unit)) = inputs.find(|(known, _)| *known == name) {
        return unit.as_deref();
    }
    if let Some(unknown) = study.unknown_named(name) {
        return unknown.unit.as_deref();
    }
    let output = study.sigma_names().iter().position(|sigma| sigma.as_deref() == Some(name)).map(|o| &study.outputs[o]);
    // An sd on the logarithm has no unit.
    output.filter(|output| !output.log).and_then(|output| output.unit.as_deref())
}

/// ` per day` after a number, where the unit is `1/day`; ` m` where it is `m`.
fn spoken_unit(unit: Option<&str>) -> String {
    match unit.map(|unit| (unit, unit.strip_prefix("1/"))) {
        None | Some(("", _)) => String::new(),
        Some((_, Some(per))) if !per.is_empty() => format!(" per {per}"),
        Some((unit, _)) => format!(" {unit}"),
    }
}

/// The true value of an unknown or of a quantity derived from unknowns alone, where measurements are synthetic.
pub fn truth(findings: &Findings, name: &str) -> Option<f64> {
    let truth = findings.truth();
    let of_unknown = |unknown: &Inferred| truth.iter().find(|(name, _)| *name == unknown.name).map(|(_, value)| *value);
    let inferred = findings.study.inferred();
    if let Some(unknown) = inferred.iter().find(|unknown| unknown.name == name) {
        return of_unknown(unknown);
    }
    let derived = findings.study.derived_quantities().ok()?.into_iter().find(|derived| derived.name == name)?;
    let values: Vec<Option<f64>> = inferred.iter().map(of_unknown).collect();
    let is_known = derived.expression.variables_used().iter().all(|&v| values.get(v).is_some_and(Option::is_some));
    let values: Vec<f64> = values.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect();
    let value = || derived.expression.eval_scalar(&values);
    is_known.then(value).filter(|value| value.is_finite())
}

/// The answer in words: a sentence for every unknown, sd and derived quantity. None where the I-step is not finished.
pub fn answer(findings: &Findings) -> Vec<Sentence> {
    let Some(answer) = findings.answers.first() else { return Vec::new() };
    let of_quantity =
        |summary| quantity_in_words(summary, unit(&summary.name, &findings.study), truth(findings, &summary.name));
    answer.unknowns.iter().map(of_quantity).collect()
}

/// Gaps between intervals that are a smaller part of all they span are ripples of the posterior, not places apart.
const RIPPLE: f64 = 0.1;

/// The intervals of highest density that lie apart.
fn places(summary: &QuantitySummary) -> Vec<[f64; 2]> {
    let mut all: Vec<[f64; 2]> =
        summary.hdi90.iter().copied().filter(|ends| ends.iter().all(|e| e.is_finite())).collect();
    all.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let span = all.last().map_or(0.0, |last| last[1]) - all.first().map_or(0.0, |first| first[0]);
    let mut apart: Vec<[f64; 2]> = Vec::new();
    for ends in all {
        match apart.last_mut() {
            Some(before) if ends[0] - before[1] < RIPPLE * span => before[1] = ends[1],
            _ => apart.push(ends),
        }
    }
    apart
}

/// Part of a posterior below `x`: by its density, or as of a normal where that is not known.
fn below(summary: &QuantitySummary, x: f64) -> f64 {
    let pieces = summary.curve.windows(2);
    let mass = |pair: &[[f64; 2]], until: f64| {
        let [a, b] = [pair[0], pair[1]];
        let end = until.clamp(a[0], b[0]);
        let height = a[1] + (b[1] - a[1]) * (end - a[0]) / (b[0] - a[0]).max(f64::MIN_POSITIVE);
        0.5 * (end - a[0]) * (a[1] + height)
    };
    let all: f64 = pieces.clone().map(|pair| mass(pair, f64::INFINITY)).sum();
    match all.is_finite() && all > 0.0 {
        true => pieces.map(|pair| mass(pair, x)).sum::<f64>() / all,
        false => normal_cdf((x - summary.mean) / summary.sd),
    }
}

fn quantity_in_words(summary: &QuantitySummary, unit: Option<&str>, truth: Option<f64>) -> Sentence {
    let (name, unit) = (&summary.name, spoken_unit(unit));
    let Some([mean, low, high]) = mean_and_interval(summary) else {
        let text =
            format!("{name} has no finite value on part of the posterior, so that it has no mean and no interval.");
        return Sentence::new(Tone::Caution, text);
    };
    let width = summary.q95 - summary.q05;
    let modes = places(summary);
    let (text, intervals) = match modes.as_slice() {
        [] | [_] => {
            let text = format!("{name} is {mean}{unit}, between {low} and {high} with 90 % probability");
            (text, vec![[summary.q05, summary.q95]])
        }
        several => {
            let places: Vec<String> = several
                .iter()
                .map(|ends| {
                    let [from, to] = rounded(*ends, width);
                    format!("between {from} and {to}")
                })
                .collect();
            let is_between = several.iter().all(|[from, to]| !(*from..=*to).contains(&summary.mean));
            let mean = match is_between {
                true => format!("its mean, {mean}, stands for none of them"),
                false => format!("its mean is {mean}"),
            };
            let text = format!(
                "{name} lies in one of {} places with at least 90 % probability together: {}{unit}; {mean}",
                several.len(),
                places.join(", or ")
            );
            (text, several.to_vec())
        }
    };
    let Some(truth) = truth.filter(|truth| truth.is_finite()) else {
        return Sentence::new(Tone::Plain, format!("{text}."));
    };
    let [value] = rounded([truth], width);
    match intervals.iter().any(|[low, high]| (*low..=*high).contains(&truth)) {
        true => Sentence::new(Tone::Good, format!("{text}; the true value, {value}, lies inside.")),
        false => {
            let text = format!("{text}; the true value, {value}, lies outside.");
            Sentence::new(Tone::Caution, text)
        }
    }
}

/// How far the answer can be trusted, and what to do about it, in the order in which a reader should know.
///
/// Advice on more runs is that of `twostep enough`, or none.
pub fn trust(findings: &Findings, evidence: Evidence<'_>) -> Vec<Sentence> {
    let mut out = Vec::new();
    if let Some((stage, why)) = &findings.stale {
        let text = format!("The {} stage is not finished ({why}): what follows is known without it.", stage.name());
        out.push(Sentence::new(Tone::Caution, text));
    }
    if let Some(answer) = findings.answers.first() {
        out.extend(compared(&findings.answers));
        out.extend(surrogate_shares(evidence.surrogate_shares, answer.unknowns.len()));
        out.extend(misfit(evidence.inside));
        out.extend(favoured(&findings.answers));
        out.push(engine(answer));
        out.extend(t_draws_are_enough(answer, findings.posterior.as_ref().map(|posterior| posterior.draws.n_draws())));
        let hopeless = answer.trust.starts_with("DO NOT USE");
        let tone = if hopeless { Tone::Bad } else { Tone::Caution };
        out.extend(answer.warnings.iter().map(|warning| Sentence::new(tone, sentence_of(warning))));
    }
    out.extend(failed_runs(findings.training.n_runs(), findings.failed.len()));
    if let Some(posterior) = &findings.posterior {
        let reports = posterior.outputs.iter().map(|output| &output.report);
        out.extend(reports.flat_map(|report| left_out(report, posterior.outputs.len() > 1)));
    }
    let file = findings.study.file_name();
    out.push(enough(evidence.enough, &file));
    out.extend(calibrated(evidence.calibration, findings.study.infer.answer, &file));
    out
}

/// A warning as the terminal shows it, as a sentence.
fn sentence_of(warning: &str) -> String {
    let mut letters = warning.chars();
    let first: String = letters.next().map(|c| c.to_uppercase().collect()).unwrap_or_default();
    let rest = letters.as_str().trim_end_matches('.');
    let begins = |method: &Method| {
        let rest = warning.strip_prefix(method.name());
        rest.is_some_and(|rest| rest.starts_with(':') || rest.starts_with(' '))
    };
    match Method::known().into_iter().find(begins) {
        Some(method) => format!("{}{}.", method.title(), warning[method.name().len()..].trim_end_matches('.')),
        None => format!("{first}{rest}."),
    }
}

/// How the 90 % intervals of two posteriors of one quantity differ.
#[derive(Clone, Copy, Debug)]
struct Difference<'a> {
    name: &'a str,
    /// Distance of the means in sds of the first.
    distance: f64,
    /// Width of the second over that of the first.
    ratio: f64,
    /// What the first puts outside the interval of the second.
    outside: f64,
}

/// One for each quantity that both have finite numbers of.
fn differences<'a>(first: &'a IPosterior, second: &IPosterior) -> Vec<Difference<'a>> {
    let pairs = first.unknowns.iter().filter_map(|a| {
        let b = second.unknowns.iter().find(|b| b.name == a.name)?;
        let place = |value: f64| (value - a.mean) / a.sd;
        Some(Difference {
            name: &a.name,
            distance: place(b.mean).abs(),
            ratio: (b.q95 - b.q05) / (a.q95 - a.q05),
            outside: below(a, b.q05) + 1.0 - below(a, b.q95),
        })
    });
    pairs.filter(|d| d.distance.is_finite() && d.ratio.is_finite() && d.ratio > 0.0 && d.outside.is_finite()).collect()
}

/// `4 times narrower`, `1.3 times wider`; none where the widths are equal to the eye.
fn width_in_words(ratio: f64) -> Option<String> {
    let factor = ratio.max(1.0 / ratio);
    let digits = if factor < 9.95 { format!("{factor:.1}") } else { format!("{factor:.0}") };
    let digits = digits.trim_end_matches(".0");
    (factor >= EQUAL_WIDTHS).then(|| format!("{digits} times {}", if ratio < 1.0 { "narrower" } else { "wider" }))
}

/// `4 times narrower for beta, its mean 0.8 sd away,`.
fn difference_in_words(difference: &Difference<'_>, of: &str) -> String {
    let distance = difference.distance;
    match width_in_words(difference.ratio) {
        Some(width) if distance < NEAR => format!("{width}{of}"),
        Some(width) => format!("{width}{of}, its mean {distance:.1} sd away,"),
        None => format!("as wide{of}, but its mean is {distance:.1} sd away,"),
    }
}

/// The paper's name of a method.
pub(super) fn title(name: &str) -> &str {
    match Method::named(name) {
        Some(method) => method.title(),
        None => name,
    }
}

fn named(answers: &[IPosterior], method: Method) -> Option<&IPosterior> {
    answers.iter().find(|posterior| posterior.method == method.name())
}

/// Whether the methods agree, and which would mislead. The measure is the answer, or, where that is not a mixture over the
/// T-draws, one of the study's methods that is.
fn compared(answers: &[IPosterior]) -> Vec<Sentence> {
    let mut out = Vec::new();
    if let (Some(e_lik), Some(e_post)) = (named(answers, Method::ELik), named(answers, Method::EPost)) {
        out.extend(agreement(e_lik, e_post));
    }
    let answer = Method::named(&answers[0].method);
    let is_mixture = |p: &&IPosterior| Method::named(&p.method).is_some_and(Method::is_mixture);
    let measure = answers.iter().find(is_mixture);
    for method in [Method::Point, Method::ELogLik] {
        let Some(own) = named(answers, method) else { continue };
        let leads = answer == Some(method);
        let title = method.title();
        match measure {
            Some(measure) => out.extend(simpler(own, title, measure, leads)),
            None if leads => {
                let text = format!(
                    "The answer is that of {title}, which does not carry the surrogate's uncertainty; add \"e-lik\" to \
                     infer.methods to see what that leaves out."
                );
                out.push(Sentence::new(Tone::Caution, text));
            }
            None => {}
        }
    }
    out
}

/// Whether E-Lik and E-Post agree on every quantity.
fn agreement(e_lik: &IPosterior, e_post: &IPosterior) -> Option<Sentence> {
    let (there, back) = (differences(e_lik, e_post), differences(e_post, e_lik));
    let outside = |d: &Difference<'_>| {
        let other = back.iter().find(|other| other.name == d.name).map_or(0.0, |other| other.outside);
        d.outside.max(other)
    };
    let worst = there.iter().max_by(|a, b| outside(a).total_cmp(&outside(b)))?;
    if outside(worst) <= MOST_OUTSIDE {
        let distance = there.iter().map(|d| d.distance).fold(0.0, f64::max);
        let factor = there.iter().map(|d| d.ratio.max(1.0 / d.ratio)).fold(1.0, f64::max);
        let text = format!(
            "E-Lik and E-Post agree: their means differ by at most {distance:.1} sd, the widths of their intervals by a factor \
             of at most {factor:.1}."
        );
        return Some(Sentence::new(Tone::Good, text));
    }
    let text = format!(
        "E-Lik and E-Post disagree on {}: the interval of E-Post is {}. The measurements speak for some of the plausible \
         surrogates and against others, which E-Lik believes and E-Post does not: doubt the surrogate and the noise model, and \
         prefer the wider interval until a calibration tells which one holds what it says.",
        worst.name,
        difference_in_words(worst, "").trim_end_matches(',')
    );
    Some(Sentence::new(Tone::Caution, text))
}

/// Whether a method that does not carry the surrogate's uncertainty would mislead, by one that does.
fn simpler(own: &IPosterior, name: &str, measure: &IPosterior, leads: bool) -> Option<Sentence> {
    let differences = differences(measure, own);
    let worst = differences.iter().max_by(|a, b| a.outside.total_cmp(&b.outside))?;
    let than = title(&measure.method);
    if worst.outside <= MOST_OUTSIDE {
        let text = format!(
            "{name} would not mislead you here: at most {} of what {than} holds possible lies outside its 90 % intervals.",
            percent(worst.outside)
        );
        return Some(Sentence::new(Tone::Good, text));
    }
    let text = format!(
        "Compared with {than}, {name} is {} and would mislead you: {} of what {than} holds possible lies outside its 90 % \
         interval.",
        difference_in_words(worst, &format!(" for {}", worst.name)),
        percent(worst.outside)
    );
    Some(match leads {
        true => {
            let text = format!("{text} It is the study's answer: set infer.answer = \"{}\".", measure.method);
            Sentence::new(Tone::Bad, text)
        }
        false => Sentence::new(Tone::Caution, text),
    })
}

/// `71 %`; never 100 for what is not, and what is estimated as nothing may be something.
pub(super) fn percent(share: f64) -> String {
    match 100.0 * share {
        p if p < 0.5 => "less than 1 %".to_owned(),
        p if p < 100.0 && p > 99.5 => "more than 99 %".to_owned(),
        p => format!("{p:.0} %"),
    }
}

/// Whether fewer measurements lie inside their 90 % predictive intervals than chance explains.
fn misfit(inside: Option<[usize; 2]>) -> Option<Sentence> {
    let [inside, all] = inside?;
    // Three standard errors: measurements share the surrogate's error, so that they are not independent.
    let least = (1.0 - OUTSIDE) * all as f64 - 3.0 * (OUTSIDE * (1.0 - OUTSIDE) * all as f64).sqrt();
    let text = format!(
        "Only {inside} of {} lie inside the 90 % intervals in which the answer expects them: simulator, surrogate or noise do not \
         describe the measurements.",
        counted(all, "measurement")
    );
    ((inside as f64) < least).then(|| Sentence::new(Tone::Caution, text))
}

/// `n` is the number of quantities, some of whose shares may not be known.
fn surrogate_shares(shares: &[(String, f64)], n: usize) -> Option<Sentence> {
    let known: Vec<(&str, f64)> =
        shares.iter().filter(|(_, share)| share.is_finite()).map(|(name, share)| (name.as_str(), *share)).collect();
    let most = known.iter().map(|(_, share)| *share).reduce(f64::max)?;
    let parts: Vec<String> = known
        .iter()
        .map(|(name, share)| format!("{} of the variance of {name}", percent(share.clamp(0.0, 1.0))))
        .collect();
    let list = listed(&parts);
    // With the same bound as `enough`.
    Some(match most > THRESHOLD {
        true => Sentence::new(Tone::Caution, format!("The surrogate accounts for {list}.")),
        false if known.len() < n => Sentence::new(Tone::Plain, format!("The surrogate accounts for {list}.")),
        false => Sentence::new(Tone::Good, format!("The surrogate accounts for {list}: the measurements decide.")),
    })
}

/// `a, b and c`.
pub(super) fn listed(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [all @ .., last] => format!("{} and {last}", all.join(", ")),
    }
}

/// What E-Lik says of the T-draws.
fn favoured(answers: &[IPosterior]) -> Option<Sentence> {
    let share = named(answers, Method::ELik)?.diagnostics.evidence_agreement.filter(|share| share.is_finite())?;
    Some(match share < LOW_AGREEMENT {
        true => {
            let text = format!(
                "The measurements favour {} of the T-draws: they argue with the surrogate that the runs taught.",
                percent(share)
            );
            Sentence::new(Tone::Caution, text)
        }
        false => {
            let text = format!("The measurements favour {} of the T-draws: surrogate and data agree.", percent(share));
            Sentence::new(Tone::Good, text)
        }
    })
}

/// How accurately the answer was computed.
fn engine(answer: &IPosterior) -> Sentence {
    let diagnostics = &answer.diagnostics;
    let error = diagnostics.quadrature_error.filter(|error| error.is_finite());
    if answer.engine == "exact" {
        return Sentence::new(Tone::Good, "The answer is computed in closed form, without an error of a sampler.");
    }
    if let Some(clusters) = diagnostics.clusters {
        let how = match clusters.k_hat {
            None => "told a grid where to look, and all T-draws were evaluated there",
            Some(_) => "proposed the answer, and reliable importance weights corrected it to all T-draws",
        };
        let text = format!(
            "{} clusters of T-draws {how}: means, sds and quantiles of the answer are good to {:.3} sd.",
            clusters.clusters,
            (1e3 * clusters.error).ceil() / 1e3
        );
        return Sentence::new(Tone::Good, text);
    }
    if let Some(error) = error {
        // One digit, rounded up: the statement must hold.
        let bound = 10f64.powf(error.max(1e-6).log10().ceil());
        let text = format!("Quadrature computed means, sds and quantiles of the answer to within {bound} sd.");
        return Sentence::new(if error > QUADRATURE_ERROR { Tone::Caution } else { Tone::Good }, text);
    }
    let (what, agree) = if answer.engine == "smc" { ("runs", RUNS_AGREE) } else { ("chains", CHAINS_AGREE) };
    let finite = |value: &f64| value.is_finite();
    let r_hat = diagnostics.max_r_hat.filter(finite);
    let effective = answer.unknowns.iter().filter_map(|u| u.ess_bulk).filter(finite).reduce(f64::min);
    let divergences = diagnostics.divergences.unwrap_or(0);
    let disagrees = r_hat.is_none_or(|r_hat| r_hat > agree);
    let mut parts = vec![match r_hat {
        Some(r_hat) if disagrees => format!("its {what} disagree (R-hat {r_hat:.2})"),
        Some(r_hat) => format!("its {what} agree (R-hat {r_hat:.2})"),
        None => format!("whether its {what} agree is not known"),
    }];
    if let Some(effective) = effective {
        let few = if effective < FEWEST_EFFECTIVE { "only " } else { "" };
        parts.push(format!("they are worth {few}{effective:.0} independent draws"));
    }
    parts.extend(diagnostics.divergences.map(|n| match n {
        0 => "no transition diverged".to_owned(),
        n => format!("{} diverged", counted(n, "transition")),
    }));
    let troubled = disagrees || divergences > 0 || effective.is_some_and(|effective| effective < FEWEST_EFFECTIVE);
    let sampler = if answer.engine == "smc" { "Sequential Monte Carlo" } else { "NUTS" };
    let text = format!("{sampler} sampled the answer: {}.", listed(&parts));
    Sentence::new(if troubled { Tone::Caution } else { Tone::Good }, text)
}

/// That halves of the T-draws agree; where they do not, a warning of the answer says so.
fn t_draws_are_enough(answer: &IPosterior, n_draws: Option<usize>) -> Option<Sentence> {
    let error = answer.diagnostics.t_draw_error.filter(|error| *error <= T_DRAW_ERROR)?;
    let text = format!(
        "{} T-draws are enough: answers by two halves of them agree within {:.2} sd.",
        n_draws?,
        (2e2 * error).ceil() / 1e2
    );
    Some(Sentence::new(Tone::Good, text))
}

fn failed_runs(finished: usize, failed: usize) -> Option<Sentence> {
    let text = format!(
        "{failed} of {} failed: the surrogate knows nothing of the simulator there.",
        counted(finished + failed, "run")
    );
    (failed > 0).then(|| Sentence::new(Tone::Caution, text))
}

/// How well runs are predicted that were left out, and the T-step's own warnings.
/// What is told of surrogates that were compared: what each is, its log score, by how much it is behind with the standard error of that,
/// how many left-out runs lie inside their 90 % intervals, and Q2; whether it was taken.
pub fn choice_rows(choice: &ChoiceReport) -> Vec<([String; 5], bool)> {
    let dash = || "–".to_owned();
    let row = |(k, own): (usize, &CandidateReport)| {
        let behind = own.behind.filter(|_| k != choice.chosen);
        let cells = [
            own.failure.as_ref().map_or(own.name.clone(), |why| format!("{} (failed: {why})", own.name)),
            if own.log_score.is_nan() { dash() } else { format!("{:.2}", own.log_score) },
            behind.map_or_else(dash, |(behind, error)| format!("{behind:.2} ± {error:.2}")),
            if own.coverage_90.is_nan() { dash() } else { held(own.coverage_90) },
            own.q2.map_or_else(dash, |q2| format!("{q2:.3}")),
        ];
        (cells, k == choice.chosen)
    };
    choice.candidates.iter().enumerate().map(row).collect()
}

/// The heads of the columns of [`choice_rows`].
pub const CHOICE_COLUMNS: [&str; 5] = ["surrogate", "log score", "behind", "inside 90 %", "Q2"];

fn left_out(report: &TReport, several: bool) -> Vec<Sentence> {
    let own = &report.leave_one_out;
    let mut out = Vec::new();
    if own.coverage_90.is_finite() && report.n_runs > 0 {
        let whose = if several { format!(" of {}", report.output) } else { String::new() };
        let q2 = own.q2.filter(|q2| q2.is_finite()).map_or(String::new(), |q2| format!(" (Q2 {q2:.2})"));
        let n = report.n_runs as f64;
        // Two standard errors of so many runs, whose intervals hold 90 %.
        let is_low = own.coverage_90 < 1.0 - OUTSIDE - 2.0 * (OUTSIDE * (1.0 - OUTSIDE) / n).sqrt();
        let text = format!(
            "{} of the runs lie inside the 90 % interval of a surrogate{whose} that was trained without them{q2}",
            held(own.coverage_90)
        );
        out.push(match is_low {
            true => Sentence::new(Tone::Caution, format!("{text}: it is surer of itself than it should be.")),
            false if report.n_runs < FEW_RUNS => Sentence::new(Tone::Plain, format!("{text}; so few runs say little.")),
            false => Sentence::new(Tone::Good, format!("{text}.")),
        });
    }
    let tone = if report.troubled { Tone::Bad } else { Tone::Caution };
    out.extend(report.warnings.iter().map(|warning| Sentence::new(tone, sentence_of(warning))));
    out
}

/// Whether more runs would help, in the words of `enough`.
fn enough(enough: Option<&Enough>, file: &str) -> Sentence {
    let Some(enough) = enough else {
        let text = format!("`twostep enough {file}` tells whether more runs would narrow the answer; it was not run.");
        return Sentence::new(Tone::Plain, text);
    };
    let tone = if enough.verdict == "enough" { Tone::Good } else { Tone::Caution };
    Sentence::new(tone, enough.advice.clone())
}

/// What the calibration says of the answer's method, then of the others in brief.
/// What a verdict of calibration means: intervals that are wider than need be do not mislead.
pub(super) fn verdict_tone(kind: Kind) -> Tone {
    match kind {
        Kind::Calibrated | Kind::Underconfident => Tone::Good,
        Kind::Undecided => Tone::Caution,
        Kind::Overconfident | Kind::Shifted => Tone::Bad,
    }
}

fn calibrated(methods: &[MethodSummary], answer: Method, file: &str) -> Vec<Sentence> {
    let Some(own) = methods.iter().find(|method| method.method == answer.name()) else {
        let text = format!(
            "`twostep calibrate {file}` tests whether the intervals of {} hold the truth as often as they say; it was not run.",
            answer.title()
        );
        return vec![Sentence::new(Tone::Plain, text)];
    };
    let tone = verdict_tone(own.verdict.kind);
    let text = format!("Calibration, {}: {}", answer.title(), own.verdict.sentences.join(" "));
    let mut out = vec![Sentence::new(tone, text)];
    out.extend(own.verdict.causes.iter().map(|cause| {
        let text = format!("Possible cause: {}. {} {}", cause.cause.name(), cause.evidence, cause.advice);
        Sentence::new(Tone::Caution, text)
    }));
    let others: Vec<String> = methods
        .iter()
        .filter(|method| method.method != answer.name())
        .map(|method| format!("{} is {}", title(&method.method), method.verdict.kind.name()))
        .collect();
    if !others.is_empty() {
        out.push(Sentence::new(Tone::Plain, format!("In the same trials {}.", listed(&others))));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::{Cause, Explanation, Verdict};
    use crate::infer::Diagnostics;
    use crate::matrix::Matrix;
    use crate::study::{Stage, parse};
    use crate::train::{LeaveOneOut, TrainingSet};
    use std::path::Path;

    const STUDY: &str = r#"
[simulator]
builtin = "logistic"
[unknowns.gamma]
range = [-0.5, 0.5]
unit = "1/day"
[unknowns.beta]
range = [1, 5]
unit = "m"
[conditions.omega]
range = [-1, 1]
[design]
method = "sobol"
runs = 8
[surrogate]
kind = "pce"
degree = 1
[measurements]
noise = { family = "normal", sd = "half-normal(0.1)" }
[measurements.synthetic]
truth = { gamma = 0.1, beta = 3 }
at = { omega = "linspace(-1, 1, 4)" }
noise = { family = "normal", sd = 0.05 }
[derived]
product = "beta * gamma"
noisy = "beta * sigma_i"
pole = "beta / (gamma - 0.1)"
"#;

    /// A normal posterior of one quantity.
    fn normal(name: &str, mean: f64, sd: f64) -> QuantitySummary {
        let [q05, q25, q50, q75, q95] = [-1.644_854, -0.674_490, 0.0, 0.674_490, 1.644_854].map(|z| mean + z * sd);
        QuantitySummary {
            name: name.into(),
            mean,
            sd,
            q05,
            q25,
            q50,
            q75,
            q95,
            hdi90: vec![[q05, q95]],
            mcse_mean: None,
            mcse_sd: None,
            mcse_quantiles: None,
            ess_bulk: None,
            ess_tail: None,
            r_hat: None,
            quadrature_error: None,
            curve: Vec::new(),
        }
    }

    fn posterior(method: Method, unknowns: Vec<QuantitySummary>) -> IPosterior {
        let diagnostics = Diagnostics { quadrature_error: Some(2e-4), ..Diagnostics::default() };
        let content = serde_json::json!({
            "method": method.name(),
            "engine": "grid",
            "unknowns": [],
            "trust": "",
            "diagnostics": diagnostics,
            "warnings": [],
        });
        IPosterior { unknowns, ..serde_json::from_value(content).unwrap() }
    }

    fn findings(answers: Vec<IPosterior>) -> Findings {
        let study =
            parse(STUDY, "a folder/study.toml", Path::new("")).unwrap_or_else(|e| panic!("{e}")).remove(0).study;
        Findings {
            label: Vec::new(),
            folder: "folder".into(),
            training: TrainingSet::new(Vec::new(), Matrix::zeros(8, 0), Vec::new()),
            failed: Vec::new(),
            posterior: None,
            measured: Vec::new(),
            parameters: Vec::new(),
            answers,
            records: Vec::new(),
            stale: None,
            study,
        }
    }

    fn texts(sentences: &[Sentence]) -> Vec<&str> {
        sentences.iter().map(|sentence| sentence.text.as_str()).collect()
    }

    #[test]
    fn decimals_follow_the_width_of_the_interval() {
        assert_eq!(rounded([1.57694, 1.53812, 1.62241], 0.084), ["1.577", "1.538", "1.622"]);
        assert_eq!(rounded([152.9, 132.7, 173.0], 40.3), ["153", "133", "173"]);
        assert_eq!(rounded([123_456.7, 0.0, 0.0], 1e5), ["123457", "0", "0"]);
        assert_eq!(rounded([2e-12, 1e-12, 3e-12], 2e-12), ["2.00e-12", "1.00e-12", "3.00e-12"]);
        assert_eq!(rounded([0.5], 0.0), ["0.5000"]);
        assert_eq!(rounded([0.0], 0.0), ["0"]);
        assert_eq!(rounded([-0.2, -37.2, 36.9], 74.0), ["0", "-37", "37"]);
        assert_eq!(rounded([-0.0004, -0.1], 0.1), ["0.000", "-0.100"]);
        // An interval much narrower than its place.
        assert_eq!(rounded([0.713050989274, 0.713050989249], 5e-11), ["0.7130510", "0.7130510"]);
        assert_eq!(rounded([7130.50989274, 7130.50989249], 5e-7), ["7130.510", "7130.510"]);
        assert_eq!(rounded([f64::NAN, f64::INFINITY], f64::NAN), ["NaN", "inf"]);
    }

    #[test]
    fn the_answer_has_units_and_truths() {
        let unknowns = vec![
            normal("gamma", 0.11, 0.02),
            normal("beta", 3.5, 0.1),
            normal("sigma_i", 0.05, 0.01),
            normal("product", 0.385, 0.1),
            normal("noisy", 0.17, 0.01),
            normal("pole", 5.0, 1.0),
        ];
        assert_eq!(quantity(&unknowns[0]), "0.110 [0.077, 0.143]");
        let found = findings(vec![posterior(Method::ELik, unknowns)]);
        let sentences = answer(&found);
        assert_eq!(
            texts(&sentences),
            [
                "gamma is 0.110 per day, between 0.077 and 0.143 with 90 % probability; the true value, 0.100, lies inside.",
                "beta is 3.50 m, between 3.34 and 3.66 with 90 % probability; the true value, 3.00, lies outside.",
                "sigma_i is 0.050, between 0.034 and 0.066 with 90 % probability.",
                "product is 0.39, between 0.22 and 0.55 with 90 % probability; the true value, 0.30, lies inside.",
                // The truth of the sd is not given, and a quotient by zero is no truth.
                "noisy is 0.170, between 0.154 and 0.186 with 90 % probability.",
                "pole is 5.0, between 3.4 and 6.6 with 90 % probability.",
            ]
        );
        let tones: Vec<Tone> = sentences.iter().map(|sentence| sentence.tone).collect();
        assert_eq!(tones, [Tone::Good, Tone::Caution, Tone::Plain, Tone::Good, Tone::Plain, Tone::Plain]);
        assert_eq!(answer(&findings(Vec::new())), []);
        assert_eq!(with_unit("gamma", &found.study), "gamma (1/day)");
        assert_eq!(with_unit("product", &found.study), "product");
    }

    #[test]
    fn several_modes_are_several_intervals_and_no_number_is_no_sentence_of_numbers() {
        let mut two = normal("gamma", 0.0, 0.2);
        two.hdi90 = vec![[-0.3, -0.2], [0.2, 0.3]];
        let sentence = quantity_in_words(&two, None, Some(0.0));
        assert_eq!(
            sentence.text,
            "gamma lies in one of 2 places with at least 90 % probability together: between -0.30 and -0.20, or between 0.20 and 0.30; \
             its mean, 0.00, stands for none of them; the true value, 0.00, lies outside."
        );
        assert_eq!(quantity_in_words(&two, None, Some(0.25)).tone, Tone::Good);
        // A flat posterior on [0, 1], whose highest density is anywhere.
        let mut flat = normal("flat", 0.5, 0.29);
        (flat.q05, flat.q95, flat.hdi90) = (0.05, 0.95, vec![[0.0, 0.21], [0.25, 0.68], [0.7, 0.96]]);
        assert_eq!(
            quantity_in_words(&flat, None, None).text,
            "flat is 0.50, between 0.05 and 0.95 with 90 % probability."
        );
        let mut none = normal("pole", f64::NAN, f64::NAN);
        none.hdi90 = Vec::new();
        let sentence = quantity_in_words(&none, Some("m"), Some(1.0));
        assert!(sentence.text.starts_with("pole has no finite value") && sentence.tone == Tone::Caution);
        assert_eq!(quantity(&none), "n/a");
    }

    #[test]
    fn methods_agree_or_mislead() {
        let of = |method, mean, sd| posterior(method, vec![normal("gamma", mean, sd), normal("beta", 3.0, 0.1)]);
        let alike =
            compared(&[of(Method::ELik, 0.1, 0.1), of(Method::EPost, 0.12, 0.11), of(Method::Point, 0.1, 0.099)]);
        assert_eq!(
            texts(&alike),
            [
                "E-Lik and E-Post agree: their means differ by at most 0.2 sd, the widths of their intervals by a factor of at \
                 most 1.1.",
                "Point would not mislead you here: at most 10 % of what E-Lik holds possible lies outside its 90 % intervals.",
            ]
        );
        assert!(alike.iter().all(|sentence| sentence.tone == Tone::Good));
        let apart = compared(&[
            of(Method::ELik, 0.1, 0.1),
            of(Method::EPost, 0.1, 0.2),
            of(Method::Point, 0.12, 0.025),
            of(Method::ELogLik, 0.3, 0.1),
        ]);
        assert!(
            apart[0].text.starts_with("E-Lik and E-Post disagree on gamma: the interval of E-Post is 2 times wider.")
        );
        assert_eq!(
            texts(&apart)[1..],
            [
                "Compared with E-Lik, Point is 4 times narrower for gamma and would mislead you: 69 % of what E-Lik holds \
                 possible lies outside its 90 % interval.",
                "Compared with E-Lik, E-Log-Lik is as wide for gamma, but its mean is 2.0 sd away, and would mislead you: 64 % \
                 of what E-Lik holds possible lies outside its 90 % interval.",
            ]
        );
        assert!(apart.iter().all(|sentence| sentence.tone == Tone::Caution));
        // Both narrower and elsewhere.
        let both = compared(&[of(Method::EPost, 0.1, 0.1), of(Method::Point, 0.2, 0.05)]);
        assert!(
            both[0].text.contains("Point is 2 times narrower for gamma, its mean 1.0 sd away, and would"),
            "{both:?}"
        );
        // The bound itself: means 0.77 sd apart, or widths by a factor of 1.28.
        for (mean, sd, tone) in [
            (0.177, 0.1, Tone::Good),
            (0.178, 0.1, Tone::Caution),
            (0.1, 0.127, Tone::Good),
            (0.1, 0.130, Tone::Caution),
        ] {
            let sentence = agreement(&of(Method::ELik, 0.1, 0.1), &of(Method::EPost, mean, sd)).unwrap();
            assert_eq!(sentence.tone, tone, "{mean} {sd}: {sentence}");
        }
    }

    #[test]
    fn an_answer_without_the_surrogates_uncertainty_is_named() {
        let of = |method, sd| posterior(method, vec![normal("gamma", 0.1, sd)]);
        let bad = compared(&[of(Method::Point, 0.02), of(Method::ELik, 0.1)]);
        assert_eq!(bad[0].tone, Tone::Bad);
        assert!(bad[0].text.ends_with("It is the study's answer: set infer.answer = \"e-lik\"."));
        let alone = compared(&[of(Method::Point, 0.02), of(Method::ELogLik, 0.01)]);
        assert_eq!(alone.len(), 1);
        assert!(alone[0].text.contains("add \"e-lik\" to infer.methods") && alone[0].tone == Tone::Caution);
        // A quantity without numbers is compared with nothing.
        assert_eq!(compared(&[of(Method::ELik, f64::NAN), of(Method::EPost, 0.1), of(Method::Point, 0.1)]), []);
    }

    #[test]
    fn shares_and_favoured_draws_are_in_words() {
        let share = |share: f64| {
            surrogate_shares(&[("gamma".into(), share), ("beta".into(), 0.001), ("x".into(), f64::NAN)], 2)
        };
        let large = share(0.71).unwrap();
        assert_eq!(
            large.text,
            "The surrogate accounts for 71 % of the variance of gamma and less than 1 % of the variance of beta."
        );
        assert_eq!((large.tone, share(0.2).unwrap().tone), (Tone::Caution, Tone::Good));
        assert_eq!(surrogate_shares(&[("x".into(), f64::NAN)], 1), None);
        // What is not known decides nothing.
        assert_eq!(surrogate_shares(&[("gamma".into(), 0.2)], 2).unwrap().tone, Tone::Plain);
        assert_eq!(misfit(Some([46, 50])), None);
        assert!(misfit(Some([30, 50])).unwrap().text.starts_with("Only 30 of 50 measurements lie inside"));
        let favoured = |share| {
            let mut own = posterior(Method::ELik, Vec::new());
            own.diagnostics.evidence_agreement = share;
            super::favoured(&[own])
        };
        assert_eq!(favoured(None), None);
        assert_eq!(favoured(Some(f64::NAN)), None);
        assert_eq!(favoured(Some(0.5)).unwrap().tone, Tone::Good);
        let few = favoured(Some(0.001)).unwrap();
        assert_eq!(few.tone, Tone::Caution);
        assert!(few.text.starts_with("The measurements favour less than 1 % of the T-draws"));
    }

    #[test]
    fn engines_say_how_accurate_they_were() {
        let mut own = posterior(Method::ELik, vec![normal("gamma", 0.1, 0.1)]);
        assert_eq!(engine(&own).text, "Quadrature computed means, sds and quantiles of the answer to within 0.001 sd.");
        own.diagnostics.quadrature_error = Some(0.02);
        assert_eq!(engine(&own).tone, Tone::Caution);
        own.diagnostics.quadrature_error = None;
        own.engine = "exact".into();
        assert_eq!(engine(&own).tone, Tone::Good);
        own.engine = "nuts".into();
        assert_eq!(engine(&own).text, "NUTS sampled the answer: whether its chains agree is not known.");
        own.unknowns[0].ess_bulk = Some(1203.4);
        own.diagnostics = Diagnostics { max_r_hat: Some(1.004), divergences: Some(0), ..Diagnostics::default() };
        let good = engine(&own);
        assert_eq!(
            good.text,
            "NUTS sampled the answer: its chains agree (R-hat 1.00), they are worth 1203 independent draws and no transition \
             diverged."
        );
        assert_eq!(good.tone, Tone::Good);
        own.diagnostics.divergences = Some(1);
        assert!(engine(&own).text.ends_with("1 transition diverged."));
        assert_eq!(engine(&own).tone, Tone::Caution);
        own.diagnostics = Diagnostics { max_r_hat: Some(1.04), ..Diagnostics::default() };
        assert!(engine(&own).text.contains("its chains disagree (R-hat 1.04)"));
        own.engine = "smc".into();
        assert_eq!(engine(&own).tone, Tone::Good);
        own.unknowns[0].ess_bulk = Some(f64::NAN);
        own.diagnostics.max_r_hat = Some(f64::INFINITY);
        let unknown = engine(&own);
        assert_eq!(unknown.text, "Sequential Monte Carlo sampled the answer: whether its runs agree is not known.");
        assert_eq!(unknown.tone, Tone::Caution);
    }

    fn report(coverage_90: f64) -> TReport {
        TReport {
            output: "y".into(),
            method: "exact".into(),
            n_rows: 64,
            n_runs: 64,
            parameters: Vec::new(),
            predictive_coverage_90: 1.0,
            leave_one_out: LeaveOneOut {
                q2: Some(0.987),
                coverage_90,
                predictions: Vec::new(),
                unreliable: 0,
                log_scores: Vec::new(),
            },
            divergences: 0,
            troubled: false,
            warnings: Vec::new(),
            choice: None,
            terms: None,
            series: None,
            importance: None,
        }
    }

    #[test]
    fn runs_that_were_left_out_and_runs_that_failed() {
        let good = left_out(&report(0.9219), false);
        assert_eq!(
            texts(&good),
            ["92 % of the runs lie inside the 90 % interval of a surrogate that was trained without them (Q2 0.99)."]
        );
        // Of 64 runs 82.5 % are two standard errors below 90 %.
        assert_eq!(left_out(&report(0.83), false)[0].tone, Tone::Good);
        assert_eq!(left_out(&report(0.82), false)[0].tone, Tone::Caution);
        let mut own = report(0.9);
        (own.leave_one_out.q2, own.troubled) = (Some(f64::NAN), true);
        own.warnings.push("T-step of `y`: the chains disagree".into());
        let said = left_out(&own, true);
        assert_eq!(
            texts(&said),
            [
                "90 % of the runs lie inside the 90 % interval of a surrogate of y that was trained without them.",
                "T-step of `y`: the chains disagree."
            ]
        );
        assert_eq!(said[1].tone, Tone::Bad);
        assert!(left_out(&report(f64::NAN), false).is_empty());
        assert_eq!(failed_runs(60, 0), None);
        assert!(failed_runs(60, 4).unwrap().text.starts_with("4 of 64 runs failed"));
    }

    #[test]
    fn advice_on_runs_is_that_of_enough_alone() {
        assert_eq!(
            enough(None, "study.toml").text,
            "`twostep enough study.toml` tells whether more runs would narrow the answer; it was not run."
        );
        let own = Enough {
            verdict: "more".into(),
            advice: "About 90 runs would do.".into(),
            runs: 64,
            suggested_runs: None,
            suggested_runs_reason: None,
            surrogate_share: Default::default(),
            approximation_share: None,
            widths_by_runs: Vec::new(),
            threshold: THRESHOLD,
            sequences: 4,
            method: "e-lik".into(),
            engine: "grid".into(),
            parameters: 35,
            warnings: Vec::new(),
            seed: 1,
            fingerprint: String::new(),
            version: String::new(),
            instruction_set: String::new(),
        };
        assert_eq!(enough(Some(&own), "study.toml"), Sentence::new(Tone::Caution, "About 90 runs would do."));
        let fine = Enough { verdict: "enough".into(), ..own };
        assert_eq!(enough(Some(&fine), "study.toml").tone, Tone::Good);
    }

    fn tried(method: Method, kind: Kind) -> MethodSummary {
        let failing = kind.is_failure();
        let cause = Explanation { cause: Cause::FewRuns, evidence: "8 runs.".into(), advice: "Add runs.".into() };
        MethodSummary {
            method: method.name().into(),
            trials: 200,
            t_trials: 100,
            failed: 0,
            failure: None,
            unknowns: Vec::new(),
            verdict: Verdict {
                kind,
                sentences: vec!["A verdict.".into()],
                causes: if failing { vec![cause] } else { Vec::new() },
            },
        }
    }

    #[test]
    fn calibrations_have_the_last_word() {
        let none = calibrated(&[], Method::ELik, "study.toml");
        assert!(none[0].text.starts_with("`twostep calibrate study.toml` tests whether the intervals of E-Lik"));
        for (kind, tone) in [
            (Kind::Calibrated, Tone::Good),
            (Kind::Underconfident, Tone::Good),
            (Kind::Undecided, Tone::Caution),
            (Kind::Shifted, Tone::Bad),
        ] {
            let said = calibrated(&[tried(Method::ELik, kind)], Method::ELik, "study.toml");
            assert_eq!((said[0].text.as_str(), said[0].tone), ("Calibration, E-Lik: A verdict.", tone));
        }
        let methods = [tried(Method::ELik, Kind::Overconfident), tried(Method::Point, Kind::Overconfident)];
        assert_eq!(
            texts(&calibrated(&methods, Method::ELik, "study.toml"))[1..],
            ["Possible cause: too few training runs. 8 runs. Add runs.", "In the same trials Point is overconfident."]
        );
    }

    #[test]
    fn everything_together_has_no_gap_and_no_nan() {
        let numbers = |method: Method, mean: f64, sd: f64| {
            let mut own = posterior(method, vec![normal("gamma", mean, sd), normal("pole", f64::NAN, f64::NAN)]);
            own.diagnostics.evidence_agreement = Some(f64::NAN);
            own.warnings.push(format!("{}: something is odd", method.name()));
            own
        };
        let mut found = findings(vec![numbers(Method::ELik, 0.1, 0.1), numbers(Method::Point, f64::NAN, 0.0)]);
        let evidence = Evidence { surrogate_shares: &[("pole".into(), f64::NAN)], ..Evidence::default() };
        let said = trust(&found, evidence);
        assert_eq!(
            texts(&said),
            [
                "Quadrature computed means, sds and quantiles of the answer to within 0.001 sd.",
                "E-Lik: something is odd.",
                "`twostep enough study.toml` tells whether more runs would narrow the answer; it was not run.",
                "`twostep calibrate study.toml` tests whether the intervals of E-Lik hold the truth as often as they say; it was \
                 not run.",
            ]
        );
        assert!(said.iter().chain(&answer(&found)).all(|sentence| !sentence.text.contains("NaN")));
        found.answers[0].trust = "DO NOT USE: NUTS overlooked part of the posterior".into();
        assert_eq!(trust(&found, evidence)[1].tone, Tone::Bad);
        let unfinished = Findings { stale: Some((Stage::Train, "never made".into())), ..findings(Vec::new()) };
        assert!(
            trust(&unfinished, Evidence::default())[0].text.starts_with("The train stage is not finished (never made)")
        );
        assert_eq!(sentence_of("é is odd"), "É is odd.");
        assert_eq!(sentence_of(""), ".");
    }
}
