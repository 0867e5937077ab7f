//! Long work in a thread of its own, while the calling thread shows progress, hears Ctrl-C and calls the user's functions.

use crate::errors;
use crate::simulator::Call;
use crate::threads;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use twostep::Error;
use twostep::monitor::Monitor;

/// Longest time before Ctrl-C is heard.
const BEAT: Duration = Duration::from_millis(50);

/// How long a thread looks for an answer before it sleeps: to be woken takes longer than a cheap function.
const LOOK: Duration = Duration::from_micros(100);

/// What the work asks of the thread that waits for it.
pub(crate) enum Event {
    /// So many of so many pieces are finished.
    Progress(String, usize, usize),
    /// A line worth showing.
    Notice(String),
    /// A run of the user's function.
    Call(Call),
    /// Nothing more will come.
    Finished,
}

/// Passes progress on, and the request to stop.
struct Watch<'a> {
    events: Mutex<Sender<Event>>,
    stop: AtomicBool,
    line: &'a Line,
    /// What was last reported, and when: a report for each piece would cost more than the piece.
    last: Mutex<Option<(String, Instant)>>,
}

impl Watch<'_> {
    fn send(&self, event: Event) {
        // Nobody listens any more only where the work is over.
        let _ = self.events.lock().unwrap_or_else(PoisonError::into_inner).send(event);
    }
}

impl Monitor for Watch<'_> {
    fn proceed(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && !self.line.has_failed()
    }

    fn progress(&self, what: &str, done: usize, total: usize) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = last.as_ref().is_some_and(|(before, at)| before == what && at.elapsed() < BEAT);
        if !is_fresh || done == total {
            *last = Some((what.to_owned(), Instant::now()));
            self.send(Event::Progress(what.to_owned(), done, total));
        }
    }

    fn notice(&self, text: &str) {
        self.send(Event::Notice(text.to_owned()));
    }
}

/// Where a function of the user finds the thread that calls it, and where functions that other threads call leave what they raised.
#[derive(Default)]
pub(crate) struct Line {
    /// Empty while no work is under way.
    events: Mutex<Option<Sender<Event>>>,
    failed: AtomicBool,
    failure: Mutex<Option<PyErr>>,
    /// How many pieces of work are under way whose failure would be raised.
    at_work: AtomicUsize,
}

/// Work that is under way for as long as this lives.
pub(crate) struct AtWork<'a>(&'a Line);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.at_work.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Line {
    /// Begins with work whose failure will be raised.
    pub(crate) fn begin(&self) -> AtWork<'_> {
        self.at_work.fetch_add(1, Ordering::Relaxed);
        AtWork(self)
    }

    /// Whether somebody will raise what functions leave here.
    pub(crate) fn is_at_work(&self) -> bool {
        self.at_work.load(Ordering::Relaxed) > 0
    }

    fn set(&self, events: Option<Sender<Event>>) {
        *self.events.lock().unwrap_or_else(PoisonError::into_inner) = events;
    }

    /// Stops the work, which ends with the first exception that was left here.
    pub(crate) fn fail(&self, problem: PyErr) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let surplus = if failure.is_none() { failure.replace(problem) } else { Some(problem) };
        drop(failure);
        self.failed.store(true, Ordering::Relaxed);
        // Not under the lock: where an exception goes, Python code may run, and let a thread on that waits for the lock.
        drop(surplus);
    }

    /// Whether functions need not be called any more: one has failed, or the work is to stop.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    fn take_failure(&self) -> Option<PyErr> {
        self.failed.store(false, Ordering::Relaxed);
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Raises what a function raised in work that was done without [`drive`].
    pub(crate) fn raise_failure(&self) -> PyResult<()> {
        self.take_failure().map_or(Ok(()), Err)
    }

    /// Asks for a call; false where nobody listens.
    pub(crate) fn call(&self, call: Call) -> bool {
        let line = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        line.as_ref().is_some_and(|events| events.send(Event::Call(call)).is_ok())
    }
}

