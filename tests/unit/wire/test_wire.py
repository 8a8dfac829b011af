"""The answer format z: what is rendered is read back exactly, and nothing damaged is read as
something else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quotable_responses import PIECES, TEXTS, judged
from text2grad.feedback import Critique, Failure, Span
from text2grad.wire import json_schema, parse, render
from text2grad.wire.objects import UnreadableError, _read_leniently, read_object

RESPONSE = "The start of the art fair moved; the art is late."
QUOTING = 'We start art class. The art is "fine", "good" and `ratio: 5`.'
EMPTY = '{"critique": "", "good_spans": [], "poor_spans": []}'


def ask(good: Any = (), poor: Any = (), **more: Any) -> str:
    """A z as a careful critic writes it; a value of None leaves its key out."""
    value = {"critique": "Late.", "good_spans": good, "poor_spans": poor, **more}
    return json.dumps({key: content for key, content in value.items() if content is not None})


def read(z: str, response: str = RESPONSE) -> Critique:
    judgement = parse(z, response)
    assert isinstance(judgement, Critique), judgement
    return judgement


def places(critique: Critique) -> list[tuple[int, int, int]]:
    return [(span.start, span.end, span.label) for span in critique.spans]


# --- what is rendered, and damaged on its way


@given(judged())
@example((Critique(text="", spans=()), "x"))
def test_what_is_rendered_is_read_back_and_every_cut_is_a_failure(case: tuple[Critique, str]) -> None:
    critique, response = case
    z = render(critique, response)
    assert parse(z, response) == critique
    for cut in range(1, len(z)):
        judgement = parse(z[:cut], response)
        assert isinstance(judgement, Failure) and judgement.kind == "truncated"


@given(judged())
def test_fences_prose_commas_and_raw_control_characters_change_nothing(case: tuple[Critique, str]) -> None:
    critique, response = case
    z = render(critique, response)
    assert parse(f"Here it is:\n```json\n{z[:-1]},\n}}\n```\nI hope it helps.", response) == critique
    z = json.dumps(json.loads(z), ensure_ascii=False, indent=2).replace("\\\\", "\x00")
    bare = z.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t").replace("\x00", "\\\\")
    assert parse(bare, response) == critique


@given(judged())
def test_single_quotes_are_the_same_critique_or_a_failure(case: tuple[Critique, str]) -> None:
    critique, response = case
    z = render(critique, response)
    for damaged in (repr(json.loads(z)), z.replace('"', "'")):
        judgement = parse(damaged, response)
        assert isinstance(judgement, Failure) or judgement == critique


@given(judged(), st.data())
def test_the_quick_look_sees_what_the_close_one_sees(case: tuple[Critique, str], data: st.DataObject) -> None:
    critique, response = case
    z = render(critique, response)
    place = data.draw(st.integers(0, len(z)))
    z = z[:place] + data.draw(st.sampled_from(("", *PIECES))) + z[place + data.draw(st.integers(0, 2)) :]
    first = z.find("{")
    if first >= 0:
        assert readable(read_object, z, response) == readable(_read_leniently, z, first, response)


def readable(read: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any] | None:
    """The value that is read, or None where that is refused."""
    try:
        return read(*arguments)
    except UnreadableError:
        return None


RUBBLE = st.lists(st.sampled_from([*'{}[]:,"\\ 1', "critique", "good_spans", "null", "'", "quote"]), max_size=40)


@given(TEXTS | RUBBLE.map("".join), TEXTS)
def test_any_text_gets_an_answer(z: str, response: str) -> None:
    judgement = parse(z, response)
    assert isinstance(judgement, Failure) and judgement.raw == z


def test_a_plain_quote_stays_a_plain_string_and_the_critique_comes_first() -> None:
    span = Span(start=17, end=25, label=1, text="art fair")
    z = render(Critique(text="Late.", spans=(span,)), RESPONSE)
    assert z == '{"critique": "Late.", "good_spans": ["art fair"], "poor_spans": []}'
    with pytest.raises(ValueError):
        render(Critique(text="", spans=(Span(start=0, end=3, label=1, text="Une"),)), RESPONSE)


STANDING: list[tuple[str, tuple[str, ...], str]] = [
    (QUOTING, ("fine", "good"), ""),
    ('He wrote "fine", "reason" and no more.', ("fine",), "apt"),
    ('He wrote {"quote": "fine"}, {"quote": "fair"}.', ("quote", "fine"), "apt"),
    *((f'say X", "{key} or X.', ("X",), why) for key in ("occurrence", "part", "reason") for why in ("", "why")),
]


def test_what_stands_in_the_response_as_in_an_answer_can_still_be_quoted() -> None:
    for response, quotes, reason in STANDING:
        starts = [(place, quote) for quote in quotes for place in range(len(response))]
        spans = [
            Span(start=place, end=place + len(quote), label=1, text=quote, reason=reason)
            for place, quote in sorted(starts)
            if response.startswith(quote, place)
        ]
        for chosen in [spans, *([span] for span in spans)]:
            critique = Critique(text="c", spans=tuple(chosen))
            assert parse(render(critique, response), response) == critique


# --- which characters a quote means


PROGRAM = "def f(x):\n    y = x\n        return y\n"
LINE = "dp[i][j]=max(dp[i-1][j],dp[i][j-1])+1"
LINK = "See https://example.org/a?b=1&c=2.\n\n\nThen rest."
QUOTED: list[tuple[str, list[Any], list[tuple[int, int]]]] = [
    ("The start of art.", ["art"], [(13, 16)]),
    *((joined, ["art"], []) for joined in ("art_1", "art2", "éart", "Smart", "artÄ", "art\u0301", "A start.")),
    ("会议改到星期五了。", ["星期五"], [(4, 7)]),  # no spaces, no word boundaries
    (RESPONSE, [{"quote": "art", "part": True, "occurrence": 1}], [(6, 9)]),
    (RESPONSE, [{"quote": "art", "occurrence": 2}], [(37, 40)]),  # of the candidates alone
    (RESPONSE, [{"quote": "art", "occurrence": 3}], []),
    (RESPONSE, ["art", "art", "art"], [(17, 20), (37, 40)]),  # the k-th repeat is the k-th candidate
    (RESPONSE, [{"quote": "art fair", "occurrence": None, "part": None, "reason": None}], [(17, 25)]),
    *((RESPONSE, [quote], []) for quote in ("", " ", "\n", "the artist", "The Start")),
    (PROGRAM, ["\n        "], [(19, 28)]),
    (PROGRAM, ["        "], [(20, 28)]),
    (PROGRAM, [{"quote": "    ", "occurrence": 1}], [(10, 14)]),
    *((PROGRAM, [quote], []) for quote in ("    ", "\n", " ")),  # several places: which indentation is meant?
    (f"The line {LINE} is it.\n\n{LINE}\n", [{"quote": LINE, "occurrence": 2}], [(55, 55 + len(LINE))]),
    (f"x {LINE}", ["[j-1])+1"], [(31, 39)]),
    (LINK, ["https://example.org/a?b=1&c=2"], [(4, 33)]),
    (LINK, ["c=2.\n\n\nThen"], [(30, 41)]),
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


def test_one_mention_of_a_repeated_quote_means_none_of_its_places() -> None:
    for z, response, count in (
        (ask(poor=["art"]), RESPONSE, 1),
        (ask(["la la"]), "la la la", 1),
        (ask(["art"], ["art"]), RESPONSE, 2),  # lists are read apart
    ):
        found = read(z, response)
        assert (found.spans, found.quotes.ambiguous, found.quotes.unmatched) == ((), count, 0)
    assert places(read(ask(["art"], ["start of the art"]), "start of the art")) == [(0, 16, -1), (13, 16, 1)]


# --- what is read


FAIR = [(17, 25, 1)]
FORMS = [
    "```json\n{}\n```",
    'Here it is ("as asked"):\n{}\nI hope this helps.',
    "  {}\n",
    "<think>Good {{ or poor?</think>{}",
    "<|channel|>analysis<|message|>Good {{ or?<|end|><|start|>assistant<|channel|>final<|message|>{}<|return|>",
    "<|channel|>final <|constrain|>json<|message|>{}",
]
STYLES = [
    *(form.replace("{}", ask(["art fair"])).replace("{{", "{") for form in FORMS),
    '{"critique": "Late.", "good_spans": ["art fair",], "poor_spans": [],}',
    "{'critique': 'Late.', 'good_spans': ['art fair'], 'poor_spans': [], 'score': None}",
    '{"Critique": "Late.", "Good spans": [{"art fair": "clear"}], "Poor spans": []}',
    '{"critique": "Late.", "good_spans": {"art fair": "clear"}, "poor_spans": {}}',
]


@pytest.mark.parametrize("z", STYLES)
def test_styles_in_which_models_write(z: str) -> None:
    found = read(z)
    assert (found.text, places(found)) == ("Late.", FAIR)


def test_a_critique_is_any_text() -> None:
    for text in ("a\nb", "a,]", "it's", "ratio: 5, score: 9 {sic}"):
        for z in (EMPTY.replace('""', f'"{text}"'), EMPTY.replace('""', f'"{text}"').replace("]}", "],}")):
            assert (read(z).text, read(z).score) == (text, None)
    assert read("{'critique': \"it's\", 'good_spans': [], 'poor_spans': []}").text == "it's"


@pytest.mark.parametrize(
    ("z", "places_of_0"),
    [
        (ask(improvable_spans=["art fair"]), [(17, 25)]),
        (ask(improvable_spans=[{"quote": "art", "occurrence": 2, "reason": "say which"}]), [(37, 40)]),
        (ask(improvable_spans=[]), []),
        (ask()[:-1] + ', "improvable_spans": null}', []),
        ('{"critique": "Late.", "poor_spans": [], "improvable_spans": {"art fair": "shorter"}}', [(17, 25)]),
    ],
)
def test_what_could_be_better_is_a_span_without_a_sign(z: str, places_of_0: list[tuple[int, int]]) -> None:
    found = read(z)
    assert [(span.start, span.end) for span in found.spans if span.label == 0] == places_of_0 and not found.lost


def test_a_suggestion_is_the_reason_of_its_span_and_about_nothing_it_costs_no_critique() -> None:
    """It pays nothing: what it quotes and is not there is lost, and no reason to ask again or to
    count."""
    vague = {"quote": "late", "reason": "vague", "suggestion": "when"}
    items = [{"quote": "art fair", "suggestion": "name it"}, vague]
    assert [span.reason for span in read(ask(improvable_spans=items)).spans] == ["name it", "vague; when"]
    found = read(ask(["art fair"], improvable_spans=["not there", "art"]))
    assert [span.label for span in found.spans] == [1] and found.lost == ("not there",)
    assert found.quotes.unmatched == found.quotes.ambiguous == 0


def test_the_schema_names_what_render_writes() -> None:
    late = Span(start=37, end=40, label=-1, text="art", reason="late")
    spans = (Span(start=6, end=9, label=1, text="art"), late)
    z = json.loads(render(Critique(text="", spans=spans, omissions=("when",), score=0.5), RESPONSE))
    schema = json_schema()
    assert list(z) == list(schema["properties"])
    kinds = schema["properties"]["poor_spans"]["items"]["anyOf"]
    (allowed,) = (kind for kind in kinds if kind["type"] == "object")
    written = {key for item in z["good_spans"] + z["poor_spans"] for key in item}
    assert written <= set(allowed["properties"])


SCORES = (-1, 0, 1, 0.5, "0.5", "-1", " 0.5 ", "+1", ".5", "-.5", "1.0", "5e-1", "0")
NO_SCORES = ("4/5", "80%", "high", "", "5", "nan", "inf", "1_0", "0,5", "0.5 of 1", "1/1", "٠", "1" * 30)
NO_NUMBERS = (True, False, 1.01, -2, [1], float("nan"), float("inf"))


def test_a_score_is_a_number_of_its_scale_also_in_quotes() -> None:
    assert [read(ask(score=score)).score for score in SCORES] == [float(score) for score in SCORES]
    for score in (*NO_SCORES, *NO_NUMBERS):
        judgement = parse(ask(score=score), RESPONSE)
        assert isinstance(judgement, Failure) and judgement.kind == "invalid", score


# --- what is not read


SCORED = ask(["class"], score=0.5)
UNREADABLE: list[tuple[str, str, str]] = [
    ("", "invalid", ""),
    (" \n", "invalid", ""),
    ("null", "invalid", ""),
    ("The response is fine.", "invalid", ""),
    ("I'm sorry, but I can't help with that.", "refused", ""),
    ("I cannot judge this.", "refused", ""),
    ("I can’t.", "refused", "declined"),
    ("{}", "invalid", ""),
    ('{"critique": "The art', "truncated", ""),
    ("<think>The art fair", "truncated", "think"),
    ("<|channel|>analysis<|message|>Mark {", "truncated", "channel"),
    (SCORED[:-1], "truncated", "ends before"),
    ('{"critique": "c", "score": -', "truncated", "ends before"),
    ('{"critique": "c", "score": nul', "truncated", "ends before"),
    ('{"critique": "' + "[" * 10_000, "truncated", ""),
    ('{"critique": ' + "[" * 10_000, "invalid", ""),
    (SCORED + SCORED, "invalid", "more than one"),
    (SCORED + "}", "invalid", "more than one"),
    ("{maybe} " + SCORED, "invalid", "unescaped"),
    *((listed, "invalid", "list") for listed in (f"[{SCORED}]", f"[{SCORED}", f"[{SCORED}, ", f"{SCORED}, ...]")),
    ('{"critique": "he said "no"", "good_spans": [], "poor_spans": []}', "invalid", ""),
    ('{"critique": "a", "critique": "b", "good_spans": [], "poor_spans": []}', "invalid", ""),
    ("{'critique': 'it's', 'good_spans': [], 'poor_spans': []}", "invalid", ""),
    ("{'critique': 'a' 'b', 'good_spans': [], 'poor_spans': []}", "invalid", ""),
    ("{'critique': 'a '' b', 'good_spans': [], 'poor_spans': []}", "invalid", "not JSON"),
    ("{'critique': 'say \\'no\\'', 'good_spans': [], 'poor_spans': []}", "invalid", "clear meaning"),
    ("{'critique': 'a\\/b', 'good_spans': [], 'poor_spans': []}", "invalid", "clear meaning"),
    ("{'critique': '\\U99999999', 'good_spans': [], 'poor_spans': []}", "invalid", "not a string"),
    ('{"critique": \'c\', "good_spans": [], "poor_spans": []}', "invalid", "mixed"),
    ('{"critique": NaN, "good_spans": [], "poor_spans": []}', "invalid", ""),
    (ask(critique=None), "invalid", "needed"),
    ('{"critique": "a", "good_spans": []}', "invalid", ""),
    (ask(bad_spans=[]), "invalid", "unknown key"),
    (ask(Critique="d"), "invalid", "twice"),
    (ask(textual_feedback="d"), "invalid", "unknown key"),
    ('Well put.\n{"good_spans": ["class"], "poor_spans": []}', "invalid", "needed"),
    (ask(improvable_spans=[3]), "invalid", "neither"),
    (ask(critique=7), "invalid", "critique is not a string"),
    (ask("class"), "invalid", ""),
    (ask([3]), "invalid", ""),
    (ask([["class"]]), "invalid", ""),
    (ask([[[[[[[[[["a"]]]]]]]]]]), "invalid", ""),
    (ask([{"text": "class"}]), "invalid", "'text'"),
    (ask([{"class": "a", "art": "b"}]), "invalid", "neither"),
    (ask([{"class": 1}]), "invalid", "reason"),
    (ask([{"quote": 5}]), "invalid", "quote is not"),
    (ask([{"quote": "class", "label": 1}]), "invalid", ""),
    *((ask([{"quote": "class", "occurrence": number}]), "invalid", "") for number in (0, True)),
    *((ask([{"quote": "class", "part": part}]), "invalid", "part") for part in (1, "yes")),
    (ask(improvable_spans=[{"quote": "class", "suggestion": 3}]), "invalid", ""),
    (SCORED.replace("0.5", "NaN"), "invalid", "unescaped"),
    (SCORED.replace("0.5", "1e999"), "invalid", "score"),
    (SCORED.replace("0.5", "1" * 5000), "invalid", "not JSON"),
    (SCORED.replace("0.5", "1 2"), "invalid", "not JSON"),
    (SCORED.replace("0.5", "True"), "invalid", "not JSON"),
    (SCORED.replace("0.5", "[" * 1000), "invalid", "deeply"),
    (SCORED.replace('"good_spans": [', '"good_spans": [,'), "invalid", "not JSON"),
    (SCORED.replace('"Late."', '"\\ud83d"'), "invalid", "surrogate"),
    (SCORED.replace('"Late."', '"\\q"'), "invalid", "not JSON"),
    (ask(["fine", "good"]), "invalid", "one phrase of the response"),
    (ask(['The art is "fine", "good']).replace("\\", ""), "invalid", ""),
]


def test_channels_without_end_are_refused_at_once() -> None:
    start = time.monotonic()
    judgement = parse("<|channel|>final" * 40_000, RESPONSE)
    assert isinstance(judgement, Failure) and judgement.kind == "truncated" and time.monotonic() - start < 10


@pytest.mark.parametrize(("z", "kind", "words"), UNREADABLE)
def test_what_cannot_be_read_is_a_typed_failure_that_says_why(z: str, kind: str, words: str) -> None:
    judgement = parse(z, QUOTING)
    assert isinstance(judgement, Failure), judgement
    assert (judgement.kind, judgement.raw) == (kind, z)
    assert judgement.message and words in judgement.message


def test_a_failure_can_always_be_stored() -> None:
    judgement = parse("no object \ud83d", RESPONSE)
    assert isinstance(judgement, Failure) and judgement.raw == "no object ?"
    assert Failure.model_validate_json(judgement.model_dump_json()) == judgement


@pytest.mark.parametrize("name", ["missing", "Issue", "code ", "Quote"])
def test_the_name_of_a_field_is_no_quote(name: str) -> None:
    """Two hikers are missing: where they were last seen is an omission."""
    answer = {"critique": "c", "good_spans": [], "poor_spans": [{name: "where they were seen"}], "score": -1}
    read = parse(json.dumps(answer), f"Two hikers: {name} since Friday.")
    assert isinstance(read, Failure) and read.kind == "invalid"
