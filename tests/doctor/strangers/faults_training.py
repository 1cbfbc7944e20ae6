"""Projects with a fault in the network, the loss, the step, the optimizer or the settings of training.

The comment of a case says what a useful sentence tells; `expects` takes any wording of that.
"""

from __future__ import annotations

from tests.doctor.strangers.cases import Case

BLOBS = "def data(): return TensorDataset(*blobs())\n"
CURVE = "def data(): return TensorDataset(*curve())\n"
PLAIN = """
class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
"""
BARS = "def data(): return TensorDataset(*bars())\n"
REGRESSION = "loss=mse metrics=regression"
HIGH = (
    r"steps are too large|\b(rate|lr)\b.{0,80}(too (high|large)|lower|smaller|tenth|or less)"
    r"|(lower|smaller) (optim\.)?(learning |lr|rate)"
)
LOW = (
    r"steps are too small|\b(rate|lr)\b.{0,80}(too (low|small)|higher|larger|ten times|or more)"
    r"|(higher|larger) (optim\.)?(learning |lr|rate)"
)
BATCH = (
    r"batch (size|statistic)|(other rows|neighbou?rs|rest).{0,40}batch|batch.{0,60}(depend|other rows)|batch_first"
    r"|track_running_stats"
)
MEMORY = r"(one|same|share\w*|overlap\w*).{0,40}(memory|storage)|(memory|storage).{0,40}(share|same|overlap)|overlap"
OPTIMIZER = (
    r"optimi[sz]er[^.;:]{0,40}\b(lacks|misses|not hold|does not|"
    r"holds \d|holds only|has only|only|leaves out|without|\d of)"
    r"|not in (the|any) optimi|(parameters|tensors|weights).{0,60}\bno(t in the)? optimi"
)

