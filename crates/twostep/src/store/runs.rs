//! The run ledger: every run of a simulator outside this process, its inputs, what it gave and how, in one SQLite file.

use crate::error::{Error, Result};
use crate::simulate::Reading;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Name of the ledger in a study's folder.
pub const RUNS: &str = "runs.sqlite";

/// Number of the tables' layout; kept in the file as its `user_version`.
const LAYOUT: i64 = 1;

const TABLES: &str = "
CREATE TABLE ledger (identity TEXT NOT NULL);
CREATE TABLE simulators (fingerprint TEXT PRIMARY KEY, parts TEXT NOT NULL, superseded INTEGER NOT NULL DEFAULT 0);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    simulator TEXT NOT NULL REFERENCES simulators (fingerprint),
    inputs TEXT NOT NULL,
    replicate INTEGER NOT NULL,
    source TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('pending', 'running', 'done', 'failed')),
    outputs TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    seconds REAL,
    reason TEXT,
    process_group INTEGER,
    UNIQUE (simulator, inputs, replicate)
);
";

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// To be made.
    Pending,
    /// Started; if no process works on the ledger, it was interrupted.
    Running,
    /// Finished, with outputs.
    Done,
    /// Finished without outputs, for a reason.
    Failed,
}

impl RunState {
    /// All, in the order of a run's life.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Running, Self::Done, Self::Failed];

    /// Its name in the ledger.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// Why a run is in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunSource {
    /// The study's design asks for it.
    Design,
    /// A calibration's trial asked for it.
    Calibrate,
    /// A verification of the answer asks for it, and is not written down yet.
    Verifying,
    /// It verified the answer, and trains the surrogate from then on.
    Verify,
    /// It was made elsewhere; it trains the surrogate.
    Import,
    /// Synthetic measurements are of it.
    Truth,
}

impl RunSource {
    const ALL: [Self; 6] = [Self::Design, Self::Calibrate, Self::Verifying, Self::Verify, Self::Import, Self::Truth];

    /// Its name in the ledger.
    pub fn name(self) -> &'static str {
        match self {
            Self::Design => "design",
            Self::Calibrate => "calibrate",
            Self::Verifying => "verifying",
            Self::Verify => "verify",
            Self::Import => "import",
            Self::Truth => "truth",
        }
    }

    /// Whether such a run trains the surrogate though no design asks for it.
    pub fn is_extra(self) -> bool {
        matches!(self, Self::Verify | Self::Import)
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Its number, which it keeps.
    pub id: i64,
    /// Fingerprint of the simulator.
    pub simulator: String,
    /// Inputs by name, in the order of the names.
    pub inputs: Vec<(String, f64)>,
    /// Which of several runs at the same inputs, from zero.
    pub replicate: usize,
    /// Why it is there.
    pub source: RunSource,
    /// How far it has come.
    pub state: RunState,
    /// What it gave, by output.
    pub outputs: Option<Vec<(String, Reading)>>,
    /// How often it was started.
    pub attempts: usize,
    /// How long the last attempt took.
    pub seconds: Option<f64>,
    /// Why it failed.
    pub reason: Option<String>,
    /// Process group of the last attempt, while it runs.
    pub process_group: Option<i32>,
}

impl Run {
    /// What the run gave of these outputs; `None` if one is missing.
    pub fn readings(&self, outputs: &[String]) -> Option<Vec<Reading>> {
        let all = self.outputs.as_ref()?;
        let of = |name: &String| all.iter().find(|(other, _)| other == name).map(|(_, reading)| reading.clone());
        outputs.iter().map(of).collect()
    }
}

/// A simulator of which there are runs.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownSimulator {
    /// What its runs are found by.
    pub fingerprint: String,
    /// What it was made of, by the place in the study file.
    pub parts: Vec<(String, String)>,
}

/// A point where a run is wanted: inputs by name, and which of several runs at them.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Inputs by name.
    pub inputs: Vec<(String, f64)>,
    /// Which of several runs at the same inputs, from zero.
    pub replicate: usize,
}

impl Point {
    /// What tells it from other runs of its simulator: its inputs as a text, and its number among those with the same.
    pub fn place(&self) -> (String, usize) {
        (key(&self.inputs), self.replicate)
    }

    /// The points with these inputs, equal ones numbered.
    pub fn numbered(all: Vec<Vec<(String, f64)>>) -> Vec<Self> {
        let mut seen = std::collections::HashMap::new();
        all.into_iter()
            .map(|inputs| {
                let count = seen.entry(key(&inputs)).or_insert(0);
                *count += 1;
                Self { inputs, replicate: *count - 1 }
            })
            .collect()
    }
}

