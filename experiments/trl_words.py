"""What words add to TRL's own GRPO: the plug-in beside plain `GRPOTrainer` on the embedded code task.

Both start from one SFT policy (`text2grad sft --config demo`), sample as many answers to the same prompts, take as
many optimizer steps, and have the same critic, the task's tests: plain GRPO is paid its verdict, the plug-in its
verdict and its words (`text2grad.plugins.trl`, words_weight 1). The learning rate of each is chosen on --tune-seeds
over one grid; the seeds reported are others. What stands in --out/trl.jsonl is not run again.

    pip install 'text2grad[trl]'
    OMP_NUM_THREADS=1 python experiments/trl_words.py [--seeds 0 1 2] [--tune-seeds 100 101]
        [--lrs 1e-4 2e-4 3e-4 5e-4] [--steps 30] [--out runs/trl]

The last line of stdout is one JSON object: `sft`, the sampled held-out pass@1 before, and of `text2grad` and `grpo`
the chosen `lr`, the means over the seeds (`sampled`, `greedy`), and the first of each seed (`seeds`).
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
from text2grad.config import Config, find_config, load_config
from text2grad.errors import exit_on_user_error
from text2grad.feedback import Critic, Critique, Example
from text2grad.plugins.trl import TokenCreditTrainer
from text2grad.stages.judge.critics import make_critic, runner_of
from text2grad.stages.learn.supervised import run_sft
from text2grad.stages.measure.evaluate import run_evaluate
from text2grad.tasks.base import load_task

WAYS = ("sampled", "greedy")
ROLLOUTS, GROUP = 64, 8
TUNE_SEEDS, STEPS = [10, 11], 30
Row = dict[str, Any]
TRIES: dict[str, list[Row]] = {
    "grpo": [{"lr": 2e-4}],
    "text2grad": [{"lr": 2e-4}],
}


def main() -> None:
    chosen = options()
    print(json.dumps(compared(chosen.out, chosen.seeds, chosen.tune_seeds, chosen.lrs, chosen.steps)))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tune-seeds", nargs="+", type=int, default=TUNE_SEEDS)
    parser.add_argument("--lrs", nargs="+", type=float, default=RATES)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of {ROLLOUTS} answers each")
    parser.add_argument("--out", type=Path, default=Path("runs/trl"))
    chosen = parser.parse_args()
    if set(chosen.tune_seeds) & set(chosen.seeds):
        parser.error("a seed cannot be both tuned on and reported")
    return chosen


def compared(out: Path, seeds: Sequence[int], tune_seeds: Sequence[int], lrs: Sequence[float], steps: int) -> Row:
    """Both methods at the best of their rates, and the policy they start from."""
    config = load_config(find_config("demo"), [f"--run.folder={out}", "--run.threads=1"])
    if not (out / "sft" / "policy").is_dir():
        run_sft(config)
    found: Row = {"sft": measured(config, {"method": "sft"})["sampled"]}
    for method in METHODS:
        tried = {lr: runs(config, method, tune_seeds, lr, steps) for lr in lrs}
        lr = max(tried, key=lambda each: fmean(row["sampled"] for row in tried[each]))
        rows = runs(config, method, seeds, lr, steps)
        found[method] = {"lr": lr, **{way: round(fmean(row[way] for row in rows), 4) for way in WAYS}}
        found[method]["seeds"] = [row["sampled"] for row in rows]
    return found


def runs(config: Config, method: str, seeds: Sequence[int], lr: float, steps: int) -> list[Row]:
    return [measured(config, {"method": method, "seed": seed, "lr": lr, "steps": steps}) for seed in seeds]


def measured(config: Config, key: Row) -> Row:
    """The held-out pass rates of a run: those on file, or made now."""
    results = config.run.folder / "trl.jsonl"
    lines = results.read_text(encoding="utf-8").splitlines() if results.is_file() else []
    found = [row for row in map(json.loads, lines) if key.items() <= row.items()]
    if not found:
        name = "sft" if key["method"] == "sft" else trained(config, **key)
        figures = run_evaluate(config, name).figures
        found = [key | {way: round(figures[f"{way}_pass"], 4) for way in WAYS}]
        with results.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(found[0]) + "\n")
        print(json.dumps(found[0]), file=sys.stderr, flush=True)
    return found[0]


def trained(config: Config, method: str, seed: int, steps: int, **tried: Any) -> str:
    """Train with TRL; the name of the run whose policy it is."""
    name = "-".join([method, *(f"{key}{value}" for key, value in sorted(tried.items())), str(seed)])
    folder, task = config.run.folder / "ppo" / name, load_task(config.task)
    start = config.run.folder / "sft" / "policy"
    tokenizer = AutoTokenizer.from_pretrained(start)
    lr, beta = tried.pop("lr"), tried.pop("beta", 0.0)
    arguments = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=ROLLOUTS // 2,
        steps_per_generation=2,
        num_iterations=2,
        num_generations=GROUP,
        max_steps=steps * 4,
        learning_rate=lr,
        lr_scheduler_type="constant",
        beta=beta,
        max_completion_length=config.generation.max_new_tokens,
        seed=seed,
        **{"save_strategy": "no", "report_to": "none", "use_cpu": True, "bf16": False, "disable_tqdm": True},
        **{"logging_steps": 8, "gradient_checkpointing": False},
    )
    with runner_of(config) as runner:
        critic = make_critic(config, "program", task, runner)
        common: Row = {
            "model": AutoModelForCausalLM.from_pretrained(start),
            "args": arguments,
            "processing_class": tokenizer,
            "train_dataset": Dataset.from_list([row_of(each) for each in task.examples("train")]),
        }
        if method == "text2grad":
            trainer = TokenCreditTrainer(credit=TokenCredit(critic, tokenizer, config.credit), **tried, **common)
        else:
            trainer = GRPOTrainer(reward_funcs=verdicts_of(critic), **common)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    trainer.model.save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    (folder / "log.json").write_text(json.dumps(trainer.state.log_history), encoding="utf-8")
    return name


def row_of(example: Example) -> Row:
    prompt = [message.model_dump(include={"role", "content"}) for message in example.prompt]
    return {"prompt": prompt, "id": example.id, "reference": example.reference, **example.meta}


def verdicts_of(critic: Critic) -> Any:
    """The critic as a reward function of TRL's: its verdicts alone."""

    def verdict(prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        names = ("tests", "entry_point", "combination")
        examples = [
            Example(id=name, prompt=prompt, reference=reference, meta=dict(zip(names, rest, strict=True)))
            for name, prompt, reference, *rest in zip(
                columns["id"], prompts, columns["reference"], *(columns[each] for each in names), strict=True
            )
        ]
        judged = critic.critique(examples, [each[0]["content"] for each in completions])
        return [each.score if isinstance(each, Critique) else None for each in judged]

    return verdict


if __name__ == "__main__":
    with exit_on_user_error():
        main()
