//! The I-posterior as a model: parameters in natural units to their log density.

use super::{Derivatives, Model, Refused, Wrt, only_keys};
use crate::infer::Density;
use serde_json::Value;

/// `[unknowns and unknown sds] -> [log density]`.
///
/// Outside the support, where the log density is minus infinity and JSON has no word for it, the answer is an error, or the
/// number that the configuration gives as `outside`.
pub struct Posterior(Density);

impl Posterior {
    /// Serves this density.
    pub fn new(density: Density) -> Self {
        Self(density)
    }

    fn score(&self, input: &[Vec<f64>], config: &Value) -> Result<(f64, Vec<f64>), Refused> {
        only_keys(config, &["outside"])?;
        let mut gradient = vec![0.0; input[0].len()];
        let value = self.0.score(&input[0], &mut gradient);
        if value != f64::NEG_INFINITY {
            return Ok((value, gradient));
        }
        match (&config["outside"], config["outside"].as_f64()) {
            (_, Some(outside)) => Ok((outside, vec![0.0; input[0].len()])),
            (Value::Null, _) => {
                let outside =
                    self.0.prior().iter().zip(&input[0]).find(|((_, m), x)| m.log_density(**x) == f64::NEG_INFINITY);
                let why = match outside {
                    Some(((name, marginal), x)) => {
                        let (lower, upper) = marginal.support();
                        format!("{name} = {x} lies outside [{lower}, {upper}]")
                    }
                    None => "the measurements are impossible here".to_string(),
                };
                Err(Refused::Input(format!(
                    "the log density is minus infinity: {why}; config {{\"outside\": -1e300}} gives that number instead"
                )))
            }
            (other, None) => Err(Refused::Input(format!("outside is {other}; give a number"))),
        }
    }
}

impl Model for Posterior {
    fn name(&self) -> &str {
        "posterior"
    }

    fn input_sizes(&self) -> Vec<usize> {
        vec![self.0.prior().len()]
    }

    fn output_sizes(&self) -> Vec<usize> {
        vec![1]
    }

    fn evaluate(&self, input: &[Vec<f64>], config: &Value) -> Result<Vec<Vec<f64>>, Refused> {
        Ok(vec![vec![self.score(input, config)?.0]])
    }

    fn derivatives(&self) -> Option<&dyn Derivatives> {
        Some(self)
    }
}

impl Derivatives for Posterior {
    fn gradient(&self, _: Wrt, input: &[Vec<f64>], sens: &[f64], config: &Value) -> Result<Vec<f64>, Refused> {
        Ok(self.score(input, config)?.1.iter().map(|by| sens[0] * by).collect())
    }

    fn apply_jacobian(&self, _: Wrt, input: &[Vec<f64>], vec: &[f64], config: &Value) -> Result<Vec<f64>, Refused> {
        Ok(vec![self.score(input, config)?.1.iter().zip(vec).map(|(by, v)| by * v).sum()])
    }
}
