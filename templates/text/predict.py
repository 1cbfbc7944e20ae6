"""Write on where a text ends, with the file that `deploy.py` wrote, without lightkit: `python predict.py "The "`."""

import argparse
import json
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("text", help="how it begins")
parser.add_argument("--characters", type=int, default=200)
parser.add_argument("--temperature", type=float, default=0.7, help="below 1: more of what is likely")
parser.add_argument("--model", default="model.pt2")
options = parser.parse_args()
if not Path(options.model).is_file():
    parser.error(f"there is no {options.model}; deploy.py writes it")
files = {"about.json": ""}
program = torch.export.load(options.model, extra_files=files)
about = json.loads(files["about.json"])
vocabulary, (length,) = about["vocabulary"], about["input_shape"]
numbers = {character: number for number, character in enumerate(vocabulary)}
model, tokens = program.module(), [numbers.get(character, 0) for character in options.text or "\n"]
torch.manual_seed(0)
for _ in range(options.characters):
    seen = tokens[-length:]
    window = torch.tensor([seen + [0] * (length - len(seen))])  # what comes after a place changes nothing before it
    logits = model(window)[0, len(seen) - 1] / options.temperature
    logits[0] = -torch.inf  # the unknown character
    tokens.append(int(logits.softmax(0).multinomial(1)))
print(options.text + "".join(vocabulary[token] for token in tokens[-options.characters :]))
