"""`improve --inbox`: files are taken once, and only a better policy replaces the current one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from feedback_files import ENGLISH, shop_rows, write_table
from human_data import small_config
from text2grad.cli import main
from text2grad.config import Config
from text2grad.errors import UserError
from text2grad.jsonl import read_records
from text2grad.stages.improve import inbox, verdict
from text2grad.stages.improve.inbox import InboxSummary, roll_back, run_inbox
from text2grad.stages.improve.source import ImproveOptions

QUICK = ("--sft.epochs", "1", "--offline.epochs", "1", "--generation.max_new_tokens", "8")
SHOP = shop_rows(ENGLISH, 60)


class Nights:
    """A folder of feedback, its run, and a choice of whether the next policy is better."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inbox, self.run = folder / "inbox", folder / "run"
        self.inbox.mkdir()
        self.better = True
        monkeypatch.setattr(verdict, "_read_answers", self.answers)

    def answers(self, run: object, name: str, questions: Mapping[str, str]) -> dict[str, str]:
        good = {text: f"The {text.split()[1]} is 30 cm wide." for text in questions.values()}
        return good if self.better and name != "base" else dict.fromkeys(questions.values(), "no")

    @property
    def config(self) -> Config:
        return small_config(self.run, *QUICK)

    def arrive(self, name: str, first: int, last: int) -> None:
        rows = [tuple(row[column] for column in (0, 1, 4)) for row in SHOP]
        rows = [(question, sent, better or f"{sent} It is 30 cm.") for question, sent, better in rows]
        write_table(self.inbox / name, [("Question", "Answer", "Better answer"), *rows[first + 1 : last + 1]])

    def pass_by(self, **options: Any) -> InboxSummary:
        return run_inbox(self.config, self.inbox, ImproveOptions(**options))

    @property
    def policy(self) -> str:
        """The current policy, relative to the run."""
        return str((self.run / "policy").readlink()) if (self.run / "policy").is_symlink() else "base"

    @property
    def heldout(self) -> set[str]:
        rows = [json.loads(line) for line in (self.run / "heldout.jsonl").read_text().splitlines()]
        return {row["prompt"][0]["content"] for row in rows}


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nights:
    return Nights(tmp_path, monkeypatch)


