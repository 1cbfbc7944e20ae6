"""Write the model of a run as one file: `python deploy.py [RUN] [FILE]`. `predict.py` needs that file and PyTorch."""

import sys

from lightkit.runner.program import write_program

run, file = [*sys.argv[1:], *("last", "model.pt2")[len(sys.argv) - 1 :]]
print("written:", write_program(run, file))
