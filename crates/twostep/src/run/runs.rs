//! Runs of the simulator: which are wanted, which exist in the ledger or a table, and the making of the rest.

use super::stages::{self, Outcome};
use super::{Project, Workplace};
use crate::error::{Error, Result};
use crate::matrix::{Matrix, bits};
use crate::monitor::{Monitor, Silent};
use crate::simulate::command::end_leftovers;
use crate::simulate::finished::{FinishedRuns, TableInput, TableRun, read_runs};
use crate::simulate::{Failure, Job, OnFailure, Reading, SimulatorKind, UmbridgeModel, Wanted, alike};
use crate::store::{KnownSimulator, Point, RUNS, Run, RunLedger, RunSource, RunState};
use crate::stream::Stream;
use crate::study::{MeasurementSource, Stage, Study, digest};
use crate::surrogate::InputScale;
use crate::table::{Table, counted};
use rand::seq::SliceRandom;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Folder of the work folders of runs, beside the ledger.
const WORK: &str = "runs";

/// Inputs that differ by less than this share of their range are those of one run: tables pass through programs that keep
/// fifteen digits, or fewer.
const SAME: f64 = 1e-9;

/// Where the study file says how outputs are read.
const RESULTS: &str = "outputs: results";

/// Fewest failed runs of which one can say that they lie together.
const FEWEST_FAILED: usize = 3;

/// Permutations by which chance is told from a cluster of failures, and the share of them that may look as clustered.
const PERMUTATIONS: usize = 999;
const CHANCE: f64 = 0.01;

/// What to do about finished runs of a simulator that has changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Say so and stop.
    Ask,
    /// Take them as runs of the simulator as it is.
    Keep,
    /// Make them again; the old ones stay in the ledger.
    Rerun,
}

/// Which runs to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Only {
    /// All that have no outcome yet.
    Pending,
    /// Those that failed, once more.
    Failed,
    /// One, by its number in the ledger.
    Run(i64),
}

/// One run of a study, for lists.
#[derive(Clone, Debug, PartialEq)]
pub struct RunEntry {
    /// Its number in the ledger, or the line of the table it stands in; a built-in simulator's are counted.
    pub id: String,
    /// `pending`, `running`, `done` or `failed`.
    pub state: &'static str,
    /// Why it is there: `design`, `table`, `import`, `verify`, `calibrate`, `truth`.
    pub source: &'static str,
    /// Inputs by name.
    pub inputs: Vec<(String, f64)>,
    /// What it gave, by output.
    pub outputs: Vec<(String, Reading)>,
    /// How long the last attempt took.
    pub seconds: Option<f64>,
    /// How often it was started.
    pub attempts: usize,
    /// Why it failed.
    pub reason: Option<String>,
    /// Fingerprint of the simulator, of a run in the ledger.
    pub simulator: Option<String>,
    /// Whether it is of the simulator as it is.
    pub is_current: bool,
}

/// What an import brought in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    /// Runs that the ledger did not have.
    pub new: usize,
    /// Runs that it had with the same outputs.
    pub known: usize,
    /// What was left out, and why.
    pub warnings: Vec<String>,
    /// Rows of the design's runs that are still to be made.
    pub pending: usize,
    /// Runs of the design that failed.
    pub failed: usize,
}

/// The runs that a study is trained with, as far as they exist.
pub(super) struct Known {
    /// Inputs of each run, one a row.
    pub(super) x: Matrix,
    /// What each gave, or why nothing.
    pub(super) outcomes: Vec<Outcome>,
    /// Runs that have no outcome yet.
    pub(super) pending: usize,
    /// Finished runs of a design that is no longer this one's.
    pub(super) unused: usize,
}

impl Known {
    /// Hash of the runs.
    pub(super) fn digest(&self) -> String {
        let mut text = String::new();
        for (i, outcome) in self.outcomes.iter().enumerate() {
            text.push_str(&format!("{:?} {outcome:?}\n", self.x.row(i)));
        }
        digest(&text)
    }
}

/// The work folder of a run.
fn work_folder(root: &Path, id: i64) -> PathBuf {
    root.join(WORK).join(format!("run.{id}"))
}

/// Inputs of a run by name: unknowns, conditions, constants.
fn named(study: &Study, x: &[f64]) -> Vec<(String, f64)> {
    let own = study.input_names().into_iter().zip(x.iter().copied());
    own.chain(study.constants.iter().cloned()).collect()
}

/// The point of one run.
fn point(study: &Study, x: &[f64]) -> Point {
    Point { inputs: named(study, x), replicate: 0 }
}

/// Values of the study's inputs among those of a run inside the ranges; `None` elsewhere, and where it has others.
fn own_inputs(study: &Study, run: &Run) -> Option<Vec<f64>> {
    let x = named_inputs(study, run)?;
    let inside = study.input_scales().iter().zip(&x).all(|(scale, x)| (scale.lower..=scale.upper).contains(x));
    inside.then_some(x)
}

/// Values of the study's inputs among those of a run; `None` where it has others.
fn named_inputs(study: &Study, run: &Run) -> Option<Vec<f64>> {
    let value = |name: &str| run.inputs.iter().find(|(other, _)| other == name).map(|(_, x)| *x);
    let names = &study.input_names()[..study.n_run_inputs()];
    let fits = study.constants.iter().all(|(name, x)| value(name) == Some(*x));
    let known = names.len() + study.constants.len() == run.inputs.len();
    names.iter().map(|name| value(name)).collect::<Option<Vec<f64>>>().filter(|_| fits && known)
}

/// Everything that decides what a run gives and how that is read, by the place in the study file.
fn parts(study: &Study) -> Vec<(String, String)> {
    let mut parts = study.simulator.fingerprint_parts();
    match &study.simulator.kind {
        SimulatorKind::Builtin(_) | SimulatorKind::Elsewhere => {}
        kind => {
            // Results may be read by position, and coordinates may be the study's own.
            let wanted = format!("{:?}", study.wanted());
            match parts.iter_mut().find(|(place, _)| place == RESULTS) {
                Some((_, value)) => value.push_str(&wanted),
                None => parts.push((RESULTS.to_owned(), wanted)),
            }
            if matches!(kind, SimulatorKind::Umbridge(server) if server.inputs.is_none()) {
                let names = study.run_input_names();
                parts.push(("order of the inputs".to_owned(), format!("{names:?}")));
            }
        }
    }
    parts
}

/// Fingerprint of the simulator: what its runs are found again by.
pub(super) fn fingerprint(study: &Study) -> String {
    match &study.simulator.kind {
        SimulatorKind::Elsewhere => "elsewhere".to_owned(),
        SimulatorKind::Builtin(name) => digest(&format!("builtin {name} {}", study.simulator.sigma_s)),
        _ => digest(&format!("{:?}", parts(study))),
    }
}

/// What tells the trials of one simulator from those of another; nothing for a built-in one, whose name tells it.
pub(super) fn simulator_of_trials(study: &Study) -> String {
    match study.simulator.builtin() {
        Some(_) => String::new(),
        None => format!("{} {:?} {:?}", fingerprint(study), study.design, study.seed),
    }
}

