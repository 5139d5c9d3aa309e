"""Techniques of the user's own, by path and by entry point: trained, resumed, refused by name, never imported unasked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn

from snugfit.cli import main
from snugfit.core.entry import as_entry
from snugfit.deliver.predictor import extended
from snugfit.errors import CodeRefused, SettingError
from snugfit.recipe import Recipe, json_schema, load_recipe
from snugfit.results.run_folder import RunFolder
from snugfit.system import code_consent, plugins
from snugfit.techniques import find
from snugfit.techniques.plugins import TECHNIQUES
from tests.unit.system.installed_package import install

TECHNIQUE = '''\
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from snugfit import Card, Seams, Technique
from snugfit.core.technique import Context, Family, Moment, Stage

TIMES = 1.0


@dataclass(frozen=True)
class Scaled(Technique):
    """Multiply each gradient by `factor`."""

    factor: float = 0.5

    card: ClassVar[Card] = Card(
        name="scaled",
        summary="Multiplies gradients.",
        family=Family.LEARNING,
        source="none",
        seams=("adjust",),
        stages=(Stage.ELEMENT,),
    )

    def __post_init__(self) -> None:
        self.require_positive("factor")

    def seams(self, context: Context) -> Seams:
        self.require("factor", self.factor != 13, "another number on this model")

        def adjust(parameters: Sequence[nn.Parameter], moment: Moment) -> Mapping[str, Tensor]:
            for each in parameters:
                each.grad.mul_(self.factor * TIMES)
            return {}

        return Seams(adjust=adjust)
'''
NETS = """\
import torch
from torch import nn

def build():
    return nn.Linear(4, 3)

def rows():
    source = torch.Generator().manual_seed(0)
    return [(torch.randn(4, generator=source), number % 3) for number in range(8)]
"""
RECIPE = """\
task: python
model: nets_of_own:build
data: {{train: 'nets_of_own:rows', validation: null}}
train: {{updates: 4, global_batch: 4}}
optimizer: {{sgd: {{learning_rate: 0.1, weight_decay: 0}}}}
schedule: null
track: {{mlflow: false}}
checkpoint: {{every: 1, keep: 4}}
techniques:
  - {entry}
"""
PATH = "own_package.scaling:Scaled"
MODULES = ("own_package", "own_package.scaling", "nets_of_own", "trap_of_own", "others_of_own")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe's folder, which is not the current one, with a package that has a technique."""
    place, here = tmp_path / "there", tmp_path / "here"
    (place / "own_package").mkdir(parents=True)
    here.mkdir()
    (place / "own_package" / "__init__.py").touch()
    (place / "own_package" / "scaling.py").write_text(TECHNIQUE)
    (place / "nets_of_own.py").write_text(NETS)
    monkeypatch.chdir(here)
    monkeypatch.setattr(code_consent, "_granted", set())
    forget(monkeypatch)
    return place


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)


def recipe_in(folder: Path, entry: str) -> Path:
    path = folder / "r.yaml"
    path.write_text(RECIPE.format(entry=entry))
    return path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """A folder of installed packages, one of which is the technique's."""
    place = tmp_path / "site"
    place.mkdir()
    (folder / "own_package").rename(place / "own_package")
    monkeypatch.syspath_prepend(str(place))
    return place


def trained(recipe: Path, *overrides: str) -> Path:
    before = {*Path("runs/r").glob("*")}
    assert main(["train", str(recipe), *overrides, "--allow-code", "--no-plan", "--quiet"]) == 0
    (run,) = {*Path("runs/r").glob("*")} - before
    return run


def weights_of(run: Path) -> Tensor:
    """All weights after the last update, as one vector."""
    newest = max((run / "checkpoints").iterdir())
    weights = [
        weight for file in sorted(newest.glob("model*.safetensors")) for weight in load_file(file).values()
    ]
    return torch.cat([weight.flatten() for weight in weights])


