"""Watch settings whose sense is the opposite in another library, or the opposite of what the data ask for: momentum of norms, dropout, weights of classes."""

from __future__ import annotations

import ast
import re

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.recording.companions import Companion, LossCall, ModelCall
from snugfit.doctor.observe.recording.own_source import first_line, own_files
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import shown, where
from snugfit.doctor.observe.source.script_syntax import last_assignment, syntax_of
from snugfit.doctor.observe.watchers.weights.module_facts import NORMS

LAST_BATCH, NEARLY_ALL_DROPPED = 0.9, 0.9
LEAST_CALLS, LEAST_SEEN = 4, 2
UNEVEN, WEIGHTED, RARE = 3.0, 2.0, 0.3
"""So many times as many rows of one class, with so many times the weight; the share of positives that are few."""
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_MOMENTUM = re.compile(r"(BatchNorm|momentum).*0?\.9\d*", re.IGNORECASE)
_DROPOUT = re.compile(r"drop.*0?\.9\d*|keep_?prob", re.IGNORECASE)


class SettingWatch(Companion):
    """A watcher of the settings of a model's parts, once, and of the weights that a loss gives to classes."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._models: set[int] = set()
        self._counts: dict[tuple[str, int], tuple[Tensor, int]] = {}

    def begins(self, call: ModelCall) -> None:
        number = self._recorder.number(call.module)
        if number in self._models:
            return
        self._models.add(number)
        parts = list(call.module.modules())
        momentum = [
            each.momentum
            for each in parts
            if isinstance(each, NORMS) and each.track_running_stats and each.training
        ]
        if momentum and min(each or 0.0 for each in momentum) >= LAST_BATCH:
            what = (
                f"The norms have a momentum of {momentum[0]:g}, by which torch takes {momentum[0]:.0%} of each statistic from the last batch: "
                "it is 1 less that of TensorFlow."
            )
            self._note(
                "unready_norm",
                _MOMENTUM,
                what,
                f"nn.BatchNorm2d(channels, momentum={1 - (momentum[0] or 0):.2g})",
            )
        dropped = [each.p for each in parts if isinstance(each, _DROPOUTS) and each.p < 1]
        if dropped and max(dropped) >= NEARLY_ALL_DROPPED:
            what = f"A dropout sets {max(dropped):.0%} of the units to 0: torch takes the share that is dropped, not the one that is kept."
            self._note("dropped_units", _DROPOUT, what, f"nn.Dropout({1 - max(dropped):.2g})")

    def _note(self, pitfall: str, setting: re.Pattern[str], what: str, fix: str) -> None:
        """Note a setting that the script's own source has."""
        at = first_line(lambda lines, number: bool(setting.search(lines[number].partition("#")[0])))
        if at:
            self._recorder.add(Fault(at, self._recorder.log.updates, pitfall, what, fix))

    def lost(self, loss: LossCall) -> None:
        if loss.name == "cross_entropy":
            self._look_at_classes(loss)
        elif loss.name == "binary_cross_entropy_with_logits":
            self._look_at_positives(loss)

    def _counted(self, counts: Tensor) -> tuple[Tensor, int]:
        """Return how many rows of each class a loss has got by now, and in how many calls."""
        key = where(), len(counts)
        before, calls = self._counts.get(key, (torch.zeros(len(counts)), 0))
        self._counts[key] = before + counts.float().cpu(), calls + 1
        return self._counts[key]

    def _look_at_classes(self, loss: LossCall) -> None:
        """Note weights that are the larger the more rows a class has."""
        weight, target = loss.options.get("weight"), loss.target
        if (
            not isinstance(weight, Tensor)
            or target.is_floating_point()
            or target.dim() != 1
            or len(weight) < 2
        ):
            return
        labels = target[(target >= 0) & (target < len(weight))]
        counts, calls = self._counted(labels.bincount(minlength=len(weight)))
        weights, order = weight.detach().float().cpu(), counts.argsort()
        seen = order[counts[order] > 0]
        if calls < LEAST_CALLS or len(seen) < 2:
            return
        few, many = seen[0], seen[-1]
        uneven = counts[many] >= UNEVEN * counts[few] and weights[many] >= WEIGHTED * weights[few]
        apart = counts[seen][1:] > 1.5 * counts[seen][:-1]
        rises = bool((weights[seen].diff()[apart] > 0).all())
        if uneven and rises:
            what = (
                f"Class {int(many)} has {int(counts[many])} rows and a weight of {float(weights[many]):.3g}, class {int(few)} has {int(counts[few])} and {float(weights[few]):.3g}: "
                "the frequent classes have the large weights."
            )
            fix = "weight = counts.sum() / (len(counts) * counts)"
            at = _line_of_weights("weight") or where()
            self._recorder.add(Fault(at, self._recorder.log.updates, "imbalance", what, fix, LEAST_SEEN))

    def _look_at_positives(self, loss: LossCall) -> None:
        """Note a weight of positives that makes few of them count less, or many of them more."""
        weight, target = loss.options.get("pos_weight"), loss.target
        if (
            not isinstance(weight, Tensor)
            or weight.numel() != 1
            or not bool(((target == 0) | (target == 1)).all())
        ):
            return
        positive = target.detach().sum().reshape(1)
        counts, calls = self._counted(torch.cat((target.numel() - positive, positive)))
        share, factor = float(counts[1] / counts.sum()), float(weight)
        wrong = (share < RARE and factor < 1 / WEIGHTED) or (share > 1 - RARE and factor > WEIGHTED)
        if calls >= LEAST_CALLS and wrong:
            what = f"{share:.0%} of the targets are positive, and pos_weight of {factor:.3g} makes them count {'less' if factor < 1 else 'more'}: it is the other way round."
            fix = "pos_weight = negatives / positives"
            at = _line_of_weights("pos_weight") or where()
            self._recorder.add(Fault(at, self._recorder.log.updates, "imbalance", what, fix, LEAST_SEEN))


def _line_of_weights(keyword: str) -> str:
    """Return file:line that last set the name which the script gives a loss as its weights, or that of the call; "" where its source does not show it."""
    for file in own_files():
        tree = syntax_of(file)
        for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call)):
            given = next((each.value for each in call.keywords if each.arg == keyword), None)
            if given is None or not _is_loss(call.func):
                continue
            name = next(
                (each.id for each in ast.walk(given) if isinstance(each, ast.Name) and each.id != "torch"), ""
            )
            made = last_assignment(tree, name, call.lineno) if name else None
            return f"{shown(file)}:{call.lineno if made is None else made.lineno}"
    return ""


def _is_loss(function: ast.expr) -> bool:
    return bool(re.search(r"loss|entropy", ast.unparse(function), re.IGNORECASE))
