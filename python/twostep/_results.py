"""What the stages of a study return: tables, draws, ArviZ objects and figures of results that do not change any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional, TypeVar, Union

import numpy as np
import numpy.typing as npt
import pandas as pd

from . import _display as display
from . import _plots as plots
from . import _specs as specs
from . import _twostep
from ._draws import Draws
from ._errors import InvalidError
from ._function import Host

Floats = npt.NDArray[np.float64]
Label = dict[str, Any]
One = TypeVar("One", bound="Result")


def value_of(text: str) -> Any:
    """A swept value: a number where it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


# Columns of a table by name.
Columns = list[tuple[str, Union[list[float], list[str]]]]


def columns_of(table: specs.TableLike, place: str) -> Columns:
    """A table of points as columns of numbers, and of names of experiments; others are left out."""
    if specs.is_path(table):
        table = pd.read_csv(table, float_precision="round_trip")
    if isinstance(table, Mapping) and all(np.ndim(value) == 0 for value in table.values()):
        # A single point.
        table = {name: [value] for name, value in table.items()}
    frame = specs.as_frame(table, place)
    numbers = frame.select_dtypes(include=["number", "bool"])
    columns: Columns = []
    for name in frame.columns:
        if name == "experiment":
            columns.append((name, [str(value) for value in frame[name]]))
        elif name in numbers:
            columns.append((str(name), numbers[name].to_numpy(dtype=float).tolist()))
    return columns


def frame_of(columns: Mapping[str, Any]) -> pd.DataFrame:
    """A table of the library as a DataFrame."""
    return pd.DataFrame({name: column for name, column in columns.items()})


def nan(value: Optional[float]) -> float:
    """A number of a file, where a missing one is null."""
    return float("nan") if value is None else value


