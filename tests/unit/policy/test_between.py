"""What stands between two turns of the policy: the ids that the chat template writes, whatever it
is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from chat_templates import SHAPES, tokenizer_of
from made_tokenizers import CHATML, byte_fallback_tokenizer, byte_level_tokenizer
from text2grad import errors
from text2grad.align import TokenTable, tokens
from text2grad.feedback import Message, Transcript
from text2grad.policy.encode import encode_prompt, encode_target, end_of_turn
from text2grad.policy.episode import Dialogue, encode_turns
from text2grad.policy.tiny import make_tokenizer

ASKED = [Message(role="user", content="How much?")]
WORDS = ("look up 12", "compute\n1 + 2", "<|im_end|> is text")
REWRITING = {"qwen3", "qwen3-2507-thinking"}
"""Their answers begin with an empty block of reasoning, which earlier answers have not."""
ENDS = {"gpt-oss": ("<|return|>", "<|end|>"), "glm-4.5": ("<eos>", ""), "glm-4.7": ("<eos>", "")}
"""The token that ends an answer, and what stands there once it is answered, where that is
another."""


def said(role: str, *texts: str) -> list[Message]:
    return [Message(role=role, content=text) for text in texts]  # type: ignore[arg-type]


def in_template(name: str, tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """The ids held, each end of a turn as the template writes it inside a conversation."""
    stop, end = ENDS.get(name, ("", ""))
    other = [tokenizer.convert_tokens_to_ids(end)] if end else []
    stopped = tokenizer.convert_tokens_to_ids(stop) if stop else None
    return [each for index in ids for each in (other if index == stopped else [index])]


def transcript(role: str, words: Sequence[str] = WORDS) -> Transcript:
    return Transcript.of((said(role, f"it is {n}") if n else [], each) for n, each in enumerate(words))


@pytest.mark.parametrize("role", ["user", "tool"])
@pytest.mark.parametrize("name", SHAPES)
def test_prompt_turn_and_answer_are_the_prompt_of_the_next_turn(name: str, role: str) -> None:
    """At each of three turns the ids held are those of the conversation so far, and the own ones
    what they were."""
    tokenizer, before = tokenizer_of(SHAPES[name]), [*ASKED]
    thread, own = Dialogue(tokenizer, ASKED), []
    for number, words in enumerate(WORDS):
        target = encode_target(tokenizer, words)
        thread.add_turn(target)
        thread.add_answer(words, said(role, f"it is {number}"))
        before += [*said("assistant", words), *said(role, f"it is {number}")]
        assert in_template(name, tokenizer, thread.all_ids) == encode_prompt(tokenizer, before)
        own = [] if name in REWRITING else own + target
        assert [index for index, mine in zip(thread.ids, thread.mask, strict=True) if mine] == own
        assert len(thread.between) == (1 if name in REWRITING else number + 2)


@pytest.mark.parametrize(
    "make", [byte_level_tokenizer, byte_fallback_tokenizer, lambda: make_tokenizer(WORDS, 300)]
)
def test_of_other_tokenizers_too(make: Any) -> None:
    tokenizer = make()
    tokenizer.chat_template = tokenizer.chat_template or CHATML
    thread = encode_turns(tokenizer, ASKED, transcript("tool"))
    earlier = [*said("assistant", WORDS[0]), *said("tool", "it is 1"), *said("assistant", WORDS[1])]
    before = encode_prompt(tokenizer, [*ASKED, *earlier, *said("tool", "it is 2")])
    assert thread.all_ids == [*before, *encode_target(tokenizer, WORDS[2])]


def test_where_earlier_turns_are_rewritten_only_the_last_is_trained_and_one_line_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Reasoning that the template leaves out of earlier turns: they are read as it writes them, and
    not trained."""
    errors.warn_once.cache_clear()
    tokenizer = tokenizer_of(SHAPES["phi-4"])
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{ m.content }}", "{{ m.content if loop.last else m.content.split('</think>')[-1] }}"
    )
    words = ("<think>hm</think>look up 12", "answer 4")
    thread = encode_turns(tokenizer, ASKED, transcript("tool", words))
    assert thread.ids == encode_target(tokenizer, words[1]) and all(thread.mask)
    assert thread.prompt == encode_prompt(
        tokenizer, [*ASKED, *said("assistant", "look up 12"), *said("tool", "it is 1")]
    )
    assert thread.between == [(*said("assistant", words[0]), *said("tool", "it is 1"))]
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "only the last turn" in each]
    assert "--policy.chat_template" in line


def test_ids_that_were_sampled_are_kept_and_others_read_anew() -> None:
    """Each turn has the ids it was sampled as, unless these read otherwise."""
    tokenizer = tokenizer_of(SHAPES["phi-4"])
    end = tokenizer.convert_tokens_to_ids(end_of_turn(tokenizer))
    letters = [tokenizer(letter, add_special_tokens=False)["input_ids"] for letter in "look up 12"]
    sampled = [[*(index for each in letters for index in each), end], [7, 8, 9, end]]
    assert TokenTable(tokenizer).align(sampled[0]).text == "look up 12"
    thread = encode_turns(tokenizer, ASKED, transcript("user", WORDS[:2]), sampled)
    turns = [*sampled[0], *encode_target(tokenizer, WORDS[1])]
    assert [index for index, mine in zip(thread.ids, thread.mask, strict=True) if mine] == turns
    assert sampled[0] != encode_target(tokenizer, "look up 12")


def test_the_table_of_a_tokenizer_is_made_once_for_all_transcripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a second for 50,000 tokens."""
    tokenizer = tokenizer_of(SHAPES["phi-4"])
    made = []

    class Counted(TokenTable):
        def __init__(self, tokenizer: Any) -> None:
            made.append(tokenizer)
            super().__init__(tokenizer)

    monkeypatch.setattr(tokens, "TokenTable", Counted)
    turns = [encode_target(tokenizer, words) for words in WORDS[:2]]
    for _ in range(3):
        encode_turns(tokenizer, ASKED, transcript("user", WORDS[:2]), turns)
    assert made == [tokenizer]


def test_the_token_that_begins_another_turn_may_end_a_turn() -> None:
    """GLM ends its answer with the token of the user's turn: it stands there once."""
    tokenizer = tokenizer_of(SHAPES["glm-4.7"])
    user = tokenizer.convert_tokens_to_ids("<|user|>")
    thread = Dialogue(tokenizer, ASKED)
    thread.add_turn([*encode_target(tokenizer, "4")[:-1], user])
    thread.add_answer("4", said("user", "and now?"))
    assert thread.all_ids == encode_prompt(tokenizer, [*ASKED, *said("assistant", "4"), *said("user", "and now?")])
