//! Rates and a time to the state of an epidemic: the SIR model of case study 3.

use differential_equations::prelude::{ExplicitRungeKutta, IVP, Solution};

use crate::error::{Error, Result};
use crate::simulate::{Simulator, check_arguments};

/// Bound on the error that one step adds to J and ln I below, both absolute and relative.
const TOLERANCE: f64 = 1e-12;

/// Susceptible, infected and recovered persons at time `t` of an epidemic in a closed population of N persons:
///
/// S' = -beta S I / N,  I' = beta S I / N - gamma I,  R' = gamma I,  (S, I, R)(0) = (N - initial, initial, 0).
///
/// `population` N = 763 and `initial` = 1 unless given: the boarding school of [BMJ 1978]. Solved by the
/// Dormand-Prince pair of order 8 [Hairer 1993]; no output is ever negative, and the relative error of I stays near
/// 1e-11 while the epidemic dies away, so that its logarithm is as good. Rates and time must not be negative, initial at
/// most population.
#[derive(Clone, Copy, Debug)]
pub struct Sir;

impl Simulator for Sir {
    fn inputs(&self) -> &[&'static str] {
        &["beta", "gamma", "t", "population", "initial"]
    }

    fn outputs(&self) -> &[&'static str] {
        &["infected", "susceptible", "recovered"]
    }

