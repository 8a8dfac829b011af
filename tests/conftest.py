"""What many tests share: two tokenizers of different kinds and a tiny random Llama, all made in
memory."""

from __future__ import annotations

import atexit
import copy
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from made_tokenizers import CHATML, byte_fallback_tokenizer, byte_level_tokenizer, word_piece_tokenizer

# A deadline measures the machine, not the code.
settings.register_profile("text2grad", deadline=None)
settings.load_profile("text2grad")

# A shell's background job ignores Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The key that signs the configurations of runs is the tests' own.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="text2grad-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
STARTED = time.monotonic()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Note the seconds of a run of the whole default suite, which benchmarks/house.py prints."""
    options = session.config.option
    is_worker = hasattr(session.config, "workerinput")
    is_nightly = options.markexpr != "not nightly"
    if not (is_worker or is_nightly or options.file_or_dir or options.keyword or options.collectonly):
        note = session.config.rootpath / ".pytest_cache" / "text2grad_suite_seconds"
        note.parent.mkdir(exist_ok=True)
        note.write_text(f"{time.monotonic() - STARTED:.0f}\n", encoding="utf-8")


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
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = LlamaConfig(vocab_size=len(tokenizer), **shape, **heads, **ends)
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
