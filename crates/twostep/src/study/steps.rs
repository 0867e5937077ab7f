//! Sections about the steps: T-step, measurements, derived quantities and I-step.

use std::path::Path;

use super::document::{Field, Section};
use super::inputs::{Names, RELATIVE};
use super::outputs::{degrees_of_freedom, only_with};
use super::problem::found_and_repair;
use super::{Condition, MeasurementSource, Output, Study, Unknown};
use crate::calibrate::{CalibrateSpec, Truth};
use crate::expression::Expression;
use crate::infer::propagation::{Method, PointEstimate};
use crate::infer::{Clusters, Engine, Fits, GridSpec, InferSpec, NutsSpec, SmcSpec};
use crate::likelihood::{ErrorSharing, Family, Generator, NoiseSpec, Scale};
use crate::matrix::Matrix;
use crate::mcmc::quadrature::MAX_AXES;
use crate::simulate::{DesignSpec, spelling_repair};
use crate::surrogate::{Formula, SigmaA, Surrogate, SurrogateKind, SurrogateSpec, n_terms};
use crate::table::{Table, counted};
use crate::train::cluster::Representative;
use crate::train::{self, KnownSigmaS, TrainMethod, TrainSpec};

/// Most coefficients of a T-posterior that has quadrature nodes.
const MAX_NODE_COEFFICIENTS: usize = 3;

pub(super) fn train(
    root: &Section<'_>,
    folder: &Path,
    outputs: Option<&[Output]>,
    names: &Names,
    design: &DesignSpec,
) -> TrainSpec {
    let default = TrainSpec::default();
    let keys = ["method", "draws", "import", "sigma_s", "nuts"];
    let Some(section) = root.get("train").and_then(|field| field.section(&keys)) else {
        return default;
    };
    let methods = [
        ("auto", TrainMethod::Auto),
        ("exact", TrainMethod::Exact),
        ("nuts", TrainMethod::Nuts),
        ("laplace", TrainMethod::Laplace),
        ("pathfinder", TrainMethod::Pathfinder),
        ("nodes", TrainMethod::Nodes),
    ];
    let method = section.read("method", default.method, |field| field.choice(&methods));
    let draws = section.read("draws", default.draws, Field::count);
    let import = section.get("import").and_then(|field| {
        let path = folder.join(field.text()?);
        if let Err(error) = Table::read(&path) {
            field.refuse(error, "expected a CSV file with a column per parameter", RELATIVE.to_owned());
        }
        Some(path)
    });
    let sigma_s = section.read("sigma_s", default.sigma_s, |field| {
        if !field.is_text() {
            return field.not_negative().map(KnownSigmaS::Fixed);
        }
        let known = field.choice(&[("simulator", KnownSigmaS::Simulator), ("column", KnownSigmaS::Column)])?;
        let in_points =
            || design.points.as_ref().and_then(|path| Table::read(path).ok()).is_some_and(|t| t.has("sigma_s"));
        if known == KnownSigmaS::Column && !in_points() {
            let help = "name a file with that column as design.points, or give a number";
            field.refuse("the design has no column `sigma_s`", "needs design.points", help.to_owned());
        }
        Some(known)
    });
    let nuts = section.read("nuts", default.nuts, |field| {
        let section = field.section(&["chains", "warmup"])?;
        let (chains, warmup) = (default.nuts.chains, default.nuts.warmup);
        Some(train::NutsSpec {
            chains: section.read("chains", chains, Field::count),
            warmup: section.read("warmup", warmup, Field::count),
        })
    });
    if let (Some(field), Some(outputs), None) = (section.get("method"), outputs, &import)
        && let Some((found, help)) = unsuitable(method, outputs, names)
    {
        field.refuse(found, "does not fit the surrogate", help.to_owned());
    }
    if let (Some(field), TrainMethod::Nuts, true) = (section.get("draws"), method, draws < nuts.chains) {
        field.refuse(format!("{draws} draws from {} chains", nuts.chains), "fewer draws than chains", None);
    }
    TrainSpec { method, draws, import, sigma_s, nuts }
}

