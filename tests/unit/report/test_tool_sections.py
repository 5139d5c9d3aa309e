from __future__ import annotations

import re
from pathlib import Path

from snugfit.report.page import section_of_tools
from snugfit.results.tool_results import keep, new_folder
from snugfit.tools.cross_validation.result import CrossValidation, FoldScore


def keep_result(output: Path, tool: str, folder: str, summary: str, *, page: bool = True) -> None:
    made = new_folder(output, "mine", tool)
    keep(made, tool, {}, summary, {})
    if page:
        (made / f"{tool}.html").write_text("<p>")
    made.rename(made.with_name(folder))


def test_the_newest_of_each_tool_is_told_with_a_link_that_leads_to_its_page(tmp_path: Path) -> None:
    run = tmp_path / "mine" / "20261121-0930-1a2b"
    run.mkdir(parents=True)
    keep_result(tmp_path, "find_lr", "20261121-1", "an older one")
    keep_result(tmp_path, "find_lr", "20261121-2", "0.024: a tenth of 0.24 & lowest")
    keep_result(tmp_path, "doctor", "20261121-1", "0 errors", page=False)
    section = section_of_tools(run)
    assert re.findall(r"<td>(.*?)</td>", section) == ["0 errors", "0.024: a tenth of 0.24 &amp; lowest"]
    (link,) = re.findall(r'href="(.*?)"', section)
    assert (run / link).resolve() == tmp_path / "mine/tools/find_lr/20261121-2/find_lr.html"


def test_the_newest_cross_validation_is_told_with_a_link_to_its_page(tmp_path: Path) -> None:
    run = tmp_path / "mine" / "20261121-0930-1a2b"
    run.mkdir(parents=True)
    for number, mean in (("20261121-1", 0.5), ("20261121-2", 0.925)):
        folder = tmp_path / "mine" / "cv" / number
        folder.mkdir(parents=True)
        scores = tuple(
            FoldScore(f"fold-1-{place}", 9, 3, {"accuracy": each}, 4, {"accuracy": each}, 4, 1.0, "run")
            for place, each in enumerate((mean - 0.01, mean + 0.01), 1)
        )
        keep(
            folder, "cv", {}, CrossValidation(scores, name="mine", planned=5, folder=str(folder)).message, {}
        )
        (folder / "cv.html").write_text("<p>")
    section = section_of_tools(run)
    # the deviation of two values 0.02 apart is 0.02 / √2
    assert re.findall(r"<td>(.*?)</td>", section) == ["accuracy 0.925 ± 0.014, over 2 of 5 folds"]
    (link,) = re.findall(r'href="(.*?)"', section)
    assert (run / link).resolve() == tmp_path / "mine/cv/20261121-2/cv.html"


def test_without_results_there_is_no_section(tmp_path: Path) -> None:
    assert section_of_tools(tmp_path / "mine" / "run") == ""
