"""bf16: which device has it, and rounding to it that loses nothing on average, or nothing at all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from snugfit.errors import SettingError
from snugfit.kit.phases import alike, following
from snugfit.kit.row_chunks import piece_rows, pieces
from snugfit.kit.sharded_tensors import is_sharded, own_part, sharded_like


def has_bf16(device: torch.device) -> bool:
    """Return whether `device` computes in bf16 itself; emulation does not count on CUDA.

    >>> has_bf16(torch.device("cpu"))
    True
    """
    if device.type == "cuda":
        has: bool = torch.cuda.is_bf16_supported(including_emulation=False)
        return has
    return device.type in {"cpu", "xpu"}


def device_name(device: torch.device) -> str:
    """Return a device as people know it: a card by its name, also where a plan is made for one that is not here.

    >>> device_name(torch.device("cpu"))
    'cpu'
    """
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def check_bf16(device: torch.device) -> None:
    """See that `device` computes in bf16 itself.

    Raises:
        SettingError: it does not; names the precision to use in its place.
    """
    if not has_bf16(device):
        raise SettingError(
            "plan.numerics",
            f"{device_name(device)} has no bf16, or only emulates it, slowly",
            f"Use plan.numerics: {alternative(device)}.",
        )


def alternative(device: torch.device) -> str:
    """Return the best precision of a device without bf16: fp16 has fast units on GPUs since Volta; elsewhere it gains nothing.

    >>> alternative(torch.device("mps"))
    'fp32'
    """
    return "fp16" if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0) else "fp32"


def rounded_stochastically(wide: Tensor, *generators: torch.Generator) -> Tensor:
    """bf16 numbers next to those of `wide`, up or down by chance, such that their mean is `wide`.

    Args:
        wide: in float32; what is in bf16 already comes out as it is, and NaN as infinity. Where it is spread over devices, each
            rank draws for all of it.
        generators: on the same device, one for each of its pieces (`core.pieces`).

    >>> third = rounded_stochastically(torch.full((10_000,), 1 / 3), torch.Generator().manual_seed(0))
    >>> third.unique()
    tensor([0.3320, 0.3340], dtype=torch.bfloat16)
    >>> torch.full((10_000,), 1 / 3).bfloat16().float().mean(), third.float().mean()
    (tensor(0.3340), tensor(0.3333))

    Source: Gupta et al. 2015, arXiv:1502.02551; for bf16: Zamirai et al. 2020, arXiv:2010.06192.
    """
    return following(
        ("rounded_stochastically", len(generators)), [wide], lambda: _rounded_stochastically(wide, generators)
    )


def _rounded_stochastically(wide: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    rounded = torch.empty_like(wide, dtype=torch.bfloat16)
    parts = list(zip(pieces(wide), generators, strict=True))
    if is_sharded(wide):
        low_bits = torch.empty(wide.shape, dtype=torch.int16, device=wide.device)
        for piece, generator in alike(parts, lambda part: piece_rows(part[0])):
            low_bits[piece] = _low_bits(low_bits[piece], generator)
        _round(own_part(wide), own_part(sharded_like(wide, low_bits)), own_part(rounded))
        return rounded
    for piece, generator in alike(parts, lambda part: piece_rows(part[0])):
        _round(wide[piece], _low_bits(wide[piece], generator), rounded[piece])
    return rounded


def _round(wide: Tensor, low_bits: Tensor, into: Tensor) -> None:
    # the bits of NaN could become those of a number, and the bits of infinity cannot
    bits = wide.nan_to_num(math.inf, math.inf, -math.inf).view(torch.int32)
    bits.add_(low_bits).add_(1 << 15).bitwise_and_(-1 << 16)
    into.copy_(bits.view(torch.float32))


def _low_bits(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers of 16 bits, from -2^15 on."""
    # a draw has 64 bits, for four numbers
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64, device=like.device)
    draws.random_(-(2**63), None, generator=generator)
    return draws.view(torch.int16)[: like.numel()].view(like.shape)


def with_compensation(wide: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest bf16 numbers, and in bf16 what they are short of.

    >>> low, rest = with_compensation(torch.tensor([1 / 3]))
    >>> low, low.float() + rest
    (tensor([0.3340], dtype=torch.bfloat16), tensor([0.3333]))

    Source: Kahan 1965; for bf16: Zamirai et al. 2020, arXiv:2010.06192, algorithm 3.
    """
    low = wide.bfloat16()
    return low, (wide - low.float()).bfloat16()
