//! The library's modules stand in an order, and each uses only itself and those before it: reading follows the list.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

/// From the ground up.
const ORDER: [&str; 22] = [
    "error",
    "monitor",
    "matrix",
    "stream",
    "special",
    "kernels",
    "draws",
    "expression",
    "prior",
    "table",
    "mcmc",
    "likelihood",
    "simulate",
    "surrogate",
    "train",
    "infer",
    "calibrate",
    "serve",
    "study",
    "store",
    "run",
    "report",
];

fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

/// First names of the paths that follow `crate::` in `text`; what the crate's root exports itself belongs to `error`.
fn used(text: &str) -> Vec<String> {
    let name = |path: &str| path.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let module = |name: String| if name == "Error" || name == "Result" { "error".to_string() } else { name };
    text.split("crate::").skip(1).map(|rest| module(name(rest))).collect()
}

fn place(module: &str) -> Option<usize> {
    ORDER.iter().position(|m| *m == module)
}

/// `file: module uses other` for each path that leads upwards, or to a place outside the order.
fn violations(file: &str, module: &str, text: &str) -> Vec<String> {
    let own = place(module);
    let allowed = |other: &String| match (own, place(other)) {
        (Some(own), Some(other)) => other <= own,
        _ => false,
    };
    used(text).into_iter().filter(|other| !allowed(other)).map(|o| format!("{file}: {module} uses `{o}`")).collect()
}

#[test]
fn no_module_uses_one_above_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut found = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for file in &files {
        let inside = file.strip_prefix(&root).unwrap();
        let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
        let module = first.trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        seen.insert(module.to_string());
        found.extend(violations(&inside.display().to_string(), module, &std::fs::read_to_string(file).unwrap()));
    }
    assert!(found.is_empty(), "upward arrows:\n{}", found.join("\n"));
    let mut listed: Vec<&str> = ORDER.to_vec();
    listed.sort_unstable();
    assert!(seen.iter().map(String::as_str).eq(listed), "modules {seen:?} and the order differ");
}

#[test]
fn an_upward_arrow_is_found() {
    assert_eq!(
        violations("a.rs", "matrix", "use crate::error::Result;\nuse crate::{matrix::Matrix};"),
        ["a.rs: matrix uses ``"]
    );
    assert_eq!(violations("a.rs", "matrix", "let x = crate::run::VERSION;"), ["a.rs: matrix uses `run`"]);
    assert_eq!(violations("a.rs", "run", "use crate::Error;\nuse crate::run::predict;"), [""; 0]);
    assert_eq!(violations("a.rs", "unlisted", "use crate::error::Error;"), ["a.rs: unlisted uses `error`"]);
}
