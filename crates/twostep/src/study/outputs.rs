//! Sections about outputs: their surrogates and the noise of their measurements.

use super::document::{Field, Section};
use super::inputs::{Names, RELATIVE};
use super::problem::found_and_repair;
use super::steps::points;
use super::{Host, Output};
use crate::error::Error;
use crate::likelihood::{Family, NoiseSpec, Scale};
use crate::prior::Marginal;
use crate::simulate::{DesignSpec, Over, Simulator, spelling_repair};
use crate::surrogate::{Choice, Formula, GpSpec, Kernel, Normalisation, SigmaA, SurrogateKind, SurrogateSpec, n_terms};
use crate::table::counted;
use std::path::{Path, PathBuf};

/// More terms than this are a slip of the pen: the matrix of the exact T-step would not fit into memory.
const MAX_TERMS: f64 = 10_000.0;

/// With more terms per run than this, the runs say nothing in nine of ten directions of the coefficients.
const MAX_TERMS_PER_RUN: f64 = 10.0;

/// Highest degree of the polynomial that log sigma_A may be in the inputs.
const MAX_ERROR_DEGREE: usize = 3;

/// All outputs, or `None` if one of them has a problem.
pub(super) fn outputs(
    root: &Section<'_>,
    folder: &Path,
    model: Option<&dyn Simulator>,
    names: &Names,
    design: &DesignSpec,
    host: &Host,
) -> Option<Vec<Output>> {
    let known = model.map(|model| model.outputs());
    let measurements = root.get("measurements").and_then(|field| field.open_section());
    let section = root.get("outputs").and_then(|field| field.open_section());
    let fields: Vec<Field<'_>> = section.iter().flat_map(Section::fields).collect();
    if fields.is_empty() {
        let name = known.and_then(|outputs| outputs.first()).unwrap_or(&"y");
        let parts = Parts { own: None, root, measurements, folder, names, design, host, needs_at: false };
        return Some(vec![parts.output(name)?]);
    }
    let general = [("surrogate", root.get("surrogate")), ("noise", measurements.as_ref().and_then(|m| m.get("noise")))];
    for (key, general) in general {
        let has_own = |field: &Field<'_>| field.open_section().is_some_and(|section| section.get(key).is_some());
        if let Some(general) = general.filter(|_| fields.iter().all(has_own)) {
            general.warn("every output has its own", "used by no output", "remove it".to_owned());
        }
    }
    let mut outputs = Vec::new();
    for field in &fields {
        let refuse = |message: String, label: &str, help: String| {
            root.problems.error(Some(field.key_span.clone()), message, label, help);
        };
        let name = field.key;
        if let Some(known) = known.filter(|known| !known.contains(&name)) {
            refuse(format!("the simulator has no output `{name}`"), "unknown output", spelling_repair(name, known));
        } else if names.inputs().iter().any(|input| input == name) {
            refuse(format!("`{name}` is an input and an output"), "used twice", "rename one of them".to_owned());
        }
        let own = field.section(&["scale", "unit", "results", "over", "at", "series", "surrogate", "noise", "offset"]);
        // A built-in simulator has a value at any coordinate.
        let needs_at = model.is_some();
        let parts = Parts { own, root, measurements: measurements.clone(), folder, names, design, host, needs_at };
        outputs.push(parts.output(name));
    }
    outputs.into_iter().collect()
}

/// Where the settings of one output stand: in its own section, else in those for all.
struct Parts<'s, 'd> {
    own: Option<Section<'d>>,
    root: &'s Section<'d>,
    measurements: Option<Section<'d>>,
    folder: &'s Path,
    names: &'s Names,
    design: &'s DesignSpec,
    host: &'s Host,
    /// Whether a series has no coordinates of its own.
    needs_at: bool,
}

