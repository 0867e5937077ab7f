//! The study file: TOML text to a checked [`Study`], one for each setting of its sweep, or to all its problems at once.

mod document;
mod fingerprint;
mod inputs;
mod measurements;
mod outputs;
mod problem;
mod shipped;
mod simulator;
mod steps;
mod sweep;

pub use fingerprint::Stage;
pub(crate) use fingerprint::{LEDGER_PART, digest};
pub(crate) use measurements::experiments;
pub use measurements::{read_measurements, unused_columns};
pub use problem::{Problem, Problems, Severity};
pub use shipped::{Shipped, shipped};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::calibrate::CalibrateSpec;
use crate::error::Result;
use crate::expression::Expression;
use crate::infer::{Derived, Engine, InferSpec, Unknowns, choose_engine, linear_gaussian, prefers_exact, sigma_names};
use crate::likelihood::{Generator, NoiseSpec};
use crate::prior::{Marginal, Prior};
use crate::simulate::{DesignSpec, Over, SharedFunction, SimulatorSpec, Wanted};
use crate::surrogate::{InputScale, SharedSurrogate, SurrogateSpec};
use crate::train::TrainSpec;
use document::{Node, Section};
use problem::Collector;

/// Everything a study file says, checked, with defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    /// Its name: the file's unless given.
    pub name: String,
    /// Root of all random streams.
    pub seed: u64,
    /// What is run.
    pub simulator: SimulatorSpec,
    /// Inputs to infer, at least one.
    pub unknowns: Vec<Unknown>,
    /// Inputs that are known at each measurement: those that the design varies, then the coordinate of series.
    pub conditions: Vec<Condition>,
    /// Inputs that never vary.
    pub constants: Vec<(String, f64)>,
    /// What is measured, at least one.
    pub outputs: Vec<Output>,
    /// Where the simulator runs.
    pub design: DesignSpec,
    /// The T-step.
    pub train: TrainSpec,
    /// Where measurements come from.
    pub measurements: MeasurementSource,
    /// Names of the experiments, where there are several.
    pub experiments: Vec<String>,
    /// Names and formulas of derived quantities.
    pub derived: Vec<(String, String)>,
    /// The I-step.
    pub infer: InferSpec,
    /// Its calibration.
    pub calibrate: CalibrateSpec,
    /// What the author may want to think about again; all of severity [`Severity::Warning`].
    pub notes: Vec<Problem>,
    file: String,
    source: Arc<str>,
}

/// An input to infer.
#[derive(Clone, Debug, PartialEq)]
pub struct Unknown {
    /// Name of the simulator's input.
    pub name: String,
    /// Where it is simulated.
    pub range: (f64, f64),
    /// Whether it is scaled by its logarithm.
    pub log: bool,
    /// For tables and axes.
    pub unit: Option<String>,
    /// The prior of the I-step, truncated to the range unless told otherwise.
    pub prior: Marginal,
    /// Probability of the untruncated prior outside the range.
    pub mass_outside: f64,
    /// Whether the prior was truncated to the range.
    pub truncate: bool,
    /// Whether it has a value of its own in each experiment.
    pub per_experiment: bool,
}

/// An input that is known at each measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// Name of the simulator's input.
    pub name: String,
    /// Where it is simulated.
    pub range: (f64, f64),
    /// Whether it is scaled by its logarithm.
    pub log: bool,
    /// For tables and axes.
    pub unit: Option<String>,
    /// Whether it is the coordinate of series, which one run has all values of.
    pub coordinate: bool,
}

/// Something the simulator returns and measurements are of.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Name of the simulator's output.
    pub name: String,
    /// Whether the surrogate models its logarithm.
    pub log: bool,
    /// For tables and axes.
    pub unit: Option<String>,
    /// The coordinate, where one run returns a series.
    pub over: Option<Over>,
    /// Its surrogate.
    pub surrogate: SurrogateSpec,
    /// Noise of its measurements.
    pub noise: NoiseSpec,
    /// File with the covariance of its measurements' noise, where it has one.
    pub covariance: Option<PathBuf>,
    /// Prior of what is added to it in all measurements, on the surrogate's scale.
    pub offset: Option<Marginal>,
}

/// An unknown of the I-step.
#[derive(Clone, Debug, PartialEq)]
pub struct Inferred {
    /// `beta`, `beta[north]` or `offset`.
    pub name: String,
    /// Its prior.
    pub prior: Marginal,
    /// What it is.
    pub of: InferredOf,
}

