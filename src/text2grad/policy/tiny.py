"""A byte-level BPE and a Llama of about a million parameters, made from scratch.

For the embedded demo and for tests: they need no download and take the code path of large models.
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
"""Context of a tiny model, in tokens. Its positions are rotary, so a longer one adds no weights."""
PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
WORD, PHRASE = r"[A-Za-z_]+ ?", r"(?:[A-Za-z_]+ )*[A-Za-z_]+ ?"
# Line starts, tags, JSON keys, words, digits, punctuation, spaces.
PIECES = r"\n *|</?[a-z]+>|\"[a-z_]+\": |{words}|[0-9]|[^\sA-Za-z0-9_]+ ?| +"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|assistant|>' if message.role == 'assistant' else '<|user|>' }}{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(
    texts: Iterable[str], vocabulary: int, longest: int = 20, phrases: bool = True
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE, which encodes any Unicode text.

    Args:
        vocabulary: the largest number of tokens.
        longest: the largest number of characters in a token.
        phrases: allow tokens of several words, which halves the number of tokens. This suits texts
            whose quotes start at token boundaries, such as lines of a program.
    """
    core = Tokenizer(models.BPE())
    # Merges may cross spaces (as in SuperBPE, arXiv 2503.13423), so that answers are short enough
    # for a CPU. A space belongs to the word before it, and digits and punctuation are separate
    # tokens, so a phrase has the same tokens in a program and in a quote: a critic must copy.
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
    """Write an untrained model, and a tokenizer trained on `texts`, in Hugging Face form.

    `context` is the longest sequence of the model, in tokens.

    Args:
        folder: the folder to write.
        texts: the texts that the tokenizer is trained on.
        vocabulary: its tokens, the 256 bytes included.
        context: the longest sequence of the model, in tokens.
        shape: the size of the model; None: the default of `TinyShape`.
        seed: of the random weights.

    Raises:
        UserError: the hidden size is not a multiple of twice the number of heads.
    """
    shape = shape or TinyShape()
    if shape.hidden % (2 * shape.heads):
        problem = f"{shape.heads} heads do not divide a hidden size of {shape.hidden} into even sizes"
        raise UserError(problem, f"use a multiple of {2 * shape.heads}")
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
