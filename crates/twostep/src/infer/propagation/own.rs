//! Methods of the calling program, by name beside those of the paper.

use super::{Method, Propagation, Targets};
use crate::error::{Error, Result};
use crate::kernels::log_mean_exp_weights;
use crate::special::log_sum_exp;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

/// What a method of the calling program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnKind {
    /// A mixture of the posteriors of the T-draws, by [`OwnPropagation::weights`].
    Weights,
    /// One density, by [`OwnPropagation::pool`].
    Pool {
        /// Whether it gives derivatives.
        gradient: bool,
    },
}

/// A propagation method of the calling program.
///
/// It may be called from several threads at once. It has no way to refuse: what it cannot compute is NaN, and it asks the work to stop
/// by the monitor's `proceed`.
pub trait OwnPropagation: Send + Sync {
    /// Name in the study file, in files and in tables: letters, digits, - and _.
    fn name(&self) -> &str;

    /// Changes whenever what it gives may have changed.
    fn fingerprint(&self) -> &str;

    /// Which of its functions it is.
    fn kind(&self) -> OwnKind;

    /// Log-weights, up to a constant, of the posteriors of the T-draws, given their log-weights as T-draws and the log-evidences.
    fn weights(&self, log_alpha: &[f64], log_evidence: &[f64]) -> Vec<f64>;

    /// The pooled log-likelihood of `l_s`; replaces `l` by its derivative by each `l_s`, where it has one.
    fn pool(&self, log_alpha: &[f64], l: &mut [f64]) -> f64;
}

/// A method that was registered; equal to another where name and fingerprint are.
#[derive(Clone, Copy)]
pub struct Registered(&'static Entry);

struct Entry {
    name: String,
    fingerprint: String,
    kind: OwnKind,
    function: RwLock<Arc<dyn OwnPropagation>>,
}

/// The latest of a name last. Entries live as long as the program, so that a method is a small value like those of the paper.
static REGISTERED: RwLock<Vec<&'static Entry>> = RwLock::new(Vec::new());

/// Makes a method known by its name from now on. One with the name, fingerprint and kind of another takes its place.
///
/// # Errors
/// A name that cannot be used.
pub fn register(function: Arc<dyn OwnPropagation>) -> Result<Method> {
    let (name, fingerprint, kind) = (function.name().to_owned(), function.fingerprint().to_owned(), function.kind());
    let place = || format!("propagation method `{name}`");
    // Files and columns have the name.
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
        return Err(Error::invalid(place(), "is no name for a method", "use letters, digits, - and _"));
    }
    if Method::ALL.iter().any(|method| method.name() == name) {
        return Err(Error::invalid(place(), "is a method of the paper", "choose another name"));
    }
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    let is_same = |entry: &&&Entry| entry.name == name && entry.fingerprint == fingerprint && entry.kind == kind;
    let entry = match registered.iter().find(is_same).copied() {
        Some(entry) => {
            *entry.function.write().unwrap_or_else(PoisonError::into_inner) = function;
            registered.retain(|other| !std::ptr::eq(*other, entry));
            entry
        }
        None => Box::leak(Box::new(Entry { name, fingerprint, kind, function: RwLock::new(function) })),
    };
    registered.push(entry);
    Ok(Method::Own(Registered(entry)))
}

/// The latest method of each name, in the order in which they came.
pub(super) fn registered() -> Vec<Method> {
    let all = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    let is_latest = |i: usize| all[i + 1..].iter().all(|other| other.name != all[i].name);
    (0..all.len()).filter(|&i| is_latest(i)).map(|i| Method::Own(Registered(all[i]))).collect()
}

impl Registered {
    /// Its name.
    pub fn name(self) -> &'static str {
        &self.0.name
    }

    /// Its fingerprint.
    pub fn fingerprint(self) -> &'static str {
        &self.0.fingerprint
    }

    /// What it does.
    pub fn kind(self) -> OwnKind {
        self.0.kind
    }

    fn function(self) -> Arc<dyn OwnPropagation> {
        self.0.function.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registered").field(&self.0.name).field(&self.0.fingerprint).finish()
    }
}

impl PartialEq for Registered {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name && self.0.fingerprint == other.0.fingerprint && self.0.kind == other.0.kind
    }
}

impl Eq for Registered {}

impl Hash for Registered {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

/// A registered method at work.
pub(super) struct Own {
    kind: OwnKind,
    function: Arc<dyn OwnPropagation>,
}

impl Own {
    pub(super) fn new(registered: Registered) -> Self {
        Self { kind: registered.kind(), function: registered.function() }
    }
}

impl Propagation for Own {
    fn targets(&self) -> Targets {
        if self.kind == OwnKind::Weights { Targets::PerDraw } else { Targets::Pooled }
    }

    fn pool(&self, log_alpha: &[f64], l: &mut [f64]) -> f64 {
        match self.kind {
            // With weights over evidences this is the mixture itself; of a single draw, its posterior.
            OwnKind::Weights => log_mean_exp_weights(log_alpha, l),
            OwnKind::Pool { .. } => self.function.pool(log_alpha, l),
        }
    }

    fn has_gradient(&self) -> bool {
        self.kind != OwnKind::Pool { gradient: false }
    }

    fn mix(&self, log_alpha: &[f64], log_evidence: &[f64]) -> Option<Vec<f64>> {
        if self.kind != OwnKind::Weights {
            return None;
        }
        let raw = self.function.weights(log_alpha, log_evidence);
        let total = log_sum_exp(&raw);
        // A draw that the measurements exclude has no posterior.
        let weight = |(w, z): (&f64, &f64)| if *z == f64::NEG_INFINITY { *z } else { w - total };
        Some(raw.iter().zip(log_evidence).map(weight).collect())
    }
}
