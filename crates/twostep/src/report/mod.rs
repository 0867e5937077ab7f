//! What finished results show: figures, the report, files for other programs. Nothing is computed that changes a result.

pub mod arviz;
pub mod figure;
