//! What several figures are made of: labels, evenly chosen points, histograms, matrices of pairs.

use super::figure::{Axis, Direction, Ink, Mark, Panel, Series, Shape};
use std::cmp::Ordering;

/// A name with its unit: `beta (1/day)`.
pub(super) fn label(name: &str, unit: Option<&str>) -> String {
    match unit {
        Some(unit) => format!("{name} ({unit})"),
        None => name.to_owned(),
    }
}

/// At most `most` of `n` places, evenly.
pub(super) fn thinned(n: usize, most: usize) -> impl Iterator<Item = usize> + Clone {
    let kept = n.min(most);
    (0..kept).map(move |i| i * n / kept)
}

/// A number for a sentence: four digits.
pub(super) fn short(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e5).contains(&value.abs()) {
        return format!("{value:.2e}");
    }
    let digits = if value == 0.0 { 0 } else { (3 - value.abs().log10().floor() as i32).max(0) as usize };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Names in a sentence, the first few of many.
pub(super) fn listed(names: &[String]) -> String {
    const MOST: usize = 12;
    match names.len() {
        n if n > MOST => format!("{} and {} more", names[..MOST].join(", "), n - MOST),
        _ => names.join(", "),
    }
}

/// Bars of a histogram of weighted values, of unit area; none where nothing varies.
pub(super) fn histogram(values: &[f64], weights: &[f64]) -> Vec<[f64; 4]> {
    const BARS: usize = 24;
    let (low, high) =
        values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (v.min(low), v.max(high)));
    let width = (high - low) / BARS as f64;
    if !(width > 0.0 && width.is_finite()) {
        return Vec::new();
    }
    let mut mass = [0.0; BARS];
    for (value, weight) in values.iter().zip(weights) {
        mass[(((value - low) / width) as usize).min(BARS - 1)] += weight;
    }
    let total: f64 = mass.iter().sum();
    let bar = |(i, mass): (usize, &f64)| {
        let left = low + i as f64 * width;
        [left, left + width, 0.0, mass / (total * width)]
    };
    mass.iter().enumerate().map(bar).collect()
}

/// Panels of a lower triangle with a diagonal, row by row; those above it are empty. All panels of a quantity have its ends.
pub(super) fn matrix(
    quantities: &[(String, [f64; 2])],
    diagonal: impl Fn(usize) -> Vec<Mark>,
    below: impl Fn(usize, usize) -> Vec<Mark>,
) -> Vec<Panel> {
    let n = quantities.len();
    let axis = |of: usize, is_read: bool| Axis {
        label: if is_read { quantities[of].0.clone() } else { String::new() },
        range: Some(quantities[of].1),
        bare: !is_read,
        ..Axis::default()
    };
    let panel = |at: usize| {
        let (row, column) = (at / n, at % n);
        let (y, marks) = match row.cmp(&column) {
            Ordering::Less => (Axis::default(), Vec::new()),
            Ordering::Equal => (Axis { bare: true, ..Axis::default() }, diagonal(row)),
            Ordering::Greater => (axis(row, column == 0), below(row, column)),
        };
        Panel { title: String::new(), x: axis(column, row + 1 == n), y, marks }
    };
    (0..n * n).map(panel).collect()
}

/// Ends of an axis for these values, a little beyond them.
pub(super) fn ends(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let finite = values.filter(|value| value.is_finite());
    let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (v.min(low), v.max(high)));
    let reach = if low < high { 0.03 * (high - low) } else { 0.5 * low.abs().max(f64::MIN_POSITIVE) };
    [low - reach, high + reach]
}

/// A vertical line at a true value, where it is known.
pub(super) fn truth(value: Option<f64>) -> Option<Mark> {
    let series = Series::new("truth", Ink::Truth);
    value.map(|value| series.mark(Shape::Rules(Direction::Vertical, vec![value])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_sentences_have_four_digits() {
        let cases = [
            (0.0, "0"),
            (1.0, "1"),
            (-0.25, "-0.25"),
            (5.43219, "5.432"),
            (1234.56, "1235"),
            (0.00012345, "1.23e-4"),
            (123456.0, "1.23e5"),
            (99999.9, "100000"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn histograms_have_unit_area_and_constants_none() {
        let bars = histogram(&[0.0, 1.0, 2.0, 2.5], &[1.0, 1.0, 3.0, 1.0]);
        let area: f64 = bars.iter().map(|b| (b[1] - b[0]) * b[3]).sum();
        assert!((area - 1.0).abs() < 64.0 * f64::EPSILON);
        assert_eq!(histogram(&[2.0, 2.0], &[0.5, 0.5]), [[0.0; 4]; 0]);
    }

    #[test]
    fn thinning_keeps_few_whole_and_spreads_many() {
        assert!(thinned(3, 10).eq(0..3));
        assert!(thinned(10, 3).eq([0, 3, 6]));
        assert_eq!(thinned(0, 3).count(), 0);
    }
}
