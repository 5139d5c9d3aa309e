"""What the laws are tested on: windows of variable-length rows, models, and steps with any techniques."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.composition import check, in_order
from snugfit.core.losses import Loss, LossTerms
from snugfit.core.technique import Family, Kind, Stage, Technique
from snugfit.errors import PlanConflict, SettingError
from snugfit.techniques import discover, find
from snugfit.techniques.learning.one_cycle import OneCycle
from snugfit.training.step import Forward, Step
from tests.laws.models import (
    FEATURES,
    IMAGE,
    LONGEST,
    VOCABULARY,
    WIDTH,
    Normed,
    NormedViewer,
    Reader,
    Viewer,
    contrastive,
)

TOTAL_UPDATES = 5
WINDOW_ROWS = (7, 7, 5)  # the last one of an epoch is partial
IGNORED = -100

Window = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """A model, its loss, and windows that suit both; `windows` takes the number of rows of each window."""

    name: str
    make_model: Callable[[float], nn.Module]
    make_windows: Callable[[Sequence[int]], list[Window]]
    loss: str | Loss
    forward: Forward | None = None
    floats: bool = True

    def model(self, dtype: torch.dtype = torch.float64, dropout: float = 0.0, seed: int = 1) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make_model(dropout).to(dtype).train()

    def windows(self, dtype: torch.dtype = torch.float64, rows: Sequence[int] = WINDOW_ROWS) -> list[Window]:
        return [cast(window, dtype) for window in self.make_windows(rows)]


def reader(techniques: Sequence[Technique]) -> Problem:
    """The transformer: each token is scored, or, when a technique serves losses that couple rows, such a loss."""
    if couples(techniques):
        return Problem("reader", lambda p: Reader(p, per_token=False), _texts(per_token=False), _contrastive)
    return Problem("reader", lambda p: Reader(p), _texts(per_token=True), "cross_entropy")


def viewer(techniques: Sequence[Technique]) -> Problem:
    """The convolutional net."""
    return Problem("viewer", Viewer, _images("pixels"), _loss_of_rows(techniques))


def normed(techniques: Sequence[Technique]) -> Problem:
    """A net with batch norm: an MLP, or a convolutional one where images are asked for."""
    if takes_images(techniques):
        return Problem("normed", NormedViewer, _images("pixels"), _loss_of_rows(techniques))
    return Problem("normed", Normed, _numbers, _loss_of_rows(techniques))


def vit(techniques: Sequence[Technique]) -> Problem:
    """A stock vision transformer."""
    windows = _images("pixel_values")
    return Problem("vit", _vit, windows, _loss_of_rows(techniques), forward=_of_any_size)


def bert(techniques: Sequence[Technique]) -> Problem:
    """A stock encoder for text classification."""
    windows = _classified(labels_per_token=False)
    return Problem("bert", _bert, windows, _loss_of_rows(techniques), floats=False)


def gpt2(techniques: Sequence[Technique]) -> Problem:
    """A stock causal language model; for losses that couple rows, its logits are averaged over the tokens."""
    if couples(techniques):
        windows = _classified(labels_per_token=False)
        return Problem("gpt2", _gpt2, windows, _rows_against_rows, forward=_averaged, floats=False)
    return Problem("gpt2", _gpt2, _classified(labels_per_token=True), "causal_lm", floats=False)


def main(techniques: Sequence[Technique]) -> Problem:
    """Somebody's own module that suits the techniques: the transformer, or the convolutional net for images."""
    return viewer(techniques) if takes_images(techniques) else reader(techniques)


Maker = Callable[[Sequence[Technique]], Problem]


def suitable(techniques: Sequence[Technique]) -> list[Maker]:
    """Somebody's own module and the stock models whose examples the techniques can work on, and which they do not refuse."""
    makers = [viewer, vit] if takes_images(techniques) else [reader, bert, gpt2]
    return [make for make in makers if is_accepted(make, techniques)]


STOCK: tuple[Maker, ...] = (bert, gpt2, vit)


def with_batch_norm(techniques: Sequence[Technique]) -> list[Maker]:
    """The nets with batch norm; none of them reads text."""
    if any(technique.card.kind is Kind.TOKENS for technique in techniques):
        return []
    return [normed] if is_accepted(normed, techniques) else []


