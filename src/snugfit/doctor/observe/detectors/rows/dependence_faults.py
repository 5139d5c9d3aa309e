"""Findings on what a model is given beside what it should learn from: the next token, the target, padding, norms that do not fit."""

from __future__ import annotations

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.log_views import is_one_batch, trained_models
from snugfit.doctor.observe.events.script_events import (
    Forward,
    Hits,
    LabelColumn,
    Loss,
    SeesFuture,
    UnreadyNorm,
)
from snugfit.doctor.observe.events.text_events import PaddingMask

LEAST_PASSES = 3
NEARLY_ALL = 0.9
MUCH_PADDING = 0.05


def sees_the_future(log: Log) -> list[Finding]:
    """Detect that a model which learns the next token gets it."""
    for event in log.of(SeesFuture):
        return [
            Finding(
                "sees_the_future",
                Certainty.CERTAIN,
                "The label is the next token, and the score depends on the tokens behind it: the model reads its answer.",
                event.at,
                (
                    "the gradient of one score with respect to the layer that reads the tokens is not 0 behind its place",
                ),
                "mask = nn.Transformer.generate_square_subsequent_mask(length)\n"
                "hidden = encoder(embedded, mask=mask, is_causal=True)   # is_causal=True in scaled_dot_product_attention",
            )
        ]
    return []


def column_of_targets(log: Log) -> list[Finding]:
    """Detect a column of the inputs that tells the target of each row, batch after batch."""
    seen = list(log.of(LabelColumn))
    places = {(each.column, each.columns) for each in seen}
    if len(seen) < LEAST_PASSES or len(places) > 1:
        return []
    first, rows = seen[0], sum(each.rows for each in seen)
    holds = "holds the target itself" if first.exact else "has one value for each class"
    return [
        Finding(
            "leakage",
            Certainty.CERTAIN if not first.exact else Certainty.LIKELY,
            f"Column {first.column} of {first.columns} (counted from 0) of the inputs {holds}: the target is among the inputs.",
            first.at,
            (f"in all {rows} rows of {len(seen)} batches",),
            'features = table.drop(columns=["target"])   # for windows of a series: series[start : start + length], then series[start + length]',
        )
    ]


def trained_on_what_is_scored(log: Log) -> list[Finding]:
    """Detect a loss over all rows of a batch that is always the same, of which a part is scored as if it were held out."""
    losses: dict[float, Loss] = {}
    scale, rows, grad = 0.0, 0, False
    for event in log.events:
        if isinstance(event, Forward):
            scale, rows, grad = event.scale, event.rows, event.grad
        elif isinstance(event, Loss) and event.function == "argmax":
            continue  # a score of the training's own pass, which teaches nothing
        elif isinstance(event, Loss) and event.grad and grad and scale:
            # one that is not reduced may be masked before the mean of it is taken
            if event.counted == rows > 1 and event.mean and not event.tokens:
                losses.setdefault(scale, event)
            else:
                losses.pop(scale, None)
        elif (
            isinstance(event, Hits)
            and scale in losses
            and not grad
            and event.batch == rows
            and event.rows < rows
        ):
            loss = losses[scale]
            if not is_one_batch(log.events):
                return []
            return [
                Finding(
                    "leakage",
                    Certainty.CERTAIN,
                    f"The loss counts all {rows} rows of the batch, and {event.rows} of them are scored: they were trained on.",
                    loss.at,
                    (f"scored at {event.at}",),
                    "loss = F.nll_loss(output[train_index], labels[train_index])",
                )
            ]
    return []


def inverted_padding(log: Log) -> list[Finding]:
    """Detect masks of padding that hide the text, and padding that attention is not told to leave out."""
    seen = list(log.of(PaddingMask))
    one_way = [each for each in seen if not each.both_ways]
    return _padding_of(seen) or _padding_of([each for each in seen if each not in one_way])


def _padding_of(seen: list[PaddingMask]) -> list[Finding]:
    """Return what these masks of padding, of an encoder and a decoder or of the first alone, leave to be read."""
    if len(seen) < LEAST_PASSES - 1:
        return []
    text, padding = sum(each.text for each in seen), sum(each.padding for each in seen)
    hidden_text, hidden = sum(each.hidden_text for each in seen), sum(each.hidden_padding for each in seen)
    if hidden_text >= NEARLY_ALL * text and hidden <= (1 - NEARLY_ALL) * padding:
        return [
            Finding(
                "unmasked_padding",
                Certainty.CERTAIN,
                f"The mask of padding hides {hidden_text} of {text} tokens of the text, and {hidden} of {padding} of the padding: it is inverted.",
                seen[0].at,
                (f"{len(seen)} calls; True hides",),
                "src_key_padding_mask=(tokens == pad)   # True where there is padding",
            )
        ]
    if not any(each.masked for each in seen) and padding >= MUCH_PADDING * (text + padding):
        return [
            Finding(
                "unmasked_padding",
                Certainty.LIKELY,
                f"{padding} of {text + padding} tokens are padding, and attention gets no mask of it: it reads them as text.",
                seen[0].at,
                (f"{len(seen)} calls",),
                "encoder(embedded, src_key_padding_mask=(tokens == pad))",
            )
        ]
    return []


def unready_norm(log: Log) -> list[Finding]:
    """Detect evaluations with statistics of norms that do not belong to the weights."""
    for event in log.of(UnreadyNorm):
        return [
            Finding(
                "unready_norm",
                Certainty.LIKELY,
                f"{event.what[0].upper()}{event.what[1:]}.",
                event.at,
                (),
                event.fix,
            )
        ]
    return []


def dark_pictures(log: Log) -> list[Finding]:
    """Detect pictures that were divided by 255 twice."""
    return [
        Finding(
            "unscaled_inputs",
            Certainty.LIKELY,
            f"The largest value of the pictures is {model.input_largest:.2g}: they were divided by 255 twice.",
            model.at,
            (f"first layer: {model.first_layer or model.name}; root mean square {model.input_scale:.2g}",),
            "pictures = pictures / 255   # once: ToTensor does it too",
        )
        for model in log.models
        if model.image and 0 < model.input_largest <= 1.01 / 255 and model.id in trained_models(log)
    ]


DETECTORS = (
    sees_the_future,
    column_of_targets,
    trained_on_what_is_scored,
    inverted_padding,
    unready_norm,
    dark_pictures,
)
