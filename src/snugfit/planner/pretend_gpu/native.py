"""A CUDA device that is not there, as far as torch's C++ asks: the guard of the device and the hooks of the library.

Autograd, optimizers and generators ask two C++ objects about a device before anything reaches a dispatch mode: the guard (which
device, which stream) and the hooks (is there CUDA, cuDNN, pinned memory). Both are tables of functions. Here the guard is a table of
our own, and the hooks are torch's object with some functions of its table replaced. Each function is a few bytes of machine code that
returns a constant: nothing of Python runs in it, so the threads of autograd may call it at any time, at exit too.

Where a function lies in a table is read from the headers that torch ships with.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

CUDA = 1
"""The number of `c10::DeviceType::CUDA`."""

_GUARD = "c10/core/impl/DeviceGuardImplInterface.h"
_HOOKS = ("ATen/detail/AcceleratorHooksInterface.h", "ATen/detail/CUDAHooksInterface.h")
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_GET_HOOKS = "_ZN2at6detail12getCUDAHooksEv"
_PICK = "_ZN2at6native22_fused_sdp_choice_stubE"
_ASK = "_ZN2at4_ops17_fused_sdp_choice4callERKNS_6TensorES4_S4_RKSt8optionalIS2_EdbS5_IdEb"
_HOST_MEMORY = "_ZN3c1015GetCPUAllocatorEv"
_NEW_GENERATOR = "_ZN2at6detail18createCPUGeneratorEm"
_DEFAULT_GENERATOR = "_ZN2at6detail22getDefaultCPUGeneratorEv"
_CUDNN = 92000
"""Version 9.20, in the way of cuDNN."""

_RETURN = b"\xc3"


def _integer(value: int) -> bytes:
    """Return code that returns an integer, a bool, a pointer, or a `c10::Device`."""
    return b"\x48\xb8" + struct.pack("<Q", value) + _RETURN  # mov rax, value; ret


def _number(value: float) -> bytes:
    """Return code that returns a double."""
    # mov rax, value; movq xmm0, rax; ret
    return b"\x48\xb8" + struct.pack("<d", value) + b"\x66\x48\x0f\x6e\xc0" + _RETURN


def _stream(device: int) -> bytes:
    """Return code that returns the default `c10::Stream`: the device, and 0 as its number."""
    return b"\x31\xd2" + _integer(device)  # xor edx, edx


def _jump(address: int) -> bytes:
    """Return code that goes on in a function; its second argument is 0, the first of one that returns an object."""
    return (
        b"\x31\xf6\x48\xb8" + struct.pack("<Q", address) + b"\xff\xe0"
    )  # xor esi, esi; mov rax, address; jmp rax


_HERE = CUDA  # a c10::Device: the type in the low byte, the index 0 in the next
_GUARD_CODE: Mapping[str, bytes] = {
    "type": _integer(CUDA),
    "exchangeDevice": _integer(_HERE),
    "getDevice": _integer(_HERE),
    "getStream": _stream(_HERE),
    "getDefaultStream": _stream(_HERE),
    "getStreamFromGlobalPool": _stream(_HERE),
    "getNewStream": _stream(_HERE),
    "exchangeStream": _stream(_HERE),
    "queryEvent": _integer(1),
    "deviceCount": _integer(1),
    "getDeviceCapability": _integer(2**64 - 1),  # every type of number
    "queryStream": _integer(1),
    "elapsedTime": _number(0.0),
}
"""What the guard answers; the rest, such as to wait for a stream, does nothing and returns 0."""


def _hooks_code(core: ctypes.CDLL, torch_cpu: ctypes.CDLL) -> dict[str, bytes]:
    """Return what the hooks answer, of which random numbers and pinned memory are the host's; the rest as torch has it."""
    return {
        "isBuilt": _integer(1),
        "isAvailable": _integer(1),
        "hasPrimaryContext": _integer(1),
        "init": _RETURN,
        "deviceCount": _integer(1),
        "setCurrentDevice": _RETURN,
        "getCurrentDevice": _integer(0),
        "exchangeDevice": _integer(0),
        "maybeExchangeDevice": _integer(0),
        "isPinnedPtr": _integer(0),
        "getPinnedMemoryAllocator": _jump(_address(core, _HOST_MEMORY)),
        "getDefaultGenerator": _jump(_address(torch_cpu, _DEFAULT_GENERATOR)),
        "getNewGenerator": _jump(_address(torch_cpu, _NEW_GENERATOR)),
        "hasCUDA": _integer(1),
        "hasCUDART": _integer(1),
        "hasCuDNN": _integer(1),
        "current_device": _integer(0),
        "compiledWithCuDNN": _integer(1),
        "supportsDilatedConvolutionWithCuDNN": _integer(1),
        "supportsDepthwiseConvolutionWithCuDNN": _integer(1),
        "supportsBFloat16ConvolutionWithCuDNNv8": _integer(1),
        "supportsBFloat16RNNWithCuDNN": _integer(1),
        "versionCuDNN": _integer(_CUDNN),
        "versionRuntimeCuDNN": _integer(_CUDNN),
        "batchnormMinEpsilonCuDNN": _number(0.0),
        "getNumGPUs": _integer(1),
        "deviceSynchronize": _RETURN,
    }


