"""Columns are proposed by their names in several languages, then by what is in them; what is
unclear is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from text2grad.data.spreadsheets.columns import detect_rating, names_feedback, propose

KEYS = ("prompt", "response", "critique", "score", "corrected", "annotator", "date")
COMMENTS = ("inches?? should be cm", "no superlatives please", "")


def table(*names: str, count: int = 20, **columns: Sequence[Any]) -> list[dict[str, Any]]:
    rows = []
    for n in range(count):
        values = (
            f"How big is item {n}?",
            f"Item {n} is the best and it is {n * 3} inches wide for you",
            COMMENTS[n % 3],
            str(n % 5 + 1),
            f"Item {n} is {n * 7} cm wide for you" if n % 2 else "",
            ("Ann", "Bo")[n % 2],
            f"2026-01-{n + 1:02}",
        )
        changed = {key: columns[key][n % len(columns[key])] for key in columns}
        given = dict(zip(KEYS, values, strict=True)) | changed
        rows.append({name: given[key] for name, key in zip(names, KEYS, strict=False)})
    return rows


LANGUAGES = {
    "English": ("Question", "Answer of the bot", "Comment", "Rating", "Better answer", "Who", "Date"),
    "German": ("Frage", "Antwort", "Kommentar", "Bewertung", "Korrektur", "Wer", "Datum"),
    "compounds": (
        "Kundenfrage",
        "Bot-Antwort",
        "Anmerkung zur Antwort",
        "Sterne",
        "Bessere Antwort",
        "Prüfer",
        "Zeit",
    ),
    "French": ("Demande", "Réponse", "Commentaire", "Note", "Réponse corrigée", "Auteur", "Date"),
    "Spanish": ("Pregunta", "Respuesta", "Comentario", "Valoración", "Corrección", "Quién", "Fecha"),
    "Italian": ("Domanda", "Risposta", "Commento", "Voto", "Risposta corretta", "Chi", "Data"),
    "Portuguese": ("Pergunta", "Resposta", "Comentário", "Nota", "Resposta corrigida", "Quem", "Data"),
    "Dutch": ("Vraag", "Antwoord", "Opmerking", "Cijfer", "Beter antwoord", "Wie", "Datum"),
    "mixed": ("Frage", "Answer", "What's wrong?", "Stars", "Korrektur", "Reviewer", "Created at"),
    "a correction named as an answer": (
        "Anfrage des Gastes",
        "Antworttext der KI",
        "Hinweis",
        "Sterne",
        "Verbesserter Text",
        "Wer",
        "Datum",
    ),
    "two replies": ("Ticket text", "AI draft", "Agent remarks", "CSAT", "Sent reply", "Agent", "Ticket ID"),
    "a version": (
        "Consulta",
        "Salida del modelo",
        "Observaciones",
        "Puntuación",
        "Versión final",
        "Revisor",
        "Fecha",
    ),
    "exported": ("user_message", "modelOutput", "reviewer_notes", "score", "ideal_response", "rater", "timestamp"),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_names_in_several_languages(language: str) -> None:
    names = LANGUAGES[language]
    proposal = propose(table(*names))
    assert proposal.columns == dict(zip(KEYS[:-1], names, strict=False)) and proposal.unused == names[-1:]
    assert proposal.scale == "1..5" and not proposal.doubts
    assert f"{names[1]} -> response" in proposal.line and f"{names[-1]}: not used" in proposal.line
    assert names_feedback(names) and not names_feedback(["word", "meaning"])


def test_names_that_say_nothing_leave_the_content() -> None:
    proposal = propose(table(*"ABCDEFG"))
    assert proposal.columns == dict(zip(KEYS[:5], "ABCDE", strict=True)) and not proposal.doubts


@pytest.mark.parametrize(
    ("name", "rest", "scale"),
    [
        ("Schulnote", ("Frage", "Antwort"), "6..1"),
        ("Note", ("Frage", "Antwort"), "6..1"),
        ("Note", ("Demande", "Réponse"), "1..5"),
        ("Rating (1 = best)", ("Question", "Answer"), "5..1"),
        ("Rating (1 = best, 5 = poor)", ("Question", "Answer"), "5..1"),
        ("Rating 1-7", ("Question", "Answer"), "1..7"),
    ],
)
def test_scales_of_headers_and_languages(name: str, rest: tuple[str, str], scale: str) -> None:
    proposal = propose(table(*rest, "X", name))
    assert (proposal.columns["score"], proposal.scale) == (name, scale)


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        (["up", "down"], "down,up"),
        ([True, False], "false,true"),
        ([0, 1], "0..1"),
        ([-1, 1], "-1..1"),
        ([3, 8, 10], "1..10"),
        ([0, 8], "0..10"),
        (["★★★☆☆", "★★★★★"], "1..5"),
        (["gut", "schlecht", "mittel"], "schlecht,mittel,gut"),
        (["thumbs up", "👎"], ""),
        (["4/5", "2/5"], ""),
    ],
)
def test_scales_of_values(values: list[Any], scale: str) -> None:
    rating = detect_rating("Rating", values)
    assert rating is not None and rating.scale == scale and not rating.candidates


@pytest.mark.parametrize("values", [[f"T-{n}" for n in range(60)], [17, 2000], ["a", "b"], []])
def test_other_values_are_no_ratings(values: list[Any]) -> None:
    assert detect_rating("Rating", values) is None


def test_two_scales_that_may_be_meant_are_named() -> None:
    (doubt,) = propose(table("Question", "Answer", "Comment", "Rating", score=["1", "3"])).doubts
    assert doubt.options == ("--scale 1..3", "--scale 1..5")
    assert not propose(table("Question", "Answer", "Comment", "Rating", score=["1", "3"]), has_scale=True).doubts


def test_two_columns_that_may_be_meant_are_named() -> None:
    rows = [{**row, "Answer 2": row["Answer 1"][::-1]} for row in table("Question", "Answer 1", "Comment")]
    (doubt,) = propose(rows).doubts
    assert doubt.field == "response" and doubt.candidates == ("Answer 1", "Answer 2")
    chosen = propose(rows, {"response": "Answer 2"})
    assert chosen.columns["response"] == "Answer 2" and not any(d.field == "response" for d in chosen.doubts)


def test_an_empty_column_is_said_to_be_empty() -> None:
    proposal = propose(table("Question", "Answer", "Comment", critique=[""]))
    assert "critique" not in proposal.columns and "Comment: empty" in proposal.line


def test_columns_of_single_words_hold_what_they_are_named_where_nothing_else_does() -> None:
    single = [
        {"Question": f"city{n}?", "Answer": f"Paris{n}", "Correction": f"Lyon{n}", "Rating": n % 5 + 1}
        for n in range(10)
    ]
    expected = {"prompt": "Question", "response": "Answer", "corrected": "Correction", "score": "Rating"}
    assert propose(single).columns == expected
    verdicts = [{"Question": f"is {n} even?", "Answer": ("yes", "no")[n % 2]} for n in range(10)]
    assert "response" not in propose(verdicts).columns, "yes and no may be ratings"


def rewritten(*names: str) -> list[dict[str, Any]]:
    """Return rows of which every second has a longer correction, mostly in other words."""
    rows = []
    for n in range(20):
        answer = f"Yes, delivery {n} takes a few working days."
        correction = f"For order {n} please allow a few weeks, because delivery abroad goes through customs first."
        values = (f"Where is parcel {n}?", answer, str(2 + n % 2 * 3), f"customs forgotten in case {n}", correction)
        rows.append(dict(zip(names, (*values[:4], "" if n % 2 else correction), strict=True)))
    return rows


@pytest.mark.parametrize(
    "names",
    [
        (
            "1. What did the customer ask?",
            "2. What did the assistant reply?",
            "3. Rating",
            "4. What should be improved?",
            "5. If you could write the reply yourself, what would it say?",
        ),
        ("Question posée", "Réponse donnée par l'IA", "Note", "Si non, pourquoi ?", "Proposition de réponse"),
        ("❓ Customer", "🤖 Bot", "⭐", "💬", "✍️ Better version"),
        tuple("ABCDE"),
        ("A", "Reply", "B", "C", "New reply"),
    ],
)
def test_a_correction_in_other_words_is_found_by_its_rows_and_words(names: tuple[str, ...]) -> None:
    proposal = propose(rewritten(*names))
    fields = ("prompt", "response", "score", "critique", "corrected")
    assert proposal.columns == dict(zip(fields, names, strict=True)) and not proposal.doubts


def test_a_column_named_as_the_correction_stays_it() -> None:
    rows = [{**row, "Comment": f"{row['Answer']} is wrong"} for row in table("Question", "Answer", "Comment")]
    rows = [{**row, "Correction": f"Measure piece {n} again"} for n, row in enumerate(rows)]
    assert propose(rows).columns["corrected"] == "Correction"


def test_comments_after_answers_are_no_questions() -> None:
    rows = [{"Text": row["b"], "What to change": f"{row['c']} please do"} for row in table("a", "b", "c")]
    assert "prompt" not in propose(rows).columns


@pytest.mark.parametrize(
    "names",
    [
        ("質問", "AIの回答", "コメント", "評価（5段階）", "修正後の回答", "担当者"),
        ("用户问题", "机器人回答", "意见", "评分", "正确答案", "审核人"),
    ],
)
def test_texts_without_spaces_are_texts(names: tuple[str, ...]) -> None:
    rows = [
        dict(
            zip(
                names,
                (f"返品{n}はできますか", f"はい三十日以内なら返品{n}できます", "短すぎる", n % 5 + 1),
                strict=False,
            )
        )
        | dict(zip(names[4:], (f"はい三十日以内なら返品{n}できますが送料がかかります", "田中"), strict=True))
        for n in range(20)
    ]
    assert propose(rows).columns == dict(zip(KEYS, names, strict=False))


def test_polish_columns() -> None:
    names = ("Pytanie klienta", "Odpowiedź czatbota", "Uwagi", "Czy poprawna?", "Poprawna odpowiedź")
    proposal = propose(table(*names, score=["tak", "nie"]))
    assert proposal.columns == dict(zip(KEYS, names, strict=False)) and proposal.scale == "nie,tak"


@pytest.mark.parametrize(
    ("header", "values", "scale"),
    [("Note /20", ["15,5", "8", "12"], "0..20"), ("score", [0.4, 0.83, 1], "0..1")],
)
def test_marks_of_twenty_and_fractions(header: str, values: list[Any], scale: str) -> None:
    rating = detect_rating(header, values)
    assert rating is not None and rating.scale == scale
    assert detect_rating("temperature", [0.2, 0.7]) is None


@pytest.mark.parametrize(
    ("score", "scales"), [(["2", "5"], ("1..6", "6..1")), (["no", "yes"], ("no,yes", "yes,no"))]
)
def test_a_scale_that_praises_what_was_corrected_is_asked_about(score: list[str], scales: tuple[str, ...]) -> None:
    names = ("Question", "Answer", "Comment", "Rating (1-6)", "Correction")
    (doubt,) = propose(table(*names, score=score)).doubts
    assert doubt.candidates == scales
    assert not propose(table(*names, score=score[::-1])).doubts
    assert not propose(table(*names, score=score), has_scale=True).doubts


def test_a_rating_with_unknown_values_is_named() -> None:
    names = ("Question", "Answer", "Comment", "Grade")
    line = propose(table(*names, score=["A", "B", "F"])).line
    reason = "Grade: not used, the scale of its values is unknown"
    assert f"{reason}: A, B, F (--map score=Grade --scale WORST,...,BEST)" in line
    line = propose(table(*names, score=[17, 250])).line
    assert f"{reason}: 17, 250 (--map score=Grade --scale WORST..BEST)" in line
