//! Polynomials of many draws, laid out so that one pass over memory gives the pooled log-likelihood of one or several points
//! and its pull-back.

use super::{dispatch, exp, ln};
use crate::matrix::Matrix;
use prefetch_index::prefetch_index;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// Numbers in a line of the cache.
const LINE: usize = 8;
/// Draws of a wide panel: twelve AVX2 registers of four, as many sums as keep both multipliers busy.
const WIDE: usize = 48;
/// Widths of panels, widest first: each is used while as many draws are left.
const WIDTHS: [usize; 6] = [WIDE, 32, 16, 8, NARROW, 1];
/// Draws of the narrowest panel of several: half a wide register.
const NARROW: usize = 4;
/// Lanes of a sum over draws: two registers.
const LANES: usize = 8;
/// Points evaluated together: their sums for two draws or two coefficients fill eight registers.
pub(crate) const POINTS: usize = 16;
/// Points of a tile of [`Panels::combine_points`]: their sums for [`LANES`] draws, or twice as many where registers are wide, fill ten registers and leave
/// room for what is read.
const TILE: usize = 5;
const TWICE: usize = 2 * LANES;
/// As many whole tiles as fit among [`POINTS`].
pub(crate) const TILED_POINTS: usize = POINTS / TILE * TILE;

/// Values that never straddle a line of the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(64))]
pub(crate) struct Aligned<const N: usize>(pub(crate) [f64; N]);

/// A value for each of several points.
pub(crate) type Lanes = Aligned<POINTS>;

impl<const N: usize> Default for Aligned<N> {
    fn default() -> Self {
        Self([0.0; N])
    }
}

impl<const N: usize> std::ops::Deref for Aligned<N> {
    type Target = [f64; N];

    #[inline(always)]
    fn deref(&self) -> &[f64; N] {
        &self.0
    }
}

impl<const N: usize> std::ops::DerefMut for Aligned<N> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [f64; N] {
        &mut self.0
    }
}

/// Coefficients, in bytes, that are far away for a core: their panels are copied before several points read them, since their
/// rows are read side by side, which no prefetching foresees.
const FAR: usize = 1 << 22;
/// Draws whose log-likelihoods are known before their weights are: enough that exponentials of some do not wait for those of others, and that
/// stay in the first-level cache with their derivatives.
const BLOCK: usize = 5 * WIDE;
/// Lanes of sums over the draws of a block: as many registers as it takes for additions not to wait for each other.
const APART: usize = WIDE;
/// Numbers after the one that is read which the first-level cache is told to fetch: far enough for memory, near enough to be there still.
const AHEAD: usize = 32 * WIDE;
/// Draws summed by one thread; more are split among threads. A multiple of [`BLOCK`], and a fixed number, so that sums do not
/// depend on the number of threads.
const CHUNK: usize = 40 * BLOCK;
/// Chunks, each of some 40 us, that one thread sums sooner than several that must be woken.
const ALONE: usize = 2;
/// Polynomials of the same coefficients that are summed in one reading: their sums and what is read fill the registers.
const PLANES: [usize; 4] = [4, 3, 2, 1];
/// Registers of sums for one reading of a panel, by the number of polynomials; the largest that are left are taken first.
const REGISTERS: [usize; 7] = [12, 8, 6, 4, 3, 2, 1];

/// `R_s = sum_k q_k c[k, s]` of S draws: panels of neighbouring draws, each with its K rows one after the other.
#[derive(Debug, Default)]
pub(crate) struct Panels {
    rows: usize,
    draws: usize,
    /// The panels, after what brings them to a line of the cache.
    data: Vec<f64>,
    offset: usize,
}

/// First draw and width of every panel between two draws, the first of which starts one.
fn panels(draws: std::ops::Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    cut(draws, &WIDTHS)
}

/// First number and size of the pieces that a range is cut into; of `sizes`, which end with one, each is used while as much is left.
#[inline(always)]
fn cut(range: std::ops::Range<usize>, sizes: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    let mut start = range.start;
    std::iter::from_fn(move || {
        let size = *sizes.iter().find(|size| start + **size <= range.end)?;
        start += size;
        Some((start - size, size))
    })
}

impl Clone for Panels {
    fn clone(&self) -> Self {
        Self::of_pieces(self.rows, self.draws, std::iter::once(&self.data[self.offset..]))
    }
}

impl Panels {
    /// Of a K x S matrix of coefficients.
    pub(crate) fn new(coefficients: &Matrix) -> Self {
        let (rows, draws) = (coefficients.rows(), coefficients.cols());
        let pieces = panels(0..draws).flat_map(|(start, width)| (0..rows).map(move |k| (k, start, width)));
        Self::of_pieces(rows, draws, pieces.map(|(k, start, width)| &coefficients.row(k)[start..start + width]))
    }

    fn of_pieces<'a>(rows: usize, draws: usize, pieces: impl Iterator<Item = &'a [f64]>) -> Self {
        let mut data: Vec<f64> = Vec::with_capacity(rows * draws + LINE);
        let offset = data.as_ptr().align_offset(8 * LINE).min(LINE);
        data.resize(offset, 0.0);
        pieces.for_each(|piece| data.extend_from_slice(piece));
        Self { rows, draws, data, offset }
    }

    /// Number K of coefficients of a draw.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    fn panel(&self, start: usize, width: usize) -> &[f64] {
        &self.data[self.offset + self.rows * start..self.offset + self.rows * (start + width)]
    }

    /// The coefficients of some of the draws.
    pub(crate) fn select(&self, draws: &[usize]) -> Self {
        // Of panels of the same width the first is found by division, which matters where single draws are picked one by one.
        let place = |s: usize| {
            let wide = self.draws / WIDE * WIDE;
            if s < wide {
                (s / WIDE * WIDE, WIDE)
            } else {
                panels(wide..self.draws).find(|(start, width)| s < start + width).expect("a draw")
            }
        };
        let places: Vec<(usize, usize)> = draws.iter().map(|&s| place(s)).collect();
        let value = |k: usize, i: usize| self.panel(places[i].0, places[i].1)[k * places[i].1 + draws[i] - places[i].0];
        Self::new(&Matrix::from_fn(self.rows, draws.len(), value))
    }

    /// `out[s] = R_s` at `q`.
    pub(crate) fn combine(&self, q: &[f64], out: &mut [f64]) {
        Arch::new().dispatch(Combine { panels: self, q, out });
    }

    /// `out[j][s - start] = sum_k q[j, k] c[k, s]` of `draws` draws from the first of a panel on: residuals, where the rows of `q` are features, and their
    /// derivatives, where they are those of features.
    #[inline(always)]
    fn combine_draws<S: Simd>(&self, simd: S, q: &Matrix, start: usize, draws: usize, out: &mut [Aligned<BLOCK>]) {
        for (j, count) in cut(0..q.rows(), &PLANES) {
            match count {
                4 => self.planes::<S, 4>(simd, q, j, start..start + draws, out),
                3 => self.planes::<S, 3>(simd, q, j, start..start + draws, out),
                2 => self.planes::<S, 2>(simd, q, j, start..start + draws, out),
                _ => self.planes::<S, 1>(simd, q, j, start..start + draws, out),
            }
        }
    }

    /// The same for rows `j..j + K` of `q`.
    #[inline(always)]
    fn planes<S: Simd, const K: usize>(
        &self,
        simd: S,
        q: &Matrix,
        j: usize,
        draws: std::ops::Range<usize>,
        out: &mut [Aligned<BLOCK>],
    ) {
        let out: &mut [Aligned<BLOCK>; K] = (&mut out[j..j + K]).try_into().expect("a plane for each row");
        let mut rows = [&[][..]; K];
        for (k, row) in rows.iter_mut().enumerate() {
            *row = q.row(j + k);
        }
        for (first, width) in panels(draws.clone()) {
            let at = first - draws.start;
            let mut out = out.each_mut().map(
                #[inline(always)]
                |plane| &mut plane[at..at + width],
            );
            combined(simd, self.panel(first, width), rows, &mut out);
        }
    }

    /// `sums[k] += c[k, s] weights[s - start]` over `draws` draws from the first of a panel on.
    #[inline(always)]
    fn pull_draws<S: Simd>(&self, simd: S, weights: &[f64], start: usize, draws: usize, sums: &mut [Aligned<LANES>]) {
        for (first, width) in panels(start..start + draws) {
            let (panel, weights) = (self.panel(first, width), &weights[first - start..first - start + width]);
            match width {
                WIDE => pull::<S, WIDE>(simd, panel, weights.try_into().expect("a panel's width"), sums),
                32 => pull::<S, 32>(simd, panel, weights.try_into().expect("a panel's width"), sums),
                16 => pull::<S, 16>(simd, panel, weights.try_into().expect("a panel's width"), sums),
                8 => pull::<S, 8>(simd, panel, weights.try_into().expect("a panel's width"), sums),
                4 => pull::<S, 4>(simd, panel, weights.try_into().expect("a panel's width"), sums),
                _ => pull::<S, 1>(simd, panel, weights.try_into().expect("a panel's width"), sums),
            }
        }
    }

    /// `out[k] = sum_s c[k, s] weights[s]`.
    pub(crate) fn pull(&self, weights: &[f64], sums: &mut PullSums, out: &mut [f64]) {
        sums.clear();
        sums.resize(self.rows, Aligned::default());
        Arch::new().dispatch(Pull { panels: self, weights, sums });
        out.iter_mut().zip(sums).for_each(|(out, sums)| *out = total(sums));
    }

    /// `out[p * S + s] = R_s` at the points `q[k][p]` of lanes `p < n`; [`TILED_POINTS`] of them are the cheapest.
    pub(crate) fn combine_points(&self, q: &[Lanes], n: usize, out: &mut [f64]) {
        Arch::new().dispatch(CombinePoints { panels: self, q, n, out });
    }
}