/// Waits for the next message, at first awake.
pub(crate) fn receive<T>(messages: &Receiver<T>, most: Duration) -> Result<T, RecvTimeoutError> {
    let start = Instant::now();
    loop {
        match messages.try_recv() {
            Ok(message) => return Ok(message),
            Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
            Err(TryRecvError::Empty) if start.elapsed() < LOOK => std::thread::yield_now(),
            Err(TryRecvError::Empty) => return messages.recv_timeout(most),
        }
    }
}

/// Does `work` without the interpreter. `host`, an object of the Python package, shows progress and calls the user's function
/// where the work asks for it.
///
/// # Errors
/// Those of the work; `KeyboardInterrupt`, once the work has stopped; what `host` raises.
pub(crate) fn drive<T: Send>(
    py: Python<'_>,
    host: &Bound<'_, PyAny>,
    line: &Line,
    work: impl FnOnce(&dyn Monitor) -> twostep::Result<T> + Send,
) -> PyResult<T> {
    let (sender, events) = channel();
    let events = Mutex::new(events);
    line.set(Some(sender.clone()));
    drop(line.take_failure());
    let _at_work = line.begin();
    let watch = Watch { events: Mutex::new(sender), stop: AtomicBool::new(false), line, last: Mutex::new(None) };
    let finished = std::thread::scope(|scope| {
        let watch = &watch;
        let worker = scope.spawn(move || {
            let outcome = threads::within(|| work(watch));
            watch.send(Event::Finished);
            outcome
        });
        let raised = listen(py, host, watch, &events);
        line.set(None);
        let outcome = py.detach(|| worker.join()).unwrap_or_else(|_| Err(errors::last_panic()));
        (outcome, raised)
    });
    // What follows from values that a function could not give means nothing.
    if let (Some(failure), None) = (line.take_failure(), &finished.1) {
        return Err(failure);
    }
    match finished {
        (Err(panic), _) => Err(errors::internal(py, &panic)),
        // What stopped the work says why, not the work.
        (Ok(Err(Error::Interrupted)), Some(raised)) => Err(raised),
        (Ok(Err(error)), _) => Err(host
            .call_method1("explain", (errors::raise(py, error),))
            .map_or_else(|problem| problem, |explained| PyErr::from_value(explained))),
        (Ok(Ok(_)), Some(raised)) => Err(raised),
        (Ok(Ok(value)), None) => Ok(value),
    }
}

/// Serves the work until it is finished; what was raised meanwhile, which has stopped it.
fn listen(
    py: Python<'_>,
    host: &Bound<'_, PyAny>,
    watch: &Watch<'_>,
    events: &Mutex<Receiver<Event>>,
) -> Option<PyErr> {
    let mut raised: Option<PyErr> = None;
    loop {
        // The lock only lends the receiver to the detached part.
        let event = py.detach(|| receive(&events.lock().unwrap_or_else(PoisonError::into_inner), BEAT));
        let served = match event {
            Ok(Event::Finished) | Err(RecvTimeoutError::Disconnected) => return raised,
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Ok(Event::Call(call)) if raised.is_some() => {
                call.refuse();
                Ok(())
            }
            Ok(Event::Call(call)) => call.submit(py, host),
            Ok(Event::Progress(what, done, total)) => host.call_method1("progress", (what, done, total)).map(drop),
            Ok(Event::Notice(text)) => host.call_method1("notice", (text,)).map(drop),
        };
        if let Err(problem) = served.and_then(|()| py.check_signals()) {
            watch.stop.store(true, Ordering::Relaxed);
            // Functions that other threads call would keep the work from noticing.
            watch.line.failed.store(true, Ordering::Relaxed);
            if raised.is_none() {
                // Threads that run the user's function are told as well.
                let _ = host.call_method0("stop");
                raised = Some(problem);
            }
        }
    }
}
