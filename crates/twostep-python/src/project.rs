//! A study's stages and what they left, as Python calls and reads them.

use crate::arrays::object;
use crate::errors::{self, described, guarded, raise, raise_problems};
use crate::propagation::make_known;
use crate::pump::{Line, drive};
use crate::results::{Calibrations, Server, Setting, columns};
use crate::simulator::HostFunction;
use crate::surrogate::{PythonSurrogate, try_out};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use serde_json::to_value;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use twostep::Error;
use twostep::infer::propagation::Method;
use twostep::monitor::Monitor;
use twostep::report::{self, Format, Report};
use twostep::run::{self, Changed, Findings, Only, SettingResult, StudyPlan, TrialUnit};
use twostep::serve::listen;
use twostep::simulate::SharedFunction;
use twostep::store::{Journal, Made, Task};
use twostep::study::{
    self, Host, MeasurementSource, Problem, Severity, Stage, parse_with, read_measurements, unused_columns,
};
use twostep::surrogate::SharedSurrogate;
use twostep::table::write_atomically;

/// A study whose results lie in a folder.
#[pyclass(module = "twostep._twostep", frozen)]
pub(crate) struct Project {
    project: Arc<run::Project>,
    line: Arc<Line>,
}

/// The right to keep what workers make, until it is closed.
#[pyclass(module = "twostep._twostep", frozen)]
pub(crate) struct Collector {
    project: Arc<run::Project>,
    collector: Mutex<Option<run::Collector>>,
}

#[pymethods]
impl Collector {
    /// Keeps what a worker made: how many results were new, and how many known.
    fn keep(&self, py: Python<'_>, source: &str, made: &[u8]) -> PyResult<[usize; 2]> {
        guarded(py, || {
            let kept = py.detach(|| {
                let mut collector = self.collector.lock().unwrap_or_else(PoisonError::into_inner);
                match collector.as_mut() {
                    Some(collector) => collector.keep_lines(&self.project, source, made),
                    None => Err(Error::failed(source, "came after the end of the work", "report this as a bug")),
                }
            });
            kept.map_err(|error| raise(py, error))
        })
    }

