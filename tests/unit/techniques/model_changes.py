"""What the tests of techniques that change a model share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

import snugfit as sf
from snugfit.core.technique import Technique
from snugfit.deliver.predictor import extended
from snugfit.models.bundle import load_bundle


def resnet() -> nn.Module:
    """A stock net with convolutions, strided ones, a maximum over neighbours, and batch norm."""
    config = ResNetConfig(
        num_channels=3, embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=2
    )
    torch.manual_seed(0)
    return ResNetForImageClassification(config)


def vit() -> nn.Module:
    """A stock vision transformer for the same images."""
    config = ViTConfig(
        image_size=32,
        patch_size=16,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
    )
    torch.manual_seed(0)
    return ViTForImageClassification(config)


def again_from_its_bundle(folder: Path, technique: Technique, make: Callable[[], nn.Module] = resnet) -> None:
    """Check that a model that was trained with a technique predicts the same from its bundle, and otherwise without the technique."""
    best, trained, images = _trained(folder, technique, make)
    loaded, _, _ = load_bundle(best, extend=extended)
    with torch.no_grad():
        here, there = (each(pixel_values=images).logits for each in (trained, loaded))
        plain = make().eval()
        own = plain.state_dict()
        state = {name: each for name, each in trained.state_dict().items() if name in own}
        plain.load_state_dict(
            {n: each for n, each in state.items() if each.shape == own[n].shape}, strict=False
        )
        without = plain(pixel_values=images).logits
    assert torch.equal(here, there)
    assert not torch.allclose(here, without, atol=1e-4), "it changes what the model computes"


def stock_from_its_bundle(folder: Path, technique: Technique) -> None:
    """Check that transformers alone loads a model that was trained with a technique, and gives its very outputs."""
    best, trained, images = _trained(folder, technique, resnet)
    loaded, report = AutoModelForImageClassification.from_pretrained(best, output_loading_info=True)
    assert not any(report.values()), report
    again, _, _ = load_bundle(best)  # without `extend`, as there is nothing to add
    given = resnet()  # as of one who makes the model, and knows of no technique
    load_bundle(best, model=given)
    with torch.no_grad():
        outputs = trained(pixel_values=images).logits
        for each in (loaded.eval(), again, given):
            assert torch.equal(each(pixel_values=images).logits, outputs)


def _trained(
    folder: Path, technique: Technique, make: Callable[[], nn.Module]
) -> tuple[Path, nn.Module, Tensor]:
    """Return the folder of the best model of a short run, the module that was trained, and images."""
    source = torch.Generator().manual_seed(0)
    images = torch.randn(12, 3, 32, 32, generator=source)
    rows = [{"pixel_values": image, "labels": torch.tensor(place % 2)} for place, image in enumerate(images)]
    model = make()  # the module that trains, and not what is loaded of the run
    result = sf.train(
        model,
        rows,
        optimizer=sf.SGD(learning_rate=0.1),
        techniques=[technique],
        validation=rows[:4],
        global_batch=6,
        updates=2,  # scored once, at the end
        output=str(folder),
        name="changed",
        device="cpu",
        track=False,
    )
    assert result.best["update"] == 2
    return Path(result.run_dir) / "best", model.eval(), images
