"""Propose what the columns of a table hold: by their names in several languages, then by content.

`columns.yaml` has the names, and the words of ratings. The user sees a proposal before it is used.
Where two columns, or two scales, are equally likely, the proposal names both and decides nothing.
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

from text2grad.data.scale import is_rated, parse_number, parse_scale, parse_share, score_word
from text2grad.data.spreadsheets.tables import is_filled
from text2grad.strict_yaml import parse_yaml

TEXTS = ("response", "prompt", "corrected", "critique")
EXACT, PHRASE, WORD, ENDING = 3.0, 2.0, 1.0, 0.5
"""Strengths of a name that is a whole header, several words, one word, or the end of a word."""
MIN_OVERLAP, MIN_LEAD = 0.35, 0.2
"""The share of words that a correction has in common with its response; the lead of a candidate."""
MIN_AHEAD = 0.1
"""The lead in that share of a correction that rewrites its response, over a comment."""
MIN_FILLED = 0.8
"""The share of the fullest column's cells that the responses fill."""
SAMPLE_SIZE = 200
"""The number of cells that are inspected."""
MAX_RATING_VALUES = 11
"""Distinct values of a rating: 0 to 10."""
_RANGE = re.compile(
    r"(?<![\d.])(-?\d{1,3})\s*(?:-|–|—|\.\.+|…|to|bis|à|a|al|tot|até|/|von|of)\s*(\d{1,3})(?![\d.])", re.I
)
_SYLLABLE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
"""A character of Chinese or Japanese, about half a word."""
_TOKEN = re.compile(rf"{_SYLLABLE.pattern}|[^\s\u3040-\u30ff\u3400-\u9fff]+")
_MEANING = re.compile(r"(-?\d{1,3})\s*(?:=|:|ist|is)\s*([^\W\d][\w ]*)")


class Profile(NamedTuple):
    """The filled cells of a column (`values`), and averages over them.

    Attributes:
        words: the mean number of words.
        characters: the mean number of characters.
        questions: the share that ends with a question mark.
    """

    values: list[Any]
    words: float
    characters: float
    questions: float

    @property
    def is_text(self) -> bool:
        """True if most cells are texts of several words."""
        return self.words >= 2.5

    @property
    def distinct(self) -> int:
        """The number of distinct values."""
        return len({str(value).strip().casefold() for value in self.values})


@dataclass(frozen=True)
class Doubt:
    """A field with several likely columns, or the column `rated` with several likely scales."""

    field: str
    candidates: tuple[str, ...]
    rated: str = ""

    @property
    def subject(self) -> str:
        """The field, or the scale with its column, for the user."""
        return f"{self.field} of {self.rated!r}" if self.rated else self.field

    @property
    def problem(self) -> str:
        """The candidates, in the words of an error."""
        return f"the {self.subject} may be {' or '.join(map(repr, self.candidates))}"

    @property
    def values(self) -> tuple[str, ...]:
        """The values of `--map` or `--scale` that decide."""
        return self.candidates if self.rated else tuple(f"{self.field}={name}" for name in self.candidates)

    @property
    def options(self) -> tuple[str, ...]:
        """The options that decide, for a shell."""
        flag = "--scale" if self.rated else "--map"
        return tuple(f"{flag} {shlex.quote(value)}" for value in self.values)


