//! Gradients of the pooled log-likelihood against central differences, and the conditioned form against the general one: every
//! surrogate with every noise family, method and way of sharing the approximation error.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/small.rs"]
mod small;

use small::{Small, pooled, settings, size_of_terms, symmetric};
use twostep::infer::InferSpec;
use twostep::infer::propagation::Method;
use twostep::likelihood::{ErrorSharing, Family, Scale};
use twostep::matrix::Matrix;
use twostep::stream::Stream;
use twostep::surrogate::{Basis, Normalisation};

/// Roundings per term of a log-likelihood: the surrogate, residual, square, weight and sum.
const OPERATIONS: f64 = 16.0;
const DEGREE: usize = 3;
const SD: f64 = 0.2;

/// One combination, with a name for failures.
struct Combination {
    name: String,
    small: Small,
    spec: InferSpec,
    /// Unknowns, then sds.
    x: Vec<f64>,
}

fn sigma() -> Scale {
    Scale::Prior(small::marginal("half-normal(0.5)"))
}

/// Surrogates with random T-draws; the polynomial stays positive, and above one on the natural scale.
fn surrogates() -> Vec<(&'static str, Small)> {
    let polynomial = small::polynomial(DEGREE, 3);
    let (varying, varying_formula) =
        (small::varying(polynomial.clone(), 2, 3), small::varying(small::logistic(), 1, 3));
    let mut centre = vec![0.0; varying.names().len()];
    centre[0] = 4.0;
    let n_terms = polynomial.names().len();
    vec![
        ("pce", Small::random(polynomial, &centre[..n_terms], 0.15, 7, 1)),
        ("formula", Small::random(small::logistic(), &[3.0, 2.0, 0.2], 0.15, 7, 2)),
        ("pce with a varying error", Small::random(varying, &centre, 0.15, 7, 1)),
        ("formula with a varying error", Small::random(varying_formula, &[3.0, 2.0, 0.2, 0.3, 0.0, -0.3], 0.15, 7, 2)),
    ]
}

/// Name, family, sd, and whether the surrogate models the logarithm.
fn noises() -> Vec<(&'static str, Family, Scale, bool)> {
    let log_normal = Family::LogNormal { refuse_zeros: false };
    vec![
        ("normal, known sd", Family::Normal, Scale::Fixed(SD), false),
        ("normal", Family::Normal, sigma(), false),
        ("normal, surrogate of the logarithm", Family::Normal, sigma(), true),
        ("log-normal with a zero", log_normal, sigma(), true),
        ("log-normal, surrogate of the output", log_normal, sigma(), false),
        ("student-t", Family::StudentT { df: 4.0 }, sigma(), false),
    ]
}

fn combinations() -> Vec<Combination> {
    let mut out = Vec::new();
    for (surrogate, given) in surrogates() {
        for (noise, family, sd, log) in noises() {
            for replicates in [1, 3] {
                let mut rng = Stream::root(3).named(noise).rng();
                let known = Matrix::from_fn(5 * replicates, 1, |i, _| -0.9 + 0.4 * (i / replicates) as f64);
                let on_log_scale = matches!(family, Family::LogNormal { .. });
                let mut y: Vec<f64> = (0..known.rows())
                    .map(|i| {
                        let eta =
                            if surrogate.starts_with("pce") { 4.0 } else { 3.0 / (1.0 + (-2.0 * known[(i, 0)]).exp()) };
                        let moved = eta + 0.3 * symmetric(&mut rng);
                        if log { moved.exp() } else { moved }
                    })
                    .collect();
                if on_log_scale && log {
                    y[1] = 0.0;
                }
                let mut small = given.clone().measure(y, known).noise(family, sd.clone());
                small.output.log = log;
                let mut x = vec![0.31, -0.27];
                if matches!(sd, Scale::Prior(_)) {
                    // Far from the optimum, so that no gradient is near zero by chance.
                    x.push(1.5 * SD);
                }
                for sigma_a in [false, true] {
                    for error in [ErrorSharing::Shared, ErrorSharing::Independent] {
                        out.push(Combination {
                            name: format!("{surrogate}, {noise}, {replicates} replicates, {sigma_a}, {error:?}"),
                            small: small.clone(),
                            spec: settings(sigma_a, error),
                            x: x.clone(),
                        });
                    }
                }
            }
        }
    }
    out
}