def why_not() -> str | None:
    """Return why this process cannot have the pretended device; None if it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"it takes Linux on x86-64, and this is {sys.platform} on {platform.machine()}"
    try:
        guard, hooks = _guard_layout(), _hooks_layout()
        core, torch_cpu = _libraries()
        missing = {*_GUARD_CODE} - {*guard} | {*_hooks_code(core, torch_cpu)} - {*hooks}
        _address(core, _REGISTRY)
        for symbol in (_GET_HOOKS, _PICK, _ASK):
            _address(torch_cpu, symbol)
    except (OSError, ValueError) as error:
        return f"torch {torch.__version__} is built in another way ({error})"
    if missing:
        return f"torch {torch.__version__} asks devices in another way ({', '.join(sorted(missing))})"
    try:
        _executable({"any": _RETURN})
    except OSError as error:
        return f"the system lets no process make code of its own ({error})"
    return None


@contextmanager
def device_in_tables() -> Iterator[None]:
    """Temporarily let torch's C++ find one CUDA device, on which nothing can be computed; afterwards its tables are as before.

    The first backward of a process decides for how many devices autograd has threads, so none may have been before.
    """
    core, torch_cpu = _libraries()
    guard = _guard_layout()
    own = _Table({**dict.fromkeys(guard, _integer(0)), **_GUARD_CODE}, guard)
    hooks = ctypes.CFUNCTYPE(ctypes.c_void_p)(_address(torch_cpu, _GET_HOOKS))()
    assert hooks is not None
    answering = _Table(_hooks_code(core, torch_cpu), _hooks_layout(), like=_word(hooks).value)
    word = ctypes.sizeof(ctypes.c_void_p)
    with (
        _replaced(_address(core, _REGISTRY) + CUDA * word, own.instance),
        _replaced(hooks, answering.functions),
        # the kernel of attention for a device, behind the one for the CPU: asked for through the dispatcher, where modes see it
        _replaced(_address(torch_cpu, _PICK) + word, _address(torch_cpu, _ASK)),
    ):
        yield


@contextmanager
def _replaced(address: int, value: int) -> Iterator[None]:
    """Temporarily put `value` in the memory at `address`."""
    place = _word(address)
    before = place.value
    place.value = value
    try:
        yield
    finally:
        place.value = before


class _Table:
    """A C++ object of no members and its table of functions; stays for the rest of the process.

    Args:
        code: of functions by name.
        layout: their places in the table.
        like: a table, whose functions stand where there is no code.
    """

    def __init__(self, code: Mapping[str, bytes], layout: Mapping[str, int], like: int | None = None) -> None:
        before = 2  # words in front of the first function: the offset of the object, and its type
        words = (ctypes.c_uint64 * (before + 1 + max(layout.values()) + 2))()
        if like is not None:
            ctypes.memmove(words, like - 8 * before, ctypes.sizeof(words))
        for name, address in _executable(code).items():
            words[before + layout[name]] = address
            if name.startswith("~"):  # a destructor has two places
                words[before + layout[name] + 1] = address
        _alive.append(words)
        self.functions = ctypes.addressof(words) + 8 * before
        instance = ctypes.c_uint64(self.functions)
        _alive.append(instance)
        self.instance = ctypes.addressof(instance)


_alive: list[object] = []
"""Memory that threads of autograd may still read: never given back."""


def _executable(code: Mapping[str, bytes]) -> dict[str, int]:
    """Return the addresses of the pieces of code, in memory that may be run."""
    room = 32
    memory = mmap.mmap(-1, room * len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    _alive.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    addresses = {}
    for number, (name, piece) in enumerate(code.items()):
        memory[room * number : room * number + len(piece)] = piece
        addresses[name] = start + room * number
    return addresses


def _word(address: int) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(address)


def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    folder = Path(torch.__file__).parent / "lib"
    return ctypes.CDLL(str(folder / "libc10.so")), ctypes.CDLL(str(folder / "libtorch_cpu.so"))


def _address(library: ctypes.CDLL, symbol: str) -> int:
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(library, symbol))
    except ValueError as error:
        raise ValueError(f"it lacks {symbol}") from error


@cache
def _guard_layout() -> dict[str, int]:
    return _layout(_virtual(_GUARD, "DeviceGuardImplInterface"))


@cache
def _hooks_layout() -> dict[str, int]:
    common, own = _HOOKS
    return _layout(_virtual(common, "AcceleratorHooksInterface") + _virtual(own, "CUDAHooksInterface"))


def _layout(names: list[str]) -> dict[str, int]:
    """Return the place of each function in a table; a destructor takes two."""
    places: dict[str, int] = {}
    place = 0
    for name in names:
        places[name] = place
        place += 2 if name.startswith("~") else 1
    return places


def _virtual(header: str, name: str) -> list[str]:
    """Return the virtual functions that a struct of a header of torch declares, in order."""
    text = (Path(torch.__file__).parent / "include" / header).read_text()
    text = re.sub(r"//[^\n]*|/\*.*?\*/|#ifdef USE_ROCM.*?#endif", "", text, flags=re.DOTALL)
    struct = re.search(rf"struct \w+ {name}\b.*?\n}};", text, flags=re.DOTALL)
    if struct is None:
        raise ValueError(f"{header} lacks {name}")
    return re.findall(r"\bvirtual\s[^;{]*?(~?\w+)\s*\(", struct.group())
