"""Recompute: what blocks compute is not kept for backward, but computed again there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from snugfit.core.batch import Batch
from snugfit.core.layers import repeated_blocks
from snugfit.core.technique import Card, Context, Family, Seams, Stage, Technique
from snugfit.core.tree import leaves
from snugfit.errors import SettingError, nearest
from snugfit.kit.activations.block_budget import Budget, shape_of
from snugfit.kit.activations.call_tensors import apart, taken_apart
from snugfit.kit.activations.saved_tensors import storage_of
from snugfit.kit.batch_norm import has_batch_norm
from snugfit.kit.buffers import MovedBuffers
from snugfit.kit.language_models.kv_cache import caches_among, caching_configs, without_caches
from snugfit.kit.module_patterns import find_modules, require_list
from snugfit.kit.packing.packed_rows import rows_of
from snugfit.kit.patched_forward import replaced_forward
from snugfit.kit.precision.autocast import casting_anew
from snugfit.kit.row_wise.row_wise import RowWise
from snugfit.units import parse_bytes

OPERATIONS = {
    "matmul": ("mm", "addmm", "bmm", "baddbmm"),
    "attention": (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "flex_attention",
        "_varlen_attn",
    ),
    "convolution": ("convolution",),
}
"""Torch's operations by the names that `keep` takes."""

Forward = Callable[..., Any]


@contextmanager
def recomputing(blocks: Iterable[nn.Module], keep: Collection[str] = ()) -> Iterator[None]:
    """Temporarily keep only the inputs of what the blocks compute; backward belongs within too.

    Args:
        blocks: any modules; none may lie within another, where it would be computed three times.
        keep: kinds of operations, of `OPERATIONS`, whose outputs are kept too.

    >>> block, inputs = nn.Sequential(nn.Linear(2, 2), nn.Tanh()), torch.ones(1, 2)
    >>> block(inputs).sum().backward()
    >>> plain = block[0].weight.grad.clone()
    >>> block.zero_grad()
    >>> with recomputing([block]):
    ...     block(inputs).sum().backward()
    >>> torch.equal(block[0].weight.grad, plain)
    True
    """
    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(replaced_forward(block, recomputed(block, block.forward, keep)))
        yield


def recomputed(
    block: nn.Module, forward: Forward, keep: Collection[str] = (), name: str | None = None
) -> Forward:
    """`forward` of `block`, computed again in backward, from the same random numbers, buffers, dicts and lists.

    Raises:
        SettingError: when it is called, and changes a tensor that it is given in place.
    """
    about = name or type(block).__name__
    # torch's recurrent layers write over their products without torch noting it
    if any(isinstance(part, (nn.RNNBase, nn.RNNCellBase)) for part in block.modules()):
        keep = ()
    contexts: dict[str, Any] = {"context_fn": lambda: _contexts(keep, about)} if keep else {}

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        # torch keeps as saved tensors, which others may put elsewhere, only those that stand among the arguments themselves
        call = (args, tuple(kwargs.values()))
        tensors, rebuild = taken_apart(call)
        _, rebuild_again = taken_apart(apart(call))  # as it is before the block changes it
        names = tuple(kwargs)
        moved = MovedBuffers(block)
        passed = False

        def once(*given: Tensor) -> Any:
            nonlocal passed
            first, passed = not passed, True
            positional, named = rebuild(given) if first else apart(rebuild_again(given))
            versions = [tensor._version for tensor in given]
            with moved.noted() if first else moved.rewound():
                outputs = forward(*positional, **dict(zip(names, named, strict=True)))
            if first and versions != [tensor._version for tensor in given]:
                raise SettingError(
                    "recompute.blocks",
                    f"'{about}' changes what it is given in place, so it cannot be computed again from it",
                    "Make its first operation not in place, or leave the block out.",
                )
            return outputs

        # a block met again would do without the casts that autocast keeps, and then compute other operations in backward
        with casting_anew() if keep else nullcontext():
            return checkpoint(once, *tensors, use_reentrant=False, **contexts)

    return run


