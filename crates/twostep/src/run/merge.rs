//! What workers made, brought together: checked, kept once, and what is missing named.

use super::shares::SortedOut;
use super::{Project, VERSION, Workplace};
use crate::calibrate::Trial;
use crate::error::{Error, Result};
use crate::infer::Fit;
use crate::kernels::instruction_set;
use crate::store::{Asked, Heading, Journal, Made, RUNS, RunLedger, Section, Shard, Shards, Share, Task, journals};
use crate::study::Stage;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Units of a piece of work: T-trials, runs or fits, numbered from zero over all settings, as shares have them.
#[derive(Clone, Debug, PartialEq)]
pub struct Units {
    /// How many there are.
    pub all: usize,
    /// Those that have no outcome, or the failed ones, with their names.
    pub to_do: Vec<(usize, String)>,
}

/// Units of work that nobody has done.
#[derive(Clone, Debug, PartialEq)]
pub struct MissingUnits {
    /// What was shared out.
    pub task: Task,
    /// Their share, where all files are of the same division.
    pub share: Option<Share>,
    /// Their numbers, from one: T-trials of a setting, or runs in the order of the design.
    pub units: Vec<usize>,
    /// What to say of them.
    pub words: String,
}

/// What was brought in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Merged {
    /// Files that were read.
    pub files: usize,
    /// Results that were new: trials by each method, and runs.
    pub new: usize,
    /// Results that were there already.
    pub known: usize,
    /// What was shared out.
    pub tasks: Vec<Task>,
    /// What is still missing.
    pub missing: Vec<MissingUnits>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// The right to write into a project's folder, and what is kept in it of work that others do.
pub struct Collector {
    _workplace: Option<Workplace>,
    /// The setting of every campaign and simulator, by its fingerprint.
    settings: HashMap<String, usize>,
    trials: HashMap<String, Gathered<Trial>>,
    fits: HashMap<String, Gathered<Fit>>,
    ledger: Option<RunLedger<'static>>,
}

/// A journal with the results that it holds by their names, so that none is kept twice, and none that differs.
struct Gathered<R> {
    journal: Journal<R>,
    kept: HashMap<String, Vec<u8>>,
}

fn name_of_trial(trial: &Trial) -> String {
    let version = trial.version.as_ref().map_or_else(String::new, |version| format!(" ({version})"));
    format!("T-trial {}, I-trial {} by {}{version}", trial.t_trial + 1, trial.i_trial + 1, trial.method)
}

fn name_of_fit(fit: &Fit) -> String {
    format!("the fit of T-draw {}", fit.t_draw + 1)
}

/// A result as its journal has it.
fn bytes<R: Serialize>(result: &R) -> Vec<u8> {
    serde_json::to_vec(result).unwrap_or_default()
}

impl<R: Serialize + DeserializeOwned> Gathered<R> {
    fn open(path: &Path, heading: Heading, name: fn(&R) -> String) -> Result<Self> {
        let (journal, kept) = Journal::open(path, heading)?;
        Ok(Self { journal, kept: kept.iter().map(|result| (name(result), bytes(result))).collect() })
    }

    /// Keeps what is new; how many results were, and how many were known.
    fn add(&mut self, results: Vec<R>, name: fn(&R) -> String, source: &str) -> Result<[usize; 2]> {
        let mut added = Vec::new();
        let all = results.len();
        for result in results {
            let (name, bytes) = (name(&result), bytes(&result));
            match self.kept.get(&name) {
                Some(before) if *before == bytes => {}
                Some(_) => {
                    let found = format!("{name} came out differently from what is there; nothing of it was kept");
                    let set = instruction_set();
                    let repair = format!(
                        "results are the same on one instruction set (this machine has {set}); make that share again on a machine like the others"
                    );
                    return Err(Error::failed(source, found, repair));
                }
                None => {
                    self.kept.insert(name, bytes);
                    added.push(result);
                }
            }
        }
        self.journal.append(&added)?;
        Ok([added.len(), all - added.len()])
    }
}

