"""Checkpoints: what is written is read, and what is damaged is passed over."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from snugfit.errors import RunFolderError, SettingError
from snugfit.kit.serialize import pack
from snugfit.results.run_folder import RunFolder
from snugfit.run.checkpoint import checkpoint_files
from tests.laws.problems import differences

PARTS = {"model": {"weight": torch.arange(6.0).reshape(2, 3)}, "run": {"updates": 1}}


def write(root: Path, number: int, parts: dict[str, Any] = PARTS, keep: int = 2) -> Path:
    return checkpoint_files.write(root / f"update-{number:08d}", pack(parts), keep)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def round_trip(root: Path, state: Any) -> Any:
    write(root, 1, {"part": state})
    return checkpoint_files.load_newest(root).parts["part"]


def every_kind() -> dict[Any, Any]:
    half = torch.randn(4, 4)
    return {
        "text": "é\n\"'",
        "none": None,
        "flags": (True, False),
        "count": 10**20,
        "tiny": 5e-324,
        "exact": 0.1 + 0.2,
        "infinite": [math.inf, -math.inf],
        "nested": [{"a": (1, [2, (3,)])}, (), [], {}],
        7: "an int key",
        "7": "a str key",
        1: {"both": torch.zeros(2)},
        "1": {"both": torch.ones(3)},
        "a/b": torch.tensor(1),
        "a": {"b": torch.tensor(2)},
        "": torch.tensor(3),
        "scalar": torch.tensor(math.pi, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "bf16": torch.randn(3).bfloat16(),
        "half": torch.randn(3).half(),
        "bool": torch.tensor([True, False]),
        "bytes": torch.tensor([1, 255], dtype=torch.uint8),
        "long": torch.tensor([2**62]),
        "not finite": torch.tensor([math.nan, math.inf, -0.0]),
        "transposed": half.t(),
        "row": half[1],
        "slice": half[:2],
        "step": half[:, ::2],
        "whole": half,
        "reshaped": half.view(-1),
        "expanded": torch.ones(1, 3).expand(2, 3),
        "parameter": nn.Parameter(torch.randn(2)),
    }


def test_every_kind_of_value_comes_back_as_it_was(tmp_path: Path) -> None:
    state = every_kind()
    found = round_trip(tmp_path, state)
    assert list(found) == list(state)
    not_finite = found.pop("not finite"), state.pop("not finite")
    assert [repr(tensor.tolist()) for tensor in not_finite] == ["[nan, inf, -0.0]"] * 2
    assert not differences(state, found)
    assert all(type(tensor) is Tensor for tensor in found.values() if isinstance(tensor, Tensor))


def test_not_a_number_comes_back(tmp_path: Path) -> None:
    assert math.isnan(round_trip(tmp_path, {"loss": math.nan})["loss"])


def test_a_tensor_that_occurs_twice_is_stored_once_and_shared_again(tmp_path: Path) -> None:
    tied = torch.randn(100, 100)
    found = round_trip(tmp_path, {"first": tied, "second": tied})
    assert found["first"] is found["second"]
    assert (tmp_path / "update-00000001/part.safetensors").stat().st_size < 1.1 * 40_000


def test_two_empty_tensors_keep_their_shapes(tmp_path: Path) -> None:
    found = round_trip(tmp_path, {1: torch.empty(0, 2), "1": torch.empty(0, 3)})
    assert (found[1].shape, found["1"].shape) == ((0, 2), (0, 3))


def test_what_is_saved_does_not_change_with_the_training(tmp_path: Path) -> None:
    weight = torch.zeros(2)
    write(tmp_path, 1, {"model": {"weight": weight}})
    weight += 1
    assert checkpoint_files.load_newest(tmp_path).parts["model"]["weight"].tolist() == [0, 0]


def test_the_state_of_an_optimizer_comes_back(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    found = round_trip(tmp_path, optimizer.state_dict())
    assert not differences(optimizer.state_dict(), found)
    assert isinstance(found["param_groups"][0]["betas"], tuple)


def test_no_file_of_a_checkpoint_is_a_pickle_and_all_json_is_strict(tmp_path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    folder = write(tmp_path, 1, {"model": every_kind(), "techniques/ema": {"averages": {"w": torch.ones(2)}}})
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    for path in files:
        if path.suffix == ".json":
            json.loads(path.read_bytes(), parse_constant=refuse)
        else:
            header = int.from_bytes(path.read_bytes()[:8], "little")
            assert isinstance(json.loads(path.read_bytes()[8 : 8 + header]), dict)


@pytest.mark.parametrize(
    ("value", "where"),
    [({"a": {1, 2}}, "run/a is a set"), ({(1, 2): 0}, "keys of run is a tuple"), ({"m": nn.ReLU()}, "ReLU")],
)
def test_what_only_a_pickle_could_hold_is_refused_and_named(tmp_path: Path, value: Any, where: str) -> None:
    write(tmp_path, 1)
    with pytest.raises(SettingError, match=f"^checkpoint: .*{where}"):
        write(tmp_path, 2, {"run": value})
    assert names(tmp_path) == ["update-00000001"]


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1 if path.suffix == ".safetensors" else len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def as_list(path: Path) -> None:
    path.write_text("[]")


@pytest.mark.parametrize("damage", [flip_a_bit, cut_short, empty, as_list, Path.unlink])
@pytest.mark.parametrize(
    "name", ["manifest.json", "model.json", "model.safetensors", "run.json", "techniques/ema.json"]
)
def test_loading_walks_back_over_a_damaged_checkpoint_and_says_so(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    parts = {**PARTS, "techniques/ema": {"updates": 2}}
    write(tmp_path, 5, parts)
    damage(write(tmp_path, 6, {**parts, "run": {"updates": 6}}) / name)
    loaded = checkpoint_files.load_newest(tmp_path)
    assert loaded.folder.name == "update-00000005"
    assert loaded.parts["run"] == {"updates": 1}
    assert len(loaded.rejected) == 1
    assert loaded.rejected[0].startswith("update-00000006: ")


def test_a_flipped_bit_of_any_byte_of_the_manifest_is_noticed_or_harmless(tmp_path: Path) -> None:
    path = write(tmp_path, 1) / "manifest.json"
    whole = path.read_bytes()
    for place in range(len(whole)):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        try:
            parts = checkpoint_files.load_newest(tmp_path).parts
        except RunFolderError:
            continue
        assert not differences(parts, PARTS)


def test_a_checkpoint_of_another_format_is_passed_over_with_its_number(tmp_path: Path) -> None:
    manifest = write(tmp_path, 1) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(RunFolderError, match="it has format 2, this version of Snugfit reads 1"):
        checkpoint_files.load_newest(tmp_path)


def test_without_a_valid_checkpoint_the_error_says_what_was_found(tmp_path: Path) -> None:
    flip_a_bit(write(tmp_path, 3) / "model.safetensors")
    (write(tmp_path, 4) / "run.json").unlink()
    with pytest.raises(RunFolderError) as raised:
        checkpoint_files.load_newest(tmp_path)
    message = str(raised.value)
    assert message.startswith(f"{tmp_path}: no valid checkpoint to go on from. Found: update-00000004: ")
    assert "update-00000003: model.safetensors is not what was written" in message


def test_without_any_checkpoint_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no valid checkpoint"):
        checkpoint_files.load_newest(tmp_path / "checkpoints")
    assert not RunFolder(tmp_path).has_checkpoints


@pytest.mark.parametrize("keep", [2, 3])
def test_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    for number in (9, 10, 11, 100):
        write(tmp_path, number, keep=keep)
    assert names(tmp_path) == [f"update-{number:08d}" for number in (9, 10, 11, 100)[-keep:]]


def test_a_checkpoint_of_a_skipped_window_is_newer_than_that_of_the_same_weights() -> None:
    """The name of a later moment is greater: the loop counts on it."""
    ordered = ["update-00000005", "update-00000005-window-00000006", "update-00000006-window-00000007"]
    assert sorted(ordered) == ordered


def test_left_overs_of_a_killed_save_are_removed_and_never_loaded(tmp_path: Path) -> None:
    write(tmp_path, 1)
    left_over = tmp_path / ".saving-update-00000002"
    shutil.copytree(tmp_path / "update-00000001", left_over)
    assert checkpoint_files.load_newest(tmp_path).folder.name == "update-00000001"
    write(tmp_path, 3)
    assert names(tmp_path) == ["update-00000001", "update-00000003"]


def test_after_walking_back_the_next_save_is_the_newest_and_the_damaged_ones_go(tmp_path: Path) -> None:
    for number in (10, 20, 30):
        write(tmp_path, number, keep=3)
    for number in (20, 30):
        flip_a_bit(tmp_path / f"update-{number:08d}/run.json")
    assert checkpoint_files.load_newest(tmp_path).folder.name == "update-00000010"
    write(tmp_path, 11)
    assert names(tmp_path) == ["update-00000010", "update-00000011"]
    assert checkpoint_files.load_newest(tmp_path).folder.name == "update-00000011"


def test_a_damaged_checkpoint_of_the_same_moment_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, 1)
    cut_short(write(tmp_path, 2) / "run.json")
    write(tmp_path, 2, {"run": {"updates": 2}})
    assert checkpoint_files.load_newest(tmp_path).parts == {"run": {"updates": 2}}


def refused(*args: Any, **kwargs: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refused_by_safetensors(*args: Any, **kwargs: Any) -> Any:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("module", "function", "act"),
    [
        (checkpoint_files, "save_file", refused_by_safetensors),
        (os, "fsync", refused),
        (os, "replace", refused),
        (Path, "mkdir", refused),
        (Path, "write_text", refused),
    ],
)
def test_a_full_disk_is_a_clear_error_and_the_older_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, function: str, act: Callable[..., Any]
) -> None:
    write(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(module, function, act)
        with pytest.raises(
            RunFolderError, match="update-00000002: the checkpoint cannot be written: .*[Nn]o space left"
        ):
            write(tmp_path, 2)
    assert names(tmp_path) == ["update-00000001"]
    assert not differences(checkpoint_files.load_newest(tmp_path).parts, PARTS)
    write(tmp_path, 2)
    assert names(tmp_path) == ["update-00000001", "update-00000002"]


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunFolderError, match="cannot be written"):
        write(tmp_path / "file" / "checkpoints", 1)


def test_each_file_and_folder_is_on_the_disk_before_the_checkpoint_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: dict[Path, int] = {}
    checked: list[Path] = []
    fsync, replace = os.fsync, os.replace

    def recording(descriptor: int) -> None:
        fsync(descriptor)
        flushed[Path(os.readlink(f"/proc/self/fd/{descriptor}"))] = os.fstat(descriptor).st_mtime_ns

    def checking(source: Path, target: Path) -> None:
        for path in [source, *source.rglob("*")]:
            # changed after it was flushed, or never flushed
            assert flushed.get(path) == path.stat().st_mtime_ns, path
            checked.append(path)
        flushed.clear()
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recording)
    monkeypatch.setattr(os, "replace", checking)
    write(tmp_path, 1, {**PARTS, "techniques/ema": {"averages": {"w": torch.ones(2)}}})
    assert len(checked) == 8  # two folders, a manifest, three parts of which two have tensors
    assert tmp_path in flushed  # the new name itself
