"""Answers of a language model: transformers' generation with its cache, such that a row's answer depends on that row alone."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from snugfit.core.random import derive_seed
from snugfit.core.scalar_reads import read
from snugfit.errors import DataError, ModelError, SettingError
from snugfit.kit.language_models.padded_attention import LEAST_KEYS, row_by_row
from snugfit.kit.packing.example_attention import is_there

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_STRETCHED = ("linear", "dynamic", "yarn")
"""Kinds of rotary positions that reach further by their factor; of others, such as Llama 3's, the configuration says the whole."""


@dataclass(frozen=True)
class Generation:
    """The way in which answers are chosen.

    Args:
        max_new_tokens: of an answer at most.
        temperature: 0 takes the most likely token; else tokens are drawn, by `seed` and the row's place.
        top_p: only the most likely tokens are drawn that come to this probability together; below 1 it needs a temperature.
        num_beams: answers that are gone on with at once, of which the likeliest is given; 1 takes the likeliest token each time.
    Raises:
        SettingError: a value is impossible.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    num_beams: int = 1

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise SettingError(
                "max_new_tokens", f"must be 1 or more, found {self.max_new_tokens}", "Give 1 or more."
            )
        if not self.temperature >= 0:
            raise SettingError(
                "temperature",
                f"must be 0 or more, found {self.temperature}",
                "Give 0 for the most likely token.",
            )
        if not 0 < self.top_p <= 1:
            raise SettingError(
                "top_p", f"must be above 0 and at most 1, found {self.top_p}", "Give 1 for all tokens."
            )
        if self.num_beams < 1:
            raise SettingError("num_beams", f"must be 1 or more, found {self.num_beams}", "Give 1 or more.")
        if self.num_beams > 1 and self.temperature > 0:
            raise SettingError(
                "num_beams",
                f"is {self.num_beams}, which looks for the likeliest answer, and temperature {self.temperature:g} draws one",
                "Leave out either.",
            )
        if self.top_p < 1 and self.temperature == 0:
            raise SettingError(
                "top_p",
                f"is {self.top_p:g}, by which tokens are drawn, and temperature 0 draws none",
                "Give a temperature above 0, or leave it out.",
            )


def padded_left(prompts: Sequence[Sequence[int]], padding: int) -> dict[str, Tensor]:
    """Return prompts as one batch, each ending at its last place, where an answer begins.

    >>> padded_left([[5, 6], [7]], padding=0)["input_ids"]
    tensor([[5, 6],
            [0, 7]])
    """
    longest = max(map(len, prompts))
    ids = [[padding] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def generate(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    places: Sequence[int],
    stops: Sequence[int],
    settings: Generation,
    streamer: Any = None,
) -> list[list[int]]:
    """Return the tokens of each row's answer, without the one that ends it.

    A row may have as many as the model has positions for behind its own prompt, whatever stands beside it: what the longest prompt cuts is
    written again without it.

    Args:
        batch: `padded_left`, on the model's device; padded on the right for a model that writes one text after reading another.
        places: of the rows among all, by which their draws are seeded.
        stops: tokens that end an answer.
        streamer: of transformers, is told each token of a single row.
    Raises:
        ModelError: the model generates nothing.
        DataError: a prompt fills the model's positions.
    """
    if getattr(model, "generate", None) is None:
        raise ModelError(
            "model", f"is a {type(model).__name__}, which generates nothing", "Take a causal language model."
        )
    rooms = _rooms(model, batch, settings.max_new_tokens)
    answers: list[list[int]] = [[] for _ in rooms]
    rows = list(range(len(rooms)))
    while rows:
        most, cut = min(rooms[row] for row in rows), list[int]()
        part = batch if len(rows) == len(rooms) else _rows_of(batch, rows)
        seeded = [places[row] for row in rows]
        for row, tokens in zip(
            rows, _written(model, part, seeded, stops, most, settings, streamer), strict=True
        ):
            answers[row] = _until(tokens, set(stops))
            ended = len(answers[row]) < most and settings.num_beams == 1  # a likelier beam may be longer
            if most < rooms[row] and not ended:
                cut.append(row)
        rows = cut
    return answers


def _rooms(model: nn.Module, batch: Mapping[str, Tensor], wanted: int) -> list[int]:
    """Return how many tokens each row's answer may have."""
    rows, width = batch["input_ids"].shape
    if writes_another_text(model):
        return [room(model, 0, wanted)] * rows  # the prompt takes none of the answer's positions
    if room(model, width, wanted) == wanted:
        return [wanted] * rows
    lengths = read(batch["attention_mask"].sum(dim=1), assume=[width] * rows)
    return [room(model, length, wanted) for length in lengths]


