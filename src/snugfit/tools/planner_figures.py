"""The planner's predictions for a setup, in this process: gains of changes, and the memory of an update."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from snugfit.core.job import Plan
from snugfit.core.random import preserved_randomness
from snugfit.core.technique import Technique
from snugfit.data.order import in_examples
from snugfit.errors import SnugfitError
from snugfit.kit.skeleton import skeleton
from snugfit.planner.devices.device import Device, Machine
from snugfit.planner.devices.hardware import find_device
from snugfit.planner.prediction.plan_needs import Planner
from snugfit.planner.trace.dry_run import Subject, dry_run
from snugfit.planner.trace.fake_tensors import BareOptimizer
from snugfit.planner.trace.memory_breakdown import MemoryUse, memory_use
from snugfit.techniques import find
from snugfit.tools.setup import Setup

_HOST = torch.device("cpu")


@dataclass
class Predicted:
    """The planner's answers about a setup that runs in micro-batches of `micro_batch` rows.

    Operators are those of a CPU, the rates those of `device`.
    """

    setup: Setup
    device: Device
    micro_batch: int
    _subject: Subject | None = field(default=None, init=False)
    _seconds: float | None = field(default=None, init=False)

    def gain(self, change: str) -> float | None:
        """Return how many times as fast an update is with a change; None where the planner cannot tell.

        The change is "micro_batch" for the window whole, or the name of a technique.
        """
        try:
            with preserved_randomness(_HOST):
                if self._seconds is None:
                    self._seconds = self._predict(self.micro_batch, self.setup.techniques)
                if change == "micro_batch":
                    changed = self._predict(self.subject.window.rows, self.setup.techniques)
                else:
                    changed = self._predict(self.micro_batch, (*self.setup.techniques, find(change)()))
        except SnugfitError:
            return None
        return self._seconds / changed

    def memory(self) -> MemoryUse:
        """Return the memory of an update of the largest examples.

        Raises:
            UserError: the model, the techniques or the settings cannot be run without numbers.
        """
        with preserved_randomness(_HOST):
            trace = dry_run(self.subject, self._plan(self.micro_batch), self.setup.techniques)
        return memory_use(trace, "cpu", "predicted")

    def first_update(self) -> MemoryUse:
        """Return the memory of an update of one micro-batch, the largest example as often as it takes, with all states.

        Raises:
            As `memory`.
        """
        with preserved_randomness(_HOST):
            trace = dry_run(
                self.subject, self._plan(self.micro_batch), self.setup.techniques, micro_batches=1
            )
        return memory_use(trace, "cpu", "predicted")

    @property
    def subject(self) -> Subject:
        """Return what the planner looks at."""
        if self._subject is None:
            material, given = self.setup.material, self.setup.optimizer
            empty = skeleton(material.model)
            window = self.setup.loader().worst_window()[0]
            self._subject = Subject(
                lambda: skeleton(empty),
                window,
                in_examples(self.setup.job, window.rows, material.train),
                len(material.train),
                self.setup.techniques,
                material.loss,
                None if given is None else BareOptimizer.of(given, material.model),
                material.forward,
                material.load,
            )
        return self._subject

    def _predict(self, micro_batch: int, techniques: tuple[Technique, ...]) -> float:
        planner = Planner(self.subject, Machine(self.device, find_device("cpu")))
        return planner.predict(self._plan(micro_batch), techniques, rough=True).seconds_per_update

    def _plan(self, micro_batch: int) -> Plan:
        return replace(self.setup.plan, device="cpu", micro_batch=micro_batch)