def test_a_recipe_trains_with_a_technique_of_the_users_own_and_its_copy_names_it_by_its_path(
    folder: Path,
) -> None:
    halved = trained(recipe_in(folder, f"{PATH}: {{factor: 0.5}}"))
    copy = load_recipe(halved / "recipe.yaml")
    assert copy.as_dict()["techniques"] == [{PATH: {"factor": 0.5}}]
    assert copy.code["techniques"] == PATH
    assert type(copy.techniques[0]) is find(PATH)
    # a gradient that is halved is a rate that is halved
    slower = trained(recipe_in(folder, "clip_norm: {max_norm: 1e9}"), "optimizer.sgd.learning_rate=0.05")
    faster = trained(recipe_in(folder, "clip_norm: {max_norm: 1e9}"))
    torch.testing.assert_close(weights_of(halved), weights_of(slower))
    assert not torch.allclose(weights_of(halved), weights_of(faster), rtol=1e-3)


@pytest.mark.slow
def test_the_planner_finds_it_in_the_recipes_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = recipe_in(folder, PATH)
    assert main(["plan", str(recipe), "--allow-code", "--no-search", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {PATH: {"factor": 0.5}} in planned["choice"]["techniques"]


@pytest.mark.slow
def test_two_ranks_train_it_as_one_process(folder: Path) -> None:
    recipe = recipe_in(folder, f"{PATH}: {{factor: 0.5}}")
    command = [sys.executable, "-m", "snugfit", "train", str(recipe), "--allow-code", "--no-plan", "--quiet"]
    found = []
    for devices in (1, 2):
        done = subprocess.run(
            [*command, f"plan.devices={devices}", f"output=runs{devices}"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        assert done.returncode == 0, done.stderr
        (run,) = Path(f"runs{devices}/r").iterdir()
        found.append(weights_of(run))
    torch.testing.assert_close(found[1], found[0])


def test_a_resume_refuses_source_that_has_changed_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(recipe_in(folder, PATH))
    for checkpoint in sorted((run / "checkpoints").iterdir())[2:]:
        for file in checkpoint.iterdir():
            file.unlink()
        checkpoint.rmdir()
    source = folder / "own_package" / "scaling.py"
    source.write_text(TECHNIQUE.replace("TIMES = 1.0", "TIMES = 3.0"))
    os.utime(source, (1, 1))  # another time of change, so that no byte code of before is taken
    forget(monkeypatch)
    assert main(["resume", str(run), "--quiet"]) == 2
    errors = capsys.readouterr().err
    assert "techniques.scaled: own_package.scaling.TIMES 1.0 then, 3.0 now" in errors
    assert (
        f"snugfit resume {RunFolder.open(run).in_commands} --accept-changes techniques.scaled, in Python"
        in " ".join(errors.split())
    )
    assert main(["resume", str(run), "--quiet", "--accept-changes", "techniques.scaled"]) == 0


def test_a_name_from_elsewhere_is_not_imported_without_consent(folder: Path) -> None:
    (folder / "trap_of_own.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('sprung').touch()\n"
    )
    recipe = recipe_in(folder, "trap_of_own:Scaled")
    with pytest.raises(
        CodeRefused, match=r"model: nets_of_own:build, .*techniques: trap_of_own:Scaled\), and nothing"
    ):
        load_recipe(recipe)
    assert not (folder / "sprung").exists()
    with pytest.raises(SettingError, match="has no 'Scaled'"):
        load_recipe(recipe, allow_code=True)
    assert (folder / "sprung").exists(), "the trap was none"


def test_a_technique_that_a_package_lists_is_named_by_its_name_and_is_code_too(
    site: Path, folder: Path
) -> None:
    install(site, "own-package", TECHNIQUES.group, scaled=PATH)
    recipe = recipe_in(folder, "scaled: {factor: 2}")
    with pytest.raises(CodeRefused, match=f"techniques.scaled: {PATH}"):
        load_recipe(recipe)
    assert "own_package.scaling" not in sys.modules
    loaded = load_recipe(recipe, allow_code=True)
    assert loaded.as_dict()["techniques"] == [{PATH: {"factor": 2.0}}]
    assert_same_again(loaded, folder)


def assert_same_again(recipe: Recipe, folder: Path) -> None:
    copy = folder / "copy.yaml"
    copy.write_text(recipe.to_yaml())
    assert load_recipe(copy).as_dict() == recipe.as_dict()


def test_the_source_of_an_installed_package_is_compared_too(
    site: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    packages = tmp_path / "site-packages"
    site.rename(packages)
    monkeypatch.syspath_prepend(str(packages))
    install(packages, "own-package", TECHNIQUES.group, scaled=PATH)
    run = trained(recipe_in(folder, "scaled"))
    forget(monkeypatch)
    source = packages / "own_package" / "scaling.py"
    source.write_text(TECHNIQUE.replace("mul_(", "div_("))
    os.utime(source, (1, 1))
    assert main(["resume", str(run), "--quiet"]) == 2
    assert "techniques.scaled: own_package.scaling.Scaled was changed" in capsys.readouterr().err


def test_names_of_ours_read_no_entry_points_and_a_broken_one_harms_nobody(
    site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "own-package", TECHNIQUES.group, scaled=PATH)
    install(
        site,
        "broken-package",
        TECHNIQUES.group,
        broken="trap_of_own:Nothing",
        ema="own_package.scaling:Scaled",
    )
    (site / "trap_of_own.py").write_text("1 / 0\n")
    with monkeypatch.context() as patched:
        patched.setattr(plugins, "installed_entry_points", lambda **_: pytest.fail("entry points were read"))
        load_recipe(recipe_in(folder, "ema"), allow_code=True)
        assert main(["--help"]) == 0
        json_schema()
    load_recipe(recipe_in(folder, "scaled"), allow_code=True)
    with pytest.raises(
        SettingError,
        match=r"r.yaml:10: techniques.broken: the entry point 'broken' of broken-package 1.0 cannot be used: importing "
        r"'trap_of_own' failed: ZeroDivisionError.*Upgrade or uninstall",
    ):
        load_recipe(recipe_in(folder, "broken"), allow_code=True)
    assert "trap_of_own" not in sys.modules


def test_two_packages_that_list_one_name_are_both_named(site: Path, folder: Path) -> None:
    install(site, "own-package", TECHNIQUES.group, scaled=PATH)
    install(site, "other-package", TECHNIQUES.group, scaled="others_of_own:Scaled")
    recipe = recipe_in(folder, "scaled")
    with pytest.raises(
        SettingError,
        match=f"got 'scaled', which 2 packages list: others_of_own:Scaled of other-package 1.0 and {PATH} of own-package 1.0",
    ):
        load_recipe(recipe, allow_code=True)
    load_recipe(recipe_in(folder, PATH), allow_code=True)  # the way out that the message names


def test_an_entry_point_under_the_name_of_ours_is_refused(site: Path) -> None:
    install(site, "own-package", TECHNIQUES.group, ema=PATH)
    ((entry,),) = TECHNIQUES.entry_points().values()
    with pytest.raises(
        SettingError, match="'ema' of own-package 1.0 has the name of a technique of Snugfit's"
    ):
        TECHNIQUES.load_entry_point(entry, "techniques", {"ema"})


def test_an_entry_point_that_is_not_called_as_its_card_is_refused(site: Path, folder: Path) -> None:
    install(site, "own-package", TECHNIQUES.group, multiplied=PATH)
    with pytest.raises(
        SettingError, match="'multiplied' of own-package 1.0 is a technique whose card is named 'scaled'"
    ):
        load_recipe(recipe_in(folder, "multiplied"), allow_code=True)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("own_pakage.scaling:Scaled", "there is no module 'own_pakage' in .* asked for by"),
        ("own_package.scalling:Scaled", "there is no module 'own_package.scalling'"),
        ("own_package.scaling:Scalled", "'own_package.scaling' has no 'Scalled'. Did you mean 'Scaled'"),
        (
            "others_of_own:make",
            "got 'others_of_own:make', which is a function, expected the class of a technique",
        ),
        ("others_of_own:Plain", "got 'others_of_own:Plain', a class that is no Technique"),
        ("others_of_own:Bare", "which is no dataclass, so that its settings are not known"),
        ("others_of_own:Thawed", "a dataclass that may change during a run"),
        ("others_of_own:Cardless", "has no card, expected `card: ClassVar"),
        ("others_of_own:Carded", "has a card that is 'carded'"),
        ("others_of_own:Named", "is named 'two words', expected a name such as"),
        ("others_of_own:Ours", "is named 'ema', as a technique of Snugfit's is"),
        ("others_of_own:Unread", "the types of its settings cannot be read .NameError: name 'Missing'"),
        ("others_of_own:Rate", "'others_of_own:Rate' is a schedule. Write it under its own key"),
        (
            f"{PATH}: {{factor: 2, faktor: 3}}",
            f"scaling:Scaled.faktor: '{PATH}' has no such setting. Did you mean 'factor'",
        ),
        (f"{PATH}: {{factor: much}}", "scaling:Scaled.factor: must be a number, found 'much'"),
        (f"{PATH}: {{factor: -1}}", "scaling:Scaled.factor: must be positive, found -1"),
        ("scald", "there is no such technique"),
    ],
)
def test_what_cannot_be_used_is_refused_with_file_line_and_reason(
    folder: Path, entry: str, words: str
) -> None:
    others = TECHNIQUE.replace("class Scaled", "class Base").replace('name="scaled"', 'name="base"')
    others += """
def make(): pass
class Plain: pass
class Bare(Technique):
    card = Base.card
@dataclass
class Thawed(Technique):
    card = Base.card
@dataclass(frozen=True)
class Cardless(Technique):
    pass
@dataclass(frozen=True)
class Carded(Technique):
    card = "carded"
def named(name, seams=()):
    return Card(name=name, summary="", family=Family.LEARNING, source="", seams=seams)
@dataclass(frozen=True)
class Named(Technique):
    card = named("two words")
@dataclass(frozen=True)
class Ours(Technique):
    card = named("ema")
@dataclass(frozen=True)
class Unread(Technique):
    rate: Missing = 1
    card = named("unread")
@dataclass(frozen=True)
class Rate(Technique):
    card = named("rate", ("schedule",))
"""
    (folder / "others_of_own.py").write_text(others)
    with pytest.raises(
        SettingError, match=rf"r\.yaml:10: techniques\.[^ ]*: .*{words}|r\.yaml:10: techniques\.[^ ]*{words}"
    ):
        load_recipe(recipe_in(folder, entry), allow_code=True)


@pytest.mark.parametrize("named", ["path", "entry point"])
def test_a_setting_that_the_model_refuses_has_its_line(
    site: Path, folder: Path, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "own-package", TECHNIQUES.group, scaled=PATH)
    name = PATH if named == "path" else "scaled"
    recipe = recipe_in(folder, f"{name}: {{factor: 13}}")
    assert main(["train", str(recipe), "--allow-code", "--no-plan"]) == 2
    assert (
        f"r.yaml:10: techniques.{name}.factor: must be another number on this model"
        in capsys.readouterr().err
    )


def test_a_class_that_no_path_leads_to_is_written_by_the_name_on_its_card(folder: Path) -> None:
    kind = type(load_recipe(recipe_in(folder, PATH), allow_code=True).techniques[0])
    assert as_entry(kind()) == {PATH: {"factor": 0.5}}
    kind.__qualname__ = "make.<locals>.Scaled"
    assert as_entry(kind()) == {"scaled": {"factor": 0.5}}


def test_the_listing_names_what_packages_list_and_imports_nothing(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "own-package", TECHNIQUES.group, scaled=PATH)
    install(site, "broken-package", TECHNIQUES.group, broken="trap_of_own:Nothing")
    (site / "trap_of_own.py").write_text("1 / 0\n")
    assert main(["techniques"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["scaled", "own-package", "1.0,", PATH] in lines
    assert ["broken", "broken-package", "1.0,", "trap_of_own:Nothing"] in lines
    assert main(["techniques", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"name": "scaled", "package": "own-package 1.0", "path": PATH, "refused": ""} in found["packages"]
    assert "own_package.scaling" not in sys.modules
    assert main(["techniques", "broken"]) == 2
    assert "the entry point 'broken' of broken-package 1.0 cannot be used" in capsys.readouterr().err
    assert main(["techniques", "scalled"]) == 2
    assert "there is no 'scalled'. Did you mean 'scaled'?" in capsys.readouterr().err


def test_the_listing_says_which_names_are_refused(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, "own-package", TECHNIQUES.group, ema=PATH, scaled=PATH)
    install(site, "other-package", TECHNIQUES.group, scaled=PATH)
    assert main(["techniques"]) == 0
    out = capsys.readouterr().out
    assert f"own-package 1.0, {PATH}, refused: it has the name of a technique of Snugfit's" in out
    assert out.count(f"{PATH}, refused: another package lists the same name: use the path") == 2


@pytest.mark.parametrize("name", [PATH, "scaled"])
def test_the_page_of_one_says_how_a_recipe_names_it(
    name: str, site: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "own-package", TECHNIQUES.group, scaled=PATH)
    assert main(["techniques", name]) == 0
    page = capsys.readouterr().out
    assert page.startswith("scaled: Multiplies gradients.")
    assert "factor  a number, 0.5 by default" in page
    written = page.splitlines()[-1].strip().removeprefix("techniques: [").removesuffix("]")
    recipe = load_recipe(recipe_in(folder, written), allow_code=True)
    assert recipe.as_dict()["techniques"] == [{PATH: {"factor": 0.5}}]


def test_a_technique_without_example_settings_is_told_what_to_define(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = TECHNIQUE.replace("factor: float = 0.5", "factor: float")
    (folder / "own_package" / "scaling.py").write_text(source)
    monkeypatch.chdir(folder)
    assert main(["techniques", PATH]) == 2
    assert "scaled: its example settings cannot be made (TypeError: " in capsys.readouterr().err


def test_the_schema_takes_techniques_of_others(site: Path, folder: Path) -> None:
    install(site, "own-package", TECHNIQUES.group, scaled=PATH)
    schema = json_schema(TECHNIQUES.entry_points())
    for entry, fits in ((PATH, True), (f"{PATH}: {{factor: 2}}", True), ("scaled", True), ("scald", False)):
        recipe = yaml.safe_load(recipe_in(folder, entry).read_text())
        assert jsonschema.Draft202012Validator(schema).is_valid(recipe) == fits, entry


def test_an_override_reaches_a_setting_by_the_path(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = recipe_in(folder, f"{PATH}: {{factor: 2}}")
    changed = load_recipe(recipe, [f"techniques.{PATH}.factor=3"], allow_code=True)
    assert changed.as_dict()["techniques"] == [{PATH: {"factor": 3.0}}]
    assert (
        load_recipe(recipe_in(folder, PATH), [f"techniques.{PATH}.factor=3"], allow_code=True).techniques
        == changed.techniques
    )
    with pytest.raises(
        SettingError,
        match=f"override 'techniques.{PATH}.factor=-1': techniques.{PATH}.factor: must be positive",
    ):
        load_recipe(recipe, [f"techniques.{PATH}.factor=-1"], allow_code=True)
    with pytest.raises(SettingError, match="of this recipe has no 'own_package'"):
        load_recipe(recipe, ["techniques.own_package.scaling:Other.factor=3"], allow_code=True)


def test_a_bundle_is_made_again_with_a_technique_of_the_users_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "own_package" / "scaling.py").write_text(
        TECHNIQUE + "\n    def prepare(self, model):\n        return nn.Sequential(model, nn.Linear(3, 2))\n"
    )
    with pytest.raises(SettingError, match="there is no module 'own_package'"):
        extended(nn.Linear(4, 3), [{PATH: {"factor": 2.0}}])
    monkeypatch.chdir(folder)
    made = extended(nn.Linear(4, 3), [{PATH: {"factor": 2.0}}])
    assert made(torch.zeros(1, 4)).shape == (1, 2)
