"""Presets: named beginnings of a recipe."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import yaml

from snugfit.cli import main
from snugfit.errors import SettingError
from snugfit.recipe import load_recipe
from snugfit.recipe.presets import DEFAULT, completed, presets
from snugfit.recipe.strict_yaml import Places, read_yaml
from snugfit.recipe.write import recipe_hash
from snugfit.run.from_python import train
from snugfit.techniques import find

BARE = "task: python\nmodel: my_model:make\ndata: {train: my_data:load}\n"


def recipe(folder: Path, text: str = "", *overrides: str):  # type: ignore[no-untyped-def]
    path = folder / "my.yaml"
    path.write_text(BARE + text)
    return load_recipe(path, overrides)


@pytest.mark.parametrize("name", presets())
def test_every_preset_makes_a_recipe_that_says_the_same_when_it_is_written_out(
    name: str, tmp_path: Path
) -> None:
    made = recipe(tmp_path, f"preset: {name}\n")
    assert made.preset == name
    (tmp_path / "whole.yaml").write_text(made.to_yaml())
    again = load_recipe(tmp_path / "whole.yaml")
    assert again.all_techniques() == made.all_techniques()
    assert recipe_hash(again) == recipe_hash(made)


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_described_in_full(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["techniques", name]) == 0
    page = capsys.readouterr().out
    assert presets()[name].about in page and presets()[name].source in page
    found = read_yaml(page.split("Stands for:\n")[1].split("In a recipe:")[0], "page", Places("page"))
    assert set(found) == {"optimizer", "schedule", "techniques"}
    for key in ("optimizer", "schedule"):
        assert found[key] == getattr(presets()[name], key)
    assert yaml.safe_load(page.split("In a recipe:\n")[1]) == {"preset": name}
    assert main(["techniques", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["preset"]["about"] == presets()[name].about


def test_a_recipe_without_one_has_the_default(tmp_path: Path) -> None:
    assert recipe(tmp_path).all_techniques() == recipe(tmp_path, f"preset: {DEFAULT}\n").all_techniques()


def test_what_the_recipe_gives_wins_and_the_rest_is_the_presets(tmp_path: Path) -> None:
    made = recipe(tmp_path, "preset: transformer_from_scratch\nschedule: {noam: {dim: 64}}\n")
    assert made.schedule.dim == 64 and made.schedule.warmup == 4000
    assert made.optimizer.betas == (0.9, 0.98)
    other = recipe(tmp_path, "preset: hf_trainer\noptimizer: {sgd: {learning_rate: 0.1}}\n")
    assert other.optimizer.card.name == "sgd" and other.schedule.card.name == "linear"


def test_a_list_of_techniques_takes_the_place_of_the_presets(tmp_path: Path) -> None:
    made = recipe(tmp_path, "preset: fine_tune\ntechniques: [ema]\n")
    assert [technique.card.name for technique in made.techniques] == ["ema"]


def test_it_can_be_chosen_on_the_command_line(tmp_path: Path) -> None:
    made = recipe(tmp_path, "", "preset=hf_trainer", "techniques.clip_norm.max_norm=2.0")
    assert made.preset == "hf_trainer" and made.optimizer.weight_decay == 0.0
    assert made.techniques[0].max_norm == 2.0


@pytest.mark.parametrize(
    ("value", "wanted"), [("fine_tun", "Did you mean 'fine_tune'?"), ("3", "must be one of")]
)
def test_one_that_does_not_exist_is_refused_with_its_line(value: str, wanted: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"my\.yaml:4: preset") as refusal:
        recipe(tmp_path, f"preset: {value}\n")
    assert wanted in str(refusal.value)


def test_hf_trainer_has_the_defaults_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    made = recipe(tmp_path, "preset: hf_trainer\n")
    assert theirs.optim == "adamw_torch_fused" and theirs.lr_scheduler_type == "linear"
    assert made.optimizer.learning_rate == theirs.learning_rate
    assert made.optimizer.betas == (theirs.adam_beta1, theirs.adam_beta2)
    assert made.optimizer.epsilon == theirs.adam_epsilon
    assert made.optimizer.weight_decay == theirs.weight_decay
    assert made.schedule.card.name == "linear" and made.schedule.warmup == theirs.warmup_steps == 0
    assert made.techniques[0].max_norm == theirs.max_grad_norm


def test_transformer_from_scratch_has_the_rates_of_the_paper(tmp_path: Path) -> None:
    """Vaswani et al. 2017, section 5.3: d^-0.5 · min(n^-0.5, n · 4000^-1.5) with d = 512."""
    made = recipe(tmp_path, "preset: transformer_from_scratch\n")
    for number in (1, 4000, 100_000):
        expected = 512**-0.5 * min(number**-0.5, number * 4000**-1.5)
        rate = made.optimizer.learning_rate * made.schedule.factor(number - 1, 100_000)
        assert math.isclose(rate, expected, rel_tol=1e-12)
    assert made.optimizer.epsilon == 1e-9


def test_in_python_it_fills_the_places_that_are_not_taken() -> None:
    cosine, clip = find("cosine")(), find("clip_norm")(max_norm=5.0)
    found = completed([cosine, clip], "fine_tune")
    assert [technique.card.name for technique in found] == ["adamw", "cosine", "clip_norm"]
    assert found[0].learning_rate == 5e-5 and found[2] is clip
    with pytest.raises(SettingError, match="preset: there is no preset 'mine'"):
        completed([], "mine")


def test_a_run_in_python_takes_a_preset(tmp_path: Path) -> None:
    def run(**settings: object) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2)
        data = [(torch.randn(2), torch.tensor(0)) for _ in range(8)]
        train(model, data, updates=3, track=False, output=tmp_path, global_batch=4, **settings)
        return model.weight.detach()

    named = [find("adamw")(learning_rate=5e-5, weight_decay=0.0), find("linear")(), find("clip_norm")()]
    assert torch.equal(run(preset="hf_trainer"), run(techniques=named))
    with pytest.raises(SettingError, match="preset: brings an optimizer"):
        run(preset="fine_tune", optimizer=torch.optim.SGD(torch.nn.Linear(2, 2).parameters()))
