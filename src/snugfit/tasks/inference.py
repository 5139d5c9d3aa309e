"""The use of a task's model: rows to examples, outputs to predictions. To import it loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from snugfit.core.loss_terms import Loss
    from snugfit.data.files.file_rows import FileRows, MapStyle
    from snugfit.kit.language_models.generation import Generation
    from snugfit.step.metrics.metric import RowMetric

Row = Mapping[str, Any]
Example = Any
Prediction = dict[str, Any]


class ReadRows(Protocol):
    """Reads the rows of a file or of a function that returns them, with their labels where they are to be scored."""

    def __call__(self, source: Any, /, *, labelled: bool, bad_rows: str) -> FileRows: ...


@dataclass(frozen=True, kw_only=True)
class Inference:
    """The use of a model that a task has trained.

    Args:
        encode: examples of rows that a program gives, in their order.
        collate: a batch of examples.
        decode: the predictions of a batch, in order, of what the model put out and the examples.
        columns: names of what each prediction has; the first is the prediction itself.
        length: of an example, so that those of about one length go together.
        forward: how the model is called with a batch, where that is not with its inputs.
        run: how a batch is put through the model where that is not its forward, given the places of its rows among all.
        generation: how texts are chosen, where they are generated.
        with_generation: the same with answers chosen in another way, and told token by token to a streamer of transformers; None where
            nothing is generated.
        stops: tokens that end an answer.
        unfolded: the rows that the prediction of one example becomes, such as the steps of a forecast; None where it is one row.
        saved: the prediction with names of files for what no cell holds, which it writes into a folder under a name; None where cells do.
        plain: the prediction as a model registry keeps it, in texts, numbers and bytes; None where it is so already.
        view: the same examples, drawn otherwise as those to train on are, by a number; None where nothing is drawn.
        mirrored: the same examples with left and right changed; None where they have none.
        predicts_training_rows: a row that is learned from can be predicted for as it is; not where it has to have a gap to fill.
        read: the rows of a file; None where a file holds none of the task.
        classes: names that a prediction may be; empty where it is something else.
        any_number: a prediction is a list of such names, none of them or all.
        counted: what is right or wrong of a row that has no class: its spans, its pixels, or its number; empty where it is something else.
        loss: by which a file is evaluated.
        own_loss: imports the one of the user's own in its place, where the model names it: to predict does without.
        metrics: by which it is, where none are named.
        own_metrics: those that the task makes, by their names.
    """

    encode: Callable[[Sequence[Row]], MapStyle]
    collate: Callable[[list[Any]], Any]
    decode: Callable[[Any, Sequence[Example]], list[Prediction]]
    columns: tuple[str, ...]
    length: Callable[[Example], int] = lambda _: 0
    forward: Callable[[nn.Module, Any], Any] | None = None
    run: Callable[[nn.Module, Any, Sequence[int]], Any] | None = None
    generation: Generation | None = None
    with_generation: Callable[[Generation, Any], Inference] | None = None
    stops: tuple[int, ...] = ()
    unfolded: Callable[[Prediction], list[Prediction]] | None = None
    saved: Callable[[Prediction, Path, str], Prediction] | None = None
    plain: Callable[[Prediction], Prediction] | None = None
    view: Callable[[MapStyle, int], MapStyle] | None = None
    mirrored: Callable[[MapStyle], MapStyle] | None = None
    predicts_training_rows: bool = True
    read: ReadRows | None = None
    classes: tuple[str, ...] = ()
    any_number: bool = False
    counted: Literal["", "spans", "pixels", "numbers"] = ""
    loss: Loss | None = None
    own_loss: Callable[[], Loss] | None = None
    metrics: tuple[str, ...] = ()
    own_metrics: Mapping[str, RowMetric] = field(default_factory=dict)


def decoder_of(tokenizer: PreTrainedTokenizerBase) -> Callable[[Sequence[int]], str]:
    """Return the function that makes a text of tokens."""

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True))

    return decode
