//! After its first call, a log-likelihood with its gradient allocates nothing: samplers call it millions of times.

#![allow(unsafe_code, reason = "a global allocator can only be written so; this one counts and passes on")]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/small.rs"]
mod small;

use small::{Small, propagation, settings};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use twostep::infer::propagation::Method;
use twostep::infer::{Likelihoods, Target};
use twostep::likelihood::{ErrorSharing, Family, Scale};
use twostep::matrix::Matrix;
use twostep::prior::Prior;

thread_local! {
    // Of this thread alone: tests run side by side.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches a plain thread-local cell only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of ten evaluations after the first.
fn allocations(likelihoods: &Likelihoods, prior: &Prior, method: Method, log_alpha: &[f64]) -> usize {
    let propagation = propagation(method);
    let mut target = Target::new(likelihoods, prior, &*propagation, log_alpha);
    let (mut x, mut gradient) = (vec![0.2, -0.3, 0.25], vec![0.0; 3]);
    target.log_likelihood(&x, &mut gradient);
    let before = ALLOCATIONS.get();
    for step in 0..10 {
        x[0] = 0.01 * f64::from(step);
        assert!(target.log_likelihood(&x, &mut gradient).is_finite());
    }
    ALLOCATIONS.get() - before
}

/// Large enough that products of matrices take their blocked path: 200 draws, 40 measurements.
fn problem(mut small: Small, family: Family) -> Small {
    let known = Matrix::from_fn(40, 1, |i, _| -0.95 + 0.1 * (i / 2) as f64);
    let mut y: Vec<f64> = (0..40).map(|i| 1.0 + 0.1 * f64::from(i % 7)).collect();
    if let Family::LogNormal { .. } = family {
        y[3] = 0.0;
        small.output.log = true;
    }
    small.measure(y, known).noise(family, Scale::Prior(small::marginal("half-normal(0.5)")))
}

fn check(small: &Small, name: &str, conditioning: bool) {
    for sigma_a in [false, true] {
        let prepared = small.prepared(&settings(sigma_a, ErrorSharing::Independent), conditioning).unwrap();
        for method in [Method::Point, Method::ELik, Method::ELogLik] {
            let found = allocations(prepared.likelihoods(), prepared.prior(), method, prepared.log_alpha());
            assert_eq!(found, 0, "{name}, {}, conditioning {conditioning}, sigma_a {sigma_a}", method.name());
        }
        if let Some(averaged) = prepared.likelihoods().averaged(&small.draws.weights()) {
            let found = allocations(&averaged, prepared.prior(), Method::ELogLik, &[0.0]);
            assert_eq!(found, 0, "{name}, closed form of E-Log-Lik");
        }
    }
}

fn polynomial() -> Small {
    let surrogate = small::polynomial(4, 3);
    let mut centre = vec![0.0; surrogate.names().len()];
    centre[0] = 1.0;
    Small::random(surrogate, &centre, 0.1, 200, 1)
}

#[test]
fn the_counter_counts() {
    let before = ALLOCATIONS.get();
    std::hint::black_box(vec![1.0]);
    assert_eq!(ALLOCATIONS.get() - before, 1);
}

#[test]
fn polynomial_conditioned() {
    check(&problem(polynomial(), Family::Normal), "pce", true);
}

#[test]
fn polynomial_in_general() {
    check(&problem(polynomial(), Family::Normal), "pce", false);
}

#[test]
fn polynomial_with_a_zero() {
    check(&problem(polynomial(), Family::LogNormal { refuse_zeros: false }), "pce, log-normal", true);
}

#[test]
fn formula() {
    let logistic = || Small::random(small::logistic(), &[1.0, 2.0, 0.1], 0.1, 200, 2);
    check(&problem(logistic(), Family::Normal), "formula", true);
    check(&problem(logistic(), Family::StudentT { df: 4.0 }), "formula, student-t", true);
}