class Result:
    """What a stage left, for each setting of a study."""

    _labels: list[Label]

    def _chosen(self: One, indices: Sequence[int]) -> One:
        """The same of some settings."""
        raise NotImplementedError

    @property
    def settings(self) -> list[Label]:
        """What is swept, with its values in each setting; empty without a sweep."""
        return [dict(label) for label in self._labels if label]

    def at(self: One, **values: Any) -> One:
        """The same of the settings with these values of what is swept: ``post.at(**{"design.runs": 20})``."""
        known = {key for label in self._labels for key in label}
        unknown = [key for key in values if key not in known]
        if unknown:
            found = f"the study does not sweep over {', '.join(unknown)}"
            raise InvalidError(found, "at", f"choose from {', '.join(sorted(known)) or 'nothing: it has no sweep'}")
        fits = [
            index
            for index, label in enumerate(self._labels)
            if all(label[key] == value or str(label[key]) == str(value) for key, value in values.items())
        ]
        if not fits:
            asked = ", ".join(f"{key} = {value}" for key, value in values.items())
            raise InvalidError(f"no setting has {asked}", "at", "settings lists those that there are")
        return self._chosen(fits)

    def _number(self, index: int) -> int:
        if not -len(self._labels) <= index < len(self._labels):
            raise IndexError(f"setting {index} of {len(self._labels)}")
        return index % len(self._labels)

    def _single(self, what: str) -> int:
        """The only setting."""
        if len(self._labels) > 1:
            found = f"the study sweeps, and {what} of one setting"
            raise InvalidError(found, "setting", "choose one: result[0], or result.at(**{...})")
        return 0

    def _labelled(self, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """Tables of all settings as one, with columns for what is swept."""
        if not any(self._labels):
            return frames[0]
        for label, frame in zip(self._labels, frames):
            for place, (key, value) in enumerate(label.items()):
                frame.insert(place, key, value)
        return pd.concat(frames, ignore_index=True)


class Found(Result):
    """Results whose settings are those of the library."""

    def __init__(self, found: Sequence[_twostep.Setting]) -> None:
        self._found = list(found)
        self._labels = [{key: value_of(text) for key, text in setting.label()} for setting in self._found]
        self._about: dict[str, Any] = self._found[0].about()

    def _chosen(self: Any, indices: Sequence[int]) -> Any:
        return type(self)([self._found[index] for index in indices])

    @property
    def warnings(self) -> list[str]:
        """What to think about, each once."""
        seen: dict[str, None] = {}
        for setting in self._found:
            seen.update(dict.fromkeys(setting.warnings()))
        return list(seen)

    def _one(self, what: str) -> _twostep.Setting:
        return self._found[self._single(what)]

    def _figure(self, name: str, what: str) -> dict[str, Any]:
        figure = self._one("a figure is").figure(name)
        if figure is None:
            raise InvalidError(f"there is nothing to show of {what}", "plot", "see what the other figures say")
        return figure


class Fit(Found):
    """The trained surrogate: the T-posterior, and how well it predicts.

    >>> import twostep as ts
    >>> study = ts.Study(
    ...     simulator=ts.Builtin("logistic"),
    ...     unknowns={"omega": ts.Unknown((-1, 1))},
    ...     design=ts.Sobol(12),
    ...     surrogate=ts.PCE(degree=5),
    ...     measurements=ts.Measurements(noise=ts.Normal(sd=0.1)),
    ... )
    >>> fit = study.train()
    >>> sorted(fit.loo.columns)
    ['inside', 'mean', 'omega', 'output', 'q05', 'q95', 'run', 'sd', 'value']
    >>> fit.predict({"omega": [-0.5, 0.5]})["mean"].is_monotonic_increasing
    True
    """

    def __getitem__(self, index: int) -> Fit:
        return self._chosen([self._number(index)])  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._found)

    def _reports(self) -> list[list[dict[str, Any]]]:
        return [setting.reports() for setting in self._found]

    @property
    def q2(self) -> pd.Series[float]:
        """How well runs are predicted without them, by output: 1 is perfect, 0 no better than their mean."""
        reports = self._reports()[self._single("Q2 is")]
        return pd.Series({r["output"]: nan(r["leave_one_out"]["q2"]) for r in reports}, name="q2", dtype=float)

    @property
    def coverage(self) -> pd.Series[float]:
        """Share of runs inside the 90 % intervals that are predicted without them, by output."""
        reports = self._reports()[self._single("coverage is")]
        shares = {r["output"]: r["leave_one_out"]["coverage_90"] for r in reports}
        return pd.Series(shares, name="coverage", dtype=float)

    @property
    def loo(self) -> pd.DataFrame:
        """Every value of a run against the prediction of a surrogate trained without that run.

        ``mean``, ``sd``, ``q05`` and ``q95`` are of the prediction, on the output's own scale; ``inside`` says whether the 90 %
        interval holds the ``value``. The ``attrs`` have ``q2`` and ``coverage`` of each output.
        """
        frames = []
        for setting in self._found:
            frame = frame_of(setting.left_out())
            frame["run"] = frame["run"].astype(int)
            frame["inside"] = frame["value"].between(frame["q05"], frame["q95"])
            # The coordinate of a series is no input of outputs that are numbers.
            frames.append(frame.drop(columns=[name for name in self._about["inputs"] if frame[name].isna().all()]))
        out = self._labelled(frames)
        if len(self._found) == 1:
            out.attrs.update(q2=self.q2.to_dict(), coverage=self.coverage.to_dict())
        return out

    @property
    def report(self) -> pd.DataFrame:
        """How each output was trained, one a row."""
        frames = []
        for reports in self._reports():
            rows = []
            for report in reports:
                importance = report.get("importance", {})
                # Left out where it is infinite, which JSON has no number for.
                k_hat = importance.get("k_hat", float("inf")) if importance else float("nan")
                r_hats = [p["r_hat"] for p in report["parameters"] if p["r_hat"] is not None]
                rows.append(
                    {
                        "output": report["output"],
                        "method": report["method"],
                        "runs": report["n_runs"],
                        "rows": report["n_rows"],
                        "q2": nan(report["leave_one_out"]["q2"]),
                        "coverage": report["leave_one_out"]["coverage_90"],
                        "unreliable": report["leave_one_out"]["unreliable"],
                        "predictive_coverage": report["predictive_coverage_90"],
                        "r_hat": max(r_hats, default=float("nan")),
                        "divergences": report["divergences"],
                        "k_hat": k_hat,
                        "effective": nan(importance.get("effective")),
                        "warnings": list(report["warnings"]),
                    }
                )
            frames.append(pd.DataFrame(rows))
        return self._labelled(frames)

    def summary(self) -> pd.DataFrame:
        """Every parameter of the surrogates: coefficients, and ``sigma_a``, the approximation error."""
        frames = []
        for reports in self._reports():
            rows = []
            for report in reports:
                for parameter in report["parameters"]:
                    quantiles = dict(zip(("q05", "q25", "q50", "q75", "q95"), parameter["quantiles"]))
                    rows.append(
                        {
                            "output": report["output"],
                            "parameter": parameter["name"],
                            "mean": nan(parameter["mean"]),
                            "sd": nan(parameter["sd"]),
                            **{name: nan(value) for name, value in quantiles.items()},
                            "mcse_mean": nan(parameter["mcse_mean"]),
                            "ess_bulk": nan(parameter["ess_bulk"]),
                            "r_hat": nan(parameter["r_hat"]),
                        }
                    )
            frames.append(pd.DataFrame(rows))
        return self._labelled(frames)

    @property
    def draws(self) -> Draws:
        """Draws from the T-posterior, to be used elsewhere: every parameter of every surrogate, and its sigma_a."""
        names, values, log_weights = self._one("draws are").t_draws()
        is_weighted = bool((log_weights != log_weights[0]).any())
        return Draws(dict(zip(names, values)), weights=np.exp(log_weights) if is_weighted else None)

    @property
    def training(self) -> pd.DataFrame:
        """The runs that the surrogate was trained with; of a series, a row for each of its values."""
        return self._labelled([frame_of(setting.training()) for setting in self._found])

    def predict(self, points: specs.TableLike, *, extrapolate: bool = False) -> pd.DataFrame:
        """The surrogate at ``points``, a table with a column for each input: unknowns, conditions, the coordinate of a series.

        ``mean``, ``sd``, ``q05``, ``q50`` and ``q95`` are of the output as far as the surrogate knows it (epistemic uncertainty).
        ``run_mean``, ``run_sd``, ``run_q05`` and ``run_q95`` are of a run of the simulator, which has the approximation error
        besides. All are exact for the T-draws, and on the output's own scale. Points outside the ranges of the design are refused
        unless ``extrapolate`` is true.
        """
        columns = columns_of(points, "points")
        return frame_of(self._one("predictions are").surrogate_at(columns, extrapolate))

    def sensitivity(self) -> pd.DataFrame:
        """Sobol' indices of polynomial surrogates: the share of an output's variance that an input explains.

        Inputs are uniform between their bounds. ``first`` is what an input does by itself, ``total`` adds what it does together
        with others; each with the interval that holds 90 % of the T-draws and what the surrogate leaves open.
        """
        frames = [frame_of(setting.sensitivity()) for setting in self._found]
        if all(frame.empty for frame in frames):
            raise InvalidError("no surrogate is a polynomial", "sensitivity", "use ts.PCE to have Sobol' indices")
        return self._labelled(frames)

    def plot(self, ax: Any = None) -> plots.Drawn:
        """The surrogate along each of its inputs, with 90 % bands of what is not known of it and of a new run, and the runs."""
        return plots.draw(self._figure("surrogate", "the surrogate"), ax)

    def plot_loo(self, ax: Any = None) -> plots.Drawn:
        """By how much each run is missed by a surrogate trained without it."""
        return plots.draw(self._figure("leave-one-out", "runs that were left out"), ax)

    def plot_parameters(self, ax: Any = None) -> plots.Drawn:
        """The parameters that leave most of the output unknown, in pairs."""
        return plots.draw(self._figure("t-posterior", "the T-posterior"), ax)

    def plot_sensitivity(self, ax: Any = None) -> plots.Drawn:
        """Sobol' indices."""
        return plots.draw(self._figure("sobol", "sensitivities"), ax)

    def plot_design(self, ax: Any = None) -> plots.Drawn:
        """Where the simulator was run, and where it failed."""
        return plots.draw(self._figure("design", "the design"), ax)

    def __repr__(self) -> str:
        return f"Fit({display.counted(len(self._found), 'setting')})" if len(self) > 1 else display.fit_line(self.report)

    def _repr_html_(self) -> str:
        return display.fit(self)


