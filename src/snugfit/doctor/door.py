"""The doctor on recipes, runs, data files, and models in Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn

from snugfit.core.losses import find_loss, labels_ahead
from snugfit.core.random import preserved_elsewhere, preserved_randomness
from snugfit.data.bad_rows import Fault
from snugfit.data.sources import read_table
from snugfit.data.splits.hold_out import SHARES
from snugfit.data.usable_rows import Part, part_of_table, read_part
from snugfit.doctor import check_data
from snugfit.doctor import check_model as modules
from snugfit.doctor import check_recipe as settings_of
from snugfit.doctor.check_rows import FEW, Rows, examine_rows, imbalance
from snugfit.doctor.check_tokens import TokenView, examine_tokens, views
from snugfit.doctor.examination import Examination
from snugfit.doctor.findings import Certainty, Finding, is_ill
from snugfit.doctor.subject import WINDOWS, Subject
from snugfit.results.tool_results import keep, new_folder
from snugfit.run.train_settings import TrainSettings, takes_settings
from snugfit.system.rounding import deterministic
from snugfit.tasks import find
from snugfit.tools.setup import Setup, module_setup, output_of, recipe_setup

if TYPE_CHECKING:
    from snugfit.data.sources import RowSource
    from snugfit.recipe import Recipe
    from snugfit.tasks.task import Task

LABEL = "label"
ROWS, EXAMPLES, MODEL, SETTINGS = "rows", "examples", "model and optimizer", "settings"
Tell = Callable[[str], None]


def _silent(_: str) -> None:
    """Tell nothing: for a caller who does not listen."""


@takes_settings
def examine(model: nn.Module, data: Any, **settings: Unpack[TrainSettings]) -> Examination:
    """Look for pitfalls in a training in Python: the model and its data stay as they are.

    Args:
        settings: as of `snugfit.train`.
    Raises:
        UserError: a setting or the data cannot be used, or the model does not take it.

    >>> rows = [(torch.randn(4), number % 3) for number in range(32)]
    >>> found = examine(nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=-1)), rows, validation=0.25)
    >>> [(finding.pitfall, str(finding.certainty)) for finding in found.findings]
    [('softmax_twice', 'certain')]
    """
    return _examine_setup(module_setup(model, data, **settings), pretrained=False)


def examine_module(model: nn.Module, name: str) -> Examination:
    """Return what can be said of a model without data."""
    findings = [*modules.last_softmax(model), *modules.mixed_modes(model)]
    left_out = ("gradients, labels and shared modules: give data",)
    return Examination.of(name, findings, ("modules",), left_out)


def examine_recipe(
    recipe: Recipe, *, run: Path | None = None, tell: Tell = _silent
) -> tuple[Examination, Path]:
    """Look for pitfalls in what a recipe trains, and keep what was found beside its runs.

    Args:
        run: a run of it, of which the events are looked at too.
    Returns:
        What was found, and the folder in which it is kept.
    Raises:
        UserError: the recipe or its model cannot be used.
    """
    examination = _examine_recipe(recipe, tell)
    if run is not None:
        examination = Examination.of(
            examination.name,
            [*examination.findings, *skipped_windows(run)],
            [*examination.checked, "events of the run"],
            examination.left_out,
            examination.tokens,
        )
    folder = new_folder(output_of(recipe), recipe.name, "doctor")
    keep(folder, "doctor", {"recipe": recipe.hash()}, examination.summary, examination.as_dict())
    return examination, folder


def examine_file(
    train: str,
    *,
    text: Sequence[str],
    label: str | None = None,
    validation: str | None = None,
    tokenizer: str | None = None,
    max_length: int = 128,
) -> Examination:
    """Look for pitfalls in a file of rows.

    Args:
        label: the column of labels; None for the one that is called so, if there is one.
        tokenizer: of a model, by folder or name, to look at the tokens too.
    Raises:
        UserError: a file cannot be read, or has not these columns.
    """
    table = read_table(train, setting="data.train")
    columns = list(table.rows[0]) if table.rows else []
    label = LABEL if label is None and LABEL in columns else label
    parts = [part_of_table(table, text, label, None)]
    if validation is not None:
        parts.append(read_part(validation, "data.validation", text, label, None, None))
    findings = _of_rows(parts, [fault for part in parts for fault in part.faults])
    shown: tuple[TokenView, ...] = ()
    left_out = [] if tokenizer else ["tokens: give --model"]
    if label is None and columns:
        others = [f"'{name}'" for name in columns if name not in text]
        left_out.append(
            f"labels: give --label, of {', '.join(others)}" if others else "labels: the file has none"
        )
    if tokenizer is not None:
        from snugfit.data.texts.tokens import encode
        from snugfit.models.tokenizer import load_tokenizer

        loaded = load_tokenizer(tokenizer)
        encoded = encode(parts[0].texts, loaded, max_length)
        cut = sum(length > max_length for length in encoded.lengths)
        findings += [
            *examine_tokens(encoded.examples, loaded, framed=True),
            *check_data.truncation(cut, len(encoded.lengths), max_length, max(encoded.lengths, default=0)),
        ]
        shown = views(encoded.examples, loaded, max_length)
    return Examination.of(
        Path(train).name, findings, (ROWS, *(["tokens"] if tokenizer else [])), tuple(left_out), shown
    )


def skipped_windows(run: Path) -> Iterator[Finding]:
    """Detect windows that a run has skipped.

    Raises:
        RunFolderError: it has no events.
    """
    from snugfit.tracking.spool import SPOOL_NAME, read_events

    events = read_events(run / SPOOL_NAME)
    windows = sum(event["event"] == "update" for event in events)
    skipped = [event for event in events if event["event"] == "skipped"]
    if not skipped:
        return
    reasons = Counter(str(event.get("reason")) for event in skipped)
    yield Finding(
        "skipped_windows",
        Certainty.LIKELY if len(skipped) >= FEW * max(1, windows) else Certainty.WORTH_A_LOOK,
        f"{len(skipped):,} of {windows:,} windows were skipped",
        where=f"{run / SPOOL_NAME}",
        evidence=tuple(f"{count} times: {reason}" for reason, count in reasons.most_common(3)),
        fix="lower the learning rate, add clip_norm, or look at the examples of those windows",
    )


def _examine_recipe(recipe: Recipe, tell: Tell) -> Examination:
    findings: list[Finding] = []
    checked: list[str] = []
    card = find(recipe.task)
    labelled_texts = card.classes and card.reads_texts
    held_out = None if isinstance(recipe.data.held_out, SHARES) else recipe.data.held_out
    if labelled_texts:
        tell(ROWS)
        checked.append(ROWS)
        parts, faults = _read(recipe.data.rows, held_out, _texts_of(recipe), recipe.data.label, recipe.folder)
        findings += _of_rows(parts, faults)
        if faults and recipe.data.bad_rows == "fail":
            why = "examples and model: a run would refuse these rows"
            return Examination.of(recipe.name, findings, checked, (why,))
    tell("loading the model")
    if labelled_texts:
        from snugfit.models.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(recipe.model, folder=recipe.folder)
        if refusals := list(examine_tokens((), tokenizer, framed=True)):
            why = "examples and model: a run would refuse this tokenizer"
            return Examination.of(recipe.name, [*findings, *refusals], checked, (why,))
    setup, task = recipe_setup(recipe)
    of_setup = _examine_setup(
        setup,
        pretrained=card.reads_model(recipe.model) and not recipe.from_scratch,
        labels=not labelled_texts,
        overlap=not labelled_texts or held_out is None,
        tell=tell,
    )
    findings += of_setup.findings
    tokens: tuple[TokenView, ...] = ()
    if task.tokenizer is not None:
        tell("tokens")
        findings += examine_tokens(
            setup.material.train,
            task.tokenizer,
            framed=labelled_texts,
            writes=card.model != "encoder",
        )
        findings += _of_report(task)
        tokens = views(setup.material.train, task.tokenizer, recipe.data.max_length)
        checked.append("tokens")
    return Examination.of(recipe.name, findings, [*checked, *of_setup.checked], of_setup.left_out, tokens)


def _examine_setup(
    setup: Setup, *, pretrained: bool, labels: bool = True, overlap: bool = True, tell: Tell = _silent
) -> Examination:
    """Examples, model and settings; `labels` and `overlap` with validation, where the rows have not been asked for them."""
    material = setup.material
    with (
        preserved_randomness(torch.device(setup.plan.device)),
        preserved_elsewhere(),
        deterministic(setup.plan.deterministic),
    ):
        tell(EXAMPLES)
        count = min(WINDOWS, setup.windows)
        windows = tuple(setup.loader().windows(0, count))
        subject = Subject(
            material.model,
            setup.step,
            windows,
            setup.job,
            setup.plan,
            setup.techniques,
            material.loss,
            material.train,
            material.validation,
            pretrained,
        )
        findings = [
            *check_data.examine_examples(material.train, material.validation if overlap else None),
            *(imbalance(check_data.class_counts(material.train), "data.train") if labels else ()),
            *check_data.shifted_labels(windows, labels_ahead(find_loss(material.loss))),
            *settings_of.examine_precision(subject),
        ]
        if any(each.pitfall == "bf16_in_fp16" for each in findings):  # of which no step is made
            return Examination.of(setup.name, findings, (EXAMPLES,), (f"{MODEL}: refused for its precision",))
        tell(MODEL)
        findings += modules.examine_model(subject)
        tell(SETTINGS)
        findings += settings_of.examine_settings(subject)
        if not is_ill(
            findings
        ):  # a step that fails, or a model of which half stands still, has no speed worth measuring
            findings += check_data.starving(setup.step(), setup.loader(), setup.plan.num_workers)
    return Examination.of(setup.name, findings, (EXAMPLES, MODEL, SETTINGS))


def _texts_of(recipe: Recipe) -> list[str]:
    """Return the columns of all texts that are read of a row."""
    pair = recipe.data.pair if "pair" in find(recipe.task).settings else None
    return [*recipe.data.text, *([] if pair is None else [pair])]


def _read(
    train: RowSource,
    validation: RowSource | None,
    text: Sequence[str],
    label: str | None,
    folder: Path | None,
) -> tuple[list[Part], list[Fault]]:
    parts = [read_part(train, "data.train", text, label, None, folder)]
    if validation is not None:
        parts.append(read_part(validation, "data.validation", text, label, None, folder))
    return parts, [fault for part in parts for fault in part.faults]


def _of_rows(parts: Sequence[Part], faults: Sequence[Fault]) -> list[Finding]:
    rows = [
        Rows(
            part.texts,
            [name for name in part.labels if name],
            part.table.source,
            [_line(part, row) for row in part.row_indices],
        )
        for part in parts
    ]
    return examine_rows(rows[0], rows[1] if len(rows) > 1 else None, faults)


def _line(part: Part, row: int) -> int | str:
    """Return the line of a row, of several sources with the one that it is in."""
    source, line = part.table.place(row)
    return line if part.table.sources is None else f"{source}:{line}"


def _of_report(task: Task) -> list[Finding]:
    """Return what was counted when the rows were read."""
    counts = task.data
    if counts.get("unit") != "rows":
        return []
    texts = int(counts["train"]) + int(counts["validation"])
    return list(check_data.truncation(counts["truncated"], texts, counts["max_length"], counts["tokens_max"]))
