"""A reward model taught from records of several turns: what it learns to write, and which tokens
are whose."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from text2grad import wire
from text2grad.align import Aligned, TokenTable
from text2grad.align.trajectory import align_recorded
from text2grad.config import RewardModelSettings
from text2grad.critics.damage import corrupt_records
from text2grad.feedback import Critique, Feedback, Message, Source, Span, Transcript, turn_at
from text2grad.policy.model import Policy
from text2grad.stages.reward_model.corrections import with_corrections
from text2grad.stages.reward_model.data import fitting, judged_cases, reward_pair
from text2grad.train.pairs import encode_pairs

LABELLED = RewardModelSettings(label_weight=1.0)
SAID = "the cat sat on it"
"""A turn, and what a tool says before it: words of others have no label."""


def record(*turns: str, tool: str = SAID, response: str | None = None, **meta: Any) -> Feedback:
    """Praise of `sat`, blame of `mat`, both in the last turn."""
    said = (((), turns[0]), *(((Message(role="tool", content=tool),), turn) for turn in turns[1:]))
    response = Transcript.of(said) if response is None else response
    quotes = [("sat", 1), ("mat", -1)]
    spans = tuple(
        Span(start=at, end=at + len(quote), label=label, text=quote)  # type: ignore[arg-type]
        for quote, label in quotes
        for at in (response.rindex(quote),)
    )
    return Feedback(
        id="1",
        prompt=(Message(role="user", content="Where is the cat?"),),
        response=response,
        critique="Not the mat.",
        spans=spans,
        score=-1.0,
        source=Source(kind="human"),
        meta=meta,
    )


TALK = record("look up the cat", SAID, "the cat sat on the mat")


@pytest.fixture
def policy(tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Policy:
    return Policy(copy.deepcopy(tiny_llama), tokenizer)


def test_z_names_the_turn_and_reads_back() -> None:
    pair = reward_pair(TALK, LABELLED)
    assert pair is not None and '"turn": 3' in pair.target  # `sat` stands in two turns
    assert wire.parse(pair.target, TALK.response) == TALK.judgement()
    assert '<message from="tool">' in pair.prompt[-1].content


def test_labels_fall_on_the_turns_and_not_on_what_a_tool_said(policy: Policy) -> None:
    pair = reward_pair(TALK, LABELLED)
    assert pair is not None and [each.text for each in pair.marked] == [
        "look up the cat",
        SAID,
        TALK.response[-22:],
    ]
    for number, each in enumerate(pair.marked, start=1):
        assert pair.prompt[-1].content[: each.start].endswith(f'<turn number="{number}">\n')
    (item,) = encode_pairs(policy, [pair])
    found: dict[int, list[int]] = {}
    for token, label in zip(item.prompt, item.labels, strict=True):
        found.setdefault(label, []).append(token)
    words = {label: policy.tokenizer.decode(tokens).replace(" ", "") for label, tokens in found.items()}
    assert (words[1], words[-1]) == ("sat", "mat")
    assert words[0] == "".join(("look up the cat" + SAID + "the cat on the").split())


def test_a_long_conversation_loses_what_the_tool_said_and_keeps_its_labels(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = record("look up the cat", "the cat sat on the mat", tool="so it is said " * 60)
    monkeypatch.setattr(policy.model.config, "max_position_embeddings", 2000)
    [(_, whole)] = fitting(policy, [long], LABELLED)
    [encoded] = encode_pairs(policy, [whole])
    monkeypatch.setattr(policy.model.config, "max_position_embeddings", encoded.tokens - 100)
    [(_, pair)] = fitting(policy, [long], LABELLED)
    assert len(pair.prompt[-1].content) < len(whole.prompt[-1].content)
    assert [each.text for each in pair.marked] == [each.text for each in whole.marked]


def told(aligned: Aligned, response: str) -> list[str]:
    return [response[start:end] for start, end in zip(aligned.starts, aligned.ends, strict=True)]


def test_tokens_are_those_that_were_sampled(tokenizer: PreTrainedTokenizerFast) -> None:
    table = TokenTable(tokenizer)
    letters = [[*tokenizer.convert_tokens_to_ids(list("ab"))], [*tokenizer.convert_tokens_to_ids(list("cd"))]]
    response = Transcript.of([((), "ab"), ((Message(role="tool", content="x"),), "cd")])
    aligned = align_recorded(table, response, letters)
    assert told(aligned, response) == ["a", "b", "c", "d"] and aligned.turn_ends == (2, 4)
    assert told(align_recorded(table, "ab", letters[:1]), "ab") == ["a", "b"]  # an episode of one turn
    assert told(align_recorded(table, "ab", letters[0]), "ab") == ["a", "b"]
    of_another = align_recorded(table, response, [letters[1], letters[0]])
    assert of_another.turn_ends == table.align_text(response).turn_ends


class Says:
    """Repeats what the record says."""

    source = Source(kind="program")

    def critique(self, examples: Any, responses: Any) -> list[Critique]:
        found = TALK.judgement()
        assert isinstance(found, Critique)
        return [found for _ in responses]


def test_a_critic_that_says_the_same_marks_the_same_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    (case,) = judged_cases(Says(), [TALK], TokenTable(tokenizer))  # type: ignore[arg-type]
    assert case.gold == case.predicted and len(case.aligned.turn_ends) == 3


def test_one_turn_is_spoiled_and_ends_the_conversation() -> None:
    made = corrupt_records([TALK], 24, 1)
    ends = set()
    for each in made:
        assert isinstance(each.response, Transcript) and isinstance(TALK.response, Transcript)
        number = len(each.response.turns)
        ends.add(number)
        assert [turn.messages for turn in each.response.turns] == [t.messages for t in TALK.response.turns[:number]]
        [span] = each.spans
        assert turn_at(each.response, span.start) == number and span.label == -1
        before = each.response.turns[-1].start
        assert each.response[:before] == TALK.response[:before] and each.response != TALK.response
    assert len(ends) > 1


def test_a_corrected_last_turn_is_praised_behind_the_others() -> None:
    corrected = record("look up the cat", "the cat sat on the mat", corrected="the cat sat on it")
    *_, praise = with_corrections([corrected])
    assert isinstance(praise.response, Transcript) and isinstance(corrected.response, Transcript)
    assert [turn.messages for turn in praise.response.turns] == [t.messages for t in corrected.response.turns]
    assert praise.response == "look up the cat\n\nthe cat sat on it"
    assert [(span.text, span.label) for span in praise.spans] == [("the cat sat on it", 1)]
    assert len(with_corrections([corrected, praise])) == 2  # there it is already
