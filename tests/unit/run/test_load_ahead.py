"""Data and model that are read while a run is planned: taken once, where the plan leaves both as they are."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from snugfit.errors import DataError, SnugfitWarning
from snugfit.planner.answers.answer import Choice
from snugfit.recipe import Recipe, load_recipe
from snugfit.recipe.plan_choices import with_choice
from snugfit.run import load_ahead
from snugfit.run.load_ahead import LoadAhead
from snugfit.strategies.base import Strategy

AS_IT_IS = Choice(4, "fp32", ({"adamw": {}}, {"linear": {}}, {"clip_norm": {}}))


@dataclass
class Reads:
    """Counts how often something is read, and warns of it."""

    results: list[str] = field(default_factory=list)

    def __call__(self, strategy: Strategy) -> Any:
        warnings.warn("one row is odd", SnugfitWarning, stacklevel=2)
        self.results.append(f"task {len(self.results)}")
        return self.results[-1]


def recipe(folder: Path, *changes: str, **settings: Any) -> Recipe:
    (folder / "rows.csv").write_text("x,label\n1,a\n2,b\n")
    tree = {
        "task": "tabular-classification",
        "model": "mlp",
        "data": {"train": str(folder / "rows.csv")},
        "optimizer": "adamw",
        "schedule": "linear",
        "techniques": ["clip_norm"],
        **settings,
    }
    (folder / "my.yaml").write_text(yaml.safe_dump(tree))
    return load_recipe(folder / "my.yaml", changes)


UNPLANNED = {"plan": {"numerics": "fp32"}}
"""As a run has it that is not planned."""


def begun(read: Reads, found: Recipe) -> LoadAhead:
    ahead = LoadAhead(found, read, on_cpu=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said when it is taken
        ahead.begin()
    return ahead


def test_what_was_read_is_taken_once_with_its_warnings_where_the_plan_leaves_it_as_it_is(
    tmp_path: Path,
) -> None:
    read, found = Reads(), recipe(tmp_path, **UNPLANNED)
    ahead = begun(read, found)
    load = ahead.instead_of(read, with_choice(found, AS_IT_IS))
    assert read.results == ["task 0"]
    with pytest.warns(SnugfitWarning, match="one row is odd"):
        assert load(Strategy()) == "task 0"
    with pytest.warns(SnugfitWarning, match="one row is odd"):
        assert load(Strategy()) == "task 1", "the first one has been trained"


@pytest.mark.parametrize(
    "choice",
    [
        replace(AS_IT_IS, techniques=(*AS_IT_IS.techniques, {"bf16": {}})),
        replace(AS_IT_IS, techniques=({"adamw_8bit": {}}, *AS_IT_IS.techniques[1:])),
    ],
)
def test_it_is_read_anew_where_the_plan_has_changed_a_technique(tmp_path: Path, choice: Choice) -> None:
    read, found = Reads(), recipe(tmp_path, **UNPLANNED)
    ahead = begun(read, found)
    with pytest.warns(SnugfitWarning):
        assert ahead.instead_of(read, with_choice(found, choice))(Strategy()) == "task 1"


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "my.losses:focal"},
        {"model": "config.json"},
        {"task": "text-classification", "model": "nobody/has-this"},
        {"task": "text-classification", "model": "large"},
        {"task": "text-classification", "model": "config:large"},
        {"task": "image-classification", "model": "large", "data": {"train": "pictures"}},
    ],
)
def test_code_of_the_users_and_what_may_be_large_wait_for_the_plan(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_ahead, "_MOST_BYTES", 10_000)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("large", "pictures/a"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "large/model.safetensors").write_bytes(bytes(20_000))
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    read = Reads()
    found = recipe(tmp_path, **settings)
    begun(read, found)
    assert not read.results
    (tmp_path / "small").mkdir()
    (tmp_path / "small/model.safetensors").write_bytes(bytes(2_000))
    begun(
        read,
        recipe(tmp_path, task="text-classification", model="small", data={"train": "rows.csv", "text": "x"}),
    )
    assert read.results


@pytest.mark.parametrize("files", [("config.json",), ("config.json", "model-00001-of-00002.safetensors")])
def test_a_model_of_the_hub_waits_for_the_plan_that_is_in_the_cache_without_all_its_weights(
    tmp_path: Path, files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--nobody--has-this"
    place = kept / "snapshots/1234"
    place.mkdir(parents=True)
    for name in ("refs", "blobs"):
        (kept / name).mkdir()
    (kept / "refs/main").write_text("1234")
    for name in files:  # as a plan leaves them, or a download that was interrupted
        (kept / "blobs" / name).write_text("{}")
        (place / name).symlink_to(kept / "blobs" / name)
    read = Reads()
    changes = {"task": "text-classification", "data": {"train": "rows.csv", "text": "x"}}
    found = recipe(tmp_path, model="nobody/has-this", **changes)
    begun(read, found)
    assert not read.results
    (place / "model.safetensors").write_bytes(bytes(2_000))
    begun(read, found)
    assert read.results


def test_it_is_read_anew_where_the_precision_was_not_known_that_the_best_models_folder_names(
    tmp_path: Path,
) -> None:
    read, found = Reads(), recipe(tmp_path)
    ahead = begun(read, found)
    with pytest.warns(SnugfitWarning):
        assert ahead.instead_of(read, with_choice(found, AS_IT_IS))(Strategy()) == "task 1"


def test_data_that_cannot_be_used_end_the_planning(tmp_path: Path) -> None:
    def refuse(strategy: Strategy) -> Any:
        warnings.warn("one row is odd", SnugfitWarning, stacklevel=2)
        raise DataError.from_text("rows.csv has no rows.")

    with pytest.warns(SnugfitWarning, match="odd"), pytest.raises(DataError, match="no rows"):
        LoadAhead(recipe(tmp_path), refuse, on_cpu=True).begin()