/// Buffer of [`Panels::pull`].
pub(crate) type PullSums = Vec<Aligned<LANES>>;

/// The pull-back of all draws.
struct Pull<'a> {
    panels: &'a Panels,
    weights: &'a [f64],
    sums: &'a mut [Aligned<LANES>],
}

impl WithSimd for Pull<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.panels.pull_draws(simd, self.weights, 0, self.panels.draws, self.sums);
    }
}

/// The residual sums of all draws.
struct Combine<'a> {
    panels: &'a Panels,
    q: &'a [f64],
    out: &'a mut [f64],
}

impl WithSimd for Combine<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for (start, width) in panels(0..self.panels.draws) {
            combined(simd, self.panels.panel(start, width), [self.q], &mut [&mut self.out[start..start + width]]);
        }
    }
}

/// The residual sums of all draws at several points.
struct CombinePoints<'a> {
    panels: &'a Panels,
    q: &'a [Lanes],
    n: usize,
    out: &'a mut [f64],
}

impl WithSimd for CombinePoints<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { panels: all, q, n, out } = self;
        for (start, width) in panels(0..all.draws) {
            let (panel, out) = (all.panel(start, width), &mut out[start..]);
            let at = (panel, width, q, n, all.draws);
            match width {
                WIDE if S::F64_LANES == LANES => tiles::<TWICE, WIDE>(at, out),
                32 if S::F64_LANES == LANES => tiles::<TWICE, 32>(at, out),
                16 if S::F64_LANES == LANES => tiles::<TWICE, 16>(at, out),
                WIDE => tiles::<LANES, WIDE>(at, out),
                32 => tiles::<LANES, 32>(at, out),
                16 => tiles::<LANES, 16>(at, out),
                8 => tiles::<LANES, 8>(at, out),
                4 => tiles::<4, 4>(at, out),
                _ => tiles::<1, 1>(at, out),
            }
        }
    }
}

#[inline(always)]
fn total(lanes: &[f64; LANES]) -> f64 {
    ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]))
}

/// Sums over the draws of a block.
type Sums = Aligned<APART>;

#[inline(always)]
fn total_apart(sums: &Sums) -> f64 {
    let mut lanes = [0.0; LANES];
    for own in sums.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            lanes[lane] += own[lane];
        }
    }
    total(&lanes)
}

/// The largest of a panel's values and of `least`.
#[inline(always)]
pub(super) fn lanes_max(values: &[f64], least: f64) -> f64 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut largest = [least; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            largest[lane] = if chunk[lane] > largest[lane] { chunk[lane] } else { largest[lane] };
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            let other = largest[lane + width];
            largest[lane] = if other > largest[lane] { other } else { largest[lane] };
        }
        width /= 2;
    }
    let mut out = largest[0];
    for &value in rest {
        out = if value > out { value } else { out };
    }
    out
}

/// `out[j][i] = sum_k q[j][k] c[k, i]` of the draws of a panel.
#[inline(always)]
fn combined<S: Simd, const K: usize>(simd: S, panel: &[f64], q: [&[f64]; K], out: &mut [&mut [f64]; K]) {
    let width = out[0].len();
    if width == WIDE && S::F64_LANES == LANES {
        return sums::<S, K, 6>(simd, panel, (WIDE, 0), q, out);
    }
    if width == 1 {
        for j in 0..K {
            out[j][0] = single(panel, q[j]);
        }
        return;
    }
    if width < S::F64_LANES {
        for j in 0..K {
            narrow(panel, q[j], out[j]);
        }
        return;
    }
    let most = if S::F64_LANES == LANES { 24 } else { 12 } / K;
    let too_many = REGISTERS.iter().filter(|n| **n > most).count();
    for (first, count) in cut(0..width / S::F64_LANES, &REGISTERS[too_many..]) {
        let at = (width, first);
        match count {
            12 => sums::<S, K, 12>(simd, panel, at, q, out),
            8 => sums::<S, K, 8>(simd, panel, at, q, out),
            6 => sums::<S, K, 6>(simd, panel, at, q, out),
            4 => sums::<S, K, 4>(simd, panel, at, q, out),
            3 => sums::<S, K, 3>(simd, panel, at, q, out),
            2 => sums::<S, K, 2>(simd, panel, at, q, out),
            _ => sums::<S, K, 1>(simd, panel, at, q, out),
        }
    }
}

/// The same for `N` registers of draws from register `first` of a panel on. The sums stay in registers, which the compiler only sees where it is told
/// to: by itself it would take some of them apart.
#[inline(always)]
fn sums<S: Simd, const K: usize, const N: usize>(
    simd: S,
    panel: &[f64],
    (width, first): (usize, usize),
    q: [&[f64]; K],
    out: &mut [&mut [f64]; K],
) {
    let mut sums = [[simd.splat_f64s(0.0); N]; K];
    for (k, row) in panel.chunks_exact(width).enumerate() {
        if first == 0 {
            for line in 0..width / LINE {
                prefetch_index(row, AHEAD + line * LINE);
            }
        }
        let row: &[S::f64s; N] = S::as_simd_f64s(row).0[first..first + N].try_into().expect("within the panel");
        for j in 0..K {
            let q = simd.splat_f64s(q[j][k]);
            for i in 0..N {
                sums[j][i] = simd.mul_add_f64s(q, row[i], sums[j][i]);
            }
        }
    }
    for j in 0..K {
        S::as_mut_simd_f64s(out[j]).0[first..first + N].copy_from_slice(&sums[j]);
    }
}

/// The same for a panel of [`NARROW`] draws, which are no register.
#[inline(always)]
fn narrow(panel: &[f64], q: &[f64], out: &mut [f64]) {
    let mut sums = [0.0; NARROW];
    for (row, q) in panel.as_chunks::<NARROW>().0.iter().zip(q) {
        for i in 0..NARROW {
            sums[i] = q.mul_add(row[i], sums[i]);
        }
    }
    out.copy_from_slice(&sums);
}

