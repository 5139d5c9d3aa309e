"""The machine that answers are planned for, and answers of a model that does not fit it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from snugfit.deliver import generation_memory
from snugfit.deliver.generate import load_generator
from snugfit.deliver.generation_memory import within_memory
from snugfit.kit.language_models.generation import Generation
from snugfit.models.bundle import save_bundle
from snugfit.planner.devices.device import Machine
from snugfit.planner.devices.hardware import find_device
from tests.unit.tasks.tiny_decoder import decoder_config, letters


@pytest.mark.parametrize(("setting", "expandable"), [("expandable_segments:True", True), ("", False)])
def test_memory_is_planned_as_the_environment_sets_torchs_allocator(
    setting: str, expandable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = find_device("rtx4090")
    monkeypatch.setattr(generation_memory, "known_device", lambda kind: card)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", setting)
    machine = generation_memory._this_machine(torch.device("cuda"), nn.Linear(1, 1))
    assert (machine.type, machine.device, machine.expandable_segments) == ("cuda", card, expandable)


@pytest.mark.slow
def test_a_model_whose_layers_are_streamed_to_its_device_answers_as_one_that_fits(tmp_path: Path) -> None:
    tokenizer = letters()
    config = decoder_config(tokenizer, 64, positions=96)
    config.num_hidden_layers, config.layer_types = 8, None
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    meta = {"task": "instruction", "conversations": "messages", "text_columns": ["text"], "max_length": 64}
    save_bundle(tmp_path / "best", model, meta, tokenizer)
    whole = load_generator(tmp_path / "best", Generation(24))
    asked = [{"messages": [{"role": "user", "content": text}]} for text in ("red?", "what is the sun?", "a")]
    lengths = [whole.inference.length(each) for each in whole.inference.encode(asked)]
    memory = round(0.8 * sum(each.nbytes for each in model.parameters()))
    card = replace(find_device("rtx4090"), memory_bytes=memory, reserved=0)
    machine = Machine(
        card, find_device("cpu"), "cpu"
    )  # its device has a memory of its own, and computes here
    apart = load_generator(tmp_path / "best", Generation(24))
    streamed, plan = within_memory(apart, lengths, memory, device="cpu", machine=machine)
    assert plan is not None and plan.streamed > 0 and streamed.stream is not None
    assert streamed.predict(asked) == whole.predict(asked)
    assert streamed.predict(asked) == whole.predict(asked), "and again"
