"""Answers to questions: UltraFeedback (paper, section 4.4) and FineGrainedRLHF with human error spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from text2grad.errors import UserError
from text2grad.feedback import Example, Feedback, Message
from text2grad.settings import TinyShape
from text2grad.tasks.base import TaskSettings
from text2grad.tasks.loaders import DataTask, Row, Shape, load_rows, optional_text, reference_of, text_of

FINEGRAINED_KEYS = frozenset({"question", "passages", "prediction 1", "feedback"})
DEFAULT_DATA = "HuggingFaceH4/ultrafeedback_binarized"
IMPORTED_KEYS = frozenset({"id", "prompt", "response", "spans", "source"})


class QATask(DataTask):
    """Answer a question. Scored by ROUGE-L against the reference answer."""

    name = "qa"
    critic_prompt = "qa"
    # Quotes go from any word to any word. Two layers save time and were not compared on quality.
    tiny_model = TinyShape(layers=2, longest=20, phrases=False)

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings, DEFAULT_DATA, shapes(settings.context_characters), _answerable)


def is_ultrafeedback(settings: TaskSettings) -> bool:
    """Whether a task's data is UltraFeedback: by its name, or of a file by the shape of its rows.

    Raises:
        UserError: the file cannot be read.
    """
    data = settings.data or DEFAULT_DATA
    if settings.name != QATask.name or "ultrafeedback" in Path(data).name.lower():
        return settings.name == QATask.name
    if not Path(data).is_file():
        return False
    (row,) = load_rows(data, limit=1)
    shape = next((each for each in shapes() if each.keys <= row.keys()), None)
    plain = isinstance(row.get("response"), str)
    return shape is not None and "UltraFeedback" in shape.name and not plain


def shapes(context_characters: int | None = None) -> tuple[Shape, ...]:
    """The published shapes; `context_characters` limits the passages of FineGrainedRLHF's questions."""
    finegrained = partial(finegrained_example, context_characters=context_characters)
    return (
        Shape("FineGrainedRLHF QA", FINEGRAINED_KEYS, finegrained),
        Shape("imported feedback", IMPORTED_KEYS, _imported),
        Shape("UltraFeedback binarized", frozenset({"prompt", "chosen", "rejected"}), _binarized),
        Shape("Text2Grad's UltraFeedback file", frozenset({"prompt", "response"}), _published_code),
        Shape("UltraFeedback", frozenset({"instruction", "completions"}), _ultrafeedback),
        Shape("questions", frozenset({"prompt"}), question_example),
    )


def finegrained_example(row: Row, fallback_id: str, context_characters: int | None = None) -> Example:
    """A FineGrainedRLHF question with its passages.

    The reference is the answer as people corrected it. Where they left nothing of it (13 of the 500 in
    dev_feedback.json), it is the human-written gold answer.
    """
    question = text_of(row, "question")
    feedback = row["feedback"]
    if not isinstance(feedback, dict):
        raise ValueError("feedback is not an object")
    corrected, gold = optional_text(feedback, "corrected-prediction"), optional_text(row, "gold")
    meta = {"dataset": "finegrained_qa", "question": question, "corrected": corrected, "gold": gold}
    prompt = (Message(role="user", content=_with_passages(question, row["passages"], context_characters)),)
    return Example(id=fallback_id, prompt=prompt, reference=corrected or gold, meta=meta)


def _imported(row: Row, fallback_id: str) -> Example:
    """The prompt of a record of ours; its reference is the answer as people corrected it, if they did."""
    record = Feedback.model_validate(row)
    corrected, gold = optional_text(record.meta, "corrected"), optional_text(record.meta, "gold")
    reference = corrected or gold if "corrected" in record.meta else ""
    return Example(id=record.id, prompt=record.prompt, reference=reference, meta=record.meta)


def _answerable(examples: list[Example], data: str) -> list[Example]:
    """Of people's feedback, only what comes with a corrected answer: a SQuALITY review has its question but
    not the story that answers it. Other data is taken whole.
    """
    reviewed = [example for example in examples if "dataset" in example.meta]
    answerable = [example for example in examples if "corrected" in example.meta]
    if reviewed and not answerable:
        raise UserError(
            f"{data} has no answers that people corrected", "text2grad import FineGrainedRLHF's dev_feedback.json"
        )
    return answerable or examples


