//! Whether the simulator runs that exist were enough: retrains on nested subsets of them and infers from the study's
//! measurements.

use super::summary::folder_name;
use super::{Origin, Project, VERSION, Workplace, reports, stages};
use crate::calibrate::enough::{self, Point, Share, VarianceParts, Verdict};
use crate::error::{Error, Result};
use crate::infer::propagation::Method;
use crate::infer::{Clusters, Engine, IPosterior, Measured};
use crate::kernels::instruction_set;
use crate::monitor::{Monitor, Quiet};
use crate::simulate::design;
use crate::stream::Stream;
use crate::study::{MeasurementSource, Stage, Study, digest};
use crate::surrogate::SigmaA;
use crate::table::counted;
use crate::train::{TPosterior, TrainMethod, TrainingSet};
use rand::Rng;
use rand::seq::SliceRandom;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Changing what is computed, or how it is kept, changes this, so that earlier results count as stale.
const FORMAT: &str = "twostep enough 1";

/// Numbers of runs to retrain with.
const SIZES: usize = 4;

/// Nested sequences of subsets: enough to see whether they agree.
const SEQUENCES: usize = 4;

/// Most T-draws to infer with, of all that were trained: their variance is then known to 6 %, and each I-draw costs a
/// likelihood of every T-draw.
const MOST_T_DRAWS: usize = 500;

/// I-draws of a grid for each T-draw: the variance within T-draws is then known better than that between them.
const I_DRAWS: usize = 8;

/// Whether the runs of one setting were enough: the content of `enough.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Enough {
    /// `enough`, `more` or `cannot tell`.
    pub verdict: String,
    /// The same in words, with what to do.
    pub advice: String,
    /// Number of runs that were judged.
    pub runs: usize,
    /// How many runs would be enough, where the curve says so.
    pub suggested_runs: Option<SuggestedRuns>,
    /// Why it does not.
    pub suggested_runs_reason: Option<String>,
    /// Part of each unknown's posterior variance that is the surrogate's: what more runs remove.
    pub surrogate_share: BTreeMap<String, SurrogateShare>,
    /// Part of the variance that goes when the approximation error is left out, which more runs do not remove; none where it
    /// is not propagated.
    pub approximation_share: Option<BTreeMap<String, f64>>,
    /// Widths and shares for each number of runs, ascending.
    pub widths_by_runs: Vec<Widths>,
    /// Share below which runs are enough.
    pub threshold: f64,
    /// Nested sequences of subsets.
    pub sequences: usize,
    /// The method whose posteriors these are: the study's answer, or E-Lik where that does not carry the surrogate's uncertainty.
    pub method: String,
    /// The engine that computed them.
    pub engine: String,
    /// Most parameters of a measured output's surrogate: coefficients, and sigma_a where it is learned.
    pub parameters: usize,
    /// Warnings of T-step and I-step with all runs.
    pub warnings: Vec<String>,
    /// Root of all random streams.
    pub seed: u64,
    /// Hash of everything this depends on.
    pub fingerprint: String,
    /// Version of this program.
    pub version: String,
    /// Instruction set it ran on.
    pub instruction_set: String,
}

/// Number of runs that brings the surrogate's share of every unknown down to the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SuggestedRuns {
    /// The number.
    pub runs: usize,
    /// Its 90 % interval.
    pub interval: [usize; 2],
}

/// The surrogate's share of one unknown's variance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SurrogateShare {
    /// The share.
    pub share: f64,
    /// Its Monte Carlo standard error.
    pub error: f64,
    /// Its 90 % interval.
    pub interval: [f64; 2],
}

/// What came out for one number of runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Widths {
    /// The number of runs.
    pub runs: usize,
    /// Whether there are fewer runs than parameters of the surrogate, so that their prior is in charge.
    pub prior_in_charge: bool,
    /// Each unknown.
    pub unknowns: BTreeMap<String, Width>,
}

/// One unknown at one number of runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Width {
    /// Width of the 90 % interval, mean over the sequences.
    pub width: f64,
    /// Its smallest and largest value over the sequences.
    pub range: [f64; 2],
    /// As part of the prior's.
    pub of_prior: f64,
    /// The surrogate's share of the variance.
    pub surrogate_share: SurrogateShare,
}

