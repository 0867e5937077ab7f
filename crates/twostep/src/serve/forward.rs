//! The trained surrogate as a model: inputs in natural units to outputs in natural units.

use super::{Derivatives, Model, Refused, Wrt, only_keys};
use crate::matrix::Matrix;
use crate::surrogate::{InputScale, Scratch};
use crate::train::TPosterior;
use serde_json::Value;

/// Part of a range by which an input may lie outside it: rounding of whoever computed it.
const SLACK: f64 = 1e-9;

/// `[unknowns and conditions] -> [outputs]`: the mean over the T-draws of each output in natural units.
///
/// The configuration may have `draw`, the number of one T-draw from 0, instead of the mean; and `extrapolate`, true where
/// inputs outside the range of the training are meant.
pub struct Forward {
    posterior: TPosterior,
    names: Vec<String>,
    scales: Vec<InputScale>,
    /// Coefficients of each output.
    coefficients: Vec<Matrix>,
    weights: Vec<f64>,
}

impl Forward {
    /// `names` and `scales` are those of the surrogates' inputs.
    pub fn new(posterior: TPosterior, names: Vec<String>, scales: Vec<InputScale>) -> Self {
        let coefficients = (0..posterior.outputs.len()).map(|o| posterior.output_draws(o).0).collect();
        let weights = posterior.draws.weights();
        Self { posterior, names, scales, coefficients, weights }
    }

    /// The inputs as one row.
    fn point(&self, input: &[Vec<f64>], config: &Value) -> Result<Matrix, Refused> {
        only_keys(config, &["draw", "extrapolate"])?;
        let x = &input[0];
        if !config["extrapolate"].as_bool().unwrap_or(false) {
            for ((name, scale), &x) in self.names.iter().zip(&self.scales).zip(x) {
                let slack = SLACK * (scale.upper - scale.lower);
                if !(scale.lower - slack..=scale.upper + slack).contains(&x) {
                    return Err(Refused::Input(format!(
                        "{name} = {x} lies outside [{}, {}], where the surrogate was trained; config {{\"extrapolate\": true}} \
                         takes it all the same",
                        scale.lower, scale.upper
                    )));
                }
            }
        }
        Ok(Matrix::from_fn(1, x.len(), |_, d| x[d]))
    }

    /// The T-draws asked for, with their weights: all, or one.
    fn draws(&self, config: &Value) -> Result<Vec<(usize, f64)>, Refused> {
        let n = self.weights.len();
        match &config["draw"] {
            Value::Null => Ok(self.weights.iter().copied().enumerate().collect()),
            draw => match draw.as_u64().and_then(|draw| usize::try_from(draw).ok()).filter(|&draw| draw < n) {
                Some(draw) => Ok(vec![(draw, 1.0)]),
                None => Err(Refused::Input(format!("draw is {draw}, and there are T-draws 0 to {}", n - 1))),
            },
        }
    }

    /// Value of output `o`, and its derivatives by the inputs.
    fn score(&self, o: usize, x: &Matrix, draws: &[(usize, f64)]) -> (f64, Vec<f64>) {
        let output = &self.posterior.outputs[o];
        // An output that is no series has nothing to do with the coordinate, which is last.
        let x = &Matrix::from_fn(1, output.n_inputs, |_, d| x[(0, d)]);
        let chosen: Vec<usize> = draws.iter().map(|(s, _)| *s).collect();
        let coefficients = self.coefficients[o].select_cols(&chosen);
        let (shift, factor) = output.affine;
        let (mut eta, mut scratch) = (Matrix::default(), Scratch::default());
        output.surrogate.predict(x, &coefficients, &mut eta, &mut scratch);
        let (mut mean, mut eta_bar) = (0.0, Matrix::zeros(1, draws.len()));
        for (k, (_, weight)) in draws.iter().enumerate() {
            let eta = shift + factor * eta[(0, k)];
            let (y, slope) = if output.log { (eta.exp(), eta.exp()) } else { (eta, 1.0) };
            mean += weight * y;
            eta_bar[(0, k)] = weight * slope * factor;
        }
        let mut x_bar = Matrix::zeros(1, x.cols());
        output.surrogate.pull_to_inputs(x, &coefficients, &eta_bar, &mut x_bar, &mut scratch);
        (mean, x_bar.row(0).to_vec())
    }

    /// Values of all outputs with their derivatives.
    fn scores(&self, input: &[Vec<f64>], config: &Value) -> Result<Vec<(f64, Vec<f64>)>, Refused> {
        let (x, draws) = (self.point(input, config)?, self.draws(config)?);
        Ok((0..self.posterior.outputs.len()).map(|o| self.score(o, &x, &draws)).collect())
    }
}

impl Model for Forward {
    fn name(&self) -> &str {
        "forward"
    }

    fn input_sizes(&self) -> Vec<usize> {
        vec![self.names.len()]
    }

    fn output_sizes(&self) -> Vec<usize> {
        vec![self.posterior.outputs.len()]
    }

    fn evaluate(&self, input: &[Vec<f64>], config: &Value) -> Result<Vec<Vec<f64>>, Refused> {
        Ok(vec![self.scores(input, config)?.into_iter().map(|(y, _)| y).collect()])
    }

    fn derivatives(&self) -> Option<&dyn Derivatives> {
        Some(self)
    }
}

impl Derivatives for Forward {
    fn gradient(&self, _: Wrt, input: &[Vec<f64>], sens: &[f64], config: &Value) -> Result<Vec<f64>, Refused> {
        let mut out = vec![0.0; self.names.len()];
        for ((_, by_x), sens) in self.scores(input, config)?.iter().zip(sens) {
            out.iter_mut().zip(by_x).for_each(|(out, by)| *out += sens * by);
        }
        Ok(out)
    }

    fn apply_jacobian(&self, _: Wrt, input: &[Vec<f64>], vec: &[f64], config: &Value) -> Result<Vec<f64>, Refused> {
        let scores = self.scores(input, config)?;
        Ok(scores.iter().map(|(_, by_x)| by_x.iter().zip(vec).map(|(by, v)| by * v).sum()).collect())
    }
}
