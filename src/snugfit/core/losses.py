"""The built-in losses, and what is known of a loss."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.loss import _Loss

from snugfit.core.batch import IGNORE_INDEX as IGNORE_INDEX
from snugfit.core.batch import Batch, labels_of
from snugfit.core.broadcast_rows import BroadcastRows, may_meet
from snugfit.core.logits_loss import check_own_tokens, masked_cross_entropy, soft_cross_entropy
from snugfit.core.loss_terms import NEGATIVE, Loss, LossTerms, as_terms, wide_dtype
from snugfit.errors import DataError, SettingError, nearest

_ROUNDED = 1e-2
"""By how much a probability that was rounded may be above 1."""
LOG_PROBABILITIES = "log_probabilities"
"""The entry of outputs that are scores of whole answers."""


def over_batches(loss: Loss) -> Callable[[Any, Batch], LossTerms]:
    """Return the user's loss as a loss of batches, checked at every call; a negative weight makes the sum of weights `NEGATIVE`.

    Rows that a loss of one's own broadcasts to all pairs of them are looked for until it was called with several rows.
    """
    never_negative = unwrapped(loss) in (cross_entropy, causal_lm, masked_pixels)  # their weights are 0 and 1
    unwatched = isinstance(loss, TorchLoss) or loss in LOSSES.values() or couples_rows(loss)

    def watched(outputs: Any, batch: Batch) -> Any:
        nonlocal unwatched
        if not may_meet(outputs, batch.data, batch.rows):
            result = loss(outputs, batch.data)
        else:
            with BroadcastRows(batch.rows):
                result = loss(outputs, batch.data)
        unwatched = batch.rows > 1
        return result

    def checked(outputs: Any, batch: Batch) -> LossTerms:
        result = loss(outputs, batch.data) if unwatched else watched(outputs, batch)
        terms = as_terms(result, batch.rows)
        if never_negative or terms.weights is None:
            return terms
        weights = terms.weights.to(wide_dtype(terms.weights.dtype))
        return replace(terms, weights=torch.where(weights < 0, NEGATIVE, weights))

    return checked


def logits_of(outputs: Any) -> Tensor:
    """Return the logits of a model's outputs: themselves, `.logits`, entry `logits`, or the first of a tuple that is no loss of the model's own.

    >>> logits_of((torch.tensor(0.5), torch.ones(2, 3))).shape  # the loss first, as tuples of transformers have it
    torch.Size([2, 3])
    """
    if isinstance(outputs, Tensor):
        return outputs
    if hasattr(outputs, "logits"):
        logits: Tensor = outputs.logits
        return logits
    if isinstance(outputs, Mapping):
        entry = outputs.get("logits")
    else:
        entry = _scores(outputs) if isinstance(outputs, (tuple, list)) else None
    if not isinstance(entry, Tensor):
        if isinstance(outputs, Mapping) and LOG_PROBABILITIES in outputs:
            raise SettingError(
                "loss",
                "is of preferences, which has log-probabilities of answers in place of logits",
                "Remove the technique or the metric that asks for logits.",
            )
        has = f", which has {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else ""
        returned = "None" if outputs is None else f"a {type(outputs).__name__}{has}"
        raise SettingError(
            "loss",
            f"no logits in what the model returns, {returned}",
            "Take a model with a head for the task, or give your own loss(outputs, data).",
        )
    return entry


def _scores(outputs: Sequence[Any]) -> Any:
    """Return the first of some outputs that is not one number, as a loss is that the model computes itself; the first where all are."""
    plain = (each for each in outputs if not (isinstance(each, Tensor) and each.ndim == 0))
    return next(plain, outputs[0] if outputs else None)


def cross_entropy(outputs: Any, data: Any) -> LossTerms:
    """Cross-entropy of logits (rows, ..., classes) with integer labels (rows, ...); label -100 has weight 0.

    Labels may be soft: probabilities of the shape of the logits, which all count.
    """
    logits, labels = logits_of(outputs), _class_labels(data)
    if labels.is_floating_point():
        return soft_cross_entropy(logits, labels)
    return masked_cross_entropy(logits, labels)


def causal_lm(outputs: Any, data: Any) -> LossTerms:
    """Next-token cross-entropy of logits (rows, tokens, vocabulary); labels are the tokens themselves.

    Position t is scored on label t + 1; the last position and labels of -100 have weight 0, so values keep
    the shape of the logits' positions.
    """
    logits, labels = logits_of(outputs), _class_labels(data)
    check_own_tokens(logits, labels)
    shifted = F.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
    return masked_cross_entropy(logits, shifted)


def mse(outputs: Any, data: Any) -> LossTerms:
    """Squared error of outputs and labels of the same number of elements a row, in float32 at least."""
    prediction, labels = logits_of(outputs), labels_of(data)
    if prediction.shape[:1] != labels.shape[:1] or prediction.numel() != labels.numel():
        raise SettingError(
            "loss",
            f"mse of outputs of shape {tuple(prediction.shape)} and labels of shape {tuple(labels.shape)}",
            "Give each row as many outputs as labels.",
        )
    prediction = prediction.to(wide_dtype(prediction.dtype)).reshape(labels.shape)
    return LossTerms((prediction - labels.to(prediction.dtype)) ** 2)


def binary_cross_entropy(outputs: Any, data: Any) -> LossTerms:
    """Binary cross-entropy of each logit with its label of 0 or 1, or a probability, in float32 at least: each label counts on its own.

    Raises:
        SettingError: a row has not as many logits as labels.
    """
    logits, labels = logits_of(outputs), labels_of(data)
    if logits.shape[:1] != labels.shape[:1] or logits.numel() != labels.numel():
        raise SettingError(
            "loss",
            f"binary_cross_entropy of logits of shape {tuple(logits.shape)} and labels of shape {tuple(labels.shape)}",
            "Give each row a logit for each of its labels of 0 and 1.",
        )
    logits = logits.to(wide_dtype(logits.dtype)).reshape(labels.shape)
    return LossTerms(F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none"))


def pinball(outputs: Any, data: Any) -> LossTerms:
    """Pinball loss of quantiles with labels (rows, ...), twice its mean over the levels: of the median alone the absolute error.

    Labels of NaN have weight 0. The model returns entries `logits`, shape (rows, ..., levels), and `levels`, shape (rows, levels).

    Source: Koenker and Bassett 1978, doi:10.2307/1913643.
    """
    quantiles, levels, labels = quantiles_of(outputs, data)
    counted = ~labels.isnan()
    difference = torch.where(counted, labels, 0.0).unsqueeze(-1) - quantiles
    levels = levels.view(len(levels), *[1] * (labels.ndim - 1), -1)
    values = 2 * torch.maximum(levels * difference, (levels - 1) * difference).mean(dim=-1)
    return LossTerms(values, counted.to(values.dtype))


def quantiles_of(outputs: Any, data: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return quantiles (rows, ..., levels), their levels (rows, levels), and labels (rows, ...), in float32 at least.

    Raises:
        SettingError: the model puts out none, or their shapes do not fit.
    """
    levels = outputs.get("levels") if isinstance(outputs, Mapping) else getattr(outputs, "levels", None)
    if not isinstance(levels, Tensor):
        raise SettingError(
            "loss",
            f"no quantiles in what the model returns, a {type(outputs).__name__}",
            "Return a dict of logits, shape (rows, steps, levels), and levels, shape (rows, levels).",
        )
    quantiles, labels = logits_of(outputs), labels_of(data)
    if quantiles.shape != (*labels.shape, levels.shape[-1]):
        raise SettingError(
            "loss",
            f"quantiles of shape {tuple(quantiles.shape)} for labels of shape {tuple(labels.shape)} and "
            f"{levels.shape[-1]} levels",
            "Give each label a quantile for each level.",
        )
    wide = wide_dtype(quantiles.dtype)
    return quantiles.to(wide), levels.to(wide), labels.to(wide)


