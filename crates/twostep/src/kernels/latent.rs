//! Integrals over a normal error of eta that the measurements of a group share, by Gauss-Hermite quadrature around its mode, for many
//! groups and draws at once.

use super::{dispatch, exp, ln};

/// Cells that are computed together.
const LANES: usize = 8;

/// Newton's steps to the mode, from where the values alone would have it.
const STEPS: usize = 2;

/// Nodes of Gauss and Hermite that are not negative, with their weights: those at both ends of an error are a thousandth of the
/// middle one's.
const NODES: [(f64, f64); 4] = [
    (0.0, 0.810_264_617_556_807_3),
    (0.816_287_882_858_964_6, 0.425_607_252_610_127_8),
    (1.673_551_628_767_471, 0.054_515_582_819_127_03),
    (2.651_961_356_835_233, 0.000_971_781_245_099_519_2),
];

/// `1 / sqrt(pi)`.
const INVERSE_ROOT_OF_PI: f64 = 0.564_189_583_547_756_3;

/// The log-likelihood of a group at one eta.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Curve {
    /// Its value.
    pub log: f64,
    /// Its derivative.
    pub by_eta: f64,
    /// About how much it bends there: positive, and Fisher's information where that is to be had.
    pub information: f64,
    /// Derivative by the unknown scale.
    pub by_scale: f64,
}

/// Pairs of a group and an `eta + e` with `e ~ N(0, sd^2)`.
#[derive(Clone, Copy, Debug)]
pub struct Cells<'a> {
    /// The group of each cell.
    pub group: &'a [usize],
    /// Its eta.
    pub eta: &'a [f64],
    /// Sd of its error.
    pub sds: &'a [f64],
}

/// Logarithms of the integrals by cell and, where they are asked for, their derivatives.
#[derive(Clone, Debug, Default)]
pub struct Integrals {
    /// Whether derivatives are asked for.
    pub has_derivatives: bool,
    /// What a family makes of its groups before it integrates.
    pub(crate) sums: Vec<[f64; 2]>,
    /// The logarithms.
    pub log: Vec<f64>,
    /// Derivatives by eta.
    pub by_eta: Vec<f64>,
    /// Derivatives by the unknown scale.
    pub by_scale: Vec<f64>,
    /// Derivatives by the logarithm of the error's sd.
    pub by_log_sd: Vec<f64>,
}

/// `out.log[i] = log int N(e; 0, sds[i]^2) exp(curve(g, of(g), eta[i] + e).log) de` with `g = group[i]`, which takes the place of what was
/// there. Numbers `of` a group are lanes of registers, which a closure cannot look up by itself.
///
/// `start(g, of(g))` is where the values of group `g` alone would have eta, or NaN where they do not say. The error is that of seven nodes
/// around the mode: none for a normal density, and next to none for one of a single mode.
#[inline(always)]
pub(crate) fn integrate<const K: usize>(
    of: impl Fn(usize) -> [f64; K] + Copy,
    curve: impl Fn(usize, [f64; K], f64) -> Curve + Copy,
    start: impl Fn(usize, [f64; K]) -> f64 + Copy,
    cells: &Cells<'_>,
    out: &mut Integrals,
) {
    let n = cells.eta.len();
    for values in [&mut out.log, &mut out.by_eta, &mut out.by_scale, &mut out.by_log_sd] {
        values.resize(n, 0.0);
    }
    match out.has_derivatives {
        true => run::<true, K>(of, curve, start, cells, out),
        false => run::<false, K>(of, curve, start, cells, out),
    }
}

