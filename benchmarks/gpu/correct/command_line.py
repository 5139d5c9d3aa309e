"""The command line on the device: a language model from scratch, stopped by SIGTERM, resumed, bit for bit the run that was not."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from checks import Settings, check, require

ROOT = Path(__file__).resolve().parents[3]
SHAKESPEARE = ("shared/data/tinyshakespeare.txt", "../shared/data/tinyshakespeare.txt")
RESUMABLE = 75


def text() -> tuple[str, str]:
    """Return a text and its name: tiny Shakespeare where it is beside the tree, else the tree's own documentation."""
    for place in SHAKESPEARE:
        if (ROOT / place).is_file():
            return (ROOT / place).read_text(), "tiny Shakespeare"
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return "\n".join(page.read_text() for page in pages), "the documentation"


def write_recipe(settings: Settings) -> tuple[Path, str]:
    """Write a text, a tokenizer learned from it, a model's configuration and the recipe."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, PreTrainedTokenizerFast

    folder = settings.folder
    words, name = text()
    words = words[: settings.size(1_000_000, 20_000)]
    (folder / "corpus.txt").write_text(words)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.size(2048, 300),
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([words[:200_000]], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.model_max_length = settings.size(256, 32)
    fast.save_pretrained(folder / "model")
    width, layers = settings.size((384, 6), (32, 4))
    GPT2Config(
        vocab_size=len(fast),
        n_embd=width,
        n_layer=layers,
        n_head=4,
        n_positions=settings.size(256, 32),
        initializer_range=settings.size(
            0.02, 0.2
        ),  # else a tiny model's layers matter little for what it says
    ).save_pretrained(folder / "model")
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"""\
name: shakespeare
task: causal-lm
model: {folder / "model"}
from_scratch: true
data: {{train: {folder / "corpus.txt"}, validation: 0.05, max_length: {settings.size(256, 32)}}}
train: {{updates: {settings.size(120, 8)}, global_batch: 16}}
optimizer: {{adamw: {{learning_rate: 1.0e-3, weight_decay: 0.1}}}}
schedule: {{cosine: {{warmup: 0.1}}}}
techniques: [{{clip_norm: {{max_norm: 1.0}}}}, {{ema: {{decay: 0.9}}}}]
evaluate: {{every: {settings.size(40, 4)}, metrics: [perplexity]}}
checkpoint: {{every: {settings.size(10, 2)}, save: async}}
plan: {{device: {settings.device}, numerics: bf16, micro_batch: 8, num_workers: 2, deterministic: true}}
track: {{mlflow: false}}
"""
    )
    return recipe, name


def snugfit(settings: Settings, *arguments: str, stop_at: int | None = None, out: Path | None = None) -> int:
    """Run a command in a process of its own, and return its exit code.

    Args:
        stop_at: it gets SIGTERM once it has told of that update.
        out: what it prints goes to this file.
    """
    sys.stdout.flush(), sys.stderr.flush()
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        if out is not None:
            os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT), 1)
        from snugfit.cli import main

        with stopped_at(stop_at):
            status = main([*arguments])
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 (it goes to the log, and the status says so)
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)


@contextmanager
def stopped_at(update: int | None) -> Iterator[None]:
    """Temporarily send this process SIGTERM when the event of that update is written."""
    from snugfit.tracking.spool import Spool

    append: Callable[..., Any] = Spool.append

    def appending(self: Any, event: str, *args: Any, **kwargs: Any) -> Any:
        outcome = append(self, event, *args, **kwargs)
        if event == "update" and kwargs.get("update") == update:
            os.kill(os.getpid(), signal.SIGTERM)
        return outcome

    with mock.patch.object(Spool, "append", appending):
        yield


def state(output: Path) -> tuple[Path, dict[str, Any]]:
    """Return the one run of a folder, and its newest checkpoint without the description of the plan."""
    from snugfit.run.checkpoint import checkpoint_files

    (run,) = {path.parent for path in output.rglob("events.jsonl")}
    parts = dict(checkpoint_files.load_newest(run / "checkpoints").parts)
    parts["run"].pop("description", None)
    return run, parts


@contextmanager
def another_order_after_resume() -> Iterator[None]:
    """Temporarily draw what layers draw by the process's own number, which a resumed run does not share."""
    from snugfit.step import window_gradients

    derive: Callable[..., int] = window_gradients.derive_seed

    def drawn(*parts: Any) -> int:
        return derive(*parts, os.getpid())

    with mock.patch.object(window_gradients, "derive_seed", drawn):
        yield


@check(
    "a run of the command line that is stopped and resumed is the run that was not, bit for bit",
    150,
    modules=("yaml", "typer", "tokenizers"),
    plants={"resume": another_order_after_resume},
)
def stopped_and_resumed(settings: Settings) -> Mapping[str, Any]:
    from snugfit.tracking.spool import read_events
    from tests.laws.problems import differences

    recipe, name = write_recipe(settings)
    whole, stopped = settings.folder / "whole", settings.folder / "stopped"
    train = ["train", str(recipe), "--quiet"]
    status = snugfit(settings, *train, f"output={whole}")
    require(status == 0, f"snugfit train ended with {status}")
    status = snugfit(settings, *train, f"output={stopped}", stop_at=settings.size(47, 3))
    require(status == RESUMABLE, f"snugfit train ended with {status} after SIGTERM, expected {RESUMABLE}")
    run, _ = state(stopped)
    status = snugfit(settings, "resume", str(run), "--quiet")
    require(status == 0, f"snugfit resume ended with {status}")
    (one, whole_state), (other, resumed_state) = state(whole), state(stopped)
    apart = differences(whole_state, resumed_state)
    losses = [
        [
            event["metrics"]["loss"]
            for event in read_events(each / "events.jsonl")
            if event["event"] == "update"
        ]
        for each in (one, other)
    ]
    figures = {"text": name, "first and last loss": [losses[0][0], losses[0][-1]], "apart": apart[:5]}
    require(losses[0][-1] < losses[0][0], "the loss does not fall", **figures)
    require(not apart, f"the resumed run's state differs in {len(apart)} places", **figures)
    require(losses[0] == losses[1], "the resumed run's losses are others", **figures)
    return figures


@check("snugfit plan says a plan for this device", 90, modules=("yaml", "typer", "tokenizers"))
def plan(settings: Settings) -> Mapping[str, Any]:
    recipe, _ = write_recipe(settings)
    printed = settings.folder / "printed"
    status = snugfit(settings, "plan", str(recipe), "--json", out=printed)
    require(status == 0, f"snugfit plan ended with {status}: {printed.read_text()[-800:]}")
    answer = json.loads(printed.read_text().strip().splitlines()[-1])
    require(answer["fits"], "the plan does not fit", plan=answer)
    names = ("fits", "choice", "peak_bytes", "reserved_bytes", "seconds_per_update", "confidence", "why")
    return {name: answer[name] for name in names}