/// Inputs of the runs that synthetic measurements are of, where a simulator outside this process makes them.
fn truth_points(study: &Study) -> Vec<Vec<f64>> {
    let MeasurementSource::Synthetic { truth, at, replicates, .. } = &study.measurements else { return Vec::new() };
    if study.simulator.builtin().is_some() {
        return Vec::new();
    }
    let value = |name: &str| truth.iter().find(|(other, _)| other == name).map_or(f64::NAN, |(_, x)| *x);
    let inferred = study.inferred();
    let n_conditions = study.n_run_inputs() - study.unknowns.len();
    let mut points: Vec<Vec<f64>> = Vec::new();
    for output in &study.outputs {
        let (known, experiment) = stages::synthetic_conditions(study, output, at, *replicates);
        for row in 0..known.rows() {
            let places = study.places(experiment.get(row).copied().unwrap_or(0));
            let unknowns: Vec<f64> = places.into_iter().map(|place| value(&inferred[place].name)).collect();
            let x = [&unknowns[..], &known.row(row)[..n_conditions]].concat();
            if !points.contains(&x) {
                points.push(x);
            }
        }
    }
    points
}

/// The runs of the study's table, where it has one and the file is there.
fn table_runs(study: &Study) -> Result<FinishedRuns> {
    match &study.simulator.table {
        Some(path) if path.is_file() => read_table(study, path),
        _ => Ok(FinishedRuns::default()),
    }
}

pub(super) fn read_table(study: &Study, path: &Path) -> Result<FinishedRuns> {
    let scales = study.input_scales();
    let inputs = study.input_names().into_iter().zip(&scales).take(study.n_run_inputs());
    let inputs: Vec<TableInput> =
        inputs.map(|(name, scale)| TableInput { name, range: (scale.lower, scale.upper) }).collect();
    let mut found = read_runs(path, &inputs, &study.constants, &study.wanted())?;
    if !study.simulator.keep_partial {
        let whole = |readings: &[Reading]| readings.iter().all(|r| r.values.iter().all(|y| y.is_finite()));
        found.runs.retain(|run| whole(&run.readings));
    }
    Ok(found)
}

/// Whether two runs have the same inputs, but for digits that a table may have dropped.
pub(super) fn is_same(study: &Study, a: &[f64], b: &[f64]) -> bool {
    let close = |((a, b), scale): ((&f64, &f64), &InputScale)| (a - b).abs() <= SAME * (scale.upper - scale.lower);
    a.iter().zip(b).zip(&study.input_scales()).all(close)
}

/// The design's points; none where a table has all runs.
fn design_points(study: &Study) -> Result<Matrix> {
    if study.design.runs == 0 && study.design.points.is_none() {
        return Ok(Matrix::zeros(0, study.n_run_inputs()));
    }
    stages::points(study, stages::root(study))
}

/// The runs that a study itself asks for: those of its design that no table has, and those that synthetic measurements are of.
fn asked_by(study: &Study) -> Result<[Vec<Point>; 2]> {
    let design = design_points(study)?;
    let inputs = (0..design.rows()).map(|i| named(study, design.row(i))).collect();
    let table = table_runs(study)?;
    let of_table = |point: &Point| {
        let x: Vec<f64> = point.inputs.iter().take(study.n_run_inputs()).map(|(_, x)| *x).collect();
        table.runs.iter().any(|run| is_same(study, &run.inputs, &x))
    };
    let design = Point::numbered(inputs).into_iter().filter(|point| !of_table(point)).collect();
    Ok([design, truth_points(study).iter().map(|x| point(study, x)).collect()])
}

/// What tells apart the runs that studies of one simulator ask for, each once, in the order in which [`make_shared`] numbers them.
pub(super) fn asked_points(studies: &[&Study]) -> Result<Vec<(String, usize)>> {
    let (mut out, mut seen): (Vec<_>, HashSet<_>) = Default::default();
    for study in studies {
        let places = asked_by(study)?.concat();
        out.extend(places.iter().map(Point::place).filter(|place| seen.insert(place.clone())));
    }
    Ok(out)
}

/// Notes that a study asks for its runs, so that they have the numbers which they have when one process makes them.
pub(super) fn plan_asked(ledger: &RunLedger<'_>, study: &Study) -> Result<()> {
    let [design, truth] = asked_by(study)?;
    ledger.plan(&fingerprint(study), &design, RunSource::Design)?;
    ledger.plan(&fingerprint(study), &truth, RunSource::Truth)?;
    Ok(())
}

/// Notes what the study's simulator is made of.
pub(super) fn note_simulator(ledger: &RunLedger<'_>, study: &Study) -> Result<()> {
    ledger.note_simulator(&fingerprint(study), &parts(study))
}

/// Every run of the study's simulator that has an outcome, with its inputs.
pub(super) fn all_known(study: &Study, ledger: Option<&RunLedger<'_>>) -> Result<Vec<(Vec<f64>, Outcome)>> {
    let outputs = study.output_names();
    let runs = ledger.map(|ledger| ledger.runs(Some(&fingerprint(study)))).transpose()?.unwrap_or_default();
    // A truth may lie outside the ranges.
    let with_inputs = runs.iter().filter_map(|run| Some((named_inputs(study, run)?, outcome(study, run, &outputs)?)));
    Ok(with_inputs.chain(table_runs(study)?.runs.into_iter().map(|run| (run.inputs, Ok(run.readings)))).collect())
}

/// What a run gave, if the study can use it.
fn usable(study: &Study, readings: Vec<Reading>) -> Outcome {
    for (reading, output) in readings.iter().zip(&study.outputs) {
        let (missing, n) = (reading.values.iter().filter(|y| !y.is_finite()).count(), reading.values.len());
        let name = &output.name;
        if missing == n {
            return Err(format!("there is no value of `{name}`"));
        }
        if missing > 0 && !study.simulator.keep_partial {
            return Err(format!(
                "{missing} of {n} values of `{name}` are missing; simulator.partial = \"keep\" would keep the others"
            ));
        }
    }
    Ok(readings)
}

/// What a run came to, if it came to an end.
fn outcome(study: &Study, run: &Run, outputs: &[String]) -> Option<Outcome> {
    match run.state {
        RunState::Done => {
            let readings = run.readings(outputs).ok_or_else(|| "gave no value of some output".to_owned());
            Some(readings.and_then(|readings| usable(study, readings)))
        }
        RunState::Failed => Some(Err(run.reason.clone().unwrap_or_default())),
        RunState::Pending | RunState::Running => None,
    }
}

/// Runs by inputs and number among those with the same.
fn by_point<'a>(runs: &[(Vec<f64>, &'a Run)]) -> HashMap<(Vec<u64>, usize), &'a Run> {
    runs.iter().map(|(x, run)| ((bits(x), run.replicate), *run)).collect()
}