/// Whether the runs of one setting were enough, and how that was had.
pub struct EnoughResult {
    /// Values of what is swept, as `key = value`; empty without a sweep.
    pub label: Vec<(String, String)>,
    /// The setting's folder.
    pub folder: PathBuf,
    /// Computed, or kept from an earlier time.
    pub origin: Origin,
    /// What came out.
    pub enough: Enough,
}

impl Project {
    /// Whether the simulator runs of every setting were enough for the surrogate's share of the posterior variance to be below
    /// `threshold` (see [`enough::THRESHOLD`]). Runs the simulator where the study's runs are not there yet,
    /// and never for more; keeps `enough.json` in the folder of each setting, and of a sweep one of all beside them.
    ///
    /// # Errors
    /// A threshold outside (0, 1); a study without measurements, with a single run or with imported T-draws; those of the
    /// stages; an interruption.
    pub fn enough(&self, threshold: f64, monitor: &dyn Monitor) -> Result<Vec<EnoughResult>> {
        if !(threshold > 0.0 && threshold < 1.0) {
            let found = format!("{threshold} is no share of a variance that can be reached");
            return Err(Error::invalid("--share", found, "give a number between 0 and 1, such as 0.44"));
        }
        self.settings.iter().try_for_each(|setting| refuse(&setting.study))?;
        let mut workplace = None;
        let mut results = Vec::new();
        for i in 0..self.settings.len() {
            monitor.progress("settings", i, self.settings.len());
            results.push(self.setting_enough(i, threshold, &mut workplace, monitor)?);
        }
        monitor.progress("settings", self.settings.len(), self.settings.len());
        if results.iter().any(|result| !result.label.is_empty()) {
            let folder = crate::store::Folder::new(self.folder.clone());
            let all = enough_json(self, &results);
            if folder.read_enough::<Value>().ok().as_ref() != Some(&all) {
                self.claim(&mut workplace)?;
                folder.write_enough(&all)?;
            }
        }
        Ok(results)
    }

    /// What [`Project::enough`] found of setting `index` before, as long as nothing that it depends on has changed.
    ///
    /// # Errors
    /// A run ledger or a table of runs that cannot be read.
    pub fn kept_enough(&self, index: usize) -> Result<Option<Enough>> {
        let Ok(kept) = self.setting_folder(index).read_enough::<Enough>() else { return Ok(None) };
        let fingerprint = fingerprint(&self.settings[index].study, kept.threshold, &self.runs_digest(index)?);
        Ok((kept.fingerprint == fingerprint).then_some(kept))
    }

    fn setting_enough(
        &self,
        index: usize,
        threshold: f64,
        workplace: &mut Option<Workplace>,
        monitor: &dyn Monitor,
    ) -> Result<EnoughResult> {
        let setting = &self.settings[index];
        let folder = self.setting_folder(index);
        // Before any work: files that the study depends on may change meanwhile.
        self.complete(index, &super::Only::Pending, super::Changed::Ask, workplace, monitor)?;
        let runs = self.runs_digest(index)?;
        let fingerprint = fingerprint(&setting.study, threshold, &runs);
        let kept = folder.read_enough::<Enough>().ok().filter(|kept| kept.fingerprint == fingerprint);
        let (origin, enough) = match kept {
            Some(enough) => (Origin::Kept, enough),
            None => {
                let measured = self.measured(index)?;
                self.run_setting(index, Stage::Simulate, workplace, monitor)?;
                let set = self.training(index)?;
                self.claim(workplace)?;
                folder.own()?;
                let own = fits_fingerprint(&setting.study, &runs);
                let fits = folder.read_fits::<Fits>().ok().filter(|fits| fits.fingerprint == own);
                let fits = fits.unwrap_or_else(|| Fits { fingerprint: own, done: BTreeMap::new() });
                // A fit that cannot be kept is done again, which is no reason to stop.
                let keep = |fits: &Fits| drop(folder.write_fits(fits));
                let enough = compute(&setting.study, &set, &measured, threshold, fingerprint, fits, &keep, monitor)?;
                folder.write_enough(&enough)?;
                (Origin::Computed, enough)
            }
        };
        Ok(EnoughResult { label: setting.label.clone(), folder: folder.path().to_path_buf(), origin, enough })
    }
}

