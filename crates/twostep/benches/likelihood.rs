//! Time of one log-likelihood with its gradient on a problem of the SIR study's size: a polynomial of total degree 4 in two
//! unknowns and time, 1000 T-draws, 50 measurements, unknown sd.
//!
//! On one core with AVX2, E-Lik (conditioned) should take at most 30 us and the closed form of E-Log-Lik at most 1 us.

#[path = "../tests/common/small.rs"]
mod small;

use criterion::{Criterion, criterion_group, criterion_main};
use small::{Small, propagation, settings};
use std::hint::black_box;
use twostep::infer::propagation::Method;
use twostep::infer::{Likelihoods, Target};
use twostep::likelihood::{ErrorSharing, Family, Scale};
use twostep::matrix::Matrix;
use twostep::prior::Prior;

fn problem(n_draws: usize) -> Small {
    let surrogate = small::polynomial(4, 3);
    let mut centre = vec![0.1; surrogate.names().len()];
    (centre[0], centre[2], centre[3]) = (3.0, -1.0, 1.0);
    let known = Matrix::from_fn(50, 1, |i, _| -1.0 + 2.0 * i as f64 / 49.0);
    let y = (0..50).map(|i| 3.0 + (0.4 * f64::from(i)).sin()).collect();
    Small::random(surrogate, &centre, 0.05, n_draws, 1)
        .measure(y, known)
        .noise(Family::Normal, Scale::Prior(small::marginal("half-normal(0.5)")))
}

fn measure(
    criterion: &mut Criterion,
    name: &str,
    likelihoods: &Likelihoods,
    prior: &Prior,
    method: Method,
    log_alpha: &[f64],
) {
    let propagation = propagation(method);
    let mut target = Target::new(likelihoods, prior, &*propagation, log_alpha);
    let (x, mut gradient) = ([0.2, -0.3, 0.5], [0.0; 3]);
    criterion.bench_function(name, |bencher| {
        bencher.iter(|| black_box(target.log_likelihood(black_box(&x), &mut gradient)));
    });
}

fn likelihood(criterion: &mut Criterion) {
    let small = problem(1000);
    for (sigma_a, suffix) in [(false, ""), (true, ", sigma_a")] {
        for (conditioning, form) in [(true, "conditioned"), (false, "general")] {
            let prepared = small
                .prepared(&settings(sigma_a, ErrorSharing::Independent), conditioning)
                .expect("the problem has a likelihood");
            let name = format!("E-Lik, {form}{suffix}");
            measure(criterion, &name, prepared.likelihoods(), prepared.prior(), Method::ELik, prepared.log_alpha());
            let Some(averaged) = prepared.likelihoods().averaged(&small.draws.weights()) else { continue };
            measure(criterion, "E-Log-Lik, closed form", &averaged, prepared.prior(), Method::ELogLik, &[0.0]);
            let one = prepared.likelihoods().select(&[0]);
            measure(criterion, "one draw, conditioned", &one, prepared.prior(), Method::Point, &[0.0]);
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50);
    targets = likelihood
}
criterion_main!(benches);