/// The runs that train a study's surrogate, in order: the design's, those of the table that it does not ask for, and those
/// that were imported or verified the answer. A run of a built-in simulator's design is not looked for.
pub(super) fn known(study: &Study, ledger: Option<&RunLedger<'_>>) -> Result<Known> {
    let outputs = study.output_names();
    let of_ledger = ledger.map(|ledger| ledger.runs(Some(&fingerprint(study)))).transpose()?.unwrap_or_default();
    let own: Vec<(Vec<f64>, &Run)> = of_ledger.iter().filter_map(|run| Some((own_inputs(study, run)?, run))).collect();
    let by_point = by_point(&own);
    let table = table_runs(study)?;
    let mut out = Known { x: Matrix::default(), outcomes: Vec::new(), pending: 0, unused: 0 };
    let mut rows: Vec<Vec<f64>> = Vec::new();
    let (mut used, mut used_lines): (HashSet<i64>, HashSet<usize>) = Default::default();
    if study.simulator.builtin().is_none() {
        let design = design_points(study)?;
        let mut seen: HashMap<Vec<u64>, usize> = HashMap::new();
        for i in 0..design.rows() {
            let x = design.row(i);
            let count = seen.entry(bits(x)).or_insert(0);
            let run = by_point.get(&(bits(x), *count));
            *count += 1;
            if let Some(run) = run {
                used.insert(run.id);
            }
            let of_table = || {
                let fits = |run: &&TableRun| !used_lines.contains(&run.line) && is_same(study, &run.inputs, x);
                table.runs.iter().find(fits)
            };
            let found = match run.and_then(|run| outcome(study, run, &outputs)) {
                Some(Ok(readings)) => Some(Ok(readings)),
                other => match of_table() {
                    Some(run) => {
                        used_lines.insert(run.line);
                        Some(Ok(run.readings.clone()))
                    }
                    None => other,
                },
            };
            match found {
                Some(found) => {
                    rows.push(x.to_vec());
                    out.outcomes.push(found);
                }
                None => out.pending += 1,
            }
        }
    }
    let n_design = rows.len();
    for run in table.runs.iter().filter(|run| !used_lines.contains(&run.line)) {
        // The design's own run, once more.
        if let Some(i) = (0..n_design).find(|&i| is_same(study, &rows[i], &run.inputs) && out.outcomes[i].is_ok()) {
            if out.outcomes[i].as_ref().is_ok_and(|readings| alike(readings, &run.readings)) {
                continue;
            }
            return Err(contradiction(study, run.line));
        }
        rows.push(run.inputs.clone());
        out.outcomes.push(Ok(run.readings.clone()));
    }
    for (x, run) in own.iter().filter(|(_, run)| run.source.is_extra() && !used.contains(&run.id)) {
        // A failed run that no design asks for says nothing.
        if let Some(Ok(readings)) = outcome(study, run, &outputs) {
            // What was imported may stand in the table as well.
            let twins = || table.runs.iter().filter(|other| is_same(study, &other.inputs, x));
            if twins().any(|other| alike(&other.readings, &readings)) {
                continue;
            }
            if let Some(other) = twins().next() {
                return Err(contradiction(study, other.line));
            }
            rows.push(x.clone());
            out.outcomes.push(Ok(readings));
        }
    }
    let is_unused =
        |run: &Run| run.source == RunSource::Design && run.state == RunState::Done && !used.contains(&run.id);
    out.unused = own.iter().filter(|(_, run)| is_unused(run)).count();
    out.x = Matrix::from_fn(rows.len(), study.n_run_inputs(), |i, d| rows[i][d]);
    Ok(out)
}

/// A row of the study's table that says otherwise than a run of the ledger.
fn contradiction(study: &Study, line: usize) -> Error {
    let path = study.simulator.table.as_deref().unwrap_or(Path::new("table"));
    Error::invalid(
        format!("{}, line {line}", path.display()),
        "the simulator gave other outputs at the same inputs",
        "remove the row, or correct it: `twostep runs STUDY` lists the finished runs",
    )
}

/// A number of places for runs, which are waited for.
struct Slots {
    most: usize,
    /// Numbers of the runs under way.
    busy: Mutex<HashSet<i64>>,
    changed: Condvar,
}

impl Slots {
    fn new(most: usize) -> Self {
        Self { most, busy: Mutex::new(HashSet::new()), changed: Condvar::new() }
    }

    /// Calls `work` on a run as soon as a place is free and nobody else works on the run.
    fn within<T>(&self, id: i64, work: impl FnOnce() -> T) -> T {
        /// Leaves the place, also where the work panics.
        struct Place<'a>(&'a Slots, i64);
        impl Drop for Place<'_> {
            fn drop(&mut self) {
                self.0.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
                self.0.changed.notify_all();
            }
        }
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        while busy.len() >= self.most || busy.contains(&id) {
            busy = self.changed.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        busy.insert(id);
        drop(busy);
        let _place = Place(self, id);
        work()
    }

    /// Calls `work` if no run is under way, and lets none begin before it has ended.
    fn when_idle(&self, work: impl FnOnce()) {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if busy.is_empty() {
            work();
        }
    }
}

/// Finished runs of a simulator that has changed since.
struct Before {
    fingerprint: String,
    /// How many they are, and how many of them lack an output of the study.
    runs: usize,
    lacking: usize,
    /// Places in the study file where it has changed.
    places: Vec<String>,
}

impl Before {
    /// Those of the latest one that this study could use.
    fn find(study: &Study, ledger: &RunLedger<'_>, siblings: &[String]) -> Result<Option<Self>> {
        let outputs = study.output_names();
        for KnownSimulator { fingerprint, parts } in ledger.other_simulators(&self::fingerprint(study))? {
            // The simulator of another setting has not changed, it is another one.
            if siblings.contains(&fingerprint) {
                continue;
            }
            let fits = |run: &Run| run.state == RunState::Done && own_inputs(study, run).is_some();
            let runs: Vec<Run> = ledger.runs(Some(&fingerprint))?.into_iter().filter(fits).collect();
            if runs.is_empty() {
                continue;
            }
            let now = self::parts(study);
            let value = |parts: &[(String, String)], place: &str| {
                parts.iter().find(|(other, _)| other == place).map(|(_, value)| value.clone())
            };
            let mut places: Vec<String> = now.iter().chain(&parts).map(|(place, _)| place.clone()).collect();
            places.sort_unstable();
            places.dedup();
            places.retain(|place| value(&now, place) != value(&parts, place));
            let lacking = runs.iter().filter(|run| run.readings(&outputs).is_none()).count();
            return Ok(Some(Self { fingerprint, runs: runs.len(), lacking, places }));
        }
        Ok(None)
    }

    fn in_words(&self) -> String {
        let what = if self.places.is_empty() { "the simulator".to_owned() } else { self.places.join(", ") };
        format!("{what} changed since {} of it were made", counted(self.runs, "finished run"))
    }
}

/// Where runs are noted, and the folder that they work in.
pub(super) struct Bench<'a> {
    pub(super) ledger: RunLedger<'a>,
    pub(super) root: PathBuf,
}

impl Bench<'static> {
    /// The study's own, in its folder, whose lock the caller holds.
    ///
    /// # Errors
    /// A ledger that cannot be used.
    pub(super) fn own(folder: &Path) -> Result<Self> {
        Ok(Self { ledger: RunLedger::open(&folder.join(RUNS))?, root: folder.to_path_buf() })
    }
}

/// Makes runs of a simulator outside this process and keeps each as soon as it is finished.
pub(super) struct Runner<'a> {
    study: &'a Study,
    ledger: RunLedger<'a>,
    simulator: String,
    wanted: Vec<Wanted>,
    outputs: Vec<String>,
    /// Where the ledger lies, as an absolute path: commands run in other folders.
    root: PathBuf,
    slots: Slots,
    /// The server, once it has answered.
    server: OnceLock<UmbridgeModel>,
    /// A run failed in a study that then ends.
    aborted: AtomicBool,
    /// Fingerprints of the simulators of all settings.
    siblings: Vec<String>,
}

impl Drop for Runner<'_> {
    fn drop(&mut self) {
        self.slots.when_idle(|| {
            if let SimulatorKind::Function(function) = &self.study.simulator.kind {
                function.rest();
            }
            self.end_leftovers(&[]);
        });
    }
}

