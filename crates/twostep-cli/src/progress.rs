//! How far the work is, on standard error, and Ctrl-C, which asks it to stop.

use crate::output::{self, Look};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use twostep::calibrate::{I_TRIALS, T_TRIALS};
use twostep::monitor::Monitor;
use twostep::study::Stage;
use twostep::train::T_DRAWS;

/// Exit status of a process that was interrupted.
const INTERRUPTED: i32 = 130;

/// Time between two lines where there is no terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// A forecast waits for so many pieces and so much time: before, it would be a guess.
const KNOWN_PIECES: usize = 3;
const KNOWN_TIME: Duration = Duration::from_secs(2);

/// Work that belongs to no stage.
const APART: [&str; 2] = ["enough", I_TRIALS];

/// Shows a bar on a terminal, lines elsewhere, and nothing if told to be quiet.
pub(crate) struct Progress {
    stop: Arc<AtomicBool>,
    bar: ProgressBar,
    shared: Arc<Shared>,
    /// Writes the lines, where there is no terminal.
    writer: Mutex<Option<JoinHandle<()>>>,
    lines: bool,
}

/// What the work reports, and whoever shows it reads.
struct Shared {
    state: Mutex<State>,
    finished: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line now and then, until the work is finished.
    fn write_lines(&self) {
        let mut state = self.lock();
        while !state.finished {
            let waited = self.finished.wait_timeout(state, BETWEEN_LINES).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            if waited.1.timed_out() && !state.finished {
                let line = format!("{}: {}", state.head(), state.tail(Instant::now()));
                // A reader that is slow must not hold up the work, which reports under this lock.
                drop(state);
                output::note(&line);
                state = self.lock();
            }
        }
    }
}

/// What is being worked on.
struct State {
    /// `None` before the first report of a setting.
    stage: Option<Stage>,
    /// The method whose many fits are counted, within the I-step; without a stage, the work that has none.
    part: Option<String>,
    done: usize,
    total: usize,
    /// Pieces that were done before the count began.
    kept: usize,
    /// T-trials that are trained, and all.
    trained: Option<(usize, usize)>,
    /// Setting and number of settings, where there is more than one.
    setting: Option<(usize, usize)>,
    /// When the stage began.
    stage_began: Instant,
    /// When the pieces that are counted began.
    pieces_began: Instant,
    /// When the last report came.
    reported: Instant,
    /// When all pieces will be done, judged by those that are, and how many are done in a second.
    due: Option<(Instant, f64)>,
    finished: bool,
}

impl State {
    fn new(now: Instant) -> Self {
        Self {
            stage: None,
            part: None,
            done: 0,
            total: 0,
            kept: 0,
            trained: None,
            setting: None,
            stage_began: now,
            pieces_began: now,
            reported: now,
            due: None,
            finished: false,
        }
    }

    /// Begins with `stage`, of which nothing has been reported.
    fn begin(&mut self, stage: Option<Stage>, now: Instant) {
        *self = Self { stage, setting: self.setting, finished: self.finished, ..Self::new(now) };
    }

    /// Takes a report; a line to keep where a stage was finished by it.
    fn report(&mut self, what: &str, done: usize, total: usize, now: Instant) -> Option<String> {
        if what == "settings" {
            self.setting = (total > 1 && done < total).then_some((done + 1, total));
            self.begin(None, now);
            return None;
        }
        if what == T_TRIALS {
            let before = self.trained.map_or(0, |(done, _)| done);
            self.trained = Some((done.max(before), total));
            return None;
        }
        let stage = Stage::ALL.into_iter().find(|stage| stage.name() == what);
        let part = stage.is_none().then(|| what.to_owned());
        let stage = stage.or((what == T_DRAWS).then_some(Stage::Train));
        let is_apart = APART.contains(&what);
        // Methods are parts of the I-step.
        let stage = (!is_apart).then_some(stage.unwrap_or(Stage::Infer));
        if (stage, &part, total) != (self.stage, &self.part, self.total) {
            // The first report of a stage may come with its first piece, which began when the stage before ended.
            let began = if self.stage == stage || done > 0 { self.stage_began } else { now };
            let pieces_began = if self.stage == stage { self.reported } else { began };
            self.begin(stage, began);
            (self.part, self.total, self.pieces_began) = (part, total, pieces_began);
            self.kept = if is_apart { done } else { 0 };
        }
        self.reported = now;
        // Threads report out of order.
        self.done = self.done.max(done);
        // Runs take alike, and so do fits of one method; methods and outputs do not.
        let are_alike = stage == Some(Stage::Simulate) || self.part.is_some();
        let elapsed = now.duration_since(self.pieces_began);
        let new = self.done - self.kept;
        self.due = (are_alike && new >= KNOWN_PIECES && elapsed >= KNOWN_TIME && self.done < total).then(|| {
            let left = elapsed.mul_f64((total - self.done) as f64 / new as f64);
            (now + left, new as f64 / elapsed.as_secs_f64())
        });
        if (self.part.is_some() && !is_apart) || self.done < total {
            return None;
        }
        let seconds = now.duration_since(self.stage_began).as_secs_f64();
        let line = format!("{}: {total} of {total} done, {seconds:.1} s", self.head());
        let next = Stage::ALL.into_iter().skip_while(|other| Some(*other) != stage).nth(1);
        self.begin(next, now);
        Some(line)
    }

