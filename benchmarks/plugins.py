"""Measure the plug-ins: lines of glue, whether credit lands, and the effect of words in TRL.

Lines of code are counted with imports, without blank lines, comments and docstrings. Code that
plug-ins share (`plugins/credit.py`, and `plugins/landing.py` for their tests) is `shared_lines`.

    OMP_NUM_THREADS=1 python benchmarks/plugins.py [--seeds 3 4 5] [--folder .venv-plugins] \\
        [--out runs/trl]

`--seeds` without a number skips the comparison in TRL (the lab's `experiments.trl_words`, 20
minutes on one core). Figures of engines that are installed neither here nor in --folder (`make
test-plugins`) are null.

The last line of stdout is one JSON object with `installed` and `glue_lines` of each engine, and

- trl: `text2grad` and `grpo`, sampled held-out pass@1 on the embedded task, means over the seeds.
- tinker: `tokens_moved_as_paid`, the share of rewarded tokens whose log-probability a step moves in
  the direction of the reward; the step is the protocol's `importance_sampling`, written here, on a
  random model. `server_moved_as_paid`: the same with SkyRL's server and its Adam, on adapters of a
  random model.
- verl: `max_abs_difference` between its advantages and our loop's on the same rollouts, over GAE
  and REINFORCE++. `reward_first`, `reward_last`: the mean reward of answers to 32 held-out prompts
  before and after 20 steps of its trainer on a CPU (`tests/engines/verl_run.py`: an agent of two
  turns with a tool, a random policy, token rewards of -1 to 1 on 16 tokens and a verdict; 2 minutes
  on an idle machine).
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
PLUGINS = ROOT / "src" / "text2grad" / "plugins"
ENGINES = ("trl", "tinker", "verifiers", "skyrl", "verl")
GAMMA, LAM = 0.9, 0.95
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=[3, 4, 5])
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv-plugins")
    parser.add_argument("--out", type=Path, default=Path("runs/trl"))
    parser.add_argument("--only", choices=["verl"], help="the figures of an engine that is installed beside this")
    args = parser.parse_args()
    if args.only:
        print(json.dumps(verl_figures()))
        return 0
    results: dict[str, dict[str, Any]] = {
        name: {"installed": installed(name, args.folder), "glue_lines": code_lines(PLUGINS / f"{name}.py")}
        for name in ENGINES
    }
    results["tinker"]["tokens_moved_as_paid"] = tokens_moved_as_paid()
    share = figure_of(args.folder / "skyrl", str(ROOT / "tests" / "engines" / "skyrl_server.py"))
    results["tinker"]["server_moved_as_paid"] = share and float(share)
    results["verl"] |= of_verl(args.folder) if results["verl"]["installed"] else dict.fromkeys(FIGURES)
    results["trl"] |= of_trl(args.out, args.seeds) if args.seeds else {"text2grad": None, "grpo": None}
    shared = {name: code_lines(PLUGINS / f"{name}.py") for name in ("credit", "landing")}
    print(json.dumps(results | {"shared_lines": shared}))
    return 0


def code_lines(path: Path) -> int:
    """Count the lines of code in a file."""
    text = path.read_text(encoding="utf-8")
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SKIPPED:
            held |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        for statement in node.body if isinstance(getattr(node, "body", None), list) else []:  # type: ignore[attr-defined]
            if isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str):
                held -= set(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return len(held)


def installed(name: str, folder: Path) -> str | None:
    """Return the version of an engine, here or in its environment."""
    try:
        return version(name)
    except PackageNotFoundError:
        pass
    code = f"from importlib.metadata import version; print(version({name!r}))"
    return last_line(folder / name, "-c", code)


def last_line(environment: Path, *words: str) -> str | None:
    """Return the last line that a program prints in an environment; None if it fails."""
    python = environment / "bin" / "python"
    if not python.is_file():
        return None
    done = subprocess.run([str(python), *words], capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout.splitlines()[-1] if done.returncode == 0 and done.stdout.strip() else None


def figure_of(environment: Path, *words: str) -> str | None:
    """Return `last_line`; exit if the program fails."""
    line = last_line(environment, *words)
    if line is None and environment.is_dir():
        raise SystemExit(f"{environment.name}: failed: {' '.join(words)}")
    return line


def of_trl(out: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """Return held-out pass@1 with and without words (the lab's `experiments.trl_words`)."""
    from text2grad_lab.experiments.trl_words import STEPS, TUNE_SEEDS, compare_methods

    figures = compare_methods(out, seeds, TUNE_SEEDS, STEPS["demo"])
    return {name: figures[name]["sampled"] for name in ("text2grad", "grpo")}


@dataclass(frozen=True)
class Datum:
    """The part of a Tinker datum that the plug-in reads."""

    loss_fn_inputs: dict[str, Any]


def tokens_moved_as_paid() -> float:
    """Return the share of tokens with an advantage that a small step moves in its direction."""
    sys.path.insert(0, str(ROOT / "tests"))
    from transformers import LlamaConfig, LlamaForCausalLM

    from made_tokenizers import byte_level_tokenizer
    from text2grad.align.rewards import TokenCredit
    from text2grad.plugins.landing import LandingCritic, landing_cases
    from text2grad.plugins.tinker import with_credit

    tokenizer = byte_level_tokenizer()
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer) + 8, **shape))
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    hits: list[bool] = []
    for case in landing_cases(tokenizer):
        ids = torch.tensor([*case.prompt, *case.trajectory.ids])
        mask = np.concatenate([np.zeros(len(case.prompt)), case.mask])[1:]
        datum = Datum({"target_tokens": ids[1:].numpy(), "mask": mask})
        at = [{"group_idx": 0, "traj_idx": 0}]
        datums, _ = with_credit([datum], at, TokenCredit(LandingCritic(), tokenizer), [case.trajectory.example])
        for datum in datums:
            model.load_state_dict(start)
            hits += moved(model, ids, torch.from_numpy(datum.loss_fn_inputs["advantages"]))
    return round(sum(hits) / len(hits), 4)


