"""An 8B QLoRA beside Hugging Face's Trainer with peft and bitsandbytes, and beside TRL, each at its defaults and tuned, in turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks import Settings, check, require
from material import LLAMAS, on, tokens_window
from quantized import bitsandbytes_llama, lora_step, nf4_llama

UNSLOTH = {
    "times as fast as Hugging Face with FlashAttention 2": 2.0,
    "less memory": "more than 70%",
    "for": "Llama 3.1 8B, rank 32, batches of 2, 4 accumulated",
    "source": "https://docs.unsloth.ai/basics/unsloth-benchmarks",
}
"""Published by Unsloth, not measured here."""
TUNED: Mapping[str, Any] = {
    "bf16": True,
    "optim": "adamw_torch_fused",
    "gradient_checkpointing": True,
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
    "max_grad_norm": 0.3,
}
DEFAULTS: Mapping[str, Any] = {}


def adapted(shape: str, tokens: int, device: str, checkpointing: bool) -> Any:
    """Return the model of bitsandbytes' layers as peft prepares it, with the same adapters as ours."""
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    model = prepare_model_for_kbit_training(
        bitsandbytes_llama(shape, tokens, device), use_gradient_checkpointing=checkpointing
    )
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))


@check("8B QLoRA beside Trainer and TRL", 200, alone=True, modules=("peft", "bitsandbytes", "accelerate"))
def beside_others(settings: Settings) -> Mapping[str, Any]:
    import frameworks
    from turns import Loop, in_turns

    # TRL first: where it cannot be imported, Trainer must not find what it came with
    no_trl = frameworks.use_trl()
    shape, tokens, rows, micro_batch = settings.size(("8b", 2048, 4, 2), ("toy", 16, 4, 2))
    data = tokens_window(LLAMAS[shape]["vocabulary"], rows, tokens)
    here = on(settings.device, data)
    on_cpu = {} if settings.cuda else {"bf16": False, "optim": "adamw_torch"}

    def ours() -> Any:
        step = lora_step(
            settings, nf4_llama(shape, tokens, settings.device, settings.device), rows, tokens, micro_batch
        )
        return Loop(lambda: step(here))

    def theirs(kind: Any, given: Mapping[str, Any]) -> Any:
        arguments = {
            **given,
            **(on_cpu if given else {"bf16": False, "optim": "adamw_torch"} if on_cpu else {}),
        }
        checkpointing = bool(given) or kind is frameworks.trainer  # as each has it by default
        return lambda: kind(
            adapted(shape, tokens, settings.device, checkpointing),
            data,
            settings.device,
            micro_batch,
            arguments,
        )

    makers = {
        "snugfit": ours,
        "Trainer with peft and bitsandbytes, tuned": theirs(frameworks.trainer, TUNED),
        "Trainer with peft and bitsandbytes, defaults": theirs(frameworks.trainer, DEFAULTS),
    }
    if no_trl is None:
        makers["TRL, tuned"] = theirs(frameworks.trl, TUNED)
        makers["TRL, defaults"] = theirs(frameworks.trl, DEFAULTS)
    about = {
        "shape": dict(LLAMAS[shape]),
        "rows": rows,
        "tokens": tokens,
        "micro_batch": micro_batch,
        "tuned": TUNED,
        "trl": no_trl or "imported",
        "published": UNSLOTH,
    }
    rivals = in_turns(
        makers,
        settings.device,
        tokens=rows * tokens,
        warm=1,
        updates=1,
        repeats=settings.size(5, 2),
        note=lambda rows: settings.note({**about, "rivals": rows}),
    )
    figures: dict[str, Any] = {**about, "rivals": rivals}
    require("error" not in rivals["snugfit"], f"snugfit: {rivals['snugfit'].get('error')}", **figures)
    for name, row in rivals.items():
        if name != "snugfit" and "error" not in row:
            row["times the tokens per second"] = (
                rivals["snugfit"]["tokens_per_second"] / row["tokens_per_second"]
            )
            if settings.cuda:
                row["share of its memory"] = (
                    rivals["snugfit"]["peak_allocated_bytes"] / row["peak_allocated_bytes"]
                )
    return figures
