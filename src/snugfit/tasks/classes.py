"""The class that a row is most likely of, by a model's logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from snugfit.tasks.inference import Prediction


def most_likely(classes: Sequence[Any], outputs: Any, examples: Sequence[Any]) -> list[Prediction]:
    """Return a prediction (the class) and its probability for each row of logits, shape (rows, classes)."""
    from snugfit.core.losses import logits_of
    from snugfit.core.scalar_reads import read

    best = logits_of(outputs).float().softmax(dim=-1).max(dim=-1)
    nothing = [0] * len(examples)
    places, probabilities = read(best.indices, assume=nothing), read(best.values, assume=nothing)
    return [
        {"prediction": classes[place], "probability": probability}
        for place, probability in zip(places, probabilities, strict=True)
    ]
