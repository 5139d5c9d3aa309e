"""Transformers' Trainer: `TrainingArguments` as JSON, with peft's and bitsandbytes' settings beside it.

Names and meanings are those of transformers 5.23, peft 0.21.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fnmatch import translate
from typing import Any

from snugfit.planner.export.exported_plan import ExportedPlan
from snugfit.planner.export.name_tables import ByHand, Rule, Table, Tool, file_of_left_out, of, planned

_FILES = {"args": "training_args.json", "lora": "lora.json", "quantization": "quantization.json"}
"""The first part of each key says which file it is in."""

_HEADS = r"(?:.*\.)?(?:classifier|score|lm_head|qa_outputs|classification_head)(?:\..*)?"
"""Heads by the names that transformers gives them: peft's "all-linear" would adapt what is to train in full."""

_DECAYED = {
    "weight_decay": "what is spared weight decay goes by name there (bias, norm): vectors of other names, such as bn.weight or "
    "class tokens, are decayed."
}
_WARMUP = {"warmup": "warm-up begins at 0 there, so each of its rates comes one update later."}
_BETAS = {
    "args.adam_beta1": of("betas", by=lambda betas: betas[0]),
    "args.adam_beta2": of("betas", by=lambda betas: betas[1]),
}
_RATES = {"args.learning_rate": of("learning_rate"), "args.weight_decay": of("weight_decay")}
_ADAM = {**_RATES, **_BETAS, "args.adam_epsilon": of("epsilon")}
_STEPS = {"args.warmup_steps": planned("warmup", by=ExportedPlan.updates)}


def _pairs(**settings: Any) -> str:
    """Return how `optim_args` is written."""
    return ",".join(f"{name}={value}" for name, value in settings.items())


def _cooldown(plan: ExportedPlan, cooldown: float, warmup: float) -> int:
    return min(plan.updates(cooldown), plan.total_updates - plan.updates(warmup))


def _flat_cooldown(plan: ExportedPlan, flat: float, warmup: float) -> int:
    return round((plan.total_updates - plan.updates(warmup)) * (1 - flat))