/// `R` of a panel of one draw, in lanes that do not wait for each other.
#[inline(always)]
fn single(panel: &[f64], q: &[f64]) -> f64 {
    let mut sum = [0.0; LANES];
    let (rows, rest) = panel.as_chunks::<LANES>();
    let (q, q_rest) = q.as_chunks::<LANES>();
    for (row, q) in rows.iter().zip(q) {
        for i in 0..LANES {
            sum[i] = q[i].mul_add(row[i], sum[i]);
        }
    }
    let rest = rest.iter().zip(q_rest).fold(0.0, |sum, (c, q)| q.mul_add(*c, sum));
    total(&sum) + rest
}

/// `sums[k] += c[k, s] weights[s]` over the draws of a panel. The weights stay in registers, which the compiler only sees where
/// it is told to: by itself it would take rows for lanes, and gather.
#[inline(always)]
fn pull<S: Simd, const W: usize>(simd: S, panel: &[f64], weights: &[f64; W], sums: &mut [Aligned<LANES>]) {
    let rows = panel.as_chunks::<W>().0.iter().zip(sums);
    if W < S::F64_LANES || W == 1 {
        for (row, sum) in rows {
            for i in 0..W {
                sum[i] = row[i].mul_add(weights[i], sum[i]);
            }
        }
        return;
    }
    let mut held = [simd.splat_f64s(0.0); WIDE];
    let count = W / S::F64_LANES;
    held[..count].copy_from_slice(S::as_simd_f64s(weights.as_slice()).0);
    let weights = &held[..count];
    for (row, sum) in rows {
        let ((row, _), (sum, _)) = (S::as_simd_f64s(row.as_slice()), S::as_mut_simd_f64s(sum.as_mut_slice()));
        // Rows do not wait for each other: a register of sums for each place in a lane is enough.
        for (i, sum) in sum.iter_mut().enumerate() {
            let mut own = *sum;
            let mut j = i;
            while j < row.len() {
                own = simd.mul_add_f64s(row[j], weights[j], own);
                j += LANES / S::F64_LANES;
            }
            *sum = own;
        }
    }
}

/// `out[p * stride + i] = R_i` of the draws of a panel at the points `p < n`: [`TILE`] points by `W` draws in registers, and what points
/// are left one by one with `ALONE` draws.
#[inline(always)]
fn tiles<const W: usize, const ALONE: usize>(
    (panel, width, q, n, stride): (&[f64], usize, &[Lanes], usize, usize),
    out: &mut [f64],
) {
    let mut p = 0;
    while p + TILE <= n {
        let mut i = 0;
        while i < width {
            tile::<TILE, W>(panel, width, (p, i), q, stride, out);
            i += W;
        }
        p += TILE;
    }
    while p < n {
        let mut i = 0;
        while i < width {
            tile::<1, ALONE>(panel, width, (p, i), q, stride, out);
            i += ALONE;
        }
        p += 1;
    }
}

/// `R` of `W` draws of a panel at `P` points, from draw `i` and point `p` on.
#[inline(always)]
fn tile<const P: usize, const W: usize>(
    panel: &[f64],
    width: usize,
    (p, i): (usize, usize),
    q: &[Lanes],
    stride: usize,
    out: &mut [f64],
) {
    let mut sums = [[0.0; W]; P];
    for (row, q) in panel.chunks_exact(width).zip(q) {
        let row: &[f64; W] = row[i..i + W].try_into().expect("within the panel");
        let q: &[f64; P] = q[p..p + P].try_into().expect("within the points");
        for j in 0..P {
            for w in 0..W {
                sums[j][w] = q[j].mul_add(row[w], sums[j][w]);
            }
        }
    }
    for (j, sums) in sums.iter().enumerate() {
        let first = (p + j) * stride + i;
        out[first..first + W].copy_from_slice(sums);
    }
}

/// How the log-likelihood of a class depends on the residual sum R of a draw: `alpha ln v + (beta + gamma R) / v` with
/// `v = base + sigma_a^2`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Form {
    pub(crate) base: f64,
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
    pub(crate) gamma: f64,
}

impl Form {
    /// The part that depends on R, and the rest, where there is no sigma_a.
    #[inline(always)]
    fn affine(&self) -> (f64, f64) {
        (self.alpha * ln(self.base) + self.beta / self.base, self.gamma / self.base)
    }
}

/// The [`Form`] of a class at several points, whose sds may differ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PointForms {
    pub(crate) base: [f64; POINTS],
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
    pub(crate) gamma: f64,
}

/// Classes of measurements under all draws, at one point or several.
pub(crate) trait Classes: Sync {
    /// Number of classes.
    fn len(&self) -> usize;

    /// The residual sum of squares of every draw.
    fn polynomials(&self, c: usize) -> &Panels;

    /// Which features are those of its polynomials: classes may share them.
    fn basis(&self, c: usize) -> usize;

    /// Approximation error of each draw, where it is propagated.
    fn sigma_a(&self, c: usize) -> Option<&[f64]>;
}

/// Derivatives of a pooled log-likelihood by what one class contributes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulled {
    /// By every unknown of its polynomials.
    pub(crate) by_own: Vec<f64>,
    /// By `base`.
    pub(crate) by_variance: f64,
}

/// What a pass over some of the draws has summed; sums are relative to `exp(top)`.
#[derive(Clone, Debug, Default)]
struct Pass {
    top: f64,
    sum: Sums,
    /// Log-likelihoods, then weights, of a block.
    l: Aligned<BLOCK>,
    /// For each class the sums of [`Pulled`], before they are divided by `sum`.
    classes: Vec<ClassPass>,
}

#[derive(Clone, Debug, Default)]
struct ClassPass {
    /// Weighted sums of residuals, where draws share v, and of their derivatives.
    sums: Vec<Sums>,
    by_variance: Sums,
    /// Residuals of a block of draws, their derivatives by every unknown, and `1 / v`.
    planes: Vec<Aligned<BLOCK>>,
    inverse: Aligned<BLOCK>,
}

/// Buffers of pooled log-likelihoods: nothing is allocated after the first.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolScratch {
    passes: Vec<Pass>,
    many: Vec<ManyPass>,
    /// How often the coefficients of all draws were read.
    pub(crate) readings: usize,
    pub(crate) pulled: Vec<Pulled>,
}

/// `log sum_s exp(log_alpha[s] + sum_c l_c,s)` at the features of each class, where `l_c,s` is the class's [`Form`]; its
/// derivatives are left in `scratch.pulled`. Features have their derivatives by each unknown of the class in the rows after the first: a draw's derivatives
/// come with its residual, from the same reading of its coefficients, and nothing waits for its weight.
///
/// Where every draw excludes the data the result is minus infinity and the derivatives are zero.
pub(crate) fn pool_log_mean_exp(
    classes: &impl Classes,
    features: &[Matrix],
    forms: &[Form],
    log_alpha: &[f64],
    scratch: &mut PoolScratch,
) -> f64 {
    let draws = log_alpha.len();
    let chunks = draws.div_ceil(CHUNK).max(1);
    scratch.readings += 1;
    if draws == 1 {
        return dispatch(
            #[inline(always)]
            || scratch.single(classes, features, forms, log_alpha[0]),
        );
    }
    scratch.passes.resize_with(chunks, Pass::default);
    let run = |(chunk, pass): (usize, &mut Pass)| {
        pass.reset(classes, features);
        let draws = chunk * CHUNK..((chunk + 1) * CHUNK).min(draws);
        Arch::new().dispatch(Add { pass, classes, features, forms, log_alpha, draws });
    };
    each(&mut scratch.passes, ALONE, run);
    dispatch(
        #[inline(always)]
        || scratch.finish(classes, forms),
    )
}

/// Runs every pass with its number, in threads where there are more of both than `alone` and one.
fn each<P: Send>(passes: &mut [P], alone: usize, run: impl Fn((usize, &mut P)) + Sync + Send) {
    if passes.len() <= alone || rayon::current_num_threads() == 1 {
        passes.iter_mut().enumerate().for_each(run);
    } else {
        passes.par_iter_mut().enumerate().for_each(run);
    }
}

