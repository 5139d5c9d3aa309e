"""The command `plan`: what was asked, for which machine, and where the answer goes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snugfit.cli.common import completion
from snugfit.cli.common.options import AllowCodeOption, JsonOption, OverrideArguments, RecipeArgument
from snugfit.cli.common.output import show
from snugfit.cli.common.planner_process import load_libraries
from snugfit.cli.common.training import no_recipe, split
from snugfit.core.job import AUTO
from snugfit.errors import SettingError
from snugfit.system.redaction import redact
from snugfit.units import parse_bytes

if TYPE_CHECKING:
    from snugfit.planner.answers.answer import Answer
    from snugfit.planner.target import Target
    from snugfit.recipe import Recipe


def plan(
    recipe: RecipeArgument = None,
    overrides: OverrideArguments = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Another device than this one: t4, rtx4090, h100.",
            autocompletion=completion.devices,
        ),
    ] = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Of the device: 24GiB.")] = None,
    host_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Of the host: 64GiB.")] = None,
    devices: Annotated[
        int | None, typer.Option(metavar="N", help="How many of them on each node (plan.devices).")
    ] = None,
    nodes: Annotated[int, typer.Option(metavar="N", help="How many machines with as many devices.")] = 1,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Between the devices of a node: pcie4, nvlink4.",
            autocompletion=completion.links,
        ),
    ] = None,
    network: Annotated[
        str | None, typer.Option(metavar="NAME", help="Between nodes: ethernet-25, infiniband-ndr.")
    ] = None,
    host_link: Annotated[
        str | None, typer.Option(metavar="NAME", help="Between a device and the host.")
    ] = None,
    fidelity: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL", help="The coarsest precision: full, mixed, compact, adapters, quantized."
        ),
    ] = None,
    goal: Annotated[
        str | None,
        typer.Option(
            metavar="GOAL", help="fastest, finest, smallest or cheapest (plan.goal; plan.price for the last)."
        ),
    ] = None,
    worth: Annotated[
        float | None,
        typer.Option(
            metavar="TIMES", help="As fast as a plan below mixed has to be where something finer fits."
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(metavar="N", help="That the search may take; else as long as it needs.")
    ] = None,
    search: Annotated[
        bool, typer.Option(help="Look for a plan that fits, or only predict the recipe's.")
    ] = True,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Measure on this device, for models that cannot be planned otherwise."),
    ] = False,
    replan: Annotated[bool, typer.Option("--replan", help="Plan anew, though a plan is kept.")] = False,
    frontier: Annotated[
        bool,
        typer.Option("--frontier", help="Search every level of fidelity for its fastest and smallest plan."),
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Why, and all that was tried.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with pictures.")] = None,
    export: Annotated[
        str | None,
        typer.Option(metavar="TOOL", help="Write it for hf, accelerate, lightning, deepspeed or torchtitan."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where exported files go.")
    ] = Path("."),
    largest: Annotated[
        str | None,
        typer.Option("--max", metavar="SIZE", help="The largest that fits: batch, sequence or model."),
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure this device first, for some 20 seconds.")
    ] = False,
    allow_code: AllowCodeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Say what a recipe needs, in memory and time, before it runs: here or on another machine.

    Nothing is trained and no weights are loaded. Exit code 1: nothing that may be chosen fits.
    """
    path, changes = split(recipe, overrides)
    if calibrate:
        _calibrate()
        if path is None:
            return 0
    if path is None:
        raise no_recipe("plan")
    asked = Asked(
        device=device,
        memory=memory,
        host_memory=host_memory,
        devices=devices,
        link=link,
        host_link=host_link,
        fidelity=fidelity,
        goal=goal,
        worth=worth,
        seconds=seconds,
        search=search,
        probe=probe,
        replan=replan,
        frontier=frontier,
        explain=explain,
        html=html,
        export=export,
        output=output,
        largest=largest,
        nodes=nodes,
        network=network,
    )
    check(asked)
    return _plan(path, changes, asked, as_json, allow_code=allow_code)