impl Project {
    /// Takes the folder, to keep what workers make.
    ///
    /// # Errors
    /// A folder that cannot be used.
    pub fn collector(&self) -> Result<Collector> {
        let mut workplace = None;
        self.claim(&mut workplace)?;
        let settings = self.fingerprints();
        let (trials, fits) = (HashMap::new(), HashMap::new());
        Ok(Collector { _workplace: workplace, settings, trials, fits, ledger: None })
    }

    /// Writes what workers elsewhere need of this folder into another one: the runs of the study, and the ledger.
    ///
    /// # Errors
    /// What the system says.
    pub fn copy_for_workers(&self, to: &Path) -> Result<()> {
        let refused = |path: &Path, e| Error::file(path, e, "make room");
        if let Some(ledger) = self.ledger()? {
            ledger.copy(&to.join(RUNS))?;
        }
        let folders = std::iter::once(self.folder.clone())
            .chain((0..self.settings.len()).map(|index| self.setting_folder(index).path().to_path_buf()));
        let mut seen = HashSet::new();
        for folder in folders.filter(|folder| seen.insert(folder.clone())) {
            let inside = to.join(folder.strip_prefix(&self.root).unwrap_or(Path::new("")));
            std::fs::create_dir_all(&inside).map_err(|e| refused(&inside, e))?;
            for name in ["stages.json", "training.csv"] {
                let source = folder.join(name);
                if source.is_file() {
                    std::fs::copy(&source, inside.join(name)).map_err(|e| refused(&source, e))?;
                }
            }
        }
        Ok(())
    }

    /// Brings in the files of shares: those given, or all in the folder of results. Nothing of any file is kept where one of them is of another
    /// study, seed or version; what is there already stays as it is, so that a second call changes nothing.
    ///
    /// Returns the project as the shares were asked for: flags of a calibration are in their files.
    ///
    /// # Errors
    /// A file that cannot be used, is of something else, or has other results than those that are there.
    pub fn merge(self, given: &[PathBuf]) -> Result<(Self, Merged)> {
        let shards = Shards::within(&self.root);
        let files = if given.is_empty() { shards.all() } else { files_of(given)? };
        if files.is_empty() {
            let found = match given.is_empty() {
                true => format!("there are no files of shares in {}", self.root.display()),
                false => "there are no files of shares".to_owned(),
            };
            return Err(Error::invalid(
                "merge",
                found,
                "do shares first, such as `twostep calibrate STUDY --shard 1/8`",
            ));
        }
        let mut read: Vec<(PathBuf, Vec<Section<Made>>)> = Vec::new();
        for path in files {
            let sections = Journal::<Made>::sections(&path)?;
            read.push((path, sections));
        }
        let project = self.asked_for(&read)?;
        let known = project.fingerprints();
        let (mut wrong, mut merged) = (Vec::new(), Merged::default());
        let mut chosen: Vec<(PathBuf, Section<Made>)> = Vec::new();
        let mut older = 0;
        for (path, sections) in read {
            merged.files += 1;
            for section in sections {
                match project.problem(&section.0, &known) {
                    None => chosen.push((path.clone(), section)),
                    // What was shared out before the study was changed stays where it is.
                    Some(Problem::Earlier) if given.is_empty() => older += 1,
                    Some(problem) => wrong.push(format!("{} {}", path.display(), problem.in_words())),
                }
            }
        }
        if !wrong.is_empty() {
            wrong.dedup();
            let repair = "leave these files out (or remove them), or make them again; nothing was merged";
            return Err(Error::invalid("merge", wrong.join("; "), repair));
        }
        if older > 0 {
            let noun = if older == 1 { "file" } else { "files" };
            merged.notes.push(format!("{older} {noun} of the study as it was before it was changed were left alone"));
        }
        let mut collector = project.collector()?;
        let (mut shares, mut sets): (BTreeMap<Task, HashSet<Share>>, HashSet<String>) = Default::default();
        for (path, (head, made)) in chosen {
            if let Some(shard) = &head.shard {
                shares.entry(shard.task).or_default().insert(shard.share);
            }
            sets.insert(head.instruction_set.clone());
            let [new, known] = collector.keep(&project, &path.display().to_string(), (head, made))?;
            merged.new += new;
            merged.known += known;
        }
        drop(collector);
        if sets.len() > 1 {
            let mut sets: Vec<String> = sets.into_iter().collect();
            sets.sort();
            merged.notes.push(format!(
                "workers had different instruction sets ({}): the last digits may depend on which of them did what",
                sets.join(", ")
            ));
        }
        merged.tasks = shares.keys().copied().collect();
        for (task, shares) in &shares {
            merged.missing.extend(project.missing_of(*task, shares)?);
        }
        Ok((project, merged))
    }

