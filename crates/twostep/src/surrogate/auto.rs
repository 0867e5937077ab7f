//! Surrogates that are worth a try, from which the runs choose.

use super::pce::n_terms;
use super::{GpSpec, Normalisation, SigmaA, SurrogateKind, SurrogateSpec};
use crate::prior::Marginal;

/// Which surrogates are compared.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// Polynomials, sparse ones, Gaussian processes, and polynomials with these as residuals.
    Any {
        /// The approximation error of all, where it is given; otherwise each has its default.
        sigma_a: Option<SigmaA>,
    },
    /// Polynomials of several degrees with this prior of their coefficients.
    Degree {
        /// Scaling of the basis polynomials.
        normalisation: Normalisation,
        /// Prior of every coefficient.
        coefficients: Marginal,
        /// See [`SurrogateKind::Pce`].
        q_norm: f64,
    },
    /// Sparse polynomials of several degrees.
    SparseDegree {
        /// See [`SurrogateKind::Pce`].
        q_norm: f64,
    },
}

/// A surrogate to compare, and what it is called.
pub type Candidate = (String, SurrogateSpec);

/// Highest degree of a polynomial whose terms all have the same prior.
const HIGHEST: usize = 12;

/// Degrees of sparse polynomials: between them little changes.
const SPARSE: [usize; 7] = [2, 3, 4, 6, 8, 10, 12];

/// Most terms of a sparse polynomial, by itself and for each run.
const MOST_TERMS: f64 = 4000.0;
const MOST_TERMS_PER_RUN: f64 = 15.0;

/// Most runs of a Gaussian process, whose work grows with their cube.
const MOST_RUNS: usize = 400;

impl Choice {
    /// The candidates for so many inputs and runs, the simplest first; at least one.
    pub(super) fn candidates(&self, spec: &SurrogateSpec, dim: usize, runs: usize) -> Vec<Candidate> {
        let of = |kind: SurrogateKind| SurrogateSpec { kind, ..spec.clone() };
        match self {
            Self::Any { sigma_a } => {
                let normalisation = Normalisation::Orthonormal;
                let polynomials = Self::Degree { normalisation, coefficients: parsed("normal(0, 5)"), q_norm: 1.0 };
                let mut out = polynomials.candidates(spec, dim, runs);
                out.extend(sparse(dim, runs, 1.0, &of));
                if runs <= MOST_RUNS {
                    out.extend(processes(dim, runs, sigma_a.as_ref(), &of));
                }
                out
            }
            Self::Degree { normalisation, coefficients, q_norm } => dense(dim, runs, &|degree| {
                let (normalisation, coefficients) = (*normalisation, coefficients.clone());
                of(SurrogateKind::Pce { degree, normalisation, coefficients, q_norm: *q_norm })
            }),
            Self::SparseDegree { q_norm } => {
                let found = sparse(dim, runs, *q_norm, &of);
                let least = || {
                    vec![(
                        "sparse polynomial of degree 1".to_owned(),
                        of(SurrogateKind::SparsePce { degree: 1, q_norm: *q_norm }),
                    )]
                };
                if found.is_empty() { least() } else { found }
            }
        }
    }
}

/// Polynomials with no more terms than runs; a constant in any case.
fn dense(dim: usize, runs: usize, of: &dyn Fn(usize) -> SurrogateSpec) -> Vec<Candidate> {
    let fits = |degree: &usize| *degree == 0 || n_terms(dim.max(1), *degree) <= runs as f64;
    // A constant only where a line has too many terms already.
    let first = usize::from(fits(&1));
    (first..=HIGHEST).take_while(fits).map(|degree| (format!("polynomial of degree {degree}"), of(degree))).collect()
}

fn sparse(dim: usize, runs: usize, q_norm: f64, of: &dyn Fn(SurrogateKind) -> SurrogateSpec) -> Vec<Candidate> {
    // What the quasi-norm leaves is fewer; how many, is not worth a count here.
    let most = MOST_TERMS.min(MOST_TERMS_PER_RUN * runs as f64);
    let fits = |degree: &usize| n_terms(dim.max(1), *degree) <= most;
    let candidate =
        |degree| (format!("sparse polynomial of degree {degree}"), of(SurrogateKind::SparsePce { degree, q_norm }));
    // Three runs are what its T-step asks for.
    if runs < 3 { Vec::new() } else { SPARSE.into_iter().take_while(fits).map(candidate).collect() }
}

fn processes(
    dim: usize,
    runs: usize,
    sigma_a: Option<&SigmaA>,
    of: &dyn Fn(SurrogateKind) -> SurrogateSpec,
) -> Vec<Candidate> {
    let process = |name: &str, degree: usize| {
        let normalisation = Normalisation::Orthonormal;
        let spec = of(SurrogateKind::Gp { degree, normalisation, coefficients: (0.0, 5.0), gp: GpSpec::default() });
        // What a process cannot explain is small beside the outputs' sd.
        let sigma_a = sigma_a.cloned().unwrap_or_else(|| SigmaA::Prior(parsed("half-normal(0.1)")));
        (name.to_owned(), SurrogateSpec { sigma_a, ..spec })
    };
    let mut out = vec![process("Gaussian process", 0), process("Gaussian process on a line", 1)];
    if 2.0 * n_terms(dim, 2) <= runs as f64 {
        out.push(process("polynomial of degree 2 with a Gaussian process", 2));
    }
    out
}

/// A prior of ours, which always reads.
fn parsed(text: &str) -> Marginal {
    text.parse().expect("a prior of the library")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dim: usize, runs: usize) -> Vec<String> {
        let choice = Choice::Any { sigma_a: None };
        let sigma_a = SigmaA::Prior(parsed("exponential(1)"));
        let spec = SurrogateSpec { kind: SurrogateKind::Auto(choice.clone()), sigma_a, standardise: true };
        choice.candidates(&spec, dim, runs).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn candidates_fit_the_runs() {
        // Ten terms of degree 3 in two inputs, fifteen of degree 4.
        let of_two = names(2, 12);
        assert!(
            of_two.contains(&"polynomial of degree 3".to_owned())
                && !of_two.contains(&"polynomial of degree 4".to_owned())
        );
        assert!(of_two.contains(&"polynomial of degree 2 with a Gaussian process".to_owned()));
        // 495 terms of degree 4 in eight inputs, 3003 of degree 6.
        let of_eight = names(8, 80);
        assert_eq!(of_eight[..2], ["polynomial of degree 1", "polynomial of degree 2"]);
        assert!(of_eight.contains(&"sparse polynomial of degree 4".to_owned()));
        assert!(!of_eight.contains(&"sparse polynomial of degree 6".to_owned()));
        assert_eq!(names(5, 2)[0], "polynomial of degree 0");
        assert!(names(3, 1000).iter().all(|name| !name.contains("Gaussian")));
    }
}
