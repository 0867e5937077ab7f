//! Measurements of one output reduced to what the I-likelihood needs: replicates to mean and scatter, groups to classes.

use super::{Batch, Likelihood, Observed, Scored, Sd};
use crate::error::Result;
use crate::kernels;
use crate::kernels::panels::Form;
use crate::matrix::{Matrix, bits};
use crate::special::{HALF_LN_TAU, log_normal_cdf};
use std::collections::HashMap;

/// How the approximation error enters measurements that share their inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Error {
    /// One error per distinct input, shared by its replicates.
    #[default]
    Shared,
    /// A new error for every measurement (the paper's).
    Independent,
}

/// Groups with the same number of replicates and the same sd: their normal log-likelihood depends on the surrogate only
/// through `R = sum_g (mean_g - eta_g)^2`, as `A + B R`.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Replicates per group.
    pub n: f64,
    /// Number of groups.
    pub groups: f64,
    /// Sum over groups of the squared deviations from the group mean.
    pub scatter: f64,
    /// Degrees of freedom of the scatter.
    pub within: f64,
    /// Known sd, or `None` for the unknown sigma_I.
    pub sd: Option<f64>,
    /// Variance of the means that is the same under every T-draw, besides noise and sigma_A.
    pub extra: f64,
}

/// `log p = a + b R` of a class, with derivatives by the sd.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ClassTerms {
    pub(crate) a: f64,
    pub(crate) b: f64,
    pub(crate) a_by_sd: f64,
    pub(crate) b_by_sd: f64,
}

/// A class's log-likelihood at one measurement sd: `constant` and its [`Form`], with their derivatives by the sd.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ClassForm {
    pub(crate) form: Form,
    pub(crate) base_by_sd: f64,
    pub(crate) constant: f64,
    pub(crate) constant_by_sd: f64,
}

impl Class {
    /// How the log-likelihood depends on approximation error and residuals, for measurement sd `s`.
    ///
    /// Shared: `v = sigma_a^2 + extra + s^2/n` is the variance of a group's mean, and the scatter within groups informs `s` alone.
    /// Independent: `v = s^2 + sigma_a^2` is the variance of every measurement.
    pub(crate) fn form(&self, s: f64, error: Error) -> ClassForm {
        let Self { n, groups, scatter, within, extra, .. } = *self;
        let log_two_pi = (2.0 * std::f64::consts::PI).ln();
        match error {
            Error::Shared => {
                // With one replicate there is no scatter; 0 * log(0) must not spoil s = 0, which is legitimate then.
                let (within, within_by_sd) = if within > 0.0 {
                    (within * 2.0 * s.ln() + scatter / (s * s), within * 2.0 / s - 2.0 * scatter / (s * s * s))
                } else {
                    (0.0, 0.0)
                };
                ClassForm {
                    form: Form { base: s * s / n + extra, alpha: -0.5 * groups, beta: 0.0, gamma: -0.5 },
                    base_by_sd: 2.0 * s / n,
                    constant: -0.5 * (groups * (n * log_two_pi + n.ln()) + within),
                    constant_by_sd: -0.5 * within_by_sd,
                }
            }
            Error::Independent => ClassForm {
                form: Form { base: s * s, alpha: -0.5 * groups * n, beta: -0.5 * scatter, gamma: -0.5 * n },
                base_by_sd: 2.0 * s,
                constant: -0.5 * groups * n * log_two_pi,
                constant_by_sd: 0.0,
            },
        }
    }

    /// The part that each of its groups has in [`Class::form`], where approximation errors differ between groups: beta is to be multiplied by
    /// the scatter of the group.
    pub(crate) fn group_form(&self, s: f64, error: Error) -> Form {
        let Form { base, alpha, gamma, .. } = self.form(s, error).form;
        let beta = if error == Error::Independent { -0.5 } else { 0.0 };
        Form { base, alpha: alpha / self.groups, beta, gamma }
    }

    /// The two coefficients for measurement sd `s` and approximation error `sigma_a`.
    pub(crate) fn terms(&self, s: f64, sigma_a: f64, error: Error) -> ClassTerms {
        let ClassForm { form: Form { base, alpha, beta, gamma }, base_by_sd, constant, constant_by_sd } =
            self.form(s, error);
        let v = base + sigma_a * sigma_a;
        ClassTerms {
            a: constant + alpha * v.ln() + beta / v,
            b: gamma / v,
            a_by_sd: constant_by_sd + (alpha - beta / v) / v * base_by_sd,
            b_by_sd: -gamma / (v * v) * base_by_sd,
        }
    }
}

/// Measurements with the same inputs (and, where the error is independent, the same sd).
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Index of its class.
    pub class: usize,
    /// Mean of its values, on the family's scale.
    pub mean: f64,
    /// Sum of their squared deviations from it.
    pub scatter: f64,
    /// Index of its row in [`Reduced::points`].
    pub point: usize,
}

/// What a row that does not reduce says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// A value with a density of its own.
    Value,
    /// Only an upper bound.
    Below,
}

/// A measurement whose log-likelihood is evaluated by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Value or bound, on the family's scale.
    pub z: f64,
    /// Known sd, or `None` for sigma_I.
    pub sd: Option<f64>,
    /// Value or bound.
    pub kind: RowKind,
    /// Index of its row in [`Reduced::points`].
    pub point: usize,
}

impl RowKind {
    /// Log-likelihood of a value or bound `z` at location `mu` and total sd.
    pub(crate) fn score(self, family: &dyn Likelihood, z: f64, mu: f64, sd: f64) -> Scored {
        match self {
            Self::Value => family.score(z, mu, sd),
            Self::Below => {
                let z = (z - mu) / sd;
                let log_lik = log_normal_cdf(z);
                // The inverse Mills ratio phi / Phi, from the logarithm that is there already.
                let slope = (-0.5 * z * z - HALF_LN_TAU - log_lik).exp();
                Scored { log_lik, by_mu: -slope / sd, by_sd: -slope * z / sd }
            }
        }
    }

