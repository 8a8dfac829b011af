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
