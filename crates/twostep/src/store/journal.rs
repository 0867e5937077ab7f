//! Trials on disk, one line each, appended as they come: a process that is killed loses those in flight and no other.

use crate::calibrate::{Trial, TrialSink};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What to do about a journal that cannot be used.
const REPAIR: &str = "repair it, or rename or delete it: its trials are then done again";

/// Longest time that trials may be in the hands of the system alone, which a power failure would lose.
const UNSAFE: Duration = Duration::from_secs(2);

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

/// A file of trials that grows.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Mutex<(File, Instant)>,
}

impl Journal {
    /// The trials of a journal, none where there is none. What follows the last whole line was cut off by a crash.
    ///
    /// # Errors
    /// A file that cannot be read, or that is of something else.
    pub fn read(path: &Path, fingerprint: &str) -> Result<Vec<Trial>> {
        Ok(Self::whole(path, fingerprint)?.1)
    }

    /// Opens a journal to append to, and makes it where there is none; with the trials that it holds.
    ///
    /// # Errors
    /// As for [`Journal::read`], or a file that cannot be written.
    pub fn open(path: &Path, heading: &Heading) -> Result<(Self, Vec<Trial>)> {
        let refused = |e| Error::file(path, e, "make room, or choose a folder you may write to with --out");
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(refused)?;
        }
        let (length, trials) = Self::whole(path, &heading.fingerprint)?;
        let mut file = File::options().create(true).append(true).open(path).map_err(refused)?;
        file.set_len(length).map_err(refused)?;
        if length == 0 {
            file.write_all(&line(heading)).map_err(refused)?;
        }
        Ok((Self { path: path.to_path_buf(), file: Mutex::new((file, Instant::now())) }, trials))
    }

    /// Length of the whole lines, and their trials.
    fn whole(path: &Path, fingerprint: &str) -> Result<(u64, Vec<Trial>)> {
        let mut bytes = Vec::new();
        match File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok((0, Vec::new())),
            found => found.map_err(|e| Error::file(path, e, REPAIR))?,
        };
        let end = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |newline| newline + 1);
        let mut lines = bytes[..end].split_inclusive(|b| *b == b'\n');
        let Some(first) = lines.next() else { return Ok((0, Vec::new())) };
        let wrong = |n: usize, found: String| Error::invalid(format!("{}:{n}", path.display()), found, REPAIR);
        let heading: Heading =
            serde_json::from_slice(first).map_err(|e| wrong(1, format!("is no journal of trials: {e}")))?;
        if heading.fingerprint != fingerprint {
            return Err(wrong(1, "holds trials of another study".into()));
        }
        let trial = |(n, line): (usize, &[u8])| {
            serde_json::from_slice(line).map_err(|e| wrong(n + 2, format!("cannot be read: {e}")))
        };
        Ok((end as u64, lines.enumerate().map(trial).collect::<Result<_>>()?))
    }
}

impl TrialSink for Journal {
    fn keep(&self, trials: &[Trial]) -> Result<()> {
        let lines: Vec<u8> = trials.iter().flat_map(line).collect();
        let mut guard = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, synced) = &mut *guard;
        let mut write = || {
            file.write_all(&lines)?;
            if synced.elapsed() > UNSAFE {
                file.sync_data()?;
                *synced = Instant::now();
            }
            Ok(())
        };
        write().map_err(|e| Error::file(&self.path, e, "make room and run again: the trials before are kept"))
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
            weight: 1.0,
            ranked: Vec::new(),
            evidence: Evidence::default(),
            failed: Some("no reason".into()),
        };
        let (journal, none) = Journal::open(&path, &heading).unwrap();
        assert!(none.is_empty());
        journal.keep(&[trial(0), trial(1)]).unwrap();
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        let mut cut = whole.clone();
        cut.extend_from_slice(&line(&trial(2))[..20]);
        std::fs::write(&path, &cut).unwrap();
        let (journal, kept) = Journal::open(&path, &heading).unwrap();
        assert_eq!(kept, [trial(0), trial(1)]);
        journal.keep(&[trial(2)]).unwrap();
        assert_eq!(Journal::read(&path, "f").unwrap(), [trial(0), trial(1), trial(2)]);
        assert!(Journal::read(&path, "g").unwrap_err().to_string().contains("another study"));
        let mut broken = whole;
        broken[0] = b'?';
        std::fs::write(&path, &broken).unwrap();
        assert!(Journal::read(&path, "f").unwrap_err().to_string().contains("no journal"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
