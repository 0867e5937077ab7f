//! Text in figures and pages: escaping, and how wide it will be.

use skrifa::instance::{LocationRef, Size};
use skrifa::{FontRef, MetadataProvider};
use std::collections::HashMap;
use std::sync::LazyLock;

/// The regular face, which figures are lettered with.
pub(super) const REGULAR: &[u8] = include_bytes!("assets/inter-regular.ttf");

/// The face of titles.
pub(super) const SEMIBOLD: &[u8] = include_bytes!("assets/inter-semibold.ttf");

/// Advance of each character in ems.
static ADVANCES: LazyLock<HashMap<char, f64>> = LazyLock::new(|| {
    let Ok(font) = FontRef::new(REGULAR) else { return HashMap::new() };
    let metrics = font.glyph_metrics(Size::new(1.0), LocationRef::default());
    let advance = |(code, glyph)| Some((char::from_u32(code)?, f64::from(metrics.advance_width(glyph)?)));
    font.charmap().mappings().filter_map(advance).collect()
});

/// Of a character that the font does not have: as wide as an emoji.
const UNKNOWN: f64 = 1.3;

/// Width of a text at a size of one; a little more than it takes, for titles and other fonts.
pub(super) fn width(text: &str) -> f64 {
    1.04 * text.chars().map(|c| ADVANCES.get(&c).copied().unwrap_or(UNKNOWN)).sum::<f64>()
}

/// Whether every character is in the fonts that come with the program.
pub(super) fn is_covered(text: &str) -> bool {
    text.chars().all(|c| c.is_control() || ADVANCES.contains_key(&c))
}

/// The text, or as much of its beginning as fits into `room` with an ellipsis.
pub(super) fn fitted(text: &str, room: f64) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let mut used = width("…");
    let fits = |c: &char| {
        used += width(c.encode_utf8(&mut [0; 4]));
        used <= room
    };
    let kept: String = text.chars().take_while(fits).collect();
    format!("{}…", kept.trim_end())
}

/// The text in lines no wider than `room`; words that are wider are cut.
pub(super) fn lines(text: &str, room: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line) + width(" ") + width(word) <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(fitted(word, room)),
        }
    }
    lines
}

/// The text as content or attribute of HTML and SVG. Control characters, which XML does not have, are left out; those that turn
/// the direction of what follows are, too.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => {}
            c if c.is_control() && c != '\n' && c != '\t' => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_text() {
        assert_eq!(escaped("<a b=\"c\" d='&'>\u{202e}\0"), "&lt;a b=&quot;c&quot; d=&#39;&amp;&#39;&gt;");
    }

    #[test]
    fn what_does_not_fit_is_cut() {
        let text = "an unknown with a long name";
        assert_eq!(fitted(text, width(text)), text);
        let cut = fitted(text, 5.0);
        assert!(cut.ends_with('…') && width(&cut) <= 5.0 && cut.len() > 4, "{cut}");
        let lines = lines(text, 6.0);
        assert!(lines.len() > 2 && lines.iter().all(|line| width(line) <= 6.0), "{lines:?}");
    }
}
