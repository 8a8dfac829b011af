"""Credit schemes of the baselines, named `text2grad_lab.baselines.schemes:NAME` in `credit.scheme`.

`dense_labels` rewards each token with its label (the dense reward of the paper's Tables 2 and 11),
`step_end` the last token of each span (PRM-PPO, appendix N), `turn_end` the last token of each turn
of an agent, `turn_tokens` every token of it. `linear_decay`, `token_importance` and `nouns_verbs`
weigh the tokens within a span (appendix I.1).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray

from text2grad.align import Aligned, Credit, CreditScheme, CreditSettings
from text2grad.align.credit import Flags, Weights, membership, signed_union, span_credit, span_labels
from text2grad.critics.closed_class import CLOSED_CLASS
from text2grad.errors import UserError
from text2grad.feedback import Critique
from text2grad.unicode_words import folded, units

LAST_OF_DECAY = 0.1
"""Linear decay: the weight of a span's last token (paper, appendix I.1)."""
FUNCTION_WORD = 0.2
"""Token importance: the weight of words and signs without content (paper, appendix I.1)."""
_TAGS = ("NN", "VB")  # prefixes of the Penn Treebank's tags of nouns and verbs


def _label_credit(critique: Critique, aligned: Aligned, settings: CreditSettings, ends: bool = False) -> Credit:
    """Reward each token with its label, good +1 and poor -1; no weights, no verdict.

    With `ends` only the last token of a span has its label. A token with contradictory labels earns
    0.
    """
    spans = [span for span in critique.spans if span.label]
    members = membership(spans, aligned)
    if ends:
        members = _last(members)
    labels = signed_union(members, span_labels(spans))
    return Credit(
        labels.astype(np.float32),
        labelled=int(np.count_nonzero(labels)),
        cancelled=int(np.count_nonzero(members.any(axis=0) & (labels == 0))),
        uncovered=len(members) - int(np.count_nonzero(members.any(axis=1))),
    )


def _last(members: Flags) -> Flags:
    """Keep the last token of each span, (S, T)."""
    after = np.cumsum(members[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(members & (after == 1))


def _turn_credit(critique: Critique, aligned: Aligned, settings: CreditSettings, ends: bool) -> Credit:
    """Reward each token of a turn: -1 if the turn has a poor span, +1 if it has only good ones.

    With `ends` only the last token of the turn has the number. The verdict is paid as with spans.
    """
    members, labels = membership(critique.spans, aligned), span_labels(critique.spans)
    good, poor = (np.asarray(members[labels * sign > 0].any(axis=0)) for sign in (1, -1))  # (T,)
    numbers = np.zeros(len(aligned), dtype=np.float32)
    for start, end in pairwise((0, *(aligned.turn_ends or (len(aligned),)))):
        if start < end:
            number = -1 if poor[start:end].any() else good[start:end].any()
            numbers[end - 1 if ends else start : end] = number
    verdict = span_credit(critique.model_copy(update={"spans": ()}), aligned, settings)
    return replace(verdict, delta=verdict.delta + numbers, labelled=int(np.count_nonzero(numbers)))


def _decay(members: Flags, aligned: Aligned, settings: CreditSettings) -> Weights:
    """Return 1 - (i - 1) * 0.9 / (n - 1) for the i-th of a span's n tokens, (S, T)."""
    place = np.cumsum(members, axis=1) - 1
    steps = np.maximum(members.sum(axis=1, keepdims=True) - 1, 1)
    return np.asarray(1 - place * (1 - LAST_OF_DECAY) / steps)


CharacterFlags = Callable[[str], NDArray[np.bool_]]


def _importance(
    members: Flags, aligned: Aligned, settings: CreditSettings, content: CharacterFlags
) -> NDArray[np.float64]:
    """Return 1 for tokens with a character of a content word, `FUNCTION_WORD` for others, (T,)."""
    before = np.concatenate(([0], np.cumsum(content(aligned.text))))
    has_content = before[aligned.core_ends] > before[aligned.core_starts]
    return np.where(has_content, 1.0, FUNCTION_WORD)


_WORD = regex.compile(r"[\w\p{M}]+(?:['’][\w\p{M}]+)*")  # with apostrophes inside, as in don't


def content_characters(text: str) -> NDArray[np.bool_]:
    """Flag the characters of content words: those not in the list of English function words."""
    content = np.zeros(len(text), dtype=np.bool_)
    for word in _WORD.finditer(text):
        content[word.start() : word.end()] = folded(word[0]).replace("’", "'") not in CLOSED_CLASS
    return content


def noun_and_verb_characters(text: str) -> NDArray[np.bool_]:
    """Flag the characters of nouns and verbs by TextBlob's tagger; unknown words are nouns.

    Raises:
        UserError: textblob is not installed.
    """
    flags = np.zeros(len(text), dtype=np.bool_)
    for line_start, line in _lines(text):
        places = list(units(line))
        tags = _tagger().tag(" ".join(line[start:end] for start, end in places), tokenize=False)
        for (start, end), (_, tag) in zip(places, tags, strict=True):
            word = any(map(str.isalnum, line[start:end]))
            flags[line_start + start : line_start + end] = word and tag.startswith(_TAGS)
    return flags


def _lines(text: str) -> list[tuple[int, str]]:
    """Return non-blank lines with their offsets."""
    start, lines = 0, []
    for line in text.splitlines(keepends=True):
        if line.strip():
            lines.append((start, line))
        start += len(line)
    return lines


@cache
def _tagger() -> Any:
    try:
        from textblob.taggers import PatternTagger
    except ModuleNotFoundError as error:
        raise UserError("the scheme nouns_verbs needs textblob", "pip install textblob") from error
    tagger = PatternTagger()
    with warnings.catch_warnings():  # the first call reads the lexicon and leaves the file open
        warnings.simplefilter("ignore", ResourceWarning)
        tagger.tag("lexicon", tokenize=False)
    return tagger


dense_labels = CreditScheme(_label_credit)
"""A label per token, for a critic that labels tokens."""
step_end = CreditScheme(partial(_label_credit, ends=True))
"""The label of a span at its last token, for a critic that labels steps."""
turn_end = CreditScheme(partial(_turn_credit, ends=True))
"""One number for each turn at its last token, from the spans in the turn."""
turn_tokens = CreditScheme(partial(_turn_credit, ends=False))
"""The same number at every token of the turn."""
linear_decay = CreditScheme(partial(span_credit, token_weights=_decay))
"""Spans whose tokens weigh less from the first to the last."""
token_importance = CreditScheme(
    partial(span_credit, token_weights=partial(_importance, content=content_characters))
)
"""Spans whose function words and punctuation weigh less."""
nouns_verbs = CreditScheme(
    partial(span_credit, token_weights=partial(_importance, content=noun_and_verb_characters))
)
"""Spans in which only nouns and verbs have full weight, as in the paper; needs textblob."""
