"""Propose what the columns of a table hold: by their names in several languages, then by what is in them.

`columns.yaml` has the names and the words of ratings. A proposal is shown before anything is done with it, so it is
no guess; where two columns, or two scales, may be meant, it names both and decides nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from text2grad.data.scale import number_of, share_of, verdict
from text2grad.data.spreadsheets.tables import is_filled
from text2grad.strict_yaml import parse_yaml

FIELDS = ("response", "prompt", "corrected", "critique", "score", "annotator")
"""What a column may hold, in the order in which they are looked for; `unused` are dates and the like."""
TEXTS = ("response", "prompt", "corrected", "critique")
EXACT, PHRASE, WORD, ENDING = 3.0, 2.0, 1.0, 0.5
"""How much of a header a known name is: all of it, several words, one word, the end of a word (`Kundenfrage`)."""
ALIKE, CLEARLY = 0.35, 0.2
"""Words that a correction shares with the response at least, and by how much one candidate must lead."""
LOOKED_AT = 200
NO_RATING = frozenset({"-", "–", "—", "?", "/", "n/a", "na", "none", "k.a.", "k. a.", "s/o", "n.v.t."})
"""Cells of ratings that have none."""
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
    """A field for which two columns, or a rating for which two scales, may be meant; `options` are what decides."""

    field: str
    candidates: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True)
class Proposal:
    """Columns by our names, the scale of the rating ("": none is needed), what is not used, and what is in doubt.

    `notes` says more of some columns, by their names; `talk` is the key of conversations, which hold what was asked
    and, unless `columns` has a response, what was answered.
    """

    columns: Mapping[str, str]
    scale: str = ""
    unused: tuple[str, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    talk: str = ""

    @property
    def line(self) -> str:
        """`Question -> prompt · Rating 1 to 5 -> score · Date: not used`."""
        pairs = [f"{theirs}{self._range(ours)} -> {ours}" for ours, theirs in self.columns.items()]
        if self.talk:
            both = "prompt" if "response" in self.columns else "prompt and response"
            pairs.insert(0, f"{self.talk} -> {both}")
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


def fields_of(header: str) -> dict[str, tuple[float, frozenset[str]]]:
    """What a header may name: field -> how much of the header says so, and in which languages."""
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


def fits(headers: Sequence[str]) -> bool:
    """True if the names of the columns say where the answers are, and one thing more."""
    matches = [fields_of(header) for header in headers if header]
    strongest = {max(fields, key=lambda ours: fields[ours][0]) for fields in matches if fields}
    return "response" in strongest and len(strongest - {"unused"}) > 1


def profile(values: Sequence[Any]) -> Profile:
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


def likeness(rows: Sequence[Mapping[str, Any]], one: str, other: str) -> float:
    """The mean share of words that two columns have in common, of rows that have both."""
    pairs = [
        ({*str(row[one]).casefold().split()}, {*str(row[other]).casefold().split()})
        for row in rows
        if is_filled(row.get(one)) and is_filled(row.get(other))
    ][:LOOKED_AT]
    return fmean([len(a & b) / max(1, len(a | b)) for a, b in pairs]) if pairs else 0.0


# Ratings.


class Rating(NamedTuple):
    """The scale of a column of ratings (`--scale`; "": its words say it themselves), or those that may be meant."""

    scale: str
    candidates: tuple[str, ...] = ()


def rating_of(header: str, values: Sequence[Any], language: str = "") -> Rating | None:
    """Read a column as ratings: by its header ("Rating (1-5)", "1 = best"), else by the values that are there.

    None: these are no ratings.
    """
    values = [value for value in values if str(value).strip().casefold() not in NO_RATING]
    different = {str(value).strip().casefold() for value in values}
    if not different or len(different) > 4 * LONGEST_RATING:
        return None
    if ordered := _word_scale(different):
        return Rating(ordered)
    if all(verdict(value) is not None or share_of(value) for value in values):
        return Rating("")
    numbers = {number_of(value) for value in values}
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
    """The scale, the worst first: turned where the header, or the language's way to grade, says that 1 is best."""
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
    """Propose what each column holds. `given` columns are as the user says; with `scaled`, so is the scale.

    `talk` is the column of conversations, which are `answered` in a column of its own or hold the answers, too.
    """
    headers = list(dict.fromkeys(name for row in rows for name in row))
    profiles = {name: profile([row.get(name) for row in rows]) for name in headers}
    chosen = dict(given or {})
    of_talk = [*(["prompt"] if talk else []), *(["response"] if talk and not answered else [])]
    chosen |= {ours: talk for ours in of_talk if ours not in chosen}
    free = [name for name in headers if name not in chosen.values() and profiles[name].values]
    matches = {name: fields_of(name) for name in free}
    language = _language(matches.values())
    doubts: list[Doubt] = []
    by_name: dict[str, list[tuple[float, str]]] = {}
    for name in free:
        for ours, strength in _strengths(name, matches[name], profiles, language).items():
            by_name.setdefault(ours, []).append((strength, name))
    _assign(by_name, chosen, doubts, rows, profiles)
    _by_content(rows, [name for name in free if not _is_unused(matches[name])], profiles, chosen, doubts, language)
    chosen = {ours: chosen[ours] for ours in _order(chosen, headers)}
    rating = rating_of(chosen["score"], profiles[chosen["score"]].values, language) if "score" in chosen else None
    if rating and rating.candidates and not scaled:
        candidates = tuple(f"{chosen['score']} {scale}" for scale in rating.candidates)
        options = tuple(f"--scale {scale}" for scale in rating.candidates)
        doubts.append(Doubt("scale", candidates, options))
    unused = tuple(name for name in headers if name not in chosen.values())
    notes = {name: "empty" for name in unused if not profiles[name].values}
    scale = rating.scale if rating and not scaled else ""
    columns = {ours: theirs for ours, theirs in chosen.items() if theirs != talk or not talk}
    return Proposal(columns, scale, unused, tuple(doubts), notes, talk)


