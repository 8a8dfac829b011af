"""Compare one PPO update with TRL 1.12.0's (its last release with PPO) and TRL 0.11.4's.

Figures are CPU seconds and memory. All use the same Llama of 3 million parameters, the same 32
prompts and responses of 64 tokens each, 4 epochs, 4 optimizer steps and one thread. An update is
everything after sampling and judging: log-probabilities of policy and reference, values, KL,
advantages, and the epochs. Ours and 0.11.4's (with a `compute_rewards` that adds token rewards)
have the full KL and a value head on the policy's trunk. 1.12.0 supports neither: it has one score
per response, the KL of the sampled tokens, and a separate value model. Its sampling, whose logits
it reuses, and its reward model are not counted.

    python benchmarks/ppo_step.py [--runs 5] [--rows 32] [--environments WHERE]

Each release of TRL has a virtual environment, made on the first run (about 1.5 GB each, minutes).
The three processes alternate, so that other load affects all of them. The last line of stdout is
one JSON object; seconds are the median of the runs, memory is the peak resident set.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_equality import REQUIREMENTS, compare, environment

if TYPE_CHECKING:
    from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = {
    "ours": None,
    "trl_1_12": ("trl-1.12.0", ["torch==2.13.0", "trl==1.12.0", "transformers==5.23.0", "rich"]),
    "trl_0_11_4": ("trl-0.11.4", REQUIREMENTS),
}
SHAPE = {
    "vocab_size": 2048,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
RESPONSES, PROMPT, TOKENS, EPOCHS = 32, 64, 64, 4
LEARNING_RATE, CLIP, GAMMA, LAM, KL_COEFFICIENT = 1e-5, 0.2, 1.0, 0.95, 0.05
EQUAL = ("kl_full", "rewards", "advantages", "returns", "policy_loss", "value_loss")
"""Quantities of benchmarks/trl_equality.py in `max_abs_difference`."""


def main() -> None:
    arguments = parse_arguments()
    if arguments.inside:
        serve(arguments)
    else:
        print(json.dumps(take_turns(arguments)))


def parse_arguments() -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="measured updates of each, after one that warms up")
    parser.add_argument("--rows", type=int, default=RESPONSES, help="responses in one forward pass, for all three")
    parser.add_argument("--environments", type=Path, default=cache / "text2grad")
    parser.add_argument("--only", choices=list(ENVIRONMENTS), help="one of the three")
    parser.add_argument("--inside", choices=list(ENVIRONMENTS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


# The process that asks ----------------------------------------------------------------------------


@dataclass
class Runner:
    """An implementation in a separate process and environment, which updates on request."""

    name: str
    process: subprocess.Popen[str]
    runs: list[float] = field(default_factory=list)

    def send(self, word: str) -> dict[str, Any]:
        """Send a word and read one JSON object."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended with code {self.process.wait()}; see its output above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def take_turns(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run a warm-up round and `runs` rounds; return the figures."""
    names = [arguments.only] if arguments.only else list(ENVIRONMENTS)
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        runners = [start(name, arguments, folder) for name in names]
        for run in range(arguments.runs + 1):
            for runner in runners:
                cpu = runner.send("update")["cpu_s"]
                print(f"run {run} {runner.name}: {cpu:.2f} s", file=sys.stderr, flush=True)
                runner.runs += [cpu] if run else []
        summaries = {runner.name: runner.send("end") for runner in runners}
    return figures({runner.name: runner.runs for runner in runners}, summaries)


