//! The hot loops over draws, compiled once per instruction set and chosen at run time.

pub(crate) mod latent;
pub(crate) mod mixture;
pub(crate) mod panels;

use crate::matrix::Matrix;
use crate::special::{HALF_LN_TAU, log_mills};
use panels::Aligned;
use pulp::{Arch, NullaryFnOnce, Simd, WithSimd};

/// Draws handled together: eight AVX2 registers of four.
const BLOCK: usize = 32;

/// `1.5 * 2^52 + 1023`: adding it rounds to an integer n and leaves `n + 1023`, the exponent of 2^n, in the low mantissa bits.
const ROUND: f64 = 6_755_399_441_056_767.0;
// ln 2 in two parts: the first has trailing zeros, so n * LN2_HIGH is exact.
const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// `exp` is zero below.
const LEAST: f64 = -708.0;
/// `(exp(r) - 1 - r) / r^2`, the highest power first: the polynomial through it at Chebyshev nodes of |r| <= ln(2)/2 in 40 digits, with which
/// the exponential is off by 1.6e-17 of itself at most.
const EXP: [f64; 10] = [
    2.510_037_592_918_592_5e-8,
    2.762_007_600_563_138e-7,
    2.755_726_848_010_692_6e-6,
    2.480_152_132_210_459e-5,
    1.984_126_986_304_067_5e-4,
    1.388_888_891_719_689e-3,
    8.333_333_333_330_065e-3,
    4.166_666_666_662_416_4e-2,
    1.666_666_666_666_666_9e-1,
    0.500_000_000_000_000_1,
];

/// `exp(x)` by argument reduction and a polynomial, without branches, so that loops over it vectorise.
///
/// Within 2 ulp of the exact value for `-708 < x < 709`; 0 below, `exp(709)` above.
#[inline(always)]
pub(crate) fn exp(x: f64) -> f64 {
    let clamped = x.clamp(LEAST, 709.0);
    let shifted = clamped.mul_add(std::f64::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, clamped));
    let mut p = EXP[0];
    let mut k = 1;
    while k < EXP.len() {
        p = p.mul_add(r, EXP[k]);
        k += 1;
    }
    let p = p.mul_add(r * r, r) + 1.0;
    let scale = f64::from_bits(shifted.to_bits() << 52);
    // A choice of the factor, not of the result: of that the compiler would make a branch around all of the above.
    p * if x < LEAST { 0.0 } else { scale }
}

/// [`exp`] of `N` registers of numbers that are not above 709, in steps that do not wait for each other.
#[inline(always)]
fn exp_registers<S: Simd, const N: usize>(simd: S, x: &mut [S::f64s; N]) {
    let (mut r, mut p) = ([simd.splat_f64s(0.0); N], [simd.splat_f64s(EXP[0]); N]);
    let mut scale = [Aligned([0.0; WIDEST]); N];
    for j in 0..N {
        let clamped = simd.max_f64s(x[j], simd.splat_f64s(LEAST));
        let shifted = simd.mul_add_f64s(clamped, simd.splat_f64s(std::f64::consts::LOG2_E), simd.splat_f64s(ROUND));
        let n = simd.sub_f64s(shifted, simd.splat_f64s(ROUND));
        r[j] =
            simd.mul_add_f64s(n, simd.splat_f64s(-LN2_LOW), simd.mul_add_f64s(n, simd.splat_f64s(-LN2_HIGH), clamped));
        S::as_mut_simd_f64s(scale[j].as_mut_slice()).0[0] = shifted;
    }
    for scale in &mut scale {
        for scale in &mut scale.0 {
            *scale = f64::from_bits(scale.to_bits() << 52);
        }
    }
    let mut k = 1;
    while k < EXP.len() {
        for j in 0..N {
            p[j] = simd.mul_add_f64s(p[j], r[j], simd.splat_f64s(EXP[k]));
        }
        k += 1;
    }
    for j in 0..N {
        let p = simd.add_f64s(simd.mul_add_f64s(p[j], simd.mul_f64s(r[j], r[j]), r[j]), simd.splat_f64s(1.0));
        let scale = S::as_simd_f64s(scale[j].as_slice()).0[0];
        let scale = simd.select_f64s(simd.less_than_f64s(x[j], simd.splat_f64s(LEAST)), simd.splat_f64s(0.0), scale);
        x[j] = simd.mul_f64s(p, scale);
    }
}

/// Numbers in the widest register.
const WIDEST: usize = 8;

/// `ln(x)` for positive normal x, without branches, so that loops over it vectorise; within 3 ulp or 1e-16, whichever is more.
#[inline(always)]
pub(crate) fn ln(x: f64) -> f64 {
    // x = 2^e m with m between sqrt(1/2) and sqrt(2): subtracting the bits of sqrt(1/2) leaves e in the exponent field.
    const HALF_ROOT: u64 = 0x3FE6_A09E_667F_3BCD;
    let shifted = x.to_bits().wrapping_sub(HALF_ROOT);
    let m = f64::from_bits((shifted & 0x000F_FFFF_FFFF_FFFF).wrapping_add(HALF_ROOT));
    // The exponent as a double: put into the low mantissa bits of 2^52 + 1023.
    let biased = f64::from_bits((((shifted as i64) >> 52).wrapping_add(1023) as u64) | 0x4330_0000_0000_0000);
    let e = biased - (4_503_599_627_370_496.0 + 1023.0);
    // ln m = 2 atanh(s) with |s| <= 0.172: the first omitted term, 2 s^23/23, is below 3e-19.
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut p = 1.0 / 21.0_f64;
    let mut k = 19;
    while k >= 3 {
        p = p.mul_add(square, 1.0 / k as f64);
        k -= 2;
    }
    e.mul_add(std::f64::consts::LN_2, 2.0 * s + 2.0 * s * square * p)
}

/// Terms of the Chebyshev series of [`log_normal_cdf`]: the last is below 1e-16.
const TERMS: usize = 36;
/// Where half of the series' variable is used up: about the scale on which the tail takes its limiting form.
const SCALE: f64 = 3.0;

