"""The same work by Snugfit, by the Trainer of transformers and by TRL: tokens a CPU second and memory, each in a process of its own."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import events_of, newest_run, write_recipe
from dialogue import write_pairs

HERE = Path(__file__).parent
MIB = 2**20
RATE = 1e-3


@dataclass(frozen=True)
class Size:
    """A model of Llama's kind and the windows that it is trained on."""

    vocabulary: int = 8192
    width: int = 256
    layers: int = 4
    length: int = 256
    global_batch: int = 16
    updates: int = 12
    repeats: int = 3


FULL = Size()
TINY = Size(vocabulary=400, width=32, layers=2, length=64, global_batch=4, updates=4, repeats=1)

WORK = {"causal-lm": ("snugfit", "HF Trainer"), "instruction": ("snugfit", "HF Trainer", "TRL")}
"""The contenders of each work: TRL's trainer is for conversations."""


def prepare(task: str, text: Path, folder: Path, size: Size) -> Path:
    """Write weights, rows, the recipe, and the windows that its run is made of, for the others; return the recipe."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from snugfit.models.small import write_small_model
    from snugfit.recipe import load_recipe
    from snugfit.tools.setup import recipe_setup

    folder.mkdir(parents=True, exist_ok=True)
    write_small_model(
        folder / "model",
        [text.read_text()],
        kind="decoder",
        vocabulary=size.vocabulary,
        width=size.width,
        layers=size.layers,
        positions=size.length,
        turn_marks=("<|im_start|>", "<|im_end|>"),
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "model")).save_pretrained(
        folder / "model"
    )
    data = f"train: {text}, validation: null, max_length: {size.length}"
    if task == "instruction":
        rows = write_pairs(text, folder / "rows.jsonl", size.global_batch * size.updates)
        data = f"train: {rows}, validation: null, text: [prompt], completion: completion, max_length: {size.length}, template: chatml, bad_rows: skip"
    recipe = write_recipe(
        folder / "peers.yaml",
        {
            "name": "peers",
            "task": task,
            "model": str(folder / "model"),
            "data": f"{{{data}}}",
            "train": f"{{updates: {size.updates}, global_batch: {size.global_batch}}}",
            "optimizer": f"{{adamw: {{learning_rate: {RATE}, weight_decay: 0.0}}}}",
            "schedule": "null",
            "techniques": "[{clip_norm: {max_norm: 1.0}}]",
            "plan": f"{{device: cpu, numerics: fp32, micro_batch: {size.global_batch}, num_workers: 0}}",
            "track": "{mlflow: false}",
            "hooks": "{on_update: 'clock:cpu_seconds'}",
            "folder": str(HERE),
            "output": str(folder / "runs"),
        },
    )
    setup, _ = recipe_setup(load_recipe(recipe, [], allow_code=True))
    windows = [dict(window.data) for window in setup.loader().windows(0, size.updates)]
    torch.save(windows, folder / "windows.pt")
    return recipe


def by_snugfit(folder: Path) -> dict[str, Any]:
    """Train by the recipe, as the command does."""
    from snugfit.recipe import load_recipe
    from snugfit.run.from_recipe import train_recipe

    recipe = load_recipe(folder / "peers.yaml", [], allow_code=True)
    before = resident_bytes()
    train_recipe(recipe)
    run = newest_run(folder / "runs")
    assert run is not None
    updates = [event["metrics"] for event in events_of(run) if event["event"] == "update"]
    return {
        "before": before,
        "losses": [each["loss"] for each in updates],
        "marks": [each["cpu_seconds"] for each in updates],
    }


class Windows:
    """The windows as a loader gives them."""

    def __init__(self, windows: Sequence[Any], batch_size: int) -> None:
        self.windows, self.batch_size = windows, batch_size
        self.dataset = [None] * batch_size * len(windows)

    def __len__(self) -> int:
        return len(self.windows)

    def __iter__(self) -> Iterator[Any]:
        return (dict(window) for window in self.windows)


def by_trainer(folder: Path) -> dict[str, Any]:
    """Train on the windows by transformers' Trainer."""
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    return trained(
        folder,
        Trainer,
        lambda given, windows: given(
            model, TrainingArguments(**arguments_of(folder, len(windows))), train_dataset=windows.dataset
        ),
    )