def moved(model: Any, ids: torch.Tensor, advantages: torch.Tensor) -> list[bool]:
    """Return for each target with an advantage if a step of -sum(ratio * advantage) follows it."""

    def logps() -> torch.Tensor:
        logits = model(ids[None]).logits[0, :-1]
        return torch.log_softmax(logits, -1).gather(1, ids[1:, None]).squeeze(1)

    optimizer, before = torch.optim.SGD(model.parameters(), lr=1e-2), logps()
    (-(torch.exp(before - before.detach()) * advantages).sum()).backward()
    optimizer.step()
    change = (logps() - before).detach()
    return ((change * advantages)[advantages != 0] > 0).tolist()


FIGURES = ("max_abs_difference", "reward_first", "reward_last")


def of_verl(folder: Path) -> dict[str, Any]:
    """Return the figures of verl, from its environment if there is one."""
    line = figure_of(folder / "verl", str(Path(__file__)), "--only", "verl")
    return json.loads(line) if line else verl_figures()


def verl_figures() -> dict[str, Any]:
    """Return the figures of verl in this environment."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "engines")]
    import verl_run

    with TemporaryDirectory() as folder:
        first, last = verl_run.held_out(verl_run.train(Path(folder)))
    return dict(zip(FIGURES, (verl_difference(), round(first, 4), round(last, 4)), strict=True))


def verl_difference(count: int = 64, length: int = 40) -> float:
    """Return the largest difference of an advantage between verl and our loop on random rollouts.

    verl's tensors include ids of tools, as in an engine; ours have only the policy's ids.
    """
    from types import SimpleNamespace

    from verl.trainer.ppo import core_algos

    from text2grad.rl import advantage as ours

    generator = torch.Generator().manual_seed(0)
    policy_mask = torch.rand(count, length, generator=generator) < 0.7
    policy_mask[:, 0] = True
    rewards = torch.randn(count, length, generator=generator) * policy_mask
    values = torch.randn(count, length, generator=generator) * policy_mask
    mask = torch.arange(length) < policy_mask.sum(1, keepdim=True)
    pack = lambda tensor: torch.zeros(count, length).masked_scatter(mask, tensor[policy_mask])  # noqa: E731
    nothing = torch.zeros(count)
    engine_layout = {
        "gae": ours.gae(pack(rewards), pack(values), mask, GAMMA, LAM, nothing)[0],
        "reinforce_plus_plus": ours.mc_returns(pack(rewards), mask, GAMMA, nothing),
    }
    theirs = {
        "gae": core_algos.compute_gae_advantage_return(rewards, values, policy_mask.float(), GAMMA, LAM)[0],
        "reinforce_plus_plus": core_algos.compute_reinforce_plus_plus_outcome_advantage(
            rewards, policy_mask.float(), SimpleNamespace(gamma=GAMMA)
        )[0],
    }
    pairs = (
        (ours.normalise(engine_layout[name], mask, "whiten")[mask], theirs[name][policy_mask])
        for name in engine_layout
    )
    return max(float((left - right).abs().max()) for left, right in pairs)


if __name__ == "__main__":
    sys.exit(main())
