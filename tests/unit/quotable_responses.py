"""Responses that are hard to quote, and any critique of them: for the tests of z and of grounded decoding."""

from __future__ import annotations

HOSTILE = {
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
}
