//! Measurements of one output reduced to what the I-likelihood needs: replicates to mean and scatter, groups to classes.

use super::{Batch, Likelihood, Observed, Scale, Scored, Side};
use crate::error::Result;
use crate::kernels::panels::Form;
use crate::matrix::{Matrix, bits};
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
    /// What that sd is multiplied by.
    pub times: f64,
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
        let Self { n, groups, scatter, within, extra, times, .. } = *self;
        let s = s * times;
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
                    base_by_sd: 2.0 * s / n * times,
                    constant: -0.5 * (groups * (n * log_two_pi + n.ln()) + within),
                    constant_by_sd: -0.5 * within_by_sd * times,
                }
            }
            Error::Independent => ClassForm {
                form: Form { base: s * s, alpha: -0.5 * groups * n, beta: -0.5 * scatter, gamma: -0.5 * n },
                base_by_sd: 2.0 * s * times,
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
    /// How much its squared residual counts in that of its class.
    pub weight: f64,
    /// Index of its row in [`Reduced::points`].
    pub point: usize,
}

/// What a row that does not reduce says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// A value with a density of its own.
    Value,
    /// Only a bound, and on which side of it the value lies.
    Side(Side),
}

/// A measurement whose log-likelihood is evaluated by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Value or bound, on the family's scale.
    pub z: f64,
    /// Known scale, or `None` for the unknown one.
    pub sd: Option<f64>,
    /// What that scale is multiplied by.
    pub times: f64,
    /// Variance of its error that is the same under every T-draw, besides sigma_A.
    pub extra: f64,
    /// Value or bound.
    pub kind: RowKind,
    /// Index of its row in [`Reduced::points`].
    pub point: usize,
}

impl RowKind {
    /// Log-likelihood of a value or bound `z` at location `mu` and total sd, without the constant of a value.
    pub(crate) fn score(self, family: &dyn Likelihood, z: f64, mu: f64, sd: f64) -> Scored {
        match self {
            Self::Value => family.score(z, mu, sd),
            Self::Side(side) => family.score_side(side, z, mu, sd),
        }
    }

    /// Adds the log-likelihoods of a batch under every draw.
    pub(crate) fn add_log_likelihoods(self, family: &dyn Likelihood, batch: &Batch<'_>, out: &mut [f64]) {
        match self {
            Self::Value => family.add_log_likelihoods(batch, out),
            Self::Side(side) => family.add_sides(side, batch, out),
        }
    }
}

/// A value on the family's scale, its known sd, and what that is multiplied by.
type Member = (f64, Option<f64>, f64);

/// One output's measurements as they come: a row of known inputs each.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    /// The values.
    pub y: &'a [f64],
    /// Their scales, where these are a column.
    pub scales: Option<&'a [f64]>,
    /// Of censored ones the side of `y` on which they lie; empty where there are none.
    pub sides: &'a [Option<Side>],
    /// Conditions and coordinates.
    pub known: &'a Matrix,
}

impl<'a> Values<'a> {
    /// Without scales of their own, and none censored.
    pub fn plain(y: &'a [f64], known: &'a Matrix) -> Self {
        Self { y, scales: None, sides: &[], known }
    }
}

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
    /// Mean over these of the variance that is the same under every T-draw, besides noise and sigma_A: what is added to the noise of all
    /// alike, where errors add to it.
    pub rows_extra: f64,
    /// Distinct known inputs (conditions and coordinates), one row each.
    pub points: Matrix,
    /// Number of measurements.
    pub n: usize,
    /// Zeros of a family that has no logarithm of them: values below a bound of its own.
    pub zeros: usize,
}

impl Reduced {
    /// Reduces measurements. `gaussian_reduces` is false where the surrogate's scale is not the family's: then nothing is quadratic.
    ///
    /// # Errors
    /// Number of the measurement and why the family cannot produce it.
    pub fn new(
        family: &dyn Likelihood,
        scale: &Scale,
        values: &Values<'_>,
        error: Error,
        gaussian_reduces: bool,
    ) -> Result<Self, (usize, String)> {
        let mut out = Self { n: values.y.len(), ..Self::default() };
        let (mut point_rows, mut points) = (Vec::new(), HashMap::new());
        // (point, members); a group is what shares one approximation error.
        let mut pending: Vec<(usize, Vec<Member>)> = Vec::new();
        let mut groups = HashMap::new();
        for (i, &value) in values.y.iter().enumerate() {
            if !value.is_finite() {
                return Err((i, "is not a finite number".into()));
            }
            let own = || values.scales.map_or(f64::NAN, |s| s[i]);
            let (sd, times) = match scale {
                Scale::Fixed(s) => (Some(*s), 1.0),
                Scale::Prior(_) => (None, 1.0),
                Scale::Column => (Some(own()), 1.0),
                Scale::Multiple(_) => (None, own()),
            };
            let point = *points.entry(bits(values.known.row(i))).or_insert_with(|| {
                point_rows.push(i);
                point_rows.len() - 1
            });
            let (observed, log_jacobian) = family.observe(value).map_err(|why| (i, why))?;
            out.zeros += usize::from(matches!(observed, Observed::Censored(..)));
            let observed = match (values.sides.get(i).copied().flatten(), observed) {
                (Some(side), Observed::Gaussian(z) | Observed::Direct(z)) => Observed::Censored(side, z),
                (_, observed) => observed,
            };
            match observed {
                Observed::Gaussian(z) if gaussian_reduces => {
                    out.constant += log_jacobian;
                    let by_sd = (error != Error::Shared).then(|| (sd.map(f64::to_bits), times.to_bits()));
                    let group = *groups.entry((point, by_sd)).or_insert_with(|| {
                        pending.push((point, Vec::new()));
                        pending.len() - 1
                    });
                    pending[group].1.push((z, sd, times));
                }
                Observed::Gaussian(z) | Observed::Direct(z) => {
                    out.constant += log_jacobian;
                    out.rows.push(Row { z, sd, times, extra: 0.0, kind: RowKind::Value, point });
                }
                Observed::Censored(side, z) => {
                    out.rows.push(Row { z, sd, times, extra: 0.0, kind: RowKind::Side(side), point });
                }
            }
        }
        out.points = values.known.select_rows(&point_rows);
        for (point, members) in pending {
            out.push_group(point, &members);
        }
        out.groups.sort_by_key(|group| group.class);
        Ok(out)
    }

