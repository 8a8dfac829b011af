"""A run of verl's own trainer on a CPU: a tiny agent that asks a tool and answers, paid for its
vowels.

In verl's environment: `python tests/engines/verl_run.py FOLDER [KEY=VALUE of verl's]`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transfer_queue
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from text2grad.align.rewards import TokenCredit
from text2grad.feedback import Critique, Example, Failure, Source, Span

ROOT = Path(__file__).parents[2]
STEPS, BATCH, TURNS, GAMMA, LAM = 20, 32, 2, 0.5, 0.5
HELD_OUT = "val-core/words/reward/mean@1"
WORDS = ("pear", "plum", "fig", "lime", "nut", "oat", "rye", "pea")
UNJUDGED = "fig plum pear"
"""A prompt of the second step, whose answers the critic has no word for."""
AGENT = "[{name: words, _target_: text2grad.plugins.verl.TokenCreditToolLoop, credit: 'verl_run:credit'}]"
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}
{%- if add_generation_prompt %}<|im_start|>{% endif %}"""


class Vowels:
    """Praises every vowel and blames all other text; the verdict is the share of vowels, from -1 to
    1."""

    source = Source(kind="program", model="vowels")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique | Failure]:
        return [self.judge(*each) for each in zip(examples, responses, strict=True)]

    def judge(self, example: Example, text: str) -> Critique | Failure:
        if example.prompt[0].content == UNJUDGED:
            return Failure(kind="refused", message="no word for it")
        labels = [1 if letter in "aeiou" else -1 for letter in text]
        spans = [Span(start=at, end=at + 1, label=each, text=text[at]) for at, each in enumerate(labels)]
        return Critique(text="vowels", spans=tuple(spans), score=sum(labels) / max(1, len(labels)))


def credit(tokenizer: Any) -> TokenCredit:
    return TokenCredit(Vowels(), tokenizer)


class Kept(CheckpointCallback):
    """Writes what the step of a checkpoint was trained on beside it: a list for each trajectory and
    name."""

    names = ("prompts", "responses", "response_mask", "rm_scores", "values", "advantages")

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **_: Any) -> None:
        keys = [key for key, tag in transfer_queue.kv_list("train")["train"].items() if "seq_len" in tag]
        data = transfer_queue.kv_batch_get(keys=keys, partition_id="train", select_fields=list(self.names))
        columns = [[row.tolist() for row in data[name].unbind()] for name in self.names]
        rows = sorted(zip(*columns, strict=True))
        made = [dict(zip(self.names, row, strict=True)) for row in rows]
        Path(checkpoint_dir, "kept.json").write_text(json.dumps(made), encoding="utf-8")


def prepare(folder: Path) -> None:
    """A random policy, a random value function (which verl draws without a seed), prompts, and the
    loop."""
    import pandas
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForTokenClassification, set_seed

    from made_tokenizers import byte_level_tokenizer

    tokenizer = byte_level_tokenizer(300)
    tokenizer.chat_template = TEMPLATE
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = LlamaConfig(vocab_size=len(tokenizer), num_labels=1, **shape, **ends)
    for name, kind in (("policy", LlamaForCausalLM), ("value", LlamaForTokenClassification)):
        set_seed(0)
        for part in (tokenizer, kind(config)):
            part.save_pretrained(folder / name)
    asked = [f"{one} {two} {three}" for one in WORDS for two in WORDS for three in WORDS[:5]]
    rows = [
        {"prompt": [{"role": "user", "content": text}], "data_source": "words", "extra_info": {"index": number}}
        | {"reward_model": {"ground_truth": ""}}
        for number, text in enumerate(asked)
    ]
    pandas.DataFrame(rows[BATCH:]).to_parquet(folder / "train.parquet")
    pandas.DataFrame(rows[:BATCH]).to_parquet(folder / "test.parquet")
    (folder / "agent.yaml").write_text(AGENT, encoding="utf-8")


