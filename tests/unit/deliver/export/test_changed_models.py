"""Exports of models that techniques have changed: a graph computes with the change, transformers' own formats refuse it by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import snugfit as sf
from snugfit.core.entry import as_entry
from snugfit.core.selection import prepare
from snugfit.core.technique import Technique
from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.deliver.export.export_model import export_source
from snugfit.errors import ModelError
from snugfit.models.bundle import save_bundle
from snugfit.techniques import discover, find
from tests.unit.deliver.export.models import (
    encoder_of_words,
    of_bytes,
    of_words,
    picture_classifier,
    run_card,
    stored,
    text_classifier,
)
from tests.unit.techniques.model_changes import resnet

pytest.importorskip("onnxruntime")


def net_of_pictures() -> nn.Module:
    model = resnet()
    model.config.id2label, model.config.label2id = {0: "red", 1: "green"}, {"red": 0, "green": 1}
    return model


def encoder() -> nn.Module:
    return encoder_of_words(["neg", "neutral", "pos"])


def decoder() -> nn.Module:
    torch.manual_seed(0)
    vocabulary = len(of_bytes()) + 3
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=128, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3
    )
    return GPT2LMHeadModel(config)


CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "blurpool": (net_of_pictures, {"min_channels": 4}),
    "squeeze_excite": (net_of_pictures, {"reduction": 2, "min_channels": 2}),
    "factorized_conv": (net_of_pictures, {"part": 0.5, "min_channels": 4}),
    "alibi": (decoder, {}),
    "glu": (encoder, {}),
    "qk_norm": (encoder, {}),
    "embedding_norm": (encoder, {}),
}
"""Techniques that change modules, and what is delivered with them: a stock model and settings that matter to it."""


def changed(folder: Path, technique: Technique, make: Any) -> tuple[Path, str]:
    """The folder of a model as a run with the technique stores it, and rows."""
    folder.mkdir(parents=True, exist_ok=True)
    if make is net_of_pictures:
        bundle, rows = picture_classifier(folder)
        tokenizer = None
    elif make is encoder:
        bundle, rows = text_classifier(folder)
        tokenizer = of_words()
    else:
        tokenizer = of_bytes()
        bundle, rows = stored(folder, "qwen2", tokenizer)
    meta = json.loads((bundle / "snugfit.json").read_text())
    shutil.rmtree(bundle)
    if make is net_of_pictures:
        meta["pictures"] = PictureFormat(32, 32, 36, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)).as_dict()
    model = prepare(make(), [technique], seed=0).eval()
    save_bundle(bundle, model, {**meta, "extended_by": [as_entry(technique)]}, tokenizer)
    return bundle, rows


def test_every_technique_whose_change_is_delivered_is_exported_here() -> None:
    """Those that take it back when the model is delivered have a test of their own that transformers loads it."""
    rebuilt = {name for name, each in discover().items() if any(stage.rebuilt for stage in each.card.stages)}
    undone = {name for name in rebuilt if "export" in find(name).card.seams}
    assert rebuilt - undone == CHANGES.keys()
    assert undone == {"ghost_batch_norm", "weight_standardization"}


@pytest.mark.parametrize("name", CHANGES)
def test_formats_of_transformers_refuse_a_model_that_was_changed_by_name(name: str, tmp_path: Path) -> None:
    make, settings = CHANGES[name]
    bundle, rows = changed(tmp_path, find(name)(**settings), make)
    with pytest.raises(ModelError, match=f"this one was changed by {name}, .* Take onnx or torch-export"):
        export_source(bundle, "hf", tmp_path / "out", rows=rows)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_a_graph_computes_with_the_change(name: str, tmp_path: Path, reading_here: None) -> None:
    make, settings = CHANGES[name]
    bundle, rows = changed(tmp_path, find(name)(**settings), make)
    result = export_source(bundle, "onnx", tmp_path / "out", rows=rows)
    (compared,) = result["compared"]
    assert compared["reader"].startswith("onnxruntime") and compared["difference"] < 1e-5
    # the comparison would see that the change is left out
    model = sf.load(bundle).model
    inputs = {"pixel_values": torch.randn(1, 3, 32, 32)}
    if make is not net_of_pictures:
        inputs = {"input_ids": torch.tensor([[4, 5, 6, 7]])}
    plain = make().eval()
    own = plain.state_dict()
    state = {n: each for n, each in model.state_dict().items() if n in own and each.shape == own[n].shape}
    plain.load_state_dict(state, strict=False)
    with torch.no_grad():
        assert not torch.allclose(plain(**inputs).logits, model(**inputs).logits, atol=1e-3)


@pytest.mark.parametrize("name", ["blurpool", "glu"])
def test_the_card_of_plain_weights_makes_the_changed_model(name: str, tmp_path: Path) -> None:
    make, settings = CHANGES[name]
    bundle, rows = changed(tmp_path, find(name)(**settings), make)
    export_source(bundle, "state-dict", tmp_path / "out", rows=rows)
    assert not (tmp_path / "out" / "config.json").exists(), "transformers would load it, without the change"
    assert f"was changed by {name} after it was made" in (tmp_path / "out" / "README.md").read_text()
    made = run_card(tmp_path / "out", model=make().eval())["model"]
    inputs = {"input_ids": torch.tensor([[4, 5, 6]])} if make is encoder else {}
    inputs = inputs or {"pixel_values": torch.randn(1, 3, 32, 32)}
    with torch.no_grad():
        assert torch.equal(made(**inputs).logits, sf.load(bundle).model(**inputs).logits)
