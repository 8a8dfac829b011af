"""An agent through TRL's `environment_factory`: the embedded task `lookup`, with credit for words.

    pip install 'text2grad[trl]'
    text2grad sft --config text2grad_lab:lookup --run.folder runs/lookup
    python examples/engines/trl_lookup.py runs/lookup/sft/policy runs/lookup/ppo/trl/policy
    text2grad evaluate trl --config text2grad_lab:lookup --run.folder runs/lookup

Each turn is one call as plain text (`lookup stock of lamp`), so the tokenizer gets a parser of such
calls. A model trained with tools needs none, see TRL's `add_response_schema`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
from trl import GRPOConfig

import text2grad as t2g
from text2grad.plugins.credit import FAILED
from text2grad.plugins.trl import TokenCreditTrainer
from text2grad.tasks.base import TaskSettings
from text2grad_lab.tasks.lookup import LookupCritic, LookupTask, Tools

TEMPLATE = """{% for message in messages %}
{{- '<|assistant|>' if message.role == 'assistant' else '<|user|>' }}{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function.name }} {{ call.function.arguments }}{% endfor %}<|end|>
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
"""The tiny model's template plus tool calls, which TRL expects; it never renders a run's ids."""
TURNS = 6
TASK = LookupTask(TaskSettings(name="lookup"))


class Episode:
    """The table and the calculator of one episode; its public methods are TRL's tools."""

    def reset(self, **row: Any) -> None:
        """Start an episode with the table of a row."""
        self._tools = Tools(row["table"])

    def call(self, line: str) -> str:
        """Look a number up, or compute.

        Args:
            line: The text of the policy's turn.
        """
        return self._tools.respond(line)


def load_tokenizer(folder: str) -> Any:
    """Load a policy's tokenizer that parses every turn except an answer as `Episode.call`."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def parse(ids: Any, **_: Any) -> dict[str, Any]:
        line = tokenizer.decode(ids, skip_special_tokens=True).strip()
        call = {"type": "function", "function": {"name": "call", "arguments": {"line": line}}}
        calls = {} if line.startswith("answer ") else {"tool_calls": [call]}
        return {"role": "assistant", "content": line, **calls}

    tokenizer.chat_template, tokenizer.response_template, tokenizer.parse_response = (
        TEMPLATE,
        {"calls": "lines"},
        parse,
    )
    return tokenizer


def to_row(example: t2g.Example) -> dict[str, Any]:
    """Return an example as a row; its columns reach `Episode.reset` and the critic."""
    prompt = [message.model_dump(include={"role", "content"}) for message in example.prompt]
    return {"prompt": prompt, "id": example.id, **example.meta}


def train(start: str, out: Path, words_weight: float, **settings: Any) -> list[dict[str, float]]:
    """Train the policy in `start` and write it to `out`; return TRL's log.

    `settings` are those of `GRPOConfig`.
    """
    tokenizer = load_tokenizer(start)
    trainer = TokenCreditTrainer(
        credit=t2g.TokenCredit(LookupCritic(), tokenizer),
        words_weight=words_weight,
        model=AutoModelForCausalLM.from_pretrained(start),
        args=GRPOConfig(max_completion_length=96, max_tool_calling_iterations=TURNS - 1, **settings),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([to_row(example) for example in TASK.examples("train")]),
        environment_factory=Episode,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.model.save_pretrained(out)
    AutoTokenizer.from_pretrained(start).save_pretrained(out)
    return [row for row in trainer.state.log_history if "reward" in row]


def main() -> None:
    """Train for a few steps and print the verdict in the first and the last one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", help="the policy to start from")
    parser.add_argument("out", type=Path, help="the folder for the trained policy")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--words-weight", type=float, default=3.0, help="0 is plain GRPO on the verdicts")
    arguments = parser.parse_args()
    logged = train(
        arguments.start,
        arguments.out,
        arguments.words_weight,
        max_steps=arguments.steps,
        **{"output_dir": str(arguments.out.parent), "save_strategy": "no", "report_to": "none", "logging_steps": 1},
        **{"per_device_train_batch_size": 32, "num_generations": 8, "learning_rate": 5e-4, "beta": 0.1},
        **{"use_cpu": True, "bf16": False, "disable_tqdm": True, "log_level": "error"},
    )
    first, last = logged[0], logged[-1]
    print(f"verdict: {first['reward']:.2f} in the first step, {last['reward']:.2f} in the last of {len(logged)}")
    print(f"{last['tools/call_frequency']:.1f} calls an episode, {last[FAILED]:.0%} without a judgement")


if __name__ == "__main__":
    main()
