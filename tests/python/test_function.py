"""A Python function as the simulator: what it may return, what happens when it fails, is slow, or is interrupted."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from conftest import logistic
from studies import ended

import twostep as ts
from twostep import _twostep
from twostep._function import Host

Make = Callable[..., ts.Study]
TIMES = [1.0, 2.0, 3.0]


def test_every_kind_of_number_is_taken(make_study: Make) -> None:
    kinds: list[Callable[[float], Any]] = [
        logistic,
        lambda omega: np.float32(0.5),
        lambda omega: np.array([[omega]]),
        lambda omega: {"y": omega, "note": "not read"},
        lambda omega: (omega,),
        lambda omega: pd.Series([omega]),
        lambda omega: xr.DataArray(omega),
        lambda omega: 1,
    ]
    for kind in kinds:
        runs = make_study(kind).simulate()
        assert list(runs.state) == ["done"] * 12
        assert [float(kind(omega)["y"]) if isinstance(kind(omega), dict) else float(np.asarray(kind(omega)).ravel()[0])
                for omega in runs.omega] == list(runs.y)


def series_study(make_study: Make, function: Callable[..., Any], **output: Any) -> ts.Study:
    return make_study(
        function,
        outputs={"y": ts.Output(over={"t": (1, 3)}, **output)},
        measurements=ts.Measurements({"t": [2.0], "y": [0.2]}, noise=ts.Normal(sd=0.1)),
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda omega: ts.Series(omega * np.array(TIMES), over={"t": TIMES}),
        lambda omega: {"y": omega * np.array(TIMES), "t": np.array(TIMES)},
        lambda omega: {"y": ts.Series([omega * t for t in TIMES], over={"t": tuple(TIMES)})},
    ],
)
def test_a_series_brings_its_coordinate(make_study: Make, function: Callable[..., Any]) -> None:
    runs = series_study(make_study, function).simulate()
    for omega, y in zip(runs.omega, runs.y):
        assert list(y.index) == TIMES and list(y) == [omega * t for t in TIMES]


def test_a_series_without_a_coordinate_takes_that_of_the_study(make_study: Make) -> None:
    runs = series_study(make_study, lambda omega: [omega * t for t in TIMES], at=TIMES).simulate()
    assert list(runs.y[3].index) == TIMES


def test_a_series_is_trained_by_its_components(make_study: Make) -> None:
    study = series_study(make_study, lambda omega: [omega * t for t in TIMES], at=TIMES)
    fit, post = study.train(), study.infer(methods=["e-lik"])
    # omega times the coordinate has a single component, and is measured as 0.2 at 2.
    assert {"pc1.c[1]", "pc1.sigma_a"} <= set(fit.summary().parameter)
    assert not any(name.startswith("pc2") for name in fit.summary().parameter)
    row = post.summary().set_index("quantity").loc["omega"]
    assert abs(row["mean"] - 0.1) < row["sd"]
    assert len(fit.loo) == 12 * len(TIMES)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ([1.0, 2.0], "returned 2 values of `y`, which is a single number"),
        ("high", "returned str 'high' as `y`, which is no number"),
        (None, "returned NoneType None as `y`, which is no number"),
        ({"x": 1.0}, "returned no `y`; the dict holds x"),
        (float("nan"), "there is no value of `y`"),
        (float("inf"), "there is no value of `y`"),
        (1j, "returned complex 1j as `y`, which is no number"),
    ],
)
def test_a_wrong_result_is_a_failed_run_that_says_so(make_study: Make, result: Any, words: str) -> None:
    study = make_study(lambda omega: result if omega > 0.7 else omega)
    runs = study.simulate()
    failed = runs[runs.omega > 0.7]
    assert len(failed) and list(runs.state) == ["failed" if omega > 0.7 else "done" for omega in runs.omega]
    assert all(words in reason for reason in failed.reason), list(failed.reason)


def raising(omega: float) -> float:
    if omega > 0.7:
        raise ArithmeticError("no convergence")
    if omega < -0.9:
        sys.exit(3)
    return omega


@pytest.mark.parametrize("workers", [1, 4])
def test_exceptions_are_failed_rows_and_the_others_go_on(make_study: Make, workers: int) -> None:
    runs = make_study(raising).simulate(workers=workers)
    assert dict(zip(runs.omega, runs.state)) == {
        omega: "done" if -0.9 <= omega <= 0.7 else "failed" for omega in runs.omega
    }
    reasons = dict(zip(runs.omega, runs.reason))
    assert {reason for omega, reason in reasons.items() if omega > 0.7} == {"ArithmeticError: no convergence"}
    assert {reason for omega, reason in reasons.items() if omega < -0.9} == {"SystemExit: 3"}


def test_what_the_function_raised_is_the_cause_with_its_inputs(make_study: Make) -> None:
    def broken(omega: float) -> float:
        raise KeyError("viscosity")

    study = make_study(broken)
    with pytest.raises(ts.SimulatorError, match="every run failed.*KeyError.*omega = ") as raised:
        study.simulate()
    assert isinstance(raised.value.__cause__, KeyError)
    # Nothing is lost, and a corrected function is asked about.
    assert list(study.runs().state) == ["failed"] * 12


def test_abort_stops_at_the_first_failure(make_study: Make) -> None:
    def high(omega: float) -> float:
        return omega if omega < 0.7 else math.log(-1.0)

    study = make_study(ts.Function(high, on_failure="abort"))
    with pytest.raises(ts.SimulatorError, match="on_failure") as raised:
        study.simulate()
    assert isinstance(raised.value.__cause__, ValueError)
    assert "done" in set(study.runs().state)


def test_a_failing_run_is_tried_again(make_study: Make) -> None:
    tried: dict[float, int] = {}

    def flaky(omega: float) -> float:
        tried[omega] = tried.get(omega, 0) + 1
        if tried[omega] < 3:
            raise OSError("licence server is busy")
        return omega

    runs = make_study(ts.Function(flaky, on_failure="retry", attempts=3, wait=0.001)).simulate()
    assert list(runs.state) == ["done"] * 12 and set(tried.values()) == {3}


def test_four_workers_call_at_once_and_give_what_one_gives(make_study: Make) -> None:
    meeting = threading.Barrier(4, timeout=60)

    def together(omega: float) -> float:
        meeting.wait()
        return logistic(omega)

    # Four must be inside at the same time, or the barrier breaks and the run fails.
    several = make_study(together).simulate(workers=4)
    single = make_study(logistic).simulate()
    pd.testing.assert_frame_equal(several[["omega", "state", "y"]], single[["omega", "state", "y"]])


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_any_executor_makes_runs(make_study: Make, kind: Any) -> None:
    with kind(2) as executor:
        runs = make_study(logistic).simulate(executor=executor, workers=2)
    assert list(runs.y) == [logistic(omega) for omega in runs.omega]


def test_a_function_that_other_processes_cannot_have_is_refused(make_study: Make) -> None:
    with ProcessPoolExecutor(2) as executor, pytest.raises(ts.InvalidError, match="cannot be sent to other processes"):
        make_study(lambda omega: omega).simulate(executor=executor)


def die(omega: float) -> float:
    if omega > 0.5:
        os._exit(1)
    return omega


def test_a_process_that_dies_loses_no_finished_run(make_study: Make) -> None:
    study = make_study(die)
    with ProcessPoolExecutor(1) as executor, pytest.raises(Exception, match="process"):
        study.simulate(executor=executor)
    states = set(study.runs().state)
    assert "failed" not in states and "pending" in states


def test_finished_runs_are_not_repeated_and_a_changed_function_is_asked_about(make_study: Make, tmp_path: Path) -> None:
    class Calls:
        number = 0

    calls = Calls()

    def counted(omega: float, shift: float = 0.0) -> float:
        calls.number += 1
        return omega + shift

    make_study(counted).save(tmp_path / "kept.twostep").simulate()
    assert calls.number == 12
    again = make_study(counted).save(tmp_path / "kept.twostep")
    again.simulate()
    assert calls.number == 12

    def counted(omega: float, shift: float = 1.0) -> float:  # type: ignore[no-redef]
        calls.number += 1
        return omega + shift

    changed = make_study(counted, folder=tmp_path / "kept.twostep")
    with pytest.raises(ts.InvalidError, match="changed since 12 finished runs"):
        changed.simulate()
    kept = changed.simulate(changed="keep")
    assert calls.number == 12 and list(kept.y) == list(kept.omega)


def test_saving_keeps_what_is_there(make_study: Make, tmp_path: Path) -> None:
    study = make_study()
    study.simulate()
    study.save(tmp_path / "a.twostep")
    assert study.folder == tmp_path / "a.twostep" and list(study.runs().state) == ["done"] * 12
    other = make_study()
    other.simulate()
    with pytest.raises(ts.InvalidError, match="there are results already"):
        other.save(tmp_path / "a.twostep")


INTERRUPTED = """
import os, signal, sys, time
import twostep as ts

