//! What can be found out about a command before it runs, and what decides the results that it gives.

use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

use super::fill::{self, Part, Piece, Placeholder};
use super::folder::base_name;
use super::{CommandSpec, RESULTS_FILE, ResultsSpec, Row, STATUS_FILE, STDERR_FILE, STDOUT_FILE, results};
use crate::error::Error;
use crate::simulate::{Wanted, spelling_repair};

const COMMAND: &str = "simulator.command";
const RETRY: &str = "simulator.retry_command";
const TEMPLATES: &str = "simulator.templates";

impl CommandSpec {
    /// Everything wrong with this command that shows before it runs, for a study with these outputs and inputs.
    pub fn check(&self, outputs: &[Wanted], inputs: &[String]) -> Vec<Error> {
        let mut problems = Vec::new();
        self.check_argv(COMMAND, &self.argv, &mut problems);
        if let Some(argv) = &self.retry_argv {
            self.check_argv(RETRY, argv, &mut problems);
        }
        let marked = self.check_templates(inputs, &mut problems);
        self.check_sources("simulator.copy", &self.copy, &mut problems);
        self.check_sources("simulator.link", &self.link, &mut problems);
        self.check_names(&mut problems);
        self.check_environment(&mut problems);
        self.check_results(outputs, &mut problems);
        self.check_ways_in_and_out(outputs, inputs, marked.as_deref(), &mut problems);
        problems
    }

    fn commands(&self) -> impl Iterator<Item = (&'static str, &[String])> {
        let retry = self.retry_argv.iter().map(|argv| (RETRY, argv.as_slice()));
        std::iter::once((COMMAND, self.argv.as_slice())).chain(retry)
    }

    fn check_argv(&self, key: &str, argv: &[String], problems: &mut Vec<Error>) {
        let known = "write {params}, {results}, {id} or {folder}, and {{ or }} for a brace";
        let before = problems.len();
        for argument in argv {
            if let Err(found) = fill::pieces(argument) {
                problems.push(Error::invalid(key, found, known));
            }
            if argument.contains('\0') {
                problems.push(Error::invalid(key, "an argument holds the sign of number zero", "remove it"));
            }
        }
        let Some(program) = argv.first() else {
            problems.push(Error::invalid(key, "the list is empty", "write the executable and its arguments"));
            return;
        };
        // An executable in the work folder is there only once a run has begun.
        if problems.len() == before
            && let Ok([Piece::Text(program)]) = fill::pieces(program).as_deref()
            && let Err((found, repair)) = self.program(Path::new(program))
        {
            problems.push(Error::invalid(key, found, repair));
        }
    }

    /// The inputs that stand in some template; none if a template cannot be used.
    fn check_templates(&self, inputs: &[String], problems: &mut Vec<Error>) -> Option<Vec<String>> {
        let known: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let mut marked = Some(Vec::new());
        for (_, template) in &self.templates {
            let shown = template.display();
            let bytes = match fs::read(self.folder.join(template)) {
                Ok(bytes) => bytes,
                Err(problem) => {
                    let repair = "check that the file is there and that you may read it";
                    problems.push(Error::invalid(TEMPLATES, format!("{shown}: {problem}"), repair));
                    marked = None;
                    continue;
                }
            };
            match fill::parts(&bytes) {
                Err((line, problem)) => {
                    let found = format!("{shown}, line {line}: {problem}");
                    let repair = "write {{ name }} or {{ name:format }}, and {{ \"{{\" }} for two braces";
                    problems.push(Error::invalid(TEMPLATES, found, repair));
                    marked = None;
                }
                Ok(parts) => {
                    for part in parts {
                        let Part::Marker { line, name, .. } = part else { continue };
                        if !known.contains(&name) {
                            let found = format!("{shown}, line {line}: there is no input `{name}`");
                            problems.push(Error::invalid(TEMPLATES, found, spelling_repair(name, &known)));
                        } else if let Some(marked) = &mut marked {
                            marked.push(name.to_owned());
                        }
                    }
                }
            }
        }
        marked
    }

    fn check_sources(&self, key: &str, sources: &[PathBuf], problems: &mut Vec<Error>) {
        for source in sources {
            if let Err(problem) = fs::metadata(self.folder.join(source)) {
                let found = format!("{}: {problem}", source.display());
                problems.push(Error::invalid(key, found, "correct the path, which starts at the study file's folder"));
            } else if let Err(found) = base_name(source) {
                problems.push(Error::invalid(key, found, "name a file or folder"));
            }
        }
    }