def _order(chosen: Mapping[str, str], headers: Sequence[str]) -> list[str]:
    return sorted(chosen, key=lambda ours: headers.index(chosen[ours]) if chosen[ours] in headers else -1)


def _language(matches: Iterable[Mapping[str, tuple[float, frozenset[str]]]]) -> str:
    """The language in which most headers are names that are known in no other, else in which most are."""
    counts: Counter[str] = Counter()
    for fields in matches:
        if fields:
            _, languages = max(fields.values(), key=lambda pair: pair[0])
            counts.update({language: 1.0 / len(languages) for language in languages})
    return max(counts, key=lambda language: (counts[language], language == "en")) if counts else ""


def _is_unused(fields: Mapping[str, tuple[float, frozenset[str]]]) -> bool:
    return bool(fields) and max(fields, key=lambda ours: fields[ours][0]) == "unused"


def _strengths(
    name: str,
    fields: Mapping[str, tuple[float, frozenset[str]]],
    profiles: Mapping[str, Profile],
    language: str,
) -> dict[str, float]:
    """How likely a column holds each field, by its name; what its content excludes is left out."""
    content = profiles[name]
    longest = max(each.characters for each in profiles.values())
    rating = rating_of(name, content.values, language)
    strengths: dict[str, float] = {}
    for ours, (strength, languages) in fields.items():
        # A name of the table's own language says more: "note" is a comment in English and a grade in German.
        strength += 0.2 * (language in languages)
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


def _assign(
    by_name: Mapping[str, list[tuple[float, str]]],
    chosen: dict[str, str],
    doubts: list[Doubt],
    rows: Sequence[Mapping[str, Any]],
    profiles: Mapping[str, Profile],
) -> None:
    """Give each field the column whose name says it most, the surest first; equals are in doubt."""
    pairs = sorted(
        ((strength, ours, name) for ours, all in by_name.items() for strength, name in all), reverse=True
    )
    taken = {name: "" for name in chosen.values()}
    for strength, ours, name in pairs:
        if name in taken or ours in chosen:
            continue
        if ours == "unused":
            taken[name] = ours
            continue
        rivals = [
            other
            for other_strength, other in by_name[ours]
            if other != name and other not in taken and strength - other_strength < CLEARLY
        ]
        rivals = [other for other in rivals if not _better_elsewhere(other, ours, by_name, chosen)]
        if rivals and ours in (*TEXTS, "score"):
            both = _settled(ours, [name, *rivals], rows, profiles, chosen)
            if len(both) > 1:
                _doubt(doubts, ours, both)
                chosen.setdefault(ours, name)
                taken[name] = ours
                continue
            name = both[0]
        chosen[ours] = name
        taken[name] = ours


def _better_elsewhere(
    name: str, ours: str, by_name: Mapping[str, list[tuple[float, str]]], chosen: Mapping[str, str]
) -> bool:
    """True if a column's name says another field at least as much, which no column has yet."""
    mine = max(strength for strength, other in by_name[ours] if other == name)
    return any(
        strength >= mine
        for field, pairs in by_name.items()
        if field != ours and field not in chosen
        for strength, other in pairs
        if other == name
    )