impl<'a> Runner<'a> {
    /// Ends processes that interrupted runs left behind, and takes the results of those that had finished.
    ///
    /// # Errors
    /// A ledger that cannot be used.
    pub(super) fn open(study: &'a Study, bench: Bench<'a>, siblings: Vec<String>) -> Result<Self> {
        let Bench { ledger, root } = bench;
        let simulator = fingerprint(study);
        note_simulator(&ledger, study)?;
        let runner = Self {
            study,
            simulator,
            wanted: study.wanted(),
            outputs: study.output_names(),
            root: std::path::absolute(&root).unwrap_or(root),
            slots: Slots::new(study.simulator.concurrency),
            server: OnceLock::new(),
            aborted: AtomicBool::new(false),
            siblings,
            ledger,
        };
        runner.recover()?;
        runner.reread()?;
        Ok(runner)
    }

    fn folder(&self, id: i64) -> PathBuf {
        work_folder(&self.root, id)
    }

    fn recover(&self) -> Result<()> {
        let unfinished = |run: &Run| matches!(run.state, RunState::Running | RunState::Pending);
        let runs: Vec<Run> = self.ledger.runs(None)?.into_iter().filter(unfinished).collect();
        let groups: Vec<i32> = runs.iter().filter_map(|run| run.process_group).collect();
        // All of the ledger: a process may have been started just before its run was noted as running.
        self.end_leftovers(&groups);
        let started = |run: &&Run| run.state == RunState::Running || self.folder(run.id).exists();
        for run in runs.iter().filter(started) {
            let own = run.simulator == self.simulator;
            if let (true, SimulatorKind::Command(command)) = (own, &self.study.simulator.kind)
                && let Some(readings) = command.adopt(&self.folder(run.id), &self.ledger.marker(run.id), &self.wanted)
                && let Ok(readings) = self.usable(readings)
            {
                self.finish(run.id, &readings, None)?;
                continue;
            }
            self.ledger.reset(&[run.id])?;
        }
        Ok(())
    }

    /// Ends whatever runs have left behind; those of `groups` also where the study has no command any more.
    fn end_leftovers(&self, groups: &[i32]) {
        let kind = &self.study.simulator.kind;
        if !groups.is_empty() || matches!(kind, SimulatorKind::Command(_) | SimulatorKind::Function(_)) {
            end_leftovers(&[self.ledger.any_marker()], groups);
        }
    }

    fn finish(&self, id: i64, readings: &[Reading], seconds: Option<f64>) -> Result<()> {
        let outputs: Vec<(String, Reading)> = self.outputs.iter().cloned().zip(readings.iter().cloned()).collect();
        self.ledger.finish(id, &outputs, seconds)?;
        // Only now: until here the work folder is the only place that has them.
        self.tidy(id, true);
        Ok(())
    }

    fn tidy(&self, id: i64, succeeded: bool) {
        if let SimulatorKind::Command(command) = &self.study.simulator.kind {
            command.tidy(&self.folder(id), succeeded);
        }
    }

    /// Refuses to mix runs of the simulator with those that were made before it changed, or does what `changed` says.
    pub(super) fn settle(&self, changed: Changed) -> Result<()> {
        let Some(before) = Before::find(self.study, &self.ledger, &self.siblings)? else { return Ok(()) };
        match changed {
            Changed::Keep if before.lacking > 0 => Err(Error::invalid(
                "--changed keep",
                format!("{} of them gave no value of some output of the study", before.lacking),
                "make them again with `--changed rerun`",
            )),
            Changed::Keep => {
                self.ledger.keep(&before.fingerprint, &self.simulator)?;
                self.ledger.set_aside(&self.others()?)
            }
            Changed::Rerun => self.ledger.set_aside(&self.others()?),
            Changed::Ask => Err(Error::invalid(
                "simulator",
                before.in_words(),
                "say what you want: `twostep simulate STUDY --changed keep` takes them as runs of the simulator as it is now, \
                 `--changed rerun` makes them again (the old ones stay in the ledger)",
            )),
        }
    }

    /// Fingerprints of simulators that no setting has any more.
    fn others(&self) -> Result<Vec<String>> {
        let all = self.ledger.other_simulators(&self.simulator)?.into_iter().map(|other| other.fingerprint);
        Ok(all.filter(|other| !self.siblings.contains(other)).collect())
    }

    /// Reads the files of failed runs again, where nothing but the reading failed and the study now says it otherwise.
    fn reread(&self) -> Result<()> {
        let SimulatorKind::Command(command) = &self.study.simulator.kind else { return Ok(()) };
        let now = self::parts(self.study);
        let but_results = |parts: &[(String, String)]| -> Vec<(String, String)> {
            let mut parts: Vec<_> = parts.iter().filter(|(place, _)| place != RESULTS).cloned().collect();
            parts.sort();
            parts
        };
        let mut sources = vec![self.simulator.clone()];
        for KnownSimulator { fingerprint, parts } in self.ledger.other_simulators(&self.simulator)? {
            if but_results(&parts) == but_results(&now) {
                sources.push(fingerprint);
            }
        }
        for source in sources {
            for run in self.ledger.runs(Some(&source))?.iter().filter(|run| run.state == RunState::Failed) {
                let Some(readings) = command.adopt(&self.folder(run.id), &self.ledger.marker(run.id), &self.wanted)
                else {
                    continue;
                };
                let Ok(readings) = self.usable(readings) else { continue };
                let point = Point { inputs: run.inputs.clone(), replicate: run.replicate };
                let id = self.ledger.plan(&self.simulator, &[point], run.source)?[0];
                if self.ledger.run(id)?.is_some_and(|run| run.state != RunState::Done) {
                    self.finish(id, &readings, run.seconds)?;
                }
                self.tidy(run.id, true);
            }
        }
        Ok(())
    }

    fn usable(&self, readings: Vec<Reading>) -> Outcome {
        usable(self.study, readings)
    }

    /// What the run at these inputs gives: from the ledger, or made now.
    ///
    /// # Errors
    /// An interruption, or a ledger that cannot be used.
    pub(super) fn at(&self, x: &[f64], source: RunSource, monitor: &dyn Monitor) -> Result<Outcome> {
        let ids = self.plan(&[x.to_vec()], source)?;
        let run = self.ledger.run(ids[0])?;
        let run = run.ok_or_else(|| Error::failed("simulate", "a run has gone from the ledger", "run again"))?;
        match outcome(self.study, &run, &self.outputs) {
            Some(outcome) => Ok(outcome),
            None => self.make(&run, monitor),
        }
    }

