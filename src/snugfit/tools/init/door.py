"""The way from what lies in a folder to a recipe that runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from snugfit.data.bad_rows import NOT_UTF8, Fault, as_utf8
from snugfit.data.splits.sides import held_out_rows
from snugfit.errors import DataError, RunFolderError, SettingError, SnugfitError, nearest
from snugfit.recipe.load import build
from snugfit.recipe.overrides import apply_overrides
from snugfit.recipe.strict_yaml import Places, read_yaml
from snugfit.system.disk_files import locked_folder
from snugfit.tasks import discover
from snugfit.tasks.data_section import COLUMNS
from snugfit.tasks.recognition import NAMED_LABEL, Recognition, Rows, Script, columns_of
from snugfit.tasks.task_card import Card
from snugfit.tools.init.local_models import LocalModel
from snugfit.tools.init.model_settings import (
    SCRATCH_PRESET,
    learn,
    new_model_folder,
    put_model,
    shown_path,
)
from snugfit.tools.init.recipe_text import SCHEMA, commented
from snugfit.tools.init.request import Request
from snugfit.tools.init.source import Source, Tell, find_model, find_source
from snugfit.tools.init.surroundings import no_task, one_class
from snugfit.units import counted

_EPOCHS = 3
_LARGEST_BATCH = 32
_BATCHES = 8
_SMALL = 20
"""Rows that a tenth of is too few to validate on."""
_SHOWN_FAULTS = 3
_PLAIN_NAMES = {"train", "training", "data", "rows", "all"}


@dataclass(frozen=True)
class Beginning:
    """A recipe that was written, and what it was made from.

    Args:
        files: all that were written, the recipe first.
        task, model: with the reason for each, in words.
        others: other tasks that the same rows could be used for, with the command for each.
        notes: what else there is to know.
        commands: the next three, each with what it does.
        of_run: settings of the run to begin that the recipe does not have, as `key=value`.
    """

    recipe: Path
    files: tuple[Path, ...]
    task: str
    reason: str
    model: str
    origin: str
    others: Mapping[str, str]
    notes: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]
    of_run: tuple[str, ...] = ()

    def remove(self) -> None:
        """Remove the files that were written, and the folders that were made for them alone."""
        for path in self.files:
            with suppress(
                OSError
            ):  # Windows removes no file that is mapped; the error that is being told matters more
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        for folder in {path.parent for path in self.files} - {self.recipe.parent}:
            with suppress(OSError):  # something else lies in it
                folder.rmdir()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "recipe": str(self.recipe),
            "files": [str(path) for path in self.files],
            "task": self.task,
            "reason": self.reason,
            "model": self.model,
            "model_origin": self.origin,
            "other_tasks": dict(self.others),
            "notes": list(self.notes),
            "next": [command for command, _ in self.commands],
        }


def begin(
    source: str | None = None,
    overrides: Sequence[str] = (),
    output: Path | None = None,
    tell: Tell = lambda _: None,
) -> Beginning:
    """Write a recipe for rows, a script or a model; nothing is overwritten.

    Args:
        source: a folder, a file, a name of rows, or a model; what lies in the current folder where it is None.
        overrides: settings that are fixed, such as `data.label=team`.
        output: the recipe's file.
        tell: hears what is done next.
    Raises:
        DataError, ModelError: there is nothing to train on, or it cannot be used.
        SettingError: a setting is impossible, or the recipe is there already.
        MissingExtra: a package that is needed is not installed.
    """
    request = Request(tuple(overrides))
    tell(f"looking at {source or 'this folder'} …")
    seen = _see(source, find_model(source), request, tell)
    recipe = output or seen.place.folder / f"{seen.name}.yaml"
    if recipe.exists():
        raise SettingError(
            recipe, "exists, and nothing is overwritten", "Name another file: snugfit init … -o OTHER.yaml"
        )
    return _compose(seen, seen.name, recipe, tell, seen.overrides).write()


def begin_here(
    data: str,
    overrides: Sequence[str] = (),
    tell: Tell = lambda _: None,
    options: Mapping[str, tuple[str, str]] | None = None,
) -> Beginning:
    """Write a recipe for rows into the current folder, under a name that is free; one there that says the same is taken as it is.

    Settings that may differ from run to run, such as `train.epochs`, are checked and not written: with other ones the recipe, its model
    and the name of its runs are the same.

    Args:
        options: of a command, by the setting that each gives: its name and its value.
    Raises:
        As `begin`.
    """
    request = Request(tuple(overrides), options or {}, by_option=True)
    seen = _see(data, None, request, tell)
    with locked_folder(Path()):  # two that begin at once find the same names free
        return _begin_here(seen, request, tell)


def _begin_here(seen: _Seen, request: Request, tell: Tell) -> Beginning:
    of_recipe, of_run = request.of_recipe(_columns(seen.place.content)), tuple(request.of_run())
    recipe, model = Path(f"{seen.name}.yaml"), new_model_folder(seen.name, Path())
    number, note = 1, ""
    name = seen.name
    while recipe.exists() or model.exists():
        if recipe.exists():
            made = _compose(seen, name, recipe, tell, of_recipe, of_run, there=True)
            if recipe.read_bytes() == made.text.encode():
                return made.beginning(())
        if number == 1:
            note = f"{recipe if recipe.exists() else model} is there for something else, and is left as it is"
            if recipe.exists():
                note += f"; to train by it: snugfit train {shlex.quote(str(recipe))}"
        number += 1
        name = f"{seen.name}-{number}"
        recipe, model = Path(f"{name}.yaml"), new_model_folder(name, Path())
    made = _compose(seen, name, recipe, tell, of_recipe, of_run)
    return replace(made, notes=(*made.notes, *filter(None, [note]))).write()


def _see(source: str | None, model: LocalModel | None, request: Request, tell: Tell) -> _Seen:
    """Look at rows, a script or a model, and find the task that suits best.

    Raises:
        As `begin`.
    """
    place = find_source(source, model, request, tell)
    return _Seen(place, model, request, *_recognized(place.content, request, place.faults))


def _columns(content: Rows | Script) -> tuple[str, ...]:
    return content.columns if isinstance(content, Rows) else ()


@dataclass(frozen=True)
class _Seen:
    """Rows, a script or a model, and the task that suits them best."""

    place: Source
    model: LocalModel | None
    request: Request
    card: Card
    recognition: Recognition
    others: Mapping[str, Recognition]

    @property
    def name(self) -> str:
        """The name of the run."""
        return _name(self.place.about)

    @property
    def overrides(self) -> tuple[str, ...]:
        """Settings that are fixed, as `key=value`."""
        return self.request.overrides


@dataclass(frozen=True)
class _Composed:
    """A recipe that can be written, with what has to be written beside it."""

    recipe: Path
    text: str
    writes: Sequence[Callable[[], list[Path]]]
    seen: _Seen
    model: str
    origin: str
    others: Mapping[str, str]
    notes: Sequence[str]
    of_run: tuple[str, ...]

    def write(self) -> Beginning:
        """Write all of it.

        Raises:
            RunFolderError, SettingError: it cannot be written, or is there already.
        """
        files = [path for write in self.writes for path in write()]
        files = [*_written(self.recipe, self.text), *files]
        schema = self.recipe.parent / SCHEMA
        if not schema.exists():
            files += _written(schema, _schema())
        return self.beginning(files)

    def beginning(self, files: Iterable[Path]) -> Beginning:
        """Return what is there to begin with, of which `files` are new."""
        path = os.path.relpath(self.recipe)
        shown = shlex.quote(path)
        return Beginning(
            recipe=Path(path),
            files=tuple(Path(os.path.relpath(path)) for path in files),
            task=self.seen.card.name,
            reason=self.seen.recognition.reason,
            model=self.model,
            origin=self.origin,
            others=self.others,
            notes=tuple(self.notes),
            commands=(
                (f"snugfit train {shown} --fast-dev-run", "two updates: everything runs"),
                (f"snugfit plan {shown}", "memory and time, before it runs"),
                (f"snugfit train {shown}", "the run itself"),
            ),
            of_run=self.of_run,
        )


def _compose(
    seen: _Seen,
    name: str,
    recipe: Path,
    tell: Tell,
    settings: Sequence[str],
    of_run: tuple[str, ...] = (),
    *,
    there: bool = False,
) -> _Composed:
    """Return the recipe of that name.

    Args:
        settings: that it has, as `key=value`.
        of_run: those that a run has beside it; they are checked with it.
        there: the recipe is, and so may be the model that is made for it.
    Raises:
        ModelError, SettingError, MissingExtra: as `begin`.
    """
    place, card, folder = seen.place, seen.card, recipe.parent
    tree, comments, notes = _tree(name, card, place, seen.recognition, folder)
    writes: list[Callable[[], list[Path]]] = []
    of_recipe: dict[str, Any] = {"folder": folder.absolute(), "name": recipe.stem, "allow_code": True}
    if card.own_code:
        tree["model"], origin = str(seen.recognition.model), f"in {place.path.name}"
    else:
        origin = put_model(
            tree, comments, card, place, seen.model, seen.request.given, writes, folder, tell, there=there
        )
        if card.loss_from_scratch and tree.get("from_scratch") and "loss" not in tree:
            tree["loss"] = card.loss_from_scratch
            comments["loss"] = f"for a model that has learned nothing yet; {card.loss} for one that answers"
    if writes:  # the model that is named is the architecture of a new one
        settings = [each for each in settings if not each.startswith("model=")]
    # an error about an override names it, and no line of a recipe that is not there yet
    build(read_yaml(json.dumps(tree), "", Places()), (*settings, *of_run), Places(), **of_recipe)
    tree = _ordered(apply_overrides(tree, _relative(settings, folder), Places()))
    if "global_batch" not in (seen.request.given.get("train") or {}) and seen.recognition.examples:
        _leave_no_row_alone(tree, seen.recognition.examples)
    path = shlex.quote(place.name or os.path.relpath(place.about))
    labels = {} if "label" in seen.recognition.data else _labels(seen.others)
    others = {
        other: f"snugfit init {path} task={other}{labels.get(other, '')} -o {other}.yaml"
        for other in seen.others
    }
    header = [
        f"{card.summary.rstrip('.')}: {seen.recognition.reason}.",
        *(f"Another task for these rows is {task}: {command}" for task, command in others.items()),
    ]
    text = commented(tree, header, comments)
    # what is written has been read as a recipe
    places = Places(str(recipe))
    build(read_yaml(text, str(recipe), places), (), places, **of_recipe)
    if place.sample is not None:
        writes.insert(0, lambda: _written(place.path, str(place.sample)))
    return _Composed(recipe, text, writes, seen, str(tree["model"]), origin, others, notes, of_run)


def _recognized(
    content: Rows | Script, request: Request, faults: Sequence[Fault] = ()
) -> tuple[Card, Recognition, dict[str, Recognition]]:
    """Return the task that suits best, and the others that could be.

    Raises:
        DataError: none does, or not the one that is asked for.
        SettingError: there is no such task or network, or the task reads no such column.
    """
    asked, model = request.given.get("task"), request.given.get("model")
    if asked is not None and asked not in discover():
        raise SettingError(
            request.name("task"), f"there is no task '{asked}'", nearest(str(asked), discover())
        )
    data: dict[str, Any] = request.given.get("data") or {}
    if isinstance(content, Rows):
        request.check_columns(content)
        data = request.data(content)
    columns = {setting for setting in COLUMNS if data.get(setting)}
    cards = {
        name: card
        for name, card in discover().items()
        if _can_have(card, model) and (name == asked or columns <= {*card.settings})
    }
    proposals = {name: card.recognize(content, data) for name, card in cards.items()}
    suitable = {name: each for name, each in proposals.items() if each is not None}
    if not suitable and isinstance(content, Rows):
        raise (
            no_task(content, request) if model is None else _no_task_for(str(model), content, request, cards)
        )
    if not suitable:
        raise DataError(
            content.path,
            "has no model and rows that can be imported without training",
            f"Keep your loop, and put a step into it: snugfit init --from {shlex.quote(os.path.relpath(content.path))}",
        )
    name = asked or max(suitable, key=lambda each: suitable[each].score)
    if isinstance(content, Rows) and not content.in_folders:
        by_class = [each for each, proposal in suitable.items() if "label" in proposal.data]
        # of a task that is likelier than classes are, the column means something else, or nothing
        likelier = name in suitable and suitable[name].score >= NAMED_LABEL
        if data.get("label") or not (asked in suitable or name in by_class or likelier):
            without = [each for each in suitable if each not in by_class]
            if (error := one_class(content, request, without, faults)) is not None:
                raise error
    in_folders = isinstance(content, Rows) and content.in_folders
    if name not in suitable:
        naming = "" if in_folders else _columns_to_name(discover()[name], data, request)
        raise DataError(
            request.name("task"),
            f"{content.path} was not recognised as rows for {name}",
            f"Take {' or '.join(sorted(suitable, key=lambda each: -suitable[each].score))}{naming}.",
        )
    for setting in sorted(columns - {*cards[name].settings}):
        raise SettingError(
            request.name(f"data.{setting}"),
            f"is not used by task {name}",
            f"Remove it, or name another task with {'--task' if request.by_option else 'task=NAME'}.",
        )
    others = {other: each for other, each in suitable.items() if other != name}
    return cards[name], suitable[name], others


def _no_task_for(model: str, rows: Rows, request: Request, cards: Mapping[str, Card]) -> SnugfitError:
    """Return the error about rows for which no task can have the model that is named."""
    networks = [name for card in discover().values() for name in card.networks]
    near = nearest(model, networks)
    setting = request.name("model")
    if model not in networks and near.startswith("Did you mean") and not Path(model).exists():
        return SettingError(setting, f"there is no network '{model}'", near)
    names = ", ".join(name for name, card in cards.items() if not card.own_code)
    naming = "" if rows.in_folders else f"Name its columns, such as {request.to_name('data.label')}, or "
    return DataError(
        setting,
        f"{rows.path} was not recognised as rows for a task that can have the model '{model}' ({names})",
        f"{naming}leave the model out." if naming else "Leave the model out.",
    )


def _can_have(card: Card, model: Any) -> bool:
    """Return whether a task can have the model that is given: a network that it makes, by name or by the JSON file of one, or one of files."""
    if model is None or card.own_code:
        return True
    if any(model in each.networks for each in discover().values()):
        return model in card.networks
    if Path(str(model)).suffix == ".json":
        return bool(card.networks)
    return card.reads_model(str(model))


def _labels(others: Mapping[str, Recognition]) -> dict[str, str]:
    """Return for each task that learns a label the setting that names its column, as a command has it."""
    columns = {name: each.data["label"] for name, each in others.items() if "label" in each.data}
    return {name: " " + shlex.quote(f"data.label={column}") for name, column in columns.items()}


def _columns_to_name(card: Card, data: Mapping[str, Any], request: Request) -> str:
    """Return that columns of a task can be named, in words, with settings for them that are not given; "" where there are none."""
    missing = [each for each in COLUMNS if each in card.settings and not data.get(each)]
    usual = [each for each in missing if each in ("text", "label")] or missing[:1]
    settings = " ".join(request.to_name(f"data.{each}") for each in usual)
    return f", or name its columns, such as {settings}" if settings else ""


def _line(fault: Fault) -> str:
    return f"line {fault.line}" if fault.line else fault.place


def _tree(
    name: str, card: Card, place: Source, recognition: Recognition, folder: Path
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Return the recipe's settings but for the model and what is learned by, comments, and notes."""
    comments, notes = dict(recognition.comments), list(recognition.notes)
    files = [shown_path(path, folder) for path in (place.path, *place.further)]
    data: dict[str, Any] = {"train": place.name or (files if place.further else files[0])}
    if place.further:
        notes.append(f"{len(files)} files of the same columns are trained on: data.train lists them")
    if place.left_out:
        names = ", ".join(path.name for path in place.left_out)
        notes.append(f"left out, without the columns of {place.path.name}: {names}")
    data["validation"] = shown_path(place.validation, folder) if place.validation else 0.1
    data |= recognition.data
    if isinstance(place.content, Rows) and "bad_rows" in card.settings and "bad_rows" not in data:
        missing = _missing(place.content, data, any_number="separator" in card.settings)
        if missing:
            data["bad_rows"] = "skip"
            comments["data.bad_rows"] = f"{missing}; fail ends the run instead"
            notes.append(f"{missing}: those rows are left out")
    if isinstance(place.content, Rows) and "bad_rows" in card.settings and _names_files(place.content):
        data.setdefault("bad_rows", "skip")
        comments.setdefault(
            "data.bad_rows", "files that cannot be read are left out; fail ends the run instead"
        )
    if place.faults:
        data["bad_rows"] = "skip"
        lines = ", ".join(
            f"{fault.place if place.further else _line(fault)}: {fault.detail}"
            for fault in place.faults[:_SHOWN_FAULTS]
        )
        count = counted(len(place.faults), "row")
        comments["data.bad_rows"] = f"{count} cannot be read ({lines}); fail ends the run instead"
        notes.append(f"{count} of {place.about.name} cannot be read: left out ({lines})")
        if any(fault.reason == NOT_UTF8 for fault in place.faults):
            notes.append(as_utf8(os.path.relpath(place.path)))
    label = data.get("label")
    if isinstance(place.content, Rows) and isinstance(label, str) and label in place.content.classes(label):
        notes.append(
            f"the first line of {place.path.name} is read as names of columns, and '{label}' is a class too: put such names above it "
            "where it is a row"
        )
    batch = _LARGEST_BATCH
    if (examples := recognition.examples) is not None:
        batch = min(batch, max(2, 1 << max(1, (examples // _BATCHES).bit_length() - 1)))
        if place.validation is None and examples < _SMALL:
            data["validation"] = 0.25
    if place.sample is not None:
        notes.append(f"{place.path.name} only shows the form of rows: put your own in its place")
    if place.test is not None:
        notes.append(
            f"{place.test.name} is left for: snugfit evaluate RUN {shown_path(place.test, Path.cwd())}"
        )
    metrics = list(card.metrics)
    evaluate: dict[str, Any] = {"every": "epoch", "metrics": metrics}
    comments.setdefault("evaluate.best", "metric that decides which weights are kept")
    if evaluate["metrics"]:
        evaluate["best"] = evaluate["metrics"][0]
    tree: dict[str, Any] = {
        "name": name,
        "task": card.name,
        **recognition.settings,
        "data": data,
        "train": {"epochs": _EPOCHS, "global_batch": batch},
        "evaluate": evaluate,
    }
    if card.own_code:
        learn(tree, comments, SCRATCH_PRESET)
    if find_spec("mlflow") is None:
        tree["track"] = {"mlflow": False}
        comments["track.mlflow"] = "needs: pip install 'snugfit[mlflow]'"
    return tree, comments, notes


def _leave_no_row_alone(tree: Mapping[str, Any], examples: int) -> None:
    """Raise the global batch of a recipe until the last window of an epoch has more than one row, as batch norm needs."""
    validation, train = tree["data"].get("validation"), tree["train"]
    if isinstance(validation, float):
        examples -= held_out_rows(examples, validation)
    while (batch := train.get("global_batch")) and batch < examples and examples % batch == 1:
        train["global_batch"] = batch + 1


def _missing(rows: Rows, data: Mapping[str, Any], *, any_number: bool) -> str:
    """Return how many rows have no label and no text in the columns of `data`, in words; "" where all have both.

    Args:
        any_number: whether a row has any number of labels, so that an empty cell says that it has none.
    """
    counts = []
    if isinstance(label := data.get("label"), str) and label in rows.columns:
        with_labels = len(rows.values(label))
        if any_number:
            with_labels = sum(row.get(label) is not None for row in rows.rows)
        counts.append((len(rows.rows) - with_labels, f"'{label}' to learn"))
    texts = [each for each in columns_of(data.get("text", ())) if each in rows.columns]
    if texts:
        written = zip(*(_is_written(rows, column) for column in texts), strict=True)
        counts.append((sum(not any(row) for row in written), " or ".join(f"'{each}'" for each in texts)))
    words = [f"{counted(count, 'row')} without {what}" for count, what in counts if count]
    return ", ".join(words)


def _names_files(rows: Rows) -> bool:
    """Return whether rows name pictures or sounds: these are opened by the run alone, so what cannot be read is not known yet."""
    return any(rows.names_pictures(each) or rows.names_sounds(each) for each in rows.columns)


def _is_written(rows: Rows, column: str) -> list[bool]:
    return [bool(str(row.get(column) or "").strip()) for row in rows.rows]


_ORDER = (
    "name",
    "task",
    "model",
    "from_scratch",
    "data",
    "loss",
    "train",
    "optimizer",
    "schedule",
    "techniques",
)


def _ordered(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in the order in which recipes are written."""
    return {key: tree[key] for key in (*_ORDER, *tree) if key in tree}


def _relative(overrides: Sequence[str], folder: Path) -> list[str]:
    """Return overrides with files and folders as the recipe's folder sees them."""
    relative = []
    for text in overrides:
        key, _, value = text.partition("=")
        is_path = key in ("model", "data.train", "data.validation") and value and Path(value).exists()
        relative.append(f"{key}={json.dumps(shown_path(Path(value), folder))}" if is_path else text)
    return relative


def _name(path: Path) -> str:
    """Return the name of a run on a file: the file's own, or its folder's where every folder has one of that name."""
    stem = path.stem if path.stem.casefold() not in _PLAIN_NAMES else path.resolve().parent.name
    return re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "run"


def _written(path: Path, text: str) -> list[Path]:
    """Write a new file.

    Raises:
        RunFolderError: it cannot be written.
        SettingError: it is there already.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise SettingError(path, "exists, and nothing is overwritten", "Choose another name.") from error
    except OSError as error:
        raise RunFolderError(
            path, f"cannot be written: {error.strerror}", "Name a file that can be written: -o FILE"
        ) from error
    return [path]


def _schema() -> str:
    from snugfit.recipe import schema_with_plugins

    return json.dumps(schema_with_plugins(), indent=2, ensure_ascii=False) + "\n"
