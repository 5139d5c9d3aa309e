"""The dry run of answers: a prompt that is read and the last token that is written, or a text that is scored, on tensors that have a shape and no numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from snugfit.core.batch import Batch
from snugfit.core.tree import leaves
from snugfit.kit.language_models.generation import Draws, Generation, writes_another_text
from snugfit.kit.placement import place_
from snugfit.kit.skeleton import skeleton
from snugfit.kit.streaming.weight_stream import WeightStream, blocks_of
from snugfit.planner.cost.records import Role, Trace
from snugfit.planner.trace.dry_run import own_garbage
from snugfit.planner.trace.fake_tensors import fake_, fake_batch
from snugfit.planner.trace.known_values import KnownValues
from snugfit.planner.trace.library_patches import as_real
from snugfit.planner.trace.recorder import Recorder
from snugfit.planner.trace.untraceable import explaining

_FOLLOWED, _FOLLOWED_BY_BEAM = 5, 12
"""Whole numbers that transformers keeps for each token of a row while it grows: its number and its place in the mask, before and after, and its position; of
beams the finished ones too, and where each came from."""

Numerics = Callable[[nn.Module, Batch], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Answering:
    """Answers to be written, or texts to be scored.

    Args:
        prompt: tokens of the longest prompt, or text.
        new_tokens: of an answer at most, as many as the model's positions leave; 0 where texts are scored.
        rows: that are to be answered.
        settings: how answers are chosen.
        numerics: what a model computes a batch within.
        score: what scores a batch of texts by a model.
    """

    prompt: int
    new_tokens: int
    rows: int
    settings: Generation
    numerics: Numerics
    score: Callable[[nn.Module, Batch], None] | None = None


@dataclass(frozen=True)
class GenerationTrace:
    """The record of answers, with the bytes of the cache of keys and values and of the logits at the last token, and of streamed weights on the host."""

    trace: Trace
    cache_bytes: int
    logits_bytes: int
    streamed_bytes: int = 0


def dry_run_generation(
    model: nn.Module,
    asked: Answering,
    rows: int,
    device: str,
    *,
    resident: int | None = None,
) -> GenerationTrace:
    """Return the prompts and the last tokens of `rows` answers at once, recorded.

    Args:
        device: its type, as torch names it.
        resident: how many blocks stay on the device where the others are streamed; None: nothing is streamed.
    Raises:
        Untraceable: the model asks for numbers that are not there.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    values = KnownValues(mode)
    recorder = Recorder(values)
    bare = skeleton(model).eval()
    made = fake_(bare if resident is None else bare.requires_grad_(False), mode, "cpu")
    with explaining(), as_real(), own_garbage(), mode, torch.no_grad(), ExitStack() as stack:
        if resident is None:
            place_(made, device)
        else:
            blocks = blocks_of(made, ())
            place_(made, device, tuple(blocks))
            stream = WeightStream(made, torch.device(device), blocks, resident)
            stack.enter_context(stream.running())
        recorder.knows(made)
        weights = [*made.parameters(), *made.buffers()]
        recorder.holds(weights, Role.WEIGHTS)
        if resident is not None:
            recorder.holds(stream.slot_memory(), Role.WEIGHTS)
        run = _Run(made, asked, rows * asked.settings.num_beams, device, values, recorder, mode)
        generation = run.recorded()
        return generation if resident is None else replace(generation, streamed_bytes=stream.host_bytes)


