"""A model that writes or scores texts within a budget of memory: planned before the first token, then placed as the plan says."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.tree import leaves
from snugfit.deliver.predictor import BATCH_ROWS, Predictor
from snugfit.errors import ModelError, SettingError, Untraceable, nearest
from snugfit.kit.language_models.generation import Generation, room, writes_another_text
from snugfit.kit.mapped_tensors import bytes_in_files
from snugfit.kit.placement import place_
from snugfit.kit.streaming.weight_stream import WeightStream, blocks_of
from snugfit.planner.choice.candidate import Budget, margin_on
from snugfit.planner.cost.allocator import AllocatorSettings
from snugfit.planner.devices.device import Machine
from snugfit.planner.devices.hardware import find_device as known_device
from snugfit.planner.generation import GenerationPlan, plan_generation
from snugfit.planner.trace.generation_run import Answering, dry_run_generation
from snugfit.step.build import find_device
from snugfit.step.evaluate import score_together
from snugfit.system.malloc import trim_malloc, tune_malloc
from snugfit.system.memory import available_bytes, memory_bytes
from snugfit.techniques import find

QUANTIZATIONS = ("nf4", "int8")
NUMBERS = ("bf16", "fp16", "fp32")
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def in_numbers(predictor: Predictor, numbers: str | None, quantize: str | None) -> Predictor:
    """Return the same with weights in other numbers, which changes its answers.

    Args:
        numbers: one of `NUMBERS`; None: as they were trained.
        quantize: one of `QUANTIZATIONS`, for linear layers.
    Raises:
        SettingError: there is no such format.
    """
    model = predictor.model
    if numbers is not None:
        if numbers not in _TYPES:
            raise SettingError("numbers", f"there is no format '{numbers}'", nearest(numbers, NUMBERS))
        model = model.to(_TYPES[numbers])
    if quantize is not None:
        if quantize not in QUANTIZATIONS:
            raise SettingError(
                "quantize", f"there is no format '{quantize}'", nearest(quantize, QUANTIZATIONS)
            )
        model = find(quantize)().prepare(model.requires_grad_(False))
    return replace(predictor, model=model)


def within_memory(
    predictor: Predictor,
    lengths: Sequence[int],
    memory: int | None = None,
    *,
    scored: bool = False,
    device: str = "auto",
    machine: Machine | None = None,
) -> tuple[Predictor, GenerationPlan | None]:
    """Return the predictor on its device, with as many rows at once and as many streamed layers as its memory asks for, and the plan of that.

    Args:
        predictor: on the host.
        lengths: tokens of each prompt, or of each text that is scored.
        memory: bytes that the process may take of the device; by default what is free.
        scored: whether texts are scored, and none is written.
        device: that it computes on.
        machine: that is planned for in place of this one.
    Returns:
        No plan where nothing was asked for and the model cannot be planned.
    Raises:
        DataError: a prompt fills the model's positions.
        SettingError: the memory does not hold a single answer, or text that is scored.
    """
    use = predictor.inference
    if use.generation is None or (scored and writes_another_text(predictor.model)):
        raise ModelError(
            predictor.source,
            f"is of the task '{predictor.meta.get('task')}', which {'scores' if scored else 'writes'} no texts whose memory is planned",
            "Leave out memory.",
        )
    torch_device = torch.device(find_device(device))
    if memory is not None and torch_device.type == "cpu":
        tune_malloc()  # what is freed would stay in the heap otherwise, beside what is planned
    longest = max(lengths, default=1)
    rows = min(BATCH_ROWS, max(1, len(lengths)))
    asked = _asked(predictor, use.generation, longest, rows, scored=scored)
    file_bytes = bytes_in_files(predictor.model.parameters()) if torch_device.type == "cpu" else 0
    try:
        if machine is None and torch_device.type == "cpu":
            _load_planner(predictor.model, asked)
        machine = machine or _this_machine(torch_device, predictor.model)
        budget = _budget(memory, machine, torch_device)
        plan = plan_generation(predictor.model, asked, machine, budget, file_bytes=file_bytes)
    except Untraceable:
        if memory is not None:
            raise
        return _placed(predictor, torch_device, None), None
    return replace(_placed(predictor, torch_device, plan.resident), rows=plan.rows), plan


def _asked(predictor: Predictor, settings: Generation, longest: int, rows: int, *, scored: bool) -> Answering:
    model = predictor.model

    def on(model: nn.Module, batch: Batch) -> Predictor:
        return replace(predictor, model=model, device=_device_of(batch))

    if scored:
        settings = replace(settings, num_beams=1)
        return Answering(
            longest,
            0,
            rows,
            settings,
            lambda _model, _batch: nullcontext(),
            lambda model, batch: score_together(on(model, batch).scored(), batch),
        )
    new_tokens = room(model, 0 if writes_another_text(model) else longest, settings.max_new_tokens)
    return Answering(
        longest,
        new_tokens,
        rows,
        settings,
        lambda model, batch: on(model, batch).numerics(batch),
    )


def _device_of(batch: Batch) -> torch.device:
    return next(iter(leaves(batch.data))).device


def _load_planner(model: nn.Module, asked: Answering) -> None:
    """Make a dry run of one answer: what the planner loads and keeps stays beside the answers, some 45 MB that are to be counted with the process."""
    dry_run_generation(model, asked, 1, "cpu")
    gc.collect()
    trim_malloc()


def _this_machine(device: torch.device, model: nn.Module) -> Machine:
    """Return the machine at hand, with what this process takes beside the weights of a model that lie in its memory."""
    host = known_device("cpu")
    if device.type != "cpu":
        known, settings = known_device(device.type), AllocatorSettings.of(os.environ)
        return Machine(
            known, host, device.type, settings.notes, expandable_segments=settings.expandable_segments
        )
    weights = {each.untyped_storage().data_ptr(): each for each in (*model.parameters(), *model.buffers())}
    held = sum(each.untyped_storage().nbytes() for each in weights.values())
    inside = held - bytes_in_files(weights.values())
    return Machine(host, host, "cpu", baseline=max(0, memory_bytes(device) - inside))


def _budget(memory: int | None, machine: Machine, device: torch.device) -> Budget:
    if memory is None:
        free = available_bytes(device)
        used = memory_bytes(device) if device.type == "cpu" else machine.device.reserved
        memory = machine.device.memory_bytes if free is None else free + used
    return Budget(memory, margin=margin_on(machine.device.kind))


def _placed(predictor: Predictor, device: torch.device, resident: int | None) -> Predictor:
    """Return the predictor with its weights on a device, or with the blocks beyond so many of them streamed to it."""
    if resident is None:
        return replace(predictor, model=place_(predictor.model, device), device=device, stream=None)
    model = predictor.model.requires_grad_(False)
    blocks = blocks_of(model, ())
    place_(model, device, tuple(blocks))
    stream = WeightStream(model, device, blocks, resident)
    return replace(predictor, model=model, device=device, stream=stream)
