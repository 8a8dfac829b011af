"""Summaries of functions through the command line, with a model too small to learn: every stage, every file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from function_files import packages
from places import ROOT
from text2grad.cli import main

SMALL = (
    *("--tiny.vocabulary", "320", "--tiny.context", "512", "--task.heldout_share", "0.4"),
    *("--annotate.samples_per_prompt", "1", "--generation.max_new_tokens", "8", "--evaluate.samples", "1"),
    *("--reward_model.training.epochs", "1", "--reward_model.max_new_tokens", "8"),
    *("--ppo.steps", "2", "--ppo.rollouts", "4", "--ppo.value_warmup", "0", "--ppo.max_failed", "1"),
)


def command(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    """Run one command as typed; its summary."""
    with pytest.raises(SystemExit) as left:
        main([*words, "--json"])
    out, err = capsys.readouterr()
    assert left.value.code == 0, err
    return dict(json.loads(out.splitlines()[-1]))


def test_every_command_of_the_preset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    (tmp_path / "lib").mkdir()
    run, library = tmp_path / "run", packages(tmp_path / "lib")
    options = (
        "--config",
        "text2grad_lab:docstrings",
        "--run.folder",
        str(run),
        "--task.data",
        str(library),
        *SMALL,
    )
    assert int(str(command(capsys, "sft", *options)["examples"])) > 10
    annotated = command(capsys, "annotate", *options)
    assert int(str(annotated["ok"])) == annotated["requested"]
    assert int(str(command(capsys, "train-reward", *options)["trained_on"])) > 0
    before = command(capsys, "evaluate", "sft", *options)
    command(
        capsys,
        "train",
        *options,
        "--critic.kind",
        "text2grad_lab.experiments.noisy_critic:drop_100_of_reference",
    )
    after = command(capsys, "evaluate", *options)
    names = {"rouge1", "rouge2", "rouge_l", "bleu", "verdict", "answer_reward"}
    assert {f"{way}_{name}" for way in ("greedy", "sampled") for name in names} <= set(before) & set(after)
    lines = (run / "ppo" / "text2grad" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    counts = [(step["noise_spans"], step["noise_altered"]) for step in map(json.loads, lines)]
    assert len(counts) == 2 and sum(seen for seen, _ in counts) > 0
    assert all(seen == altered for seen, altered in counts)
