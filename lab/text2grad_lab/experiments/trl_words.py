"""Compare TRL's GRPO with and without the plug-in, on the embedded code task or the agent task.

Both start from the same SFT policy, sample the same number of answers to the same prompts, take the
same number of optimizer steps, and use the same program critic: plain GRPO gets its verdict, the
plug-in (`text2grad.plugins.trl`) its verdict and its spans. All `TRIES` run on the first of
--tune-seeds, the best two of each method on the other tuning seeds too, and the best by the mean is
reported on other seeds. Rows in --out/trl.jsonl are not computed again.

    pip install 'text2grad[trl]'

With `--task lookup`, episodes use TRL's `environment_factory` (examples/engines/trl_lookup.py). The
last line of stdout is one JSON object: `sft` (the sampled held-out pass rate before training),
`text2grad` and `grpo` (the `chosen` settings, means `sampled` and `greedy`, and `seeds`, sampled by
seed), and `without_words` (plain GRPO with the settings chosen for text2grad).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from text2grad.align.rewards import TokenCredit
from text2grad.config import Config
from text2grad.errors import exit_on_user_error
from text2grad.feedback import Critic, Critique, Example
from text2grad.plugins.trl import TokenCreditTrainer
from text2grad.stages.critics import critic_factory
from text2grad.stages.evaluate.policy import run_evaluate
from text2grad.stages.sft import run_sft
from text2grad.strict_yaml import parse_yaml
from text2grad.tasks.base import load_task
from text2grad_lab.experiments.options import Row, experiment_parser, load_preset, row_once

WAYS = ("sampled", "greedy")
ROLLOUTS = {"demo": 64, "lookup": 32}
TUNE_SEEDS, STEPS, BETTER = [10, 11], {"demo": 30, "lookup": 16}, 2
TRIES: dict[str, dict[str, list[Row]]] = parse_yaml(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""Learning rates, KL coefficients, group sizes and word weights to try, by task and method."""


def main() -> None:
    args = options()
    steps = args.steps or STEPS[args.task]
    print(json.dumps(compare_methods(args.out, args.seeds, args.tune_seeds, steps, args.task)))


def options() -> argparse.Namespace:
    parser = experiment_parser(__doc__, "trl")
    parser.add_argument("--task", choices=[*TRIES], default="demo")
    parser.add_argument("--tune-seeds", nargs="+", type=int, default=TUNE_SEEDS)
    parser.add_argument("--steps", type=int, help=f"default: {STEPS}, of {ROLLOUTS} answers")
    args = parser.parse_args()
    if set(args.tune_seeds) & set(args.seeds):
        parser.error("a seed cannot be both tuned on and reported")
    return args


def compare_methods(
    out: Path, seeds: Sequence[int], tune_seeds: Sequence[int], steps: int, task: str = "demo"
) -> Row:
    """Return the figures of both methods at their best try, and of the initial policy."""
    config = load_preset(task, {"run.folder": out, "run.threads": 1})
    if not (out / "sft" / "policy").is_dir():
        run_sft(config)
    rows: Row = {"sft": measure_run(config, {"method": "sft"})["sampled"]}
    for method, tries in TRIES[task].items():

        def mean(tried: Row, seeds: Sequence[int], method: str = method) -> float:
            return fmean(row["sampled"] for row in measure_seeds(config, method, seeds, tried, steps))

        better = sorted(tries, key=lambda tried: -mean(tried, tune_seeds[:1]))[:BETTER]
        best = max(better, key=lambda tried: mean(tried, tune_seeds))
        rows[method] = {"chosen": best, **means(measure_seeds(config, method, seeds, best, steps))}
    without = {name: value for name, value in rows["text2grad"]["chosen"].items() if name != "words_weight"}
    rows["without_words"] = means(measure_seeds(config, "grpo", seeds, without, steps))
    return rows


def means(rows: Sequence[Row]) -> Row:
    """Return the means over the seeds, and the sampled measure of each seed."""
    return {way: round(fmean(row[way] for row in rows), 4) for way in WAYS} | {
        "seeds": [row["sampled"] for row in rows]
    }


