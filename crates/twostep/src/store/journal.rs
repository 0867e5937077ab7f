//! Results on disk, one line each, appended as they come: a process that is killed loses those in flight and no other.

use super::Shard;
use crate::calibrate::{Trial, TrialSink};
use crate::error::{Error, Result};
use crate::table::write_atomically;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What to do about a journal that cannot be used.
const REPAIR: &str = "repair it, or rename or delete it: what it holds is then done again";

/// Time after which the next result is written through to the disk, with all before: a power failure loses the others.
const SYNC: Duration = Duration::from_secs(2);

/// What all results that follow in a journal have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heading {
    /// Hash of everything that a result depends on besides its numbers.
    pub fingerprint: String,
    /// Version of this program.
    pub version: String,
    /// Instruction set that it ran on.
    pub instruction_set: String,
    /// Which part of the work it is, where that was shared out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
}

/// A line of a journal: a heading stands before the results that were made under it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line<R> {
    Heading(Heading),
    Result(Box<R>),
}

/// A heading, and the results that were made under it.
pub type Section<R> = (Heading, Vec<R>);

/// A file of results that grows: of trials, unless another kind is said.
#[derive(Debug)]
pub struct Journal<R = Trial> {
    path: PathBuf,
    headings: Vec<Heading>,
    file: Mutex<Open>,
    kind: PhantomData<fn(R)>,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// Bytes of whole lines.
    length: u64,
    synced: Instant,
}

impl<R: Serialize + DeserializeOwned> Journal<R> {
    /// The results of a journal and what made them, none where there is none. What follows the last whole line was cut off by a
    /// crash, or is being written.
    ///
    /// # Errors
    /// A file that cannot be read, or that is of something else.
    pub fn read(path: &Path, fingerprint: &str) -> Result<(Vec<R>, Vec<Heading>)> {
        let (headings, results) = Self::content(path, Some(fingerprint))?.0.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
        Ok((results.into_iter().flatten().collect(), distinct(&headings)))
    }

    /// The results of a journal of whatever study, by what made them.
    ///
    /// # Errors
    /// A file that cannot be read, or that is no journal of such results.
    pub fn sections(path: &Path) -> Result<Vec<Section<R>>> {
        Ok(Self::content(path, None)?.0)
    }

