"""The user's function: what it is called, what it is known by, and its calls in this thread, in others, or on an executor."""

from __future__ import annotations

import functools
import hashlib
import inspect
import pickle
import queue
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, Optional, TypeVar, Union

from . import _twostep
from ._errors import FailedError, InvalidError, SimulatorError
from ._progress import Progress
from ._worker import Wanted, mismatch, readings, reason

Done = TypeVar("Done")


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called in tables."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def place_of(function: Callable[..., Any]) -> Union[tuple[Path, str], str]:
    """File and name by which the shell can find a function again, or the reason why it cannot."""
    if not isinstance(function, types.FunctionType):
        return f"it is no function of a module, but {type(function).__name__}"
    name = function.__qualname__
    if function.__name__ == "<lambda>":
        return "it is a lambda, which has no name"
    if "." in name:
        return f"it is defined within {name.rsplit('.', 1)[0].removesuffix('.<locals>')}, which nobody can import"
    file = Path(function.__code__.co_filename)
    if not file.is_file() or file.suffix != ".py":
        return "it was typed into a notebook or an interpreter, not into a file"
    if function.__module__ == "__main__":
        if "__name__" not in file.read_text(encoding="utf-8", errors="replace"):
            return f'{file.name} would run again as a whole; put its work below `if __name__ == "__main__":`'
    elif getattr(sys.modules.get(function.__module__), name, None) is not function:
        return f"{file.name} has another {name}"
    return file.resolve(), name


def fingerprint_of(function: Callable[..., Any]) -> tuple[str, list[tuple[str, str]]]:
    """Name of a function, and everything that decides what it gives, as far as can be known."""
    place = place_of(function)
    if not isinstance(place, str):
        file, name = place
        return f"{file.name}:{name}", _twostep.python_parts(str(file), name)
    name = name_of(function)
    return name, [("simulator.python", name), (f"source of {name}", _digest(function))]


def _digest(function: Any) -> str:
    state = hashlib.sha256()
    for part in _parts(function, 0):
        state.update(part.encode("utf-8", errors="replace"))
        state.update(b"\0")
    return state.hexdigest()


def _parts(function: Any, depth: int) -> list[str]:
    """Source, defaults, and values of what it captures or finds in its module; objects that only have an address are left out."""
    if depth > 4:
        return []
    if isinstance(function, functools.partial):
        bound = [repr(function.args), repr(sorted(function.keywords.items()))]
        return _parts(function.func, depth + 1) + bound
    if isinstance(function, types.MethodType):
        return _parts(function.__func__, depth + 1) + _values(getattr(function.__self__, "__dict__", {}), depth)
    if isinstance(function, types.FunctionType):
        try:
            source = inspect.getsource(function)
        except (OSError, TypeError):
            code = function.__code__
            source = f"{code.co_code.hex()} {code.co_names} {[c for c in code.co_consts if not inspect.iscode(c)]}"
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        captured = {name: cell.cell_contents for name, cell in cells.items() if _is_filled(cell)}
        found = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
        return [source, repr(function.__defaults__), repr(function.__kwdefaults__)] + _values({**found, **captured}, depth)
    if hasattr(function, "__dict__") and not isinstance(function, type):
        return _parts(type(function).__call__, depth + 1) + _values(vars(function), depth)
    return [repr(function)]


