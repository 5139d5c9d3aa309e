"""What is asked of the planner, as it reaches it, without a process of its own and without a plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from snugfit.planner.plan import Request
from snugfit.planner.target import Target
from snugfit.recipe import Recipe, load_recipe
from snugfit.run.plans.recipe_plan import plan_recipe


class Stopped(Exception):
    """The request has been made."""


class Here:
    """A worker that is this process: on a CPU nothing is pretended."""

    def __init__(self, hide_gpu: bool = True, **options: Any) -> None:
        pass

    def load(self, *modules: str) -> None:
        pass

    def close(self) -> None:
        pass

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        timeout: float,
        way_out: str = "",
        folder: Path | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Any:
        meanwhile()
        return function(*arguments)


def recipe(folder: Path, **plan: Any) -> Recipe:
    settings = {
        "task": "python",
        "model": "tests.ranks.faulty:Faulty",
        "data": {"train": "tests.ranks.faulty:make_points", "validation": 0.2},
        "train": {"updates": 4, "global_batch": 8},
        "plan": {"device": "cpu", **plan},
        "track": {"mlflow": False},
    }
    (folder / "points.yaml").write_text(yaml.safe_dump(settings))
    return load_recipe(folder / "points.yaml")


def request_of(found: Recipe, target: Target, requests: list[Request]) -> Request:
    with pytest.raises(Stopped):
        plan_recipe(found, target, Here())  # type: ignore[arg-type]
    return requests[-1]