def _contexts(
    keep: Collection[str], about: str
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return what a block computes within, in forward and again in backward."""
    saved = _SavedOutputs()
    forward, again = create_selective_checkpoint_contexts(policy(keep, about, saved))
    if _TELLS_OUTPUTS or torch.compiler.is_compiling():
        return forward, again
    return _within(saved, forward), again


_TELLS_OUTPUTS = hasattr(SelectiveCheckpointContext(is_recompute=False), "op_output")
"""Whether torch asks with an operation's outputs; torch 2.11 asks before there are any."""


@contextmanager
def _within(outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> Iterator[None]:
    """Temporarily enter both, the outer one first."""
    with outer, inner:
        yield


class _SavedOutputs(TorchDispatchMode):
    """The memory of outputs that are kept; as a mode it notes those of the next operation itself, if it `is_next`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: set[StorageWeakRef] = set()
        self.is_next = False

    def note(self, outputs: Any) -> None:
        self.storages.update(storage_of(tensor) for tensor in leaves(outputs))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_saved, self.is_next = self.is_next, False
        outputs = func(*args, **(kwargs or {}))
        if is_saved:
            self.note(outputs)
        return outputs


def policy(keep: Collection[str], about: str, saved: _SavedOutputs) -> Callable[..., CheckpointPolicy]:
    """Return what torch asks about each operation of a block, for one forward: keep its outputs or compute them again.

    One that draws random numbers is computed again: left out, it would move the numbers of those behind it. So is one that writes into a
    tensor that it is given.

    Raises:
        SettingError: when an operation of the block writes over what was kept of another.
    """
    names = {name for kind in keep for name in OPERATIONS[kind]}

    def decide(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        name = operation.name().partition("::")[2].partition(".")[0]
        written = () if context.is_recompute or not saved.storages else _written(operation, args, kwargs)
        if any(storage_of(each) in saved.storages for each in written):
            raise SettingError(
                "recompute.keep",
                f"'{about}' writes over an output that was to be kept, by '{name}'",
                f"Make that operation not in place, or leave the kind of output out of keep ({', '.join(keep)}).",
            )
        if name not in names or _writes(operation) or _draws(operation, args, kwargs):
            return CheckpointPolicy.PREFER_RECOMPUTE
        if _TELLS_OUTPUTS:
            saved.note(context.op_output)
        else:
            saved.is_next = not context.is_recompute
        return CheckpointPolicy.MUST_SAVE

    return decide


_UNNOTED = frozenset({"aten::unsafe_split", "aten::unsafe_split_with_sizes", "aten::unsafe_chunk"})
"""Operations that give parts of a tensor which may be written over without torch noting it."""


def _writes(operation: Any) -> bool:
    return hasattr(operation, "_schema") and operation._schema.is_mutable is True


def _written(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors among the arguments that the operation writes into, or gives parts of to be written into."""
    if _writes(operation):
        arguments = operation._schema.arguments
        given = {**{a.name: value for a, value in zip(arguments, args, strict=False)}, **kwargs}
        written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        yield from leaves([given[name] for name in written if name in given])
    elif operation.name().partition(".")[0] in _UNNOTED:
        yield args[0]


def _draws(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    names = (
        [argument.name for argument in operation._schema.arguments] if hasattr(operation, "_schema") else []
    )
    return {**dict(zip(names, args, strict=False)), **kwargs}.get("dropout_p") not in (None, 0.0)


@dataclass(frozen=True)
class Recompute(Technique):
    """Keep the inputs of blocks and compute the rest again in backward; one of `keep`, `budget` and `rows` says otherwise."""

    blocks: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    budget: str | int | None = None
    rows: int | None = None
    inputs_every: int = 1

    card: ClassVar[Card] = Card(
        name="recompute",
        summary="Keeps only the inputs of blocks for backward, and computes the rest again there.",
        aliases=("gradient checkpointing", "activation checkpointing", "rematerialization"),
        family=Family.PLACEMENT,
        source="Chen et al. 2016, arXiv:1604.06174; torch.utils.checkpoint, non-reentrant and selective",
        seams=("modules",),
        stages=(Stage.RECOMPUTE,),
        saves_memory=True,
        cost="a second forward of the blocks: about a third more time; less with keep or budget",
        use_when="activations are what does not fit: long texts, large micro-batches, deep models",
    )

    def __post_init__(self) -> None:
        given = [name for name in ("keep", "budget", "rows") if getattr(self, name) not in ((), None)]
        if len(given) > 1:
            raise SettingError(
                f"recompute.{given[1]}",
                f"cannot be given beside {given[0]}: each says what is kept of a block",
                "Remove one.",
            )
        if self.rows is not None:
            self.require("rows", self.rows >= 1, "at least 1")
        self.require("inputs_every", self.inputs_every >= 1, "at least 1")
        if self.inputs_every > 1 and self.rows is None:
            raise SettingError(
                "recompute.inputs_every",
                f"got {self.inputs_every} without rows, and only what is computed by rows is computed again from the block before",
                "Add rows, such as rows: 1, or remove it.",
            )
        if self.budget is not None:
            parse_bytes(self.budget, "recompute.budget")

    @classmethod
    def rungs(cls) -> tuple[Self, ...]:
        return cls(keep=("attention", "matmul")), cls()

    @property
    def reads_weights(self) -> bool:
        return False

    def prepare(self, model: nn.Module) -> nn.Module:
        if not self._blocks(model):
            raise SettingError(
                "recompute.blocks",
                f"{type(model).__name__} is one module without parts, so nothing would be saved",
                "Remove it.",
            )
        return model

    def seams(self, context: Context) -> Seams:
        model = context.model
        blocks = self._blocks(model)
        self._check_keep()
        budget = (
            None
            if self.budget is None
            else Budget(parse_bytes(self.budget, "recompute.budget"), "recompute.budget")
        )
        by_rows = (
            {}
            if self.rows is None
            else {
                name: RowWise(block, self.rows, "recompute.rows", name, self.inputs_every)
                for name, block in blocks.items()
            }
        )
        caching = caching_configs(model)

        def replacement(
            name: str, forward: Forward, batch: Batch, names_to_keep: frozenset[str] | None
        ) -> Forward:
            again = recomputed(blocks[name], forward, self.keep, name)
            if by_rows:
                again = partial(_by_rows, by_rows[name], forward, again, batch.rows)
            if budget is not None and names_to_keep is None:
                again = budget.measured(name, blocks[name], forward, again)
            return partial(_uncached, name, again)

        @contextmanager
        def modules(batch: Batch) -> Iterator[None]:
            if not torch.is_grad_enabled():
                yield
                return
            shape = shape_of(batch)
            names_to_keep = frozenset() if budget is None else budget.names_to_keep(shape)
            if budget is not None and names_to_keep is None:
                budget.begin()
            with without_caches(caching), ExitStack() as stack:
                for name, block in blocks.items():
                    if name not in (names_to_keep or ()):
                        forward = replacement(name, block.forward, batch, names_to_keep)
                        stack.enter_context(replaced_forward(block, forward))
                yield
            if budget is not None and names_to_keep is None:
                budget.choose(shape, batch.rows)

        return Seams(modules=modules)

    def _blocks(self, model: nn.Module) -> dict[str, nn.Module]:
        blocks = repeated_blocks(model) if not self.blocks else outermost(model, self.blocks)
        for name, block in blocks.items():
            if self.rows is not None and has_batch_norm(block):
                raise SettingError(
                    "recompute.rows",
                    f"'{name}' holds batch norm, whose statistics are of all rows of a micro-batch",
                    "Leave the block out by blocks, or remove rows.",
                )
        return blocks

    def _check_keep(self) -> None:
        require_list(self.keep, "recompute.keep")
        for kind in self.keep:
            if kind not in OPERATIONS:
                raise SettingError("recompute.keep", f"there is no '{kind}'", nearest(kind, OPERATIONS))


def outermost(model: nn.Module, patterns: tuple[str, ...]) -> dict[str, nn.Module]:
    """Return the modules that match and lie in no other that does.

    Raises:
        SettingError: a pattern matches none, or a list of modules, which has no forward.
    """
    modules: dict[str, nn.Module] = {}
    for name in find_modules(model, patterns, "recompute.blocks"):
        module = model.get_submodule(name)
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            raise SettingError(
                "recompute.blocks", f"'{name}' is a list of modules", f"Name its entries: '{name}.*'."
            )
        if not any(name.startswith(f"{outer}.") for outer in modules):
            modules[name] = module
    return modules


def _by_rows(
    rows: RowWise, forward: Forward, whole: Forward, batch_rows: int, *args: Any, **kwargs: Any
) -> Any:
    total = rows_of(batch_rows)
    if total <= rows.rows or not torch.is_grad_enabled():
        return whole(*args, **kwargs)
    return rows(forward, total, args, kwargs)


def _uncached(name: str, forward: Forward, *args: Any, **kwargs: Any) -> Any:
    """Refuses a cache of keys and values, which a second computation would fill twice."""
    for cache in caches_among((*args, *kwargs.values())):
        if torch.is_grad_enabled():
            raise SettingError(
                "recompute",
                f"'{name}' is given a {type(cache).__name__}, which would be filled a second time in backward",
                "Call the model without use_cache and past_key_values in training.",
            )
    return forward(*args, **kwargs)