@dataclass(frozen=True)
class Asked:
    """Options of `plan`, as they were typed."""

    device: str | None = None
    memory: str | None = None
    host_memory: str | None = None
    devices: int | None = None
    link: str | None = None
    host_link: str | None = None
    fidelity: str | None = None
    goal: str | None = None
    worth: float | None = None
    seconds: float | None = None
    search: bool = True
    probe: bool = False
    replan: bool = False
    frontier: bool = False
    explain: bool = False
    html: Path | None = None
    export: str | None = None
    output: Path = Path(".")
    largest: str | None = None
    nodes: int = 1
    network: str | None = None

    def settings(self) -> list[str]:
        """Return the options by which a plan is chosen as the overrides with which `train` chooses so too."""
        named = {
            "budget.memory": self.memory,
            "budget.host_memory": self.host_memory,
            "budget.fidelity": self.fidelity,
            "plan.goal": self.goal,
            "plan.worth": self.worth,
        }
        return [f"{name}={value}" for name, value in named.items() if value is not None]

    def target(self, devices: int) -> Target:
        """Return the machine that is meant.

        Args:
            devices: where the command does not say how many.
        Raises:
            SettingError: a size that cannot be read.
        """
        from snugfit.planner.target import Target

        return Target(
            device=self.device,
            memory=_bytes(self.memory, "--memory"),
            host_memory=_bytes(self.host_memory, "--host-memory"),
            devices=devices if self.devices is None else self.devices,
            nodes=self.nodes,
            link=self.link,
            network=self.network,
            host_link=self.host_link,
            fidelity=self.fidelity,
            goal=self.goal,
            worth=self.worth,
            seconds=self.seconds,
            frontier=self.frontier,
            search=self.search,
            probe=self.probe,
            largest=self.largest,
            export=self.export,
        )


def _plan(path: str, overrides: Sequence[str], asked: Asked, as_json: bool, *, allow_code: bool) -> int:
    """Plan a recipe, and show the answer; the exit code is 1 where nothing fits."""
    from snugfit.deliver.files import check_output, check_output_folder
    from snugfit.display.search_line import search_line
    from snugfit.planner.worker import Worker
    from snugfit.recipe.load import read_file
    from snugfit.recipe.strict_yaml import Places

    if asked.html is not None:
        check_output(asked.html, path, "--html", "plan.html", "recipe")
    if asked.export is not None:
        check_output_folder(asked.output, "--output")
    if not Path(path).is_fifo():  # what comes by a pipe is read once
        read_file(
            Path(path), Places(path)
        )  # a mistake in the file is said before libraries are loaded for it
    with ExitStack() as stack:
        watch = stack.enter_context(search_line())
        worker = Worker(not asked.probe, watch, best_so_far=True)  # loads its libraries while we load ours
        stack.callback(worker.close)
        from snugfit.cli.common import recipes
        from snugfit.planner.choice.goals import check_goal
        from snugfit.recipe import located

        with located(path, overrides):
            recipe = recipes.load(path, overrides, allow_code=allow_code, rows_here="present")
            check_goal(asked.goal or recipe.plan.goal, recipe.plan.price)
            if asked.export is not None:
                from snugfit.planner import export

                export.check(asked.export, None if recipe.plan.strategy == AUTO else recipe.plan.strategy)
                if asked.search:
                    print(f"export    only what {asked.export} has too is weighed", file=sys.stderr)
            load_libraries(worker, recipe)
            from snugfit.run.plans import recipe_plan  # takes long, and the worker need not wait for it

            target = asked.target(1 if asked.probe else recipe.plan.devices)
            answer = recipe_plan.plan_recipe(recipe, target, worker, anew=asked.replan)
    consent = ["--allow-code"] if allow_code and recipe.code else []
    devices = recipe.plan.devices if asked.devices is None else asked.devices
    sizes = recipe.train.sizes_removed
    answer = _with_command(
        answer, path, [*overrides, *asked.settings()], devices, consent, recipe.plan.devices, sizes
    )
    try:
        _deliver(answer, recipe, asked)
    finally:  # a page that cannot be written does not take the answer with it
        if as_json:
            show(answer.as_dict(), as_json)
        else:
            from snugfit.display.plan_view import show_plan

            show_plan(answer, explain=asked.explain)
    return 0 if answer.fits else 1


def _calibrate() -> None:
    """Measure the device at hand, and say what was found."""
    import torch

    from snugfit.planner.calibration.calibrate import calibrate as measure
    from snugfit.step.build import find_device

    print("measuring this device, for some 20 seconds; let nothing else run beside it", file=sys.stderr)
    device = measure(torch.device(find_device("auto")))
    rates = {name: f"{rate / 1e12:.3g} TFLOP/s" for name, rate in device.flops.items()}
    show(
        {"device": device.name, **rates, "memory": f"{device.bandwidth * device.reach / 1e9:.3g} GB/s"}, False
    )