/// Why a method cannot train these outputs, and what can.
fn unsuitable(method: TrainMethod, outputs: &[Output], names: &Names) -> Option<(String, &'static str)> {
    let exact = matches!(method, TrainMethod::Exact | TrainMethod::Nodes);
    let nodes = method == TrainMethod::Nodes;
    if nodes && outputs.len() > 1 {
        return Some((format!("nodes are for one output, not for {}", outputs.len()), "use method = \"exact\""));
    }
    if let Some(output) =
        outputs.iter().find(|output| output.surrogate.function().is_some() && method != TrainMethod::Auto)
    {
        let found = format!("the surrogate of `{}` is a Python function, which makes its own draws", output.name);
        return Some((found, "leave out method"));
    }
    if let Some(output) = outputs.iter().find(|output| nodes && output.surrogate.has_components()) {
        let found = format!("nodes are for one surrogate, not for those of the components of `{}`", output.name);
        return Some((found, "use method = \"exact\", or series = \"coordinate\""));
    }
    let kind =
        |output: &Output| output.surrogate.components().map_or(output.surrogate.kind.clone(), |score| score.kind);
    let is_process = |output: &&Output| matches!(kind(output), SurrogateKind::Gp { .. });
    if let Some(output) = outputs.iter().find(is_process).filter(|_| method != TrainMethod::Auto) {
        let found =
            format!("the surrogate of `{}` is a Gaussian process, which is trained in a way of its own", output.name);
        return Some((found, "leave out method"));
    }
    if let Some(output) =
        outputs.iter().find(|output| output.surrogate.is_open()).filter(|_| method != TrainMethod::Auto)
    {
        let found =
            format!("which surrogate `{}` has, its runs decide, and each is trained in its own way", output.name);
        return Some((found, "leave out method"));
    }
    let is_sparse = |output: &&Output| matches!(kind(output), SurrogateKind::SparsePce { .. });
    if let Some(output) = outputs.iter().find(is_sparse).filter(|_| method != TrainMethod::Auto) {
        let found = format!(
            "the coefficients of `{}` have a horseshoe prior, which is trained in a way of its own",
            output.name
        );
        return Some((found, "leave out method"));
    }
    for output in outputs {
        let (n_coefficients, linear) = coefficients(&output.surrogate, names);
        if exact && !linear {
            let found = format!("the T-posterior of `{}` has no exact form", output.name);
            return Some((
                found,
                "use \"nuts\": exact ones need a surrogate linear in its coefficients, with normal priors, and one sigma_a everywhere",
            ));
        }
        if nodes && n_coefficients > MAX_NODE_COEFFICIENTS {
            let found = format!("nodes are for 1 to {MAX_NODE_COEFFICIENTS} coefficients, not for {n_coefficients}");
            return Some((found, "use method = \"exact\""));
        }
        if nodes && matches!(output.surrogate.sigma_a, SigmaA::Prior(_)) {
            let found = format!("sigma_a of `{}` has a prior", output.name);
            return Some((found, "give sigma_a as a number, or use method = \"exact\""));
        }
    }
    None
}

/// Number of coefficients, and whether the exact T-step is open to them.
fn coefficients(spec: &SurrogateSpec, names: &Names) -> (usize, bool) {
    let inputs = names.inputs();
    if let Some(score) = spec.components() {
        return coefficients(&score, names);
    }
    match &spec.kind {
        SurrogateKind::Pce { degree, coefficients, .. } => {
            (n_terms(inputs.len(), *degree) as usize, coefficients.is_normal().is_some())
        }
        SurrogateKind::Formula { formula, parameters } => {
            let normal = parameters.iter().all(|(_, prior)| prior.is_normal().is_some());
            let linear = Formula::new(formula, &inputs, parameters.clone())
                .is_ok_and(|formula| formula.linear(&Matrix::zeros(1, inputs.len())).is_some());
            (parameters.len(), normal && linear)
        }
        SurrogateKind::VaryingError { of, degree, .. } => {
            let inner = SurrogateSpec { kind: (**of).clone(), ..spec.clone() };
            (coefficients(&inner, names).0 + n_terms(inputs.len(), *degree) as usize - 1, false)
        }
        SurrogateKind::Gp { .. }
        | SurrogateKind::SparsePce { .. }
        | SurrogateKind::Auto(_)
        | SurrogateKind::Function(_)
        | SurrogateKind::Components(_) => (0, false),
    }
}

