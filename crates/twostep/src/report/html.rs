//! One self-contained page: sections, tables and figures, with its style, script, fonts and data inside.

use super::figure::Figure;
use super::look::{self, Theme};
use super::svg;
use super::text::escaped;
use super::words::Tone;
use crate::error::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use std::fmt::Write;

const STYLE: &str = include_str!("assets/report.css");
const SCRIPT: &str = include_str!("assets/report.js");
const REGULAR: &[u8] = include_bytes!("assets/inter-regular.woff2");
const SEMIBOLD: &[u8] = include_bytes!("assets/inter-semibold.woff2");

/// Most bytes of a figure's data that stand in the page; those of others lie in its CSV file alone.
const MOST_DATA: usize = 50_000;

/// A cell of a table.
pub(super) enum Cell {
    /// Words, which are wrapped.
    Text(String),
    /// A number, which is not.
    Number(String),
}

/// A page that is being written. All text given to it is escaped by it.
pub(super) struct Page {
    title: String,
    contents: Vec<(String, String)>,
    body: String,
    /// What identifiers of this part begin with.
    prefix: String,
}

impl Page {
    /// A page without content.
    pub(super) fn new(title: &str) -> Self {
        Self { title: title.to_owned(), contents: Vec::new(), body: String::new(), prefix: String::new() }
    }

    /// Identifiers of what follows begin with this.
    pub(super) fn set_prefix(&mut self, prefix: &str) {
        self.prefix = prefix.to_owned();
    }

    /// A section of the contents.
    pub(super) fn section(&mut self, id: &str, title: &str) {
        let id = format!("{}{id}", self.prefix);
        let _ = writeln!(self.body, "<h2 id=\"{}\">{}</h2>", escaped(&id), escaped(title));
        self.contents.push((id, title.to_owned()));
    }

    /// A heading that is not in the contents.
    pub(super) fn heading(&mut self, title: &str) {
        let _ = writeln!(self.body, "<h3>{}</h3>", escaped(title));
    }

