"""Tiny models of every ordinary kind, each with the examples that it learns from."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.data import default_collate

ROWS, WIDTH, CLASSES = 11, 4, 3
Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Case:
    """A model and what it is trained on.

    Args:
        make: the model, with new weights.
        rows: examples, each of which `poison` makes one whose loss is not a number.
        plain: the module that `best/` is loaded into; what `make` gives where it is None.
        rounding: how far the losses of two ways to compute the same may be apart, relative to them.
        splits: False where the model's outputs depend on how often it was called.
    """

    make: Callable[[], nn.Module]
    rows: Callable[[], list[Any]]
    poison: Callable[[Any], Any]
    loss: Any = "cross_entropy"
    collate: Collate | None = None
    forward: Callable[[nn.Module, Any], Any] | None = None
    plain: Callable[[], nn.Module] | None = None
    rounding: float = 1e-9
    splits: bool = True

    def model(self) -> nn.Module:
        """The model in float64, with weights that are the same each time."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.make().double()


def points() -> list[tuple[Tensor, Tensor]]:
    """Vectors and their classes."""
    source = torch.Generator().manual_seed(7)
    inputs = torch.randn(ROWS, WIDTH, generator=source, dtype=torch.float64)
    return [(row, torch.tensor(number % CLASSES)) for number, row in enumerate(inputs)]


def named_points() -> list[dict[str, Tensor]]:
    return [{"inputs": row, "labels": label} for row, label in points()]


def nan_point(example: Any) -> Any:
    """The same example with inputs that are not numbers."""
    if isinstance(example, dict):
        return {**example, "inputs": torch.full_like(example["inputs"], torch.nan)}
    return (torch.full_like(example[0], torch.nan), *example[1:])


class Named(nn.Module):
    """Takes its inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, CLASSES))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs)


def as_default_dict(examples: list[Any]) -> defaultdict[str, Tensor]:
    """What code that gathers lists by name returns."""
    gathered: defaultdict[str, Any] = defaultdict(list)
    for example in examples:
        for name, value in example.items():
            gathered[name].append(value)
    for name, values in gathered.items():
        gathered[name] = torch.stack(values)
    return gathered


def as_batch_encoding(examples: list[Any]) -> Any:
    from transformers import BatchEncoding

    return BatchEncoding(default_collate(examples))


@dataclass
class PointBatch:
    """A batch as a dataclass, which its own loss and forward know."""

    inputs: Tensor
    labels: Tensor
    source: str = "points"
    rows: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.rows = len(self.labels)


@dataclass(frozen=True)
class FrozenPointBatch:
    inputs: Tensor
    labels: Tensor


class PointTuple(NamedTuple):
    inputs: Tensor
    labels: Tensor


def by_attribute(outputs: Any, batch: Any) -> Tensor:
    return F.cross_entropy(outputs, batch.labels, reduction="none")


def on_inputs(model: nn.Module, batch: Any) -> Any:
    return model(batch.inputs)


def with_collate(collate: Collate, **settings: Any) -> Case:
    return Case(Named, named_points, nan_point, collate=collate, **settings)


class Counting(nn.Module):
    """A layer whose state is not only tensors: it counts rows in a number of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.calls += len(inputs)
        return self.layer(inputs)

    def get_extra_state(self) -> Any:
        return {"calls": self.calls, "names": ["a", "b"]}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]
        assert state["names"] == ["a", "b"]


class TensorState(nn.Module):
    """A layer whose extra state is a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.scale = torch.tensor([1.0, 2.0])

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) * self.scale[0].to(inputs)

    def get_extra_state(self) -> Tensor:
        return self.scale

    def set_extra_state(self, state: Tensor) -> None:
        self.scale = state


class MadeBuffer(nn.Module):
    """Makes a buffer at its first forward, and moves it at each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        if not hasattr(self, "seen"):
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        if self.training:
            self.seen += len(inputs)
        return self.layer(inputs)


