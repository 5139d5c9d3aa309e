"""Watch what attention knows of places: which a mask hides, and where a token stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.graphs.masked_places import is_mask, mark_added_mask, shown_by
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.companions import Companion, ModelCall
from snugfit.doctor.observe.recording.internals import script_as
from snugfit.doctor.observe.recording.own_calls import after_own_calls
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.attention.places_of_tokens import (
    ConstantPlaces,
    are_alike,
    mark_added_along_rows,
    place_of_addition,
)

_Call = Callable[..., Any]
LEAST_SEEN = 2
_MASKS = ("attn_mask", "key_padding_mask")


class PlaceWatch(Companion):
    """A watcher of softmaxes over masked scores, of masks that torch's attention gets, and of the first attention of a model."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._first = False
        self._constant = ConstantPlaces()

    def install(self, patches: Patches) -> None:
        squashing = after_own_calls(self._recorder, self._squashed)
        for owner in (Tensor, torch, functional):
            in_c = owner.softmax
            patches.wrap(owner, "softmax", squashing)
            if owner is torch:
                script_as(torch.softmax, in_c)
        summing = after_own_calls(self._recorder, self._summed)
        for name in ("__add__", "__radd__", "__iadd__"):
            patches.wrap(Tensor, name, summing)
        in_c = functional.scaled_dot_product_attention
        patches.wrap(functional, "scaled_dot_product_attention", self._attending)
        script_as(functional.scaled_dot_product_attention, in_c)

    def begins(self, call: ModelCall) -> None:
        self._first = bool(call.inputs)
        if call.inputs and call.inputs[0].layout is torch.strided:
            self._constant.begins(call.module, call.inputs[0])

    def _summed(self, _: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor) -> None:
        one, other = (*args, *kwargs.values())[:2]
        if (
            not isinstance(other, Tensor)
            or not isinstance(one, Tensor)
            or result.grad_fn is None
            or result.dim() < 3
        ):
            return
        mask = one if other.requires_grad else other
        if not mask.requires_grad and (one.requires_grad or other.requires_grad):
            mark_added_mask(result, mask)
        mark_added_along_rows(result, one, other, where())

    def _squashed(self, _: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor) -> None:
        given = args[0] if args else kwargs.get("input")
        axis = args[1] if len(args) > 1 else kwargs.get("dim")
        if not isinstance(given, Tensor) or not isinstance(axis, int) or not self._recorder.active:
            return
        shown = shown_by(given, result, axis) if given.grad_fn is not None and given.dim() > 1 else None
        if shown is None:
            return
        what = f"{shown.places} places that a mask should hide get {shown.share:.0%} of the weight of the others: {shown.way}."
        fix = 'scores = scores.masked_fill(mask == 0, float("-inf"))   # before the softmax'
        name = "sees_the_future" if shown.causal else "unmasked_padding"
        self._note(name, what, fix)

    def _attending(self, original: _Call) -> _Call:
        recorder = self._recorder

        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            looked = (
                recorder.detailed and torch.is_grad_enabled() and not torch.compiler.is_dynamo_compiling()
            )
            if looked and not recorder.looking and recorder.active:
                with recorder.guard():
                    self.attended(args, kwargs, of_heads=True)
            return original(*args, **kwargs)

        return scaled_dot_product_attention

    def attended(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, of_heads: bool) -> None:
        """Look at what attention is about to get: heads on an axis of their own, or what torch's layer has for all of them."""
        self._look_at_masks(args, kwargs)
        query, key = (*args, kwargs.get("query"), kwargs.get("key"))[:2]
        if self._first and isinstance(key, Tensor) and (of_heads or query is key):
            self._first = False
            self._look_at_places(key, of_heads=of_heads)

    def _look_at_masks(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note masks of zeros and ones whose numbers are added to the scores, by which nothing is hidden."""
        masks = [kwargs.get(name) for name in _MASKS] + [
            each for each in args[3:4] if isinstance(each, Tensor)
        ]
        for mask in masks:
            if isinstance(mask, Tensor) and mask.is_floating_point() and mask.dim() > 1 and is_mask(mask):
                what = "Attention gets a mask of the numbers 0 and 1, which are added to the scores: nothing is hidden."
                fix = "mask = mask.bool()   # True hides in nn.MultiheadAttention, and is read in F.scaled_dot_product_attention"
                square = mask.shape[-1] == mask.shape[-2]
                causal = square and bool((mask == mask.triu(1)).all() or (mask == mask.tril()).all())
                self._note("sees_the_future" if causal else "unmasked_padding", what, fix)
                return

    def _look_at_places(self, key: Tensor, *, of_heads: bool) -> None:
        """Note equal tokens at different places of a text that attention cannot tell apart, where those of different rows differ; and numbers of rows that are added for places."""
        if key.dim() != (4 if of_heads else 3):
            return
        # rows, places and values: torch's layer has the places first, and its tokens may lie so too
        vectors = key.transpose(1, 2).flatten(2) if of_heads else key.transpose(0, 1)
        if vectors.dim() != 3 or vectors.shape[0] == vectors.shape[1]:
            return
        at, added = place_of_addition(key.grad_fn)
        if added is None:
            return
        tokens = self._recorder.tokens.last
        if tokens is not None and vectors.shape[:2] == tokens.shape[::-1]:
            tokens = tokens.t()
        are_numbers = tokens is None or vectors.shape[:2] != tokens.shape or key.device != tokens.device
        if tokens is None or are_numbers:
            along_rows = len(added) == len(vectors) and self._constant.are_of_rows(at, added)
            shown = "Each row of a batch gets one vector for all its places, by its number in the batch"
        else:
            within, between = are_alike(vectors, tokens)
            along_rows = within and not between
            shown = "Equal tokens at different places of a text go into attention as equal vectors, and those of different rows do not"
        if along_rows:
            what = f"{shown}: the places are added along the rows of the batch."
            fix = "x = x + self.places[: x.size(1)]   # of batch, length, width"
            self._recorder.add(
                Fault(
                    at,
                    self._recorder.log.updates,
                    "wrong_axis",
                    what,
                    fix,
                    LEAST_SEEN,
                    certain=not are_numbers,
                )
            )

    def _note(self, name: str, what: str, fix: str) -> None:
        self._recorder.add(
            Fault(where(), self._recorder.log.updates, name, what, fix, LEAST_SEEN, certain=True)
        )
