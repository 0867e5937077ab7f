//! Unknowns with a value in each experiment, and offsets: densities by hand, gradients, and engines that agree.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/small.rs"]
mod small;

use rand::RngExt;
use small::{Small, marginal, polynomial};
use std::f64::consts::TAU;
use std::sync::Arc;
use twostep::draws::Draws;
use twostep::infer::propagation::Method;
use twostep::infer::{Engine, InferSpec, Measured, Prepared, Problem, Unknowns, Workspace, infer};
use twostep::likelihood::{ErrorSharing, Family, Scale};
use twostep::matrix::Matrix;
use twostep::monitor::Silent;
use twostep::prior::Prior;
use twostep::stream::Stream;
use twostep::surrogate::Scratch;
use twostep::train::TrainedOutput;

const SIGMA: f64 = 0.3;

/// A shared unknown, one of each of two experiments, and an offset; the surrogate has two unknowns and a condition.
fn unknowns() -> Unknowns {
    let prior = marginal("normal(0.1, 0.6, lower=-1, upper=1)");
    let names = ["a", "b[north]", "b[south]", "offset"].map(String::from).to_vec();
    let marginals = vec![prior.clone(), prior.clone(), prior, marginal("normal(0, 0.2)")];
    let prior = Prior::new(names, marginals).unwrap();
    Unknowns { prior, places: vec![vec![0, 1], vec![0, 2]], offsets: vec![Some(3)] }
}

/// Three points in one experiment and two in the other, measured one to three times, out of order.
fn small(n_draws: usize) -> Small {
    let centre: Vec<f64> = (0..10).map(|p| 0.8 * (1.7 * p as f64).cos()).collect();
    let small = Small::random(polynomial(2, 3), &centre, 0.2, n_draws, 3);
    let rows = [(0, -0.5), (1, 0.2), (0, 0.2), (1, 0.2), (0, 0.9), (0, 0.2), (1, -0.8), (0, 0.2)];
    let mut rng = Stream::root(4).rng();
    let y = rows.iter().map(|_| 0.5 + 0.4 * rng.random::<f64>()).collect();
    let known = Matrix::from_fn(rows.len(), 1, |i, _| rows[i].1);
    let small = small.measure(y, known).noise(Family::Normal, Scale::Prior(marginal("half-normal(1)")));
    let experiment = rows.iter().map(|(e, _)| *e).collect();
    Small { measured: Measured { experiment, ..small.measured.clone() }, ..small }
}

fn prepared(small: &Small, unknowns: Unknowns, spec: &InferSpec, conditioning: bool) -> Prepared {
    let problem = Problem {
        outputs: std::slice::from_ref(&small.output),
        draws: &small.draws,
        unknowns,
        noise: vec![small.noise.clone()],
        measured: std::slice::from_ref(&small.measured),
        derived: Vec::new(),
    };
    Prepared::new(problem, spec, conditioning).unwrap()
}

fn log_likelihoods(prepared: &Prepared, x: &[f64]) -> Vec<f64> {
    let (mut workspace, mut l) = (Workspace::default(), vec![0.0; prepared.likelihoods().n_draws()]);
    prepared.likelihoods().set_unknowns(&x[..4], &mut workspace);
    prepared.likelihoods().log_likelihoods(&x[4..], &workspace, &mut l);
    l
}

