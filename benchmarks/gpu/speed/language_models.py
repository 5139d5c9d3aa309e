"""GPT-2 124M and a Llama of 1B in bf16: Snugfit's step, its whole run, a loop written by hand, Trainer and Lightning, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from checks import Settings, check, release, require, wait
from material import GIB, LLAMAS, gpt2, llama, technique, tokens_window

SLOWER = 1.05
"""Times a hand-written loop's seconds that a step may take on a GPU; in tiny on a CPU the host's part is most of an update."""


@contextmanager
def a_step_that_sleeps() -> Iterator[None]:
    """Temporarily let each update sleep for a second."""
    from snugfit.step.step import Step

    call: Callable[..., Any] = Step.__call__

    def slow(self: Any, batch: Any) -> Any:
        time.sleep(1.0)
        return call(self, batch)

    with mock.patch.object(Step, "__call__", slow):
        yield


SMALL = 100 * GIB
"""Memory of a device below which fewer of the larger model's trainers are there at a time, each with smaller micro-batches."""


def is_small(settings: Settings) -> bool:
    if not settings.cuda:
        return False
    import torch

    return torch.cuda.get_device_properties(0).total_memory < SMALL


def sizes(settings: Settings, kind: str) -> tuple[int, int, int]:
    """Return rows of an update, tokens of a row, and rows of a micro-batch."""
    llama = (8, 2048, 2 if is_small(settings) else 4)
    return settings.size({"gpt2": (32, 1024, 16), "llama": llama}[kind], (4, 16, 2))


def model_of(settings: Settings, kind: str) -> Any:
    _, tokens, _ = sizes(settings, kind)
    if kind == "gpt2":
        return gpt2(settings.device, settings.toy, tokens).to(settings.device)
    import torch

    with torch.device(settings.device):  # where weights are drawn sooner
        return llama(settings.size("1b", "toy"), tokens, settings.device)


def vocabulary(settings: Settings, kind: str) -> int:
    if kind == "gpt2":
        return settings.size(50257, 128)
    return LLAMAS[settings.size("1b", "toy")]["vocabulary"]


def snugfit_step(settings: Settings, kind: str, *names: Any) -> Callable[[], Any]:
    """Return an update of Snugfit's step, with what the loop by hand has, and these techniques."""
    from snugfit import Step

    rows, tokens, micro_batch = sizes(settings, kind)
    precise = any(name in ("bf16", "pure_bf16") for name in names)
    step = Step(
        model_of(settings, kind),
        technique("adamw", learning_rate=1e-4),
        "causal_lm",
        [
            technique("clip_norm", max_norm=1.0),
            *([] if precise else [technique("bf16")]),
            *(technique(each) if isinstance(each, str) else each for each in names),
        ],
        micro_batch=micro_batch,
        nominal=float(rows * tokens),
    )
    data = pinned(settings, kind)
    return lambda: step(data)


def pinned(settings: Settings, kind: str) -> dict[str, Any]:
    rows, tokens, _ = sizes(settings, kind)
    data = tokens_window(vocabulary(settings, kind), rows, tokens)
    return {name: tensor.pin_memory() if settings.cuda else tensor for name, tensor in data.items()}


def snugfit_run(settings: Settings, kind: str) -> Any:
    """Return a whole run of `snugfit.train`, which waits at each of its updates for its turn."""
    from turns import Threaded

    rows, _, micro_batch = sizes(settings, kind)

    def train(after_update: Callable[[], None]) -> None:
        from frameworks import Rows

        import snugfit as sf

        def display(event: Mapping[str, Any]) -> None:
            if event["event"] == "update":
                after_update()

        sf.train(
            model_of(settings, kind),
            Rows(tokens_window(vocabulary(settings, kind), rows, sizes(settings, kind)[1])),
            loss="causal_lm",
            optimizer=technique("adamw", learning_rate=1e-4),
            techniques=[technique("clip_norm", max_norm=1.0), technique("bf16")],
            global_batch=rows,
            micro_batch=micro_batch,
            updates=100_000,
            checkpoint_every=100_000,
            device=settings.device,
            output=settings.folder / "runs",
            track=False,
            display=display,
        )

    return Threaded(train)


def idle_share(update: Callable[[], Any], settings: Settings) -> float | None:
    """Return the share of an update's time in which the device computes and copies nothing; None on a CPU."""
    if not settings.cuda:
        return None
    from torch.profiler import ProfilerActivity, profile

    update()
    wait("cuda")
    began = time.perf_counter()
    update()
    wait("cuda")
    seconds = time.perf_counter() - began
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        update()
        wait("cuda")
    spans = sorted(
        (each.start_ns(), each.start_ns() + each.duration_ns())
        for each in profiled.profiler.kineto_results.events()
        if "CUDA" in str(each.device_type())
    )
    busy, until = 0, 0
    for start, stop in spans:
        busy += max(0, stop - max(start, until))
        until = max(until, stop)
    return max(0.0, 1 - busy / 1e9 / seconds)


