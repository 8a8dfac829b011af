"""What happens to text2grad where the critic is noisy, biased, foreign, poorly taught, or a matter of taste?

On answers with parts (`extraction`, or another preset; `demo` is the embedded code task), by the lab's `compare`:

    noise        labels that a critic gets wrong, at random (`flip`) or of always the same keys (`keys`), and a
                 critic that praises every "please" (`polite`): beside scalar PPO and GRPO without noise
    weights      within a span: all tokens alike, falling, by importance; and a label for every token, by a model
    critique     a reward model that writes its critique before the spans, and one that writes spans alone
    teacher      a reward model taught by 400 critiques, and one taught by 100
    transfer     a reward model of this task, and one of another, which has seen no answer of this one
    convergence  the rollouts that a method needs for scalar PPO's end
    taste        replies of which none is right, by critics of three tastes (tastes.py), each alone and together

`--questions` are put one by one or together; what they share (the SFT policy, text2grad, baselines) is run once.
What has been run is not repeated: the same command again does what is missing.

--model tiny is a Llama of about a million parameters made on the spot. --plan prints what is left of each
comparison and runs nothing. --kinds has `displace` and `drop` as well (noisy_critic.py).

Leaves compare.md in --out, a table of each question. The last line of stdout is one JSON object: `questions`
(of each, by the critic that the policies were trained with, of each method `greedy`, `sampled` and `best`, the mean
over the seeds, `seeds` (sampled) and their `spread`, the sampled `difference` to text2grad with its
`difference_interval`; and where there is one `rollouts`, those that it needs for scalar PPO's end, null: never;
`altered`, the share of the spans that were changed, of `polite` that of the answers that were praised; all measures
of a task of taste), `reward_models` (of each `poor_f1` and `verdict_r`), `collapsed` (runs that ended below SFT).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from text2grad.config import Config
from text2grad.errors import exit_on_user_error
from text2grad.page.runs import read_metrics
from text2grad_lab.compare import plan_of, run_compare
from text2grad_lab.compare.figures import scores_of
from text2grad_lab.compare.methods import REWARD_MODEL, SHARED
from text2grad_lab.compare.seeds import Seed, side_by_side
from text2grad_lab.compare.tuning import Extent
from text2grad_lab.experiments.common.commands import rates
from text2grad_lab.experiments.common.methods import by_arm, file_name, method_of
from text2grad_lab.experiments.common.options import Row, configured, experiment_parser
from text2grad_lab.experiments.common.tastes import TASTES
from text2grad_lab.experiments.parts import TASKS, TEMPERATURES, TINY, best_of, reward_model_of, row_of
from text2grad_lab.experiments.sample_efficiency import rollouts_to

COMMON = "text2grad_lab.experiments.common"
"""Where the commands that `compare` starts find `noisy_critic` and `tastes`."""
LEARNED: Row = {"critic.kind": "reward_model"}
WRITTEN: Row = {**LEARNED, "reward_model.kind": "generative", "reward_model.score_head": True}
WRITTEN |= {"reward_model.label_weight": 1.0}
COMPARISONS: dict[str, Row] = {
    "preset": {"ppo.heldout_every": 4},
    "reward_model": LEARNED,
    "small_teacher": {**LEARNED, "annotate.prompts": 50},
    "critique_first": {**WRITTEN, "reward_model.critique": True},
    "spans_alone": {**WRITTEN, "reward_model.critique": False},
    "taste": {"task.name": f"{COMMON}.tastes:Replies", "critic.kind": f"{COMMON}.tastes:Every"},
}
"""What differs from the preset, by the critic in the loop; `preset` is the preset's own, a program."""
OTHER = {"extraction": "reports", "reports": "extraction"}
"""The task whose reward model is tried on another."""
BASELINES = ("sft", "scalar", "grpo", "text2grad")
LEARNS = ("sft", "text2grad")
QUESTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "noise": {"preset": (*BASELINES, "text2grad+polite", "grpo+polite")},
    "weights": {
        "preset": (*LEARNS, "text2grad+linear_decay", "text2grad+token_importance"),
        "reward_model": (*LEARNS, "dense"),
    },
    "critique": {"critique_first": LEARNS, "spans_alone": LEARNS},
    "teacher": {"reward_model": LEARNS, "small_teacher": LEARNS},
    "transfer": {"reward_model": (*LEARNS, "text2grad+foreign")},
    "convergence": {"preset": BASELINES},
    "taste": {"taste": (*BASELINES, *(f"text2grad+{taste}" for taste in TASTES))},
}
"""Of each question the comparisons, and their methods; of `noise` those with noise as well."""
HEAD = ("critic", "method", "sampled", "seeds", "greedy", "best", "difference", "more")


