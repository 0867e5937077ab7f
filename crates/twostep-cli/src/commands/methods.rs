//! `twostep methods`: the four ways to carry the surrogate's uncertainty, for people who must choose one.

use crate::arguments::Global;
use crate::failure::Failure;
use crate::output::{self, Look, paint};
use serde_json::json;

/// For the help of the commands that infer.
pub(crate) const SHORT: &str = "\
Methods (infer.methods in the study; `twostep methods` says more):
  e-lik      averages likelihoods: surrogates that explain the data count more (default answer)
  e-post     averages posteriors: all plausible surrogates count alike
  point      one best surrogate, taken as exact: too sure where it is not
  e-log-lik  averages log-likelihoods: gets surer as the surrogate gets worse";

/// Name, formula, cost, when to use it.
const METHODS: [[&str; 4]; 4] = [
    [
        "e-lik",
        "p(y | w) = mean over T-draws of p(y | w, theta_s)",
        "one density that looks at all T-draws; often has several modes.",
        "The default answer: if surrogate and measurements are modelled rightly it is the exact posterior. T-draws that explain the \
         data weigh more. The trust column says what share of the T-draws the data favour; where that is only a few draws, \
         raise train.draws, and read e-post beside it.",
    ],
    [
        "e-post",
        "p(w | y) = mean over T-draws of p(w | y, theta_s)",
        "one fit per T-draw: the dearest by samplers, hardly more than e-lik on the grid.",
        "The cautious choice: every T-draw counts alike, whatever the data say about it. Use it where you doubt the surrogate or the \
         noise model, and as a check: far from e-lik means that the data argue with the surrogate.",
    ],
    [
        "point",
        "p(y | w) = p(y | w, mean of theta)",
        "one fit, the cheapest.",
        "The baseline that takes the surrogate for the simulator. Right only where the surrogate is nearly exact; else too narrow, \
         around a wrong place. If all methods agree with it, the surrogate is good enough.",
    ],
    [
        "e-log-lik",
        "log p(y | w) = mean over T-draws of log p(y | w, theta_s)",
        "one fit; closed form for polynomials with normal noise.",
        "Smooth and easy to sample, but caution: as the surrogate gets worse this method gets surer, not less sure, since a value of w \
         must please every T-draw. For comparison with the paper, not for decisions.",
    ],
];

/// Prints them.
pub(crate) fn execute(global: &Global) -> Result<(), Failure> {
    if global.json {
        let methods: Vec<_> = METHODS
            .iter()
            .map(|[name, formula, cost, use_it]| json!({ "name": name, "formula": formula, "cost": cost, "use": use_it }))
            .collect();
        return super::print_json(&json!({ "methods": methods }));
    }
    let (width, coloured) = (output::width(), output::stdout_coloured());
    let wrap = |text: &str, indent: &str| {
        textwrap::fill(text, textwrap::Options::new(width).initial_indent(indent).subsequent_indent(indent))
    };
    let mut text = wrap(
        "A surrogate trained on few runs is itself uncertain: the T-step leaves T-draws theta_s of it, and the I-step must combine \
         what each says about the unknowns w given measurements y. Four ways (Reiser, Aguilar, Guthke, Bürkner 2025):",
        "",
    );
    text.push('\n');
    for [name, formula, cost, use_it] in METHODS {
        let parts = [wrap(formula, "  "), wrap(&format!("Cost: {cost}"), "  "), wrap(use_it, "  ")];
        text.push_str(&format!("\n{}\n{}\n", paint(name, Look::Bold, coloured), parts.join("\n")));
    }
    text.push('\n');
    text.push_str(&wrap(
        "In the study: infer.methods lists those to compute, infer.answer the one that leads tables, infer.propagate whether the \
         approximation error sigma_a is carried beside the coefficients.",
        "",
    ));
    text.push('\n');
    Ok(output::print(&text)?)
}
