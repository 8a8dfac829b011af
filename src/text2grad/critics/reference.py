"""Reference critic: compare an answer with the reference, without a model.

It marks shared phrases, invented words and repetitions, and lists what is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from pydantic import Field

from text2grad.critics.closed_class import CLOSED_CLASS
from text2grad.critics.spec import CriticSpec, Need
from text2grad.feedback import Critique, Example, Failure, Judgement, Label, Place, Source, Span
from text2grad.settings import Settings
from text2grad.unicode_words import folded, stem, unspaced, words

GOOD: Label = 1
POOR: Label = -1
# The texts of reasons and titles are part of the critic's output, which reward models imitate.
SHARED, INVENTED, REPEATED = "as a person put it", "nobody wrote this", "said twice"
EXTRA = "after the first line"
TITLES = {SHARED: "Kept", INVENTED: "Nobody wrote", REPEATED: "Said twice", EXTRA: "Too much"}
MAX_FUNCTION_WORDS = 3
"""Occurrences of a function word that are always allowed in a line."""
MAX_QUOTED = 6
"""Words and phrases of one kind that a critique quotes."""


@dataclass(frozen=True)
class Word:
    """A word of a text: the characters [start, end) and its stem in lower case.

    `content` is False for function words; `character` is True for a single character of a script
    without spaces.
    """

    start: int
    end: int
    stem: str
    content: bool
    character: bool = False


class ReferenceSettings(Settings):
    """The reference critic, which compares with the reference answer."""

    brief: bool = Field(
        default=False,
        description="leave out omissions, which a model that has not seen the reference cannot know",
    )


class ReferenceCritic:
    """Judges a one-line answer by `example.reference` and its prompt.

    Good: phrases of the reference, in its order, with at least one content word. Poor: words that
    are neither in the reference nor in the prompt, repeated words (`_labels`), and everything after
    the first line. Omissions are listed in the text, because no span can quote them; `brief` leaves
    them out, because a reward model does not see the reference and could only guess. The score is
    2 F - 1, where F is the ROUGE-L F1 with stemming; words after the first line lower it.
    """

    def __init__(self, brief: bool = False) -> None:
        self.brief = brief
        self.source = Source(kind="program", model="reference", prompt_version="4b" if brief else "4")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Compare every response with its reference; an example without one gives a `Failure`."""
        return [self._judge(*pair) for pair in zip(examples, responses, strict=True)]

    def _judge(self, example: Example, response: str) -> Judgement:
        if not example.reference.strip():
            return Failure(kind="unsupported", message=f"{example.id}: no reference to compare with")
        expected, actual = _parse_words(example.reference), _parse_words(response)
        if not actual:
            return _judge_wordless(response)
        prompt_stems = {word.stem for message in example.prompt for word in _parse_words(message.content)}
        line_end = response.find("\n", actual[0].start)
        first_line = [word for word in actual if line_end < 0 or word.start < line_end]
        shared = longest_common_subsequence([word.stem for word in expected], [word.stem for word in first_line])
        labels = _labels(actual, shared, expected, prompt_stems, len(first_line))
        spans = _spans(response, actual, labels)
        missing = () if self.brief else tuple(_missing(example.reference, expected, actual))
        score = 2 * (2 * len(shared) / (len(expected) + len(actual))) - 1
        return Critique(text=_text(spans, missing), spans=spans, score=score, omissions=missing)


def _parse_words(text: str) -> list[Word]:
    """Return the words of a text in any script, stemmed as ROUGE does (`unicode_words`)."""
    return [
        Word(start, end, stem(word), word not in CLOSED_CLASS, unspaced(word))
        for start, end in words(text)
        for word in [folded(text[start:end])]
    ]