def _settled(
    ours: str,
    names: list[str],
    rows: Sequence[Mapping[str, Any]],
    profiles: Mapping[str, Profile],
    chosen: Mapping[str, str],
) -> list[str]:
    """Those of several columns of one name that their content leaves."""
    if ours == "score":
        overall = {plain_header(name) for name in _table()["overall"]}
        named = [name for name in names if overall & {*plain_header(name).split()}]
        return named if len(named) == 1 else names
    if ours == "response":
        longest = sorted(names, key=lambda name: -profiles[name].characters)
        ahead = profiles[longest[0]].characters > 1.5 * profiles[longest[1]].characters
        return longest[:1] if ahead and likeness(rows, *longest[:2]) < ALIKE else names
    if ours == "corrected" and "response" in chosen:
        alike = sorted(((likeness(rows, chosen["response"], name), name) for name in names), reverse=True)
        return [alike[0][1]] if alike[0][0] > alike[1][0] + CLEARLY else names
    if ours == "prompt":
        texts = [name for name in names if profiles[name].is_text]
        return texts if len(texts) == 1 else names
    return names


def _doubt(doubts: list[Doubt], ours: str, names: Sequence[str]) -> None:
    shown = tuple(sorted(names))
    options = tuple(f"--map {ours}={name}" if " " not in name else f'--map "{ours}={name}"' for name in shown)
    if not any(doubt.field == ours for doubt in doubts):
        doubts.append(Doubt(ours, shown, options))


def _by_content(
    rows: Sequence[Mapping[str, Any]],
    free: Sequence[str],
    profiles: Mapping[str, Profile],
    chosen: dict[str, str],
    doubts: list[Doubt],
    language: str,
) -> None:
    """Give the fields that no name says to columns by what is in them.

    A column of single words is one of texts only where nothing else is and its name says so ("Answer": "Paris").
    """

    def texts() -> list[str]:
        return [name for name in free if name not in chosen.values() and profiles[name].is_text]

    def take_named(ours: str) -> None:
        for name in free if ours not in chosen else ():
            exact = fields_of(name).get(ours, (0.0,))[0] >= EXACT
            if exact and name not in chosen.values() and not rating_of(name, profiles[name].values, language):
                chosen[ours] = name
                return

    if "response" not in chosen and (left := texts()):
        left.sort(key=lambda name: -profiles[name].characters)
        # A correction is much like the response, and there for fewer rows.
        alike = [name for name in left[1:] if likeness(rows, left[0], name) >= ALIKE]
        group = sorted([left[0], *alike], key=lambda name: -len(profiles[name].values))
        if len(group) > 1 and len(profiles[group[0]].values) == len(profiles[group[1]].values):
            _doubt(doubts, "response", group[:2])
        elif len(group) == 1 and len(left) > 1:
            second = profiles[left[1]]
            if second.characters > 0.8 * profiles[left[0]].characters and second.questions < 0.5:
                _doubt(doubts, "response", left[:2])
        chosen["response"] = group[0]
    take_named("response")
    if "response" not in chosen:
        return
    if "corrected" not in chosen:
        alike = [name for name in texts() if likeness(rows, chosen["response"], name) >= ALIKE]
        if len(alike) > 1:
            _doubt(doubts, "corrected", alike)
        if alike:
            chosen["corrected"] = alike[0]
    if "prompt" not in chosen and (left := texts()):
        order = list(dict.fromkeys(name for row in rows for name in row))
        place = {name: order.index(name) for name in left}
        before = order.index(chosen["response"]) if chosen["response"] in order else len(order)
        full = {name: len(profiles[name].values) == len(rows) for name in left}
        likely = {name: profiles[name].questions + 0.5 * (place[name] < before) + 0.3 * full[name] for name in left}
        ranked = sorted(((likely[name], name) for name in left), reverse=True)
        if len(ranked) > 1 and ranked[0][0] - ranked[1][0] < CLEARLY:
            _doubt(doubts, "prompt", [name for _, name in ranked[:2]])
        chosen["prompt"] = ranked[0][1]
    if "critique" not in chosen and (left := texts()):
        if len(left) > 1:
            _doubt(doubts, "critique", left)
        chosen["critique"] = left[0]
    if "score" not in chosen:
        numbers = [
            name
            for name in free
            if name not in chosen.values()
            and profiles[name].different > 1
            and (rating := rating_of(name, profiles[name].values, language))
            and (rating.scale or rating.candidates or not profiles[name].is_text)
        ]
        if len(numbers) > 1:
            _doubt(doubts, "score", numbers)
        if numbers:
            chosen["score"] = numbers[0]
    for ours in TEXTS:
        take_named(ours)
