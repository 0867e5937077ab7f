"""Exceptions: where something is wrong, what was found there, and what to do about it."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional


class Error(Exception):
    """Base of every exception of this package.

    ``place`` names the input, ``found`` says what is wrong with it, ``repair`` what to do.
    """

    place: str
    found: str
    repair: Optional[str]

    def __init__(self, found: str, place: str = "", repair: str | None = None) -> None:
        self.place, self.found, self.repair = place, found, repair
        text = f"{place}: {found}" if place else found
        super().__init__(f"{text}; {repair}" if repair else text)

    def __reduce__(self) -> tuple[Any, ...]:
        # From other processes it comes back as it was, whatever it takes to make one.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[Error], args: tuple[Any, ...], state: dict[str, Any]) -> Error:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidError(Error, ValueError):
    """A value that cannot be used."""


class FileError(Error, OSError):
    """A file that cannot be read or written."""

    def __init__(self, found: str, place: str = "", repair: str | None = None, errno: int | None = None) -> None:
        Error.__init__(self, found, place, repair)
        # Attributes that users of OSError look at.
        self.errno, self.filename = errno, place

    def __str__(self) -> str:
        return Exception.__str__(self) if not self.args else str(self.args[0])


class FailedError(Error, RuntimeError):
    """A computation that ran, and whose result cannot be used."""


class SimulatorError(FailedError):
    """Runs of the simulator failed; what the function raised is the cause of this exception."""


class SurrogateError(FailedError):
    """A surrogate that is a Python function failed; what it raised is the cause of this exception."""


class PropagationError(FailedError):
    """A propagation method that is a Python function failed; what it raised is the cause of this exception."""


class InternalError(Error, RuntimeError):
    """A mistake in this package. Please report it."""

    def __init__(self, found: str) -> None:
        super().__init__(found, "twostep", "this is a mistake of ours: please report it with the study")


class Problem(NamedTuple):
    """One problem of a study."""

    severity: str
    message: str
    expected: str
    help: Optional[str]

    def __str__(self) -> str:
        text = f"{self.message} ({self.expected})" if self.expected else self.message
        return f"{text}; {self.help}" if self.help else text


class StudyError(Error, ValueError):
    """A study that cannot be run: all its ``problems`` at once."""

    problems: list[Problem]
    text: str

    def __init__(self, problems: list[tuple[str, str, str, Optional[str]]], text: str) -> None:
        self.problems = [Problem(*problem) for problem in problems]
        self.text = text
        errors = [problem for problem in self.problems if problem.severity == "error"]
        if len(errors) == 1:
            super().__init__(str(errors[0]))
        else:
            super().__init__("\n".join([f"{len(errors)} problems in the study", *(f"- {e}" for e in errors)]))


class StudyWarning(UserWarning):
    """Something in a study, or in a result, that its author may want to think about again."""