def no_negatives(texts: Tensor, rows: range | None = None) -> Tensor:
    """Return which keys are no negatives of rows, as they are right too; a row's own key is not among these.

    Keys are the second texts of all rows, and behind them the further ones, row by row. Right is a key that is the row's first text, or the
    second text of a row with the same first text, wherever it stands.

    Args:
        texts: numbers that tell texts apart, shape (rows, texts).
        rows: some of them, all by default.
    Returns:
        Booleans, shape (these rows, keys).

    >>> no_negatives(torch.tensor([[1, 2], [3, 4], [1, 5]])).int().tolist()
    [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    """
    rows = range(len(texts)) if rows is None else rows
    keys = torch.cat([texts[:, 1], texts[:, 2:].flatten()])
    first = texts[rows.start : rows.stop, :1]
    of_same_first = (texts[:, 0] == first).float() @ (texts[:, 1:2] == keys).float()
    right = (of_same_first > 0) | (keys == first)
    places = torch.arange(rows.start, rows.stop, device=texts.device)
    right[places - rows.start, places] = False
    return right


@dataclass(frozen=True)
class InfoNCE:
    """Cross-entropy of picking each row's own key among the keys of all rows: every other row is a negative.

    The model returns entries `query` and `key` of shape (rows, width), a tuple that begins with both, or one tensor
    (rows, 2, width): two views of each row. They are normalised to length 1 and compared in float32 at least.
    Embeddings of texts come as `logits` (rows, texts, width), with `texts`, numbers that tell texts apart: the first of a row is its query, the second its key,
    and further ones are keys of no row. Texts that are right too, as `no_negatives` has them, are not compared.

    Args:
        temperature: what cosines are divided by, positive.
        symmetric: also pick each key's query, and take the mean of both.
    Source: van den Oord et al. 2018, arXiv:1807.03748, equation 4; symmetric: Radford et al. 2021, arXiv:2103.00020.
    """

    temperature: float = 0.05
    symmetric: bool = False
    couples_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise SettingError(
                "info_nce.temperature",
                f"must be positive, found {self.temperature!r}",
                "Give a number above 0.",
            )

    def __call__(self, outputs: Any, data: Any) -> LossTerms:  # noqa: ARG002  # pairs need no labels
        query, key, texts = _sides_of(outputs)
        rows = query.shape[0]
        own = torch.arange(rows, device=query.device)
        with torch.autocast(query.device.type, enabled=False):  # bf16 cosines have two digits
            query, key = (F.normalize(side.to(wide_dtype(side.dtype)), dim=1) for side in (query, key))
            scores = query @ key.T / self.temperature
            if texts is not None:
                scores = scores.masked_fill(no_negatives(texts), -math.inf)
            values = F.cross_entropy(scores, own, reduction="none")
            if self.symmetric:
                values = (values + F.cross_entropy(scores[:, :rows].T, own, reduction="none")) / 2
        return LossTerms(values)


