//! `twostep submit`: a Slurm array of shards, and the merge that comes after it, as scripts that can be read, edited and submitted.

use crate::arguments::Global;
use crate::commands::calibrate::Trials;
use crate::failure::Failure;
use crate::output;
use crate::session;
use clap::ValueEnum;
use serde_json::json;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use twostep::Error;
use twostep::run::{Project, Units};
use twostep::store::{SHARDS, Task};
use twostep::table::{counted, write_atomically};

/// What is written, after `twostep submit --help`.
pub(crate) const ABOUT: &str = "\
Three scripts are written into shards/slurm in the folder of results: the array, whose tasks each
do one shard, the merge, which begins when the last of them has ended, however it did, and
submit.sh, which hands both to Slurm. Read them, then run submit.sh, or give --now.

Of simulator runs each task makes one; of a calibration or of the fits of E-Post --shards says
into how many shards they are divided. Only shards in which something is missing are submitted:
after failures, time limits or a larger study the same command submits the rest.

What your cluster wants (partition, time limit, memory, modules, an environment) goes into a
template: `twostep submit --print-template > my.slurm`, edit it, and give --template my.slurm.
Its markers are {{ directives }}, for the lines that are particular to a job, and {{ command }}.
Folder of results, study and program must have the same paths on all nodes.";

/// Tasks of an array where nothing else is asked for.
const USUAL_SHARDS: usize = 100;

/// Slurm refuses numbers of tasks from here on, unless its administrator allows more.
const MOST_TASKS: usize = 1000;

/// Says where later arrays begin whose tasks could not be numbered on.
const FIRST: &str = "TWOSTEP_FIRST";

const TEMPLATE: &str = "\
#!/bin/bash
{{ directives }}
#SBATCH --cpus-per-task=1
# What your cluster wants, such as these without their second #:
##SBATCH --partition=short
##SBATCH --time=04:00:00
##SBATCH --mem=2G
# module load python

{{ command }}
";

const DIRECTIVES: &str = "{{ directives }}";
const COMMAND: &str = "{{ command }}";

/// Arguments of `submit`.
#[derive(Debug, clap::Args)]
pub(crate) struct Submit {
    /// The study file
    #[arg(required_unless_present = "print_template")]
    study: Option<PathBuf>,
    /// What is divided
    #[arg(value_enum, default_value = "simulate")]
    work: Work,
    /// For Slurm
    #[arg(long, required_unless_present = "print_template")]
    slurm: bool,
    /// Runs to make: those that have not been made, or once more those that failed
    #[arg(long, value_name = "WHICH", value_enum)]
    only: Option<Which>,
    /// Number of shards [default: the number of runs; otherwise 100, or one a T-trial or T-draw where these are fewer]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    shards: Option<u32>,
    /// Script with what your cluster wants, in place of the built-in one
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// Print the built-in template, to be edited
    #[arg(long)]
    print_template: bool,
    /// Submit at once, with sbatch
    #[arg(long)]
    now: bool,
    #[command(flatten)]
    trials: Trials,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Work {
    /// Runs of the simulator, one a task
    Simulate,
    /// Fits of E-Post by NUTS
    Infer,
    /// T-trials of a calibration
    Calibrate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    Pending,
    Failed,
}

/// An array of jobs: which shards of how many.
struct Shards {
    of: usize,
    numbers: Vec<usize>,
}

impl Shards {
    fn new(units: &Units, of: usize) -> Self {
        let numbers: BTreeSet<usize> = units.to_do.iter().map(|(unit, _)| 1 + unit % of).collect();
        Self { of, numbers: numbers.into_iter().collect() }
    }

