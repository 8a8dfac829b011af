"""The critic that compares with a person's line: what is praised, what is blamed, what is said to
be missing."""

from __future__ import annotations

import pytest
from rouge_score.rouge_scorer import RougeScorer

from text2grad.critics.reference import ReferenceCritic, longest_common_subsequence
from text2grad.feedback import Critique, Example, Failure, Message

REFERENCE = "Return the names of all open files."
PROMPT = "open files (path)\nClosed ones are not listed."


def judged(response: str, reference: str = REFERENCE) -> Critique:
    example = Example(id="a", prompt=(Message(role="user", content=PROMPT),), reference=reference)
    (found,) = ReferenceCritic().critique([example], [response])
    assert isinstance(found, Critique)
    assert all(response[span.start : span.end] == span.text for span in found.spans)
    return found


LABELS: dict[str, list[tuple[str, int]]] = {
    "Return the names of a purple elephant.": [("Return the names of", 1), ("a purple elephant", -1)],
    "returned the name of all open file": [("returned the name of all open file", 1)],
    "Closed open files.": [("open files", 1)],  # a word of the prompt alone is neither good nor poor
    "The zebra of": [("zebra", -1)],  # function words are no phrase
    "open files files files": [("open files", 1), ("files files", -1)],
    "the open files of the": [("the open files", 1)],
    "the the the the open files": [("the the the", -1), ("open files", 1)],
    "of the open files of the path of the path": [("open files", 1), ("path", -1)],
    "of open of path of files of": [("of open", 1), ("files", 1), ("of", -1)],
    "\nopen files\nReturn the names": [("open files", 1), ("Return the names", -1)],  # one line is asked for
    " ...!": [("...!", -1)],
    "": [],
    "  \n ": [],
}


def test_phrases_of_the_reference_are_good_and_invented_or_repeated_words_poor() -> None:
    found = {response: [(span.text, span.label) for span in judged(response).spans] for response in LABELS}
    assert found == LABELS


def test_what_is_missing_and_the_score() -> None:
    found = judged("Return the names of a purple elephant.")
    assert found.omissions == ("open", "files")
    assert found.text == (
        "Kept: 'Return the names of'. Nobody wrote: 'a purple elephant'. Missing: 'open', 'files'."
    )
    all_of_it = judged("returned the name of all open file")
    assert (all_of_it.score, all_of_it.omissions) == (1.0, ())
    assert judged("open files\nReturn the names").score == pytest.approx(2 * (2 * 2 / (7 + 5)) - 1)
    assert {judged(response).score for response in ("", "  \n ", " ...!")} == {-1.0}


def test_a_function_word_is_one_by_its_letters_and_not_by_its_stem() -> None:
    """The stem of `this` is `thi`, which is in no list."""
    found = judged("this file and this file", reference="Read this file and what it holds")
    assert [(span.text, span.label) for span in found.spans] == [("this file and", 1), ("file", -1)]


@pytest.mark.parametrize(
    "response", ["Return open files", "files of all names", "the the the open names of names", "frob"]
)
def test_the_score_is_rouge_l(response: str) -> None:
    rouge = RougeScorer(["rougeL"], use_stemmer=True).score(REFERENCE, response)["rougeL"].fmeasure
    assert judged(response).score == pytest.approx(2 * rouge - 1)


def test_brief_it_does_not_name_what_only_the_reference_says() -> None:
    example = Example(id="a", prompt=(Message(role="user", content=PROMPT),), reference=REFERENCE)
    full, short = (ReferenceCritic(brief).critique([example], ["files frob"])[0] for brief in (False, True))
    assert isinstance(full, Critique) and isinstance(short, Critique)
    assert full.omissions and full.text == f"{short.text} {full.text[full.text.index('Missing: ') :]}"
    assert short.omissions == () and (short.spans, short.score) == (full.spans, full.score)


def test_without_a_reference_there_is_no_verdict() -> None:
    example = Example(id="a", prompt=(Message(role="user", content=PROMPT),))
    (found,) = ReferenceCritic().critique([example], ["Return it."])
    assert isinstance(found, Failure) and "a: no reference" in found.message


def test_the_common_words_stand_in_the_same_order() -> None:
    assert longest_common_subsequence(list("abcd"), list("daxbd")) == {1, 3, 4}
    assert longest_common_subsequence([], ["a"]) == longest_common_subsequence(["a"], []) == set()
