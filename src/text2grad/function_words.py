"""Closed-class English words: what `token_importance` takes for carrying little meaning. No tagger needed."""

from __future__ import annotations

_WORDS = """
a an the this that these those each every either neither some any no all both half several such what which whose
i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers
herself it its itself they them their theirs themselves one oneself who whom someone something anyone anything
everyone everything nobody nothing none
am is are was were be been being do does did doing done have has had having can could may might must shall should
will would ought
about above across after against along among around as at before behind below beneath beside between beyond by
despite down during except for from in inside into like near of off on onto out outside over past per since than
through throughout till to toward towards under until up upon via with within without
and but or nor so yet if unless because although though while whereas whether when whenever where wherever how why
not n't 's 're 've 'll 'd 'm s t re ve ll d m then there here also just only very too quite rather even still again
"""
FUNCTION_WORDS = frozenset(_WORDS.split())


def is_function_word(text: str) -> bool:
    """Whether a token's visible text is a closed-class word or has no letter or digit at all."""
    return text.lower() in FUNCTION_WORDS or not any(character.isalnum() for character in text)
