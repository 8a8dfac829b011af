"""Classify a reviewer's comment as praise or criticism by its first words.

Word lists are used, not a model. A comment gets a label if it *starts* with a verdict ("Incorrect:
he never left", "This is an excellent description"), has no word of the opposite polarity, and
expresses no doubt. Other comments ("comma?", "who is they", "") have no polarity: their text is
kept, but their spans are not rewarded.
"""

from __future__ import annotations

import re

from text2grad.feedback import Label

_SUBJECT = (
    r"(?:(?:also|again),? )?"
    r"(?:(?:this|that|it|these|the)(?: (?:whole|entire|first|last))?"
    r"(?: (?:response|summary|description|answer|sentence|statement|transition|section|part|detail|word)s?)?"
    r"(?: (?:is|was|are|seems|feels|offers) |'s ))?"
    r"(?:(?:an?|all|both|just|so|very|really|completely|totally|entirely|quite) )*"
)
_FALSE = r"(?:not|isn't|wasn't|aren't|is not|are not) (?:true|accurate|correct|right)"
_FAULT = (
    r"(?:incorrect|inaccurate|untrue|wrong|false|contradictory|contradicts|redundant|irrelevant|unrelated"
    r"|repeat(?:s|ed|ing)?|repetiti(?:ve|ous|on)|repetetive|awkward|clunky|confusing|unclear|vague|nonsense"
    r"|typos?|misspell(?:ed|ing)?|sentence fragment|spelled wrong|wrong story|not a full (?:sentence|clause)"
    r"|not in the (?:story|text)|makes no sense|(?:doesn't|does not) make (?:any )?sense)"
)
_ALL_FALSE = (
    r"(?:none|neither) of (?:this|these|the|it)\b[\w ]*? (?:is|are|was|were|happened|occur(?:s|red)?|reflects"
    r"|resembles|has)\b(?: in any way)?(?: (?:true|accurate|correct))?"
)
_PRAISE = (
    r"(?:good|great|excellent|strong|comprehensive|nice|perfect|accurate|correct|true"
    r"|well[- ](?:said|written|done|put|phrased|explained))(?! (?:place|opportunity|idea|time|way|word))"
)
_OPENS_WITH_FAULT = re.compile(rf"^(?:{_ALL_FALSE}|{_SUBJECT}(?:{_FALSE}|{_FAULT}))(?![\w'])")
_THIS_IS_FALSE = re.compile(rf"^(?:this|that|it|these) {_FALSE}(?![\w'])")
_OPENS_WITH_PRAISE = re.compile(rf"^{_SUBJECT}{_PRAISE}(?![\w'])")
_WORD_OF_FAULT = re.compile(rf"\b(?:{_FAULT}|{_FALSE}|in(?:correct|accurate)\w*|incorret|miss(?:es|ing)?|lacks?)\b")
_WORD_OF_PRAISE = re.compile(rf"\b(?:{_PRAISE}|better|well|clever|creative|interesting|most(?:ly)? true)\b")
_DOUBT = re.compile(
    r"\?|\b(?:not sure|unsure|maybe|perhaps|might|may be|probably|i think|either|or beyond|partially)\b"
)
_RESERVATION = re.compile(
    r"\b(?:but|though|although|however|except|yet|only|until|cuts off|some|too|no|not|\w+n't"
    r"|could|would|should)\b"
)


def polarity(comment: str) -> Label | None:
    """Return 1 for praise, -1 for criticism, None if the first words are no clear verdict.

    Criticism followed by praise or doubt has no polarity. Neither has praise with a reservation,
    because "a great start, but ..." praises less than the highlight.
    """
    words = " ".join(comment.replace("’", "'").casefold().split())
    if _DOUBT.search(words):
        return None
    fault = _OPENS_WITH_FAULT.search(words) or _THIS_IS_FALSE.search(words)
    if fault:
        return None if _WORD_OF_PRAISE.search(words, fault.end()) else -1
    if not _OPENS_WITH_PRAISE.search(words) or _WORD_OF_FAULT.search(words) or _RESERVATION.search(words):
        return None
    return 1
