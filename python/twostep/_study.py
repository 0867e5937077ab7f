"""A study: what is asked, and the stages that answer it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import pandas as pd

from . import _specs as specs
from . import _twostep
from ._errors import InvalidError, Problem, StudyWarning
from ._function import Host, check_names, fingerprint_of, name_of, place_of
from ._propagation import methods_of
from ._share import AnyExecutor, Fingerprints, Payload, Pool, share_out
from ._stages import Stages
from ._surrogate import callers

# Sections that are objects, and those with an object for each name, in the order of the study file.
_SECTIONS: dict[str, type[specs.Spec]] = {
    "design": specs.Design,
    "train": specs.Train,
    "measurements": specs.Measurements,
    "infer": specs.Infer,
    "calibrate": specs.Calibrate,
}
_NAMED: dict[str, type[specs.Spec]] = {
    "unknowns": specs.Unknown,
    "conditions": specs.Condition,
    "outputs": specs.Output,
}
# Tables that may be given as objects: section and key.
_TABLES = (("simulator", "table"), ("design", "points"), ("train", "import"), ("measurements", "file"))

class Study(Stages):
    """An expensive simulator, its unknown inputs, and measurements of its outputs.

    The same as a study file, see :meth:`from_toml` and :meth:`to_toml`: every argument is a section of it. Results are kept in
    ``folder``; without one they last as long as this object, or until :meth:`save`.

    >>> import twostep as ts
    >>> study = ts.Study(
    ...     simulator=lambda omega: 1 / (1 + 2.718281828 ** (-3 * omega)),
    ...     unknowns={"omega": ts.Unknown((-1, 1), prior="normal(0, 0.5)")},
    ...     design=ts.Sobol(12),
    ...     surrogate=ts.PCE(degree=5),
    ...     measurements=ts.Measurements({"y": [0.55, 0.6, 0.58]}, noise=ts.Normal(sd=0.02)),
    ... )
    >>> int((study.simulate().state == "done").sum())
    12
    """

    # Sections of a study file, in the order in which they are written.
    _KEYS = (
        "name",
        "seed",
        "simulator",
        "unknowns",
        "conditions",
        "constants",
        "outputs",
        "design",
        "surrogate",
        "train",
        "measurements",
        "derived",
        "infer",
        "calibrate",
        "sweep",
    )

    _sections: dict[str, Any]
    _origin: Optional[Study] = None
    # What functions are known by, where the study was sent here: their sources need not be.
    _sent: Optional[Fingerprints] = None

    def __init__(
        self,
        simulator: Union[Callable[..., Any], str, specs.Simulator],
        unknowns: Mapping[str, Union[specs.Unknown, Sequence[float]]],
        *,
        design: Optional[specs.Design] = None,
        surrogate: Optional[Union[specs.Surrogate, Mapping[str, Any]]] = None,
        measurements: Optional[specs.Measurements] = None,
        conditions: Optional[Mapping[str, Union[specs.Condition, Sequence[float]]]] = None,
        constants: Optional[Mapping[str, float]] = None,
        outputs: Optional[Mapping[str, specs.Output]] = None,
        train: Optional[specs.Train] = None,
        derived: Optional[Mapping[str, str]] = None,
        infer: Optional[specs.Infer] = None,
        calibrate: Optional[specs.Calibrate] = None,
        sweep: Optional[Mapping[str, Sequence[Any]]] = None,
        name: Optional[str] = None,
        seed: Optional[int] = None,
        folder: Optional[Union[str, os.PathLike[str]]] = None,
    ) -> None:
        self._sections = _normalised(
            name=name,
            seed=seed,
            simulator=simulator,
            unknowns=unknowns,
            conditions=conditions,
            constants=constants,
            outputs=outputs,
            design=design,
            surrogate=surrogate,
            train=train,
            measurements=measurements,
            derived=derived,
            infer=infer,
            calibrate=calibrate,
            sweep=sweep,
        )
        self._start(file=None, base=Path.cwd(), folder=folder)

    def _start(self, file: Optional[str], base: Path, folder: Optional[Union[str, os.PathLike[str]]]) -> None:
        self._given_file, self._base = file, base
        self._temporary = specs.as_path(tempfile.mkdtemp(prefix="twostep-"))
        weakref.finalize(self, _remove, self._temporary, os.getpid())
        self._folder = specs.as_path(folder) if folder is not None else self._temporary / "study.twostep"
        self._executor: Optional[Executor] = None
        simulator = self._sections["simulator"]
        # Once: what a function captures may change while it runs.
        self._function = fingerprint_of(simulator.function) if isinstance(simulator, specs.Function) else None
        if self._sent is not None:
            self._function = self._sent[0]
        self._warned: set[str] = set()
        self._project = self._open()
        if self._sent is None:
            self._warn()

    @classmethod
    def _of_payload(cls, payload: Payload) -> Study:
        """A study that was sent to this process to work on, with the results that its work needs."""
        study = cls.__new__(cls)
        study._sections, study._sent = payload.sections, payload.fingerprints
        study._start(payload.file, payload.base, None)
        for name, content in payload.files.items():
            path = study._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return study

    def _fingerprints(self) -> Fingerprints:
        """What the study's functions are known by: its simulator, its surrogates, its methods."""
        surrogates = [caller.fingerprint for _, caller in callers(self._sections)]
        return self._function, surrogates, [method.fingerprint for method in methods_of(self._sections)]

    @property
    def _file(self) -> str:
        """Name of the study file; of a study that has none, the one whose results the command would keep in the same folder."""
        if self._given_file is not None:
            return self._given_file
        return f"{self._folder.stem if not self._owns(self._folder) else self._sections['name'] or 'study'}.toml"

    def _owns(self, folder: Path) -> bool:
        """Whether a folder lasts as long as this study, or as one that it was made from."""
        return folder.parent == self._temporary or (self._origin is not None and self._origin._owns(folder))

    def _open(self) -> _twostep.Project:
        """The study as the library has it, checked."""
        simulator = self._sections["simulator"]
        text = self._text(self._temporary)
        surrogates, methods = callers(self._sections), methods_of(self._sections)
        if self._sent is not None:
            for (_, caller), fingerprint in zip(surrogates, self._sent[1]):
                caller.fingerprint = fingerprint
            for method, fingerprint in zip(methods, self._sent[2]):
                method.fingerprint = fingerprint
        project = _twostep.Project(text, self._file, self._base, self._folder, self._function, surrogates, methods)
        if isinstance(simulator, specs.Function):
            check_names(simulator.function, project.run_inputs())
        return project

    def _warn(self) -> None:
        for problem in self._project.warnings():
            self._warned.add(problem[1])
            warnings.warn(str(Problem(*problem)), StudyWarning, stacklevel=4)

    def _document(self, tables: Path, place: Optional[Path] = None) -> specs.Document:
        """The study file's content, with tables that are objects written into a folder.

        ``place`` is the folder of the study file where it is not that of this study: paths are then written from there.
        """
        out: specs.Document = {}
        for key, section in self._sections.items():
            if section is None or section == {}:
                continue
            if key == "simulator" and isinstance(section, specs.Function):
                out[key] = {**replace(section, function=None)._document(), "python": name_of(section.function)}  # type: ignore[arg-type]
            else:
                out[key] = specs.document(section)
        for section_name, key in _TABLES:
            section = out.get(section_name, {})
            given = self._sections[section_name]
            attribute = "import_" if key == "import" else key
            table = getattr(given, attribute, None)
            if table is not None and not specs.is_path(table):
                file = tables / f"{'runs' if key == 'table' else section_name}.csv"
                specs.as_frame(table, f"{section_name}.{key}").to_csv(file, index=False)
                section[key] = file.name if place is not None else str(file)
            elif table is not None:
                section[key] = os.fspath(table)
                if place is not None:
                    section[key] = _moved(section[key], self._base, place)
        self._write_covariances(out, tables, place)
        if place is not None and place != self._base:
            _move_simulator(out["simulator"], self._base, place)
        return out

    def _write_covariances(self, out: dict[str, Any], tables: Path, place: Optional[Path]) -> None:
        """Covariances of noise as files."""
        named = {f"covariance_{name}": section for name, section in out.get("outputs", {}).items()}
        for name, section in {"covariance": out.get("measurements", {}), **named}.items():
            noise = section.get("noise", {})
            covariance = noise.get("covariance") if isinstance(noise, Mapping) else None
            if isinstance(covariance, (str, os.PathLike)):
                path = os.fspath(covariance)
                noise["covariance"] = path if place is None else _moved(path, self._base, place)
            elif covariance is not None:
                file = tables / f"{name}.csv"
                rows = np.asarray(covariance, dtype=float).tolist()
                file.write_text("".join(",".join(map(repr, row)) + "\n" for row in rows), encoding="utf-8")
                noise["covariance"] = file.name if place is not None else str(file)

    def _text(self, tables: Path) -> str:
        return _twostep.write_toml(json.dumps(self._document(tables)))

    @classmethod
    def from_toml(cls, path: Union[str, os.PathLike[str]], *, folder: Optional[Union[str, os.PathLike[str]]] = None) -> Study:
        """The study of a file. Results lie where the command keeps them, unless ``folder`` is given."""
        place = specs.as_path(path)
        try:
            text = place.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise InvalidError(f"the study cannot be read: {problem}", str(path), "check the path") from problem
        document = json.loads(_twostep.read_toml(text, str(path)))
        study = cls.__new__(cls)
        # The text itself first: its problems are told with their lines.
        _twostep.check(text, str(path), place.parent)
        sections: dict[str, Any] = {}
        for key, section in document.items():
            if key == "simulator":
                sections[key] = specs.simulator(section)
            elif key == "surrogate":
                sections[key] = specs.surrogate(section)
            elif key in _SECTIONS:
                sections[key] = _SECTIONS[key]._read(section)
            elif key in _NAMED:
                sections[key] = {name: _NAMED[key]._read(entry) for name, entry in section.items()}
            else:
                sections[key] = section
        study._sections = {key: sections.get(key) for key in cls._KEYS}
        results = folder if folder is not None else place.with_suffix(".twostep")
        study._start(file=place.name, base=place.parent, folder=results)
        return study

    def to_toml(self, path: Union[str, os.PathLike[str], None] = None, *, overwrite: bool = False) -> str:
        """Writes the study file, with tables that are objects as CSV files beside it, and returns its text.

        Without a ``path`` nothing is written. A function must be one that the shell can find: of a module, by its name.
        """
        place = None if path is None else specs.as_path(path)
        simulator = self._sections["simulator"]
        found = place_of(simulator.function) if isinstance(simulator, specs.Function) else None
        if isinstance(found, str):
            where = f"simulator: {name_of(simulator.function)} cannot be named in a study file: {found}"
            raise InvalidError(where.split(": ", 1)[1], "simulator", "put the function into a file, such as model.py, and import it")
        for output, surrogate in callers(self._sections):
            where = "surrogate" if output is None else f"outputs.{output}.surrogate"
            repair = "use ts.PCE or ts.Formula for the shell, or run the study from Python"
            raise InvalidError(f"{surrogate.name} is a Python function, which a study file cannot hold", where, repair)
        for method in methods_of(self._sections):
            found_text = f"{method.name} is a Python function, which a study file cannot hold"
            raise InvalidError(found_text, "infer.methods", "leave it out, or run the study from Python")
        with tempfile.TemporaryDirectory(prefix="twostep-") as scratch:
            folder = place.parent if place is not None else self._base
            document = self._document(Path(scratch), folder)
            if found is not None:
                file, function = found
                document["simulator"]["python"] = f"{os.path.relpath(file, os.path.realpath(folder))}:{function}"
            text = _twostep.write_toml(json.dumps(document))
            if place is not None:
                _write(Path(scratch), place, text, overwrite)
        return text

    def save(self, folder: Union[str, os.PathLike[str]]) -> Study:
        """Keeps results in ``folder`` from now on, together with those that there are.

        A folder that has results of this study already goes on where they end: finished runs are not repeated.
        """
        target = specs.as_path(folder)
        if target == self._folder:
            return self
        if self._folder.exists():
            if target.exists():
                found = "there are results already, and this study has some of its own"
                raise InvalidError(found, str(folder), "save before simulating to go on with them, or choose another folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(str(self._folder), str(target))
            self._folder = target
            self._project = self._open()
            self._project.adopt()
        else:
            self._folder = target
            self._project = self._open()
        return self

    def replace(self, **sections: Any) -> Study:
        """The same study with other sections, and the same results as far as they still hold.

        A larger design keeps the runs that are there; other measurements keep the surrogate.

        >>> import twostep as ts
        >>> study = ts.Study(
        ...     simulator=lambda x: x**2,
        ...     unknowns={"x": (0, 1)},
        ...     design=ts.Sobol(4),
        ...     surrogate=ts.PCE(degree=2),
        ...     measurements=ts.Measurements({"y": [0.3]}, noise=ts.Normal(sd=0.1)),
        ... )
        >>> len(study.simulate()), len(study.replace(design=ts.Sobol(8)).simulate())
        (4, 8)
        """
        unknown = [key for key in sections if key not in self._KEYS]
        if unknown:
            raise InvalidError(f"a study has no {', '.join(unknown)}", "replace", f"known are {', '.join(self._KEYS)}")
        study = Study.__new__(Study)
        study._sections = _normalised(**{**self._sections, **sections})
        # The folder of results may be a temporary one, which lasts as long as its owner.
        study._origin = self
        study._start(self._given_file, self._base, self._folder)
        return study

    def __getattr__(self, name: str) -> Any:
        # Sections by name; those that are called like a stage are arguments only.
        if name in Study._KEYS and "_sections" in self.__dict__:
            return self._sections[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._KEYS})

    @property
    def folder(self) -> Path:
        """Where results are kept."""
        return self._folder

    def _host(self, quiet: bool = False) -> Host:
        simulator = self._sections["simulator"]
        function = simulator.function if isinstance(simulator, specs.Function) else None
        return Host(function, getattr(simulator, "concurrency", None) or 1, self._executor, quiet)

    def simulate(
        self,
        workers: Optional[int] = None,
        *,
        executor: Optional[AnyExecutor] = None,
        only: Union[str, int] = "pending",
        changed: str = "ask",
    ) -> pd.DataFrame:
        """Makes the runs of the design that are missing, and returns all runs: one a row, failures among them.

        ``workers`` runs are made at once: of a function in this process, by threads; ``executor``, such as a Dask client or a
        ``ProcessPoolExecutor``, makes them elsewhere, one a task. ``only="failed"`` makes failed ones again, or the run of a number.
        ``changed`` says what to do with finished runs of a function that has changed: ``"ask"``, ``"keep"`` or ``"rerun"``.
        """
        pool = None if executor is None else Pool(executor)
        if workers is None and pool is not None and self._function is not None:
            workers = pool.size()
        if workers is not None:
            self._set_workers(workers)
        if pool is not None and self._function is None:
            self._share_runs(pool, only)
            # What failed there is not made once more here.
            only = "pending"
        elif pool is not None:
            self._executor = pool.executor
        try:
            self._work(lambda host: self._project.make_runs(host, str(only), changed))
        finally:
            self._executor = None
        return self.runs()

    def _share_runs(self, pool: Pool, only: Union[str, int]) -> None:
        """Has runs of a simulator that is no function of this process made by an executor."""
        if isinstance(self._sections["simulator"], (specs.Builtin, specs.Table)):
            found = "its runs are no work that could be shared out"
            raise InvalidError(found, "executor", "leave it out")
        if only not in ("pending", "failed"):
            raise InvalidError("a single run is not shared out", "executor", "leave it out")
        share_out(self, pool, "runs", self._project.runs_to_make(only == "failed"))

    def _set_workers(self, workers: int) -> None:
        simulator = self._sections["simulator"]
        if hasattr(simulator, "concurrency"):
            self._sections["simulator"] = replace(simulator, concurrency=workers)
            self._project = self._open()

    def runs(self) -> pd.DataFrame:
        """Every run so far, one a row."""
        rows = []
        for run in self._project.runs():
            row: dict[str, Any] = {"run": run["run"], "state": run["state"], "source": run["source"]}
            row.update(run["inputs"])
            for name, at, values in run["outputs"]:
                row[name] = pd.Series(values, index=pd.Index(at)) if at else values[0]
            row.update(seconds=run["seconds"], attempts=run["attempts"], reason=run["reason"])
            rows.append(row)
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        given = ", ".join(f"{key}={text}" for key, text in self._shown().items())
        return f"Study({given if len(given) <= 500 else given[:497] + '...'})"