/// A finished run as a worker tells of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MadeRun {
    /// Inputs by name, as the ledger finds them.
    pub inputs: Map<String, Value>,
    /// Which of several runs at the same inputs, from zero.
    pub replicate: usize,
    /// Why it was made.
    pub source: String,
    /// What it gave, by output; none where it failed.
    pub outputs: Option<Map<String, Value>>,
    /// How often it was started.
    pub attempts: usize,
    /// How long the last attempt took.
    pub seconds: Option<f64>,
    /// Why it failed.
    pub reason: Option<String>,
}

impl MadeRun {
    /// As [`Point::place`].
    pub fn place(&self) -> (String, usize) {
        (Value::Object(self.inputs.clone()).to_string(), self.replicate)
    }
}

/// Columns of a [`MadeRun`].
const MADE: &str = "inputs, replicate, source, outputs, attempts, seconds, reason";

fn made_run(row: &Row<'_>) -> rusqlite::Result<MadeRun> {
    let object = |text: String| serde_json::from_str::<Map<String, Value>>(&text).unwrap_or_default();
    Ok(MadeRun {
        inputs: object(row.get(0)?),
        replicate: row.get::<_, i64>(1)?.unsigned_abs() as usize,
        source: row.get(2)?,
        outputs: row.get::<_, Option<String>>(3)?.map(object),
        attempts: row.get::<_, i64>(4)?.unsigned_abs() as usize,
        seconds: row.get(5)?,
        reason: row.get(6)?,
    })
}

/// What hears of every run that is finished or has failed.
pub type RunListener<'a> = Box<dyn Fn(&MadeRun) -> Result<()> + Send + Sync + 'a>;

/// The ledger. Whoever changes it must hold the lock of the folder it lies in.
///
/// Every change is on the disk when its function returns, but for the start of a run. That of a worker is in memory, and tells its listener of
/// what is finished.
pub struct RunLedger<'a> {
    connection: Mutex<Connection>,
    path: PathBuf,
    identity: String,
    listener: Option<RunListener<'a>>,
}

impl RunLedger<'static> {
    /// Opens the ledger at `path`, and makes it where there is none.
    ///
    /// # Errors
    /// A file that cannot be used, with what to do about it.
    pub fn open(path: &Path) -> Result<Self> {
        let open = || -> rusqlite::Result<(Connection, String)> {
            let mut connection = Connection::open(path)?;
            prepare(&connection, path)?;
            let transaction = connection.transaction()?;
            if transaction.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0))? == 0 {
                transaction.execute_batch(TABLES)?;
                transaction.execute("INSERT INTO ledger VALUES (?1)", [new_identity(path)])?;
                transaction.pragma_update(None, "user_version", LAYOUT)?;
            }
            transaction.commit()?;
            let identity = connection.query_row("SELECT identity FROM ledger", [], |row| row.get(0))?;
            Ok((connection, identity))
        };
        let (connection, identity) = open().map_err(|problem| refused(path, &problem))?;
        check_layout(&connection, path)?;
        Ok(Self { connection: Mutex::new(connection), path: path.to_path_buf(), identity, listener: None })
    }

    /// Opens the ledger to look into it; `None` where there is none.
    ///
    /// # Errors
    /// As for [`RunLedger::open`].
    pub fn look(path: &Path) -> Result<Option<Self>> {
        if !path.is_file() {
            return Ok(None);
        }
        // Where one may write, what a killed process left behind is put right first.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || -> rusqlite::Result<Option<(Connection, String)>> {
            let connection = Connection::open_with_flags(path, flags)?;
            let connection = match prepare(&connection, path) {
                // In a folder that may only be read nobody writes either.
                Err(problem) if problem.sqlite_error_code() == Some(ErrorCode::CannotOpen) => open_unchanging(path)?,
                prepared => prepared.map(|()| connection)?,
            };
            if connection.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0))? == 0 {
                return Ok(None);
            }
            let identity = connection.query_row("SELECT identity FROM ledger", [], |row| row.get(0))?;
            Ok(Some((connection, identity)))
        };
        let Some((connection, identity)) = open().map_err(|problem| refused(path, &problem))? else { return Ok(None) };
        check_layout(&connection, path)?;
        Ok(Some(Self { connection: Mutex::new(connection), path: path.to_path_buf(), identity, listener: None }))
    }

    /// As [`RunLedger::look`], without so much as a lock on a disk of another machine: there many workers look at once, and SQLite's locks cannot be
    /// relied on. What is being written meanwhile may be missed.
    ///
    /// # Errors
    /// As for [`RunLedger::open`].
    pub fn glance(path: &Path) -> Result<Option<Self>> {
        if !is_remote(path) {
            return Self::look(path);
        }
        if !path.is_file() {
            return Ok(None);
        }
        let open = || -> rusqlite::Result<Option<(Connection, String)>> {
            let connection = open_unchanging(path)?;
            if connection.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0))? == 0 {
                return Ok(None);
            }
            let identity = connection.query_row("SELECT identity FROM ledger", [], |row| row.get(0))?;
            Ok(Some((connection, identity)))
        };
        let Some((connection, identity)) = open().map_err(|problem| refused(path, &problem))? else { return Ok(None) };
        check_layout(&connection, path)?;
        Ok(Some(Self { connection: Mutex::new(connection), path: path.to_path_buf(), identity, listener: None }))
    }
}

