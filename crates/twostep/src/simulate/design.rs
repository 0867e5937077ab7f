//! A method, a number of runs and a number of inputs to the points of a design in the unit cube.

use std::fmt;
use std::str::FromStr;

use rand::RngExt;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};
use sobol::Sobol;
use sobol::params::JoeKuoD6;
use sobol_burley::parts::owen_scramble_rev;

use super::spelling_repair;
use crate::error::{Error, Result};
use crate::stream::Stream;

/// Bases of the Halton sequence, one per input.
///
/// The list ends where the sequence stops filling space: in bases 67 and 71 the first 66 points lie on one line.
const PRIMES: [u64; 20] = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71];

/// Inputs for which [`JoeKuoD6::standard`] has direction numbers.
const MAX_SOBOL_INPUTS: usize = 1000;

/// Most coordinates, runs times inputs, that a design may have: a gibibyte.
const MAX_COORDINATES: usize = 1 << 27;

/// How the points of a design are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Method {
    /// The paper's: both ends of every input at once, (0, ..., 0) and (1, ..., 1), then [`Method::Halton`].
    HaltonEnds,
    /// Van der Corput's sequence in another prime base per input, from index 1 [Halton 1960]. At most 20 inputs.
    Halton,
    /// Sobol' sequence from the origin, direction numbers of [Joe and Kuo 2008]. At most 1000 inputs.
    Sobol,
    /// [`Method::Sobol`] with a hashed Owen scramble per input [Burley 2020]: each point is uniform, together they are
    /// as even as Sobol's, and none lies on the border.
    SobolScrambled,
    /// One point in each of n equal slices of each input, at random within its slice [McKay 1979].
    LatinHypercube,
    /// All combinations of k equally spaced values, the ends among them; the last input varies fastest. n must be
    /// k to the power of the number of inputs, k at least 2.
    Grid,
    /// Independent and uniform.
    Random,
}

impl Method {
    /// All methods, in the order of their description.
    pub const ALL: [Self; 7] = [
        Self::HaltonEnds,
        Self::Halton,
        Self::Sobol,
        Self::SobolScrambled,
        Self::LatinHypercube,
        Self::Grid,
        Self::Random,
    ];

    /// The name in a study file.
    pub fn name(self) -> &'static str {
        match self {
            Self::HaltonEnds => "halton-ends",
            Self::Halton => "halton",
            Self::Sobol => "sobol",
            Self::SobolScrambled => "sobol-scrambled",
            Self::LatinHypercube => "latin-hypercube",
            Self::Grid => "grid",
            Self::Random => "random",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name).ok_or_else(|| {
            let found = format!("there is no method \"{name}\"");
            Error::invalid("design.method", found, spelling_repair(name, &Self::ALL.map(Self::name)))
        })
    }
}

impl TryFrom<String> for Method {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        name.parse()
    }
}

impl From<Method> for String {
    fn from(method: Method) -> Self {
        method.name().to_owned()
    }
}

/// `n` points in [0, 1]^dim, one a row.
///
/// `SobolScrambled`, `LatinHypercube` and `Random` draw from `stream`, the others leave it alone. Except for
/// `LatinHypercube` and `Grid`, the first points are the same for every larger `n`.
///
/// An error for no runs, no inputs, more inputs than the method knows, a count that makes no grid, or a design beyond
/// 2^27 coordinates.
pub fn unit_points(method: Method, n: usize, dim: usize, stream: Stream) -> Result<Vec<Vec<f64>>> {
    if n == 0 {
        return Err(Error::invalid("design.runs", "a design of 0 runs", "ask for at least 1 run"));
    }
    if dim == 0 {
        return Err(Error::invalid("design", "there is no input to vary", "add an unknown or a condition"));
    }
    if n.checked_mul(dim).is_none_or(|coordinates| coordinates > MAX_COORDINATES) {
        let found = format!("{n} runs of {dim} inputs are more than {MAX_COORDINATES} coordinates");
        return Err(Error::invalid("design.runs", found, format!("ask for at most {} runs", MAX_COORDINATES / dim)));
    }
    match method {
        Method::HaltonEnds => {
            let ends = [vec![0.0; dim], vec![1.0; dim]];
            Ok(ends.into_iter().chain(halton(method, dim)?).take(n).collect())
        }
        Method::Halton => Ok(halton(method, dim)?.take(n).collect()),
        Method::Sobol => {
            Ok(sobol(method, dim)?.take(n).map(|point| point.into_iter().map(cell_start).collect()).collect())
        }
        Method::SobolScrambled => {
            let mut rng = stream.rng();
            let scrambles: Vec<u32> = (0..dim).map(|_| rng.random()).collect();
            let scrambled = |(value, scramble): (u32, &u32)| {
                // Half a cell inwards: the mean is 1/2 and neither end can occur.
                let value = owen_scramble_rev(value.reverse_bits(), *scramble).reverse_bits();
                cell_start(value) + 0.5 * cell_start(1)
            };
            Ok(sobol(method, dim)?
                .take(n)
                .map(|point| point.into_iter().zip(&scrambles).map(scrambled).collect())
                .collect())
        }
        Method::LatinHypercube => Ok(latin_hypercube(n, dim, stream)),
        Method::Grid => grid(n, dim),
        Method::Random => {
            let mut rng = stream.rng();
            Ok((0..n).map(|_| (0..dim).map(|_| rng.random()).collect()).collect())
        }
    }
}

