"""A plan as it is given to other tools, and what becomes of it there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from snugfit.core.progress import number_of_updates
from snugfit.errors import SettingError, nearest
from snugfit.techniques import find

Entry = str | Mapping[str, Mapping[str, Any] | None]
"""A technique as a recipe writes it: `ema`, or `{ema: {decay: 0.999}}`."""

FULL = "fp32"
"""The precision that is no technique."""

Strategy = Literal["single", "ddp", "fsdp", "fsdp-zero2", "fsdp-offload"]
"""Ways to share an update that other tools have too; which of them have it, `Tool.strategies` says."""


@dataclass(frozen=True)
class Asked:
    """A technique of a plan: the recipe's key that asks for it, its name, and all of its settings."""

    key: str
    name: str
    settings: Mapping[str, Any]
    defaults: Mapping[str, Any]


@dataclass(frozen=True)
class ExportedPlan:
    """The settings of a run, in plain values.

    `micro_batch` and `global_batch` are in examples, `max_length` in tokens. `epochs` is None for a run whose length is given as
    `total_updates` alone. `strategy` says how the devices share the work: "ddp" copies the model to each, "fsdp" shards it,
    "fsdp-zero2" shards it and keeps the gathered weights until the update's last backward, and "fsdp-offload" keeps the shards in host
    memory. `devices` are those of all `nodes`.

    Raises:
        SettingError: sizes that no tool can run: the micro-batches of all devices do not add up to the global batch, or one device
            is not what the strategy needs.
    """

    micro_batch: int
    global_batch: int
    total_updates: int
    optimizer: Entry
    schedule: Entry | None = None
    numerics: Entry = FULL
    techniques: tuple[Entry, ...] = ()
    devices: int = 1
    nodes: int = 1
    strategy: Strategy = "single"
    device: Literal["cuda", "cpu", "mps"] = "cuda"
    epochs: float | None = None
    max_length: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("micro_batch", "global_batch", "total_updates", "devices"):
            if getattr(self, name) < 1:
                raise SettingError(
                    f"export.{name}", f"must be at least 1, found {getattr(self, name)}", "Give 1 or more."
                )
        if self.strategy == "single" and self.devices > 1:
            raise SettingError(
                "export.strategy",
                f"'single' is one device, and the plan has {self.devices}",
                "Use ddp or fsdp.",
            )
        if self.global_batch % self.devices:
            raise SettingError(
                "export.global_batch",
                f"{self.global_batch} examples cannot be shared evenly by {self.devices} devices, as other tools do",
                f"Use a multiple of {self.devices}.",
            )
        share = self.global_batch // self.devices
        if share % self.micro_batch:
            fits = next(size for size in range(min(self.micro_batch, share), 0, -1) if share % size == 0)
            raise SettingError(
                "export.micro_batch",
                f"other tools take micro-batches of one size, and {self.micro_batch} does not divide the {share} "
                "examples of a device",
                f"Use plan.micro_batch={fits}, which needs no more memory.",
            )

    @property
    def accumulation(self) -> int:
        """Micro-batches of one update on one device."""
        return self.global_batch // (self.micro_batch * self.devices)

    @property
    def sharded(self) -> bool:
        """Return whether weights, gradients and the optimizer's states are spread over the devices."""
        return self.strategy.startswith("fsdp")

    @property
    def reshards(self) -> bool:
        """Return whether gathered weights are given up after forward (ZeRO stage 3, not 2)."""
        return self.sharded and self.strategy != "fsdp-zero2"

    @property
    def offloads(self) -> bool:
        """Return whether the shards of weights, gradients and optimizer states lie in host memory."""
        return self.strategy == "fsdp-offload"

    @property
    def learning_rate(self) -> float:
        """The optimizer's, before any schedule."""
        rate: float = next(self.asked()).settings["learning_rate"]
        return rate

    def updates(self, part: float) -> int:
        """Return a length in updates, from one given as a recipe does: as such, or as a fraction of the run."""
        return number_of_updates(part, self.total_updates)

    def asked(self) -> Iterator[Asked]:
        """Optimizer, schedule, precision and techniques, in this order, with all their settings.

        Raises:
            SettingError: an unknown technique or setting; the nearest one is given.
        """
        yield asked_of("optimizer", self.optimizer)
        if self.schedule is not None:
            yield asked_of("schedule", self.schedule)
        yield asked_of("plan.numerics", self.numerics)
        for entry in self.techniques:
            yield asked_of("techniques", entry)


@dataclass(frozen=True)
class Exported:
    """A plan for another tool.

    `files` holds name and text of each file, the one that the tool is given first; `left_out` says in sentences what the files do
    not carry, or what is not the same there.
    """

    tool: str
    files: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]


def asked_of(key: str, entry: Entry) -> Asked:
    """Return a technique that a recipe asks for under `key`, with all of its settings.

    Raises:
        SettingError: an unknown technique or setting; the nearest one is given.
    """
    if not isinstance(entry, str) and len(entry) != 1:
        raise SettingError(
            f"export.{key}",
            f"an entry holds one technique, found {', '.join(entry) or 'none'}",
            "Give each technique an entry of its own.",
        )
    name, given = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
    if name == FULL and key == "plan.numerics":
        return Asked(key, name, {}, {})
    technique = find(name, f"export.{key}")
    assert dataclasses.is_dataclass(technique), "each technique that can be discovered is one"
    fields = [field for field in dataclasses.fields(technique) if field.init]
    known = {field.name for field in fields}
    for setting in given or {}:
        if setting not in known:
            raise SettingError(f"export.{key}.{name}", f"no setting '{setting}'", nearest(setting, known))
    defaults = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    settings = {**defaults, **{setting: _plain(value) for setting, value in (given or {}).items()}}
    return Asked(key, name, settings, defaults)


def _plain(value: Any) -> Any:
    """Return lists as tuples, so that what was read from a file compares equal to a default."""
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value
