//! The evidence of an answer: the log density of the measurements by a method, and how well it is known.
//!
//! Point has that of its one surrogate, `p(y | theta_bar)`. E-Lik has `p(y | D_T) = sum_s alpha_s Z_s`, the mean of the evidences
//! `Z_s = p(y | theta_s)` of all T-draws. The other methods have none.

use super::propagation::Method;
use super::{
    Diagnostics, Engine, FEW_T_DRAWS, IPosterior, Likelihoods, Prepared, Workspace, agreement, responsibilities,
};
use rayon::prelude::*;

/// The log density of the measurements in their own units, unknowns and unknown sds integrated out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// Its logarithm.
    pub log: f64,
    /// One sd of what the engine's integral is off by, in the logarithm.
    pub engine_error: f64,
    /// One sd of what comes from the finite number of T-draws, in the logarithm; none where there are none, or where these were not
    /// drawn.
    pub t_draw_error: Option<f64>,
    /// Whether it rests on so few T-draws that neither it nor its error is to be trusted.
    pub rests_on_few: bool,
}

impl Evidence {
    /// One sd of all that it is off by, in the logarithm.
    pub fn error(&self) -> f64 {
        self.engine_error.hypot(self.t_draw_error.unwrap_or(0.0))
    }
}

impl std::fmt::Display for Evidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ± {:.2}", self.log, self.error())
    }
}

impl Diagnostics {
    /// Whether E-Lik rests on few of many T-draws: its standard error by the delta method is then no longer that of a normal number.
    pub(super) fn rests_on_few(&self) -> bool {
        match self.effective_t_draws.zip(self.evidence_agreement) {
            Some((effective, share)) => effective < FEW_T_DRAWS && share < 0.25,
            // Of draws of hyper-parameters: so few effective ones have this error.
            None => self.log_evidence_t_draw_error.is_some_and(|error| error > FEW_T_DRAWS.sqrt().recip()),
        }
    }
}

impl IPosterior {
    /// The evidence of the measurements by this answer.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn evidence(&self) -> Result<Evidence, String> {
        match self.method.as_str() {
            "point" | "e-lik" => {}
            "e-post" => return Err("its T-draws have equal weights, however well they explain the measurements".into()),
            "e-log-lik" => {
                return Err("the mean of log-likelihoods is the logarithm of no probability of the measurements".into());
            }
            _ => {
                return Err(
                    "nobody but its author knows whether what it pools is a probability of the measurements".into()
                );
            }
        }
        let Diagnostics { log_evidence, log_evidence_error, log_evidence_t_draw_error, .. } = self.diagnostics;
        match (log_evidence, log_evidence_error) {
            (Some(log), Some(engine_error)) => Ok(Evidence {
                log,
                engine_error,
                t_draw_error: log_evidence_t_draw_error,
                rests_on_few: self.diagnostics.rests_on_few(),
            }),
            _ if self.engine == Engine::Nuts.name() => {
                Err("NUTS knows no evidence; use infer.engine = \"auto\" or \"smc\"".into())
            }
            _ => Err("the error of its evidence is not known; it takes two or more of infer.smc.runs".into()),
        }
    }
}

/// Shares of the T-draws in the posterior of which these are draws: means of their responsibilities.
pub(super) fn shares(likelihoods: &Likelihoods, draws: &[Vec<f64>], log_alpha: &[f64]) -> Vec<f64> {
    // Blocks of fixed size keep the order of the sums, whatever the number of threads.
    let of_block = |block: &[Vec<f64>]| {
        let (mut workspace, mut r, mut sum) = (Workspace::default(), Vec::new(), vec![0.0; log_alpha.len()]);
        for x in block {
            responsibilities(likelihoods, x, log_alpha, &mut workspace, &mut r);
            sum.iter_mut().zip(&r).for_each(|(sum, r)| *sum += r);
        }
        sum
    };
    let blocks: Vec<Vec<f64>> = draws.par_chunks(64).map(of_block).collect();
    let mut out = vec![0.0; log_alpha.len()];
    for block in blocks {
        out.iter_mut().zip(block).for_each(|(out, sum)| *out += sum / draws.len() as f64);
    }
    out
}

impl Prepared {
    /// Whether the T-draws are a sample of some size: weighted ones were chosen.
    pub(super) fn has_sampled_draws(&self) -> bool {
        let log_alpha = self.log_alpha();
        log_alpha.len() >= 4 && log_alpha.iter().all(|a| (a - log_alpha[0]).abs() < 1e-9)
    }

    /// Notes what the log-shares of the T-draws in E-Lik's answer, `w_s = alpha_s Z_s / Z`, say of it.
    ///
    /// The mean of the S evidences has the relative variance `S / (S - 1) sum_s (w_s - alpha_s)^2`, which is that of its logarithm where it
    /// is small. Draws of hyper-parameters take the place of T-draws where functions are integrated out; they are spread evenly, so that
    /// their error is rather smaller.
    pub(super) fn note_shares(&self, log_shares: &[f64], log_alpha: &[f64], diagnostics: &mut Diagnostics) {
        let (n, is_marginal) = (log_alpha.len() as f64, self.is_marginal(Method::ELik));
        if !is_marginal {
            let share = agreement(log_shares, log_alpha);
            diagnostics.evidence_agreement = Some(share);
            diagnostics.effective_t_draws = Some(share * n);
        }
        if diagnostics.log_evidence.is_some() && n > 1.0 && (is_marginal || self.has_sampled_draws()) {
            let gaps = log_shares.iter().zip(log_alpha).map(|(w, a)| (w.exp() - a.exp()).powi(2));
            diagnostics.log_evidence_t_draw_error = Some((n / (n - 1.0) * gaps.sum::<f64>()).sqrt());
        }
    }
}
