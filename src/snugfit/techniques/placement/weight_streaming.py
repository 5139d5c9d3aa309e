"""Weight streaming: frozen blocks in host memory come to the device while they are used."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.technique import ONE_MEMORY, Card, Context, Family, Seams, Sharing, Stage, Technique
from snugfit.errors import SnugfitWarning
from snugfit.kit.mapped_tensors import in_file
from snugfit.kit.placement import set_data_
from snugfit.kit.streaming.weight_stream import WeightStream, blocks_of


def stream_weights(
    model: nn.Module,
    device: torch.device | str,
    blocks: Sequence[str] = (),
    *,
    resident: int | Literal["auto"] = 0,
    folder: str | None = None,
    timed: bool = False,
) -> WeightStream:
    """Stream the frozen weights of a model's blocks, and move the rest of the model.

    See `WeightStream` and `kit.placement.place_`.

    Args:
        blocks: patterns of the blocks' names; without any, the entries of the model's outermost lists.
    Raises:
        SettingError: a pattern matches nothing.

    >>> model = nn.Sequential(*(nn.Linear(4, 4).requires_grad_(False) for _ in range(3)))
    >>> stream = stream_weights(model, "cpu")
    >>> with stream.running():
    ...     model(torch.ones(1, 4, requires_grad=True)).sum().backward()
    >>> stream.copies  # 3 forward, and in backward only the one that is in no slot any more
    4
    """
    place = None if folder is None else Path(folder)
    return WeightStream(model, torch.device(device), blocks_of(model, blocks), resident, place, timed)


@dataclass(frozen=True)
class WeightStreaming(Technique):
    """Keep the frozen weights of blocks in host memory, or on a disk, and pass them through two slots on the device."""

    blocks: tuple[str, ...] = ()
    resident: int | Literal["auto"] = 0
    folder: str | None = None

    card: ClassVar[Card] = Card(
        name="weight_streaming",
        summary="Keeps frozen layers in host memory and brings each to the device while it computes.",
        aliases=("layer offload", "block swapping", "sequential CPU offload", "ZeRO-Infinity"),
        family=Family.PLACEMENT,
        source="ZeRO-Infinity, Rajbhandari et al. 2021, arXiv:2104.07857; for frozen weights, which are never copied back",
        seams=("modules",),
        stages=(Stage.STREAM,),
        not_on=ONE_MEMORY,
        refuses={
            Sharing.SHARDS: "each device would hold a part of each frozen weight, which is gathered and not streamed. Remove it, or use "
            "strategy: fsdp-offload, which keeps the parts in host memory."
        },
        saves_memory=True,
        cost="2L-2 copies of a layer for each micro-batch of L layers; hidden where enough tokens are computed meanwhile",
        use_when="the frozen base of adapters is larger than the device",
    )

    def __post_init__(self) -> None:
        if self.resident != "auto":
            self.require(
                "resident", isinstance(self.resident, int) and self.resident >= 0, "0, more, or auto"
            )

    @property
    def reads_files(self) -> bool:
        return self.folder is not None

    @property
    def blocks_that_stay(self) -> int:
        return 0 if isinstance(self.resident, str) else self.resident

    def keeping(self, blocks: int) -> Self:
        return replace(self, resident=blocks)

    @classmethod
    def example(cls) -> Self:
        return cls()

    def read(self, model: nn.Module, name: str) -> None:
        """Put a weight of a block into a file of the folder as soon as it is read, in the format that techniques before this have given it."""
        block = next((each for each in self.stays(model) if name.startswith(f"{each}.")), None)
        if self.folder is None or block is None:
            return
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        parent, _, own = name.rpartition(".")
        layer = model.get_submodule(parent)
        weight, stand_in = layer._parameters.get(own), layer._modules.get(own)
        stored = [] if weight is None else [weight]
        for each in stored if stand_in is None else stand_in.parameters():  # of experts in few bits
            if not each.is_meta and type(each) is nn.Parameter:
                set_data_(each, in_file(each, folder))  # the same object, which the loader has marked as read

    def stays(self, model: nn.Module) -> Collection[str]:
        return tuple(blocks_of(model, self.blocks))

    def seams(self, context: Context) -> Seams:
        stream = stream_weights(
            context.model, context.device, self.blocks, resident=self.resident, folder=self.folder
        )
        first = True

        @contextmanager
        def modules(_batch: Batch) -> Iterator[None]:
            nonlocal first
            with stream.running():
                if first and not stream.frozen:
                    warnings.warn(
                        "weight_streaming: does nothing, as no block holds a frozen weight of its own. Freeze the model, as "
                        "'lora' and 'freeze' do, or remove it.",
                        SnugfitWarning,
                        stacklevel=2,
                    )
                first = False
                yield

        return Seams(modules=modules)
