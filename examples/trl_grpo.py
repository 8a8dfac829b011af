"""TRL's GRPO trainer with credit for words: a tiny model unlearns the letter that a critic blames.

    pip install 'text2grad[trl]'
    python examples/trl_grpo.py

The critic is one of text2grad's, or any object with `source` and `critique`. The trainer also works
with `tools`, `environment_factory` or a `rollout_func`; text that the policy did not sample gets
exactly 0.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback
from trl import GRPOConfig

import text2grad as t2g
from text2grad.plugins.trl import TokenCreditTrainer

LETTERS = "abcdefghij"


class Blames:
    """A critic that blames every `a`; the verdict falls with their number."""

    source = t2g.Source(kind="program", model="no a")

    def critique(self, examples: Sequence[t2g.Example], responses: Sequence[str]) -> list[t2g.Critique]:
        return [self.judge(text) for text in responses]

    def judge(self, text: str) -> t2g.Critique:
        places = [place for place, letter in enumerate(text) if letter == "a"]
        spans = tuple(t2g.Span(start=place, end=place + 1, label=-1, text="a") for place in places)
        return t2g.Critique(text=f"{len(places)} times a", spans=spans, score=1 / (1 + len(places)))


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token per letter; in your run, use the policy's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")


def train(critic: t2g.Critic) -> None:
    """Train against a critic and print its mean verdict in the first and the last step."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape, **ends))
    letters = tokenizer.convert_tokens_to_ids(list(LETTERS))
    model.lm_head.weight.data[letters] *= 30  # so that it writes mostly these
    credit = t2g.TokenCredit(critic, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=folder,
            **{"per_device_train_batch_size": 32, "num_generations": 8, "max_completion_length": 12, "beta": 0.0},
            **{"learning_rate": 3e-3, "max_steps": 15, "logging_steps": 1, "save_strategy": "no"},
            **{"report_to": "none", "use_cpu": True, "bf16": False, "disable_tqdm": True, "log_level": "error"},
        )
        rows = Dataset.from_list([{"prompt": f"{letter}:"} for letter in LETTERS])
        trainer = TokenCreditTrainer(
            credit=credit, model=model, args=args, processing_class=tokenizer, train_dataset=rows
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    verdicts = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    print(f"verdict: {verdicts[0]:.2f} in the first step, {verdicts[-1]:.2f} in the last of {len(verdicts)}")


if __name__ == "__main__":
    train(Blames())
