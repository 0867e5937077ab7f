//! SVG to PNG, with the fonts that come with the program.

use super::text::{REGULAR, SEMIBOLD, is_covered};
use crate::error::{Error, Result};
use resvg::{tiny_skia, usvg};
use std::sync::{Arc, LazyLock};
use usvg::fontdb::Database;

/// The program's own fonts.
static FONTS: LazyLock<Arc<Database>> = LazyLock::new(|| Arc::new(own_fonts()));

/// And the system's, for names in other scripts.
static ALL_FONTS: LazyLock<Arc<Database>> = LazyLock::new(|| {
    let mut fonts = own_fonts();
    fonts.load_system_fonts();
    Arc::new(fonts)
});

fn own_fonts() -> Database {
    let mut fonts = Database::new();
    fonts.load_font_data(REGULAR.to_vec());
    fonts.load_font_data(SEMIBOLD.to_vec());
    fonts.set_sans_serif_family("Inter");
    fonts
}

/// The drawing with `scale` dots for each of its pixels.
///
/// # Errors
/// A drawing too large to hold in memory.
pub fn png(svg: &str, scale: f64) -> Result<Vec<u8>> {
    let fontdb = if is_covered(svg) { FONTS.clone() } else { ALL_FONTS.clone() };
    let options = usvg::Options { font_family: "Inter".into(), fontdb, ..usvg::Options::default() };
    let failed = |why: String| Error::failed("PNG", why, "make the figure smaller, or take SVG");
    let tree = usvg::Tree::from_str(svg, &options).map_err(|e| failed(e.to_string()))?;
    let size = tree.size();
    let pixels = |length: f32| (f64::from(length) * scale).ceil() as u32;
    let mut image = tiny_skia::Pixmap::new(pixels(size.width()), pixels(size.height()))
        .ok_or_else(|| failed("the image is empty or too large".into()))?;
    let transform = tiny_skia::Transform::from_scale(scale as f32, scale as f32);
    resvg::render(&tree, transform, &mut image.as_mut());
    let (width, height) = (image.width(), image.height());
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width, height);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Eight);
    // A tenth of the time for a third more bytes: figures are made anew whenever a number changes.
    encoder.set_compression(png::Compression::Fast);
    let written = encoder.write_header().and_then(|mut writer| {
        writer.write_image_data(&image.take_demultiplied())?;
        writer.finish()
    });
    written.map_err(|e| failed(e.to_string()))?;
    Ok(out)
}
