"""The stages of a study, and what each returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _twostep
from ._function import Host

if TYPE_CHECKING:
    from collections.abc import Callable


class Stages:
    """What :class:`twostep.Study` does once it has runs."""

    _project: _twostep.Project
    def _host(self) -> Host:
        raise NotImplementedError

    def _work(self, work: Callable[[Host], Any]) -> Any:
        """Does long work with a host of its own."""
        host = self._host()
        try:
            return work(host)
        finally:
            host.close()