/// The content of the project's `enough.json`: that of its setting, or of a sweep all of them.
pub fn enough_json(project: &Project, results: &[EnoughResult]) -> Value {
    let content = |result: &EnoughResult| serde_json::to_value(&result.enough).unwrap_or(Value::Null);
    if let [only] = results
        && only.label.is_empty()
    {
        return content(only);
    }
    let entry = |(i, result): (usize, &EnoughResult)| {
        let label: Map<String, Value> = result.label.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
        let place = json!({ "setting": label, "number": i + 1, "folder": folder_name(project, &result.folder) });
        match (place, content(result)) {
            (Value::Object(place), Value::Object(own)) => Value::Object(place.into_iter().chain(own).collect()),
            (place, _) => place,
        }
    };
    let settings: Vec<Value> = results.iter().enumerate().map(entry).collect();
    json!({ "study": project.settings()[0].study.name, "settings": settings })
}

/// The method whose posteriors are compared: the answer, if it is a mixture over the T-draws.
fn method(study: &Study) -> Method {
    if study.infer.answer.is_mixture() { study.infer.answer } else { Method::ELik }
}

fn method_text(study: &Study) -> String {
    [Some(method(study).name().to_owned()), method(study).version()].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn fits_fingerprint(study: &Study, runs: &str) -> String {
    digest(&format!("{FORMAT}\n{}\n{}\n", study.fingerprint(Stage::Infer, runs), method_text(study)))
}

fn fingerprint(study: &Study, threshold: f64, runs: &str) -> String {
    digest(&format!("{}\n{threshold}\n", fits_fingerprint(study, runs)))
}

fn refuse(study: &Study) -> Result<()> {
    if study.train.import.is_some() {
        let found = "T-draws from a file cannot be trained again with fewer runs";
        return Err(Error::invalid("train.import", found, "leave out train.import, and give the surrogate its runs"));
    }
    stages::refuse_untrained(study, "enough")?;
    if study.measurements == MeasurementSource::None {
        let found = "how many runs are enough depends on what is measured, and the study has no measurements";
        let repair = "add file = \"measurements.csv\" to [measurements], or give --measurements FILE";
        return Err(Error::invalid("measurements", found, repair));
    }
    refuse_single(stages::planned_runs(study)?)
}

fn refuse_single(runs: usize) -> Result<()> {
    match runs {
        0 | 1 => {
            let found = format!("{} cannot be compared with fewer", counted(runs, "simulator run"));
            Err(Error::invalid("design.runs", found, "make at least 2, better ten or more"))
        }
        _ => Ok(()),
    }
}

/// What one training with some of the runs gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Fit {
    /// Width of each unknown's 90 % interval.
    widths: Vec<f64>,
    /// Parts of each unknown's variance.
    parts: Vec<VarianceParts>,
    engine: String,
    warnings: Vec<String>,
    /// Part of each unknown's variance that goes without the approximation error, where that was asked for.
    approximation: Option<Vec<f64>>,
}

/// The fits that are done, whatever share of the variance they are judged by.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Fits {
    /// Hash of everything they depend on.
    fingerprint: String,
    /// By `size-sequence`.
    done: BTreeMap<String, Fit>,
}

