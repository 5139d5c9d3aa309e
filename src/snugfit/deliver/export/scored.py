"""The outputs that an export has to give again: logits of example rows, greedy answers with their ends, and what the template writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.losses import logits_of
from snugfit.kit.language_models.generation import Generation, generate, positions_of, writes_another_text
from snugfit.units import counted

ANSWER_TOKENS = 32
"""Of a greedy answer that is compared."""

RoundWeight = Callable[[Tensor], Tensor]
"""A weight as it comes out of a file."""


@dataclass(frozen=True)
class Answer:
    """A greedy answer: its tokens without the one that ended it, and whether one did."""

    tokens: list[int]
    ended: bool


@dataclass(frozen=True)
class ScoredRows:
    """A model's outputs for example rows, one row at a time, in float32.

    Args:
        model: as it was scored, in float32.
        rows: as they were read; drawn inputs have none.
        inputs: arguments of the model's forward for each, by name.
        logits: what it puts out.
        prompts: tokens that ask for an answer.
        answers: the most likely ones.
        stops: tokens that end an answer.
        conversations: messages of each row, for the chat template; empty where there is none.
        written: what the template writes of each, asking for an answer.
        texts: of the rows, or the two of each pair, as they are tokenised, with their tokens.
        pictures: files of the rows, where they are pictures.
        drawn: why the inputs are drawn at random; empty where they are rows.
    """

    model: nn.Module
    rows: Sequence[Mapping[str, Any]] = ()
    inputs: list[dict[str, Tensor]] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    stops: tuple[int, ...] = ()
    conversations: list[list[dict[str, Any]]] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    texts: list[tuple[str | list[str], list[int]]] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)
    drawn: str = ""

    @property
    def in_words(self) -> str:
        """The rows or inputs that are compared."""
        if not self.drawn:
            return counted(len(self.inputs), "row")
        kind = f"{counted(len(self.inputs), 'input')} drawn at random" if self.inputs else "the tensors alone"
        return f"{kind}, as {self.drawn}"


def logits_for(model: nn.Module, inputs: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    """Return what a model puts out for each row, as float32."""
    with torch.no_grad():
        return [logits_of(model(**each)).float() for each in inputs]


def greedy(model: nn.Module, prompts: Sequence[Sequence[int]], stops: Sequence[int]) -> list[Answer]:
    """Return the most likely answer to each prompt."""
    answers = []
    for prompt in prompts:
        most = answer_tokens(model, prompt)
        settings = Generation(max_new_tokens=most)
        (tokens,) = generate(model, _alone(list(prompt)), [0], stops, settings)
        answers.append(Answer(tokens, len(tokens) < most))
    return answers


def answer_tokens(model: nn.Module, prompt: Sequence[int]) -> int:
    """Return how many tokens of an answer to a prompt are compared; none where the prompt fills the model's positions."""
    return min(ANSWER_TOKENS, positions_of(model) - (0 if writes_another_text(model) else len(prompt)))


def inputs_with_answer(model: nn.Module, prompt: Sequence[int], answer: Sequence[int]) -> dict[str, Tensor]:
    """Return the arguments of a forward that tells the logits of an answer: behind its prompt, or as what the decoder reads."""
    read, written = list(prompt), list(answer)
    if writes_another_text(model):
        start = int(model.config.decoder_start_token_id)  # type: ignore[union-attr, arg-type]
        return {**_alone(read), "decoder_input_ids": torch.tensor([[start, *written]])}
    return _alone([*read, *written])


def _alone(ids: list[int]) -> dict[str, Tensor]:
    return {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids)).long()}


@contextmanager
def rounded(model: nn.Module, round_weight: RoundWeight) -> Iterator[None]:
    """Temporarily compute with rounded weights, one module's at a time, so that they need no memory of their own."""
    handles = []

    def swap(module: nn.Module, _arguments: Any) -> None:
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in whole:
                whole[id(parameter)] = parameter.data
                parameter.data = round_weight(parameter.data).to(parameter.dtype)

    def restore(module: nn.Module, _arguments: Any, _output: Any) -> None:
        for parameter in module.parameters(recurse=False):
            parameter.data = whole.pop(id(parameter), parameter.data)

    whole: dict[int, Tensor] = {}
    for module in model.modules():
        if any(True for _ in module.parameters(recurse=False)):
            handles += [module.register_forward_pre_hook(swap), module.register_forward_hook(restore)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for parameter in model.parameters():  # of a forward that failed
            if id(parameter) in whole:
                parameter.data = whole[id(parameter)]


def rounded_logits(scored: ScoredRows, round_weight: RoundWeight | None) -> list[Tensor] | None:
    """Return the logits of a model whose weights were rounded, for what was scored; None where nothing rounds them."""
    if round_weight is None:
        return None
    with rounded(scored.model, round_weight):
        return logits_for(scored.model, scored.inputs)


def near_tie(
    model: nn.Module, prompt: Sequence[int], own: Answer, other: Answer, within: float, stop: int
) -> bool:
    """Return whether two answers part where two tokens are as good as equal: nearer than `within`.

    Args:
        stop: a token that ends an answer.
    """
    ours, theirs = _whole(own, stop), _whole(other, stop)
    place = next((at for at, (one, two) in enumerate(zip(ours, theirs, strict=False)) if one != two), None)
    if place is None:
        return False
    inputs = inputs_with_answer(model, prompt, ours[:place])
    del inputs["attention_mask"]  # one row has no padding
    (logits,) = logits_for(model, [inputs])
    last = logits[0, -1]
    return float(last[ours[place]] - last[theirs[place]]) <= within


def _whole(answer: Answer, stop: int) -> list[int]:
    return [*answer.tokens, stop] if answer.ended else list(answer.tokens)
