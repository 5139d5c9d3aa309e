"""The judgement of an export: equal, rounded as its weights are, or another model."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.deliver.export.comparison import Comparison, check, differences
from snugfit.deliver.export.numbers import rounding_to
from snugfit.deliver.export.read_back import Reading, divergence, judged, judged_quantised, stop_problem
from snugfit.deliver.export.scored import Answer, ScoredRows, logits_for, rounded
from snugfit.errors import ModelError


class Causal(nn.Module):
    """A language model of one linear layer, with tied weights: the next token follows from the last one."""

    def __init__(self, size: int = 12) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, 8)
        self.head = nn.Linear(8, size, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(torch.tanh(self.embedding(input_ids)))
        return logits


@pytest.fixture
def scored() -> ScoredRows:
    torch.manual_seed(0)
    model = Causal()
    inputs = [{"input_ids": torch.tensor([[1, 2, 3]])}, {"input_ids": torch.tensor([[4, 5]])}]
    after_8 = logits_for(model, [{"input_ids": torch.tensor([[8]])}])[0][0, 0]
    return ScoredRows(
        model,
        inputs=inputs,
        logits=logits_for(model, inputs),
        prompts=[[1, 2, 3], [4, 5]],
        answers=[Answer([7, 8], True), Answer([9], False)],
        stops=(int(after_8.argmax()),),
        conversations=[[{"role": "user", "content": "a"}]],
        written=["<user>a"],
        texts=[("<user>a", [1, 2])],
    )


def reading(scored: ScoredRows, **changes: Any) -> Reading:
    """What an export gives that is the scored model, but for the changes."""
    answers = [{"tokens": each.tokens, "ended": each.ended} for each in scored.answers]
    tokens = [ids for _, ids in scored.texts]
    values = {"library": "a library 1.0", "answers": answers, "tokens": tokens, "written": scored.written}
    logits = changes.pop("logits", scored.logits)
    return Reading({**values, **changes}, logits, [], [])


def test_what_is_equal_passes_and_says_what_was_compared(scored: ScoredRows) -> None:
    comparison = judged(reading(scored), scored)
    assert comparison == Comparison(
        "a library 1.0", 2, 0.0, 0.0, None, (2, 2), ("tokens", "chat template"), None
    )
    check([comparison], "out")
    assert "2 of 2 greedy answers are equal; equal are tokens, chat template" in comparison.in_words()


@pytest.mark.parametrize(
    ("changes", "figure"),
    [
        ({"tokens": [[1, 3]]}, r"tokenises row 1 otherwise: \[1, 3\] … where \[1, 2\]"),
        ({"written": ["<user> a"]}, "writes row 1 as '<user> a' where '<user>a'"),
        (
            {"answers": [{"tokens": [7, 8, 8], "ended": False}, {"tokens": [9], "ended": False}]},
            "answer to row 1 is another: it does not stop after 2 tokens, where the scored model did",
        ),
    ],
)
def test_another_text_or_end_is_not_delivered(
    scored: ScoredRows, changes: dict[str, Any], figure: str
) -> None:
    comparison = judged(reading(scored, **changes), scored)
    with pytest.raises(ModelError, match=f"out: was not delivered: read back by a library 1.0, .*{figure}"):
        check([comparison], "out")


def test_other_logits_are_not_delivered_and_the_figure_is_said(scored: ScoredRows) -> None:
    off = [each + 0.01 * torch.randn_like(each) for each in scored.logits]
    with pytest.raises(ModelError, match=r"its logits differ by 0\.0\d+ of their spread, more than 0.0001"):
        check([judged(reading(scored, logits=off), scored)], "out")
    with pytest.raises(ModelError, match="differ by inf"):
        check([judged(reading(scored, logits=[each[:, :1] for each in scored.logits]), scored)], "out")
    nan = [torch.full_like(each, math.nan) for each in scored.logits]
    with pytest.raises(ModelError, match="differ by inf"):
        check([judged(reading(scored, logits=nan), scored)], "out")


def test_rounded_weights_have_to_give_what_they_give_here_and_nothing_else_as_far_off(
    scored: ScoredRows,
) -> None:
    to_bf16 = rounding_to("bf16")
    assert to_bf16 is not None
    before = scored.model.state_dict()["head.weight"].clone()
    with rounded(scored.model, to_bf16):
        logits = logits_for(scored.model, scored.inputs)
    assert torch.equal(scored.model.state_dict()["head.weight"], before)
    weight = scored.model.head.weight.detach().bfloat16().float()  # type: ignore[union-attr]
    by_hand = torch.tanh(weight[scored.inputs[0]["input_ids"]]) @ weight.T
    assert torch.allclose(logits[0], by_hand, atol=1e-6)
    comparison = judged(reading(scored, logits=logits), scored, whole=logits)
    assert comparison.problem is None and comparison.difference == comparison.rounding > 1e-4  # type: ignore[operator]
    as_far = [own - (each - own) for own, each in zip(scored.logits, logits, strict=True)]
    assert judged(reading(scored, logits=as_far), scored, whole=logits).problem is not None


def test_an_answer_may_go_on_with_another_token_only_where_both_are_as_good(scored: ScoredRows) -> None:
    last = scored.logits[0][0, -1]
    first, second = (int(each) for each in last.topk(2).indices)
    gap = float(last[first] - last[second])
    own = replace(scored, answers=[Answer([first], False), scored.answers[1]])
    answers = [{"tokens": [second], "ended": False}, {"tokens": [9], "ended": False}]
    off = [each.clone() for each in scored.logits]
    off[0][0, -1, second] += gap
    near = judged(reading(own, answers=answers, logits=off), own, slack=10.0)
    assert near.problem is None and near.answers == (1, 2)
    far = judged(reading(own, answers=answers), own, slack=10.0)
    assert far.problem is not None and f"token 1 is {second} where {first} was scored" in far.problem


def test_stop_tokens_are_those_that_were_scored() -> None:
    assert stop_problem([3, 1], (1, 3)) is None
    assert stop_problem(1, (1,)) is None
    assert "[1] where [1, 3]" in str(stop_problem(1, (1, 3)))
    assert stop_problem(None, (1,)) is not None


def test_a_constant_over_all_logits_of_a_place_does_not_hide_in_the_spread() -> None:
    own = [torch.tensor([[100.0, 101.0]])]
    assert differences(own, [torch.tensor([[100.0, 101.5]])])[0] == pytest.approx(0.5 / math.sqrt(0.5))


def test_the_loss_of_quantising_is_the_divergence_from_what_was_scored() -> None:
    own, other = torch.tensor([[0.0, 0.0]]), torch.tensor([[math.log(3.0), 0.0]])
    expected = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert divergence([own], [other]) == pytest.approx(expected)


def test_only_a_choice_of_one_among_several_loses_nats(scored: ScoredRows) -> None:
    read = reading(scored, logits=[each + 1e-3 for each in scored.logits])
    assert judged_quantised(read, scored, chooses_one=True).lost is not None
    lost = judged_quantised(read, scored, chooses_one=False)
    assert lost.lost is None and "nats" not in lost.in_words() and lost.difference is not None