    /// What the runs at these inputs give: from the ledger, or made now, several at once.
    ///
    /// # Errors
    /// As for [`Runner::at`].
    pub(super) fn all(&self, points: &[Vec<f64>], source: RunSource, monitor: &dyn Monitor) -> Result<Vec<Outcome>> {
        let ids = self.plan(points, source)?;
        let runs = || -> Result<Vec<Run>> {
            Ok(ids.iter().map(|id| self.ledger.run(*id)).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
        };
        let pending: Vec<Run> =
            runs()?.into_iter().filter(|run| outcome(self.study, run, &self.outputs).is_none()).collect();
        self.make_all(&pending, monitor)?;
        let unmade = || Err("was not made".to_owned());
        Ok(runs()?.iter().map(|run| outcome(self.study, run, &self.outputs).unwrap_or_else(unmade)).collect())
    }

    /// Notes runs that a built-in simulator made.
    ///
    /// # Errors
    /// A ledger that cannot be used.
    pub(super) fn note(&self, points: &[Vec<f64>], source: RunSource, outcomes: &[Outcome]) -> Result<()> {
        for (id, outcome) in self.plan(points, source)?.into_iter().zip(outcomes) {
            self.ledger.start(id, None)?;
            match outcome {
                Ok(readings) => self.finish(id, readings, None)?,
                Err(reason) => self.ledger.fail(id, reason, None)?,
            }
        }
        Ok(())
    }

    /// Numbers of the runs that the study itself asks for.
    fn plan_study(&self) -> Result<Vec<i64>> {
        let [design, truth] = asked_by(self.study)?;
        let mut ids = self.ledger.plan(&self.simulator, &design, RunSource::Design)?;
        ids.extend(self.ledger.plan(&self.simulator, &truth, RunSource::Truth)?);
        Ok(ids)
    }

    fn plan(&self, points: &[Vec<f64>], source: RunSource) -> Result<Vec<i64>> {
        let points = Point::numbered(points.iter().map(|x| named(self.study, x)).collect());
        self.ledger.plan(&self.simulator, &points, source)
    }

    /// Makes one run, with its attempts.
    fn make(&self, run: &Run, monitor: &dyn Monitor) -> Result<Outcome> {
        self.slots.within(run.id, || {
            // Another thread may have made it meanwhile.
            let known = self.ledger.run(run.id)?.and_then(|run| outcome(self.study, &run, &self.outputs));
            if let Some(known) = known {
                return Ok(known);
            }
            let most = match self.study.simulator.on_failure {
                OnFailure::Retry { attempts, .. } => attempts,
                _ => 1,
            };
            let mut attempt = 1;
            loop {
                let started = Instant::now();
                let outcome = self.attempt(run, attempt, monitor)?;
                let seconds = Some(started.elapsed().as_secs_f64());
                self.refuse_edited(run.id)?;
                let reason = match outcome {
                    Ok(readings) => {
                        self.finish(run.id, &readings, seconds)?;
                        return Ok(Ok(readings));
                    }
                    Err(reason) => reason,
                };
                // Until its attempts are over the run counts as running, for others and after a crash.
                if attempt == most {
                    self.ledger.fail(run.id, &reason, seconds)?;
                }
                let inputs: Vec<String> = self.inputs(run).iter().map(|(name, x)| format!("{name} = {x}")).collect();
                let tried = if most > 1 { format!(" (attempt {attempt} of {most})") } else { String::new() };
                monitor.notice(&format!("run {} failed{tried} at {}: {reason}", run.id, inputs.join(", ")));
                if attempt == most {
                    self.tidy(run.id, false);
                    if self.study.simulator.on_failure == OnFailure::Abort {
                        self.aborted.store(true, Ordering::Relaxed);
                        let problem = format!("run {} failed: {reason}", run.id);
                        return Err(Error::failed("simulate", problem, ABORTED));
                    }
                    return Ok(Err(reason));
                }
                if let OnFailure::Retry { wait, .. } = self.study.simulator.on_failure {
                    let paused = self.pause(wait.saturating_mul(2_u32.saturating_pow(attempt as u32 - 1)), monitor);
                    if paused.is_err() {
                        // Its attempts are not over.
                        self.ledger.reset(&[run.id])?;
                    }
                    paused?;
                }
                attempt += 1;
            }
        })
    }

    /// Refuses to note a run of a simulator that has been edited since the first one: nobody knows which of them made it.
    fn refuse_edited(&self, id: i64) -> Result<()> {
        if fingerprint(self.study) == self.simulator {
            return Ok(());
        }
        self.aborted.store(true, Ordering::Relaxed);
        self.ledger.reset(&[id])?;
        self.tidy(id, true);
        Err(Error::failed(
            "simulate",
            "files of the simulator changed while it was run",
            "run again: what was finished before is kept, and you are asked whether it still counts",
        ))
    }

    fn pause(&self, length: Duration, monitor: &dyn Monitor) -> Result<()> {
        let until = Instant::now() + length;
        while Instant::now() < until {
            if !self.proceed(monitor) {
                return Err(Error::Interrupted);
            }
            std::thread::sleep(Duration::from_millis(20).min(until.saturating_duration_since(Instant::now())));
        }
        Ok(())
    }

    fn proceed(&self, monitor: &dyn Monitor) -> bool {
        monitor.proceed() && !self.aborted.load(Ordering::Relaxed)
    }

    fn attempt(&self, run: &Run, attempt: usize, monitor: &dyn Monitor) -> Result<Outcome> {
        // A run that is under way is not ended because another one failed.
        let proceed = || monitor.proceed();
        if !self.proceed(monitor) {
            return Err(Error::Interrupted);
        }
        let job = Job {
            id: run.id,
            inputs: self.inputs(run),
            folder: self.folder(run.id),
            marker: self.ledger.marker(run.id),
            attempt,
        };
        // A run whose beginning cannot be noted is no failure of the simulator.
        let ledger_problem = Mutex::new(None);
        let outcome = match &self.study.simulator.kind {
            SimulatorKind::Command(command) => {
                let on_start = |group: i32| {
                    self.ledger.start(run.id, Some(group)).map_err(|problem| {
                        let text = Error::failed("ledger", problem.to_string(), "see above");
                        *ledger_problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
                        text
                    })
                };
                command.run(&job, &self.wanted, &on_start, &proceed)
            }
            SimulatorKind::Umbridge(_) => {
                self.ledger.start(run.id, None)?;
                self.server()?.run(&job, &proceed)
            }
            SimulatorKind::Function(function) => {
                self.ledger.start(run.id, None)?;
                function.run(&job, &self.wanted, &proceed)
            }
            SimulatorKind::Builtin(_) | SimulatorKind::Elsewhere => Err(Failure::Failed(
                "the study has no simulator that could be run; `twostep design --export FILE` and `twostep import` bring runs \
                 from elsewhere"
                    .to_owned(),
            )),
        };
        if let Some(problem) = ledger_problem.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(problem);
        }
        match outcome {
            Ok(readings) => Ok(self.usable(readings)),
            Err(Failure::Failed(reason)) => Ok(Err(reason)),
            Err(Failure::Unreachable { reason, repair }) => {
                self.ledger.reset(&[run.id])?;
                self.aborted.store(true, Ordering::Relaxed);
                Err(Error::failed("simulate", reason, repair))
            }
            Err(Failure::Interrupted) => {
                self.ledger.reset(&[run.id])?;
                self.tidy(run.id, true);
                Err(Error::Interrupted)
            }
        }
    }

    /// Inputs of a run in the order of the study.
    fn inputs(&self, run: &Run) -> Vec<(String, f64)> {
        let value = |name: &String| run.inputs.iter().find(|(other, _)| other == name).map_or(f64::NAN, |(_, x)| *x);
        self.study.run_input_names().into_iter().map(|name| (name.clone(), value(&name))).collect()
    }

    fn server(&self) -> Result<&UmbridgeModel> {
        if let Some(model) = self.server.get() {
            return Ok(model);
        }
        let SimulatorKind::Umbridge(spec) = &self.study.simulator.kind else {
            return Err(Error::failed("simulate", "there is no server", "report this as a bug"));
        };
        let names = self.study.run_input_names();
        let model = spec.connect(&names, &self.wanted)?;
        Ok(self.server.get_or_init(|| model))
    }