def passage_sentence(passages: Sequence[Sequence[str]], where: Mapping[str, Any]) -> str:
    """The text behind `{"passage_id": p, "sentence_id": [s, ...]}`: passages count from 1, and sentence 0 is
    the title.

    Raises:
        ValueError: there is no such sentence.
    """
    try:
        passage = _without_repeated_title(passages[_counted(where["passage_id"], 1)])
        return " ".join(passage[_counted(number, 0)].strip() for number in where["sentence_id"])
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"no sentence {dict(where)} in the passages") from error


def _counted(number: Any, first: int) -> int:
    if not isinstance(number, int) or number < first:
        raise IndexError(number)
    return number - first


def _with_passages(question: str, passages: Any, context_characters: int | None) -> str:
    if not isinstance(passages, list) or not all(isinstance(p, list) and len(p) > 1 for p in passages):
        raise ValueError("passages is not a list of [title, sentence, ...]")
    if not all(isinstance(sentence, str) for passage in passages for sentence in passage):
        raise ValueError("a passage has something else than text")
    left = context_characters
    parts = [question]
    for passage in passages:
        title, *sentences = _without_repeated_title(passage)
        if left is not None:
            sentences = _fitting(sentences, left)
            left -= sum(map(len, sentences))
        if sentences:
            parts.append(f"{title}: {' '.join(sentences)}")
    return "\n\n".join(parts)


def _without_repeated_title(passage: Sequence[str]) -> list[str]:
    """[title, sentence, ...]; about half of the published passages repeat the title in the first sentence."""
    title, first, *rest = passage
    return [title, first.removeprefix(f"{title}\n\n"), *rest]


def _fitting(sentences: Sequence[str], characters: int) -> list[str]:
    """Whole sentences from the start that fit into this many characters."""
    written = accumulate(map(len, sentences))
    return [sentence for sentence, end in zip(sentences, written, strict=True) if end <= characters]


def _binarized(row: Row, fallback_id: str) -> Example:
    *prompt, answer = conversation(row["chosen"], "chosen")
    return _example(row, fallback_id, prompt, answer.content)


REMARKED = ("critique", "good", "poor", "spans", "score")
"""Keys of rows that say something of their response: it is not a reference answer."""


def question_example(row: Row, fallback_id: str) -> Example:
    """A question, as text or chat turns, with its reference answer: `reference`, else `response` where nothing is
    said against it, else as it was corrected.
    """
    value = row["prompt"]
    prompt = [Message.model_validate(turn) for turn in value] if isinstance(value, list) and value else None
    prompt = prompt or [Message(role="user", content=text_of(row, "prompt"))]
    turns = isinstance(row.get("response"), list) and any(isinstance(each, dict) for each in row["response"])
    plain = () if turns or any(row.get(name) for name in REMARKED) else ("response",)
    return _example(row, fallback_id, prompt, reference_of(row, "reference", "corrected", *plain))


def _published_code(row: Row, fallback_id: str) -> Example:
    """One row per response; only a chosen one may stand as reference. One without the prompt is an answer."""
    if not repeats_prompt(row):
        return question_example(row, fallback_id)
    *prompt, answer = conversation(row["response"], "response")
    return _example(row, fallback_id, prompt, answer.content if row.get("is_chosen") else "")


def repeats_prompt(row: Mapping[str, Any]) -> bool:
    """Whether a row's response is a conversation from the prompt on, as published, and not what was answered."""
    response = row["response"]
    first = response[0] if isinstance(response, list) and response else None
    return isinstance(first, dict) and ("is_chosen" in row or first.get("content") == row["prompt"])


def _ultrafeedback(row: Row, fallback_id: str) -> Example:
    """The original, four completions each; the reference is the best one, where scores tell which."""
    completions = [completion for completion in row["completions"] if isinstance(completion, dict)]
    scored = [completion for completion in completions if isinstance(completion.get("overall_score"), int | float)]
    best = max(scored, key=lambda completion: float(completion["overall_score"]), default={})
    prompt = [Message(role="user", content=text_of(row, "instruction"))]
    return _example(row, fallback_id, prompt, optional_text(best, "response"))


def conversation(value: Any, key: str) -> list[Message]:
    """The turns of a conversation that ends with an answer; `key` is where it stands.

    Raises:
        ValueError: it is not one.
    """
    if not isinstance(value, list) or len(value) < 2:
        raise ValueError(f"{key!r} is not a conversation that ends with an answer")
    turns = [Message.model_validate(turn) for turn in value]
    if turns[-1].role != "assistant":
        raise ValueError(f"{key!r} does not end with the assistant")
    return turns


def _example(row: Row, fallback_id: str, prompt: Sequence[Message], reference: str) -> Example:
    id = optional_text(row, "prompt_id", "id") or fallback_id
    return Example(id=id, prompt=tuple(prompt), reference=reference)
