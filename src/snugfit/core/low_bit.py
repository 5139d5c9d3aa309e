"""AdamW with states of few bits, by torchao or bitsandbytes, made to behave as any torch optimizer does.

Groups have rates that are numbers, states that are saved are plain tensors, and fake parameters are taken. Three names are
torchao's and bitsandbytes' own: `_new_buffer`, `_subclass_zeros` and `fill_qmap`; tests/unit/core/test_low_bit.py tells when one moves.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.parameters import ParameterGroup
from snugfit.core.quiet import importing_torchao
from snugfit.core.read import is_fake
from snugfit.errors import MissingExtra, SettingError


def torchao_adamw(
    bits: int, groups: list[ParameterGroup], technique: str, min_size: int, **settings: Any
) -> torch.optim.Optimizer:
    """torchao's AdamW with states of 8 or 4 bits.

    Args:
        technique: whose name errors begin with.
        min_size: weights of fewer elements keep their states in the weights' own format; so do those that its blocks do not
            divide, of 256 elements for 8 bits and 128 for 4.
        settings: `lr`, `betas`, `eps` and `weight_decay`.
    Raises:
        SettingError: a weight is in float64; in a step, a gradient is sparse.
        MissingExtra: torchao is not installed.
    """
    return _checked(_torchao(bits)(groups, technique, min_size, **settings), technique)


def bitsandbytes_adamw(
    groups: list[ParameterGroup], technique: str, min_size: int, paged: bool = False, **settings: Any
) -> torch.optim.Optimizer:
    """bitsandbytes' AdamW with states of 8 bits, in blocks of 256; arguments and errors as those of `torchao_adamw`.

    Args:
        paged: states lie in memory that CUDA moves to the host when the device is full.
    """
    return _checked(_bitsandbytes()(groups, technique, min_size, paged, **settings), technique)


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the states that grow with the weights: those shared by all weights, such as maps of codes, are left out."""
    return sum(_bytes_of(state) for state in optimizer.state_dict()["state"].values())


