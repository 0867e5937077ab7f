//! The hot loops over draws, compiled once per instruction set and chosen at run time.

use pulp::{Arch, NullaryFnOnce};

/// Draws handled together: eight AVX2 registers of four.
const BLOCK: usize = 32;

/// `exp(x)` by argument reduction and a polynomial, without branches, so that loops over it vectorise.
///
/// Within 2 ulp of the exact value for `-708 < x < 709`; 0 below, `exp(709)` above.
#[inline(always)]
pub(crate) fn exp(x: f64) -> f64 {
    // Adding 1.5 * 2^52 rounds to an integer and leaves it in the low mantissa bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    // ln 2 in two parts: the first has trailing zeros, so n * LN2_HIGH is exact.
    const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let clamped = x.clamp(-708.0, 709.0);
    let shifted = clamped.mul_add(std::f64::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_HIGH, clamped);
    let r = n.mul_add(-LN2_LOW, r);
    // Taylor on |r| <= ln(2)/2: the first omitted term, r^14/14!, is below 5e-18.
    const INVERSE_FACTORIALS: [f64; 12] = [
        1.0 / 6_227_020_800.0,
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
    ];
    let mut p = INVERSE_FACTORIALS[0];
    let mut k = 1;
    while k < 12 {
        p = p.mul_add(r, INVERSE_FACTORIALS[k]);
        k += 1;
    }
    let p = p.mul_add(r * r, r) + 1.0;
    let scale = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    if x < -708.0 { 0.0 } else { p * scale }
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
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        return "x86-64-v3";
    }
    std::env::consts::ARCH
}

/// `out[s] = sum_k q[k] rows[k * S + s]` with `S = out.len()`.
pub(crate) fn combine_rows(q: &[f64], rows: &[f64], out: &mut [f64]) {
    dispatch(
        #[inline(always)]
        || {
            let n = out.len();
            let mut start = 0;
            while start + BLOCK <= n {
                let mut sum = [0.0; BLOCK];
                for (k, &q) in q.iter().enumerate() {
                    let row: &[f64; BLOCK] =
                        rows[k * n + start..k * n + start + BLOCK].try_into().expect("a slice of BLOCK values");
                    for (sum, value) in sum.iter_mut().zip(row) {
                        *sum = q.mul_add(*value, *sum);
                    }
                }
                out[start..start + BLOCK].copy_from_slice(&sum);
                start += BLOCK;
            }
            for s in start..n {
                out[s] = q.iter().enumerate().fold(0.0, |sum, (k, &q)| q.mul_add(rows[k * n + s], sum));
            }
        },
    );
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

/// `sum_s exp(a[s] + b[s])`, lanes in a fixed order.
pub(crate) fn sum_exp(a: &[f64], b: &[f64]) -> f64 {
    dispatch(
        #[inline(always)]
        || {
            let mut sum = [0.0; 8];
            let (a_blocks, a_rest) = a.as_chunks::<8>();
            let (b_blocks, b_rest) = b.as_chunks::<8>();
            for (a, b) in a_blocks.iter().zip(b_blocks) {
                for lane in 0..8 {
                    sum[lane] += exp(a[lane] + b[lane]);
                }
            }
            let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| exp(a + b)).sum();
            sum.iter().sum::<f64>() + rest
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

/// `log sum_s exp(log_alpha[s] + l[s])`; `l` is replaced by `exp(log_alpha[s] + l[s])` over that sum.
///
/// Where every draw excludes the data the result is minus infinity and the weights are zero.
pub(crate) fn log_mean_exp_weights(log_alpha: &[f64], l: &mut [f64]) -> f64 {
    let max = l.iter().zip(log_alpha).fold(f64::NEG_INFINITY, |max, (l, a)| max.max(l + a));
    // The ratio below would be 0/0 and the gradient NaN.
    if max == f64::NEG_INFINITY || max.is_nan() {
        l.fill(0.0);
        return f64::NEG_INFINITY;
    }
    dispatch(
        #[inline(always)]
        || {
            for (l, a) in l.iter_mut().zip(log_alpha) {
                *l = exp(*l + *a - max);
            }
            let ones = [1.0; BLOCK / 2];
            let mut sum = 0.0;
            for chunk in l.chunks(BLOCK / 2) {
                sum += lanes_dot(chunk, &ones[..chunk.len()]);
            }
            let scale = 1.0 / sum;
            l.iter_mut().for_each(|l| *l *= scale);
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
        fn rows_combine_as_written(q in prop::collection::vec(-2.0..2.0_f64, 1..6), n in 1_usize..100) {
            let rows: Vec<f64> = (0..q.len() * n).map(|i| (i as f64 * 0.37).sin()).collect();
            let mut out = vec![0.0; n];
            combine_rows(&q, &rows, &mut out);
            let bound = 4.0 * q.len() as f64 * f64::EPSILON * q.iter().map(|v| v.abs()).sum::<f64>();
            for s in 0..n {
                let naive: f64 = (0..q.len()).map(|k| q[k] * rows[k * n + s]).sum();
                prop_assert!((out[s] - naive).abs() <= bound);
            }
            let mut back = vec![0.0; q.len()];
            dot_rows(&rows, &out, &mut back);
            let size = n as f64 * q.iter().map(|v| v.abs()).sum::<f64>();
            for k in 0..q.len() {
                let naive: f64 = (0..n).map(|s| rows[k * n + s] * out[s]).sum();
                prop_assert!((back[k] - naive).abs() <= 2.0 * n as f64 * f64::EPSILON * size);
            }
        }
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
}