    /// What is done: `setting 2 of 9, infer, e-post`.
    fn head(&self) -> String {
        let setting = self.setting.map(|(number, total)| format!("setting {number} of {total}"));
        let stage = self.stage.map(Stage::name).or(self.part.is_none().then_some("working")).map(str::to_owned);
        let trained = self.trained.map(|(done, total)| format!("{done} of {total} {T_TRIALS}"));
        let parts: Vec<String> = setting.into_iter().chain(stage).chain(trained).chain(self.part.clone()).collect();
        parts.join(", ")
    }

    /// How far it is: `312 of 4000, 40 s, 7.8 per s, about 8 min left`.
    fn tail(&self, now: Instant) -> String {
        let elapsed = spoken(now.saturating_duration_since(self.stage_began));
        let count = if self.total > 0 { format!("{} of {}, ", self.done, self.total) } else { String::new() };
        let left = self.due.and_then(|(due, rate)| Some((due.checked_duration_since(now)?, rate)));
        let left = left.filter(|(left, _)| left.as_secs() > 0);
        let left = left.map_or(String::new(), |(left, rate)| format!(", {}, about {} left", pace(rate), spoken(left)));
        format!("{count}{elapsed}{left}")
    }
}

/// `7.8 per s`, `12 per min`, `3 per h`: in the shortest unit of time that something is done in.
fn pace(per_second: f64) -> String {
    let (rate, unit) = match per_second {
        r if r >= 1.0 => (r, "s"),
        r if r * 60.0 >= 1.0 => (r * 60.0, "min"),
        r => (r * 3600.0, "h"),
    };
    if rate < 9.95 { format!("{rate:.1} per {unit}") } else { format!("{rate:.0} per {unit}") }
}

