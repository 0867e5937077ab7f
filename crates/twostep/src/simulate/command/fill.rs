//! Values of inputs to arguments, parameter files and filled templates.

use super::ParamsFormat;
use crate::simulate::{Job, Wanted};
use crate::table::Table;

/// A piece of an argument.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    Text(String),
    Placeholder(Placeholder),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placeholder {
    Params,
    Results,
    Id,
    Folder,
}

impl Placeholder {
    const ALL: [(&'static str, Self); 4] =
        [("params", Self::Params), ("results", Self::Results), ("id", Self::Id), ("folder", Self::Folder)];
}

/// The pieces of an argument; an error says what is wrong with its braces.
pub(super) fn pieces(argument: &str) -> Result<Vec<Piece>, String> {
    let (mut out, mut text, mut rest) = (Vec::new(), String::new(), argument);
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let brace = &rest[at..at + 1];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            text.push_str(brace);
            rest = after;
            continue;
        }
        let name = rest.find('}').filter(|_| brace == "{").map(|end| &rest[..end]);
        let Some(name) = name else { return Err(format!("`{argument}` has a `{brace}` without its partner")) };
        let Some((_, placeholder)) = Placeholder::ALL.iter().find(|(known, _)| *known == name) else {
            return Err(format!("`{argument}` has the unknown placeholder `{{{name}}}`"));
        };
        if !text.is_empty() {
            out.push(Piece::Text(std::mem::take(&mut text)));
        }
        out.push(Piece::Placeholder(*placeholder));
        rest = &rest[name.len() + 1..];
    }
    text.push_str(rest);
    if !text.is_empty() || out.is_empty() {
        out.push(Piece::Text(text));
    }
    Ok(out)
}

/// Content of the file of the inputs.
pub(super) fn params(format: ParamsFormat, job: &Job, outputs: &[Wanted]) -> Result<Vec<u8>, String> {
    match format {
        ParamsFormat::Json => {
            let object: serde_json::Map<_, _> =
                job.inputs.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
            let text = serde_json::to_string_pretty(&object).map_err(|problem| problem.to_string())?;
            Ok((text + "\n").into_bytes())
        }
        ParamsFormat::Csv => {
            let table =
                job.inputs.iter().try_fold(Table::new(), |t, (name, x)| t.with_numbers(name.as_str(), vec![*x]));
            table.and_then(|table| table.to_csv()).map_err(|problem| problem.to_string())
        }
        ParamsFormat::Dakota => {
            Ok(dakota_lines(job, outputs, &STANDARD_HEADS, &|tag, value| format!("{value:>43} {tag}\n")))
        }
        ParamsFormat::Aprepro => Ok(dakota_lines(job, outputs, &APREPRO_HEADS, &|tag, value| {
            format!("{:20}{{ {tag:15} = {value:>22} }}\n", "")
        })),
    }
}

const STANDARD_HEADS: [&str; 5] = ["variables", "functions", "derivative_variables", "analysis_components", "eval_id"];
const APREPRO_HEADS: [&str; 5] = ["DAKOTA_VARS", "DAKOTA_FNS", "DAKOTA_DER_VARS", "DAKOTA_AN_COMPS", "DAKOTA_EVAL_ID"];

/// Variables, wanted functions (values, no derivatives), variables to derive by, and the number of the evaluation.
fn dakota_lines(job: &Job, outputs: &[Wanted], heads: &[&str; 5], line: &dyn Fn(&str, &str) -> String) -> Vec<u8> {
    let mut out = line(heads[0], &job.inputs.len().to_string());
    for (name, value) in &job.inputs {
        // Seventeen digits read back as the same double.
        out += &line(name, &scientific(*value, 16));
    }
    out += &line(heads[1], &outputs.len().to_string());
    for (i, output) in outputs.iter().enumerate() {
        out += &line(&format!("ASV_{}:{}", i + 1, output.name), "1");
    }
    out += &line(heads[2], &job.inputs.len().to_string());
    for (i, (name, _)) in job.inputs.iter().enumerate() {
        out += &line(&format!("DVV_{}:{name}", i + 1), &(i + 1).to_string());
    }
    out += &line(heads[3], "0");
    out += &line(heads[4], &job.id.to_string());
    out.into_bytes()
}

