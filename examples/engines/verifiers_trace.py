"""A trace of verifiers whose nodes carry what a critic said of each word, as prime-rl trains on
them.

    pip install text2grad && pip install verifiers==0.4.0
    python examples/engines/verifiers_trace.py

In this order: verifiers wants openai 2, which pip then takes, and says that text2grad asks for 3;
only critics over an endpoint need that. In a run the traces come from verifiers, and an algorithm's
`assign` hands them to `assign_credit`; here one of two turns with a tool between is made by hand.
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
    """Blames every `a` of the policy's own."""

    source = t2g.Source(kind="program", model="no a")

    def critique(self, examples: Sequence[t2g.Example], responses: Sequence[str]) -> list[t2g.Critique]:
        return [self.judge(text) for text in responses]

    def judge(self, text: str) -> t2g.Critique:
        places = [place for place, letter in enumerate(text) if letter == "a"]
        spans = tuple(t2g.Span(start=place, end=place + 1, label=-1, text="a") for place in places)
        return t2g.Critique(text=f"{len(places)} times a", spans=spans, score=1 / (1 + len(places)))


def letters() -> Tokenizer:
    """One token a letter. In your run: the policy's own tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return made


def main() -> None:
    """Print what each token of a trace is paid: the tool's `a`s nothing."""
    tokenizer = letters()

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
    for token, sampled, paid in zip(branch.token_ids, branch.sampled_mask, branch.advantages or [], strict=True):
        print(f"{tokenizer.decode([token])} {'sampled' if sampled else '       '} {paid:+.1f}")


if __name__ == "__main__":
    main()
