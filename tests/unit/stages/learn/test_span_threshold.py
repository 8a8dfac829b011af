"""Which threshold a span head gets on held-out critiques, and where it is kept."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from text2grad.config import find_config, load_config
from text2grad.feedback import Failure, Feedback, Message, Source, spans_at
from text2grad.policy.heads.chat import Read
from text2grad.stages.judge.critics import SPANS_FILE
from text2grad.stages.learn import threshold

TEXT = "the cat sat"
PLACES = ((0, 3), (4, 7), (8, 11))


def record(*poor: tuple[int, int]) -> Feedback:
    spans = spans_at([(start, end, -1) for start, end in poor], TEXT)
    question = (Message(role="user", content="?"),)
    return Feedback(id="1", prompt=question, response=TEXT, spans=spans, source=Source(kind="human"))


def read(*chances: float) -> Read:
    poor = torch.tensor(chances)
    return Read(None, PLACES, (0, 0, 0), torch.stack([poor, 1 - poor, torch.zeros(3)], dim=1).log())


def chosen(
    monkeypatch: pytest.MonkeyPatch, folder: Path, heldout: list[Feedback], readings: list[Read | Failure]
) -> dict[str, float] | None:
    config = load_config([find_config("demo")], [f"--run.folder={folder}", "--reward_model.spans=head"])
    place = folder / "reward_model" / "policy"
    place.mkdir(parents=True, exist_ok=True)
    heads: Any = SimpleNamespace(read=lambda asked, texts: readings)
    pair: Any = SimpleNamespace(prompt=())
    monkeypatch.setattr(threshold, "load_reward_model", lambda config: None)
    monkeypatch.setattr(threshold, "head_chat", lambda config, model, name: heads)
    monkeypatch.setattr(threshold, "reward_data", lambda config: ([], heldout))
    monkeypatch.setattr(threshold, "fitting", lambda model, records, *_: [(each, pair) for each in records])
    threshold.choose_threshold(config)
    file = place / SPANS_FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def test_the_threshold_parts_poor_tokens_from_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    heldout = [record((4, 7)), record((0, 3), (8, 11)), record((0, 11))]
    failed = Failure(kind="unsupported", message="too long")
    found = chosen(monkeypatch, tmp_path, heldout, [read(0.1, 0.3, 0.1), read(0.4, 0.2, 0.3), failed])
    assert found is not None and found["poor_threshold"] == pytest.approx(0.25) and found["heldout_poor_f1"] == 1


def test_without_poor_tokens_the_threshold_of_the_model_before_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert chosen(monkeypatch, tmp_path, [record((4, 7))], [read(0.1, 0.3, 0.1)])
    assert chosen(monkeypatch, tmp_path, [record()], [read(0.1, 0.3, 0.1)]) is None
    assert chosen(monkeypatch, tmp_path, [], []) is None
