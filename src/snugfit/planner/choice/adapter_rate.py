"""Adapters that a plan puts in: the learning rate that they get, and what is said of them.

A plan puts adapters in with their own defaults: LoRA of rank 8 and alpha 16 beside every linear layer but a language model's output, as
torchtune's recipes have it (https://github.com/pytorch/torchtune, llama3/8B_lora_single_device.yaml); beside all layers, as adapters of
attention alone learn less (Schulman et al. 2025, "LoRA Without Regret", Thinking Machines Lab).

Their learning rate is ten times the recipe's, which is one for all weights: the best rate of LoRA is about ten times that of full
fine-tuning, whatever the rank (the same source). It is raised to 2e-4 at most, QLoRA's rate for models up to 13B (Dettmers et al. 2023,
arXiv:2305.14314), and never lowered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from snugfit.core.technique import Stage, Technique, as_settings

TIMES = 10
HIGHEST = 2e-4


def rate_of_adapters(rate: float) -> float:
    """Return the learning rate of adapters in place of one for all weights.

    >>> rate_of_adapters(1e-5), rate_of_adapters(5e-5), rate_of_adapters(1e-3)
    (0.0001, 0.0002, 0.001)
    """
    return max(rate, min(float(f"{TIMES * rate:.12g}"), HIGHEST))


def adapts(techniques: Sequence[Technique]) -> bool:
    """Return whether adapters are put in by one of these."""
    return any(Stage.ADAPT in each.card.stages for each in techniques)


def at_rate_of_adapters(technique: Technique) -> Technique:
    """Return an optimizer with the learning rate of adapters, and any other technique as it is."""
    rate = _rate(technique)
    if rate is None or rate_of_adapters(rate) == rate:
        return technique
    return dataclasses.replace(technique, learning_rate=rate_of_adapters(rate))  # type: ignore[type-var]


def adapter_notes(own: Sequence[Technique], entries: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return what is said of adapters that a plan has put in: their settings, and the learning rate; nothing where it has put in none.

    Args:
        own: the recipe's techniques; entries: the plan's, as an answer has them.
    """
    from snugfit.techniques import find

    if adapts(own):
        return ()
    plan = [find(name)(**settings) for entry in entries for name, settings in entry.items()]
    sentences = []
    for adapter in (each for each in plan if Stage.ADAPT in each.card.stages):
        settings = as_settings(adapter)
        shown = [f"{name} {settings[name]:g}" for name in ("rank", "alpha") if name in settings]
        where = ", ".join(settings.get("targets") or ()) or "all linear layers"
        sentences.append(
            f"{adapter.card.name} is put in ({', '.join(shown)}, beside {where}), which changes what is learned. To choose its settings, "
            f"name {adapter.card.name} in the recipe's techniques."
        )
    rates = [rate for each in own if (rate := _rate(each)) is not None]
    if not sentences or not rates:
        return tuple(sentences)
    (before, *_), after = rates, rate_of_adapters(rates[0])
    if after == before:
        how = f"The learning rate stays {before:g}: adapters get ten times the recipe's, but no more than {HIGHEST:g}, and no less than it."
    else:
        how = f"The learning rate is {after:g} in place of {before:g}: adapters get ten times the recipe's, but no more than {HIGHEST:g}."
    return (*sentences, how)


def _rate(technique: Technique) -> float | None:
    """Return an optimizer's rate."""
    rate = getattr(technique, "learning_rate", None) if "optimizer" in technique.card.seams else None
    return rate if isinstance(rate, float) else None