    /// Numbers for `sbatch --array`, and what is to be added to them: as many arrays as Slurm's limit asks for.
    fn arrays(&self) -> Vec<(String, usize)> {
        let blocks: BTreeSet<usize> = self.numbers.iter().map(|n| (n - 1) / MOST_TASKS).collect();
        let of_block = |block: &usize| {
            let first = block * MOST_TASKS;
            let own: Vec<usize> =
                self.numbers.iter().filter(|n| (*n - 1) / MOST_TASKS == *block).map(|n| n - first).collect();
            (ranges(&own), first)
        };
        blocks.iter().map(of_block).collect()
    }
}

/// `1-3,7`.
fn ranges(numbers: &[usize]) -> String {
    let mut out: Vec<(usize, usize)> = Vec::new();
    for &n in numbers {
        match out.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => out.push((n, n)),
        }
    }
    let text = |(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    out.iter().map(text).collect::<Vec<_>>().join(",")
}

impl Submit {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let Some(study) = self.study.as_ref().filter(|_| !self.print_template) else {
            return Ok(output::print(TEMPLATE)?);
        };
        let task = match self.work {
            Work::Simulate => Task::Simulate,
            Work::Infer => Task::Infer,
            Work::Calibrate => Task::Calibrate,
        };
        self.refuse_others(task)?;
        let template = self.template()?;
        let project = self.trials.applied(session::open(study, global, None)?);
        let units = project.units(task, self.only == Some(Which::Failed))?;
        if units.to_do.is_empty() {
            let nothing = match self.only {
                Some(Which::Failed) => "no run has failed",
                _ => "nothing is left to do",
            };
            return match global.json {
                true => super::print_json(&json!({ "task": task.name(), "shards": [], "scripts": [], "jobs": [] })),
                false => Ok(output::print(&format!("{nothing}; nothing was written\n"))?),
            };
        }
        let usual = if task == Task::Simulate { units.all } else { units.all.min(USUAL_SHARDS) };
        let shards = Shards::new(&units, self.shards.map_or(usual, |n| n as usize));
        let scripts = self.write(study, task, &project, &shards, &template, global)?;
        let jobs = if self.now { submitted(&scripts.submit)? } else { Vec::new() };
        if global.json {
            return super::print_json(&json!({
                "task": task.name(), "shards": shards.numbers, "of": shards.of, "units": units.to_do.len(),
                "scripts": [scripts.array, scripts.merge, scripts.submit], "jobs": jobs,
            }));
        }
        let mut text = format!(
            "{} to do, in {} of {}\nscripts in {}\n",
            counted(units.to_do.len(), task.unit()),
            counted(shards.numbers.len(), "task"),
            counted(shards.of, "shard"),
            scripts.folder.display()
        );
        match jobs.as_slice() {
            [] => writeln!(text, "submit them: sh {}", quoted(&scripts.submit.display().to_string())),
            [arrays @ .., merge] => writeln!(text, "submitted: array {}, then merge {merge}", arrays.join(", ")),
        }
        .unwrap_or_default();
        Ok(output::print(&text)?)
    }

    fn refuse_others(&self, task: Task) -> Result<(), Error> {
        if self.only.is_some() && task != Task::Simulate {
            let found = format!("is for runs of the simulator: a {} that failed would fail again", task.unit());
            return Err(Error::invalid("--only", found, "leave it out; what is missing is submitted anyway"));
        }
        if self.trials.any() && task != Task::Calibrate {
            let found = "--t-trials, --i-trials and --truth are for calibrations";
            return Err(Error::invalid(
                "submit",
                found,
                "leave them out, or write `twostep submit STUDY calibrate --slurm`",
            ));
        }
        Ok(())
    }

    fn template(&self) -> Result<String, Error> {
        let Some(path) = &self.template else { return Ok(TEMPLATE.into()) };
        let text = std::fs::read_to_string(path).map_err(|e| Error::file(path, e, "check the path"))?;
        let place = || path.display().to_string();
        let repair = "`twostep submit --print-template` shows one that has all";
        for marker in [DIRECTIVES, COMMAND] {
            if !text.lines().any(|line| line.trim() == marker) {
                return Err(Error::invalid(place(), format!("has no line `{marker}`"), repair));
            }
        }
        if !text.starts_with("#!") {
            return Err(Error::invalid(place(), "does not begin with `#!`, which Slurm asks for", repair));
        }
        // sbatch stops reading directives at the first line that is something else.
        let before = text.lines().take_while(|line| line.trim() != DIRECTIVES);
        let is_comment = |line: &str| line.trim().is_empty() || line.starts_with('#');
        match before.enumerate().find(|(_, line)| !is_comment(line)) {
            Some((n, _)) => {
                let found = format!("has a command above `{DIRECTIVES}`, after which Slurm reads no directives");
                Err(Error::invalid(format!("{}:{}", place(), n + 1), found, "move it below"))
            }
            None => Ok(text),
        }
    }

