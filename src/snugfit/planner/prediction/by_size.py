"""The needs of one set of techniques in micro-batches of every size, from runs of few of them.

From one size to another each piece of a run grows on a line, or on several that bend upwards, as the most of what is alive at a time
does; so what lies between two sizes that were run is at most what the line between them says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from snugfit.planner.answers.answer import Prediction
from snugfit.planner.cost.records import Phase
from snugfit.planner.prediction.extrapolate import NotLinear
from snugfit.planner.prediction.peak_and_time import Run
from snugfit.planner.trace.segments import Key


@dataclass
class BySize:
    """Predictions of one set of techniques for each micro-batch.

    Args:
        run: a window in micro-batches of a size, of which two are run.
        tell: what a run of that size comes to.
        passes: micro-batches of a window, by their size.
        stay: a run that streams its blocks, with so many of them on the device.
    """

    run: Callable[[int], Run]
    tell: Callable[[Run, int], Prediction]
    passes: Callable[[int], int]
    stay: Callable[[Run, int], Run]
    _runs: dict[int, Run] = field(default_factory=dict)
    _by_size: dict[int, Prediction] = field(default_factory=dict)

    def traced(self, size: int) -> Prediction:
        """Return what micro-batches of this size need, run once.

        Raises:
            UserError: the model, the techniques or the settings cannot be run.
        """
        if size not in self._by_size:
            run = self.run(size)
            self._by_size[size] = self.tell(run, size)
            self._runs[size] = run
        return self._by_size[size]

    def between(self, size: int) -> Prediction | None:
        """Return what micro-batches of this size need, by those around them that were run; None where that cannot be told."""
        if size in self._by_size:
            return self._by_size[size]
        run = self._run_between(size)
        return None if run is None else self.tell(run, size)

    def staying(self, size: int, blocks: int) -> Prediction | None:
        """Return what micro-batches of this size need with so many blocks on the device that would be streamed; None where that cannot be told."""
        run = self._runs.get(size) or self._run_between(size)
        try:
            return None if run is None else self.tell(self.stay(run, blocks), size)
        except NotLinear:
            return None

    def _run_between(self, size: int) -> Run | None:
        split = [each for each in self._runs if self.passes(each) > 1]  # a whole window meets no gradients
        low = max((each for each in split if each < size), default=None)
        high = min((each for each in split if each > size), default=None)
        if low is None or high is None:
            return None
        try:
            run = _on_line(self._runs[low], self._runs[high], (size - low) / (high - low))
        except NotLinear:
            return None
        return repeated(run, self.passes(size))


def repeated(run: Run, count: int) -> Run:
    """Return a run of two micro-batches as one of `count`, whose second one stands for all that follow the first; of three, for all between.

    What is done after the last of two is done once: between all others is what is done after the first.
    """
    last = max(each.key.micro_batch for each in run.segments)

    def stands_for_others(key: Key) -> bool:
        return key.micro_batch == (0 if last == 1 and key.phase is Phase.PASS else 1)

    segments = [
        replace(each, times=count - last) if stands_for_others(each.key) else each for each in run.segments
    ]
    return replace(run, segments=segments)


def _on_line(one: Run, other: Run, share: float) -> Run:
    """Return a run between two, piece by piece."""
    if [each.key for each in one.segments] != [each.key for each in other.segments]:
        raise NotLinear("the two sizes are not of the same pieces")
    segments = [
        replace(
            first,
            peak=first.peak + ((second.peak - first.peak) * share).round().astype(first.peak.dtype),
            host=first.host + round((second.host - first.host) * share),
            costs=first.costs + (second.costs - first.costs) * share,
            flops=first.flops + round((second.flops - first.flops) * share),
        )
        for first, second in zip(one.segments, other.segments, strict=True)
    ]
    return replace(
        one,
        segments=segments,
        torn=one.torn + round((other.torn - one.torn) * share),
        doubt=max(one.doubt, other.doubt),
    )