/// How a marker writes its number.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Format {
    is_left: bool,
    has_plus: bool,
    is_zero_padded: bool,
    width: usize,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Format {
    /// What stands behind the colon: `12.6e`, `.3f`, `05d`, `-10g`, as in C.
    fn parse(text: &str) -> Option<Self> {
        // More would be a slip of the hand and could exhaust the memory.
        const WIDEST: usize = 1000;
        let mut format = Self::default();
        let mut rest = text;
        while let Some(flag) = rest.chars().next().filter(|flag| "-<>+0".contains(*flag)) {
            match flag {
                '-' | '<' => format.is_left = true,
                '+' => format.has_plus = true,
                '0' => format.is_zero_padded = true,
                _ => {}
            }
            rest = &rest[1..];
        }
        let number = |rest: &mut &str| {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (digits, after) = rest.split_at(end);
            *rest = after;
            digits.parse::<usize>().ok().filter(|number| *number <= WIDEST)
        };
        if rest.starts_with(|c: char| c.is_ascii_digit()) {
            format.width = number(&mut rest)?;
        }
        if let Some(after) = rest.strip_prefix('.') {
            rest = after;
            format.precision = Some(number(&mut rest)?);
        }
        format.kind = rest.chars().next();
        let is_known = match format.kind {
            Some(kind @ ('e' | 'E' | 'f' | 'F' | 'g' | 'G')) => rest.len() == kind.len_utf8(),
            Some('d' | 'i') => rest.len() == 1 && format.precision.is_none(),
            Some(_) => false,
            None => format.precision.is_none(),
        };
        is_known.then_some(format)
    }

    /// `value` in this format; an error if it is to be a whole number and is none.
    fn write(&self, value: f64) -> Result<String, String> {
        let precision = self.precision.unwrap_or(6);
        let digits = match self.kind {
            Some('e') => scientific(value, precision),
            Some('E') => scientific(value, precision).to_uppercase(),
            Some('f' | 'F') => format!("{value:.precision$}"),
            Some('g') => general(value, precision),
            Some('G') => general(value, precision).to_uppercase(),
            Some(_) => {
                // Rounding would run the simulator elsewhere than the ledger says.
                if value.fract() != 0.0 {
                    return Err(format!("{value} is not a whole number; write .0f to round it"));
                }
                format!("{value:.0}")
            }
            None => shortest(value),
        };
        let (sign, digits) = match digits.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => (if self.has_plus { "+" } else { "" }, digits.as_str()),
        };
        let missing = self.width.saturating_sub(sign.len() + digits.len());
        Ok(match (self.is_left, self.is_zero_padded) {
            (true, _) => format!("{sign}{digits}{:missing$}", ""),
            (false, true) => format!("{sign}{}{digits}", "0".repeat(missing)),
            (false, false) => format!("{:missing$}{sign}{digits}", ""),
        })
    }
}

/// The shortest text that reads back as the same double, and as a real number everywhere: `2.0`, `1e-7`.
fn shortest(value: f64) -> String {
    format!("{value:?}")
}

/// C's `%.{precision}e`.
fn scientific(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => match exponent.strip_prefix('-') {
            Some(digits) => format!("{mantissa}e-{digits:0>2}"),
            None => format!("{mantissa}e+{exponent:0>2}"),
        },
        None => text,
    }
}

/// C's `%.{precision}g`.
fn general(value: f64, precision: usize) -> String {
    let digits = precision.max(1);
    let rounded = scientific(value, digits - 1);
    let exponent: i64 = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..digits as i64).contains(&exponent) {
        let decimals = (digits as i64 - 1 - exponent) as usize;
        return trimmed(&format!("{value:.decimals$}"));
    }
    match rounded.split_once('e') {
        Some((mantissa, exponent)) => format!("{}e{exponent}", trimmed(mantissa)),
        None => rounded,
    }
}