    fn push_group(&mut self, point: usize, members: &[Member]) {
        let (count, log_two_pi) = (members.len() as f64, (2.0 * std::f64::consts::PI).ln());
        let equal = members.iter().all(|m| (m.1, m.2) == (members[0].1, members[0].2));
        let new = Class { n: 1.0, groups: 0.0, scatter: 0.0, within: 0.0, sd: members[0].1, times: 1.0, extra: 0.0 };
        let (mean, scatter, class) = if equal {
            let mean = members.iter().map(|m| m.0).sum::<f64>() / count;
            let scatter = members.iter().map(|m| (m.0 - mean).powi(2)).sum();
            (mean, scatter, Class { n: count, times: members[0].2, ..new })
        } else {
            // Unequal sds s_i: the precision-weighted mean is one measurement with precision Lambda = sum s_i^-2, in units of what is
            // unknown of them.
            let precision = |m: &Member| (m.1.unwrap_or(1.0) * m.2).powi(-2);
            let lambda: f64 = members.iter().map(precision).sum();
            let mean = members.iter().map(|m| precision(m) * m.0).sum::<f64>() / lambda;
            let squares: f64 = members.iter().map(|m| precision(m) * (m.0 - mean).powi(2)).sum();
            let log_precisions: f64 = members.iter().map(|m| precision(m).ln()).sum();
            self.constant -= 0.5 * ((count - 1.0) * log_two_pi + lambda.ln() - log_precisions);
            let sd = lambda.sqrt().recip();
            match new.sd {
                // What remains of the density does not depend on the surrogate.
                Some(_) => {
                    self.constant -= 0.5 * squares;
                    (mean, 0.0, Class { sd: Some(sd), ..new })
                }
                None => {
                    self.constant -= 0.5 * (count - 1.0) * lambda.ln();
                    (mean, squares * sd * sd, Class { times: sd, ..new })
                }
            }
        };
        let alike = |c: &Class| (c.n, c.sd, c.times) == (class.n, class.sd, class.times);
        // All but the mean of members with an unknown sd inform it.
        let within = if class.sd.is_none() { count - 1.0 } else { class.n - 1.0 };
        let at = self.classes.iter().position(alike).unwrap_or_else(|| {
            self.classes.push(class);
            self.classes.len() - 1
        });
        self.classes[at].groups += 1.0;
        self.classes[at].scatter += scatter;
        self.classes[at].within += within;
        self.groups.push(Group { class: at, mean, scatter, weight: 1.0, point });
    }

    /// All classes as one, whose groups have weights: without errors of the surrogate the variances of all groups are in known ratios.
    #[must_use]
    pub fn merged(mut self) -> Self {
        if self.classes.len() < 2 {
            return self;
        }
        let sd = self.classes[0].sd.map(|_| 1.0);
        let mut one = Class { n: 1.0, groups: 0.0, scatter: 0.0, within: 0.0, sd, times: 1.0, extra: 0.0 };
        let own: Vec<f64> = self.classes.iter().map(|class| class.sd.unwrap_or(1.0) * class.times).collect();
        for (class, own) in self.classes.iter().zip(&own) {
            one.groups += class.groups;
            one.scatter += class.scatter / (own * own);
            one.within += class.within;
            let log_two_pi = (2.0 * std::f64::consts::PI).ln();
            self.constant -=
                0.5 * (class.groups * (class.n - 1.0) * log_two_pi) + (class.within + class.groups) * own.ln();
        }
        for group in &mut self.groups {
            group.weight = self.classes[group.class].n / (own[group.class] * own[group.class]);
            group.class = 0;
        }
        self.classes = vec![one];
        self
    }
}
