"""Projects with a fault in the data: inputs, targets, or how rows become splits.

A comment says what a useful sentence tells of the cases below it; the expression takes any wording of that.
"""

from __future__ import annotations

from tests.doctor.strangers.cases import read

CLASSES_OF_NUMBERS = r"regression|loss=(mse|l1|huber)|in order\b|ordered numbers|how (near|far)"
FEW = (
    r"\bval\w*\b.{0,40}(\b(1|one|a single|few|only \d+|3|three) rows?\b|too (few|small))"
    r"|\b(1|one|a single|few|only \d|3|three) rows?\b.{0,40}\bval"
)
WRONG = (
    r"labels?.{0,80}(wrong|noise|noisy|disagree|contradict|mistake)"
    r"|(alike|nearest|neighbou?rs?).{0,80}(other|another|different) (label|class)"
)

CASES = read(
    r"""
# Pictures lie as height, width, channels, and the network takes the height for channels.
=== pictures as height, width, channels $ model=cnn 'model.channels=[8,16]'
warning: channels?.{0,40}(last|first|end|order)|permute|H\W{1,3}W\W{1,3}C|height
def data():
    x, y = bars(300, 16, 3)
    return TensorDataset(x.permute(0, 2, 3, 1).contiguous(), y)
=== wide pictures with channels last
warning: channels?.{0,40}(last|first|end|order)|permute|H\W{1,3}W\W{1,3}C|height
class Wide(Dataset):
    def __init__(self):
        x, self.y = bars(300, 12, 3)
        self.x = torch.cat([x, torch.rand(300, 3, 12, 8, generator=generator(1)) * 0.2], 3).permute(0, 2, 3, 1)
    def __len__(self): return len(self.x)
    def __getitem__(self, row): return self.x[row], int(self.y[row])
def data(): return Wide()
class Net(nn.Sequential):
    def __init__(self, in_channels, num_classes):
        pool = nn.AdaptiveMaxPool2d(1), nn.Flatten()
        super().__init__(nn.Conv2d(in_channels, 16, 3, padding=1), nn.ReLU(), *pool, nn.Linear(16, num_classes))
# Bright pixels became dark ones, as 8 bits hold no more than 255.
=== uint8 that wrapped $ model=cnn 'model.channels=[8,16]'
warning: wrap|uint8|overflow|8.bit|modulo
def data():
    g = generator()
    y, phase = torch.randint(2, (300,), generator=g), torch.rand(300, 1, 1, generator=g) * 6
    across = torch.linspace(0, 3, 16)
    waves = torch.where(y[:, None, None] == 0, across[:, None] + phase, across[None] + phase).sin()
    light = (120 + 60 * waves + 8 * torch.rand(300, 16, 16, generator=g)).to(torch.uint8)
    return TensorDataset((light + 110).float()[:, None] / 255, y)
# One channel is the same everywhere.
=== blue channel is empty $ model=cnn 'model.channels=[8,16]'
warning: channels?.{0,60}(same|constant|equal|nothing|empty)|(constant|same|empty).{0,60}channel
def data():
    x, y = bars(300, 12, 3)
    x[:, 2] = 0
    return TensorDataset(x, y)
=== fourth channel is opacity $ model=cnn 'model.channels=[8,16]'
warning: channels?.{0,60}(same|constant|equal|nothing|empty)|(constant|same|empty).{0,60}channel
def data():
    x, y = bars(300, 12, 3)
    return TensorDataset(torch.cat([x, torch.ones(300, 1, 12, 12)], 1), y)
# Many labels are wrong: rows that are alike have different ones.
=== two fifths of the labels are wrong
warning: WRONG
def data():
    x, y = blobs(600, 4, gap=3.0)
    wrong = torch.rand(600, generator=generator(1)) < 0.53  # three of four of these become another
    return TensorDataset(x, torch.where(wrong, torch.randint(4, (600,), generator=generator(2)), y))
=== a third of yes and no are swapped
warning: WRONG
def data():
    x, y = blobs(600, 2, gap=3.0)
    return TensorDataset(x, torch.where(torch.rand(600, generator=generator(1)) < 0.33, 1 - y, y))
# Validation has too few rows to tell anything.
=== validation of one row $ data.split.val=0.0034
warning: FEW
def data(): return TensorDataset(*blobs())
=== validation of three rows
warning: FEW
class Split(TensorDataset):
    splits = {"val": [7, 8, 9], "test": range(250, 300)}
def data(): return Split(*blobs())
# The classes are numbers in order: regression.
=== ages as 63 classes
warning: CLASSES_OF_NUMBERS
def data():
    x, y = curve(900)
    return TensorDataset(x, (49 + 14 * y).clamp(18, 80).long() - 18)
=== days of a stay as classes
warning: CLASSES_OF_NUMBERS
def data():
    x, _ = curve(900)
    return TensorDataset(x, (6 * (0.5 * x[:, 0] + 0.3 * x[:, 1]).exp()).clamp(0, 44).long())
# Places that only fill up count in the loss: leave them out (ignore_index, a mask).
=== padding in the loss of tags $ metrics=none optim.lr=0.01
warning: padd|ignore_index|fill(s|ed)? up|mask
class Tags(Dataset):
    info = DataInfo("custom", (24,), 5)
    def __init__(self):
        g = generator()
        self.x = torch.randint(1, 40, (300, 24), generator=g)
        self.x[torch.arange(24) >= torch.randint(3, 9, (300, 1), generator=g)] = 0
        self.y = torch.where(self.x > 0, 1 + self.x % 4, 0)
    def __len__(self): return len(self.x)
    def __getitem__(self, row): return self.x[row], self.y[row]
def data(): return Tags()
class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Embedding(40, 16, padding_idx=0), nn.Linear(16, 5))
class Loss(nn.Module):
    def forward(self, output, target): return F.cross_entropy(output.flatten(0, -2), target.flatten())
=== padding in the loss of a language model
$ model=lstm_lm model.hidden=32 model.dim=16 loss=token_cross_entropy metrics=language_modeling
warning: padd|ignore_index|fill(s|ed)? up|mask
class Names(Dataset):
    info = DataInfo("language_modeling", (24,), 0, vocab_size=30, context_length=24)
    def __init__(self):
        g = generator()
        start, stride = torch.randint(29, (300, 1), generator=g), torch.randint(1, 29, (300, 1), generator=g)
        self.x = (start + stride * torch.arange(25)) % 29 + 1
        self.x[torch.arange(25) >= torch.randint(6, 10, (300, 1), generator=g)] = 0
    def __len__(self): return len(self.x)
    def __getitem__(self, row): return self.x[row, :-1], self.x[row, 1:]
def data(): return Names()
# What the data set raises at a row, or what its samples are, with the row or the type.
=== a row that cannot be read
error: scan_0123
class Broken(Dataset):
    classes = 3
    def __init__(self): self.x, self.targets = blobs()
    def __len__(self): return len(self.x)
    def __getitem__(self, row):
        if row == 123: raise KeyError("scan_0123")
        return self.x[row], int(self.targets[row])
def data(): return Broken()
=== inputs of float64
error: double|float64
def data():
    x, y = blobs()
    return TensorDataset(x.double(), y)
# Inputs stand beside the targets of other rows.
=== one of two files was sorted
warning: (may not|do not|don't) belong|belong to other|sorted
def data():
    x, y = blobs(gap=3.0)
    return TensorDataset(x, y.sort().values)
# An input is made from the target.
=== an input that knows the target $ loss=mse metrics=regression
warning: alone|leak|knows
def data():
    x, y = curve()
    return TensorDataset(torch.cat([x, (3 * y + 2)[:, None]], 1), y)
""",
    {"CLASSES_OF_NUMBERS": CLASSES_OF_NUMBERS, "FEW": FEW, "WRONG": WRONG},
)
