"""Predict pictures with the file that `deploy.py` wrote, without lightkit: `python predict.py FILE...`."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

parser = argparse.ArgumentParser()
parser.add_argument("pictures", nargs="+", help="files")
parser.add_argument("--model", default="model.pt2")
options = parser.parse_args()
if not Path(options.model).is_file():
    parser.error(f"there is no {options.model}; deploy.py writes it")
files = {"about.json": ""}
program = torch.export.load(options.model, extra_files=files)
about = json.loads(files["about.json"])
channels, size, _ = about["input_shape"]


def read(path: str) -> torch.Tensor:
    """Read a picture as in training: its middle square, scaled, in [0, 1]."""
    with Image.open(path) as image:
        side, mode = min(image.size), "RGB" if channels == 3 else "L"
        left, top = ((length - side) / 2 for length in image.size)
        image = image if image.mode in ("RGB", "L") else image.convert("RGB")
        small = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        pixels = np.array(small.convert(mode), dtype=np.float32) / 255
    return torch.from_numpy(pixels).reshape(size, size, channels).permute(2, 0, 1)


for path, shares in zip(options.pictures, program.module()(torch.stack([read(path) for path in options.pictures]))):
    best = int(shares.argmax())
    print(f"{path}: {about['classes'][best]} ({shares[best]:.4f})")
