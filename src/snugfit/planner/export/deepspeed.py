"""DeepSpeed: its JSON configuration, for `deepspeed.initialize` and for tools that take such a file.

Names and meanings are those of deepspeed 0.19.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from snugfit.planner.export.exported_plan import ExportedPlan, Strategy
from snugfit.planner.export.name_tables import ByHand, Rule, Table, Tool, file_of_left_out, of, planned

_HOST = {"device": "cpu", "pin_memory": True}
_OFFLOAD_OPTIMIZER = "zero_optimization.offload_optimizer"
_OFFLOAD_WEIGHTS = "zero_optimization.offload_param"
_MASTERS = "bf16.bf16_master_weights_and_grads"
_STAGES: Mapping[Strategy, int] = {"single": 0, "ddp": 0, "fsdp-zero2": 2, "fsdp": 3, "fsdp-offload": 3}
_LEAST_STAGE = {_OFFLOAD_WEIGHTS: 3, _OFFLOAD_OPTIMIZER: 2, _MASTERS: 1}
"""The stage of ZeRO without which DeepSpeed refuses or ignores a key."""

_DECAYED = {"weight_decay": "all parameters are decayed there, biases and norms too."}
_RATES = {"optimizer.params.lr": of("learning_rate"), "optimizer.params.weight_decay": of("weight_decay")}
_BETAS = {"optimizer.params.betas": of("betas", by=list)}
_OTHER = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
"""Without these ZeRO refuses an optimizer that is not Adam."""
_LATE = "the first two updates have a rate of 0 there; warm-up takes 2 updates at least, and comes 2 updates later."


def _warmup(plan: ExportedPlan, warmup: float) -> dict[str, Any]:
    return {"warmup_num_steps": max(1, plan.updates(warmup)), "warmup_type": "linear"}


def _constant(plan: ExportedPlan, warmup: float) -> dict[str, Any] | None:
    """Return a schedule for warm-up alone; without it the rate stays where the optimizer has it."""
    rates = {"warmup_min_lr": 0.0, "warmup_max_lr": plan.learning_rate}
    return {"type": "WarmupLR", "params": {**rates, **_warmup(plan, warmup)}} if warmup else None


def _linear(plan: ExportedPlan, warmup: float) -> dict[str, Any]:
    rates = {"warmup_min_lr": 0.0, "warmup_max_lr": plan.learning_rate, "total_num_steps": plan.total_updates}
    return {"type": "WarmupDecayLR", "params": {**rates, **_warmup(plan, warmup)}}


def _cosine(plan: ExportedPlan, warmup: float, minimum: float) -> dict[str, Any]:
    ratios = {"warmup_min_ratio": 0.0, "cos_min_ratio": minimum, "total_num_steps": plan.total_updates}
    return {"type": "WarmupCosineLR", "params": {**ratios, **_warmup(plan, warmup)}}


_TABLE: Table = {
    "adamw": Rule(
        {"optimizer.type": "AdamW", **_RATES, **_BETAS, "optimizer.params.eps": of("epsilon")},
        differs=_DECAYED,
    ),
    "lion": Rule({"optimizer.type": "Lion", **_RATES, **_BETAS, **_OTHER}, differs=_DECAYED),
    "radam": Rule(
        {
            "optimizer.type": "RAdam",
            **_RATES,
            **_BETAS,
            "optimizer.params.eps": of("epsilon"),
            "optimizer.params.decoupled_weight_decay": True,
            **_OTHER,
        },
        differs=_DECAYED,
    ),
    "sgd": Rule(
        {
            "optimizer.type": "SGD",
            **_RATES,
            "optimizer.params.momentum": of("momentum"),
            "optimizer.params.nesterov": of("nesterov"),
            **_OTHER,
        },
        differs=_DECAYED,
    ),
    "rmsprop": Rule(
        {
            "optimizer.type": "RMSprop",
            **_RATES,
            "optimizer.params.alpha": of("decay"),
            "optimizer.params.eps": of("epsilon"),
            "optimizer.params.momentum": of("momentum"),
            "optimizer.params.centered": of("centered"),
            **_OTHER,
        },
        differs=_DECAYED,
    ),
    "constant": Rule({"scheduler": planned("warmup", by=_constant)}, differs={"warmup": _LATE}),
    "linear": Rule({"scheduler": planned("warmup", by=_linear)}, differs={"": _LATE}),
    "cosine": Rule({"scheduler": planned("warmup", "minimum", by=_cosine)}, differs={"": _LATE}),
    "fp32": Rule({}),
    "bf16": Rule({"torch_autocast.enabled": True, "torch_autocast.dtype": "bfloat16"}),
    "fp16": Rule(
        {
            "fp16.enabled": True,
            "fp16.initial_scale_power": of("initial_scale", by=lambda scale: round(math.log2(scale))),
            "fp16.loss_scale_window": of("growth_interval"),
            "fp16.hysteresis": 1,
        },
        fixed={"growth_factor": 2.0, "backoff_factor": 0.5},
        differs={
            "": "weights and all that is computed are fp16 there, beside weights in fp32 for the optimizer."
        },
    ),
    "pure_bf16": Rule(
        {
            "bf16.enabled": True,
            _MASTERS: True,
            "bf16.bf16_optimizer_states": of("states", by=lambda states: states == "bf16"),
        },
        fixed={"rounding": "nearest"},
    ),
    "master_weights": Rule(
        {"bf16.enabled": True, "data_types.grad_accum_dtype": of("gradients")},
        differs={"": "DeepSpeed casts norms and other vectors too."},
    ),
    "tf32": ByHand("set torch.backends.cuda.matmul.allow_tf32 in the script; the file says float32."),
    "clip_norm": Rule({"gradient_clipping": of("max_norm")}),
    "recompute": Rule(
        {"activation_checkpointing.partition_activations": False},
        differs={
            "": "DeepSpeed wraps no block: call the model's gradient_checkpointing_enable(), or deepspeed.checkpointing.checkpoint."
        },
    ),
    "activation_offload": Rule(
        {"activation_checkpointing.cpu_checkpointing": True},
        differs={"": "only the inputs of blocks under deepspeed.checkpointing.checkpoint travel there."},
    ),
    "optimizer_offload": Rule(
        {_OFFLOAD_OPTIMIZER: _HOST},
        differs={"": "DeepSpeed has it from stage 2 of ZeRO on, which moves the gradients to the host too."},
    ),
    "weight_streaming": Rule(
        {_OFFLOAD_WEIGHTS: _HOST},
        differs={
            "": "DeepSpeed has it in stage 3 of ZeRO, which keeps all weights on the host, not the frozen ones alone."
        },
    ),
    "compile": ByHand("call engine.compile() after deepspeed.initialize."),
    "muon": ByHand(
        "type Muon is there, and asks each parameter for use_muon; set that and the type yourself."
    ),
    "adamw_8bit": ByHand(
        "make bitsandbytes.optim.AdamW8bit and give it as deepspeed.initialize(optimizer=…)."
    ),
}


def _base(plan: ExportedPlan) -> Mapping[str, Any]:
    return {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.accumulation,
        "zero_optimization.stage": _STAGES[plan.strategy],
        "gradient_clipping": 0.0,
        **({_OFFLOAD_OPTIMIZER: _HOST, _OFFLOAD_WEIGHTS: _HOST} if plan.offloads else {}),
    }


def _notes(plan: ExportedPlan) -> Iterable[str]:
    if plan.devices > 1:
        yield f"devices: start the script with deepspeed --num_gpus {plan.devices}; with another number DeepSpeed refuses the batch."
    if plan.strategy == "fsdp-zero2":
        yield "strategy: in stage 2 of ZeRO each device keeps all weights between updates too, which the plan's memory does not count."
    yield f"length: the script ends after {plan.total_updates} updates itself, and calls set_random_seed({plan.seed})."
    if plan.max_length is not None:
        yield f"max_length: cut the examples to {plan.max_length} tokens where they become tokens."
    if plan.accumulation * plan.devices > 1:
        yield (
            "accumulation: gradients are the mean of the micro-batches' means there: not the mean over tokens or rows where "
            "micro-batches differ."
        )


def _write(keys: Mapping[str, Any], left_out: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    values = {key: value for key, value in keys.items() if value is not None}
    zero = values["zero_optimization"]
    needed = [stage for key, stage in _LEAST_STAGE.items() if _holds(values, key)]
    values["zero_optimization"] = {**zero, "stage": max([zero["stage"], *needed])}
    return (("deepspeed.json", json.dumps(values, indent=2) + "\n"), *file_of_left_out("deepspeed", left_out))


def _holds(values: Mapping[str, Any], key: str) -> bool:
    section, name = key.split(".")
    return name in values.get(section, {})


TOOL = Tool(
    name="deepspeed",
    strategies=("single", "ddp", "fsdp", "fsdp-zero2", "fsdp-offload"),
    base=_base,
    table=lambda _: _TABLE,
    missing={
        "optimizer": "make it yourself and give it as deepspeed.initialize(optimizer=…).",
        "schedule": "make it yourself and give it as deepspeed.initialize(lr_scheduler=…).",
        "plan.numerics": "DeepSpeed does not compute in it; the file says float32.",
        "techniques": "DeepSpeed's configuration has no setting for it.",
    },
    notes=_notes,
    write=_write,
)
