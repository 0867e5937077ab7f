//! Models over HTTP for other programs: a UM-Bridge server, protocol 1.0 [Seelinger 2023], for surrogate and I-posterior.

mod forward;
mod posterior;

pub use forward::Forward;
pub use posterior::Posterior;

use crate::error::{Error, Result};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tiny_http::{Header, Method, Request, Response, Server};

/// How often to look whether to go on.
const POLL: Duration = Duration::from_millis(50);
/// How long those who are still computing hold up the end.
const GRACE: Duration = Duration::from_secs(1);

/// A map from vectors to vectors.
pub trait Model: Send + Sync {
    /// Its name, by which clients ask for it.
    fn name(&self) -> &str;

    /// Sizes of the input vectors.
    fn input_sizes(&self) -> Vec<usize>;

    /// Sizes of the output vectors.
    fn output_sizes(&self) -> Vec<usize>;

    /// Values at `input`, whose sizes are right and whose entries are finite. `config` is an object.
    ///
    /// # Errors
    /// Inputs or a configuration that the model does not take, or a failure of its own.
    fn evaluate(&self, input: &[Vec<f64>], config: &Value) -> Result<Vec<Vec<f64>>, Refused>;

    /// Its derivatives, where it has them.
    fn derivatives(&self) -> Option<&dyn Derivatives> {
        None
    }
}

/// Products with the Jacobian J of one output vector by one input vector.
pub trait Derivatives {
    /// `J' sens`.
    ///
    /// # Errors
    /// As for [`Model::evaluate`].
    fn gradient(&self, wrt: Wrt, input: &[Vec<f64>], sens: &[f64], config: &Value) -> Result<Vec<f64>, Refused>;

    /// `J vec`.
    ///
    /// # Errors
    /// As for [`Model::evaluate`].
    fn apply_jacobian(&self, wrt: Wrt, input: &[Vec<f64>], vec: &[f64], config: &Value) -> Result<Vec<f64>, Refused>;
}

/// Which output vector by which input vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrt {
    /// Number of the output vector.
    pub output: usize,
    /// Number of the input vector.
    pub input: usize,
}

/// Why a model gives no answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Refused {
    /// The request cannot be answered.
    Input(String),
    /// The model failed.
    Output(String),
}

/// What one client may cost the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Largest body of a request.
    pub body_bytes: usize,
    /// Longest computation that a client waits for.
    pub time: Duration,
    /// Most computations at once; clients beyond are told to come again.
    pub simultaneous: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body_bytes: 16 << 20, time: Duration::from_secs(60), simultaneous: 64 }
    }
}

/// A place to listen at; port 0 is any free one.
///
/// # Errors
/// A port that is taken or not allowed, a host that is not of this machine.
pub fn listen(host: &str, port: u16) -> Result<TcpListener> {
    TcpListener::bind((host, port)).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => {
            Error::invalid("--port", format!("{port} is in use"), "choose another, or 0 for any that is free")
        }
        ErrorKind::PermissionDenied => {
            Error::invalid("--port", format!("{port} is not allowed to this user"), "choose one above 1023")
        }
        _ => Error::invalid(
            "--host",
            format!("cannot listen at {host}:{port}: {error}"),
            "use an address of this machine",
        ),
    })
}

/// Answers until `proceed` says no; then those who asked before are answered, within a second, and the port is free again.
///
/// # Errors
/// A listener that broke.
pub fn serve(
    listener: TcpListener,
    models: Vec<Box<dyn Model>>,
    limits: Limits,
    proceed: &dyn Fn() -> bool,
) -> Result<()> {
    let broken = |why: String| Error::failed("serve", format!("cannot accept connections: {why}"), "start again");
    let server = Server::from_listener(listener, None).map_err(|error| broken(error.to_string()))?;
    let shared = Arc::new(Shared { models, limits, computing: AtomicUsize::new(0) });
    while proceed() {
        if let Some(request) = server.recv_timeout(POLL).map_err(|error| broken(error.to_string()))? {
            let shared = shared.clone();
            std::thread::spawn(move || shared.answer(request));
        }
    }
    let end = Instant::now() + GRACE;
    while shared.computing.load(Ordering::SeqCst) > 0 && Instant::now() < end {
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// What all requests share.
struct Shared {
    models: Vec<Box<dyn Model>>,
    limits: Limits,
    computing: AtomicUsize,
}

/// The right to compute, which ends with it.
struct Slot(Arc<Shared>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.computing.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An answer that is none: the status and the error object.
#[derive(Debug)]
struct Problem {
    status: u16,
    kind: &'static str,
    message: String,
}

impl Problem {
    fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into() }
    }

    fn input(message: impl Into<String>) -> Self {
        Self::new(400, "InvalidInput", message)
    }

    fn output(message: impl Into<String>) -> Self {
        Self::new(500, "InvalidOutput", message)
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Input(message) => Self::input(message),
            Refused::Output(message) => Self::output(message),
        }
    }
}