impl<'a> RunLedger<'a> {
    /// One in memory, whose processes are marked by `identity`, or by a text that no other ledger has; `listener` keeps what is finished.
    ///
    /// # Errors
    /// What the system says.
    pub fn in_memory(identity: Option<String>, listener: RunListener<'a>) -> Result<Self> {
        let path = PathBuf::from("runs in memory");
        let identity = identity.unwrap_or_else(|| new_identity(&path));
        let open = || -> rusqlite::Result<Connection> {
            let connection = Connection::open_in_memory()?;
            connection.execute_batch(TABLES)?;
            connection.execute("INSERT INTO ledger VALUES (?1)", [&identity])?;
            Ok(connection)
        };
        let connection = open().map_err(|problem| refused(&path, &problem))?;
        Ok(Self { connection: Mutex::new(connection), path, identity, listener: Some(listener) })
    }

    /// Brings in runs that workers made, all of them or none. What is finished stays as it is. Returns how many were new.
    ///
    /// # Errors
    /// A run whose outputs differ from those that the ledger has; what the system says.
    pub fn bring_in(&self, simulator: &str, runs: &[MadeRun]) -> Result<usize> {
        let differing = Cell::new(None);
        let new = self.change(|t| {
            let mut find = t.prepare("SELECT state, outputs, attempts FROM runs WHERE simulator = ?1 AND inputs = ?2 AND replicate = ?3")?;
            let mut insert = t.prepare(
                "INSERT INTO runs (simulator, inputs, replicate, source, state, outputs, attempts, seconds, reason)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
                 ON CONFLICT DO UPDATE SET state = ?5, outputs = ?6, attempts = MAX(attempts, ?7), seconds = ?8, reason = ?9, process_group = NULL",
            )?;
            let mut new = 0;
            for run in runs {
                let ((inputs, replicate), outputs) = (run.place(), run.outputs.clone().map(|o| Value::Object(o).to_string()));
                let key = params![simulator, inputs, replicate as i64];
                // Workers count the attempts that they knew of.
                let attempts = run.attempts as i64;
                let read = |row: &Row<'_>| {
                    Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?, row.get::<_, i64>(2)?))
                };
                if let Some((state, before, tried)) = find.query_row(key, read).optional()? {
                    if state == RunState::Done.name() {
                        if outputs.is_some() && outputs != before {
                            differing.set(Some(inputs));
                            return Err(rusqlite::Error::QueryReturnedNoRows);
                        }
                        continue;
                    }
                    // A failure that is known is no news.
                    if state == RunState::Failed.name() && outputs.is_none() && attempts <= tried {
                        continue;
                    }
                }
                let state = if outputs.is_some() { RunState::Done } else { RunState::Failed };
                let row = params![
                    simulator, inputs, replicate as i64, run.source, state.name(), outputs, attempts, run.seconds, run.reason
                ];
                new += insert.execute(row)?;
            }
            Ok(new)
        });
        match differing.into_inner() {
            Some(inputs) => Err(Error::failed(
                self.path.display().to_string(),
                format!(
                    "a worker's run at {inputs} gave other outputs than the one that is there; nothing was brought in"
                ),
                "the simulator is random or has changed: remove that worker's file, or begin anew in another folder",
            )),
            None => new,
        }
    }

    /// Tells the listener of a run.
    fn tell(&self, id: i64) -> Result<()> {
        let Some(listener) = &self.listener else { return Ok(()) };
        let sql = format!("SELECT {MADE} FROM runs WHERE id = ?1");
        listener(&self.with(|c| c.query_row(&sql, [id], made_run))?)
    }

    /// The runs of a simulator that have finished or failed, as workers tell of them.
    ///
    /// # Errors
    /// What the system says.
    pub fn made(&self, simulator: &str) -> Result<Vec<MadeRun>> {
        let sql = format!("SELECT {MADE} FROM runs WHERE simulator = ?1 AND state IN ('done', 'failed') ORDER BY id");
        self.with(|c| c.prepare(&sql)?.query_map([simulator], made_run)?.collect())
    }

    /// Writes a copy of the ledger as it is now to a file that is not there yet.
    ///
    /// # Errors
    /// What the system says.
    pub fn copy(&self, to: &Path) -> Result<()> {
        self.with(|c| c.execute("VACUUM INTO ?1", [to.display().to_string()]).map(drop))
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        // A panic elsewhere leaves SQLite's own state whole.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        work(&self.connection()).map_err(|problem| refused(&self.path, &problem))
    }

    /// A text that marks the processes of a run, and no others.
    pub fn marker(&self, id: i64) -> String {
        format!("{}-{id}", self.identity)
    }

    /// What the processes of all runs are marked with.
    pub fn any_marker(&self) -> String {
        format!("{}-*", self.identity)
    }

    /// Notes what the simulator with this fingerprint is made of, by the place in the study file.
    ///
    /// # Errors
    /// What the system says.
    pub fn note_simulator(&self, fingerprint: &str, parts: &[(String, String)]) -> Result<()> {
        let parts = json!(parts.iter().cloned().collect::<std::collections::BTreeMap<_, _>>()).to_string();
        self.with(|c| {
            let known = "SELECT 1 FROM simulators WHERE fingerprint = ?1 AND superseded = 0";
            if c.query_row(known, [fingerprint], |_| Ok(())).optional()?.is_some() {
                return Ok(());
            }
            let sql = "INSERT INTO simulators (fingerprint, parts) VALUES (?1, ?2)
                       ON CONFLICT (fingerprint) DO UPDATE SET superseded = 0";
            c.execute(sql, params![fingerprint, parts]).map(drop)
        })
    }

    /// The other simulators whose runs have not been set aside, the one of the latest run first.
    ///
    /// # Errors
    /// What the system says.
    pub fn other_simulators(&self, fingerprint: &str) -> Result<Vec<KnownSimulator>> {
        self.with(|c| {
            let sql = "SELECT fingerprint, parts FROM simulators WHERE fingerprint <> ?1 AND superseded = 0
                       ORDER BY (SELECT MAX(id) FROM runs WHERE simulator = fingerprint) DESC";
            let mut statement = c.prepare(sql)?;
            let rows = statement.query_map([fingerprint], |row| {
                let parts: Map<String, Value> = serde_json::from_str(&row.get::<_, String>(1)?).unwrap_or_default();
                let text = |value: Value| value.as_str().unwrap_or_default().to_owned();
                let parts = parts.into_iter().map(|(place, value)| (place, text(value))).collect();
                Ok(KnownSimulator { fingerprint: row.get(0)?, parts })
            })?;
            rows.collect()
        })
    }

    /// Takes the finished runs of another simulator as runs of this one, where it has none finished at the same inputs.
    ///
    /// # Errors
    /// What the system says.
    pub fn keep(&self, other: &str, fingerprint: &str) -> Result<()> {
        self.change(|t| {
            // What was never finished makes room for what was.
            let unfinished = "DELETE FROM runs WHERE simulator = ?1 AND state <> 'done' AND EXISTS (
                SELECT 1 FROM runs AS kept WHERE kept.simulator = ?2 AND kept.state = 'done'
                    AND kept.inputs = runs.inputs AND kept.replicate = runs.replicate)";
            t.execute(unfinished, [fingerprint, other])?;
            let kept = "UPDATE OR IGNORE runs SET simulator = ?1 WHERE simulator = ?2 AND state = 'done'";
            t.execute(kept, [fingerprint, other]).map(drop)
        })
    }

    /// Makes the runs of a verification that is written down train the surrogate from then on.
    ///
    /// # Errors
    /// What the system says.
    pub fn note_verified(&self, simulator: &str) -> Result<()> {
        self.change(|t| {
            let done =
                "UPDATE runs SET source = 'verify' WHERE simulator = ?1 AND source = 'verifying' AND state = 'done'";
            t.execute(done, [simulator])?;
            // What an interrupted verification of more runs had asked for, nobody wants any more.
            t.execute("DELETE FROM runs WHERE simulator = ?1 AND source = 'verifying'", [simulator]).map(drop)
        })
    }

    /// Sets the runs of these simulators aside: they stay in the ledger and are used no more.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_aside(&self, fingerprints: &[String]) -> Result<()> {
        self.change(|t| {
            let mut statement = t.prepare("UPDATE simulators SET superseded = 1 WHERE fingerprint = ?1")?;
            fingerprints.iter().try_for_each(|fingerprint| statement.execute([fingerprint]).map(drop))
        })
    }

    /// Several changes that are all made or none.
    fn change<T>(&self, work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T>) -> Result<T> {
        let mut connection = self.connection();
        let all = || -> rusqlite::Result<T> {
            let transaction = connection.transaction()?;
            let value = work(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        all().map_err(|problem| refused(&self.path, &problem))
    }

    /// Numbers of the runs at these points, which become pending where they are not known.
    ///
    /// # Errors
    /// What the system says.
    pub fn plan(&self, simulator: &str, points: &[Point], source: RunSource) -> Result<Vec<i64>> {
        self.change(|t| {
            let mut insert = t.prepare(
                "INSERT INTO runs (simulator, inputs, replicate, source, state) VALUES (?1, ?2, ?3, ?4, 'pending')
                 ON CONFLICT DO NOTHING",
            )?;
            let mut find = t.prepare("SELECT id FROM runs WHERE simulator = ?1 AND inputs = ?2 AND replicate = ?3")?;
            let one = |point: &Point| {
                let (inputs, replicate) = (key(&point.inputs), point.replicate as i64);
                // A run that a calibration made is the design's as well once the design asks for it.
                insert.execute(params![simulator, inputs, replicate, source.name()])?;
                find.query_row(params![simulator, inputs, replicate], |row| row.get(0))
            };
            points.iter().map(one).collect()
        })
    }

    /// The run with that number.
    ///
    /// # Errors
    /// What the system says.
    pub fn run(&self, id: i64) -> Result<Option<Run>> {
        self.with(|c| c.query_row("SELECT * FROM runs WHERE id = ?1", [id], read_run).optional())
    }

    /// Runs of a simulator, or of all, in the order of their numbers.
    ///
    /// # Errors
    /// What the system says.
    pub fn runs(&self, simulator: Option<&str>) -> Result<Vec<Run>> {
        self.with(|c| {
            let mut statement = c.prepare("SELECT * FROM runs WHERE ?1 IS NULL OR simulator = ?1 ORDER BY id")?;
            statement.query_map([simulator], read_run)?.collect()
        })
    }

    /// Notes that a run was started. That need not outlive the machine, only this process: no process of the run would.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(&self, id: i64, process_group: Option<i32>) -> Result<()> {
        let sql = "UPDATE runs SET state = 'running', attempts = attempts + 1, process_group = ?2, reason = NULL
                   WHERE id = ?1";
        self.with(|c| {
            // Without a write-ahead log a change that is not synchronised could damage the file.
            let has_log = c.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0))? == "wal";
            c.pragma_update(None, "synchronous", if has_log { "NORMAL" } else { "FULL" })?;
            let started = c.execute(sql, params![id, process_group]);
            c.pragma_update(None, "synchronous", "FULL")?;
            started.map(drop)
        })
    }

    /// Notes what a run gave.
    ///
    /// # Errors
    /// What the system says.
    pub fn finish(&self, id: i64, outputs: &[(String, Reading)], seconds: Option<f64>) -> Result<()> {
        let sql = "UPDATE runs SET state = 'done', outputs = ?2, seconds = ?3, reason = NULL, process_group = NULL
                   WHERE id = ?1";
        let outputs = outputs_json(outputs);
        self.with(|c| c.execute(sql, params![id, outputs, seconds]).map(drop))?;
        self.tell(id)
    }

    /// Notes that a run failed.
    ///
    /// # Errors
    /// What the system says.
    pub fn fail(&self, id: i64, reason: &str, seconds: Option<f64>) -> Result<()> {
        let sql = "UPDATE runs SET state = 'failed', reason = ?2, seconds = ?3, process_group = NULL WHERE id = ?1";
        self.with(|c| c.execute(sql, params![id, reason, seconds]).map(drop))?;
        self.tell(id)
    }

    /// Makes runs pending again: those that were interrupted, or are to be tried once more.
    ///
    /// # Errors
    /// What the system says.
    pub fn reset(&self, ids: &[i64]) -> Result<()> {
        let sql = "UPDATE runs SET state = 'pending', process_group = NULL WHERE id = ?1 AND state <> 'done'";
        self.change(|t| {
            let mut statement = t.prepare(sql)?;
            ids.iter().try_for_each(|id| statement.execute([id]).map(drop))
        })
    }

    /// Brings in finished runs that were made elsewhere, all of them or none: each at its inputs, with its outputs. Runs that
    /// the ledger waits for become done; of others `source` is the import. Returns how many were new.
    ///
    /// # Errors
    /// What the system says.
    pub fn import(&self, simulator: &str, runs: &[(Point, Vec<(String, Reading)>)]) -> Result<usize> {
        self.change(|t| {
            let mut insert = t.prepare(
                "INSERT INTO runs (simulator, inputs, replicate, source, state, outputs) VALUES (?1, ?2, ?3, 'import', 'done', ?4)
                 ON CONFLICT DO UPDATE SET state = 'done', outputs = ?4, reason = NULL, process_group = NULL, seconds = NULL
                 WHERE state <> 'done'",
            )?;
            let one = |(point, outputs): &(Point, Vec<(String, Reading)>)| {
                let (inputs, replicate) = (key(&point.inputs), point.replicate as i64);
                insert.execute(params![simulator, inputs, replicate, outputs_json(outputs)])
            };
            runs.iter().map(one).sum()
        })
    }
}

