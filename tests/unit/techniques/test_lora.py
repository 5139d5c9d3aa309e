from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from snugfit.core.parameters import parameter_groups
from snugfit.errors import ModelError, SettingError, SnugfitWarning
from snugfit.kit.adapters.adapter_files import save_adapter
from snugfit.kit.adapters.adapters import adapted, merged
from snugfit.step.step import Step
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.lora import LoRA, lora_
from snugfit.techniques.learning.sgd import SGD
from tests.unit.techniques.settings import context, refuses

BATCH = (torch.linspace(-1, 1, 24).reshape(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    "setting", [{"rank": 0}, {"alpha": 0.0}, {"dropout": 1.0}, {"plus": 0.0}, {"plus": float("nan")}], ids=str
)
def test_an_impossible_setting_is_refused(setting: dict[str, float]) -> None:
    refuses(LoRA, **setting)


@pytest.mark.parametrize("dora", [False, True])
def test_at_the_start_the_model_is_what_it_was(dora: bool) -> None:
    torch.testing.assert_close(lora_(model(), dora=dora)(BATCH[0]), model()(BATCH[0]))


def test_only_adapters_and_the_head_move() -> None:
    step = Step(
        model(), AdamW(learning_rate=0.1, weight_decay=0.1), techniques=[LoRA(targets=("0",), head=("2",))]
    )
    before = {name: p.detach().clone() for name, p in step.model.named_parameters()}
    for _ in range(2):
        step(BATCH)
    moved = {name for name, p in step.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"0.lora_A.default.weight", "0.lora_B.default.weight", "2.weight", "2.bias"}
    assert {name for name, p in step.model.named_parameters() if p.grad is not None} == moved


def test_b_learns_at_a_multiple_of_the_rate_of_a() -> None:
    prepared = LoRA(plus=16.0).prepare(model())
    groups = LoRA(plus=16.0).seams(context(prepared)).groups
    assert groups is not None
    given = parameter_groups(prepared)
    given[0]["lr_factor"] = 0.5  # somebody else's
    factors = {name: group.get("lr_factor", 1.0) for group in groups(given) for name, _ in group["params"]}
    assert {name: factor for name, factor in factors.items() if "lora_" in name} == {
        f"{layer}.lora_{letter}.default.weight": factor
        for layer in "02"
        for letter, factor in (("A", 0.5), ("B", 8.0))
    }
    assert set(factors) == {name for name, _ in prepared.named_parameters()}


def test_the_adapters_begin_with_the_runs_seed_whatever_was_drawn_before() -> None:
    begun = []
    for drawn, seed in ((1, 0), (2, 0), (2, 1)):
        given = model()
        torch.manual_seed(drawn)
        step = Step(given, SGD(), techniques=[LoRA()], seed=seed)
        begun.append(adapted(step.model)["0"].lora_A["default"].weight.detach().clone())
    assert torch.equal(begun[0], begun[1])
    assert not torch.equal(begun[0], begun[2])


def test_the_export_is_a_copy_and_training_goes_on_untouched() -> None:
    steps = [Step(model(), SGD(), techniques=[LoRA(dropout=0.3)]) for _ in range(2)]
    for _ in range(3):
        for step in steps:
            step(BATCH)
        exported = steps[0].seams.export
        assert exported is not None
        plain = exported(steps[0].model)
        assert [name for name, _ in plain.named_parameters()] == [
            name for name, _ in model().named_parameters()
        ]
        torch.testing.assert_close(plain.eval()(BATCH[0]), copy.deepcopy(steps[0].model).eval()(BATCH[0]))
    for one, other in zip(*(step.model.parameters() for step in steps), strict=True):
        assert torch.equal(one, other)


def test_dropout_acts_in_training_and_not_in_evaluation() -> None:
    torch.manual_seed(0)
    adapted_model = lora_(model(), dropout=0.5)
    nn.init.ones_(adapted(adapted_model)["2"].lora_B["default"].weight)
    training = [adapted_model(BATCH[0]) for _ in range(2)]
    evaluated = [adapted_model.eval()(BATCH[0]) for _ in range(2)]
    assert not torch.equal(*training)
    assert torch.equal(*evaluated)


def test_a_torch_optimizer_made_before_the_adapters_is_refused() -> None:
    given = model()
    with pytest.raises(SettingError, match=r"Give the optimizer as a technique, such as AdamW\(\)"):
        Step(given, torch.optim.SGD(given.parameters(), lr=0.1), techniques=[LoRA()])


def test_every_kind_is_put_in_without_data() -> None:
    with FakeTensorMode():
        for settings in (LoRA(), LoRA(dora=True), LoRA(rslora=True)):
            assert adapted(settings.prepare(nn.Sequential(nn.Linear(4, 4), nn.Conv2d(1, 2, 3))))


def test_embeddings_are_adapted_when_they_are_named() -> None:
    torch.manual_seed(0)
    made = lora_(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)), rank=2, targets=["0"])
    nn.init.normal_(adapted(made)["0"].lora_embedding_A["default"])
    ids = torch.arange(5)
    assert not torch.allclose(made(ids), made[1](made[0].get_base_layer()(ids)))
    torch.testing.assert_close(merged(made)(ids), made(ids))