    /// Names in the work folder are distinct, inside it, and none of those that every run has.
    fn check_names(&self, problems: &mut Vec<Error>) {
        let own = [self.params_format.file(), RESULTS_FILE, STDOUT_FILE, STDERR_FILE, STATUS_FILE];
        let names: Vec<PathBuf> = self.put_into_folder().map(|name| normal(Path::new(&name))).collect();
        let copied = self.copy.len() + self.link.len();
        for (i, name) in names.iter().enumerate() {
            let shown = name.display();
            let key = match i {
                i if i < self.copy.len() => "simulator.copy",
                i if i < copied => "simulator.link",
                _ => TEMPLATES,
            };
            let repair = "choose another name";
            if !is_inside(name) {
                let found = format!("`{shown}` lies outside the work folder");
                problems.push(Error::invalid(key, found, "name a file within it, without .."));
            } else if own.iter().any(|own| Path::new(own) == name) {
                problems.push(Error::invalid(
                    key,
                    format!("`{shown}` is a file that every run has of its own"),
                    repair,
                ));
            } else if names[..i].contains(name) {
                let found = format!("`{shown}` is put into the work folder twice");
                problems.push(Error::invalid(key, found, repair));
            } else if let Some(spec) = self.results.iter().find(|spec| self.is_stale(i, name, spec.file())) {
                let found = format!("`{shown}` is there before the run, and {} is read as its results", spec.file());
                problems.push(Error::invalid(
                    key,
                    found,
                    "let the command write its results to a file of another name",
                ));
            }
        }
    }

    /// Whether what number `i` puts into the work folder as `name` holds a results file already.
    fn is_stale(&self, i: usize, name: &Path, file: &str) -> bool {
        let file = normal(Path::new(file));
        let Ok(within) = file.strip_prefix(name) else { return false };
        match self.copy.get(i) {
            Some(source) => within == Path::new("") || self.folder.join(source).join(within).exists(),
            // Runs share a linked folder, and would read each other's results.
            None => true,
        }
    }

