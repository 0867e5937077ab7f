//! From values to places on an axis, and the numbers that stand beside it.

use super::figure::Axis;

/// An axis between two ends, drawn from `from` to `to`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    pub(super) low: f64,
    pub(super) high: f64,
    log: bool,
    from: f64,
    to: f64,
}

/// Most decades that a logarithmic axis goes down from its upper end: what is smaller is nothing.
const MOST_DECADES: f64 = 12.0;

impl Scale {
    /// The ends of an axis that shows `values`; with room at both ends unless it says its range, or a density stands on it.
    pub(super) fn new(axis: &Axis, values: impl Iterator<Item = f64>) -> Self {
        let place = |(from, to)| Self { low: from, high: to, log: axis.log, from: 0.0, to: 1.0 };
        if !axis.categories.is_empty() {
            return place((-0.5, axis.categories.len() as f64 - 0.5));
        }
        if let Some([low, high]) = axis.range {
            return place((low, high));
        }
        let usable = |v: &f64| v.is_finite() && (!axis.log || *v > 0.0);
        let (low, high) =
            values.filter(usable).fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            return place(if axis.log { (1.0, 10.0) } else { (0.0, 1.0) });
        }
        let (low, high) =
            if axis.log { (low.log10().max(high.log10() - MOST_DECADES), high.log10()) } else { (low, high) };
        let width = high - low;
        let room = match width > 1e-9 * low.abs().max(high.abs()) {
            true => 0.04 * width,
            false if axis.log || low == 0.0 => 0.5,
            false => 0.05 * low.abs(),
        };
        let standing = axis.bare && low >= 0.0 && low <= 0.2 * high;
        let (low, high) = (if standing { 0.0 } else { low - room }, high + room);
        place(if axis.log { (10_f64.powf(low), 10_f64.powf(high)) } else { (low, high) })
    }

    /// The same, drawn elsewhere.
    pub(super) fn drawn(self, from: f64, to: f64) -> Self {
        Self { from, to, ..self }
    }

    /// Where a value is drawn; NaN where it has no place.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = if self.log {
            let value = if value > 0.0 { value.ln() } else { f64::NAN };
            (value - self.low.ln()) / (self.high.ln() - self.low.ln())
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share * (self.to - self.from)
    }

    /// At most `most` round values within the ends, with their texts.
    pub(super) fn ticks(&self, most: usize) -> Vec<(f64, String)> {
        let decades = (self.high / self.low).log10();
        if self.log && decades >= 1.0 {
            return self.log_ticks(most, decades);
        }
        let raw = (self.high - self.low) / most.max(1) as f64;
        let power = 10_f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= raw * (1.0 - 1e-9));
        let step = step.unwrap_or(10.0 * power);
        let first = (self.low / step - 1e-9).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        let values: Vec<f64> = (first..=last).map(|i| i as f64 * step).collect();
        let texts = numbers(&values, step);
        values.into_iter().zip(texts).collect()
    }

    fn log_ticks(&self, most: usize, decades: f64) -> Vec<(f64, String)> {
        let within = |v: &f64| *v >= self.low * (1.0 - 1e-9) && *v <= self.high * (1.0 + 1e-9);
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let every = |mantissas: &[f64], stride: i32| -> Vec<f64> {
            let powers = (first..=last).filter(|p| p.rem_euclid(stride) == 0);
            powers.flat_map(|p| mantissas.iter().map(move |m| m * 10_f64.powi(p))).filter(within).collect()
        };
        let fine = [every(&[1.0, 2.0, 5.0], 1), every(&[1.0, 3.0], 1), every(&[1.0], 1)];
        let fitting = fine.into_iter().find(|ticks| ticks.len() <= most.max(2) && ticks.len() >= 2);
        let values = fitting.unwrap_or_else(|| every(&[1.0], (decades / most.max(1) as f64).ceil().max(1.0) as i32));
        values.into_iter().map(|v| (v, power_of_ten(v))).collect()
    }
}

