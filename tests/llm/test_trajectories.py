"""Conversations in the real template, and TRL's own trainer and our loop's tools on the real
model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_training import ShortWords

from paid_words import check_paid
from text2grad.align import TokenTable
from text2grad.align.rewards import TokenCredit
from text2grad.align.trajectory import Trajectory
from text2grad.cli import main
from text2grad.feedback import Example, Message
from text2grad.plugins.landing import Case, Row, check_landing, landing_cases
from text2grad.policy.load import choose_dtype
from text2grad.policy.model import Policy

EXAMPLE = Example(id="a", prompt=(Message(role="user", content="How far?"),))
PIECES = ("look up", "twenty miles", "é🙂", "会议", " ", "\n\n", "{}", "<|im_end|>", "1984", " the", "\tx")
WORDS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join)
ASKED = ("Say hello.", "Count to three.", "Name a fruit.", "Why is the sky blue?")
pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)


def ids_of(policy: Policy, text: str) -> list[int]:
    return list(policy.tokenizer(text, add_special_tokens=False)["input_ids"])


def between(policy: Policy, said: str) -> list[int]:
    """What the template writes from the end of a turn to the begin of the next, around what was
    said to it."""
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": ""}]
    before = policy.tokenizer.apply_chat_template(turns, tokenize=False)
    turns.append({"role": "user", "content": said})
    after = policy.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert after.startswith(before)
    return ids_of(policy, after[len(before) :])


@pytest.fixture(scope="module")
def table(policy: Policy) -> TokenTable:
    return TokenTable(policy.tokenizer)


@settings(deadline=None)
@given(data=st.data())
def test_paid_are_the_policys_own_words_in_its_template(
    data: st.DataObject, policy: Policy, table: TokenTable
) -> None:
    ids, mask = [], []
    for said in data.draw(st.lists(WORDS, min_size=1, max_size=3)):
        own = [*ids_of(policy, data.draw(WORDS)), policy.tokenizer.eos_token_id]
        other = between(policy, said)
        ids, mask = [*ids, *own, *other], [*mask, *[1] * len(own), *[0] * len(other)]
    cut = data.draw(st.integers(1, len(ids)))  # the last turn may be truncated
    check_paid(data, table, Trajectory(EXAMPLE, ids[:cut], mask[:cut]))


def trainer_of(folder: str, out: Path, rollout: Any = None, **args: Any) -> Any:
    """TRL's trainer with the plug-in, on the real model."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from text2grad.plugins.trl import TokenCreditTrainer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    dtype = choose_dtype("auto", torch.device("cpu"))
    common = {"report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no", "disable_tqdm": True}
    return TokenCreditTrainer(
        credit=TokenCredit(ShortWords(), tokenizer),
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=dtype),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
        args=trl.GRPOConfig(
            output_dir=str(out), **common, **{"beta": 0.0, "max_completion_length": 12, "logging_steps": 1, **args}
        ),
        processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_list(
            [{"prompt": [{"role": "user", "content": text}]} for text in ASKED]
        ),
        rollout_func=rollout,
    )


def test_words_land_in_trl(folder: str, tmp_path: Path) -> None:
    def land(credit: TokenCredit, cases: Sequence[Case]) -> list[Row]:
        def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
            made = landing_cases(trainer.processing_class)
            ids = [list(case.trajectory.ids) for case in made]
            masks = {"env_mask": [list(case.trajectory.mask or []) for case in made]}
            logps = {"logprobs": [[0.0] * len(each) for each in ids]}
            return {"prompt_ids": [list(case.prompt) for case in made], "completion_ids": ids, **logps, **masks}

        trainer = trainer_of(folder, tmp_path, rollout, per_device_train_batch_size=8, num_generations=4)
        trainer.credit = credit
        trainer.model.train()
        trainer._signature_columns = None
        out = trainer._generate_and_score_completions(
            [dict(row) for row in trainer.train_dataset for _ in range(2)]
        )
        own = out["completion_mask"] * out["tool_mask"]
        return [Row(*each) for each in zip(out["completion_ids"], out["advantages"], own, strict=True)]

    from transformers import AutoTokenizer

    of_samples = lambda v: (v - v.mean()) / (v.std(ddof=1) + 1e-4)  # noqa: E731  # TRL's spread is that of a sample
    assert check_landing(land, AutoTokenizer.from_pretrained(folder), outcome=of_samples) >= 8


def test_training_in_trl_raises_the_verdict(folder: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    more = {"per_device_train_batch_size": 16, "num_generations": 4, "max_steps": 6, "learning_rate": 1e-3}
    trainer = trainer_of(folder, tmp_path, **more)
    trainer.train()
    verdicts = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    print("verdict by step:", " ".join(f"{each:+.3f}" for each in verdicts))
    assert len(verdicts) == 6 and np.mean(verdicts[-2:]) > np.mean(verdicts[:2]) + 0.1


def test_a_step_of_the_agents_task(tmp_path: Path) -> None:
    """`lookup` over the recipe of the real model: episodes of several turns, their ids kept, every
    one judged."""
    words = ["--config", "text2grad_lab:lookup", "--config", "smollm2"]
    words += ["--critic.kind", "text2grad_lab.tasks.lookup:LookupCritic"]
    sizes = {"steps": 1, "rollouts": 4, "samples_per_prompt": 2}
    words += [word for name, size in sizes.items() for word in (f"--ppo.{name}", str(size))]
    with pytest.raises(SystemExit) as left:
        main(["train", *words, "--generation.max_turns", "3", "--run.folder", str(tmp_path)])
    assert not left.value.code
    (run,) = (tmp_path / "ppo").iterdir()
    (metrics,) = (json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines())
    assert 1 < metrics["turns"] <= 3 and metrics["critic_failed"] == 0 and np.isfinite(metrics["policy_loss"])
