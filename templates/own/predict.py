"""Predict with the file that `deploy.py` wrote, without lightkit: `python predict.py 0.3 -0.5`."""

import argparse
import json

import torch

parser = argparse.ArgumentParser()
parser.add_argument("numbers", nargs="+", type=float, help="the numbers of one input")
parser.add_argument("--model", default="model.pt2")
options = parser.parse_args()
about = {"about.json": ""}
program = torch.export.load(options.model, extra_files=about)
classes = json.loads(about["about.json"])["classes"]
probabilities = program.module()(torch.tensor([options.numbers]))[0]
for share, name in sorted(zip(probabilities.tolist(), classes), reverse=True):
    print(f"{share:.4f}  {name}")
