"""Work that is shared out: to a Dask client, or to any executor of concurrent.futures."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
import pickle
import platform
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Protocol, Union

from . import _twostep
from ._errors import Error, FailedError, InvalidError
from ._progress import Progress

if TYPE_CHECKING:
    from ._stages import Stages
    from ._study import Study


class DaskClient(Protocol):
    """What is asked of a Dask client."""

    def scatter(self, data: Any, **options: Any) -> Any: ...
    def get_executor(self, **options: Any) -> Executor: ...
    def nthreads(self) -> dict[str, int]: ...


AnyExecutor = Union[Executor, DaskClient]

# Name and parts of the simulator's function, and the fingerprints of surrogates and methods that are functions.
Fingerprints = tuple[Optional[tuple[str, list[tuple[str, str]]]], list[str], list[str]]

# Threads that a task uses: a number, those that its Dask worker has, or, in this process, those that there are.
Threads = Union[int, str, None]

# A unit of work: setting and T-trial, or the number of a run.
Unit = Union[int, tuple[int, int]]

# Seconds that a task is to take at least, and how many times its own cost: so that scheduling stays below 2 %.
_LEAST_SECONDS, _LEAST_FACTOR = 0.3, 50.0
# Tasks that wait for each thread of a worker, besides the one that it does.
_WAITING = 1
# How often units are handed out anew whose workers died.
_TRIES = 3
# A task is given to a second worker where it takes so many times what was expected, and so many seconds more.
_SLOW_FACTOR, _SLOW_SECONDS = 5.0, 30.0
# Payloads that a process keeps studies of.
_MOST_STUDIES = 4


@dataclass(frozen=True)
class Payload:
    """What workers know of a study: itself, and what its trials need of its results."""

    version: str
    sections: dict[str, Any]
    file: str
    base: Path
    fingerprints: Fingerprints
    # Path inside the folder of results, and content.
    files: dict[str, bytes]


def payload_of(study: Stages) -> bytes:
    """A study as bytes for workers."""
    files = {}
    with tempfile.TemporaryDirectory(prefix="twostep-") as scratch:
        study._project.copy_for_workers(scratch)
        for path in sorted(Path(scratch).rglob("*")):
            if path.is_file():
                files[str(path.relative_to(scratch))] = path.read_bytes()
    sections, base = study._sections, study._base.resolve()
    payload = Payload(_twostep.__version__, sections, study._file, base, study._fingerprints(), files)
    try:
        import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        dumps = pickle.dumps
    else:
        dumps = cloudpickle.dumps
    try:
        return bytes(dumps(payload))
    except Exception as problem:
        found = f"the study cannot be sent to other processes: {problem}"
        repair = "define its functions in a module, or `pip install cloudpickle`"
        raise InvalidError(found, "executor", repair) from problem


class _Studies(threading.local):
    """Studies that this thread of a worker has opened, by what they were sent as: so each is opened once."""

    def __init__(self) -> None:
        self.opened: dict[str, Study] = {}


_studies = _Studies()


def _study(payload: bytes) -> Study:
    digest = hashlib.sha256(payload).hexdigest()
    opened = _studies.opened
    if digest not in opened:
        from ._study import Study

        if len(opened) >= _MOST_STUDIES:
            opened.pop(next(iter(opened)))
        opened[digest] = Study._of_payload(pickle.loads(payload))
    return opened[digest]


@dataclass(frozen=True)
class Made:
    """What a task gave."""

    lines: bytes
    seconds: float
    worker: str


def do_units(payload: bytes, version: str, kind: str, units: Sequence[Any], threads: Threads) -> Made:
    """What a worker does: units of a study's work."""
    if version != _twostep.__version__:
        found = f"a worker has version {_twostep.__version__} of twostep, and the study was sent by {version}"
        raise InvalidError(found, "executor", "install one version everywhere")
    if threads == "worker's":
        from distributed import get_worker

        threads = get_worker().state.nthreads
    if isinstance(threads, int):
        # Only the first task of a process can say it.
        with contextlib.suppress(Error):
            _twostep.set_threads(threads)
    # Whoever waits for them shows how far all of them are.
    study, start = _study(payload), time.perf_counter()
    host = study._host(quiet=True)
    project = study._project
    work = project.try_units if kind == "trials" else project.make_units
    lines = host.do(lambda host: work(host, list(units)))
    return Made(lines, time.perf_counter() - start, f"{platform.node()}:{os.getpid()}")