    fn check_environment(&self, problems: &mut Vec<Error>) {
        for (name, value) in &self.environment {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                let found = format!("`{name}` cannot be a variable of the environment");
                problems.push(Error::invalid("simulator.environment", found, "choose a name without ="));
            }
        }
    }

    fn check_results(&self, outputs: &[Wanted], problems: &mut Vec<Error>) {
        if self.results.len() != outputs.len() {
            let found = format!("{} ways to read {} outputs", self.results.len(), outputs.len());
            problems.push(Error::invalid("outputs", found, "say for each output how it is read"));
        }
        for (spec, output) in self.results.iter().zip(outputs) {
            let key = |key: &str| format!("outputs.{}.results{key}", output.name);
            if !is_inside(&normal(Path::new(spec.file()))) {
                let found = format!("`{}` lies outside the work folder", spec.file());
                let repair = "name a file that the command writes there, without ..";
                problems.push(Error::invalid(key(".file"), found, repair));
            }
            let needs_coordinates = output.over.as_ref().filter(|over| over.at.is_none());
            let path = |name: &str, path: &str| {
                results::parse_path(path).err().map(|found| Error::invalid(key(name), found, "correct the path"))
            };
            match spec {
                ResultsSpec::Default => {}
                ResultsSpec::Value { value: 0, .. } => {
                    problems.push(Error::invalid(key(".value"), "there is no number 0", "count from one"));
                }
                ResultsSpec::Csv { row: Some(Row::Number(0)), .. } => {
                    problems.push(Error::invalid(key(".row"), "there is no row 0", "count from one"));
                }
                ResultsSpec::Json { path: values, coordinate, .. } => {
                    problems.extend(path(".json", values));
                    problems.extend(coordinate.iter().filter_map(|coordinate| path(".coordinate", coordinate)));
                }
                ResultsSpec::Regex { regex, .. } => {
                    let repair = "put the number, and nothing else, in round brackets: `drag = (.*)`";
                    problems.extend(
                        results::compile(regex).err().map(|found| Error::invalid(key(".regex"), found, repair)),
                    );
                }
                ResultsSpec::Value { .. } | ResultsSpec::Csv { .. } => {}
            }
            if let (ResultsSpec::Value { .. } | ResultsSpec::Regex { .. }, Some(over)) = (spec, needs_coordinates) {
                let found = format!("nothing says at which {} the values are", over.name);
                let repair =
                    format!("list the values of {} in the study, or read a CSV or JSON file that has them", over.name);
                problems.push(Error::invalid(format!("outputs.{}.over", output.name), found, repair));
            }
        }
    }

    /// A command must get its inputs, and know where its results belong.
    fn check_ways_in_and_out(
        &self,
        outputs: &[Wanted],
        inputs: &[String],
        marked: Option<&[String]>,
        problems: &mut Vec<Error>,
    ) {
        let is_sound = |argv: &[String]| argv.iter().all(|argument| fill::pieces(argument).is_ok());
        for (key, argv) in self.commands().filter(|(_, argv)| is_sound(argv)) {
            let params = self.params_format.file();
            if let Some(marked) = marked
                && !self.mentions(argv, Placeholder::Params, params)
            {
                let unmarked = inputs.iter().find(|input| !marked.contains(input));
                let repair = format!("add {{params}} to the arguments, or write templates; the inputs are in {params}");
                match unmarked {
                    Some(_) if marked.is_empty() => {
                        problems.push(Error::invalid(key, "the command does not get its inputs", repair));
                    }
                    Some(input) => {
                        let found = format!("the command does not get `{input}`, which stands in no template");
                        problems.push(Error::invalid(key, found, repair));
                    }
                    None => {}
                }
            }
            let reader = self.results.iter().zip(outputs).find(|(spec, _)| spec.file() == RESULTS_FILE);
            if let Some((_, output)) = reader
                && !self.mentions(argv, Placeholder::Results, RESULTS_FILE)
            {
                let found = format!("the command does not know where to write `{}`", output.name);
                let repair = format!(
                    "add {{results}} to the arguments, or say in outputs.{}.results which file is read",
                    output.name
                );
                problems.push(Error::invalid(key, found, repair));
            }
        }
    }

    /// Whether a command gets a file by its placeholder or that of the folder, or some file of the study names it.
    fn mentions(&self, argv: &[String], placeholder: Placeholder, file: &str) -> bool {
        let is_wanted = |piece: &Piece| match piece {
            Piece::Placeholder(found) => [placeholder, Placeholder::Folder].contains(found),
            Piece::Text(text) => text.contains(file),
        };
        let in_argument = |argument: &String| fill::pieces(argument).is_ok_and(|pieces| pieces.iter().any(is_wanted));
        // Nobody writes longer scripts, and larger data need not be searched.
        const LONGEST: u64 = 1 << 28;
        let Ok(name) = regex::bytes::Regex::new(&regex::escape(file)) else { return false };
        let in_file = |path: &Path| {
            fs::metadata(path).is_ok_and(|metadata| metadata.len() <= LONGEST)
                && fs::read(path).is_ok_and(|bytes| name.is_match(&bytes))
        };
        let sources = self.copy.iter().chain(&self.link).chain(self.templates.iter().map(|(_, template)| template));
        argv.iter().any(in_argument)
            || self.environment.iter().any(|(_, value)| value.contains(file))
            || argv.iter().filter_map(|argument| self.beside(argument)).any(|path| in_file(&path))
            || sources.map(|source| self.folder.join(source)).any(|path| path.is_file() && in_file(&path))
    }

    /// Everything that decides what a run gives, by its place in the study file: texts as they stand, files by the SHA-256
    /// of their content. What lies on the search path is known by its name alone.
    pub fn fingerprint_parts(&self) -> Vec<(String, String)> {
        // Every field by name, so that a new one is not forgotten.
        let Self {
            argv: _,
            retry_argv: _,
            params_format,
            templates,
            copy,
            link,
            keep: _,
            timeout: _,
            environment,
            results,
            folder,
        } = self;
        let mut out = Vec::new();
        for (key, argv) in self.commands() {
            out.push((key.to_owned(), format!("{argv:?}")));
            for argument in argv {
                if let Some(path) = self.beside(argument) {
                    out.push((format!("{key}: {argument}"), digest(&path)));
                }
            }
        }
        out.push(("simulator.params".to_owned(), format!("{params_format:?}")));
        for (name, template) in templates {
            out.push((format!("{TEMPLATES}: {name}"), digest(&folder.join(template))));
        }
        for (key, sources) in [("simulator.copy", copy), ("simulator.link", link)] {
            for source in sources {
                out.push((format!("{key}: {}", source.display()), digest(&folder.join(source))));
            }
        }
        out.push(("simulator.environment".to_owned(), format!("{environment:?}")));
        out.push(("outputs: results".to_owned(), format!("{results:?}")));
        out
    }
}

/// A path without `.`.
fn normal(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}

fn is_inside(path: &Path) -> bool {
    path.components().next().is_some() && path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// SHA-256, in hexadecimal digits, of a file's content, or of the names and contents of all in a folder.
pub(in crate::simulate) fn digest(path: &Path) -> String {
    let mut hash = Sha256::new();
    if let Err(problem) = add(path, &mut hash) {
        return format!("unreadable: {problem}");
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn add(path: &Path, hash: &mut Sha256) -> std::io::Result<()> {
    if !path.is_dir() {
        let (mut file, mut buffer) = (fs::File::open(path)?, vec![0; 1 << 16]);
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(()),
                length => hash.update(&buffer[..length]),
            }
        }
    }
    let mut names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    for name in names {
        let entry = path.join(&name);
        hash.update(name.to_string_lossy().as_bytes());
        // No name holds a zero: it keeps names, contents and their lengths apart.
        hash.update([0]);
        if entry.is_symlink() && entry.is_dir() {
            // Following it could go round in a circle.
            hash.update(fs::read_link(&entry)?.to_string_lossy().as_bytes());
        } else {
            hash.update(digest(&entry));
        }
        hash.update([0]);
    }
    Ok(())
}
