"""Scores of the first model by row: made once, of the model as it was, and read again where a run goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

from snugfit.core.job import Train
from snugfit.data.texts.preferences import PadPairs
from snugfit.errors import OutOfMemory
from snugfit.kit.losses.preference_losses import DPO, ORPO
from snugfit.results.run_folder import START_SCORES, RunFolder
from snugfit.step.build import Material
from snugfit.step.metrics.answer_scores import AnswerScores
from snugfit.step.start_scores import fill_start_scores
from snugfit.step.step import Step
from snugfit.techniques.learning.lora import LoRA
from snugfit.techniques.learning.sgd import SGD
from tests.oracles import preferences as oracle
from tests.unit.step.preferences import decoder, examples, move, next_token, rows


def made(
    count: int = 5, *, loss: Any = None, techniques: Any = (), dropout: float = 0.0
) -> tuple[Step, Material]:
    loss = DPO() if loss is None else loss
    forward = AnswerScores(loss)
    step = Step(
        decoder(dropout), SGD(learning_rate=0.1), loss, techniques, micro_batch=2, forward=forward, nominal=4
    )
    data = examples(rows(count), pairs=True)
    return step, Material(
        step.model, Subset(data, range(count - 1)), Subset(data, [count - 1]), loss, PadPairs(0), forward
    )


def scores(material: Material) -> list[Any]:
    sides = (material.train, material.validation)
    return [side[place].get("reference") for side in sides for place in range(len(side))]  # type: ignore[arg-type]


def test_rows_to_train_and_to_validate_on_have_the_scores_of_the_first_model_without_dropout() -> None:
    step, material = made(dropout=0.5)
    before = torch.get_rng_state()
    fill_start_scores(step, material)
    assert torch.equal(torch.get_rng_state(), before)
    assert step.model.training
    policy = next_token(decoder().eval())
    for row, own in zip(rows(5), scores(material), strict=True):
        for answer, score in zip(("chosen", "rejected"), own, strict=True):
            alone = oracle.log_probability(policy, row["prompt"], row[answer])
            assert score == pytest.approx(float(alone.detach()), rel=1e-6)


def test_a_window_in_tokens_is_no_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    step, material = made()
    step.micro_batch = None
    step.nominal = 30.0  # tokens, as windows count them
    tokens = max(sum(map(len, example["input_ids"])) for example in material.train)  # type: ignore[union-attr]
    seen: list[int] = []
    collate = material.collate
    assert collate is not None
    counted = replace(material, collate=lambda rows: seen.append(len(rows)) or collate(rows))
    fill_start_scores(step, counted, train=Train(batch_tokens=30, global_batch=None, updates=1, epochs=None))
    assert max(seen) == 30 // tokens < len(material.train)  # type: ignore[arg-type]


def test_scores_stay_those_of_the_first_model() -> None:
    step, material = made()
    fill_start_scores(step, material)
    first = scores(material)
    move(step.model)
    fill_start_scores(step, material)
    assert scores(material) == first


def test_a_run_that_goes_on_reads_them_whatever_its_model_has_become(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    step, material = made()
    said: list[str] = []
    fill_start_scores(step, material, folder=folder, tell=said.append)
    assert said == ["scoring 5 rows with the model as it is before the first update"]
    other_step, other = made()
    move(other_step.model)
    fill_start_scores(other_step, other, folder=folder, tell=said.append)
    assert scores(other) == scores(material)
    assert len(said) == 1


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"examples": "of others", "log_probabilities": []}'])
def test_a_file_that_is_torn_or_of_other_rows_is_made_anew(tmp_path: Path, torn: str) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / START_SCORES).write_text(torn)
    step, material = made()
    fill_start_scores(step, material, folder=folder)
    stored = json.loads((tmp_path / START_SCORES).read_text())
    assert stored["log_probabilities"] == scores(material)


def test_nothing_is_kept_where_adapters_alone_train(tmp_path: Path) -> None:
    step, material = made(techniques=(LoRA(rank=2),))
    fill_start_scores(step, material, folder=RunFolder(tmp_path))
    assert scores(material) == [None] * 5
    assert not (tmp_path / START_SCORES).exists()


def test_a_loss_without_a_reference_does_not_compare_with_the_first_model() -> None:
    assert made()[1].compares_start
    assert not made(loss=ORPO())[1].compares_start


def test_an_adapter_that_goes_on_is_part_of_the_reference() -> None:
    step, material = made(techniques=(LoRA(rank=2),))
    move(step.model)  # as by an earlier run
    fill_start_scores(step, material)
    policy = next_token(step.model.eval())
    first = rows(5)[0]
    alone = oracle.log_probability(policy, first["prompt"], first["chosen"])
    assert scores(material)[0][0] == pytest.approx(float(alone.detach()), rel=1e-6)


def test_a_head_that_trains_beside_adapters_is_no_part_of_the_reference() -> None:
    step, material = made(techniques=(LoRA(rank=2, head=("transformer.ln_f",)),))
    fill_start_scores(step, material)
    assert None not in scores(material)


def test_rows_are_scored_in_smaller_batches_where_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    step, material = made()
    whole = AnswerScores.start_scores
    sizes: list[int] = []

    def small(self: AnswerScores, model: Any, data: Any) -> torch.Tensor:
        sizes.append(len(data["input_ids"]))
        if sizes[-1] > 1:
            raise torch.OutOfMemoryError("no room")
        return whole(self, model, data)

    monkeypatch.setattr(AnswerScores, "start_scores", small)
    fill_start_scores(step, material)
    assert sizes == [2, 1, 1, 1, 1, 1]
    assert None not in scores(material)

    def never(self: AnswerScores, model: Any, data: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(AnswerScores, "start_scores", never)
    with pytest.raises(OutOfMemory, match="a single example with the model as it is before the first update"):
        fill_start_scores(*made())
