"""Padding masks of transformers' models, whose values the host knows: the device is not asked for them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.scalar_reads import is_fake, read
from snugfit.system.nothing import NOTHING

MASK = "attention_mask"
_ASKING = ("sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4")
"""Implementations of attention whose masks are made after a look at the padding."""
_SKIPS = ("allow_is_causal_skip", "allow_is_bidirectional_skip")


class AttentionMasks:
    """Tells transformers whether a micro-batch has padding, where the loader has seen its mask on the host.

    To choose between a kernel with a mask and one without, transformers reads on the device whether all of `attention_mask` is 1, up to
    twice a micro-batch. Each read waits until the device has computed all that it was asked for before. The host knows the answer since
    the batch was made, and gives it to the functions that make masks, which make the same mask, or none, without asking.

    Models that read one text and write another have a second mask, which is not the batch's, so they go on asking. Each of the two
    answers is compared with the device's the first time, and a model for which they differ, because it makes a mask of its own, goes on
    asking too.
    """

    def __init__(self, model: nn.Module) -> None:
        configs = [part.config for part in model.modules() if hasattr(part, "config")]
        kinds = {str(getattr(config, "_attn_implementation", "")) for config in configs}
        two_texts = any(getattr(config, "is_encoder_decoder", False) for config in configs)
        self._kinds = [] if two_texts or "transformers" not in sys.modules else [*kinds.intersection(_ASKING)]
        self._known: tuple[bool, torch.Size] | None = None
        self._agreed: set[bool] = set()
        self._differs = False

    def answered(self, batch: Batch) -> AbstractContextManager[None]:
        """Temporarily have masks made from what `batch` knows of its padding."""
        return self._answered(batch) if self._kinds else NOTHING

    @contextmanager
    def _answered(self, batch: Batch) -> Iterator[None]:
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as functions

        padded = None if self._differs else batch.has_padding
        if padded is not None and not is_fake(batch.data[MASK]):  # a dry run knows the values itself
            self._known = padded, batch.data[MASK].shape
        before = {kind: functions[kind] for kind in self._kinds}
        try:
            for kind, make in before.items():
                functions[kind] = functools.partial(self._mask, kind, make)
            yield
        finally:
            for kind, make in before.items():
                del functions[kind]
                if functions[kind] is not make:
                    functions[kind] = make
            self._known = None

    def _mask(self, kind: str, make: Callable[..., Any], **given: Any) -> Any:
        if torch.compiler.is_compiling() or self._known is None:
            return make(**given)
        mask, (padded, shape) = given.get(MASK), self._known
        may_be_skipped = kind != "sdpa" or any(given.get(each) for each in _SKIPS)
        if (
            not isinstance(mask, Tensor)
            or mask.shape != shape
            or not may_be_skipped
            or {given.get("q_length"), given.get("kv_length")} != {shape[1]}
        ):
            return make(**given)
        if padded not in self._agreed:
            self._differs = self._differs or read(~mask.all(), assume=padded) != padded
            self._agreed.add(padded)
        if self._differs:
            return make(**given)
        window = given.get("local_size")
        if not padded and (window is None or shape[1] < window):
            return None  # the kernel is causal by itself, or needs no mask
        return make(**{**given, **dict.fromkeys(_SKIPS, False)}) if kind == "sdpa" else make(**given)