/// Chebyshev coefficients of `ln((1 - Phi(y)) / phi(y)) - ln u` in `v = 2u - 1`, `u = SCALE / (SCALE + y)`: smooth for all
/// `y >= 0`, infinity included.
fn tail_series() -> &'static [f64; TERMS] {
    static SERIES: std::sync::OnceLock<[f64; TERMS]> = std::sync::OnceLock::new();
    SERIES.get_or_init(|| {
        let n = TERMS as f64;
        let angle = |k: usize| std::f64::consts::PI * (k as f64 + 0.5) / n;
        let value = |k: usize| {
            let u = 0.5 * (angle(k).cos() + 1.0);
            log_mills(SCALE / u - SCALE) - u.ln()
        };
        let values: [f64; TERMS] = std::array::from_fn(value);
        std::array::from_fn(|j| 2.0 / n * (0..TERMS).map(|k| values[k] * (j as f64 * angle(k)).cos()).sum::<f64>())
    })
}

/// Values for which a series is summed together: four registers of each of its three arrays.
const LANES: usize = 16;

/// `ln(1 - Phi(|z|))` of every lane, without branches; the error is a few ulp of the result or of 1, whichever is more.
#[inline(always)]
fn log_tail(z: &[f64; LANES], series: &[f64; TERMS]) -> [f64; LANES] {
    // Beyond, the square alone decides, and an infinite one would leave a NaN.
    let (mut y, mut u, mut twice) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    for lane in 0..LANES {
        y[lane] = if z[lane].abs() < 1e100 { z[lane].abs() } else { 1e100 };
        u[lane] = SCALE / (SCALE + y[lane]);
        twice[lane] = 4.0 * u[lane] - 2.0;
    }
    let (mut here, mut before) = ([0.0; LANES], [0.0; LANES]);
    let mut j = TERMS - 1;
    while j >= 1 {
        for lane in 0..LANES {
            let next = twice[lane].mul_add(here[lane], series[j] - before[lane]);
            (here[lane], before[lane]) = (next, here[lane]);
        }
        j -= 1;
    }
    let mut out = [0.0; LANES];
    for lane in 0..LANES {
        let mills = (0.5 * twice[lane]).mul_add(here[lane], 0.5 * series[0] - before[lane]);
        out[lane] = (mills + ln(u[lane])) - (0.5 * y[lane]).mul_add(y[lane], HALF_LN_TAU);
    }
    out
}

/// `ln Phi(z)` of every lane, as precise.
#[inline(always)]
fn log_normal_cdf(z: &[f64; LANES], series: &[f64; TERMS]) -> [f64; LANES] {
    let mut out = log_tail(z, series);
    for lane in 0..LANES {
        let above = ln(1.0 - exp(out[lane]));
        out[lane] = if z[lane] < 0.0 { out[lane] } else { above };
    }
    out
}

/// `sum_s weight[s] Phi((x - mean[s]) / sd[s])` and its derivative by x, with `inverse_sd = 1 / sd`; lanes in a fixed order.
pub(crate) fn normal_mixture(x: f64, weight: &[f64], mean: &[f64], inverse_sd: &[f64]) -> (f64, f64) {
    let series = tail_series();
    dispatch(
        #[inline(always)]
        || {
            let (mut below, mut density) = ([0.0; LANES], [0.0; LANES]);
            for ((weight, mean), inverse_sd) in
                weight.chunks(LANES).zip(mean.chunks(LANES)).zip(inverse_sd.chunks(LANES))
            {
                let (mut share, mut slope, mut z) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
                for (lane, ((weight, mean), inverse_sd)) in weight.iter().zip(mean).zip(inverse_sd).enumerate() {
                    share[lane] = *weight;
                    slope[lane] = weight * inverse_sd;
                    z[lane] = (x - mean) * inverse_sd;
                }
                let tail = log_tail(&z, series);
                for lane in 0..LANES {
                    let tail = exp(tail[lane]);
                    below[lane] += share[lane] * if z[lane] < 0.0 { tail } else { 1.0 - tail };
                    density[lane] += slope[lane] * exp((-0.5 * z[lane]).mul_add(z[lane], -HALF_LN_TAU));
                }
            }
            (below.iter().sum(), density.iter().sum())
        },
    )
}

/// `out[s] += log Phi((z - mu[s]) / sd(s))` with `sd(s)^2 = sd^2 + sigma_a[s]^2`.
pub(crate) fn add_log_cdf(z: f64, mu: &[f64], sd: f64, sigma_a: Option<&[f64]>, out: &mut [f64]) {
    let series = tail_series();
    dispatch(
        #[inline(always)]
        || {
            for (block, (out, mu)) in out.chunks_mut(LANES).zip(mu.chunks(LANES)).enumerate() {
                let (mut variance, mut scaled) = ([sd * sd; LANES], [0.0; LANES]);
                if let Some(sigma_a) = sigma_a {
                    for (v, a) in variance.iter_mut().zip(&sigma_a[block * LANES..]) {
                        *v = a.mul_add(*a, *v);
                    }
                }
                for ((scaled, mu), v) in scaled.iter_mut().zip(mu).zip(&variance) {
                    *scaled = (z - mu) / v.sqrt();
                }
                let log_cdf = log_normal_cdf(&scaled, series);
                for (out, l) in out.iter_mut().zip(&log_cdf) {
                    *out += l;
                }
            }
        },
    );
}

/// Nodes of a panel in the rule that integrates an sd out: two AVX2 registers of four.
pub(crate) const PANEL: usize = 8;
/// Log units below the largest term at which a term of a sum is nothing.
pub(crate) const NOTHING: f64 = 14.0;

/// `ln Phi` by cubics between [`LOWEST`] and zero's reach, `CELLS` cells of `1 / PER_UNIT` later; the error is at most
/// `h^4/384` times a fourth derivative that stays below 0.2: 5e-10.
struct LogCdfTable {
    /// Coefficients of each cell's cubic, by place within the cell.
    cubics: [[f64; 4]; CELLS],
}

const CELLS: usize = 768;
const PER_UNIT: f64 = 32.0;
const LOWEST: f64 = -16.0;

fn log_cdf_table() -> &'static LogCdfTable {
    static TABLE: std::sync::OnceLock<LogCdfTable> = std::sync::OnceLock::new();
    TABLE.get_or_init(|| {
        let node = |i: usize| {
            let z = LOWEST + i as f64 / PER_UNIT;
            let value = crate::special::log_normal_cdf(z);
            [value, (-0.5 * z * z - HALF_LN_TAU - value).exp() / PER_UNIT]
        };
        let cubic = |i: usize| {
            let ([f0, d0], [f1, d1]) = (node(i), node(i + 1));
            let rise = f1 - f0;
            [f0, d0, 3.0 * rise - 2.0 * d0 - d1, d0 + d1 - 2.0 * rise]
        };
        LogCdfTable { cubics: std::array::from_fn(cubic) }
    })
}

