"""Measure if damaged answers of a judge are ever misread.

Ten kinds of damage, 300 answers each. A damaged answer may be read correctly or refused with a
typed failure. A critique with other spans, score or text than intended is silently wrong, and would
train the policy.

    python benchmarks/parse_damage.py

The last line of stdout is one JSON object. Target: silently_wrong 0 of 3000 cases.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from responses import code, prose, unique_spans
from text2grad.feedback import Critique, Failure
from text2grad.wire import parse, render

COUNT = 300
REMARKS = (
    'It says "next week"; the deadline is Friday.',
    "ratio: 5 {roughly}, see [1].\nThe second line isn't right.",
    'Good start.\nBut: "}, {" is no Python, and C:\\new\\table is no path.',
    "The name is missing, the year too.",
    'He said "yes", "no", and "maybe".',
)
REFUSALS = (
    "I'm sorry, but I can't help with that.",
    "I cannot evaluate this response.",
    "As an AI, I am unable to judge it. Please ask a person.",
    "I can't. The spans would be {good: [], poor: []}.",
)

Damage = Callable[[str, random.Random], str]


def main() -> None:
    dice = random.Random(0)
    responses = [*prose(COUNT), *code(COUNT)]
    wrong = 0
    for name, damage in DAMAGES.items():
        outcomes: Counter[str] = Counter()
        while outcomes.total() < COUNT:
            response = with_quotes(dice.choice(responses), dice)
            expected = critique_of(response, dice)
            z = render(expected, response)
            damaged = damage(z, dice)
            if damaged != z:
                outcomes[outcome(damaged, response, expected)] += 1
        wrong += outcomes["silently wrong"]
        counted = ", ".join(f"{count} {what}" for what, count in sorted(outcomes.items()))
        print(f"{name:<28} {counted}", file=sys.stderr)
    print(json.dumps({"silently_wrong": wrong, "cases": COUNT * len(DAMAGES)}))


def with_quotes(response: str, dice: random.Random) -> str:
    """Put some words of a response in double quotes, so that quotes of it need escapes."""
    words = re.split(r"(\s+)", response)
    for place in dice.sample(range(0, len(words), 2), k=min(4, len(words) // 2)):
        words[place] = f'"{words[place]}",' if dice.random() < 0.5 else f'"{words[place]}"'
    return "".join(words)


def critique_of(response: str, dice: random.Random) -> Critique:
    spans = tuple(
        span.model_copy(update={"reason": dice.choice(("", *REMARKS))})
        for span in unique_spans(response, dice.randrange(1, 7), dice)
    )
    score = dice.choice((None, 1.0, -1.0, 0.25))
    return Critique(text=dice.choice(REMARKS), spans=spans, score=score)


def outcome(damaged: str, response: str, expected: Critique) -> str:
    judgement = parse(damaged, response)
    if isinstance(judgement, Failure):
        return judgement.kind
    is_equal = (judgement.text, judgement.spans, judgement.score) == (expected.text, expected.spans, expected.score)
    return "read as meant" if is_equal else "silently wrong"


def truncated(z: str, dice: random.Random) -> str:
    return z[: dice.randrange(1, len(z))]


def trailing_comma(z: str, dice: random.Random) -> str:
    """Insert a comma before a closing bracket outside strings."""
    strings = [match.span() for match in re.finditer(r'"(?:[^"\\]|\\.)*"', z)]
    places = [
        place
        for place, character in enumerate(z)
        if character in "]}" and not any(start < place < end for start, end in strings)
    ]
    place = dice.choice(places)
    return f"{z[:place]},{z[place:]}"


def raw_newline(z: str, dice: random.Random) -> str:
    return re.sub(r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[0], z)


def unescaped_quote(z: str, dice: random.Random) -> str:
    """Remove the escapes of all quotes, or of one."""
    escapes = [match.start() for match in re.finditer(r"\\(.)", z) if match[1] == '"']
    if dice.random() < 0.5:
        escapes = [dice.choice(escapes)] if escapes else []
    return "".join(character for place, character in enumerate(z) if place not in set(escapes))


def single_quotes(z: str, dice: random.Random) -> str:
    """Return z as Python's repr of a dictionary, or with single quotes for double ones."""
    return repr(json.loads(z)) if dice.random() < 0.5 else z.replace('"', "'")


def refusal(z: str, dice: random.Random) -> str:
    return dice.choice(REFUSALS)


def empty(z: str, dice: random.Random) -> str:
    return dice.choice(("", " ", "\n\n", "{}", "[]", "null", '""', "```json\n```", "N/A"))


def fenced(z: str, dice: random.Random) -> str:
    before = dice.choice(("", "Here is my critique:\n", 'The words "next week" are wrong. '))
    after = dice.choice(("", "\nI hope this helps!", '\nIs "Friday" right?'))
    return f"{before}```{dice.choice(('', 'json'))}\n{z}\n```{after}"


def wrong_schema(z: str, dice: random.Random) -> str:
    value: dict[str, Any] = json.loads(z)
    change = dice.randrange(8)
    if change == 0:
        value = {("verdict" if key == "critique" else key): item for key, item in value.items()}
    elif change == 1:
        del value["good_spans"]
    elif change == 2:
        value["poor_spans"] = "none"
    elif change == 3:
        value["good_spans"] = [[3, 9], 4]
    elif change == 4:
        value["score"] = dice.choice((str(value.get("score")), 5, True, [1], "good"))  # "0.25": a number in quotes
    elif change == 5:
        value["poor_spans"] = [{"text": "Friday"}]
    elif change == 6:
        value["critique"] = [value["critique"]]
    else:
        value["neutral_spans"] = []
    return json.dumps(value, ensure_ascii=False)


def wrong_count(z: str, dice: random.Random) -> str:
    """Repeat the object, add a different one, or drop the closing brace."""
    other = '{"critique": "fine", "good_spans": [], "poor_spans": []}'
    return dice.choice((f"{z}\n{z}", f"{z}\n{other}", f"{other}\n{z}", z[:-1], f"{z[:-1]}\n```"))


DAMAGES: dict[str, Damage] = {
    "truncated": truncated,
    "trailing comma": trailing_comma,
    "raw newline": raw_newline,
    "unescaped inner quote": unescaped_quote,
    "single quotes": single_quotes,
    "refusal": refusal,
    "empty": empty,
    "fence and prose": fenced,
    "wrong keys or types": wrong_schema,
    "two objects or no brace": wrong_count,
}


if __name__ == "__main__":
    main()
