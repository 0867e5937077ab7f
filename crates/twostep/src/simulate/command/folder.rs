//! A run's work folder and command line.

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::fill::{self, Piece, Placeholder};
use super::{CommandSpec, RESULTS_FILE};
use crate::simulate::{Job, Wanted};

/// Held for reading while an executable file is written, and for writing while a process is started: a process that starts
/// meanwhile would hold that file open for an instant, in which the system refuses to execute it.
pub(super) static EXECUTABLES: RwLock<()> = RwLock::new(());

/// Makes the work folder of a run with all its files, and says its absolute path.
///
/// A folder that is there already is moved away before anything is written, so that no run reads what another has left.
pub(super) fn make(spec: &CommandSpec, job: &Job, outputs: &[Wanted]) -> Result<PathBuf, String> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let folder = std::path::absolute(&job.folder).map_err(|problem| told(&job.folder, &problem))?;
    if fs::symlink_metadata(&folder).is_ok() {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let stale = folder.with_file_name(format!(".{name}.{}-{number}.stale", std::process::id()));
        fs::rename(&folder, &stale).map_err(|problem| told(&folder, &problem))?;
        // What cannot be removed, such as a file that is open elsewhere, is out of the way.
        let _ = fs::remove_dir_all(&stale).or_else(|_| fs::remove_file(&stale));
    }
    fs::create_dir_all(&folder).map_err(|problem| told(&folder, &problem))?;

    let params = folder.join(spec.params_format.file());
    fs::write(&params, fill::params(spec.params_format, job, outputs)?).map_err(|problem| told(&params, &problem))?;
    for source in &spec.copy {
        let source = spec.folder.join(source);
        copy(&source, &folder.join(base_name(&source)?))?;
    }
    for source in &spec.link {
        let source = std::path::absolute(spec.folder.join(source)).map_err(|problem| told(source, &problem))?;
        link(&source, &folder.join(base_name(&source)?))?;
    }
    for (name, template) in &spec.templates {
        let source = spec.folder.join(template);
        let bytes = fs::read(&source).map_err(|problem| told(&source, &problem))?;
        let bytes = fill::fill(&bytes, &job.inputs, &template.display().to_string())?;
        let target = folder.join(name);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(|problem| told(parent, &problem))?;
        }
        let written = || {
            let permissions = fs::metadata(&source)?.permissions();
            let _guard = is_executable(&source).then(|| EXECUTABLES.read());
            fs::write(&target, &bytes)?;
            fs::set_permissions(&target, permissions)
        };
        written().map_err(|problem| told(&target, &problem))?;
    }
    Ok(folder)
}

/// The command of a run: the executable as a path, arguments with their placeholders replaced.
pub(super) fn command_line(spec: &CommandSpec, job: &Job, folder: &Path) -> Result<Vec<OsString>, String> {
    let argv = spec.argv(job.attempt);
    let mut out = Vec::with_capacity(argv.len());
    for (i, argument) in argv.iter().enumerate() {
        if let Some(path) = spec.beside(argument).filter(|_| i > 0) {
            out.push(std::path::absolute(&path).map_err(|problem| told(&path, &problem))?.into_os_string());
            continue;
        }
        let mut text = OsString::new();
        for piece in fill::pieces(argument)? {
            match piece {
                Piece::Text(piece) => text.push(piece),
                Piece::Placeholder(Placeholder::Params) => text.push(folder.join(spec.params_format.file())),
                Piece::Placeholder(Placeholder::Results) => text.push(folder.join(RESULTS_FILE)),
                Piece::Placeholder(Placeholder::Folder) => text.push(folder),
                Piece::Placeholder(Placeholder::Id) => text.push(job.id.to_string()),
            }
        }
        out.push(text);
    }
    let Some(program) = out.first_mut() else { return Err("the command is empty".to_owned()) };
    *program = spec.program(Path::new(program)).map_err(|(found, _)| found)?.into_os_string();
    Ok(out)
}

