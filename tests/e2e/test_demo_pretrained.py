"""The demo on a pretrained model, here one too small to learn: every method, and the model as it
came."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from function_files import packages
from text2grad.cli import main
from text2grad.policy.tiny import TinyShape, make_tiny_model
from tiny_runs import TEXTS

SMALL = (
    *("--policy.lora.targets", "[q_proj, v_proj]", "--policy.lora.r", "4", "--task.heldout_share", "0.4"),
    *("--task.limit", "12", "--task.context_characters", "40", "--annotate.prompts", "6"),
    *("--annotate.samples_per_prompt", "1", "--generation.max_new_tokens", "8", "--evaluate.limit", "4"),
    *("--reward_model.training.epochs", "1", "--reward_model.max_new_tokens", "24"),
    *("--ppo.steps", "2", "--ppo.rollouts", "8", "--ppo.max_failed", "1", "--policy.dtype", "float32"),
    *("--critic.reward_model.gate", "false"),
)


@pytest.mark.nightly
def test_the_demo_of_a_pretrained_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lib").mkdir()
    run, library, model = tmp_path / "run", packages(tmp_path / "lib"), tmp_path / "model"
    shape = TinyShape(hidden=32, layers=2, heads=2, feed_forward=48)
    make_tiny_model(model, TEXTS, 300, 4096, shape, seed=3)
    words = ("--run.folder", str(run), "--task.data", str(library), "--policy.model", str(model), *SMALL)
    with pytest.raises(SystemExit) as left:
        main(["demo", "--config", "function_summaries", "--json", *words])
    out, err = capfd.readouterr()
    assert left.value.code == 0, err
    assert "Warning" not in err
    figures = json.loads(out.splitlines()[-1])
    policies = ("base", "sft", "scalar_ppo", "grpo", "text2grad")
    assert set(figures) == {*policies, "reward_model", "seconds", "peak_rss_mb"}
    assert all(0 <= figures[name][way] <= 1 for name in policies for way in ("greedy", "sampled"))
    assert all(title in err for title in ("held-out ROUGE-L", "base model", "scalar PPO", "GRPO", "text2grad"))
    for policy in (run / "sft" / "policy", run / "reward_model" / "policy", run / "ppo" / "grpo" / "policy"):
        assert (policy / "adapter_model.safetensors").is_file() and not (policy / "model.safetensors").exists()
    for name in ("scalar_ppo", "grpo"):
        samples = [json.loads(line) for line in (run / "ppo" / name / "samples.jsonl").read_text().splitlines()]
        assert samples and all(not each["failure"] and each["score"] is not None for each in samples)
        assert not any(each["critique"] for each in samples), "only the verdict is paid, so nothing is written"
    configs = {each: (run / "ppo" / each / "config.yaml").read_text("utf-8") for each in ("grpo", "text2grad")}
    assert "words: false" in configs["grpo"] and "words: false" not in configs["text2grad"]
    first = json.loads((run / "before_after.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert len(first["answers"]) == len(policies)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "GRPO" in page and "held-out ROUGE-L" in page


def test_a_task_without_tests_or_references_is_not_measured(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [
        {"prompt": f"Question {n}?", "response": [{"role": "user", "content": f"Question {n}?"}]} for n in (1, 2)
    ]
    for row in rows:
        row["response"].append({"role": "assistant", "content": "An answer."})  # type: ignore[attr-defined]
    data = tmp_path / "asked.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(SystemExit) as left:
        words = ["--task.name", "qa", "--task.data", str(data), "--task.heldout_share", "0.9"]
        main(["demo", *words, "--run.folder", str(tmp_path / "run")])
    assert left.value.code == 1 and not (tmp_path / "run").exists()
    assert "has no tests, references or scores" in capfd.readouterr().err