    fn write(
        &self,
        study: &Path,
        task: Task,
        project: &Project,
        shards: &Shards,
        template: &str,
        global: &Global,
    ) -> Result<Scripts, Error> {
        let whole = |path: &Path| std::path::absolute(path).map_err(|e| Error::file(path, e, "check the path"));
        let (study, results) = (whole(study)?, whole(project.folder())?);
        let folder = results.join(SHARDS).join("slurm");
        std::fs::create_dir_all(&folder)
            .map_err(|e| Error::file(&folder, e, "choose a folder you may write to with --out"))?;
        let name = study.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let flags = self.flags(&results, global);
        let [program, file] = [program()?, study].map(|path| quoted(&path.display().to_string()));
        let directives = |job: &str, log: &str| {
            let log = folder.join(log).display().to_string();
            format!("#SBATCH --job-name={}\n#SBATCH --output={}", quoted(&format!("{name}-{job}")), quoted(&log))
        };
        let only = if self.only == Some(Which::Failed) { " --only failed" } else { "" };
        let trials = self.trials.as_flags();
        let own = format!(
            "shard=$((${{{FIRST}:-0}} + SLURM_ARRAY_TASK_ID))\n\
             {program} {} {file} --shard \"$shard/{}\"{only}{trials}{flags} --threads \"${{SLURM_CPUS_PER_TASK:-1}}\"",
            task.name(),
            shards.of
        );
        let scripts = Scripts {
            array: folder.join(format!("{}.sh", task.name())),
            merge: folder.join("merge.sh"),
            submit: folder.join("submit.sh"),
            folder: folder.clone(),
        };
        let fill = |directives: &str, command: &str| {
            let filled = |line: &str| match line.trim() {
                DIRECTIVES => directives.to_owned(),
                COMMAND => command.to_owned(),
                _ => line.to_owned(),
            };
            template.lines().map(filled).collect::<Vec<_>>().join("\n") + "\n"
        };
        // Numbers of several arrays begin anew, but not their logs, which have the number of the job.
        let array = fill(&directives(task.name(), &format!("{}-%A_%a.out", task.name())), &own);
        let merge = fill(
            &directives("merge", "merge-%j.out"),
            &format!("{program} merge {file}{flags} --threads \"${{SLURM_CPUS_PER_TASK:-1}}\""),
        );
        let [array_script, merge_script] =
            [&scripts.array, &scripts.merge].map(|path| quoted(&path.display().to_string()));
        let mut submit =
            String::from("#!/bin/sh\n# Prints the numbers of the jobs, the merge last.\nset -eu\narrays=\n");
        for (numbers, first) in shards.arrays() {
            let begins = if first > 0 { format!(" --export=ALL,{FIRST}={first}") } else { String::new() };
            let _ = write!(
                submit,
                "job=$(sbatch --parsable --array={numbers}{begins} {array_script})\njob=${{job%%;*}}\necho \"$job\"\narrays=$arrays:$job\n"
            );
        }
        let _ = writeln!(submit, "sbatch --parsable --dependency=\"afterany$arrays\" {merge_script}");
        for (path, text) in [(&scripts.array, &array), (&scripts.merge, &merge), (&scripts.submit, &submit)] {
            write_atomically(path, text.as_bytes())?;
        }
        Ok(scripts)
    }

    fn flags(&self, results: &Path, global: &Global) -> String {
        let mut text = format!(" --out {}", quoted(&results.display().to_string()));
        if let Some(seed) = global.seed {
            let _ = write!(text, " --seed {seed}");
        }
        text
    }
}

/// What was written.
struct Scripts {
    folder: PathBuf,
    array: PathBuf,
    merge: PathBuf,
    submit: PathBuf,
}

/// Numbers of the jobs, the merge last.
fn submitted(script: &Path) -> Result<Vec<String>, Error> {
    let failed = |found: String| {
        let repair = format!("the scripts are written; correct that, and run sh {}", script.display());
        Error::failed("sbatch", found, repair)
    };
    let done = Command::new("sh").arg(script).output().map_err(|e| failed(e.to_string()))?;
    if !done.status.success() {
        return Err(failed(String::from_utf8_lossy(&done.stderr).trim().to_owned()));
    }
    let of_line = |line: &str| line.split(';').next().unwrap_or_default().trim().to_owned();
    Ok(String::from_utf8_lossy(&done.stdout).lines().map(of_line).filter(|job| !job.is_empty()).collect())
}

/// This program: the binary, or the command that the Python package installs.
fn program() -> Result<PathBuf, Error> {
    let own = std::env::current_exe().ok().filter(|path| path.file_stem().is_some_and(|stem| stem == "twostep"));
    let found = own.or_else(|| {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&folders).map(|folder| folder.join("twostep")).find(|path| path.is_file())
    });
    found.ok_or_else(|| {
        let found = "`twostep` is in none of the folders of PATH, so that jobs could not find it";
        Error::invalid("submit", found, "activate the environment that it is installed in")
    })
}

/// A word for the shell, and for a directive.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=%,:@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(of: usize, units: &[usize]) -> Shards {
        let to_do = units.iter().map(|&unit| (unit, String::new())).collect();
        Shards::new(&Units { all: 5000, to_do }, of)
    }

    #[test]
    fn arrays_have_the_shards_in_which_something_is_missing() {
        assert_eq!(shards(8, &[0, 1, 2, 4, 10]).arrays(), [("1-3,5".into(), 0)]);
        let far = shards(2500, &[0, 999, 1000, 1001, 2100]).arrays();
        assert_eq!(far, [("1,1000".into(), 0), ("1-2".into(), 1000), ("101".into(), 2000)]);
        assert!(shards(3, &[]).arrays().is_empty());
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(quoted("/a/b-1.toml"), "/a/b-1.toml");
        assert_eq!(quoted("my study's"), r"'my study'\''s'");
    }
}