/// Settings of a connection: changes are on the disk when they are made, and readers wait for a writer.
///
/// With a write-ahead log a change costs one synchronisation of the disk, where a rollback journal costs three and more
/// (measured: 3.4 ms against 18 ms). Its index is shared memory, which a network disk does not have.
fn prepare(connection: &Connection, path: &Path) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::from_secs(10))?;
    let mode = if is_remote(path) { "TRUNCATE" } else { "WAL" };
    connection.pragma_update(None, "journal_mode", mode).or_else(|problem| match problem.sqlite_error_code() {
        // A file that may only be read: what it holds can be looked at all the same.
        Some(ErrorCode::ReadOnly) => Ok(()),
        _ => Err(problem),
    })?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)
}

/// Opens a file that nobody writes.
fn open_unchanging(path: &Path) -> rusqlite::Result<Connection> {
    let uri = format!("file:{}?immutable=1", path.display().to_string().replace('?', "%3f").replace('#', "%23"));
    Connection::open_with_flags(uri, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI)
}

/// Whether a file lies on a disk of another machine.
#[cfg(target_os = "linux")]
fn is_remote(path: &Path) -> bool {
    // NFS, SMB and CIFS, SMB2, AFS, Coda, NCP, Lustre, GPFS, Ceph, 9P, FUSE.
    const REMOTE: [u32; 11] = [
        0x6969,
        0x517b,
        0xfe53_4d42,
        0x5346_414f,
        0x7375_7245,
        0x564c,
        0x0bd0_0bd0,
        0x4750_4653,
        0x00c3_6400,
        0x0102_1997,
        0x6573_5546,
    ];
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    rustix::fs::statfs(folder).is_ok_and(|disk| REMOTE.contains(&(disk.f_type as u32)))
}