    fn defaults(&self) -> &[(&'static str, f64)] {
        &[("population", 763.0), ("initial", 1.0)]
    }

    fn run(&self, x: &[f64], out: &mut [f64]) -> Result<()> {
        check_arguments(self, x, out)?;
        let [beta, gamma, t, population, initial] = [x[0], x[1], x[2], x[3], x[4]];
        if let Some((name, value)) = self.inputs().iter().zip(x).find(|(_, value)| **value < 0.0) {
            return Err(Error::invalid(*name, format!("{value} is negative"), "give a value of at least 0"));
        }
        if initial > population || population == 0.0 {
            let found = format!("{initial} infected in a population of {population}");
            return Err(Error::invalid("initial", found, "let initial be at most population, and population positive"));
        }
        let susceptible = population - initial;
        out.copy_from_slice(&if t == 0.0 || initial == 0.0 {
            [initial, susceptible, 0.0]
        } else {
            let solution = integrate(beta, gamma, t, initial / population, susceptible / population)?;
            let [infection, log_growth] = *solution.y.last().expect("the integrator records every step");
            [initial * log_growth.exp(), susceptible * (-beta * infection).exp(), gamma * population * infection]
        });
        Ok(())
    }
}

/// Steps `[J, v]` to time t, where J' = I/N = i0 exp(v) and v' = (ln I)' = beta s0 exp(-beta J) - gamma from (0, 0).
///
/// Then I = I(0) exp(v), S = S(0) exp(-beta J) and R = gamma N J. Unlike (S, I), these variables keep the signs and are
/// not stiff once the epidemic is over.
fn integrate(beta: f64, gamma: f64, t: f64, i0: f64, s0: f64) -> Result<Solution<f64, [f64; 2]>> {
    // The integrator recognises its end to ten machine epsilons, absolutely, which a large t may miss by rounding; so
    // time is measured in units of t.
    let rates = |_: f64, state: &[f64; 2], rates: &mut [f64; 2]| {
        let [infection, log_growth] = *state;
        *rates = [t * i0 * log_growth.exp(), t * (beta * s0 * (-beta * infection).exp() - gamma)];
    };
    let method = ExplicitRungeKutta::dop853().rtol(TOLERANCE).atol(TOLERANCE);
    IVP::ode_from_fn(rates, 0.0, 1.0, [0.0, 0.0]).method(method).solve().map_err(|_| {
        Error::failed(
            "simulator sir",
            format!("beta = {beta:?} and gamma = {gamma:?} are too fast to be followed until t = {t:?}"),
            "narrow the ranges of beta, gamma and t",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: f64 = 763.0;

    /// Written again, so that bounds do not widen with the integrator's own tolerance.
    const PROMISED: f64 = 1e-12;

    fn run(beta: f64, gamma: f64, t: f64) -> [f64; 3] {
        let mut out = [f64::NAN; 3];
        Sir.run(&[beta, gamma, t, N, 1.0], &mut out).unwrap();
        out
    }

    /// Bound on the relative error of I and S, and on that of R as a share of N, for an integrator that keeps the error
    /// of each step below `tolerance` (root mean square of two components, each relative to 1 + its size).
    ///
    /// An error e in ln I is a shift in time, e / (beta - gamma), while the epidemic grows, and later changes ln I by
    /// at most max(beta - gamma, gamma) times that. An error e in J lowers (ln I)' by beta e times beta S/N, which
    /// integrates to beta e (v + gamma t) with v <= ln N; a lasting e in J changes S by beta e.
    fn error_bound(beta: f64, gamma: f64, t: f64, tolerance: f64) -> f64 {
        let solution = integrate(beta, gamma, t, 1.0 / N, (N - 1.0) / N).unwrap();
        let size = solution.y.iter().flatten().fold(0.0, |max: f64, value| max.max(value.abs()));
        let shift = (gamma / (beta - gamma)).abs().max(1.0);
        let of_infection = (beta * (N.ln() + gamma * t)).max(1.0);
        let steps = solution.steps.accepted as f64;
        steps * 2.0_f64.sqrt() * tolerance * (1.0 + size) * shift * of_infection
    }

    /// Infected persons by an independent DOP853 at tolerances 1e-11: rows of the reference training set of case study
    /// 3, among them the shortest, the longest and the steepest.
    #[test]
    fn agrees_with_an_independent_integrator() {
        for [t, beta, gamma, infected] in [
            [1.0, 1.0, 0.1, 2.4541643374461586],
            [1.8125, 2.875, 0.55, 59.706638342718904],
            [3.84375, 2.6875, 0.175, 577.1438798106947],
            [7.5, 2.0, 0.5, 173.13736951914314],
            [8.71875, 2.9375, 0.875, 11.398824311211044],
            [11.359375, 1.03125, 0.8625, 5.5967567159790885],
            [13.59375, 2.1875, 0.375, 21.258243782206428],
        ] {
            let error = (run(beta, gamma, t)[0] / infected - 1.0).abs();
            let bound = error_bound(beta, gamma, t, PROMISED + 1e-11);
            assert!(error <= bound, "t = {t}: {error:e} > {bound:e}");
        }
    }

    /// (I, S, R) by the classical Runge-Kutta method in equal steps, straight from the equations in persons.
    fn runge_kutta_4(beta: f64, gamma: f64, t: f64, steps: usize) -> [f64; 3] {
        let rates = |[i, s, _]: [f64; 3]| [beta * s * i / N - gamma * i, -beta * s * i / N, gamma * i];
        let moved = |y: [f64; 3], h: f64, k: [f64; 3]| std::array::from_fn(|j| y[j] + h * k[j]);
        let h = t / steps as f64;
        (0..steps).fold([1.0, N - 1.0, 0.0], |y, _| {
            let k1 = rates(y);
            let k2 = rates(moved(y, h / 2.0, k1));
            let k3 = rates(moved(y, h / 2.0, k2));
            let k4 = rates(moved(y, h, k3));
            std::array::from_fn(|j| y[j] + h / 6.0 * (k1[j] + 2.0 * k2[j] + 2.0 * k3[j] + k4[j]))
        })
    }

    #[test]
    fn agrees_with_fine_runge_kutta() {
        const STEPS: usize = 4000;
        for [beta, gamma, t] in [[1.6, 0.4, 14.0], [3.0, 0.1, 14.0], [1.0, 0.9, 14.0], [2.0, 0.5, 3.0]] {
            let coarse = runge_kutta_4(beta, gamma, t, STEPS);
            let fine = runge_kutta_4(beta, gamma, t, 2 * STEPS);
            let ours = run(beta, gamma, t);
            for j in 0..3 {
                // Order 4: halving the step leaves 1/15 of the difference; twice that covers the higher orders.
                let truncation = 2.0 * (fine[j] - coarse[j]).abs() / 15.0;
                let rounding = 2.0 * STEPS as f64 * N * f64::EPSILON;
                let bound = error_bound(beta, gamma, t, PROMISED) * if j == 2 { N } else { ours[j] };
                let error = (ours[j] - fine[j]).abs();
                assert!(error <= bound + truncation + rounding, "{beta} {gamma} {t}: {ours:?}, {fine:?}");
            }
        }
    }

    /// I, S and R come from three different formulas, so that their sum is a check on both integrated variables.
    #[test]
    fn population_is_conserved() {
        for [beta, gamma, t] in [[1.6, 0.4, 14.0], [3.0, 0.1, 14.0], [1.0, 0.9, 14.0], [2.0, 0.5, 100.0]] {
            let total: f64 = run(beta, gamma, t).iter().sum();
            let bound = 3.0 * error_bound(beta, gamma, t, PROMISED) * N;
            assert!((total - N).abs() <= bound, "{beta} {gamma} {t}: {total}");
        }
    }

    #[test]
    fn limits_follow_their_formulas() {
        for t in [0.5_f64, 5.0, 20.0] {
            // Nobody recovers: logistic growth.
            let infected = N / (1.0 + (N - 1.0) * (-1.5 * t).exp());
            let [grown, _, recovered] = run(1.5, 0.0, t);
            assert!((grown / infected - 1.0).abs() <= error_bound(1.5, 0.0, t, PROMISED));
            assert_eq!(recovered, 0.0);
            // Nobody infects: exponential decay.
            let [decayed, susceptible, _] = run(0.0, 1.5, t);
            assert!((decayed / (-1.5 * t).exp() - 1.0).abs() <= error_bound(0.0, 1.5, t, PROMISED));
            assert_eq!(susceptible, N - 1.0);
        }
    }

    #[test]
    fn edges_of_the_domain() {
        let outcome = |x: [f64; 5]| {
            let mut out = [f64::NAN; 3];
            Sir.run(&x, &mut out).map(|()| out).map_err(|error| error.to_string())
        };
        assert_eq!(outcome([2.0, 0.5, 0.0, 100.0, 3.0]), Ok([3.0, 97.0, 0.0]));
        assert_eq!(outcome([2.0, 0.5, 14.0, 100.0, 0.0]), Ok([0.0, 100.0, 0.0]));
        assert_eq!(outcome([2.0, 0.5, 14.0, 100.0, 100.0]).unwrap()[1], 0.0);
        // Long after the epidemic: I has underflowed at most to zero.
        assert!(outcome([3.0, 0.9, 1e6, N, 1.0]).unwrap().iter().all(|persons| *persons >= 0.0));

        assert!(outcome([-2.0, 0.5, 14.0, N, 1.0]).unwrap_err().starts_with("beta: -2 is negative"));
        assert!(outcome([2.0, 0.5, -1.0, N, 1.0]).unwrap_err().starts_with("t: -1 is negative"));
        assert!(outcome([2.0, 0.5, 1.0, 10.0, 11.0]).unwrap_err().starts_with("initial: 11 infected"));
        assert!(outcome([2.0, 0.5, 1.0, 0.0, 0.0]).unwrap_err().starts_with("initial: 0 infected"));
        assert!(outcome([1e300, 1.0, 1e300, N, 1.0]).unwrap_err().starts_with("simulator sir: beta = 1e300"));
    }

    #[test]
    fn runs_are_repeatable() {
        assert_eq!(run(1.6, 0.4, 14.0), run(1.6, 0.4, 14.0));
    }
}
