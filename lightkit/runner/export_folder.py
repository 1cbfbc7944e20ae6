"""A trained model of Hugging Face as the folder that its `save_pretrained` writes: `lightkit export RUN folder`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightkit.checkpoint.export import write_safetensors
from lightkit.common.errors import UserError
from lightkit.data.text_reader import TextReader
from lightkit.finetune.peft.merging import merged_state
from lightkit.runner.program import Format, Leaving, template


class Pretrained(Format):
    """A folder that `from_pretrained` opens (https://huggingface.co/docs/transformers)."""

    needs = "transformers"
    is_folder = True
    code = template("predict_pretrained.txt")

    def write(self, leaving: Leaving, path: Path) -> None:
        """Write configuration and weights; see `Format.write`."""
        network, known = leaving.network, leaving.known
        save: Any = getattr(network, "save_pretrained", None)
        if save is None or known.filling is not None:
            what = "only a network with `save_pretrained` is written as a folder"
            kind = f"{type(network).__module__}.{type(network).__qualname__}"
            fix = "a file in place of the folder: model.pt2 or model.onnx"
            raise UserError(what, key="lightkit export", received=kind, fix=fix, family="wrong-value")
        save(path, state_dict=merged_state(network))
        if isinstance(known.reader, TextReader):
            known.reader.loaded.save_pretrained(path)
        if known.normalizer is not None:
            write_safetensors(known.normalizer.state_dict(), path / "scaling.safetensors")
