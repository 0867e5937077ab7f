"""Surrogates that are Python functions: networks, Gaussian processes, anything that predicts for many draws at once."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Optional, Union

import numpy as np
import numpy.typing as npt

from ._draws import Array, Draws, layout
from ._errors import InvalidError, SurrogateError
from ._function import _digest, name_of
from ._specs import Document, Number, Output, Surrogate, plain

DrawsLike = Union[Draws, Mapping[str, Any]]
_SIGMA_A = "sigma_a"


@dataclass(frozen=True, repr=False)
class PythonSurrogate(Surrogate):
    """A surrogate that is a Python function, with the draws of its parameters.

    ``predict(x, draws)`` returns an array (N, S). ``x`` holds N points in rows, with a column for each unknown, then each condition of
    the study, in their natural units; ``draws`` maps each parameter to an array (S,) or (S, ...), S draws of it. It is called from
    several threads, and must give the same for the same arguments.

    The draws are those of a T-posterior: given as ``draws``, made by ``train(x, y, rng)``, which returns :class:`twostep.Draws` or a
    dict of arrays for the training points ``x`` and their outputs ``y`` (one whose signature has ``n_draws`` is told how many the study
    asks for), or brought by ``Train(import_=draws)``. Only what can be trained can be calibrated.

    ``gradient(x, draws, weights)`` returns an array (N, D): the derivative by ``x`` of ``sum(weights * predict(x, draws))``, for weights
    (N, S). Without one, engines do without: the grid for up to three unknowns, sequential Monte Carlo for more; NUTS takes differences.

    ``sigma_a``, the sd of the surrogate's approximation error, is a number, or, among the draws, one for each of them; zero unless
    given. Predictions, outputs and errors are on the scale that the surrogate models: that of logarithms for
    ``Output(scale="log")``, and after standardisation where ``standardise`` is true.

    >>> import numpy as np, twostep as ts
    >>> def line(x, draws):
    ...     return draws["a"] + x[:, :1] * draws["b"]
    >>> ts.PythonSurrogate(line, draws={"a": np.zeros(10), "b": np.linspace(1, 2, 10)})
    PythonSurrogate(line, Draws(10 draws of a, b))
    """

    predict: Callable[[Array, Mapping[str, Array]], npt.ArrayLike]
    train: Optional[Callable[..., DrawsLike]] = None
    gradient: Optional[Callable[[Array, Mapping[str, Array], Array], npt.ArrayLike]] = None
    draws: Optional[DrawsLike] = None
    sigma_a: Optional[Union[Number, npt.ArrayLike]] = None
    standardise: Optional[bool] = None
    _kind: ClassVar[str] = "python"

    def __post_init__(self) -> None:
        for name in ("predict", "train", "gradient"):
            function = getattr(self, name)
            if not callable(function) and (function is not None or name == "predict"):
                found = f"{name} is {type(function).__name__}, which cannot be called"
                raise InvalidError(found, "PythonSurrogate", "give a function")
        if self.train is not None and self.draws is not None:
            raise InvalidError("train and draws are given", "PythonSurrogate", "keep one of them")
        if self.draws is not None:
            draws = self.draws if isinstance(self.draws, Draws) else Draws(self.draws)
            object.__setattr__(self, "draws", draws)
        object.__setattr__(self, "sigma_a", plain(self.sigma_a))
        if self.sigma_a is not None and not isinstance(self.sigma_a, (int, float)):
            if not isinstance(self.draws, Draws):
                found = "sigma_a is an array, and no draws are given that it could belong to"
                raise InvalidError(found, "PythonSurrogate", "give a number, or let train return sigma_a among its draws")
            object.__setattr__(self, "draws", with_sigma_a(self.draws, self.sigma_a))
            object.__setattr__(self, "sigma_a", None)

    def _document(self) -> Document:
        given = {_SIGMA_A: self.sigma_a, "standardise": self.standardise}
        return {"kind": self._kind, **{key: value for key, value in given.items() if value is not None}}

    def __repr__(self) -> str:
        parts = [name_of(self.predict)]
        if self.train is not None:
            parts.append(f"train={name_of(self.train)}")
        if self.draws is not None:
            parts.append(repr(self.draws))
        return f"PythonSurrogate({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def with_sigma_a(draws: Draws, sigma_a: Any) -> Draws:
    """Draws with those of the approximation error among them."""
    if _SIGMA_A in draws:
        raise InvalidError("sigma_a is given, and among the draws as well", "PythonSurrogate", "keep one of them")
    return Draws({**draws, _SIGMA_A: sigma_a}, weights=draws.weights if draws.is_weighted else None)


def callers(sections: Mapping[str, Any]) -> list[tuple[Optional[str], Caller]]:
    """The Python surrogates of a study: that of all outputs, and those of single ones."""
    found: list[tuple[Optional[str], Caller]] = []
    if isinstance(sections.get("surrogate"), PythonSurrogate):
        found.append((None, Caller(sections["surrogate"])))
    for name, output in (sections.get("outputs") or {}).items():
        if isinstance(output, Output) and isinstance(output.surrogate, PythonSurrogate):
            found.append((name, Caller(output.surrogate)))
    return found


class Caller:
    """What the library asks of a surrogate."""

    def __init__(self, surrogate: PythonSurrogate) -> None:
        self._surrogate = surrogate
        self.name = name_of(surrogate.predict)
        self.has_gradient = surrogate.gradient is not None
        self.is_trained = surrogate.train is not None
        state = hashlib.sha256()
        for function in (surrogate.predict, surrogate.train, surrogate.gradient):
            state.update(b"" if function is None else _digest(function).encode())
        if isinstance(surrogate.draws, Draws):
            state.update("\n".join(surrogate.draws.names).encode())
            state.update(np.ascontiguousarray(surrogate.draws.matrix).tobytes() + surrogate.draws.weights.tobytes())
        self.fingerprint = state.hexdigest()

    def train(
        self, x: Array, y: Array, n_draws: int, seed: int
    ) -> tuple[list[str], Array, Array, Optional[list[float]]]:
        """Names, values (P, S), log-weights and sigma_a of the draws for a training set."""
        draws = self._surrogate.draws
        train = self._surrogate.train
        if train is not None:
            rng = np.random.default_rng(seed)
            try:
                made = train(x, y, rng, n_draws=n_draws) if _takes(train, "n_draws") else train(x, y, rng)
            except Exception as problem:
                found = f"{name_of(train)} raised {type(problem).__name__}: {problem}"
                raise SurrogateError(found, "train", f"it was given {len(x)} training points") from problem
            if not isinstance(made, Mapping):
                found = f"{name_of(train)} returned {type(made).__name__}"
                raise SurrogateError(found, "train", "return ts.Draws, or a dict of arrays by parameter")
            draws = made if isinstance(made, Draws) else Draws(made)
        if not isinstance(draws, Draws):
            found = "it has neither draws nor a function that makes them"
            raise InvalidError(found, "surrogate", "give train or draws, or bring draws by Train(import_=...)")
        sigma_a = draws[_SIGMA_A] if _SIGMA_A in draws else None
        if sigma_a is not None and (sigma_a.ndim != 1 or (sigma_a < 0).any()):
            raise SurrogateError("sigma_a is no number from zero on in every draw", "train", "it is a standard deviation")
        kept = {name: values for name, values in draws.items() if name != _SIGMA_A}
        if not kept:
            raise SurrogateError("there are no draws of any parameter", "train", "give at least one besides sigma_a")
        own = Draws(kept)
        with np.errstate(divide="ignore"):
            log_weights = np.log(draws.weights) if draws.is_weighted else np.zeros(draws.n_draws)
        counted = draws.weights > 0
        matrix = np.ascontiguousarray(own.matrix[:, counted])
        return own.names, matrix, log_weights[counted], None if sigma_a is None else sigma_a[counted].tolist()

    def bind(self, parameters: list[str], values: Array) -> tuple[Any, Any, Mapping[str, Array]]:
        """The user's functions, and what they take for the draws with these values (P, S)."""
        values.flags.writeable = False
        draws: dict[str, Array] = {}
        for name, shape, places in layout(parameters):
            contiguous = places == list(range(places[0], places[0] + len(places)))
            block = values[places[0] : places[0] + len(places)] if contiguous else values[places]
            draws[name] = np.moveaxis(block.reshape(*shape, values.shape[1]), -1, 0) if shape else block[0]
        return self._surrogate.predict, self._surrogate.gradient, MappingProxyType(draws)

    def checked(self, which: str, found: Any, x: Array, shape: Sequence[int]) -> Array:
        """What a function returned as an array of numbers, or what is wrong with it."""
        try:
            array = np.asarray(found, dtype=np.float64)
        except (TypeError, ValueError) as problem:
            said = f"{self._name(which)} returned {type(found).__name__}, which is no array of numbers"
            raise SurrogateError(said, which, f"return {_expected(which, x, shape)}") from problem
        if array.shape != tuple(shape):
            said = f"{self._name(which)} returned an array of shape {array.shape}"
            raise SurrogateError(said, which, f"return {_expected(which, x, shape)}")
        return array

    def explain(self, which: str, problem: BaseException, x: Array, shape: Sequence[int]) -> BaseException:
        """What a function raised, with what it was given."""
        if not isinstance(problem, Exception):
            return problem
        said = f"{self._name(which)} raised {type(problem).__name__}: {problem}"
        error = SurrogateError(f"{said}, at {_at(x)}", which, f"it is to return {_expected(which, x, shape)}")
        error.__cause__ = problem
        return error

    def undefined(self, which: str, found: Any, x: Array) -> BaseException:
        """That a function returned NaN."""
        nan = np.isnan(np.asarray(found, dtype=np.float64))
        row = int(np.flatnonzero(nan.any(axis=1))[0])
        said = f"{self._name(which)} returned NaN for {int(nan[row].sum())} of {nan.shape[1]} values at {_at(x[row : row + 1])}"
        return SurrogateError(said, which, "it must have a value everywhere within the ranges of the inputs")

    def _name(self, which: str) -> str:
        return name_of(getattr(self._surrogate, which))


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def _expected(which: str, x: Array, shape: Sequence[int]) -> str:
    if which == "predict":
        return f"an array of shape {tuple(shape)}: a row for each of {len(x)} points, a column for each of {shape[1]} draws"
    return f"an array of shape {tuple(shape)}: a row for each of {len(x)} points, a column for each input"


def _at(x: Array) -> str:
    rows = ", ".join("(" + ", ".join(f"{value:g}" for value in row) + ")" for row in x[:2])
    return f"x = {rows}" + (f" and {len(x) - 2} more points" if len(x) > 2 else "")
