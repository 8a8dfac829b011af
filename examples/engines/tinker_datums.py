"""Datums of the Tinker protocol with advantages from a critic's words.

    pip install text2grad tinker==0.38.0
    python examples/engines/tinker_datums.py

A run makes its datums with `assemble_training_data` of the cookbook, and sends the result of
`with_credit` with `forward_backward`. This script makes two answers to one prompt by hand and sends
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tinker
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import text2grad as t2g
from text2grad.plugins.tinker import with_credit


class Blames:
    """A critic that blames every `a`; the verdict falls with their number."""

    source = t2g.Source(kind="program", model="no a")

    def critique(self, examples: Sequence[t2g.Example], responses: Sequence[str]) -> list[t2g.Critique]:
        return [self.judge(text) for text in responses]

    def judge(self, text: str) -> t2g.Critique:
        places = [place for place, letter in enumerate(text) if letter == "a"]
        spans = tuple(t2g.Span(start=place, end=place + 1, label=-1, text="a") for place in places)
        return t2g.Critique(text=f"{len(places)} times a", spans=spans, score=1 / (1 + len(places)))


def make_tokenizer() -> Tokenizer:
    """Make a tokenizer with one token per letter; in your run, use the policy's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def datum(tokenizer: Tokenizer, prompt: str, answer: str) -> tinker.Datum:
    """Make a datum as the cookbook does: targets shifted by one, mask 1 at sampled ids."""
    before, sampled = (tokenizer.encode(text).ids for text in (prompt, answer))
    targets = [*before, *sampled][1:]
    mask = [0.0] * (len(before) - 1) + [1.0] * len(sampled)
    inputs = {"target_tokens": targets, "logprobs": [-1.0] * len(targets), "advantages": [0.0] * len(targets)}
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints([*before, *sampled][:-1]),
        loss_fn_inputs=inputs | {"mask": np.array(mask, dtype=np.float32)},
    )


def main() -> None:
    """Print the advantage of each target of two answers."""
    tokenizer = make_tokenizer()
    example = t2g.Example(id="1", prompt=(t2g.Message(role="user", content="Fruit:"),))
    data = [datum(tokenizer, "Fruit:", answer) for answer in ("a pear", "berry")]
    metadata = [{"group_idx": 0, "traj_idx": number} for number in range(2)]
    data, outcomes = with_credit(data, metadata, t2g.TokenCredit(Blames(), tokenizer), [example])
    for row, outcome in zip(data, outcomes, strict=True):
        advantages = " ".join(f"{number:+.1f}" for number in row.loss_fn_inputs["advantages"].tolist())
        print(f"verdict {outcome.score:.2f}: {advantages}")


if __name__ == "__main__":
    main()