/// Names of the experiments, where there are several.
pub(super) fn experiments(root: &Section<'_>, unknowns: &[Unknown], outputs: Option<&[Output]>) -> Vec<String> {
    let section = root.get("measurements").and_then(|field| field.open_section());
    let field = section.as_ref().and_then(|section| section.get("experiments"));
    let own = |unknown: &&Unknown| unknown.per_experiment;
    let mut names: Vec<String> = Vec::new();
    if let Some(field) = &field {
        for entry in field.list("names of experiments").unwrap_or_default() {
            let Some(name) = entry.text() else { continue };
            if name.trim().is_empty() || name.contains(['[', ']', ',', '"']) || name.contains(char::is_control) {
                entry.refuse(
                    format!("`{name}` is no name of an experiment"),
                    "expected letters, digits, spaces, - and _",
                    None,
                );
            } else if names.iter().any(|other| other == name) {
                entry.refuse(format!("`{name}` comes twice"), "expected each once", None);
            }
            names.push(name.to_owned());
        }
        if names.is_empty() {
            field.refuse("there is no experiment", "expected names of experiments", None);
        }
    }
    match (unknowns.iter().find(own), &field) {
        (Some(unknown), None) => {
            let help =
                "write experiments = [\"first\", \"second\"] in [measurements], and a column `experiment` in its file";
            let per = root.get("unknowns").and_then(|field| field.open_section());
            let per = per.and_then(|section| section.get(&unknown.name)?.open_section()?.get("per"));
            let message = "the study names no experiments".to_owned();
            root.problems.error(per.map(|per| per.node.span.clone()), message, "needs experiments", help.to_owned());
        }
        (None, Some(field)) if !names.is_empty() => {
            let help = "write per = \"experiment\" for the unknowns that differ between experiments".to_owned();
            field.warn("all unknowns are the same in every experiment", "changes nothing", help);
        }
        _ => {}
    }
    let varies = |output: &&Output| matches!(output.surrogate.kind, SurrogateKind::VaryingError { .. });
    let is_moved = |output: &Output| output.offset.is_some() || unknowns.iter().any(|unknown| unknown.per_experiment);
    if let Some(output) = outputs.unwrap_or_default().iter().filter(varies).find(|output| is_moved(output)) {
        let found = format!("the error of `{}` varies with the inputs, beside experiments or an offset", output.name);
        root.refuse(found, "not together", "remove sigma_a_degree".to_owned());
    }
    names
}

pub(super) fn measurements(
    root: &Section<'_>,
    folder: &Path,
    names: &Names,
    unknowns: &[Unknown],
    experiments: &[String],
    conditions: &[Condition],
    outputs: Option<&[Output]>,
) -> MeasurementSource {
    let keys = ["file", "noise", "synthetic", "experiments", "offset"];
    let Some(section) = root.get("measurements").and_then(|field| field.section(&keys)) else {
        return MeasurementSource::None;
    };
    match (section.get("file"), section.get("synthetic")) {
        (Some(_), Some(field)) => {
            let help = "keep file for real measurements or [measurements.synthetic] for made-up ones";
            let span = Some(field.key_span.clone());
            root.problems.error(
                span,
                "measurements come from a file and from a truth".to_owned(),
                "keep one",
                help.to_owned(),
            );
            MeasurementSource::None
        }
        (Some(field), None) => field.text().map_or(MeasurementSource::None, |file| {
            let path = folder.join(file);
            if !path.is_file() {
                let help =
                    "create it, or leave `file` out until there are measurements: the study can be trained before";
                field.refuse(format!("there is no file {}", path.display()), "expected a CSV file", help.to_owned());
            }
            MeasurementSource::File(path)
        }),
        (None, Some(field)) => {
            synthetic(&field, names, unknowns, experiments, conditions, outputs).unwrap_or(MeasurementSource::None)
        }
        (None, None) => MeasurementSource::None,
    }
}

