"""Models and rows that functions of the user's own make."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.splits.hold_out import SHARES, VALIDATION, HoldOut, share_of
from snugfit.errors import DataError, SettingError
from snugfit.system.user_objects import load_object
from snugfit.tasks.inference import Inference, Prediction
from snugfit.tasks.recognition import Recognition, Rows, Script
from snugfit.tasks.task import Task, loss_of, named_loss
from snugfit.tasks.task_card import Card

if TYPE_CHECKING:
    from snugfit.core.loss_terms import Loss
    from snugfit.data.examples import Examples
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe


def training_rows(recipe: TaskRecipe) -> Any:
    """Return all rows of a Python recipe's `data.train`.

    Raises:
        DataError, SettingError: they cannot be had.
    """
    (train,) = recipe.data.train_sources
    from snugfit.data.stream import streamed

    rows = _rows(recipe, "data.train", train)
    if streamed(rows) is not None:
        raise DataError(
            "data.train", f"'{train}' is a stream, of which no folds can be made", "Return a list of rows."
        )
    return rows


def _load(recipe: TaskRecipe, empty: bool, _keep: KeepPart | None) -> Task:
    """Prepare functions of the user's own: a model that a function makes is whole, so that there is no part of it to keep."""
    from snugfit.core.job import AUTO
    from snugfit.data.stream import counted, streamed
    from snugfit.kit.losses.default_loss import default_loss, loss_message
    from snugfit.models.bundle import LOSS_WEIGHTS, OWN_LOSS
    from snugfit.models.python_functions import load_python_model
    from snugfit.step.build import Material

    (source,) = recipe.data.train_sources
    train = _rows(recipe, "data.train", source)
    validation = recipe.data.held_out
    held_out: Any = None
    messages: tuple[str, ...] = ()
    if isinstance(validation, str):
        held_out = _rows(recipe, "data.validation", validation)
    elif validation is not None and streamed(train) is not None:
        raise SettingError(
            "data.validation",
            f"{validation} is a part of the rows, and '{source}' is a stream: it has no length",
            "Name a function that returns rows to validate on, or write null.",
        )
    elif isinstance(validation, SHARES):
        train, held_out, messages = hold_out_objects(train, validation, recipe.train.seed, source)
    model = load_python_model(recipe.model, folder=recipe.folder, seed=recipe.train.seed, empty=empty)
    collate = recipe.data.collate
    named = None if recipe.loss == AUTO else loss_of(recipe)
    loss = default_loss(model) if named is None else named
    about_loss = loss_message(named, model)
    return Task(
        Material(
            model,
            train,
            held_out,
            loss,
            None if collate is None else load_object(collate, setting="data.collate", folder=recipe.folder),
        ),
        meta={
            "task": recipe.task,
            "model": recipe.model,
            "loss": loss if isinstance(loss, str) else None,
            **(
                {}
                if isinstance(loss, str)
                else {
                    OWN_LOSS: recipe.loss,
                    LOSS_WEIGHTS: recipe.loss_weights and dict(recipe.loss_weights),
                }
            ),
            "collate": collate,
            "numerics": recipe.as_dict()["plan"]["numerics"],
        },
        data=counted(train, held_out),
        fingerprints={},
        messages=(*messages, *([about_loss] if about_loss else [])),
    )


def hold_out_objects(
    rows: Any, validation: float | HoldOut, seed: int, source: str
) -> tuple[Any, Any, tuple[str, ...]]:
    """Return rows of a Python data set to train on, those that are held out, by columns where rows are mappings, and messages about them.

    Args:
        source: what the rows come from, for messages.
    Raises:
        DataError: rows cannot be held out so.
    """
    from torch.utils.data import Subset

    from snugfit.data.splits.sides import make_sides
    from snugfit.step.build import hold_out

    columns: tuple[str, ...] = ()
    if isinstance(validation, HoldOut):
        columns = (*validation.group, *(() if validation.time is None else (validation.time,)))
    if not columns:
        return *hold_out(rows, share_of(validation), seed), ()
    sides = make_sides([cells_of(source, rows, columns)], validation, seed)
    return Subset(rows, sides.places), Subset(rows, sides.shown), sides.warnings


def cells_of(source: str, rows: Any, columns: Sequence[str], setting: str = VALIDATION) -> Examples:
    """Return some columns of the rows of a Python data set, which are mappings, as a table that rows can be held out by.

    Args:
        source: what the rows come from, for messages.
        setting: that names the columns.
    Raises:
        DataError: a row is no mapping.
    """
    from snugfit.data.examples import Examples
    from snugfit.data.sources import Table
    from snugfit.data.usable_rows import scalar

    cells = []
    for number in range(len(rows)):
        row = rows[number]
        if not isinstance(row, Mapping):
            raise DataError(
                setting,
                f"names a column, and row {number} of {source} is a {type(row).__name__}",
                f"Let each row be a mapping with '{columns[0]}'.",
            )
        cells.append({name: scalar(row.get(name)) for name in columns})
    names = tuple(rows[0]) if cells else ()
    places = range(len(cells))
    table = Table(source, names, cells, [place + 1 for place in places], "")
    return Examples.of(places, table, places)


