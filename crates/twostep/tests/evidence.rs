//! The evidence of an answer against normal densities of all measurements and against quadrature by hand, and its stated errors.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/small.rs"]
mod small;

use rand::RngExt;
use rand_distr::StandardNormal;
use small::{Small, log_normal_density, marginal, settings, symmetric};
use std::sync::Arc;
use twostep::draws::Draws;
use twostep::infer::propagation::Method;
use twostep::infer::{Clusters, Engine, Evidence, IPosterior, InferSpec, SmcSpec};
use twostep::likelihood::{ErrorSharing, Family, Scale};
use twostep::matrix::Matrix;
use twostep::monitor::Silent;
use twostep::prior::{Marginal, Prior};
use twostep::special::{gauss_legendre, ln_gamma, log_sum_exp};
use twostep::stream::Stream;
use twostep::surrogate::{Formula, Surrogate};

/// Runs of SMC have 15 degrees of freedom: t exceeds this with probability 1e-5.
const T_15: f64 = 6.2;

/// Matrices have a condition below a thousand, and sums tens of terms.
const ROUNDING: f64 = 1e5 * f64::EPSILON;

/// `p0 a t + p1 b + shift`, where each of a and b may or may not be there.
fn linear(unknowns: &[&str]) -> Arc<dyn Surrogate> {
    let terms: Vec<String> =
        unknowns.iter().enumerate().map(|(d, name)| format!("p{d} * {name} * (t + {d})")).collect();
    let inputs: Vec<String> = unknowns.iter().chain(&["t"]).map(|name| name.to_string()).collect();
    let names = (0..unknowns.len()).map(|d| format!("p{d}")).chain(["shift".to_string()]);
    let parameters = names.map(|name| (name, marginal("normal(0, 1)"))).collect();
    Arc::new(Formula::new(&format!("shift + {}", terms.join(" + ")), &inputs, parameters).unwrap())
}

/// T-draws that differ by about `spread`, and measurements with replicates.
fn linear_problem(unknowns: &[&str], n_draws: usize, spread: f64, stream: Stream) -> Small {
    let (mut rng, p) = (stream.rng(), unknowns.len() + 1);
    let coefficients = Matrix::from_fn(p, n_draws, |_, _| 1.0 + spread * rng.sample::<f64, _>(StandardNormal));
    let sigma_a: Vec<f64> = (0..n_draws).map(|_| 0.1 + 0.2 * rng.random::<f64>()).collect();
    let mut small = Small::new(linear(unknowns), &coefficients, &sigma_a, 1);
    let priors = (0..unknowns.len()).map(|d| marginal(&format!("normal({}, 0.6)", 0.3 * d as f64 - 0.2))).collect();
    small.unknowns = Prior::new(unknowns.iter().map(|n| n.to_string()).collect(), priors).unwrap();
    let places = [-0.8, -0.8, 0.1, 0.4, 0.4, 0.4, 0.9];
    let y = places.iter().enumerate().map(|(i, t)| 1.2 + 0.5 * t + 0.2 * (5.0 * i as f64).sin()).collect();
    small.measure(y, Matrix::from_rows(places.len(), 1, places.to_vec())).noise(Family::Normal, Scale::Fixed(0.2))
}

/// `log p(y | theta)` of a linear problem, with normal noise of the natural scale, by the covariance of all measurements.
fn dense(small: &Small, theta: &[f64], sigma_a: Option<f64>, error: ErrorSharing, y: &[f64]) -> f64 {
    let (known, dim) = (&small.measured.known, small.unknowns.len());
    let slope = |i: usize, d: usize| theta[d] * (known[(i, 0)] + d as f64);
    let prior: Vec<(f64, f64)> = small.unknowns.marginals().iter().map(|m| m.is_normal().unwrap()).collect();
    let mean = |i: usize| theta[dim] + (0..dim).map(|d| slope(i, d) * prior[d].0).sum::<f64>();
    let covariance = Matrix::from_fn(y.len(), y.len(), |i, j| {
        let shared = error == ErrorSharing::Shared && known.row(i) == known.row(j);
        let of_error = if i == j || shared { sigma_a.unwrap_or(0.0).powi(2) } else { 0.0 };
        let of_unknowns: f64 = (0..dim).map(|d| slope(i, d) * prior[d].1.powi(2) * slope(j, d)).sum();
        of_error + of_unknowns + if i == j { 0.2 * 0.2 } else { 0.0 }
    });
    log_normal_density(y.iter().enumerate().map(|(i, y)| y - mean(i)).collect(), covariance)
}

fn log_mean(each: &[f64]) -> f64 {
    log_sum_exp(each) - (each.len() as f64).ln()
}

