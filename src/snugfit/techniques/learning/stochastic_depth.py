"""Stochastic depth: residual blocks are left out at random during training, the deeper the more often."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.random import preserved_randomness
from snugfit.core.technique import Card, Context, Family, Moment, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.buffers import Buffers
from snugfit.kit.module_patterns import find_modules
from snugfit.kit.patched_forward import replaced_forward
from snugfit.system.device_copies import to_device

ROW, WINDOW = "row", "window"


def drop_rates(blocks: int, rate: float) -> list[float]:
    """Return how often each block is left out: rising linearly with the depth to `rate` at the last one.

    >>> drop_rates(4, rate=0.5)
    [0.125, 0.25, 0.375, 0.5]
    """
    return [rate * (depth + 1) / blocks for depth in range(blocks)]


def dropped_rows(inputs: Tensor, outputs: Tensor, keep: Tensor, rate: float) -> Tensor:
    """Return what a residual block gives: where a row is not kept its input, else its change of it, divided by 1 - rate.

    The expectation is what the block gives in evaluation, so that nothing is scaled there.

    Args:
        inputs, outputs: of the block, shape (rows, ...).
        keep: whether each row goes through the block, shape (rows,).

    >>> dropped_rows(torch.ones(2, 1), torch.full((2, 1), 4.0), torch.tensor([True, False]), rate=0.5)
    tensor([[7.],
            [1.]])
    """
    mask = keep.view(-1, *[1] * (inputs.ndim - 1))
    return inputs + torch.where(mask, (outputs - inputs) / (1 - rate), 0.0)


def residual_blocks(model: nn.Module, pattern: str | None = None) -> dict[str, nn.Module]:
    """Return the blocks by name, in the order of the model.

    Args:
        pattern: of module names, whole or their end, such as `encoder.layer.*`; what lies within a block is none. Without
            one they are the entries of the longest `nn.ModuleList`, or of a model without such a list torch's transformer
            layers.
    Raises:
        SettingError: the pattern matches nothing, or only a list of modules.
    """
    if pattern is None:
        lists = [
            (f"{name}.{place}" if name else place, part)
            for name, blocks in _longest_list(model)
            for place, part in blocks.named_children()
        ]
        layers = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
        return dict(lists or [(n, m) for n, m in model.named_modules() if isinstance(m, layers)])
    blocks_by_name: dict[str, nn.Module] = {}
    names = find_modules(model, [pattern], "stochastic_depth.blocks")
    for name in names:
        module = model.get_submodule(name)
        inside = any(name.startswith(f"{block}.") for block in blocks_by_name)
        if not inside and not isinstance(module, nn.ModuleList):
            blocks_by_name[name] = module
    if not blocks_by_name:
        raise SettingError(
            "stochastic_depth.blocks",
            f"'{names[0]}' is a list of modules",
            f"Name its entries: '{names[0]}.*'.",
        )
    return blocks_by_name


@dataclass(frozen=True)
class StochasticDepth(Technique):
    """Leave residual blocks out at random: for each row by itself, or for a whole window, which saves their time."""

    rate: float = 0.1
    mode: str = ROW
    blocks: str | None = None

    card: ClassVar[Card] = Card(
        name="stochastic_depth",
        summary="Leaves residual blocks out at random, the deeper the more often; evaluation uses all of them.",
        aliases=("drop path", "layer dropout"),
        family=Family.LEARNING,
        source="Huang et al. 2016, arXiv:1603.09382; scaled as by Touvron et al. 2021, arXiv:2012.12877",
        seams=("batch", "modules"),
        stages=(Stage.DRAW, Stage.COMPUTE),
        cost="row: a copy of the hidden states for each block; window: saves up to half of `rate` of the blocks' time",
        use_when="deep residual nets and vision transformers trained long; window where speed is wanted",
    )

    def __post_init__(self) -> None:
        self.require("rate", 0 < self.rate < 1, "in (0, 1)")
        self.require("mode", self.mode in (ROW, WINDOW), "'row' or 'window'")

    @classmethod
    def example(cls) -> Self:
        return cls(rate=0.5)

    @property
    def reads_weights(self) -> bool:
        return False

    def prepare(self, model: nn.Module) -> nn.Module:
        if not residual_blocks(model, self.blocks):
            names = ", ".join(name for name, _ in model.named_children()) or "none"
            raise SettingError(
                "stochastic_depth.blocks",
                "the model has no list of blocks",
                f"Give a pattern of its residual blocks' names; it has: {names}.",
            )
        return model

    def seams(self, context: Context) -> Seams:
        blocks = residual_blocks(context.model, self.blocks)
        rates = drop_rates(len(blocks), self.rate)
        name = self.card.name
        outputs_of: dict[str, Callable[[Any], Any]] = {}

        def batch(window: Batch, moment: Moment) -> Batch:
            if self.mode == WINDOW:
                source = random.Random(moment.seed)
                return window.with_extras(**{name: tuple(source.random() >= rate for rate in rates)})
            draws = window.own(torch.rand(window.total, len(rates), generator=moment.generator()))
            return window.with_extras(**{name: to_device(draws >= torch.tensor(rates), context.device)})

        @contextmanager
        def forward(batch: Batch) -> Iterator[None]:
            keep = batch.extras.get(name)
            if keep is None:  # scored, not trained
                yield
                return
            with ExitStack() as stack:
                for place, (block_name, block) in enumerate(blocks.items()):
                    if self.mode == WINDOW and not keep[place]:
                        bypass = partial(_bypass, block_name, block, block.forward, outputs_of)
                        stack.enter_context(replaced_forward(block, bypass))
                        continue
                    rows = keep[:, place] if self.mode == ROW else None
                    hook = partial(_thinned, block_name, rows, rates[place], outputs_of)
                    stack.callback(block.register_forward_hook(hook, with_kwargs=True).remove)
                yield

        return Seams(batch=batch, modules=forward)


def _thinned(
    name: str,
    keep: Tensor | None,
    rate: float,
    outputs_of: dict[str, Callable[[Any], Any]],
    _block: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    outputs: Any,
) -> Any:
    """Return a forward hook: the block's outputs, thinned out."""
    inputs = _hidden(args, kwargs)
    hidden = _first(outputs)
    _require_residual(name, inputs, hidden, None if keep is None else keep.shape[0])
    assert inputs is not None
    outputs_of[name] = _structure(outputs)
    if keep is None:
        thinned = inputs + (hidden - inputs) / (1 - rate)
    else:
        thinned = dropped_rows(inputs, hidden, keep, rate)
    return (thinned, *outputs[1:]) if isinstance(outputs, tuple) else thinned