    /// Gives the folder back.
    fn close(&self) {
        drop(self.collector.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// Label of a setting, stage, whether it is fresh, why not or when it was made.
type StageState = (Vec<(String, String)>, &'static str, bool, String);

/// The stage of a name.
fn stage(name: &str) -> Stage {
    Stage::ALL.into_iter().find(|stage| stage.name() == name).unwrap_or(Stage::Infer)
}

#[pymethods]
impl Project {
    /// `text` is a study file called `file` in the folder `base`; results lie in `folder`. `function` has the name and
    /// fingerprint of the Python function that stands for its simulator, `surrogates` those that are Python functions, by output or
    /// one for all, `methods` propagation methods that are.
    #[new]
    fn new(
        py: Python<'_>,
        text: &str,
        file: &str,
        base: PathBuf,
        folder: PathBuf,
        function: Option<(String, Vec<(String, String)>)>,
        surrogates: Vec<(Option<String>, Bound<'_, PyAny>)>,
        methods: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        guarded(py, || {
            let line = Arc::new(Line::default());
            let simulator =
                function.map(|(name, parts)| SharedFunction::new(HostFunction { name, parts, line: line.clone() }));
            // Functions of files run with the interpreter that has this package.
            let interpreter = py.import("sys")?.getattr("executable")?.extract::<Option<PathBuf>>()?;
            let interpreter = interpreter.filter(|path| !path.as_os_str().is_empty());
            let shared = |(output, caller): (Option<String>, Bound<'_, PyAny>)| {
                Ok((output, SharedSurrogate::new(PythonSurrogate::new(&caller, line.clone())?)))
            };
            let surrogates = surrogates.into_iter().map(shared).collect::<PyResult<_>>()?;
            for caller in &methods {
                make_known(py, caller, &line)?;
            }
            let host = Host { simulator, interpreter, surrogates };
            let mut settings =
                parse_with(text, file, &base, &host).map_err(|problems| raise_problems(py, &problems))?;
            for setting in &mut settings {
                // A file that cannot be read is refused by those who need it.
                let unused = unused_columns(&setting.study).unwrap_or_default().into_iter();
                setting.study.notes.extend(unused.map(|message| Problem {
                    severity: Severity::Warning,
                    message,
                    label: String::new(),
                    help: None,
                    span: None,
                }));
            }
            try_out(&settings[0].study, &line)?;
            Ok(Self { project: Arc::new(run::Project::new(settings, folder)), line })
        })
    }

    /// The study's warnings: severity, message, what is expected, help.
    fn warnings(&self) -> Vec<(&'static str, String, String, Option<String>)> {
        study::warnings(self.project.settings()).map_or(Vec::new(), |problems| described(&problems))
    }

    /// Values of what is swept in each setting.
    fn labels(&self) -> Vec<Vec<(String, String)>> {
        self.project.settings().iter().map(|setting| setting.label.clone()).collect()
    }

    /// The study's methods of propagation.
    fn methods(&self) -> Vec<&'static str> {
        self.project.settings()[0].study.infer.methods.iter().map(|method| method.name()).collect()
    }

    /// Names of everything that a run is given.
    fn run_inputs(&self) -> Vec<String> {
        self.project.settings()[0].study.run_input_names()
    }

    /// Where results lie.
    fn folder(&self) -> PathBuf {
        self.project.folder().to_path_buf()
    }

    /// Makes results that were brought to the folder those of this study.
    fn adopt(&self, py: Python<'_>) -> PyResult<()> {
        guarded(py, || self.project.adopt().map_err(|error| raise(py, error)))
    }

    /// Makes runs: `only` is "pending", "failed" or the number of a run; `changed` is "ask", "keep" or "rerun".
    fn make_runs(&self, py: Python<'_>, host: &Bound<'_, PyAny>, only: &str, changed: &str) -> PyResult<()> {
        let only = match only {
            "pending" => Only::Pending,
            "failed" => Only::Failed,
            number => Only::Run(number.parse().map_err(|_| errors::internal(py, "no number of a run"))?),
        };
        let changed = match changed {
            "keep" => Changed::Keep,
            "rerun" => Changed::Rerun,
            _ => Changed::Ask,
        };
        drive(py, host, &self.line, |monitor| {
            if self.project.settings()[0].study.simulator.is_external() {
                self.project.make_runs(&only, changed, monitor)?;
            }
            self.project.run(Stage::Simulate, monitor).map(drop)
        })
    }

    /// Does the stages up to that of a name; what came out, for each setting.
    fn run(&self, py: Python<'_>, host: &Bound<'_, PyAny>, until: &str) -> PyResult<Vec<Setting>> {
        let until = stage(until);
        let found = drive(py, host, &self.line, |monitor| {
            if until == Stage::Infer {
                // A file that cannot be read is refused before the simulator has run for hours.
                for setting in self.project.settings() {
                    if let MeasurementSource::File(_) | MeasurementSource::None = setting.study.measurements {
                        read_measurements(&setting.study)?;
                    }
                }
            }
            let results = self.project.run(until, monitor)?;
            let findings =
                |(index, result): (usize, SettingResult)| Ok((self.project.findings(index)?, result.warnings));
            results.into_iter().enumerate().map(findings).collect::<twostep::Result<Vec<_>>>()
        })?;
        let setting = |(index, (findings, warnings)): (usize, (Findings, Vec<String>))| {
            let (project, line) = (self.project.clone(), self.line.clone());
            Setting { project, line, index, findings, warnings, budgets: OnceLock::new() }
        };
        Ok(found.into_iter().enumerate().map(setting).collect())
    }

    /// Every run of every setting.
    fn runs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(py, || {
            let runs = py.detach(|| self.project.runs()).map_err(|error| raise(py, error))?;
            let entries = runs.into_iter().map(|run| {
                let dict = PyDict::new(py);
                dict.set_item("run", run.id)?;
                dict.set_item("state", run.state)?;
                dict.set_item("source", run.source)?;
                dict.set_item("inputs", run.inputs)?;
                let outputs: Vec<_> = run.outputs.into_iter().map(|(name, r)| (name, r.at, r.values)).collect();
                dict.set_item("outputs", outputs)?;
                dict.set_item("seconds", run.seconds)?;
                dict.set_item("attempts", run.attempts)?;
                dict.set_item("reason", run.reason)?;
                dict.set_item("is_current", run.is_current)?;
                Ok(dict)
            });
            PyList::new(py, entries.collect::<PyResult<Vec<_>>>()?)
        })
    }

    /// Freshness of every stage of every setting: label, stage, whether it is fresh, why not or when it was made.
    fn status(&self, py: Python<'_>) -> PyResult<Vec<StageState>> {
        guarded(py, || {
            let status = py.detach(|| self.project.status()).map_err(|error| raise(py, error))?;
            Ok(status.into_iter().map(|s| (s.label, s.stage.name(), s.fresh, s.reason)).collect())
        })
    }

    /// Inputs of the runs that are still to be made, with empty columns for the outputs, and how many failed besides.
    fn pending_runs<'py>(&self, py: Python<'py>, with_failed: bool) -> PyResult<(Bound<'py, PyDict>, usize)> {
        guarded(py, || {
            let pending = py.detach(|| self.project.pending_runs(with_failed)).map_err(|error| raise(py, error))?;
            Ok((columns(py, &pending.0)?, pending.1))
        })
    }

    /// Brings in runs of a table: numbers of new and known ones, of those to be made and failed; warnings.
    fn import_runs(&self, py: Python<'_>, file: PathBuf) -> PyResult<([usize; 4], Vec<String>)> {
        guarded(py, || {
            let imported = py.detach(|| self.project.import_runs(0, &file)).map_err(|error| raise(py, error))?;
            Ok(([imported.new, imported.known, imported.pending, imported.failed], imported.warnings))
        })
    }

    /// What each setting would do, as `twostep check --json` has it, with warnings about its measurements.
    fn check<'py>(&self, py: Python<'py>) -> PyResult<Vec<(Bound<'py, PyAny>, Vec<String>)>> {
        guarded(py, || {
            let plans =
                py.detach(|| self.project.settings().iter().map(StudyPlan::new).collect::<twostep::Result<Vec<_>>>());
            let plans = plans.map_err(|error| raise(py, error))?;
            plans.into_iter().map(|plan| Ok((object(py, &plan.json())?, plan.warnings))).collect()
        })
    }

    /// What the calibration of every setting takes, as `twostep calibrate --dry-run --json` has it.
    fn calibration_plan<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Vec<[usize; 2]>)> {
        guarded(py, || {
            let plans = py.detach(|| self.project.calibration_plan()).map_err(|error| raise(py, error))?;
            let json = object(py, &run::calibration_plan_json(&self.project, &plans))?;
            Ok((json, plans.iter().map(|plan| [plan.missing_runs, plan.kept]).collect()))
        })
    }