class EmptyBuffer(nn.Module):
    """Has a buffer that is None until the first forward, and a number beside it that says whether it is there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("shift", None)
        self.ready = False

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.ready:
            self.shift = torch.full((WIDTH,), 0.5, dtype=inputs.dtype)
            self.ready = True
        return self.layer(inputs - self.shift)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        self.ready = f"{prefix}shift" in state
        super()._load_from_state_dict(state, prefix, *args)


class GrownBuffer(nn.Module):
    """Keeps what it has seen in a buffer that grows: one place for each row of the widest batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("table", torch.zeros(1, dtype=torch.float64))
        self.places = 1

    def forward(self, inputs: Tensor) -> Tensor:
        needed = int(inputs.detach().abs().nan_to_num().max()) + 5
        if needed > self.places:
            self.table = torch.linspace(0.0, 1.0, needed, dtype=inputs.dtype)
            self.places = needed
        return self.layer(inputs)


class ExpandedBuffer(nn.Module):
    """Expands a buffer to the rows of its batch and keeps the view."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("offset", torch.ones(1, WIDTH, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        self.offset = self.offset[:1].expand(len(inputs), -1)
        return self.layer(inputs + self.offset)


class Smoothed(nn.Module):
    """Replaces a buffer by a new tensor in each forward of the training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("mean", torch.zeros(WIDTH, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(dim=0)
        return self.layer(inputs)


class MakingBlock(nn.Module):
    """Makes a buffer at its first forward, adds to it, and computes with what it has become; has a table that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("table", torch.zeros(1, dtype=torch.float64))
        self.places = 1

    def forward(self, inputs: Tensor) -> Tensor:
        if not hasattr(self, "seen"):
            self.register_buffer("seen", torch.zeros((), dtype=torch.float64))
        if self.training:
            self.seen += 0.1
        if self.places < len(inputs):
            self.table, self.places = torch.linspace(0, 1, len(inputs), dtype=inputs.dtype), len(inputs)
        assert len(self.table) == self.places
        return self.layer(inputs) * (1 + self.seen.clone()) + self.table[: len(inputs)].unsqueeze(1)


class MakingBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([MakingBlock(), MakingBlock()])
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = torch.tanh(layer(inputs))
        return self.head(inputs)


def sequences() -> list[dict[str, Tensor]]:
    """Sequences of unequal lengths."""
    source = torch.Generator().manual_seed(3)
    return [
        {
            "inputs": torch.randn(1 + (5 * number) % 4, WIDTH, generator=source, dtype=torch.float64),
            "labels": torch.tensor(number % CLASSES),
        }
        for number in range(ROWS)
    ]


def as_packed(examples: list[Any]) -> dict[str, Any]:
    packed = nn.utils.rnn.pack_sequence([each["inputs"] for each in examples], enforce_sorted=False)
    return {"inputs": packed, "labels": torch.stack([each["labels"] for each in examples])}


def as_packed_tuple(examples: list[Any]) -> tuple[Any, Tensor]:
    batch = as_packed(examples)
    return batch["inputs"], batch["labels"]


class PackedGRU(nn.Module):
    """Two recurrent layers on packed sequences; each is a block of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([RecurrentBlock(WIDTH, 6), RecurrentBlock(6, 6)])
        self.head = nn.Linear(6, CLASSES)

    def forward(self, inputs: PackedSequence) -> Tensor:
        for layer in self.layers:
            inputs, last = layer(inputs)
        return self.head(last)


class RecurrentBlock(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, width, batch_first=True)

    def forward(self, inputs: PackedSequence) -> tuple[PackedSequence, Tensor]:
        outputs, last = self.gru(inputs)
        return outputs, last[-1]


class PacksItself(nn.Module):
    """Packs padded sequences inside, by a mask that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([RecurrentBlock(WIDTH, 6), RecurrentBlock(6, 6)])
        self.head = nn.Linear(6, CLASSES)

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
        for layer in self.layers:
            packed, _ = layer(packed)
        padded, _ = pad_packed_sequence(packed, batch_first=True)
        return self.head(padded.sum(dim=1))


def padded(examples: list[Any]) -> dict[str, Any]:
    return {
        "inputs": nn.utils.rnn.pad_sequence([each["inputs"] for each in examples], batch_first=True),
        "lengths": torch.tensor([len(each["inputs"]) for each in examples]),
        "labels": torch.stack([each["labels"] for each in examples]),
    }


def compiled() -> nn.Module:
    return torch.compile(Named(), backend="eager")  # type: ignore[return-value]


class PartlyCompiled(nn.Module):
    def __init__(self, compile: bool = True) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh())
        if compile:
            self.encoder = torch.compile(self.encoder, backend="eager")
        self.head = nn.Linear(8, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(inputs))


def translations() -> list[dict[str, Tensor]]:
    """Tokens and the tokens to make of them, of which some are padding."""
    source = torch.Generator().manual_seed(5)
    found = []
    for number in range(ROWS):
        labels = torch.randint(3, 20, (6,), generator=source)
        labels[2 + number % 4 :] = -100
        mask = (torch.arange(6) < 3 + number % 3).long()
        inputs = torch.randint(3, 20, (6,), generator=source) * mask
        found.append({"input_ids": inputs, "attention_mask": mask, "labels": labels})
    return found


def ignored(example: Any) -> Any:
    return example


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=20,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        dropout_rate=0.0,
    )
    return T5ForConditionalGeneration(config)


def vit() -> nn.Module:
    """A model whose weights transformers stores under other names than its modules have."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=8,
        patch_size=4,
        num_labels=CLASSES,
    )
    return ViTForImageClassification(config)


def pixels() -> list[dict[str, Tensor]]:
    source = torch.Generator().manual_seed(5)
    return [
        {
            "pixel_values": torch.randn(3, 8, 8, generator=source, dtype=torch.float64),
            "labels": torch.tensor(number % CLASSES),
        }
        for number in range(ROWS)
    ]


def bart() -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=20,
        dropout=0.0,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=2,
    )
    return BartForConditionalGeneration(config)


