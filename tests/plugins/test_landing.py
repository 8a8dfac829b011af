"""The check that every plug-in is tested with sees each way in which credit fails to land."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from page import shown_on_page
from text2grad.align.rewards import ScoredTrajectory, TokenCredit
from text2grad.align.trajectory import Trajectory
from text2grad.errors import UserError
from text2grad.feedback import Example, Failure, Message
from text2grad.plugins import check_landing
from text2grad.plugins.credit import Reward, compute_advantages, credit_metrics, mix_rewards
from text2grad.plugins.landing import Case, Row, landing_cases

PAD = 3
Fault = Callable[[list[Row | None], Sequence[Case]], Any]


def rows_of(credit: TokenCredit, cases: Sequence[Case], rewards: bool = False) -> list[Row | None]:
    """What an engine does that pads prompts on the left and trajectories on the right."""
    outcomes = credit.score_batch([case.trajectory for case in cases])
    batch = [case.trajectory for case in cases]
    found: list[Any] = compute_advantages(outcomes, [case.group for case in cases], batch)
    if rewards:
        found = [outcome.rewards for outcome in outcomes]
    return [row_of(case, numbers) for case, numbers in zip(cases, found, strict=True)]


def row_of(case: Case, numbers: Any) -> Row:
    judged = numbers is not None
    before, after = [0] * (12 + len(case.prompt) % 5), [0] * PAD
    ids = [*before, *case.prompt, *case.trajectory.ids, *after]
    front = np.zeros(len(before) + len(case.prompt))
    inner = numbers if judged else np.zeros(len(case.mask))
    mask = case.mask if judged else np.zeros(len(case.mask))
    return Row(ids, np.concatenate([front, inner, np.zeros(PAD)]), np.concatenate([front, mask, np.zeros(PAD)]))


@pytest.mark.parametrize("name", ["tokenizer", "sentencepiece_tokenizer"])
@pytest.mark.parametrize("rewards", [False, True])
def test_what_lands_passes(name: str, rewards: bool, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(name)
    more = {"outcome": None} if rewards else {}
    blamed = check_landing(lambda credit, cases: rows_of(credit, cases, rewards), tokenizer, **more)
    assert blamed == sum(case.blamed.sum() for case in landing_cases(tokenizer) if case.verdict is not None)
    assert blamed >= 8


def changed(number: int, change: Callable[[Any, Any, Case], None]) -> Fault:
    """A fault of one row: `change` is given copies of its numbers and its mask."""

    def fault(rows: list[Row | None], cases: Sequence[Case]) -> None:
        row = rows[number]
        assert row is not None
        numbers, mask = np.array(row.numbers), np.array(row.mask)
        change(numbers, mask, cases[number])
        rows[number] = row._replace(numbers=numbers, mask=mask)

    return fault


def start_of(numbers: Any, case: Case) -> int:
    return len(numbers) - PAD - len(case.mask)


def shift(numbers: Any, mask: Any, case: Case) -> None:
    numbers[:] = np.roll(numbers, 1)


def pay_tool(numbers: Any, mask: Any, case: Case) -> None:
    numbers[start_of(numbers, case) + int(np.flatnonzero(case.mask == 0)[0])] = -1


def pay_half_a_character(numbers: Any, mask: Any, case: Case) -> None:
    numbers[start_of(numbers, case) + int(np.flatnonzero(case.blamed)[-1])] += 1


def pay_padding(numbers: Any, mask: Any, case: Case) -> None:
    numbers[-1] = 0.5


def pay_prompt(numbers: Any, mask: Any, case: Case) -> None:
    numbers[start_of(numbers, case) - 1] = 0.5


def train_on_tool(numbers: Any, mask: Any, case: Case) -> None:
    mask[start_of(numbers, case) :] = 1


def last_to_the_tool(numbers: Any, mask: Any, case: Case) -> None:
    last = start_of(numbers, case) + int(np.flatnonzero(case.mask)[-1])
    numbers[-PAD - 1], numbers[last] = numbers[last], 0


def drop_first(rows: list[Row | None], cases: Sequence[Case]) -> None:
    rows[0] = None


def keep_failed(rows: list[Row | None], cases: Sequence[Case]) -> None:
    row = rows[7]
    assert row is not None
    rows[7] = row._replace(mask=None)


def compare_with_failed(rows: list[Row | None], cases: Sequence[Case]) -> None:
    for number in range(4, 7):
        changed(number, lambda numbers, mask, case: np.add(numbers, 0.1 * mask, out=numbers))(rows, cases)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (changed(0, shift), "one turn: 1 ids of the prompt or the padding"),
        (changed(2, pay_tool), "a tool between: id"),
        (changed(6, pay_half_a_character), "several tokens: id"),
        (changed(1, pay_padding), "nothing blamed: 1 ids of the prompt or the padding"),
        (changed(4, pay_prompt), "cut in a character: 1 ids of the prompt"),
        (changed(3, train_on_tool), "ends with a tool: the loss mask"),
        (drop_first, "one turn: it was judged"),
        (keep_failed, "not judged: its critic failed"),
        (compare_with_failed, "cut in a character: id"),
        (lambda rows, cases: rows.pop(), "7 rows for 8 trajectories"),
    ],
)
def test_a_fault_fails(fault: Fault, words: str, tokenizer: PreTrainedTokenizerFast) -> None:
    def land(credit: TokenCredit, cases: Sequence[Case]) -> list[Row | None]:
        rows = rows_of(credit, cases)
        fault(rows, cases)
        return rows

    with pytest.raises(AssertionError, match=words):
        check_landing(land, tokenizer)


def test_a_verdict_on_a_tools_last_word_fails(tokenizer: PreTrainedTokenizerFast) -> None:
    def land(credit: TokenCredit, cases: Sequence[Case]) -> list[Row | None]:
        rows = rows_of(credit, cases, rewards=True)
        changed(3, last_to_the_tool)(rows, cases)
        return rows

    with pytest.raises(AssertionError, match="ends with a tool: id"):
        check_landing(land, tokenizer, outcome=None)


def test_advantages_compare_whole_trajectories_of_a_group_alone() -> None:
    """By hand: groups in any order, a failure in no baseline, a row without a verdict paid for its
    words."""
    verdicts = {0: 1.0, 1: -1.0, 2: 0.5, 3: None, 4: 0.25}
    outcomes = [
        ScoredTrajectory(word_rewards=np.array([0, -1], np.float32), score=verdict, rewards=np.zeros(2, np.float32))
        for verdict in verdicts.values()
    ]
    outcomes.append(ScoredTrajectory(failures=(Failure(kind="invalid", message="no"),)))
    example = Example(id="-", prompt=(Message(role="user", content=""),))
    batch = [Trajectory(example, [5, 6], [1, 0] if row == 4 else None) for row in range(6)]
    found = compute_advantages(
        mix_rewards(outcomes, batch, words_weight=2.0), ["a", "a", "b", "a", "b", "a"], batch
    )
    expected = [[1, -1], [-1, -3], [1, -1], [0, -2], [-1, 0], None]
    for numbers, wanted in zip(found, expected, strict=True):
        if wanted is None:
            assert numbers is None
        else:
            np.testing.assert_allclose(numbers, wanted, atol=1e-3)


def test_the_environments_own_reward_is_mixed_in() -> None:
    """By hand: on the last id of the policy's own, or where the environment put it; none is no
    reward of 0."""
    example = Example(id="-", prompt=(Message(role="user", content=""),))
    batch = [Trajectory(example, [5, 6, 7], [1, 1, 0])] * 5
    words, whole = np.array([-1, 0, 0], np.float32), np.array([-1, 0.5, 0], np.float32)
    judged = ScoredTrajectory(word_rewards=words, score=0.5, rewards=whole)
    unscored = ScoredTrajectory(word_rewards=words, rewards=words)
    failed = ScoredTrajectory(failures=(Failure(kind="invalid", message="no"),))
    environment: list[Reward] = [1.0, [1.0, 2.0, 0.0], None, 1.0, -1.0]
    outcomes = [judged, judged, judged, failed, unscored]
    both = mix_rewards(outcomes, batch, environment, words_weight=2.0, environment_weight=0.25)
    assert [None if each.rewards is None else each.rewards.tolist() for each in both] == [
        *([-2, 0.75, 0], [-1.75, 1, 0], None, None, [-2, -0.25, 0])
    ]
    assert [each.score for each in both] == [0.75, 1.25, None, None, -0.25]
    assert [each.failed for each in both] == [False, False, True, True, False]
    assert mix_rewards(outcomes, batch, environment)[2].score == 0.5, "a reward of weight 0 may be missing"
    assert credit_metrics(outcomes, environment)["text2grad/environment_mean"] == 1.0
    for given in (None, [1.0]):
        with pytest.raises(UserError, match="rewards of the environment for 5 trajectories"):
            mix_rewards(outcomes, batch, given, environment_weight=1.0)


def test_the_page_shows_what_runs(tokenizer: PreTrainedTokenizerFast) -> None:
    def through_your_engine(credit: TokenCredit, cases: Sequence[Case]) -> dict[str, list[Any]]:
        ids, numbers, masks = zip(*(row for row in rows_of(credit, cases) if row), strict=True)
        return {"ids": [*ids], "advantages": [*numbers], "mask": [*masks]}

    exec(shown_on_page("plugins"), {"through_your_engine": through_your_engine, "tokenizer": tokenizer})
