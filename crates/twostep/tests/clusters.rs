//! What a few T-draws say about all: clusters that are corrected, fits that are reused, and the error of their number.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
#[path = "common/small.rs"]
mod small;

use common::{Case, THETA_C};
use rand::RngExt;
use small::Small;
use twostep::infer::propagation::Method;
use twostep::infer::{Clusters, Engine, Fits, IPosterior, InferSpec, NutsSpec, Prepared};
use twostep::likelihood::{Family, Scale};
use twostep::matrix::Matrix;
use twostep::prior::Prior;
use twostep::special::normal_quantile;
use twostep::stream::Stream;
use twostep::train::TrainSpec;

const MIXTURES: [Method; 2] = [Method::ELik, Method::EPost];

fn spec(engine: Engine, clusters: Clusters) -> InferSpec {
    InferSpec { engine, clusters, methods: MIXTURES.to_vec(), ..common::settings(THETA_C) }
}

/// Largest difference of two answers' means, sds and quantiles, in sds of the second.
fn distance(a: &IPosterior, b: &IPosterior) -> f64 {
    let pairs = a.unknowns.iter().zip(&b.unknowns);
    let of = |(a, b): (&_, &_)| {
        let values = common::values(a).into_iter().zip(common::values(b));
        values.map(|(x, y)| (x - y).abs() / b.sd).fold(0.0, f64::max)
    };
    pairs.map(of).fold(0.0, f64::max)
}

/// Every statistic by clusters lies within the stated error of the answer by all T-draws, and took less work, or the fall-back is
/// told. Returns how often clusters served.
fn auto_is_right(name: &str, seeds: std::ops::RangeInclusive<u64>) -> usize {
    let case = Case::load(name);
    let posterior = case.posterior(true, &TrainSpec::default());
    let all = spec(Engine::Grid, Clusters::None);
    let prepared = case.prepared(&posterior, &all, true);
    let exact = common::infer(&prepared, &all, 1);
    let auto = spec(Engine::Grid, Clusters::Auto);
    let mut served = 0;
    for seed in seeds {
        for (answer, exact) in common::infer(&prepared, &auto, seed).iter().zip(&exact) {
            let (found, whole) = (&answer.diagnostics, &exact.diagnostics);
            let Some(clusters) = found.clusters else {
                assert!(
                    found.all_t_draws.is_some() && answer.trust.contains("by all 1000 T-draws"),
                    "{}",
                    answer.trust
                );
                assert!(
                    distance(answer, exact) <= whole.quadrature_error.unwrap(),
                    "the same engine on the same T-draws"
                );
                continue;
            };
            served += 1;
            let off = distance(answer, exact);
            assert!(clusters.error <= 0.05, "{clusters:?}");
            assert!(
                off <= clusters.error + whole.quadrature_error.unwrap(),
                "{name} seed {seed}: {off} sd off: {}",
                answer.trust
            );
            assert!(found.likelihood_evaluations < whole.likelihood_evaluations, "{name} seed {seed}: {found:?}");
            assert!(answer.trust.contains("clusters corrected to all 1000 T-draws"), "{}", answer.trust);
        }
    }
    served
}

#[test]
fn clusters_of_the_polynomial_study() {
    // Over one unknown a grid looks everywhere with all T-draws for the same price.
    assert_eq!(auto_is_right("pce", 1..=20), 0);
}

#[test]
fn clusters_of_the_epidemic_study() {
    assert_eq!(auto_is_right("sir", 1..=20), 40);
}

/// `y = c0 + c1 omega` with given T-draws, one measurement, normal noise and a normal prior: every posterior has a closed form.
fn line(draws: &[[f64; 2]], y: f64) -> Small {
    let coefficients = Matrix::from_fn(2, draws.len(), |p, s| draws[s][p]);
    let small = Small::new(small::polynomial(1, 1), &coefficients, &vec![0.0; draws.len()], 1);
    let unknowns = Prior::new(vec!["omega".into()], vec![small::marginal("normal(0, 1)")]).unwrap();
    Small { unknowns, ..small }.measure(vec![y], Matrix::zeros(1, 0)).noise(Family::Normal, Scale::Fixed(0.2))
}

fn normals(n: usize, seed: u64) -> Vec<f64> {
    let mut rng = Stream::root(seed).rng();
    (0..n).map(|_| normal_quantile(rng.random::<f64>())).collect()
}