def _bytes_of(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(_bytes_of(entry) for name, entry in value.items() if not str(name).startswith("qmap"))
    return value.nbytes if isinstance(value, Tensor) and value.ndim else 0


@functools.cache
def _torchao(bits: int) -> Any:
    _require("torchao")
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with importing_torchao():
        from torchao.optim import AdamW4bit, AdamW8bit, subclass_4bit, subclass_8bit

    with unset_fake_temporarily():  # the maps are made once, by reading tensors
        for module in (subclass_4bit, subclass_8bit):
            module.get_qmap_signed(), module.get_qmap_unsigned()
    base: Any = {4: AdamW4bit, 8: AdamW8bit}[bits]

    class TorchaoAdamW(base):  # type: ignore[misc]
        def __init__(
            self, groups: list[ParameterGroup], technique: str, min_size: int, **settings: Any
        ) -> None:
            self.technique, self.min_size = technique, min_size
            super().__init__(groups, **settings)

        def add_param_group(self, param_group: ParameterGroup) -> None:
            rate = param_group.get("lr", self.defaults["lr"])
            super().add_param_group(param_group)
            self.param_groups[-1]["lr"] = rate  # of which torchao makes a tensor

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            _refuse_sparse(self, self.technique)
            with _tensor_rates(self), _eager(self):
                return super().step(closure)

        def state_dict(self) -> dict[str, Any]:
            found: dict[str, Any] = super().state_dict()
            states = found["state"].items()
            return {
                **found,
                "state": {
                    key: {name: _plain(value) for name, value in state.items()} for key, state in states
                },
            }

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            own = [parameter for group in self.param_groups for parameter in group["params"]]
            keys = [key for group in state_dict["param_groups"] for key in group["params"]]
            if len(own) != len(keys):
                raise ValueError(f"it is of {len(keys)} parameters, and there are {len(own)}")
            of_key = dict(zip(keys, own, strict=True))
            states = {
                key: {name: self._whole(of_key[key], name, value) for name, value in state.items()}
                for key, state in state_dict["state"].items()
            }
            super().load_state_dict({**state_dict, "state": states})

        def _new_buffer(self, p: Tensor, signed: bool) -> Tensor:
            if p.numel() < self.min_size or p.numel() % self.block_size:
                return torch.zeros_like(p)
            made: Tensor = self._subclass_zeros(p, signed, self.block_size)
            return made

        def _whole(self, parameter: nn.Parameter, name: str, value: Any) -> Any:
            """The moment `name` from what `state_dict` made of it."""
            if not isinstance(value, Mapping):
                return value
            made: Any = self._new_buffer(parameter.detach(), signed=name == "exp_avg")
            for part, kept in value.items():
                into = getattr(made, part, None)
                if into is None or into.shape != kept.shape:
                    raise ValueError(
                        f"its '{name}' does not fit a weight of the shape {tuple(parameter.shape)}"
                    )
                into.copy_(kept)
            return made

    return TorchaoAdamW


def _take(weight: Tensor, moment: Tensor) -> None:
    """Take and give back what the CPU's update of 8-bit states needs beside them, for whoever counts; a GPU's needs nothing.

    In float32: both moments, the gradient, the root of the second moment and what it is divided to, and a weight of another type.
    Source: bitsandbytes/backends/cpu/ops.py.
    """
    if weight.device.type == "cpu" and moment.dtype == torch.uint8:
        copies = 5 if weight.dtype == torch.float32 else 6
        torch.empty(copies, weight.numel(), dtype=torch.float32)


@functools.cache
def _bitsandbytes() -> Any:
    _require("bitsandbytes")
    from bitsandbytes.optim import AdamW8bit

    base: Any = AdamW8bit

    class BitsandbytesAdamW(base):  # type: ignore[misc]
        def __init__(
            self,
            groups: list[ParameterGroup],
            technique: str,
            min_size: int,
            paged: bool,
            **settings: Any,
        ) -> None:
            self.technique = technique
            super().__init__(groups, min_8bit_size=min_size, is_paged=paged, **settings)

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            _refuse_sparse(self, self.technique)
            with _eager(self):
                return super().step(closure)

        def update_step(self, group: ParameterGroup, p: nn.Parameter, gindex: int, pindex: int) -> None:
            state, laid_out = self.state[p], p.data
            if is_fake(p):  # the kernels work in place, and have no fake form
                state["step"] += 1
                _take(p, state["state1"])
                return
            for name in ("state1", "state2"):  # a moment that was loaded lies as its weight does
                state[name] = state[name].contiguous()
            super().update_step(group, p, gindex, pindex)
            if (
                p.data.stride() != laid_out.stride()
            ):  # the kernels go row by row, and leave a copy that lies so
                p.data = laid_out.copy_(p.data)

        def get_state_buffer(self, p: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
            made: Tensor = super().get_state_buffer(p.detach().contiguous(), dtype)
            return made

        def fill_qmap(self) -> None:
            if any(is_fake(parameter) for group in self.param_groups for parameter in group["params"]):
                self.name2qmap = {"dynamic": torch.empty(256), "udynamic": torch.empty(256)}
                return
            super().fill_qmap()

        def load_state_dict(self, state_dict: dict[str, Any], move_to_device: bool = True) -> None:
            super().load_state_dict(state_dict, move_to_device)
            for parameter, state in self.state.items() if self.is_paged else ():
                for name in ("state1", "state2"):  # they came back as ordinary tensors
                    state[name] = self.get_state_buffer(parameter, dtype=state[name].dtype).copy_(state[name])

    return BitsandbytesAdamW


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(package, "quantization")


def _plain(value: Any) -> Any:
    """A moment as plain tensors; the map of codes is the same for all, and is made anew."""
    if not hasattr(value, "__tensor_flatten__"):
        return value
    parts, _ = value.__tensor_flatten__()
    return {part: getattr(value, part) for part in parts if part != "qmap"}


@contextmanager
def _tensor_rates(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within, each group's rate is a tensor, as torchao wants it."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = torch.tensor(rate, dtype=torch.float32)
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _eager(optimizer: torch.optim.Optimizer) -> AbstractContextManager[Any]:
    """Both libraries compile their step, for seconds; on a CPU that gains little, and what is fake cannot be compiled."""
    first = optimizer.param_groups[0]["params"][0]
    if first.device.type != "cpu" and not is_fake(first):
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _checked(optimizer: torch.optim.Optimizer, technique: str) -> torch.optim.Optimizer:
    for name, parameter in _named(optimizer):
        if parameter.dtype == torch.float64:
            raise SettingError(
                f"{technique}: computes in float32, and the weight '{name}' is in float64. Convert the model with model.float(), "
                "or use optimizer: adamw."
            )
    return optimizer


def _refuse_sparse(optimizer: torch.optim.Optimizer, technique: str) -> None:
    for name, parameter in _named(optimizer):
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise SettingError(
                f"{technique}: the gradient of '{name}' is sparse, which states in blocks cannot take. Make the embedding with "
                "sparse=False, or use optimizer: sgd."
            )


def _named(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, nn.Parameter]]:
    for number, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or [f"{number}.{place}" for place, _ in enumerate(group["params"])]
        yield from zip(names, group["params"], strict=True)
