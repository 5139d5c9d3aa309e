"""The laws of techniques find what is wrong with one, and the command says so as `certify` does of a recipe."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from snugfit.cli import main
from snugfit.cli.certify import _print
from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.core.technique import BatchLoss, Card, Context, Family, Moment, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.results.verdicts import Law
from snugfit.techniques import discover
from snugfit.tools.certify import technique_certificate, technique_laws
from snugfit.tools.certify.page import ModelCertificate
from snugfit.tools.certify.technique_certificate import IDLE, NO_ORACLE, certify_technique
from snugfit.tools.certify.technique_problem import Problem, problem_of


def card_of(name: str, seam: str, stage: Stage, family: Family = Family.LEARNING) -> Card:
    return Card(name=name, summary="", family=family, source="", seams=(seam,), stages=(stage,))


@dataclass(frozen=True)
class Scaled(Technique):
    """Multiplies gradients: keeps every law."""

    factor: float = 0.5
    card: ClassVar[Card] = card_of("scaled", "adjust", Stage.ELEMENT)

    def seams(self, context: Context) -> Seams:
        def adjust(parameters: Sequence[nn.Parameter], moment: Moment) -> Mapping[str, Tensor]:
            for each in parameters:
                if each.grad is not None:
                    each.grad.mul_(self.factor)
            return {}

        return Seams(adjust=adjust)


@dataclass(frozen=True)
class Centred(Technique):
    """Takes the mean of a micro-batch off its losses: depends on the split."""

    card: ClassVar[Card] = card_of("centred", "loss", Stage.TERM)

    def seams(self, context: Context) -> Seams:
        def loss(next: BatchLoss) -> BatchLoss:
            def centred(outputs: Any, batch: Batch) -> LossTerms:
                terms = next(outputs, batch)
                return replace(terms, values=terms.values - 0.5 * terms.values.mean())

            return centred

        return Seams(loss=loss)


@dataclass(frozen=True)
class Counting(Technique):
    """Counts calls where no checkpoint sees it."""

    card: ClassVar[Card] = card_of("counting", "adjust", Stage.ELEMENT)

    def seams(self, context: Context) -> Seams:
        calls = [0]

        def adjust(parameters: Sequence[nn.Parameter], moment: Moment) -> Mapping[str, Tensor]:
            calls[0] += 1
            for each in parameters:
                if each.grad is not None:
                    each.grad.mul_(1 / calls[0])
            return {}

        return Seams(adjust=adjust)


class _Calls:
    """State that moves with each loss that is computed, also that of a window which is skipped."""

    count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


@dataclass(frozen=True)
class Moving(Technique):
    """Has a state that a skipped window moves."""

    card: ClassVar[Card] = card_of("moving", "loss", Stage.TERM)

    def seams(self, context: Context) -> Seams:
        calls = _Calls()

        def loss(next: BatchLoss) -> BatchLoss:
            def counted(outputs: Any, batch: Batch) -> LossTerms:
                calls.count += 1
                return next(outputs, batch)

            return counted

        return Seams(loss=loss, state=calls)


@dataclass(frozen=True)
class Forgetful(Technique):
    """Fails where a parameter has no gradient."""

    card: ClassVar[Card] = card_of("forgetful", "adjust", Stage.ELEMENT)

    def seams(self, context: Context) -> Seams:
        def adjust(parameters: Sequence[nn.Parameter], moment: Moment) -> Mapping[str, Tensor]:
            for each in parameters:
                each.grad.mul_(0.5)  # type: ignore[union-attr]
            return {}

        return Seams(adjust=adjust)


@dataclass(frozen=True)
class Placing(Scaled):
    """Says that it changes only how a run fits, and changes the update."""

    card: ClassVar[Card] = card_of("placing", "adjust", Stage.ELEMENT, Family.PLACEMENT)


@dataclass(frozen=True)
class Misnamed(Scaled):
    """Fills another seam than its card says."""

    card: ClassVar[Card] = card_of("misnamed", "loss", Stage.TERM)


def gradient_descent(
    model: nn.Module, windows: list[dict[str, Any]], settings: dict[str, Any], total: int
) -> list[float]:
    """Plain gradient descent on the mean over all labels, with scaled gradients."""
    losses = []
    for window in windows:
        logits = model(**{key: value for key, value in window.items() if key != "labels"})["logits"]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), window["labels"].flatten())
        for parameter in model.parameters():
            parameter.grad = None
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.05 * settings["factor"] * parameter.grad
        losses.append(loss.item())
    return losses


def too_fast(
    model: nn.Module, windows: list[dict[str, Any]], settings: dict[str, Any], total: int
) -> list[float]:
    return gradient_descent(model, windows, {"factor": 1.01 * settings["factor"]}, total)


LAWS: Mapping[str, Callable[[Problem, Technique], Law]] = {
    "card": technique_laws.card,
    "accumulation": lambda problem, technique: technique_laws.split(problem, (technique,)),
    "order": lambda problem, technique: technique_laws.pair(
        problem, (technique, discover()["ema"].example())
    ),
    "resume": lambda problem, technique: technique_laws.resume(problem, (technique,)),
    "skip": lambda problem, technique: technique_laws.skip(problem, (technique,)),
    "placement": technique_laws.placement,
    "oracle": lambda problem, technique: technique_laws.as_oracle(problem, technique, gradient_descent),
}


@pytest.mark.parametrize("name", LAWS)
def test_a_technique_that_keeps_the_laws_is_found_to(name: str) -> None:
    law = LAWS[name](problem_of((Scaled(),)), Scaled())
    assert law.verdict == ("exempt" if name == "placement" else "held"), law.reasons


@pytest.mark.parametrize(
    ("technique", "broken", "words"),
    [
        (Centred(), "accumulation", ""),
        (Centred(), "order", ""),
        (Counting(), "resume", "stopped after 1: .* differ"),
        (Counting(), "order", "after a stop"),
        (Moving(), "skip", "a skipped window changes /techniques/moving/count"),
        (Placing(), "placement", ""),
        (Misnamed(), "card", "card.seams: names loss, and seams.. fills adjust"),
    ],
    ids=lambda value: getattr(getattr(value, "card", None), "name", None),
)
def test_each_law_finds_who_breaks_it(technique: Technique, broken: str, words: str) -> None:
    law = LAWS[broken](problem_of((technique,)), technique)
    assert law.verdict == "broken"
    assert (law.error is not None and law.error > law.bound) or law.reasons
    assert re.search(words, " ".join(law.reasons)), law.reasons


OURS = [
    kind.example()
    for kind in discover().values()
    if kind.card.family is Family.PLACEMENT and kind.card.name != "compile"
]


@pytest.mark.parametrize("technique", OURS, ids=lambda technique: technique.card.name)
def test_what_places_of_ours_is_found_to_leave_the_updates_as_they_are(technique: Technique) -> None:
    problem = problem_of((technique,))
    assert technique_laws.placement(problem, technique).verdict == "held"
    assert technique_laws.card(problem, technique).verdict == "held"


def test_an_oracle_that_trains_otherwise_by_a_hundredth_is_told_apart() -> None:
    law = technique_laws.as_oracle(problem_of((Scaled(),)), Scaled(), too_fast)
    assert law.verdict == "broken" and law.error is not None and 1e-3 < law.error < 0.1


def test_a_certificate_of_a_technique_that_fails_names_the_line_and_tries_the_other_laws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(technique_certificate, "_partners", lambda _: iter([discover()["ema"].example()]))
    found = certify_technique(Forgetful())
    assert {law.name for law in found.broken} == {"accumulation", "order", "resume", "skip"}
    (reason,) = found.law("accumulation").reasons
    assert (
        reason.startswith("it failed: AttributeError: 'NoneType'")
        and "test_technique_certificate.py:" in reason
    )
    assert found.law("card").verdict == "held"


def test_a_partner_that_breaks_the_law_by_itself_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    partners = [Centred(), discover()["ema"].example()]
    monkeypatch.setattr(technique_certificate, "_partners", lambda _: iter(partners))
    law = certify_technique(Scaled()).law("order")
    assert (str(law.verdict), law.reasons) == ("held", ("beside ema",))


def test_partners_are_some_of_ours_that_may_stand_beside_it() -> None:
    names = [each.card.name for each in technique_certificate._partners(Scaled())]
    assert len(names) >= 8 and "clip_value" not in names  # at the same stage
    filled = {seam for each in names for seam in discover()[each].card.seams}
    assert {"loss", "gradients", "batch", "updated", "weights", "optimizer", "schedule", "groups"} <= filled


@pytest.mark.parametrize(("factor", "idle"), [(0.5, False), (1.0, True)])
def test_settings_that_change_nothing_are_told(
    factor: float, idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(technique_certificate, "_partners", lambda _: iter(()))
    found = certify_technique(Scaled(factor))
    assert (IDLE in found.conditions) == idle
    assert NO_ORACLE in found.conditions
    assert found.law("order").verdict == "exempt"


def test_a_technique_that_changes_the_evaluated_weights_alone_is_not_told_to_change_nothing() -> None:
    ema = discover()["ema"].example()
    assert technique_certificate._idle(ema, problem_of((ema,))) == ()


def test_the_terminal_names_what_is_furthest_off_where_no_module_is_to_blame(
    capsys: pytest.CaptureFixture[str],
) -> None:
    law = technique_laws.as_oracle(problem_of((Scaled(),)), Scaled(), too_fast)
    _print(ModelCertificate("scaled", (law,), "float64", "cpu", 7, None, (), 0.0))
    assert law.worst and f"furthest off {law.worst}" in capsys.readouterr().out


def test_a_technique_that_refuses_the_model_is_an_error_and_no_verdict() -> None:
    @dataclass(frozen=True)
    class Refusing(Scaled):
        def prepare(self, model: nn.Module) -> nn.Module:
            raise SettingError.from_text("refusing: needs a tree of moss.")

    with pytest.raises(
        SettingError, match="refuses the built-in model 'reader': refusing: needs a tree of moss"
    ):
        certify_technique(Refusing())


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of this file's technique, importable from the current folder."""
    name = "own_certified"
    (tmp_path / f"{name}.py").write_text(Path(__file__).read_text())
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(technique_certificate, "_partners", lambda _: iter([discover()["ema"].example()]))
    return name


