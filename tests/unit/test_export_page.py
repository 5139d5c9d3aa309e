"""The page of exports: every format and its numbers, and its command with what that prints."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import snugfit as sf
from snugfit.cli.app import app
from snugfit.deliver.export import read_back, reader
from snugfit.deliver.export.export_model import FORMATS
from snugfit.deliver.export.quantization import QUANTIZATIONS
from tests.unit.deliver.export.models import of_bytes, stored

ROOT = Path(sf.__file__).parents[2]
PAGE = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the table that begins so."""
    table = PAGE[PAGE.index(heading) :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_it_has_a_row_for_every_format_and_names_its_numbers_and_the_default() -> None:
    assert [row[0].strip("`") for row in rows_of("| `--to` |")] == list(FORMATS)
    named = {
        name: (re.findall(r"`(\w+)`", numbers), default.strip("`"))
        for names, numbers, default in rows_of("| | `--numbers` |")
        for name in re.findall(r"`([\w-]+)`", names)
    }
    for name, format in FORMATS.items():
        numbers, default = named.get(name, ([], ""))
        assert tuple(numbers) == format.numbers, name
        assert default in (*format.numbers[:1], "as the weights are stored", ""), name
    assert all(f"`{name}`" in PAGE or f"--quantize {name}" in PAGE for name in QUANTIZATIONS)


def test_the_extra_that_it_names_installs_what_the_formats_import() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert "pip install 'snugfit[export]'" in PAGE
    for format in FORMATS.values():
        installed = {re.split(r"[><=\[]", each)[0] for each in (*extras[format.extra], *extras["text"])}
        installed |= {re.split(r"[><=\[]", each)[0] for each in project["dependencies"]}
        assert set(format.packages) <= installed, format.name


@pytest.mark.slow
def test_its_command_prints_lines_as_it_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("gguf", "xllamacpp"):
        pytest.importorskip(package)
    monkeypatch.setattr(read_back, "run_reader", lambda place: reader.main(str(place)))
    monkeypatch.chdir(tmp_path)
    bundle, rows = stored(tmp_path, "qwen3", of_bytes())
    block = re.search(r"```console\n\$ snugfit (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    command = re.sub(r"runs/\S+", str(bundle), block[1]).split()
    result = CliRunner().invoke(app, [*command, "--rows", rows])
    assert result.exit_code == 0, result.output

    def shape(text: str) -> str:
        return re.sub(r"\s+$", "", re.sub(r"[\d.]+(e-\d+)?", "#", text), flags=re.MULTILINE)

    lines = [line for line in result.stdout.splitlines() if line.strip()]
    assert shape("\n".join(lines)).replace(", stop tokens", "") == shape(block[2]).replace(
        ", stop tokens", ""
    )