class Inference(Found):
    """The answers by each method of propagation: like a dict, of an ArviZ object for each.

    >>> import twostep as ts
    >>> study = ts.Study(
    ...     simulator=ts.Builtin("logistic"),
    ...     unknowns={"omega": ts.Unknown((-1, 1))},
    ...     design=ts.Sobol(12),
    ...     surrogate=ts.PCE(degree=5),
    ...     measurements=ts.Measurements({"y": [0.55, 0.6, 0.58]}, noise=ts.Normal(sd=0.02)),
    ... )
    >>> post = study.infer(methods=["e-lik", "point"])
    >>> list(post)
    ['e-lik', 'point']
    >>> post.summary()[["method", "quantity"]].values.tolist()
    [['e-lik', 'omega'], ['point', 'omega']]
    """

    def __init__(self, found: Sequence[_twostep.Setting]) -> None:
        super().__init__(found)
        self._method, self._methods = self._found[0].methods()
        self._objects: dict[str, Any] = {}

    def __getitem__(self, key: Union[str, int]) -> Any:
        """The ArviZ object by a method: ``InferenceData``, or ``DataTree`` where ArviZ 1 is installed. By a number, a setting."""
        if isinstance(key, (int, np.integer)):
            return self._chosen([self._number(int(key))])
        if key not in self._methods:
            raise KeyError(f"{key}; there are {', '.join(self._methods)}")
        setting = self._one("an ArviZ object is")
        if key not in self._objects:
            self._objects[key] = arviz_object(lambda: setting.groups(key))
        return self._objects[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)

    def __contains__(self, method: object) -> bool:
        return method in self._methods

    def keys(self) -> list[str]:
        """The methods."""
        return list(self._methods)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Methods with their ArviZ objects."""
        return ((method, self[method]) for method in self._methods)

    def values(self) -> Iterator[Any]:
        """ArviZ objects, in the order of the methods."""
        return (self[method] for method in self._methods)

    @property
    def method(self) -> str:
        """The method that leads."""
        return self._method

    def _asked(self, method: Optional[str]) -> str:
        return self._method if method is None else method

    def summary(self) -> pd.DataFrame:
        """Every unknown, unknown sd and derived quantity by every method."""
        frames = []
        for setting in self._found:
            rows = []
            for method in self._methods:
                summary = setting.summary(method)
                for quantity in summary["unknowns"]:
                    numbers = {name: nan(quantity[name]) for name in _NUMBERS}
                    rows.append(
                        {"method": method, "quantity": quantity["name"], "engine": summary["engine"], **numbers}
                    )
            frames.append(pd.DataFrame(rows))
        return self._labelled(frames)

    @property
    def answer(self) -> pd.DataFrame:
        """The summary of the method that leads, by quantity: ``post.answer.loc["beta", "mean"]``."""
        whole = self.summary()
        leading = whole[whole["method"] == self._method].drop(columns="method")
        return leading.set_index([*self._labels[0], "quantity"] if len(self._found) > 1 else "quantity")

    @property
    def diagnostics(self) -> pd.DataFrame:
        """What each method's engine knows about its own result."""
        frames = []
        for setting in self._found:
            rows = []
            for method in self._methods:
                summary = setting.summary(method)
                rows.append({"method": method, "engine": summary["engine"], "trust": summary["trust"], **summary["diagnostics"]})
            frames.append(pd.DataFrame(rows))
        return self._labelled(frames)

    @property
    def log_evidence(self) -> pd.Series[float]:
        """Log evidence of the measurements, by method; NaN where a method has none or its engine does not know it.

        Of methods that pool likelihoods in another way than E-Lik it is what normalises their density; ``ts.compare`` leaves it out.
        """
        setting = self._one("an evidence is")
        found = {method: nan(setting.summary(method)["diagnostics"]["log_evidence"]) for method in self._methods}
        return pd.Series(found, name="log_evidence", dtype=float)

    def draws(self, method: Optional[str] = None) -> pd.DataFrame:
        """Equally weighted draws by a method, by default the leading one: a column for each quantity, indexed by chain and draw."""
        values, chains, _ = self._one("draws are").draws(self._asked(method))
        length = len(values) // chains
        index = pd.MultiIndex.from_product([range(chains), range(length)], names=["chain", "draw"])
        return pd.DataFrame(values[: chains * length], index=index, columns=self._quantities, copy=False)

    @property
    def _quantities(self) -> list[str]:
        return [*self._about["parameters"], *self._about["derived"]]

    def t_draws(self, method: Optional[str] = None) -> Optional[npt.NDArray[np.int64]]:
        """The number of the T-draw that each draw belongs to; None where a method has no such pairs."""
        return self._one("draws are").draws(self._asked(method))[2]

    def density(self, quantity: str, method: Optional[str] = None) -> pd.DataFrame:
        """The marginal density of a quantity at points between which it is straight for the eye."""
        summary = self._one("a density is").summary(self._asked(method))
        for found in summary["unknowns"]:
            if found["name"] == quantity:
                return pd.DataFrame(found["curve"], columns=[quantity, "density"], dtype=float)
        names = ", ".join(found["name"] for found in summary["unknowns"])
        raise InvalidError(f"there is no {quantity}", "density", f"choose from {names}")

    def log_density(self, points: specs.TableLike, method: Optional[str] = None) -> Floats:
        """Log density of the answer by a method at ``points``, a table with a column for each unknown and unknown sd.

        Minus infinity outside the support. It is normalised where ``log_evidence`` is known, and for E-Post; otherwise it is known
        up to a constant.
        """
        setting, asked, columns = self._one("a density is"), self._asked(method), columns_of(points, "points")
        return Host().do(lambda host: setting.log_density(host, asked, columns))

    @property
    def words(self) -> list[str]:
        """The answer, a sentence for each quantity."""
        return [text for _, text in self._one("an answer is").said()]

    @property
    def trust(self) -> list[str]:
        """How far to trust the answer, and what to do about it, as the report says it."""
        return [text for _, text in self._trust()]

    def _trust(self) -> list[tuple[str, str]]:
        return self._one("trust is").trust()

    def predict(self, points: specs.TableLike = None, method: Optional[str] = None) -> pd.DataFrame:
        """Outputs at new conditions under the answer by a method, one a row; ``points`` has a column for each condition, and
        ``experiment`` where there are several.

        ``mean`` to ``q95`` are of the output, with the surrogate's approximation error where the I-step propagates it;
        ``measured_q05`` and ``measured_q95`` of a new measurement of it, which has noise besides.
        """
        columns = None if points is None else columns_of(points, "points")
        return frame_of(self._one("predictions are").predict(columns, self._asked(method)))

    def budget(self, method: Optional[str] = None) -> pd.DataFrame:
        """What the variance of each quantity is made of, as shares: ``noise`` of the measurements and the prior, ``approximation``
        error of the surrogate, and ``epistemic``, what the runs left unknown of it; each with its Monte Carlo error."""
        if method is not None and method not in self._methods:
            raise InvalidError(f"there is no answer by {method}", "method", f"use one of {', '.join(self._methods)}")
        frames = []
        for setting in self._found:
            rows = []
            for name, quantities, why in setting.budgets():
                if method is not None and name == method and why is not None:
                    raise InvalidError(f"no budget of {name}: {why}", "budget", "ask for that of another method")
                for quantity, numbers in quantities if method in (None, name) else []:
                    rows.append({"method": name, "quantity": quantity, **dict(zip(_SHARES, numbers))})
            frames.append(pd.DataFrame(rows, columns=["method", "quantity", *_SHARES]))
        return self._labelled(frames)

    def components(self, method: Optional[str] = None) -> pd.DataFrame:
        """The posteriors of single T-draws, of which E-Lik and E-Post are mixtures: one T-draw a row.

        ``alpha`` is its weight before the measurements, ``log_evidence`` the logarithm of their probability under it, ``weight``
        what the method gives to it; then mean and sd of each unknown given it, ``mean[beta]`` and ``sd[beta]``. The ``attrs`` say
        with ``exact`` whether these are quadrature or closed forms; otherwise they are weighted sums over the draws.
        """
        setting, asked = self._one("components are"), self._asked(method)
        found = Host().do(lambda host: setting.components(host, asked))
        if "weight" not in found:
            raise InvalidError(f"{asked} is no mixture over the T-draws", "method", "ask for e-lik or e-post")
        columns = {name: found[name] for name in ("alpha", "log_evidence", "weight")}
        for place, unknown in enumerate(self._about["unknowns"]):
            columns[f"mean[{unknown}]"] = found["means"][place]
            columns[f"sd[{unknown}]"] = found["sds"][place]
        out = pd.DataFrame(columns)
        out.index.name = "t_draw"
        out.attrs.update(exact=found["exact"], method=asked)
        return out

    def plot(self, ax: Any = None) -> plots.Drawn:
        """Posterior densities of every quantity by all methods, with priors and, where they are known, truths."""
        return plots.draw(self._figure("densities", "densities"), ax)

    def plot_forest(self, ax: Any = None) -> plots.Drawn:
        """Medians with intervals that hold 50 % and 90 %, by method."""
        return plots.draw(self._figure("forest", "intervals"), ax)

    def plot_pairs(self, ax: Any = None) -> plots.Drawn:
        """Draws in pairs, with the density of each quantity on the diagonal."""
        return plots.draw(self._figure("pairs", "pairs: there is one quantity only"), ax)

    def plot_predictive(self, ax: Any = None) -> plots.Drawn:
        """The measurements against what the answer expects them to be."""
        return plots.draw(self._figure("predictive-check", "predictions"), ax)

    def plot_budget(self, ax: Any = None) -> plots.Drawn:
        """What the variance of each quantity is made of."""
        return plots.draw(self._figure("budget", "the budget"), ax)

    def plot_weights(self, ax: Any = None) -> plots.Drawn:
        """How much the measurements favour each T-draw."""
        return plots.draw(self._figure("weights", "the weights of T-draws"), ax)

    def plot_trace(self, ax: Any = None) -> plots.Drawn:
        """Traces of the chains."""
        return plots.draw(self._figure("trace", "chains: no method has any"), ax)

    def __repr__(self) -> str:
        if len(self._found) > 1:
            return f"Inference({display.counted(len(self._found), 'setting')} by {', '.join(self._methods)})"
        found = [display.quantity(line) for line in self.answer.reset_index().to_dict("records")]
        return f"Inference({self._method}: {', '.join(found)}; methods {', '.join(self._methods)})"

    def _repr_html_(self) -> str:
        return display.inference(self)


