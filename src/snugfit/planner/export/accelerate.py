"""Accelerate: the YAML of `accelerate launch --config_file`. It starts a script of the user's, which makes all else itself.

Names and meanings are those of accelerate 1.15.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from snugfit.planner.export.exported_plan import ExportedPlan
from snugfit.planner.export.name_tables import ByHand, Rule, Table, Tool, commented, notes_on_windows, of

_TABLE: Table = {
    "fp32": Rule({"mixed_precision": "no"}),
    "bf16": Rule({"mixed_precision": "bf16"}),
    "fp16": Rule({"mixed_precision": "fp16"}),
    "tf32": ByHand("set torch.backends.cuda.matmul.allow_tf32 in the script."),
    "compile": Rule(
        {
            "dynamo_config.dynamo_backend": of("backend", by=str.upper),
            "dynamo_config.dynamo_mode": of("mode"),
            "dynamo_config.dynamo_use_dynamic": of("dynamic", by=bool),
            "dynamo_config.dynamo_use_regional_compilation": of("per_block"),
        },
        differs={
            "": "shapes are fixed there where compile.dynamic is null, and each other shape is compiled anew."
        },
    ),
    "clip_norm": ByHand("call accelerator.clip_grad_norm_ where accelerator.sync_gradients is true."),
    "clip_value": ByHand("call accelerator.clip_grad_value_ where accelerator.sync_gradients is true."),
}
_SHARDED: Table = {
    **_TABLE,
    "recompute": Rule({"fsdp_config.fsdp_activation_checkpointing": True}),
    "optimizer_offload": Rule(
        {"fsdp_config.fsdp_offload_params": True},
        differs={"": "weights and gradients are kept in host memory too there."},
    ),
    "activation_offload": "fsdp_activation_checkpointing_offload does so with the inputs of recomputed blocks alone.",
}


def _base(plan: ExportedPlan) -> Mapping[str, Any]:
    # accelerate launch starts one process for MULTI_CPU unless it has mpirun, and all of them for MULTI_GPU
    sharded = plan.sharded and plan.device != "cpu"
    keys: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "NO" if plan.strategy == "single" else "FSDP" if sharded else "MULTI_GPU",
        "num_machines": plan.nodes,
        "machine_rank": 0,
        "num_processes": plan.devices,
        "use_cpu": plan.device == "cpu",
        "mixed_precision": "no",
        "debug": False,
    }
    if sharded:
        keys |= {
            "fsdp_config.fsdp_version": 2,
            "fsdp_config.fsdp_reshard_after_forward": plan.reshards,
            "fsdp_config.fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_config.fsdp_offload_params": plan.offloads,
        }
    return keys


def _notes(plan: ExportedPlan) -> Iterable[str]:
    if plan.device == "cpu" and plan.devices > 1:
        yield (
            f"device: start the script with ACCELERATE_USE_CPU=true accelerate launch, or make Accelerator(cpu=True) in it: the file's use_cpu "
            f"does not reach the {plan.devices} processes, and each would be rank 0 of 1."
        )
    if plan.device == "cpu" and plan.sharded:
        yield "strategy: accelerate does not shard on a CPU, so the file gives each process a copy of the whole model."
    yield (
        f"batch: give the script DataLoader(batch_size={plan.micro_batch}) and "
        f"Accelerator(gradient_accumulation_steps={plan.accumulation}), for {plan.global_batch} examples an update."
    )
    yield f"length: the script ends after {plan.total_updates} updates itself, and calls set_seed({plan.seed})."
    yield from notes_on_windows(plan)


_SCRIPT = "accelerate launch starts your script, which makes it."

TOOL = Tool(
    name="accelerate",
    strategies=("single", "ddp", "fsdp", "fsdp-zero2", "fsdp-offload"),
    base=_base,
    table=lambda plan: _SHARDED if plan.sharded and plan.device != "cpu" else _TABLE,
    missing={
        "optimizer": _SCRIPT,
        "schedule": f"{_SCRIPT} Step it under accelerator.accumulate, or it steps too often.",
        "plan.numerics": "accelerate does not set it up from this file, which says float32.",
        "techniques": "accelerate launch starts your script, which has to do it.",
    },
    notes=_notes,
    write=lambda keys, left_out: (
        ("accelerate.yaml", commented(left_out) + yaml.safe_dump(dict(keys), sort_keys=False)),
    ),
)
