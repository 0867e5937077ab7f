"""The sections of a study, as objects: every option of the study file, under the name that it has there.

An option that is not given is not written: its default is the one of the study file, defined once, in Rust.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Optional, TypeVar, Union

from ._errors import InvalidError

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

    from ._propagation import Propagation

Document = dict[str, Any]
Number = Union[int, float]
PriorLike = Union[str, "Distribution"]
"""A prior: ``ts.Normal(2, 0.5)``, or its text, ``"normal(2, 0.5)"``."""
TableLike: TypeAlias = Any
"""Rows and columns: a pandas DataFrame, an xarray Dataset, a dict of columns, or the path of a CSV file."""
Points = Union[str, Sequence[float]]
"""Values of a coordinate or condition: numbers, or ``"linspace(1, 14, 50)"``."""


class Distribution:
    """A distribution: a prior where it has all its parameters, the noise of measurements where it has only an sd.

    Its ``repr`` is its text in the study file.

    >>> import twostep as ts
    >>> ts.Normal(2, 0.5)
    normal(2, 0.5)
    >>> ts.Normal(2, 1, lower=0)
    normal(2, 1, lower=0)
    """

    _family: ClassVar[str] = ""
    _parameters: ClassVar[tuple[str, ...]] = ()
    # What a distribution may have besides, as noise.
    _options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **given: Any) -> None:
        self._given = {name: plain(value) for name, value in given.items() if value is not None}

    def _prior(self) -> str:
        """As a prior."""
        missing = [name for name in self._parameters if name not in self._given]
        if missing:
            found = f"{self._family} has no {' and no '.join(missing)}"
            raise InvalidError(found, "prior", f"give {', '.join(self._parameters)}")
        return repr(self)

    def _noise(self) -> Document:
        """As noise."""
        for name in self._given:
            if name in ("mean", "lower", "upper") or (name in self._parameters and not self._is_noise()):
                found = f"{self!r} has {name}, which noise has not"
                raise InvalidError(found, "noise", f"for example {type(self).__name__}(sd=0.1)")
        return {"family": self._family, **{name: document(value) for name, value in self._given.items()}}

    def _is_noise(self) -> bool:
        return self._family in (
            "normal", "log-normal", "student-t", "negative-binomial", "poisson", "binomial", "none"
        )

    def __repr__(self) -> str:
        ordered = [name for name in self._parameters if name in self._given]
        # By position as long as none is left out.
        complete = ordered == list(self._parameters)
        texts = [_written(self._given[name]) if complete else f"{name}={_written(self._given[name])}" for name in ordered]
        texts += [f"{name}={_written(value)}" for name, value in self._given.items() if name not in ordered]
        return f"{self._family}({', '.join(texts)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Distribution) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


def _written(value: Any) -> str:
    return str(value) if isinstance(value, (Distribution, str)) else repr(value)


class Normal(Distribution):
    """``normal(mean, sd)``; as noise of measurements, ``Normal(sd=...)``: a number, a prior, or ``"column"``.

    As noise, ``multiplier`` is the prior of what sds of a column are multiplied by, and ``relative``, a number or a prior, makes
    the variance ``sd^2 + (relative eta)^2``. ``covariance`` in place of ``sd`` is that of all measurements: a matrix, or the path of a CSV file.
    """

    _family, _parameters, _options = "normal", ("mean", "sd"), ("multiplier", "relative", "covariance")

    def __init__(
        self,
        mean: Number | None = None,
        sd: Number | PriorLike | None = None,
        *,
        lower: Number | None = None,
        upper: Number | None = None,
        multiplier: PriorLike | None = None,
        relative: Number | PriorLike | None = None,
        covariance: Any = None,
    ) -> None:
        super().__init__(
            mean=mean, sd=sd, lower=lower, upper=upper, multiplier=multiplier, relative=relative, covariance=covariance
        )


class LogNormal(Distribution):
    """``log-normal(mean, sd)`` of the logarithm; as noise, ``LogNormal(sd=...)``, the sd of the logarithm.

    ``zeros`` says what noise does with measurements of zero: ``"censor"`` or ``"error"``; ``multiplier`` is the prior of what
    sds of a column are multiplied by. ``covariance`` is that of the logarithms, as in :class:`Normal`.
    """

    _family, _parameters, _options = "log-normal", ("mean", "sd"), ("zeros", "multiplier", "covariance")

    def __init__(
        self,
        mean: Number | None = None,
        sd: Number | PriorLike | None = None,
        *,
        lower: Number | None = None,
        upper: Number | None = None,
        zeros: str | None = None,
        multiplier: PriorLike | None = None,
        covariance: Any = None,
    ) -> None:
        super().__init__(
            mean=mean, sd=sd, lower=lower, upper=upper, zeros=zeros, multiplier=multiplier, covariance=covariance
        )


class StudentT(Distribution):
    """``student-t(df, mean, sd)``, where sd is the scale; as noise, ``StudentT(df=4, sd=...)``.

    As noise, ``multiplier`` is the prior of what scales of a column are multiplied by.
    """

    _family, _parameters, _options = "student-t", ("df", "mean", "sd"), ("multiplier",)

    def __init__(
        self,
        df: Number | None = None,
        mean: Number | None = None,
        sd: Number | PriorLike | None = None,
        *,
        lower: Number | None = None,
        upper: Number | None = None,
        multiplier: PriorLike | None = None,
    ) -> None:
        super().__init__(df=df, mean=mean, sd=sd, lower=lower, upper=upper, multiplier=multiplier)


class Uniform(Distribution):
    """``uniform(lower, upper)``."""

    _family, _parameters = "uniform", ("lower", "upper")

    def __init__(self, lower: Number, upper: Number) -> None:
        super().__init__(lower=lower, upper=upper)


class LogUniform(Distribution):
    """``log-uniform(lower, upper)``: its logarithm is uniform."""

    _family, _parameters = "log-uniform", ("lower", "upper")

    def __init__(self, lower: Number, upper: Number) -> None:
        super().__init__(lower=lower, upper=upper)


class HalfNormal(Distribution):
    """``half-normal(sd)``: the absolute value of a normal one."""

    _family, _parameters = "half-normal", ("sd",)

    def __init__(self, sd: Number, *, lower: Number | None = None, upper: Number | None = None) -> None:
        super().__init__(sd=sd, lower=lower, upper=upper)


class Exponential(Distribution):
    """``exponential(rate)``."""

    _family, _parameters = "exponential", ("rate",)

    def __init__(self, rate: Number, *, lower: Number | None = None, upper: Number | None = None) -> None:
        super().__init__(rate=rate, lower=lower, upper=upper)


class Gamma(Distribution):
    """``gamma(shape, rate)``."""

    _family, _parameters = "gamma", ("shape", "rate")

    def __init__(
        self, shape: Number, rate: Number, *, lower: Number | None = None, upper: Number | None = None
    ) -> None:
        super().__init__(shape=shape, rate=rate, lower=lower, upper=upper)


class Beta(Distribution):
    """``beta(a, b)``."""

    _family, _parameters = "beta", ("a", "b")

    def __init__(self, a: Number, b: Number, *, lower: Number | None = None, upper: Number | None = None) -> None:
        super().__init__(a=a, b=b, lower=lower, upper=upper)


class NegativeBinomial(Distribution):
    """Noise of counts with variance ``m + m^2 / phi``, by ``phi`` or by ``inverse_phi``: a number, or a prior where it is unknown."""

    _family, _options = "negative-binomial", ("phi", "inverse_phi")

    def __init__(
        self, phi: Number | PriorLike | None = None, *, inverse_phi: Number | PriorLike | None = None
    ) -> None:
        super().__init__(phi=phi, inverse_phi=inverse_phi)


class Poisson(Distribution):
    """Noise of counts with variance ``m``."""

    _family = "poisson"

    def __init__(self) -> None:
        super().__init__()


class Binomial(Distribution):
    """Noise of counts of successes: the output is their probability, ``trials`` their number, or ``"column"``."""

    _family, _options = "binomial", ("trials",)

    def __init__(self, trials: Union[int, str]) -> None:
        super().__init__(trials=trials)


class NoNoise(Distribution):
    """Synthetic measurements without noise."""

    _family = "none"

    def __init__(self) -> None:
        super().__init__()


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value


def document(value: Any) -> Any:
    """A value as the study file has it."""
    value = plain(value)
    if isinstance(value, Distribution):
        return value._prior()
    if isinstance(value, Spec) or hasattr(value, "_document"):
        return value._document()
    if isinstance(value, Mapping):
        return {str(key): document(entry) for key, entry in value.items() if entry is not None}
    if hasattr(value, "tolist"):
        return document(value.tolist())
    if isinstance(value, (list, tuple)):
        return [document(entry) for entry in value]
    return value


def noise(value: Distribution | Mapping[str, Any] | None) -> Document | None:
    """The noise of measurements as the study file has it."""
    return value._noise() if isinstance(value, Distribution) else None if value is None else document(value)


def options(kind: type[Spec]) -> list[Field[Any]]:
    """What may be said of a section, in the order in which it is written: its own options before those that others share."""
    return sorted(fields(kind), key=lambda field: field.kw_only is True)


Self = TypeVar("Self", bound="Spec")


@dataclass(frozen=True)
class Spec:
    """A section of a study."""

    # Keys of the study file that are words of Python.
    _renamed: ClassVar[dict[str, str]] = {}
    # Sections within, which are objects as well.
    _nested: ClassVar[dict[str, type["Spec"]]] = {}

    def _document(self) -> Document:
        out: Document = {}
        for field in options(type(self)):
            value = getattr(self, field.name)
            if value is not None and not field.name.startswith("_"):
                key = self._renamed.get(field.name, field.name)
                out[key] = noise(value) if key == "noise" else document(value)
        return out

    @classmethod
    def _read(cls: type[Self], section: Mapping[str, Any]) -> Self:
        """From the section of a study file."""
        names = {cls._renamed.get(field.name, field.name): field.name for field in options(cls)}
        unknown = [key for key in section if key not in names]
        if unknown:
            raise InvalidError(f"there is no {', '.join(unknown)}", cls.__name__.lower(), f"known are {', '.join(names)}")
        given = {
            names[key]: cls._nested[key]._read(value) if key in cls._nested and isinstance(value, Mapping) else value
            for key, value in section.items()
        }
        return cls(**given)

    def __repr__(self) -> str:
        # Short: what is not given is not shown.
        given = [(field.name, getattr(self, field.name)) for field in options(type(self))]
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in given if v is not None)})"


@dataclass(frozen=True, repr=False)
class Unknown(Spec):
    """An input to infer: where it is simulated, and its prior.

    Without a ``prior`` it is uniform on its ``scale``, ``"linear"`` or ``"log"``. The prior is truncated to the range unless
    ``truncate`` is false. With ``per="experiment"`` it has a value of its own in each experiment of the measurements.
    """

    range: tuple[Number, Number]
    prior: Optional[PriorLike] = None
    scale: Optional[str] = None
    unit: Optional[str] = None
    truncate: Optional[bool] = None
    per: Optional[str] = None


@dataclass(frozen=True, repr=False)
class Condition(Spec):
    """An input that is known at each measurement, and that the design varies."""

    range: tuple[Number, Number]
    scale: Optional[str] = None
    unit: Optional[str] = None


@dataclass(frozen=True, repr=False)
class Surrogate(Spec):
    """Base of the surrogates."""

    _kind: ClassVar[str] = ""

    def _document(self) -> Document:
        return {"kind": self._kind, **super()._document()}


@dataclass(frozen=True, repr=False)
class PCE(Surrogate):
    """A polynomial of total degree ``degree`` in the inputs (polynomial chaos).

    ``sigma_a`` is the approximation error: a number, or a prior. ``standardise`` shifts and scales outputs before training.
    ``residual="gp"`` adds a Gaussian process for what the polynomial cannot follow, with options as :class:`GP` has in ``gp``.
    ``sigma_a_degree`` makes the approximation error depend on the inputs, as in :class:`Formula`.
    ``degree="auto"`` takes the degree that predicts left-out runs best. ``coefficients="horseshoe"`` finds the few terms of many that matter, so that a high degree goes with few runs; ``q_norm`` below one
    keeps fewer terms of many inputs.
    """

    degree: Union[int, str]
    q_norm: Optional[Number] = None
    residual: Optional[str] = None
    normalisation: Optional[str] = None
    coefficients: Optional[PriorLike] = None
    gp: Optional[Mapping[str, Any]] = None
    sigma_a: Optional[Union[Number, PriorLike]] = None
    sigma_a_degree: Optional[int] = None
    sigma_a_coefficients: Optional[PriorLike] = None
    standardise: Optional[bool] = None
    _kind: ClassVar[str] = "pce"


@dataclass(frozen=True, repr=False)
class Auto(Surrogate):
    """The surrogate that predicts left-out runs best: polynomials, sparse ones, Gaussian processes and both together are compared.

    ``sigma_a`` is the approximation error of all of them, where it is given.
    """

    sigma_a: Optional[Union[Number, PriorLike]] = None
    standardise: Optional[bool] = None
    _kind: ClassVar[str] = "auto"


@dataclass(frozen=True, repr=False)
class GP(Surrogate):
    """A Gaussian process on a ``trend``, ``"constant"`` or ``"linear"``.

    ``gp`` has its options: ``kernel`` (``"matern-5/2"`` or ``"squared-exponential"``), the priors ``length`` (one for all inputs, or one for each by
    name, in units of half their range) and ``sd``, and ``carrier``, the degree of the polynomials that T-draws are written in.
    """

    trend: Optional[str] = None
    coefficients: Optional[PriorLike] = None
    gp: Optional[Mapping[str, Any]] = None
    sigma_a: Optional[Union[Number, PriorLike]] = None
    standardise: Optional[bool] = None
    _kind: ClassVar[str] = "gp"


@dataclass(frozen=True, repr=False)
class Formula(Surrogate):
    """A formula in the inputs' and parameters' names, with a prior for each parameter.

    ``sigma_a_degree`` makes the logarithm of ``sigma_a`` a polynomial in the inputs, of degree 1 to 3, whose coefficients have the prior
    ``sigma_a_coefficients``.
    """

    formula: str
    parameters: Mapping[str, PriorLike]
    sigma_a: Optional[Union[Number, PriorLike]] = None
    sigma_a_degree: Optional[int] = None
    sigma_a_coefficients: Optional[PriorLike] = None
    standardise: Optional[bool] = None
    _kind: ClassVar[str] = "formula"


def surrogate(section: Any) -> Any:
    """The surrogate of a section."""
    if not isinstance(section, Mapping):
        return section
    kinds: dict[str, type[Surrogate]] = {"pce": PCE, "gp": GP, "formula": Formula, "auto": Auto}
    kind = kinds.get(section.get("kind", ""))
    # What is wrong with it is said when the study is checked.
    return kind._read({k: v for k, v in section.items() if k != "kind"}) if kind else section


@dataclass(frozen=True, repr=False)
class Output(Spec):
    """Something that the simulator returns and that is measured.

    ``over`` is the coordinate of a series with its range, ``{"t": (1, 14)}``, and ``at`` its values where the simulator does not
    return them; its principal components have a surrogate each, unless ``series="coordinate"`` makes every value a training row.
    ``scale="log"`` lets the surrogate model the logarithm. ``offset`` is the prior of what all its measurements have besides, on that scale.
    """

    scale: Optional[str] = None
    unit: Optional[str] = None
    results: Optional[Mapping[str, Any]] = None
    over: Optional[Mapping[str, tuple[Number, Number]]] = None
    at: Optional[Points] = None
    series: Optional[str] = None
    surrogate: Optional[Union[Surrogate, Mapping[str, Any]]] = None
    noise: Optional[Union[Distribution, Mapping[str, Any]]] = None
    offset: Optional[PriorLike] = None

    @classmethod
    def _read(cls, section: Mapping[str, Any]) -> Output:
        read = super()._read({key: value for key, value in section.items() if key != "surrogate"})
        return Output(**{**read.__dict__, "surrogate": surrogate(section.get("surrogate"))})


@dataclass(frozen=True, repr=False)
class Design(Spec):
    """Where the simulator runs: ``runs`` points chosen by ``method``, or those of a table."""

    method: Optional[str] = None
    runs: Optional[int] = None
    points: Optional[TableLike] = None


def _design(method: str, text: str) -> Callable[[int], Design]:
    def make(runs: int) -> Design:
        return Design(method, runs)

    make.__name__ = make.__qualname__ = "".join(word.capitalize() for word in method.split("-"))
    make.__doc__ = text
    return make


Sobol = _design("sobol", "The first points of the Sobol' sequence.")
SobolScrambled = _design("sobol-scrambled", "Points of a scrambled Sobol' sequence, which depend on the seed.")
Halton = _design("halton", "The first points of the Halton sequence.")
HaltonEnds = _design("halton-ends", "Halton points, with those of the first input at both ends: the paper's.")
LatinHypercube = _design("latin-hypercube", "A Latin hypercube, which depends on the seed.")
Grid = _design("grid", "A grid with as many points as asked for.")
Random = _design("random", "Points at random, which depend on the seed.")


@dataclass(frozen=True, repr=False)
class Nuts(Spec):
    """NUTS: chains, steps of warm-up, and, in the I-step, draws of each chain and which T-draws E-Post fits.

    ``fits`` is ``"needed"``, as many as make the others known by reliable importance weights, or ``"all"``.
    """

    chains: Optional[int] = None
    warmup: Optional[int] = None
    draws: Optional[int] = None
    fits: Optional[str] = None


@dataclass(frozen=True, repr=False)
class Smc(Spec):
    """Sequential Monte Carlo: independent runs, and particles of each."""

    runs: Optional[int] = None
    particles: Optional[int] = None


@dataclass(frozen=True, repr=False)
class GridEngine(Spec):
    """The grid: ``accuracy`` is the stated error that it is refined to, in sds, from 0.0001 to 0.02."""

    accuracy: Optional[Number] = None


@dataclass(frozen=True, repr=False)
class Train(Spec):
    """The T-step. ``import_`` brings draws that were made elsewhere.

    ``method`` is ``"auto"``, exact where that is possible and else by NUTS; ``"exact"``; ``"nuts"``; ``"laplace"`` or ``"pathfinder"``, normal
    approximations that are corrected by importance weights, whose reliability ``Fit.report`` has as ``k_hat``; or ``"nodes"`` of a quadrature.
    """

    method: Optional[str] = None
    draws: Optional[int] = None
    import_: Optional[TableLike] = None
    sigma_s: Optional[Union[Number, str]] = None
    nuts: Optional[Nuts] = None
    _renamed: ClassVar[dict[str, str]] = {"import_": "import"}
    _nested: ClassVar[dict[str, type[Spec]]] = {"nuts": Nuts}


@dataclass(frozen=True, repr=False)
class Synthetic(Spec):
    """Measurements made by the simulator itself at a known truth."""

    truth: Mapping[str, Number]
    at: Optional[Mapping[str, Points]] = None
    replicates: Optional[int] = None
    noise: Optional[Union[Distribution, Mapping[str, Any]]] = None


@dataclass(frozen=True, repr=False)
class Measurements(Spec):
    """Measurements and their noise.

    ``file`` is a table with a column for each condition and output: a DataFrame, a Dataset, a dict of columns, or the path of a
    CSV file. ``experiments`` are the names in its column ``experiment``, where unknowns have a value for each; ``offset`` is the prior of what
    all measurements of an output have besides.
    """

    file: Optional[TableLike] = None
    noise: Optional[Union[Distribution, Mapping[str, Any]]] = None
    experiments: Optional[Sequence[str]] = None
    offset: Optional[PriorLike] = None
    synthetic: Optional[Synthetic] = None
    _nested: ClassVar[dict[str, type[Spec]]] = {"synthetic": Synthetic}


@dataclass(frozen=True, repr=False)
class Infer(Spec):
    """The I-step: methods of propagation, the one that leads, and the engine that computes them.

    A method is one of the paper, ``"e-lik"``, ``"e-post"``, ``"point"``, ``"e-log-lik"``, or a :class:`twostep.Propagation`.
    ``clusters`` is ``"none"``, a number of clusters that replace the T-draws, or ``"auto"``: as many as it takes, corrected to all T-draws
    with a stated error.
    """

    methods: Optional[Sequence[Union[str, Propagation]]] = None
    answer: Optional[Union[str, Propagation]] = None
    propagate: Optional[Sequence[str]] = None
    error: Optional[str] = None
    engine: Optional[str] = None
    clusters: Optional[Union[int, str]] = None
    cluster_by: Optional[str] = None
    point: Optional[str] = None
    draws: Optional[int] = None
    nuts: Optional[Nuts] = None
    smc: Optional[Smc] = None
    grid: Optional[GridEngine] = None
    _nested: ClassVar[dict[str, type[Spec]]] = {"nuts": Nuts, "smc": Smc, "grid": GridEngine}


@dataclass(frozen=True, repr=False)
class Calibrate(Spec):
    """Simulation-based calibration of both steps."""

    t_trials: Optional[int] = None
    i_trials: Optional[int] = None
    truth: Optional[str] = None
    noise: Optional[Union[Distribution, Mapping[str, Any]]] = None


@dataclass(frozen=True, repr=False)
class Simulator(Spec):
    """Base of the simulators."""


@dataclass(frozen=True, repr=False, kw_only=True)
class External(Simulator):
    """Base of the simulators that run outside the library, and what may be said of each.

    ``table`` holds finished runs. ``on_failure`` is ``"continue"``, ``"retry"`` (with ``attempts`` and ``wait``) or ``"abort"``;
    a surrogate is trained while no more than a share ``max_failed`` of the runs failed.
    """

    table: Optional[TableLike] = None
    timeout: Optional[Union[Number, str]] = None
    concurrency: Optional[int] = None
    on_failure: Optional[str] = None
    attempts: Optional[int] = None
    wait: Optional[Union[Number, str]] = None
    max_failed: Optional[float] = None
    partial: Optional[str] = None


@dataclass(frozen=True, repr=False)
class Builtin(Simulator):
    """A simulator of the paper: ``"linear"``, ``"slope"``, ``"logistic"``, ``"sir"``."""

    builtin: str
    sigma_s: Optional[Number] = None
    max_failed: Optional[float] = None
    partial: Optional[str] = None


@dataclass(frozen=True, repr=False)
class Command(External):
    """An executable, by the list of its arguments."""

    command: Sequence[str]
    retry_command: Optional[Sequence[str]] = None
    params_format: Optional[str] = None
    templates: Optional[Mapping[str, str]] = None
    copy: Optional[Sequence[str]] = None
    link: Optional[Sequence[str]] = None
    keep: Optional[str] = None
    environment: Optional[Mapping[str, str]] = None


@dataclass(frozen=True, repr=False)
class Python(External):
    """A function of a Python file, ``"model.py:run"``, in processes of its own; ``interpreter`` runs them."""

    python: str
    interpreter: Optional[str] = None


@dataclass(frozen=True, repr=False)
class Function(External):
    """A function in this process, called with the inputs by name.

    It returns a number, an array, a dict of outputs, or :class:`Series`. With ``concurrency`` it is called from several threads.
    """

    function: Callable[..., Any]
    # A call in this process cannot be ended.
    timeout: ClassVar[None] = None  # type: ignore[misc]
    _renamed: ClassVar[dict[str, str]] = {"function": "python"}


@dataclass(frozen=True, repr=False)
class UMBridge(External):
    """A model behind a UM-Bridge server."""

    umbridge: str
    model: Optional[str] = None
    config: Optional[Mapping[str, Any]] = None
    inputs: Optional[Sequence[Sequence[str]]] = None


@dataclass(frozen=True, repr=False)
class Table(Simulator):
    """Finished runs only: a table with a column for each input and output."""

    table: TableLike
    max_failed: Optional[float] = None
    partial: Optional[str] = None


def simulator(section: Mapping[str, Any]) -> Simulator:
    """The simulator of a section."""
    kinds: dict[str, type[Simulator]] = {
        "builtin": Builtin,
        "command": Command,
        "python": Python,
        "umbridge": UMBridge,
        "table": Table,
    }
    kind = next((kind for key, kind in kinds.items() if key in section), None)
    if kind is None:
        raise InvalidError("nothing is named that could be run", "simulator", f"give one of {', '.join(kinds)}")
    return kind._read(section)


@dataclass(frozen=True)
class Series:
    """What a function returns for a series: its values, and the coordinate they are at.

    >>> import twostep as ts
    >>> ts.Series([0.1, 0.4], over={"t": [1, 2]})
    Series(values=[0.1, 0.4], over={'t': [1, 2]})
    """

    values: Any
    over: Mapping[str, Any]

    def __post_init__(self) -> None:
        if len(self.over) != 1:
            raise InvalidError(f"{len(self.over)} coordinates are given", "Series", 'write over={"t": values of t}')
        object.__setattr__(self, "over", dict(self.over))


def is_path(value: Any) -> bool:
    """Whether a table is given by its file."""
    return isinstance(value, (str, os.PathLike))


def as_frame(value: TableLike, place: str) -> Any:
    """A table as a DataFrame."""
    import pandas as pd

    if isinstance(value, pd.DataFrame):
        # An index that has a name is a column.
        return value.reset_index() if any(name is not None for name in value.index.names) else value
    if isinstance(value, pd.Series):
        return as_frame(value.to_frame(), place)
    for method in ("to_dataframe", "to_pandas"):
        if hasattr(value, method):
            return as_frame(getattr(value, method)(), place)
    if isinstance(value, Mapping):
        try:
            return pd.DataFrame({str(key): column for key, column in value.items()})
        except ValueError as problem:
            raise InvalidError(str(problem), place, "give columns of equal length") from problem
    found = f"{type(value).__name__} is no table"
    raise InvalidError(found, place, "give a DataFrame, an xarray Dataset, a dict of columns, or the path of a CSV file")


def as_path(value: str | os.PathLike[str]) -> Path:
    """A path that the user gave, from where he is."""
    return Path(os.path.abspath(os.path.expanduser(os.fspath(value))))