CASES: dict[str, Case] = {
    "default_dict": with_collate(as_default_dict),
    "ordered_dict": with_collate(lambda examples: OrderedDict(default_collate(examples))),
    "user_dict": with_collate(lambda examples: UserDict(default_collate(examples))),
    "batch_encoding": with_collate(as_batch_encoding),
    "dataclass": with_collate(
        lambda e: PointBatch(**default_collate(e)), loss=by_attribute, forward=on_inputs
    ),
    "frozen_dataclass": with_collate(
        lambda e: FrozenPointBatch(**default_collate(e)), loss=by_attribute, forward=on_inputs
    ),
    "named_tuple": with_collate(lambda e: PointTuple(**default_collate(e))),
    "extra_state": Case(Counting, named_points, nan_point),
    "tensor_extra_state": Case(TensorState, named_points, nan_point),
    "buffer_made": Case(MadeBuffer, named_points, nan_point),
    "buffer_of_none": Case(EmptyBuffer, named_points, nan_point),
    "buffer_grown": Case(GrownBuffer, named_points, nan_point),
    "buffer_expanded": Case(ExpandedBuffer, named_points, nan_point),
    "buffer_replaced": Case(Smoothed, named_points, nan_point),
    "buffers_in_blocks": Case(MakingBlocks, named_points, nan_point, splits=False),  # scales by calls
    "packed_sequences": Case(PackedGRU, sequences, nan_point, collate=as_packed),
    "packed_in_a_tuple": Case(PackedGRU, sequences, nan_point, collate=as_packed_tuple),
    "packs_itself": Case(PacksItself, sequences, nan_point, collate=padded),
    "compiled": Case(compiled, named_points, nan_point, plain=Named),
    "partly_compiled": Case(PartlyCompiled, named_points, nan_point, plain=lambda: PartlyCompiled(False)),
    "t5": Case(t5, translations, ignored, rounding=1e-6),  # its norms compute in float32
    "vit": Case(vit, pixels, ignored),
    "bart": Case(bart, translations, ignored),
}