fn synthetic(
    field: &Field<'_>,
    names: &Names,
    unknowns: &[Unknown],
    experiments: &[String],
    conditions: &[Condition],
    outputs: Option<&[Output]>,
) -> Option<MeasurementSource> {
    let section = field.section(&["truth", "at", "replicates", "noise"])?;
    let replicates = section.read("replicates", 1, Field::count);
    let truth = section
        .require("truth", "write truth = { NAME = value } with a value for every unknown")
        .and_then(|field| truth(&field, names, unknowns, experiments));
    let at = match section.get("at") {
        Some(field) => at(&field, names, conditions),
        None if names.conditions.is_empty() => Some(Vec::new()),
        None => {
            let points = names.conditions.iter().map(|name| format!("{name} = \"linspace(1, 14, 50)\""));
            let help = format!("write at = {{ {} }}, or lists of values", points.collect::<Vec<_>>().join(", "));
            section.refuse(format!("{}.at is missing", field.path), "needed here", help);
            None
        }
    };
    let noise_field = section.get("noise");
    let noise = outputs.and_then(|outputs| {
        let generator = |output: &Output| {
            if output.noise.scale.is_column() {
                let help = "give a number or a prior instead: synthetic measurements have no columns";
                let what = if output.covariance.is_some() { "covariance" } else { "column" };
                section.refuse(
                    format!("the noise of `{}` has a {what}", output.name),
                    "beside synthetic measurements",
                    help.to_owned(),
                );
                return None;
            }
            match &noise_field {
                Some(field) => generator(field, &output.noise),
                None => default_generator(&output.noise).or_else(|| {
                    let help = "write noise = { family = \"normal\", sd = 0.1 } in it";
                    let message = format!("{}.noise is missing, and that of `{}` is unknown", field.path, output.name);
                    section.refuse(message, "needs noise", help.to_owned());
                    None
                }),
            }
            .map(|generator| (output.name.clone(), generator))
        };
        outputs.iter().map(generator).collect::<Option<Vec<_>>>()
    });
    Some(MeasurementSource::Synthetic { truth: truth?, at: at?, replicates, noise: noise? })
}

/// Value of each unknown of the I-step but the offsets.
fn truth(field: &Field<'_>, names: &Names, unknowns: &[Unknown], experiments: &[String]) -> Option<Vec<(String, f64)>> {
    let section = field.section(&names.unknowns)?;
    let mut truth = Vec::new();
    for name in &names.unknowns {
        let field = section.require(name, "give a value for every unknown")?;
        let unknown = unknowns.iter().find(|unknown| unknown.name == *name);
        let values = match unknown {
            Some(unknown) if unknown.per_experiment => {
                let values: Vec<f64> =
                    field.list("a value for each experiment")?.iter().map(Field::number).collect::<Option<_>>()?;
                if values.len() != experiments.len() {
                    let found = format!(
                        "{} of {name}, and {}",
                        counted(values.len(), "value"),
                        counted(experiments.len(), "experiment")
                    );
                    field.refuse(found, "expected a value for each experiment", None);
                    return None;
                }
                experiments.iter().zip(values).map(|(e, value)| (format!("{name}[{e}]"), value)).collect()
            }
            _ => vec![(name.clone(), field.number()?)],
        };
        for (_, value) in &values {
            if let Some((lower, upper)) = unknown.map(|unknown| unknown.range)
                && !(lower..=upper).contains(value)
            {
                let help = "move the truth or widen the range: the surrogate is not trained there".to_owned();
                field.warn(format!("{value} lies outside the range [{lower}, {upper}]"), "outside the range", help);
            }
        }
        truth.extend(values);
    }
    Some(truth)
}

fn at(field: &Field<'_>, names: &Names, conditions: &[Condition]) -> Option<Vec<(String, Vec<f64>)>> {
    if names.conditions.is_empty()
        && let Some(first) = field.open_section()?.fields().next()
    {
        let help = format!("add [conditions.{}] with range = [lower, upper], or remove `at`", first.key);
        let message = format!("{}: the study has no conditions", field.path);
        field.problems.error(Some(first.key_span.clone()), message, "no condition", help);
        return None;
    }
    let section = field.section(&names.conditions)?;
    let mut columns: Vec<(String, Vec<f64>)> = Vec::new();
    for name in &names.conditions {
        let help = "write a list of values or \"linspace(first, last, number)\"";
        let field = section.require(name, help)?;
        let values = points(&field)?;
        if let Some((lower, upper)) = conditions.iter().find(|condition| condition.name == *name).map(|c| c.range)
            && let Some(value) = values.iter().find(|value| !(lower..=upper).contains(*value))
        {
            let help = "stay where the surrogate is trained, or widen the condition's range".to_owned();
            field.refuse(format!("{value} lies outside the range [{lower}, {upper}]"), "outside the range", help);
            return None;
        }
        if let Some((other, first)) = columns.first().filter(|(_, first)| first.len() != values.len()) {
            let found = format!("{} values beside {} of `{other}`", values.len(), first.len());
            field.refuse(found, "expected as many values for every condition", None);
            return None;
        }
        columns.push((name.clone(), values));
    }
    Some(columns)
}