def _bypass(
    name: str,
    block: nn.Module,
    forward: Callable[..., Any],
    outputs_of: dict[str, Callable[[Any], Any]],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Return a block's forward when it is left out: gives its input, in the form of its outputs."""
    inputs = _hidden(args, kwargs)
    if name not in outputs_of:  # it has not run yet, so that the form of its outputs is to be seen first
        device = torch.device("cpu") if inputs is None else inputs.device
        with torch.no_grad(), preserved_randomness(device), Buffers(block).restore_on_exit():
            outputs = forward(*args, **kwargs)
        _require_residual(name, inputs, _first(outputs), None)
        outputs_of[name] = _structure(outputs)
    return outputs_of[name](inputs)


def _structure(outputs: Any) -> Callable[[Any], Any]:
    """Return how a hidden state is given: by itself, or first in a tuple whose other entries are left empty."""
    if not isinstance(outputs, tuple):
        return lambda hidden: hidden
    others = (None,) * (len(outputs) - 1)
    return lambda hidden: (hidden, *others)


def _first(outputs: Any) -> Any:
    return outputs[0] if isinstance(outputs, tuple) else outputs


def _hidden(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)


def _require_residual(name: str, inputs: Tensor | None, outputs: Any, rows: int | None) -> None:
    output_form = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    input_shape = None if inputs is None else tuple(inputs.shape)
    if inputs is None or output_form != input_shape:
        raise SettingError(
            "stochastic_depth.blocks",
            f"'{name}' turns {input_shape} into {output_form}, so it is no residual block: leaving it out would not give its "
            "input",
            "Give a pattern that names residual blocks only.",
        )
    if rows is not None and inputs.shape[0] != rows:
        raise SettingError(
            "stochastic_depth.mode",
            f"'{name}' works on {input_shape} for {rows} rows, so its first dimension is not the row",
            "Use mode: window.",
        )


def _longest_list(model: nn.Module) -> list[tuple[str, nn.ModuleList]]:
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    return sorted(lists, key=lambda entry: -len(entry[1]))[:1]
