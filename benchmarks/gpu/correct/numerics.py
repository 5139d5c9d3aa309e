"""Numbers on the device beside exact ones: fp32 is IEEE, tf32 and fp8 are what they say, nf4 is bitsandbytes'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from checks import Settings, Skip, check, require
from material import LLAMAS, error_between, llama, on, technique, tokens_window


@contextmanager
def rounded_products() -> Iterator[None]:
    """Temporarily round the inputs of every convolution and product to the ten bits of tf32."""
    import torch
    from torch.nn import functional

    convolve, product = functional.conv2d, functional.linear

    def rounded(tensor: Any) -> Any:
        return tensor.half().to(tensor.dtype) if tensor.is_floating_point() else tensor

    def conv2d(inputs: Any, weight: Any, *rest: Any, **more: Any) -> Any:
        return convolve(rounded(inputs), rounded(weight), *rest, **more)

    def linear(inputs: Any, weight: Any, *rest: Any, **more: Any) -> Any:
        return product(rounded(inputs), rounded(weight), *rest, **more)

    conv = torch.nn.Conv2d._conv_forward

    def forward(self: Any, inputs: Any, weight: Any, bias: Any) -> Any:
        return conv(self, rounded(inputs), rounded(weight), bias)

    with (
        mock.patch.object(functional, "linear", linear),
        mock.patch.object(functional, "conv2d", conv2d),
        mock.patch.object(torch.nn.Conv2d, "_conv_forward", forward),
    ):
        yield


def network(kind: str) -> tuple[Any, Any]:
    """Return a net of one kind of operator and its inputs, drawn on the host."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if kind == "convolution":
        body = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5)
        )
        return body, torch.randn(8, 3, 16, 16)
    if kind == "recurrence":

        class Recurrent(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.head = nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 5)

            def forward(self, inputs: Any) -> Any:
                return self.head(self.body(inputs)[0][:, -1])

        return Recurrent(), torch.randn(8, 12, 32)
    return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 5)), torch.randn(8, 64)


def gradients_of(device: str, kind: str, dtype: Any, techniques: list[Any]) -> dict[str, Any]:
    import torch

    from snugfit import Step
    from tests.laws.problems import gradients

    model, inputs = network(kind)
    step = Step(
        model.to(device, dtype),
        torch.optim.SGD(model.parameters(), lr=0.1),
        "cross_entropy",
        techniques,
        device=device,
    )
    labels = torch.arange(8) % 5
    done = step((inputs.to(device, dtype), labels.to(device)))
    require(done.applied, "the update was not applied")
    return {name: tensor.double().cpu() for name, tensor in gradients(step).items()}


KINDS = ("product", "convolution", "recurrence")


@check("the loss of large logits may write where it reads", 40)
def softmax_in_place(settings: Settings) -> Mapping[str, Any]:
    """Tell whether the backward of log-softmax in place gives the same bits, in rows that short and long kernels take.

    Where it does, CUDA may join `logits_loss.IN_PLACE`; until then it writes elsewhere, and this proves that this is right.
    """
    import torch
    import torch.nn.functional as F

    from snugfit.core import logits_loss

    figures: dict[str, Any] = {}
    allowed = logits_loss.IN_PLACE
    for classes in settings.size((1000, 1024, 4093, 32_000, 128_256, 200_001), (1000, 4093)):
        generator = torch.Generator().manual_seed(classes)
        logits = 3 * torch.randn(64, classes, generator=generator)
        labels = torch.randint(0, classes, (64,), generator=generator).to(settings.device)
        ignored = torch.zeros_like(labels, dtype=torch.bool)
        gradients = []
        for way in ("torch", "elsewhere", "in place"):
            own = logits.to(settings.device, copy=True).requires_grad_()
            logits_loss.IN_PLACE = {settings.device} if way == "in place" else set()
            try:
                if way == "torch":
                    values = F.cross_entropy(own, labels, reduction="none")
                else:
                    values, _ = logits_loss.LargeCrossEntropy.apply(own, labels, ignored, -100)
                values.sum().backward()
            finally:
                logits_loss.IN_PLACE = allowed
            gradients.append(own.grad)
        figures[str(classes)] = {"in place": torch.equal(gradients[0], gradients[2])}
        require(
            torch.equal(gradients[0], gradients[1]), f"another gradient than torch's, {classes=}", **figures
        )
        in_use = figures[str(classes)]["in place"] or settings.device not in allowed
        require(in_use, f"another gradient than torch's in place, {classes=}", **figures)
    return figures


@check("fp32 is IEEE in products, convolutions and recurrences", 40, plants={"rounded": rounded_products})
def fp32_is_ieee(settings: Settings) -> Mapping[str, Any]:
    """Compare float32 gradients on the device with float64 ones on the host: tf32 would be a thousand times further away."""
    import torch

    figures: dict[str, Any] = {}
    for kind in KINDS:
        exact = gradients_of("cpu", kind, torch.float64, [])
        figures[kind] = error_between(gradients_of(settings.device, kind, torch.float32, []), exact)
    wrong = [kind for kind, error in figures.items() if error > 2e-5]
    require(
        not wrong,
        f"fp32: gradients of {', '.join(wrong)} are further from exact ones than float32 rounds",
        **figures,
    )
    return figures