def beside_others(settings: Settings, kind: str) -> Mapping[str, Any]:
    import importlib.util

    import frameworks
    from turns import Loop, in_turns

    rows, tokens, micro_batch = sizes(settings, kind)
    data = tokens_window(vocabulary(settings, kind), rows, tokens)
    tuned = {
        "bf16": True,
        "optim": "adamw_torch_fused" if settings.cuda else "adamw_torch",
        "max_grad_norm": 1.0,
    }
    makers: dict[str, Any] = {
        "by hand": lambda: frameworks.by_hand(
            model_of(settings, kind), data, settings.device, micro_batch, {}
        ),
        "snugfit step": lambda: Loop(snugfit_step(settings, kind)),
    }
    if kind == "gpt2":  # of the larger model the others fill the device
        makers["snugfit train"] = lambda: snugfit_run(settings, kind)
    alone = kind == "llama" and is_small(settings)
    if importlib.util.find_spec("accelerate") is not None and not alone:
        makers["transformers Trainer"] = lambda: frameworks.trainer(
            model_of(settings, kind), data, settings.device, micro_batch, tuned
        )
    if importlib.util.find_spec("lightning") is not None and not alone:
        makers["lightning"] = lambda: frameworks.lightning(
            model_of(settings, kind), data, settings.device, micro_batch, {}
        )
    about = {"rows": rows, "tokens": tokens, "micro_batch": micro_batch, "Trainer's settings": tuned}
    rivals = in_turns(
        makers,
        settings.device,
        tokens=rows * tokens,
        updates=settings.size(3, 2),
        repeats=settings.size(7, 3),
        note=lambda rows: settings.note({**about, "rivals": rows}),
    )
    figures: dict[str, Any] = {**about, "rivals": rivals}
    ours, hand = rivals["snugfit step"], rivals["by hand"]
    for name in rivals.keys() & {"snugfit step", "snugfit train", "by hand"}:
        require("error" not in rivals[name], f"{name}: {rivals[name].get('error')}", **figures)
    ratio = ours["seconds_per_update"]["median"] / hand["seconds_per_update"]["median"]
    figures["times a loop by hand"] = ratio
    limit = settings.size(SLOWER, 8.0)
    require(ratio <= limit, f"a step takes {ratio:.3f} times what a loop by hand does", **figures)
    return figures


PLANTS = {"slow": a_step_that_sleeps}


@check("GPT-2 124M in bf16 beside others", 90, alone=True, plants=PLANTS)
def gpt2_beside_others(settings: Settings) -> Mapping[str, Any]:
    return beside_others(settings, "gpt2")


@check("Llama 1B in bf16 beside others", 120, alone=True)
def llama_beside_others(settings: Settings) -> Mapping[str, Any]:
    return beside_others(settings, "llama")


@check("idle time of an update", 60, alone=True)
def idle(settings: Settings) -> Mapping[str, Any]:
    """Measure how long the device waits for the host, by the profiler's kernels."""
    import frameworks

    figures: dict[str, Any] = {}
    for kind in ("gpt2", "llama"):
        rows, tokens, micro_batch = sizes(settings, kind)
        data = tokens_window(vocabulary(settings, kind), rows, tokens)
        figures[f"{kind}: snugfit"] = idle_share(snugfit_step(settings, kind), settings)
        release(settings.device)
        hand = frameworks.by_hand(model_of(settings, kind), data, settings.device, micro_batch, {})
        figures[f"{kind}: by hand"] = idle_share(lambda rival=hand: rival.turn(1), settings)
        del hand
        release(settings.device)
        settings.note(figures)
    return figures


@check("ways to be faster: compile, fp8, chunked loss", 150, alone=True)
def faster(settings: Settings) -> Mapping[str, Any]:
    """Measure techniques beside the step without them, in turns."""
    from turns import Loop, in_turns

    kind = "gpt2"
    rows, tokens, _ = sizes(settings, kind)
    ways: dict[str, tuple[Any, ...]] = {
        "bf16": (),
        "bf16, chunked_loss": ("chunked_loss",),
        "pure_bf16": ("pure_bf16",),
    }
    if settings.cuda:
        ways["bf16, compile"] = (technique("compile", mode="default"),)
        ways["bf16, fp8"] = ("fp8",)
        ways["bf16, fp8, compile"] = ("fp8", technique("compile", mode="default"))
    makers = {
        name: (lambda names=names: Loop(snugfit_step(settings, kind, *names))) for name, names in ways.items()
    }
    figures = in_turns(
        makers,
        settings.device,
        tokens=rows * tokens,
        warm=3,
        updates=settings.size(3, 1),
        repeats=settings.size(5, 3),
        note=lambda ways: settings.note({"rows": rows, "tokens": tokens, "ways": ways}),
    )
    require("error" not in figures["bf16"], f"bf16: {figures['bf16'].get('error')}", ways=figures)
    return {"rows": rows, "tokens": tokens, "ways": figures}
