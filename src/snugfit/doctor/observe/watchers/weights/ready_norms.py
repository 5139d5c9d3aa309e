"""Norms whose statistics belong to other weights than those that are evaluated, or to none."""

from __future__ import annotations

import re
from collections import Counter

from torch import nn
from torch.optim.swa_utils import AveragedModel

from snugfit.doctor.observe.events.script_events import UnreadyNorm
from snugfit.doctor.observe.recording.own_source import first_line
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.weights.module_facts import NORMS
from snugfit.doctor.observe.watchers.weights.weights import digest

MOST_LOOKS = LEAST_PASSES = 3
_NO_MOMENTUM = re.compile(
    r"\.momentum\s*=\s*0(\.0*)?\b|Norm\w*\(.*momentum\s*=\s*0(\.0*)?\s*[,)]|[\"']momentum[\"'],\s*0(\.0*)?\)"
)
"""Statements that leave a norm without momentum."""


class ReadyNorms:
    """Models that have run, since they were made, in the way that makes their norms fit."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._looks: Counter[int] = Counter()
        self._fit: set[int] = set()
        self._learning: set[int] = set()
        self._copies: dict[int, tuple[str, str]] = {}
        self._standing: dict[int, tuple[str, int]] = {}

    def of_copy(self, module: nn.Module) -> None:
        """Note a copy that nothing trains: its weights have moved between two evaluations, its statistics have not.

        A trained model has as many norms, which do move.
        """
        norms = [each for each in module.modules() if isinstance(each, NORMS) and each.track_running_stats]
        number = self._recorder.number(module)
        if module.training or not norms or len(norms) not in self._learning or number in self._fit:
            return
        weights = digest([each.weight if each.affine else next(module.parameters()) for each in norms])
        statistics = digest([each.running_var for each in norms if each.running_var is not None])
        before, self._copies[number] = self._copies.get(number), (weights, statistics)
        if before is not None and before[0] != weights and before[1] == statistics:
            self._fit.add(number)
            what = "the weights of a copy follow those of the model that learns, and the statistics of its batch norms stand still"
            fix = "for mine, other in zip(copy.buffers(), model.buffers()):\n    mine.copy_(other)"
            self._recorder.add(UnreadyNorm(where(), self._recorder.log.updates, what, fix))

    def before(self, module: nn.Module, *, grad: bool, recalibrates: bool) -> None:
        """Note an evaluation of a model whose norms have not seen its weights."""
        if grad and module.training and self._recorder.detailed:
            norms = [each for each in module.modules() if isinstance(each, NORMS) and each.training]
            self._learning.add(len(norms))
        number = self._recorder.number(module)
        self._look_at_momentum(module, number, grad=grad)
        averaged = isinstance(module, AveragedModel)
        if module.training and (not averaged or recalibrates):
            self._fit.add(number)
        if grad or module.training or number in self._fit or self._looks[number] >= MOST_LOOKS:
            return
        self._looks[number] += 1
        what, fix = "", ""
        if averaged and not module.use_buffers and _has_statistics(module):
            what = "the averaged weights are evaluated with statistics of batch norms that were not averaged: they are those of the moment at which the average was made"
            fix = "torch.optim.swa_utils.update_bn(loader, averaged)   # before it is evaluated; or AveragedModel(model, use_buffers=True)"
        elif not self._recorder.log.updates and _has_random_vectors(module):
            what = "a spectral norm is evaluated before its first forward pass in training mode: its vectors are those that it was drawn with"
            fix = "torch.nn.utils.parametrizations.spectral_norm(layer)   # iterates when it is made; or one pass in training mode first"
        if what:
            self._recorder.add(UnreadyNorm(where(), self._recorder.log.updates, what, fix))

    def _look_at_momentum(self, module: nn.Module, number: int, *, grad: bool) -> None:
        """Note an evaluation with statistics that training has left as they were, while each of its batches was normalised by its own: their momentum is 0."""
        learns = grad and module.training and self._recorder.detailed
        if not learns and (grad or module.training or number not in self._standing):
            return
        norms = [
            e for e in module.modules() if isinstance(e, NORMS) and e.track_running_stats and e.momentum == 0
        ]
        norms = [each for each in norms if each.running_var is not None and each.training is module.training]
        statistics = (
            digest([each.running_var for each in norms if each.running_var is not None]) if norms else ""
        )
        before, passes = self._standing.pop(number, ("", 0))
        if (
            learns and norms
        ):  # a pass with momentum between, as of the two of each update that a sharpness is sought by, begins anew
            self._standing[number] = before or statistics, passes + 1
        elif not learns and before == statistics and passes >= LEAST_PASSES:
            what = (
                f"{len(norms)} batch norms of momentum 0 took each batch's own statistics as they trained, and their own never moved: the evaluation is "
                "the first to use these"
            )
            at = first_line(lambda lines, line: bool(_NO_MOMENTUM.search(lines[line]))) or where()
            fix = "norm.eval()   # after each model.train(): a norm in evaluation mode is frozen, whatever its momentum"
            self._recorder.add(UnreadyNorm(at, self._recorder.log.updates, what, fix))


def _has_statistics(module: nn.Module) -> bool:
    return any(isinstance(each, NORMS) and each.track_running_stats for each in module.modules())


def _has_random_vectors(module: nn.Module) -> bool:
    """Return whether a layer has a spectral norm of torch's first kind, which iterates in training mode alone."""
    vectors = {name.removesuffix("_u") for name, _ in module.named_buffers() if name.endswith("_u")}
    return any(
        name.removesuffix("_orig") in vectors
        for name, _ in module.named_parameters()
        if name.endswith("_orig")
    )
