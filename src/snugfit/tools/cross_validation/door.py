"""Cross-validation of a recipe: every fold is a run of its own, under one folder that can be gone on with.

    <output>/<name>/cv/<id>/
        cv.json, recipe.yaml, events.jsonl, cv.html
        out_of_fold.csv             once all folds are finished: each row, predicted by a model that has not seen it
        fold-<repeat>-<number>/     train.jsonl, validation.jsonl, the fold's runs, result.json once it is finished

Nothing is fitted on rows before they are dealt: a fold's run reads its own rows only, so its labels, and whatever techniques
take from data, come from its training rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.quarantine import quarantine_text
from snugfit.data.splits.hold_out import HoldOut
from snugfit.errors import DataError, RunFolderError, SettingError
from snugfit.results.run_folder import QUARANTINE, RECIPE, RunFolder
from snugfit.run.call_options import RunOptions
from snugfit.run.plans.planning import is_tight
from snugfit.system.code_consent import words
from snugfit.tasks import find
from snugfit.tools.cross_validation.fold_rows import SIDES, FoldRows, fold_rows
from snugfit.tools.cross_validation.out_of_fold import write_out_of_fold
from snugfit.tools.cross_validation.page import render_cv_page
from snugfit.tools.cross_validation.result import (
    CrossValidation,
    Fold,
    FoldScore,
    FoldSettings,
    check_folds,
    deal,
    folds_of,
    leaking,
)
from snugfit.tools.many_runs.engine import ManyRuns, Tell, Watch
from snugfit.units import counted

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

TOOL = "cv"
CV = f"{TOOL}.json"
RESULT = "result.json"


def cross_validate(
    recipe: Recipe,
    *,
    folds: int = 5,
    repeats: int = 1,
    seeds: int = 1,
    stratified: bool | None = None,
    group_by: Sequence[str] = (),
    time: str | None = None,
    options: RunOptions | None = None,
    watch: Watch = lambda _: nullcontext(),
    tell: Tell = lambda _: None,
) -> CrossValidation:
    """Train a recipe on all folds of its training rows but one, and score it on that one, for each fold in turn.

    Args:
        seeds: that each fold is trained from: `train.seed`, and those that follow it.
        stratified: every fold has the labels in the share of all rows; by default where the task is classification.
        group_by: columns; rows that are equal in all of them are held out together; by default those of `data.validation`.
        time: a column of dates or numbers: each fold is scored on the rows that follow those it trains on; by default that of
            `data.validation`.
        options: of each fold's run; the time to stop is that of all of them.
    Returns:
        The scores; where it was stopped, `finished` is false and `resume` goes on in its `folder`.
    Raises:
        UserError: the recipe, its rows or the folds cannot be used; no folder is left behind where no fold has begun.
        TrainingFailed: a fold failed; those before it are kept.
    """
    group_by, time = _columns(recipe, group_by, time)
    by_class = find(recipe.task).classes and time is None
    wanted = by_class if stratified is None else stratified
    settings = FoldSettings(folds, repeats, wanted, recipe.train.seed, forward=time is not None, seeds=seeds)
    rows = fold_rows(recipe, group_by, labelled=wanted, time=time)
    how = f"by {' and '.join(group_by)} " if group_by else f"in the order of {time} " if time else ""
    tell(f"dealing {counted(rows.count, 'row')} {how}into {counted(folds, 'fold')} …")
    dealt = deal(rows.count, settings, rows.labels, rows.groups, rows.times)
    made = _checked(dealt, rows, seeds)
    notes = [*rows.notes, *doubts_of(recipe, made, rows)]
    folder = RunFolder.create(Path(recipe.output) / recipe.name, TOOL)
    folder.write_text(RECIPE, recipe.to_yaml())
    if rows.left_out:
        folder.write_text(QUARANTINE, quarantine_text(rows.left_out))
        tell(f"{counted(len(rows.left_out), 'row')} that cannot be used: see {folder.path / QUARANTINE}")
    record = {
        "settings": asdict(settings),
        "group_by": list(group_by),
        "time": time,
        "sha256": rows.sha256,
        "held_out": dealt,
        "notes": notes,
    }
    folder.write_json(CV, record)
    return _Folds(recipe, folder, options or RunOptions(), watch, tell, rows, made, notes).run(new=True)


def resume(
    path: str | Path,
    options: RunOptions | None = None,
    watch: Watch = lambda _: nullcontext(),
    tell: Tell = lambda _: None,
    *,
    allow_code: bool = False,
) -> CrossValidation:
    """Go on with a cross-validation: finished folds stay as they are, a fold that was begun goes on from its checkpoint.

    Raises:
        UserError: there is none in this folder, or its rows have changed.
        TrainingFailed: a fold failed.
    """
    from snugfit.recipe import load_recipe

    folder = RunFolder(Path(path).resolve())
    if not (folder.path / CV).exists():
        raise RunFolderError(
            path, f"has no {CV}, so it is no cross-validation", "Give <output>/<name>/cv/<id>."
        )
    recipe = load_recipe(folder.path / RECIPE, allow_code=allow_code)
    if recipe.code:
        tell(f"runs {words(recipe.code)}")
    record = folder.read_json(CV)
    rows = fold_rows(
        recipe, record["group_by"], labelled=record["settings"]["stratified"], time=record.get("time")
    )
    dealt = record["held_out"]
    if rows.sha256 != record["sha256"] or any(len(numbers) != rows.count for numbers in dealt):
        raise DataError(
            "data.train",
            f"{' and '.join(recipe.data.train_sources)} has changed since this cross-validation began ({len(dealt[0])} rows then, "
            f"{rows.count} now)",
            "Put it back, or begin a new one with: snugfit cv",
        )
    folds_again = _checked(dealt, rows, record["settings"].get("seeds", 1))
    folds = _Folds(recipe, folder, options or RunOptions(), watch, tell, rows, folds_again, record["notes"])
    return folds.run(new=False)


def _columns(recipe: Recipe, group_by: Sequence[str], time: str | None) -> tuple[tuple[str, ...], str | None]:
    """Return the columns of groups and of times that folds are made by: those asked for, or those of `data.validation`.

    Raises:
        SettingError: both are asked for.
    """
    if group_by and time is not None:
        raise SettingError(
            "--time", "is given beside --groups, and folds are made by one of them", "Leave one out."
        )
    own = recipe.data.held_out
    if not group_by and time is None and isinstance(own, HoldOut):
        return own.group, own.time
    return tuple(group_by), time


def _checked(dealt: Sequence[Sequence[int]], rows: FoldRows, seeds: int) -> list[Fold]:
    """Return the folds, each of which can be trained and scored."""
    folds = list(folds_of(dealt, forward=rows.times is not None, seeds=seeds))
    check_folds(folds, rows.labels, rows.groups)
    return folds


def doubts_of(recipe: Recipe, folds: Sequence[Fold], rows: FoldRows) -> list[str]:
    """Return sentences about folds that say less than they seem to."""
    notes = []
    if rows.contents is not None and (shared := leaking(folds, rows.contents)):
        total = sum(len(fold.validation) for fold in folds)
        read = set(recipe.data.text) & set(rows.records[0] if rows.records else ())
        together = ",".join(recipe.data.text) if read else "COLUMN, where a column says which belong together"
        notes.append(
            f"{shared:,} of {total:,} held-out rows have the {'text' if read else 'content'} of a row that their fold trains on: "
            f"their scores say nothing new. {'Keep' if read else 'Leave the copies out, or keep'} them together with --groups {together}"
        )
    if recipe.track.register:
        notes.append(f"track.register: no fold's model is registered as {recipe.track.register}.")
    return notes


@dataclass
class _Folds(ManyRuns[Fold, CrossValidation]):
    """A cross-validation at work in its folder."""

    rows: FoldRows
    folds: Sequence[Fold]
    notes: Sequence[str]
    scores: list[FoldScore] = field(default_factory=list)

    tool = TOOL

    def changes(self) -> Sequence[Fold]:
        for note in self.notes:
            self.tell(note)
        return self.folds

    def run_one(self, fold: Fold) -> str | None:
        title = f"fold {len(self.scores) + 1} of {len(self.folds)}"
        home = RunFolder(self.folder.path / fold.name)
        if (home.path / RESULT).exists():
            self.tell(f"{title}: finished before")
            result: dict[str, Any] = home.read_json(RESULT)
        else:
            self.tell(
                f"{title}: {counted(len(fold.training), 'row')} to train on, {len(fold.validation):,} held out"
            )
            home.path.mkdir(exist_ok=True)
            recipe, options = self._planned()
            if self.rows.records is None:
                options = replace(options, sides=(fold.training, fold.validation))
            ended = self.train(fold.name, title, lambda: self._on_rows_of(fold, recipe, home.path), options)
            if ended.status != "finished":
                return ended.stop_reason or ended.status
            result = ended.as_dict()
            home.write_json(RESULT, result)
        self.scores.append(_score(fold, result))
        self._say(self.keep())
        if len(self.scores) == len(self.folds) and self.rows.records is not None:
            held_out = f"{SIDES[1]}.jsonl"
            path = write_out_of_fold(self.recipe, self.folder.path, self.scores, held_out)
            if path is not None:
                self.tell(f"out of fold: each row predicted by a model that has not seen it, in {path}")
        return None

    def _planned(self) -> tuple[Recipe, RunOptions]:
        """Return the recipe to run a fold with, as it was planned for the first fold, once that is finished: all folds are run alike."""
        first = RunFolder(self.folder.path / self.folds[0].name)
        if not self.options.plan or not (first.path / RESULT).exists():
            return self.recipe, self.options
        from snugfit.recipe import load_recipe

        planned = RunFolder(Path(first.read_json(RESULT)["run_dir"]))
        tight = is_tight(planned.read_json("plan.json"))
        return load_recipe(planned.path / RECIPE), replace(self.options, plan=False, tight=tight)

    def _on_rows_of(self, fold: Fold, recipe: Recipe, home: Path) -> Recipe:
        """Return the recipe on the rows of one fold, which are written into the fold's folder where they can be."""
        data: dict[str, Any] = {"validation": len(fold.validation) / self.rows.count}  # for the plan
        if self.rows.records is not None:
            data.update(self.rows.write(fold, home))
        if self.rows.classes is not None:
            data["classes"] = self.rows.classes
        train = replace(recipe.train, seed=self.recipe.train.seed + fold.seed - 1)
        return replace(recipe, data=replace(recipe.data, **data), train=train)

    def keep(self, reason: str | None = None) -> CrossValidation:
        planned = len(self.folds)
        outcome = CrossValidation(tuple(self.scores), tuple(self.notes), **self.about(planned, reason))
        return self.write(outcome, outcome.message, render_cv_page(outcome))

    def _say(self, outcome: CrossValidation) -> None:
        """Say mean and spread of the folds finished so far."""

        def finite(part: str) -> dict[str, float]:
            values = {name: getattr(each, part) for name, each in outcome.summary.spread.items()}
            return {name: value for name, value in values.items() if math.isfinite(value)}

        self.tracked.say(
            "folds",
            update=len(outcome.scores),
            mean=dict(outcome.summary.mean),
            deviation=finite("deviation"),
            corrected_error=finite("corrected_error"),
        )


def _score(fold: Fold, result: dict[str, Any]) -> FoldScore:
    best = result["best"]
    if best is None:
        raise SettingError(
            fold.name, "its run was never evaluated", "Evaluate at least once: evaluate.every=epoch."
        )
    return FoldScore(
        fold=fold.name,
        training_rows=len(fold.training),
        validation_rows=len(fold.validation),
        best=_numbers(best["metrics"]),
        best_update=best["update"],
        last=_numbers(result["last"]["metrics"]),
        updates=result["updates"],
        seconds=result["seconds"],
        run_dir=result["run_dir"],
    )


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}