@dataclass(frozen=True)
class Proposal:
    """The proposed contents of the columns of a table.

    Attributes:
        columns: our field -> a column.
        scale: the scale of the rating, "" if none is needed.
        unused: columns that hold nothing of use.
        doubts: what the user has to decide.
        notes: column -> why it is unused.
        conversation: the column of conversations, which hold the prompts and, unless `columns` has
            a response, the responses.
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
            fields = "prompt" if "response" in self.columns else "prompt and response"
            pairs.insert(0, f"{self.conversation} -> {fields}")
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
    """Normalise a header: lower case, no accents, no punctuation, nothing in parentheses."""
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
    """Return name -> field -> the languages in which the name means the field."""
    names: dict[str, dict[str, frozenset[str]]] = {}
    for ours, by_language in _table()["names"].items():
        for language, listed in by_language.items():
            for name in map(plain_header, listed):
                fields = names.setdefault(name, {})
                fields[ours] = fields.get(ours, frozenset()) | {language}
    return names


def match_header(header: str) -> dict[str, tuple[float, frozenset[str]]]:
    """Return the fields that a header may mean -> (strength, languages)."""
    plain = plain_header(header)
    words = plain.split()
    matches: dict[str, tuple[float, frozenset[str]]] = {}
    for name, fields in _names().items():
        length = len(name.split())
        if name == plain:
            strength = EXACT
        elif length <= len(words) and any(words[n : n + length] == name.split() for n in range(len(words))):
            # The first of several names counts most: "comment on the answer".
            strength = (PHRASE if length > 1 else WORD) - 0.1 * words.index(name.split()[0]) + 0.01 * len(name)
        elif length == 1 and _SYLLABLE.search(name) and name in plain:
            strength = WORD + 0.1 * plain.index(name) + 0.01 * len(name)  # the last noun is the head
        elif length == 1 and len(name) > 3 and any(w.endswith(name) and len(w) > len(name) + 1 for w in words):
            strength = ENDING + 0.01 * len(name)
        else:
            continue
        for ours, languages in fields.items():
            if strength > matches.get(ours, (0.0, frozenset()))[0]:
                matches[ours] = (strength, languages)
    return matches


def names_feedback(headers: Sequence[str]) -> bool:
    """True if headers name the responses and at least one other field."""
    fields = {_strongest(match_header(header)) for header in headers if header}
    return "response" in fields and len(fields - {"unused", ""}) > 1


def profile_column(values: Sequence[Any]) -> Profile:
    """Return the averages of a column."""
    filled = [value for value in values if is_filled(value)]
    texts = [str(value) for value in filled[:SAMPLE_SIZE]]
    count = max(1, len(texts))
    return Profile(
        filled,
        sum(len(text.split()) + len(_SYLLABLE.findall(text)) / 2 for text in texts) / count,
        sum(map(len, texts)) / count,
        sum(text.rstrip().endswith(("?", "？")) for text in texts) / count,
    )


def word_overlap(rows: Sequence[Mapping[str, Any]], one: str, other: str) -> float:
    """Return the mean share of words that two columns have in common, over rows with both."""
    pairs = [
        tuple({*_TOKEN.findall(str(row[name]).casefold())} for name in (one, other))
        for row in rows
        if is_filled(row.get(one)) and is_filled(row.get(other))
    ][:SAMPLE_SIZE]
    return fmean([len(a & b) / max(1, len(a | b)) for a, b in pairs]) if pairs else 0.0


# Ratings.


class Rating(NamedTuple):
    """The scale of a column of ratings, or several likely ones.

    The scale is written as for `--scale`, "" where the words of the column need none.
    """

    scale: str
    candidates: tuple[str, ...] = ()


def detect_rating(header: str, values: Sequence[Any], language: str = "") -> Rating | None:
    """Find the scale of a column: by its header ("Rating (1-5)", "1 = best"), else by its values.

    Returns:
        None if the values are not ratings.
    """
    values = [value for value in values if is_rated(value)]
    distinct = {str(value).strip().casefold() for value in values}
    if not distinct or len(distinct) > 4 * MAX_RATING_VALUES:
        return None
    word_scales = ([word.casefold() for word in words] for words in _table()["scales"])
    if fitting := [words for words in word_scales if distinct <= {*words}]:
        shortest = min(fitting, key=len)
        return Rating(",".join(shortest))
    if all(score_word(value) is not None or parse_share(value) for value in values):
        return Rating("")
    parsed = {parse_number(value) for value in values}
    if None in parsed:
        return None
    numbers = sorted(number for number in parsed if number is not None)
    low, high = numbers[0], numbers[-1]
    declared = _header_scale(header)
    if declared and declared[0] <= low and high <= declared[1]:
        return Rating(_directed_scale(*declared, header, language))
    if low >= 0 and high <= 1 and len(numbers) > 1 and "score" in match_header(header):
        return Rating("0..1")
    if len(numbers) > MAX_RATING_VALUES:
        return None
    if not all((2 * number).is_integer() for number in numbers) or high > 10 or low < -2:
        return Rating("0..100") if 10 < high <= 100 and low >= 0 and "%" in header else None
    return _scale_of_values(numbers, header, language)


def _header_scale(header: str) -> tuple[float, float] | None:
    """Return the range of ratings in a header, such as "(1-5)" or "/ 10"."""
    if match := _RANGE.search(header):
        ends = sorted((float(match[1]), float(match[2])))
        return (ends[0], ends[1]) if ends[0] < ends[1] else None
    if match := re.search(r"/\s*(5|10|20|100)\b", header):
        return (0.0 if float(match[1]) > 10 else 1.0), float(match[1])
    return None


def _directed_scale(low: float, high: float, header: str, language: str) -> str:
    """Return the scale, worst first; reversed if header or language say that 1 is best."""
    best = {word.casefold() for word in _table()["best"]}
    for number, meaning in _MEANING.findall(header):
        if float(number) in (low, high):
            praised = any(meaning.strip().casefold().startswith(word) for word in best)
            return _scale(high, low) if praised == (float(number) == low) else _scale(low, high)
    return _scale(high, low) if low == 1 and _names_grades(header, language) else _scale(low, high)


def _names_grades(header: str, language: str) -> bool:
    """True if a header means grades where 1 is the best."""
    return plain_header(header) in map(plain_header, _table()["less_is_better"].get(language, ()))


def _scale(worst: float, best: float) -> str:
    return f"{worst:g}..{best:g}"


def _reverse(scale: str) -> str:
    worst, dots, best = scale.partition("..")
    return f"{best}..{worst}" if dots else ",".join(reversed(scale.split(",")))


def _scale_of_values(numbers: Sequence[float], header: str, language: str) -> Rating | None:
    """Choose the scale by the smallest and the largest of the sorted values."""
    low, high = numbers[0], numbers[-1]
    if low < 0:
        return Rating(_scale(-max(high, -low), max(high, -low)))
    if low == 0 and high == 1:
        return Rating("0..1")
    bottom = min(low, 1.0)
    if high <= 6 and bottom == 1 and _names_grades(header, language):
        return Rating(_directed_scale(1, 6, header, language))
    if high >= 4:
        return Rating(_directed_scale(bottom, 10 if high > 5 else 5, header, language))
    if len(numbers) < 2:
        return None
    candidates = (_directed_scale(bottom, top, header, language) for top in (high, 5))
    return Rating("", tuple(candidates))


# Proposals.


def propose(
    rows: Sequence[Mapping[str, Any]],
    mapped: Mapping[str, str] | None = None,
    has_scale: bool = False,
    conversation: str = "",
    has_answers: bool = False,
) -> Proposal:
    """Propose what each column holds.

    Args:
        rows: flat rows; see `data.paths.flatten_rows`.
        mapped: our field -> column, as the user says.
        has_scale: the user gave the scale of the rating.
        conversation: the column of conversations.
        has_answers: the answers are in another column.
    """
    headers = list(dict.fromkeys(name for row in rows for name in row))
    profiles = {name: profile_column([row.get(name) for row in rows]) for name in headers}
    columns = dict(mapped or {})
    if conversation:
        columns.setdefault("prompt", conversation)
    if conversation and not has_answers:
        columns.setdefault("response", conversation)
    free = [name for name in headers if name not in columns.values() and profiles[name].values]
    matches = {name: match_header(name) for name in free}
    draft = _Draft(rows, headers, profiles, columns, _language(matches.values()))
    strengths = {name: draft.strengths(name, matches[name]) for name in free}
    draft.assign_by_name(strengths)
    draft.assign_by_content([name for name in free if strengths[name].keys() != {"unused"}])
    draft.swap_emptier_response(mapped or {})
    draft.swap_distant_correction(mapped or {})
    order = {name: number for number, name in enumerate(headers)}
    columns = dict(sorted(columns.items(), key=lambda item: order.get(item[1], -1)))
    rating = draft.rating(columns["score"]) if "score" in columns else None
    if rating and draft.prefers_corrected(rating.scale):
        rating = Rating("", (rating.scale, _reverse(rating.scale)))
    if rating and rating.candidates and not has_scale:
        draft.doubts.append(Doubt("scale", rating.candidates, columns["score"]))
    unused = tuple(name for name in headers if name not in columns.values())
    notes = {name: "empty" for name in unused if not profiles[name].values}
    if "score" not in columns:
        graded = [name for name in free if "score" in matches[name] and not profiles[name].is_text]
        notes |= {name: draft.unread_rating(name) for name in graded if name in unused}
    scale = rating.scale if rating and not has_scale else ""
    if conversation:
        columns = {ours: name for ours, name in columns.items() if name != conversation}
    return Proposal(columns, scale, unused, tuple(draft.doubts), notes, conversation)


def _language(matches: Iterable[Mapping[str, tuple[float, frozenset[str]]]]) -> str:
    """Return the language of the headers; a name counts less if it occurs in several languages."""
    counts: Counter[str] = Counter()
    for fields in matches:
        if fields:
            _, languages = max(fields.values(), key=lambda pair: pair[0])
            counts.update({language: 1.0 / len(languages) for language in languages})
    return max(counts, key=lambda language: (counts[language], language == "en")) if counts else ""


def _strongest(fields: Mapping[str, tuple[float, frozenset[str]]]) -> str:
    """Return the field that a header means most, or ""."""
    return max(fields, key=lambda ours: fields[ours][0], default="")


@dataclass
class _Draft:
    """A proposal in progress: our fields -> `columns` so far, and the doubts."""

    rows: Sequence[Mapping[str, Any]]
    headers: Sequence[str]
    profiles: Mapping[str, Profile]
    columns: dict[str, str]
    language: str
    doubts: list[Doubt] = field(default_factory=list)

    def rating(self, name: str) -> Rating | None:
        """Find the scale of a column; see `detect_rating`."""
        return detect_rating(name, self.profiles[name].values, self.language)

    def strengths(self, name: str, fields: Mapping[str, tuple[float, frozenset[str]]]) -> dict[str, float]:
        """Return the strengths of a column's fields, without those that its content excludes."""
        content = self.profiles[name]
        longest = max(profile.characters for profile in self.profiles.values())
        rating = self.rating(name)
        strengths: dict[str, float] = {}
        for ours, (strength, languages) in fields.items():
            # A name in the language of the table counts more: "note" is a comment in English and a
            # grade in German.
            strength += 0.2 * (self.language in languages)
            if ours in TEXTS and (rating or content.words < 1.2) and not content.is_text:
                continue
            if ours == "score" and rating is None:
                continue
            if ours == "unused" and content.is_text and plain_header(name) not in _names():  # "Version with edits"
                continue
            if ours == "annotator" and rating and "score" in fields:
                continue
            if ours == "annotator" and (content.words > 3 or content.distinct > max(3, 0.7 * len(content.values))):
                continue
            if ours == "response":
                strength += 0.3 * content.characters / longest
            strengths[ours] = strength
        if "unused" in strengths and len(strengths) > 1 and strengths["unused"] >= max(strengths.values()):
            return {"unused": strengths["unused"]}
        return strengths

    def assign_by_name(self, strengths: Mapping[str, Mapping[str, float]]) -> None:
        """Give each field its strongest column, the strongest of all first; ties are doubts."""
        pairs = [(strength, ours, name) for name in strengths for ours, strength in strengths[name].items()]
        assigned = {*self.columns.values()}
        for strength, ours, name in sorted(pairs, reverse=True):
            if name in assigned or ours in self.columns:
                continue
            if ours == "unused":
                assigned.add(name)
                continue
            rivals = [
                other
                for other, fields in strengths.items()
                if ours in fields and other != name and other not in assigned and strength - fields[ours] < MIN_LEAD
            ]
            rivals = [other for other in rivals if not self._is_better_elsewhere(strengths[other], ours)]
            names = self._narrow_down(ours, [name, *rivals]) if rivals and ours in (*TEXTS, "score") else [name]
            if len(names) > 1:
                self._doubt(ours, names)
            self.columns[ours] = name if len(names) > 1 else names[0]
            assigned.add(self.columns[ours])

    def _is_better_elsewhere(self, fields: Mapping[str, float], ours: str) -> bool:
        """True if a column means another open field at least as much."""
        others = fields.keys() - {ours} - self.columns.keys()
        return any(fields[other] >= fields[ours] for other in others)

    def _narrow_down(self, ours: str, names: list[str]) -> list[str]:
        """Return those of several candidate columns that remain by their content."""
        if ours == "score":
            overall = {plain_header(name) for name in _table()["overall"]}
            named = [name for name in names if overall & {*plain_header(name).split()}]
            return named if len(named) == 1 else names
        if ours == "response":
            longest = sorted(self._fullest(names), key=lambda name: -self.profiles[name].characters)
            if len(longest) == 1:
                return longest
            if word_overlap(self.rows, *longest[:2]) >= MIN_OVERLAP:  # one corrects the other, in fewer rows
                fullest = sorted(names, key=lambda name: -len(self.profiles[name].values))
                ahead = len(self.profiles[fullest[0]].values) > len(self.profiles[fullest[1]].values)
                return fullest[:1] if ahead else names
            ahead = self.profiles[longest[0]].characters > 1.5 * self.profiles[longest[1]].characters
            return longest[:1] if ahead else names
        if ours == "corrected" and "response" in self.columns:
            overlaps = [(word_overlap(self.rows, self.columns["response"], name), name) for name in names]
            (best, name), (second, _) = sorted(overlaps, reverse=True)[:2]
            return [name] if best > second + MIN_LEAD else names
        if ours == "prompt":
            texts = [name for name in names if self.profiles[name].is_text]
            return texts if len(texts) == 1 else names
        return names

    def _fullest(self, names: Sequence[str]) -> list[str]:
        """Return the columns with about as many filled cells as the fullest."""
        counts = {name: len(self.profiles[name].values) for name in names}
        return [name for name in names if counts[name] >= MIN_FILLED * max(counts.values())]

    def _doubt(self, ours: str, names: Sequence[str]) -> None:
        if not any(doubt.field == ours for doubt in self.doubts):
            self.doubts.append(Doubt(ours, tuple(sorted(names))))

    def assign_by_content(self, names: Sequence[str]) -> None:
        """Give the remaining fields to columns by their content.

        A column of single words holds texts only if no other column does and its name is exactly
        the field ("Answer": "Paris").
        """
        # Corrections that rewrite the response are recognised once the prompt is known.
        for ours in ("response", "corrected", "prompt", "corrected", "critique", "score"):
            if ours not in self.columns:
                ranked, ties = self._candidates(ours, names)
                if len(ties) > 1:
                    self._doubt(ours, ties)
                if ranked:
                    self.columns[ours] = ranked[0]
                elif ours == "response":
                    self._take_named(ours, names)
            if "response" not in self.columns:
                return
        for ours in TEXTS:
            self._take_named(ours, names)

    def swap_emptier_response(self, mapped: Mapping[str, str]) -> None:
        """Swap the response and the correction if more rows have the correction."""
        response, corrected = self.columns.get("response", ""), self.columns.get("corrected", "")
        if mapped.keys() & {"response", "corrected"} or not (response and corrected):
            return
        if len(self.profiles[response].values) < len(self.profiles[corrected].values):
            self.columns.update(response=corrected, corrected=response)

    def swap_distant_correction(self, mapped: Mapping[str, str]) -> None:
        """Swap a correction that is not plainly named so and a critique more like the response."""
        names = [self.columns.get(ours, "") for ours in ("response", "corrected", "critique")]
        response, corrected, critique = names
        is_named = match_header(corrected).get("corrected", (0.0,))[0] >= EXACT
        if is_named or mapped.keys() & {"response", "corrected", "critique"} or not all(names):
            return
        lead = word_overlap(self.rows, response, critique) - word_overlap(self.rows, response, corrected)
        if lead >= MIN_AHEAD:
            self.columns.update(corrected=critique, critique=corrected)

    def unread_rating(self, name: str) -> str:
        """Say which option would read a column with the name of a rating, and other values."""
        values = sorted({str(value).strip() for value in self.profiles[name].values})
        scale = "WORST,...,BEST" if None in map(parse_number, values) else "WORST..BEST"
        cure = f"--map {shlex.quote(f'score={name}')} --scale {scale}"
        return f"not used, the scale of its values is unknown: {', '.join(values)[:60]} ({cure})"

    def prefers_corrected(self, scale: str) -> bool:
        """True if a scale rates the answers that people changed much better than the others."""
        ours = [self.columns.get(name, "") for name in ("response", "corrected", "score")]
        if not all(ours) or not scale:
            return False
        scores: dict[bool, list[float]] = {True: [], False: []}
        for response, corrected, value in ([row.get(name) for name in ours] for row in self.rows):
            score = parse_scale(scale).score(value) if is_filled(value) else None
            if score is not None:
                scores[is_filled(corrected) and corrected != response].append(score)
        return min(map(len, scores.values())) > 2 and fmean(scores[True]) > fmean(scores[False]) + 0.5

    def _take_named(self, ours: str, names: Sequence[str]) -> None:
        """Give a field to a column with exactly its name that holds no ratings."""
        for name in names if ours not in self.columns else ():
            exact = match_header(name).get(ours, (0.0,))[0] >= EXACT
            if exact and name not in self.columns.values() and not self.rating(name):
                self.columns[ours] = name
                return

    def _candidates(self, ours: str, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the columns that may hold a field, the likeliest first, and the ties."""
        free = [name for name in names if name not in self.columns.values()]
        texts = [name for name in free if self.profiles[name].is_text]
        if ours == "response":
            return self._responses(texts)
        if ours == "prompt":
            return self._prompts(texts)
        if ours == "critique":
            return texts, texts
        if ours == "corrected":
            response = self.columns["response"]
            overlaps = {name: word_overlap(self.rows, response, name) for name in texts}
            similar = [name for name in texts if overlaps[name] >= MIN_OVERLAP]
            first, second = sorted([*overlaps.values(), 0.0, 0.0], reverse=True)[:2]
            if not similar and "prompt" in self.columns and first - second >= MIN_AHEAD:
                similar = [max(overlaps, key=lambda name: overlaps[name])]
            return similar, similar
        rated = []
        for name in free:
            rating = self.rating(name) if self.profiles[name].distinct > 1 else None
            # Words that need no scale may also be a short comment.
            if rating and (rating.scale or rating.candidates or name not in texts):
                rated.append(name)
        return rated, rated

    def _responses(self, texts: Sequence[str]) -> tuple[list[str], list[str]]:
        """Rank the longest text first, or the similar one (its correction) that more rows have."""
        texts = sorted(texts, key=lambda name: -self.profiles[name].characters)
        if not texts:
            return [], []
        similar = [name for name in texts[1:] if word_overlap(self.rows, texts[0], name) >= MIN_OVERLAP]
        texts = texts if similar else self._fullest(texts)
        group = sorted([texts[0], *similar], key=lambda name: -len(self.profiles[name].values))
        leading = (group if similar else texts)[:2]
        first, *others = (self.profiles[name] for name in leading)
        if similar:
            is_tie = len(first.values) == len(others[0].values)
        else:
            is_tie = any(other.characters > 0.8 * first.characters and other.questions < 0.5 for other in others)
        return group, leading if is_tie else []

    def _prompts(self, texts: Sequence[str]) -> tuple[list[str], list[str]]:
        """Rank texts with question marks, before the response, and in every row first."""
        response = self.columns["response"]
        before = self.headers.index(response) if response in self.headers else len(self.headers)

        def likelihood(name: str) -> float:
            content = self.profiles[name]
            full = len(content.values) == len(self.rows)
            return content.questions + 0.5 * (self.headers.index(name) < before) + 0.3 * full

        likely = [name for name in texts if likelihood(name) >= 0.5]  # after the response, no question: a comment
        ranked = sorted(likely, key=lambda name: (likelihood(name), name), reverse=True)
        is_tie = len(ranked) > 1 and likelihood(ranked[0]) - likelihood(ranked[1]) < MIN_LEAD
        return ranked, ranked[:2] if is_tie else []
