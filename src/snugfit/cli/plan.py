"""The command `plan`: what was asked, for which machine, and where the answer goes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.cli.output import show, write
from snugfit.errors import SettingError
from snugfit.units import parse_bytes

if TYPE_CHECKING:
    from snugfit.planner.answer import Answer
    from snugfit.planning import Target
    from snugfit.recipe import Recipe


@dataclass(frozen=True)
class Asked:
    """Options of `plan`, as they were typed."""

    device: str | None = None
    memory: str | None = None
    host_memory: str | None = None
    devices: int = 1
    link: str | None = None
    host_link: str | None = None
    fidelity: str | None = None
    search: bool = True
    probe: bool = False
    explain: bool = False
    html: Path | None = None
    export: str | None = None
    output: Path = Path(".")
    largest: str | None = None
    nodes: int = 1
    network: str | None = None

    def target(self) -> Target:
        """The machine that is meant.

        Raises:
            SettingError: a size that cannot be read.
        """
        from snugfit.planning import Target

        return Target(
            device=self.device,
            memory=_bytes(self.memory, "--memory"),
            host_memory=_bytes(self.host_memory, "--host-memory"),
            devices=self.devices,
            nodes=self.nodes,
            link=self.link,
            network=self.network,
            host_link=self.host_link,
            fidelity=self.fidelity,
            search=self.search,
            probe=self.probe,
            largest=self.largest,
        )


def plan(path: str, overrides: Sequence[str], asked: Asked, as_json: bool) -> int:
    """Plan a recipe, and show the answer; the exit code is 1 where nothing fits."""
    from snugfit.planner.worker import Worker

    worker = Worker(hide_gpu=not asked.probe)  # loads its libraries while we load ours
    try:
        from snugfit import runs
        from snugfit.recipe import load_recipe, located
        from snugfit.training.told import warnings_told

        with located(path, overrides), warnings_told(_warn):
            recipe = load_recipe(path, overrides)
            answer = runs.plan_recipe(recipe, asked.target(), worker)
    finally:
        worker.close()
    answer = _with_command(answer, path, overrides)
    _deliver(answer, recipe, asked)
    if as_json:
        show(answer.as_dict(), as_json)
    else:
        from snugfit.display.plan import show_plan

        show_plan(answer, explain=asked.explain)
    return 0 if answer.fits else 1


def calibrate() -> None:
    """Measure the device at hand, and say what was found."""
    import torch

    from snugfit.planner.calibrate import calibrate as measure
    from snugfit.training.assemble import find_device

    print("measuring this device, for some 20 seconds; let nothing else run beside it", file=sys.stderr)
    found = measure(torch.device(find_device("auto")))
    rates = {name: f"{rate / 1e12:.3g} TFLOP/s" for name, rate in found.flops.items()}
    show({"device": found.name, **rates, "memory": f"{found.bandwidth * found.reach / 1e9:.3g} GB/s"}, False)


def _deliver(answer: Answer, recipe: Recipe, asked: Asked) -> None:
    if asked.html is not None:
        from snugfit.report.plan_page import write_plan_page

        print(f"page  {write_plan_page(answer, asked.html)}", file=sys.stderr)
    if asked.export is not None:
        from snugfit import runs

        found = runs.export_plan(recipe, answer, asked.export)
        for name, text in found.files:
            write(asked.output / name, text)
            print(f"{asked.export}  {asked.output / name}", file=sys.stderr)
        for sentence in found.left_out:
            print(f"warning: {sentence}", file=sys.stderr)


def _with_command(answer: Answer, path: str, overrides: Sequence[str]) -> Answer:
    """The answer with the command that runs its choice; a recipe that is run plans for itself."""
    import shlex
    from dataclasses import replace

    if not answer.fits or (answer.largest is not None and answer.largest.what == "model"):
        return answer
    if answer.largest is not None:
        value = answer.largest.value
        sizes = {
            "batch": (f"train.global_batch={value}", f"plan.micro_batch={value}"),
            "sequence": (f"data.max_length={value}",),
        }
        overrides = [*overrides, *sizes[answer.largest.what]]
    return replace(answer, command=shlex.join(["snugfit", "train", path, *overrides]))


def _bytes(text: str | None, option: str) -> int | None:
    return None if text is None else parse_bytes(text, option)


def _warn(_: str, /, **fields: Any) -> None:
    print(f"warning: {fields['message']}", file=sys.stderr)


def check(asked: Asked) -> None:
    """Refuse what no plan can be made for.

    Raises:
        SettingError: names the option.
    """
    if asked.devices < 1:
        raise SettingError(f"--devices: must be at least 1, found {asked.devices}.")
    if asked.largest is not None and asked.devices * asked.nodes > 1:
        raise SettingError(
            f"--max: is looked for on one device, and there are {asked.devices * asked.nodes}. Leave --devices and --nodes out."
        )
    if asked.largest is not None and asked.export is not None:
        raise SettingError(
            "--max: looks for a size, and --export writes the plan of the recipe as it is. Give one of them."
        )
    if asked.probe and (asked.device is not None or asked.devices * asked.nodes > 1):
        raise SettingError(
            "--probe: measures on the device at hand, and another machine is named. Give one of them."
        )
    if asked.link is not None and asked.devices == 1:
        raise SettingError("--link: is between devices, and there is one. Give --devices.")
    if asked.nodes < 1:
        raise SettingError(f"--nodes: must be at least 1, found {asked.nodes}.")
    if (asked.network is None) != (asked.nodes == 1):
        raise SettingError(
            f"--network: is what joins nodes, of which there are {asked.nodes}. Give both --nodes and --network, such as "
            "infiniband-ndr, or neither."
        )
