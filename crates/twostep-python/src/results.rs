//! What the stages of a study left, as tables, arrays, groups of ArviZ, figures and sentences.

use crate::arrays::{array, object, rows};
use crate::errors::{guarded, internal, raise};
use crate::pump::{Line, drive};
use crate::threads;
use numpy::IntoPyArray;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde_json::to_value;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use twostep::infer::propagation::Method;
use twostep::infer::{Budget, IPosterior};
use twostep::report::arviz::{self, Group, Values};
use twostep::report::figure::{Direction, Figure, Shape};
use twostep::report::{self, words};
use twostep::run::{self, Contender, Findings, Served};
use twostep::serve::{Limits, serve};
use twostep::table::Table;

/// Columns by name, as Python gives a table.
pub(crate) type Columns = Vec<(String, Column)>;

/// A column of a caller's table.
#[derive(Clone, FromPyObject)]
pub(crate) enum Column {
    Numbers(Vec<f64>),
    Texts(Vec<String>),
}

/// Method, numbers of each quantity, or why there are none.
type OwnBudget = (String, Vec<(String, Vec<f64>)>, Option<String>);

/// A table from columns.
pub(crate) fn table_of(columns: Columns) -> twostep::Result<Table> {
    columns.into_iter().try_fold(Table::new(), |table, (name, column)| match column {
        Column::Numbers(numbers) => table.with_numbers(name, numbers),
        Column::Texts(texts) => table.with_texts(name, texts),
    })
}

/// A table as columns: of numbers, NaN where a cell is empty, or of texts.
pub(crate) fn columns<'py>(py: Python<'py>, table: &Table) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for name in table.names() {
        match table.optional_numbers(name) {
            Ok(numbers) => {
                let numbers: Vec<f64> = numbers.into_iter().map(|number| number.unwrap_or(f64::NAN)).collect();
                dict.set_item(name, numbers.into_pyarray(py))?;
            }
            Err(_) => dict.set_item(name, table.texts(name).map_err(|error| raise(py, error))?)?,
        }
    }
    Ok(dict)
}

/// One setting of a study, as far as its stages were finished when it was read; nothing in it changes.
#[pyclass(module = "twostep._twostep", frozen)]
pub(crate) struct Setting {
    pub(crate) project: Arc<run::Project>,
    pub(crate) line: Arc<Line>,
    pub(crate) index: usize,
    pub(crate) findings: Findings,
    /// Warnings of the study and of all stages.
    pub(crate) warnings: Vec<String>,
    /// What the variance by each method is made of, once that was asked.
    pub(crate) budgets: OnceLock<Vec<Result<Budget, String>>>,
}

impl Setting {
    fn answer(&self, py: Python<'_>, method: &str) -> PyResult<&IPosterior> {
        let found = self.findings.answers.iter().find(|answer| answer.method == method);
        found.ok_or_else(|| {
            let known: Vec<&str> = self.findings.answers.iter().map(|answer| answer.method.as_str()).collect();
            let repair = format!("use one of {}", known.join(", "));
            raise(py, twostep::Error::invalid("method", format!("there is no answer by {method}"), repair))
        })
    }

    /// What the variance by each method is made of, computed once.
    fn kept_budgets(&self, py: Python<'_>) -> PyResult<&[Result<Budget, String>]> {
        if self.budgets.get().is_none() {
            let made = self.free(py, || report::budgets(&self.findings))?;
            // Another thread may have been first, with the same numbers.
            let _ = self.budgets.set(made);
        }
        Ok(self.budgets.get().map_or(&[], Vec::as_slice))
    }

    /// Does work that may take a while without the interpreter.
    fn free<T: Send>(&self, py: Python<'_>, work: impl Fn() -> twostep::Result<T> + Send + Sync) -> PyResult<T> {
        guarded(py, || {
            let at_work = self.line.begin();
            let done = py.detach(|| threads::within(work));
            drop(at_work);
            // What a function of the user raised, before what followed from it.
            self.line.raise_failure()?;
            done.map_err(|panic| internal(py, &panic))?.map_err(|error| raise(py, error))
        })
    }
}

#[pymethods]
impl Setting {
    /// Values of what is swept.
    fn label(&self) -> Vec<(String, String)> {
        self.findings.label.clone()
    }

    /// Where its results lie.
    fn folder(&self) -> PathBuf {
        self.findings.folder.clone()
    }

