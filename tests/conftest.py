"""What many tests share: two tokenizers of different kinds and a tiny random Llama, all made in memory."""

from __future__ import annotations

import copy
import json
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

# A deadline measures the machine, not the code.
settings.register_profile("text2grad", deadline=None)
settings.load_profile("text2grad")

# A shell's background job ignores Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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
    """A SentencePiece-style BPE with byte fallback and an [INST] template, as Llama 2 and Mistral have."""
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


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_level_tokenizer()


@pytest.fixture(scope="session")
def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    return byte_fallback_tokenizer()


@pytest.fixture(scope="session")
def word_piece() -> PreTrainedTokenizerFast:
    return word_piece_tokenizer()


@pytest.fixture
def speaking_word_piece(word_piece: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """One that a policy can have: with a chat template and an end of text."""
    copied = copy.deepcopy(word_piece)
    copied.chat_template = CHATML
    copied.eos_token = "[SEP]"
    return copied


@pytest.fixture(scope="session")
def tiny_llama(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A random Llama of two small layers over `tokenizer`. Copy it before you train it."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session")
def model_folder(
    tiny_llama: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The tiny Llama and its tokenizer as `from_pretrained` reads them. Do not write to it."""
    folder = tmp_path_factory.mktemp("tiny") / "llama"
    tiny_llama.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
