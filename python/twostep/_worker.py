"""What a simulator's function returned to the values of each output.

This file needs nothing but Python itself: the command also runs it in interpreters that do not have this package.
"""

# mypy: disallow-any-expr=False
from __future__ import annotations

from typing import Any, Optional

# Name of an output; name and, where the study has them, values of the coordinate of a series.
Wanted = tuple[str, Optional[str], Optional[list[float]]]
# Coordinates, empty for a single number, and values.
Reading = tuple[list[float], list[float]]


def readings(result: Any, wanted: list[Wanted]) -> list[Reading]:
    """The readings of each output, or a ValueError that says what is wrong with ``result``."""
    if isinstance(result, dict) and not hasattr(result, "over"):
        return [_of_dict(result, output) for output in wanted]
    if len(wanted) == 1:
        return [_reading(result, wanted[0])]
    names = ", ".join(name for name, _, _ in wanted)
    items = result if isinstance(result, (list, tuple)) else _listed(result)
    if not isinstance(items, (list, tuple)) or len(items) != len(wanted):
        found = f"{len(items)} values" if isinstance(items, (list, tuple)) else _shown(result)
        raise ValueError(f"returned {found} for {len(wanted)} outputs; return a dict with {names}")
    return [_reading(item, output) for item, output in zip(items, wanted)]


def _of_dict(result: dict[str, Any], output: Wanted) -> Reading:
    name, over, _ = output
    if name not in result:
        known = ", ".join(map(str, result)) or "nothing"
        raise ValueError(f"returned no `{name}`; the dict holds {known}")
    value = result[name]
    if over is not None and over in result and not hasattr(value, "over"):
        return _series(value, result[over], output)
    return _reading(value, output)


def _reading(value: Any, output: Wanted) -> Reading:
    name, over, at = output
    if over is None:
        number = _listed(value)
        # An array of one number is that number.
        while isinstance(number, (list, tuple)) and len(number) == 1:
            number = number[0]
        if isinstance(number, (list, tuple)):
            found = f"{len(number)} values of `{name}`, which is a single number"
            raise ValueError(f"returned {found}; declare it as a series with over, or return one number")
        return [], [_number(number, name)]
    own = getattr(value, "over", None)
    if isinstance(own, dict) and hasattr(value, "values"):
        if over not in own:
            raise ValueError(f"returned a series over {', '.join(own)}; `{name}` is one over {over}")
        return _series(value.values, own[over], output)
    if at is None:
        raise ValueError(f"returned no values of {over} with `{name}`; return Series(values, over={{{over!r}: ...}})")
    return _series(value, at, output)


def _series(values: Any, coordinates: Any, output: Wanted) -> Reading:
    name, over, _ = output
    listed, at = _listed(values), _listed(coordinates)
    if not isinstance(listed, (list, tuple)):
        raise ValueError(f"returned a single number as `{name}`, which is a series over {over}")
    if not isinstance(at, (list, tuple)) or len(at) != len(listed):
        n = len(at) if isinstance(at, (list, tuple)) else 1
        raise ValueError(f"returned {len(listed)} values of `{name}` at {n} values of {over}; as many are needed")
    return [_number(t, str(over)) for t in at], [_number(value, name) for value in listed]


def _listed(value: Any) -> Any:
    """Arrays, series and tensors as lists; numbers and lists as they are."""
    if isinstance(value, (int, float, str, list, tuple)) or value is None:
        return value
    for method in ("detach", "to_numpy"):
        if hasattr(value, method):
            value = getattr(value, method)()
    return value.tolist() if hasattr(value, "tolist") else value


def _number(value: Any, name: str) -> float:
    if isinstance(value, (str, bytes, bool, complex)) or value is None:
        raise ValueError(f"returned {_shown(value)} as `{name}`, which is no number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"returned {_shown(value)} as `{name}`, which is no number") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 60 else text[:57] + '...'}"
