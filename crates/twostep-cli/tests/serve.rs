//! `twostep serve` as other programs meet it: the Python client of UM-Bridge, and Ctrl-C.

#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(unix)]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const STUDY: &str = r#"
seed = 3
[simulator]
builtin = "logistic"
[unknowns.gamma]
range = [-0.5, 0.5]
[conditions.omega]
range = [-1, 1]
[constants]
beta = 3
[design]
method = "sobol"
runs = 30
[surrogate]
kind = "pce"
degree = 3
[train]
draws = 20
[measurements]
noise = { family = "normal", sd = 0.05 }
[measurements.synthetic]
truth = { gamma = 0.15 }
at = { omega = "linspace(-1, 1, 5)" }
[infer]
methods = ["e-lik", "e-post"]
draws = 200
"#;

/// A folder of one test alone, gone afterwards, with a server that ends at the latest then.
struct Place {
    folder: PathBuf,
    server: Option<Child>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Place {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("twostep-serve-cli-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("study.toml"), STUDY).unwrap();
        Self { folder, server: None }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_twostep"));
        command.args(arguments).current_dir(&self.folder).stdin(Stdio::null());
        command
    }

    /// Starts a server on any free port; what it says of itself, and the rest of its standard output.
    fn serve(&mut self) -> (Value, BufReader<std::process::ChildStdout>) {
        let mut server =
            self.command(&["serve", "study.toml", "--port", "0", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(server.stdout.take().unwrap());
        self.server = Some(server);
        let mut said = String::new();
        while !said.ends_with("\n}\n") {
            assert!(out.read_line(&mut said).unwrap() > 0, "the server ended at once: {said}");
        }
        (serde_json::from_str(&said).unwrap(), out)
    }

    /// Interrupts the server; its exit status.
    fn interrupt(&mut self) -> Option<i32> {
        let mut server = self.server.take().unwrap();
        assert!(Command::new("kill").args(["-INT", &server.id().to_string()]).status().unwrap().success());
        let patience = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = server.try_wait().unwrap() {
                return status.code();
            }
            if Instant::now() > patience {
                server.kill().unwrap();
                server.wait().unwrap();
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_study_is_served_until_interrupted() {
    let mut place = Place::new("interrupt");
    let unfinished = place.command(&["serve", "study.toml", "--port", "0"]).output().unwrap();
    assert_eq!(unfinished.status.code(), Some(1));
    assert!(String::from_utf8(unfinished.stderr).unwrap().contains("run `twostep run` first"));
    assert!(place.command(&["run", "study.toml"]).output().unwrap().status.success());
    let (said, mut out) = place.serve();
    assert_eq!((&said["method"], &said["posterior"]["normalised"]), (&"e-lik".into(), &true.into()));
    let url = said["url"].as_str().unwrap();
    let address = url.strip_prefix("http://").unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let port = address.rsplit(':').next().unwrap();
    let taken = place.command(&["serve", "study.toml", "--port", port]).output().unwrap();
    assert_eq!(taken.status.code(), Some(2));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /Info HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#"["forward","posterior"]"#), "{answer}");
    assert_eq!(place.interrupt(), Some(0));
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

/// `scripts/test` names the interpreter with `umbridge` in `TWOSTEP_TEST_PYTHON`.
#[test]
fn the_python_client_is_served() {
    let Some(python) = std::env::var_os("TWOSTEP_TEST_PYTHON") else {
        eprintln!("TWOSTEP_TEST_PYTHON is not set: nothing is tested here; scripts/test sets it");
        return;
    };
    let mut place = Place::new("python");
    assert!(place.command(&["run", "study.toml"]).output().unwrap().status.success());
    let (said, _out) = place.serve();
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve_client.py");
    let summary = place.folder.join("study.twostep/summary.json");
    let ran = Command::new(python).arg(client).arg(said["url"].as_str().unwrap()).arg(summary).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&ran.stdout), "served\n", "{}", text(&ran.stderr));
    assert_eq!(place.interrupt(), Some(0));
}