impl LogCdfTable {
    /// `out[k] += ln Phi(gap scale[k])`.
    #[inline(always)]
    fn add(&self, gap: f64, scale: &[f64; PANEL], out: &mut [f64; PANEL]) {
        // Adding 1.5 * 2^52 rounds to an integer and leaves it in the low mantissa bits.
        const ROUND: f64 = 6_755_399_441_055_744.0;
        let (mut x, mut least) = ([0.0; PANEL], 0.0);
        for lane in 0..PANEL {
            x[lane] = gap * scale[lane];
            least = if x[lane] < least { x[lane] } else { least };
        }
        if least < LOWEST {
            add_far_log_cdf(&x, out);
            return;
        }
        let mut cell = [0; PANEL];
        for lane in 0..PANEL {
            let place = (x[lane] - LOWEST) * PER_UNIT;
            let place = if place < CELLS as f64 { place } else { CELLS as f64 };
            let shifted = (place - 0.5) + ROUND;
            x[lane] = place - (shifted - ROUND);
            cell[lane] = shifted.to_bits() & 0x3FF;
        }
        let mut cubics = [[0.0; PANEL]; 4];
        for lane in 0..PANEL {
            let cubic = &self.cubics[(cell[lane] as usize).min(CELLS - 1)];
            for power in 0..4 {
                cubics[power][lane] = cubic[power];
            }
        }
        for lane in 0..PANEL {
            let bend = x[lane].mul_add(cubics[3][lane], cubics[2][lane]);
            out[lane] += x[lane].mul_add(x[lane].mul_add(bend, cubics[1][lane]), cubics[0][lane]);
        }
    }
}

/// `out[k] += ln Phi(z[k])` beyond the table.
#[inline(never)]
fn add_far_log_cdf(z: &[f64; PANEL], out: &mut [f64; PANEL]) {
    let mut padded = [0.0; LANES];
    padded[..PANEL].copy_from_slice(z);
    let series = tail_series();
    let exact = dispatch(
        #[inline(always)]
        || log_normal_cdf(&padded, series),
    );
    for lane in 0..PANEL {
        out[lane] += exact[lane];
    }
}

/// The log-likelihood of every draw at the nodes of an sd, a row of nodes per draw, or one row where all draws share it:
/// `base[k] + sum_c a_c[s, k] + b_c[s, k] residuals_c[s] + sum_i ln Phi((z_i - mu_i[s]) / sd[s, k])`.
pub(crate) struct NodeTerms<'a> {
    /// Log-weights of the nodes and all that is constant.
    pub(crate) base: &'a [f64],
    /// `a`, `b` and residual sums of each class.
    pub(crate) classes: &'a [(&'a Matrix, &'a Matrix, &'a [f64])],
    /// `1 / sd`.
    pub(crate) inverse_sd: &'a Matrix,
    /// Upper bounds `z` with their locations under every draw.
    pub(crate) bounds: &'a [(f64, &'a [f64])],
}

impl NodeTerms<'_> {
    /// The part of draw `s` without the bounds, which is never below the whole.
    #[inline(always)]
    fn classes(&self, s: usize, out: &mut [f64]) {
        out.copy_from_slice(self.base);
        for (a, b, residuals) in self.classes {
            let (a, b, residual) = (of_draw(a, s), of_draw(b, s), residuals[s]);
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out += b.mul_add(residual, *a);
            }
        }
    }

    /// Adds the bounds that lie below (or not below) their locations to a panel of nodes of draw `s`.
    #[inline(always)]
    fn add_bounds(&self, table: &LogCdfTable, s: usize, below: bool, scale: &[f64; PANEL], out: &mut [f64; PANEL]) {
        for (z, mu) in self.bounds {
            let gap = z - mu[s];
            if (gap < 0.0) == below {
                table.add(gap, scale, out);
            }
        }
    }
}

#[inline(always)]
fn of_draw(rows: &Matrix, s: usize) -> &[f64] {
    rows.row(if rows.rows() == 1 { 0 } else { s })
}

/// `out[s] = log sum_k exp(l_s,k)` over nodes in whole panels, without panels whose terms are nothing beside the largest;
/// good to one log unit where the integral lies below `floors[s]`.
///
/// `values` holds as many numbers as there are nodes.
pub(crate) fn log_integrals(terms: &NodeTerms<'_>, floors: &[f64], values: &mut [f64], out: &mut [f64]) {
    // Log units below the largest term where that is enough.
    const ROUGH: f64 = 1.0;
    let (table, log_nodes) = (log_cdf_table(), (values.len() as f64).ln());
    dispatch(
        #[inline(always)]
        || {
            for (s, out) in out.iter_mut().enumerate() {
                terms.classes(s, values);
                let (panels, _) = values.as_chunks_mut::<PANEL>();
                let (scales, _) = of_draw(terms.inverse_sd, s).as_chunks::<PANEL>();
                let (mut start, mut highest) = (0, f64::NEG_INFINITY);
                for (p, panel) in panels.iter().enumerate() {
                    let largest = largest(panel);
                    if largest > highest {
                        (start, highest) = (p, largest);
                    }
                }
                let nothing = if highest + log_nodes < floors[s] { ROUGH } else { NOTHING };
                let mut top = f64::NEG_INFINITY;
                // Bounds below their locations say less for smaller sds: this much at most from here downwards.
                let mut ceiling = 0.0;
                let (mut first, mut end) = (start, start);
                // From the best panel upwards, then from it downwards.
                for step in 0..panels.len() {
                    let up = step < panels.len() - start;
                    let p = if up { start + step } else { panels.len() - 1 - step };
                    let most = largest(&panels[p]) + if up { 0.0 } else { ceiling };
                    if most <= top - nothing {
                        panels[p] = [f64::NEG_INFINITY; PANEL];
                        continue;
                    }
                    let mut bounds = [0.0; PANEL];
                    terms.add_bounds(table, s, true, &scales[p], &mut bounds);
                    if p <= start {
                        ceiling = bounds[0];
                    }
                    terms.add_bounds(table, s, false, &scales[p], &mut bounds);
                    for lane in 0..PANEL {
                        panels[p][lane] += bounds[lane];
                    }
                    let here = largest(&panels[p]);
                    top = if here > top { here } else { top };
                    first = if p < first { p } else { first };
                    end = if p >= end { p + 1 } else { end };
                }
                let counted = &mut values[first * PANEL..end * PANEL];
                for value in counted.iter_mut() {
                    *value = exp(*value - top);
                }
                let mut sums = [0.0; PANEL];
                for panel in counted.as_chunks::<PANEL>().0 {
                    for lane in 0..PANEL {
                        sums[lane] += panel[lane];
                    }
                }
                let mut sum = 0.0;
                for lane in &sums {
                    sum += lane;
                }
                // Where every node excludes the data.
                *out = if top == f64::NEG_INFINITY { top } else { top + ln(sum) };
            }
        },
    );
}

