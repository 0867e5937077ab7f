//! TOML text to a tree of values that know their place in it, and the reader that turns places into typed values.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::problem::{Collector, found_and_repair};
use crate::prior::Marginal;
use crate::simulate::spelling_repair;

/// Largest count that any key takes: beyond it, memory ends before the study does.
const MAX_COUNT: usize = 1_000_000;

/// A value and its bytes in the source.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) span: Range<usize>,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Integer(i128),
    Float(f64),
    Boolean(bool),
    Date,
    List(Vec<Node>),
    Table(Vec<Entry>),
}

/// A key with its value, in file order.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_span: Range<usize>,
    pub(super) node: Node,
}

impl Node {
    /// The tree of a TOML text; syntax errors, one a line, otherwise.
    pub(super) fn parse(text: &str, problems: &Collector) -> Option<Self> {
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut last_line = None;
        for error in &errors {
            // Beyond the first error of a line the parser guesses.
            let line = error.span().map(|span| text.get(..span.start).map_or(0, |before| before.matches('\n').count()));
            if line.is_none() || line != last_line {
                let message = format!("this is not TOML: {}", error.message());
                let help = "texts stand in quotes, lists in [ ], and every line is `key = value` or a [table]";
                problems.error(error.span(), message, "here", help.to_owned());
            }
            last_line = line;
        }
        errors.is_empty().then(|| Self { value: Value::from_table(table.get_ref()), span: table.span() })
    }

    fn from_toml(value: &DeValue<'_>, span: Range<usize>) -> Self {
        let value = match value {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Integer(integer) => i128::from_str_radix(integer.as_str(), integer.radix())
                .map_or(Value::Float(f64::INFINITY), Value::Integer),
            DeValue::Float(float) => Value::Float(float.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(flag) => Value::Boolean(*flag),
            DeValue::Datetime(_) => Value::Date,
            DeValue::Array(items) => {
                Value::List(items.iter().map(|item| Self::from_toml(item.get_ref(), item.span())).collect())
            }
            DeValue::Table(table) => Value::from_table(table),
        };
        Self { value, span }
    }

    /// What this is, in words.
    fn kind(&self) -> &'static str {
        match self.value {
            Value::Text(_) => "a text",
            Value::Integer(_) => "a whole number",
            Value::Float(_) => "a number",
            Value::Boolean(_) => "true or false",
            Value::Date => "a date",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        }
    }

    /// The value as a table's cell shows it: texts without quotes, lists joined by ` + `.
    pub(super) fn label(&self) -> String {
        match &self.value {
            Value::Text(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Boolean(flag) => flag.to_string(),
            Value::Date => "date".to_owned(),
            Value::List(items) => items.iter().map(Self::label).collect::<Vec<_>>().join(" + "),
            Value::Table(entries) => {
                let entry = |entry: &Entry| format!("{} = {}", entry.key, entry.node.label());
                entries.iter().map(entry).collect::<Vec<_>>().join(" + ")
            }
        }
    }
}

impl Value {
    fn from_table(table: &DeTable<'_>) -> Self {
        let entry = |(key, node): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
            let name: &std::borrow::Cow<'_, str> = key.get_ref();
            Entry { key: name.to_string(), key_span: key.span(), node: Node::from_toml(node.get_ref(), node.span()) }
        };
        Self::Table(table.iter().map(entry).collect())
    }
}

/// A table of the document whose keys are known ones.
#[derive(Clone, Debug)]
pub(super) struct Section<'d> {
    path: String,
    entries: &'d [Entry],
    /// Where to point when a key is missing; the root points nowhere.
    key_span: Option<Range<usize>>,
    pub(super) problems: &'d Collector,
}

impl<'d> Section<'d> {
    /// The whole document; unknown keys are problems.
    pub(super) fn root(node: &'d Node, allowed: &[&str], problems: &'d Collector) -> Self {
        let entries = if let Value::Table(entries) = &node.value { entries.as_slice() } else { &[] };
        let section = Self { path: String::new(), entries, key_span: None, problems };
        section.check_keys(allowed);
        section
    }