#[cfg(not(target_os = "linux"))]
fn is_remote(_: &Path) -> bool {
    false
}

fn check_layout(connection: &Connection, path: &Path) -> Result<()> {
    let read = |row: &Row<'_>| row.get::<_, i64>(0);
    let found = connection.query_row("PRAGMA user_version", [], read).map_err(|problem| refused(path, &problem))?;
    if found != LAYOUT {
        let found = format!("was made by another version of twostep (layout {found}, this one knows {LAYOUT})");
        return Err(Error::invalid(
            path.display().to_string(),
            found,
            "use that version, or another folder with --out",
        ));
    }
    let state = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    match state.map_err(|problem| refused(path, &problem))?.as_str() {
        "ok" => Ok(()),
        problem => Err(damaged(path, problem)),
    }
}

fn damaged(path: &Path, problem: &str) -> Error {
    Error::failed(
        path.display().to_string(),
        format!("the run ledger is damaged ({problem}); nothing was changed in it"),
        "put a copy of it back, or save what can be read with `sqlite3 runs.sqlite .recover`; to begin anew, rename it: \
         `twostep import` brings finished runs in from a table",
    )
}

/// What SQLite said, in words a user can act on.
fn refused(path: &Path, problem: &rusqlite::Error) -> Error {
    let place = path.display().to_string();
    match problem.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => damaged(path, &problem.to_string()),
        Some(ErrorCode::DiskFull) => Error::file(
            path,
            std::io::Error::new(std::io::ErrorKind::StorageFull, "the disk is full"),
            "make room and run again: finished runs are kept",
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            Error::failed(place, problem.to_string(), "choose a folder you may write to with --out")
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            let repair = "close the program that has it open, and run again: finished runs are kept";
            Error::failed(place, "another program is writing to the run ledger", repair)
        }
        _ => Error::failed(place, problem.to_string(), "run again: finished runs are kept"),
    }
}

