"""The ``twostep`` command of the wheel."""

from __future__ import annotations

import os
import sys

from . import _twostep


def main() -> int:
    """Does what the command line asks for, and returns the exit status."""
    # Functions of Python files run with the interpreter that carries the command.
    os.environ.setdefault("TWOSTEP_PYTHON", sys.executable)
    return _twostep.command(sys.argv)
