"""The names of what stands in the folder of a run, each once.

They are in the lowest layer, and not in `lightkit.runs`, which owns the folder: the monitor (whose process works on
which run), the configuration, checkpoints and the assembly know some of them too, and all of these are below it.
"""

from __future__ import annotations

OUTPUTS = "outputs"
"""Folder of a project that all runs are written to."""
RUNS = "runs"
"""Folder in `OUTPUTS` for single runs, by the day on which they began."""
SWEEPS = "sweeps"
"""Folder in `OUTPUTS` for sweeps, by day too; each job of a sweep is a run in a folder of its own."""

FOUND = "find"
"""Folder in `OUTPUTS` for the pictures of `lightkit find`."""
FOUND_RUNS = ".found"
"""Folder in `FOUND` for the runs of `lightkit find rows`, which are no runs of the user's and are listed nowhere."""

INDEX = ".index.json"
"""In `OUTPUTS`: what the files of all runs said, a cache that may be deleted."""

CONFIG = "config.yaml"
"""The whole configuration, resolved; what makes a folder that of a run."""
OVERRIDES = "overrides.yaml"
"""What was typed on the command line, in all parts of the run."""
ENVIRONMENT = "environment.json"
"""Versions, device, git commit, time, and what is known of the data."""
RESULT = "result.json"
"""How the run ended and its last and best values; missing as long as it has not ended."""
METRICS = "metrics.jsonl"
"""Everything that was logged, a line for each step that was."""
TRACE = "trace.jsonl"
"""Hashes of rows, gradients and weights, and the loss, every `logger.trace` optimizer steps."""
METRICS_TABLE = "metrics.csv"
"""The same as a table, where `logger=csv`."""
TRACKERS = "trackers"
"""Folder of what trackers such as MLflow keep of a run: the id by which they know it, its pictures, files to upload."""
ROWS = "rows.npz"
"""Which rows are in which split, and what they are known by when the data change; written once."""
LEFT_OUT = "left-out.json"
"""What the data set leaves out, such as images that cannot be read, and why."""
LEAKS = "leaks.json"
"""What the look for leaks at the start has found, `{"findings": [{check, status, measured, why, key, fix, numbers}]}`;
missing where it found nothing, and where `data.leak_check=false`."""
CODE = "code"
"""Folder of the source of the user's own modules that the run has imported."""
CODE_EARLIER = "earlier"
"""In `CODE`: what an earlier part of the run had imported, where it was another, by its checksum."""
CODE_STORE = ".code"
"""Folder in `OUTPUTS` for the files of code that runs have in common."""
LABELS = "labels.json"
"""Tags and a note that somebody has given the run."""
BIN = ".removed"
"""Folder in `OUTPUTS` for runs that `lightkit runs rm` has put aside, by the time when it did so."""
UNPACKED = ".unpacked"
"""Folder in `OUTPUTS` for an archive while it is unpacked; what a kill leaves of it counts for nothing."""
QUEUE = ".queue"
"""Folder in `OUTPUTS` for the line of runs that wait for others, see `lightkit.detached.line`."""
LOG = "run.log"
"""Messages, warnings and errors."""
PROGRESS = ".progress.json"
"""How far the run is, written about once a second while it trains; what a run that was killed leaves of it counts for
nothing."""
FINETUNE = "finetune.json"
"""What a run keeps of its fine-tuning: plan, output layer, what the audit found."""
LOCK = ".lock"
"""Kept open and locked by the process that runs in the folder; in that of a sweep, by the one that starts its jobs. It
says who that is, and whether the last one gave it up in good order."""
JOB_LOCK = ".job"
"""Locked by the process of a job of a sweep, or of what is detached, from its first moment to its last; it takes `LOCK`
when it begins."""
WAITING = ".waiting"
"""There while a run waits for a free GPU, before it writes anything else; not empty while it waits in line for other
runs: then it says for which."""
OUTPUT_LOG = "output.log"
"""What the process of a job of a sweep, or of what is detached, has printed."""
SIGNATURES = ".mark"
"""Signatures of the configurations that this project wrote into the folder."""

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints."""
MANIFEST = "manifest.json"
"""In `CHECKPOINTS`: the list of them with steps, values and checksums."""
CHECKPOINT_PATTERN = "step-*.pt"
"""In `CHECKPOINTS`: the names of the checkpoints themselves."""
FIGURES = "figures"
"""Folder of the figures of the final test, with one for the results of each split's metrics that are no numbers."""
METRIC_RESULT = ".npz"
"""End of the name of a file with such a result."""
MEMBERS = "members"
"""Folder of the models of a run that trains several; each is a run in a folder of its own."""
FOLD = "fold-"
"""In `MEMBERS`: how the names of the models of a cross-validation begin, which have splits of their own."""
REFIT = f"{FOLD}refit"
"""Beside the folds: the model of all rows."""
ENSEMBLE = "ensemble.json"
"""The members of an ensemble: what each depends on, how far it is, its rows and its weight."""
ENSEMBLE_WEIGHTS = "ensemble.safetensors"
"""All networks of an ensemble with their configurations and weights, in one file."""
REPORT = "report.html"
"""In the folder of a run or a sweep: the page of `lightkit report`."""
CALIBRATION = "calibration.json"
"""What `lightkit calibrate` found: how outputs become probabilities that can be believed, and sets that cover."""
PREDICTIONS_HELD_OUT = "oof.safetensors"
"""What a member, or the ensemble, predicts of rows that it did not learn from."""
VALIDATIONS = "val-predictions.bin"
"""What a member put out at each validation; a large file goes when the ensemble is combined."""
TOGETHER = "together"
"""Folder of the state of members that train at once; it goes when they have ended."""
TOGETHER_MEMBERS = "members.json"
"""In a folder of `TOGETHER`: the names of these members."""
PROFILE = "profile"
"""Folder of a profiled run's traces and tables."""
PROFILE_SUMMARY = "summary.txt"
"""In `PROFILE`: where the time went."""
EVENTS_PATTERN = "events.out.tfevents.*"
"""The names of TensorBoard's files."""