/// What a request comes to: its answer, or what must be computed for it.
#[derive(Debug)]
enum Understood {
    Answer(Value),
    Compute(Computation),
}

/// A valid request for a computation.
#[derive(Debug)]
struct Computation {
    model: usize,
    input: Vec<Vec<f64>>,
    config: Value,
    wanted: Wanted,
}

#[derive(Debug)]
enum Wanted {
    Evaluate,
    Gradient(Wrt, Vec<f64>),
    ApplyJacobian(Wrt, Vec<f64>),
}

impl Shared {
    fn answer(self: Arc<Self>, mut request: Request) {
        let (outcome, _slot) = self.respond(&mut request);
        let (status, value) = match outcome {
            Ok(value) => (200, value),
            Err(Problem { status, kind, message }) => {
                (status, json!({ "error": { "type": kind, "message": message } }))
            }
        };
        let mut response = Response::from_string(value.to_string()).with_status_code(status);
        if let Ok(header) = Header::from_bytes("Content-Type", "application/json") {
            response.add_header(header);
        }
        // A client that has gone needs no answer.
        let _ = request.respond(response);
    }

    /// The answer, and the slot it took, which is held until the answer is sent.
    fn respond(self: &Arc<Self>, request: &mut Request) -> (Result<Value, Problem>, Option<Arc<Slot>>) {
        let body = match self.body(request) {
            Ok(body) => body,
            Err(problem) => return (Err(problem), None),
        };
        let path = request.url().split('?').next().unwrap_or_default();
        match self.understand(request.method(), path, &body) {
            Ok(Understood::Answer(value)) => (Ok(value), None),
            Ok(Understood::Compute(computation)) => match self.slot() {
                Some(slot) => (self.compute(computation, slot.clone()), Some(slot)),
                None => {
                    let n = self.limits.simultaneous;
                    (Err(Problem::new(503, "Busy", format!("{n} requests are being computed; ask again later"))), None)
                }
            },
            Err(problem) => (Err(problem), None),
        }
    }

    fn body(&self, request: &mut Request) -> Result<Vec<u8>, Problem> {
        let limit = self.limits.body_bytes;
        let mut body = Vec::new();
        if request.body_length().is_none_or(|length| length <= limit) {
            let read = request.as_reader().take(limit as u64 + 1).read_to_end(&mut body);
            read.map_err(|error| Problem::input(format!("the request broke off: {error}")))?;
            if body.len() <= limit {
                return Ok(body);
            }
        }
        Err(Problem::new(413, "InvalidInput", format!("the request is larger than {limit} bytes")))
    }