    /// Warnings of the study and of all stages, each once.
    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    /// The method that leads, and all that there are answers by.
    fn methods(&self) -> (String, Vec<String>) {
        let leading = self.findings.study.infer.answer.name().to_owned();
        let order = |method: &String| self.findings.study.infer.methods.iter().position(|m| m.name() == method);
        let mut all: Vec<String> = self.findings.answers.iter().map(|answer| answer.method.clone()).collect();
        all.sort_by_key(order);
        (leading, all)
    }

    /// Names of inputs, outputs and derived quantities, units by name, and the number of runs and of failed ones.
    fn about<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (study, dict) = (&self.findings.study, PyDict::new(py));
        let names = |all: Vec<String>| PyList::new(py, all);
        dict.set_item("study", &study.name)?;
        dict.set_item("unknowns", names(study.unknowns.iter().map(|u| u.name.clone()).collect())?)?;
        dict.set_item("conditions", names(study.conditions.iter().map(|c| c.name.clone()).collect())?)?;
        dict.set_item("inputs", names(study.input_names())?)?;
        dict.set_item("outputs", names(study.output_names())?)?;
        dict.set_item("parameters", &self.findings.parameters)?;
        dict.set_item("derived", names(study.derived.iter().map(|(name, _)| name.clone()).collect())?)?;
        dict.set_item("runs", [self.findings.training.n_runs(), self.findings.failed.len()])?;
        let measured: Vec<(&str, usize)> =
            self.findings.measured.iter().map(|m| (m.output.as_str(), m.y.len())).collect();
        dict.set_item("measured", measured)?;
        Ok(dict)
    }

    /// Rows of the training set: run (from one), inputs and outputs.
    fn training<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (set, dict) = (&self.findings.training, PyDict::new(py));
        let runs: Vec<i64> = set.runs.iter().map(|run| self.findings.run_number(*run) as i64).collect();
        dict.set_item("run", runs.into_pyarray(py))?;
        for (d, name) in set.input_names.iter().enumerate() {
            dict.set_item(name, set.inputs.col(d).into_pyarray(py))?;
        }
        for (name, values) in &set.outputs {
            dict.set_item(name, values.clone().into_pyarray(py))?;
        }
        Ok(dict)
    }

    /// What is known of the T-posterior of each output.
    fn reports<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let outputs = self.findings.posterior.as_ref().map_or(&[][..], |posterior| &posterior.outputs);
        let reports: Vec<_> = outputs.iter().map(|output| &output.report).collect();
        object(py, &to_value(reports).unwrap_or_default())
    }

    /// Names, values (P x S) and log-weights of the T-draws.
    fn t_draws<'py>(&self, py: Python<'py>) -> PyResult<(Vec<String>, Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let Some(posterior) = &self.findings.posterior else { return Err(internal(py, "there is no T-posterior")) };
        let draws = &posterior.draws;
        let weights = draws.log_weights().to_vec().into_pyarray(py).into_any();
        Ok((draws.names().to_vec(), array(py, draws.values()).into_any(), weights))
    }

    /// Runs against what a surrogate trained without them predicts.
    fn left_out<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let table = self.free(py, || self.findings.left_out())?;
        columns(py, &table)
    }

    /// The surrogate at inputs.
    fn surrogate_at<'py>(&self, py: Python<'py>, points: Columns, extrapolate: bool) -> PyResult<Bound<'py, PyDict>> {
        let table = self.free(py, || self.findings.surrogate_at(&table_of(points.clone())?, extrapolate))?;
        columns(py, &table)
    }

    /// Sobol' indices of the surrogates.
    fn sensitivity<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let table = self.free(py, || self.findings.sensitivity())?;
        columns(py, &table)
    }

    /// All that is known of the answer by a method besides its draws.
    fn summary<'py>(&self, py: Python<'py>, method: &str) -> PyResult<Bound<'py, PyAny>> {
        object(py, &to_value(self.answer(py, method)?).unwrap_or_default())
    }

    /// Draws (K x D) of unknowns, unknown sds and derived quantities, number of chains, and the T-draw of each.
    fn draws<'py>(
        &self,
        py: Python<'py>,
        method: &str,
    ) -> PyResult<(Bound<'py, PyAny>, usize, Option<Bound<'py, PyAny>>)> {
        let answer = self.answer(py, method)?;
        let derived = self.findings.study.derived_quantities().map_err(|error| raise(py, error))?;
        let width = self.findings.parameters.len() + derived.len();
        let mut values = Vec::with_capacity(answer.draws.len() * width);
        for x in &answer.draws {
            values.extend_from_slice(x);
            values.extend(derived.iter().map(|derived| derived.expression.eval_scalar(x)));
        }
        let t_draws = answer.t_draws.as_ref().map(|own| own.iter().map(|s| *s as i64).collect::<Vec<i64>>());
        let t_draws = t_draws.map(|own| own.into_pyarray(py).into_any());
        Ok((rows(py, answer.draws.len(), width, values).into_any(), answer.chains.max(1), t_draws))
    }

    /// The groups that ArviZ knows of the answer by a method.
    fn groups<'py>(&self, py: Python<'py>, method: &str) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.answer(py, method)?;
        let groups = self.free(py, || arviz::groups(&self.findings, method))?;
        groups.into_iter().map(|group| group_dict(py, group)).collect()
    }

    /// Outputs at conditions, by the answer of a method.
    fn predict<'py>(&self, py: Python<'py>, points: Option<Columns>, method: &str) -> PyResult<Bound<'py, PyDict>> {
        let table = self.free(py, || {
            let points = points.clone().map(table_of).transpose()?;
            self.findings.predict(points.as_ref(), method)
        })?;
        columns(py, &table)
    }

    /// What the variance by each method is made of: method, and either rows of quantity, variance, share and error of noise,
    /// approximation error and epistemic uncertainty, or why they are not known.
    fn budgets(&self, py: Python<'_>) -> PyResult<Vec<OwnBudget>> {
        let budgets = self.kept_budgets(py)?;
        let methods = self.findings.answers.iter().map(|answer| answer.method.clone());
        let shares = |q: &twostep::infer::VarianceShares| {
            let parts = [q.noise, q.approximation, q.epistemic];
            let numbers = [q.variance].into_iter().chain(parts.into_iter().flat_map(|part| [part.share, part.error]));
            (q.name.clone(), numbers.collect())
        };
        Ok(methods
            .zip(budgets)
            .map(|(method, budget)| match budget {
                Ok(budget) => (method, budget.quantities.iter().map(shares).collect(), None),
                Err(why) => (method, Vec::new(), Some(why.clone())),
            })
            .collect())
    }

    /// The posteriors of single T-draws that an answer is a mixture of.
    fn components<'py>(&self, py: Python<'py>, host: &Bound<'py, PyAny>, method: &str) -> PyResult<Bound<'py, PyDict>> {
        let answer = self.answer(py, method)?;
        let spec = &self.findings.study.infer;
        let found = drive(py, host, &self.line, |monitor| {
            let Some(prepared) = self.findings.prepared()? else { return Ok(None) };
            let found = prepared.components(spec, answer, monitor)?;
            let log_weights = Method::named(method).and_then(|method| found.log_weights(method, spec));
            Ok(Some((found, log_weights)))
        })?;
        let Some((found, log_weights)) = found else { return Err(internal(py, "the I-step is not finished")) };
        let dict = PyDict::new(py);
        let weights = |logs: &[f64]| logs.iter().map(|w| w.exp()).collect::<Vec<f64>>().into_pyarray(py);
        dict.set_item("alpha", weights(&found.log_alpha))?;
        if let Some(log_weights) = log_weights {
            dict.set_item("weight", weights(&log_weights))?;
        }
        dict.set_item("means", array(py, &found.means))?;
        dict.set_item("sds", array(py, &found.sds))?;
        dict.set_item("log_evidence", found.log_evidence.into_pyarray(py))?;
        dict.set_item("exact", found.exact)?;
        Ok(dict)
    }

    /// The log density of the answer by a method at unknowns and unknown sds in natural units; minus infinity outside the support.
    fn log_density<'py>(
        &self,
        py: Python<'py>,
        host: &Bound<'py, PyAny>,
        method: &str,
        points: Columns,
    ) -> PyResult<Bound<'py, PyAny>> {
        let log_evidence = self.answer(py, method)?.diagnostics.log_evidence;
        let spec = &self.findings.study.infer;
        let found = drive(py, host, &self.line, |monitor| {
            let x = table_of(points)?.matrix(&self.findings.parameters)?;
            let (Some(prepared), Some(method)) = (self.findings.prepared()?, Method::named(method)) else {
                return Ok(Vec::new());
            };
            let density = prepared.density(spec, method, log_evidence, monitor)?;
            let mut gradient = vec![0.0; x.cols()];
            Ok((0..x.rows()).map(|i| density.score(x.row(i), &mut gradient)).collect())
        })?;
        Ok(found.into_pyarray(py).into_any())
    }

    /// The answer in words: tone and text of each sentence.
    fn said(&self) -> Vec<(&'static str, String)> {
        words::answer(&self.findings).into_iter().map(sentence).collect()
    }

    /// How far to trust it.
    fn trust(&self, py: Python<'_>) -> PyResult<Vec<(&'static str, String)>> {
        let budgets = self.kept_budgets(py)?;
        let said = self.free(py, || {
            // What is known of them elsewhere is good to have, and no reason to say nothing.
            let enough = self.project.kept_enough(self.index).ok().flatten();
            let calibrations = self.project.calibrations().ok().flatten().unwrap_or_default();
            Ok(report::trust(&self.findings, budgets, enough.as_ref(), calibrations.get(self.index)))
        })?;
        Ok(said.into_iter().map(sentence).collect())
    }

    /// A figure of the report, as data; none where the results have no such figure.
    fn figure<'py>(&self, py: Python<'py>, id: &str) -> PyResult<Option<Bound<'py, PyDict>>> {
        let figure = self.free(py, || report::figure(&self.findings, id))?;
        figure.map(|figure| figure_dict(py, &figure)).transpose()
    }
}