/// The error of a series is shared by its values, and `infer.error = "independent"` averages it away.
pub(super) fn warn_of_independence(root: &Section<'_>, outputs: &[Output], infer: &InferSpec) {
    let is_series = outputs.iter().any(|output| output.over.is_some() && !output.surrogate.has_components());
    let field = root.get("infer").and_then(|field| field.open_section()).and_then(|section| section.get("error"));
    if let Some(field) = field.filter(|_| is_series && infer.sigma_a && infer.error == ErrorSharing::Independent) {
        let help = "check with `twostep calibrate`, or write error = \"shared\"";
        field.warn(
            "the surrogate's error is taken as independent between the values of a series, which share it",
            "posteriors may be too narrow",
            help.to_owned(),
        );
    }
}

/// An approximation error that depends on the inputs is seen in the answer only where it is carried.
pub(super) fn warn_of_error_left_out(root: &Section<'_>, outputs: &[Output], infer: &InferSpec) {
    let varies = outputs.iter().any(|output| matches!(output.surrogate.kind, SurrogateKind::VaryingError { .. }));
    let section = root.get("surrogate").and_then(|field| field.open_section());
    let field = section.and_then(|section| section.get("sigma_a_degree"));
    if let Some(field) = field.filter(|_| varies && !infer.sigma_a) {
        let help = "write propagate = [\"coefficients\", \"sigma-a\"] in [infer]";
        field.warn("sigma_a is learned, and not carried into the answer", "not carried", help.to_owned());
    }
}

/// A list of numbers, or `linspace(first, last, number)`.
pub(super) fn points(field: &Field<'_>) -> Option<Vec<f64>> {
    if !field.is_text() {
        let values: Vec<f64> = field.list("numbers")?.iter().map(Field::number).collect::<Option<_>>()?;
        if values.is_empty() {
            field.refuse("the list is empty", "expected at least one number", None);
            return None;
        }
        return Some(values);
    }
    let text = field.text()?;
    let values = linspace(text);
    if values.is_none() {
        let label = "expected \"linspace(first, last, number)\"";
        field.refuse(format!("`{text}` is no row of points"), label, "for example \"linspace(1, 14, 50)\"".to_owned());
    }
    values
}

fn linspace(text: &str) -> Option<Vec<f64>> {
    let arguments = text.trim().strip_prefix("linspace")?.trim().strip_prefix('(')?.strip_suffix(')')?;
    let arguments: Vec<&str> = arguments.split(',').map(str::trim).collect();
    let &[first, last, number] = arguments.as_slice() else {
        return None;
    };
    let (first, last, number): (f64, f64, usize) = (first.parse().ok()?, last.parse().ok()?, number.parse().ok()?);
    if !(first.is_finite() && last.is_finite() && (1..=1_000_000).contains(&number)) || (number == 1 && first != last) {
        return None;
    }
    let point = |i: usize| {
        // The last one exactly: rounding must not move it out of the range.
        if i + 1 == number { last } else { first + (last - first) * i as f64 / (number - 1) as f64 }
    };
    Some((0..number).map(point).collect())
}

/// Noise like the inferring one, where its sd is a number.
fn default_generator(noise: &NoiseSpec) -> Option<Generator> {
    match noise.scale {
        Scale::Fixed(sd) => Some(noise.family.generator(sd)),
        Scale::Prior(_) | Scale::Column | Scale::Multiple(_) => None,
    }
}

