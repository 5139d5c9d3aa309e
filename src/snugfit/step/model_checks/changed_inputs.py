"""Inputs that a forward changes in place, of which it gets copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.scalar_reads import is_fake
from snugfit.core.tree import leaves, map_tree
from snugfit.errors import SettingError


class Inputs:
    """Gives micro-batches to the model so that the window stays as it is, to be run again.

    The first window is given as copies. Torch's version counters, and on the host the numbers themselves, say whether forward or loss
    changed them. If so, all that follow are copies too.
    """

    def __init__(self) -> None:
        self.copied: bool | None = None
        """True where inputs are given as copies; None before the first window is through."""
        self._noted: list[tuple[Tensor, int]] = []

    def given(self, part: Batch) -> AbstractContextManager[Batch]:
        """Temporarily give `part`, or a copy of it."""
        if self.copied is False or any(is_fake(leaf) for leaf in leaves(part.data)):
            return nullcontext(part)
        return self._copy_of(part)

    @contextmanager
    def _copy_of(self, part: Batch) -> Iterator[Batch]:
        given = replace(part, data=map_tree(torch.clone, part.data))
        before = [_version(leaf) for leaf in leaves(given.data)]
        try:
            yield given
        finally:
            if [_version(leaf) for leaf in leaves(given.data)] != before:
                self.copied = True
        if self.copied is None and not _same_on_host(part, given):
            self.copied = True

    def begin(self, window: Batch) -> None:
        """Note a window that may be run again."""
        if self.copied is False:
            noted = list(leaves(window.data))
            self._noted = [(leaf, 0 if leaf.is_inference() else leaf._version) for leaf in noted]

    def require_unchanged(self) -> None:
        """Check the noted window before it is run again.

        Raises:
            SettingError: it was changed, by a forward that did not change those before it.
        """
        if self._noted and any(_version(leaf) != version for leaf, version in self._noted):
            self.copied, self._noted = True, []
            raise SettingError(
                "forward",
                "changes its inputs in place, which it did not do in the first window, so this window cannot be run "
                "again",
                "Write to a copy in forward: inputs = inputs.clone().",
            )

    def end(self) -> None:
        """Forget the window, which is through; the first one decides."""
        self._noted = []
        if self.copied is None:
            self.copied = False

    def forget(self) -> None:
        """Forget the noted window: another one follows."""
        self._noted = []

    def state_dict(self) -> dict[str, Any]:
        """Return the decision: where memory lies may be part of how numbers are rounded."""
        return {"copied": self.copied}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.copied = state["copied"]


def _same_on_host(part: Batch, given: Batch) -> bool:
    """Return whether tensors in host memory hold the same bits: NumPy and `.data` write to them past the version counters."""
    return all(
        torch.equal(_bits(one), _bits(other))
        for one, other in zip(leaves(part.data), leaves(given.data), strict=True)
        if one.device.type == "cpu" and one.layout is torch.strided and one.ndim and not one.is_quantized
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(torch.uint8)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