/// Settings of the same measurements, by name, compared by the evidences of their answers.
#[pyfunction]
pub(crate) fn compare<'py>(py: Python<'py>, settings: Vec<(String, Py<Setting>)>) -> PyResult<Bound<'py, PyAny>> {
    let contenders: Vec<Contender<'_>> = settings
        .iter()
        .map(|(name, setting)| {
            let Findings { study, measured, answers, .. } = &setting.get().findings;
            Contender { name: name.clone(), study, measured, answers }
        })
        .collect();
    let found = run::compare(&contenders).map_err(|error| raise(py, error))?;
    object(py, &to_value(found).unwrap_or_default())
}

fn sentence(sentence: words::Sentence) -> (&'static str, String) {
    let tone = match sentence.tone {
        words::Tone::Plain => "plain",
        words::Tone::Good => "good",
        words::Tone::Caution => "caution",
        words::Tone::Bad => "bad",
    };
    (tone, sentence.text)
}

/// A group; its arrays are moved.
pub(crate) fn group_dict(py: Python<'_>, group: Group) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    let attributes = |all: Vec<(&'static str, String)>| -> PyResult<Bound<'_, PyDict>> {
        let dict = PyDict::new(py);
        all.into_iter().try_for_each(|(key, value)| dict.set_item(key, value))?;
        Ok(dict)
    };
    dict.set_item("name", group.name)?;
    dict.set_item("attributes", attributes(group.attributes)?)?;
    let dimensions = PyDict::new(py);
    for (name, coordinate) in group.dimensions {
        dimensions.set_item(name, coordinate.into_pyarray(py))?;
    }
    let variables = group.variables.into_iter().map(|variable| {
        let values = match variable.values {
            Values::Reals(values) => values.into_pyarray(py).into_any(),
            Values::Counts(values) => values.into_pyarray(py).into_any(),
            Values::Flags(values) => values.into_pyarray(py).into_any(),
        };
        let attributes = attributes(variable.attributes)?;
        Ok((variable.name, variable.dimensions, values, attributes, variable.is_coordinate))
    });
    dict.set_item("variables", variables.collect::<PyResult<Vec<_>>>()?)?;
    dict.set_item("dimensions", dimensions)?;
    Ok(dict)
}

