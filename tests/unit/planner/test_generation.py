"""What answers take of the memory is known before the first token, and what does not fit is streamed or refused then."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from snugfit.core.batch import Batch, inputs_of
from snugfit.core.losses import causal_lm, over_batches
from snugfit.errors import SettingError
from snugfit.kit.language_models.generation import Generation, generate, padded_left
from snugfit.kit.language_models.token_scores import in_token_chunks
from snugfit.kit.streaming.weight_stream import WeightStream, blocks_of
from snugfit.planner.choice.candidate import Budget
from snugfit.planner.devices.device import Machine
from snugfit.planner.devices.hardware import find_device
from snugfit.planner.generation import GenerationPlan, plan_generation
from snugfit.planner.trace.generation_run import Answering
from snugfit.step.evaluate import Scored, evaluate, score_together
from snugfit.system.allocation_counter import AllocatedBytes
from snugfit.units import parse_bytes

PROMPT, NEW, ROWS = 24, 40, 6
UNUSED = 199
"""A token that ends no answer here, so that each is as long as it may be."""


def llama(vocab_size: int = 200) -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
    )
    return _endless(LlamaForCausalLM(config))


def t5() -> nn.Module:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=200, d_model=64, d_kv=16, d_ff=128, num_layers=3, num_heads=4, decoder_start_token_id=0
    )
    return _endless(T5ForConditionalGeneration(config))


def _endless(model: Any) -> nn.Module:
    model.generation_config.eos_token_id = None
    return model.eval()


def asked(settings: Generation, rows: int = ROWS) -> Answering:
    return Answering(PROMPT, settings.max_new_tokens, rows, settings, lambda model, batch: nullcontext())


def prompts(rows: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1)
    lengths = [PROMPT, *(PROMPT - 1 - row for row in range(rows - 1))]
    return padded_left([torch.randint(3, 190, (each,), generator=draw).tolist() for each in lengths], 0)


def weight_bytes(model: nn.Module) -> int:
    return sum(each.nbytes for each in {*model.parameters(), *model.buffers()})


def card(memory_bytes: int) -> Machine:
    """Return a machine whose device has a memory of its own, and computes as this processor does."""
    host = find_device("cpu")
    return Machine(replace(find_device("rtx4090"), memory_bytes=memory_bytes, reserved=0), host, "cpu")


def planned(model: nn.Module, memory_bytes: int, settings: Generation, rows: int = ROWS) -> GenerationPlan:
    machine = card(memory_bytes)
    return plan_generation(model, asked(settings, rows), machine, Budget(memory_bytes, margin=0.0))


def answered(
    model: nn.Module, plan: GenerationPlan, settings: Generation, rows: int = ROWS
) -> tuple[list[list[int]], int]:
    """Return the answers as a plan has them written, and the most that was allocated on the way beside weights that stay."""
    answers: list[list[int]] = []
    batch = prompts(rows)
    with AllocatedBytes() as allocated, ExitStack() as stack:
        streamed = 0
        if plan.resident is not None:
            model.requires_grad_(False)
            blocks = blocks_of(model, ())
            stream = WeightStream(model, torch.device("cpu"), blocks, plan.resident)
            stack.enter_context(stream.running())
            streamed = stream.host_bytes
        for start in range(0, rows, plan.rows):
            part = {name: each[start : start + plan.rows] for name, each in batch.items()}
            places = range(start, start + len(part["input_ids"]))
            answers += generate(model, part, places, [UNUSED], settings)
    # the host's memory, to which streamed weights are laid out, is no part of the device's
    return answers, allocated.peak - streamed + weight_bytes(model) - streamed


@pytest.mark.slow
@pytest.mark.parametrize("make", [llama, t5])
@pytest.mark.parametrize(
    "settings",
    [
        Generation(NEW),
        Generation(NEW, temperature=1.0, top_p=0.9),
        Generation(NEW, num_beams=3),
    ],
    ids=["greedy", "drawn", "beams"],
)
def test_what_answers_take_is_known_before_the_first_token(make: Any, settings: Generation) -> None:
    model = make()
    plan = planned(model, 2**30, settings)
    answers, measured = answered(model, plan, settings)
    assert plan.rows == ROWS and plan.resident is None
    assert any(len(answer) == NEW for answer in answers), "an answer of the length that is planned for"
    assert measured <= plan.needed_bytes <= 1.1 * measured


@pytest.mark.slow
def test_layers_that_do_not_fit_are_streamed_and_the_answers_are_the_same() -> None:
    model, settings = llama(), Generation(NEW)
    whole, _ = answered(model, planned(model, 2**30, settings), settings)
    memory = round(0.8 * weight_bytes(model))
    plan = planned(model, memory, settings)
    assert plan.streamed > 0 and plan.needed_bytes <= memory
    answers, measured = answered(model, plan, settings)
    assert answers == whole
    assert measured <= memory
    assert "streamed from host memory" in str(plan)


@pytest.mark.slow
def test_fewer_answers_are_written_at_once_where_memory_is_short_and_they_are_the_same() -> None:
    model, settings = llama(), Generation(NEW)
    whole, _ = answered(model, planned(model, 2**30, settings), settings)
    two = planned(model, 2**30, settings, rows=2).needed_bytes
    plan = planned(model, two, settings)
    assert (plan.rows, plan.resident) == (2, None)
    answers, measured = answered(model, plan, settings)
    assert answers == whole and measured <= two


@pytest.mark.slow
def test_memory_that_holds_no_answer_is_refused_with_the_length_that_it_holds() -> None:
    model = llama()
    short = planned(model, round(0.37 * weight_bytes(model)), Generation(8), rows=1)
    assert short.resident == 0
    least = short.needed_bytes
    with pytest.raises(SettingError, match=r"too little for one answer of 40 tokens") as caught:
        planned(model, least, Generation(NEW), rows=1)
    assert "Allow at most" in str(caught.value)
    length = int(str(caught.value).split("Allow at most ")[1].split()[0])
    assert 8 <= length < NEW
    assert planned(model, least, Generation(length), rows=1).needed_bytes <= least


@pytest.mark.slow
def test_the_memory_that_a_refusal_names_is_enough_at_the_next_start() -> None:
    model, host, settings = llama(), find_device("cpu"), Generation(4)
    baseline = 425 << 20
    machine = Machine(host, host, "cpu", baseline=baseline)
    with pytest.raises(SettingError, match="too little") as caught:
        plan_generation(model, asked(settings, rows=1), machine, Budget(1 << 20))
    assert "fewer bits" not in str(caught.value)  # the process alone takes more
    named = parse_bytes("".join(str(caught.value).split("Give ")[1].split()[:2]))
    again = replace(machine, baseline=baseline + (1 << 20))
    assert plan_generation(model, asked(settings, rows=1), again, Budget(named)).rows == 1


@pytest.mark.slow
def test_weights_in_a_file_leave_a_processor_memory_for_more_answers() -> None:
    model, host = llama(), find_device("cpu")
    machine, everything = Machine(host, host, "cpu", baseline=0), Budget(2**40, margin=0.0)
    two = plan_generation(model, asked(Generation(NEW), rows=2), machine, everything).needed_bytes
    budget = Budget(two, margin=0.0)
    inside = plan_generation(model, asked(Generation(NEW)), machine, budget)
    assert (inside.rows, inside.from_file) == (2, False)
    less = Budget(two - weight_bytes(model) // 2, margin=0.0)
    with pytest.raises(SettingError, match="too little"):
        plan_generation(model, asked(Generation(NEW)), machine, less)
    mapped = plan_generation(model, asked(Generation(NEW)), machine, less, file_bytes=weight_bytes(model))
    assert mapped.from_file and mapped.rows >= 2
    assert mapped.needed_bytes <= less.memory_bytes
    assert "read from their file" in str(mapped)
    # whether a file is worth its memory hangs on the disk
    faster, slower = (
        plan_generation(
            model,
            asked(Generation(NEW)),
            replace(machine, device=replace(host, disk=rate)),
            budget,
            file_bytes=weight_bytes(model),
        )
        for rate in (1e15, 1e3)
    )
    assert faster.from_file and faster.rows > 2 and (slower.rows, slower.from_file) == (2, False)


def scored(model: nn.Module) -> Scored:
    run, loss = in_token_chunks(model, causal_lm, lambda batch: model(**inputs_of(batch.data)[1]), _LOSS)
    return Scored(model, torch.device("cpu"), run, loss)


_LOSS = over_batches(causal_lm)
LENGTH, LETTERS = 70, 4000


def texts(rows: int) -> Batch:
    draw = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, LETTERS, (rows, LENGTH), generator=draw)
    return Batch.of({"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens})


def planned_scores(model: nn.Module, memory_bytes: int) -> GenerationPlan:
    asked = Answering(
        LENGTH,
        0,
        ROWS,
        Generation(),
        lambda _model, _batch: nullcontext(),
        lambda model, batch: score_together(scored(model), batch),
    )
    return plan_generation(model, asked, card(memory_bytes), Budget(memory_bytes, margin=0.0))


@pytest.mark.slow
def test_scores_never_hold_all_logits_and_what_they_take_is_known_before() -> None:
    model = llama(vocab_size=LETTERS)
    batch = texts(ROWS)
    with torch.no_grad():
        logits = model(batch.data["input_ids"]).logits
    expected = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch.data["labels"][:, 1:].flatten()
    )
    plan = planned_scores(model, 2**30)
    with AllocatedBytes() as allocated:
        scores = evaluate(scored(model), [batch], {"perplexity": "perplexity"})
    assert scores["loss"] == pytest.approx(expected.item(), rel=1e-6)
    assert allocated.peak < 2 * logits.nbytes, "logits, in float32 for the loss, would be twice as many"
    measured = allocated.peak + weight_bytes(model)
    assert plan.rows == ROWS and measured <= plan.needed_bytes <= 1.1 * measured
    assert str(plan).endswith(f"Texts: {ROWS} at once, of at most {LENGTH} tokens each")
    with pytest.raises(SettingError, match=rf"too little for the scores of one text of {LENGTH} tokens"):
        planned_scores(model, 2**10)


def test_a_model_that_computes_with_its_logits_is_scored_by_all_of_them() -> None:
    class Capped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = llama(vocab_size=LETTERS)

        def get_output_embeddings(self) -> Any:
            return self.model.get_output_embeddings()

        def forward(self, **inputs: Tensor) -> Tensor:
            logits: Tensor = self.model(**inputs).logits
            return 30 * torch.tanh(logits / 30)

    model, batch = Capped(), texts(ROWS)
    logits = model(input_ids=batch.data["input_ids"])
    expected = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch.data["labels"][:, 1:].flatten()
    )
    assert evaluate(scored(model), [batch], {})["loss"] == pytest.approx(expected.item(), rel=1e-6)


RESIDENT = """
import torch
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
from snugfit.core.batch import Batch
from snugfit.core.losses import causal_lm
from snugfit.deliver.generation_memory import within_memory
from snugfit.deliver.predictor import Predictor
from snugfit.kit.language_models.generation import Generation
from snugfit.step.evaluate import evaluate
from snugfit.tasks.inference import Inference

ROWS, LONGEST, LETTERS = 6, 512, 4000
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=LETTERS, hidden_size=256, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4
)
use = Inference(
    encode=None, collate=None, decode=None, columns=("answer",), generation=Generation(), loss=causal_lm
)
bare = Predictor(LlamaForCausalLM(config).eval(), {}, None, torch.device("cpu"), use)
predictor, plan = within_memory(bare, [LONGEST] * ROWS, 2**33, scored=True, device="cpu")

def texts():
    for length in (LONGEST, *range(40, LONGEST, 40)):
        tokens = torch.randint(0, LETTERS, (ROWS, length))
        yield Batch.of({"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens})

evaluate(predictor.scored(), texts(), {})
lines = Path("/proc/self/status").read_text().splitlines()
print(plan.needed_bytes, next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="what was resident at most is read from Linux"
)
def test_a_process_that_scores_many_texts_is_resident_with_no_more_than_was_planned() -> None:
    """What the planner loads in that process, some 45 MB, stays there beside the scores: it was not counted, and 6% were missing."""
    command = [sys.executable, "-c", RESIDENT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    needed, resident = map(int, done.stdout.split())
    assert 0.85 * needed < resident <= 1.01 * needed