/// What an unknown of the I-step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InferredOf {
    /// An input, by its place among the study's unknowns, in one experiment or in all.
    Input(usize, Option<usize>),
    /// The offset of an output.
    Offset(usize),
}

impl Output {
    /// Whether its surrogate has no prior that a truth could be drawn from.
    pub fn has_no_prior(&self) -> bool {
        self.surrogate.has_components() || self.surrogate.is_open() || self.surrogate.finds_parameters()
    }

    /// Why it has none, and what to do instead.
    pub(crate) fn no_prior(&self) -> (String, &'static str) {
        match self.surrogate.has_components() {
            true => (
                format!("the components of `{}` are found in its runs, and have no prior", self.name),
                "use \"simulator\" or \"held-out-runs\", or series = \"coordinate\"",
            ),
            false => {
                let why = match () {
                    () if self.surrogate.is_open() => "is chosen by its runs, and has",
                    () if self.surrogate.function().is_some() => "is a Python function, whose parameters have",
                    () => "is a sparse polynomial, whose coefficients have",
                };
                let found = format!("the surrogate of `{}` {why} no prior", self.name);
                (found, "use \"simulator\" or \"held-out-runs\"")
            }
        }
    }
}

/// Where measurements come from.
#[derive(Clone, Debug, PartialEq)]
pub enum MeasurementSource {
    /// A CSV file; see [`read_measurements`].
    File(PathBuf),
    /// The simulator itself at a known truth.
    Synthetic {
        /// Value of each unknown.
        truth: Vec<(String, f64)>,
        /// Values of each condition, all of equal length; empty where there are no conditions.
        at: Vec<(String, Vec<f64>)>,
        /// Measurements at each of those points.
        replicates: usize,
        /// Noise of each output.
        noise: Vec<(String, Generator)>,
    },
    /// None yet: the study can be simulated and trained.
    None,
}

/// One combination of a sweep's values.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Dotted key and value of everything that is swept; empty without a sweep.
    pub label: Vec<(String, String)>,
    /// The study with those values.
    pub study: Study,
}

impl Study {
    /// Names of the surrogate's inputs: unknowns, then conditions.
    pub fn input_names(&self) -> Vec<String> {
        let conditions = self.conditions.iter().map(|condition| condition.name.clone());
        self.unknowns.iter().map(|unknown| unknown.name.clone()).chain(conditions).collect()
    }

    /// Scales of the surrogate's inputs, in the order of [`Study::input_names`].
    pub fn input_scales(&self) -> Vec<InputScale> {
        let scale = |(lower, upper): (f64, f64), log: bool| InputScale { lower, upper, log };
        let conditions = self.conditions.iter().map(|condition| scale(condition.range, condition.log));
        self.unknowns.iter().map(|unknown| scale(unknown.range, unknown.log)).chain(conditions).collect()
    }

    /// Names of the outputs.
    pub fn output_names(&self) -> Vec<String> {
        self.outputs.iter().map(|output| output.name.clone()).collect()
    }

    /// Names of everything that a run is given: unknowns, conditions but for the coordinate of series, constants.
    pub fn run_input_names(&self) -> Vec<String> {
        let mut names = self.input_names();
        names.truncate(self.n_run_inputs());
        names.extend(self.constants.iter().map(|(name, _)| name.clone()));
        names
    }

    /// Whether outputs are series.
    pub fn has_coordinate(&self) -> bool {
        self.conditions.last().is_some_and(|condition| condition.coordinate)
    }

    /// Number of inputs of a run, which come first: all but the coordinate of series.
    pub fn n_run_inputs(&self) -> usize {
        self.unknowns.len() + self.conditions.len() - usize::from(self.has_coordinate())
    }

    /// Number of inputs of an output's surrogate, which come first: all, but for an output that is no series the coordinate.
    pub fn n_inputs(&self, output: &Output) -> usize {
        if output.over.is_some() { self.unknowns.len() + self.conditions.len() } else { self.n_run_inputs() }
    }

    /// The outputs as a run is asked for them.
    pub fn wanted(&self) -> Vec<Wanted> {
        self.outputs.iter().map(|output| Wanted { name: output.name.clone(), over: output.over.clone() }).collect()
    }

