"""The Python of README and documentation runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def blocks(file: str) -> list[str]:
    """Blocks of Python that can run by themselves: those that import the package."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "import twostep" in block]


def test_there_is_something_to_run() -> None:
    assert blocks("README.md")


@pytest.mark.parametrize("file", ["README.md"])
def test_blocks_run(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(blocks(file)):
        script = tmp_path / f"block_{number}.py"
        script.write_text(block)
        exec(compile(block, str(script), "exec"), {"__name__": f"block_{number}"})
