"""The control: gradients of layers whose nf4 weights come and go, small ones and ones above 165 MiB, beside resident ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from checks import Settings, check, require
from material import MIB, error_between


@contextmanager
def weights_gone_in_backward() -> Iterator[None]:
    """Temporarily let every slot hold the last block's weights when backward comes."""
    from snugfit.kit.streaming.weight_stream import WeightStream

    use = WeightStream._use

    def forgetful(self: Any, place: int, backward: bool) -> None:
        if not backward:
            use(self, place, backward)

    with mock.patch.object(WeightStream, "_use", forgetful):
        yield


def gradients(settings: Settings, size: tuple[int, int], streamed: bool) -> dict[str, Any]:
    """Return the gradients of trained layers between frozen nf4 ones, which are resident or streamed."""
    import torch
    from quantized import drawn_nf4
    from torch import nn

    from snugfit.kit.quantized.frozen_linear import QuantisedLinear
    from snugfit.techniques.numerics.nf4 import NF4Format
    from snugfit.techniques.placement.weight_streaming import stream_weights

    outer, inner = size
    torch.manual_seed(0)
    blocks = []
    for _ in range(4):
        up = QuantisedLinear(NF4Format(), drawn_nf4(inner, outer, "cpu"), (inner, outer), torch.float32, None)
        down = QuantisedLinear(
            NF4Format(), drawn_nf4(outer, inner, "cpu"), (outer, inner), torch.float32, None
        )
        blocks.append(nn.Sequential(up, nn.LayerNorm(inner), down, nn.LayerNorm(outer)))
    model = nn.Sequential(*blocks)
    for each in model.modules():
        if isinstance(each, nn.LayerNorm):
            each.to(settings.device)
    inputs = torch.randn(16, outer, generator=torch.Generator().manual_seed(1)).to(settings.device)

    def run() -> None:
        model(inputs).pow(2).mean().backward()

    if streamed:
        stream = stream_weights(model, settings.device)
        with stream.running():
            run()
        require(stream.copies >= 6, f"only {stream.copies} copies were made")
    else:
        model.to(settings.device)
        run()
    return {name: each.grad.cpu() for name, each in model.named_parameters() if each.grad is not None}


@check(
    "streamed nf4 layers have the gradients of resident ones, above 165 MiB too",
    60,
    modules=("bitsandbytes",),
    plants={"gone": weights_gone_in_backward},
)
def streamed(settings: Settings) -> Mapping[str, Any]:
    figures: dict[str, Any] = {}
    for name, size in settings.size(
        {"40 MiB": (8192, 10240), "176 MiB": (16384, 22528)}, {"small": (64, 128), "wide": (128, 256)}
    ).items():
        resident = gradients(settings, size, streamed=False)
        error = error_between(gradients(settings, size, streamed=True), resident)
        figures[name] = {"layer_mib": size[0] * size[1] / 2 / MIB, "error": error}
        require(error < 1e-5, f"streamed layers of {name}: gradients are {error:.2g} away", **figures)
    return figures


@check(
    "the same with accelerate's offload of bitsandbytes' layers", 60, modules=("bitsandbytes", "accelerate")
)
def of_accelerate(settings: Settings) -> Mapping[str, Any]:
    """Say whether a rival's gradients are right; nothing of ours is compared, so whatever it does is no fault here."""
    import torch
    from accelerate import cpu_offload
    from checks import last_lines

    figures: dict[str, Any] = {}
    sizes = settings.size({"40 MiB": (8192, 10240), "176 MiB": (16384, 22528)}, {"small": (64, 128)})
    for name, size in sizes.items():
        resident = passes(bitsandbytes_layers(*size).to(settings.device), size[0])
        try:
            model = bitsandbytes_layers(*size)
            cpu_offload(model, execution_device=torch.device(settings.device))
            offloaded = passes(model, size[0], settings.device)
            figures[name] = {
                f"error of the {what}": error_between({what: offloaded[what]}, {what: resident[what]})
                for what in resident
            }
        except Exception as error:  # noqa: BLE001 (it says what it does)
            figures[name] = {"raised": last_lines(error)[-600:]}
        settings.note(figures)
    return figures


def bitsandbytes_layers(outer: int, inner: int) -> Any:
    """Return two layers of bitsandbytes on the host, from `outer` numbers to `inner` and back, always the same.

    They are quantised when they are moved. Offloading layers that were quantised before raises, as their scales are left without data.
    """
    import bitsandbytes as bnb
    import torch
    from torch import nn

    drawn = torch.Generator().manual_seed(0)
    layers = []
    for outputs, inputs in ((inner, outer), (outer, inner)):
        weight = torch.randn(outputs, inputs, generator=drawn).mul_(0.02)
        layer = bnb.nn.Linear4bit(inputs, outputs, bias=False, quant_type="nf4", device="meta")
        layer.weight = bnb.nn.Params4bit(weight, requires_grad=False, quant_type="nf4")
        layers.append(layer)
    return nn.Sequential(*layers)


def passes(model: Any, size: int, device: str | None = None) -> dict[str, Any]:
    """Return the outputs of a forward and the gradient of its inputs."""
    import torch

    device = device or next(model.parameters()).device
    inputs = torch.randn(16, size, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()
    outputs = model(inputs)
    outputs.pow(2).mean().backward()
    assert inputs.grad is not None
    return {"outputs": outputs.detach().float().cpu(), "gradient": inputs.grad.detach().float().cpu()}