    /// Opens a journal to append to, and makes it where there is none; with the results that it holds. No other process can open it meanwhile.
    ///
    /// # Errors
    /// As for [`Journal::read`], a file that cannot be written, or one that another process is writing.
    pub fn open(path: &Path, heading: Heading) -> Result<(Self, Vec<R>)> {
        let refused = |e| Error::file(path, e, "make room, or choose a folder you may write to with --out");
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(refused)?;
        }
        let mut file = File::options().create(true).append(true).open(path).map_err(refused)?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            let found = "another process is writing it";
            return Err(Error::failed(
                path.display().to_string(),
                found,
                "wait until that one has finished, or end it",
            ));
        }
        let (sections, mut length) = Self::content(path, Some(&heading.fingerprint))?;
        let (mut headings, results) = sections.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
        file.set_len(length).map_err(refused)?;
        if headings.last() != Some(&heading) {
            let line = line(&heading);
            file.write_all(&line).map_err(refused)?;
            length += line.len() as u64;
            headings.push(heading);
        }
        let open = Open { file, length, synced: Instant::now() };
        let journal = Self { path: path.to_path_buf(), headings, file: Mutex::new(open), kind: PhantomData };
        Ok((journal, results.into_iter().flatten().collect()))
    }

    /// Appends results.
    ///
    /// # Errors
    /// What the system says; what was there before stays.
    pub fn append(&self, results: &[R]) -> Result<()> {
        let lines: Vec<u8> = results.iter().flat_map(line).collect();
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
        written.map_err(|e| Error::file(&self.path, e, "make room and run again: what was finished before is kept"))
    }

    /// Puts the results of a journal in the order of a key, those of each heading: so that it does not depend on which were finished first.
    ///
    /// # Errors
    /// As for [`Journal::read`], or a file that cannot be written; what it held then stays.
    pub fn arrange<K: Ord>(path: &Path, fingerprint: &str, key: impl Fn(&R) -> K) -> Result<()> {
        let (sections, length) = Self::content(path, Some(fingerprint))?;
        let before = Self::bytes(&sections);
        let mut arranged: Vec<Section<R>> = Vec::new();
        for (heading, results) in sections {
            match arranged.iter_mut().find(|(other, _)| *other == heading) {
                Some((_, all)) => all.extend(results),
                None => arranged.push((heading, results)),
            }
        }
        // A heading under which nothing was made says nothing.
        arranged.retain(|(_, results)| !results.is_empty());
        arranged.iter_mut().for_each(|(_, results)| results.sort_by_key(&key));
        let after = Self::bytes(&arranged);
        if after.len() as u64 > length || after == before { Ok(()) } else { write_atomically(path, &after) }
    }

    /// The bytes of a journal with these sections.
    pub fn bytes(sections: &[Section<R>]) -> Vec<u8> {
        sections
            .iter()
            .flat_map(|(heading, results)| [line(heading), results.iter().flat_map(line).collect()].concat())
            .collect()
    }

    /// Sections of a journal, and the bytes of its whole lines.
    fn content(path: &Path, fingerprint: Option<&str>) -> Result<(Vec<Section<R>>, u64)> {
        let mut bytes = Vec::new();
        match File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)) {
            // A folder that is a file is refused by those who write into it.
            Err(e) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&e.kind()) => {
                return Ok((Vec::new(), 0));
            }
            found => found.map_err(|e| Error::file(path, e, REPAIR))?,
        };
        let end = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |newline| newline + 1);
        Ok((Self::parse(&bytes[..end], &path.display().to_string(), fingerprint)?, end as u64))
    }

    /// The sections of a journal's whole lines; `place` is what errors call it. None may have another fingerprint, where one is given.
    ///
    /// # Errors
    /// What is no journal of such results.
    pub fn parse(lines: &[u8], place: &str, fingerprint: Option<&str>) -> Result<Vec<Section<R>>> {
        let mut out: Vec<Section<R>> = Vec::new();
        for (n, line) in lines.split_inclusive(|b| *b == b'\n').enumerate() {
            let wrong = |found: &str| Err(Error::invalid(format!("{place}:{}", n + 1), found, REPAIR));
            match (serde_json::from_slice(line), out.last_mut()) {
                (Ok(Line::Heading(heading)), _) if fingerprint.is_some_and(|own| heading.fingerprint != own) => {
                    return wrong("holds trials of another study");
                }
                (Ok(Line::Heading(heading)), _) => out.push((heading, Vec::new())),
                (Ok(Line::Result(result)), Some((_, results))) => results.push(*result),
                _ => return wrong("is no line of a journal of trials"),
            }
        }
        Ok(out)
    }
}

impl<R> Journal<R> {
    /// What made its results, each once.
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

impl TrialSink for Journal {
    fn keep(&self, trials: &[Trial]) -> Result<()> {
        self.append(trials)
    }
}

impl<R> Drop for Journal<R> {
    fn drop(&mut self) {
        let open = self.file.get_mut().unwrap_or_else(PoisonError::into_inner);
        // What the system has not written yet it will write, unless the power fails.
        let _ = open.file.sync_data();
        // By name: processes that were forked meanwhile have the file open as well.
        let _ = open.file.unlock();
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
        let heading =
            Heading { fingerprint: "f".into(), version: "1".into(), instruction_set: "x".into(), shard: None };
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
        let second = Journal::<Trial>::open(&path, heading.clone()).unwrap_err().to_string();
        assert!(second.contains("another process is writing it"), "{second}");
        journal.keep(&[trial(2)]).unwrap();
        assert_eq!(Journal::read(&path, "f").unwrap(), (vec![trial(0), trial(1), trial(2)], vec![heading.clone()]));
        assert!(Journal::<Trial>::read(&path, "g").unwrap_err().to_string().contains("another study"));
        drop(journal);
        // Another version goes on, and both are named.
        let newer = Heading { version: "2".into(), ..heading.clone() };
        let (journal, kept) = Journal::<Trial>::open(&path, newer.clone()).unwrap();
        assert_eq!((kept.len(), journal.made_by()), (3, vec![heading, newer]));
        let mut broken = whole;
        broken[0] = b'?';
        std::fs::write(&path, &broken).unwrap();
        assert!(Journal::<Trial>::read(&path, "f").unwrap_err().to_string().contains("no line of a journal"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