impl<'d> Parts<'_, 'd> {
    /// Names of the surrogate's inputs: all, but the coordinate, which is the last condition, for an output that is no series or has
    /// `components`.
    fn inputs(&self, components: bool) -> Vec<String> {
        let mut inputs = self.names.inputs();
        if self.own("over").is_none() || components {
            inputs.truncate(inputs.len() - usize::from(self.names.has_coordinate));
        }
        inputs
    }

    /// Whether a polynomial models the scores of a series' principal components, instead of its values.
    fn has_components(&self) -> bool {
        let asked = self.own("series");
        self.own("over").is_some() && asked.is_none_or(|field| field.is_text() && field.text() == Some("pca"))
    }

    fn own(&self, key: &str) -> Option<Field<'d>> {
        self.own.as_ref().and_then(|section| section.get(key))
    }

    fn output(&self, name: &str) -> Option<Output> {
        let scale = |field: Field<'_>| field.choice(&[("linear", false), ("log", true)]);
        let log = self.own("scale").and_then(scale).unwrap_or(false);
        let unit = self.own("unit").and_then(|field| field.text().map(str::to_owned));
        let surrogate = self
            .own("surrogate")
            .or_else(|| self.root.require("surrogate", "add [surrogate] with kind = \"pce\" and degree = 3"))
            .and_then(|field| self.surrogate(&field, name));
        let help = "add [measurements] with noise = { sd = 0.1 }, a number in the output's unit or a prior";
        let noise_field = self.own("noise").or_else(|| match &self.measurements {
            Some(section) => section.require("noise", help),
            None => self.root.require("measurements", help),
        });
        let noise = noise_field.as_ref().and_then(|field| noise(field, log));
        let covariance = noise_field.as_ref().and_then(|field| self.covariance(field));
        let offset = self.own("offset").or_else(|| self.measurements.as_ref()?.get("offset"));
        let offset = match offset {
            Some(field) => Some(field.prior()?),
            None => None,
        };
        let over = self.over(name);
        if let (Some(field), Some(spec)) = (self.own("over"), &surrogate) {
            let help = "check with `twostep calibrate`".to_owned();
            if !spec.has_components() && self.own("series").is_none() {
                field.warn(
                    "the values of one run share its error, which is taken as independent from value to value",
                    "posteriors may be too narrow",
                    format!("{help}; series = \"coordinate\" says that you know"),
                );
            }
            let reduces = noise.as_ref().is_none_or(|noise| noise.family.reduces(log));
            if spec.has_components() && !reduces {
                field.warn(
                    "with noise of this kind the surrogate's errors are taken as independent from one coordinate to the next",
                    "posteriors may be too narrow",
                    help,
                );
            }
        }
        Some(Output {
            name: name.to_owned(),
            log,
            unit,
            over,
            surrogate: surrogate?,
            noise: noise?,
            covariance,
            offset,
        })
    }

    /// The file with the covariance of the noise.
    fn covariance(&self, noise: &Field<'d>) -> Option<PathBuf> {
        let field = noise.open_section()?.get("covariance")?;
        let path = self.folder.join(field.text()?);
        if !path.is_file() {
            let label = "expected a CSV file with a row and a column for each measurement";
            field.refuse(format!("there is no file {}", path.display()), label, RELATIVE.to_owned());
        }
        Some(path)
    }

    /// The coordinate of a series, whose name and range were checked with the inputs.
    fn over(&self, name: &str) -> Option<Over> {
        let Some(field) = self.own("over") else {
            for key in ["at", "series"] {
                if let Some(field) = self.own(key) {
                    let help = "add over = { NAME = [lower, upper] }, the coordinate of the series, or remove it";
                    field.refuse(format!("`{name}` is no series"), "only with over", help.to_owned());
                }
            }
            return None;
        };
        let section = field.open_section()?;
        let Some(coordinate) = section.fields().next() else {
            let help = "write over = { t = [1, 14] }: the coordinate's name and range";
            field.refuse("no coordinate is named", "expected one name", help.to_owned());
            return None;
        };
        let at = self.own("at").and_then(|field| {
            let values = points(&field)?;
            let range: Vec<f64> = coordinate.list("two numbers")?.iter().filter_map(Field::number).collect();
            // What is no range was refused with the inputs.
            if let [lower, upper] = range[..]
                && let Some(value) = values.iter().find(|value| !(lower..=upper).contains(*value))
            {
                field.refuse(format!("{value} lies outside the range of {}", coordinate.key), "outside", None);
            }
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
                field.refuse("a coordinate comes twice", "expected each once", None);
            }
            Some(values)
        });
        if self.needs_at && self.own("at").is_none() {
            let help = format!("write at = \"linspace(1, 14, 14)\", or a list of values of {}", coordinate.key);
            field.refuse("this simulator must be told the coordinates", "needs `at` beside it", help);
        }
        if let Some(field) = self.own("series") {
            field.choice(&[("pca", ()), ("coordinate", ())]);
        }
        Some(Over { name: coordinate.key.to_owned(), at })
    }

    fn surrogate(&self, field: &Field<'_>, output: &str) -> Option<SurrogateSpec> {
        const COMMON: [&str; 3] = ["kind", "sigma_a", "standardise"];
        const PCE: [&str; 4] = ["degree", "normalisation", "coefficients", "q_norm"];
        const RESIDUAL: [&str; 2] = ["residual", "gp"];
        const VARYING: [&str; 2] = ["sigma_a_degree", "sigma_a_coefficients"];
        const GP: [&str; 3] = ["trend", "coefficients", "gp"];
        const FORMULA: [&str; 2] = ["formula", "parameters"];
        let Some(kind) = field.open_section()?.get("kind") else {
            let section = field.section(&[&COMMON[..], &PCE, &RESIDUAL, &VARYING, &GP, &FORMULA].concat())?;
            section.require(
                "kind",
                "write kind = \"pce\" for a polynomial, \"gp\" for a Gaussian process, \"formula\", or \"auto\" for what predicts \
                 left-out runs best",
            );
            return None;
        };
        let named = kind;
        let kind = named.choice(&[
            ("pce", "pce"),
            ("gp", "gp"),
            ("formula", "formula"),
            ("auto", "auto"),
            ("python", "python"),
        ])?;
        if kind == "python" {
            let section = field.section(&COMMON)?;
            let Some(function) = self.host.surrogate(output) else {
                let help =
                    "run the study from Python, as ts.Study(surrogate=ts.PythonSurrogate(...)), or use kind = \"pce\"";
                named.refuse("no Python function is there to be called", "only from Python", help.to_owned());
                return None;
            };
            let sigma_a = section.read("sigma_a", 0.0, Field::not_negative);
            let standardise = section.read("standardise", false, Field::flag);
            let kind = SurrogateKind::Function(function.clone());
            return Some(SurrogateSpec { kind, sigma_a: SigmaA::Fixed(sigma_a), standardise });
        }
        let own = match kind {
            "pce" => [&PCE[..], &RESIDUAL, &VARYING].concat(),
            "gp" => GP.to_vec(),
            "auto" => Vec::new(),
            _ => [&FORMULA[..], &VARYING].concat(),
        };
        let section = field.section(&[&COMMON, &own[..]].concat())?;
        let has_residual = section.read("residual", false, |field| field.choice(&[("none", false), ("gp", true)]));
        let is_process = kind == "gp" || has_residual;
        if let Some(field) = section.get("gp").filter(|_| !is_process) {
            field.warn(
                "the surrogate has no Gaussian process",
                "not used",
                "write residual = \"gp\", or remove it".to_owned(),
            );
        }
        // Simulators are nearly deterministic: what a process and its trend cannot explain is small beside the outputs' sd.
        let default = if is_process { "half-normal(0.1)" } else { "exponential(1)" };
        if let Some(field) = self.own("series").filter(|_| kind == "formula" && self.has_components()) {
            let help = "write series = \"coordinate\", or kind = \"pce\"".to_owned();
            field.refuse(
                "a formula gives values of the series, not scores of its components",
                "not with a formula",
                help,
            );
        }
        let sigma_a = section.read("sigma_a", parsed(default).map(SigmaA::Prior), |field| {
            Some(Some(if field.is_text() {
                SigmaA::Prior(field.scale_prior()?)
            } else {
                SigmaA::Fixed(field.positive()?)
            }))
        });
        // The parameters of a formula mean something in the output's own unit.
        let standardise = section.read("standardise", kind != "formula", Field::flag);
        let kind = match kind {
            "pce" if is_process => self.process(&section, self.pce(&section)),
            "pce" => self.pce(&section),
            "gp" => self.process(&section, trend(&section)),
            "auto" => {
                Some(SurrogateKind::Auto(Choice::Any { sigma_a: section.get("sigma_a").and_then(|_| sigma_a.clone()) }))
            }
            _ => self.formula(&section),
        };
        let varying = self.varying_error(&section, is_process);
        let kind = match (kind?, varying?) {
            (SurrogateKind::Auto(_), Some(_)) => {
                let help = "remove it, or name the degree".to_owned();
                section.get("sigma_a_degree")?.refuse("which polynomial it is, the runs decide", "not with auto", help);
                return None;
            }
            (SurrogateKind::SparsePce { .. }, Some(_)) => {
                let help = "remove it, or give the coefficients a normal prior".to_owned();
                let found = "with a horseshoe prior sigma_A is the same everywhere";
                section.get("sigma_a_degree")?.refuse(found, "not with a horseshoe prior", help);
                return None;
            }
            (of, Some((degree, coefficients))) => {
                SurrogateKind::VaryingError { of: Box::new(of), degree, coefficients }
            }
            (kind @ SurrogateKind::Formula { .. }, None) => kind,
            (kind, None) if self.has_components() => SurrogateKind::Components(Box::new(kind)),
            (kind, None) => kind,
        };
        Some(SurrogateSpec { kind, sigma_a: sigma_a?, standardise })
    }

    /// Degree of the polynomial that log sigma_A is in the inputs, and the prior of its coefficients; an inner `None` where sigma_A is the
    /// same everywhere.
    fn varying_error(&self, section: &Section<'_>, is_process: bool) -> Option<Option<(usize, Marginal)>> {
        let most = "sigma_A is learned from deviations of the runs, which show no finer structure".to_owned();
        let degree = section.read("sigma_a_degree", 0, |field| field.whole(0, MAX_ERROR_DEGREE, Some(most)));
        // The ends of an input's range differ by a factor of e^1.7 at one sd.
        let default = parsed("normal(0, 0.5)");
        let coefficients = section.read("sigma_a_coefficients", default, |field| field.prior().map(Some));
        if degree == 0 {
            if let Some(field) = section.get("sigma_a_coefficients") {
                let help = "write sigma_a_degree = 1, or remove it".to_owned();
                field.warn("sigma_a does not depend on the inputs", "not used", help);
            }
            return Some(None);
        }
        let field = section.get("sigma_a_degree")?;
        if is_process {
            let help = "remove it, or write residual = \"none\" with kind = \"pce\"".to_owned();
            field.refuse("a Gaussian process knows itself where it is uncertain", "not with a Gaussian process", help);
            return None;
        }
        // Components are the default of polynomials.
        if self.has_components() && section.get("formula").is_none() {
            let help = "write series = \"coordinate\" beside `over`, or remove it".to_owned();
            field.refuse(
                "scores of principal components have the same error everywhere",
                "not with series = \"pca\"",
                help,
            );
            return None;
        }
        Some(Some((degree, coefficients?)))
    }

    /// A Gaussian process on a polynomial.
    fn process(&self, section: &Section<'_>, trend: Option<SurrogateKind>) -> Option<SurrogateKind> {
        let inputs = self.inputs(self.has_components());
        let section_of_gp = section.get("gp").and_then(|field| field.section(&["kernel", "length", "sd", "carrier"]));
        let default = GpSpec::default();
        let gp = section_of_gp.map_or(Some(default.clone()), |section| {
            let kernels = [Kernel::Matern52, Kernel::SquaredExponential].map(|kernel| (kernel.name(), kernel));
            let kernel = section.read("kernel", default.kernel, |field| field.choice(&kernels));
            let (mut length, mut length_of) = (None, Vec::new());
            match section.get("length") {
                Some(field) if field.is_text() => length = Some(field.scale_prior()?),
                Some(field) => {
                    let known: Vec<&str> = inputs.iter().map(String::as_str).collect();
                    for field in field.section(&known)?.fields() {
                        length_of.push((field.key.to_owned(), field.scale_prior()?));
                    }
                }
                None => {}
            }
            let sd = section.read("sd", Some(default.sd), |field| field.scale_prior().map(Some));
            let most = highest_degree(inputs.len(), MAX_TERMS);
            let help = format!("in {} a higher degree has more than {MAX_TERMS} terms", counted(inputs.len(), "input"));
            let carrier = section.read("carrier", None, |field| field.whole(1, most, Some(help.clone())).map(Some));
            Some(GpSpec { kernel, length, length_of, sd: sd?, carrier })
        });
        let trend = trend?;
        if matches!(trend, SurrogateKind::Auto(_)) {
            let help = "write degree = 2, or kind = \"auto\", which compares polynomials with Gaussian processes too"
                .to_owned();
            section.get("degree")?.refuse("a trend has a degree of its own", "expected a whole number", help);
            return None;
        }
        if matches!(trend, SurrogateKind::SparsePce { .. }) {
            let help = "write a normal prior: a Gaussian process integrates over its trend".to_owned();
            section.get("coefficients")?.refuse("a trend has no horseshoe prior", "expected normal(mean, sd)", help);
            return None;
        }
        if let SurrogateKind::Pce { q_norm, .. } = trend
            && q_norm != 1.0
        {
            let help = "remove it: a trend needs few terms".to_owned();
            section.get("q_norm")?.refuse("a trend has all terms of its degree", "not with a Gaussian process", help);
            return None;
        }
        let SurrogateKind::Pce { degree, normalisation, coefficients, .. } = trend else { return None };
        let Some(coefficients) = coefficients.is_normal() else {
            let field = section.get("coefficients")?;
            let help = "write a normal prior: a Gaussian process integrates over its trend".to_owned();
            field.refuse(format!("{coefficients} is not normal"), "expected normal(mean, sd)", help);
            return None;
        };
        Some(SurrogateKind::Gp { degree, normalisation, coefficients, gp: gp? })
    }

    fn pce(&self, section: &Section<'_>) -> Option<SurrogateKind> {
        let normalisations = [
            ("orthonormal", Normalisation::Orthonormal),
            ("none", Normalisation::None),
            ("lebesgue", Normalisation::Lebesgue),
        ];
        let normalisation =
            section.read("normalisation", Normalisation::Orthonormal, |field| field.choice(&normalisations));
        // A prior has parameters in parentheses, a prior of all coefficients together has none.
        let named = section.get("coefficients").filter(|field| field.text().is_some_and(|text| !text.contains('(')));
        let is_sparse = named.is_some();
        let coefficients = match named {
            Some(field) => {
                field.choice(&[("horseshoe", ())])?;
                None
            }
            None => section.read("coefficients", parsed("normal(0, 5)"), |field| field.prior().map(Some)),
        };
        let q_norm = section.read("q_norm", 1.0, |field| {
            let q = field.positive()?;
            if q > 1.0 {
                let help = "write q_norm = 0.75 for fewer terms of many inputs, or leave it out for all of the degree";
                field.refuse(format!("{q} is above 1"), "expected 0 < q_norm <= 1", help.to_owned());
                return None;
            }
            Some(q)
        });
        if let Some(field) =
            section.get("normalisation").filter(|_| is_sparse && normalisation != Normalisation::Orthonormal)
        {
            let help = "remove it: shrunk coefficients are compared with each other".to_owned();
            field.refuse("a horseshoe prior is for orthonormal terms", "only \"orthonormal\"", help);
        }
        let field = section.require("degree", "write degree = 3, the total degree of the polynomial, or \"auto\"")?;
        if field.is_text() {
            let choice = match is_sparse {
                true => Choice::SparseDegree { q_norm },
                false => Choice::Degree { normalisation, coefficients: coefficients?, q_norm },
            };
            return field.choice(&[("auto", choice)]).map(SurrogateKind::Auto);
        }
        let has_components = self.has_components();
        let dim = self.inputs(has_components).len();
        let kind = |degree: usize| match is_sparse {
            true => Some(SurrogateKind::SparsePce { degree, q_norm }),
            false => Some(SurrogateKind::Pce { degree, normalisation, coefficients: coefficients.clone()?, q_norm }),
        };
        let inputs = counted(dim, "input");
        let most = format!("in {inputs} a higher degree has more than {MAX_TERMS} terms");
        let degree = field.whole(0, highest_degree(dim, MAX_TERMS), Some(most))?;
        // Every value of a series is a training row, but a run has one score.
        let has_rows = self.own("over").is_some() && !has_components;
        let per_run = self.own("at").filter(|_| has_rows).and_then(|at| points(&at)).map_or(1, |at| at.len());
        let (terms, runs) = (n_terms(dim, degree), self.design.runs.saturating_mul(per_run));
        let rows = if per_run == 1 { "runs" } else { "values of all runs" };
        let found = format!("degree {degree} in {inputs} has {terms} terms, for {runs} {rows}");
        let fitting = highest_degree(dim, runs as f64);
        // How many runs a table has is known only once the outputs are, and how many values a series has only once it is run.
        if self.design.runs == 0 || (has_rows && self.own("at").is_none()) {
            return kind(degree);
        }
        // Of terms that are shrunk there may be more, and of those of the degree a quasi-norm leaves fewer.
        if is_sparse || q_norm != 1.0 {
            return kind(degree);
        }
        if terms > MAX_TERMS_PER_RUN * runs as f64 {
            let help = format!(
                "lower the degree, to {fitting} for no more terms than runs, or write coefficients = \"horseshoe\", by which the few of \
                 many terms that matter are found"
            );
            field.refuse(found, "more than ten terms for each run", help);
            return None;
        }
        if terms > runs as f64 {
            let help = format!(
                "lower the degree to {fitting}, or raise design.runs; what the runs leave open, the prior decides"
            );
            field.warn(found, "more terms than runs", help);
        }
        kind(degree)
    }

    fn formula(&self, section: &Section<'_>) -> Option<SurrogateKind> {
        let help = "add [surrogate.parameters] with a prior for each parameter of the formula";
        let parameters = section.require("parameters", help).and_then(|field| {
            let section = field.open_section()?;
            if section.keys().is_empty() {
                section.refuse("the formula has no parameters to train".to_owned(), "empty", help.to_owned());
            }
            let parameter = |field: Field<'_>| Some((field.key.to_owned(), field.prior()?));
            section.fields().map(parameter).collect::<Vec<_>>().into_iter().collect::<Option<Vec<_>>>()
        });
        let field =
            section.require("formula", "write formula = \"a + b * omega\", in the inputs' and parameters' names")?;
        let formula = field.text()?.to_owned();
        let parameters = parameters?;
        match Formula::new(&formula, &self.inputs(false), parameters.clone()) {
            Ok(_) => Some(SurrogateKind::Formula { formula, parameters }),
            Err(error) => {
                let of_parameter =
                    matches!(&error, Error::Invalid { place, .. } if place.starts_with("surrogate parameter"));
                let place = if let (true, Error::Invalid { place, .. }) = (of_parameter, &error) {
                    format!("{place}: ")
                } else {
                    String::new()
                };
                let (found, repair) = found_and_repair(error);
                field.refuse(format!("{place}{found}"), "expected a formula of inputs and parameters", repair);
                None
            }
        }
    }
}

