"""What is trained (`Job`) and how it fits (`Plan`): plain values, made by the recipe or by Python code."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from snugfit.errors import SettingError

NON_FINITE_POLICIES = ("stop", "skip", "roll_back")
SAVES = ("sync", "async")

AUTO: Literal["auto"] = "auto"
MicroBatch = int | Literal["auto"] | None
"""Examples of one forward and backward: a number, the most that fit, or None: the whole window."""

StrategyName = Literal["ddp", "fsdp-zero2", "fsdp-hybrid", "fsdp", "fsdp-offload"]
STRATEGY_NAMES: tuple[StrategyName, ...] = get_args(StrategyName)
"""How devices share each update, simple ways first: the model copied to each; only gradients and optimizer states spread over them (ZeRO
stage 2); all spread within each node, with a copy on each node; all spread over all of them (stage 3); and that in host memory."""

StopWhen = Callable[[list[dict[str, Any]]], str | None]
"""From all evaluations so far to the reason to stop, or None to go on; asked again after a resume.

An evaluation has `update`, `epoch`, `metrics` by name, the name of the `weights` that were scored, and whether it was `best`.
"""


@dataclass(frozen=True)
class Job:
    """The logical side of a run; two plans of one job give the same updates.

    Exactly one of `epochs` and `windows` says how long the run is. `evaluate_every` and `checkpoint_every` count
    windows; None means each epoch, and each evaluation. `best` names the monitored metric, with `min:` or `max:` before
    it when Snugfit does not know the metric. `patience` counts evaluations that do not improve it by more than
    `min_delta`; `stop_when` looks at all evaluations so far. `checkpoint_save` is "sync", where the training waits until
    a checkpoint is written, or "async", where it goes on while a copy of its state is.
    """

    global_batch: int = 32
    epochs: float | None = 3.0
    windows: int | None = None
    seed: int = 0
    metrics: tuple[str, ...] = ()
    best: str = "loss"
    evaluate_every: int | None = None
    evaluate_batch: int | None = None
    patience: int | None = None
    min_delta: float = 0.0
    stop_when: StopWhen | None = None
    non_finite: str = "skip"
    non_finite_limit: int = 10
    checkpoint_every: int | None = None
    checkpoint_keep: int = 2
    checkpoint_save: str = "sync"
    shuffle: bool = True

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.windows is None):
            raise SettingError("train: give one of epochs and updates.")
        _positive("train.epochs", self.epochs)
        _positive("train.updates", self.windows)
        _positive("train.global_batch", self.global_batch)
        _positive("evaluate.every", self.evaluate_every)
        _positive("evaluate.batch", self.evaluate_batch)
        _positive("early_stopping.patience", self.patience)
        if not 0 <= self.min_delta < math.inf:
            raise SettingError(f"early_stopping.min_delta: must be zero or positive, found {self.min_delta}.")
        if self.min_delta > 0 and self.patience is None:
            raise SettingError(
                "early_stopping.min_delta: says what patience counts, and there is none. Give patience."
            )
        if self.stop_when is not None and not callable(self.stop_when):
            raise SettingError(
                f"early_stopping.stop_when: must be a function from the evaluations to a reason or None, found {self.stop_when!r}."
            )
        _positive("checkpoint.every", self.checkpoint_every)
        if self.checkpoint_keep < 2:
            raise SettingError(
                f"checkpoint.keep: must be at least 2, found {self.checkpoint_keep}: one may be torn."
            )
        if self.checkpoint_save not in SAVES:
            raise SettingError(
                f"checkpoint.save: must be one of {', '.join(SAVES)}, found '{self.checkpoint_save}'."
            )
        if self.non_finite not in NON_FINITE_POLICIES:
            raise SettingError(
                f"non_finite.policy: must be one of {', '.join(NON_FINITE_POLICIES)}, found '{self.non_finite}'."
            )

    @property
    def stops_early(self) -> bool:
        """Whether evaluations may end the run."""
        return self.patience is not None or self.stop_when is not None

    def total_windows(self, examples: int) -> int:
        """Windows of the whole run over `examples` rows; the last window of an epoch may be partial.

        >>> Job(global_batch=4, epochs=2).total_windows(examples=9)
        6
        """
        if self.windows is not None:
            return self.windows
        assert self.epochs is not None
        return max(1, round(self.epochs * self.windows_per_epoch(examples)))

    def windows_per_epoch(self, examples: int) -> int:
        return -(-examples // self.global_batch)


@dataclass(frozen=True)
class Plan:
    """The physical side of a run: changes memory and time, not the updates. Numerics are named and fixed.

    `devices` share each update by `strategy`, one of `STRATEGY_NAMES`, or "single" where there is one. `cut_padding` lets micro-batches
    be as wide as their longest text, where the model computes the same without padding. `deterministic` takes operators whose results
    depend on their inputs alone.
    """

    micro_batch: MicroBatch = None
    numerics: str = "fp32"
    device: str = "cpu"
    strategy: str = "single"
    devices: int = 1
    num_workers: int = 0
    cut_padding: bool = True
    deterministic: bool = False

    def __post_init__(self) -> None:
        size = self.micro_batch
        if size is not None and size != AUTO and (not isinstance(size, int) or size < 1):
            raise SettingError(
                f"plan.micro_batch: must be at least 1 and whole, auto, or null for the whole window, found {size!r}."
            )


def _positive(setting: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise SettingError(f"{setting}: must be positive, found {value}.")