def cases(
    given: Sequence[tuple[Technique, ...]], *kinds: Callable[[Sequence[Technique]], list[Maker]]
) -> list[tuple[Maker, tuple[Technique, ...]]]:
    """Each combination with each problem of these kinds."""
    return [(make, techniques) for techniques in given for kind in kinds for make in kind(techniques)]


def is_accepted(make: Maker, techniques: Sequence[Technique]) -> bool:
    """Whether the model has what the techniques change in it, such as residual blocks; the main problem's always has."""
    model = make(techniques).model()
    try:
        for technique in in_order(techniques, "prepare"):
            model = technique.prepare(model)
    except SettingError:
        return False
    return True


def takes_images(techniques: Sequence[Technique]) -> bool:
    return any(technique.card.kind in (Kind.IMAGES, Kind.NUMBERS) for technique in techniques)


def couples(techniques: Sequence[Technique]) -> bool:
    """Whether one of them serves losses that compare the rows of a window."""
    return any(Stage.COUPLING in technique.card.stages for technique in techniques)


def examples() -> list[Technique]:
    """Every technique there is, with its example settings."""
    return [technique.example() for technique in discover().values()]


def find_examples(*names: str) -> tuple[Technique, ...]:
    """Some of the examples by name."""
    return tuple(discover()[name].example() for name in names)


def singles() -> list[tuple[Technique, ...]]:
    """Each technique alone, and none."""
    return [(), *((technique,) for technique in examples())]


WITHOUT_MOMENTUM = frozenset({"adafactor"})


def fitted(techniques: tuple[Technique, ...]) -> tuple[Technique, ...]:
    """The examples with settings that suit each other: a schedule moves no momentum where the optimizer has none."""
    if not any(technique.card.name in WITHOUT_MOMENTUM for technique in techniques):
        return techniques
    return tuple(
        replace(technique, momentum=None) if isinstance(technique, OneCycle) else technique
        for technique in techniques
    )


def legal_pairs() -> list[tuple[Technique, ...]]:
    """Every two techniques that composition does not refuse."""
    return [fitted(pair) for pair in itertools.combinations(examples(), 2) if is_legal(pair)]


def together() -> tuple[Technique, ...]:
    """As many as compose: each one, in order, that those before it allow."""
    chosen: tuple[Technique, ...] = ()
    for technique in examples():
        if is_legal((*chosen, technique)):
            chosen = (*chosen, technique)
    return fitted(chosen)


def singles_and_together() -> list[tuple[Technique, ...]]:
    """Each alone, and as many as compose; the pairs are in test_matrix.py."""
    return [*singles(), together()]


def is_legal(techniques: Sequence[Technique]) -> bool:
    try:
        check(techniques)
    except PlanConflict:
        return False
    return True


def name_of(techniques: object) -> str | None:
    """Names joined, for the ids of tests."""
    if isinstance(techniques, Technique):
        return techniques.card.name
    if callable(techniques):
        return techniques.__name__
    if not isinstance(techniques, tuple):
        return None
    if len(techniques) > 2:
        return "together"
    return "+".join(technique.card.name for technique in techniques) or "plain"


def of_family(family: Family) -> list[Technique]:
    return [technique for technique in examples() if technique.card.family is family]


def make_step(
    problem: Problem,
    techniques: Sequence[Technique],
    *,
    micro_batch: int | None = None,
    dtype: torch.dtype = torch.float64,
    dropout: float = 0.0,
    momentum: float = 0.9,
    model_seed: int = 1,
    nominal: float = 1.0,
) -> Step:
    """A step with the techniques; with plain SGD, which shows the scale of a gradient, unless one is an optimizer."""
    model = problem.model(dtype, dropout, model_seed)
    optimizer = plain_optimizer(model, techniques, momentum)
    return Step(
        model,
        optimizer,
        problem.loss,
        techniques,
        micro_batch=micro_batch,
        total_updates=TOTAL_UPDATES,
        forward=problem.forward,
        nominal=nominal,
    )


