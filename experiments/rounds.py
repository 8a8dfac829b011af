"""Is a reward model that is refreshed by critiques of what the policy says now better than one that stays?

The task is `extraction`, whose program criticises. Of every seed one SFT policy, and from it three ways of spending
the same critiques and steps of PPO: `frozen`, all --prompts judged at once, one reward model, one long run;
`refreshed`, `text2grad loop --rounds N`, each of which judges its part of them, trains the reward model on all so
far and the policy for its part of the steps; and `restarted`, the frozen reward model in as many parts, each a run
of its own, with a new optimizer, whose reference is the policy that it begins with: what beginning anew does. All
are measured after each part on the same documents of kinds that no training prompt has. Rounds end with the first
that falls by more than chance, the others go on. What is measured of a round is the policy that it trained, which
goes on in the next; the result of the loop itself would be the best of them.

    python experiments/rounds.py [--rounds 3] [--prompts 201] [--steps 18] [--seeds 3] [--first-seed 0]
        [--ways frozen refreshed] [--set ppo.lr=1e-4 ...] [--workers 1] [--out FOLDER]

What has been run into --out is not repeated, and what was stopped resumes. parts.py shows the means, too. With
several --workers: `--set run.threads=1`.

The last line of stdout is one JSON object: `frozen`, `restarted` and `refreshed`, the mean over the seeds of the
share of the fields that are right in sampled answers, at the end and (`frozen_best` ...) at the best part; and
`seeds`, of each `sft` and the three, part by part, `greedy` of them at their ends, and with `--set
evaluate.temperatures=[1.0]` as `known` the same of documents of the kinds that are trained on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from reward_models import command
from text2grad.compare.rounds import copied
from text2grad.errors import exit_on_user_error
from text2grad.stages.run.results import write_json

WAYS = ("frozen", "restarted", "refreshed")
SFT = Path("base", "sft", "policy")
"""Where a seed's own policy is that all ways start from."""
KNOWN = "validation_at_1"
"""What an evaluation calls the share that is right on documents of the kinds that are trained on."""
Row = dict[str, Any]


def main() -> None:
    chosen = options()
    rows = [one_seed(chosen, seed) for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds)]
    found: Row = {}
    for way in chosen.ways:
        found[way] = round(fmean(row[way][-1] for row in rows), 4)
        found[f"{way}_best"] = round(fmean(max(row["sft"], *row[way]) for row in rows), 4)
    write_json(chosen.out / "rounds.json", found)
    print(json.dumps(found | {"seeds": rows}))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=201, help="judged in all, two answers each")
    parser.add_argument("--steps", type=int, default=18, help="of PPO in all")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="of spending them")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of all commands")
    parser.add_argument("--workers", type=int, default=1, help="ways of a seed side by side")
    parser.add_argument("--out", type=Path, default=Path("runs/parts/rounds"))
    chosen = parser.parse_args()
    if chosen.prompts % chosen.rounds or chosen.steps % chosen.rounds:
        parser.error("--prompts and --steps are divided evenly among the --rounds")
    return chosen


def one_seed(chosen: argparse.Namespace, seed: int) -> Row:
    """All ways from one SFT policy."""
    place = chosen.out / f"seed-{seed}"
    common = [f"run.seed={seed}", f"task.seed={seed}", "critic.kind=reward_model", *chosen.set]
    command(place / "base", "sft", ["sft"], common)
    before = command(place / "base", "evaluate", ["evaluate", "sft"], common)
    with ThreadPoolExecutor(chosen.workers) as side_by_side:  # after a failure no more begin
        parts: dict[str, Callable[[], list[Row]]] = {"refreshed": partial(refreshed_parts, chosen, place, common)}
        if chosen.ways != ["refreshed"]:
            model = side_by_side.submit(frozen_model, chosen, place, common)
            parts["frozen"] = partial(frozen_parts, chosen, model, common)
            parts["restarted"] = partial(restarted_parts, chosen, model, place, common, seed)
        runs = {way: side_by_side.submit(run) for way, run in parts.items() if way in chosen.ways}
        for waiting in wait(runs.values(), return_when=FIRST_EXCEPTION).not_done:
            waiting.cancel()
    made = {way: run.result() for way, run in runs.items() if not run.cancelled()}
    return {
        "sft": sampled(before),
        **{way: [sampled(part) for part in made[way]] for way in chosen.ways},
        "greedy": [made[way][-1]["greedy_fields"] for way in chosen.ways],
        "known": {way: [part.get(KNOWN) for part in each] for way, each in {"sft": [before], **made}.items()},
    }


def sampled(evaluation: Row) -> float:
    """The share of the fields that are right in sampled answers."""
    return float(evaluation["sampled_fields"])


def started(folder: Path, policy: Path) -> Path:
    """A run's folder, whose SFT policy is a copy of this one."""
    if not (folder / "sft" / "policy").is_dir():
        copied(policy, folder / "sft" / "policy")
    return folder


def frozen_model(chosen: argparse.Namespace, place: Path, common: list[str]) -> Path:
    """The reward model of all critiques."""
    folder = started(place / "frozen", place / SFT)
    command(folder, "annotate", ["annotate"], [*common, f"annotate.prompts={chosen.prompts}"])
    command(folder, "train-reward", ["train-reward"], common)
    return folder / "reward_model" / "policy"


def frozen_parts(chosen: argparse.Namespace, model: Future[Path], common: list[str]) -> list[Row]:
    """One run against one reward model, measured after each part of its steps.

    Each part goes on from the last step of the one before.
    """
    folder, parts = model.result().parent.parent, list[Row]()
    for part in range(1, chosen.rounds + 1):
        steps = [*common, f"ppo.steps={chosen.steps * part // chosen.rounds}", "ppo.keep_state=true"]
        command(folder, f"train-{part}", ["train", "--name", "frozen", "--force"], steps)
        parts.append(command(folder, f"evaluate-{part}", ["evaluate", "frozen"], common))
    return parts


def restarted_parts(
    chosen: argparse.Namespace, model: Future[Path], place: Path, common: list[str], seed: int
) -> list[Row]:
    """The reward model of `frozen`, and runs of as many steps as a round has, each from the policy before it."""
    judged = f"critic.reward_model.folder={model.result()}"
    policy, parts = place / SFT, list[Row]()
    for part in range(1, chosen.rounds + 1):
        folder = started(place / "restarted" / str(part), policy)
        steps = f"ppo.steps={chosen.steps // chosen.rounds}"
        settings = [*common, judged, steps, f"run.seed={seed + part}"]
        command(folder, "train", ["train", "--name", "restarted"], settings)
        parts.append(command(folder, "evaluate", ["evaluate", "restarted"], settings))
        policy = folder / "ppo" / "restarted" / "policy"
    return parts


def refreshed_parts(chosen: argparse.Namespace, place: Path, common: list[str]) -> list[Row]:
    """As many critiques and steps in rounds; the evaluation of the policy that each trains."""
    folder, share = started(place / "refreshed", place / SFT), chosen.prompts // chosen.rounds
    parts = [f"annotate.prompts={share}", f"ppo.steps={chosen.steps // chosen.rounds}"]
    rounds = command(folder, "loop", ["loop", "--rounds", str(chosen.rounds)], [*common, *parts])["rounds"]
    names = [f"{row['round']}/evaluation/extraction/text2grad.json" for row in rounds]
    return [json.loads((folder / "rounds" / name).read_text(encoding="utf-8")) for name in names]


if __name__ == "__main__":
    with exit_on_user_error():
        main()