def learned(folder: Path, updates: int = 3, **settings: object) -> Step:
    """A step whose adapters have learned, written to a folder as a run does."""
    step = Step(model(), AdamW(learning_rate=0.1), techniques=[LoRA(rank=2, alpha=8.0, **settings)])
    for _ in range(updates):
        step(BATCH)
    save_adapter(step.model, folder / "best" / "adapter")
    return step


@pytest.mark.parametrize("kind", [{}, {"dora": True}, {"rslora": True}], ids=str)
def test_an_adapter_goes_on_from_where_it_was(kind: dict[str, bool], tmp_path: Path) -> None:
    first = learned(tmp_path, head=("2",), **kind)
    on = LoRA(rank=2, alpha=8.0, dropout=0.5, start=str(tmp_path), **kind)
    begun = Step(model(), AdamW(learning_rate=0.1), techniques=[on])
    first.model.eval(), begun.model.eval()
    assert torch.equal(first.model(BATCH[0]), begun.model(BATCH[0]))
    assert not torch.allclose(begun.model(BATCH[0]), model()(BATCH[0]))
    trains = [
        {name for name, weight in each.model.named_parameters() if weight.requires_grad}
        for each in (first, begun)
    ]
    assert trains[0] == trains[1]
    before = {name: weight.detach().clone() for name, weight in begun.model.named_parameters()}
    begun.model.train()
    begun(BATCH)
    moved = {name for name, weight in begun.model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == trains[1]
    assert any(isinstance(module, nn.Dropout) and module.p == 0.5 for module in begun.model.modules())


def test_a_plan_of_an_adapter_that_goes_on_needs_no_numbers(tmp_path: Path) -> None:
    learned(tmp_path)
    with FakeTensorMode():
        made = LoRA(rank=2, alpha=8.0, start=str(tmp_path)).prepare(model())
    assert {name for name, weight in made.named_parameters() if weight.requires_grad} == {
        f"{layer}.lora_{letter}.default.weight" for layer in "02" for letter in "AB"
    }


def test_an_adapter_of_other_settings_is_refused_with_its_own(tmp_path: Path) -> None:
    learned(tmp_path)
    with pytest.raises(SettingError, match=r"lora.rank: is 8, .* has 2. Write rank: 2."):
        LoRA(alpha=8.0, start=str(tmp_path)).prepare(model())
    with pytest.raises(SettingError, match="lora.alpha: is 16.0, .* has 8.0"):
        LoRA(rank=2, start=str(tmp_path)).prepare(model())
    with pytest.raises(SettingError, match="lora.start: names an adapter, which has its own layers"):
        LoRA(targets=("0",), start=str(tmp_path))
    with pytest.raises(ModelError, match="^lora.start: .* holds no adapter of peft"):
        LoRA(start=str(tmp_path / "nothing")).prepare(model())
    with pytest.raises(ModelError, match="^lora.start: .* is of another model"):
        LoRA(rank=2, alpha=8.0, start=str(tmp_path)).prepare(nn.Sequential(nn.Linear(5, 3)))


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapter_that_is_broken_is_told_by_its_file(file: str, tmp_path: Path) -> None:
    learned(tmp_path)
    path = tmp_path / "best" / "adapter" / file
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ModelError, match=f"^lora.start: .*{file} cannot be read"):
        LoRA(rank=2, alpha=8.0, start=str(tmp_path)).prepare(model())


def test_an_adapter_is_not_put_on_the_weights_that_it_is_merged_into(tmp_path: Path) -> None:
    learned(tmp_path)
    merged = model()
    merged.config = SimpleNamespace(name_or_path=str(tmp_path / "best"))
    with pytest.raises(
        SettingError, match="^lora.start: .*adapter is merged into the weights of .*best already"
    ):
        LoRA(rank=2, alpha=8.0, start=str(tmp_path)).prepare(merged)


def test_an_adapter_that_goes_on_beside_other_weights_says_so(tmp_path: Path) -> None:
    learned(tmp_path)
    file = tmp_path / "best" / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": "org/one"}))
    technique, other, same = LoRA(rank=2, alpha=8.0, start=str(tmp_path)), model(), model()
    other.config, same.config = (SimpleNamespace(name_or_path=name) for name in ("org/two", "org/one"))
    with pytest.warns(SnugfitWarning, match=r"lora\.start: .* was trained on org/one, .* weights of org/two"):
        technique.prepare(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SnugfitWarning)
        technique.prepare(same)
    # an exported adapter names its base without the place
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": "./two"}))
    same, other = model(), model()
    same.config, other.config = (SimpleNamespace(name_or_path=name) for name in ("/bases/two", "/bases/one"))
    with pytest.warns(SnugfitWarning, match=r"was trained on \./two, .* weights of /bases/one"):
        technique.prepare(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SnugfitWarning)
        technique.prepare(same)
