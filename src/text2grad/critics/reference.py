"""A program that compares an answer with what a person wrote: phrases kept, invented words, what is
missing."""

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
KEPT, INVENTED, AGAIN, BEYOND = "as a person put it", "nobody wrote this", "said twice", "after the first line"
TITLES = {KEPT: "Kept", INVENTED: "Nobody wrote", AGAIN: "Said twice", BEYOND: "Too much"}
FUNCTION_WORD_TIMES = 3  # how often a function word may occur in a line, whatever the reference says
NAMED = 6  # words and phrases of a kind that a critique names


@dataclass(frozen=True)
class Word:
    """A word of a text: where it is, its stem in small letters, whether it says something by
    itself, as articles and prepositions do not, and whether it is a mere character of a script
    without spaces.
    """

    start: int
    end: int
    stem: str
    content: bool
    character: bool = False


class ReferenceSettings(Settings):
    """The reference critic: the answer that a person wrote."""

    brief: bool = Field(
        default=False,
        description="leave out omissions, which a model that has not seen the reference cannot know",
    )


class ReferenceCritic:
    """Judges a one-line answer by `example.reference` and the prompt it was made from.

    Good: phrases that stand in the reference in the same order and hold a word of content. Poor:
    words that stand neither in the reference nor in the prompt, words said again (`_labels`), and
    everything after the first line. What the reference says and the answer does not is named in
    words, for no span can point at it; with `brief` it is not, for a reward model, which does not
    see the reference, could only guess at it. The score is 2 F - 1, F the ROUGE-L F1 with stemming;
    words after the first line count against it.
    """

    def __init__(self, brief: bool = False) -> None:
        self.brief = brief
        self.source = Source(kind="program", model="reference", prompt_version="4b" if brief else "4")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Compare every response with its reference; an example without one gives a `Failure`."""
        return [self._one(*each) for each in zip(examples, responses, strict=True)]

    def _one(self, example: Example, response: str) -> Judgement:
        if not example.reference.strip():
            return Failure(kind="unsupported", message=f"{example.id}: no reference to compare with")
        wanted, said = self._read(example.reference), self._read(response)
        if not said:
            return _without_words(response)
        source = {word.stem for message in example.prompt for word in self._read(message.content)}
        ends = response.find("\n", said[0].start)
        first_line = [word for word in said if ends < 0 or word.start < ends]
        kept = common([word.stem for word in wanted], [word.stem for word in first_line])
        labels = _labels(said, kept, wanted, source, len(first_line))
        spans = _spans(response, said, labels)
        missing = () if self.brief else tuple(_missing(example.reference, wanted, said))
        score = 2 * (2 * len(kept) / (len(wanted) + len(said))) - 1
        return Critique(text=_text(spans, missing), spans=spans, score=score, omissions=missing)

    def _read(self, text: str) -> list[Word]:
        """The words of a text in any script, stemmed as ROUGE does it (`unicode_words`)."""
        return [
            Word(start, end, stem(word), word not in CLOSED_CLASS, unspaced(word))
            for start, end in words(text)
            for word in [folded(text[start:end])]
        ]


def common(wanted: Sequence[str], said: Sequence[str]) -> set[int]:
    """Places in `said` of one longest common subsequence with `wanted`."""
    lengths = [[0] * (len(said) + 1) for _ in range(len(wanted) + 1)]
    for row, one in enumerate(reversed(wanted), start=1):
        for column, other in enumerate(reversed(said), start=1):
            equal = lengths[row - 1][column - 1] + 1 if one == other else 0
            lengths[row][column] = max(equal, lengths[row - 1][column], lengths[row][column - 1])
    found: set[int] = set()
    row, column = len(wanted), len(said)
    while row and column:
        if wanted[-row] == said[-column]:
            found.add(len(said) - column)
            row, column = row - 1, column - 1
        elif lengths[row - 1][column] >= lengths[row][column - 1]:
            row -= 1
        else:
            column -= 1
    return found


def _labels(
    said: Sequence[Word], kept: set[int], wanted: Sequence[Word], source: set[str], first_line: int
) -> list[tuple[Label | None, str]]:
    """Return label and reason of every word.

    A word is said too often if it is repeated directly, or stands more often than in the reference.
    A function word may stand three times in a line, as may a character of a script without spaces,
    also twice in a row; with no limit a policy finds that `the the the` costs nothing.
    """
    most, times, before = Counter(word.stem for word in wanted), Counter[str](), None
    labels: list[tuple[Label | None, str]] = []
    for index, word in enumerate(said):
        times[word.stem] += 1
        allowed = max(most[word.stem], 1 if word.content and not word.character else FUNCTION_WORD_TIMES)
        twice = before == word.stem and not word.character
        before = word.stem
        if index >= first_line:
            labels.append((POOR, BEYOND))
        elif index in kept:
            labels.append((GOOD, KEPT))
        elif word.stem not in most.keys() | source:
            labels.append((POOR, INVENTED))
        else:
            labels.append((POOR, AGAIN) if times[word.stem] > allowed or twice else (None, ""))
    return labels


def _spans(response: str, said: Sequence[Word], labels: Sequence[tuple[Label | None, str]]) -> tuple[Span, ...]:
    """Runs of words of one label; a good run of function words alone does not count."""
    spans = []
    for (label, reason), run in groupby(zip(labels, said, strict=True), key=lambda pair: pair[0]):
        words = [word for _, word in run]
        start, end = words[0].start, words[-1].end
        if label is not None and (label == POOR or any(word.content for word in words)):
            spans.append(Span(start=start, end=end, label=label, text=response[start:end], reason=reason))
    return tuple(spans)


def _missing(reference: str, wanted: Sequence[Word], said: Sequence[Word]) -> list[str]:
    """Content words of the reference that the answer lacks, as written in the reference."""
    there = {word.stem for word in said}
    lacking: list[Place] = []
    for word in wanted:
        if not word.content or word.stem in there:
            continue
        if lacking and lacking[-1][1] == word.start:  # characters that no space parts are named as one
            lacking[-1] = lacking[-1][0], word.end
        else:
            lacking.append((word.start, word.end))
    return list(dict.fromkeys(reference[start:end] for start, end in lacking))


def _text(spans: Sequence[Span], missing: Sequence[str]) -> str:
    """The critique in words."""
    parts = [(title, [span.text for span in spans if span.reason == reason]) for reason, title in TITLES.items()]
    named = [f"{title}: {_quoted(texts)}." for title, texts in [*parts, ("Missing", list(missing))] if texts]
    return " ".join(named) or "Nothing of it is wrong and no phrase is kept."


def _quoted(texts: Sequence[str]) -> str:
    return ", ".join(f"'{text}'" for text in texts[:NAMED]) + (" and more" if len(texts) > NAMED else "")


def _without_words(response: str) -> Critique:
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