/// A text that no other ledger has.
fn new_identity(path: &Path) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    let digest = Sha256::digest(format!("{now} {} {}", std::process::id(), path.display()));
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Inputs as a text that is the same for the same inputs: a JSON object, names in order.
fn key(inputs: &[(String, f64)]) -> String {
    // Zero has one sign.
    let sorted: std::collections::BTreeMap<&str, f64> =
        inputs.iter().map(|(name, x)| (name.as_str(), x + 0.0)).collect();
    json!(sorted).to_string()
}

/// A number, or a series as `{"at": [...], "values": [...]}` with null where a value is missing.
fn outputs_json(outputs: &[(String, Reading)]) -> String {
    let value = |reading: &Reading| match reading.at.is_empty() {
        true => json!(reading.values.first()),
        // What is not finite becomes null.
        false => json!({ "at": reading.at, "values": reading.values }),
    };
    let all: Map<String, Value> = outputs.iter().map(|(name, reading)| (name.clone(), value(reading))).collect();
    Value::Object(all).to_string()
}

fn read_outputs(text: &str) -> Option<Vec<(String, Reading)>> {
    let all: Map<String, Value> = serde_json::from_str(text).ok()?;
    let numbers = |value: &Value| -> Option<Vec<f64>> {
        Some(value.as_array()?.iter().map(|v| v.as_f64().unwrap_or(f64::NAN)).collect())
    };
    let reading = |value: &Value| match value {
        Value::Object(series) => {
            Some(Reading { at: numbers(series.get("at")?)?, values: numbers(series.get("values")?)? })
        }
        value => Some(Reading { at: Vec::new(), values: vec![value.as_f64()?] }),
    };
    all.iter().map(|(name, value)| Some((name.clone(), reading(value)?))).collect()
}

