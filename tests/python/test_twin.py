"""A study as objects and as a file is the same study: the same text, the same runs, the same draws to the last bit."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from studies import ended

import twostep as ts
from twostep import _twostep

ROOT = Path(__file__).resolve().parents[2]

MODEL = """
import math
from pathlib import Path


def run(rate, t):
    with open(Path(__file__).with_name("log"), "a") as log:
        log.write(f"{rate} {t}\\n")
    return {"y": math.exp(-rate * t), "z": rate}


def series(rate):
    return {"s": [math.exp(-rate * t) for t in (1, 2, 3)], "t": [1, 2, 3]}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with a model, in which the test works."""
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("model", None)
    return tmp_path


def calls(place: Path) -> int:
    log = place / "log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def decay(simulator: Any, **further: Any) -> ts.Study:
    return ts.Study(
        simulator=simulator,
        unknowns={"rate": ts.Unknown((0.1, 1), prior=ts.Normal(0.5, 0.15))},
        conditions={"t": (1, 3)},
        outputs={"y": ts.Output(scale="log"), "z": ts.Output(noise=ts.Normal(sd=0.2))},
        design=ts.Sobol(16),
        surrogate=ts.PCE(degree=2),
        train=ts.Train(draws=50),
        measurements=ts.Measurements({"t": [1.0, 2.0, 3.0], "y": [0.6, 0.35, 0.2], "z": [0.5, None, 0.6]}, noise=ts.LogNormal(sd=0.1)),
        infer=ts.Infer(methods=["e-lik", "point"], draws=200),
        seed=11,
        **further,
    )


def imported(name: str = "run") -> Any:
    return getattr(importlib.import_module("model"), name)


def infer(study: ts.Study) -> None:
    """Does all stages, and leaves what the command leaves in the study's folder."""
    study.infer()


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command of the package under test, in the current folder."""
    paths = [str(Path(ts.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    whole = [sys.executable, "-m", "twostep", *arguments]
    return subprocess.run(whole, capture_output=True, text=True, check=False, env=environment, timeout=300)


def shell(*arguments: str) -> str:
    """What a command prints that ends well."""
    ran = command(*arguments)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def same_draws(one: Path, other: Path) -> None:
    """Fails unless the training set and all draws of two folders are the same bytes."""
    names = sorted(file.name for file in one.glob("*_draws*.csv"))
    assert "t_draws.csv" in names and "i_draws_e-lik.csv" in names, names
    for name in [*names, "training.csv"]:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_a_function_and_its_twin_in_the_shell_give_the_same_draws(place: Path) -> None:
    study = decay(imported(), folder="here.twostep")
    infer(study)
    assert calls(place) == 16
    study.to_toml("twin.toml")
    shell("run", "twin.toml")
    assert calls(place) == 32, "the twin has a folder of its own, and made its own runs"
    same_draws(place / "here.twostep", place / "twin.twostep")


def test_a_function_in_processes_gives_the_same_draws(place: Path) -> None:
    live, apart = decay(imported(), folder="live.twostep"), decay("model.py:run", folder="apart.twostep")
    infer(live)
    apart.simulate(workers=3)
    infer(apart)
    assert calls(place) == 32
    same_draws(place / "live.twostep", place / "apart.twostep")


@pytest.mark.parametrize(
    "study",
    [
        lambda: ts.Study(
            simulator=ts.Builtin("logistic", sigma_s=0.01),
            unknowns={"gamma": ts.Unknown((-0.5, 0.5), prior="normal(0, 0.25)")},
            conditions={"omega": (-1, 1)},
            constants={"beta": 3},
            design=ts.LatinHypercube(20),
            surrogate=ts.PCE(degree=4),
            train=ts.Train(draws=40),
            measurements=ts.Measurements(
                noise=ts.Normal(sd="half-normal(0.5)"),
                synthetic=ts.Synthetic(truth={"gamma": 0.1}, at={"omega": "linspace(-1, 1, 9)"}, noise=ts.Normal(sd=0.05)),
            ),
            infer=ts.Infer(methods=["e-lik", "e-post"], draws=100),
            seed=5,
            folder="here.twostep",
        ),
        lambda: ts.Study(
            simulator=ts.Builtin("linear"),
            unknowns={"omega": (-1, 1)},
            design=ts.Grid(6),
            surrogate=ts.Formula("a * omega + b", parameters={"a": ts.Normal(0, 3), "b": ts.Normal(0, 3)}),
            train=ts.Train(draws=40),
            measurements=ts.Measurements({"y": [0.4, 0.6]}, noise=ts.Normal(sd=0.2)),
            infer=ts.Infer(methods=["e-lik"], draws=100),
            folder="here.twostep",
        ),
    ],
)
def test_built_in_simulators_give_the_same_draws(place: Path, study: Any) -> None:
    study = study()
    infer(study)
    study.to_toml("twin.toml")
    shell("run", "twin.toml")
    same_draws(place / "here.twostep", place / "twin.twostep")


def test_runs_of_a_session_are_reused_by_the_shell(place: Path) -> None:
    study = decay(imported())
    assert (study.simulate().state == "done").all()
    study.save("x.twostep")
    study.to_toml("x.toml")
    shell("run", "x.toml")
    assert calls(place) == 16, "no run was made twice"
    assert len(json.loads(shell("runs", "x.toml", "--json"))["runs"]) == 16


def test_runs_of_the_shell_are_reused_by_a_session(place: Path) -> None:
    decay(imported()).to_toml("x.toml")
    shell("simulate", "x.toml")
    assert calls(place) == 16
    study = decay(imported()).save("x.twostep")
    assert (study.simulate().state == "done").all()
    infer(ts.Study.from_toml("x.toml"))
    assert calls(place) == 16, "no run was made twice"


def test_an_edited_function_is_asked_about_wherever_its_runs_were_made(place: Path) -> None:
    study = decay(imported())
    study.simulate()
    study.save("x.twostep")
    study.to_toml("x.toml")
    (place / "model.py").write_text(MODEL + "# another thought\n")
    ran = command("simulate", "x.toml")
    assert ran.returncode == 2 and "model.py changed since 16" in " ".join(ran.stderr.split()), ran.stderr
    with pytest.raises(ts.InvalidError, match="model.py changed since 16"):
        ts.Study.from_toml("x.toml").simulate()
    assert (ts.Study.from_toml("x.toml").simulate(changed="keep").state == "done").all()
    assert calls(place) == 16


def test_a_series_passes_through_processes(place: Path) -> None:
    def study(simulator: Any) -> ts.Study:
        return ts.Study(
            simulator=simulator,
            unknowns={"rate": (0.1, 1)},
            outputs={"s": ts.Output(over={"t": (1, 3)}, series="coordinate")},
            design=ts.Sobol(6),
            surrogate=ts.PCE(degree=1),
            measurements=ts.Measurements({"t": [2.0], "s": [0.4]}, noise=ts.Normal(sd=0.1)),
        )

    live, apart = study(imported("series")).simulate().s, study("model.py:series").simulate(workers=2).s
    assert [list(s.items()) for s in live] == [list(s.items()) for s in apart]


def test_processes_end_with_the_work(place: Path) -> None:
    (place / "model.py").write_text(MODEL.replace("    return {\"y\"", "    open('pids', 'a').write(f'{__import__(\"os\").getpid()}\\n')\n    return {\"y\""))
    decay("model.py:run").simulate(workers=2)
    pids = {int(line) for line in (place / "pids").read_text().split()}
    assert 1 <= len(pids) <= 2 and os.getpid() not in pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


SLOW = """
import os
import time
from pathlib import Path


