from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import causal_lm, find_loss, mse, over_batches
from snugfit.core.technique import Context
from snugfit.errors import SettingError
from snugfit.recipe import load_recipe
from snugfit.run.from_recipe import train_recipe
from snugfit.step.step import Step
from snugfit.tasks.prepare import prepare
from snugfit.techniques.learning.class_weights import ClassWeights, balanced_weights
from snugfit.techniques.learning.sgd import SGD
from tests.unit.techniques.settings import refuses


@pytest.mark.parametrize("value", ["even", (), (1.0, -1.0), (0.0, 0.0), {"a": float("nan")}])
def test_impossible_weights_are_refused(value: Any) -> None:
    refuses(ClassWeights, weights=value)


def weighed(
    weights: Any,
    outputs: Tensor,
    labels: Tensor,
    counts: Mapping[str, int] | None = None,
    loss: Any = "cross_entropy",
) -> LossTerms:
    own = find_loss(loss)
    context = Context(nn.Linear(1, 1), torch.device("cpu"), loss=own, class_counts=counts)
    seams = ClassWeights(weights).seams(context)
    assert seams.loss is not None
    return seams.loss(over_batches(own))(outputs, Batch.of((outputs, labels)))


@pytest.mark.parametrize("shape", [(6,), (3, 5)])
def test_the_loss_is_that_of_torch_with_weights_where_some_labels_are_ignored(shape: tuple[int, ...]) -> None:
    drawn = torch.Generator().manual_seed(0)
    logits = torch.randn(*shape, 4, generator=drawn, dtype=torch.float64)
    labels = torch.randint(4, shape, generator=drawn)
    labels.view(-1)[1] = -100
    weights = (0.5, 1.0, 3.0, 0.0)
    terms = weighed(weights, logits, labels)
    wanted = F.cross_entropy(
        logits.reshape(-1, 4), labels.reshape(-1), torch.tensor(weights, dtype=torch.float64)
    )
    assert float(terms.weighted_sum() / terms.weight()) == pytest.approx(float(wanted), rel=1e-6)


def test_balanced_weights_are_those_of_scikit_learn_and_a_class_without_rows_has_none() -> None:
    compute_class_weight = pytest.importorskip("sklearn.utils.class_weight").compute_class_weight
    labels = [0] * 7 + [1] * 2 + [2]
    wanted = compute_class_weight("balanced", classes=torch.arange(3).numpy(), y=labels)
    assert balanced_weights([7, 2, 1]) == pytest.approx(list(wanted))
    assert balanced_weights([3, 0, 1]) == [4 / 6, 0.0, 2.0]


def test_a_class_has_its_weight_by_its_name_and_1_where_none_is_said() -> None:
    terms = weighed({"rare": 9.0}, torch.zeros(3, 2), torch.tensor([0, 1, 0]), {"usual": 5, "rare": 1})
    assert terms.weights is not None and terms.weights.tolist() == [1.0, 9.0, 1.0]


@pytest.mark.parametrize(
    ("weights", "counts", "words"),
    [
        (
            {"rear": 9.0},
            {"usual": 5, "rare": 1},
            r"class_weights.weights.rear: there is no class 'rear'.*Did you mean 'rare'",
        ),
        ((1.0, 2.0, 3.0), {"usual": 5, "rare": 1}, "has 3 weights, and there are 2 classes: usual, rare"),
        ("balanced", None, "nobody says how many rows each has"),
    ],
)
def test_weights_that_do_not_suit_the_classes_are_refused(weights: Any, counts: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        weighed(weights, torch.zeros(2, 2), torch.tensor([0, 1]), counts)


def test_a_list_is_what_a_tuple_is_and_too_few_weights_are_refused() -> None:
    logits, labels, counts = torch.zeros(2, 2), torch.tensor([0, 1]), {"usual": 5, "rare": 1}
    terms = weighed([1.0, 3.0], logits, labels, counts)
    assert terms.weights is not None and terms.weights.tolist() == [1.0, 3.0]
    with pytest.raises(SettingError, match="has 2 weights, and the model tells 3 classes"):
        weighed((1.0, 2.0), torch.zeros(2, 3), labels)


def test_losses_and_labels_without_classes_are_refused() -> None:
    for loss in (mse, causal_lm):
        with pytest.raises(SettingError, match="class_weights: the loss"):
            weighed((1.0, 2.0), torch.zeros(2, 2), torch.tensor([0, 1]), loss=loss)
    with pytest.raises(SettingError, match="soft or binary"):
        weighed((1.0, 2.0), torch.zeros(2, 2), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_micro_batches_of_unequal_weight_give_the_update_of_the_window(micro_batch: int) -> None:
    def trained(size: int | None) -> Tensor:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        step = Step(model, SGD(learning_rate=0.1), techniques=[ClassWeights((1.0, 9.0))], micro_batch=size)
        assert step((torch.arange(15.0).reshape(5, 3) / 10, torch.tensor([0, 1, 0, 0, 1]))).weight == 21.0
        return model.weight.detach()

    torch.testing.assert_close(trained(micro_batch), trained(None), rtol=1e-5, atol=1e-7)


def test_a_recipe_knows_the_rows_of_each_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = (f"{number % 7},{number % 5},{'rare' if number % 6 == 0 else 'usual'}" for number in range(60))
    Path("rows.csv").write_text("\n".join(["a,b,label", *lines]))
    Path("my.yaml").write_text(
        "task: tabular-classification\nmodel: mlp\ndata: {train: rows.csv, label: label, validation: null}\n"
        "train: {updates: 2, global_batch: 8}\ntechniques: [class_weights]\ntrack: {mlflow: false}\n"
    )
    recipe = load_recipe("my.yaml")
    assert prepare(recipe).material.class_counts == {"rare": 10, "usual": 50}
    assert train_recipe(recipe).status == "finished"