/// T-draws of two kinds, rising and falling lines, whose mean is a flat line that says nothing.
#[test]
fn two_far_modes_are_not_averaged() {
    let z = normals(800, 5);
    let draws: Vec<[f64; 2]> =
        (0..400).map(|s| [0.1 * z[2 * s], if s % 3 == 0 { -1.0 } else { 1.0 } * (1.0 + 0.05 * z[2 * s + 1])]).collect();
    let problem = line(&draws, 0.8);
    let exact_spec = spec(Engine::Exact, Clusters::None);
    let prepared = problem.prepared(&exact_spec, true).unwrap();
    let exact = common::infer(&prepared, &exact_spec, 1);
    let answers = common::infer(&prepared, &spec(Engine::Smc, Clusters::Auto), 1);
    let on_all = common::infer(&prepared, &spec(Engine::Smc, Clusters::None), 1);
    for ((answer, exact), on_all) in answers.iter().zip(&exact).zip(&on_all) {
        let clusters = answer.diagnostics.clusters.unwrap_or_else(|| panic!("{}", answer.trust));
        let off = distance(answer, exact);
        assert!(off <= clusters.error, "{off} sd off: {}", answer.trust);
        assert!(answer.diagnostics.likelihood_evaluations < on_all.diagnostics.likelihood_evaluations);
        // Falling lines are a third of the T-draws; a draw belongs to the kind that its T-draw is of.
        let kinds = answer.draws.iter().zip(answer.t_draws.as_ref().unwrap());
        assert!(
            kinds.clone().all(|(x, s)| x[0].abs() < 0.2 || (x[0] < 0.0) == (draws[*s][1] < 0.0)),
            "{}",
            answer.trust
        );
        let falling = kinds.filter(|(_, s)| draws[**s][1] < 0.0).count() as f64 / answer.draws.len() as f64;
        // Both kinds fit alike; the binomial error of the draws.
        assert!(
            (falling - 134.0 / 400.0).abs() < 5.0 * (0.335 * 0.665 / answer.draws.len() as f64).sqrt(),
            "{falling}"
        );
    }
}

/// E-Post by NUTS from the fits that it needs agrees with the closed form, and takes many times fewer gradients than all fits.
#[test]
fn needed_fits_are_as_right_as_all() {
    let z = normals(800, 6);
    let draws: Vec<[f64; 2]> = (0..400).map(|s| [0.1 * z[2 * s], 1.0 + 0.1 * z[2 * s + 1]]).collect();
    let problem = line(&draws, 0.5);
    let base = InferSpec { methods: vec![Method::EPost], draws: 1000, ..spec(Engine::Exact, Clusters::None) };
    let prepared = problem.prepared(&base, true).unwrap();
    let exact = &common::infer(&prepared, &base, 1)[0];
    let needed = agreeing_fits(&prepared, &base, exact);
    assert!(needed <= 24, "{needed}");
}

/// The same where nothing is normal: two unknowns between bounds, products and squares of them, and an sd that is unknown too.
#[test]
fn needed_fits_of_skewed_posteriors_are_as_right_as_all() {
    let surrogate = small::polynomial(3, 3);
    let coefficient = |name: &String| match name.as_str() {
        "c[0,0,0]" => 0.3,
        "c[1,0,0]" => 1.0,
        "c[0,1,1]" => 0.8,
        "c[2,0,0]" => 0.2,
        _ => 0.0,
    };
    let centre: Vec<f64> = surrogate.names().iter().map(coefficient).collect();
    let at = |i: usize| -1.0 + 0.08 * i as f64;
    let known = Matrix::from_fn(26, 1, |i, _| at(i));
    let z = normals(26, 9);
    let y = (0..26).map(|i| 0.9 + 0.3 * at(i) + 0.2 * z[i]).collect();
    let problem = Small::random(surrogate, &centre, 0.02, 200, 3)
        .measure(y, known)
        .noise(Family::Normal, Scale::Prior(small::marginal("half-normal(0.5)")));
    let base = InferSpec { methods: vec![Method::EPost], draws: 1000, ..spec(Engine::Grid, Clusters::None) };
    let prepared = problem.prepared(&base, true).unwrap();
    // A thousandth of an sd is no part of any standard error here.
    let exact = &common::infer(&prepared, &base, 1)[0];
    agreeing_fits(&prepared, &base, exact);
}

