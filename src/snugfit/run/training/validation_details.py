"""The best evaluation of a run in detail, kept in the run's folder for its report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from snugfit.deliver.observed_evaluation import Observed
from snugfit.deliver.shown_rows import ValidationShown, columns_again
from snugfit.results.evaluation_details import EvaluationDetails
from snugfit.results.run_folder import DETAILS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snugfit.results.run_folder import RunFolder
    from snugfit.tasks.inference import Inference
    from snugfit.tasks.task import Task

_WORST = 24


@dataclass(frozen=True)
class ValidationDetails:
    """The best evaluation of a run, as its folder keeps it.

    Args:
        use: of the model, as its task has it.
        meta: what the model is saved with.
        data: the rows to validate on.
    """

    folder: RunFolder
    use: Inference
    meta: Mapping[str, Any]
    data: Any
    tokenizer: Any = None

    @classmethod
    def of(cls, task: Task, folder: RunFolder) -> ValidationDetails | None:
        """Return what looks at the evaluations of a run; None where its task has no rows to look at."""
        from snugfit.tasks import known

        card, data = known(task.meta.get("task")), task.material.validation
        if data is None or card is None or card.own_code or card.inference is None:
            return None
        if card.reads_texts and task.tokenizer is None:
            return None
        return cls(folder, card.inference(task.meta, task.tokenizer), task.meta, data, task.tokenizer)

    def observed(self) -> Observed:
        """Return what looks at one evaluation."""
        return Observed(self.use, self.meta, most=_WORST)

    def keep(self, observed: Observed) -> None:
        """Write what was seen of the best evaluation so far.

        Raises:
            RunFolderError: it cannot be written.
        """
        shown = ValidationShown(self.data, of_pictures="image_column" in self.meta)
        self.folder.write_json(DETAILS, observed.details(shown).as_dict())

    def finish(self) -> None:
        """Add the columns of the worst rows to what was kept, if anything was.

        Raises:
            RunFolderError: it cannot be read or written.
        """
        if not (self.folder.path / DETAILS).exists():
            return
        details = EvaluationDetails.of(self.folder.read_json(DETAILS))
        cells = columns_again(self.data, [each.row for each in details.worst], self.tokenizer)
        worst = [replace(row, cells=own) for row, own in zip(details.worst, cells, strict=True)]
        self.folder.write_json(DETAILS, replace(details, worst=worst).as_dict())
