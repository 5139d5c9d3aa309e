"""Keywords of a training in Python: tools take those that `sf.train` takes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.core.job import EarlyStopping, Job, Plan, keywords
from snugfit.errors import DataError, SettingError
from snugfit.run.train_settings import DEFAULTS, TrainSettings
from snugfit.tools.setup import module_setup

TOOLS = {"certify": sf.certify, "find_lr": sf.find_lr, "find_batch": sf.find_batch, "profile": sf.profile}


def parameters(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Type and default of each keyword."""
    each = inspect.signature(function).parameters.values()
    return {one.name: (one.annotation, one.default) for one in each if one.kind is one.KEYWORD_ONLY}


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    rows = TensorDataset(torch.randn(16, 4, generator=generator), torch.arange(16) % 3)
    rows.lengths = [4] * 16  # type: ignore[attr-defined]
    return rows


def test_train_shows_each_of_its_keywords_with_type_and_default() -> None:
    found = parameters(sf.train)
    assert list(found) == list(TrainSettings.__annotations__)
    assert found["min_delta"] == ("float", 0.0)
    assert found["techniques"] == ("Sequence[Technique]", ())
    assert "min_delta: 'float' = 0.0" in str(inspect.signature(sf.train))


@pytest.mark.parametrize("tool", [*TOOLS.values(), sf.examine], ids=[*TOOLS, "examine"])
def test_a_tool_takes_what_train_takes(tool: Callable[..., Any]) -> None:
    found, asked = parameters(tool), parameters(sf.train)
    assert {name: found.get(name) for name in asked} == asked


def test_settings_of_a_job_and_a_plan_have_the_defaults_that_are_declared_with_them() -> None:
    job, plan = Job.of(), Plan()
    assert (DEFAULTS["patience"], DEFAULTS["min_delta"]) == (
        None,
        EarlyStopping.settings()["min_delta"].default,
    )
    assert (DEFAULTS["epochs"], DEFAULTS["seed"]) == (job.train.epochs, job.train.seed)
    assert (DEFAULTS["checkpoint_keep"], DEFAULTS["non_finite"]) == (
        job.checkpoint.keep,
        job.non_finite.policy,
    )
    assert (DEFAULTS["micro_batch"], DEFAULTS["cut_padding"]) == (plan.micro_batch, plan.cut_padding)
    assert {*keywords()} <= {*DEFAULTS}


ASKED: dict[str, Any] = {
    "loss": "mse",
    "optimizer": sf.SGD(learning_rate=0.5),
    "techniques": [sf.EMA()],
    "preset": "fine_tune",
    "validation": 0.25,
    "metrics": {"own": lambda outputs, batch: outputs.sum(1)},
    "epochs": 2,
    "updates": 3,
    "global_batch": 4,
    "batch_tokens": 64,
    "start_batch": 2,
    "batch_warmup": 0.5,
    "batch_by_epoch": (2, 3),
    "micro_batch": 2,
    "best": "min:loss",
    "evaluate_every": 7,
    "evaluate_batch": 3,
    "patience": 5,
    "min_delta": 0.5,
    "stop_when": lambda evaluations: None,
    "non_finite": "stop",
    "non_finite_limit": 3,
    "seed": 9,
    "device": "meta",
    "num_workers": 1,
    "cut_padding": False,
    "deterministic": True,
    "collate": lambda rows: rows,
    "forward": lambda model, batch: model(batch[0]),
    "name": "mine",
}
"""Something else than the default of each keyword that says what is trained."""

BESIDE: dict[str, dict[str, Any]] = {
    "metrics": {"validation": 0.25, "best": "loss"},
    "min_delta": {"patience": 5},
    "batch_warmup": {"start_batch": 2},
}
"""Keywords without which another one is refused."""

OF_RUNS: dict[str, Any] = {
    "output": "elsewhere",
    "resume": "somewhere",
    "accept_changes": ["data"],
    "time": "3h",
    "stop_after_seconds": 5.0,
    "track": True,
    "track_uri": "sqlite:///own.db",
    "track_histograms": True,
    "display": print,
    "keep_models": 3,
    "keep_when": bool,
    "checkpoint_every": 5,
    "checkpoint_keep": 3,
    "checkpoint_save": "async",
    "on_update": print,
    "on_evaluation": print,
    "on_checkpoint": print,
    "on_end": print,
}