def _remove(folder: Path, owner: int) -> None:
    """Removes a temporary folder, but not in processes that were forked from the one that made it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _normalised(**sections: Any) -> dict[str, Any]:
    """Sections as objects, in the order of the study file."""
    simulator = sections["simulator"]
    if isinstance(simulator, str):
        simulator = specs.Python(simulator)
    elif not isinstance(simulator, specs.Simulator):
        if not callable(simulator):
            found = f"{type(simulator).__name__} cannot be called"
            raise InvalidError(found, "simulator", 'give a function, "model.py:run", or one of ts.Builtin, ts.Command')
        simulator = specs.Function(simulator)
    kinds = {"unknowns": specs.Unknown, "conditions": specs.Condition}
    out: dict[str, Any] = {}
    for key in Study._KEYS:
        section = sections[key]
        if key in kinds and section is not None:
            section = _named(kinds[key], section)
        elif isinstance(section, Mapping):
            section = dict(section)
        out[key] = simulator if key == "simulator" else section
    return out


def _named(kind: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Sections by name; a pair of numbers is a range."""
    return {name: entry if isinstance(entry, kind) else kind(tuple(entry)) for name, entry in given.items()}


def _moved(path: str, base: Path, place: Path) -> str:
    """A path from ``base`` as one from ``place``."""
    whole = base / os.path.expanduser(path)
    return path if base == place and not os.path.isabs(path) else os.path.relpath(whole, place)


