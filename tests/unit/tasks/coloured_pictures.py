"""Pictures of two classes in a folder each, told by their colour, and a small transformer for them."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from transformers import ViTConfig, ViTImageProcessorPil

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
VIT = ViTConfig(**SIZES, image_size=16, patch_size=4)


def write_pictures() -> None:
    """Write twelve pictures a class to the folder `pictures`, and the configuration of a transformer to `vit`."""
    generator = torch.Generator().manual_seed(0)
    for name, colour in (("red", 0), ("green", 1)):
        Path("pictures", name).mkdir(parents=True)
        for number in range(12):
            values = torch.randint(0, 120, (18, 20, 3), generator=generator, dtype=torch.uint8)
            values[..., colour] += 130
            Image.fromarray(values.numpy()).save(f"pictures/{name}/{number:02}.png")
    VIT.save_pretrained("vit")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained("vit")
