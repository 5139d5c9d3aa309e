"""Plans for torchtitan: the names that it knows, and its own reading where it is installed."""

from __future__ import annotations

import sys
import types
from dataclasses import make_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.core.entry import as_entry
from snugfit.planner.export import ExportedPlan, export
from snugfit.techniques import discover
from tests.unit.planner.exports import (
    PLAN,
    STRATEGIES,
    asking,
    factors,
    file,
    ours,
)


def section(*names: str) -> Any:
    """A part of the configuration that knows these names and no other."""
    return make_dataclass("Part", [(name, Any, None) for name in names], slots=True)()


def titan_config() -> Any:
    """The sections of torchtitan 0.3 with the keys of its documentation."""
    training = section(
        "local_batch_size",
        "global_batch_size",
        "seq_len",
        "steps",
        "max_norm",
        "dtype",
        "mixed_precision_param",
        "enable_cpu_offload",
    )
    parts = make_dataclass(
        "Config",
        [
            (name, Any, None)
            for name in (
                "training",
                "parallelism",
                "activation_checkpoint",
                "compile",
                "lr_scheduler",
                "debug",
                "optimizer",
            )
        ],
        slots=True,
    )
    return parts(
        training=training,
        parallelism=section(
            "data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward"
        ),
        compile=section("enable", "components", "backend"),
        lr_scheduler=section("warmup_steps", "total_steps", "decay_ratio", "decay_type", "min_lr_factor"),
        debug=section("seed"),
    )


@pytest.fixture
def titan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins of the modules that the file imports, with the names of torchtitan 0.3."""
    contents = {
        "torchtitan": {},
        "torchtitan.components": {},
        "torchtitan.components.optimizer": {"default_adamw": lambda **given: given},
        "torchtitan.distributed": {},
        "torchtitan.distributed.activation_checkpoint": {"FullAC": SimpleNamespace(Config=lambda: "full")},
        "torchtitan.models": {},
        "torchtitan.models.llama3": {},
        "torchtitan.models.llama3.config_registry": {"llama3_debugmodel": titan_config},
        "torchtitan.trainer": {"Trainer": SimpleNamespace(Config=object)},
    }
    for name, values in contents.items():
        module = types.ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)


def planned(plan: ExportedPlan) -> Any:
    names: dict[str, Any] = {}
    exec(file(export(plan, "torchtitan"), "snugfit_plan.py"), names)
    return names["planned"]()


@pytest.mark.usefixtures("titan")
def test_torchtitan_sets_only_names_that_it_knows() -> None:
    for technique in discover().values():
        for strategy in STRATEGIES:
            planned(asking(replace(PLAN, **strategy), as_entry(technique.example())))


@pytest.mark.usefixtures("titan")
def test_torchtitan_has_the_sizes_and_techniques() -> None:
    plan = replace(
        PLAN,
        devices=2,
        strategy="fsdp",
        max_length=512,
        seed=7,
        optimizer={"adamw": {"learning_rate": 3e-4, "weight_decay": 0.1}},
        schedule={"wsd": {"warmup": 0.1, "cooldown": 0.3}},
        numerics="bf16",
        techniques=("recompute", {"clip_norm": {"max_norm": 0.5}}, "optimizer_offload"),
    )
    config = planned(plan)
    training = config.training
    assert (training.local_batch_size, training.global_batch_size, training.seq_len) == (4, 32, 512)
    assert (training.steps, training.max_norm, training.enable_cpu_offload) == (100, 0.5, True)
    assert (training.dtype, training.mixed_precision_param) == ("float32", "bfloat16")
    degrees = config.parallelism
    assert (degrees.data_parallel_replicate_degree, degrees.data_parallel_shard_degree) == (1, 2)
    assert config.activation_checkpoint == "full"
    assert config.optimizer == {"lr": 3e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
    rates = config.lr_scheduler
    assert (rates.warmup_steps, rates.decay_ratio, rates.decay_type) == (10, 0.3, "sqrt")
    assert config.debug.seed == 7


@pytest.mark.usefixtures("titan")
def test_torchtitan_keeps_gathered_weights_where_the_plan_does() -> None:
    config = planned(replace(PLAN, devices=2, strategy="fsdp-zero2", device="cuda"))
    assert config.parallelism.data_parallel_shard_degree == 2
    assert config.parallelism.fsdp_reshard_after_forward == "never"


@pytest.mark.usefixtures("titan")
def test_torchtitan_own_defaults_are_off_where_nothing_is_asked() -> None:
    config = planned(PLAN)
    assert (config.training.max_norm, config.training.mixed_precision_param) == (float("inf"), "float32")
    assert (config.activation_checkpoint, config.compile.enable) == (None, False)
    assert (config.lr_scheduler.warmup_steps, config.lr_scheduler.decay_ratio) == (0, 0.0)


def test_torchtitan_itself_takes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchtitan.models.llama3.config_registry", exc_type=ImportError)
    manager = pytest.importorskip("torchtitan.config.manager")
    plan = replace(PLAN, numerics="bf16", schedule={"cosine": {"warmup": 10}}, techniques=("recompute",))
    (tmp_path / "snugfit_plan.py").write_text(
        file(export(plan, "torchtitan"), "snugfit_plan.py"), encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = ["--module", "snugfit_plan", "--config", "planned", "--hf_assets_path", str(tmp_path)]
    config = manager.ConfigManager().parse_args(given)
    assert (config.training.local_batch_size, config.training.global_batch_size) == (4, 32)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    (schedule,) = config.lr_scheduler.build(optimizers=[optimizer], training_steps=100)
    assert factors(schedule, optimizer, 100) == pytest.approx(
        ours({"cosine": {"warmup": 10}}, 100), abs=1e-12
    )
