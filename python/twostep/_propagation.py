"""Propagation methods that are Python functions: other ways to carry the T-posterior into the I-step."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from ._draws import Array
from ._errors import FailedError, InvalidError, PropagationError
from ._function import _digest, name_of


class Propagation:
    """A method of one's own, beside ``"e-lik"`` and ``"e-post"``: ``Infer(methods=["e-lik", mine])``.

    Its result is a mixture of the posteriors of the T-draws where ``weights(log_evidence, log_weights)`` gives the log-weight of each,
    up to a constant: ``log_evidence`` (S,) is what the measurements say for each T-draw, ``log_weights`` (S,) what it counts for by
    itself. E-Lik is ``log_weights + log_evidence``, E-Post is ``log_weights``.

    Or its likelihood is pooled: ``pool(log_likelihoods, log_weights)`` gives one log-likelihood for those of all T-draws (S,) at some
    values of the unknowns. ``pool_gradient``, with the same arguments, gives its derivative by each of them (S,); only NUTS needs it.

    The ``name`` stands in tables, files and figures. Results are made anew where the functions have changed.

    >>> import numpy as np, twostep as ts
    >>> def tempered(log_evidence, log_weights):
    ...     return log_weights + 0.5 * log_evidence
    >>> ts.Propagation("tempered", weights=tempered)
    Propagation('tempered', weights=tempered)
    """

    def __init__(
        self,
        name: str,
        *,
        weights: Optional[Callable[[Array, Array], npt.ArrayLike]] = None,
        pool: Optional[Callable[[Array, Array], float]] = None,
        pool_gradient: Optional[Callable[[Array, Array], npt.ArrayLike]] = None,
    ) -> None:
        if (weights is None) == (pool is None):
            found = "neither weights nor pool is given" if weights is None else "weights and pool are given"
            raise InvalidError(found, "Propagation", "give one of them")
        if pool_gradient is not None and pool is None:
            raise InvalidError("pool_gradient is given without pool", "Propagation", "mixtures need no gradient")
        for argument, function in (("weights", weights), ("pool", pool), ("pool_gradient", pool_gradient)):
            if function is not None and not callable(function):
                found = f"{argument} is {type(function).__name__}, which cannot be called"
                raise InvalidError(found, "Propagation", "give a function")
        self.name = str(name)
        self.weights, self.pool, self.pool_gradient = weights, pool, pool_gradient
        if weights is not None:
            _tried("weights", Caller(self).weights)
        else:
            _tried("pool", Caller(self).pool)
            if pool_gradient is not None:
                _tried("pool_gradient", Caller(self).pool_with_gradient)

    def _document(self) -> str:
        return self.name

    def __repr__(self) -> str:
        given = {"weights": self.weights, "pool": self.pool, "pool_gradient": self.pool_gradient}
        functions = [f"{key}={name_of(function)}" for key, function in given.items() if function is not None]
        return f"Propagation({self.name!r}, {', '.join(functions)})"

    def __str__(self) -> str:
        return self.name


def _tried(which: str, function: Callable[[Array, Array], Any]) -> None:
    """Calls a function once with three T-draws, so that mistakes show at once."""
    function(np.array([-1.0, -2.0, -3.0]), np.log(np.full(3, 1 / 3)))


def methods_of(sections: Mapping[str, Any]) -> list[Caller]:
    """The methods of a study that are Python functions."""
    methods = getattr(sections.get("infer"), "methods", None) or ()
    return [Caller(method) for method in methods if isinstance(method, Propagation)]


class Caller:
    """What the library asks of a method."""

    def __init__(self, method: Propagation) -> None:
        self._method = method
        self.name = method.name
        self.kind = "weights" if method.weights else "pool" if method.pool_gradient is None else "pool with gradient"
        state = hashlib.sha256(self.kind.encode())
        for function in (method.weights, method.pool, method.pool_gradient):
            state.update(b"" if function is None else _digest(function).encode())
        self.fingerprint = state.hexdigest()

    def weights(self, log_evidence: Array, log_weights: Array) -> Array:
        """Log-weights of the posteriors of all T-draws."""
        assert self._method.weights is not None, "only a mixture is asked for weights"
        found = self._array("weights", self._method.weights, log_evidence, log_weights)
        if not (found < np.inf).all() or not np.isfinite(found).any():
            raise self._wrong("weights", "returned log-weights of which one is infinite or NaN, or none is finite")
        return found

    def pool(self, log_likelihoods: Array, log_weights: Array) -> float:
        """The pooled log-likelihood."""
        assert self._method.pool is not None, "only a pooled density is asked for it"
        found = self._called("pool", self._method.pool, log_likelihoods, log_weights)
        try:
            value = float(found)
        except (TypeError, ValueError) as problem:
            raise self._wrong("pool", f"returned {type(found).__name__}, where a number is expected") from problem
        if math.isnan(value) or value == math.inf:
            raise self._wrong("pool", f"returned {value}, where a number or minus infinity is expected")
        return value

    def pool_with_gradient(self, log_likelihoods: Array, log_weights: Array) -> tuple[float, Array]:
        """The pooled log-likelihood, and its derivative by each."""
        assert self._method.pool_gradient is not None, "only a method with a gradient is asked for it"
        value = self.pool(log_likelihoods, log_weights)
        if value == -math.inf:
            return value, np.zeros(len(log_likelihoods))
        return value, self._array("pool_gradient", self._method.pool_gradient, log_likelihoods, log_weights)

    def _called(self, which: str, function: Callable[[Array, Array], Any], first: Array, second: Array) -> Any:
        try:
            return function(first, second)
        except Exception as problem:
            said = f"raised {type(problem).__name__}: {problem}"
            raise self._wrong(which, f"{said}, given arrays of shape {first.shape} and {second.shape}") from problem

    def _array(self, which: str, function: Callable[[Array, Array], Any], first: Array, second: Array) -> Array:
        found = self._called(which, function, first, second)
        try:
            array = np.ascontiguousarray(found, dtype=np.float64)
        except (TypeError, ValueError) as problem:
            raise self._wrong(which, f"returned {type(found).__name__}, which is no array of numbers") from problem
        if np.shape(found) != first.shape:
            said = f"returned an array of shape {np.shape(found)}, where one of shape {first.shape} is expected"
            raise self._wrong(which, f"{said}: a number for each T-draw")
        return array

    def _wrong(self, which: str, said: str) -> FailedError:
        return PropagationError(f"{which} {said}", f"propagation method {self.name}")