    /// Does the trials that are missing.
    fn calibrate(&self, py: Python<'_>, host: &Bound<'_, PyAny>) -> PyResult<Calibrations> {
        let calibrations = drive(py, host, &self.line, |monitor| self.project.calibrate(monitor))?;
        Ok(Calibrations { project: self.project.clone(), calibrations })
    }

    /// Makes the runs of the study itself, where its trials need them.
    fn prepare_trials(&self, py: Python<'_>, host: &Bound<'_, PyAny>) -> PyResult<()> {
        drive(py, host, &self.line, |monitor| self.project.prepare_trials(monitor))
    }

    /// Setting and number of every T-trial that lacks some outcome.
    fn missing_trials(&self, py: Python<'_>) -> PyResult<Vec<(usize, usize)>> {
        guarded(py, || {
            let units = py.detach(|| self.project.missing_trials()).map_err(|error| raise(py, error))?;
            Ok(units.into_iter().map(|unit| (unit.setting, unit.t_trial)).collect())
        })
    }

    /// Number of every run that the study asks for and that has no outcome, or that failed.
    fn runs_to_make(&self, py: Python<'_>, failed: bool) -> PyResult<Vec<usize>> {
        guarded(py, || {
            let units = py.detach(|| self.project.units(Task::Simulate, failed)).map_err(|error| raise(py, error))?;
            Ok(units.to_do.into_iter().map(|(run, _)| run).collect())
        })
    }

