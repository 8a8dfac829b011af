"""The answer format z: what is rendered is read back exactly, and nothing damaged is read as something else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given

from quotable_responses import TEXTS, judged
from text2grad.feedback import Critique, Failure, Span
from text2grad.wire import json_schema, parse, render

RESPONSE = "The start of the art fair moved; the art is late."


def ask(good: Any = (), poor: Any = (), **more: Any) -> str:
    return json.dumps({"critique": "Late.", "good_spans": good, "poor_spans": poor, **more})


def read(z: str, response: str = RESPONSE) -> Critique:
    judgement = parse(z, response)
    assert isinstance(judgement, Critique), judgement
    return judgement


def refused(z: str, response: str = RESPONSE) -> str:
    judgement = parse(z, response)
    assert isinstance(judgement, Failure), judgement
    return judgement.kind


def places(critique: Critique) -> list[tuple[int, int, int]]:
    return [(span.start, span.end, span.label) for span in critique.spans]


@given(judged())
def test_what_is_rendered_is_read_back(case: tuple[Critique, str]) -> None:
    critique, response = case
    assert parse(render(critique, response), response) == critique


@given(judged())
@example((Critique(text="", spans=()), "x"))
def test_every_cut_is_truncated_and_never_read(case: tuple[Critique, str]) -> None:
    critique, response = case
    z = render(critique, response)
    for cut in range(1, len(z)):
        assert refused(z[:cut], response) in ("truncated", "invalid")


def test_a_plain_quote_stays_a_plain_string_and_the_critique_comes_first() -> None:
    span = Span(start=17, end=25, label=1, text="art fair")
    z = render(Critique(text="Late.", spans=(span,)), RESPONSE)
    assert z == '{"critique": "Late.", "good_spans": ["art fair"], "poor_spans": []}'


def test_render_refuses_a_span_of_another_text() -> None:
    with pytest.raises(ValueError):
        render(Critique(text="", spans=(Span(start=0, end=3, label=1, text="Une"),)), RESPONSE)


# --- which characters a quote means


PROGRAM = "def f(x):\n    y = x\n        return y\n"
LINE = "dp[i][j]=max(dp[i-1][j],dp[i][j-1])+1"
QUOTED: list[tuple[str, list[Any], list[tuple[int, int]]]] = [
    ("The start of art.", ["art"], [(13, 16)]),
    *((joined, ["art"], []) for joined in ("art_1", "art2", "éart", "Smart", "artÄ", "art\u0301", "A start.")),
    ("会议改到星期五了。", ["星期五"], [(4, 7)]),  # no spaces, no word boundaries
    (RESPONSE, [{"quote": "art", "part": True, "occurrence": 1}], [(6, 9)]),
    (RESPONSE, [{"quote": "art", "occurrence": 2}], [(37, 40)]),  # of the candidates alone
    (RESPONSE, [{"quote": "art", "occurrence": 3}], []),
    (RESPONSE, ["art", "art", "art"], [(17, 20), (37, 40)]),  # the k-th repeat is the k-th candidate
    *((RESPONSE, [quote], []) for quote in ("", " ", "\n", "the artist", "The Start")),
    (PROGRAM, ["\n        "], [(19, 28)]),
    (PROGRAM, ["        "], [(20, 28)]),
    (PROGRAM, [{"quote": "    ", "occurrence": 1}], [(10, 14)]),
    *((PROGRAM, [quote], []) for quote in ("    ", "\n", " ")),  # several places: which indentation is meant?
    (f"The line {LINE} is it.\n\n{LINE}\n", [{"quote": LINE, "occurrence": 2}], [(55, 55 + len(LINE))]),
    (f"x {LINE}", ["[j-1])+1"], [(31, 39)]),
    ("See https://example.org/a?b=1&c=2.\n\n\nThen rest.", ["https://example.org/a?b=1&c=2"], [(4, 33)]),
    ("See https://example.org/a?b=1&c=2.\n\n\nThen rest.", ["c=2.\n\n\nThen"], [(30, 41)]),
]


def test_what_a_quote_means() -> None:
    wrong = []
    for response, quotes, meant in QUOTED:
        found = read(ask(poor=quotes), response)
        right = [(span.start, span.end) for span in found.spans] == meant
        counted = (found.quotes.unmatched, found.quotes.ambiguous) == (len(quotes) - len(meant), 0)
        again = read(render(found, response), response).spans == found.spans
        wrong += [] if right and counted and again else [(response, quotes)]
    assert not wrong


@pytest.mark.parametrize(
    ("z", "response"), [(ask(poor=["art"]), RESPONSE), (ask(["la la"]), "la la la"), (ask(["art"]), RESPONSE)]
)
def test_one_mention_of_a_repeated_quote_means_none_of_its_places(z: str, response: str) -> None:
    found = read(z, response)
    assert (found.spans, found.quotes.ambiguous, found.quotes.unmatched) == ((), 1, 0)


def test_lists_are_read_apart_and_may_overlap() -> None:
    assert read(ask(["art"], ["art"])).quotes.ambiguous == 2
    assert places(read(ask(["art"], ["start of the art"]), "start of the art")) == [(0, 16, -1), (13, 16, 1)]


# --- what is read


@pytest.mark.parametrize(
    "z",
    [
        "```json\n{}\n```",
        'Here it is ("as asked"):\n{}\nI hope this helps.',
        "  {}\n",
        "<think>Good {{ or poor?</think>{}",
    ],
)
def test_a_fence_prose_or_thoughts_around_the_object(z: str) -> None:
    assert places(read(z.replace("{}", ask(["art fair"])).replace("{{", "{"))) == [(17, 25, 1)]


def test_raw_newlines_trailing_commas_and_python_quotes() -> None:
    assert read('{"critique": "a\nb", "good_spans": [], "poor_spans": []}').text == "a\nb"
    assert places(read('{"critique": "", "good_spans": ["art fair",], "poor_spans": [],}')) == [(17, 25, 1)]
    python = "{'critique': \"it's\", 'good_spans': ['art fair'], 'poor_spans': [], 'score': None}"
    assert (read(python).text, len(read(python).spans)) == ("it's", 1)
    assert read('{"critique": "a,]", "good_spans": [], "poor_spans": [],}').text == "a,]"


@pytest.mark.parametrize(
    "z",
    [
        '{"Good spans": ["art fair"], "Poor spans": [], "textual_feedback": "Late."}',
        '{"textual_feedback": "Late.", "good_spans": [{"art fair": "clear"}], "poor_spans": []}',
        '{"textual_feedback": "Late.", "good_spans": {"art fair": "clear"}, "poor_spans": {}}',
        'Late.\n```json\n{"Good spans": ["art fair"], "Poor spans": []}\n```',
    ],
)
def test_published_key_styles(z: str) -> None:
    found = read(z)
    assert (found.text, places(found)) == ("Late.", [(17, 25, 1)])


def test_a_published_code_answer() -> None:
    z = '{"code_feedback": "Late.", "wrong_code": {"art fair": "no"}, "improvement_code": {"is late": "will be"}}'
    found = read(z)
    assert [(s.text, s.label, s.reason) for s in found.spans] == [("art fair", -1, "no"), ("is late", 0, "will be")]
    again = render(found, RESPONSE)
    assert again.endswith('"improvable_spans": [{"quote": "is late", "reason": "will be"}]}')
    assert parse(again, RESPONSE) == found


@pytest.mark.parametrize(
    ("z", "places_of_0"),
    [
        (ask(improvable_spans=["art fair"]), [(17, 25)]),
        (ask(improvable_spans=[{"quote": "art", "occurrence": 2, "reason": "say which"}]), [(37, 40)]),
        (ask(improvable_spans=[]), []),
        (ask(improvable_spans=None), []),
        ('{"Code Feedback": "Late.", "wrong_code": [], "improvement_code": ["art fair"]}', [(17, 25)]),
        ('{"critique": "Late.", "poor_spans": [], "improvable_spans": {"art fair": "shorter"}}', [(17, 25)]),
    ],
)
def test_what_could_be_better_is_a_span_without_a_sign(z: str, places_of_0: list[tuple[int, int]]) -> None:
    found = read(z)
    assert [(span.start, span.end) for span in found.spans if span.label == 0] == places_of_0 and not found.lost


def test_a_suggestion_is_the_reason_of_its_span() -> None:
    items = [
        {"quote": "art fair", "suggestion": "name it"},
        {"quote": "late", "reason": "vague", "suggestion": "when"},
    ]
    assert [span.reason for span in read(ask(improvable_spans=items)).spans] == ["name it", "vague; when"]
    assert refused(ask(improvable_spans=[{"quote": "late", "suggestion": 3}])) == "invalid"


def test_a_suggestion_about_nothing_costs_no_critique() -> None:
    """It pays nothing: what it quotes and is not there is lost, and no reason to ask again or to count."""
    found = read(ask(["art fair"], improvable_spans=["not there", "art"]))
    assert [span.label for span in found.spans] == [1] and found.lost == ("not there",)
    assert found.quotes.unmatched == found.quotes.ambiguous == 0


def test_numbers_in_the_critique_are_text() -> None:
    z = json.dumps({"critique": "ratio: 5, score: 9 {sic}", "good_spans": [], "poor_spans": []})
    assert (read(z).score, read(z).text) == (None, "ratio: 5, score: 9 {sic}")


# --- what is not read


@pytest.mark.parametrize("score", [True, False, "one", 1.01, -2, [1], float("nan"), float("inf")])
def test_a_score_is_a_number_from_minus_one_to_one(score: object) -> None:
    assert refused(ask(score=score)) == "invalid"


@pytest.mark.parametrize("score", [-1, 0, 1, 0.5, "1", "-.5"])
def test_a_score_is_read(score: float | str) -> None:
    assert read(ask(score=score)).score == float(score)


@pytest.mark.parametrize(
    ("z", "kind"),
    [
        ("", "invalid"),
        (" \n", "invalid"),
        ("null", "invalid"),
        ("The response is fine.", "invalid"),
        ("I'm sorry, but I can't help with that.", "refused"),
        ("I cannot judge this.", "refused"),
        ("{}", "invalid"),
        ('{"critique": "The art', "truncated"),
        ('{"critique": "", "good_spans": ["art fair"], "poor_spans": []', "truncated"),
        ("<think>The art fair", "truncated"),
        (ask() + ask(), "invalid"),
        ("[" + ask() + "]", "invalid"),
        ('{"critique": "he said "no"", "good_spans": [], "poor_spans": []}', "invalid"),
        ('{"critique": "a", "critique": "b", "good_spans": [], "poor_spans": []}', "invalid"),
        ('{"critique": "a", "good_spans": []}', "invalid"),
        ('{"critique": 1, "good_spans": [], "poor_spans": []}', "invalid"),
        ('{"critique": "", "good_spans": "art fair", "poor_spans": []}', "invalid"),
        (ask([3]), "invalid"),
        (ask([["art fair"]]), "invalid"),
        (ask([{"text": "art fair"}]), "invalid"),
        (ask([{"quote": "art fair", "label": 1}]), "invalid"),
        (ask([{"quote": "art", "occurrence": 0}]), "invalid"),
        (ask([{"quote": "art", "occurrence": True}]), "invalid"),
        (ask([{"quote": "art", "part": "yes"}]), "invalid"),
        (ask(neutral_spans=[]), "invalid"),
        ("{'critique': 'it's', 'good_spans': [], 'poor_spans': []}", "invalid"),
        ("{'critique': 'a' 'b', 'good_spans': [], 'poor_spans': []}", "invalid"),
        ('{"critique": "' + "[" * 10_000, "truncated"),
        ('{"critique": ' + "[" * 10_000, "invalid"),
    ],
)
def test_what_cannot_be_read_is_a_typed_failure(z: str, kind: str) -> None:
    assert refused(z) == kind
    judgement = parse(z, RESPONSE)
    assert isinstance(judgement, Failure) and judgement.raw == z and judgement.message


def test_unescaped_quotes_that_happen_to_be_json_are_not_two_spans() -> None:
    response = 'Say "yes", "no" or nothing. yes no'
    z = '{"critique": "", "good_spans": ["Say "yes", "no" or nothing"], "poor_spans": []}'
    assert refused(z, response) == "invalid"
    split = '{"critique": "", "good_spans": ["yes", "no"], "poor_spans": []}'
    assert refused(split, response) == "invalid"


@given(TEXTS, TEXTS)
def test_any_text_gets_an_answer(z: str, response: str) -> None:
    judgement = parse(z, response)
    assert isinstance(judgement, Failure) and judgement.raw == z


def test_the_schema_names_what_render_writes() -> None:
    spans = (
        Span(start=6, end=9, label=1, text="art"),
        Span(start=37, end=40, label=-1, text="art", reason="late"),
    )
    z = json.loads(render(Critique(text="", spans=spans, omissions=("when",), score=0.5), RESPONSE))
    schema = json_schema()
    assert list(z) == list(schema["properties"])
    allowed = next(
        kind for kind in schema["properties"]["poor_spans"]["items"]["anyOf"] if kind["type"] == "object"
    )
    written = {key for item in z["good_spans"] + z["poor_spans"] for key in item}
    assert written <= set(allowed["properties"])


def test_nulls_stand_for_what_is_left_out() -> None:
    """Servers that follow a schema strictly write every key."""
    item = {"quote": "art fair", "occurrence": None, "part": None, "reason": None}
    assert places(read(ask([item], score=None))) == [(17, 25, 1)]


def test_half_a_surrogate_pair_is_no_character() -> None:
    assert refused('{"critique": "\\ud83d", "good_spans": [], "poor_spans": []}') == "invalid"


@pytest.mark.parametrize("reason", ["", "why"])
@pytest.mark.parametrize("key", ["occurrence", "part", "reason"])
def test_a_response_that_holds_what_follows_a_quote_is_still_quoted(key: str, reason: str) -> None:
    response = f'say X", "{key} or X, then Xtra'
    for start in (place for place in range(len(response)) if response.startswith("X", place)):
        span = Span(start=start, end=start + 1, label=-1, text="X", reason=reason)
        critique = Critique(text="c", spans=(span,))
        assert parse(render(critique, response), response) == critique
