//! TOML text to a tree of values that know their place in it, and the reader that turns places into typed values.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::problem::{Collector, found_and_repair};
use crate::prior::Marginal;
use crate::simulate::spelling_repair;
use crate::table::nearest;

/// Largest count that any key takes: beyond it, memory ends before the study does.
const MAX_COUNT: usize = 1_000_000;

/// Most syntax errors to show: behind the first the parser guesses, and a text of another kind has one on every line.
const MAX_SYNTAX_ERRORS: usize = 2;

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
    /// The tree of a TOML text; the first syntax errors, one a line, otherwise.
    pub(super) fn parse(text: &str, problems: &Collector) -> Option<Self> {
        let (table, errors) = DeTable::parse_recoverable(text);
        let tree = Self { value: Value::from_table(table.get_ref()), span: table.span() };
        let (mut last_line, mut shown, mut in_second) = (None, 0, false);
        for error in &errors {
            let span = error.span().filter(|span| text.get(span.clone()).is_some());
            let line = span.as_ref().map(|span| line_number(text, span.start));
            let is_twice = error.message() == "duplicate key";
            // Beyond the first error of a line the parser guesses, and below a second header all keys are twice there.
            if (line.is_some() && line == last_line) || (in_second && is_twice) || shown == MAX_SYNTAX_ERRORS {
                continue;
            }
            (last_line, shown) = (line, shown + 1);
            match &span {
                Some(span) if is_twice => in_second = tree.refuse_twice(text, span, problems),
                Some(span) if error.message().starts_with("string values must be quoted") => {
                    refuse_unquoted(text, span, problems);
                }
                _ => {
                    let message = format!("this is not TOML: {}", error.message());
                    let help = "texts stand in quotes, lists in [ ], and every line is `key = value` or a [table]";
                    problems.error(span, message, "here", help.to_owned());
                }
            }
        }
        errors.is_empty().then_some(tree)
    }

    /// Refuses a key that was given before, and says where; whether it is that of a section.
    fn refuse_twice(&self, text: &str, span: &Range<usize>, problems: &Collector) -> bool {
        fn header(line: &str) -> Option<&str> {
            line.trim_start().strip_prefix('[')?.split(']').next()
        }
        let start = text[..span.start].rfind('\n').map_or(0, |newline| newline + 1);
        let written = &text[start..span.end];
        let above = || text[..start].lines();
        let (what, first, help) = match header(written) {
            Some(section) => {
                let first = above().position(|line| header(line) == Some(section)).map(|line| line + 1);
                (format!("[{section}]"), first, "put its keys into one section")
            }
            None => {
                let section = above().rev().find_map(header);
                let path = section.into_iter().chain([written]).flat_map(|part| part.split('.'));
                let first = self.key_span(path).map(|first| line_number(text, first.start));
                (format!("`{}`", &text[span.clone()]), first, "keep one of them")
            }
        };
        let second = line_number(text, span.start);
        let lines = first.map_or("twice".to_owned(), |first| format!("on line {first} and on line {second}"));
        problems.error(Some(span.clone()), format!("{what} stands {lines}"), "the second one", help.to_owned());
        header(written).is_some()
    }

    /// Where the last key of a path stands, as it is written in a file.
    fn key_span<'p>(&self, path: impl Iterator<Item = &'p str>) -> Option<Range<usize>> {
        let (mut node, mut span) = (self, None);
        for key in path.map(|key| key.trim().trim_matches(['"', '\''])) {
            let Value::Table(entries) = &node.value else { return None };
            let entry = entries.iter().find(|entry| entry.key == key)?;
            (node, span) = (&entry.node, Some(entry.key_span.clone()));
        }
        span
    }

    /// The entry of a table with that key.
    pub(super) fn entry_mut(&mut self, key: &str) -> Option<&mut Entry> {
        let Value::Table(entries) = &mut self.value else { return None };
        entries.iter_mut().find(|entry| entry.key == key)
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

/// Number of the line of a byte, from 1.
fn line_number(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// Refuses a value that is neither a number nor in quotes.
fn refuse_unquoted(text: &str, span: &Range<usize>, problems: &Collector) {
    let value = text[span.clone()].trim();
    let words: Vec<&str> = value.split_whitespace().collect();
    let several = words.len() > 1 && words.iter().all(|word| word.parse::<f64>().is_ok());
    let (message, help) = if several {
        let help = format!("write one of them, or the list [{}] where a list is allowed", words.join(", "));
        (format!("`{value}` is more than one value"), help)
    } else {
        (format!("`{value}` is neither a number nor a text in quotes"), format!("write \"{value}\" if it is a text"))
    };
    problems.error(Some(span.clone()), message, "expected one value", help);
}

/// A table of the document whose keys are known ones.
#[derive(Clone, Debug)]
pub(super) struct Section<'d> {
    path: String,
    entries: &'d [Entry],
    /// Misspelt entries by the key that is meant. Their spelling is a problem; their values are read all the same, so that
    /// it stays the only one.
    meant: Vec<(String, &'d Entry)>,
    /// Where to point when a key is missing; the root points nowhere.
    key_span: Option<Range<usize>>,
    pub(super) problems: &'d Collector,
}

impl<'d> Section<'d> {
    /// The whole document; unknown keys are problems.
    pub(super) fn root(node: &'d Node, allowed: &[&str], problems: &'d Collector) -> Self {
        let entries = if let Value::Table(entries) = &node.value { entries.as_slice() } else { &[] };
        let mut section = Self { path: String::new(), entries, meant: Vec::new(), key_span: None, problems };
        section.check_keys(allowed);
        section
    }

    /// This section with the entries of another tree.
    pub(super) fn over<'n>(&self, node: &'n Node) -> Section<'n>
    where
        'd: 'n,
    {
        let entries = if let Value::Table(entries) = &node.value { entries.as_slice() } else { &[] };
        Section { entries, ..self.clone() }
    }

    fn check_keys<K: AsRef<str>>(&mut self, allowed: &[K]) {
        let allowed: Vec<&str> = allowed.iter().map(AsRef::as_ref).collect();
        let mut absent = allowed.clone();
        absent.retain(|key| !self.entries.iter().any(|entry| entry.key == *key));
        let place = if self.path.is_empty() { "the study".to_owned() } else { format!("[{}]", self.path) };
        for entry in self.entries.iter().filter(|entry| !allowed.contains(&entry.key.as_str())) {
            let message = format!("{place} has no key `{}`", entry.key);
            self.problems.error(
                Some(entry.key_span.clone()),
                message,
                "unknown key",
                spelling_repair(&entry.key, &allowed),
            );
            if let Some(key) = nearest(&entry.key, &absent) {
                absent.retain(|other| *other != key);
                self.meant.push((key.to_owned(), entry));
            }
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
        let exact = self.entries.iter().find(|entry| entry.key == key);
        let meant = || self.meant.iter().find(|(meant, _)| meant == key).map(|(_, entry)| *entry);
        exact.or_else(meant).map(|entry| self.of_entry(entry))
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
        let help = match &self.node.value {
            Value::Text(text) if is_value(text) => Some(format!("remove the quotes: {}", text.trim())),
            _ => None,
        };
        self.refuse(format!("{} was found", self.node.kind()), &format!("expected {expected}"), help);
    }

    /// This table, with these keys.
    pub(super) fn section<K: AsRef<str>>(&self, allowed: &[K]) -> Option<Section<'d>> {
        let mut section = self.open_section()?;
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
            meant: Vec::new(),
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

    /// A number from `least` to `most`.
    pub(super) fn within(&self, least: f64, most: f64) -> Option<f64> {
        let number = self.number()?;
        if !(least..=most).contains(&number) {
            let expected = format!("expected a number from {least} to {most}");
            self.refuse(format!("{number} is out of range"), &expected, None);
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
        self.whole(1, MAX_COUNT, None)
    }

    /// A whole number of at least `least` and at most `most`, with a help for others.
    pub(super) fn whole(&self, least: usize, most: usize, help: Option<String>) -> Option<usize> {
        let Value::Integer(number) = self.node.value else {
            self.expected("a whole number");
            return None;
        };
        match usize::try_from(number) {
            Ok(count) if (least..=most).contains(&count) => Some(count),
            _ => {
                let expected = format!("expected a whole number from {least} to {most}");
                self.refuse(format!("{number} is out of range"), &expected, help);
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
        if let Value::Text(text) = &self.node.value
            && text.trim().parse::<f64>().is_ok()
        {
            self.expected("a number, or a prior in quotes");
            return None;
        }
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

/// Whether a text would be a number, a flag or a list without its quotes.
fn is_value(text: &str) -> bool {
    let text = text.trim();
    text.parse::<f64>().is_ok() || ["true", "false"].contains(&text) || (text.starts_with('[') && text.ends_with(']'))
}
