"""Which dimension of the logits holds the classes: the last (tokens), or torch's second (pixels)."""

from __future__ import annotations

from torch import Tensor

from snugfit.core.losses import Loss, class_dim
from snugfit.errors import SettingError


def find_class_dim(
    technique: str, logits: Tensor, values: Tensor, *, loss: Loss | None = None, dim: int | None = None
) -> int:
    """The class dimension of `logits` for losses `values`, which have one entry for each place of the others.

    Args:
        technique: its name, for the messages.
        loss: built-in losses and torch's modules say which dimension they take.
        dim: what the user says.
    Raises:
        SettingError: the shapes fit no dimension, or both and nobody says which.
    """
    shape, wanted = tuple(logits.shape), tuple(values.shape)
    said = class_dim(loss) if dim is None else dim
    tried = (1, len(shape) - 1) if said is None else (said % max(len(shape), 1),)
    fitting = {
        place
        for place in tried
        if 0 < place < len(shape) and shape[:place] + shape[place + 1 :] == wanted and shape[place] > 1
    }
    if not fitting:
        raise SettingError(
            f"{technique}: the loss has the shape {wanted} and the logits {shape}. It needs one loss for each place, and "
            f"scores of at least two classes in {'dimension ' + str(said) if said is not None else 'dimension 1 or the last'}."
        )
    if len(fitting) > 1:
        raise SettingError(
            f"{technique}.dim: the classes of logits {shape} may be dimension 1 or the last, as the loss has the shape {wanted}. "
            f"Say which: dim: 1 or dim: -1."
        )
    return fitting.pop()