    /// Makes these runs, `concurrency` at once.
    fn make_all(&self, runs: &[Run], monitor: &dyn Monitor) -> Result<()> {
        if runs.is_empty() {
            return Ok(());
        }
        if let SimulatorKind::Umbridge(_) = &self.study.simulator.kind {
            // What is wrong with the server is said once, before any run.
            self.server()?;
        }
        let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
        monitor.progress("simulate", 0, runs.len());
        let worker = || -> Result<()> {
            loop {
                let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) else { return Ok(()) };
                if !self.proceed(monitor) {
                    return Err(Error::Interrupted);
                }
                // A failure is in the ledger.
                let _: Outcome = self.make(run, monitor)?;
                monitor.progress("simulate", finished.fetch_add(1, Ordering::Relaxed) + 1, runs.len());
            }
        };
        let n_workers = self.study.simulator.concurrency.min(runs.len());
        let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..n_workers).map(|_| scope.spawn(worker)).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        // Other threads may have runs of their own under way. A function's processes wait for more.
        if !matches!(self.study.simulator.kind, SimulatorKind::Function(_)) {
            self.slots.when_idle(|| self.end_leftovers(&[]));
        }
        // The run that ended the others says why, not those that were ended.
        let (stopped, others): (Vec<_>, Vec<_>) =
            outcomes.into_iter().filter_map(|outcome| outcome.err()).partition(|e| matches!(e, Error::Interrupted));
        others.into_iter().next().or(stopped.into_iter().next()).map_or(Ok(()), Err)
    }
}

/// Makes those runs that studies of one simulator ask for, which belong to a share and are in a state, or else are not done; how many all of them ask
/// for, and how many belong to it. Runs are numbered from `first` on, each once, in the order of the designs.
///
/// # Errors
/// As for [`Project::make_runs`].
pub(super) fn make_shared(
    studies: &[&Study],
    bench: Bench<'_>,
    siblings: Vec<String>,
    first: usize,
    of_share: &dyn Fn(usize) -> bool,
    state: Option<RunState>,
    monitor: &dyn Monitor,
) -> Result<[usize; 2]> {
    let mut runner = Runner::open(studies[0], bench, siblings)?;
    let (mut ids, mut seen): (Vec<i64>, HashSet<i64>) = Default::default();
    for &study in studies {
        runner.study = study;
        ids.extend(runner.plan_study()?.into_iter().filter(|id| seen.insert(*id)));
    }
    runner.study = studies[0];
    let own: Vec<i64> = ids.iter().enumerate().filter(|(u, _)| of_share(first + u)).map(|(_, id)| *id).collect();
    let is_wanted = |run: &Run| state.map_or(run.state != RunState::Done, |state| run.state == state);
    let runs = own.iter().map(|id| runner.ledger.run(*id)).collect::<Result<Vec<_>>>()?;
    let runs: Vec<Run> = runs.into_iter().flatten().filter(is_wanted).collect();
    runner.ledger.reset(&runs.iter().map(|run| run.id).collect::<Vec<_>>())?;
    runner.make_all(&runs, monitor)?;
    Ok([ids.len(), own.len()])
}

/// What to do about a study that ends with its first failure.
const ABORTED: &str = "finished runs are kept; correct the simulator, or write on_failure = \"continue\"";

impl Project {
    /// Fingerprints of the simulators of all settings.
    pub(super) fn simulators(&self) -> Vec<String> {
        self.settings.iter().map(|setting| fingerprint(&setting.study)).collect()
    }

    /// Hash of what the runs gave that synthetic measurements are of.
    pub(super) fn truth_digest(&self, index: usize) -> Result<String> {
        let study = &self.settings[index].study;
        let points = truth_points(study);
        if points.is_empty() {
            return Ok(String::new());
        }
        let known = all_known(study, self.ledger()?.as_ref())?;
        let of_truth: Vec<&(Vec<f64>, Outcome)> = known.iter().filter(|(x, _)| points.contains(x)).collect();
        Ok(digest(&format!("{of_truth:?}")))
    }

