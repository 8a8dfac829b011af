"""Convert GGUF files to model folders, for `policy.model: FILE.gguf` and `smollm2`.

A GGUF file contains quantised weights, a configuration and a tokenizer. transformers dequantises
it, and the result is cached in a folder keyed by the file's SHA-256. The cache is in float32, which
represents dequantised values (scale * level + offset with float16 scales) exactly; `policy.dtype`
applies on loading.
"""

from __future__ import annotations

import fcntl
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
from text2grad.policy.files.manifest import sha256, write_manifest
from text2grad.settings import user_cache

SMOLLM2 = "smollm2"
ORIGIN_FILE = "text2grad.json"
CONVERSION = 1  # part of the folder's name: increment it when the output of `_write_folder` changes
UNQUANTISED = ("F32", "F16", "BF16")
CONVERSION_ERRORS = (ValueError, LookupError, NotImplementedError, AttributeError, TypeError, RuntimeError, OSError)
"""Errors of transformers and gguf for unknown architectures, quantisations or tokenizers."""
DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""`tokenizer.ggml.pre` of tokenizers that isolate digits before splitting like GPT-2.

See llama-vocab.cpp in llama.cpp; transformers 5.23 omits the first step.
"""
FIELDS = (
    *("general.architecture", "general.name", "general.license", "general.file_type", "split.count"),
    *("tokenizer.ggml.pre", "tokenizer.ggml.eot_token_id"),
)

Origin = Mapping[str, str]
"""The origin of a folder's weights: `text`, `file`, `sha256`, `quantisation`, `licence`, ..."""


def is_gguf(model: str) -> bool:
    """Return True if a `policy.model` names a GGUF file or `smollm2`."""
    named = model == SMOLLM2 or model.lower().endswith(".gguf")
    return named and not any((Path(model) / name).is_file() for name in ("config.json", "adapter_config.json"))


def local_model(model: str) -> str:
    """Convert a GGUF model if necessary and return its folder; return other names unchanged.

    The origin of the weights is printed on stderr once.

    Raises:
        UserError: the file does not exist, or cannot be fetched, read or converted.
    """
    if not is_gguf(model):
        return model
    if model != SMOLLM2 and not Path(model).is_file():
        raise UserError(f"no file {model}", "check policy.model: a GGUF file, a folder or a hub name")
    folder = _cache_folder(model)
    if not folder.is_dir():
        _import_gguf()  # fail before 93 MB are fetched
        with _lock_folder(folder):
            if not folder.is_dir():
                _make_folder(model, folder)
    warn_once(f"policy.model {model}: {_read_origin(folder)['text']}")
    return str(folder)


def find_origin(model: str) -> Origin | None:
    """Return the origin of a cached GGUF model, or None for any other model."""
    if not is_gguf(model) or (model != SMOLLM2 and not Path(model).is_file()):
        return None
    folder = _cache_folder(model)
    return _read_origin(folder) if folder.is_dir() else None


def _cache_folder(model: str) -> Path:
    name, digest = (smollm2.GGUF, smollm2.GGUF_SHA256) if model == SMOLLM2 else (model, _cached_sha256(Path(model)))
    return user_cache() / "models" / f"{Path(name).stem}-{digest[:16]}-{CONVERSION}"


def _cached_sha256(file: Path) -> str:
    state = file.stat()
    return _digest(str(file.resolve()), state.st_size, state.st_mtime_ns)


@cache
def _digest(path: str, size: int, changed: int) -> str:
    return sha256(Path(path))


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Let one process at a time write a folder of the cache."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
    except (OSError, SafetensorError) as error:
        problem = f"cannot write {folder.parent}: {getattr(error, 'strerror', None) or error}"
        raise UserError(problem, "set XDG_CACHE_HOME to a folder with room for the model in float32") from error


