"""What techniques need to know of autocast."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from snugfit.errors import SnugfitWarning


def expected_autocast(technique: str) -> Callable[[str], bool]:
    """A function that says whether autocast is on for a kind of device, and the first time that it is not, warns.

    >>> is_on = expected_autocast("some_technique")
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     is_on("cpu")
    True
    """
    warned = False

    def is_on(device: str) -> bool:
        nonlocal warned
        on = torch.is_autocast_enabled(device)
        if not on and not warned:
            warned = True
            warnings.warn(
                f"{technique}: without autocast it does nothing. Set plan.numerics: bf16, or remove it.",
                SnugfitWarning,
                stacklevel=1,  # what calls it is torch, whose line would say nothing
            )
        return on

    return is_on


@contextmanager
def casting_anew() -> Iterator[None]:
    """Within, autocast neither takes nor leaves the copies of weights that it keeps.

    One that was made without gradients would serve those with gradients after it, and the weight would get none.

    >>> layer = torch.nn.Linear(2, 2)
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     with torch.no_grad(), casting_anew():
    ...         outputs = layer(torch.ones(1, 2))
    ...     layer(torch.ones(1, 2)).sum().backward()
    >>> layer.weight.grad is not None
    True
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
