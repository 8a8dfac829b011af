"""Ratios, grounded critiques, PPO and merging on the real model."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from prompts import ask
from torch import Tensor

from text2grad.align import CreditSettings
from text2grad.cli import main
from text2grad.critics.prompted import PromptedCritic
from text2grad.durable.run import RunOptions
from text2grad.feedback import Critique, Example, Failure, Judgement, Message, Source, Span
from text2grad.policy.files.save import write_policy
from text2grad.policy.generate import generate
from text2grad.policy.grounded import make_vocabulary
from text2grad.policy.load import load_policy
from text2grad.policy.local_chat import LocalChat
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings
from text2grad.tasks.base import read_prompt
from text2grad.train.ppo import train_ppo
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.rollout import measure_policy

LORA = LoraSettings(r=8, dropout=0.0)
TOPICS = ("rain", "a good night's sleep", "learning to swim", "old trains", "bread", "the sea", "chess", "bees")
EXAMPLES = [
    Example(id=topic, prompt=(Message(role="user", content=f"Say something about {topic}."),)) for topic in TOPICS
]


def adapted(folder: str) -> Policy:
    torch.manual_seed(0)
    return load_policy(PolicySettings(model=folder, dtype="auto", device="cpu", lora=LORA))


def test_the_first_ratio_is_one(folder: str) -> None:
    """But for the last bits of a float32 sum, where the pass that learns has the rows of the pass
    that scored. Passes of other shapes round otherwise in bfloat16: on some CPUs not at all, on
    others by a few hundredths."""
    policy = adapted(folder)
    prompts = [ask(policy, f"Say something about {topic}.") for topic in TOPICS]
    samples = generate(policy, prompts, GenerationSettings(max_new_tokens=16))
    batch = policy.pack(prompts, [sample.ids for sample in samples])
    policy.freeze_reference()
    old = measure_policy(policy, batch, PPOSettings(micro_batch_size=8, advantage="returns"), 1.0).logp
    with torch.enable_grad():
        same = policy(batch, 1.0, valued=False).logp
        parts = [policy(batch.rows(rows), 1.0, valued=False).logp.detach() for rows in torch.arange(8).split(3)]
    assert same.requires_grad
    ratio = (same - old).exp()[batch.mask]
    assert (ratio - 1).abs().max() < 1e-4
    apart = (torch.cat(parts) - old).exp()[batch.mask]
    print(
        f"passes of 3 rows, not 8: |ratio - 1| mean {(apart - 1).abs().mean():.4f}, ratio mean {apart.mean():.4f}"
    )
    assert (apart - 1).abs().mean() < 0.1
    assert abs(float(apart.mean()) - 1) < 0.05


RESPONSES = (
    "Rain falls when clouds grow heavy. It falls on the old and the young.",
    "Das Café öffnet um 9:30 🙂, sagt Zoë.",
    "def total(xs):\n    return sum(xs[1:])\n",
)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_grounded_critiques_quote_what_is_there(policy: Policy, temperature: float) -> None:
    """A model that was never shown the format: every critique can be read, and every quote is in
    the response."""
    settings = GenerationSettings(max_new_tokens=72, temperature=temperature)
    chat = LocalChat(policy, settings, "smollm2", make_vocabulary(policy, "on"))
    critic = PromptedCritic(chat, read_prompt("reward_model"), Source(kind="reward_model"))
    torch.manual_seed(0)
    said = critic.critique(EXAMPLES[: len(RESPONSES)], RESPONSES)
    assert [each for each in said if isinstance(each, Failure)] == []
    assert [each.quotes.unmatched + each.quotes.ambiguous for each in said if isinstance(each, Critique)] == [0] * 3
    for each, response in zip(said, RESPONSES, strict=True):
        assert isinstance(each, Critique)
        assert all(response[span.start : span.end] == span.text for span in each.spans)


def test_without_the_mask_they_cannot_be_read(policy: Policy) -> None:
    chat = LocalChat(policy, GenerationSettings(max_new_tokens=32, temperature=0.0), "smollm2")
    critic = PromptedCritic(chat, read_prompt("reward_model"), Source(kind="reward_model"))
    (said,) = critic.critique(EXAMPLES[:1], RESPONSES[:1])
    assert isinstance(said, Failure)


class ShortWords:
    """Praises words of up to three letters and blames longer ones; its verdict is their balance."""

    source = Source(kind="program")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        return [self.judge(text) for text in responses]

    def judge(self, text: str) -> Critique:
        words = list(re.finditer(r"[A-Za-z]+", text))
        signs = [1 if len(word[0]) <= 3 else -1 for word in words]
        spans = [
            Span(start=word.start(), end=word.end(), label=sign, text=word[0])  # type: ignore[arg-type]
            for word, sign in zip(words, signs, strict=True)
        ]
        return Critique(text="Short words.", spans=tuple(spans), score=sum(signs) / max(1, len(signs)))


def test_ppo_raises_the_token_reward(folder: str, tmp_path: Path) -> None:
    policy = adapted(folder)
    settings = PPOSettings(
        steps=6, rollouts=16, epochs=2, lr=2e-3, gamma=0.0, advantage="returns", kl="k1", kl_coefficient=0.02
    )
    generation = GenerationSettings(max_new_tokens=16)
    train_ppo(
        policy,
        EXAMPLES,
        ShortWords(),
        settings,
        CreditSettings(outcome_weight=0.0),
        generation,
        RunOptions(tmp_path, "x"),
    )
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    score = [row["score"] for row in rows]
    print("score by step:", " ".join(f"{each:+.3f}" for each in score), "kl", rows[-1]["kl"])
    assert sum(score[-2:]) / 2 > sum(score[:2]) / 2 + 0.1


def shaken(policy: Policy) -> Policy:
    """Adapters as training would leave them after some steps: a change of the answers, and no other
    model."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.copy_(0.2 * torch.randn_like(weight))
    return policy


