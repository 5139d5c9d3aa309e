"""Access to a run once it is over: its best model, and its story."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import TYPE_CHECKING

from snugfit.data.report import has_epochs
from snugfit.errors import RunFolderError
from snugfit.models.bundle import find_bundle, has_own_architecture, load_bundle
from snugfit.run.trained_model import with_own
from snugfit.run.training.result import TrainedModel
from snugfit.tasks import known

if TYPE_CHECKING:
    from torch import nn

    from snugfit.deliver.predictor import Predictor
    from snugfit.report.story import Story
    from snugfit.run.events import Events
    from snugfit.run.training.best import BestInMemory
    from snugfit.run.training.loop import Training
    from snugfit.tasks.task import Task


class Afterwards:
    """A finished run, for a result that is asked about it. It holds the model, and nothing else that the training needed memory for."""

    def __init__(self, training: Training, task: Task, events: Events, in_memory: BestInMemory) -> None:
        self._task, self._events, self._in_memory = task, events, in_memory
        self._folder, self._device = training.folder, str(training.step.device)
        self._last, self._export = training.step.model, training.step.seams.export
        self._shards = training.step.strategy.shards

    @property
    def of_stream(self) -> bool:
        """True of a run on a stream, which has no epochs."""
        return not has_epochs(self._task.data)

    def story(self) -> Story:
        """Return the run, put in order.

        Raises:
            RunFolderError: its events cannot be read.
        """
        return self._events.story()

    @cached_property
    def trained(self) -> TrainedModel:
        """The best model as it was scored.

        Raises:
            RunFolderError: the run has none.
            ModelError: it is damaged, or predicts nothing.
        """
        from snugfit.deliver.predictor import extended, predictor_of

        task = self._task
        if self._folder is None:
            if self._in_memory.model is None:
                raise RunFolderError(
                    "model",
                    "the run was stopped before its first evaluation",
                    "Take the model that was trained.",
                )
            predictor = predictor_of(
                self._in_memory.model,
                {**task.meta, **self._in_memory.description},
                task.tokenizer,
                self._device,
                "the run",
            )
            return TrainedModel(self._with_own(predictor))
        best = find_bundle(self._folder.best)
        model = self._like_delivered() if has_own_architecture(best) else None
        model, meta, tokenizer = load_bundle(best, model=model, extend=extended, allow_code=True)
        predictor = predictor_of(model, meta, tokenizer, self._device, best)
        return TrainedModel(self._with_own(predictor), self._folder.path)

    def _with_own(self, predictor: Predictor) -> Predictor:
        """Return the predictor with the user's own functions; what a task makes batches and losses to train with is not what it predicts and scores with."""
        card, material = known(self._task.meta.get("task")), self._task.material
        if card is None or card.own_code:
            return with_own(predictor, material.collate, material.forward, material.loss)
        return with_own(predictor, None, material.forward)

    def _like_delivered(self) -> nn.Module:
        """Return a module of the architecture that was delivered, with weights that do not matter.

        Raises:
            RunFolderError: the model is spread over ranks.
        """
        if self._shards:
            raise RunFolderError(
                "model",
                "its weights are spread over ranks, so that no whole module is here",
                "Make one and load the weights: snugfit.load(run_dir, model=my_model)",
            )
        return copy.deepcopy(self._last) if self._export is None else self._export(self._last)
