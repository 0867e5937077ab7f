"""The wheel: one for every Python from 3.10 on, with types and the command."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import twostep as ts


def test_the_wheel_is_for_every_python_from_3_10_on() -> None:
    distribution = metadata.distribution("twostep")
    wheel = distribution.read_text("WHEEL") or ""
    assert "Tag: cp310-abi3-" in wheel, wheel
    assert distribution.version == ts.__version__
    assert distribution.metadata["Requires-Python"] == ">=3.10"
    assert (Path(ts.__file__).parent / "py.typed").is_file()


def test_the_wheel_carries_the_command(tmp_path: Path) -> None:
    command = Path(sysconfig.get_path("scripts")) / "twostep"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["twostep", ts.__version__], done
    made = subprocess.run([command, "new", "mine"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0 and (tmp_path / "mine.toml").is_file(), made
    typo = subprocess.run([command, "run", "mien.toml"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert typo.returncode == 2 and "mien.toml" in typo.stderr


def test_the_command_is_also_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "twostep", "methods"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "e-lik" in done.stdout


def test_every_public_name_is_documented() -> None:
    names = [name for name in vars(ts) if not name.startswith("_")]
    assert names and all((getattr(ts, name).__doc__ or "").strip() for name in names), names


def test_import_is_light() -> None:
    """Plots, ArviZ and xarray are loaded by those who use them."""
    code = "import sys, twostep; print([m for m in ('matplotlib', 'arviz', 'xarray', 'scipy') if m in sys.modules])"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout.strip() == "[]", done