/// Means and the covariance of a group's values in closed form: with `v = sigma_A^2` shared by `n` of them,
/// `log det = (n - 1) log s^2 + log(s^2 + n v)`, and the inverse is `(I - v / (s^2 + n v) 11') / s^2`.
fn by_hand(small: &Small, x: &[f64], s: usize) -> f64 {
    let n_terms = small.draws.values().rows() - 1;
    let coefficients = Matrix::from_fn(n_terms, 1, |p, _| small.draws.values()[(p, s)]);
    let (v, square) = (small.draws.values()[(n_terms, s)].powi(2), x[4] * x[4]);
    let mut groups: Vec<((usize, f64), Vec<f64>)> = Vec::new();
    for (i, y) in small.measured.y.iter().enumerate() {
        let key = (small.measured.experiment[i], small.measured.known[(i, 0)]);
        match groups.iter_mut().find(|(own, _)| *own == key) {
            Some((_, values)) => values.push(*y),
            None => groups.push((key, vec![*y])),
        }
    }
    let of_group = |((experiment, t), values): &((usize, f64), Vec<f64>)| {
        let inputs = Matrix::from_rows(1, 3, vec![x[0], x[1 + experiment], *t]);
        let mut eta = Matrix::default();
        small.output.surrogate.predict(&inputs, &coefficients, &mut eta, &mut Scratch::default());
        let (shift, factor) = small.output.affine;
        let r: Vec<f64> = values.iter().map(|y| y - (shift + factor * eta[(0, 0)] + x[3])).collect();
        let (n, sum) = (r.len() as f64, r.iter().sum::<f64>());
        let v = v * factor * factor;
        let squares = (r.iter().map(|r| r * r).sum::<f64>() - v / (square + n * v) * sum * sum) / square;
        -0.5 * (n * TAU.ln() + (n - 1.0) * square.ln() + (square + n * v).ln() + squares)
    };
    groups.iter().map(of_group).sum()
}

#[test]
fn every_experiment_has_its_own_unknowns_and_all_have_the_offset() {
    let small = small(5);
    let x = [0.3, -0.4, 0.6, 0.15, SIGMA];
    for conditioning in [true, false] {
        let spec = InferSpec { sigma_a: true, ..InferSpec::default() };
        let prepared = prepared(&small, unknowns(), &spec, conditioning);
        assert_eq!(prepared.likelihoods().is_conditioned(), conditioning);
        assert_eq!(prepared.prior().names(), ["a", "b[north]", "b[south]", "offset", "sigma_i"]);
        for (s, l) in log_likelihoods(&prepared, &x).into_iter().enumerate() {
            let exact = by_hand(&small, &x, s);
            // Polynomials of a few dozen terms below one, projected and summed; squares over the smallest variance.
            let bound = 1e3 * f64::EPSILON * (exact.abs() + 8.0 / SIGMA.powi(2));
            assert!((l - exact).abs() <= bound, "{l} {exact}");
        }
        let weights = [0.3, 0.1, 0.2, 0.25, 0.15];
        let mut workspace = Workspace::default();
        let (mut by_omega, mut by_sigma) = ([0.0; 4], [0.0]);
        prepared.likelihoods().set_unknowns(&x[..4], &mut workspace);
        prepared.likelihoods().pull(&x[4..], &weights, &mut workspace, &mut by_omega, &mut by_sigma);
        for (d, by) in by_omega.into_iter().chain(by_sigma).enumerate() {
            let at = |h: f64| {
                let mut x = x;
                x[d] += h;
                log_likelihoods(&prepared, &x).iter().zip(weights).map(|(l, w)| w * l).sum::<f64>()
            };
            let h = 1e-4;
            let difference = (at(h) - at(-h)) / (2.0 * h);
            // Truncation: h^2/6 times third derivatives of up to some 1 / SIGMA^3 for each of eight values; rounding of the values over h.
            let bound = h * h / 6.0 * 8.0 * 24.0 / SIGMA.powi(3) + 1e3 * f64::EPSILON * 8.0 / SIGMA.powi(2) / h;
            assert!((by - difference).abs() <= bound, "{d}: {by} {difference} {bound:e}");
        }
    }
}

/// `log N(r | 0, V)` by Cholesky's factor of V, row by row.
fn log_normal(r: &[f64], v: &Matrix) -> f64 {
    let n = r.len();
    let mut l = Matrix::zeros(n, n);
    let mut sum = 0.0;
    let mut white = vec![0.0; n];
    for i in 0..n {
        for j in 0..=i {
            let dot: f64 = (0..j).map(|k| l[(i, k)] * l[(j, k)]).sum();
            l[(i, j)] = if i == j { (v[(i, i)] - dot).sqrt() } else { (v[(i, j)] - dot) / l[(j, j)] };
        }
        white[i] = (r[i] - (0..i).map(|k| l[(i, k)] * white[k]).sum::<f64>()) / l[(i, i)];
        sum -= 0.5 * (TAU.ln() + white[i] * white[i]) + l[(i, i)].ln();
    }
    sum
}

