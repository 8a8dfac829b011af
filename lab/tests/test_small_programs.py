"""Small programs: the embedded problems with MBPP's training problems, not its test problems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from text2grad.tasks.base import TaskSettings, load_task


@pytest.fixture
def mbpp(tmp_path: Path) -> Path:
    """A file with eight problems from all of MBPP's splits."""
    path = tmp_path / "mbpp.jsonl"
    rows = [
        {
            "task_id": number,
            "text": f"Write a function to add {number}.",
            "code": f"def add_{number}(n):\r\n    return n + {number}\r\n",  # as published
            "test_list": [f"assert add_{number}(1) == {number + 1}"],
        }
        for number in (5, 11, 510, 511, 600, 601, 602, 974)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def ids(settings: TaskSettings, split: str) -> list[str]:
    return [example.id for example in load_task(settings).examples(split)]  # type: ignore[arg-type]


def test_training_uses_only_mbpps_training_split(mbpp: Path) -> None:
    settings = TaskSettings(name="text2grad_lab.tasks.small_programs:SmallProgramsTask", data=str(mbpp), limit=40)
    trained = {"mbpp-601", "mbpp-602", "mbpp-974"}
    for split in ("sft", "train"):
        assert {name for name in ids(settings, split) if name.startswith("mbpp")} == trained
    assert not any(name.startswith("mbpp") for name in ids(settings, "heldout"))
    assert len(ids(settings, "sft")) == 40 and len(ids(settings, "train")) == 300 + 3
    assert ids(settings, "train") == ids(settings, "train") != ids(settings.model_copy(update={"seed": 1}), "train")


def test_mbpp_fills_at_most_a_quarter_of_the_demonstrations(mbpp: Path) -> None:
    settings = TaskSettings(name="text2grad_lab.tasks.small_programs:SmallProgramsTask", data=str(mbpp), limit=8)
    sft_ids = ids(settings, "sft")
    assert len(sft_ids) == 8 and sum(name.startswith("mbpp") for name in sft_ids) == 2


def test_mbpps_carriage_returns_are_removed(
    mbpp: Path,
) -> None:
    settings = TaskSettings(name="text2grad_lab.tasks.small_programs:SmallProgramsTask", data=str(mbpp), limit=40)
    (program,) = [example for example in load_task(settings).examples("sft") if example.id == "mbpp-601"]
    assert program.reference == "def add_601(n):\n    return n + 601\n"