def settings(folder: Path, steps: int, ranks: int) -> list[str]:
    """What verl is told: GAE, single precision, and one step of the optimizer for a batch."""
    actor, critic, rollout = "actor_rollout_ref.actor", "critic", "actor_rollout_ref.rollout"
    single = "{param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}"
    engines = [
        f"{line}{rest}"
        for part, fsdp in ((actor, "fsdp_config"), (critic, "fsdp"))
        for line, rest in (
            (f"{part}.strategy=", "fsdp2"),
            (f"{part}.optim.lr=", 1e-2),
            (f"{part}.ppo_mini_batch_size=", BATCH),
            (f"{part}.ppo_micro_batch_size_per_gpu=", BATCH // 2),
            (f"{part}.{fsdp}.use_torch_compile=", False),
            (f"+{part}.{fsdp}.mixed_precision=", single),
        )
    ]
    models = [
        f"{line}{rest}"
        for part, name in (("actor_rollout_ref", "policy"), (critic, "value"))
        for line, rest in (
            (f"{part}.model.path=", folder / name),
            (f"{part}.model.use_remove_padding=", False),
            (f"{part}.model.enable_gradient_checkpointing=", False),
            (f"+{part}.model.override_config.attn_implementation=", "sdpa"),
        )
    ]
    rest = f"""
        algorithm.adv_estimator=gae algorithm.gamma={GAMMA} algorithm.lam={LAM}
        data.train_files={folder}/train.parquet data.val_files={folder}/test.parquet data.shuffle=false
        data.train_batch_size={BATCH} data.max_prompt_length=32 data.max_response_length=64
        data.dataloader_num_workers=0
        {rollout}.name=hf {rollout}.tensor_model_parallel_size=1 {rollout}.val_kwargs.temperature=1
        {rollout}.log_prob_micro_batch_size_per_gpu={BATCH // 2}
        {rollout}.agent.agent_loop_config_path={folder}/agent.yaml {rollout}.agent.default_agent_loop=words
        {rollout}.agent.num_workers=1
        {rollout}.multi_turn.function_tool_path={ROOT}/tests/engines/verl_tool.py
        {rollout}.multi_turn.format=always {rollout}.multi_turn.max_assistant_turns={TURNS}
        trainer.nnodes=1 trainer.n_gpus_per_node={ranks} trainer.device=cpu trainer.logger=[console,file]
        trainer.total_training_steps={steps} trainer.test_freq={steps}
        trainer.save_freq=2 trainer.default_local_dir={folder}/checkpoints
        trainer.checkpoint_callback_class=verl_run.Kept
        reward.num_workers=1 transfer_queue.backend.SimpleStorage.num_data_storage_units=1
        ray_kwargs.ray_init.num_cpus=16 +ray_kwargs.ray_init.num_gpus={ranks}
        +ray_kwargs.ray_init.include_dashboard=false
    """
    return [*engines, *models, *rest.split()]


def train(folder: Path, *more: str, steps: int = STEPS, ranks: int = 1) -> list[dict[str, Any]]:
    """What verl's trainer logged, of the first validation and of each step, in a folder that this
    makes.

    Raises:
        RuntimeError: with the end of what verl said, all of which is in `said.txt`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder)
    log, said = folder / "log.jsonl", folder / "said.txt"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("tests/engines", "tests", "src")),
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_USE_EXTERNAL_MODULES": "verl_cpu",
        "VERL_FILE_LOGGER_PATH": str(log),
        "OMP_NUM_THREADS": "1",
    }
    words = [sys.executable, "-m", "verl.trainer.main_ppo", *settings(folder, steps, ranks), *more]
    with said.open("w", encoding="utf-8") as out:
        done = subprocess.run(words, env=environment, cwd=folder, check=False, stdout=out, stderr=subprocess.STDOUT)
    if done.returncode:
        raise RuntimeError(said.read_text(encoding="utf-8")[-4000:])
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def held_out(logged: list[dict[str, Any]]) -> list[float]:
    """The mean reward of an answer to the held-out prompts, whenever verl measured it."""
    return [row["data"][HELD_OUT] for row in logged if HELD_OUT in row["data"]]


def kept(folder: Path, step: int) -> list[dict[str, list[Any]]]:
    """What `Kept` wrote of a step, sorted by prompt."""
    text = (folder / "checkpoints" / f"global_step_{step}" / "kept.json").read_text(encoding="utf-8")
    return json.loads(text)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    for line in train(Path(sys.argv[1]).resolve(), *sys.argv[2:]):
        print(json.dumps(line))