impl PoolScratch {
    /// The value of a single draw, which has all the weight.
    #[inline(always)]
    fn single(&mut self, classes: &impl Classes, features: &[Matrix], forms: &[Form], log_alpha: f64) -> f64 {
        self.pulled.resize_with(classes.len(), Pulled::default);
        let mut value = log_alpha;
        for (c, pulled) in self.pulled.iter_mut().enumerate() {
            let (polynomials, Form { base, alpha, beta, gamma }) = (classes.polynomials(c), forms[c]);
            let features = &features[classes.basis(c)];
            let (coefficients, sigma_a) = (polynomials.panel(0, 1), classes.sigma_a(c).map_or(0.0, |own| own[0]));
            let v = sigma_a.mul_add(sigma_a, base);
            let scaled = gamma.mul_add(single(coefficients, features.row(0)), beta) / v;
            value += alpha.mul_add(ln(v), scaled);
            pulled.by_variance = (alpha - scaled) / v;
            pulled.by_own.clear();
            for d in 1..features.rows() {
                pulled.by_own.push(gamma / v * single(coefficients, features.row(d)));
            }
        }
        // What is not a number arises far outside anything the data allow.
        if value > f64::NEG_INFINITY {
            return value;
        }
        for pulled in &mut self.pulled {
            pulled.by_own.fill(0.0);
        }
        f64::NEG_INFINITY
    }

    /// The value of all passes together; their derivatives go to `pulled`.
    #[inline(always)]
    fn finish(&mut self, classes: &impl Classes, forms: &[Form]) -> f64 {
        let Self { passes, pulled, .. } = self;
        let top = passes.iter().fold(f64::NEG_INFINITY, |top, pass| if pass.top > top { pass.top } else { top });
        let scale = |pass: &Pass| match pass.top {
            f64::NEG_INFINITY => 0.0,
            own if own == top => 1.0,
            own => exp(own - top),
        };
        let mut sum = 0.0;
        for pass in &*passes {
            sum += scale(pass) * total_apart(&pass.sum);
        }
        let normaliser = if sum > 0.0 { sum.recip() } else { 0.0 };
        pulled.resize_with(classes.len(), Pulled::default);
        let mut constant = 0.0;
        for (c, pulled) in pulled.iter_mut().enumerate() {
            let (mut mean, has_sigma_a) = (0.0, classes.sigma_a(c).is_some());
            pulled.by_own.clear();
            pulled.by_own.resize(passes[0].classes[c].sums.len() - 1, 0.0);
            pulled.by_variance = 0.0;
            for pass in &*passes {
                let (factor, class) = (scale(pass) * normaliser, &pass.classes[c]);
                mean = factor.mul_add(total_apart(&class.sums[0]), mean);
                for (out, sums) in pulled.by_own.iter_mut().zip(&class.sums[1..]) {
                    *out = factor.mul_add(total_apart(sums), *out);
                }
                pulled.by_variance += factor * total_apart(&class.by_variance);
            }
            if !has_sigma_a {
                // All draws share v.
                let Form { base, alpha, beta, gamma } = forms[c];
                let (rest, slope) = forms[c].affine();
                constant += rest;
                pulled.by_variance = (alpha - (beta + gamma * mean) / base) / base;
                for by in &mut pulled.by_own {
                    *by *= slope;
                }
            }
        }
        if sum > 0.0 { top + ln(sum) + constant } else { f64::NEG_INFINITY }
    }
}

/// Some draws added to a pass.
struct Add<'a, C> {
    pass: &'a mut Pass,
    classes: &'a C,
    features: &'a [Matrix],
    forms: &'a [Form],
    log_alpha: &'a [f64],
    draws: std::ops::Range<usize>,
}

impl<C: Classes> WithSimd for Add<'_, C> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { pass, classes, features, forms, log_alpha, draws } = self;
        let at = (classes, features, forms, log_alpha);
        for start in draws.clone().step_by(BLOCK) {
            pass.add_draws(simd, at, start, BLOCK.min(draws.end - start));
        }
    }
}

impl Pass {
    fn reset(&mut self, classes: &impl Classes, features: &[Matrix]) {
        (self.top, self.sum) = (f64::NEG_INFINITY, Aligned::default());
        self.classes.resize_with(classes.len(), ClassPass::default);
        for (c, class) in self.classes.iter_mut().enumerate() {
            let planes = features[classes.basis(c)].rows();
            class.by_variance = Aligned::default();
            class.sums.clear();
            class.sums.resize(planes, Aligned::default());
            class.planes.resize(planes, Aligned::default());
        }
    }

    /// Adds up to [`BLOCK`] draws from the first of a panel on. Vectors are filled up with draws that exclude the data.
    #[inline(always)]
    fn add_draws<S: Simd>(
        &mut self,
        simd: S,
        (classes, features, forms, log_alpha): (&impl Classes, &[Matrix], &[Form], &[f64]),
        start: usize,
        draws: usize,
    ) {
        let whole = draws.next_multiple_of(APART);
        self.l[..draws].copy_from_slice(&log_alpha[start..start + draws]);
        self.l[draws..whole].fill(f64::NEG_INFINITY);
        for c in 0..classes.len() {
            let (class, Form { base, alpha, beta, gamma }) = (&mut self.classes[c], forms[c]);
            class.planes.iter_mut().for_each(|plane| plane[draws..whole].fill(0.0));
            classes.polynomials(c).combine_draws(simd, &features[classes.basis(c)], start, draws, &mut class.planes);
            let (residuals, l) = (&class.planes[0][..whole], &mut self.l[..whole]);
            let Some(sigma_a) = classes.sigma_a(c) else {
                add_scaled(simd, gamma / base, residuals, l);
                continue;
            };
            let mut own = Aligned([1.0; BLOCK]);
            own[..draws].copy_from_slice(&sigma_a[start..start + draws]);
            let (own, inverse) = (&own[..whole], &mut class.inverse[..whole]);
            for i in 0..whole {
                let v = own[i].mul_add(own[i], base);
                inverse[i] = v.recip();
                l[i] += alpha.mul_add(ln(v), gamma.mul_add(residuals[i], beta) * inverse[i]);
            }
        }
        let largest = largest(simd, &mut self.l[..whole], self.top);
        if largest > self.top {
            self.rescale(simd, exp(self.top - largest));
            self.top = largest;
        }
        if self.top == f64::NEG_INFINITY {
            return;
        }
        let Self { l, sum, classes: passes, top, .. } = self;
        let weights = &mut l[..whole];
        weigh(simd, *top, weights, sum);
        for (c, class) in passes.iter_mut().enumerate() {
            let ClassPass { planes, sums, by_variance, inverse } = class;
            if classes.sigma_a(c).is_none() {
                add_products(simd, weights, planes, sums);
                continue;
            }
            let Form { alpha, beta, gamma, .. } = forms[c];
            let (mut bar, mut variances) = (Aligned([0.0; BLOCK]), Aligned([0.0; BLOCK]));
            let (bar, variances) = (&mut bar[..whole], &mut variances[..whole]);
            let (residuals, inverse) = (&planes[0][..whole], &inverse[..whole]);
            for i in 0..whole {
                let scaled = gamma.mul_add(residuals[i], beta) * inverse[i];
                variances[i] = weights[i] * inverse[i] * (alpha - scaled);
                bar[i] = weights[i] * inverse[i] * gamma;
            }
            add_lanes(simd, variances, by_variance);
            add_products(simd, bar, &planes[1..], &mut sums[1..]);
        }
    }

    /// All sums times a factor.
    #[inline(always)]
    fn rescale<S: Simd>(&mut self, simd: S, factor: f64) {
        scale(simd, factor, &mut self.sum);
        for class in &mut self.classes {
            scale(simd, factor, &mut class.by_variance);
            class.sums.iter_mut().for_each(|by| scale(simd, factor, by));
        }
    }
}

/// `sums[i] *= factor`.
#[inline(always)]
fn scale<S: Simd>(simd: S, factor: f64, sums: &mut Sums) {
    for sums in S::as_mut_simd_f64s(sums.as_mut_slice()).0 {
        *sums = simd.mul_f64s(simd.splat_f64s(factor), *sums);
    }
}