def plain_optimizer(
    model: nn.Module, techniques: Sequence[Technique], momentum: float
) -> torch.optim.Optimizer | Technique | None:
    """SGD, made by the step itself where techniques add or group parameters; None where one is an optimizer."""
    cards = [technique.card for technique in techniques]
    if any("optimizer" in card.seams for card in cards):
        return None
    if any("groups" in card.seams or card.stage("prepare") is not None for card in cards):
        return find("sgd")(learning_rate=0.05, momentum=momentum)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)


def gradients(step: Step) -> dict[str, Tensor]:
    """Copies of what the last update was made from."""
    named = step.model.named_parameters()
    return {name: p.grad.detach().clone() for name, p in named if p.grad is not None}


def weights(step: Step) -> dict[str, Tensor]:
    """Copies of the trained weights."""
    return {name: p.detach().clone() for name, p in step.model.named_parameters()}


def evaluated_weights(step: Step) -> dict[str, Tensor]:
    """Copies of the weights that are evaluated and exported."""
    with step.seams.weights(step.model):
        return weights(step)


def saved(step: Step) -> dict[str, Any]:
    """The state, as a process that starts later would read it from tensors and JSON."""
    state: dict[str, Any] = _copied(step.state_dict())
    return state


def tensors(tree: Any, path: str = "") -> dict[str, Any]:
    """Every leaf of nested dicts and lists by its path."""
    if isinstance(tree, dict):
        pairs = [(f"{path}/{key}", value) for key, value in tree.items()]
    elif isinstance(tree, (list, tuple)):
        pairs = [(f"{path}/{place}", value) for place, value in enumerate(tree)]
    else:
        return {path: tree}
    return {name: leaf for key, value in pairs for name, leaf in tensors(value, key).items()}


def differences(first: Any, second: Any) -> list[str]:
    """Paths at which two states are not the same bit for bit."""
    one, other = tensors(first), tensors(second)
    missing = [f"{path} is on one side only" for path in sorted(set(one) ^ set(other))]
    return missing + [path for path in one if path in other and not _same(one[path], other[path])]


def besides_scale(step: Step, paths: set[str]) -> set[str]:
    """The paths that are not of the loss scale, which alone may change when a window is not finite."""
    names = [name for name, state in step.seams.states.items() if state is step.seams.scale]
    return {path for path in paths if not any(path.startswith(f"/techniques/{name}/") for name in names)}


def relative_error(found: dict[str, Tensor], expected: dict[str, Tensor], floor: float = 1e-3) -> float:
    """Largest relative L2 error of a tensor.

    A tensor that is zero but for rounding (an attention's key bias has no gradient) is measured by `floor` times
    the length of all tensors together.
    """
    assert set(found) == set(expected), f"on one side only: {set(found) ^ set(expected)}"
    total = torch.cat([tensor.double().flatten() for tensor in expected.values()]).norm()
    errors = [
        (found[name].double() - tensor.double()).norm() / torch.maximum(tensor.double().norm(), floor * total)
        for name, tensor in expected.items()
    ]
    return float(torch.stack(errors).nan_to_num(nan=float("inf")).max())


def cast(window: Window, dtype: torch.dtype) -> Window:
    """A deep copy with floating tensors in `dtype`."""
    return {key: _cast(value, dtype) for key, value in window.items()}


def poisoned(window: Window, value: float) -> Window:
    """The window with `value` in the floating inputs of its first and its last row."""
    window = copy.deepcopy(window)
    entry = next(name for name in ("context", "numbers", "pixels", "pixel_values") if name in window)
    floating = window["context"]["numbers"]["features"] if entry == "context" else window[entry]
    floating[[0, -1]] = value  # a row alone may pass a block that stochastic depth leaves out
    return window


def unlabelled(window: Window) -> Window:
    """The window without any label that counts."""
    return {**copy.deepcopy(window), "labels": torch.full_like(window["labels"], IGNORED)}


def with_micro_batch(step: Step, micro_batch: int | None) -> Step:
    """The same step, cutting its windows otherwise from now on."""
    step.micro_batch = micro_batch
    return step


