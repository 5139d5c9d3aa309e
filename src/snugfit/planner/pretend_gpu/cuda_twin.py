"""The answers of `torch.cuda` and `torch.accelerator` on a machine with one GPU of a given kind, without any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from snugfit.planner.cost import recurrent


class CannotPretend(RuntimeError):
    """A GPU cannot be pretended here, or not for this; the message says why."""


class _Stream(torch.Stream):
    """A stream on which nothing runs."""

    def __new__(cls, *args: Any, **kwargs: Any) -> torch.Stream:  # type: ignore[misc]
        return torch.Stream("cuda")


class _Event(torch.Event):
    """An event of such a stream: it has always happened, and no time has passed since another."""

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, *args: Any, **kwargs: Any
    ) -> torch.Event:
        return torch.Event("cuda", enable_timing=enable_timing)


@contextmanager
def answering(capability: tuple[int, int], memory_bytes: int, name: str) -> Iterator[None]:
    """Temporarily let Python find that GPU, all of its memory free. `torch.cuda.is_bf16_supported` and others ask these."""
    from torch._dynamo import trace_rules
    from torch._subclasses import fake_impls, fake_tensor

    trace_rules.get_torch_obj_rule_map()  # the compiler's table of torch's functions, of the true ones

    operators = {torch.ops.aten._pin_memory.default: _pinned, **recurrent.implementations()}
    with ExitStack() as stack, mock.patch.dict(fake_impls.op_implementations_dict, operators):
        for owner, values in (
            (torch.cuda, _about(capability, memory_bytes, name) | _running() | _drawing()),
            (
                torch.accelerator,
                _memory()
                | {
                    "get_memory_info": _always((memory_bytes, memory_bytes)),
                    "empty_cache": _nothing,
                    "synchronize": _nothing,
                },
            ),
            # else it would initialise the device for the first tensor there
            (fake_tensor, {"init_gpu_context": _nothing}),
            (fake_tensor.FakeTensorMode, {"avoid_device_init": True}),
            (trace_rules, {"clear_lru_cache": _nothing}),  # a process group would have the table made anew
            (torch._VF, recurrent.layers()),
            (nn.RNNBase, {"flatten_parameters": recurrent.keeps_its_weights}),
        ):
            for attribute, value in values.items():
                stack.enter_context(mock.patch.object(owner, attribute, value))
        raw_stream = mock.patch.object(torch._C, "_cuda_getCurrentRawStream", create=True, return_value=0)
        stack.enter_context(raw_stream)  # bitsandbytes asks for it when it is imported
        yield


def _pinned(_mode: Any, _func: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return torch.empty_like(tensor)


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _always(value: Any) -> Callable[..., Any]:
    """Return a function that returns the value, whatever device it is asked about."""
    return lambda *args, **kwargs: value


def _about(capability: tuple[int, int], memory_bytes: int, name: str) -> dict[str, Any]:
    major, minor = capability
    properties = SimpleNamespace(
        name=name, major=major, minor=minor, total_memory=memory_bytes, warp_size=32, is_integrated=False
    )

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation or major >= 8

    return {
        "_initialized": True,
        "init": _nothing,
        "_lazy_init": _nothing,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": _nothing,
        "_exchange_device": _always(0),
        "_maybe_exchange_device": _always(0),
        "get_device_name": _always(name),
        "get_device_capability": _always(capability),
        "get_device_properties": _always(properties),
        "is_bf16_supported": is_bf16_supported,
        "is_tf32_supported": lambda: major >= 8,
        **_memory(),
        "mem_get_info": _always((memory_bytes, memory_bytes)),
        "get_per_process_memory_fraction": _always(1.0),
    }


def _memory() -> dict[str, Any]:
    """Return functions of both modules, for what either has."""
    none = dict.fromkeys(
        ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
        _always(0),
    )
    return {**none, "memory_stats": lambda *args, **kwargs: {}, "reset_peak_memory_stats": _nothing}


def _running() -> dict[str, Any]:
    def stream(stream: torch.Stream | None) -> AbstractContextManager[Any]:
        return nullcontext() if stream is None else stream

    def current_stream(*args: Any, **kwargs: Any) -> torch.Stream:
        return torch.Stream("cuda")

    runtime = SimpleNamespace(cudaHostRegister=lambda *args: 0, cudaHostUnregister=lambda *args: 0)
    return {
        "Stream": _Stream,
        "Event": _Event,
        "stream": stream,
        "set_stream": _nothing,
        "current_stream": current_stream,
        "default_stream": current_stream,
        "is_current_stream_capturing": lambda: False,
        "synchronize": _nothing,
        "empty_cache": _nothing,
        "ipc_collect": _nothing,
        "cudart": lambda: runtime,
    }


def _drawing() -> dict[str, Any]:
    """Random numbers come from one generator, on the host."""
    generator = torch.Generator()
    return {
        "default_generators": (generator,),
        "manual_seed": generator.manual_seed,
        "manual_seed_all": generator.manual_seed,
        "seed": generator.seed,
        "seed_all": generator.seed,
        "initial_seed": generator.initial_seed,
        "get_rng_state": lambda *args, **kwargs: generator.get_state(),
        "get_rng_state_all": lambda: [generator.get_state()],
        "set_rng_state": lambda state, *args, **kwargs: generator.set_state(state),
        "set_rng_state_all": lambda states: generator.set_state(states[0]),
    }
