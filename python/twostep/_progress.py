"""How far the work is: a line that moves on a terminal or in a notebook, lines now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Optional

# A forecast waits for so many pieces and seconds: before, it would be a guess.
_KNOWN_PIECES, _KNOWN_SECONDS = 3, 2.0
# Seconds between two lines where there is no terminal.
_BETWEEN_LINES = 10.0

_shown = True


def show_progress(show: bool) -> None:
    """Shows the progress of long work, or not, from now on."""
    global _shown
    _shown = show


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    instance = shell.get_ipython() if shell is not None and hasattr(shell, "get_ipython") else None
    return instance is not None and hasattr(instance, "kernel")


class Progress:
    """Shows what the work reports on standard error."""

    def __init__(self, shown: bool = True) -> None:
        self._shown = shown and _shown
        self._what: Optional[str] = None
        self._setting = ""
        self._began = self._line_at = time.monotonic()
        self._before = 0
        self._width = 0
        self._moves = self._shown and (sys.stderr.isatty() or _in_notebook())

    def report(self, what: str, done: int, total: int) -> None:
        """``done`` of ``total`` pieces of ``what`` are finished."""
        if not self._shown:
            return
        if what == "settings":
            self._setting = f"setting {done + 1} of {total}, " if total > 1 and done < total else ""
            return
        now = time.monotonic()
        if what != self._what:
            # Pieces that were there before the count began say nothing about the pace.
            self._what, self._began, self._before = what, now, done
        text = f"{self._setting}{what}: {done} of {total}{self._forecast(done, total, now)}"
        if self._moves:
            sys.stderr.write("\r" + text.ljust(self._width))
            sys.stderr.flush()
            self._width = len(text)
        elif now - self._line_at > _BETWEEN_LINES:
            self._line_at = now
            print(text, file=sys.stderr, flush=True)

    def _forecast(self, done: int, total: int, now: float) -> str:
        made, seconds = done - self._before, now - self._began
        if made < _KNOWN_PIECES or seconds < _KNOWN_SECONDS or done >= total:
            return ""
        return f", {_length((total - done) * seconds / made)} left"

    def note(self, text: str) -> None:
        """A line worth keeping."""
        if self._shown:
            self._clear()
            print(text, file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._moves and self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0

    def close(self) -> None:
        """Removes the line that moves."""
        self._clear()


def _length(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"about {seconds / size:.0f} {unit}"
    return f"about {max(seconds, 1):.0f} s"