def _copied(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_copied(value) for value in tree]
    if isinstance(tree, Tensor):
        return tree.detach().clone(memory_format=torch.contiguous_format)  # as a file holds it
    assert tree is None or isinstance(tree, (bool, int, float, str)), f"a checkpoint cannot hold {type(tree)}"
    return tree


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, dict):
        return {key: _cast(entry, dtype) for key, entry in value.items()}
    if isinstance(value, Tensor):
        return value.to(dtype, copy=True) if value.is_floating_point() else value.clone()
    return list(value)


def _texts(per_token: bool) -> Callable[[Sequence[int]], list[Window]]:
    def make(rows: Sequence[int]) -> list[Window]:
        source = torch.Generator().manual_seed(7)
        return [_text(count, per_token, source) for count in rows]

    return make


def _text(rows: int, per_token: bool, source: torch.Generator) -> Window:
    lengths = torch.randint(2, LONGEST + 1, (rows,), generator=source)
    longest = int(lengths.max())
    mask = (torch.arange(longest) < lengths.unsqueeze(1)).long()
    ids = torch.randint(1, VOCABULARY, (rows, longest), generator=source) * mask
    labels = torch.randint(0, VOCABULARY, (rows, longest) if per_token else (rows,), generator=source)
    ignored = torch.rand(labels.shape, generator=source) < 0.2
    ignored[0] = False  # something always counts
    if per_token:
        ignored |= mask == 0
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "context": {
            "names": [f"row {row}" for row in range(rows)],
            "numbers": {"features": torch.randn(rows, FEATURES, generator=source)},
        },
        "labels": labels.masked_fill(ignored, IGNORED),
    }


def _numbers(rows: Sequence[int]) -> list[Window]:
    source = torch.Generator().manual_seed(11)
    return [
        {
            "numbers": torch.randn(count, 5, generator=source),
            "labels": torch.randint(0, 3, (count,), generator=source),
        }
        for count in rows
    ]


def _images(name: str) -> Callable[[Sequence[int]], list[Window]]:
    def make(rows: Sequence[int]) -> list[Window]:
        source = torch.Generator().manual_seed(13)
        return [
            {
                name: torch.randn(count, 1, IMAGE, IMAGE, generator=source),
                "labels": torch.randint(0, 3, (count,), generator=source),
            }
            for count in rows
        ]

    return make


def _loss_of_rows(techniques: Sequence[Technique]) -> str | Loss:
    return _rows_against_rows if couples(techniques) else "cross_entropy"


def _classified(labels_per_token: bool) -> Callable[[Sequence[int]], list[Window]]:
    def make(rows: Sequence[int]) -> list[Window]:
        made = _texts(per_token=labels_per_token)(rows)
        for window in made:
            del window["context"]
            if not labels_per_token:
                window["labels"] = window["labels"].clamp(max=2)
        return made

    return make


def _contrastive(outputs: Any, data: Any) -> LossTerms:
    return LossTerms(*contrastive(outputs, data))


def _rows_against_rows(outputs: Any, data: Any) -> LossTerms:
    logits = outputs if isinstance(outputs, Tensor) else outputs["logits"]
    pairs = {"logits": logits, "query": logits, "key": logits.roll(1, dims=-1)}
    return LossTerms(*contrastive(pairs, data))


def _averaged(model: nn.Module, data: Any) -> dict[str, Tensor]:
    mask = data["attention_mask"]
    logits = model(input_ids=data["input_ids"], attention_mask=mask).logits
    weight = mask.unsqueeze(-1).to(logits.dtype)
    return {"logits": (logits * weight).sum(dim=1) / weight.sum(dim=1)}


def _bert(dropout: float) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=LONGEST,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=3,
    )
    return BertForSequenceClassification(config)


def _of_any_size(model: nn.Module, data: Any) -> Any:
    return model(pixel_values=data["pixel_values"], interpolate_pos_encoding=True)


def _vit(dropout: float) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=IMAGE,
        patch_size=2,
        num_channels=1,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * WIDTH,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=3,
    )
    return ViTForImageClassification(config)


def _gpt2(dropout: float) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LONGEST,
        n_embd=WIDTH,
        n_layer=1,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    return GPT2LMHeadModel(config)