fn infer(small: &Small, spec: &InferSpec) -> Vec<IPosterior> {
    twostep::infer::infer(&small.prepared(spec, true).unwrap(), spec, Stream::root(3), &Silent).unwrap()
}

fn by(small: &Small, spec: &InferSpec, engine: Engine, method: Method) -> Evidence {
    let found = infer(small, &InferSpec { engine, methods: vec![method], ..spec.clone() }).remove(0);
    assert_eq!(found.engine, engine.name());
    found.evidence().unwrap()
}

/// Within what each engine states: rounding, the grid's bound, runs of SMC.
fn agrees(found: Evidence, exact: f64, engine: Engine, what: &str) {
    let bound = if engine == Engine::Smc { T_15 } else { 1.0 } * found.engine_error + ROUNDING * exact.abs();
    assert!((found.log - exact).abs() <= bound, "{what}, {engine:?}: {found:?}, not {exact}");
    // No engine may pass by knowing nothing.
    assert!(found.engine_error < 0.1, "{what}, {engine:?}: {found:?}");
}

#[test]
fn linear_problems_have_the_normal_density_of_all_measurements() {
    for unknowns in [&["a"][..], &["a", "b"]] {
        let natural = linear_problem(unknowns, 30, 0.3, Stream::root(5));
        // The same on the logarithm: a density of y, whose Jacobian is 1 / y.
        let mut on_log = natural.clone().noise(Family::LogNormal { refuse_zeros: true }, Scale::Fixed(0.2));
        on_log.output.log = true;
        on_log.measured.y.iter_mut().for_each(|y| *y = y.exp());
        let log_jacobian = -natural.measured.y.iter().sum::<f64>();
        let sharings = [(false, ErrorSharing::Shared), (true, ErrorSharing::Shared), (true, ErrorSharing::Independent)];
        for (small, jacobian) in [(&natural, 0.0), (&on_log, log_jacobian)] {
            for (with_errors, error) in sharings {
                let spec = settings(with_errors, error);
                let draws = small.draws.values();
                let rows = draws.rows() - 1;
                let of = |theta: &[f64]| {
                    let own = with_errors.then_some(theta[rows]);
                    dense(small, theta, own, error, &natural.measured.y) + jacobian
                };
                let each: Vec<f64> = (0..draws.cols()).map(|s| of(&draws.col(s))).collect();
                let mean: Vec<f64> =
                    (0..draws.rows()).map(|p| draws.row(p).iter().sum::<f64>() / draws.cols() as f64).collect();
                for engine in [Engine::Exact, Engine::Grid, Engine::Smc] {
                    let what = format!("{unknowns:?} {with_errors} {error:?} {jacobian:.1}");
                    agrees(by(small, &spec, engine, Method::ELik), log_mean(&each), engine, &what);
                    agrees(by(small, &spec, engine, Method::Point), of(&mean), engine, &what);
                }
            }
        }
    }
}

/// `log int sum_s exp(l_s(a, x)) / S da dx` by a product rule: over the unknown in [-1, 1], and over the logarithm of a scale with a prior.
fn by_hand(
    unknown: &Marginal,
    scale: Option<(&Marginal, [f64; 2])>,
    n: usize,
    l: &dyn Fn(f64, f64) -> Vec<f64>,
) -> f64 {
    let (x, w) = gauss_legendre(n);
    let scales: Vec<(f64, f64)> = match scale {
        None => vec![(f64::NAN, 0.0)],
        Some((prior, [low, high])) => (0..n)
            .map(|k| {
                let u = low + 0.5 * (high - low) * (x[k] + 1.0);
                (u.exp(), (0.5 * (high - low) * w[k]).ln() + u + prior.log_density(u.exp()))
            })
            .collect(),
    };
    let mut terms = Vec::new();
    for (a, w) in x.iter().zip(&w) {
        for (scale, log_weight) in &scales {
            terms.push(w.ln() + unknown.log_density(*a) + log_weight + log_mean(&l(*a, *scale)));
        }
    }
    log_sum_exp(&terms)
}

/// A polynomial of an unknown and a condition around `level`.
fn polynomial_problem(level: f64, spread: f64) -> Small {
    let surrogate = small::polynomial(2, 2);
    let mut centre = vec![0.0; surrogate.names().len()];
    (centre[0], centre[1], centre[2]) = (level, 0.5, -0.3);
    Small::random(surrogate, &centre, spread, 5, 3).with_unknowns(1)
}

