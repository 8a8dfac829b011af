"""Find the words of an answer that a comment quotes, without a model.

Only words in quotation marks count, if they occur once in the answer and are not what the comment
proposes instead. Words in parentheses, and words of a comment that occur once in the answer and are
rare in all answers, were measured and left out: annotators mark them in 0 of 12 and 108 of 202
cases (`benchmarks/improve.py`). All other comments count through their score.
"""

from __future__ import annotations

import re

from text2grad.feedback import Place
from text2grad.feedback.locate import find_all
from text2grad.unicode_words import units

QUOTED = re.compile(r"[\"“„«»]([^\"“”„«»\n]{2,200})[\"”“«»]|(?<!\w)['‘‚‹›]([^'‘’‚‹›\n]{2,200})['’‘‹›](?!\w)")
PROPOSES = re.compile(
    r"\b(should|change|to|replace|instead|better|rather|prefer|use|write|say|add|must|correct|like|with|by"
    r"|sollte|statt|stattdessen|lieber|besser|richtig|schreib\w*|ersetz\w*|müsste|muss|durch"
    r"|devrait|plutôt|mieux|remplacer|écrire|par|debería|mejor|cambiar|poner|por"
    r"|dovrebbe|meglio|sostituire|deveria|melhor|trocar|moet|beter|liever)\b[\W\w]{0,12}$",
    re.IGNORECASE,
)
"""Words before a quotation that says what the answer should be."""
PRAISES = re.compile(
    r"\b(good|great|love\w*|like|nice|perfect\w*|excellent|well|right|correct|helpful|clear|thanks?|best|spot on"
    r"|gut\w*|schön\w*|super|prima|toll\w*|perfekt\w*|richtig|gefällt|hilfreich|danke|bien|parfait\w*|merci|exact\w*"
    r"|bueno|buena|perfecto|gracias|bene|ottim\w*|perfetto|grazie|bom|boa|ótim\w*|perfeito|obrigad\w*|goed|mooi|prima)\b",
    re.IGNORECASE,
)
MAX_COMMENT = 400
"""Characters; longer comments also quote their sources."""


def criticises(comment: str, score: float | None) -> bool:
    """True if a comment criticises: its score is not positive, or it has no praise outside quotes.

    A comment with the best score never criticises.
    """
    return (score is not None and score <= 0) or (score != 1 and not PRAISES.search(QUOTED.sub("", comment)))


def find_anchors(comment: str, answer: str) -> list[Place]:
    """Return the places of an answer that a comment quotes without doubt, in order."""
    plain = answer.lower()  # casefold() would move the places: it makes "ß" two letters
    if len(comment) > MAX_COMMENT or len(plain) != len(answer):
        return []
    words = list(units(answer))
    starts, ends = {start for start, _ in words}, {end for _, end in words}
    places: set[Place] = set()
    for quotation in QUOTED.finditer(comment):
        quote = (quotation[1] or quotation[2]).strip(" .,;:!?…").lower()
        if not quote or PROPOSES.search(comment[: quotation.start()]):
            continue
        matches = [start for start in find_all(quote, plain) if start in starts and start + len(quote) in ends]
        if len(matches) == 1:
            places.add((matches[0], matches[0] + len(quote)))
    return sorted(places)
