"""The largest that fits, and that the next one does not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from snugfit.core.batch import Batch
from snugfit.core.job import Job, Plan
from snugfit.errors import SettingError
from snugfit.kit.skeleton import skeleton
from snugfit.planner.answers.answer import Answer
from snugfit.planner.choice.candidate import Budget
from snugfit.planner.devices.device import BASELINE, Machine
from snugfit.planner.devices.hardware import find_device
from snugfit.planner.largest import largest, make_largest, of_length
from snugfit.planner.plan import Request
from snugfit.planner.prediction.plan_needs import Planner
from snugfit.planner.trace.dry_run import Subject
from snugfit.techniques import find

CPU = Machine(find_device("cpu"), find_device("cpu"))
TECHNIQUES = (find("adamw")(),)
JOB = Job.of(global_batch=2, updates=10)
ROWS, LENGTH = 2, 8


def tokens(rows: int, length: int) -> Batch:
    ids = torch.zeros(rows, length, dtype=torch.long)
    return Batch.of({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()})


def llama(blocks: int) -> nn.Module:
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=blocks, **sizes))


def subject_of(model: nn.Module, window: Batch) -> Subject:
    return Subject(lambda: skeleton(model), window, JOB, 100, TECHNIQUES)


LLAMA = subject_of(llama(2), tokens(ROWS, LENGTH))


def needs(subject: Subject, micro_batch: int) -> int:
    """Of the plain model, with all its blocks and micro-batches run."""
    planner = Planner(subject, CPU, whole=True)
    return planner.predict(Plan(micro_batch=micro_batch), TECHNIQUES).reserved_bytes


def ask(what: str, subject: Subject, memory: int, micro_batch: int | None = None) -> Answer:
    request = Request(Plan(micro_batch=micro_batch), Budget(memory, margin=0.0))
    return make_largest(what, subject, CPU, request)


@pytest.mark.parametrize(
    "need",
    [
        lambda n: 7 * n + 3,
        lambda n: max(500, 90 * n - 3000),
        lambda n: n * n,
        lambda n: 400 + n // 9 * 11,
        lambda n: 1001,
        lambda n: 0,
    ],
)
@pytest.mark.parametrize(("start", "step"), [(1, 1), (5, 1), (37, 1), (64, 3)])
def test_the_largest_is_the_one_that_a_walk_would_find(need, start, step):
    size = SimpleNamespace(least=1, most=1 + 66 * step, step=step, start=1 + (start - 1) // step * step)
    size.legal = lambda value: 1 + max(0, value - 1) // step * step
    asked: list[int] = []

    def probe(value):
        assert (value - 1) % step == 0 and 1 <= value <= size.most
        asked.append(value)
        return need(value)

    found = largest(probe, lambda bytes: bytes <= 1000, lambda bytes: bytes / 1000, size)
    fitting = [value for value in range(1, size.most + 1, step) if need(value) <= 1000]
    value = fitting[-1] if fitting else None
    beyond = (1 if value is None else value + step) if value != size.most else None
    assert found == (value, beyond)
    assert len(set(asked)) <= 16


@pytest.mark.slow
def test_the_largest_batch_fits_and_one_more_example_does_not():
    memory = needs(subject_of(llama(2), tokens(3, LENGTH)), 3)
    answer = ask("batch", LLAMA, memory)
    told = answer.as_dict()["largest"]
    assert (told["what"], told["value"], told["unit"], told["beyond"]) == ("batch", 3, "examples", 4)
    assert told["beyond_bytes"] == needs(subject_of(llama(2), tokens(4, LENGTH)), 4) > memory
    assert told["parameters"] == sum(weight.numel() for weight in llama(2).parameters())
    assert told["peak_bytes"] == answer.prediction.peak_bytes
    assert answer.fits and answer.choice.micro_batch == 3 and answer.about["window"] == 3
    rate = answer.prediction.tokens_per_second
    assert rate == pytest.approx(3 * LENGTH / answer.prediction.seconds_per_update)
    assert answer.why[0].startswith("The largest that fits are 3 examples:")


@pytest.mark.slow
def test_the_longest_sequence_is_run_at_its_true_length_in_the_micro_batches_of_the_recipe():
    memory = needs(subject_of(llama(2), tokens(ROWS, 11)), 1)
    answer = ask("sequence", LLAMA, memory, micro_batch=1)
    assert (answer.largest.value, answer.largest.beyond, answer.choice.micro_batch) == (11, 12, 1)
    assert answer.prediction.reserved_bytes == memory


@pytest.mark.slow
def test_a_sequence_is_no_longer_than_the_table_of_positions():
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 32}
    model = GPT2LMHeadModel(GPT2Config(n_positions=24, **sizes))
    told = ask("sequence", subject_of(model, tokens(ROWS, LENGTH)), 2**34).largest
    assert (told.value, told.beyond, told.beyond_bytes) == (24, None, None)


@pytest.mark.slow
def test_the_deepest_model_needs_what_a_model_of_that_depth_needs():
    memory = needs(subject_of(llama(10), tokens(ROWS, LENGTH)), ROWS)
    answer = ask("model", LLAMA, memory)
    told = answer.largest
    assert (told.value, told.beyond, told.unit) == (10, 11, "blocks")
    assert answer.prediction.reserved_bytes == memory
    assert told.beyond_bytes == needs(subject_of(llama(11), tokens(ROWS, LENGTH)), ROWS)
    assert (
        told.parameters
        == answer.about["parameters"]
        == sum(weight.numel() for weight in llama(10).parameters())
    )


def test_where_the_least_does_not_fit_its_need_is_said():
    answer = ask("batch", LLAMA, BASELINE)
    assert not answer.fits and answer.largest is None
    assert answer.prediction.reserved_bytes == needs(subject_of(llama(2), tokens(1, LENGTH)), 1)
    assert answer.why[0].startswith("Not even 1 example would fit:")


def test_sizes_that_a_model_or_its_data_does_not_have_are_refused():
    plain = subject_of(nn.Linear(4, 2), Batch.of((torch.zeros(4, 4), torch.zeros(4, dtype=torch.long))))
    with pytest.raises(SettingError, match="--max sequence: the examples are no rows of tokens"):
        ask("sequence", plain, 2**34)
    with pytest.raises(SettingError, match="--max model: needs a model that is a list of blocks"):
        ask("model", plain, 2**34)
    with pytest.raises(SettingError, match="--max: there is no size 'bach'. Did you mean 'batch'"):
        ask("bach", plain, 2**34)


def test_rows_made_longer_are_whole_and_scored():
    ids = torch.tensor([[5, 6, 0], [7, 8, 9]])
    labels = torch.tensor([[-100, 6, -100], [-100, -100, 9]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    data = {"input_ids": ids, "attention_mask": mask, "labels": labels, "weight": torch.ones(2)}
    grown = of_length(Batch.of(data, (3, 4)), 5)
    assert grown.data["input_ids"].tolist() == [[5] * 5, [7] * 5]
    assert grown.data["labels"].tolist() == [[0] * 5] * 2
    assert grown.lengths == (5, 5) and grown.ids == (3, 4) and grown.data["weight"].shape == (2,)


@pytest.mark.slow
def test_an_evaluation_is_as_long_as_the_training():
    """A large one, so that the peak is in it."""
    subject = replace(
        LLAMA, evaluation=tokens(4 * ROWS, LENGTH), techniques=(find("sgd")(learning_rate=0.1),)
    )
    longer = replace(subject, window=tokens(ROWS, 24), evaluation=tokens(4 * ROWS, 24))
    memory = Planner(longer, CPU, whole=True).predict(Plan(), subject.techniques).reserved_bytes
    assert ask("sequence", subject, memory).largest.value == 24
