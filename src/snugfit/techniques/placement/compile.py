"""Compilation by torch.compile, for a while, checked against the model as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from snugfit.core.batch import Batch
from snugfit.core.layers import repeated_blocks
from snugfit.core.random import preserved_randomness
from snugfit.core.scalar_reads import is_fake, read
from snugfit.core.technique import Card, Context, Family, Seams, Sharing, Stage, Technique
from snugfit.core.tree import leaves, map_tree
from snugfit.errors import SettingError, nearest
from snugfit.kit.buffers import Buffers
from snugfit.kit.language_models.kv_cache import caches_among, caching_configs, without_caches
from snugfit.kit.patched_forward import replaced_forward
from snugfit.system.rounding import allowed_rounding, in_float64

INDUCTOR = "inductor"
CHECKS = {"default": 1, "reduce-overhead": 4, "max-autotune": 4}
"""Calls of a module that are checked in each mode. A CUDA graph is warmed up, recorded and replayed in different calls: so many are two
micro-batches of two updates."""

MODES = tuple(CHECKS)


@dataclass(frozen=True, eq=False)
class Known:
    """The results that need not be computed again: how often modules were checked, with and without gradients, and what was compiled of each.

    Torch keeps something of each call of torch.compile until the process ends.
    """

    checked: Counter[tuple[nn.Module, bool]] = field(default_factory=Counter)
    runs: dict[nn.Module, tuple[Callable[..., Any], Callable[..., Any]]] = field(default_factory=dict)

    def run(
        self, module: nn.Module, compile: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> Callable[..., Any]:
        """Return the forward of the module compiled: as before, where it has the same one."""
        before, run = self.runs.get(module, (None, None))
        if run is None or before != module.forward:
            run = compile(module.forward)
            self.runs[module] = (module.forward, run)
        return run


@contextmanager
def compiled(
    module: nn.Module,
    mode: str = "default",
    dynamic: bool | None = None,
    backend: str = INDUCTOR,
    known: Known | None = None,
    any_rank: Callable[[bool], bool] = bool,
) -> Iterator[None]:
    """Temporarily let `module` compute its forward compiled; hooks on it run as before, and nothing of it stays in the module.

    What is compiled is the forward that the module has when this is entered. Entered again it finds the same compiled code, and
    what was changed inside of the module meanwhile, forwards and hooks, is compiled anew. Dropout draws what it would draw
    otherwise.

    Args:
        known: of an earlier time, where this is entered again, as in a loop; all else is compiled, and checked at its first call.
        any_rank: says whether any of the ranks says so that gather weights in the forward of `module`: a check that one of them repeats is
            repeated by all, or they would wait for it.
    Raises:
        SettingError: compiled and uncompiled outputs or gradients are further apart than rounding accounts for.

    >>> layer, inputs = nn.Linear(2, 2), torch.ones(1, 2)
    >>> with compiled(layer, backend="aot_eager"):
    ...     outputs = layer(inputs)
    >>> torch.equal(outputs, layer(inputs))
    True
    """
    known = Known() if known is None else known
    forward = module.forward
    options: dict[str, Any] = {}
    if backend == INDUCTOR:
        # dropout in fused kernels would draw other numbers, and there would be nothing to compare
        options["options"] = {**_mode_options(mode), "fallback_random": True}
    run = known.run(module, torch.compile(backend=backend, dynamic=dynamic, **options))

    def checking(*args: Any, **kwargs: Any) -> Any:
        state = (module, torch.is_grad_enabled())
        if any(is_fake(tensor) for tensor in (*leaves(args), *leaves(kwargs), *module.parameters())):
            return forward(*args, **kwargs)
        with _guarding_hooks(), _disable_current_modes():  # one that watches would end compilation for good
            if known.checked[state] < CHECKS[mode]:
                seen = _checked(module, forward, run, args, kwargs)
                if not any_rank(not seen):
                    known.checked[state] += 1
            return run(*args, **kwargs)

    with replaced_forward(module, checking):
        yield


@contextmanager
def own_gradients(model: nn.Module) -> Iterator[None]:
    """Temporarily give each gradient that a backward begins memory of its own.

    A CUDA graph writes a gradient where it wrote the one before. Autograd keeps the first one of a window as it comes, so that the next
    micro-batch would be added to itself.

    Source: https://github.com/pytorch/pytorch/issues/96693 and 169545.
    """

    def own(parameter: nn.Parameter, gradient: Tensor) -> Tensor:
        return gradient.clone() if parameter.grad is None else gradient  # else it is added in place

    hooks = [
        parameter.register_hook(partial(own, parameter))
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True)
class Compile(Technique):
    """Compile the model, or each of its blocks, with torch.compile; the first micro-batch is checked against the model as it is."""

    mode: str = "default"
    per_block: bool = True
    dynamic: bool | None = None
    backend: str = INDUCTOR

    card: ClassVar[Card] = Card(
        name="compile",
        summary="Compiles the model or its blocks with torch.compile, and checks the first micro-batch against it.",
        aliases=("torch.compile", "torch_compile"),
        family=Family.PLACEMENT,
        source="torch.compile; Ansel et al. 2024, doi:10.1145/3620665.3640366",
        seams=("modules",),
        stages=(Stage.COMPUTE,),
        cost="seconds to minutes at the beginning, and again for other shapes; one more forward and backward for the check",
        use_when="long runs on a GPU, of models whose time goes to many small operations",
    )

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise SettingError("compile.mode", f"there is no {self.mode!r}", nearest(self.mode, MODES))
        if self.mode != "default" and self.backend != INDUCTOR:
            raise SettingError(
                "compile.mode",
                f"'{self.mode}' is a mode of the backend '{INDUCTOR}', and the backend is '{self.backend}'",
                "Remove one.",
            )

    @classmethod
    def example(cls) -> Self:
        return cls(backend="eager")  # traced, guarded and checked like any other, and the fastest to compile

    @property
    def reads_weights(self) -> bool:
        return False

    def refused_on(self, sharing: Sharing) -> str | None:
        if self.mode == "default" or sharing is not Sharing.SHARDS:
            return None
        return (
            f"'{self.mode}' computes gradients in CUDA graphs, which write the next ones over them while they are exchanged. Use mode: "
            "default (compile.mode)."
        )

    def prepare(self, model: nn.Module) -> nn.Module:
        known = torch.compiler.list_backends(exclude_tags=())
        if self.backend not in known:
            raise SettingError(
                "compile.backend", f"there is no {self.backend!r}", nearest(self.backend, known)
            )
        return model

    def seams(self, context: Context) -> Seams:
        model = context.model
        modules = list(repeated_blocks(model).values()) if self.per_block else [model]
        caching = caching_configs(model)
        known = Known()
        # a block's weights are gathered before its forward
        any_rank = bool if self.per_block else context.any_rank
        graphs = self.mode != "default"

        @contextmanager
        def compiling(_batch: Batch) -> Iterator[None]:
            if graphs:
                torch.compiler.cudagraph_mark_step_begin()
            with without_caches(caching), ExitStack() as stack:
                if graphs:
                    stack.enter_context(own_gradients(model))
                for module in modules:
                    stack.enter_context(
                        compiled(module, self.mode, self.dynamic, self.backend, known, any_rank)
                    )
                yield

        return Seams(modules=compiling)


def _mode_options(mode: str) -> dict[str, Any]:
    from torch import (
        _inductor,
    )  # torch.compile takes a mode or options, not both; this is its documented list of them

    options: dict[str, Any] = _inductor.list_mode_options(mode)
    return options


def _guarding_hooks() -> Any:
    """Temporarily tie what is compiled to the hooks that were on the modules; by default torch takes them to never change."""
    import torch._dynamo.config

    return torch._dynamo.config.patch(skip_nnmodule_hook_guards=False)


def _checked(
    module: nn.Module,
    eager: Callable[..., Any],
    run: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> bool:
    """Compare outputs, and gradients where they are on, under the same random state; buffers and arguments stay as they are.

    Returns:
        Whether it could be seen: not where the uncompiled numbers are not finite.
    Raises:
        SettingError: with the numbers, or because a cache is given, which each computation would fill.
    """
    for cache in caches_among((*args, *kwargs.values())):
        raise SettingError(
            "compile",
            f"{type(module).__name__} is given a {type(cache).__name__}, which the check would fill a second time",
            "Call the model without use_cache and past_key_values in training.",
        )
    device = next((tensor.device for tensor in leaves((args, kwargs))), torch.device("cpu"))
    reference = _numbers(module, eager, args, kwargs, device)
    compiled = _numbers(module, run, args, kwargs, device)
    if not reference:
        return True
    lengths = torch.stack([tensor.norm() for tensor in reference])
    apart = torch.stack([(one - other).norm() for one, other in zip(compiled, reference, strict=True)])
    # a part that is zero but for rounding is measured by what is usual
    error, length = read(
        torch.stack(
            [
                (apart / torch.maximum(lengths, 1e-3 * lengths.norm())).nan_to_num(nan=torch.inf).amax(),
                lengths.sum(),
            ]
        ),
        assume=[0.0, 0.0],
    )
    if length == 0:
        return True
    if length != length or length == float("inf"):
        return False
    allowed = allowed_rounding(module, device)
    if error > allowed:
        raise SettingError(
            "compile",
            f"what {type(module).__name__} gives compiled is {error:.2g} away from what it gives uncompiled, in "
            "outputs or gradients of the first micro-batch, relative to their lengths, and rounding accounts for "
            f"{allowed:.2g}",
            "Remove it, or use another backend.",
        )
    return True


def _numbers(
    module: nn.Module,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
) -> list[Tensor]:
    """Return the floating outputs of a call, and the gradients of half their squared length in weights and inputs."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    inputs: list[Tensor] = []

    def apart(tensor: Tensor) -> Tensor:
        copy = tensor.detach().clone()
        if not tensor.requires_grad:
            return copy
        inputs.append(copy.requires_grad_())
        return copy.clone()  # which may be changed in place, as a leaf may not

    args, kwargs = (map_tree(apart, given, _copied) for given in (args, kwargs))
    # hooks of a surrounding recomputation would count what is kept here as theirs
    plain = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    buffers = nullcontext() if next(module.buffers(), None) is None else Buffers(module).restore_on_exit()
    with preserved_randomness(device), buffers, plain, _without_hooks(module):
        outputs = [tensor for tensor in leaves(forward(*args, **kwargs)) if tensor.is_floating_point()]
        trained = [tensor for tensor in outputs if tensor.requires_grad]
        gradients: tuple[Tensor | None, ...] = ()
        if trained and (parameters or inputs):
            gradients = torch.autograd.grad(
                trained, [*parameters, *inputs], [tensor.detach() for tensor in trained], allow_unused=True
            )
    return [in_float64(tensor) for tensor in (*outputs, *gradients) if tensor is not None]


def _copied(value: Any) -> Any:
    """Return lists and dicts without tensors anew, all the way down: a block may put something in."""
    if type(value) in (list, tuple):
        return type(value)(_copied(each) for each in value)
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    return value


@contextmanager
def _without_hooks(module: nn.Module) -> Iterator[None]:
    """Temporarily disable forward hooks inside of `module`: what they catch of a call they are to catch once.

    Those by which a whole model of transformers collects its own outputs stay, as its forward is nothing without them. The dicts
    are emptied, not replaced: handles that remove a hook hold them.
    """
    collects = any(hasattr(each, "_can_record_outputs") for each in module.modules())
    aside = [(each._forward_hooks, dict(each._forward_hooks)) for each in module.modules()]
    for hooks, before in aside:
        hooks.clear()
        if collects:
            hooks.update(
                (key, hook)
                for key, hook in before.items()
                if getattr(hook, "__module__", "").startswith(_COLLECTS)
            )
    try:
        yield
    finally:
        for hooks, before in aside:
            since = dict(hooks)  # transformers puts its own in at a model's first call
            hooks.clear()
            hooks.update({**before, **since})


_COLLECTS = "transformers.utils"