/// How points that are always the same are moved so that they are others for every stream.
pub fn how_varied(method: Option<Method>) -> Option<&'static str> {
    match method {
        Some(Method::HaltonEnds) => Some("Halton points are shifted at random, modulo 1, between ends that stay"),
        Some(Method::Halton) => Some("Halton points are shifted at random, modulo 1"),
        Some(Method::Sobol) => Some("Sobol' points are scrambled at random"),
        Some(Method::Grid) | None => Some("points are moved at random by up to half their distance"),
        Some(Method::SobolScrambled | Method::LatinHypercube | Method::Random) => None,
    }
}

/// [`unit_points`] that differ from stream to stream for every method: see [`how_varied`].
///
/// # Errors
/// As for [`unit_points`].
pub fn varied_points(method: Method, n: usize, dim: usize, stream: Stream) -> Result<Vec<Vec<f64>>> {
    let method = if method == Method::Sobol { Method::SobolScrambled } else { method };
    let mut points = unit_points(method, n, dim, stream)?;
    match method {
        Method::HaltonEnds if n > 2 => shift(&mut points[2..], dim, stream),
        Method::HaltonEnds => jitter(&mut points, stream),
        Method::Halton => shift(&mut points, dim, stream),
        Method::Grid => jitter(&mut points, stream),
        Method::Sobol | Method::SobolScrambled | Method::LatinHypercube | Method::Random => {}
    }
    Ok(points)
}

/// Moves all points by one uniform vector, modulo 1.
fn shift(points: &mut [Vec<f64>], dim: usize, stream: Stream) {
    let mut rng = stream.rng();
    let by: Vec<f64> = (0..dim).map(|_| rng.random()).collect();
    for point in points {
        point.iter_mut().zip(&by).for_each(|(u, by)| *u = (*u + by).fract());
    }
}

/// Moves every coordinate by up to half of what separates as many points on a grid, reflected at 0 and 1; equal points stay
/// equal.
pub fn jitter(points: &mut [Vec<f64>], stream: Stream) {
    let mut rng = stream.rng();
    let first: Vec<usize> = (0..points.len()).map(|i| (0..i).find(|&j| points[j] == points[i]).unwrap_or(i)).collect();
    let dim = points.first().map_or(1, Vec::len).max(1);
    let half = 0.5 / (points.len() as f64).powf(1.0 / dim as f64);
    for u in points.iter_mut().flatten() {
        let moved = (*u + half * rng.random_range(-1.0..1.0)).abs();
        *u = if moved > 1.0 { 2.0 - moved } else { moved };
    }
    for (i, first) in first.into_iter().enumerate() {
        points[i] = points[first].clone();
    }
}

/// The Halton sequence from index 1.
fn halton(method: Method, dim: usize) -> Result<impl Iterator<Item = Vec<f64>>> {
    let bases = PRIMES.get(..dim).ok_or_else(|| too_many_inputs(method, dim, PRIMES.len()))?;
    Ok((1..).map(|index| bases.iter().map(|&base| radical_inverse(index, base)).collect()))
}

