"""A byte-level BPE and a Llama of about a million parameters, made on the spot.

For the embedded demo and for tests: no download, the same code path as a large model.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from text2grad.errors import UserError
from text2grad.settings import TinyShape as TinyShape

CONTEXT = 2048
"""Tokens that a tiny model reads: prompt and response together. Its positions rotate, so more cost
no weights."""
PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
WORD, PHRASE = r"[A-Za-z_]+ ?", r"(?:[A-Za-z_]+ )*[A-Za-z_]+ ?"
# Line starts, tags, JSON keys, words, digits, punctuation, blanks.
PIECES = r"\n *|</?[a-z]+>|\"[a-z_]+\": |{words}|[0-9]|[^\sA-Za-z0-9_]+ ?| +"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|assistant|>' if message.role == 'assistant' else '<|user|>' }}{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(
    texts: Iterable[str], vocabulary: int, longest: int = 20, phrases: bool = True
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE (any Unicode text has an encoding); no token is longer than `longest`
    characters.

    With `phrases` a token may hold several words: half the tokens, but only for text whose quotes
    begin where tokens do, as the lines of a program. A quote of prose begins at any word.
    """
    core = Tokenizer(models.BPE())
    # Merges may cross spaces between words (as in SuperBPE, arXiv 2503.13423): fewer tokens, and a
    # small model on a # CPU has no time to spell. A space belongs to the word before it, digits
    # stay single, and punctuation stays # apart, so that a phrase has the same tokens in a program
    # and in a quote of it: a critic must copy.
    pattern = PIECES.replace("{words}", PHRASE if phrases else WORD)
    pieces = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([pieces, spelled])
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, USER, ASSISTANT, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        max_token_length=longest,
    )
    core.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core, eos_token=END, pad_token=PAD
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [USER, ASSISTANT]})
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.padding_side = "left"
    return tokenizer


def make_tiny_model(
    folder: Path,
    texts: Iterable[str],
    vocabulary: int = 768,
    context: int = CONTEXT,
    shape: TinyShape | None = None,
    seed: int = 0,
) -> None:
    """Write an untrained model and its tokenizer to `folder` in Hugging Face form.

    Args:
        folder: their folder.
        texts: training data of the tokenizer.
        vocabulary: its size, at most.
        context: the longest sequence of the model, in tokens.
        shape: the size of the model.
        seed: the seed of its weights.

    Raises:
        UserError: the heads do not share the hidden size evenly.
    """
    shape = shape or TinyShape()
    if shape.hidden % (2 * shape.heads):
        problem = f"a hidden size of {shape.hidden} is not an even number for each of {shape.heads} heads"
        raise UserError(problem, f"take a multiple of {2 * shape.heads}")
    tokenizer = make_tokenizer(texts, vocabulary, shape.longest, shape.phrases)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
