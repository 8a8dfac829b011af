"""A trace of verifiers with advantages from a critic's words, as prime-rl trains on them.

    pip install text2grad && pip install verifiers==0.4.0
    python examples/engines/verifiers_trace.py

Install in this order: verifiers needs openai 2, so pip warns that text2grad asks for 3, which only
critics over an endpoint need. In a run the traces come from verifiers, and an algorithm's `assign`
passes them to `assign_credit`. This script makes one by hand, with two turns and a tool in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from verifiers.v1.graph import MessageNode
from verifiers.v1.task import TaskData
from verifiers.v1.trace import Branch
from verifiers.v1.types import AssistantMessage, ToolMessage, UserMessage

import text2grad as t2g
from text2grad.plugins.verifiers import assign_credit


class Blames:
    """A critic that blames every `a` of the policy."""

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


def main() -> None:
    """Print the advantage of each token of a trace; those of the tool get 0."""
    tokenizer = make_tokenizer()

    def node(message: UserMessage | AssistantMessage | ToolMessage, text: str, sampled: bool) -> MessageNode:
        ids = tokenizer.encode(text).ids
        return MessageNode(message=message, token_ids=ids, mask=[sampled] * len(ids), sampled=sampled)

    nodes = [
        node(UserMessage(content="Fruit?"), "Fruit?", False),
        node(AssistantMessage(content="ask"), "ask", True),
        node(ToolMessage(tool_call_id="1", content="banana"), "banana", False),
        node(AssistantMessage(content="a pear"), "a pear", True),
    ]
    trace = SimpleNamespace(nodes=nodes, task=SimpleNamespace(data=TaskData(id="1")))
    (outcome,) = assign_credit([trace], t2g.TokenCredit(Blames(), tokenizer))
    branch = Branch(index=0, nodes=nodes)
    print(f"verdict {outcome.score:.2f}")
    columns = (branch.token_ids, branch.sampled_mask, branch.advantages or [])
    for token, sampled, advantage in zip(*columns, strict=True):
        print(f"{tokenizer.decode([token])} {'sampled' if sampled else '       '} {advantage:+.1f}")


if __name__ == "__main__":
    main()
