//! Public test functions, and how well a surrogate of one predicts it.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, unreachable_pub, reason = "each test binary uses some of the helpers")]

use rand::RngExt;
use std::f64::consts::PI;
use twostep::matrix::Matrix;
use twostep::monitor::Silent;
use twostep::prior::Marginal;
use twostep::simulate::design::{Method, unit_points};
use twostep::stream::Stream;
use twostep::surrogate::{InputScale, Scratch, SigmaA, SurrogateKind, SurrogateSpec};
use twostep::train::{OutputTask, TPosterior, TrainSpec, TrainingSet, train};

/// A function of inputs between bounds.
pub struct Function {
    pub bounds: Vec<(f64, f64)>,
    pub value: fn(&[f64]) -> f64,
}

impl Function {
    fn of_unit(&self, point: &[f64]) -> Vec<f64> {
        self.bounds.iter().zip(point).map(|((lower, upper), u)| lower + u * (upper - lower)).collect()
    }

    /// Trained with so many Sobol' points.
    pub fn trained(&self, kind: SurrogateKind, runs: usize) -> TPosterior {
        let sigma_a = SigmaA::Prior("exponential(1)".parse::<Marginal>().unwrap());
        self.trained_as(&SurrogateSpec { kind, sigma_a, standardise: true }, runs)
    }

    pub fn trained_as(&self, spec: &SurrogateSpec, runs: usize) -> TPosterior {
        let dim = self.bounds.len();
        let points = unit_points(Method::Sobol, runs, dim, Stream::root(1)).unwrap();
        let inputs: Vec<Vec<f64>> = points.iter().map(|point| self.of_unit(point)).collect();
        let y = inputs.iter().map(|x| (self.value)(x)).collect();
        let names = (0..dim).map(|d| format!("x{d}")).collect();
        let set = TrainingSet::new(names, Matrix::from_fn(runs, dim, |i, d| inputs[i][d]), vec![("y".into(), y)]);
        let scales: Vec<InputScale> =
            self.bounds.iter().map(|&(lower, upper)| InputScale { lower, upper, log: false }).collect();
        let task = OutputTask { name: "y", spec, log: false, affine: None, n_inputs: dim };
        train(&set, &[task], &scales, &TrainSpec::default(), None, Stream::root(7), &Silent).unwrap()
    }

    /// Root mean square error of the posterior mean, how often 95 % intervals hold the value, and the log density of each value, at
    /// independent points.
    pub fn tested(&self, posterior: &TPosterior) -> (f64, f64, Vec<f64>) {
        const POINTS: usize = 10_000;
        let mut rng = Stream::root(99).rng();
        let dim = self.bounds.len();
        let inputs: Vec<Vec<f64>> =
            (0..POINTS).map(|_| self.of_unit(&(0..dim).map(|_| rng.random::<f64>()).collect::<Vec<_>>())).collect();
        let (coefficients, sigma_a) = posterior.output_draws(0);
        let (shift, factor) = posterior.outputs[0].affine;
        let (mut squares, mut inside, mut scores) = (0.0, 0, Vec::with_capacity(POINTS));
        let mut scratch = Scratch::default();
        for chunk in inputs.chunks(500) {
            let x = Matrix::from_fn(chunk.len(), dim, |i, d| chunk[i][d]);
            let mut eta = Matrix::default();
            posterior.outputs[0].surrogate.predict(&x, &coefficients, &mut eta, &mut scratch);
            for (i, x) in chunk.iter().enumerate() {
                let value = (self.value)(x);
                let draws: Vec<f64> = eta.row(i).iter().map(|eta| shift + factor * eta).collect();
                let n = draws.len() as f64;
                squares += (draws.iter().sum::<f64>() / n - value).powi(2);
                // The probability below the value of a mixture of normals.
                let below = |(mean, sd): (&f64, &f64)| twostep::special::normal_cdf((value - mean) / sd);
                let below = draws.iter().zip(&sigma_a).map(below).sum::<f64>() / n;
                inside += usize::from((0.025..=0.975).contains(&below));
                let log_density = |(mean, sd): (&f64, &f64)| -0.5 * ((value - mean) / sd).powi(2) - sd.ln();
                let terms: Vec<f64> = draws.iter().zip(&sigma_a).map(log_density).collect();
                scores.push(twostep::special::log_sum_exp(&terms) - (n * (2.0 * PI).sqrt()).ln());
            }
        }
        ((squares / POINTS as f64).sqrt(), inside as f64 / POINTS as f64, scores)
    }
}