    /// The unknowns of the I-step: inputs in their order, those with a value in each experiment once for each, then offsets.
    pub fn inferred(&self) -> Vec<Inferred> {
        let mut all = Vec::new();
        for (d, unknown) in self.unknowns.iter().enumerate() {
            let experiments: Vec<Option<usize>> = match unknown.per_experiment {
                true => (0..self.experiments.len()).map(Some).collect(),
                false => vec![None],
            };
            all.extend(experiments.into_iter().map(|experiment| Inferred {
                name: experiment.map_or(unknown.name.clone(), |e| format!("{}[{}]", unknown.name, self.experiments[e])),
                prior: unknown.prior.clone(),
                of: InferredOf::Input(d, experiment),
            }));
        }
        for (o, output) in self.outputs.iter().enumerate() {
            let name = if self.outputs.len() > 1 { format!("offset[{}]", output.name) } else { "offset".to_owned() };
            all.extend(output.offset.clone().map(|prior| Inferred { name, prior, of: InferredOf::Offset(o) }));
        }
        all
    }

    /// Places of the inputs that are unknown, in an experiment, among the unknowns of the I-step.
    pub fn places(&self, experiment: usize) -> Vec<usize> {
        let is_own = |inferred: &Inferred| match inferred.of {
            InferredOf::Input(_, own) => own.is_none_or(|own| own == experiment),
            InferredOf::Offset(_) => false,
        };
        self.inferred().iter().enumerate().filter(|(_, inferred)| is_own(inferred)).map(|(place, _)| place).collect()
    }

    /// Place of an output's offset among the unknowns of the I-step.
    pub fn offset_place(&self, output: usize) -> Option<usize> {
        self.inferred().iter().position(|inferred| inferred.of == InferredOf::Offset(output))
    }

    /// Whether experiments differ in an unknown.
    pub fn has_experiments(&self) -> bool {
        self.unknowns.iter().any(|unknown| unknown.per_experiment)
    }

    /// The input that an unknown of the I-step is, by that one's name.
    pub fn unknown_named(&self, name: &str) -> Option<&Unknown> {
        let of = self.inferred().into_iter().find(|inferred| inferred.name == name)?.of;
        match of {
            InferredOf::Input(d, _) => self.unknowns.get(d),
            InferredOf::Offset(_) => None,
        }
    }

    /// The joint prior of the unknowns of the I-step.
    ///
    /// # Errors
    /// Two unknowns of the same name, which a loaded study never has.
    pub fn prior(&self) -> Result<Prior> {
        let (names, marginals) = self.inferred().into_iter().map(|inferred| (inferred.name, inferred.prior)).unzip();
        Prior::new(names, marginals)
    }

    /// The unknowns of the I-step as its likelihood takes them.
    ///
    /// # Errors
    /// As for [`Study::prior`].
    pub fn i_unknowns(&self) -> Result<Unknowns> {
        let n_experiments = if self.has_experiments() { self.experiments.len() } else { 0 };
        Ok(Unknowns {
            prior: self.prior()?,
            places: (0..n_experiments).map(|experiment| self.places(experiment)).collect(),
            offsets: (0..self.outputs.len()).map(|output| self.offset_place(output)).collect(),
        })
    }

    /// Whether its I-step carries errors of a surrogate: sigma_A, or those of series by principal components.
    pub fn carries_errors(&self) -> bool {
        let by_components = self.outputs.iter().any(|output| output.surrogate.has_components());
        self.infer.sigma_a || (self.infer.series_errors && by_components)
    }

    /// Whether its I-step is linear-Gaussian, if all outputs are measured.
    ///
    /// # Errors
    /// Why it is not.
    pub fn linear_gaussian(&self) -> std::result::Result<(), String> {
        let unknowns = self.i_unknowns().map_err(|error| error.to_string())?;
        let surrogates: Vec<_> = (self.outputs.iter())
            .map(|output| output.surrogate.build(&self.input_names(), &self.input_scales()))
            .collect::<Result<_>>()
            .map_err(|error| error.to_string())?;
        let outputs = self.outputs.iter().zip(surrogates).enumerate().map(|(o, (output, surrogate))| {
            let placed = unknowns.placed(o, 0, Arc::from(surrogate), vec![1.0]);
            (output.name.as_str(), placed, output.log, &output.noise)
        });
        linear_gaussian(&unknowns.prior, outputs, self.infer.sigma_a)
    }

    /// The engine of the I-step, as far as it can be known before the T-step.
    ///
    /// # Errors
    /// A formula that cannot be read, which a loaded study never has.
    pub fn engine(&self) -> Result<Engine> {
        let (derived, prior) = (self.derived_quantities()?, self.prior()?);
        let is_exact = || prefers_exact(&derived, prior.names()) && self.linear_gaussian().is_ok();
        Ok(choose_engine(self.infer.engine, prior.len(), is_exact))
    }