def longest_common_subsequence(expected: Sequence[str], actual: Sequence[str]) -> set[int]:
    """Return the indices in `actual` of one longest common subsequence with `expected`."""
    lengths = [[0] * (len(actual) + 1) for _ in range(len(expected) + 1)]
    for row, left in enumerate(reversed(expected), start=1):
        for column, right in enumerate(reversed(actual), start=1):
            equal = lengths[row - 1][column - 1] + 1 if left == right else 0
            lengths[row][column] = max(equal, lengths[row - 1][column], lengths[row][column - 1])
    indices: set[int] = set()
    row, column = len(expected), len(actual)
    while row and column:
        if expected[-row] == actual[-column]:
            indices.add(len(actual) - column)
            row, column = row - 1, column - 1
        elif lengths[row - 1][column] >= lengths[row][column - 1]:
            row -= 1
        else:
            column -= 1
    return indices


def _labels(
    actual: Sequence[Word], shared: set[int], expected: Sequence[Word], prompt_stems: set[str], first_line: int
) -> list[tuple[Label | None, str]]:
    """Return label and reason of every word.

    A word is repeated too often if it follows itself or occurs more often than in the reference. A
    function word may occur three times in a line; without a limit, a policy finds that `the the
    the` costs nothing. So may a character of a script without spaces, even twice in a row.
    """
    reference_counts, counts, previous = Counter(word.stem for word in expected), Counter[str](), None
    labels: list[tuple[Label | None, str]] = []
    for index, word in enumerate(actual):
        counts[word.stem] += 1
        allowed = max(reference_counts[word.stem], 1 if word.content and not word.character else MAX_FUNCTION_WORDS)
        doubled = previous == word.stem and not word.character
        previous = word.stem
        if index >= first_line:
            labels.append((POOR, EXTRA))
        elif index in shared:
            labels.append((GOOD, SHARED))
        elif word.stem not in reference_counts.keys() | prompt_stems:
            labels.append((POOR, INVENTED))
        else:
            labels.append((POOR, REPEATED) if counts[word.stem] > allowed or doubled else (None, ""))
    return labels


def _spans(response: str, actual: Sequence[Word], labels: Sequence[tuple[Label | None, str]]) -> tuple[Span, ...]:
    """Merge adjacent words of one label; good runs of function words alone are dropped."""
    spans = []
    for (label, reason), run in groupby(zip(labels, actual, strict=True), key=lambda pair: pair[0]):
        words = [word for _, word in run]
        start, end = words[0].start, words[-1].end
        if label is not None and (label == POOR or any(word.content for word in words)):
            spans.append(Span(start=start, end=end, label=label, text=response[start:end], reason=reason))
    return tuple(spans)


def _missing(reference: str, expected: Sequence[Word], actual: Sequence[Word]) -> list[str]:
    """Return the content words of the reference that the answer lacks, as spelled there."""
    answer_stems = {word.stem for word in actual}
    places: list[Place] = []
    for word in expected:
        if not word.content or word.stem in answer_stems:
            continue
        if places and places[-1][1] == word.start:  # join characters of a script without spaces
            places[-1] = places[-1][0], word.end
        else:
            places.append((word.start, word.end))
    return list(dict.fromkeys(reference[start:end] for start, end in places))


def _text(spans: Sequence[Span], missing: Sequence[str]) -> str:
    """Write the critique: the quoted spans by reason, and the missing words."""
    parts = [(title, [span.text for span in spans if span.reason == reason]) for reason, title in TITLES.items()]
    sentences = [f"{title}: {_quote(texts)}." for title, texts in [*parts, ("Missing", list(missing))] if texts]
    return " ".join(sentences) or "Nothing of it is wrong and no phrase is kept."


def _quote(texts: Sequence[str]) -> str:
    return ", ".join(f"'{text}'" for text in texts[:MAX_QUOTED]) + (" and more" if len(texts) > MAX_QUOTED else "")


def _judge_wordless(response: str) -> Critique:
    text = response.strip()
    if not text:
        return Critique(text="The answer is empty.", score=-1.0)
    start = response.index(text)
    span = Span(start=start, end=start + len(text), label=-1, text=text, reason="no words")
    return Critique(text="The answer has no words.", spans=(span,), score=-1.0)


REFERENCE = CriticSpec(
    "reference",
    make=lambda settings, ready: ReferenceCritic(settings.brief),
    settings=ReferenceSettings,
    needs=Need("reference answers", lambda example: bool(example.reference)),
    measures_with=lambda ready: ReferenceCritic(),
    about="compares with the reference answer",
)
