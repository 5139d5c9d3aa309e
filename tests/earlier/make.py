"""Make the runs that `test_earlier_runs.py` goes on with: `python tests/earlier/make.py FOLDER`, by the release that they stand for.

The recipes are those in `made/`: a module of the user's own, and a language model with adapters on a base in 4 bits. Of each there is a run
that was stopped half-way, and what the uninterrupted one comes to.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent / "made"
RECIPES = {"mlp": 8, "lm": 6}
"""Recipes, each with the update after which its run is stopped."""


def make_base(folder: Path) -> None:
    """Write a model of Llama's kind with a tokenizer of bytes, and texts."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.model_max_length = 64
    fast.save_pretrained(folder / "base")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "base")
    texts = [f"row {row}: " + "the quick brown fox "[: 5 + row % 13] * (1 + row % 3) for row in range(40)]
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    (folder / "texts.jsonl").write_text("".join(lines), encoding="utf-8")


def train(folder: Path, recipe: str, stop_at: int | None = None) -> Path:
    """Run the recipe, stopped after an update where one is given, and return the run's folder."""
    command = [sys.executable, "-m", "snugfit", "train", recipe, "--no-plan", "-q"]
    process = subprocess.Popen(command, cwd=folder)
    while process.poll() is None:
        time.sleep(0.05)
        if stop_at is not None and any(
            len(updates_of(run)) >= stop_at for run in (folder / "runs").glob("*/*")
        ):
            process.send_signal(signal.SIGTERM)
            stop_at = None
    (run,) = (folder / "runs").glob("*/*")
    return run


def updates_of(run: Path) -> list[float]:
    """The loss of each update of a run."""
    path = run / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("}")]
    return [each["metrics"]["loss"] for each in events if each["event"] == "update"]


def make(folder: Path, name: str, stop_at: int) -> None:
    whole = train(folder, f"{name}.yaml")
    reference = {"losses": updates_of(whole)}
    shutil.copytree(whole / "best", folder / "best")
    shutil.rmtree(folder / "runs")
    stopped = train(folder, f"{name}.yaml", stop_at)
    assert len(updates_of(stopped)) < len(reference["losses"]), "it ended before it was stopped"
    (stopped / "report.html").unlink(missing_ok=True)
    stopped.rename(folder / "stopped")
    shutil.rmtree(folder / "runs")
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    (folder / "expected.json").write_text(json.dumps(reference) + "\n", encoding="utf-8")


def main() -> None:
    root = Path(sys.argv[1])
    for name, stop_at in RECIPES.items():
        folder = root / name
        folder.mkdir(parents=True)
        for path in (HERE / name).glob("*"):
            if path.suffix in (".yaml", ".py"):
                shutil.copy(path, folder)
        if name == "lm":
            make_base(folder)
        make(folder, name, stop_at)


if __name__ == "__main__":
    main()
