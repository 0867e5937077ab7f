//! Studies of the same measurements against each other, by the evidence of their finished answers.

use super::Project;
use crate::error::{Error, Result};
use crate::infer::propagation::Method;
use crate::infer::{Evidence, IPosterior, Measured};
use crate::likelihood::{Family, Side};
use crate::special::log_sum_exp;
use crate::study::{MeasurementSource, Stage, Study};
use crate::table::counted;
use crate::train::TrainMethod;
use serde::Serialize;

/// A study, or a setting of one that sweeps, with its finished answers.
pub struct Contender<'a> {
    /// What to call it.
    pub name: String,
    /// The study.
    pub study: &'a Study,
    /// Its measurements.
    pub measured: &'a [Measured],
    /// Its answers.
    pub answers: &'a [IPosterior],
}

/// What the evidences of studies say of each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// By each method that has an evidence in all studies.
    pub methods: Vec<ComparedBy>,
    /// What may not be trusted or compared, and why.
    pub warnings: Vec<String>,
    /// What to keep in mind with any comparison.
    pub notes: Vec<String>,
}

/// Studies by the evidences of one method.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedBy {
    /// The method.
    pub method: String,
    /// Each study, in the order given.
    pub studies: Vec<Compared>,
    /// The best against the next, in words.
    pub verdict: String,
}

/// A study among others; errors are one sd.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// The study.
    pub study: String,
    /// Log density of the measurements.
    pub log_evidence: f64,
    /// Its error.
    pub log_evidence_error: f64,
    /// Logarithm of the evidence over that of the best.
    pub log_bayes_factor: f64,
    /// Its error; 0 for the best.
    pub log_bayes_factor_error: f64,
    /// Posterior probability, all studies being equally probable before the measurements.
    pub probability: f64,
}

/// Holds of every comparison.
const ON_PRIORS: &str = "An evidence depends on the priors: a wider prior of an unknown or of an sd lowers it, even where the \
                         answer stays the same.";

/// Holds of the evidences of E-Lik.
const ON_RUNS: &str = "By E-Lik it is the evidence of a study with its training runs: other runs or another surrogate change it \
                       too, and ± knows nothing of runs that were not made.";

impl Project {
    /// Measurements and answers of setting `index`, which is called `name`, of a finished I-step; nothing is computed.
    ///
    /// # Errors
    /// An I-step that is not finished for the study as it is.
    pub fn answered(&self, index: usize, name: &str) -> Result<(Vec<Measured>, Vec<IPosterior>)> {
        let plan = self.plan(index)?;
        let repair = match self.other_measurements_file() {
            Some(_) => "`twostep infer` with that study and these --measurements finishes it".to_owned(),
            None => format!("`twostep run {}` finishes it", self.settings[index].study.file_name()),
        };
        let found = self.finished(index, &plan, Stage::Infer, |_| self.i_posteriors(index)).map_err(|why| {
            let why = why.into_reason();
            Error::failed(name, format!("the infer stage is not finished for this study as it is: {why}"), repair)
        })?;
        Ok((self.measured(index)?, found.1))
    }
}

