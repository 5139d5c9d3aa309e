"""The private parts of torch that the observer reads: all of them, looked up once, so that one that moved is said and harms nobody."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch

PARTS = {
    "torch.jit.trace": "torch._C._is_tracing",
    "torch.func": "torch._C._functorch.peek_interpreter_stack",
    "torch.fx": "torch.fx._symbolic_trace.is_fx_symbolic_tracing",
    "fake tensors": "torch._C._get_dispatch_mode",
    "fake tensors by name": "torch._C._TorchDispatchModeKey.FAKE",
    "batches of loaders": "torch.utils.data.dataloader._BaseDataLoaderIter",
    "profilers": "torch.autograd._profiler_enabled",
    "overrides of functions": "torch._C.DisableTorchFunction",
    "modes of dispatch": "torch._C._len_torch_dispatch_stack",
    "modes of dispatch, off": "torch.utils._python_dispatch._disable_current_modes",
    "compilations": "torch._guards.TracingContext.try_get",
    "functions that torch.compile leaves alone": "torch._disable_dynamo",
    "functions that torch.jit.script knows": "torch.jit._builtins._find_builtin",
    "functions that torch.jit.script learns": "torch.jit._builtins._register_builtin",
}
"""What each part is read for, and where it stands."""


@cache
def private_part(purpose: str) -> Any:
    """Return a private part of torch; None where this version of torch has it no longer."""
    module, _, name = PARTS[purpose].rpartition(".")
    try:
        owner = importlib.import_module(module)
    except ModuleNotFoundError:
        module, _, owner_name = module.rpartition(".")
        try:
            owner = getattr(importlib.import_module(module), owner_name)
        except (ModuleNotFoundError, AttributeError):
            return None
    return getattr(owner, name, None)


def script_as(wrapper: Any, original: Any) -> None:
    """Let torch.jit.script compile a wrapper as the function in C that it wraps, which it knows by its identity."""
    operator_of = private_part("functions that torch.jit.script knows")
    register = private_part("functions that torch.jit.script learns")
    operator = None if operator_of is None else operator_of(original)
    if operator is not None and register is not None:
        register(wrapper, operator)


def not_compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function such that torch.compile, where it comes to it, runs it as it is and warns of nothing in it."""
    leave_alone = private_part("functions that torch.compile leaves alone")

    def called(*given: Any) -> None:
        function(*given)

    left_alone: Callable[..., None] = called if leave_alone is None else leave_alone(called)
    return left_alone


def profiling_test() -> Callable[[], bool]:
    """Return a function that tells whether one of torch's profilers is on, which takes no frame of Python's.

    >>> profiling_test()()
    False
    """
    profiler: Callable[[], bool] | None = private_part("profilers")
    return bool if profiler is None else profiler  # bool() is false


def hiding() -> AbstractContextManager[Any]:
    """Return what hides the observer's own operations, for a time, from the script's modes and from its subclasses of tensors.

    Where the script has no mode of dispatch it is one of torch's own contexts in C, which takes no frame.
    """
    overrides, modes = private_part("overrides of functions"), private_part("modes of dispatch")
    without_modes = private_part("modes of dispatch, off")
    override: AbstractContextManager[Any] = nullcontext() if overrides is None else overrides()
    if modes is None or without_modes is None or not modes():
        return override
    return _together(override, without_modes())