impl CommandSpec {
    /// The file beside the study file that an argument names, unless a file of that name is put into the work folder.
    pub(super) fn beside(&self, argument: &str) -> Option<PathBuf> {
        let pieces = fill::pieces(argument).ok()?;
        let [Piece::Text(text)] = pieces.as_slice() else { return None };
        let path = self.folder.join(text);
        let is_in_folder = || {
            let first = Path::new(text).components().find(|part| *part != Component::CurDir);
            self.put_into_folder().any(|name| Path::new(&name).components().next() == first)
        };
        (path.starts_with(&self.folder) && path.is_file() && !is_in_folder()).then_some(path)
    }

    /// Names in the work folder of all that is put there besides the inputs.
    pub(super) fn put_into_folder(&self) -> impl Iterator<Item = String> {
        let sources = self.copy.iter().chain(&self.link).filter_map(|source| base_name(source).ok());
        sources.chain(self.templates.iter().map(|(name, _)| name.clone()))
    }

    /// The executable as a path that can be started from any folder, or what was found and the repair.
    pub(super) fn program(&self, name: &Path) -> Result<PathBuf, (String, String)> {
        let shown = name.display();
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let beside = self.folder.join(name);
        if beside.is_file() && is_executable(&beside) {
            return Ok(absolute(beside));
        }
        if name.components().count() > 1 || shown.to_string().contains('/') {
            return Err(match beside.is_file() {
                true => (format!("`{shown}` may not be executed"), format!("run chmod +x {}", beside.display())),
                false => (format!("there is no file `{}`", beside.display()), "correct the path".to_owned()),
            });
        }
        let own = self.environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| OsString::from(value));
        let path = own.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
        let suffix = std::env::consts::EXE_SUFFIX;
        let file = format!("{shown}{}", if name.extension().is_some() { "" } else { suffix });
        let found = std::env::split_paths(&path).map(|folder| folder.join(&file));
        match found.filter(|path| path.is_file() && is_executable(path)).map(absolute).next() {
            Some(path) => Ok(path),
            None if beside.is_file() => Err((
                format!("`{shown}` may not be executed, and there is no other on the search path"),
                format!("run chmod +x {}", beside.display()),
            )),
            None => Err((
                format!("`{shown}` is neither a file beside the study file nor on the search path"),
                "correct the name, or install the program".to_owned(),
            )),
        }
    }
}

/// The last part of a path: its name in the work folder.
pub(super) fn base_name(path: &Path) -> Result<String, String> {
    let name = path.file_name().ok_or_else(|| format!("{} has no name of its own", path.display()))?;
    Ok(name.to_string_lossy().into_owned())
}

#[cfg(unix)]
pub(in crate::simulate) fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
pub(in crate::simulate) fn is_executable(_: &Path) -> bool {
    true
}

/// Copies a file, or a folder with all it holds. Links within a folder lead where they led, if that is a folder, else
/// become files.
fn copy(source: &Path, target: &Path) -> Result<(), String> {
    if !source.is_dir() {
        let _guard = is_executable(source).then(|| EXECUTABLES.read());
        return fs::copy(source, target).map(|_| ()).map_err(|problem| told(source, &problem));
    }
    fs::create_dir(target).map_err(|problem| told(target, &problem))?;
    for entry in fs::read_dir(source).map_err(|problem| told(source, &problem))? {
        let entry = entry.map_err(|problem| told(source, &problem))?;
        let (from, to) = (entry.path(), target.join(entry.file_name()));
        // Following it could go round in a circle.
        if from.is_symlink() && from.is_dir() {
            link(&fs::canonicalize(&from).map_err(|problem| told(&from, &problem))?, &to)?;
        } else {
            copy(&from, &to)?;
        }
    }
    Ok(())
}

#[cfg(unix)]
fn link(source: &Path, target: &Path) -> Result<(), String> {
    fs::metadata(source).map_err(|problem| told(source, &problem))?;
    std::os::unix::fs::symlink(source, target).map_err(|problem| told(target, &problem))
}

// Links need a privilege on other systems.
#[cfg(not(unix))]
fn link(source: &Path, target: &Path) -> Result<(), String> {
    copy(source, target)
}

fn told(path: &Path, problem: &std::io::Error) -> String {
    format!("{}: {problem}", path.display())
}
