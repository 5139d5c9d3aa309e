"""The attention kernel: chosen for a model, and seen in use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.core.batch import Batch
from snugfit.core.technique import Card, Context, Family, Seams, Stage, Technique
from snugfit.errors import SettingError, nearest

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
"""Kernels of torch's scaled dot product attention."""

IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
"""Implementations of transformers; `sdpa` lets torch choose the kernel."""

_OPERATIONS = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_softmax": "math",
    "_safe_softmax": "math",
    "flex_attention": "flex_attention",
    "_varlen_attn": "flash_varlen",
}

_CANNOT = (
    "cannot compute this model's attention on {}, with these types, masks and head sizes",
    "Use 'sdpa', which takes what can.",
)
_REFUSALS = {
    "No available kernel": _CANNOT,
    "No viable backend": _CANNOT,
    "FlexAttention does not support backward": ("has no backward on {}, by torch", "Use 'sdpa'."),
    "`flex_attention` does not support `dropout`": (
        "drops no scores, and the configuration of this model asks for that",
        "Set its attention_dropout to 0, or use 'sdpa'.",
    ),
}
"""Errors of torch and transformers by a part of their text, as what is wrong and what to do."""


@contextmanager
def kernels_used() -> Iterator[set[str]]:
    """Collect the kernels that attention runs in: fused ones by name; `math` for a softmax of its own, as eager has.

    >>> import torch
    >>> query = torch.zeros(1, 2, 4, 8)
    >>> with kernels_used() as used:
    ...     _ = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    >>> used
    {'flash'}
    """
    used: set[str] = set()

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.name().partition("::")[2].partition(".")[0]
            if name in _OPERATIONS:
                used.add(_OPERATIONS[name])
            return func(*args, **(kwargs or {}))

    with Noting():  # type: ignore[no-untyped-call]
        yield used


def set_attention_(model: nn.Module, implementation: str) -> None:
    """Let a model of transformers compute attention by this implementation; what it can do is its own matter.

    Raises:
        SettingError: it is no such model, or cannot.
    """
    transformer: Any = model
    if not hasattr(transformer, "set_attn_implementation"):
        raise SettingError(
            "attention_kernel.kernel",
            f"{implementation!r} is an implementation of transformers, and {type(model).__name__} is no model of it",
            f"Choose one of torch's kernels: {', '.join(BACKENDS)}.",
        )
    try:
        transformer.set_attn_implementation(implementation)
    except (ValueError, ImportError) as error:
        raise SettingError(
            "attention_kernel.kernel", f"{implementation!r} cannot be used: {error}", "Choose another kernel."
        ) from error
    used = transformer.config._attn_implementation
    if used != implementation:
        raise SettingError(
            "attention_kernel.kernel",
            f"{type(model).__name__} keeps {used!r} and cannot use {implementation!r}",
            "Remove it.",
        )


@dataclass(frozen=True)
class AttentionKernel(Technique):
    """Compute attention by one implementation or kernel: one of transformers' names, or one of torch's kernels."""

    kernel: str = "sdpa"

    card: ClassVar[Card] = Card(
        name="attention_kernel",
        summary="Chooses the kernel that computes attention: eager, sdpa, flash, efficient, cudnn, flex_attention.",
        aliases=("flash attention", "attn_implementation", "SDPA backend", "memory-efficient attention"),
        family=Family.PLACEMENT,
        source="torch.nn.attention.sdpa_kernel; transformers' attention interface; Dao et al. 2022, arXiv:2205.14135",
        seams=("modules",),
        stages=(Stage.COMPUTE,),
        saves_memory=True,
        cost="none; a fused kernel never holds the scores, and draws other dropout on them than eager does",
        use_when="a model loads with eager attention, or one kernel is wanted for sure",
    )

    def __post_init__(self) -> None:
        known = (*IMPLEMENTATIONS, *BACKENDS)
        if self.kernel not in known:
            raise SettingError(
                "attention_kernel.kernel", f"there is no {self.kernel!r}", nearest(self.kernel, known)
            )

    @classmethod
    def example(cls) -> Self:
        return cls(kernel="math")

    @property
    def reads_weights(self) -> bool:
        return False

    def prepare(self, model: nn.Module) -> nn.Module:
        if self.kernel in IMPLEMENTATIONS:
            set_attention_(model, self.kernel)
        elif hasattr(model, "set_attn_implementation"):
            set_attention_(model, "sdpa")
        return model

    @classmethod
    def rungs(cls) -> tuple[Self, ...]:
        return ()  # models choose the fused kernel by themselves

    def seams(self, context: Context) -> Seams:
        @contextmanager
        def forward(_batch: Batch) -> Iterator[None]:
            backend = BACKENDS.get(self.kernel)
            try:
                with nullcontext() if backend is None else sdpa_kernel(backend):
                    yield
            except (RuntimeError, ValueError) as error:
                refusal = next((words for text, words in _REFUSALS.items() if text in str(error)), None)
                if refusal is None:
                    raise
                problem, remedy = refusal
                raise SettingError(
                    "attention_kernel.kernel", f"'{self.kernel}' {problem.format(context.device)}", remedy
                ) from error

        return Seams(modules=forward)