    /// Name of each output's unknown sd, where it has one.
    pub fn sigma_names(&self) -> Vec<Option<String>> {
        let outputs = self.output_names();
        let noise: Vec<NoiseSpec> = self.outputs.iter().map(|output| output.noise.clone()).collect();
        sigma_names(&outputs, &noise)
    }

    /// Name of the file it was read from, without its folder.
    pub fn file_name(&self) -> String {
        Path::new(&self.file).file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The text of the file, or of what it was parsed from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Derived quantities as formulas of the unknowns of the I-step, then of the unknown sds. Those of unknowns that have a value in each
    /// experiment have one, too.
    ///
    /// # Errors
    /// A formula that cannot be read, which a loaded study never has.
    pub fn derived_quantities(&self) -> Result<Vec<Derived>> {
        let (sigmas, inferred) = (self.sigma_names(), self.inferred());
        let mut all = Vec::new();
        for (name, formula) in &self.derived {
            for experiment in 0..self.experiments.len().max(1) {
                // In a formula the unknowns of this experiment have the names of the inputs; no formula can name the others.
                let variable = |inferred: &Inferred| match inferred.of {
                    InferredOf::Input(d, own) if own.is_none_or(|own| own == experiment) => {
                        self.unknowns[d].name.clone()
                    }
                    _ => inferred.name.clone(),
                };
                let variables: Vec<String> =
                    inferred.iter().map(variable).chain(sigmas.iter().flatten().cloned()).collect();
                let variables: Vec<&str> = variables.iter().map(String::as_str).collect();
                let expression = Expression::parse(formula, &variables)?;
                let has_own = |&place: &usize| {
                    inferred.get(place).is_some_and(|inferred| matches!(inferred.of, InferredOf::Input(_, Some(_))))
                };
                if !expression.variables_used().iter().any(has_own) {
                    all.push(Derived { name: name.clone(), expression });
                    break;
                }
                all.push(Derived { name: format!("{name}[{}]", self.experiments[experiment]), expression });
            }
        }
        Ok(all)
    }
}

/// What the calling program brings to a study besides its text.
#[derive(Clone, Default)]
pub struct Host {
    /// The simulator, in place of what `simulator.python` names.
    pub simulator: Option<SharedFunction>,
    /// The interpreter of functions of Python files, unless the study names one.
    pub interpreter: Option<PathBuf>,
    /// Surrogates with kind = "python": that of the output of a name, or of all that have none of their own.
    pub surrogates: Vec<(Option<String>, SharedSurrogate)>,
}

impl Host {
    fn surrogate(&self, output: &str) -> Option<&SharedSurrogate> {
        let of = |name: Option<&str>| self.surrogates.iter().find(|(own, _)| own.as_deref() == name);
        of(Some(output)).or_else(|| of(None)).map(|(_, surrogate)| surrogate)
    }
}

/// Reads and checks a study file: one setting for each combination of its sweep, in the order of the file.
///
/// Relative paths in the file are relative to its folder.
///
/// # Errors
/// All problems that could be found at once; see [`Problems`].
pub fn load(path: &Path) -> std::result::Result<Vec<Setting>, Problems> {
    let file = path.display().to_string();
    let unreadable = |message: String, help: &str| {
        let collector = Collector::default();
        collector.error(None, message, "", help.to_owned());
        Problems::new(&file, "", collector.into_problems())
    };
    let bytes = std::fs::read(path).map_err(|problem| {
        unreadable(format!("the study cannot be read: {problem}"), "check the path of the study file")
    })?;
    let text = String::from_utf8(bytes).map_err(|problem| {
        let line = problem.as_bytes()[..problem.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
        unreadable(format!("line {line} is not text in UTF-8"), "save the study in UTF-8")
    })?;
    parse(&text, &file, path.parent().unwrap_or(Path::new("")))
}

/// Reads and checks the text of a study file called `file` that lies in `folder`.
///
/// # Errors
/// As for [`load`].
pub fn parse(text: &str, file: &str, folder: &Path) -> std::result::Result<Vec<Setting>, Problems> {
    parse_with(text, file, folder, &Host::default())
}

/// As [`parse`], with what the calling program brings.
///
/// # Errors
/// As for [`load`].
pub fn parse_with(text: &str, file: &str, folder: &Path, host: &Host) -> std::result::Result<Vec<Setting>, Problems> {
    let source: Arc<str> = Arc::from(text);
    let collector = Collector::default();
    let combinations =
        Node::parse(text, &collector).map(|root| sweep::combinations(root, &collector)).unwrap_or_default();
    let mut problems = collector.into_problems();
    let mut settings = Vec::with_capacity(combinations.len());
    for combination in combinations {
        let (label, root) = combination.into_parts();
        let collector = Collector::default();
        let study = resolve(&root, file, &source, folder, host, &collector);
        let found = collector.into_problems();
        match study {
            Some(study) => settings.push(Setting { label, study: Study { notes: found, ..study } }),
            None => problems.extend(found),
        }
        // Hundreds of settings repeat the problems of the first ones.
        if problems.len() > 200 {
            break;
        }
    }
    if problems.is_empty() { Ok(settings) } else { Err(Problems::new(file, text, problems)) }
}

/// The warnings of all settings, each once, ready to be shown; `None` if there are none.
pub fn warnings(settings: &[Setting]) -> Option<Problems> {
    let notes: Vec<Problem> = settings.iter().flat_map(|setting| setting.study.notes.clone()).collect();
    let study = &settings.first()?.study;
    (!notes.is_empty()).then(|| Problems::new(&study.file, &study.source, notes))
}

/// One document without its sweep to a study; `None` once there is an error in `problems`.
fn resolve(
    document: &Node,
    file: &str,
    source: &Arc<str>,
    folder: &Path,
    host: &Host,
    problems: &Collector,
) -> Option<Study> {
    let root = Section::root(
        document,
        &[
            "name",
            "seed",
            "simulator",
            "unknowns",
            "conditions",
            "constants",
            "outputs",
            "design",
            "surrogate",
            "train",
            "measurements",
            "derived",
            "infer",
            "calibrate",
            "sweep",
        ],
        problems,
    );
    let stem = Path::new(file).file_stem().map_or("study".into(), |stem| stem.to_string_lossy());
    let name = root.read("name", stem.into_owned(), |field| {
        let name = field.text()?;
        // Results lie in a folder of that name.
        if name.trim().is_empty() || name.contains(['/', '\\']) || name.contains(char::is_control) {
            field.refuse(format!("`{name}` is no name for a study"), "expected letters, digits, spaces, - and _", None);
        }
        Some(name.to_owned())
    });
    let seed = root.read("seed", 1, document::Field::seed);
    let (mut simulator, model) = simulator::simulator(&root, folder, host);
    let respelled = inputs::respelled(&root, document, model.as_deref());
    let root = respelled.as_ref().map_or_else(|| root.clone(), |document| root.over(document));
    let names = inputs::names(&root, model.as_deref());
    let unknowns = inputs::unknowns(&root);
    let conditions: Vec<Condition> = inputs::conditions(&root).into_iter().chain(inputs::coordinate(&root)).collect();
    let constants = inputs::constants(&root);
    let design = inputs::design(&root, folder, &unknowns, &conditions, &names, simulator.table.is_some());
    let outputs = outputs::outputs(&root, folder, model.as_deref(), &names, &design, host);
    simulator::couple(&root, &mut simulator, &names, &unknowns, &conditions, &constants, outputs.as_deref());
    let train = steps::train(&root, folder, outputs.as_deref(), &names, &design);
    let experiments = steps::experiments(&root, &unknowns, outputs.as_deref());
    let measurements =
        steps::measurements(&root, folder, &names, &unknowns, &experiments, &conditions, outputs.as_deref());
    let derived = steps::derived(&root, &names, outputs.as_deref());
    let infer = steps::infer(&root, &names, outputs.as_deref(), &train, &measurements);
    if let Some(outputs) = &outputs {
        steps::warn_of_independence(&root, outputs, &infer);
        steps::warn_of_error_left_out(&root, outputs, &infer);
    }
    let calibrate = steps::calibrate(&root, outputs.as_deref());
    if problems.has_errors() {
        return None;
    }
    let outputs = outputs?;
    let file = file.to_owned();
    let source = source.clone();
    let notes = Vec::new();
    let study = Study {
        name,
        seed,
        simulator,
        unknowns,
        conditions,
        constants,
        outputs,
        design,
        train,
        measurements,
        experiments,
        derived,
        infer,
        calibrate,
        notes,
        file,
        source,
    };
    steps::check_engine(&root, &study);
    (!problems.has_errors()).then_some(study)
}

#[cfg(test)]
mod tests;