@check("tf32 rounds to ten bits, alone, and leaves the switches as they were", 40)
def tf32(settings: Settings) -> Mapping[str, Any]:
    import torch

    if not settings.cuda:
        raise Skip("tf32 is a type of CUDA's")
    if torch.cuda.get_device_capability() < (8, 0):
        raise Skip("this GPU has no tf32")

    def switches() -> list[str]:
        return [
            str(torch.backends.cuda.matmul.fp32_precision),
            str(torch.backends.cudnn.conv.fp32_precision),
            str(torch.backends.cudnn.rnn.fp32_precision),
        ]

    before = switches()
    figures: dict[str, Any] = {"switches": before}
    for kind in KINDS:
        exact = gradients_of("cpu", kind, torch.float64, [])
        figures[kind] = error_between(gradients_of("cuda", kind, torch.float32, [technique("tf32")]), exact)
    figures["switches afterwards"] = switches()
    require(switches() == before, "tf32: torch's switches are not what they were", **figures)
    require(figures["product"] > 2e-5, "tf32: products were not rounded", **figures)
    require(
        max(figures[kind] for kind in KINDS) < 2e-2, "tf32: gradients are too far from exact ones", **figures
    )
    return figures


@check("bf16, fp16 and fp8 train as fp32 does, up to rounding", 60)
def lower_precisions(settings: Settings) -> Mapping[str, Any]:
    """Train a small Llama on one window: the loss falls as in fp32."""
    from snugfit import Step
    from snugfit.errors import SnugfitError

    shape, tokens = settings.size(("small", 128), ("toy", 16))
    updates = settings.size(30, 5)
    window = on(settings.device, tokens_window(LLAMAS[shape]["vocabulary"], 8, tokens))
    losses: dict[str, Any] = {}
    for name in ("fp32", "bf16", "fp16", *(["fp8"] if settings.cuda else [])):
        techniques = (
            []
            if name == "fp32"
            else [technique("bf16"), technique("fp8")]
            if name == "fp8"
            else [technique(name)]
        )
        try:
            step = Step(
                llama(shape, tokens, settings.device),
                technique("adamw", learning_rate=1e-3),
                "causal_lm",
                techniques,
                micro_batch=4,
                nominal=float(8 * tokens),
            )
            losses[name] = [step(window).loss for _ in range(updates)]
        except SnugfitError as error:
            losses[name] = f"refused: {error}"
    figures = {"losses": losses}
    full = losses["fp32"]
    require(full[-1] < 0.97 * full[0], "fp32: the loss does not fall", **figures)
    for name, curve in losses.items():
        if isinstance(curve, str):
            continue
        near = abs(curve[-1] - full[-1]) < 0.05 * full[0] and curve[-1] == curve[-1]
        require(near, f"{name}: the loss ends at {curve[-1]:.4g}, in fp32 at {full[-1]:.4g}", **figures)
        require(
            name == "fp32" or curve != full,
            f"{name}: has the losses of fp32, so nothing was rounded",
            **figures,
        )
    return figures


@check("nf4 is bitsandbytes' nf4", 40, modules=("bitsandbytes",))
def nf4(settings: Settings) -> Mapping[str, Any]:
    """Compare whole weights, outputs and the inputs' gradients with those of bitsandbytes, which packs by itself."""
    import bitsandbytes as bnb
    import torch

    from snugfit.techniques.numerics.nf4 import NF4Format

    figures: dict[str, Any] = {}
    for rows, columns in settings.size(((4096, 4096), (1024, 14336)), ((64, 128), (32, 256))):
        weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)).mul_(0.02)
        weight = weight.to(settings.device)
        for double in (True, False):
            form = NF4Format(double)
            ours = form.unpack(form.pack(weight), (rows, columns), torch.float32)
            packed, state = bnb.functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=double)
            theirs = bnb.functional.dequantize_4bit(packed, state).float()
            apart = float((ours - theirs).norm() / theirs.norm())
            levels = float((ours != theirs).float().mean())
            figures[f"{rows}x{columns}{' doubly' if double else ''}"] = {
                "apart": apart,
                "other numbers": levels,
            }
            require(apart < 1e-3, f"nf4: weights are {apart:.2g} away from those of bitsandbytes", **figures)
    return figures


@check("an nf4 layer computes as its whole weight does", 40, modules=("bitsandbytes",))
def nf4_layer(settings: Settings) -> Mapping[str, Any]:
    import torch
    from torch import nn

    from snugfit.techniques.numerics.nf4 import nf4_

    torch.manual_seed(0)
    size = settings.size(1024, 64)
    model = nn.Sequential(nn.Linear(size, size, bias=False), nn.Linear(size, 2)).to(settings.device)
    layer = nf4_(model)[0]
    whole = layer.weight
    results = {}
    for name in ("layer", "whole"):
        inputs = (
            torch.randn(8, size, generator=torch.Generator().manual_seed(1))
            .to(settings.device)
            .requires_grad_()
        )
        outputs = layer(inputs) if name == "layer" else inputs @ whole.T
        outputs.pow(2).sum().backward()
        results[name] = {"outputs": outputs.detach(), "gradient": inputs.grad}
    error = error_between(results["layer"], results["whole"])
    require(error < 1e-4, f"nf4: a layer is {error:.2g} away from its whole weight", error=error)
    return {"error": error}