    /// A paragraph; what stands between backticks is code.
    pub(super) fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p>{}</p>", with_code(text));
    }

    /// The sentences that matter most.
    pub(super) fn answers(&mut self, sentences: &[String]) {
        self.body.push_str("<ul class=\"plain answer\">");
        for sentence in sentences {
            let _ = write!(self.body, "<li>{}</li>", with_code(sentence));
        }
        self.body.push_str("</ul>\n");
    }

    /// A sentence with how it is meant.
    pub(super) fn said(&mut self, tone: Tone, text: &str) {
        let (class, word) = match tone {
            Tone::Plain => ("", ""),
            Tone::Good => (" good", "Good: "),
            Tone::Caution => (" caution", "Caution: "),
            Tone::Bad => (" bad", "Trouble: "),
        };
        let _ = writeln!(self.body, "<div class=\"said{class}\"><b>{word}</b>{}</div>", with_code(text));
    }

    /// A table; rows that lead stand out.
    pub(super) fn table(&mut self, header: &[String], rows: &[(bool, Vec<Cell>)]) {
        self.body.push_str("<div class=\"scroll\"><table><thead><tr>");
        for name in header {
            let _ = write!(self.body, "<th>{}</th>", escaped(name));
        }
        self.body.push_str("</tr></thead><tbody>");
        for (leads, cells) in rows {
            self.body.push_str(if *leads { "<tr class=\"leads\">" } else { "<tr>" });
            for cell in cells {
                let _ = match cell {
                    Cell::Number(text) => write!(self.body, "<td class=\"n\">{}</td>", escaped(text)),
                    Cell::Text(text) if text.len() > 40 => {
                        write!(self.body, "<td class=\"long\">{}</td>", with_code(text))
                    }
                    Cell::Text(text) => write!(self.body, "<td>{}</td>", with_code(text)),
                };
            }
            self.body.push_str("</tr>");
        }
        self.body.push_str("</tbody></table></div>\n");
    }

    /// A figure with its legend, caption and data.
    pub(super) fn figure(&mut self, figure: &Figure) -> Result<()> {
        let id = escaped(&format!("{}{}", self.prefix, figure.id));
        let panels = svg::page(figure);
        let class = match (panels.len(), figure.panels.len()) {
            (1, 1) => " one",
            (1, _) => " matrix",
            _ if figure.columns > 3 => " narrow",
            _ => "",
        };
        let csv = String::from_utf8_lossy(&figure.table()?.to_csv()?).into_owned();
        let (tools, data) = match csv.len() <= MOST_DATA {
            true => (
                format!(
                    "<div class=\"tools\"><button class=\"tool\" type=\"button\" data-csv=\"{id}-data\" \
                     data-file=\"{}.csv\">data</button></div>",
                    escaped(&figure.id)
                ),
                format!("<script type=\"application/json\" id=\"{id}-data\">{}</script>", json(&csv)),
            ),
            false => Default::default(),
        };
        let _ =
            write!(self.body, "<figure id=\"{id}\">{tools}<h3>{}</h3><div class=\"legend\">", escaped(&figure.title));
        for (name, swatch) in svg::legend(figure, Theme::Page) {
            let name = escaped(&name);
            let _ = write!(
                self.body,
                "<button class=\"key\" type=\"button\" data-series=\"{name}\" aria-pressed=\"true\">\
                 <svg viewBox=\"0 0 26 12\" aria-hidden=\"true\">{swatch}</svg>{name}</button>"
            );
        }
        let _ = writeln!(
            self.body,
            "</div><div class=\"panels{class}\">{}</div><figcaption>{}</figcaption>{data}</figure>",
            panels.concat(),
            with_code(&figure.caption)
        );
        Ok(())
    }

    /// Text as it is, line by line.
    pub(super) fn verbatim(&mut self, text: &str) {
        let _ = writeln!(self.body, "<pre><code>{}</code></pre>", escaped(text));
    }

    /// Begins something that can be folded.
    pub(super) fn fold(&mut self, id: &str, title: &str, class: &str, open: bool) {
        let id =
            if id.is_empty() { String::new() } else { format!(" id=\"{}{}\"", escaped(&self.prefix), escaped(id)) };
        let open = if open { " open" } else { "" };
        let _ = writeln!(self.body, "<details class=\"{class}\"{id}{open}><summary>{}</summary>", escaped(title));
    }

    /// Ends it.
    pub(super) fn unfold(&mut self) {
        self.body.push_str("</details>\n");
    }

    /// An entry of the contents for something that has this identifier.
    pub(super) fn list(&mut self, id: &str, title: &str) {
        self.contents.push((format!("{}{id}", self.prefix), title.to_owned()));
    }

    /// The whole document; `below` stands under the title.
    pub(super) fn finish(self, below: &str, footer: &str) -> String {
        let contents: String = self
            .contents
            .iter()
            .map(|(id, title)| format!("<li><a href=\"#{}\">{}</a></li>", escaped(id), escaped(title)))
            .collect();
        let font = |weight: u32, data: &[u8]| {
            format!(
                "@font-face{{font-family:Inter;font-weight:{weight};src:url(data:font/woff2;base64,{}) format(\"woff2\")}}",
                STANDARD.encode(data)
            )
        };
        let (light, dark) = (look::variables(false), look::variables(true));
        let dark = format!(
            "--text:#ececec;--muted:#a6a6a6;--grid:#343434;--ground:#16181a;--raised:#1f2225;--edge:#3a3e42;\
                     --accent:#5ab4ee;--good:#3fc79b;--caution:#f0b648;--bad:#ff7b7b;{dark}"
        );
        // What is told by hand goes before what the system prefers; paper is light.
        let shades = format!(
            ":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root:not([data-shade=light]){{{dark}}}}}\
             @media screen{{:root[data-shade=dark]{{{dark}color-scheme:dark}}:root[data-shade=light]{{color-scheme:light}}}}"
        );
        // Only this script runs, and nothing is fetched, whatever stands in the page.
        let script = STANDARD.encode(Sha256::digest(SCRIPT));
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
             script-src 'sha256-{script}'; font-src data:; img-src data:\">\
             <link rel=\"icon\" href=\"data:,\"><title>{title}</title><style>{}{}{STYLE}{shades}</style></head>\n<body>\n\
             <header><div class=\"tools\"><button class=\"tool\" type=\"button\" id=\"shade\">light / dark</button></div>\
             <h1>{title}</h1><p class=\"sub\">{}</p><nav id=\"contents\" aria-label=\"Contents\"><ol>{contents}</ol></nav></header>\n\
             <main>\n{}</main>\n<footer><p>{}</p></footer>\n<div id=\"tip\" role=\"status\"></div>\n<script>{SCRIPT}</script>\n\
             </body></html>\n",
            font(400, REGULAR),
            font(600, SEMIBOLD),
            with_code(below),
            self.body,
            with_code(footer),
            title = escaped(&self.title),
        )
    }
}

/// Escaped text with what stands between backticks as code; a number stays on the line of its percent sign.
fn with_code(text: &str) -> String {
    let parts: Vec<String> = escaped(text).replace(" %", "\u{a0}%").split('`').map(str::to_owned).collect();
    // A single backtick is itself.
    if parts.len().is_multiple_of(2) {
        return parts.join("`");
    }
    parts
        .iter()
        .enumerate()
        .map(|(i, part)| if i % 2 == 1 { format!("<code>{part}</code>") } else { part.clone() })
        .collect()
}

/// The text as JSON that ends no script.
fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default().replace('<', "\\u003c").replace("\u{2028}", "\\u2028")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        let mut page = Page::new("</title><script>1</script>");
        page.section("a\"b", "<img onerror=x>");
        page.paragraph("run `twostep <run>` now & here");
        page.said(Tone::Bad, "it's `odd");
        page.table(&["<b>".into()], &[(true, vec![Cell::Text("</td>".into()), Cell::Number("1".into())])]);
        page.verbatim("</pre>");
        let text = page.finish("<i>", "\"");
        assert_eq!(text.matches("<script").count(), 1);
        assert!(!text.contains("<img") && !text.contains("<i>"));
        assert!(text.contains("<code>twostep &lt;run&gt;</code> now &amp; here") && text.contains("it&#39;s `odd"));
        assert!(!text.contains("http://") && !text.contains("https://"));
    }

    #[test]
    fn data_end_no_script() {
        assert_eq!(json("</script>\n\""), "\"\\u003c/script>\\n\\\"\"");
    }
}
