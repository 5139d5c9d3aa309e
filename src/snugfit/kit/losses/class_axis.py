"""The scores of classes in a model's outputs, and which dimension holds the classes: the last (tokens), or torch's second (pixels)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from snugfit.core.loss_terms import Loss
from snugfit.core.losses import LOSSES, InfoNCE, NTXent, class_dim, couples_rows, logits_of, unwrapped
from snugfit.errors import SettingError


def refuse_embeddings(technique: str, loss: Loss | None) -> None:
    """Refuse a loss that is of embeddings alone.

    Raises:
        SettingError: it is one of the built-in contrastive losses.
    """
    if isinstance(own := unwrapped(loss), (InfoNCE, NTXent)):
        name = next((name for name, each in LOSSES.items() if each == own), type(own).__name__)
        raise SettingError(
            technique,
            f"the loss {name} compares embeddings, and it needs scores of classes",
            f"Remove {technique}, or use a loss of logits, such as cross_entropy.",
        )


def class_scores(technique: str, outputs: Any, loss: Loss | None) -> Tensor:
    """Return the logits of a model's outputs; where the loss compares rows, and may take embeddings, they have to be called so.

    Raises:
        SettingError: they are not.
    """
    named = "logits" in outputs if isinstance(outputs, Mapping) else hasattr(outputs, "logits")
    if not named and loss is not None and couples_rows(loss):
        raise SettingError(
            technique,
            "the loss compares rows, and the model's outputs do not say which are the logits, if any",
            f"Return them as an entry or attribute 'logits', or remove {technique}.",
        )
    return logits_of(outputs)


def find_class_dim(
    technique: str, logits: Tensor, values: Tensor, *, loss: Loss | None = None, dim: int | None = None
) -> int:
    """Return the class dimension of `logits` for losses `values`, which have one entry for each place of the others.

    Args:
        technique: its name, for the messages.
        loss: built-in losses and torch's modules say which dimension they take.
        dim: what the user says.
    Raises:
        SettingError: the shapes fit no dimension, or both and nobody says which.
    """
    shape, wanted = tuple(logits.shape), tuple(values.shape)
    axis = class_dim(loss) if dim is None else dim
    tried = (1, len(shape) - 1) if axis is None else (axis % max(len(shape), 1),)
    fitting = {
        place
        for place in tried
        if 0 < place < len(shape) and shape[:place] + shape[place + 1 :] == wanted and shape[place] > 1
    }
    if not fitting:
        raise SettingError(
            technique,
            f"the loss has the shape {wanted} and the logits {shape}",
            "Give one loss for each place, and scores of at least two classes in "
            f"{('dimension ' + str(axis) if axis is not None else 'dimension 1 or the last')}.",
        )
    if len(fitting) > 1:
        raise SettingError(
            f"{technique}.dim",
            f"the classes of logits {shape} may be dimension 1 or the last, as the loss has the shape {wanted}",
            "Say which: dim: 1 or dim: -1.",
        )
    return fitting.pop()
