"""Compare a training step of a real language model (bfloat16, LoRA) with TRL's GRPO step.

Some prompts of about 150 tokens, several answers of 30 tokens to each, low-rank adapters on all
linear layers, one thread. A step is sampling, the log-probabilities of policy and reference, and
one optimizer step on all answers. TRL's `GRPOTrainer` takes it with the same model, prompts, number
of tokens and optimizer steps, also with a reference, and without gradient checkpointing.

    python benchmarks/llm_step.py [--model smollm2] [--dtype bfloat16] [--runs 3] [--trl FOLDER]

Both take turns in one process. Seconds are CPU seconds, the median of the runs. `--trl` is a folder
with trl 1.16 (`pip install --no-deps --target FOLDER trl==1.16.0`), if it is not installed; without
it `against_trl_grpo` is null. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from peft import LoraConfig
from torch import Tensor

from text2grad.align import Aligned, Credit
from text2grad.feedback import Critique, Example, Message
from text2grad.policy.generate import Sample, generate
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings
from text2grad.train.optimizers import Optimizers, make_optimizers
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.rollout import Responses, Rollout, build_rollout, measure_policy
from text2grad.train.update import update

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK, LEARNING_RATE, KL_COEFFICIENT = 16, 1e-5, 0.04


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    policy = load_policy(
        PolicySettings(
            model=arguments.model,
            dtype=arguments.dtype,
            device="cpu",
            lora=LoraSettings(r=RANK, dropout=0.0, targets=TARGETS),
        )
    )
    ids = prompts_of(policy.tokenizer, arguments)
    trl = import_trl(arguments.trl)
    step = trl_steps(trl, policy, ids, arguments) if trl else None
    ours = Ours(policy, ids, arguments)
    print(json.dumps(figures(ours, take_turns(ours, step, arguments.runs))))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a name or folder that policy.model takes")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--runs", type=int, default=3, help="measured steps, after one that warms up")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--answers", type=int, default=4, help="to each prompt; 1: nothing can be shared")
    parser.add_argument("--prompt-tokens", type=int, default=150)
    parser.add_argument("--tokens", type=int, default=30, help="of an answer")
    parser.add_argument("--rows", type=int, default=16, help="answers in one pass, of all sides")
    parser.add_argument("--trl", type=Path, help="folder that holds trl 1.16")
    return parser.parse_args()


def prompts_of(tokenizer: Any, arguments: argparse.Namespace) -> list[list[int]]:
    """Return pieces of the project's pages of different lengths, repeated for their answers."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
    ids = tokenizer.encode(text[:200_000], add_special_tokens=False)
    longest = arguments.prompt_tokens
    lengths = [longest - 20 + 40 * number // arguments.prompts for number in range(arguments.prompts)]
    starts = [number * 2 * longest for number in range(arguments.prompts)]
    prompts = [ids[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    return [prompt for prompt in prompts for _ in range(arguments.answers)]


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = cpu_seconds()
    result = work()
    return cpu_seconds() - began, result


@dataclass
class Ours:
    """Our policy, optimizer and settings. `seconds`: of each phase, one number per run."""

    policy: Policy
    prompts: list[list[int]]
    arguments: argparse.Namespace
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"sample": [], "measure": [], "update": []})

    def __post_init__(self) -> None:
        args = self.arguments
        self.settings = PPOSettings(
            rollouts=len(self.prompts), samples_per_prompt=args.answers, epochs=1, mini_batches=1,
            micro_batch_size=args.rows, lr=LEARNING_RATE, kl="k1", advantage="returns",
        )  # fmt: skip
        self.generation = GenerationSettings(max_new_tokens=args.tokens, batch_size=len(self.prompts))
        self.optimizers: Optimizers = make_optimizers(self.policy, self.settings)

    def step(self) -> None:
        """Sample, score, update; every answer has its full length."""
        spent, samples = timed(self.sample)
        self.seconds["sample"].append(spent)
        spent, rollout = timed(lambda: self.rollout(samples))
        self.seconds["measure"].append(spent)
        spent, _ = timed(lambda: update(self.policy, rollout, self.optimizers, self.settings, 1.0, warming=False))
        self.seconds["update"].append(spent)

    def sample(self) -> list[Sample]:
        return generate(self.policy, self.prompts, self.generation, constraint=self._go_on)

    def _go_on(self, _: Any, __: Any, scores: Tensor) -> Tensor:
        scores[:, self.policy.tokenizer.eos_token_id] = -torch.inf
        return scores

    def rollout(self, samples: list[Sample]) -> Rollout:
        """Rewards of random tokens, for what is measured does not depend on them."""
        batch = self.policy.pack(self.prompts, [sample.ids for sample in samples])
        none = np.zeros(self.arguments.tokens, dtype=np.int64)
        random = np.random.default_rng(0)
        count = len(samples)
        responses = Responses(
            [Example(id="-", prompt=(Message(role="user", content="-"),))] * count,
            samples,
            [Aligned("", none, none, none, none)] * count,
            [Critique(text="", score=0.0)] * count,
            [Credit(random.integers(-1, 2, len(sample.ids)).astype(np.float32)) for sample in samples],
            [none.astype(np.int8)] * count,
        )
        return build_rollout(
            batch, responses, measure_policy(self.policy, batch, self.settings, 1.0), self.settings, KL_COEFFICIENT
        )


def take_turns(ours: Ours, trl: Callable[[Callable[[], None]], list[float]] | None, runs: int) -> list[float]:
    """Alternate our steps with TRL's, `runs` times after one warm-up; return the seconds of TRL's
    steps."""

    def step() -> None:
        ours.step()
        print("ours", {phase: round(seconds[-1], 2) for phase, seconds in ours.seconds.items()}, file=sys.stderr)

    if trl:
        return trl(step)[1:]
    for _ in range(runs + 1):
        step()
    return []


def import_trl(folder: Path | None) -> Any:
    """Import trl, from the folder if given; return None with a message if it is missing."""
    if folder:
        sys.path.append(str(folder))
    try:
        import trl
    except ImportError as error:
        print(f"no TRL ({error}): against_trl_grpo is null; see --trl", file=sys.stderr)
        return None
    return trl


def trl_steps(
    trl: Any, policy: Policy, prompts: list[list[int]], arguments: argparse.Namespace
) -> Callable[[Callable[[], None]], list[float]]:
    """Train with `GRPOTrainer` and a callback after each step; return the seconds of its steps."""
    from datasets import Dataset
    from transformers import TrainerCallback

    seconds: list[float] = []

    def run(between: Callable[[], None]) -> list[float]:
        class Turns(TrainerCallback):  # type: ignore[misc]
            def on_train_begin(self, *_: Any, **__: Any) -> None:
                self.began = cpu_seconds()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                seconds.append(cpu_seconds() - self.began)
                print(f"trl {seconds[-1]:.2f}", file=sys.stderr)
                between()
                self.began = cpu_seconds()

        texts = [policy.tokenizer.decode(ids) for ids in prompts[:: arguments.answers]]
        with tempfile.TemporaryDirectory() as folder:
            config = trl.GRPOConfig(
                output_dir=folder, max_steps=arguments.runs + 1, num_generations=arguments.answers,
                per_device_train_batch_size=arguments.rows, max_completion_length=arguments.tokens,
                gradient_accumulation_steps=len(prompts) // arguments.rows, learning_rate=LEARNING_RATE,
                beta=KL_COEFFICIENT, temperature=1.0, generation_kwargs={"min_new_tokens": arguments.tokens},
                gradient_checkpointing=False, use_cpu=True, report_to="none", save_strategy="no",
                logging_strategy="no", disable_tqdm=True,
            )  # fmt: skip
            trainer = trl.GRPOTrainer(
                copy.deepcopy(policy.model).unload(),
                reward_funcs=lambda completions, **_: [float(number % 3) for number in range(len(completions))],
                args=config,
                train_dataset=Dataset.from_dict({"prompt": texts}),
                processing_class=copy.deepcopy(policy.tokenizer),
                peft_config=LoraConfig(
                    r=RANK, lora_alpha=2 * RANK, target_modules=list(TARGETS), task_type="CAUSAL_LM"
                ),
                callbacks=[Turns()],
            )
            trainer.train()
        return seconds

    return run


def figures(ours: Ours, trl: list[float]) -> dict[str, Any]:
    seconds = {phase: statistics.median(runs[1:]) for phase, runs in ours.seconds.items()}
    new = ours.arguments.tokens * len(ours.prompts)
    tokens = sum(map(len, ours.prompts)) + new
    return {
        "update_tokens_per_second": round(tokens / seconds["update"], 1),
        "sample_tokens_per_second": round(new / seconds["sample"], 1),
        "against_trl_grpo": round(sum(seconds.values()) / statistics.median(trl), 3) if trl else None,
    }


if __name__ == "__main__":
    main()