/// Noise whose correlation falls with the distance of rows, of two sds, known but for a factor or altogether.
#[test]
fn a_covariance_enters_whole() {
    let n = 8;
    let correlation = Matrix::from_fn(n, n, |i, j| 0.7_f64.powi((i as i32 - j as i32).abs()));
    let sds: Vec<f64> = (0..n).map(|i| 0.2 + 0.1 * (i % 2) as f64).collect();
    let x = [0.3, -0.4, 0.1];
    for (scale, factor) in [(Scale::Column, 1.0), (Scale::Multiple(marginal("log-normal(0, 0.5)")), 1.4)] {
        for (error, sigma_a) in
            [(ErrorSharing::Shared, true), (ErrorSharing::Independent, true), (ErrorSharing::Shared, false)]
        {
            let mut small = small(3).noise(Family::Normal, scale.clone());
            small.measured = Measured {
                experiment: Vec::new(),
                scale: Some(sds.clone()),
                correlation: Some(Arc::new(correlation.clone())),
                ..small.measured
            };
            let prior = marginal("normal(0.1, 0.6, lower=-1, upper=1)");
            let names = ["a", "b", "offset"].map(String::from).to_vec();
            let unknowns = || Unknowns {
                prior: Prior::new(names.clone(), vec![prior.clone(); 3]).unwrap(),
                places: Vec::new(),
                offsets: vec![Some(2)],
            };
            let spec = InferSpec { error, sigma_a, ..InferSpec::default() };
            for conditioning in [true, false] {
                let prepared = prepared(&small, unknowns(), &spec, conditioning);
                assert_eq!(prepared.likelihoods().is_conditioned(), conditioning);
                let sigmas = if factor == 1.0 { vec![] } else { vec![factor] };
                let (mut workspace, mut l) = (Workspace::default(), vec![0.0; 3]);
                prepared.likelihoods().set_unknowns(&x, &mut workspace);
                prepared.likelihoods().log_likelihoods(&sigmas, &workspace, &mut l);
                for (s, l) in l.into_iter().enumerate() {
                    let n_terms = small.draws.values().rows() - 1;
                    let c = Matrix::from_fn(n_terms, 1, |p, _| small.draws.values()[(p, s)]);
                    let (shift, slope) = small.output.affine;
                    let known = &small.measured.known;
                    let inputs = Matrix::from_fn(n, 3, |i, d| if d < 2 { x[d] } else { known[(i, 0)] });
                    let mut eta = Matrix::default();
                    small.output.surrogate.predict(&inputs, &c, &mut eta, &mut Scratch::default());
                    let r: Vec<f64> =
                        (0..n).map(|i| small.measured.y[i] - (shift + slope * eta[(i, 0)] + x[2])).collect();
                    let v = if sigma_a { (slope * small.draws.values()[(n_terms, s)]).powi(2) } else { 0.0 };
                    let shares = |i: usize, j: usize| match error {
                        ErrorSharing::Shared => known[(i, 0)] == known[(j, 0)],
                        ErrorSharing::Independent => i == j,
                    };
                    let total = Matrix::from_fn(n, n, |i, j| {
                        factor * factor * sds[i] * sds[j] * correlation[(i, j)] + if shares(i, j) { v } else { 0.0 }
                    });
                    let exact = log_normal(&r, &total);
                    // The covariance has a condition of about 30 x 2.25; three decompositions of eight rows, and squares over its least
                    // eigenvalue, 0.04 x 0.18.
                    let bound = 1e3 * f64::EPSILON * (70.0 * exact.abs() + 8.0 / (0.04 * 0.18));
                    assert!((l - exact).abs() <= bound, "{error:?} {sigma_a} {conditioning}: {l} {exact} {bound:e}");
                }
                let (mut by_omega, mut by_sigma, weights) = ([0.0; 3], vec![0.0; sigmas.len()], [0.3, 0.5, 0.2]);
                prepared.likelihoods().pull(&sigmas, &weights, &mut workspace, &mut by_omega, &mut by_sigma);
                let at = |d: usize, h: f64| {
                    let mut all = [&x[..], &sigmas].concat();
                    all[d] += h;
                    let (mut workspace, mut l) = (Workspace::default(), vec![0.0; 3]);
                    prepared.likelihoods().set_unknowns(&all[..3], &mut workspace);
                    prepared.likelihoods().log_likelihoods(&all[3..], &workspace, &mut l);
                    l.iter().zip(weights).map(|(l, w)| w * l).sum::<f64>()
                };
                for (d, by) in by_omega.iter().chain(&by_sigma).enumerate() {
                    let h = 1e-4;
                    let difference = (at(d, h) - at(d, -h)) / (2.0 * h);
                    // As above, with the least variance in place of SIGMA^2.
                    let least: f64 = 0.04 * 0.18;
                    let bound = h * h / 6.0 * 8.0 * 24.0 / least.powf(1.5) + 1e3 * f64::EPSILON * 8.0 / least / h;
                    assert!((by - difference).abs() <= bound, "{d}: {by} {difference} {bound:e}");
                }
            }
        }
    }
}

