"""Watch the masks of padding that torch's attention gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from snugfit.doctor.observe.events.text_events import PaddingMask
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.attention.watch_places import PlaceWatch

_Call = Callable[..., Any]


def watch_attention(recorder: Recorder, places: PlaceWatch, patches: Patches) -> None:
    """Record what the masks of padding hide, in the first updates."""

    def attending(original: _Call) -> _Call:
        def multi_head_attention_forward(*args: Any, **kwargs: Any) -> Any:
            looked = (
                recorder.detailed and torch.is_grad_enabled() and not torch.compiler.is_dynamo_compiling()
            )
            if looked and recorder.active:
                with recorder.guard():
                    places.attended(args, kwargs, of_heads=False)
                    query, key = (*args, kwargs.get("query"), kwargs.get("key"))[:2]
                    free = kwargs.get("attn_mask") is None and not kwargs.get("is_causal")
                    tokens = recorder.tokens.of(key) if query is key else None
                    if tokens is not None:
                        _note(recorder, tokens, key, kwargs.get("key_padding_mask"), free=free)
            return original(*args, **kwargs)

        return multi_head_attention_forward

    patches.wrap(functional, "multi_head_attention_forward", attending)


def _note(recorder: Recorder, tokens: Tensor, key: Any, mask: Any, *, free: bool) -> None:
    """Note what a mask hides of tokens of which some rows end in a run of one token that others do not have there.

    Without a mask only where attention is `free` to look both ways: behind a text nothing is read from left to right.
    """
    if (
        tokens.dim() != 2
        or not isinstance(key, Tensor)
        or key.dim() != 3
        or sorted(key.shape[:2]) != sorted(tokens.shape)
    ):
        return
    padding = recorder.tokens.padding_of(tokens)
    if padding is None or (mask is None and not free):
        return
    hidden = torch.zeros_like(padding)
    if isinstance(mask, Tensor):
        if mask.shape != tokens.shape:
            return
        hidden = mask.detach().isneginf() if mask.is_floating_point() else mask.detach().bool()
    recorder.add(
        PaddingMask(
            where(),
            recorder.log.updates,
            int(padding.sum()),
            int((~padding).sum()),
            int((hidden & padding).sum()),
            int((hidden & ~padding).sum()),
            mask is not None,
            free,
        )
    )