def run(rate):
    with open("pids", "a") as pids:
        pids.write(f"{os.getpid()}\\n")
    # Runs are begun in the order of the design, so that three are finished before two wait. How many calls there were before this
    # one could not tell: another process calls meanwhile.
    if rate > 0.35 and not Path("go").exists():
        time.sleep(1000)
    return rate
"""

SCRIPT = """
import twostep as ts

study = ts.Study(
    simulator="slow.py:run",
    unknowns={"rate": (0, 1)},
    design=ts.Design(points={"rate": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]}),
    surrogate=ts.PCE(degree=1),
    measurements=ts.Measurements({"y": [0.5]}, noise=ts.Normal(sd=0.1)),
    folder="slow.twostep",
)
try:
    study.simulate(workers=2)
except KeyboardInterrupt:
    print("interrupted")
print(sorted(study.runs().state))
"""


def test_an_interruption_ends_the_processes_and_keeps_finished_runs(place: Path) -> None:
    (place / "slow.py").write_text(SLOW)
    (place / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(ts.__file__).parents[1])}
    pids = place / "pids"

    def script() -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
        return ended(subprocess.Popen([sys.executable, "script.py"], stdout=subprocess.PIPE, text=True, env=environment))

    with script() as working:
        patience = time.monotonic() + 60
        while not pids.exists() or pids.read_text().count("\n") < 5:
            assert working.poll() is None and time.monotonic() < patience, "two runs are under way"
            time.sleep(0.01)
        working.send_signal(signal.SIGINT)
        said, _ = working.communicate(timeout=60)
    assert said.splitlines() == ["interrupted", str(["done"] * 3 + ["pending"] * 5)]
    for pid in {int(line) for line in pids.read_text().split()}:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    (place / "go").touch()
    with script() as again:
        said, _ = again.communicate(timeout=60)
    assert said.splitlines() == [str(["done"] * 8)]
    assert pids.read_text().count("\n") == 5 + 5, "only what was not finished was made again"


def test_a_file_that_cannot_be_loaded_is_an_exception_and_no_failed_run(place: Path) -> None:
    (place / "model.py").write_text("import no_such_module\n" + MODEL)
    study = decay("model.py:run")
    with pytest.raises(ts.FailedError, match="model.py cannot be loaded: ModuleNotFoundError.*no_such_module"):
        study.simulate()
    assert set(study.runs().state) == {"pending"}


def top_level_of_this_file(rate: float, t: float) -> float:
    return rate * t


class Callable:
    def __call__(self, rate: float, t: float) -> float:
        return rate * t

    def method(self, rate: float, t: float) -> float:
        return rate * t


def nested() -> Any:
    def inner(rate: float, t: float) -> float:
        return rate * t

    return inner


def cell() -> Any:
    """A function as a notebook has it: compiled from no file."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def run(rate, t):\n    return rate * t\n", "<ipython-input-3-abc>", "exec"), names)
    return names["run"]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda rate, t: rate * t, "it is a lambda, which has no name"),
        (nested(), "it is defined within nested, which nobody can import"),
        (Callable(), "it is no function of a module, but Callable"),
        (Callable().method, "it is no function of a module, but method"),
        (functools.partial(top_level_of_this_file, t=1), "it is no function of a module, but partial"),
        (cell(), "it was typed into a notebook or an interpreter, not into a file"),
    ],
)
def test_what_the_shell_could_not_find_is_refused_with_the_reason(place: Path, function: Any, reason: str) -> None:
    unknowns, conditions = {"rate": (0, 1)}, {"t": (1, 3)}
    if isinstance(function, functools.partial):
        conditions = {}
    study = ts.Study(
        simulator=function,
        unknowns=unknowns,
        conditions=conditions,
        design=ts.Sobol(4),
        surrogate=ts.PCE(degree=1),
        measurements=ts.Measurements({**({"t": [1.0]} if conditions else {}), "y": [0.5]}, noise=ts.Normal(sd=0.1)),
    )
    with pytest.raises(ts.InvalidError) as refused:
        study.to_toml("x.toml")
    assert reason in str(refused.value) and "put the function into a file" in str(refused.value)
    assert not Path("x.toml").exists()