fn compute(
    study: &Study,
    set: &TrainingSet,
    measured: &[Measured],
    threshold: f64,
    fingerprint: String,
    fits: Fits,
    keep: &(dyn Fn(&Fits) + Sync),
    monitor: &dyn Monitor,
) -> Result<Enough> {
    let n_runs = set.n_runs();
    refuse_single(n_runs)?;
    let sizes = enough::sizes(n_runs, SIZES);
    let stream = Stream::root(study.seed).named("enough");
    let orders: Vec<Vec<usize>> = (0..SEQUENCES).map(|r| order(study, set, r, stream.named("orders"))).collect();
    // The largest first: they take longest.
    let pieces: Vec<(usize, usize)> =
        (0..sizes.len()).rev().flat_map(|size| (0..SEQUENCES).map(move |r| (size, r))).collect();
    let name = |size: usize, r: usize| format!("{size}-{r}");
    let kept = pieces.iter().filter(|&&(size, r)| fits.done.contains_key(&name(size, r))).count();
    monitor.progress("enough", kept, pieces.len());
    let finished = AtomicUsize::new(kept);
    let fits = Mutex::new(fits);
    let fits: Vec<Fit> = pieces
        .par_iter()
        .map(|&(size, r)| {
            let known = || fits.lock().unwrap_or_else(PoisonError::into_inner).done.get(&name(size, r)).cloned();
            if let Some(fit) = known() {
                return Ok(fit);
            }
            if !monitor.proceed() {
                return Err(Error::Interrupted);
            }
            let mut runs = orders[r][..sizes[size]].to_vec();
            runs.sort_unstable();
            let subset = set.select(&runs);
            // One stream for all sizes of a sequence: what is chance between them is less.
            let own = own_study(study, stream.named("sequences").at(r as u64));
            let with_approximation = study.carries_errors() && (size + 1, r) == (sizes.len(), 0);
            let fit = fit(&own, &subset, measured, with_approximation, &Quiet(monitor))?;
            let mut all = fits.lock().unwrap_or_else(PoisonError::into_inner);
            all.done.insert(name(size, r), fit.clone());
            keep(&all);
            drop(all);
            monitor.progress("enough", finished.fetch_add(1, Ordering::Relaxed) + 1, pieces.len());
            Ok(fit)
        })
        .collect::<Result<_>>()?;
    let of_size = |size: usize| &fits[(sizes.len() - 1 - size) * SEQUENCES..][..SEQUENCES];
    let parameters = most_parameters(study, set, measured)?;
    let inferred = study.inferred();
    let names: Vec<&str> = inferred.iter().map(|u| u.name.as_str()).collect();

    let by_size = sizes.iter().enumerate().map(|(size, &runs)| {
        let unknowns = inferred.iter().enumerate().map(|(d, unknown)| {
            let widths: Vec<f64> = of_size(size).iter().map(|fit| fit.widths[d]).collect();
            let width = widths.iter().sum::<f64>() / widths.len() as f64;
            let range = [f64::min, f64::max].map(|end| widths.iter().copied().reduce(end).unwrap_or(width));
            let prior = unknown.prior.quantile(0.95) - unknown.prior.quantile(0.05);
            let surrogate_share = share(of_size(size), d).into();
            (unknown.name.clone(), Width { width, range, of_prior: width / prior, surrogate_share })
        });
        Widths { runs, prior_in_charge: runs < parameters, unknowns: unknowns.collect() }
    });
    let widths_by_runs: Vec<Widths> = by_size.collect();

    let all = of_size(sizes.len() - 1);
    let shares: Vec<Share> = (0..names.len()).map(|d| share(all, d)).collect();
    let by_share = shares.iter().map(|share| share.verdict(threshold)).max().unwrap_or(Verdict::CannotTell);
    let prior_in_charge = n_runs < parameters;
    let verdict = if prior_in_charge { by_share.max(Verdict::CannotTell) } else { by_share };
    let suggestion = if verdict == Verdict::Enough {
        Err("the runs were enough".to_owned())
    } else if prior_in_charge {
        let found = counted(n_runs, "run");
        Err(format!(
            "{found} for {parameters} parameters of the surrogate leave the prior in charge; give at least as many"
        ))
    } else {
        let judged = (0..names.len()).filter(|&d| shares[d].verdict(threshold) != Verdict::Enough);
        let suggested = judged.map(|d| {
            let usable = (0..sizes.len()).filter(|&size| sizes[size] >= parameters);
            let part = |fit: &Fit| fit.parts[d].surrogate();
            let points: Vec<Point> = usable
                .map(|size| Point { runs: sizes[size], surrogate: of_size(size).iter().map(part).collect() })
                .collect();
            let within = all.iter().map(|fit| fit.parts[d].total - part(fit)).sum::<f64>() / all.len() as f64;
            enough::suggest(&points, within, threshold).map_err(|why| format!("{}: {why}", names[d]))
        });
        let suggested = suggested.collect::<std::result::Result<Vec<_>, String>>();
        suggested.map(|all| all.into_iter().reduce(|a, b| if b.runs > a.runs { b } else { a }))
    };
    let whole = |runs: f64| (runs.ceil() as usize).max(n_runs + 1);
    let (suggested_runs, suggested_runs_reason) = match suggestion {
        Ok(Some(s)) => (Some(SuggestedRuns { runs: whole(s.runs), interval: s.interval.map(whole) }), None),
        Ok(None) => (None, Some("no unknown needs them".to_owned())),
        Err(why) => (None, Some(why)),
    };
    let approximation_share = all[0]
        .approximation
        .as_ref()
        .map(|shares| names.iter().map(|name| (*name).to_owned()).zip(shares.iter().copied()).collect());
    let mut out = Enough {
        verdict: verdict.name().into(),
        advice: String::new(),
        runs: n_runs,
        suggested_runs,
        suggested_runs_reason,
        surrogate_share: names.iter().map(|name| (*name).to_owned()).zip(shares.iter().map(|&s| s.into())).collect(),
        approximation_share,
        widths_by_runs,
        threshold,
        sequences: SEQUENCES,
        method: method(study).name().into(),
        engine: all[0].engine.clone(),
        parameters,
        warnings: all[0].warnings.clone(),
        seed: study.seed,
        fingerprint,
        version: VERSION.into(),
        instruction_set: instruction_set().into(),
    };
    out.advice = advice(&out, verdict);
    Ok(out)
}

