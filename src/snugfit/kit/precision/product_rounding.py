"""Switches of torch that decide how CUDA rounds in matrix products and convolutions, set together and restored.

By default torch convolves float32 in tf32 and multiplies it in float32, and lets cuBLAS add up the parts of a 16-bit product in 16 bits. Both
depend on the shape of a product, so that another micro-batch or another number of ranks would round otherwise.

Each setting has an older and a newer name in torch, and torch raises where only one of them is set and somebody, such as inductor, asks by
the other. So both are set here, and nowhere else. The names of `torch._C` are those that `torch.backends` calls, at a tenth of its time;
tests/unit/kit/precision/test_product_rounding.py tells when one moves.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch

from snugfit.system.nothing import NOTHING

_C: Any = torch._C


class Switches(NamedTuple):
    """The values of all of the switches.

    Args:
        matmul, conv, rnn: of float32 on CUDA: "ieee", "tf32", or "none", which stands for ieee.
        host: of float32 products of oneDNN, which the older name of `matmul` sets too.
        older_matmul, older_cudnn: by the older names, `torch.get_float32_matmul_precision()` and `torch.backends.cudnn.allow_tf32`.
        bf16, fp16: whether parts of a product may be added up in 16 bits, and whether there may be parts.
    """

    matmul: str
    conv: str
    rnn: str
    host: str
    older_matmul: str
    older_cudnn: bool
    bf16: Any
    fp16: Any

    @classmethod
    def now(cls) -> Switches:
        """Return what they say; they are the same afterwards."""
        get = _C._get_fp32_precision_getter
        matmul, conv, rnn, host = (
            get("cuda", "matmul"),
            get("cuda", "conv"),
            get("cuda", "rnn"),
            get("mkldnn", "matmul"),
        )
        try:
            older_matmul = _C._get_float32_matmul_precision()
        except RuntimeError:  # it was set by the newer name alone
            older_matmul = _older_matmul(matmul, host)
        try:
            older_cudnn = _C._get_cudnn_allow_tf32()
        except RuntimeError:
            older_cudnn = _older_cudnn(conv, rnn)
        return cls(
            matmul,
            conv,
            rnn,
            host,
            older_matmul,
            older_cudnn,
            _C._get_cublas_allow_bf16_reduced_precision_reduction(),
            _C._get_cublas_allow_fp16_reduced_precision_reduction(),
        )

    def set(self) -> None:
        """Let them say this; those of the older names come first, as they set others too."""
        put = _C._set_fp32_precision_setter
        _C._set_float32_matmul_precision(self.older_matmul)
        _C._set_cudnn_allow_tf32(self.older_cudnn)
        put("cuda", "matmul", self.matmul)
        put("mkldnn", "matmul", self.host)
        put("cuda", "conv", self.conv)
        put("cuda", "rnn", self.rnn)
        _C._set_cublas_allow_bf16_reduced_precision_reduction(*_arguments(self.bf16))
        _C._set_cublas_allow_fp16_reduced_precision_reduction(*_arguments(self.fp16))

    def with_float32(self, precision: str) -> Switches:
        """Return those by which CUDA multiplies and convolves float32 in one precision, "ieee" or "tf32", and adds 16 bits up in float32."""
        tf32 = precision == "tf32"
        return Switches(
            matmul=precision,
            conv=precision,
            rnn=precision,
            host="ieee" if self.host in ("tf32", "bf16") else self.host,  # else the older name contradicts it
            older_matmul="high" if tf32 else "highest",
            older_cudnn=tf32,
            bf16=_in_float32(self.bf16),
            fp16=_in_float32(self.fp16),
        )


def lacks_capability(device: torch.device, capability: tuple[int, int], arithmetic: str) -> str | None:
    """Return why a device has no units for an arithmetic that begins at a compute capability of CUDA; None if it has them.

    >>> lacks_capability(torch.device("cpu"), (8, 0), "tf32")
    'cpu is no CUDA device'
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return f"{device} is no CUDA device"
    present = torch.cuda.get_device_capability(device)
    if present >= capability:
        return None
    least = ".".join(map(str, capability))
    return (
        f"{device} has the compute capability {present[0]}.{present[1]}, and {arithmetic} begins at {least}"
    )


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Temporarily multiply and convolve float32 on CUDA in "ieee" or "tf32"; other devices compute as they do.

    >>> with products_in("tf32"):
    ...     torch.backends.cuda.matmul.fp32_precision, torch.get_float32_matmul_precision()
    ('tf32', 'high')
    """
    _hear_once()
    before = Switches.now()
    before.with_float32(precision).set()
    try:
        yield
    finally:
        before.set()


def products_as_chosen(device: torch.device) -> AbstractContextManager[None]:
    """Temporarily convolve float32 on CUDA as it is multiplied: in float32, but where tf32 was asked for by name.

    So a process in which somebody has called `torch.set_float32_matmul_precision("high")` has tf32 for both.
    """
    if not _is_cuda(device):
        return NOTHING
    multiplies_in_tf32 = _C._get_fp32_precision_getter("cuda", "matmul") == "tf32"
    return products_in("tf32" if multiplies_in_tf32 else "ieee")


@functools.cache
def _is_cuda(device: torch.device) -> bool:
    return device.type == "cuda"


@functools.cache
def _hear_once() -> None:
    """Have some versions of torch say unheard that the older names are deprecated, which they say once in a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Switches.now().set()


def _older_matmul(matmul: str, host: str) -> str:
    put = _C._set_fp32_precision_setter
    put("cuda", "matmul", "ieee")
    put("mkldnn", "matmul", "ieee")
    try:
        precision: str = _C._get_float32_matmul_precision()
    finally:
        put("cuda", "matmul", matmul)
        put("mkldnn", "matmul", host)
    return precision


def _older_cudnn(conv: str, rnn: str) -> bool:
    put = _C._set_fp32_precision_setter
    put("cuda", "conv", "tf32")
    put("cuda", "rnn", "tf32")
    try:
        allow_tf32: bool = _C._get_cudnn_allow_tf32()
    except RuntimeError:  # it says the opposite
        allow_tf32 = False
    finally:
        put("cuda", "conv", conv)
        put("cuda", "rnn", rnn)
    return allow_tf32


def _arguments(reduction: Any) -> tuple[bool, ...]:
    """Return arguments of a setter: torch before 2.10 knows no parts."""
    return reduction if isinstance(reduction, tuple) else (reduction,)


def _in_float32(reduction: Any) -> Any:
    return (False, *reduction[1:]) if isinstance(reduction, tuple) else False