/// The trend of a Gaussian process that is no residual.
fn trend(section: &Section<'_>) -> Option<SurrogateKind> {
    let degree = section.read("trend", 0, |field| field.choice(&[("constant", 0), ("linear", 1)]));
    let coefficients = section.read("coefficients", parsed("normal(0, 5)"), |field| field.prior().map(Some));
    let normalisation = Normalisation::Orthonormal;
    Some(SurrogateKind::Pce { degree, normalisation, coefficients: coefficients?, q_norm: 1.0 })
}

/// A prior of ours, which always reads.
fn parsed(text: &str) -> Option<Marginal> {
    text.parse().ok()
}

/// The highest degree of a polynomial with at most so many terms.
fn highest_degree(dim: usize, most_terms: f64) -> usize {
    // A polynomial without inputs has one term at any degree; as if it had one input, the search ends.
    let fits = |degree: &usize| n_terms(dim.max(1), *degree) <= most_terms.min(MAX_TERMS);
    (1..).take_while(fits).last().unwrap_or(0)
}

/// The inferring noise; without a family, log-normal where the surrogate models the logarithm, else normal.
fn noise(field: &Field<'_>, log: bool) -> Option<NoiseSpec> {
    const KEYS: [&str; 10] =
        ["family", "sd", "covariance", "df", "zeros", "multiplier", "relative", "inverse_phi", "phi", "trials"];
    const FAMILIES: [&str; 6] = ["normal", "log-normal", "student-t", "negative-binomial", "poisson", "binomial"];
    let section = field.section(&KEYS)?;
    let default = if log { "log-normal" } else { "normal" };
    let family = section.read("family", default, |field| field.choice(&FAMILIES.map(|name| (name, name))));
    only_with(&section, "df", family, "student-t");
    only_with(&section, "zeros", family, "log-normal");
    only_with(&section, "relative", family, "normal");
    only_with(&section, "inverse_phi", family, "negative-binomial");
    only_with(&section, "phi", family, "negative-binomial");
    only_with(&section, "trials", family, "binomial");
    if let Some(field) = section.get("sd").filter(|_| ["negative-binomial", "poisson", "binomial"].contains(&family)) {
        let help = "remove it: the variance of a count follows from its mean".to_owned();
        field.refuse(format!("{family} noise has no sd"), "not here", help);
        return None;
    }
    let covariance = section.get("covariance");
    if let Some(field) = section.get("multiplier") {
        let is_column = section.get("sd").is_some_and(|sd| sd.is_text() && sd.text() == Some("column"));
        if !is_column && covariance.is_none() {
            let help = "write sd = \"column\", or give sd itself a prior".to_owned();
            field.refuse("a multiplier multiplies known sds", "only with sd = \"column\" or a covariance", help);
            return None;
        }
    }
    if let Some(field) = covariance {
        if let Some(other) = ["sd", "relative"].into_iter().find_map(|key| section.get(key)) {
            let help = "remove it: the sds are the roots of the covariance's diagonal".to_owned();
            other.refuse("the covariance says the sds already", "not beside covariance", help);
            return None;
        }
        let on_scale = if log { "log-normal" } else { "normal" };
        if family != on_scale {
            let help = format!("write family = \"{on_scale}\", that of the surrogate's scale");
            field.refuse(
                format!("{family} noise has no covariance on the scale of the surrogate"),
                "not with it",
                help,
            );
            return None;
        }
        let scale = match section.get("multiplier") {
            Some(multiplier) => Scale::Multiple(multiplier.scale_prior()?),
            None => Scale::Column,
        };
        let family = if log { Family::LogNormal { refuse_zeros: true } } else { Family::Normal };
        return Some(NoiseSpec { family, scale });
    }
    match family {
        "poisson" => return Some(NoiseSpec { family: Family::Poisson, scale: Scale::Fixed(0.0) }),
        "negative-binomial" => return dispersion(&section),
        "binomial" => {
            let help = "write trials = 100, of how many each value is a count, or \"column\"";
            let field = section.require("trials", help)?;
            let scale = match field.is_text() {
                true => field.choice(&[("column", Scale::Column)])?,
                false => Scale::Fixed(field.count()? as f64),
            };
            return Some(NoiseSpec { family: Family::Binomial, scale });
        }
        _ => {}
    }
    let relative = section.get("relative");
    if let Some(field) = relative.as_ref().filter(|field| field.is_text()) {
        let prior = field.scale_prior()?;
        let sd = match section.get("sd") {
            Some(sd) if sd.is_text() => {
                let help = "write one of them as a number: with the other it makes the sd".to_owned();
                sd.refuse("both parts of the sd are unknown, or a column", "expected a number", help);
                return None;
            }
            Some(sd) => sd.not_negative()?,
            None => 0.0,
        };
        return Some(NoiseSpec { family: Family::UnknownRelative { sd }, scale: Scale::Prior(prior) });
    }
    let help = "write sd = a number, a prior such as \"half-normal(0.5)\" if it is unknown, or \"column\", or covariance = \"FILE\"";
    let sd = match section.get("sd") {
        // A relative error is enough by itself.
        None if relative.is_some() => Some(Scale::Fixed(0.0)),
        _ => section.require("sd", help).and_then(|field| match field.is_text() {
            true if field.text() == Some("column") => Some(match section.get("multiplier") {
                Some(multiplier) => Scale::Multiple(multiplier.scale_prior()?),
                None => Scale::Column,
            }),
            true => field.scale_prior().map(Scale::Prior),
            false => field.positive().map(Scale::Fixed),
        }),
    };
    let family = match family {
        "log-normal" => Family::LogNormal {
            refuse_zeros: section.read("zeros", false, |field| field.choice(&[("censor", false), ("error", true)])),
        },
        "student-t" => Family::StudentT { df: degrees_of_freedom(&section)? },
        _ => match relative {
            Some(field) => Family::Relative { relative: field.positive()? },
            None => Family::Normal,
        },
    };
    Some(NoiseSpec { family, scale: sd? })
}

