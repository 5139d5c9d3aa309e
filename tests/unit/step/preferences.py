"""A tiny language model, rows of preferences as lists of tokens, and windows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from snugfit.core.batch import Batch
from snugfit.data.texts.preferences import PadPairs
from snugfit.kit.losses.preference_losses import PreferenceLoss
from snugfit.step.build import Material
from snugfit.step.metrics.answer_scores import AnswerScores
from snugfit.step.start_scores import fill_start_scores
from snugfit.step.step import Step
from snugfit.strategies.base import Strategy
from snugfit.techniques.learning.lora import LoRA, lora_
from snugfit.techniques.learning.sgd import SGD

VOCABULARY = 13


def decoder(dropout: float = 0.0) -> GPT2LMHeadModel:
    """A model that computes in float64 throughout, unlike those whose norms round to float32."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=64,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        initializer_range=0.4,  # so that the model is sure of something
    )
    return GPT2LMHeadModel(config).double()


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Prompts, answers of different lengths and labels."""
    draw = torch.Generator().manual_seed(seed)

    def tokens(least: int, most: int) -> list[int]:
        length = int(torch.randint(least, most + 1, (1,), generator=draw))
        return torch.randint(0, VOCABULARY, (length,), generator=draw).tolist()

    return [
        {
            "prompt": tokens(1, 4),
            "chosen": tokens(1, 6),
            "rejected": tokens(1, 6),
            "answer": tokens(1, 5),
            "good": bool(place % 3),
        }
        for place in range(count)
    ]


def examples(made: Sequence[dict[str, Any]], *, pairs: bool) -> list[dict[str, Any]]:
    """The rows as data sets hold them."""
    found = []
    for place, row in enumerate(made):
        answers = (row["chosen"], row["rejected"]) if pairs else (row["answer"], made[place - 1]["answer"])
        prompt = row["prompt"]
        found.append(
            {
                "input_ids": [[*prompt, *answer] for answer in answers],
                "labels": [[*[-100] * len(prompt), *answer] for answer in answers],
                **({} if pairs else {"desirable": row["good"]}),
            }
        )
    return found


def next_token(model: nn.Module) -> Any:
    """The logits of the token after a list of tokens, as oracles ask for them."""
    return lambda ids: model(input_ids=torch.tensor([ids])).logits[0, -1]


@dataclass
class Trained:
    step: Step
    material: Material
    first: GPT2LMHeadModel

    def window(self) -> dict[str, Any]:
        return PadPairs(0)(self.material.train)

    def step_window(self) -> Batch:
        """The window as a step hands it to techniques."""
        return self.step.shared(Batch.of(self.window()).to(self.step.device))


def trained(
    loss: PreferenceLoss,
    count: int,
    micro_batch: int | None = None,
    *,
    adapters: bool = False,
    dropout: float = 0.0,
    strategy: Strategy | None = None,
    techniques: Sequence[Any] = (),
) -> Trained:
    """A step whose model has moved away from what it was at first, by a change of its weights that nobody learned."""
    model, first = decoder(dropout), decoder()
    data = examples(rows(count), pairs=loss.pairs)
    forward = AnswerScores(loss)
    lora = (LoRA(rank=2, dropout=dropout),) if adapters else ()
    step = Step(
        model,
        SGD(learning_rate=0.1),
        loss,
        (*lora, *techniques),
        micro_batch=micro_batch,
        forward=forward,
        strategy=strategy,
        nominal=float(count),
    )
    material = Material(step.model, data, None, loss, PadPairs(0), forward)
    if material.compares_start:
        fill_start_scores(step, material)
    move(step.model)
    return Trained(step, material, first.eval())


def move(model: nn.Module) -> None:
    """Change what trains, alike whether a rank has all of it or a part."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.3).add_(0.05)


def gradients(step: Step) -> dict[str, Tensor]:
    return {name: gradient.clone() for name, gradient in step.gradients().items()}


def copy_of(model: nn.Module, *, adapters: bool) -> nn.Module:
    """A model of the same weights that oracles may ask."""
    other = decoder()
    if adapters:
        lora_(other, rank=2)
    other.load_state_dict(model.state_dict())
    return other.eval()
