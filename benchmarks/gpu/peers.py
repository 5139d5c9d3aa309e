"""An 8B-shaped QLoRA, sequence 2,048: Snugfit beside HF Trainer with peft and bitsandbytes, as people run it today."""

from __future__ import annotations

import gc
import itertools
import tempfile
import time
from typing import Any

import torch
from shapes import DEVICE, DTYPE, Result, config_of, llama, measure, window
from torch import nn

from snugfit import Step
from snugfit.techniques import find

UPDATES = 6


def ours(shape: str, rows: int, tokens: int, micro_batch: int) -> dict[str, Any]:
    techniques = [
        find("lora")(rank=16, alpha=32.0),
        find("recompute")(),
        find("chunked_loss")(),
        find("clip_norm")(max_norm=0.3),
        *([find("bf16")()] if DEVICE.type == "cuda" else []),
    ]
    step = Step(
        llama(shape, tokens).to(DEVICE),
        find("adamw")(learning_rate=2e-4),
        "causal_lm",
        techniques,
        micro_batch=micro_batch,
        nominal=float(rows * tokens),
    )
    data = window(shape, rows, tokens)
    return measure(lambda: step(data).loss, rows * tokens, repeats=UPDATES - 1)


def theirs(shape: str, rows: int, tokens: int, micro_batch: int) -> dict[str, Any]:
    """`Trainer` with gradient checkpointing and bf16 on a model whose blocks are bitsandbytes' `Linear4bit`."""
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import Trainer, TrainerCallback, TrainingArguments

    model = prepare_model_for_kbit_training(_bitsandbytes(shape, tokens))
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    data = window(shape, rows, tokens)
    examples = [{name: tensor[row] for name, tensor in data.items()} for row in range(rows)] * UPDATES
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=rows // micro_batch,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        max_steps=UPDATES,
        max_grad_norm=0.3,
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        bf16=DEVICE.type == "cuda",
        use_cpu=DEVICE.type != "cuda",
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    marks: list[float] = []

    class Marks(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
            marks.append(time.perf_counter())

    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    Trainer(model=model, args=arguments, train_dataset=examples, callbacks=[Marks()]).train()
    seconds = [after - before for before, after in itertools.pairwise(marks)]
    found: dict[str, Any] = {
        "tokens_per_second": rows * tokens / sorted(seconds)[len(seconds) // 2],
        "seconds": seconds,
    }
    if DEVICE.type == "cuda":
        found["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
    return found


def _bitsandbytes(shape: str, tokens: int) -> nn.Module:
    """The model as `from_pretrained` with `load_in_4bit` makes it, without the file."""
    import bitsandbytes as bnb
    from transformers import LlamaForCausalLM

    from snugfit.core.layers import replace_module
    from snugfit.core.quantising import quantisable

    model = llama(shape, tokens)
    with torch.device("meta"):
        stock = LlamaForCausalLM(config_of(shape, tokens))
    for name in quantisable(stock, (), "nf4"):
        old = model.get_submodule(name)
        size = (old.out_features, old.in_features)
        weight = torch.empty(*size, dtype=DTYPE, device=DEVICE).normal_(std=0.02)
        made = bnb.nn.Linear4bit(
            size[1], size[0], bias=False, compute_dtype=DTYPE, quant_type="nf4", device="meta"
        )
        made.weight = bnb.nn.Params4bit(
            weight.cpu(), requires_grad=False, compress_statistics=True, quant_type="nf4"
        )
        replace_module(model, name, made.to(DEVICE))
    model.is_loaded_in_4bit = True
    return model.to(DEVICE)


def main() -> None:
    result = Result()
    shape, tokens, rows, micro_batch = ("toy", 32, 4, 2) if result.toy else ("8b", 2048, 4, 2)
    for name, train in (("snugfit", ours), ("peers", theirs)):
        result[name] = train(shape, rows, tokens, micro_batch)
        gc.collect()
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()
    for figure in ("tokens_per_second", "peak_allocated_bytes"):
        if figure in result["peers"]:
            result[f"{figure}_ratio"] = result["snugfit"][figure] / result["peers"][figure]


if __name__ == "__main__":
    main()
