"""What one policy did on several tasks is kept side by side: in `evaluation`, in the report, in a
model card."""

from __future__ import annotations

from pathlib import Path

import pytest

from places import CONFIGS
from text2grad.config import Config, load_config
from text2grad.errors import UserError
from text2grad.feedback import Example
from text2grad.page.report import sections
from text2grad.page.runs import read_run
from text2grad.policy import load
from text2grad.stages import merge
from text2grad.stages.evaluate import policy as stage
from text2grad.stages.run_folder import RunFolder


class Problems:
    """A task with as many held-out problems as it is told; an answer's score is that number."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count

    def examples(self, split: str) -> list[Example]:
        made = [
            {"id": f"{self._name}-{n}", "prompt": [{"role": "user", "content": "?"}]} for n in range(self._count)
        ]
        return [Example.model_validate(each) for each in made]

    def scores(self, example: Example, response: str) -> dict[str, float]:
        return {"pass": 1 / self._count}


def evaluated(monkeypatch: pytest.MonkeyPatch, folder: Path, task: str, data: str, count: int) -> Config:
    words = ["--run.folder", str(folder), "--task.name", task, "--task.data", data, "--run.threads", "1"]
    config = load_config(CONFIGS / "demo.yaml", words)
    model = folder / "ppo" / "text2grad" / "policy"
    model.mkdir(parents=True, exist_ok=True)
    (model / "tokenizer_config.json").write_text("{}")
    monkeypatch.setattr(RunFolder, "task", lambda run: Problems(task + data, count))
    monkeypatch.setattr(load, "load_frozen", lambda settings: None)
    monkeypatch.setattr(stage, "sample", lambda policy, examples, *_: [([], "an\u2028swer")] * len(examples))
    stage.run_evaluate(config, "text2grad")
    return config


RUNS = [("humaneval", "", 2), ("code", "data/mine.jsonl", 4), ("code", "data/other.jsonl", 5), ("mbpp", "", 50)]
MEANS = {"code-mine": 0.25, "code-other": 0.2, "humaneval": 0.5, "mbpp": 0.02}


def test_results_on_one_task_stay_when_the_policy_is_measured_on_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for run in [*RUNS, RUNS[0]]:
        config = evaluated(monkeypatch, tmp_path, *run)
    shown = sections(read_run(tmp_path))
    figures = {name: row["greedy_pass"] for name, row in shown["run"].evaluation.items()}
    assert figures == {f"text2grad on {name}": pytest.approx(value) for name, value in MEANS.items()}
    assert [name for table in shown["evaluation"] for name in table["names"]] == list(figures)
    assert {item["task"] for item in shown["data"]["comparisons"]} == set(MEANS)
    assert shown["comparisons"] == 2 + 4 + 5 + 50
    card = merge._metrics(RunFolder.of(config), "text2grad")
    assert (card["greedy_pass"], card["code-mine: greedy_pass"]) == (0.5, 0.25)


def test_a_model_of_the_hub_is_measured_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded = []
    config = evaluated(monkeypatch, tmp_path, *RUNS[0])
    monkeypatch.setattr(load, "load_frozen", loaded.append)
    stage.run_evaluate(config, "Qwen/Qwen2.5-0.5B-Instruct")
    assert [settings.model for settings in loaded] == ["Qwen/Qwen2.5-0.5B-Instruct"]
    assert (tmp_path / "evaluation" / "humaneval" / "Qwen2.5-0.5B-Instruct.json").is_file()
    assert "Qwen2.5-0.5B-Instruct on humaneval" in read_run(tmp_path).evaluation
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    for missing in ("txt2grad", "models/mine", "/nowhere/mine"):
        with pytest.raises(UserError, match="no policy"):
            stage.run_evaluate(config, missing)