_TABLE: Table = {
    "adamw": Rule({"args.optim": "adamw_torch_fused", **_ADAM}, differs=_DECAYED),
    "adamw_8bit": Rule(
        {
            "args.optim": of("paged", by=lambda paged: "paged_adamw_8bit" if paged else "adamw_bnb_8bit"),
            **_ADAM,
        },
        differs=_DECAYED,
    ),
    "adamw_4bit": Rule({"args.optim": "adamw_torch_4bit", **_ADAM}, differs=_DECAYED),
    "lion": Rule({"args.optim": "lion_32bit", **_RATES, **_BETAS}, differs=_DECAYED),
    "adafactor": Rule({"args.optim": "adafactor", **_RATES}, fixed={"relative": False}, differs=_DECAYED),
    "sgd": Rule(
        {
            "args.optim": "sgd",
            "args.optim_args": of(
                "momentum",
                "nesterov",
                by=lambda momentum, nesterov: _pairs(momentum=momentum, nesterov=nesterov),
            ),
            **_RATES,
        },
        differs=_DECAYED,
    ),
    "rmsprop": Rule(
        {
            "args.optim": "rmsprop",
            "args.optim_args": of(
                "decay",
                "epsilon",
                "momentum",
                "centered",
                by=lambda decay, epsilon, momentum, centered: _pairs(
                    alpha=decay, eps=epsilon, momentum=momentum, centered=centered
                ),
            ),
            **_RATES,
        },
        differs=_DECAYED,
    ),
    "schedule_free": Rule(
        {"args.optim": "schedule_free_adamw", **_ADAM, **_STEPS},
        fixed={"norm_windows": 0},
        differs=_DECAYED,
    ),
    "constant": Rule({"args.lr_scheduler_type": "constant_with_warmup", **_STEPS}, differs=_WARMUP),
    "linear": Rule({"args.lr_scheduler_type": "linear", **_STEPS}, differs=_WARMUP),
    "cosine": Rule(
        {
            "args.lr_scheduler_type": "cosine_with_min_lr",
            "args.lr_scheduler_kwargs.min_lr_rate": of("minimum"),
            **_STEPS,
        },
        differs=_WARMUP,
    ),
    "polynomial": Rule(
        {
            "args.lr_scheduler_type": "polynomial",
            "args.lr_scheduler_kwargs.power": of("power"),
            "args.lr_scheduler_kwargs.lr_end": planned(
                "minimum", by=lambda plan, minimum: minimum * plan.learning_rate
            ),
            **_STEPS,
        },
        differs=_WARMUP,
    ),
    "inverse_sqrt": Rule(
        {
            "args.lr_scheduler_type": "inverse_sqrt",
            "args.lr_scheduler_kwargs.timescale": of("timescale"),
            **_STEPS,
        },
        differs={
            "": "the whole rate holds for one update more there, and all later ones come one update later."
        },
    ),
    "wsd": Rule(
        {
            "args.lr_scheduler_type": "warmup_stable_decay",
            "args.lr_scheduler_kwargs.num_decay_steps": planned("cooldown", "warmup", by=_cooldown),
            "args.lr_scheduler_kwargs.decay_type": of("shape"),
            "args.lr_scheduler_kwargs.min_lr_ratio": of("minimum"),
            **_STEPS,
        },
        differs={"warmup": "warm-up begins at the minimum there, one update later."},
    ),
    "flat_cosine": Rule(
        {
            "args.lr_scheduler_type": "warmup_stable_decay",
            "args.lr_scheduler_kwargs.num_decay_steps": planned("flat", "warmup", by=_flat_cooldown),
            "args.lr_scheduler_kwargs.decay_type": "cosine",
            **_STEPS,
        },
        differs=_WARMUP,
    ),
    "fp32": Rule({"args.tf32": False}),
    "tf32": Rule({"args.tf32": True}),
    "bf16": Rule({"args.bf16": True, "args.tf32": False}),
    "fp16": Rule({"args.fp16": True, "args.tf32": False}),
    "pure_bf16": "the Trainer trains in the type that the model was loaded in: from_pretrained(…, dtype=torch.bfloat16). It rounds "
    "each update to the nearest number, so that small steps are lost.",
    "clip_norm": Rule({"args.max_grad_norm": of("max_norm")}),
    "label_smoothing": Rule({"args.label_smoothing_factor": of("epsilon")}),
    "length_grouping": Rule(
        {"args.train_sampling_strategy": "group_by_length"},
        differs={
            "": "lengths are grouped over the whole epoch there, so that each update has rows of like length, not each micro-batch."
        },
    ),
    "recompute": Rule(
        {
            "args.activation_checkpointing": True,
            "args.activation_checkpointing_kwargs.use_reentrant": False,
        }
    ),
    "compile": Rule(
        {
            "args.torch_compile": True,
            "args.torch_compile_backend": of("backend"),
            "args.torch_compile_mode": of("mode"),
        },
        fixed={"per_block": False},
    ),
    "lora": Rule(
        {
            "lora.peft_type": "LORA",
            "lora.r": of("rank"),
            "lora.lora_alpha": of("alpha"),
            "lora.lora_dropout": of("dropout"),
            "lora.use_dora": of("dora"),
            "lora.use_rslora": of("rslora"),
            "lora.target_modules": of("targets", by=lambda targets: _expression(targets)),
            "lora.exclude_modules": of("targets", by=lambda targets: None if targets else _HEADS),
            "lora.modules_to_save": of("head", by=lambda head: head and list(head)),
        },
        differs={
            "": "lora.json is peft's: get_peft_model(model, LoraConfig(**json.load(open('lora.json')))). Name a new head in "
            "modules_to_save, or it stays frozen there."
        },
    ),
    "nf4": Rule(
        {
            "quantization.load_in_4bit": True,
            "quantization.bnb_4bit_quant_type": "nf4",
            "quantization.bnb_4bit_use_double_quant": of("double"),
            "quantization.bnb_4bit_compute_dtype": planned(
                by=lambda plan: "bfloat16" if "bf16" in str(plan.numerics) else "float32"
            ),
        },
        differs={
            "": "quantization.json is bitsandbytes': from_pretrained(…, quantization_config="
            "BitsAndBytesConfig(**json.load(open('quantization.json'))))."
        },
    ),
    "int8": Rule(
        {"quantization.load_in_8bit": True},
        differs={
            "": "quantization.json is bitsandbytes' (see BitsAndBytesConfig), whose 8-bit layers round their inputs too."
        },
    ),
    "attention_kernel": ByHand("it is the model's there: from_pretrained(…, attn_implementation=…)."),
    "packing": ByHand(
        "it is the collator's there: DataCollatorWithFlattening, for models that take position ids."
    ),
    "chunked_loss": "use_liger_kernel does something like it for the models that Liger knows.",
    "optimizer_offload": "the Trainer has it through DeepSpeed: export with --export deepspeed too, and give the file as "
    "TrainingArguments(deepspeed=…).",
    "freeze": ByHand(
        "set requires_grad of the parameters before the Trainer is made; what is frozen then never trains."
    ),
    "plateau": "reduce_lr_on_plateau is there, and follows the evaluations that TrainingArguments ask for.",
}
_SHARDED: Table = {
    **_TABLE,
    "recompute": Rule({"args.fsdp_config.activation_checkpointing": True}),
    "optimizer_offload": Rule(
        {"args.fsdp_config.cpu_offload": True},
        differs={"": "weights and gradients are kept in host memory too there."},
    ),
}


