"""What is most like a missing quote: the same words as a comparison with every passage finds, in
linear time."""

from __future__ import annotations

import difflib
import random
import time

from text2grad.wire.nearest import MIN_RATIO, find_nearest

DUE = "It is due next week, says the mail. Ann signs it on Monday."
CJK = "报告下周到期，邮件里说是星期五。安娜星期一签字。"
NEAREST = [
    ("next month", DUE, "next week"),
    ("NEXT weak!", DUE, "next week"),
    ("Ann sings it", DUE, "Ann signs it"),
    ("signs on Monday", DUE, "signs it on Monday"),
    *((quote, DUE, "") for quote in ("zebra", "", " ")),
    ("is", "", ""),
    ("邮件里写是星期五", CJK, "邮件里说是星期五"),
    ("Größe", "Die Grösse zählt.", "Grösse"),
]


def test_nearest() -> None:
    assert [find_nearest(quote, text) for quote, text, _ in NEAREST] == [there for *_, there in NEAREST]


def best_ratio(quote: str, text: str) -> float:
    """That of any passage of as many words."""
    words, count = text.split(), len(quote.split())
    passages = (" ".join(words[i : i + count]).strip(".,;:!?") for i in range(len(words) - count + 1))
    return max(ratio(quote, passage) for passage in passages)


def ratio(quote: str, passage: str) -> float:
    return difflib.SequenceMatcher(None, passage.casefold(), quote.casefold(), autojunk=False).ratio()


def test_a_word_that_was_changed_is_found_as_by_comparing_with_every_passage() -> None:
    rng = random.Random(3)
    vocabulary = ["".join(rng.choices("abcdefghij", k=rng.randint(3, 8))) for _ in range(60)]
    worse = 0
    for _ in range(100):
        words = rng.choices(vocabulary, k=80)
        start, count = rng.randrange(70), rng.randint(2, 6)
        quote = words[start : start + count]
        quote[rng.randrange(count)] += "xy"
        text, wanted = " ".join(words), " ".join(quote)
        best, found = best_ratio(wanted, text), find_nearest(wanted, text)
        worse += bool(best > MIN_RATIO and (not found or ratio(wanted, found) < best - 0.02))
    assert worse <= 2


def test_a_thousand_missing_quotes_take_seconds() -> None:
    rng = random.Random(0)
    vocabulary = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(3000)]
    words = rng.choices(vocabulary, k=20_000)
    quotes = [" ".join([*words[i : i + 4], "zzz"]) for i in rng.sample(range(19_000), 1000)]
    text, began = " ".join(words), time.process_time()
    assert all(find_nearest(quote, text) for quote in quotes)
    assert time.process_time() - began < 30, "comparing with every passage took 360 seconds"
