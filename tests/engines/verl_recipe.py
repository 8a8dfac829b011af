"""`text2grad train --engine verl` on a CPU: a random policy that is paid for its vowels, by
`verl_cpu`'s stand-ins.

In verl's environment: `python tests/engines/verl_recipe.py FOLDER [--section.key VALUE]`
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from text2grad.config import Config, load_config
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Judgement, Message, Source, Span
from text2grad.stages.train import run_train
from text2grad.tasks.base import Split

ROOT = Path(__file__).parents[2]
WORDS = ("pear", "plum", "fig", "lime", "nut", "oat", "rye", "pea")
TURN = 8
"""Ids of an answer, `verl_cpu.TURN`."""


class Words:
    """Asks for anything, by three words."""

    name, critic_prompt = "words", "qa"

    def __init__(self, settings: Any) -> None:
        """Take no setting."""

    def examples(self, split: Split) -> list[Example]:
        asked = [f"{one} {two} {three}" for one in WORDS for two in WORDS for three in WORDS[:5]]
        chosen = asked[:16] if split == "heldout" else asked[16:]
        return [Example(id=text, prompt=(Message(role="user", content=text),), reference="a") for text in chosen]

    def scores(self, example: Example, response: str) -> dict[str, float]:
        return {"vowels": sum(letter in "aeiou" for letter in response) / max(1, len(response))}


class Talkers(Words):
    """The same with somebody who answers each turn by what would be paid."""

    def environment(self) -> Talker:
        return Talker()


class Talker:
    """Says vowels, twice."""

    turns = 0

    def reset(self, example: Example) -> Sequence[Message]:
        return ()

    def step(self, turn: Message) -> tuple[Sequence[Message], bool]:
        self.turns += 1
        return [Message(role="user", content="aeiou" * 3)], self.turns == 2


class Vowels:
    """Praises every vowel and blames all other text; the verdict is the share of vowels, from -1 to
    1.

    It stops after so many answers as the environment says.
    """

    source, judged = Source(kind="program", model="vowels"), 0

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        self.judged += len(responses)
        if self.judged > int(os.environ.get("STOPS_AFTER", "1000000")):
            raise UserError("the critic is out of ink", "refill it")
        return [self.judge(text) for text in responses]

    def judge(self, text: str) -> Critique:
        labels = [1 if letter in "aeiou" else -1 for letter in text]
        spans = [Span(start=at, end=at + 1, label=each, text=text[at]) for at, each in enumerate(labels)]
        return Critique(text="vowels", spans=tuple(spans), score=sum(labels) / max(1, len(labels)))


def prepare(folder: Path) -> Path:
    """A random policy."""
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed
    from verl_run import TEMPLATE

    from made_tokenizers import byte_level_tokenizer

    tokenizer = byte_level_tokenizer(300)
    tokenizer.chat_template = TEMPLATE
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    set_seed(0)
    for part in (tokenizer, LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape, **ends))):
        part.save_pretrained(folder / "start")
    return folder / "start"


def recipe(folder: Path, *words: str, more: dict[str, Any] | None = None, ranks: int = 1) -> Config:
    """The configuration of a run on a CPU; `words` are settings of the command line, `more` keys of
    verl's."""
    actor, rollout, model = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
    options = {
        "trainer.save_freq": 2,
        **(more or {}),
        f"{rollout}.name": "hf",
        f"{model}.use_remove_padding": False,
        f"{model}.enable_gradient_checkpointing": False,
        f"+{model}.override_config.attn_implementation": "sdpa",
        f"{actor}.fsdp_config.use_torch_compile": False,
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": ranks,
        "trainer.checkpoint_callback_class": "verl_kept.Kept",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "ray_kwargs.ray_init.num_cpus": 16,
        "+ray_kwargs.ray_init.num_gpus": ranks,
        "+ray_kwargs.ray_init.include_dashboard": False,
    }
    valued = {
        "critic.model.use_remove_padding": False,
        "critic.model.enable_gradient_checkpointing": False,
        "+critic.model.override_config.attn_implementation": "sdpa",
        "critic.fsdp.use_torch_compile": False,
    }
    settings = {
        "run": {"folder": str(folder / "run")},
        "task": {"name": "verl_recipe:Words"},
        "policy": {"model": str(prepare(folder)), "value_head": "separate"},
        "critic": {"kind": "verl_recipe:Vowels"},
        "ppo": {
            "steps": 16,
            "rollouts": 32,
            "epochs": 1,
            "micro_batch_size": 16,
            "lr": 1e-2,
            "kl_coefficient": 0.05,
            "max_kl": None,
        },
        "generation": {"max_new_tokens": TURN},
        "engine": {"name": "verl", "verl": {"python": sys.executable, "options": options}},
    }
    if "gae" in words:
        options |= valued
    (folder / "recipe.yaml").write_text(json.dumps(settings), encoding="utf-8")
    return load_config(folder / "recipe.yaml", words)


def train(
    folder: Path, *words: str, more: dict[str, Any] | None = None, ranks: int = 1, resume: Any = "auto"
) -> list[dict[str, float]]:
    """Train; return the metrics of each step."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("tests/engines", "tests", "src")),
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_USE_EXTERNAL_MODULES": "verl_cpu",
        "OMP_NUM_THREADS": "1",
    }
    config = recipe(folder, *words, more=more, ranks=ranks)
    run_train(config, "mine", resume)
    lines = (config.run.folder / "ppo" / "mine" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    for line in train(Path(sys.argv[1]).resolve(), *sys.argv[2:]):
        print(json.dumps(line))