fn generator(field: &Field<'_>, noise: &NoiseSpec) -> Option<Generator> {
    let section = field.section(&["family", "sd", "df", "phi", "trials", "relative"])?;
    let default = match noise.family {
        Family::Normal => "normal",
        Family::LogNormal { .. } => "log-normal",
        Family::StudentT { .. } => "student-t",
        Family::Relative { .. } | Family::UnknownRelative { .. } => "normal",
        Family::Poisson => "poisson",
        Family::NegativeBinomial { .. } => "negative-binomial",
        Family::Binomial => "binomial",
    };
    let families = ["normal", "log-normal", "student-t", "negative-binomial", "poisson", "binomial", "none"];
    let family = section.read("family", default, |field| field.choice(&families.map(|name| (name, name))));
    only_with(&section, "df", family, "student-t");
    only_with(&section, "phi", family, "negative-binomial");
    only_with(&section, "trials", family, "binomial");
    only_with(&section, "relative", family, "normal");
    if matches!(family, "negative-binomial" | "poisson" | "binomial" | "none")
        && let Some(field) = section.get("sd")
    {
        field.refuse(format!("{family} noise has no sd"), "not here", "remove it".to_owned());
    }
    let sd = || match (section.get("sd"), &noise.scale) {
        (None, Scale::Fixed(sd)) if noise.family.generator(*sd).sd().is_some() => Some(*sd),
        _ => section.require("sd", "write sd = 0.1, the standard deviation to generate with")?.positive(),
    };
    Some(match family {
        "normal" => match section.get("relative") {
            Some(relative) => {
                Generator::Relative { sd: section.read("sd", 0.0, Field::not_negative), relative: relative.positive()? }
            }
            None => Generator::Normal { sd: sd()? },
        },
        "log-normal" => Generator::LogNormal { sd: sd()? },
        "student-t" => Generator::StudentT { sd: sd()?, df: degrees_of_freedom(&section)? },
        "negative-binomial" => {
            let own = match (&noise.family, &noise.scale) {
                (Family::NegativeBinomial { inverse: true }, Scale::Fixed(scale)) => Some(scale.recip()),
                (Family::NegativeBinomial { inverse: false }, Scale::Fixed(scale)) => Some(*scale),
                _ => None,
            };
            let phi = match (section.get("phi"), own) {
                (None, Some(own)) => own,
                _ => section.require("phi", "write phi = 9.6: the variance is m + m^2 / phi")?.positive()?,
            };
            Generator::NegativeBinomial { phi }
        }
        "binomial" => {
            let trials = match (section.get("trials"), &noise.scale) {
                (None, Scale::Fixed(trials)) if noise.family == Family::Binomial => *trials,
                _ => section.require("trials", "write trials = 100, of how many a count is")?.count()? as f64,
            };
            Generator::Binomial { trials }
        }
        "poisson" => Generator::Poisson,
        _ => Generator::None,
    })
}

pub(super) fn derived(root: &Section<'_>, names: &Names, outputs: Option<&[Output]>) -> Vec<(String, String)> {
    let section = root.get("derived").and_then(|field| field.open_section());
    // With several outputs there are several sigma_i, none of them called just that.
    let sigma = match outputs {
        Some([output]) => output.noise.scale_name(),
        Some(_) => None,
        None => Some("sigma_i"),
    };
    let variables: Vec<&str> = names.unknowns.iter().map(String::as_str).chain(sigma).collect();
    let taken =
        |name: &str| Some(name) == sigma || name == "sigma_i" || names.inputs().iter().any(|input| input == name);
    let quantity = |field: Field<'_>| {
        if taken(field.key) {
            let message = format!("`{}` is an input already", field.key);
            root.problems.error(Some(field.key_span.clone()), message, "used twice", "rename it".to_owned());
        }
        let formula = field.text()?;
        if let Err(error) = Expression::parse(formula, &variables) {
            let (found, repair) = found_and_repair(error);
            field.refuse(found, "expected a formula of the unknowns", repair);
        }
        Some((field.key.to_owned(), formula.to_owned()))
    };
    section.iter().flat_map(Section::fields).filter_map(quantity).collect()
}

