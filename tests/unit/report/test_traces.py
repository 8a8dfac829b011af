"""Samples of a run as traces of verifiers: its fields and no others, and each number where its reader looks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from synthetic_run import write_run, write_seeds
from text2grad.cli import main
from text2grad.errors import UserError
from text2grad.feedback import to_json
from text2grad.report.traces import episodes
from verifiers_fields import NEEDED, WRITTEN, parts

TURNS = [
    {"role": "tool", "content": "ready"},
    {"role": "assistant", "content": "ab"},
    {"role": "tool", "content": "seen"},
    {"role": "user", "content": "go on"},
    {"role": "assistant", "content": "c"},
    {"role": "tool", "content": "done"},
]
SAMPLE = {
    "step": 7,
    "id": "p-1",
    "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
    "response": TURNS,
    "critique": "c is wrong",
    "score": -0.5,
    "ids": [5, 6, 2, 7],
    "tokens": ["a", "b", "", "c"],
    "starts": [0, 1, 2, 4],
    "ends": [1, 2, 2, 5],
    "delta": [0.0, 0.0, 0.0, -1.0],
    "kl": [0.0, 0.1, 0.0, 0.0],
    "advantage": [0.5, 0.25, 0.0, -1.0],
    "logp": [-1.0, -2.0, -3.0, -4.0],
    "logp_change": [0.0, 0.5, 0.0, -1.0],
    "entropy": [1.0, None, 1.0, 1.0],
}


def run_of(folder: Path, *samples: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "samples.jsonl").write_text("".join(to_json(each) + "\n" for each in samples))
    return folder


def test_each_turn_is_a_node_with_its_own_tokens(tmp_path: Path) -> None:
    (found,) = episodes(run_of(tmp_path, SAMPLE))
    (trace,) = found["traces"]
    said = [(node["message"]["role"], node["message"]["content"]) for node in trace["nodes"]]
    assert said == [("system", "s"), ("user", "q"), *((each["role"], each["content"]) for each in TURNS)]
    assert [node.get("parent") for node in trace["nodes"]] == [None, 0, 1, 2, 3, 4, 5, 6]
    first, second = (node for node in trace["nodes"] if node.get("sampled"))
    assert (first["token_ids"], second["token_ids"]) == ([5, 6, 2], [7])
    assert (first["advantages"], second["advantages"]) == ([0.5, 0.25, 0.0], [-1.0])
    assert (first["reference_logprobs"], second["reference_logprobs"]) == ([-1.0, -2.5, -3.0], [-3.0])
    assert "entropies" not in first and second["entropies"] == [1.0], "a list with a gap would be of other tokens"
    assert trace["rewards"] == {"verdict": {"score": -0.5}} and trace["info"]["critique"] == "c is wrong"
    assert found["run"]["work"]["step"] == 7 and trace["agent"]["trainable"]


def test_a_failed_critique_is_an_error_and_no_reward(tmp_path: Path) -> None:
    failed = {**SAMPLE, "score": None, "failure": {"kind": "invalid", "message": "no JSON"}, "probe": True}
    (found,) = episodes(run_of(tmp_path, failed))
    (trace,) = found["traces"]
    assert (found["ok"], trace["ok"], trace["rewards"]) == (False, False, {})
    assert trace["errors"] == [{"type": "invalid", "message": "no JSON"}]
    assert trace["agent"]["trainable"] is False and trace["info"]["probe"] is True


def test_only_fields_that_verifiers_has_are_written(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / "own", SAMPLE), write_run(tmp_path / "whole"), write_seeds(tmp_path / "seeds", 2)]
    found = [each for run in runs for each in episodes(run)]
    for name, part in (each for episode in found for each in parts(episode)):
        assert NEEDED.get(name, set()) <= part.keys() <= WRITTEN[name], name
    assert len({episode["id"] for episode in found}) == len(found)
    shutil.rmtree(tmp_path / "whole" / "ppo")
    with pytest.raises(UserError, match="no samples in"):
        list(episodes(tmp_path / "whole"))


def test_the_command_writes_an_episode_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "traces.jsonl"
    run = run_of(tmp_path / "run", SAMPLE, {**SAMPLE, "step": 8})
    for source, code in ((run, 0), (out, 1)):
        with pytest.raises(SystemExit) as ended:
            main(["export", str(source), "--as", "verifiers", "--out", str(out)])
        assert ended.value.code == code
    assert [json.loads(line)["run"]["work"]["step"] for line in out.read_text().splitlines()] == [7, 8]
    assert "error: no run folder" in capsys.readouterr().err
