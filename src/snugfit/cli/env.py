"""`snugfit env`: the environment, for a bug report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from snugfit.cli.options import JsonOption
from snugfit.cli.output import show
from snugfit.units import format_bytes


def env(as_json: JsonOption = False) -> None:
    """Show versions, devices and memory, as a bug report needs them. Secrets are left out."""
    from snugfit.system.environment import environment

    found = environment()
    if as_json:
        show(found, as_json)
    else:
        print("\n".join(f"{label:<11}{text}" for label, text in _lines(found)))


def _lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each line as its label and its text."""
    own, torch, processor, memory = (found[name] for name in ("snugfit", "torch", "processor", "memory"))
    commit = f", commit {own['commit']}{' with changes' * own['changed']}" if "commit" in own else ""
    yield "snugfit", f"{own['version'] or 'not installed'}{commit}, in {own['folder']}"
    yield "python", f"{found['python']['version']}, {found['python']['executable']}"
    yield "system", found["system"]["platform"] + (", in a notebook" if found["system"]["notebook"] else "")
    yield (
        "processor",
        f"{processor['name']}, {processor['usable_cores']} of {processor['cores']} cores usable, "
        f"{processor['torch_threads']} threads of torch",
    )
    free = memory["free_bytes"]
    yield (
        "memory",
        format_bytes(memory["total_bytes"]) + ("" if free is None else f", {format_bytes(free)} free"),
    )
    built = (
        f"CUDA {torch['cuda']}" if torch["cuda"] else f"ROCm {torch['hip']}" if torch["hip"] else "CPU alone"
    )
    yield (
        "torch",
        f"{torch['version']}, built for {built}" + (f", cuDNN {torch['cudnn']}" if torch["cudnn"] else ""),
    )
    yield from (("device", _device(each)) for each in found["devices"])
    if not found["devices"]:
        yield "device", "no accelerator that torch can use"
    yield "packages", ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    if found["missing"]:
        yield (
            "missing",
            ", ".join(
                f"{name} (snugfit[{extra}])" if extra else name for name, extra in found["missing"].items()
            ),
        )
    yield from (("variable", f"{name}={value}") for name, value in found["variables"].items())


def _device(device: Mapping[str, Any]) -> str:
    parts = [f"{device['kind']} {device['name']}", format_bytes(device["total_bytes"])]
    if "free_bytes" in device:
        parts[-1] += f" ({format_bytes(device['free_bytes'])} free)"
    if "capability" in device:
        parts.append(f"compute capability {device['capability']}")
        parts.append("bf16 units" if device["bf16"] else "no bf16 units")
    return ", ".join(parts)