pub(super) fn infer(
    root: &Section<'_>,
    names: &Names,
    outputs: Option<&[Output]>,
    train: &TrainSpec,
    measurements: &MeasurementSource,
) -> InferSpec {
    let mut spec = InferSpec::default();
    let keys = [
        "methods",
        "answer",
        "propagate",
        "error",
        "engine",
        "clusters",
        "cluster_by",
        "point",
        "draws",
        "nuts",
        "smc",
        "grid",
    ];
    let Some(section) = root.get("infer").and_then(|field| field.section(&keys)) else {
        return spec;
    };
    let all: Vec<(&str, Method)> = Method::known().into_iter().map(|method| (method.name(), method)).collect();
    spec.methods = section.read("methods", spec.methods, |field| distinct(field, "methods", &all));
    let preferred = if spec.methods.contains(&Method::ELik) { Method::ELik } else { spec.methods[0] };
    spec.answer = section.read("answer", preferred, |field| {
        let answer = field.choice(&all)?;
        if !spec.methods.contains(&answer) {
            let names: Vec<&str> = spec.methods.iter().map(|method| method.name()).collect();
            let help = format!("add it there, or choose among {}", names.join(", "));
            field.refuse(format!("`{}` is not among infer.methods", answer.name()), "not computed", help);
        }
        Some(answer)
    });
    spec.series_errors = section.get("propagate").is_none();
    spec.sigma_a = section.read("propagate", false, |field| {
        let parts = distinct(field, "\"coefficients\" and \"sigma-a\"", &[("coefficients", false), ("sigma-a", true)])?;
        if !parts.contains(&false) {
            let help = "write [\"coefficients\"] or [\"coefficients\", \"sigma-a\"]";
            field.refuse("sigma_a cannot go without the coefficients", "expected \"coefficients\"", help.to_owned());
        }
        Some(parts.contains(&true))
    });
    spec.series_errors |= spec.sigma_a;
    let sharing = [("shared", ErrorSharing::Shared), ("independent", ErrorSharing::Independent)];
    spec.error = section.read("error", spec.error, |field| field.choice(&sharing));
    let engines = Engine::ALL.map(|engine| (engine.name(), engine));
    spec.engine = section.read("engine", spec.engine, |field| field.choice(&engines));
    let has_function = outputs.unwrap_or_default().iter().any(|output| output.surrogate.function().is_some());
    spec.clusters = section.read("clusters", spec.clusters, |field| clusters(field, train, has_function));
    if has_function {
        // The mean of parameters of which nothing is known need not be a plausible surrogate; a draw is one.
        spec.representative = Representative::Draw;
    }
    let stand_ins = [("centroid", Representative::Centroid), ("draw", Representative::Draw)];
    spec.representative = section.read("cluster_by", spec.representative, |field| field.choice(&stand_ins));
    let estimates = [("mean", PointEstimate::Mean), ("median", PointEstimate::Median), ("mode", PointEstimate::Mode)];
    spec.point = section.read("point", spec.point, |field| field.choice(&estimates));
    spec.draws = section.read("draws", spec.draws, Field::count);
    spec.nuts = section.read("nuts", spec.nuts, |field| {
        let section = field.section(&["chains", "warmup", "draws", "fits"])?;
        Some(NutsSpec {
            chains: section.read("chains", spec.nuts.chains, Field::count),
            warmup: section.read("warmup", spec.nuts.warmup, Field::count),
            draws: section.read("draws", spec.nuts.draws, Field::count),
            fits: section.read("fits", spec.nuts.fits, |field| field.choice(&Fits::NAMED)),
        })
    });
    spec.smc = section.read("smc", spec.smc, |field| {
        let section = field.section(&["runs", "particles"])?;
        Some(SmcSpec {
            runs: section.read("runs", spec.smc.runs, Field::count),
            particles: section.read("particles", spec.smc.particles, |field| field.count().map(Some)),
        })
    });
    spec.grid = section.read("grid", spec.grid, |field| {
        let section = field.section(&["accuracy"])?;
        let [least, most] = GridSpec::ACCURACIES;
        Some(GridSpec { accuracy: section.read("accuracy", spec.grid.accuracy, |field| field.within(least, most)) })
    });
    if let Some(outputs) = outputs {
        check_against_outputs(&section, &spec, names, outputs, measurements);
    }
    spec
}

pub(super) fn calibrate(root: &Section<'_>, outputs: Option<&[Output]>) -> CalibrateSpec {
    let mut spec = CalibrateSpec::default();
    let keys = ["t_trials", "i_trials", "truth", "noise"];
    let Some(section) = root.get("calibrate").and_then(|field| field.section(&keys)) else {
        return spec;
    };
    spec.t_trials = section.read("t_trials", spec.t_trials, Field::count);
    spec.i_trials = section.read("i_trials", spec.i_trials, Field::count);
    let truths = Truth::ALL.map(|truth| (truth.name(), truth));
    spec.truth = section.read("truth", spec.truth, |field| {
        let truth = field.choice(&truths)?;
        let without = outputs.unwrap_or_default().iter().find(|output| output.has_no_prior());
        if let (Truth::SurrogatePrior, Some(output)) = (truth, without) {
            let (found, repair) = output.no_prior();
            field.refuse(found, "no prior to draw a truth from", repair.to_owned());
        }
        Some(truth)
    });
    spec.noise = section.read("noise", spec.noise, |field| {
        let generators = outputs.unwrap_or_default().iter().map(|output| {
            let generator = generator(field, &output.noise)?;
            Some((output.name.clone(), generator))
        });
        generators.collect()
    });
    spec
}