/// The digits of `index` in `base`, mirrored at the point: 6 = 110 in base 2 becomes 0.011 = 3/8.
///
/// Correctly rounded as long as `index * base` < 2^53, since numerator and denominator are then exact.
fn radical_inverse(mut index: u64, base: u64) -> f64 {
    let (mut mirrored, mut scale) = (0, 1);
    while index > 0 {
        mirrored = mirrored * base + index % base;
        scale *= base;
        index /= base;
    }
    mirrored as f64 / scale as f64
}

/// The Sobol' sequence from the origin, as multiples of 2^-32.
fn sobol(method: Method, dim: usize) -> Result<Sobol<u32>> {
    if dim > MAX_SOBOL_INPUTS {
        return Err(too_many_inputs(method, dim, MAX_SOBOL_INPUTS));
    }
    // Both tables are the same up to input 100; reading the longer one takes half a millisecond.
    let directions = if dim <= 100 { JoeKuoD6::minimal() } else { JoeKuoD6::standard() };
    Ok(Sobol::new(dim, &directions))
}

/// `value` 2^-32, exactly.
fn cell_start(value: u32) -> f64 {
    f64::from(value) / 2.0_f64.powi(32)
}

/// The i-th input's values and their order come from `stream.at(i)`.
fn latin_hypercube(n: usize, dim: usize, stream: Stream) -> Vec<Vec<f64>> {
    let mut points = vec![vec![0.0; dim]; n];
    for input in 0..dim {
        let mut rng = stream.at(input as u64).rng();
        let mut slices: Vec<usize> = (0..n).collect();
        slices.shuffle(&mut rng);
        for (point, slice) in points.iter_mut().zip(slices) {
            point[input] = (slice as f64 + rng.random::<f64>()) / n as f64;
        }
    }
    points
}

fn grid(n: usize, dim: usize) -> Result<Vec<Vec<f64>>> {
    let power = |per_input: usize| u32::try_from(dim).ok().and_then(|dim| per_input.checked_pow(dim));
    // The largest number per input that needs no more than n runs; n is below 2^27, so rounding is off by less than one.
    let root = (n as f64).powf(1.0 / dim as f64).round() as usize;
    let per_input = if power(root).is_some_and(|count| count <= n) { root } else { root - 1 };
    if per_input < 2 || power(per_input) != Some(n) {
        let counts: Vec<String> = [per_input, per_input + 1]
            .into_iter()
            .filter(|&per_input| per_input >= 2)
            .filter_map(|per_input| Some((per_input, power(per_input)?)))
            .filter(|(_, count)| *count <= MAX_COORDINATES / dim)
            .map(|(per_input, count)| format!("{count} ({per_input} per input)"))
            .collect();
        let repair = match counts.as_slice() {
            [] => "choose another design.method: a grid of so many inputs is out of reach".to_owned(),
            counts => format!("ask for {}", counts.join(" or ")),
        };
        return Err(Error::invalid("design.runs", format!("{n} runs make no grid of {dim} inputs"), repair));
    }
    let digit = |index: usize, input: usize| index / per_input.pow((dim - 1 - input) as u32) % per_input;
    let value = |digit: usize| digit as f64 / (per_input - 1) as f64;
    Ok((0..n).map(|index| (0..dim).map(|input| value(digit(index, input))).collect()).collect())
}