def described(**settings: Any) -> dict[str, Any]:
    setup = module_setup(nn.Linear(4, 3), data(), **settings)
    material = {name: getattr(setup.material, name) for name in ("loss", "collate", "forward")}
    held_out = 0 if setup.material.validation is None else len(setup.material.validation)
    return {
        "name": setup.name,
        "job": setup.job,
        "plan": setup.plan,
        "techniques": setup.techniques,
        "metrics": setup.metrics,
        "held out": held_out,
        **material,
    }


@pytest.mark.parametrize("name", ASKED)
def test_a_keyword_changes_what_a_tool_works_on(name: str) -> None:
    beside = BESIDE.get(name, {})
    assert described(**beside, **{name: ASKED[name]}) != described(**beside)


@pytest.mark.parametrize("name", OF_RUNS)
def test_a_tool_refuses_by_name_what_is_of_the_folder_of_a_run(name: str) -> None:
    with pytest.raises(SettingError, match=f"^{name}: got "):
        module_setup(nn.Linear(4, 3), data(), **{name: OF_RUNS[name]})


def test_a_way_to_share_that_does_not_exist_is_refused_on_one_device_too() -> None:
    module_setup(nn.Linear(4, 3), data(), strategy="ddp")
    with pytest.raises(SettingError, match=r"^strategy: there is no 'dpp'.*ddp"):
        module_setup(nn.Linear(4, 3), data(), strategy="dpp")


def test_each_keyword_is_tried_here() -> None:
    assert {*ASKED, *OF_RUNS, "strategy"} == {*DEFAULTS}


@pytest.mark.parametrize(
    "name",
    [
        "find_lr",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("certify", "find_batch", "profile")),
    ],
)
def test_a_tool_runs_with_metrics_a_preset_and_a_strategy(name: str, tmp_path: Path) -> None:
    few = {"certify": {"rows": 4}, "find_lr": {"range_updates": 20}, "find_batch": {"timed_updates": 1}}
    own: dict[str, Any] = {"profile": {"steps": 1, "output": tmp_path}, **few}[name]
    settings: dict[str, Any] = {"metrics": ["accuracy"], "validation": 0.25, "preset": "fine_tune"}
    found = TOOLS[name](
        nn.Linear(4, 3), data(), **own, **settings, strategy="auto", global_batch=4, device="cpu"
    )
    assert found.as_dict()


@pytest.mark.parametrize("call", [sf.train, *TOOLS.values()])
def test_an_unknown_keyword_is_refused_with_the_nearest_one(call: Callable[..., Any]) -> None:
    with pytest.raises(
        TypeError, match=r"^got an unexpected keyword argument 'min_detla'. Did you mean 'min_delta'\?"
    ):
        call(nn.Linear(4, 3), data(), min_detla=1.0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("folder", "Did you mean 'output'?"),
        ("batch_size", "Did you mean 'global_batch'?"),
        ("lr", "Did you mean optimizer=sf.AdamW(learning_rate=1e-3)?"),
    ],
)
def test_a_keyword_of_another_trainer_is_answered_with_ours(name: str, words: str) -> None:
    with pytest.raises(TypeError, match=re.escape(words)):
        sf.train(nn.Linear(4, 3), data(), **{name: None})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": 3}, "^loss: must be the name of a loss, a function or None, found 3"),
        ({"preset": 3}, "^preset: must be the name of a preset or None.*, found 3"),
        ({"metrics": 3}, "^metrics: must be a list of names.*, found 3"),
        ({"metrics": [3]}, "^metrics: got 3 among the names, expected text. Give functions with their names"),
        ({"strategy": None}, "^strategy: must be the name of a strategy.*, found null"),
        ({"collate": "pad"}, "^collate: must be a function or None.*, found 'pad'"),
        ({"forward": 3}, "^forward: must be a function or None.*, found 3"),
    ],
)
def test_a_keyword_of_another_type_is_refused_by_its_name(
    settings: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=message):
        sf.train(nn.Linear(4, 3), data(), output=tmp_path, **settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fraction", [float("nan"), float("inf")])
def test_a_validation_fraction_that_is_not_finite_is_refused(fraction: float, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^validation: got {fraction}, expected a fraction between"):
        sf.train(nn.Linear(4, 3), data(), output=tmp_path, validation=fraction)


def test_more_workers_than_a_machine_can_start_are_refused_before_any_is_started() -> None:
    with pytest.raises(
        SettingError, match="^plan.num_workers: must be a whole number of at least 0 and below 257"
    ):
        Plan(num_workers=10**6)  # made here, not trained with: if the bound breaks, no process is started
    assert Plan(num_workers=256).num_workers == 256