/// A piece of a template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part<'a> {
    Text(&'a [u8]),
    Marker { line: usize, name: &'a str, format: Format },
}

/// The pieces of a template, or the line and what is wrong there.
///
/// A marker is `{{ name }}` or `{{ name:format }}` within one line. Of three braces or more the inner two are the marker's.
/// `{{ "text" }}` is the text as it stands, braces included.
pub(super) fn parts(template: &[u8]) -> Result<Vec<Part<'_>>, (usize, String)> {
    let mut out = Vec::new();
    let (mut from, mut at, mut line) = (0, 0, 1);
    while at < template.len() {
        if template[at] == b'\n' {
            line += 1;
        }
        if !template[at..].starts_with(b"{{") || template.get(at + 2) == Some(&b'{') {
            at += 1;
            continue;
        }
        let rest = &template[at + 2..];
        let end_of_line = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        let rest = &rest[..end_of_line];
        let shown =
            || format!("`{{{{{}`", String::from_utf8_lossy(rest).chars().take(30).collect::<String>().trim_end());
        let literal = literal(rest);
        let end = match literal {
            Some((_, end)) => Some(end),
            None => rest.windows(2).position(|pair| pair == b"}}"),
        };
        let Some(end) = end else { return Err((line, format!("{} has no }}}} in its line", shown()))) };
        out.push(Part::Text(&template[from..at]));
        at += 2 + end + 2;
        from = at;
        if let Some((text, _)) = literal {
            out.push(Part::Text(text));
            continue;
        }
        let content = std::str::from_utf8(&rest[..end]).map_err(|_| (line, format!("{} is not in UTF-8", shown())))?;
        let (name, format) = content.split_once(':').unwrap_or((content, ""));
        let name = name.trim();
        if name.is_empty() {
            return Err((line, format!("`{{{{{content}}}}}` names no input")));
        }
        let format = Format::parse(format.trim()).ok_or_else(|| {
            let known = "known are such as 12.6e, .3f, 10g and 5d";
            (line, format!("`{{{{{content}}}}}` has the unknown format `{}`: {known}", format.trim()))
        })?;
        out.push(Part::Marker { line, name, format });
    }
    out.push(Part::Text(&template[from..]));
    Ok(out)
}

/// The text of a marker ` "text" }}` behind its opening braces, and where its closing ones begin.
fn literal(rest: &[u8]) -> Option<(&[u8], usize)> {
    let blanks = |bytes: &[u8]| bytes.iter().take_while(|byte| **byte == b' ').count();
    let start = blanks(rest);
    let text = rest[start..].strip_prefix(b"\"")?;
    let length = text.iter().position(|byte| *byte == b'"')?;
    let after = start + 1 + length + 1;
    let end = after + blanks(&rest[after..]);
    rest[end..].starts_with(b"}}").then_some((&text[..length], end))
}