def test_files_are_taken_once_and_the_better_policy_is_continued(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    nights.arrive("monday.csv", 0, 15)
    (nights.inbox / "notes.csv").write_text("a,b\n1,2\n")
    first = nights.pass_by()
    assert first.files == ["monday.csv"] and first.better is True and nights.policy == "policies/1"
    assert first.exit_code == 3 and "notes.csv" in first.skipped[0] and len(first.skipped) == 1
    heldout = nights.heldout
    assert len(heldout) == 3

    (nights.inbox / "notes.csv").unlink()
    (nights.inbox / "monday.csv").rename(nights.inbox / "renamed.csv")
    capsys.readouterr()
    again = nights.pass_by()
    assert again.files == [] and again.better is None and again.exit_code is None
    assert "no new feedback" in capsys.readouterr().err and again.kept == str(nights.run / "policies/1")

    nights.arrive("tuesday.csv", 15, 18)  # too few
    waiting = nights.pass_by()
    assert waiting.files == ["tuesday.csv"] and waiting.records == 3 and waiting.better is None
    assert "3 questions are too few" in (capsys.readouterr().err)

    nights.arrive("wednesday.csv", 18, 30)
    nights.better = False
    worse = nights.pass_by()
    assert worse.records == 15 and worse.better is False and nights.policy == "policies/1"
    assert heldout < nights.heldout and len(nights.heldout) == 6
    settings = (nights.run / "improve.yaml").read_text()
    assert "policies/1" in settings
    learned = (nights.run / "questions.jsonl").read_text()
    assert not any(question in learned for question in nights.heldout)
    assert "no new feedback" not in capsys.readouterr().err and nights.pass_by().minutes is None
    assert "no new feedback" in capsys.readouterr().err

    nights.arrive("thursday.csv", 30, 31)
    nights.better = True
    assert nights.pass_by().records == 16 and nights.policy == "policies/2"


def test_a_plan_takes_nothing(nights: Nights) -> None:
    nights.arrive("monday.csv", 0, 15)
    assert nights.pass_by(plan=True).files == ["monday.csv"] and not nights.run.exists()


def test_three_policies_stay_and_can_be_restored(nights: Nights) -> None:
    for night in range(4):
        nights.arrive(f"{night}.csv", 15 * night, 15 * night + 15)
        assert nights.pass_by().better is True and nights.policy == f"policies/{night + 1}"
    assert sorted(folder.name for folder in (nights.run / "policies").iterdir()) == ["2", "3", "4"]
    for policy in ("policies/3", "policies/2"):
        assert roll_back(nights.config).kept == str(nights.run / policy) and nights.policy == policy
    with pytest.raises(UserError, match="policies/1 was removed"):
        roll_back(nights.config)
    assert nights.policy == "policies/2"


def test_the_first_policy_is_rolled_back_to_the_base_model(nights: Nights) -> None:
    with pytest.raises(UserError, match="no policy"):
        roll_back(nights.config)
    nights.arrive("monday.csv", 0, 15)
    nights.pass_by()
    assert roll_back(nights.config).kept == "base" and nights.policy == "base"


STOPS = ((verdict, "best_policy"), (inbox, "copy_policy"), (inbox, "_store_learned"))
"""Where a night may be stopped: before the verdict, after it, and after the policy is kept."""


@pytest.mark.parametrize(("module", "function"), STOPS, ids=[name for _, name in STOPS])
def test_a_stopped_night_is_resumed(
    nights: Nights, monkeypatch: pytest.MonkeyPatch, module: ModuleType, function: str
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    nights.arrive("monday.csv", 0, 15)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, function, stop)
        nights.pass_by()
    seconds = json.loads((nights.run / "improve.json").read_text())["seconds"]
    assert nights.pass_by().files == [] and nights.policy == "policies/1"
    assert json.loads((nights.run / "improve.json").read_text())["seconds"] == seconds
    assert len(read_records(nights.run / "learned.jsonl")) == 15 and not (nights.run / "feedback.jsonl").exists()
    assert nights.pass_by().records == 0 and json.loads((nights.run / "inbox.json").read_text())["policies"] == [
        "policies/1"
    ]


def test_a_damaged_state_is_one_line(nights: Nights) -> None:
    nights.run.mkdir()
    (nights.run / "inbox.json").write_bytes(b'{"model": \x00\xff')
    with pytest.raises(UserError, match=r"inbox\.json is damaged"):
        nights.pass_by()


def test_another_base_model_is_refused(nights: Nights) -> None:
    nights.arrive("monday.csv", 0, 15)
    nights.pass_by()
    with pytest.raises(UserError, match="smollm2"):
        run_inbox(small_config(nights.run, *QUICK, "--policy.model", "smollm2"), nights.inbox, ImproveOptions())


@pytest.mark.parametrize(
    "words", [(), ("f.csv", "--inbox", "d"), ("f.csv", "--yes", "--rollback")], ids=["none", "both", "rollback"]
)
def test_the_command_takes_a_file_or_an_inbox(words: Sequence[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["improve", *words])
    assert left.value.code == 2


def test_a_skipped_file_is_exit_code_3(nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # it is tried again
        (nights.inbox / "notes.csv").write_text("a,b\n1,2\n")
        with pytest.raises(SystemExit) as left:
            main(["improve", "--inbox", str(nights.inbox), "--run.folder", str(nights.run), "--json"])
        printed, err = capsys.readouterr()
        assert left.value.code == 3 and len(json.loads(printed)["skipped"]) == 1 and "no new feedback" in err


def test_a_missing_folder_is_one_line(nights: Nights) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        run_inbox(nights.config, nights.inbox / "absent", ImproveOptions())
    assert nights.pass_by().files == []


def test_a_run_on_a_file_is_no_inbox_and_stays_as_it_was(nights: Nights) -> None:
    nights.arrive("monday.csv", 0, 15)
    for file in ("improve.json", "sft/policy"):
        kept = nights.run / file
        kept.parent.mkdir(parents=True)
        kept.touch()
        with pytest.raises(UserError, match="the run of other commands"):
            nights.pass_by()
        assert kept.is_file()
        shutil.rmtree(nights.run)


@pytest.mark.parametrize(("file", "run"), [("shop.csv", "runs/shop"), ("shop.marked.csv", "runs/shop_marked")])
def test_files_with_other_names_have_other_runs(file: str, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def run_improve(config: Config, *_: object) -> None:
        seen.append(config.run.folder)
        raise UserError("enough seen")

    monkeypatch.setattr("text2grad.stages.improve.run.run_improve", run_improve)
    with pytest.raises(SystemExit):
        main(["improve", file, "--yes"])
    assert seen == [Path(run)]


def test_feedback_of_the_current_policy_is_not_learned_again(nights: Nights) -> None:
    """The file has grown, or was saved once more."""
    nights.arrive("all.csv", 0, 15)
    assert nights.pass_by().better
    with (nights.inbox / "all.csv").open("a") as file:
        file.write("\n")
    again = nights.pass_by()
    assert (again.files, again.records) == (["all.csv"], 0)


def test_a_file_that_cannot_be_opened_is_skipped(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.arrive("mine.csv", 0, 15)
    nights.arrive("yours.csv", 15, 30)
    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "yours.csv":
            raise PermissionError(13, "Permission denied")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    night = nights.pass_by()
    assert night.files == ["mine.csv"] and "Permission denied" in night.skipped[0]
