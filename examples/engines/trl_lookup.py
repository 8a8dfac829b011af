"""An agent through TRL's `environment_factory`: the embedded task `lookup`, with credit for words.

    pip install 'text2grad[trl]'
    text2grad sft --config lookup --run.folder runs/lookup
    python examples/engines/trl_lookup.py runs/lookup/sft/policy runs/lookup/ppo/trl/policy [STEPS] [WORDS_WEIGHT]
    text2grad evaluate trl --config lookup --run.folder runs/lookup

Each turn is one call as plain text (`lookup stock of lamp`), so the tokenizer is told how to read one; that of a model
which was taught tools needs nothing, see TRL's `add_response_schema`. WORDS_WEIGHT 0 is plain GRPO on the verdicts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
from trl import GRPOConfig

import text2grad as t2g
from text2grad.plugins.trl import TokenCreditTrainer
from text2grad.tasks.base import TaskSettings
from text2grad.tasks.lookup import LookupCritic, LookupTask, Tools

TEMPLATE = """{% for message in messages %}
{{- '<|assistant|>' if message.role == 'assistant' else '<|user|>' }}{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function.name }} {{ call.function.arguments }}{% endfor %}<|end|>
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
"""The tiny model's own, and calls, which TRL looks for; no ids of a run are made of them."""
TURNS = 6


class Episode:
    """The table and the calculator of one episode, in TRL's shape: its public methods are tools."""

    def reset(self, **row: Any) -> None:
        """Take the table of a row; nothing is said."""
        self._tools = Tools(row["table"])

    def call(self, line: str) -> str:
        """Look a number up, or compute.

        Args:
            line: What the policy wrote in its turn.
        """
        return self._tools.said_to(line)


def speaking(folder: str) -> Any:
    """The tokenizer of a policy, which reads every turn but an answer as a call of `Episode.call`."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def read(ids: Any, **_: Any) -> dict[str, Any]:
        line = tokenizer.decode(ids, skip_special_tokens=True).strip()
        call = {"type": "function", "function": {"name": "call", "arguments": {"line": line}}}
        calls = {} if line.startswith("answer ") else {"tool_calls": [call]}
        return {"role": "assistant", "content": line, **calls}

    tokenizer.chat_template, tokenizer.response_template, tokenizer.parse_response = TEMPLATE, {"calls": "lines"}, read
    return tokenizer


def row_of(example: t2g.Example) -> dict[str, Any]:
    """An example as a row of a data set; its columns reach `Episode.reset` and the critic."""
    prompt = [message.model_dump(include={"role", "content"}) for message in example.prompt]
    return {"prompt": prompt, "id": example.id, **example.meta}


def train(start: str, out: Path, steps: int, words_weight: float, **settings: Any) -> list[dict[str, float]]:
    """Train the policy in `start` and write it to `out`; what TRL logged. `settings` are of `GRPOConfig`."""
    tokenizer = speaking(start)
    args = GRPOConfig(
        output_dir=str(out.parent),
        max_steps=steps,
        max_tool_calling_iterations=TURNS - 1,
        **{"per_device_train_batch_size": 32, "num_generations": 8, "max_completion_length": 96, "beta": 0.1},
        **{"learning_rate": 5e-4, "lr_scheduler_type": "constant", "logging_steps": 1, "save_strategy": "no"},
        **{"report_to": "none", "use_cpu": True, "bf16": False, "disable_tqdm": True, "log_level": "error"} | settings,
    )
    trainer = TokenCreditTrainer(
        credit=t2g.TokenCredit(LookupCritic(), tokenizer),
        words_weight=words_weight,
        model=AutoModelForCausalLM.from_pretrained(start),
        args=args,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([row_of(each) for each in LookupTask(TaskSettings(name="lookup")).examples("train")]),
        environment_factory=Episode,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.model.save_pretrained(out)
    AutoTokenizer.from_pretrained(start).save_pretrained(out)
    return [row for row in trainer.state.log_history if "reward" in row]


if __name__ == "__main__":
    start, out, *more = sys.argv[1:]
    steps, weight = [*map(float, more), 16, 3][:2] if len(more) != 1 else (float(more[0]), 3)
    logged = train(start, Path(out), int(steps), weight)
    calls = logged[-1]["tools/call_frequency"]
    print(f"verdict: {logged[0]['reward']:.2f} in the first step, {logged[-1]['reward']:.2f} in the last of {len(logged)}")
    print(f"{calls:.1f} calls an episode, {logged[-1]['text2grad/failed']:.0%} without a judgement")