    /// Does T-trials, and returns what came of them for a collector elsewhere.
    fn try_units<'py>(
        &self,
        py: Python<'py>,
        host: &Bound<'py, PyAny>,
        units: Vec<(usize, usize)>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let units: Vec<TrialUnit> =
            units.into_iter().map(|(setting, t_trial)| TrialUnit { setting, t_trial }).collect();
        let made = drive(py, host, &self.line, |monitor| self.project.try_units(&units, monitor))?;
        Ok(PyBytes::new(py, &Journal::<Made>::bytes(&made)))
    }

    /// Makes runs by their numbers, and returns them for a collector elsewhere.
    fn make_units<'py>(
        &self,
        py: Python<'py>,
        host: &Bound<'py, PyAny>,
        runs: Vec<usize>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let made = drive(py, host, &self.line, |monitor| self.project.make_units(&runs, monitor))?;
        Ok(PyBytes::new(py, &Journal::<Made>::bytes(&made)))
    }

    /// Writes what workers elsewhere need of the results into another folder.
    fn copy_for_workers(&self, py: Python<'_>, to: PathBuf) -> PyResult<()> {
        guarded(py, || py.detach(|| self.project.copy_for_workers(&to)).map_err(|error| raise(py, error)))
    }

    /// Takes the folder, to keep what workers make.
    fn collector(&self, py: Python<'_>) -> PyResult<Collector> {
        let collector = guarded(py, || py.detach(|| self.project.collector()).map_err(|error| raise(py, error)))?;
        Ok(Collector { project: self.project.clone(), collector: Mutex::new(Some(collector)) })
    }

    /// Whether the runs of each setting were enough, as `enough.json` has it.
    fn enough<'py>(
        &self,
        py: Python<'py>,
        host: &Bound<'py, PyAny>,
        share: Option<f64>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let share = share.unwrap_or(twostep::calibrate::enough::THRESHOLD);
        let results = drive(py, host, &self.line, |monitor| self.project.enough(share, monitor))?;
        results.iter().map(|result| object(py, &to_value(&result.enough).unwrap_or_default())).collect()
    }

    /// Inputs of runs to verify the answer of a setting with.
    fn verification_runs<'py>(&self, py: Python<'py>, index: usize, runs: usize) -> PyResult<Bound<'py, PyDict>> {
        guarded(py, || {
            let table = py.detach(|| self.project.verification_runs(index, runs)).map_err(|error| raise(py, error))?;
            columns(py, &table)
        })
    }

    /// Runs the simulator where the answer lies, or takes the runs of a table, as `verify.json` has it.
    fn verify<'py>(
        &self,
        py: Python<'py>,
        host: &Bound<'py, PyAny>,
        index: usize,
        runs: usize,
        results: Option<PathBuf>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let work = |monitor: &dyn Monitor| self.project.verify(index, runs, results.as_deref(), monitor);
        let verification = drive(py, host, &self.line, work)?;
        object(py, &to_value(&verification).unwrap_or_default())
    }

    /// Makes the report: anew, or where it does not show the results as they are. Its place.
    fn report(&self, py: Python<'_>, host: &Bound<'_, PyAny>, anew: bool) -> PyResult<PathBuf> {
        drive(py, host, &self.line, |monitor| match anew {
            true => Report::new(&self.project, monitor)?.write(),
            false => report::keep(&self.project, monitor),
        })
    }

    /// Writes figures, `width` millimetres wide, with their data; where they are, or the names of all where `folder` is none.
    fn figures(
        &self,
        py: Python<'_>,
        host: &Bound<'_, PyAny>,
        folder: Option<PathBuf>,
        only: Option<Vec<String>>,
        width: f64,
        formats: Vec<String>,
    ) -> PyResult<(Vec<String>, Vec<PathBuf>)> {
        drive(py, host, &self.line, |monitor| {
            let report = Report::new(&self.project, monitor)?;
            let all = report.figures();
            let mut names: Vec<String> = all.iter().map(|(_, figure)| figure.id.clone()).collect();
            names.sort_unstable();
            names.dedup();
            if let Some(unknown) = only.iter().flatten().find(|name| !names.contains(name)) {
                let found = format!("there is no figure `{unknown}`");
                return Err(Error::invalid("only", found, format!("choose from {}", names.join(", "))));
            }
            let mut written = Vec::new();
            let is_asked = |id: &String| only.as_ref().is_none_or(|only| only.contains(id));
            let Some(to) = &folder else { return Ok((names, written)) };
            for (place, figure) in all.into_iter().filter(|(_, figure)| is_asked(&figure.id)) {
                // Settings of a sweep have figures of the same names.
                let into = to.join(place.strip_prefix(self.project.folder()).unwrap_or(&place));
                std::fs::create_dir_all(&into)
                    .map_err(|e| Error::file(&into, e, "choose a folder you may write to"))?;
                for format in [Format::Svg, Format::Png] {
                    if formats.iter().any(|asked| asked == format.extension()) {
                        let path = into.join(format!("{}.{}", figure.id, format.extension()));
                        write_atomically(&path, &report::draw(figure, width, format)?)?;
                        written.push(path);
                    }
                }
                let path = into.join(format!("{}.csv", figure.id));
                write_atomically(&path, &figure.table()?.to_csv()?)?;
                written.push(path);
            }
            Ok((names, written))
        })
    }

    /// Serves surrogate and posterior of a setting; with it, the inputs of both and the outputs.
    fn serve<'py>(
        &self,
        py: Python<'py>,
        host: &Bound<'py, PyAny>,
        index: usize,
        method: Option<String>,
        at: (String, u16),
    ) -> PyResult<(Server, Bound<'py, PyDict>)> {
        let method = method.as_deref().and_then(Method::named);
        let (server, inputs, outputs, parameters) = drive(py, host, &self.line, |monitor| {
            // Before anything is computed: a port that is taken should not be learnt of after a minute.
            let listener = listen(&at.0, at.1)?;
            let mut found = run::served(&self.project, index, method, monitor)?;
            let [inputs, outputs, parameters] =
                [&mut found.inputs, &mut found.outputs, &mut found.parameters].map(std::mem::take);
            Ok((Server::new(listener, found)?, inputs, outputs, parameters))
        })?;
        let about = PyDict::new(py);
        about.set_item("inputs", inputs)?;
        about.set_item("outputs", outputs)?;
        about.set_item("parameters", parameters)?;
        Ok((server, about))
    }

    /// The same study with the measurements of another file.
    fn with_measurements(&self, py: Python<'_>, file: PathBuf) -> PyResult<Self> {
        guarded(py, || {
            let project = run::Project::new(self.project.settings().to_vec(), self.project.folder().to_path_buf());
            Ok(Self { project: Arc::new(project.with_measurements(&file)), line: self.line.clone() })
        })
    }
}
