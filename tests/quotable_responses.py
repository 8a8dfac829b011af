"""Responses that are hard to quote, and any critique of them: for the tests of z and of grounded
decoding."""

from __future__ import annotations

from hypothesis import strategies as st

from text2grad.feedback import Critique, Message, Span, Transcript, turns_of

TOOL = Message(role="tool", content="the dog")
HOSTILE: dict[str, str] = {
    "prose": "The summary leaves out the deadline; 'next week' is wrong, and the author never said so.",
    "empty": "",
    "one character": "a",
    "a quotation mark": '"',
    "a backslash": "\\",
    "blank": "  \n\n ",
    "quotes": 'She said "yes", "no", and "maybe". "yes", "no"!',
    "escapes": 'C:\\new\\table \\" \\\\ \t\r\n\x00\x1f\x7f end\\',
    "scripts": "🙂🙂 👩‍💻 naïve façade 日本語の文章です。ไทย Привет, мир! 🙂",
    "our format": '{"critique": "x", "good_spans": [{"quote": "a", "occurrence": 2}, "b"], "poor_spans": []}',
    "separators": 'x", "y", "x", "occurrence": 2, "x", "part": true, "x", "reason": "x", "',
    "repeats": "the cat the cat the cat the cat",
    "one letter": "a" * 60,
    "repeated whole": ("The end is near. " * 3).strip(),
    "code": "def f(x):\n    return dp[i-1][j] + dp[i][j-1]\n\n\ndef f(x):\n    return [\"a\", 'b']\n",
    "odd spaces": "a\r\nb\u2028c\x85d\u00a0 ",
    "half a character": "a \ud800 b",
    "turns": Transcript.of([((), "the cat"), ([TOOL], ""), ([TOOL], "the cat sat. the cat"), ((), "sat")], [TOOL]),
    "turns without words": Transcript.of([((), ""), ([TOOL], ""), ((), "")]),
    "control": "so</s> <|im_end|>\n<|im_start|>assistant\n{}<|im_end|> <|end|>",
}

# Pieces that make quotes hard: repeats, word parts, quotes, escapes, separators of JSON, scripts
# without spaces.
PIECES = (
    *("art", "start", "_1", "7", "é", "e\u0301", "会议", "語", "🙂", "👩‍👩‍👧", "ส"),
    *(" ", "\n\n", "\r\n", "\t", "\x00", "\u00a0"),
    *('"', "'", "\\", "{", "}", "[", "]", "\\n", "\\u00e9"),
    *('", "', "', '", '": "', '"}, {"', '", "reason": "'),
)
TEXTS = st.one_of(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.text(max_size=30))
REASONS = st.one_of(st.just(""), st.sampled_from(('wrong: it\'s "Friday"', "a\nb", "}, {")), st.text(max_size=8))


TRANSCRIPTS = st.builds(
    Transcript.of,
    st.lists(
        st.tuples(st.lists(st.builds(Message, role=st.just("tool"), content=TEXTS), max_size=1), TEXTS),
        min_size=1,
        max_size=4,
    ),
)


@st.composite
def judged(draw: st.DrawFn) -> tuple[Critique, str]:
    """A response of one turn or several, and a critique of it with any spans whatever, in the order
    `parse` returns them."""
    response = draw(st.one_of(TEXTS, TRANSCRIPTS).filter(bool))
    edges = st.tuples(st.integers(0, len(response) - 1), st.integers(1, len(response)))
    drawn = draw(st.lists(st.tuples(edges, st.sampled_from((1, 0, -1)), REASONS), max_size=6))
    spans: dict[tuple[int, int, int], Span] = {}
    for (start, end), label, reason in drawn:
        if start < end and any(turn.start <= start and end <= turn.end for turn in turns_of(response)):
            quote = response[start:end]
            spans[start, end, -label] = Span(start=start, end=end, label=label, text=quote, reason=reason)
    score = draw(st.none() | st.floats(-1, 1))
    in_order = tuple(spans[place] for place in sorted(spans))
    return Critique(text=draw(TEXTS), spans=in_order, score=score), response
