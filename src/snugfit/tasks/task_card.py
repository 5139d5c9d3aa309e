"""The card of a task: a name, what a recipe says by default, what its rows have, and how its model and data are loaded.

A task is one file with a `CARD`. To import it loads neither torch nor transformers: its functions do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from snugfit.tasks.inference import Inference
from snugfit.tasks.recognition import Recognition, Rows, Script

if TYPE_CHECKING:
    from torch import nn

    from snugfit.data.usable_rows import Part
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.step.build import Material
    from snugfit.tasks.task import Task
    from snugfit.tasks.task_recipe import TaskRecipe


ModelKind = Literal[
    "encoder", "decoder", "encoder-decoder", "pictures", "sounds", "table", "series", "masks", "own"
]
"""An encoder of texts, a decoder that predicts next tokens, both together, of which each can be used as an encoder too, a model that sees
pictures or hears sounds, a network that is made for the columns of a table, for the windows of series, or for the classes of masks, or what a task of the user's own makes."""


OF_ROWS = ("leaks", "near_duplicates", "balance")
"""Settings of `data` that every task reads whose examples are made of a row each."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A task, as recipes and tools see it.

    Args:
        summary: one sentence.
        loss: of a recipe that names none.
        loss_from_scratch: of a recipe that is written for a model that has learned nothing yet, where that is another one.
        metrics: of a recipe that names none.
        losses: names of the built-in losses that it can have, where they are not those of all tasks.
        section: the section of a recipe that it alone reads; empty where there is none.
        settings: those of `data` that it reads besides `train`, `validation` and those of `OF_ROWS`; to give another is an error.
        columns: settings of `data` that name columns which each file of rows to train on has to have.
        load: model, data and loss of a recipe; the flag asks for the model without weights, the last argument says what to
            keep of each weight that is read from a file.
        load_empty: the model of that name without weights, where neither rows nor tokenizer are there; None where a plan needs them.
        assume: makes material of assumed texts, whose loss is no one's yet, that of a recipe; None where they are in its form already.
        classes: each row has the label of one class: folds are stratified by it, and the doctor checks it.
        inference: how its models are used, given what the best one was saved with and its tokenizer.
        make_model: its model anew, with other weights, given what the best one was saved with; None where transformers, or the function
            that a recipe names, makes it.
        own_code: model and rows are made by functions of the user's own.
        networks: names of the models that it makes itself, where it reads none from files.
        model: kind of the model: an encoder or decoder of texts or both, with a tokenizer, one that sees pictures or hears sounds, a network for tables, series or masks, or one of its own.
        architectures: types of transformers' models that it takes, where it does not take all of its kind.
        changes_pictures: it changes the pictures that are trained on as a technique says.
        recognize: what it would make of rows or of a script, given settings of `data` that are fixed; None where it has no use for them.
        rows: its data, in words.
        read_rows: the usable rows of `data.train`, of which folds are made; it raises where none can be. Without it they are texts with or
            without a class, or, of a model that reads no texts, the rows as they stand in the file.
        plain_rows: rows and predictions are plain texts and numbers, as a model registry keeps them, also where there are no classes.
        new_rows: name of others, in an example of a command that predicts for them.
        pipeline: what the hub calls the use of its models; empty where it has no word for it.
        of_rows: examples are made of a row each, or of rows that can be compared, so that it reads `data.leaks` and `data.balance`.
        sample: the suffix and the content of a small file of rows, which shows their form where there are none yet.
    """

    name: str
    summary: str
    loss: str
    loss_from_scratch: str = ""
    metrics: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    section: str = ""
    settings: tuple[str, ...]
    columns: tuple[str, ...] = ()
    load: Callable[[TaskRecipe, bool, KeepPart | None], Task]
    load_empty: Callable[[TaskRecipe, str], nn.Module] | None = None
    assume: Callable[[TaskRecipe, Material], Material] | None = None
    classes: bool = False
    inference: Callable[[Mapping[str, Any], Any], Inference] | None = None
    make_model: Callable[[Mapping[str, Any]], nn.Module] | None = None
    own_code: bool = False
    networks: tuple[str, ...] = ()
    model: ModelKind = "encoder"
    architectures: tuple[str, ...] = ()
    changes_pictures: bool = False
    recognize: Callable[[Rows | Script, Mapping[str, Any]], Recognition | None] = lambda _source, _data: None
    rows: str = "a file of rows"
    new_rows: str = "NEW.csv"
    read_rows: Callable[[TaskRecipe], Part] | None = None
    pipeline: str = ""
    plain_rows: bool = False
    sample: tuple[str, str] | None = None
    of_rows: bool = True

    @property
    def data_settings(self) -> tuple[str, ...]:
        """The settings of `data` that a recipe of the task may give."""
        of_rows = OF_ROWS if self.of_rows and not self.own_code else ()
        return ("train", "validation", *of_rows, *self.settings)

    @property
    def reads_texts(self) -> bool:
        """True where its rows are texts, so that its model comes with a tokenizer."""
        return not self.own_code and self.model in ("encoder", "decoder", "encoder-decoder")

    @property
    def predicts_files(self) -> bool:
        """True where its models predict for files of rows."""
        return self.inference is not None and not self.own_code

    def makes(self, model: str) -> bool:
        """Return whether a model that a recipe names is a network that the task makes itself, by name or by a JSON file of its settings."""
        return model in self.networks or (bool(self.networks) and model.endswith(".json"))

    def reads_model(self, model: str) -> bool:
        """Return whether a model that a recipe names lies in files, or on the hub, by transformers."""
        return not self.own_code and self.model not in ("table", "series", "own") and not self.makes(model)