/// Outputs at unknown `a`: measurements x draws.
fn etas(small: &Small, a: f64) -> Matrix {
    let n = small.output.surrogate.names().len();
    let coefficients = small.draws.values().select_rows(&(0..n).collect::<Vec<_>>());
    let known = &small.measured.known;
    let inputs = Matrix::from_fn(known.rows(), 2, |i, d| if d == 0 { a } else { known[(i, 0)] });
    let mut eta = Matrix::default();
    small.output.surrogate.predict(&inputs, &coefficients, &mut eta, &mut Default::default());
    eta
}

/// E-Lik by grid and SMC against quadrature by hand, which is as good as two rules agree.
fn agrees_with_quadrature(
    small: &Small,
    spec: &InferSpec,
    scale: [f64; 2],
    l: &dyn Fn(f64, f64) -> Vec<f64>,
    what: &str,
) {
    let [coarse, exact] = [90, 120].map(|n| {
        let prior = small.noise.scale.prior().map(|prior| (prior, scale));
        by_hand(&small.unknowns.marginals()[0], prior, n, l)
    });
    assert!((coarse - exact).abs() < 1e-6, "{what}: {coarse} {exact}");
    for engine in [Engine::Grid, Engine::Smc] {
        let found = by(small, spec, engine, Method::ELik);
        agrees(Evidence { engine_error: found.engine_error + 1e-6, ..found }, exact, engine, what);
    }
}

#[test]
fn unknown_sds_are_integrated_out_of_it() {
    let places = [-0.8, -0.8, 0.1, 0.4, 0.4, 0.4, 0.9];
    let y = places.iter().enumerate().map(|(i, t)| 1.2 - 0.3 * t + 0.15 * (5.0 * i as f64).sin()).collect();
    let small = polynomial_problem(1.0, 0.1).measure(y, Matrix::from_rows(places.len(), 1, places.to_vec()));
    let small = small.noise(Family::Normal, Scale::Prior(marginal("half-normal(0.5)")));
    for (with_errors, error) in
        [(false, ErrorSharing::Shared), (true, ErrorSharing::Shared), (true, ErrorSharing::Independent)]
    {
        let values = small.draws.values();
        let l = |a: f64, sd: f64| -> Vec<f64> {
            let eta = etas(&small, a);
            let of_draw = |s: usize| {
                let own = if with_errors { values[(values.rows() - 1, s)] } else { 0.0 };
                let covariance = Matrix::from_fn(places.len(), places.len(), |i, j| {
                    let shared = i == j || (error == ErrorSharing::Shared && places[i] == places[j]);
                    let of_noise = if i == j { sd * sd } else { 0.0 };
                    of_noise + if shared { own * own } else { 0.0 }
                });
                log_normal_density((0..places.len()).map(|i| small.measured.y[i] - eta[(i, s)]).collect(), covariance)
            };
            (0..values.cols()).map(of_draw).collect()
        };
        // Beyond lie sds that the measurements exclude, or of a prior mass below 1e-5 times what counts.
        let what = format!("{with_errors} {error:?}");
        agrees_with_quadrature(&small, &settings(with_errors, error), [-9.0, 1.2], &l, &what);
    }
}

#[test]
fn counts_have_probabilities() {
    let places: Vec<f64> = (0..6).map(|i| -0.9 + 0.35 * i as f64).collect();
    let y: Vec<f64> = vec![9.0, 14.0, 11.0, 7.0, 12.0, 3.0];
    let mut small = polynomial_problem(2.2, 0.05).measure(y.clone(), Matrix::from_rows(6, 1, places));
    small.output.log = true;
    for is_poisson in [true, false] {
        let small = match is_poisson {
            true => small.clone().noise(Family::Poisson, Scale::Fixed(0.0)),
            false => {
                let prior = Scale::Prior(marginal("exponential(5)"));
                small.clone().noise(Family::NegativeBinomial { inverse: true }, prior)
            }
        };
        let l = |a: f64, k: f64| -> Vec<f64> {
            let eta = etas(&small, a);
            let log_probability = |y: f64, mu: f64| match is_poisson {
                true => y * mu.ln() - mu - ln_gamma(y + 1.0),
                false => {
                    let rising: f64 = (0..y as usize).map(|j| (j as f64 * k).ln_1p()).sum();
                    rising - ln_gamma(y + 1.0) + y * mu.ln() - (y + k.recip()) * (k * mu).ln_1p()
                }
            };
            (0..eta.cols()).map(|s| (0..y.len()).map(|i| log_probability(y[i], eta[(i, s)].exp())).sum()).collect()
        };
        // Below the least k the prior has a mass of 5 e^-16, above the largest e^-50.
        let spec = settings(false, ErrorSharing::Shared);
        agrees_with_quadrature(
            &small,
            &spec,
            [-16.0, 10_f64.ln()],
            &l,
            if is_poisson { "poisson" } else { "negative binomial" },
        );
    }
}