/// Of two outputs one has an offset; the other's unknowns stand where they stood.
#[test]
fn an_offset_of_one_output_leaves_the_other_alone() {
    let mut small = small(2).noise(Family::Normal, Scale::Fixed(SIGMA));
    small.measured.experiment.clear();
    let two = |o: usize| {
        let name = ["y", "z"][o];
        let output = TrainedOutput { name: name.to_owned(), ..small.output.clone() };
        (output, Measured { output: name.to_owned(), ..small.measured.clone() })
    };
    let (outputs, measured): (Vec<_>, Vec<_>) = (0..2).map(two).unzip();
    let names = ["y", "z"].iter().flat_map(|o| small.draws.names().iter().map(move |name| format!("{o}.{name}")));
    let values = Matrix::from_fn(2 * small.draws.values().rows(), 2, |p, s| {
        small.draws.values()[(p % small.draws.values().rows(), s)]
    });
    let draws = Draws::new(names.collect(), values);
    let prior = marginal("normal(0.1, 0.6, lower=-1, upper=1)");
    let prior = Prior::new(["a", "b", "offset[z]"].map(String::from).to_vec(), vec![prior; 3]).unwrap();
    let problem = Problem {
        outputs: &outputs,
        draws: &draws,
        unknowns: Unknowns { prior, places: Vec::new(), offsets: vec![None, Some(2)] },
        noise: vec![small.noise.clone(); 2],
        measured: &measured,
        derived: Vec::new(),
    };
    let prepared = Prepared::new(problem, &InferSpec::default(), true).unwrap();
    let at = |x: [f64; 3]| {
        let (mut workspace, mut l) = (Workspace::default(), vec![0.0; 2]);
        prepared.likelihoods().set_unknowns(&x, &mut workspace);
        prepared.likelihoods().log_likelihoods(&[], &workspace, &mut l);
        l
    };
    let alone = |x: [f64; 2], shift: f64| {
        let y = small.measured.y.iter().map(|y| y - shift).collect();
        let own = small.clone().measure(y, small.measured.known.clone());
        let prepared = own.prepared(&InferSpec::default(), true).unwrap();
        let (mut workspace, mut l) = (Workspace::default(), vec![0.0; 2]);
        prepared.likelihoods().set_unknowns(&x, &mut workspace);
        prepared.likelihoods().log_likelihoods(&[], &workspace, &mut l);
        l
    };
    let (together, y, z) = (at([0.3, -0.2, 0.4]), alone([0.3, -0.2], 0.0), alone([0.3, -0.2], 0.4));
    for s in 0..2 {
        let sum = y[s] + z[s];
        // As for one output.
        let bound = 1e3 * f64::EPSILON * (sum.abs() + 16.0 / SIGMA.powi(2));
        assert!((together[s] - sum).abs() <= bound, "{} {sum}", together[s]);
    }
}