/// Negative-binomial noise by its phi, or the inverse of that.
fn dispersion(section: &Section<'_>) -> Option<NoiseSpec> {
    let (field, inverse) = match (section.get("inverse_phi"), section.get("phi")) {
        (Some(_), Some(phi)) => {
            phi.refuse("phi and inverse_phi say the same", "one too many", "remove one of them".to_owned());
            return None;
        }
        (None, Some(phi)) => (phi, false),
        _ => {
            let help = "write inverse_phi = \"exponential(5)\", or a number: the variance is m + inverse_phi m^2";
            (section.require("inverse_phi", help)?, true)
        }
    };
    let scale = match field.is_text() {
        true => Scale::Prior(field.scale_prior()?),
        false => Scale::Fixed(field.positive()?),
    };
    Some(NoiseSpec { family: Family::NegativeBinomial { inverse }, scale })
}

/// A problem if a key stands beside a family that has no use for it.
pub(super) fn only_with(section: &Section<'_>, key: &str, family: &str, owner: &str) {
    if let Some(field) = section.get(key).filter(|_| family != owner) {
        let help = format!("remove it, or write family = \"{owner}\"");
        field.refuse(format!("{family} noise has no {key}"), &format!("only with {owner}"), help);
    }
}

/// Degrees of freedom of Student-t noise.
pub(super) fn degrees_of_freedom(section: &Section<'_>) -> Option<f64> {
    section.require("df", "write df = 4, the degrees of freedom of student-t noise")?.positive()
}
