//! Small shell scripts as simulators, from start to end.

#![cfg(unix)]

use std::cell::Cell;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Instant;

use super::*;
use crate::simulate::Over;

/// The folder of a study of this test alone, with one script `model` beside the study file.
struct Study {
    folder: PathBuf,
    spec: CommandSpec,
}

impl Study {
    fn new(name: &str, script: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("twostep-command-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let spec = CommandSpec {
            argv: ["./model", "{params}", "{results}"].map(str::to_owned).to_vec(),
            retry_argv: None,
            params_format: ParamsFormat::Json,
            templates: Vec::new(),
            copy: Vec::new(),
            link: Vec::new(),
            keep: Keep::Failed,
            timeout: None,
            environment: Vec::new(),
            results: vec![ResultsSpec::Default],
            folder: folder.clone(),
        };
        let study = Self { folder, spec };
        study.script("model", script);
        study
    }

    fn script(&self, name: &str, script: &str) {
        let path = self.folder.join(name);
        let _guard = folder::EXECUTABLES.read();
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn file(&self, name: &str, content: &str) {
        let path = self.folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn job(&self) -> Job {
        Job {
            id: 17,
            inputs: vec![("beta".to_owned(), 1.5), ("n".to_owned(), 3.0)],
            folder: self.folder.join("runs/17"),
            marker: format!("test {}", self.folder.display()),
            attempt: 1,
        }
    }

    fn run(&self) -> Result<Vec<Reading>, Failure> {
        let outcome = self.spec.run(&self.job(), &[wanted("y")], &|_| Ok(()), &|| true);
        self.spec.tidy(&self.job().folder, outcome.is_ok());
        outcome
    }

    fn value(&self) -> f64 {
        self.run().unwrap()[0].values[0]
    }

    fn reason(&self) -> String {
        match self.run() {
            Err(Failure::Failed(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    fn problems(&self) -> Vec<String> {
        let inputs = ["beta".to_owned(), "n".to_owned()];
        self.spec.check(&[wanted("y")], &inputs).iter().map(ToString::to_string).collect()
    }

    /// The file of the work folder, waiting for it for as long as a start may take.
    fn await_file(&self, name: &str) -> String {
        let started = Instant::now();
        loop {
            let text = fs::read_to_string(self.folder.join("runs/17").join(name)).unwrap_or_default();
            if text.ends_with('\n') {
                return text;
            }
            assert!(started.elapsed() < Duration::from_secs(20), "no {name}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Study {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn wanted(name: &str) -> Wanted {
    Wanted { name: name.to_owned(), over: None }
}

fn argv(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Whether the process whose number the text holds is there and has not ended.
fn is_alive(pid: &str) -> bool {
    let stat = Command::new("ps").args(["-o", "stat=", "-p", pid.trim()]).output().unwrap();
    let stat = String::from_utf8(stat.stdout).unwrap();
    !stat.trim().is_empty() && !stat.trim().starts_with('Z')
}

#[test]
fn a_run_reads_its_inputs_and_writes_its_results() {
    let study = Study::new("plain", r#"sed -n 's/.*"beta": \(.*\),/\1/p' "$1" > "$2""#);
    assert_eq!(study.problems(), [""; 0]);
    assert_eq!(study.run().unwrap(), [Reading { at: vec![], values: vec![1.5] }]);
    assert!(!study.job().folder.exists(), "the folder of a run that went well is removed");
}

#[test]
fn arguments_reach_the_command_as_they_are() {
    let mut study = Study::new("arguments", r#"for a in "$@"; do echo "<$a>"; done; echo 1 > results.out"#);
    study.file("data.txt", "");
    study.file("input.txt.tpl", "{{ beta }} {{ n:d }}");
    study.spec.templates = vec![("input.txt".to_owned(), "input.txt.tpl".into())];
    study.spec.argv =
        argv(&["model", "$HOME `id` *", "{{x}}", "--id={id}", "{folder}", "data.txt", "input.txt", "a b", ""]);
    study.spec.keep = Keep::All;
    assert_eq!(study.value(), 1.0);
    let folder = study.job().folder;
    let expected = format!(
        "<$HOME `id` *>\n<{{x}}>\n<--id=17>\n<{}>\n<{}>\n<input.txt>\n<a b>\n<>\n",
        folder.display(),
        study.folder.join("data.txt").display()
    );
    assert_eq!(fs::read_to_string(folder.join(STDOUT_FILE)).unwrap(), expected);
    assert_eq!(fs::read_to_string(folder.join("input.txt")).unwrap(), "1.5 3");
}

#[test]
fn shell_words_are_programs() {
    // `exit` and `cd` mean something to a shell and are no files.
    let mut study = Study::new("words", "");
    study.spec.argv = argv(&["exit", "{params}", "{results}"]);
    let found = "`exit` is neither a file beside the study file nor on the search path";
    assert_eq!(study.reason(), found);
    assert_eq!(study.problems(), [format!("simulator.command: {found}; correct the name, or install the program")]);
    study.spec.argv = argv(&["test", "{params}", "=", "{results}"]);
    assert!(study.reason().starts_with("the command ended with exit status 1"));
}

#[test]
fn every_run_has_its_files_and_variables() {
    let mut study = Study::new(
        "files",
        r#"cat input/a.txt one.txt two/deep/three.txt linked.txt shared/four.txt params.csv; echo "$COLOUR"
           [ -L linked.txt ] && [ -L shared ] && [ ! -L one.txt ] && ./tool > results.out; cat > /dev/null"#,
    );
    study.file("a.tpl", "{{ beta:.2f }}\n");
    study.file("one.txt", "1\n");
    study.file("data/two/deep/three.txt", "3\n");
    std::os::unix::fs::symlink(".", study.folder.join("data/two/loop")).unwrap();
    study.file("data/linked.txt", "l\n");
    study.file("shared/four.txt", "4\n");
    study.script("tool", "echo 0.25");
    study.spec.templates = vec![("input/a.txt".to_owned(), "a.tpl".into())];
    study.spec.copy = vec!["one.txt".into(), "data/two".into(), "tool".into()];
    study.spec.link = vec!["data/linked.txt".into(), "shared".into()];
    study.spec.params_format = ParamsFormat::Csv;
    study.spec.environment = vec![("COLOUR".to_owned(), "deep blue".to_owned())];
    study.spec.keep = Keep::All;
    assert_eq!(study.problems(), [""; 0]);
    assert_eq!(study.value(), 0.25);
    let printed = fs::read_to_string(study.job().folder.join(STDOUT_FILE)).unwrap();
    assert_eq!(printed, "1.50\n1\n3\nl\n4\nbeta,n\n1.5,3\ndeep blue\n");
    study.spec.keep = Keep::None;
    assert_eq!(study.value(), 0.25);
    assert!(!study.job().folder.exists());
    assert!(study.folder.join("shared/four.txt").exists(), "what was linked stays");
}

#[test]
fn results_come_from_any_file() {
    let mut study = Study::new(
        "kinds",
        r#"echo "Failed to find a colour map"; echo "drag = 1.5"; mkdir out; printf 't;y\r\n0;1,5\r\n1;2,5\r\n' > out/y.csv; echo '{"r": [1, 2]}' > r.json"#,
    );
    let over = |at| Some(Over { name: "t".to_owned(), at });
    let outputs = [
        wanted("a"),
        wanted("b"),
        Wanted { name: "c".to_owned(), over: over(None) },
        Wanted { name: "d".to_owned(), over: over(Some(vec![0.0, 1.0])) },
    ];
    let file = |name: &str| Some(name.to_owned());
    study.spec.results = vec![
        ResultsSpec::Regex { file: file(STDOUT_FILE), regex: "drag = (.*)".to_owned(), which: Which::First },
        ResultsSpec::Value { file: file(STDOUT_FILE), value: 1 },
        ResultsSpec::Csv { file: file("out/y.csv"), column: "y".to_owned(), row: None, coordinate: None },
        ResultsSpec::Json { file: file("r.json"), path: "r".to_owned(), coordinate: None },
    ];
    study.spec.argv = argv(&["./model", "{params}"]);
    assert!(study.spec.check(&outputs, &["beta".to_owned()]).is_empty());
    let readings = study.spec.run(&study.job(), &outputs, &|_| Ok(()), &|| true).unwrap();
    assert_eq!(readings[0].values, [1.5]);
    assert_eq!(readings[1].values, [1.5]);
    assert_eq!(readings[2], Reading { at: vec![0.0, 1.0], values: vec![1.5, 2.5] });
    assert_eq!(readings[3], Reading { at: vec![0.0, 1.0], values: vec![1.0, 2.0] });
}

#[test]
fn failures_are_told_in_words() {
    let reason = |name: &str, script: &str| Study::new(name, script).reason();
    assert_eq!(
        reason("status", "echo 1 > \"$2\"; for i in 1 2 3 4 5 6 7; do echo line $i >&2; done; exit 3"),
        "the command ended with exit status 3; stderr.txt ends with: line 3 | line 4 | line 5 | line 6 | line 7"
    );
    assert_eq!(
        reason("stdout", "echo sorry; exit 1"),
        "the command ended with exit status 1; stdout.txt ends with: sorry"
    );
    assert_eq!(reason("silent", "exit 255"), "the command ended with exit status 255; it wrote no message");
    let crash = reason("crash", "echo 1 > \"$2\"; kill -SEGV $$");
    assert!(crash.starts_with("signal 11 (segmentation fault) ended the command"), "{crash}");
    assert_eq!(reason("none", "true"), "y: the command wrote no results.out");
    assert_eq!(reason("empty", ": > \"$2\""), "y: results.out is empty");
    assert_eq!(reason("nan", "echo nan > \"$2\""), "y: the value of results.out is missing or NaN");
    assert_eq!(reason("infinite", "echo -Inf > \"$2\""), "y: the value of results.out is -inf");
    assert_eq!(reason("says", "echo FAIL > \"$2\""), "y: results.out says that the run failed: FAIL");
    assert_eq!(reason("words", "echo no luck > \"$2\""), "y: results.out has 0 numbers, and number 1 is wanted");
}

#[test]
fn folders_of_failures_are_kept_and_made_afresh() {
    let mut study = Study::new("afresh", "echo 1 > \"$2\"; exit 1");
    assert!(study.reason().starts_with("the command ended with exit status 1"));
    assert!(study.job().folder.join(RESULTS_FILE).exists());
    study.script("model", "exit 0");
    assert_eq!(study.reason(), "y: the command wrote no results.out", "results of another attempt are not read");
    study.spec.keep = Keep::None;
    study.reason();
    assert!(!study.job().folder.exists());
    assert_eq!(fs::read_dir(study.folder.join("runs")).unwrap().count(), 0);
}

#[test]
fn later_attempts_may_use_another_command() {
    let mut study = Study::new("retry", "exit 1");
    study.spec.retry_argv = Some(argv(&["sh", "-c", "echo 5 > $0", "{results}", "{params}"]));
    assert!(study.run().is_err());
    let again = Job { attempt: 2, ..study.job() };
    let readings = study.spec.run(&again, &[wanted("y")], &|_| Ok(()), &|| true).unwrap();
    assert_eq!(readings[0].values, [5.0]);
}

#[test]
fn a_timeout_ends_all_descendants() {
    // One descendant ignores the signal within the group, one outside.
    let stubborn = "trap '' TERM; echo $$ > $0; while :; do sleep 0.05; done";
    let script = format!(
        "sh -c \"{0}\" inside & setsid sh -c \"{0}\" outside & while :; do sleep 0.05; done",
        stubborn.replace('$', "\\$")
    );
    let mut study = Study::new("timeout", &script);
    // Long enough for all of them to have started on a busy machine.
    study.spec.timeout = Some(Duration::from_secs(2));
    let started = Instant::now();
    assert_eq!(study.reason(), "the command took longer than its timeout of 2 s");
    assert!(started.elapsed() < Duration::from_secs(15));
    for name in ["inside", "outside"] {
        let pid = study.await_file(name);
        // Only Linux lets others be recognised that have left the group.
        assert!(!is_alive(&pid) || (name == "outside" && !cfg!(target_os = "linux")), "{name}");
    }
}

#[test]
fn what_a_run_leaves_behind_is_ended() {
    let study = Study::new("behind", "sleep 1000 & echo $! > \"$2\"");
    let pid = study.value();
    assert!(!is_alive(&pid.to_string()));
}

#[test]
fn a_run_stops_when_it_may_not_proceed() {
    let study = Study::new("interrupted", "echo $$ > started; sleep 1000");
    let group = Cell::new(0);
    let on_start = |number| {
        group.set(number);
        study.await_file("started");
        Ok(())
    };
    let outcome = study.spec.run(&study.job(), &[wanted("y")], &on_start, &|| false);
    assert_eq!(outcome, Err(Failure::Interrupted));
    assert!(!is_alive(&group.get().to_string()));
}

#[test]
fn a_run_that_cannot_be_recorded_is_ended() {
    let study = Study::new("unrecorded", "sleep 1000");
    let group = Cell::new(0);
    let on_start = |number| {
        group.set(number);
        Err(crate::error::Error::Interrupted)
    };
    let outcome = study.spec.run(&study.job(), &[wanted("y")], &on_start, &|| true);
    assert!(matches!(outcome, Err(Failure::Failed(_))));
    assert!(!is_alive(&group.get().to_string()));
}

#[test]
fn finished_runs_are_adopted_and_half_finished_ones_are_not() {
    let study = Study::new("adopt", "echo 4 > \"$2\"");
    let job = study.job();
    let adopted = || study.spec.adopt(&job.folder, &job.marker, &[wanted("y")]);
    assert!(adopted().is_none());
    let running = study.spec.start(&job, &[wanted("y")]).unwrap();
    // As if its owner had been killed: nobody waits, and yet the status is there.
    assert_eq!(study.await_file(STATUS_FILE), format!("0 {}\n", job.marker));
    assert_eq!(adopted().unwrap()[0].values, [4.0]);
    drop(running);

    let status = job.folder.join(STATUS_FILE);
    let marker = &job.marker;
    let others = ["".to_owned(), format!("0 {marker}"), format!("1 {marker}\n"), "0\n".into(), "0 another-1\n".into()];
    for other in others {
        fs::write(&status, &other).unwrap();
        assert!(adopted().is_none(), "{other:?}");
    }
    fs::write(&status, format!("0 {marker}\n")).unwrap();
    assert!(adopted().is_some());
    fs::write(job.folder.join(RESULTS_FILE), "").unwrap();
    assert!(adopted().is_none());
    study.spec.tidy(&job.folder, true);
    assert!(!job.folder.exists());
}

#[test]
fn a_crash_leaves_no_status_of_success() {
    let study = Study::new("killed", "echo 4 > \"$2\"; echo $$ > started; sleep 1000");
    let job = study.job();
    let running = study.spec.start(&job, &[wanted("y")]).unwrap();
    study.await_file("started");
    drop(running);
    assert!(study.spec.adopt(&job.folder, &job.marker, &[wanted("y")]).is_none());
}

#[cfg(target_os = "linux")]
#[test]
fn leftovers_are_ended_by_their_marker_only() {
    let study = Study::new("leftovers", "trap '' TERM; echo $$ > started; sleep 1000 & while :; do wait; done");
    let stranger = Command::new("sleep").arg("1000").env("TWOSTEP_RUN", "of another ledger").spawn();
    let mut stranger = stranger.unwrap();
    let group = {
        let running = study.spec.start(&study.job(), &[wanted("y")]).unwrap();
        let group = running.process_group();
        study.await_file("started");
        // As if this process had been killed.
        std::mem::forget(running);
        group
    };
    let stranger_id = stranger.id().cast_signed();
    assert_eq!(end_leftovers(&["no such marker".to_owned()], &[group, stranger_id]), 0);
    assert!(is_alive(&study.await_file("started")));
    // Supervisor, script and its child.
    assert_eq!(end_leftovers(&[study.job().marker], &[group, stranger_id]), 3);
    assert!(!is_alive(&study.await_file("started")));
    assert!(is_alive(&stranger_id.to_string()));
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn problems_are_found_before_a_run() {
    let mut study = Study::new("check", "");
    study.file("a.tpl", "x\n{{ bta }}\n");
    study.file("b.tpl", "{{ beta:12.6q }}");
    study.file("plain", "");
    study.file("results.out", "1");
    let base = study.spec.clone();
    let mut found = |change: &dyn Fn(&mut CommandSpec)| {
        study.spec = base.clone();
        change(&mut study.spec);
        let problems = study.problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].clone()
    };
    assert_eq!(
        found(&|spec| spec.argv.push("{prams}".to_owned())),
        "simulator.command: `{prams}` has the unknown placeholder `{prams}`; \
         write {params}, {results}, {id} or {folder}, and {{ or }} for a brace"
    );
    assert!(found(&|spec| spec.argv[0] = "./plain".to_owned()).contains("`./plain` may not be executed; run chmod +x"));
    assert!(found(&|spec| spec.argv[0] = "plain".to_owned()).contains("and there is no other on the search path"));
    assert!(found(&|spec| spec.argv[0] = "./none".to_owned()).starts_with("simulator.command: there is no file `"));
    assert_eq!(
        found(&|spec| spec.argv = argv(&["true", "{results}"])),
        "simulator.command: the command does not get its inputs; \
         add {params} to the arguments, or write templates; the inputs are in params.json"
    );
    assert!(
        found(&|spec| spec.argv = argv(&["true", "{params}"]))
            .contains("does not know where to write `y`; add {results}")
    );
    assert!(
        found(&|spec| spec.retry_argv = Some(vec!["true".to_owned(), "{folder}{".to_owned()]))
            .contains("retry_command")
    );
    assert_eq!(
        found(&|spec| spec.templates = vec![("a".to_owned(), "a.tpl".into())]),
        "simulator.templates: a.tpl, line 2: there is no input `bta`; did you mean \"beta\"? known are beta, n"
    );
    assert!(
        found(&|spec| spec.templates = vec![("b".to_owned(), "b.tpl".into())])
            .starts_with("simulator.templates: b.tpl, line 1: `{{ beta:12.6q }}` has the unknown format `12.6q`")
    );
    assert!(
        found(&|spec| spec.templates = vec![("c".to_owned(), "c.tpl".into())])
            .starts_with("simulator.templates: c.tpl: ")
    );
    assert!(found(&|spec| spec.copy = vec!["none".into()]).starts_with("simulator.copy: none: "));
    assert!(found(&|spec| spec.link = vec!["none".into()]).starts_with("simulator.link: none: "));
    assert!(
        found(&|spec| spec.copy = vec!["plain".into(), "./plain".into()])
            .contains("`plain` is put into the work folder twice")
    );
    assert!(found(&|spec| spec.copy = vec!["results.out".into()]).contains("a file that every run has of its own"));
    assert!(
        found(&|spec| spec.templates = vec![("../c".to_owned(), "model".into())]).contains("outside the work folder")
    );
    assert!(
        found(&|spec| spec.environment = vec![("a=b".to_owned(), String::new())]).starts_with("simulator.environment")
    );
    assert!(found(&|spec| spec.results = vec![]).starts_with("outputs: 0 ways to read 1 outputs"));
    let read = |spec: ResultsSpec| move |command: &mut CommandSpec| command.results = vec![spec.clone()];
    let file = |name: &str| Some(name.to_owned());
    assert!(
        found(&read(ResultsSpec::Value { file: file("/tmp/x"), value: 1 }))
            .starts_with("outputs.y.results.file: `/tmp/x` lies")
    );
    assert!(found(&read(ResultsSpec::Value { file: None, value: 0 })).starts_with("outputs.y.results.value"));
    let regex = |regex: &str| ResultsSpec::Regex { file: None, regex: regex.to_owned(), which: Which::Last };
    assert!(found(&read(regex("a("))).starts_with("outputs.y.results.regex: `a(` is not a regular expression"));
    assert!(found(&read(regex("a"))).contains("`a` has 0 groups"));
    let json = ResultsSpec::Json { file: None, path: "a..b".to_owned(), coordinate: None };
    assert!(found(&read(json)).starts_with("outputs.y.results.json: `a..b` is not a path"));
    let csv = ResultsSpec::Csv { file: None, column: "y".to_owned(), row: Some(Row::Number(0)), coordinate: None };
    assert!(found(&read(csv)).starts_with("outputs.y.results.row"));
    let stale = found(&|spec| {
        spec.copy = vec!["plain".into()];
        spec.results = vec![ResultsSpec::Value { file: file("./plain"), value: 1 }];
    });
    assert!(stale.contains("`plain` is there before the run, and ./plain is read as its results"), "{stale}");
}

#[test]
fn an_input_that_reaches_no_template_is_a_problem() {
    let mut study = Study::new("unmarked", "");
    study.file("a.tpl", "{{ beta }}");
    study.spec.templates = vec![("a".to_owned(), "a.tpl".into())];
    study.spec.argv = argv(&["./model", "{results}"]);
    assert_eq!(
        study.problems(),
        ["simulator.command: the command does not get `n`, which stands in no template; \
          add {params} to the arguments, or write templates; the inputs are in params.json"]
    );
    study.file("a.tpl", "{{ beta }} {{ n }}");
    assert_eq!(study.problems(), [""; 0]);
    // A script that names the files needs no arguments.
    study.spec.templates.clear();
    study.spec.argv = argv(&["./model"]);
    study.script("model", "cat params.json > results.out");
    assert_eq!(study.problems(), [""; 0]);
}

#[test]
fn fingerprints_follow_what_decides_a_run() {
    let mut study = Study::new("fingerprint", "");
    for (name, content) in [("a.tpl", "{{ beta }}"), ("one", "1"), ("data/deep/two", "2")] {
        study.file(name, content);
    }
    study.spec.templates = vec![("a".to_owned(), "a.tpl".into())];
    study.spec.copy = vec!["one".into()];
    study.spec.link = vec!["data".into()];
    let base = study.spec.clone();
    let before = base.fingerprint_parts();
    assert_eq!(before, base.fingerprint_parts());

    // Each file changes one part, and so does each field that counts.
    for name in ["model", "a.tpl", "one", "data/deep/two"] {
        let content = fs::read(study.folder.join(name)).unwrap();
        fs::write(study.folder.join(name), "another").unwrap();
        let after = base.fingerprint_parts();
        assert_eq!(after.iter().zip(&before).filter(|(a, b)| a != b).count(), 1, "{name}");
        fs::write(study.folder.join(name), content).unwrap();
    }
    fs::rename(study.folder.join("data/deep/two"), study.folder.join("data/deep/three")).unwrap();
    assert_ne!(base.fingerprint_parts(), before, "a name within a folder");
    fs::rename(study.folder.join("data/deep/three"), study.folder.join("data/deep/two")).unwrap();
    assert_eq!(base.fingerprint_parts(), before);

    let changed = |change: &dyn Fn(&mut CommandSpec)| {
        let mut spec = base.clone();
        change(&mut spec);
        spec.fingerprint_parts() != before
    };
    assert!(changed(&|spec| spec.argv.push("-v".to_owned())));
    assert!(changed(&|spec| spec.retry_argv = Some(vec!["true".to_owned()])));
    assert!(changed(&|spec| spec.params_format = ParamsFormat::Dakota));
    assert!(changed(&|spec| spec.environment = vec![("A".to_owned(), "b".to_owned())]));
    assert!(changed(&|spec| spec.results = vec![ResultsSpec::Value { file: None, value: 2 }]));
    assert!(!changed(&|spec| spec.timeout = Some(Duration::from_secs(1))));
    assert!(!changed(&|spec| spec.keep = Keep::None));
}

/// Prints what a run costs beyond starting a process; `cargo test --release -- --ignored --nocapture overhead`.
#[test]
#[ignore = "a measurement, not a test"]
#[allow(clippy::print_stdout, reason = "it reports a time")]
fn overhead() {
    const RUNS: u32 = 500;
    let mut study = Study::new("overhead", "");
    study.spec.argv = argv(&["true", "{params}"]);
    study.spec.results = vec![ResultsSpec::Value { file: Some("params.json".to_owned()), value: 1 }];
    let per_run = |run: &dyn Fn()| {
        let started = Instant::now();
        (0..RUNS).for_each(|_| run());
        started.elapsed().as_secs_f64() * 1e3 / f64::from(RUNS)
    };
    let spawned = per_run(&|| assert!(Command::new("/bin/true").status().unwrap().success()));
    let run = per_run(&|| assert_eq!(study.value(), 1.5));
    println!("spawning true: {spawned:.2} ms; a run of true: {run:.2} ms");
}
