"""What the tests of techniques that change a model share."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification

import snugfit as sf
from snugfit.core.technique import Technique
from snugfit.deliver.predict import extended
from snugfit.models.bundle import load_bundle


def resnet() -> nn.Module:
    """A stock net with convolutions, strided ones, a maximum over neighbours, and batch norm."""
    config = ResNetConfig(
        num_channels=3, embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=2
    )
    torch.manual_seed(0)
    return ResNetForImageClassification(config)


def again_from_its_bundle(folder: Path, technique: Technique, model: nn.Module | None = None) -> None:
    """Check that a model that was trained with a technique predicts the same from its bundle, and otherwise without the technique."""
    source = torch.Generator().manual_seed(0)
    images = torch.randn(12, 3, 32, 32, generator=source)
    rows = [{"pixel_values": image, "labels": torch.tensor(place % 2)} for place, image in enumerate(images)]
    model = resnet() if model is None else model
    result = sf.train(
        model,
        rows,
        optimizer=sf.SGD(learning_rate=0.1),
        techniques=[technique],
        validation=rows[:4],
        global_batch=6,
        updates=3,
        output=str(folder),
        name="changed",
        device="cpu",
        track=False,
    )
    loaded, _, _ = load_bundle(Path(result.run_dir) / "best", extend=extended)
    trained = result.model.eval()
    with torch.no_grad():
        here, there = (each(pixel_values=images).logits for each in (trained, loaded))
        plain = resnet().eval()
        plain.load_state_dict(trained.state_dict(), strict=False)
        without = plain(pixel_values=images).logits
    assert torch.equal(here, there)
    assert not torch.allclose(here, without, atol=1e-4), "it changes what the model computes"
