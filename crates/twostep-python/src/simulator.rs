//! A Python function as the simulator of a study.

use crate::pump::{Line, drive, receive};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use twostep::monitor::Proceed;
use twostep::simulate::{Failure, Function, Job, Reading, Wanted};

/// How often a run that is under way asks whether to go on.
const BEAT: Duration = Duration::from_millis(50);

/// The function that a study's host calls.
pub(crate) struct HostFunction {
    pub(crate) name: String,
    pub(crate) parts: Vec<(String, String)>,
    pub(crate) line: Arc<Line>,
}

impl Function for HostFunction {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn fingerprint_parts(&self) -> Vec<(String, String)> {
        self.parts.clone()
    }

    fn run(&self, job: &Job, wanted: &[Wanted], proceed: Proceed<'_>) -> Result<Vec<Reading>, Failure> {
        let (reply, answer) = channel();
        let call = Call { id: job.id, inputs: job.inputs.clone(), wanted: wanted.to_vec(), reply };
        if !self.line.call(call) {
            return Err(Failure::Unreachable {
                reason: "the Python function can be called only while its study works".to_owned(),
                repair: "call a method of the study".to_owned(),
            });
        }
        loop {
            match receive(&answer, BEAT) {
                Ok(outcome) => return outcome,
                // A function that does not return is left behind: its result is not waited for.
                Err(RecvTimeoutError::Timeout) if proceed() => {}
                Err(_) => return Err(Failure::Interrupted),
            }
        }
    }
}

/// What a function of a Python file is known by.
#[pyfunction]
pub(crate) fn python_parts(file: PathBuf, function: &str) -> Vec<(String, String)> {
    twostep::simulate::python_parts(&file, function)
}

/// Seconds that `calls` calls of the host's function take, one after the other, without a ledger: what a callback costs.
#[pyfunction]
pub(crate) fn time_calls(py: Python<'_>, host: &Bound<'_, PyAny>, calls: usize) -> PyResult<f64> {
    let line = Arc::new(Line::default());
    let function = HostFunction { name: String::new(), parts: Vec::new(), line: line.clone() };
    let wanted = [Wanted { name: "y".to_owned(), over: None }];
    drive(py, host, &line, |monitor| {
        let job = Job {
            id: 1,
            inputs: vec![("x".to_owned(), 0.5)],
            folder: PathBuf::new(),
            marker: String::new(),
            attempt: 1,
        };
        let start = Instant::now();
        for _ in 0..calls {
            let failed =
                |_| twostep::Error::failed("simulate", "a call failed", "give a function of x that returns a number");
            function.run(&job, &wanted, &|| monitor.proceed()).map_err(failed)?;
        }
        Ok(start.elapsed().as_secs_f64())
    })
}

/// What a run came to.
type Outcome = Result<Vec<Reading>, Failure>;

/// A run that waits to be made.
pub(crate) struct Call {
    id: i64,
    inputs: Vec<(String, f64)>,
    wanted: Vec<Wanted>,
    reply: Sender<Outcome>,
}

impl Call {
    /// Does not make it.
    pub(crate) fn refuse(self) {
        // Whoever asked may have stopped waiting.
        let _ = self.reply.send(Err(Failure::Interrupted));
    }

    /// Gives it to `host`, which makes it now or later.
    pub(crate) fn submit(self, py: Python<'_>, host: &Bound<'_, PyAny>) -> PyResult<()> {
        let inputs = PyDict::new(py);
        for (name, value) in &self.inputs {
            inputs.set_item(name, value)?;
        }
        let wanted = self.wanted.into_iter().map(|output| match output.over {
            None => (output.name, None, None),
            Some(over) => (output.name, Some(over.name), over.at),
        });
        let wanted = PyList::new(py, wanted.collect::<Vec<_>>())?;
        host.call_method1("submit", (self.id, inputs, wanted, Reply { reply: Some(self.reply) })).map(drop)
    }
}

/// Takes what a run came to, once; a run that is dropped without was interrupted.
#[pyclass(module = "twostep._twostep")]
pub(crate) struct Reply {
    reply: Option<Sender<Outcome>>,
}

impl Reply {
    fn send(&mut self, outcome: Outcome) {
        if let Some(reply) = self.reply.take() {
            // Whoever asked may have stopped waiting.
            let _ = reply.send(outcome);
        }
    }
}

#[pymethods]
impl Reply {
    /// The run gave these coordinates and values of each output.
    fn done(&mut self, readings: Vec<(Vec<f64>, Vec<f64>)>) {
        self.send(Ok(readings.into_iter().map(|(at, values)| Reading { at, values }).collect()));
    }

    /// The run failed.
    fn failed(&mut self, reason: String) {
        self.send(Err(Failure::Failed(reason)));
    }

    /// The run was interrupted, and counts as never made.
    fn interrupted(&mut self) {
        self.send(Err(Failure::Interrupted));
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(Err(Failure::Interrupted));
    }
}
