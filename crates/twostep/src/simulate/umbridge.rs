//! Simulators that are asked over HTTP: a client of UM-Bridge, protocol 1.0 [Seelinger 2023].

use super::{Failure, Job, Reading, Wanted, spelling_repair};
use crate::error::{Error, Result};
use crate::table::counted;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The one version of the protocol there is.
const PROTOCOL: f64 = 1.0;
/// Longest wait for a connection: a machine that is up answers within a round trip.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest wait for an answer to what costs no evaluation, where the study sets no limit.
const QUESTION: Duration = Duration::from_secs(60);
/// How often a running evaluation looks whether to go on: soon, as people count.
const POLL: Duration = Duration::from_millis(50);
/// Largest answer that is read: ten million numbers in full precision.
const LARGEST_ANSWER: u64 = 256 << 20;
/// What aiohttp says of any exception in a model.
const AIOHTTP_EXCEPTION: &str = "Server got itself in trouble";

/// A model behind a UM-Bridge server.
///
/// Each request has a connection of its own and is sent once. Servers close idle connections when they like (those in C++
/// after five requests), and an evaluation on a connection that dies may or may not have run: on a fresh one that question
/// does not arise, and what is lost later counts as failed rather than being run twice unasked. No proxy is used, nor are
/// redirections followed.
#[derive(Clone, Debug, PartialEq)]
pub struct UmbridgeSpec {
    /// `http://host:port`.
    pub url: String,
    /// The model's name; may be left out where the server has one only.
    pub model: Option<String>,
    /// What the model is told besides its inputs: an object.
    pub config: Value,
    /// Names of inputs by vector. None: all in the study's order, in one vector or one vector each, as the model has it.
    pub inputs: Option<Vec<Vec<String>>>,
    /// Where each output of the study stands. Empty: in the study's order over all values of all vectors; a series takes a
    /// whole vector.
    pub outputs: Vec<OutputAt>,
    /// Longest time of one evaluation.
    pub timeout: Option<Duration>,
}

/// Where an output stands in what a model gives.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputAt {
    /// Number of the vector, from zero.
    pub vector: usize,
    /// Number of the entry, from zero. None: the whole vector, for a series, or the only entry.
    pub entry: Option<usize>,
}

/// A model whose server has answered and fits the study.
#[derive(Clone, Debug)]
pub struct UmbridgeModel {
    server: Server,
    name: String,
    config: Value,
    inputs: Vec<Vec<String>>,
    output_sizes: Vec<usize>,
    outputs: Vec<Placed>,
    timeout: Option<Duration>,
}

/// An output and where it stands.
#[derive(Clone, Debug, PartialEq)]
struct Placed {
    name: String,
    vector: usize,
    entries: std::ops::Range<usize>,
    /// Coordinates of a series; none for a single number.
    at: Option<Vec<f64>>,
}

/// A server by its address, without a slash at the end.
#[derive(Clone, Debug)]
struct Server(String);

/// Why an exchange gave nothing, and what to do.
#[derive(Debug)]
struct Trouble {
    problem: String,
    repair: String,
    /// Whether nobody was there to ask.
    is_unreachable: bool,
}

impl Trouble {
    fn new(problem: impl Into<String>, repair: impl Into<String>) -> Self {
        Self { problem: problem.into(), repair: repair.into(), is_unreachable: false }
    }

    fn into_error(self) -> Error {
        Error::failed("simulator.umbridge", self.problem, self.repair)
    }

    fn into_failure(self) -> Failure {
        let reason = format!("{}; {}", self.problem, self.repair);
        match self.is_unreachable {
            true => {
                Failure::Unreachable { reason, repair: "start it again, and run again: finished runs are kept".into() }
            }
            false => Failure::Failed(reason),
        }
    }
}

impl UmbridgeSpec {
    /// Asks the server what it is: its protocol, models and their sizes. `inputs` and `outputs` are the study's, in its order.
    ///
    /// # Errors
    /// An address that cannot be used, a server that does not answer or speaks something else, a model that is not there,
    /// is not named where there are several, cannot be evaluated, or whose vectors do not fit the inputs and outputs.
    pub fn connect(&self, inputs: &[String], outputs: &[Wanted]) -> Result<UmbridgeModel> {
        let server = Server::new(&self.url)?;
        if !self.config.is_object() {
            let found = format!("{} is not a table", self.config);
            return Err(Error::invalid("simulator.config", found, "write it as { name = value, ... }"));
        }
        let limit = self.timeout.unwrap_or(QUESTION);
        let name = self.choose(&server.models(limit).map_err(Trouble::into_error)?)?;
        let about = json!({ "name": &name, "config": &self.config });
        let ask = |endpoint: &str, body: &Value| server.ask(endpoint, Some(body), limit).map_err(Trouble::into_error);
        let info = ask("ModelInfo", &json!({ "name": &name }))?;
        if info["support"]["Evaluate"].as_bool() != Some(true) {
            return Err(Error::invalid(
                "simulator.model",
                format!("\"{name}\" does not offer Evaluate"),
                "name a model that can be evaluated",
            ));
        }
        let sizes = |endpoint: &str, key: &str| -> Result<Vec<usize>> {
            let answer = ask(endpoint, &about)?;
            let sizes = answer[key].as_array().and_then(|sizes| sizes.iter().map(as_size).collect());
            sizes.ok_or_else(|| {
                Error::failed(
                    "simulator.umbridge",
                    format!("{endpoint} of \"{name}\" at {} answered {}", server.0, excerpt(&answer.to_string())),
                    format!("the server must answer with a list of sizes, {{\"{key}\": [2]}}"),
                )
            })
        };
        let input_sizes = sizes("InputSizes", "inputSizes")?;
        let output_sizes = sizes("OutputSizes", "outputSizes")?;
        Ok(UmbridgeModel {
            inputs: self.place_inputs(&name, inputs, &input_sizes)?,
            outputs: self.place_outputs(&name, outputs, &output_sizes)?,
            server,
            name,
            config: self.config.clone(),
            output_sizes,
            timeout: self.timeout,
        })
    }