def _move_simulator(section: specs.Document, base: Path, place: Path) -> None:
    """Writes the files that a simulator's section names from ``base`` as from ``place``."""
    for key in ("copy", "link"):
        if key in section:
            section[key] = [_moved(path, base, place) for path in section[key]]
    if "templates" in section:
        section["templates"] = {name: _moved(path, base, place) for name, path in section["templates"].items()}
    # Arguments that name a file of the work folder mean that one.
    within = {Path(path).name for key in ("copy", "link") for path in section.get(key, [])} | set(section.get("templates", {}))
    for key in ("command", "retry_command"):
        if key in section:
            section[key] = [
                _moved(word, base, place) if (base / word).is_file() and Path(word).parts[0] not in within else word
                for word in section[key]
            ]
    if "python" in section and ":" in section["python"]:
        file, function = section["python"].rsplit(":", 1)
        section["python"] = f"{_moved(file, base, place)}:{function}"
    interpreter = section.get("interpreter", "")
    if os.sep in interpreter and not os.path.isabs(interpreter):
        section["interpreter"] = _moved(interpreter, base, place)


def _write(scratch: Path, place: Path, text: str, overwrite: bool) -> None:
    """The study file and its tables, all or nothing of what is there already."""
    files = {place: text.encode(), **{place.parent / table.name: table.read_bytes() for table in scratch.iterdir()}}
    for file, content in files.items():
        if file.exists() and not overwrite and file.read_bytes() != content:
            raise InvalidError("the file is there already, with other content", str(file), "write to another, or give overwrite=True")
    place.parent.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        file.write_bytes(content)
