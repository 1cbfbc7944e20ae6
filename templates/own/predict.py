"""Predict with the file that `deploy.py` wrote, without lightkit: `python predict.py 0.3 -0.5`."""

import argparse
import json
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("numbers", nargs="+", type=float, help="the numbers of one input")
parser.add_argument("--model", default="model.pt2")
options = parser.parse_args()
if not Path(options.model).is_file():
    parser.error(f"there is no {options.model}; deploy.py writes it")
files = {"about.json": ""}
program = torch.export.load(options.model, extra_files=files)
about = json.loads(files["about.json"])
if len(options.numbers) != about["input_shape"][0]:
    parser.error(f"an input has {about['input_shape'][0]} numbers")
probabilities = program.module()(torch.tensor([options.numbers]))[0]
for share, name in sorted(zip(probabilities.tolist(), about["classes"]), reverse=True):
    print(f"{share:.4f}  {name}")
