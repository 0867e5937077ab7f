//! The UM-Bridge client against servers of the Python package `umbridge`.
//!
//! `scripts/test` names the interpreter that has it in `TWOSTEP_TEST_PYTHON`; without that there is nothing to test against.

#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use twostep::simulate::{Failure, Job, OutputAt, Over, Reading, UmbridgeModel, UmbridgeSpec, Wanted};

/// A running `umbridge_server.py`, which ends with this.
struct Server {
    process: Child,
    url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Server {
    /// None where no interpreter is named.
    fn start() -> Option<Self> {
        let Some(python) = std::env::var_os("TWOSTEP_TEST_PYTHON") else {
            eprintln!("TWOSTEP_TEST_PYTHON is not set: nothing is tested here; scripts/test sets it");
            return None;
        };
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/umbridge_server.py");
        let process = Command::new(python).arg(script).arg(port.to_string()).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Self { process, url: format!("http://127.0.0.1:{port}") };
        let patience = Instant::now() + Duration::from_secs(60);
        while let Err(error) = server.connect("numpy", &["a", "b"], &[number("y")]) {
            assert!(server.process.try_wait().unwrap().is_none(), "the server ended at once");
            assert!(Instant::now() < patience, "{error}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(server)
    }

    fn spec(&self, model: &str) -> UmbridgeSpec {
        UmbridgeSpec {
            url: self.url.clone(),
            model: Some(model.to_string()),
            config: json!({}),
            inputs: None,
            outputs: Vec::new(),
            timeout: None,
        }
    }

    fn connect(&self, model: &str, inputs: &[&str], outputs: &[Wanted]) -> twostep::Result<UmbridgeModel> {
        self.spec(model).connect(&names(inputs), outputs)
    }

    /// Why the evaluation of a model with one input fails.
    fn reason(&self, model: &str, outputs: &[Wanted]) -> String {
        match self.connect(model, &["a"], outputs).unwrap().run(&job(&[("a", 1.0)]), &|| true) {
            Err(Failure::Failed(reason)) => reason,
            other => panic!("{model}: {other:?}"),
        }
    }
}

fn names(all: &[&str]) -> Vec<String> {
    all.iter().map(|name| (*name).to_string()).collect()
}

fn number(name: &str) -> Wanted {
    Wanted { name: name.to_string(), over: None }
}

fn series(name: &str, n: usize) -> Wanted {
    let at = (0..n).map(|t| t as f64).collect();
    Wanted { name: name.to_string(), over: Some(Over { name: "t".to_string(), at: Some(at) }) }
}

fn job(inputs: &[(&str, f64)]) -> Job {
    Job {
        id: 1,
        inputs: inputs.iter().map(|(name, value)| ((*name).to_string(), *value)).collect(),
        folder: PathBuf::new(),
        marker: String::new(),
        attempt: 1,
    }
}

/// One server for all, since each takes a second to start.
#[test]
fn models_of_the_python_package() {
    let Some(server) = Server::start() else { return };
    vectors_go_there_and_back(&server);
    failures_are_told_apart(&server);
    slow_models_run_at_once_and_can_be_left(&server);
}

fn vectors_go_there_and_back(server: &Server) {
    let inputs = names(&["a", "b", "c"]);
    let spec = UmbridgeSpec {
        config: json!({ "scale": 2.0 }),
        inputs: Some(vec![names(&["c", "a"]), names(&["b"])]),
        ..server.spec("scaled")
    };
    let model = spec.connect(&inputs, &[number("p"), number("q"), series("s", 4)]).unwrap();
    let readings = model.run(&job(&[("a", 0.1), ("b", 1e-17), ("c", 0.2)]), &|| true).unwrap();
    assert_eq!(readings[0].values, [2.0 * (0.2 + 0.1)]);
    assert_eq!(readings[1].values, [2.0 * 1e-17]);
    let powers: Vec<f64> = (0..4).map(|t| 0.2_f64.powf(f64::from(t))).collect();
    assert_eq!(readings[2], Reading { at: vec![0.0, 1.0, 2.0, 3.0], values: powers });
    let one = UmbridgeSpec { outputs: vec![OutputAt { vector: 0, entry: Some(1) }], ..spec };
    let readings =
        one.connect(&inputs, &[number("q")]).unwrap().run(&job(&[("a", 1.0), ("b", 2.0), ("c", 3.0)]), &|| true);
    assert_eq!(readings.unwrap()[0].values, [4.0]);
    let numpy = server.connect("numpy", &["a", "b"], &[number("y")]).unwrap();
    assert_eq!(numpy.run(&job(&[("a", 1.5), ("b", 2.0)]), &|| true).unwrap()[0].values, [3.5]);
}

fn failures_are_told_apart(server: &Server) {
    let y = [number("y")];
    let silent = "the model failed (status 500): it did not say why; see the server's own output for the exception";
    assert_eq!(server.reason("fail", &y), silent);
    for model in ["nan", "inf"] {
        assert_eq!(server.reason(model, &y), "output y is not a finite number", "{model}");
    }
    let short = server.reason("short", &[number("y"), number("z")]);
    assert!(short.starts_with("InvalidOutput: Output vector 0 has invalid length!"), "{short}");
    assert!(server.reason("flat", &y).starts_with("InvalidOutput: Model output is not a list of lists!"));
    let gaps = server.connect("gaps", &["a"], &[series("s", 3)]).unwrap().run(&job(&[("a", 7.0)]), &|| true).unwrap();
    assert!(gaps[0].values[0] == 7.0 && gaps[0].values[1..].iter().all(|value| value.is_nan()), "{gaps:?}");
    let missing = server.connect("gasp", &["a"], &y).unwrap_err().to_string();
    assert!(missing.contains("did you mean \"gaps\"?"), "{missing}");
    assert!(
        server.connect("nan", &["a", "b"], &y).unwrap_err().to_string().contains("takes 1 value, and the study has 2")
    );
}

fn slow_models_run_at_once_and_can_be_left(server: &Server) {
    let slow = |seconds: f64, timeout: Option<Duration>| {
        let config: Value = json!({ "seconds": seconds });
        let spec = UmbridgeSpec { config, timeout, ..server.spec("slow") };
        spec.connect(&names(&["a"]), &[number("y")]).unwrap()
    };
    let started = Instant::now();
    let model = slow(1.0, None);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| model.run(&job(&[("a", 1.0)]), &|| true).unwrap());
        }
    });
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    // Sleeping threads hold up the server's end, not ours: it is killed.
    let started = Instant::now();
    let limit = Duration::from_millis(200);
    let Err(Failure::Failed(reason)) = slow(20.0, Some(limit)).run(&job(&[("a", 1.0)]), &|| true) else { panic!() };
    assert!(reason.contains("gave no answer within 200ms"), "{reason}");
    let left = slow(20.0, None).run(&job(&[("a", 1.0)]), &|| started.elapsed() < 3 * limit);
    assert_eq!(left, Err(Failure::Interrupted));
    assert!(started.elapsed() < Duration::from_secs(20));
}