/// `out[i] += factor x[i]`, for whole lanes.
#[inline(always)]
fn add_scaled<S: Simd>(simd: S, factor: f64, x: &[f64], out: &mut [f64]) {
    for (out, x) in S::as_mut_simd_f64s(out).0.iter_mut().zip(S::as_simd_f64s(x).0) {
        *out = simd.mul_add_f64s(simd.splat_f64s(factor), *x, *out);
    }
}

/// Sums over blocks of [`APART`] numbers that stay in registers: `add(own, i)` is the sum with the i-th register.
#[inline(always)]
fn fold_apart<S: Simd>(simd: S, n: usize, sums: &mut Sums, add: impl Fn(S::f64s, usize) -> S::f64s) {
    let count = APART / S::F64_LANES;
    let mut own = [simd.splat_f64s(0.0); APART];
    own[..count].copy_from_slice(S::as_simd_f64s(sums.as_slice()).0);
    let mut first = 0;
    while first < n / S::F64_LANES {
        for j in 0..count {
            own[j] = add(own[j], first + j);
        }
        first += count;
    }
    S::as_mut_simd_f64s(sums.as_mut_slice()).0.copy_from_slice(&own[..count]);
}

/// `sums[i mod APART] += x[i]`, for whole lanes.
#[inline(always)]
fn add_lanes<S: Simd>(simd: S, x: &[f64], sums: &mut Sums) {
    let registers = S::as_simd_f64s(x).0;
    fold_apart(
        simd,
        x.len(),
        sums,
        #[inline(always)]
        |own, i| simd.add_f64s(own, registers[i]),
    );
}

/// `sums[j][i mod APART] += x[i] planes[j][i]`, for whole lanes.
#[inline(always)]
fn add_products<S: Simd>(simd: S, x: &[f64], planes: &[Aligned<BLOCK>], sums: &mut [Sums]) {
    let left = S::as_simd_f64s(x).0;
    for (plane, sums) in planes.iter().zip(sums) {
        let right = &S::as_simd_f64s(plane.as_slice()).0[..left.len()];
        fold_apart(
            simd,
            x.len(),
            sums,
            #[inline(always)]
            |own, i| simd.mul_add_f64s(left[i], right[i], own),
        );
    }
}

/// `l[i] = exp(l[i] - top)`, where no l is above top, and `sums[i mod APART] += l[i]`.
#[inline(always)]
fn weigh<S: Simd>(simd: S, top: f64, l: &mut [f64], sums: &mut Sums) {
    for l in l.as_chunks_mut::<APART>().0 {
        let l = S::as_mut_simd_f64s(l).0;
        if S::F64_LANES == LANES {
            l.as_chunks_mut::<6>().0.iter_mut().for_each(
                #[inline(always)]
                |l| weigh_registers(simd, top, l),
            );
        } else {
            l.as_chunks_mut::<4>().0.iter_mut().for_each(
                #[inline(always)]
                |l| weigh_registers(simd, top, l),
            );
        }
    }
    add_lanes(simd, l, sums);
}

#[inline(always)]
fn weigh_registers<S: Simd, const N: usize>(simd: S, top: f64, l: &mut [S::f64s; N]) {
    for l in &mut *l {
        *l = simd.sub_f64s(*l, simd.splat_f64s(top));
    }
    super::exp_registers(simd, l);
}

/// The largest of log-likelihoods, in whole lanes, and of `least`. Those that are not numbers become minus infinity: they arise where
/// terms of both signs overflow, far outside anything the data allow.
#[inline(always)]
fn largest<S: Simd>(simd: S, l: &mut [f64], least: f64) -> f64 {
    let (none, mut largest) = (simd.splat_f64s(f64::NEG_INFINITY), [simd.splat_f64s(least); 3]);
    for l in S::as_mut_simd_f64s(l).0.as_chunks_mut::<3>().0 {
        for (l, largest) in l.iter_mut().zip(&mut largest) {
            *l = simd.select_f64s(simd.greater_than_f64s(*l, none), *l, none);
            *largest = simd.max_f64s(*l, *largest);
        }
    }
    simd.reduce_max_f64s(simd.max_f64s(simd.max_f64s(largest[0], largest[1]), largest[2]))
}

/// The same for [`POINTS`] points: lanes are points, and a panel of draws is read once for all of them.
#[derive(Clone, Debug)]
struct ManyPass {
    top: Lanes,
    sum: Lanes,
    /// What its sums count among those of all passes.
    factor: Lanes,
    classes: Vec<ManyClass>,
    /// Log-likelihoods, then weights, of a panel.
    l: Vec<Lanes>,
    /// A panel's coefficients.
    near: Vec<f64>,
}

impl Default for ManyPass {
    fn default() -> Self {
        Self {
            top: Lanes::default(),
            sum: Lanes::default(),
            factor: Lanes::default(),
            classes: Vec::new(),
            l: vec![Lanes::default(); WIDE],
            near: Vec::new(),
        }
    }
}

/// The largest of the log-likelihoods at each point, and of `least`. Those that are not numbers become minus infinity, as in [`largest`].
#[inline(always)]
fn largest_of_points<S: Simd>(simd: S, l: &mut [Lanes], least: &Lanes) -> Lanes {
    let (mut largest, none) = (*least, simd.splat_f64s(f64::NEG_INFINITY));
    for (r, largest) in S::as_mut_simd_f64s(largest.as_mut_slice()).0.iter_mut().enumerate() {
        let mut own = *largest;
        for l in &mut *l {
            let l = &mut S::as_mut_simd_f64s(l.as_mut_slice()).0[r];
            *l = simd.select_f64s(simd.greater_than_f64s(*l, none), *l, none);
            own = simd.max_f64s(*l, own);
        }
        *largest = own;
    }
    largest
}

/// `lanes[p] *= factor[p]`.
#[inline(always)]
fn scale_points<S: Simd>(simd: S, factor: &Lanes, lanes: &mut Lanes) {
    let factor = S::as_simd_f64s(factor.as_slice()).0;
    for (lanes, factor) in S::as_mut_simd_f64s(lanes.as_mut_slice()).0.iter_mut().zip(factor) {
        *lanes = simd.mul_f64s(*lanes, *factor);
    }
}

#[derive(Clone, Debug, Default)]
struct ManyClass {
    by_feature: Vec<Lanes>,
    by_variance: Lanes,
    residuals: Vec<Lanes>,
    bar: Vec<Lanes>,
}

/// Derivatives at several points.
#[derive(Clone, Debug, Default)]
pub(crate) struct ManyPulled {
    /// Of every class, by the value of every basis function.
    pub(crate) by_feature: Vec<Vec<Lanes>>,
    /// Of every class, by `base`.
    pub(crate) by_variance: Vec<Lanes>,
}

/// [`pool_log_mean_exp`] at [`POINTS`] points together: features of each class by basis function and point, forms of each
/// class by point.
pub(crate) fn pool_many(
    classes: &impl Classes,
    features: &[Vec<Lanes>],
    forms: &[PointForms],
    log_alpha: &[f64],
    scratch: &mut PoolScratch,
    pulled: &mut ManyPulled,
) -> [f64; POINTS] {
    let draws = log_alpha.len();
    let chunks = draws.div_ceil(CHUNK).max(1);
    scratch.readings += 1;
    scratch.many.resize_with(chunks, ManyPass::default);
    let run = |(chunk, pass): (usize, &mut ManyPass)| {
        pass.reset(classes);
        let draws = chunk * CHUNK..((chunk + 1) * CHUNK).min(draws);
        Arch::new().dispatch(AddMany { pass, classes, features, forms, log_alpha, draws });
    };
    each(&mut scratch.many, 1, run);
    let PoolScratch { many, .. } = scratch;
    dispatch(
        #[inline(always)]
        || finish_many(many, classes, features, forms, pulled),
    )
}

