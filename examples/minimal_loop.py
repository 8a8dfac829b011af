"""Text2Grad on one page: a critic marks words, marks become token rewards, rewards move tokens.

This is the method of `text2grad train` (paper, Algorithm 4, without a value function) in plain
torch over public functions; its first step equals that of `train_ppo` bit for bit. The model starts
from random weights, and the critic likes small letters.
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
    """A critic that praises runs of small letters and blames everything else."""

    source = Source(kind="program")

    def critique(self, examples: list[Example], responses: list[str]) -> list[Critique]:
        return [self.judge(text) for text in responses]

    def judge(self, text: str) -> Critique:
        good = [Span(start=m.start(), end=m.end(), label=1, text=m[0]) for m in re.finditer(r"[a-z]+", text)]
        poor = [Span(start=m.start(), end=m.end(), label=-1, text=m[0]) for m in re.finditer(r"[^a-z]+", text)]
        share = sum(len(span.text) for span in good) / max(1, len(text))
        return Critique(text="Small letters, please.", spans=(*good, *poor), score=2 * share - 1)


def make_policy(folder: Path) -> Policy:
    """Make a Llama of two layers with random weights, and freeze its reference."""
    shape = TinyShape(hidden=64, layers=2, heads=2)
    make_tiny_model(folder, ["say something"], vocabulary=300, context=128, shape=shape)
    policy = load_policy(PolicySettings(model=str(folder)))
    policy.freeze_reference()
    return policy


def step(policy: Policy, optimizer: torch.optim.Optimizer, examples: list[Example], critic: Letters) -> float:
    """Take one step of NL-gradient PPO on a batch of B prompts; return the mean score."""
    # Sample: y ~ pi(x). The ids stay as sampled and are never tokenised again.
    prompts = [encode_prompt(policy.tokenizer, example.prompt) for example in examples]
    samples = generate(policy, prompts, SAMPLING)
    batch = policy.pack(prompts, [sample.ids for sample in samples])
    # Critique: spans of characters. Credit: one number per token, delta_t (B, T).
    aligned = [TokenTable(policy.tokenizer).align(sample.ids) for sample in samples]
    critiques = critic.critique(examples, [tokens.text for tokens in aligned])
    credits = [credit(*pair, CreditSettings()) for pair in zip(critiques, aligned, strict=True)]
    delta = pad_sequence([torch.from_numpy(item.delta) for item in credits], batch_first=True)
    # Reward: r_t = delta_t - beta kl_t. Advantage: discounted rewards to come, scaled by RMS.
    with policy.evaluating():
        old = policy(batch, SAMPLING.temperature, kl="k1", valued=False)
    terms = RewardTerms(delta, old.kl, BETA, old.values, old.last_value, batch.mask, batch.mask)
    _, advantages, _ = estimate_advantages("returns", terms, gamma=GAMMA, lam=LAM, normalisation="scale")
    # Update: a few gradient steps on the clipped surrogate.
    for _ in range(EPOCHS):
        new = policy(batch, SAMPLING.temperature, valued=False)
        losses, _ = policy_loss(new.logp, old.logp, advantages, batch.mask, CLIP)
        average(losses, batch.mask, float(batch.mask.sum())).backward()
        torch.nn.utils.clip_grad_norm_(policy.policy_parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return sum(critique.score or 0.0 for critique in critiques) / len(critiques)


if __name__ == "__main__":
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        policy = make_policy(Path(folder))
    optimizer = torch.optim.AdamW(policy.policy_parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    for number in range(STEPS):
        print(f"step {number}: score {step(policy, optimizer, [PROMPT] * ROLLOUTS, Letters()):+.2f}")
