//! Work that is shared out: each worker writes a file of its own, and `merge` brings all of them together.

use super::MadeRun;
use crate::calibrate::{Trial, Truth};
use crate::error::Result;
use crate::infer::Fit;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Name of the folder of shards in a study's folder of results.
pub const SHARDS: &str = "shards";

/// What is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Runs of the simulator.
    Simulate,
    /// Fits of E-Post, one for each T-draw.
    Infer,
    /// Trials of a calibration.
    Calibrate,
}

impl Task {
    /// All, in the order of a study.
    pub const ALL: [Self; 3] = [Self::Simulate, Self::Infer, Self::Calibrate];

    /// A unit of its work.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Simulate => "run",
            Self::Infer => "fit",
            Self::Calibrate => "T-trial",
        }
    }

    /// Its command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Simulate => "simulate",
            Self::Infer => "infer",
            Self::Calibrate => "calibrate",
        }
    }
}

/// One of so many equal shares, from one: `3/100`. Unit u of the work belongs to share `1 + u mod n`, whatever is done already: so every worker
/// knows its own without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Share {
    number: usize,
    of: usize,
}

impl Share {
    /// All of the work.
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    /// Share `number` of so many; none where there is no such share.
    pub fn new(number: usize, of: usize) -> Option<Self> {
        (1..=of).contains(&number).then_some(Self { number, of })
    }

    /// Whether a unit, counted from zero, belongs to it.
    pub fn has(self, unit: usize) -> bool {
        unit % self.of == self.number - 1
    }

    /// Its number, from one.
    pub fn number(self) -> usize {
        self.number
    }

    /// Number of shares.
    pub fn of(self) -> usize {
        self.of
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl From<Share> for String {
    fn from(share: Share) -> Self {
        share.to_string()
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.trim().parse::<usize>().ok();
        let numbers = text.split_once('/').and_then(|(k, n)| Some((number(k)?, number(n)?)));
        let share = numbers.and_then(|(k, n)| Self::new(k, n));
        share.ok_or_else(|| format!("`{text}` is no share: write k/n, from 1/n to n/n, like 3/100"))
    }
}

impl TryFrom<String> for Share {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// What a worker made, a line of its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Made {
    /// The outcome of a trial by one method.
    Trial(Trial),
    /// A run of the simulator.
    Run(MadeRun),
    /// The posterior of a T-draw.
    Fit(Fit),
}

/// What a shard's file says of itself, so that one of another study is known for what it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shard {
    /// What was shared out.
    pub task: Task,
    /// Which share it is.
    pub share: Share,
    /// Name of the study's file.
    pub study: String,
    /// The study's seed.
    pub seed: u64,
    /// What was asked for, of a calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
}

/// What flags may ask of a calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Where truths and data come from.
    #[serde(with = "truth")]
    pub truth: Truth,
    /// Number of T-trials.
    pub t_trials: usize,
    /// I-trials of each.
    pub i_trials: usize,
}

/// Truths by their names in the study file.
mod truth {
    use super::Truth;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(truth: &Truth, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(truth.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Truth, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = Truth::ALL.into_iter().find(|truth| truth.name() == name);
        known.ok_or_else(|| serde::de::Error::custom(format!("there is no truth `{name}`")))
    }
}

/// The folder of shards inside a folder of results.
#[derive(Clone, Debug)]
pub struct Shards {
    folder: PathBuf,
}

impl Shards {
    /// Those of the results in `root`.
    pub fn within(root: &Path) -> Self {
        Self { folder: root.join(SHARDS) }
    }

    /// The folder of all shards of one piece of work.
    fn work(&self, task: Task, fingerprint: &str) -> PathBuf {
        self.folder.join(format!("{}-{}", task.name(), &fingerprint[..fingerprint.len().min(16)]))
    }

    /// The file of a share.
    pub fn file(&self, task: Task, fingerprint: &str, share: Share) -> PathBuf {
        self.work(task, fingerprint).join(format!("{}-of-{}.jsonl", share.number, share.of))
    }

    /// The files of a piece of work, in order.
    pub fn files(&self, task: Task, fingerprint: &str) -> Vec<PathBuf> {
        journals(&self.work(task, fingerprint))
    }

    /// All files, in order.
    pub fn all(&self) -> Vec<PathBuf> {
        let folders = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut folders: Vec<PathBuf> = folders.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        folders.sort();
        folders.iter().flat_map(|folder| journals(folder)).collect()
    }
}

/// The journals in a folder, in order.
pub fn journals(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|e| e == "jsonl")).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_divide_the_work_and_say_what_is_wrong() {
        for of in 1..9 {
            let shares: Vec<Share> = (1..=of).map(|k| Share::new(k, of).unwrap()).collect();
            for unit in 0..30 {
                assert_eq!(shares.iter().filter(|share| share.has(unit)).count(), 1);
            }
        }
        assert_eq!("3/100".parse::<Share>().unwrap().to_string(), "3/100");
        for wrong in ["", "3", "0/3", "4/3", "a/b", "1/0", "-1/3"] {
            assert!(wrong.parse::<Share>().unwrap_err().contains("write k/n"), "{wrong}");
        }
    }
}