/// A figure as plain values and arrays.
pub(crate) fn figure_dict<'py>(py: Python<'py>, figure: &Figure) -> PyResult<Bound<'py, PyDict>> {
    let axis = |axis: &twostep::report::figure::Axis| -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("label", &axis.label)?;
        dict.set_item("log", axis.log)?;
        dict.set_item("range", axis.range)?;
        dict.set_item("categories", &axis.categories)?;
        dict.set_item("bare", axis.bare)?;
        Ok(dict)
    };
    let mark = |mark: &twostep::report::figure::Mark| -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let style = report::style(mark.series.ink);
        dict.set_item("series", &mark.series.name)?;
        dict.set_item("ink", style.name)?;
        dict.set_item("colour", style.colour)?;
        dict.set_item("dashes", style.dashes)?;
        dict.set_item("marker", style.marker)?;
        dict.set_item("band", style.band)?;
        let is_horizontal = |direction: &Direction| *direction == Direction::Horizontal;
        let (shape, direction, values) = match &mark.shape {
            Shape::Line(points) => ("line", None, rows(py, points.len(), 2, points.concat())),
            Shape::Band(points) => ("band", None, rows(py, points.len(), 3, points.concat())),
            Shape::Points(points, _) => ("points", None, rows(py, points.len(), 2, points.concat())),
            Shape::Dots(points) => ("dots", None, rows(py, points.len(), 2, points.concat())),
            Shape::Intervals(along, all) => {
                ("intervals", Some(is_horizontal(along)), rows(py, all.len(), 6, all.concat()))
            }
            Shape::Bars(bars, _) => ("bars", None, rows(py, bars.len(), 4, bars.concat())),
            Shape::Rules(along, at) => ("rules", Some(is_horizontal(along)), rows(py, at.len(), 1, at.clone())),
        };
        dict.set_item("shape", shape)?;
        dict.set_item("horizontal", direction)?;
        dict.set_item("values", values)?;
        Ok(dict)
    };
    let panels = figure.panels.iter().map(|panel| {
        let dict = PyDict::new(py);
        dict.set_item("title", &panel.title)?;
        dict.set_item("x", axis(&panel.x)?)?;
        dict.set_item("y", axis(&panel.y)?)?;
        dict.set_item("marks", panel.marks.iter().map(mark).collect::<PyResult<Vec<_>>>()?)?;
        Ok(dict)
    });
    let dict = PyDict::new(py);
    dict.set_item("panels", panels.collect::<PyResult<Vec<_>>>()?)?;
    dict.set_item("id", &figure.id)?;
    dict.set_item("title", &figure.title)?;
    dict.set_item("caption", &figure.caption)?;
    dict.set_item("columns", figure.columns)?;
    dict.set_item("aspect", figure.aspect)?;
    Ok(dict)
}