    /// What runs by this model depend on besides their inputs.
    ///
    /// The address is not among it: a server moves from node to node and port to port while the model stays what it is. Runs of
    /// another model of the same name are told apart by an entry of the configuration.
    pub fn fingerprint_parts(&self) -> Vec<(String, String)> {
        let mut config = self.config.clone();
        config.sort_all_objects();
        let place = |at: &OutputAt| json!([at.vector, at.entry]);
        [
            ("umbridge.model", json!(self.model)),
            ("umbridge.config", config),
            ("umbridge.inputs", json!(self.inputs)),
            ("umbridge.outputs", self.outputs.iter().map(place).collect()),
        ]
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .to_vec()
    }

    fn choose(&self, models: &[String]) -> Result<String> {
        let known: Vec<&str> = models.iter().map(String::as_str).collect();
        match (&self.model, known.as_slice()) {
            (Some(name), _) if known.contains(&name.as_str()) => Ok(name.clone()),
            (Some(name), _) => Err(Error::invalid(
                "simulator.model",
                format!("the server at {} has no model \"{name}\"", self.url),
                spelling_repair(name, &known),
            )),
            (None, [only]) => Ok((*only).to_string()),
            (None, []) => Err(Error::invalid(
                "simulator.umbridge",
                format!("the server at {} has no model", self.url),
                "start it with one",
            )),
            (None, _) => Err(Error::invalid(
                "simulator.model",
                format!("is missing, and the server at {} has {}", self.url, counted(known.len(), "model")),
                format!("choose one of {}", known.join(", ")),
            )),
        }
    }

    fn place_inputs(&self, model: &str, inputs: &[String], sizes: &[usize]) -> Result<Vec<Vec<String>>> {
        let invalid = |found: String, repair: String| Err(Error::invalid("simulator.inputs", found, repair));
        let takes = format!("model \"{model}\" takes {}", vectors(sizes));
        let Some(by_vector) = &self.inputs else {
            return match sizes {
                [all] if *all == inputs.len() => Ok(vec![inputs.to_vec()]),
                ones if ones.len() == inputs.len() && ones.iter().all(|&n| n == 1) => {
                    Ok(inputs.iter().map(|name| vec![name.clone()]).collect())
                }
                _ => invalid(
                    format!("{takes}, and the study has {}: {}", counted(inputs.len(), "input"), inputs.join(", ")),
                    "say which input stands where, as inputs = [[\"a\", \"b\"], [\"c\"]], and give what is missing as a \
                     constant"
                        .to_string(),
                ),
            };
        };
        let known: Vec<&str> = inputs.iter().map(String::as_str).collect();
        if let Some(name) = by_vector.iter().flatten().find(|name| !inputs.contains(name)) {
            return invalid(format!("there is no input \"{name}\""), spelling_repair(name, &known));
        }
        if let Some(unused) = inputs.iter().find(|name| !by_vector.iter().flatten().any(|used| used == *name)) {
            return invalid(
                format!("input \"{unused}\" stands nowhere"),
                "add it, or remove it from the study: the model would not know of it".to_string(),
            );
        }
        let found: Vec<usize> = by_vector.iter().map(Vec::len).collect();
        if found != sizes {
            return invalid(format!("{takes}, not {}", vectors(&found)), "give as many names as values".to_string());
        }
        Ok(by_vector.clone())
    }

    fn place_outputs(&self, model: &str, outputs: &[Wanted], sizes: &[usize]) -> Result<Vec<Placed>> {
        let gives = format!("model \"{model}\" gives {}", vectors(sizes));
        let places = if self.outputs.is_empty() { in_order(outputs, sizes) } else { Some(self.outputs.clone()) };
        let Some(places) = places.filter(|places| places.len() == outputs.len()) else {
            let names: Vec<&str> = outputs.iter().map(|wanted| wanted.name.as_str()).collect();
            let found = if self.outputs.is_empty() {
                format!("{gives}, which {} in order do not fill", names.join(", "))
            } else {
                format!(
                    "{} for {}: {}",
                    counted(self.outputs.len(), "place"),
                    counted(names.len(), "output"),
                    names.join(", ")
                )
            };
            let repair = "say where each output stands: its vector and, unless it is a series, its entry, both from 0";
            return Err(Error::invalid("simulator.outputs", found, repair));
        };
        outputs.iter().zip(places).map(|(wanted, place)| place_output(&gives, wanted, &place, sizes)).collect()
    }
}

/// Outputs in order over all values; none where they do not come out even.
fn in_order(outputs: &[Wanted], sizes: &[usize]) -> Option<Vec<OutputAt>> {
    let (mut places, mut vector, mut entry) = (Vec::new(), 0, 0);
    for wanted in outputs {
        while sizes.get(vector).is_some_and(|&size| entry == size) {
            (vector, entry) = (vector + 1, 0);
        }
        let size = *sizes.get(vector)?;
        if wanted.over.is_none() {
            places.push(OutputAt { vector, entry: Some(entry) });
            entry += 1;
        } else if entry == 0 {
            places.push(OutputAt { vector, entry: None });
            entry = size;
        } else {
            return None;
        }
    }
    let rest = sizes.get(vector).map_or(0, |size| size - entry) + sizes.iter().skip(vector + 1).sum::<usize>();
    (rest == 0).then_some(places)
}