/// Combinations that have no likelihood: student-t with an error that replicates share.
fn refused(c: &Combination) -> bool {
    let replicated = c.small.measured.y.len() > 5;
    let student_t = matches!(c.small.noise.family, Family::StudentT { .. });
    c.spec.sigma_a && student_t && replicated && c.spec.error == ErrorSharing::Shared
}

/// Those whose sigma_A is on another scale than the noise: integrals by quadrature, which `noise.rs` tests.
fn is_integrated(c: &Combination) -> bool {
    let on_log_scale = matches!(c.small.noise.family, Family::LogNormal { .. });
    c.spec.sigma_a && on_log_scale != c.small.output.log
}

/// How many times the terms of the general form the conditioned one adds up: a residual sum of squares R is expanded in
/// polynomials psi_k of twice the degree with coefficients of at most max |R|, so its terms sum to at most max |R| sum_k |psi_k|.
fn expansion(conditioned: bool) -> f64 {
    if !conditioned {
        return 1.0;
    }
    let basis = Basis::new(vec![small::unit_scale(); 2], 2 * DEGREE, Normalisation::Orthonormal);
    // |psi_k| is largest at a corner, where it is its factor.
    (0..basis.len()).map(|k| basis.factor(k)).sum()
}

/// The problem as a method sees it: Point works with one draw.
fn reduced(c: &Combination, method: Method) -> Small {
    c.small.reduced(&*small::propagation(method))
}

#[test]
fn gradients_match_central_differences() {
    let mut rng = Stream::root(4).rng();
    let mut checked = 0;
    for c in combinations().into_iter().filter(|c| !is_integrated(c)) {
        for method in [Method::Point, Method::ELik, Method::ELogLik] {
            for conditioning in [true, false] {
                let small = reduced(&c, method);
                let prepared = match small.prepared(&c.spec, conditioning) {
                    Ok(prepared) => prepared,
                    Err(error) => {
                        assert!(refused(&c), "{}: {error}", c.name);
                        continue;
                    }
                };
                assert!(!refused(&c), "{}: accepted", c.name);
                let direction: Vec<f64> = c.x.iter().map(|_| symmetric(&mut rng)).collect();
                let at = |h: f64| {
                    let x: Vec<f64> = c.x.iter().zip(&direction).map(|(x, d)| x + h * d).collect();
                    pooled(&prepared, method, &x).0
                };
                let (value, gradient) = pooled(&prepared, method, &c.x);
                assert!(value.is_finite(), "{} {}: {value}", c.name, method.name());
                let exact: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
                // Truncation h^2 and rounding eps/h balance at h = eps^(1/3), in units of the sd over which the density changes.
                let h = f64::EPSILON.cbrt() * SD;
                let central = |h: f64| (at(h) - at(-h)) / (2.0 * h);
                let (near, far) = (central(h), central(2.0 * h));
                let conditioned = prepared.likelihoods().is_conditioned();
                let rounding = OPERATIONS * f64::EPSILON * size_of_terms(&small, &c.x) * expansion(conditioned);
                // The truncation error of `near` is a third of the gap to `far`.
                let bound = (near - far).abs() + rounding / h;
                assert!(
                    (exact - near).abs() <= bound,
                    "{}, {}, conditioned {conditioned}: {exact:e} against {near:e} (bound {bound:e})",
                    c.name,
                    method.name()
                );
                checked += 1;
            }
        }
    }
    // 4 surrogates x 2 numbers of replicates x (6 noises x 2 ways of sharing without sigma_A; with it 4 x 2, less the one
    // that student-t refuses with replicates), 3 methods, 2 forms.
    assert_eq!(checked, 4 * (12 + 8 + 12 + 7) * 3 * 2);
}