/// Surrogate and posterior served to other programs, by a thread of its own.
#[pyclass(module = "twostep._twostep", frozen)]
pub(crate) struct Server {
    url: String,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<twostep::Result<()>>>>,
}

impl Server {
    pub(crate) fn new(listener: TcpListener, served: Served) -> twostep::Result<Self> {
        let broken = |error: std::io::Error| {
            twostep::Error::failed("serve", format!("the system does not say the port: {error}"), "give a port")
        };
        let url = format!("http://{}", listener.local_addr().map_err(broken)?);
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let answer = move || serve(listener, served.models, Limits::default(), &|| !asked.load(Ordering::Relaxed));
        Ok(Self { url, stop, thread: Mutex::new(Some(std::thread::spawn(answer))) })
    }

    fn end(&self) -> twostep::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        match thread.map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            // What went wrong in it was told to those who asked.
            Some(Err(_)) | None => Ok(()),
        }
    }
}

#[pymethods]
impl Server {
    /// Where it listens.
    fn url(&self) -> &str {
        &self.url
    }

    /// Answers those who asked before, within a second, and frees the port.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        guarded(py, || py.detach(|| self.end()).map_err(|error| raise(py, error)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Calibrations of all settings; nothing in it changes.
#[pyclass(module = "twostep._twostep", frozen)]
pub(crate) struct Calibrations {
    pub(crate) project: Arc<run::Project>,
    pub(crate) calibrations: Vec<run::Calibration>,
}

#[pymethods]
impl Calibrations {
    /// The content of `calibration.json`.
    fn summary<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        object(py, &run::calibration_json(&self.project, &self.calibrations))
    }

    /// Verdict and causes of each method of a setting, in words.
    fn verdicts(&self, index: usize) -> Vec<(String, &'static str, String)> {
        let methods = self.calibrations.get(index).map_or(&[][..], |calibration| &calibration.methods);
        methods.iter().map(|m| (m.method.clone(), m.verdict.kind.name(), m.verdict.to_string())).collect()
    }

    /// Every trial, as `calibration.csv` has it.
    fn trials<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        guarded(py, || {
            let table = self.project.trials_table(&self.calibrations).map_err(|error| raise(py, error))?;
            columns(py, &table)
        })
    }

    /// A figure of all settings, or of one.
    fn figure<'py>(&self, py: Python<'py>, id: &str, index: Option<usize>) -> PyResult<Option<Bound<'py, PyDict>>> {
        guarded(py, || {
            let figures = || report::calibration::figures_of(&self.project, &self.calibrations, index);
            let figures = py.detach(|| threads::within(figures)).map_err(|panic| internal(py, &panic))?;
            let figures = figures.map_err(|error| raise(py, error))?;
            figures.iter().find(|figure| figure.id == id).map(|figure| figure_dict(py, figure)).transpose()
        })
    }

    /// The group `prior_sbc` of a method.
    fn groups<'py>(&self, py: Python<'py>, index: usize, method: &str) -> PyResult<Vec<Bound<'py, PyDict>>> {
        guarded(py, || {
            let (Some(calibration), Some(setting), Some(method)) =
                (self.calibrations.get(index), self.project.settings().get(index), Method::named(method))
            else {
                return Err(internal(py, "there is no such calibration"));
            };
            Ok(vec![group_dict(py, arviz::calibration_group(&setting.study, calibration, method))?])
        })
    }
}
