//! Trials on disk, one line each, appended as they come: a process that is killed loses those in flight and no other.

use crate::calibrate::{Trial, TrialSink};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What to do about a journal that cannot be used.
const REPAIR: &str = "repair it, or rename or delete it: its trials are then done again";

/// Time after which the next trial is written through to the disk, with all before: a power failure loses the others.
const SYNC: Duration = Duration::from_secs(2);

/// What all trials of a journal have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heading {
    /// Hash of everything that a trial depends on besides its numbers.
    pub fingerprint: String,
    /// Version of this program.
    pub version: String,
    /// Instruction set that it ran on.
    pub instruction_set: String,
}

/// A line of a journal: a heading stands before the trials that were made under it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Heading(Heading),
    Trial(Box<Trial>),
}

/// A file of trials that grows.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    headings: Vec<Heading>,
    file: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// Bytes of whole lines.
    length: u64,
    synced: Instant,
}

/// What a journal holds.
#[derive(Default)]
struct Content {
    /// Bytes of whole lines.
    length: u64,
    headings: Vec<Heading>,
    trials: Vec<Trial>,
}

impl Journal {
    /// The trials of a journal and what made them, none where there is none. What follows the last whole line was cut off by a
    /// crash.
    ///
    /// # Errors
    /// A file that cannot be read, or that is of something else.
    pub fn read(path: &Path, fingerprint: &str) -> Result<(Vec<Trial>, Vec<Heading>)> {
        let content = content(path, fingerprint)?;
        Ok((content.trials, distinct(&content.headings)))
    }

    /// Opens a journal to append to, and makes it where there is none; with the trials that it holds.
    ///
    /// # Errors
    /// As for [`Journal::read`], or a file that cannot be written.
    pub fn open(path: &Path, heading: Heading) -> Result<(Self, Vec<Trial>)> {
        let refused = |e| Error::file(path, e, "make room, or choose a folder you may write to with --out");
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(refused)?;
        }
        let Content { mut length, mut headings, trials } = content(path, &heading.fingerprint)?;
        let mut file = File::options().create(true).append(true).open(path).map_err(refused)?;
        file.set_len(length).map_err(refused)?;
        if headings.last() != Some(&heading) {
            let line = line(&heading);
            file.write_all(&line).map_err(refused)?;
            length += line.len() as u64;
            headings.push(heading);
        }
        let open = Open { file, length, synced: Instant::now() };
        Ok((Self { path: path.to_path_buf(), headings, file: Mutex::new(open) }, trials))
    }

    /// What made its trials, each once.
    pub fn made_by(&self) -> Vec<Heading> {
        distinct(&self.headings)
    }
}

fn distinct(headings: &[Heading]) -> Vec<Heading> {
    let mut distinct: Vec<Heading> = Vec::new();
    for heading in headings {
        if !distinct.contains(heading) {
            distinct.push(heading.clone());
        }
    }
    distinct
}

fn content(path: &Path, fingerprint: &str) -> Result<Content> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)) {
        // A folder that is a file is refused by those who write into it.
        Err(e) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&e.kind()) => return Ok(Content::default()),
        found => found.map_err(|e| Error::file(path, e, REPAIR))?,
    };
    let end = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |newline| newline + 1);
    let mut out = Content { length: end as u64, ..Content::default() };
    for (n, line) in bytes[..end].split_inclusive(|b| *b == b'\n').enumerate() {
        let wrong = |found: String| Error::invalid(format!("{}:{}", path.display(), n + 1), found, REPAIR);
        match serde_json::from_slice(line) {
            Ok(Line::Heading(heading)) if heading.fingerprint != fingerprint => {
                return Err(wrong("holds trials of another study".into()));
            }
            Ok(Line::Heading(heading)) => out.headings.push(heading),
            Ok(Line::Trial(trial)) if n > 0 => out.trials.push(*trial),
            _ => return Err(wrong("is no line of a journal of trials".into())),
        }
    }
    Ok(out)
}

impl TrialSink for Journal {
    fn keep(&self, trials: &[Trial]) -> Result<()> {
        let lines: Vec<u8> = trials.iter().flat_map(line).collect();
        let mut open = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut write = || {
            open.file.write_all(&lines)?;
            open.length += lines.len() as u64;
            if open.synced.elapsed() > SYNC {
                open.file.sync_data()?;
                open.synced = Instant::now();
            }
            Ok(())
        };
        let written = write();
        if written.is_err() {
            // Half a line must not be followed by another; if not even this succeeds, the next process cuts it off.
            let _ = open.file.set_len(open.length);
        }
        written.map_err(|e| Error::file(&self.path, e, "make room and run again: the trials before are kept"))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let open = self.file.get_mut().unwrap_or_else(PoisonError::into_inner);
        // What the system has not written yet it will write, unless the power fails.
        let _ = open.file.sync_data();
    }
}

fn line<T: Serialize>(value: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).expect("these types have string keys");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::Evidence;

    #[test]
    fn what_a_crash_cut_off_is_done_again_and_the_rest_kept() {
        let folder = std::env::temp_dir().join(format!("twostep-journal-{}", std::process::id()));
        let path = folder.join("trials.jsonl");
        let heading = Heading { fingerprint: "f".into(), version: "1".into(), instruction_set: "x".into() };
        let trial = |i_trial: usize| Trial {
            t_trial: 0,
            i_trial,
            method: "e-lik".into(),
            version: None,
            weight: 1.0,
            ranked: Vec::new(),
            evidence: Evidence::default(),
            failed: Some("no reason".into()),
        };
        let (journal, none) = Journal::open(&path, heading.clone()).unwrap();
        assert!(none.is_empty());
        journal.keep(&[trial(0), trial(1)]).unwrap();
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        let mut cut = whole.clone();
        cut.extend_from_slice(&line(&trial(2))[..20]);
        std::fs::write(&path, &cut).unwrap();
        let (journal, kept) = Journal::open(&path, heading.clone()).unwrap();
        assert_eq!(kept, [trial(0), trial(1)]);
        journal.keep(&[trial(2)]).unwrap();
        assert_eq!(Journal::read(&path, "f").unwrap(), (vec![trial(0), trial(1), trial(2)], vec![heading.clone()]));
        assert!(Journal::read(&path, "g").unwrap_err().to_string().contains("another study"));
        drop(journal);
        // Another version goes on, and both are named.
        let newer = Heading { version: "2".into(), ..heading.clone() };
        let (journal, kept) = Journal::open(&path, newer.clone()).unwrap();
        assert_eq!((kept.len(), journal.made_by()), (3, vec![heading, newer]));
        let mut broken = whole;
        broken[0] = b'?';
        std::fs::write(&path, &broken).unwrap();
        assert!(Journal::read(&path, "f").unwrap_err().to_string().contains("no line of a journal"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