    /// The project with the calibration that the shares were asked for: the largest of them.
    fn asked_for(self, read: &[(PathBuf, Vec<Section<Made>>)]) -> Result<Self> {
        let name = self.settings[0].study.file_name();
        let shards = read.iter().flat_map(|(_, sections)| sections).filter_map(|(head, _)| head.shard.as_ref());
        let asked: Vec<Asked> = shards.filter(|shard| shard.study == name).filter_map(|shard| shard.asked).collect();
        let Some(first) = asked.first().copied() else { return Ok(self) };
        // Those of one study and of another truth are of another campaign, and refused as such.
        let truth = if asked.iter().any(|a| a.truth == self.settings[0].study.calibrate.truth) {
            self.settings[0].study.calibrate.truth
        } else {
            first.truth
        };
        let of_truth = || asked.iter().filter(|a| a.truth == truth);
        let t_trials = of_truth().map(|a| a.t_trials).max().unwrap_or(first.t_trials);
        let i_trials = of_truth().map(|a| a.i_trials).max().unwrap_or(first.i_trials);
        Ok(self.with_calibration(|spec| (spec.truth, spec.t_trials, spec.i_trials) = (truth, t_trials, i_trials)))
    }

    /// What a file may be of, with the setting: simulators, and campaigns.
    fn fingerprints(&self) -> HashMap<String, usize> {
        let simulators = self.settings_by_simulator().into_iter().map(|(simulator, settings)| (simulator, settings[0]));
        // A study that cannot be calibrated can share out its runs.
        let campaigns = self.campaigns().unwrap_or_default().into_iter();
        let campaigns = campaigns.map(|campaign| (campaign.plan.fingerprint, campaign.setting));
        let of_fits = |setting| Some((self.plan(setting).ok()?.of(Stage::Infer).fingerprint.clone(), setting));
        simulators.chain(campaigns).chain((0..self.settings.len()).filter_map(of_fits)).collect()
    }

    /// Why what stands under a heading cannot be brought in.
    fn problem(&self, head: &Heading, known: &HashMap<String, usize>) -> Option<Problem> {
        let study = &self.settings[0].study;
        let Some(Shard { study: name, seed, .. }) = &head.shard else { return Some(Problem::NoShard) };
        if head.version != VERSION {
            return Some(Problem::Version(head.version.clone()));
        }
        if *seed != study.seed {
            return Some(Problem::Seed([*seed, study.seed]));
        }
        if known.contains_key(&head.fingerprint) {
            return None;
        }
        Some(if *name == study.file_name() { Problem::Earlier } else { Problem::Study(name.clone()) })
    }

