//! Measurement models in the I-likelihood: joint densities by hand, and gradients of counts, relative errors, bounds and multiples of sds.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/small.rs"]
mod small;

use small::{Small, log_likelihoods, log_normal_density, pooled, settings, symmetric};
use twostep::draws::Draws;
use twostep::infer::propagation::Method;
use twostep::likelihood::{ErrorSharing, Family, Scale, Side, log_likelihood};
use twostep::matrix::Matrix;
use twostep::stream::Stream;

/// Operations whose roundings add up in one term of a log-likelihood.
const OPERATIONS: f64 = 200.0;

/// What integrals over an error are off by at most, in logarithms and in their derivatives by eta in its own sds.
const QUADRATURE: f64 = 1e-3;

/// A polynomial of two unknowns and a condition around `level`, with five points measured so often each.
fn problem(level: f64, replicates: usize, value: impl Fn(usize) -> f64) -> Small {
    let surrogate = small::polynomial(2, 3);
    let mut centre = vec![0.0; surrogate.names().len()];
    centre[0] = level;
    let known = Matrix::from_fn(5 * replicates, 1, |i, _| -0.8 + 0.4 * (i / replicates) as f64);
    let y = (0..known.rows()).map(value).collect();
    let mut small = Small::random(surrogate, &centre, 0.05 * level.abs(), 6, 3).measure(y, known);
    // Errors that keep probabilities between zero and one: beyond there is an edge, which quadrature does not see.
    let mut values = small.draws.values().clone();
    let last = values.rows() - 1;
    values.row_mut(last).iter_mut().for_each(|sigma_a| *sigma_a *= (0.4 * level).min(1.0));
    small.draws = Draws::new(small.draws.names().to_vec(), values);
    small
}

/// Surrogate outputs at unknowns `x`: measurements x draws.
fn etas(small: &Small, x: &[f64]) -> Matrix {
    let surrogate = &small.output.surrogate;
    let coefficients = small.draws.values().select_rows(&(0..surrogate.names().len()).collect::<Vec<_>>());
    let known = &small.measured.known;
    let inputs = Matrix::from_fn(known.rows(), 3, |i, d| if d < 2 { x[d] } else { known[(i, d - 2)] });
    let mut eta = Matrix::default();
    surrogate.predict(&inputs, &coefficients, &mut eta, &mut Default::default());
    eta
}

fn sigma_a(small: &Small) -> Vec<f64> {
    let values = small.draws.values();
    values.row(values.rows() - 1).to_vec()
}