impl From<Share> for SurrogateShare {
    fn from(share: Share) -> Self {
        Self { share: share.mean, error: share.error, interval: [share.lower, share.upper] }
    }
}

fn share(fits: &[Fit], unknown: usize) -> Share {
    Share::new(&fits.iter().map(|fit| fit.parts[unknown]).collect::<Vec<_>>())
}

/// The runs in an order whose beginnings fill space. The first order of a design that is a sequence is its own; the others
/// begin at different runs and take the farthest one next.
fn order(study: &Study, set: &TrainingSet, number: usize, stream: Stream) -> Vec<usize> {
    use design::Method::{Halton, HaltonEnds, Sobol, SobolScrambled};
    let n = set.n_runs();
    let is_sequence = [Halton, HaltonEnds, Sobol, SobolScrambled].contains(&study.design.method);
    if number == 0 && is_sequence && study.design.points.is_none() {
        return (0..n).collect();
    }
    let scales = study.input_scales();
    let scaled = |run: usize| {
        let inputs = &set.inputs.row(set.rows_of(run).start)[..study.n_run_inputs()];
        inputs.iter().zip(&scales).map(|(x, scale)| scale.scaled(*x).0).collect()
    };
    let points: Vec<Vec<f64>> = (0..n).map(scaled).collect();
    let mut starts: Vec<usize> = (0..n).collect();
    starts.shuffle(&mut stream.rng());
    let mut rank: Vec<usize> = (0..n).collect();
    rank.shuffle(&mut stream.at(number as u64).rng());
    enough::farthest_first(&points, starts[number % n], &rank)
}

/// The study with a seed of its own, and with I-draws that know their T-draw.
fn own_study(study: &Study, stream: Stream) -> Study {
    let mut own = study.clone();
    own.seed = stream.rng().next_u64();
    if own.train.method == TrainMethod::Nodes {
        // Nodes are not drawn, so that there is nothing to tell the error of a share by.
        own.train.method = TrainMethod::Exact;
        own.train.draws = MOST_T_DRAWS;
    }
    // A cluster hides the spread of its T-draws.
    own.infer.clusters = Clusters::None;
    if own.engine().is_ok_and(|engine| [Engine::Exact, Engine::Grid].contains(&engine)) {
        own.infer.draws = I_DRAWS * own.train.draws.min(MOST_T_DRAWS);
    }
    own
}

fn fit(
    study: &Study,
    set: &TrainingSet,
    measured: &[Measured],
    with_approximation: bool,
    monitor: &dyn Monitor,
) -> Result<Fit> {
    let mut posterior = stages::train(study, set, stages::root(study), monitor)?;
    let n = posterior.draws.n_draws();
    if n > MOST_T_DRAWS {
        // Evenly from all chains.
        let kept: Vec<usize> = (0..MOST_T_DRAWS).map(|i| i * n / MOST_T_DRAWS).collect();
        let log_weights = kept.iter().map(|&s| posterior.draws.log_weights()[s]).collect();
        posterior.draws = posterior.draws.select(&kept, log_weights);
    }
    let answer = infer(study, &posterior, measured, monitor)?;
    let t_draws = answer.t_draws.as_deref().unwrap_or_default();
    let n_unknowns = study.inferred().len();
    let parts = (0..n_unknowns).map(|d| {
        let values: Vec<f64> = answer.draws.iter().map(|x| x[d]).collect();
        VarianceParts::new(&values, t_draws)
    });
    let parts = parts.collect();
    let approximation = if with_approximation {
        let mut without = study.clone();
        (without.infer.sigma_a, without.infer.series_errors) = (false, false);
        let without = infer(&without, &posterior, measured, monitor)?;
        let gone = |d: usize| (1.0 - (without.unknowns[d].sd / answer.unknowns[d].sd).powi(2)).max(0.0);
        Some((0..n_unknowns).map(gone).collect())
    } else {
        None
    };
    Ok(Fit {
        widths: answer.unknowns.iter().take(n_unknowns).map(|u| u.q95 - u.q05).collect(),
        parts,
        engine: answer.engine,
        warnings: reports(&posterior).into_iter().flat_map(|r| r.warnings).chain(answer.warnings).collect(),
        approximation,
    })
}

