"""What a critic costs is counted with what it says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from text2grad.align import CreditSettings, TokenTable
from text2grad.critics.probes import ProbedCritic
from text2grad.feedback import Critique, Example, Judgement, Message, Source
from text2grad.policy.files.tokenizer import load_tokenizer
from text2grad.policy.generate import Sample
from text2grad.train.rollout import judge, merge_responses
from tiny_runs import tiny_model


class Reader:
    """Says that all is well, and took ten tokens a response for it."""

    source = Source(kind="program")

    def __init__(self) -> None:
        self.tokens = 0.0

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        self.tokens += 10 * len(responses)
        return [Critique(text="well", score=1.0) for _ in responses]


def test_parts_of_a_batch_are_merged_with_what_their_critics_read_and_wrote(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model(tmp_path)))
    samples = [Sample(tokenizer.encode("ok", add_special_tokens=False), False)] * 3
    examples = [Example(id="1", prompt=(Message(role="user", content="a"),))] * 3
    critic = Reader()
    probed = ProbedCritic(critic, 0)
    table, settings = TokenTable(tokenizer), CreditSettings()
    first = judge(examples, samples, table, critic, settings)
    second = judge(examples[:1], samples[:1], table, probed, settings)
    assert (first.critic_tokens, second.critic_tokens) == (30.0, 10.0)
    both = merge_responses([first, second])
    assert both.critic_tokens == 40.0
    assert both.examples == [*examples, *examples[:1]] and both.judgements == first.judgements + second.judgements
    assert both.samples == samples + samples[:1] and len(both.credits) == len(both.labels) == len(both.texts) == 4
