//! Families against what defines them: sums of probabilities, differences, and integrals by a fine rule.

use super::*;
use crate::special::normal_cdf;

#[test]
fn a_measurement_has_the_density_of_its_own_scale() {
    let log_normal = Family::LogNormal { refuse_zeros: false }.likelihood();
    let (y, mu, sd) = (2.0, 0.5, 0.25);
    let normal = Family::Normal.likelihood();
    let of = |family: &dyn Likelihood, y: f64, mu: f64| log_likelihood(family, (y, None), Link::Identity, mu, sd, 0.0);
    let expected = of(&*normal, f64::ln(y), mu) - y.ln();
    let rounding = 8.0 * f64::EPSILON * (1.0 + expected.abs());
    assert!((of(&*log_normal, y, mu) - expected).abs() <= rounding);
    // A zero lies below one half; its probability has few digits in the tail, relative to one.
    let below = normal_cdf((0.5f64.ln() - mu) / sd);
    assert!((of(&*log_normal, 0.0, mu).exp() - below).abs() <= 8.0 * f64::EPSILON);
    assert_eq!(of(&*log_normal, -1.0, mu), f64::NEG_INFINITY);
    assert_eq!(of(&*log_normal, 1.0, f64::NAN), f64::NEG_INFINITY);
}

/// Name, family, scale, values and bounds, and locations.
type Case = (&'static str, Box<dyn Likelihood>, f64, Vec<f64>, Vec<f64>);

/// Every family.
fn families() -> Vec<Case> {
    let of = |family: Family| family.likelihood();
    vec![
        ("normal", of(Family::Normal), 0.7, vec![-0.4, 1.3], vec![-0.2, 0.9, 2.5]),
        ("log-normal", of(Family::LogNormal { refuse_zeros: true }), 0.7, vec![0.4, 1.3], vec![-0.2, 0.9, 2.5]),
        ("student-t", of(Family::StudentT { df: 4.0 }), 0.7, vec![-0.4, 1.3], vec![-0.2, 0.9, 2.5]),
        ("relative", of(Family::Relative { relative: 0.2 }), 0.3, vec![2.2, 4.0], vec![0.5, 2.0, 5.0]),
        ("unknown relative", of(Family::UnknownRelative { sd: 0.3 }), 0.2, vec![2.2, 4.0], vec![0.5, 2.0, 5.0]),
        ("poisson", of(Family::Poisson), 0.0, vec![0.0, 3.0, 90.0], vec![0.3, 4.0, 70.0]),
        (
            "inverse phi",
            of(Family::NegativeBinomial { inverse: true }),
            0.14,
            vec![0.0, 3.0, 300.0],
            vec![0.3, 4.0, 250.0],
        ),
        (
            "nearly poisson",
            of(Family::NegativeBinomial { inverse: true }),
            1e-7,
            vec![0.0, 3.0, 90.0],
            vec![0.3, 4.0, 70.0],
        ),
        ("phi", of(Family::NegativeBinomial { inverse: false }), 6.0, vec![0.0, 3.0, 300.0], vec![0.3, 4.0, 250.0]),
        ("binomial", of(Family::Binomial), 20.0, vec![0.0, 7.0, 20.0], vec![0.05, 0.4, 0.9]),
    ]
}

fn is_count(family: &dyn Likelihood) -> bool {
    matches!(family.name(), "poisson" | "negative-binomial" | "binomial")
}

/// `log p(z | mu, scale)`.
fn log_density(family: &dyn Likelihood, z: f64, mu: f64, scale: f64) -> f64 {
    family.score(z, mu, scale).log_lik + family.constant(z, scale).0
}

/// Values of a count that have all the probability, or nodes of a fine rule with their weights.
fn support(family: &dyn Likelihood, mu: f64, scale: f64) -> Vec<(f64, f64)> {
    match family.name() {
        "binomial" => (0..=scale as usize).map(|z| (z as f64, 1.0)).collect(),
        _ if is_count(family) => (0..20_000).map(|z| (f64::from(z), 1.0)).collect(),
        // The trapezoidal rule of a smooth density is exact up to what lies beyond, in `z - mu = sinh`, which the tails of a t need.
        _ => (-4000..=4000)
            .map(|i| {
                let (t, h) = (f64::from(i) * 5e-3, 5e-3);
                (mu + t.sinh(), h * t.cosh())
            })
            .collect(),
    }
}

#[test]
fn densities_sum_to_one_and_have_their_information() {
    for (name, family, scale, _, locations) in families() {
        for mu in locations {
            let (mut total, mut information) = (0.0, 0.0);
            for (z, weight) in support(&*family, mu, scale) {
                let p = weight * log_density(&*family, z, mu, scale).exp();
                total += p;
                information += p * family.score(z, mu, scale).by_mu.powi(2);
            }
            // Twenty thousand terms, each with a few roundings of logarithms of up to ten thousand.
            let rounding = 2e4 * f64::EPSILON * 1e4_f64.sqrt();
            assert!((total - 1.0).abs() < rounding, "{name} at {mu}: {total}");
            let expected = family.information(mu, scale);
            assert!((information - expected).abs() < rounding * expected, "{name} at {mu}: {information} {expected}");
        }
    }
}

#[test]
fn sides_are_sums_of_densities() {
    for (name, family, scale, values, locations) in families() {
        for mu in locations {
            let support = support(&*family, mu, scale);
            for &z in &values {
                let at = |side: Side| family.score_side(side, z, mu, scale).log_lik.exp();
                let (below, above) = (at(Side::Below), at(Side::Above));
                if is_count(&*family) {
                    let sum = |inside: &dyn Fn(f64) -> bool| -> f64 {
                        let p = |(v, w): &(f64, f64)| w * log_density(&*family, *v, mu, scale).exp();
                        support.iter().filter(|(v, _)| inside(*v)).map(p).sum()
                    };
                    let rounding = 2e4 * f64::EPSILON * 1e4_f64.sqrt();
                    assert!((below - sum(&|v| v < z)).abs() < rounding, "{name} below {z} at {mu}: {below}");
                    assert!((above - sum(&|v| v > z)).abs() < rounding, "{name} above {z} at {mu}: {above}");
                } else {
                    assert!((below + above - 1.0).abs() < 16.0 * f64::EPSILON, "{name} at {z}, {mu}");
                }
            }
        }
    }
}

/// Derivatives against central differences: truncation is a third of what doubling the step changes, rounding that of the value over the step.
#[test]
fn derivatives_match_differences() {
    for (name, family, scale, values, locations) in families() {
        for mu in locations {
            for &z in &values {
                let kinds = [RowKind::Value, RowKind::Side(Side::Below), RowKind::Side(Side::Above)];
                for kind in kinds {
                    let value = |mu: f64, scale: f64| {
                        let constant = if kind == RowKind::Value { family.constant(z, scale).0 } else { 0.0 };
                        kind.score(&*family, z, mu, scale).log_lik + constant
                    };
                    let scored = kind.score(&*family, z, mu, scale);
                    // Impossible sides, and sides of which nothing is left of the double's range.
                    if scored.log_lik < -600.0 {
                        continue;
                    }
                    let by_constant = if kind == RowKind::Value { family.constant(z, scale).1 } else { 0.0 };
                    // A side's probability is known relative to one, where its complement is what is summed.
                    let digits = f64::EPSILON / scored.log_lik.exp().min(1.0);
                    let check = |what: &str, exact: f64, x: f64, f: &dyn Fn(f64) -> f64| {
                        let h = f64::EPSILON.cbrt() * x.abs();
                        let central = |h: f64| (f(x + h) - f(x - h)) / (2.0 * h);
                        let (near, far) = (central(h), central(2.0 * h));
                        let size = 1.0 + z * (1.0 + z.max(1.0).ln()) + value(mu, scale).abs();
                        let rounding = if kind == RowKind::Value {
                            f64::EPSILON * size
                        } else {
                            64.0 * digits.max(f64::EPSILON * size)
                        };
                        let bound = (near - far).abs() + 16.0 * rounding / h;
                        assert!(
                            (exact - near).abs() <= bound,
                            "{name}, {kind:?} {z} at {mu} {what}: {exact:e} {near:e} ({bound:e})"
                        );
                    };
                    check("by location", scored.by_mu, mu, &|mu| value(mu, scale));
                    if scale > 0.0 && family.name() != "binomial" && name != "nearly poisson" {
                        check("by scale", scored.by_scale + by_constant, scale, &|scale| value(mu, scale));
                    }
                }
            }
        }
    }
}

/// `log(1 + j k)` summed one by one against Euler and Maclaurin, and for small k against the series.
#[test]
fn constants_of_counts_are_products() {
    let family = Family::NegativeBinomial { inverse: true }.likelihood();
    for k in [1e-9, 1e-4, 0.02, 0.14, 3.0, 50.0] {
        for y in [3_u32, 64, 65, 200, 5000] {
            let sum: f64 = (0..y).map(|j| (f64::from(j) * k).ln_1p()).sum();
            let log_factorial: f64 = (1..=y).map(|j| f64::from(j).ln()).sum();
            let slope: f64 = (0..y).map(|j| f64::from(j) / (1.0 + f64::from(j) * k)).sum();
            let (found, by_k) = family.constant(f64::from(y), k);
            let rounding = f64::from(y) * f64::EPSILON * (1.0 + sum + log_factorial);
            assert!((found - (sum - log_factorial)).abs() <= rounding, "{y} {k}: {found} {}", sum - log_factorial);
            assert!(
                (by_k - slope).abs() <= f64::from(y) * f64::EPSILON * (1.0 + slope) / k.min(1.0),
                "{y} {k}: {by_k} {slope}"
            );
        }
    }
}

/// Integrals over an error against a fine trapezoidal rule, over all that errors and values do to each other: errors from a hundredth of the
/// noise to ten times it, and means from where the value would have them to four sds away.
#[test]
fn errors_are_integrated_out() {
    // What the seven nodes are off by at most in the logarithm of the integral, and in its derivatives, in their own units: for errors up to
    // the noise, and for larger ones within and beyond two sds of where the value would have eta.
    const OFF: [f64; 3] = [1e-3, 1e-2, 0.2];
    let count = |scale: f64, z: f64, family: Family| (family, scale, vec![z, z + 1.0], vec![Link::Exp, Link::Identity]);
    let cases = [
        count(0.0, 4.0, Family::Poisson),
        count(0.0, 300.0, Family::Poisson),
        count(0.14, 4.0, Family::NegativeBinomial { inverse: true }),
        count(0.14, 300.0, Family::NegativeBinomial { inverse: true }),
        count(8.0, 40.0, Family::NegativeBinomial { inverse: false }),
        (Family::Binomial, 40.0, vec![12.0, 15.0], vec![Link::Identity, Link::Exp]),
        (Family::Normal, 0.5, vec![4.0, 4.4], vec![Link::Exp]),
        (Family::LogNormal { refuse_zeros: true }, 0.2, vec![1.3, 1.5], vec![Link::Log]),
        (Family::Relative { relative: 0.1 }, 0.3, vec![4.0, 4.4], vec![Link::Identity, Link::Exp]),
        (Family::UnknownRelative { sd: 0.3 }, 0.1, vec![4.0, 4.4], vec![Link::Identity]),
    ];
    for (family, scale, values, links) in cases {
        let likelihood = family.likelihood();
        for link in links {
            for members in [&values[..1], &values] {
                let group: Vec<_> = members.iter().map(|&z| (RowKind::Value, z, scale, 1.0)).collect();
                let centre = link.inverse(likelihood.location(values[0], scale));
                let (mu, slope) = link.apply(centre);
                let noise = (likelihood.information(mu, scale) * slope * slope * members.len() as f64).sqrt().recip();
                for ratio in [0.01, 0.3, 1.0, 3.0] {
                    for away in [-3.0, -1.0, 0.0, 1.0, 3.0] {
                        let error = ratio * noise;
                        let eta = centre + away * noise.hypot(error);
                        let is_inside = |eta: f64| match (family, link) {
                            (Family::Binomial, Link::Identity) => (0.02..0.98).contains(&eta),
                            (Family::Binomial, _) => eta < -0.02,
                            (_, Link::Exp) => true,
                            _ => eta > 0.05 * centre,
                        };
                        // Where errors reach what no location is, there are edges.
                        if !is_inside(eta - 4.0 * error) || !is_inside(eta + 4.0 * error) {
                            continue;
                        }
                        let mut out = Integrals { has_derivatives: true, ..Integrals::default() };
                        let cell = Cells { group: &[0], eta: &[eta], sds: &[error] };
                        likelihood.integrate(std::slice::from_ref(&group), link, &cell, &mut out);
                        let (mut total, mut by_eta, mut by_scale, mut by_log_sd) = (0.0, 0.0, 0.0, 0.0);
                        let log_at = |e: f64| -> f64 {
                            let mu = link.apply(eta + error * e).0;
                            group.iter().map(|m| likelihood.score(m.1, mu, scale).log_lik).sum::<f64>() - 0.5 * e * e
                        };
                        let nodes: Vec<f64> = (-4000..=4000).map(|i| f64::from(i) * 2e-3).collect();
                        let top =
                            nodes.iter().map(|e| log_at(*e)).filter(|l| !l.is_nan()).fold(f64::NEG_INFINITY, f64::max);
                        for e in &nodes {
                            let (mu, slope) = link.apply(eta + error * e);
                            let share = (log_at(*e) - top).exp();
                            if share.is_nan() || share == 0.0 {
                                continue;
                            }
                            let scored: Vec<Scored> = group.iter().map(|m| likelihood.score(m.1, mu, scale)).collect();
                            let own: f64 = scored.iter().map(|s| s.by_mu * slope).sum();
                            total += share;
                            by_eta += share * own;
                            by_scale += share * scored.iter().map(|s| s.by_scale).sum::<f64>();
                            by_log_sd += share * own * error * e;
                        }
                        let log = top + (total * 2e-3 / (2.0 * std::f64::consts::PI).sqrt()).ln();
                        let place = format!("{family:?} {link:?} {} {ratio} {away}", members.len());
                        let both = noise.hypot(error);
                        let differences = [
                            out.log[0] - log,
                            (out.by_eta[0] - by_eta / total) * both,
                            out.by_log_sd[0] - by_log_sd / total,
                            (out.by_scale[0] - by_scale / total) * scale,
                        ];
                        let far = away.abs() > 2.0;
                        let bound = OFF[usize::from(ratio > 1.0) * (1 + usize::from(far))];
                        assert!(differences.iter().all(|d| d.abs() < bound), "{place}: {differences:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn bounds_of_the_file_are_no_zeros() {
    let known = Matrix::zeros(3, 0);
    let zeros = |family: Family, y: &[f64], sides: &[Option<Side>]| {
        let values = Values { y, scales: None, sides, known: &known };
        let reduced = Reduced::new(&*family.likelihood(), &Scale::Fixed(0.5), &values, ErrorSharing::Shared, true);
        let reduced = reduced.expect("measurements that the family can produce");
        (reduced.zeros, reduced.rows.len())
    };
    let sides = [Some(Side::Below), None, Some(Side::Above)];
    assert_eq!(zeros(Family::Normal, &[0.0, 1.0, 2.0], &sides), (0, 2));
    let log_normal = Family::LogNormal { refuse_zeros: false };
    assert_eq!(zeros(log_normal, &[0.0, 1.0, 2.0], &[None, None, Some(Side::Above)]), (1, 2));
}
