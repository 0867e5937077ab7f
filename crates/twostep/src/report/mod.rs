//! What finished results show: figures, the report, files for other programs. Nothing is computed that changes a result.

pub mod answer;
pub mod figure;
pub mod html;
mod look;
mod pieces;
mod png;
mod scale;
pub mod surrogate;
mod svg;
mod text;

pub use look::Theme;
pub use png::png;
pub use svg::file as svg;
pub use text::escaped;