    /// What there is to do of a task that is shared out; of runs of the simulator those that `failed`, where they are asked for.
    ///
    /// # Errors
    /// What cannot be shared out, and why.
    pub fn units(&self, task: Task, failed: bool) -> Result<Units> {
        let mut units = Units { all: 0, to_do: Vec::new() };
        let of_setting = |setting: usize| {
            let label: Vec<String> = self.settings[setting].label.iter().map(|(k, v)| format!("{k} = {v}")).collect();
            if label.is_empty() { String::new() } else { format!(" of {}", label.join(", ")) }
        };
        match task {
            Task::Calibrate => {
                for campaign in self.campaigns()? {
                    let of = of_setting(campaign.setting);
                    let lacking = campaign.missing(&self.settings[campaign.setting].study.infer.methods).into_iter();
                    units.to_do.extend(lacking.map(|t| (units.all + t, format!("T-trial {}{of}", t + 1))));
                    units.all += campaign.plan.t_trials;
                }
            }
            Task::Infer => {
                for work in self.fit_works()? {
                    let of = of_setting(work.setting);
                    let lacking = work.numbers.iter().enumerate().filter(|(_, s)| !work.kept.contains(s));
                    units.to_do.extend(lacking.map(|(u, s)| (units.all + u, format!("T-draw {}{of}", s + 1))));
                    units.all += work.numbers.len();
                }
            }
            Task::Simulate => {
                self.refuse_unshared_runs()?;
                let (all, runs) = self.asked_runs(failed)?;
                units.all = all;
                units.to_do.extend(runs.into_iter().map(|run| (run, format!("run {}", run + 1))));
            }
        }
        Ok(units)
    }

    /// Units of a task that are missing, by share where all files are of one division.
    fn missing_of(&self, task: Task, shares: &HashSet<Share>) -> Result<Vec<MissingUnits>> {
        let of = shares.iter().next().map_or(1, |share| share.of());
        let is_one_division = shares.iter().all(|share| share.of() == of);
        let missing = self.units(task, false)?.to_do;
        if !is_one_division {
            let units = missing.iter().map(|(unit, _)| unit + 1).collect();
            let words = named(missing.iter().map(|(_, name)| name.clone()).collect());
            return Ok(if missing.is_empty() {
                Vec::new()
            } else {
                vec![MissingUnits { task, share: None, units, words }]
            });
        }
        let mut out = Vec::new();
        for share in (1..=of).filter_map(|k| Share::new(k, of)) {
            let own: Vec<&(usize, String)> = missing.iter().filter(|(unit, _)| share.has(*unit)).collect();
            if own.is_empty() {
                continue;
            }
            let why = if shares.contains(&share) { "did not finish" } else { "has no file" };
            let words = format!("shard {share} {why}: {}", named(own.iter().map(|(_, name)| name.clone()).collect()));
            let units = own.iter().map(|(unit, _)| unit + 1).collect();
            out.push(MissingUnits { task, share: Some(share), units, words });
        }
        Ok(out)
    }
}

/// At most so many units are named one by one.
const NAMED: usize = 5;

fn named(names: Vec<String>) -> String {
    match names.len() {
        n if n > NAMED => format!("{} and {} more are missing", names[..NAMED].join(", "), n - NAMED),
        1 => format!("{} is missing", names[0]),
        _ => format!("{} are missing", names.join(", ")),
    }
}

/// Why a file cannot be brought in.
enum Problem {
    NoShard,
    Version(String),
    Seed([u64; 2]),
    Study(String),
    Earlier,
}

impl Problem {
    fn in_words(&self) -> String {
        match self {
            Self::NoShard => "is a journal, but not of a share".into(),
            Self::Version(version) => format!("was made by version {version}, and this is {VERSION}"),
            Self::Seed([theirs, own]) => format!("was made with seed {theirs}, and the study has {own}"),
            Self::Study(name) => format!("is of another study, {name}"),
            Self::Earlier => "is of the study as it was before it was changed, or with other options".into(),
        }
    }
}

/// The files among these, and those in the folders among them and inside these.
fn files_of(given: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    for path in given {
        if path.is_dir() {
            out.extend(journals(path));
            let entries = std::fs::read_dir(path).map_err(|e| Error::file(path, e, "check the path"))?;
            let mut inside: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|p| p.is_dir()).collect();
            inside.retain(|folder| folder.extension().is_none_or(|e| e != "work"));
            inside.sort();
            out.extend(files_of(&inside)?);
        } else if path.is_file() {
            out.push(path.clone());
        } else {
            let found = "there is no such file or folder";
            return Err(Error::invalid(path.display().to_string(), found, "check the path"));
        }
    }
    Ok(out)
}

