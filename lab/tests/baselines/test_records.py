"""Records that the baselines train on."""

from __future__ import annotations

import pytest

from text2grad.errors import UserError
from text2grad.feedback import Feedback, Message, Source, Transcript
from text2grad_lab.baselines.records import refuse_transcripts

ASK = (Message(role="user", content="How many?"),)


def test_transcripts_are_refused_with_their_number() -> None:
    turns = Transcript.of([([], "one"), ([Message(role="user", content="And now?")], "two")])
    responses = (turns, "7", turns)
    source = Source(kind="program")
    records = [Feedback(id=str(n), prompt=ASK, response=text, source=source) for n, text in enumerate(responses)]
    refuse_transcripts(records[1:2], "refine")
    with pytest.raises(UserError, match="refine learns from single answers, and 2 of 3 records"):
        refuse_transcripts(records, "refine")