def _inference(meta: Mapping[str, Any], _tokenizer: Any) -> Inference:
    from torch.utils.data import default_collate

    from snugfit.core.losses import LOSSES, find_loss
    from snugfit.models.bundle import LOSS_WEIGHTS, OWN_LOSS

    collate, loss = meta.get("collate"), meta.get("loss")
    own = meta.get(OWN_LOSS)

    def own_loss() -> Loss:
        return find_loss(named_loss(str(own), meta.get(LOSS_WEIGHTS), Path.cwd()))

    return Inference(
        encode=lambda rows: rows,
        collate=default_collate
        if collate is None
        else load_object(collate, setting="collate", folder=Path.cwd()),
        decode=_classes if loss == "cross_entropy" else _outputs,
        columns=("output",),
        loss=LOSSES.get(loss or ""),
        own_loss=None if own is None else own_loss,
        metrics=("accuracy",) if loss == "cross_entropy" else (),
    )


def _outputs(outputs: Any, examples: Sequence[Any]) -> list[Prediction]:
    """Return each row of what the model put out."""
    from snugfit.core.tree import map_tree

    def row_of(place: int) -> Any:
        return map_tree(lambda tensor: tensor[place] if tensor.ndim else tensor, outputs)

    return [{"output": row_of(place)} for place in range(len(examples))]


def _classes(outputs: Any, examples: Sequence[Any]) -> list[Prediction]:
    """Return the number of each row's most likely class too, where there is one class a row."""
    from snugfit.core.losses import logits_of
    from snugfit.tasks.common.classes import most_likely

    logits, rows = logits_of(outputs), _outputs(outputs, examples)
    if logits.ndim != 2:
        return rows
    classes = most_likely(range(logits.shape[1]), logits, examples)
    return [{**named, **row} for named, row in zip(classes, rows, strict=True)]


def _rows(recipe: TaskRecipe, setting: str, spec: str) -> Any:
    from snugfit.data.stream import as_stream, examples_of

    function = load_object(spec, setting=setting, folder=recipe.folder)
    dataset = function() if callable(function) else function
    if not hasattr(dataset, "__len__") and setting == "data.train":
        # what a function returns can be read once, where it is a generator
        if isinstance(dataset, Iterator):
            dataset = function
        stream = as_stream(dataset)
        if stream is not None:
            return examples_of(
                stream,
                updates=recipe.train.updates,
                window=recipe.train.most_examples,
                seed=recipe.train.seed,
                setting=setting,
                prefix="train.",
            )
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            setting,
            f"'{spec}' returned {type(dataset).__name__}",
            "Return a data set with a length and an index: a list, or a torch.utils.data.Dataset.",
        )
    return dataset


_LOSSES = {"mse_loss": "mse", "MSELoss": "mse"}
_HARMLESS = {"manual_seed", "seed", "basicConfig", "filterwarnings", "simplefilter", "set_num_threads"}
"""Functions that a module may call while it is imported."""


def _recognize(source: Rows | Script, _data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Script) or not _is_importable(source.tree):
        return None
    callables = [
        node
        for node in source.tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not _needs_arguments(node)
    ]
    model = next((node.name for node in callables if _makes_model(node)), None)
    rows = next((node.name for node in callables if _makes_rows(node)), None)
    if model is None or rows is None:
        return None
    names = {node.attr for node in ast.walk(source.tree) if isinstance(node, ast.Attribute)}
    loss = next((own for name, own in _LOSSES.items() if name in names), None)
    module = source.path.stem
    return Recognition(
        data={"train": f"{module}:{rows}"},
        model=f"{module}:{model}",
        reason=f"{source.path.name} has a model ({model}) and rows ({rows})",
        score=0.8,
        settings={} if loss is None else {"loss": loss},
        comments={
            "model": f"{model} of {source.path.name}",
            "data.train": f"{rows} of {source.path.name}",
        },
    )


def _is_importable(tree: ast.Module) -> bool:
    """Return whether to import a module only defines what it has: nothing is looped over or called for its effect."""
    for node in tree.body:
        if isinstance(node, (ast.For, ast.While, ast.With)):
            return False
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
            if name not in _HARMLESS:
                return False
    return True


def _needs_arguments(node: ast.ClassDef | ast.FunctionDef) -> bool:
    """Return whether a function or a class is called with arguments."""
    if isinstance(node, ast.ClassDef):
        starts = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        return bool(starts) and len(starts[0].args.args) - 1 > len(starts[0].args.defaults)
    return len(node.args.posonlyargs) + len(node.args.args) > len(node.args.defaults)


def _makes_model(node: ast.ClassDef | ast.FunctionDef) -> bool:
    if isinstance(node, ast.ClassDef):
        return any(ast.unparse(base).endswith("Module") for base in node.bases)
    name = node.name.casefold()
    return any(word in name for word in ("model", "network", "net")) and _returns(node)


def _makes_rows(node: ast.ClassDef | ast.FunctionDef) -> bool:
    if isinstance(node, ast.ClassDef):
        return any(ast.unparse(base).endswith("Dataset") for base in node.bases)
    name = node.name.casefold()
    rows = any(word in name for word in ("data", "rows", "examples", "samples", "train_set"))
    return rows and "loader" not in name and "valid" not in name and "test" not in name and _returns(node)


def _returns(node: ast.FunctionDef) -> bool:
    """Return whether a function returns one value."""
    values = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
    return bool(values) and not any(value is None or isinstance(value, ast.Tuple) for value in values)


CARD = Card(
    name="python",
    summary="Train a model of your own on rows of your own.",
    loss="auto",
    settings=("collate",),
    load=_load,
    inference=_inference,
    own_code=True,
    rows="package.module:function",
    recognize=_recognize,
)