@dataclass(frozen=True)
class NTXent:
    """Cross-entropy of picking each view's partner among all other views of all rows: of each row there are two, of which each is picked from the other.

    The model returns views as `InfoNCE` takes pairs, or as `logits` of shape (rows, 2, width). They are normalised to length 1 and compared in float32 at least.
    A row's value is the mean of its two views'.

    Args:
        temperature: what cosines are divided by, positive.
    Source: Chen et al. 2020, arXiv:2002.05709, equation 1.
    """

    temperature: float = 0.5
    couples_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise SettingError(
                "nt_xent.temperature",
                f"must be positive, found {self.temperature!r}",
                "Give a number above 0.",
            )

    def __call__(self, outputs: Any, data: Any) -> LossTerms:  # noqa: ARG002  # pairs need no labels
        match outputs:
            case {"logits": Tensor(ndim=3) as sides} if sides.shape[1] == 2:
                first, second = sides[:, 0], sides[:, 1]
            case _:
                first, second = pair_of(outputs, "nt_xent")
        rows = first.shape[0]
        with torch.autocast(first.device.type, enabled=False):  # bf16 cosines have two digits
            views = torch.cat([first, second])
            views = F.normalize(views.to(wide_dtype(views.dtype)), dim=1)
            own = torch.eye(2 * rows, dtype=torch.bool, device=views.device)
            scores = (views @ views.T / self.temperature).masked_fill(own, -math.inf)
            partners = torch.arange(2 * rows, device=views.device).roll(rows)
            values = F.cross_entropy(scores, partners, reduction="none")
        return LossTerms(values.view(2, rows).mean(dim=0))


def masked_pixels(outputs: Any, data: Any) -> LossTerms:
    """Absolute error of drawn pictures in each hidden patch, its mean over the patch, in float32 at least; patches that are seen have weight 0.

    Outputs and entry `pixel_values` have the shape (rows, channels, height, width), entry `mask` (rows, patches down, patches across).

    Source: Xie et al. 2022 (SimMIM), arXiv:2111.09886, equation 1.
    """
    drawn, mask = logits_of(outputs), data.get("mask") if isinstance(data, Mapping) else None
    if not isinstance(mask, Tensor) or drawn.shape != data["pixel_values"].shape:
        raise SettingError(
            "loss",
            f"masked_pixels of outputs of shape {tuple(drawn.shape)}, and data "
            + ("without a mask" if mask is None else f"of shape {tuple(data['pixel_values'].shape)}"),
            "Take task masked-pictures, or give your own loss(outputs, data).",
        )
    wide = wide_dtype(drawn.dtype)
    error = (drawn.to(wide) - data["pixel_values"].to(wide)).abs().mean(dim=1)
    patches = error.unflatten(2, (mask.shape[2], -1)).unflatten(1, (mask.shape[1], -1))
    return LossTerms(patches.mean(dim=(2, 4)), mask.to(wide))


