"""The errors that a user can meet, as one tree.

SnugfitError
├── UserError             the input is wrong: one message, no traceback, exit code 2
│   ├── SettingError          a recipe's or a function's setting
│   ├── DataError             a file or a row
│   ├── ModelError            a model that cannot be loaded or used
│   │   └── Untraceable           a model that asks for numbers where the planner has none
│   ├── PlanConflict          techniques that exclude each other
│   ├── RunFolderError        a run's folder that cannot be resumed, read or written
│   ├── TrackingError         a tracker or registry address
│   ├── CodeRefused           a file that names code to run, without consent
│   ├── MissingExtra          an optional package that is not installed
│   └── SaidElsewhere         what another process of the run says
└── TrainingFailed        the run itself failed: exit code 1
    ├── OutOfMemory           it does not fit, however finely its windows are split
    ├── PlannerFailed         the planner died, or took too long
    ├── WorkerDied            a process that loads data was killed
    └── RanksLost             other processes of the run have ended, or do not answer
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterable
from pathlib import PurePath
from typing import Self

_SHORT_WORD = 2
"""Letters of a word, such as a number, that may be any other one in a name that is near."""


class SnugfitError(Exception):
    """Base of all errors that Snugfit raises on purpose."""

    exit_code = 1
    comes_again = True
    """True where trying once more would end in the same way."""


class UserError(SnugfitError):
    """The input is wrong.

    Args:
        setting: what it is about: a setting, an option, a file, a line of it.
        problem: what was found, and what is expected, in a sentence that the setting begins. Its full stop may be left out.
        remedy: what to do, in whole sentences.
    """

    exit_code = 2

    def __init__(self, setting: str | os.PathLike[str], problem: str, remedy: str) -> None:
        super().__init__(os.fspath(setting), problem, remedy.strip())

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return an error of which another process told the text, or of several texts, each with all its parts."""
        error = cls.__new__(cls)
        error.args = "", text, ""
        return error

    @classmethod
    def must_be(cls, setting: str, requirement: str, value: object, hint: str = "") -> Self:
        """Return an error about a value: what is expected says what to do."""
        return cls(setting, f"must be {requirement}, found {value}.", hint)

    @property
    def setting(self) -> str:
        return str(self.args[0])

    @property
    def problem(self) -> str:
        return str(self.args[1])

    @property
    def remedy(self) -> str:
        return str(self.args[2])

    def __str__(self) -> str:
        begin = f"{self.setting}: " if self.setting else ""
        if not self.remedy:
            return f"{begin}{self.problem}"
        between = (
            "" if self.problem.endswith("\n") else " " if self.problem.endswith((".", "?", "!")) else ". "
        )
        return f"{begin}{self.problem}{between}{self.remedy}"

    def about(self, setting: str) -> Self:
        """Return the same error, with another or a longer name of what it is about."""
        return type(self)(setting, self.problem, self.remedy)


class SettingError(UserError):
    """A setting of a recipe, a command or a function has an impossible value."""


class DataError(UserError):
    """A data file, or a row of it, cannot be used."""


class ModelError(UserError):
    """A model cannot be loaded, or does not do what the task needs."""


class Untraceable(ModelError):
    """A model cannot be planned on tensors that have a shape and no numbers; it can be measured."""


class PlanConflict(UserError):
    """Two techniques, or a technique and the plan, exclude each other."""


class RunFolderError(UserError):
    """A run's folder cannot be written, read or resumed."""


class TrackingError(UserError):
    """A tracking or registry address cannot be used."""


class CodeRefused(UserError):
    """A recipe, a bundle or a stored model names code, and nobody has consented to run it."""


class MissingExtra(UserError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, extra: str) -> None:
        install = f"Install it with: pip install 'snugfit[{extra}]'"
        super().__init__(f"extra '{extra}'", f"{package} is not installed", install)
        self._given = package, extra

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        return type(self), self._given  # from a process of the planner's


class SaidElsewhere(UserError):
    """Another process of the run says what is wrong."""


class SnugfitWarning(UserWarning):
    """Something will not do what was probably meant; a run tells it among its events."""


class TrainingFailed(SnugfitError):
    """The run failed on its own account; what was saved stays resumable."""


class OutOfMemory(TrainingFailed):
    """Memory does not suffice, and no finer micro-batch would change that; or on one of several ranks, which cannot change it alone.

    Args:
        finer: the micro-batch in which all ranks may go on from the newest checkpoint.
    """

    def __init__(self, *message: str, finer: int | None = None) -> None:
        super().__init__(*message)
        self.finer = finer


class PlannerFailed(TrainingFailed):
    """The planner's process died, or took too long; nothing was trained."""


class WorkerDied(TrainingFailed):
    """A process that loads data was killed, or cannot hand over what it loaded."""

    comes_again = False


class RanksLost(TrainingFailed):
    """Other processes of the run have ended, or do not answer in time."""

    comes_again = False


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, twice, in a run: it ends at once.

    Args:
        run_dir: the run's folder, if it has a checkpoint to go on from.
    """

    def __init__(self, run_dir: str | None) -> None:
        self.exit_code = 1 if run_dir is None else 75
        way_on = (
            "There is no checkpoint to go on from"
            if run_dir is None
            else f"Go on: snugfit resume {shlex.quote(run_dir)}"
        )
        super().__init__(f"interrupted. {way_on}")


class RunInterrupted(SnugfitError):
    """The command line's form of `Interrupted`."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for a name that is not known: the nearest one, else those that have it as a word, or all of them.

    Names of several words are near where each word is: a common last word says nothing.

    >>> nearest("epoch", ["epochs", "seed"])
    "Did you mean 'epochs'?"
    >>> nearest("zzz", ["epochs", "seed"])
    'Known: epochs, seed.'
    >>> nearest("picture-classification", ["image-classification", "text-classification"])
    'Known: image-classification, text-classification.'
    >>> nearest("f1", ["accuracy", "macro_f1", "micro_f1"])
    "Did you mean 'macro_f1' or 'micro_f1'?"
    """
    known = list(known)
    close = difflib.get_close_matches(name, [each for each in known if _has_near_words(name, each)], n=1)
    close = close or [each for each in known if name in re.split(r"[-_]", each)]
    if close:
        return "Did you mean {}?".format(" or ".join(f"'{each}'" for each in close))
    return f"Known: {', '.join(sorted(known))}."


def nearest_file(name: str, known: Iterable[str]) -> str:
    """Return a hint for a file that is not there: the nearest name; "" where none is near. Suffixes make no names alike.

    >>> nearest_file("new.csv", ["news.csv", "readme.md"]), nearest_file("reviews.csv", ["news.csv"])
    ("Did you mean 'news.csv'?", '')
    """
    names = {PurePath(each).stem: each for each in known}
    close = difflib.get_close_matches(PurePath(name).stem, names, n=1)
    return f"Did you mean '{names[close[0]]}'?" if close else ""


def short_path(path: str) -> str:
    """Return a path as one would type it: relative, if it is below the current folder.

    >>> short_path("rows.csv"), short_path("/elsewhere/rows.csv"), short_path("hf://a/b")
    ('rows.csv', '/elsewhere/rows.csv', 'hf://a/b')
    """
    if not os.path.isabs(path):
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _has_near_words(name: str, known: str) -> bool:
    words, others = name.split("-"), known.split("-")
    pairs = zip(words, others, strict=True) if len(words) == len(others) else ()
    return all(
        min(map(len, pair)) <= _SHORT_WORD or difflib.get_close_matches(pair[0], pair[1:]) for pair in pairs
    )