_NUMBERS = (
    "mean",
    "sd",
    "q05",
    "q25",
    "q50",
    "q75",
    "q95",
    "mcse_mean",
    "mcse_sd",
    "ess_bulk",
    "ess_tail",
    "r_hat",
    "quadrature_error",
)
_SHARES = (
    "variance",
    "noise",
    "noise_error",
    "approximation",
    "approximation_error",
    "epistemic",
    "epistemic_error",
)


def arviz_object(groups: Callable[[], list[dict[str, Any]]]) -> Any:
    """Groups as the ArviZ that is installed has them; their arrays are not copied."""
    try:
        import arviz
        import xarray
    except ImportError as problem:
        found = "ArviZ is not installed"
        repair = 'pip install "twostep[arviz]"; summary() and draws() need nothing'
        raise ImportError(f"{found}: {repair}") from problem
    datasets = {group["name"]: _dataset(xarray, group) for group in groups()}
    # ArviZ 1 still has that name, for another thing.
    if int(arviz.__version__.split(".")[0]) < 1:
        return arviz.InferenceData(**datasets)
    return xarray.DataTree.from_dict({f"/{name}": dataset for name, dataset in datasets.items()})


def _dataset(xarray: Any, group: dict[str, Any]) -> Any:
    sizes = {name: len(coordinate) for name, coordinate in group["dimensions"].items()}
    variables: dict[str, Any] = {}
    coordinates = dict(group["dimensions"])
    for name, dimensions, values, attributes, is_coordinate in group["variables"]:
        shaped = values.reshape([sizes[dimension] for dimension in dimensions])
        (coordinates if is_coordinate else variables)[name] = (dimensions, shaped, attributes)
    return xarray.Dataset(variables, coordinates, group["attributes"])