def _names(code: types.CodeType) -> set[str]:
    """Names that a function looks up, those of functions within it among them."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*(_names(own) for own in inner))


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def _values(values: dict[str, Any], depth: int) -> list[str]:
    out = []
    for name, value in sorted(values.items()):
        if isinstance(value, types.FunctionType):
            out += [name, *_parts(value, depth + 1)]
        elif hasattr(value, "tobytes") and not isinstance(value, type):
            out += [name, hashlib.sha256(value.tobytes()).hexdigest()]
        elif not isinstance(value, types.ModuleType) and " at 0x" not in repr(value):
            out += [name, repr(value)]
    return out


def check_names(function: Callable[..., Any], inputs: list[str]) -> None:
    """Refuses a function that cannot be called with these names, before any run."""
    found = mismatch(function, name_of(function), inputs)
    if found is not None:
        repair = "name its arguments like the study's unknowns, conditions and constants"
        raise InvalidError(found, "simulator", repair)


class Threads:
    """A few threads that call functions, and that nothing waits for at the end of the program."""

    def __init__(self, workers: int) -> None:
        self._jobs: queue.SimpleQueue[Optional[Callable[[], None]]] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def submit(self, job: Callable[[], None]) -> None:
        """Does a job as soon as a thread is free."""
        self._jobs.put(job)

    def close(self) -> None:
        """Lets the threads end once they are free."""
        for _ in self._threads:
            self._jobs.put(None)


class Host:
    """What the library asks of Python while it works: calls of the user's function, and to show how far it is."""

    def __init__(
        self,
        function: Optional[Callable[..., Any]] = None,
        workers: int = 1,
        executor: Optional[Executor] = None,
        quiet: bool = False,
    ) -> None:
        self._function = function
        self._executor = executor
        self._threads: Optional[Threads] = None
        self._workers = workers
        self._progress = Progress(not quiet)
        self._broken: Optional[BrokenExecutor] = None
        self._failures: list[tuple[dict[str, float], BaseException]] = []
        if function is not None and isinstance(executor, ProcessPoolExecutor):
            try:
                pickle.dumps(function)
            except Exception as problem:
                repair = "define it in a module, or leave out the executor"
                raise InvalidError(f"{name_of(function)} cannot be sent to other processes", "executor", repair) from problem

    def submit(self, run: int, inputs: dict[str, float], wanted: list[Wanted], reply: _twostep.Reply) -> None:
        """Makes a run: now, or where there are threads or an executor, as soon as there is room."""
        function = self._function
        assert function is not None, "only a study with a function asks for runs"
        if self._executor is not None:
            future = self._executor.submit(function, **inputs)
            future.add_done_callback(lambda done: self._finish(done, inputs, wanted, reply))
            return
        call = functools.partial(function, **inputs)
        if self._workers > 1:
            if self._threads is None:
                self._threads = Threads(self._workers)
            self._threads.submit(lambda: self._make(call, inputs, wanted, reply))
        else:
            self._make(call, inputs, wanted, reply)

    def _make(
        self, result: Callable[[], Any], inputs: dict[str, float], wanted: list[Wanted], reply: _twostep.Reply
    ) -> None:
        """Replies with what the function returns or raises."""
        try:
            values = readings(result(), wanted)
        except (Exception, SystemExit) as problem:
            self._fail(problem, inputs, reply)
        except BaseException:
            reply.interrupted()
            if threading.current_thread() is threading.main_thread():
                raise
        else:
            reply.done(values)

    def _finish(
        self, future: Future[Any], inputs: dict[str, float], wanted: list[Wanted], reply: _twostep.Reply
    ) -> None:
        """Replies with what an executor came to."""
        problem = None if future.cancelled() else future.exception()
        if isinstance(problem, BrokenExecutor):
            # The run was not made, and no other one can be.
            self._broken = problem
            reply.interrupted()
        else:
            self._make(future.result, inputs, wanted, reply)

    def _fail(self, problem: Union[Exception, SystemExit], inputs: dict[str, float], reply: _twostep.Reply) -> None:
        self._failures.append((inputs, problem))
        reply.failed(reason(problem))

    def progress(self, what: str, done: int, total: int) -> None:
        """Shows how far the work is."""
        self._progress.report(what, done, total)

    def notice(self, text: str) -> None:
        """Shows a line."""
        self._progress.note(text)

    def stop(self) -> None:
        """The work was told to stop: nothing more will be asked for."""
        self._progress.note("stopping; what is finished is kept")
        self._end_threads()

    def _end_threads(self) -> None:
        if self._threads is not None:
            self._threads.close()

    def do(self, work: Callable[[Host], Done]) -> Done:
        """Does long work, the only one of this host."""
        try:
            return work(self)
        finally:
            self.close()

    def close(self) -> None:
        """After the work."""
        self._progress.close()
        self._end_threads()

    def explain(self, error: BaseException) -> BaseException:
        """What the library refuses, with the user's own exception as its cause where runs failed."""
        if self._broken is not None and isinstance(error, KeyboardInterrupt):
            found = f"a process of the executor ended: {self._broken}"
            broken = FailedError(found, "simulate", "finished runs are kept; start a new executor, and simulate again")
            broken.__cause__ = self._broken
            return broken
        if not isinstance(error, FailedError) or not self._failures:
            return error
        inputs, problem = self._failures[-1]
        at = ", ".join(f"{name} = {value:g}" for name, value in inputs.items())
        explained = SimulatorError(f"{error.found} (the last one that failed: {at})", error.place, error.repair)
        explained.__cause__ = problem
        return explained
