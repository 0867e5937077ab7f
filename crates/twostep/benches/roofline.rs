//! The pooled log-likelihood with its gradient against what this core can do: its peak in multiply-adds and the bandwidth of
//! each level of its memory, measured in the same run.
//!
//! The problem is the SIR study's: 45 coefficients for each T-draw once time is summed out. Useful work is 2 x 45
//! multiply-adds for each draw and point (the residual and its pull-back), useful traffic one reading of the coefficients.

#![allow(clippy::print_stdout, reason = "its output is its purpose")]

#[path = "../tests/common/small.rs"]
mod small;

use pulp::{Arch, NullaryFnOnce};
use small::{Small, propagation, settings};
use std::hint::black_box;
use std::time::Instant;
use twostep::infer::Target;
use twostep::infer::propagation::Method;
use twostep::likelihood::{ErrorSharing, Family, Scale};
use twostep::matrix::Matrix;
use twostep::mcmc::{Bayes, Point};

/// Coefficients of a residual polynomial of degree 8 in two unknowns.
const COEFFICIENTS: f64 = 45.0;

fn problem(n_draws: usize, n_measurements: usize) -> Small {
    let surrogate = small::polynomial(4, 3);
    let mut centre = vec![0.1; surrogate.names().len()];
    (centre[0], centre[2], centre[3]) = (3.0, -1.0, 1.0);
    let known = Matrix::from_fn(n_measurements, 1, |i, _| -1.0 + 2.0 * i as f64 / (n_measurements - 1) as f64);
    let y = (0..n_measurements).map(|i| 3.0 + (20.0 * i as f64 / n_measurements as f64).sin()).collect();
    Small::random(surrogate, &centre, 0.05, n_draws, 1)
        .measure(y, known)
        .noise(Family::Normal, Scale::Prior(small::marginal("half-normal(0.5)")))
}

/// Seconds of one call: the fastest of several batches, which other programs disturb least.
fn seconds(mut f: impl FnMut()) -> f64 {
    let start = Instant::now();
    f();
    let calls = (0.01 / start.elapsed().as_secs_f64().max(1e-9)).clamp(1.0, 1e7) as usize;
    let batch = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..calls).for_each(|_| f());
        start.elapsed().as_secs_f64() / calls as f64
    };
    (0..15).map(|_| batch(&mut f)).fold(f64::INFINITY, f64::min)
}

/// Runs with the widest instructions that the library uses.
fn dispatch<R>(f: impl FnOnce() -> R) -> R {
    struct Call<F>(F);
    impl<R, F: FnOnce() -> R> NullaryFnOnce for Call<F> {
        type Output = R;

        #[inline(always)]
        fn call(self) -> R {
            (self.0)()
        }
    }
    Arch::new().dispatch(Call(f))
}

/// Double-precision operations per second: the faster of 48 and 96 independent sums, twelve registers of 256 or of 512 bits.
fn peak() -> f64 {
    operations::<48>().max(operations::<96>())
}

fn operations<const LANES: usize>() -> f64 {
    const ROUNDS: usize = 10_000;
    let (x, y) = (black_box(0.999), black_box(1e-3));
    let time = seconds(|| {
        let sum = dispatch(
            #[inline(always)]
            || {
                let mut sum = [1.0; LANES];
                for _ in 0..ROUNDS {
                    for lane in 0..LANES {
                        sum[lane] = f64::mul_add(sum[lane], x, y);
                    }
                }
                sum
            },
        );
        black_box(sum);
    });
    (2 * LANES * ROUNDS) as f64 / time
}

/// Bytes per second of reading an array again and again.
fn bandwidth(bytes: usize) -> f64 {
    const LANES: usize = 48;
    let length = bytes / 8 / LANES * LANES;
    // As the coefficients are: from a line of the cache on.
    let all = vec![1.0_f64; length + 8];
    let offset = all.as_ptr().align_offset(64);
    let data = &all[offset..offset + length];
    let time = seconds(|| {
        let sum = dispatch(
            #[inline(always)]
            || {
                let mut sum = [0.0; LANES];
                for block in black_box(data).as_chunks::<LANES>().0 {
                    for lane in 0..LANES {
                        sum[lane] += block[lane];
                    }
                }
                sum
            },
        );
        black_box(sum);
    });
    (8 * data.len()) as f64 / time
}

/// Seconds of one evaluation at a point by itself, and at a point among sixteen.
fn evaluations(small: &Small, sigma_a: bool) -> [f64; 2] {
    let prepared = small.prepared(&settings(sigma_a, ErrorSharing::Independent), true).expect("there is a likelihood");
    let propagation = propagation(Method::ELik);
    let mut target = Target::new(prepared.likelihoods(), prepared.prior(), &*propagation, prepared.log_alpha());
    let (x, mut gradient) = ([0.2, -0.3, 0.5], [0.0; 3]);
    let one = seconds(|| {
        black_box(target.log_likelihood(black_box(&x), &mut gradient));
    });
    let mut points: Vec<Point> = (0..16)
        .map(|p| {
            let mut point = Point::new(3);
            point.z.copy_from_slice(&[0.02 * f64::from(p), -0.3, -0.5]);
            point
        })
        .collect();
    let many = seconds(|| target.evaluate(black_box(&mut points.iter_mut().collect::<Vec<_>>())));
    [one, many / 16.0]
}

fn main() {
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().expect("the first pool");
    let peak = peak();
    println!("| what | measured |\n|---|---|\n| multiply-adds | {:.1} GFLOP/s |", 1e-9 * peak);
    let levels = [
        ("16 KiB", 1 << 14),
        ("360 kB (S = 1000)", 360_000),
        ("3.6 MB (S = 10^4)", 3_600_000),
        ("36 MB (S = 10^5)", 36_000_000),
    ];
    for (name, bytes) in levels {
        println!("| reading {name} | {:.1} GB/s |", 1e-9 * bandwidth(bytes));
    }
    println!("\n| S | N_I | sigma_A | one point | ns/draw | of bandwidth | of 16 points | ns/draw | of peak |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let sizes = [(100, 50), (1000, 5), (1000, 50), (1000, 500), (10_000, 50), (100_000, 50)];
    for (sigma_a, (n_draws, n_measurements)) in sizes.map(|size| (false, size)).into_iter().chain([(true, (1000, 50))])
    {
        let small = problem(n_draws, n_measurements);
        let [one, many] = evaluations(&small, sigma_a);
        let draws = n_draws as f64;
        let bytes = 8.0 * COEFFICIENTS * draws;
        println!(
            "| {n_draws} | {n_measurements} | {} | {:.2} us | {:.2} | {:.0} % | {:.2} us | {:.2} | {:.0} % |",
            if sigma_a { "yes" } else { "no" },
            1e6 * one,
            1e9 * one / draws,
            100.0 * bytes / one / bandwidth(bytes as usize),
            1e6 * many,
            1e9 * many / draws,
            100.0 * 4.0 * COEFFICIENTS * draws / many / peak
        );
    }
}
