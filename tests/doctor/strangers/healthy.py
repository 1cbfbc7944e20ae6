"""Projects in which nothing is wrong, though something about each is unusual. All of them learn."""

from __future__ import annotations

from tests.doctor.strangers.cases import read

CASES = read(
    r'''
# the best constant under weights is not the one under shares
=== weights of classes
def data():
    x, y = blobs(600, gap=1.0)
    keep = (y == 0) | (torch.rand(600, generator=generator(1)) < 0.3)
    return TensorDataset(x[keep], y[keep])
class Loss(nn.CrossEntropyLoss):
    def __init__(self): super().__init__(weight=torch.tensor([0.3, 1.5, 1.5]))
=== heavy weight of a rare class
def data():
    x, y = blobs(800, 2, gap=1.2)
    keep = (y == 0) | (torch.rand(800, generator=generator(1)) < 0.2)
    return TensorDataset(x[keep], y[keep])
class Loss(nn.CrossEntropyLoss):
    def __init__(self): super().__init__(weight=torch.tensor([0.1, 4.0]))
# each position has a distribution of its own, apart from the inputs
=== position in a sequence tells
$ model=lstm_lm model.hidden=32 model.dim=16 loss=token_cross_entropy metrics=language_modeling optim.lr=0.01
class Fields(Dataset):
    info = DataInfo("language_modeling", (12,), 0, vocab_size=42, context_length=12)
    def __init__(self):
        g = generator()
        low, values = torch.arange(13) * 3, torch.randint(0, 6, (400, 13), generator=g)
        values[:, 1::2] = (values[:, 0:-1:2] + 2) % 6
        self.x = low + values
    def __len__(self): return len(self.x)
    def __getitem__(self, row): return self.x[row, :-1], self.x[row, 1:]
def data(): return Fields()
=== padding is left out of the loss $ metrics=none optim.lr=0.01
def sentences(rows=300, length=12):
    """Words and their tags; a word of 0 and a tag of 0 fill up what is too short."""
    g = generator()
    x = torch.randint(1, 40, (rows, length), generator=g)
    y = 1 + x % 4
    lengths = torch.randint(4, length + 1, (rows,), generator=g)
    over = torch.arange(length) >= lengths[:, None]
    return x.masked_fill(over, 0), y.masked_fill(over, 0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(40, 24, padding_idx=0), mlp(24, 5)
    def forward(self, x): return self.head(self.words(x))
class Step(Task):
    def step(self, model, batch, criterion):
        output = model(batch["x"])
        loss = F.cross_entropy(output.flatten(0, 1), batch["y"].flatten(), ignore_index=0)
        return StepOutput(loss)
class Sentences(Dataset):
    classes = 5
    def __init__(self): self.x, self.y = sentences()
    def __len__(self): return len(self.x)
    def __getitem__(self, row): return {"x": self.x[row], "y": self.y[row]}
def data(): return Sentences()
# and a network that is given the words alone
=== padding by a value that the loss ignores $ metrics=none optim.lr=0.01
def sentences(rows=300, length=12):
    """Words and their tags; a word of 0 and a tag of 0 fill up what is too short."""
    g = generator()
    x = torch.randint(1, 40, (rows, length), generator=g)
    y = 1 + x % 4
    lengths = torch.randint(4, length + 1, (rows,), generator=g)
    over = torch.arange(length) >= lengths[:, None]
    return x.masked_fill(over, 0), y.masked_fill(over, 0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(40, 24, padding_idx=0), mlp(24, 5)
    def forward(self, x): return self.head(self.words(x))
class Loss(nn.Module):
    def forward(self, output, target): return F.cross_entropy(output.flatten(0, -2), target.flatten(), ignore_index=0)
class Sentences(Dataset):
    info = DataInfo("custom", (12,), 5)
    def __init__(self): self.x, self.y = sentences()
    def __len__(self): return len(self.x)
    def __getitem__(self, row): return self.x[row], self.y[row]
def data(): return Sentences()
=== nearly all targets are equal $ metrics.monitor=val/f1 data.split.by=stratified optim.lr=0.01
tolerates: class balance
def data():
    x, y = blobs(600, 2, gap=1.5)
    keep = (y == 0) | (torch.rand(600, generator=generator(1)) < 0.12)
    return TensorDataset(x[keep], y[keep])
# the negative log likelihood of narrow densities lies below 0
=== density with a negative loss $ metrics=none optim.lr=0.01
def data():
    x, y = curve()
    return TensorDataset(x, 0.05 * y)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(6, 2)
    def forward(self, x):
        mean, log_deviation = self.body(x).unbind(1)
        return torch.stack([0.1 * mean, log_deviation - 2], 1)
class Loss(nn.Module):
    def forward(self, output, target):
        return (output[:, 1] + 0.5 * ((target - output[:, 0]) / output[:, 1].exp()) ** 2).mean()
=== autoencoder $ loss=mse metrics=regression optim.lr=0.01
class Spectra(Dataset):
    def __init__(self):
        g = generator()
        self.x = torch.randn(300, 3, generator=g) @ torch.randn(3, 24, generator=g) / 1.7
        self.x += 0.1 * torch.randn(300, 24, generator=g)
    def __len__(self): return len(self.x)
    def __getitem__(self, row): return self.x[row], self.x[row]
def data(): return Spectra()
class Net(nn.Sequential):
    def __init__(self): super().__init__(*mlp(24, 4), *mlp(4, 24))
# with a season and a slow trend, cut in its order
=== series in time $ data.split.by=ordered loss=mse metrics=regression optim.lr=0.003
def data():
    t = torch.arange(600.0)
    values = (t / 12).sin() + 0.3 * (t / 50).cos() + 0.0004 * t + 0.05 * torch.randn(600, generator=generator())
    return TensorDataset(values.unfold(0, 16, 1)[:-1], values[16:])
=== several labels $ loss=bce_with_logits metrics=multilabel
class Labels(Dataset):
    info = DataInfo("multilabel", (10,), 4, ("a", "b", "c", "d"))
    def __init__(self):
        g = generator()
        self.x = torch.randn(400, 10, generator=g)
        self.y = ((self.x @ torch.randn(10, 4, generator=g)) > torch.tensor([0.0, 1.0, -1.0, 2.0])).float()
    def __len__(self): return len(self.x)
    def __getitem__(self, row): return self.x[row], self.y[row]
def data(): return Labels()
=== prices, normalised $ loss=mse metrics=regression
class Prices(Dataset):
    def __init__(self):
        self.x, y = curve(400)
        prices = 250_000 + 60_000 * y
        self.y = (prices - 250_000) / 60_000
    def __len__(self): return len(self.x)
    def __getitem__(self, row): return self.x[row], self.y[row]
def data(): return Prices()
=== few rows $ data.batch_size=8 data.split.val=0.2
def data(): return TensorDataset(*blobs(60, gap=2.0))
=== strong dropout $ model.dropout=0.5 optim.lr=0.003
def data(): return TensorDataset(*blobs(400, gap=2.0))
# its norms stay in evaluation, and a head learns
=== frozen body from a file $ optim.lr=0.01
def data(): return TensorDataset(*blobs(400))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.body[1].running_mean += 0.1
        self.body.requires_grad_(False).eval()
        self.head = nn.Linear(64, 3)
    def train(self, mode=True):
        super().train(mode)
        self.body.eval()
        return self
    def forward(self, x): return self.head(self.body(x))
=== augmentation
$ data=digits model=cnn 'model.channels=[8,16]' optim.lr=0.005 'data.augment=[{_target_:
$ lightkit.data.transforms.RandomShift, pixels: 1}]'
=== GRU over numbers $ optim.lr=0.01
def data():
    g = generator()
    x = torch.randn(400, 10, 3, generator=g)
    return TensorDataset(x, (x[:, :, 0].sum(1) > x[:, :, 1].sum(1)).long())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(3, 24, batch_first=True), nn.Linear(24, 2)
    def forward(self, x): return self.head(self.cell(x)[0][:, -1])
=== transformer language model
$ model=transformer_lm model.dim=32 model.depth=1 model.heads=2 loss=token_cross_entropy metrics=language_modeling
$ optim.lr=0.01
class Tokens(Dataset):
    info = DataInfo("language_modeling", (16,), 0, vocab_size=23, context_length=16)
    def __init__(self):
        g = generator()
        self.x = torch.randint(0, 23, (400, 17), generator=g)
        for at in range(2, 17):
            follows = torch.rand(400, generator=g) < 0.8
            self.x[:, at] = torch.where(follows, (self.x[:, at - 1] + 5) % 23, self.x[:, at])
    def __len__(self): return len(self.x)
    def __getitem__(self, row): return self.x[row, :-1], self.x[row, 1:]
def data(): return Tokens()
# whose tables are learnt
=== numbers of users and items $ loss=mse metrics=regression optim.lr=0.01
def data():
    g = generator()
    x = torch.stack([torch.randint(20, (600,), generator=g), torch.randint(20, (600,), generator=g)], 1)
    users, items = torch.randn(20, generator=g), torch.randn(20, generator=g)
    return TensorDataset(x, users[x[:, 0]] + items[x[:, 1]] + 0.1 * torch.randn(600, generator=g))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items, self.head = nn.Embedding(20, 8), nn.Embedding(20, 8), mlp(16, 1)
    def forward(self, x): return self.head(torch.cat([self.users(x[:, 0]), self.items(x[:, 1])], 1)).squeeze(1)
=== two losses $ optim.lr=0.005
def data(): return TensorDataset(*blobs(400))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.back = mlp(8, 16), nn.Linear(16, 3), nn.Linear(16, 8)
    def forward(self, x):
        code = self.body(x)
        return self.head(code), self.back(code)
class Step(Task):
    def step(self, model, batch, criterion):
        output, again = model(batch[0])
        return StepOutput(criterion(output, batch[1]) + 0.1 * F.mse_loss(again, batch[0]), output, batch[1])
=== weight that begins at the mean of targets $ loss=mse metrics=regression optim.lr=0.01
tolerates: target scale
def data():
    x, y = curve(400)
    return TensorDataset(x, 20 + y)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(6, 1)
        nn.init.constant_(self.body[2].bias, 20.0)
    def forward(self, x): return self.body(x).squeeze(1)
# one parameter with two names, as is usual
=== tied weights $ loss=token_cross_entropy metrics=language_modeling optim.lr=0.01
class Tokens(Dataset):
    info = DataInfo("language_modeling", (10,), 0, vocab_size=20, context_length=10)
    def __init__(self):
        g = generator()
        first, steps = torch.randint(20, (400, 1), generator=g), torch.randint(1, 4, (400, 11), generator=g)
        self.x = (first + steps.cumsum(1)) % 20
    def __len__(self): return len(self.x)
    def __getitem__(self, row): return self.x[row, :-1], self.x[row, 1:]
def data(): return Tokens()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.body, self.head = nn.Embedding(20, 24), mlp(24, 24), nn.Linear(24, 20, bias=False)
        self.head.weight = self.inward.weight
    def forward(self, x): return self.head(self.body(self.inward(x)))
# the best network is right in three quarters
=== outcomes that chance decides
def data():
    g = generator()
    x = torch.randn(800, 5, generator=g)
    return TensorDataset(x, (torch.rand(800, generator=g) < (1.6 * x[:, 0] - x[:, 1]).sigmoid()).long())
=== log softmax and its loss $ optim.lr=0.005
def data(): return TensorDataset(*blobs(400))
class Net(nn.Sequential):
    def __init__(self): super().__init__(*mlp(8, 3), nn.LogSoftmax(-1))
class Loss(nn.NLLLoss): pass
# the loss is the cosine with a minus, from 1 to -1
=== likeness of directions $ metrics=none optim.lr=0.003
def data():
    x = torch.randn(400, 6, generator=generator())
    return TensorDataset(x, F.normalize(torch.stack([x[:, 0] + x[:, 1], x[:, 2], -x[:, 3]], 1), dim=1))
class Loss(nn.Module):
    def forward(self, output, target): return -F.cosine_similarity(output, target).mean()
# computed anew, it is always the same
=== constant table outside of the checkpoint $ optim.lr=0.003
def data():
    x = torch.randn(400, 8, 4, generator=generator())
    return TensorDataset(x, (x[:, :4].mean((1, 2)) > x[:, 4:].mean((1, 2))).long())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        angles = torch.arange(8.0)[:, None] / torch.tensor([1.0, 2.0, 4.0, 8.0])
        self.register_buffer("places", angles.sin(), persistent=False)
        self.head = mlp(32, 2)
    def forward(self, x): return self.head((x + self.places).flatten(1))
'''
)
