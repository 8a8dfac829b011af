"""TRL's own trainer with credit for words: what lands, what does not, and what its gradient is."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from landing import BlamesLetter, check_landing
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from absent import hiding
from made_tokenizers import CHATML
from places import ROOT
from text2grad.align.rewards import TokenCredit
from text2grad.errors import UserError
from text2grad.feedback import Example, Failure, Judgement

trl = pytest.importorskip("trl", reason="the plug-in's engine: pip install 'text2grad[trl]'")
datasets = pytest.importorskip("datasets")

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)
PADDING_ROWS = 40
"""Rows of the output layer beyond the vocabulary: real models sample such ids."""
PROMPTS = ["Say it.", "Say it again, and at some length, please.", "Now!", "Why not?"]


@pytest.fixture(scope="module")
def speaking(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    copied = copy.deepcopy(tokenizer)
    copied.chat_template = CHATML
    if copied.pad_token_id is None:
        copied.pad_token = copied.eos_token
    return copied


@pytest.fixture
def model(speaking: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(speaking) + PADDING_ROWS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=speaking.eos_token_id,
        pad_token_id=speaking.pad_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


class FailsOnSecond(BlamesLetter):
    """Fails on the second response of every batch."""

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        said = super().critique(examples, responses)
        return [*said[:1], Failure(kind="truncated", message="cut"), *said[2:]]


def stuffed_rollout(speaking: PreTrainedTokenizerFast) -> Any:
    """Two turns and a tool's words between, full of what would be paid; an id beyond the vocabulary."""
    tool = speaking("banana " * 30, add_special_tokens=False)["input_ids"]

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        out: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": []}
        for number, prompt in enumerate(prompts):
            first = speaking(f"a call {number}", add_special_tokens=False)["input_ids"] + [len(speaking) + 3]
            last = speaking("what a day" + "!" * number, add_special_tokens=False)["input_ids"]
            trailing = tool[:5] if number % 2 else []
            asked = speaking.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]
            out["prompt_ids"].append(asked)
            ids = first + tool + last + trailing
            out["completion_ids"].append(ids)
            out["env_mask"].append([1] * len(first) + [0] * len(tool) + [1] * len(last) + [0] * len(trailing))
            out["logprobs"].append([0.0] * len(ids))
        return out

    return rollout


def trainer_of(
    model: LlamaForCausalLM,
    speaking: PreTrainedTokenizerFast,
    folder: Path,
    critic: Any = None,
    rollout: Any = None,
    weight: float = 1.0,
    **args: Any,
) -> Any:
    from text2grad.plugins.trl import TokenCreditTrainer

    rows = [{"prompt": [{"role": "user", "content": text}], "reference": "b"} for text in PROMPTS]
    config = trl.GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=12,
        beta=0.0,
        max_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        **args,
    )
    return TokenCreditTrainer(
        credit=TokenCredit(critic or BlamesLetter(), speaking),
        words_weight=weight,
        model=model,
        args=config,
        processing_class=speaking,
        train_dataset=datasets.Dataset.from_list(rows),
        rollout_func=rollout,
    )


def landed(trainer: Any) -> dict[str, Any]:
    """One batch as TRL would train on it."""
    trainer.model.train()
    trainer._signature_columns = None
    rows = [dict(row) for row in trainer.train_dataset for _ in range(4)][:8]
    made: dict[str, Any] = trainer._generate_and_score_completions(rows)
    return made


@pytest.mark.parametrize("several_turns", [False, True])
def test_words_land_on_their_tokens(
    several_turns: bool, model: LlamaForCausalLM, speaking: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    trainer = trainer_of(model, speaking, tmp_path, rollout=stuffed_rollout(speaking) if several_turns else None)
    out = landed(trainer)
    verdicts = torch.tensor([payment.verdict for payment in trainer._payments]).view(-1, 4)
    scale = verdicts.std(1, keepdim=True) + 1e-4
    whole = ((verdicts - verdicts.mean(1, keepdim=True)) / scale).flatten().tolist()
    own = out["completion_mask"] * out["tool_mask"]
    decode = lambda ids: speaking.decode(ids) if ids[0] < len(speaking) else ""  # noqa: E731
    found = check_landing(out["advantages"], out["completion_ids"], own, decode, "a", whole)
    assert found >= (8 * 4 if several_turns else 1)
    assert out["num_items_in_batch"] == own.sum()
    with pytest.raises(AssertionError):  # a shift by one is seen
        check_landing(out["advantages"].roll(1, 1), out["completion_ids"], own, decode, "a", whole)


def test_the_gradient_is_minus_advantage_over_the_tokens(
    model: LlamaForCausalLM, speaking: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    critic = FailsOnSecond()
    trainer = trainer_of(model, speaking, tmp_path, critic, stuffed_rollout(speaking), loss_type="dapo")
    out = landed(trainer)
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation
    logps = torch.randn(out["completion_ids"].shape, requires_grad=True)
    monkeypatch.setattr(
        trainer, "_get_per_token_logps_and_entropies", lambda *_, **__: (logps, torch.zeros_like(logps), None)
    )
    trainer._compute_loss(trainer.model, out).backward()
    own = out["completion_mask"] * out["tool_mask"]
    assert not own[1].any() and own[0].any() and trainer._payments[1].verdict is None
    assert logps.grad is not None
    torch.testing.assert_close(logps.grad, -out["advantages"] * own / own.sum(), atol=1e-7, rtol=1e-5)


def test_a_step_trains_and_counts_failures(
    model: LlamaForCausalLM, speaking: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    trainer = trainer_of(model, speaking, tmp_path, FailsOnSecond(), logging_steps=1)
    before = model.lm_head.weight.detach().clone()
    trainer.train()
    logged = next(row for row in trainer.state.log_history if "text2grad/failed" in row)
    assert logged["text2grad/failed"] == pytest.approx(1 / 8)
    assert (model.lm_head.weight != before).any()


def test_without_words_it_is_their_grpo(
    model: LlamaForCausalLM, speaking: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    out = landed(trainer_of(model, speaking, tmp_path, weight=0.0))
    own = out["completion_mask"].bool()
    for row, mask in zip(out["advantages"], own, strict=True):
        assert row[mask].unique().numel() <= 1


def test_the_page_shows_what_runs(
    model: LlamaForCausalLM, speaking: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "plugins.md").read_text("utf-8"), re.DOTALL)
    built = trainer_of(model, speaking, tmp_path)
    space = {"critic": BlamesLetter(), "tokenizer": speaking, "model": model}
    exec(code, space | {"args": built.args, "rows": built.train_dataset})


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"loss_type": "luspo"}, "luspo.*whole sequences"),
        ({"importance_sampling_level": "sequence"}, "sequence: a loss of whole sequences has no credit for tokens"),
    ],
)
def test_losses_of_whole_sequences_are_refused(
    args: dict[str, Any], words: str, model: LlamaForCausalLM, speaking: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        trainer_of(model, speaking, tmp_path, **args)


def test_without_trl_one_line_names_the_extra() -> None:
    code = hiding(["trl"]) + "import text2grad.plugins.trl"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingPackageError: this needs trl: pip install 'text2grad[trl]'" in done.stderr.splitlines()[-1]


def test_another_version_is_refused(
    model: LlamaForCausalLM, speaking: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("text2grad.plugins.trl.version", lambda name: "1.17.0")
    with pytest.raises(UserError, match=r"trl 1\.17\.0: the plug-in is written for 1\.16"):
        trainer_of(model, speaking, tmp_path)
