"""The checks that refuse computations which cannot be done some rows at a time, before they go wrong unseen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.random import preserved_randomness
from snugfit.core.tree import leaves
from snugfit.errors import SettingError
from snugfit.kit.activations.saved_tensors import watched_graphs
from snugfit.kit.buffers import Buffers, Mark, marks_of
from snugfit.kit.packing.example_attention import Spans
from snugfit.kit.precision.autocast import casting_anew

# spans are passed over by attention where only some of their rows are computed
_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device, Spans)


class RowChecks:
    """Refuses what a module does that makes its rows, `rows` at a time, something else than all of them at once.

    Args:
        setting: which makes it do that.
        name: the module's.
    """

    def __init__(self, module: nn.Module, rows: int, setting: str, name: str) -> None:
        self.module, self.rows = module, rows
        self._setting, self._block = setting, f"'{name}'"
        self._tried = False
        self._checked = False

    def require_rows(self, inputs: Sequence[Tensor], total: int, arguments: Any) -> None:
        """Refuse arguments that are neither one entry a row nor the same for all rows."""
        if not any(tensor.ndim and tensor.shape[0] == total for tensor in inputs):
            raise SettingError(
                self._setting,
                f"{self._block} gets no tensor with {total} rows",
                "Let its first dimension be the row, leave the block out by blocks, or remove rows.",
            )
        for tensor in inputs:
            if tensor.ndim and tensor.shape[0] not in (1, total):
                raise SettingError(
                    self._setting,
                    f"{self._block} gets a tensor of shape {tuple(tensor.shape)} for {total} rows",
                    "Let its first dimension be the row, or 1 where it is the same for all rows; else leave the block out "
                    "by blocks, or remove rows.",
                )
        for other in _others(arguments):
            if isinstance(other, (list, dict)):
                plain = next(leaves(other), None) is None
            else:
                plain = isinstance(other, _PLAIN) or callable(other)
            if not plain:
                raise SettingError(
                    self._setting,
                    f"{self._block} gets a {type(other).__name__}, whose rows cannot be taken apart",
                    "Leave the block out by blocks, or remove rows.",
                )

    def require_tuples(self, outputs: Any) -> None:
        """Refuse outputs that hold tensors where they cannot be put together: not in a tuple of tensors and tuples."""
        if any(next(leaves(other), None) is not None for other in _others(outputs)):
            raise SettingError(
                self._setting,
                f"{self._block} returns tensors within a dict, a list or an object, whose rows cannot be put together",
                "Leave the block out by blocks, or remove rows.",
            )

    def try_other_rows(
        self, run: Callable[[Sequence[Tensor]], list[Tensor]], inputs: Sequence[Tensor], total: int
    ) -> None:
        """Try once a forward on a number of rows that is no other size of a tensor: what is cut by mistake then fits nowhere.

        With gradients, which show whether anything of it lives on that was not returned.
        """
        if self._tried:
            return
        sizes = {total, *(size for tensor in inputs for size in tensor.shape[1:])}
        rows = next(rows for rows in range(2, len(sizes) + 3) if rows not in sizes)
        device = inputs[0].device
        places = torch.arange(rows, device=device) % total
        leafs = [tensor.detach().requires_grad_(can_learn(tensor)) for tensor in inputs]
        with (
            torch.enable_grad(),
            watched_graphs() as graph_lives,
            casting_anew(),
            preserved_randomness(device),
            Buffers(self.module).restore_on_exit(),
        ):
            given = [tensor[places] if is_cut(tensor, total) else tensor.clone() for tensor in leafs]
            versions = [tensor._version for tensor in given]
            try:
                outputs = run(given)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, IndexError, ValueError) as error:
                raise SettingError(
                    self._setting,
                    f"{self._block} cannot work on {rows} rows instead of {total} ({error}): one of its tensors with {total} entries does "
                    "not hold rows",
                    "Give another micro_batch, leave the block out by blocks, or remove rows.",
                ) from error
            self.require_parts(outputs, rows)
            if versions != [tensor._version for tensor in given]:
                raise SettingError(
                    self._setting,
                    f"{self._block} changes what it is given in place, so it cannot be computed again from it",
                    "Make its first operation not in place, leave the block out by blocks, or remove rows.",
                )
            del outputs, given
            if graph_lives():
                raise SettingError(
                    self._setting,
                    f"{self._block} keeps something of what it computes beside what it returns, in an attribute, a hook or a list, which "
                    "would be that of some rows, and without a gradient",
                    "Leave the block out by blocks, or remove rows.",
                )
        self._tried = True

    def require_parts(self, outputs: Sequence[Tensor], rows: int) -> None:
        """Refuse outputs that are not one entry a row."""
        for tensor in outputs:
            if tensor.ndim == 0 or tensor.shape[0] != rows:
                raise SettingError(
                    self._setting,
                    f"{self._block} gives a tensor of shape {tuple(tensor.shape)} for {rows} rows",
                    "Let its first dimension be the row, leave the block out by blocks, or remove rows.",
                )

    def check_learned(self, outputs: Sequence[Tensor], known: Sequence[Tensor]) -> None:
        """Refuse, once, a graph that ends at others than the known leaves: they would get no gradient."""
        if self._checked:
            return
        own = set(map(id, known))
        nodes = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
        seen = set(nodes)
        while nodes:
            node = nodes.pop()
            leaf = getattr(node, "variable", None)
            if leaf is not None and id(leaf) not in own:
                raise SettingError(
                    self._setting,
                    f"{self._block} learns a weight of shape {tuple(leaf.shape)} that belongs to another module or comes by another way "
                    "than its arguments, and rows would give it no gradient",
                    "Leave the block out by blocks, or remove rows.",
                )
            following = {each for each, _ in node.next_functions if each is not None} - seen
            seen |= following
            nodes.extend(following)
        self._checked = True

    def require_still(self, before: Mapping[str, Mark]) -> None:
        """Refuse buffers that a part has moved: they would move once a part, not once a micro-batch."""
        after = marks_of(self.module)
        for name, (buffer, version) in after.items():
            if name not in before or before[name][0] is not buffer or before[name][1] != version:
                raise SettingError(
                    self._setting,
                    f"{self._block} moves its buffer '{name}', which would happen once for each {self.rows} rows instead of once",
                    "Leave the block out by blocks, or remove rows.",
                )


def is_cut(tensor: Tensor, total: int) -> bool:
    """Return whether it holds one entry a row."""
    return tensor.ndim > 0 and tensor.shape[0] == total


def can_learn(tensor: Tensor) -> bool:
    """Return whether a gradient can come to it."""
    return tensor.is_floating_point() or tensor.is_complex()


def _others(tree: Any) -> Iterator[Any]:
    if isinstance(tree, tuple):
        for entry in tree:
            yield from _others(entry)
    elif not isinstance(tree, Tensor):
        yield tree