/// Compares studies of the same measurements by their evidences.
///
/// # Errors
/// Fewer than two studies; measurements that differ; no method that has an evidence in all of them.
pub fn compare(contenders: &[Contender<'_>]) -> Result<Comparison> {
    let Some((first, others)) = contenders.split_first().filter(|(_, others)| !others.is_empty()) else {
        let place = contenders.first().map_or("compare", |only| &only.name);
        let repair = "name two or more studies of the same measurements, or one that sweeps";
        return Err(Error::invalid(place, "one study has nothing to be compared with", repair));
    };
    for other in others {
        if let Some(found) = difference(first, other) {
            let repair = "evidences compare models of the same measurements: the same values at the same known inputs, in \
                          the same order";
            return Err(Error::invalid(other.place(), found, repair));
        }
    }
    let (mut methods, mut warnings, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
    for method in [Method::ELik, Method::Point] {
        let found: Vec<Option<std::result::Result<Evidence, String>>> =
            contenders.iter().map(|contender| contender.evidence(method)).collect();
        // A method that no study asks for is not missed.
        if found.iter().all(Option::is_none) {
            continue;
        }
        let why_not = contenders.iter().zip(&found).find_map(|(contender, evidence)| match evidence {
            None => Some(format!("{} has no answer by {}", contender.name, method.name())),
            Some(Err(why)) => Some(format!("{}, {}: {why}", contender.name, method.name())),
            Some(Ok(_)) => None,
        });
        if let Some(why) = why_not {
            reasons.push(why);
            continue;
        }
        let evidences: Vec<Evidence> = found.into_iter().flatten().flatten().collect();
        if method == Method::ELik {
            warnings.extend(contenders.iter().zip(&evidences).filter_map(|(own, evidence)| own.doubt(evidence)));
        }
        methods.push(by_method(method, contenders, &evidences));
    }
    if methods.is_empty() {
        let found = match reasons.is_empty() {
            true => "none of the studies infers by e-lik or point, which alone have an evidence".to_owned(),
            false => format!("no method has an evidence in all studies ({})", reasons.join("; ")),
        };
        let repair = "put \"e-lik\" or \"point\" among infer.methods of each study, with engine = \"auto\", and run it";
        return Err(Error::invalid("compare", found, repair));
    }
    warnings.extend(reasons.into_iter().map(|why| format!("left out: {why}")));
    warnings.extend(mixed_kinds(contenders));
    let by_e_lik = methods.iter().any(|by: &ComparedBy| by.method == Method::ELik.name());
    let notes = [Some(ON_PRIORS), by_e_lik.then_some(ON_RUNS)].into_iter().flatten().map(str::to_owned).collect();
    Ok(Comparison { methods, warnings, notes })
}

fn by_method(method: Method, contenders: &[Contender<'_>], evidences: &[Evidence]) -> ComparedBy {
    let mut order: Vec<usize> = (0..evidences.len()).collect();
    order.sort_by(|&a, &b| evidences[b].log.total_cmp(&evidences[a].log));
    let (best, total) = (order[0], log_sum_exp(&evidences.iter().map(|e| e.log).collect::<Vec<_>>()));
    let error_against_best =
        |i: usize| if i == best { 0.0 } else { evidences[i].error().hypot(evidences[best].error()) };
    let studies = contenders.iter().zip(evidences).enumerate().map(|(i, (contender, evidence))| Compared {
        study: contender.name.clone(),
        log_evidence: evidence.log,
        log_evidence_error: evidence.error(),
        log_bayes_factor: evidence.log - evidences[best].log,
        log_bayes_factor_error: error_against_best(i),
        probability: (evidence.log - total).exp(),
    });
    let next = order[1];
    let (log_factor, error) = (evidences[best].log - evidences[next].log, error_against_best(next));
    let factor = match log_factor.exp() {
        factor if factor < 10.0 => format!("a factor of {factor:.1}"),
        factor if factor < 1e4 => {
            // Two digits: it is not known better.
            let unit = 10_f64.powf(factor.log10().floor() - 1.0);
            format!("a factor of about {:.0}", (factor / unit).round() * unit)
        }
        _ => "a factor above 10000".to_owned(),
    };
    let doubt = match log_factor {
        log if log <= error => "; the difference is no larger than its error, and says nothing",
        log if log <= 2.0 * error => "; the difference is less than twice its error, and may be the other way round",
        _ => "",
    };
    let verdict = format!(
        "By {} the measurements favour {} over {}: log Bayes factor {log_factor:.2} ± {error:.2}, {factor}, {}{doubt}.",
        method.title(),
        contenders[best].name,
        contenders[next].name,
        strength(log_factor),
    );
    ComparedBy { method: method.name().into(), studies: studies.collect(), verdict }
}

/// A log Bayes factor in words, by the bounds of [Kass 1995]: 2, 6 and 10 of twice the logarithm.
fn strength(log_factor: f64) -> &'static str {
    match log_factor {
        log if log < 1.0 => "hardly worth a mention",
        log if log < 3.0 => "which is positive evidence",
        log if log < 5.0 => "which is strong evidence",
        _ => "which is very strong evidence",
    }
}

impl Contender<'_> {
    /// Name, and file of measurements.
    fn place(&self) -> String {
        match &self.study.measurements {
            MeasurementSource::File(path) => {
                format!("{} ({})", self.name, path.file_name().unwrap_or_default().to_string_lossy())
            }
            MeasurementSource::Synthetic { .. } | MeasurementSource::None => self.name.clone(),
        }
    }

    fn evidence(&self, method: Method) -> Option<std::result::Result<Evidence, String>> {
        self.answers.iter().find(|answer| answer.method == method.name()).map(IPosterior::evidence)
    }

    /// What there is to doubt of its evidence by E-Lik.
    fn doubt(&self, evidence: &Evidence) -> Option<String> {
        let name = &self.name;
        if let Some(n) = self.study.infer.clusters.count() {
            return Some(format!(
                "{name}: its evidence is that of {n} clusters of T-draws, and how far from that of all of them is not known; \
                 use clusters = \"auto\""
            ));
        }
        if evidence.rests_on_few {
            return Some(format!(
                "{name}: its evidence by e-lik rests on few T-draws; neither it nor its error is to be trusted, raise train.draws"
            ));
        }
        let is_unknown = evidence.t_draw_error.is_none() && self.study.train.method != TrainMethod::Nodes;
        is_unknown
            .then(|| format!("{name}: its T-draws have weights; what their number adds to the error is not known"))
    }

    /// The measurements that there are, with the names of their known inputs.
    fn outputs(&self) -> impl Iterator<Item = &Measured> {
        self.measured.iter().filter(|measured| !measured.y.is_empty())
    }

    fn measured(&self, output: &str) -> Option<&Measured> {
        self.outputs().find(|measured| measured.output == output)
    }

    /// Known inputs of a measurement in the order of their names.
    fn known(&self, measured: &Measured, i: usize) -> Vec<(&str, f64)> {
        let names = self.study.conditions.iter().map(|condition| condition.name.as_str());
        let mut known: Vec<(&str, f64)> = names.zip(measured.known.row(i).iter().copied()).collect();
        known.sort_by(|a, b| a.0.cmp(b.0));
        known
    }

    /// A measurement in words.
    fn row(&self, measured: &Measured, i: usize) -> String {
        let bound = match measured.side(i) {
            Some(Side::Below) => "<",
            Some(Side::Above) => ">",
            None => "",
        };
        let known: Vec<String> = self.known(measured, i).iter().map(|(name, x)| format!("{name} = {x}")).collect();
        let at = if known.is_empty() { String::new() } else { format!(" at {}", known.join(", ")) };
        format!("{bound}{}{at}", measured.y[i])
    }
}

/// Where the measurements of `b` are not those of `a`.
fn difference(a: &Contender<'_>, b: &Contender<'_>) -> Option<String> {
    let lacks = |of: &Contender<'_>, other: &Contender<'_>| {
        of.outputs().map(|m| m.output.clone()).find(|output| other.measured(output).is_none())
    };
    if let Some(output) = lacks(b, a) {
        return Some(format!("measures `{output}`, which {} does not", a.name));
    }
    if let Some(output) = lacks(a, b) {
        return Some(format!("does not measure `{output}`, which {} does", a.name));
    }
    for own in b.outputs() {
        let (output, other) = (&own.output, a.measured(&own.output)?);
        for i in 0..own.y.len().min(other.y.len()) {
            let is_same =
                (own.y[i], own.side(i)) == (other.y[i], other.side(i)) && b.known(own, i) == a.known(other, i);
            if !is_same {
                let number = i + 1;
                let (here, there) = (b.row(own, i), a.row(other, i));
                return Some(format!(
                    "measurement {number} of `{output}` is {here}, and in {} it is {there}",
                    a.place()
                ));
            }
        }
        if own.y.len() != other.y.len() {
            let (here, there) = (counted(own.y.len(), "measurement"), other.y.len());
            return Some(format!("there are {here} of `{output}`, and {there} in {}", a.place()));
        }
    }
    None
}

/// Outputs that are counts in one study, with probabilities, and have a density in another.
fn mixed_kinds(contenders: &[Contender<'_>]) -> Vec<String> {
    let is_count = |contender: &Contender<'_>, name: &str| {
        let output = contender.study.outputs.iter().find(|output| output.name == name)?;
        Some(matches!(output.noise.family, Family::Poisson | Family::NegativeBinomial { .. } | Family::Binomial))
    };
    let of_output = |measured: &Measured| {
        let name = &measured.output;
        let kinds: Vec<bool> = contenders.iter().filter_map(|contender| is_count(contender, name)).collect();
        let is_mixed = kinds.contains(&true) && kinds.contains(&false);
        is_mixed.then(|| {
            format!(
                "`{name}` has probabilities of counts in one study and a density in another: they compare as if the density held \
                 from one count to the next"
            )
        })
    };
    contenders[0].outputs().filter_map(of_output).collect()
}
