"""Losses of preferences: what their papers say, of a model and of itself before the first update."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from snugfit.core.batch import Batch
from snugfit.data.texts.preferences import PadPairs
from snugfit.errors import SettingError
from snugfit.kit.losses.preference_losses import DPO, IPO, KTO, ORPO, PreferenceLoss
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.metrics.answer_scores import AnswerScores
from snugfit.step.step import Step
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.placement.chunked_loss import ChunkedLoss
from tests.laws.problems import relative_error
from tests.oracles import preferences as oracle
from tests.unit.step.preferences import copy_of, decoder, examples, gradients, next_token, rows, trained

TIGHT = 1e-9
"""Sums of float64 in another order; a wrong term is off by far more than a thousandth."""
REWARD_METRICS = ("reward_accuracy", "reward_margin", "reward_chosen", "reward_rejected")
KEPT = 1e-5
"""The same where scores of the first model are kept by row, in float32."""

LOSSES: dict[str, PreferenceLoss] = {
    "dpo": DPO(beta=0.3),
    "ipo": IPO(beta=0.2),
    "ipo by token": IPO(beta=0.2, form="trl"),
    "orpo": ORPO(beta=0.5),
    "orpo of the text": ORPO(beta=0.5, form="trl"),
    "kto": KTO(beta=0.4, desirable=1.5, undesirable=0.7),
}


def expected(name: str, model: Any, first: Any, made: list[dict[str, Any]]) -> torch.Tensor:
    loss = LOSSES[name]
    policy, before = next_token(model), next_token(first)
    if isinstance(loss, DPO):
        return oracle.dpo(policy, before, made, loss.beta)
    if isinstance(loss, IPO):
        return oracle.ipo(policy, before, made, loss.beta, by_token=loss.form == "trl")
    if isinstance(loss, ORPO):
        return oracle.orpo(policy, made, loss.beta, of_text=loss.form == "trl")
    assert isinstance(loss, KTO)
    return oracle.kto(policy, before, made, loss.beta, loss.desirable, loss.undesirable)


@pytest.mark.parametrize("adapters", [False, True], ids=["full", "adapters"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_window_however_split_has_the_loss_and_the_gradient_of_the_paper(name: str, adapters: bool) -> None:
    count = 5
    made = trained(LOSSES[name], count, adapters=adapters)
    model = copy_of(made.step.model, adapters=adapters)
    wanted = expected(name, model, made.first, rows(count))
    named = {key: each for key, each in model.named_parameters() if each.requires_grad}
    by = dict(zip(named, torch.autograd.grad(wanted, list(named.values()), allow_unused=True), strict=True))
    by = {key: each for key, each in by.items() if each is not None}
    tolerance = TIGHT if adapters or not LOSSES[name].compares_start else KEPT
    for micro_batch in (None, 2, 1):
        split = trained(LOSSES[name], count, micro_batch, adapters=adapters)
        with split.step.computed(split.step_window()):
            found = gradients(split.step)
        assert relative_error(found, by) < tolerance, micro_batch
        result = split.step(split.window())
        assert result.loss == pytest.approx(float(wanted.detach()), rel=tolerance), micro_batch


def test_the_reference_has_no_dropout_and_the_model_has() -> None:
    made = trained(DPO(), 3, adapters=True, dropout=0.5)
    forward, data = made.material.forward, made.window()
    assert isinstance(forward, AnswerScores)
    made.step.model.train()
    once, again = (forward(made.step.model, data) for _ in range(2))
    assert torch.equal(once["reference"], again["reference"])
    assert not torch.equal(once["log_probabilities"], again["log_probabilities"])
    policy = next_token(made.first)
    first = rows(3)[0]
    alone = oracle.log_probability(policy, first["prompt"], first["chosen"])
    assert float(once["reference"][0, 0]) == pytest.approx(float(alone.detach()), rel=TIGHT)
    assert made.step.model.training
    assert all(each.requires_grad for key, each in made.step.model.named_parameters() if "lora_" in key)


def test_scores_in_chunks_are_those_of_whole_logits() -> None:
    whole, chunked = trained(DPO(), 4, 2), trained(DPO(), 4, 2, techniques=[ChunkedLoss(chunk=3)])
    with whole.step.computed(whole.step_window()):
        expected_gradients = gradients(whole.step)
    with chunked.step.computed(chunked.step_window()):
        assert relative_error(gradients(chunked.step), expected_gradients) < TIGHT


def test_padding_of_other_rows_changes_nothing() -> None:
    made = trained(ORPO(), 4)
    data = made.window()
    wide = {name: value for name, value in data.items() if name != "lengths"}
    forward = made.material.forward
    assert forward is not None
    short, long = forward(made.step.model, data), forward(made.step.model, wide)
    torch.testing.assert_close(short["log_probabilities"], long["log_probabilities"])


def test_a_model_without_adapters_and_scores_of_its_beginning_is_refused() -> None:
    data = PadPairs(0)(examples(rows(2), pairs=True))
    with pytest.raises(SettingError, match="its scores of the rows are not there"):
        AnswerScores(DPO())(decoder(), data)


def test_rewards_are_those_that_the_loss_implies() -> None:
    made = trained(DPO(beta=0.3), 2)
    outputs = made.material.forward(made.step.model, made.window())  # type: ignore[misc]
    policy, first = next_token(copy_of(made.step.model, adapters=False)), next_token(made.first)
    for place, row in enumerate(rows(2)):
        for answer, name in enumerate(("chosen", "rejected")):
            ratio = oracle.log_ratio(policy, first, row["prompt"], row[name])
            assert float(outputs["rewards"][place, answer]) == pytest.approx(
                0.3 * float(ratio.detach()), abs=KEPT
            )
    assert not outputs["rewards"].requires_grad


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_an_update_tells_the_rewards_of_its_whole_window_before_it(name: str) -> None:
    whole, split = trained(LOSSES[name], 5), trained(LOSSES[name], 5, 2)
    scored = evaluate(Scored.of(whole.step), [whole.step_window()], {key: key for key in REWARD_METRICS})
    for made in (whole, split):
        metrics = made.step(made.window()).metrics
        assert {key: float(metrics[key]) for key in REWARD_METRICS} == pytest.approx(
            {key: scored[key] for key in REWARD_METRICS}, rel=1e-6
        )
    assert scored["reward_margin"] != 0


def test_metrics_of_rewards_are_refused_without_a_loss_of_preferences() -> None:
    step = Step(torch.nn.Linear(2, 3), SGD(), "cross_entropy")
    window = Batch.of((torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)))
    with pytest.raises(SettingError, match="metrics of rewards need the outputs of a loss of preferences"):
        evaluate(Scored.of(step), [window], {"reward_margin": "reward_margin"})
