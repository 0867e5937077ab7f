//! k-means over T-draws, with distances in the surrogate's output: S draws to L weighted ones.

use super::{TPosterior, output_draws};
use crate::draws::{Draws, pick_weighted};
use crate::matrix::Matrix;
use crate::simulate::design;
use crate::special::log_sum_exp;
use crate::stream::Stream;
use crate::surrogate::{InputScale, Scratch};
use rayon::prelude::*;

/// What stands for a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Representative {
    /// The mean of its draws (the paper's), which discards the spread within the cluster.
    #[default]
    Centroid,
    /// The draw nearest to that mean.
    Draw,
}

/// Inputs at which surrogates are compared.
const COMPARISON_POINTS: usize = 128;
/// Independent starts; the best is kept.
const RESTARTS: usize = 8;
/// Lloyd iterations of one start.
const MAX_ITERATIONS: usize = 100;

/// Reduces the draws to `n_clusters` weighted ones.
///
/// Two draws are near when their surrogates are near over the input domain (the mean squared difference of eta at Halton
/// points), and, where `sigma_a` is propagated, their approximation errors too; so units of the parameters do not matter.
pub fn cluster(
    posterior: &TPosterior,
    scales: &[InputScale],
    n_clusters: usize,
    representative: Representative,
    sigma_a: bool,
    stream: Stream,
) -> Draws {
    let draws = &posterior.draws;
    let features = features(posterior, scales, sigma_a);
    let weights = draws.weights();
    let members = partition(&features, &weights, n_clusters, RESTARTS, stream);
    let log_weights: Vec<f64> =
        members.iter().map(|m| log_sum_exp(&m.iter().map(|&s| draws.log_weights()[s]).collect::<Vec<_>>())).collect();
    match representative {
        Representative::Centroid => {
            let values = Matrix::from_fn(draws.names().len(), members.len(), |p, l| {
                let mass: f64 = members[l].iter().map(|&s| weights[s]).sum();
                members[l].iter().map(|&s| weights[s] * draws.values()[(p, s)]).sum::<f64>() / mass
            });
            Draws::weighted(draws.names().to_vec(), values, log_weights)
        }
        Representative::Draw => {
            let nearest: Vec<usize> = members
                .iter()
                .map(|m| {
                    let centre = centre(&features, &weights, m);
                    *m.iter()
                        .min_by(|&&a, &&b| {
                            distance(features.row(a), &centre).total_cmp(&distance(features.row(b), &centre))
                        })
                        .expect("clusters without members were dropped")
                })
                .collect();
            draws.select(&nearest, log_weights)
        }
    }
}

/// k-means of the rows of `features`, which count by their weights: the members of every cluster that has any, by the best of
/// some starts.
pub fn partition(
    features: &Matrix,
    weights: &[f64],
    n_clusters: usize,
    starts: usize,
    stream: Stream,
) -> Vec<Vec<usize>> {
    let best = (0..starts.max(1))
        .into_par_iter()
        .map(|start| lloyd(features, weights, n_clusters, stream.at(start as u64)))
        .collect::<Vec<_>>()
        .into_iter()
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .expect("at least one start");
    let members = (0..n_clusters).map(|l| (0..features.rows()).filter(|&s| best.0[s] == l).collect());
    members.filter(|m: &Vec<usize>| !m.is_empty()).collect()
}

