//! What finished results show: figures, the report, files for other programs. Nothing is computed that changes a result.

pub mod calibration;
pub mod figure;
pub mod html;
mod look;
pub mod paper;
mod png;
mod scale;
mod svg;
mod text;

pub use look::Theme;
pub use png::png;
pub use svg::file as svg;
pub use text::escaped;
