"""The review's questions: figures of the lab book, the count of measured cells, runs of a cell."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from text2grad.cli import main
from text2grad.errors import UsageError, UserError
from text2grad_lab.__main__ import register, repeat_listed
from text2grad_lab.questions.cells import Cell, cells, read_list, run_cells, select

BOOK = Path(__file__).parents[1] / "book"
CELL = Cell("noise", "a cell", ("python -c pass",), 1.0)


def entry_text(entry: str) -> str:
    """Return the section of the lab book at `page.md#heading`."""
    page, heading = entry.split("#")
    for section in re.split(r"^## ", (BOOK / page).read_text("utf-8"), flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        if re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") == heading:
            return section
    raise AssertionError(f"no entry {entry}")


def test_every_figure_is_in_its_entry() -> None:
    recorded = [(cell.figure, cell.entry) for cell in cells() if cell.figure or cell.entry]
    recorded += [(rate["figure"], rate["entry"]) for rate in read_list()["rates"].values()]
    for figure, entry in recorded:
        numbers = re.findall(r"\d[\d.,]*\d", figure)
        recorded_numbers = re.findall(r"\d[\d.,]*\d", entry_text(entry))
        assert numbers and set(numbers) <= set(recorded_numbers), f"{figure} is not in {entry}"
    for rate in read_list()["rates"].values():
        assert rate["seconds"] == int(rate["figure"].replace(",", ""))


def test_only_three_seeds_of_the_pretrained_model_count_as_measured() -> None:
    measured = replace(CELL, figure="0.5", model="SmolLM2", seeds=3, entry="a.md#b")
    assert measured.measured
    for other in (replace(measured, seeds=2), replace(measured, model="a million parameters"), CELL):
        assert not other.measured
    assert replace(measured, seeds=1).why_empty == "only SmolLM2, 1 seed: 0.5 (a.md#b); about 1.0 CPU hours"


def test_the_status_counts_all_cells(capsys: pytest.CaptureFixture[str]) -> None:
    register()
    with pytest.raises(SystemExit) as exit_info:
        main(["questions", "--status"])
    status = json.loads(capsys.readouterr().out)
    assert not exit_info.value.code and status["cells"] == len(cells())
    assert status["measured"] == sum(cell.measured for cell in cells())
    assert len(status["empty"]) == status["cells"] - status["measured"]
    names = [(cell.question, cell.name) for cell in cells()]
    assert len(set(names)) == len(names) and not any("{" in name for _, name in names)
    assert all({cell.name for cell in select([cell.question])} > {cell.after} - {""} for cell in cells())


def test_a_cell_runs_for_every_seed_until_a_command_fails(tmp_path: Path) -> None:
    script = f"open('{tmp_path}/ran', 'a').write('{{seed}}')"
    command = f'python -c "{script}"'
    assert run_cells([replace(CELL, commands=(command,))]) == {"ran": 1}
    assert (tmp_path / "ran").read_text() == "012"
    with pytest.raises(UserError, match="exit code 3 of"):
        run_cells([replace(CELL, commands=('python -c "raise SystemExit(3)"', command))])
    assert (tmp_path / "ran").read_text() == "012"


def test_cells_are_selected_by_their_names() -> None:
    words = repeat_listed(["questions", "--run", "noise", "praises politeness, loop"])
    assert [cell.name for cell in select(words[2::2])] == ["praises politeness, loop"]
    for wrong in (["no_such"], ["noise", "no such cell"]):
        with pytest.raises(UsageError, match=wrong[-1]):
            select(wrong)