/// The values of all passes together; their derivatives go to `pulled`.
#[inline(always)]
fn finish_many(
    many: &mut [ManyPass],
    classes: &impl Classes,
    features: &[Vec<Lanes>],
    forms: &[PointForms],
    pulled: &mut ManyPulled,
) -> [f64; POINTS] {
    let mut top = [f64::NEG_INFINITY; POINTS];
    for pass in &*many {
        for p in 0..POINTS {
            top[p] = if pass.top[p] > top[p] { pass.top[p] } else { top[p] };
        }
    }
    // Loops rather than closures that make arrays: those would not be compiled for the instructions of this function.
    let (mut sum, mut value) = ([0.0; POINTS], [0.0; POINTS]);
    for pass in &mut *many {
        for p in 0..POINTS {
            let shift = if top[p] > f64::NEG_INFINITY { top[p] } else { 0.0 };
            pass.factor[p] = exp(pass.top[p] - shift);
            sum[p] += pass.factor[p] * pass.sum[p];
        }
    }
    for p in 0..POINTS {
        value[p] = if sum[p] > 0.0 { top[p] + ln(sum[p]) } else { f64::NEG_INFINITY };
    }
    for pass in &mut *many {
        for p in 0..POINTS {
            pass.factor[p] = if sum[p] > 0.0 { pass.factor[p] / sum[p] } else { 0.0 };
        }
    }
    pulled.by_feature.resize_with(classes.len(), Vec::new);
    pulled.by_variance.resize(classes.len(), Lanes::default());
    for c in 0..classes.len() {
        let (by_feature, by_variance) = (&mut pulled.by_feature[c], &mut pulled.by_variance[c]);
        by_feature.clear();
        by_feature.resize(classes.polynomials(c).rows(), Lanes::default());
        *by_variance = Lanes::default();
        for pass in &*many {
            let factor = pass.factor;
            for (out, sums) in by_feature.iter_mut().zip(&pass.classes[c].by_feature) {
                for p in 0..POINTS {
                    out[p] = factor[p].mul_add(sums[p], out[p]);
                }
            }
            for p in 0..POINTS {
                by_variance[p] += factor[p] * pass.classes[c].by_variance[p];
            }
        }
        if classes.sigma_a(c).is_none() {
            let mut mean = [0.0; POINTS];
            for (by, q) in by_feature.iter().zip(&features[classes.basis(c)]) {
                for p in 0..POINTS {
                    mean[p] = by[p].mul_add(q[p], mean[p]);
                }
            }
            let (PointForms { base, alpha, beta, gamma }, mut slopes) = (&forms[c], [0.0; POINTS]);
            for p in 0..POINTS {
                let form = Form { base: base[p], alpha: *alpha, beta: *beta, gamma: *gamma };
                let (rest, slope) = form.affine();
                value[p] += rest;
                by_variance[p] = (alpha - (beta + gamma * mean[p]) / base[p]) / base[p];
                slopes[p] = slope;
            }
            for by in by_feature.iter_mut() {
                for p in 0..POINTS {
                    by[p] *= slopes[p];
                }
            }
        }
    }
    value
}

/// Some draws added to a pass for several points.
struct AddMany<'a, C> {
    pass: &'a mut ManyPass,
    classes: &'a C,
    features: &'a [Vec<Lanes>],
    forms: &'a [PointForms],
    log_alpha: &'a [f64],
    draws: std::ops::Range<usize>,
}

impl<C: Classes> WithSimd for AddMany<'_, C> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { pass, classes, features, forms, log_alpha, draws } = self;
        for (start, width) in panels(draws) {
            pass.add_panel(simd, (classes, features, forms, log_alpha), start, width);
        }
    }
}

impl ManyPass {
    fn reset(&mut self, classes: &impl Classes) {
        (self.top, self.sum) = (Aligned([f64::NEG_INFINITY; POINTS]), Lanes::default());
        self.classes.resize_with(classes.len(), ManyClass::default);
        for (c, class) in self.classes.iter_mut().enumerate() {
            class.by_variance = Lanes::default();
            class.by_feature.clear();
            class.by_feature.resize(classes.polynomials(c).rows(), Lanes::default());
            class.residuals.resize(WIDE, Lanes::default());
            class.bar.resize(WIDE, Lanes::default());
        }
    }

    #[inline(always)]
    fn add_panel<S: Simd>(
        &mut self,
        simd: S,
        (classes, features, forms, log_alpha): (&impl Classes, &[Vec<Lanes>], &[PointForms], &[f64]),
        start: usize,
        width: usize,
    ) {
        let Self { top, sum, classes: passes, l, near, .. } = self;
        let l = &mut l[..width];
        for (l, alpha) in l.iter_mut().zip(&log_alpha[start..start + width]) {
            *l = Aligned([*alpha; POINTS]);
        }
        for c in 0..classes.len() {
            let (panel, residuals) = (classes.polynomials(c).panel(start, width), &mut passes[c].residuals[..width]);
            let panel: &[f64] = if 8 * classes.polynomials(c).data.len() > FAR {
                near.clear();
                near.extend_from_slice(panel);
                &*near
            } else {
                panel
            };
            residuals_of(simd, panel, width, &features[classes.basis(c)], residuals);
            match classes.sigma_a(c) {
                None => {
                    let mut slope = [0.0; POINTS];
                    for p in 0..POINTS {
                        slope[p] = forms[c].gamma / forms[c].base[p];
                    }
                    let slope = S::as_simd_f64s(&slope).0;
                    for (l, residuals) in l.iter_mut().zip(&*residuals) {
                        let l = S::as_mut_simd_f64s(l.as_mut_slice()).0;
                        let residuals = S::as_simd_f64s(residuals.as_slice()).0;
                        for r in 0..POINTS / S::F64_LANES {
                            l[r] = simd.mul_add_f64s(slope[r], residuals[r], l[r]);
                        }
                    }
                }
                Some(sigma_a) => {
                    let PointForms { base, alpha, beta, gamma } = &forms[c];
                    for ((l, residuals), sigma_a) in l.iter_mut().zip(&*residuals).zip(&sigma_a[start..]) {
                        for p in 0..POINTS {
                            let v = sigma_a.mul_add(*sigma_a, base[p]);
                            let scaled = gamma.mul_add(residuals[p], *beta) / v;
                            l[p] += alpha.mul_add(ln(v), scaled);
                        }
                    }
                }
            }
        }
        let largest = largest_of_points(simd, l, top);
        if largest != *top {
            let mut factor = Lanes::default();
            for p in 0..POINTS {
                factor[p] = if largest[p] > top[p] { exp(top[p] - largest[p]) } else { 1.0 };
            }
            *top = largest;
            scale_points(simd, &factor, sum);
            for class in passes.iter_mut() {
                scale_points(simd, &factor, &mut class.by_variance);
                class.by_feature.iter_mut().for_each(|by| scale_points(simd, &factor, by));
            }
        }
        let mut shift = [0.0; POINTS];
        for p in 0..POINTS {
            // Where all draws so far exclude the data their weights are zero whatever is taken off.
            shift[p] = if top[p] > f64::NEG_INFINITY { top[p] } else { 0.0 };
        }
        for l in l.iter_mut() {
            for p in 0..POINTS {
                l[p] = exp(l[p] - shift[p]);
                sum[p] += l[p];
            }
        }
        for c in 0..classes.len() {
            let ManyClass { by_feature, by_variance, residuals, bar } = &mut passes[c];
            let panel = classes.polynomials(c).panel(start, width);
            match classes.sigma_a(c) {
                None => pull_points(simd, panel, width, l, by_feature),
                Some(sigma_a) => {
                    let PointForms { base, alpha, beta, gamma } = &forms[c];
                    for (s, weights) in l.iter().enumerate() {
                        let sigma_a = sigma_a[start + s];
                        for p in 0..POINTS {
                            let inverse = sigma_a.mul_add(sigma_a, base[p]).recip();
                            let scaled = gamma.mul_add(residuals[s][p], *beta) * inverse;
                            let weight = weights[p] * inverse;
                            by_variance[p] += weight * (alpha - scaled);
                            bar[s][p] = weight * gamma;
                        }
                    }
                    pull_points(simd, panel, width, &bar[..width], by_feature);
                }
            }
        }
    }
}

