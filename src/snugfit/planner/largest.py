"""The largest that fits: how many examples at once, how long they may be, how deep the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from snugfit.core.batch import LABELS, Batch
from snugfit.core.job import Plan
from snugfit.core.technique import Technique
from snugfit.core.tree import map_tree
from snugfit.errors import SettingError, nearest
from snugfit.models.tokenizer import position_limit
from snugfit.planner.answers.answer import Answer, Largest, Prediction
from snugfit.planner.choice.candidate import Candidate
from snugfit.planner.choice.reasons import describe
from snugfit.planner.devices.device import Machine
from snugfit.planner.plan import Request, device_of, upper_bound
from snugfit.planner.prediction.depth import deepened_, fewer_blocks
from snugfit.planner.prediction.extrapolate import NotLinear
from snugfit.planner.prediction.peak_and_time import Run
from snugfit.planner.prediction.plan_needs import PERIODS, Depths, Planner, RunKey
from snugfit.planner.trace.dry_run import Subject
from snugfit.step.build import describe_model
from snugfit.units import format_bytes

UNITS: Mapping[str, str] = {"batch": "examples", "sequence": "tokens", "model": "blocks"}
_MOST = 2**20
"""Nothing larger is looked at."""

Probe = Callable[[int], Prediction]


def make_largest(
    what: str, subject: Subject, machine: Machine, request: Request, about: Mapping[str, Any] | None = None
) -> Answer:
    """Return the plan of the largest that fits, with the recipe's techniques; `largest` says how large, and what is too large.

    Args:
        what: `batch`, the examples of one forward and backward, an update of one of them; `sequence`, the tokens of an example, in
            micro-batches as the recipe has them; `model`, the repeated blocks of a model of this kind.
    Raises:
        SettingError: there is no such size, or this model or this data has none.
        UserError: the recipe cannot be run.
    """
    if what not in UNITS:
        raise SettingError("--max", f"there is no size '{what}'", nearest(what, list(UNITS)))
    started = time.monotonic()
    size = _SIZES[what](subject, machine, request)
    made: dict[int, Prediction] = {}

    def probe(value: int) -> Prediction:
        if value not in made:
            made[value] = size.probe(value)
        return made[value]

    usable, holds = request.budget.usable, request.budget.holds
    value, beyond = largest(probe, holds, lambda prediction: prediction.reserved_bytes / usable, size)
    prediction = made[size.least if value is None else value]
    limit = None
    if value is not None:
        over = None if beyond is None else made[beyond].reserved_bytes
        limit = Largest(what, value, prediction.peak_bytes, size.parameters(value), UNITS[what], beyond, over)
    candidate = Candidate(
        subject.techniques, size.micro_batch(value or size.least), (), prediction, value is not None
    )
    return Answer(
        fits=value is not None,
        device=device_of(machine),
        budget_bytes=request.budget.memory_bytes,
        prediction=prediction,
        choice=describe(candidate),
        why=(_why(limit, size, prediction, usable), *upper_bound(subject), *machine.notes),
        about={**(about or {}), **size.about(value or size.least)},
        planned_seconds=time.monotonic() - started,
        largest=limit,
    )


def largest(
    probe: Probe, holds: Callable[[Prediction], bool], share: Callable[[Prediction], float], size: _Size
) -> tuple[int | None, int | None]:
    """Return the largest value that fits, None where the least does not; and the next one, which does not, None where the most does.

    Doubling, then bisection; every other cut is where the line between what fits and what does not meets the budget, which is at
    once the answer where need grows in a straight line.
    """
    low, high = size.start, None
    while not holds(probe(low)):
        if low == size.least:
            return None, low
        low, high = max(size.least, size.legal(low // 2)), low
    while high is None:
        if low == size.most:
            return low, None
        further = min(size.most, size.legal(2 * low))
        if holds(probe(further)):
            low = further
        else:
            high = further
    straight = True
    while high - low > size.step:
        middle = (low + high) // 2
        if straight:
            below, above = share(probe(low)), share(probe(high))
            middle = low + int((high - low) * (1 - below) / max(above - below, 1e-12))
        middle = min(max(size.legal(middle), low + size.step), high - size.step)
        straight = not straight
        if holds(probe(middle)):
            low = middle
        else:
            high = middle
    return low, high


@dataclass
class _Size:
    """Values that are looked at: `least`, `least + step` … `most`, beginning at `start`."""

    subject: Subject
    machine: Machine
    request: Request
    start: int = field(init=False)
    least: int = field(default=1, init=False)
    most: int = field(default=_MOST, init=False)
    step: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        self.start = self.rows

    def legal(self, value: int) -> int:
        """Return the largest value not above this one that may be."""
        return self.least + max(0, value - self.least) // self.step * self.step

    def parameters(self, value: int) -> int:
        return describe_model(self.subject.model())["total"]

    @property
    def rows(self) -> int:
        """Examples of one forward and backward, as the recipe has them."""
        asked, rows = self.request.plan.micro_batch, self.subject.window.rows
        return min(asked, rows) if isinstance(asked, int) else rows

    def micro_batch(self, value: int) -> int:
        return self.rows

    def about(self, value: int) -> dict[str, Any]:
        """Return what of the subject is another one at this value."""
        return {"parameters": self.parameters(value)}

    def probe(self, value: int) -> Prediction:
        raise NotImplementedError


class _Batch(_Size):
    """Examples of one forward and backward, which are an update's too."""

    def micro_batch(self, value: int) -> int:
        return value

    def about(self, value: int) -> dict[str, Any]:
        return {"window": value, "total_updates": self._whole(value).total_updates}

    def _whole(self, value: int) -> Subject:
        subject = self.subject
        rows = subject.window.select(_longest(subject.window, value))
        # a part of a window would still hold the whole of it
        window = replace(rows, data=map_tree(Tensor.clone, rows.data))
        return replace(
            subject,
            window=window,
            mean_window=1.0,
            job=replace(subject.job, train=replace(subject.job.train.grown, global_batch=value)),
        )

    def probe(self, value: int) -> Prediction:
        plan = replace(self.request.plan, micro_batch=value)
        return Planner(self._whole(value), self.machine).predict(plan, self.subject.techniques)


