"""The stages of a study, and what each returns."""

from __future__ import annotations

import hashlib
import os
import warnings
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

import pandas as pd

from . import _display as display
from . import _specs as specs
from . import _twostep
from ._errors import Error, InvalidError, StudyWarning
from ._function import Done, Host, name_of
from ._propagation import Propagation
from ._results import Calibration, Enough, Fit, Inference, Verification, frame_of, value_of
from ._share import AnyExecutor, Fingerprints, Pool, share_out

if TYPE_CHECKING:
    from collections.abc import Callable

PathLike = Union[str, "os.PathLike[str]"]

# Widths that make sense on paper or a poster, in millimetres.
_WIDTHS = (40.0, 1200.0)
_UNITS = {"mm": 1.0, "cm": 10.0, "in": 25.4}


class Report:
    """The report of a study: one page that needs no other file, shown inline by notebooks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content = path.read_text(encoding="utf-8")

    def open(self) -> None:
        """Opens it in a browser."""
        webbrowser.open(self.path.resolve().as_uri())

    def __repr__(self) -> str:
        return f"Report({str(self.path)!r})"

    def _repr_html_(self) -> str:
        return display.page(self._content, height=700)


class Server:
    """Surrogate and posterior of a study, served as UM-Bridge models until :meth:`stop`, or until the end of a ``with`` block.

    ``url`` is where; the models are ``forward``, from ``inputs`` to ``outputs``, and ``posterior``, from ``parameters`` to its log
    density.
    """

    def __init__(self, server: _twostep.Server, about: dict[str, list[str]]) -> None:
        self._server = server
        self.url = server.url()
        self.inputs, self.outputs, self.parameters = about["inputs"], about["outputs"], about["parameters"]

    def stop(self) -> None:
        """Answers those who asked before, and frees the port."""
        self._server.stop()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Server({self.url!r})"


class Stages:
    """What :class:`twostep.Study` does once it has runs."""

    _project: _twostep.Project
    _sections: dict[str, Any]
    _temporary: Path
    _warned: set[str]

    _base: Path

    def _host(self, quiet: bool = False) -> Host:
        raise NotImplementedError

    def _fingerprints(self) -> Fingerprints:
        raise NotImplementedError

    @property
    def _file(self) -> str:
        raise NotImplementedError

    def _open(self) -> _twostep.Project:
        raise NotImplementedError

    def _work(self, work: Callable[[Host], Done]) -> Done:
        """Does long work with a host of its own."""
        return self._host().do(work)

    def _tell(self, found: Sequence[str]) -> None:
        """Warns of what this study has not warned of before."""
        for text in found:
            if text not in self._warned:
                self._warned.add(text)
                warnings.warn(text, StudyWarning, stacklevel=3)

    def _replace(self, section: str, kind: Any, options: dict[str, Any]) -> None:
        """Puts options into a section of the study, which stays as it was where that cannot be."""
        given = {name: value for name, value in options.items() if value is not None}
        if not given:
            return
        known = [field.name for field in specs.options(kind)]
        unknown = [name for name in given if name not in known]
        if unknown:
            raise InvalidError(f"there is no option {', '.join(unknown)}", section, f"known are {', '.join(known)}")
        before = self._sections[section]
        try:
            self._sections[section] = replace(before, **given) if before is not None else kind(**given)
            self._project = self._open()
        except BaseException:
            self._sections[section] = before
            raise

    def _measured(self, measurements: Optional[specs.TableLike]) -> _twostep.Project:
        """The study, with other measurements where some are given."""
        if measurements is None:
            return self._project
        return self._project.with_measurements(self._file_of(measurements, "measurements"))

    def _file_of(self, table: specs.TableLike, name: str) -> Path:
        """The file of a table, which is written where it has none."""
        if specs.is_path(table):
            return specs.as_path(table)
        content = specs.as_frame(table, name).to_csv(index=False).encode()
        # Equal tables have one name.
        path = self._temporary / f"{name}-{hashlib.sha256(content).hexdigest()[:8]}.csv"
        path.write_bytes(content)
        return path

    def _index(self, setting: Optional[int], what: str) -> int:
        n = len(self._project.labels())
        if setting is None and n > 1:
            raise InvalidError(f"the study sweeps, and {what} of one setting", "setting", f"give 0 to {n - 1}")
        index = setting or 0
        if not 0 <= index < n:
            raise InvalidError(f"there is no setting {index}", "setting", f"give 0 to {n - 1}")
        return index

    def _shown(self) -> dict[str, str]:
        """The sections that are given, each in a line."""
        return {key: _line(section) for key, section in self._sections.items() if section is not None and section != {}}

    def _repr_html_(self) -> str:
        asked = list(self._shown().items())
        stages = [(stage, fresh, reason) for label, stage, fresh, reason in self._project.status()]
        if len(self._project.labels()) > 1:
            stages = []
            for stage in ("simulate", "train", "infer"):
                own = [fresh for _, of, fresh, _ in self._project.status() if of == stage]
                stages.append((stage, all(own), f"fresh in {sum(own)} of {len(own)} settings"))
        return display.study(str(self._sections["name"] or ""), asked, stages)

    def train(self) -> Fit:
        """The T-step: trains the surrogate, after making the runs that are missing. What is finished is not done again."""
        fit = Fit(self._work(lambda host: self._project.run(host, "train")))
        self._tell(fit.warnings)
        return fit

    def infer(
        self,
        methods: Optional[Sequence[Union[str, Propagation]]] = None,
        *,
        measurements: Optional[specs.TableLike] = None,
        **options: Any,
    ) -> Inference:
        """The I-step: infers the unknowns from the measurements, after the stages that are missing.

        ``methods`` and ``options``, which are those of :class:`twostep.Infer`, replace the study's. Other ``measurements`` leave
        the study as it is: results go into a folder of their own inside the study's.
        """
        self._replace("infer", specs.Infer, {"methods": methods, **options})
        project = self._measured(measurements)
        post = Inference(self._work(lambda host: project.run(host, "infer")))
        self._tell(post.warnings)
        return post

    def run(self) -> Inference:
        """All that ``twostep run`` does: simulates, trains, infers, and keeps the report; returns the answers."""
        post = self.infer()
        try:
            self._work(lambda host: self._project.report(host, False))
        except Error as problem:
            # The results are there, whatever keeps them from being shown.
            warnings.warn(f"the report could not be made: {problem}", StudyWarning, stacklevel=2)
        return post

    def calibrate(
        self,
        t_trials: Optional[int] = None,
        i_trials: Optional[int] = None,
        truth: Optional[str] = None,
        noise: Optional[specs.Distribution] = None,
        *,
        executor: Optional[AnyExecutor] = None,
    ) -> Calibration:
        """Checks by simulation whether the study's intervals may be believed.

        ``t_trials`` surrogates are trained on runs of their own, and with each, ``i_trials`` truths are inferred from data that
        ``truth`` says where to take from: ``"simulator"``, ``"surrogate-prior"`` or ``"held-out-runs"``. They replace the study's.
        Trials are kept as they come: a second call does only what is missing. ``executor``, a Dask client or any executor of
        ``concurrent.futures``, has them done elsewhere; the result is the same.
        """
        given = {"t_trials": t_trials, "i_trials": i_trials, "truth": truth, "noise": noise}
        self._replace("calibrate", specs.Calibrate, given)
        if executor is not None:
            pool = Pool(executor)
            self._work(lambda host: self._project.prepare_trials(host))
            share_out(self, pool, "trials", self._project.missing_trials())
        found = Calibration(self._work(lambda host: self._project.calibrate(host)))
        self._tell(found.notes)
        return found

    def calibration_cost(self) -> pd.DataFrame:
        """What :meth:`calibrate` would take, without doing it: trials, simulator runs, and how many of them are there."""
        plan, counts = self._project.calibration_plan()
        rows = []
        for setting, (missing, kept) in zip(plan["settings"], counts):
            row = {key: value_of(text) for key, text in setting["setting"].items()}
            row.update({name: setting[name] for name in ("truth", "t_trials", "i_trials", "trials", "simulator_runs")})
            rows.append({**row, "runs_to_make": missing, "held_out_runs": setting["held_out_runs"], "trials_kept": kept})
        return pd.DataFrame(rows)

    def enough(self, share: Optional[float] = None, *, measurements: Optional[specs.TableLike] = None) -> Enough:
        """Whether the runs were enough, by training again on parts of them.

        They were where the surrogate's part of the posterior variance, which more runs remove, is below ``share``.
        """
        project = self._measured(measurements)
        parts = self._work(lambda host: project.enough(host, share))
        self._tell([text for part in parts for text in part["warnings"]])
        labels = [{key: value_of(text) for key, text in label} for label in project.labels()]
        return Enough(labels, parts)

    def verify(
        self,
        runs: int = 8,
        *,
        results: Optional[specs.TableLike] = None,
        setting: Optional[int] = None,
        measurements: Optional[specs.TableLike] = None,
    ) -> Verification:
        """Runs the simulator at draws of the answer, and compares it with the surrogate.

        The runs train the surrogate from then on. ``results`` holds runs that were made elsewhere: those of
        :meth:`verification_runs`, with the outputs filled in.
        """
        if runs < 1:
            raise InvalidError(f"{runs} runs verify nothing", "runs", "ask for at least 1, better 8")
        project, index = self._measured(measurements), self._index(setting, "a verification is")
        file = None if results is None else self._file_of(results, "results")
        return Verification(self._work(lambda host: project.verify(host, index, runs, file)))

    def verification_runs(self, runs: int = 8, *, setting: Optional[int] = None) -> pd.DataFrame:
        """Inputs of runs to verify the answer with, to be made elsewhere, with empty columns for their outputs."""
        return frame_of(self._project.verification_runs(self._index(setting, "a verification is"), runs))

    def status(self, *, measurements: Optional[specs.TableLike] = None) -> pd.DataFrame:
        """Which stages are finished, and why others are stale."""
        rows = []
        for label, stage, fresh, reason in self._measured(measurements).status():
            rows.append({**{k: value_of(v) for k, v in label}, "stage": stage, "fresh": fresh, "reason": reason})
        return pd.DataFrame(rows)

    def report(self, path: Optional[PathLike] = None, *, measurements: Optional[specs.TableLike] = None) -> Report:
        """The HTML report of what is finished, which notebooks show inline; written to ``path`` besides, where one is given."""
        project = self._measured(measurements)
        place = Path(self._work(lambda host: project.report(host, False)))
        if path is None:
            return Report(place)
        target = specs.as_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(place.read_bytes())
        return Report(target)

    def figures(
        self,
        folder: Optional[PathLike] = None,
        *,
        only: Union[str, Sequence[str], None] = None,
        width: Union[float, str] = "170mm",
        format: Union[str, Sequence[str]] = ("svg", "png"),
        measurements: Optional[specs.TableLike] = None,
    ) -> list[Path]:
        """Writes figures of the report for papers and slides, each with its data as CSV, into ``folder``.

        ``width`` is in millimetres, or ``"8.5cm"``, ``"3.3in"``. Without a folder they go to ``figures`` beside the results.
        """
        formats = [format] if isinstance(format, str) else list(format)
        wrong = [name for name in formats if name not in ("svg", "png")]
        if wrong:
            raise InvalidError(f"there are no {', '.join(wrong)} files", "format", 'choose from "svg" and "png"')
        names = [only] if isinstance(only, str) else None if only is None else list(only)
        project, size = self._measured(measurements), _millimetres(width)
        into = project.folder() / "figures" if folder is None else specs.as_path(folder)
        _, written = self._work(lambda host: project.figures(host, into, names, size, formats))
        return [Path(path) for path in written]

    def figure_names(self) -> list[str]:
        """The figures that :meth:`figures` can write."""
        names, _ = self._work(lambda host: self._project.figures(host, None, None, 170.0, []))
        return list(names)

    def serve(
        self,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        method: Optional[str] = None,
        setting: Optional[int] = None,
        measurements: Optional[specs.TableLike] = None,
    ) -> Server:
        """Serves surrogate and posterior of finished results to other programs (UM-Bridge), from a thread of its own.

        Port 0 is any that is free. Whoever can reach ``host`` can ask: there is no password.
        """
        project, index = self._measured(measurements), self._index(setting, "what is served is")
        methods = self._project.methods()
        if method is not None and method not in methods:
            raise InvalidError(f"there is no answer by {method}", "method", f"use one of {', '.join(methods)}")
        return Server(*self._work(lambda work: project.serve(work, index, method, (host, port))))

    def pending_runs(self, *, failed: bool = False) -> pd.DataFrame:
        """Inputs of the runs that are still to be made, with empty columns for their outputs; failed ones too where asked for."""
        columns, _ = self._project.pending_runs(failed)
        return frame_of(columns)

    def import_runs(self, table: specs.TableLike) -> dict[str, int]:
        """Brings in runs that were made elsewhere: a table with a column for each input and output.

        Returns how many were ``new`` and ``known`` before, and how many of the design are ``pending`` and ``failed``.
        """
        file = self._file_of(table, "runs")
        counts, found = self._project.import_runs(file)
        for text in found:
            warnings.warn(text, StudyWarning, stacklevel=2)
        return dict(zip(("new", "known", "pending", "failed"), counts))

    def check(self) -> pd.DataFrame:
        """What the study would do, without doing it: runs, coefficients, measurements, methods and engine, a row a setting."""
        rows = []
        for plan, found in self._project.check():
            self._tell(found)
            row = {key: value_of(text) for key, text in plan["setting"].items()}
            row.update({name: plan[name] for name in ("runs", "surrogate_terms", "t_draws")})
            row["measurements"] = plan["measurements"]["outputs"]
            rows.append({**row, **{name: plan[name] for name in ("methods", "answer", "engine")}})
        return pd.DataFrame(rows)


def _line(section: Any) -> str:
    """A section in a line; tables by the number of their rows."""
    if isinstance(section, dict):
        text = ", ".join(f"{name}: {_line(value)}" for name, value in section.items())
    elif isinstance(section, specs.Spec):
        given = [(field.name, getattr(section, field.name)) for field in specs.options(type(section))]
        parts = (f"{name}={_value(name, value)}" for name, value in given if value is not None)
        text = f"{type(section).__name__}({', '.join(parts)})"
    else:
        text = repr(section)
    return text if len(text) <= 300 else f"{text[:297]}..."


def _value(name: str, value: Any) -> str:
    if name in ("file", "points", "table", "import_") and not specs.is_path(value):
        return f"a table of {display.counted(len(specs.as_frame(value, name)), 'row')}"
    if name == "function":
        return name_of(value)
    return _line(value) if isinstance(value, specs.Spec) else repr(value)


def _millimetres(width: Union[float, str]) -> float:
    """A length in millimetres."""
    repair = f"give between {_WIDTHS[0]:g} and {_WIDTHS[1]:g} mm, such as 85, \"8.5cm\" or \"3.3in\""
    try:
        if isinstance(width, str):
            text = width.strip()
            size = float(text[:-2]) * _UNITS[text[-2:]]
        else:
            size = float(width)
    except (KeyError, ValueError):
        raise InvalidError(f"{width!r} is no length", "width", repair) from None
    if not _WIDTHS[0] <= size <= _WIDTHS[1]:
        raise InvalidError(f"{size:g} mm is no width of a figure", "width", repair)
    return size