LOSSES: Mapping[str, Loss] = {
    "cross_entropy": cross_entropy,
    "causal_lm": causal_lm,
    "binary_cross_entropy": binary_cross_entropy,
    "mse": mse,
    "pinball": pinball,
    "info_nce": InfoNCE(),
    "info_nce_symmetric": InfoNCE(symmetric=True),
    "nt_xent": NTXent(),
    "masked_pixels": masked_pixels,
}


@dataclass(frozen=True)
class TorchLoss:
    """A torch loss module as terms whose weighted mean is what it gives with reduction 'mean'."""

    module: torch.nn.Module

    def __call__(self, outputs: Any, data: Any) -> LossTerms:
        return _module_terms(self.module, logits_of(outputs), labels_of(data))


def couples_rows(loss: Loss) -> bool:
    """Return whether a row's loss depends on the other rows: the attribute `couples_rows` of the loss says so."""
    return bool(getattr(unwrapped(loss), "couples_rows", False))


def of_answers(loss: Loss | None) -> bool:
    """Return whether a loss takes log-probabilities of answers and no logits, as those of preferences do."""
    return bool(getattr(unwrapped(loss), "of_answers", False))


def unwrapped(loss: Loss | None) -> Loss | None:
    """Return the loss inside of `functools.partial`."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    return loss


def labels_ahead(loss: Loss) -> int | None:
    """Return how many labels behind a token the value of that token depends on; None if values are not known to be of single tokens.

    A loss of the user's own says so by the attribute `labels_ahead`: it gives one value for each place of the logits (rows,
    tokens, classes), which depends on the logits of that place, its label, and as many labels behind it.
    """
    own = unwrapped(loss)
    if own is cross_entropy or own is causal_lm:
        return 1 if own is causal_lm else 0
    count: int | None = getattr(own, "labels_ahead", None)
    return count


def class_dim(loss: Loss | None) -> int | None:
    """Return the dimension of the logits that holds the classes, where the loss says so: the last, or torch's 1."""
    if loss is cross_entropy or loss is causal_lm:
        return -1
    if isinstance(loss, TorchLoss) and isinstance(loss.module, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)):
        return 1
    return None


def find_loss(loss: str | Loss) -> Loss:
    """Return a built-in loss by name, or the callable itself.

    Raises:
        SettingError: no such name, or a torch loss module that reduces.
    """
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise SettingError("loss", f"no built-in '{loss}'", nearest(loss, LOSSES))
        return LOSSES[loss]
    if isinstance(loss, _Loss):
        if loss.reduction != "none":
            raise SettingError(
                "loss",
                f"{type(loss).__name__} has reduction='{loss.reduction}'",
                "Make it with reduction='none': Snugfit divides once over the whole window, so that micro-batches do "
                "not matter.",
            )
        return TorchLoss(loss)
    if getattr(loss, "__module__", None) == "torch.nn.functional":
        raise SettingError(
            "loss",
            "a function of torch.nn.functional takes logits and labels, and Snugfit gives (outputs, data)",
            "Give the module with reduction='none', such as torch.nn.CrossEntropyLoss(reduction='none'), or the "
            "name of a built-in loss.",
        )
    return loss


def _module_terms(module: torch.nn.Module, logits: Tensor, labels: Tensor) -> LossTerms:
    logits = logits.to(wide_dtype(logits.dtype))
    if not isinstance(module, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)):
        if logits.shape != labels.shape and logits.numel() == labels.numel():
            logits = logits.reshape(labels.shape)  # torch would spread (rows, 1) and (rows,) to (rows, rows)
        return LossTerms(module(logits, labels))
    values = module(logits, labels)
    if labels.is_floating_point():
        return LossTerms(values)
    counted = labels != module.ignore_index
    weights = counted.to(wide_dtype(values.dtype))
    if module.weight is not None:  # torch has multiplied by it, and divides by the sum of the labels' weights
        weights = weights * module.weight.to(weights.dtype)[labels.masked_fill(~counted, 0)]
    return LossTerms(values / torch.where(weights > 0, weights, 1.0), weights)


