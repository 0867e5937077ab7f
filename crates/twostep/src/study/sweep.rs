//! A document with a sweep to one document for each combination of the swept values.

use std::collections::BTreeSet;
use std::ops::Range;

use super::document::{Entry, Node, Value};
use super::problem::Collector;

/// Most combinations of one file.
const MAX_SETTINGS: usize = 10_000;

/// A document with its swept values put in.
pub(super) struct Combination {
    label: Vec<(String, String)>,
    root: Node,
}

impl Combination {
    pub(super) fn into_parts(self) -> (Vec<(String, String)>, Node) {
        (self.label, self.root)
    }
}

/// One swept key and its values.
struct Axis {
    key: String,
    key_span: Range<usize>,
    values: Vec<Node>,
}

/// All combinations, the last key varying fastest; the document itself where nothing is swept.
pub(super) fn combinations(mut root: Node, problems: &Collector) -> Vec<Combination> {
    let mut axes = Vec::new();
    if let Value::Table(entries) = &mut root.value
        && let Some(index) = entries.iter().position(|entry| entry.key == "sweep")
    {
        let sweep = entries.remove(index);
        match sweep.node.value {
            Value::Table(entries) => collect(entries, "", &mut axes, problems),
            _ => problems.error(
                Some(sweep.node.span),
                "sweep: a table was expected".to_owned(),
                "expected [sweep]",
                None,
            ),
        }
    }
    check(&axes, problems);
    let size = axes.iter().try_fold(1_usize, |size, axis| size.checked_mul(axis.values.len()));
    if size.is_none_or(|size| size > MAX_SETTINGS) {
        let span = axes.first().map(|axis| axis.key_span.clone());
        let message = format!("the sweep has more than {MAX_SETTINGS} combinations");
        problems.error(span, message, "too many", "split it over several studies".to_owned());
        return Vec::new();
    }
    let mut combinations = vec![Combination { label: Vec::new(), root }];
    for axis in &axes {
        combinations = combinations
            .iter()
            .flat_map(|combination| {
                axis.values.iter().map(|value| {
                    let mut root = combination.root.clone();
                    let path: Vec<&str> = axis.key.split('.').collect();
                    if let Err(part) = replace(&mut root, &path, &axis.key_span, value) {
                        let message = format!("sweep.\"{}\": `{part}` is not a table", axis.key);
                        let help = "write the dotted key of a value, such as \"design.runs\"";
                        problems.error(Some(axis.key_span.clone()), message, "no such key", help.to_owned());
                    }
                    let mut label = combination.label.clone();
                    label.push((axis.key.clone(), value.label()));
                    Combination { label, root }
                })
            })
            .collect();
    }
    combinations
}

/// Swept keys in file order; `design.runs = [..]` without quotes is a table in a table, and means the same.
fn collect(entries: Vec<Entry>, prefix: &str, axes: &mut Vec<Axis>, problems: &Collector) {
    for Entry { key, key_span, node } in entries {
        let key = format!("{prefix}{key}");
        match node.value {
            Value::Table(entries) => collect(entries, &format!("{key}."), axes, problems),
            Value::List(values) if values.is_empty() => {
                let message = format!("sweep.\"{key}\": the list is empty");
                problems.error(Some(node.span), message, "expected at least one value", None);
            }
            Value::List(values) => axes.push(Axis { key, key_span, values }),
            _ => {
                let message = format!("sweep.\"{key}\": a list of values was expected");
                let help = format!("write \"{key}\" = [{}]", node.label());
                problems.error(Some(node.span), message, "expected a list", help);
            }
        }
    }
}

/// Refuses keys that reach into each other and values that occur twice.
fn check(axes: &[Axis], problems: &Collector) {
    for (i, axis) in axes.iter().enumerate() {
        let overlaps = |other: &Axis| {
            let (a, b) = (format!("{}.", axis.key), format!("{}.", other.key));
            a.starts_with(&b) || b.starts_with(&a)
        };
        if let Some(other) = axes[..i].iter().find(|other| overlaps(other)) {
            let message = format!("sweep.\"{}\" reaches into sweep.\"{}\"", axis.key, other.key);
            problems.error(Some(axis.key_span.clone()), message, "overlaps", "sweep one of them".to_owned());
        }
        if axis.key == "sweep" || axis.key.starts_with("sweep.") {
            let message = "a sweep cannot sweep itself".to_owned();
            problems.error(Some(axis.key_span.clone()), message, "no such key", None);
        }
        let mut labels = BTreeSet::new();
        for value in &axis.values {
            if !labels.insert(value.label()) {
                let message = format!("sweep.\"{}\": {} is listed twice", axis.key, value.label());
                problems.error(Some(value.span.clone()), message, "expected each once", "remove one".to_owned());
            }
        }
    }
}

/// Puts `value` at a path, making tables on the way; the part of the path that is no table otherwise.
///
/// New entries point at the key of the sweep, so that a key which means nothing is a problem of that line.
fn replace<'p>(node: &mut Node, path: &[&'p str], key_span: &Range<usize>, value: &Node) -> Result<(), &'p str> {
    let [key, rest @ ..] = path else {
        *node = value.clone();
        return Ok(());
    };
    let Value::Table(entries) = &mut node.value else {
        return Err(key);
    };
    let index = entries.iter().position(|entry| entry.key == *key).unwrap_or_else(|| {
        let node = Node { value: Value::Table(Vec::new()), span: key_span.clone() };
        entries.push(Entry { key: (*key).to_owned(), key_span: key_span.clone(), node });
        entries.len() - 1
    });
    if !rest.is_empty() && !matches!(entries[index].node.value, Value::Table(_)) {
        return Err(key);
    }
    replace(&mut entries[index].node, rest, key_span, value)
}
