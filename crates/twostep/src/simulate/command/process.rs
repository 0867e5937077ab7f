//! Processes of runs: started in a group of their own, awaited, and ended with all their descendants.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::folder::EXECUTABLES;
use super::{STDERR_FILE, STDOUT_FILE};
use crate::simulate::Failure;

/// The variable by which all descendants of a run can be recognised.
const MARKER: &str = "TWOSTEP_RUN";
/// How long processes that were asked to end may take before they are made to.
#[cfg(unix)]
const GRACE: Duration = Duration::from_secs(2);
/// How long to wait for processes that were made to end: one in an uninterruptible call may never do so.
#[cfg(unix)]
const PATIENCE: Duration = Duration::from_secs(5);

/// A run in progress; ended with all its descendants when it is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    marker: String,
    started: Instant,
    is_over: bool,
}

/// The ends of a process's pipes that are ours.
pub(in crate::simulate) struct Pipes {
    pub(in crate::simulate) input: ChildStdin,
    pub(in crate::simulate) output: ChildStdout,
    pub(in crate::simulate) errors: ChildStderr,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit status; none if a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl Ended {
    fn new(status: ExitStatus) -> Self {
        #[cfg(unix)]
        {
            use std::os::unix::process::ExitStatusExt;
            // A shell says 128 + n of a command that signal n ended.
            let told = status.code().map(|code| code - 128).filter(|signal| SIGNALS.iter().any(|(n, _)| n == signal));
            match told.or(status.signal()) {
                Some(signal) => Self { code: None, signal: Some(signal) },
                None => Self { code: status.code(), signal: None },
            }
        }
        #[cfg(not(unix))]
        Self { code: status.code(), signal: None }
    }

    /// What is wrong with such an end; none if nothing is.
    pub fn problem(&self) -> Option<String> {
        (self.code != Some(0)).then(|| self.told("the command"))
    }

    /// How `what` ended, as a sentence.
    pub(in crate::simulate) fn told(&self, what: &str) -> String {
        match (self.code, self.signal) {
            (Some(code), _) => format!("{what} ended with exit status {code}"),
            (None, Some(signal)) => {
                let name = SIGNALS.iter().find(|(n, _)| *n == signal).map_or("", |(_, name)| name);
                format!("signal {signal}{name} ended {what}")
            }
            (None, None) => format!("{what} ended without exit status"),
        }
    }
}

/// Signals that end processes.
const SIGNALS: [(i32, &str); 15] = [
    (1, " (hang-up)"),
    (2, " (interrupt)"),
    (3, " (quit)"),
    (4, " (illegal instruction)"),
    (5, " (trap)"),
    (6, " (abort)"),
    (8, " (arithmetic error)"),
    (9, " (kill, as when the memory is exhausted)"),
    (11, " (segmentation fault)"),
    (13, " (broken pipe)"),
    (14, " (alarm)"),
    (15, " (terminate)"),
    (24, " (limit of processor time)"),
    (25, " (limit of file size)"),
    (if cfg!(target_os = "linux") { 7 } else { 10 }, " (bus error)"),
];

impl Running {
    /// Starts `command`, an executable's path and its arguments, in `folder`.
    pub(super) fn start(
        command: &[OsString],
        environment: &[(String, String)],
        folder: PathBuf,
        marker: &str,
    ) -> Result<Self, String> {
        let file = |name: &str| {
            let path = folder.join(name);
            File::create(&path).map_err(|problem| format!("{}: {problem}", path.display()))
        };
        let mut supervised = supervised(command);
        supervised
            .current_dir(&folder)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .env(MARKER, marker)
            .stdin(Stdio::null())
            .stdout(file(STDOUT_FILE)?)
            .stderr(file(STDERR_FILE)?);
        let child = {
            let _guard = EXECUTABLES.write();
            supervised.spawn()
        };
        let child = child.map_err(|problem| {
            let program = command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
            format!("{program} cannot be started: {problem}")
        })?;
        Ok(Self { child, marker: marker.to_owned(), started: Instant::now(), is_over: false })
    }