impl Collector {
    /// Keeps what a worker sent, as [`Collector::keep`].
    ///
    /// # Errors
    /// As there; what is no journal.
    pub fn keep_lines(&mut self, project: &Project, source: &str, lines: &[u8]) -> Result<[usize; 2]> {
        let mut counts = [0, 0];
        for section in Journal::<Made>::parse(lines, source, None)? {
            let [new, known] = self.keep(project, source, section)?;
            counts = [counts[0] + new, counts[1] + known];
        }
        Ok(counts)
    }

    /// Keeps what a worker made of one campaign or simulator, called `source` in errors; how many results were new, and how many known.
    ///
    /// # Errors
    /// Results of another study or version; results that differ from those that are there; a disk that is full.
    pub fn keep(&mut self, project: &Project, source: &str, (head, made): Section<Made>) -> Result<[usize; 2]> {
        if head.version != VERSION {
            let found = format!("was made by version {}, and this is {VERSION}", head.version);
            return Err(Error::invalid(source, found, "use one version everywhere"));
        }
        let Some(setting) = self.settings.get(&head.fingerprint) else {
            let found = "is of another study, or of this one before it was changed";
            return Err(Error::invalid(source, found, "leave it out"));
        };
        let SortedOut { trials, runs, fits } = SortedOut::of(made);
        let (mut new, mut known) = (0, 0);
        if !runs.is_empty() {
            let study = &project.settings[*setting].study;
            let ledger = match &mut self.ledger {
                Some(ledger) => ledger,
                none => {
                    let ledger = RunLedger::open(&project.root.join(RUNS))?;
                    for setting in &project.settings {
                        super::runs::note_simulator(&ledger, &setting.study)?;
                        super::runs::plan_asked(&ledger, &setting.study)?;
                    }
                    none.insert(ledger)
                }
            };
            let n = ledger.bring_in(&super::runs::fingerprint(study), &runs)?;
            new += n;
            known += runs.len() - n;
        }
        let own = || Heading { shard: None, ..head.clone() };
        let mut add = |[of_new, of_known]: [usize; 2]| {
            new += of_new;
            known += of_known;
        };
        if !trials.is_empty() {
            let gathered = match self.trials.entry(head.fingerprint.clone()) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(free) => {
                    free.insert(Gathered::open(&project.journal(&head.fingerprint), own(), name_of_trial)?)
                }
            };
            add(gathered.add(trials, name_of_trial, source)?);
        }
        if !fits.is_empty() {
            let gathered = match self.fits.entry(head.fingerprint.clone()) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(free) => {
                    free.insert(Gathered::open(&project.fit_journal(&head.fingerprint), own(), name_of_fit)?)
                }
            };
            add(gathered.add(fits, name_of_fit, source)?);
        }
        Ok([new, known])
    }
}

impl Project {
    /// How many runs the study asks for, and the numbers, from zero, of those that have no outcome, or of those that `failed`.
    fn asked_runs(&self, failed: bool) -> Result<(usize, Vec<usize>)> {
        let (mut out, mut first) = (Vec::new(), 0);
        let ledger = self.ledger()?;
        for (simulator, settings) in self.settings_by_simulator() {
            let made = ledger.as_ref().map(|ledger| ledger.made(&simulator)).transpose()?.unwrap_or_default();
            let made: HashMap<(String, usize), bool> =
                made.iter().map(|run| (run.place(), run.outputs.is_none())).collect();
            let is_to_make =
                |point: &(String, usize)| made.get(point).map_or(!failed, |has_failed| failed && *has_failed);
            let studies: Vec<_> = settings.iter().map(|&setting| &self.settings[setting].study).collect();
            let points = super::runs::asked_points(&studies)?;
            out.extend(points.iter().enumerate().filter(|(_, point)| is_to_make(point)).map(|(run, _)| first + run));
            first += points.len();
        }
        Ok((first, out))
    }
}