#[test]
fn sds_of_a_column_and_their_multiples_have_the_joint_density() {
    let x = [0.31, -0.27, 1.4];
    for replicates in [1, 3] {
        let mut rng = Stream::root(5).rng();
        let mut given = problem(4.0, replicates, |i| 4.0 + 0.2 * ((3 * i) as f64).sin());
        let n = given.measured.y.len();
        given.measured.scale = Some((0..n).map(|_| 0.2 + 0.1 * symmetric(&mut rng)).collect());
        for scale in [Scale::Column, Scale::Multiple(small::marginal("half-normal(1)"))] {
            let small = given.clone().noise(Family::Normal, scale.clone());
            let x = &x[..2 + usize::from(scale.prior().is_some())];
            let own = small.measured.scale.as_ref().unwrap();
            let sd = |i: usize| scale.of(x.get(2).copied(), Some(own[i])).unwrap();
            let (eta, errors) = (etas(&small, x), sigma_a(&small));
            for propagated in [false, true] {
                for error in [ErrorSharing::Shared, ErrorSharing::Independent] {
                    for conditioning in [false, true] {
                        let prepared = small.prepared(&settings(propagated, error), conditioning).unwrap();
                        for (s, found) in log_likelihoods(&prepared, x).into_iter().enumerate() {
                            let of_error = |i: usize, j: usize| match error {
                                _ if !propagated => 0.0,
                                ErrorSharing::Shared => f64::from(i / replicates == j / replicates),
                                ErrorSharing::Independent => f64::from(i == j),
                            };
                            let v = Matrix::from_fn(n, n, |i, j| {
                                let noise = if i == j { sd(i).powi(2) } else { 0.0 };
                                noise + of_error(i, j) * errors[s].powi(2)
                            });
                            let r: Vec<f64> = (0..n).map(|i| small.measured.y[i] - eta[(i, s)]).collect();
                            let expected = log_normal_density(r, v);
                            // Squares of residuals in sds, each with the roundings of a polynomial of size 5 expanded to one of twice the degree.
                            let size: f64 = (0..n).map(|i| (1.0 + 10.0 / sd(i)).powi(2)).sum();
                            let rounding = OPERATIONS * f64::EPSILON * size;
                            assert!(
                                (found - expected).abs() <= rounding,
                                "{scale:?} {replicates} {propagated} {error:?} {conditioning}: {found} {expected}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Name, family, scale, whether the surrogate models the logarithm, its level, and values around it.
type Noise = (&'static str, Family, Scale, bool, f64, fn(usize) -> f64);

fn noises() -> Vec<Noise> {
    let prior = || Scale::Prior(small::marginal("half-normal(0.5)"));
    let count: fn(usize) -> f64 = |i| 20.0 + ((7 * i) % 9) as f64;
    let few: fn(usize) -> f64 = |i| ((7 * i) % 4) as f64;
    let near_three: fn(usize) -> f64 = |i| 3.0 + 0.3 * ((5 * i) as f64).sin();
    let successes: fn(usize) -> f64 = |i| 6.0 + ((7 * i) % 5) as f64;
    vec![
        ("poisson", Family::Poisson, Scale::Fixed(0.0), false, 22.0, count),
        ("poisson on the logarithm", Family::Poisson, Scale::Fixed(0.0), true, 3.1, count),
        ("few on the logarithm", Family::Poisson, Scale::Fixed(0.0), true, 0.7, few),
        ("inverse phi", Family::NegativeBinomial { inverse: true }, prior(), true, 3.1, count),
        ("inverse phi, natural", Family::NegativeBinomial { inverse: true }, prior(), false, 22.0, count),
        ("phi", Family::NegativeBinomial { inverse: false }, prior(), true, 3.1, count),
        ("binomial", Family::Binomial, Scale::Fixed(20.0), false, 0.4, successes),
        ("relative", Family::Relative { relative: 0.1 }, prior(), false, 3.0, near_three),
        ("unknown relative", Family::UnknownRelative { sd: 0.2 }, prior(), false, 3.0, near_three),
        ("normal, surrogate of the logarithm", Family::Normal, prior(), true, 1.1, near_three),
        (
            "log-normal, surrogate of the output",
            Family::LogNormal { refuse_zeros: true },
            prior(),
            false,
            3.0,
            near_three,
        ),
    ]
}

/// Every value by itself, with the error integrated out, where errors are independent; bounds among them.
#[test]
fn log_likelihoods_are_sums_over_measurements() {
    for (name, family, scale, log, level, value) in noises() {
        let mut small = problem(level, 2, value).noise(family, scale.clone());
        small.output.log = log;
        small.measured.sides =
            (0..10).map(|i| [None, Some(Side::Below), None, Some(Side::Above), None][i % 5]).collect();
        let x = [0.31, -0.27, 0.3];
        let x = &x[..2 + usize::from(scale.prior().is_some())];
        let (eta, errors, likelihood) = (etas(&small, x), sigma_a(&small), family.likelihood());
        for propagated in [false, true] {
            let prepared = small.prepared(&settings(propagated, ErrorSharing::Independent), true).unwrap();
            for (s, found) in log_likelihoods(&prepared, x).into_iter().enumerate() {
                let of = |i: usize| {
                    let (value, error) =
                        ((small.measured.y[i], small.measured.side(i)), if propagated { errors[s] } else { 0.0 });
                    let scale = scale.of(x.get(2).copied(), None).unwrap();
                    log_likelihood(&*likelihood, value, family.link(log), eta[(i, s)], scale, error)
                };
                let expected: f64 = (0..10).map(of).sum();
                let rounding = OPERATIONS * f64::EPSILON * (1e3 + expected.abs());
                assert!((found - expected).abs() <= rounding, "{name}, {propagated}: {found} {expected}");
            }
        }
    }
}

#[test]
fn gradients_match_central_differences() {
    let mut rng = Stream::root(4).rng();
    for (name, family, scale, log, level, value) in noises() {
        for (replicates, bounded) in [(1, false), (3, false), (2, true)] {
            let mut small = problem(level, replicates, value).noise(family, scale.clone());
            small.output.log = log;
            if bounded {
                small.measured.sides =
                    (0..10).map(|i| [None, Some(Side::Below), None, None, Some(Side::Above)][i % 5]).collect();
            }
            let x = [0.31, -0.27, 0.3];
            let x = &x[..2 + usize::from(scale.prior().is_some())];
            for propagated in [false, true] {
                for error in [ErrorSharing::Shared, ErrorSharing::Independent] {
                    let prepared = small.prepared(&settings(propagated, error), true).unwrap();
                    for method in [Method::ELik, Method::ELogLik] {
                        let direction: Vec<f64> = x.iter().map(|_| symmetric(&mut rng)).collect();
                        let moved = |h: f64| -> Vec<f64> { x.iter().zip(&direction).map(|(x, d)| x + h * d).collect() };
                        let at = |h: f64| pooled(&prepared, method, &moved(h)).0;
                        let (value, gradient) = pooled(&prepared, method, x);
                        let exact: f64 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
                        let h = 0.1 * f64::EPSILON.cbrt();
                        let central = |h: f64| (at(h) - at(-h)) / (2.0 * h);
                        let (near, far) = (central(h), central(2.0 * h));
                        // Logarithms of factorials and of polynomials of size `level`, in sds of a twentieth of it.
                        let size = small.measured.y.len() as f64 * (100.0 + 20.0 * 20.0) + value.abs();
                        let mut bound = (near - far).abs() + OPERATIONS * f64::EPSILON * size / h;
                        if propagated {
                            // Each group's derivative by eta is off by QUADRATURE over the error's sd, that by the scale by that over the scale.
                            let (before, after) = (etas(&small, x), etas(&small, &moved(h)));
                            let slopes = |s: usize| -> f64 {
                                let of = |i: usize| ((after[(i, s)] - before[(i, s)]) / h).abs();
                                (0..before.rows()).map(of).sum::<f64>() / sigma_a(&small)[s]
                            };
                            let by_eta = (0..before.cols()).map(slopes).fold(0.0, f64::max);
                            let by_scale = direction.get(2).map_or(0.0, |d| d.abs() * before.rows() as f64 / x[2]);
                            bound += QUADRATURE * (by_eta + by_scale);
                        }
                        assert!(
                            (exact - near).abs() <= bound,
                            "{name}, {replicates} {bounded} {propagated} {error:?} {}: {exact:e} {near:e} ({bound:e})",
                            method.name()
                        );
                    }
                }
            }
        }
    }
}