/// Nodes of one draw that hold more than nothing of an integral known by its logarithm: the number of the first and, in
/// `out`, `exp(l_s,k - integral)` of each.
pub(crate) fn node_shares(terms: &NodeTerms<'_>, s: usize, integral: f64, out: &mut Vec<f64>) -> usize {
    let table = log_cdf_table();
    out.resize(terms.base.len(), 0.0);
    dispatch(
        #[inline(always)]
        || {
            terms.classes(s, out);
            let counts = |l: &f64| *l > integral - NOTHING;
            let first = out.iter().position(counts).unwrap_or(0);
            let end = out.iter().rposition(counts).map_or(0, |last| last + 1).max(first);
            out.copy_within(first..end, 0);
            out.truncate(end - first);
            let scales = &of_draw(terms.inverse_sd, s)[first..end];
            for (out, scale) in out.chunks_mut(PANEL).zip(scales.chunks(PANEL)) {
                let (mut values, mut padded) = ([0.0; PANEL], [1.0; PANEL]);
                padded[..scale.len()].copy_from_slice(scale);
                terms.add_bounds(table, s, true, &padded, &mut values);
                terms.add_bounds(table, s, false, &padded, &mut values);
                for (out, value) in out.iter_mut().zip(&values) {
                    *out = exp(*out + value - integral);
                }
            }
            first
        },
    )
}

#[inline(always)]
fn largest(values: &[f64; PANEL]) -> f64 {
    let mut out = values[0];
    for value in &values[1..] {
        out = if *value > out { *value } else { out };
    }
    out
}

/// `out[s] -= power * sum_i log(1 + scale(s) (z_i - mu_i[s])^2) + n log(v(s)) / 2` over n rows, with `v(s) = sd^2 +
/// sigma_a[s]^2` and `scale(s) = factor / v(s)`: one logarithm for eight rows.
pub(crate) fn subtract_log_products<'a>(
    rows: impl Iterator<Item = (f64, &'a [f64])> + Clone,
    (sd, sigma_a): (f64, Option<&[f64]>),
    factor: f64,
    power: f64,
    out: &mut [f64],
) {
    // Eight factors of at most this do not overflow.
    const LARGEST: f64 = 1e38;
    dispatch(
        #[inline(always)]
        || {
            for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                let start = block * BLOCK;
                let mut variance = [sd * sd; BLOCK];
                if let Some(sigma_a) = sigma_a {
                    for (v, a) in variance.iter_mut().zip(&sigma_a[start..]) {
                        *v = a.mul_add(*a, *v);
                    }
                }
                let mut scale = [0.0; BLOCK];
                for (scale, v) in scale.iter_mut().zip(&variance) {
                    *scale = factor / v;
                }
                let (mut product, mut count, mut sum) = ([1.0; BLOCK], 0_u32, [0.0; BLOCK]);
                for (z, mu) in rows.clone() {
                    for ((product, scale), mu) in product.iter_mut().zip(&scale).zip(&mu[start..]) {
                        let gap = z - mu;
                        let term = gap * gap * scale;
                        *product *= 1.0 + if term < LARGEST { term } else { LARGEST };
                    }
                    count += 1;
                    if count % 8 == 0 {
                        for (sum, product) in sum.iter_mut().zip(&mut product) {
                            *sum += ln(*product);
                            *product = 1.0;
                        }
                    }
                }
                let half = 0.5 * f64::from(count);
                for (((out, sum), product), v) in out.iter_mut().zip(&sum).zip(&product).zip(&variance) {
                    *out -= power * (sum + ln(*product)) + half * ln(*v);
                }
            }
        },
    );
}

/// `out[s] -= sum_i (z_i - mu_i[s])^2 / (2 v(s)) + n log(v(s)) / 2` over n rows, with `v(s) = sd^2 + sigma_a[s]^2`.
pub(crate) fn subtract_squares<'a>(
    rows: impl Iterator<Item = (f64, &'a [f64])> + Clone,
    (sd, sigma_a): (f64, Option<&[f64]>),
    out: &mut [f64],
) {
    dispatch(
        #[inline(always)]
        || {
            for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                let start = block * BLOCK;
                let (mut sum, mut count) = ([0.0; BLOCK], 0_u32);
                for (z, mu) in rows.clone() {
                    for (sum, mu) in sum.iter_mut().zip(&mu[start..]) {
                        let gap = z - mu;
                        *sum = gap.mul_add(gap, *sum);
                    }
                    count += 1;
                }
                let mut variance = [sd * sd; BLOCK];
                if let Some(sigma_a) = sigma_a {
                    for (v, a) in variance.iter_mut().zip(&sigma_a[start..]) {
                        *v = a.mul_add(*a, *v);
                    }
                }
                for ((out, sum), v) in out.iter_mut().zip(&sum).zip(&variance) {
                    *out -= 0.5 * (sum / v + f64::from(count) * ln(*v));
                }
            }
        },
    );
}

/// Runs `f` with the widest instructions this machine has.
#[inline(always)]
pub(crate) fn dispatch<R>(f: impl FnOnce() -> R) -> R {
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

/// Which instructions the kernels use here; results are bit-identical on one of them.
pub fn instruction_set() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    match Arch::new() {
        Arch::V4(_) => return "x86-64-v4",
        Arch::V3(_) => return "x86-64-v3",
        _ => {}
    }
    std::env::consts::ARCH
}

/// `out[s] = exp(a[s])`: infinite above 709, where [`exp`] itself stops growing.
pub(crate) fn exp_each(a: &[f64], out: &mut [f64]) {
    dispatch(
        #[inline(always)]
        || {
            for (out, &a) in out.iter_mut().zip(a) {
                let value = exp(a);
                *out = if a > 709.0 { f64::INFINITY } else { value };
            }
        },
    );
}

/// The smallest and the largest value; what is not a number is neither.
pub(crate) fn range(values: &[f64]) -> (f64, f64) {
    dispatch(
        #[inline(always)]
        || {
            let mut negative = [0.0; BLOCK];
            let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
            for chunk in values.chunks(BLOCK) {
                let negative = &mut negative[..chunk.len()];
                negative.iter_mut().zip(chunk).for_each(|(out, value)| *out = -value);
                low = -panels::lanes_max(negative, -low);
                high = panels::lanes_max(chunk, high);
            }
            (low, high)
        },
    )
}