/// E-Post by NUTS, from the fits that it needs and from all, within Monte Carlo error of the exact answer; how many it needs.
fn agreeing_fits(prepared: &Prepared, base: &InferSpec, exact: &IPosterior) -> usize {
    let by = |fits: Fits| {
        let nuts = NutsSpec { chains: 4, warmup: 800, draws: 250, fits };
        common::infer(prepared, &InferSpec { engine: Engine::Nuts, nuts, ..base.clone() }, 1).remove(0)
    };
    let (needed, all) = (by(Fits::Needed), by(Fits::All));
    // Seven statistics of each quantity; alpha = 1e-4.
    let bound = normal_quantile(1.0 - 0.5 * 1e-4 / (7 * exact.unknowns.len()) as f64);
    for answer in [&needed, &all] {
        assert!(answer.warnings.is_empty(), "{:?}", answer.warnings);
        for (unknown, exact) in answer.unknowns.iter().zip(&exact.unknowns) {
            let quantiles = unknown.mcse_quantiles.unwrap();
            let errors = [&[unknown.mcse_mean.unwrap(), unknown.mcse_sd.unwrap()][..], &quantiles[..]].concat();
            for (k, ((value, error), exact)) in
                common::values(unknown).iter().zip(errors).zip(common::values(exact)).enumerate()
            {
                let z = (value - exact) / error;
                assert!(z.abs() < bound, "{} {} statistic {k}: {z} standard errors", answer.trust, unknown.name);
            }
        }
    }
    let [_, fitted] = needed.diagnostics.bad_fits.unwrap();
    assert!(needed.diagnostics.evaluations * 8 < all.diagnostics.evaluations, "{}", needed.trust);
    assert_eq!(all.diagnostics.bad_fits.unwrap()[1], prepared.log_alpha().len());
    fitted
}

/// The error that comes from a finite number of T-draws is that of independent sets of them.
#[test]
fn pairs_of_draws_tell_the_error_of_few_t_draws() {
    let n = 60;
    let sets = 40;
    let spec = InferSpec { draws: 4000, ..spec(Engine::Grid, Clusters::None) };
    let z = normals(2 * n * sets, 7);
    let (mut means, mut sds, mut stated) = ([vec![], vec![]], [0.0; 2], [vec![], vec![]]);
    for set in 0..sets {
        let z = &z[2 * n * set..2 * n * (set + 1)];
        let draws: Vec<[f64; 2]> = (0..n).map(|s| [0.3 * z[2 * s], 1.0 + 0.1 * z[2 * s + 1]]).collect();
        let prepared = line(&draws, 0.5).prepared(&spec, true).unwrap();
        for (m, answer) in common::infer(&prepared, &spec, 1).iter().enumerate() {
            let unknown = &answer.unknowns[0];
            means[m].push(unknown.mean);
            sds[m] += unknown.sd / sets as f64;
            stated[m].push(answer.diagnostics.t_draw_error.unwrap());
        }
    }
    for m in 0..2 {
        let mean = means[m].iter().sum::<f64>() / sets as f64;
        let spread = (means[m].iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (sets - 1) as f64).sqrt() / sds[m];
        let typical = stated[m].iter().sum::<f64>() / sets as f64;
        // The spread of 40 means is known to 11 %; what is stated is the largest of mean, 5 % and 95 % quantile, whose error is up to
        // twice that of a mean, and has the noise of the I-draws besides.
        let known = 4.0 / (2.0 * (sets - 1) as f64).sqrt();
        assert!(
            typical > (1.0 - known) * spread && typical < 2.0 * (1.0 + known) * spread + 0.05,
            "{typical} {spread}"
        );
    }
}

/// Few T-draws bring a warning with a number to ask for; many bring none.
#[test]
fn advice_on_the_number_of_t_draws() {
    let z = normals(4000, 8);
    let draws: Vec<[f64; 2]> = (0..2000).map(|s| [0.3 * z[2 * s], 1.0 + 0.1 * z[2 * s + 1]]).collect();
    let spec = spec(Engine::Grid, Clusters::None);
    for (n, enough) in [(20, false), (2000, true)] {
        let prepared = line(&draws[..n], 0.5).prepared(&spec, true).unwrap();
        for answer in common::infer(&prepared, &spec, 1) {
            let error = answer.diagnostics.t_draw_error.unwrap();
            let warned = answer
                .warnings
                .iter()
                .any(|w| w.contains("T-draws are not enough") && w.contains("set train.draws = "));
            assert_eq!((warned, error > 0.1), (!enough, !enough), "{error} {:?}", answer.warnings);
        }
    }
}
