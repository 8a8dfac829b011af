"""What all plug-ins share: examples of an engine's rows, advantages of what was paid, and what is refused."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from text2grad.align.rewards import Payment, Rewards
from text2grad.errors import UserError
from text2grad.feedback import Example, Message
from text2grad.rl.advantage import Grouping, group_advantages


def require(package: str, tested: str, install: str) -> None:
    """Refuse a package that is missing, or of another version than `tested` ("1.16" or "0.9.1").

    Raises:
        UserError: in one line, with `install`, the command that brings it.
    """
    try:
        found = version(package)
    except PackageNotFoundError:
        raise UserError(f"this needs {package} {tested}", install) from None
    if not f"{found}.".startswith(f"{tested}."):
        raise UserError(f"{package} {found}: the plug-in is written for {tested}", install)


def refuse_sums(engine: str, estimator: str, keeping: Sequence[str]) -> None:
    """Refuse an estimator that adds up the rewards of a trajectory before it uses them.

    Raises:
        UserError: the estimator is not among those that keep a reward at its token.
    """
    if estimator not in keeping:
        raise UserError(
            f"{engine}'s {estimator} adds up the rewards of a trajectory, and credit for words is lost",
            f"one of {', '.join(keeping)}",
        )


def example_of(prompt: Any, row: Mapping[str, Any]) -> Example:
    """A row of an engine's data set as an example; a plain prompt is the user's turn.

    `id` and `reference` are those of the example, all other columns its `meta`.
    """
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    known = {name: str(row[name]) for name in ("id", "reference") if row.get(name) is not None}
    messages = tuple(Message(role=turn["role"], content=turn.get("content") or "") for turn in turns)
    meta = {name: value for name, value in row.items() if name not in known}
    return Example(prompt=messages, meta=meta, **{"id": "-", **known})


def words_of(payments: Sequence[Payment], length: int) -> tuple[Tensor, Tensor]:
    """What tokens earned by themselves, (B, length), padded on the right, and which rows were judged, (B,)."""
    words = torch.zeros(len(payments), length)
    for row, payment in enumerate(payments):
        if payment.words is not None:
            words[row, : len(payment.words)] = torch.from_numpy(payment.words)
    return words, torch.tensor([payment.words is not None for payment in payments])


def advantages_of(
    payments: Sequence[Payment], groups: Iterable[Hashable], own: Sequence[Sequence[int]], words_weight: float = 1.0
) -> list[Rewards | None]:
    """A = group(verdict) + words_weight * words (`rl.advantage.group_advantages`) of each trajectory's T ids.

    `groups` says which answer one prompt, in any order; the baseline is the group's, of whole trajectories. `own`
    are their masks, and other ids get exactly 0. None where the critique failed, which counts in no baseline;
    without a verdict a trajectory is in no group, and its words count alone.
    """
    members: dict[Hashable, list[int]] = {}
    for row, (payment, group) in enumerate(zip(payments, groups, strict=True)):
        alone = payment.failures or payment.verdict is None
        members.setdefault(("alone", row) if alone else ("group", group), []).append(row)
    found: list[Rewards | None] = [None] * len(payments)
    for rows in members.values():
        chosen, length = [payments[row] for row in rows], max(len(own[row]) for row in rows)
        words, judged = words_of(chosen, length)
        learned = torch.tensor([[*map(bool, own[row])] + [False] * (length - len(own[row])) for row in rows])
        gains = torch.tensor([payment.verdict or 0.0 for payment in chosen])
        by = Grouping(len(rows), words_weight)
        paid = group_advantages(gains, words, learned & judged.view(-1, 1), by)
        for row, numbers, is_judged in zip(rows, paid, judged.tolist(), strict=True):
            found[row] = numbers[: len(own[row])].numpy() if is_judged else None
    return found
