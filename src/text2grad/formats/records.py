"""The file that the records of a critic go into, beside those of other critics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from itertools import chain
from pathlib import Path

from text2grad.feedback import Feedback, key_of, read_jsonl, write_jsonl


def write_feedback(target: Path, records: Iterable[Feedback], replaces: str = "") -> tuple[int, int]:
    """Write records; how many they are, and how many of those that the file held stay before them.

    A record about the same response, from the same kind of critic, is replaced; of the kind `replaces`, every one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(target.name + ".new")
    about: set[bytes] = set()

    def noted() -> Iterator[Feedback]:
        for record in records:
            about.add(_identity(record))
            yield record

    try:
        count, kept = write_jsonl(fresh, noted()), 0
        if count or target.is_file():
            records = chain(other_feedback(target, replaces, about), read_jsonl(fresh, Feedback))
            kept = write_jsonl(target, records) - count
        return count, kept
    finally:
        fresh.unlink(missing_ok=True)


def other_feedback(path: Path, kind: str = "", about: Collection[bytes] = ()) -> Iterator[Feedback]:
    """What a file holds from other kinds of critics (people's, say) and not `about` the same responses."""
    for record in read_jsonl(path, Feedback) if path.is_file() else ():
        if record.source.kind != kind and _identity(record) not in about:
            yield record


def _identity(record: Feedback) -> bytes:
    """What a record is about, and the kind of critic: a later judgement of the same takes its place."""
    words = "\0".join((record.source.kind, record.id, key_of(record.response)))
    return blake2b(words.encode("utf-8", "surrogatepass"), digest_size=16).digest()
