"""What a tool works on: all that a run is made of, to be put together as often as the tool needs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from snugfit.core.job import Job, Plan
from snugfit.core.technique import Technique
from snugfit.data.loader import Loader
from snugfit.step.build import Material, make_step, training_loader, validation_loader
from snugfit.step.metrics import RowMetric
from snugfit.step.step import Step


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
    metrics: Mapping[str, str | RowMetric] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)

    def step(self, *, plan: Plan | None = None, techniques: Sequence[Technique] | None = None) -> Step:
        """A step before its first update, on a copy of the model.

        Args:
            plan, techniques: in place of the setup's own.
        Raises:
            PlanConflict: techniques exclude each other.
            SettingError: a setting is impossible, or does not suit the model.
        """
        model, optimizer = copy.deepcopy((self.material.model, self.optimizer))  # which keeps them together
        return make_step(
            self.job,
            plan or self.plan,
            replace(self.material, model=model),
            optimizer,
            self.techniques if techniques is None else techniques,
        )

    def loader(self) -> Loader:
        """The windows of the run, in its order."""
        return training_loader(self.job, self.plan, self.material)

    def validation(self) -> Loader | None:
        """The batches that are scored; None where nothing is."""
        return validation_loader(self.job, self.plan, self.material)

    @property
    def windows(self) -> int:
        """Of the whole run."""
        return self.job.total_windows(len(self.material.train))