    fn slot(self: &Arc<Self>) -> Option<Arc<Slot>> {
        let free = |n: usize| (n < self.limits.simultaneous).then_some(n + 1);
        let taken = self.computing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, free);
        taken.ok().map(|_| Arc::new(Slot(self.clone())))
    }

    /// Computes on a thread of its own, which keeps its slot until it is done, however long the client waits.
    fn compute(self: &Arc<Self>, computation: Computation, slot: Arc<Slot>) -> Result<Value, Problem> {
        let (sender, answer) = channel();
        let shared = self.clone();
        std::thread::spawn(move || {
            // Nobody listens after the time is over.
            let _ = sender.send(computation.run(&*shared.models[computation.model]));
            drop(slot);
        });
        match answer.recv_timeout(self.limits.time) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                Err(Problem::new(504, "Timeout", format!("the model took longer than {:?}", self.limits.time)))
            }
            Err(RecvTimeoutError::Disconnected) => Err(Problem::output("the model broke down")),
        }
    }

    fn understand(&self, method: &Method, path: &str, body: &[u8]) -> Result<Understood, Problem> {
        let names: Vec<&str> = self.models.iter().map(|model| model.name()).collect();
        let posts =
            ["/ModelInfo", "/InputSizes", "/OutputSizes", "/Evaluate", "/Gradient", "/ApplyJacobian", "/ApplyHessian"];
        match (method, path) {
            (Method::Get, "/Info") => {
                return Ok(Understood::Answer(json!({ "protocolVersion": 1.0, "models": names })));
            }
            (Method::Post, path) if posts.contains(&path) => {}
            (_, path) if path == "/Info" || posts.contains(&path) => {
                let right = if path == "/Info" { "GET" } else { "POST" };
                return Err(Problem::new(405, "InvalidInput", format!("{path} is asked for by {right}")));
            }
            _ => {
                return Err(Problem::new(
                    404,
                    "InvalidInput",
                    format!("there is no {path}: UM-Bridge begins at /Info"),
                ));
            }
        }
        let body: Value = serde_json::from_slice(body)
            .map_err(|error| Problem::input(format!("the request is not JSON: {error}")))?;
        let Some(index) = names.iter().position(|name| body["name"].as_str() == Some(name)) else {
            let message =
                format!("Model {} not found! The following are available: {}.", body["name"], names.join(", "));
            return Err(Problem::new(400, "ModelNotFound", message));
        };
        let model = &*self.models[index];
        let config = match &body["config"] {
            Value::Null => json!({}),
            config if config.is_object() => config.clone(),
            config => return Err(Problem::input(format!("config is {config}; give an object"))),
        };
        let (input_sizes, output_sizes) = (model.input_sizes(), model.output_sizes());
        let answer = match path {
            "/ModelInfo" => {
                let derivatives = model.derivatives().is_some();
                let support = json!({
                    "Evaluate": true, "Gradient": derivatives, "ApplyJacobian": derivatives, "ApplyHessian": false
                });
                Some(json!({ "support": support }))
            }
            "/InputSizes" => Some(json!({ "inputSizes": input_sizes })),
            "/OutputSizes" => Some(json!({ "outputSizes": output_sizes })),
            _ => None,
        };
        if let Some(answer) = answer {
            return Ok(Understood::Answer(answer));
        }
        if path == "/ApplyHessian" || (path != "/Evaluate" && model.derivatives().is_none()) {
            return Err(Problem::new(400, "UnsupportedFeature", format!("{} not supported by model!", &path[1..])));
        }
        let input = vectors(&body["input"], &input_sizes)?;
        let wrt = || -> Result<Wrt, Problem> {
            let number = |key: &str, n: usize| {
                let found = body[key].as_u64().and_then(|index| usize::try_from(index).ok()).filter(|index| *index < n);
                found
                    .ok_or_else(|| Problem::input(format!("{key} is {}; give a number from 0 to {}", body[key], n - 1)))
            };
            Ok(Wrt { output: number("outWrt", output_sizes.len())?, input: number("inWrt", input_sizes.len())? })
        };
        let wanted = match path {
            "/Evaluate" => Wanted::Evaluate,
            "/Gradient" => {
                let wrt = wrt()?;
                Wanted::Gradient(wrt, vector("sens", &body["sens"], output_sizes[wrt.output])?)
            }
            _ => {
                let wrt = wrt()?;
                Wanted::ApplyJacobian(wrt, vector("vec", &body["vec"], input_sizes[wrt.input])?)
            }
        };
        Ok(Understood::Compute(Computation { model: index, input, config, wanted }))
    }
}

impl Computation {
    fn run(&self, model: &dyn Model) -> Result<Value, Problem> {
        let Self { input, config, wanted, .. } = self;
        let derivatives = || {
            model.derivatives().ok_or_else(|| Problem::new(400, "UnsupportedFeature", "the model has no derivatives"))
        };
        match wanted {
            Wanted::Evaluate => {
                let (output, sizes) = (model.evaluate(input, config)?, model.output_sizes());
                if output.len() != sizes.len() {
                    return Err(Problem::output(format!("{} output vectors, not {}", output.len(), sizes.len())));
                }
                for (i, (vector, size)) in output.iter().zip(sizes).enumerate() {
                    checked(&format!("output {i}"), vector, size)?;
                }
                Ok(json!({ "output": output }))
            }
            Wanted::Gradient(wrt, sens) => {
                let output = derivatives()?.gradient(*wrt, input, sens, config)?;
                checked("the gradient", &output, model.input_sizes()[wrt.input])?;
                Ok(json!({ "output": output }))
            }
            Wanted::ApplyJacobian(wrt, vec) => {
                let output = derivatives()?.apply_jacobian(*wrt, input, vec, config)?;
                checked("the product", &output, model.output_sizes()[wrt.output])?;
                Ok(json!({ "output": output }))
            }
        }
    }
}