fn place_output(gives: &str, wanted: &Wanted, place: &OutputAt, sizes: &[usize]) -> Result<Placed> {
    let invalid =
        |found: String, repair: &str| Err(Error::invalid(format!("simulator.outputs: {}", wanted.name), found, repair));
    let vector = place.vector;
    let Some(&size) = sizes.get(vector) else {
        return invalid(format!("there is no vector {vector}: {gives}"), "count vectors from 0");
    };
    let (entries, at) = match (&wanted.over, place.entry) {
        (None, Some(entry)) if entry < size => (entry..entry + 1, None),
        (None, None) if size == 1 => (0..1, None),
        (None, Some(entry)) => {
            return invalid(format!("there is no entry {entry} in vector {vector}: {gives}"), "count entries from 0");
        }
        (None, None) => {
            return invalid(format!("vector {vector} has {size} values"), "say which entry is meant, from 0");
        }
        (Some(over), Some(_)) => {
            return invalid(
                format!("is a series over {}, which takes a whole vector", over.name),
                "leave out the entry, or give the output no coordinate",
            );
        }
        (Some(over), None) => match &over.at {
            Some(at) if at.len() == size => (0..size, Some(at.clone())),
            Some(at) => {
                return invalid(
                    format!("has {} of {}, and vector {vector} has {size}", counted(at.len(), "value"), over.name),
                    "give as many coordinates as the model gives values",
                );
            }
            None => {
                return invalid(
                    format!("the values of {} are not known: a UM-Bridge model does not give them", over.name),
                    "list them in the study",
                );
            }
        },
    };
    Ok(Placed { name: wanted.name.clone(), vector, entries, at })
}

impl UmbridgeModel {
    /// The model's name at its server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One evaluation; as many at once as there are threads that call it. Returns soon after `proceed` says no, whatever the
    /// server does then: the connection is closed, which is all that the protocol has to tell it.
    ///
    /// A number that is missing or not finite fails the run; in a series it is NaN, and fails the run only if all are.
    ///
    /// # Errors
    /// Why the evaluation gave nothing, in the words of the model where it had any.
    pub fn run(&self, job: &Job, proceed: &dyn Fn() -> bool) -> Result<Vec<Reading>, Failure> {
        let input = self.inputs.iter().map(|names| names.iter().map(|name| value_of(job, name)).collect());
        let input = input.collect::<Result<Vec<Vec<f64>>, Failure>>()?;
        let body = json!({ "name": &self.name, "input": input, "config": &self.config });
        let (server, timeout) = (self.server.clone(), self.timeout);
        let agent = agent(timeout);
        let (sender, answer) = channel();
        let own = agent.clone();
        std::thread::spawn(move || {
            // Nobody listens after an interruption.
            let _ = sender.send(server.exchange(&own, "Evaluate", Some(&body), timeout));
        });
        loop {
            match answer.recv_timeout(POLL) {
                Ok(answer) => return self.read(&answer.map_err(Trouble::into_failure)?),
                Err(RecvTimeoutError::Timeout) if proceed() => {}
                Err(RecvTimeoutError::Timeout) => {
                    agent.shutdown();
                    return Err(Failure::Interrupted);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::Failed("the thread of the request ended without an answer".to_string()));
                }
            }
        }
    }

    fn read(&self, answer: &Value) -> Result<Vec<Reading>, Failure> {
        let Some(output) =
            answer["output"].as_array().and_then(|o| o.iter().map(as_numbers).collect::<Option<Vec<_>>>())
        else {
            return Err(Failure::Failed(format!(
                "the output is not a list of lists of numbers: {}",
                excerpt(&answer.to_string())
            )));
        };
        let sizes: Vec<usize> = output.iter().map(Vec::len).collect();
        if sizes != self.output_sizes {
            return Err(Failure::Failed(format!(
                "the model gave {}, and its server announced {}",
                vectors(&sizes),
                vectors(&self.output_sizes)
            )));
        }
        let read = |placed: &Placed| {
            let values = output[placed.vector][placed.entries.clone()].to_vec();
            if values.iter().all(|value| value.is_nan()) {
                let what = if placed.at.is_some() { "has no finite value" } else { "is not a finite number" };
                return Err(Failure::Failed(format!("output {} {what}", placed.name)));
            }
            Ok(Reading { at: placed.at.clone().unwrap_or_default(), values })
        };
        self.outputs.iter().map(read).collect()
    }
}

fn value_of(job: &Job, name: &str) -> Result<f64, Failure> {
    match job.inputs.iter().find(|(other, _)| other == name) {
        Some((_, value)) if value.is_finite() => Ok(*value),
        Some((_, value)) => Err(Failure::Failed(format!("input {name} is {value}, which no JSON can hold"))),
        None => Err(Failure::Failed(format!("input {name} has no value"))),
    }
}

/// A client for one exchange: its connections are its own and can be closed from another thread.
fn agent(limit: Option<Duration>) -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .timeout_connect(Some(CONNECT))
        .timeout_global(limit)
        .build()
        .into()
}