    /// The ledger, to look into.
    pub(super) fn ledger(&self) -> Result<Option<RunLedger<'static>>> {
        RunLedger::look(&self.root.join(RUNS))
    }

    /// The runs that a setting is trained with, as far as they exist.
    pub(super) fn known(&self, index: usize) -> Result<Known> {
        known(&self.settings[index].study, self.ledger()?.as_ref())
    }

    /// Makes the runs of a setting that are missing and can be made here.
    pub(super) fn complete(
        &self,
        index: usize,
        only: &Only,
        changed: Changed,
        workplace: &mut Option<Workplace>,
        monitor: &dyn Monitor,
    ) -> Result<()> {
        let study = &self.settings[index].study;
        if study.simulator.builtin().is_some() {
            return Ok(());
        }
        let is_idle = *only == Only::Pending && changed == Changed::Ask && !self.has_missing(index)?;
        if is_idle {
            return Ok(());
        }
        self.claim(workplace)?;
        self.refuse_lost_ledger(index)?;
        let runner = Runner::open(study, Bench::own(&self.root)?, self.simulators())?;
        runner.settle(changed)?;
        let ids = runner.plan_study()?;
        if study.simulator.kind == SimulatorKind::Elsewhere {
            return Ok(());
        }
        let mut runs: Vec<Run> = Vec::new();
        let wanted: HashSet<i64> = ids.iter().copied().collect();
        for run in runner.ledger.runs(Some(&runner.simulator))? {
            let is_own = wanted.contains(&run.id) || run.source.is_extra();
            let chosen = match only {
                Only::Pending => is_own && run.state == RunState::Pending,
                Only::Failed => is_own && run.state == RunState::Failed,
                Only::Run(id) => run.id == *id && run.state != RunState::Done,
            };
            if chosen {
                runs.push(run);
            }
        }
        if let (Only::Run(id), true) = (only, runs.is_empty()) {
            let known = runner.ledger.run(*id)?;
            let found = match known {
                None => format!("there is no run {id}"),
                Some(run) if run.simulator != runner.simulator => format!("run {id} is of another simulator"),
                Some(_) => format!("run {id} is finished, and finished runs are not repeated"),
            };
            return Err(Error::invalid("--run", found, "`twostep runs STUDY` lists the runs"));
        }
        runner.ledger.reset(&runs.iter().map(|run| run.id).collect::<Vec<_>>())?;
        runner.make_all(&runs, monitor)
    }

    /// Refuses to begin anew where runs were made and their ledger has gone.
    fn refuse_lost_ledger(&self, index: usize) -> Result<()> {
        let path = self.root.join(RUNS);
        let is_there = std::fs::metadata(&path).is_ok_and(|file| file.len() > 0);
        let record = self.setting_folder(index).record(Stage::Simulate)?;
        let was_there = record.is_some_and(|record| record.parts.contains_key(crate::study::LEDGER_PART));
        if is_there || !was_there {
            return Ok(());
        }
        Err(Error::failed(
            path.display().to_string(),
            "the run ledger is gone or empty, and runs were made before",
            "put it back; to make all runs again, remove the folder",
        ))
    }

    /// What changed in the simulator since finished runs were made, in words.
    pub(super) fn changed_simulator(&self, index: usize) -> Result<Option<String>> {
        let study = &self.settings[index].study;
        match self.ledger()? {
            Some(ledger) if study.simulator.builtin().is_none() => {
                Ok(Before::find(study, &ledger, &self.simulators())?.map(|before| before.in_words()))
            }
            _ => Ok(None),
        }
    }

    /// Makes runs of every setting that are missing, or those that `only` names.
    ///
    /// # Errors
    /// A simulator that has changed, which `changed` would settle; a simulator that cannot be run; a folder that cannot be
    /// used; an interruption. Finished runs are kept whatever happens.
    pub fn make_runs(&self, only: &Only, changed: Changed, monitor: &dyn Monitor) -> Result<()> {
        if let Some(name) = self.settings[0].study.simulator.builtin().filter(|_| *only != Only::Pending) {
            let found = format!("the built-in simulator {name} makes its runs anew, all of them, at no cost");
            return Err(Error::invalid("simulate", found, "leave out --only and --run"));
        }
        let mut workplace = None;
        // A run is one run, however many settings use it.
        let n_settings = if matches!(only, Only::Run(_)) { 1 } else { self.settings.len() };
        (0..n_settings).try_for_each(|index| self.complete(index, only, changed, &mut workplace, monitor))
    }

    /// Whether runs of a setting are missing, were interrupted, or can be read where they could not before.
    fn has_missing(&self, index: usize) -> Result<bool> {
        let study = &self.settings[index].study;
        if self.known(index)?.pending > 0 {
            return Ok(true);
        }
        let ledger = self.ledger()?;
        let runs =
            ledger.as_ref().map(|ledger| ledger.runs(Some(&fingerprint(study)))).transpose()?.unwrap_or_default();
        let is_unfinished =
            |run: &Run| run.state == RunState::Running || (run.state == RunState::Pending && run.source.is_extra());
        let is_readable = |run: &Run| match &study.simulator.kind {
            SimulatorKind::Command(command) if run.state == RunState::Failed => {
                let marker = ledger.as_ref().map_or_else(String::new, |ledger| ledger.marker(run.id));
                let readings = command.adopt(&work_folder(&self.root, run.id), &marker, &study.wanted());
                readings.is_some_and(|readings| usable(study, readings).is_ok())
            }
            _ => false,
        };
        let has = |x: &Vec<f64>| {
            runs.iter().any(|run| named_inputs(study, run).as_ref() == Some(x) && run.state != RunState::Pending)
        };
        Ok(runs.iter().any(|run| is_unfinished(run) || is_readable(run)) || !truth_points(study).iter().all(has))
    }

    /// Every run of every setting: those of the ledger, of the study's table, and of a built-in simulator's design.
    ///
    /// # Errors
    /// A ledger, table or result that cannot be read.
    pub fn runs(&self) -> Result<Vec<RunEntry>> {
        let mut out: Vec<RunEntry> = Vec::new();
        let ledger = self.ledger()?;
        let current = self.simulators();
        for run in ledger.map(|ledger| ledger.runs(None)).transpose()?.unwrap_or_default() {
            let order = self.settings[0].study.input_names();
            let mut inputs = run.inputs;
            inputs.sort_by_key(|(name, _)| order.iter().position(|other| other == name).unwrap_or(usize::MAX));
            out.push(RunEntry {
                id: run.id.to_string(),
                state: run.state.name(),
                source: run.source.name(),
                inputs,
                outputs: run.outputs.unwrap_or_default(),
                seconds: run.seconds,
                attempts: run.attempts,
                reason: run.reason,
                is_current: current.contains(&run.simulator),
                simulator: Some(run.simulator),
            });
        }
        let mut tables = HashSet::new();
        for (index, setting) in self.settings.iter().enumerate() {
            let study = &setting.study;
            if let Some(path) = study.simulator.table.as_ref().filter(|path| tables.insert((*path).clone())) {
                let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                for run in table_runs(study)?.runs {
                    let names = study.output_names().into_iter();
                    out.push(RunEntry {
                        id: format!("{file}:{}", run.line),
                        state: RunState::Done.name(),
                        source: "table",
                        inputs: named(study, &run.inputs),
                        outputs: names.zip(run.readings).collect(),
                        seconds: None,
                        attempts: 0,
                        reason: None,
                        simulator: None,
                        is_current: true,
                    });
                }
            }
            if study.simulator.builtin().is_some() {
                out.extend(self.builtin_runs(index)?);
            }
        }
        Ok(out)
    }

    /// Runs of a built-in simulator's design, from the training set it left.
    fn builtin_runs(&self, index: usize) -> Result<Vec<RunEntry>> {
        let study = &self.settings[index].study;
        let prefix = self.setting_name(index).map_or_else(String::new, |name| format!("{name}:"));
        let (outcomes, x) = if self.is_fresh(index, Stage::Simulate) {
            let x = stages::points(study, stages::root(study))?;
            let call = stages::Call::known(study, None)?;
            (Some(stages::outcomes(&call, &x, stages::root(study), &Silent)?), x)
        } else {
            (None, stages::points(study, stages::root(study))?)
        };
        let entry = |i: usize| {
            let outcome = outcomes.as_ref().map(|outcomes| &outcomes[i]);
            let names = study.output_names().into_iter();
            RunEntry {
                id: format!("{prefix}{}", i + 1),
                state: match outcome {
                    None => RunState::Pending.name(),
                    Some(Ok(_)) => RunState::Done.name(),
                    Some(Err(_)) => RunState::Failed.name(),
                },
                source: "design",
                inputs: named(study, x.row(i)),
                outputs: outcome.and_then(|o| o.as_ref().ok()).map_or(Vec::new(), |r| names.zip(r.clone()).collect()),
                seconds: None,
                attempts: usize::from(outcome.is_some()),
                reason: outcome.and_then(|outcome| outcome.as_ref().err().cloned()),
                simulator: None,
                is_current: true,
            }
        };
        Ok((0..x.rows()).map(entry).collect())
    }

    /// A table of the runs that are still to be made, with empty columns for the outputs; those that failed among them where
    /// `with_failed`. Returns how many failed besides.
    ///
    /// # Errors
    /// A ledger or table that cannot be read; a sweep over inputs or constants.
    pub fn pending_runs(&self, with_failed: bool) -> Result<(Table, usize)> {
        let mut points: Vec<Vec<f64>> = Vec::new();
        let mut all_failed: Vec<Vec<f64>> = Vec::new();
        let study = &self.settings[0].study;
        for (index, setting) in self.settings.iter().enumerate() {
            let own = &setting.study;
            if own.input_names() != study.input_names() || own.constants != study.constants {
                let found = "settings of the sweep have other inputs or constants, which one table cannot hold";
                return Err(Error::invalid("design", found, "export a study without [sweep] over them"));
            }
            if own.simulator.builtin().is_some() && self.is_fresh(index, Stage::Simulate) {
                continue;
            }
            let (design, known, truth) = (design_points(own)?, self.known(index)?, truth_points(own));
            let made = all_known(own, self.ledger()?.as_ref())?;
            for x in (0..design.rows()).map(|i| design.row(i).to_vec()).chain(truth) {
                let of_training = (0..known.x.rows()).find(|&i| is_same(own, known.x.row(i), &x));
                let has_failed = match of_training {
                    Some(i) => Some(known.outcomes[i].is_err()),
                    None => made.iter().find(|(other, _)| *other == x).map(|(_, outcome)| outcome.is_err()),
                };
                let list = if has_failed == Some(true) { &mut all_failed } else { &mut points };
                if has_failed != Some(false) && !list.contains(&x) {
                    list.push(x);
                }
            }
        }
        let n_failed = all_failed.len();
        if with_failed {
            points.extend(all_failed);
        }
        Ok((pending_table(study, &points)?, if with_failed { 0 } else { n_failed }))
    }

    /// Brings runs of setting `index` that were made elsewhere into the ledger.
    ///
    /// # Errors
    /// A table that cannot be read; a run whose outputs differ from those that the ledger has at the same inputs; a folder
    /// that cannot be used.
    pub fn import_runs(&self, index: usize, file: &Path) -> Result<Imported> {
        let study = &self.settings[index].study;
        let mut workplace = None;
        self.claim(&mut workplace)?;
        let ledger = RunLedger::open(&self.root.join(RUNS))?;
        let simulator = fingerprint(study);
        ledger.note_simulator(&simulator, &parts(study))?;
        let found = read_table(study, file)?;
        let mut wanted: Vec<Vec<f64>> = Vec::new();
        for setting in &self.settings {
            let design = design_points(&setting.study)?;
            wanted.extend((0..design.rows()).map(|i| design.row(i).to_vec()).chain(truth_points(&setting.study)));
        }
        let outputs = study.output_names();
        let existing = ledger.runs(Some(&simulator))?;
        let existing: Vec<(Vec<f64>, &Run)> =
            existing.iter().filter_map(|run| Some((own_inputs(study, run)?, run))).collect();
        let mut imported = Imported { warnings: found.warnings, ..Imported::default() };
        // In the order of the first input, so that of many runs few are compared; with their rank, which decides.
        let mut places: Vec<(usize, &Vec<f64>)> = existing.iter().map(|(x, _)| x).chain(&wanted).enumerate().collect();
        places.sort_by(|(_, a), (_, b)| a[0].total_cmp(&b[0]));
        let reach = study.input_scales().first().map_or(0.0, |scale| SAME * (scale.upper - scale.lower));
        let restored = |x: &Vec<f64>| {
            let from = places.partition_point(|(_, place)| place[0] < x[0] - reach);
            let near = places[from..].iter().take_while(|(_, place)| place[0] <= x[0] + reach);
            near.filter(|(_, place)| is_same(study, place, x)).min_by_key(|(rank, _)| rank).map(|(_, place)| *place)
        };
        // Digits that a spreadsheet dropped come back.
        let at: Vec<&Vec<f64>> = found.runs.iter().map(|run| restored(&run.inputs).unwrap_or(&run.inputs)).collect();
        let inputs = at.iter().map(|x| named(study, x)).collect();
        let by_point = by_point(&existing);
        let mut new = Vec::new();
        for ((point, x), run) in Point::numbered(inputs).into_iter().zip(at).zip(&found.runs) {
            let there = by_point.get(&(bits(x), point.replicate)).filter(|run| run.state == RunState::Done);
            if let Some(there) = there {
                if there.readings(&outputs).is_some_and(|readings| alike(&readings, &run.readings)) {
                    imported.known += 1;
                    continue;
                }
                return Err(Error::invalid(
                    format!("{}, line {}", file.display(), run.line),
                    format!(
                        "run {} of the ledger has the same inputs and other outputs; nothing was imported",
                        there.id
                    ),
                    "remove the row, or correct it: finished runs are not replaced",
                ));
            }
            new.push((point, outputs.iter().cloned().zip(run.readings.iter().cloned()).collect()));
        }
        imported.new = ledger.import(&simulator, &new)?;
        drop(ledger);
        let (pending, failed) = self.pending_runs(false)?;
        (imported.pending, imported.failed) = (pending.n_rows(), failed);
        Ok(imported)
    }
}

