"""Predict the rows of a table with the file that `deploy.py` wrote, without lightkit: `python predict.py new.csv`."""

import argparse
import csv
import json
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("table", help="CSV file with the columns of data/table.csv; the one to predict may be missing")
parser.add_argument("--model", default="model.pt2")
options = parser.parse_args()
if not Path(options.model).is_file():
    parser.error(f"there is no {options.model}; deploy.py writes it")
files = {"about.json": ""}
program = torch.export.load(options.model, extra_files=files)
about = json.loads(files["about.json"])
with open(options.table, newline="", encoding="utf-8") as file:
    rows = [[float(row[name]) for name in about["dataset"]["features"]] for row in csv.DictReader(file)]
print("row,prediction,probability")
for number, shares in enumerate(program.module()(torch.tensor(rows))):
    best = int(shares.argmax())
    print(f"{number},{about['classes'][best]},{shares[best]:.4f}")