class Calibration(Result):
    """Whether the intervals of a study hold the truth as often as they say, from trials whose truths are known.

    ``verdict`` says it in words, by method.
    """

    def __init__(self, found: _twostep.Calibrations, indices: Optional[Sequence[int]] = None) -> None:
        self._calibrations = found
        self._content: dict[str, Any] = found.summary()
        everything = self._content["settings"]
        self._indices = list(range(len(everything))) if indices is None else list(indices)
        self._parts = [everything[index] for index in self._indices]
        self._labels = [{key: value_of(text) for key, text in part["setting"].items()} for part in self._parts]

    def _chosen(self: Any, indices: Sequence[int]) -> Any:
        return Calibration(self._calibrations, [self._indices[index] for index in indices])

    def __getitem__(self, index: int) -> Calibration:
        return self._chosen([self._number(index)])  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def verdict(self) -> dict[str, str]:
        """What the trials say of each method, with causes that fit and what to do."""
        verdicts = self._calibrations.verdicts(self._indices[self._single("a verdict is")])
        return {method: text for method, _, text in verdicts}

    @property
    def kind(self) -> dict[str, str]:
        """``calibrated``, ``overconfident``, ``underconfident``, ``shifted`` or ``undecided``, by method."""
        verdicts = self._calibrations.verdicts(self._indices[self._single("a verdict is")])
        return {method: kind for method, kind, _ in verdicts}

    @property
    def notes(self) -> list[str]:
        """What to know of how it was done."""
        return list(dict.fromkeys(note for part in self._parts for note in part["notes"]))

    def summary(self) -> pd.DataFrame:
        """Uniformity, coverage and width, by method and unknown."""
        frames = []
        for part in self._parts:
            rows: list[dict[str, Any]] = []
            for method in part["methods"].values():
                for unknown in method["unknowns"]:
                    row = {"method": method["method"], "unknown": unknown["unknown"]}
                    row.update({name: unknown[name] for name in ("trials", "failed")})
                    row.update({name: nan(unknown[name]) for name in _CALIBRATED})
                    for coverage in unknown["coverage"]:
                        level = f"coverage_{round(100 * coverage['level'])}"
                        row[level] = nan(coverage["share"])
                        row[f"{level}_lower"], row[f"{level}_upper"] = nan(coverage["lower"]), nan(coverage["upper"])
                    row["verdict"] = unknown["verdict"]
                    rows.append(row)
            frames.append(pd.DataFrame(rows))
        return self._labelled(frames)

    @property
    def trials(self) -> pd.DataFrame:
        """Every trial, one a row for each method and unknown."""
        frame = frame_of(self._calibrations.trials())
        for label in self._labels[:1]:
            for key in label:
                frame[key] = [value_of(str(value)) for value in frame[key]]
        if len(self._parts) < len(self._content["settings"]):
            keep = np.zeros(len(frame), dtype=bool)
            for label in self._labels:
                keep |= np.logical_and.reduce([(frame[key] == value).to_numpy() for key, value in label.items()])
            frame = frame[keep].reset_index(drop=True)
        for name in ("t_trial", "i_trial"):
            frame[name] = frame[name].astype(int)
        frame["t_warned"] = frame["t_warned"] == "true"
        # Why a trial failed, where it did.
        frame["failed"] = [reason if isinstance(reason, str) and reason else None for reason in frame["failed"]]
        return frame

    def ecdf(self, method: str, unknown: str) -> pd.DataFrame:
        """ECDF of the PITs minus ``z``, with 95 % envelopes: for independent trials, and one that respects T-trials."""
        methods = self._parts[self._single("an ECDF is")]["methods"]
        found = [u for u in methods.get(method, {"unknowns": []})["unknowns"] if u["unknown"] == unknown and u["ecdf"]]
        if not found:
            known = sorted({(m, u["unknown"]) for m, s in methods.items() for u in s["unknowns"]})
            names = ", ".join(f"{m} of {u}" for m, u in known)
            raise InvalidError(f"there are no trials by {method} of {unknown}", "ecdf", f"choose from {names}")
        ecdf = found[0]["ecdf"]
        out = pd.DataFrame({"z": ecdf["z"], "difference": ecdf["difference"]})
        out[["lower", "upper"]] = ecdf["t_trials"]
        if ecdf["independent"] is not None:
            out[["independent_lower", "independent_upper"]] = ecdf["independent"]
        return out

    def to_arviz(self, method: str) -> Any:
        """The group ``prior_sbc`` of a method as an ArviZ object: ``az.plot_ecdf_pit`` reads it."""
        index = self._indices[self._single("an ArviZ object is")]
        if method not in self._parts[0]["methods"]:
            raise KeyError(f"{method}; there are {', '.join(self._parts[0]['methods'])}")
        return arviz_object(lambda: self._calibrations.groups(index, method))

    def _figure(self, name: str, what: str) -> dict[str, Any]:
        index = self._indices[0] if len(self._parts) == 1 else None
        figure = self._calibrations.figure(name, index)
        if figure is None:
            raise InvalidError(f"the trials show nothing of {what}", "plot", "see the summary")
        return figure

    def plot_ecdf(self, ax: Any = None) -> plots.Drawn:
        """ECDF minus uniform, with envelopes: a line that leaves the band rejects calibration at 5 %."""
        return plots.draw(self._figure("ecdf", "ranks"), ax)

    def plot_log_gamma(self, ax: Any = None) -> plots.Drawn:
        """Log-gamma of the ranks, with its 5 % point; against what is swept, where something is."""
        return plots.draw(self._figure("log-gamma", "log-gamma: held-out runs have weights, which it cannot take"), ax)

    def plot_coverage(self, ax: Any = None) -> plots.Drawn:
        """How often central intervals hold the truth, by their level."""
        return plots.draw(self._figure("coverage", "coverage"), ax)

    def plot_sharpness(self, ax: Any = None) -> plots.Drawn:
        """Mean width of the 90 % intervals."""
        return plots.draw(self._figure("sharpness", "widths"), ax)

    def __repr__(self) -> str:
        if len(self._parts) > 1:
            return f"Calibration({display.counted(len(self._parts), 'setting')})"
        return f"Calibration({', '.join(f'{method}: {kind}' for method, kind in self.kind.items())})"

    def _repr_html_(self) -> str:
        return display.calibration(self)