/// `40 s`, `3 min`, `2 h 5 min`.
fn spoken(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

impl Progress {
    /// Starts to listen to Ctrl-C.
    pub(crate) fn new(quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let lines = !terminal && !quiet;
        let shared = Arc::new(Shared { state: Mutex::new(State::new(Instant::now())), finished: Condvar::new() });
        let target = if terminal && !quiet { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(style("{spinner} {head}, {tail}", &shared));
        if terminal && !quiet {
            bar.enable_steady_tick(Duration::from_millis(120));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (pressed, shown) = (stop.clone(), bar.clone());
        // Without a handler Ctrl-C ends the process at once, and finished stages are still kept.
        let _ = ctrlc::set_handler(move || {
            if pressed.swap(true, Ordering::SeqCst) {
                std::process::exit(INTERRUPTED);
            }
            shown.suspend(|| {
                output::note(
                    "stopping; what is finished is kept, simulator runs under way are ended (press again to stop at once)",
                );
            });
        });
        let writer = lines.then(|| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.write_lines())
        });
        Self { stop, bar, shared, writer: Mutex::new(writer), lines }
    }

    /// Takes the bar away, and ends the lines.
    pub(crate) fn finish(&self) {
        self.shared.lock().finished = true;
        self.shared.finished.notify_all();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A writer that panicked has said so; the results are none the worse.
        let _ = writer.map(JoinHandle::join);
        self.bar.finish_and_clear();
    }
}

impl Monitor for Progress {
    fn proceed(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    fn notice(&self, text: &str) {
        self.bar.suspend(|| output::note_as("note", Look::Warning, text));
    }

    fn progress(&self, what: &str, done: usize, total: usize) {
        let mut state = self.shared.lock();
        let line = state.report(what, done, total, Instant::now());
        let (done, total) = (state.done as u64, state.total as u64);
        // The bar asks for the state when it is drawn.
        drop(state);
        if let Some(line) = line.filter(|_| self.lines) {
            output::note(&line);
        }
        let template = if total > 0 { "{spinner} {head} [{bar:30}] {tail}" } else { "{spinner} {head}, {tail}" };
        self.bar.set_style(style(template, &self.shared));
        self.bar.set_length(total);
        self.bar.set_position(done);
    }
}

fn style(template: &str, shared: &Arc<Shared>) -> ProgressStyle {
    let (of_head, of_tail) = (shared.clone(), shared.clone());
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
        .with_key("head", move |_: &ProgressState, text: &mut dyn Write| {
            // A bar that cannot be drawn is not worth a word.
            let _ = text.write_str(&of_head.lock().head());
        })
        .with_key("tail", move |_: &ProgressState, text: &mut dyn Write| {
            let _ = text.write_str(&of_tail.lock().tail(Instant::now()));
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_waits_until_something_is_known_and_counts_down() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut state = State::new(start);
        state.report("settings", 0, 1, start);
        assert_eq!(format!("{}, {}", state.head(), state.tail(at(1))), "working, 1 s");
        state.report("simulate", 1, 40, at(10));
        assert_eq!(format!("{}, {}", state.head(), state.tail(at(10))), "simulate, 1 of 40, 10 s");
        state.report("simulate", 4, 40, at(40));
        assert_eq!(state.tail(at(40)), "4 of 40, 40 s, 6.0 per min, about 6 min left");
        // Nothing is finished for long: the forecast runs out instead of growing.
        assert_eq!(state.tail(at(340)), "4 of 40, 5 min, 6.0 per min, about 60 s left");
        assert_eq!(state.tail(at(500)), "4 of 40, 8 min");
        // Out of order.
        state.report("simulate", 3, 40, at(501));
        assert_eq!(state.done, 4);
    }

    #[test]
    fn a_pace_has_a_unit_that_suits_it() {
        let paces = [1234.4, 7.84, 1.0, 0.2, 1.0 / 1200.0].map(pace);
        assert_eq!(paces, ["1234 per s", "7.8 per s", "1.0 per s", "12 per min", "3.0 per h"]);
    }

    #[test]
    fn work_without_a_stage_has_its_own_name_and_a_forecast() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut state = State::new(start);
        state.report("settings", 0, 1, start);
        state.report("simulate", 40, 40, at(5));
        state.report("enough", 0, 16, at(6));
        state.report("enough", 4, 16, at(16));
        assert_eq!(
            format!("{}, {}", state.head(), state.tail(at(16))),
            "enough, 4 of 16, 10 s, 24 per min, about 30 s left"
        );
        assert_eq!(state.report("enough", 16, 16, at(50)).unwrap(), "enough: 16 of 16 done, 44.0 s");
        assert_eq!(state.head(), "working");
    }

    #[test]
    fn trials_that_were_kept_say_nothing_about_the_pace() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut state = State::new(start);
        state.report("settings", 0, 1, start);
        state.report(I_TRIALS, 100, 200, at(0));
        state.report(T_TRIALS, 60, 100, at(1));
        state.report(I_TRIALS, 110, 200, at(10));
        assert_eq!(
            format!("{}: {}", state.head(), state.tail(at(10))),
            "60 of 100 T-trials, I-trials: 110 of 200, 10 s, 1.0 per s, about 90 s left"
        );
    }

    #[test]
    fn draws_of_chains_are_pieces_of_the_t_step() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut state = State::new(start);
        state.report("settings", 0, 1, start);
        state.report("train", 0, 1, start);
        state.report(T_DRAWS, 0, 8000, at(1));
        state.report(T_DRAWS, 1600, 8000, at(5));
        assert_eq!(
            format!("{}: {}", state.head(), state.tail(at(5))),
            "train, T-draws: 1600 of 8000, 5 s, 320 per s, about 20 s left"
        );
        assert_eq!(state.report("train", 1, 1, at(30)).unwrap(), "train: 1 of 1 done, 30.0 s");
    }

    #[test]
    fn methods_are_named_and_not_forecast_by_their_number() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut state = State::new(start);
        state.report("settings", 1, 9, start);
        assert_eq!(state.report("train", 0, 1, at(5)), None);
        assert_eq!(state.report("train", 1, 1, at(9)).unwrap(), "setting 2 of 9, train: 1 of 1 done, 4.0 s");
        // The I-step says nothing before its first method is finished.
        assert_eq!(format!("{}, {}", state.head(), state.tail(at(12))), "setting 2 of 9, infer, 3 s");
        state.report("infer", 3, 4, at(20));
        assert_eq!(state.tail(at(29)), "3 of 4, 20 s");
        state.report("e-post", 10, 100, at(30));
        state.report("e-post", 20, 100, at(40));
        assert_eq!(state.head(), "setting 2 of 9, infer, e-post");
        // Twenty in the twenty seconds since the third method.
        assert_eq!(state.tail(at(40)), "20 of 100, 31 s, 1.0 per s, about 80 s left");
        assert_eq!(state.report("infer", 4, 4, at(90)).unwrap(), "setting 2 of 9, infer: 4 of 4 done, 81.0 s");
    }
}
