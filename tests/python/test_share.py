"""Work that is shared out: real Dask workers, executors of the standard library, workers that die, and what is refused."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import logistic
from studies import ended, small

import twostep as ts
from twostep import _share

Make = Callable[..., ts.Study]

# Nothing of Dask may take longer.
LIMIT = 120.0


def until(what: str, holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.02)


def slow(omega: float) -> float:
    """The logistic function, which says in a file for what it was called, and takes its time."""
    with open(os.environ["TWOSTEP_TEST_CALLS"], "a", encoding="utf-8") as calls:
        calls.write(f"{omega!r} {os.getpid()}\n")
    time.sleep(0.02)
    return 1.0 / (1.0 + math.exp(-5.0 * omega))


class Cluster:
    """A scheduler and workers of Dask, each a process of its own on loopback."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._file = folder / "scheduler.json"
        self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(self._file))
        until("the scheduler", self._file.exists)

    def _start(self, kind: str, *options: str) -> subprocess.Popen[str]:
        # Functions of this file are found by workers as well.
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        command = [sys.executable, "-m", "distributed.cli.dask_" + kind, *options]
        with open(self._folder / f"{kind}.log", "a", encoding="utf-8") as log:
            process = subprocess.Popen(command, cwd=self._folder, env=environment, text=True, stdout=log, stderr=log)
        return self._stack.enter_context(ended(process, LIMIT))

    def worker(self, **options: str) -> subprocess.Popen[str]:
        """A worker of one thread, without a nanny that would start it again."""
        return self._start(
            "worker", "--scheduler-file", str(self._file), "--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"
        )

    def client(self) -> Any:
        distributed = pytest.importorskip("distributed")
        return self._stack.enter_context(distributed.Client(scheduler_file=str(self._file), set_as_default=False))

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("distributed", reason="Dask is an extra")
    folder = tmp_path / "dask"
    folder.mkdir()
    made = Cluster(folder)
    try:
        yield made
    finally:
        made.close()


def campaign(simulator: Any = logistic, **calibrate: Any) -> ts.Study:
    """A small calibration, of which every T-trial has truths of its own."""
    given = {"t_trials": 12, "i_trials": 2, **calibrate}
    return small(
        simulator=simulator,
        design=ts.Sobol(8),
        surrogate=ts.PCE(degree=3),
        measurements=ts.Measurements({"y": [0.55, 0.6, 0.58]}, noise=ts.Normal(sd=0.1)),
        infer=ts.Infer(methods=["e-lik", "point"], draws=200),
        calibrate=ts.Calibrate(**given),
        name="campaign",
    )


def files(folder: Path) -> dict[str, bytes]:
    """What a calibration left: its trials, in order, and their statistics."""
    names = [*folder.glob("calibration.*"), *folder.glob("trials/*.jsonl")]
    assert len(names) == 3
    return {path.name: path.read_bytes() for path in names}