/// `out[k] = sum_s rows[k * S + s] weights[s]` with `S = weights.len()`; lanes are summed in a fixed order.
pub(crate) fn dot_rows(rows: &[f64], weights: &[f64], out: &mut [f64]) {
    dispatch(
        #[inline(always)]
        || {
            let n = weights.len();
            for (out, row) in out.iter_mut().zip(rows.chunks_exact(n.max(1))) {
                *out = lanes_dot(row, weights);
            }
        },
    );
}

/// `sum_s a[s] b[s]`.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    dispatch(
        #[inline(always)]
        || lanes_dot(a, b),
    )
}

/// `table[k * S + s] = exp(table[k * S + s] - column[s])`; zero where `column[s]` is minus infinity.
pub(crate) fn exp_minus_columns(table: &mut [f64], column: &[f64]) {
    dispatch(
        #[inline(always)]
        || {
            for row in table.chunks_exact_mut(column.len()) {
                for (value, column) in row.iter_mut().zip(column) {
                    let shift = if *column == f64::NEG_INFINITY { 0.0 } else { *column };
                    *value = exp(*value - shift);
                }
            }
        },
    );
}

#[inline(always)]
fn lanes_dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sum = [0.0; BLOCK / 2];
    let (a_blocks, a_rest) = a.as_chunks::<{ BLOCK / 2 }>();
    let (b_blocks, b_rest) = b.as_chunks::<{ BLOCK / 2 }>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..BLOCK / 2 {
            sum[lane] = a[lane].mul_add(b[lane], sum[lane]);
        }
    }
    let rest = a_rest.iter().zip(b_rest).fold(0.0, |sum, (a, b)| a.mul_add(*b, sum));
    sum.iter().sum::<f64>() + rest
}

/// `values[s] += a + b rows[s]`.
pub(crate) fn add_affine(a: f64, b: f64, rows: &[f64], values: &mut [f64]) {
    dispatch(
        #[inline(always)]
        || {
            for (value, row) in values.iter_mut().zip(rows) {
                *value += b.mul_add(*row, a);
            }
        },
    );
}

/// `values[s] += sum_g alpha log v_g + (beta scatter_g + gamma (z_g - mu_g[s])^2) / v_g` with `v_g = base + sds_g[s]^2`; base is
/// positive, beta and gamma are not, and groups are `(z, scatter, mu, sds)`.
pub(crate) fn add_normals<'a>(
    &panels::Form { base, alpha, beta, gamma }: &panels::Form,
    groups: impl Iterator<Item = (f64, f64, &'a [f64], &'a [f64])> + Clone,
    values: &mut [f64],
) {
    // Fractions a / v are added up over a common denominator, four at a time; four factors of at most this leave room for the numerator.
    const LARGEST: f64 = 1e38;
    let inverse = base.recip();
    dispatch(
        #[inline(always)]
        || {
            for (block, out) in values.chunks_mut(BLOCK).enumerate() {
                let (start, n) = (block * BLOCK, out.len());
                let (mut above, mut below, mut sum) = ([0.0; BLOCK], [1.0; BLOCK], [0.0; BLOCK]);
                let mut count = 0_u32;
                for (z, scatter, mu, sds) in groups.clone() {
                    let (mu, sds, own) = (&mu[start..start + n], &sds[start..start + n], beta * scatter);
                    for s in 0..n {
                        let (gap, ratio) = (z - mu[s], (sds[s] * sds[s]).mul_add(inverse, 1.0));
                        let ratio = if ratio < LARGEST { ratio } else { LARGEST };
                        let term = (gamma * gap).mul_add(gap, own);
                        above[s] = term.mul_add(below[s], above[s] * ratio);
                        below[s] *= ratio;
                    }
                    count += 1;
                    if count.is_multiple_of(4) {
                        for s in 0..n {
                            sum[s] += (inverse * above[s] / below[s]) + alpha * ln(below[s]);
                            (above[s], below[s]) = (0.0, 1.0);
                        }
                    }
                }
                let of_base = alpha * f64::from(count) * base.ln();
                for s in 0..n {
                    out[s] += (sum[s] + of_base) + (inverse * above[s] / below[s] + alpha * ln(below[s]));
                }
            }
        },
    );
}

/// `values[s] += a[s] + b[s] rows[s]`.
pub(crate) fn add_products(a: &[f64], b: &[f64], rows: &[f64], values: &mut [f64]) {
    dispatch(
        #[inline(always)]
        || {
            for (((value, a), b), row) in values.iter_mut().zip(a).zip(b).zip(rows) {
                *value += b.mul_add(*row, *a);
            }
        },
    );
}

/// `values[s] += rows[s]^2`.
pub(crate) fn add_squares(rows: &[f64], values: &mut [f64]) {
    dispatch(
        #[inline(always)]
        || {
            for (value, row) in values.iter_mut().zip(rows) {
                *value = row.mul_add(*row, *value);
            }
        },
    );
}

/// `total[s] += log sum_k exp(table[k * S + s])` with `S = total.len()`.
pub(crate) fn add_log_sum_exp_columns(table: &[f64], total: &mut [f64]) {
    const WIDTH: usize = 64;
    dispatch(
        #[inline(always)]
        || {
            let n = total.len();
            for (start, total) in (0..n).step_by(WIDTH).zip(total.chunks_mut(WIDTH)) {
                let width = total.len();
                let (mut max, mut sum) = ([f64::NEG_INFINITY; WIDTH], [0.0; WIDTH]);
                for row in table.chunks_exact(n) {
                    for (max, value) in max[..width].iter_mut().zip(&row[start..start + width]) {
                        *max = if *value > *max { *value } else { *max };
                    }
                }
                // Where every node excludes the data the sum below is of exp(-inf) and its log is -inf, as it should be.
                for max in &mut max {
                    *max = if *max == f64::NEG_INFINITY { 0.0 } else { *max };
                }
                for row in table.chunks_exact(n) {
                    for ((sum, max), value) in sum[..width].iter_mut().zip(&max).zip(&row[start..start + width]) {
                        *sum += exp(*value - *max);
                    }
                }
                for ((total, max), sum) in total.iter_mut().zip(&max).zip(&sum) {
                    *total += max + sum.ln();
                }
            }
        },
    );
}

