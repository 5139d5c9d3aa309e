"""Weights that are put in for a pass without a graph, and are still there when the model learns again."""

from __future__ import annotations

from torch import Tensor, nn

from snugfit.doctor.observe.events.state_events import AverageKept
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.weights.weights import Weights


class SwappedWeights:
    """Models that have computed without a graph on other weights than those of their last update.

    Where such weights are learned from without any pass between, in the first updates or because they were loaded, moving them is a part of
    the training, as in Lookahead, Reptile and federated averaging, whatever is scored meanwhile.
    """

    def __init__(self, recorder: Recorder, weights: Weights) -> None:
        self._recorder, self._weights = recorder, weights
        self._swapped: dict[int, bool] = {}
        self._learned_at: dict[int, int] = {}
        self._moved_by_hand: set[int] = set()
        self._put_in: set[int] = set()
        self._last_put: tuple[int, str] = (0, "")

    def restored(self, model: int) -> None:
        """Note that a state was loaded into a model."""
        self._put_in.add(model)

    def note_put(self, values: Tensor, at: str) -> None:
        """Note what the script itself has written to, in place, and the line."""
        self._last_put = values.data_ptr(), at

    def put_at(self, module: nn.Module) -> str:
        """Return the line that was the last to write to memory in place, if that is a weight of the module; "" else."""
        pointer, at = self._last_put
        return at if at and any(each.data_ptr() == pointer for each in module.parameters()) else ""

    def before(self, module: nn.Module, model: int, *, trained: bool, grad: bool, raw: bool) -> None:
        """Note the weights of a pass that begins; of one with a graph, where they are those that were put in for the one before it.

        Args:
            model: the module's number.
            raw: whether its weights are those of its last update.
        """
        if not grad:
            self._swapped[model] = trained and not raw
            return
        swapped, updates = self._swapped.pop(model, None), self._recorder.log.updates
        after_step = self._learned_at.get(model, updates) != updates
        self._learned_at[model] = updates
        unasked = self._recorder.detailed or model in self._put_in
        self._put_in.discard(model)
        looked = bool(swapped) or (swapped is None and after_step and trained and unasked)
        if model in self._moved_by_hand or not (looked and module.training) or self._weights.are_raw(module):
            return
        if not swapped:
            self._moved_by_hand.add(model)
        else:
            backwards = self._weights.backwards(module)
            self._recorder.add(AverageKept(where(), updates, model, backwards))
