"""Plans for deepspeed: its documented keys, and its own reading where it is installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from snugfit.core.entry import as_entry
from snugfit.planner.export import TOOLS, Entry, ExportedPlan, export
from snugfit.techniques import discover
from tests.unit.planner.exports import (
    PLAN,
    asking,
    file,
)

DEEPSPEED_KEYS = {
    "train_batch_size": None,
    "train_micro_batch_size_per_gpu": None,
    "gradient_accumulation_steps": None,
    "gradient_clipping": None,
    "zero_allow_untested_optimizer": None,
    "zero_force_ds_cpu_optimizer": None,
    "zero_optimization": {"stage", "offload_optimizer", "offload_param"},
    "optimizer": {"type", "params"},
    "scheduler": {"type", "params"},
    "torch_autocast": {"enabled", "dtype"},
    "fp16": {"enabled", "initial_scale_power", "loss_scale_window", "hysteresis"},
    "bf16": {"enabled", "bf16_master_weights_and_grads", "bf16_optimizer_states"},
    "data_types": {"grad_accum_dtype"},
    "activation_checkpointing": {"partition_activations", "cpu_checkpointing"},
}
"""Of https://www.deepspeed.ai/docs/config-json/ and of the configuration classes of deepspeed 0.19."""


def deepspeed_plans() -> Iterator[ExportedPlan]:
    for name, technique in discover().items():
        if TOOLS["deepspeed"].table(PLAN).get(name):
            yield asking(PLAN, as_entry(technique.example()))
    yield replace(PLAN, devices=2, strategy="fsdp", techniques=("optimizer_offload", "weight_streaming"))


def test_deepspeed_keys_are_the_documented_ones() -> None:
    for plan in deepspeed_plans():
        found = json.loads(file(export(plan, "deepspeed"), "deepspeed.json"))
        assert found.keys() <= DEEPSPEED_KEYS.keys()
        for key, inner in DEEPSPEED_KEYS.items():
            assert inner is None or found.get(key, {}).keys() <= inner, key


def test_deepspeed_reads_every_file() -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    for plan in deepspeed_plans():
        if plan.devices > 1:  # it counts the processes that run
            continue
        found = config.DeepSpeedConfig(json.loads(file(export(plan, "deepspeed"), "deepspeed.json")))
        assert found.train_batch_size == plan.global_batch
        assert found.train_micro_batch_size_per_gpu == plan.micro_batch


def test_deepspeed_batch_is_micro_batch_times_accumulation_times_devices() -> None:
    plan = replace(PLAN, devices=2, strategy="ddp")
    found = json.loads(file(export(plan, "deepspeed"), "deepspeed.json"))
    micro, accumulation = found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]
    assert (found["train_batch_size"], micro, accumulation) == (32, 4, 4)


@pytest.mark.parametrize(
    ("changes", "stage"),
    [
        ({}, 0),
        ({"devices": 2, "strategy": "ddp"}, 0),
        ({"devices": 2, "strategy": "fsdp"}, 3),
        ({"techniques": ("optimizer_offload",)}, 2),
        ({"techniques": ("weight_streaming", "optimizer_offload")}, 3),
        ({"devices": 2, "strategy": "fsdp", "techniques": ("optimizer_offload",)}, 3),
        ({"numerics": "pure_bf16"}, 1),
        ({"numerics": "master_weights"}, 0),
    ],
)
def test_deepspeed_stage_is_the_least_that_does_what_is_asked(changes: dict[str, Any], stage: int) -> None:
    found = json.loads(file(export(replace(PLAN, **changes), "deepspeed"), "deepspeed.json"))
    assert found["zero_optimization"]["stage"] == stage


def test_deepspeed_clips_only_where_that_is_asked() -> None:
    def clipping(*techniques: Entry) -> Any:
        plan = replace(PLAN, techniques=techniques)
        return json.loads(file(export(plan, "deepspeed"), "deepspeed.json"))["gradient_clipping"]

    assert clipping() == 0.0  # its own default is 1
    assert clipping({"clip_norm": {"max_norm": 0.3}}) == 0.3


@pytest.mark.parametrize("gradients", ["bf16", "fp32"])
def test_master_weights_are_deepspeeds_bf16_with_gradients_added_up_as_asked(gradients: str) -> None:
    plan = replace(PLAN, numerics={"master_weights": {"gradients": gradients}})
    found = json.loads(file(export(plan, "deepspeed"), "deepspeed.json"))
    assert found["bf16"]["enabled"] is True
    assert found["data_types"]["grad_accum_dtype"] == gradients