    fn check_keys<K: AsRef<str>>(&self, allowed: &[K]) {
        let allowed: Vec<&str> = allowed.iter().map(AsRef::as_ref).collect();
        let place = if self.path.is_empty() { "the study".to_owned() } else { format!("[{}]", self.path) };
        for entry in self.entries.iter().filter(|entry| !allowed.contains(&entry.key.as_str())) {
            let message = format!("{place} has no key `{}`", entry.key);
            self.problems.error(
                Some(entry.key_span.clone()),
                message,
                "unknown key",
                spelling_repair(&entry.key, &allowed),
            );
        }
    }

    fn child(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn of_entry(&self, entry: &'d Entry) -> Field<'d> {
        Field {
            path: self.child(&entry.key),
            key: &entry.key,
            key_span: &entry.key_span,
            node: &entry.node,
            problems: self.problems,
        }
    }

    /// The value of a key, if it is there.
    pub(super) fn get(&self, key: &str) -> Option<Field<'d>> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| self.of_entry(entry))
    }

    /// All values, in file order.
    pub(super) fn fields(&self) -> impl Iterator<Item = Field<'d>> {
        self.entries.iter().map(|entry| self.of_entry(entry))
    }

    /// The value of a key, as `read` takes it; `default` where it is missing or, which is then a problem, unreadable.
    pub(super) fn read<T>(&self, key: &str, default: T, read: impl FnOnce(&Field<'d>) -> Option<T>) -> T {
        self.get(key).and_then(|field| read(&field)).unwrap_or(default)
    }

    /// The value of a key that must be there.
    pub(super) fn require(&self, key: &str, help: &str) -> Option<Field<'d>> {
        let field = self.get(key);
        if field.is_none() {
            self.refuse(format!("{} is missing", self.child(key)), "needed here", help.to_owned());
        }
        field
    }

    /// A problem of the section as a whole.
    pub(super) fn refuse(&self, message: String, label: &str, help: impl Into<Option<String>>) {
        self.problems.error(self.key_span.clone(), message, label, help);
    }

    /// Names of the keys, in file order.
    pub(super) fn keys(&self) -> Vec<String> {
        self.entries.iter().map(|entry| entry.key.clone()).collect()
    }
}

/// A value of the document, with its dotted key.
#[derive(Clone, Debug)]
pub(super) struct Field<'d> {
    pub(super) path: String,
    pub(super) key: &'d str,
    pub(super) key_span: &'d Range<usize>,
    pub(super) node: &'d Node,
    pub(super) problems: &'d Collector,
}

impl<'d> Field<'d> {
    /// A problem of this value.
    pub(super) fn refuse(&self, found: impl std::fmt::Display, label: &str, help: impl Into<Option<String>>) {
        self.problems.error(Some(self.node.span.clone()), format!("{}: {found}", self.path), label, help);
    }

    /// Something to think about, of this value.
    pub(super) fn warn(&self, found: impl std::fmt::Display, label: &str, help: impl Into<Option<String>>) {
        self.problems.warning(Some(self.node.span.clone()), format!("{}: {found}", self.path), label, help);
    }

    fn expected(&self, expected: &str) {
        self.refuse(format!("{} was found", self.node.kind()), &format!("expected {expected}"), None);
    }