def start(name: str, arguments: argparse.Namespace, folder: str) -> Runner:
    release = ENVIRONMENTS[name]
    python = environment(arguments.environments / release[0], release[1]) if release else Path(sys.executable)
    command = [str(python), __file__, "--inside", name, "--folder", folder]
    command += ["--runs", str(arguments.runs), "--rows", str(arguments.rows)]
    settings = {
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "ACCELERATE_USE_CPU": "1",
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return Runner(name, subprocess.Popen(command, env={**os.environ, **settings}, text=True, **pipes))  # type: ignore[call-overload]


def figures(runs: dict[str, list[float]], summaries: dict[str, dict[str, Any]]) -> dict[str, Any]:
    results: dict[str, Any] = {
        name: {
            "cpu_s": round(statistics.median(seconds), 3),
            "least_s": round(min(seconds), 3),
            "most_s": round(max(seconds), 3),
            "peak_mb": round(summaries[name]["peak_mb"], 1),
            "grown_mb": round(summaries[name]["grown_mb"], 1),
            "optimizer_steps": summaries[name]["optimizer_steps"],
        }
        for name, seconds in runs.items()
    }
    for name in ("trl_1_12", "trl_0_11_4"):
        if "ours" in runs and name in runs:
            results[name.replace("trl", "speedup")] = round(results[name]["cpu_s"] / results["ours"]["cpu_s"], 3)
    if "ours" in runs and "trl_0_11_4" in runs:
        pairs = zip(summaries["ours"]["kl"], summaries["trl_0_11_4"]["kl"], strict=True)
        results["kl_difference_in_the_update"] = max(abs(a - b) for a, b in pairs)
        results |= summaries["trl_0_11_4"]["equality"]
    return results


def prepare(folder: Path) -> None:
    """Write weights of a policy and a slightly different reference, and a random batch."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    policy = LlamaForCausalLM(LlamaConfig(**SHAPE)).state_dict()
    reference = {name: weight + 0.01 * torch.randn_like(weight) for name, weight in policy.items()}
    reference["lm_head.weight"] = reference["model.embed_tokens.weight"]
    batch = {
        "queries": torch.randint(3, SHAPE["vocab_size"], (RESPONSES, PROMPT)),
        "responses": torch.randint(3, SHAPE["vocab_size"], (RESPONSES, TOKENS)),
        "delta": torch.randint(-1, 2, (RESPONSES, TOKENS)).float(),
    }
    torch.save({"policy": policy, "reference": reference, "batch": batch}, folder / "inputs.pt")


# From here on: inside one environment -------------------------------------------------------------


@dataclass
class Inputs:
    """The weights and the batch from `prepare`."""

    queries: Tensor
    responses: Tensor
    delta: Tensor
    weights: dict[str, dict[str, Tensor]]

    @classmethod
    def read(cls, folder: Path) -> Inputs:
        import torch

        inputs = torch.load(folder / "inputs.pt", weights_only=True)
        return cls(**inputs["batch"], weights=inputs)

    def model(self, name: str) -> Any:
        """Return the policy or the reference, made by this environment's transformers."""
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(LlamaConfig(**SHAPE))
        model.load_state_dict(self.weights[name])
        return model


@dataclass
class Updates:
    """Updates in this environment, one per `next`.

    `kl` (flat) is that of the first update, `aside` the CPU seconds outside updates.
    """

    steps: Iterator[None]
    kl: list[float]
    aside: list[float] = field(default_factory=list)


def serve(arguments: argparse.Namespace) -> None:
    """Read words from stdin and answer on stdout; other output goes to stderr."""
    import torch

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    inputs = Inputs.read(arguments.folder)
    make = {"ours": ours, "trl_1_12": trl_1_12, "trl_0_11_4": trl_0_11_4}[arguments.inside]
    updates = make(inputs, arguments)
    steps = count_optimizer_steps()
    before = peak_mb()
    for word in sys.stdin:
        if word.strip() == "update":
            updates.aside.clear()
            start, step = cpu_seconds(), len(steps)
            next(updates.steps)
            answer: dict[str, Any] = {"cpu_s": cpu_seconds() - start - sum(updates.aside)}
        else:
            memory = {"peak_mb": peak_mb(), "grown_mb": peak_mb() - before}
            equality = same_tensors() if arguments.inside == "trl_0_11_4" else {}
            answer = {**memory, "optimizer_steps": len(steps) - step, "kl": updates.kl, "equality": equality}
        print(json.dumps(answer), file=answers, flush=True)


def count_optimizer_steps() -> list[None]:
    """Return a list that grows with every optimizer step of policy weights."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps: list[None] = []

    def count_step(optimizer: Any, *_: Any) -> None:
        if sum(p.numel() for group in optimizer.param_groups for p in group["params"]) > 1_000_000:
            steps.append(None)

    register_optimizer_step_post_hook(count_step)
    return steps


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make_tokenizer() -> Any:
    """Return a tokenizer of numbers, since trainers only need its padding."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"[pad]": 0, "[begin]": 1, "[end]": 2, **{str(n): n for n in range(3, SHAPE["vocab_size"])}}
    core = Tokenizer(models.WordLevel(words, unk_token="[pad]"))
    special = {"pad_token": "[pad]", "bos_token": "[begin]", "eos_token": "[end]"}
    return PreTrainedTokenizerFast(tokenizer_object=core, padding_side="left", **special)


def ours(inputs: Inputs, arguments: argparse.Namespace) -> Updates:
    """Score, report and update as `train.ppo` does."""
    import numpy as np
    import torch

    from text2grad.align import Aligned, Credit
    from text2grad.feedback import Critique, Example, Message
    from text2grad.policy.batch import pack
    from text2grad.policy.generate import Sample
    from text2grad.policy.model import Policy, Reference
    from text2grad.train.optimizers import make_optimizers
    from text2grad.train.ppo_settings import PPOSettings
    from text2grad.train.report import compute_metrics
    from text2grad.train.rollout import Responses, build_rollout, measure_policy
    from text2grad.train.update import update

    settings = PPOSettings(
        advantage="gae",
        rollouts=RESPONSES, epochs=EPOCHS, mini_batches=1, micro_batch_size=arguments.rows, lr=LEARNING_RATE,
        gamma=GAMMA, lam=LAM, kl="full", normalisation="whiten",
    )  # fmt: skip
    policy = Policy(inputs.model("policy"), make_tokenizer()).eval()
    policy.reference = Reference(inputs.model("reference").eval().requires_grad_(False), policy.reader)
    optimizers = make_optimizers(policy, settings)
    prompts, responses = inputs.queries.tolist(), inputs.responses.tolist()
    none = np.zeros(TOKENS, dtype=np.int64)
    aligned = Aligned("", none, none, none, none)
    answered = Responses(
        [Example(id="-", prompt=(Message(role="user", content="-"),))] * RESPONSES,
        [Sample(ids, truncated=False) for ids in responses],
        [aligned] * RESPONSES,
        [Critique(text="", score=0.0)] * RESPONSES,
        [Credit(row.numpy()) for row in inputs.delta],
        [none.astype(np.int8)] * RESPONSES,
    )
    kl: list[float] = []

    def steps() -> Iterator[None]:
        while True:
            batch = pack(prompts, responses, 0, torch.device("cpu"))
            rollout = build_rollout(
                batch, answered, measure_policy(policy, batch, settings, 1.0), settings, KL_COEFFICIENT
            )
            compute_metrics(answered, rollout, KL_COEFFICIENT)
            update(policy, rollout, optimizers, settings, 1.0, warming=False)
            kl[:] = kl or rollout.kl.flatten().tolist()
            yield

    return Updates(steps(), kl)


def trl_0_11_4(inputs: Inputs, arguments: argparse.Namespace) -> Updates:
    """`PPOTrainer.step` with token rewards."""
    from trl import AutoModelForCausalLMWithValueHead, PPOConfig, PPOTrainer

    kl: list[float] = []

    class TokenRewards(PPOTrainer):  # type: ignore[misc]
        def compute_rewards(self, scores: Any, logprobs: Any, ref_logprobs: Any, masks: Any) -> Any:
            rewards, non_score_rewards, kls = super().compute_rewards(scores, logprobs, ref_logprobs, masks)
            rewards[masks.bool()] += inputs.delta.flatten()
            kl[:] = kl or kls[masks.bool()].tolist()
            return rewards, non_score_rewards, kls

    config = PPOConfig(
        batch_size=RESPONSES, mini_batch_size=arguments.rows, backward_batch_size=RESPONSES,
        gradient_accumulation_steps=RESPONSES // arguments.rows, ppo_epochs=EPOCHS, learning_rate=LEARNING_RATE,
        kl_penalty="full", init_kl_coef=KL_COEFFICIENT, adap_kl_ctrl=False, gamma=GAMMA, lam=LAM, cliprange=CLIP,
        cliprange_value=CLIP, max_grad_norm=1.0, early_stopping=False, ratio_threshold=1e9,
    )  # fmt: skip
    models = [AutoModelForCausalLMWithValueHead.from_pretrained(inputs.model(n)) for n in ("policy", "reference")]
    trainer = TokenRewards(config, *models, make_tokenizer())

    def steps() -> Iterator[None]:
        import torch

        while True:
            trainer.step(list(inputs.queries), list(inputs.responses), list(torch.zeros(RESPONSES)))
            yield

    return Updates(steps(), kl)


def trl_1_12(inputs: Inputs, arguments: argparse.Namespace) -> Updates:
    """`PPOTrainer.train` in a thread of its own, which waits at the end of each update."""
    import threading

    from transformers import TrainerCallback

    go, done = threading.Semaphore(0), threading.Semaphore(0)
    aside: list[float] = []

    class Wait(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            done.release()
            go.acquire()

    trainer = make_trl_1_12(inputs, arguments, Wait(), aside)

    def train() -> None:
        try:
            trainer.train()
        finally:
            done.release()

    thread = threading.Thread(target=train, daemon=True)

    def steps() -> Iterator[None]:
        thread.start()
        while True:
            done.acquire()
            if not thread.is_alive():
                sys.exit("TRL 1.12.0 failed")
            yield
            go.release()

    return Updates(steps(), [], aside)


def make_trl_1_12(inputs: Inputs, arguments: argparse.Namespace, wait: Any, aside: list[float]) -> Any:
    """Return the trainer with fixed rollouts.

    The forward pass for the logits that it would keep from sampling is counted in `aside`.
    """
    import torch
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification, LlamaConfig
    from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

    class NoReward(torch.nn.Module):
        """Its score is 0 and costs nothing."""

    def sampled(model: Any, queries: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        began = cpu_seconds()
        tokens = torch.cat([queries, inputs.responses], dim=1)
        with torch.no_grad():
            logits = model(tokens, logits_to_keep=TOKENS + 1).logits[:, :-1]
        aside.append(cpu_seconds() - began)
        return tokens, logits

    scored = ppo_trainer.get_reward

    def get_reward(model: Any, tokens: Tensor, *rest: Any) -> Any:
        if isinstance(model, NoReward):
            return None, torch.zeros(len(tokens)), None
        return scored(model, tokens, *rest)

    ppo_trainer.batch_generation, ppo_trainer.get_reward = sampled, get_reward
    settings = PPOConfig(
        output_dir=str(arguments.folder / "trl"), per_device_train_batch_size=arguments.rows,
        gradient_accumulation_steps=RESPONSES // arguments.rows, num_mini_batches=1, num_ppo_epochs=EPOCHS,
        total_episodes=RESPONSES * (arguments.runs + 2), response_length=TOKENS, num_sample_generations=0,
        local_rollout_forward_batch_size=RESPONSES, learning_rate=LEARNING_RATE, gamma=GAMMA, lam=LAM,
        cliprange=CLIP, cliprange_value=CLIP, kl_coef=KL_COEFFICIENT, temperature=1.0,
        use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    return PPOTrainer(
        settings,
        make_tokenizer(),
        inputs.model("policy"),
        inputs.model("reference"),
        NoReward(),
        Dataset.from_dict({"input_ids": inputs.queries.tolist() * 4}),
        AutoModelForSequenceClassification.from_config(LlamaConfig(**SHAPE, num_labels=1)),
        callbacks=[wait],
    )


def same_tensors() -> dict[str, Any]:
    """Loss, KL and GAE of ours and 0.11.4's on the same random tensors
    (benchmarks/trl_equality.py)."""
    found = compare(cases=20)
    return {
        name: max(found[name][quantity] for quantity in EQUAL)
        for name in ("max_abs_difference", "max_abs_difference_float32")
    }


if __name__ == "__main__":
    main()