def journal(folder: Path) -> list[dict[str, Any]]:
    """Trials that are kept, of whole lines."""
    lines = [line for path in folder.glob("trials/*.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]
    return [trial for trial in map(json.loads, lines) if "t_trial" in trial]


def test_a_dask_worker_is_killed_and_all_is_as_by_one_process(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("TWOSTEP_TEST_CALLS", str(calls))
    local = campaign(slow).save(tmp_path / "local")
    local.calibrate()
    calls.unlink()

    workers = [cluster.worker(), cluster.worker()]
    client = cluster.client()
    client.wait_for_workers(2, timeout=60)
    study = campaign(slow).save(tmp_path / "shared")
    stored: list[dict[str, Any]] = []

    def kill() -> None:
        until("a third of the trials", lambda: len(journal(tmp_path / "shared")) >= 4 * 2 * 2)
        busy = calls.read_text(encoding="utf-8").split()[-1]
        victim = next(worker for worker in workers if str(worker.pid) == busy)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        stored.extend(journal(tmp_path / "shared"))

    killer = threading.Thread(target=kill)
    killer.start()
    calibration = study.calibrate(executor=client)
    killer.join()
    assert [worker.poll() is None for worker in workers].count(False) == 1, "one was killed"
    assert 0 < len(stored) < 12 * 2 * 2, "in the middle"
    assert len(calibration.trials) == 12 * 2 * 2
    assert files(tmp_path / "shared") == files(tmp_path / "local")
    # What was stored when the worker died was not computed again: each of its truths was given to the simulator once.
    times = Counter(float(line.split()[0]) for line in calls.read_text(encoding="utf-8").splitlines())
    truths = {trial["ranked"][0]["truth"] for trial in stored}
    assert truths and all(times[truth] == 1 for truth in truths)
    # And a second call computes nothing.
    before = calls.read_bytes()
    study.calibrate(executor=client)
    assert calls.read_bytes() == before


def test_dask_makes_the_runs_of_a_command(cluster: Cluster, tmp_path: Path) -> None:
    cluster.worker()
    client = cluster.client()
    client.wait_for_workers(1, timeout=60)
    shared = commanded(tmp_path).save(tmp_path / "shared")
    runs = shared.simulate(executor=client)
    local = commanded(tmp_path).save(tmp_path / "local").simulate()
    assert list(runs.state) == ["done"] * 7 + ["failed"]
    assert runs[["run", "omega", "state", "y"]].equals(local[["run", "omega", "state", "y"]])
    (tmp_path / "mended").touch()
    runs = shared.simulate(executor=client, only="failed")
    assert list(runs.state) == ["done"] * 8 and list(runs.attempts) == [1] * 7 + [2]
    # Functions of a program go one by one as well, and what a dead worker had is done by another.
    runs = small(simulator=logistic).simulate(executor=client)
    assert list(runs.y) == [logistic(omega) for omega in runs.omega]


def commanded(folder: Path) -> ts.Study:
    """Eight runs of a command, of which the last fails until a file is there."""
    script = folder / "model.py"
    script.write_text(
        f"""
import json, pathlib, sys
omega = json.load(open(sys.argv[1]))["omega"]
if sys.argv[3] == "8" and not pathlib.Path({str(folder / "mended")!r}).exists():
    sys.exit("no convergence")
open(sys.argv[2], "w").write(repr(omega ** 2))
""",
        encoding="utf-8",
    )
    command = [sys.executable, str(script), "{params}", "{results}", "{id}"]
    return small(simulator=ts.Command(command), design=ts.Sobol(8))


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_any_executor_does_trials(tmp_path: Path, kind: Callable[[int], Executor]) -> None:
    campaign().save(tmp_path / "local").calibrate()
    study = campaign().save(tmp_path / "shared")
    with kind(2) as executor:
        # A campaign may be enlarged, and go on with others.
        study.calibrate(t_trials=5, executor=executor)
        study.calibrate(t_trials=12, executor=executor)
    assert files(tmp_path / "shared") == files(tmp_path / "local")


def dying(omega: float) -> float:
    """Ends the process that calls it, once a file is there."""
    if os.path.exists(os.environ["TWOSTEP_TEST_CALLS"]):
        os._exit(1)
    return logistic(omega)


def test_a_pool_that_breaks_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSTEP_TEST_CALLS", str(tmp_path / "deadly"))
    study = campaign(dying).save(tmp_path / "shared")
    with ProcessPoolExecutor(1) as executor:
        study.calibrate(t_trials=4, executor=executor)
        (tmp_path / "deadly").touch()
        with pytest.raises(ts.FailedError, match="a process of the executor ended.*what is finished is kept"):
            study.calibrate(t_trials=12, executor=executor)
    assert {trial["t_trial"] for trial in journal(tmp_path / "shared")} == set(range(4))
    (tmp_path / "deadly").unlink()
    assert len(study.calibrate(t_trials=12).trials) == 12 * 2 * 2


class KilledWorker(Exception):
    """As Dask calls what a task raises whose workers died again and again."""


class Losing(Executor):
    """Does tasks at once, but loses the first few."""

    def __init__(self, losses: int) -> None:
        self.losses, self.tasks = losses, 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if fn is _share.do_units:
            self.tasks += 1
            if self.tasks <= self.losses:
                future.set_exception(KilledWorker("out of memory"))
                return future
        future.set_result(fn(*args, **kwargs))
        return future


def test_what_is_lost_again_and_again_ends_with_its_name() -> None:
    executor = Losing(3)
    assert len(campaign(t_trials=3).calibrate(executor=executor).trials) == 3 * 2 * 2
    assert executor.tasks > 3
    with pytest.raises(ts.FailedError, match=r"T-trial \d was lost with its worker 4 times: out of memory"):
        campaign(t_trials=1).calibrate(executor=Losing(4))


def test_tasks_are_as_large_as_scheduling_asks_for() -> None:
    executor = Losing(0)
    campaign(t_trials=120, i_trials=1).calibrate(executor=executor)
    # Trials of a few milliseconds go together, but never so many that the last ones of a worker are waited for.
    assert 8 <= executor.tasks < 60


def test_what_cannot_be_shared_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ts.InvalidError, match="int is no executor.*give a Dask client"):
        campaign().calibrate(executor=3)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(ts.InvalidError, match="no work that could be shared out"):
            campaign(ts.Builtin("logistic")).simulate(executor=executor)
        with pytest.raises(ts.InvalidError, match="a single run is not shared out"):
            commanded(tmp_path).simulate(executor=executor, only=3)
        lock = threading.Lock()

        def guarded(omega: float) -> float:
            with lock:
                return logistic(omega)

        with pytest.raises(ts.InvalidError, match="the study cannot be sent to other processes.*lock"):
            campaign(guarded).calibrate(executor=executor)


def test_workers_of_another_version_are_refused() -> None:
    payload = _share.payload_of(campaign())
    with pytest.raises(ts.InvalidError, match="and the study was sent by 0.0.1.*install one version everywhere") as refused:
        _share.do_units(payload, "0.0.1", "trials", [(0, 0)], 1)
    # It travels back to who asked.
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_workers_send_what_belongs_to_the_study() -> None:
    study, other = campaign(), small(design=ts.Sobol(8), seed=12)
    made = _share.do_units(_share.payload_of(other), ts.__version__, "trials", [(0, 0)], None)
    collector = study._project.collector()
    try:
        with pytest.raises(ts.InvalidError, match="worker 7.*is of another study"):
            collector.keep("worker 7", made.lines)
    finally:
        collector.close()