impl Server {
    fn new(url: &str) -> Result<Self> {
        let invalid = |found: &str, repair: String| {
            Err(Error::invalid("simulator.umbridge", format!("\"{url}\" {found}"), repair))
        };
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let rest = rest.trim_end_matches('/');
        let host = rest.split('/').next().unwrap_or_default();
        match scheme {
            "http" if host.is_empty() => invalid("names no host", "write http://host:port".to_string()),
            "http" if rest.contains(['?', '#', ' ', '@']) => {
                invalid("has more than host, port and path", "write http://host:port".to_string())
            }
            "http" => Ok(Self(format!("http://{rest}"))),
            "https" => invalid(
                "needs encryption, which UM-Bridge servers do not offer and this program does not speak",
                format!("use http://{rest}, through a tunnel (ssh -L) where the network is not trusted"),
            ),
            "" => invalid("does not say how to talk", format!("write http://{rest}")),
            other => invalid(&format!("speaks {other}"), format!("write http://{rest}")),
        }
    }

    fn models(&self, limit: Duration) -> Result<Vec<String>, Trouble> {
        let info = self.ask("Info", None, limit)?;
        if info["protocolVersion"].as_f64() != Some(PROTOCOL) {
            return Err(match &info["protocolVersion"] {
                Value::Null => Trouble::new(
                    format!("{} does not answer as a UM-Bridge server: {}", self.0, excerpt(&info.to_string())),
                    "check host and port",
                ),
                other => Trouble::new(
                    format!("the server at {} speaks UM-Bridge {other}", self.0),
                    "use a server that speaks 1.0",
                ),
            });
        }
        let models = info["models"].as_array();
        let names = models.and_then(|models| models.iter().map(|m| m.as_str().map(str::to_string)).collect());
        names.ok_or_else(|| {
            Trouble::new(format!("the server at {} does not list its models", self.0), "use a server that does")
        })
    }

    fn ask(&self, endpoint: &str, body: Option<&Value>, limit: Duration) -> Result<Value, Trouble> {
        self.exchange(&agent(Some(limit)), endpoint, body, Some(limit))
    }

    /// A request and its answer, by GET where there is no body.
    fn exchange(
        &self,
        agent: &ureq::Agent,
        endpoint: &str,
        body: Option<&Value>,
        limit: Option<Duration>,
    ) -> Result<Value, Trouble> {
        let url = format!("{}/{endpoint}", self.0);
        let response = match body {
            None => agent.get(&url).header("Connection", "close").call(),
            Some(body) => {
                let request = agent.post(&url).header("Connection", "close").header("Content-Type", "application/json");
                request.send(body.to_string())
            }
        };
        let mut response = response.map_err(|error| self.no_answer(error, limit))?;
        let status = response.status().as_u16();
        let header =
            |name: &str| response.headers().get(name).map(|h| String::from_utf8_lossy(h.as_bytes()).into_owned());
        let (exception, location) = (header("EXCEPTION_WHAT"), header("Location"));
        let bytes = response.body_mut().with_config().limit(LARGEST_ANSWER).read_to_vec();
        let bytes = bytes.map_err(|error| self.no_answer(error, limit))?;
        let text = String::from_utf8_lossy(&bytes);
        let answer = parse(&text);
        if let Some(error) = answer.as_ref().and_then(|answer| answer.get("error")).filter(|error| !error.is_null()) {
            return Err(refused(error));
        }
        match (status, answer) {
            (200, Some(answer)) => Ok(answer),
            (200, None) => Err(Trouble::new(
                format!("{url} answered what is not JSON: {}", excerpt(&text)),
                if text.contains("np.float64(") || text.contains("array(") {
                    "the model must return lists of Python floats, not of NumPy objects"
                } else {
                    "check host and port"
                },
            )),
            (300..400, _) => Err(Trouble::new(
                format!("{url} has moved to {}", location.as_deref().unwrap_or("an unknown place")),
                "write the new address",
            )),
            (404 | 405, _) => Err(Trouble::new(format!("{url} does not exist"), "check host, port and path")),
            (500.., _) => Err(exception_of(status, exception.as_deref(), &text)),
            _ => Err(Trouble::new(
                format!("{url} answered with status {status}: {}", excerpt(&text)),
                "see the server's own output",
            )),
        }
    }

    fn no_answer(&self, error: ureq::Error, limit: Option<Duration>) -> Trouble {
        let url = &self.0;
        let lost = |how: &str| {
            Trouble::new(
                format!("the server at {url} {how}"),
                "see its own output for a crash; whether the model ran is not known, so it is not asked again",
            )
        };
        match error {
            ureq::Error::Timeout(ureq::Timeout::Connect) => {
                Trouble::new(format!("no connection to {url} within {CONNECT:?}"), "check host, port and firewall")
            }
            ureq::Error::Timeout(_) => Trouble::new(
                format!("{url} gave no answer within {:?}", limit.unwrap_or(CONNECT)),
                "raise simulator.timeout, or find out why the model is slow",
            ),
            ureq::Error::HostNotFound => Trouble::new(
                format!("there is no such host: {url}"),
                "check its name, and that this machine can see it",
            ),
            ureq::Error::BodyExceedsLimit(_) => Trouble::new(
                format!("the answer of {url} is larger than {} MiB", LARGEST_ANSWER >> 20),
                "let the model give less",
            ),
            ureq::Error::Io(error) => match error.kind() {
                ErrorKind::ConnectionRefused => {
                    let repair = "is the server running, and on this port?";
                    Trouble { is_unreachable: true, ..Trouble::new(format!("nothing answers at {url}"), repair) }
                }
                ErrorKind::UnexpectedEof
                | ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::BrokenPipe => lost("closed the connection before its answer was complete"),
                _ => Trouble::new(format!("{url}: {error}"), "check host, port and network"),
            },
            other => lost(&format!("broke off: {other}")),
        }
    }
}

