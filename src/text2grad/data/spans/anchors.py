"""Find the words of an answer that a comment quotes, where there is no doubt, without asking a
model.

Only words in quotation marks count that are once in the answer and are not what the comment
proposes in its place. Words in parentheses, and words of a comment that are once in the answer and
rare in all answers, were measured and are left out: people point at them in 0 of 12 and 108 of 202
cases (`benchmarks/improve.py`). Everything else that people wrote counts through its score.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

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
"""The words before a quotation that is what the answer should say."""
PRAISES = re.compile(
    r"\b(good|great|love\w*|like|nice|perfect\w*|excellent|well|right|correct|helpful|clear|thanks?|best|spot on"
    r"|gut\w*|schön\w*|super|prima|toll\w*|perfekt\w*|richtig|gefällt|hilfreich|danke|bien|parfait\w*|merci|exact\w*"
    r"|bueno|buena|perfecto|gracias|bene|ottim\w*|perfetto|grazie|bom|boa|ótim\w*|perfeito|obrigad\w*|goed|mooi|prima)\b",
    re.IGNORECASE,
)
LONGEST = 400
"""Characters of a comment: longer ones quote their sources, too."""


def criticises(comment: str, score: float | None) -> bool:
    """True if a comment finds fault: by its score, or if it praises nothing, outside of what it
    quotes, and does not go with the best score."""
    return (score is not None and score <= 0) or (score != 1 and not PRAISES.search(QUOTED.sub("", comment)))


def find_anchors(comment: str, answer: str) -> list[Place]:
    """The places that a comment quotes for certain, in order."""
    plain = answer.casefold()
    if len(comment) > LONGEST or len(plain) != len(answer):
        return []
    words = list(units(answer))
    starts, ends = {start for start, _ in words}, {end for _, end in words}
    places: set[Place] = set()
    for quote in _quotes(comment):
        matches = [start for start in find_all(quote, plain) if start in starts and start + len(quote) in ends]
        if len(matches) == 1:
            places.add((matches[0], matches[0] + len(quote)))
    return sorted(places)


def _quotes(comment: str) -> Iterator[str]:
    """The quotations of a comment in small letters, without those that are proposals."""
    for match in QUOTED.finditer(comment):
        quote = (match[1] or match[2]).strip(" .,;:!?…").casefold()
        if quote and not PROPOSES.search(comment[: match.start()]):
            yield quote