/// A list of distinct choices, at least one.
fn distinct<T: Clone + PartialEq>(field: &Field<'_>, of: &str, choices: &[(&str, T)]) -> Option<Vec<T>> {
    let items = field.list(of)?;
    if items.is_empty() {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        field.refuse("the list is empty", "expected at least one", format!("choose among {}", names.join(", ")));
        return None;
    }
    let mut chosen: Vec<T> = Vec::new();
    for item in items {
        let choice = item.choice(choices)?;
        if chosen.contains(&choice) {
            item.refuse("it is listed twice", "expected each once", "remove one".to_owned());
            return None;
        }
        chosen.push(choice);
    }
    Some(chosen)
}

fn clusters(field: &Field<'_>, train: &TrainSpec, has_function: bool) -> Option<Clusters> {
    if field.is_text() {
        return match field.text() {
            Some("none") => Some(Clusters::None),
            Some("auto") => Some(Clusters::Auto),
            other => {
                let found = format!("`{}` is not known", other.unwrap_or_default());
                field.refuse(
                    found,
                    "expected \"none\", \"auto\" or a whole number",
                    spelling_repair(other.unwrap_or_default(), &["none", "auto"]),
                );
                None
            }
        };
    }
    let count = field.count()?;
    if count > train.draws && train.import.is_none() && !has_function {
        let help = "ask for fewer clusters, or raise train.draws".to_owned();
        field.refuse(format!("{count} clusters of {} T-draws", train.draws), "more clusters than draws", help);
    }
    Some(Clusters::Count(count))
}

/// Refuses an exact I-step where the study has none.
pub(super) fn check_engine(root: &Section<'_>, study: &Study) {
    let field = || root.get("infer")?.open_section()?.get("engine");
    if let (Engine::Exact, Err(why), Some(field)) = (study.infer.engine, study.linear_gaussian(), field()) {
        field.refuse(why, "no exact I-step", "use \"auto\", which takes what fits".to_owned());
    }
}

/// What only the outputs' scales and noise can tell.
fn check_against_outputs(
    section: &Section<'_>,
    spec: &InferSpec,
    names: &Names,
    outputs: &[Output],
    measurements: &MeasurementSource,
) {
    let n_unknowns = names.unknowns.len();
    if let (Some(field), Engine::Grid, true) = (section.get("engine"), spec.engine, n_unknowns > MAX_AXES) {
        let found = format!("{n_unknowns} unknowns are too many for a grid");
        let label = format!("at most {MAX_AXES}");
        field.refuse(found, &label, "use \"smc\", or \"auto\" to let it choose".to_owned());
    }
    if let (Some(field), Engine::Nuts) = (section.get("engine"), spec.engine) {
        for method in &spec.methods {
            let help = "use \"auto\", \"grid\" or \"smc\"".to_owned();
            if method.is_weighted() && *method != Method::EPost {
                let found = format!("{} needs the evidence of every T-draw, which NUTS does not know", method.name());
                field.refuse(found, "not by NUTS", help);
            } else if !method.propagation(spec.point).has_gradient() {
                field.refuse(format!("{} has no pool_gradient, which NUTS needs", method.name()), "not by NUTS", help);
            }
        }
    }
    let Some(field) = section.get("propagate").filter(|_| spec.sigma_a) else {
        return;
    };
    for output in outputs {
        let family = output.noise.family;
        let replicated = matches!(measurements, MeasurementSource::Synthetic { replicates: 2.., .. });
        if replicated && spec.error == ErrorSharing::Shared && matches!(family, Family::StudentT { .. }) {
            let found =
                format!("student-t noise cannot carry a sigma_a that the replicates of `{}` share", output.name);
            field.refuse(found, "not with student-t", "set error = \"independent\", or use normal noise".to_owned());
        }
    }
}
