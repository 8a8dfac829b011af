"""The samples of a run as traces of verifiers, version 1: what its readers open as a `traces.jsonl`.

Each sample is an episode of one trace, whose nodes are the messages. The policy's have their token ids, and the
numbers that verifiers has a name for: log-probabilities, the reference's, entropies, advantages. The critique, its
spans and the other numbers of each token are in `info`. A failed critique is an error of the trace and no reward.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from text2grad.errors import UserError
from text2grad.feedback import Message, turns_of
from text2grad.report.folder import Method, Sample, read_run

VERIFIERS = "0.4.0"
"""The version whose models these records are, checked field by field (tests/engines)."""
ROLES = ("system", "user", "assistant", "tool")
OWN_ROW = {"logp": "logprobs", "advantage": "advantages", "ref_logp": "reference_logprobs", "entropy": "entropies"}
"""Our numbers of a token, and the fields of a node."""
IN_INFO = ("delta", "kl", "reward", "value", "ratio", "learned")


def episodes(path: Path) -> Iterator[dict[str, Any]]:
    """All written samples of a run folder, those of its seeds too, an episode each.

    Raises:
        UserError: it is no run folder, or no samples were written.
    """
    run, none = read_run(path), True
    for each in (run, *run.seeds):
        for method in each.methods:
            for number, sample in enumerate(method.samples):
                none = False
                yield episode(sample, method, f"{each.path.name}/{method.name}", number)
    if none:
        raise UserError(f"no samples in {path}", "text2grad train writes samples into its folder as it goes")


def episode(sample: Sample, method: Method, run: str, number: int) -> dict[str, Any]:
    """One sample; `run` and its `number` there make its id."""
    id = hashlib.blake2b(f"{run}/{number}".encode(), digest_size=16).hexdigest()
    prompt = [_message(message, "") for message in sample.prompt]
    task = {"type": "Task", "data": {"id": sample.id, "prompt": prompt}}
    failure, read = sample.failure, sample.failure is None
    trace = {
        "version": 1,
        "id": id,
        "verifiers": {"version": VERIFIERS},
        "task": task,
        "agent": {"config": {"model": method.name}, "name": "policy", "trainable": not sample.probe},
        "nodes": list(nodes(sample)),
        "rewards": {"verdict": {"score": sample.score}} if sample.score is not None else {},
        "metrics": {
            name: sum(x or 0.0 for x in row) for name in ("delta", "kl", "reward") if (row := getattr(sample, name))
        },
        "info": _info(sample),
        "is_completed": True,
        "ok": read,
        "errors": [{"type": failure.kind, "message": failure.message}] if failure else [],
    }
    work = {"type": "train", "step": sample.step}
    return {
        "id": id,
        "env": {"id": "text2grad"},
        "task": task,
        "group": {"id": f"{sample.step}/{sample.id}"},
        "run": {"type": "train", "id": run, "name": method.name, "work": work},
        "ok": read,
        "traces": [trace],
    }


def _info(sample: Sample) -> dict[str, Any]:
    """What verifiers has no field for; numbers of a token in the order of the policy's own."""
    return {
        "critique": sample.critique,
        "spans": [span.model_dump(mode="json") for span in sample.spans],
        "lost": list(sample.lost),
        "probe": sample.probe,
        "tokens": sample.tokens,
        **{name: row for name in IN_INFO if (row := getattr(sample, name))},
    }


def nodes(sample: Sample) -> Iterator[dict[str, Any]]:
    """The messages of prompt and response, each behind the one before."""
    found: list[dict[str, Any]] = [{"message": _message(message, "")} for message in sample.prompt]
    for number, turn in enumerate(turns_of(sample.response)):
        found += [{"message": _message(message, str(number))} for message in turn.messages]
        words = sample.response[turn.start : turn.end]
        found.append({"message": _message(Message(role="assistant", content=words), ""), "sampled": True})
        before = turns_of(sample.response)[number - 1].end if number else -1
        rows = [row for row, start in enumerate(sample.starts) if before < start <= turn.end]
        found[-1] |= own_tokens(sample, rows)
    found += [{"message": _message(message, "last")} for message in getattr(sample.response, "after", ())]
    for place, node in enumerate(found):
        yield {"parent": place - 1, **node} if place else node


def own_tokens(sample: Sample, rows: Sequence[int]) -> dict[str, Any]:
    """The tokens of one turn of the policy; a list with a number that is not finite is left out."""
    if not sample.ids:
        return {}
    known: Mapping[str, Sequence[float | None]] = {
        "logp": sample.logp,
        "advantage": sample.advantage,
        "entropy": sample.entropy,
        "ref_logp": [
            None if now is None or change is None else now - change
            for now, change in zip(sample.logp, sample.logp_change, strict=False)
        ],
    }
    numbers = {theirs: [known[ours][row] for row in rows] for ours, theirs in OWN_ROW.items() if known[ours]}
    whole = {name: row for name, row in numbers.items() if None not in row}
    return {"token_ids": [sample.ids[row] for row in rows], "mask": [True] * len(rows), **whole}


def _message(message: Message, call: str) -> dict[str, Any]:
    """A message as verifiers types it: one of a tool answers a call, of which our records have no id."""
    role = message.role if message.role in ROLES else "user"
    return {"role": role, "content": message.content, **({"tool_call_id": call} if role == "tool" else {})}