/// The I-posterior by the method that is judged.
fn infer(study: &Study, posterior: &TPosterior, measured: &[Measured], monitor: &dyn Monitor) -> Result<IPosterior> {
    let mut found = Vec::new();
    stages::infer(study, posterior, measured, &[method(study)], Vec::new(), monitor, &mut |new| {
        found.extend(new);
        Ok(())
    })?;
    found.pop().ok_or_else(|| Error::failed("enough", "the I-step gave no posterior", "report this as a bug"))
}

/// Most parameters of a surrogate whose output was measured: coefficients, and sigma_a where it is learned.
fn most_parameters(study: &Study, set: &TrainingSet, measured: &[Measured]) -> Result<usize> {
    let mut outputs = study.outputs.iter().zip(measured).filter(|(_, measured)| !measured.y.is_empty());
    outputs.try_fold(0, |most, (output, _)| {
        let n_inputs = study.n_inputs(output);
        // Of these the prior is never in charge: it says that there is little to learn.
        if output.surrogate.is_open() || output.surrogate.finds_parameters() {
            return Ok(most);
        }
        let surrogate = output.surrogate.build(&set.input_names[..n_inputs], &study.input_scales()[..n_inputs])?;
        let is_learned = matches!(output.surrogate.sigma_a, SigmaA::Prior(_));
        let own = match surrogate.gaussian_process() {
            Some(process) => process.n_parameters(),
            None => surrogate.names().len(),
        };
        Ok(most.max(own + usize::from(is_learned)))
    })
}

