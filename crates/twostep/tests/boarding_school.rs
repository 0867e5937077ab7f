//! An outbreak from forty runs of the simulator, with counts as measurements, against the posterior that solves the equations everywhere.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use twostep::monitor::Silent;
use twostep::run::Project;
use twostep::study::{self, Stage};

const BOYS: f64 = 763.0;
const IN_BED: [u32; 14] = [3, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4];

/// How many are ill on days 1 to 14, by the classical Runge-Kutta method in steps of a fiftieth of a day.
fn ill(beta: f64, gamma: f64) -> [f64; 14] {
    const STEPS: usize = 50;
    let slope = |[s, i]: [f64; 2]| {
        let infections = beta * s * i / BOYS;
        [-infections, infections - gamma * i]
    };
    let h = 1.0 / STEPS as f64;
    let moved = |x: [f64; 2], k: [f64; 2], h: f64| [x[0] + h * k[0], x[1] + h * k[1]];
    let mut state = [BOYS - 1.0, 1.0];
    std::array::from_fn(|_| {
        for _ in 0..STEPS {
            let a = slope(state);
            let b = slope(moved(state, a, 0.5 * h));
            let c = slope(moved(state, b, 0.5 * h));
            let d = slope(moved(state, c, h));
            for k in 0..2 {
                state[k] += h / 6.0 * (a[k] + 2.0 * b[k] + 2.0 * c[k] + d[k]);
            }
        }
        state[1]
    })
}

/// Means and sds of beta, gamma, inverse phi and R0 by the trapezoidal rule, within the study's ranges.
fn direct() -> [(f64, f64); 4] {
    const NODES: usize = 60;
    // Ten sds around the posterior; inverse phi by its logarithm.
    let at = |k: usize, lower: f64, upper: f64| lower + (upper - lower) * k as f64 / (NODES - 1) as f64;
    let scales: Vec<(f64, f64)> = (0..NODES)
        .map(|k| {
            let inverse_phi = at(k, -6.0, 1.5).exp();
            // log(1 + j / phi) over j below each count, which does not depend on its mean; the factorials are constants.
            let constant = |y: u32| (0..y).map(|j| (f64::from(j) * inverse_phi).ln_1p()).sum::<f64>();
            let prior = inverse_phi.ln() - 5.0 * inverse_phi;
            (inverse_phi, IN_BED.into_iter().map(constant).sum::<f64>() + prior)
        })
        .collect();
    let mut points = Vec::new();
    for (i, j) in (0..NODES).flat_map(|i| (0..NODES).map(move |j| (i, j))) {
        let (beta, gamma) = (at(i, 1.3, 2.3), at(j, 0.25, 0.95));
        let prior = -0.5 * (beta - 2.0).powi(2) - 0.5 * ((gamma - 0.4) / 0.5).powi(2);
        let means = ill(beta, gamma);
        for (inverse_phi, constant) in &scales {
            let of_day = |(y, mu): (u32, f64)| {
                let y = f64::from(y);
                y * mu.ln() - (y + inverse_phi.recip()) * (inverse_phi * mu).ln_1p()
            };
            let log = prior + constant + IN_BED.into_iter().zip(means).map(of_day).sum::<f64>();
            points.push((log, [beta, gamma, *inverse_phi, beta / gamma]));
        }
    }
    let top = points.iter().map(|point| point.0).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = points.iter().map(|(log, _)| (log - top).exp()).sum();
    std::array::from_fn(|k| {
        let moment =
            |f: &dyn Fn(f64) -> f64| points.iter().map(|(log, x)| (log - top).exp() * f(x[k])).sum::<f64>() / total;
        let mean = moment(&|x| x);
        (mean, moment(&|x| (x - mean).powi(2)).sqrt())
    })
}

#[test]
fn forty_runs_say_what_the_equations_say() {
    let studies = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies");
    let text = std::fs::read_to_string(studies.join("boarding_school.toml")).unwrap();
    let text = text.replace("answer = \"e-lik\"", "methods = [\"e-lik\"]");
    let settings =
        study::parse(&text, "boarding_school.toml", &studies).unwrap_or_else(|problems| panic!("{problems}"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("boarding_school");
    let _ = std::fs::remove_dir_all(&folder);
    let results = Project::new(settings, folder.clone()).run(Stage::Infer, &Silent).unwrap();
    assert_eq!(results[0].runs, [40, 0]);
    let answer = &results[0].posteriors[0];
    let direct = direct();
    // Published, by 68,000 draws: the rule above must be it.
    for ((mean, sd), (published, of_published)) in
        direct.iter().zip([(1.735, 0.053), (0.541, 0.045), (0.138, 0.075), (3.23, 0.27)])
    {
        assert!((mean - published).abs() < 0.1 * of_published, "{direct:?}");
        assert!((sd / of_published - 1.0).abs() < 0.1, "{direct:?}");
    }
    for (quantity, (mean, sd)) in answer.unknowns.iter().zip(direct) {
        let what = format!("{}: {} +- {} for {mean} +- {sd}", quantity.name, quantity.mean, quantity.sd);
        assert!((quantity.mean - mean).abs() < 0.3 * sd, "{what}");
        assert!((quantity.sd / sd - 1.0).abs() < 0.2, "{what}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
