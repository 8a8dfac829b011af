"""Token rewards for any trainer: sampled ids and a critique in, one number for each id out.

    python examples/token_rewards.py

Needs no torch, no engine and no download. The critique here was written by a judge; a record of
people's feedback works as well, as does a critic (`TokenCredit`). The ids are those that the policy
sampled; they are never tokenised again.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import text2grad as t2g

RESPONSE = "The report is due next week, and Ann writes it."
CRITIQUE = """{"critique": "Ann writes it, as the mail says; but it is due on Friday.",
 "good_spans": ["Ann writes it"], "poor_spans": ["next week"], "score": -0.5}"""


def make_tokenizer() -> Tokenizer:
    """Make a byte-level BPE tokenizer in memory; in your trainer, use the policy's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator([RESPONSE], trainer)
    return tokenizer


def main() -> None:
    """Print the reward of every token."""
    tokenizer = make_tokenizer()
    ids = tokenizer.encode(RESPONSE).ids
    critique = t2g.parse(CRITIQUE, RESPONSE)
    if isinstance(critique, t2g.Failure):  # leave this response out of the loss
        raise SystemExit(critique.message)
    rewards = t2g.Aligner(tokenizer).rewards(critique, ids)
    for index, reward in zip(ids, rewards, strict=True):
        print(f"{reward:+.1f} {tokenizer.decode([index])!r}")
    print(f"{len(rewards)} rewards for {len(ids)} sampled ids; the verdict is on the last")


if __name__ == "__main__":
    main()