pub fn ishigami() -> Function {
    Function {
        bounds: vec![(-PI, PI); 3],
        value: |x| x[0].sin() + 7.0 * x[1].sin().powi(2) + 0.1 * x[2].powi(4) * x[0].sin(),
    }
}

pub fn sobol_g() -> Function {
    const A: [f64; 8] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0];
    Function {
        bounds: vec![(0.0, 1.0); 8],
        value: |x| x.iter().zip(A).map(|(x, a)| ((4.0 * x - 2.0).abs() + a) / (1.0 + a)).product(),
    }
}

pub fn borehole() -> Function {
    Function {
        bounds: vec![
            (0.05, 0.15),
            (100.0, 50_000.0),
            (63_070.0, 115_600.0),
            (990.0, 1110.0),
            (63.1, 116.0),
            (700.0, 820.0),
            (1120.0, 1680.0),
            (9855.0, 12_045.0),
        ],
        value: |x| {
            let log_ratio = (x[1] / x[0]).ln();
            let resistance = 2.0 * x[6] * x[2] / (log_ratio * x[0] * x[0] * x[7]);
            2.0 * PI * x[2] * (x[3] - x[5]) / (log_ratio * (1.0 + resistance + x[2] / x[4]))
        },
    }
}

pub fn friedman() -> Function {
    Function {
        bounds: vec![(0.0, 1.0); 5],
        value: |x| 10.0 * (PI * x[0] * x[1]).sin() + 20.0 * (x[2] - 0.5).powi(2) + 10.0 * x[3] + 5.0 * x[4],
    }
}

pub fn branin() -> Function {
    Function {
        bounds: vec![(-5.0, 10.0), (0.0, 15.0)],
        value: |x| {
            let square = x[1] - 5.1 / (4.0 * PI * PI) * x[0] * x[0] + 5.0 / PI * x[0] - 6.0;
            square * square + 10.0 * (1.0 - 1.0 / (8.0 * PI)) * x[0].cos() + 10.0
        },
    }
}

/// A circuit without a transformer.
pub fn otl_circuit() -> Function {
    Function {
        bounds: vec![(50.0, 150.0), (25.0, 70.0), (0.5, 3.0), (1.2, 2.5), (0.25, 1.2), (50.0, 300.0)],
        value: |x| {
            let base = 12.0 * x[1] / (x[0] + x[1]);
            let gain = x[5] * (x[4] + 9.0);
            (base + 0.74) * gain / (gain + x[2])
                + 11.35 * x[2] / (gain + x[2])
                + 0.74 * x[2] * gain / ((gain + x[2]) * x[3])
        },
    }
}

/// The cycle time of a piston.
pub fn piston() -> Function {
    Function {
        bounds: vec![
            (30.0, 60.0),
            (0.005, 0.020),
            (0.002, 0.010),
            (1000.0, 5000.0),
            (90_000.0, 110_000.0),
            (290.0, 296.0),
            (340.0, 360.0),
        ],
        value: |x| {
            let a = x[4] * x[1] + 19.62 * x[0] - x[3] * x[2] / x[1];
            let v = x[1] / (2.0 * x[3]) * ((a * a + 4.0 * x[3] * x[4] * x[2] * x[5] / x[6]).sqrt() - a);
            2.0 * PI * (x[0] / (x[3] + x[1] * x[1] * x[4] * x[2] * x[5] / (x[6] * v * v))).sqrt()
        },
    }
}

/// One input, with a step that no polynomial of a moderate degree follows.
pub fn step() -> Function {
    Function { bounds: vec![(-1.0, 1.0)], value: |x| (8.0 * x[0]).tanh() + 0.3 * x[0] }
}