_CALIBRATED = (
    "log_gamma",
    "log_gamma_threshold",
    "t_trial_p_value",
    "design_effect",
    "effective_trials",
    "width_90",
    "width_90_relative",
    "mean_pit",
    "width_factor",
)


class Enough(Result):
    """Whether the runs were enough: what share of the posterior variance more of them would remove."""

    def __init__(self, labels: list[Label], parts: list[dict[str, Any]]) -> None:
        self._labels, self._parts = labels, parts

    def _chosen(self: Any, indices: Sequence[int]) -> Any:
        return Enough([self._labels[i] for i in indices], [self._parts[i] for i in indices])

    def __getitem__(self, index: int) -> Enough:
        return self._chosen([self._number(index)])  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._parts)

    def _part(self) -> dict[str, Any]:
        return self._parts[self._single("a verdict is")]

    @property
    def verdict(self) -> str:
        """``enough``, ``more`` or ``cannot tell``."""
        return str(self._part()["verdict"])

    @property
    def advice(self) -> str:
        """The verdict in words, with what to do."""
        return str(self._part()["advice"])

    @property
    def suggested_runs(self) -> Optional[int]:
        """Runs that would be enough, where that can be told."""
        suggested = self._part()["suggested_runs"]
        return None if suggested is None else int(suggested["runs"])

    def summary(self) -> pd.DataFrame:
        """Widths of the 90 % intervals and the surrogate's share of the variance, by number of runs and unknown."""
        frames = []
        for part in self._parts:
            rows = []
            for size in part["widths_by_runs"]:
                for unknown, width in size["unknowns"].items():
                    share = width["surrogate_share"]
                    rows.append(
                        {
                            "runs": size["runs"],
                            "unknown": unknown,
                            "width": width["width"],
                            "width_of_prior": width["of_prior"],
                            "surrogate_share": share["share"],
                            "surrogate_share_q05": share["interval"][0],
                            "surrogate_share_q95": share["interval"][1],
                            "prior_in_charge": size["prior_in_charge"],
                        }
                    )
            frames.append(pd.DataFrame(rows))
        return self._labelled(frames)

    def __repr__(self) -> str:
        return f"Enough({'; '.join(part['verdict'] for part in self._parts)})"

    def _repr_html_(self) -> str:
        return display.enough(self)


