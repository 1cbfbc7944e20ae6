"""Projects with a fault in the network, the loss, a step, the optimizer or the settings of training.

A comment says what a useful sentence tells of the cases below it; the expression takes any wording of that.
"""

from __future__ import annotations

from tests.doctor.strangers.cases import read

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
NORM = (
    r"norm.{0,100}(statistic|momentum|eval\(|in evaluation|never (train|learn|change)|do(es)? not (train|learn|change))"
    r"|running (statistics|mean|variance)"
)
ADDS_UP = r"\bsums?\b|summed|adds? up|reduction|grows? with the (batch|number of rows)"

CASES = read(
    r"""
# The rate is too high: a lower one learns.
=== rate 600 times too high $ optim.lr=0.6 loss=mse metrics=regression
warning: HIGH
def data(): return TensorDataset(*curve())
class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
=== rate of SGD diverges $ data=diabetes optim=sgd optim.lr=5
warning: HIGH
=== half as rate for a CNN with AdamW $ data=digits optim.lr=0.5
warning: HIGH
class Net(nn.Sequential):
    def __init__(self):
        body = nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten()
        super().__init__(*body, nn.Linear(256, 10))
# The rate is too low: in the steps of the run nothing can be learnt, and a higher one learns.
=== rate 600 times too low $ data=wine optim.lr=1.6e-6
warning: LOW
=== rate of SGD hardly moves $ optim=sgd optim.lr=1e-6
warning: LOW
def data(): return TensorDataset(*blobs())
# The weight decay pulls the weights to zero faster than they learn.
=== weight decay of fifty $ optim.weight_decay=50 loss=mse metrics=regression
warning: weight.decay
def data(): return TensorDataset(*curve())
class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
=== weight decay of SGD is one $ optim=sgd optim.lr=0.1 optim.weight_decay=1
warning: weight.decay
def data(): return TensorDataset(*blobs())
# The optimizer does not hold all that trains: which, or how many, are missing.
=== optimizer holds one of six
warning: OPTIMIZER
def data(): return TensorDataset(*blobs())
class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3))
class Optim(torch.optim.Adam):
    def __init__(self, params, lr=1e-3):
        params = [p for each in params for p in (each["params"] if isinstance(each, dict) else [each])]
        super().__init__(params[-1:], lr)
=== optimizer without the first layers
warning: OPTIMIZER
def data(): return TensorDataset(*bars())
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 3))
class Optim(torch.optim.AdamW):
    def __init__(self, params, lr=1e-3):
        params = [p for each in params for p in (each["params"] if isinstance(each, dict) else [each])]
        super().__init__(params[4:], lr)
# The signal or the gradient dies in a chain of saturating layers: name the layers, the vanishing, or their scale.
=== ten sigmoids
warning: sigmoid|saturat|vanish|gradients?.*(small|tiny|weak|hardly)|same for all (inputs|rows)
def data(): return TensorDataset(*blobs())
class Net(nn.Sequential):
    def __init__(self):
        layers = [nn.Linear(8, 16), nn.Sigmoid()]
        for _ in range(9): layers += [nn.Linear(16, 16), nn.Sigmoid()]
        super().__init__(*layers, nn.Linear(16, 3))
=== small weights in deep tanh
warning: vanish|gradients?.*(small|tiny|weak|hardly)|shrink|same for all (inputs|rows)|initiali[sz]
warning: activations?.*(small|tiny)
def data(): return TensorDataset(*blobs())
class Net(nn.Sequential):
    def __init__(self):
        layers = [nn.Linear(8, 32), nn.Tanh()]
        for _ in range(7): layers += [nn.Linear(32, 32), nn.Tanh()]
        super().__init__(*layers, nn.Linear(32, 3))
        for each in self:
            if isinstance(each, nn.Linear): nn.init.normal_(each.weight, std=0.01), nn.init.zeros_(each.bias)
# The targets are far from what a fresh network gives: scale them.
=== targets of 300,000 $ loss=mse metrics=regression
warning: targets?.{0,80}(scale|far from 0|large|mean)
def data():
    x, y = curve()
    return TensorDataset(x, 300_000 + 80_000 * y)
=== targets of a millionth $ loss=mse metrics=regression
warning: targets?.{0,80}(scale|small|tiny)
def data():
    x, y = curve()
    return TensorDataset(x, 2e-6 * y)
# Output and target have different shapes, and the loss compares each row with every other.
=== loss broadcasts $ loss=mse metrics=regression
warning: broadcast|shape
def data(): return TensorDataset(*curve())
class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
class Step(Task):
    def step(self, model, batch, criterion):
        x, y = batch
        output = model(x)
        return StepOutput(((output - y) ** 2).mean(), output.squeeze(1), y)
=== loss broadcasts a column of targets $ metrics=regression model=mlp
warning: broadcast|shape
def data():
    x, y = curve()
    return TensorDataset(x, y[:, None])
class Loss(nn.Module):
    def forward(self, output, target): return (output.squeeze() - target).abs().mean()
# Something of the step before, with its graph, is used in the next: detach it.
=== memory of the step before
error: detach|graph
def data(): return TensorDataset(*blobs())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head, self.memory = nn.GRUCell(8, 16), nn.Linear(16, 3), None
    def forward(self, x):
        if self.memory is None or len(self.memory) != len(x): self.memory = x.new_zeros(len(x), 16)
        self.memory = self.cell(x, self.memory)
        return self.head(self.memory)
=== losses kept with their graphs
warning: detach|graph|memory.{0,60}(grow|kept|more)
def data(): return TensorDataset(*blobs())
class Step(Task):
    def __init__(self): self.history = []
    def step(self, model, batch, criterion):
        output = model(batch[0])
        loss = criterion(output, batch[1])
        self.history.append(loss)
        return StepOutput(loss, output, batch[1])
# In evaluation, the output of a row depends on the other rows of its batch.
=== batch statistics in evaluation
warning: BATCH
def data(): return TensorDataset(*blobs())
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 32), nn.BatchNorm1d(32, track_running_stats=False), nn.ReLU(), nn.Linear(32, 3))
=== rows are scaled by their batch
warning: BATCH
def data(): return TensorDataset(*blobs())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(8, 3)
    def forward(self, x): return self.body((x - x.mean(0)) / (x.std(0) + 1e-6))
# Two parameters lie on one memory: each step moves both.
=== two parameters on one memory
warning: MEMORY
def data(): return TensorDataset(*blobs())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        self.b.weight.data = self.a.weight.data
    def forward(self, x): return self.head(self.b(self.a(self.inward(x).relu()).relu()).relu())
=== a parameter is part of another
warning: MEMORY
def data(): return TensorDataset(*blobs())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 3)
        self.scale = nn.Parameter(self.body.weight.data.view(-1)[:32])
    def forward(self, x): return self.head(self.body(x).relu() * self.scale)
# A tensor that the network computes with is in no checkpoint: register it as a buffer.
=== tensor that is no buffer
warning: buffer
def data(): return TensorDataset(*blobs())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.directions = torch.randn(8, 32)
        self.head = nn.Linear(32, 3)
    def forward(self, x): return self.head((x @ self.directions).relu())
=== running scale that is no buffer
warning: buffer|checkpoint.{0,80}(not|lack|bring|miss)
def data(): return TensorDataset(*blobs())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.level = mlp(8, 3), torch.ones(8)
    def forward(self, x):
        if self.training: self.level = 0.9 * self.level + 0.1 * x.detach().abs().mean(0)
        return self.body(x / self.level)
# The loss applies the softmax or sigmoid itself: the network must give logits.
=== softmax before cross entropy
warning: softmax|logits
def data(): return TensorDataset(*blobs())
class Net(nn.Sequential):
    def __init__(self): super().__init__(*mlp(8, 3), nn.Softmax(-1))
=== sigmoid before the loss of logits $ loss=bce_with_logits metrics=binary
warning: sigmoid|logits
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
# The loss is a sum: it and its gradients grow with the batch.
=== loss is the sum of its rows $ loss=cross_entropy +loss.reduction=sum
warning: ADDS_UP
def data(): return TensorDataset(*blobs())
# The loss of a step has that of all steps before in it.
=== losses add up from step to step
warning: adds? up|accumulat|from step to step|same (batch|rows).{0,60}(other|different|again|twice)
warning: loss.{0,60}(steps|batches) before|earlier steps
def data(): return TensorDataset(*blobs())
class Step(Task):
    def __init__(self): self.total = 0.0
    def step(self, model, batch, criterion):
        output = model(batch[0])
        loss = self.total + criterion(output, batch[1])
        self.total = loss.detach()
        return StepOutput(loss, output, batch[1])
# A norm does not learn the statistics of the data, so that evaluation is another network.
=== norm with a momentum of zero
warning: NORM
def data():
    x, y = blobs()
    return TensorDataset(20 + 5 * x, y)
class Net(nn.Sequential):
    def __init__(self):
        norm = nn.BatchNorm1d(8, momentum=0.0)
        super().__init__(norm, *mlp(8, 3))
=== norm is always in evaluation
warning: NORM
def data(): return TensorDataset(*bars())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.norm, self.head = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Linear(800, 3)
    def forward(self, x):
        self.norm.eval()
        return self.head(self.norm(self.inward(x)).relu().flatten(1))
# The network writes into its input, which is a row of the data set.
=== input changed in place
warning: in.?place|input.{0,60}(change|written|overwrit|modif)|(changes|writes|overwrites|modifies).{0,40}input
def data(): return TensorDataset(*blobs())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(8, 3)
    def forward(self, x): return self.body(x.sub_(0.1).mul_(1.1))
=== first layer overwrites its input
warning: in.?place|input.{0,60}(change|written|overwrit|modif)|(changes|writes|overwrites|modifies).{0,40}input
def data(): return TensorDataset(*bars())
class Net(nn.Sequential):
    def __init__(self):
        layers = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 3)
        super().__init__(nn.LeakyReLU(0.1, inplace=True), *layers)
    def forward(self, x):
        x -= 0.5
        return super().forward(x)
# What forward raises, as `train` tells it, with the fix.
=== a layer of the wrong size
error: shape|size|640|800
def data(): return TensorDataset(*bars())
class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(640, 3))
# in the second epoch of a run, not in the first step
=== a step that raises after some time
error: KeyError
def data(): return TensorDataset(*blobs())
class Step(Task):
    def __init__(self): self.steps = 0
    def step(self, model, batch, criterion):
        output = model(batch[0])
        self.steps += model.training
        weight = {0: 1.0, 1: 0.5}[self.steps // 6]
        return StepOutput(weight * criterion(output, batch[1]), output, batch[1])
# The targets reach the network.
=== the task gives the target to the network
error: targets? (reach|leak|is given|are given|goes|go)|(reads?|given|sees|knows) (the|its|their) targets?
error: outputs? change
def data(): return TensorDataset(*blobs())
class Net(nn.Sequential):
    def __init__(self): super().__init__(*mlp(11, 3))
class Step(Task):
    def step(self, model, batch, criterion):
        x, y = batch
        output = model(torch.cat([x, F.one_hot(y, 3).float()], 1))
        return StepOutput(criterion(output, y), output, y)
=== a language model that looks ahead $ loss=token_cross_entropy metrics=language_modeling
warning: later|ahead|future|causal|to come|it is to predict
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
# The loss is made larger instead of smaller.
=== likelihood without its minus
warning: \bsign\b|minus|negative|maximi|without (a )?(bound|limit|end)|below 0|worse
def data(): return TensorDataset(*blobs())
class Loss(nn.Module):
    def forward(self, output, target): return output.log_softmax(-1)[torch.arange(len(target)), target].mean()
# The outputs cannot become negative, and the targets are.
=== outputs that cannot be negative $ loss=mse metrics=regression
warning: outputs?.{0,100}(cannot|never|only|at least|below|negative|range|reach|lie)
def data(): return TensorDataset(*curve())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(6, 1)
    def forward(self, x): return self.body(x).relu().squeeze(1)
""",
    {
        "HIGH": HIGH,
        "LOW": LOW,
        "BATCH": BATCH,
        "MEMORY": MEMORY,
        "OPTIMIZER": OPTIMIZER,
        "NORM": NORM,
        "ADDS_UP": ADDS_UP,
    },
)