def main() -> None:
    chosen = options()
    asked = asked_of(chosen)
    if chosen.plan:
        print(json.dumps({name: plan(chosen, name, arms) for name, arms in methods_asked(asked).items()}))
        return
    if "transfer" in asked:
        side_by_side([foreign(chosen)], chosen.workers)
    found = {name: compared(chosen, name, arms) for name, arms in methods_asked(asked).items()}
    figures = figures_of(asked, found)
    (chosen.out / "compare.md").write_text(table(figures["questions"]), encoding="utf-8")
    print(json.dumps(figures))


def options() -> argparse.Namespace:
    parser = experiment_parser(__doc__, "questions", workers=1, counted=3)
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument(
        "--kinds", nargs="+", choices=("flip", "keys", "displace", "drop"), default=["flip", "keys"]
    )
    parser.add_argument("--shares", nargs="+", type=float, default=[0.05, 0.1, 0.2], help="of noise")
    parser.add_argument("--task", choices=(*TASKS, "demo"), default="extraction", help="the preset")
    parser.add_argument("--model", choices=("tiny", "smollm2"), default="smollm2")
    parser.add_argument("--plan", action="store_true", help="only print what is left")
    return parser.parse_args()


def asked_of(chosen: argparse.Namespace) -> dict[str, dict[str, tuple[str, ...]]]:
    """The questions that are asked; a task without another that is like it has no transfer."""
    asked = {name: dict(QUESTIONS[name]) for name in chosen.questions if name != "transfer" or chosen.task in OTHER}
    if "noise" in asked:
        levels = tuple(f"text2grad+{kind}_{round(100 * s)}" for kind in chosen.kinds for s in chosen.shares)
        asked["noise"]["preset"] += levels
    return asked


