"""What a chat template writes before and after an answer, as text.

Templates differ in how they begin an answer. As a generation prompt some write less than before a finished answer
(an empty `<think>` block comes only with the answer), some more (an open `<think>` that a finished answer lacks).
Training and sampling both use what precedes a finished answer: an answer follows what the template itself writes
before it, and never begins inside a block that the template has opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jinja2 import TemplateError

from text2grad.errors import UserError, warn_once

PROBE, TURN = "\u2756probe\u2756", "\u2756turn\u2756"
TEMPLATE = "--policy.chat_template FILE.jinja"
OTHER_TURNS = f"move the system text into the first user turn, or {TEMPLATE}"
SWITCHES = ("enable_thinking", "thinking")
"""Arguments that keep a model from thinking if they are false (of Qwen 3 and GLM; of DeepSeek and Granite)."""

Turn = Mapping[str, str]


class Frame(NamedTuple):
    """What the template writes before and after an answer; `after` is None where it writes no answers."""

    before: str
    after: str | None


class Beginning(NamedTuple):
    """How a finished answer begins, and how one that is asked for, from where the two part."""

    finished: str
    requested: str


def render(tokenizer: Any, chat: Sequence[Mapping[str, Any]], **arguments: bool) -> str:
    """The conversation as the template writes it, in the sandbox of transformers.

    The sandbox ends a `range` of more than 100,000 and a text that does not fit into memory with errors of Python.

    Raises:
        UserError: the template refuses the conversation.
    """
    try:
        return str(tokenizer.apply_chat_template(list(chat), tokenize=False, **arguments))
    except (
        TemplateError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        MemoryError,
        RecursionError,
    ) as error:
        roles = ", ".join(turn["role"] for turn in chat)
        raise UserError(
            f"the chat template refuses the turns {roles}: {first_line(error)}",
            OTHER_TURNS if "system" in roles else TEMPLATE,
        ) from error


def frame(tokenizer: Any, chat: Sequence[Turn]) -> Frame:
    """What the template writes around the answer to a conversation.

    For a template that cannot write a finished conversation (it has no answers, or has the system's text only in
    the last turn) its generation prompt is taken.

    Raises:
        UserError: the template refuses the conversation, or drops a turn.
    """
    finished = [*chat, _answer(PROBE)]
    try:
        before, found, after = render(tokenizer, finished).rpartition(PROBE)
    except UserError:
        found = ""
    if found and _dropped(tokenizer, finished, before) is None:
        return Frame(before, after)
    generated = render(tokenizer, chat, add_generation_prompt=True)
    if (role := _dropped(tokenizer, chat, generated, add_generation_prompt=True)) is not None:
        cure = OTHER_TURNS if role == "system" else TEMPLATE
        raise UserError(f"the chat template drops the {role} turn", cure)
    begun = beginning(tokenizer)
    if begun is not None and generated.endswith(begun.requested):
        generated = generated.removesuffix(begun.requested) + begun.finished
    return Frame(generated, None)


def written_turn(tokenizer: Any, reasoning: str, content: str, calls: Sequence[Mapping[str, Any]]) -> str | None:
    """A turn with its reasoning and its calls of tools, as the template writes it after a question.

    None: it does not write them, or not between what it writes around any answer.
    """
    asked = [{"role": "user", "content": TURN}]
    numbered = enumerate(calls, start=1)
    listed = [{"type": "function", "id": f"{number:09d}", "function": dict(call)} for number, call in numbered]
    added = {"reasoning_content": reasoning, "tool_calls": listed}
    turn = {**_answer(content), **{name: value for name, value in added.items() if value}}
    try:
        around, text = frame(tokenizer, asked), render(tokenizer, [*asked, turn])
    except UserError:
        return None
    if around.after is None or not (text.startswith(around.before) and text.endswith(around.after)):
        return None
    found = text[len(around.before) : len(text) - len(around.after)]
    wanted = [reasoning.strip(), content.strip(), *(str(call["name"]) for call in calls)]
    return found if all(each in found for each in wanted) else None


def _dropped(tokenizer: Any, chat: Sequence[Turn], text: str, **arguments: bool) -> str | None:
    """The role of the first turn of which the template writes nothing before the answer.

    A turn that it changes is named on stderr.
    """
    for place, turn in enumerate(chat):
        content = turn["content"]
        if content == PROBE or content.strip() in text:
            continue
        probed = render(tokenizer, [*chat[:place], {**turn, "content": TURN}, *chat[place + 1 :]], **arguments)
        if TURN not in (probed.rpartition(PROBE)[0] if PROBE in probed else probed):
            return turn["role"]
        reasons = turn["role"] == "assistant" and "</" in content
        change = (
            "leaves the reasoning out of earlier answers"
            if reasons
            else f"changes the text of {turn['role']} turns"
        )
        warn_once(f"the chat template {change}, and the model reads them so")
    return None


def beginning(tokenizer: Any) -> Beginning | None:
    """How a finished answer begins and one that is asked for; None where the template refuses to write either."""
    asked = [{"role": "user", "content": TURN}]
    try:
        before, found, _ = render(tokenizer, [*asked, _answer(PROBE)]).rpartition(PROBE)
        generated = render(tokenizer, asked, add_generation_prompt=True)
    except UserError:
        return None
    pairs = zip(before, generated, strict=False)
    shared = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(generated)))
    shared = len(before[:shared].rstrip("<"))  # no tag is cut
    return Beginning(before[shared:], generated[shared:]) if found else None


def switch_of(tokenizer: Any) -> str | None:
    """The argument that has the template begin an answer that is asked for as a finished one, if it is false."""
    asked = [{"role": "user", "content": TURN}]
    before = render(tokenizer, [*asked, _answer(PROBE)]).partition(PROBE)[0]
    silent = (
        name for name in SWITCHES if render(tokenizer, asked, add_generation_prompt=True, **{name: False}) == before
    )
    return next(silent, None)


def rewrites(tokenizer: Any, chat: Sequence[Turn], answer: str, around: Frame) -> bool:
    """Whether the template writes the answer, or what stands `around` it, otherwise than both are.

    White space at its ends is the answer's own, whether the template keeps it or not.
    """
    if around.after is None or not answer.strip():
        return False
    written = render(tokenizer, [*chat, _answer(answer)])
    return written.removeprefix(around.before).removesuffix(around.after).strip() != answer.strip()


def first_line(error: BaseException) -> str:
    """The first line of what an error says, else its type."""
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__


def _answer(text: str) -> Turn:
    return {"role": "assistant", "content": text}