class Verification:
    """The simulator where the answer lies, against the surrogate."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content

    @property
    def verdict(self) -> str:
        """``agrees``, ``too sure`` or ``too careful``."""
        return str(self._content["verdict"])

    @property
    def advice(self) -> str:
        """What that means, with the numbers behind it and what to do."""
        return str(self._content["advice"])

    @property
    def inside_90(self) -> float:
        """Share of values inside their 90 % interval."""
        return float(self._content["inside_90"])

    @property
    def p_value(self) -> float:
        """Probability of distances as large as these if the surrogate were right."""
        return float(self._content["p_value"])

    @property
    def failures(self) -> list[str]:
        """Reasons of the runs that failed."""
        return list(self._content["failures"])

    @property
    def values(self) -> pd.DataFrame:
        """Every value of the simulator, with the surrogate's prediction."""
        rows = []
        for value in self._content["values"]:
            row = {"run": value["run"], **dict(value["inputs"]), "output": value["output"]}
            if value["coordinate"] is not None:
                row["coordinate"] = value["coordinate"]
            rows.append({**row, **{name: nan(value[name]) for name in ("simulated", "q05", "q50", "q95", "pit", "z")}})
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return f"Verification({self.verdict}: {self.advice})"

    def _repr_html_(self) -> str:
        return display.verification(self)
