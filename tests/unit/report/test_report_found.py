from __future__ import annotations

import re
from pathlib import Path

from snugfit.report.found import found_by_tools
from snugfit.tools.found import keep, new_folder


def kept(output: Path, tool: str, folder: str, summary: str, *, page: bool = True) -> None:
    made = new_folder(output, "mine", tool)
    keep(made, tool, {}, summary, {})
    if page:
        (made / f"{tool}.html").write_text("<p>")
    made.rename(made.with_name(folder))


def test_the_newest_of_each_tool_is_told_with_a_link_that_leads_to_its_page(tmp_path: Path) -> None:
    run = tmp_path / "mine" / "20261121-0930-1a2b"
    run.mkdir(parents=True)
    kept(tmp_path, "find_lr", "20261121-1", "an older one")
    kept(tmp_path, "find_lr", "20261121-2", "0.024: a tenth of 0.24 & lowest")
    kept(tmp_path, "doctor", "20261121-1", "0 errors", page=False)
    told = found_by_tools(run)
    assert re.findall(r"<td>(.*?)</td>", told) == ["0 errors", "0.024: a tenth of 0.24 &amp; lowest"]
    (link,) = re.findall(r'href="(.*?)"', told)
    assert (run / link).resolve() == tmp_path / "mine/tools/find_lr/20261121-2/find_lr.html"


def test_without_results_there_is_no_section(tmp_path: Path) -> None:
    assert found_by_tools(tmp_path / "mine" / "run") == ""
