"""An agent loop of verl with token rewards from a critic's words.

    pip install 'text2grad[verl]'
    python examples/engines/verl_loop.py

In a run verl makes the loop, from `agent.yaml`:

    - name: words
      _target_: text2grad.plugins.verl.TokenCreditToolLoop
      credit: verl_loop:credit

and generates answers. This script's loop returns an answer made by hand, and prints its rewards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

import text2grad as t2g
from text2grad.plugins.verl import TokenCreditMixin


class Blames:
    """A critic that blames every `a`; the verdict falls with their number."""

    source = t2g.Source(kind="program", model="no a")

    def critique(self, examples: Sequence[t2g.Example], responses: Sequence[str]) -> list[t2g.Critique]:
        return [self.judge(text) for text in responses]

    def judge(self, text: str) -> t2g.Critique:
        places = [place for place, letter in enumerate(text) if letter == "a"]
        spans = tuple(t2g.Span(start=place, end=place + 1, label=-1, text="a") for place in places)
        return t2g.Critique(text=f"{len(places)} times a", spans=spans, score=1 / (1 + len(places)))


def credit(tokenizer: Any) -> t2g.TokenCredit:
    """Return the critic with the policy's tokenizer; `agent.yaml` names this function."""
    return t2g.TokenCredit(Blames(), tokenizer)


class FixedLoop:
    """A stand-in for verl's loop: one turn, a tool's message, another turn."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.config = SimpleNamespace(
            algorithm=SimpleNamespace(adv_estimator="gae"), trainer=SimpleNamespace(use_v1=True)
        )

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        texts = (("ask", 1), ("banana", 0), ("a pear", 1))
        pieces = [(self.tokenizer.encode(text).ids, sampled) for text, sampled in texts]
        return AgentLoopOutput(
            prompt_ids=self.tokenizer.encode("Fruit?").ids,
            response_ids=[index for ids, _ in pieces for index in ids],
            response_mask=[sampled for ids, sampled in pieces for _ in ids],
            metrics=AgentLoopMetrics(),
        )


class Loop(TokenCreditMixin, FixedLoop):
    """The stand-in with credit for words."""


def main() -> None:
    """Print the reward of each token: 0 for those of the tool, the verdict on the last."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    loop = Loop(tokenizer, credit="verl_loop:credit")
    output = asyncio.run(loop.run({}, raw_prompt=[{"role": "user", "content": "Fruit?"}])).as_dict()
    columns = (output["responses"], output["response_mask"], output["rm_scores"])
    for token, sampled, reward in zip(*columns, strict=True):
        print(f"{tokenizer.decode([int(token)])} {'sampled' if sampled else '       '} {reward:+.2f}")


if __name__ == "__main__":
    main()
