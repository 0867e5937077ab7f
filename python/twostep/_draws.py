"""Draws of named parameters, from wherever they were made."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import numpy.typing as npt
import pandas as pd

from ._errors import InvalidError
from ._specs import as_frame

Array = npt.NDArray[np.float64]

# What Stan writes beside the parameters of a draw.
_STAN_OWN = "__"
_WEIGHT = "weight"
_INDEXED = re.compile(r"(.+)\[(\d+(?:,\d+)*)\]")


class Draws(Mapping[str, Array]):
    """S draws of named parameters, each a number or an array, with weights where they do not count alike.

    A mapping from each parameter to its values, an array of shape (S,) or (S, ...). In tables every element of an array is a
    column, ``w[0,1]``. These are the draws that ``fit.draws`` gives, and that ``Train(import_=...)`` and
    :class:`twostep.PythonSurrogate` take.

    >>> import twostep as ts
    >>> draws = ts.Draws({"a": [0.1, 0.2, 0.3], "w": [[1, 2], [3, 4], [5, 6]]})
    >>> draws
    Draws(3 draws of a, w(2))
    >>> draws.names
    ['a', 'w[0]', 'w[1]']
    >>> draws["w"].shape
    (3, 2)
    """

    def __init__(self, values: Mapping[str, Any], *, weights: Optional[npt.ArrayLike] = None) -> None:
        found: dict[str, Array] = {}
        for name, given in values.items():
            try:
                array = np.asarray(given, dtype=np.float64)
            except (TypeError, ValueError) as problem:
                raise InvalidError(f"{name} has values that are no numbers: {problem}", "Draws") from problem
            if array.ndim == 0:
                raise InvalidError(f"{name} is a single number", "Draws", "give an array with one entry for each draw")
            found[str(name)] = array
        if weights is None and isinstance(values, Draws) and values.is_weighted:
            weights = values.weights
        lengths = {name: len(array) for name, array in found.items()}
        if not found:
            raise InvalidError("there are no parameters", "Draws", "give at least one array")
        if len(set(lengths.values())) != 1:
            text = ", ".join(f"{length} of {name}" for name, length in lengths.items())
            raise InvalidError(f"numbers of draws differ: {text}", "Draws", "the first axis of every array counts draws")
        self._n = next(iter(lengths.values()))
        if self._n == 0:
            raise InvalidError("there are no draws", "Draws", "give at least one")
        names = [flat for name, array in found.items() for flat in _flat_names(name, array.shape[1:])]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise InvalidError(f"{', '.join(twice)} comes twice", "Draws", "rename a parameter")
        if any(_INDEXED.fullmatch(name) for name in found):
            # Elements that were given one by one.
            columns = np.concatenate([array.reshape(self._n, -1) for array in found.values()], axis=1)
            found = nested(names, columns)
        self._values = found
        for name, array in found.items():
            if not np.isfinite(array).all():
                bad = int(np.flatnonzero(~np.isfinite(array.reshape(self._n, -1)).all(axis=1))[0])
                raise InvalidError(f"{name} is not finite in draw {bad}", "Draws", "leave out draws that are not finite")
        self._weights: Optional[Array] = None if weights is None else _weights(weights, self._n)

    @property
    def n_draws(self) -> int:
        """Number S of draws."""
        return self._n

    @property
    def weights(self) -> Array:
        """Weight of each draw; they sum to one."""
        return np.full(self._n, 1 / self._n) if self._weights is None else self._weights.copy()

    @property
    def is_weighted(self) -> bool:
        """Whether draws count differently."""
        return self._weights is not None

    @property
    def names(self) -> list[str]:
        """Name of every number: those of arrays are numbered from zero, ``w[0,1]``."""
        return [flat for name, array in self._values.items() for flat in _flat_names(name, array.shape[1:])]

    @property
    def matrix(self) -> Array:
        """All numbers: a row for each name, a column for each draw."""
        return np.concatenate([array.reshape(self._n, -1).T for array in self._values.values()])

    def __getitem__(self, name: str) -> Array:
        if name in self._values:
            return self._values[name]
        whole = _INDEXED.fullmatch(name)
        if whole is not None and whole[1] in self._values:
            index = tuple(int(i) for i in whole[2].split(","))
            array = self._values[whole[1]]
            if len(index) == array.ndim - 1 and all(i < n for i, n in zip(index, array.shape[1:])):
                return array.reshape(self._n, -1)[:, int(np.ravel_multi_index(index, array.shape[1:]))]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        """Number of parameters, as of a mapping; that of draws is :attr:`n_draws`."""
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Draws):
            return NotImplemented
        return (
            list(self) == list(other)
            and all(np.array_equal(array, other[name]) for name, array in self.items())
            and np.array_equal(self.weights, other.weights)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shapes = [name + (f"({', '.join(map(str, a.shape[1:]))})" if a.ndim > 1 else "") for name, a in self.items()]
        if len(shapes) > 8:
            shapes = [*shapes[:7], f"... ({len(shapes)} parameters)"]
        kind = "weighted draws" if self.is_weighted else "draws"
        return f"Draws({self._n} {kind} of {', '.join(shapes)})"

    def select(self, index: Any) -> Draws:
        """Some of the draws, by an index of NumPy: a slice, numbers, or a mask."""
        weights = None if self._weights is None else self._weights[index]
        return Draws({name: array[index] for name, array in self.items()}, weights=weights)

    def to_dict(self) -> dict[str, Array]:
        """Arrays by name, shared with this object; weights are left out."""
        return dict(self._values)

    def to_frame(self) -> pd.DataFrame:
        """A row for each draw, a column for each number, and a column ``weight`` where draws do not count alike."""
        frame = pd.DataFrame(self.matrix.T, columns=self.names)
        if self._weights is not None:
            frame[_WEIGHT] = self._weights
        return frame

    def to_dataframe(self) -> pd.DataFrame:
        """As :meth:`to_frame`: what takes tables takes draws."""
        return self.to_frame()

    def to_csv(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the table of :meth:`to_frame`: the study file's ``train.import`` reads it."""
        self.to_frame().to_csv(path, index=False)

    def to_arviz(self) -> Any:
        """An object of ArviZ, whichever version is installed, with one chain.

        Draws that do not count alike are refused: ArviZ knows none.
        """
        if self._weights is not None:
            raise InvalidError("ArviZ has no weights", "Draws.to_arviz", "use to_frame, or draw some of them by their weights")
        try:
            import arviz as az
        except ImportError as problem:
            raise InvalidError("ArviZ is not installed", "Draws.to_arviz", "pip install twostep[arviz]") from problem
        posterior = {name: array[np.newaxis] for name, array in self.items()}
        # Version 1 names groups by a dictionary.
        return az.from_dict({"posterior": posterior}) if int(az.__version__.split(".")[0]) >= 1 else az.from_dict(posterior)

    @classmethod
    def from_arrays(
        cls, values: npt.ArrayLike, names: Sequence[str], *, weights: Optional[npt.ArrayLike] = None
    ) -> Draws:
        """From a matrix with a row for each draw and a column for each name; names such as ``w[0,1]`` make arrays."""
        matrix = np.asarray(values, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[1] != len(names):
            found = f"an array of shape {matrix.shape} for {len(names)} names"
            raise InvalidError(found, "Draws", "give a row for each draw and a column for each name")
        return cls(nested(list(names), matrix), weights=weights)

    @classmethod
    def from_frame(cls, table: Any) -> Draws:
        """From a table with a row for each draw: a DataFrame or a dict of columns. A column ``weight`` has weights."""
        frame = as_frame(table, "Draws")
        names = [str(name) for name in frame.columns]
        try:
            matrix = frame.to_numpy(dtype=np.float64)
        except (TypeError, ValueError) as problem:
            raise InvalidError(f"a column has values that are no numbers: {problem}", "Draws") from problem
        weights = matrix[:, names.index(_WEIGHT)] if _WEIGHT in names else None
        kept = [i for i, name in enumerate(names) if name != _WEIGHT]
        return cls.from_arrays(matrix[:, kept], [names[i] for i in kept], weights=weights)

    @classmethod
    def from_csv(cls, path: Union[str, os.PathLike[str]]) -> Draws:
        """From a CSV file with a row for each draw, such as ``t_draws.csv`` of a study's folder."""
        try:
            # Python's own reading of numbers is exact in every version of pandas.
            frame = pd.read_csv(path, comment="#", dtype=str)
        except (OSError, ValueError) as problem:
            raise InvalidError(f"the draws cannot be read: {problem}", os.fspath(path), "check the path") from problem
        return cls.from_frame(frame)

    @classmethod
    def from_arviz(cls, data: Any, *, group: str = "posterior", var_names: Optional[Sequence[str]] = None) -> Draws:
        """From an object of ArviZ: InferenceData, DataTree, or an xarray Dataset with dimensions chain and draw."""
        dataset = data
        if hasattr(data, group):
            dataset = getattr(data, group)
        elif hasattr(data, "children") and group in data.children:
            dataset = data[group]
        elif not hasattr(data, "data_vars"):
            found = f"{type(data).__name__} has no group {group}"
            raise InvalidError(found, "Draws.from_arviz", "give InferenceData, a DataTree or a Dataset")
        known = [str(name) for name in dataset.data_vars]
        wanted = known if var_names is None else list(var_names)
        missing = [name for name in wanted if name not in known]
        if missing:
            found = f"there is no {', '.join(missing)}"
            raise InvalidError(found, "Draws.from_arviz", f"known are {', '.join(known)}")
        values = {}
        for name in wanted:
            variable = dataset[name]
            if "chain" not in variable.dims or "draw" not in variable.dims:
                found = f"{name} has dimensions {', '.join(map(str, variable.dims))}"
                raise InvalidError(found, "Draws.from_arviz", "chain and draw must be among them, or leave it out by var_names")
            array = variable.transpose("chain", "draw", ...).to_numpy()
            values[name] = array.reshape(-1, *array.shape[2:])
        return cls(values)

    @classmethod
    def from_stan_csv(cls, paths: Union[str, os.PathLike[str], Sequence[Union[str, os.PathLike[str]]]]) -> Draws:
        """From files of CmdStan, a file for each chain.

        Draws of the warm-up that were saved are left out, and what Stan writes of itself (``lp__``, ``stepsize__``). Elements of
        arrays, which Stan counts from one, are counted from zero.
        """
        files = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not files:
            raise InvalidError("no files are given", "Draws.from_stan_csv")
        chains = [_stan_chain(os.fspath(file)) for file in files]
        names, _ = chains[0]
        for (own, _), file in zip(chains, files):
            if own != names:
                raise InvalidError("has other parameters than the first file", os.fspath(file), "give chains of one model")
        return cls.from_arrays(np.concatenate([matrix for _, matrix in chains]), names)


def _weights(weights: npt.ArrayLike, n_draws: int) -> Array:
    array = np.asarray(weights, dtype=np.float64)
    if array.shape != (n_draws,):
        raise InvalidError(f"weights of shape {array.shape} for {n_draws} draws", "Draws", "give one weight for each draw")
    if not np.isfinite(array).all() or (array < 0).any() or array.sum() <= 0:
        raise InvalidError("a weight is negative or not finite, or none is above zero", "Draws", "give weights from zero on")
    normalised: Array = array / array.sum()
    return normalised


def _flat_names(name: str, shape: tuple[int, ...]) -> list[str]:
    return [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(shape)] if shape else [name]


def layout(names: Sequence[str]) -> list[tuple[str, tuple[int, ...], list[int]]]:
    """Parameters that these names are the elements of: name, shape, and place of each element.

    Names of a family with gaps, such as ``c[0,0]``, ``c[0,1]``, ``c[1,0]``, are parameters by themselves.
    """
    families: dict[str, dict[tuple[int, ...], int]] = {}
    for place, name in enumerate(names):
        match = _INDEXED.fullmatch(name)
        family, index = (match[1], tuple(int(i) for i in match[2].split(","))) if match else (name, ())
        families.setdefault(family, {})[index] = place
    out = []
    for family, members in families.items():
        dims = {len(index) for index in members}
        shape = tuple(max(index[d] for index in members) + 1 for d in range(max(dims)))
        if len(dims) == 1 and len(members) == int(np.prod(shape)):
            out.append((family, shape, [members[index] for index in np.ndindex(shape)]))
        else:
            out += [(names[place], (), [place]) for place in members.values()]
    return out


def nested(names: Sequence[str], matrix: Array) -> dict[str, Array]:
    """Arrays of S draws by parameter, from a row for each draw and a column for each name."""
    return {
        name: matrix[:, places].reshape(len(matrix), *shape) if shape else matrix[:, places[0]]
        for name, shape, places in layout(names)
    }


def _stan_chain(path: str) -> tuple[list[str], Array]:
    """Names and draws after the warm-up of one file of CmdStan."""
    settings: dict[str, str] = {}
    header: list[str] = []
    rows: list[list[float]] = []
    try:
        with open(path, newline="", encoding="utf-8") as file:
            for line in csv.reader(file):
                if not line:
                    continue
                if line[0].startswith("#"):
                    key, equals, value = ",".join(line).lstrip("# ").partition("=")
                    if equals:
                        settings.setdefault(key.strip(), value.replace("(Default)", "").strip())
                elif not header:
                    header = line
                else:
                    rows.append([float(value) for value in line])
    except (OSError, ValueError) as problem:
        raise InvalidError(f"it cannot be read: {problem}", path, "give a file that CmdStan wrote") from problem
    if not header or any(len(row) != len(header) for row in rows):
        raise InvalidError("is no table of draws, or was cut off", path, "give a file that CmdStan finished")
    if settings.get("save_warmup") in ("1", "true"):
        thin = int(settings.get("thin", "1"))
        rows = rows[-(-int(settings.get("num_warmup", "0")) // thin) :]
    if not rows:
        raise InvalidError("there are no draws after the warm-up", path, "give a file that CmdStan finished")
    kept = [i for i, name in enumerate(header) if not name.endswith(_STAN_OWN)]
    return [_from_stan(header[i]) for i in kept], np.array(rows)[:, kept]


def _from_stan(name: str) -> str:
    """``w.1.2`` to ``w[0,1]``."""
    family, *index = re.split(r"[.:]", name)
    numbered = index and all(part.isdigit() for part in index)
    return f"{family}[{','.join(str(int(part) - 1) for part in index)}]" if numbered else name