/// Points as a table that a user can fill in: inputs and constants, then empty columns for the outputs.
pub(super) fn pending_table(study: &Study, points: &[Vec<f64>]) -> Result<Table> {
    let rows: Vec<Vec<(String, f64)>> = points.iter().map(|x| named(study, x)).collect();
    let names = study.run_input_names();
    let mut table = Table::new();
    // A series has a line for each coordinate.
    let at = study
        .outputs
        .iter()
        .find_map(|output| output.over.as_ref())
        .map(|over| (over.name.clone(), over.at.clone().unwrap_or_else(|| vec![f64::NAN])));
    let times = at.as_ref().map_or(1, |(_, at)| at.len());
    for (d, name) in names.iter().enumerate() {
        let column = rows.iter().flat_map(|row| vec![row[d].1; times]).collect();
        table = table.with_numbers(name, column)?;
    }
    if let Some((name, at)) = at {
        let text = |t: &f64| if t.is_nan() { String::new() } else { t.to_string() };
        let column = rows.iter().flat_map(|_| at.iter().map(text)).collect();
        table = table.with_texts(name, column)?;
    }
    for output in &study.outputs {
        table = table.with_texts(&output.name, vec![String::new(); rows.len() * times])?;
    }
    Ok(table)
}

/// A sentence if failed runs lie together in the input space, where the surrogate then knows nothing.
///
/// The number of failed runs whose nearest neighbour failed too, against as many runs chosen at random.
pub(super) fn clustered_failures(study: &Study, x: &Matrix, failed: &[bool]) -> Option<String> {
    let n_failed = failed.iter().filter(|f| **f).count();
    if n_failed < FEWEST_FAILED || n_failed == failed.len() {
        return None;
    }
    let scales = study.input_scales();
    let scaled = |i: usize| x.row(i).iter().zip(&scales).map(|(x, s)| s.scaled(*x).0).collect::<Vec<f64>>();
    let points: Vec<Vec<f64>> = (0..x.rows()).map(scaled).collect();
    let distance = |a: usize, b: usize| points[a].iter().zip(&points[b]).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
    let nearest: Vec<usize> = (0..points.len())
        .map(|i| {
            let others = (0..points.len()).filter(|j| *j != i);
            others.min_by(|a, b| distance(i, *a).total_cmp(&distance(i, *b))).unwrap_or(i)
        })
        .collect();
    let together = |failed: &[bool]| (0..failed.len()).filter(|&i| failed[i] && failed[nearest[i]]).count();
    let found = together(failed);
    let mut rng = Stream::root(0).named("failures").rng();
    let mut shuffled = failed.to_vec();
    let as_clustered = (0..PERMUTATIONS)
        .filter(|_| {
            shuffled.shuffle(&mut rng);
            together(&shuffled) >= found
        })
        .count();
    if (as_clustered + 1) as f64 / (PERMUTATIONS + 1) as f64 > CHANCE {
        return None;
    }
    let names = study.input_names();
    let of_failed = |d: usize| (0..x.rows()).filter(|&i| failed[i]).map(move |i| x[(i, d)]);
    let narrow = (0..study.n_run_inputs()).filter_map(|d| {
        let (low, high) = of_failed(d).fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let width = scales[d].fraction(high) - scales[d].fraction(low);
        (width < 0.6).then(|| format!("{} from {low:.4} to {high:.4}", names[d]))
    });
    let place: Vec<String> = narrow.collect();
    let place = if place.is_empty() { String::new() } else { format!(" ({})", place.join(", ")) };
    Some(format!(
        "the {n_failed} failed runs lie together in the input space{place}: the surrogate knows nothing there, and to leave them \
         out biases the answer towards elsewhere"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_limited_and_a_run_is_worked_on_once_at_a_time() {
        let slots = Slots::new(2);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let twice = AtomicBool::new(false);
        let own = [AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false)];
        std::thread::scope(|scope| {
            for id in [0, 1, 2, 0, 1, 2, 0, 0] {
                let (slots, now, most, twice, own) = (&slots, &now, &most, &twice, &own);
                scope.spawn(move || {
                    slots.within(id, || {
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        twice.fetch_or(own[id as usize].swap(true, Ordering::SeqCst), Ordering::SeqCst);
                        slots.when_idle(|| panic!("a run is under way"));
                        std::thread::sleep(Duration::from_millis(5));
                        own[id as usize].store(false, Ordering::SeqCst);
                        now.fetch_sub(1, Ordering::SeqCst);
                    });
                });
            }
        });
        assert_eq!((most.into_inner(), twice.into_inner()), (2, false));
        let idle = AtomicBool::new(false);
        slots.when_idle(|| idle.store(true, Ordering::SeqCst));
        assert!(idle.into_inner(), "every place was left");
    }
}