def _rows_of(batch: Mapping[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
    """Return some prompts of a batch, without what is padding in all of them."""
    part = {name: tensor[list(rows)] for name, tensor in batch.items()}
    longest = read(part["attention_mask"].sum(dim=1).max(), assume=1)
    return {name: tensor[:, -longest:] for name, tensor in part.items()}


def _written(
    model: Any,
    batch: Mapping[str, Tensor],
    places: Sequence[int],
    stops: Sequence[int],
    most: int,
    settings: Generation,
    streamer: Any,
) -> list[list[int]]:
    """Return what is written behind each prompt, `most` tokens at most, filled up behind the one that ends it."""
    from transformers import GenerationConfig, LogitsProcessorList

    config = GenerationConfig(
        max_new_tokens=most,
        do_sample=False,
        num_beams=settings.num_beams,
        eos_token_id=list(stops) or None,
        pad_token_id=stops[0] if stops else 0,
    )
    processors = LogitsProcessorList([] if settings.temperature == 0 else [Draws(places, settings)])
    splits = row_by_row(LEAST_KEYS) if is_there(batch["input_ids"].device) else nullcontext()
    with torch.no_grad(), splits:
        whole = model.generate(
            **batch, generation_config=config, logits_processor=processors, streamer=streamer
        )
    begin = 1 if writes_another_text(model) else batch["input_ids"].shape[1]
    answers: list[list[int]] = read(whole[:, begin:], assume=[])  # behind the token that it begins with
    return answers


def writes_another_text(model: nn.Module) -> bool:
    """Return whether a model reads one text whole and writes another, such as T5; else its answer goes on with the prompt."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def room(model: nn.Module, width: int, wanted: int) -> int:
    """Return how many of the tokens that are wanted the model has positions for, behind a prompt of `width`.

    Raises:
        DataError: the prompt fills them.
    """
    positions = positions_of(model)
    if width >= positions:
        raise DataError(
            "prompt",
            f"it has {width:,} tokens, and the model reads {positions:,} with its answer",
            "Shorten it.",
        )
    return min(wanted, positions - width)


def positions_of(model: nn.Module) -> int:
    """Return how many tokens a language model reads at once; many where its configuration does not say it.

    Rotary positions that are stretched by a factor reach so many times further than those that the model was first trained on. Some
    configurations say both numbers and some only the first, so that the larger one counts; those with a factor for each kind of layer, as
    Gemma 3's, say the last. A model with ALiBi has no positions.
    """
    config: Any = getattr(model, "config", None)
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0 or getattr(config, "alibi", False) is True:
        return sys.maxsize
    return max(positions, _stretched(_rope_of(config), positions))


def factor_for(model: nn.Module, tokens: int) -> int | None:
    """Return the factor by which rotary positions would have to be stretched to reach so many tokens; None where no single factor does that."""
    config: Any = getattr(model, "config", None)
    positions, rope = getattr(config, "max_position_embeddings", None), _rope_of(config)
    kind = rope.get("rope_type", rope.get("type", "default" if "rope_theta" in rope else None))
    if not isinstance(positions, int) or positions <= 0 or kind not in ("default", *_STRETCHED):
        return None
    return math.ceil(tokens / (rope.get("original_max_position_embeddings") or positions))


def _rope_of(config: Any) -> Mapping[str, Any]:
    """Return the settings of a configuration's rotary positions, as transformers of this and of earlier versions have them."""
    return getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}


def _stretched(rope: Mapping[str, Any], positions: int) -> int:
    """Return how far rotary positions reach that are stretched by a factor; 0 where they are not."""
    kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor")
    if kind not in _STRETCHED or not isinstance(factor, int | float):
        return 0
    return int((rope.get("original_max_position_embeddings") or positions) * factor)


def _until(answer: list[int], stops: set[int]) -> list[int]:
    end = next((place for place, token in enumerate(answer) if token in stops), len(answer))
    return answer[:end]


class Draws:
    """Draws tokens by adding noise of each row's own: the largest sum is a draw of the softmax (Gumbel, 1954)."""

    def __init__(self, places: Sequence[int], settings: Generation) -> None:
        self._places, self._settings = places, settings
        self._step = 0

    def __call__(self, _ids: Tensor, scores: Tensor) -> Tensor:
        from transformers import TopPLogitsWarper

        scores = scores.float() / self._settings.temperature
        if self._settings.top_p < 1:
            scores = TopPLogitsWarper(self._settings.top_p)(_ids, scores)
        noise = torch.stack([self._noise(place, scores.shape[1]) for place in self._places])
        self._step += 1
        return scores + noise.to(scores.device)

    def _noise(self, place: int, size: int) -> Tensor:
        generator = torch.Generator().manual_seed(
            derive_seed(self._settings.seed, "generate", place, self._step)
        )
        uniform = torch.rand(size, generator=generator).clamp_(1e-20, 1 - 1e-7)
        return -(-uniform.log()).log()


def stops_of(tokenizer: PreTrainedTokenizerBase, own: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the tokens that end an answer: those that end a turn, and the end of a sequence."""
    end = tokenizer.eos_token_id
    return tuple(dict.fromkeys((*own, *(() if end is None else (int(end),)))))
