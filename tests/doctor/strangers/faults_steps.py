"""Projects with a fault in what happens in a step: the loss, the task, the norms, and what forward does to its input.

The comment of a case says what a useful sentence tells; `expects` takes any wording of that.
"""

from __future__ import annotations

from tests.doctor.strangers.cases import Case

BLOBS = "def data(): return TensorDataset(*blobs())\n"
NORM = (
    r"norm.{0,100}(statistic|momentum|eval\(|in evaluation|never (train|learn|change)|do(es)? not (train|learn|change))"
    r"|running (statistics|mean|variance)"
)
ADDS_UP = r"\bsums?\b|summed|adds? up|reduction|grows? with the (batch|number of rows)"

CASES = [
    # The loss applies the softmax or sigmoid itself: the network must give logits.
    Case(
        "softmax before cross entropy",
        BLOBS
        + """
class Net(nn.Sequential):
    def __init__(self): super().__init__(*mlp(8, 3), nn.Softmax(-1))
""",
        expects=r"softmax|logits",
    ),
    Case(
        "sigmoid before the loss of logits",
        """
class Sick(Dataset):
    info = DataInfo("binary", (8,), 1)
    def __init__(self): self.x, self.y = blobs(300, 2)
    def __len__(self): return len(self.x)
    def __getitem__(self, row): return self.x[row], self.y[row].float()

def data(): return Sick()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(8, 1)
    def forward(self, x): return self.body(x).sigmoid()
""",
        "loss=bce_with_logits metrics=binary",
        expects=r"sigmoid|logits",
    ),
    # The loss is a sum: it and its gradients grow with the batch.
    Case("loss is the sum of its rows", BLOBS, "loss=cross_entropy +loss.reduction=sum", expects=ADDS_UP),
    # The loss of a step has that of all steps before in it.
    Case(
        "losses add up from step to step",
        BLOBS
        + """
class Step(Task):
    def __init__(self): self.total = 0.0

    def step(self, model, batch, criterion):
        output = model(batch[0])
        loss = self.total + criterion(output, batch[1])
        self.total = loss.detach()
        return StepOutput(loss, output, batch[1])
""",
        expects=r"adds? up|accumulat|from step to step|same (batch|rows).{0,60}(other|different|again|twice)"
        r"|loss.{0,60}(steps|batches) before|earlier steps",
    ),
    # A norm does not learn the statistics of the data, so that evaluation is another network.
    Case(
        "norm with a momentum of zero",
        """
def data():
    x, y = blobs()
    return TensorDataset(20 + 5 * x, y)

class Net(nn.Sequential):
    def __init__(self):
        norm = nn.BatchNorm1d(8, momentum=0.0)
        super().__init__(norm, *mlp(8, 3))
""",
        expects=NORM,
    ),
    Case(
        "norm is always in evaluation",
        """
def data(): return TensorDataset(*bars())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.norm, self.head = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Linear(800, 3)

    def forward(self, x):
        self.norm.eval()
        return self.head(self.norm(self.inward(x)).relu().flatten(1))
""",
        expects=NORM,
    ),
    # The network writes into its input, which is a row of the data set.
    Case(
        "input changed in place",
        BLOBS
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(8, 3)
    def forward(self, x): return self.body(x.sub_(0.1).mul_(1.1))
""",
        expects=r"in.?place|input.{0,60}(change|written|overwrit|modif)|(changes|writes|overwrites|modifies).{0,40}input",
    ),
    Case(
        "first layer overwrites its input",
        """
def data(): return TensorDataset(*bars())

class Net(nn.Sequential):
    def __init__(self):
        layers = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 3)
        super().__init__(nn.LeakyReLU(0.1, inplace=True), *layers)
    def forward(self, x):
        x -= 0.5
        return super().forward(x)
""",
        expects=r"in.?place|input.{0,60}(change|written|overwrit|modif)|(changes|writes|overwrites|modifies).{0,40}input",
    ),
    # What forward raises, as `train` tells it, with the fix.
    Case(
        "a layer of the wrong size",
        """
def data(): return TensorDataset(*bars())

class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(640, 3))
""",
        expects=r"shape|size|640|800",
        severity="error",
    ),
    Case(
        "a step that raises after some time",  # in the second epoch of a run, not in the first step
        BLOBS
        + """
class Step(Task):
    def __init__(self): self.steps = 0

    def step(self, model, batch, criterion):
        output = model(batch[0])
        self.steps += model.training
        weight = {0: 1.0, 1: 0.5}[self.steps // 6]
        return StepOutput(weight * criterion(output, batch[1]), output, batch[1])
""",
        expects=r"KeyError",
        severity="error",
    ),
    # The targets reach the network.
    Case(
        "the task gives the target to the network",
        BLOBS
        + """
class Net(nn.Sequential):
    def __init__(self): super().__init__(*mlp(11, 3))

class Step(Task):
    def step(self, model, batch, criterion):
        x, y = batch
        output = model(torch.cat([x, F.one_hot(y, 3).float()], 1))
        return StepOutput(criterion(output, y), output, y)
""",
        expects=r"targets? (reach|leak|is given|are given|goes|go)"
        r"|(reads?|given|sees|knows) (the|its|their) targets?|outputs? change",
        severity="error",
    ),
    Case(
        "a language model that looks ahead",
        """
class Tokens(Dataset):
    info = DataInfo("language_modeling", (12,), 0, vocab_size=20, context_length=12)
    def __init__(self): self.x = torch.randint(0, 20, (400, 13), generator=generator())
    def __len__(self): return len(self.x)
    def __getitem__(self, row): return self.x[row, :-1], self.x[row, 1:]

def data(): return Tokens()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.head = nn.Embedding(20, 32), nn.Linear(64, 20)
        self.both = nn.GRU(32, 32, batch_first=True, bidirectional=True)
    def forward(self, x): return self.head(self.both(self.inward(x))[0])
""",
        "loss=token_cross_entropy metrics=language_modeling",
        expects=r"later|ahead|future|causal|to come|it is to predict",
    ),
    # The loss is made larger instead of smaller.
    Case(
        "likelihood without its minus",
        BLOBS
        + """
class Loss(nn.Module):
    def forward(self, output, target): return output.log_softmax(-1)[torch.arange(len(target)), target].mean()
""",
        expects=r"\bsign\b|minus|negative|maximi|without (a )?(bound|limit|end)|below 0|worse",
    ),
    # The outputs cannot become negative, and the targets are.
    Case(
        "outputs that cannot be negative",
        "def data(): return TensorDataset(*curve())\n"
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(6, 1)
    def forward(self, x): return self.body(x).relu().squeeze(1)
""",
        "loss=mse metrics=regression",
        expects=r"outputs?.{0,100}(cannot|never|only|at least|below|negative|range|reach|lie)",
    ),
]