/// The server's error object.
fn refused(error: &Value) -> Trouble {
    let text = |key: &str| error[key].as_str().unwrap_or_default().trim().to_string();
    let (kind, message) = (text("type"), text("message"));
    let repair = match kind.as_str() {
        "ModelNotFound" => "check simulator.model",
        "InvalidInput" => "check simulator.inputs and simulator.config",
        "UnsupportedFeature" => "use another model",
        _ => "see the model and the server's own output",
    };
    match (kind.is_empty(), message.is_empty()) {
        (true, true) => Trouble::new(format!("the server refused: {}", excerpt(&error.to_string())), repair),
        (true, false) => Trouble::new(message, repair),
        (false, _) => Trouble::new(format!("{kind}: {message}"), repair),
    }
}

/// What a model threw: servers in C++ say it in a header, those in Python as text whose last line is the exception.
fn exception_of(status: u16, header: Option<&str>, text: &str) -> Trouble {
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    let (said, repair) = match (header.map(str::trim).filter(|what| !what.is_empty()), last) {
        (Some(what), _) => (what, "see the model"),
        (None, Some(AIOHTTP_EXCEPTION) | None) => {
            ("it did not say why", "see the server's own output for the exception")
        }
        (None, Some(line)) => (line, "see the model and the server's own output"),
    };
    Trouble::new(format!("the model failed (status {status}): {}", excerpt(said)), repair)
}

/// JSON, or what Python makes of it: bare `nan` and `inf`, of any sign and spelling, are null.
fn parse(text: &str) -> Option<Value> {
    serde_json::from_str(text).or_else(|_| serde_json::from_str(&without_bare_words(text))).ok()
}

/// `text` with null for each word outside strings that stands for a number that is not finite.
fn without_bare_words(text: &str) -> String {
    let (mut out, mut rest, mut quoted) = (String::with_capacity(text.len()), text, false);
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
        let length = match first {
            '\\' if quoted => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            c if !quoted && is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        quoted ^= first == '"';
        let (token, after) = rest.split_at(length);
        let bare = token.trim_start_matches(['+', '-']).to_ascii_lowercase();
        let stands_for_none = !quoted && matches!(bare.as_str(), "nan" | "inf" | "infinity" | "none");
        out.push_str(if stands_for_none { "null" } else { token });
        rest = after;
    }
    out
}

/// A list of numbers, null being NaN.
fn as_numbers(value: &Value) -> Option<Vec<f64>> {
    let number = |entry: &Value| if entry.is_null() { Some(f64::NAN) } else { entry.as_f64() };
    value.as_array()?.iter().map(number).collect()
}

/// A size, which some servers write as 2.0.
fn as_size(value: &Value) -> Option<usize> {
    let size = value.as_f64()?;
    (size >= 0.0 && size.fract() == 0.0 && size <= f64::from(u32::MAX)).then_some(size as usize)
}

/// Sizes of vectors in words.
fn vectors(sizes: &[usize]) -> String {
    let listed: Vec<String> = sizes.iter().map(usize::to_string).collect();
    match sizes {
        [] => "no values".to_string(),
        [one] => counted(*one, "value"),
        _ => format!("{} of sizes {}", counted(sizes.len(), "vector"), listed.join(", ")),
    }
}