def measure_seeds(config: Config, method: str, seeds: Sequence[int], tried: Row, steps: int) -> list[Row]:
    return [measure_run(config, {"method": method, "seed": seed, "steps": steps, **tried}) for seed in seeds]


def measure_run(config: Config, key: Row) -> Row:
    """Return the held-out pass rates of a run, recorded or new."""

    def make() -> Row:
        name = "sft" if key["method"] == "sft" else train_run(config, **key)
        figures = run_evaluate(config, name).figures
        return {way: round(figures[f"{way}_pass"], 4) for way in WAYS}

    return row_once(config.run.folder / "trl.jsonl", key, make)


def train_run(
    config: Config,
    method: str,
    seed: int,
    steps: int,
    *,
    lr: float,
    beta: float,
    words_weight: float = 0,
    group: int = 8,
) -> str:
    """Train with TRL; return the name of the run."""
    name = f"{method}-{lr:g}-{beta:g}-{words_weight:g}-{group}-{seed}"
    start, folder = config.run.folder / "sft" / "policy", config.run.folder / "ppo" / name
    task, parts = config.task.name, 2 if config.task.name == "demo" else 1
    settings: Row = {
        "output_dir": str(folder),
        "per_device_train_batch_size": ROLLOUTS[task] // parts,
        "steps_per_generation": parts,
        "num_iterations": 2,
        "num_generations": group,
        "max_steps": steps * 2 * parts,
        "learning_rate": lr,
        "lr_scheduler_type": "constant",
        "beta": beta,
        "seed": seed,
        **{"save_strategy": "no", "report_to": "none", "use_cpu": True, "bf16": False, "disable_tqdm": True},
        **{"logging_steps": 2 * parts, "gradient_checkpointing": False},
    }
    if task == "lookup":
        sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "engines"))
        from trl_lookup import train  # type: ignore[import-not-found]

        history = train(str(start), folder / "policy", words_weight, **settings)
    else:
        history = train_on_answers(config, start, folder / "policy", method, words_weight, **settings)
    (folder / "log.json").write_text(json.dumps(history), encoding="utf-8")
    return name


def train_on_answers(
    config: Config, start: Path, out: Path, method: str, words_weight: float, **settings: Any
) -> list[Row]:
    """Train on single answers of the code task; return TRL's log."""
    tokenizer, task = AutoTokenizer.from_pretrained(start), load_task(config.task)
    arguments = GRPOConfig(max_completion_length=config.generation.max_new_tokens, **settings)
    with critic_factory(config, "program") as factory, factory.open() as critic:
        common: Row = {
            "model": AutoModelForCausalLM.from_pretrained(start),
            "args": arguments,
            "processing_class": tokenizer,
            "train_dataset": Dataset.from_list([row_of(example) for example in task.examples("train")]),
        }
        if method == "text2grad":
            credit = TokenCredit(critic, tokenizer, config.credit)
            trainer = TokenCreditTrainer(credit=credit, words_weight=words_weight, **common)
        else:
            trainer = GRPOTrainer(reward_funcs=verdicts_of(critic), **common)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    trainer.model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return list(trainer.state.log_history)


def row_of(example: Example) -> Row:
    prompt = [message.model_dump(include={"role", "content"}) for message in example.prompt]
    return {"prompt": prompt, "id": example.id, "reference": example.reference, **example.meta}


def verdicts_of(critic: Critic) -> Any:
    """Return the critic's verdicts as a reward function for TRL."""

    def verdict(prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        keys = ("tests", "entry_point", "combination")
        rows = zip(columns["id"], prompts, columns["reference"], *(columns[key] for key in keys), strict=True)
        examples = [
            Example(id=id, prompt=prompt, reference=reference, meta=dict(zip(keys, meta, strict=True)))
            for id, prompt, reference, *meta in rows
        ]
        judgements = critic.critique(examples, [completion[0]["content"] for completion in completions])
        return [judgement.score if isinstance(judgement, Critique) else None for judgement in judgements]

    return verdict


if __name__ == "__main__":
    with exit_on_user_error():
        main()
