"""Text2Grad on one page: a critic marks words, the marks become token rewards, the rewards move
those tokens.

This is the method of `text2grad train` (paper, Algorithm 4, without a value function) in plain
torch over public functions; its first step is `train_ppo`'s to the bit. The model knows nothing,
and the critic likes small letters.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

from text2grad.align import CreditSettings, TokenTable, credit
from text2grad.feedback import Critique, Example, Message, Source, Span
from text2grad.policy.encode import encode_prompt
from text2grad.policy.generate import generate
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, PolicySettings
from text2grad.policy.tiny import TinyShape, make_tiny_model
from text2grad.rl.advantage import RewardTerms, estimate_advantages
from text2grad.rl.loss import average, policy_loss

STEPS, ROLLOUTS, EPOCHS, LEARNING_RATE = 15, 32, 4, 3e-3
BETA, GAMMA, LAM, CLIP = 0.02, 0.7, 0.95, 0.2
SAMPLING = GenerationSettings(max_new_tokens=16, temperature=1.0)
PROMPT = Example(id="0", prompt=(Message(role="user", content="Say something."),))


class Letters:
    """A critic praises and blames stretches of the text, in words and with their places."""

    source = Source(kind="program")

    def critique(self, examples: list[Example], responses: list[str]) -> list[Critique]:
        return [self.judge(text) for text in responses]

    def judge(self, text: str) -> Critique:
        good = [Span(start=m.start(), end=m.end(), label=1, text=m[0]) for m in re.finditer(r"[a-z]+", text)]
        poor = [Span(start=m.start(), end=m.end(), label=-1, text=m[0]) for m in re.finditer(r"[^a-z]+", text)]
        share = sum(len(span.text) for span in good) / max(1, len(text))
        return Critique(text="Small letters, please.", spans=(*good, *poor), score=2 * share - 1)


def make_policy(folder: Path) -> Policy:
    """A Llama of two layers with random weights, and its frozen reference."""
    shape = TinyShape(hidden=64, layers=2, heads=2)
    make_tiny_model(folder, ["say something"], vocabulary=300, context=128, shape=shape)
    policy = load_policy(PolicySettings(model=str(folder)))
    policy.freeze_reference()
    return policy


def step(policy: Policy, optimizer: torch.optim.Optimizer, examples: list[Example], critic: Letters) -> float:
    """One step of NL-gradient PPO on a batch of prompts; returns the mean score of the
    responses."""
    # Sample: y ~ pi(x). The ids are kept as they were sampled and never re-tokenised.
    prompts = [encode_prompt(policy.tokenizer, example.prompt) for example in examples]
    samples = generate(policy, prompts, SAMPLING)
    batch = policy.pack(prompts, [sample.ids for sample in samples])
    # Critique: words about characters of the text. Credit: from characters to one number a token,
    # delta_t.
    aligned = [TokenTable(policy.tokenizer).align(sample.ids) for sample in samples]
    critiques = critic.critique(examples, [each.text for each in aligned])
    credits = [credit(said, each, CreditSettings()) for said, each in zip(critiques, aligned, strict=True)]
    delta = pad_sequence([torch.from_numpy(each.delta) for each in credits], batch_first=True)
    # Reward: r_t = delta_t - beta kl_t. Advantage: rewards to come, discounted, brought to unit
    # size.
    with policy.evaluating():
        old = policy(batch, SAMPLING.temperature, kl="k1", valued=False)
    rewarded = RewardTerms(delta, old.kl, BETA, old.values, old.last_value, batch.mask, batch.mask)
    _, advantages, _ = estimate_advantages("returns", rewarded, gamma=GAMMA, lam=LAM, normalisation="scale")
    # Update: a few steps on the clipped surrogate.
    for _ in range(EPOCHS):
        new = policy(batch, SAMPLING.temperature, valued=False)
        losses, _ = policy_loss(new.logp, old.logp, advantages, batch.mask, CLIP)
        average(losses, batch.mask, "token", float(batch.mask.sum())).backward()
        torch.nn.utils.clip_grad_norm_(policy.policy_parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return sum(each.score or 0.0 for each in critiques) / len(critiques)


if __name__ == "__main__":
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        policy = make_policy(Path(folder))
    optimizer = torch.optim.AdamW(policy.policy_parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    for number in range(STEPS):
        print(f"step {number}: score {step(policy, optimizer, [PROMPT] * ROLLOUTS, Letters()):+.2f}")