WEIGHTS = "weights.pt"
"""The weights as a state dict, where `checkpoint.export=weights`."""
WEIGHTS_SAFETENSORS = "weights.safetensors"
"""The weights as safetensors, where `checkpoint.export=safetensors`."""
MODEL = "model.pt"
"""The whole model with its class, where `checkpoint.export=model`."""
ADAPTER = "adapter.pt"
"""What a fine-tuning has added to its base, where `checkpoint.export=adapter`."""
SHOW = "show"
"""Folder of the pages of `lightkit show`; in `OUTPUTS` those of data sets, in the folder of a run its own."""
EVALUATION = "eval-{split}.json"
"""Metrics that `lightkit eval` measured on a split."""
PREDICTIONS = "predictions-{split}.csv"
"""What `lightkit predict` wrote of a split."""

SWEEP_JOURNAL = "sweep.jsonl"
"""In the folder of a sweep: its jobs, each with its whole configuration, and what became of them, a line for each."""
SWEEP_STOP = ".stop"
"""In the folder of a sweep: asks the process that runs it to let all jobs save, and to end."""
SWEEP_TABLE = "results.txt"
"""In the folder of a sweep: a line for each job, to read."""
SWEEP_RESULTS = "results.csv"
"""In the folder of a sweep: the same for a program, with a column for everything that was swept."""
SWEEP_QUEUE = "slurm"
"""Folder in that of a sweep: scripts, ids and ends of jobs that are in the queue of Slurm."""
SWEEP_RAY = "ray"
"""Folder in that of a sweep: which jobs of a Ray cluster are asked to end."""
SWEEP_TOGETHER = ".together"
"""Folder in that of a sweep: the state of jobs that train at once; it goes when they have ended."""
SWEEP_STUDY = "optuna.journal"
"""In the folder of a sweep: the study of Optuna that chooses its jobs."""
SWEEP_PICTURES = "study"
"""Folder in that of a sweep: pictures of its study."""
SWEEP_FOLDERS = (SWEEP_QUEUE, SWEEP_RAY, SWEEP_TOGETHER, SWEEP_PICTURES)
"""Folders in that of a sweep that belong to the sweep, and to none of its jobs."""
SWEEP_OWN = (
    *SWEEP_FOLDERS,
    SWEEP_JOURNAL,
    SWEEP_STOP,
    SWEEP_TABLE,
    SWEEP_RESULTS,
    SWEEP_STUDY,
    f"{SWEEP_STUDY}.lock",
    LOCK,
    JOB_LOCK,
    OUTPUT_LOG,
    CHECKPOINTS,
    FIGURES,
    PROFILE,
    MEMBERS,
)
"""Names in the folder of a sweep that belong to the sweep, and to none of its jobs: in these no run is looked for."""