    /// Starts a process in a group of its own, whose pipes are the caller's to take from what is returned.
    pub(in crate::simulate) fn spawn(mut command: Command, marker: &str) -> io::Result<(Self, Pipes)> {
        command.env(MARKER, marker).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = {
            let _guard = EXECUTABLES.write();
            command.spawn()?
        };
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let running = Self { child, marker: marker.to_owned(), started: Instant::now(), is_over: false };
        match pipes {
            (Some(input), Some(output), Some(errors)) => Ok((running, Pipes { input, output, errors })),
            _ => Err(io::Error::other("a process was started without its pipes")),
        }
    }

    /// How it ended, if it has; what it has left behind in its process group is then ended too.
    pub(in crate::simulate) fn ended(&mut self) -> io::Result<Option<Ended>> {
        if self.is_over {
            // The number of its group may belong to others by now.
            return self.child.wait().map(|status| Some(Ended::new(status)));
        }
        if !has_ended(&mut self.child)? {
            return Ok(None);
        }
        self.is_over = true;
        end_remains(&mut self.child).map(|status| Some(Ended::new(status)))
    }

    /// Number of its process group; where there are none, of its process.
    pub fn process_group(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Waits for its end, and then ends what it has left behind in its process group.
    ///
    /// # Errors
    /// [`Failure::Interrupted`] as soon as `proceed` is false, and a failure when `timeout` is over; all its descendants
    /// are then ended.
    pub fn wait(mut self, timeout: Option<Duration>, proceed: &dyn Fn() -> bool) -> Result<Ended, Failure> {
        const SHORTEST: Duration = Duration::from_micros(200);
        const LONGEST: Duration = Duration::from_millis(50);
        let mut pause = SHORTEST;
        let failed = |problem: io::Error| Failure::Failed(format!("the command cannot be awaited: {problem}"));
        while !has_ended(&mut self.child).map_err(failed)? {
            if !proceed() {
                return Err(Failure::Interrupted);
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(self.started.elapsed()));
            if let (Some(Duration::ZERO), Some(timeout)) = (left, timeout) {
                let seconds = timeout.as_secs_f64();
                return Err(Failure::Failed(format!("the command took longer than its timeout of {seconds} s")));
            }
            sleep(left.map_or(pause, |left| left.min(pause)));
            // In proportion to the time passed, so that waiting adds at most a quarter to a short run.
            pause = (pause * 5 / 4).min(LONGEST);
        }
        self.is_over = true;
        let status = end_remains(&mut self.child).map_err(failed)?;
        Ok(Ended::new(status))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            end_all(&mut self.child, &self.marker);
        }
    }
}

/// Ends what interrupted runs have left behind, and says how many processes that were. Returns when they are gone, or after
/// some seconds.
///
/// On Linux these are the processes that carry one of the markers (one that ends with `*` stands for all that begin so), and those in one of `process_groups` beside such a
/// process; a number alone may meanwhile belong to another process. On other Unix systems they are the groups whose leader
/// is there.
pub fn end_leftovers(markers: &[String], process_groups: &[i32]) -> usize {
    system::end_leftovers(markers, process_groups)
}

/// Calls `is_gone` until it is true or `limit` is over, and says what it was last.
#[cfg(unix)]
fn wait_until(limit: Duration, is_gone: &mut dyn FnMut() -> bool) -> bool {
    let (started, mut pause) = (Instant::now(), Duration::from_millis(1));
    loop {
        if is_gone() {
            return true;
        }
        if started.elapsed() >= limit {
            return false;
        }
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

#[cfg(unix)]
use unix::{end_all, end_remains, has_ended, supervised};

#[cfg(unix)]
mod unix {
    use std::os::unix::process::CommandExt;

    use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid};

    use super::super::STATUS_FILE;
    use super::*;

    /// A command in a process group of its own whose exit status is in a file once it has ended, even if nobody is
    /// left to wait for it.
    ///
    /// The shell expands nothing of `command`, and runs none of its own commands for it, since the executable is a path.
    pub(super) fn supervised(command: &[OsString]) -> Command {
        let mut shell = Command::new("/bin/sh");
        shell
            .arg("-c")
            .arg(format!("\"$@\"; s=$?; echo \"$s ${MARKER}\" >{STATUS_FILE}; exit $s"))
            .arg("sh")
            .args(command);
        shell.process_group(0);
        shell
    }

    /// Whether the leader has ended; it stays there, so that its number belongs to no other process.
    pub(super) fn has_ended(child: &mut Child) -> io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(Pid::from_child(child)), options)?.is_some())
    }

    /// Ends what is left of the group of a leader that has ended.
    pub(super) fn end_remains(child: &mut Child) -> io::Result<ExitStatus> {
        let group = Pid::from_child(child);
        let _ = kill_process_group(group, Signal::TERM);
        let status = child.wait()?;
        if !wait_until(GRACE, &mut || !is_alive(group)) {
            let _ = kill_process_group(group, Signal::KILL);
            wait_until(PATIENCE, &mut || !is_alive(group));
        }
        Ok(status)
    }

    /// Ends a group whose leader may still run, and all other processes with that marker.
    pub(super) fn end_all(child: &mut Child, marker: &str) {
        let group = Pid::from_child(child);
        let markers = [marker.to_owned()];
        for (signal, limit) in [(Signal::TERM, GRACE), (Signal::KILL, PATIENCE)] {
            let _ = kill_process_group(group, signal);
            let mut asked = Vec::new();
            let is_gone = wait_until(limit, &mut || {
                system::end_marked(&markers, signal, Some(group), &mut asked) && system::has_gone(child, group)
            });
            if is_gone {
                break;
            }
        }
        let _ = child.try_wait();
    }

    /// Whether a group whose leader was reaped has members that have not ended.
    fn is_alive(group: Pid) -> bool {
        test_kill_process_group(group).is_ok() && system::has_members(group)
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;

    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

    use super::*;

    /// A process that has not ended.
    struct Process {
        pid: Pid,
        group: i32,
    }

    /// All processes but this one.
    fn processes() -> Vec<Process> {
        let own = std::process::id().cast_signed();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let others = numbers.filter(|number| *number != own);
        others
            .filter_map(|number| Some(Process { pid: Pid::from_raw(number)?, group: group_if_alive(number)? }))
            .collect()
    }

    fn group_if_alive(number: i32) -> Option<i32> {
        let stat = fs::read(format!("/proc/{number}/stat")).ok()?;
        // The name of the executable, in brackets, may hold any bytes, blanks and brackets among them.
        let stat = String::from_utf8_lossy(&stat);
        let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
        let state = fields.next()?;
        if ["Z", "X"].contains(&state) {
            return None;
        }
        fields.nth(1)?.parse().ok()
    }

    /// Whether the environment of a process has one of the markers; one that ends with `*` stands for all that begin so.
    fn is_marked(pid: Pid, markers: &[String]) -> bool {
        let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|variable| {
            let value = variable.strip_prefix(MARKER.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
            let fits = |value: &[u8], marker: &String| match marker.strip_suffix('*') {
                Some(beginning) => value.starts_with(beginning.as_bytes()),
                None => marker.as_bytes() == value,
            };
            value.is_some_and(|value| markers.iter().any(|marker| fits(value, marker)))
        })
    }

    /// Sends a signal to a process if `is_meant` holds for it, never to one that has taken over its number.
    fn send(pid: Pid, signal: Signal, is_meant: &dyn Fn() -> bool) {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) if is_meant() => {
                let _ = pidfd_send_signal(descriptor, signal);
            }
            // Before Linux 5.3 there is an instant in which the number could change hands.
            Err(Errno::NOSYS) if is_meant() => {
                let _ = kill_process(pid, signal);
            }
            _ => {}
        }
    }

    /// Sends `signal` once to each process with one of the markers outside the group `but`, and says whether there is
    /// none. `asked` are those to which it was sent.
    pub(super) fn end_marked(markers: &[String], signal: Signal, but: Option<Pid>, asked: &mut Vec<Pid>) -> bool {
        let others = processes().into_iter().filter(|process| Pid::from_raw(process.group) != but);
        let marked: Vec<Pid> = others.map(|process| process.pid).filter(|pid| is_marked(*pid, markers)).collect();
        for pid in &marked {
            if !asked.contains(pid) {
                asked.push(*pid);
                send(*pid, signal, &|| is_marked(*pid, markers));
            }
        }
        marked.is_empty()
    }

    /// Whether a leader and its group have ended. The leader is not reaped: until then its number names this group.
    pub(super) fn has_gone(leader: &mut Child, group: Pid) -> bool {
        has_ended(leader).unwrap_or(true) && !has_members(group)
    }

    /// Whether a group has members that have not ended.
    pub(super) fn has_members(group: Pid) -> bool {
        processes().iter().any(|process| process.group == group.as_raw_pid())
    }

    pub(super) fn end_leftovers(markers: &[String], process_groups: &[i32]) -> usize {
        // A process may have changed its environment, and is then recognised by its company.
        let all = processes();
        let is_lost = |group: i32| {
            process_groups.contains(&group) && all.iter().any(|p| p.group == group && is_marked(p.pid, markers))
        };
        let beside: Vec<&Process> = all.iter().filter(|p| is_lost(p.group) && !is_marked(p.pid, markers)).collect();
        let mut ended: Vec<Pid> = beside.iter().map(|process| process.pid).collect();
        for (signal, limit) in [(Signal::TERM, GRACE), (Signal::KILL, PATIENCE)] {
            let is_same = |process: &Process| group_if_alive(process.pid.as_raw_pid()) == Some(process.group);
            for process in &beside {
                send(process.pid, signal, &|| is_same(process));
            }
            let mut asked = Vec::new();
            let is_gone = wait_until(limit, &mut || {
                end_marked(markers, signal, None, &mut asked) && !beside.iter().any(|process| is_same(process))
            });
            ended.extend(asked);
            if is_gone {
                break;
            }
        }
        ended.sort_by_key(|pid| pid.as_raw_pid());
        ended.dedup();
        ended.len()
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
mod system {
    use rustix::process::{Pid, Signal, kill_process_group, test_kill_process, test_kill_process_group};

    use super::*;

    /// Environments of other processes cannot be read: there is none to be recognised by its marker.
    pub(super) fn end_marked(_: &[String], _: Signal, _: Option<Pid>, _: &mut Vec<Pid>) -> bool {
        true
    }

    /// Whether a leader and its group have ended. The leader is reaped, since it would count as a member.
    pub(super) fn has_gone(leader: &mut Child, group: Pid) -> bool {
        leader.try_wait().is_ok_and(|status| status.is_some()) && !has_members(group)
    }

    pub(super) fn has_members(group: Pid) -> bool {
        test_kill_process_group(group).is_ok()
    }

    pub(super) fn end_leftovers(_: &[String], process_groups: &[i32]) -> usize {
        let groups = process_groups.iter().filter_map(|group| Pid::from_raw(*group));
        let groups: Vec<Pid> = groups.filter(|group| test_kill_process(*group).is_ok()).collect();
        for (signal, limit) in [(Signal::TERM, GRACE), (Signal::KILL, PATIENCE)] {
            for group in &groups {
                let _ = kill_process_group(*group, signal);
            }
            if wait_until(limit, &mut || !groups.iter().any(|group| has_members(*group))) {
                break;
            }
        }
        groups.len()
    }
}

#[cfg(not(unix))]
use plain::{end_all, end_remains, has_ended, supervised};

/// Systems without process groups: the command itself is all that can be ended, and no run outlives this process usefully.
#[cfg(not(unix))]
mod plain {
    use super::*;

    pub(super) fn supervised(command: &[OsString]) -> Command {
        let mut out = Command::new(command.first().cloned().unwrap_or_default());
        out.args(command.iter().skip(1));
        out
    }

    pub(super) fn has_ended(child: &mut Child) -> io::Result<bool> {
        Ok(child.try_wait()?.is_some())
    }

    pub(super) fn end_remains(child: &mut Child) -> io::Result<ExitStatus> {
        child.wait()
    }

    pub(super) fn end_all(child: &mut Child, _: &str) {
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[cfg(not(unix))]
mod system {
    pub(super) fn end_leftovers(_: &[String], _: &[i32]) -> usize {
        0
    }
}