def _make_folder(model: str, folder: Path) -> None:
    """Fetch a model if necessary, convert it, and create its folder atomically."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a killed process
    partial.mkdir()
    try:
        file = smollm2.fetch(partial) if model == SMOLLM2 else Path(model)
        header = _read_header(file)
        origin = _describe(file, header) | ({"hub": smollm2.HUB_NAME} if model == SMOLLM2 else {})
        print(f"converting {file.name} (once) into {folder}", file=sys.stderr)
        # The progress bars of transformers and gguf would fill a log with fragments.
        with nullcontext() if sys.stderr.isatty() else redirect_stderr(StringIO()):
            _write_folder(file, header, partial / "model")
        (partial / "model" / ORIGIN_FILE).write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
        write_manifest(partial / "model")
        os.rename(partial / "model", folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read_origin(folder: Path) -> Origin:
    origin: Origin = json.loads((folder / ORIGIN_FILE).read_text(encoding="utf-8"))
    return origin


def _import_gguf() -> Any:
    with optional_packages():
        import gguf
    return gguf


def _read_header(file: Path) -> dict[str, Any]:
    """Return the `FIELDS` of a GGUF file and its `quantisation` by name.

    Raises:
        UserError: the file is not GGUF, is damaged, or is one of several parts.
    """
    gguf = _import_gguf()
    with file.open("rb") as handle:
        if handle.read(4) != b"GGUF":
            raise UserError(f"{file} is not a GGUF file", "check policy.model: a GGUF file, a folder or a hub name")
    try:
        reader = gguf.GGUFReader(file)
        header = {name: reader.fields[name].contents() for name in FIELDS if name in reader.fields}
        header["quantisation"] = _quantisation(gguf, reader.tensors, header.get("general.file_type"))
    except (ValueError, LookupError, OverflowError, TypeError) as error:
        raise UserError(f"{file} is damaged or incomplete: {first_line(error)}", "download it again") from error
    if header.get("split.count", 1) > 1:
        cure = "join them: llama-gguf-split --merge FIRST WHOLE"
        raise UserError(f"{file} is one of {header['split.count']} parts", cure)
    return header


def _describe(file: Path, header: Mapping[str, Any]) -> dict[str, str]:
    quantisation = header["quantisation"]
    description = "not quantised" if quantisation in UNQUANTISED else f"{quantisation}-dequantised"
    return {
        "text": f"{file.name}, {description}",
        "file": file.name,
        "sha256": _cached_sha256(file),
        "quantisation": quantisation,
        "name": str(header.get("general.name", "")),
        "licence": str(header.get("general.license", "")),
        "transformers": transformers.__version__,
    }


def _quantisation(gguf: Any, tensors: Any, file_type: int | None) -> str:
    """Return the name of the mixture, such as `Q4_K_M`, or else the type of most weights."""
    counts = Counter[str]()
    for tensor in tensors:
        counts[tensor.tensor_type.name] += int(tensor.n_elements)
    main_type = counts.most_common(1)[0][0]
    names = {kind.value: kind.name for kind in gguf.LlamaFileType}
    name = str(names.get(file_type, main_type)).removeprefix("MOSTLY_").removeprefix("ALL_")
    return name if name.startswith(main_type) else main_type


def _write_folder(file: Path, header: Mapping[str, Any], folder: Path) -> None:
    """Write weights, configuration and tokenizer as `save_pretrained` does.

    Raises:
        UserError: the architecture, the quantisation or the tokenizer is not supported.
    """
    # A separate folder, because transformers would read a tokenizer_config.json next to the file.
    with TemporaryDirectory() as source:
        (Path(source) / file.name).symlink_to(file.resolve())
        try:
            model = _dequantise(source, file.name)
            tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file.name)
        except CONVERSION_ERRORS as error:
            kind = f"architecture {header.get('general.architecture')!r}, quantisation {header['quantisation']}"
            cure = "use Q4_0 to Q8_0 or F16 of a model that transformers supports, or the model's folder"
            raise UserError(f"cannot convert {file} ({kind}): {first_line(error)}", cure) from error
    if header.get("tokenizer.ggml.pre") in DIGITS_APART:
        split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    ends = {tokenizer.eos_token_id, header.get("tokenizer.ggml.eot_token_id")} - {None}
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=tokenizer.bos_token_id, eos_token_id=sorted(ends), pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def _dequantise(folder: str, name: str) -> Any:
    """Load the model in float32, without the quantisation settings that prevent saving."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32, output_loading_info=True
    )
    model, info = loaded
    if info["missing_keys"]:
        raise ValueError(f"the file has no weights for {sorted(info['missing_keys'])[0]}")
    del model.config.quantization_config
    model.hf_quantizer = None
    vars(model.config).pop("_model_name_or_path", None)  # the name in the GGUF file, not a path
    return model