def files() -> list[Path]:
    return sorted([*ROOT.glob("studies/**/*.toml"), *ROOT.glob("examples/*/study.toml")])


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_every_study_file_survives_the_round_trip(tmp_path: Path, file: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(file.parent, folder, ignore=shutil.ignore_patterns("*.twostep", "__pycache__"))
    study = ts.Study.from_toml(folder / file.name)
    before = json.loads(_twostep.read_toml(file.read_text(), file.name))
    assert json.loads(_twostep.read_toml(study.to_toml(), file.name)) == before
    # And once more from what was written.
    study.to_toml(folder / "again.toml")
    again = ts.Study.from_toml(folder / "again.toml")
    assert json.loads(_twostep.read_toml(again.to_toml(), file.name)) == before


@pytest.mark.parametrize("name", ["shell", "python", "function", "table"])
def test_a_study_file_may_be_written_into_another_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "models" / name
    shutil.copytree(ROOT / "examples" / name, folder, ignore=shutil.ignore_patterns("*.twostep", "__pycache__"))
    here = ts.Study.from_toml(folder / "study.toml")
    here.to_toml(tmp_path / "elsewhere" / "deep" / "study.toml")
    there = ts.Study.from_toml(tmp_path / "elsewhere" / "deep" / "study.toml")
    one, other = here.simulate(), there.simulate()
    assert (other.state == "done").all() and len(one) == len(other) > 0
    assert (folder / "study.twostep" / "training.csv").read_bytes() == (there.folder / "training.csv").read_bytes()


def test_to_toml_writes_tables_beside_the_study_and_nothing_else_over(place: Path) -> None:
    study = decay(imported())
    study.to_toml("sub/x.toml")
    text = (place / "sub" / "x.toml").read_text()
    assert 'python = "../model.py:run"' in text and 'file = "measurements.csv"' in text, text
    shell("simulate", "sub/x.toml")
    assert calls(place) == 16
    study.to_toml("sub/x.toml")
    (place / "sub" / "measurements.csv").write_text("t,y\n1,2\n")
    with pytest.raises(ts.InvalidError, match="the file is there already"):
        study.to_toml("sub/x.toml")
    study.to_toml("sub/x.toml", overwrite=True)
    assert (place / "sub" / "measurements.csv").read_text().startswith("t,y,z")