def _class_labels(data: Any) -> Tensor:
    labels: object = labels_of(data)
    if isinstance(labels, Tensor):
        return labels
    value = labels[0] if isinstance(labels, (tuple, list)) and labels else labels
    raise DataError(
        "loss",
        f"labels are no tensor but values such as {value!r}",
        "Give numbers: the index of each row's class, or of each token's.",
    )


def check_soft_labels(loss: Loss, data: Any) -> None:
    """Refuse floating labels that are no probabilities of classes: for cross_entropy alone, of which softmax makes something of any numbers.

    A row may lack some of its probability, where only the likeliest classes were kept. Labels on another device are not looked at.

    Args:
        data: of a window, as the loss gets it.
    Raises:
        DataError: a label is outside of 0 to 1, or labels are 0 and 1 and a row has several of 1, or none.
    """
    if loss is not cross_entropy:
        return
    try:
        labels: object = labels_of(data)
    except DataError:
        return  # the loss says so
    if not isinstance(labels, Tensor) or not labels.is_floating_point() or labels.ndim < 2:
        return
    if labels.device.type != "cpu":
        return
    not_one = labels.sum(dim=-1) != 1
    if bool(((labels < 0) | (labels > 1 + _ROUNDED)).any()):
        raise DataError(
            "loss",
            "cross_entropy has labels outside of 0 to 1, which are no probabilities of classes",
            "Where labels are numbers, take loss mse.",
        )
    if bool(not_one.any()) and bool(((labels == 0) | (labels == 1)).all()):
        row = int(not_one.nonzero()[0, 0])
        raise DataError(
            "loss",
            f"cross_entropy expects one class a row, and labels are 0 and 1, of which row {row} of the window has not one but "
            f"{labels[row].sum():g} of 1",
            "Where a row may have any number of labels, take loss binary_cross_entropy.",
        )


def _sides_of(outputs: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return queries, the keys of all rows with further ones behind them, and the numbers of texts, where outputs are of texts."""
    match outputs:
        case {"logits": Tensor(ndim=3) as sides, "texts": Tensor() as texts} if sides.shape[1] > 1:
            return sides[:, 0], torch.cat([sides[:, 1], sides[:, 2:].flatten(0, 1)]), texts
    return (*pair_of(outputs), None)


def pair_of(outputs: Any, loss: str = "info_nce") -> tuple[Tensor, Tensor]:
    """Return queries and keys (rows, width): entries or attributes `query` and `key`, a tuple, or one tensor (rows, 2, width).

    Args:
        loss: that asks for them, for the message.
    Raises:
        SettingError: the outputs hold no such pair; says what they hold.

    >>> import torch
    >>> query, key = pair_of(torch.zeros(5, 2, 3))
    >>> query.shape, key.shape
    (torch.Size([5, 3]), torch.Size([5, 3]))
    """
    if isinstance(outputs, Tensor) and outputs.ndim == 3 and outputs.shape[1] == 2:
        return outputs[:, 0], outputs[:, 1]
    match outputs:
        case (
            {"query": Tensor(ndim=2) as query, "key": Tensor(ndim=2) as key}
            | object(query=Tensor(ndim=2) as query, key=Tensor(ndim=2) as key)
            | [Tensor(ndim=2) as query, Tensor(ndim=2) as key, *_]
        ) if query.shape == key.shape:
            return query, key
    raise SettingError(
        "loss",
        f"{loss} needs two embeddings a row, and found {_contents(outputs)} in {type(outputs).__name__}",
        "Return 'query' and 'key' of shape (rows, width), a tuple that begins with both, or one tensor of "
        "shape (rows, 2, width). For a classifier, use cross_entropy.",
    )


def _contents(outputs: Any) -> str:
    """Return names and shapes of what is there.

    >>> import torch
    >>> _contents({"loss": None, "logits": torch.zeros(8, 4)})
    'loss NoneType, logits (8, 4)'
    """
    if isinstance(outputs, Mapping):
        parts = list(outputs.items())
    elif isinstance(outputs, (tuple, list)):
        parts = list(enumerate(outputs))
    else:
        parts = [(name, getattr(outputs, name)) for name in ("query", "key") if hasattr(outputs, name)]
        parts = parts or [("", outputs)]
    shown = (
        f"{name} {tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__}".strip()
        for name, part in parts
    )
    return ", ".join(shown) or "nothing"