@contextmanager
def _together(*contexts: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in contexts:
            stack.enter_context(each)
        yield


def is_compiled(module: torch.nn.Module) -> bool:
    """Return whether a call of the module runs a compiled graph.

    >>> is_compiled(torch.nn.Identity()), is_compiled(torch.compile(torch.nn.Identity()))
    (False, True)
    """
    return "_orig_mod" in module._modules or module.__dict__.get("_compiled_call_impl") is not None


def missing_parts() -> list[str]:
    """Return the private parts that this version of torch does not have, in words.

    >>> missing_parts()
    []
    """
    missing = [purpose for purpose in PARTS if private_part(purpose) is None]
    return [f"{purpose} ({PARTS[purpose]} is not in torch {torch.__version__})" for purpose in missing]


def axis_of_softmax(node: Any) -> int | None:
    """Return the axis of a softmax that the graph remembers; None where the node is none.

    >>> scores = torch.zeros(2, 3, requires_grad=True)
    >>> axis_of_softmax(scores.softmax(0).grad_fn), axis_of_softmax(scores.exp().grad_fn)
    (0, None)
    """
    if not type(node).__name__.startswith(("LogSoftmaxBackward", "SoftmaxBackward")):
        return None
    axis = getattr(node, "_saved_dim", None)
    size = size_of_result(node)
    return _signed(axis) % len(size) if isinstance(axis, int) and size else None


def _signed(number: int) -> int:
    """Return an axis that a node remembers as an unsigned number of 64 bits.

    >>> _signed(2**64 - 1), _signed(1)
    (-1, 1)
    """
    return number - 2**64 if number >= 2**63 else number


def size_of_result(node: Any) -> tuple[int, ...]:
    """Return the size of what a function gave; () where the graph does not tell.

    >>> size_of_result(torch.zeros(2, 3, requires_grad=True).exp().grad_fn)
    (2, 3)
    """
    results = getattr(node, "_input_metadata", ())
    return tuple(map(int, results[0].shape)) if results else ()


def is_half(node: Any) -> bool:
    """Return whether what a function gave is of float16; not where the graph does not tell.

    >>> values = torch.ones(2, requires_grad=True)
    >>> is_half(values.half().grad_fn), is_half(values.exp().grad_fn), is_half(values.bfloat16().grad_fn)
    (True, False, False)
    """
    results: Sequence[Any] = getattr(node, "_input_metadata", ())
    return bool(results) and results[0].dtype == torch.float16


def moved_axes(node: Any, axes: int) -> list[int] | None:
    """Return which axis each one was before a transposition; None where the graph does not tell.

    >>> moved_axes(torch.zeros(2, 3, 4, requires_grad=True).exp().permute(2, 0, 1).grad_fn, 3)
    [2, 0, 1]
    >>> moved_axes(torch.zeros(2, 3, 4, requires_grad=True).exp().transpose(1, -1).grad_fn, 3)
    [0, 2, 1]
    """
    order = list(range(axes))
    moved = getattr(node, "_saved_dims", None)
    if moved is not None:
        return [_signed(each) % axes for each in moved] if len(moved) == axes else None
    pair: list[Any] = [getattr(node, name, None) for name in ("_saved_dim0", "_saved_dim1")]
    if type(node).__name__.startswith("TBackward") and axes == 2:
        return [1, 0]
    if pair[0] is None or pair[1] is None:
        return None
    one, other = (_signed(each) % axes for each in pair)
    order[one], order[other] = other, one
    return order


def result_of(node: Any) -> torch.Tensor | None:
    """Return what a function gave that its gradient is computed from, such as a softmax; None where it is gone.

    >>> result_of(torch.zeros(2, requires_grad=True).softmax(0).grad_fn).tolist()
    [0.5, 0.5]
    """
    try:
        result = getattr(node, "_saved_result", None)
    except RuntimeError:  # it was differentiated, or changed in its place
        return None
    return result if isinstance(result, torch.Tensor) else None


def size_before_view(node: Any) -> tuple[int, ...]:
    """Return the size of what a view was taken of; () where the graph does not remember it.

    >>> size_before_view(torch.zeros(2, 3, requires_grad=True).exp().view(6).grad_fn)
    (2, 3)
    """
    return tuple(map(int, getattr(node, "_saved_self_sym_sizes", ())))


def size_of_scores(node: Any) -> tuple[int, ...]:
    """Return the size of what a loss function of torch got; () where the graph does not tell.

    >>> scores = torch.zeros(2, 3, requires_grad=True)
    >>> size_of_scores(torch.nn.functional.mse_loss(scores, torch.ones(2, 3), reduction="sum").grad_fn)
    (2, 3)
    """
    try:
        scores = getattr(node, "_saved_self", None)
    except RuntimeError:  # it was differentiated, or changed in its place
        return ()
    return tuple(scores.shape) if isinstance(scores, torch.Tensor) else ()


def saved(node: Any, name: str) -> torch.Tensor | None:
    """Return a tensor that a node keeps by this name; None where it has none, or was changed in its place since.

    >>> saved((torch.ones(2, requires_grad=True) * torch.tensor([1.0, 2.0])).grad_fn, "_saved_other").tolist()
    [1.0, 2.0]
    """
    try:
        value = getattr(node, name, None)
    except RuntimeError:  # torch's own check of the version
        return None
    return value if isinstance(value, torch.Tensor) else None


def rows_taken(node: Any) -> torch.Tensor | None:
    """Return the numbers of the rows that a node has taken by an index or a mask, also where a view follows; None for another node.

    >>> rows_taken(torch.ones(3, 1, requires_grad=True)[torch.tensor([True, False, True])].squeeze(1).grad_fn).tolist()
    [0, 2]
    """
    if type(node).__name__.startswith(("Squeeze", "View", "Reshape", "Select")):
        node = node.next_functions[0][0]
    try:
        indices = getattr(node, "_saved_indices", None) or [getattr(node, "_saved_index", None)]
    except RuntimeError:  # the index was changed in its place
        return None
    axis: Any = getattr(node, "_saved_dim", None)
    if not isinstance(indices[0], torch.Tensor) or indices[0].dim() != 1 or axis:
        return None
    return indices[0].nonzero()[:, 0] if indices[0].dtype == torch.bool else indices[0].long()


def axis_of_join(node: Any) -> int | None:
    """Return the axis along which a node has joined tensors; None where it has not.

    >>> axis_of_join(torch.cat([torch.ones(2, 1, requires_grad=True)] * 2, dim=-1).grad_fn)
    -1
    """
    axis = getattr(node, "_saved_dim", None)
    return _signed(axis) if isinstance(axis, int) and type(node).__name__.startswith("CatBackward") else None


def axes_of_norm(node: Any) -> tuple[int, ...]:
    """Return the axes along which a node has taken a length or a sum; () where it has not.

    >>> values = torch.ones(2, 3, requires_grad=True).exp()
    >>> axes_of_norm(torch.linalg.vector_norm(values, dim=0).grad_fn), axes_of_norm(values.sum(-1).grad_fn)
    ((0,), (1,))
    """
    axes: Any = getattr(node, "_saved_dim", None)
    axes = (axes,) if isinstance(axes, int) else axes
    if axes is None or not type(node).__name__.startswith(("LinalgVectorNorm", "Norm", "Sum")):
        return ()
    below = node.next_functions[0][0]
    count = len(size_of_result(below)) or 1
    return tuple(_signed(each) % count for each in axes)


def averages_rows(node: Any) -> bool:
    """Return whether a node is a mean or a deviation over the first of several axes.

    >>> values = torch.ones(2, 3, requires_grad=True).exp()
    >>> [averages_rows(each.grad_fn) for each in (values.mean(0), values.std(0), values.mean(1), values.mean(), values.sum(0))]
    [True, True, False, False, False]
    """
    axes: Any = getattr(node, "_saved_dim", None)
    if axes is None or not type(node).__name__.startswith(("Mean", "Var", "Std")):
        return False
    axes = (axes,) if isinstance(axes, int) else axes
    count = len(size_of_result(node.next_functions[0][0])) or 1
    return len(axes) < count and any(_signed(each) % count == 0 for each in axes)


def padded_behind(node: Any) -> bool:
    """Return whether a node has put something behind the last place of rows, or is a convolution that does so.

    >>> values = torch.ones(2, 3, 8, requires_grad=True).exp()
    >>> layers = torch.nn.Conv1d(3, 3, 3, padding=1), torch.nn.Conv1d(3, 3, 3), torch.nn.ConstantPad1d((2, 0), 0.0)
    >>> [padded_behind(layer(values).grad_fn) for layer in layers]
    [True, False, False]
    """
    kind = type(node).__name__
    if kind.startswith("ConstantPad"):
        pads: Sequence[int] = getattr(node, "_saved_pad", ())
        return len(pads) > 1 and pads[1] > 0
    if kind.startswith("Convolution"):
        return any(each > 0 for each in getattr(node, "_saved_padding", ()))
    return kind.startswith(("ReplicationPad", "ReflectionPad"))


def exponent_of(node: Any) -> float | None:
    """Return the number to which power a node has raised values; None where it is none, or another tensor.

    >>> exponent_of(torch.ones(2, requires_grad=True).square().grad_fn)
    2.0
    """
    exponent = getattr(node, "_saved_exponent", None)
    return float(exponent) if isinstance(exponent, int | float) else None


def is_used_up(node: Any) -> bool | None:
    """Return whether what a node keeps for the backward pass was given back after one; None where it keeps nothing.

    >>> w = torch.ones(2, requires_grad=True)
    >>> one, other = w.exp().sum(), (w.exp() - 1).abs().sum()
    >>> one.backward()
    >>> below = lambda total: total.grad_fn.next_functions[0][0]
    >>> is_used_up(below(one)), is_used_up(below(other)), is_used_up(other.grad_fn)
    (True, False, None)
    """
    kind: Any = type(node)
    names = _saved_names(kind)
    for name in names:
        try:
            getattr(node, name)
        except RuntimeError:
            return True
    return False if names else None


@cache
def _saved_names(kind: type) -> tuple[str, ...]:
    """Return the names under which nodes of a kind keep tensors; torch has a raw one beside each."""
    names = [each for each in dir(kind) if each.startswith("_raw_saved_")]
    return tuple(each.replace("_raw", "", 1) for each in names)


def number_beside(node: Any) -> float:
    """Return the number by which a product was multiplied, or a quotient divided; 0 where it was none, or was changed in its place since.

    >>> number_beside((torch.ones(2, requires_grad=True).sum() / 4).grad_fn)
    4.0
    >>> number_beside((torch.tensor(3.0) * torch.ones(2, requires_grad=True).sum()).grad_fn)
    3.0
    """
    left = "Mul" in type(node).__name__ and len(node.next_functions) == 2
    try:
        other = getattr(
            node, "_saved_self" if left and node.next_functions[0][0] is None else "_saved_other", None
        )
    except RuntimeError:  # torch's own check of the version
        return 0.0
    if isinstance(other, int | float):
        return float(other)
    return float(other) if isinstance(other, torch.Tensor) and other.numel() == 1 else 0.0


def mean_of_constant(node: Any) -> float:
    """Return the mean size of the constants that a tensor was multiplied or divided by; 0 where there are none, or they were changed since.

    >>> mean_of_constant((torch.tensor([0.25, 0.75]) * torch.ones(2, requires_grad=True)).grad_fn)
    0.5
    """
    following = [each for each, _ in node.next_functions]
    if len(following) == 2 and None not in following:
        return 0.0
    name = "_saved_self" if following[0] is None else "_saved_other"
    try:
        other = getattr(node, name, None)
    except RuntimeError:  # torch's own check of the version
        return 0.0
    return float(other.float().abs().mean()) if isinstance(other, torch.Tensor) and other.numel() else 0.0


def factor_of_second(node: Any) -> float:
    """Return what a sum or a difference multiplies its second operand by.

    >>> one = torch.ones(2, requires_grad=True)
    >>> factor_of_second(torch.add(one, one, alpha=3).grad_fn)
    3.0
    """
    return float(getattr(node, "_saved_alpha", 1))


def averages(node: Any) -> bool:
    """Return whether a loss function of torch took the mean.

    >>> scores = torch.zeros(2, requires_grad=True)
    >>> [averages(torch.nn.functional.mse_loss(scores, torch.ones(2), reduction=each).grad_fn) for each in ("mean", "sum")]
    [True, False]
    """
    return getattr(node, "_saved_reduction", None) == 1


def sums_up(node: Any) -> bool:
    """Return whether a loss function of torch took the sum.

    >>> scores = torch.zeros(2, requires_grad=True)
    >>> [sums_up(torch.nn.functional.mse_loss(scores, torch.ones(2), reduction=each).grad_fn) for each in ("mean", "sum")]
    [False, True]
    """
    return getattr(node, "_saved_reduction", None) == 2


def is_beside_mask(node: Any) -> bool:
    """Return whether a product is that of something with a graph and of a constant of zeros and ones, both among them.

    >>> is_beside_mask((torch.ones(2, requires_grad=True) * torch.tensor([0.0, 1.0])).grad_fn)
    True
    """
    following = [each for each, _ in node.next_functions]
    if len(following) == 2 and None not in following:
        return False
    try:
        other = getattr(node, "_saved_self" if following[0] is None else "_saved_other", None)
    except RuntimeError:  # torch's own check of the version
        return False
    if not isinstance(other, torch.Tensor) or other.numel() < 2 or other.is_complex():
        return False
    return bool(((other == 0) | (other == 1)).all()) and bool((other == 0).any()) and bool((other == 1).any())


def tracing() -> str:
    """Return the way in which the model runs now; "" where it computes as the script says.

    Its values are stand-ins there, or it is being written down: there is nothing to look at.

    >>> tracing()
    ''
    >>> torch.func.vmap(lambda row: row * len(tracing()))(torch.ones(2, 1)).tolist()
    [[10.0], [10.0]]
    """
    traced = private_part("torch.jit.trace")
    if traced is not None and traced():
        return "torch.jit.trace"
    interpreters = private_part("torch.func")
    if interpreters is not None and interpreters() is not None:
        return "torch.func"
    symbolic = private_part("torch.fx")
    if symbolic is not None and symbolic():
        return "torch.fx"
    if torch.compiler.is_exporting():
        return "torch.export"
    mode, key = private_part("fake tensors"), private_part("fake tensors by name")
    if mode is not None and key is not None and mode(key) is not None:
        compiled = private_part("compilations")
        return "torch.compile" if compiled is not None and compiled() is not None else "fake tensors"
    return ""
