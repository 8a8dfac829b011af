"""Tokenizers of the kinds that models have, made in memory from a few texts."""

from __future__ import annotations

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = (
    "The summary leaves out the deadline; 'next week' is wrong, and the author never said so. ",
    'She asked: "Is it really twenty miles to the nearest town?" Nobody knew, so they walked on.\n\n',
    "def moving_sum(numbers, width):\n    total = 0\n    for i in range(len(numbers)):\n"
    "        total += numbers[i]\n    return total\n\n",
    "dp[i][j] = max(dp[i-1][j], dp[i][j-1]) + 1\nif not text.startswith('\\\\'):\n\traise ValueError(\"no\")\n",
    "Ça coûte 40 € à Zürich — naïve façade. Привет, мир! 日本語の文章です。🙂 👩‍💻 ไทย\r\n",
    '{"critique": "it starts well", "good_spans": ["well"], "poor_spans": []}\n',
)
"""Prose, Python, JSON and several scripts: what the tokenizers are trained on."""

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ message.content }}{{ eos_token }}"
    "{% else %}[INST] {{ message.content }} [/INST]{% endif %}{% endfor %}"
)


def byte_level_tokenizer(vocabulary: int = 600) -> PreTrainedTokenizerFast:
    """A byte-level BPE as GPT-2, Llama 3 and Qwen have, with a ChatML template (as Qwen's)."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|pad|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(TEXTS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|pad|>", padding_side="left"
    )
    # Added by hand and no special token, as <think> is in Qwen 3: it is text.
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("  \n", special=False)])
    tokenizer.chat_template = CHATML
    return tokenizer


def byte_fallback_tokenizer(vocabulary: int = 600) -> PreTrainedTokenizerFast:
    """A SentencePiece-style BPE with byte fallback and an [INST] template, as Llama 2 and Mistral
    have."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trained.train_from_iterator(
        (text.encode("ascii", "ignore").decode() for text in TEXTS),
        trainers.BpeTrainer(vocab_size=vocabulary, show_progress=False),
    )
    special = ["<unk>", "<s>", "</s>"]
    model = json.loads(trained.to_str())["model"]
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    core = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[tuple(merge) for merge in model["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.add_special_tokens(special)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.chat_template = INST
    tokenizer.padding_side = "left"
    return tokenizer


def word_piece_tokenizer() -> PreTrainedTokenizerFast:
    """A WordPiece, as BERT has: its tokens have no bytes of their own."""
    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    core.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", sep_token="[SEP]")