/// The derivative of a polynomial of degree d is at most d^2 times its largest value [Markov 1889]; this bounds the rounding
/// of a gradient by that of the values.
#[test]
fn conditioning_changes_nothing() {
    let slope = ((2 * DEGREE) as f64).powi(2);
    let mut conditioned_cases = 0;
    for c in combinations().into_iter().filter(|c| !refused(c) && !is_integrated(c)) {
        for method in [Method::Point, Method::ELik, Method::ELogLik] {
            let small = reduced(&c, method);
            let [conditioned, general] = [true, false].map(|way| small.prepared(&c.spec, way).unwrap());
            assert!(!general.likelihoods().is_conditioned());
            conditioned_cases += usize::from(conditioned.likelihoods().is_conditioned());
            let ((value, gradient), (expected, by_x)) =
                (pooled(&conditioned, method, &c.x), pooled(&general, method, &c.x));
            let rounding = OPERATIONS * f64::EPSILON * size_of_terms(&small, &c.x) * expansion(true);
            assert!((value - expected).abs() <= rounding, "{}: {value} against {expected}", c.name);
            // Weights of the draws move by the rounding of their log-likelihoods, too, and with them the mean of the
            // draws' gradients.
            let of_draws: Vec<Vec<f64>> = (0..general.likelihoods().n_draws())
                .map(|s| {
                    let one = general.likelihoods().select(&[s]);
                    small::pooled_of(&one, general.prior(), Method::Point, &[0.0], &c.x).1
                })
                .collect();
            for d in 0..gradient.len() {
                let spread = of_draws.iter().fold(0.0, |m: f64, g| m.max(g[d].abs()));
                // An unknown's gradient is that of a polynomial; an sd's is that of the terms over the sd.
                let own = if d < 2 { slope } else { 2.0 / c.x[2] };
                let bound = rounding * (own + 2.0 * spread);
                assert!(
                    (gradient[d] - by_x[d]).abs() <= bound,
                    "{}, {}, {d}: {:e} against {:e} (bound {bound:e})",
                    c.name,
                    method.name(),
                    gradient[d],
                    by_x[d]
                );
            }
        }
    }
    // The polynomial, with normal noise (known and unknown sd) or log-normal noise on its own scale: 3 noises x 2 numbers of
    // replicates x 2 x 2 settings of sigma_A, 3 methods; with a varying error the 2 settings without sigma_A alone.
    assert_eq!(conditioned_cases, 3 * 2 * (4 + 2) * 3);
}

#[test]
fn averaged_log_likelihood_is_the_pool() {
    let mut closed = 0;
    for c in combinations().into_iter().filter(|c| !refused(c)) {
        let prepared = c.small.prepared(&c.spec, true).unwrap();
        let weights = c.small.draws.weights();
        let Some(averaged) = prepared.likelihoods().averaged(&weights) else { continue };
        closed += 1;
        let (value, gradient) = small::pooled_of(&averaged, prepared.prior(), Method::ELogLik, &[0.0], &c.x);
        let (expected, by_x) = pooled(&prepared, Method::ELogLik, &c.x);
        let rounding = OPERATIONS * f64::EPSILON * size_of_terms(&c.small, &c.x) * expansion(true);
        assert!((value - expected).abs() <= rounding, "{}: {value} against {expected}", c.name);
        for d in 0..gradient.len() {
            let own = if d < 2 { ((2 * DEGREE) as f64).powi(2) } else { 2.0 / c.x[2] };
            assert!((gradient[d] - by_x[d]).abs() <= rounding * own, "{}, {d}", c.name);
        }
    }
    // 2 polynomials, normal noise of known and unknown sd, without sigma_A: 2 numbers of replicates x 2 ways of sharing.
    assert_eq!(closed, 2 * 2 * 4);
}
