"""The setup of a tool: a run's spec, loaded, from which steps are made as often as the tool needs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn
from torch.utils.data import DataLoader

from snugfit.core.job import Job, Plan
from snugfit.core.technique import Technique
from snugfit.data.loader import Loader
from snugfit.data.order import total_windows
from snugfit.errors import DataError, SettingError
from snugfit.results.run_folder import RunFolder
from snugfit.run.from_python import module_spec
from snugfit.run.spec import RunSpec
from snugfit.run.train_settings import TrainSettings, with_defaults
from snugfit.step.build import Material, make_step, training_loader, validation_loader
from snugfit.step.metrics.metric import AnyMetric, made_metrics
from snugfit.step.start_scores import fill_start_scores
from snugfit.step.step import Step
from snugfit.tasks.task import Task

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

_OF_RUNS = (
    *("output", "resume", "accept_changes", "time", "stop_after_seconds"),
    *("track", "track_uri", "track_histograms"),
    "display",
    *("keep_models", "keep_when"),
    *("checkpoint_every", "checkpoint_keep", "checkpoint_save"),
    *("on_update", "on_evaluation", "on_checkpoint", "on_end"),
)
"""Keywords of `sf.train` about the folder of a run, its tracker, its screen and who watches it, of which a setup has none."""


@dataclass(frozen=True)
class Setup:
    """A run that has not begun. Each step is made of a copy of the model, so that nothing of the setup is ever trained.

    Args:
        name: of the recipe or the model, for headings and folders.
        optimizer: of torch, over the parameters of the material's model; None where a technique makes it.
        identity: what tells this setup from others, such as the recipe's hash; for whoever finds what a tool has written.
    """

    name: str
    job: Job
    plan: Plan
    material: Material
    techniques: tuple[Technique, ...]
    optimizer: torch.optim.Optimizer | None = None
    metrics: Mapping[str, AnyMetric] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)

    def step(self, *, plan: Plan | None = None, techniques: Sequence[Technique] | None = None) -> Step:
        """Return a step before its first update, on a copy of the model.

        Args:
            plan, techniques: in place of the setup's own.
        Raises:
            PlanConflict: techniques exclude each other.
            SettingError: a setting is impossible, or does not suit the model.
        """
        model, optimizer = copy.deepcopy((self.material.model, self.optimizer))  # which keeps them together
        step = make_step(
            self.job,
            plan or self.plan,
            replace(self.material, model=model),
            optimizer,
            self.techniques if techniques is None else techniques,
        )
        if self.material.compares_start:
            fill_start_scores(step, self.material, train=self.job.train)
        return step

    def loader(self) -> Loader:
        """Return the windows of the run, in its order, of the size that they have in the end."""
        return training_loader(self.job.grown(), self.plan, self.material)

    def validation(self) -> Loader | None:
        """Return the batches that are scored; None where nothing is."""
        return validation_loader(self.job, self.plan, self.material)

    @property
    def windows(self) -> int:
        """Return windows of the whole run."""
        return total_windows(self.job, self.material.train)


def recipe_setup(recipe: Recipe) -> tuple[Setup, Task]:
    """Return what a run of the recipe would be made of, and what was loaded for it.

    Raises:
        UserError: the recipe, its data or its model cannot be used.
        RunFolderError: what is found could not be written to its output.
    """
    RunFolder.check_output(output_of(recipe))
    from snugfit.recipe.plan_choices import with_precision_here
    from snugfit.run.from_recipe import recipe_spec  # pydantic, which a model in Python does without

    recipe, _ = with_precision_here(recipe)
    spec = recipe_spec(recipe)
    task = spec.loaded()
    identity = {"recipe": recipe.hash(), "data": dict(task.fingerprints)}
    return _setup(spec, task, recipe.name, identity), task


def module_setup(model: nn.Module, data: Any, **settings: Unpack[TrainSettings]) -> Setup:
    """Return what `sf.train` would train with the same arguments, named after the model's class if they give no name.

    Args:
        data: a map-style data set; or a DataLoader over one, of which the data set, the batch size (as `global_batch`) and
            the collate function are taken.
    Raises:
        UserError: a setting or the data cannot be used, or the setting is of the folder of a run.
    """
    given = with_defaults(settings)
    for name in _OF_RUNS:
        if name in settings and given[name]:
            raise SettingError(
                name,
                f"got {given[name]!r}, and this trains copies of the model, without a run's folder",
                "Leave it to sf.train.",
            )
    if isinstance(data, DataLoader):
        if data.batch_size is None:
            raise DataError(
                "data",
                "is a DataLoader with a batch sampler of its own",
                "Give its data set, and global_batch.",
            )
        given |= {"global_batch": data.batch_size, "collate": given["collate"] or data.collate_fn}
        data = data.dataset
    spec = module_spec(model, data, given)
    return _setup(spec, spec.loaded(), settings.get("name", type(model).__name__), {})


def _setup(spec: RunSpec, task: Task, name: str, identity: dict[str, Any]) -> Setup:
    techniques = tuple(spec.techniques)
    metrics = made_metrics(spec.metrics, task.material.metrics, task.meta.get("labels") or ())
    setup = Setup(name, spec.job, spec.plan, task.material, techniques, spec.optimizer, metrics, identity)
    if task.material.compares_start:
        setup.step()  # before windows are read, each row has its scores
    return setup


def output_of(recipe: Recipe) -> Path:
    """Return where the recipe's runs are, and what tools find about it."""
    return Path(recipe.output)
