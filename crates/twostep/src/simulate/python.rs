//! A function of a Python file as the simulator: processes that call it, asked and answering in lines of JSON.

use super::command::STDERR_FILE;
use super::command::folder::is_executable;
use super::command::process::{Ended, Pipes, Running};
use super::external::{Failure, Job, Reading, Wanted};
use super::function::{Function, python_parts};
use crate::monitor::Proceed;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

/// What each process runs: it needs nothing but Python itself.
const WORKER: &str = include_str!("../../../../python/twostep/_worker.py");

/// The variable that names the interpreter where the study does not.
const VARIABLE: &str = "TWOSTEP_PYTHON";

/// How often a run that is under way asks whether to go on.
const BEAT: Duration = Duration::from_millis(50);

/// How long a process that has nothing left to do may take to end by itself.
const GRACE: Duration = Duration::from_secs(2);

/// How long what an ended process wrote last is waited for: one that it started may hold its pipes open.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The byte that ends what a failed run printed: pipes do not keep step with each other.
const END: u8 = 0;

/// Bytes kept of what a run printed, the last ones.
const KEPT: usize = 64 * 1024;

/// What the study file says about a function of a Python file.
#[derive(Clone, Debug, PartialEq)]
pub struct PythonSpec {
    /// The file.
    pub file: PathBuf,
    /// Name of the function in it.
    pub function: String,
    /// The interpreter; none for the one of [`default_interpreter`].
    pub interpreter: Option<PathBuf>,
    /// How long a run may take; none for any time.
    pub timeout: Option<Duration>,
    /// Folder of the study file, in which the function is called.
    pub folder: PathBuf,
}

/// The interpreter of a study that names none: that of the variable `TWOSTEP_PYTHON`, of the active virtual environment, or
/// `python3` or `python` on the search path.
pub fn default_interpreter() -> Option<PathBuf> {
    let own = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let of_environment = || {
        let folder = PathBuf::from(std::env::var_os("VIRTUAL_ENV").filter(|path| !path.is_empty())?);
        let inside = if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" };
        Some(folder.join(inside)).filter(|path| is_executable_file(path))
    };
    own.or_else(of_environment).or_else(|| on_search_path("python3")).or_else(|| on_search_path("python"))
}

/// The interpreter that a study names: a path from `folder` where it has a separator, else a program on the search path.
pub fn named_interpreter(name: &str, folder: &Path) -> Option<PathBuf> {
    match Path::new(name).components().count() > 1 || name.contains('/') {
        true => Some(folder.join(name)).filter(|path| is_executable_file(path)),
        false => on_search_path(name),
    }
}

fn is_executable_file(path: &Path) -> bool {
    path.is_file() && is_executable(path)
}

fn on_search_path(name: &str) -> Option<PathBuf> {
    let file = match Path::new(name).extension() {
        Some(_) => name.to_owned(),
        None => format!("{name}{}", std::env::consts::EXE_SUFFIX),
    };
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).map(|folder| folder.join(&file)).find(|path| is_executable_file(path))
}

/// A function of a Python file, and the processes that wait to call it: as many as runs were under way at once.
#[derive(Debug)]
pub struct PythonFunction {
    spec: PythonSpec,
    idle: Mutex<Vec<Worker>>,
}

impl PythonFunction {
    /// Starts nothing yet.
    pub fn new(spec: PythonSpec) -> Self {
        Self { spec, idle: Mutex::new(Vec::new()) }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Worker>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process that waits and is still alive.
    fn take_idle(&self) -> Option<Worker> {
        loop {
            let mut worker = self.idle().pop()?;
            if matches!(worker.running.ended(), Ok(None)) {
                return Some(worker);
            }
        }
    }

    /// A process that has loaded the function.
    fn start(&self, marker: &str, proceed: Proceed<'_>) -> Result<Worker, Failure> {
        let name = file_name(&self.spec.file);
        let Some(interpreter) = self.spec.interpreter.clone().or_else(default_interpreter) else {
            return Err(Failure::Unreachable {
                reason: format!(
                    "there is no Python to run {name} with: neither python3 nor python is on the search path"
                ),
                repair: "install Python, or write interpreter = \"/path/to/python\" in [simulator]".to_owned(),
            });
        };
        let shown = interpreter.display();
        let mut worker = Worker::start(&self.spec, &interpreter, marker).map_err(|problem| Failure::Unreachable {
            reason: format!("{shown} cannot be started: {problem}"),
            repair: format!(
                "write interpreter = \"/path/to/python\" in [simulator], or give the variable {VARIABLE} its path"
            ),
        })?;
        let reason = match worker.answer(None, proceed) {
            Ok(answer) if answer.get("ready").is_some() => return Ok(worker),
            Err(Silence::Interrupted) => return Err(Failure::Interrupted),
            Ok(answer) => told(&answer, "refused"),
            Err(Silence::Late(_)) => format!("{shown} does not answer"),
            Err(Silence::Ended(ended)) => {
                format!("{} while {name} was loaded{}", ended.told("Python"), worker.last_words("its last words"))
            }
        };
        Err(self.refused(reason, &interpreter))
    }

    /// A function that cannot be called at all.
    fn refused(&self, reason: String, interpreter: &Path) -> Failure {
        let repair = format!(
            "correct {} and run again: finished runs are kept; it was run by {}, and interpreter = \"/path/to/python\" in \
             [simulator] names another",
            file_name(&self.spec.file),
            interpreter.display()
        );
        Failure::Unreachable { reason, repair }
    }
}

impl Function for PythonFunction {
    fn name(&self) -> String {
        format!("{}:{}", file_name(&self.spec.file), self.spec.function)
    }