/// The verdict in words, with the number behind it and what to do.
fn advice(enough: &Enough, verdict: Verdict) -> String {
    let percent = |share: f64| match 100.0 * share {
        p if p < 9.95 => format!("{p:.1}"),
        p => format!("{p:.0}"),
    };
    let shares: Vec<String> = enough
        .surrogate_share
        .iter()
        .map(|(name, share)| {
            let [low, high] = share.interval.map(percent);
            format!("{} % [{low}, {high}] of the posterior variance of {name}", percent(share.share))
        })
        .collect();
    let shares = shares.join(", ");
    let threshold = percent(enough.threshold);
    let runs = counted(enough.runs, "run");
    let first = match verdict {
        Verdict::Enough => {
            let most = enough.surrogate_share.values().map(|s| s.share).fold(0.0, f64::max);
            let narrower = percent(1.0 - (1.0 - most).sqrt());
            format!(
                "{runs} were enough: what the surrogate has not learned makes up {shares}. More would narrow no interval by \
                 much more than {narrower} %."
            )
        }
        Verdict::More => format!("More than {runs} are needed: what the surrogate has not learned makes up {shares}."),
        Verdict::CannotTell => {
            format!(
                "Whether {runs} were enough cannot be told: what the surrogate has not learned makes up {shares}, to be \
                 compared with {threshold} %."
            )
        }
    };
    let second = match (&enough.suggested_runs, &enough.suggested_runs_reason) {
        (Some(SuggestedRuns { runs, interval: [low, high] }), _) => {
            Some(format!("About {runs} runs ({low} to {high}) would bring it down to {threshold} %."))
        }
        (None, Some(why)) if verdict != Verdict::Enough => Some(format!("How many are needed is not known ({why}).")),
        _ => None,
    };
    let third = match &enough.approximation_share {
        Some(shares) => {
            let shares: Vec<String> =
                shares.iter().map(|(name, share)| format!("{} % ({name})", percent(*share))).collect();
            format!("The approximation error, which more runs do not remove, makes up {}.", shares.join(", "))
        }
        None => "The approximation error, which more runs do not remove, is not carried (infer.propagate) and not \
                 counted here."
            .to_owned(),
    };
    [Some(first), second, Some(third)].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::enough::THRESHOLD;
    use crate::monitor::Silent;
    use crate::study::parse;
    use std::path::Path;

    /// A latin hypercube, so that every order is by distance; two unknowns, replicates and an unknown sd.
    const STUDY: &str = r#"
seed = 5
[simulator]
builtin = "logistic"
sigma_s = 0.02
[unknowns.gamma]
range = [-0.5, 0.5]
prior = "normal(0, 0.25)"
[unknowns.beta]
range = [1, 5]
[conditions.omega]
range = [-1, 1]
[design]
method = "latin-hypercube"
runs = 48
[surrogate]
kind = "pce"
degree = 2
[train]
draws = 60
[measurements]
noise = { family = "normal", sd = "half-normal(0.1)" }
[measurements.synthetic]
truth = { gamma = 0.15, beta = 3 }
at = { omega = "linspace(-1, 1, 4)" }
replicates = 2
noise = { family = "normal", sd = 0.05 }
[infer]
propagate = ["coefficients", "sigma-a"]
"#;

    fn project(text: &str, test: &str) -> Project {
        let folder = std::env::temp_dir().join(format!("twostep-enough-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        Project::new(parse(text, "study.toml", Path::new("")).unwrap_or_else(|e| panic!("{e}")), folder)
    }

    #[test]
    fn results_do_not_depend_on_the_number_of_threads() {
        let files = [1, 2, 8].map(|threads| {
            let project = project(STUDY, &format!("threads-{threads}"));
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let results = pool.install(|| project.enough(THRESHOLD, &Silent)).unwrap();
            let shares = results[0].enough.approximation_share.as_ref().unwrap();
            assert!(shares.values().all(|share| (0.0..1.0).contains(share)), "{shares:?}");
            let file = std::fs::read(project.folder().join("enough.json")).unwrap();
            assert_eq!(project.kept_enough(0).unwrap().as_ref(), Some(&results[0].enough));
            // Of other measurements it says nothing.
            let other = parse(&STUDY.replace("gamma = 0.15", "gamma = 0.2"), "study.toml", Path::new("")).unwrap();
            assert_eq!(Project::new(other, project.folder().to_path_buf()).kept_enough(0).unwrap(), None);
            std::fs::remove_dir_all(project.folder()).unwrap();
            file
        });
        assert!(files[0] == files[1] && files[0] == files[2]);
    }

    #[test]
    fn orders_are_nested_whole_and_different() {
        let set = TrainingSet {
            sigma_s: Some(vec![0.1; 9]),
            ..TrainingSet::new(
                vec!["gamma".into(), "beta".into(), "omega".into()],
                crate::matrix::Matrix::from_fn(9, 3, |i, d| (i * (d + 1)) as f64 % 7.0),
                vec![("y".into(), (0..9).map(f64::from).collect())],
            )
        };
        let study = parse(STUDY, "study.toml", Path::new("")).unwrap().remove(0).study;
        let orders: Vec<Vec<usize>> = (0..4).map(|r| order(&study, &set, r, Stream::root(1))).collect();
        for (r, order) in orders.iter().enumerate() {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..9).collect::<Vec<_>>());
            assert!(orders[..r].iter().all(|other| other[0] != order[0]));
        }
        let part = set.select(&[0, 2, 4]);
        assert_eq!(part.outputs[0].1, [0.0, 2.0, 4.0]);
        assert_eq!((part.inputs.rows(), part.sigma_s.unwrap().len()), (3, 3));
        let mut sequence = study;
        sequence.design.method = design::Method::Sobol;
        assert_eq!(order(&sequence, &set, 0, Stream::root(1)), (0..9).collect::<Vec<_>>());
    }

    /// Asks to stop as soon as the first training is done.
    #[derive(Default)]
    struct Impatient(std::sync::atomic::AtomicBool);

    impl Monitor for Impatient {
        fn proceed(&self) -> bool {
            !self.0.load(Ordering::Relaxed)
        }

        fn progress(&self, what: &str, done: usize, _: usize) {
            if what == "enough" && done > 0 {
                self.0.store(true, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn an_interruption_keeps_the_runs_and_nothing_half_done() {
        let project = project(STUDY, "interrupted");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let outcome = pool.install(|| project.enough(THRESHOLD, &Impatient::default()));
        assert!(matches!(outcome, Err(Error::Interrupted)));
        assert!(project.folder().join("training.csv").exists() && !project.folder().join("enough.json").exists());
        std::fs::remove_dir_all(project.folder()).unwrap();
    }
}