fn read_run(row: &Row<'_>) -> rusqlite::Result<Run> {
    let unreadable = |column: usize, what: &str| {
        rusqlite::Error::FromSqlConversionFailure(
            column,
            rusqlite::types::Type::Text,
            format!("{what} cannot be read").into(),
        )
    };
    let text = |name: &str| row.get::<_, String>(name);
    let inputs: Map<String, Value> = serde_json::from_str(&text("inputs")?).map_err(|_| unreadable(2, "inputs"))?;
    let inputs = inputs.into_iter().map(|(name, value)| Some((name, value.as_f64()?))).collect::<Option<_>>();
    let (state, source) = (text("state")?, text("source")?);
    let outputs = row.get::<_, Option<String>>("outputs")?;
    let outputs = outputs.map(|text| read_outputs(&text).ok_or_else(|| unreadable(6, "outputs"))).transpose()?;
    Ok(Run {
        id: row.get("id")?,
        simulator: row.get("simulator")?,
        inputs: inputs.ok_or_else(|| unreadable(2, "inputs"))?,
        replicate: row.get::<_, i64>("replicate")?.unsigned_abs() as usize,
        source: RunSource::ALL.into_iter().find(|s| s.name() == source).ok_or_else(|| unreadable(4, "source"))?,
        state: RunState::ALL.into_iter().find(|s| s.name() == state).ok_or_else(|| unreadable(5, "state"))?,
        outputs,
        attempts: row.get::<_, i64>("attempts")?.unsigned_abs() as usize,
        seconds: row.get("seconds")?,
        reason: row.get("reason")?,
        process_group: row.get("process_group")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(test: &str) -> (PathBuf, RunLedger<'static>) {
        let folder = std::env::temp_dir().join(format!("twostep-runs-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let ledger = RunLedger::open(&folder.join(RUNS)).unwrap();
        ledger.note_simulator("a", &[("simulator.command".into(), "1".into())]).unwrap();
        (folder, ledger)
    }

    fn point(x: f64) -> Point {
        Point { inputs: vec![("x".into(), x), ("b".into(), 1.0)], replicate: 0 }
    }

    fn number(y: f64) -> Vec<(String, Reading)> {
        vec![("y".into(), Reading { at: Vec::new(), values: vec![y] })]
    }

    #[test]
    fn a_run_is_found_again_by_its_inputs() {
        let (folder, ledger) = ledger("again");
        let ids = ledger.plan("a", &[point(0.1), point(0.2)], RunSource::Design).unwrap();
        ledger.start(ids[0], Some(7)).unwrap();
        assert_eq!(ledger.run(ids[0]).unwrap().unwrap().process_group, Some(7));
        ledger.finish(ids[0], &number(1.0 / 3.0), Some(2.5)).unwrap();
        ledger.start(ids[1], None).unwrap();
        ledger.fail(ids[1], "no", Some(0.1)).unwrap();
        drop(ledger);

        let ledger = RunLedger::look(&folder.join(RUNS)).unwrap().unwrap();
        // Other order of the inputs, other sign of zero.
        let mut same = point(0.1);
        same.inputs.reverse();
        let zero = |x: f64| Point { inputs: vec![("x".into(), x)], replicate: 0 };
        let again = ledger.plan("a", &[same, point(0.3), zero(0.0), zero(-0.0)], RunSource::Design).unwrap();
        assert_eq!((again[0], again[2]), (ids[0], again[3]));
        let runs = ledger.runs(Some("a")).unwrap();
        assert_eq!(runs.len(), 4);
        assert_eq!(runs[0].readings(&["y".into()]).unwrap()[0].values, [1.0 / 3.0]);
        assert_eq!((runs[0].state, runs[0].attempts, runs[0].seconds), (RunState::Done, 1, Some(2.5)));
        assert_eq!((runs[1].state, runs[1].reason.as_deref()), (RunState::Failed, Some("no")));
        // What is done stays so.
        ledger.reset(&ids).unwrap();
        let states: Vec<RunState> = ledger.runs(None).unwrap().iter().map(|run| run.state).collect();
        assert_eq!(states, [RunState::Done, RunState::Pending, RunState::Pending, RunState::Pending]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn repeated_points_are_runs_of_their_own() {
        let inputs = |x: f64| vec![("x".to_owned(), x)];
        let points = Point::numbered(vec![inputs(1.0), inputs(2.0), inputs(1.0)]);
        let replicates: Vec<usize> = points.iter().map(|p| p.replicate).collect();
        assert_eq!(replicates, [0, 0, 1]);
        let (folder, ledger) = ledger("repeated");
        let ids = ledger.plan("a", &points, RunSource::Design).unwrap();
        assert!(ids[0] != ids[2]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn series_come_back_with_what_is_missing() {
        let (folder, ledger) = ledger("series");
        let ids = ledger.plan("a", &[point(0.1)], RunSource::Verify).unwrap();
        let series = Reading { at: vec![1.0, 2.0], values: vec![0.5, f64::NAN] };
        ledger.finish(ids[0], &[("h".into(), series.clone())], None).unwrap();
        let found = ledger.run(ids[0]).unwrap().unwrap().readings(&["h".into()]).unwrap();
        assert!(found[0].at == series.at && found[0].values[0] == 0.5 && found[0].values[1].is_nan());
        assert!(ledger.run(ids[0]).unwrap().unwrap().readings(&["other".into()]).is_none());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn runs_of_a_changed_simulator_are_kept_or_set_aside() {
        for keep in [true, false] {
            let (folder, ledger) = ledger(if keep { "keep" } else { "aside" });
            let ids = ledger.plan("a", &[point(0.1)], RunSource::Design).unwrap();
            ledger.finish(ids[0], &number(1.0), None).unwrap();
            ledger.note_simulator("b", &[("simulator.command".into(), "2".into())]).unwrap();
            let others = ledger.other_simulators("b").unwrap();
            let parts = vec![("simulator.command".into(), "1".into())];
            assert_eq!(others, [KnownSimulator { fingerprint: "a".into(), parts }]);
            // What failed before it was corrected does not stand in the way.
            let twin = ledger.plan("b", &[point(0.1)], RunSource::Design).unwrap();
            ledger.fail(twin[0], "no", None).unwrap();
            if keep {
                ledger.keep("a", "b").unwrap();
            }
            ledger.set_aside(&["a".into()]).unwrap();
            assert!(ledger.other_simulators("b").unwrap().is_empty());
            let states: Vec<RunState> = ledger.runs(Some("b")).unwrap().iter().map(|run| run.state).collect();
            assert_eq!(states, [if keep { RunState::Done } else { RunState::Failed }]);
            assert_eq!(ledger.runs(None).unwrap().len(), if keep { 1 } else { 2 });
            std::fs::remove_dir_all(folder).unwrap();
        }
    }

    #[test]
    fn a_damaged_ledger_is_refused_and_left_alone() {
        let (folder, ledger) = ledger("damaged");
        let path = folder.join(RUNS);
        let points: Vec<Point> = (0..200).map(|i| point(f64::from(i))).collect();
        ledger.plan("a", &points, RunSource::Design).unwrap();
        drop(ledger);
        let whole = std::fs::read(&path).unwrap();
        let mut page = whole.clone();
        page[4096..8192].fill(0xa5);
        for content in [b"this is no database, whatever its name says".to_vec(), whole[..5000].to_vec(), page] {
            std::fs::write(&path, &content).unwrap();
            for opened in [RunLedger::open(&path).map(drop), RunLedger::look(&path).map(drop)] {
                let message = opened.unwrap_err().to_string();
                assert!(message.contains("the run ledger is damaged") && message.contains("rename it"), "{message}");
            }
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn imports_fill_what_is_waited_for_and_leave_what_is_done() {
        let (folder, ledger) = ledger("import");
        let ids = ledger.plan("a", &[point(0.1), point(0.2)], RunSource::Design).unwrap();
        ledger.finish(ids[0], &number(1.0), None).unwrap();
        let runs = [(point(0.1), number(9.0)), (point(0.2), number(2.0)), (point(0.3), number(3.0))];
        assert_eq!(ledger.import("a", &runs).unwrap(), 2);
        let found: Vec<(f64, RunSource)> =
            ledger.runs(None).unwrap().iter().map(|r| (r.outputs.as_ref().unwrap()[0].1.values[0], r.source)).collect();
        assert_eq!(found, [(1.0, RunSource::Design), (2.0, RunSource::Design), (3.0, RunSource::Import)]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