def do_nothing() -> None:
    """A task that costs what scheduling costs."""


class Pool:
    """Workers of an executor, or of a Dask client."""

    def __init__(self, executor: AnyExecutor) -> None:
        self._client: Optional[DaskClient] = None
        if isinstance(executor, Executor):
            self.executor: Executor = executor
        elif hasattr(executor, "scatter") and hasattr(executor, "get_executor"):
            self._client = executor
            self.executor = executor.get_executor(pure=False)
        else:
            found = f"{type(executor).__name__} is no executor"
            raise InvalidError(found, "executor", "give a Dask client, or an executor of concurrent.futures")

    def size(self) -> int:
        """Threads of all workers that there are now."""
        if self._client is not None:
            return sum(self._client.nthreads().values())
        return getattr(self.executor, "_max_workers", None) or os.cpu_count() or 1

    def threads(self) -> Threads:
        """Threads that each task is to use."""
        if self._client is not None:
            return "worker's"
        if isinstance(self.executor, ProcessPoolExecutor):
            return max(1, (os.cpu_count() or 1) // self.size())
        return None

    def share(self, payload: bytes) -> Any:
        """The payload so that it travels once to each worker, where the executor can do that."""
        return payload if self._client is None else self._client.scatter(payload, broadcast=self.size() > 0)

    def submit(self, *call: Any) -> Future[Any]:
        """Hands out a call."""
        return self.executor.submit(*call)

    def cost(self) -> float:
        """Seconds that scheduling a task takes: the median of a few that do nothing."""
        times = []
        for _ in range(5):
            start = time.perf_counter()
            self.submit(do_nothing).result()
            times.append(time.perf_counter() - start)
        return sorted(times)[2]


@dataclass
class _Task:
    units: list[Unit]
    since: float = field(default_factory=time.monotonic)
    again: bool = False


def share_out(study: Stages, pool: Pool, kind: str, units: Sequence[Unit]) -> None:
    """Has units of a study's work, trials or runs, done by workers, and keeps what comes of them at once."""
    if not units:
        return
    payload = payload_of(study)
    progress, what = Progress(), "T-trials" if kind == "trials" else "runs"
    collector = study._project.collector()
    try:
        _Campaign(pool, payload, kind, list(units), collector, progress, what).run()
    finally:
        collector.close()
        progress.close()


class _Campaign:
    """Units that are handed out in tasks, until all of them are kept."""

    def __init__(
        self,
        pool: Pool,
        payload: bytes,
        kind: str,
        units: list[Unit],
        collector: _twostep.Collector,
        progress: Progress,
        what: str,
    ) -> None:
        self._pool, self._payload, self._shared = pool, payload, pool.share(payload)
        self._kind, self._waiting, self._total = kind, deque(units), len(units)
        self._collector, self._progress, self._what = collector, progress, what
        self._tasks: dict[Future[Any], _Task] = {}
        self._kept: set[Unit] = set()
        self._died: dict[Unit, int] = {}
        # Median of what a unit took so far.
        self._seconds: list[float] = []
        self._least = max(_LEAST_SECONDS, _LEAST_FACTOR * pool.cost())

    def run(self) -> None:
        """Until all is kept; what is under way is called off where that cannot be."""
        try:
            self._progress.report(self._what, 0, self._total)
            while len(self._kept) < self._total:
                self._hand_out()
                done, _ = concurrent.futures.wait(self._tasks, timeout=1.0, return_when=concurrent.futures.FIRST_COMPLETED)
                for future in done:
                    self._take(future)
                self._help_slow()
        finally:
            for future in self._tasks:
                future.cancel()

    def _chunk(self, workers: int) -> int:
        """Units of a task: one until it is known how long that takes; runs of a simulator are tasks of their own."""
        if not self._seconds or self._kind == "runs":
            return 1
        usual = sorted(self._seconds)[len(self._seconds) // 2]
        # So many tasks for each worker are left that none waits long for the last one.
        most = max(1, len(self._waiting) // (4 * workers))
        return min(most, max(1, round(self._least / max(usual, 1e-6))))

    def _hand_out(self) -> None:
        workers = max(1, self._pool.size())
        while self._waiting and len(self._tasks) < (1 + _WAITING) * workers:
            size = min(self._chunk(workers), len(self._waiting))
            self._submit(_Task([self._waiting.popleft() for _ in range(size)]), self._shared)

    def _submit(self, task: _Task, payload: Any) -> None:
        call = (do_units, payload, _twostep.__version__, self._kind, task.units, self._pool.threads())
        try:
            self._tasks[self._pool.submit(*call)] = task
        except BrokenExecutor as problem:
            raise _broken(problem) from problem

    def _take(self, future: Future[Any]) -> None:
        task = self._tasks.pop(future)
        problem = CancelledError() if future.cancelled() else future.exception()
        if problem is None:
            made: Made = future.result()
            self._collector.keep(f"worker {made.worker}", made.lines)
            if not task.again:
                self._seconds.append(made.seconds / len(task.units))
            self._kept.update(task.units)
            self._progress.report(self._what, len(self._kept), self._total)
        elif isinstance(problem, BrokenExecutor):
            raise _broken(problem) from problem
        elif isinstance(problem, Error) or not _is_lost(problem):
            raise _explained(problem) from problem
        else:
            self._give_again(task, problem)

    def _give_again(self, task: _Task, problem: BaseException) -> None:
        """Hands out units whose workers died: each by itself, so that one which kills its worker does not take others along."""
        for unit in task.units:
            if unit in self._kept:
                continue
            self._died[unit] = self._died.get(unit, 0) + 1
            if self._died[unit] > _TRIES:
                found = f"{self._name(unit)} was lost with its worker {_TRIES + 1} times: {problem or type(problem).__name__}"
                repair = "what is finished is kept; look into the worker's log (out of memory?), and call again to go on"
                raise FailedError(found, "executor", repair) from problem
            # What was sent to workers may have died with them.
            self._submit(_Task([unit], again=True), self._payload)

    def _name(self, unit: Unit) -> str:
        return f"run {unit + 1}" if isinstance(unit, int) else f"T-trial {unit[1] + 1}"

    def _help_slow(self) -> None:
        """Gives what takes far longer than others to a second worker, once nothing else waits: the first answer counts, and both are the same."""
        if self._waiting or not self._seconds or self._kind == "runs":
            return
        usual, now = sorted(self._seconds)[len(self._seconds) // 2], time.monotonic()
        idle = self._pool.size() - len(self._tasks)
        limit = [(task, _SLOW_FACTOR * usual * len(task.units) + _SLOW_SECONDS) for task in self._tasks.values()]
        slow = [task for task, seconds in limit if not task.again and now - task.since > seconds]
        for task in slow[: max(0, idle)]:
            task.again = True
            self._submit(_Task(list(task.units), again=True), self._payload)


def _is_lost(problem: BaseException) -> bool:
    """Whether a task failed because its worker did, or what was sent to it was lost."""
    names = {kind.__name__ for kind in type(problem).__mro__}
    return bool(names & {"KilledWorker", "CancelledError", "FutureCancelledError", "FutureLost", "CommClosedError", "NoValidWorkerError"})


def _broken(problem: BaseException) -> FailedError:
    found = f"a process of the executor ended: {problem}"
    return FailedError(found, "executor", "what is finished is kept; start a new executor, and call again to go on")


def _explained(problem: BaseException) -> BaseException:
    """What a task raised, where that is no error of this package."""
    if isinstance(problem, ModuleNotFoundError) and (problem.name or "").split(".")[0] == "twostep":
        return InvalidError("twostep is not installed on the workers", "executor", "install it there, in the same version as here")
    if isinstance(problem, Error):
        return problem
    found = f"a worker raised {type(problem).__name__}: {problem}"
    return FailedError(found, "executor", "what is finished is kept; correct that, and call again to go on")
