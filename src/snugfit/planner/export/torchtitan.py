"""Torchtitan: a module with a configuration function, which it takes since 0.3 in place of TOML.

Names and meanings are those of torchtitan 0.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from snugfit.planner.export.exported_plan import ExportedPlan
from snugfit.planner.export.name_tables import ByHand, Rule, Table, Tool, commented, of, planned

_HEAD = '''\
"""A planned run for torchtitan 0.3. With this file where Python finds modules:

    torchrun --nproc-per-node {devices} -m torchtitan.train --module snugfit_plan --config planned
"""

'''
_BODY = """\

from torchtitan.components.optimizer import default_adamw  # noqa: F401
from torchtitan.distributed.activation_checkpoint import FullAC  # noqa: F401
from torchtitan.models.llama3.config_registry import llama3_debugmodel as model  # put your model's here
from torchtitan.trainer import Trainer


def planned() -> Trainer.Config:
    config = model()
"""


@dataclass(frozen=True)
class _Code:
    """An expression, which is written as it is."""

    text: str

    def __repr__(self) -> str:
        return self.text


def _adamw(learning_rate: float, betas: tuple[float, float], epsilon: float, weight_decay: float) -> _Code:
    return _Code(
        f"default_adamw(lr={learning_rate!r}, betas={betas!r}, eps={epsilon!r}, weight_decay={weight_decay!r})"
    )


def _cooldown(plan: ExportedPlan, cooldown: float) -> float:
    return plan.updates(cooldown) / plan.total_updates


def _flat_cooldown(plan: ExportedPlan, flat: float, warmup: float) -> float:
    return round((plan.total_updates - plan.updates(warmup)) * (1 - flat)) / plan.total_updates


_STEPS = {"lr_scheduler.warmup_steps": planned("warmup", by=ExportedPlan.updates)}

_TABLE: Table = {
    "adamw": Rule(
        {"optimizer": of("learning_rate", "betas", "epsilon", "weight_decay", by=_adamw)},
        differs={"weight_decay": "all parameters are decayed there, norms too."},
    ),
    "constant": Rule({**_STEPS, "lr_scheduler.decay_ratio": 0.0}),
    "linear": Rule({**_STEPS, "lr_scheduler.decay_ratio": None, "lr_scheduler.decay_type": "linear"}),
    "cosine": Rule(
        {
            **_STEPS,
            "lr_scheduler.decay_ratio": None,
            "lr_scheduler.decay_type": "cosine",
            "lr_scheduler.min_lr_factor": of("minimum"),
        }
    ),
    "wsd": Rule(
        {
            **_STEPS,
            "lr_scheduler.decay_ratio": planned("cooldown", by=_cooldown),
            "lr_scheduler.decay_type": of("shape", by=lambda shape: {"1-sqrt": "sqrt"}.get(shape, shape)),
            "lr_scheduler.min_lr_factor": of("minimum"),
        }
    ),
    "flat_cosine": Rule(
        {
            **_STEPS,
            "lr_scheduler.decay_ratio": planned("flat", "warmup", by=_flat_cooldown),
            "lr_scheduler.decay_type": "cosine",
        }
    ),
    "fp32": Rule({"training.mixed_precision_param": "float32"}),
    "bf16": Rule({"training.mixed_precision_param": "bfloat16"}),
    "pure_bf16": Rule(
        {"training.dtype": "bfloat16", "training.mixed_precision_param": "bfloat16"},
        fixed={"rounding": "nearest"},
    ),
    "clip_norm": Rule({"training.max_norm": of("max_norm")}),
    "recompute": Rule({"activation_checkpoint": _Code("FullAC.Config()")}),
    "compile": Rule(
        {"compile.enable": True, "compile.components": ["model"], "compile.backend": of("backend")},
        fixed={"per_block": True},
    ),
    "packing": "torchtitan always packs documents into rows of training.seq_len.",
    "chunked_loss": ByHand("it is in the model's configuration there: loss = ChunkedLossWrapper.Config(…)."),
    "lora": ByHand(
        "it is a converter of the model there: model_registry(…, converters=[LoRAConverter.Config(…)])."
    ),
    "fp8": ByHand(
        "it is a converter of the model there: model_registry(…, converters=[Float8LinearConverter.Config(…)])."
    ),
    "muon": ByHand("DistMuon is there, with parameter groups by patterns of your model's names."),
}
_SHARDED: Table = {
    **_TABLE,
    "optimizer_offload": Rule(
        {"training.enable_cpu_offload": True},
        differs={"": "weights and gradients are kept in host memory too there."},
    ),
}


def _base(plan: ExportedPlan) -> Mapping[str, Any]:
    length = {} if plan.max_length is None else {"training.seq_len": plan.max_length}
    return {
        "training.local_batch_size": plan.micro_batch,
        "training.global_batch_size": plan.global_batch,
        **length,
        "training.steps": plan.total_updates,
        "training.max_norm": _Code('float("inf")'),
        "training.dtype": "float32",
        "training.mixed_precision_param": "float32",
        "training.enable_cpu_offload": plan.offloads,
        "parallelism.data_parallel_replicate_degree": plan.devices if plan.strategy == "ddp" else 1,
        "parallelism.data_parallel_shard_degree": plan.devices if plan.sharded else 1,
        **({"parallelism.fsdp_reshard_after_forward": "never"} if plan.sharded and not plan.reshards else {}),
        "activation_checkpoint": None,
        "compile.enable": False,
        "lr_scheduler.warmup_steps": 0,
        "lr_scheduler.total_steps": None,
        "lr_scheduler.decay_ratio": 0.0,
        "lr_scheduler.min_lr_factor": 0.0,
        "debug.seed": plan.seed,
    }


def _notes(plan: ExportedPlan) -> Iterable[str]:
    yield (
        "model: the file trains a small Llama until its line of imports names another; only torchtitan's own models run there. checkpoint.initial_load_path "
        "gives it weights to start from."
    )
    if plan.max_length is None:
        yield "max_length: the plan has none, and training.seq_len is the model's configuration's."
    yield "examples: a row is training.seq_len tokens of packed documents there, not one example and its padding."
    if plan.device != "cuda":
        yield f"device: the plan is for {plan.device}, and torchtitan trains on GPUs."


def _write(keys: Mapping[str, Any], left_out: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    lines = [f"    config.{key} = {value!r}\n" for key, value in _flat(keys)]
    degrees = keys["parallelism"]
    devices = degrees["data_parallel_replicate_degree"] * degrees["data_parallel_shard_degree"]
    text = "".join([_HEAD.format(devices=devices), commented(left_out), _BODY, *lines, "    return config\n"])
    return (("snugfit_plan.py", text),)


def _flat(keys: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in keys.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{rest}", inner) for rest, inner in _flat(value))
        else:
            yield key, value


TOOL = Tool(
    name="torchtitan",
    strategies=("single", "ddp", "fsdp", "fsdp-zero2", "fsdp-offload"),
    base=_base,
    table=lambda plan: _SHARDED if plan.sharded else _TABLE,
    missing={
        "optimizer": "torchtitan has Adam, AdamW and Muon; the file leaves the optimizer of the model's configuration.",
        "schedule": "torchtitan has warm-up, a constant part and a fall that is linear, cosine or 1-sqrt; the file says constant.",
        "plan.numerics": "torchtitan's training does not compute in it; the file says float32.",
        "techniques": "torchtitan's configuration has no setting for it.",
    },
    notes=_notes,
    write=_write,
)
