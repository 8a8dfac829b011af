"""Read preference pairs from files and published data sets.

A line is `{"prompt", "chosen", "rejected"}`, with optional `id` and `meta`. Each of the three is
text or a list of turns. An answer that is a complete conversation (UltraFeedback binarized)
includes its prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from text2grad.data.export import Pairs
from text2grad.data.files import Row, convert_rows, load_rows, required_text
from text2grad.data.keys import RECORD_KEYS
from text2grad.data.published import Response, responses_of
from text2grad.data.spans.marks import as_turns
from text2grad.errors import UserError
from text2grad.feedback import Message, Preference, Transcript, response_key

SIDES = ("chosen", "rejected")
OPENAI_SIDES = ("preferred_output", "non_preferred_output")


def read_pairs(data: str, split: str = "") -> Pairs:
    """Return the pairs of a local file or a split of a hub data set.

    Repeated pairs and pairs with equal sides are left out.

    Raises:
        UserError: it cannot be read or has no records, or a record is not a pair.
    """
    rows = load_rows(data, None, split)
    if rows[0].keys() >= RECORD_KEYS:
        cure = f"text2grad export {data} --as preference --out pairs.jsonl"
        raise UserError(f"{data} has feedback instead of pairs", cure)
    pairs_by_key: dict[tuple[object, ...], Preference] = {}
    left_out = Counter[str]()
    for pair in convert_rows(rows, data, frozenset(), _pairs_of, "preference pair"):
        if pair is None:
            left_out["undecided"] += 1
        elif response_key(pair.chosen).strip() == response_key(pair.rejected).strip():
            left_out["equal_sides"] += 1
        elif (key := (pair.prompt, pair.chosen, pair.rejected)) in pairs_by_key:
            left_out["repeated"] += 1
        else:
            pairs_by_key[key] = pair
    return Pairs(list(pairs_by_key.values()), dict(left_out))


def _pairs_of(row: Row, fallback_id: str) -> Iterator[Preference | None]:
    if all(side in row for side in OPENAI_SIDES):
        chosen, rejected = (row[side][-1]["content"] for side in OPENAI_SIDES)
        row = {"id": row.get("id"), "prompt": row["input"]["messages"], "chosen": chosen, "rejected": rejected}
    if any(side in row for side in SIDES):
        yield _pair(row, fallback_id)
        return
    responses = responses_of(row)
    if responses is None:
        raise ValueError("no 'chosen'")
    yield _published(responses)


def _pair(row: Row, fallback_id: str) -> Preference:
    (before, chosen), (other, rejected) = (_answer(row, side) for side in SIDES)
    if before != other:
        raise ValueError("'chosen' and 'rejected' answer different prompts")
    id = row.get("prompt_id") or row.get("id") or fallback_id
    prompt = before or _turns(row.get("prompt")) or as_turns(required_text(row, "prompt"))
    return Preference(id=str(id), prompt=prompt, chosen=chosen, rejected=rejected, meta=row.get("meta") or {})


def _answer(row: Row, side: str) -> tuple[tuple[Message, ...], str]:
    """Return the turns before an answer, if it is a conversation, and the answer.

    All turns of a conversation that begins with the assistant are the answer.
    """
    turns = _turns(row.get(side))
    if len(turns) > 1 and turns[0].role == "assistant":
        return (), Transcript.of_messages(turns)
    if turns and turns[-1].role != "assistant":
        raise ValueError(f"{side!r} does not end with the assistant")
    if not turns and not isinstance(row.get(side), str):
        raise ValueError(f"no {side!r}")
    return (turns[:-1], turns[-1].content) if turns else ((), row[side])


def _turns(value: object) -> tuple[Message, ...]:
    """Return the turns of a list; empty for any other value."""
    turns = value if isinstance(value, list) else []
    return tuple(Message(role=turn["role"], content=turn["content"]) for turn in turns)


def _published(responses: Sequence[Response]) -> Preference | None:
    """Return the best scored completion over the worst, or a person's correction over the draft."""
    scored = [
        (float(score), response)
        for response in responses
        if (score := response.meta.get("overall_score")) is not None
    ]
    if len(scored) > 1:
        (low, worst), *_, (high, best) = sorted(scored, key=lambda pair: pair[0])
        return _over(best, best.response, worst.response) if high > low else None
    draft = responses[0] if len(responses) == 1 else None
    if draft is None or not (draft.feedback and draft.reference):
        raise ValueError("neither two scored answers nor a draft that a person corrected")
    return _over(draft, draft.reference, draft.response)


def _over(response: Response, chosen: str, rejected: str) -> Preference:
    return Preference(id=response.id, prompt=as_turns(response.prompt), chosen=chosen, rejected=rejected)