/// The template with every marker replaced; `source` is what errors call it.
pub(super) fn fill(template: &[u8], inputs: &[(String, f64)], source: &str) -> Result<Vec<u8>, String> {
    let place = |line: usize, problem: &str| format!("{source}, line {line}: {problem}");
    let mut out = Vec::with_capacity(template.len());
    for part in parts(template).map_err(|(line, problem)| place(line, &problem))? {
        match part {
            Part::Text(text) => out.extend_from_slice(text),
            Part::Marker { line, name, format } => {
                let value = inputs.iter().find(|(input, _)| input == name).map(|(_, value)| *value);
                let value = value.ok_or_else(|| place(line, &format!("there is no input `{name}`")))?;
                let text = format.write(value).map_err(|problem| place(line, &format!("{name} = {problem}")))?;
                out.extend_from_slice(text.as_bytes());
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::PathBuf;

    fn job(inputs: &[(&str, f64)]) -> Job {
        Job {
            id: 7,
            inputs: inputs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            folder: PathBuf::new(),
            marker: String::new(),
            attempt: 1,
        }
    }

    fn filled(template: &str, inputs: &[(&str, f64)]) -> Result<String, String> {
        fill(template.as_bytes(), &job(inputs).inputs, "a.tpl").map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn arguments_are_cut_at_their_placeholders() {
        let text = |text: &str| Piece::Text(text.to_owned());
        assert_eq!(pieces("").unwrap(), [text("")]);
        assert_eq!(
            pieces("--in={params},{id}.x").unwrap(),
            [
                text("--in="),
                Piece::Placeholder(Placeholder::Params),
                text(","),
                Piece::Placeholder(Placeholder::Id),
                text(".x")
            ]
        );
        assert_eq!(pieces("{{print $1}} {{{{").unwrap(), [text("{print $1} {{")]);
        assert_eq!(pieces("{prams}").unwrap_err(), "`{prams}` has the unknown placeholder `{prams}`");
        assert_eq!(pieces("a{b").unwrap_err(), "`a{b` has a `{` without its partner");
        assert_eq!(pieces("a}b").unwrap_err(), "`a}b` has a `}` without its partner");
    }

    #[test]
    fn parameter_files_have_their_format() {
        let job = job(&[("beta", 0.1), ("n", 2.0)]);
        let outputs = [Wanted { name: "y".to_owned(), over: None }];
        let text = |format| String::from_utf8(params(format, &job, &outputs).unwrap()).unwrap();
        assert_eq!(text(ParamsFormat::Json), "{\n  \"beta\": 0.1,\n  \"n\": 2.0\n}\n");
        assert_eq!(text(ParamsFormat::Csv), "beta,n\n0.1,2\n");
        let dakota = text(ParamsFormat::Dakota);
        let words: Vec<Vec<&str>> = dakota.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words,
            [
                ["2", "variables"],
                ["1.0000000000000001e-01", "beta"],
                ["2.0000000000000000e+00", "n"],
                ["1", "functions"],
                ["1", "ASV_1:y"],
                ["2", "derivative_variables"],
                ["1", "DVV_1:beta"],
                ["2", "DVV_2:n"],
                ["0", "analysis_components"],
                ["7", "eval_id"],
            ]
        );
        // As Dakota 6 does: values end in column 43.
        assert!(dakota.lines().all(|line| line.rfind(' ') == Some(43)), "{dakota}");
        let aprepro = text(ParamsFormat::Aprepro);
        assert!(aprepro.starts_with("                    { DAKOTA_VARS     =                      2 }\n"), "{aprepro}");
        assert!(aprepro.contains("                    { beta            = 1.0000000000000001e-01 }\n"), "{aprepro}");
        assert!(aprepro.ends_with("                    { DAKOTA_EVAL_ID  =                      7 }\n"), "{aprepro}");
        assert_eq!(aprepro.lines().count(), 10);
    }

    #[test]
    fn markers_are_filled() {
        let inputs = [("beta", 1.5), ("x_1", -2.0), ("k", 1e-7)];
        let cases = [
            ("a = {{ beta }}\r\nb={{x_1}}", "a = 1.5\r\nb=-2.0"),
            ("{{k}}", "1e-7"),
            ("[{{ beta:12.6e }}]", "[1.500000e+00]"),
            ("[{{ beta:14.6E }}]", "[  1.500000E+00]"),
            (
                "[{{ beta:.3f }}|{{ beta:8.1f }}|{{ beta:-8.1f }}|{{beta:08.2f}}|{{beta:+f}}]",
                "[1.500|     1.5|1.5     |00001.50|+1.500000]",
            ),
            ("{{ x_1:d }} {{ x_1:05d }} {{ x_1:5i }}", "-2 -0002    -2"),
            ("{{ k:g }} {{ beta:g }} {{ beta:.1g }} {{ k:.3G }}", "1e-07 1.5 2 1E-07"),
            ("[{{ beta:8 }}]", "[     1.5]"),
            ("{\"a\":{\"b\":{{beta}}}}", "{\"a\":{\"b\":1.5}}"),
            ("{{{beta}}}", "{1.5}"),
            ("}} { } {{ \"{{\" }} x {{\"}}\"}}", "}} { } {{ x }}"),
            ("", ""),
        ];
        for (template, expected) in cases {
            assert_eq!(filled(template, &inputs).unwrap(), expected, "{template}");
        }
        // Bytes that are not UTF-8 pass through.
        assert_eq!(fill(b"\xe9{{b}}\xff", &[("b".to_owned(), 0.5)], "a.tpl").unwrap(), b"\xe90.5\xff");
    }

    #[test]
    fn numbers_are_written_as_in_c() {
        let write = |format: &str, value| Format::parse(format).unwrap().write(value).unwrap();
        assert_eq!(write("g", 100_000.0), "100000");
        assert_eq!(write("g", 1_000_000.0), "1e+06");
        assert_eq!(write("g", 999_999.5), "1e+06");
        assert_eq!(write("g", 0.0001), "0.0001");
        assert_eq!(write("g", 0.00001), "1e-05");
        assert_eq!(write("g", 0.0), "0");
        assert_eq!(write(".0g", 0.25), "0.2");
        assert_eq!(write(".3e", 1e-300), "1.000e-300");
        assert_eq!(write(".0e", -12345.0), "-1e+04");
    }

    #[test]
    fn wrong_markers_are_named_with_file_and_line() {
        let refused = |template: &str| filled(template, &[("beta", 1.5)]).unwrap_err();
        assert_eq!(refused("x\n{{ bta }}"), "a.tpl, line 2: there is no input `bta`");
        assert_eq!(refused("x\n\n {{ beta\n}}"), "a.tpl, line 3: `{{ beta` has no }} in its line");
        assert_eq!(refused("{{ }}"), "a.tpl, line 1: `{{ }}` names no input");
        assert_eq!(refused("{{ beta:d }}"), "a.tpl, line 1: beta = 1.5 is not a whole number; write .0f to round it");
        for format in ["x", "12.e", ".3", ".3d", "5.2q", "99999f", "ee", "1 2f"] {
            let message = refused(&format!("{{{{beta:{format}}}}}"));
            assert!(message.contains(&format!("has the unknown format `{format}`")), "{message}");
        }
        assert!(fill(b"{{\xff}}", &[], "a.tpl").unwrap_err().ends_with("is not in UTF-8"));
    }

    proptest! {
        #[test]
        fn any_template_is_filled_or_refused(template in "[ {}\":a.0-9ef\\n-]{0,40}", bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let inputs = [("a".to_owned(), 0.1), ("e".to_owned(), -3.0)];
            let _ = fill(template.as_bytes(), &inputs, "a.tpl");
            let _ = fill(&bytes, &inputs, "a.tpl");
            let _ = pieces(&template);
        }

        #[test]
        fn any_marker_is_filled_or_refused(
            template in "([{]{2,4} ?(a|e|b|\"[}]\")?(:[-+<>0]{0,2}[0-9]{0,4}([.][0-9]{0,4})?[efgEFGdiq]?)? ?[}]{1,3}|[ x\n]){1,4}",
            value in any::<f64>(),
        ) {
            let inputs = [("a".to_owned(), value), ("e".to_owned(), value.trunc())];
            let _ = fill(template.as_bytes(), &inputs, "a.tpl");
        }

        #[test]
        fn a_template_without_markers_is_copied(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            prop_assume!(!bytes.windows(2).any(|pair| pair == b"{{"));
            prop_assert_eq!(fill(&bytes, &[], "a.tpl").unwrap(), bytes);
        }

        #[test]
        fn numbers_in_full_read_back(value in any::<f64>().prop_filter("finite", |x| x.is_finite())) {
            for format in ["", "30.16e", ".17g", "025.16E"] {
                let text = Format::parse(format).unwrap().write(value).unwrap();
                prop_assert_eq!(text.trim().parse::<f64>().unwrap().to_bits(), value.to_bits());
            }
        }
    }
}
