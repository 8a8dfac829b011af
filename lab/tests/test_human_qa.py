"""Human feedback through every stage of the command line, with a model too small to learn."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from human_data import SMALL
from text2grad.cli import main

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
QA = SHARED / "finegrained_rlhf_qa" / "dev_feedback.json"
SQUALITY = SHARED / "squality_human_eval" / "span_comments_flat.jsonl"
FINEGRAINED = ("--kind", "text2grad_lab.readers.finegrained:FINEGRAINED")
SHORT = ("--sft.epochs", "0.1", "--reward_model.training.epochs", "0.05", "--evaluate.limit", "6")
pytestmark = pytest.mark.skipif(not QA.is_file(), reason=f"the public data sets are not in {SHARED}")


def command(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    """Run a command as typed and return its summary."""
    with pytest.raises(SystemExit) as exit_info:
        main([*words, "--json"])
    out, err = capsys.readouterr()
    assert exit_info.value.code == 0, err
    return dict(json.loads(out.splitlines()[-1]))


def test_every_command_of_the_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "human_qa"
    options = ("--config", "human_qa", "--run.folder", str(run), *SMALL, *SHORT)
    first = command(capsys, "import", str(QA), *FINEGRAINED, *options)
    assert (first["records"], first["spans"], first["unmatched"], first["ambiguous"]) == (500, 1373, 0, 0)
    second = command(capsys, "import", str(SQUALITY), "--kind", "text2grad_lab.readers.squality:SQUALITY", *options)
    assert (second["records"], second["unmatched"], second["ambiguous"]) == (900, 5, 313)
    assert second["file_holds"] == {"finegrained_qa": 500, "squality": 900}
    assert command(capsys, "import", str(QA), *FINEGRAINED, *options)["added"] == 0

    assert command(capsys, "sft", *options)["examples"] == 395
    reward = command(capsys, "train-reward", *options)
    praised = int(str(reward["corrections"]))
    assert 0 < int(str(reward["trained_on"])) - praised <= int(str(reward["records"])) == 1124
    assert 0 < praised <= 395, "answers that people corrected"
    before = command(capsys, "evaluate", "sft", *options)
    command(capsys, "train", *options)
    after = command(capsys, "evaluate", *options)
    names = {"rouge_l", "token_reward", "answer_reward", "good_tokens", "poor_tokens", "critic_failed"}
    assert {f"{way}_{name}" for way in ("greedy", "sampled") for name in names} <= set(before) & set(after)
    compared = after.pop("compared")
    assert isinstance(compared, dict) and (compared["against"], compared["prompts"]) == ("sft", 6)
    assert all(math.isfinite(float(str(value))) for value in after.values())
    command(capsys, "evaluate", "reward_model", "--task", "reward-model", *options)
    page = Path(str(command(capsys, "report", str(run))["out"])).read_text(encoding="utf-8")
    assert "import_squality" in page and "sampled_token_reward" in page
