//! `twostep serve`: surrogate and I-posterior of a finished study, for other programs.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output::{self, Look};
use crate::progress::Progress;
use crate::session;
use clap::builder::PossibleValuesParser;
use serde_json::json;
use std::path::PathBuf;
use twostep::Error;
use twostep::infer::propagation::Method;
use twostep::monitor::Monitor;
use twostep::run::{Served, served};
use twostep::serve::{Limits, listen, serve};

/// What is served.
pub(crate) const ABOUT: &str = "\
Both models take and give natural units, one vector each way, and have Gradient and ApplyJacobian.

forward: unknowns and conditions to outputs, the mean over the T-draws. Config {\"draw\": k} takes one T-draw, from 0; \
{\"extrapolate\": true} takes inputs outside the range of the training, which are an error otherwise.

posterior: unknowns and unknown measurement sds to the log density of the I-posterior. Config {\"outside\": -1e300} gives that \
number outside the support, which is an error otherwise.";

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// The study file
    study: PathBuf,
    /// Port to listen at; 0 for any that is free
    #[arg(long, default_value_t = 4242)]
    port: u16,
    /// Address to listen at; 0.0.0.0 lets other machines ask
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Serve the posterior by this method instead of the study's answer
    #[arg(long, value_parser = PossibleValuesParser::new(Method::ALL.map(Method::name)))]
    method: Option<String>,
    /// Setting of the sweep, from 1
    #[arg(long, value_name = "N")]
    setting: Option<usize>,
    /// The measurements that `infer` was given, where they are not the study's
    #[arg(long, value_name = "FILE")]
    measurements: Option<PathBuf>,
}

impl Serve {
    pub(crate) fn execute(&self, global: &Global) -> Result<(), Failure> {
        let project = session::open(&self.study, global, self.measurements.as_deref())?;
        let index = session::setting(&project, self.setting, "what is served is")?;
        // Before anything is computed: a port that is taken should not be learnt of after a minute.
        let listener = listen(&self.host, self.port)?;
        let address = listener.local_addr().map_err(|error| {
            Error::failed("serve", format!("the system does not say the port: {error}"), "give --port")
        })?;
        let progress = Progress::new(global.quiet);
        let found = served(&project, index, self.method.as_ref().and_then(|name| Method::named(name)), &progress);
        progress.finish();
        let found = found?;
        let url = format!("http://{address}");
        if global.json {
            super::print_json(&json!({
                "study": project.settings()[index].study.name,
                "url": url,
                "method": found.method.name(),
                "forward": { "inputs": found.inputs, "outputs": found.outputs },
                "posterior": { "inputs": found.parameters, "normalised": found.normalised, "mean": found.centre },
            }))?;
        } else {
            output::print(&banner(&url, &found))?;
        }
        if !address.ip().is_loopback() {
            output::note_as("warning", Look::Warning, "whoever can reach this machine can ask; there is no password");
        }
        Ok(serve(listener, found.models, Limits::default(), &|| progress.proceed())?)
    }
}

/// What is served, and how to ask for it.
fn banner(url: &str, served: &Served) -> String {
    let Served { inputs, outputs, parameters, centre, method, normalised, .. } = served;
    let density = if *normalised { "log density" } else { "log density up to a constant" };
    let centre: Vec<String> = centre.iter().map(|x| format!("{x:.4}")).collect();
    format!(
        "serving at {url} (UM-Bridge), until Ctrl-C\n  \
           forward     [{}] -> [{}], mean over the T-draws\n  \
           posterior   [{}] -> [{density}], by {}\n\
         from Python, after `pip install umbridge`:\n  \
           import umbridge\n  \
           posterior = umbridge.HTTPModel(\"{url}\", \"posterior\")\n  \
           posterior([[{}]])\n",
        inputs.join(", "),
        outputs.join(", "),
        parameters.join(", "),
        method.name(),
        centre.join(", "),
    )
}
