"""Propose what the columns of a table hold: by their names in several languages, then by what is in
them.

`columns.yaml` has the names and the words of ratings. A proposal is shown before anything is done
with it, so it is no guess; where two columns, or two scales, may be meant, it names both and
decides nothing.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from text2grad.data.scale import is_rated, parse_number, parse_share, score_word
from text2grad.data.spreadsheets.tables import is_filled
from text2grad.strict_yaml import parse_yaml

TEXTS = ("response", "prompt", "corrected", "critique")
EXACT, PHRASE, WORD, ENDING = 3.0, 2.0, 1.0, 0.5
"""Weights of a known name that is all of a header, several words, one word, the end of one
(`Kundenfrage`)."""
ALIKE, CLEARLY = 0.35, 0.2
"""Words that a correction shares with the response at least, and by how much one candidate must
lead."""
LOOKED_AT = 200
LONGEST_RATING = 11
"""Different values of a rating at most: 0 to 10."""
_RANGE = re.compile(
    r"(?<![\d.])(-?\d{1,3})\s*(?:-|–|—|\.\.+|…|to|bis|à|a|al|tot|até|/|von|of)\s*(\d{1,3})(?![\d.])", re.I
)
_MEANING = re.compile(r"(-?\d{1,3})\s*(?:=|:|ist|is)\s*([^\W\d][\w ]*)")


class Profile(NamedTuple):
    """The content of a column: values that are filled, and figures of them."""

    values: list[Any]
    rows: int
    words: float
    characters: float
    questions: float

    @property
    def is_text(self) -> bool:
        """True for texts of several words in most cells."""
        return self.words >= 2.5

    @property
    def different(self) -> int:
        """The number of different values."""
        return len({str(value).strip().casefold() for value in self.values})


@dataclass(frozen=True)
class Doubt:
    """A field for which several columns may be meant, or the scales that the column `rated` may
    have."""

    field: str
    candidates: tuple[str, ...]
    rated: str = ""

    @property
    def subject(self) -> str:
        """The field, or the scale with its column."""
        return f"{self.field} of {self.rated!r}" if self.rated else self.field

    @property
    def values(self) -> tuple[str, ...]:
        """The values of --map, or of --scale, that decide."""
        return self.candidates if self.rated else tuple(f"{self.field}={name}" for name in self.candidates)

    @property
    def options(self) -> tuple[str, ...]:
        """The options that decide."""
        flag = "--scale" if self.rated else "--map"
        return tuple(f"{flag} {shlex.quote(value)}" for value in self.values)


@dataclass(frozen=True)
class Proposal:
    """Columns by our names, the scale of the rating ("": none is needed), what is not used, and
    what is in doubt.

    `notes` says more of some columns, by their names; `talk` is the key of conversations, which
    hold what was asked and, unless `columns` has a response, what was answered.
    """

    columns: Mapping[str, str]
    scale: str = ""
    unused: tuple[str, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    conversation: str = ""

    @property
    def line(self) -> str:
        """`Question -> prompt · Rating 1 to 5 -> score · Date: not used`."""
        pairs = [f"{theirs}{self._range(ours)} -> {ours}" for ours, theirs in self.columns.items()]
        if self.conversation:
            both = "prompt" if "response" in self.columns else "prompt and response"
            pairs.insert(0, f"{self.conversation} -> {both}")
        return " · ".join([*pairs, *(f"{name}: {self.notes.get(name, 'not used')}" for name in self.unused)])

    def _range(self, ours: str) -> str:
        if ours != "score" or not self.scale:
            return ""
        worst, dots, best = self.scale.partition("..")
        return f" {worst} (worst) to {best} (best)" if dots else f" {self.scale.replace(',', ', ')}"

    @property
    def mapping(self) -> list[str]:
        """The columns as `import --map` takes them."""
        return [f"{ours}={theirs}" for ours, theirs in self.columns.items()]


def plain_header(name: str) -> str:
    """A header in small letters without accents, punctuation and what stands in parentheses."""
    name = re.sub(r"\([^)]*\)|\[[^\]]*\]", " ", name)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    letters = unicodedata.normalize("NFKD", name.casefold())
    letters = "".join(character for character in letters if not unicodedata.combining(character))
    return " ".join(re.findall(r"[^\W_]+", letters))


@cache
def _table() -> Mapping[str, Any]:
    content: dict[str, Any] = parse_yaml(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return content


@cache
def _names() -> Mapping[str, Mapping[str, frozenset[str]]]:
    """Known name -> field -> the languages in which it holds that."""
    names: dict[str, dict[str, frozenset[str]]] = {}
    for ours, by_language in _table()["names"].items():
        for language, listed in by_language.items():
            for name in map(plain_header, listed):
                fields = names.setdefault(name, {})
                fields[ours] = fields.get(ours, frozenset()) | {language}
    return names


def match_header(header: str) -> dict[str, tuple[float, frozenset[str]]]:
    """Return the fields that a header may name -> how much of the header says so, and in which
    languages."""
    plain = plain_header(header)
    words = plain.split()
    matches: dict[str, tuple[float, frozenset[str]]] = {}
    for name, fields in _names().items():
        length = len(name.split())
        if name == plain:
            strength = EXACT
        elif length <= len(words) and any(words[n : n + length] == name.split() for n in range(len(words))):
            # Of several names in a header the first says most: "comment on the answer".
            strength = (PHRASE if length > 1 else WORD) - 0.1 * words.index(name.split()[0]) + 0.01 * len(name)
        elif length == 1 and len(name) > 3 and any(w.endswith(name) and len(w) > len(name) + 1 for w in words):
            strength = ENDING + 0.01 * len(name)
        else:
            continue
        for ours, languages in fields.items():
            if strength > matches.get(ours, (0.0, frozenset()))[0]:
                matches[ours] = (strength, languages)
    return matches


def names_feedback(headers: Sequence[str]) -> bool:
    """True if the names of the columns say where the answers are, and one thing more."""
    matches = [match_header(header) for header in headers if header]
    strongest = {max(fields, key=lambda ours: fields[ours][0]) for fields in matches if fields}
    return "response" in strongest and len(strongest - {"unused"}) > 1


def profile_column(values: Sequence[Any]) -> Profile:
    """The figures of a column."""
    filled = [value for value in values if is_filled(value)]
    texts = [str(value) for value in filled[:LOOKED_AT]]
    count = max(1, len(texts))
    return Profile(
        filled,
        len(values),
        sum(len(text.split()) for text in texts) / count,
        sum(map(len, texts)) / count,
        sum(text.rstrip().endswith(("?", "？")) for text in texts) / count,
    )


def word_overlap(rows: Sequence[Mapping[str, Any]], one: str, other: str) -> float:
    """The mean share of words that two columns have in common, of rows that have both."""
    pairs = [
        ({*str(row[one]).casefold().split()}, {*str(row[other]).casefold().split()})
        for row in rows
        if is_filled(row.get(one)) and is_filled(row.get(other))
    ][:LOOKED_AT]
    return fmean([len(a & b) / max(1, len(a | b)) for a, b in pairs]) if pairs else 0.0


# Ratings.


class Rating(NamedTuple):
    """The scale of a column of ratings (`--scale`; "": its words say it themselves), or those that
    may be meant."""

    scale: str
    candidates: tuple[str, ...] = ()


def detect_rating(header: str, values: Sequence[Any], language: str = "") -> Rating | None:
    """Read a column as ratings: by its header ("Rating (1-5)", "1 = best"), else by the values that
    are there.

    None: these are no ratings.
    """
    values = [value for value in values if is_rated(value)]
    different = {str(value).strip().casefold() for value in values}
    if not different or len(different) > 4 * LONGEST_RATING:
        return None
    if ordered := _word_scale(different):
        return Rating(ordered)
    if all(score_word(value) is not None or parse_share(value) for value in values):
        return Rating("")
    numbers = {parse_number(value) for value in values}
    if None in numbers or len(numbers) > LONGEST_RATING:
        return None
    known = sorted(number for number in numbers if number is not None)
    low, high = known[0], known[-1]
    declared = _declared(header)
    if declared and declared[0] <= low and high <= declared[1]:
        return Rating(_turned(*declared, header, language))
    if any(not number.is_integer() and not (2 * number).is_integer() for number in known) or high > 10 or low < -2:
        return Rating("0..100") if 10 < high <= 100 and low >= 0 and "%" in header else None
    return _by_values(known, header, language)


def _word_scale(different: set[str]) -> str:
    """The shortest scale of words that has all values; "" if none has."""
    scales = ([word.casefold() for word in words] for words in _table()["scales"])
    fitting = sorted((words for words in scales if different <= {*words}), key=len)
    return ",".join(fitting[0]) if fitting else ""


def _declared(header: str) -> tuple[float, float] | None:
    if match := _RANGE.search(header):
        ends = sorted((float(match[1]), float(match[2])))
        return (ends[0], ends[1]) if ends[0] < ends[1] else None
    if match := re.search(r"/\s*(5|10|100)\b", header):
        return (0.0 if match[1] == "100" else 1.0), float(match[1])
    return None


def _turned(low: float, high: float, header: str, language: str) -> str:
    """The scale, the worst first: turned where the header, or the language's way to grade, says
    that 1 is best."""
    best = {word.casefold() for word in _table()["best"]}
    for number, meaning in _MEANING.findall(header):
        if float(number) in (low, high):
            praised = any(meaning.strip().casefold().startswith(word) for word in best)
            return _scale(high, low) if praised == (float(number) == low) else _scale(low, high)
    return _scale(high, low) if low == 1 and _grades(header, language) else _scale(low, high)


def _grades(header: str, language: str) -> bool:
    """True if a header names grades of which 1 is the best."""
    return plain_header(header) in map(plain_header, _table()["less_is_better"].get(language, ()))


def _scale(worst: float, best: float) -> str:
    return f"{worst:g}..{best:g}"


def _by_values(known: Sequence[float], header: str, language: str) -> Rating | None:
    """The scale on which all values are, by the ends that are there."""
    low, high = known[0], known[-1]
    if low < 0:
        return Rating(_scale(-max(high, -low), max(high, -low)))
    if low == 0 and high == 1:
        return Rating("0..1")
    bottom = min(low, 1.0)
    if high <= 6 and bottom == 1 and _grades(header, language):
        return Rating(_turned(1, 6, header, language))
    if high >= 4:
        return Rating(_turned(bottom, 10 if high > 5 else 5, header, language))
    if len(known) < 2:
        return None
    return Rating("", (_turned(bottom, high, header, language), _turned(bottom, 5, header, language)))


# Proposals.


def propose(
    rows: Sequence[Mapping[str, Any]],
    given: Mapping[str, str] | None = None,
    scaled: bool = False,
    talk: str = "",
    answered: bool = False,
) -> Proposal:
    """Propose what each column holds. `given` columns are as the user says; with `scaled`, so is
    the scale.

    `talk` is the column of conversations, which are `answered` in a column of its own or hold the
    answers, too.
    """
    headers = list(dict.fromkeys(name for row in rows for name in row))
    profiles = {name: profile_column([row.get(name) for row in rows]) for name in headers}
    chosen = dict(given or {})
    of_talk = [*(["prompt"] if talk else []), *(["response"] if talk and not answered else [])]
    chosen |= {ours: talk for ours in of_talk if ours not in chosen}
    free = [name for name in headers if name not in chosen.values() and profiles[name].values]
    matches = {name: match_header(name) for name in free}
    draft = _Draft(rows, headers, profiles, chosen, _language(matches.values()))
    draft.assign_by_name({name: draft.strengths(name, matches[name]) for name in free})
    draft.assign_by_content([name for name in free if not _is_unused(matches[name])])
    chosen = {ours: chosen[ours] for ours in _order(chosen, headers)}
    rating = draft.rating(chosen["score"]) if "score" in chosen else None
    if rating and rating.candidates and not scaled:
        draft.doubts.append(Doubt("scale", rating.candidates, chosen["score"]))
    unused = tuple(name for name in headers if name not in chosen.values())
    notes = {name: "empty" for name in unused if not profiles[name].values}
    scale = rating.scale if rating and not scaled else ""
    columns = {ours: theirs for ours, theirs in chosen.items() if theirs != talk or not talk}
    return Proposal(columns, scale, unused, tuple(draft.doubts), notes, talk)


def _order(chosen: Mapping[str, str], headers: Sequence[str]) -> list[str]:
    return sorted(chosen, key=lambda ours: headers.index(chosen[ours]) if chosen[ours] in headers else -1)


def _language(matches: Iterable[Mapping[str, tuple[float, frozenset[str]]]]) -> str:
    """The language in which most headers are names that are known in no other, else in which most
    are."""
    counts: Counter[str] = Counter()
    for fields in matches:
        if fields:
            _, languages = max(fields.values(), key=lambda pair: pair[0])
            counts.update({language: 1.0 / len(languages) for language in languages})
    return max(counts, key=lambda language: (counts[language], language == "en")) if counts else ""


def _is_unused(fields: Mapping[str, tuple[float, frozenset[str]]]) -> bool:
    return bool(fields) and max(fields, key=lambda ours: fields[ours][0]) == "unused"


@dataclass
class _Draft:
    """A proposal in the making: the columns that are `chosen` so far, by our names, and the
    doubts."""

    rows: Sequence[Mapping[str, Any]]
    headers: Sequence[str]
    profiles: Mapping[str, Profile]
    chosen: dict[str, str]
    language: str
    doubts: list[Doubt] = field(default_factory=list)

    def rating(self, name: str) -> Rating | None:
        """The ratings in a column; see `rating_of`."""
        return detect_rating(name, self.profiles[name].values, self.language)

    def strengths(self, name: str, fields: Mapping[str, tuple[float, frozenset[str]]]) -> dict[str, float]:
        """Return how surely a column's name says each field, without those that its content
        excludes."""
        content = self.profiles[name]
        longest = max(profile.characters for profile in self.profiles.values())
        rating = self.rating(name)
        strengths: dict[str, float] = {}
        for ours, (strength, languages) in fields.items():
            # A name of the table's own language says more: "note" is a comment in English and a
            # grade in German.
            strength += 0.2 * (self.language in languages)
            if ours in TEXTS and (rating or content.words < 1.2) and not content.is_text:
                continue
            if ours == "score" and rating is None:
                continue
            if ours == "annotator" and rating and "score" in fields:
                continue
            if ours == "annotator" and (content.words > 3 or content.different > max(3, 0.7 * len(content.values))):
                continue
            if ours == "response":
                strength += 0.3 * content.characters / longest
            strengths[ours] = strength
        if "unused" in strengths and len(strengths) > 1 and strengths["unused"] >= max(strengths.values()):
            return {"unused": strengths["unused"]}
        return strengths

    def assign_by_name(self, strengths: Mapping[str, Mapping[str, float]]) -> None:
        """Give each field the column whose name says it most, the surest first; equals are in
        doubt."""
        pairs = [(strength, ours, name) for name in strengths for ours, strength in strengths[name].items()]
        taken = {*self.chosen.values()}
        for strength, ours, name in sorted(pairs, reverse=True):
            if name in taken or ours in self.chosen:
                continue
            if ours == "unused":
                taken.add(name)
                continue
            rivals = [
                other
                for other, fields in strengths.items()
                if ours in fields and other != name and other not in taken and strength - fields[ours] < CLEARLY
            ]
            rivals = [other for other in rivals if not self._is_better_elsewhere(strengths[other], ours)]
            names = self._settled(ours, [name, *rivals]) if rivals and ours in (*TEXTS, "score") else [name]
            if len(names) > 1:
                self._doubt(ours, names)
            self.chosen[ours] = name if len(names) > 1 else names[0]
            taken.add(self.chosen[ours])

    def _is_better_elsewhere(self, fields: Mapping[str, float], ours: str) -> bool:
        """True if a column's name says another field at least as much, which no column has yet."""
        others = fields.keys() - {ours} - self.chosen.keys()
        return any(fields[other] >= fields[ours] for other in others)

    def _settled(self, ours: str, names: list[str]) -> list[str]:
        """Return those of several columns of one name that their content leaves."""
        if ours == "score":
            overall = {plain_header(name) for name in _table()["overall"]}
            named = [name for name in names if overall & {*plain_header(name).split()}]
            return named if len(named) == 1 else names
        if ours == "response":
            longest = sorted(names, key=lambda name: -self.profiles[name].characters)
            ahead = self.profiles[longest[0]].characters > 1.5 * self.profiles[longest[1]].characters
            return longest[:1] if ahead and word_overlap(self.rows, *longest[:2]) < ALIKE else names
        if ours == "corrected" and "response" in self.chosen:
            alike = sorted(
                ((word_overlap(self.rows, self.chosen["response"], name), name) for name in names), reverse=True
            )
            return [alike[0][1]] if alike[0][0] > alike[1][0] + CLEARLY else names
        if ours == "prompt":
            texts = [name for name in names if self.profiles[name].is_text]
            return texts if len(texts) == 1 else names
        return names

    def _doubt(self, ours: str, names: Sequence[str]) -> None:
        if not any(doubt.field == ours for doubt in self.doubts):
            self.doubts.append(Doubt(ours, tuple(sorted(names))))

    def assign_by_content(self, names: Sequence[str]) -> None:
        """Give the fields that no name says to columns by what is in them.

        A column of single words holds texts only where no other does and its name says so
        ("Answer": "Paris").
        """
        for ours, candidates in (
            ("response", self._responses),
            ("corrected", self._corrections),
            ("prompt", self._prompts),
            ("critique", self._critiques),
            ("score", self._scores),
        ):
            if ours not in self.chosen:
                likely, equals = candidates(names)
                if len(equals) > 1:
                    self._doubt(ours, equals)
                if likely:
                    self.chosen[ours] = likely[0]
                elif ours == "response":
                    self._take_named(ours, names)
            if "response" not in self.chosen:
                return
        for ours in TEXTS:
            self._take_named(ours, names)

    def _texts(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self.chosen.values() and self.profiles[name].is_text]

    def _take_named(self, ours: str, names: Sequence[str]) -> None:
        """Give a field to a column of single words that are no ratings, if its name is exactly
        that."""
        for name in names if ours not in self.chosen else ():
            exact = match_header(name).get(ours, (0.0,))[0] >= EXACT
            if exact and name not in self.chosen.values() and not self.rating(name):
                self.chosen[ours] = name
                return

    # The columns that may hold a field, the likeliest first, and those among which the content does
    # not decide.

    def _responses(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """The longest text, unless what is much like it (its correction) is there for more rows."""
        texts = sorted(self._texts(names), key=lambda name: -self.profiles[name].characters)
        if not texts:
            return [], []
        alike = [name for name in texts[1:] if word_overlap(self.rows, texts[0], name) >= ALIKE]
        group = sorted([texts[0], *alike], key=lambda name: -len(self.profiles[name].values))
        first, *others = (self.profiles[name] for name in (group if alike else texts)[:2])
        if alike:
            equal = len(first.values) == len(others[0].values)
        else:
            equal = any(other.characters > 0.8 * first.characters and other.questions < 0.5 for other in others)
        return group, (group if alike else texts)[:2] if equal else []

    def _corrections(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Texts much like the response."""
        response = self.chosen["response"]
        alike = [name for name in self._texts(names) if word_overlap(self.rows, response, name) >= ALIKE]
        return alike, alike

    def _prompts(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Texts by their question marks, before the response, and in every row."""
        response = self.chosen["response"]
        before = self.headers.index(response) if response in self.headers else len(self.headers)

        def likely(name: str) -> float:
            content = self.profiles[name]
            full = len(content.values) == len(self.rows)
            return content.questions + 0.5 * (self.headers.index(name) < before) + 0.3 * full

        ranked = sorted(self._texts(names), key=lambda name: (likely(name), name), reverse=True)
        equal = len(ranked) > 1 and likely(ranked[0]) - likely(ranked[1]) < CLEARLY
        return ranked, ranked[:2] if equal else []

    def _critiques(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Every other text."""
        texts = self._texts(names)
        return texts, texts

    def _scores(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Ratings with several values."""
        free = [name for name in names if name not in self.chosen.values() and self.profiles[name].different > 1]
        rated = [
            name
            for name in free
            if (rating := self.rating(name))
            and (rating.scale or rating.candidates or not self.profiles[name].is_text)
        ]
        return rated, rated
