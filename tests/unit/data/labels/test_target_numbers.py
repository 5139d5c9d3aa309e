"""Numbers to learn that 32 bits cannot hold are told before a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from snugfit.data.bad_rows import BadRow
from snugfit.data.labels.target_numbers import check_differences, check_size
from snugfit.data.tables.table_rows import TableSettings, load_table
from snugfit.errors import DataError


@pytest.mark.parametrize("middle", [1e12, -1e12, 1.7e9, 3e7])
def test_numbers_that_rounding_makes_alike_are_refused_and_others_are_not(middle: float) -> None:
    step = float(np.spacing(np.float32(abs(middle))))
    with pytest.raises(
        DataError, match=r"column 'y' lie around .*32 bits.*Subtract what they have in common"
    ):
        check_differences([middle + step * each for each in range(40)], "y")
    check_differences([middle + 10 * step * each for each in range(40)], "y")


def test_numbers_that_are_all_zero_in_32_bits_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n" + "".join(f"{each},{each}e-50\n" for each in range(30)))
    with pytest.raises(DataError, match="less than 1.4013e-45.*in a smaller unit"):
        load_table(TableSettings(train=path, label="y", classes=False))


def test_ordinary_numbers_pass_whatever_their_unit() -> None:
    for unit in (1e-30, 1.0, 1e15):
        check_differences([unit * each for each in (-3, 0, 1, 2)], "y")
    check_differences([0.0, 1.0], "y")


def test_a_table_tells_the_row_whose_number_is_too_large_and_a_column_that_hardly_differs(
    tmp_path: Path,
) -> None:
    assert check_size(-1e18, "y") == -1e18
    with pytest.raises(BadRow, match="y is 1e\\+39"):
        check_size(1e39, "y")
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n" + "".join(f"{each},{each}\n" for each in range(20)) + "3,1e39\n")
    with pytest.raises(DataError, match=r"number too large \(1\).*\n.*rows.csv:22: y is 1e\+39"):
        load_table(TableSettings(train=path, label="y", classes=False))
    path.write_text("x,y\n" + "".join(f"{each},{10**12 + each}\n" for each in range(40)))
    with pytest.raises(DataError, match="column 'y' lie around 1e\\+12"):
        load_table(TableSettings(train=path, label="y", classes=False))
