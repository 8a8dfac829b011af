"""The columns (or keys) of remarks: by our names in whatever case, by the names that `--map` gives, or unknown."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from text2grad.errors import UsageError, UserError
from text2grad.formats.remarks.markup import has_markup
from text2grad.tasks.loaders import Row
from text2grad.tasks.sheets import bad_rows

COLUMNS = ("id", "prompt", "response", "critique", "good", "poor", "score", "corrected", "annotator", "spans")
RATINGS = ("rating", "stars", "thumbs", "reward")
"""Columns that are read as a score where there is none, on a scale that has to be known (`formats.scale`)."""
FIELDS = (*COLUMNS, *RATINGS)
SAYS = ("critique", "good", "poor", "spans", "score", "corrected")
"""What is said of a response; a remark has one of them, or mark-up in its response."""
_AROUND = " \t\xa0\ufeff'\"“”„‘’«»`"


def plain_name(name: object) -> str:
    """A name without the quotation marks and spaces around it, in small letters of normal width."""
    return unicodedata.normalize("NFKC", str(name)).strip(_AROUND).casefold()


def parse_map(words: Sequence[str], fields: Sequence[str] = FIELDS) -> dict[str, tuple[str, ...]]:
    """`response=answer,critique=comment` as our name -> the file's; a tool has several of some (`poor=Typo`).

    Raises:
        UsageError: it is written otherwise, or names none of `fields`.
    """
    found: dict[str, tuple[str, ...]] = {}
    for ours, equals, theirs in (pair.partition("=") for word in words for pair in word.split(",")):
        name = ours.strip()
        if not (equals and name and theirs.strip()):
            raise UsageError(f"--map {ours!r} is not a pair", "write --map response=answer,critique=comment")
        if name not in fields:
            near = difflib.get_close_matches(ours, fields, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            known = [field for field in fields if field not in RATINGS]
            raise UsageError(f"--map: no field {name!r}{hint}", f"fields: {', '.join(known)}")
        found[name] = (*found.get(name, ()), theirs.strip())
    return found


def rename(
    path: Path, places: Sequence[str], rows: Sequence[Row], names: Mapping[str, str] | None = None
) -> list[Row]:
    """The rows under our names: the columns of `names` (ours -> theirs), and ours as they are written in the file.

    Raises:
        UserError: the file has no such column, or a row has one of ours twice (`Response` and `response`).
    """
    there = list(dict.fromkeys(str(name) for row in rows for name in row))
    theirs = {_found(path, name, there): ours for ours, name in (names or {}).items()}
    field = {
        name: theirs.get(name)
        or (plain if (plain := plain_name(name)) in FIELDS and plain not in (names or {}) else name)
        for name in there
    }
    for place, row in zip(places, rows, strict=True):
        by_field: dict[str, str] = {}
        for name in map(str, row):
            if (other := by_field.setdefault(field[name], name)) != name:
                twice = f"the column {field[name]!r} is there twice ({other!r} and {name!r})"
                raise bad_rows(path, [(place, twice)], "rename or remove one of them")
    return [{field[str(name)]: value for name, value in row.items()} for row in rows]


def _found(path: Path, name: str, there: Sequence[str]) -> str:
    """The column that `--map` means.

    Raises:
        UserError: there is none.
    """
    found = name if name in there else next((each for each in there if plain_name(each) == plain_name(name)), None)
    if found is None:
        near = difflib.get_close_matches(name, there, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"columns: {', '.join(there)[:200]}"
        raise UserError(f"{path}: no column {name!r}", hint)
    return found


def check_names(path: Path, places: Sequence[str], rows: Sequence[Row], guess: bool = True) -> list[str]:
    """The columns (or keys) of a file that are not read, in their order. With `guess`, a name may be mistyped.

    Raises:
        UserError: there is no response, nothing is said of one, or a name looks like a mistyped one.
    """
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    others = [name for name in names if name not in FIELDS]
    if "response" not in names:
        raise UserError(f"{path}: no column 'response'", _no_response(names, places, rows))
    for name in others if guess else ():
        near = difflib.get_close_matches(plain_name(name), [each for each in COLUMNS if each not in names], 1, 0.7)
        if near:
            cure = f"rename it, or read it by --map {near[0]}={name}"
            raise UserError(f"{path}: unknown column {name!r}, did you mean {near[0]!r}?", cure)
    if not {*SAYS, *RATINGS} & set(names) and not any(_marked(row.get("response")) for row in rows):
        cure = f"one of {', '.join(SAYS)} is needed: --map critique=COLUMN; columns: {', '.join(names)[:200]}"
        raise UserError(f"{path}: nothing is said of the responses", cure)
    return others


def _no_response(names: Sequence[str], places: Sequence[str], rows: Sequence[Row]) -> str:
    for place, row in zip(places, rows[:20], strict=False):
        if "response" in map(plain_name, row.values()):
            return f"{place} looks like the header: remove what stands above it"
    near = difflib.get_close_matches("response", [plain_name(name) for name in names], n=1, cutoff=0.7)
    meant = next((name for name in names if plain_name(name) in near), "")
    found = f"did you mean 'response'? rename {meant!r}, or read it by" if meant else "say which it is:"
    return f"{found} --map response={meant or 'COLUMN'}; columns: {', '.join(names)[:200]}"


def _marked(response: object) -> bool:
    try:
        return isinstance(response, str) and has_markup(response)
    except ValueError:  # mark-up that is wrong; its row is named when it is read
        return True
