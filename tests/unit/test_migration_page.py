"""The page about other trainers, executed as it is written: both sides of each pair end with the same weights."""

from __future__ import annotations

import copy
import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import nn

import snugfit as sf
from snugfit.tasks import discover

PAGE = (Path(sf.__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")
EPOCHS, ROWS, CLASSES = 2, 12, 3


@pytest.fixture(autouse=True)
def without_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send no run to MLflow, of which a new database takes longer than all else here."""
    monkeypatch.setattr(sf, "train", functools.partial(sf.train, track=False))


def sides(heading: str) -> tuple[str, str]:
    section = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (text,) = [each for each in section if each.startswith(f"{heading}\n")]
    before, after = re.findall(r"```\w+\n(# (?:before|after)\n.*?)```", text, re.DOTALL)
    return before, after


def trained(source: str, model: nn.Module, **names: Any) -> nn.Module:
    """The model after a side was executed on a copy of it."""
    own = copy.deepcopy(model)
    space = {"torch": torch, "F": F, "sf": sf, "model": own, "epochs": EPOCHS, **names}
    exec(compile(source, "docs/migration.md", "exec"), space)
    return own


def assert_same(model: nn.Module, theirs: nn.Module, ours: nn.Module) -> None:
    moved = 0.0
    for begin, left, right in zip(model.parameters(), theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(right, left, rtol=1e-4, atol=2e-6)
        moved = max(moved, float((left - begin).detach().abs().max()))
    assert moved > 1e-3


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> torch.utils.data.DataLoader[Any]:
    """Two batches, the second one shorter, in a fixed order."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(ROWS, 4), torch.randint(0, CLASSES, (ROWS,)))
    return torch.utils.data.DataLoader(data, batch_size=7)


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def test_a_loop_of_ones_own(network: nn.Module, loader: Any) -> None:
    before, after = sides("A loop of your own")
    assert_same(network, trained(before, network, loader=loader), trained(after, network, loader=loader))


def test_accelerate(network: nn.Module, loader: Any) -> None:
    from accelerate import Accelerator

    before, after = sides("Accelerate")
    theirs = trained(before, network, loader=loader, Accelerator=Accelerator)
    assert_same(network, theirs, trained(after, network, loader=loader))


def test_hf_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config)
    source = torch.Generator().manual_seed(1)
    rows = [
        {
            "input_ids": torch.randint(0, 20, (6,), generator=source),
            "labels": torch.tensor(row % CLASSES),
        }
        for row in range(ROWS)
    ]
    before, after = sides("HF Trainer")
    theirs = trained(before, model, rows=rows, Trainer=Trainer, TrainingArguments=TrainingArguments)
    assert_same(model, theirs, trained(after, model, rows=rows))


def test_lightning(network: nn.Module, loader: Any) -> None:
    before, after = sides("Lightning")
    ours = trained(after, network, dataset=loader.dataset)
    assert_same(network, by_hand(network, loader.dataset), ours)
    lightning = pytest.importorskip("lightning")
    theirs = trained(before, network, dataset=loader.dataset, lightning=lightning)
    assert_same(network, theirs, ours)


def by_hand(model: nn.Module, dataset: Any) -> nn.Module:
    """What a `Trainer` of Lightning makes of it: the mean of a batch, clipped, and a step of the optimizer."""
    own = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        F.cross_entropy(own(dataset.tensors[0]), dataset.tensors[1]).backward()
        torch.nn.utils.clip_grad_norm_(own.parameters(), 1.0)
        optimizer.step()
    return own


def test_torchtune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe says the same as the config, and reads such rows; its names of layers are those of such a model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    before, after = sides("torchtune")
    theirs = yaml.safe_load(before)
    monkeypatch.chdir(tmp_path)
    rows = [{"instruction": f"Add {n} and {n}.", "input": "", "output": f"{n + n}"} for n in range(40)]
    Path("alpaca.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("r.yaml").write_text(after)
    recipe = sf.load_recipe("r.yaml")
    read_rows = discover()[recipe.task].read_rows
    assert read_rows is not None and len(read_rows(recipe).row_indices) == len(rows)
    (lora,) = recipe.techniques
    assert isinstance(lora, sf.LoRA) and isinstance(recipe.optimizer, sf.AdamW)
    assert recipe.train.global_batch == theirs["batch_size"] * theirs["gradient_accumulation_steps"]
    assert recipe.train.epochs == theirs["epochs"]
    assert recipe.optimizer.learning_rate == float(theirs["optimizer"]["lr"])
    assert recipe.optimizer.weight_decay == theirs["optimizer"]["weight_decay"]
    names = ("rank", "alpha", "dropout")
    assert [getattr(lora, name) for name in names] == [theirs["model"][f"lora_{name}"] for name in names]
    config = LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=8
    )
    layers = {
        name.rpartition(".")[2]
        for name, module in LlamaForCausalLM(config).named_modules()
        if isinstance(module, nn.Linear)
    }
    renamed = {"output_proj": "o_proj"}
    assert set(lora.targets) - {"gate_proj", "up_proj", "down_proj"} == {
        renamed.get(name, name) for name in theirs["model"]["lora_attn_modules"]
    }
    assert set(lora.targets) == layers - {"k_proj", "lm_head"}