CASES = [
    # The rate is too high: a lower one learns.
    Case(
        "rate 600 times too high",
        CURVE + PLAIN,
        "optim.lr=0.6 " + REGRESSION,
        expects=HIGH,
    ),
    Case("rate of SGD diverges", overrides="data=diabetes optim=sgd optim.lr=5", expects=HIGH),
    Case(
        "half as rate for a CNN with AdamW",
        """
class Net(nn.Sequential):
    def __init__(self):
        body = nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten()
        super().__init__(*body, nn.Linear(256, 10))
""",
        "data=digits optim.lr=0.5",
        expects=HIGH,
    ),
    # The rate is too low: in the steps of the run nothing can be learnt, and a higher one learns.
    Case("rate 600 times too low", overrides="data=wine optim.lr=1.6e-6", expects=LOW),
    Case("rate of SGD hardly moves", BLOBS, "optim=sgd optim.lr=1e-6", expects=LOW),
    # The weight decay pulls the weights to zero faster than they learn.
    Case(
        "weight decay of fifty",
        CURVE + PLAIN,
        "optim.weight_decay=50 " + REGRESSION,
        expects=r"weight.decay",
    ),
    Case("weight decay of SGD is one", BLOBS, "optim=sgd optim.lr=0.1 optim.weight_decay=1", expects=r"weight.decay"),
    # The optimizer does not hold all that trains: which, or how many, are missing.
    Case(
        "optimizer holds one of six",
        BLOBS
        + """
class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3))

class Optim(torch.optim.Adam):
    def __init__(self, params, lr=1e-3):
        params = [p for each in params for p in (each["params"] if isinstance(each, dict) else [each])]
        super().__init__(params[-1:], lr)
""",
        expects=OPTIMIZER,
    ),
    Case(
        "optimizer without the first layers",
        BARS
        + """
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 3))

class Optim(torch.optim.AdamW):
    def __init__(self, params, lr=1e-3):
        params = [p for each in params for p in (each["params"] if isinstance(each, dict) else [each])]
        super().__init__(params[4:], lr)
""",
        expects=OPTIMIZER,
    ),
    # The signal or the gradient dies in a chain of saturating layers: name the layers, the vanishing, or their scale.
    Case(
        "ten sigmoids",
        BLOBS
        + """
class Net(nn.Sequential):
    def __init__(self):
        layers = [nn.Linear(8, 16), nn.Sigmoid()]
        for _ in range(9): layers += [nn.Linear(16, 16), nn.Sigmoid()]
        super().__init__(*layers, nn.Linear(16, 3))
""",
        expects=r"sigmoid|saturat|vanish|gradients?.*(small|tiny|weak|hardly)|same for all (inputs|rows)",
    ),
    Case(
        "small weights in deep tanh",
        BLOBS
        + """
class Net(nn.Sequential):
    def __init__(self):
        layers = [nn.Linear(8, 32), nn.Tanh()]
        for _ in range(7): layers += [nn.Linear(32, 32), nn.Tanh()]
        super().__init__(*layers, nn.Linear(32, 3))
        for each in self:
            if isinstance(each, nn.Linear): nn.init.normal_(each.weight, std=0.01), nn.init.zeros_(each.bias)
""",
        expects=r"vanish|gradients?.*(small|tiny|weak|hardly)|shrink|same for all (inputs|rows)|initiali[sz]"
        r"|activations?.*(small|tiny)",
    ),
    # The targets are far from what a fresh network gives: scale them.
    Case(
        "targets of 300,000",
        """
def data():
    x, y = curve()
    return TensorDataset(x, 300_000 + 80_000 * y)
""",
        REGRESSION,
        expects=r"targets?.{0,80}(scale|far from 0|large|mean)",
    ),
    Case(
        "targets of a millionth",
        """
def data():
    x, y = curve()
    return TensorDataset(x, 2e-6 * y)
""",
        REGRESSION,
        expects=r"targets?.{0,80}(scale|small|tiny)",
    ),
    # Output and target have different shapes, and the loss compares each row with every other.
    Case(
        "loss broadcasts",
        CURVE
        + """
class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))

class Step(Task):
    def step(self, model, batch, criterion):
        x, y = batch
        output = model(x)
        return StepOutput(((output - y) ** 2).mean(), output.squeeze(1), y)
""",
        REGRESSION,
        expects=r"broadcast|shape",
    ),
    Case(
        "loss broadcasts a column of targets",
        """
def data():
    x, y = curve()
    return TensorDataset(x, y[:, None])

class Loss(nn.Module):
    def forward(self, output, target): return (output.squeeze() - target).abs().mean()
""",
        "metrics=regression model=mlp",
        expects=r"broadcast|shape",
    ),
    # Something of the step before, with its graph, is used in the next: detach it.
    Case(
        "memory of the step before",
        BLOBS
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head, self.memory = nn.GRUCell(8, 16), nn.Linear(16, 3), None

    def forward(self, x):
        if self.memory is None or len(self.memory) != len(x): self.memory = x.new_zeros(len(x), 16)
        self.memory = self.cell(x, self.memory)
        return self.head(self.memory)
""",
        expects=r"detach|graph",
        severity="error",
    ),
    Case(
        "losses kept with their graphs",
        BLOBS
        + """
class Step(Task):
    def __init__(self): self.history = []

    def step(self, model, batch, criterion):
        output = model(batch[0])
        loss = criterion(output, batch[1])
        self.history.append(loss)
        return StepOutput(loss, output, batch[1])
""",
        expects=r"detach|graph|memory.{0,60}(grow|kept|more)",
    ),
    # In evaluation, the output of a row depends on the other rows of its batch.
    Case(
        "batch statistics in evaluation",
        BLOBS
        + """
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 32), nn.BatchNorm1d(32, track_running_stats=False), nn.ReLU(), nn.Linear(32, 3))
""",
        expects=BATCH,
    ),
    Case(
        "rows are scaled by their batch",
        BLOBS
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(8, 3)

    def forward(self, x): return self.body((x - x.mean(0)) / (x.std(0) + 1e-6))
""",
        expects=BATCH,
    ),
    # Two parameters lie on one memory: each step moves both.
    Case(
        "two parameters on one memory",
        BLOBS
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        self.b.weight.data = self.a.weight.data

    def forward(self, x): return self.head(self.b(self.a(self.inward(x).relu()).relu()).relu())
""",
        expects=MEMORY,
    ),
    Case(
        "a parameter is part of another",
        BLOBS
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 3)
        self.scale = nn.Parameter(self.body.weight.data.view(-1)[:32])

    def forward(self, x): return self.head(self.body(x).relu() * self.scale)
""",
        expects=MEMORY,
    ),
    # A tensor that the network computes with is in no checkpoint: register it as a buffer.
    Case(
        "tensor that is no buffer",
        BLOBS
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.directions = torch.randn(8, 32)
        self.head = nn.Linear(32, 3)

    def forward(self, x): return self.head((x @ self.directions).relu())
""",
        expects=r"buffer",
    ),
    Case(
        "running scale that is no buffer",
        BLOBS
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.level = mlp(8, 3), torch.ones(8)

    def forward(self, x):
        if self.training: self.level = 0.9 * self.level + 0.1 * x.detach().abs().mean(0)
        return self.body(x / self.level)
""",
        expects=r"buffer|checkpoint.{0,80}(not|lack|bring|miss)",
    ),
]
