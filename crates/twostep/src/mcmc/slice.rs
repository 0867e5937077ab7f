//! Slice sampling of one variable [Neal 2003].

use rand::RngExt;
use rand::rngs::ChaCha8Rng;

/// Steps out of the first interval, and in towards where the variable was, at most: beyond, the density has no end.
const MOST: usize = 100;

/// Another value of a variable with this log density, which leaves it invariant: stepping out by `width`, then shrinkage.
pub(crate) fn sample(x: f64, width: f64, log_density: impl Fn(f64) -> f64, rng: &mut ChaCha8Rng) -> f64 {
    let level = log_density(x) + rng.random::<f64>().ln();
    let mut lower = x - width * rng.random::<f64>();
    let mut upper = lower + width;
    // Which side may step how often is decided beforehand, so that steps back are as probable.
    let below = (MOST as f64 * rng.random::<f64>()) as usize;
    for _ in 0..below {
        if log_density(lower) <= level {
            break;
        }
        lower -= width;
    }
    for _ in below..MOST - 1 {
        if log_density(upper) <= level {
            break;
        }
        upper += width;
    }
    for _ in 0..MOST {
        let next = lower + (upper - lower) * rng.random::<f64>();
        if log_density(next) > level {
            return next;
        }
        if next < x { lower = next } else { upper = next }
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Stream;

    /// A skewed density, in which a sign that is wrong shows: exponential in `exp(x)`, with mean of the logarithm `-gamma`.
    #[test]
    fn draws_have_the_moments_of_their_density() {
        const EULER: f64 = 0.577_215_664_901_532_9;
        let mut rng = Stream::root(3).rng();
        let (n, mut x) = (40_000, 0.0);
        let mut chain = Vec::with_capacity(n);
        for _ in 0..n {
            x = sample(x, 0.7, |x| x - x.exp(), &mut rng);
            chain.push(x);
        }
        let chains: Vec<Vec<f64>> = chain.chunks(n / 4).map(<[f64]>::to_vec).collect();
        let mean = chain.iter().sum::<f64>() / n as f64;
        let of_squares: Vec<Vec<f64>> =
            chains.iter().map(|chain| chain.iter().map(|x| (x + EULER).powi(2)).collect()).collect();
        let square = of_squares.iter().flatten().sum::<f64>() / n as f64;
        // Two comparisons at alpha = 1e-4: z = 4.06.
        let error = |of: &[Vec<f64>]| 4.06 * crate::mcmc::diagnostics::mcse_mean(of);
        assert!((mean + EULER).abs() < error(&chains), "{mean}");
        let variance = std::f64::consts::PI.powi(2) / 6.0;
        assert!((square - variance).abs() < error(&of_squares), "{square}");
    }
}