def logp_of(policy: Policy, prompts: list[list[int]]) -> Tensor:
    """(N, V) log-probabilities of the next token after each prompt."""
    with policy.evaluating():
        rows = [policy.model(torch.tensor([ids])).logits[0, -1] for ids in prompts]
    return torch.stack(rows).float().log_softmax(-1)


def kl(left: Tensor, right: Tensor) -> float:
    return float((left.exp() * (left - right)).sum(-1).mean())


@pytest.mark.parametrize(("dtype", "lost"), [("float32", 1e-4), ("bfloat16", 0.05)])
def test_a_merged_model_answers_as_its_adapter_did(folder: str, tmp_path: Path, dtype: str, lost: float) -> None:
    """The KL between the adapter's model and the merged one, reloaded, as a share of what the
    adapter changed."""
    settings = PolicySettings(model=folder, dtype=dtype, device="cpu", lora=LORA)
    policy = shaken(load_policy(settings))
    prompts = [ask(policy, f"Say something about {topic}.") for topic in TOPICS]
    trained = logp_of(policy, prompts)
    with policy.model.disable_adapter():
        base = logp_of(policy, prompts)
    write_policy(policy, tmp_path / "run" / "sft" / "policy")
    out = tmp_path / "merged"
    words = ["merge", "sft", "--out", str(out), "--config", "demo", "--run.folder", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as left:
        main([*words, "--policy.model", folder, "--policy.dtype", dtype])
    assert not left.value.code
    merged = logp_of(load_policy(replace_model(settings, out)), prompts)
    changed, rest = kl(trained, base), kl(trained, merged)
    print(f"{dtype}: the adapter's KL {changed:.4f} nats, the merged model's distance from it {rest:.2e}")
    assert changed > 0.01
    assert rest <= lost * changed


def replace_model(settings: PolicySettings, folder: Path) -> PolicySettings:
    return settings.model_copy(update={"model": str(folder), "lora": None})
