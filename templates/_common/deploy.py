"""Write the model of a run as one file: `python deploy.py [RUN] [FILE]`. `predict.py` needs that file and PyTorch."""

import sys

from lightkit.common.errors import UserError
from lightkit.runner.program import write_program

run, file = [*sys.argv[1:], *("last", "model.pt2")[len(sys.argv) - 1 :]]
try:
    print("written:", write_program(run, file))
except UserError as error:
    sys.exit(f"error: {error}")