@pytest.mark.slow
def test_the_command_certifies_a_technique_by_its_path_and_leaves_a_page(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["certify", "--technique", f"{module}:Scaled"]
    assert main([*named, "--oracle", f"{module}:gradient_descent", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [law["name"] for law in found["laws"] if law["verdict"] == "held"] == [
        "card",
        "accumulation",
        "order",
        "resume",
        "skip",
        "oracle",
    ]
    assert "trains as its oracle" in Path(found["page"]).read_text()
    assert main(named) == 0
    assert "no oracle was checked" in capsys.readouterr().out
    assert main(["certify", "--technique", f"{module}:Centred"]) == 1
    assert "broken  accumulation = full batch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--technique", "emma"], "techniques: there is no 'emma'. Did you mean 'ema'?"),
        (["--technique", "ema", "--oracle", "nowhere:train"], "--oracle: there is no module 'nowhere'"),
        (["--technique", "ema", "--oracle", "math:pi"], "--oracle: got 'math:pi', which is a float"),
        (["--technique", "ema", "r.yaml"], "--technique: is tried on a built-in problem, got 'r.yaml' too"),
        (["r.yaml", "--oracle", "a:b"], "--oracle: is of a technique"),
        (["--technique", "ema", "--dtype", "int8"], "dtype: must be one of float64, float32, found 'int8'"),
    ],
)
def test_a_command_that_cannot_be_is_refused_by_name(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certify", *arguments]) == 2
    assert words in capsys.readouterr().err
