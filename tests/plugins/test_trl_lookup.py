"""The example of an agent through TRL's `environment_factory`: ids as in our own loop, and what is
paid."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from places import ROOT
from text2grad.cli import main
from text2grad.feedback import turns_of
from text2grad.policy.encode import encode_target
from text2grad.policy.episode import encode_turns

pytest.importorskip("trl", reason="the plug-in's engine: pip install 'text2grad[trl]'")
sys.path.insert(0, str(ROOT / "examples" / "engines"))

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
SMALL = (
    *("--task.limit", "96"),
    *("--sft.epochs", "1"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("lookup")
    with pytest.raises(SystemExit) as left:
        main(["sft", "--config", "text2grad_lab:lookup", *SMALL, "--run.folder", str(made)])
    assert not left.value.code
    return made / "sft" / "policy"


def test_a_turn_is_a_call_unless_it_is_an_answer(folder: Path) -> None:
    from trl_lookup import load_tokenizer

    tokenizer = load_tokenizer(str(folder))
    for line, calls in (("lookup price of lamp", 1), ("lamp", 1), ("answer lamp 7", 0)):
        read = tokenizer.parse_response(encode_target(tokenizer, line))
        assert read["content"] == line and len(read.get("tool_calls", [])) == calls


def test_an_episode_has_the_ids_of_our_own_loop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The right turns, scripted: every word is praised, and what the tools say is paid nothing."""
    import trl_lookup
    from trl import GRPOConfig

    made: list[Any] = []
    monkeypatch.setattr(trl_lookup.TokenCreditTrainer, "train", lambda self: made.append(self))
    settings = {"per_device_train_batch_size": 2, "num_generations": 2, "use_cpu": True, "bf16": False}
    trl_lookup.train(str(folder), folder.parent / "out", 2.0, output_dir=str(folder.parent / "out"), **settings)
    (trainer,) = made
    assert isinstance(trainer.args, GRPOConfig) and trainer.words_weight == 2.0
    example = trl_lookup.TASK.examples("train")[0]
    right = example.reference
    turns = [encode_target(trainer.processing_class, right[turn.start : turn.end]) for turn in turns_of(right)]
    scripted = iter(turns)

    def say(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        turn = next(scripted)
        return [list(turn) for _ in prompt_ids], None

    trainer._generate_single_turn = say
    trainer.model.train()
    out = trainer._generate_and_score_completions([trl_lookup.to_row(example)] * 2)
    ours = encode_turns(AutoTokenizer.from_pretrained(folder), example.prompt, right)
    for ids, mask, paid in zip(out["completion_ids"], out["tool_mask"], out["advantages"], strict=True):
        assert ids.tolist() == ours.ids and [bool(own) for own in mask] == ours.mask
        assert not paid[~mask.bool()].any() and set(paid[mask.bool()].tolist()) == {0.0, 2.0}
    assert trainer._outcomes[0].score == 1.0


@pytest.mark.nightly
def test_the_example_runs(folder: Path, tmp_path: Path) -> None:
    path = ROOT / "examples" / "engines" / "trl_lookup.py"
    words = [sys.executable, str(path), str(folder), str(tmp_path / "policy"), "--steps", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *_, verdict, calls = done.stdout.splitlines()
    assert verdict.endswith("in the last of 1") and calls.endswith("0% without a judgement")
    assert (tmp_path / "policy" / "model.safetensors").is_file()