    /// Adds the log-likelihoods of a batch under every draw.
    pub(crate) fn add_log_likelihoods(self, family: &dyn Likelihood, batch: &Batch<'_>, out: &mut [f64]) {
        match self {
            Self::Value => family.add_log_likelihoods(batch, out),
            Self::Below => {
                for (z, mu) in batch.rows() {
                    kernels::add_log_cdf(z, mu, batch.measured, batch.sigma_a, out);
                }
            }
        }
    }
}

/// A value on the family's scale and its known sd.
type Member = (f64, Option<f64>);

/// One output's measurements, reduced.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reduced {
    /// Terms of the log-likelihood that depend on nothing.
    pub constant: f64,
    /// Classes of groups.
    pub classes: Vec<Class>,
    /// Groups, class after class.
    pub groups: Vec<Group>,
    /// Measurements that do not reduce.
    pub rows: Vec<Row>,
    /// Variance of these that is the same under every T-draw, besides noise and sigma_A.
    pub rows_extra: f64,
    /// Distinct known inputs (conditions and coordinates), one row each.
    pub points: Matrix,
    /// Number of measurements.
    pub n: usize,
    /// Zeros that were taken as left-censored.
    pub censored: usize,
}

impl Reduced {
    /// Reduces measurements `y` at known inputs `known` (one row each). `sds` gives each measurement's sd where it is a
    /// column. `gaussian_reduces` is false where the surrogate's scale is not the family's: then nothing is quadratic.
    ///
    /// # Errors
    /// Number of the measurement and why the family cannot produce it.
    pub fn new(
        family: &dyn Likelihood,
        sd: &Sd,
        sds: Option<&[f64]>,
        y: &[f64],
        known: &Matrix,
        error: Error,
        gaussian_reduces: bool,
    ) -> Result<Self, (usize, String)> {
        let mut out = Self { n: y.len(), ..Self::default() };
        let (mut point_rows, mut points) = (Vec::new(), HashMap::new());
        // (point, members); a group is what shares one approximation error.
        let mut pending: Vec<(usize, Vec<Member>)> = Vec::new();
        let mut groups = HashMap::new();
        for (i, &value) in y.iter().enumerate() {
            if !value.is_finite() {
                return Err((i, "is not a finite number".into()));
            }
            let sd_i = match sd {
                Sd::Fixed(s) => Some(*s),
                Sd::Prior(_) => None,
                Sd::Column => Some(sds.map_or(f64::NAN, |s| s[i])),
            };
            let point = *points.entry(bits(known.row(i))).or_insert_with(|| {
                point_rows.push(i);
                point_rows.len() - 1
            });
            let (observed, log_jacobian) = family.observe(value).map_err(|why| (i, why))?;
            out.constant += log_jacobian;
            match observed {
                Observed::Gaussian(z) if gaussian_reduces => {
                    let by_sd = (error != Error::Shared).then(|| sd_i.map(f64::to_bits));
                    let group = *groups.entry((point, by_sd)).or_insert_with(|| {
                        pending.push((point, Vec::new()));
                        pending.len() - 1
                    });
                    pending[group].1.push((z, sd_i));
                }
                Observed::Gaussian(z) | Observed::Direct(z) => {
                    out.rows.push(Row { z, sd: sd_i, kind: RowKind::Value, point });
                }
                Observed::Below(z) => {
                    out.censored += 1;
                    out.rows.push(Row { z, sd: sd_i, kind: RowKind::Below, point });
                }
            }
        }
        out.points = known.select_rows(&point_rows);
        for (point, members) in pending {
            out.push_group(point, &members);
        }
        out.groups.sort_by_key(|group| group.class);
        Ok(out)
    }

    fn push_group(&mut self, point: usize, members: &[Member]) {
        let equal_sd = members.iter().all(|m| m.1 == members[0].1);
        let (n, mean, scatter, sd) = if equal_sd {
            let n = members.len() as f64;
            let mean = members.iter().map(|m| m.0).sum::<f64>() / n;
            (n, mean, members.iter().map(|m| (m.0 - mean).powi(2)).sum(), members[0].1)
        } else {
            // Unequal known sds: the precision-weighted mean is one measurement with precision Lambda = sum s_i^-2;
            // what remains of the density does not depend on the surrogate.
            let precision = |s: Option<f64>| s.map_or(f64::NAN, |s| 1.0 / (s * s));
            let lambda: f64 = members.iter().map(|m| precision(m.1)).sum();
            let mean = members.iter().map(|m| precision(m.1) * m.0).sum::<f64>() / lambda;
            let rest: f64 =
                members.iter().map(|m| precision(m.1) * (m.0 - mean).powi(2) - precision(m.1).ln()).sum::<f64>()
                    + (members.len() - 1) as f64 * (2.0 * std::f64::consts::PI).ln()
                    + lambda.ln();
            self.constant -= 0.5 * rest;
            (1.0, mean, 0.0, Some(lambda.sqrt().recip()))
        };
        let class = match self.classes.iter().position(|c| c.n == n && c.sd == sd) {
            Some(class) => class,
            None => {
                self.classes.push(Class { n, groups: 0.0, scatter: 0.0, within: 0.0, sd, extra: 0.0 });
                self.classes.len() - 1
            }
        };
        self.classes[class].groups += 1.0;
        self.classes[class].scatter += scatter;
        self.classes[class].within += n - 1.0;
        self.groups.push(Group { class, mean, scatter, point });
    }
}