    fn fingerprint_parts(&self) -> Vec<(String, String)> {
        python_parts(&self.spec.file, &self.spec.function)
    }

    fn run(&self, job: &Job, wanted: &[Wanted], proceed: Proceed<'_>) -> Result<Vec<Reading>, Failure> {
        // What an earlier attempt printed is of no use any more; nothing else is kept there.
        let _ = fs::remove_dir_all(&job.folder);
        let mut worker = match self.take_idle() {
            Some(worker) => worker,
            None => self.start(&job.marker, proceed)?,
        };
        worker.printed.clear();
        worker.ask(job, wanted);
        let answer = match worker.answer(self.spec.timeout, proceed) {
            Ok(answer) => answer,
            Err(Silence::Interrupted) => return Err(Failure::Interrupted),
            Err(Silence::Late(timeout)) => {
                keep_printed(&job.folder, &worker.printed.text());
                let seconds = timeout.as_secs_f64();
                return Err(Failure::Failed(format!("the function took longer than its timeout of {seconds} s")));
            }
            Err(Silence::Ended(ended)) => {
                let words = worker.last_words(&format!("{STDERR_FILE} ends with"));
                keep_printed(&job.folder, &worker.printed.text());
                return Err(Failure::Failed(format!("{}{words}", ended.told("the Python process"))));
            }
        };
        if answer.get("refused").is_some() {
            return Err(self.refused(told(&answer, "refused"), &worker.interpreter));
        }
        if answer.get("failed").is_some() {
            worker.printed.wait(LAST_WORDS, |bytes| bytes.contains(&END));
            keep_printed(&job.folder, &worker.printed.text());
            self.idle().push(worker);
            return Err(Failure::Failed(told(&answer, "failed")));
        }
        match answer.get("readings").and_then(|readings| self::readings(readings, wanted)) {
            Some(readings) => {
                self.idle().push(worker);
                Ok(readings)
            }
            None => Err(Failure::Failed("the Python process gave no answer that can be understood".to_owned())),
        }
    }

    fn rest(&self) {
        let mut workers: Vec<Worker> = self.idle().drain(..).collect();
        for worker in &mut workers {
            worker.input = None;
        }
        // They end side by side, each by itself while there is time, and else as it is dropped.
        let until = Instant::now() + GRACE;
        for worker in &mut workers {
            while matches!(worker.running.ended(), Ok(None)) && Instant::now() < until {
                sleep(Duration::from_millis(2));
            }
        }
    }
}

impl Drop for PythonFunction {
    fn drop(&mut self) {
        self.rest();
    }
}

fn file_name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The text of an answer.
fn told(answer: &Value, key: &str) -> String {
    answer.get(key).and_then(Value::as_str).unwrap_or("Python gave an answer that cannot be understood").to_owned()
}

/// Keeps what a failed run printed in its folder, as a command's is.
fn keep_printed(folder: &Path, text: &str) {
    if !text.is_empty() {
        // A help for whoever looks for the cause, whose lack changes nothing.
        let _ = fs::create_dir_all(folder).and_then(|()| fs::write(folder.join(STDERR_FILE), text));
    }
}

/// Coordinates and values of each output; numbers that JSON does not have are texts.
fn readings(answer: &Value, wanted: &[Wanted]) -> Option<Vec<Reading>> {
    let number = |value: &Value| value.as_f64().or_else(|| value.as_str()?.parse().ok());
    let numbers = |values: &Value| values.as_array()?.iter().map(number).collect::<Option<Vec<f64>>>();
    let reading = |pair: &Value| Some(Reading { at: numbers(pair.get(0)?)?, values: numbers(pair.get(1)?)? });
    let all = answer.as_array()?.iter().map(reading).collect::<Option<Vec<Reading>>>()?;
    (all.len() == wanted.len()).then_some(all)
}

/// Why a process gave no answer.
enum Silence {
    /// Nobody waits for it any more.
    Interrupted,
    /// It took longer than that.
    Late(Duration),
    /// It has ended.
    Ended(Ended),
}

/// A process that calls the function; ended with all its descendants when it is dropped.
#[derive(Debug)]
struct Worker {
    /// Lines that ask; the process ends when this is closed.
    input: Option<ChildStdin>,
    /// Lines that answer.
    answers: Receiver<String>,
    printed: Printed,
    running: Running,
    interpreter: PathBuf,
}

impl Worker {
    fn start(spec: &PythonSpec, interpreter: &Path, marker: &str) -> io::Result<Self> {
        let mut command = Command::new(interpreter);
        command.args(["-u", "-X", "faulthandler", "-c", WORKER]).arg(&spec.file).arg(&spec.function);
        command.current_dir(&spec.folder);
        let (running, Pipes { input, output, errors }) = Running::spawn(command, marker)?;
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let interpreter = interpreter.to_path_buf();
        Ok(Self { input: Some(input), answers, printed: Printed::follow(errors), running, interpreter })
    }