/// Draws or rows that go together where sums for [`POINTS`] points are two registers, or four: as many as keep both multipliers busy and leave room
/// for what is read.
const TOGETHER: [usize; 4] = [6, 3, 2, 1];

/// The pieces of so many draws or rows that registers are there for.
#[inline(always)]
fn together<S: Simd>(n: usize) -> impl Iterator<Item = (usize, usize)> {
    cut(0..n, if S::F64_LANES == LANES { &TOGETHER } else { &TOGETHER[2..] })
}

/// `out[s] = R_s` at all points, for the draws of a panel.
#[inline(always)]
fn residuals_of<S: Simd>(simd: S, panel: &[f64], width: usize, q: &[Lanes], out: &mut [Lanes]) {
    for (i, count) in together::<S>(width) {
        match count {
            6 => residuals::<S, 6>(simd, panel, width, i, q, out),
            3 => residuals::<S, 3>(simd, panel, width, i, q, out),
            2 => residuals::<S, 2>(simd, panel, width, i, q, out),
            _ => residuals::<S, 1>(simd, panel, width, i, q, out),
        }
    }
}

/// `out[s] = R_s` at all points, for `D` draws from draw `i` of a panel on.
#[inline(always)]
fn residuals<S: Simd, const D: usize>(simd: S, panel: &[f64], width: usize, i: usize, q: &[Lanes], out: &mut [Lanes]) {
    let (mut sums, count) = ([[simd.splat_f64s(0.0); POINTS]; D], POINTS / S::F64_LANES);
    for (row, q) in panel.chunks_exact(width).zip(q) {
        let row: &[f64; D] = row[i..i + D].try_into().expect("within the panel");
        let q = S::as_simd_f64s(q.as_slice()).0;
        for j in 0..D {
            let c = simd.splat_f64s(row[j]);
            for r in 0..count {
                sums[j][r] = simd.mul_add_f64s(c, q[r], sums[j][r]);
            }
        }
    }
    for (out, sums) in out[i..i + D].iter_mut().zip(&sums) {
        S::as_mut_simd_f64s(out.as_mut_slice()).0.copy_from_slice(&sums[..count]);
    }
}

/// `sums[k] += sum_s c[k, s] bar[s]` at all points, over the draws of a panel.
#[inline(always)]
fn pull_points<S: Simd>(simd: S, panel: &[f64], width: usize, bar: &[Lanes], sums: &mut [Lanes]) {
    for (k, count) in together::<S>(sums.len()) {
        match count {
            6 => pull_rows::<S, 6>(simd, panel, width, k, bar, sums),
            3 => pull_rows::<S, 3>(simd, panel, width, k, bar, sums),
            2 => pull_rows::<S, 2>(simd, panel, width, k, bar, sums),
            _ => pull_rows::<S, 1>(simd, panel, width, k, bar, sums),
        }
    }
}