fn too_many_inputs(method: Method, dim: usize, limit: usize) -> Error {
    let other = if dim <= MAX_SOBOL_INPUTS { Method::Sobol } else { Method::LatinHypercube };
    let found = format!("{method} spreads at most {limit} inputs, not {dim}");
    Error::invalid("design.method", found, format!("choose \"{other}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varied_points_differ_by_stream_and_stay_inside() {
        for method in Method::ALL {
            let of = |seed| varied_points(method, 16, 2, Stream::root(seed)).unwrap();
            let (a, b) = (of(1), of(2));
            assert_eq!(a, of(1), "{method}");
            assert_ne!(a, b, "{method}");
            assert!(a.iter().chain(&b).flatten().all(|u| (0.0..=1.0).contains(u)), "{method}");
            let always_varies = unit_points(method, 16, 2, Stream::root(1)).unwrap()
                != unit_points(method, 16, 2, Stream::root(2)).unwrap();
            assert_eq!(how_varied(Some(method)).is_none(), always_varies, "{method}");
        }
        let two = |seed| varied_points(Method::HaltonEnds, 2, 2, Stream::root(seed)).unwrap();
        assert_ne!(two(1), two(2));
        let mut repeated = vec![vec![0.5], vec![0.2], vec![0.5]];
        jitter(&mut repeated, Stream::root(4));
        assert!(repeated[0] == repeated[2] && repeated[0] != [0.5]);
        let ends = varied_points(Method::HaltonEnds, 5, 2, Stream::root(3)).unwrap();
        assert_eq!(ends[..2], [vec![0.0; 2], vec![1.0; 2]]);
    }

    const SEED: u64 = 20_250_101;

    fn points(method: Method, n: usize, dim: usize) -> Vec<Vec<f64>> {
        unit_points(method, n, dim, Stream::root(SEED)).unwrap()
    }

    fn message(method: Method, n: usize, dim: usize) -> String {
        unit_points(method, n, dim, Stream::root(SEED)).unwrap_err().to_string()
    }

    /// Numbers of points in each of `slices` equal parts of one input's range.
    fn occupancy(points: &[Vec<f64>], input: usize, slices: usize) -> Vec<usize> {
        let mut counts = vec![0; slices];
        for point in points {
            counts[(point[input] * slices as f64) as usize] += 1;
        }
        counts
    }

    /// The inputs of the reference training set of the PCE case, in its order; all dyadic fractions.
    #[test]
    fn halton_ends_is_the_papers_design() {
        let on_both_sides: Vec<f64> = points(Method::HaltonEnds, 10, 1).iter().map(|x| 2.0 * x[0] - 1.0).collect();
        assert_eq!(on_both_sides, [-1.0, 1.0, 0.0, -0.5, 0.5, -0.75, 0.25, -0.25, 0.75, -0.875]);
    }

    #[test]
    fn halton_ends_precede_halton() {
        let with_ends = points(Method::HaltonEnds, 9, 3);
        assert_eq!(with_ends[..2], [vec![0.0; 3], vec![1.0; 3]]);
        assert_eq!(with_ends[2..], points(Method::Halton, 7, 3));
    }

    #[test]
    fn halton_mirrors_digits_in_prime_bases() {
        // Both sides are correctly rounded quotients of integers.
        let quotients = [
            [1., 2., 1., 3., 1., 5.],
            [1., 4., 2., 3., 2., 5.],
            [3., 4., 1., 9., 3., 5.],
            [1., 8., 4., 9., 4., 5.],
            [5., 8., 7., 9., 1., 25.],
        ];
        let expected: Vec<Vec<f64>> =
            quotients.iter().map(|q| q.chunks(2).map(|pair| pair[0] / pair[1]).collect()).collect();
        assert_eq!(points(Method::Halton, 5, 3), expected);
    }

    /// Equal to the unscrambled sequence of SciPy: the design of the reference training set of case study 3, t, beta and
    /// gamma brought to [0, 1], in units of 1/64.
    #[test]
    fn sobol_is_joe_and_kuos() {
        const SIXTY_FOURTHS: [[u8; 3]; 38] = [
            [0, 0, 0],
            [32, 32, 32],
            [48, 16, 16],
            [16, 48, 48],
            [24, 24, 40],
            [56, 56, 8],
            [40, 8, 56],
            [8, 40, 24],
            [12, 20, 60],
            [44, 52, 28],
            [60, 4, 44],
            [28, 36, 12],
            [20, 12, 20],
            [52, 44, 52],
            [36, 28, 4],
            [4, 60, 36],
            [6, 30, 30],
            [38, 62, 62],
            [54, 14, 14],
            [22, 46, 46],
            [30, 6, 54],
            [62, 38, 22],
            [46, 22, 38],
            [14, 54, 6],
            [10, 10, 34],
            [42, 42, 2],
            [58, 26, 50],
            [26, 58, 18],
            [18, 18, 10],
            [50, 50, 42],
            [34, 2, 26],
            [2, 34, 58],
            [3, 17, 45],
            [35, 49, 13],
            [51, 1, 61],
            [19, 33, 29],
            [27, 9, 5],
            [59, 41, 37],
        ];
        let expected = SIXTY_FOURTHS.map(|point| point.map(|k| f64::from(k) / 64.0).to_vec());
        assert_eq!(points(Method::Sobol, 38, 3), expected);
    }

    #[test]
    fn sobol_does_not_depend_on_the_number_of_inputs() {
        let (few, many) = (points(Method::Sobol, 64, 100), points(Method::Sobol, 64, 101));
        assert!(few.iter().zip(&many).all(|(few, many)| few[..] == many[..100]));
    }

    #[test]
    fn sobol_fills_every_slice_once() {
        let n = 256;
        let plain = points(Method::Sobol, n, MAX_SOBOL_INPUTS);
        let scrambled = points(Method::SobolScrambled, n, MAX_SOBOL_INPUTS);
        for input in 0..MAX_SOBOL_INPUTS {
            assert_eq!(occupancy(&plain, input, n), vec![1; n], "plain, input {input}");
            assert_eq!(occupancy(&scrambled, input, n), vec![1; n], "scrambled, input {input}");
        }
        // The first two inputs form a (0, 2)-sequence: one point in each box of area 1/256, however it is shaped.
        for columns in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
            let rows = n / columns;
            let cell = |x: &Vec<f64>| (x[0] * columns as f64) as usize * rows + (x[1] * rows as f64) as usize;
            for design in [&plain, &scrambled] {
                let mut cells: Vec<usize> = design.iter().map(cell).collect();
                cells.sort_unstable();
                assert_eq!(cells, (0..n).collect::<Vec<_>>(), "{columns} columns");
            }
        }
    }

    /// Over many scrambles the first point is uniform: chi-square of 16 equal cells in two inputs against its quantile at
    /// a false-alarm rate of 1e-4.
    #[test]
    fn scrambled_points_are_uniform() {
        const QUANTILE_15_DEGREES: f64 = 44.263;
        let (trials, cells) = (1024, 16);
        let mut counts = vec![0.0; cells];
        for trial in 0..trials {
            let point = &unit_points(Method::SobolScrambled, 1, 2, Stream::root(SEED).at(trial)).unwrap()[0];
            counts[(point[0] * 4.0) as usize * 4 + (point[1] * 4.0) as usize] += 1.0;
        }
        let expected = trials as f64 / cells as f64;
        let chi_square: f64 = counts.iter().map(|count| (count - expected).powi(2) / expected).sum();
        assert!(chi_square <= QUANTILE_15_DEGREES, "{chi_square}");
    }

    #[test]
    fn latin_hypercube_has_one_point_per_slice() {
        for (n, dim) in [(1, 1), (7, 3), (100, 12)] {
            let design = points(Method::LatinHypercube, n, dim);
            assert!((0..dim).all(|input| occupancy(&design, input, n) == vec![1; n]), "{n} x {dim}");
        }
        let design = points(Method::LatinHypercube, 50, 2);
        assert_ne!(design.iter().map(|x| (x[0] * 50.0) as usize).collect::<Vec<_>>(), (0..50).collect::<Vec<_>>());
        assert!(design.iter().any(|x| (x[0] * 50.0) as usize != (x[1] * 50.0) as usize));
        // Jitter within a slice: the fractions are not all alike.
        assert!(design.iter().any(|x| ((x[0] * 50.0).fract() - (design[0][0] * 50.0).fract()).abs() > 0.1));
    }

    #[test]
    fn grid_holds_all_combinations() {
        assert_eq!(points(Method::Grid, 5, 1), [[0.0], [0.25], [0.5], [0.75], [1.0]]);
        let nine = [[0., 0.], [0., 0.5], [0., 1.], [0.5, 0.], [0.5, 0.5], [0.5, 1.], [1., 0.], [1., 0.5], [1., 1.]];
        assert_eq!(points(Method::Grid, 9, 2), nine);
        // Roots that floating point gets slightly wrong.
        for (per_input, dim) in [(5_usize, 3), (6, 3), (10, 3), (3, 5), (7, 5), (2, 14), (17, 4)] {
            let design = points(Method::Grid, per_input.pow(dim as u32), dim);
            assert_eq!(
                (design[0].as_slice(), design[1][dim - 1]),
                (vec![0.0; dim].as_slice(), 1.0 / (per_input - 1) as f64)
            );
            assert_eq!(design.last(), Some(&vec![1.0; dim]));
        }
    }

    #[test]
    fn grid_names_the_nearest_counts() {
        assert_eq!(
            message(Method::Grid, 10, 2),
            "design.runs: 10 runs make no grid of 2 inputs; ask for 9 (3 per input) or 16 (4 per input)"
        );
        assert_eq!(
            message(Method::Grid, 1, 3),
            "design.runs: 1 runs make no grid of 3 inputs; ask for 8 (2 per input)"
        );
        assert!(message(Method::Grid, 10, 100).ends_with("a grid of so many inputs is out of reach"));
    }

    #[test]
    fn all_methods_stay_in_the_unit_cube_and_repeat() {
        for method in Method::ALL {
            let design = points(method, 64, 3);
            assert_eq!((design.len(), design[0].len()), (64, 3), "{method}");
            assert!(design.iter().flatten().all(|x| (0.0..=1.0).contains(x)), "{method}");
            assert_eq!(design, points(method, 64, 3), "{method}");
            let is_random = [Method::SobolScrambled, Method::LatinHypercube, Method::Random].contains(&method);
            let other_seed = unit_points(method, 64, 3, Stream::root(SEED + 1)).unwrap();
            assert_eq!(design != other_seed, is_random, "{method}");
            if ![Method::LatinHypercube, Method::Grid].contains(&method) {
                assert_eq!(points(method, 20, 3), design[..20], "{method}");
            }
        }
    }

    /// Changing these values changes every study with that design: a "Numbers changed" entry in CHANGELOG.md.
    #[test]
    fn designs_from_a_stream_are_stable() {
        assert_eq!(
            points(Method::SobolScrambled, 2, 2),
            [[0.520014358102344, 0.3385295328916982], [0.368469194159843, 0.9690621957415715]]
        );
        assert_eq!(
            points(Method::LatinHypercube, 2, 2),
            [[0.3940078705152104, 0.1440749653097282], [0.9210936440784622, 0.9586310600646628]]
        );
        assert_eq!(
            points(Method::Random, 2, 2),
            [[0.7473841193411923, 0.07489324696050426], [0.1680967978533111, 0.8826618901705592]]
        );
    }

    #[test]
    fn impossible_designs_are_errors() {
        for method in Method::ALL {
            assert!(message(method, 0, 1).starts_with("design.runs: a design of 0 runs"));
            assert!(message(method, 1, 0).starts_with("design: there is no input"));
            assert!(message(method, usize::MAX, 2).ends_with("ask for at most 67108864 runs"));
        }
        let too_many = "halton-ends spreads at most 20 inputs, not 21; choose \"sobol\"";
        assert_eq!(message(Method::HaltonEnds, 5, 21), format!("design.method: {too_many}"));
        assert!(message(Method::Halton, 5, 1001).ends_with("choose \"latin-hypercube\""));
        for method in [Method::Sobol, Method::SobolScrambled] {
            assert!(message(method, 5, 1001).contains("at most 1000 inputs, not 1001"));
        }
    }

    #[test]
    fn names_go_out_and_in() {
        let names = ["halton-ends", "halton", "sobol", "sobol-scrambled", "latin-hypercube", "grid", "random"];
        assert_eq!(Method::ALL.map(|method| method.to_string()), names);
        for method in Method::ALL {
            assert_eq!(method.name().parse::<Method>().unwrap(), method);
            let json = serde_json::to_string(&method).unwrap();
            assert_eq!(json, format!("\"{method}\""));
            assert_eq!(serde_json::from_str::<Method>(&json).unwrap(), method);
        }
        let error = "lating-hypercube".parse::<Method>().unwrap_err().to_string();
        assert!(
            error.starts_with(
                "design.method: there is no method \"lating-hypercube\"; did you mean \"latin-hypercube\"?"
            )
        );
        assert!(
            serde_json::from_str::<Method>("\"sobbol\"").unwrap_err().to_string().contains("did you mean \"sobol\"?")
        );
    }
}
