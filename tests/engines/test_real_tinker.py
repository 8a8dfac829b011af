"""The client and the cookbook of Tinker: their datums carry what the plug-in lands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tinker
import torch
from examples import said_by
from test_tinker import land, row_of
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.data_processing import assemble_training_data
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition
from tinker_data import real_datum
from transformers import PreTrainedTokenizerFast

from text2grad.align.rewards import TokenCredit
from text2grad.plugins.landing import Case, Row, check_landing
from text2grad.plugins.tinker import with_credit


def test_advantages_land_in_the_clients_datums(tokenizer: PreTrainedTokenizerFast) -> None:
    assert check_landing(land(real_datum), tokenizer) >= 8


def rollout_of(case: Case) -> Trajectory:
    """A case as the cookbook's rollouts are: what is observed before each run of sampled ids grows
    by appending."""
    steps, seen, place = [], list(case.prompt), 0
    ids, own = list(case.trajectory.ids), case.mask.astype(bool).tolist()
    while place < len(ids):
        end = place
        while end < len(ids) and own[end] == own[place]:
            end += 1
        if own[place]:
            action = TokensWithLogprobs(tokens=ids[place:end], maybe_logprobs=[-1.0] * (end - place))
            observed = tinker.ModelInput.from_ints(list(seen))
            steps.append(Transition(ob=observed, ac=action, reward=0.0, episode_done=end == len(ids)))
        seen += ids[place:end]
        place = end
    return Trajectory(transitions=steps, final_ob=tinker.ModelInput.from_ints([]))


def test_what_the_cookbook_assembles_is_paid_on_its_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    """Its datums end with the policy's last id; what a tool said after it is not in them."""

    def landed(credit: TokenCredit, cases: Sequence[Case]) -> list[Row | None]:
        groups = [[case for case in cases if case.group == number] for number in (0, 1)]
        made = [TrajectoryGroup([rollout_of(case) for case in group], [0.0] * 4, [{}] * 4) for group in groups]
        data, metadata = assemble_training_data(made, [torch.zeros(4), torch.zeros(4)])
        assert len(data) == len(cases) and set(metadata[0]) == {"group_idx", "traj_idx"}
        kept, _ = with_credit(data, metadata, credit, [group[0].trajectory.example for group in groups])
        rows = iter(map(row_of, kept))
        return [None if case.verdict is None else whole(next(rows), case) for case in cases]

    def whole(row: Row, case: Case) -> Row:
        ids = list(case.trajectory.ids)
        after = len(ids) - 1 - max(at for at, own in enumerate(case.mask) if own)
        rest = ids[len(ids) - after :]
        return Row([*row.ids, *rest], [*row.numbers, *[0.0] * after], [*row.mask, *[0.0] * after])

    assert check_landing(landed, tokenizer) >= 8


def test_the_example_runs(tmp_path: Path) -> None:
    one, two = said_by("tinker_datums", tmp_path)
    assert one == "verdict 0.33: +0.0 +0.0 +0.0 +0.0 +0.0 -2.0 -1.0 -1.0 -1.0 -2.0 -1.0"
    assert two.startswith("verdict 1.00: +0.0") and two.count("+1.0") == len("berry")