/// Numbers that JSON can hold, as many as announced.
fn checked(what: &str, vector: &[f64], size: usize) -> Result<(), Problem> {
    match vector.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(Problem::output(format!("{what} has a value that is not finite: {value}"))),
        None if vector.len() != size => {
            Err(Problem::output(format!("{what} has {} values, not the {size} announced", vector.len())))
        }
        None => Ok(()),
    }
}

fn vector(what: &str, value: &Value, size: usize) -> Result<Vec<f64>, Problem> {
    let numbers = value.as_array().and_then(|values| values.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>());
    match numbers {
        Some(numbers) if numbers.len() == size => Ok(numbers),
        Some(numbers) => {
            Err(Problem::input(format!("{what} has invalid length! Expected {size} but got {}.", numbers.len())))
        }
        None => Err(Problem::input(format!("{what} must be a list of numbers"))),
    }
}

fn vectors(value: &Value, sizes: &[usize]) -> Result<Vec<Vec<f64>>, Problem> {
    match value.as_array() {
        Some(values) if values.len() == sizes.len() => {
            let numbered = values.iter().zip(sizes).enumerate();
            numbered.map(|(i, (value, &size))| vector(&format!("Input parameter {i}"), value, size)).collect()
        }
        Some(values) => {
            let (found, expected) = (values.len(), sizes.len());
            Err(Problem::input(format!(
                "Number of input parameters does not match! Expected {expected} but got {found}."
            )))
        }
        None => Err(Problem::input("input must be a list of lists of numbers")),
    }
}

