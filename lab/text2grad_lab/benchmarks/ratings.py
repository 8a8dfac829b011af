"""MT-Bench: judge prompts, parsing of ratings, and their means (Zheng et al. 2023).

Prompts and formats are FastChat's, so that judgement files are interchangeable.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.chat import Answer, Chat, Completion
from text2grad.data.files import Row, convert_rows, read_rows, required_text
from text2grad.errors import UserError
from text2grad.eval.metrics import mean
from text2grad.feedback import Example, Message
from text2grad_lab.benchmarks.mt_bench import CATEGORY, REFERENCES, TURNS

PROMPTS = "judge_prompts.jsonl"
FAILED = -1.0
"""The `score` of a judgement without a rating, as in FastChat's files; it is never averaged."""
_RATINGS = (re.compile(r"\[\[(\d+\.?\d*)\]\]"), re.compile(r"\[(\d+\.?\d*)\]"))
_HOLE = re.compile(r"\{(question|answer|question_1|question_2|answer_1|answer_2|ref_answer_1|ref_answer_2)\}")


class JudgePrompt(NamedTuple):
    """One of FastChat's prompts: the system message, and the user's with placeholders."""

    name: str
    system: str
    template: str


def read_prompts(folder: Path) -> dict[str, JudgePrompt]:
    """Return the judge's prompts of an MT-Bench folder by name.

    Raises:
        UserError: the file or a prompt that rates single answers is missing.
    """
    keys = frozenset({"name", "system_prompt", "prompt_template"})

    def convert(row: Row, _: str) -> list[JudgePrompt]:
        return [
            JudgePrompt(
                required_text(row, "name"), str(row["system_prompt"]), required_text(row, "prompt_template")
            )
        ]

    rows = convert_rows(read_rows(folder / PROMPTS), folder / PROMPTS, keys, convert, "judge prompt")
    prompts_by_name = {prompt.name: prompt for prompt in rows}
    names = [f"single{math}-v1{turns}" for math in ("", "-math") for turns in ("", "-multi-turn")]
    if missing := [name for name in names if name not in prompts_by_name]:
        raise UserError(f"{folder / PROMPTS} has no prompt {missing[0]!r}", "use FastChat's file")
    return prompts_by_name


def rating_messages(
    prompts: Mapping[str, JudgePrompt], example: Example, answers: Sequence[str]
) -> tuple[JudgePrompt, list[Message]]:
    """Return the judge's prompt and messages for the last turn in `answers`.

    Placeholders are filled in one pass, so braces in an answer are left unchanged.
    """
    kind = "single-math-v1" if example.meta[REFERENCES] else "single-v1"
    prompt = prompts[f"{kind}-multi-turn" if len(answers) > 1 else kind]
    filling = {"question": example.meta[TURNS][0], "answer": answers[0]}
    columns = {"question": example.meta[TURNS], "answer": answers, "ref_answer": example.meta[REFERENCES]}
    for name, texts in columns.items():
        filling |= {f"{name}_{number}": text for number, text in enumerate(texts, start=1)}
    text = _HOLE.sub(lambda hole: filling.get(hole[1], ""), prompt.template)
    return prompt, [Message(role="system", content=prompt.system), Message(role="user", content=text)]


def rating_of(answer: Answer | str) -> float | None:
    """Return a judge's rating, the first in [[...]], else in [...]; None unless it is 0 to 10."""
    text = answer.text if isinstance(answer, Completion) else answer if isinstance(answer, str) else ""
    rating_match = next((match for pattern in _RATINGS if (match := pattern.search(text))), None)
    rating = float(rating_match[1]) if rating_match else None
    return rating if rating is not None and rating <= 10 else None


def rate(
    chat: Chat,
    prompts: Mapping[str, JudgePrompt],
    examples: Sequence[Example],
    answers: Mapping[str, Sequence[str]],
) -> list[Row]:
    """Rate every turn of every answer.

    Returns:
        Rows in the format of FastChat's `model_judgment` with the question's `category`; `score` is
        -1 without a rating.
    """
    turns = [
        (example, list(answers[example.id][:n]))
        for example in examples
        for n in range(1, 1 + len(answers[example.id]))
    ]
    requests = [rating_messages(prompts, *turn) for turn in turns]
    replies = chat.complete([messages for _, messages in requests])
    return [
        {
            "question_id": example.id,
            "category": example.meta[CATEGORY],
            "judge": [chat.name, prompt.name],
            "user_prompt": messages[-1].content,
            "judgment": answer.text if isinstance(answer, Completion) else f"{answer.kind}: {answer.message}",
            "score": FAILED if (rating := rating_of(answer)) is None else rating,
            "turn": len(so_far),
        }
        for (example, so_far), (prompt, messages), answer in zip(turns, requests, replies, strict=True)
    ]


def means(judgements: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return mean ratings: `mt_bench` over all, `turn_1`, `turn_2`, and each category in the rows.

    `judge_failed` counts rows without a rating (-1), `judged` the others.
    """
    ratings: defaultdict[str, list[float]] = defaultdict(list)
    failed = 0
    for row in judgements:
        if row["score"] == FAILED:
            failed += 1
            continue
        for name in ("mt_bench", f"turn_{row['turn']}", *filter(None, [row.get("category")])):
            ratings[name].append(float(row["score"]))
    mean_ratings = {
        name: mean(values) for name, values in sorted(ratings.items(), key=lambda pair: pair[0] != "mt_bench")
    }
    return {**mean_ratings, "judged": float(len(ratings["mt_bench"])), "judge_failed": float(failed)}
