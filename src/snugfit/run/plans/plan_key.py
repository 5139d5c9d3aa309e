"""The settings of a recipe that its plan depends on, as a key: what a command looks at before it loads what takes seconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.system.disk_files import cache_folder

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

_UNSEEN = (
    ("name",),
    ("output",),
    ("folder",),
    ("early_stopping",),
    ("non_finite",),
    ("hooks",),
    ("train", "seed"),
    ("evaluate", "best"),
    ("evaluate", "keep_models"),
    ("evaluate", "keep_when"),
    ("track", "uri"),
    ("track", "experiment"),
    ("track", "register"),
    ("track", "register_adapter"),
    ("track", "tensorboard"),
    ("track", "wandb"),
    ("track", "trackio"),
    ("track", "others"),
    ("track", "histograms"),
    ("track", "pictures"),
    ("plan", "timeout"),
)
"""Settings that no plan looks at."""

_RATES = ("learning_rate", "adamw_learning_rate")
_NUMBERS = (
    *("weight_decay", "momentum", "betas", "adamw_betas", "epsilon", "adamw_epsilon"),
    *("decay", "max_norm", "max_value", "warmup", "minimum", "power"),
    *("alpha", "gamma", "rho", "eta", "temperature", "dropout"),
)
"""Numbers of learning, of which a plan looks at 0 and 1 alone: with these an operation or a state may be left out."""


def plan_key(recipe: Recipe) -> str:
    """Return what two recipes have in common of which one may take the other's plan."""
    tree = _looked_at(recipe.as_dict())
    for *section, key in _UNSEEN:
        inside = tree[section[0]] if section else tree
        inside.pop(key, None)
    return digest_of(tree)[:16]


def plans_folder() -> Path:
    """Return the folder of the user's cache in which plans are kept, each under the key of its recipe."""
    return cache_folder() / "plans"


def has_plan(recipe: Recipe) -> bool:
    """Return whether the cache has a plan of such a recipe; whether it holds here and now is another question."""
    return not recipe.code and any(plans_folder().glob(f"{plan_key(recipe)}-*.json"))


def newest_plan_time() -> float:
    """Return when a plan was kept last, in seconds since the epoch; 0 where none was."""
    try:
        return plans_folder().stat().st_mtime
    except OSError:
        return 0.0


def digest_of(value: Any) -> str:
    """Return the sha256 of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _looked_at(value: Any, key: str = "") -> Any:
    """Return what a plan sees of the value of a setting: no rates, and numbers of learning by what they leave out."""
    if isinstance(value, Mapping):
        return {key: _looked_at(each, key) for key, each in value.items() if key not in _RATES}
    if isinstance(value, list):
        return [_looked_at(each, key) for each in value]
    return (
        "a number" if key in _NUMBERS and isinstance(value, (int, float)) and value not in (0, 1) else value
    )
