"""Feedback on shop texts as people keep it in spreadsheets, in English, in German and mixed."""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ENGLISH = ("Question", "Answer of the bot", "Comment", "Rating", "Better answer", "Who", "Date")
GERMAN = ("Frage", "Antwort des Bots", "Kommentar", "Bewertung (1-5)", "Bessere Antwort", "Prüfer", "Datum")
MIXED = ("Frage", "Bot answer", "Kommentar", "Stars", "Korrektur", "Reviewer", "Date")
WORDS = {
    "English": ("Describe {} {}.", "The {} is {}{} {} wide.", "the best choice and ", "inches"),
    "German": ("Beschreibe {} {}.", "Der Artikel {} ist {}{} {} breit.", "die schönste Wahl und ", "Zoll"),
}
COMMENTS = {
    "English": ('"{}" is a superlative', "{}?? should be cm", "short and clear"),
    "German": ("„{}“ ist übertrieben", "{}?? muss cm heißen", "kurz und gut"),
}


def shop_rows(names: Sequence[str], count: int = 24, seed: int = 0) -> list[tuple[Any, ...]]:
    """A header and rows under it; German texts under German names, both under mixed ones."""
    draw = random.Random(seed)
    rows: list[tuple[Any, ...]] = [tuple(names)]
    for number in range(count):
        german = names == GERMAN or (names == MIXED and number % 2)
        language = "German" if german else "English"
        question, answer, praise, unit = WORDS[language]
        thing, size = draw.choice(["lamp", "table", "mug"]), draw.randint(5, 40)
        praised, imperial = draw.random() < 0.5, draw.random() < 0.6
        if number == 0:
            praised, imperial = True, False
        width = (size, unit) if imperial else (3 * size, "cm")
        sent = answer.format(thing, praise if praised else "", *width)
        better = answer.format(thing, "", 3 * size, "cm")
        superlative, wrong, fine = COMMENTS[language]
        said = [superlative.format(praise.rpartition(" ")[0].rpartition(" ")[0])] if praised else []
        said += [wrong.format(unit)] if imperial else []
        corrected = better if number % 2 and better != sent else None
        judged = (". ".join(said) or fine, 5 - 2 * (praised + imperial), corrected)
        by_whom = (("Ann", "Bo")[number % 2], f"2026-01-{number % 28 + 1:02}")
        rows.append((question.format(thing, number), sent, *judged, *by_whom))
    return rows


def write_table(path: Path, rows: Sequence[Sequence[Any]], separator: str = "", encoding: str = "utf-8") -> Path:
    """Write rows as a table: with tabs for .tsv."""
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=separator or ("\t" if path.suffix == ".tsv" else ","))
        writer.writerows([["" if cell is None else cell for cell in row] for row in rows])
    return path