def _expression(targets: tuple[str, ...]) -> str:
    """Peft's `target_modules`: names or their ends, as our patterns mean them; peft's own word for all linear layers."""
    return "|".join(rf"(?:.*\.)?{translate(pattern)}" for pattern in targets) or "all-linear"


def _base(plan: ExportedPlan) -> Mapping[str, Any]:
    length = {"max_steps": plan.total_updates} if plan.epochs is None else {"num_train_epochs": plan.epochs}
    keys: dict[str, Any] = {
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": plan.accumulation,
        "average_tokens_across_devices": True,
        **length,
        "seed": plan.seed,
        "use_cpu": plan.device == "cpu",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
    }
    if plan.sharded:
        keys |= {
            "fsdp": True,
            "fsdp_config.version": 2,
            "fsdp_config.reshard_after_forward": plan.reshards,
            "fsdp_config.cpu_offload": plan.offloads,
        }
    return {f"args.{key}": value for key, value in keys.items()}


def _notes(plan: ExportedPlan) -> Iterable[str]:
    if plan.devices > 1:
        yield f"devices: start the script with torchrun --nproc-per-node {plan.devices}; another number changes the global batch."
    if plan.max_length is not None:
        yield f"max_length: cut the examples where they become tokens: tokenizer(…, truncation=True, max_length={plan.max_length})."
    if plan.accumulation > 1:
        yield (
            f"accumulation: a model whose loss does not take num_items_in_batch gets gradients {plan.accumulation} times too large: BERT's "
            "sequence and token classifiers and masked language model, their kin, and a forward of your own with **kwargs. Set "
            "model.accepts_loss_kwargs = False before the Trainer is made."
        )


def _write(keys: Mapping[str, Any], left_out: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    files = tuple((_FILES[part], json.dumps(values, indent=2) + "\n") for part, values in keys.items())
    return files + file_of_left_out("hf", left_out)


_OWN = "the Trainer has none; make it yourself and give it as Trainer(optimizers=(optimizer, scheduler))."

TOOL = Tool(
    name="hf",
    strategies=("single", "ddp", "fsdp", "fsdp-zero2", "fsdp-offload"),
    base=_base,
    table=lambda plan: _SHARDED if plan.sharded else _TABLE,
    missing={
        "optimizer": _OWN,
        "schedule": _OWN,
        "plan.numerics": "the Trainer does not compute in it; the file says float32.",
        "techniques": "TrainingArguments have no setting for it.",
    },
    notes=_notes,
    write=_write,
)