/// Where nothing is shared but the T-draw, one T-draw makes two answers.
#[test]
fn experiments_that_share_nothing_are_inferred_as_if_alone() {
    let mut small = small(1);
    small.noise.scale = Scale::Fixed(SIGMA);
    let prior = marginal("normal(0.1, 0.6, lower=-1, upper=1)");
    let of = |names: &[&str]| {
        Prior::new(names.iter().map(|n| (*n).to_owned()).collect(), vec![prior.clone(); names.len()]).unwrap()
    };
    // A surrogate of one unknown.
    let centre: Vec<f64> = (0..6).map(|p| 0.8 * (1.7 * p as f64).cos()).collect();
    let one = Small::random(polynomial(2, 2), &centre, 0.2, 1, 3);
    (small.output, small.draws) = (one.output, one.draws);
    let spec = InferSpec { methods: vec![Method::ELik], engine: Engine::Grid, ..InferSpec::default() };
    let both = Unknowns { prior: of(&["b[0]", "b[1]"]), places: vec![vec![0], vec![1]], offsets: Vec::new() };
    let together = infer(&prepared(&small, both, &spec, true), &spec, Stream::root(1), &Silent).unwrap().remove(0);
    for experiment in 0..2 {
        let rows: Vec<usize> = (0..8).filter(|&i| small.measured.experiment[i] == experiment).collect();
        let y = rows.iter().map(|&i| small.measured.y[i]).collect();
        let own = small.clone().measure(y, small.measured.known.select_rows(&rows));
        let own = Small { measured: Measured { experiment: Vec::new(), ..own.measured.clone() }, ..own };
        let alone = infer(&prepared(&own, of(&["b"]).into(), &spec, true), &spec, Stream::root(1), &Silent).unwrap();
        let (a, b) = (&together.unknowns[experiment], &alone[0].unknowns[0]);
        // The grids' own errors, in sds.
        let bound = (a.quadrature_error.unwrap() + b.quadrature_error.unwrap()).max(1e-6) * b.sd;
        assert!((a.mean - b.mean).abs() <= bound, "{} {} {bound:e}", a.mean, b.mean);
        assert!((a.sd - b.sd).abs() <= bound, "{} {} {bound:e}", a.sd, b.sd);
    }
}

#[test]
fn a_grid_integrates_the_sd_that_experiments_share() {
    let small = small(20);
    let unknowns = || {
        let whole = unknowns();
        let prior = Prior::new(whole.prior.names()[..3].to_vec(), whole.prior.marginals()[..3].to_vec()).unwrap();
        Unknowns { prior, offsets: Vec::new(), ..whole }
    };
    let spec = InferSpec { methods: vec![Method::ELik, Method::EPost], ..InferSpec::default() };
    let by = |engine: Engine| {
        let spec = InferSpec { engine, ..spec.clone() };
        infer(&prepared(&small, unknowns(), &spec, true), &spec, Stream::root(1), &Silent).unwrap()
    };
    for (grid, smc) in by(Engine::Grid).iter().zip(by(Engine::Smc)) {
        for (a, b) in grid.unknowns.iter().zip(&smc.unknowns) {
            let error = a.quadrature_error.unwrap_or(0.0) * a.sd;
            // Ten comparisons of a few standard errors each.
            let bound = error + 4.0 * b.mcse_mean.unwrap();
            assert!((a.mean - b.mean).abs() <= bound, "{} {}: {} {} {bound:e}", grid.method, a.name, a.mean, b.mean);
        }
    }
}
