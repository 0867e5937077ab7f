"""What a simulator's function returned to the values of each output, and the processes that call functions of files.

This file needs nothing but Python itself, 3.8 or later: the command also runs it in interpreters that do not have this package.
"""

# mypy: disallow-any-expr=False
from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Tuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from queue import SimpleQueue

# Name of an output; name and, where the study has them, values of the coordinate of a series.
Wanted = Tuple[str, Optional[str], Optional[List[float]]]
# Coordinates, empty for a single number, and values.
Reading = Tuple[List[float], List[float]]


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


def reason(problem: BaseException) -> str:
    """Why a run failed, in words."""
    place, is_read = problem.__traceback__, False
    while place is not None:
        is_read = is_read or place.tb_frame.f_code is readings.__code__
        # A result that cannot be used was refused by ourselves, and says so.
        if place.tb_next is None and is_read and place.tb_frame.f_globals is globals():
            return str(problem)
        place = place.tb_next
    return f"{type(problem).__name__}: {problem}".rstrip(": ")


def mismatch(function: Callable[..., Any], name: str, inputs: list[str]) -> Optional[str]:
    """Why a function called ``name`` cannot be called with these names, if so."""
    import inspect

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(**dict.fromkeys(inputs, 0.0))
    except TypeError as problem:
        return f"{name}{signature} cannot be called with {', '.join(inputs)}: {problem}"
    return None


def main(file: str, name: str) -> None:
    """Calls the function ``name`` of a file with the inputs of each line of the standard input, and answers on the standard output.

    A line asks with ``{"inputs": {name: number}, "outputs": [[name, over, at]]}``. The first answer is ``{"ready": true}``, then one for
    each line follows: ``{"readings": [[at, values]]}``, where numbers that JSON does not have are texts; ``{"failed": reason}``, with the
    traceback and a zero byte at the end of what the run printed; or ``{"refused": reason}``, where no run could be made. The process ends
    with its standard input.
    """
    import json
    import math
    import os
    import traceback

    requests, answers, busy = _pipes()

    def write(file: int, content: bytes) -> None:
        while content:
            content = content[os.write(file, content) :]

    def answer(**said: Any) -> None:
        write(answers, (json.dumps(said) + "\n").encode())

    def shown(number: float) -> Any:
        return number if math.isfinite(number) else repr(number)

    try:
        function = _load(file, name)
    except BaseException as problem:
        answer(refused=_plain(_unloadable(problem, file)))
        return
    answer(ready=True)
    is_checked = False
    while True:
        line = requests.get()
        if line is None:
            return
        request = json.loads(line)
        inputs = {key: float(value) for key, value in request["inputs"].items()}
        problem_of_names = None if is_checked else mismatch(function, name, list(inputs))
        is_checked = True
        if problem_of_names is not None:
            answer(refused=_plain(f"{problem_of_names}; name its arguments like the study's unknowns, conditions and constants"))
            continue
        busy.append(True)
        try:
            values = readings(function(**inputs), [tuple(output) for output in request["outputs"]])
        except BaseException as problem:
            # Frames of this file say nothing to the user.
            trace = problem.__traceback__.tb_next if problem.__traceback__ else None
            text = "".join(traceback.format_exception(type(problem), problem, trace))
            reply: dict[str, Any] = {"failed": _plain(reason(problem))}
            try:
                write(2, _plain(text).encode() + b"\0")
            except OSError:
                # The function has closed it.
                pass
        else:
            reply = {"readings": [[[shown(t) for t in at], [shown(y) for y in ys]] for at, ys in values]}
        busy.clear()
        answer(**reply)


def _pipes() -> tuple[SimpleQueue[Optional[bytes]], int, list[bool]]:
    """Lines that ask, where to write answers, and a list that is empty while no run is under way.

    The standard streams are left to the function: it reads nothing, and what it prints goes where errors go.
    """
    import os
    import queue
    import signal
    import threading
    import time

    source, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    requests: SimpleQueue[Optional[bytes]] = queue.SimpleQueue()
    busy: list[bool] = []

    def listen() -> None:
        with os.fdopen(source, "rb") as lines:
            for line in lines:
                requests.put(line)
        requests.put(None)
        if not busy:
            return
        # Whoever asked has gone: nobody will take the result, and what the function started must not outlive it either.
        if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
            for sent in (signal.SIGTERM, signal.SIGKILL):
                os.killpg(0, sent)
                time.sleep(2)
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    return requests, answers, busy


class _Unloadable(Exception):
    """A file that has not what is asked for."""


def _load(file: str, name: str) -> Callable[..., Any]:
    """The function of a file, whose folder comes first where modules are looked for."""
    import importlib
    import importlib.machinery
    import importlib.util
    import os
    import sys

    class Loader(importlib.machinery.SourceFileLoader):
        """Reads the source itself: what is cached beside it may be of a version that was as long, of the same second."""

        def get_code(self, fullname: str) -> Any:
            return self.source_to_code(self.get_data(self.path), self.path)

    own, stem = os.path.dirname(file), os.path.splitext(os.path.basename(file))[0]
    package: list[str] = []
    root = own
    while os.path.isfile(os.path.join(root, "__init__.py")) and os.path.basename(root).isidentifier():
        root, parent = os.path.split(root)
        package.insert(0, parent)
    if sys.path and sys.path[0] == "":
        del sys.path[0]
    sys.path[:0] = [own] if root == own else [own, root]
    sys.argv = [file]
    if package:
        importlib.import_module(".".join(package))
    full_name = ".".join([*package, stem])
    module = sys.modules.get(full_name)
    if module is not None and getattr(module, "__file__", None) != file:
        # A module of Python's own has the name.
        module, full_name = None, f"_{full_name}"
    if module is None:
        spec = importlib.util.spec_from_file_location(full_name, file, loader=Loader(full_name, file))
        assert spec is not None and spec.loader is not None, "a loader is given"
        module = importlib.util.module_from_spec(spec)
        sys.modules[full_name] = module
        spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        found = f"has no function {name}" if function is None else f"has a {type(function).__name__} as {name}, not a function"
        raise _Unloadable(f"{os.path.basename(file)} {found}")
    return function  # type: ignore[no-any-return]


def _unloadable(problem: BaseException, file: str) -> str:
    """What is wrong with a file, with the line that raised it."""
    import os
    import traceback

    if isinstance(problem, _Unloadable):
        return str(problem)
    text = reason(problem)
    own = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
    # Python names the line of what it cannot read.
    if own and not isinstance(problem, SyntaxError):
        text += f" ({os.path.basename(file)}, line {own[-1].lineno}: {own[-1].line})"
    return f"{os.path.basename(file)} cannot be loaded: {text}"


def _plain(text: str) -> str:
    """A text without what UTF-8 does not have."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


if __name__ == "__main__":
    import sys

    main(*sys.argv[1:3])