class _Sequence(_Size):
    """Tokens of each example; never told from shorter ones, as need does not grow in a line with them."""

    def __post_init__(self) -> None:
        if not self.subject.window.padded:
            raise SettingError(
                "--max sequence",
                "the examples are no rows of tokens with an attention_mask",
                "Ask for --max batch.",
            )
        limit = position_limit(self.subject.model())
        self.most = _MOST if limit is None else limit
        self.start = min(self.subject.window.padded, self.most)

    def probe(self, value: int) -> Prediction:
        scored = self.subject.evaluation
        subject = replace(
            self.subject,
            window=of_length(self.subject.window, value),
            evaluation=None if scored is None else of_length(scored, value),
        )
        plan = replace(self.request.plan, micro_batch=self.rows)
        return Planner(subject, self.machine).predict(plan, subject.techniques)


class _Model(_Size):
    """Repeated blocks of the model; two runs of few tell of all numbers."""

    def __post_init__(self) -> None:
        model = self.subject.model()
        self._own = describe_model(model)["total"]
        name, self._count = deepened_(model)

        def deep() -> torch.nn.Module:
            made = self.subject.model()
            deepened_(made)
            return made

        self._planner = _Deep(replace(self.subject, model=deep), self.machine)
        if not self._planner.lists:
            raise _no_blocks()
        (blocks,) = self._planner.lists
        held: Any = model.get_submodule(name)
        period = list(held)[-blocks.period :]
        self._period = sum(describe_model(block)["total"] for block in period)
        fewest = fewer_blocks((blocks,), PERIODS)
        if fewest is None:
            raise _no_blocks()
        ((self.least,), (self.step,)) = fewest.longer(1), fewest.steps
        self.start = max(self.least, self.legal(self._count))

    def parameters(self, value: int) -> int:
        return self._own + (value - self._count) // self.step * self._period

    def probe(self, value: int) -> Prediction:
        self._planner.wanted = value
        plan = replace(self.request.plan, micro_batch=self.rows)
        try:
            return self._planner.predict(plan, self.subject.techniques)
        except NotLinear as error:
            raise _no_blocks() from error


class _Deep(Planner):
    """A planner for one plan and models of many depths, whose runs are kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        longest = max(self.lists, key=lambda each: each.count, default=None)
        self.lists = () if longest is None else (longest,)
        self._runs_by_key: dict[RunKey, Run] = {}

    def run(
        self, plan: Plan, techniques: Sequence[Technique], depths: Depths | None, micro_batches: int | None
    ) -> Run:
        key = depths, micro_batches
        if key not in self._runs_by_key:
            self._runs_by_key[key] = super().run(plan, techniques, depths, micro_batches)
        return self._runs_by_key[key]


def of_length(batch: Batch, length: int) -> Batch:
    """Return the same rows with so many tokens each, none of them padding and all of them scored.

    >>> of_length(Batch.of({"input_ids": torch.ones(2, 3), "attention_mask": torch.ones(2, 3)}), 5).lengths
    (5, 5)
    """

    def grown(name: str, tensor: Any) -> Any:
        if not isinstance(tensor, Tensor) or tensor.ndim < 2 or tensor.shape[1] != batch.padded:
            return tensor
        if name == LABELS:
            return tensor.new_zeros(tensor.shape[0], length)
        return tensor[:, :1].repeat_interleave(length, dim=1)

    return Batch.of({name: grown(name, value) for name, value in batch.data.items()}, batch.ids)


def _longest(window: Batch, rows: int) -> list[int]:
    """Return the longest example of a window, so many times."""
    lengths = window.lengths
    return [0 if lengths is None else lengths.index(max(lengths))] * rows


def _no_blocks() -> SettingError:
    return SettingError(
        "--max model",
        "needs a model that is a list of blocks of one kind, such as the layers of a transformer, and runs of "
        "which each block adds the same",
        "Ask for --max batch.",
    )


def _why(limit: Largest | None, size: _Size, prediction: Prediction, usable: int) -> str:
    need, room = format_bytes(prediction.reserved_bytes), format_bytes(usable)
    if limit is None:
        unit = {"examples": "example"}.get(_unit(size), _unit(size)) if size.least == 1 else _unit(size)
        return f"Not even {size.least:,} {unit} would fit: {need} of {room} that may be used."
    start = f"The largest that fits are {limit.value:,} {limit.unit}: {need} of {room} that may be used"
    if limit.beyond is None or limit.beyond_bytes is None:
        return f"{start}; more are not looked at."
    return f"{start}; {limit.beyond:,} would take {format_bytes(limit.beyond_bytes)}."


def _unit(size: _Size) -> str:
    return next(UNITS[what] for what, kind in _SIZES.items() if isinstance(size, kind))


_SIZES: Mapping[str, type[_Size]] = {"batch": _Batch, "sequence": _Sequence, "model": _Model}