/// The beginning of what may be long, on one line.
fn excerpt(text: &str) -> String {
    const LENGTH: usize = 200;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None if line.is_empty() => "nothing".to_string(),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::Over;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    /// Answers each request by the bytes that `respond` gives for its path and body, then closes; its address.
    fn server(respond: impl Fn(&str, &str) -> Vec<u8> + Send + Sync + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let respond = Arc::new(respond);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let respond = respond.clone();
                std::thread::spawn(move || answer(stream.unwrap(), &*respond));
            }
        });
        url
    }

    fn answer(mut stream: TcpStream, respond: &dyn Fn(&str, &str) -> Vec<u8>) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut first, mut length) = (String::new(), 0);
        reader.read_line(&mut first).unwrap();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            match line.trim().to_ascii_lowercase().split_once(':') {
                Some(("content-length", value)) => length = value.trim().parse().unwrap(),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let path = first.split(' ').nth(1).unwrap();
        // The client may have gone.
        let _ = stream.write_all(&respond(path, std::str::from_utf8(&body).unwrap()));
    }

    /// A response as cpp-httplib writes it.
    fn cpp(status: &str, headers: &str, body: &str) -> Vec<u8> {
        format!(
            "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nContent-Type: text/plain\r\nKeep-Alive: timeout=5, \
             max=5\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }

    fn ok(body: &str) -> Vec<u8> {
        cpp("200 OK", "", body)
    }

    /// A server with one model `forward` of these sizes, whose evaluations `evaluate` answers.
    fn model(
        inputs: &'static str,
        outputs: &'static str,
        evaluate: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> String {
        server(move |path, body| match path {
            "/Info" => ok(r#"{"models":["forward"],"protocolVersion":1.0}"#),
            "/ModelInfo" => ok(r#"{"support":{"Evaluate":true,"Gradient":false}}"#),
            "/InputSizes" => ok(&format!(r#"{{"inputSizes":{inputs}}}"#)),
            "/OutputSizes" => ok(&format!(r#"{{"outputSizes":{outputs}}}"#)),
            "/Evaluate" => evaluate(body),
            other => panic!("nobody asks for {other}"),
        })
    }

    fn spec(url: &str) -> UmbridgeSpec {
        UmbridgeSpec {
            url: url.to_string(),
            model: None,
            config: json!({}),
            inputs: None,
            outputs: Vec::new(),
            timeout: None,
        }
    }

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_string()).collect()
    }

    fn number(name: &str) -> Wanted {
        Wanted { name: name.to_string(), over: None }
    }

    fn series(name: &str, at: Option<Vec<f64>>) -> Wanted {
        Wanted { name: name.to_string(), over: Some(Over { name: "t".to_string(), at }) }
    }

    fn job(inputs: &[(&str, f64)]) -> Job {
        Job {
            id: 1,
            inputs: inputs.iter().map(|(name, value)| ((*name).to_string(), *value)).collect(),
            folder: std::path::PathBuf::new(),
            marker: String::new(),
            attempt: 1,
        }
    }

    /// One evaluation at a = 1, b = 2 of a model with two inputs and one output `y`, answered by `response`.
    fn evaluated(response: Vec<u8>) -> Result<Vec<Reading>, Failure> {
        let url = model("[2]", "[1]", move |_| response.clone());
        let model = spec(&url).connect(&names(&["a", "b"]), &[number("y")]).unwrap();
        model.run(&job(&[("a", 1.0), ("b", 2.0)]), &|| true)
    }

    fn reason(response: Vec<u8>) -> String {
        match evaluated(response) {
            Err(Failure::Failed(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn inputs_and_config_are_sent_in_full_precision_and_numbers_come_back() {
        let url = model("[2,1]", "[2,3]", |body| {
            let body: Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["input"], json!([[0.1 + 0.2, 1e-300], [3.0]]));
            assert_eq!(body["config"], json!({ "level": 2 }));
            assert_eq!(body["name"], "forward");
            ok(r#"{"output":[[0.30000000000000004,-1e-7],[1,2.5,3]]}"#)
        });
        let spec = UmbridgeSpec {
            config: json!({ "level": 2 }),
            inputs: Some(vec![names(&["b", "a"]), names(&["c"])]),
            ..spec(&url)
        };
        let wanted = [number("p"), number("q"), series("s", Some(vec![0.0, 1.0, 2.0]))];
        let model = spec.connect(&names(&["a", "b", "c"]), &wanted).unwrap();
        let readings = model.run(&job(&[("a", 1e-300), ("b", 0.1 + 0.2), ("c", 3.0)]), &|| true).unwrap();
        assert_eq!(
            readings,
            [
                Reading { at: vec![], values: vec![0.1 + 0.2] },
                Reading { at: vec![], values: vec![-1e-7] },
                Reading { at: vec![0.0, 1.0, 2.0], values: vec![1.0, 2.5, 3.0] },
            ]
        );
    }

    #[test]
    fn outputs_are_taken_from_where_they_are_said_to_stand() {
        let url = model("[1,1]", "[2,3]", |_| ok(r#"{"output":[[1,2],[3,4,5]]}"#));
        let at = |vector, entry| OutputAt { vector, entry };
        let connect = |outputs: Vec<OutputAt>, wanted: &[Wanted]| {
            UmbridgeSpec { outputs, ..spec(&url) }.connect(&names(&["a", "b"]), wanted)
        };
        let model =
            connect(vec![at(1, Some(2)), at(0, None)], &[number("y"), series("s", Some(vec![7.0, 8.0]))]).unwrap();
        let readings = model.run(&job(&[("a", 0.0), ("b", 0.0)]), &|| true).unwrap();
        assert_eq!(readings[0].values, [5.0]);
        assert_eq!((readings[1].at.as_slice(), readings[1].values.as_slice()), (&[7.0, 8.0][..], &[1.0, 2.0][..]));

        let message = |outputs: Vec<OutputAt>, wanted: &[Wanted]| connect(outputs, wanted).unwrap_err().to_string();
        assert_eq!(
            message(vec![], &[number("y")]),
            "simulator.outputs: model \"forward\" gives 2 vectors of sizes 2, 3, which y in order do not fill; say where each \
             output stands: its vector and, unless it is a series, its entry, both from 0"
        );
        assert!(message(vec![at(0, Some(0))], &[number("y"), number("z")]).contains("1 place for 2 outputs: y, z"));
        assert!(message(vec![at(2, None)], &[number("y")]).contains("there is no vector 2"));
        assert!(message(vec![at(0, Some(2))], &[number("y")]).contains("there is no entry 2 in vector 0"));
        assert!(message(vec![at(0, None)], &[number("y")]).contains("vector 0 has 2 values; say which entry"));
        let two = || Some(vec![0.0, 1.0]);
        assert!(message(vec![at(0, Some(1))], &[series("s", two())]).contains("takes a whole vector"));
        assert!(message(vec![at(1, None)], &[series("s", two())]).contains("has 2 values of t, and vector 1 has 3"));
        assert!(message(vec![at(1, None)], &[series("s", None)]).contains("the values of t are not known"));
    }

    #[test]
    fn inputs_that_do_not_fit_are_refused_before_any_run() {
        let url = model("[2,1]", "[1]", |_| panic!("nothing is evaluated"));
        let message = |inputs: Option<Vec<Vec<String>>>, known: &[&str]| {
            let spec = UmbridgeSpec { inputs, ..spec(&url) };
            spec.connect(&names(known), &[number("y")]).unwrap_err().to_string()
        };
        assert_eq!(
            message(None, &["a", "b", "c"]),
            "simulator.inputs: model \"forward\" takes 2 vectors of sizes 2, 1, and the study has 3 inputs: a, b, c; say which \
             input stands where, as inputs = [[\"a\", \"b\"], [\"c\"]], and give what is missing as a constant"
        );
        let by_vector = |vectors: &[&[&str]]| Some(vectors.iter().map(|v| names(v)).collect());
        assert!(message(by_vector(&[&["depth"], &["depht"]]), &["depth"]).contains("did you mean \"depth\"?"));
        assert!(message(by_vector(&[&["a", "a"], &["a"]]), &["a", "b"]).contains("input \"b\" stands nowhere"));
        assert!(message(by_vector(&[&["a"], &["b"]]), &["a", "b"]).contains("not 2 vectors of sizes 1, 1"));
    }

    #[test]
    fn a_number_that_is_not_finite_fails_the_run_however_it_is_written() {
        for bare in ["nan", "NaN", "-nan", "inf", "-inf", "Infinity", "-Infinity", "null", "None"] {
            let written = reason(ok(&format!("{{\"output\": [[{bare}]] }}")));
            assert_eq!(written, "output y is not a finite number", "{bare}");
        }
    }

    #[test]
    fn gaps_in_a_series_are_nan() {
        let run = |values: &'static str| {
            let url = model("[1]", "[3]", move |_| ok(&format!("{{\"output\": [{values}]}}")));
            let model = spec(&url).connect(&names(&["a"]), &[series("s", Some(vec![0.0, 1.0, 2.0]))]).unwrap();
            model.run(&job(&[("a", 1.0)]), &|| true)
        };
        let readings = run("[1.5, nan, -inf]").unwrap();
        let values = &readings[0].values;
        assert!(values[0] == 1.5 && values[1].is_nan() && values[2].is_nan(), "{values:?}");
        assert_eq!(run("[nan, null, inf]"), Err(Failure::Failed("output s has no finite value".to_string())));
    }

    #[test]
    fn words_in_strings_stay() {
        let answer = parse(r#"{"a": "nan, \"inf\" \\", "ünï": [nan, 1e5, -Infinity, true]}"#).unwrap();
        assert_eq!(answer, json!({ "a": "nan, \"inf\" \\", "ünï": [null, 1e5, null, true] }));
        assert_eq!(parse("{\"a\": banana}"), None);
        assert_eq!(parse("\\"), None);
        assert_eq!(parse("\"\\"), None);
    }

    #[test]
    fn the_words_of_the_model_are_kept() {
        let trace = "Traceback (most recent call last):\n  File \"m.py\", line 3\nValueError: depth is negative\n";
        assert_eq!(
            reason(cpp("500 Internal Server Error", "", trace)),
            "the model failed (status 500): ValueError: depth is negative; see the model and the server's own output"
        );
        assert_eq!(
            reason(cpp("500 Internal Server Error", "EXCEPTION_WHAT: no mesh\r\n", "")),
            "the model failed (status 500): no mesh; see the model"
        );
        let silent = "the model failed (status 500): it did not say why; see the server's own output for the exception";
        assert_eq!(reason(cpp("500 Internal Server Error", "", "")), silent);
        let aiohttp = "500 Internal Server Error\n\nServer got itself in trouble";
        assert_eq!(reason(cpp("500 Internal Server Error", "", aiohttp)), silent);
        let object = r#"{"error":{"type":"InvalidInput","message":"Input parameter 0 has invalid length!"}}"#;
        for status in ["400 Bad Request", "200 OK"] {
            assert_eq!(
                reason(cpp(status, "", object)),
                "InvalidInput: Input parameter 0 has invalid length!; check simulator.inputs and simulator.config"
            );
        }
    }

    #[test]
    fn answers_that_are_no_answers_say_what_they_are() {
        assert_eq!(
            reason(ok(r#"{"output":[[1.0,2.0]]}"#)),
            "the model gave 2 values, and its server announced 1 value"
        );
        assert_eq!(reason(ok(r#"{"output":[]}"#)), "the model gave no values, and its server announced 1 value");
        assert!(reason(ok(r#"{"output":[1.0]}"#)).starts_with("the output is not a list of lists of numbers: "));
        assert!(reason(ok(r#"{"output":[["1.0"]]}"#)).starts_with("the output is not a list of lists of numbers: "));
        assert!(reason(ok("{}")).starts_with("the output is not a list of lists of numbers: {}"));
        assert!(reason(ok("<html>")).contains("/Evaluate answered what is not JSON: <html>; check host and port"));
        assert!(reason(ok("{\"output\": [[np.float64(1.0)]] }")).contains("lists of Python floats"));
        assert!(reason(cpp("404 Not Found", "", "")).contains("/Evaluate does not exist"));
        assert!(reason(cpp("503 Busy", "", "later")).contains("(status 503): later"));
        assert!(
            reason(cpp("307 Moved", "Location: http://b/Evaluate\r\n", "")).contains("has moved to http://b/Evaluate")
        );
    }

    #[test]
    fn a_lost_evaluation_is_not_sent_again() {
        for broken in ["", "HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{\"output\":"] {
            let asked = Arc::new(AtomicUsize::new(0));
            let counter = asked.clone();
            let url = model("[1]", "[1]", move |_| {
                counter.fetch_add(1, Ordering::SeqCst);
                broken.as_bytes().to_vec()
            });
            let model = spec(&url).connect(&names(&["a"]), &[number("y")]).unwrap();
            let Err(Failure::Failed(reason)) = model.run(&job(&[("a", 1.0)]), &|| true) else { panic!("{broken}") };
            assert!(reason.contains("before its answer was complete"), "{reason}");
            assert_eq!(asked.load(Ordering::SeqCst), 1);
        }
    }

    #[test]
    fn servers_that_are_not_there_or_something_else_are_told_apart() {
        let message = |url: &str| spec(url).connect(&names(&["a"]), &[number("y")]).unwrap_err().to_string();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(
            message(&format!("http://{free}/")),
            format!("simulator.umbridge: nothing answers at http://{free}; is the server running, and on this port?")
        );
        assert!(message("https://host:1").contains("needs encryption"));
        assert!(message("localhost:4242").ends_with("write http://localhost:4242"));
        assert!(message("ftp://host").contains("speaks ftp"));
        assert!(message("http://").contains("names no host"));
        assert!(message("http://host?x=1").contains("more than host"));
        assert!(message(&server(|_, _| ok("<html>"))).contains("/Info answered what is not JSON: <html>"));
        assert!(message(&server(|_, _| ok("{}"))).contains("does not answer as a UM-Bridge server"));
        assert!(message(&server(|_, _| ok(r#"{"protocolVersion":2.0}"#))).contains("speaks UM-Bridge 2.0"));
        assert!(message(&server(|_, _| ok(r#"{"protocolVersion":1.0}"#))).contains("does not list its models"));
        assert!(message(&server(|_, _| ok(r#"{"protocolVersion":1.0,"models":[]}"#))).contains("has no model"));
        let sizes = model("2", "[1]", |_| panic!("nothing is evaluated"));
        assert!(message(&sizes).contains("InputSizes of \"forward\""), "{}", message(&sizes));
        let deaf = server(|path, _| match path {
            "/Info" => ok(r#"{"protocolVersion":1.0,"models":["forward"]}"#),
            _ => ok(r#"{"support":{"Evaluate":false}}"#),
        });
        assert!(message(&deaf).contains("\"forward\" does not offer Evaluate"));
    }

    #[test]
    fn a_model_is_named_where_there_are_several() {
        let url = server(|_, _| ok(r#"{"protocolVersion":1.0,"models":["forward","posterior"]}"#));
        let message = |model: Option<&str>| {
            let spec = UmbridgeSpec { model: model.map(str::to_string), ..spec(&url) };
            spec.connect(&names(&["a"]), &[number("y")]).unwrap_err().to_string()
        };
        assert_eq!(
            message(None),
            format!(
                "simulator.model: is missing, and the server at {url} has 2 models; choose one of forward, posterior"
            )
        );
        assert!(message(Some("foward")).contains("did you mean \"forward\"?"));
        let config = UmbridgeSpec { config: json!([1]), ..spec(&url) };
        assert!(config.connect(&[], &[]).unwrap_err().to_string().starts_with("simulator.config: [1] is not a table"));
    }

    #[test]
    fn a_slow_model_ends_by_its_time_limit_or_by_the_user() {
        let patience = Duration::from_secs(30);
        let url = model("[1]", "[1]", move |_| {
            std::thread::sleep(patience);
            Vec::new()
        });
        let limit = Duration::from_millis(100);
        let connect = |timeout| UmbridgeSpec { timeout, ..spec(&url) }.connect(&names(&["a"]), &[number("y")]).unwrap();
        let started = Instant::now();
        let Err(Failure::Failed(reason)) = connect(Some(limit)).run(&job(&[("a", 1.0)]), &|| true) else { panic!() };
        assert!(reason.contains("gave no answer within 100ms; raise simulator.timeout"), "{reason}");
        let interrupted = connect(None).run(&job(&[("a", 1.0)]), &|| started.elapsed() < 4 * limit);
        assert_eq!(interrupted, Err(Failure::Interrupted));
        assert!(started.elapsed() < patience);
    }

    #[test]
    fn evaluations_run_at_once_and_cost_little() {
        let pause = Duration::from_millis(300);
        let url = model("[1]", "[1]", move |body| {
            let body: Value = serde_json::from_str(body).unwrap();
            if body["input"][0][0] == 1.0 {
                std::thread::sleep(pause);
            }
            ok(&json!({ "output": body["input"] }).to_string())
        });
        let model = spec(&url).connect(&names(&["a"]), &[number("y")]).unwrap();
        let started = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| model.run(&job(&[("a", 1.0)]), &|| true).unwrap());
            }
        });
        assert!(started.elapsed() < 4 * pause, "{:?}", started.elapsed());
        // The least of many, since other processes share the machine.
        let cost = (0..100).map(|_| {
            let started = Instant::now();
            model.run(&job(&[("a", 2.0)]), &|| true).unwrap();
            started.elapsed()
        });
        let least = cost.min().unwrap();
        assert!(least < Duration::from_millis(1), "{least:?}");
    }

    #[test]
    fn runs_depend_on_model_and_config_wherever_the_server_is() {
        let base = UmbridgeSpec {
            model: Some("m".to_string()),
            config: json!({ "a": 1, "b": { "c": 2, "d": 3 } }),
            ..spec("http://a")
        };
        let moved = UmbridgeSpec {
            url: "http://b".to_string(),
            config: json!({ "b": { "d": 3, "c": 2 }, "a": 1 }),
            ..base.clone()
        };
        assert_eq!(base.fingerprint_parts(), moved.fingerprint_parts());
        let others = [
            UmbridgeSpec { model: None, ..base.clone() },
            UmbridgeSpec { config: json!({}), ..base.clone() },
            UmbridgeSpec { inputs: Some(vec![names(&["a"])]), ..base.clone() },
            UmbridgeSpec { outputs: vec![OutputAt { vector: 0, entry: None }], ..base.clone() },
        ];
        for other in others {
            assert_ne!(other.fingerprint_parts(), base.fingerprint_parts(), "{other:?}");
        }
    }
}
