//! How far the work is, on standard error, and Ctrl-C, which asks it to stop.

use crate::output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use twostep::monitor::Monitor;
use twostep::study::Stage;

/// Exit status of a process that was interrupted.
const INTERRUPTED: i32 = 130;

/// Shows a bar on a terminal, a line per finished stage elsewhere, and nothing if told to be quiet.
pub(crate) struct Progress {
    stop: Arc<AtomicBool>,
    bar: ProgressBar,
    lines: bool,
    state: Mutex<State>,
}

/// What is being worked on.
struct State {
    what: String,
    total: usize,
    /// Setting and number of settings, where there is more than one.
    setting: Option<(usize, usize)>,
    started: Instant,
}

impl Progress {
    /// Starts to listen to Ctrl-C.
    pub(crate) fn new(quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal && !quiet { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(style("{spinner} {prefix}{msg} {elapsed}"));
        bar.set_message("starting");
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
                    "stopping after the current piece of work; finished stages are kept (press again to stop at once)",
                );
            });
        });
        let state = State { what: String::new(), total: 0, setting: None, started: Instant::now() };
        Self { stop, bar, lines: !terminal && !quiet, state: Mutex::new(state) }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Monitor for Progress {
    fn proceed(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    fn progress(&self, what: &str, done: usize, total: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if what == "settings" {
            state.setting = (total > 1 && done < total).then_some((done + 1, total));
            state.what.clear();
            state.started = Instant::now();
            self.bar.set_prefix(state.prefix());
            return;
        }
        if what != state.what || total != state.total {
            (state.what, state.total) = (what.to_owned(), total);
            self.bar.reset();
            self.bar.set_length(total as u64);
            self.bar.set_message(what.to_owned());
            self.bar.set_style(style("{spinner} {prefix}{msg} [{bar:30}] {pos}/{len}, {eta} left"));
        }
        // Threads report out of order; the bar must not run backwards.
        self.bar.set_position(self.bar.position().max(done as u64));
        if self.lines && done == total && Stage::ALL.iter().any(|stage| stage.name() == what) {
            let seconds = state.started.elapsed().as_secs_f64();
            output::note(&format!("{}{what}: {done} of {total} done, {seconds:.1} s", state.prefix()));
        }
    }
}

impl State {
    fn prefix(&self) -> String {
        self.setting.map_or(String::new(), |(number, total)| format!("setting {number} of {total}, "))
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}