#[inline(always)]
fn run<const DERIVATIVES: bool, const K: usize>(
    of: impl Fn(usize) -> [f64; K] + Copy,
    curve: impl Fn(usize, [f64; K], f64) -> Curve + Copy,
    start: impl Fn(usize, [f64; K]) -> f64 + Copy,
    cells: &Cells<'_>,
    out: &mut Integrals,
) {
    // Farther than this from one step to the next, in sds of the error, the curve is not what it was.
    const FARTHEST: f64 = 2.0;
    // Terms of a quadrature around what is no mode after all: large, and finite.
    const LARGEST: f64 = 600.0;
    const LEAST: f64 = -700.0;
    let n = cells.eta.len();
    dispatch(
        #[inline(always)]
        || {
            for first in (0..n).step_by(LANES) {
                let count = LANES.min(n - first);
                // Lanes without a cell of their own repeat the first.
                let (mut eta, mut sd) = ([cells.eta[first]; LANES], [cells.sds[first]; LANES]);
                let mut group = [cells.group[first]; LANES];
                eta[..count].copy_from_slice(&cells.eta[first..first + count]);
                sd[..count].copy_from_slice(&cells.sds[first..first + count]);
                group[..count].copy_from_slice(&cells.group[first..first + count]);
                let mut numbers = [[0.0; LANES]; K];
                for s in 0..LANES {
                    let own = of(group[s]);
                    (0..K).for_each(|k| numbers[k][s] = own[k]);
                }
                let curve = |s: usize, eta: f64| curve(group[s], std::array::from_fn(|k| numbers[k][s]), eta);
                // Errors in their sds.
                let mut mode = [0.0; LANES];
                for s in 0..LANES {
                    let from = start(group[s], std::array::from_fn(|k| numbers[k][s]));
                    let (from, is_known) = if from.is_finite() { (from, 1.0) } else { (eta[s], 0.0) };
                    let known = is_known * curve(s, from).information;
                    mode[s] = (from - eta[s]) * sd[s] * known / (sd[s] * sd[s]).mul_add(known, 1.0);
                }
                for _ in 0..STEPS {
                    for s in 0..LANES {
                        let Curve { by_eta, information, .. } = curve(s, sd[s].mul_add(mode[s], eta[s]));
                        let aim = sd[s] * (information * sd[s]).mul_add(mode[s], by_eta);
                        let step = aim / (sd[s] * sd[s]).mul_add(information, 1.0) - mode[s];
                        let step = if step > FARTHEST { FARTHEST } else { step };
                        mode[s] += if step < -FARTHEST { -FARTHEST } else { step };
                    }
                }
                let (mut width, mut top) = ([0.0; LANES], [0.0; LANES]);
                for s in 0..LANES {
                    let Curve { log, information, .. } = curve(s, sd[s].mul_add(mode[s], eta[s]));
                    width[s] = (sd[s] * sd[s]).mul_add(information, 1.0).sqrt().recip();
                    top[s] = log - 0.5 * mode[s] * mode[s];
                }
                let mut total = [0.0; LANES];
                let (mut by_eta, mut by_scale, mut by_log_sd) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
                let (mut first_moment, mut second_moment) = ([0.0; LANES], [0.0; LANES]);
                for (i, (node, weight)) in NODES.into_iter().enumerate() {
                    for sign in if i == 0 { &[1.0][..] } else { &[1.0, -1.0] } {
                        for s in 0..LANES {
                            let e = (sign * std::f64::consts::SQRT_2 * node).mul_add(width[s], mode[s]);
                            let at = curve(s, sd[s].mul_add(e, eta[s]));
                            let l = at.log - 0.5 * e * e - top[s] + node * node;
                            // What has no density has no share, either.
                            let l = if l > LEAST { l } else { LEAST };
                            let share = weight * exp(if l < LARGEST { l } else { LARGEST });
                            total[s] += share;
                            if DERIVATIVES {
                                by_eta[s] = share.mul_add(at.by_eta, by_eta[s]);
                                by_scale[s] = share.mul_add(at.by_scale, by_scale[s]);
                                by_log_sd[s] = (share * sd[s] * at.by_eta).mul_add(e, by_log_sd[s]);
                                first_moment[s] = share.mul_add(e, first_moment[s]);
                                second_moment[s] = (share * e).mul_add(e, second_moment[s]);
                            }
                        }
                    }
                }
                let mut log = [0.0; LANES];
                for s in 0..LANES {
                    log[s] = top[s] + ln(total[s] * width[s] * INVERSE_ROOT_OF_PI);
                }
                out.log[first..first + count].copy_from_slice(&log[..count]);
                if DERIVATIVES {
                    for s in 0..count {
                        // By parts, means of the curve's slope are moments of the error, which are known better where it is the wider one.
                        let is_wide = width[s] * width[s] < 0.5;
                        let by_error = (first_moment[s] / sd[s], second_moment[s] - total[s]);
                        let by_slope = (by_eta[s], by_log_sd[s]);
                        let (by_eta, by_log_sd) = if is_wide { by_error } else { by_slope };
                        out.by_eta[first + s] = by_eta / total[s];
                        out.by_scale[first + s] = by_scale[s] / total[s];
                        out.by_log_sd[first + s] = by_log_sd / total[s];
                    }
                }
            }
        },
    );
}