/// Values whose neighbours differ by `step`, with as many decimals as that needs.
fn numbers(values: &[f64], step: f64) -> Vec<String> {
    let largest = values.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
    let decimals = (0..12).find(|d| {
        let scaled = step * 10_f64.powi(*d);
        (scaled - scaled.round()).abs() < 1e-6 * scaled
    });
    let decimals = decimals.unwrap_or(12);
    if largest >= 1e6 || (largest < 1e-3 && largest > 0.0) {
        let power = largest.log10().floor() as i32;
        let unit = 10_f64.powi(power);
        let digits = (power + decimals).clamp(0, 9) as usize;
        let text = |v: &f64| match *v == 0.0 {
            true => "0".to_owned(),
            false => format!("{}×10{}", trimmed(&format!("{:.digits$}", v / unit)), superscript(power)),
        };
        return values.iter().map(text).collect();
    }
    let text = |v: &f64| {
        // Minus zero is zero.
        let v = if v.abs() < 1e-9 * step { 0.0 } else { *v };
        format!("{v:.width$}", width = decimals as usize).replace('-', "−")
    };
    values.iter().map(text).collect()
}

/// `0.01`, `1`, `200`, `10⁶`: a tick of a logarithmic axis.
fn power_of_ten(value: f64) -> String {
    let power = (value.log10() + 1e-9).floor() as i32;
    let mantissa = (value / 10_f64.powi(power)).round();
    match (power, mantissa) {
        (-3..=4, _) => trimmed(&format!("{value:.width$}", width = (-power).max(0) as usize)),
        (_, 1.0) => format!("10{}", superscript(power)),
        _ => format!("{mantissa}×10{}", superscript(power)),
    }
}

fn trimmed(text: &str) -> String {
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text };
    text.replace('-', "−")
}

fn superscript(power: i32) -> String {
    let digit = |c: char| match c {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        c => char::from_u32('⁰' as u32 + c.to_digit(10).unwrap_or(0)).unwrap_or(c),
    };
    power.to_string().chars().map(digit).collect()
}

/// A value in a tooltip: four significant digits.
pub(super) fn value(v: f64) -> String {
    if v == 0.0 || !v.is_finite() {
        return if v == 0.0 { "0".into() } else { "–".into() };
    }
    let power = v.abs().log10().floor() as i32;
    if !(-4..7).contains(&power) {
        return format!("{}×10{}", trimmed(&format!("{:.3}", v / 10_f64.powi(power))), superscript(power));
    }
    trimmed(&format!("{v:.width$}", width = (3 - power).max(0) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(low: f64, high: f64, log: bool, most: usize) -> Vec<String> {
        let axis = Axis { log, range: Some([low, high]), ..Axis::default() };
        Scale::new(&axis, std::iter::empty()).ticks(most).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(-0.07, 0.63, false, 5), ["0.0", "0.2", "0.4", "0.6"]);
        assert_eq!(ticks(1.52, 1.66, false, 4), ["1.55", "1.60", "1.65"]);
        assert_eq!(ticks(0.0, 4e6, false, 4), ["0", "1×10⁶", "2×10⁶", "3×10⁶", "4×10⁶"]);
        assert_eq!(ticks(-1.0, 1.0, false, 4), ["−1.0", "−0.5", "0.0", "0.5", "1.0"]);
        assert_eq!(ticks(0.9, 1100.0, true, 5), ["1", "10", "100", "1000"]);
        assert_eq!(ticks(1e-9, 1.0, true, 4), ["10⁻⁹", "10⁻⁶", "0.001", "1"]);
        for most in 2..12 {
            for (low, high) in [(0.0, 1.0), (0.123, 0.124), (-1e7, 3e9), (5e-9, 6e-9), (17.0, 17.5)] {
                let found = ticks(low, high, false, most);
                assert!(found.len() <= most + 1 && !found.is_empty(), "{low} {high} {most}: {found:?}");
                let mut distinct = found.clone();
                distinct.dedup();
                assert_eq!(distinct, found);
            }
        }
    }

    #[test]
    fn equal_values_have_an_axis() {
        for value in [0.0, 3.0, -2e-300, 1e300] {
            for log in [false, true] {
                let axis = Axis { log, ..Axis::default() };
                let scale = Scale::new(&axis, [value].into_iter());
                assert!(scale.low < scale.high, "{value} {log} {scale:?}");
            }
        }
    }

    #[test]
    fn values_have_four_digits() {
        assert_eq!(
            [0.0, 1.23456, -0.000_123_4, 123_456.0, 1.5e9].map(value),
            ["0", "1.235", "−0.0001234", "123456", "1.5×10⁹"]
        );
    }
}