/// `log sum_k exp(a[k] + b[k] r)` and its derivative by `r`, lanes in a fixed order.
pub(crate) fn log_sum_exp_affine(a: &[f64], b: &[f64], r: f64) -> (f64, f64) {
    dispatch(
        #[inline(always)]
        || {
            let mut top = f64::NEG_INFINITY;
            for (a, b) in a.iter().zip(b) {
                let value = b.mul_add(r, *a);
                top = if value > top { value } else { top };
            }
            let (mut sum, mut slope) = ([0.0; 8], [0.0; 8]);
            let (a_blocks, a_rest) = a.as_chunks::<8>();
            let (b_blocks, b_rest) = b.as_chunks::<8>();
            for (a, b) in a_blocks.iter().zip(b_blocks) {
                for lane in 0..8 {
                    let term = exp(b[lane].mul_add(r, a[lane]) - top);
                    sum[lane] += term;
                    slope[lane] = term.mul_add(b[lane], slope[lane]);
                }
            }
            for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
                let term = exp(b.mul_add(r, *a) - top);
                sum[lane] += term;
                slope[lane] = term.mul_add(*b, slope[lane]);
            }
            let (mut total, mut derivative) = (0.0, 0.0);
            for lane in 0..8 {
                total += sum[lane];
                derivative += slope[lane];
            }
            (top + ln(total), derivative / total)
        },
    )
}

/// A scale of equal steps in `log(x + offset)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogScale {
    pub(crate) offset: f64,
    /// Logarithm at which it begins.
    pub(crate) start: f64,
    /// Steps per unit of the logarithm.
    pub(crate) steps: f64,
}

impl LogScale {
    /// The place of `x` in steps; `x` below zero is taken for zero.
    #[inline(always)]
    fn place(&self, x: f64) -> f64 {
        let x = if x < 0.0 { 0.0 } else { x };
        (ln(x + self.offset) - self.start) * self.steps
    }

    /// `out[s]` is the place of `x[s]`.
    pub(crate) fn places(&self, x: &[f64], out: &mut [f64]) {
        dispatch(
            #[inline(always)]
            || {
                for (out, x) in out.iter_mut().zip(x) {
                    *out = self.place(*x);
                }
            },
        );
    }
}

/// Cells between neighbouring numbers of few binary digits, from `offset` on: so narrow beside their distance from zero that they are
/// nearly equal steps of the logarithm, and found without one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BinaryScale {
    offset: f64,
    /// Digits after the leading one.
    digits: u32,
    /// Number of the first cell, counted from zero.
    first: u64,
    /// Number of cells.
    pub(crate) len: usize,
}

impl BinaryScale {
    /// For `0 <= x <= most`, each cell of `x + offset` at most as wide as a share `width` of where it begins.
    pub(crate) fn new(offset: f64, most: f64, width: f64) -> Self {
        let digits = (-width.log2()).ceil().clamp(0.0, 20.0) as u32;
        let number = |x: f64| x.to_bits() >> (f64::MANTISSA_DIGITS - 1 - digits);
        let first = number(offset);
        Self { offset, digits, first, len: (number(offset + most) - first) as usize + 1 }
    }

    /// The `x` at which cell `i` begins; the first one below or at zero.
    pub(crate) fn edge(&self, i: usize) -> f64 {
        f64::from_bits((self.first + i as u64) << (f64::MANTISSA_DIGITS - 1 - self.digits)) - self.offset
    }

    /// `out[s]` is the cubic of the cell that `x[s]` falls into, at its place within the cell, from 0 to 1: cells of draw `s` begin at
    /// `s * stride`. An `x` below zero is taken for zero, one beyond the last cell gives nonsense. Returns the largest of `x`.
    pub(crate) fn interpolate(&self, x: &[f64], cubics: &[[f64; 4]], stride: usize, out: &mut [f64]) -> f64 {
        dispatch(
            #[inline(always)]
            || {
                let mut largest = [f64::NEG_INFINITY; TOGETHER];
                let (blocks, rest) = x.as_chunks::<TOGETHER>();
                for (i, x) in blocks.iter().enumerate() {
                    let first = TOGETHER * i;
                    self.cubics(first, x, cubics, stride, &mut largest, &mut out[first..first + TOGETHER]);
                }
                if !rest.is_empty() {
                    let (first, mut padded) = (x.len() - rest.len(), [f64::NEG_INFINITY; TOGETHER]);
                    padded[..rest.len()].copy_from_slice(rest);
                    self.cubics(first, &padded, cubics, stride, &mut largest, &mut out[first..]);
                }
                panels::lanes_max(&largest, f64::NEG_INFINITY)
            },
        )
    }

    /// The cubics of single cells, but the cells are found for several draws at once.
    #[inline(always)]
    fn cubics(
        &self,
        first: usize,
        x: &[f64; TOGETHER],
        cubics: &[[f64; 4]],
        stride: usize,
        largest: &mut [f64; TOGETHER],
        out: &mut [f64],
    ) {
        const MANTISSA: u64 = (1 << (f64::MANTISSA_DIGITS - 1)) - 1;
        const ONE: u64 = 1.0_f64.to_bits();
        let (last, shift) = (self.len as i64 - 1, f64::MANTISSA_DIGITS - 1 - self.digits);
        let (mut place, mut cell) = ([0.0; TOGETHER], [0_usize; TOGETHER]);
        for lane in 0..TOGETHER {
            largest[lane] = if x[lane] > largest[lane] { x[lane] } else { largest[lane] };
            let x = if x[lane] < 0.0 { 0.0 } else { x[lane] };
            let bits = (x + self.offset).to_bits();
            let number = (bits >> shift) as i64 - self.first as i64;
            cell[lane] = if number < last { number } else { last } as usize;
            let within = f64::from_bits(((bits << self.digits) & MANTISSA) | ONE) - 1.0;
            // What is not a number stays so.
            place[lane] = 0.0_f64.mul_add(x, within);
        }
        for (lane, out) in out.iter_mut().enumerate() {
            let [c0, c1, c2, c3] = cubics[(first + lane) * stride + cell[lane]];
            *out = place[lane].mul_add(place[lane].mul_add(place[lane].mul_add(c3, c2), c1), c0);
        }
    }
}

/// Draws that are interpolated together.
const TOGETHER: usize = 8;

/// `total[s] += x[s]`, minus infinity where that is not a number: where terms of both signs overflow.
pub(crate) fn add_or_exclude(x: &[f64], total: &mut [f64]) {
    dispatch(
        #[inline(always)]
        || {
            for (total, x) in total.iter_mut().zip(x) {
                let sum = *total + x;
                *total = if sum.is_nan() { f64::NEG_INFINITY } else { sum };
            }
        },
    );
}