def _deliver(answer: Answer, recipe: Recipe, asked: Asked) -> None:
    if asked.html is not None:
        from snugfit.report.page import make_folder_of
        from snugfit.report.plan_page import write_plan_page

        make_folder_of(asked.html)
        print(f"page  {write_plan_page(answer, asked.html)}", file=sys.stderr)
    if asked.export is not None:
        from snugfit.planner.export import write_export
        from snugfit.run.plans import recipe_plan

        exported = recipe_plan.export_plan(
            recipe, answer, asked.export, _nodes(answer, asked.devices or recipe.plan.devices)
        )
        paths, outdated = write_export(exported, asked.output)
        for path in paths:
            print(f"{asked.export}  {path}", file=sys.stderr)
        for sentence in [*outdated, *exported.left_out]:
            print(f"warning: {sentence}", file=sys.stderr)


def _nodes(answer: Answer, devices: int) -> int:
    """Return how many nodes of so many devices the choice takes."""
    return -(-answer.choice.devices // devices)


def _with_command(
    answer: Answer,
    path: str,
    overrides: Sequence[str],
    devices: int,
    consent: Sequence[str],
    of_recipe: int = 1,
    sizes_removed: Mapping[str, Any] | None = None,
) -> Answer:
    """Return the answer with the command that runs its choice; a recipe that is run on one node plans for itself.

    Args:
        devices: of each node; `of_recipe`: those that the recipe names.
        sizes_removed: of the recipe's windows, `Train.sizes_removed`; the largest batch is of one size.
    """
    import shlex
    from dataclasses import replace

    if not answer.fits or (answer.largest is not None and answer.largest.what == "model"):
        return answer
    if answer.largest is not None:
        value = answer.largest.value
        sizes = {
            "batch": (
                f"train.global_batch={value}",
                f"plan.micro_batch={value}",
                *(f"train.{name}={json.dumps(each)}" for name, each in (sizes_removed or {}).items()),
            ),
            "sequence": (f"data.max_length={value}",),
        }
        overrides = [*overrides, *sizes[answer.largest.what]]
    choice, train = answer.choice, ["snugfit", "train", path, *overrides, *consent]
    nodes = _nodes(answer, devices)
    if choice.devices == 1 and of_recipe > 1:
        train += ["--devices", "1"]
    elif choice.devices > 1 and nodes == 1:
        train += ["--devices", str(choice.devices), "--strategy", choice.strategy]
    elif choice.devices > 1:
        if choice.added:
            return answer  # which the recipe would have to have, as nothing is planned then
        each = ["--nnodes", str(nodes), "--nproc-per-node", str(choice.devices // nodes)]
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "FIRST_HOST:29500"]
        so = ["--strategy", choice.strategy, f"plan.micro_batch={choice.micro_batch}"]
        train = ["torchrun", *each, *meeting, "-m", *train, *so]
    return replace(answer, command=redact(shlex.join(train)))


def _bytes(text: str | None, option: str) -> int | None:
    return None if text is None else parse_bytes(text, option)


def check(asked: Asked) -> None:
    """Refuse what no plan can be made for.

    Raises:
        SettingError: names the option.
    """
    from snugfit.planner.devices.data_sheets import check_device

    if asked.device is not None:
        check_device(asked.device)
    devices = 1 if asked.devices is None else asked.devices
    if devices < 1:
        raise SettingError("--devices", f"must be at least 1, found {devices}", "Give 1 or more.")
    if asked.largest is not None and devices * asked.nodes > 1:
        raise SettingError(
            "--max",
            f"is looked for on one device, and there are {devices * asked.nodes}",
            "Leave --devices and --nodes out.",
        )
    if asked.largest is not None and asked.export is not None:
        raise SettingError(
            "--max",
            "looks for a size, and --export writes the plan of the recipe as it is",
            "Give one of them.",
        )
    if asked.frontier and (not asked.search or asked.probe or asked.largest is not None):
        raise SettingError(
            "--frontier",
            "searches for plans, and --no-search, --probe and --max search for none",
            "Give one of them.",
        )
    if asked.probe and (asked.device is not None or devices * asked.nodes > 1):
        raise SettingError(
            "--probe", "measures on the device at hand, and another machine is named", "Give one of them."
        )
    if asked.link is not None and asked.devices in (None, 1):
        raise SettingError("--link", "is between devices, and there is one", "Give --devices.")
    if asked.nodes < 1:
        raise SettingError("--nodes", f"must be at least 1, found {asked.nodes}", "Give 1 or more.")
    if (asked.network is None) != (asked.nodes == 1):
        raise SettingError(
            "--network",
            f"is what joins nodes, of which there are {asked.nodes}",
            "Give both --nodes and --network, such as infiniband-ndr, or neither.",
        )