# As in a terminal: what a shell starts in the background ignores Ctrl-C, and so does what that starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

def slow(omega):
    os.write(1, b"called\\n")
    time.sleep(0.05 if omega < 0.5 else 3600)
    return omega

study = ts.Study(
    slow,
    {"omega": (-1, 1)},
    design=ts.Sobol(12),
    surrogate=ts.PCE(degree=2),
    measurements=ts.Measurements({"y": [0.1]}, noise=ts.Normal(sd=0.1)),
    folder=sys.argv[1],
)
try:
    study.simulate(workers=int(sys.argv[2]))
except KeyboardInterrupt:
    print("interrupted", *study.runs().state, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="sends the signal of Ctrl-C")
@pytest.mark.parametrize("workers", [1, 4])
def test_ctrl_c_ends_a_run_of_an_hour_and_keeps_finished_ones(tmp_path: Path, workers: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    arguments = [sys.executable, str(script), str(tmp_path / "kept.twostep"), str(workers)]
    with ended(subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        # Of the points of the sequence, the first two lie below 0.5 and the third does not: after so many calls some run is
        # finished, and some sleep for an hour.
        for _ in range(workers + 2):
            assert process.stdout.readline().strip() == "called"
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    last = out.strip().splitlines()[-1].split()
    assert process.returncode == 0 and last[0] == "interrupted", (out, err)
    assert "done" in last and "pending" in last and "failed" not in last
    assert "what is finished is kept" in err


def test_the_interpreter_is_free_while_rust_works(make_study: Make) -> None:
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.wait(0.001):
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        study = make_study(ts.Builtin("logistic"), train=ts.Train(method="nuts", draws=2000))
        before, start = ticks[0], time.monotonic()
        study.train()
        length, counted = time.monotonic() - start, ticks[0] - before
    finally:
        stop.set()
        thread.join()
    # A thread that waits for the interpreter ticks never; one on a busy machine ticks less often than it asks for.
    assert counted > length / 0.001 / 20, (counted, length)


def test_a_call_waits_for_no_beat() -> None:
    def nothing(x: float) -> float:
        return x

    # A wake-up that was missed costs a beat of 50 ms. A tenth of one on average is ten times what a call takes where others use the
    # processors, and a thousand times what it takes alone.
    assert min(_twostep.time_calls(Host(nothing), 200) / 200 for _ in range(5)) < 0.1 * 50e-3


def test_names_are_checked_before_any_run(make_study: Make) -> None:
    with pytest.raises(ts.InvalidError, match=r"<lambda>\(x\) cannot be called with omega"):
        make_study(lambda x: x)
    with pytest.raises(ts.InvalidError, match="cannot be called"):
        make_study(lambda omega, height: omega)
    make_study(lambda omega, height: omega, constants={"height": 2.0})
    make_study(lambda **inputs: inputs["omega"])
    with pytest.raises(ts.InvalidError, match="int cannot be called"):
        make_study(3)


def test_a_panic_is_an_ordinary_exception(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ts.InternalError, match="as asked for.*please report it") as raised:
        _twostep.panic(Host())
    assert isinstance(raised.value, RuntimeError) and capfd.readouterr().err == ""


def test_callables_of_every_kind_are_known_again(make_study: Make, tmp_path: Path) -> None:
    import functools

    class Model:
        def __init__(self, height: float) -> None:
            self.height = height

        def __call__(self, omega: float) -> float:
            return self.height * omega

        def run(self, omega: float) -> float:
            return self.height * omega

    def scaled(omega: float, height: float) -> float:
        return height * omega

    for number, make in enumerate(
        [Model, lambda height: Model(height).run, lambda height: functools.partial(scaled, height=height)]
    ):
        folder = tmp_path / f"{number}.twostep"
        make_study(make(2.0), folder=folder).simulate()
        make_study(make(2.0), folder=folder).simulate()
        with pytest.raises(ts.InvalidError, match="changed since"):
            make_study(make(3.0), folder=folder).simulate()


HEIGHT = 1.0


def helper(omega: float) -> float:
    return HEIGHT * omega


def test_a_name_of_the_module_counts_too(make_study: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def outer(omega: float) -> float:
        return helper(omega)

    make_study(outer, folder=tmp_path / "a.twostep").simulate()
    monkeypatch.setitem(globals(), "HEIGHT", 2.0)
    with pytest.raises(ts.InvalidError, match="changed since"):
        make_study(outer, folder=tmp_path / "a.twostep").simulate()


NUMBER = np.float64


def test_a_class_of_the_module_is_known_again(make_study: Make, tmp_path: Path) -> None:
    def rounded(omega: float) -> float:
        return float(NUMBER(omega))

    # A class has the methods of its values, but no bytes of its own.
    for _ in range(2):
        make_study(rounded, folder=tmp_path / "a.twostep").simulate()


def test_truth_is_run_by_the_function(make_study: Make) -> None:
    study = make_study(
        logistic,
        measurements=ts.Measurements(
            noise=ts.Normal(sd=0.02), synthetic=ts.Synthetic(truth={"omega": 0.3}, replicates=3)
        ),
    )
    runs = study.simulate()
    truth = runs[runs.source == "truth"]
    assert list(truth.y) == [logistic(0.3)] and list(truth.omega) == [0.3]


def test_a_script_without_a_guard_says_why_it_cannot_be_a_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import twostep as ts
            def f(omega):
                return omega
            study = ts.Study(f, {"omega": (-1, 1)}, design=ts.Sobol(4), surrogate=ts.PCE(degree=1),
                             measurements=ts.Measurements(noise=ts.Normal(sd=0.1)))
            try:
                study.to_toml("study.toml")
            except ts.InvalidError as refused:
                print(refused)
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "would run again as a whole" in done.stdout, done
