"""The file beside an exported network for tables that makes inputs of rows, against the format that the network was trained by."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snugfit.data.tables import table_cells
from snugfit.data.tables.table_format import TableFormat, fit_format
from snugfit.deliver.export import table_inputs

TRAINED = [
    {
        "size": 1.5 * number,
        "rooms": number % 4 if number % 5 else "NA",
        "kind": kind,
        "floor": str(number % 3),
    }
    for number, kind in enumerate(["flat", "house", "", "hut"] * 6)
]
MESSY: list[dict[str, Any]] = [
    {"size": " 3.5 ", "rooms": "?", "kind": " house ", "floor": 1.0},
    {"size": float("nan"), "rooms": None, "kind": "castle", "floor": 7},
    {"size": np.float32(1e30), "rooms": np.int64(2), "kind": None, "floor": np.float64(2)},
    {"size": Decimal("2.25"), "rooms": "1e2", "kind": "n/a", "floor": True, "other": 1},
]


def trained(columns: list[str]) -> TableFormat:
    return fit_format(TRAINED, columns, ["floor"], 4)


@pytest.mark.parametrize("columns", [["size", "rooms", "kind", "floor"], ["size"], ["kind", "floor"]])
@pytest.mark.parametrize("rows", [MESSY, MESSY[:1], []])
def test_rows_become_what_the_network_was_trained_on_bit_for_bit(
    columns: list[str], rows: list[dict[str, Any]]
) -> None:
    table = trained(columns)
    made = table_inputs.encode(rows, json.loads(json.dumps(table.as_dict())))
    numbers, categories, faults = table.encode(rows)
    assert not faults
    for name, own in (("numbers", numbers), ("categories", categories)):
        assert made[name].dtype == own.dtype and made[name].shape == own.shape
        assert made[name].tobytes() == own.tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": "much"}, "row 2: size is 'much', no number"),
        ({"size": True}, "row 2: size is True, no number"),
        ({"size": "inf"}, "row 2: size is 'inf', no number"),
        ({"kind": ...}, "row 2: no column 'kind'"),
        ({"size": ...}, "row 2: no column 'size'"),
    ],
)
def test_a_row_that_a_run_would_refuse_is_refused(change: dict[str, Any], message: str) -> None:
    table = trained(["size", "kind"])
    row = {name: cell for name, cell in {**MESSY[0], **change}.items() if cell is not ...}
    assert 1 in table.encode([MESSY[0], row])[2]
    with pytest.raises(ValueError, match=message):
        table_inputs.encode([MESSY[0], row], table.as_dict())


def test_gaps_are_written_as_a_run_reads_them() -> None:
    assert table_inputs.GAPS == table_cells.GAPS


def test_it_needs_numpy_alone_and_the_file_beside_it(tmp_path: Path) -> None:
    shutil.copy(Path(table_inputs.__file__), tmp_path)
    table = trained(["size", "kind"])
    (tmp_path / "table.json").write_text(json.dumps(table.as_dict()))
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'snugfit', 'pandas'))); import table_inputs; "
        f"print(table_inputs.encode({MESSY[:1]})['categories'].tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == table.encode(MESSY[:1])[1].tolist()
