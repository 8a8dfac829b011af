"""A run of verl's own trainer on a CPU: a tiny agent that asks a tool and answers, paid for its vowels.

Run with python out of verl's environment:  `python tests/engines/verl_run.py FOLDER [KEY=VALUE of verl's]`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from text2grad.align.rewards import TokenCredit
from text2grad.feedback import Critique, Example, Source, Span

ROOT = Path(__file__).parents[2]
STEPS, BATCH, TURNS = 20, 32, 2
WORDS = ("pear", "plum", "fig", "lime", "nut", "oat", "rye", "pea")
AGENT = "[{name: words, _target_: text2grad.plugins.verl.TokenCreditToolLoop, credit: 'verl_run:credit'}]"
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}
{%- if add_generation_prompt %}<|im_start|>{% endif %}"""


class Vowels:
    """Praises every vowel and blames all other text; the verdict is the share of vowels, from -1 to 1."""

    source = Source(kind="program", model="vowels")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        return [self.judge(text) for text in responses]

    def judge(self, text: str) -> Critique:
        labels = [1 if letter in "aeiou" else -1 for letter in text]
        spans = tuple(
            Span(start=place, end=place + 1, label=label, text=text[place]) for place, label in enumerate(labels)
        )
        return Critique(text="vowels", spans=spans, score=sum(labels) / max(1, len(labels)))


def credit(tokenizer: Any) -> TokenCredit:
    return TokenCredit(Vowels(), tokenizer)


def prepare(folder: Path) -> None:
    """A random Llama with its tokenizer, the prompts, and the agent loop's file."""
    import pandas
    from made_tokenizers import byte_level_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(0)
    tokenizer = byte_level_tokenizer(300)
    tokenizer.chat_template = TEMPLATE
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape, **ends, bos_token_id=None))
    for part in (tokenizer, model):
        part.save_pretrained(folder / "model")
    asked = [f"{one} {two} {three}" for one in WORDS for two in WORDS for three in WORDS[:5]]
    rows = [
        {"prompt": [{"role": "user", "content": text}], "data_source": "words", "ability": "", "extra_info": {"index": n},
         "reward_model": {"style": "rule", "ground_truth": ""}}
        for n, text in enumerate(asked)
    ]
    pandas.DataFrame(rows[BATCH:]).to_parquet(folder / "train.parquet")
    pandas.DataFrame(rows[:BATCH]).to_parquet(folder / "test.parquet")
    (folder / "agent.yaml").write_text(AGENT, encoding="utf-8")


def settings(folder: Path, steps: int, ranks: int) -> list[str]:
    """What verl is told: GAE with a value function, single precision, all of a batch in one step of the optimizer."""
    half = BATCH // 2
    single = "{param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}"
    engines = [
        f"{part}.{line}"
        for part, engine in (("actor_rollout_ref.actor", "fsdp_config"), ("critic", "fsdp"))
        for line in (
            f"strategy=fsdp2 ppo_mini_batch_size={BATCH} ppo_micro_batch_size_per_gpu={half} optim.lr=1e-2 "
            f"{engine}.model_dtype=fp32 {engine}.use_torch_compile=false"
        ).split()
    ] + [f"+{part}.mixed_precision={single}" for part in ("actor_rollout_ref.actor.fsdp_config", "critic.fsdp")]
    models = [
        f"{part}.model.{line}"
        for part in ("actor_rollout_ref", "critic")
        for line in (f"path={folder}/model", "use_remove_padding=false", "enable_gradient_checkpointing=false")
    ] + [f"+{part}.model.override_config.attn_implementation=sdpa" for part in ("actor_rollout_ref", "critic")]
    rollout = f"""
        name=hf tensor_model_parallel_size=1 log_prob_micro_batch_size_per_gpu={half} agent.num_workers=1
        agent.agent_loop_config_path={folder}/agent.yaml agent.default_agent_loop=words multi_turn.format=always
        multi_turn.max_assistant_turns={TURNS} multi_turn.function_tool_path={ROOT}/tests/engines/verl_tool.py val_kwargs.temperature=1
    """
    rest = f"""
        algorithm.adv_estimator=gae algorithm.gamma=0.5 algorithm.lam=0.5
        data.train_files={folder}/train.parquet data.val_files={folder}/test.parquet data.train_batch_size={BATCH}
        data.max_prompt_length=32 data.max_response_length=64 data.shuffle=false data.dataloader_num_workers=0
        trainer.nnodes=1 trainer.n_gpus_per_node={ranks} trainer.device=cpu trainer.logger=[console,file]
        trainer.total_training_steps={steps} trainer.test_freq={steps} trainer.default_local_dir={folder}/checkpoints
        reward.num_workers=1 transfer_queue.backend.SimpleStorage.num_data_storage_units=1
        ray_kwargs.ray_init.num_cpus=16 +ray_kwargs.ray_init.num_gpus={ranks}
        +ray_kwargs.ray_init.include_dashboard=false
    """
    return [*engines, *models, *(f"actor_rollout_ref.rollout.{line}" for line in rollout.split()), *rest.split()]


def train(folder: Path, *more: str, steps: int = STEPS, ranks: int = 1) -> list[dict[str, Any]]:
    """Run verl's trainer in a folder that was prepared, or go on there; what it logged for each step."""
    log = folder / "log.jsonl"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("tests/engines", "tests", "src")),
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_USE_EXTERNAL_MODULES": "verl_cpu",
        "VERL_FILE_LOGGER_PATH": str(log),
        "OMP_NUM_THREADS": "1",
    }
    words = [sys.executable, "-m", "verl.trainer.main_ppo", *settings(folder, steps, ranks), *more]
    with (folder / "said.txt").open("w", encoding="utf-8") as said:
        done = subprocess.run(words, env=environment, cwd=folder, check=False, stdout=said, stderr=subprocess.STDOUT)
    if done.returncode:
        raise RuntimeError((folder / "said.txt").read_text(encoding="utf-8")[-4000:])
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve()
    place.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(ROOT / "tests"))
    prepare(place)
    for row in train(place, *sys.argv[2:]):
        print(json.dumps(row))