    /// Asks for a run.
    fn ask(&mut self, job: &Job, wanted: &[Wanted]) {
        let inputs: serde_json::Map<String, Value> =
            job.inputs.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let outputs: Vec<Value> = wanted
            .iter()
            .map(|output| {
                let over = output.over.as_ref();
                json!([output.name, over.map(|over| &over.name), over.and_then(|over| over.at.as_ref())])
            })
            .collect();
        let line = format!("{}\n", json!({ "inputs": inputs, "outputs": outputs }));
        if let Some(input) = &mut self.input {
            // A process that has ended takes nothing, and gives no answer either.
            let _ = input.write_all(line.as_bytes()).and_then(|()| input.flush());
        }
    }

    /// Waits for an answer, at most for `timeout`.
    fn answer(&mut self, timeout: Option<Duration>, proceed: Proceed<'_>) -> Result<Value, Silence> {
        let started = Instant::now();
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            match self.answers.recv_timeout(left.map_or(BEAT, |left| left.min(BEAT))) {
                Ok(line) => return Ok(serde_json::from_str(&line).unwrap_or_default()),
                // It has closed its end, and will have ended in a moment.
                Err(RecvTimeoutError::Disconnected) => sleep(Duration::from_millis(1)),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if !proceed() {
                return Err(Silence::Interrupted);
            }
            if let Ok(Some(ended)) = self.running.ended() {
                // What it said last may still be on its way.
                return match self.answers.recv_timeout(LAST_WORDS) {
                    Ok(line) => Ok(serde_json::from_str(&line).unwrap_or_default()),
                    Err(_) => Err(Silence::Ended(ended)),
                };
            }
            if let (Some(Duration::ZERO), Some(timeout)) = (left, timeout) {
                return Err(Silence::Late(timeout));
            }
        }
    }

    /// The last lines that an ended process printed, as the end of a sentence.
    fn last_words(&mut self, beginning: &str) -> String {
        const LINES: usize = 5;
        self.printed.wait(LAST_WORDS, |_| false);
        let text = self.printed.text();
        // Of a crash Python lists all threads, and frames that are ours.
        let of_crash = text.rsplit_once("\nCurrent thread 0x").and_then(|(_, rest)| rest.split_once('\n'));
        let is_own = |line: &&str| line.starts_with("File \"<string>\"");
        let lines = of_crash.map_or(text.as_str(), |(_, frames)| frames).lines().map(str::trim);
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !is_own(line)).collect();
        match lines[lines.len().saturating_sub(LINES)..].join(" | ") {
            last if last.is_empty() => "; it wrote no message".to_owned(),
            last => format!("; {beginning}: {last}"),
        }
    }
}

/// The last of what a process prints.
#[derive(Debug)]
struct Printed {
    bytes: Arc<Mutex<VecDeque<u8>>>,
    reader: JoinHandle<()>,
}

impl Printed {
    fn follow(mut source: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(VecDeque::new()));
        let shared = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = source.read(&mut chunk) {
                let mut kept = shared.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend(&chunk[..n]);
                let excess = kept.len().saturating_sub(KEPT);
                kept.drain(..excess);
            }
        });
        Self { bytes, reader }
    }

    fn clear(&self) {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn text(&self) -> String {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.retain(|byte| *byte != END);
        String::from_utf8_lossy(bytes.make_contiguous()).into_owned()
    }

    /// Waits until all is read or `is_whole`, or `limit` is over.
    fn wait(&self, limit: Duration, is_whole: impl Fn(&VecDeque<u8>) -> bool) {
        let until = Instant::now() + limit;
        while !self.reader.is_finished() && Instant::now() < until {
            if is_whole(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)) {
                return;
            }
            sleep(Duration::from_millis(1));
        }
    }
}