/// The same for `D` rows from row `k` on.
#[inline(always)]
fn pull_rows<S: Simd, const D: usize>(
    simd: S,
    panel: &[f64],
    width: usize,
    k: usize,
    bar: &[Lanes],
    sums: &mut [Lanes],
) {
    let (rows, bar) = (&panel[k * width..(k + D) * width], &bar[..width]);
    let (mut own, count) = ([[simd.splat_f64s(0.0); POINTS]; D], POINTS / S::F64_LANES);
    let sums: &mut [Lanes; D] = (&mut sums[k..k + D]).try_into().expect("within the rows");
    for j in 0..D {
        for (r, sum) in S::as_simd_f64s(sums[j].as_slice()).0.iter().enumerate() {
            own[j][r] = *sum;
        }
    }
    for (s, bar) in bar.iter().enumerate() {
        let bar = S::as_simd_f64s(bar.as_slice()).0;
        for j in 0..D {
            let c = simd.splat_f64s(rows[j * width + s]);
            for r in 0..count {
                own[j][r] = simd.mul_add_f64s(c, bar[r], own[j][r]);
            }
        }
    }
    for j in 0..D {
        for (r, sum) in S::as_mut_simd_f64s(sums[j].as_mut_slice()).0.iter_mut().enumerate() {
            *sum = own[j][r];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two classes of few coefficients, one with approximation errors.
    struct Two {
        polynomials: [Panels; 2],
        sigma_a: Vec<f64>,
    }

    impl Classes for Two {
        fn len(&self) -> usize {
            2
        }

        fn polynomials(&self, c: usize) -> &Panels {
            &self.polynomials[c]
        }

        fn basis(&self, c: usize) -> usize {
            c
        }

        fn sigma_a(&self, c: usize) -> Option<&[f64]> {
            (c == 1).then_some(&self.sigma_a)
        }
    }

    const FORMS: [Form; 2] = [
        Form { base: 0.7, alpha: -1.5, beta: -0.3, gamma: -0.5 },
        Form { base: 0.4, alpha: -2.0, beta: -0.1, gamma: -1.5 },
    ];

    fn coefficient(k: usize, s: usize) -> f64 {
        1.0 + 0.3 * ((7 * k + 3 * s) as f64).sin()
    }

    fn two(draws: usize) -> Two {
        let of_rows = |rows: usize| Panels::new(&Matrix::from_fn(rows, draws, coefficient));
        Two {
            polynomials: [of_rows(5), of_rows(3)],
            sigma_a: (0..draws).map(|s| 0.2 + 0.1 * (s as f64).cos()).collect(),
        }
    }

    fn features(shift: f64) -> [Vec<f64>; 2] {
        [5, 3].map(|n| (0..n).map(|k| 0.4 + 0.2 * (k as f64 + shift).cos()).collect())
    }

    /// Features as they are, with derivatives by unknowns each of which moves one feature: derivatives by unknowns are those by features.
    fn with_slopes(features: &[Vec<f64>]) -> Vec<Matrix> {
        let one = |j: usize, k: usize| f64::from(u8::from(j == k + 1));
        let of_class =
            |q: &Vec<f64>| Matrix::from_fn(q.len() + 1, q.len(), |j, k| if j == 0 { q[k] } else { one(j, k) });
        features.iter().map(of_class).collect()
    }

    /// The pooled log-likelihood term by term, and the sum of the absolute terms of a log-likelihood.
    fn naive(draws: usize, features: &[Vec<f64>], bases: [f64; 2], log_alpha: &[f64]) -> (f64, f64) {
        let mut size = 0.0;
        let of_draw = |s: usize| {
            let mut l = log_alpha[s];
            for (c, form) in FORMS.iter().enumerate() {
                let r: f64 = features[c].iter().enumerate().map(|(k, q)| q * coefficient(k, s)).sum();
                let sigma_a = if c == 1 { 0.2 + 0.1 * (s as f64).cos() } else { 0.0 };
                let v = bases[c] + sigma_a * sigma_a;
                let terms = [form.alpha * v.ln(), form.beta / v, form.gamma * r / v];
                size = f64::max(size, terms.iter().map(|t| t.abs()).sum::<f64>() + l.abs());
                l += terms.iter().sum::<f64>();
            }
            l
        };
        let l: Vec<f64> = (0..draws).map(of_draw).collect();
        (crate::special::log_sum_exp(&l), size)
    }

    proptest! {
        #[test]
        fn polynomials_combine_and_pull_as_written(rows in 1_usize..7, draws in 1_usize..130) {
            let matrix = Matrix::from_fn(rows, draws, coefficient);
            let panels = Panels::new(&matrix);
            let q: Vec<f64> = (0..rows).map(|k| (k as f64 + 0.5).sin()).collect();
            let (mut out, mut back) = (vec![0.0; draws], vec![0.0; rows]);
            panels.combine(&q, &mut out);
            // Each of the terms, none above 1.3, is rounded a few times.
            let bound = |terms: usize| 8.0 * terms as f64 * f64::EPSILON * 1.3 * terms as f64;
            for (s, out) in out.iter().enumerate() {
                let exact: f64 = (0..rows).map(|k| q[k] * matrix[(k, s)]).sum();
                prop_assert!((out - exact).abs() <= bound(rows));
            }
            let lanes: Vec<Lanes> = q.iter().map(|q| Aligned(std::array::from_fn(|p| q * (p as f64 + 1.0)))).collect();
            let mut points = vec![0.0; 3 * draws];
            panels.combine_points(&lanes, 3, &mut points);
            for (i, value) in points.iter().enumerate() {
                prop_assert!((value - out[i % draws] * (i / draws + 1) as f64).abs() <= 3.0 * bound(rows));
            }
            panels.pull(&out, &mut Vec::new(), &mut back);
            for (k, back) in back.iter().enumerate() {
                let exact: f64 = (0..draws).map(|s| matrix[(k, s)] * out[s]).sum();
                prop_assert!((back - exact).abs() <= 1.3 * rows as f64 * bound(draws));
            }
            let picked: Vec<usize> = (0..draws).step_by(3).collect();
            let mut of_picked = vec![0.0; picked.len()];
            panels.select(&picked).combine(&q, &mut of_picked);
            for (value, s) in of_picked.iter().zip(&picked) {
                prop_assert!((value - out[*s]).abs() <= 2.0 * bound(rows));
            }
        }

        #[test]
        fn pooled_log_likelihoods_are_their_sums(draws in 1_usize..130) {
            let (two, scratch) = (two(draws), &mut PoolScratch::default());
            let log_alpha: Vec<f64> = (0..draws).map(|s| -(draws as f64).ln() + 0.5 * (s as f64).sin()).collect();
            let (features, bases) = (features(0.0), FORMS.map(|form| form.base));
            let (exact, size) = naive(draws, &features, bases, &log_alpha);
            let value = pool_log_mean_exp(&two, &with_slopes(&features), &FORMS, &log_alpha, scratch);
            let bound = 32.0 * f64::EPSILON * size;
            prop_assert!((value - exact).abs() <= bound, "{value} {exact}");
            // Derivatives by differences: of third derivatives below ten, at steps of 1e-5.
            let difference = |f: &dyn Fn(f64) -> f64| (f(1e-5) - f(-1e-5)) / 2e-5;
            let tolerance = 10.0 * 1e-10 + bound / 1e-5;
            for c in 0..2 {
                for k in 0..features[c].len() {
                    let by = difference(&|h| {
                        let mut moved = features.clone();
                        moved[c][k] += h;
                        naive(draws, &moved, bases, &log_alpha).0
                    });
                    prop_assert!((scratch.pulled[c].by_own[k] - by).abs() <= tolerance);
                }
                let by = difference(&|h| {
                    let mut moved = bases;
                    moved[c] += h;
                    naive(draws, &features, moved, &log_alpha).0
                });
                // The logarithm and the reciprocal of v have third derivatives up to 6 size / v^3.
                let tolerance = tolerance + 6.0 * size / 0.4_f64.powi(3) * 1e-10;
                prop_assert!((scratch.pulled[c].by_variance - by).abs() <= tolerance);
            }
        }

        #[test]
        fn points_together_are_points_by_themselves(draws in 1_usize..130) {
            let (two, scratch) = (two(draws), &mut PoolScratch::default());
            let log_alpha = vec![-(draws as f64).ln(); draws];
            let own: Vec<[Vec<f64>; 2]> = (0..POINTS).map(|p| features(0.1 * p as f64)).collect();
            let base = |c: usize, p: usize| FORMS[c].base * (1.0 + 0.1 * p as f64);
            let lanes: Vec<Vec<Lanes>> = (0..2)
                .map(|c| (0..own[0][c].len()).map(|k| Aligned(std::array::from_fn(|p| own[p][c][k]))).collect())
                .collect();
            let forms: Vec<PointForms> = (0..2)
                .map(|c| {
                    let Form { alpha, beta, gamma, .. } = FORMS[c];
                    PointForms { base: std::array::from_fn(|p| base(c, p)), alpha, beta, gamma }
                })
                .collect();
            let mut pulled = ManyPulled::default();
            let values = pool_many(&two, &lanes, &forms, &log_alpha, scratch, &mut pulled);
            for p in 0..POINTS {
                let forms = [0, 1].map(|c| Form { base: base(c, p), ..FORMS[c] });
                let value = pool_log_mean_exp(&two, &with_slopes(&own[p]), &forms, &log_alpha, scratch);
                let (_, size) = naive(draws, &own[p], forms.map(|form| form.base), &log_alpha);
                let bound = 64.0 * f64::EPSILON * size;
                prop_assert!((values[p] - value).abs() <= bound);
                for c in 0..2 {
                    // Derivatives are sums of weights, which carry the error of a log-likelihood, times gamma / v.
                    let bound = bound * 1.5 / 0.4 * size;
                    let pairs = pulled.by_feature[c].iter().zip(&scratch.pulled[c].by_own);
                    prop_assert!(pairs.into_iter().all(|(a, b)| (a[p] - b).abs() <= bound));
                    prop_assert!((pulled.by_variance[c][p] - scratch.pulled[c].by_variance).abs() <= bound / 0.4);
                }
            }
        }
    }

    /// The sums of a pass over all draws, made with these registers.
    fn pass_with<S: Simd>(simd: S, draws: usize) -> Vec<u64> {
        let (two, features) = (two(draws), with_slopes(&features(0.0)));
        let log_alpha: Vec<f64> = (0..draws).map(|s| 0.5 * (s as f64).sin()).collect();
        let mut pass = Pass::default();
        pass.reset(&two, &features);
        simd.vectorize(Add {
            pass: &mut pass,
            classes: &two,
            features: &features,
            forms: &FORMS,
            log_alpha: &log_alpha,
            draws: 0..draws,
        });
        let of_classes = pass.classes.iter().flat_map(|class| class.sums.iter().chain([&class.by_variance]));
        let sums = of_classes.chain([&pass.sum]).flat_map(|sums| sums.0);
        sums.chain([pass.top]).map(f64::to_bits).collect()
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn registers_of_any_width_sum_the_same_bits() {
        for draws in [1, 3, 7, 13, 47, 48, 100, 289, 1000] {
            let narrowest = pass_with(pulp::Scalar::new(), draws);
            if let Some(simd) = pulp::x86::V3::try_new() {
                assert_eq!(pass_with(simd, draws), narrowest, "{draws} draws in registers of four");
            }
            if let Some(simd) = pulp::x86::V4::try_new() {
                assert_eq!(pass_with(simd, draws), narrowest, "{draws} draws in registers of eight");
            }
        }
    }

    #[test]
    fn many_draws_are_summed_in_chunks() {
        let draws = 2 * CHUNK + 61;
        let (two, scratch) = (two(draws), &mut PoolScratch::default());
        let log_alpha = vec![-(draws as f64).ln(); draws];
        let (features, bases) = (features(0.0), FORMS.map(|form| form.base));
        let (exact, size) = naive(draws, &features, bases, &log_alpha);
        let value = pool_log_mean_exp(&two, &with_slopes(&features), &FORMS, &log_alpha, scratch);
        // A sum of as many terms, in lanes and chunks.
        assert!((value - exact).abs() <= f64::EPSILON * (32.0 * size + draws as f64 / LANES as f64), "{value} {exact}");
        assert_eq!(scratch.passes.len(), 3);
    }

    #[test]
    fn draws_that_exclude_the_data_have_no_say() {
        let (two, scratch) = (two(50), &mut PoolScratch::default());
        let mut log_alpha = vec![f64::NEG_INFINITY; 50];
        assert_eq!(
            pool_log_mean_exp(&two, &with_slopes(&features(0.0)), &FORMS, &log_alpha, scratch),
            f64::NEG_INFINITY
        );
        assert!(scratch.pulled[1].by_own.iter().all(|by| *by == 0.0));
        log_alpha[7] = 0.0;
        let value = pool_log_mean_exp(&two, &with_slopes(&features(0.0)), &FORMS, &log_alpha, scratch);
        let (exact, size) = naive(50, &features(0.0), FORMS.map(|form| form.base), &log_alpha);
        assert!((value - exact).abs() <= 32.0 * f64::EPSILON * size.min(1e3));
    }
}
