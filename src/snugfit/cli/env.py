"""`snugfit env`: the environment, for a bug report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from snugfit.cli.common.options import JsonOption
from snugfit.cli.common.output import show
from snugfit.display.activity import Activity
from snugfit.units import format_bytes


def env(as_json: JsonOption = False) -> None:
    """Show versions, devices and memory, as a bug report needs them. Secrets are left out."""
    with Activity(text="looking at this machine …", at_once=False):
        from snugfit.system.environment import environment

        facts = environment()
    if as_json:
        show(facts, as_json)
    else:
        print("\n".join(f"{label:<11}{text}" for label, text in _lines(facts)))


def _lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each line as its label and its text."""
    own, torch, processor, memory = (facts[name] for name in ("snugfit", "torch", "processor", "memory"))
    commit = f", commit {own['commit']}{' with changes' * own['changed']}" if "commit" in own else ""
    yield "snugfit", f"{own['version'] or 'not installed'}{commit}, in {own['folder']}"
    yield "python", f"{facts['python']['version']}, {facts['python']['executable']}"
    yield "system", facts["system"]["platform"] + (", in a notebook" if facts["system"]["notebook"] else "")
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
    yield from (("device", _device(each)) for each in facts["devices"])
    if not facts["devices"]:
        yield "device", "no accelerator that torch can use"
    yield "packages", ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    if facts["missing"]:
        yield (
            "missing",
            ", ".join(
                f"{name} (snugfit[{extra}])" if extra else name for name, extra in facts["missing"].items()
            ),
        )
    yield from (("variable", f"{name}={value}") for name, value in facts["variables"].items())


def _device(device: Mapping[str, Any]) -> str:
    parts = [f"{device['kind']} {device['name']}", format_bytes(device["total_bytes"])]
    if "free_bytes" in device:
        parts[-1] += f" ({format_bytes(device['free_bytes'])} free)"
    if "capability" in device:
        parts.append(f"compute capability {device['capability']}")
        parts.append("bf16 units" if device["bf16"] else "no bf16 units")
    return ", ".join(parts)