def by_trl(folder: Path) -> dict[str, Any]:
    """Train on the windows by TRL's trainer of conversations."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")

    def make(given: Any, windows: Windows) -> Any:
        rows = [{"input_ids": [1, 2], "labels": [1, 2]}] * len(
            windows.dataset
        )  # the loader gives the windows
        settings = SFTConfig(
            **arguments_of(folder, len(windows)), gradient_checkpointing=False, max_length=None
        )
        return given(model, settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)

    return trained(folder, SFTTrainer, make)


def arguments_of(folder: Path, updates: int) -> dict[str, Any]:
    """Return the settings that both trainers share with the recipe."""
    return {
        "output_dir": str(folder / "peer"),
        "max_steps": updates,
        "learning_rate": RATE,
        "weight_decay": 0.0,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "logging_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "save_strategy": "no",
        "remove_unused_columns": False,
    }


def trained(folder: Path, trainer: type, make: Callable[[Any, Windows], Any]) -> dict[str, Any]:
    """Train on the windows by a trainer of transformers' kind."""
    import torch

    windows = torch.load(folder / "windows.pt")
    losses: list[float] = []
    marks: list[float] = []

    class Given(trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return Windows(windows, len(windows[0]["input_ids"]))

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            losses.append((loss[0] if isinstance(loss, tuple) else loss).item())
            return loss

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            marks.append(time.process_time())  # so far, the updates before this one are done
            return super().training_step(*args, **kwargs)

    made = make(Given, Windows(windows, len(windows[0]["input_ids"])))
    before = resident_bytes()
    made.train()
    marks.append(time.process_time())
    return {"before": before, "losses": losses, "marks": marks[1:]}


CONTENDERS = {"snugfit": by_snugfit, "HF Trainer": by_trainer, "TRL": by_trl}


def resident_bytes() -> int:
    """Return the bytes that this process is resident with."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """Return the most that this process was resident with; `ru_maxrss` would begin with that of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def measure(name: str, folder: Path) -> None:
    """Train by a contender in this process, and print its figures."""
    import torch

    torch.set_num_threads(1)  # CPU seconds of several count their waits for each other
    figures = CONTENDERS[name](folder)
    print(json.dumps({**figures, "peak": peak_bytes()}))


def in_process(name: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "run.py"), "measure", name, str(folder)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, command)
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def figures(task: str, text: Path, folder: Path, size: Size) -> dict[str, Any]:
    """Return for each contender tokens a CPU second, the peak of memory, and how far its losses are from Snugfit's."""
    import torch

    prepare(task, text, folder, size)
    windows = torch.load(folder / "windows.pt")
    tokens = [int(window["attention_mask"].sum()) for window in windows]
    raw: dict[str, list[dict[str, Any]]] = {name: [] for name in WORK[task]}
    for repeat in range(size.repeats):
        for name in (*raw,) if repeat % 2 == 0 else reversed((*raw,)):
            raw[name].append(in_process(name, folder))
            print(task, name, f"{seconds_of(raw[name][-1]):.1f} s", flush=True)
    own = raw["snugfit"][0]["losses"]
    result: dict[str, Any] = {"tokens": sum(tokens), "first_losses": own[:2], "last_loss": own[-1]}
    for name, repeats in raw.items():
        seconds = min(map(seconds_of, repeats))
        result[name] = {
            "tokens_per_cpu_second": sum(tokens[1:]) / seconds,
            "seconds": [seconds_of(each) for each in repeats],
            "peak_bytes": min(each["peak"] for each in repeats),
            "before_bytes": min(each["before"] for each in repeats),
            "losses_off": max(
                abs(loss - other) / other for loss, other in zip(repeats[0]["losses"], own, strict=True)
            ),
        }
        assert math.isfinite(result[name]["losses_off"])
    return result


def seconds_of(figures: dict[str, Any]) -> float:
    """Return CPU seconds from the end of the first update to that of the last."""
    return float(figures["marks"][-1] - figures["marks"][0])
