"""Plans of recipes, kept in the user's cache: what was planned once is not searched for again.

A plan is kept by all that it depends on: the recipe without what no plan looks at (rates and other numbers of learning, the seed, names,
tracking), the files of its data and its model, the machine that was asked for, and versions. Plans of recipes that name code are not kept
there, as the code may have changed; a process that plans several of them may keep them in a folder of its own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from snugfit.planner.answers.answer import Answer
from snugfit.planner.choice.channel import EARLY, UNCHECKED
from snugfit.planner.cost.allocator import AllocatorSettings
from snugfit.planner.target import Target
from snugfit.run.description import machine, versions
from snugfit.run.plans.plan_key import digest_of, plan_key, plans_folder
from snugfit.step.build import find_device
from snugfit.system.disk_files import cache_folder, whole_file
from snugfit.system.json_text import parse_json
from snugfit.system.memory import available_bytes
from snugfit.system.rounding import DEFAULT_MKL_MODE
from snugfit.units import counted

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

PLANNED = "planned"
"""What of the run's plan is told with its name."""

_ALIKE = 1.25
"""Times as much free memory as when it was made that a plan is taken for the best in."""

_MOST = 200
"""Plans that are kept: the newest."""


@dataclass(frozen=True)
class Place:
    """The place of the plan of a recipe for a target."""

    path: Path
    recipe: Recipe
    target: Target

    def read(self) -> tuple[Answer | None, str]:
        """Return the plan that is kept, which says so, or None where there is none that holds now, and why it cannot be read."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None, ""
        except (OSError, UnicodeDecodeError) as error:
            return None, f"The kept plan {self.path} cannot be read ({error}): planned anew."
        try:
            content = parse_json(text)
            made, answer = float(content["made"]), _made(Answer, content["answer"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return None, f"The kept plan {self.path} cannot be used ({error!r}): planned anew."
        if not self._holds(answer):
            return None, ""
        about = {**answer.about, "recipe": self.recipe.name}
        about[PLANNED] = f"before ({_ago(time.time() - made)} ago); --replan plans anew"
        return dataclasses.replace(self._own(answer), about=about), ""

    def _own(self, answer: Answer) -> Answer:
        """Return an answer whose choices have the recipe's settings: those that no plan looks at may be others than when it was made."""
        from snugfit.recipe.plan_choices import chosen_for

        def own(holder: Any) -> Any:
            return dataclasses.replace(holder, choice=chosen_for(self.recipe, holder.choice))

        whole: Answer = own(answer)
        return dataclasses.replace(
            whole,
            alternatives=tuple(map(own, answer.alternatives)),
            frontier=tuple(map(own, answer.frontier)),
        )

    def write(self, answer: Answer) -> None:
        """Keep a plan that fits and was searched to its end.

        Raises:
            OSError: the cache cannot be written.
        """
        if not answer.fits or not {EARLY, UNCHECKED}.isdisjoint(answer.why):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(self.path) as draft:
            draft.write_text(
                json.dumps({"made": time.time(), "answer": dataclasses.asdict(answer)}), encoding="utf-8"
            )
        newest = sorted(self.path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in newest[_MOST:]:
            path.unlink(missing_ok=True)

    def _holds(self, answer: Answer) -> bool:
        """Return whether a plan for this machine fits in what is free now.

        Where that is its device's memory, it was made with about as much too. What was named is the same, as
        it is part of the place.
        """
        free = available_bytes(torch.device("cpu"))
        if self.target.device is not None or free is None:
            return True
        if answer.device.get("kind") != "cpu":
            return self.target.host_memory is not None or answer.prediction.host_peak_bytes <= free
        each = free // self.target.devices
        return (
            self.target.memory is not None
            or answer.prediction.most_bytes <= each <= _ALIKE * answer.budget_bytes
        )


def place_of(recipe: Recipe, target: Target, own: Path | None = None) -> Place | None:
    """Return where the plan of a recipe for a target is kept; None where none is.

    Measured plans are not kept; those of recipes that name code are kept in `own`, a folder that ends with this process and its code.
    """
    home = own if recipe.code else plans_folder()
    if home is None or target.probe:
        return None
    here = find_device(recipe.plan.device)
    facts = {key: value for key, value in machine(here).items() if key != "program"}
    facts["mkl_mode"] = (
        facts["mkl_mode"] or DEFAULT_MKL_MODE
    )  # which the first run of a process sets, after it is planned
    parts = {
        "files": [_state(path) for path in _files(recipe)],
        "target": dataclasses.asdict(target),
        "machine": facts,
        "threads": torch.get_num_threads(),
        "allocator": AllocatorSettings.of(os.environ),
        "calibrations": [_state(path) for path in sorted((cache_folder() / "devices").glob("*.json"))],
        "versions": versions(),
        "code": [_state(path) for path in sorted(Path(__file__).parents[2].rglob("*.py"))],
    }
    return Place(home / f"{plan_key(recipe)}-{digest_of(parts)[:32]}.json", recipe, target)


def _files(recipe: Recipe) -> Iterator[Path]:
    """Yield the files that a recipe's data and model are read from; a name of Hugging Face stands for itself."""
    yield from map(Path, recipe.data.sources)
    model = Path(recipe.model.removeprefix("config:"))
    yield from sorted(path for path in model.rglob("*") if path.is_file()) if model.is_dir() else ()


def _state(path: Path) -> tuple[str, int, int]:
    """Return what changes where a file does."""
    try:
        status = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), status.st_size, status.st_mtime_ns


def _ago(seconds: float) -> str:
    """Return a duration in its largest whole unit.

    >>> _ago(3), _ago(90 * 60), _ago(2.2 * 86400)
    ('less than a minute', '1 hour', '2 days')
    """
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return counted(count, unit)
    return "less than a minute"


def _made(kind: Any, value: Any) -> Any:
    """Return a value as the type that it was before it was written as JSON.

    Raises:
        TypeError, KeyError, AttributeError: it is none of that type.
    """
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (kind,) = (each for each in inside if each is not type(None))
        return _made(kind, value)
    if origin is tuple:
        return tuple(_made(inside[0], each) for each in value)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _made(inside[1], each) for key, each in value.items()}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{key: _made(hints[key], each) for key, each in value.items()})  # type: ignore[operator]
    if kind is Any or (kind is float and isinstance(value, int)):
        return value
    if not isinstance(value, kind):
        raise TypeError(f"got {value!r}, expected {kind.__name__}")
    return value