/// Refuses what a configuration has besides `known`: a misspelt key would be ignored in silence.
fn only_keys(config: &Value, known: &[&str]) -> Result<(), Refused> {
    let keys = config.as_object().into_iter().flat_map(|object| object.keys());
    match keys.into_iter().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(Refused::Input(format!("config has \"{key}\"; known are {}", known.join(", ")))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// `[a, b], [c] -> [a b, a + b], [c^2]`; its configuration makes it misbehave.
    struct Product {
        smooth: bool,
    }

    impl Model for Product {
        fn name(&self) -> &str {
            if self.smooth { "smooth" } else { "rough" }
        }

        fn input_sizes(&self) -> Vec<usize> {
            vec![2, 1]
        }

        fn output_sizes(&self) -> Vec<usize> {
            vec![2, 1]
        }

        fn evaluate(&self, x: &[Vec<f64>], config: &Value) -> Result<Vec<Vec<f64>>, Refused> {
            let (a, b, c) = (x[0][0], x[0][1], x[1][0]);
            match config["how"].as_str() {
                Some("nan") => Ok(vec![vec![f64::NAN, 0.0], vec![0.0]]),
                Some("inf") => Ok(vec![vec![0.0, f64::INFINITY], vec![0.0]]),
                Some("short") => Ok(vec![vec![1.0], vec![1.0]]),
                Some("few") => Ok(vec![vec![1.0, 2.0]]),
                Some("input") => Err(Refused::Input("not here".to_string())),
                Some("output") => Err(Refused::Output("no mesh".to_string())),
                Some("panic") => panic!("a model that breaks down"),
                Some("slow") => {
                    std::thread::sleep(Duration::from_millis(600));
                    Ok(vec![vec![0.0, 0.0], vec![0.0]])
                }
                _ => Ok(vec![vec![a * b, a + b], vec![c * c]]),
            }
        }

        fn derivatives(&self) -> Option<&dyn Derivatives> {
            self.smooth.then_some(self)
        }
    }

    impl Derivatives for Product {
        fn gradient(&self, wrt: Wrt, x: &[Vec<f64>], sens: &[f64], _: &Value) -> Result<Vec<f64>, Refused> {
            Ok(match (wrt.output, wrt.input) {
                (0, 0) => vec![sens[0] * x[0][1] + sens[1], sens[0] * x[0][0] + sens[1]],
                (1, 1) => vec![2.0 * x[1][0] * sens[0]],
                (_, input) => vec![0.0; x[input].len()],
            })
        }

        fn apply_jacobian(&self, wrt: Wrt, x: &[Vec<f64>], vec: &[f64], _: &Value) -> Result<Vec<f64>, Refused> {
            Ok(match (wrt.output, wrt.input) {
                (0, 0) => vec![x[0][1] * vec[0] + x[0][0] * vec[1], vec[0] + vec[1]],
                (1, 1) => vec![2.0 * x[1][0] * vec[0]],
                (output, _) => vec![0.0; 2 - output],
            })
        }
    }

    /// A server of both models while `use_it` runs; what `serve` returned.
    fn with_server(limits: Limits, use_it: impl FnOnce(&str)) -> Result<()> {
        let listener = listen("127.0.0.1", 0).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let go_on = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let models: Vec<Box<dyn Model>> =
                vec![Box::new(Product { smooth: true }), Box::new(Product { smooth: false })];
            let server = scope.spawn(|| serve(listener, models, limits, &|| go_on.load(Ordering::SeqCst)));
            // The server must end, whatever becomes of the test.
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| use_it(&url)));
            go_on.store(false, Ordering::SeqCst);
            let served = server.join().unwrap();
            outcome.unwrap();
            served
        })
    }

    fn post(url: &str, path: &str, body: &str) -> (u16, Value) {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut response = agent.post(format!("{url}{path}")).send(body).unwrap();
        let text = response.body_mut().read_to_string().unwrap();
        (response.status().as_u16(), serde_json::from_str(&text).unwrap())
    }

    /// Status, type and message of an error.
    fn problem(url: &str, path: &str, body: Value) -> (u16, String, String) {
        let (status, answer) = post(url, path, &body.to_string());
        let text = |key: &str| answer["error"][key].as_str().unwrap_or_else(|| panic!("{answer}")).to_string();
        (status, text("type"), text("message"))
    }

    #[test]
    fn models_say_what_they_are_and_compute() {
        let served = with_server(Limits::default(), |url| {
            let agent: ureq::Agent = ureq::Agent::config_builder().build().into();
            let info: Value = agent.get(format!("{url}/Info")).call().unwrap().body_mut().read_json().unwrap();
            assert_eq!(info, json!({ "protocolVersion": 1.0, "models": ["smooth", "rough"] }));
            let ask = |path: &str, body: Value| {
                let (status, answer) = post(url, path, &body.to_string());
                assert_eq!(status, 200, "{answer}");
                answer
            };
            let support = |name: &str| ask("/ModelInfo", json!({ "name": name }))["support"].clone();
            assert_eq!(support("smooth")["Gradient"], true);
            assert_eq!(support("smooth")["ApplyHessian"], false);
            assert_eq!(support("rough")["Gradient"], false);
            assert_eq!(ask("/InputSizes", json!({ "name": "rough" })), json!({ "inputSizes": [2, 1] }));
            assert_eq!(ask("/OutputSizes", json!({ "name": "rough", "config": {} })), json!({ "outputSizes": [2, 1] }));
            let at = |more: Value| {
                let mut body = json!({ "name": "smooth", "input": [[2, 3.5], [0.1]], "outWrt": 0, "inWrt": 0 });
                more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
                body
            };
            assert_eq!(ask("/Evaluate", at(json!({}))), json!({ "output": [[7.0, 5.5], [0.1 * 0.1]] }));
            assert_eq!(ask("/Gradient", at(json!({ "sens": [1, 10] }))), json!({ "output": [13.5, 12.0] }));
            assert_eq!(ask("/Gradient", at(json!({ "sens": [1, 10], "inWrt": 1 }))), json!({ "output": [0.0] }));
            assert_eq!(ask("/ApplyJacobian", at(json!({ "vec": [1, 10] }))), json!({ "output": [23.5, 11.0] }));
        });
        served.unwrap();
    }

    #[test]
    fn whatever_is_wrong_is_an_error_object() {
        let limits = Limits { body_bytes: 2000, ..Limits::default() };
        let served = with_server(limits, |url| {
            let status = |path: &str, body: Value| {
                let (status, kind, message) = problem(url, path, body);
                assert!(!message.is_empty());
                (status, kind)
            };
            let refused = |status: u16, kind: &str| (status, kind.to_string());
            let good = json!({ "name": "smooth", "input": [[1, 2], [3]], "outWrt": 0, "inWrt": 0, "sens": [1, 1] });
            let with = |key: &str, value: Value| {
                let mut body = good.clone();
                body[key] = value;
                body
            };
            // The name comes first, whatever else is wrong.
            assert_eq!(status("/Evaluate", json!({ "name": "none", "input": 3 })), refused(400, "ModelNotFound"));
            assert_eq!(status("/InputSizes", json!({})), refused(400, "ModelNotFound"));
            for input in
                [json!([[1, 2]]), json!([[1, 2], []]), json!([[1, 2, 3], [3]]), json!([[1, null], [3]]), json!(3)]
            {
                assert_eq!(status("/Evaluate", with("input", input)), refused(400, "InvalidInput"));
            }
            assert_eq!(status("/Evaluate", with("config", json!(3))), refused(400, "InvalidInput"));
            for (key, value) in [("outWrt", json!(2)), ("inWrt", json!(-1)), ("sens", json!([1])), ("sens", json!("x"))]
            {
                assert_eq!(status("/Gradient", with(key, value)), refused(400, "InvalidInput"), "{key}");
            }
            assert_eq!(status("/Gradient", with("name", json!("rough"))), refused(400, "UnsupportedFeature"));
            assert_eq!(status("/ApplyHessian", good.clone()), refused(400, "UnsupportedFeature"));
            for how in ["nan", "inf", "short", "few", "output", "panic"] {
                let config = with("config", json!({ "how": how }));
                assert_eq!(status("/Evaluate", config), refused(500, "InvalidOutput"), "{how}");
            }
            assert_eq!(status("/Evaluate", with("config", json!({ "how": "input" }))), refused(400, "InvalidInput"));
            assert_eq!(status("/Evaluate", with("more", json!("x".repeat(3000)))), refused(413, "InvalidInput"));
            assert_eq!(status("/Nowhere", good.clone()), refused(404, "InvalidInput"));
            assert_eq!(status("/Info", good.clone()), refused(405, "InvalidInput"));
            let (status, answer) = post(url, "/Evaluate", "{\"name\": nan}");
            assert_eq!((status, answer["error"]["type"].as_str()), (400, Some("InvalidInput")));
        });
        served.unwrap();
    }

    #[test]
    fn slow_computations_are_limited_in_time_and_number() {
        let limits = Limits { time: Duration::from_millis(200), simultaneous: 1, ..Limits::default() };
        let slow = json!({ "name": "rough", "input": [[1, 2], [3]], "config": { "how": "slow" } });
        let served = with_server(limits, |url| {
            assert_eq!(problem(url, "/Evaluate", slow.clone()).0, 504);
            // It still computes, so there is no place for another; what costs nothing is answered.
            assert_eq!(problem(url, "/Evaluate", slow.clone()).0, 503);
            assert_eq!(post(url, "/InputSizes", "{\"name\": \"rough\"}").0, 200);
            let patience = Instant::now() + Duration::from_secs(30);
            while post(url, "/Evaluate", "{\"name\": \"rough\", \"input\": [[1, 2], [3]]}").0 != 200 {
                assert!(Instant::now() < patience, "the place was never free again");
                std::thread::sleep(POLL);
            }
        });
        served.unwrap();
    }

    #[test]
    fn the_end_answers_those_who_asked_and_frees_the_port() {
        let body = json!({ "name": "rough", "input": [[1, 2], [3]], "config": { "how": "slow" } }).to_string();
        let mut asked = None;
        let mut address = None;
        with_server(Limits::default(), |url| {
            address = Some(url.trim_start_matches("http://").to_string());
            let (url, body) = (url.to_string(), body.clone());
            asked = Some(std::thread::spawn(move || post(&url, "/Evaluate", &body).0));
            std::thread::sleep(4 * POLL);
        })
        .unwrap();
        assert_eq!(asked.unwrap().join().unwrap(), 200);
        let port = address.unwrap().rsplit(':').next().unwrap().parse().unwrap();
        let patience = Instant::now() + Duration::from_secs(30);
        while listen("127.0.0.1", port).is_err() {
            assert!(Instant::now() < patience, "the port is still taken");
            std::thread::sleep(POLL);
        }
    }

    #[test]
    fn a_place_that_cannot_be_had_is_told() {
        let taken = listen("127.0.0.1", 0).unwrap();
        let message = listen("127.0.0.1", taken.local_addr().unwrap().port()).unwrap_err().to_string();
        assert!(message.starts_with("--port: ") && message.contains("is in use"), "{message}");
        assert!(listen("192.0.2.1", 0).unwrap_err().to_string().starts_with("--host: cannot listen at 192.0.2.1:0"));
    }
}