#[test]
fn clusters_leave_the_evidence_of_all_draws() {
    let cases = [(Engine::Grid, &["a", "b"][..], 0.2), (Engine::Smc, &["a"], 0.05)];
    for (engine, unknowns, spread) in cases {
        let small = linear_problem(unknowns, 400, spread, Stream::root(6));
        let all = InferSpec { draws: 1000, ..settings(false, ErrorSharing::Shared) };
        let exact = by(&small, &all, Engine::Exact, Method::ELik);
        let auto = InferSpec { clusters: Clusters::Auto, engine, methods: vec![Method::ELik], ..all };
        let found = infer(&small, &auto).remove(0);
        assert!(found.diagnostics.clusters.is_some(), "{}", found.trust);
        let evidence = found.evidence().unwrap();
        agrees(evidence, exact.log, engine, "clusters");
        // Evidences of single T-draws by common points are known to some percent, which averages out.
        let [own, exact] = [evidence, exact].map(|e| e.t_draw_error.unwrap());
        assert!((own / exact - 1.0).abs() < 0.1, "{own} {exact}");
    }
}

#[test]
fn the_error_from_the_number_of_t_draws_is_that_of_other_draws() {
    const SETS: usize = 200;
    let spec = InferSpec { methods: vec![Method::ELik], ..settings(true, ErrorSharing::Shared) };
    let found: Vec<Evidence> = (0..SETS as u64)
        .map(|set| by(&linear_problem(&["a"], 200, 0.1, Stream::root(7).at(set)), &spec, Engine::Exact, Method::ELik))
        .collect();
    let moments = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / SETS as f64;
        let power = |p: i32| values.iter().map(|v| (v - mean).powi(p)).sum::<f64>() / SETS as f64;
        (mean, power(2).sqrt(), power(4))
    };
    let (_, sd, fourth) = moments(&found.iter().map(|e| e.log).collect::<Vec<_>>());
    let (stated, spread, _) = moments(&found.iter().map(|e| e.t_draw_error.unwrap()).collect::<Vec<_>>());
    // Standard errors of an sd and of a mean of 200; the delta method is off by a share of the variance.
    let error = (0.25 * (fourth / sd.powi(4) - 1.0) * sd * sd + spread * spread).sqrt() / (SETS as f64).sqrt();
    assert!((sd - stated).abs() <= 4.0 * error + sd * stated * stated, "{sd} {stated} {error}");
    assert!(found.iter().all(|e| e.engine_error == 0.0 && e.error() == e.t_draw_error.unwrap() && !e.rests_on_few));
    // T-draws that were chosen and weighted are no sample.
    let mut weighted = linear_problem(&["a"], 200, 0.1, Stream::root(7));
    let log_weights = (0..200).map(|s| -0.01 * s as f64).collect();
    weighted.draws = Draws::weighted(weighted.draws.names().to_vec(), weighted.draws.values().clone(), log_weights);
    assert_eq!(by(&weighted, &spec, Engine::Exact, Method::ELik).t_draw_error, None);
}

/// T-draws that differ so much that few of them explain the measurements.
#[test]
fn an_evidence_that_rests_on_few_t_draws_says_so() {
    let mut small = linear_problem(&["a"], 400, 3.0, Stream::root(8));
    small.measured.scale = None;
    let spec = settings(false, ErrorSharing::Shared);
    let found = by(&small, &spec, Engine::Exact, Method::ELik);
    assert!(found.rests_on_few && found.t_draw_error.unwrap() > 20_f64.sqrt().recip(), "{found:?}");
}

#[test]
fn what_has_no_evidence_says_why() {
    let mut rng = Stream::root(9).rng();
    let mut small = linear_problem(&["a"], 20, 0.1, Stream::root(9));
    small.measured.y.iter_mut().for_each(|y| *y += 0.01 * symmetric(&mut rng));
    let spec = settings(false, ErrorSharing::Shared);
    for answer in infer(&small, &spec) {
        match answer.method.as_str() {
            "e-post" => assert!(answer.evidence().unwrap_err().contains("equal weights")),
            "e-log-lik" => assert!(answer.evidence().unwrap_err().contains("no probability")),
            _ => assert!(answer.evidence().is_ok()),
        }
    }
    let smc = SmcSpec { runs: 1, ..spec.smc };
    let single = InferSpec { engine: Engine::Smc, methods: vec![Method::ELik], smc, ..spec.clone() };
    assert!(infer(&small, &single)[0].evidence().unwrap_err().contains("infer.smc.runs"));
    let nuts = InferSpec { engine: Engine::Nuts, methods: vec![Method::Point], ..spec };
    assert!(infer(&small, &nuts)[0].evidence().unwrap_err().contains("NUTS"));
}