    /// This table, with these keys.
    pub(super) fn section<K: AsRef<str>>(&self, allowed: &[K]) -> Option<Section<'d>> {
        let section = self.open_section()?;
        section.check_keys(allowed);
        Some(section)
    }

    /// This table, whose keys are names of the user's.
    pub(super) fn open_section(&self) -> Option<Section<'d>> {
        let Value::Table(entries) = &self.node.value else {
            self.expected(&format!("a table: [{}]", self.path));
            return None;
        };
        Some(Section {
            path: self.path.clone(),
            entries,
            key_span: Some(self.key_span.clone()),
            problems: self.problems,
        })
    }

    pub(super) fn text(&self) -> Option<&'d str> {
        if let Value::Text(text) = &self.node.value {
            return Some(text);
        }
        self.expected("a text in quotes");
        None
    }

    pub(super) fn flag(&self) -> Option<bool> {
        if let Value::Boolean(flag) = self.node.value {
            return Some(flag);
        }
        self.expected("true or false");
        None
    }

    /// A finite number.
    pub(super) fn number(&self) -> Option<f64> {
        match self.node.value {
            Value::Integer(number) => Some(number as f64),
            Value::Float(number) if number.is_finite() => Some(number),
            Value::Float(number) => {
                self.refuse(format!("{number} is not a finite number"), "expected a finite number", None);
                None
            }
            _ => {
                self.expected("a number");
                None
            }
        }
    }

    /// A number above 0.
    pub(super) fn positive(&self) -> Option<f64> {
        let number = self.number()?;
        if number <= 0.0 {
            self.refuse(format!("{number} is not positive"), "expected a number above 0", None);
            return None;
        }
        Some(number)
    }

    /// A number of at least 0.
    pub(super) fn not_negative(&self) -> Option<f64> {
        let number = self.number()?;
        if number < 0.0 {
            self.refuse(format!("{number} is negative"), "expected a number of at least 0", None);
            return None;
        }
        Some(number)
    }

    /// A whole number of at least 1.
    pub(super) fn count(&self) -> Option<usize> {
        self.whole(1)
    }

    /// A whole number of at least `least` and at most [`MAX_COUNT`].
    pub(super) fn whole(&self, least: usize) -> Option<usize> {
        let Value::Integer(number) = self.node.value else {
            self.expected("a whole number");
            return None;
        };
        match usize::try_from(number) {
            Ok(count) if (least..=MAX_COUNT).contains(&count) => Some(count),
            _ => {
                let expected = format!("expected a whole number from {least} to {MAX_COUNT}");
                self.refuse(format!("{number} is out of range"), &expected, None);
                None
            }
        }
    }

    /// A number that fits 64 bits, as seeds are.
    pub(super) fn seed(&self) -> Option<u64> {
        if let Value::Integer(number) = self.node.value
            && let Ok(seed) = u64::try_from(number)
        {
            return Some(seed);
        }
        self.refuse("this is no seed", "expected a whole number of at least 0", None);
        None
    }

    /// The items of a list.
    pub(super) fn list(&self, of: &str) -> Option<Vec<Self>> {
        let Value::List(items) = &self.node.value else {
            self.expected(&format!("a list of {of}"));
            return None;
        };
        Some(items.iter().map(|node| Self { node, ..self.clone() }).collect())
    }

    /// One of these texts, to what it stands for.
    pub(super) fn choice<T: Clone>(&self, choices: &[(&str, T)]) -> Option<T> {
        let text = self.text()?;
        let found = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| value.clone());
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.refuse(format!("`{text}` is not known"), "expected one of those below", spelling_repair(text, &names));
        }
        found
    }

    /// A prior such as `normal(2, 0.5)`.
    pub(super) fn prior(&self) -> Option<Marginal> {
        match self.text()?.parse() {
            Ok(prior) => Some(prior),
            Err(error) => {
                let (found, repair) = found_and_repair(error);
                self.refuse(found, "expected a prior such as \"normal(2, 0.5)\"", repair);
                None
            }
        }
    }

    /// A prior of a standard deviation, which cannot be negative.
    pub(super) fn scale_prior(&self) -> Option<Marginal> {
        let prior = self.prior()?;
        if prior.support().0 < 0.0 {
            let help = format!(
                "use half-normal(...) or exponential(...), or truncate: \"{}, lower=0)\"",
                prior.to_string().trim_end_matches(')')
            );
            self.refuse(
                format!("{prior} reaches below 0, a standard deviation does not"),
                "expected a prior on positive numbers",
                help,
            );
            return None;
        }
        Some(prior)
    }

    /// Whether this is a text.
    pub(super) fn is_text(&self) -> bool {
        matches!(self.node.value, Value::Text(_))
    }
}