/// `sum_s exp(a[s] + b[s])`, lanes in a fixed order.
pub(crate) fn sum_exp(a: &[f64], b: &[f64]) -> f64 {
    dispatch(
        #[inline(always)]
        || {
            let mut sum = [0.0; 8];
            for (a, b) in a.chunks(BLOCK).zip(b.chunks(BLOCK)) {
                let mut terms = [f64::NEG_INFINITY; BLOCK];
                for (term, (a, b)) in terms.iter_mut().zip(a.iter().zip(b)) {
                    *term = a + b;
                }
                add_powers(&mut terms, &mut sum);
            }
            sum.iter().sum()
        },
    )
}

/// `sum_i exp(factor x[i])` and the sum of the squares of its terms, lanes in a fixed order.
pub(crate) fn sums_of_powers(factor: f64, x: &[f64]) -> (f64, f64) {
    dispatch(
        #[inline(always)]
        || {
            let (mut sum, mut squares) = ([0.0; 8], [0.0; 8]);
            let (blocks, rest) = x.as_chunks::<8>();
            for block in blocks {
                for lane in 0..8 {
                    let term = exp(factor * block[lane]);
                    sum[lane] += term;
                    squares[lane] = term.mul_add(term, squares[lane]);
                }
            }
            for (lane, x) in rest.iter().enumerate() {
                let term = exp(factor * x);
                sum[lane] += term;
                squares[lane] = term.mul_add(term, squares[lane]);
            }
            (sum.iter().sum(), squares.iter().sum())
        },
    )
}

/// `log sum_s exp(log_alpha[s] + l[s])`, lanes in a fixed order.
pub(crate) fn log_mean_exp(log_alpha: &[f64], l: &[f64]) -> f64 {
    Arch::new().dispatch(LogMeanExp { log_alpha, l })
}

struct LogMeanExp<'a> {
    log_alpha: &'a [f64],
    l: &'a [f64],
}

impl WithSimd for LogMeanExp<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        let Self { log_alpha, l } = self;
        let ((a_lanes, a_rest), (l_lanes, l_rest)) = (S::as_simd_f64s(log_alpha), S::as_simd_f64s(l));
        let mut lanes = simd.splat_f64s(f64::NEG_INFINITY);
        for (a, l) in a_lanes.iter().zip(l_lanes) {
            lanes = simd.max_f64s(simd.add_f64s(*a, *l), lanes);
        }
        let mut top = simd.reduce_max_f64s(lanes);
        for (a, l) in a_rest.iter().zip(l_rest) {
            top = if a + l > top { a + l } else { top };
        }
        if top == f64::NEG_INFINITY {
            return top;
        }
        let mut sum = [0.0; 8];
        for (a, l) in log_alpha.chunks(BLOCK).zip(l.chunks(BLOCK)) {
            let mut terms = [f64::NEG_INFINITY; BLOCK];
            for (term, (a, l)) in terms.iter_mut().zip(a.iter().zip(l)) {
                *term = a + l - top;
            }
            add_powers(&mut terms, &mut sum);
        }
        top + ln(sum.iter().sum())
    }
}

/// `sum[i mod 8] += exp(terms[i])`. Loops as long as these are vectorised whole, where shorter ones would be taken apart.
#[inline(always)]
fn add_powers(terms: &mut [f64; BLOCK], sum: &mut [f64; 8]) {
    for term in &mut *terms {
        *term = exp(*term);
    }
    for terms in terms.as_chunks::<8>().0 {
        for lane in 0..8 {
            sum[lane] += terms[lane];
        }
    }
}