class _Run:
    """The model that reads and writes, between whose two moments the cache is filled unseen."""

    def __init__(
        self,
        model: nn.Module,
        asked: Answering,
        rows: int,
        device: str,
        values: KnownValues,
        recorder: Recorder,
        mode: FakeTensorMode,
    ) -> None:
        self._model: Any = model
        self._asked, self._rows, self._device = asked, rows, device
        self._values, self._recorder, self._mode = values, recorder, mode
        self._both = writes_another_text(model)
        self._cache: Any = None
        self._read: Any = None  # by the encoder
        self._arguments = inspect.signature(self._model.forward).parameters
        self._logits = 0
        self._scores: tuple[Tensor, ...] = ()  # transformers keeps those of a token until the next

    def recorded(self) -> GenerationTrace:
        asked, recorder = self._asked, self._recorder
        recorder.begin()
        if asked.score is not None:
            with recorder, recorder.label("evaluation"):
                tokens = self._tokens(asked.prompt)
                data = {"input_ids": tokens, "attention_mask": self._mask(asked.prompt), "labels": tokens}
                asked.score(self._model, self._given(data))
            return GenerationTrace(recorder.finish(), 0, 0)
        followed = _FOLLOWED_BY_BEAM if asked.settings.num_beams > 1 else _FOLLOWED
        length = followed * (asked.prompt + asked.new_tokens)
        numbers = torch.empty(self._rows, length, dtype=torch.long, device=self._device)
        recorder.holds([numbers], Role.INPUTS)
        with recorder, recorder.label("evaluation"):
            self._write(asked.prompt, 0)
        if asked.new_tokens > 1:
            self._last_token()
        cache_bytes = sum(each.nbytes for each in leaves(self._states()))
        return GenerationTrace(recorder.finish(), cache_bytes, self._logits)

    def _last_token(self) -> None:
        """Record the last token, behind a cache of all those before it."""
        asked, recorder = self._asked, self._recorder
        if asked.new_tokens > 2:
            with Recorder(self._values):  # of which nothing is kept: it follows the values of masks
                self._write(asked.new_tokens - 2, 1)
        recorder.holds(leaves(self._states()), Role.ACTIVATIONS)
        recorder.holds(self._scores, Role.INPUTS)
        with recorder, recorder.label("evaluation"):
            self._write(1, asked.new_tokens - 1)

    def _states(self) -> list[Any]:
        """Return what stays from token to token: keys and values, and what an encoder has read."""
        caches = (
            [self._cache.self_attention_cache, self._cache.cross_attention_cache]
            if self._both
            else [self._cache]
        )
        layers = [layer for cache in caches for layer in getattr(cache, "layers", ())]
        tensors = [each for layer in layers for each in vars(layer).values() if isinstance(each, Tensor)]
        return [*tensors, self._read]

    def _write(self, count: int, before: int) -> None:
        """Put `count` tokens through the model, behind the `before` that were written and what was read first."""
        from transformers import DynamicCache, EncoderDecoderCache

        config = self._model.config
        if self._cache is None:
            own = DynamicCache(config=config.get_text_config(decoder=True))
            self._cache = EncoderDecoderCache(own, DynamicCache()) if self._both else own
        if self._both:
            outputs = self._write_another(1 if self._read is None else count)
        else:
            length = count + (self._asked.prompt + before if before else 0)
            data = {"input_ids": self._tokens(count), "attention_mask": self._mask(length)}
            if "position_ids" in self._arguments:  # of each row's own, as rows are padded
                data["position_ids"] = self._tokens(count)
            further = {"logits_to_keep": 1} if "logits_to_keep" in self._arguments else {}
            outputs = self._called(data, **further)
        scores = outputs.logits[:, -1, :].to(copy=True, dtype=torch.float32)
        self._logits = outputs.logits.nbytes + scores.nbytes
        self._scores = scores, self._choose(scores)

    def _write_another(self, count: int) -> Any:
        mask = {"attention_mask": self._mask(self._asked.prompt)}
        if self._read is None:
            ids = self._tokens(self._asked.prompt)
            self._read = self._called({"input_ids": ids, **mask}, self._model.get_encoder())
        written = {"decoder_input_ids": self._tokens(count)}
        return self._called({**written, **mask}, encoder_outputs=self._read)

    def _called(self, data: dict[str, Tensor], module: Any = None, **further: Any) -> Any:
        batch = self._given(data)
        if module is None:
            further |= {"past_key_values": self._cache, "use_cache": True}
        with self._asked.numerics(self._model, batch):
            return (module or self._model)(**batch.data, **further)

    def _given(self, data: dict[str, Tensor]) -> Batch:
        """Return a batch of tensors without numbers, on the device."""
        with _disable_current_modes():
            batch = Batch.of(data)
        return fake_batch(batch, self._mode, self._values).to(torch.device(self._device))

    def _tokens(self, count: int) -> Tensor:
        with _disable_current_modes():
            return torch.zeros(self._rows, count, dtype=torch.long)

    def _mask(self, length: int) -> Tensor:
        """Return a mask with padding, as prompts of several lengths have it."""
        with _disable_current_modes():
            mask = torch.ones(self._rows, length, dtype=torch.long)
            if length > 1:
                mask[0, 0] = 0
            return mask

    def _choose(self, scores: Tensor) -> Tensor:
        settings = self._asked.settings
        if settings.temperature > 0:
            scores = Draws(range(self._rows), settings)(scores, scores)
        if settings.num_beams > 1:
            scores = scores.log_softmax(-1) + scores[:, :1]
            scores.topk(2, dim=-1)
        scores.argmax(-1)
        return scores.clone()