/// One row per draw: eta of every output over the domain, each output in units of its own spread.
fn features(posterior: &TPosterior, scales: &[InputScale], sigma_a: bool) -> Matrix {
    let unit = design::unit_points(design::Method::Halton, COMPARISON_POINTS, scales.len(), Stream::root(0))
        .unwrap_or_else(|_| vec![vec![0.5; scales.len()]]);
    let x = Matrix::from_fn(unit.len(), scales.len(), |i, d| scales[d].at_fraction(unit[i][d]));
    let n_draws = posterior.draws.n_draws();
    let mut columns: Vec<Vec<f64>> = Vec::new();
    for (o, output) in posterior.outputs.iter().enumerate() {
        let (coefficients, error) = output_draws(&posterior.outputs, posterior.draws.values(), o);
        let mut eta = Matrix::default();
        let own = Matrix::from_fn(x.rows(), output.n_inputs, |i, d| x[(i, d)]);
        output.surrogate.predict(&own, &coefficients, &mut eta, &mut Scratch::default());
        let mean = eta.data().iter().sum::<f64>() / eta.data().len() as f64;
        let spread = (eta.data().iter().map(|e| (e - mean).powi(2)).sum::<f64>() / eta.data().len() as f64).sqrt();
        let unit = if spread > 0.0 { spread * (eta.rows() as f64).sqrt() } else { 1.0 };
        columns.extend((0..eta.rows()).map(|i| eta.row(i).iter().map(|e| e / unit).collect()));
        if sigma_a {
            // `eta` is before the affine map, `error` after it.
            let unit = output.affine.1 * if spread > 0.0 { spread } else { 1.0 };
            match output.surrogate.error_field() {
                None => columns.push(error.iter().map(|e| e / unit).collect()),
                Some(_) => {
                    let (errors, unit) =
                        (output.error_sds(&own, &coefficients, &error), unit * (own.rows() as f64).sqrt());
                    columns.extend((0..own.rows()).map(|i| errors.row(i).iter().map(|e| e / unit).collect()));
                }
            }
        }
    }
    Matrix::from_fn(n_draws, columns.len(), |s, f| columns[f][s])
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum()
}

fn centre(features: &Matrix, weights: &[f64], members: &[usize]) -> Vec<f64> {
    let mass: f64 = members.iter().map(|&s| weights[s]).sum();
    (0..features.cols()).map(|f| members.iter().map(|&s| weights[s] * features[(s, f)]).sum::<f64>() / mass).collect()
}

/// Assignment of every draw and the summed squared distance, from a k-means++ start [Arthur 2007].
fn lloyd(features: &Matrix, weights: &[f64], n_clusters: usize, stream: Stream) -> (Vec<usize>, f64) {
    let n = features.rows();
    let mut rng = stream.rng();
    let mut centres: Vec<Vec<f64>> = vec![features.row(pick_weighted(weights, &mut rng)).to_vec()];
    let mut nearest: Vec<f64> = (0..n).map(|s| distance(features.row(s), &centres[0])).collect();
    while centres.len() < n_clusters {
        let chances: Vec<f64> = nearest.iter().zip(weights).map(|(d, w)| d * w).collect();
        let chosen = features.row(pick_weighted(&chances, &mut rng)).to_vec();
        for s in 0..n {
            nearest[s] = nearest[s].min(distance(features.row(s), &chosen));
        }
        centres.push(chosen);
    }
    let mut assignment = vec![usize::MAX; n];
    let mut total = f64::INFINITY;
    for _ in 0..MAX_ITERATIONS {
        let found: Vec<(usize, f64)> = (0..n)
            .map(|s| {
                centres
                    .iter()
                    .enumerate()
                    .map(|(l, c)| (l, distance(features.row(s), c)))
                    .fold((0, f64::INFINITY), |best, here| if here.1 < best.1 { here } else { best })
            })
            .collect();
        total = found.iter().zip(weights).map(|((_, d), w)| d * w).sum();
        let moved = found.iter().zip(&assignment).any(|((l, _), old)| l != old);
        assignment = found.into_iter().map(|(l, _)| l).collect();
        if !moved {
            break;
        }
        for (l, own) in centres.iter_mut().enumerate() {
            let members: Vec<usize> = (0..n).filter(|&s| assignment[s] == l).collect();
            if !members.is_empty() {
                *own = centre(features, weights, &members);
            }
        }
    }
    (assignment, total)
}