/// `log sum_s exp(log_alpha[s] + l[s])`; `l` is replaced by `exp(log_alpha[s] + l[s])` over that sum.
///
/// Where every draw excludes the data the result is minus infinity and the weights are zero.
pub(crate) fn log_mean_exp_weights(log_alpha: &[f64], l: &mut [f64]) -> f64 {
    dispatch(
        #[inline(always)]
        || {
            for (l, a) in l.iter_mut().zip(log_alpha) {
                *l += *a;
            }
            let max = panels::lanes_max(l, f64::NEG_INFINITY);
            // The ratio below would be 0/0 and the gradient NaN.
            if max == f64::NEG_INFINITY {
                l.fill(0.0);
                return f64::NEG_INFINITY;
            }
            for l in l.iter_mut() {
                *l = exp(*l - max);
            }
            let ones = [1.0; BLOCK / 2];
            let mut sum = 0.0;
            for chunk in l.chunks(BLOCK / 2) {
                sum += lanes_dot(chunk, &ones[..chunk.len()]);
            }
            let scale = 1.0 / sum;
            for l in l.iter_mut() {
                *l *= scale;
            }
            max + sum.ln()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn exp_is_within_two_ulp(x in -708.0..709.0_f64) {
            let exact = x.exp();
            // The reference itself is good to one ulp.
            prop_assert!((exp(x) - exact).abs() <= 3.0 * f64::EPSILON * exact, "{x}: {} {exact}", exp(x));
        }

        #[test]
        fn ln_is_within_three_ulp(exponent in -708.0..709.0_f64) {
            let (x, exact) = (exponent.exp(), exponent.exp().ln());
            prop_assert!((ln(x) - exact).abs() <= 4.0 * f64::EPSILON * exact.abs().max(0.5), "{x}: {} {exact}", ln(x));
        }

        #[test]
        fn log_normal_cdf_is_exact(z in -1000.0..40.0_f64) {
            let exact = crate::special::log_normal_cdf(z);
            // Some forty rounded operations on terms of the size of the result, of which most are below one, at half an ulp of
            // up to twice that size each.
            let bound = 40.0 * f64::EPSILON * exact.abs().max(1.0);
            prop_assert!((log_normal_cdf(&[z; LANES], tail_series())[0] - exact).abs() <= bound, "{z}");
        }

        #[test]
        fn tabulated_log_normal_cdf_is_within_its_bound(z in -40.0..40.0_f64) {
            let exact = crate::special::log_normal_cdf(z);
            let mut out = [0.0; PANEL];
            log_cdf_table().add(z, &[1.0; PANEL], &mut out);
            let bound = 0.2 / (384.0 * PER_UNIT.powi(4)) + 16.0 * f64::EPSILON * exact.abs().max(1.0);
            prop_assert!((out[0] - exact).abs() <= bound, "{z}: {:e}", out[0] - exact);
        }
    }

    struct InRegisters<'a>(&'a mut [f64; 48]);

    impl WithSimd for InRegisters<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            for x in S::as_mut_simd_f64s(self.0).0.as_chunks_mut::<3>().0 {
                exp_registers(simd, x);
            }
        }
    }

    #[test]
    fn exponentials_in_registers_have_the_bits_of_single_ones() {
        let x: [f64; 48] = std::array::from_fn(|i| 3.0 - 0.37 * (i as f64).powi(2));
        let mut together = x;
        (together[40], together[41]) = (f64::NEG_INFINITY, -0.0);
        let alone = together.map(exp);
        Arch::new().dispatch(InRegisters(&mut together));
        assert_eq!(together.map(f64::to_bits), alone.map(f64::to_bits));
    }

    #[test]
    fn places_within_cells_are_interpolated() {
        // Eight cells of every octave.
        let scale = BinaryScale::new(0.3, 40.0, 0.125);
        for i in 0..scale.len {
            let (from, to) = (scale.edge(i), scale.edge(i + 1));
            // Edges are rounded where the offset is taken away.
            let bound = 0.125 * (from + 0.3) * (1.0 + 16.0 * f64::EPSILON);
            assert!(to - from <= bound && (i > 0 || from <= 0.0 && to > 0.0), "{i}: {from} {to}");
        }
        assert!(scale.edge(scale.len) > 40.0 && scale.edge(scale.len - 1) <= 40.0);
        // The second draw's cubics are twice the first one's.
        let cubic = |i: usize, s: usize| [i as f64, 0.5, -0.25, 0.125].map(|c| (s + 1) as f64 * c);
        let cubics: Vec<[f64; 4]> = (0..2).flat_map(|s| (0..scale.len).map(move |i| cubic(i, s))).collect();
        for x in [0.0, 0.01, 0.7, 3.2, 17.5, 39.9] {
            let i = (0..scale.len).rfind(|&i| scale.edge(i) <= x).unwrap();
            let t = (x - scale.edge(i)) / (scale.edge(i + 1) - scale.edge(i));
            let exact = i as f64 + t * (0.5 + t * (-0.25 + t * 0.125));
            let mut out = [0.0; 2];
            assert_eq!(scale.interpolate(&[x; 2], &cubics, scale.len, &mut out), x);
            // The place is good to a rounding of x in units of the cell, at least a sixteenth of it wide, and the values to one of i.
            let bound = (32.0 + i as f64) * f64::EPSILON;
            assert!(out.iter().zip([exact, 2.0 * exact]).all(|(x, exact)| (x - exact).abs() <= 2.0 * bound), "{out:?}");
            let mut shared = [0.0; 11];
            scale.interpolate(&[x; 11], &cubics[..scale.len], 0, &mut shared);
            assert_eq!(shared, [out[0]; 11]);
        }
        let mut odd = [0.0; 3];
        assert_eq!(scale.interpolate(&[-3.0, f64::NAN, 0.0], &cubics[..scale.len], 0, &mut odd), 0.0);
        assert!(odd[0] == odd[2] && odd[1].is_nan(), "{odd:?}");
    }

    #[test]
    fn log_mean_exp_is_that_of_the_weights() {
        for n in [1, 7, 8, 37] {
            let log_alpha: Vec<f64> = (0..n).map(|s| (s as f64).sin()).collect();
            let l: Vec<f64> = (0..n).map(|s| -1000.0 + 3.0 * (s as f64).cos()).collect();
            let exact = log_mean_exp_weights(&log_alpha, &mut l.clone());
            assert!((log_mean_exp(&log_alpha, &l) - exact).abs() <= 8.0 * f64::EPSILON * 1000.0);
        }
        assert_eq!(log_mean_exp(&[0.0; 9], &[f64::NEG_INFINITY; 9]), f64::NEG_INFINITY);
    }

    #[test]
    fn log_normal_cdf_at_the_edges() {
        let log_cdf = |z: f64| log_normal_cdf(&[z; LANES], tail_series())[0];
        assert_eq!(log_cdf(f64::INFINITY), 0.0);
        assert!(log_cdf(f64::NEG_INFINITY) < -1e199);
        assert!((log_cdf(0.0) + std::f64::consts::LN_2).abs() < 8.0 * f64::EPSILON);
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e9), 0.0);
    }

    #[test]
    fn weights_sum_to_one_and_survive_exclusion() {
        let log_alpha = [0.25_f64.ln(); 4];
        let mut l = [-1000.0, -1001.0, f64::NEG_INFINITY, -1000.0];
        let value = log_mean_exp_weights(&log_alpha, &mut l);
        let exact = -1000.0 + (0.25 * (2.0 + (-1.0_f64).exp())).ln();
        assert!((value - exact).abs() <= 4.0 * f64::EPSILON * 1000.0);
        assert!((l.iter().sum::<f64>() - 1.0).abs() <= 4.0 * f64::EPSILON);
        assert_eq!(l[2], 0.0);
        let mut excluded = [f64::NEG_INFINITY; 4];
        assert_eq!(log_mean_exp_weights(&log_alpha, &mut excluded), f64::NEG_INFINITY);
        assert_eq!(excluded, [0.0; 4]);
    }

    #[test]
    fn a_mixture_of_normals_is_its_sum() {
        // Not a multiple of the lanes.
        let n = 37;
        let value = |seed: f64| (0..n).map(move |s| (seed * (s + 1) as f64).sin());
        let weight: Vec<f64> = value(1.3).map(|w| w * w / n as f64).collect();
        let mean: Vec<f64> = value(2.7).map(|m| 3.0 * m).collect();
        let inverse: Vec<f64> = value(0.9).map(|s| 1.0 / (1.1 + s)).collect();
        for x in [-40.0, -3.0, 0.0, 0.7, 2.5, 50.0] {
            let parts = || weight.iter().zip(&mean).zip(&inverse).map(|((w, m), i)| (w, (x - m) * i, i));
            let below: f64 = parts().map(|(w, z, _)| w * crate::special::normal_cdf(z)).sum();
            let density: f64 = parts().map(|(w, z, i)| w * i * crate::special::normal_density(z)).sum();
            let found = normal_mixture(x, &weight, &mean, &inverse);
            // A few ulp of every term, of which the largest is below one (below ten for the density).
            assert!((found.0 - below).abs() <= 16.0 * f64::EPSILON, "{x}: {found:?} {below}");
            assert!((found.1 - density).abs() <= 160.0 * f64::EPSILON, "{x}: {found:?} {density}");
        }
    }
}