def methods_asked(asked: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
    """The methods of each comparison, each once, whoever asks for it."""
    found: dict[str, list[str]] = {}
    for comparisons in asked.values():
        for name, arms in comparisons.items():
            found[name] = list(dict.fromkeys([*found.get(name, []), *arms]))
    return found


def preset(
    chosen: argparse.Namespace, name: str, layers: Sequence[str] = (), words: Sequence[str] = (), task: str = ""
) -> Config:
    """The settings of a comparison, with recipes and options laid over them, those of the user last."""
    settings: Row = {"run.folder": chosen.out / (task or name), "evaluate.temperatures": TEMPERATURES}
    settings |= TINY if chosen.model == "tiny" and chosen.task != "demo" else {}
    settings |= COMPARISONS[name]
    return configured([task or chosen.task, *layers], settings, chosen.set, words)


def foreign(chosen: argparse.Namespace) -> Seed:
    """The reward model of another task, of the first seed."""
    config = preset(chosen, "reward_model", task=OTHER[chosen.task])
    works = {name: SHARED[name] for name in ("sft", "annotate", REWARD_MODEL)}
    return Seed(config, chosen.first_seed, config.run.folder / f"seed-{chosen.first_seed}", works)


def own_parts(chosen: argparse.Namespace, critic: str) -> dict[str, Row]:
    """The parts of methods that are of this script: who the critic is."""
    levels = [f"{kind}_{round(100 * share)}" for kind in chosen.kinds for share in chosen.shares]
    parts: dict[str, Row] = {
        level: {"critic.kind": f"{COMMON}.noisy_critic:{level}_of_{critic.rpartition(':')[2].lower()}"}
        for level in (*levels, "polite")
    }
    parts |= {name: {"critic.kind": f"{COMMON}.tastes:{made.__name__}"} for name, made in TASTES.items()}
    if chosen.task in OTHER:
        parts["foreign"] = {"critic.reward_model.folder": foreign(chosen).folder / "reward_model" / "policy"}
    return parts


def names_of(chosen: argparse.Namespace, name: str, arms: Sequence[str]) -> tuple[Config, list[str]]:
    """The settings of a comparison, and what it calls its methods."""
    config = preset(chosen, name)
    parts = own_parts(chosen, config.critic.kind)
    return config, [method_of(arm, config.run.folder, partial(preset, chosen, name), parts) for arm in arms]


def plan(chosen: argparse.Namespace, name: str, arms: Sequence[str]) -> Row:
    """What is left of a comparison."""
    return plan_of(*names_of(chosen, name, arms), Extent.of(chosen.first_seed, chosen.seeds), chosen.workers)


def compared(chosen: argparse.Namespace, name: str, arms: Sequence[str]) -> Row:
    """Run what is missing of a comparison; its methods as rows, its reward models, and what collapsed."""
    config, names = names_of(chosen, name, arms)
    extent = Extent.of(chosen.first_seed, chosen.seeds)
    measure = "taste" if name == "taste" else TASKS.get(chosen.task, "pass")
    found = by_arm(run_compare(config, names, extent, chosen.workers, measure))
    seeds = [Seed(config, number, config.run.folder / f"seed-{number}", {}) for number in extent.seeds]
    rows = {arm: row_of(found["methods"][arm], best_of(config, extent.seeds, arm, measure)) for arm in arms}
    for arm, row in rows.items():
        sampled = [round(value, 4) for value in found["methods"][arm]["seeds"]]
        row |= {"seeds": sampled, "spread": round(max(sampled) - min(sampled), 4)}
        row |= altered(seeds, arm) | (tastes_of(seeds, arm) if name == "taste" else {})
    if "scalar" in found["curves"]:
        for arm, curves in found["curves"].items():
            rows[arm]["rollouts"] = rollouts(found["methods"]["sft"]["seeds"], curves, found["curves"]["scalar"])
    models = {}
    if config.critic.kind == "reward_model":
        reports = [seed.folder / "evaluation" / "reward_model.json" for seed in seeds]
        models[name] = reward_model_of([rates(json.loads(report.read_bytes())) for report in reports])
    return {"rows": rows, "models": models, "collapsed": [f"{name} {each}" for each in found["collapsed"]]}


def rollouts(starts: Sequence[float], curves: Sequence[Any], scalar: Sequence[Any]) -> float | None:
    """Rollouts until scalar PPO's end, mean over the seeds; null: one never reaches it."""
    each = [
        rollouts_to(start, own, end[-1]["sampled"]) for start, own, end in zip(starts, curves, scalar, strict=True)
    ]
    reached = [count for count in each if count is not None]
    return round(fmean(reached), 1) if len(reached) == len(each) else None


def altered(seeds: Sequence[Seed], arm: str) -> Row:
    """What share of what its critic said was noise."""
    steps = [step for s in seeds for step in read_metrics(s.folder / "ppo" / file_name(arm) / "metrics.jsonl")]
    seen = sum(step.get("noise_spans", 0) for step in steps)
    return {"altered": round(sum(step.get("noise_altered", 0) for step in steps) / seen, 4)} if seen else {}


def tastes_of(seeds: Sequence[Seed], arm: str) -> Row:
    """What each critic thinks of a policy's sampled answers, and how many keep to the subject."""
    names = (*TASTES, "about")
    scores = {name: [scores_of(seed, file_name(arm), name)["sampled"] for seed in seeds] for name in names}
    return {name: round(fmean(fmean(each.values()) for each in own), 4) for name, own in scores.items()}


def figures_of(asked: Mapping[str, Mapping[str, Sequence[str]]], found: Mapping[str, Row]) -> Row:
    """The rows of each question, and what all comparisons have beside them."""
    answers = {
        question: {name: {arm: found[name]["rows"][arm] for arm in arms} for name, arms in comparisons.items()}
        for question, comparisons in asked.items()
    }
    models = {name: figures for each in found.values() for name, figures in each["models"].items()}
    collapsed = [line for each in found.values() for line in each["collapsed"]]
    return {"questions": answers, "reward_models": models, "collapsed": collapsed}


def table(questions: Mapping[str, Mapping[str, Mapping[str, Row]]]) -> str:
    """A table of each question, as Markdown."""
    lines: list[str] = []
    for question, comparisons in questions.items():
        lines += [f"## {question}", "", line(HEAD), line(["---"] * len(HEAD))]
        lines += [
            line(cells(critic, arm, row)) for critic, rows in comparisons.items() for arm, row in rows.items()
        ]
        lines.append("")
    return "\n".join(lines)


def cells(critic: str, arm: str, row: Row) -> list[str]:
    """One method under `HEAD`."""
    apart = "–"
    if row["difference"] is not None:
        low, high = row["difference_interval"]
        apart = f"{row['difference']:+.3f} ({low:+.3f} to {high:+.3f})"
    more = {name: row[name] for name in ("rollouts", "altered", *TASTES, "about") if row.get(name) is not None}
    measures = [f"{row['sampled']:.3f}", ", ".join(f"{value:.3f}" for value in row["seeds"])]
    measures += [f"{row[way]:.3f}" for way in ("greedy", "best")]
    return [critic, arm, *measures, apart, ", ".join(f"{name} {value:g}" for name, value in more.items())]


def line(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    with exit_on_user_error():
        main()
