"""Lightning: the YAML of LightningCLI, whose part `trainer` is also what `Trainer(**…)` takes.

Names and meanings are those of lightning 2.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from snugfit.planner.export.exported_plan import ExportedPlan, Strategy
from snugfit.planner.export.name_tables import ByHand, Rule, Table, Tool, commented, notes_on_windows, of

_DECAYED = {"weight_decay": "all parameters are decayed there, biases and norms too."}
_RATES = {
    "optimizer.init_args.lr": of("learning_rate"),
    "optimizer.init_args.weight_decay": of("weight_decay"),
}
_ADAM = {
    **_RATES,
    "optimizer.init_args.betas": of("betas", by=list),
    "optimizer.init_args.eps": of("epsilon"),
}

_TABLE: Table = {
    "adamw": Rule({"optimizer.class_path": "torch.optim.AdamW", **_ADAM}, differs=_DECAYED),
    "radam": Rule(
        {
            "optimizer.class_path": "torch.optim.RAdam",
            **_ADAM,
            "optimizer.init_args.decoupled_weight_decay": True,
        },
        differs=_DECAYED,
    ),
    "sgd": Rule(
        {
            "optimizer.class_path": "torch.optim.SGD",
            **_RATES,
            "optimizer.init_args.momentum": of("momentum"),
            "optimizer.init_args.nesterov": of("nesterov"),
        },
        differs=_DECAYED,
    ),
    "rmsprop": Rule(
        {
            "optimizer.class_path": "torch.optim.RMSprop",
            **_RATES,
            "optimizer.init_args.alpha": of("decay"),
            "optimizer.init_args.eps": of("epsilon"),
            "optimizer.init_args.momentum": of("momentum"),
            "optimizer.init_args.centered": of("centered"),
        },
        differs=_DECAYED,
    ),
    "fp32": Rule({"trainer.precision": "32-true"}),
    "bf16": Rule({"trainer.precision": "bf16-mixed"}),
    "fp16": Rule(
        {"trainer.precision": "16-mixed"},
        differs={"": "schedules step there on updates that the loss scale skips too."},
    ),
    "pure_bf16": Rule({"trainer.precision": "bf16-true"}, fixed={"rounding": "nearest"}),
    "tf32": ByHand(
        "call torch.set_float32_matmul_precision('high') before the Trainer is made; the file says float32."
    ),
    "clip_norm": Rule(
        {"trainer.gradient_clip_algorithm": "norm", "trainer.gradient_clip_val": of("max_norm")}
    ),
    "clip_value": Rule(
        {"trainer.gradient_clip_algorithm": "value", "trainer.gradient_clip_val": of("max_value")}
    ),
    "cudnn_benchmark": Rule({"trainer.benchmark": True}),
    "ema": "add lightning.pytorch.callbacks.EMAWeightAveraging to the Trainer; its decay has no warm-up.",
    "swa": "add lightning.pytorch.callbacks.StochasticWeightAveraging to the Trainer; it goes by epochs and sets a rate of its own.",
    "spike_guard": "lightning.pytorch.callbacks.SpikeDetection is something like it.",
    "compile": ByHand("call torch.compile in the LightningModule's configure_model."),
    "recompute": ByHand(
        "it is the model's there: gradient_checkpointing_enable() of a transformers model, before the Trainer starts."
    ),
    "adamw_8bit": ByHand("make bitsandbytes.optim.AdamW8bit in configure_optimizers."),
    "nf4": ByHand("give the Trainer plugins=BitsandbytesPrecision(mode='nf4' or 'nf4-dq')."),
    "int8": "give the Trainer plugins=BitsandbytesPrecision(mode='int8'), which rounds inputs too.",
}
_SHARDED: Table = {
    **_TABLE,
    "clip_norm": "the Trainer refuses to clip by norm under FSDP; call model.clip_grad_norm_ in configure_gradient_clipping.",
    "recompute": ByHand(
        "give the Trainer FSDPStrategy(activation_checkpointing_policy=…) in place of 'fsdp'."
    ),
    "optimizer_offload": ByHand(
        "FSDPStrategy(cpu_offload=True) in place of 'fsdp' keeps weights and gradients in host memory too."
    ),
}


_STRATEGIES: Mapping[Strategy, Any] = {
    "single": "auto",
    "ddp": "ddp",
    "fsdp": "fsdp",
    "fsdp-zero2": {
        "class_path": "lightning.pytorch.strategies.FSDPStrategy",
        "init_args": {"sharding_strategy": "SHARD_GRAD_OP"},
    },
    "fsdp-offload": {
        "class_path": "lightning.pytorch.strategies.FSDPStrategy",
        "init_args": {"cpu_offload": True},
    },
}


def _base(plan: ExportedPlan) -> Mapping[str, Any]:
    whole = plan.epochs is not None and plan.epochs == int(plan.epochs)
    length: dict[str, Any] = (
        {"max_epochs": int(plan.epochs or 0)}
        if whole
        else {"max_epochs": -1, "max_steps": plan.total_updates}
    )
    trainer: dict[str, Any] = {
        "accelerator": {"cuda": "gpu"}.get(plan.device, plan.device),
        "devices": plan.devices // plan.nodes,
        **({"num_nodes": plan.nodes} if plan.nodes > 1 else {}),
        "strategy": _STRATEGIES[plan.strategy],
        **length,
        "accumulate_grad_batches": plan.accumulation,
        "precision": "32-true",
    }
    return {"seed_everything": plan.seed, **{f"trainer.{key}": value for key, value in trainer.items()}}


def _notes(plan: ExportedPlan) -> Iterable[str]:
    yield f"batch: give each device DataLoader(batch_size={plan.micro_batch}), for {plan.global_batch} examples an update."
    made = {"fsdp-zero2": "sharding_strategy='SHARD_GRAD_OP'", "fsdp-offload": "cpu_offload=True"}
    if plan.strategy in made:
        yield f"strategy: LightningCLI makes it; for Trainer(**…) make FSDPStrategy({made[plan.strategy]}) yourself."
    yield from notes_on_windows(plan)


TOOL = Tool(
    name="lightning",
    strategies=("single", "ddp", "fsdp", "fsdp-zero2", "fsdp-offload"),
    base=_base,
    table=lambda plan: _SHARDED if plan.sharded else _TABLE,
    missing={
        "optimizer": "make it in the LightningModule's configure_optimizers.",
        "schedule": "a schedule of this file would step once an epoch. Return it from configure_optimizers with interval: step.",
        "plan.numerics": "the Trainer does not compute in it; the file says float32.",
        "techniques": "the Trainer has no setting for it.",
    },
    notes=_notes,
    write=lambda keys, left_out: (
        ("lightning.yaml", commented(left_out) + yaml.safe_dump(dict(keys), sort_keys=False)),
    ),
)
