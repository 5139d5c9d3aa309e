"""AdamW with moments in 8 bits: Dettmers et al. 2022, arXiv:2110.02861, section 2; by hand, one block after the other.

The update is computed from the new moments before they are rounded. bitsandbytes' kernel for CPUs looks codes up in a table, and
takes at times the neighbour of the nearest one (3 % of the second moments): hence the tolerance. A moment at the border of two codes goes to the other one when the last digit of a gradient differs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import Trained, Window, gradient_of, weights

DTYPE = torch.float32  # the libraries compute in it
SAME_WITHIN = 5e-3
RELATIVE_TOLERANCE = 0.02
NOT_HERE = ("paged",)  # needs CUDA
BLOCK = 256


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`w ← w − ηλw − η·m̂ / (√v̂ + ε)`, then `m` and `v` are rounded to the nearest code times the largest of their block."""
    signed, unsigned = dynamic_codes(signed=True), dynamic_codes(signed=False)

    def rounding(size: int) -> bool:
        return bool(size >= settings["min_size"])

    return adamw_with_rounded_moments(model, windows, settings, signed, unsigned, BLOCK, rounding)


def adamw_with_rounded_moments(
    model: nn.Module,
    windows: list[Window],
    settings: dict[str, Any],
    signed: Tensor,
    unsigned: Tensor,
    block: int,
    rounding: Any,
) -> Trained:
    rate, epsilon, (beta1, beta2) = settings["learning_rate"], settings["epsilon"], settings["betas"]
    moments: dict[str, tuple[Tensor, Tensor]] = {}
    losses = []
    for t, window in enumerate(windows, start=1):
        gradient, loss = gradient_of(model, window)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name not in gradient:
                    continue
                g = gradient[name]
                m, v = moments.get(name, (torch.zeros_like(g), torch.zeros_like(g)))
                m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
                if weight.ndim > 1:
                    weight -= rate * settings["weight_decay"] * weight
                weight -= rate * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + epsilon)
                if rounding(weight.numel()):
                    m, v = rounded(m, signed, block), rounded(v, unsigned, block)
                moments[name] = m, v
        losses.append(loss)
    return Trained(weights(model), weights(model), losses)


def rounded(moment: Tensor, codes: Tensor, block: int) -> Tensor:
    """Each block divided by its largest absolute value, rounded to the nearest code, and multiplied again."""
    found = []
    for part in moment.flatten().split(block):
        largest = part.abs().max()
        if largest == 0:
            found.append(part)
            continue
        distances = (part[:, None] / largest - codes[None, :]).abs()
        found.append(codes[distances.argmin(dim=1)] * largest)
    return torch.cat(found).view_as(moment)


def dynamic_codes(signed: bool) -> Tensor:
    """The dynamic data type of 8 bits (section 1.3): a sign (or one more digit), zeros for the exponent, and a linear fraction.

    With the exponent `10^−e` there are `2^(6−e)` fractions (unsigned: `2^(7−e)`), in the middle of equal parts of [0.1, 1]; 0 and 1
    are codes too.
    """
    codes = [0.0, 1.0]
    for e in range(7):
        count = 2 ** (6 - e) if signed else 2 ** (7 - e)
        for place in range(count):
            value = 10.0**-e * (0.1 + 0.9 * (place + 0.5) / count)
            codes += [value, -value] if signed else [value]
    return torch.tensor(sorted(codes), dtype=torch.float32)
